"""Networks of Pods beside the cluster's own: a bridge for each NetworkAttachmentDefinition, which all nodes share.

A Pod says by Multus' annotation what it wants, at first and while it runs; what it has is in a file of its sandbox, and
goes with that. Every attachment is written down before it is made, so that one that a killed agent had begun is made
anew, and nobody else gets its address. The bridges have no address, and the machine answers nobody on them.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import threading
from pathlib import Path

import msgspec
import orjson

from virtfleet.api.addresses import mac_address
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ignoring, is_not_found
from virtfleet.kube.resource import NETWORK_ATTACHMENTS, Obj
from virtfleet.local.node import network
from virtfleet.local.node.attachments import Config, Request, Unusable, config, requested
from virtfleet.local.node.containers import write_atomically
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.network import ClusterNetwork
from virtfleet.local.node.succession import vmi_of
from virtfleet.pods.networks import NETWORK_STATUS
from virtfleet.work.commands import CommandError, run
from virtfleet.work.locks import locked

_RECORD = "networks.json"


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """An interface that a Pod has, or is about to have."""

    network: str
    mac: str
    addresses: list[str] = []
    made: bool = False
    vmi: str = ""
    """The VMI whose Pod it is: one that moves keeps its addresses."""

    def answers(self, wanted: Request | None) -> bool:
        return wanted is not None and self.network == wanted.network and wanted.mac in ("", self.mac)


class SecondaryNetworks:
    """Those of one node's Pods."""

    def __init__(self, layout: Layout, net: ClusterNetwork, api: KubeApi) -> None:
        self._layout, self._network, self._api = layout, net, api

    async def bring(self, pod: Obj, namespace: str, addresses: list[str]) -> dict[str, str]:
        """Attach the Pod to what it asks for and to nothing else; the annotation that says so, where it is due.

        `namespace` is its network namespace, `addresses` what it has in the cluster's network. Raises Unusable, after
        everything else was done.
        """
        uid: str = pod["metadata"]["uid"]
        home, present = self._layout.sandboxes / uid, _read(self._layout.sandboxes / uid / _RECORD)
        wanted, trouble = {each.interface: each for each in requested(pod)}, ""
        if not wanted and not present and NETWORK_STATUS not in (pod["metadata"].get("annotations") or {}):
            return {}
        if wanted and not namespace:
            raise Unusable("a Pod with hostNetwork has the machine's networks, and is attached to no others")
        for name in [name for name, there in present.items() if not there.answers(wanted.get(name))]:
            await network.delete_link(outside(self._network, uid, name))
            del present[name]
            _save(home, present)
        for name, request in wanted.items():
            if name not in present or not present[name].made:
                try:
                    await self._attach(home, namespace, request, present, vmi_of(pod))
                except (Unusable, CommandError) as error:
                    trouble = trouble or f"network {request.network}: {error}"
        if trouble:
            raise Unusable(trouble)
        return {NETWORK_STATUS: orjson.dumps(_status(addresses, present)).decode()}

    async def _attach(
        self, home: Path, namespace: str, request: Request, present: dict[str, Attachment], vmi: str
    ) -> None:
        name, uid = request.interface, home.name
        asked = await self._config(request)
        # One agent at a time: all nodes give out addresses of the same networks.
        with locked(self._layout.data / "networks.lock"):
            made = present.get(name) or self._chosen(uid, request, asked, vmi)
            present[name] = made
            _save(home, present)
        bridge, outer = _bridge(self._network, request.network), outside(self._network, uid, name)
        await _make_bridge(bridge, asked.mtu)
        await network.delete_link(outer)  # of an agent that was killed meanwhile
        machine, size = f"/proc/{threading.get_native_id()}/ns/net", f"mtu {asked.mtu}"
        inside = [
            f"link add dev {name} {size} address {made.mac} type veth peer name {outer} {size} netns {machine}",
            f"link set dev {name} up",
            *(f"addr add {address} dev {name}{' nodad' if ':' in address else ''}" for address in made.addresses),
        ]
        await run("nsenter", f"--net={namespace}", "ip", "-batch", "-", feed="\n".join(inside))
        joining = [f"link set {outer} addrgenmode none", f"link set {outer} master {bridge} up"]
        await run("ip", "-batch", "-", feed="\n".join(joining))
        present[name] = msgspec.structs.replace(made, made=True)
        _save(home, present)

    async def _config(self, request: Request) -> Config:
        with ignoring(is_not_found):
            definition = await self._api.get(NETWORK_ATTACHMENTS, request.name, request.namespace)
            return config((definition.get("spec") or {}).get("config"))
        raise Unusable("there is no such NetworkAttachmentDefinition; create it")

    def _chosen(self, uid: str, request: Request, asked: Config, vmi: str) -> Attachment:
        records = [_read(path) for path in self._layout.every_sandbox(_RECORD)]
        there = [each for record in records for each in record.values() if each.network == request.network]
        before = [record.get(request.interface) for record in records] if vmi else []
        mine = next((each for each in before if each and each in there and each.vmi == vmi), None)
        taken = {address for each in there for address in each.addresses}
        addresses = mine.addresses if mine else [pool.choose(taken) for pool in asked.pools]
        mac = request.mac or mac_address(uid, request.interface)
        return Attachment(network=request.network, mac=mac, addresses=addresses, vmi=vmi)


async def detach_all(net: ClusterNetwork, sandbox: Path) -> None:
    """Remove a Pod's interfaces; they may have gone with its namespace already."""
    for name in _read(sandbox / _RECORD):
        await network.delete_link(outside(net, sandbox.name, name))


def _read(path: Path) -> dict[str, Attachment]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Attachment])
    return {}


def _save(home: Path, present: dict[str, Attachment]) -> None:
    write_atomically(home / _RECORD, msgspec.json.encode(present))


def outside(net: ClusterNetwork, pod_uid: str, interface: str) -> str:
    """The machine's end of a Pod's interface."""
    return f"{net.tag}s{_digest(f'{pod_uid}/{interface}')}"


def _bridge(net: ClusterNetwork, definition: str) -> str:
    return f"{net.tag}n{_digest(definition)}"


def _digest(text: str) -> str:
    """Six characters, which is what is left of a name that the kernel takes."""
    return base64.b32encode(hashlib.sha256(text.encode()).digest())[:6].decode().lower()


async def _make_bridge(name: str, mtu: int) -> None:
    if await network.exists(name):
        return
    # Without snooping: nobody on it asks who listens, so nothing may be held back.
    how = f"mtu {mtu} address {mac_address('bridge', name)} type bridge mcast_snooping 0"
    await network.add_link(name, how)
    for setting, value in (("arp_ignore", "8"), ("forwarding", "0")):
        network.sysctl(f"net/ipv4/conf/{name}/{setting}", value)
    await run("ip", "-batch", "-", feed=f"link set {name} addrgenmode none\nlink set {name} up")


def _status(addresses: list[str], present: dict[str, Attachment]) -> list[Obj]:
    """As Multus says it: first the cluster's own network."""
    own = {"name": "virtfleet", "interface": "eth0", "ips": addresses, "default": True, "dns": {}}
    others = [
        {
            "name": there.network,
            "interface": name,
            "ips": [address.partition("/")[0] for address in there.addresses],
            "mac": there.mac,
            "dns": {},
        }
        for name, there in present.items()
    ]
    return [own, *others]
