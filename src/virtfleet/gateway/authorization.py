"""May this user do that: asked of the API server for every request, so that a right that is taken away is gone."""

from __future__ import annotations

import logging

from virtfleet.api.subresources import GROUP, Role, Subresource
from virtfleet.gateway.frontproxy import User
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import SUBJECT_ACCESS_REVIEWS, Obj

log = logging.getLogger(__name__)


async def require(api: KubeApi, user: User, asked: Subresource, version: str, namespace: str, name: str) -> None:
    """Raises ApiError unless the user may ask for this subresource of this object."""
    if asked.role is Role.EVERYBODY:
        return
    review = await api.create(SUBJECT_ACCESS_REVIEWS, _review(user, asked, version, namespace, name))
    status = review.get("status") or {}
    if status.get("allowed") is True:
        return
    role = "cluster-admin" if asked.role is Role.CLUSTER_ADMIN else f"kubevirt.io:{asked.role.value}"
    what = f'{asked.verb} resource "{asked.rbac}" in API group "{GROUP}" in the namespace "{namespace}"'
    log.warning("refused %s of %r to %r: %s", what, name, user.name, status.get("reason") or "no role allows it")
    raise ApiError(
        "Forbidden",
        f'{asked.rbac}.{GROUP} "{name}" is forbidden: User "{user.name}" cannot {what}; the role {role} allows it',
        details={"name": name, "group": GROUP, "kind": asked.resource},
    )


def _review(user: User, asked: Subresource, version: str, namespace: str, name: str) -> Obj:
    attributes = {
        "namespace": namespace,
        "verb": asked.verb,
        "group": GROUP,
        "version": version,
        "resource": asked.resource,
        "subresource": asked.name,
        "name": name,
    }
    spec = {
        "user": user.name,
        "groups": [*user.groups],
        "uid": user.uid,
        "extra": {key: [*values] for key, values in user.extra.items()},
        "resourceAttributes": {key: value for key, value in attributes.items() if value},
    }
    return {
        "apiVersion": SUBJECT_ACCESS_REVIEWS.api_version,
        "kind": SUBJECT_ACCESS_REVIEWS.kind,
        "spec": {key: value for key, value in spec.items() if value},
    }
