"""Volumes that are plugged into a running VM and out of it, with the real virtctl and a real guest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.clusters import Cluster
from vm.accessed import Used
from vm.guests import PATIENCE
from vm.plugged import Plugged, claim
from waiting import eventually

NAMESPACE = "plugging"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def web(fleet: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    with Used(fleet, NAMESPACE, tmp_path_factory.mktemp("home")) as used:
        yield Plugged(used)


def test_a_volume_comes_and_goes_and_comes_again_with_what_was_written(web: Plugged) -> None:
    web.kubectl.apply(claim("data"))
    web.virtctl("addvolume", "web", "--volume-name=data")
    status = web.ready("data")
    disk = web.sees("data")
    assert status["target"] == disk
    [pod] = web.attachments()
    assert status["hotplugVolume"] == {"attachPodName": pod["metadata"]["name"], "attachPodUID": pod["metadata"]["uid"]}
    assert pod["metadata"]["name"].startswith("hp-volume-")
    web.guest(f"echo kept | dd of=/dev/{disk} conv=fsync")

    web.virtctl("removevolume", "web", "--volume-name=data")
    web.gone("data")
    eventually(lambda: not web.disk("data"), PATIENCE)

    web.virtctl("addvolume", "web", "--volume-name=data")
    web.ready("data")
    assert "kept" in web.guest(f"head -c 4 /dev/{web.sees('data')}; echo")
    assert {"VolumeReady", "VolumeUnMountedFromPod"} <= web.events("data")
