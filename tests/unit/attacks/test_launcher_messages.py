"""What a launcher that a guest has taken over can put into its messages: little, and nothing that costs to read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from virtfleet.handler.pods.process import belongs
from virtfleet.handler.vms.instances import decode_instance
from virtfleet.launcher.server import fit
from virtfleet.protocol import messages as m
from virtfleet.protocol import wire
from virtfleet.protocol.client import Allowance

REQUESTS = (*m.Request.__subclasses__(), m.Prepare)
SENT = {m.Hello, m.Update, *(m.answer_to(request) for request in REQUESTS)} - {m.Picture}


def unbounded(shape: inspect.Type, where: str) -> Iterator[str]:
    match shape:
        case inspect.StructType(fields=fields):
            for field in fields:
                yield from unbounded(field.type, f"{where}.{field.name}")
        case inspect.UnionType(types=types):
            for each in types:
                yield from unbounded(each, where)
        case inspect.ListType() | inspect.DictType() | inspect.StrType() | inspect.BytesType():
            if shape.max_length is None:
                yield where
            for part in ("item_type", "key_type", "value_type"):
                if inner := getattr(shape, part, None):
                    yield from unbounded(inner, f"{where}[]")


@pytest.mark.parametrize("kind", [*sorted(SENT, key=lambda kind: kind.__name__), wire.Answer])
def test_whatever_a_launcher_sends_has_bounds(kind: type) -> None:
    body = {"Answer.body"}  # read with a type of its own, a picture's but for the length of its frame
    assert set(unbounded(inspect.type_info(kind), kind.__name__)) - body == set()


def frame(field: bytes, count: int, item: bytes) -> bytes:
    """An answer with a map in which one field is a list of many equal items."""
    return (
        b"\x82\xa2id\x01\xa4body\x81"
        + bytes([0xA0 | len(field)])
        + field
        + b"\xdd"
        + count.to_bytes(4, "big")
        + item * count
    )


def test_a_frame_full_of_empty_things_makes_none_of_them() -> None:
    data = frame(b"interfaces", wire.ANSWER - 64, b"\x80")
    answer = wire.decode(data, wire.Answer)
    with pytest.raises(wire.WireError, match="length <= 512"):
        wire.decode(answer.body, m.GuestInfo)


async def test_a_long_frame_is_refused_by_its_length_alone() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data((16 << 20).to_bytes(4, "big"))  # and nothing after it
    with pytest.raises(wire.WireError, match=r"16777216 bytes, where 524288"):
        await wire.receive(reader, wire.Answer, wire.ANSWER)


@pytest.mark.parametrize(
    "data", [b"\x91" * 100_000, b"\x81\xa5error\xa4\xff\xff\xff\xff", b"\x81\xa2id\xcb" + b"\xff" * 8]
)
@pytest.mark.parametrize("kind", [wire.Answer, m.GuestInfo, m.Update, m.DomainState])
def test_depth_and_bad_text_are_errors_of_the_protocol(data: bytes, kind: type) -> None:
    for content in (data, b"\x82\xa2id\x01\xa4body" + data):
        with contextlib.suppress(wire.WireError):
            wire.decode(content, kind)
    with pytest.raises(wire.WireError):
        wire.decode_json(b'{"disks":' + b"[" * 100_000, m.DomainState)


@given(st.binary(max_size=200), st.sampled_from(sorted(SENT, key=lambda kind: kind.__name__)))
def test_rubbish_is_an_error_of_the_protocol_whatever_it_should_be(data: bytes, kind: type) -> None:
    for read in (wire.decode, wire.decode_json):
        with contextlib.suppress(wire.WireError):
            assert isinstance(read(data, kind), kind)


ANYTHING = st.text(max_size=3).flatmap(lambda text: st.integers(0, 3000).map(lambda times: text * times))
HUGE = st.builds(
    m.GuestInfo,
    agent_version=ANYTHING,
    hostname=ANYTHING,
    os=st.dictionaries(ANYTHING, ANYTHING, max_size=3),
    interfaces=st.integers(0, 2000).flatmap(
        lambda count: st.builds(m.GuestInterface, name=ANYTHING, addresses=st.lists(ANYTHING, max_size=3)).map(
            lambda one: [one] * count
        )
    ),
)


@settings(max_examples=25)
@given(HUGE)
def test_what_a_guest_has_too_much_of_is_cut_and_then_taken(guest: m.GuestInfo) -> None:
    sent = fit(guest)
    assert wire.decode(wire.body(sent), m.GuestInfo) == sent
    assert sent.interfaces == [fit(one) for one in guest.interfaces[:512]]


def test_what_is_within_its_bounds_is_sent_as_it_is() -> None:
    state = m.DomainState(status=m.Status.RUNNING, disks={"root": "vda"})
    for message in (
        m.Update(state=state, event=m.Event(kind="Reboot")),
        m.Update(),
        m.Stats(values={"a": 1, "b": "x"}),
    ):
        assert fit(message) == message
    cut = fit(m.Stats(values={"path": "x" * 5000})).values["path"]
    assert len(str(cut)) == 1024
    assert str(cut).endswith("…")


def test_who_floods_is_heard_at_a_trickle_and_then_broken_off_with(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    allowance = Allowance()
    assert not any(allowance.spend(20) for _ in range(512))
    for _ in range(80):
        pause = allowance.spend(20)
        assert pause == pytest.approx(1 / 16)
        now += pause
    with pytest.raises(wire.WireError, match="more than a handler listens to"):
        allowance.spend(20)
    now += 60
    assert allowance.spend(wire.ANSWER) == 0


def test_an_event_cannot_pass_for_something_else() -> None:
    for kind in ("Started.", "a b", "Reboot\n", "x" * 65):
        with pytest.raises(wire.WireError):
            wire.decode(msgspec.msgpack.encode({"kind": kind}), m.Event)


UID = "0a1b2c3d-1111-4222-8333-444455556666"
SLICE = UID.replace("-", "_")


@pytest.mark.parametrize(
    "groups",
    [
        f"5:devices:/kubepods/burstable/pod{UID}/0123\n0::/\n",
        f"5:devices:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-01.scope",
        f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/crio-0123.scope",
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort-pod{SLICE}.slice/cri-01.scope/inner",
        f"0::/../../kubepods-burstable-pod{SLICE}.slice/cri-containerd-01.scope",
        f"3:cpu,cpuacct:/virtfleet/c1/n1/{UID}/0123\n0::/\n",
    ],
)
def test_the_kubelets_and_our_own_groups_of_a_pod_are_known(groups: str) -> None:
    assert belongs(groups, UID)
    assert not belongs(groups, UID.replace("0a", "0b"))
    assert not belongs(groups, UID[:-1])
    assert not belongs(groups, "")


@pytest.mark.parametrize(
    "groups", ["", "0::/\n", "0::/system.slice/sshd.service\n", f"0::/x{UID}/y\n", f"0::/pod{UID}x\n"]
)
def test_other_groups_are_not_the_pods(groups: str) -> None:
    assert not belongs(groups, UID)


@pytest.mark.parametrize("forged", ["../../etc", "..", ".", "a/b", "", "x" * 64, "a\0b"])
def test_a_forged_uid_of_a_pod_names_no_file(forged: str) -> None:
    vmi: dict[str, Any] = {"metadata": {"name": "vm"}, "spec": {}, "status": {"activePods": {forged: "n1", UID: "n1"}}}
    assert decode_instance(msgspec.json.encode(vmi)).pods_on("n1") == [UID]
