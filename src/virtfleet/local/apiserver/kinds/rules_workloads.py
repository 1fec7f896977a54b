"""Deployments, ReplicaSets and DaemonSets: pods by template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from virtfleet.api.selectors import SelectorError, from_label_selector
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds import pod_spec
from virtfleet.local.apiserver.kinds.metadata import label_faults
from virtfleet.local.apiserver.kinds.registry import Cause, Rules, WriteContext
from virtfleet.local.apiserver.objects import causes

_PERCENT = re.compile(r"[0-9]+%")
_PERCENT_FORM = (
    "a valid percent string must be a numeric string followed by an ending '%' "
    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
)


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
        for name in ("replicas", "minReadySeconds", "revisionHistoryLimit"):
            if spec.get(name, 0) < 0:
                yield causes.invalid(f"spec.{name}", spec[name], "must be greater than or equal to 0")
        if self.strategy:
            yield from self._strategy_faults(spec.get(self.strategy, {}), f"spec.{self.strategy}")

    def _strategy_faults(self, strategy: Obj, field: str) -> Iterator[Cause]:
        rolling = strategy.get("rollingUpdate", {})
        for name in ("maxUnavailable", "maxSurge"):
            if name in rolling:
                yield from amount_faults(rolling[name], f"{field}.rollingUpdate.{name}")


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

    def _strategy_faults(self, strategy: Obj, field: str) -> Iterator[Cause]:
        yield from super()._strategy_faults(strategy, field)
        rolling = strategy.get("rollingUpdate")
        if strategy.get("type") == "Recreate" and rolling is not None:
            yield causes.forbidden(f"{field}.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'")
        elif rolling and _is_zero(rolling.get("maxUnavailable")) and _is_zero(rolling.get("maxSurge")):
            why = "may not be 0 when `maxSurge` is 0"
            yield causes.invalid(f"{field}.rollingUpdate.maxUnavailable", rolling.get("maxUnavailable"), why)


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

    def _strategy_faults(self, strategy: Obj, field: str) -> Iterator[Cause]:
        yield from super()._strategy_faults(strategy, field)
        rolling = strategy.get("rollingUpdate")
        if not rolling:
            return
        if not _is_zero(rolling.get("maxSurge")):
            why = "daemons are replaced one by one here: leave it out, and set maxUnavailable"
            yield causes.invalid(f"{field}.rollingUpdate.maxSurge", rolling["maxSurge"], why)
        elif _is_zero(rolling.get("maxUnavailable")):
            yield causes.required(f"{field}.rollingUpdate.maxUnavailable", "cannot be 0 when maxSurge is 0")


def amount_faults(amount: int | str, field: str) -> Iterator[Cause]:
    """A number of pods or a percentage of them."""
    if isinstance(amount, str):
        if not _PERCENT.fullmatch(amount):
            yield causes.invalid(field, amount, _PERCENT_FORM)
        elif int(amount[:-1]) > 100:
            yield causes.invalid(field, amount, "must not be greater than 100%")
    elif amount < 0:
        yield causes.invalid(field, amount, "must be greater than or equal to 0")


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
