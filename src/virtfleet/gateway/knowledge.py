"""What admission needs to know of the cluster, followed through caches so that no review waits for the API server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from virtfleet.api.tlsrules import TlsRules, rules
from virtfleet.installation import Installation, in_force, version_of
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.resource import KUBEVIRTS, VMI_MIGRATIONS, VMIS, Obj


class NotYet(Exception):
    """What decisions need is not known yet."""


class Knowledge:
    """Run `caches`. What is asked before they are read raises NotYet."""

    def __init__(self, api: KubeApi) -> None:
        self._installations: Cache[Installation] = Cache(api, KUBEVIRTS, decode=Installation.decode)
        self._vmis: Cache[Obj] = Cache(api, VMIS, decode=orjson.loads)
        of_vmi = {"vmi": lambda move: (f"{move['metadata']['namespace']}/{move['spec'].get('vmiName')}",)}
        self._migrations: Cache[Obj] = Cache(api, VMI_MIGRATIONS, decode=orjson.loads, indexes=of_vmi)
        self.caches = (self._installations, self._vmis, self._migrations)

    def cluster(self) -> Installation:
        """The installation that this virt-api belongs to."""
        for installation in self._installations.list():
            return installation
        raise NotYet("virt-api knows no KubeVirt object yet; create one, or try again in a moment")

    def installed(self) -> list[str]:
        """The KubeVirt objects that there are."""
        return self._installations.keys()

    def configuration(self) -> str:
        """The version of the KubeVirt object that decisions go by."""
        return version_of(self._installations.list())

    def tls(self) -> TlsRules:
        """What virt-api speaks."""
        return rules(in_force(self._installations.list()).configuration.tls_configuration)

    def vmis(self) -> Iterable[Obj]:
        """All VMIs."""
        return _read_once(self._vmis).list()

    def vmi(self, namespace: str, name: str) -> Obj | None:
        """A VMI, if there is one of that name."""
        return _read_once(self._vmis).get(f"{namespace}/{name}")

    def migrations_of(self, namespace: str, vmi: str) -> Sequence[Obj]:
        """The migrations of a VMI."""
        return _read_once(self._migrations).by_index("vmi", f"{namespace}/{vmi}")

    def missing(self) -> str:
        """Why not every review can be answered, or nothing."""
        unread = [cache for cache in self.caches if not cache.synced.is_set()]
        return "the API server has not been read yet" if unread else ""


def _read_once(cache: Cache[Obj]) -> Cache[Obj]:
    if not cache.synced.is_set():
        raise NotYet("virt-api has not read the API server yet; try again in a moment")
    return cache
