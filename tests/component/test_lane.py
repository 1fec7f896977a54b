"""What decides over a run of all tests: lanes side by side, a second try alone, and the ledger."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow  # each run of pytest is half a second of work

SOUND = "def test_it():\n    pass\n"
BROKEN = "def test_it():\n    assert False\n"
# Its neighbours are in its way once.
DISTURBED = """
from pathlib import Path

def test_it():
    tried = Path(__file__).with_suffix(".tried")
    if not tried.exists():
        tried.touch()
        raise AssertionError("the others were in the way")
"""


@pytest.fixture
def lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for a repository of its own."""
    loader = importlib.machinery.SourceFileLoader("lane", str(ROOT / "scripts" / "lane"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("lane", loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "LEDGER", tmp_path / "ledger.json")
    (tmp_path / "ledger.json").write_text("{}")
    return module


def ledger(directory: Path) -> list[str]:
    return list(json.loads((directory / "ledger.json").read_text()))


def write(directory: Path, **tests: str) -> None:
    for name, text in tests.items():
        (directory / f"test_{name}.py").write_text(text)


def test_what_fails_beside_others_only_is_forgiven_once(lane: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, one=SOUND, other=DISTURBED)
    words = ["test_one.py", "-q", "--", "test_other.py", "-q"]
    assert lane.main(words) == 0
    assert ledger(tmp_path) == ["test_other.py::test_it"]
    assert lane.main(words) == 0, "it was not disturbed this time"
    (tmp_path / "test_other.tried").unlink()
    assert lane.main(words) == 1


@pytest.mark.parametrize("broken", ["one", "other"])
def test_what_fails_alone_too_fails_the_run_whichever_lane_has_it(
    lane: ModuleType, tmp_path: Path, broken: str
) -> None:
    write(tmp_path, **{"one": SOUND, "other": SOUND, broken: BROKEN})
    assert lane.main(["test_one.py", "-q", "--", "test_other.py", "-q"]) == 1
    assert ledger(tmp_path) == []


def test_a_lane_that_cannot_run_fails_the_run_at_once(
    lane: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, one="import nothing_of_the_kind\n", other=DISTURBED)
    assert lane.main(["test_one.py", "-q", "--", "test_other.py", "-q"]) == 2
    assert "Once more" not in capfd.readouterr().out
