"""A real Xen for tests: Debian's Xen and a Debian dom0, in a machine that QEMU emulates.

The dom0's disk is made from packages that are fetched and unpacked but never installed, and kept in a cache under their
versions. Tests talk to its shell on the serial console; the tree under test is there at its own path, as it is here.

`python -m xen.dom0 COMMAND...` boots one, runs a command in it and shows what it says.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

TREE = Path(__file__).resolve().parents[2]
FILES = Path(__file__).parent / "dom0"
XEN = "4.17"
PACKAGES = (
    *("base-files", "base-passwd", "bash", "coreutils", "util-linux", "mount", "kmod", "procps", "iproute2", "grep"),
    *("sed", "gawk", "findutils", "hostname", "libc-bin", "dash", "tar", "login", "passwd", "busybox-static"),
    *(f"xen-hypervisor-{XEN}-amd64", f"xen-utils-{XEN}", "xen-utils-common", "xenstore-utils", "qemu-system-xen"),
    *("libvirt-daemon", "libvirt-daemon-driver-xen", "libvirt-clients", "linux-image-amd64", "python3", "catatonit"),
    *("nftables", "qemu-utils", "ovmf", "seabios"),
)
# Of the initial file system: the root disk's own are loaded from there.
MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic", "crc32c_intel")
_MERGED = ("bin", "sbin", "lib", "lib64")
_DISK = "1500M"
_MEMORY = 2048
_DOM0_MEMORY = 1024
# Xen gives up where QEMU has these in software only halfway. Guests of HVM and PVH run by AMD's extensions, emulated as well.
_CPU = "max,-smap,-smep,-monitor,-la57,-pku,-pks,+svm"
_LIMIT = 600.0
_PROMPT = "dom0 is up"


class Dom0(NamedTuple):
    """What a dom0 boots from."""

    xen: Path
    kernel: Path
    initrd: Path
    disk: Path


def build(cache: Path) -> Dom0:
    """The dom0, from the cache where it was built before from the same packages."""
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "dom0.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        apt = _apt(cache)
        wanted = _run(*apt, "--print-uris")
        digest = hashlib.sha256("\n".join(sorted(re.findall(r"^'.*", wanted, re.M))).encode())
        for path in (Path(__file__), *sorted(FILES.iterdir())):
            digest.update(path.read_bytes())
        directory = cache / f"dom0-{digest.hexdigest()[:16]}"
        if not directory.is_dir():
            for old in cache.glob("dom0-*"):
                shutil.rmtree(old)
            _run(*apt, "--download-only")
            _build(cache, directory)
    return Dom0(directory / "xen", directory / "vmlinuz", directory / "initrd", directory / "disk.raw")


def _apt(cache: Path) -> list[str]:
    """apt-get, for a machine on which nothing is installed yet."""
    archives, status = cache / "archives", cache / "status"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    status.touch()
    options = {
        "Dir::State::status": status,
        "Dir::Cache::archives": archives,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
    }
    settings = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return ["apt-get", "-qq", "-y", *settings, "install", *PACKAGES]


def _build(cache: Path, directory: Path) -> None:
    work = cache / "dom0.building"
    shutil.rmtree(work, ignore_errors=True)  # what a killed build left
    root, finished = work / "root", work / "finished"
    for place in _MERGED:
        (root / "usr" / place).mkdir(parents=True)
        (root / place).symlink_to(f"usr/{place}")
    finished.mkdir()
    for archive in sorted((cache / "archives").glob("*.deb")):
        files = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE)
        tar = ["tar", "-x", "--keep-directory-symlink", "-C", str(root)]
        subprocess.run(tar, stdin=files.stdout, check=True, timeout=_LIMIT)
        if files.wait():
            raise RuntimeError(f"{archive} cannot be unpacked")
    (kernel,) = root.glob("boot/vmlinuz-*")
    release = kernel.name.partition("-")[2]
    _run("chroot", str(root), "depmod", release)
    _run("ldconfig", "-r", str(root))
    for name in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)
    (root / "etc/hosts").write_text("127.0.0.1 localhost dom0\n")
    (root / "usr/sbin/init").unlink(missing_ok=True)
    shutil.copy(FILES / "init", root / "usr/sbin/init")
    shutil.copy(kernel, finished / "vmlinuz")
    with gzip.open(root / f"boot/xen-{XEN}-amd64.gz") as packed, open(finished / "xen", "wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)  # QEMU's multiboot loader takes it like this only
    _initrd(root, root / "lib/modules" / release, work / "early", finished / "initrd")
    _run("mke2fs", "-q", "-t", "ext4", "-d", str(root), str(finished / "disk.raw"), _DISK)
    finished.rename(directory)
    shutil.rmtree(work)


def _initrd(root: Path, modules: Path, early: Path, initrd: Path) -> None:
    for place in ("bin", "dev", "proc", "root"):
        (early / place).mkdir(parents=True)
    shutil.copy(root / "bin/busybox", early / "bin")
    for applet in ("sh", "mount", "umount", "insmod", "usleep", "switch_root"):
        (early / "bin" / applet).symlink_to("busybox")
    shutil.copy(FILES / "early", early / "init")
    needed = []
    for module in MODULES:
        listed = _run("chroot", str(root), "modprobe", "-S", modules.name, "--show-depends", module)
        needed += [root / line.split()[1][1:] for line in listed.splitlines() if line.startswith("insmod")]
    for module in dict.fromkeys(needed):
        shutil.copy(module, early)
    (early / "modules").write_text("".join(f"/{module.name}\n" for module in dict.fromkeys(needed)))
    names = "\n".join(str(path.relative_to(early)) for path in sorted(early.rglob("*")))
    with open(initrd, "wb") as file:
        command = [str(root / "bin/busybox"), "cpio", "-o", "-H", "newc"]
        subprocess.run(command, cwd=early, input=names.encode(), stdout=file, check=True, stderr=subprocess.DEVNULL)


class Shell:
    """The dom0's shell, on its serial console."""

    def __init__(self, connection: socket.socket, log: Path) -> None:
        self._connection = connection
        self._log = open(log, "wb")  # noqa: SIM115: it lives as long as the machine
        self._read = b""
        self._number = 0

    def run(self, command: str, limit: float = 120.0) -> str:
        """What a command says; an error with it where the command fails."""
        status, said = self.attempt(command, limit)
        assert status == 0, f"{command}\nended with status {status} and said\n{said}"
        return said

    def attempt(self, command: str, limit: float = 120.0) -> tuple[int, str]:
        """How a command ends, and what it says."""
        self._number += 1
        mark = f"<{self._number}>"
        # The marks are put together there, so that an echo of the command is not taken for them.
        begin, end = f"printf '%s\\n' '<'{self._number}'>'", f"printf '%s %s\\n' '<'{self._number}'>' $?"
        self._connection.sendall(f"{begin}; {{ {command}\n}} </dev/null 2>&1; {end}\n".encode())
        self.wait(rf"{mark}\r?\n", limit)
        said = self.wait(rf"{mark} (\d+)\r?\n", limit)
        return int(said[1]), said.string[: said.start()].replace("\r", "")

    def wait(self, pattern: str, limit: float) -> re.Match[str]:
        """Read until the console says something."""
        deadline = time.monotonic() + limit
        while not (found := re.search(pattern, self._read.decode(errors="replace"))):
            self._connection.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                data = self._connection.recv(65536)
            except TimeoutError:
                data = b""
            if not data:
                raise AssertionError(f"{pattern!r} did not come within {limit} s; last:\n{self._tail()}")
            self._log.write(data)
            self._log.flush()
            self._read += data
        rest = self._read.decode(errors="replace")[found.end() :]
        self._read = rest.encode()
        return found

    def _tail(self) -> str:
        return self._read.decode(errors="replace")[-3000:]


@contextmanager
def booted(dom0: Dom0, directory: Path) -> Iterator[Shell]:
    """A running dom0. Its console is logged into the directory."""
    path = directory / "console"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    command = [
        *("nice", "-n", "10", "qemu-system-x86_64", "-nodefaults", "-display", "none", "-no-reboot"),
        *("-machine", "q35", "-accel", "tcg", "-cpu", _CPU, "-m", str(_MEMORY)),
        *("-chardev", f"socket,id=console,path={path}", "-serial", "chardev:console"),
        *("-drive", f"file={dom0.disk},format=raw,if=virtio,snapshot=on"),
        *("-fsdev", f"local,id=tree,path={TREE},security_model=none,readonly=on"),
        *("-device", "virtio-9p-pci,fsdev=tree,mount_tag=tree"),
        *("-kernel", str(dom0.xen)),
        *("-append", f"console=com1 com1=115200,8n1 dom0_mem={_DOM0_MEMORY}M,max:{_DOM0_MEMORY}M loglvl=warning"),
        *("-initrd", f"{dom0.kernel} console=hvc0 quiet mitigations=off virtfleet.tree={TREE},{dom0.initrd}"),
    ]
    machine = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        listener.settimeout(30)
        connection, _ = listener.accept()
        shell = Shell(connection, directory / "log")
        shell.wait(_PROMPT, _LIMIT)
        yield shell
    finally:
        machine.kill()
        machine.wait()
        listener.close()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr or done.stdout}")
    return done.stdout


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    from virtfleet.local.guestimage import default_cache

    began = time.monotonic()
    with TemporaryDirectory(prefix="virtfleet-") as place, booted(build(default_cache()), Path(place)) as shell:
        print(f"up after {time.monotonic() - began:.0f} s", file=sys.stderr)
        for line in sys.argv[1:]:
            print(shell.attempt(line, _LIMIT)[1])
