"""The seccomp profile of Pods that ask for `RuntimeDefault` in a local cluster, and of launchers with capabilities.

Other runtimes forbid `pivot_root` even to those who may mount, and libvirt makes no container without it.

Written as what is forbidden rather than what is allowed: the table stays short enough to be read, and each line says
which capability lifts the ban, because a container that was given the capability was meant to use it. System calls
that reach beyond a container's own namespaces, or that have been a way into the kernel, are on it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

_EPERM, _ENOSYS = 1, 38

# Capability that lifts the ban ("" for none) -> system calls.
_FORBIDDEN = {
    "CAP_SYS_ADMIN": (
        "mount umount umount2 move_mount fsopen fsconfig fsmount fspick open_tree open_tree_attr mount_setattr "
        "pivot_root setns unshare quotactl quotactl_fd lookup_dcookie fanotify_init setdomainname sethostname"
    ),
    "CAP_SYS_MODULE": "init_module finit_module delete_module create_module query_module get_kernel_syms",
    "CAP_SYS_BOOT": "reboot kexec_load kexec_file_load",
    "CAP_SYS_TIME": "settimeofday stime clock_settime clock_settime64",
    "CAP_SYS_RAWIO": "iopl ioperm",
    "CAP_SYS_PACCT": "acct",
    "CAP_SYS_TTY_CONFIG": "vhangup",
    "CAP_SYS_NICE": "mbind migrate_pages move_pages set_mempolicy set_mempolicy_home_node",
    "CAP_SYS_PTRACE": "kcmp process_madvise process_vm_readv process_vm_writev pidfd_getfd",
    "CAP_DAC_READ_SEARCH": "open_by_handle_at",
    "CAP_SYSLOG": "syslog",
    "CAP_BPF": "bpf",
    "CAP_PERFMON": "perf_event_open",
    "": (
        "add_key keyctl request_key userfaultfd nfsservctl swapon swapoff uselib ustat sysfs _sysctl vm86 vm86old "
        "modify_ldt io_uring_setup io_uring_enter io_uring_register"
    ),
}
_NAMESPACE_FLAGS = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_AF_VSOCK = 40
# A native kernel also answers these; the ban holds for them all.
_ARCHITECTURES = {
    "x86_64": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
    "aarch64": ["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"],
}


def profile(capabilities: Collection[str], machine: str, allowed: Collection[str] = ()) -> dict[str, Any]:
    """The profile for a container that holds these capabilities, in the OCI runtime's form; `machine` as uname says.

    `allowed` are calls for which it needs none.
    """
    banned = (names for capability, names in _FORBIDDEN.items() if capability not in capabilities)
    forbidden = sorted(name for names in banned for name in names.split() if name not in allowed)
    rules = [_refusal(forbidden)]
    if "CAP_SYS_ADMIN" not in capabilities:
        flags = (1 << bit for bit in range(32) if _NAMESPACE_FLAGS >> bit & 1)
        rules += [_refusal(["clone"], value=flag, valueTwo=flag, op="SCMP_CMP_MASKED_EQ") for flag in flags]
        # Its flags lie in memory, where a filter cannot look; the C library falls back to clone.
        rules.append(_refusal(["clone3"], _ENOSYS))
    rules.append(_refusal(["socket"], value=_AF_VSOCK, op="SCMP_CMP_EQ"))
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": _ARCHITECTURES.get(machine, []),
        "syscalls": rules,
    }


def _refusal(calls: list[str], error: int = _EPERM, **first_argument: Any) -> dict[str, Any]:
    """Of system calls, where their first argument is of some kind or else always."""
    rule = {"names": calls, "action": "SCMP_ACT_ERRNO", "errnoRet": error}
    return {**rule, "args": [{"index": 0, **first_argument}]} if first_argument else rule
