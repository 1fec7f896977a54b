"""What somebody who runs in a launcher's Pod can make a handler do by what they put into its volumes: nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from component.handler_kit import handler, scheduled
from component.handler_launcher import SOCKET, FakeLauncher, launcher
from component.kube_fixtures import eventually
from component.pod_member import PodGroup
from virtfleet.handler.devices import access as deviceaccess
from virtfleet.handler.network.networks import Networks
from virtfleet.handler.pods import files as podfiles
from virtfleet.handler.pods import launchers
from virtfleet.handler.pods.files import VOLUMES
from virtfleet.handler.pods.launchers import Launcher, Presence
from virtfleet.handler.pods.process import PodProcess
from virtfleet.kube.resource import VMIS
from virtfleet.launcher.node import emulators
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.protocol.messages import Status

PROGRAMS = "6.1 /usr/bin/qemu-system-x86_64 1 2 3"
KNOWN = {f"{'ab' * 32}.xml": b"<qemuCaps>the node's own</qemuCaps>"}
CACHE = f"{VOLUMES}/private/libvirt/qemu/cache/capabilities"
SECRET = "nameserver 192.0.2.99 # and nobody else's business"


@pytest.fixture
def place(place: Path) -> Path:
    (place / "secret").write_text(SECRET)
    (place / "secret").chmod(0o600)
    return place


def untouched(place: Path) -> None:
    status = (place / "secret").stat()
    assert (place / "secret").read_text() == SECRET
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (0, 0, 0o600)


def holding(place: Path, text: str) -> list[Path]:
    """The node's own files that hold a text."""
    files = [file for file in place.rglob("*") if file.is_file() and not file.is_relative_to(place / "pods")]
    return [file for file in files if text in file.read_text(errors="replace")]


async def vm(api: InProcessApi, place: Path, name: str) -> Path:
    """A VMI; the answer is the directory of its Pod."""
    await scheduled(api, place, name)
    return place / f"pods/pod-{name}"


async def test_what_the_node_knows_reaches_a_launcher_past_whatever_lies_in_its_volume(
    api: InProcessApi, place: Path
) -> None:
    """A link under the very name of a file that launchers used to be given, and one where its directory would be."""
    emulators.save(place / "facts", PROGRAMS, KNOWN)
    first, second = await vm(api, place, "a"), await vm(api, place, "b")
    (first / CACHE).mkdir(parents=True)
    for name in KNOWN:
        (first / CACHE / name).symlink_to(place / "secret")
    (place / "outside").mkdir()
    (second / VOLUMES / "private").mkdir(parents=True)
    (second / VOLUMES / "private/libvirt").symlink_to(place / "outside")
    async with handler(api, place), launcher(first) as one, launcher(second) as other:
        one.refusal = "volume 'root': the image has no file"  # so that the start is tried again and again
        await eventually(lambda: one.asked.count("Sync") > 1 and other.synced)
        one.refusal = ""
        await eventually(lambda: one.synced)
        assert one.synced[0].emulators == other.synced[0].emulators == {PROGRAMS: KNOWN}
    untouched(place)
    assert not list((place / "outside").iterdir())


async def test_nothing_that_lies_in_a_volume_is_handed_on(api: InProcessApi, place: Path) -> None:
    first, second = await vm(api, place, "a"), await vm(api, place, "b")
    (first / CACHE).mkdir(parents=True)
    (first / CACHE / "loot.xml").symlink_to(place / "secret")
    (first / CACHE / f"{'cd' * 32}.xml").write_text("<planted/>")
    async with handler(api, place) as machines, launcher(first) as one, launcher(second) as other:
        await eventually(lambda: one.synced)
        machines.controller.queue.add("default/b")
        await eventually(lambda: other.synced)
        assert other.synced[0].emulators == {}
    assert holding(place, SECRET) == [place / "secret"]
    assert holding(place, "planted") == []


@contextmanager
def mounted(source: Path, target: Path) -> Iterator[None]:
    subprocess.run(["mount", "--bind", source, target], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=True)


async def refused(pod: Path, caplog: pytest.LogCaptureFixture, why: str) -> None:
    following = Launcher(pod, lambda _: None)
    try:
        await eventually(lambda: why in caplog.text)
        assert following.presence is Presence.COMING
    finally:
        await following.close()


async def test_a_mount_in_a_volume_leads_nowhere(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine, other = place / "mine", place / "other"
    sockets = (mine / SOCKET).parent
    sockets.mkdir(parents=True)
    async with launcher(other):
        (mine / SOCKET).touch()
        with mounted(other / SOCKET, mine / SOCKET):
            await refused(mine, caplog, "it leads out of the volume")


async def test_a_pipe_in_place_of_a_socket_or_of_last_words_hangs_nobody(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pod = place / "pod"
    (pod / SOCKET).parent.mkdir(parents=True)
    (pod / "containers/compute").mkdir(parents=True)
    os.mkfifo(pod / "containers/compute/0123")
    os.mkfifo(pod / SOCKET)
    await refused(pod, caplog, "it is not a socket")
    (pod / "containers/compute/link").symlink_to(place / "secret")
    (pod / "containers/compute/long").write_bytes(b" " * (1 << 20))
    assert [len(words) for words in podfiles.last_words(pod)] == [1 << 16]


@pytest.mark.parametrize(
    "words", [b"[" * 60_000, b'{"status":"Shutoff","disks":{"\xff":1}}', b'{"reason":"%s"}' % (b"x" * 99)]
)
async def test_last_words_that_are_rubbish_are_none(place: Path, words: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "NEVER_CAME", 0.0)
    pod = place / "pod"
    (pod / "containers/compute").mkdir(parents=True)
    (pod / "containers/compute/0123").write_bytes(words)
    following = Launcher(pod, lambda _: None)
    await eventually(lambda: following.presence is Presence.GONE)
    assert following.state is None
    await following.close()


async def test_a_socket_that_nobody_accepts_from_holds_nobody_up(place: Path) -> None:
    path = place / "pod" / SOCKET
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(path))
        listener.listen(0)
        first.connect(str(path))
        with pytest.raises(BlockingIOError):  # a moment later, and not when the other one feels like it
            podfiles.connect(place / "pod", "sockets", path.name)


async def test_the_place_of_a_pod_that_somebody_made_up_is_not_looked_at(api: InProcessApi, place: Path) -> None:
    await scheduled(api, place)
    await api.patch(VMIS, "vm", {"status": {"activePods": {"pod-vm": None, "../pods/pod-vm": "n1"}}}, "default")
    async with handler(api, place) as vms, launcher(place / "pods/pod-vm") as real:
        await asyncio.gather(*(cache.synced.wait() for cache in vms.caches))
        await scheduled(api, place, "other")
        async with launcher(place / "pods/pod-other") as other:
            await eventually(lambda: other.synced)
        assert real.asked == []


# --- the launcher's own file system


@pytest.fixture
def jailed(place: Path) -> Iterator[PodProcess]:
    """A process whose root directory is `place`/root, as somebody may arrange who can make namespaces of their own."""
    (place / "root/etc").mkdir(parents=True)
    (place / "root/dev").mkdir()
    group = PodGroup("pod-uid")
    script = f"import os, sys; os.chroot({str(place / 'root')!r}); print('up', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        group.add(process.pid)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield PodProcess(process.pid, "pod-uid")
        process.kill()
    group.remove()


def test_names_of_servers_come_from_the_launchers_own_files_only(place: Path, jailed: PodProcess) -> None:
    file = place / "root/etc/resolv.conf"
    for target in (place / "secret", Path("../../secret"), Path("/proc/self/root") / place / "secret"):
        file.symlink_to(target)
        assert Networks._resolver(jailed).servers == []
        file.unlink()
    os.mkfifo(file)
    assert Networks._resolver(jailed).servers == []
    file.unlink()
    (place / "root/etc/real").write_text("nameserver 10.0.0.1\n" + "nameserver 10.0.0.2\n" * 100_000)
    file.symlink_to("/etc/real")
    assert Networks._resolver(jailed).servers[:1] == ["10.0.0.1"]
    assert len(Networks._resolver(jailed).servers) < 1000


def test_devices_are_given_away_in_the_launchers_own_tree_only(place: Path, jailed: PodProcess) -> None:
    """A link in the middle of a path, where a check of its end sees nothing."""
    (place / "outside").mkdir()
    os.mknod(place / "outside/tun", 0o600 | 0o020000, os.makedev(1, 7))
    (place / "root/dev/net").symlink_to(place / "outside")
    (place / "root/dev/vfio").symlink_to("../../outside")
    assert deviceaccess.grant(jailed, ["vfio/tun"]) == []
    assert (place / "outside/tun").stat().st_uid == 0


# --- nobody else opens anything there

_OPENING = ("open", "os.", "shutil.", "pathlib.", "glob.")


class Auditor:
    """Hears of every path that this process opens, changes or lists, but for what is opened by openat2."""

    def __init__(self) -> None:
        self.watched: Path | None = None
        self.seen: set[str] = set()
        sys.addaudithook(self._hear)  # for ever

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.watched and event.startswith(_OPENING):
            for argument in arguments:
                if isinstance(argument, str | bytes | os.PathLike):
                    path = os.fsdecode(argument)
                    if path.startswith(f"{self.watched}/") and f"{VOLUMES}/" in path:
                        below = path.split(f"{VOLUMES}/", 1)[1]
                        if "/" in below.rstrip("/"):
                            self.seen.add(f"{event} {below}")


async def test_while_a_handler_works_no_path_in_a_volume_is_opened_by_its_name(api: InProcessApi, place: Path) -> None:
    emulators.save(place / "facts", PROGRAMS, KNOWN)
    pod = await vm(api, place, "vm")
    real = FakeLauncher(pod)
    await real.start()
    auditor = Auditor()
    auditor.watched = place
    try:
        async with handler(api, place):
            await eventually(lambda: real.synced)
            real.becomes(Status.PAUSED, "User")
            with pytest.raises(FileNotFoundError):
                podfiles.connect(pod, "private", "uid", "virt-serial0")
        assert list(podfiles.last_words(pod)) == []
        assert auditor.seen == set()
        (pod / SOCKET).touch()  # the test itself, to see that it would have been heard
        assert auditor.seen
    finally:
        auditor.watched = None
        await real.end()
