"""From libvirt's numbers for states and events to the words that the API knows."""

from __future__ import annotations

from typing import Final
from xml.etree import ElementTree as ET

import libvirt

from virtfleet.domain.xml import attribute
from virtfleet.launcher.vm import abi, live
from virtfleet.protocol.messages import DomainState, Status

_STATUS: Final = {
    libvirt.VIR_DOMAIN_NOSTATE: Status.RUNNING,  # drivers that cannot tell, of a domain that is active
    libvirt.VIR_DOMAIN_RUNNING: Status.RUNNING,
    libvirt.VIR_DOMAIN_BLOCKED: Status.BLOCKED,
    libvirt.VIR_DOMAIN_PAUSED: Status.PAUSED,
    libvirt.VIR_DOMAIN_SHUTDOWN: Status.SHUTTING_DOWN,
    libvirt.VIR_DOMAIN_SHUTOFF: Status.SHUTOFF,
    libvirt.VIR_DOMAIN_CRASHED: Status.CRASHED,
    libvirt.VIR_DOMAIN_PMSUSPENDED: Status.SUSPENDED,
}
_REASONS: Final = {
    Status.PAUSED: {
        libvirt.VIR_DOMAIN_PAUSED_USER: "User",
        libvirt.VIR_DOMAIN_PAUSED_MIGRATION: "Migration",
        libvirt.VIR_DOMAIN_PAUSED_SAVE: "Save",
        libvirt.VIR_DOMAIN_PAUSED_DUMP: "Dump",
        libvirt.VIR_DOMAIN_PAUSED_IOERROR: "IOError",
        libvirt.VIR_DOMAIN_PAUSED_WATCHDOG: "Watchdog",
        libvirt.VIR_DOMAIN_PAUSED_FROM_SNAPSHOT: "FromSnapshot",
        libvirt.VIR_DOMAIN_PAUSED_SHUTTING_DOWN: "ShuttingDown",
        libvirt.VIR_DOMAIN_PAUSED_SNAPSHOT: "Snapshot",
        libvirt.VIR_DOMAIN_PAUSED_CRASHED: "Crashed",
        libvirt.VIR_DOMAIN_PAUSED_STARTING_UP: "StartingUp",
        libvirt.VIR_DOMAIN_PAUSED_POSTCOPY: "PostCopy",
        libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED: "PostCopyFailed",
    },
    Status.SHUTOFF: {
        libvirt.VIR_DOMAIN_SHUTOFF_SHUTDOWN: "Shutdown",
        libvirt.VIR_DOMAIN_SHUTOFF_DESTROYED: "Destroyed",
        libvirt.VIR_DOMAIN_SHUTOFF_CRASHED: "Crashed",
        libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED: "Migrated",
        libvirt.VIR_DOMAIN_SHUTOFF_SAVED: "Saved",
        libvirt.VIR_DOMAIN_SHUTOFF_FAILED: "Failed",
        libvirt.VIR_DOMAIN_SHUTOFF_FROM_SNAPSHOT: "FromSnapshot",
        libvirt.VIR_DOMAIN_SHUTOFF_DAEMON: "Crashed",  # the daemon found no live process to go on with
    },
    Status.CRASHED: {
        libvirt.VIR_DOMAIN_CRASHED_UNKNOWN: "Unknown",
        libvirt.VIR_DOMAIN_CRASHED_PANICKED: "Panicked",
    },
}
_MIB: Final = 1 << 20
_AGENT: Final = "devices/channel/target[@name='org.qemu.guest_agent.0'][@state='connected']"
# Endings that nobody has to be sorry for.
_ORDERLY: Final = ("Shutdown", "Destroyed", "Saved", "Migrated")


def status(state: int, reason: int) -> tuple[Status, str]:
    """What a domain does, and why."""
    known = _STATUS.get(state, Status.RUNNING)
    return known, _REASONS.get(known, {}).get(reason, "Unknown" if known in _REASONS else "")


def present(connection: libvirt.virConnect, name: str) -> DomainState:
    """The state of a domain that was started. One that is not to be found any more has crashed."""
    try:
        domain = connection.lookupByName(name)
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
            raise
        return DomainState(status=Status.CRASHED, reason="Unknown", name=name)
    now, reason = status(*domain.state())
    if now is Status.SHUTOFF and domain.isActive():
        now, reason = Status.SHUTTING_DOWN, ""  # libvirt's Xen driver is still clearing it away
    if now.ended:
        return DomainState(status=now, reason=reason, name=name, uuid=domain.UUIDString())
    document = ET.fromstring(domain.XMLDesc())
    known = abi.record(document)
    memory, used = (_bytes(document.find(tag)) for tag in ("memory", "currentMemory"))
    boot = memory - sum(_bytes(size) for size in document.iterfind("devices/memory/target/size"))
    return DomainState(
        status=now,
        reason=reason,
        name=name,
        uuid=domain.UUIDString(),
        machine=known.machine,
        agent=document.find(_AGENT) is not None,
        disks=live.disks(document),
        links=live.links(document),
        abi=known,
        topology=_topology(document),
        boot_memory=boot,
        requested_memory=boot + sum(_bytes(size) for size in document.iterfind("devices/memory/target/requested")),
        # What a hypervisor keeps for itself of a guest's memory, less than libvirt counts in, is no other size.
        memory=used if used and memory - used >= _MIB else memory,
    )


def _bytes(amount: ET.Element | None) -> int:
    """Of an element of a running domain, in which libvirt counts in KiB."""
    return int(amount.text or 0) << 10 if amount is not None else 0


def _topology(domain: ET.Element) -> tuple[int, int, int]:
    """Sockets, cores and threads of the CPUs that are in use, which may be fewer than could be added."""
    count = int(attribute(domain, "vcpu", "current") or domain.findtext("vcpu") or 0)
    cores, threads = (int(attribute(domain, "cpu/topology", part, "1")) for part in ("cores", "threads"))
    return count // (cores * threads), cores, threads


def exit_code(last: DomainState) -> int:
    """How a launcher ends whose domain ended: with 0 if it was shut down or stopped, else with 1."""
    return 0 if last.status is Status.SHUTOFF and last.reason in _ORDERLY else 1
