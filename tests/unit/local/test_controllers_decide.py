"""Small decisions of the controllers: what goes first, what fits, what is said."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from virtfleet.api.times import timestamp
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.controllers import claims, conditions, pods
from virtfleet.local.controllers.deployment_sets import annotations_for, same_template, set_for
from virtfleet.local.controllers.deployment_status import status_of
from virtfleet.local.controllers.disruption import Health, expectation, still_disrupted
from virtfleet.local.controllers.endpoints import slices
from virtfleet.local.controllers.eviction import check
from virtfleet.local.controllers.namespace import one_version_each
from virtfleet.local.controllers.replicaset import deletion_order
from virtfleet.local.controllers.revisions import template_hash
from virtfleet.local.controllers.rollout import Bounds


def a_pod(name: str, **more: Any) -> pods.Pod:
    status = {
        "phase": more.get("phase", "Running"),
        "conditions": [
            {
                "type": "Ready",
                "status": str(more.get("ready", True)),
                "lastTransitionTime": timestamp(more.get("ready_since", 1000)),
            }
        ],
        "containerStatuses": [{"restartCount": more.get("restarts", 0)}],
        "podIPs": [{"ip": ip} for ip in more.get("ips", ())],
    }
    meta = {
        "name": name,
        "namespace": "default",
        "uid": name,
        "labels": more.get("labels", {}),
        "creationTimestamp": timestamp(more.get("created", 1000)),
        "annotations": {pods.DELETION_COST: str(more["cost"])} if "cost" in more else {},
    }
    return pods.decode(orjson.dumps({"metadata": meta, "spec": {"nodeName": more.get("node", "n")}, "status": status}))


@pytest.mark.parametrize(
    ("goes", "stays"),
    [
        ({"node": ""}, {"ready": False}),
        ({"phase": "Pending"}, {"phase": "Running", "ready": False}),
        ({"ready": False}, {"ready": True, "cost": -5}),
        ({"cost": -1}, {}),
        ({"node": "crowded"}, {"node": "lonely", "ready_since": 2000}),
        ({"ready_since": 2000}, {"ready_since": 1000, "restarts": 5}),
        ({"restarts": 3}, {"restarts": 1, "created": 2000}),
        ({"created": 2000}, {"created": 1000}),
    ],
)
def test_the_pod_that_is_missed_least_goes_first(goes: dict[str, Any], stays: dict[str, Any]) -> None:
    one, two = a_pod("z-goes", **goes), a_pod("a-stays", **stays)
    crowd = [a_pod(f"c{i}", node="crowded") for i in range(3)]
    assert deletion_order([two, one], [one, two, *crowd])[0] is one


def test_a_template_hash_depends_on_content_and_collisions_and_not_on_order() -> None:
    one, two = {"a": 1, "b": {"c": 2}}, {"b": {"c": 2}, "a": 1}
    assert template_hash(one, None) == template_hash(two, 0)
    assert template_hash(one, 1) != template_hash(one, 0)
    assert len(template_hash(one, 0)) == 10


def a_deployment(**spec: Any) -> Obj:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c"}]}}
    return {
        "metadata": {"name": "web", "namespace": "default", "uid": "u", "generation": 2},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template, **spec},
    }


def test_a_replica_set_is_recognised_by_its_template_whatever_its_hash_label_says() -> None:
    deployment = a_deployment()
    replica_set = set_for(deployment, [], 3)
    assert replica_set["spec"]["template"] != deployment["spec"]["template"]
    assert same_template(replica_set["spec"]["template"], deployment["spec"]["template"])
    label = replica_set["metadata"]["labels"]["pod-template-hash"]
    assert replica_set["spec"]["selector"]["matchLabels"] == {"app": "web", "pod-template-hash": label}


def test_a_replica_set_that_becomes_current_again_remembers_as_what_it_was_before() -> None:
    revision, history = "deployment.kubernetes.io/revision", "deployment.kubernetes.io/revision-history"
    replica_set = {"metadata": {"annotations": {revision: "4", history: "1,2"}}}
    assert annotations_for(a_deployment(), replica_set, 7) == {revision: "7", history: "1,2,4"}
    assert annotations_for(a_deployment(), replica_set, 3) == replica_set["metadata"]["annotations"]


def numbers(replicas: int, available: int) -> Obj:
    status = {"replicas": replicas, "readyReplicas": available, "availableReplicas": available}
    return {"metadata": {"name": "web-1"}, "spec": {"replicas": replicas}, "status": status}


def reason(status: Obj) -> str:
    return str((conditions.find(status["conditions"], "Progressing") or {}).get("reason"))


def test_a_rollout_moves_then_ends_or_times_out_counting_from_the_last_progress() -> None:
    deployment = a_deployment(progressDeadlineSeconds=60)
    bounds = Bounds(3, 1, 0)
    moving = status_of(deployment, bounds, numbers(3, 1), [], [], rollout=True, now=1000)
    assert reason(moving) == "ReplicaSetUpdated"
    deployment["status"] = moving
    still = status_of(deployment, bounds, numbers(3, 1), [], moving["conditions"], rollout=True, now=1050)
    assert still["conditions"] == moving["conditions"]
    late = status_of(deployment, bounds, numbers(3, 1), [], moving["conditions"], rollout=True, now=1061)
    assert reason(late) == "ProgressDeadlineExceeded"
    done = status_of(deployment, bounds, numbers(3, 3), [], late["conditions"], rollout=True, now=2000)
    assert reason(done) == "NewReplicaSetAvailable"
    deployment["status"] = done
    # pods that are lost later are no rollout, so nothing can time out
    lost = status_of(deployment, bounds, numbers(3, 2), [], done["conditions"], rollout=True, now=9000)
    assert reason(lost) == "NewReplicaSetAvailable"


def test_without_a_deadline_progress_is_not_judged() -> None:
    status = status_of(a_deployment(), Bounds(3), numbers(3, 3), [], [], rollout=True, now=1)
    assert conditions.find(status["conditions"], "Progressing") is None


def test_a_condition_changes_its_transition_time_only_with_its_status() -> None:
    first = conditions.put([], {"type": "A", "status": "True", "reason": "x"}, 1000)
    second = conditions.put(first, {"type": "A", "status": "True", "reason": "y"}, 2000)
    assert second == [{"type": "A", "status": "True", "reason": "y", "lastTransitionTime": timestamp(1000)}]
    third = conditions.put(second, {"type": "A", "status": "False"}, 3000)
    assert third[0]["lastTransitionTime"] == timestamp(3000)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"minAvailable": 2}, (4, 2)),
        ({"minAvailable": "50%"}, (10, 5)),
        ({"minAvailable": "55%"}, (10, 6)),
        ({"maxUnavailable": 3}, (10, 7)),
        ({"maxUnavailable": "25%"}, (10, 7)),
        ({"maxUnavailable": 20}, (10, 0)),
    ],
)
def test_what_a_budget_expects_of_four_pods_of_ten_replicas(spec: Obj, expected: tuple[int, int]) -> None:
    assert expectation(spec, 4, 10) == expected


def test_a_budget_without_pods_allows_nothing() -> None:
    assert Health(expected=0, desired=0, current=1).allowed == 0
    assert Health(expected=5, desired=3, current=2).allowed == 0
    assert Health(expected=5, desired=3, current=5).allowed == 2


def test_an_eviction_that_did_not_happen_is_forgotten_after_a_while() -> None:
    noted = {"gone": timestamp(1000), "late": timestamp(800), "soon": timestamp(990)}
    assert still_disrupted(noted, [a_pod("late"), a_pod("soon")], 1000) == {"soon": noted["soon"]}


def test_a_budget_that_was_not_counted_yet_refuses_for_now() -> None:
    with pytest.raises(ApiError) as refused:
        check(
            {"metadata": {"name": "b", "generation": 2}, "status": {"observedGeneration": 1, "disruptionsAllowed": 1}}
        )
    assert refused.value.details is not None
    assert refused.value.details["retryAfterSeconds"] == 10


def a_volume(name: str, size: str = "2Gi", **spec: Any) -> claims.Volume:
    spec = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "c", **spec}
    return claims.decode_volume(orjson.dumps({"metadata": {"name": name}, "spec": spec}))


def a_claim(**spec: Any) -> claims.Claim:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "c",
        **spec,
    }
    return claims.decode_claim(
        orjson.dumps({"metadata": {"name": "data", "namespace": "default", "uid": "u"}, "spec": spec})
    )


@pytest.mark.parametrize(
    ("volume", "fits"),
    [
        ({}, True),
        ({"size": "512Mi"}, False),
        ({"accessModes": ["ReadOnlyMany"]}, False),
        ({"storageClassName": "other"}, False),
        ({"volumeMode": "Block"}, False),
        ({"claimRef": {"namespace": "default", "name": "data"}}, True),
        ({"claimRef": {"namespace": "default", "name": "data", "uid": "another"}}, False),
        ({"claimRef": {"namespace": "default", "name": "other"}}, False),
    ],
)
def test_which_volume_serves_a_claim(volume: dict[str, Any], fits: bool) -> None:
    assert claims.satisfies(a_volume("v", **volume), a_claim()) == fits


def test_a_promised_volume_is_taken_before_a_smaller_one() -> None:
    promised = a_volume("promised", "9Gi", claimRef={"namespace": "default", "name": "data"})
    assert claims.best_match(a_claim(), [a_volume("small"), promised], lambda v: True) is promised


def a_service(**spec: Any) -> Obj:
    return {
        "metadata": {"name": "web", "namespace": "default", "uid": "u"},
        "spec": {
            "selector": {"app": "web"},
            "ports": [{"port": 80, "targetPort": 8080}],
            "clusterIP": "1.2.3.4",
            **spec,
        },
    }


def test_slices_hold_a_hundred_endpoints_each_and_keep_their_names() -> None:
    many = [a_pod(f"p{i:03}", labels={"app": "web"}, ips=[f"10.0.0.{i}"]) for i in range(150)]
    first = slices(a_service(), many)
    assert sorted(len(s["endpoints"]) for s in first.values()) == [50, 100]
    assert slices(a_service(), many[:149]).keys() == first.keys()


def test_of_a_pods_addresses_services_use_the_one_of_their_family() -> None:
    both, other = (
        a_pod(n, labels={"app": "web"}, ips=ips) for n, ips in (("a", ["fd00::1", "10.0.0.1"]), ("b", ["fd00::2"]))
    )
    (piece,) = slices(a_service(), [both, other]).values()
    assert [e["addresses"] for e in piece["endpoints"]] == [["10.0.0.1"]]


def test_finished_pods_have_no_endpoints() -> None:
    pod = a_pod("p", labels={"app": "web"}, ips=["10.0.0.1"], phase="Succeeded")
    assert [s["endpoints"] for s in slices(a_service(), [pod]).values()] == [[]]


def test_kinds_that_are_served_in_two_versions_count_once() -> None:
    old, new = Resource("g", "v1", "things", "Thing"), Resource("g", "v2", "things", "Thing")
    assert len(one_version_each([old, new, Resource("", "v1", "pods", "Pod")])) == 2
