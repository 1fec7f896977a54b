"""How workloads make and delete their pods: in bounded numbers, with an event on the owner for each."""

from __future__ import annotations

from collections.abc import Sequence

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.controllers.caches import Caches
from virtfleet.local.controllers.collection import about
from virtfleet.local.controllers.pods import Pod
from virtfleet.work.tasks import all_of

BURST = 500  # pods created or deleted in one go


class PodControl:
    """The hands of one controller."""

    def __init__(self, caches: Caches, component: str, resource: Resource) -> None:
        self._pods, self._resource = caches.pods, resource
        self.recorder = caches.recorder(component)

    async def create(self, owner: Obj, wanted: Sequence[Obj]) -> None:
        """Create pods in batches that double, so that what fails for all of them fails only for a few."""
        event, namespace = about(owner, self._resource), owner["metadata"]["namespace"]
        wanted, batch = wanted[:BURST], 1
        while wanted:
            try:
                made = await all_of(*(self._pods.create(pod, namespace) for pod in wanted[:batch]))
            except ApiError as error:
                self.recorder.warning(event, "FailedCreate", f"Error creating: {error.message}")
                raise
            for each in made:
                self.recorder.normal(event, "SuccessfulCreate", f"Created pod: {each['metadata']['name']}")
            wanted, batch = wanted[batch:], batch * 2

    async def delete(self, owner: Obj, doomed: Sequence[Pod]) -> None:
        """Delete pods."""
        doomed = doomed[:BURST]
        await all_of(*(self._pods.remove(pod.key, pod.uid) for pod in doomed))
        for pod in doomed:
            self.recorder.normal(about(owner, self._resource), "SuccessfulDelete", f"Deleted pod: {pod.name}")
