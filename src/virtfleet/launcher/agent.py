"""What the guest's agent tells and does. Every call waits for the guest, so each has a limit."""

from __future__ import annotations

import base64
import time
from typing import Any

import libvirt
import msgspec

from virtfleet.launcher.failure import Failure
from virtfleet.launcher.messages import Executed, GuestFilesystem, GuestInfo, GuestInterface, GuestUser

_SECONDS = 5
_KINDS = (
    libvirt.VIR_DOMAIN_GUEST_INFO_OS
    | libvirt.VIR_DOMAIN_GUEST_INFO_HOSTNAME
    | libvirt.VIR_DOMAIN_GUEST_INFO_TIMEZONE
    | libvirt.VIR_DOMAIN_GUEST_INFO_USERS
    | libvirt.VIR_DOMAIN_GUEST_INFO_FILESYSTEM
)
_POLL = 0.1


def command(
    domain: libvirt.virDomain, execute: str, arguments: dict[str, Any] | None = None, *, seconds: int = _SECONDS
) -> Any:
    """One command of the agent's own protocol."""
    import libvirt_qemu  # only guests with this agent need it

    request = {"execute": execute, **({"arguments": arguments} if arguments else {})}
    answer = libvirt_qemu.qemuAgentCommand(domain, msgspec.json.encode(request).decode(), seconds, 0)
    return msgspec.json.decode(answer)["return"]


def info(domain: libvirt.virDomain) -> GuestInfo:
    """What the agent tells of the guest. What an older agent does not know is left empty."""
    told = domain.guestInfo(_KINDS, 0)
    agent = command(domain, "guest-info")
    return GuestInfo(
        agent_version=agent["version"],
        commands=[entry["name"] for entry in agent["supported_commands"] if entry["enabled"]],
        os={key.removeprefix("os."): value for key, value in told.items() if key.startswith("os.")},
        hostname=told.get("hostname", ""),
        timezone=told.get("timezone.name", ""),
        interfaces=interfaces(domain),
        users=[
            GuestUser(
                name=told[f"user.{n}.name"],
                domain=told.get(f"user.{n}.domain", ""),
                login_time=told.get(f"user.{n}.login-time", 0) / 1000,
            )
            for n in range(told.get("user.count", 0))
        ],
        filesystems=[_filesystem(told, f"fs.{n}") for n in range(told.get("fs.count", 0))],
    )


def _filesystem(told: dict[str, Any], key: str) -> GuestFilesystem:
    return GuestFilesystem(
        name=told[f"{key}.name"],
        mountpoint=told[f"{key}.mountpoint"],
        type=told[f"{key}.fstype"],
        used_bytes=told.get(f"{key}.used-bytes", 0),
        total_bytes=told.get(f"{key}.total-bytes", 0),
        disks=[
            serial for n in range(told.get(f"{key}.disk.count", 0)) if (serial := told.get(f"{key}.disk.{n}.serial"))
        ],
    )


def interfaces(domain: libvirt.virDomain) -> list[GuestInterface]:
    found = domain.interfaceAddresses(libvirt.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT, 0)
    return [
        GuestInterface(
            name=name,
            mac=entry["hwaddr"] or "",
            addresses=[f"{address['addr']}/{address['prefix']}" for address in entry["addrs"] or ()],
        )
        for name, entry in found.items()
    ]


def freeze(domain: libvirt.virDomain) -> None:
    """Make the file systems quiet, unless they are already: the agent takes a second request for a mistake."""
    if command(domain, "guest-fsfreeze-status") != "frozen":
        domain.fsFreeze()


def execute(domain: libvirt.virDomain, words: list[str], seconds: int) -> Executed:
    """Run a command in the guest and wait for its end."""
    if not words:
        raise Failure("there is no command to run in the guest")
    arguments = {"path": words[0], "arg": words[1:], "capture-output": True}
    process = command(domain, "guest-exec", arguments)["pid"]
    deadline = time.monotonic() + seconds
    while not (status := command(domain, "guest-exec-status", {"pid": process}))["exited"]:
        if time.monotonic() > deadline:
            raise Failure(f"{words[0]} did not end in the guest within {seconds} s")
        time.sleep(_POLL)
    return Executed(
        exit_code=status.get("exitcode", 128 + status.get("signal", 0)),
        stdout=base64.b64decode(status.get("out-data", "")),
        stderr=base64.b64decode(status.get("err-data", "")),
    )
