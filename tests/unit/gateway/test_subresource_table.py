"""The table of subresources: consistent in itself, carried out by somebody, and printed in docs/subresources.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from virtfleet.api.subresources import GROUP, TABLE, VERSIONS, VM, VMI, Role, Server, Subresource
from virtfleet.gateway import discovery
from virtfleet.gateway.preconditions import CHECKS
from virtfleet.gateway.subresources import INSTEAD
from virtfleet.operator import roles

DOCUMENT = Path(__file__).parents[3] / "docs" / "subresources.md"


def row(entry: Subresource) -> str:
    tail = entry.tails[-1].replace("{", "").replace("}", "").upper()
    how = "websocket" if entry.websocket else entry.method
    cells = (f"`{entry.rbac}{tail}`", how, entry.role.value, entry.server.value, entry.does, entry.errors)
    return f"| {' | '.join(cells)} |".replace("  |", " |")


def test_the_documentation_lists_every_subresource_as_it_is() -> None:
    written = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    assert written == [row(entry) for entry in TABLE]


def test_nothing_is_declared_twice() -> None:
    assert len({(entry.rbac, entry.method) for entry in TABLE}) == len(TABLE)


def test_each_has_somebody_who_carries_it_out() -> None:
    of_handlers = {entry.name for entry in TABLE if entry.server is Server.HANDLER}
    assert of_handlers == CHECKS.keys()
    assert {entry.resource for entry in TABLE if entry.server is Server.HANDLER} == {VMI}
    later = {entry.name for entry in TABLE if entry.server is Server.NOBODY}
    assert later == INSTEAD.keys()


def test_roles_grant_what_the_table_says() -> None:
    def granted(name: str) -> set[tuple[str, str]]:
        return {
            (resource, verb)
            for rule in roles.PEOPLE[name]
            if rule["apiGroups"] == ["subresources.kubevirt.io"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    ranks = {"view": {Role.VIEW}, "edit": {Role.VIEW, Role.EDIT}, "admin": {Role.VIEW, Role.EDIT, Role.ADMIN}}
    ranks["migrate"] = {Role.MIGRATE}
    for name, included in ranks.items():
        wanted = [entry for entry in TABLE if entry.role in included]
        assert granted(name) == {(r, e.verb) for e in wanted for r in (e.rbac, e.asked_as)}
    assert granted("view") < granted("edit") < granted("admin")
    assert ("virtualmachines/migrate", "update") not in granted("admin"), "as KubeVirt has it"
    assert (f"{VM}/start", "update") in granted("edit")
    assert (f"{VMI}/console", "get") not in granted("view")


def test_both_versions_of_openapi_tell_of_every_path() -> None:
    served = {f"/apis/{GROUP}/{version}{path}" for version in VERSIONS for entry in TABLE for path in entry.paths()}
    new: dict[str, Any] = {}
    for version in VERSIONS:
        new |= orjson.loads(discovery.openapi(version))["paths"]
    old = discovery.swagger()["paths"]
    assert set(old) == set(new) == served
    for path in served:
        for action, operation in old[path].items():
            places = [part[1:-1] for part in path.split("/") if part.startswith("{")]
            sent = ["body"] if action == "put" else []
            assert [parameter["name"] for parameter in operation["parameters"]] == [*places, *sent]
            assert [parameter["name"] for parameter in new[path][action]["parameters"]] == places
            assert ("requestBody" in new[path][action]) == bool(sent)
    names = [operation["operationId"] for actions in old.values() for operation in actions.values()]
    assert len(names) == len(set(names)), "the API server refuses a document in which two have one name"
