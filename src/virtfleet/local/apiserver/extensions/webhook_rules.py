"""Which webhooks and policies a write is shown to: rules, scope, selectors, and equivalent versions of a kind.

Conditions are in CEL, the language of admission policies: checked and compiled once, evaluated without side effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from virtfleet.api.selectors import Selector, from_label_selector
from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.apiserver.extensions import services
from virtfleet.local.apiserver.extensions.admission import AdmissionRequest
from virtfleet.local.apiserver.kinds.registry import Kind, Kinds
from virtfleet.local.apiserver.objects.store import Store

VARIABLES = ("request", "object", "oldObject")


class ExpressionError(Exception):
    """What does not compile, or has no answer for these objects."""


@cache
def _language() -> Any:
    from cel_expr_python import cel  # a large library that a cluster without policies has no use for

    return cel.NewEnv(variables=dict.fromkeys(VARIABLES, cel.Type.DYN)), cel.Type.BOOL


def all_hold(conditions: Iterable[Condition], values: Mapping[str, Any]) -> bool:
    """Whether all conditions hold. One that does not counts more than one that has no answer."""
    unanswered: ExpressionError | None = None
    for condition in conditions:
        try:
            if not condition.holds(values):
                return False
        except ExpressionError as error:
            unanswered = error
    if unanswered:
        raise unanswered
    return True


class Condition:
    """One expression whose value is true or false. Undeclared names and wrong types are found here already."""

    def __init__(self, text: str) -> None:
        self.text = text
        environment, boolean = _language()
        try:
            self._compiled = environment.compile(text)
        except RuntimeError as error:
            why = str(error).removeprefix("INVALID_ARGUMENT: ").removesuffix(" [INVALID_ARGUMENT]")
            raise ExpressionError(f"compilation failed: {why}") from error
        if self._compiled.return_type() != boolean:
            raise ExpressionError("must evaluate to bool")

    def holds(self, values: Mapping[str, Any]) -> bool:
        """`values` of all VARIABLES."""
        try:
            answer = self._compiled.eval(data=values)
        except RuntimeError as error:
            raise ExpressionError(f"expression '{self.text}' resulted in error: {error}") from error
        if answer.type() != _language()[1]:
            raise ExpressionError(f"expression '{self.text}' resulted in error: {answer.value()}")
        return answer.value() is True


def _covers(rule: Obj, operation: str, res: Resource, subresource: str) -> bool:
    """Whether the rule of a webhook or policy is about this, in any version. "*" stands for all."""
    return (
        _has(rule.get("operations"), operation)
        and _has(rule.get("apiGroups"), res.group)
        and (rule.get("scope") or "*") in ("*", "Namespaced" if res.namespaced else "Cluster")
        # A rule's "*" names resources without their subresources, "pods/*" pods with all of theirs.
        and any(
            (f"{r}/{s}" if s else r) in (rule.get("resources") or ())
            for r in (res.plural, "*")
            for s in (subresource, "*")
        )
    )


def _has(values: list[str] | None, wanted: str) -> bool:
    return values is not None and (wanted in values or "*" in values)


@dataclass(frozen=True, slots=True)
class Matcher:
    """What a webhook or policy says of the writes that it is about."""

    rules: list[Obj]
    namespaces: Selector
    objects: Selector
    policy: str  # Equivalent, Exact

    @classmethod
    def of(cls, section: Obj, rules: list[Obj]) -> Matcher:
        """`section` is where the selectors and the policy are."""
        return cls(
            rules,
            from_label_selector(section.get("namespaceSelector") or {}),
            from_label_selector(section.get("objectSelector") or {}),
            section.get("matchPolicy") or "Equivalent",
        )

    def kind_of(self, request: AdmissionRequest, kinds: Kinds, stored: Store) -> Kind | None:
        """The version of the written kind that is to be shown, or None if the write is not what this is about.

        Nobody could make a webhook or policy that guards its own removal.
        """
        if request.kind.resource.group == "admissionregistration.k8s.io":
            return None
        kind = self._version(request, kinds)
        return kind if kind and self._selects(request, stored) else None

    def _version(self, request: AdmissionRequest, kinds: Kinds) -> Kind | None:
        """With the policy Equivalent, a rule that names another version of the kind counts as well, in that version."""
        res = request.kind.resource
        covering = [rule for rule in self.rules if _covers(rule, request.operation, res, request.subresource)]
        versions = [rule.get("apiVersions") or [] for rule in covering]
        if any(_has(v, res.version) for v in versions):
            return request.kind
        if versions and self.policy == "Equivalent":
            others = (k for k in kinds if (k.resource.group, k.resource.plural) == (res.group, res.plural))
            return next((k for k in others if any(k.resource.version in v for v in versions)), None)
        return None

    def _selects(self, request: AdmissionRequest, stored: Store) -> bool:
        """Whether the selectors take the object. That one of the old and the new object matches is enough."""
        objects = [obj for obj in (request.obj, request.old) if obj]
        itself = request.kind.storage == "/namespaces"
        space = objects[0] if itself else stored.read("/namespaces", "", request.namespace)
        # Where there is none, no selector exempts from anything.
        if space and not self.namespaces.matches(space["metadata"].get("labels")):
            return False
        return any(self.objects.matches(obj["metadata"].get("labels")) for obj in objects)


@dataclass(frozen=True, slots=True)
class Webhook:
    """One webhook of a configuration."""

    name: str
    url: str
    ca_bundle: str  # base64 of PEM; "" for the machine's own
    matcher: Matcher
    failure_policy: str  # Fail, Ignore
    side_effects: str
    timeout: int
    conditions: tuple[Condition, ...] = ()

    @classmethod
    def of_configuration(cls, configuration: Obj) -> Iterator[Webhook]:
        """The webhooks of a ValidatingWebhookConfiguration or a mutating one."""
        for hook in configuration.get("webhooks") or ():
            client = hook["clientConfig"]
            yield cls(
                hook["name"],
                _url(client),
                client.get("caBundle") or "",
                Matcher.of(hook, hook.get("rules") or []),
                hook.get("failurePolicy") or "Fail",
                hook.get("sideEffects") or "Unknown",
                hook.get("timeoutSeconds") or 10,
                tuple(Condition(each["expression"]) for each in hook.get("matchConditions") or ()),
            )


def _url(client: Obj) -> str:
    if service := client.get("service"):
        place = services.host(service["namespace"], service["name"])
        path = service.get("path") or "/"
        return f"https://{place}:{service.get('port') or 443}{path if path.startswith('/') else '/' + path}"
    return str(client["url"])


def follow(store: Store, res: Resource, read: Callable[[list[Obj]], None]) -> None:
    """Let all objects of a kind be read, ordered by name, now and after every change of one."""

    def changed(_: object = None) -> None:
        read(store.objects(res.storage))

    store.listen(res.storage, changed)
    changed()
