"""What the guest's agent tells and does. It is the guest owner's program: it may say anything, or never answer.

So every command has a limit, an answer is read up to a size, and what is passed on is checked: so many entries, so many
printable letters each, numbers in their ranges. Each command is a turn of its own, so that others get theirs between.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_interface
from typing import Annotated, Any, TypeVar

import libvirt
import msgspec

from virtfleet.launcher.failure import Failure
from virtfleet.protocol.messages import GuestFilesystem, GuestInfo, GuestInterface, GuestUser

T = TypeVar("T")
Ask = Callable[..., Awaitable[Any]]

SECONDS = 5  # for the answer to a command, after as many in which the agent has to show that it is there
LONGEST = 256 << 10  # bytes of an answer
_ENTRIES, _LETTERS = 256, 256
OUTPUT = 64 << 10  # bytes of what a command in the guest printed
_MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", re.IGNORECASE)

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Code = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class _Said(msgspec.Struct, rename="kebab"):
    """Base of what an agent says; the names are its own."""


class _Command(msgspec.Struct):
    name: str = ""
    enabled: bool = False


class _About(msgspec.Struct):
    version: str = ""
    supported_commands: list[_Command] = []


class _Names(_Said):
    host_name: str = ""
    zone: str = ""


class _User(_Said):
    user: str = ""
    domain: str = ""
    login_time: Annotated[float, msgspec.Meta(ge=0, le=2**53)] = 0


class _Disk(_Said):
    serial: str = ""


class _Filesystem(_Said):
    name: str = ""
    mountpoint: str = ""
    type: str = ""
    used_bytes: Count = 0
    total_bytes: Count = 0
    disk: list[_Disk] = []


class _Address(_Said):
    ip_address: str = ""
    prefix: Count = 0


class _Interface(_Said):
    name: str = ""
    hardware_address: str = ""
    ip_addresses: list[_Address] = []


class Process(_Said):
    """A command that was started in the guest."""

    pid: Count = 0


class Ended(_Said):
    """How it has ended, if it has."""

    exited: bool = False
    exitcode: Code = 0
    signal: Code = 0
    out_data: bytes = b""
    err_data: bytes = b""


def command(
    domain: libvirt.virDomain,
    execute: str,
    kind: type[T],
    arguments: dict[str, Any] | None = None,
    *,
    seconds: int = SECONDS,
) -> T:
    """One command of the agent's own protocol."""
    import libvirt_qemu  # only guests with this agent need it

    request = {"execute": execute, **({"arguments": arguments} if arguments else {})}
    # Its first sign of life must not be waited for for ever either, which is libvirt's default.
    domain.agentSetResponseTimeout(SECONDS, 0)
    try:
        answer = libvirt_qemu.qemuAgentCommand(domain, msgspec.json.encode(request).decode(), max(1, seconds), 0)
    except (ValueError, SystemError):  # no UTF-8, in an answer or in what libvirt quotes of it; its binding fails then
        raise Failure(f"the guest's agent answers {execute} with what is no text") from None
    return read(execute, answer, kind)


def read(execute: str, answer: str, kind: type[T]) -> T:
    """The value in an answer."""
    if len(answer) > LONGEST:
        raise Failure(f"the guest's agent answers {execute} with {len(answer)} bytes; at most {LONGEST} are read")
    try:
        parts = msgspec.json.decode(answer, type=dict[str, msgspec.Raw])
        return msgspec.json.decode(parts["return"], type=kind)
    except (msgspec.MsgspecError, ValueError, KeyError, RecursionError) as error:
        raise Failure(f"the guest's agent answers {execute} with what is none: {clean(str(error))}") from None


def clean(text: str) -> str:
    """Text of a guest, for people and terminals of the cluster."""
    return "".join(letter for letter in text[:_LETTERS] if letter.isprintable())


async def info(ask: Ask) -> GuestInfo:
    """What the agent tells of the guest. What an older agent does not know is left empty."""
    about: _About = await ask("guest-info", _About)
    known = {c.name for c in about.supported_commands[: 4 * _ENTRIES] if c.enabled}

    async def answered(execute: str, kind: Any) -> Any:
        return await ask(execute, kind) if execute in known else kind()

    system = await answered("guest-get-osinfo", dict[str, str])
    host, zone = await answered("guest-get-host-name", _Names), await answered("guest-get-timezone", _Names)
    links: list[_Interface] = await answered("guest-network-get-interfaces", list[_Interface])
    users: list[_User] = await answered("guest-get-users", list[_User])
    mounted: list[_Filesystem] = await answered("guest-get-fsinfo", list[_Filesystem])
    return GuestInfo(
        agent_version=clean(about.version),
        commands=sorted(map(clean, known))[:_ENTRIES],
        os={clean(key): clean(value) for key, value in list(system.items())[:_ENTRIES]},
        hostname=clean(host.host_name),
        timezone=clean(zone.zone),
        interfaces=[
            GuestInterface(
                name=clean(i.name),
                mac=i.hardware_address if _MAC.fullmatch(i.hardware_address) else "",
                addresses=list(_addresses(i.ip_addresses[:_ENTRIES])),
            )
            for i in links[:_ENTRIES]
        ],
        users=[
            GuestUser(name=clean(u.user), domain=clean(u.domain), login_time=u.login_time) for u in users[:_ENTRIES]
        ],
        filesystems=[
            GuestFilesystem(
                name=clean(f.name),
                mountpoint=clean(f.mountpoint),
                type=clean(f.type),
                used_bytes=f.used_bytes,
                total_bytes=f.total_bytes,
                disks=[clean(disk.serial) for disk in f.disk[:_ENTRIES] if disk.serial],
            )
            for f in mounted[:_ENTRIES]
        ],
    )


def _addresses(entries: Iterable[_Address]) -> Iterable[str]:
    for address in entries:
        try:
            yield str(ip_interface(f"{address.ip_address.partition('%')[0]}/{address.prefix}"))
        except ValueError:
            continue
