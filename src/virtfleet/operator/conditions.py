"""How the state of an installation is told: conditions, and the status of each pool. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import virtfleet
from virtfleet.api.conditions import holds
from virtfleet.installation import Installation
from virtfleet.kube.resource import Obj
from virtfleet.operator.handlers import VIRT_HANDLER
from virtfleet.operator.objects import digest, shown
from virtfleet.operator.render import deployment_id
from virtfleet.operator.rollout import Plan, Rollout, desired, observed
from virtfleet.operator.world import NodeView
from virtfleet.pools.model import POOL_FIELDS, listed, owner
from virtfleet.pools.overlap import shadowed

DEPLOYING, DEPLOYED, DELETING, DELETED = "Deploying", "Deployed", "Deleting", "Deleted"
AVAILABLE, PROGRESSING, DEGRADED, RESTING = "Available", "Progressing", "Degraded", "PoolsResting"
CREATED = "Created"
_HANDLERS_READY = "HandlersReady"
_NAMED = 5
"""So many nodes are named in a message; the others are counted."""


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
    plan: Plan = field(default_factory=Plan)
    unserved: Mapping[str, str] = field(default_factory=dict)
    """Nodes that should have a ready handler and have none: name -> why."""
    off_network: Sequence[str] = ()
    """Nodes whose handlers are not on the network that migrations are to have for themselves."""
    unmonitored: str = ""
    """Why there is no ServiceMonitor where there should be one."""
    trouble: str = ""
    """Why a Pod of the control plane does not come up."""
    nodes: Sequence[NodeView] = ()
    instances: Iterable[Obj] | None = None
    admission: bool = False
    """Whether VMs are checked: the webhooks are there."""
    created: bool = False
    """Whether everything has been made that is to be installed."""
    held: bool = False
    """Whether handlers wait for the control plane."""
    handed_over: bool = False
    moving: int = 0
    """Nodes whose next handler is of another DaemonSet."""
    error: tuple[str, str] | None = None
    """Reason and message of what keeps the operator from going on."""


def status(installation: Installation, findings: Findings, now: str) -> Obj:
    """The new status of the KubeVirt object."""
    old = installation.kubevirt.get("status") or {}
    deployed = old.get("phase") == DEPLOYED
    shortfalls, stopped = _shortfalls(findings), _stopped(findings)
    steps = [] if stopped else _steps_left(findings)
    ready = not shortfalls and findings.admission and not steps and not stopped
    verdicts = [
        *_created(old, findings),
        _available(deployed, ready, findings, shortfalls),
        _progressing(steps if deployed or not shortfalls else shortfalls, stopped),
        _degraded(installation, findings, stopped, [] if steps or not deployed else shortfalls),
        *_resting(installation),
    ]
    said = {
        "KubeVirtVersion": installation.tag,
        "KubeVirtRegistry": installation.registry,
        "DeploymentID": deployment_id(installation),
        "DeploymentConfig": digest([installation.spec, installation.tag, installation.registry, virtfleet.__version__]),
    }
    pools, outdated = _pools(installation, findings)
    new: Obj = {
        "phase": DEPLOYED if deployed or ready else DEPLOYING,
        "health": _health(deployed or ready, findings, verdicts),
        "conditions": conditions(old.get("conditions") or (), verdicts, now),
        "observedGeneration": installation.kubevirt["metadata"].get("generation", 0),
        "operatorVersion": virtfleet.__version__,
        **{f"target{what}": value for what, value in said.items()},
        "virtHandlerPools": pools,
    }
    if outdated is not None:
        new["outdatedVirtualMachineInstanceWorkloads"] = outdated
    if ready:
        new |= {f"observed{what}": value for what, value in said.items()}
    return new


def _health(deployed: bool, findings: Findings, verdicts: Iterable[Verdict]) -> str:
    """All conditions in one word, for people."""
    true = {verdict.type for verdict in verdicts if verdict.status}
    if deployed and not _works(findings):
        return "Unavailable"
    if DEGRADED in true:
        return "Degraded"
    if not deployed:
        return "Installing"
    return "Updating" if PROGRESSING in true else "Healthy"


def conditions(old: Iterable[Obj], verdicts: Iterable[Verdict], now: str) -> list[Obj]:
    """Conditions with the times of their last change."""
    since = {(c["type"], c["status"]): c.get("lastTransitionTime") for c in old}
    return [
        {
            "type": verdict.type,
            "status": str(verdict.status),
            "reason": verdict.reason,
            "message": verdict.message,
            "lastTransitionTime": since.get((verdict.type, str(verdict.status))) or now,
        }
        for verdict in verdicts
    ]


def _created(old: Obj, findings: Findings) -> Iterable[Verdict]:
    """Once and for all, as KubeVirt has it: it says nothing of how things are now."""
    if findings.created or holds(old.get("conditions") or (), CREATED):
        yield Verdict(CREATED, True, "AllResourcesCreated", "all resources were created")


def _available(deployed: bool, ready: bool, findings: Findings, shortfalls: Sequence[str]) -> Verdict:
    """Whether VMs can be made, and those that run can be reached: a handler that is being replaced is soon back."""
    if deployed and _works(findings) and findings.unserved:
        return Verdict(AVAILABLE, False, "HandlersNotReady", _without_handler(findings))
    if ready:
        return Verdict(AVAILABLE, True, "AllComponentsReady", "all components are ready")
    if deployed and _works(findings):
        return Verdict(AVAILABLE, True, "VMsAreServed", "VMs are served while something changes or is repaired")
    why = _joined(shortfalls, findings) or "components are being installed"
    return Verdict(AVAILABLE, False, "ComponentsNotReady", why)


def _joined(shortfalls: Sequence[str], findings: Findings) -> str:
    return "; ".join(filter(None, (*shortfalls, findings.trouble)))


def _progressing(steps: Sequence[str], stopped: tuple[str, str] | None) -> Verdict:
    if stopped:
        return Verdict(PROGRESSING, False, "Stopped", "something keeps the operator from going on; see Degraded")
    if not steps:
        return Verdict(PROGRESSING, False, "UpToDate", "everything is as the KubeVirt object says")
    return Verdict(PROGRESSING, True, "Changing", "; ".join(steps))


def _stopped(findings: Findings) -> tuple[str, str] | None:
    """Reason and message of what keeps the operator from going on."""
    if findings.error:
        return findings.error
    if findings.held and findings.trouble:
        text = f"the control plane does not come up, so no handler is touched: {findings.trouble}"
        return "ControlPlaneFailed", text
    return findings.plan.failure


def _degraded(
    installation: Installation, findings: Findings, stopped: tuple[str, str] | None, shortfalls: Sequence[str]
) -> Verdict:
    if stopped:
        return Verdict(DEGRADED, True, *stopped)
    if findings.unserved:
        failing = any(rollout.failure for rollout in findings.plan.rollouts.values())
        return Verdict(DEGRADED, True, "HandlersFail" if failing else "HandlersNotReady", _without_handler(findings))
    if findings.off_network:
        return Verdict(DEGRADED, True, "MigrationNetworkMissing", _off_network(installation, findings))
    if why := findings.unmonitored:
        text = f"no ServiceMonitor could be made: {why}; correct spec.serviceMonitorNamespace or spec.monitorNamespace"
        return Verdict(DEGRADED, True, "NotMonitored", text)
    if mixed := _mixed_versions(installation, findings):
        return Verdict(DEGRADED, True, "HandlerVersionsDiffer", mixed)
    if shortfalls:
        return Verdict(DEGRADED, True, "ComponentsNotReady", _joined(shortfalls, findings))
    return Verdict(DEGRADED, False, "Healthy")


def _without_handler(findings: Findings) -> str:
    nodes = [f"{node} ({why})" for node, why in sorted(findings.unserved.items())]
    return f"{len(nodes)} of {len(findings.nodes)} nodes have no ready handler: {shown(nodes, _NAMED)}"


def _off_network(installation: Installation, findings: Findings) -> str:
    return (
        f"no VM migrates to {shown(sorted(findings.off_network), _NAMED)}: the handlers there are not on network"
        f" {installation.migrations.network}, which Multus should attach them to. Install Multus and that"
        " NetworkAttachmentDefinition, or remove configuration.migrations.network"
    )


def _resting(installation: Installation) -> Iterable[Verdict]:
    """Pools that are listed though their feature gate is off: they have no handlers, and the user should know why."""
    resting = [
        f"{len(pools)} listed pools rest while the feature gate {gate} is off; the primary handler serves their nodes"
        for listing, gate in POOL_FIELDS.items()
        if not installation.enabled(gate) and (pools := listed(installation.kubevirt, listing))
    ]
    if resting:
        yield Verdict(RESTING, True, "FeatureGateOff", "; ".join(resting))


def _works(findings: Findings) -> bool:
    """Whether VMs can be made and started: somebody of each component of the control plane is there."""
    return bool(findings.deployments) and all(_count(d, "availableReplicas") for d in findings.deployments.values())


def _count(workload: Obj, what: str) -> int:
    return (workload.get("status") or {}).get(what) or 0


def _shortfalls(findings: Findings) -> list[str]:
    short = [
        f"{name} has {available} of {wanted} replicas"
        for name, deployment in sorted(findings.deployments.items())
        if (available := _count(deployment, "availableReplicas")) < (wanted := deployment["spec"].get("replicas", 1))
    ]
    for name, daemon_set in sorted(findings.daemon_sets.items()):
        wanted, ready = desired(daemon_set), _count(daemon_set, "numberReady")
        if ready < wanted or not daemon_set.get("status"):
            short.append(f"{name} is ready on {ready} of {wanted} nodes")
    return short


def _steps_left(findings: Findings) -> list[str]:
    steps = ["handlers wait for the control plane"] if findings.held and _works(findings) else []
    if findings.moving:
        steps.append(f"{findings.moving} nodes get the handler of their pool, once it is proven there")
    elif not findings.handed_over and not findings.held:
        steps.append("nodes change their handlers")
    every = sorted({**findings.deployments, **findings.daemon_sets}.items())
    steps += [f"{name} has changed" for name, obj in every if not observed(obj)]
    for name, deployment in sorted(findings.deployments.items()):
        updated, wanted = _count(deployment, "updatedReplicas"), deployment["spec"].get("replicas", 1)
        if updated < wanted:
            steps.append(f"{name} is updated on {updated} of {wanted} replicas")
    for name, rollout in sorted(findings.plan.rollouts.items()):
        if rollout.outdated:
            total = rollout.outdated + rollout.updated
            steps.append(f"{name}: {rollout.outdated} of {total} handlers are to be replaced")
        elif rollout.starting:
            steps.append(f"{name}: {rollout.starting} handlers are starting")
    if not findings.admission:
        steps.append("admission waits for virt-api")
    return steps


def _mixed_versions(installation: Installation, findings: Findings) -> str:
    """All handlers must be of one version. While they are replaced they cannot be."""
    if any(not rollout.done for rollout in findings.plan.rollouts.values()):
        return ""
    by_version = defaultdict[str, set[str]](set)
    for node in findings.nodes:
        if node.version:
            pool = owner(installation.fleet.pools, node.labels)
            by_version[node.version].add(pool.daemon_set if pool else VIRT_HANDLER)
    if len(by_version) < 2:
        return ""
    reported = "; ".join(f"{version}: {', '.join(sorted(who))}" for version, who in sorted(by_version.items()))
    return f"handlers report different versions ({reported}); give every pool an image of one version"


def _pools(installation: Installation, findings: Findings) -> tuple[list[Obj], int | None]:
    """The status of each pool, and how many VMIs have another launcher than they would get now, in pools or not."""
    pools = installation.fleet.pools
    owned: dict[str, list[NodeView]] = {pool.name: [] for pool in pools}
    for node in findings.nodes:
        if pool := owner(pools, node.labels):
            owned[pool.name].append(node)
    matched, outdated = _instances(installation, findings)
    hidden = {pool.name for pool in shadowed(pools)}
    result = []
    for pool in pools:
        daemon_set: Obj = findings.daemon_sets.get(pool.daemon_set) or {}
        wanted, ready, nodes = desired(daemon_set), _count(daemon_set, "numberReady"), len(owned[pool.name])
        rollout = findings.plan.rollouts.get(pool.daemon_set) or Rollout(0, 0)
        entry: Obj = {
            "name": pool.name,
            "desiredHandlers": wanted,
            "readyHandlers": ready,
            "updatedHandlers": rollout.updated,
            "versions": sorted({node.version for node in owned[pool.name] if node.version}),
            "nodes": nodes,
            "conditions": _pool_conditions(
                wanted, ready, rollout, nodes, hidden=pool.name in hidden, stopped=findings.plan.failure
            ),
        }
        if findings.instances is not None:
            entry |= {"matchedVMIs": matched[pool.name], "outdatedVMIs": outdated[pool.name]}
        result.append(entry)
    return result, outdated.total() if findings.instances is not None else None


def _instances(installation: Installation, findings: Findings) -> tuple[Counter[str], Counter[str]]:
    """VMIs of each pool ("": of none), and those of them that run on another image than they would get now."""
    matched, outdated = Counter[str](), Counter[str]()
    for vmi in findings.instances or ():
        launcher = installation.fleet.launcher(vmi)
        name, running = launcher.pool.name if launcher.pool else "", vmi["status"]["launcherContainerImageVersion"]
        matched[name] += 1
        outdated[name] += bool(running) and running != launcher.image
    return matched, outdated


def _pool_conditions(
    wanted: int, ready: int, rollout: Rollout, nodes: int, *, hidden: bool, stopped: tuple[str, str] | None
) -> list[Obj]:
    """Ready or not, and why. Without a time: the conditions of the KubeVirt object have those."""
    if hidden:
        reason, message = "Shadowed", "earlier pools own every node that this one selects; reorder them"
    elif rollout.failure:
        reason, message = stopped[0] if stopped else "HandlersFail", rollout.failure
    elif ready < wanted:
        reason, message = "HandlersNotReady", f"{ready} of {wanted} handlers are ready"
    elif not wanted and nodes:
        waiting = f"{nodes} nodes keep their handler until this pool's is proven there"
        reason, message = stopped or ("HandlersNotReady", waiting)
    elif not wanted:
        reason, message = "NoNodes", "no node has the labels of its nodeSelector"
    else:
        reason, message = _HANDLERS_READY, ""
    return [{"type": "Ready", "status": str(reason == _HANDLERS_READY), "reason": reason, "message": message}]
