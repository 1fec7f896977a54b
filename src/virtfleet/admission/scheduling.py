"""Rules for affinity and topology spread: the pod of a VM that breaks them could never be created."""

from __future__ import annotations

from collections.abc import Sequence

from virtfleet.admission.findings import Findings
from virtfleet.admission.machine import Machine
from virtfleet.admission.names import dns_label_error, dns_subdomain_error
from virtfleet.admission.sections import Section, read
from virtfleet.api.selectors import label_key_error, label_value_error

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def check(m: Machine, found: Findings) -> None:
    for key, value in read(m.spec, "nodeSelector").items():
        if why := label_key_error(key) or label_value_error(value):
            found.invalid(m.at("nodeSelector"), f"{key!r}: {value!r} is not a label: {why}")
    for i, toleration in enumerate(m.spec.get("tolerations") or ()):
        _check_toleration(toleration, m.at(f"tolerations[{i}]"), found)
    # KubeVirt leaves `affinity` out of these paths.
    affinity = read(m.spec, "affinity")
    _check_node_affinity(read(affinity, "nodeAffinity"), m.at("nodeAffinity"), found)
    for kind in ("podAffinity", "podAntiAffinity"):
        body = read(affinity, kind)
        for i, term in enumerate(body.get(_REQUIRED) or ()):
            _check_pod_term(term, f"{m.at(kind)}.{_REQUIRED}[{i}]", found)
        for i, weighted in enumerate(body.get(_PREFERRED) or ()):
            path = f"{m.at(kind)}.{_PREFERRED}[{i}]"
            _check_weight(weighted, path, found)
            _check_pod_term(read(weighted, "podAffinityTerm"), f"{path}.podAffinityTerm", found)
    _check_spread(m.spec.get("topologySpreadConstraints") or (), m.at("topologySpreadConstraints"), found)


def _check_toleration(toleration: Section, path: str, found: Findings) -> None:
    key, operator, effect = (toleration.get(name) or "" for name in ("key", "operator", "effect"))
    if operator not in ("", "Exists", "Equal"):
        found.invalid(f"{path}.operator", f"operator {operator!r} does not exist; use Exists or Equal")
    if not key and operator != "Exists":
        found.invalid(f"{path}.operator", "a toleration without key tolerates everything; say so with operator: Exists")
    if operator == "Exists" and toleration.get("value"):
        found.invalid(f"{path}.value", "operator Exists takes no value; remove it, or use Equal")
    if key and (why := label_key_error(key)):
        found.invalid(f"{path}.key", f"{key!r} is not the key of a taint: {why}")
    elif why := label_value_error(toleration.get("value") or ""):
        found.invalid(f"{path}.value", f"{toleration['value']!r} is not the value of a taint: {why}")
    if effect not in ("", *_EFFECTS):
        found.invalid(f"{path}.effect", f"effect {effect!r} does not exist; use one of {', '.join(_EFFECTS)}")
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        found.invalid(f"{path}.effect", "tolerationSeconds is for the effect NoExecute; remove it or change the effect")


def _check_node_affinity(body: Section, path: str, found: Findings) -> None:
    required = body.get(_REQUIRED)
    if required is not None:
        terms = required.get("nodeSelectorTerms") or ()
        if not terms:
            found.invalid(f"{path}.{_REQUIRED}.nodeSelectorTerms", "no node can match an empty list; add a term")
        for i, term in enumerate(terms):
            check_node_term(term, f"{path}.{_REQUIRED}.nodeSelectorTerms[{i}]", found)
    for i, preferred in enumerate(body.get(_PREFERRED) or ()):
        at = f"{path}.{_PREFERRED}[{i}]"
        _check_weight(preferred, at, found)
        check_node_term(read(preferred, "preference"), f"{at}.preference", found)


def check_node_term(term: Section, path: str, found: Findings) -> None:
    for i, expression in enumerate(term.get("matchExpressions") or ()):
        _check_expression(
            expression, f"{path}.matchExpressions[{i}]", ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"), found
        )
    for i, field in enumerate(term.get("matchFields") or ()):
        at, operator, values = f"{path}.matchFields[{i}]", field.get("operator"), field.get("values") or ()
        if operator not in ("In", "NotIn"):
            found.invalid(f"{at}.operator", f"operator {operator!r} does not work on fields; use In or NotIn")
        elif len(values) != 1:
            found.invalid(f"{at}.values", f"{operator} on a field takes exactly one value")
        if field.get("key") != "metadata.name":
            found.invalid(f"{at}.key", "the only field of a node that can be matched is metadata.name")
            continue
        for j, value in enumerate(values):
            if why := dns_subdomain_error(value):
                found.invalid(f"{at}.values[{j}]", f"{value!r} is not the name of a node: {why}")


def _check_expression(expression: Section, path: str, operators: Sequence[str], found: Findings) -> None:
    operator, values = expression.get("operator"), expression.get("values") or ()
    if operator not in operators:
        found.invalid(f"{path}.operator", f"operator {operator!r} does not exist; use one of {', '.join(operators)}")
    elif operator in ("In", "NotIn") and not values:
        found.invalid(f"{path}.values", f"{operator} needs at least one value")
    elif operator in ("Exists", "DoesNotExist") and values:
        found.invalid(f"{path}.values", f"{operator} takes no values; remove them, or use In or NotIn")
    elif operator in ("Gt", "Lt") and len(values) != 1:
        found.invalid(f"{path}.values", f"{operator} takes exactly one value")
    if why := label_key_error(expression.get("key") or ""):
        found.invalid(f"{path}.key", f"{expression.get('key')!r} is not a label: {why}")


def _check_weight(term: Section, path: str, found: Findings) -> None:
    weight = term.get("weight") or 0
    if not 1 <= weight <= 100:
        found.invalid(f"{path}.weight", f"weight {weight} must be from 1 to 100")


def _check_pod_term(term: Section, path: str, found: Findings) -> None:
    for field in ("labelSelector", "namespaceSelector"):
        check_label_selector(read(term, field), f"{path}.{field}", found)
    for name in term.get("namespaces") or ():
        if why := dns_label_error(name):
            found.invalid(f"{path}.namespace", f"{name!r} is not a namespace: {why}")
    key = term.get("topologyKey") or ""
    if not key:
        found.invalid(f"{path}.topologyKey", "say over what to spread; kubernetes.io/hostname is usual")
    elif why := label_key_error(key):
        found.invalid(f"{path}.topologyKey", f"{key!r} is not a label: {why}")


def check_label_selector(selector: Section, path: str, found: Findings) -> None:
    """matchLabels and matchExpressions of a LabelSelector."""
    for key, value in read(selector, "matchLabels").items():
        if why := label_key_error(key):
            found.invalid(f"{path}.matchLabels", f"{key!r} is not a label: {why}")
        if why := label_value_error(value):
            found.invalid(f"{path}.matchLabels", f"{value!r} is not a label value: {why}")
    for i, expression in enumerate(selector.get("matchExpressions") or ()):
        _check_expression(expression, f"{path}.matchExpressions[{i}]", ("In", "NotIn", "Exists", "DoesNotExist"), found)


def _check_spread(constraints: Sequence[Section], path: str, found: Findings) -> None:
    kinds = [(c.get("topologyKey") or "", c.get("whenUnsatisfiable") or "") for c in constraints]
    for i, constraint in enumerate(constraints):
        at, (key, action) = f"{path}[{i}]", kinds[i]
        if not 0 < (constraint.get("maxSkew") or 0) < 2**31:
            found.invalid(f"{at}.maxSkew", "maxSkew must be 1 or more, and less than 2147483648")
        if not key:
            found.invalid(f"{at}.topologyKey", "say over what to spread; kubernetes.io/hostname is usual")
        elif why := label_key_error(key):
            found.invalid(f"{at}.topologyKey", f"{key!r} is not a label: {why}")
        if action not in ("DoNotSchedule", "ScheduleAnyway"):
            found.invalid(f"{at}.whenUnsatisfiable", f"{action!r} does not exist; use DoNotSchedule or ScheduleAnyway")
        check_label_selector(read(constraint, "labelSelector"), f"{path}.labelSelector", found)
        if kinds[i] in kinds[i + 1 :]:
            found.invalid(
                f"{at}.{{topologyKey, whenUnsatisfiable}}", f"{key} with {action} is listed twice; remove one"
            )
