"""DaemonSets: one pod on every node that the template fits, rolled from one revision to the next.

Each template is kept as a ControllerRevision named after its hash, which is what `kubectl rollout history` and `undo`
work on, and which the pods carry as a label.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, is_already_exists
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import CONTROLLER_REVISIONS, DAEMON_SETS, Obj, owner_reference
from virtfleet.local.controllers import ownership
from virtfleet.local.controllers.claiming import adopters, all_of, claim_pods
from virtfleet.local.controllers.daemonset_plan import (
    REVISION,
    Daemon,
    Plan,
    Strategy,
    by_node,
    keep_one_per_node,
    pinned,
    tolerations,
    update,
    wish,
)
from virtfleet.local.controllers.nodes import Node
from virtfleet.local.controllers.pods import Pod, template_of
from virtfleet.local.controllers.podstore import PodStore, owners_of
from virtfleet.local.controllers.presence import remove
from virtfleet.local.controllers.revisions import named, template_hash

GENERATION = "deprecated.daemonset.template.generation"
FIRST_RETRY, LAST_RETRY = 1.0, 900.0  # seconds between deletions of failed pods on one node
BURST = 250  # pods created or deleted in one go


class Retries:
    """How long failed pods of a daemon stay: a node that refuses the daemon must not be flooded with new ones."""

    def __init__(self) -> None:
        self._pauses: dict[tuple[str, int, str], tuple[float, float]] = {}  # -> last deletion, pause after it

    def due(self, key: tuple[str, int, str], now: float) -> float:
        """Seconds until the next failed pod may be replaced; 0 or less means now."""
        last, pause = self._pauses.get(key, (0.0, 0.0))
        if now > last + 2 * LAST_RETRY:
            self._pauses.pop(key, None)
        return last + pause - now

    def replaced(self, key: tuple[str, int, str], now: float) -> None:
        last, pause = self._pauses.get(key, (0.0, FIRST_RETRY / 2))
        pause = FIRST_RETRY / 2 if now > last + 2 * LAST_RETRY else pause
        self._pauses[key] = (now, min(pause * 2, LAST_RETRY))


class DaemonSets:
    """The controller."""

    def __init__(
        self,
        api: KubeApi,
        daemons: Cache[Obj],
        revisions: Cache[Obj],
        pods: PodStore,
        nodes: Cache[Node],
        recorder: Recorder,
    ) -> None:
        self._api = api
        self._daemons = daemons
        self._revisions = revisions
        self._pods = pods
        self._nodes = nodes
        self._recorder = recorder
        self._retries = Retries()
        self._controller = Controller("daemonset", self.reconcile, [nodes], workers=2)
        self._controller.follow(daemons)
        self._controller.follow(pods.cache, owners_of("DaemonSet"))
        self._controller.follow(pods.cache, partial(adopters, daemons))
        self._controller.follow(
            revisions,
            lambda r: [
                f"{r['metadata']['namespace']}/{ref['name']}"
                for ref in r["metadata"].get("ownerReferences") or ()
                if ref["kind"] == "DaemonSet"
            ],
        )
        nodes.on_change(self._node_changed)

    async def run(self) -> None:
        await self._controller.run()

    def _node_changed(self, _name: str, old: Node | None, new: Node | None) -> None:
        """Only what daemons look at matters; heartbeats do not."""
        if old and new and (old.labels, old.taints) == (new.labels, new.taints):
            return
        for key in self._daemons.keys():  # noqa: SIM118 (a cache is no dict)
            self._controller.queue.add(key)

    async def reconcile(self, key: str) -> float | None:
        """Name the template's revision, place and update pods, say how it stands."""
        daemon_set = self._daemons.get(key)
        if daemon_set is None or daemon_set["metadata"].get("deletionTimestamp"):
            return None
        pods = await claim_pods(self._api, self._pods, daemon_set, DAEMON_SETS)
        current, old = await self._keep_revisions(daemon_set)
        if current is None:
            return 0.0
        now = time.time()
        daemon = self._daemon(daemon_set, current, pods, now)
        retry_after: list[float] = []
        plan = keep_one_per_node(daemon, partial(self._may_retry, daemon_set, now, retry_after)) or update(daemon)
        await self._carry_out(daemon_set, current, plan)
        await self._prune(daemon_set, old, pods)
        # The pods are read again: what was just created or deleted counts already.
        now = time.time()
        daemon = self._daemon(daemon_set, current, self._pods.owned_by(daemon_set["metadata"]["uid"]), now)
        await self._write_status(daemon_set, daemon)
        return min([*retry_after, *daemon.until_available()], default=None)

    def _daemon(self, daemon_set: Obj, revision: Obj, pods: list[Pod], now: float) -> Daemon:
        spec = daemon_set["spec"]
        pod_spec = spec["template"]["spec"]
        template = template_of({**spec["template"], "spec": {**pod_spec, "tolerations": tolerations(pod_spec)}})
        wishes = {node.name: wish(node, template) for node in self._nodes.list()}
        desired = sum(w.run for w in wishes.values())
        return Daemon(
            revision=revision["metadata"]["labels"][REVISION],
            strategy=Strategy.of(spec, desired),
            min_ready_seconds=spec.get("minReadySeconds") or 0,
            wishes=wishes,
            pods=by_node(pods),
            now=now,
        )

    def _may_retry(self, daemon_set: Obj, now: float, retry_after: list[float], pod: Pod) -> bool:
        key = (daemon_set["metadata"]["uid"], daemon_set["metadata"].get("generation", 0), pod.node)
        pause = self._retries.due(key, now)
        if pause > 0:
            retry_after.append(pause)
            return False
        self._retries.replaced(key, now)
        return True

    async def _carry_out(self, daemon_set: Obj, revision: Obj, plan: Plan) -> None:
        meta, about = daemon_set["metadata"], ownership.about(daemon_set, DAEMON_SETS)
        for pod in plan.finished:
            if pod.phase == "Failed":
                message = f"Found failed daemon pod {pod.key} on node {pod.node}, will try to kill it"
                self._recorder.warning(about, "FailedDaemonPod", message)
            else:
                message = f"Found succeeded daemon pod {pod.key} on node {pod.node}, will try to delete it"
                self._recorder.normal(about, "SucceededDaemonPod", message)
        try:
            names = await all_of(
                self._pods.create(self._pod(daemon_set, revision, node), meta["namespace"])
                for node in plan.create[:BURST]
            )
        except ApiError as error:
            self._recorder.warning(about, "FailedCreate", f"Error creating: {error.message}")
            raise
        for name in names:
            self._recorder.normal(about, "SuccessfulCreate", f"Created pod: {name}")
        doomed = plan.delete[:BURST]
        await all_of(self._pods.delete(pod) for pod in doomed)
        for pod in doomed:
            self._recorder.normal(about, "SuccessfulDelete", f"Deleted pod: {pod.name}")

    def _pod(self, daemon_set: Obj, revision: Obj, node: str) -> Obj:
        """The daemon's pod for one node."""
        template = daemon_set["spec"]["template"]
        spec = template["spec"]
        pod = ownership.pod_from_template(template, daemon_set, DAEMON_SETS)
        labels = {REVISION: revision["metadata"]["labels"][REVISION]}
        generation = (daemon_set["metadata"].get("annotations") or {}).get(GENERATION)
        if generation:
            labels["pod-template-generation"] = generation
        pod["metadata"]["labels"] = {**(pod["metadata"].get("labels") or {}), **labels}
        pod["spec"] = {**spec, "affinity": pinned(spec.get("affinity"), node), "tolerations": tolerations(spec)}
        return pod

    # -- revisions

    async def _keep_revisions(self, daemon_set: Obj) -> tuple[Obj | None, list[Obj]]:
        """The present template's revision, as the newest one, and the older ones. None where its name was taken."""
        meta = daemon_set["metadata"]
        owned = [
            r
            for r in self._revisions.by_index("namespace", meta["namespace"])
            if ownership.is_controlled_by(r, meta["uid"])
        ]
        data = _data(daemon_set)
        current = max((r for r in owned if r.get("data") == data), key=lambda r: r["revision"], default=None)
        old = [r for r in owned if r is not current]
        number = max((r["revision"] for r in old), default=0) + 1
        if current is None:
            return await self._create_revision(daemon_set, data, number), old
        if current["revision"] < number:
            answer = await self._api.patch(
                CONTROLLER_REVISIONS, current["metadata"]["name"], {"revision": number}, meta["namespace"]
            )
            self._revisions.observe(answer)
        return current, old

    async def _create_revision(self, daemon_set: Obj, data: Obj, number: int) -> Obj | None:
        meta, status = daemon_set["metadata"], daemon_set.get("status") or {}
        template = daemon_set["spec"]["template"]
        name = template_hash(template, status.get("collisionCount"))
        revision: Obj = {
            "apiVersion": CONTROLLER_REVISIONS.api_version,
            "kind": CONTROLLER_REVISIONS.kind,
            "metadata": {
                "name": named(meta["name"], name),
                "namespace": meta["namespace"],
                "labels": {**((template.get("metadata") or {}).get("labels") or {}), REVISION: name},
                "annotations": meta.get("annotations") or {},
                "ownerReferences": [owner_reference(daemon_set, DAEMON_SETS)],
            },
            "data": data,
            "revision": number,
        }
        try:
            created = await self._api.create(CONTROLLER_REVISIONS, revision, meta["namespace"])
        except ApiError as error:
            if not is_already_exists(error):
                raise
            there = await self._api.get(CONTROLLER_REVISIONS, revision["metadata"]["name"], meta["namespace"])
            if ownership.is_controlled_by(there, meta["uid"]) and there.get("data") == data:
                self._revisions.observe(there)
                return there
            await self._patch_status(daemon_set, {"collisionCount": (status.get("collisionCount") or 0) + 1})
            return None
        self._revisions.observe(created)
        return created

    async def _prune(self, daemon_set: Obj, old: list[Obj], pods: list[Pod]) -> None:
        """Forget the oldest revisions beyond the history's limit that no pod has any more."""
        alive = {p.labels.get(REVISION) for p in pods}
        excess = len(old) - daemon_set["spec"].get("revisionHistoryLimit", 10)
        unused = [
            r for r in sorted(old, key=lambda r: r["revision"]) if r["metadata"]["labels"].get(REVISION) not in alive
        ]
        for revision in unused[: max(excess, 0)]:
            await remove(self._api, CONTROLLER_REVISIONS, revision)

    # -- status

    async def _write_status(self, daemon_set: Obj, daemon: Daemon) -> None:
        status = {**daemon.status(), "observedGeneration": daemon_set["metadata"].get("generation", 0)}
        if not status.items() <= (daemon_set.get("status") or {}).items():
            await self._patch_status(daemon_set, status)

    async def _patch_status(self, daemon_set: Obj, status: dict[str, Any]) -> None:
        meta = daemon_set["metadata"]
        answer = await self._api.patch(
            DAEMON_SETS, meta["name"], {"status": status}, meta["namespace"], subresource="status"
        )
        self._daemons.observe(answer)


def _data(daemon_set: Obj) -> Obj:
    """A revision's data: the strategic merge patch that brings this template back."""
    return {"spec": {"template": {**daemon_set["spec"]["template"], "$patch": "replace"}}}
