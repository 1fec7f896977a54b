"""Keys and passwords for users of a running guest: what its agent is told, when, and what is said of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from virtfleet.api.traits import agent_command
from virtfleet.api.vmi import AccessCredential
from virtfleet.domain import paths
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.vm import credentials
from virtfleet.launcher.vm.credentials import Credentials, commands

AGENT = {
    "source": {"secret": {"secretName": "keys"}},
    "propagationMethod": {"qemuGuestAgent": {"users": ["me", "you"]}},
}
CLOUD = {"source": {"secret": {"secretName": "keys"}}, "propagationMethod": {"noCloud": {}}}
WORDS = {"source": {"secret": {"secretName": "words"}}, "propagationMethod": {"qemuGuestAgent": {}}}


def read(*given: dict[str, Any]) -> list[AccessCredential]:
    return [each for each in msgspec.convert(given, type=list[AccessCredential]) if agent_command(each)]


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "access_credential", lambda secret: str(tmp_path / secret))
    for name in ("keys", "words"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "..data").mkdir()
    (tmp_path / "keys/one").write_text("ssh-ed25519 AAAA a\n\n# mine\nssh-ed25519 BBBB b\n")
    (tmp_path / "words/me").write_text("s3cret")
    return tmp_path


def test_the_agent_is_told_keys_and_passwords_and_nothing_that_is_for_the_seed(secrets: Path) -> None:
    assert read({"sshPublicKey": CLOUD}) == []
    keys = ["ssh-ed25519 AAAA a", "ssh-ed25519 BBBB b"]
    told = commands(read({"sshPublicKey": AGENT}, {"userPassword": WORDS}))
    assert told == [
        ("me", "guest-ssh-add-authorized-keys", {"username": "me", "keys": keys, "reset": True}),
        ("you", "guest-ssh-add-authorized-keys", {"username": "you", "keys": keys, "reset": True}),
        ("me", "guest-set-user-password", {"username": "me", "password": "czNjcmV0", "crypted": False}),
    ]


def test_a_file_that_is_too_long_or_no_text_is_named(secrets: Path) -> None:
    (secrets / "keys/one").write_bytes(b"\xff")
    with pytest.raises(Failure, match="no text"):
        commands(read({"sshPublicKey": AGENT}))
    (secrets / "keys/one").write_bytes(b"x" * (65 << 10))
    with pytest.raises(Failure, match="keys: one is longer"):
        commands(read({"sshPublicKey": AGENT}))


async def test_it_is_said_when_the_agent_is_away_refuses_and_has_done_it(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "_LOOK", 0.001)
    there, refuses, asked, news, second = False, True, list[str](), asyncio.Event(), asyncio.Event()

    async def ask(execute: str, _: type, arguments: dict[str, Any]) -> dict[str, Any]:
        asked.append(f"{execute} {arguments['username']}")
        if arguments["username"] == "you":
            second.set()
        if refuses:
            raise Failure("no such \x1b[31muser" + "x" * 5000)
        return {}

    kept = Credentials(ask, lambda: there, news.set)
    kept.wanted = read({"userPassword": WORDS})
    task = asyncio.create_task(kept.keep())
    try:
        await news.wait()
        assert kept.report and (kept.report.synchronized, kept.report.message) == (False, "Guest agent is offline")
        news.clear()
        there = True
        await news.wait()
        assert kept.report.message.startswith("Error encountered writing password for user [me]: no such [31muser")
        assert len(kept.report.message) <= 256
        news.clear()
        refuses = False
        await news.wait()
        assert kept.report.synchronized
        before = len(asked)
        (secrets / "words/you").write_text("another")
        await second.wait()
        assert len(asked) == before + 2, "only a change is told again"
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
