"""What the node's own API answers: what can be asked of a VM, what stands in the way, and what guests tell. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from virtfleet.api.kinds import VMI
from virtfleet.handler.vms.status import guest_os
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj
from virtfleet.protocol.messages import (
    DomainState,
    Done,
    GuestFilesystem,
    GuestInfo,
    GuestUser,
    Pause,
    Request,
    Reset,
    SoftReboot,
    Status,
    Unfreeze,
    Unpause,
)

# What parameters of requests may say, as in KubeVirt.
TRUE = ("1", "t", "T", "true", "TRUE", "True")
FALSE = ("0", "f", "F", "false", "FALSE", "False")


class Obstacle(NamedTuple):
    """What can stand in the way, in the words that KubeVirt has for it."""

    words: str
    stands: Callable[[DomainState], bool]


NOT_RUNNING = Obstacle("VMI is not running", lambda state: state.status is Status.ABSENT or state.status.ended)
PAUSED = Obstacle("VMI is paused", lambda state: state.status is Status.PAUSED)
PAUSED_ALREADY = PAUSED._replace(words="VMI is already paused")
NOT_PAUSED = Obstacle("VMI is not paused", lambda state: state.status is not Status.PAUSED)
NO_AGENT = Obstacle("VMI does not have guest agent connected", lambda state: not state.agent)


def check(vmi: str, state: DomainState | None, obstacles: Iterable[Obstacle] = ()) -> None:
    """Raise the first obstacle. Nothing can be asked of a VM that does not run."""
    for obstacle in (NOT_RUNNING, *obstacles):
        if obstacle.stands(state or DomainState()):
            raise ApiError(
                "Conflict",
                f'Operation cannot be fulfilled on {VMI.singular}.{VMI.group} "{vmi}": {obstacle.words}',
                details={"name": vmi, "group": VMI.group, "kind": VMI.singular},
            )


@dataclass(frozen=True, slots=True)
class Command:
    """What is done on a PUT, and how the VMI's events tell of it."""

    request: Request[Done]
    obstacles: tuple[Obstacle, ...] = ()
    event: tuple[str, str] | None = None
    by_agent: str = ""
    """What it is called where the guest's agent carries it out."""


def check_agent(state: DomainState | None, command: str) -> None:
    """Raise what KubeVirt answers where a guest is to be frozen or thawed and has no agent: an internal error."""
    if NO_AGENT.stands(state or DomainState()):
        why = "QEMU guest agent is not connected; install and start qemu-guest-agent in the guest"
        raise ApiError("InternalError", f"Internal error occurred: command {command} failed: {why}")


COMMANDS = {
    "pause": Command(Pause(), (PAUSED_ALREADY,), ("Paused", "VirtualMachineInstance paused")),
    "unpause": Command(Unpause(), (NOT_PAUSED,), ("Unpaused", "VirtualMachineInstance unpaused")),
    "softreboot": Command(SoftReboot(), (PAUSED,), ("SoftRebooted", "VirtualMachineInstance soft rebooted")),
    "reset": Command(Reset(), (), ("Reset", "VirtualMachineInstance reset")),
    "unfreeze": Command(Unfreeze(), by_agent="Unfreeze"),
}


def guest_os_info(guest: GuestInfo) -> Obj:
    return {
        "guestAgentVersion": guest.agent_version,
        "supportedCommands": [{"name": name, "enabled": True} for name in guest.commands],
        "hostname": guest.hostname,
        "os": guest_os(guest),
        "timezone": guest.timezone,
        "userList": _users(guest.users),
        "fsInfo": {"disks": _filesystems(guest.filesystems)},
    }


GUEST_ANSWERS: dict[str, Callable[[GuestInfo], Obj]] = {
    "guestosinfo": guest_os_info,
    "userlist": lambda guest: {"metadata": {}, "items": _users(guest.users)},
    "filesystemlist": lambda guest: {"metadata": {}, "items": _filesystems(guest.filesystems)},
}


def _users(users: Sequence[GuestUser]) -> list[Obj]:
    return [{"userName": user.name, "domain": user.domain, "loginTime": user.login_time} for user in users]


def _filesystems(filesystems: Sequence[GuestFilesystem]) -> list[Obj]:
    return [
        {
            "diskName": filesystem.name,
            "mountPoint": filesystem.mountpoint,
            "fileSystemType": filesystem.type,
            "usedBytes": filesystem.used_bytes,
            "totalBytes": filesystem.total_bytes,
            "disk": [{"serial": serial, "busType": ""} for serial in filesystem.disks],
        }
        for filesystem in filesystems
    ]
