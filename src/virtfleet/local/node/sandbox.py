"""Pod sandboxes: the namespaces that a pod's containers share, and the files that tell them who and where they are.

The namespaces are held by bind mounts, not by a process: nothing that could be killed, nothing to reap. Process ids are
the exception, because such a namespace lives only as long as its first process: each container has its own.
"""

from __future__ import annotations

import contextlib
import time
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import msgspec

from virtfleet.kube.resource import Obj
from virtfleet.local.node import mounts, network, secondary
from virtfleet.local.node.bundle import Mount
from virtfleet.local.node.containers import write_atomically
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.network import ClusterNetwork
from virtfleet.local.node.runtime import RuntimeFailure, boot_id
from virtfleet.local.node.succession import Predecessor
from virtfleet.work.commands import run

_SHM_SIZE = "64m"
_NAME_LIMIT = 63
_FOLLOWED = "followed-"  # file in the sandbox of a pod that has another one's address, before that address


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A finished sandbox. Without addresses of its own (hostNetwork) `address` is empty."""

    pod: str
    hostname: str
    boot: str
    namespaces: dict[str, str]
    address: str = ""
    address6: str = ""
    created: float = 0
    follows: str = ""
    """The pod that has the address until this one succeeds it."""

    @property
    def addresses(self) -> list[str]:
        return [address for address in (self.address, self.address6) if address]


class Sandboxes:
    """The sandboxes of one node, and the addresses they take from its range."""

    def __init__(self, layout: Layout, net: ClusterNetwork, addresses: IPv4Network) -> None:
        self._layout, self._network, self._range = layout, net, addresses
        self._taken: dict[str, str] = {}  # pod -> address
        self._last = addresses[0]

    async def adopt(self, wanted: set[str]) -> None:
        """Learn of the sandboxes that an agent before this one left; remove those of pods that are no more."""
        for path in sorted(self._layout.sandboxes.iterdir()):
            sandbox = self._load(path.name)
            if sandbox is None or path.name not in wanted:
                await self.remove(path.name)
            elif sandbox.address:
                self._taken[sandbox.pod] = sandbox.address

    async def ensure(self, pod: Obj, before: Predecessor | None) -> Sandbox:
        """The pod's sandbox, made if it is not there yet; with the address of the one before it, if there is one."""
        uid = pod["metadata"]["uid"]
        if (existing := self._load(uid)) is not None:
            return existing
        home, spec = self._layout.sandboxes / uid, pod["spec"]
        if home.exists():  # a killed agent had begun it
            await self.remove(uid)
        (home / "ns").mkdir(parents=True)
        asked = str(spec.get("hostname") or pod["metadata"]["name"])[:_NAME_LIMIT].rstrip("-.")
        hostname = self._layout.node if spec.get("hostNetwork") else asked
        kinds = ([] if spec.get("hostNetwork") else ["net", "uts"]) + ([] if spec.get("hostIPC") else ["ipc"])
        address = address6 = ""
        if spec.get("hostNetwork"):
            await _make_namespaces(home / "ns", kinds, "true")
        else:
            chosen = self._follow(uid, before.address) if before else self._choose(uid)
            interfaces = network.pod_interfaces(self._network, uid, chosen)
            inside = ("sh", "-c", 'hostname "$0" && exec ip -batch -', hostname)
            await _make_namespaces(home / "ns", kinds, *inside, feed=interfaces)
            if before:
                await network.silence(home / "ns" / "net")
            await network.attach(self._network, uid, follows=before is not None)
            address = str(chosen)
            address6 = str(self._network.address6(chosen)) if network.has_ipv6() else ""
        if not spec.get("hostIPC"):
            (home / "shm").mkdir(mode=0o1777)
            flags = mounts.NOSUID | mounts.NODEV | mounts.NOEXEC
            mounts.mount("shm", home / "shm", "tmpfs", flags, f"size={_SHM_SIZE}")
        sandbox = Sandbox(
            pod=uid,
            hostname=hostname,
            boot=boot_id(),
            namespaces={"network" if kind == "net" else kind: str(home / "ns" / kind) for kind in kinds},
            address=address,
            address6=address6,
            created=time.time(),
            follows=before.uid if before else "",
        )
        _write_files(home, pod, sandbox)
        return self._save(sandbox)

    def _save(self, sandbox: Sandbox) -> Sandbox:
        write_atomically(self._layout.sandboxes / sandbox.pod / "sandbox.json", msgspec.json.encode(sandbox))
        return sandbox

    async def succeed(self, sandbox: Sandbox) -> Sandbox:
        """Let the pod be reached under its address, and not the one any more that had it so far."""
        namespace = self._layout.sandboxes / sandbox.pod / "ns" / "net"
        await network.hand_over(self._network, sandbox.follows, sandbox.pod, namespace)
        return self._save(msgspec.structs.replace(sandbox, follows=""))

    def files(self, sandbox: Sandbox, pod: Obj) -> list[Mount]:
        """What every container of the pod gets from its sandbox."""
        home = self._layout.sandboxes / sandbox.pod
        shm = "/dev/shm" if pod["spec"].get("hostIPC") else str(home / "shm")
        return [
            Mount(shm, "/dev/shm"),
            *(Mount(str(home / name), f"/etc/{name}") for name in ("hosts", "hostname", "resolv.conf")),
        ]

    async def remove(self, uid: str) -> None:
        """Namespaces go with their last mount, interfaces with their namespace."""
        await secondary.detach_all(self._network, self._layout.sandboxes / uid)
        mounts.remove_tree(self._layout.sandboxes / uid)
        await network.delete_link(self._network.interface(uid))
        self._taken.pop(uid, None)

    def _choose(self, uid: str) -> IPv4Address:
        """An address that nobody has, and that nobody had for as long as possible."""
        elsewhere = {path.name.removeprefix(_FOLLOWED) for path in self._layout.every_sandbox(f"{_FOLLOWED}*")}
        taken, count = {*self._taken.values(), *elsewhere}, self._range.num_addresses
        for step in range(1, count):
            number = (int(self._last) - int(self._range[0]) + step) % count
            chosen = self._range[number]
            if 2 <= number < count - 1 and str(chosen) not in taken:  # neither the node's nor the broadcast address
                self._last, self._taken[uid] = chosen, str(chosen)
                return chosen
        raise RuntimeFailure(f"no pod address is free in {self._range}")

    def _follow(self, uid: str, address: str) -> IPv4Address:
        """An address that may be of another node's range: that one is not to give it to anybody else."""
        (self._layout.sandboxes / uid / f"{_FOLLOWED}{address}").touch()
        self._taken[uid] = address
        return IPv4Address(address)

    def _load(self, uid: str) -> Sandbox | None:
        path = self._layout.sandboxes / uid / "sandbox.json"
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            sandbox = msgspec.json.decode(path.read_bytes(), type=Sandbox)
            if sandbox.boot == boot_id():
                return sandbox
        return None


async def _make_namespaces(directory: Path, kinds: list[str], *command: str, feed: str | None = None) -> None:
    """New namespaces, held by files in `directory`, with the command run in them."""
    for kind in kinds:
        (directory / kind).touch()
    await run("unshare", *(f"--{kind}={directory / kind}" for kind in kinds), *command, feed=feed)


def _write_files(home: Path, pod: Obj, sandbox: Sandbox) -> None:
    machine = Path("/etc/resolv.conf")
    resolv_conf = render_resolv_conf(pod, machine.read_text() if machine.exists() else "")
    files = {"hosts": render_hosts(pod, sandbox), "hostname": f"{sandbox.hostname}\n", "resolv.conf": resolv_conf}
    for name, text in files.items():
        (home / name).write_text(text)
        (home / name).chmod(0o644)


def render_hosts(pod: Obj, sandbox: Sandbox) -> str:
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    names = sandbox.hostname
    if subdomain := pod["spec"].get("subdomain"):
        names = f"{names}.{subdomain}.{pod['metadata']['namespace']}.svc.cluster.local {names}"
    lines += [f"{address}\t{names}" for address in sandbox.addresses or ["127.0.1.1"]]
    lines += [f"{alias['ip']}\t{' '.join(alias['hostnames'])}" for alias in pod["spec"].get("hostAliases") or ()]
    return "\n".join(lines) + "\n"


def render_resolv_conf(pod: Obj, machine: str) -> str:
    """dnsConfig over the machine's own; the cluster has no name server of its own."""
    config = pod["spec"].get("dnsConfig") or {}
    said = {"nameserver": list(config.get("nameservers") or ()), "search": list(config.get("searches") or ())}
    asked = config.get("options") or ()
    said["options"] = [o["name"] + (f":{o['value']}" if o.get("value") else "") for o in asked]
    for key, *words in (line.split() or [""] for line in machine.splitlines()):
        if key in said and pod["spec"].get("dnsPolicy") != "None":
            said[key] += words
    lines = [f"nameserver {server}" for server in said.pop("nameserver")[:3]]
    lines += [f"{key} {' '.join(words)}" for key, words in said.items() if words]
    return "\n".join(lines) + "\n"
