"""What nodes are tried for, and what the trial's Pod shows."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from operator_tests.fleets import kubevirt
from virtfleet.installation import Installation
from virtfleet.operator import imagevolumes
from virtfleet.operator.handlerpods import HandlerPod, decode_pod
from virtfleet.operator.world import NodeView, decode_node

LABEL, OF = "virtfleet.io/image-volumes", "virtfleet.io/image-volumes-of"
VERSIONS = "containerd://2.4.0 v1.36.4"


def node(name: str, label: str = "", of: str = "", runtime: str = "containerd://2.4.0") -> NodeView:
    metadata = {"name": name, "labels": {LABEL: label} if label else {}, "annotations": {OF: of} if of else {}}
    info = {"containerRuntimeVersion": runtime, "kubeletVersion": "v1.36.4"}
    status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": info}
    return decode_node(orjson.dumps({"metadata": metadata, "status": status}))


def handler(node: str) -> HandlerPod:
    return _pod(
        f"virt-handler-{node}",
        {"nodeName": node, "containers": [{"name": "virt-handler", "image": "handler:1"}]},
        {"conditions": [{"type": "Ready", "status": "True"}]},
    )


def _pod(name: str, spec: dict[str, Any], status: dict[str, Any]) -> HandlerPod:
    return decode_pod(orjson.dumps({"metadata": {"name": name}, "spec": spec, "status": status}))


INSTALLED = kubevirt()
INSTALLED["metadata"]["uid"] = "u"


def look(nodes: list[NodeView], *there: HandlerPod) -> imagevolumes.Trials:
    served = [handler(node.name) for node in nodes]
    return imagevolumes.look(Installation(INSTALLED), nodes, served, there)


def test_a_node_is_tried_once_and_again_when_its_versions_are_others() -> None:
    [probe] = look([node("a")]).wanted.values()
    assert probe["spec"]["nodeName"] == "a"
    assert probe["spec"]["volumes"][0]["image"]["reference"] == "handler:1"
    assert not look([node("a", "true", VERSIONS)]).wanted
    assert look([node("a", "true", VERSIONS, runtime="containerd://1.6.20")]).wanted


def test_somebody_elses_word_is_taken_and_nodes_without_a_handler_are_left_alone() -> None:
    assert not look([node("a", "false")]).wanted
    assert not imagevolumes.look(Installation(INSTALLED), [node("a")], [], []).wanted


def waiting(reason: str) -> dict[str, Any]:
    return {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": reason}}}]}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"phase": "Succeeded"}, "true"),
        ({"phase": "Failed"}, "false"),
        (waiting("CreateContainerError"), "false"),
        (waiting("ContainerCreating"), ""),
        (waiting("ErrImagePull"), ""),
    ],
)
def test_what_the_pod_shows_becomes_a_label_and_the_pod_goes(status: dict[str, Any], said: str) -> None:
    [name] = look([node("a")]).wanted
    trials = look([node("a")], _pod(name, {"nodeName": "a"}, status))
    if not said:
        assert not trials.answers
        assert not trials.over
        return
    assert trials.answers == {"a": {"labels": {LABEL: said}, "annotations": {OF: VERSIONS}}}
    assert [pod.metadata.name for pod in trials.over] == [name]


def test_not_all_nodes_are_tried_at_once() -> None:
    assert len(look([node(f"n{number}") for number in range(100)]).wanted) == imagevolumes.AT_ONCE
