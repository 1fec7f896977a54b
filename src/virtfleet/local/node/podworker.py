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
import shutil
import signal
import time
from collections.abc import Iterable, Iterator

import orjson

from virtfleet.api.names import FINAL
from virtfleet.kube.api import Patch
from virtfleet.kube.errors import ApiError, ignoring, is_conflict, is_not_found
from virtfleet.kube.events import Reference
from virtfleet.kube.resource import PODS, Obj
from virtfleet.local.node import assembly, cgroups, lifecycle, podstatus
from virtfleet.local.node.assembly import Ground, NodeParts, grace_of
from virtfleet.local.node.attachments import Unusable
from virtfleet.local.node.containers import Container
from virtfleet.local.node.devices import AdmissionRefused
from virtfleet.local.node.lifecycle import Plan, Why
from virtfleet.local.node.podruns import PodRuns, described
from virtfleet.local.node.podstatus import PodFacts
from virtfleet.local.node.registry import ImageUnavailable
from virtfleet.local.node.runtime import RuntimeFailure, pidfd, remove_group
from virtfleet.local.node.security import ConfigError
from virtfleet.local.node.succession import predecessor, succeeds
from virtfleet.local.node.volumes import VolumeError
from virtfleet.work.commands import CommandError
from virtfleet.work.tasks import start

_REFRESH = 60.0  # seconds between two looks at volumes that come from API objects
_RETRY = 2.0  # seconds until something that failed for the moment is tried again
_FORCED_GRACE = 1.0  # of a pod that was removed without being asked to end before
log = logging.getLogger(__name__)


class PodWorker:
    """The life of one pod on this node."""

    def __init__(self, node: NodeParts, pod: Obj, adopted: Iterable[Container] = ()) -> None:
        self._node, self.pod = node, pod
        self.uid: str = pod["metadata"]["uid"]
        self.woken = asyncio.Event()  # something has happened that it should look at
        meta = pod["metadata"]
        self._about = Reference("v1", "Pod", meta["namespace"], meta["name"], self.uid)
        self._gone = False  # the object has been removed from the API server
        self.runs = PodRuns(node, self.woken.set, self._say, self._warn, adopted)
        self._outcome: Why | None = None
        self._ground: Ground | None = None
        self._refreshed = 0.0
        self._shown: list[Obj | None] = []  # labels and annotations, as the volumes have them
        self._attach_again = float("inf")  # when to try again to attach it to a network
        self._pending: Why | None = None  # why it does not have the resources that its spec asks for by now
        self._over = False  # nothing of the pod will run any more
        self._done = False  # nothing is left to do
        self.reported = asyncio.Event()  # the API server has what this agent saw, not what one before it did
        self.task = start(self._run(), f"pod: {pod['metadata']['name']}")

    def update(self, pod: Obj | None) -> None:
        """The object has changed; None when it is gone."""
        if pod is None:
            self._gone = True
        else:
            self._take(pod)
        self.woken.set()

    def _take(self, pod: Obj) -> None:
        """The watch and the answers to our own writes come in any order; the later state counts."""
        if _revision(pod) >= _revision(self.pod):
            self.pod = pod

    @property
    def network(self) -> str | None:
        """The file that holds the pod's network, which may be the machine's; None where there is none."""
        return self._ground.sandbox.namespaces.get("network", "/proc/thread-self/ns/net") if self._ground else None

    def stop(self) -> None:
        """Let the pod be; its containers go on."""
        self.runs.stop_all_probing()
        self.task.cancel()

    async def _run(self) -> None:
        pause: float | None = 0.0
        while not self._done:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.woken.wait()
            self.woken.clear()
            try:
                await self._report_first()
                pause = await self._round()
                self.reported.set()
            except ApiError as error:
                log.warning("pod %s: %s; trying again", self.uid, error.message)
                pause = _RETRY
            except Exception:
                log.exception("pod %s: a round failed; trying again", self.uid)
                pause = _RETRY

    async def _report_first(self) -> None:
        """What ended while nobody looked is said before anything is done about it, which may take its time."""
        if self.reported.is_set() or (self.runs.any_running() and not self._is_leaving()):
            return
        if self.runs.by_name and not self._is_leaving() and (self.pod.get("status") or {}).get("phase") not in FINAL:
            await self._publish()
        self.reported.set()

    async def _round(self) -> float | None:
        """One pass over everything. The answer is how long to sleep at most; None when only a change can matter."""
        if self._is_leaving():
            await self._end_pod()
            self._done = True
            return None
        if (final := (self.pod.get("status") or {}).get("phase") in FINAL) or self._over:
            await self.runs.end_all(self.pod, 0)
            if not final:
                await self._publish()  # the API server was away when it was to be told
            await self._clear_away()
            return None
        if self._outcome is None and (failure := await self._failure()):
            self._outcome = failure
            tell = self._say if failure.reason == "DeadlineExceeded" else self._warn
            tell(*failure)
        if self._outcome:
            await self._finish()
            return 0.0
        pause = await self._bring_up()
        if await self._resize():
            pause = min(pause, _RETRY)
        await self._publish()
        return pause

    # The steps of a round.

    async def _failure(self) -> Why | None:
        """What the node cannot do or give it, or of what it has had too much: for that it fails as a whole."""
        if why := lifecycle.unserved(self.pod):
            return Why("UnexpectedAdmissionError", why)
        try:
            await self._node.devices.admit(self.pod)
        except AdmissionRefused as refusal:
            return Why("UnexpectedAdmissionError", str(refusal))
        if self._deadline() <= time.time():
            return Why("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
        excess = self._node.volumes.over_limit(self.pod)
        return Why("Evicted", excess) if excess else None

    def _is_leaving(self) -> bool:
        return self._gone or bool(self.pod["metadata"].get("deletionTimestamp"))

    async def _bring_up(self) -> float:
        """Bring the containers to what the spec and their past say. The answer is how long to sleep at most."""
        if self._ground is None and self.runs.by_name and not self.runs.any_running():
            await self.runs.take_in_ends()
            if lifecycle.plan(self.pod, self.runs.seen(self.pod), time.time()).done:
                await self._finish()
                return 0.0
        async with self._node.turns if self._ground is None else contextlib.nullcontext():
            if self._is_leaving():  # while it waited for its turn
                return 0.0
            if pause := await self._stand_on_ground():
                return pause
            await self.runs.take_in_ends()
            plan = lifecycle.plan(self.pod, self.runs.seen(self.pod), time.time())
            if not (plan.kill or plan.done):
                return await self._start_planned(plan)
        for name, reason in plan.kill.items():
            await self.runs.end(name, grace_of(self.pod), reason)
        if plan.done:
            await self._finish()
        return 0.0

    async def _stand_on_ground(self) -> float | None:
        """Sandbox and volumes. The answer is a pause when they cannot be had yet, None when they are there."""
        node, tags = self._node, [self.pod["metadata"].get(kind) for kind in ("labels", "annotations")]
        try:
            if self._ground is None:
                sandbox = await node.sandboxes.ensure(self.pod, await predecessor(node.api, self.pod))
                places = await node.volumes.make(self.pod, node.facts(sandbox), self.woken.set)
                self._ground = Ground(sandbox, places)
                self._refreshed, self._shown = time.time(), tags
                self.runs.adopt_health(self.pod, self._address())
            if self._ground.sandbox.follows and succeeds(self.pod):
                sandbox = await node.sandboxes.succeed(self._ground.sandbox)
                self._ground = self._ground._replace(sandbox=sandbox)
            if pause := await self._attach():
                return pause
            # The clock may have been set back. Who does not want to wait annotates the Pod, as with a kubelet.
            if abs(time.time() - self._refreshed) >= _REFRESH or self._shown != tags:
                await node.volumes.refresh(self.pod, node.facts(self._ground.sandbox))
                self._refreshed, self._shown = time.time(), tags
        except ImageUnavailable as why:
            for container in self.pod["spec"]["containers"]:
                self._wait_for_image(container["name"], why)
            return _RETRY
        except VolumeError as error:
            self._warn("FailedMount", str(error))
            return _RETRY
        except (CommandError, RuntimeFailure, OSError) as error:
            self._warn("FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}")
            return _RETRY
        return None

    async def _attach(self) -> float | None:
        """Have the networks beside the cluster's. The answer is a pause where nothing may be started without them."""
        assert self._ground is not None
        node, sandbox, meta = self._node, self._ground.sandbox, self.pod["metadata"]
        self._attach_again = float("inf")
        try:
            said = await node.networks.bring(self.pod, sandbox.namespaces.get("network", ""), sandbox.addresses)
        except Unusable as error:
            self._attach_again = time.time() + _RETRY
            self._warn("FailedCreatePodSandBox" if not self.runs.by_name else "FailedAttachNetwork", str(error))
            return None if self.runs.by_name else _RETRY
        if not said.items() <= (meta.get("annotations") or {}).items():
            # By the status, as Multus does it: no other part of the pod is an agent's business.
            await self._write({"metadata": {"uid": self.uid, "annotations": said}})
        return None

    async def _start_planned(self, plan: Plan) -> float:
        for name in plan.paused:
            self._pause(name)
        moments = [*plan.paused.values(), self._refreshed + _REFRESH, self._deadline(), self._attach_again]
        moments += [await self._start(name) for name in plan.start]
        return max(0.0, min(moments) - time.time())

    async def _start(self, name: str) -> float:
        """Run a container. The answer is when to look at it again if that did not work out."""
        container, node = described(self.pod, name), self._node
        assert self._ground is not None
        try:
            image = node.puller.obtain(container["image"], container.get("imagePullPolicy") or "", self.woken.set)
        except ImageUnavailable as why:
            self._wait_for_image(name, why)
            return why.until or float("inf")
        run = assembly.new_run(node.layout, self.pod, container, image, self.runs.latest(name))
        self._say("Pulled", f'Container image "{container["image"]}" already present on machine')
        try:
            with self._processes_of(container.get("targetContainerName")) as processes:
                await assembly.make(node, self.pod, container, image, self._ground, run, processes)
        except (ConfigError, RuntimeFailure, OSError, ApiError) as error:
            await node.runtime.remove(run)
            reason = "CreateContainerConfigError" if isinstance(error, ConfigError) else "CreateContainerError"
            self.runs.waiting[name] = Why(reason, str(error))
            self._warn("Failed", f"Error: {error}")
            return time.time() + _RETRY
        self._say("Created", f"Created container: {name}")
        await self.runs.add(run)
        try:
            await node.runtime.start(run)
        except RuntimeFailure as error:
            run.fail(time.time(), 128, "StartError", str(error))
            self._warn("Failed", f"Error: {error}")
            return time.time()
        self._say("Started", f"Started container {name}")
        self.runs.begin_probing(container, run, self._address())
        return float("inf")

    @contextlib.contextmanager
    def _processes_of(self, name: str | None) -> Iterator[str]:
        """The namespace of a container's processes, held open: its number could be another process's by then."""
        if not name:
            yield ""
            return
        run = self.runs.latest(name)
        with pidfd(run.pid, run.pid_start) if run else contextlib.nullcontext() as alive:
            if run is None or alive is None:
                raise RuntimeFailure(f"container {name}, whose processes are wanted, does not run")
            namespace = os.open(f"/proc/{run.pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            try:
                signal.pidfd_send_signal(alive, 0)  # it is still the one
                yield f"/proc/{os.getpid()}/fd/{namespace}"
            finally:
                os.close(namespace)

    async def _resize(self) -> bool:
        """Give containers that run what their spec asks for by now; whether that has to wait, which is told."""
        self._pending = None
        for container, run in lifecycle.due(self.pod, self.runs.latest):
            self._pending = lifecycle.shortage(self.pod, self._node.pods.list(), self._node.object.allocatable())
            if self._pending:
                return self._pending.reason == lifecycle.DEFERRED
            before, run.resources = run.resources, lifecycle.amounts(container)
            try:
                await self._node.runtime.resize(run, cgroups.resources(container))
            except RuntimeFailure as error:
                run.resources = before
                self._pending = Why(lifecycle.DEFERRED, str(error))
                return True
            self._say("ResizeCompleted", f"Pod resize completed: {orjson.dumps(run.resources).decode()}")
        return False

    def _wait_for_image(self, name: str, why: ImageUnavailable) -> None:
        before = self.runs.waiting.get(name, Why()).reason
        if before != why.reason:
            match why.reason:
                case "ContainerCreating":
                    self._say("Pulling", f'Pulling image "{why.image}"')
                case "ImagePullBackOff":
                    self._say("BackOff", f'Back-off pulling image "{why.image}"')
                case _:
                    self._warn("Failed", f'Failed to pull image "{why.image}": {why.message}')
        self.runs.waiting[name] = Why(why.reason, why.message)

    def _pause(self, name: str) -> None:
        """A container that keeps on ending waits before it is run again."""
        run, meta = self.runs.latest(name), self.pod["metadata"]
        pod = f"{meta['name']}_{meta['namespace']}({self.uid})"
        if self.runs.waiting.get(name, Why()).reason != "CrashLoopBackOff":
            self._warn("BackOff", f"Back-off restarting failed container {name} in pod {pod}")
        text = f"back-off {run.backoff if run else 0:g}s restarting failed container={name} pod={pod}"
        self.runs.waiting[name] = Why("CrashLoopBackOff", text)

    # The end.

    async def _finish(self) -> None:
        """The pod has succeeded or failed: end what still runs, tell it, and free everything but records and logs."""
        if self.runs.any_running() and not self._outcome:
            await self._publish()  # sidecars may take their time
        await self.runs.end_all(self.pod, grace_of(self.pod))
        await self._tell_the_end()
        await self._clear_away()

    async def _end_pod(self) -> None:
        """The pod is being deleted: end its containers in grace, tell how they ended, then let the object go."""
        grace = self.pod["metadata"].get("deletionGracePeriodSeconds")
        await self._end_all_unless_forced(_FORCED_GRACE if grace is None else float(grace))
        if not self._gone and self.runs.by_name:
            await self._tell_the_end()
        await self._clear_away()
        await self.runs.remove_all()
        shutil.rmtree(self._node.layout.pod_logs(self.pod), ignore_errors=True)
        if not self._gone:
            meta = self.pod["metadata"]
            with ignoring(is_not_found, is_conflict):  # another pod has the name already
                await self._node.api.delete(PODS, meta["name"], meta["namespace"], grace=0, uid=self.uid)

    async def _end_all_unless_forced(self, grace: float) -> None:
        """End all containers in grace, which is over when the object is removed meanwhile."""
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(self.runs.end_all(self.pod, grace))
            while not ending.done():
                woken = group.create_task(self.woken.wait())
                await asyncio.wait([ending, woken], return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                self.woken.clear()
                if self._gone and grace > _FORCED_GRACE:
                    self.runs.kill_all()

    async def _tell_the_end(self) -> None:
        """Devices are free before it is known: the scheduler may give them to another pod at once."""
        self._node.devices.release(self.uid)
        self._over = True
        await self._publish()

    async def _clear_away(self) -> None:
        """Free namespaces, addresses, volumes, devices and control groups."""
        await self.runs.take_in_ends()
        self._ground = None
        await self._node.sandboxes.remove(self.uid)
        await self._node.volumes.remove(self.uid)
        self._node.devices.release(self.uid)
        await remove_group(f"{self._node.layout.cgroup}/{self.uid}")

    # What is published.

    async def _publish(self) -> None:
        """Write the status if it is not what the API server has."""
        await self.runs.take_in_ends()
        facts = PodFacts(
            host_ips=self._node.addresses,
            addresses=tuple(self._ground.sandbox.addresses) if self._ground else (),
            sandboxed=self._ground is not None,
            over=self._over,
            outcome=self._outcome,
            pending=self._pending,
        )
        status = podstatus.status(self.pod, self.runs.seen(self.pod), facts, time.time())
        if podstatus.is_part_of(status, self.pod.get("status") or {}):
            return
        await self._write({"metadata": {"uid": self.uid}, "status": status})

    async def _write(self, patch: Obj) -> None:
        name, namespace, api = self.pod["metadata"]["name"], self.pod["metadata"]["namespace"], self._node.api
        with ignoring(is_not_found, is_conflict):  # it is gone, or another pod has its name
            self._take(await api.patch(PODS, name, patch, namespace, how=Patch.STRATEGIC, subresource="status"))

    def _address(self) -> str:
        """Where probes reach the pod."""
        return next(iter(self._ground.sandbox.addresses if self._ground else ()), self._node.addresses[0])

    def _deadline(self) -> float:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        started = (self._ground.sandbox.created if self._ground else 0) or time.time()
        return float("inf") if seconds is None else started + seconds

    def _say(self, reason: str, message: str) -> None:
        self._node.recorder.normal(self._about, reason, message)

    def _warn(self, reason: str, message: str) -> None:
        self._node.recorder.warning(self._about, reason, message)


def _revision(pod: Obj) -> int:
    return int(pod["metadata"].get("resourceVersion") or 0)
