"""Every console block of the documentation is run by somebody, or says why not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from docblocks import PAGES, ROOT, Block, blocks, matches, run

ALL = blocks()
# Blocks that nobody runs, each with its reason in the page. A new one has to be counted here.
NOT_RUN = 1


def test_every_block_says_whether_it_is_run() -> None:
    assert [str(block) for block in ALL if not block.mark] == []
    reasons = [block.mark.partition(": ")[2] for block in ALL if block.mark.startswith("not run")]
    assert all(len(reason) > 10 for reason in reasons)
    assert len(reasons) == NOT_RUN


def test_no_command_hides_in_a_block_of_another_kind() -> None:
    for page in PAGES:
        for kind, body in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            assert kind == "console" or not re.search(r"^\$ ", body, re.MULTILINE), f"{page.name}: {body}"


@pytest.mark.parametrize("block", [b for b in ALL if b.mark.startswith("run: tests/")], ids=str)
def test_who_is_said_to_run_it_does(block: Block) -> None:
    text = (ROOT / block.mark.partition(": ")[2]).read_text()
    named = re.findall(r'shown\(__file__, "([^"]+)"\)', text)
    assert "marked(__file__)" in text or any(block.body[2:].startswith(begins) for begins in named)


@pytest.mark.slow
@pytest.mark.parametrize("block", [b for b in ALL if b.mark == "run"], ids=str)
def test_what_needs_no_cluster_prints_what_the_page_shows(block: Block, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    run(block, tmp_path, {"PATH": path, "HOME": str(tmp_path), "KUBECONFIG": "", "VIRTFLEET_DATA": str(tmp_path / "d")})


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("ready (12.1 s)", "ready (3 s)", True),
        ("kubevirt   62s   Deployed", "kubevirt 4m30s Deployed", True),
        ("a\n…\nz", "a\nb\nc\nz", True),
        ("a\n…\nz\n…", "a\nz", True),
        ("a …", "a b", True),
        ("", "", True),
        ("pod/launcher-vm0-7c061a14 evicted", "pod/launcher-vm0-0c9f31de evicted", True),
        ("", "a", False),
        ("node-a is ready", "node-b is ready", False),
        ("a", "a\nb", False),
    ],
)
def test_what_may_differ(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) == same
