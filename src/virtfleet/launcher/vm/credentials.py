"""SSH keys and passwords for users of a guest that runs, handed to its agent whenever their Secrets change.

The Pod has the Secrets as files, which the kubelet replaces when they change. Keys are put in place of those that a
user had, as KubeVirt does it. Whether that went well is part of the domain's state.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from virtfleet.api.traits import SET_KEYS, SET_PASSWORD
from virtfleet.api.vmi import AccessCredential
from virtfleet.domain import paths
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.vm import agent
from virtfleet.protocol import messages as m

OFFLINE = m.Credentials(message="Guest agent is offline")
_LOOK = 5.0  # seconds between looks at the files
_AGAIN = 300.0  # after which the guest is told again what it knows
_LARGEST = 64 << 10  # bytes of a file


def commands(credentials: Iterable[AccessCredential]) -> list[tuple[str, str, dict[str, object]]]:
    """What to say to the agent: a user and a command with its arguments each."""
    keys: dict[str, list[str]] = defaultdict(list)
    passwords: dict[str, bytes] = {}
    for credential in credentials:
        if (ssh := credential.ssh_public_key) and ssh.propagation_method and ssh.propagation_method.qemu_guest_agent:
            lines = [line.strip() for text in _files(ssh.source).values() for line in _text(text).splitlines()]
            for user in ssh.propagation_method.qemu_guest_agent.users:
                keys[user] += [line for line in lines if line and not line.startswith("#")]
        elif credential.user_password:
            passwords |= _files(credential.user_password.source)
    commands: list[tuple[str, str, dict[str, object]]] = []
    for user, own in keys.items():
        commands.append((user, SET_KEYS, {"username": user, "keys": list(dict.fromkeys(own)), "reset": True}))
    for user, word in passwords.items():
        password = base64.b64encode(word).decode()
        commands.append((user, SET_PASSWORD, {"username": user, "password": password, "crypted": False}))
    return commands


def _files(source: object) -> dict[str, bytes]:
    secret = getattr(source, "secret", None)
    if secret is None:
        return {}
    directory, files = Path(paths.access_credential(secret.secret_name)), {}
    if not directory.is_dir():
        raise Failure(f"Secret {secret.secret_name} is not mounted in the VM's pod")
    for path in sorted(directory.glob("[!.]*")):
        with path.open("rb") as file:
            files[path.name] = file.read(_LARGEST + 1)
        if len(files[path.name]) > _LARGEST:
            raise Failure(f"Secret {secret.secret_name}: {path.name} is longer than {_LARGEST} bytes")
    return files


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Failure("an SSH key is no text") from None


class Credentials:
    """`connected` says whether the agent is there, `say` is called when there is news."""

    def __init__(self, ask: agent.Ask, connected: Callable[[], bool], say: Callable[[], None]) -> None:
        self.wanted: list[AccessCredential] = []
        self.report: m.Credentials | None = None
        self._ask = ask
        self._connected = connected
        self._say = say
        self._told: object = None
        self._again = 0.0

    async def keep(self) -> None:
        """Keep the guest's users in line with the Secrets."""
        while True:
            report = await self._turn()
            if report != self.report:
                self.report = report
                self._say()
            await asyncio.sleep(_LOOK)

    async def _turn(self) -> m.Credentials | None:
        if not self._connected():
            self._told = None
            return OFFLINE
        try:
            wanted = await asyncio.to_thread(commands, self.wanted)
        except (Failure, OSError) as error:
            return m.Credentials(message=agent.clean(str(error)))
        if wanted == self._told and time.monotonic() < self._again:
            return self.report
        failures = []
        for user, execute, arguments in wanted:
            try:
                await self._ask(execute, dict, arguments)
            except Failure as error:
                what = "ssh pub key access credentials" if "ssh" in execute else "password"
                failures.append(agent.clean(f"Error encountered writing {what} for user [{user}]: {error}"))
        if failures:
            self._told = None
            return m.Credentials(message=failures[0])
        self._told, self._again = wanted, time.monotonic() + _AGAIN
        return m.Credentials(synchronized=True)
