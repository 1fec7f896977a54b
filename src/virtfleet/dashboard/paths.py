"""Which requests to the API server the pages may make. Pure.

The server is no general proxy: a page that went wrong, or somebody who got hold of one, reaches VMs and nothing else.
What the visitor may do with them is for the API server to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from virtfleet.api.subresources import GROUP, VERSIONS
from virtfleet.kube.resource import VMI_MIGRATIONS, VMIS, VMS

PREFIX = "/k8s"
_NAME = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?"
_PLACE = rf"/namespaces/{_NAME}"
_STEPS = rf"/apis/{re.escape(GROUP)}/{VERSIONS[0]}{_PLACE}"
_STREAMS = "console|vnc"
_OF_VM = "start|stop|restart|migrate"
_OF_VMI = "pause|unpause|softreboot|reset"


@dataclass(frozen=True, slots=True)
class Passage:
    """Requests of one kind that are passed on."""

    methods: tuple[str, ...]
    path: str
    queries: frozenset[str] = frozenset()
    stream: bool = False


_WRITES = frozenset(("dryRun", "fieldValidation"))
PASSAGES = (
    Passage(("POST",), rf"{VMS.root}{_PLACE}/{VMS.plural}", _WRITES),
    Passage(("PUT", "DELETE"), rf"{VMS.root}{_PLACE}/{VMS.plural}/{_NAME}", _WRITES),
    Passage(("DELETE",), rf"{VMIS.root}{_PLACE}/(?:{VMIS.plural}|{VMI_MIGRATIONS.plural})/{_NAME}", _WRITES),
    Passage(("PUT",), rf"{_STEPS}/{VMS.plural}/{_NAME}/(?:{_OF_VM})"),
    Passage(("PUT",), rf"{_STEPS}/{VMIS.plural}/{_NAME}/(?:{_OF_VMI})"),
    Passage(("GET",), rf"{_STEPS}/{VMIS.plural}/{_NAME}/(?:{_STREAMS})", frozenset(("preserveSession",)), stream=True),
)


def passage(method: str, raw_path: str) -> Passage | None:
    """How a request is passed on, by its path as it came: what is encoded or climbs matches nothing."""
    return next((p for p in PASSAGES if method in p.methods and re.fullmatch(p.path, raw_path)), None)


def is_name(text: object) -> bool:
    """Whether it can be the name of an object or of a namespace."""
    return isinstance(text, str) and re.fullmatch(_NAME, text) is not None
