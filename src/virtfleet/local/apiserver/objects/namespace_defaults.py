"""What every namespace has: the service account `default`, and the certificate authority that its pods trust."""

from __future__ import annotations

from virtfleet.kube.api import KubeApi
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ignoring, is_already_exists
from virtfleet.kube.resource import CONFIG_MAPS, SERVICE_ACCOUNTS, Obj, Resource
from virtfleet.local.apiserver.objects.store import Change, Store

ROOT_CA = "kube-root-ca.crt"


class NamespaceDefaults:
    """Run `controller`. `bundle` is in PEM."""

    def __init__(self, store: Store, api: KubeApi, bundle: str) -> None:
        self._store = store
        self._api = api
        self._data = {"ca.crt": bundle}
        self.controller = Controller("namespace-defaults", self.reconcile)
        store.follow("/namespaces", self._changed)
        for storage in ("/serviceaccounts", "/configmaps"):
            store.listen(storage, self._changed)

    def _changed(self, change: Change) -> None:
        record = change.record
        if record.storage == "/namespaces":
            self.controller.queue.add(record.name)
        elif record.name in ("default", ROOT_CA):
            self.controller.queue.add(record.namespace)

    async def reconcile(self, namespace: str) -> None:
        """Give a namespace what it lacks."""
        space = self._store.read("/namespaces", "", namespace)
        if space is None or space["metadata"].get("deletionTimestamp"):
            return
        if self._store.get("/serviceaccounts", namespace, "default") is None:
            await self._create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace)
        published = self._store.read("/configmaps", namespace, ROOT_CA)
        if published is None:
            await self._create(CONFIG_MAPS, {"metadata": {"name": ROOT_CA}, "data": self._data}, namespace)
        elif published.get("data") != self._data:
            await self._api.patch(CONFIG_MAPS, ROOT_CA, {"data": self._data}, namespace)

    async def _create(self, res: Resource, obj: Obj, namespace: str) -> None:
        with ignoring(is_already_exists):
            await self._api.create(res, {"apiVersion": res.api_version, "kind": res.kind, **obj}, namespace)
