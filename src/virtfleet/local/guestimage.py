"""A small guest for trying VirtFleet out and for its tests: a bootable disk, and a container image that holds it.

Debian's cloud kernel and a busybox in its initramfs, from packages that are fetched and unpacked but never installed.
One FAT file system boots by BIOS (syslinux) and by EFI (systemd-boot). What the guest does is in guest/, next to this
module. Builds are kept in a cache under the versions of the packages and the content of guest/.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import stat
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from virtfleet.domain.paths import USER
from virtfleet.local import ociarchive
from virtfleet.local.directory import place
from virtfleet.local.ociarchive import Entry, entries_of, write_archive

IMAGE = "virtfleet/guest:demo"
_LIMIT = 900.0  # seconds that one command has; downloads are among them
_FILES = Path(__file__).parent / "guest"
_KERNEL = "linux-image-cloud-amd64"
_PACKAGES = (
    *("busybox-static", "dosfstools", "mtools", "syslinux", "syslinux-common", "systemd-boot-efi"),
    *("qemu-guest-agent", "libc6", "libglib2.0-0", "libnuma1", "libpcre2-8-0", "libudev1", "liburing2"),
    *("dropbear-bin", "openssh-sftp-server", "libcrypt1", "libgmp10", "libtomcrypt1", "libtommath1", "zlib1g"),
)
_PROGRAMS = ("usr/sbin/qemu-ga", "usr/sbin/dropbear", "usr/lib/sftp-server")
_LIBRARIES = (
    *("ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libglib-2.0.so.0", "libgmodule-2.0.so.0"),
    *("libnuma.so.1", "libpcre2-8.so.0", "libudev.so.1", "liburing.so.2"),
    *("libcrypt.so.1", "libgmp.so.10", "libtomcrypt.so.1", "libtommath.so.1", "libz.so.1"),
)
_DIRECTORIES = (
    *("bin", "dev", "etc", "etc/acpi", "etc/acpi/PWRF", "etc/dropbear", "mnt", "proc", "root", "run", "sbin"),
    *("sys", "tmp", "usr", "usr/lib", "usr/sbin", "var", "var/lib", "www"),
)
# Loaded in this order, each after what it depends on.
_MODULES = (
    *("virtio_pci", "virtio_blk", "virtio_net", "virtio_scsi", "sd_mod", "sr_mod", "virtio_console"),
    *("virtio_balloon", "virtio_mem", "virtio-rng", "virtiofs", "xen-blkfront", "xen-netfront", "button", "evdev"),
    *("isofs", "vfat", "nls_cp437", "nls_ascii"),
)
_ON_DEMAND = ("efivarfs",)  # those that people load themselves: not every guest has what they are for
_COMMAND_LINE = (
    "console=tty0 console=ttyS0 quiet panic=5 mitigations=off random.trust_cpu=on memhp_default_state=online"
    " no_timer_check"  # an emulated CPU that waits for its turn meanwhile looks like one without a timer, and panics
    # What nobody needs here, and what is a quarter of an emulated CPU's work until the guest is up: code rewritten for
    # one CPU, tests of ciphers, keys of modules, and what is there for tracing.
    " noreplace-smp edd=off cryptomgr.notests initcall_blacklist=crypto_kdf108_init,load_system_certificate_list,"
    "init_encrypted,init_ima,init_kprobe_trace,slab_sysfs_init"
)
_SIGNATURE = b"~Module signature appended~\n"  # how a signed module ends
_SYSLINUX = f"DEFAULT guest\nLABEL guest\n  LINUX /vmlinuz\n  INITRD /initrd\n  APPEND {_COMMAND_LINE}\n"
_LOADER_ENTRY = f"title guest\nlinux /vmlinuz\ninitrd /initrd\noptions {_COMMAND_LINE}\n"
_PLACES = {"init": "sbin/init", "shutdown": "sbin/shutdown"}  # of the files that are not in etc/
_SECTOR = 512
_PARTITION_START = 2048  # sectors
_KEPT = 3  # builds; guests of earlier ones may still run
_LISTS = "/var/lib/apt/lists"
_ASKED = "guest.asked"  # what apt was asked last, and the build that came of it


class GuestError(Exception):
    """The guest cannot be built; the message says what to do."""


class Guest(NamedTuple):
    """A finished build."""

    image: Path  # the container image's files: the disk under disk/, and a root file system for containers
    disk: Path  # qcow2, in there
    archive: Path  # the same as an OCI archive
    kernel: Path
    initrd: Path
    cached: bool


class _Node(NamedTuple):
    """A file of the guest. (The guests of KubeVirt's suite are built with what this module has, by these names.)"""

    mode: int
    content: bytes


def default_cache() -> Path:
    return place("VIRTFLEET_CACHE", Path("/var/cache/virtfleet"), "XDG_CACHE_HOME", ".cache")


def build(cache: Path) -> Guest:
    """The guest, from the cache where it was built before from the same packages."""
    if platform.machine() != "x86_64":
        raise GuestError(f"the guest is built for x86_64 only, and this machine is {platform.machine()}")
    if known := _known(cache):
        return _guest(known, cached=True)
    packages = _versions()
    directory = cache / f"guest-{_key(packages)}"
    if not (cached := directory.is_dir()):
        cache.mkdir(parents=True, exist_ok=True)
        with open(cache / "guest.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (cached := directory.is_dir()):  # somebody else was not faster
                work = cache / "guest.building"
                shutil.rmtree(work, ignore_errors=True)  # what a killed build left
                work.mkdir()
                _build(work, list(packages))
                (work / "finished").rename(directory)
                shutil.rmtree(work)
                for old in sorted(cache.glob("guest-*"), key=os.path.getmtime)[:-_KEPT]:
                    shutil.rmtree(old)
    with suppress(OSError):  # who may only read the cache asks again
        (cache / _ASKED).write_text(f"{_question()} {directory.name}")
    return _guest(directory, cached=cached)


def _known(cache: Path) -> Path | None:
    """The build of the packages that apt's lists name, where apt, who takes a second, was asked since they changed."""
    with suppress(OSError, ValueError):
        question, name = (cache / _ASKED).read_text().split()
        if question == _question() and (cache / name).is_dir():
            return cache / name
    return None


def _question() -> str:
    return _key({"lists": str(os.stat(_LISTS).st_mtime_ns)})


def _guest(directory: Path, *, cached: bool) -> Guest:
    return Guest(
        image=directory / "image",
        disk=directory / "image/disk/guest.qcow2",
        archive=directory / "guest.oci.tar",
        kernel=directory / "vmlinuz",
        initrd=directory / "initrd",
        cached=cached,
    )


def _build(work: Path, packages: list[str]) -> None:
    root, finished = work / "root", work / "finished"
    finished.mkdir()
    _unpack(packages, work / "packages", root)
    (kernel,) = root.glob("boot/vmlinuz-*")
    shutil.copyfile(kernel, finished / "vmlinuz")
    (finished / "initrd").write_bytes(_cpio(_guest_tree(root) | _machine_tree(root, kernel.name.partition("-")[2])))
    raw, disk = work / "disk.raw", finished / "image/disk/guest.qcow2"
    _disk(root, raw, {"vmlinuz": finished / "vmlinuz", "initrd": finished / "initrd"})
    disk.parent.mkdir(parents=True)
    _run("qemu-img", "convert", "-O", "qcow2", str(raw), str(disk))
    _lay_out(finished / "image", _guest_tree(root))
    with open(finished / "guest.oci.tar", "wb") as file:
        write_archive(file, IMAGE, map(_owned, entries_of(finished / "image")))


def _lay_out(directory: Path, nodes: dict[str, _Node]) -> None:
    for name, node in sorted(nodes.items()):
        path = directory / name
        if stat.S_ISDIR(node.mode):
            path.mkdir()
        elif stat.S_ISLNK(node.mode):
            path.symlink_to(node.content.decode())
        else:
            path.write_bytes(node.content)
            path.chmod(stat.S_IMODE(node.mode))


def _versions() -> dict[str, str]:
    """File name and checksum of every package, by its name, as apt knows them."""
    try:
        return _known_versions()
    except GuestError:
        if os.geteuid() != 0:
            raise
        _run("apt-get", "-qq", "update")
        return _known_versions()


def _known_versions() -> dict[str, str]:
    match = re.search(r"^Depends: .*?(linux-image-\S+-cloud-amd64)", _run("apt-cache", "show", _KERNEL), re.M)
    if not match:
        raise GuestError(f"apt knows no kernel for {_KERNEL}; run `apt-get update` first")
    names = (match[1], *_PACKAGES)
    lines = _run("apt-get", "-qq", "--print-uris", "download", *names).splitlines()
    return {line.split()[1].partition("_")[0]: line.partition(" ")[2] for line in lines if line.startswith("'")}


def _key(packages: dict[str, str]) -> str:
    digest = hashlib.sha256(repr(sorted(packages.items())).encode())
    for path in (Path(__file__), Path(ociarchive.__file__), *sorted(_FILES.iterdir())):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _unpack(packages: list[str], archives: Path, root: Path) -> None:
    archives.mkdir()
    _run("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *packages, cwd=archives)
    for archive in archives.iterdir():
        _run("dpkg-deb", "-x", str(archive), str(root))


def _guest_tree(root: Path) -> dict[str, _Node]:
    """What a guest has in any case: busybox, and its own scripts."""
    nodes = {path: _Node(stat.S_IFDIR | 0o755, b"") for path in _DIRECTORIES}
    busybox = root / "bin/busybox"
    nodes["bin/busybox"] = _Node(stat.S_IFREG | 0o755, busybox.read_bytes())
    for applet in _run(str(busybox), "--list").split():
        nodes.setdefault(f"bin/{applet}", _Node(stat.S_IFLNK | 0o777, b"busybox"))
    for path in _FILES.iterdir():
        nodes[_PLACES.get(path.name, f"etc/{path.name}")] = _Node(stat.S_IFREG | 0o755, path.read_bytes())
    # By the power button, and by the kernel when Xen asks for it.
    for button in ("etc/acpi/PWRF/00000080", "sbin/poweroff"):
        nodes[button] = _Node(stat.S_IFLNK | 0o777, b"/sbin/shutdown")
    release = b'ID=virtfleet-guest\nNAME="VirtFleet guest"\nPRETTY_NAME="VirtFleet guest"\nVERSION_ID=1\n'
    nodes["etc/os-release"] = _Node(stat.S_IFREG | 0o644, release)
    nodes["etc/passwd"] = _Node(stat.S_IFREG | 0o644, b"root:x:0:0:root:/root:/bin/sh\n")
    return nodes


def _machine_tree(root: Path, release: str) -> dict[str, _Node]:
    """What a guest with a kernel of its own has besides: modules, the guest agent, and an ssh server."""
    nodes = {path: _Node(stat.S_IFDIR | 0o755, b"") for path in ("lib", "lib/modules", "lib64")}
    nodes["init"] = _Node(stat.S_IFLNK | 0o777, b"sbin/init")
    loaded = list(_in_order(root / "lib/modules" / release))
    for path in (*loaded, *_in_order(root / "lib/modules" / release, _ON_DEMAND)):
        nodes[f"lib/modules/{path.name}"] = _Node(stat.S_IFREG | 0o644, _unsigned(path.read_bytes()))
    listing = "".join(f"/lib/modules/{path.name}\n" for path in loaded)
    nodes["etc/modules"] = _Node(stat.S_IFREG | 0o644, listing.encode())
    # A guest has no disk of its own to keep a key on, and one that changes with every start looks like an attack. So it
    # is the image's: whoever has the image knows it, as they know everything else in it.
    nodes["etc/dropbear/dropbear_ed25519_host_key"] = _Node(stat.S_IFREG | 0o600, _host_key())
    for program in _PROGRAMS:
        nodes[program] = _Node(stat.S_IFREG | 0o755, (root / program).read_bytes())
    for library in _LIBRARIES:
        below = "lib64" if library.startswith("ld-") else "lib"
        source = next(file for file in root.rglob(library) if file.exists())
        nodes[f"{below}/{library}"] = _Node(stat.S_IFREG | 0o755, source.read_bytes())
    return nodes


def _unsigned(module: bytes) -> bytes:
    """A module without its signature, which an emulated CPU takes long to check: what follows the module is the
    signature, a description of twelve bytes that ends with its length, and a mark."""
    if not module.endswith(_SIGNATURE):
        return module
    end = len(module) - len(_SIGNATURE)
    (length,) = struct.unpack_from(">I", module, end - 4)
    return module[: end - 12 - length]


def _host_key() -> bytes:
    """A new key, as dropbear keeps them: the type's name, then seed and public key together."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pair = key.private_bytes_raw() + key.public_key().public_bytes_raw()
    return b"".join(struct.pack(">I", len(part)) + part for part in (b"ssh-ed25519", pair))


def _in_order(directory: Path, modules: Sequence[str] = ()) -> Iterator[Path]:
    """Modules, the guest's where none are named, with those that they depend on before them."""
    paths = {path.stem.replace("-", "_"): path for path in directory.rglob("*.ko")}
    done: set[str] = set()

    def with_dependencies(name: str) -> Iterator[Path]:
        if name in done or name not in paths:  # a module that is not there is built into the kernel
            return
        done.add(name)
        depends = re.search(rb"\0depends=([^\0]*)\0", paths[name].read_bytes())
        for needed in depends[1].decode().split(",") if depends else ():
            yield from with_dependencies(needed.replace("-", "_"))
        yield paths[name]

    for module in modules or _MODULES:
        yield from with_dependencies(module.replace("-", "_"))


def _cpio(nodes: dict[str, _Node]) -> bytes:
    """An initramfs in cpio's `newc` format, compressed: guests read it from emulated disks, and have little memory.

    By lz4, which emulated CPUs unpack in a fifth of the time that gzip takes them.
    """
    parts = []
    for number, (name, node) in enumerate([*sorted(nodes.items()), ("TRAILER!!!", _Node(0, b""))], start=1):
        fields = (number, node.mode, 0, 0, 1, 0, len(node.content), 0, 0, 0, 0, len(name) + 1, 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        for data in (header, node.content):
            parts += [data, b"\0" * (-len(data) % 4)]
    return _piped(b"".join(parts), "lz4", "-l", "-9", "-c")


def _disk(root: Path, image: Path, files: dict[str, Path]) -> None:
    """A disk with one FAT partition that BIOS and EFI boot from."""
    content = sum(path.stat().st_size for path in files.values())
    sectors = (content + (2 << 20)) // _SECTOR
    with open(image, "wb") as file:
        file.truncate((_PARTITION_START + sectors) * _SECTOR)
        file.write((root / "usr/lib/SYSLINUX/mbr.bin").read_bytes())
        entry = struct.pack("<B3sB3sII", 0x80, b"\xfe\xff\xff", 0xEF, b"\xfe\xff\xff", _PARTITION_START, sectors)
        file.seek(446)
        file.write(entry.ljust(64, b"\0") + b"\x55\xaa")
    environment = os.environ | {"PATH": f"{root}/usr/bin:{root}/sbin:{os.environ['PATH']}", "MTOOLS_SKIP_CHECK": "1"}
    offset = _PARTITION_START * _SECTOR
    _run("mkfs.vfat", "--offset", str(_PARTITION_START), "-n", "GUEST", "-s", "4", str(image), env=environment)
    (image.parent / "syslinux.cfg").write_text(_SYSLINUX)
    (image.parent / "guest.conf").write_text(_LOADER_ENTRY)
    volume = f"{image}@@{offset}"
    _run("mmd", "-i", volume, "::EFI", "::EFI/BOOT", "::loader", "::loader/entries", env=environment)
    copies = {
        "EFI/BOOT/BOOTX64.EFI": root / "usr/lib/systemd/boot/efi/systemd-bootx64.efi",
        "loader/entries/guest.conf": image.parent / "guest.conf",
        "syslinux.cfg": image.parent / "syslinux.cfg",
        **files,
    }
    for target, source in copies.items():
        _run("mcopy", "-i", volume, str(source), f"::{target}", env=environment)
    _run("syslinux", "--offset", str(offset), "--install", str(image), env=environment)


def _owned(entry: Entry) -> Entry:
    """A file of the image with its owner. Launchers are the ones who read the disk."""
    return entry._replace(owner=USER) if entry.path.startswith("disk") else entry


def _run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    return _piped(b"", *command, cwd=cwd, env=env).decode()


def _piped(given: bytes, *command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> bytes:
    try:
        done = subprocess.run(command, cwd=cwd, env=env, input=given, capture_output=True, check=True, timeout=_LIMIT)
    except FileNotFoundError:
        raise GuestError(f"{command[0]} is missing; scripts/bootstrap installs what is needed") from None
    except subprocess.TimeoutExpired:
        raise GuestError(f"{Path(command[0]).name} was not done within {_LIMIT:.0f} s") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).decode(errors="replace").strip()
        raise GuestError(f"{Path(command[0]).name} failed: {said}") from None
    return done.stdout
