"""Rules for everything plugged into the machine besides disks and interfaces."""

from __future__ import annotations

from collections.abc import Sequence

from virtfleet.admission.findings import Findings
from virtfleet.admission.machine import Machine
from virtfleet.admission.names import dns_label_error, dns_subdomain_error
from virtfleet.admission.network import claim_pairs
from virtfleet.admission.sections import Section, read

_IO_THREADS = ("shared", "auto", "supplementalPool")
_PANIC_MODELS = ("hyperv", "isa", "pvpanic")
_SOUND_MODELS = ("ich9", "ac97")


def check(m: Machine, found: Findings) -> None:
    _check_inputs(m, found)
    _check_io_threads(m, found)
    _check_sound(m, found)
    _check_video(m, found)
    _check_panic_devices(m, found)
    _check_gated_devices(m, found)
    _check_displays(m, found)
    _check_host_devices(m, found)
    _check_claims(m, found)


def _check_inputs(m: Machine, found: Findings) -> None:
    for i, device in enumerate(m.devices.get("inputs") or ()):
        path, bus, kind = m.at(f"domain.devices.inputs[{i}]"), device.get("bus") or "", device.get("type") or ""
        if bus not in ("", "virtio", "usb"):
            found.invalid(f"{path}.bus", f"an input device cannot be on bus {bus!r}; use usb or virtio")
        if kind != "tablet":
            found.invalid(f"{path}.type", f"there is no input device {kind!r}; use tablet")


def _check_io_threads(m: Machine, found: Findings) -> None:
    policy = m.domain.get("ioThreadsPolicy")
    if policy is None:
        return
    if policy not in _IO_THREADS:
        found.invalid(
            m.at("domain.ioThreadsPolicy"), f"policy {policy!r} does not exist; use one of {', '.join(_IO_THREADS)}"
        )
    if policy == "supplementalPool" and (read(m.domain, "ioThreads").get("supplementalPoolThreadCount") or 0) < 1:
        found.invalid(
            m.at("domain.ioThreads.count"), "supplementalPool needs ioThreads.supplementalPoolThreadCount of 1 or more"
        )


def _check_sound(m: Machine, found: Findings) -> None:
    sound = m.devices.get("sound")
    if sound is None:
        return
    model = sound.get("model") or ""
    if model and model not in _SOUND_MODELS:
        found.invalid(m.at("Sound"), f"sound model {model!r} does not exist; use {' or '.join(_SOUND_MODELS)}")
    if not sound.get("name"):
        found.invalid(m.at("Sound"), "the sound device needs a name; set domain.devices.sound.name")


def _check_video(m: Machine, found: Findings) -> None:
    if m.devices.get("video") is not None and m.devices.get("autoattachGraphicsDevice") is False:
        found.invalid(m.at("video"), "a video device needs graphics; remove video or autoattachGraphicsDevice: false")


def _check_panic_devices(m: Machine, found: Findings) -> None:
    devices = m.devices.get("panicDevices") or ()
    if devices and m.architecture == "s390x":
        found.invalid(m.at("domain.devices.panicDevices"), "s390x has a panic device of its own; remove panicDevices")
    for i, device in enumerate(devices):
        model = device.get("model")
        if model is not None and model not in _PANIC_MODELS:
            found.invalid(
                m.at(f"domain.devices.panicDevices[{i}].model"),
                f"panic device model {model!r} does not exist; use one of {', '.join(_PANIC_MODELS)}",
            )


def _check_gated_devices(m: Machine, found: Findings) -> None:
    if m.devices.get("autoattachVSOCK") and not m.enabled("VSOCK"):
        found.gate_is_off(m.at("domain.devices.autoattachVSOCK"), "VSOCK", "autoattachVSOCK")
    if m.devices.get("downwardMetrics") is not None and not m.enabled("DownwardMetrics"):
        found.gate_is_off(m.at("domain.devices.downwardMetrics"), "DownwardMetrics", "the downwardMetrics device")
    if m.domain.get("rebootPolicy") is not None and not m.enabled("RebootPolicy"):
        found.gate_is_off(m.at("domain.rebootPolicy"), "RebootPolicy", "domain.rebootPolicy")
    if m.devices.get("hostDevices") is not None and not m.enabled("HostDevices"):
        found.gate_is_off(m.at("HostDevices"), "HostDevices", "domain.devices.hostDevices")


def _check_displays(m: Machine, found: Findings) -> None:
    displays = 0
    for gpu in m.devices.get("gpus") or ():
        display = read(gpu, "virtualGPUOptions").get("display")
        if display is not None and display.get("enabled") is not False:
            displays += read(display, "ramFB").get("enabled") is not False
    if displays > 1:
        found.invalid(m.at("GPUs"), "only one GPU can show the boot screen; set display.ramFB.enabled: false on others")


def _check_host_devices(m: Machine, found: Findings) -> None:
    permitted = m.cluster.permitted_devices
    for kind in ("gpus", "hostDevices"):
        names: set[str] = set()
        for i, device in enumerate(m.devices.get(kind) or ()):
            path, asked, name = m.at(f"domain.devices.{kind}[{i}]"), device.get("deviceName"), device.get("name") or ""
            if name in names:
                found.duplicate(f"{path}.name", f"two of {kind} are called {name!r}; rename one")
            names.add(name)
            if asked and permitted is not None and asked not in permitted:
                found.invalid(
                    f"{path}.deviceName",
                    f"device {asked} is not permitted; an administrator can add it to "
                    "spec.configuration.permittedHostDevices of the KubeVirt object",
                )


def _check_claims(m: Machine, found: Findings) -> None:
    """Devices that are provided by dynamic resource allocation."""
    claims = m.spec.get("resourceClaims") or ()
    _check_claim_list(claims, m.at("resourceClaims"), found)
    used: set[str] = set()
    owners: dict[str, str] = {}
    for kind, gate in (("gpus", "GPUsWithDRA"), ("hostDevices", "HostDevicesWithDRA")):
        pairs = _check_claimed_devices(m, kind, gate, found)
        used |= {pair.partition("/")[0] for pair in pairs}
        _check_pairs_are_single(pairs, m.at(f"domain.devices.{kind}"), owners, found)
    if m.enabled("NetworkDevicesWithDRA"):
        _check_pairs_are_single(claim_pairs(m), m.at("networks"), owners, found)
    if missing := used - {claim.get("name") for claim in claims}:
        found.invalid(
            m.at("resourceClaims"),
            f"devices use {', '.join(sorted(missing))}, which resourceClaims lacks; add it there",
        )


def _check_claim_list(claims: Sequence[Section], path: str, found: Findings) -> None:
    names: set[str] = set()
    for i, claim in enumerate(claims):
        field, name = f"{path}[{i}]", claim.get("name") or ""
        if not name:
            found.required(f"{field}.name", "name the claim; devices refer to it by this name")
        elif name in names:
            found.duplicate(f"{field}.name", f"two claims are called {name!r}; rename one")
        elif why := dns_label_error(name):
            found.invalid(f"{field}.name", f"{name!r} is not a name: {why}")
        names.add(name)
        sources = [s for s in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(s) is not None]
        if len(sources) != 1:
            found.invalid(field, f"claim {name!r} needs one of resourceClaimName and resourceClaimTemplateName")
        for source in sources:
            if why := dns_subdomain_error(claim[source]):
                found.invalid(f"{field}.{source}", f"{claim[source]!r} is not a name: {why}")


def _check_claimed_devices(m: Machine, kind: str, gate: str, found: Findings) -> dict[str, int]:
    """claim/request -> index of the first device with it."""
    path = m.at(f"domain.devices.{kind}")
    devices = list(enumerate(m.devices.get(kind) or ()))
    claimed = [(i, d) for i, d in devices if not d.get("deviceName") and _claims(d)]
    named = [d for i, d in devices if (i, d) not in claimed]
    if kind == "gpus" and claimed and named:
        found.invalid(path, "GPUs by deviceName and GPUs by claimName cannot be mixed; use one kind")
        return {}
    for device in named:
        if not device.get("deviceName"):
            found.required(path, f"each of {kind} needs a deviceName or a claimName with requestName; add one")
        elif _claims(device):
            found.invalid(path, f"{kind} {device.get('name')!r} has both deviceName and claimName; keep one")
    if claimed and not m.enabled(gate):
        found.gate_is_off(path, gate, f"{kind} with claimName")
        return {}
    pairs: dict[str, int] = {}
    for i, device in claimed:
        for field in ("claimName", "requestName"):
            if not device.get(field):
                found.required(f"{path}[{i}].{field}", f"set {field}, as the device comes from a resource claim")
        if device.get("claimName") and device.get("requestName"):
            pair = f"{device['claimName']}/{device['requestName']}"
            if pair in pairs:
                found.duplicate(f"{path}[{i}]", f"claim and request {pair} are used twice; use another request")
            pairs.setdefault(pair, i)
    return pairs


def _claims(device: Section) -> bool:
    return device.get("claimName") is not None or device.get("requestName") is not None


def _check_pairs_are_single(pairs: dict[str, int], path: str, owners: dict[str, str], found: Findings) -> None:
    for pair, i in pairs.items():
        if pair in owners:
            found.duplicate(f"{path}[{i}]", f"claim and request {pair} are already used by {owners[pair]}; use another")
        owners.setdefault(pair, f"{path}[{i}]")
