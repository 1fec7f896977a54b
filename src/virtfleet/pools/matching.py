"""Which pool a VMI belongs to, and why not to the others.

VM users never name a pool. The first pool that a VMI matches wins, and what decided is kept as data: the controller
needs the pool, `virtfleet explain` all the verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from virtfleet.pools.model import Pool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one pool says about one VMI. `by` is device, labels, nodeSelector, or empty where it did not match."""

    pool: Pool
    by: str
    reason: str

    @property
    def matched(self) -> bool:
        return bool(self.by)


def match(pools: tuple[Pool, ...], vmi: Mapping[str, Any]) -> Pool | None:
    """The first pool that the VMI matches."""
    devices, labels, node_selector = _traits(vmi)
    for pool in pools:
        if pool.matches_by_node_selector:
            if pool.selects(node_selector):
                return pool
        elif not pool.device_names.isdisjoint(devices) or pool.vm_labels.matches(labels):
            return pool
    return None


def explain(pools: tuple[Pool, ...], vmi: Mapping[str, Any]) -> list[Verdict]:
    """Every pool's verdict, in the order in which they are asked. The first that matched is the VMI's pool."""
    devices, labels, node_selector = _traits(vmi)
    return [
        _by_node_selector(pool, node_selector)
        if pool.matches_by_node_selector
        else _by_device_or_label(pool, devices, labels)
        for pool in pools
    ]


def _traits(vmi: Mapping[str, Any]) -> tuple[list[str], Mapping[str, str], Mapping[str, str]]:
    spec = vmi.get("spec") or {}
    devices = (spec.get("domain") or {}).get("devices") or {}
    named = [d.get("deviceName") or "" for field in ("gpus", "hostDevices") for d in devices.get(field) or ()]
    return named, (vmi.get("metadata") or {}).get("labels") or {}, spec.get("nodeSelector") or {}


def _by_node_selector(pool: Pool, node_selector: Mapping[str, str]) -> Verdict:
    for key, value in pool.node_selector.items():
        if node_selector.get(key) != value:
            has = f"has {key}={node_selector[key]}" if key in node_selector else f"does not have {key}"
            return Verdict(pool, "", f"the pool needs {key}={value} in the VMI's nodeSelector, which {has}")
    pairs = ", ".join(f"{k}={v}" for k, v in pool.node_selector.items())
    return Verdict(pool, "nodeSelector", f"the VMI's nodeSelector has {pairs}")


def _by_device_or_label(pool: Pool, devices: list[str], labels: Mapping[str, str]) -> Verdict:
    for device in devices:
        if device in pool.device_names:
            return Verdict(pool, "device", f"the VMI asks for {device}, which is in the pool's deviceNames")
    if pool.vm_labels.matches(labels):
        return Verdict(pool, "labels", "the VMI's labels match the pool's vmLabels")
    because = []
    if pool.device_names:
        asked = ", ".join(sorted(set(devices))) or "no device"
        because.append(f"deviceNames has {', '.join(sorted(pool.device_names))} and the VMI asks for {asked}")
    because += [
        f"vmLabels needs {r.key} {r.op} [{', '.join(r.values)}]" if r.values else f"vmLabels needs {r.key} {r.op}"
        for r in pool.vm_labels.requirements
        if r.key and not r.matches(labels)
    ]
    return Verdict(pool, "", "; ".join(because) or "the pool has no selector")
