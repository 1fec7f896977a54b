"""What may change on a VMI that exists, and who may change it.

Users change the VM; the spec of a running VMI changes only through VirtFleet's own components, and only in what can be
plugged in or out while it runs. Its status belongs to those components alone.

Two objects are compared as they are, without views: fields that views do not know must stay, too, and the old object
may have been stored by another version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from virtfleet.admission.findings import Findings
from virtfleet.admission.names import dns_subdomain_error
from virtfleet.admission.sections import Obj, Section, read
from virtfleet.api import names
from virtfleet.api.quantity import Quantity
from virtfleet.hypervisors import features, registry
from virtfleet.hypervisors.support import Level
from virtfleet.installation import Installation

# Only VirtFleet's own components put these on a VMI: they steer scheduling and migration.
RESERVED_LABELS = (
    names.CREATED_BY,
    names.MIGRATION_UID,
    names.NODE_NAME,
    names.MIGRATION_TARGET_NODE,
    names.SCHEDULABLE,
    "kubevirt.io/install-strategy",
)
# The same for annotations: what the VMI's launcher was made to run on.
RESERVED_ANNOTATIONS = (names.LAUNCHER_HYPERVISOR,)
RESERVED = {"labels": RESERVED_LABELS, "annotations": RESERVED_ANNOTATIONS}
_NODE_NAME = "authentication.kubernetes.io/node-name"
# What of a migration only virt-controller decides.
_OF_THE_CONTROLLER = (
    *("migrationUid", "sourceNode", "targetNode", "sourcePod", "targetPod"),
    "targetAttachmentPodUID",  # else a node could have another one open volumes of others
)


@dataclass(frozen=True, slots=True)
class Requester:
    """Who asks: the user of an admission request."""

    name: str = ""
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asker:
    """In which cluster something is asked, and by whom."""

    cluster: Installation
    user: Requester

    @property
    def trusted(self) -> bool:
        """Whether one of VirtFleet's own components asks."""
        return self.user.name in self.cluster.service_accounts


def keep_status(vmi: Obj, old: Section, by: Asker) -> None:
    """Undo what somebody else than VirtFleet's components changed in the status."""
    if not by.trusted and vmi.get("status") != old.get("status"):
        if "status" in old:
            vmi["status"] = old["status"]
        else:
            vmi.pop("status", None)


def check_vmi_update(vmi: Section, old: Section, by: Asker, findings: Findings) -> None:
    if by.trusted and by.user.name.endswith("-handler") and by.cluster.enabled("NodeRestriction"):
        _check_node(vmi, old, by.user, findings)
    if vmi.get("spec") != old.get("spec"):
        if by.trusted:
            _check_hotplug(vmi, old, by.cluster, findings)
        else:
            findings.unsupported(
                "spec", "the spec of a VMI cannot change; change the VM, or use virtctl to plug devices in"
            )
    if by.trusted:
        return
    for kind, ours in RESERVED.items():
        now, before = read(vmi, "metadata", kind), read(old, "metadata", kind)
        if changed := [name for name in ours if now.get(name) != before.get(name)]:
            what = f"{', '.join(changed)} is set by VirtFleet itself; leave it as it is"
            findings.unsupported(f"metadata.{kind}", what)


def _check_node(vmi: Section, old: Section, user: Requester, findings: Findings) -> None:
    """A handler writes only to VMIs on its own node, so that a broken-into node cannot reach others.

    That of a migration's target may, too, until the migration has ended; it is the one to say that the guest has come.
    """
    node = next(iter(user.extra.get(_NODE_NAME) or ()), "")
    if not node:
        findings.invalid("", "the handler's token does not name its node; it needs one bound to its Pod")
        return
    here, migration = read(old, "status").get("nodeName"), read(old, "status", "migrationState")
    ended = any(migration.get(end) for end in ("completed", "failed", "endTimestamp"))
    target = None if ended else migration.get("targetNode") or None
    if node not in (here, target):
        allowed = "Node restriction, virt-handler is only allowed to modify VMIs it owns"
        findings.invalid("", f"{allowed}: it runs on node {node}, and the VMI on node {here}")
        return
    now = read(vmi, "status", "migrationState")
    for part in _OF_THE_CONTROLLER:
        if now.get(part) != migration.get(part):
            findings.invalid(f"status.migrationState.{part}", "a handler may not choose where a VMI migrates to")
    if (there := read(vmi, "status").get("nodeName")) != here and not there == node == target:
        findings.invalid("status.nodeName", f"the handler of node {node} may not say that the VMI runs on {there}")


def _check_hotplug(vmi: Section, old: Section, cluster: Installation, findings: Findings) -> None:
    domain, old_domain = read(vmi, "spec", "domain"), read(old, "spec", "domain")
    if (read(domain, "cpu").get("maxSockets") or 0) != (read(old_domain, "cpu").get("maxSockets") or 0):
        findings.invalid(
            "spec.domain.cpu.maxSockets", "maxSockets is fixed while the VM runs; restart the VM to change it"
        )
    most, old_most = read(domain, "memory").get("maxGuest"), read(old_domain, "memory").get("maxGuest")
    if most is not None and old_most is not None and Quantity.parse(most) != Quantity.parse(old_most):
        findings.invalid(
            "spec.domain.memory.maxGuest", "maxGuest is fixed while the VM runs; restart the VM to change it"
        )
    _check_utility_volumes(vmi, old, cluster, findings)
    _check_volumes(vmi, old, cluster, findings)
    plugged, before = (read(each, "devices").get("interfaces") or [] for each in (domain, old_domain))
    if plugged != before:
        _check_can_plug(vmi, "interface-hotplug", "interfaces", "spec.domain.devices.interfaces", findings)


def _check_utility_volumes(vmi: Section, old: Section, cluster: Installation, findings: Findings) -> None:
    volumes = read(vmi, "spec").get("utilityVolumes") or ()
    path = "spec.utilityVolumes"
    if volumes and not cluster.enabled("UtilityVolumes"):
        findings.gate_is_off(path, "UtilityVolumes", "a utility volume")
        return
    taken = {v.get("name") for v in read(vmi, "spec").get("volumes") or ()}
    permanent = _permanent(old)
    before = {v.get("name"): v for v in read(old, "spec").get("utilityVolumes") or ()}
    seen: set[str] = set()
    for i, volume in enumerate(volumes):
        name, at = volume.get("name") or "", f"{path}[{i}]"
        if not name:
            findings.required(f"{at}.name", "the utility volume needs a name; set it")
        elif name in seen or name in taken:
            findings.duplicate(f"{at}.name", f"another volume is called {name!r}; rename one")
        elif name in permanent:
            findings.invalid(at, f"{name!r} is one of the VM's own volumes and cannot be a utility volume")
        elif name in before and before[name] != volume:
            findings.invalid(at, f"utility volume {name!r} cannot change; remove it and add another")
        seen.add(name)
        if not volume.get("claimName"):
            findings.required(f"{at}.claimName", "name the claim that is attached; set claimName")


def _permanent(vmi: Section) -> set[str]:
    """Names of the volumes that the VMI was started with."""
    statuses = read(vmi, "status").get("volumeStatus") or ()
    return {status.get("name") for status in statuses if status.get("hotplugVolume") is None}


def _check_volumes(vmi: Section, old: Section, cluster: Installation, findings: Findings) -> None:
    volumes = {v.get("name"): v for v in read(vmi, "spec").get("volumes") or ()}
    old_volumes = {v.get("name"): v for v in read(old, "spec").get("volumes") or ()}
    devices, old_devices = read(vmi, "spec", "domain", "devices"), read(old, "spec", "domain", "devices")
    disks = {d.get("name"): d for d in devices.get("disks") or ()}
    old_disks = {d.get("name"): d for d in old_devices.get("disks") or ()}
    _check_everything_is_shown(devices, volumes, cluster, findings)
    permanent = _permanent(old)
    # Also those that go back, which are told no more in the same write.
    copied = (m for each in (vmi, old) for m in read(each, "status").get("migratedVolumes") or ())
    migrated = {m.get("volumeName") for m in copied}
    for name in sorted(permanent & old_volumes.keys() - volumes.keys(), key=str):
        findings.invalid(
            "spec.volumes", f"volume {name!r} belongs to the VM and cannot be unplugged; stop the VM first"
        )
    for name, volume in volumes.items():
        if name in permanent and name not in old_volumes:
            findings.invalid("spec.volumes", f"volume {name!r} is not one that the VM was started with")
        elif name in old_volumes:
            if volume != old_volumes[name] and name not in migrated:
                findings.invalid("spec.volumes", f"volume {name!r} cannot change while it is attached; unplug it first")
            elif disks.get(name) != old_disks.get(name) and name not in migrated & permanent:
                findings.invalid("spec.domain.devices.disks", f"disk {name!r} cannot change while it is attached")
        else:
            _check_plugged_in(volume, disks.get(name), name in old_disks, findings)
            _check_can_plug(vmi, "volume-hotplug", "volumes", "spec.volumes", findings)


def _check_can_plug(vmi: Section, feature: str, what: str, field: str, findings: Findings) -> None:
    """Whether the hypervisor that the VM runs on takes something while it does."""
    chosen = read(vmi, "metadata", "annotations").get(names.LAUNCHER_HYPERVISOR) or read(vmi, "spec").get("hypervisor")
    try:
        hypervisor = registry.get(chosen or registry.DEFAULT)
    except registry.UnknownHypervisor as error:
        findings.invalid("spec.hypervisor", str(error))
        return
    has = features.support(hypervisor, feature, read(vmi, "spec").get("architecture") or "amd64")
    if has.level is not Level.WORKS:
        name = hypervisor.descriptor.name
        findings.invalid(field, f"hypervisor {name} takes no {what} while a VM runs: {has.reason}")


def _check_everything_is_shown(devices: Section, volumes: Section, cluster: Installation, findings: Findings) -> None:
    shown = {name for name, volume in volumes.items() if volume.get("memoryDump") is None}
    needed = len(devices.get("filesystems") or ())
    for disk in devices.get("disks") or ():
        empty_drive = disk.get("name") not in shown and disk.get("cdrom") is not None
        needed += not (empty_drive and cluster.enabled("DeclarativeHotplugVolumes"))
    if needed != len(shown):
        findings.invalid(
            "spec.volumes", f"{len(shown)} volumes are shown by {needed} disks and file systems; make them agree"
        )


def _check_plugged_in(volume: Section, disk: Section | None, disk_was_there: bool, findings: Findings) -> None:
    name = volume.get("name")
    if not any(volume.get(kind) is not None for kind in ("dataVolume", "persistentVolumeClaim", "memoryDump")):
        findings.invalid(
            "spec.volumes", f"volume {name!r} must be a persistentVolumeClaim or dataVolume to be plugged in"
        )
    elif why := dns_subdomain_error(str(name)):
        findings.invalid("spec.volumes", f"{name!r} cannot be the name of a volume that is plugged in: {why}")
    elif volume.get("memoryDump") is not None or disk_was_there:
        return
    elif disk is None:
        findings.invalid("spec.domain.devices.disks", f"volume {name!r} has no disk; add one of that name")
    else:
        check_pluggable(disk, str(name), "spec.domain.devices.disks", findings)


def check_pluggable(disk: Section, name: str, path: str, findings: Findings) -> None:
    """Whether a disk can be added to a running VM."""
    bus = read(disk, "disk").get("bus") or read(disk, "lun").get("bus")
    if disk.get("disk") is not None:
        if bus not in ("scsi", "virtio"):
            findings.invalid(path, f"disk {name!r} can be plugged in on bus scsi or virtio, not on {bus}")
    elif disk.get("lun") is not None:
        if bus != "scsi":
            findings.invalid(path, f"lun {name!r} can be plugged in on bus scsi, not on {bus}")
    else:
        findings.invalid(path, f"{name!r} must be a disk or a lun to be plugged in")
    if disk.get("dedicatedIOThread") and bus != "virtio":
        findings.invalid(path, f"disk {name!r} can have an I/O thread of its own on bus virtio only")
    if (disk.get("bootOrder") or 1) < 1:
        findings.invalid(f"{path}[1].bootOrder", f"boot order {disk['bootOrder']} is too low; start with 1")
