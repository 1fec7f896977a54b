"""ClusterRoles that are the sum of others: keeps the rules of every role with an aggregationRule.

`admin`, `edit` and `view` are such roles: what an operator labels as aggregated to them, their holders may do.
"""

from __future__ import annotations

from virtfleet.api.selectors import from_label_selector
from virtfleet.kube.api import KubeApi
from virtfleet.kube.controller import Controller
from virtfleet.kube.resource import CLUSTER_ROLES, Obj
from virtfleet.local.apiserver.objects.store import Store


class AggregatedRoles:
    """Run `controller`."""

    def __init__(self, store: Store, api: KubeApi) -> None:
        self._store = store
        self._api = api
        self.controller = Controller("aggregated-roles", self.reconcile)
        # Which sums a role is part of may have changed with it; all are looked at, there are few.
        store.listen(CLUSTER_ROLES.storage, lambda _: self.controller.queue.add("all"))
        self.controller.queue.add("all")

    async def reconcile(self, _: str) -> None:
        """Give every sum the rules of its parts."""
        roles = self._store.objects(CLUSTER_ROLES.storage)
        for role in roles:
            if role.get("aggregationRule"):
                rules = summed(role, roles)
                if rules != (role.get("rules") or []):
                    meta = role["metadata"]
                    patch = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "rules": rules}
                    await self._api.patch(CLUSTER_ROLES, meta["name"], patch)


def summed(role: Obj, roles: list[Obj]) -> list[Obj]:
    """The rules that an aggregated role should have: those of all roles that it selects, each once, by role name."""
    selectors = [from_label_selector(s) for s in role["aggregationRule"].get("clusterRoleSelectors") or ()]
    rules: list[Obj] = []
    for part in sorted(roles, key=lambda r: str(r["metadata"]["name"])):
        meta = part["metadata"]
        if meta["name"] != role["metadata"]["name"] and any(s.matches(meta.get("labels")) for s in selectors):
            rules += [rule for rule in part.get("rules") or () if rule not in rules]
    return rules
