"""What of a VM's template its running instance follows without a restart: one entry for each part. Pure.

A part says three things: what the instance is to get of an edited template (`follow`), what of the template the
instance has by now, so that it needs no restart (`settle`), and why an instance as it is needs another Pod (`move`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from virtfleet.api import hotplug
from virtfleet.api.names import VMICondition
from virtfleet.controller import connections, placement, sizes
from virtfleet.controller.following import NOTHING, Following, Obj, Section
from virtfleet.controller.records.cluster import NodeRecord
from virtfleet.installation import Installation

Follow = Callable[[Obj, Section, Installation], Following]
Settle = Callable[[Section, Section, Section], tuple[Obj, Obj]]
Move = Callable[[Obj, NodeRecord, str], str]


def _plugged(old: Section, new: Section, instance: Section) -> tuple[Obj, Obj]:
    live = {volume["name"]: named for volume in instance.get("volumes") or () if (named := hotplug.claim_of(volume))}
    return hotplug.unsettled(old, new, live)


class Part(NamedTuple):
    """A part of a spec that changes while the VM runs."""

    settle: Settle
    """Two specs of a template, without what the running instance's spec has as the second one wants it."""
    follow: Follow = lambda instance, template, cluster: NOTHING
    """What is to change in an instance by an edited template; volumes and interfaces are plugged elsewhere."""
    move: Move = lambda instance, node, networks: ""
    """Why an instance cannot stay in the Pod that it is in, on a node and with networks that it was asked for."""


PARTS: Final = (
    Part(_plugged),
    Part(sizes.settle, sizes.follow),
    Part(placement.settle, placement.follow, lambda instance, node, _: placement.move(instance, node)),
    Part(connections.settle, move=lambda instance, _, networks: connections.move(instance, networks)),
)
# Conditions by which an instance says that it waits for a larger Pod or for another one.
WAITING: Final = (VMICondition.CPU_CHANGE, VMICondition.MEMORY_CHANGE, VMICondition.MIGRATION_REQUIRED)


def follow(instance: Obj, template: Section, cluster: Installation) -> Following:
    """What an instance is to get of its VM's template as it is now."""
    followed = [part.follow(instance, template, cluster) for part in PARTS] if cluster.live_update else []
    spec: Obj = {}
    for each in followed:
        _merge(spec, each.spec)
    pending = {kind: text for each in followed for kind, text in each.pending.items()}
    return Following(spec, pending, {field: why for each in followed for field, why in each.refused.items()})


def settled(old: Section, new: Section, instance: Section) -> tuple[Obj, Obj]:
    """Two specs of a template, without all that the running instance has as the second one wants it."""
    was, now = dict(old), dict(new)
    for part in PARTS:
        was, now = part.settle(was, now, instance)
    return was, now


def why_move(instance: Obj, node: NodeRecord, networks: str = "") -> str:
    """Why an instance cannot stay where it is; empty where it can. `networks` are what its Pod was asked for."""
    return "; ".join(filter(None, (part.move(instance, node, networks) for part in PARTS)))


def _merge(into: Obj, patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
