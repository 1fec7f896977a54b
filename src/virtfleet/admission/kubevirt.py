"""Rules for the KubeVirt object: one mistake here reaches every VM of the cluster."""

from __future__ import annotations

import orjson

from virtfleet.admission import kubevirt_pools, scheduling
from virtfleet.admission.findings import Findings
from virtfleet.admission.hypervisor import hypervisor_error, warn_of_absent
from virtfleet.admission.sections import Section, read, says
from virtfleet.api import times, tlsrules
from virtfleet.api import view as views
from virtfleet.api.configuration import KubeVirtConfiguration, TLSConfiguration
from virtfleet.api.feature_gates import DEPRECATED, DISCONTINUED, STATES, FeatureGates
from virtfleet.api.kubevirt import UPDATE_METHODS, KubeVirt, KubeVirtSpec
from virtfleet.hypervisors import notyet
from virtfleet.installation import CERTIFICATES_LIVE
from virtfleet.pools.model import POOL_FIELDS

_GATES = "spec.configuration.developerConfiguration.featureGates"


def check(kubevirt: Section, findings: Findings, old: Section | None = None) -> None:
    """A new object, or a changed one with what it was before."""
    spec, raw = views.read(KubeVirt, kubevirt).spec, read(kubevirt, "spec", "configuration")
    gates, settings = FeatureGates.of(kubevirt), findings.below("spec.configuration")
    _check_gates(gates, findings)
    for i, patch in enumerate(spec.customize_components.patches if spec.customize_components else ()):
        try:
            orjson.loads(patch.patch)
        except orjson.JSONDecodeError as error:
            findings.unsupported(f"spec.customizeComponents.patches[{i}].patch", f"the patch is not JSON: {error}")
    _check_certificates(
        read(kubevirt, "spec", "certificateRotateStrategy", "selfSigned"),
        findings.below("spec.certificateRotateStrategy.selfSigned"),
    )
    _check_values(spec.configuration, raw, settings)
    _check_gated_settings(spec.configuration, gates, settings)
    _check_tls(spec.configuration.tls_configuration or TLSConfiguration(), settings)
    _check_seccomp(spec.configuration, raw, settings)
    for i, entry in enumerate(spec.configuration.hypervisors):
        if why := hypervisor_error(entry.name):
            settings.unsupported(f"hypervisors[{i}].name", why)
    if spec.infra and spec.infra.replicas == 0:
        findings.invalid("spec.infra.replicas", "infra replica count can't be 0; raise it or leave it out")
    for field, component in (("infra", spec.infra), ("workloads", spec.workloads)):
        placed = component.node_placement if component else None
        for i, toleration in enumerate(placed.tolerations if placed else ()):
            below = findings.below(f"spec.{field}.nodePlacement")
            scheduling.check_toleration(below, toleration, f"tolerations[{i}]")
    kubevirt_pools.check(kubevirt, findings, old)
    _check_updates(spec, findings.below("spec"))
    if old is not None:
        _check_downtime(spec.configuration, old, gates, settings)
    _warn_of_old_settings(raw, findings)
    warn_of_absent(notyet.KUBEVIRT, read(kubevirt, "spec"), findings)
    for gate in sorted(gates.switched_on):
        if gap := notyet.lacking(gate):
            findings.without_effect(f"feature gate {gate} is accepted, but {gap}")


def _check_downtime(
    configuration: KubeVirtConfiguration, old: Section, gates: FeatureGates, settings: Findings
) -> None:
    downtime = configuration.migrations.max_downtime_ms if configuration.migrations else None
    tunable = gates.enabled("MigrationStallDetection") or gates.enabled("MigrationDowntimeTuning")
    if downtime is None or tunable:
        return
    if downtime != read(old, "spec", "configuration", "migrations").get("maxDowntimeMs"):
        field = "migrationConfiguration.maxDowntimeMs"
        settings.gate_is_off(field, "MigrationDowntimeTuning", "changing maxDowntimeMs")


def _check_updates(spec: KubeVirtSpec, findings: Findings) -> None:
    """How running VMs get new launchers, said by the installation and by pools."""
    said = {"workloadUpdateStrategy": spec.workload_update_strategy}
    for field in POOL_FIELDS:
        for i, pool in enumerate(views.part(spec, field)):
            said[f"{field}[{i}].workloadUpdateStrategy"] = pool.workload_update_strategy
    for path, strategy in said.items():
        if strategy is None:
            continue
        for i, method in enumerate(strategy.workload_update_methods):
            if method not in UPDATE_METHODS:
                at = findings.at(f"{path}.workloadUpdateMethods[{i}]")
                findings.warn(f"{at}: {method!r} is no method and does nothing; use {' or '.join(UPDATE_METHODS)}")
        if (strategy.batch_eviction_size or 0) < 0:
            field, size = f"{path}.batchEvictionSize", strategy.batch_eviction_size
            findings.invalid(field, f"{size} VMs cannot be evicted; use 1 or more")
        interval = strategy.batch_eviction_interval
        if interval and times.duration(interval) is None:
            field = f"{path}.batchEvictionInterval"
            findings.invalid(field, f"{interval!r} is not a duration; write it like 60s or 10m")


def _check_gates(gates: FeatureGates, findings: Findings) -> None:
    for gate in sorted(gates.switched_on & gates.switched_off):
        findings.forbidden(_GATES, f"feature gate {gate} is both in featureGates and in disabledFeatureGates; keep one")
    for gate in sorted(gates.switched_on | gates.switched_off):
        state = STATES.get(gate)
        if state is None:
            findings.warn(f"feature gate {gate} is not known and does nothing; check the spelling")
        elif state in (DEPRECATED, DISCONTINUED):
            findings.warn(f"feature gate {gate} is {state}; remove it")


def _check_certificates(selfsigned: Section, findings: Findings) -> None:
    """Durations as they are written: an empty one is none."""
    old = [f for f in ("caRotateInterval", "certRotateInterval", "caOverlapInterval") if f in selfsigned]
    new = [f for f in ("ca", "server") if f in selfsigned]
    if old and new:
        contradiction = f"{', '.join(old)} are deprecated and contradict {', '.join(new)}; remove them"
        findings.unsupported("", contradiction)
    ca, server = read(selfsigned, "ca"), read(selfsigned, "server")
    texts = {
        "ca.duration": ca.get("duration") or selfsigned.get("caRotateInterval"),
        "ca.renewBefore": ca.get("renewBefore") or selfsigned.get("caOverlapInterval"),
        "server.duration": server.get("duration") or selfsigned.get("certRotateInterval"),
        "server.renewBefore": server.get("renewBefore"),
    }
    seconds: dict[str, float] = {}
    for field, text in texts.items():
        if text is None:
            continue
        if (value := times.duration(text)) is None:
            findings.invalid(field, f"{text!r} is not a duration; write it like 24h or 90m")
            return
        seconds[field] = value
    ca_life, server_life = (
        seconds.get(f"{kind}.duration", CERTIFICATES_LIVE[kind].total_seconds()) for kind in ("ca", "server")
    )
    if seconds.get("ca.renewBefore", 0) > ca_life:
        findings.invalid("ca.renewBefore", "the CA would be renewed before it exists; lower renewBefore")
    if seconds.get("server.renewBefore", 0) > server_life:
        findings.invalid("server.renewBefore", "certificates would be renewed before they exist; lower renewBefore")
    if server_life > ca_life:
        findings.invalid("server.duration", "certificates cannot outlive their CA; lower duration or raise the CA's")


def _check_values(configuration: KubeVirtConfiguration, raw: Section, settings: Findings) -> None:
    ratio, developer = configuration.additional_guest_memory_overhead_ratio, configuration.developer_configuration
    if says(raw, "additionalGuestMemoryOverheadRatio"):
        try:
            sound = float(ratio) >= 1.0
        except ValueError:
            sound = False
        if not sound:
            settings.unsupported("additionalGuestMemoryOverheadRatio", f"{ratio!r} must be a number of 1.0 or more")
    for field, value in (
        ("memoryOvercommit", developer.memory_overcommit),
        ("cpuAllocationRatio", developer.cpu_allocation_ratio),
    ):
        if (value or 1) <= 0:
            settings.invalid(f"developerConfiguration.{field}", f"{value} is not possible; use 1 or more")
    toleration = developer.pvc_tolerate_less_space_up_to_percent or 0
    if not 0 <= toleration <= 100:
        field = "developerConfiguration.pvcTolerateLessSpaceUpToPercent"
        settings.invalid(field, f"{toleration} is not a percentage; use 0 to 100")
    interface = configuration.network.default_network_interface if configuration.network else ""
    if interface not in ("", "bridge", "masquerade"):
        field = "network.defaultNetworkInterface"
        settings.invalid(field, f"{interface!r} cannot be the default; use masquerade or bridge")


def _check_gated_settings(configuration: KubeVirtConfiguration, gates: FeatureGates, settings: Findings) -> None:
    deployment = configuration.virt_template_deployment
    if deployment and deployment.enabled and not gates.enabled("Template"):
        settings.gate_is_off("virtTemplateDeployment.enabled", "Template", "virtTemplateDeployment")
    aggregation = configuration.role_aggregation_strategy or "AggregateToDefault"
    if aggregation != "AggregateToDefault" and not gates.enabled("OptOutRoleAggregation"):
        what = f"roleAggregationStrategy {aggregation}"
        settings.gate_is_off("roleAggregationStrategy", "OptOutRoleAggregation", what)


def _check_tls(tls: TLSConfiguration, settings: Findings) -> None:
    if tls.ciphers and (tls.min_tls_version or "VersionTLS13") == "VersionTLS13":
        message = "TLS 1.3 has its own ciphers; remove ciphers, or set minTLSVersion: VersionTLS12"
        settings.unsupported("tlsConfiguration.ciphers", message)
    elif lacking := tlsrules.unusable(tls.ciphers):
        settings.warn(
            f"{settings.at('tlsConfiguration.ciphers')}: {', '.join(lacking)} cannot be used, for servers here have"
            " ECDSA keys; name ciphers for those (TLS_ECDHE_ECDSA_...)"
        )


def _check_seccomp(configuration: KubeVirtConfiguration, raw: Section, settings: Findings) -> None:
    seccomp = configuration.seccomp_configuration
    if seccomp is None or (profile := seccomp.virtual_machine_instance_profile) is None:
        return
    path = "seccompConfiguration.virtualMachineInstanceProfile.customProfile"
    if profile.custom_profile is None:
        settings.invalid(
            path, "name the profile; set customProfile.runtimeDefaultProfile or customProfile.localhostProfile"
        )
    elif says(raw, f"{path}.localhostProfile") and profile.custom_profile.runtime_default_profile:
        for field in ("localhostProfile", "runtimeDefaultProfile"):
            both = "localhostProfile and runtimeDefaultProfile exclude each other; keep one"
            settings.invalid(f"{path}.{field}", both)


def _warn_of_old_settings(raw: Section, findings: Findings) -> None:
    devices = "mediatedDevicesConfiguration"
    nodes = read(raw, devices).get("nodeMediatedDeviceTypes") or ()
    for path in (devices, *(f"{devices}.nodeMediatedDeviceTypes[{i}]" for i in range(len(nodes)))):
        if says(raw, field := f"{path}.mediatedDevicesTypes"):
            findings.warn(f"spec.configuration.{field} is deprecated; use mediatedDeviceTypes")
    if says(raw, "architectureConfiguration.ppc64le"):
        findings.warn("spec.configuration.architectureConfiguration.ppc64le does nothing; remove it")
