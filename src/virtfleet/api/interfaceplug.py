"""Interfaces that come and go while a VM runs: what an edited VM makes of a running VMI's spec. Pure.

They join networks beside the cluster's, as bridges. One goes by `state: absent`: the guest lets go of it, then it
leaves the VMI's spec, and the template last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from virtfleet.api.hotplug import Obj, Parts, Section, by_name

ABSENT: Final = "absent"
_PARTS = Parts("networks", "interfaces")
differs = _PARTS.differ


def as_declared(spec: Section, template: Section, attached: Collection[str], *, moves: bool) -> Obj:
    """Networks and interfaces of a running VMI as the VM's template has them now, as far as that can be done.

    `attached` are the interfaces that its status knows. Where the VM `moves`, it can go to another network as well.
    """
    networks, interfaces = _PARTS.of(spec)
    declared_networks, declared = map(by_name, _PARTS.of(template))
    kept = [_with_state(each, declared.get(each["name"])) for each in interfaces]
    kept = [each for each in kept if each.get("state") != ABSENT or each["name"] in attached]
    known = {each["name"] for each in interfaces}
    kept += [
        each
        for name, each in declared.items()
        if name not in known and _pluggable(each, declared_networks.get(name)) and each.get("state") != ABSENT
    ]
    there = {each["name"] for each in kept}
    joined = [_renamed(n, declared_networks.get(n["name"])) if moves else n for n in networks if n["name"] in there]
    joined += [each for name, each in declared_networks.items() if name in there - known]
    return _PARTS.written(joined, kept)


def without_gone(template: Section, there: Collection[str]) -> Obj | None:
    """A template without what is to go and is not `there` any more, in the running VMI; None where nothing has gone."""
    networks, interfaces = _PARTS.of(template)
    gone = {each["name"] for each in interfaces if each.get("state") == ABSENT and each["name"] not in there}
    if not gone:
        return None
    return _PARTS.written(*([each for each in part if each["name"] not in gone] for part in (networks, interfaces)))


def as_of_now(started_with: Section, running: Section, template: Section) -> Obj:
    """The template that a VM was started with, but with what has come and gone since; in the order of another one."""
    before, here, order = (tuple(map(by_name, _PARTS.of(spec))) for spec in (started_with, running, template))
    networks = {name: _renamed(before[0].get(name, each), each) for name, each in here[0].items()}
    interfaces = {name: _with_state(before[1].get(name, each), each) for name, each in here[1].items()}
    return _PARTS.into(started_with, _ordered(networks, order[0]), _ordered(interfaces, order[1]))


def _pluggable(interface: Section, network: Section | None) -> bool:
    multus = (network or {}).get("multus")
    return interface.get("bridge") is not None and multus is not None and not multus.get("default")


def _with_state(interface: Obj, wanted: Section | None) -> Obj:
    """The interface in the state that is wanted; what is going, goes."""
    state = interface.get("state") or ""
    if wanted is None or state == ABSENT or (wanted.get("state") or "") == state:
        return interface
    left = {key: value for key, value in interface.items() if key != "state"}
    return {**left, "state": wanted["state"]} if wanted.get("state") else left


def _renamed(network: Obj, wanted: Section | None) -> Obj:
    """The network under the name of the definition that is wanted."""
    now, then = network.get("multus"), (wanted or {}).get("multus")
    if not now or not then or now.get("networkName") == then.get("networkName"):
        return network
    return {**network, "multus": {**now, "networkName": then.get("networkName")}}


def _ordered(part: Mapping[str, Obj], order: Iterable[str]) -> list[Obj]:
    first = [name for name in order if name in part]
    return [part[name] for name in (*first, *(name for name in part if name not in first))]
