"""Service-account tokens: signed, for an audience and a time, and good only while what they are bound to exists.

TokenRequest issues them (kubectl create token, the node agent for projected volumes); the authenticator and TokenReview
check them. The cluster's key is an ECDSA P-256 one in a PEM file. Secrets of type service-account-token are filled with
a token that lasts as long as the Secret does.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Collection
from functools import lru_cache
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.types import Options

from virtfleet.api import times
from virtfleet.kube.api import KubeApi
from virtfleet.kube.authority import dump_keys, load_keys
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, ignoring, is_conflict, is_not_found
from virtfleet.kube.resource import NODES, PODS, SECRETS, SERVICE_ACCOUNTS, Obj, Resource
from virtfleet.local.apiserver.objects import refusals
from virtfleet.local.apiserver.objects.store import Change, Record, Store
from virtfleet.local.apiserver.rights.access import User

ISSUER = "https://kubernetes.default.svc.cluster.local"
SHORTEST, DEFAULT, LONGEST = 600, 3600, 1 << 32
# Pods that are going may use their tokens to finish, as long as Kubernetes grants it.
_GRACE = 60

_CLAIM = "kubernetes.io"
_SECRET_TYPE: Final = "kubernetes.io/service-account-token"
_ACCOUNT: Final = "kubernetes.io/service-account.name"
_ACCOUNT_UID: Final = "kubernetes.io/service-account.uid"
_SELF: Final = User("system:serviceaccount:kube-system:token-controller")
_BINDABLE = {"Pod": PODS, "Secret": SECRETS, "Node": NODES}


class Unauthenticated(Exception):
    """A credential that is not accepted. The reason goes into the log and into TokenReviews, never to the caller."""


class SigningKey:
    """The key that signs and verifies; a new one where `pem` is empty."""

    def __init__(self, pem: bytes = b"") -> None:
        self._key = next(iter(load_keys(pem)), None) or ec.generate_private_key(ec.SECP256R1())

    def dump(self) -> bytes:
        """In PEM."""
        return dump_keys([self._key])

    def sign(self, claims: dict[str, Any]) -> str:
        """A token."""
        return jwt.encode(claims, self._key, algorithm="ES256")

    def verify(self, token: str) -> dict[str, Any]:
        """The claims, whose signature is right; nothing else is checked."""
        try:
            options: Options = {"verify_aud": False, "verify_exp": False, "verify_nbf": False, "verify_iat": False}
            return jwt.decode(token, self._key.public_key(), algorithms=["ES256"], options=options)
        except jwt.InvalidTokenError as error:
            raise Unauthenticated(f"the token cannot be read: {error}") from error


def service_account(user: str) -> tuple[str, str]:
    """Namespace and name of the service account that a user name stands for; empty for any other user."""
    match user.split(":"):
        case ["system", "serviceaccount", namespace, name]:
            return namespace, name
    return "", ""


def service_account_groups(namespace: str) -> tuple[str, ...]:
    """The groups of all service accounts of a namespace."""
    return "system:serviceaccounts", f"system:serviceaccounts:{namespace}"


class ServiceAccountTokens:
    """Issues and checks tokens. `store` says what exists."""

    def __init__(self, store: Store, key: SigningKey) -> None:
        self._store = store
        self.key = key
        # A signature costs a hundred times what all other checks cost together; only good ones are remembered.
        self._claims = lru_cache(maxsize=4096)(key.verify)

    # --- checking ----------------------------------------------------------------------------------------------------

    def verify(self, token: str, audiences: Collection[str] = (ISSUER,)) -> tuple[User, list[str]]:
        """Whose token this is, if it is good now, and for which of the asked audiences."""
        claims = self._claims(token)
        now = time.time()
        if claims.get("iss") != ISSUER:
            raise Unauthenticated(f"the token's issuer is {claims.get('iss')!r}")
        if now >= claims.get("exp", 0):
            raise Unauthenticated("the token has expired")
        if now < claims.get("nbf", 0):
            raise Unauthenticated("the token is not valid yet")
        common = [a for a in audiences if a in claims.get("aud", ())]
        if not common:
            raise Unauthenticated(f"the token is for {claims.get('aud')}, not for {list(audiences)}")
        return self._user(claims), common

    def _user(self, claims: dict[str, Any]) -> User:
        private = claims[_CLAIM]
        namespace, account = private["namespace"], private["serviceaccount"]
        self._check(SERVICE_ACCOUNTS, namespace, account)
        extra = {"authentication.kubernetes.io/credential-id": (f"JTI={claims['jti']}",)}
        for kind, res in _BINDABLE.items():
            if ref := private.get(kind.lower()):
                # The node of a pod-bound token is a piece of information; the pod itself is what must exist.
                if kind != "Node" or "pod" not in private:
                    self._check(res, namespace if res.namespaced else "", ref)
                if kind in ("Pod", "Node"):
                    extra[f"authentication.kubernetes.io/{kind.lower()}-name"] = (ref["name"],)
                    extra[f"authentication.kubernetes.io/{kind.lower()}-uid"] = (ref["uid"],)
        groups = (*service_account_groups(namespace), "system:authenticated")
        return User(claims["sub"], groups, account["uid"], extra)

    def _check(self, res: Resource, namespace: str, ref: Obj) -> None:
        bound = self._store.read(res.storage, namespace, ref["name"])
        if bound is None or bound["metadata"]["uid"] != ref["uid"]:
            raise Unauthenticated(f"the token is bound to {res} {ref['name']} ({ref['uid']}), which does not exist")
        going = bound["metadata"].get("deletionTimestamp")
        if going and time.time() > times.seconds(going) + _GRACE:
            raise Unauthenticated(f"the token is bound to {res} {ref['name']}, which has been deleted")

    # --- issuing -----------------------------------------------------------------------------------------------------

    async def request(self, obj: Obj, *, namespace: str, name: str, user: User, dry_run: bool) -> Obj:
        """POST serviceaccounts/NAME/token."""
        spec = obj.get("spec") or {}
        seconds = spec.get("expirationSeconds") or DEFAULT
        if not SHORTEST <= seconds <= LONGEST:
            limit = "less than 10 minutes" if seconds < SHORTEST else "larger than 2^32 seconds"
            message = f"spec.expirationSeconds: Invalid value: {seconds}: may not specify a duration {limit}"
            raise ApiError("Invalid", f'TokenRequest.authentication.k8s.io "{name}" is invalid: {message}')
        account = self._store.read(SERVICE_ACCOUNTS.storage, namespace, name)
        if account is None:
            raise refusals.not_found(SERVICE_ACCOUNTS, name)
        private: Obj = {"namespace": namespace, "serviceaccount": {"name": name, "uid": account["metadata"]["uid"]}}
        if ref := spec.get("boundObjectRef"):
            private |= self._binding(ref, namespace, name)
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "sub": f"system:serviceaccount:{namespace}:{name}",
            "aud": spec.get("audiences") or [ISSUER],
            "exp": now + seconds,
            "iat": now,
            "nbf": now,
            "jti": str(uuid.uuid4()),
            _CLAIM: private,
        }
        expires = times.timestamp(now + seconds)
        status = {"token": self.key.sign(claims), "expirationTimestamp": expires}
        spec = {**spec, "audiences": claims["aud"], "expirationSeconds": seconds}
        return {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", **obj, "spec": spec, "status": status}

    def _binding(self, ref: Obj, namespace: str, account: str) -> Obj:
        """The claims that bind a token to an object."""
        kind = ref.get("kind", "")
        res = _BINDABLE.get(kind)
        if res is None or ref.get("apiVersion") not in (None, "", "v1"):
            raise ApiError("BadRequest", f"cannot bind token to object of type {ref.get('apiVersion')}, Kind={kind}")
        bound = self._store.read(res.storage, namespace if res.namespaced else "", ref["name"])
        if bound is None:
            raise refusals.not_found(res, ref["name"])
        if ref.get("uid") and ref["uid"] != bound["metadata"]["uid"]:
            why = f"the UID in the bound object reference ({ref['uid']}) does not match the UID in record. "
            raise refusals.conflict(res, ref["name"], f"{why}The object might have been deleted and then recreated")
        claims = {kind.lower(): {"name": ref["name"], "uid": bound["metadata"]["uid"]}}
        if res is PODS:
            if bound["spec"].get("serviceAccountName") != account:
                to = "to pod running with different serviceaccount name."
                raise ApiError("BadRequest", f'cannot bind token for serviceaccount "{account}" {to}')
            if node := self._store.read(NODES.storage, "", bound["spec"].get("nodeName", "")):
                claims["node"] = {"name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
        return claims


class AccountSecrets:
    """Fills Secrets of type service-account-token. Run `controller`. `bundle` is in PEM."""

    def __init__(self, store: Store, api: KubeApi, tokens: ServiceAccountTokens, bundle: bytes) -> None:
        self._store, self._api, self._tokens, self._bundle = store, api, tokens, bundle
        self.controller = Controller("account-secrets", self.reconcile)
        store.follow(SECRETS.storage, lambda change: self._seen(change.record))
        store.listen(SERVICE_ACCOUNTS.storage, self._account_changed)

    def _account_changed(self, change: Change) -> None:
        """An account that goes takes its Secrets along."""
        for record in self._store.scan(SECRETS.storage, change.record.namespace):
            self._seen(record)

    def _seen(self, record: Record) -> None:
        if _SECRET_TYPE.encode() in record.data:
            self.controller.queue.add(f"{record.namespace}/{record.name}")

    async def reconcile(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        secret = self._store.read(SECRETS.storage, namespace, name)
        if secret is None or secret.get("type") != _SECRET_TYPE or secret["metadata"].get("deletionTimestamp"):
            return
        meta = secret["metadata"]
        notes, data = meta.get("annotations") or {}, secret.get("data") or {}
        account = self._store.read(SERVICE_ACCOUNTS.storage, namespace, notes.get(_ACCOUNT, ""))
        uid = account["metadata"]["uid"] if account else ""
        if account is None or notes.get(_ACCOUNT_UID, uid) != uid:
            with ignoring(is_not_found, is_conflict):
                await self._api.delete(SECRETS, name, namespace, uid=meta["uid"])
            return
        known = {"ca.crt": _encoded(self._bundle), "namespace": _encoded(namespace.encode())}
        if known.items() <= data.items() and data.get("token") and _ACCOUNT_UID in notes:
            return
        if not data.get("token"):
            known["token"] = _encoded((await self._token(secret, notes[_ACCOUNT])).encode())
        about = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"], "annotations": {_ACCOUNT_UID: uid}}
        with ignoring(is_not_found):
            await self._api.patch(SECRETS, name, {"metadata": about, "data": known}, namespace)

    async def _token(self, secret: Obj, account: str) -> str:
        meta = secret["metadata"]
        bound = {"kind": SECRETS.kind, "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
        asked = {"spec": {"expirationSeconds": LONGEST, "boundObjectRef": bound}}
        given = await self._tokens.request(asked, namespace=meta["namespace"], name=account, user=_SELF, dry_run=False)
        return str(given["status"]["token"])


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
