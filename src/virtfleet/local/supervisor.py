"""Keeps the processes of one local cluster running: the control plane and one agent per node.

Any of them may be killed at any moment; the supervisor starts it again, with a back-off that a quiet while resets. One
that was promised to give signs of life (`signsoflife`) and is silent for too long, because it is frozen or hangs, is
killed first. The supervisor is deliberately tiny and uses the standard library alone, so that nothing it supervises can
bring it down, nor a disk that is full, broken or read-only: it writes nothing that it depends on. If it is killed
itself, its children end with it (they hold no state that is not on disk; pods live on under conmon), and `virtfleet up`
starts everything again.

It is driven over a unix socket in the cluster's directory, one JSON object per line:
    {"op": "status"} | {"op": "run", "name": N, "argv": [...], "env": {...}, "silence": 30}
    | {"op": "end", "name": N, "signal": 15} | {"op": "stop"}
`run` is idempotent: a child of that name with the same command stays; with another command it is replaced. Children are
remembered only here: `virtfleet up` says anew what should run.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

SOCKET = "supervisor.sock"
FIRST_BACKOFF, LAST_BACKOFF = 0.1, 3.0
QUIET = 10.0  # a child that ran this long starts again without delay
PATIENCE = 15.0  # between asking a child to end and killing it
STARTUP = 120.0  # a child that reads a large store has this long for its first sign of life
TICK = 5.0  # the longest between two looks at everything
LOG_LIMIT = 16 << 20
ALIVE_FD = "VIRTFLEET_ALIVE_FD"
LAST_WORDS = b"!"  # among signs of life: why the child ends follows
PR_SET_PDEATHSIG = 1


@dataclass
class Child:
    """One supervised process. `wanted` is False while it is being ended for good. Moments are monotonic."""

    name: str
    argv: list[str]
    env: dict[str, str]
    silence: float = 0.0  # seconds that it may give no sign of life; 0 = it gives none
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    restarts: int = 0
    backoff: float = FIRST_BACKOFF
    due: float = 0.0  # when to start it next
    silent_at: float = 0.0  # when its silence has lasted too long
    words: str = ""  # its last ones
    hung: bool = False  # it was silent for too long and is being killed
    reason: str = ""  # why it was started again the last time
    wanted: bool = True
    killed_at: float = 0.0  # when a SIGTERM turns into SIGKILL; 0 = not asked
    waiting: list[socket.socket] = field(default_factory=list)  # clients that are told when it has ended

    def describe(self) -> dict[str, Any]:
        running = self.process is not None and self.process.poll() is None
        return {
            "name": self.name,
            "running": running,
            "ending": bool(self.killed_at),  # for good, or to be replaced
            "pid": self.process.pid if running and self.process else None,
            "restarts": self.restarts,
            "reason": self.reason,
            "seconds": round(time.monotonic() - self.started, 1) if running else 0,
        }


class Supervisor:
    """One loop over a socket and the signals of ended children; no threads."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.children: dict[str, Child] = {}
        self.stopping = False
        self.stoppers: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        self._looked = time.monotonic()

    def run(self) -> None:
        libc = ctypes.CDLL(None)
        self._die_with_parent = lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # also a frozen one
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for stop in (signal.SIGTERM, signal.SIGINT):
            signal.signal(stop, lambda *_: self.stop())
        # The lock, not the socket, says who supervises: a socket's file outlives a process that was killed.
        lock = os.open(self.directory / "supervisor.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another supervisor runs in {self.directory}") from None
        path = self.directory / SOCKET
        path.unlink(missing_ok=True)
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        os.chmod(path, 0o600)
        server.listen(16)
        self._selector.register(server, selectors.EVENT_READ, "accept")
        self._selector.register(wake_read, selectors.EVENT_READ, "signal")
        try:
            while not (self.stopping and not self.children):
                for key, _ in self._selector.select(self._pause()):
                    self._surely(self._ready, key)
                for step in (self._reap, self._start_due, self._kill_silent, self._kill_overdue, self._bound_logs):
                    self._surely(step)
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        for client in self.stoppers:
            self._answer(client, {"ok": True})

    def stop(self) -> None:
        self.stopping = True
        for child in list(self.children.values()):
            self._end(child, signal.SIGTERM)

    def _surely(self, step: Callable[..., None], *arguments: Any) -> None:
        """Whatever goes wrong in one step must not take the cluster with it."""
        try:
            step(*arguments)
        except Exception as error:
            self._say(f"{step.__name__}: {error!r}")
            time.sleep(FIRST_BACKOFF)  # it may go wrong again at once

    def _say(self, text: str) -> None:
        """A line in the log, where there is room for it."""
        with contextlib.suppress(OSError):
            os.write(2, f"{text}\n".encode())

    # One event of the loop.

    def _ready(self, key: selectors.SelectorKey) -> None:
        sock = key.fileobj
        assert isinstance(sock, socket.socket)
        if key.data == "signal":
            with contextlib.suppress(BlockingIOError):
                sock.recv(4096)
        elif isinstance(key.data, Child):
            self._hear(key.data, sock)
        elif key.data == "accept":
            client, _ = sock.accept()
            client.settimeout(1.0)
            self._selector.register(client, selectors.EVENT_READ, "request")
        else:
            self._selector.unregister(sock)
            try:
                line = sock.makefile("rb").readline()
                if not line:
                    sock.close()
                    return
                answer = self._obey(json.loads(line), sock)
            except (OSError, ValueError, KeyError, TypeError) as error:
                answer = {"error": f"the supervisor cannot do that: {error!r}"}
            if answer is not None:
                self._answer(sock, answer)

    def _obey(self, request: dict[str, Any], client: socket.socket) -> dict[str, Any] | None:
        """Carry out one request. None: the answer comes later, when a process has ended."""
        match request["op"]:
            case "status":
                return {"pid": os.getpid(), "children": [c.describe() for c in self.children.values()]}
            case "run":
                if self.stopping:
                    return {"error": "the cluster is stopping"}
                name, argv, env = request["name"], list(request["argv"]), dict(request.get("env") or {})
                silence = float(request.get("silence") or 0)
                child = self.children.get(name)
                if child is None:
                    self.children[name] = Child(name, argv, env, silence)
                elif (child.argv, child.env) != (argv, env) or not child.wanted:
                    child.argv, child.env, child.silence, child.wanted, child.due = argv, env, silence, True, 0.0
                    if child.process is not None and not child.killed_at:
                        self._signal(child, signal.SIGTERM)
                return {"ok": True}
            case "end":
                if (child := self.children.get(request["name"])) is None:
                    return {"ok": True}
                child.waiting.append(client)
                self._end(child, int(request.get("signal", signal.SIGTERM)))
                return None
            case "stop":
                self.stoppers.append(client)
                self.stop()
                return None
        return {"error": f"the supervisor does not know {request['op']!r}"}

    def _answer(self, client: socket.socket, answer: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            client.sendall(json.dumps(answer).encode() + b"\n")
        client.close()

    # Children.

    def _start_due(self) -> None:
        now = time.monotonic()
        for child in self.children.values():
            if child.process is None and child.wanted and child.due <= now:
                self._start(child)

    def _start(self, child: Child) -> None:
        now = time.monotonic()
        child.started, child.killed_at, child.silent_at = now, 0.0, now + STARTUP
        child.hung, child.words = False, ""
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._log_of(child) as out:
                child.process = subprocess.Popen(
                    child.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **child.env, ALIVE_FD: str(theirs.fileno())},
                    start_new_session=True,
                    preexec_fn=self._die_with_parent,
                    pass_fds=[theirs.fileno()],
                )
        except (OSError, subprocess.SubprocessError) as error:
            ours.close()
            self._later(child, f"cannot be started: {error}")
            return
        ours.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ, child)

    def _log_of(self, child: Child) -> BinaryIO:
        """Where a child writes to. One that nobody can write down runs all the same."""
        log = self.directory / "logs" / f"{child.name}.log"
        try:
            log.parent.mkdir(exist_ok=True)
            return log.open("ab")
        except OSError as error:
            self._say(f"the log of {child.name} is lost: {error}")
            return open(os.devnull, "ab")

    def _bound_logs(self) -> None:
        """Keep what a log has, and begin it anew in place: its process goes on writing to the same file.

        Where there is no room for the copy, there is none for the log to grow either.
        """
        for log in (self.directory / "logs").glob("*.log"):
            if log.is_file() and log.stat().st_size > LOG_LIMIT:
                with log.open("r+b") as file, log.with_suffix(".log.1").open("wb") as copy:
                    shutil.copyfileobj(file, copy)
                    file.truncate(0)

    def _hear(self, child: Child, sock: socket.socket) -> None:
        """A sign of life. Nothing at all is the end of the process that had the other side."""
        try:
            heard = sock.recv(4096)
        except ConnectionError:
            heard = b""
        if heard:
            child.silent_at = time.monotonic() + child.silence
            child.words = heard.partition(LAST_WORDS)[2].decode(errors="replace") or child.words
        else:
            self._selector.unregister(sock)
            sock.close()

    def _kill_silent(self) -> None:
        now = time.monotonic()
        frozen, self._looked = now - self._looked > 2 * TICK, now
        for child in self.children.values():
            if not child.silence or child.process is None or child.killed_at:
                continue
            if frozen:  # the supervisor itself, or the whole machine: nobody could be heard
                child.silent_at = max(child.silent_at, now + child.silence)
            elif child.silent_at <= now:
                child.hung, child.silent_at = True, now + child.silence
                child.process.kill()

    def _reap(self) -> None:
        for child in list(self.children.values()):
            if child.process is not None and child.process.poll() is not None:
                status, child.process = child.process.returncode, None
                if child.wanted:
                    silent = f"gave no sign of life for {child.silence:.0f} s and was killed"
                    ended = f"ended with {status}" + (f": {child.words}" if child.words else "")
                    self._later(child, silent if child.hung else ended)
            if child.process is None and not child.wanted:
                del self.children[child.name]
                for client in child.waiting:
                    self._answer(client, {"ok": True})

    def _later(self, child: Child, why: str) -> None:
        """Decide when a child that is not running starts again."""
        now = time.monotonic()
        replaced = bool(child.killed_at)  # ended on purpose, for another command
        if replaced or now - child.started > QUIET:
            child.backoff, child.due = FIRST_BACKOFF, now
        else:
            child.backoff, child.due = min(child.backoff * 2, LAST_BACKOFF), now + child.backoff
        child.restarts += not replaced
        child.reason = "" if replaced else why
        self._say(f"{child.name} {why} after {now - child.started:.1f} s; it starts again")

    def _end(self, child: Child, signum: int) -> None:
        child.wanted = False
        if child.process is not None:
            self._signal(child, signum)

    def _signal(self, child: Child, signum: int) -> None:
        assert child.process is not None
        child.process.send_signal(signum)
        child.killed_at = child.killed_at or time.monotonic() + PATIENCE

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for child in self.children.values():
            if child.process is not None and child.killed_at and child.killed_at <= now:
                child.process.kill()

    def _pause(self) -> float:
        """Seconds until something is due by itself."""
        moments = [c.due for c in self.children.values() if c.process is None and c.wanted]
        moments += [c.killed_at for c in self.children.values() if c.process is not None and c.killed_at]
        moments += [c.silent_at for c in self.children.values() if c.process is not None and c.silence]
        return min(TICK, max(0.01, min(moments) - time.monotonic())) if moments else TICK


class NotRunning(Exception):
    """No supervisor answers in that directory."""


def ask(directory: Path, timeout: float = 30.0, **request: Any) -> dict[str, Any]:
    """Send one request to the supervisor of the cluster in `directory`."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(timeout)
        try:
            client.connect(str(directory / SOCKET))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NotRunning(f"no cluster runs in {directory}") from error
        try:
            client.sendall(json.dumps(request).encode() + b"\n")
            line = client.makefile("rb").readline()
        except TimeoutError:
            raise RuntimeError(f"the supervisor of {directory} does not answer within {timeout:.0f} s") from None
    answer: dict[str, Any] = json.loads(line) if line else {"error": "the supervisor closed the connection"}
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer


def main() -> None:
    try:
        Supervisor(Path(sys.argv[1])).run()
    except OSError as error:
        raise SystemExit(f"the supervisor cannot run: {error}") from None


if __name__ == "__main__":
    main()
