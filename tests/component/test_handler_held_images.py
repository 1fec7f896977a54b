"""An image that a container of the Pod holds appears in the mounts of the launcher, with real namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pod_member import PodGroup

from tests.waiting import eventually
from virtfleet.domain import paths
from virtfleet.handler.pods import heldimages
from virtfleet.handler.pods.launchers import Unresponsive
from virtfleet.handler.pods.process import PodProcess

POD = "0f6a1a24-held"
AT = paths.image_volume(0)
# As a container runtime does it: the image is the root, and nothing else is there.
HOLD = "mount --bind {root} {root} && cd {root} && pivot_root . old && exec ./container-disk -P"
# Each directory of the Pod is a mount, also the empty one in the image's place.
LAUNCH = f"mount -t tmpfs none {paths.SHARE} && mkdir -p {AT} && mount -t tmpfs none {AT} && exec sleep infinity"


class Pod:
    """A launcher and, where it is asked for, a container that holds an image."""

    def __init__(self, root: Path) -> None:
        self.root, self.group = root, PodGroup(POD)
        self.processes: list[subprocess.Popen[bytes]] = []
        Path(paths.SHARE).mkdir(parents=True, exist_ok=True)

    def start(self, script: str, name: str, at: str = AT) -> PodProcess:
        process = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], env={**os.environ, paths.HELD_AT: at})
        self.processes.append(process)
        self.group.add(process.pid)
        eventually(lambda: Path(f"/proc/{process.pid}/comm").read_text().strip() == name)
        return PodProcess(process.pid, POD)

    def hold(self) -> PodProcess:
        return self.start(HOLD.format(root=self.root), paths.IMAGE_HOLDER)

    def launch(self, at: str = AT) -> PodProcess:
        return self.start(LAUNCH, "sleep", at)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.group.remove()


def inside(process: PodProcess, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["nsenter", f"--mount=/proc/{process.number}/ns/mnt", *command], capture_output=True, text=True
    )


@pytest.fixture
def pod(place: Path) -> Iterator[Pod]:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    root = place / "image"
    (root / "disk").mkdir(parents=True)
    (root / "old").mkdir()
    (root / "disk/disk.img").write_text("a disk")
    (root / "disk/stolen").symlink_to("/etc/shadow")
    shutil.copy("/usr/bin/catatonit", root / paths.IMAGE_HOLDER)
    made = Pod(root)
    yield made
    made.end()


def test_the_launcher_sees_the_image_and_cannot_change_it(pod: Pod) -> None:
    pod.hold()
    launcher = pod.launch()
    heldimages.hand_over(launcher)
    assert inside(launcher, "cat", f"{AT}/disk/disk.img").stdout == "a disk"
    assert "Read-only" in inside(launcher, "touch", f"{AT}/disk/new").stderr
    assert "denied" in inside(launcher, f"{AT}/{paths.IMAGE_HOLDER}", "-V").stderr  # no programs
    mounts = launcher.read("mountinfo")
    heldimages.hand_over(launcher)  # by the next handler
    assert launcher.read("mountinfo") == mounts
    assert AT not in Path("/proc/self/mountinfo").read_text()  # nothing of it is the node's


def test_it_outlives_its_holder(pod: Pod) -> None:
    pod.hold()
    launcher = pod.launch()
    heldimages.hand_over(launcher)
    pod.processes[0].kill()
    pod.processes[0].wait()
    heldimages.hand_over(launcher)
    assert inside(launcher, "cat", f"{AT}/disk/disk.img").stdout == "a disk"


def test_one_that_nobody_holds_is_missed(pod: Pod) -> None:
    with pytest.raises(Unresponsive, match="no container of the Pod holds the image"):
        heldimages.hand_over(pod.launch())


def test_a_launcher_cannot_have_anything_mounted_elsewhere(pod: Pod) -> None:
    pod.hold()
    launcher = pod.launch(at="/etc:/proc:relative")
    mounts = launcher.read("mountinfo")
    heldimages.hand_over(launcher)
    assert launcher.read("mountinfo") == mounts
