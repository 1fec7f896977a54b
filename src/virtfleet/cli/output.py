"""What all commands share of talking to people and to scripts.

Results go to standard output, as text or with `-o json`; progress and errors go to standard error, so that a pipe gets
the result alone.
"""

from __future__ import annotations

import errno
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

TRACE = "VIRTFLEET_TRACE"
"""Variable of the environment: set, an unexpected error is shown with where it came from."""

_NEXT_STEPS = {
    errno.ENOSPC: "Make room on that disk, then repeat the command.",
    errno.EDQUOT: "Make room on that disk, then repeat the command.",
    errno.EROFS: "That disk is read-only: repair it, or choose another place.",
    errno.EIO: "That disk fails: check its health and the kernel's messages (dmesg).",
    errno.EACCES: "Run this as root, or choose a place that is yours.",
    errno.EPERM: "Run this as root, or choose a place that is yours.",
    errno.ENOENT: "Create it, or name another one.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
}
F = TypeVar("F", bound=Callable[..., Any])


def output_option(function: F) -> F:
    """The `-o text|json` that every command has."""
    return click.option(
        "-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Form of the result."
    )(function)


def result(output: str, data: Any, text: str) -> None:
    """Print a command's result in the form that was asked for."""
    click.echo(json.dumps(data, indent=2, default=str) if output == "json" else text)


def table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """Columns as kubectl prints them."""
    cells = [list(header), *[["" if c is None else str(c) for c in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["   ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines)


def yaml_documents(documents: Iterable[Any]) -> str:
    """Objects as YAML, each of them whole: no anchors, fields in the order in which they were made."""
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return str(yaml.dump_all(documents, Dumper=Dumper, sort_keys=False))


class Progress:
    """One line per step on standard error, with the seconds since the beginning."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.began = time.monotonic()

    def __call__(self, text: str) -> None:
        if not self.quiet:
            print(f"{time.monotonic() - self.began:5.1f} s  {text}", file=sys.stderr, flush=True)


class CommandError(click.ClickException):
    """Something the user can act on. `hint` is the next step."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}\n{hint}" if hint else message)


def next_step(error: OSError) -> str:
    """What to do about it, where there is something."""
    return _NEXT_STEPS.get(error.errno or 0, "")


def unexpected(error: Exception) -> CommandError:
    """An error that no command has words of its own for, in one line, with the next step."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError):
        what = str(error.strerror or error)
        where = f"{error.filename}: " if error.filename else ""
        return CommandError(where + what, next_step(error))
    if type(error) is RuntimeError:  # those are written for people
        return CommandError(str(error))
    said = " ".join(str(error).split())
    return CommandError(
        f"this should not have happened: {type(error).__name__}{': ' if said else ''}{said}",
        f"{TRACE}=1 before the command shows where. Please report it.",
    )
