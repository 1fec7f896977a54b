"""Containers that share directories with the guest: what they see, may do and may use."""

from __future__ import annotations

from typing import Any

import pytest

from virtfleet.hypervisors import registry
from virtfleet.installation import Installation
from virtfleet.local.apiserver.kinds.pod_spec import qos_class
from virtfleet.pods.launcher import Unrenderable, render

from .machines import compute, kubevirt, machine, mounts, pod
from .restricted import violations

WHERE = kubevirt("EnableVirtioFsStorageVolumes")
SOURCES = {
    "data": {"persistentVolumeClaim": {"claimName": "c"}},
    "made": {"dataVolume": {"name": "d"}},
    "conf": {"configMap": {"name": "m"}},
    "keys": {"secret": {"secretName": "s"}},
    "token": {"serviceAccount": {"serviceAccountName": "default"}},
    "about": {"downwardAPI": {"fields": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
}
PRIVATE = "/var/run/kubevirt-private"
SOCKETS = {"name": "virtiofs-containers", "mountPath": "/var/run/kubevirt/virtiofs-containers"}


def shared(*names: str, **more: Any) -> dict[str, Any]:
    return {
        "domain.devices.filesystems": [{"name": name, "virtiofs": {}} for name in names],
        **{f"volumes[{place}]": {"name": name, **SOURCES[name]} for place, name in enumerate(names, 1)},
        **more,
    }


def sharer(made: dict[str, Any], name: str = "data") -> dict[str, Any]:
    [found] = [c for c in made["spec"]["containers"] if c["name"] == f"virtiofs-{name}"]
    assert isinstance(found, dict)
    return found


def test_each_file_system_has_a_container_that_sees_its_volume_and_no_more() -> None:
    made = pod(shared(*SOURCES), WHERE)
    seen = {
        "data": f"{PRIVATE}/vmi-disks/data",
        "made": f"{PRIVATE}/vmi-disks/made",
        "conf": f"{PRIVATE}/config-map/conf",
        "keys": f"{PRIVATE}/secret/keys",
        "about": f"{PRIVATE}/downwardapi/about",
    }
    assert [c["name"] for c in made["spec"]["containers"]] == ["compute", *(f"virtiofs-{name}" for name in SOURCES)]
    for name, path in seen.items():
        container = sharer(made, name)
        socket = f"--socket-path=/var/run/kubevirt/virtiofs-containers/{name}.sock"
        assert container["args"] == ["share", socket, f"--shared-dir={path}"]
        [volume, sockets] = sorted(container["volumeMounts"], key=lambda mount: mount == SOCKETS)
        assert (volume["mountPath"], sockets) == (path, SOCKETS)
        assert volume.get("readOnly", False) == (name not in ("data", "made"))
    assert mounts(made)["virtiofs-containers"] == SOCKETS["mountPath"]


def test_a_service_account_is_shared_from_where_kubernetes_mounts_it() -> None:
    made = pod(shared("token"), WHERE)
    assert made["spec"]["automountServiceAccountToken"] is True
    token = sharer(made, "token")
    assert token["volumeMounts"] == [SOCKETS]
    assert token["args"][2:] == ["--shared-dir=/var/run/secrets/kubernetes.io/serviceaccount", "--as-root"]


def test_sharing_meets_the_restricted_profile() -> None:
    assert violations(pod(shared(*SOURCES), WHERE)) == set()


def test_a_container_may_use_as_much_more_as_the_guest_has_whose_memory_it_may_be_the_first_to_touch() -> None:
    asked = sharer(pod(shared("data", **{"domain.memory.guest": "1Gi"}), WHERE))["resources"]
    assert asked["requests"] == {"cpu": "10m", "memory": "20M"}
    assert asked["limits"] == {"cpu": "500m", "memory": str(80_000_000 + 2**30)}
    pages = {"domain.memory": {"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}}}
    assert sharer(pod(shared("data", **pages), WHERE))["resources"]["limits"]["memory"] == "80M"


GUARANTEED = {
    "domain.memory.guest": "64Mi",
    "domain.resources": {
        "requests": {"cpu": "1", "memory": "64Mi"},
        "limits": {"cpu": "1", "memory": "64Mi"},
    },
}


@pytest.mark.parametrize("own", [GUARANTEED, {"domain.cpu": {"cores": 1, "dedicatedCpuPlacement": True}}])
def test_a_pod_that_has_all_it_may_use_stays_one(own: dict[str, Any]) -> None:
    made = pod(shared("data", **own), WHERE)
    assert qos_class(made["spec"]) == "Guaranteed"
    assert sharer(made)["resources"]["limits"] == {"cpu": "100m", "memory": "80M"}


@pytest.mark.parametrize(("own", "there"), [(GUARANTEED, True), ({}, False)])
def test_its_guests_memory_is_touched_before_the_guest_runs(own: dict[str, Any], there: bool) -> None:
    """Or the container would be killed for the guest's memory."""
    from virtfleet.api.view import read
    from virtfleet.api.vmi import VirtualMachineInstance
    from virtfleet.domain.context import Context

    vmi = read(VirtualMachineInstance, machine(shared("data", **own), WHERE))
    domain = registry.get("qemu-kvm").build(vmi, Context())
    assert (domain.find("memoryBacking/allocation[@mode='immediate']") is not None) == there
    balloon = domain.find("devices/memballoon")
    assert balloon is not None and balloon.get("freePageReporting") == ("off" if there else "on")


def test_an_administrator_chooses_what_it_may_use() -> None:
    chosen = {"requests": {"cpu": "2m", "memory": "14M"}, "limits": {"cpu": "101m", "memory": "81M"}}
    configuration = {"supportContainerResources": [{"type": "virtiofs", "resources": chosen}]}
    where = kubevirt("EnableVirtioFsStorageVolumes", configuration=configuration)
    assert sharer(pod(shared("data"), where))["resources"] == chosen


def test_a_claim_that_is_no_directory_is_named() -> None:
    where = WHERE if isinstance(WHERE, Installation) else Installation(WHERE)
    with pytest.raises(Unrenderable, match="volume 'data' is no directory of the VM's Pod"):
        render(machine(shared("data"), WHERE), where, block_volumes=["data"])


def test_the_launcher_has_nothing_more_for_it() -> None:
    before, after = compute(pod(where=WHERE)), compute(pod(shared("conf"), WHERE))
    assert before["securityContext"] == after["securityContext"]
    assert before["resources"] == after["resources"]
