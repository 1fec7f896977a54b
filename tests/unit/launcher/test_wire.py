"""Messages between handlers and launchers of different versions."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.protocol import messages, wire
from virtfleet.protocol.messages import DomainState, Lease, Message, NodeFacts, Prepare, Request, Sync, answer_to

REQUESTS = (*Request.__subclasses__(), Prepare)


def stream(*data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    for chunk in data:
        reader.feed_data(chunk)
    reader.feed_eof()
    return reader


async def test_frames_arrive_as_they_were_sent_however_they_are_cut() -> None:
    sent = [wire.Request(n, "Sync", wire.body(Sync(vmi=b"x" * n))) for n in range(1, 40)]
    data = b"".join(wire.encode(request, wire.REQUEST) for request in sent)
    reader = stream(*(data[i : i + 7] for i in range(0, len(data), 7)))
    for request in sent:
        received = await wire.receive(reader, wire.Request, wire.REQUEST)
        assert received is not None
        assert (received.id, wire.decode(received.body, Sync)) == (request.id, wire.decode(request.body, Sync))
    assert await wire.receive(reader, wire.Request, wire.REQUEST) is None


async def test_a_broken_off_frame_is_the_end() -> None:
    sent = wire.encode(DomainState(name="x"), wire.ANSWER)
    assert await wire.receive(stream(sent[:-1]), DomainState, wire.ANSWER) is None


async def test_something_else_on_the_socket_is_refused_without_reading_it_all() -> None:
    with pytest.raises(wire.WireError, match="the most that is taken"):
        await wire.receive(stream(b"GET / HTTP/1.1\r\n\r\n"), DomainState, wire.ANSWER)


@given(st.binary(max_size=64))
def test_rubbish_in_a_frame_is_an_error_of_the_protocol(data: bytes) -> None:
    with contextlib.suppress(wire.WireError):
        assert isinstance(wire.decode(data, Sync), Sync)


class OldLease(Message, frozen=True):
    """A lease as an earlier version knew it."""

    device: str = ""
    address: str = ""


class NewLease(OldLease, frozen=True):
    """A lease as a later version may know it."""

    colour: str = "green"


def test_a_message_of_a_later_version_is_understood_by_an_earlier_one() -> None:
    lease = NewLease(device="k6t-eth0", address="10.0.2.2/24", colour="blue")
    assert wire.decode(wire.body(lease), Lease) == Lease(device="k6t-eth0", address="10.0.2.2/24")


def test_a_message_of_an_earlier_version_is_understood_by_a_later_one() -> None:
    old = wire.body(OldLease(device="k6t-eth0"))
    assert wire.decode(old, NewLease) == NewLease(device="k6t-eth0", colour="green")


def test_every_field_of_every_message_may_be_missing() -> None:
    kinds = [kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, Message)]
    assert len(kinds) > len(REQUESTS)
    for kind in kinds:
        assert wire.decode(b"\x80", kind) == kind()


def test_every_request_has_an_answer() -> None:
    for request in REQUESTS:
        assert issubclass(answer_to(request), Message)


def test_facts_of_the_node_survive_the_way() -> None:
    node = NodeFacts(taps={"default": "tap0"}, leases=[Lease(routes=[("0.0.0.0/0", "10.0.2.1")], options={240: "x"})])
    assert wire.decode(wire.body(Sync(vmi=b"{}", node=node)), Sync).node == node


def test_a_message_that_is_too_long_is_refused_by_the_sender() -> None:
    with pytest.raises(wire.WireError, match="too long"):
        wire.encode(bytes(wire.ANSWER + 1), wire.ANSWER)
