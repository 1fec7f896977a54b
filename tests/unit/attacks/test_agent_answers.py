"""Whatever a guest's agent says, what is passed on of it is bounded, typed and printable."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.launcher.failure import Failure
from virtfleet.launcher.vm import agent
from virtfleet.protocol import wire

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
KINDS = [str, int, dict, dict[str, str], agent._About, agent._Names, list[agent._User]]
KINDS += [list[agent._Filesystem], list[agent._Interface], agent.Process, agent.Ended]


def told(value: object) -> str:
    return msgspec.json.encode({"return": value}).decode()


@given(st.text() | JSON.map(lambda value: msgspec.json.encode(value).decode()), st.sampled_from(KINDS))
def test_an_answer_is_of_its_kind_or_an_error(answer: str, kind: Any) -> None:
    for text in (answer, f'{{"return": {answer}}}'):
        try:
            agent.read("guest-x", text, kind)
        except Failure as error:
            assert "guest-x" in str(error) and str(error).isprintable()


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "null",
        "[" * 100_000,
        '{"return": ' * 2_000,
        told({"pid": 2**80}),
        told({"pid": -1}),
        told({"pid": "1"}),
        '{"return": {"pid": 1e400}}',
        '{"return": {"pid": ' + "9" * 5_000 + "}}",
    ],
    ids=lambda answer: answer[:24],
)
def test_nonsense_is_an_error(answer: str) -> None:
    with pytest.raises(Failure, match="guest-exec"):
        agent.read("guest-exec", answer, agent.Process)


def test_megabytes_are_not_read() -> None:
    with pytest.raises(Failure, match="at most 262144 are read"):
        agent.read("guest-info", told("a" * agent.LONGEST), str)


async def test_what_is_passed_on_is_bounded() -> None:
    long = "\x1b[31m\u202e" + "é" * 10_000
    commands = [{"name": name, "enabled": True} for name in COMMANDS]
    answers = {
        "guest-info": {"version": long, "supported_commands": commands},
        "guest-get-osinfo": {f"{n}{long[:9]}": long[:400] for n in range(400)},
        "guest-get-host-name": {"host-name": long},
        "guest-get-timezone": {"zone": long, "offset": 3},
        "guest-network-get-interfaces": [
            {
                "name": long[:300],
                "hardware-address": "not:a:mac",
                "ip-addresses": [{"ip-address": "; rm -rf /", "prefix": 4}, {"ip-address": "::1%lo", "prefix": 64}],
            }
        ]
        * 400,
        "guest-get-users": [{"user": "root", "login-time": 1.5}] * 4_000,
        "guest-get-fsinfo": [{"name": "vda", "mountpoint": "/", "type": "ext4", "disk": [{"serial": "s"}] * 40}] * 300,
    }

    async def ask(execute: str, kind: Any) -> Any:
        return agent.read(execute, told(answers[execute]), kind)

    found = await agent.info(ask)
    assert len(wire.encode(wire.Answer(1, wire.body(found)), wire.ANSWER)) < 1 << 20
    assert max(map(len, (found.interfaces, found.users, found.filesystems, found.os, found.commands))) <= 256
    assert all(len(text) <= 256 and text.isprintable() for text in (found.hostname, found.timezone, *found.os.values()))
    assert found.interfaces[0].mac == "" and found.interfaces[0].addresses == ["::1/64"]


COMMANDS = (
    *("guest-get-osinfo", "guest-get-host-name", "guest-get-timezone", "guest-network-get-interfaces"),
    *("guest-get-users", "guest-get-fsinfo"),
)


async def test_an_agent_is_asked_only_what_it_knows() -> None:
    asked = []

    async def ask(execute: str, kind: Any) -> Any:
        asked.append(execute)
        return agent.read(execute, told({"version": "2.5"}), kind)

    assert (await agent.info(ask)).agent_version == "2.5"
    assert asked == ["guest-info"]
