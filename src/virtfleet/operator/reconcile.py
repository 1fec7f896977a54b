"""The reconcile of the KubeVirt object: from what it says to what is installed, step by step.

Each step looks at what is there and writes the difference, if any; what must wait for the cluster (definitions that are
not yet served, handlers that have not let go of their nodes) is left for the next call, which the change brings about.
An installation that is as it should be is not written to.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Container, Iterable, Mapping
from datetime import UTC, datetime, timedelta

from virtfleet.api import names, times
from virtfleet.api.conditions import holds
from virtfleet.installation import Installation
from virtfleet.kube.api import KubeApi, Patch
from virtfleet.kube.cache import key_of
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_conflict, is_not_found
from virtfleet.kube.events import Recorder, Reference
from virtfleet.kube.resource import DAEMON_SETS, NODES, PODS, SECRETS, SERVICE_MONITORS, Obj
from virtfleet.operator import certificates, conditions, imagevolumes, keeping, proof, rollout
from virtfleet.operator.apply import CannotUndo, Comparer, check_stored
from virtfleet.operator.conditions import DEGRADED, Findings
from virtfleet.operator.customize import PatchError
from virtfleet.operator.endpoints import VIRT_API
from virtfleet.operator.handlerpods import IMAGE_TRIAL, STARTING, HandlerPod, unserved
from virtfleet.operator.keeping import Keeping
from virtfleet.operator.proof import AGAIN, PROOF, Proving
from virtfleet.operator.render import render
from virtfleet.operator.rollout import Change, Fleet, Plan
from virtfleet.operator.standin import StandIns
from virtfleet.operator.uninstall import Uninstall
from virtfleet.operator.world import RESOURCES, World
from virtfleet.pools.terms import TooManyTermsError

logger = logging.getLogger(__name__)

COUNTING_PAUSE = 1.0
"""Seconds for which changes of counts are gathered before they are reported."""

_UNKNOWN_PAUSE = timedelta(seconds=1)  # until it is looked again whether instance types and monitors are known
_ADMISSION = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "APIService")


class Operator:
    """`run()` it, beside its world and its recorder."""

    def __init__(
        self, api: KubeApi, world: World, recorder: Recorder, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._api = api
        self._world = world
        self._recorder = recorder
        self._now = now
        self._comparer = Comparer()
        self._uninstall = Uninstall(api, world)
        self._controller = Controller("kubevirt", self.reconcile, world.needed)
        world.changes(self._look_at_once, self._look_soon)

    async def run(self) -> None:
        await self._controller.run()

    def _look_at_once(self) -> None:
        for key in self._world.kubevirts.keys():  # noqa: SIM118 (a cache is no dict)
            self._controller.queue.add(key)

    def _look_soon(self) -> None:
        for key in self._world.kubevirts.keys():  # noqa: SIM118
            self._controller.queue.add_after(key, COUNTING_PAUSE)

    async def reconcile(self, key: str) -> float | None:
        """Bring the cluster closer to what the KubeVirt object says."""
        kubevirt = self._world.kubevirts.get(key)
        if kubevirt is None:
            return None
        if key != self._in_charge():
            await self._report_second(kubevirt)
            return None
        if kubevirt["metadata"].get("deletionTimestamp"):
            return await self._uninstall.step(kubevirt)
        finalizers = kubevirt["metadata"].get("finalizers") or []
        if names.OPERATOR_FINALIZER not in finalizers:
            wanted = [*finalizers, names.OPERATOR_FINALIZER]
            self._world.kubevirts.observe(await self._world.write_finalizers(kubevirt, wanted))
        installation, findings = Installation(kubevirt), Findings()
        again: float | None = None
        try:
            again = await self._install(installation, findings)
        except (TooManyTermsError, PatchError) as error:
            findings.error = ("InvalidConfiguration", str(error))  # what is installed stays until it is corrected
        except CannotUndo as error:
            findings.error = ("CannotUndo", str(error))
        except ApiError as error:
            if not is_conflict(error):
                findings.error = ("Refused", error.message)
                await self._report(installation, findings)
            raise
        await self._report(installation, findings)
        return again

    def _in_charge(self) -> str:
        """The oldest KubeVirt object: there can be one installation only."""
        oldest = min(
            self._world.kubevirts.list(),
            key=lambda kv: (kv["metadata"].get("creationTimestamp", ""), kv["metadata"]["name"]),
        )
        return key_of(oldest)

    async def _install(self, installation: Installation, findings: Findings) -> float | None:
        issued = certificates.issue(installation, await self._secrets(installation), self._now())
        monitors = self._world.monitors
        objects = render(
            installation,
            issued.trust,
            issued.admission_key,
            cdi=bool(self._world.cdi.list()),
            monitors=monitors is not None,
        )
        definitions = [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]
        check_stored(self._world.installed["CustomResourceDefinition"].list(), definitions)
        await self._apply(definitions)
        if not self._definitions_are_served():
            return None
        self._world.own_kinds_are_served()
        await self._apply(issued.objects)
        later = ("CustomResourceDefinition", "DaemonSet", *_ADMISSION, *self._world.types, SERVICE_MONITORS.kind)
        await self._apply(obj for obj in objects if obj["kind"] not in later)
        await self._bring_handlers(installation, objects, findings)
        await self._try_image_volumes(installation)
        findings.admission = await self._admit(objects)
        types_known = all(cache.synced.is_set() for cache in self._world.types.values())
        if findings.admission and types_known:  # which virt-api checks
            await self._apply(obj for obj in objects if obj["kind"] in self._world.types)
        await self._remove_leftovers([*issued.objects, *objects])
        findings.created = findings.admission
        monitors_known = monitors is None or monitors.synced.is_set()
        if monitors_known:
            findings.unmonitored = await self._monitor(objects)
        pauses = [issued.look_again, *([] if types_known and monitors_known else [_UNKNOWN_PAUSE])]
        if any(each.starting for each in findings.plan.rollouts.values()):
            pauses.append(STARTING)
        if findings.plan.failure or findings.unmonitored:
            pauses.append(AGAIN)
        return min(pauses).total_seconds()

    # -- steps

    async def _secrets(self, installation: Installation) -> dict[str, Obj]:
        """Certificates that there are: those, too, that lost the label by which ours are found."""
        known = self._world.named("Secret")
        for name in certificates.expected(installation):
            if name not in known:
                with ignoring(is_not_found):
                    known[name] = await self._api.get(SECRETS, name, installation.namespace)
        return known

    async def _apply(self, objects: Iterable[Obj]) -> None:
        """Make or change what is not as it should be."""
        for wanted in objects:
            installed = self._world.find(wanted)
            if installed is None:
                await self._create(wanted)
            elif operations := self._comparer.difference(installed, wanted):
                await self._change(wanted, operations)

    async def _create(self, wanted: Obj) -> None:
        resource, meta = RESOURCES[wanted["kind"]], wanted["metadata"]
        with ignoring(is_already_exists):
            self._world.installed[wanted["kind"]].observe(await self._api.create(resource, wanted))
            logger.info("made %s %s", wanted["kind"], meta["name"])
            return
        # Somebody else's, or older than the label by which ours are found: it becomes ours.
        installed = await self._api.get(resource, meta["name"], meta.get("namespace"))
        await self._change(wanted, self._comparer.difference(installed, wanted))

    async def _change(self, wanted: Obj, operations: list[Obj]) -> None:
        resource, meta = RESOURCES[wanted["kind"]], wanted["metadata"]
        stored = await self._api.patch(resource, meta["name"], operations, meta.get("namespace"), how=Patch.JSON)
        paths = ", ".join(operation["path"] for operation in operations)
        logger.info("changed %s %s: %s", wanted["kind"], meta["name"], paths)
        self._world.installed[wanted["kind"]].observe(stored)

    def _definitions_are_served(self) -> bool:
        definitions = self._world.installed["CustomResourceDefinition"].list()
        return all(holds((d.get("status") or {}).get("conditions") or (), "Established") for d in definitions)

    async def _bring_handlers(self, installation: Installation, objects: Iterable[Obj], findings: Findings) -> None:
        """Handlers to the nodes that are theirs now, and new handlers in the place of old ones."""
        installed, pods = self._world.named("DaemonSet"), self._world.handlers()
        sets = [rollout.paced(obj, pods) for obj in objects if obj["kind"] == "DaemonSet"]
        wanted = {obj["metadata"]["name"]: obj for obj in sets}
        control_plane = self._world.control_plane().values()
        findings.held = bool(installed) and not all(map(rollout.settled, control_plane))
        nodes = keeping.look(installation.fleet.pools, installed, self._world.nodes.list(), pods)
        proving = Proving(installation, self._world.pods_of(PROOF))
        unfinished = keeping.unfinished(installed, wanted, nodes.between, proving)
        placed = not findings.held and await self._place(wanted, nodes, unfinished)
        there = {name: ds for name, ds in self._world.named("DaemonSet").items() if name in wanted}
        findings.handed_over = placed and len(there) == len(self._world.named("DaemonSet"))
        fleet = Fleet(there, pods, self._world.down(), nodes.moves, nodes.transit, unfinished)
        findings.plan = rollout.plan(fleet, proving, self._now())
        findings.moving = len(nodes.moves) + nodes.transit
        if placed:
            await self._replace(await self._stand_in(installation, findings.plan, nodes.between))
            await self._prove(proving)

    async def _place(self, wanted: Mapping[str, Obj], nodes: Keeping, unfinished: frozenset[str]) -> bool:
        """DaemonSets to the content and the placement that they should have, those aside that are unfinished.

        False where labels had to be written first: then nothing else is decided by what was seen before.
        """
        installed = self._world.named("DaemonSet")
        await self._label(nodes.labels)
        if nodes.labels and keeping.moves_nodes(installed, wanted):
            return False  # the next look follows, and the DaemonSet controller has seen the labels by then
        await self._apply(want for name, want in wanted.items() if name not in unfinished)
        down = self._world.down()
        busy = {pod.daemon_set for pod in self._world.handlers() if pod.node not in down}
        for name, daemon_set in installed.items():
            if name in wanted:
                continue
            if name not in busy:
                await self._delete("DaemonSet", [daemon_set])
            elif change := keeping.narrowing(daemon_set):
                stored = await self._api.patch(DAEMON_SETS, name, change, self._world.namespace)
                self._world.installed["DaemonSet"].observe(stored)
        return True

    async def _label(self, nodes: Mapping[str, str | None]) -> None:
        """Say on nodes whose handler keeps them."""
        for node, keeper in nodes.items():
            logger.info("node %s: %s", node, f"{keeper} keeps it" if keeper else "nobody keeps it")
            labels = {names.SERVED_BY: keeping.value(keeper)}
            stored = await self._api.patch(NODES, node, {"metadata": {"labels": labels}})
            self._world.nodes.observe(stored)

    async def _replace(self, changes: Iterable[Change]) -> None:
        """Take handlers away whose successors are proven."""
        for change in changes:
            logger.info("replacing %s on %s by %s", change.pod.metadata.name, change.node, change.successor)
            if change.moves:
                await self._label({change.node: change.successor})
            else:
                await self._delete_pod(change.pod)

    async def _stand_in(self, installation: Installation, plan: Plan, between: Container[str]) -> list[Change]:
        """Have somebody stand by where a handler is to go; the answer is those that may go now."""
        sets, standing = self._world.named("DaemonSet"), StandIns(installation, self._world.stand_ins())
        going = [change for change in plan.replace if standing.waits(change, sets[change.successor])]
        for pod in standing.over(handler for handler in self._world.handlers() if handler.node not in between):
            await self._delete_pod(pod)
        await self._make_pods(standing.needed, standing.there)
        if standing.failure:
            plan.failure = (rollout.CANARY_FAILED, f"the roll-out is stopped, as {standing.failure}")
        return [] if plan.failure else going

    async def _make_pods(self, wanted: Mapping[str, Obj], there: Container[str]) -> None:
        for name, pod in wanted.items():
            if name not in there:
                logger.info("trying images on %s: %s", pod["spec"]["nodeName"], name)
                with ignoring(is_already_exists):
                    self._world.pods.observe(await self._api.create(PODS, pod))

    async def _prove(self, proving: Proving) -> None:
        """Make the proofs that are asked for, and take away those that are not."""
        for name, pod in proving.there.items():
            if name not in proving.needed or proof.stale(pod, self._now()):
                await self._delete_pod(pod)
        await self._make_pods(proving.needed, proving.there)

    async def _try_image_volumes(self, installation: Installation) -> None:
        """Find out of nodes whether images can be volumes there."""
        there = self._world.pods_of(IMAGE_TRIAL)
        trials = imagevolumes.look(installation, self._world.nodes.list(), self._world.handlers(), there)
        for node, change in trials.answers.items():
            await self._say_of_images(node, change)
        for pod in trials.over:
            await self._delete_pod(pod)
        made = {pod.metadata.name for pod in there}
        for name, wanted in trials.wanted.items():
            try:
                await self._make_pods({name: wanted}, made)
            except ApiError as error:
                tried = self._world.nodes.get(wanted["spec"]["nodeName"])
                if error.code != 422 or tried is None:
                    raise
                # An API server that knows no such volumes drops them, and misses what kind of volume it is.
                logger.info("no images as volumes: %s", error.message)
                await self._say_of_images(tried.name, imagevolumes.answer(tried, works=False))

    async def _say_of_images(self, node: str, change: Obj) -> None:
        logger.info("node %s: images as volumes: %s", node, change["labels"][names.IMAGE_VOLUMES])
        self._world.nodes.observe(await self._api.patch(NODES, node, {"metadata": change}))

    async def _delete_pod(self, pod: HandlerPod) -> None:
        if pod.ending:
            return
        with ignoring(is_not_found):
            answer = await self._api.delete(PODS, pod.metadata.name, self._world.namespace, uid=pod.metadata.uid)
            if "deletionTimestamp" in answer.get("metadata", {}):
                self._world.pods.observe(answer)

    async def _admit(self, objects: Iterable[Obj]) -> bool:
        """Let virt-api check VMs once it can; before, webhooks would only refuse everything."""
        admission = [obj for obj in objects if obj["kind"] in _ADMISSION]
        virt_api = self._world.named("Deployment").get(VIRT_API) or {}
        there = all(self._world.find(obj) for obj in admission)
        if not there and not (virt_api.get("status") or {}).get("availableReplicas"):
            return False
        await self._apply(admission)
        return True

    async def _monitor(self, objects: Iterable[Obj]) -> str:
        """Have Prometheus find the components. The answer is why it is not told of them, which VMs do not notice."""
        try:
            await self._apply(obj for obj in objects if obj["kind"] == SERVICE_MONITORS.kind)
        except ApiError as error:
            if is_conflict(error):
                raise
            return error.message
        return ""

    async def _remove_leftovers(self, objects: Iterable[Obj]) -> None:
        """What is installed and wanted no more. Definitions stay, because VMs would go with them."""
        wanted = {(obj["kind"], key_of(obj)) for obj in objects}
        for kind, cache in self._world.installed.items():
            if kind not in ("DaemonSet", "CustomResourceDefinition"):
                await self._delete(kind, (obj for obj in cache.list() if (kind, key_of(obj)) not in wanted))

    async def _delete(self, kind: str, objects: Iterable[Obj]) -> None:
        """The kind is not read from the objects: what came in a list does not have it."""
        for obj in objects:
            meta = obj["metadata"]
            if meta.get("deletionTimestamp"):
                continue
            logger.info("deleting %s %s", kind, meta["name"])
            resource, namespace = RESOURCES[kind], meta.get("namespace")
            # What has Pods goes after them; the rest at once, so that it is gone when the status says so.
            how = "Foreground" if kind in ("DaemonSet", "Deployment") else None
            with ignoring(is_not_found):
                await self._api.delete(resource, meta["name"], namespace, uid=meta["uid"], propagation=how)

    # -- telling

    async def _report(self, installation: Installation, findings: Findings) -> None:
        findings.deployments = self._world.control_plane()
        findings.daemon_sets = self._world.named("DaemonSet")
        findings.nodes = self._world.nodes.list()
        findings.instances = self._world.running_instances()
        findings.unserved = unserved(self._world.handlers(), self._world.down(), self._now())
        if network := installation.migrations.network:
            findings.off_network = [pod.node for pod in self._world.handlers() if pod.ready and pod.lacks(network)]
        pods = [pod for name in findings.deployments for pod in self._world.pods_of(name)]
        findings.trouble = next((pod.failure for pod in pods if pod.failure and not pod.ending), "")
        status = conditions.status(installation, findings, self._timestamp())
        own = names.ARCHITECTURES.get(platform.machine(), platform.machine())
        status["defaultArchitecture"] = installation.known_architecture or own
        status["generations"] = self._world.generations()
        self._tell_of_trouble(installation.kubevirt, status)
        await self._world.write_status(installation.kubevirt, status)

    def _tell_of_trouble(self, kubevirt: Obj, status: Obj) -> None:
        """An event when trouble begins or changes, not each time that it is seen."""
        [now] = [c for c in status["conditions"] if c["type"] == DEGRADED]
        before = (kubevirt.get("status") or {}).get("conditions") or ()
        known = [(c.get("reason"), c.get("message")) for c in before if c["type"] == DEGRADED and c["status"] == "True"]
        if now["status"] == "True" and (now["reason"], now["message"]) not in known:
            self._recorder.warning(Reference.of(kubevirt), now["reason"], now["message"])

    async def _report_second(self, kubevirt: Obj) -> None:
        why = f"there is an installation already: {self._in_charge()}; delete this one"
        verdicts = [conditions.Verdict(DEGRADED, True, "ExistingDeployment", why)]
        old = (kubevirt.get("status") or {}).get("conditions") or ()
        held = conditions.conditions(old, verdicts, self._timestamp())
        await self._world.write_status(kubevirt, {"conditions": held})

    def _timestamp(self) -> str:
        return times.timestamp(self._now().timestamp())
