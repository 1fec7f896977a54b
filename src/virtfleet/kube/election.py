"""Leader election on a Lease, with the protocol of client-go so that both kinds of candidates can stand.

Whoever's name is in the Lease leads, as long as the Lease keeps changing. No clock is compared with another machine's:
a candidate takes over when it has *seen* no change for the lease's duration by its own clock. The leader counts from
before it sent its last successful renewal and stops `renew_deadline` after that, which is earlier than any other
candidate can begin to count, so at no time two of them believe that they lead. `leading` is computed from the clock: it
is False at once in a process that was stopped for too long, before that process has done anything else.

Who waits watches the Lease instead of asking for it: a Lease that is released is taken at once, one whose leader was
killed at the end of its duration, and until then the API server is asked nothing. A watch may be late or broken without
a word, so it only says when to look; a claim always begins with a look of its own.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import orjson

from virtfleet.api.times import precise_now
from virtfleet.kube.api import KubeApi, WatchEvent
from virtfleet.kube.cache import WATCH_TIME
from virtfleet.kube.errors import ApiError, ignoring, is_conflict, is_not_found
from virtfleet.kube.resource import LEASES, Obj
from virtfleet.work.tasks import held

logger = logging.getLogger(__name__)

_FAREWELL = 5.0  # seconds for giving a lease back; it expires soon enough by itself


class LeadershipLost(Exception):
    """The lease could not be renewed in time, or somebody else has it."""


class Election:
    """One candidate. `identity` must be unique among candidates: the pod's name does.

    A leader renews every `renew_period`; what failed, and what lost against another, is tried again after
    `retry_period`.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        namespace: str,
        name: str,
        identity: str,
        lease_duration: float = 15.0,
        renew_deadline: float = 12.0,
        renew_period: float = 6.0,
        retry_period: float = 2.0,
    ) -> None:
        if not lease_duration > renew_deadline > renew_period >= retry_period > 0:
            raise ValueError(
                "lease_duration must be longer than renew_deadline, that longer than renew_period, "
                "and that at least retry_period"
            )
        self.identity = identity
        self._api = api
        self._namespace = namespace
        self._name = name
        self._lease_duration = lease_duration
        self._renew_deadline = renew_deadline
        self._renew_period = renew_period
        self._retry_period = retry_period
        self._lease: Obj | None = None  # our own last write; None when it must be looked up first
        self._spec: Obj = {}  # what was last seen in the lease
        self._version = ""  # and which version of it that was
        self._seen = 0.0  # when that was new, by our clock
        self._renewed: float | None = None  # when our last successful claim was sent; None when we do not lead

    @property
    def leading(self) -> bool:
        return self._renewed is not None and _now() < self._renewed + self._renew_deadline

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for leadership, then run `lead`.

        `lead` is cancelled when leadership is lost, and LeadershipLost raised when it has ended: the process should end
        too. When `lead` returns or raises, or this is cancelled, the lease is kept until `lead` has ended and then
        released.
        """
        await self._acquire()
        logger.info("%s leads %s/%s", self.identity, self._namespace, self._name)
        work = held(lead(), "leading")
        renewal = held(self._keep(), "lease")
        try:
            await asyncio.wait((work, renewal), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait((work,))
            lost = renewal.done()
            renewal.cancel()
            await asyncio.wait((renewal,))
            self._renewed = None
            if not lost:
                await self._release()
        if not work.cancelled():
            work.result()
        if lost:
            raise LeadershipLost(f"{self.identity} no longer holds the lease {self._namespace}/{self._name}")

    async def _acquire(self) -> None:
        while not await self._claim(self._renew_deadline):
            if self._left() > 0:
                await self._until_free()
            else:
                await self._pause()

    async def _until_free(self) -> None:
        """Follow the lease until it is released or has expired, or it cannot be followed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._left()) as limit:
                try:
                    async with self._api.watch(
                        LEASES,
                        self._namespace,
                        fields=f"metadata.name={self._name}",
                        resource_version=self._version,
                        timeout=random.uniform(*WATCH_TIME),
                    ) as events:
                        async for event in events:
                            self._follow(event)
                            if not self._left():
                                return
                            limit.reschedule(asyncio.get_running_loop().time() + self._left())
                except ApiError as error:
                    logger.info("lease %s/%s cannot be watched: %s", self._namespace, self._name, error.message)
                await self._pause()

    async def _pause(self) -> None:
        # Candidates that started together must not go on asking together.
        await asyncio.sleep(self._retry_period * random.uniform(1.0, 2.2))

    async def _keep(self) -> None:
        """Renew as long as that works; returns when leadership is lost."""
        due = self._renew_period  # seconds after the last claim was sent, which may have been long before its answer
        while self._renewed is not None:
            left = self._renewed + self._renew_deadline - _now()
            if left <= 0:
                return
            await asyncio.sleep(max(0.0, min(self._renewed + due - _now(), left)))
            renewed = await self._claim(max(0.0, self._renewed + self._renew_deadline - _now()))
            if self._renewed is not None:
                due = self._renew_period if renewed else _now() - self._renewed + self._retry_period

    async def _claim(self, limit: float) -> bool:
        """Take or renew the lease once, within `limit` seconds."""
        sent = _now()
        # Whatever happens to this claim on its way, what we know of the lease is old until it is answered.
        lease, self._lease = self._lease, None
        try:
            async with asyncio.timeout(limit):
                lease = lease or await self._look()
                if lease and self._left() > 0:
                    self._renewed = None
                    return False
                if lease:
                    claimed = await self._api.replace(LEASES, {**lease, "spec": self._claimed(lease["spec"])})
                else:
                    meta = {"name": self._name, "namespace": self._namespace}
                    first = LEASES.object(meta, spec=self._claimed({"leaseTransitions": -1}))
                    claimed = await self._api.create(LEASES, first)
        except (ApiError, TimeoutError) as error:
            logger.info("lease %s/%s: %s", self._namespace, self._name, str(error) or "no answer in time")
            return False
        self._see(claimed)
        self._lease, self._renewed = claimed, sent
        return True

    async def _release(self) -> None:
        """Let the next candidate take over at once instead of after the lease's duration."""
        try:
            async with asyncio.timeout(min(self._renew_deadline, _FAREWELL)):
                while (lease := await self._look()) and lease["spec"].get("holderIdentity") == self.identity:
                    free = {
                        **lease["spec"],
                        "holderIdentity": "",
                        "leaseDurationSeconds": 1,
                        "renewTime": precise_now(),
                    }
                    with ignoring(is_conflict):  # with a renewal of ours that was still on its way
                        await self._api.replace(LEASES, {**lease, "spec": free})
        except (ApiError, TimeoutError) as error:
            logger.warning("lease %s/%s is left to expire: %s", self._namespace, self._name, str(error) or "no answer")

    async def _look(self) -> Obj | None:
        with ignoring(is_not_found):
            lease = await self._api.get(LEASES, self._name, self._namespace)
            lease.setdefault("spec", {})
            self._see(lease)
            return lease
        self._spec = {}
        return None

    def _follow(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            self._spec = {}
        elif event.type != "BOOKMARK":
            self._see(orjson.loads(event.object))

    def _see(self, lease: Obj) -> None:
        self._version = lease["metadata"]["resourceVersion"]
        if lease.get("spec", {}) != self._spec:
            self._spec, self._seen = lease.get("spec", {}), _now()

    def _left(self) -> float:
        """The seconds for which the lease that was last seen is another's."""
        if self._spec.get("holderIdentity") in (None, "", self.identity):
            return 0.0
        duration = self._spec.get("leaseDurationSeconds") or self._lease_duration
        return max(0.0, self._seen + duration - _now())

    def _claimed(self, spec: Obj) -> Obj:
        now = precise_now()
        claim = {
            **spec,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(self._lease_duration),
            "renewTime": now,
        }
        if spec.get("holderIdentity") != self.identity:
            claim |= {"acquireTime": now, "leaseTransitions": spec.get("leaseTransitions", 0) + 1}
        return claim


def _now() -> float:
    """A clock that also counts while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
