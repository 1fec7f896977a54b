"""Ten VMs come and go while everything around them is killed or frozen; then all is as it was asked for, and nothing is
left: no VM lost, none twice, no process, mount or control group without an owner.

Every kind of process has its turn: supervisor, control plane, agents, conmon, components (device plugins are a
part of agents and handlers), launchers, libvirt's daemons and QEMU. How often each was killed is printed at the end.
Every choice comes from one seed, which is shown where the test fails. VIRTFLEET_CHAOS_SEED repeats a run (as far as two
runs can be alike), VIRTFLEET_CHAOS_SECONDS makes it longer: an hour (3600) is good for more than 1,000 kills.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
import pytest

from bench.processes import Process
from virtfleet.kube import config
from virtfleet.kube.cache import Cache
from virtfleet.kube.client import Client
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import PODS, VMIS, VMS, Obj, Resource
from virtfleet.local import supervisor
from virtfleet.work.pacing import Backoff
from vm.trouble.fleet import COMPONENTS, LAUNCHER, NODES, Fleet, kill, machine, tiny

SECONDS = float(os.environ.get("VIRTFLEET_CHAOS_SECONDS", "60"))
SEED = int(os.environ.get("VIRTFLEET_CHAOS_SEED", "1"))
SETTLED = 400.0  # seconds for everything to be in order again; a container that was killed often waits for minutes
MOST = 10
NAMESPACE = "default"
LAUNCHERS = "kubevirt.io=virt-launcher"
ORDER = ("", "Pending", "Scheduling", "Scheduled", "Running", "Succeeded", "Failed")
FINAL = ("Succeeded", "Failed")

pytestmark = [
    pytest.mark.local_home("it kills processes on this machine"),
    pytest.mark.timeout(SECONDS + 2 * SETTLED + 300),
]


class Witness:
    """Sees every Pod and VMI as they change, as long as there is an API server."""

    def __init__(self, api: Client) -> None:
        self.pods: Cache[Obj] = Cache(api, PODS, namespace=NAMESPACE, labels=LAUNCHERS, decode=orjson.loads)
        self.vmis: Cache[Obj] = Cache(api, VMIS, namespace=NAMESPACE, decode=orjson.loads)
        self.faults: list[str] = []
        self._handed_over: dict[str, set[str]] = defaultdict(set)
        self.pods.on_change(self._pod)
        self.vmis.on_change(self._vmi)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(cache.run()) for cache in (self.pods, self.vmis)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _pod(self, _key: str, _old: Obj | None, new: Obj | None) -> None:
        if new is not None:
            owner = new["metadata"]["ownerReferences"][0]["uid"]
            owned = [p for p in self.pods.list() if p["metadata"]["ownerReferences"][0]["uid"] == owner]
            if len(owned) > 1:
                self.faults.append(f"VMI {owner} has {len(owned)} Pods")

    def _vmi(self, key: str, old: Obj | None, new: Obj | None) -> None:
        if new is None:
            return
        uid, status = new["metadata"]["uid"], new.get("status") or {}
        self._handed_over[uid] |= set(status.get("activePods") or ())
        if len(self._handed_over[uid]) > 1:
            self.faults.append(f"{key} was handed over twice")
        before = (old or {}).get("status", {}).get("phase", "") if old and old["metadata"]["uid"] == uid else ""
        if ORDER.index(status.get("phase", "")) < ORDER.index(before):
            self.faults.append(f"{key} went from {before} back to {status.get('phase')}")


class Chaos:
    """What is asked for, and what is done to it. `doomed` are VMIs whose own processes were killed."""

    def __init__(self, fleet: Fleet, api: Client, witness: Witness, chance: random.Random) -> None:
        self.fleet = fleet
        self.wanted: dict[str, Resource] = {}
        self.doomed: set[str] = set()
        self.history: list[str] = []
        self.kills: Counter[str] = Counter()
        self.freezes: Counter[str] = Counter()
        self._repairs: set[asyncio.Task[None]] = set()
        self._api = api
        self._witness = witness
        self._chance = chance
        self._made = 0
        self._began = time.monotonic()
        self._disasters: dict[Callable[[], Awaitable[None]], int] = {
            self._kill_component: 10,
            self._delete_component: 2,
            self._kill_daemon: 4,
            self._kill_launcher: 1,
            self._kill_monitor: 1,
            self._kill_agent: 3,
            self._kill_api_server: 2,
            self._lose_api_server: 1,
            self._kill_supervisor: 1,
            self._kill_node: 1,
            self._freeze: 4,
        }

    def note(self, what: str) -> None:
        self.history.append(f"{time.monotonic() - self._began:6.1f} {what}")

    async def run(self, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._come_and_go(seconds))
            group.create_task(self._break(seconds))
        await asyncio.gather(*self._repairs)
        await self._up()

    # VMs.

    async def _come_and_go(self, seconds: float) -> None:
        while time.monotonic() - self._began < seconds:
            if len(self.wanted) < MOST and (len(self.wanted) < 3 or self._chance.random() < 0.6):
                await self._create()
            else:
                await self._delete(self._chance.choice(sorted(self.wanted)))
            await asyncio.sleep(self._chance.uniform(0.5, 4.0))

    async def _create(self) -> None:
        self._made += 1
        name = f"vm{self._made}"
        is_vm = self._chance.random() < 0.3
        self.wanted[name] = VMS if is_vm else VMIS
        self.note(f"create {self.wanted[name].plural} {name}")
        obj = machine(tiny(name)) if is_vm else tiny(name)
        await surely(lambda: self._api.create(self.wanted[name], obj), "AlreadyExists")

    async def _delete(self, name: str) -> None:
        kind = self.wanted.pop(name)
        self.note(f"delete {kind.plural} {name}")
        await surely(lambda: self._api.delete(kind, name, NAMESPACE), "NotFound")

    async def delete_all(self) -> None:
        for name in sorted(self.wanted):
            await self._delete(name)

    # Disasters.

    async def _break(self, seconds: float) -> None:
        while time.monotonic() - self._began < seconds:
            await asyncio.sleep(self._chance.uniform(0.5, 4.0))
            chosen = self._chance.choices(list(self._disasters), list(self._disasters.values()))[0]
            with suppress(supervisor.NotRunning, RuntimeError, OSError):  # whoever should do it was killed before
                await chosen()

    async def _kill_component(self) -> None:
        self._kill(self._chance.choice(COMPONENTS))

    async def _delete_component(self) -> None:
        """Without grace, as one does with Pods that hang."""
        chosen = self._chance.choice(("virt-operator", "virt-controller", "virt-api", "virt-handler"))
        pods = await surely(lambda: self._api.list(PODS, "kubevirt", labels=f"kubevirt.io={chosen}"), "")
        if pods:
            name = self._chance.choice(sorted(p["metadata"]["name"] for p in pods))
            self.note(f"delete pod {name}")
            await surely(lambda: self._api.delete(PODS, name, "kubevirt", grace=0), "NotFound")

    async def _kill_daemon(self) -> None:
        """A VM does not notice when libvirt's daemons die."""
        self._kill("libvirtd")

    async def _kill_launcher(self) -> None:
        process = self._kill(self._chance.choice((LAUNCHER, "qemu-system-x86_64")))
        if process:
            self._doom(process.pod)

    async def _kill_monitor(self) -> None:
        """Nobody knows any more how its container ends, so the container is ended."""
        monitors = sorted(self.fleet.programs("conmon"), key=lambda p: p.pid)
        process = self._chance.choice(monitors)
        pod = self.fleet.watched_pod(process)
        self.note(f"kill conmon on {process.node}, pod {pod}")
        self._doom(pod)
        kill(process)
        self.kills["conmon"] += 1

    async def _kill_agent(self) -> None:
        node = self._chance.choice(NODES)
        self.note(f"kill agent of {node}")
        self.kills["agent"] += self.fleet.kill_supervised(node)

    async def _kill_api_server(self) -> None:
        self.note("kill API server")
        self.kills["control plane"] += self.fleet.kill_supervised("control-plane")

    async def _kill_supervisor(self) -> None:
        """Only a person can bring it back, who does so while the rest goes on breaking."""
        self.note("kill supervisor")
        self.fleet.kill_supervisor()
        self.kills["supervisor"] += 1
        self.kills["control plane"] += 1
        self.kills["agent"] += len(NODES)
        self._later(self._up())

    async def _up(self) -> None:
        done = await asyncio.to_thread(self.fleet.cluster.virtfleet, "up", check=False)
        self.note(f"up: {done.returncode} {done.stderr.splitlines()[-1:]}")

    async def _freeze(self) -> None:
        """Stopped, and going on later as if nothing had been."""
        program = self._chance.choice((*COMPONENTS, "libvirtd", "agent", "control plane"))
        if program in ("agent", "control plane"):
            pid = self.fleet.supervised(self._chance.choice(NODES) if program == "agent" else "control-plane")
        else:
            found = sorted(process.pid for process in self.fleet.programs(program))
            pid = self._chance.choice(found) if found else 0
        if pid:
            seconds = self._chance.uniform(1, 30)
            self.note(f"freeze {program} for {seconds:.0f} s")
            os.kill(pid, signal.SIGSTOP)
            self.freezes[program] += 1
            self._later(self._thaw(pid, seconds))

    async def _thaw(self, pid: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._repairs.add(task)
        task.add_done_callback(self._repairs.discard)

    async def _lose_api_server(self) -> None:
        seconds = self._chance.uniform(5, 15)
        self.note(f"no API server for {seconds:.0f} s")
        await asyncio.to_thread(self.fleet.take_api_server_away)
        self.kills["control plane"] += 1
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.fleet.bring_api_server_back)

    async def _kill_node(self) -> None:
        node = self._chance.choice(NODES)
        self.note(f"kill {node}")
        self.kills["agent"] += 1
        self.kills.update(process.program for process in self.fleet.kill_node(node))
        # Also those that are about to come there: their Pods may have been started already.
        for pod in self._witness.pods.list():
            self._doom(pod["metadata"]["uid"])

    def _kill(self, program: str) -> Process | None:
        found = self.fleet.programs(program)
        if not found:
            return None
        process = self._chance.choice(sorted(found, key=lambda p: p.pid))
        self.note(f"kill {program} on {process.node}, pod {process.pod}")
        kill(process)
        self.kills[program] += 1
        return process

    def _doom(self, pod: str) -> None:
        self.doomed |= {
            p["metadata"]["ownerReferences"][0]["uid"] for p in self._witness.pods.list() if p["metadata"]["uid"] == pod
        }


async def surely(attempt: Callable[[], Awaitable[Obj]], done: str) -> Obj:
    """The answer of an API server that may be away, or that may have done it without its answer getting through."""
    backoff = Backoff(0.2, 2.0)
    while True:
        try:
            return await attempt()
        except ApiError as error:
            if error.reason == done:
                return {}
            await asyncio.sleep(backoff.next())


async def in_order(api: Client, chaos: Chaos) -> list[str]:
    """What is not yet as it was asked for."""
    vmis = {v["metadata"]["name"]: v for v in await api.list(VMIS, NAMESPACE)}
    vms = {v["metadata"]["name"]: v for v in await api.list(VMS, NAMESPACE)}
    launchers = await api.list(PODS, NAMESPACE, labels=LAUNCHERS)
    wrong = [
        f"{kind} {name} should be gone"
        for kind, found in (("VM", vms), ("VMI", vmis))
        for name in found
        if name not in chaos.wanted
    ]
    for name, kind in chaos.wanted.items():
        if kind is VMS:
            said = (vms.get(name) or {}).get("status", {}).get("printableStatus")
            wrong += [] if said == "Running" else [f"VM {name} is {said}"]
        phase = (vmis.get(name) or {}).get("status", {}).get("phase")
        may_have_ended = kind is VMIS and phase in FINAL and vmis[name]["metadata"]["uid"] in chaos.doomed
        wrong += [] if phase == "Running" or may_have_ended else [f"VMI {name} is {phase}"]
    running = {v["metadata"]["uid"]: n for n, v in vmis.items() if v["status"].get("phase") == "Running"}
    alive = [p for p in launchers if p["status"]["phase"] not in FINAL]
    owners = sorted(p["metadata"]["ownerReferences"][0]["uid"] for p in alive)
    wrong += [] if owners == sorted(running) else [f"{len(alive)} Pods for {len(running)} VMIs that run"]
    everywhere = {p["metadata"]["uid"] for p in await api.list(PODS)}
    return wrong + await asyncio.to_thread(chaos.fleet.remains, everywhere)


async def settled(api: Client, chaos: Chaos) -> None:
    wrong: list[str] = ["never looked"]
    end = time.monotonic() + SETTLED
    while time.monotonic() < end:
        try:
            wrong = await in_order(api, chaos)
        except ApiError as error:
            wrong = [f"the API server: {error}"]
        if not wrong:
            return
        await asyncio.sleep(0.5)
    pytest.fail("\n".join([f"after {SETTLED:.0f} s, seed {SEED}:", *wrong, "history:", *chaos.history]))


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counted.most_common())


async def test_vms_come_and_go_while_everything_around_them_is_killed(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Client(config.load(fleet.cluster.kubeconfig)) as api:
        witness = Witness(api)
        chaos = Chaos(fleet, api, witness, random.Random(SEED))
        async with witness.watching():
            await chaos.run(SECONDS)
            with capsys.disabled():
                sys.stdout.write(f"\n{chaos.kills.total()} kills: {_counts(chaos.kills)}\n")
                sys.stdout.write(f"{chaos.freezes.total()} freezes: {_counts(chaos.freezes)}\n")
            await settled(api, chaos)
            assert not chaos.wanted or fleet.remains(set()), "what is there is found"
            await chaos.delete_all()
            await settled(api, chaos)
        assert not witness.faults, "\n".join([f"seed {SEED}:", *witness.faults, "history:", *chaos.history])
