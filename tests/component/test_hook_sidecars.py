"""Hook sidecars: one that people write changes a VM, and one that does not do as it should changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree as ET

import grpc
import pytest

from virtfleet.api.disks import Volume
from virtfleet.api.view import read
from virtfleet.hypervisors import registry
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.vm import hookcalls
from virtfleet.launcher.vm.hookcalls import Call, SidecarError, answered, encode
from virtfleet.launcher.vm.hooks import Hooks

BOARD = Path(__file__).parents[1] / "sidecars/board.py"
VMI = {"metadata": {"name": "vm", "annotations": {"smbios.vm.kubevirt.io/baseBoardManufacturer": "Radical"}}}
SEED = read(Volume, {"name": "seed", "cloudInitNoCloud": {"userData": "x"}})
FILES = {
    "user-data": b"#cloud-config\n# by WHO\n",
    "meta-data": b'{"instance-id":"i"}',
    "network-config": b"version: 2",
}


def domain(*devices: str) -> ET.Element:
    inner = "".join(f"<disk type='file'><alias name='ua-{name}'/></disk>" for name in devices)
    return ET.fromstring(
        f"<domain><name>n_vm</name><uuid>u</uuid><sysinfo type='smbios'/><devices>{inner}</devices></domain>"
    )


def hooks(place: Path, count: int = 1) -> Hooks:
    return Hooks(count, registry.get("qemu-kvm"), str(place))


@pytest.fixture
def board(place: Path) -> Iterator[subprocess.Popen[str]]:
    (place / "hook-sidecar-0").mkdir()
    command = [sys.executable, str(BOARD), str(place / "hook-sidecar-0")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.slow
async def test_a_sidecar_changes_the_domain_and_cloud_init_and_hears_of_the_end(
    place: Path, board: subprocess.Popen[str]
) -> None:
    asked = hooks(place)
    changed = await asked.define(domain("root"), json.dumps(VMI).encode())
    assert changed.findtext("sysinfo/baseBoard/entry[@name='manufacturer']") == "Radical"
    assert asked.own == frozenset()
    files = await asked.seed(b"{}", SEED, FILES)
    assert files == FILES | {"user-data": b"#cloud-config\n# by the sidecar of seed\n"}
    await asked.say_goodbye()
    assert board.communicate(timeout=20)[0] == "board: goodbye\n"


async def test_without_sidecars_nobody_is_asked(place: Path) -> None:
    wanted = domain("root")
    assert await hooks(place, 0).define(wanted, b"{}") is wanted
    assert await hooks(place, 0).seed(b"{}", SEED, FILES) is FILES
    await hooks(place, 0).say_goodbye()


Answer = Callable[[bytes], bytes]


class Servers:
    """Sidecars of the test's own, which answer with whatever bytes they like."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self.place, self._stack, self.count = place, stack, 0

    def add(
        self, answer: Answer, *, info: bytes | None = None, priority: int = 0, name: str = "s", point: str = ""
    ) -> None:
        directory = self.place / f"hook-sidecar-{self.count}"
        directory.mkdir()
        self.count += 1
        wanted = encode({1: (point or "OnDefineDomain").encode()}) + b"\x10" + hookcalls._varint(priority % (1 << 64))
        told = encode({1: name.encode(), 3: wanted, 4: b"v1alpha1"}) if info is None else info
        server = grpc.server(futures.ThreadPoolExecutor(1))
        for service, method, function in (
            ("info.Info", "Info", lambda _: told),
            ("v1alpha1.Callbacks", "OnDefineDomain", answer),
        ):
            handler = grpc.unary_unary_rpc_method_handler(lambda asked, _, f=function: f(asked))
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(f"kubevirt.hooks.{service}", {method: handler}),)
            )
        server.add_insecure_port(f"unix://{directory}/any.sock")
        server.start()
        self._stack.callback(lambda: server.stop(None).wait())

    def ask(self, text: bytes = b"<d/>", point: str = "OnDefineDomain") -> bytes:
        call = Call(count=self.count, point=point, fields={1: text, 2: b"{}"}, passed_on=(1,))
        return answered(call, self.place)[1]


@pytest.fixture
def servers(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    monkeypatch.setattr(hookcalls, "_COMING", 1.0)
    with ExitStack() as stack:
        yield Servers(place, stack)


def adds(letter: bytes) -> Answer:
    return lambda asked: encode({1: _first(asked) + letter})


def _first(message: bytes) -> bytes:
    (value,) = hookcalls.decode(message)[1]
    assert isinstance(value, bytes)
    return value


def test_they_are_asked_by_priority_and_name_each_after_the_other(servers: Servers) -> None:
    servers.add(adds(b"1"), priority=-3, name="a")
    servers.add(adds(b"2"), priority=7, name="z")
    servers.add(adds(b"3"), priority=7, name="b")
    servers.add(adds(b"4"), point="PreCloudInitIso")
    assert servers.ask(b"") == b"321"
    assert servers.ask(b"x", "PreCloudInitIso") == b"x", "which v1alpha1 does not have"


def test_an_empty_answer_changes_nothing(servers: Servers) -> None:
    servers.add(lambda _: b"")
    assert servers.ask() == b"<d/>"


@pytest.mark.parametrize(
    ("answer", "info", "message"),
    [
        (lambda _: encode({1: b"x" * (2 << 20)}), None, "sidecar 0: OnDefineDomain: .* larger than max"),
        (lambda _: b"\xff" * 30, None, "something else than a message"),
        (lambda _: b"\x0a\xff\xff\xff\xff\x0f", None, "something else than a message"),
        (lambda _: b"\x0d1234", None, "something else than a message"),
        (lambda _: 1 / 0, None, "division by zero"),
        (lambda asked: asked, b"\x00\x00\x00", "something else than a message"),
        (lambda asked: asked, encode({4: b"v9"}), r"offers versions \['v9'\]"),
        (lambda asked: asked, encode({3: b"\xff", 4: b"v1alpha1"}), "something else than a message"),
    ],
)
def test_what_a_sidecar_should_not_answer_is_told(
    servers: Servers, answer: Answer, info: bytes | None, message: str
) -> None:
    servers.add(answer, info=info)
    with pytest.raises(SidecarError, match=message):
        servers.ask()


def test_a_sidecar_that_does_not_answer_has_its_time(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hookcalls, "_CALL", 0.5)
    over = futures.Future[bytes]()
    servers.add(lambda _: over.result(20))
    with pytest.raises(SidecarError, match="Deadline Exceeded"):
        servers.ask()
    over.set_result(b"")


def test_links_are_no_sockets(servers: Servers) -> None:
    servers.add(lambda asked: asked)
    linked = servers.place / "hook-sidecar-1"
    linked.mkdir()
    (linked / "a.sock").symlink_to(servers.place / "hook-sidecar-0/any.sock")
    (linked / "b.sock").write_text("")
    servers.count = 2
    with pytest.raises(SidecarError, match="sidecar 1 did not answer within 1 s: it listens on no socket"):
        servers.ask()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<domain><name>other</name><uuid>u</uuid></domain>", "changed the domain's name"),
        ("<domain><name>n_vm</name></domain>", "changed the domain's uuid"),
        ("<domain>", "is not XML"),
        (
            "<!DOCTYPE d [<!ENTITY a 'aaaaaaaaaa'>"
            + "".join(f"<!ENTITY {b} '{f'&{a};' * 10}'>" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
            + "]><domain><name>&i;</name></domain>",
            "is not XML",
        ),
    ],
)
async def test_a_domain_that_would_be_another_is_refused(servers: Servers, text: str, message: str) -> None:
    servers.add(lambda _: encode({1: text.encode()}))
    with pytest.raises(Failure, match=message):
        await hooks(servers.place).define(domain(), b"{}")


async def test_devices_that_a_sidecar_added_or_removed_are_known(servers: Servers) -> None:
    servers.add(lambda _: encode({1: ET.tostring(domain("root", "mine"))}))
    asked = hooks(servers.place)
    await asked.define(domain("root", "theirs"), b"{}")
    assert {name for _, name in asked.own} == {"mine", "theirs"}
