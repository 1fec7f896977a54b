"""A container's last words, for its status."""

from __future__ import annotations

import contextlib
from pathlib import Path

from virtfleet.kube.resource import Obj
from virtfleet.local.node.assembly import termination_path
from virtfleet.local.node.containers import Container
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.logfiles import tail_text

_LIMIT = 4096
_LOG_LIMIT, _LOG_LINES = 2048, 80


def termination_message(layout: Layout, container: Obj, run: Container) -> str:
    """What the container wrote to its file; where that is empty and the policy says so, the end of its log."""
    written = ""
    with contextlib.suppress(OSError), open(termination_path(layout, run), "rb") as file:
        written = file.read(_LIMIT).decode(errors="replace")
    if not written and run.exit_code and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
        return tail_text(Path(run.log), _LOG_LINES, _LOG_LIMIT)
    return written
