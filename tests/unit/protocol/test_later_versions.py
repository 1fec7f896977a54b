"""What a handler or a launcher of a later version says besides is ignored by this one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from virtfleet.handler.migration import links
from virtfleet.protocol import messages as m
from virtfleet.protocol import wire
from virtfleet.protocol.channels import Channel, Packet

LATER: dict[str, Any] = {"later": {"of": ["any", 1, None]}}


def kinds(of: type[m.Message]) -> list[type[m.Message]]:
    return [kind for sub in of.__subclasses__() for kind in (sub, *kinds(sub))]


KINDS = sorted({kind for kind in kinds(m.Message) if kind is not m.Request}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_with_more_in_it_is_the_same(kind: type[m.Message]) -> None:
    said = msgspec.msgpack.encode({**msgspec.to_builtins(kind()), **LATER})
    assert wire.decode(said, kind) == kind()


def test_a_state_within_an_update_may_say_more() -> None:
    report = {**msgspec.to_builtins(m.MigrationReport(uid="u", asks="why")), **LATER}
    said = msgspec.msgpack.encode({"state": {"status": "Running", "migration": report, **LATER}})
    assert wire.decode(said, m.Update).state.migration == m.MigrationReport(uid="u", asks="why")


def test_handlers_and_channels_may_say_more() -> None:
    for message in (
        links.Word(complete=True),
        links.Hello(migration="m", purpose=links.Purpose.CONTROL),
        Packet(dial=Channel.MEMORY),
    ):
        said = msgspec.json.encode({**msgspec.to_builtins(message), **LATER})
        assert msgspec.json.decode(said, type=type(message)) == message
