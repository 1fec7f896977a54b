"""Containers as processes: runc makes them, conmon stands above each.

conmon keeps a container's output and exit code whether the agent lives or not. The agent watches conmon, not the
container: conmon ends when its container has ended and the exit code is written; if it ends without one, it was
killed, nobody reads the container's output any more, and the container is ended too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from virtfleet.local.node import cgroups, mounts
from virtfleet.local.node.containers import UNKNOWN_EXIT, Container, records
from virtfleet.local.node.layout import Layout
from virtfleet.work.commands import CommandError, run
from virtfleet.work.sockets import ready

_RUNC = shutil.which("runc", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin") or "runc"
_CREATE_TIMEOUT = 120.0
_LEAST_GRACE = 2.0  # seconds that a container has after its signal, unless it gets none at all
_KILL_PATIENCE = 30.0  # a process in the kernel's hands may take a while even then
_MAX_OUTPUT = 10 * 1024
LOG_LIMIT = 16 << 20  # bytes of a container's log; then it begins anew
Ended = Callable[[Container], None]
log = logging.getLogger(__name__)


class RuntimeFailure(Exception):
    """The runtime could not make or start a container: RunContainerError."""


class Runtime:
    """The containers of one node. `ended` is called with each container that has come to its end."""

    def __init__(self, layout: Layout, ended: Ended) -> None:
        self._layout, self._ended = layout, ended
        self._watched: dict[str, int] = {}  # container -> pidfd of its monitor
        self._finished: dict[str, asyncio.Event] = {}

    def home(self, container: Container) -> Path:
        """The directory of a container: bundle, writable layer and record."""
        return self._layout.containers / container.id

    def prepare(self, container: Container, trees: list[Path]) -> Path:
        """The container's directory with its root filesystem mounted; returns the latter."""
        home = self.home(container)
        for name in ("rootfs", "upper", "work"):
            (home / name).mkdir(parents=True, exist_ok=True)
        (home / "upper").chmod(0o755)
        container.boot = boot_id()
        container.save(home)
        mounts.overlay(trees, home / "rootfs", upper=home / "upper", work=home / "work")
        return home / "rootfs"

    async def create(self, container: Container, config: dict[str, Any], inlet: Sequence[str] = ()) -> None:
        """Make the container's processes, up to the point before its program starts.

        `inlet` is what conmon is told of the container's input.
        """
        home = self.home(container)
        (home / "config.json").write_bytes(orjson.dumps(config))
        os.makedirs(os.path.dirname(container.log), exist_ok=True)
        terminal = ["--terminal"] if config["process"]["terminal"] else []
        container.pid = await self._monitor(container, [*terminal, *inlet])
        container.pid_start = start_time(container.pid)
        container.monitor = int((home / "monitor.pid").read_text())
        container.monitor_start = start_time(container.monitor)
        container.save(home)
        self._watch(container)

    async def _monitor(self, container: Container, streams: Sequence[str]) -> int:
        """Start conmon, which has runc make the container; the process id of its first process."""
        home = self.home(container)
        read, write = os.pipe()
        argv = [
            *("conmon", "--api-version", "1", "--cid", container.id, "--cuuid", container.id, "--name", container.name),
            *("--runtime", _RUNC, "--runtime-arg", f"--root={self._layout.runtime}", "--bundle", str(home)),
            *("--container-pidfile", str(home / "pid"), "--conmon-pidfile", str(home / "monitor.pid")),
            *("--persist-dir", str(home), "--exit-dir", str(self._layout.exits)),
            *("--log-path", f"k8s-file:{container.log}", "--log-size-max", str(LOG_LIMIT)),
            *("--log-level", "error", "--no-sync-log", "--full-attach", *streams),
        ]
        complaints = os.open(home / "monitor.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=complaints,
                pass_fds=[write],
                env={"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin"), "_OCI_SYNCPIPE": str(write)},
                start_new_session=True,  # a signal to the agent's terminal is not meant for containers
                cwd=home,  # conmon leaves a file there when the container runs out of memory
            )
        finally:
            os.close(write)
            os.close(complaints)
        with os.fdopen(read, "rb", buffering=0) as answering:
            async with asyncio.timeout(_CREATE_TIMEOUT):
                await ready(answering, writable=False)
                answer = answering.read(1 << 16)  # conmon says it all at once
                await process.wait()
        result: dict[str, Any] = orjson.loads(answer or b'{"data": -1}')
        if result["data"] < 0:
            said = result.get("message") or (home / "monitor.log").read_text() or "conmon ended without an answer"
            raise RuntimeFailure(last_word(said))
        return int(result["data"])

    async def start(self, container: Container) -> None:
        container.started = time.time()  # first, because the container may have ended before runc has
        await self._runc("start", container.id)
        container.save(self.home(container))

    async def resize(self, container: Container, resources: dict[str, Any]) -> None:
        """Give a container that runs other resources."""
        home = self.home(container)
        (home / "resources.json").write_bytes(orjson.dumps(resources))
        await self._runc("update", "--resources", str(home / "resources.json"), container.id)
        container.save(home)

    def kill(self, container: Container, number: int) -> None:
        """Signal the container's first process; SIGKILL ends whatever else runs in its control group too."""
        with pidfd(container.pid, container.pid_start) as fd:
            if fd is not None:
                signal.pidfd_send_signal(fd, number)
        if number == signal.SIGKILL:
            cgroups.kill_all(container.cgroup)

    async def stop(self, container: Container, grace: float) -> None:
        """End the container in grace: its stop signal, time to finish, and only then the hard way."""
        if grace > 0:
            self.kill(container, container.stop_number)
            await self._wait(container, max(grace, _LEAST_GRACE))
        if not container.finished:
            self.kill(container, signal.SIGKILL)
            await self._wait(container, _KILL_PATIENCE)
        if not container.finished:
            text = "The container did not end when killed"
            container.fail(time.time(), UNKNOWN_EXIT, "ContainerStatusUnknown", text)

    async def _wait(self, container: Container, timeout: float) -> None:
        if not container.finished:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._finished.setdefault(container.id, asyncio.Event()).wait()

    async def retire(self, container: Container) -> None:
        """End the container if it still runs, and leave nothing of it but its record and its log."""
        self._unwatch(container.id)
        self.kill(container, signal.SIGKILL)
        if (self._layout.runtime / container.id).exists():
            with contextlib.suppress(RuntimeFailure):  # it may be half made; its directory goes below
                await self._runc("delete", "--force", container.id)
        await remove_group(container.cgroup)
        home = self.home(container)
        for path in (self._layout.runtime / container.id, home / "rootfs", home / "upper", home / "work"):
            mounts.remove_tree(path)
        (self._layout.exits / container.id).unlink(missing_ok=True)
        container.retired = True
        if home.is_dir():
            container.save(home)

    async def remove(self, container: Container) -> None:
        """Leave nothing of the container but its log."""
        if not container.retired:
            await self.retire(container)
        mounts.remove_tree(self.home(container))

    async def adopt(self) -> list[Container]:
        """The containers that an agent before this one left. Those that ended meanwhile are marked so."""
        adopted = []
        for path, container in records(self._layout.containers):
            if container is None or not (container.started or container.finished):
                kill_monitor(path)  # its agent was killed while it was being made; nothing of it counts
                if container is not None:
                    await self.retire(container)
                mounts.remove_tree(path)
                continue
            adopted.append(container)
            if not container.finished:
                self._watch(container)
            if container.finished:
                container.backoff = 0  # as with a kubelet that is new: nobody knows that it was its own fault
        return adopted

    async def exec(
        self, container: Container, argv: Sequence[str], *, tty: bool = False, **streams: Any
    ) -> asyncio.subprocess.Process:
        """Run a further process in the container, as its first one runs: same user, same rights."""
        config = orjson.loads((self.home(container) / "config.json").read_bytes())
        process = {**config["process"], "args": list(argv), "terminal": tty}
        process.pop("oomScoreAdj", None)
        if tty:
            process["env"] = [*(e for e in process["env"] if not e.startswith("TERM=")), "TERM=xterm"]
        description = os.memfd_create("process")
        try:
            os.write(description, orjson.dumps(process))
            return await asyncio.create_subprocess_exec(
                *(_RUNC, f"--root={self._layout.runtime}", "exec", *(["--tty"] if tty else [])),
                *("--process", f"/proc/self/fd/{description}", container.id),
                pass_fds=[description],
                start_new_session=True,
                **streams,
            )
        finally:
            os.close(description)

    async def run_in(self, container: Container, argv: Sequence[str], timeout: float) -> tuple[int, str]:
        """Exit code and output of a command in the container; TimeoutError ends it."""
        process = await self.exec(
            container,
            argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(timeout):
                output = await process.stdout.read(_MAX_OUTPUT)
                code = await process.wait()
        finally:
            if process.returncode is None:
                end_exec(process)
                await process.wait()
        return code, output.decode(errors="replace")

    def close(self) -> None:
        """Stop watching; the containers go on."""
        for container_id in list(self._watched):
            self._unwatch(container_id)

    def _watch(self, container: Container) -> None:
        with pidfd(container.monitor, container.monitor_start) as fd:
            watched = os.dup(fd) if fd is not None and container.boot == boot_id() else None
        if watched is None:
            self._monitor_ended(container)
        else:
            self._watched[container.id] = watched
            asyncio.get_running_loop().add_reader(watched, self._monitor_ended, container)

    def _unwatch(self, container_id: str) -> None:
        if (fd := self._watched.pop(container_id, None)) is not None:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)

    def _monitor_ended(self, container: Container) -> None:
        self._unwatch(container.id)
        exit_file = self._layout.exits / container.id
        if exit_file.exists():
            code = int(exit_file.read_text() or UNKNOWN_EXIT)
            oom = (self.home(container) / "oom").exists()
            reason = "OOMKilled" if oom else "Error" if code else "Completed"
            container.fail(exit_file.stat().st_mtime, code, reason, "")
        else:
            text = "The container's monitor was killed, so its exit code is not known"
            container.fail(time.time(), UNKNOWN_EXIT, "ContainerStatusUnknown", text)
            self.kill(container, signal.SIGKILL)
        try:
            container.save(self.home(container))
        except OSError as error:  # the next agent finds out anew
            log.warning("the end of container %s is not written down: %s", container.id, error)
        if waiting := self._finished.pop(container.id, None):
            waiting.set()
        self._ended(container)

    async def _runc(self, *arguments: str) -> None:
        try:
            await run(_RUNC, f"--root={self._layout.runtime}", *arguments)
        except CommandError as error:
            raise RuntimeFailure(last_word(str(error))) from None


def kill_monitor(path: Path) -> None:
    """End the conmon of the container in `path`. Its number may be another process's by now, so it is asked first."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((path / "monitor.pid").read_text())
        if path.name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def end_exec(process: asyncio.subprocess.Process) -> None:
    """End a process that was run in a container, then the runc that waits for it."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        for children in Path(f"/proc/{process.pid}/task").glob("*/children"):  # of each of its threads
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)
        process.kill()


async def remove_group(path: str) -> None:
    """Remove a control group once the kernel has let go of its last process."""
    for _ in range(100):
        if await asyncio.to_thread(cgroups.remove, path):
            return
        cgroups.kill_all(path)
        await asyncio.sleep(0.02)
    log.warning("control group %s cannot be removed yet", path)


# Nobody has the number, or a thread has, which kernels say in two ways.
_GONE = (errno.ESRCH, errno.EINVAL, errno.ENOENT)


@contextlib.contextmanager
def pidfd(pid: int, started: int) -> Iterator[int | None]:
    """A pidfd for a process that began at `started`; None when it is gone and the number perhaps somebody else's."""
    try:
        fd = os.pidfd_open(pid) if pid else None
    except OSError as error:
        if error.errno not in _GONE:
            raise
        fd = None
    try:
        yield fd if fd is not None and start_time(pid) == started else None
    finally:
        if fd is not None:
            os.close(fd)


def start_time(pid: int) -> int:
    """When a process began, in clock ticks since boot; with its number this names it for good. 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def memory() -> int:
    """Of the machine, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def last_word(complaint: str) -> str:
    """runc and skopeo log `time=... level=fatal msg="..."`; people want the message of the last line."""
    last = (complaint.strip().splitlines() or ["it failed and said nothing"])[-1]
    _, marked, message = last.partition('msg="')
    return message.rstrip('"').replace('\\"', '"') if marked else last
