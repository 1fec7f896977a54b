"""One worker per pod: brings what runs to what the pod's spec says, and tells the API server what it sees.

The worker sleeps until something happened (the object changed, a container ended, a probe has a verdict, a pause is
over) and then goes through the same steps from the top. It keeps no plan between two rounds, so it does not matter
whether it was running all the time or was started a moment ago beside containers that an earlier agent left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterable

from virtfleet.kube.api import Patch
from virtfleet.kube.errors import ApiError, is_not_found
from virtfleet.kube.events import Recorder, Reference
from virtfleet.kube.resource import PODS, Obj
from virtfleet.local.node import assembly, lifecycle, logfiles, podstatus
from virtfleet.local.node.assembly import PAUSE, Ground, Node
from virtfleet.local.node.commands import CommandError
from virtfleet.local.node.containers import Container
from virtfleet.local.node.devices import AdmissionRefused
from virtfleet.local.node.health import Health
from virtfleet.local.node.images import HOST
from virtfleet.local.node.lifecycle import Seen, init_containers, is_sidecar
from virtfleet.local.node.podstatus import TERMINAL, Outcome, PodFacts
from virtfleet.local.node.pulling import ImageUnavailable
from virtfleet.local.node.runtime import RuntimeFailure, remove_group
from virtfleet.local.node.security import ConfigError
from virtfleet.local.node.stopping import stop
from virtfleet.local.node.terminationmessage import termination_message
from virtfleet.local.node.volumes import VolumeError

_REFRESH = 60.0  # seconds between two looks at volumes that come from API objects
_RETRY = 2.0  # seconds until something that failed for the moment is tried again
_FORCED_GRACE = 1.0
log = logging.getLogger(__name__)


class PodWorker:
    """The life of one pod on this node."""

    def __init__(self, node: Node, recorder: Recorder, pod: Obj, adopted: Iterable[Container] = ()) -> None:
        self._node = node
        self._recorder = recorder
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self._woken = asyncio.Event()
        self._gone = False  # the object has been removed from the API server
        self.runs: dict[str, list[Container]] = {}  # by container, the latest last
        self._waiting: dict[str, tuple[str, str]] = {}
        self._health: dict[str, Health] = {}
        self._outcome: Outcome | None = None
        self._ground: Ground | None = None
        self._refreshed = 0.0
        self._over = False  # nothing of the pod will run any more
        self._done = False  # nothing is left to do
        for run in sorted(adopted, key=lambda r: r.attempt):
            self.runs.setdefault(run.name, []).append(run)
        self.task = asyncio.create_task(self._run(), name=f"pod {pod['metadata']['name']}")

    def update(self, pod: Obj | None) -> None:
        """The object has changed; None when it is gone."""
        if pod is None:
            self._gone = True
        else:
            self._take(pod)
        self._woken.set()

    def _take(self, pod: Obj) -> None:
        """The watch and the answers to our own writes come in any order; the later state counts."""
        if _revision(pod) >= _revision(self.pod):
            self.pod = pod

    def waiting_reason(self, name: str) -> str:
        """Why a container that has not run yet is not running."""
        return self._waiting.get(name, ("ContainerCreating", ""))[0]

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        """Let the pod be; its containers go on."""
        for name in list(self._health):
            self._stop_probing(name)
        self.task.cancel()

    async def _run(self) -> None:
        pause: float | None = 0.0
        while not self._done:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._woken.wait()
            self._woken.clear()
            try:
                pause = await self._round()
            except ApiError as error:
                log.warning("pod %s: %s; trying again", self.uid, error.message)
                pause = _RETRY
            except Exception:
                log.exception("pod %s: a round failed; trying again", self.uid)
                pause = _RETRY

    async def _round(self) -> float | None:
        """One pass over everything. The answer is how long to sleep at most; None when only a change can matter."""
        if self._gone or self.pod["metadata"].get("deletionTimestamp"):
            await self._end_pod()
            self._done = True
            return None
        if (self.pod.get("status") or {}).get("phase") in TERMINAL or self._over:
            await self._stop_all(0)
            await self._clear_away()
            return None
        if await self._refused() or self._failed_as_a_whole():
            await self._finish()
            return 0.0
        pause = await self._stand_on_ground()
        if pause is None:
            pause = await self._follow_plan()
        await self._publish()
        return pause

    # The steps of a round.

    async def _take_in_ends(self) -> None:
        """Note why containers ended, and free what they held. No end is told or acted upon before."""
        while ended := [run for runs in self.runs.values() for run in runs if run.finished and not run.retired]:
            for run in ended:
                self._stop_probing(run.name)
                if not run.message and run.name != PAUSE:
                    run.message = termination_message(self._node.layout, self._container(run.name), run)
                await self._node.runtime.retire(run)

    async def _refused(self) -> bool:
        """Whether the node cannot give the pod its devices."""
        try:
            await self._node.devices.admit(self.pod)
        except AdmissionRefused as refusal:
            self._outcome = Outcome("UnexpectedAdmissionError", str(refusal))
            self._warn("UnexpectedAdmissionError", str(refusal))
        return self._outcome is not None

    def _failed_as_a_whole(self) -> bool:
        deadline = self._deadline()
        if deadline is not None and deadline <= time.time():
            text = "Pod was active on the node longer than the specified deadline"
            self._outcome = Outcome("DeadlineExceeded", text)
            self._recorder.normal(self._about(), "DeadlineExceeded", text)
        elif excess := self._node.volumes.over_limit(self.pod):
            self._outcome = Outcome("Evicted", excess)
            self._warn("Evicted", excess)
        return self._outcome is not None

    async def _stand_on_ground(self) -> float | None:
        """Sandbox and volumes. The answer is a pause when they cannot be had yet, None when they are there."""
        node = self._node
        try:
            if self._ground is None:
                sandbox = await node.sandboxes.ensure(self.pod, node.layout.node, time.time())
                places = await node.volumes.make(self.pod, node.facts(sandbox), self._woken.set)
                self._ground = Ground(sandbox, places)
                self._refreshed = time.time()
                self._adopt_health()
            elif time.time() - self._refreshed >= _REFRESH:
                await node.volumes.refresh(self.pod, node.facts(self._ground.sandbox))
                self._refreshed = time.time()
            if self.pod["spec"].get("shareProcessNamespace") and not self._ground.shared_pid:
                self._ground = await self._with_shared_pids(self._ground)
        except VolumeError as error:
            self._warn("FailedMount", str(error))
            return _RETRY
        except (CommandError, RuntimeFailure, OSError) as error:
            self._warn("FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}")
            return _RETRY
        return None

    async def _with_shared_pids(self, ground: Ground) -> Ground:
        """A process that does nothing but reap, as the first one of the namespace that the pod's containers share."""
        run = self._latest(PAUSE)
        if run is None or run.finished:
            image = self._node.store.find(HOST)
            assert image is not None
            container = {"name": PAUSE, "image": HOST, "command": ["/usr/bin/catatonit", "-P"]}
            run = assembly.new_run(self._node.layout, self.pod, container, image, run)
            self.runs.setdefault(PAUSE, []).append(run)
            await assembly.make(self._node, self.pod, container, image, ground, run)
            await self._node.runtime.start(run)
        return Ground(ground.sandbox, ground.places, f"/proc/{run.pid}/ns/pid")

    async def _follow_plan(self) -> float:
        """Start and end containers as the spec and their past say. The answer is how long to sleep at most."""
        await self._take_in_ends()
        now = time.time()
        plan = lifecycle.plan(self.pod, self._seen(), now)
        for name, reason in plan.kill.items():
            await self._kill(name, reason)
        if plan.done:
            await self._finish()
            return 0.0
        for name in plan.paused:
            run = self._latest(name)
            text = f"back-off {run.backoff if run else 0:g}s restarting failed container={name} pod={self._full_name()}"
            if self._waiting.get(name, ("", ""))[0] != "CrashLoopBackOff":
                self._warn("BackOff", f"Back-off restarting failed container {name} in pod {self._full_name()}")
            self._waiting[name] = ("CrashLoopBackOff", text)
        moments = [*plan.paused.values(), self._refreshed + _REFRESH, self._deadline() or float("inf")]
        moments += [await self._start(name) for name in plan.start]
        return 0.0 if plan.kill else max(0.0, min(moments) - time.time())

    async def _start(self, name: str) -> float:
        """Run a container. The answer is when to look at it again if that did not work out."""
        container = self._container(name)
        node, never = self._node, float("inf")
        assert self._ground is not None
        try:
            image = node.puller.obtain(container["image"], container.get("imagePullPolicy") or "", self._woken.set)
        except ImageUnavailable as why:
            self._unavailable(name, container["image"], why)
            return why.until or never
        before = self._latest(name)
        run = assembly.new_run(node.layout, self.pod, container, image, before)
        self._say("Pulled", f'Container image "{container["image"]}" already present on machine')
        try:
            await assembly.make(node, self.pod, container, image, self._ground, run)
        except (ConfigError, RuntimeFailure, OSError, ApiError) as error:
            await node.runtime.remove(run)
            config = isinstance(error, ConfigError)
            self._waiting[name] = ("CreateContainerConfigError" if config else "CreateContainerError", str(error))
            self._warn("Failed", f"Error: {error}")
            return time.time() + _RETRY
        self._say("Created", f"Created container: {name}")
        self._waiting.pop(name, None)
        self.runs.setdefault(name, []).append(run)
        await self._forget_old_runs(name)
        try:
            await node.devices.before_start(self.uid, name)
            await node.runtime.start(run)
        except RuntimeFailure as error:
            run.fail(time.time(), 128, "StartError", str(error))
            self._warn("Failed", f"Error: {error}")
            return time.time()
        self._say("Started", f"Started container {name}")
        self._begin_probing(container, run)
        return never if not run.finished else time.time()

    def _unavailable(self, name: str, image: str, why: ImageUnavailable) -> None:
        before = self._waiting.get(name, ("", ""))[0]
        if why.reason == "ContainerCreating":
            if name not in self._waiting:
                self._say("Pulling", f'Pulling image "{image}"')
            self._waiting.setdefault(name, ("ContainerCreating", ""))
            return
        self._waiting[name] = (why.reason, why.message)
        if before == why.reason:
            return
        if why.reason == "ImagePullBackOff":
            self._say("BackOff", f'Back-off pulling image "{image}"')
        else:
            self._warn("Failed", f'Failed to pull image "{image}": {why.message}')

    async def _forget_old_runs(self, name: str) -> None:
        """Keep the run before the present one, for its exit code and its log."""
        while len(self.runs[name]) > 2:
            old = self.runs[name].pop(0)
            await self._node.runtime.remove(old)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(old.log)

    async def _kill(self, name: str, reason: str) -> None:
        run = self._latest(name)
        if run is not None and not run.finished:
            self._say("Killing", reason)
            await self._stop(run, self._grace(name))

    async def _stop(self, run: Container, grace: float) -> None:
        self._stop_probing(run.name)
        container = {"name": PAUSE} if run.name == PAUSE else self._container(run.name)
        address = next(iter(self._pod_addresses()), self._node.addresses[0])
        trouble = await stop(self._node.runtime, container, run, grace, address)
        if trouble:
            self._warn("FailedPreStopHook", trouble)

    # The end.

    async def _finish(self) -> None:
        """The pod has succeeded or failed: end what still runs, tell it, and free everything but records and logs."""
        await self._stop_all(self._grace_of_pod())
        self._over = True
        await self._publish()
        await self._clear_away()

    async def _end_pod(self) -> None:
        """The pod is being deleted: end its containers in grace, tell how they ended, then let the object go."""
        grace = self.pod["metadata"].get("deletionGracePeriodSeconds")
        if grace is None:  # removed by force, without a word before
            grace = _FORCED_GRACE
        await self._stop_all(float(grace))
        self._over = True
        if not self._gone:
            await self._publish()
        await self._clear_away()
        for runs in self.runs.values():
            for run in runs:
                await self._node.runtime.remove(run)
        await self._forget_everything()

    async def _stop_all(self, grace: float) -> None:
        """The ordinary containers side by side, then the sidecars one after the other, the last one first."""
        deadline = time.monotonic() + grace
        running = {name: runs[-1] for name, runs in self.runs.items() if not runs[-1].finished}
        pause = running.pop(PAUSE, None)
        sidecars = [c["name"] for c in init_containers(self.pod) if is_sidecar(c)]
        for name in running:
            self._say("Killing", f"Stopping container {name}")
        await asyncio.gather(*(self._stop(run, grace) for name, run in running.items() if name not in sidecars))
        for name in reversed(sidecars):
            if name in running:
                await self._stop(running[name], max(0.0, deadline - time.monotonic()))
        if pause is not None:
            await self._stop(pause, 0)

    async def _clear_away(self) -> None:
        """Free namespaces, addresses, volumes, devices and control groups."""
        await self._take_in_ends()
        self._ground = None
        await self._node.sandboxes.remove(self.uid)
        await self._node.volumes.remove(self.uid)
        self._node.devices.release(self.uid)
        await remove_group(f"{self._node.layout.cgroup}/{self.uid}")

    async def _forget_everything(self) -> None:
        meta = self.pod["metadata"]
        logfiles.remove(self._node.layout.pod_logs(self.pod))
        if self._gone:
            return
        try:
            await self._node.api.delete(PODS, meta["name"], meta["namespace"], grace=0, uid=self.uid)
        except ApiError as error:
            if not is_not_found(error) and error.reason != "Conflict":  # another pod has the name already
                raise

    # What is told.

    async def _publish(self) -> None:
        """Write the status if it is not what the API server has."""
        await self._take_in_ends()
        facts = PodFacts(
            host_ips=self._node.addresses,
            addresses=tuple(self._pod_addresses()),
            sandboxed=self._ground is not None,
            over=self._over,
            outcome=self._outcome,
        )
        status = podstatus.status(self.pod, self._seen(), facts, time.time())
        if podstatus.is_part_of(status, self.pod.get("status") or {}):
            return
        meta = self.pod["metadata"]
        patch = {"metadata": {"uid": self.uid}, "status": status}
        try:
            answer = await self._node.api.patch(
                PODS, meta["name"], patch, meta["namespace"], how=Patch.STRATEGIC, subresource="status"
            )
            self._take(answer)
        except ApiError as error:
            if not is_not_found(error) and error.reason != "Conflict":  # it is gone, or another pod has its name
                raise

    def _seen(self) -> dict[str, Seen]:
        seen = {}
        for container in (*init_containers(self.pod), *self.pod["spec"]["containers"]):
            name = container["name"]
            runs = self.runs.get(name) or []
            run = runs[-1] if runs else None
            health = self._health.get(name) if run and run.running else None
            seen[name] = Seen(
                run=run,
                previous=runs[-2] if len(runs) > 1 else None,
                started=bool(health and health.started),
                ready=bool(health and health.ready),
                waiting=self._waiting.get(name),
                unhealthy=health.unhealthy if health else "",
            )
        return seen

    # Probes and hooks.

    def _adopt_health(self) -> None:
        """Go on probing the containers that an earlier agent started."""
        known = {
            entry["containerID"].rpartition("/")[2]: entry
            for key in ("containerStatuses", "initContainerStatuses")
            for entry in (self.pod.get("status") or {}).get(key) or ()
            if entry.get("containerID")
        }
        for name, runs in self.runs.items():
            if runs[-1].running and name != PAUSE and name not in self._health:
                self._begin_probing(self._container(name), runs[-1], known.get(runs[-1].id, {}))

    def _begin_probing(self, container: Obj, run: Container, known: Obj | None = None) -> None:
        address = next(iter(self._pod_addresses()), self._node.addresses[0])
        self._health[run.name] = Health(self._node.runtime, container, run, address, self._woken.set, self._warn, known)

    def _stop_probing(self, name: str) -> None:
        if health := self._health.pop(name, None):
            health.stop()

    # Words.

    def _container(self, name: str) -> Obj:
        found: Obj = next(c for c in (*init_containers(self.pod), *self.pod["spec"]["containers"]) if c["name"] == name)
        return found

    def _latest(self, name: str) -> Container | None:
        runs = self.runs.get(name)
        return runs[-1] if runs else None

    def _pod_addresses(self) -> list[str]:
        return self._ground.sandbox.addresses if self._ground else []

    def _deadline(self) -> float | None:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        started = (self._ground.sandbox.created if self._ground else 0) or time.time()
        return None if seconds is None else started + seconds

    def _grace(self, name: str) -> float:
        health = self._health.get(name)
        return health.grace if health and health.grace is not None else self._grace_of_pod()

    def _grace_of_pod(self) -> float:
        seconds = self.pod["spec"].get("terminationGracePeriodSeconds")
        return 30.0 if seconds is None else float(seconds)

    def _full_name(self) -> str:
        return f"{self.pod['metadata']['name']}_{self.pod['metadata']['namespace']}({self.uid})"

    def _about(self) -> Reference:
        meta = self.pod["metadata"]
        return Reference("v1", "Pod", meta["namespace"], meta["name"], self.uid)

    def _say(self, reason: str, message: str) -> None:
        self._recorder.normal(self._about(), reason, message)

    def _warn(self, reason: str, message: str) -> None:
        self._recorder.warning(self._about(), reason, message)


def _revision(pod: Obj) -> int:
    return int(pod["metadata"].get("resourceVersion") or 0)
