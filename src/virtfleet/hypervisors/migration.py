"""A running VM goes to another node: the steps by name, which a hypervisor that can do it fills.

`obstacles` says whether it may move at all. The target is prepared as for a start, up to the domain, and tells the
document that it would start; `destination` is the one that it gets. The source takes the step `run`, is asked by
`pace` what to do while it lasts, and may `abort` it as long as that loses nothing. `finish` is what either side shows
when it is done. All of them decide only: the launcher's `libvirtd.migration` acts on what they say.

A hypervisor without steps of its own refuses all of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from xml.etree.ElementTree import Element

import msgspec

from virtfleet.api import names, traits
from virtfleet.api.migration import MigrationOptions
from virtfleet.api.names import NotMigratable
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.errors import DomainError

_SHARED: Final = "ReadWriteMany"
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
NO_SIZES: Final[Mapping[str, int]] = {}

Ask = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Has the VMM itself carry a command out, past libvirt; the answer is the VMM's."""


class Obstacle(NamedTuple):
    """Something that a migration would fail over; the reason is one of the condition LiveMigratable."""

    reason: str
    message: str


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Sockets of the source's Pod that lead to the target: proxies, or the target itself on the same machine."""

    libvirt: str
    """To the target's libvirt daemon."""
    memory: str
    """To the target's hypervisor, which listens at the same path in its own Pod."""
    disks: str
    """The same for disks that are copied."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The call by which libvirt moves a domain, in libvirt's own words."""

    uri: str
    """Of the target's libvirt."""
    flags: tuple[str, ...]
    """Names behind VIR_MIGRATE_."""
    parameters: dict[str, str | int | list[str]]
    copied: tuple[str, ...] = ()
    """Targets of the disks that go along."""
    longest_pause: int = 0
    """Milliseconds that the guest may stand still at the end; libvirt's default where 0."""


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """What shows that one side is done."""

    states: tuple[str, ...]
    """Reasons of the domain's state, as libvirt names them behind VIR_DOMAIN_."""


class Mode(enum.StrEnum):
    """Where the guest runs meanwhile; the names are KubeVirt's."""

    PRE_COPY = "PreCopy"  # on the source
    PAUSED = "Paused"  # nowhere, on the source
    POST_COPY = "PostCopy"  # on the target, with a part of its memory here


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """How far a migration is."""

    mode: Mode = Mode.PRE_COPY
    elapsed: float = 0
    """Seconds since it began."""
    stuck: float = 0
    """Seconds since less was left than ever before."""
    total: int = 0
    """Bytes, of memory and disks."""
    left: int = 0
    rate: int = 0
    """Bytes a second."""
    dirty_rate: int = 0
    """Bytes of memory a second that the guest writes anew."""
    downtime_ms: int = 0
    throttle: int = 0
    """Percent of its time that the guest's CPUs are kept from running, so that it writes less."""


class Turn(msgspec.Struct, frozen=True):
    """What to do about a migration that takes long: another mode, or its end where there is none."""

    mode: Mode | None
    why: str


class Migration:
    """The steps; refused, each with the reason, where a hypervisor has none of its own."""

    def __init__(self, refusal: str = "its hypervisor has no steps for a migration") -> None:
        self.refusal = refusal

    def obstacles(
        self, vmi: VMI, domain: Element | None = None, options: MigrationOptions | None = None
    ) -> Iterator[Obstacle]:
        """What keeps a VM where it is; `domain` is the running one, `options` are those in force, where known."""
        yield Obstacle(NotMigratable.OTHER, f"cannot migrate VMI: {self.refusal}")

    def destination(self, running: Element, there: Element) -> Element:
        """The target's document: what the guest sees as it runs, what the node gives as it is on the target."""
        raise DomainError(f"the VM cannot be received: {self.refusal}")

    def stands_still(self, running: Element, version: int) -> bool:
        """Whether the guest may not run while its memory goes; `version` is the hypervisor's, as libvirt counts."""
        return False

    def run(
        self,
        vmi: VMI,
        running: Element,
        there: Element,
        route: Route,
        options: MigrationOptions,
        sizes: Mapping[str, int] = NO_SIZES,
    ) -> Run:
        """How libvirt moves the domain. `running` is its migratable document, `there` the one that the target made.

        `sizes` are the bytes that the guest sees of each disk, by its target.
        """
        raise DomainError(f"the VM cannot be moved: {self.refusal}")

    def abort(self, mode: Mode) -> str:
        """Why a migration cannot be aborted in this mode; "" where it can."""
        return self.refusal

    def decides(self, ask: Ask) -> bool:
        """Whether the VMM is about to find out if the guest has gone, and may not be told to end the migration."""
        return False

    def stuck(self, ask: Ask) -> bool:
        """Whether the VMM waits, with the guest standing still, for what will not come."""
        return False

    def release(self, ask: Ask) -> None:
        """A migration was to end some time ago; free the VMM of what may keep it from that."""

    def finish(self, *, source: bool) -> Finish:
        """What shows that one side is done."""
        raise DomainError(f"the VM cannot have moved: {self.refusal}")


def pace(vmi: VMI, options: MigrationOptions, look: Look, *, copied: int = 0) -> Turn | None:
    """What to do about a migration now, by KubeVirt's limits; `copied` are bytes of disks that go along."""
    if look.mode is Mode.POST_COPY:
        return None  # the guest runs there: ending it would lose the guest
    gib = -(-(traits.memory(vmi).value() + copied) // _GIB)
    limit = (options.completion_timeout_per_gi_b or 0) * gib * (2 if look.mode is Mode.PAUSED else 1)
    late = limit and look.elapsed > limit
    rates = _rates(look)
    why = f"it has not ended after {look.elapsed:.0f} s{rates}"
    if late and look.mode is Mode.PRE_COPY and options.allow_workload_disruption:
        return Turn(Mode.POST_COPY if options.allow_post_copy else Mode.PAUSED, why)
    if options.progress_timeout and look.stuck > options.progress_timeout:
        return Turn(None, f"it has made no progress for {look.stuck:.0f} s{rates}")
    return Turn(None, why) if late else None


def _rates(look: Look) -> str:
    """What holds it up, for whoever can change that.

    Memory that is written over and over counts once per round, so where all of it is, no more is written than sent.
    """
    if not look.dirty_rate and not look.rate:
        return ""
    slowed = f", though its CPUs are slowed down by {look.throttle} %" if look.throttle else ""
    remedy = "allow more bandwidth, auto-converge or post-copy, or have the guest write less"
    return (
        f": the guest writes {look.dirty_rate / _MIB:.1f} MiB of its memory a second anew{slowed}, and"
        f" {look.rate / _MIB:.1f} MiB a second are sent"
        + (f"; {remedy}" if 2 * look.dirty_rate >= look.rate else f", with {look.left / _MIB:.0f} MiB left")
    )


def kept_by(vmi: VMI) -> Iterator[Obstacle]:
    """What keeps any VM where it is: what its owner could change first, what nobody can change last."""
    yield from _interfaces(vmi)
    devices, features = vmi.spec.domain.devices, vmi.spec.domain.features
    hyperv = features.hyperv_passthrough if features else None
    reserved = any(disk.lun and disk.lun.reservation for disk in devices.disks)
    for there, reason, message in (
        (devices.host_devices, NotMigratable.HOST_DEVICE, "VMI specifies non-migratable generic PCI host device"),
        (devices.gpus, NotMigratable.HOST_DEVICE, "VMI specifies non-migratable GPU device"),
        (traits.sev(vmi), NotMigratable.SEV, "VMI uses SEV"),
        (traits.tdx(vmi), NotMigratable.TDX, "VMI uses TDX"),
        (traits.secure_execution(vmi), NotMigratable.SECURE_EXECUTION, "VMI uses Secure Execution"),
        (hyperv and hyperv.enabled is not False, NotMigratable.HYPERV_PASSTHROUGH, "VMI uses hyperv passthrough"),
        (reserved, NotMigratable.PERSISTENT_RESERVATION, "VMI uses SCSI persistent reservation"),
    ):
        if there:
            yield Obstacle(reason, message)
    yield from _volumes(vmi)


def _interfaces(vmi: VMI) -> Iterator[Obstacle]:
    primary = next((n.name for n in vmi.spec.networks if n.pod or (n.multus and n.multus.default)), None)
    interface = next((i for i in vmi.spec.domain.devices.interfaces if i.name == primary), None)
    if interface is None or interface.masquerade or interface.passt_binding:
        return
    if interface.bridge and names.ALLOW_POD_BRIDGE_MIGRATION in vmi.metadata.annotations:
        return
    yield Obstacle(
        NotMigratable.INTERFACE,
        "cannot migrate VMI which does not use masquerade or a migratable plugin to connect to the pod network",
    )


def _volumes(vmi: VMI) -> Iterator[Obstacle]:
    claims = {s.name: s.persistent_volume_claim_info for s in vmi.status.volume_status}
    needs = "live migration requires that all PVCs must be shared (using ReadWriteMany access mode)"
    for volume in vmi.spec.volumes:
        if volume.name in changing(vmi):
            continue
        if volume.persistent_volume_claim or volume.data_volume:
            claim = claims.get(volume.name)
            named = volume.persistent_volume_claim
            name = named.claim_name if named else volume.data_volume.name if volume.data_volume else ""
            if claim is None:
                message = f"cannot migrate VMI: Unable to determine if PVC {name} is shared, {needs}"
                yield Obstacle(NotMigratable.DISKS, message)
            elif _SHARED not in claim.access_modes:
                yield Obstacle(NotMigratable.DISKS, f"cannot migrate VMI: PVC {name} is not shared, {needs}")
        elif volume.host_disk and not volume.host_disk.shared:
            yield Obstacle(NotMigratable.DISKS, "cannot migrate VMI with non-shared HostDisk")


def copies_disks(vmi: VMI) -> bool:
    """Whether a migration would have to copy disks that are only here."""
    writable = {d.name for d in vmi.spec.domain.devices.disks if not d.cdrom}
    return any(volume.name in writable for volume in vmi.spec.volumes if volume.name not in shared(vmi))


def changing(vmi: VMI) -> set[str]:
    """Volumes whose data goes to another claim with the VM: the target's Pod has the new one."""
    return {migrated.volume_name for migrated in vmi.status.migrated_volumes}


def shared(vmi: VMI) -> set[str]:
    """Volumes that the target sees too: claims, and disks of nodes, which are checked to be shared."""
    claims = {v.name for v in vmi.spec.volumes if v.persistent_volume_claim or v.data_volume or v.host_disk}
    return claims - changing(vmi)
