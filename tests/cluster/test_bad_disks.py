"""A disk that is full, broken or read-only: the supervisor survives it, says what to do, and loses no answered write.

The disk is a file system of a few megabytes with the cluster on it, which is made to fail under the running cluster.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Cluster, free_port
from rawapi import RawApi

from virtfleet.local import supervisor
from waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.local_home("it breaks the cluster"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
SHUTDOWN, WITHOUT_FLUSH = 0x8004587D, 2  # EXT4_IOC_SHUTDOWN: from then on every access is an I/O error


class Disk:
    """An ext4 file system of its own, on a loop device."""

    def __init__(self, place: Path) -> None:
        self.image, self.mount = place / "image", place / "m"
        self.mount.mkdir()
        with self.image.open("wb") as file:
            file.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-J", "size=4", str(self.image)], check=True)
        self.plug_in()

    def plug_in(self) -> None:
        options = "loop,errors=remount-ro"
        subprocess.run(["mount", "-o", options, str(self.image), str(self.mount)], check=True)

    def unplug(self) -> None:
        """Once nobody holds it any more: as long as somebody does, it is the same broken file system."""
        eventually(lambda: subprocess.run(["umount", str(self.mount)]).returncode == 0)

    def die(self) -> None:
        """Nothing can be read or written any more, and what was not yet on the disk never will be."""
        fd = os.open(self.mount, os.O_RDONLY)
        fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", WITHOUT_FLUSH))
        os.close(fd)

    def become_read_only(self) -> None:
        """What the kernel does to a file system in which it finds an error."""
        subprocess.run(["mount", "-o", "remount,abort", str(self.mount)], check=False)

    def fill(self) -> None:
        with (self.mount / "junk").open("wb", buffering=0) as junk:
            for size in (1 << 20, 4096, 1):
                try:
                    while junk.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue


@pytest.fixture
def disk() -> Iterator[Disk]:
    with tempfile.TemporaryDirectory(prefix="vft-") as place:
        made = Disk(Path(place))
        yield made
        made.unplug()


@pytest.fixture
def cluster(disk: Disk) -> Iterator[Cluster]:
    nodes = disk.image.with_name("nodes.yaml")
    nodes.write_text("nodes: []")
    data = disk.mount / "c"
    made = Cluster(data / "kubeconfig", data, free_port())
    done = made.virtfleet("up", "--port", str(made.port), "--nodes", str(nodes), check=False)
    assert done.returncode == 0, done.stderr
    yield made
    made.virtfleet("down", check=False)


def process_of(cluster: Cluster, name: str = "") -> int:
    """Of a part of the cluster; without a name, of the supervisor."""
    assert cluster.data is not None
    answer = supervisor.ask(cluster.data, op="status")
    return int(next((c["pid"] or 0 for c in answer["children"] if c["name"] == name), 0) if name else answer["pid"])


class Writer:
    """Writes objects, and remembers those that were answered for."""

    def __init__(self, raw: RawApi, prefix: str = "first") -> None:
        self.raw, self.prefix = raw, prefix
        self.answered: set[str] = set()
        self.refusals: list[str] = []

    def write(self, number: int) -> bool:
        for _ in range(number):
            name = f"{self.prefix}-{len(self.answered)}-{len(self.refusals)}"
            meta = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
            answer = self.raw("POST", CONFIG_MAPS, {**meta, "data": {"v": "x" * 20_000}})
            if answer.code == 201:
                self.answered.add(name)
            else:
                assert answer.code == 503, (answer.code, answer.body)
                self.refusals.append(answer.message)
        return not self.refusals

    def lost(self) -> set[str]:
        found = {i["metadata"]["name"] for i in self.raw("GET", CONFIG_MAPS).json["items"]}
        return self.answered - found


def says_that_it_is_full(done: subprocess.CompletedProcess[str]) -> bool:
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "Traceback" not in said
    assert "full" in said or "No space left" in said, said
    assert "Make room" in said or "free space" in said, said
    return True


def test_a_full_disk_and_a_killed_server(cluster: Cluster, disk: Disk) -> None:
    raw, supervising = RawApi(cluster.kubeconfig), process_of(cluster)
    writer = Writer(raw)
    assert writer.write(50)
    disk.fill()
    for _ in range(300):
        if not writer.write(1):
            break
    assert "Check the free space" in writer.refusals[0]
    refused = cluster.virtfleet("status", check=False)
    assert (refused.returncode, "not ready" in refused.stdout) == (1, True), refused.stdout
    assert "is full" in refused.stdout
    for _ in range(3):
        pid = eventually(lambda: process_of(cluster, "control-plane"))
        os.kill(pid, signal.SIGKILL)
        eventually(lambda pid=pid: process_of(cluster, "control-plane") != pid)
    assert process_of(cluster) == supervising
    for command in ("status", "up", "status"):
        eventually(lambda command=command: says_that_it_is_full(cluster.virtfleet(command, check=False)))
    (disk.mount / "junk").unlink()
    eventually(lambda: raw("GET", "/readyz").code == 200)
    assert writer.lost() == set()
    assert Writer(raw, "then").write(1)
    assert "not ready" not in cluster.virtfleet("status").stdout


@pytest.mark.parametrize(
    ("disaster", "says"),
    [(Disk.die, "Input/output error"), (Disk.become_read_only, "store.db cannot be opened")],
    ids=["EIO", "EROFS"],
)
def test_a_disk_that_fails_under_the_cluster(cluster: Cluster, disk: Disk, disaster: object, says: str) -> None:
    raw, supervising = RawApi(cluster.kubeconfig), process_of(cluster)
    writer = Writer(raw)
    assert writer.write(50)
    assert callable(disaster)
    disaster(disk)
    assert not writer.write(3)
    assert "health of the disk" in writer.refusals[0]
    pid = process_of(cluster, "control-plane")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: process_of(cluster, "control-plane") != pid)
    assert process_of(cluster) == supervising

    def said() -> str:
        done = cluster.virtfleet("status", check=False)
        assert done.returncode == 1
        return done.stdout + done.stderr

    eventually(lambda: says in said())
    assert "Traceback" not in said()
    # It can be stopped, the disk repaired, and everything is there.
    supervisor.ask(cluster.data or Path(), op="stop", timeout=60)
    eventually(lambda: not Path(f"/proc/{supervising}").exists())
    disk.unplug()
    subprocess.run(["fsck.ext4", "-p", str(disk.image)], check=False, capture_output=True)
    disk.plug_in()
    done = cluster.virtfleet("up", check=False)
    assert done.returncode == 0, done.stderr
    assert writer.lost() == set()
    assert Writer(raw, "then").write(1)
