"""Domains that outlive their launcher. A list in a file stands in for the hypervisor that keeps them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from virtfleet.hypervisors.base import Outliving as How
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.vm.outliving import held, sweep

_LAUNCHER = """
import asyncio, sys
from pathlib import Path
from virtfleet.hypervisors.base import Outliving as How
from virtfleet.launcher.vm.outliving import held
async def main():
    async with held(How(listing=("true",), ending=()), sys.argv[1], Path(sys.argv[2])):
        print("begun", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


class Node:
    """A node whose hypervisor has these domains."""

    def __init__(self, place: Path, *domains: str) -> None:
        self.list, self.files = place / "domains", place / "files"
        self.list.write_text("".join(f"{name} {number}\n" for number, name in enumerate(domains)))
        end = ("sed", "-i", "/ {id}$/d", str(self.list))
        self.how = How(listing=("cat", str(self.list)), ending=(("false",), end))

    @property
    def domains(self) -> list[str]:
        return [line.split()[0] for line in self.list.read_text().splitlines()]

    def launcher(self, name: str) -> subprocess.Popen[str]:
        """Another launcher, which has this domain."""
        command = [sys.executable, "-c", _LAUNCHER, name, str(self.files)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout and process.stdout.readline() == "begun\n"
        return process

    def own(self, name: str) -> AbstractAsyncContextManager[None]:
        return held(self.how, name, self.files)


async def test_what_a_killed_launcher_left_is_ended_and_nothing_else(tmp_path: Path) -> None:
    node = Node(tmp_path, "Domain-0", "default_dead", "default_dead-2", "default_alive", "theirs")
    dead, alive = node.launcher("default_dead"), node.launcher("default_alive")
    try:
        await sweep(node.how, node.files)
        assert len(node.domains) == 5, "all launchers live"
        dead.kill()
        dead.wait()
        await sweep(node.how, node.files)
        assert node.domains == ["Domain-0", "default_dead-2", "default_alive", "theirs"]
        assert [file.name for file in node.files.iterdir()] == ["default_alive"]
    finally:
        for process in (dead, alive):
            process.kill()
            process.communicate()


async def test_the_next_launcher_of_a_domain_ends_the_one_that_was_left(tmp_path: Path) -> None:
    node = Node(tmp_path, "default_vm", "theirs")
    first = node.launcher("default_vm")
    with pytest.raises(Failure, match="still has the domain default_vm"):
        async with node.own("default_vm"):
            pass
    assert node.domains == ["default_vm", "theirs"]
    first.kill()
    first.communicate()
    async with node.own("default_vm"):
        assert node.domains == ["theirs"]
    assert list(node.files.iterdir()) == []


async def test_a_domain_that_is_still_there_at_the_end_is_ended(tmp_path: Path) -> None:
    node = Node(tmp_path, "theirs")
    async with node.own("default_vm"):
        node.list.write_text("theirs 0\ndefault_vm 7\n")
    assert node.domains == ["theirs"]


async def test_what_cannot_be_ended_is_tried_again(tmp_path: Path) -> None:
    node = Node(tmp_path, "default_vm")
    node.files.mkdir()
    (node.files / "default_vm").touch()
    await sweep(How(listing=node.how.listing, ending=(("false",),)), node.files)
    assert node.domains == ["default_vm"]
    await sweep(node.how, node.files)
    assert node.domains == [] and list(node.files.iterdir()) == []


async def test_a_link_among_the_files_is_not_followed(tmp_path: Path) -> None:
    node = Node(tmp_path, "theirs")
    node.files.mkdir()
    (node.files / "theirs").symlink_to(tmp_path / "elsewhere")
    (node.files / "directory").mkdir()
    await sweep(node.how, node.files)
    assert node.domains == ["theirs"] and not (tmp_path / "elsewhere").exists()


async def test_where_domains_end_by_themselves_nothing_is_kept(tmp_path: Path) -> None:
    async with held(None, "default_vm", tmp_path / "files"):
        pass
    assert not (tmp_path / "files").exists()
