"""The operations: what a write does to an object, and what it refuses, in Kubernetes' words."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from apiserver_kit import WIDGETS, call, opened, pod

from virtfleet.kube.api import Patch
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.extensions.admission import Admission, AdmissionRequest
from virtfleet.local.apiserver.kinds.registry import Kind, Rules
from virtfleet.local.apiserver.objects.deletion import DeleteOptions, Outcome
from virtfleet.local.apiserver.objects.operations import Operations


class Pods:
    """Shorthands for one kind in the namespace `ns`."""

    def __init__(self, operations: Operations, group: str = "", version: str = "v1", plural: str = "pods") -> None:
        kind = operations.kinds.find(group, version, plural)
        assert kind is not None
        self.operations, self.kind = operations, kind
        self.namespace = "ns" if kind.resource.namespaced else ""

    async def create(self, obj: Obj, **how: Any) -> Any:
        return orjson.loads(await self.operations.create(self.kind, self.namespace, obj, call(**how)))

    async def update(self, obj: Obj, subresource: str = "", **how: Any) -> Any:
        name = obj["metadata"]["name"]
        return orjson.loads(
            await self.operations.update(self.kind, self.namespace, name, obj, call(**how), subresource)
        )

    async def patch(self, name: str, patch: Any, how: Patch = Patch.MERGE, subresource: str = "", **more: Any) -> Any:
        body = orjson.dumps(patch)
        return orjson.loads(
            await self.operations.patch(self.kind, self.namespace, name, how, body, call(**more), subresource)
        )

    async def delete(self, name: str, *, dry_run: bool = False, **more: Any) -> tuple[Outcome, Any]:
        options, how = DeleteOptions(**more), call(dry_run=dry_run)
        outcome, data = await self.operations.delete(self.kind, self.namespace, name, options, how)
        return outcome, orjson.loads(data)

    def get(self, name: str, subresource: str = "") -> Any:
        return orjson.loads(self.operations.get(self.kind, self.namespace, name, subresource))

    def exists(self, name: str) -> bool:
        return self.operations.store.get(self.kind.storage, self.namespace, name) is not None


async def refused(awaitable: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        await awaitable
    return error.value


class TestCreate:
    async def test_the_server_decides_uid_time_generation_and_version(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            sent = pod("a")
            sent["metadata"] |= {"uid": "mine", "generation": 9, "creationTimestamp": "x", "deletionTimestamp": "x"}
            made = await pods.create(sent)
            meta = made["metadata"]
            assert meta["uid"] != "mine"
            assert meta["generation"] == 1
            assert "deletionTimestamp" not in meta
            assert meta["namespace"] == "ns"
            assert made["apiVersion"] == "v1"
            assert made["kind"] == "Pod"
            assert made["spec"] == {"image": "default"}
            assert made == pods.get("a")

    async def test_names_are_generated_until_one_is_free(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        names = iter(["p-1", "p-1", "p-2"])
        monkeypatch.setattr("virtfleet.local.apiserver.kinds.metadata.generated", lambda prefix: next(names))
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            made = [await pods.create({"metadata": {"generateName": "p-"}}) for _ in range(2)]
            assert [m["metadata"]["name"] for m in made] == ["p-1", "p-2"]

    async def test_an_existing_name_is_refused(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            await pods.create(pod("a"))
            error = await refused(pods.create(pod("a")))
            assert (error.code, error.reason, error.message) == (409, "AlreadyExists", 'pods "a" already exists')

    async def test_of_concurrent_creations_one_succeeds(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            made = await asyncio.gather(*(pods.create(pod("a")) for _ in range(8)), return_exceptions=True)
            assert sum(isinstance(m, dict) for m in made) == 1
            assert all(m.reason == "AlreadyExists" for m in made if isinstance(m, ApiError))

    @pytest.mark.parametrize(
        ("meta", "text"),
        [
            ({}, 'Pod "" is invalid: metadata.name: Required value: name or generateName is required'),
            ({"name": "A_b"}, "a lowercase RFC 1123 subdomain must consist of"),
            ({"name": "a" * 254}, "must be no more than 253 bytes"),
            ({"generateName": "-x-"}, "metadata.generateName: Invalid value"),
            ({"name": "a", "labels": {"-x": "y"}}, 'metadata.labels: Invalid value: "-x": name part must'),
            ({"name": "a", "labels": {"x": "-"}}, "a valid label must be an empty string or"),
            ({"name": "a", "annotations": {"x": "y" * 262145}}, "Too long: may not be more than 262144 bytes"),
            ({"name": "a", "ownerReferences": [{"kind": "X"}]}, "metadata.ownerReferences.uid: Invalid value"),
            ({"name": "a", "finalizers": ["orphan", "foregroundDeletion"]}, "cannot be both set"),
        ],
    )
    async def test_faulty_metadata_is_invalid(self, tmp_path: Path, meta: Obj, text: str) -> None:
        async with opened(tmp_path) as operations:
            error = await refused(Pods(operations).create({"metadata": meta}))
            assert error.reason == "Invalid"
            assert text in error.message

    @pytest.mark.parametrize(
        ("obj", "text"),
        [
            ({"metadata": {"name": "a", "namespace": "b"}}, "does not match the namespace sent on the request"),
            ({"kind": "Node", "metadata": {"name": "a"}}, "does not match the expected kind (Pod)"),
            ({"apiVersion": "v2", "metadata": {"name": "a"}}, "the API version in the data (v2) does not match"),
            ({"metadata": "a"}, "metadata must be an object"),
        ],
    )
    async def test_an_object_that_contradicts_its_path_is_a_bad_request(
        self, tmp_path: Path, obj: Obj, text: str
    ) -> None:
        async with opened(tmp_path) as operations:
            error = await refused(Pods(operations).create(obj))
            assert error.reason == "BadRequest"
            assert text in error.message

    async def test_a_version_makes_no_sense_before_there_is_an_object(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            error = await refused(Pods(operations).create({"metadata": {"name": "a", "resourceVersion": "1"}}))
            assert (error.code, error.message) == (500, "resourceVersion should not be set on objects to be created")

    async def test_what_the_schema_does_not_allow_is_invalid(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            error = await refused(Pods(operations).create(pod("a", image=7)))
            assert error.message == 'Pod "a" is invalid: spec.image: Invalid value: 7: must be a string'
            assert error.details == {
                "name": "a",
                "kind": "Pod",
                "causes": [
                    {
                        "reason": "FieldValueInvalid",
                        "message": "Invalid value: 7: must be a string",
                        "field": "spec.image",
                    }
                ],
            }

    async def test_the_namespace_must_exist_and_not_be_ending(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods, namespaces = Pods(operations), Pods(operations, plural="namespaces")
            pods.namespace = "nowhere"
            assert (await refused(pods.create(pod("a")))).message == 'namespaces "nowhere" not found'
            pods.namespace = "ns"
            await namespaces.patch("ns", {"metadata": {"finalizers": ["x.io/hold"]}})
            await namespaces.delete("ns")
            error = await refused(pods.create(pod("a")))
            assert error.code == 403
            assert "unable to create new content in namespace ns because it is being terminated" in error.message

    async def test_a_dry_run_stores_nothing(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods, revision = Pods(operations), operations.store.revision
            made = await pods.create(pod("a"), dry_run=True)
            assert made["metadata"]["uid"]
            assert not pods.exists("a")
            assert operations.store.revision == revision

    async def test_unknown_fields_are_dropped_told_or_refused(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            assert (await pods.create(pod("a", frob=1)))["spec"] == {"image": "default"}
            warned = call(field_validation="Warn")
            await operations.create(pods.kind, "ns", pod("b", frob=1), warned)
            assert warned.warnings == ['unknown field "spec.frob"']
            error = await refused(pods.create(pod("c", frob=1), field_validation="Strict"))
            assert error.message == (
                'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "spec.frob"'
            )


class TestUpdate:
    async def test_a_stale_version_is_a_conflict(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            first = await pods.create(pod("a"))
            await pods.update({**first, "spec": {"image": "2"}})
            error = await refused(pods.update({**first, "spec": {"image": "3"}}))
            assert error.reason == "Conflict"
            assert error.message == (
                'Operation cannot be fulfilled on pods "a": the object has been modified; '
                "please apply your changes to the latest version and try again"
            )

    async def test_without_a_version_builtins_are_overwritten_and_custom_objects_refused(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods, widgets = Pods(operations), Pods(operations, "example.io", "v1", "widgets")
            await pods.create(pod("a"))
            assert (await pods.update(pod("a", image="2")))["spec"]["image"] == "2"
            await widgets.create(pod("w"))
            error = await refused(widgets.update(pod("w", x=1)))
            assert error.reason == "Invalid"
            assert "metadata.resourceVersion: Invalid value: 0: must be specified for an update" in error.message

    async def test_what_changes_nothing_makes_no_revision(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            made = await pods.create(pod("a"))
            revision = operations.store.revision
            assert await pods.update(made) == made
            assert await pods.patch("a", {"spec": {"image": "default"}}) == made
            assert operations.store.revision == revision

    async def test_generation_counts_changes_of_the_desired_state_only(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            for kind in (Pods(operations), Pods(operations, "example.io", "v1", "widgets")):
                await kind.create(pod("a", image="1"))
                labelled = await kind.patch("a", {"metadata": {"labels": {"x": "y"}, "generation": 44}})
                assert labelled["metadata"]["generation"] == 1
                reported = await kind.patch("a", {"status": {"phase": "Running"}}, subresource="status")
                assert reported["metadata"]["generation"] == 1
                assert (await kind.patch("a", {"spec": {"image": "2"}}))["metadata"]["generation"] == 2

    async def test_spec_and_status_have_separate_writers(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            await pods.create(pod("a"))
            main = await pods.patch("a", {"spec": {"image": "2"}, "status": {"phase": "Hacked"}})
            assert (main["spec"]["image"], main["status"]["phase"]) == ("2", "Pending")
            both = {"spec": {"image": "3"}, "status": {"phase": "Running"}}
            status = await pods.patch("a", both, subresource="status")
            assert (status["spec"]["image"], status["status"]["phase"]) == ("2", "Running")

    async def test_identity_cannot_change(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            made = await pods.create(pod("a"))
            other = {**made, "metadata": {**made["metadata"], "uid": "other"}}
            error = await refused(pods.update(other))
            assert error.reason == "Conflict"
            assert "Precondition failed: UID in precondition: other" in error.message
            assert (await refused(pods.patch("a", {"metadata": {"name": "b"}}))).code == 400
            kept = await pods.patch("a", {"metadata": {"creationTimestamp": "2000-01-01T00:00:00Z"}})
            assert kept["metadata"]["creationTimestamp"] == made["metadata"]["creationTimestamp"]

    async def test_the_kinds_own_rules_are_asked(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            await pods.create(pod("a", nodeName="n"))
            error = await refused(pods.patch("a", {"spec": {"nodeName": "m"}}))
            assert error.message == 'Pod "a" is invalid: spec.nodeName: Forbidden: may not change once set'

    async def test_concurrent_patches_all_take_effect(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            await pods.create(pod("a"))
            await asyncio.gather(*(pods.patch("a", {"metadata": {"labels": {f"l{i}": "x"}}}) for i in range(40)))
            assert len(pods.get("a")["metadata"]["labels"]) == 40

    async def test_a_patch_that_names_a_version_is_not_tried_again(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            version = (await pods.create(pod("a")))["metadata"]["resourceVersion"]
            patches = [{"metadata": {"resourceVersion": version, "labels": {"l": str(i)}}} for i in range(5)]
            outcomes = await asyncio.gather(*(pods.patch("a", p) for p in patches), return_exceptions=True)
            assert sum(isinstance(o, dict) for o in outcomes) == 1
            assert all(o.reason == "Conflict" for o in outcomes if isinstance(o, ApiError))

    async def test_each_patch_format_reaches_the_object(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            await pods.create(pod("a", containers=[{"name": "x", "v": 1}]))
            await pods.patch("a", {"spec": {"containers": [{"name": "y"}]}}, Patch.STRATEGIC)
            assert [c["name"] for c in pods.get("a")["spec"]["containers"]] == ["x", "y"]
            await pods.patch("a", [{"op": "remove", "path": "/spec/containers/0"}], Patch.JSON)
            assert [c["name"] for c in pods.get("a")["spec"]["containers"]] == ["y"]

    async def test_a_missing_object_is_not_found(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            for attempt in (pods.update(pod("a")), pods.patch("a", {}), pods.delete("a")):
                assert (await refused(attempt)).message == 'pods "a" not found'

    async def test_all_versions_of_a_kind_are_one_object(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            new, old = (Pods(operations, "example.io", version, "widgets") for version in ("v1", "v1beta1"))
            made = await new.create(pod("w", x=1))
            assert old.get("w") == {**made, "apiVersion": "example.io/v1beta1"}
            changed = await old.patch("w", {"spec": {"x": 2}})
            assert changed["apiVersion"] == "example.io/v1beta1"
            assert new.get("w")["spec"] == {"x": 2}
            assert new.get("w")["apiVersion"] == "example.io/v1"


class TestScale:
    async def test_scale_is_read_and_written_through_one_form(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            widgets = Pods(operations, "example.io", "v1", "widgets")
            await widgets.create(pod("w", replicas=2))
            await widgets.patch("w", {"status": {"replicas": 1, "selector": "a=b"}}, subresource="status")
            scale = widgets.get("w", "scale")
            assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
            assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 1, "selector": "a=b"})
            scale["spec"]["replicas"] = 5
            assert (await widgets.update(scale, "scale"))["spec"] == {"replicas": 5}
            assert (await widgets.patch("w", {"spec": {"replicas": 7}}, subresource="scale"))["spec"] == {"replicas": 7}
            assert widgets.get("w")["spec"] == {"replicas": 7}
            assert (await refused(widgets.update(scale, "scale"))).reason == "Conflict"
            assert (await refused(widgets.patch("w", {"spec": {"replicas": -1}}, subresource="scale"))).code == 422


class TestDelete:
    async def test_an_object_nobody_holds_goes_at_once(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            made = await pods.create(pod("a"))
            outcome, last = await pods.delete("a")
            assert outcome is Outcome.REMOVED
            assert int(last["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
            assert not pods.exists("a")

    async def test_grace_marks_first_and_may_only_be_shortened(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            await pods.create(pod("a", nodeName="n"))
            outcome, marked = await pods.delete("a")
            assert outcome is Outcome.MARKED
            assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
            assert marked["metadata"]["generation"] == 2
            outcome, same = await pods.delete("a", grace=60)
            assert (outcome, same) == (Outcome.UNCHANGED, marked)
            outcome, shorter = await pods.delete("a", grace=5)
            assert outcome is Outcome.MARKED
            assert shorter["metadata"]["deletionTimestamp"] < marked["metadata"]["deletionTimestamp"]
            assert (await pods.delete("a", grace=0))[0] is Outcome.REMOVED
            assert not pods.exists("a")

    async def test_finalizers_hold_an_object_until_the_last_is_gone(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            widgets = Pods(operations, "example.io", "v1", "widgets")
            await widgets.create({"metadata": {"name": "w", "finalizers": ["a.io/x", "a.io/y"]}})
            assert (await widgets.delete("w"))[0] is Outcome.MARKED
            error = await refused(widgets.patch("w", {"metadata": {"finalizers": ["a.io/x", "a.io/y", "a.io/z"]}}))
            assert "no new finalizers can be added if the object is being deleted" in error.message
            await widgets.patch("w", {"metadata": {"finalizers": ["a.io/y"]}})
            assert widgets.exists("w")
            await widgets.patch("w", {"metadata": {"finalizers": None}})
            assert not widgets.exists("w")

    @pytest.mark.parametrize(
        ("propagation", "finalizer"), [("Foreground", "foregroundDeletion"), ("Orphan", "orphan"), ("Background", None)]
    )
    async def test_what_becomes_of_dependents_is_asked_for_through_finalizers(
        self, tmp_path: Path, propagation: str, finalizer: str | None
    ) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            await pods.create(pod("a"))
            _, last = await pods.delete("a", propagation=propagation)
            assert last["metadata"].get("finalizers") == ([finalizer] if finalizer else None)
            assert pods.exists("a") is (finalizer is not None)

    async def test_preconditions_are_checked(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            made = await pods.create(pod("a"))
            assert (await refused(pods.delete("a", uid="other"))).reason == "Conflict"
            assert (await refused(pods.delete("a", resource_version="1"))).reason == "Conflict"
            await pods.delete("a", uid=made["metadata"]["uid"], resource_version=made["metadata"]["resourceVersion"])
            assert not pods.exists("a")

    async def test_a_namespace_ends_when_its_spec_is_finalized(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            namespaces = Pods(operations, plural="namespaces")
            await namespaces.create({"metadata": {"name": "x"}, "spec": {"finalizers": ["kubernetes"]}})
            outcome, marked = await namespaces.delete("x")
            assert outcome is Outcome.MARKED
            assert marked["status"]["phase"] == "Terminating"
            await namespaces.update({**marked, "spec": {"finalizers": []}}, "finalize")
            assert not namespaces.exists("x")

    async def test_namespaces_that_the_cluster_needs_stay(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            namespaces = Pods(operations, plural="namespaces")
            await namespaces.create({"metadata": {"name": "default"}})
            error = await refused(namespaces.delete("default"))
            assert (error.code, error.message) == (
                403,
                'namespaces "default" is forbidden: this namespace may not be deleted',
            )

    async def test_a_dry_run_deletes_nothing(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            await pods.create(pod("a"))
            assert (await pods.delete("a", dry_run=True))[0] is Outcome.REMOVED
            assert pods.exists("a")


class Guard(Admission):
    """Labels what it mutates, and refuses images called bad."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    async def mutate(self, request: AdmissionRequest) -> Obj | None:
        self.seen.append((request.operation, request.name, request.subresource))
        if request.obj is None:
            return None
        obj: Obj = orjson.loads(orjson.dumps(request.obj))
        obj["metadata"].setdefault("labels", {})["seen"] = "yes"
        obj["spec"]["frob"] = "unknown to the schema"
        return obj

    async def validate(self, request: AdmissionRequest) -> None:
        request.warnings.append(f"looked at {request.operation}")
        if request.obj and request.obj["spec"].get("image") == "bad":
            raise ApiError("Forbidden", "admission webhook denied the request")
        if request.operation == "DELETE" and request.old and request.old["spec"].get("image") == "kept":
            raise ApiError("Forbidden", "admission webhook denied the deletion")


class Slow(Admission):
    """Lets every other task run in the midst of a write."""

    async def mutate(self, request: AdmissionRequest) -> Obj | None:
        for _ in range(5):
            await asyncio.sleep(0)
        return request.obj


class Renaming(Admission):
    """Answers with another object than it was asked about."""

    async def mutate(self, request: AdmissionRequest) -> Obj | None:
        return {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "other"}, "spec": {}}


class TestAdmission:
    async def test_a_webhook_cannot_make_it_another_object(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            operations.admission = Renaming()
            error = await refused(Pods(operations).create(pod("a")))
            assert error.message == "the name of the object (other) does not match the name on the URL (a)"

    async def test_mutations_are_pruned_and_stored_and_refusals_leave_nothing(self, tmp_path: Path) -> None:
        guard = Guard()
        async with opened(tmp_path) as operations:
            operations.admission = guard
            pods = Pods(operations)
            how = call()
            made = orjson.loads(await operations.create(pods.kind, "ns", pod("a"), how))
            assert made["metadata"]["labels"] == {"seen": "yes"}
            assert made["spec"] == {"image": "default"}
            assert how.warnings == ["looked at CREATE"]
            assert (await refused(pods.create(pod("b", image="bad")))).code == 403
            assert not pods.exists("b")
            assert (await refused(pods.patch("a", {"spec": {"image": "bad"}}))).code == 403
            assert pods.get("a") == made
            await pods.patch("a", {"spec": {"image": "kept"}})
            assert (await refused(pods.delete("a"))).code == 403
            assert pods.exists("a")
            assert [s[0] for s in guard.seen] == ["CREATE", "CREATE", "UPDATE", "UPDATE", "DELETE"]

    async def test_a_write_that_another_overtook_during_admission_starts_again(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            pods = Pods(operations)
            await pods.create(pod("a"))
            operations.admission = Slow()
            await asyncio.gather(*(pods.patch("a", {"metadata": {"labels": {f"l{i}": "x"}}}) for i in range(5)))
            assert len(pods.get("a")["metadata"]["labels"]) == 5


async def test_kinds_that_allocate_are_written_one_after_the_other(tmp_path: Path) -> None:
    async with opened(tmp_path, Slow()) as operations:
        numbers: list[int] = []

        def allocate(obj: Obj) -> None:
            obj["spec"]["replicas"] = len(list(operations.store.scan("example.io/widgets")))
            numbers.append(obj["spec"]["replicas"])

        rules = Rules(exclusive=True, begin=allocate)
        operations.kinds.add(Kind(WIDGETS, "widget", "WidgetList", rules=rules))
        widgets = Pods(operations, "example.io", "v1", "widgets")
        await asyncio.gather(*(widgets.create(pod(f"w{i}")) for i in range(10)))
        assert sorted(numbers) == list(range(10))
