"""Deployments, ReplicaSets, DaemonSets and Jobs: pods by template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from virtfleet.api.selectors import SelectorError, from_label_selector
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds import pod_spec
from virtfleet.local.apiserver.kinds.metadata import label_faults
from virtfleet.local.apiserver.kinds.registry import Rules
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause


class WorkloadRules(Rules):
    """What they have in common; `strategy` names the field that says how pods are replaced."""

    strategy = ""

    initial_status: Mapping[str, Any] = {}
    fixed: Mapping[str, str] = {"spec.selector": "field is immutable"}
    rolling: Mapping[str, Any] = {}  # of an update that nobody described

    def complete(self, obj: Obj) -> None:
        """The pod template, and how pods are replaced."""
        spec = obj.setdefault("spec", {})
        pod_spec.complete(spec.setdefault("template", {}).setdefault("spec", {}))
        strategy = spec.get(self.strategy, {})
        if strategy.get("type") == "RollingUpdate":
            strategy["rollingUpdate"] = {**self.rolling, **strategy.get("rollingUpdate", {})}

    def faults(self, obj: Obj) -> Iterator[Cause]:
        """Selector, template and strategy."""
        spec = obj["spec"]
        yield from _selector_faults(spec)
        template = spec["template"]
        yield from label_faults(template.get("metadata", {}).get("labels"), "spec.template.metadata.labels")
        yield from pod_spec.faults(template["spec"], "spec.template.spec")
        yield from self._policy_faults(template["spec"].get("restartPolicy", "Always"))
        yield from self._strategy_faults(spec.get(self.strategy, {}))

    def _policy_faults(self, policy: str) -> Iterator[Cause]:
        if policy != "Always":
            yield causes.unsupported("spec.template.spec.restartPolicy", policy, ["Always"])

    def _strategy_faults(self, strategy: Obj) -> Iterable[Cause]:
        return ()


class ReplicaSetRules(WorkloadRules):
    """As many pods as there should be."""

    initial_status: Mapping[str, Any] = {"replicas": 0}
    selectable: Mapping[str, Any] = {"status.replicas": 0}


class DeploymentRules(WorkloadRules):
    """Pods that are replaced by a strategy."""

    strategy = "strategy"
    rolling: Mapping[str, Any] = {"maxUnavailable": "25%", "maxSurge": "25%"}

    def _strategy_faults(self, strategy: Obj) -> Iterator[Cause]:
        rolling, field = strategy.get("rollingUpdate"), "spec.strategy.rollingUpdate"
        if strategy.get("type") == "Recreate" and rolling is not None:
            yield causes.forbidden(field, "may not be specified when strategy `type` is 'Recreate'")
        elif rolling and _is_zero(rolling.get("maxUnavailable")) and _is_zero(rolling.get("maxSurge")):
            why = "may not be 0 when `maxSurge` is 0"
            yield causes.invalid(f"{field}.maxUnavailable", rolling.get("maxUnavailable"), why)


class DaemonSetRules(WorkloadRules):
    """A pod on each node."""

    strategy = "updateStrategy"
    rolling: Mapping[str, Any] = {"maxUnavailable": 1, "maxSurge": 0}
    initial_status: Mapping[str, Any] = dict.fromkeys(
        ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady"), 0
    )

    def _strategy_faults(self, strategy: Obj) -> Iterator[Cause]:
        if (rolling := strategy.get("rollingUpdate")) and _is_zero(rolling.get("maxUnavailable")):
            field = "spec.updateStrategy.rollingUpdate.maxUnavailable"
            yield causes.required(field, "cannot be 0 when maxSurge is 0")


class JobRules(WorkloadRules):
    """Pods that end."""

    fixed: Mapping[str, str] = dict.fromkeys(
        ("spec.selector", "spec.template", "spec.completions"), "field is immutable"
    )

    def prepare_create(self, obj: Obj) -> None:
        """A selector of its own, which its pods' labels follow."""
        meta, spec = obj["metadata"], obj.setdefault("spec", {})
        labels = {"controller-uid": meta["uid"], "job-name": meta.get("name", "")}
        labels |= {f"batch.kubernetes.io/{key}": value for key, value in labels.items()}
        template = spec.setdefault("template", {}).setdefault("metadata", {})
        template["labels"] = template.get("labels", {}) | labels
        meta["labels"] = meta.get("labels") or dict(template["labels"])
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": meta["uid"]}}
        super().prepare_create(obj)

    def complete(self, obj: Obj) -> None:
        """Where nobody said how many, it is one."""
        super().complete(obj)
        spec = obj["spec"]
        if "parallelism" not in spec:
            spec |= {"parallelism": 1, "completions": spec.get("completions", 1)}

    def _policy_faults(self, policy: str) -> Iterator[Cause]:
        if policy not in ("OnFailure", "Never"):
            yield causes.required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')


def _is_zero(amount: Any) -> bool:
    return amount in (None, 0, "0", "0%")


def _selector_faults(spec: Obj) -> Iterator[Cause]:
    selector = spec.get("selector")
    if selector is None:
        return  # the schema says so
    try:
        matcher = from_label_selector(selector)
    except SelectorError as error:
        yield causes.invalid("spec.selector", selector, str(error))
        return
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield causes.invalid("spec.selector", selector, "empty selector is invalid for deployment")
    labels = spec["template"].get("metadata", {}).get("labels", {})
    if not matcher.matches(labels):
        why = "`selector` does not match template `labels`"
        yield causes.invalid("spec.template.metadata.labels", labels, why)
