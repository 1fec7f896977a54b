"""A guest that counts and moves on a local cluster, and what can happen around it meanwhile.

The guest is the boot sector of `component.moving`: each count that it says on its serial port it has in its memory and
on its disk. What it said is read from the logs of its Pods, which are kept open, because Pods go.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeVar

from bench.processes import Process
from component.moving import DAEMONS, counted
from virtfleet.kube.client import Client
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import PODS, VMI_MIGRATIONS, VMIS, Obj
from vm.trouble.fleet import LAUNCHER, NODES, Fleet, kill, tiny
from waiting import pause

T = TypeVar("T")
NAMESPACE, NAME = "default", "mover"
IMAGE = "virtfleet/disk:counts"
FINAL = ("Succeeded", "Failed")
PATIENCE = 300.0  # seconds; a node is told lost only after minutes, and components are started again ever more slowly
HARMLESS = ("nothing", "is told to end", "the controllers die")
QEMU = "qemu-system-x86_64"
CUT = """
table inet vf_cut {{
    chain in {{ type filter hook input priority 0; ip saddr {0} drop; }}
    chain out {{ type filter hook output priority 0; ip daddr {0} drop; }}
}}
"""


def counts() -> Obj:
    """The VMI whose guest counts."""
    root = {"name": "root", "containerDisk": {"image": IMAGE, "imagePullPolicy": "IfNotPresent"}}
    vmi = tiny(NAME, volumes=[root])
    vmi["spec"]["domain"]["devices"]["logSerialConsole"] = True
    return vmi


async def eventually(condition: Callable[[], Awaitable[T]], what: str, limit: float = PATIENCE) -> T:
    """The first truthy answer; there may be no API server for a while."""
    end, last = time.monotonic() + limit, ""
    while (began := time.monotonic()) < end:
        try:
            if answer := await condition():
                return answer
        except (ApiError, AssertionError) as error:
            last = str(error)
        await asyncio.sleep(pause(time.monotonic() - began))
    raise AssertionError(f"{what}: not within {limit:.0f} s; {last}")


@contextmanager
def no_link(near: Process, address: str) -> Iterator[None]:
    """Nothing of what goes between a Pod and an address arrives. Only in a namespace of the Pod's own."""
    with open(f"/proc/{near.pid}/ns/net") as namespace:
        inode = os.fstat(namespace.fileno()).st_ino
        assert inode != os.stat("/proc/self/ns/net").st_ino

        def nft(script: str) -> None:
            enter = ["nsenter", f"--net=/proc/self/fd/{namespace.fileno()}", "nft", "-f", "-"]
            subprocess.run(enter, input=script, text=True, check=True, pass_fds=[namespace.fileno()], timeout=20)

        nft(CUT.format(address))
        try:
            yield
        finally:
            nft("delete table inet vf_cut")


@dataclass
class Guest:
    """One run of the VMI, wherever it is."""

    fleet: Fleet
    api: Client
    uid: str = ""
    visited: list[str] = field(default_factory=list)
    """UIDs of the Pods that it has run in, one after the other."""
    _logs: dict[str, BinaryIO] = field(default_factory=dict)

    async def start(self) -> None:
        await eventually(self._created, "a VMI is made")
        vmi = await eventually(self._running, "the guest runs")
        self.uid = vmi["metadata"]["uid"]
        self.visited, self._logs = list(vmi["status"]["activePods"]), {}
        await self.goes_on()

    async def _created(self) -> bool:
        try:
            await self.api.create(VMIS, counts())
        except ApiError as error:
            return error.reason == "AlreadyExists"
        return True

    async def _running(self) -> Obj:
        vmi = await self.vmi()
        assert (vmi.get("status") or {}).get("phase") == "Running", vmi.get("status")
        return vmi

    async def vmi(self) -> Obj:
        return await self.api.get(VMIS, NAME, NAMESPACE)

    async def end(self) -> None:
        async def gone() -> bool:
            try:
                await self.api.delete(VMIS, NAME, NAMESPACE)
            except ApiError as error:
                return error.reason == "NotFound"
            return False

        await eventually(gone, "the VMI goes")
        for log in self._logs.values():
            log.close()

    # What it says.

    def listen(self) -> None:
        """Open the logs of all its Pods; some are on their way out."""
        pods = "nodes/*/root/var/lib/kubelet/pods"
        logs = self.fleet.data.glob(f"{pods}/*/volumes/kubernetes.io~empty-dir/private/{self.uid}/*serial0-log")
        with suppress(FileNotFoundError):
            for path in logs:
                pod = path.relative_to(self.fleet.data).parts[7]
                if pod not in self._logs:
                    self._logs[pod] = path.open("rb")

    def said(self, pod: str) -> str:
        self.listen()
        log = self._logs.get(pod)
        if log is None:
            return ""
        return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode(errors="replace")

    def counted(self) -> list[int]:
        """Every count so far: none is missing, none comes twice, and nobody else has counted."""
        found = counted(*(self.said(pod) for pod in self.visited))
        assert found == list(range(1, len(found) + 1)), _odd(found)
        others = {pod: self.said(pod)[-50:] for pod in self.elsewhere()}
        assert not others, f"the guest runs elsewhere, too: {others}"
        return found

    def elsewhere(self) -> list[str]:
        """Pods in which it has counted, other than those that it is known to have been in."""
        self.listen()
        return [pod for pod in [*self._logs] if pod not in self.visited and self.said(pod)]

    async def goes_on(self) -> None:
        before = len(self.counted())

        async def more() -> bool:
            return len(self.counted()) > before + 5

        await eventually(more, "the guest counts on", 60)

    # Its processes.

    def processes(self, pod: str, *programs: str) -> list[Process]:
        return [p for p in self.fleet.processes() if p.pod == pod and p.program.startswith(programs)]

    async def pods(self) -> list[Obj]:
        found = await self.api.list(PODS, NAMESPACE, labels=f"kubevirt.io/created-by={self.uid}")
        return [pod for pod in found if pod["status"].get("phase") not in FINAL]


def _odd(found: list[int]) -> str:
    at = next((n for n, count in enumerate(found) if count != n + 1), len(found))
    return f"counts around the {at}th: {found[max(0, at - 3) : at + 4]}"


@dataclass
class Round:
    """One migration, and what happens to it."""

    guest: Guest
    number: int
    what: str
    stage: str
    later: float
    """Seconds after the stage was reached."""
    gap: float
    """Seconds without a link, where that is what happens."""
    told: str = ""

    def __str__(self) -> str:
        return f"{self.number:3} {self.what}, {self.later:.2f} s after {self.stage}: {self.told}"

    @property
    def name(self) -> str:
        return f"move-{self.number}"

    async def run(self) -> None:
        began = time.monotonic()
        await eventually(self._begun, "a migration is made")
        await eventually(self._reached, f"the migration comes to {self.stage}")
        await asyncio.sleep(self.later)
        await WHAT[self.what](self)
        migration = await eventually(self._over, f"{self.name} ends")
        state = migration["status"].get("migrationState") or {}
        self.told = f"{migration['status']['phase']} {state.get('failureReason', '')}".strip()
        assert migration["status"]["phase"] == "Succeeded" or state.get("failureReason"), "a failure has its reason"
        over = time.monotonic()
        await eventually(self._settled, "one Pod is left")
        self.told += f" ({over - began:.0f} s, cleared away in {time.monotonic() - over:.0f} s)"
        await self._judge(migration)

    async def _begun(self) -> bool:
        kind = {"apiVersion": VMI_MIGRATIONS.api_version, "kind": VMI_MIGRATIONS.kind}
        meta = {"name": self.name, "namespace": NAMESPACE}
        try:
            await self.guest.api.create(VMI_MIGRATIONS, {**kind, "metadata": meta, "spec": {"vmiName": NAME}})
        except ApiError as error:
            return error.reason == "AlreadyExists"
        return True

    async def _migration(self) -> Obj:
        return await self.guest.api.get(VMI_MIGRATIONS, self.name, NAMESPACE)

    async def _over(self) -> Obj | None:
        self.guest.listen()
        migration = await self._migration()
        return migration if (migration.get("status") or {}).get("phase") in FINAL else None

    async def _reached(self) -> bool:
        self.guest.listen()
        migration = await self._migration()
        if (migration.get("status") or {}).get("phase") in FINAL:
            return True
        state = await self.state()
        return STAGES[self.stage](state)

    async def state(self) -> dict[str, Any]:
        """What the VMI says of this migration."""
        state = (await self.guest.vmi())["status"].get("migrationState") or {}
        return state if state.get("migrationUid") == (await self._migration())["metadata"]["uid"] else {}

    async def _settled(self) -> bool:
        """Whether the VMI, its Pods and their processes agree on where the guest is, or that there is none."""
        guest = self.guest
        vmi, pods = await guest.vmi(), [pod["metadata"]["uid"] for pod in await guest.pods()]
        status = vmi["status"]
        wanted = 0 if status["phase"] in FINAL else 1
        alive = [p for p in guest.fleet.processes() if p.program == QEMU]
        assert len(pods) == wanted and [p.pod for p in alive] == pods, f"{status['phase']}: {pods} {alive}"
        if wanted:
            assert alive[0].node == status["nodeName"] and list(status["activePods"]) == pods, status
        every = {pod["metadata"]["uid"] for pod in await guest.api.list(PODS)}
        left = await asyncio.to_thread(guest.fleet.remains, every)
        assert not left, left
        return True

    async def _judge(self, migration: Obj) -> None:
        guest, moved = self.guest, migration["status"]["phase"] == "Succeeded"
        vmi = await guest.vmi()
        if vmi["status"]["phase"] in FINAL:
            assert any(word in self.what for word in ("QEMU", "launcher")), f"{self}: the guest is lost"
            self.told += f"; lost: {vmi['status']['phase']}"
            # It may have come to the target and been killed there, before or after anybody could say so.
            guest.visited += guest.elsewhere()
            guest.counted()
            return
        (pod,) = await guest.pods()
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        said = name == migration["status"]["migrationState"]["targetPod"] if moved else uid == guest.visited[-1]
        assert said and moved == (uid != guest.visited[-1]), f"{self}: that is not what became of it"
        assert moved or not self.what.endswith(HARMLESS), str(self)
        if moved:
            guest.visited.append(uid)
        await guest.goes_on()

    # What happens.

    async def kill(self, side: str, *programs: str) -> None:
        state = await self._sides()
        name = state.get(f"{side}Pod")
        for pod in await self.guest.pods():
            if pod["metadata"]["name"] == name:
                for process in self.guest.processes(pod["metadata"]["uid"], *programs):
                    kill(process)

    async def end_handler(self, side: str, number: signal.Signals = signal.SIGKILL) -> None:
        node = (await self._sides()).get(f"{side}Node")
        for process in self.guest.fleet.programs("handler"):
            if process.node == node:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    async def kill_controllers(self) -> None:
        for process in self.guest.fleet.programs("controller"):
            kill(process)

    async def kill_api_server(self) -> None:
        self.guest.fleet.kill_supervised("control-plane")

    async def cut(self) -> None:
        handlers = await self.guest.api.list(PODS, "kubevirt", labels="kubevirt.io=virt-handler")
        addresses = {pod["spec"]["nodeName"]: pod["status"].get("podIP", "") for pod in handlers}
        near = [p for p in self.guest.fleet.programs("handler") if p.node == NODES[0]]
        if near and addresses.get(NODES[1]):
            with no_link(near[0], addresses[NODES[1]]):
                await asyncio.sleep(self.gap)

    async def nothing(self) -> None:
        pass

    async def _sides(self) -> dict[str, Any]:
        """Nodes and Pods of this migration, whether or not it was handed over yet."""
        if state := await self.state():
            return state
        vmi, pods = await self.guest.vmi(), await self.guest.pods()
        found: dict[str, Any] = {}
        for pod in pods:
            side = "source" if pod["metadata"]["uid"] == self.guest.visited[-1] else "target"
            found |= {f"{side}Pod": pod["metadata"]["name"], f"{side}Node": pod["spec"].get("nodeName", "")}
        return {"sourceNode": vmi["status"]["nodeName"], **found}


STAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "its creation": lambda state: True,
    "its hand-over": lambda state: state.get("targetPod"),
    "the target is ready": lambda state: state.get("targetNodeAddress"),
    "the guest is being sent": lambda state: state.get("startTimestamp"),
}
WHAT: dict[str, Callable[[Round], Awaitable[None]]] = {
    "nothing": Round.nothing,
    "the source's launcher dies": lambda r: r.kill("source", LAUNCHER),
    "the target's launcher dies": lambda r: r.kill("target", LAUNCHER),
    "the source's libvirt dies": lambda r: r.kill("source", *DAEMONS),
    "the target's libvirt dies": lambda r: r.kill("target", *DAEMONS),
    "the source's QEMU dies": lambda r: r.kill("source", QEMU),
    "the target's QEMU dies": lambda r: r.kill("target", QEMU),
    "the source's handler dies": lambda r: r.end_handler("source"),
    "the target's handler dies": lambda r: r.end_handler("target"),
    "the source's handler is told to end": lambda r: r.end_handler("source", signal.SIGTERM),
    "the target's handler is told to end": lambda r: r.end_handler("target", signal.SIGTERM),
    "the controllers die": Round.kill_controllers,
    "the API server dies": Round.kill_api_server,
    "the link is cut": Round.cut,
}


def rounds(guest: Guest, number: int, chance: random.Random, longest_gap: float) -> Iterator[Round]:
    """Everything has its turn, in a random order each time; the last one is not disturbed."""
    order: list[str] = []
    for n in range(number):
        if not order:
            order = chance.sample(list(WHAT), len(WHAT))
        what, stage = order.pop(), chance.choice([*STAGES, "the guest is being sent", "the target is ready"])
        later, gap = chance.uniform(0, 1.2), chance.uniform(0.5, longest_gap)
        yield Round(guest, n, what, stage, later, gap)
    yield Round(guest, number, "nothing", "its creation", 0, 0)
