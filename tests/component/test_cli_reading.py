"""Commands that only read leave everything as it was, whether there is a cluster or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from virtfleet.cli.main import main
from virtfleet.local import directory
from virtfleet.local.directory import Settings
from virtfleet.local.nodesfile import NodeSpec

READING = {
    "status": ["status"],
    "status as json": ["status", "-o", "json"],
    "node ls": ["node", "ls"],
    "image ls": ["image", "ls"],
    "logs": ["logs"],
    "logs of a process": ["logs", "control-plane"],
    "down": ["down"],  # of a cluster that does not run
}
REFUSED = {
    "image rm": ["image", "rm", "some:image"],
    "image derive": ["image", "derive", "new", "--from", "host"],
    "image import": ["image", "import", "/etc/hostname", "new"],
    "image pull": ["image", "pull", "localhost:1/x"],
    "node start": ["node", "start", "node-a"],
    "node add": ["node", "add", "node-a"],
    "demo": ["demo"],
}


def tree(path: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.lstat().st_mtime_ns, p.lstat().st_size) for p in [path, *path.rglob("*")]}


@pytest.mark.parametrize("command", [*READING.values(), *REFUSED.values()], ids=[*READING, *REFUSED])
def test_no_command_makes_a_directory_where_no_cluster_is(command: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [*command, "--data", str(tmp_path / "nope")])
    assert not (tmp_path / "nope").exists()
    if command[0] not in ("logs", "down"):
        assert done.exit_code == 1
        assert "there is no cluster in" in done.output
        assert "virtfleet up" in done.output


@pytest.mark.parametrize("command", READING.values(), ids=READING)
def test_reading_changes_nothing_of_a_cluster_that_does_not_run(command: list[str], tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    data.mkdir()
    settings = Settings("vf-test", 1, "10.1.0.0/16", "10.2.0.0/16", [NodeSpec("node-a")])
    directory.save(data, settings)
    before = tree(data)
    CliRunner().invoke(main, [*command, "--data", str(data)])
    assert tree(data) == before
