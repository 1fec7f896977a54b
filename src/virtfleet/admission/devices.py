"""Rules for everything plugged into the machine besides disks and interfaces."""

from __future__ import annotations

from collections.abc import Sequence

from virtfleet.admission.case import Case
from virtfleet.admission.names import dns_label_error, dns_subdomain_error
from virtfleet.admission.network import claim_pairs
from virtfleet.api import traits
from virtfleet.api.devices import GPU, HostDevice
from virtfleet.api.meta import is_on

_IO_THREADS = ("shared", "auto", "supplementalPool")
_PANIC_MODELS = ("hyperv", "isa", "pvpanic")
_SOUND_MODELS = ("ich9", "ac97")


def check(case: Case) -> None:
    _check_inputs(case)
    _check_io_threads(case)
    _check_sound(case)
    if case.devices.video is not None and not traits.graphics(case.vmi):
        case.invalid("video", "a video device needs graphics; remove video or autoattachGraphicsDevice: false")
    _check_panic_devices(case)
    _check_gated_devices(case)
    _check_displays(case)
    _check_host_devices(case, "gpus", case.devices.gpus)
    _check_host_devices(case, "hostDevices", case.devices.host_devices)
    _check_claims(case)


def _check_inputs(case: Case) -> None:
    for i, device in enumerate(case.devices.inputs):
        path = f"domain.devices.inputs[{i}]"
        if device.bus not in ("", "virtio", "usb"):
            case.invalid(f"{path}.bus", f"an input device cannot be on bus {device.bus!r}; use usb or virtio")
        if device.type != "tablet":
            case.invalid(f"{path}.type", f"there is no input device {device.type!r}; use tablet")


def _check_io_threads(case: Case) -> None:
    field, policy = "domain.ioThreadsPolicy", case.domain.io_threads_policy
    if case.says(field):
        case.check_choice(field, "policy", policy, _IO_THREADS)
    if policy == "supplementalPool" and traits.pool_threads(case.vmi) < 1:
        case.invalid(
            "domain.ioThreads.count", "supplementalPool needs ioThreads.supplementalPoolThreadCount of 1 or more"
        )


def _check_sound(case: Case) -> None:
    sound = case.devices.sound
    if sound is None:
        return
    if sound.model and sound.model not in _SOUND_MODELS:
        case.invalid("Sound", f"sound model {sound.model!r} does not exist; use {' or '.join(_SOUND_MODELS)}")
    if not sound.name:
        case.invalid("Sound", "the sound device needs a name; set domain.devices.sound.name")


def _check_panic_devices(case: Case) -> None:
    if case.devices.panic_devices and case.architecture == "s390x":
        case.invalid("domain.devices.panicDevices", "s390x has a panic device of its own; remove panicDevices")
    for i, device in enumerate(case.devices.panic_devices):
        field = f"domain.devices.panicDevices[{i}].model"
        if case.says(field):
            case.check_choice(field, "panic device model", device.model, _PANIC_MODELS)


def _check_gated_devices(case: Case) -> None:
    if case.devices.autoattach_vsock:
        case.needs_gate("domain.devices.autoattachVSOCK", "VSOCK", "autoattachVSOCK")
    if case.devices.downward_metrics is not None:
        case.needs_gate("domain.devices.downwardMetrics", "DownwardMetrics", "the downwardMetrics device")
    if case.says("domain.rebootPolicy"):
        case.needs_gate("domain.rebootPolicy", "RebootPolicy", "domain.rebootPolicy")
    if case.says("domain.devices.hostDevices"):
        case.needs_gate("HostDevices", "HostDevices", "domain.devices.hostDevices")


def _check_displays(case: Case) -> None:
    displays = [gpu.virtual_gpu_options.display for gpu in case.devices.gpus if gpu.virtual_gpu_options]
    shown = [display for display in displays if display is not None and display.enabled is not False]
    if sum(display.ram_fb is None or is_on(display.ram_fb) for display in shown) > 1:
        case.invalid("GPUs", "only one GPU can show the boot screen; set display.ramFB.enabled: false on others")


def _check_host_devices(case: Case, kind: str, devices: Sequence[GPU | HostDevice]) -> None:
    permitted = case.cluster.permitted_devices
    names: set[str] = set()
    for i, device in enumerate(devices):
        path, asked = f"domain.devices.{kind}[{i}]", device.device_name
        if device.name in names:
            case.duplicate(f"{path}.name", f"two of {kind} are called {device.name!r}; rename one")
        names.add(device.name)
        if asked and permitted is not None and asked not in permitted:
            case.invalid(
                f"{path}.deviceName",
                f"device {asked} is not permitted; an administrator can add it to "
                "spec.configuration.permittedHostDevices of the KubeVirt object",
            )


def _check_claims(case: Case) -> None:
    """Devices that are provided by dynamic resource allocation."""
    _check_claim_list(case)
    used: set[str] = set()
    owners: dict[str, str] = {}
    for kind, gate, devices in (
        ("gpus", "GPUsWithDRA", case.devices.gpus),
        ("hostDevices", "HostDevicesWithDRA", case.devices.host_devices),
    ):
        pairs = _check_claimed_devices(case, kind, gate, devices)
        used |= {pair.partition("/")[0] for pair in pairs}
        _check_pairs_are_single(case, pairs, f"domain.devices.{kind}", owners)
    if case.enabled("NetworkDevicesWithDRA"):
        _check_pairs_are_single(case, claim_pairs(case), "networks", owners)
    if missing := used - {claim.name for claim in case.spec.resource_claims}:
        lacking = ", ".join(sorted(missing))
        case.invalid("resourceClaims", f"devices use {lacking}, which resourceClaims lacks; add it there")


def _check_claim_list(case: Case) -> None:
    names: set[str] = set()
    for i, claim in enumerate(case.spec.resource_claims):
        field, name = f"resourceClaims[{i}]", claim.name
        if not name:
            case.required(f"{field}.name", "name the claim; devices refer to it by this name")
        elif name in names:
            case.duplicate(f"{field}.name", f"two claims are called {name!r}; rename one")
        elif why := dns_label_error(name):
            case.invalid(f"{field}.name", f"{name!r} is not a name: {why}")
        names.add(name)
        sources = {
            "resourceClaimName": claim.resource_claim_name,
            "resourceClaimTemplateName": claim.resource_claim_template_name,
        }
        said = {source: of for source, of in sources.items() if case.says(f"{field}.{source}")}
        if len(said) != 1:
            case.invalid(field, f"claim {name!r} needs one of resourceClaimName and resourceClaimTemplateName")
        for source, of in said.items():
            if why := dns_subdomain_error(of):
                case.invalid(f"{field}.{source}", f"{of!r} is not a name: {why}")


def _check_claimed_devices(case: Case, kind: str, gate: str, devices: Sequence[GPU | HostDevice]) -> dict[str, int]:
    """claim/request -> index of the first device with it."""
    path = f"domain.devices.{kind}"
    claims = ("claimName", "requestName")
    claiming = [i for i in range(len(devices)) if any(case.says(f"{path}[{i}].{field}") for field in claims)]
    claimed = [i for i in claiming if not devices[i].device_name]
    named = [i for i in range(len(devices)) if i not in claimed]
    if kind == "gpus" and claimed and named:
        case.invalid(path, "GPUs by deviceName and GPUs by claimName cannot be mixed; use one kind")
        return {}
    for i in named:
        if not devices[i].device_name:
            case.required(path, f"each of {kind} needs a deviceName or a claimName with requestName; add one")
        elif i in claiming:
            case.invalid(path, f"{kind} {devices[i].name!r} has both deviceName and claimName; keep one")
    if claimed and not case.needs_gate(path, gate, f"{kind} with claimName"):
        return {}
    pairs: dict[str, int] = {}
    for i in claimed:
        claim, request = devices[i].claim_name, devices[i].request_name
        for field, name in zip(claims, (claim, request), strict=True):
            if not name:
                case.required(f"{path}[{i}].{field}", f"set {field}, as the device comes from a resource claim")
        if claim and request:
            pair = f"{claim}/{request}"
            if pair in pairs:
                case.duplicate(f"{path}[{i}]", f"claim and request {pair} are used twice; use another request")
            pairs.setdefault(pair, i)
    return pairs


def _check_pairs_are_single(case: Case, pairs: dict[str, int], path: str, owners: dict[str, str]) -> None:
    for pair, i in pairs.items():
        if pair in owners:
            case.duplicate(f"{path}[{i}]", f"claim and request {pair} are already used by {owners[pair]}; use another")
        owners.setdefault(pair, case.at(f"{path}[{i}]"))
