"""The image of the Pods that the suite starts beside its VMs: busybox and bash, and what its Jobs call of others."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

from virtfleet.local.ociarchive import Entry, Image, layer, write_images

NAMES = ("vm-killer", "test-helpers", "winrmcli")
_DIRECTORY, _PROGRAM, _LINK = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755, stat.S_IFLNK | 0o777
_PKILL = Path(__file__).parent / "guest" / "pkill"
# As far as the suite's Jobs use them: they read what a host says.
_CLIENTS = {"ncat": 'exec timeout 6 nc -w 3 "$1" "$2"', "curl": 'exec wget -qO- "$2"'}
_DIRECTORIES = ("bin", "sbin", "usr", "usr/bin", "etc", "tmp", "root", "proc", "sys", "dev", "run")


def write(archive: Path, prefix: str, tag: str, programs: Path) -> None:
    """`programs` has busybox and bash-static, which need no library."""
    busybox = programs / "busybox"
    applets = subprocess.check_output([busybox, "--list"], text=True).split()
    entries = [
        *(Entry(path, _DIRECTORY) for path in _DIRECTORIES),
        Entry("bin/busybox", _PROGRAM, busybox.read_bytes()),
        Entry("bin/bash", _PROGRAM, (programs / "bash-static").read_bytes()),
        *(Entry(f"bin/{applet}", _LINK, b"busybox") for applet in applets if applet not in ("busybox", "bash")),
        *(Entry(f"bin/{name}", _PROGRAM, f"#!/bin/sh\n{call}\n".encode()) for name, call in _CLIENTS.items()),
        Entry("bin/pkill", _PROGRAM, _PKILL.read_bytes()),
        *(Entry(f"usr/bin/{name}", _LINK, f"/bin/{name}".encode()) for name in ("bash", "sh", "env")),
        Entry("etc/passwd", stat.S_IFREG | 0o644, b"root:x:0:0:root:/root:/bin/sh\n"),
    ]
    shared = layer(entries)
    config = {"Env": ["PATH=/usr/bin:/bin:/sbin"], "User": "1001"}  # Pods that are to be root's say so
    with archive.open("wb") as file:
        write_images(file, [Image(f"docker.io/{prefix}/{name}:{tag}", (shared,), config) for name in NAMES])
