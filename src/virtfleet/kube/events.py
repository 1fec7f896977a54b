"""Events that people see in `kubectl describe`, without flooding the API server.

As client-go does it: an event that was seen before raises the count of the one that is there; more than ten events
within ten minutes that differ only in their message become one; and what a component may say of one object is limited
to 25 at once and then one in five minutes. Recording never fails and never waits: events are for people, and no
controller may stop over one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

from virtfleet.api.times import timestamp
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_not_found
from virtfleet.kube.resource import EVENTS, Obj
from virtfleet.work.pacing import Backoff, TokenBucket

logger = logging.getLogger(__name__)

REMEMBERED = 4096
SIMILAR = 10
SIMILAR_WITHIN = 600.0
SPAM_BURST = 25
SPAM_RATE = 1 / 300
BUFFER = 1000
ATTEMPTS = 12


@dataclass(frozen=True, slots=True)
class Reference:
    """The object that an event is about."""

    api_version: str
    kind: str
    namespace: str  # "" for objects without one
    name: str
    uid: str

    @classmethod
    def of(cls, obj: Obj) -> Self:
        meta = obj["metadata"]
        return cls(obj["apiVersion"], obj["kind"], meta.get("namespace", ""), meta["name"], meta.get("uid", ""))


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something that happened once."""

    about: Reference
    type: str
    reason: str
    message: str


@dataclass(slots=True)
class Series:
    """One Event object: what happened, how often, since when. A count of one means that it is still to be created."""

    name: str
    first: float
    count: int = 0
    last: float = field(init=False)
    message: str = field(init=False)


_V = TypeVar("_V")


class _Recent(OrderedDict[Hashable, _V], Generic[_V]):
    """The values used last, as many as are worth remembering."""

    def find(self, key: Hashable, make: Callable[[], _V]) -> _V:
        value = self.get(key)
        if value is None:
            value = self[key] = make()
            if len(self) > REMEMBERED:
                self.popitem(last=False)
        self.move_to_end(key)
        return value


@dataclass(slots=True)
class _Similar:
    last: float
    messages: set[str] = field(default_factory=set)


class Correlator:
    """Decides what becomes of an occurrence. Pure but for its memory; times come from outside."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._series: _Recent[Series] = _Recent()
        self._similar: _Recent[_Similar] = _Recent()
        self._budgets: _Recent[TokenBucket] = _Recent()

    def correlate(self, occurrence: Occurrence) -> Series | None:
        """The Event to write now, or None if its object's budget is spent."""
        now = self._clock()
        about, message = occurrence.about, occurrence.message
        group = (about, occurrence.type, occurrence.reason)
        key: Hashable = (*group, message)
        similar = self._similar.find(group, lambda: _Similar(now))
        if now - similar.last > SIMILAR_WITHIN:
            similar.messages.clear()
        similar.last = now
        if message in similar.messages or len(similar.messages) < SIMILAR:
            similar.messages.add(message)
        else:
            key, message = group, f"(combined from similar events): {message}"
        series = self._series.find(key, lambda: Series(f"{about.name}.{int(now * 1e9):x}", now))
        series.count += 1
        series.last, series.message = now, message
        budget = self._budgets.find(
            (about, occurrence.type), lambda: TokenBucket(SPAM_RATE, SPAM_BURST, clock=self._clock)
        )
        return series if budget.take() else None


class Recorder:
    """`run()` it as a task; `normal` and `warning` may be called at any time, also before and after that.

    `component` and `host` say who speaks, as in `virt-handler, node01`.
    """

    def __init__(self, api: KubeApi, component: str, host: str = "") -> None:
        self._api = api
        self._component = component
        self._host = host
        self._correlator = Correlator()
        self._waiting: asyncio.Queue[Occurrence] = asyncio.Queue(BUFFER)
        self._dropped = 0

    def normal(self, about: Reference, reason: str, message: str) -> None:
        self._record(Occurrence(about, "Normal", reason, message))

    def warning(self, about: Reference, reason: str, message: str) -> None:
        self._record(Occurrence(about, "Warning", reason, message))

    def _record(self, occurrence: Occurrence) -> None:
        try:
            self._waiting.put_nowait(occurrence)
        except asyncio.QueueFull:
            self._dropped += 1

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            occurrence = await self._waiting.get()
            if self._dropped and self._waiting.empty():  # once, when the rush is over
                logger.warning("dropped %d events: they came faster than they could be written", self._dropped)
                self._dropped = 0
            series = self._correlator.correlate(occurrence)
            if series:
                await self._write(occurrence, series)

    async def _write(self, occurrence: Occurrence, series: Series) -> None:
        backoff = Backoff(0.5, 10.0)
        for _ in range(ATTEMPTS):
            try:
                return await self._send(occurrence, series)
            except ApiError as error:
                if error.code not in (429, 503, 504):
                    # Something about the event is wrong, or its namespace is going away: it will not get better.
                    logger.info("event %s of %s is refused: %s", occurrence.reason, occurrence.about, error.message)
                    return
                await asyncio.sleep(backoff.next())
        logger.warning("event %s of %s is lost: the API server is away", occurrence.reason, occurrence.about)

    async def _send(self, occurrence: Occurrence, series: Series) -> None:
        namespace = occurrence.about.namespace or "default"
        if series.count > 1:
            news = {"count": series.count, "lastTimestamp": timestamp(series.last), "message": series.message}
            with ignoring(is_not_found):  # where it has expired: it is begun anew
                await self._api.patch(EVENTS, series.name, news, namespace)
                return
        with ignoring(is_already_exists):  # from an earlier attempt whose answer was lost
            await self._api.create(EVENTS, self._event(occurrence, series, namespace))

    def _event(self, occurrence: Occurrence, series: Series, namespace: str) -> Obj:
        about = occurrence.about
        reference = {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        }
        return EVENTS.object(
            {"name": series.name, "namespace": namespace},
            involvedObject={key: value for key, value in reference.items() if value},
            type=occurrence.type,
            reason=occurrence.reason,
            message=series.message,
            source={"component": self._component, "host": self._host},
            reportingComponent=self._component,
            reportingInstance=self._host,
            firstTimestamp=timestamp(series.first),
            lastTimestamp=timestamp(series.last),
            count=series.count,
        )
