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
    traits = _traits(vmi)
    return next((pool for pool in pools if _by(pool, *traits)), None)


def explain(pools: tuple[Pool, ...], vmi: Mapping[str, Any]) -> list[Verdict]:
    """Every pool's verdict, in the order in which they are asked. The first that matched is the VMI's pool."""
    traits = _traits(vmi)
    return [Verdict(pool, _by(pool, *traits), _reason(pool, *traits)) for pool in pools]


def _traits(vmi: Mapping[str, Any]) -> tuple[list[str], Mapping[str, str], Mapping[str, str]]:
    spec = vmi.get("spec") or {}
    devices = (spec.get("domain") or {}).get("devices") or {}
    named = [d.get("deviceName") or "" for field in ("gpus", "hostDevices") for d in devices.get(field) or ()]
    return named, (vmi.get("metadata") or {}).get("labels") or {}, spec.get("nodeSelector") or {}


def _by(pool: Pool, devices: list[str], labels: Mapping[str, str], node_selector: Mapping[str, str]) -> str:
    """What of a VMI makes it belong to a pool."""
    if pool.matches_by_node_selector:
        return "nodeSelector" if pool.selects(node_selector) else ""
    if not pool.device_names.isdisjoint(devices):
        return "device"
    return "labels" if pool.vm_labels.matches(labels) else ""


def _reason(pool: Pool, devices: list[str], labels: Mapping[str, str], node_selector: Mapping[str, str]) -> str:
    if pool.matches_by_node_selector:
        for key, value in pool.node_selector.items():
            if node_selector.get(key) != value:
                has = f"has {key}={node_selector[key]}" if key in node_selector else f"does not have {key}"
                return f"the pool needs {key}={value} in the VMI's nodeSelector, which {has}"
        return f"the VMI's nodeSelector has {', '.join(f'{k}={v}' for k, v in pool.node_selector.items())}"
    if offered := [device for device in devices if device in pool.device_names]:
        return f"the VMI asks for {offered[0]}, which is in the pool's deviceNames"
    if pool.vm_labels.matches(labels):
        return "the VMI's labels match the pool's vmLabels"
    because = []
    if pool.device_names:
        asked = ", ".join(sorted(set(devices))) or "no device"
        because.append(f"deviceNames has {', '.join(sorted(pool.device_names))} and the VMI asks for {asked}")
    because += [
        f"vmLabels needs {r.key} {r.op} [{', '.join(r.values)}]" if r.values else f"vmLabels needs {r.key} {r.op}"
        for r in pool.vm_labels.requirements
        if r.key and not r.matches(labels)
    ]
    return "; ".join(because) or "the pool has no selector"
