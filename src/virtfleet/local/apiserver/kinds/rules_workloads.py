"""Deployments, ReplicaSets, DaemonSets and Jobs: pods by template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from virtfleet.api.selectors import SelectorError, from_label_selector
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds import pod_spec
from virtfleet.local.apiserver.kinds.metadata import label_faults
from virtfleet.local.apiserver.kinds.registry import Rules
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause

# Of an update that nobody described, by the field that says how pods are replaced.
_ROLLING: dict[str, Obj] = {
    "strategy": {"maxUnavailable": "25%", "maxSurge": "25%"},
    "updateStrategy": {"maxUnavailable": 1, "maxSurge": 0},
}


def _complete(obj: Obj) -> None:
    """The pod template, and how pods are replaced."""
    spec = obj.setdefault("spec", {})
    pod_spec.complete(spec.setdefault("template", {}).setdefault("spec", {}))
    for field, rolling in _ROLLING.items():
        strategy = spec.get(field, {})
        if strategy.get("type") == "RollingUpdate":
            strategy["rollingUpdate"] = {**rolling, **strategy.get("rollingUpdate", {})}


def _faults(obj: Obj) -> Iterator[Cause]:
    """Of a kind whose pods run until somebody stops them."""
    spec = obj["spec"]
    yield from _template_faults(spec)
    if (policy := spec["template"]["spec"].get("restartPolicy", "Always")) != "Always":
        yield causes.unsupported("spec.template.spec.restartPolicy", policy, ["Always"])
    strategy, daemons = spec.get("strategy", {}), spec.get("updateStrategy", {}).get("rollingUpdate")
    rolling, field = strategy.get("rollingUpdate"), "spec.strategy.rollingUpdate"
    if strategy.get("type") == "Recreate" and rolling is not None:
        yield causes.forbidden(field, "may not be specified when strategy `type` is 'Recreate'")
    elif rolling and _is_zero(rolling.get("maxUnavailable")) and _is_zero(rolling.get("maxSurge")):
        why = "may not be 0 when `maxSurge` is 0"
        yield causes.invalid(f"{field}.maxUnavailable", rolling.get("maxUnavailable"), why)
    if daemons and _is_zero(daemons.get("maxUnavailable")):
        yield causes.required("spec.updateStrategy.rollingUpdate.maxUnavailable", "cannot be 0 when maxSurge is 0")


def _is_zero(amount: Any) -> bool:
    return amount in (None, 0, "0", "0%")


def _template_faults(spec: Obj) -> Iterator[Cause]:
    """Selector and template."""
    template, selector = spec["template"], spec.get("selector")
    labels = template.get("metadata", {}).get("labels", {})
    if selector is not None:  # else the schema says so
        try:
            matcher = from_label_selector(selector)
        except SelectorError as error:
            yield causes.invalid("spec.selector", selector, str(error))
        else:
            if not matcher:
                yield causes.invalid("spec.selector", selector, "empty selector is invalid for deployment")
            if not matcher.matches(labels):
                why = "`selector` does not match template `labels`"
                yield causes.invalid("spec.template.metadata.labels", labels, why)
    yield from label_faults(labels, "spec.template.metadata.labels")
    yield from pod_spec.faults(template["spec"], "spec.template.spec")


def _begin_job(obj: Obj) -> None:
    """A selector of its own, which its pods' labels follow."""
    meta, spec = obj["metadata"], obj.setdefault("spec", {})
    labels = {"controller-uid": meta["uid"], "job-name": meta.get("name", "")}
    labels |= {f"batch.kubernetes.io/{key}": value for key, value in labels.items()}
    template = spec.setdefault("template", {}).setdefault("metadata", {})
    template["labels"] = template.get("labels", {}) | labels
    meta["labels"] = meta.get("labels") or dict(template["labels"])
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": meta["uid"]}}


def _complete_job(obj: Obj) -> None:
    """Where nobody said how many, it is one."""
    _complete(obj)
    spec = obj["spec"]
    if "parallelism" not in spec:
        spec |= {"parallelism": 1, "completions": spec.get("completions", 1)}


def _job_faults(obj: Obj) -> Iterator[Cause]:
    yield from _template_faults(obj["spec"])
    if obj["spec"]["template"]["spec"].get("restartPolicy", "Always") not in ("OnFailure", "Never"):
        yield causes.required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')


def _running(selectable: Obj, *counts: str) -> Rules:
    """Of a kind whose pods run until somebody stops them; its status begins with counts of 0."""
    return Rules(
        status=dict.fromkeys(counts, 0),
        fixed={"spec.selector": "field is immutable"},
        selectable=selectable,
        complete=_complete,
        faults=_faults,
    )


_DAEMONS = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
RULES = {
    "apps/daemonsets": _running({}, *_DAEMONS),
    "apps/deployments": _running({}),
    "apps/replicasets": _running({"status.replicas": 0}, "replicas"),
    "batch/jobs": Rules(
        status={},
        fixed=dict.fromkeys(("spec.selector", "spec.template", "spec.completions"), "field is immutable"),
        begin=_begin_job,
        complete=_complete_job,
        faults=_job_faults,
    ),
}
