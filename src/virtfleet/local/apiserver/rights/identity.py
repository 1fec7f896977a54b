"""Authentication: who sends a request.

A client certificate names its user (common name) and groups (organizations); a bearer token is a service account's. A
request without either is anonymous, and one whose credentials are bad gets 401 even where anonymous ones are welcome.
Kubernetes also accepts X-Remote-User headers from a front proxy; here nothing stands in front of the API server, so
they mean nothing.

The TLS handshake checks that a client certificate comes from the cluster's authority, and refuses any other (Kubernetes
answers 401 instead, but OpenSSL as Python wraps it cannot defer that). Its dates are checked here, so that a
certificate that expires, on an open connection too, gets 401.
"""

from __future__ import annotations

import logging
from ssl import SSLContext

from aiohttp import web

from virtfleet.kube import certificates, peers
from virtfleet.kube.certificates import Credential
from virtfleet.kube.errors import ApiError
from virtfleet.local.apiserver.objects import refusals
from virtfleet.local.apiserver.rights.access import ANONYMOUS, Attributes, User
from virtfleet.local.apiserver.rights.rbac import Authorizer
from virtfleet.local.apiserver.rights.tokens import (
    ServiceAccountTokens,
    Unauthenticated,
    service_account,
    service_account_groups,
)

log = logging.getLogger(__name__)

_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which the ssl module has no name for
_AS, _AS_EXTRA = "impersonate-", "impersonate-extra-"


def listening_context(credential: Credential, clients: bytes) -> SSLContext:
    """The API server's side of TLS: client certificates are welcome, and expired ones left for `Identity` to refuse."""
    context = certificates.server_context(credential, clients=clients)
    context.verify_flags |= _NO_CHECK_TIME
    return context


class Identity:
    """The authenticator of the HTTP server."""

    def __init__(self, tokens: ServiceAccountTokens, authorize: Authorizer) -> None:
        self._tokens, self._authorize = tokens, authorize

    async def __call__(self, request: web.Request) -> User:
        try:
            user = _of_certificate(request) or self._of_token(request) or ANONYMOUS
        except Unauthenticated as why:
            log.info("refused the credentials of %s: %s", request.remote, why)
            raise ApiError("Unauthorized", "Unauthorized") from why
        return self._impersonated(request, user)

    def _of_token(self, request: web.Request) -> User | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return None
        return self._tokens.verify(token.strip())[0]

    def _impersonated(self, request: web.Request, user: User) -> User:
        """The user that is asked to be impersonated (kubectl --as), if the caller may be everything of it."""
        asked = {k.lower(): tuple(request.headers.getall(k)) for k in request.headers if k.lower().startswith(_AS)}
        if not asked:
            return user
        name = asked.get("impersonate-user", ("",))[0]
        if not name:
            raise refusals.bad_request("requested impersonation of groups, uid or extra without impersonating a user")
        groups, uid = asked.get("impersonate-group", ()), asked.get("impersonate-uid", ("",))[0]
        extra = {k.removeprefix(_AS_EXTRA): values for k, values in asked.items() if k.startswith(_AS_EXTRA)}
        namespace, account = service_account(name)
        itself = {"resource": "serviceaccounts", "name": account, "namespace": namespace}
        wanted = [itself if account else {"resource": "users", "name": name}]
        wanted += [{"resource": "groups", "name": group} for group in groups]
        about = {"group": "authentication.k8s.io"}
        wanted += [{**about, "resource": "uids", "name": uid}] if uid else []
        for key, values in extra.items():
            wanted += [{**about, "resource": "userextras", "subresource": key, "name": value} for value in values]
        for each in wanted:
            attributes = Attributes(user, "impersonate", **each)
            if not self._authorize(attributes):
                raise refusals.forbidden(attributes)
        if name == ANONYMOUS.name:
            return User(name, groups or ANONYMOUS.groups, uid, extra)
        if account and not groups:
            groups = service_account_groups(namespace)
        return User(name, _authenticated(groups), uid, extra)


def _of_certificate(request: web.Request) -> User | None:
    peer = peers.presented(request)
    if peer is None:
        return None
    if not peer.is_current():
        raise Unauthenticated(f"the certificate of {peer.name} is good from {peer.begins} to {peer.ends}")
    return User(peer.name, _authenticated(peer.organizations))


def _authenticated(groups: tuple[str, ...]) -> tuple[str, ...]:
    return groups if "system:authenticated" in groups else (*groups, "system:authenticated")
