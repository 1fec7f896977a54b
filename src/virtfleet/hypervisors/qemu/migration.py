"""The steps of a migration, as libvirt's QEMU driver takes them.

The source's daemon drives it (peer to peer), so that a launcher that dies leaves nothing half done: libvirt itself ends
or finishes it on both sides. Everything goes through unix sockets, behind which proxies may be.

libvirt alone can make two guests of one: where the target's last answer is lost, the source lets its guest run on, and
the target may have done so too. So the guest lands paused, and is let run when nothing of it is left on the source.
Only where post-copy is allowed, after which the source has nothing to go back to, does it run by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from xml.etree.ElementTree import Element

from virtfleet.api.migration import MigrationOptions
from virtfleet.api.names import NotMigratable
from virtfleet.api.quantity import Quantity
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import common, volumes
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import add, child, text
from virtfleet.hypervisors.base import own_alias
from virtfleet.hypervisors.migration import (
    NO_SIZES,
    Ask,
    Finish,
    Migration,
    Mode,
    Obstacle,
    Route,
    Run,
    changing,
    kept_by,
    shared,
)
from virtfleet.hypervisors.qemu.adapt import ARGUMENT, WATCHED

_MIB = 1 << 20
# Before this version QEMU forgets some of what a guest with emulated CPUs writes while its memory goes: having noted
# what was written, it does not have the CPUs tell it again (mended there in 2024). The guest would arrive in ruins.
_TELLS_ALL = 9_000_000
_PLACED = ("cputune", "numatune")  # where on the node the guest runs
# What a device says of the node, by kind; all else is what the guest sees of it.
_OF_THE_NODE = {"disk": ("source", "backingStore"), "interface": ("source", "target")}
_ABSENT_TARGET = "the target has no %s %r, which the VM has here: it must be prepared for the same VMI"


class QemuMigration(Migration):
    """Steps of QEMU."""

    def obstacles(
        self, vmi: VMI, domain: Element | None = None, options: MigrationOptions | None = None
    ) -> Iterator[Obstacle]:
        yield from kept_by(vmi)
        if any(filesystem.virtiofs for filesystem in vmi.spec.domain.devices.filesystems):
            yield Obstacle(NotMigratable.VIRTIOFS, "VMI uses virtiofs")
        if any(interface.sriov for interface in vmi.spec.domain.devices.interfaces):
            yield Obstacle(NotMigratable.HOST_DEVICE, "VMI has SR-IOV interfaces, which stay with their node")
        if common.notified_of_tsc(vmi) and not vmi.status.topology_hints:
            yield Obstacle(
                NotMigratable.TSC_FREQUENCY,
                "HyperV Reenlightenment VMIs cannot migrate when TSC Frequency is not exposed on the cluster: guest"
                " timers might be inconsistent",
            )
        if domain is not None and domain.find("devices/hostdev") is not None:
            yield Obstacle(NotMigratable.HOST_DEVICE, "the running domain has a device of its node")

    def stands_still(self, running: Element, version: int) -> bool:
        watched = any(WATCHED in arg.get("value", "") for arg in running.iter(ARGUMENT))
        return running.get("type") == "qemu" and version < _TELLS_ALL and not watched

    def destination(self, running: Element, there: Element) -> Element:
        document = copy.deepcopy(running)
        for tag in _PLACED:
            _replace(document, tag, there)
        for firmware in ("os/loader", "os/nvram"):
            here, other = document.find(firmware), there.find(firmware)
            if here is not None and other is not None:
                here.text = other.text
                here.attrib.update(other.attrib)
        for kind, parts in _OF_THE_NODE.items():
            known = {own_alias(device): device for device in there.iterfind(f"devices/{kind}")}
            for device in document.iterfind(f"devices/{kind}"):
                name = own_alias(device)
                if name not in known:
                    raise DomainError(_ABSENT_TARGET % (kind, name))
                slices = device.find("source/slices")
                for part in parts:
                    if part != "target" or device.find("target[@managed='no']") is not None:
                        _replace(device, part, known[name])
                if slices is not None:  # the guest has seen so much of it only
                    child(device, "source").append(slices)
        return document

    def run(
        self,
        vmi: VMI,
        running: Element,
        there: Element,
        route: Route,
        options: MigrationOptions,
        sizes: Mapping[str, int] = NO_SIZES,
    ) -> Run:
        destination = self.destination(running, there)
        _as_large_as_here(destination, changing(vmi), sizes)
        document = text(destination)
        flags = ["LIVE", "PEER2PEER", "PERSIST_DEST", "ABORT_ON_ERROR"]
        parameters: dict[str, str | int | list[str]] = {
            "migrate_uri": f"unix://{route.memory}",
            "destination_xml": document,
            "persistent_xml": document,
        }
        if disks := copied(vmi, running):
            flags.append("NON_SHARED_INC")  # of stacked images the topmost: what lies below is on the target too
            parameters |= {"migrate_disks": disks, "disks_uri": f"unix://{route.disks}"}
        bandwidth = Quantity.parse(options.bandwidth_per_migration or 0).value()
        if bandwidth:
            parameters |= dict.fromkeys(("bandwidth", "bandwidth.postcopy"), -(-bandwidth // _MIB))
        if options.unsafe_migration_override or _coherent(running, disks):
            flags.append("UNSAFE")  # libvirt knows shared disks by their file system; here claims say what is shared
        if options.allow_auto_converge:
            flags.append("AUTO_CONVERGE")
        flags.append("POSTCOPY" if options.allow_post_copy else "PAUSED")
        if options.experimental and options.experimental.compression not in ("", "none"):
            flags.append("COMPRESSED")
            parameters["compression"] = options.experimental.compression
        uri = f"qemu+unix:///session?socket={route.libvirt}"
        pause = options.max_downtime_ms or 0
        return Run(uri=uri, flags=tuple(flags), parameters=parameters, copied=tuple(disks), longest_pause=pause)

    def abort(self, mode: Mode) -> str:
        return "the guest already runs on the target: without it, it would be lost" if mode is Mode.POST_COPY else ""

    def decides(self, ask: Ask) -> bool:
        # It has given its disks away. Told to end the migration now, QEMU 7.2 lets the guest run without them, and dies
        # of the first write.
        return _status(ask) == "device"

    def stuck(self, ask: Ask) -> bool:
        # libvirt gives it leave to go on when it has noted that each disk is copied, which it may have slept through.
        copies = ask("query-jobs", {}).get("return", ())
        return _status(ask) == "pre-switchover" and all(copy["status"] == "concluded" for copy in copies)

    def release(self, ask: Ask) -> None:
        # Told to end it in the instant in which the guest stops for the last of its memory, QEMU goes on to wait for
        # leave to send that, which nobody gives any more. In other states it refuses this.
        ask("migrate-continue", {"state": "cancelling"})

    def finish(self, *, source: bool) -> Finish:
        if source:
            return Finish(states=("SHUTOFF_MIGRATED",))
        return Finish(states=("PAUSED_USER", "RUNNING_MIGRATED", "RUNNING_UNPAUSED"))


def _coherent(running: Element, copied: list[str]) -> bool:
    """Whether nodes keep nothing to themselves of what the guest writes to the disks that both of them have."""
    caches = []
    for disk in running.iterfind("devices/disk"):
        target, driver = disk.find("target"), disk.find("driver")
        apart = target is not None and target.get("dev") in copied
        if not apart and disk.find("readonly") is None:
            caches.append(driver.get("cache") if driver is not None else None)
    return bool(caches) and all(cache in ("none", "directsync") for cache in caches)


def copied(vmi: VMI, running: Element) -> list[str]:
    """Targets of the disks that are only here, and that the target cannot make by itself."""
    elsewhere = shared(vmi)
    made = {v.name for v in vmi.spec.volumes if volumes.seed(v) or volumes.config_kind(v) or v.container_disk}
    targets = []
    for disk in running.iterfind("devices/disk"):
        name, target = own_alias(disk), disk.find("target")
        unwritten = disk.find("readonly") is not None and name not in made
        if target is not None and disk.get("device") != "cdrom" and name not in elsewhere and not unwritten:
            targets.append(target.get("dev", ""))
    return targets


def _as_large_as_here(document: Element, volumes: Collection[str], sizes: Mapping[str, int]) -> None:
    """Of another claim, which may be larger, the guest gets as much as it had: a disk does not grow on the way."""
    for disk in document.iterfind("devices/disk"):
        source, target = disk.find("source"), disk.find("target")
        size = sizes.get(target.get("dev", ""), 0) if target is not None else 0
        if own_alias(disk) in volumes and source is not None and size and source.find("slices") is None:
            add(add(source, "slices"), "slice", type="storage", offset="0", size=str(size))


def _replace(document: Element, tag: str, there: Element) -> None:
    """Put the other document's elements of this name in the place of one's own."""
    for element in document.findall(tag):
        document.remove(element)
    document.extend(copy.deepcopy(element) for element in there.findall(tag))


def _status(ask: Ask) -> str:
    """QEMU's own word for how far the migration is."""
    return str(ask("query-migrate", {}).get("return", {}).get("status", ""))
