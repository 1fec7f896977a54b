"""Who asks, and for what: the words that authentication, authorization, admission and audit share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated requester. Groups include system:authenticated (or system:unauthenticated)."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
# The local cluster's own controllers; superuser by group, so that no role can lock the cluster out of itself.
MASTER = User("system:apiserver", ("system:masters", "system:authenticated"))


@dataclass(frozen=True, slots=True)
class Attributes:
    """One request in the API's terms: a verb on a resource, or on a path where `resource` is empty."""

    user: User
    verb: str  # get list watch create update patch delete deletecollection, or the lower-case HTTP method for a path
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    subpath: str = ""  # what follows the subresource, still quoted: pods/x/proxy/<subpath>
