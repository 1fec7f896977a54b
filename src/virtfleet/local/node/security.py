"""A container's security context in the terms of the OCI runtime: who it runs as and what it may do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from virtfleet.kube.resource import Obj

_IN_ORDER = """
CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""
_ORDINARY = """
CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL
AUDIT_WRITE
"""
_OF_THE_MACHINE = """
/proc/asound /proc/acpi /proc/interrupts /proc/kcore /proc/keys /proc/latency_stats /proc/timer_list /proc/timer_stats
/proc/sched_debug /proc/scsi /sys/firmware /sys/devices/virtual/powercap
"""
_STEERING = "/proc/bus /proc/fs /proc/irq /proc/sys /proc/sysrq-trigger"

# In the order of their numbers, which is the order of the bits in /proc/*/status.
CAPABILITIES = tuple(f"CAP_{name}" for name in _IN_ORDER.split())
# What a container has when its spec says nothing: enough for ordinary programs to start as root and drop it.
_DEFAULT = frozenset(f"CAP_{name}" for name in _ORDINARY.split())
# Parts of /proc and /sys that tell of the whole machine, and those that change it.
_MASKED, _READ_ONLY = _OF_THE_MACHINE.split(), _STEERING.split()


class ConfigError(Exception):
    """The pod's spec cannot be turned into a container: CreateContainerConfigError."""


@dataclass(frozen=True, slots=True)
class User:
    """Whom the container's first process runs as."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()


def setting(pod: Obj, container: Obj, key: str) -> Any:
    """A security setting that a container may override and otherwise has from its pod."""
    value = (container.get("securityContext") or {}).get(key)
    return value if value is not None else (pod["spec"].get("securityContext") or {}).get(key)


def is_privileged(container: Obj) -> bool:
    return bool((container.get("securityContext") or {}).get("privileged"))


def capabilities(container: Obj, available: Iterable[str]) -> list[str]:
    """What the container gets: the defaults, changed by its spec, within what this machine has to give."""
    if is_privileged(container):
        granted = set(CAPABILITIES)
    else:
        change = (container.get("securityContext") or {}).get("capabilities") or {}
        drop, add = _names(change.get("drop")), _names(change.get("add"))
        granted = set(CAPABILITIES) if "CAP_ALL" in add else set(_DEFAULT)
        granted -= granted if "CAP_ALL" in drop and "CAP_ALL" not in add else drop
        granted |= add - {"CAP_ALL"}
        unknown = sorted(granted - set(CAPABILITIES))
        if unknown:
            raise ConfigError(f"securityContext.capabilities.add: unknown capability {unknown[0]}")
    have = set(available)
    return [name for name in CAPABILITIES if name in granted and name in have]


def _names(names: Iterable[str] | None) -> set[str]:
    return {f"CAP_{name.upper().removeprefix('CAP_')}" for name in names or ()}


def bounding_set(status: str) -> list[str]:
    """The capabilities that a process, given its /proc/*/status, can hand to a container."""
    line = next(line for line in status.splitlines() if line.startswith("CapBnd:"))
    bits = int(line.split()[1], 16)
    return [name for number, name in enumerate(CAPABILITIES) if bits >> number & 1]


def masks(container: Obj) -> dict[str, list[str]]:
    if is_privileged(container) or (container.get("securityContext") or {}).get("procMount") == "Unmasked":
        return {}
    return {"maskedPaths": list(_MASKED), "readonlyPaths": list(_READ_ONLY)}


def resolve_user(pod: Obj, container: Obj, image_user: str, passwd: str, group: str) -> User:
    """Numbers for the user and groups of a container, from its spec, the image's USER and the image's accounts."""
    accounts = {fields[0]: fields for line in passwd.splitlines() if len(fields := line.split(":")) >= 4}
    named_groups = {fields[0]: fields for line in group.splitlines() if len(fields := line.split(":")) >= 4}
    run_as = setting(pod, container, "runAsUser")
    user, _, group_name = ("", "", "") if run_as is not None else image_user.partition(":")
    if setting(pod, container, "runAsNonRoot") and run_as is None and user and not user.isdigit():
        raise ConfigError(
            f"container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root"
        )
    uid = int(run_as) if run_as is not None else _number(user or "0", accounts, "user")
    if setting(pod, container, "runAsNonRoot") and uid == 0:
        whose = "image will run as root" if run_as is None else "container's runAsUser breaks non-root policy"
        raise ConfigError(f"container has runAsNonRoot and {whose} (container: {container['name']})")
    account = next((fields for fields in accounts.values() if fields[2] == str(uid)), None)
    gid = int(account[3]) if account else 0
    if group_name:
        gid = _number(group_name, named_groups, "group")
    run_as_group = setting(pod, container, "runAsGroup")
    if run_as_group is not None:
        gid = int(run_as_group)
    of_pod = pod["spec"].get("securityContext") or {}
    extra = {int(g) for g in of_pod.get("supplementalGroups") or ()}
    if of_pod.get("fsGroup") is not None:
        extra.add(int(of_pod["fsGroup"]))
    if account:
        extra |= {int(fields[2]) for fields in named_groups.values() if account[0] in fields[3].split(",")}
    return User(uid, gid, tuple(sorted(extra - {gid})))


def _number(name: str, known: Mapping[str, list[str]], what: str) -> int:
    if name.isdigit():
        return int(name)
    if name not in known:
        raise ConfigError(
            f"the image runs as {what} {name!r}, which its /etc/{'passwd' if what == 'user' else what} lacks"
        )
    return int(known[name][2])
