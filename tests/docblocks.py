"""Console blocks of the documentation, run as they stand there, and what they print compared.

A comment in the page's source, above each block, says what is done with it:

    <!-- run -->                in a directory with examples/, without a cluster
    <!-- run: fleet -->         on the cluster that `make up` starts
    <!-- run: FILE -->          the commands are in that test, which has the files or states that they need
    <!-- not run: why -->       nobody runs it; these are counted

Numbers (times, ages, addresses, sizes, versions) may be others, and `…` stands for anything. A file that a block shows
with `cat` is made before. What only reads is asked again until it says what the page says.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples/README.md"]
_BLOCK = re.compile(r"(?:<!-- (?P<mark>(?:not )?run[^>]*?) -->\n)?```console\n(?P<body>.*?)```", re.DOTALL)
_READS = ("kubectl get", "kubectl -n kubevirt get", "kubectl logs", "virtfleet node ls", "virtfleet pools")
_ANY = "…"


@dataclass(frozen=True, slots=True)
class Block:
    """One block, and where it is."""

    page: str
    line: int
    mark: str
    body: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def steps(self) -> list[tuple[str, str]]:
        """Commands, and what is printed after each of them."""
        found: list[tuple[str, list[str]]] = []
        for line in self.body.splitlines():
            if re.match(r"[$#] ", line) and not (found and found[-1][0].startswith("cat ") and line.startswith("# ")):
                found.append((re.sub(r"\s{2,}# .*", "", line[2:]), []))
            elif found:
                found[-1][1].append(line)
        return [(command, "\n".join(lines)) for command, lines in found]


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("body"))
            found.append(Block(str(page.relative_to(ROOT)), line, match["mark"] or "", match["body"]))
    return found


def matches(shown: str, printed: str) -> bool:
    lines = ["(?:.*\n)*" if line == _ANY else f"{re.escape(line)}\n" for line in _plain(shown).splitlines()]
    pattern = "".join(lines).replace(re.escape(_ANY), ".*")
    printed = _plain(printed)
    return re.fullmatch(pattern, f"{printed}\n" if printed else "") is not None


def _plain(text: str) -> str:
    """Text without what differs from one run to the next."""
    text = re.sub(r"\b[0-9a-f]{12}\b", "0", text)  # of an image
    text = re.sub(r"(?<![\w])\d+(?:[.:]\d+)*(?:m\d+)?(?=s|m|h|d|\b)", "0", text)
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def run(block: Block, directory: Path, environment: dict[str, str], patience: float = 60.0) -> None:
    """Run a block; an error says which command printed what instead."""
    if not (directory / "examples").exists():
        (directory / "examples").symlink_to(ROOT / "examples")
    for command, shown in block.steps:
        if command.startswith("cat "):
            (directory / command.split()[1]).write_text(f"{shown}\n")
            (directory / command.split()[1]).chmod(0o755)
        end = time.monotonic() + patience
        while not matches(shown, printed := _printed(command, directory, environment)):
            if not command.startswith(_READS) or time.monotonic() > end:
                raise AssertionError(f"{block}: `{command}` printed\n{printed}\nand the page shows\n{shown}")
            time.sleep(0.5)


def _printed(command: str, directory: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=120,
        cwd=directory,
        env={**os.environ, **environment},
    )
    return done.stdout
