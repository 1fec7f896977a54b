"""Rules for affinity and topology spread: the pod of a VM that breaks them could never be created."""

from __future__ import annotations

from collections.abc import Sequence

from virtfleet.admission.case import Case
from virtfleet.admission.findings import Findings
from virtfleet.admission.names import dns_label_error, dns_subdomain_error
from virtfleet.api.kubernetes import Affinity, NodeAffinity, NodeTerm, PodAffinity, PodTerm, SpreadConstraint
from virtfleet.api.meta import LabelSelector, LabelSelectorRequirement, Toleration
from virtfleet.api.selectors import label_key_error, label_value_error
from virtfleet.api.view import read

_EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
_ON_LABELS = ("In", "NotIn", "Exists", "DoesNotExist")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def check(case: Case) -> None:
    for key, value in case.spec.node_selector.items():
        if why := label_key_error(key) or label_value_error(value):
            case.invalid("nodeSelector", f"{key!r}: {value!r} is not a label: {why}")
    for i, toleration in enumerate(case.spec.tolerations):
        check_toleration(case, toleration, f"tolerations[{i}]")
    # KubeVirt leaves `affinity` out of these paths.
    affinity = read(Affinity, case.spec.affinity or {})
    _check_node_affinity(case, affinity.node_affinity or NodeAffinity())
    _check_pod_affinity(case, affinity.pod_affinity or PodAffinity(), "podAffinity")
    _check_pod_affinity(case, affinity.pod_anti_affinity or PodAffinity(), "podAntiAffinity")
    _check_spread(case, read(list[SpreadConstraint], case.spec.topology_spread_constraints))


def check_toleration(findings: Findings, toleration: Toleration, path: str) -> None:
    """What the API server would say of a Pod with it."""
    key, operator, effect, value = toleration.key, toleration.operator, toleration.effect, toleration.value
    if operator not in ("", "Exists", "Equal"):
        words = f"{findings.at(path.partition('[')[0])}.operator in body should be one of [Equal Exists]"  # KubeVirt's
        findings.invalid(f"{path}.operator", f"{words}; {operator!r} does not exist")
    if not key and operator != "Exists":
        findings.invalid(
            f"{path}.operator", "a toleration without key tolerates everything; say so with operator: Exists"
        )
    if operator == "Exists" and value:
        findings.invalid(f"{path}.value", "operator Exists takes no value; remove it, or use Equal")
    if key and (why := label_key_error(key)):
        findings.invalid(f"{path}.key", f"{key!r} is not the key of a taint: {why}")
    elif why := label_value_error(value):
        findings.invalid(f"{path}.value", f"{value!r} is not the value of a taint: {why}")
    findings.check_choice(f"{path}.effect", "effect", effect, _EFFECTS)
    if toleration.toleration_seconds is not None and effect != "NoExecute":
        why = "tolerationSeconds is for the effect NoExecute; remove it or change the effect"
        findings.invalid(f"{path}.effect", why)


def _check_node_affinity(case: Case, affinity: NodeAffinity) -> None:
    required = affinity.required_during_scheduling_ignored_during_execution
    if required is not None:
        path = f"nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
        if not required.node_selector_terms:
            case.invalid(path, "no node can match an empty list; add a term")
        for i, term in enumerate(required.node_selector_terms):
            _check_node_term(case, term, f"{path}[{i}]")
    for i, preferred in enumerate(affinity.preferred_during_scheduling_ignored_during_execution):
        path = f"nodeAffinity.{_PREFERRED}[{i}]"
        _check_weight(case, preferred.weight, path)
        _check_node_term(case, preferred.preference or NodeTerm(), f"{path}.preference")


def _check_node_term(case: Case, term: NodeTerm, path: str) -> None:
    for i, expression in enumerate(term.match_expressions):
        _check_expression(case, expression, f"{path}.matchExpressions[{i}]", (*_ON_LABELS, "Gt", "Lt"))
    for i, field in enumerate(term.match_fields):
        at, operator, values = f"{path}.matchFields[{i}]", field.operator, field.values
        if operator not in ("In", "NotIn"):
            case.invalid(f"{at}.operator", f"operator {operator!r} does not work on fields; use In or NotIn")
        elif len(values) != 1:
            case.invalid(f"{at}.values", f"{operator} on a field takes exactly one value")
        if field.key != "metadata.name":
            case.invalid(f"{at}.key", "the only field of a node that can be matched is metadata.name")
            continue
        for j, value in enumerate(values):
            if why := dns_subdomain_error(value):
                case.invalid(f"{at}.values[{j}]", f"{value!r} is not the name of a node: {why}")


def _check_expression(
    findings: Findings, expression: LabelSelectorRequirement, path: str, operators: Sequence[str]
) -> None:
    operator, values = expression.operator, expression.values
    if operator not in operators:
        findings.invalid(f"{path}.operator", f"operator {operator!r} does not exist; use one of {', '.join(operators)}")
    elif operator in ("In", "NotIn") and not values:
        findings.invalid(f"{path}.values", f"{operator} needs at least one value")
    elif operator in ("Exists", "DoesNotExist") and values:
        findings.invalid(f"{path}.values", f"{operator} takes no values; remove them, or use In or NotIn")
    elif operator in ("Gt", "Lt") and len(values) != 1:
        findings.invalid(f"{path}.values", f"{operator} takes exactly one value")
    if why := label_key_error(expression.key):
        findings.invalid(f"{path}.key", f"{expression.key!r} is not a label: {why}")


def _check_weight(case: Case, weight: int, path: str) -> None:
    if not 1 <= weight <= 100:
        case.invalid(f"{path}.weight", f"weight {weight} must be from 1 to 100")


def _check_pod_affinity(case: Case, affinity: PodAffinity, kind: str) -> None:
    for i, term in enumerate(affinity.required_during_scheduling_ignored_during_execution):
        _check_pod_term(case, term, f"{kind}.{_REQUIRED}[{i}]")
    for i, weighted in enumerate(affinity.preferred_during_scheduling_ignored_during_execution):
        path = f"{kind}.{_PREFERRED}[{i}]"
        _check_weight(case, weighted.weight, path)
        _check_pod_term(case, weighted.pod_affinity_term or PodTerm(), f"{path}.podAffinityTerm")


def _check_pod_term(case: Case, term: PodTerm, path: str) -> None:
    check_label_selector(case, term.label_selector or LabelSelector(), f"{path}.labelSelector")
    check_label_selector(case, term.namespace_selector or LabelSelector(), f"{path}.namespaceSelector")
    for name in term.namespaces:
        if why := dns_label_error(name):
            case.invalid(f"{path}.namespace", f"{name!r} is not a namespace: {why}")
    _check_topology_key(case, term.topology_key, path)


def _check_topology_key(case: Case, key: str, path: str) -> None:
    if not key:
        case.invalid(f"{path}.topologyKey", "say over what to spread; kubernetes.io/hostname is usual")
    elif why := label_key_error(key):
        case.invalid(f"{path}.topologyKey", f"{key!r} is not a label: {why}")


def check_label_selector(findings: Findings, selector: LabelSelector, path: str) -> None:
    """matchLabels and matchExpressions of a LabelSelector."""
    for key, value in selector.match_labels.items():
        if why := label_key_error(key):
            findings.invalid(f"{path}.matchLabels", f"{key!r} is not a label: {why}")
        if why := label_value_error(value):
            findings.invalid(f"{path}.matchLabels", f"{value!r} is not a label value: {why}")
    for i, expression in enumerate(selector.match_expressions):
        _check_expression(findings, expression, f"{path}.matchExpressions[{i}]", _ON_LABELS)


def _check_spread(case: Case, constraints: Sequence[SpreadConstraint]) -> None:
    field = "topologySpreadConstraints"
    kinds = [(constraint.topology_key, constraint.when_unsatisfiable) for constraint in constraints]
    for i, constraint in enumerate(constraints):
        path, (key, action) = f"{field}[{i}]", kinds[i]
        if not 0 < constraint.max_skew < 2**31:
            case.invalid(f"{path}.maxSkew", "maxSkew must be 1 or more, and less than 2147483648")
        _check_topology_key(case, key, path)
        if action not in ("DoNotSchedule", "ScheduleAnyway"):
            case.invalid(f"{path}.whenUnsatisfiable", f"{action!r} does not exist; use DoNotSchedule or ScheduleAnyway")
        check_label_selector(case, constraint.label_selector or LabelSelector(), f"{field}.labelSelector")
        if kinds[i] in kinds[i + 1 :]:
            case.invalid(
                f"{path}.{{topologyKey, whenUnsatisfiable}}", f"{key} with {action} is listed twice; remove one"
            )
