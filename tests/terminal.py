"""A command in a terminal, as somebody sits before it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

PATIENCE = 100.0  # an emulated guest on a machine that has other things to do


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._side, other = pty.openpty()
        self._process = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env=environment, start_new_session=True
        )
        os.close(other)
        self.shown = ""
        self._read = 0

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def says(self, pattern: str, *, nudge: str = "") -> None:
        """Wait for something new on the screen; `nudge` is typed now and then meanwhile."""
        deadline = time.monotonic() + PATIENCE
        while not (found := re.compile(pattern).search(self.shown, self._read)):
            ended = self._process.poll() is not None
            silent = not self._receive(1.0)
            assert not (silent and ended) and time.monotonic() < deadline, f"no {pattern!r} in {self.shown!r}"
            if silent and nudge:
                self.type(nudge)
        self._read = found.end()

    def interrupt(self) -> None:
        """^C: what is typed is no signal, because the terminal controls nobody."""
        self._process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        """The exit code, when the screen shows all."""
        code = self._process.wait(30)
        while self._receive(0):
            pass
        return code

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._side)

    def _receive(self, seconds: float) -> bool:
        if not select.select([self._side], [], [], seconds)[0]:
            return False
        try:
            self.shown += os.read(self._side, 65536).decode(errors="replace")
        except OSError:  # nobody has the other side open any more
            assert self._process.wait(10) is not None
            return False
        return True
