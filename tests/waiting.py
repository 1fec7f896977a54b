"""Waiting in tests: for a condition, with a deadline, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def pause(took: float) -> float:
    """Until the next look, by what the last one took: whoever looks all the time slows down what it waits for."""
    return max(0.05, min(8 * took, 0.25), took)


def eventually(condition: Callable[[], T | None], deadline: float = 30.0) -> T:
    """The first truthy value of `condition`; the last exception or value is shown if it never comes."""
    end = time.monotonic() + deadline
    last: object = None
    while (began := time.monotonic()) < end:
        try:
            last = value = condition()
            if value:
                return value
        except Exception as error:
            last = error
        time.sleep(pause(time.monotonic() - began))
    raise AssertionError(f"did not come true within {deadline} s; last: {last!r}")
