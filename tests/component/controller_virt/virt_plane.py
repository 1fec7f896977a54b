"""virt-controller on a simulated cluster: a real API server in this process, kubelets and handlers that pretend."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.simulator import NAMESPACE, CountingApi, Simulation, simulation
from component.defined import define
from virtfleet.controller.assembly import VirtController
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import EVENTS, NAMESPACES, PODS, VMIS, VMS, Obj, Resource

DEADLINE = 20.0


class Plane:
    """The cluster, and a controller that can be stopped and started."""

    def __init__(self, cluster: Simulation) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.kubelets = cluster.kubelets
        self.handlers = cluster.handlers
        self.controller_api: CountingApi = cluster.controller_api()
        self.silence = 300.0
        self._running: asyncio.Task[None] | None = None
        self._stops = 0

    def start(self) -> None:
        self._running = asyncio.create_task(VirtController(self.controller_api, silence=self.silence).run())

    async def stop(self) -> None:
        """End the controller at once, wherever it is."""
        if self._running:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None
            # The death of a process ends its writes too, one way or the other; here the server lives on, so wait for
            # those that are on their way: one more write comes after all of them.
            self._stops += 1
            await self.api.patch(NAMESPACES, NAMESPACE, {"metadata": {"annotations": {"stops": str(self._stops)}}})

    # -- objects

    async def create(self, resource: Resource, obj: Obj) -> Obj:
        return await self.api.create(resource, obj, NAMESPACE)

    async def vmi(self, name: str = "vm") -> Obj:
        return await self.api.get(VMIS, name, NAMESPACE)

    async def vm(self, name: str = "vm") -> Obj:
        return await self.api.get(VMS, name, NAMESPACE)

    async def pods(self) -> list[Obj]:
        return await self.api.list(PODS, NAMESPACE)

    async def reasons(self) -> set[str]:
        """Of the events so far."""
        return {event["reason"] for event in await self.api.list(EVENTS, NAMESPACE)}

    # -- waiting

    async def until(self, condition: Callable[[], Awaitable[Any]], deadline: float = DEADLINE) -> Any:
        """The first truthy answer; whatever was last is shown if it never comes."""
        last: Any = None
        end = time.monotonic() + deadline
        while time.monotonic() < end:
            try:
                last = value = await condition()
            except (ApiError, KeyError, AssertionError) as error:
                last, value = error, None
            if value:
                return value
            await asyncio.sleep(0.02)
        raise AssertionError(f"did not come true within {deadline} s; last: {last!r}")

    async def phase(self, phase: str, name: str = "vm") -> Obj:
        """The VMI, once it is in this phase."""

        async def reached() -> Obj | None:
            found = await self.vmi(name)
            return found if found["status"]["phase"] == phase else None

        found: Obj = await self.until(reached)
        return found

    async def condition(self, kind: str, status: str = "True", *, of: Resource = VMIS, name: str = "vm") -> Obj:
        """The condition of an object, once it has this status."""

        async def there() -> Obj | None:
            obj = await self.api.get(of, name, NAMESPACE)
            listed = obj.get("status", {}).get("conditions") or ()
            return next((c for c in listed if c["type"] == kind and c["status"] == status), None)

        found: Obj = await self.until(there)
        return found

    async def printable(self, word: str, name: str = "vm") -> Obj:
        """The VM, once its status says this word."""

        async def said() -> Obj | None:
            found = await self.vm(name)
            return found if found.get("status", {}).get("printableStatus") == word else None

        found: Obj = await self.until(said)
        return found

    async def gone(self, resource: Resource, name: str = "vm") -> None:
        async def absent() -> bool:
            try:
                await self.api.get(resource, name, NAMESPACE)
            except ApiError as error:
                return error.code == 404
            return False

        await self.until(absent)


@asynccontextmanager
async def plane(directory: Path, **settings: Any) -> AsyncIterator[Plane]:
    define(directory / "store")
    async with simulation(directory / "store", **settings) as cluster:
        made = Plane(cluster)
        made.start()
        try:
            yield made
        finally:
            await made.stop()


def a_vmi(name: str = "vm", *, volumes: list[Obj] | None = None, labels: Obj | None = None, **spec: Any) -> Obj:
    domain = {"resources": {"requests": {"memory": "64Mi"}}, "devices": {}}
    return {
        "apiVersion": VMIS.api_version,
        "kind": VMIS.kind,
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"domain": domain, "volumes": volumes or [], **spec},
    }


def a_vm(strategy: str = "Always", name: str = "vm", **spec: Any) -> Obj:
    template = {"metadata": {"labels": {"app": name}}, "spec": a_vmi(**spec)["spec"]}
    return {
        "apiVersion": VMS.api_version,
        "kind": VMS.kind,
        "metadata": {"name": name},
        "spec": {"runStrategy": strategy, "template": template},
    }
