"""Handlers are replaced by canary over the whole fleet: one, then a tenth at a time, and no further once one fails."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples import examples
from virtfleet.installation import Installation
from virtfleet.kube.resource import Obj
from virtfleet.operator import proof
from virtfleet.operator.handlerpods import HandlerPod, decode_pod, unserved
from virtfleet.operator.proof import Proving
from virtfleet.operator.rollout import Fleet, Plan, paced, plan, settled

from .fleets import daemon_set, kubevirt, pod_spec, pool

NEW, OLD = "new", "old"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
INSTALLATION = Installation({**kubevirt(), "metadata": {"name": "kubevirt", "namespace": "kubevirt", "uid": "1"}})


def handlers(count: int, name: str = "virt-handler", *, image: str = "handler:new", **annotations: str) -> Obj:
    """A DaemonSet whose handlers should be on so many nodes."""
    marks = {"virtfleet.io/handler-content": NEW, **annotations}
    template = {
        "metadata": {"annotations": marks},
        "spec": {
            "initContainers": [{"name": "virt-launcher", "image": "launcher:new"}],
            "containers": [{"name": "virt-handler", "image": image}],
        },
    }
    return {
        "metadata": {"name": name},
        "spec": {"template": template},
        "status": {"desiredNumberScheduled": count},
    }


def pod(
    number: int,
    content: str,
    *,
    of: str = "virt-handler",
    ready: bool = True,
    ending: bool = False,
    failing: str = "",
    age: float = 1.0,
    images: str = "new",
) -> HandlerPod:
    """A handler on node `number`; with the images of the new ones, unless told otherwise."""
    waiting = {"waiting": {"reason": failing, "message": "no such image"}}
    meta: dict[str, Any] = {
        "name": f"{of}-{number}",
        "labels": {"kubevirt.io": "virt-handler"},
        "annotations": {"virtfleet.io/handler-content": content},
        "ownerReferences": [{"kind": "DaemonSet", "name": of}],
        "creationTimestamp": (NOW - timedelta(seconds=age)).isoformat(),
    }
    if ending:
        meta["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    spec = {
        "nodeName": f"node{number}",
        "initContainers": [{"name": "virt-launcher", "image": f"launcher:{images}"}],
        "containers": [{"name": "virt-handler", "image": f"handler:{images}"}],
    }
    status = {
        "conditions": [{"type": "Ready", "status": str(ready)}],
        "containerStatuses": [{"name": "virt-handler", "state": waiting if failing else {}}],
    }
    return decode_pod(orjson.dumps({"metadata": meta, "spec": spec, "status": status}))


def content_of(handler: HandlerPod) -> str:
    return handler.metadata.annotations["virtfleet.io/handler-content"]


def proofs(*wanted: Obj, phase: str = "Succeeded", failing: str = "") -> dict[str, HandlerPod]:
    """Proofs as the cluster has them."""
    state = {"waiting": {"reason": failing, "message": "no such image"}} if failing else {}
    status = {"phase": phase, "containerStatuses": [{"name": "virt-handler", "state": state}]}
    return {o["metadata"]["name"]: decode_pod(orjson.dumps({**o, "status": status})) for o in wanted}


def planned(
    pods: list[HandlerPod], *sets: Obj, there: dict[str, HandlerPod] | None = None, **more: Any
) -> tuple[Plan, Proving]:
    proving = Proving(INSTALLATION, (there or {}).values())
    fleet = Fleet({ds["metadata"]["name"]: ds for ds in sets or (handlers(len(pods)),)}, pods, **more)
    return plan(fleet, proving, NOW), proving


def going(found: Plan) -> list[str]:
    return [change.pod.metadata.name for change in found.replace]


def test_the_first_to_go_is_one_alone() -> None:
    assert going(planned([pod(i, OLD) for i in range(50)])[0]) == ["virt-handler-0"]


def test_there_is_one_canary_in_all_pools_together() -> None:
    pools = [f"virt-handler-{name}" for name in "abc"]
    pods = [pod(i, OLD, of=name) for i, name in enumerate(pools * 20)]
    sets = [handlers(20, name) for name in pools]
    assert len(planned(pods, *sets)[0].replace) == 1
    # While one pool's is tried, the others wait.
    pods[0] = pod(0, NEW, of=pools[0], ready=False)
    assert not planned(pods, *sets)[0].replace
    # Another pool's handlers are something else: they are tried on one node too.
    pods[0] = pod(0, NEW, of=pools[0])
    [next_one] = planned(pods, *sets)[0].replace
    assert next_one.successor != pools[0]
    for number in (1, 2):
        pods[number] = pod(number, NEW, of=pools[number])
    assert len(planned(pods, *sets)[0].replace) == 6, "a tenth of all handlers"


def test_a_canary_that_fails_in_one_pool_stops_all() -> None:
    canary = pod(0, NEW, of="virt-handler-a", ready=False, failing="ImagePullBackOff")
    sets = [handlers(1, "virt-handler-a"), handlers(9)]
    found, _ = planned([canary, *(pod(i, OLD) for i in range(1, 10))], *sets)
    assert not found.replace
    reason, message = found.failure or ("", "")
    assert reason == "CanaryFailed"
    assert "virt-handler-a does not come up" in message and "on node0 (image handler:new)" in message
    assert "ImagePullBackOff: no such image" in message


def test_a_canary_that_never_becomes_ready_fails_too() -> None:
    found, _ = planned([pod(0, NEW, ready=False, age=600), *(pod(i, OLD) for i in range(1, 9))])
    assert found.failure and not found.replace


def test_trouble_of_one_node_does_not_stop_the_other_pools() -> None:
    """Where others of the same kind work it is the node's trouble, and not the image's."""
    broken = [pod(0, NEW, ready=False, failing="CrashLoopBackOff"), pod(1, NEW)]
    others = [pod(i, OLD, of="virt-handler-b") for i in range(2, 6)]
    found, _ = planned([*broken, *others], handlers(2), handlers(4, "virt-handler-b"))
    assert found.failure is None and len(found.replace) == 1


def test_nothing_more_goes_before_the_canary_is_ready() -> None:
    rest = [pod(i, OLD) for i in range(1, 50)]
    assert not planned([pod(0, NEW, ready=False), *rest])[0].replace
    assert not planned([pod(0, OLD, ending=True), *rest])[0].replace


def test_a_pod_that_is_gone_and_not_yet_made_anew_counts_as_away() -> None:
    assert not planned([pod(i, OLD) for i in range(1, 50)], handlers(50))[0].replace


def test_nobody_waits_for_a_node_that_is_down_and_its_handler_is_left_alone() -> None:
    pods = [pod(0, OLD, ready=False), pod(1, NEW), pod(2, OLD)]
    assert going(planned(pods, down=frozenset({"node0"}))[0]) == ["virt-handler-2"]
    ending = [pod(0, OLD, ending=True), pod(1, NEW), pod(2, OLD)]
    assert going(planned(ending, down=frozenset({"node0"}))[0]) == ["virt-handler-2"]


def test_after_the_canary_a_tenth_goes_at_a_time() -> None:
    assert len(planned([pod(0, NEW), *(pod(i, OLD) for i in range(1, 50))])[0].replace) == 5


def test_a_rollout_is_done_when_the_last_new_pod_is_ready_or_has_had_its_time() -> None:
    def done(*pods: HandlerPod) -> bool:
        return planned(list(pods), handlers(2))[0].rollouts["virt-handler"].done

    assert not done(pod(0, NEW), pod(1, OLD, ending=True))
    assert not done(pod(0, NEW))
    assert not done(pod(0, NEW), pod(1, NEW, ready=False))
    assert done(pod(0, NEW), pod(1, NEW, ready=False, age=600))
    assert done(pod(0, NEW), pod(1, NEW))


def test_a_restart_that_was_asked_for_replaces_pods_and_its_mark_may_go_later() -> None:
    restart = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    pods = [pod(i, NEW) for i in range(3)]
    assert planned(pods, handlers(3, **restart))[0].rollouts["virt-handler"].outdated == 3
    for each in pods:
        each.metadata.annotations.update(restart)
    assert planned(pods, handlers(3, **restart))[0].rollouts["virt-handler"].done
    assert planned(pods, handlers(3))[0].rollouts["virt-handler"].done


def test_a_failed_canary_is_the_first_to_go_when_there_is_something_newer() -> None:
    pods = [pod(1, OLD), pod(7, "broken", ready=False, failing="CrashLoopBackOff"), pod(2, OLD)]
    assert going(planned(pods)[0]) == ["virt-handler-7"]


# -- proofs


def test_a_handler_stays_until_new_images_are_proven_on_its_node() -> None:
    pods = [pod(i, OLD, images="old") for i in range(3)]
    found, proving = planned(pods)
    assert not found.replace and found.failure is None
    [wanted] = proving.needed.values()
    assert wanted["spec"]["nodeName"] == "node0"
    running, _ = planned(pods, there=proofs(wanted, phase="Pending"))
    assert not running.replace and running.failure is None
    assert going(planned(pods, there=proofs(wanted))[0]) == ["virt-handler-0"]


def test_a_proof_that_fails_stops_everything_and_says_why() -> None:
    pods = [pod(i, OLD, images="old") for i in range(3)]
    [wanted] = planned(pods)[1].needed.values()
    found, proving = planned(pods, there=proofs(wanted, phase="Pending", failing="ErrImagePull"))
    assert not found.replace and list(proving.needed) == [wanted["metadata"]["name"]]
    reason, message = found.failure or ("", "")
    assert reason == "ImageUnproven"
    for part in ("virt-handler does not work on node0, so virt-handler-0 stays", "(image handler:new)", "ErrImagePull"):
        assert part in message


def test_the_same_images_need_no_proof_and_neither_does_a_handler_that_cannot_work() -> None:
    assert planned([pod(0, OLD)])[1].needed == {}
    assert planned([pod(0, OLD, images="old", ready=False, failing="CrashLoopBackOff")])[1].needed == {}


def test_a_handler_that_is_not_ready_for_a_moment_still_needs_its_successor_proven() -> None:
    found, proving = planned([pod(0, OLD, images="old", ready=False), pod(1, NEW)])
    assert len(proving.needed) == 1 and not found.replace


def test_so_many_proofs_run_as_handlers_may_be_away() -> None:
    pods = [pod(0, NEW), *(pod(i, OLD, images="old") for i in range(1, 50))]
    assert len(planned(pods)[1].needed) == 5


def test_nothing_goes_in_favour_of_a_daemon_set_that_is_still_to_change_or_was_not_seen_to_have_changed() -> None:
    pods = [pod(0, NEW), *(pod(i, OLD, images="old") for i in range(1, 5))]
    found, proving = planned(pods, unfinished=frozenset({"virt-handler"}))
    assert not found.replace and not proving.needed
    late = handlers(5)
    late["metadata"]["generation"] = 2
    found, proving = planned(pods, late)
    assert not found.replace and not proving.needed


def test_a_pool_whose_only_handler_is_new_and_not_ready_holds_the_others_back() -> None:
    pods = [pod(i, NEW if i < 10 else OLD) for i in range(30)]
    sets = [handlers(30), handlers(1, "virt-handler-p")]
    assert len(planned([*pods, pod(30, NEW, of="virt-handler-p")], *sets)[0].replace) == 3
    for lonely in (pod(30, NEW, of="virt-handler-p", ready=False), pod(30, OLD, of="virt-handler-p", ending=True)):
        assert not planned([*pods, lonely], *sets)[0].replace
        assert planned([*pods, lonely], *sets, down=frozenset({"node30"}))[0].replace, "nobody waits for a dead node"


def test_a_proof_has_the_images_and_the_commands_of_the_handler_and_nothing_of_the_host() -> None:
    [gpu] = [pool("gpu", handler="registry.example.com/virt-handler:gpu")]
    pools = {"virtHandlerPools": [gpu], "imagePullSecrets": [{"name": "regcred"}]}
    of = daemon_set("virt-handler-gpu", **pools)
    made = proof.render(INSTALLATION, of, "node7")
    spec, [handler_init] = made["spec"], pod_spec(of)["initContainers"]
    [init], [main] = spec["initContainers"], spec["containers"]
    assert (init["image"], init["args"]) == (handler_init["image"], handler_init["args"])
    assert main["image"] == "registry.example.com/virt-handler:gpu"
    assert spec["nodeName"] == "node7" and spec["imagePullSecrets"] == [{"name": "regcred"}]
    assert all("emptyDir" in volume for volume in spec["volumes"])
    assert spec["automountServiceAccountToken"] is False and "hostPID" not in spec
    assert "serviceAccountName" not in spec
    assert made["metadata"]["labels"]["kubevirt.io"] != "virt-handler", "it is nobody's handler"
    assert made["metadata"]["name"] == proof.render(INSTALLATION, of, "node7")["metadata"]["name"]
    assert made["metadata"]["name"] != proof.render(INSTALLATION, of, "node8")["metadata"]["name"]
    assert proof.images(of) == {init["image"], main["image"]}


@settings(max_examples=examples(100), deadline=None)
@example([1, 3, 25, 1], False)
@given(st.lists(st.integers(1, 25), min_size=1, max_size=4), st.booleans())
def test_a_rollout_ends_and_never_takes_more_away_than_it_may(sizes: list[int], new_images: bool) -> None:
    sets = [handlers(size, f"virt-handler-{i}") for i, size in enumerate(sizes)]
    owners = [ds["metadata"]["name"] for ds, size in zip(sets, sizes, strict=True) for _ in range(size)]
    old = "old" if new_images else "new"
    pods = [pod(i, OLD, of=name, images=old) for i, name in enumerate(owners)]
    there: dict[str, HandlerPod] = {}
    for _ in range(len(owners) * 4):
        found, proving = planned(pods, *sets, there=there)
        assert found.failure is None
        for change in found.replace:
            [successor] = [ds for ds in sets if ds["metadata"]["name"] == change.successor]
            wanted = proof.render(INSTALLATION, successor, change.node)
            assert not new_images or wanted["metadata"]["name"] in there, "nothing goes unproven"
        tried = all(found.rollouts[name].tried for name in set(owners))
        gone = {change.pod.metadata.name for change in found.replace}
        there = proofs(*proving.needed.values())
        # Those that go come back new and not ready; those that came before are ready by now.
        pods = [
            pod(i, NEW, of=owners[i], ready=p.metadata.name not in gone)
            if p.metadata.name in gone or content_of(p) == NEW
            else pod(i, OLD, of=owners[i], images=old)
            for i, p in enumerate(pods)
        ]
        assert sum(not p.ready for p in pods) <= (max(1, len(owners) // 10) if tried else 1)
        if all(content_of(p) == NEW and p.ready for p in pods):
            return
    raise AssertionError("it did not end")


# -- the control plane, and nodes without a handler


def test_a_deployment_is_settled_when_the_old_pods_are_gone_and_a_new_one_works() -> None:
    def of(wanted: int = 2, **counts: int) -> Obj:
        status = {"observedGeneration": 2, **counts}
        return {"metadata": {"generation": 2}, "spec": {"replicas": wanted}, "status": status}

    assert settled(of(updatedReplicas=2, replicas=2, availableReplicas=2))
    assert settled(of(updatedReplicas=2, replicas=2, availableReplicas=1)), "a replica may be away"
    assert not settled(of(updatedReplicas=2, replicas=2))
    assert not settled(of(updatedReplicas=1, replicas=3, availableReplicas=2)), "the new one does not come up"
    assert not settled(of(1, updatedReplicas=1, replicas=2, availableReplicas=1)), "the old one serves"
    assert not settled(of(updatedReplicas=2, replicas=2, availableReplicas=2, observedGeneration=1))


def test_nodes_without_a_ready_handler_are_named_with_the_reason() -> None:
    pods = [
        pod(0, NEW),
        pod(1, NEW, ready=False, failing="ErrImagePull"),
        pod(2, NEW, ready=False, age=600),
        pod(3, NEW),
        pod(4, NEW, ready=False),
        pod(5, NEW, ending=True),
    ]
    found = unserved(pods, {"node3"}, NOW)
    assert found.keys() == {"node1", "node2", "node3"}
    assert "ErrImagePull: no such image" in found["node1"]
    assert found["node2"] == "virt-handler-2 is not ready"
    assert found["node3"] == "the node itself is not Ready"
    assert unserved(pods, frozenset(), NOW + timedelta(hours=1)).keys() == {"node1", "node2", "node4", "node5"}


def test_a_node_with_a_ready_handler_beside_one_that_waits_is_served() -> None:
    pods = [pod(0, NEW), pod(0, NEW, of="virt-handler-p", ready=False, age=600)]
    assert unserved(pods, frozenset(), NOW) == {}


def test_a_daemon_set_says_how_many_of_its_handlers_may_be_away() -> None:
    made = handlers(3)
    made["spec"]["updateStrategy"] = {"type": "OnDelete"}

    def said(*pods: HandlerPod) -> object:
        return paced(made, pods)["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"]

    old = [pod(number, OLD) for number in (1, 2)]
    assert said() == said(pod(0, NEW)) == said(pod(0, OLD), *old) == 1
    assert said(pod(0, NEW, ready=False), *old) == 1, "the canary has not come up"
    assert said(pod(0, NEW), *old) == said(pod(0, NEW), pod(1, NEW, ready=False), pod(2, OLD)) == "10%"
    assert said(pod(0, NEW), pod(1, OLD, of="virt-handler-pool")) == 1, "of its own only"
    made["spec"]["updateStrategy"] = {"type": "RollingUpdate"}
    assert paced(made, old) is made
