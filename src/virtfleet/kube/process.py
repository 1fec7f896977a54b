"""What every VirtFleet process does at its edges: log as JSON, and end cleanly when told to.

SIGTERM and SIGINT cancel the main task, so that whatever it entered is left in order: caches stop, workers finish their
cancellation, leases are released. A second signal ends the process at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import orjson

from virtfleet.work.tasks import held

logger = logging.getLogger(__name__)
ABOUT = "about"
"""What a log record is about: kind, name, namespace, uid."""


class JsonFormatter(logging.Formatter):
    """One JSON object per line, in KubeVirt's keys and their order; `extra=` fields appear beside the message.

    Those of `extra={ABOUT: ...}` do so by their own names, also where Python has another use for one (`name`).
    """

    _OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", ABOUT}

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "component": self._component,
            "msg": record.getMessage(),
            "pos": f"{record.name}:{record.lineno}",
        }
        line |= getattr(record, ABOUT, {})
        line |= {key: value for key, value in vars(record).items() if key not in self._OWN}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS).decode()


def log_as_json(component: str, level: int | str = logging.INFO) -> None:
    """Every log record of this process as a line of JSON on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(component))
    logging.basicConfig(level=level, handlers=[handler], force=True)


def run(main: Coroutine[Any, Any, None], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> int:
    """Run `main` until it returns or a signal ends it; the answer is the exit code.

    Being told to stop is a success. An exception is logged and gives 1. The event loop is uvloop's unless another
    one is given.
    """
    if loop_factory is None:
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_until_signal(main))


def spawning_loop() -> asyncio.AbstractEventLoop:
    """The event loop for processes that start commands, above all beside gRPC: asyncio's own, which does so by vfork.

    uvloop forks. That copies the whole process while all else waits (4 to 10 ms), and runs gRPC's fork handlers, which
    now and then abort the child before it has become the command.
    """
    loop = asyncio.new_event_loop()
    if sys.version_info < (3, 12):  # later ones do so by themselves
        watcher = asyncio.PidfdChildWatcher()  # no thread per command
        watcher.attach_loop(loop)
        asyncio.set_child_watcher(watcher)
    return loop


async def _until_signal(main: Coroutine[Any, Any, None]) -> int:
    loop = asyncio.get_running_loop()
    task = held(main, "main")
    stopping = False

    def stop(number: signal.Signals) -> None:
        nonlocal stopping
        if stopping:
            logger.warning("%s again: ending at once", number.name)
            os._exit(128 + number)
        stopping = True
        logger.info("%s: stopping", number.name)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await asyncio.wait((task,))
        if task.cancelled():
            return 0 if stopping else 1
        if error := task.exception():
            logger.error("%s", error, exc_info=error)
            return 1
        return 0
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
