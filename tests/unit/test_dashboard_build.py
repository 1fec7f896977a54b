"""The dashboard's pages: what is shipped is what web/ makes."""

from __future__ import annotations

import filecmp
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "web"
SHIPPED = WEB.parent / "src/virtfleet/dashboard/static"
MOST = 1_300_000
"""Bytes of all files together; the first page needs the smallest part of it."""


def test_the_shipped_pages_were_built_from_the_sources_that_are_here() -> None:
    names = ["build.mjs", "index.html", "package.json", "package-lock.json"]
    names += [f"src/{path.name}" for path in (WEB / "src").iterdir()]
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(f"{name}\0".encode() + (WEB / name).read_bytes() + b"\0")
    assert (SHIPPED / "SOURCES").read_text().strip() == digest.hexdigest(), "build them: make pages"


def test_the_pages_are_of_a_reasonable_size() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < MOST
    assert sum(path.stat().st_size for path in SHIPPED.glob("main-*")) < 100_000


def test_the_documentation_shows_the_pictures_that_the_browser_test_takes() -> None:
    docs = WEB.parent / "docs"
    taken = re.findall(r'picture\(\w+, "([-a-z]+)"\)', (WEB.parent / "tests/vm/test_dashboard.py").read_text())
    shown = re.findall(r"\(images/dashboard-([-a-z]+)\.png\)", (docs / "dashboard.md").read_text())
    there = {path.name: path.stat().st_size for path in (docs / "images").iterdir()}
    assert {f"dashboard-{name}.png" for name in taken} == {f"dashboard-{name}.png" for name in shown} == there.keys()
    assert max(there.values()) < 150_000


@pytest.mark.skipif(not shutil.which("npm"), reason="needs npm")
@pytest.mark.slow
def test_another_build_gives_the_same_files(tmp_path: Path) -> None:
    work = tmp_path / "web"
    shutil.copytree(WEB, work, ignore=shutil.ignore_patterns("node_modules"))
    if (WEB / "node_modules").exists():
        shutil.copytree(WEB / "node_modules", work / "node_modules", symlinks=True)  # names of files depend on paths
    else:
        _install(work)
    subprocess.run(["npm", "run", "--silent", "check"], cwd=work, check=True, timeout=100)
    subprocess.run(["node", "build.mjs", str(tmp_path / "built")], cwd=work, check=True, timeout=60)
    compared = filecmp.dircmp(tmp_path / "built", SHIPPED)
    assert not (compared.left_only or compared.right_only or compared.diff_files)


def _install(work: Path) -> None:
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=110)
    if done.returncode != 0:
        pytest.skip(f"npm cannot get the libraries here: {done.stderr.strip().splitlines()[-1:]}")
