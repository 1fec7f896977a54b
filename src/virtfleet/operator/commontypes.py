"""Instance types and preferences that come with an installation, under the names that KubeVirt's users know. Pure.

Sizes double from one to the next; a series says what VMs of a kind of work need beside them. A preference is what a
family of guests has drivers for, and the least that the guest runs with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from virtfleet.api import kinds
from virtfleet.api.kinds import OwnKind
from virtfleet.installation import Installation
from virtfleet.kube.resource import Obj

_GROUP = kinds.TYPES[1].group
_DESCRIPTION = f"{_GROUP}/description"
_SIZES = {  # CPUs, and GiB of memory where one CPU has four
    "nano": (1, 0.5),
    "micro": (1, 1),
    "small": (1, 2),
    "medium": (1, 4),
    "2xmedium": (2, 4),
    "large": (2, 8),
    "xlarge": (4, 16),
    "2xlarge": (8, 32),
    "4xlarge": (16, 64),
    "8xlarge": (32, 128),
}
_LARGE = ("medium", "large", "xlarge", "2xlarge", "4xlarge", "8xlarge")
_DEDICATED: Obj = {"dedicatedCPUPlacement": True, "isolateEmulatorThread": True}
_NUMA: Obj = {"numa": {"guestMappingPassthrough": {}}}
_THREADED: Obj = {"ioThreadsPolicy": "auto"}
_UNDISTURBED = {f"{what}.crio.io": "disable" for what in ("cpu-load-balancing", "cpu-quota", "irq-load-balancing")}


def render(installation: Installation) -> list[Obj]:
    """All of them, where the installation has them."""
    if not installation.common_instancetypes:
        return []
    named = {kinds.TYPES[1]: _types(), kinds.PREFERENCES[1]: _preferences()}
    return [_object(installation, kind, *each) for kind, objects in named.items() for each in objects]


def _object(installation: Installation, kind: OwnKind, name: str, description: str, spec: Obj) -> Obj:
    metadata = installation.metadata(name, {f"{_GROUP}/vendor": "virtfleet.io"}, namespaced=False)
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {**metadata, "annotations": {_DESCRIPTION: description}},
        "spec": spec,
    }


# --- instance types


def _types() -> Iterator[tuple[str, str, Obj]]:
    plain = tuple(_SIZES)
    yield from _series("u1", "For anything; CPUs are shared with other VMs.", plain)
    yield from _series("d1", "Steady speed: each CPU is one of the node's.", plain, cpu=_DEDICATED, **_THREADED)
    without = [size for size in plain if size != "2xmedium"]
    half = {"overcommitPercent": 50}
    yield from _series("o1", "Many idle VMs: half of the memory is requested of the node.", without, memory=half)
    for pages, end in (("2Mi", ""), ("1Gi", "1gi")):
        huge = {"hugepages": {"pageSize": pages}}
        computing: Obj = {"cpu": _DEDICATED | _NUMA, "memory": huge, "ratio": 0.5, "fixed": True, **_THREADED}
        words = f"with huge pages of {pages}."
        yield from _series(
            "cx1", f"Computing: CPUs of its own, as they are in the node, {words}", _LARGE, end, **computing
        )
        yield from _series("m1", f"Much memory, {words}", _LARGE[1:], end, memory=huge, ratio=2)
    huge = {"hugepages": {"pageSize": "1Gi"}}
    on_time = [size for size in without if size != "nano"]
    real_time = _DEDICATED | _NUMA | {"realtime": {}}
    more: Obj = {"memory": huge, "annotations": _UNDISTURBED}
    yield from _series("rt1", "Work that must be done in time.", on_time, cpu=real_time, **more)
    for size, vcpus, gibibytes in zip(_LARGE, (4, 4, 8, 16, 32, 64), (4, 8, 16, 32, 64, 128), strict=True):
        spec = _spec(vcpus, gibibytes, cpu=_DEDICATED, **more)
        yield f"n1.{size}", "Network functions: many packets, little delay.", spec


def _series(
    series: str, description: str, sizes: Any, end: str = "", *, ratio: float = 1, fixed: bool = False, **more: Any
) -> Iterator[tuple[str, str, Obj]]:
    """One of each size; `fixed` are those to which no CPU is added later."""
    for size in sizes:
        vcpus, gibibytes = _SIZES[size]
        spec = _spec(vcpus, gibibytes * ratio, **more)
        if fixed:
            spec["cpu"]["maxSockets"] = vcpus
        yield f"{series}.{size}{end}", description, spec


def _spec(vcpus: int, gibibytes: float, *, cpu: Obj | None = None, memory: Obj | None = None, **more: Any) -> Obj:
    amount = f"{gibibytes:.0f}Gi" if gibibytes >= 1 else f"{gibibytes * 1024:.0f}Mi"
    return {"cpu": {"guest": vcpus, **(cpu or {})}, "memory": {"guest": amount, **(memory or {})}, **more}


# --- preferences

_VIRTIO = {"preferredDiskBus": "virtio", "preferredInterfaceModel": "virtio", "preferredRng": {}}
_SECURE = {"features": {"preferredSmm": {}}, "firmware": {"preferredEfi": {"secureBoot": True}}}
# Guests with Linux by name: what they are called, and the least memory that they run with.
_LINUX = {
    "alpine": ("Alpine Linux", "512Mi"),
    "centos.stream9": ("CentOS Stream 9", "1.5Gi"),
    "centos.stream10": ("CentOS Stream 10", "2Gi"),
    "cirros": ("CirrOS", "256Mi"),
    "debian": ("Debian", "1Gi"),
    "fedora": ("Fedora", "2Gi"),
    "opensuse.leap": ("openSUSE Leap", "2Gi"),
    "opensuse.tumbleweed": ("openSUSE Tumbleweed", "2Gi"),
    "oraclelinux": ("Oracle Linux", "2Gi"),
    "rhel.8": ("Red Hat Enterprise Linux 8", "1.5Gi"),
    "rhel.9": ("Red Hat Enterprise Linux 9", "1.5Gi"),
    "rhel.10": ("Red Hat Enterprise Linux 10", "2Gi"),
    "sles": ("SUSE Linux Enterprise Server", "2Gi"),
    "ubuntu": ("Ubuntu", "2Gi"),
}
_SIGNED = ("centos.stream9", "centos.stream10", "fedora", "rhel.8", "rhel.9", "rhel.10")  # loaders on their images
# Guests with Windows: what they are called, CPUs, memory, and whether they want a TPM.
_WINDOWS = {
    "windows.10": ("Windows 10", 1, "2Gi", False),
    "windows.11": ("Windows 11", 2, "4Gi", True),
    "windows.2k16": ("Windows Server 2016", 1, "2Gi", False),
    "windows.2k19": ("Windows Server 2019", 1, "2Gi", False),
    "windows.2k22": ("Windows Server 2022", 1, "2Gi", True),
    "windows.2k25": ("Windows Server 2025", 1, "2Gi", True),
}
_ENLIGHTENED = {
    **{name: {} for name in ("frequencies", "ipi", "reenlightenment", "relaxed", "reset", "runtime")},
    **{name: {} for name in ("synic", "tlbflush", "vapic", "vpindex")},
    "spinlocks": {"spinlocks": 8191},
    "synictimer": {"direct": {}},
}
_CLOCK = {
    "preferredClockOffset": {"utc": {}},
    "preferredTimer": {
        "hpet": {"present": False},
        "hyperv": {},
        "pit": {"tickPolicy": "delay"},
        "rtc": {"tickPolicy": "catchup"},
    },
}
_SHUTDOWN = 3600  # seconds: updates are installed then


def _preferences() -> Iterator[tuple[str, str, Obj]]:
    linux = {"annotations": {"vm.kubevirt.io/os": "linux"}, "devices": _VIRTIO}
    yield "linux", "Any Linux.", linux
    yield "linux.efi", "Any Linux that boots with EFI.", linux | {"firmware": {"preferredEfi": {"secureBoot": False}}}
    for name, (called, memory) in _LINUX.items():
        signed = _SECURE | {"preferredArchitecture": "amd64"} if name in _SIGNED else {}
        yield name, f"{called}.", linux | signed | {"requirements": _least(1, memory, amd64=bool(signed))}
    for name, (called, vcpus, memory, trusted) in _WINDOWS.items():
        spec = _windows(vcpus, memory, trusted=trusted)
        emulated = {"preferredDiskBus": "sata", "preferredInterfaceModel": "e1000e"}
        drivers = {
            **{f"preferred{device}": "virtio" for device in ("DiskBus", "InterfaceModel", "InputBus", "VideoType")},
            "preferredInputType": "tablet",
        }
        for end, words, devices in (("", "", emulated), (".virtio", " with virtio drivers", drivers)):
            yield name + end, f"{called}{words}.", spec | {"devices": spec["devices"] | devices}


def _least(vcpus: int, memory: str, *, amd64: bool = False) -> Obj:
    least = {"cpu": {"guest": vcpus}, "memory": {"guest": memory}}
    return {**least, "architecture": "amd64"} if amd64 else least


def _windows(vcpus: int, memory: str, *, trusted: bool) -> Obj:
    firmware = {"secureBoot": True, **({"persistent": True} if trusted else {})}
    return {
        "annotations": {"vm.kubevirt.io/os": "windows"},
        "clock": _CLOCK,
        "cpu": {"preferredCPUTopology": "sockets"},
        "devices": {
            "preferredAutoattachInputDevice": True,
            **({"preferredTPM": {"persistent": True}} if trusted else {}),
        },
        "features": {**{f"preferred{name}": {} for name in ("Acpi", "Apic", "Smm")}, "preferredHyperv": _ENLIGHTENED},
        "firmware": {"preferredEfi": firmware},
        "preferredTerminationGracePeriodSeconds": _SHUTDOWN,
        "requirements": _least(vcpus, memory),
    }
