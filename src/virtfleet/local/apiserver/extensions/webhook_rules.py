"""Which webhooks and policies a write is shown to: rules, scope, selectors, and equivalent versions of a kind. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from virtfleet.api.selectors import Selector, from_label_selector
from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.apiserver.extensions import services
from virtfleet.local.apiserver.extensions.admission import AdmissionRequest
from virtfleet.local.apiserver.kinds.registry import Kind, Kinds, Stored

Labels = dict[str, str]


@dataclass(frozen=True, slots=True)
class Rule:
    """Which operations on which resources. "*" stands for all."""

    operations: frozenset[str]
    groups: frozenset[str]
    versions: frozenset[str]
    resources: frozenset[str]
    scope: str

    @classmethod
    def of(cls, rule: Mapping[str, Any]) -> Rule:
        return cls(
            frozenset(rule.get("operations") or ()),
            frozenset(rule.get("apiGroups") or ()),
            frozenset(rule.get("apiVersions") or ()),
            frozenset(rule.get("resources") or ()),
            rule.get("scope") or "*",
        )

    def covers(self, operation: str, res: Resource, subresource: str) -> bool:
        """Whether the rule is about this, in any version."""
        return (
            _has(self.operations, operation)
            and _has(self.groups, res.group)
            and self._in_scope(res.namespaced)
            and self._names(res.plural, subresource)
        )

    def _in_scope(self, namespaced: bool) -> bool:
        return self.scope == "*" or self.scope == ("Namespaced" if namespaced else "Cluster")

    def _names(self, plural: str, subresource: str) -> bool:
        # A rule's "*" names resources without their subresources, "pods/*" pods with all of theirs.
        subresources = (subresource, "*")
        return any((f"{r}/{s}" if s else r) in self.resources for r in (plural, "*") for s in subresources)


def _has(values: frozenset[str], wanted: str) -> bool:
    return wanted in values or "*" in values


@dataclass(frozen=True, slots=True)
class Webhook:
    """One webhook of a configuration."""

    name: str
    url: str
    ca_bundle: str  # base64 of PEM; "" for the machine's own
    rules: tuple[Rule, ...]
    namespace_selector: Selector
    object_selector: Selector
    match_policy: str  # Equivalent, Exact
    failure_policy: str  # Fail, Ignore
    side_effects: str
    reinvocation_policy: str  # Never, IfNeeded
    timeout: int

    @classmethod
    def of_configuration(cls, configuration: Obj) -> Iterator[Webhook]:
        for hook in configuration.get("webhooks") or ():
            client = hook["clientConfig"]
            yield cls(
                hook["name"],
                _url(client),
                client.get("caBundle") or "",
                tuple(Rule.of(r) for r in hook.get("rules") or ()),
                from_label_selector(hook.get("namespaceSelector") or {}),
                from_label_selector(hook.get("objectSelector") or {}),
                hook.get("matchPolicy") or "Equivalent",
                hook.get("failurePolicy") or "Fail",
                hook.get("sideEffects") or "Unknown",
                hook.get("reinvocationPolicy") or "Never",
                hook.get("timeoutSeconds") or 10,
            )


def _url(client: Obj) -> str:
    if service := client.get("service"):
        place = services.host(service["namespace"], service["name"])
        path = service.get("path") or "/"
        return f"https://{place}:{service.get('port') or 443}{path if path.startswith('/') else '/' + path}"
    return str(client["url"])


class Matcher(Protocol):
    """What webhooks and policies say of the writes that they are about."""

    @property
    def rules(self) -> tuple[Rule, ...]: ...

    @property
    def namespace_selector(self) -> Selector: ...

    @property
    def object_selector(self) -> Selector: ...

    @property
    def match_policy(self) -> str: ...


def exempt(request: AdmissionRequest) -> bool:
    """Nobody could make a webhook or policy that guards its own removal."""
    return request.kind.resource.group == "admissionregistration.k8s.io"


def namespace_labels(stored: Stored, name: str) -> Labels:
    record = stored.get("/namespaces", "", name)
    return (orjson.loads(record.data)["metadata"].get("labels") or {}) if record else {}


def matched_kind(matcher: Matcher, request: AdmissionRequest, kinds: Kinds) -> Kind | None:
    """The version of the written kind that is asked for, or None if this write is not.

    With matchPolicy Equivalent a matcher that names another version of the kind is asked as well, in that version.
    """
    res = request.kind.resource
    versions = [r.versions for r in matcher.rules if r.covers(request.operation, res, request.subresource)]
    if any(_has(v, res.version) for v in versions):
        return request.kind
    if versions and matcher.match_policy == "Equivalent":
        others = (k for k in kinds if (k.resource.group, k.resource.plural) == (res.group, res.plural))
        return next((k for k in others if any(k.resource.version in v for v in versions)), None)
    return None


def selects(matcher: Matcher, request: AdmissionRequest, labels_of: Callable[[str], Labels]) -> bool:
    """Whether the matcher's selectors take the object. That one of the old and the new object matches is enough."""
    labels = _namespace_labels(request, labels_of)
    if labels is not None and not matcher.namespace_selector.matches(labels):
        return False
    objects = [obj for obj in (request.obj, request.old) if obj]
    return any(matcher.object_selector.matches(obj["metadata"].get("labels")) for obj in objects)


def _namespace_labels(request: AdmissionRequest, labels_of: Callable[[str], Labels]) -> Labels | None:
    """What a namespaceSelector looks at; None where there is no namespace, which no selector exempts."""
    if str(request.kind.resource) == "namespaces":
        obj = request.obj or request.old or {}
        return obj["metadata"].get("labels") or {}
    return labels_of(request.namespace) if request.namespace else None
