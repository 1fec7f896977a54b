"""The stand-ins for KubeVirt's guests: the suite's own builder makes them, unmodified, and they get what specs call.

`python -m conformance.guests` takes the builder's arguments. Programs are Debian's where they are small; guest/ has
scripts of our own for the others, each as far as specs use it. Guests have little memory and live in it, so that
programs are only where a spec needs them.
"""

from __future__ import annotations

import hashlib
import runpy
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from conformance.suite import FUNCTEST, WORK
from virtfleet.local import guestimage
from virtfleet.local.guestimage import _Node

_SCRIPTS = Path(__file__).parent / "guest"
_LIB, _USR_LIB = "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"
_MODULES = ("qemu_fw_cfg", "pvpanic-mmio")
# No spec starts a guest with more. A machine has room for four times its CPUs, and the kernel's own memory of each that
# may come is more than 128 MiB have.
_MOST_CPUS = "nr_cpus=8"
_PARTITIONS, _ENTRY = 446, 16  # where a disk's table of partitions begins, and the bytes of each entry
Nodes = dict[str, _Node]


class Program(NamedTuple):
    """One of Debian's, with the packages that have it and its libraries, and the libraries that guests lack."""

    file: str
    packages: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    others: tuple[str, ...] = ()  # files that it reads
    links: tuple[str, ...] = ()


MKE2FS = Program(
    "sbin/mke2fs",
    ("e2fsprogs", "libext2fs2", "libcom-err2", "libblkid1", "libuuid1"),
    (
        *(f"{_LIB}/{name}" for name in ("libext2fs.so.2", "libcom_err.so.2", "libe2p.so.2")),
        *(f"{_USR_LIB}/{name}" for name in ("libblkid.so.1", "libuuid.so.1")),
    ),
    ("etc/mke2fs.conf",),
    ("sbin/mkfs.ext2", "sbin/mkfs.ext3", "sbin/mkfs.ext4"),
)
PING = Program(
    "bin/ping",
    ("iputils-ping", "libcap2", "libidn2-0", "libunistring2"),
    (f"{_LIB}/libcap.so.2", f"{_USR_LIB}/libidn2.so.0", f"{_USR_LIB}/libunistring.so.2"),
)
DMIDECODE = Program("usr/sbin/dmidecode", ("dmidecode",))
PROGRAMS = {"alpine-tooling": (MKE2FS,), "fedora": (MKE2FS, PING, DMIDECODE)}
_PACKAGES = tuple(sorted({package for of in PROGRAMS.values() for program in of for package in program.packages}))
_IN_ETC = ("disk-links", "login-record")  # the others are programs
_TPM = ("tpm2_pcrread", "tpm2_pcrextend")
# What cloud-init would have read stays, and its disk is free for specs that mount it.
_UNMOUNT = "cp -R $seed /run/seed && umount $seed && cp -R /run/seed/. $seed\n"
# What is added to the builder's own scripts.
_MORE = {
    "etc/hotplug": '[ "$SUBSYSTEM:$DEVTYPE" = block:disk ] && exec /etc/disk-links\n',
    "etc/rc": _UNMOUNT + "/etc/disk-links\nmkdir -p -m 700 /home/alpine && cp -pR /home/fedora/.ssh /home/alpine/\n",
    "etc/profile": "/etc/login-record\n",
    "etc/passwd": "alpine:x:0:0:alpine:/home/alpine:/bin/sh\n",
}
_SYSINIT = '#!/bin/sh\n. /etc/rc.sysinit\necho "/etc/rc.sysinit: up at $(cut -d" " -f1 /proc/uptime)" >/dev/ttyS0\n'


def furnished(nodes: Nodes, tools: Path) -> Nodes:
    """The files of a guest with what specs call; `tools` has the programs' packages, unpacked."""
    flavor = nodes["etc/flavor"].content.decode().strip()
    nodes = dict(nodes)
    for path in sorted(_SCRIPTS.iterdir()):
        nodes[f"etc/{path.name}" if path.name in _IN_ETC else f"usr/local/bin/{path.name}"] = _file(path)
    for name in _TPM:
        nodes[f"usr/local/bin/{name}"] = _link("tpm2")
    for path in ("usr/bin/env", "sbin/hwclock"):  # without the latter the agent sets no clock
        nodes.setdefault(path, _link("/bin/busybox"))
    for program in PROGRAMS.get(flavor, ()):
        _install(nodes, program, tools)
    for name, text in _MORE.items():
        nodes[name] = nodes[name]._replace(content=nodes[name].content + text.encode())
    if flavor == "cirros":  # whose start script has that name, and says it
        nodes["etc/rc.sysinit"], nodes["etc/rc"] = nodes["etc/rc"], nodes["etc/rc"]._replace(content=_SYSINIT.encode())
    return nodes


def _install(nodes: Nodes, program: Program, tools: Path) -> None:
    place = program.file
    if place in nodes:  # busybox has it, and its shell prefers its own to what is in PATH, but not to functions
        name = Path(place).name
        place = f"usr/bin/{name}"
        shell = nodes["etc/shrc"]
        nodes["etc/shrc"] = shell._replace(content=shell.content + f'{name}() {{ /{place} "$@"; }}\n'.encode())
    nodes[place] = _file(tools / program.file)
    for library in program.libraries:
        nodes[f"lib/{Path(library).name}"] = _file(tools / library)
    for other in program.others:
        nodes[other] = _file(tools / other)
    for link in program.links:
        nodes[link] = _link(f"/{place}")


def _file(path: Path) -> _Node:
    return _Node(stat.S_IFREG | 0o755, path.read_bytes())


def _link(target: str) -> _Node:
    return _Node(stat.S_IFLNK | 0o777, target.encode())


def as_second_partition(image: Path) -> None:
    """Move the only partition's entry to the second place, where KubeVirt's alpine has its EFI partition."""
    with image.open("r+b") as file:
        file.seek(_PARTITIONS)
        entry = file.read(_ENTRY)
        file.seek(_PARTITIONS)
        file.write(bytes(_ENTRY) + entry)


def _tools() -> Path:
    """The packages, fetched and unpacked once for each list of them."""
    tools = WORK / f"guest-tools-{hashlib.sha256(repr(_PACKAGES).encode()).hexdigest()[:8]}"
    if not tools.is_dir():
        unfinished = WORK / "guest-tools.building"
        guestimage._run("rm", "-rf", str(unfinished))
        unfinished.mkdir(parents=True)
        guestimage._unpack(list(_PACKAGES), unfinished / "packages", unfinished / "root")
        (unfinished / "root").rename(tools)
    return tools


def _hooked(tools: Path) -> None:
    """The functions that the builder calls, with ours around them."""
    cpio: Callable[[Nodes], bytes] = guestimage._cpio
    disk = guestimage._disk

    def partitioned(root: Path, image: Path, files: dict[str, Path]) -> None:
        disk(root, image, files)
        if image.parent.name == "alpine":
            as_second_partition(image)

    guestimage._cpio = lambda nodes: cpio(furnished(nodes, tools))
    guestimage._disk = partitioned
    guestimage._MODULES = (*guestimage._MODULES, *_MODULES)  # type: ignore[assignment]
    line = guestimage._COMMAND_LINE
    guestimage._SYSLINUX = guestimage._SYSLINUX.replace(line, f"{line} {_MOST_CPUS}")
    guestimage._LOADER_ENTRY = guestimage._LOADER_ENTRY.replace(line, f"{line} {_MOST_CPUS}")


def main() -> None:
    _hooked(_tools())
    builder = str(FUNCTEST / "guests" / "build")
    sys.argv = [builder, *sys.argv[1:]]
    runpy.run_path(builder, run_name="__main__")


if __name__ == "__main__":
    main()
