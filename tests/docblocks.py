"""Console blocks of the documentation, run as they stand there, and what they print compared.

A comment in the page's source, above each block, says who runs it:

    <!-- run -->                `unit/test_docs_blocks.py`, in a directory with examples/, without a cluster
    <!-- run: fleet -->         `vm/test_docs.py`, on the cluster that `make up` starts
    <!-- run: FILE -->          that test, which has the files, VMs or states that it needs, by `shown` or `marked`
    <!-- not run: why -->       nobody; these are counted

Compared is what a terminal shows, results and progress alike. Numbers (times, ages, addresses, sizes, versions, parts
of UIDs) may be others, and `…` stands for anything. A file that a block shows with `cat` is made before. What only
reads is asked again until it says what the page says. What goes on until ^C goes on until the block ends; what a block
types behind `guest# ` is typed into its console.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from terminal import PATIENCE, Terminal

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples/README.md"]
_BLOCK = re.compile(r"(?:<!-- (?P<mark>(?:not )?run[^>]*?) -->\n)?```console\n(?P<body>.*?)```", re.DOTALL)
_READS = re.compile(r"kubectl (-n \S+ )?(get|logs|events|exec) |virtfleet (doctor|node ls|pools)|curl ")
_GOES_ON = re.compile(r"virtfleet (vnc|port-forward|launch) ")
_ANY, _PROMPT = "…", "guest# "


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
            if found and found[-1][0].endswith("\\"):
                found[-1] = (f"{found[-1][0]}\n{line}", [])
            elif re.match(r"[$#] ", line) and not (found and found[-1][0].startswith("cat ") and line.startswith("# ")):
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


def marked(file: str) -> list[Block]:
    """The blocks that a test runs, by its `__file__`."""
    mark = f"run: {Path(file).relative_to(ROOT)}"
    return [block for block in blocks() if block.mark == mark]


def shown(file: str, begins: str) -> Block:
    """The one of them whose first command begins so."""
    (block,) = (block for block in marked(file) if block.body[2:].startswith(begins))
    return block


def matches(shown: str, printed: str) -> bool:
    lines = ["(?:.*\n)*" if line == _ANY else f"{re.escape(line)}\n" for line in _plain(shown).splitlines()]
    pattern = "".join(lines).replace(re.escape(_ANY), ".*")
    printed = _plain(printed)
    return re.fullmatch(pattern, f"{printed}\n" if printed else "") is not None


def _plain(text: str) -> str:
    """Text without what differs from one run to the next."""
    text = re.sub(r"\b[0-9a-f]{8}(?:[0-9a-f]{4})?\b", "0", text)  # of a UID or an image
    text = re.sub(r"(?<![\w])\d+(?:[.:]\d+)*(?:m\d+)?(?=s|m|h|d|\b)", "0", text)
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def run(block: Block, directory: Path, environment: Mapping[str, str], given: Mapping[str, str] | None = None) -> None:
    """Run a whole block."""
    with following(block, directory, environment, given) as step:
        for _ in block.steps:
            step()


@contextmanager
def following(
    block: Block,
    directory: Path,
    environment: Mapping[str, str],
    given: Mapping[str, str] | None = None,
    longest: float = 120.0,
) -> Iterator[Callable[[], None]]:
    """A function that runs the block's next command; none may be left in the end. An error says which printed what.

    `given` has what is called otherwise here than in the page: nodes, Pods, namespaces. A command may take `longest`.
    """
    if not (directory / "examples").exists():
        (directory / "examples").symlink_to(ROOT / "examples")
    own, opened = {**os.environ, **environment}, list[tuple[Terminal, Callable[[], None]]]()

    def here(text: str) -> str:
        return re.sub("|".join(map(re.escape, given)), lambda found: given[found[0]], text) if given else text

    def export(command: str) -> None:
        """Variables for the commands that follow; those of the test stay."""
        script = f"{command} && env -0"
        told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=directory, env=own)
        own.update(pair.split("=", 1) for pair in told.stdout.split("\0") if pair)
        own.update(environment)

    def converse(command: str, text: str) -> None:
        terminal = Terminal(["bash", "-c", f"cd {directory} && exec {command}"], own)
        typed = _PROMPT in text
        opened.append((terminal, partial(terminal.type, "\x1d") if typed else terminal.interrupt))
        before, prompt, answers = text.partition(_PROMPT)
        for line in filter(None, before.splitlines()):
            terminal.says(re.sub(r"\d+", r"\\d+", re.escape(line)).replace(_ANY, ".*"))
        for line in filter(None, f"{prompt}{answers}".splitlines()):
            if line.startswith(_PROMPT):
                terminal.says(_PROMPT, nudge="\r")
                terminal.type(f"{line.removeprefix(_PROMPT)}\r")
            else:
                terminal.says(re.escape(line))

    def compare(command: str, text: str) -> None:
        end = time.monotonic() + PATIENCE
        while not matches(text, printed := _printed(command, directory, own, longest)):
            if not _READS.match(command) or time.monotonic() > end:
                raise AssertionError(f"{block}: `{command}` printed\n{printed}\nand the page shows\n{text}")
            time.sleep(0.5)

    steps = [(here(command), here(text)) for command, text in block.steps]

    def step() -> None:
        command, text = steps.pop(0)
        if command.startswith("cat "):
            (directory / command.split()[1]).write_text(f"{text}\n")
            (directory / command.split()[1]).chmod(0o755)
        if command.startswith("export "):
            export(command)
        elif _GOES_ON.match(command) or _PROMPT in text:
            converse(command, text)
        else:
            compare(command, text)

    try:
        yield step
        assert steps == [], f"{block}: nobody ran {steps}"
        for terminal, leave in opened:
            leave()
            assert terminal.ended() == 0, terminal.shown
    finally:
        for terminal, _ in opened:
            terminal.close()


def _printed(command: str, directory: Path, environment: Mapping[str, str], longest: float) -> str:
    done = subprocess.run(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=longest,
        cwd=directory,
        env=environment,
    )
    return done.stdout
