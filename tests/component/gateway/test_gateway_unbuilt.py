"""Kinds of KubeVirt that are not built yet: tools find none of them, and nobody can make one."""

from __future__ import annotations

import pytest

from component.gateway.gateway_kit import Kit
from virtfleet.api.kinds import KINDS, OwnKind
from virtfleet.kube.resource import of_kind

UNBUILT = [kind for kind in KINDS if kind.refusal]


def path(kind: OwnKind, version: str, namespace: str = "") -> str:
    place = f"namespaces/{namespace}/" if namespace and kind.namespaced else ""
    return f"/apis/{kind.group}/{version}/{place}{kind.plural}"


async def test_they_are_listed_and_deleted_as_if_there_were_none(kit: Kit) -> None:
    for kind in UNBUILT:
        for version in kind.versions:
            for namespace in ("", "default"):
                listed = await kit.call("GET", path(kind, version, namespace))
                assert (listed.status, listed.body["items"]) == (200, []), kind.kind
                assert listed.body["kind"] == f"{kind.kind}List"
            assert (await kit.call("DELETE", path(kind, version, "default"))).status == 200, kind.kind
            assert (await kit.call("DELETE", f"{path(kind, version, 'default')}/one")).status == 404


async def test_discovery_has_their_names(kit: Kit) -> None:
    for kind in UNBUILT:
        listed = (await kit.call("GET", f"/apis/{kind.group}/{kind.versions[0]}")).body["resources"]
        [found] = [each for each in listed if each["name"] == kind.plural]
        assert (found["kind"], found["singularName"], found["namespaced"]) == (
            kind.kind,
            kind.singular,
            kind.namespaced,
        )
        assert found.get("shortNames", []) == list(kind.short_names)


async def test_people_who_edit_vms_are_told_what_to_do_and_not_that_they_may_not(kit: Kit) -> None:
    await kit.guard()
    token = await kit.user("ann", "edit")
    for kind in UNBUILT:
        if kind.namespaced:
            obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "one"}}
            answer = await kit.call("POST", of_kind(kind).path("default"), obj, token=token)
            assert (answer.status, kind.refusal in answer.body["message"]) == (422, True), answer.body


@pytest.mark.parametrize("version", ["stored", "other"])
async def test_none_can_be_created(kit: Kit, version: str) -> None:
    await kit.guard()
    for kind in UNBUILT:
        name = kind.versions[0 if version == "stored" else -1]
        obj = {"apiVersion": f"{kind.group}/{name}", "kind": kind.kind, "metadata": {"name": "one"}, "spec": {"a": 1}}
        answer = await kit.call("POST", path(kind, name, "default"), obj)
        assert answer.status == 422, kind.kind
        assert kind.refusal in answer.body["message"]
        applied = await kit.call("GET", of_kind(kind).path("default"))
        assert applied.body["items"] == []
