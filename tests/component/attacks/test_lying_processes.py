"""Who listens on a launcher's socket says which process a handler acts on. It has to be one of the Pod, and alive."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from component.handler_launcher import SOCKET, FakeLauncher, launcher
from component.kube_fixtures import eventually
from component.pod_member import PodMember
from virtfleet.handler.pods import files as podfiles
from virtfleet.handler.pods import process as podprocess
from virtfleet.handler.pods.launchers import Launcher, Presence
from virtfleet.handler.pods.process import PodProcess
from virtfleet.handler.vms import tuning
from virtfleet.hypervisors.base import Tuning

POD = "pod-uid"
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
CAP_SYS_RESOURCE = 24


@pytest.fixture
def pod() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="vfp"))
    (directory / POD / SOCKET).parent.mkdir(parents=True)
    yield directory / POD
    shutil.rmtree(directory)


@pytest.fixture
def member() -> Iterator[PodMember]:
    found = PodMember(POD)
    yield found
    found.end()


async def refused(pod: Path, caplog: pytest.LogCaptureFixture, why: str) -> None:
    following = Launcher(pod, lambda _: None)
    try:
        await eventually(lambda: why in caplog.text)
        assert following.presence is Presence.COMING
        assert following.process is None
    finally:
        await following.close()


async def test_a_process_of_somebody_else_is_not_taken_for_the_launcher(
    pod: Path, caplog: pytest.LogCaptureFixture
) -> None:
    real = FakeLauncher(pod)
    await real._server.start()  # in this process, which is not the Pod's
    try:
        await refused(pod, caplog, f"process {os.getpid()} is not one of Pod {POD}: nothing is done to it")
    finally:
        await real.end()


async def test_a_process_of_another_pod_is_not_taken_for_the_launcher(
    pod: Path, caplog: pytest.LogCaptureFixture
) -> None:
    real = FakeLauncher(pod)
    await real._server.start()
    real.process = PodMember("another-pod", real._server._server.sockets[0].fileno())  # type: ignore[union-attr]
    try:
        await refused(pod, caplog, f"is not one of Pod {POD}")
    finally:
        await real.end()


@pytest.mark.parametrize("kernel", ["tells a descriptor", "tells a number only"])
async def test_a_process_that_has_ended_is_not_taken_for_anybody(
    pod: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket lives on in another process."""
    if kernel == "tells a number only":
        monkeypatch.setattr(podprocess, "_SO_PEERPIDFD", 12345)
    async with launcher(pod) as real:
        with podfiles.connect(pod, "sockets", "launcher-sock") as connection:
            assert real.process
            assert PodProcess.at(connection, POD).number == real.process.number
            real.process.end()
            with pytest.raises(ProcessLookupError):
                PodProcess.at(connection, POD)


def become(number: int) -> int:
    """A new process with the number of one that has ended."""
    for _ in range(5000):
        LAST_PID.write_text(str(number - 1))
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                signal.pause()
            os._exit(0)
        if child == number:
            return child
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    pytest.skip("others on this machine take numbers too quickly")


def test_nothing_is_done_to_whoever_gets_the_number_next(member: PodMember) -> None:
    held, number = PodProcess(member.number, POD), member.number
    assert b"pod-uid" in held.read("cgroup")
    member.end()
    try:
        stranger = become(number)
    except OSError:
        pytest.skip("numbers of processes cannot be chosen here")
    try:
        assert Path(f"/proc/{number}").exists()
        before = resource.prlimit(stranger, resource.RLIMIT_MEMLOCK)
        for attempt in (
            lambda: held.number,
            lambda: held.read("environ"),
            lambda: held.threads(),
            lambda: held.thread(number),
            lambda: held.has("dev/null"),
            lambda: held.namespace("net").__enter__(),
            lambda: tuning.before_start(held, Tuning(lock_memory=True)),
        ):
            with pytest.raises((ProcessLookupError, FileNotFoundError)):
                attempt()
        with pytest.raises(PermissionError, match="is not one of Pod"):
            PodProcess(stranger, POD)
        assert resource.prlimit(stranger, resource.RLIMIT_MEMLOCK) == before
    finally:
        os.kill(stranger, signal.SIGKILL)
        os.waitpid(stranger, 0)


def test_nothing_is_set_up_in_the_network_of_the_node(member: PodMember) -> None:
    """A guest's network there would take the node's own connections: it redirects what goes to 127.0.0.1."""
    process = PodProcess(member.number, POD)
    with pytest.raises(PermissionError, match="has the net namespace of the node"), process.namespace("net"):
        pass


def test_limits_are_raised_for_processes_of_the_pod_where_a_handler_may(member: PodMember) -> None:
    process, wanted = PodProcess(member.number, POD), Tuning(lock_memory=True)
    if may_raise_limits():
        tuning.before_start(process, wanted)
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        assert resource.prlimit(member.number, resource.RLIMIT_MEMLOCK) == unlimited
    else:
        with pytest.raises(PermissionError, match="give its container the capability SYS_RESOURCE"):
            tuning.before_start(process, wanted)


def may_raise_limits() -> bool:
    """Whether this machine gives its root the right to raise limits, or has none."""
    status = Path("/proc/self/status").read_text()
    rights = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    capable = int(rights.split()[1], 16) >> CAP_SYS_RESOURCE & 1
    return bool(capable) or resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] == resource.RLIM_INFINITY


def test_what_is_held_is_let_go_of(member: PodMember) -> None:
    def opened() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    held = [PodProcess(member.number, POD) for _ in range(10)]
    assert opened() == before + 20
    held.clear()
    with pytest.raises(PermissionError):
        PodProcess(os.getpid(), POD)
    with socket.socket(socket.AF_UNIX) as alone, pytest.raises(OSError):
        PodProcess.at(alone, POD)
    assert opened() == before
