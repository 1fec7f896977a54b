"""Rules for the KubeVirt object: one mistake here reaches every VM of the cluster."""

from __future__ import annotations

import orjson

from virtfleet.admission import kubevirt_pools
from virtfleet.admission.findings import Findings
from virtfleet.admission.hypervisor import hypervisor_error, warn_of_absent
from virtfleet.admission.sections import Section, read
from virtfleet.api import duration
from virtfleet.api.feature_gates import DEPRECATED, DISCONTINUED, STATES, FeatureGates
from virtfleet.hypervisors import notyet
from virtfleet.installation import CERTIFICATES_LIVE

_CONFIGURATION = "spec.configuration"
_GATES = f"{_CONFIGURATION}.developerConfiguration.featureGates"


def check(kubevirt: Section, findings: Findings, old: Section | None = None) -> None:
    """A new object, or a changed one with what it was before."""
    spec = read(kubevirt, "spec")
    configuration = read(spec, "configuration")
    gates = FeatureGates.of(kubevirt)
    _check_gates(gates, findings)
    _check_patches(spec, findings)
    _check_certificates(read(spec, "certificateRotateStrategy", "selfSigned"), findings)
    _check_values(configuration, findings)
    _check_gated_settings(configuration, gates, findings)
    _check_tls(read(configuration, "tlsConfiguration"), findings)
    _check_seccomp(read(configuration, "seccompConfiguration"), findings)
    _check_hypervisors(configuration, findings)
    if read(spec, "infra").get("replicas") == 0:
        findings.invalid("spec.infra.replicas", "the control plane needs at least 1 replica; raise it or leave it out")
    kubevirt_pools.check(kubevirt, findings, old)
    if old is not None:
        _check_downtime(kubevirt, old, findings)
    _warn_of_old_settings(configuration, findings)
    warn_of_absent(notyet.KUBEVIRT, spec, findings)
    for gate in sorted(gates.switched_on):
        if gap := notyet.behind(gate):
            findings.without_effect(f"feature gate {gate} is accepted, but {gap}")


def _check_downtime(kubevirt: Section, old: Section, findings: Findings) -> None:
    path = ("spec", "configuration", "migrations")
    downtime = read(kubevirt, *path).get("maxDowntimeMs")
    gates = FeatureGates.of(kubevirt)
    tunable = gates.enabled("MigrationStallDetection") or gates.enabled("MigrationDowntimeTuning")
    if downtime is not None and downtime != read(old, *path).get("maxDowntimeMs") and not tunable:
        findings.gate_is_off(
            f"{_CONFIGURATION}.migrationConfiguration.maxDowntimeMs",
            "MigrationDowntimeTuning",
            "changing maxDowntimeMs",
        )


def _check_gates(gates: FeatureGates, findings: Findings) -> None:
    for gate in sorted(gates.switched_on & gates.switched_off):
        findings.forbidden(_GATES, f"feature gate {gate} is both in featureGates and in disabledFeatureGates; keep one")
    for gate in sorted(gates.switched_on | gates.switched_off):
        state = STATES.get(gate)
        if state is None:
            findings.warn(f"feature gate {gate} is not known and does nothing; check the spelling")
        elif state in (DEPRECATED, DISCONTINUED):
            findings.warn(f"feature gate {gate} is {state}; remove it")


def _check_patches(spec: Section, findings: Findings) -> None:
    for i, patch in enumerate(read(spec, "customizeComponents").get("patches") or ()):
        try:
            orjson.loads(patch.get("patch") or "")
        except orjson.JSONDecodeError as error:
            findings.unsupported(f"spec.customizeComponents.patches[{i}].patch", f"the patch is not JSON: {error}")


def _check_certificates(selfsigned: Section, findings: Findings) -> None:
    path = "spec.certificateRotateStrategy.selfSigned"
    old = [f for f in ("caRotateInterval", "certRotateInterval", "caOverlapInterval") if selfsigned.get(f) is not None]
    new = [f for f in ("ca", "server") if selfsigned.get(f) is not None]
    if old and new:
        findings.unsupported(path, f"{', '.join(old)} are deprecated and contradict {', '.join(new)}; remove them")
    ca, server = read(selfsigned, "ca"), read(selfsigned, "server")
    texts = {
        "ca.duration": ca.get("duration") or selfsigned.get("caRotateInterval"),
        "ca.renewBefore": ca.get("renewBefore") or selfsigned.get("caOverlapInterval"),
        "server.duration": server.get("duration") or selfsigned.get("certRotateInterval"),
        "server.renewBefore": server.get("renewBefore"),
    }
    seconds: dict[str, float] = {}
    for field, text in texts.items():
        value = duration.seconds(text) if text is not None else None
        if text is not None and value is None:
            findings.invalid(f"{path}.{field}", f"{text!r} is not a duration; write it like 24h or 90m")
            return
        if value is not None:
            seconds[field] = value
    ca_life, server_life = (
        seconds.get(f"{kind}.duration", CERTIFICATES_LIVE[kind].total_seconds()) for kind in ("ca", "server")
    )
    if seconds.get("ca.renewBefore", 0) > ca_life:
        findings.invalid(f"{path}.ca.renewBefore", "the CA would be renewed before it exists; lower renewBefore")
    if seconds.get("server.renewBefore", 0) > server_life:
        findings.invalid(
            f"{path}.server.renewBefore", "certificates would be renewed before they exist; lower renewBefore"
        )
    if server_life > ca_life:
        findings.invalid(
            f"{path}.server.duration", "certificates cannot outlive their CA; lower duration or raise the CA's"
        )


def _check_values(configuration: Section, findings: Findings) -> None:
    ratio = configuration.get("additionalGuestMemoryOverheadRatio")
    if ratio is not None:
        try:
            sound = float(ratio) >= 1.0
        except ValueError:
            sound = False
        if not sound:
            findings.unsupported(
                f"{_CONFIGURATION}.additionalGuestMemoryOverheadRatio", f"{ratio!r} must be a number of 1.0 or more"
            )
    developer, path = read(configuration, "developerConfiguration"), f"{_CONFIGURATION}.developerConfiguration"
    for field in ("memoryOvercommit", "cpuAllocationRatio"):
        if (developer.get(field) or 1) <= 0:
            findings.invalid(f"{path}.{field}", f"{developer[field]} is not possible; use 1 or more")
    toleration = developer.get("pvcTolerateLessSpaceUpToPercent") or 0
    if not 0 <= toleration <= 100:
        findings.invalid(f"{path}.pvcTolerateLessSpaceUpToPercent", f"{toleration} is not a percentage; use 0 to 100")
    interface = read(configuration, "network").get("defaultNetworkInterface") or ""
    if interface not in ("", "bridge", "masquerade"):
        findings.invalid(
            f"{_CONFIGURATION}.network.defaultNetworkInterface",
            f"{interface!r} cannot be the default; use masquerade or bridge",
        )


def _check_gated_settings(configuration: Section, gates: FeatureGates, findings: Findings) -> None:
    if read(configuration, "virtTemplateDeployment").get("enabled") and not gates.enabled("Template"):
        findings.gate_is_off(f"{_CONFIGURATION}.virtTemplateDeployment.enabled", "Template", "virtTemplateDeployment")
    aggregation = configuration.get("roleAggregationStrategy") or "AggregateToDefault"
    if aggregation != "AggregateToDefault" and not gates.enabled("OptOutRoleAggregation"):
        findings.gate_is_off(
            f"{_CONFIGURATION}.roleAggregationStrategy",
            "OptOutRoleAggregation",
            f"roleAggregationStrategy {aggregation}",
        )


def _check_tls(tls: Section, findings: Findings) -> None:
    if tls.get("ciphers") and (tls.get("minTLSVersion") or "VersionTLS13") == "VersionTLS13":
        findings.unsupported(
            f"{_CONFIGURATION}.tlsConfiguration.ciphers",
            "TLS 1.3 has its own ciphers; remove ciphers, or set minTLSVersion: VersionTLS12",
        )


def _check_seccomp(seccomp: Section, findings: Findings) -> None:
    profile = seccomp.get("virtualMachineInstanceProfile")
    if profile is None:
        return
    path = f"{_CONFIGURATION}.seccompConfiguration.virtualMachineInstanceProfile.customProfile"
    custom = profile.get("customProfile")
    if custom is None:
        findings.invalid(
            path, "name the profile; set customProfile.runtimeDefaultProfile or customProfile.localhostProfile"
        )
    elif custom.get("localhostProfile") is not None and custom.get("runtimeDefaultProfile"):
        for field in ("localhostProfile", "runtimeDefaultProfile"):
            findings.invalid(
                f"{path}.{field}", "localhostProfile and runtimeDefaultProfile exclude each other; keep one"
            )


def _check_hypervisors(configuration: Section, findings: Findings) -> None:
    for i, entry in enumerate(configuration.get("hypervisors") or ()):
        if why := hypervisor_error(entry.get("name") or ""):
            findings.unsupported(f"{_CONFIGURATION}.hypervisors[{i}].name", why)


def _warn_of_old_settings(configuration: Section, findings: Findings) -> None:
    devices, path = (
        read(configuration, "mediatedDevicesConfiguration"),
        f"{_CONFIGURATION}.mediatedDevicesConfiguration",
    )
    if devices.get("mediatedDevicesTypes") is not None:
        findings.warn(f"{path}.mediatedDevicesTypes is deprecated; use mediatedDeviceTypes")
    for i, node in enumerate(devices.get("nodeMediatedDeviceTypes") or ()):
        if node.get("mediatedDevicesTypes") is not None:
            at = f"{path}.nodeMediatedDeviceTypes[{i}].mediatedDevicesTypes"
            findings.warn(f"{at} is deprecated; use mediatedDeviceTypes")
    if read(configuration, "architectureConfiguration").get("ppc64le") is not None:
        findings.warn(f"{_CONFIGURATION}.architectureConfiguration.ppc64le does nothing; remove it")
