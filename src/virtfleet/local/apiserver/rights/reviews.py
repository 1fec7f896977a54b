"""Questions that are asked by POSTing an object and answered in its status: who is this, may they do that.

kubectl auth can-i and whoami ask them, and so does every aggregated server that leaves its decisions to the cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.operations import Post
from virtfleet.local.apiserver.objects.refusals import bad_request, invalid_review
from virtfleet.local.apiserver.rights.access import Attributes, User
from virtfleet.local.apiserver.rights.rbac import Authorizer
from virtfleet.local.apiserver.rights.tokens import ISSUER, ServiceAccountTokens, Unauthenticated

AUTHENTICATION, AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"


class Reviews:
    """All reviews, by the place where they are POSTed to."""

    def __init__(self, tokens: ServiceAccountTokens, authorizer: Authorizer) -> None:
        self._tokens, self._authorizer = tokens, authorizer

    def posts(self) -> dict[tuple[str, str, str], Post]:
        """By group, plural and subresource."""
        return {
            (AUTHENTICATION, "tokenreviews", ""): _post(self._token),
            (AUTHENTICATION, "selfsubjectreviews", ""): _post(lambda obj, user: {"userInfo": user_info(user)}),
            (AUTHORIZATION, "subjectaccessreviews", ""): _post(self._access),
            (AUTHORIZATION, "selfsubjectaccessreviews", ""): _post(self._decide),
            (AUTHORIZATION, "selfsubjectrulesreviews", ""): _post(self._self_rules),
            ("", "serviceaccounts", "token"): self._tokens.request,
        }

    def _token(self, obj: Obj, user: User) -> Obj:
        spec = obj.get("spec") or {}
        token = spec.get("token")
        if not token:
            raise bad_request("token is required for TokenReview in authentication")
        try:
            verified, audiences = self._tokens.verify(token, spec.get("audiences") or (ISSUER,))
        except Unauthenticated as why:
            return {"user": {}, "error": str(why)}
        return {"authenticated": True, "user": user_info(verified), "audiences": audiences}

    def _access(self, obj: Obj, user: User) -> Obj:
        spec = obj.get("spec") or {}
        if not spec.get("user") and not spec.get("groups"):
            raise _invalid("spec.user", "", "at least one of user or group must be specified")
        extra = {key: tuple(values) for key, values in (spec.get("extra") or {}).items()}
        groups = tuple(spec.get("groups") or ())
        return self._decide(obj, User(spec.get("user", ""), groups, spec.get("uid", ""), extra))

    def _decide(self, obj: Obj, user: User) -> Obj:
        spec = obj.get("spec") or {}
        resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
        if (resource is None) == (path is None):
            either = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            raise _invalid("spec.resourceAttributes", None, either)
        fields = ("verb", "group", "version", "resource", "subresource", "namespace", "name", "path")
        asked: dict[str, Any] = {f: (resource or path or {}).get(f, "") for f in fields}
        return {"allowed": self._authorizer(Attributes(user, **asked))}

    def _self_rules(self, obj: Obj, user: User) -> Obj:
        asked = (obj.get("spec") or {}).get("namespace", "")
        if not asked:
            raise bad_request("no namespace on request")
        rules = self._authorizer.rules(user, asked)
        return {
            "resourceRules": [_without_empty(r) for r in rules if not r.get("nonResourceURLs")],
            "nonResourceRules": [_without_empty(r) for r in rules if r.get("nonResourceURLs")],
            "incomplete": False,
        }


def _post(question: Callable[[Obj, User], Obj]) -> Post:
    async def post(obj: Obj, *, namespace: str, name: str, user: User, dry_run: bool) -> Obj:
        return {**obj, "status": question(obj, user)}

    return post


def _invalid(field: str, value: Any, why: str) -> ApiError:
    return invalid_review(AUTHORIZATION, "SubjectAccessReview", [causes.invalid(field, value, why)])


def user_info(user: User) -> Obj:
    """A user in the form that reviews and admission requests carry."""
    extra = {key: list(values) for key, values in user.extra.items()}
    return _without_empty({"username": user.name, "uid": user.uid, "groups": list(user.groups), "extra": extra})


def _without_empty(rule: Any) -> Obj:
    return {key: value for key, value in rule.items() if value}
