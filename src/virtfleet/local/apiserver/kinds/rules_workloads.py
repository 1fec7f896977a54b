"""Deployments, ReplicaSets and DaemonSets: pods by template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from virtfleet.api.selectors import SelectorError, from_label_selector
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds import pod_spec
from virtfleet.local.apiserver.kinds.metadata import label_faults
from virtfleet.local.apiserver.kinds.registry import Cause, Rules, WriteContext
from virtfleet.local.apiserver.objects import causes


class WorkloadRules(Rules):
    """What the three have in common; `strategy` names the field that says how pods are replaced."""

    strategy = ""
    empty_selector = ""

    def prepare_create(self, obj: Obj, ctx: WriteContext) -> None:
        self._complete(obj)
        obj["status"] = {}

    def prepare_update(self, obj: Obj, old: Obj, ctx: WriteContext) -> None:
        self._complete(obj)

    def _complete(self, obj: Obj) -> None:
        spec = obj.setdefault("spec", {})
        pod_spec.complete(spec.setdefault("template", {}).setdefault("spec", {}))
        if spec.get(self.strategy, {}).get("type") == "RollingUpdate":
            self._complete_rolling(spec[self.strategy].setdefault("rollingUpdate", {}))

    def _complete_rolling(self, rolling: Obj) -> None:
        """The defaults of a rolling update that nobody described."""

    def validate_update(self, obj: Obj, old: Obj, ctx: WriteContext) -> list[Cause]:
        found = super().validate_update(obj, old, ctx)
        if obj["spec"].get("selector") != old["spec"].get("selector"):
            found.append(causes.invalid("spec.selector", obj["spec"].get("selector"), "field is immutable"))
        return found

    def faults(self, obj: Obj) -> Iterator[Cause]:
        spec = obj["spec"]
        yield from _selector_faults(spec, self.empty_selector)
        template = spec["template"]
        yield from label_faults(template.get("metadata", {}).get("labels"), "spec.template.metadata.labels")
        yield from pod_spec.faults(template["spec"], "spec.template.spec")
        policy = template["spec"].get("restartPolicy", "Always")
        if policy != "Always":
            yield causes.unsupported("spec.template.spec.restartPolicy", policy, ["Always"])
        yield from self._strategy_faults(spec.get(self.strategy, {}))

    def _strategy_faults(self, strategy: Obj) -> Iterable[Cause]:
        return ()


class ReplicaSetRules(WorkloadRules):
    empty_selector = "empty selector is invalid for deployment"

    def prepare_create(self, obj: Obj, ctx: WriteContext) -> None:
        super().prepare_create(obj, ctx)
        obj["status"] = {"replicas": 0}

    def fields(self, obj: Obj) -> Mapping[str, str]:
        return {"status.replicas": str(obj.get("status", {}).get("replicas", 0))}


class DeploymentRules(WorkloadRules):
    strategy = "strategy"
    empty_selector = "empty selector is invalid for deployment"

    def _complete_rolling(self, rolling: Obj) -> None:
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")

    def _strategy_faults(self, strategy: Obj) -> Iterator[Cause]:
        rolling, field = strategy.get("rollingUpdate"), "spec.strategy.rollingUpdate"
        if strategy.get("type") == "Recreate" and rolling is not None:
            yield causes.forbidden(field, "may not be specified when strategy `type` is 'Recreate'")
        elif rolling and _is_zero(rolling.get("maxUnavailable")) and _is_zero(rolling.get("maxSurge")):
            why = "may not be 0 when `maxSurge` is 0"
            yield causes.invalid(f"{field}.maxUnavailable", rolling.get("maxUnavailable"), why)


class DaemonSetRules(WorkloadRules):
    strategy = "updateStrategy"
    empty_selector = "empty selector is invalid for daemonset"

    def prepare_create(self, obj: Obj, ctx: WriteContext) -> None:
        super().prepare_create(obj, ctx)
        counts = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
        obj["status"] = dict.fromkeys(counts, 0)

    def _complete_rolling(self, rolling: Obj) -> None:
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)

    def _strategy_faults(self, strategy: Obj) -> Iterator[Cause]:
        if (rolling := strategy.get("rollingUpdate")) and _is_zero(rolling.get("maxUnavailable")):
            field = "spec.updateStrategy.rollingUpdate.maxUnavailable"
            yield causes.required(field, "cannot be 0 when maxSurge is 0")


def _is_zero(amount: Any) -> bool:
    return amount in (None, 0, "0", "0%")


def _selector_faults(spec: Obj, empty: str) -> Iterator[Cause]:
    selector = spec.get("selector")
    if selector is None:
        yield causes.required("spec.selector")
        return
    try:
        matcher = from_label_selector(selector)
    except SelectorError as error:
        yield causes.invalid("spec.selector", selector, str(error))
        return
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield causes.invalid("spec.selector", selector, empty)
    labels = spec["template"].get("metadata", {}).get("labels", {})
    if not matcher.matches(labels):
        why = "`selector` does not match template `labels`"
        yield causes.invalid("spec.template.metadata.labels", labels, why)
