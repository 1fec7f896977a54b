"""What a real Xen boots from: Debian's Xen, and a disk with a Debian dom0.

The disk is made from packages that are fetched and unpacked but never installed, and kept in a cache under their
versions. What the dom0 does when it boots is in dom0/, next to this module.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

FILES = Path(__file__).parent / "dom0"
XEN = "4.17"
PACKAGES = (
    *("base-files", "base-passwd", "bash", "coreutils", "util-linux", "mount", "kmod", "procps", "iproute2", "grep"),
    *("sed", "gawk", "findutils", "hostname", "libc-bin", "dash", "tar", "login", "passwd", "busybox-static"),
    *(f"xen-hypervisor-{XEN}-amd64", f"xen-utils-{XEN}", "xen-utils-common", "xenstore-utils", "qemu-system-xen"),
    *("libvirt-daemon", "libvirt-daemon-driver-xen", "libvirt-clients", "linux-image-amd64", "python3", "catatonit"),
    *("nftables", "qemu-utils", "ovmf", "seabios"),
    *("runc", "conmon", "libstdc++6"),  # for a node's agent, and what it runs
)
# Of the initial file system: the root disk's own are loaded from there.
MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic", "crc32c_intel")
_MERGED = ("bin", "sbin", "lib", "lib64")
_DISK = "2500M"
_LIMIT = 600.0


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
        # Those that are fetched already are not listed: so it is asked for an empty directory.
        listed = sorted(re.findall(r"^'.*", _run(*_apt(cache, "none"), "--print-uris"), re.M))
        digest = hashlib.sha256("\n".join(listed).encode())
        for path in (Path(__file__), *sorted(FILES.iterdir())):
            digest.update(path.read_bytes())
        directory = cache / f"dom0-{digest.hexdigest()[:16]}"
        if not directory.is_dir():
            for old in cache.glob("dom0-*"):
                shutil.rmtree(old)
            _run(*_apt(cache, "archives"), "--download-only")
            _build(cache, directory, [cache / "archives" / line.split()[1] for line in listed])
    return Dom0(directory / "xen", directory / "vmlinuz", directory / "initrd", directory / "disk.raw")


def _apt(cache: Path, place: str) -> list[str]:
    """apt-get, for a machine on which nothing is installed yet."""
    archives, status = cache / place, cache / "status"
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


def _build(cache: Path, directory: Path, archives: list[Path]) -> None:
    work = cache / "dom0.building"
    shutil.rmtree(work, ignore_errors=True)  # what a killed build left
    root, finished = work / "root", work / "finished"
    for place in _MERGED:
        (root / "usr" / place).mkdir(parents=True)
        (root / place).symlink_to(f"usr/{place}")
    finished.mkdir()
    for archive in archives:
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
    (root / "etc/alternatives").mkdir(exist_ok=True)
    for place, target in (("run", "/run"), ("lock", "/run/lock")):
        shutil.rmtree(root / "var" / place, ignore_errors=True)
        (root / "var" / place).symlink_to(target)
    # libvirt must know the CPU. Xen hides SEP from AMD's, QEMU's software has no VME, and every model has one of them.
    model = root / "usr/share/libvirt/cpu_map/x86_486.xml"
    model.write_text(model.read_text().replace("<feature name='vme'/>", ""))
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


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr or done.stdout}")
    return done.stdout
