"""What all commands share of talking to people and to scripts.

Results go to standard output, as text or with `-o json`; progress and errors go to standard error, so that a pipe gets
the result alone.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import IO, Any, TypeVar

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
# What the API server's refusals leave unsaid, by code.
_ASKED = {
    401: "The cluster does not know who you are; look at the kubeconfig.",
    403: "Ask whoever runs the cluster for the role kubevirt.io:edit in that namespace.",
    404: "`kubectl get vm,vmi -A` lists what there is.",
    503: "`kubectl get kubevirt -A` tells whether the installation is ready.",
}
# The cluster advises everybody to use virtctl; whoever uses this command has the same here.
_OWN = re.compile(r"virtctl (start|stop|restart|pause|unpause|migrate|console|vnc|ssh|port-forward)\b(?: vmi?\b)?")
F = TypeVar("F", bound=Callable[..., Any])


def _output(*forms: str) -> Callable[[F], F]:
    return click.option("-o", "--output", type=click.Choice(forms), default="text", help="Form of the result.")


output_option = _output("text", "json")
"""The `-o text|json` that every command has."""
wide_option = _output("text", "wide", "json")
"""The same for commands with more to tell than fits a terminal."""


def result(output: str, data: Any, text: str) -> None:
    """Print a command's result in the form that was asked for, at once: some commands go on after it."""
    click.echo(json.dumps(data, indent=2, default=str) if output == "json" else text)
    sys.stdout.flush()


def colours() -> bool | None:
    """Whether to use colours: never where NO_COLOR is set or the terminal has none; None leaves it to the output,
    which has them only on a terminal."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


good = partial(click.style, fg="green")
bad = partial(click.style, fg="red", bold=True)
doubtful = partial(click.style, fg="yellow")


def pair(option: str, text: str, form: str = "K=V") -> tuple[str, str]:
    """The two parts of an option's value; only what is behind = may be empty."""
    separator = ":" if ":" in form else "="
    left, there, right = text.partition(separator)
    if not (left and there and (right or separator == "=")):
        raise CommandError(f"{option} {text!r} is not of the form {form}")
    return left, right


def table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """Columns as kubectl prints them."""
    cells = [list(header), *(["" if c is None else str(c) for c in row] for row in rows)]
    widths = [max(len(click.unstyle(cell)) for cell in column) for column in zip(*cells, strict=True)]
    return "\n".join(
        "   ".join(
            cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    )


def mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


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
        self._last: dict[str, str] = {}

    def news(self, text: str, about: str = "") -> None:
        """What is waited for, told when it is another thing than the last time."""
        if self._last.get(about) != text:
            self._last[about] = text
            self(text)

    def __call__(self, text: str) -> None:
        if not self.quiet:
            print(f"{time.monotonic() - self.began:5.1f} s  {text}", file=sys.stderr, flush=True)


class CommandError(click.ClickException):
    """Something the user can act on. `hint` is the next step."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}\n{hint}" if hint else message)

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"{bad('Error:')} {self.format_message()}", file=file or sys.stderr, color=colours())


_GOES_ON = "virtfleet.goes-on"


class Interrupted(CommandError):
    """^C: the command ends, and what it set going does not."""

    exit_code = 130  # what a shell says of a command that was ended by ^C

    def __init__(self, ctx: click.Context) -> None:
        goes_on = ctx.meta.get(_GOES_ON)
        super().__init__(f"interrupted: {goes_on}" if goes_on else "interrupted; nothing of it goes on")


def on_interrupt(text: str) -> None:
    """What ^C will not stop, and what to do then; said to whoever presses it from now on."""
    if (ctx := click.get_current_context(silent=True)) is not None:
        ctx.meta[_GOES_ON] = text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """What a word that is spelt wrong was probably meant to be; "" where nothing is near."""
    return "".join(f"did you mean {near!r}? " for near in get_close_matches(word, list(known), n=1))


class Group(click.Group):
    """Commands with commands of their own. One that is spelt wrong is answered with what was probably meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in (known := self.list_commands(ctx)):
            near = did_you_mean(args[0], known)
            ctx.fail(f"there is no command {args[0]!r}; {near}`{ctx.command_path} --help` lists them")
        return super().resolve_command(ctx, args)


def next_step(error: OSError) -> str:
    """What to do about it, where there is something."""
    return _NEXT_STEPS.get(error.errno or 0, "")


def refused(causes: Iterable[Any], what: str = "") -> CommandError:
    """What admission has against an object."""
    lines = [f"{'  ' if what else ''}{cause.field}: {cause.message}" for cause in causes]
    return CommandError("\n".join([f"{what} is refused:", *lines] if what else lines))


def explained(error: Exception) -> CommandError:
    """Any error in one line, with the next step. Those of VirtFleet's own classes are written for people."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, CommandError):
        return error
    if isinstance(error, OSError):
        # urllib's have a reason, and a timeout has no words at all
        what = str(error.strerror or getattr(error, "reason", None) or error) or "there was no answer in time"
        where = f"{error.filename}: " if error.filename else ""
        return CommandError(where + what, next_step(error))
    if type(error) is RuntimeError or type(error).__module__.startswith("virtfleet."):
        return CommandError(_OWN.sub(r"virtfleet \1", str(error)), _hint(error))
    said = " ".join(str(error).split())
    return CommandError(
        f"this should not have happened: {type(error).__name__}{': ' if said else ''}{said}",
        f"{TRACE}=1 before the command shows where. Please report it.",
    )


def _hint(error: Exception) -> str:
    from virtfleet.api.kinds import VMI
    from virtfleet.kube.credentials import ConfigError
    from virtfleet.kube.errors import ApiError

    if isinstance(error, ConfigError):
        return "Name the cluster with --kubeconfig, or with KUBECONFIG."
    if not isinstance(error, ApiError):
        return ""
    if error.code == 404 and "requested resource" in error.message:
        return "VirtFleet is not installed there; `virtfleet install` does it."
    stopped = error.code == 404 and VMI.singular in error.message
    name = (error.details or {}).get("name") or "NAME"
    again = f" A VM that is stopped has no VMI: virtfleet start {name}" if stopped else ""
    return _ASKED.get(error.code, "") + again
