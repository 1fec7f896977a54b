"""How the state of an installation is told: conditions, and the status of each pool. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import virtfleet
from virtfleet.api.feature_gates import FeatureGates
from virtfleet.kube.resource import Obj
from virtfleet.operator.handlers import VIRT_HANDLER
from virtfleet.operator.installation import Installation, digest
from virtfleet.operator.rollout import Rollout
from virtfleet.operator.world import Node
from virtfleet.pools.model import POOL_FIELDS, listed, owner
from virtfleet.pools.overlap import shadowed

DEPLOYING, DEPLOYED, DELETING, DELETED = "Deploying", "Deployed", "Deleting", "Deleted"
AVAILABLE, PROGRESSING, DEGRADED, RESTING = "Available", "Progressing", "Degraded", "PoolsResting"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition but for its time."""

    type: str
    status: bool
    reason: str
    message: str = ""


@dataclass(slots=True)
class Findings:
    """What one look at an installation found."""

    deployments: Mapping[str, Obj] = field(default_factory=dict)
    daemon_sets: Mapping[str, Obj] = field(default_factory=dict)
    rollouts: Mapping[str, Rollout] = field(default_factory=dict)
    nodes: Sequence[Node] = ()
    instances: Iterable[Obj] | None = None
    admission: bool = False
    """Whether VMs are checked: the webhooks are there."""
    handed_over: bool = False
    error: tuple[str, str] | None = None
    """Reason and message of what keeps the operator from going on."""


def status(installation: Installation, found: Findings, now: str) -> Obj:
    """The new status of the KubeVirt object."""
    old = installation.kubevirt.get("status") or {}
    deployed = old.get("phase") == DEPLOYED
    pools = _pools(installation, found)
    shortfalls = _shortfalls(found)
    working = _works(found)
    complete = not shortfalls and found.admission and found.error is None
    steps = _steps_left(found) if found.error is None else []
    verdicts = [
        _available((deployed and working) or (complete and not steps), shortfalls),
        _progressing(steps if complete or deployed else shortfalls or steps),
        _degraded(installation, found, [] if steps or not deployed else shortfalls),
        *_resting(installation),
    ]
    ready = complete and not steps
    version, identity = installation.images.tag, digest(installation.spec)
    new: Obj = {
        "phase": DEPLOYED if deployed or ready else DEPLOYING,
        "conditions": conditions(old.get("conditions") or (), verdicts, now),
        "observedGeneration": installation.kubevirt["metadata"].get("generation", 0),
        "operatorVersion": virtfleet.__version__,
        "targetKubeVirtVersion": version,
        "targetKubeVirtRegistry": installation.images.registry,
        "targetDeploymentID": identity,
        "virtHandlerPools": pools,
    }
    if ready:
        new |= {
            "observedKubeVirtVersion": version,
            "observedKubeVirtRegistry": installation.images.registry,
            "observedDeploymentID": identity,
        }
    return new


def conditions(old: Iterable[Obj], verdicts: Iterable[Verdict], now: str) -> list[Obj]:
    """Conditions with the times of their last change."""
    before = {condition["type"]: condition for condition in old}
    result = []
    for verdict in verdicts:
        text = "True" if verdict.status else "False"
        known = before.get(verdict.type) or {}
        since = known.get("lastTransitionTime") if known.get("status") == text else now
        result.append(
            {
                "type": verdict.type,
                "status": text,
                "reason": verdict.reason,
                "message": verdict.message,
                "lastTransitionTime": since or now,
            }
        )
    return result


def _available(yes: bool, shortfalls: Sequence[str]) -> Verdict:
    if yes:
        return Verdict(AVAILABLE, True, "AllComponentsReady", "all components are ready")
    return Verdict(AVAILABLE, False, "ComponentsNotReady", "; ".join(shortfalls) or "components are being installed")


def _progressing(steps: Sequence[str]) -> Verdict:
    if not steps:
        return Verdict(PROGRESSING, False, "UpToDate", "everything is as the KubeVirt object says")
    return Verdict(PROGRESSING, True, "Changing", "; ".join(steps))


def _degraded(installation: Installation, found: Findings, shortfalls: Sequence[str]) -> Verdict:
    if found.error:
        return Verdict(DEGRADED, True, *found.error)
    failing = {name: rollout for name, rollout in sorted(found.rollouts.items()) if rollout.failure}
    if stopped := [f"the rollout of {name} is stopped: {r.failure}" for name, r in failing.items() if r.stopped]:
        return Verdict(DEGRADED, True, "CanaryFailed", "; ".join(stopped))
    if failing:
        return Verdict(DEGRADED, True, "HandlersFail", "; ".join(f"{n}: {r.failure}" for n, r in failing.items()))
    if mixed := _mixed_versions(installation, found):
        return Verdict(DEGRADED, True, "HandlerVersionsDiffer", mixed)
    if shortfalls:
        return Verdict(DEGRADED, True, "ComponentsNotReady", "; ".join(shortfalls))
    return Verdict(DEGRADED, False, "Healthy")


def _resting(installation: Installation) -> Iterable[Verdict]:
    """Pools that are listed though their feature gate is off: they have no handlers, and the user should know why."""
    gates = FeatureGates.of(installation.kubevirt)
    resting = {
        gate: len(pools)
        for listing, gate in POOL_FIELDS.items()
        if not gates.enabled(gate) and (pools := listed(installation.kubevirt, listing))
    }
    if resting:
        told = "; ".join(
            f"{count} listed pools rest while the feature gate {gate} is off; the primary handler serves their nodes"
            for gate, count in resting.items()
        )
        yield Verdict(RESTING, True, "FeatureGateOff", told)


def _works(found: Findings) -> bool:
    """Whether VMs can be made and started: somebody of each component of the control plane is there."""
    return bool(found.deployments) and all(
        (d.get("status") or {}).get("availableReplicas") for d in found.deployments.values()
    )


def _shortfalls(found: Findings) -> list[str]:
    short = []
    for name, deployment in sorted(found.deployments.items()):
        wanted = deployment["spec"].get("replicas", 1)
        available = (deployment.get("status") or {}).get("availableReplicas", 0)
        if available < wanted:
            short.append(f"{name} has {available} of {wanted} replicas")
    for name, daemon_set in sorted(found.daemon_sets.items()):
        counts = daemon_set.get("status") or {}
        wanted, ready = counts.get("desiredNumberScheduled", 0), counts.get("numberReady", 0)
        if ready < wanted or not counts:
            short.append(f"{name} is ready on {ready} of {wanted} nodes")
    return short


def _steps_left(found: Findings) -> list[str]:
    steps = [] if found.handed_over else ["nodes change their handlers"]
    for name, obj in sorted({**found.deployments, **found.daemon_sets}.items()):
        if (obj.get("status") or {}).get("observedGeneration", 0) < obj["metadata"].get("generation", 0):
            steps.append(f"{name} has changed")
    for name, deployment in sorted(found.deployments.items()):
        updated = (deployment.get("status") or {}).get("updatedReplicas", 0)
        if updated < deployment["spec"].get("replicas", 1):
            steps.append(f"{name} is updated on {updated} of {deployment['spec'].get('replicas', 1)} replicas")
    for name, rollout in sorted(found.rollouts.items()):
        if rollout.outdated and not rollout.stopped:
            total = rollout.outdated + rollout.updated
            steps.append(f"{name}: {rollout.outdated} of {total} handlers are to be replaced")
        elif rollout.starting:
            steps.append(f"{name}: {rollout.starting} handlers are starting")
    if not found.admission:
        steps.append("admission waits for virt-api")
    return steps


def _mixed_versions(installation: Installation, found: Findings) -> str:
    """All handlers must be of one version. While they are replaced they cannot be."""
    if any(not rollout.done for rollout in found.rollouts.values()):
        return ""
    by_version: dict[str, set[str]] = {}
    for node in found.nodes:
        if node.version:
            pool = owner(installation.fleet.pools, node.labels)
            by_version.setdefault(node.version, set()).add(pool.daemon_set if pool else VIRT_HANDLER)
    if len(by_version) < 2:
        return ""
    told = "; ".join(f"{version}: {', '.join(sorted(who))}" for version, who in sorted(by_version.items()))
    return f"handlers report different versions ({told}); give every pool an image of one version"


def _pools(installation: Installation, found: Findings) -> list[Obj]:
    pools = installation.fleet.pools
    owned: dict[str, list[Node]] = {pool.name: [] for pool in pools}
    for node in found.nodes:
        if pool := owner(pools, node.labels):
            owned[pool.name].append(node)
    matched, outdated = _instances(installation, found)
    hidden = {pool.name for pool in shadowed(pools)}
    result = []
    for pool in pools:
        counts = (found.daemon_sets.get(pool.daemon_set) or {}).get("status") or {}
        rollout = found.rollouts.get(pool.daemon_set) or Rollout(0, 0)
        entry: Obj = {
            "name": pool.name,
            "desiredHandlers": counts.get("desiredNumberScheduled", 0),
            "readyHandlers": counts.get("numberReady", 0),
            "updatedHandlers": rollout.updated,
            "versions": sorted({node.version for node in owned[pool.name] if node.version}),
            "nodes": len(owned[pool.name]),
            "conditions": _pool_conditions(counts, rollout, pool.name in hidden),
        }
        if found.instances is not None:
            entry |= {"matchedVMIs": matched.get(pool.name, 0), "outdatedVMIs": outdated.get(pool.name, 0)}
        result.append(entry)
    return result


def _instances(installation: Installation, found: Findings) -> tuple[dict[str, int], dict[str, int]]:
    matched: dict[str, int] = {}
    outdated: dict[str, int] = {}
    for vmi in found.instances or ():
        launcher = installation.fleet.launcher(vmi)
        if launcher.pool:
            name = launcher.pool.name
            matched[name] = matched.get(name, 0) + 1
            running = vmi["status"]["launcherContainerImageVersion"]
            outdated[name] = outdated.get(name, 0) + (bool(running) and running != launcher.image)
    return matched, outdated


def _pool_conditions(counts: Mapping[str, Any], rollout: Rollout, hidden: bool) -> list[Obj]:
    """Ready or not, and why. Without a time: the conditions of the KubeVirt object have those."""
    desired, ready = counts.get("desiredNumberScheduled", 0), counts.get("numberReady", 0)
    if hidden:
        verdict = ("False", "Shadowed", "earlier pools own every node that this one selects; reorder them")
    elif rollout.failure:
        verdict = ("False", "CanaryFailed" if rollout.stopped else "HandlersFail", rollout.failure)
    elif ready < desired:
        verdict = ("False", "HandlersNotReady", f"{ready} of {desired} handlers are ready")
    elif not desired:
        verdict = ("False", "NoNodes", "no node has the labels of its nodeSelector")
    else:
        verdict = ("True", "HandlersReady", "")
    answer, reason, message = verdict
    return [{"type": "Ready", "status": answer, "reason": reason, "message": message}]
