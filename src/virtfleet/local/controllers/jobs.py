"""Jobs: pods that run until enough of them have succeeded, or too many have failed.

A pod stays, by a finalizer, until it has been counted. Which pods are counted and still held is written together with
the counts, so that each counts once, whoever dies in between. A pod that somebody deletes has failed; one that the job
itself has no use for is let go first, and does not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from virtfleet.api import conditions
from virtfleet.api.times import seconds, timestamp
from virtfleet.kube.controller import Controller
from virtfleet.kube.resource import JOBS, Obj
from virtfleet.local.controllers.caches import BURST, Caches, PodControl, about
from virtfleet.local.controllers.pods import JOB_TRACKING, Pod, owners_of, pod_from_template
from virtfleet.local.controllers.replicaset import deletion_order
from virtfleet.work.tasks import all_of

FIRST_RETRY, LAST_RETRY = 10.0, 600.0  # seconds after a failure; doubled with each


def counted(status: Obj, pods: Iterable[Pod]) -> Obj:
    """What the status counts once these pods have been looked at."""
    held: dict[str, list[str]] = {"succeeded": [], "failed": []}
    counts = {kind: status.get(kind, 0) for kind in held}
    known = status.get("uncountedTerminatedPods") or {}
    for pod in pods:
        ended = "succeeded" if pod.phase == "Succeeded" else "failed"
        if pod.tracked and (pod.terminal or pod.deleting is not None):
            counts[ended] += not any(pod.uid in known.get(kind, ()) for kind in held)
            held[ended].append(pod.uid)
    return {**counts, "uncountedTerminatedPods": {kind: uids for kind, uids in held.items() if uids}}


def verdict(spec: Obj, status: Obj, active: list[Pod], now: float) -> tuple[str, str, str] | None:
    """How the job has ended: a condition, its reason, and a message; None while it goes on."""
    succeeded, limit, deadline = status.get("succeeded", 0), spec["backoffLimit"], spec.get("activeDeadlineSeconds")
    restarts = sum(pod.restarts for pod in active) if spec["template"]["spec"]["restartPolicy"] == "OnFailure" else 0
    if status.get("failed", 0) > limit or (restarts and restarts >= limit):
        return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    if deadline is not None and seconds(status["startTime"]) + deadline <= now:
        return "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
    wanted = spec.get("completions")
    if succeeded >= wanted if wanted is not None else succeeded and not active:
        return "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
    return None


def wanted_now(spec: Obj, status: Obj, active: int) -> int:
    """How many pods there should be."""
    if spec.get("completions") is None:
        return active if status.get("succeeded") else int(spec["parallelism"])
    return min(int(spec["parallelism"]), int(spec["completions"]) - int(status.get("succeeded", 0)))


class Jobs:
    """The controller."""

    def __init__(self, caches: Caches) -> None:
        self._jobs, self._pods = caches.jobs, caches.pods
        self._control = PodControl(caches, "job-controller", JOBS)
        self._due: dict[str, float] = {}  # by the job's uid: when the next pod may follow one that failed
        self.controller = Controller("job", self.reconcile, workers=2)
        self.controller.follow(self._jobs)
        self.controller.follow(self._pods, owners_of("Job"))

    async def reconcile(self, key: str) -> float | None:
        """Count what has ended, start what is missing, say how it stands."""
        job = self._jobs.get(key)
        uid = job["metadata"]["uid"] if job and "deletionTimestamp" not in job["metadata"] else ""
        pods = self._pods.by_index("job", key)
        await self._let_go(pod for pod in pods if pod.owner_uid != uid)
        if not job or not uid:
            return None
        return await self._go_on(key, job, [pod for pod in pods if pod.owner_uid == uid])

    async def _go_on(self, key: str, job: Obj, mine: list[Pod]) -> float | None:
        spec, status, now = job["spec"], dict(job.get("status") or {}), time.time()
        listed = status.get("conditions") or []
        if ended := next((c for c in listed if c["type"] in ("Complete", "Failed") and c["status"] == "True"), None):
            await self._let_go(mine)
            return await self._expired(key, job, seconds(ended["lastTransitionTime"]), now)
        status |= counted(status, mine)
        if status["failed"] > (job.get("status") or {}).get("failed", 0):
            self._due[job["metadata"]["uid"]] = now + min(FIRST_RETRY * 2 ** (status["failed"] - 1), LAST_RETRY)
        active = [pod for pod in mine if pod.active]
        status.setdefault("startTime", timestamp(now))
        end = verdict(spec, status, active, now)
        if end:
            listed = self._end(job, listed, end, now)
            status |= {"completionTime": timestamp(now)} if end[0] == "Complete" else {}
        missing = (0 if end else wanted_now(spec, status, len(active))) - len(active)
        if missing < 0:
            doomed = deletion_order(active)[:-missing]
            await self._let_go(doomed)
            await self._control.delete(job, doomed)
        wait = self._due.get(job["metadata"]["uid"], 0.0) - now
        if missing > 0 and wait <= 0:
            pod = pod_from_template(spec["template"], job, JOBS)
            pod["metadata"]["finalizers"] = [*pod["metadata"].get("finalizers", ()), JOB_TRACKING]
            await self._control.create(job, [pod] * min(missing, BURST))
        active = [pod for pod in self._pods.by_index("owner", job["metadata"]["uid"]) if pod.active]
        leaving = sum(pod.deleting is not None and not pod.terminal for pod in mine)
        status |= {"active": len(active), "ready": sum(pod.ready for pod in active), "terminating": leaving}
        status |= {"conditions": listed} if listed else {}
        status = {k: v for k, v in status.items() if v != 0 or k in ("ready", "terminating")}
        if status != job.get("status"):
            # Not if anybody else has written the job meanwhile: a count must not be lost.
            await self._jobs.replace({**job, "status": status}, subresource="status")
        await self._let_go(pod for pod in mine if not pod.active)
        return _next(spec, status, wait if missing > 0 else 0.0, now)

    def _end(self, job: Obj, listed: list[Obj], end: tuple[str, str, str], now: float) -> list[Obj]:
        kind, reason, message = end
        if kind == "Complete":
            first = "SuccessCriteriaMet"
            self._control.recorder.normal(about(job, JOBS), "Completed", "Job completed")
        else:
            first = "FailureTarget"
            self._control.recorder.warning(about(job, JOBS), reason, message)
        for each in (first, kind):
            listed = conditions.put(listed, each, "True", now, reason=reason, message=message)
        return listed

    async def _expired(self, key: str, job: Obj, ended: float, now: float) -> float | None:
        self._due.pop(job["metadata"]["uid"], None)
        ttl: int | None = job["spec"].get("ttlSecondsAfterFinished")
        if ttl is not None and ended + ttl <= now:
            await self._jobs.remove(key, job["metadata"]["uid"])
        return None if ttl is None else max(ended + ttl - now, 0.1)

    async def _let_go(self, pods: Iterable[Pod]) -> None:
        await all_of(*(self._pods.release(pod.key, pod.uid, JOB_TRACKING) for pod in pods if pod.tracked))


def _next(spec: Obj, status: Obj, wait: float, now: float) -> float | None:
    """When to look again though nothing happens: for a pod that may follow a failure, and for the deadline."""
    moments: list[Any] = [wait] if wait > 0 else []
    if "activeDeadlineSeconds" in spec:
        moments.append(seconds(status["startTime"]) + spec["activeDeadlineSeconds"] - now)
    return max(min(moments), 0.1) if moments else None
