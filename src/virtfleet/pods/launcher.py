"""The launcher Pod of a VMI.

One VMI has one launcher Pod, whose name follows from the UID, so that the API server refuses a second one whoever asks
for it, and a controller that restarts finds what it made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from virtfleet.api import kinds, names, traits
from virtfleet.api.addresses import plain_ip
from virtfleet.api.probes import DEFAULTS, INSIDE
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.hypervisors import daemons, registry
from virtfleet.hypervisors.base import Descriptor, Hypervisor
from virtfleet.installation import Installation
from virtfleet.pods import (
    consolelog,
    heldimages,
    hooksidecars,
    networks,
    placement,
    resources,
    security,
    sharing,
    vmstate,
    volumes,
)
from virtfleet.pools.launcher import Launcher
from virtfleet.pools.placement import restrict_affinity
from virtfleet.pools.terms import ABSENT, TooManyTermsError

COMPUTE = "compute"
# After the guest's own time to shut down: for the launcher to kill it, tidy up and report.
GRACE_AFTER_GUEST = 30
_LONGEST_NAME = 253
_LONGEST_LABEL = 63
_LIBVIRT_SPEAKS = 5  # verbosity above which libvirt tells all it does, too
# Annotations of a VMI that mean nothing, or something else, on a Pod.
_NOT_FOR_PODS = ("kubectl.kubernetes.io/last-applied-configuration", "kubevirt.io/latest-observed-api-version")


class Unrenderable(ValueError):
    """A VMI that cannot have a launcher Pod as things are; the message is for its owner."""


def pod_name(vmi_name: str, uid: str) -> str:
    """The name of the one Pod for a VMI's UID."""
    prefix, suffix = "virt-launcher-", f"-{uid.partition('-')[0]}"
    return f"{prefix}{vmi_name[: _LONGEST_NAME - len(prefix) - len(suffix)].rstrip('-.')}{suffix}"


def vmi_id(name: str) -> str:
    """A VMI's name as the value of a label, by which Services that `virtctl expose` makes find its Pod."""
    if len(name) <= _LONGEST_LABEL:
        return name
    digest = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()[:8]
    return f"{name[: _LONGEST_LABEL - len(digest) - 1]}-{digest}"


def render(
    vmi: Mapping[str, Any],
    settings: Installation,
    *,
    block_volumes: Collection[str] = (),
    nodes: heldimages.Nodes | None = None,
    state_claim: str = "",
) -> dict[str, Any]:
    """The launcher Pod of a VMI that admission has completed; `nodes` are those of the cluster, if they are known.

    `state_claim` holds what firmware and TPM keep, where it is not the one that a VM has at first.
    """
    launcher = settings.fleet.launcher(vmi)
    if launcher.conflict:
        raise Unrenderable(launcher.conflict)
    try:
        hypervisor = registry.get(launcher.hypervisor)
    except registry.UnknownHypervisor as error:
        raise Unrenderable(str(error)) from None
    descriptor, view = hypervisor.descriptor, read(VMI, vmi)
    placed = _placement(vmi, view, descriptor, launcher, settings)
    held = not settings.enabled("ImageVolume") or heldimages.needed(placed, nodes or {})
    mounted = volumes.mounted(view, block_volumes, hold_images=held, state_claim=state_claim)
    volumes.add_node_paths(mounted, descriptor)
    image = launcher.image
    holders = heldimages.containers(mounted, settings, image)
    try:
        sharers = sharing.containers(view, descriptor, settings, image, mounted)
        holders += hooksidecars.containers(view, hypervisor, settings, mounted)
    except ValueError as error:
        raise Unrenderable(str(error)) from None
    if taken := volumes.clash(mounted):
        raise Unrenderable(f"spec.volumes: a volume of the launcher Pod is called {taken!r} already; rename the VMI's")
    if mounted.images and not mounted.held:
        placed["nodeSelector"] = {names.IMAGE_VOLUMES: "true", **placed["nodeSelector"]}
    compute = _compute(vmi, view, hypervisor, settings, image, mounted)
    beside = [*holders, *consolelog.containers(view, hypervisor, settings, image, compute["resources"])]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(view, launcher),
        "spec": {
            **placed,
            **_identity(vmi, view, mounted),
            "restartPolicy": "Never",
            "readinessGates": [{"conditionType": names.UNPAUSED}],  # no Service leads to a guest that stands still
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": traits.grace(view) + GRACE_AFTER_GUEST,
            "securityContext": {**security.of_pod(descriptor, settings), "sysctls": [security.FIRST_FREE_PORT]},
            **({"initContainers": beside} if beside else {}),
            "containers": [compute, *sharers],
            "volumes": mounted.volumes,
            **_pulling(mounted, settings),
        },
    }


def _metadata(view: VMI, launcher: Launcher) -> dict[str, Any]:
    meta = view.metadata
    labels = {
        **{key: value for key, value in meta.labels.items() if key != names.HANDLER_POOL},
        names.APP_LABEL: names.LAUNCHER_APP,
        names.DOMAIN: meta.name[:_LONGEST_LABEL].rstrip("-."),
        names.VM_NAME: meta.name[:_LONGEST_LABEL].rstrip("-."),
        names.VMI_ID: vmi_id(meta.name),
        names.CREATED_BY: meta.uid,
    }
    annotations = {
        **{key: value for key, value in meta.annotations.items() if key not in _NOT_FOR_PODS},
        names.DOMAIN: meta.name,
        names.LAUNCHER_HYPERVISOR: launcher.hypervisor,
        "kubectl.kubernetes.io/default-container": COMPUTE,
        names.EVICTED_LATER: "",
        **networks.attachments(view),
    }
    if launcher.pool:
        labels[names.HANDLER_POOL] = annotations[names.HANDLER_POOL] = launcher.pool.name
    owner = {"apiVersion": kinds.VMI.api_version, "kind": kinds.VMI.kind, "name": meta.name, "uid": meta.uid}
    return {
        "name": pod_name(meta.name, meta.uid),
        "namespace": meta.namespace,
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
    }


def _placement(
    vmi: Mapping[str, Any], view: VMI, hypervisor: Descriptor, launcher: Launcher, settings: Installation
) -> dict[str, Any]:
    try:
        affinity = settings.fleet.affinity(vmi, launcher.pool)
    except TooManyTermsError as error:
        raise Unrenderable(str(error)) from None
    if avoided := placement.forbidden(view, settings):
        affinity = restrict_affinity(affinity, [dict.fromkeys(avoided, ABSENT)])
    spec = vmi["spec"]
    passed_on = ("tolerations", "topologySpreadConstraints", "schedulerName", "priorityClassName", "resourceClaims")
    return {
        "nodeSelector": placement.node_selector(view, hypervisor, settings),
        **({"affinity": affinity} if affinity else {}),
        **({"runtimeClassName": runtime} if (runtime := settings.configuration.default_runtime_class) else {}),
        **{key: spec[key] for key in passed_on if spec.get(key)},
    }


def _identity(vmi: Mapping[str, Any], view: VMI, mounted: volumes.Mounted) -> dict[str, Any]:
    """Who the Pod is: its names, and the service account whose token the guest may get."""
    spec = vmi["spec"]
    passed_on = ("subdomain", "dnsPolicy")
    dns = spec.get("dnsConfig") or {}
    if servers := dns.get("nameservers"):  # KubeVirt takes zeros before a number, and Kubernetes none
        dns = {**dns, "nameservers": [plain_ip(server) for server in servers]}
    account = mounted.service_account or view.spec.service_account_name
    return {
        "hostname": traits.hostname(view),
        **{key: spec[key] for key in passed_on if spec.get(key)},
        **({"dnsConfig": dns} if dns else {}),
        **({"serviceAccountName": account} if account else {}),
        "automountServiceAccountToken": bool(mounted.service_account),
    }


def _compute(
    vmi: Mapping[str, Any],
    view: VMI,
    hypervisor: Hypervisor,
    settings: Installation,
    image: str,
    mounted: volumes.Mounted,
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": COMPUTE,
        **settings.pulled(image),
        "args": _arguments(view, hypervisor.descriptor, settings, mounted.sidecars),
        "resources": resources.requirements(view, hypervisor, settings),
        "securityContext": security.of_container(hypervisor.descriptor),
        "volumeMounts": mounted.mounts,
    }
    environment = {"LIBVIRT_DEFAULT_URI": daemons.uri(hypervisor.descriptor)}  # for those who call virsh
    if mounted.held:
        environment[paths.HELD_AT] = ":".join(held.path for held in mounted.held)
    if kept := vmstate.kept(view):
        environment[paths.KEPT] = ":".join(kept)
    container["env"] = [{"name": name, "value": value} for name, value in environment.items() if value]
    if mounted.devices:
        container["volumeDevices"] = mounted.devices
    for kind in ("livenessProbe", "readinessProbe"):
        if wanted := vmi["spec"].get(kind):
            container[kind] = _probe(wanted)
    return container


def _probe(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Over the network it reaches the guest by the Pod's address; inside, the launcher asks the guest's agent."""
    if not any(wanted.get(action) is not None for action in INSIDE):
        return dict(wanted)
    rest = {key: value for key, value in wanted.items() if key not in INSIDE}
    command = ["virt-launcher", "probe", "--timeout", str(wanted.get("timeoutSeconds") or DEFAULTS["timeoutSeconds"])]
    if wanted.get("exec") is not None:
        command += ["--", *(wanted["exec"].get("command") or ())]
    return {**rest, "exec": {"command": command}}


def _arguments(view: VMI, hypervisor: Descriptor, settings: Installation, sidecars: int) -> list[str]:
    """What the launcher must know before the handler talks to it."""
    labels, annotations = view.metadata.labels, view.metadata.annotations
    wanted = labels.get(names.LOG_VERBOSITY, "")
    verbosity = int(wanted) if wanted.isdecimal() else settings.verbosity("virt_launcher")
    debugging = labels.get(names.DEBUG_LOGS, "").lower() == "true" or verbosity > _LIBVIRT_SPEAKS
    arguments = {
        "namespace": view.metadata.namespace,
        "name": view.metadata.name,
        "uid": view.metadata.uid,
        "hypervisor": hypervisor.name,
        "verbosity": str(verbosity),
        "hook-sidecars": str(sidecars or ""),
        "libvirt-log-filters": annotations.get(names.LIBVIRT_LOG_FILTERS) or daemons.DEBUGGING * debugging,
    }
    crash = ["--simulate-crash"] if names.FAIL_FAST in annotations else []
    return [*(f"--{name}={value}" for name, value in arguments.items() if value), *crash]


def _pulling(mounted: volumes.Mounted, settings: Installation) -> dict[str, Any]:
    secrets = dict.fromkeys((*settings.pull_secrets, *mounted.pull_secrets))
    return {"imagePullSecrets": [{"name": name} for name in secrets]} if secrets else {}
