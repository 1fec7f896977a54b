"""What a handler reports of a VMI: from the domain's state to phase, conditions and the rest of the status. Pure.

The handler owns the phases from Running on, and every condition but those that follow from the Pod (Ready, and why no
node was found), which the controller writes. All that changes goes into one patch. One thing is said for the controller
there, to spare it a write: a guest that nobody wants to probe is ready when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_interface
from typing import Any

from virtfleet.api import conditions, hotplug, times, traits
from virtfleet.api.conditions import Condition
from virtfleet.api.names import FINAL, NotMigratable, Phase, VMICondition
from virtfleet.api.quantity import BINARY, Quantity
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.api.vmistatus import GuestABI, GuestCPU, GuestDevice
from virtfleet.domain import abi, paths
from virtfleet.handler.network.networks import Wired
from virtfleet.handler.network.plan import PRIMARY
from virtfleet.handler.pods.launchers import Presence
from virtfleet.handler.vms import plugging
from virtfleet.hypervisors import features
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.hypervisors.migration import Obstacle, copies_disks
from virtfleet.kube.resource import Obj
from virtfleet.protocol import messages
from virtfleet.protocol.messages import DomainState, GuestInfo, Status

_OF_POD = "multus-status"  # KubeVirt's word for what the Pod has
LAUNCHER_LOST = "LauncherLost"
SYNC_FAILED = "Synchronizing with the Domain failed."
_ORDERLY = ("Shutdown", "Saved", "FromSnapshot")
_PAUSES = {
    "User": ("PausedByUser", "VMI was paused by user"),
    "Migration": ("PausedByMigrationMonitor", "VMI was paused by the migration monitor"),
    "IOError": ("PausedIOError", "VMI was paused, low-level IO error detected"),
}
# What an agent has to understand, by KubeVirt's list.
_AGENT_COMMANDS = frozenset((
    "guest-ping", "guest-get-time", "guest-info", "guest-shutdown", "guest-network-get-interfaces", "guest-get-fsinfo",
    "guest-get-host-name", "guest-get-users", "guest-get-timezone", "guest-get-osinfo",
))  # fmt: skip
_POOR_AGENT = "This guest agent doesn't support required basic commands"
# What the agent calls it -> what the status calls it.
_GUEST_OS = {
    "id": "id",
    "name": "name",
    "pretty-name": "prettyName",
    "version": "version",
    "version-id": "versionId",
    "machine": "machine",
    "kernel-release": "kernelRelease",
    "kernel-version": "kernelVersion",
}


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the status of a VMI depends on."""

    obj: Obj
    vmi: VMI
    """A view of the same object."""
    hypervisor: Hypervisor | None
    """None where this handler does not know the hypervisor, which is told as trouble."""
    presence: Presence = Presence.COMING
    state: DomainState | None = None
    wired: Sequence[Wired] = ()
    guest: GuestInfo | None = None
    emulated: bool = False
    trouble: str = ""
    """Why the domain could not be made as the VMI says."""
    selinux: str = ""
    """The SELinux context of its launcher, where the node has one for it."""
    fixed: str = ""
    """Why its launcher cannot move it, whatever the VMI says."""
    mounted: frozenset[str] | None = None
    """Volumes that were plugged in as far as the launcher's Pod; None where that is not known."""
    overhead: Quantity | None = None
    """Memory that the VM, as its spec has it, takes beside its guest's."""

    @property
    def runs(self) -> bool:
        """Whether there is a domain that has not ended."""
        return self.state is not None and self.state.status is not Status.ABSENT and not self.state.status.ended


def next_phase(at: Situation) -> tuple[str, str]:
    """The phase, and in one word why it failed where nobody else says it."""
    phase = at.vmi.status.phase
    if phase in FINAL or at.vmi.status.node_name == "":
        return phase, ""
    if at.state and at.state.status.ended:
        return _ended(at.vmi, at.state, phase), ""
    if at.presence is Presence.GONE:
        return Phase.FAILED, "" if at.vmi.metadata.deletion_timestamp else LAUNCHER_LOST
    if not at.runs or at.state is None:
        return phase, ""
    if at.state.status is Status.PAUSED and at.state.reason == "PostCopyFailed":
        return Phase.FAILED, at.state.reason
    return Phase.RUNNING, ""


def _ended(vmi: VMI, state: DomainState, phase: str) -> str:
    migration = vmi.status.migration_state
    if state.reason == "Migrated" and not (migration and migration.failed):
        return phase  # it goes on elsewhere
    if state.reason in _ORDERLY:
        return Phase.SUCCEEDED
    if state.reason == "Destroyed" and not _had_its_chance(vmi):
        return Phase.SUCCEEDED
    return Phase.FAILED


def _had_its_chance(vmi: VMI) -> bool:
    """Whether the guest was asked to shut down before it was destroyed, and did not."""
    acpi = vmi.spec.domain.features.acpi if vmi.spec.domain.features else None
    return not (acpi and acpi.enabled is False) and vmi.spec.termination_grace_period_seconds != 0


def change(at: Situation, now: float) -> Obj:
    """The merge patch that brings the VMI up to date; empty where it is."""
    present = at.obj.get("status") or {}
    phase, reason = next_phase(at)
    wanted: Obj = {"conditions": _conditions(at, present.get("conditions") or [], phase, now)}
    if phase != present.get("phase"):
        entry = {"phase": phase, "phaseTransitionTimestamp": times.timestamp(now)}
        wanted["phase"] = phase
        wanted["phaseTransitionTimestamps"] = [*(present.get("phaseTransitionTimestamps") or ()), entry]
        if reason:
            wanted["reason"] = reason
    if phase == Phase.RUNNING and at.state:
        wanted |= _machine(at, at.state)
        wanted["interfaces"] = _interfaces(at)
        wanted["volumeStatus"] = _volumes(at, present.get("volumeStatus") or [], at.state)
        if at.guest and at.guest.os:
            wanted["guestOSInfo"] = guest_os(at.guest)
    changed = {key: value for key, value in wanted.items() if value != (present.get(key) or type(value)())}
    return _patch(at.obj, changed) if changed else {}


def complaint(obj: Obj, trouble: str, now: float) -> Obj:
    """The merge patch that says why a VMI does not get on, and nothing else; empty where it says so already."""
    present = (obj.get("status") or {}).get("conditions") or []
    wanted = _with_trouble(present, trouble, now)
    return _patch(obj, {"conditions": wanted}) if wanted != present else {}


def _patch(obj: Obj, changed: Obj) -> Obj:
    # Others write conditions too: the version keeps two writers apart.
    about = {key: obj["metadata"][key] for key in ("resourceVersion", "uid")}
    return {"metadata": about, "status": changed}


def credentials(obj: Obj, change: Obj) -> str | None:
    """What is new of the guest's keys and passwords: why they are not there, "" where they are, None for no news."""
    old, new = ((each.get("status") or {}).get("conditions") or () for each in (obj, change))
    before, now = (conditions.find(present, VMICondition.CREDENTIALS) for present in (old, new))
    if now is None or now == before:
        return None
    if now["status"] == "True":
        return ""
    if before is None and not conditions.holds(new, VMICondition.AGENT_CONNECTED):
        return None  # that the agent of a guest that has just begun does not answer yet is no news
    return now.get("message") or ""


def guest_os(guest: GuestInfo) -> Obj:
    """The guest's operating system as the API shows it."""
    return {name: guest.os[key] for key, name in _GUEST_OS.items() if key in guest.os}


def _machine(at: Situation, state: DomainState) -> Obj:
    """What the VM is made of."""
    made: Obj = {
        "migrationMethod": "BlockMigration" if copies_disks(at.vmi) else "LiveMigration",
        "fsFreezeStatus": "frozen" if state.frozen else "",
    }
    if state.machine:
        made["machine"] = {"type": state.machine}
    if at.hypervisor:
        made["runtimeUser"] = 0 if at.hypervisor.descriptor.root else paths.USER
    if at.selinux:
        made["selinuxContext"] = at.selinux
    if state.memory:  # a launcher of an earlier version does not say
        made["memory"] = {
            "guestAtBoot": str(Quantity.of(state.boot_memory, BINARY)),
            "guestCurrent": str(Quantity.of(state.memory, BINARY)),
            "guestRequested": str(Quantity.of(state.requested_memory or state.boot_memory, BINARY)),
        }
        if overhead := _overhead(at, state, made["memory"]["guestRequested"]):
            made["memory"]["memoryOverhead"] = str(overhead)
    if all(state.topology):
        made["currentCPUTopology"] = dict(zip(("sockets", "cores", "threads"), state.topology, strict=True))
    if state.abi:
        made["guestABI"] = _guest_abi(at, state.abi)
    return made


def _overhead(at: Situation, state: DomainState, requested: str) -> Any:
    """What the VM takes beside its guest's memory, found out when it comes to its size: its Pod has that much since."""
    said, cpus = at.vmi.status.memory, at.vmi.status.current_cpu_topology
    known = said and said.memory_overhead
    has_been = said and said.guest_requested, cpus and cpus.sockets
    grown = has_been != (requested, state.topology[0]) and traits.topology(at.vmi).sockets == state.topology[0]
    return at.overhead if at.overhead and (grown or not known) else known


def _guest_abi(at: Situation, said: messages.GuestABI) -> Obj:
    """What the guest relies on of its machine. Every field is there, so that a patch leaves nothing of before."""
    names = {wired.mac: wired.name for wired in at.wired}  # some drivers forget them, and no address
    devices = []
    for each in said.devices:
        kind, _, name = each.name.rpartition("/")
        devices.append(GuestDevice(f"{kind}/{names.get(each.mac, name)}", each.address, each.mac, each.target))
    cpu = GuestCPU(said.cpu_model, said.cpu_features)
    known = abi.checked(GuestABI(said.machine, said.loader, said.variables, said.secure_boot, devices, cpu))
    cpu = known.cpu or GuestCPU()
    return {**abi.written(known), "cpu": {"model": cpu.model, "features": cpu.features}}


# --- conditions


def _conditions(at: Situation, present: list[Condition], phase: str, now: float) -> list[Condition]:
    kind = VMICondition
    if at.trouble:
        present = _with_trouble(present, at.trouble, now)
    elif at.runs:
        present = conditions.drop(present, kind.SYNCHRONIZED)
    if phase in FINAL:
        of_running_guests = (kind.PAUSED, kind.AGENT_CONNECTED, kind.UNSUPPORTED_AGENT, kind.CREDENTIALS)
        return [condition for condition in present if condition["type"] not in of_running_guests]
    if not at.runs or at.state is None:
        return present
    paused = at.state.status is Status.PAUSED
    if phase == Phase.RUNNING != at.vmi.status.phase and at.vmi.spec.readiness_probe is None and not paused:
        present = conditions.put(present, kind.READY, "True", now)
    present = _if(present, kind.AGENT_CONNECTED, at.state.agent, now)
    wanted = _AGENT_COMMANDS | set(filter(None, map(traits.agent_command, at.vmi.spec.access_credentials)))
    missing = sorted(wanted - set(at.guest.commands)) if at.guest else []
    why = f"missing: {', '.join(missing)}; allow them, or install a newer qemu-guest-agent in the guest"
    present = _if(present, kind.UNSUPPORTED_AGENT, bool(missing), now, _POOR_AGENT, why)
    if applied := at.state.credentials:
        holds = "True" if applied.synchronized else "False"
        present = conditions.put(present, kind.CREDENTIALS, holds, now, message=applied.message)
    present = _if(present, kind.PAUSED, paused, now, *_PAUSES.get(at.state.reason, (at.state.reason, "")))
    if at.hypervisor is None:
        return present
    why = f"/dev/{at.hypervisor.descriptor.device} is not used: the guest's CPUs are emulated"
    present = _if(present, kind.SOFTWARE_EMULATION, at.emulated, now, "EmulationUsed", why)
    return _mobility(at, at.hypervisor, present, now)


def _with_trouble(present: list[Condition], trouble: str, now: float) -> list[Condition]:
    return conditions.put(present, VMICondition.SYNCHRONIZED, "False", now, reason=SYNC_FAILED, message=trouble)


def _if(
    present: list[Condition], kind: str, holds: bool, now: float, reason: str = "", message: str = ""
) -> list[Condition]:
    """A condition that is said only as long as it holds."""
    if holds:
        return conditions.put(present, kind, "True", now, reason=reason, message=message)
    return conditions.drop(present, kind)


def _mobility(at: Situation, hypervisor: Hypervisor, present: list[Condition], now: float) -> list[Condition]:
    obstacles = [Obstacle(NotMigratable.OTHER, f"cannot migrate VMI: {at.fixed}")] if at.fixed else []
    obstacles += features.obstacles(hypervisor, at.vmi)
    holds, reason, message = ("False", obstacles[0].reason, obstacles[0].message) if obstacles else ("True", "", "")
    present = conditions.put(present, VMICondition.LIVE_MIGRATABLE, holds, now, reason=reason, message=message)
    beside_storage = [f"{o.reason}: {o.message}" for o in obstacles if o.reason != NotMigratable.DISKS]
    holds, reason = ("False", NotMigratable.OTHER) if beside_storage else ("True", "")
    message = ", ".join(beside_storage)
    return conditions.put(present, VMICondition.STORAGE_LIVE_MIGRATABLE, holds, now, reason=reason, message=message)


# --- devices


def _interfaces(at: Situation) -> list[Obj]:
    """Interfaces of the VMI as they are, then those that only the guest knows of."""
    by_mac = {i.mac.lower(): i for i in at.guest.interfaces} if at.guest else {}
    by_name = {i.name: i for i in at.vmi.spec.domain.devices.interfaces}
    links = at.state.links if at.state else {}
    entries: list[Obj] = []
    for wired in at.wired:
        secondary = wired.link != PRIMARY
        if links and wired.mac not in links:  # set up in the Pod, and not in the domain yet, or no more
            if secondary:
                entries.append({"name": wired.name, "infoSource": _OF_POD, "podInterfaceName": wired.link})
            continue
        guest = by_mac.pop(wired.mac, None)
        # Behind address translation, what the guest calls its address means nothing to anybody else.
        translated = by_name[wired.name].masquerade is not None
        own = _usable(guest.addresses) if guest and not translated else []
        sources = ", ".join(("domain", *(["guest-agent"] * bool(guest)), *([_OF_POD] * secondary)))
        entry = _entry(wired.mac, guest.name if guest else "", own or wired.addresses, sources)
        of_pod = {"name": wired.name, "podInterfaceName": wired.link, "queueCount": max(wired.queues, 1)}
        entries.append({**entry, **of_pod, "linkState": links.get(wired.mac, "up")})
    entries += [_entry(i.mac, i.name, _usable(i.addresses), "guest-agent") for i in by_mac.values() if i.name != "lo"]
    return [{key: value for key, value in entry.items() if value} for entry in entries]


def _entry(mac: str, name: str, addresses: list[str], source: str) -> Obj:
    """What is known of an interface, and by whom; its name is the one that the guest has for it."""
    first = addresses[0] if addresses else ""
    return {"mac": mac, "interfaceName": name, "ipAddress": first, "ipAddresses": addresses, "infoSource": source}


def _usable(addresses: Sequence[str]) -> list[str]:
    """Those of the guest's addresses that others can use; what is no address at all is not repeated."""
    usable = []
    for address in addresses:
        with suppress(ValueError):
            if not ip_interface(address).is_link_local:
                usable.append(address.partition("/")[0])
    return usable


def _volumes(at: Situation, present: list[Obj], state: DomainState) -> list[Obj]:
    """The state of each volume, with the name that the guest knows its disk by."""
    entries: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in present}
    for name, entry in entries.items():
        if entry.get("hotplugVolume") is not None:
            entries[name] = plugging.said(entry, at.vmi, at.mounted, state)
    for volume in at.vmi.spec.volumes:
        if (target := state.disks.get(volume.name)) and not hotplug.claim(volume):
            entries[volume.name] = {**entries.get(volume.name, {"name": volume.name}), "target": target}
    return list(entries.values())
