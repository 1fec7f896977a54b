"""A node that mounts no images as volumes: its VMs have their disks all the same, without a copy, and nobody notices.

That a node cannot is what its label says, as somebody who knows better than the trial would set it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.clusters import VIRTFLEET, Cluster, Kubectl
from vm.accessed import Used, holders
from waiting import eventually

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.on_demand("KUBECONFIG", "the local home's nodes mount images, and have no other way"),
]
LABEL, OF = "virtfleet.io/image-volumes", "virtfleet.io/image-volumes-of"
PATIENCE = 120.0


def told(admin: Kubectl, node: str) -> tuple[str, str]:
    meta: dict[str, Any] = admin.json("get", "node", node)["metadata"]
    return meta["labels"].get(LABEL, ""), meta["annotations"].get(OF, "")


def test_a_vm_has_its_disk_where_images_are_no_volumes(fleet: Cluster, tmp_path: Path) -> None:
    admin, node = Kubectl(fleet), fleet.nodes[0]
    works, found_with = eventually(lambda: told(admin, node) if all(told(admin, node)) else None, PATIENCE)
    admin("label", "node", node, f"{LABEL}=false", "--overwrite")
    admin("annotate", "node", node, f"{OF}-")
    try:
        with Used(fleet, "held", tmp_path) as web:  # its agent answers: it has booted from the image
            [pod] = web.kubectl.json("get", "pods", "-l", "kubevirt.io=virt-launcher")["items"]
            [holder] = holders(pod)
            states = {each["name"]: each["state"] for each in pod["status"]["initContainerStatuses"]}
            assert "running" in states[holder]
            assert not [volume for volume in pod["spec"]["volumes"] if "image" in volume]
            web.answers_what_is_typed(VIRTFLEET, "console", "web", "-n", "held")
        assert told(admin, node) == ("false", "")  # somebody's word is left alone
    finally:
        admin("label", "node", node, f"{LABEL}-")
    assert eventually(lambda: told(admin, node) if all(told(admin, node)) else None, PATIENCE) == (works, found_with)
