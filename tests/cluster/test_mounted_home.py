"""A cluster's directory may be a disk of its own, with others mounted in it: `down` takes only its own mounts away."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Cluster, Kubectl, free_port

from virtfleet.local.node import mounts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.local_home("it breaks the cluster"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]


@pytest.fixture
def disk() -> Iterator[Path]:
    """A directory that is a mount point."""
    place = Path(tempfile.mkdtemp(prefix="vft-disk-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "vft-disk", str(place)], check=True)
    yield place
    for point in mounts.below(place):
        mounts.unmount(point)
    place.rmdir()


def test_down_unmounts_what_it_mounted_and_nothing_else(disk: Path) -> None:
    cluster = Cluster(disk / "kubeconfig", disk, free_port())
    # Reached through a link, it is the same cluster.
    link = disk.with_name(f"{disk.name}-link")
    link.symlink_to(disk)
    linked = Cluster(link / "kubeconfig", link, cluster.port)
    try:
        linked.virtfleet("up", "--port", str(cluster.port), "--bare")
        Kubectl(cluster)("create", "configmap", "kept")
        assert len(mounts.below(disk)) > 1
        volumes = disk / "volumes"
        volumes.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "vft-volumes", str(volumes)], check=True)
        (volumes / "letter").write_text("mine")
        linked.virtfleet("down")
        assert sorted(mounts.below(disk)) == [str(disk), str(volumes)]
        assert (volumes / "letter").read_text() == "mine"
        refused = cluster.virtfleet("down", "--wipe", check=False)
        assert refused.returncode == 1
        assert f"still mounted: {volumes}" in refused.stderr
        assert (volumes / "letter").read_text() == "mine"
        cluster.virtfleet("up")
        assert Kubectl(cluster)("get", "configmap", "kept", "-o", "name") == "configmap/kept\n"
        mounts.unmount(volumes)
    finally:
        done = cluster.virtfleet("down", "--wipe", check=False)
        link.unlink()
    assert done.returncode == 0, done.stderr
    assert disk.is_mount()
    assert list(disk.iterdir()) == []
