"""Refusals in Kubernetes' words: what kubectl prints, client-go matches on, and people search the web for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Resource
from virtfleet.local.apiserver.objects.causes import Cause, quoted
from virtfleet.local.apiserver.rights.access import Attributes

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def _details(name: str, group: str, kind: str, **more: Any) -> dict[str, Any]:
    details = {"name": name, "group": group, "kind": kind, **more}
    return {key: value for key, value in details.items() if value}


def _of(resource: Resource, name: str, reason: str, message: str, **details: Any) -> ApiError:
    """About one object."""
    return ApiError(reason, message, details=_details(name, resource.group, resource.plural, **details))


def bad_request(message: str) -> ApiError:
    """What makes no sense."""
    return ApiError("BadRequest", message)


def undecodable(resource: Resource, why: str) -> ApiError:
    """Not even the form of an object of this kind."""
    kind = resource.kind
    return bad_request(f'{kind} in version "{resource.version}" cannot be handled as a {kind}: {why}')


def not_found(resource: Resource, name: str) -> ApiError:
    """No such object."""
    return _of(resource, name, "NotFound", f'{resource} "{name}" not found')


def no_such_path() -> ApiError:
    """No such resource."""
    return ApiError("NotFound", "the server could not find the requested resource", details={})


def already_exists(resource: Resource, name: str, *, generated: bool = False) -> ApiError:
    """The name is taken; all that were `generated` are."""
    message = f'{resource} "{name}" already exists'
    if not generated:
        return _of(resource, name, "AlreadyExists", message)
    message += ", the server was not able to generate a unique name for the object"
    return _of(resource, name, "AlreadyExists", message, retryAfterSeconds=1)


def conflict(resource: Resource, name: str, why: str = MODIFIED) -> ApiError:
    """Somebody else was quicker."""
    return _of(resource, name, "Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {why}')


def apply_conflict(message: str, conflicts: Sequence[tuple[str, str]]) -> ApiError:
    """Others manage what would change: their names, and the fields."""
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": field}
        for manager, field in conflicts
    ]
    return ApiError("Conflict", message, details={"causes": causes})


def inapplicable(resource: Resource, namespace: str, name: str, why: str) -> ApiError:
    """A configuration that does not go together with the kind's schema."""
    where = f"{namespace}/{name}; {resource.api_version}, Kind={resource.kind}"
    return ApiError("", f"failed to create typed patch object ({where}): {why}", code=500)


def precondition_failed(resource: Resource, name: str, field: str, wanted: str, present: str) -> ApiError:
    """The object is not the one that was meant."""
    return conflict(
        resource, name, f"Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {present}"
    )


def invalid(resource: Resource, name: str, causes: Sequence[Cause]) -> ApiError:
    """An object with faults."""
    return invalid_review(resource.group, resource.kind, causes, name)


def invalid_options(options: str, causes: Sequence[Cause]) -> ApiError:
    """For DeleteOptions, ListOptions and the like."""
    return invalid_review("meta.k8s.io", options, causes)


def invalid_review(group: str, kind: str, causes: Sequence[Cause], name: str = "") -> ApiError:
    """For what is asked by posting an object, and never stored."""
    faults = list(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in causes))
    text = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
    listed = [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes]
    message = f'{kind}{group and f".{group}"} "{name}" is invalid: {text}'
    return ApiError("Invalid", message, details=_details(name, group, kind, causes=listed))


def terminating_namespace(resource: Resource, name: str, namespace: str) -> ApiError:
    """A namespace that is going takes nothing new."""
    message = f"namespace {namespace} is being terminated"
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    cause = {"reason": "NamespaceTerminating", "message": message, "field": "metadata.namespace"}
    return not_allowed(resource, name, why, causes=[cause])


def not_allowed(resource: Resource, name: str, why: str, **details: Any) -> ApiError:
    """An object that nobody may make so, or take away."""
    return _of(resource, name, "Forbidden", f'{resource} "{name}" is forbidden: {why}', **details)


def forbidden(asked: Attributes) -> ApiError:
    """What an authorizer did not allow."""
    who = f"User {quoted(asked.user.name)} cannot {asked.verb}"
    if not asked.resource:
        return ApiError("Forbidden", f"forbidden: {who} path {quoted(asked.path)}", details={})
    resource = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
    where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    qualified = f"{asked.resource}.{asked.group}" if asked.group else asked.resource
    subject = f'{qualified} "{asked.name}"' if asked.name else qualified
    why = f'{who} resource "{resource}" in API group "{asked.group}" {where}'
    details = _details(asked.name, asked.group, asked.resource)
    return ApiError("Forbidden", f"{subject} is forbidden: {why}", details=details)


def method_not_allowed() -> ApiError:
    """That cannot be done to it."""
    return ApiError("MethodNotAllowed", "the server does not allow this method on the requested resource", details={})


def bad_version(why: str) -> ApiError:
    """A resourceVersion that makes no sense; only the storage finds that, for which Kubernetes has no reason."""
    return ApiError("", why, code=500)


def too_large(message: str) -> ApiError:
    """More than is read."""
    return ApiError("RequestEntityTooLarge", f"Request entity too large: {message}")


def unknown_format(accepted: Sequence[str]) -> ApiError:
    """A body that cannot be read."""
    why = "the body of the request was in an unknown format - accepted media types include: "
    return ApiError("UnsupportedMediaType", why + ", ".join(accepted))


def not_acceptable(accepted: Sequence[str]) -> ApiError:
    """An answer that cannot be given."""
    return ApiError("NotAcceptable", "only the following media types are accepted: " + ", ".join(accepted))
