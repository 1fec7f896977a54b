"""Keeps the processes of one local cluster running: the control plane and one agent per node.

Any of them may be killed at any moment; the supervisor starts it again, with a back-off that a quiet while resets.
It is deliberately tiny and uses the standard library alone, so that nothing it supervises can bring it down. If it is
killed itself, its children end with it (they hold no state that is not on disk; pods live on under conmon), and
`virtfleet up` starts everything again.

It is driven over a unix socket in the cluster's directory, one JSON object per line:
    {"op": "status"} | {"op": "run", "name": N, "argv": [...], "env": {...}} | {"op": "end", "name": N, "signal": 15}
    | {"op": "stop"}
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
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOCKET = "supervisor.sock"
FIRST_BACKOFF, LAST_BACKOFF = 0.1, 3.0
QUIET = 10.0  # a child that ran this long starts again without delay
PATIENCE = 15.0  # between asking a child to end and killing it
LOG_LIMIT = 16 << 20
PR_SET_PDEATHSIG = 1


@dataclass
class Child:
    """One supervised process. `wanted` is False while it is being ended for good."""

    name: str
    argv: list[str]
    env: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    restarts: int = 0
    backoff: float = FIRST_BACKOFF
    due: float = 0.0  # when to start it next, monotonic
    wanted: bool = True
    killed_at: float = 0.0  # when a SIGTERM turns into SIGKILL, monotonic; 0 = not asked
    waiting: list[socket.socket] = field(default_factory=list)  # clients that are told when it has ended

    def describe(self) -> dict[str, Any]:
        running = self.process is not None and self.process.poll() is None
        return {
            "name": self.name,
            "running": running,
            "ending": bool(self.killed_at),  # for good, or to be replaced
            "pid": self.process.pid if running and self.process else None,
            "restarts": self.restarts,
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

    def run(self) -> None:
        libc = ctypes.CDLL(None)
        self._die_with_parent = lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        wake_read, wake_write = socket.socketpair()
        for end in (wake_read, wake_write):
            end.setblocking(False)
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
                    self._ready(key)
                self._reap()
                self._start_due()
                self._kill_overdue()
        finally:
            path.unlink(missing_ok=True)
        for client in self.stoppers:
            self._answer(client, {"ok": True})

    def stop(self) -> None:
        self.stopping = True
        for child in list(self.children.values()):
            self._end(child, signal.SIGTERM)

    # One event of the loop.

    def _ready(self, key: selectors.SelectorKey) -> None:
        sock = key.fileobj
        assert isinstance(sock, socket.socket)
        if key.data == "signal":
            with contextlib.suppress(BlockingIOError):
                sock.recv(4096)
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
                child = self.children.get(name)
                if child is None:
                    self.children[name] = Child(name, argv, env)
                elif (child.argv, child.env) != (argv, env) or not child.wanted:
                    child.argv, child.env, child.wanted, child.due = argv, env, True, 0.0
                    if child.process is not None and not child.killed_at:
                        self._signal(child, signal.SIGTERM)
                return {"ok": True}
            case "end":
                child = self.children.get(request["name"])
                if child is None:
                    return {"ok": True}
                child.waiting.append(client)
                self._end(child, int(request.get("signal", signal.SIGTERM)))
                return None
            case "stop":
                self.stoppers.append(client)
                self.stop()
                return None
            case other:
                return {"error": f"the supervisor does not know {other!r}"}

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
        log = self.directory / "logs" / f"{child.name}.log"
        log.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if log.stat().st_size > LOG_LIMIT:
                log.replace(log.with_suffix(".log.1"))
        child.started, child.killed_at = time.monotonic(), 0.0
        with log.open("ab") as out:
            try:
                child.process = subprocess.Popen(
                    child.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **child.env},
                    start_new_session=True,
                    preexec_fn=self._die_with_parent,
                )
            except OSError as error:
                self._later(child, f"cannot be started: {error}")

    def _reap(self) -> None:
        for child in list(self.children.values()):
            if child.process is None or child.process.poll() is None:
                if child.process is None and not child.wanted:
                    self._forget(child)
                continue
            status, child.process = child.process.returncode, None
            if not child.wanted:
                self._forget(child)
                continue
            self._later(child, f"ended with {status}")

    def _later(self, child: Child, why: str) -> None:
        """Decide when a child that is not running starts again."""
        now = time.monotonic()
        replaced = bool(child.killed_at)  # ended on purpose, for another command
        if replaced or now - child.started > QUIET:
            child.backoff, child.due = FIRST_BACKOFF, now
        else:
            child.backoff, child.due = min(child.backoff * 2, LAST_BACKOFF), now + child.backoff
        child.restarts += not replaced
        sys.stderr.write(f"{child.name} {why} after {now - child.started:.1f} s; it starts again\n")

    def _forget(self, child: Child) -> None:
        del self.children[child.name]
        for client in child.waiting:
            self._answer(client, {"ok": True})

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

    def _pause(self) -> float | None:
        """Seconds until something is due by itself."""
        moments = [c.due for c in self.children.values() if c.process is None and c.wanted]
        moments += [c.killed_at for c in self.children.values() if c.process is not None and c.killed_at]
        return max(0.0, min(moments) - time.monotonic()) if moments else None


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
        client.sendall(json.dumps(request).encode() + b"\n")
        line = client.makefile("rb").readline()
    answer: dict[str, Any] = json.loads(line) if line else {"error": "the supervisor closed the connection"}
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer


def main() -> None:
    Supervisor(Path(sys.argv[1])).run()


if __name__ == "__main__":
    main()
