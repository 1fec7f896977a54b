"""How a node proves that a hypervisor works there: steps that the launcher image takes, in this order.

That libvirt's daemon or driver is installed comes first, for every hypervisor alike. The first step that fails is the
reason why the node does not have the hypervisor. `virtfleet.launcher.node.trial` takes the steps.
"""

from __future__ import annotations

import msgspec


class Device(msgspec.Struct, frozen=True):
    """A device node that opens for reading and writing; the name is that below /dev."""

    name: str


class Program(msgspec.Struct, frozen=True):
    """A program that is installed."""

    name: str


class TinyGuest(msgspec.Struct, frozen=True, kw_only=True):
    """A guest that comes to its end by itself, and in time, only where the hypervisor runs guests as it should."""

    command: tuple[str, ...]
    """With `{name}` for the path of a file."""
    files: dict[str, bytes]
    does: str
    """What the guest does, for people who read that it did not end."""
    status: int
    """How the command ends where the guest came to its end."""
    seconds: float


Step = Device | Program | TinyGuest


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What libvirt's driver finds out about programs, which takes long, and keeps in files of its own.

    The node's launcher image finds it out once; a launcher with the very same programs is given the files.
    """

    programs: tuple[str, ...]
    """Patterns below /usr of programs that may differ from one build to the next."""
    directory: str
    """Of the files, below libvirt's private directory."""
