"""Loop devices of this machine: one for each file, there as long as some pod has it, whoever was killed meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from node_cluster import needs_root

from virtfleet.local.node import loops
from virtfleet.local.node.layout import Layout
from waiting import eventually

pytestmark = needs_root
CONTENT = b"content of the disk".ljust(1 << 20, b".")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Layout]]:
    made = [Layout(tmp_path, "loops", name) for name in ("n1", "n2")]
    yield made
    for node in made:
        loops.release(node)
    assert not of_cluster(tmp_path)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk.img"
    path.write_bytes(CONTENT)
    return path


def of_cluster(directory: Path) -> set[str]:
    """Devices of the machine that are made of files of a directory."""
    found = set()
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            backing = path.read_text()
        except OSError:
            continue
        if backing.startswith(f"{directory}/"):
            found.add(f"/dev/{path.parts[3]}")
    return found


def test_pods_of_all_nodes_share_the_device_of_a_file_until_the_last_has_gone(nodes: list[Layout], disk: Path) -> None:
    device = loops.attach(nodes[0], "a", "v", disk)
    assert loops.attach(nodes[0], "a", "v", disk) == device
    assert loops.attach(nodes[1], "b", "w", disk) == device
    assert device.read_bytes() == CONTENT
    loops.release(nodes[0], "a")
    assert of_cluster(disk.parent) == {str(device)}
    disk.unlink()  # a claim that was deleted first
    loops.release(nodes[1], "b")
    assert not of_cluster(disk.parent)


def test_a_device_that_is_in_use_goes_afterwards_unless_a_pod_comes_for_it(nodes: list[Layout], disk: Path) -> None:
    device = loops.attach(nodes[0], "a", "v", disk)
    guest = os.open(device, os.O_RDWR)
    loops.release(nodes[0], "a")
    assert loops.attach(nodes[0], "b", "v", disk) == device
    os.close(guest)
    assert of_cluster(disk.parent) == {str(device)}
    assert device.read_bytes() == CONTENT
    guest = os.open(device, os.O_RDWR)
    loops.release(nodes[0], "b")
    assert of_cluster(disk.parent) == {str(device)}
    os.close(guest)
    eventually(lambda: not of_cluster(disk.parent), 10)


def test_whoever_is_killed_in_between_leaves_what_the_next_one_finds(
    nodes: list[Layout], disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as before_the_device, pytest.raises(Killed):
        before_the_device.setattr(loops, "_losetup", killed)
        loops.attach(nodes[0], "a", "v", disk)
    loops.release(nodes[0], "a")
    loops.attach(nodes[0], "a", "v", disk)
    with monkeypatch.context() as after_the_device, pytest.raises(Killed):
        after_the_device.setattr(Path, "unlink", killed)
        loops.release(nodes[0], "a")
    loops.release(nodes[0])  # as when a node is taken down
    assert not of_cluster(disk.parent)
    assert not list(nodes[0].kubelet.glob("pods/*/*/*/*"))


def test_many_at_once_see_one_device(nodes: list[Layout], disk: Path) -> None:
    def comes_and_goes(number: int) -> None:
        node = nodes[number % 2]
        device = loops.attach(node, str(number), "v", disk)
        with open(device, "rb") as opened:
            assert opened.read(7) == CONTENT[:7]
        assert of_cluster(disk.parent) == {str(device)}
        loops.release(node, str(number))

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(comes_and_goes, number) for number in range(64)]:
            done.result()
