"""The base image `host` and VirtFleet's component images on top of it.

A machine that runs VirtFleet has all that its containers need under /usr. The base image shows that, read-only, with
an /etc synthesized from the few public files that programs look for, and VirtFleet's environment under /opt. Nothing
else of the machine is in it: no /root, /home, /run, /tmp, no keys, no shadow file.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from functools import partial
from pathlib import Path

import msgspec

import virtfleet
from virtfleet.local.node.images import HOST, Image, ImageError, ImageStore, canonical, tree_digest

# Containers run with these, as Debian's accounts have them; 107 is whom launchers and their QEMU run as.
_ACCOUNTS = {"root": 0, "daemon": 1, "nobody": 65534, "qemu": 107}
_GROUPS = {"root": 0, "daemon": 1, "tty": 5, "disk": 6, "kvm": 106, "qemu": 107, "nogroup": 65534}
# Public files of /etc that libraries read; copied when they are there. Never a directory that may hold a key.
_PUBLIC_FILES = ("ld.so.cache", "ld.so.conf", "protocols", "services", "mime.types", "ssl/openssl.cnf")
_DIRECTORIES = (
    *("dev", "proc", "sys", "run", "home", "mnt", "opt/virtfleet/lib", "opt/virtfleet/src/virtfleet", "usr"),
    *("var/lib", "var/log", "var/cache", "var/spool"),
)

LAUNCHER = "virtfleet.launcher"
# Component -> the room that implements it; hypervisors have launcher images of their own. A launcher has a reaper above
# it, because it is PID 1 of a pod whose children (libvirt's daemon, QEMU) outlive their parents.
COMPONENTS = {
    "virt-operator": "virtfleet.operator",
    "virt-controller": "virtfleet.controller",
    "virt-api": "virtfleet.gateway",
    "virt-handler": "virtfleet.handler",
    "virt-dashboard": "virtfleet.dashboard",
    "virt-launcher": LAUNCHER,
    "virt-launcher-lxc": LAUNCHER,
    "virt-launcher-xen": LAUNCHER,
}
REAPER = ("/usr/bin/catatonit", "--")
BIN = "/opt/virtfleet/bin"
ENV = (
    f"PATH={BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH=/opt/virtfleet/src:/opt/virtfleet/lib",
    "PYTHONDONTWRITEBYTECODE=1",
    "PYTHONUNBUFFERED=1",
)


def underlays() -> dict[str, str]:
    """Target in the container -> directory of the machine."""
    return {
        "/usr": "/usr",
        "/opt/virtfleet/lib": sysconfig.get_path("purelib"),
        "/opt/virtfleet/src/virtfleet": str(Path(virtfleet.__file__).parent),
    }


def open_store(directory: Path) -> ImageStore:
    """The image store with `host` and the component images in it, made anew where this machine changed."""
    store = ImageStore(directory, underlays())
    store.create()
    with store.scratch() as scratch:
        tree = scratch / "tree"
        _build(tree)
        layer = store.add_layer(tree, f"host-{tree_digest(tree)}")
    host = Image(name=canonical(HOST), layers=(layer,), on_host=True, env=ENV, command=("/bin/sh",))
    like = partial(msgspec.structs.replace, host, command=())
    for image in (host, *(like(name=_name(component), entrypoint=entrypoint(component)) for component in COMPONENTS)):
        if store.find(image.name) != image:
            store.put(image)
    return store


def entrypoint(component: str) -> tuple[str, ...]:
    """What a container of the component's image starts with."""
    return (*(REAPER if COMPONENTS[component] == LAUNCHER else ()), f"{BIN}/{component}")


def comes_with_virtfleet(name: str) -> bool:
    """Whether an image is made here, and would be made again if somebody removed it."""
    return canonical(name) in (canonical(HOST), *(_name(component) for component in COMPONENTS))


def _name(component: str) -> str:
    return f"virtfleet/{component}:{virtfleet.__version__}"


def _build(tree: Path) -> None:
    """The files of the base image: the skeleton, with what is public of this machine's own /etc."""
    if sys.base_prefix != "/usr":
        raise ImageError(
            f"the Python environment is made from {sys.base_prefix}; containers see only /usr of this machine: "
            "make the environment with /usr/bin/python3 (scripts/bootstrap does)"
        )
    write_skeleton(tree)
    for link in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{link}"):
            (tree / link).symlink_to(os.readlink(f"/{link}"))
    _public(tree / "etc")


def write_skeleton(tree: Path) -> None:
    """What an image of ours has beside /usr: accounts, directories, and the programs that start components."""
    for name in (*_DIRECTORIES, "etc/ssl", BIN[1:]):
        (tree / name).mkdir(parents=True, mode=0o755, exist_ok=True)
    for name, mode in (("root", 0o700), ("tmp", 0o1777), ("var/tmp", 0o1777)):
        (tree / name).mkdir(exist_ok=True)
        (tree / name).chmod(mode)
    (tree / "var/run").symlink_to("/run")
    for component, room in COMPONENTS.items():
        script = tree / BIN[1:] / component
        script.write_text(f'#!/bin/sh\nexec /usr/bin/python3 -S -m {room} "$@"\n')
        script.chmod(0o755)
    etc = tree / "etc"
    (etc / "passwd").write_text(
        "".join(f"{n}:x:{uid}:{uid}:{n}:{'/root' if not uid else '/'}:/bin/sh\n" for n, uid in _ACCOUNTS.items())
    )
    (etc / "group").write_text("".join(f"{name}:x:{gid}:\n" for name, gid in _GROUPS.items()))
    (etc / "hosts").write_text("127.0.0.1\tlocalhost\n")
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    (etc / "os-release").symlink_to("../usr/lib/os-release")
    (etc / "mtab").symlink_to("/proc/mounts")
    (etc / "localtime").symlink_to("/usr/share/zoneinfo/Etc/UTC")


def _public(etc: Path) -> None:
    for name in _PUBLIC_FILES:
        if os.path.isfile(f"/etc/{name}"):
            shutil.copyfile(f"/etc/{name}", etc / name)
    if os.path.isfile(authorities := "/etc/ssl/certs/ca-certificates.crt"):
        (etc / "ssl/certs").mkdir(mode=0o755)
        shutil.copyfile(authorities, etc / "ssl/certs/ca-certificates.crt")
        (etc / "ssl/cert.pem").symlink_to("certs/ca-certificates.crt")
    # awk, editors, iptables...: /usr/bin/x -> /etc/alternatives/x -> /usr/...
    (etc / "alternatives").mkdir(mode=0o755)
    for entry in sorted(os.scandir("/etc/alternatives"), key=lambda e: e.name):
        if entry.is_symlink() and os.readlink(entry.path).startswith(("/usr/", "/bin/", "/sbin/", "/lib/")):
            (etc / "alternatives" / entry.name).symlink_to(os.readlink(entry.path))
