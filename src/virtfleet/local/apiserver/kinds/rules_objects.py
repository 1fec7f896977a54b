"""Rules of the smaller core kinds (namespaces, nodes, configuration, volumes, events), and of those that govern others:
RBAC, disruption budgets, webhooks, admission policies, aggregated APIs.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from virtfleet.api.selectors import SelectorError, from_label_selector
from virtfleet.kube.resource import ADMISSION, RBAC, Obj
from virtfleet.local.apiserver.extensions.webhook_rules import Condition, ExpressionError
from virtfleet.local.apiserver.kinds.registry import Rules
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause
from virtfleet.local.apiserver.objects.store import Store

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
NAMESPACE_FINALIZER = "kubernetes"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
SIZE_LIMIT = 1024 * 1024  # of values as they are stored
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_KEY_FORM = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
    "(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
# What a secret of a type must hold.
_SECRET_KEYS = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}


def _begin_namespace(obj: Obj) -> None:
    """The finalizer keeps it until its content is gone."""
    finalizers = obj.get("spec", {}).get("finalizers", [])
    obj["spec"] = {"finalizers": list(dict.fromkeys([*finalizers, NAMESPACE_FINALIZER]))}


def _keep_namespace(obj: Obj, old: Obj, subresource: str) -> None:
    """Only its own subresources change spec and status."""
    if subresource != "finalize":
        obj["spec"] = old.get("spec", {})
    if subresource != "status":
        obj["status"] = old.get("status", {})


def _complete_namespace(obj: Obj) -> None:
    if name := obj["metadata"].get("name"):
        obj["metadata"]["labels"] = {**(obj["metadata"].get("labels") or {}), NAMESPACE_LABEL: name}


def _complete_node(obj: Obj) -> None:
    """A node always has a spec."""
    obj.setdefault("spec", {})


def _config_faults(maps: tuple[str, ...], obj: Obj) -> Iterator[Cause]:
    """Of a ConfigMap or Secret, whose values are in `maps`."""
    size, binary = 0, obj.get("binaryData", {})
    for name in maps:
        for key, value in obj.get(name, {}).items():
            size += len(value)
            yield from (causes.invalid(f"{name}[{key}]", key, why) for why in _key_faults(key))
            if name != "binaryData" and key in binary:
                yield causes.invalid(f"{name}[{key}]", key, "duplicate of key present in binaryData")
    if size > SIZE_LIMIT:
        yield causes.too_long(maps[0], SIZE_LIMIT)
    for key in _SECRET_KEYS.get(obj.get("type", ""), ()):
        if key not in obj.get("data", {}):
            yield causes.required(f"data[{key}]")


def _config_changes(maps: tuple[str, ...], obj: Obj, old: Obj, _subresource: str) -> Iterator[Cause]:
    """What is immutable stays."""
    yield from _config_faults(maps, obj)
    for name in (*maps, "immutable"):
        if old.get("immutable") and obj.get(name) != old.get(name):
            yield causes.forbidden(name, "field is immutable when `immutable` is set")


def _config(*maps: str, **more: Any) -> Rules:
    return Rules(faults=partial(_config_faults, maps), on_update=partial(_config_changes, maps), **more)


def _key_faults(key: str) -> Iterator[str]:
    if len(key) > 253:
        yield "must be no more than 253 bytes"
    if not _KEY.fullmatch(key):
        yield _KEY_FORM
    if key == "." or key.startswith(".."):
        yield "must not be '.' or start with '..'"


def _complete_secret(obj: Obj) -> None:
    """Texts are kept in base64."""
    if texts := obj.pop("stringData", None):
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        obj["data"] = {**obj.get("data", {}), **encoded}


def _begin_claim(stored: Store, obj: Obj) -> None:
    """Where no class is named, the default one is meant; the newest where there are several."""
    spec = obj.setdefault("spec", {})
    if "storageClassName" not in spec:
        classes = (each["metadata"] for each in stored.objects("storage.k8s.io/storageclasses"))
        defaults = [meta for meta in classes if meta.get("annotations", {}).get(DEFAULT_CLASS) == "true"]
        for newest in sorted(defaults, key=lambda meta: (meta["creationTimestamp"], meta["name"]))[-1:]:
            spec["storageClassName"] = newest["name"]


def _claim_faults(obj: Obj) -> Iterator[Cause]:
    if "storage" not in obj.get("spec", {}).get("resources", {}).get("requests", {}):
        yield causes.required("spec.resources[storage]")


def _claim_changes(obj: Obj, old: Obj, _subresource: str) -> Iterator[Cause]:
    """Little of a claim changes."""
    yield from _claim_faults(obj)
    mutable = {"resources", "volumeAttributesClassName"}
    spec, was = obj.get("spec", {}), old["spec"]
    mutable |= {field for field in ("volumeName", "storageClassName") if not was.get(field)}
    if any(spec.get(key) != was.get(key) for key in (spec.keys() | was.keys()) - mutable):
        why = "spec is immutable after creation except resources.requests and volumeAttributesClassName"
        yield causes.forbidden("spec", f"{why} for bound claims")


def _selector_faults(of: Obj, field: str, *names: str) -> Iterator[Cause]:
    """Label selectors that cannot be read."""
    for name in names:
        try:
            from_label_selector(of.get(name))
        except SelectorError as error:
            yield causes.invalid(f"{field}.{name}", of.get(name), str(error))


def _condition_faults(of: Obj, field: str, name: str) -> Iterator[Cause]:
    """Expressions that cannot be asked."""
    for index, each in enumerate(of.get(name) or ()):
        try:
            Condition(each.get("expression", ""))
        except ExpressionError as error:
            yield causes.invalid(f"{field}{name}[{index}].expression", each.get("expression"), str(error))


def _complete_role(obj: Obj) -> None:
    """A role always has rules, be there none."""
    obj.setdefault("rules", [])


def _role_faults(obj: Obj) -> Iterator[Cause]:
    for index, rule in enumerate(obj.get("rules", ())):
        at = f"rules[{index}]"
        urls = rule.get("nonResourceURLs")
        if urls and "namespace" in obj["metadata"]:
            yield causes.invalid(f"{at}.nonResourceURLs", urls, "namespaced rules cannot apply to non-resource URLs")
        elif not urls:
            if not rule.get("apiGroups"):
                yield causes.required(f"{at}.apiGroups", "resource rules must supply at least one api group")
            if not rule.get("resources"):
                yield causes.required(f"{at}.resources", "resource rules must supply at least one resource")


def _complete_binding(obj: Obj) -> None:
    """Users and groups are RBAC's own."""
    obj.setdefault("roleRef", {})
    for subject in obj.get("subjects", ()):
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", RBAC)


def _binding_faults(roles: list[str], obj: Obj) -> Iterator[Cause]:
    role = obj["roleRef"]
    if role.get("kind") not in roles:
        yield causes.unsupported("roleRef.kind", role.get("kind", ""), roles)
    for index, subject in enumerate(obj.get("subjects", ())):
        at = f"subjects[{index}]"
        group = "" if subject.get("kind") == "ServiceAccount" else RBAC
        if subject.get("apiGroup", group) != group:
            yield causes.unsupported(f"{at}.apiGroup", subject["apiGroup"], [group])
        if not group and not subject.get("namespace"):
            yield causes.required(f"{at}.namespace")


def _budget_faults(obj: Obj) -> Iterator[Cause]:
    spec = obj.get("spec", {})
    if "minAvailable" in spec and "maxUnavailable" in spec:
        yield causes.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    yield from _selector_faults(spec, "spec", "selector")


def _webhook_faults(obj: Obj) -> Iterator[Cause]:
    """Webhooks of a configuration have names of their own, and one address each."""
    seen: set[str] = set()
    for index, hook in enumerate(obj.get("webhooks", ())):
        at, name, client = f"webhooks[{index}]", hook.get("name", ""), hook.get("clientConfig", {})
        if name in seen:
            yield causes.duplicate(f"{at}.name", name)
        seen.add(name)
        if ("url" in client) == ("service" in client):
            yield causes.required(f"{at}.clientConfig", "exactly one of url or service is required")
        yield from _selector_faults(hook, at, "namespaceSelector", "objectSelector")
        yield from _condition_faults(hook, f"{at}.", "matchConditions")


def _policy_faults(obj: Obj) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    match = spec.get("matchConstraints") or {}
    yield from _selector_faults(match, "spec.matchConstraints", "namespaceSelector", "objectSelector")
    for field in ("matchConditions", "validations"):
        yield from _condition_faults(spec, "spec.", field)


def _api_service_faults(obj: Obj) -> Iterator[Cause]:
    spec = obj.get("spec", {})
    name = f"{spec.get('version', '')}.{spec.get('group', '')}"
    if obj["metadata"].get("name") != name:
        why = f'must be `spec.version+"."+spec.group`: {causes.quoted(name)}'
        yield causes.invalid("metadata.name", obj["metadata"].get("name"), why)
    if spec.get("insecureSkipTLSVerify") and spec.get("caBundle"):
        yield causes.invalid("spec.insecureSkipTLSVerify", True, "may not be true if caBundle is present")


def _binding(*roles: str) -> Rules:
    return Rules(
        fixed={"roleRef": "cannot change roleRef"},
        complete=_complete_binding,
        faults=partial(_binding_faults, list(roles)),
    )


_ROLES, _WEBHOOKS = Rules(complete=_complete_role, faults=_role_faults), Rules(faults=_webhook_faults)
_BUDGET = dict.fromkeys(("currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"), 0)

_GOVERNING = {
    f"{ADMISSION}/mutatingwebhookconfigurations": _WEBHOOKS,
    f"{ADMISSION}/validatingadmissionpolicies": Rules(status={}, faults=_policy_faults),
    f"{ADMISSION}/validatingwebhookconfigurations": _WEBHOOKS,
    "apiregistration.k8s.io/apiservices": Rules(status={}, faults=_api_service_faults),
    "policy/poddisruptionbudgets": Rules(status=_BUDGET, faults=_budget_faults),
    f"{RBAC}/clusterrolebindings": _binding("ClusterRole"),
    f"{RBAC}/clusterroles": _ROLES,
    f"{RBAC}/rolebindings": _binding("Role", "ClusterRole"),
    f"{RBAC}/roles": _ROLES,
}


def rules(stored: Store) -> dict[str, Rules]:
    """By the storage name of the kind."""
    involved = (f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid", "apiVersion", "fieldPath"))
    selectable = dict.fromkeys((*involved, "reason", "reportingComponent", "type"), "")
    return {
        **_GOVERNING,
        "/configmaps": _config("data", "binaryData"),
        "/events": Rules(selectable=selectable),
        "/namespaces": Rules(
            status={"phase": "Active"},
            selectable={"status.phase": ""},
            begin=_begin_namespace,
            keep=_keep_namespace,
            complete=_complete_namespace,
        ),
        "/nodes": Rules(selectable={"spec.unschedulable": False}, complete=_complete_node),
        "/persistentvolumeclaims": Rules(
            status={"phase": "Pending"},
            finalizer="kubernetes.io/pvc-protection",
            begin=partial(_begin_claim, stored),
            faults=_claim_faults,
            on_update=_claim_changes,
        ),
        "/persistentvolumes": Rules(status={"phase": "Pending"}, finalizer="kubernetes.io/pv-protection"),
        "/secrets": _config(
            "data", fixed={"type": "field is immutable"}, selectable={"type": ""}, complete=_complete_secret
        ),
    }
