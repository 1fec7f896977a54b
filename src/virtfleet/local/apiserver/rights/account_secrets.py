"""Secrets of type service-account-token: filled with a token that lasts as long as the Secret does."""

from __future__ import annotations

import base64
from typing import Final

from virtfleet.kube.api import KubeApi
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ignoring, is_conflict, is_not_found
from virtfleet.kube.resource import SECRETS, Obj
from virtfleet.local.apiserver.objects.store import Change, Record, Store
from virtfleet.local.apiserver.rights.access import User
from virtfleet.local.apiserver.rights.tokens import LONGEST, ServiceAccountTokens

TYPE: Final = "kubernetes.io/service-account-token"
ACCOUNT: Final = "kubernetes.io/service-account.name"
ACCOUNT_UID: Final = "kubernetes.io/service-account.uid"
_SECRETS, _ACCOUNTS = "/secrets", "/serviceaccounts"
_SELF: Final = User("system:serviceaccount:kube-system:token-controller")


class AccountSecrets:
    """Run `controller`. `bundle` is in PEM."""

    def __init__(self, store: Store, api: KubeApi, tokens: ServiceAccountTokens, bundle: bytes) -> None:
        self._store, self._api, self._tokens, self._bundle = store, api, tokens, bundle
        self.controller = Controller("account-secrets", self.reconcile)
        store.follow(_SECRETS, lambda change: self._seen(change.record))
        store.listen(_ACCOUNTS, self._account_changed)

    def _account_changed(self, change: Change) -> None:
        """An account that goes takes its Secrets along."""
        for record in self._store.scan(_SECRETS, change.record.namespace):
            self._seen(record)

    def _seen(self, record: Record) -> None:
        if TYPE.encode() in record.data:
            self.controller.queue.add(f"{record.namespace}/{record.name}")

    async def reconcile(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        secret = self._store.read(_SECRETS, namespace, name)
        if secret is None or secret.get("type") != TYPE or secret["metadata"].get("deletionTimestamp"):
            return
        meta = secret["metadata"]
        notes, data = meta.get("annotations") or {}, secret.get("data") or {}
        account = self._store.read(_ACCOUNTS, namespace, notes.get(ACCOUNT, ""))
        uid = account["metadata"]["uid"] if account else ""
        if account is None or notes.get(ACCOUNT_UID, uid) != uid:
            with ignoring(is_not_found, is_conflict):
                await self._api.delete(SECRETS, name, namespace, uid=meta["uid"])
            return
        known = {"ca.crt": _encoded(self._bundle), "namespace": _encoded(namespace.encode())}
        if all(data.get(part) == value for part, value in known.items()) and data.get("token") and ACCOUNT_UID in notes:
            return
        if not data.get("token"):
            known["token"] = _encoded((await self._token(secret, notes[ACCOUNT])).encode())
        about = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"], "annotations": {ACCOUNT_UID: uid}}
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
