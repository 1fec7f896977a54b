"""The node's own API over real TLS, websockets and launcher sockets: who may call, what is told, how sessions end."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import aiohttp
import pytest
from access_node import GATEWAY, LIFE, GuestSocket, Node, node
from aiohttp import WSCloseCode, WSMsgType
from kube_fixtures import eventually

from virtfleet.kube.authority import Authority, Profile
from virtfleet.protocol.messages import GuestFilesystem, GuestInfo, GuestUser, Status


@pytest.fixture
async def here() -> AsyncIterator[Node]:
    async with node() as made:
        yield made


# Who may call.


async def test_only_the_gateway_of_this_installation_may_call(here: Node, caplog: pytest.LogCaptureFixture) -> None:
    assert (await here.ask("PUT", "pause", client="other:virt-api"))[0] == 403
    code, status = await here.ask("PUT", "pause", client="kubevirt:virt-handler")
    assert (code, status["kind"], status["reason"]) == (403, "Status", "Forbidden")
    assert "kubevirt:virt-handler may not call" in status["message"]
    assert (await here.ask("PUT", "pause", client=None))[0] == 401
    assert caplog.text.count("is refused") == 3
    assert here.launcher.asked == []
    assert (await here.ask("PUT", "pause"))[0] == 202


async def test_the_right_name_from_a_wrong_authority_is_no_connection(here: Node) -> None:
    forged = Authority.create("installation", LIFE).issue(Profile(GATEWAY, LIFE, client=True))
    async with here.session(forged) as session:
        with pytest.raises((aiohttp.ClientError, OSError)):
            await session.put(here.url("pause"))
    assert here.launcher.asked == []


async def test_a_handler_that_does_not_serve_its_node_says_so(here: Node) -> None:
    here.unready = "another handler serves this node: virt-handler-xyz"
    code, status = await here.ask("PUT", "pause")
    assert (code, status["message"]) == (503, here.unready)
    with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
        async with here.attached():
            pass


# What can be asked.


async def test_commands_reach_the_launcher_and_show_as_events(here: Node) -> None:
    for command in ("pause", "unpause", "softreboot", "reset", "unfreeze"):
        assert await here.ask("PUT", command) == (202, b"")
        await eventually(lambda: here.vms[0].launcher.state == here.launcher.updates.latest.state)
    assert here.launcher.asked == ["Pause()", "Unpause()", "SoftReboot()", "Reset()", "Unfreeze()"]
    assert here.events == ["Paused", "Unpaused", "SoftRebooted", "Reset"]


async def test_what_stands_in_the_way_is_a_conflict_in_the_words_of_kubevirt(here: Node) -> None:
    async def refusal(command: str) -> str:
        code, status = await here.ask("PUT", command)
        assert (code, status["reason"]) == (409, "Conflict")
        return str(status["message"]).partition(": ")[2]

    async def becomes(status: Status, **more: object) -> None:
        here.launcher.becomes(status, **more)
        await eventually(lambda: here.vms[0].launcher.state == here.launcher.updates.latest.state)

    assert await refusal("unpause") == "VMI is not paused"
    await becomes(Status.PAUSED)
    assert await refusal("pause") == "VMI is already paused"
    assert await refusal("softreboot") == "VMI is paused"
    await becomes(Status.RUNNING, agent=False)
    assert (await here.ask("GET", "guestosinfo"))[0] == 409
    for command, body in (("freeze", b'{"unfreezeTimeout": "0s"}'), ("unfreeze", b"")):
        code, status = await here.ask("PUT", command, body)
        assert (code, status["reason"]) == (500, "InternalError")
        words = f"Internal error occurred: command {command.title()} failed: QEMU guest agent is not connected"
        assert status["message"].startswith(words)
    await becomes(Status.ABSENT)
    assert await refusal("reset") == "VMI is not running"
    assert here.launcher.asked == []


async def test_a_vmi_that_is_not_here_is_not_found(here: Node) -> None:
    code, status = await here.ask("PUT", "pause", vmi="another")
    assert (code, status["reason"]) == (404, "NotFound")
    assert "default/another" in status["message"]


async def test_freezing_needs_to_know_for_how_long(here: Node) -> None:
    for body in (b"", b"{}", b"[]", b'{"unfreezeTimeout": "soon"}', b'{"unfreezeTimeout": 5}'):
        assert (await here.ask("PUT", "freeze", body))[0] == 400
    assert (await here.ask("PUT", "freeze", b'{"unfreezeTimeout": "1m30s"}'))[0] == 202
    assert here.launcher.asked == ["Freeze(timeout_seconds=90)"]


async def test_what_the_launcher_refuses_is_passed_on_in_its_own_words(here: Node) -> None:
    here.launcher.refusal = "libvirt: internal error"
    code, status = await here.ask("PUT", "reset")
    assert (code, status["message"]) == (500, "libvirt: internal error")
    code, status = await here.ask("PUT", "freeze", b'{"unfreezeTimeout": "1s"}')
    assert (code, status["reason"]) == (400, "BadRequest")
    assert here.events == ["FreezeError"]


async def test_what_the_guest_tells_is_told_in_the_forms_of_the_api(here: Node) -> None:
    here.launcher.guest = GuestInfo(
        agent_version="7.2",
        commands=["guest-ping"],
        os={"pretty-name": "A guest", "kernel-release": "6.1"},
        hostname="vm",
        users=[GuestUser(name="root", login_time=1.5)],
        filesystems=[
            GuestFilesystem(name="vda1", mountpoint="/", type="ext4", used_bytes=1, total_bytes=2, disks=["s"])
        ],
    )
    users = [{"userName": "root", "domain": "", "loginTime": 1.5}]
    disk = {"diskName": "vda1", "mountPoint": "/", "fileSystemType": "ext4", "usedBytes": 1, "totalBytes": 2}
    disks = [{**disk, "disk": [{"serial": "s", "busType": ""}]}]
    assert await here.ask("GET", "guestosinfo") == (
        200,
        {
            "guestAgentVersion": "7.2",
            "supportedCommands": [{"name": "guest-ping", "enabled": True}],
            "hostname": "vm",
            "os": {"prettyName": "A guest", "kernelRelease": "6.1"},
            "timezone": "",
            "userList": users,
            "fsInfo": {"disks": disks},
        },
    )
    assert await here.ask("GET", "userlist") == (200, {"metadata": {}, "items": users})
    assert await here.ask("GET", "filesystemlist") == (200, {"metadata": {}, "items": disks})


async def test_a_screenshot_is_a_png(here: Node) -> None:
    assert await here.ask("GET", "vnc/screenshot?moveCursor=false") == (200, b"\x89PNG...")


# Consoles and screens.


async def test_what_is_typed_reaches_the_guest_and_its_answer_comes_back(here: Node) -> None:
    async with GuestSocket(here.console) as guest, here.attached() as console:
        await console.send_bytes(b"uname -a\n")
        assert await console.receive_bytes() == b"uname -a\n"
        await console.send_str("as text\n")
        assert await console.receive_bytes() == b"as text\n"
        await console.close()
        await eventually(lambda: guest.client is None)


async def test_a_second_console_takes_over_and_the_first_is_told(here: Node) -> None:
    async with GuestSocket(here.console) as guest, here.attached() as first:
        await first.send_bytes(b"first")
        assert await first.receive_bytes() == b"first"
        async with here.attached() as second:
            assert b"Another user has connected" in await first.receive_bytes()
            last = await first.receive()
            assert (last.type, last.data) == (WSMsgType.CLOSE, WSCloseCode.POLICY_VIOLATION)
            assert last.extra == "EOF: somebody else took over"
            await second.send_bytes(b"second")
            assert await second.receive_bytes() == b"second"
            assert guest.served == 2


async def test_of_many_that_come_at_once_one_has_the_console(here: Node) -> None:
    async def until_closed(console: aiohttp.ClientWebSocketResponse) -> int | None:
        async for _ in console:
            pass
        return console.close_code

    async with GuestSocket(here.console), here.session(here.credential()) as session:
        consoles = await asyncio.gather(*(session.ws_connect(here.url("console")) for _ in range(10)))
        reading = {asyncio.create_task(until_closed(console)): console for console in consoles}
        await eventually(lambda: sum(task.done() for task in reading) == 9)
        (winner,) = (task for task in reading if not task.done())
        assert {task.result() for task in reading if task is not winner} == {WSCloseCode.POLICY_VIOLATION}
        winner.cancel()
        await asyncio.gather(winner, return_exceptions=True)
        await reading[winner].send_bytes(b"mine")
        assert await reading[winner].receive_bytes() == b"mine"


async def test_a_screen_that_is_in_use_is_kept_from_those_who_would_preserve_it(here: Node) -> None:
    async with GuestSocket(here.vnc), here.attached("vnc?preserveSession=true") as first:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            async with here.attached("vnc?preserveSession=true"):
                pass
        await first.send_bytes(b"still here")
        assert await first.receive_bytes() == b"still here"
        async with here.attached("vnc?preserveSession=false") as second:
            last = await first.receive()
            assert (last.type, last.data) == (WSMsgType.CLOSE, WSCloseCode.POLICY_VIOLATION)
            await second.send_bytes(b"mine")
            assert await second.receive_bytes() == b"mine"


async def test_usb_devices_take_the_free_ports_and_nobodys_is_unplugged_for_another(here: Node) -> None:
    ports = [here.console.with_name(f"virt-usbredir-{number}") for number in range(4)]
    async with AsyncExitStack() as stack:
        guests = [await stack.enter_async_context(GuestSocket(port)) for port in ports]
        devices = [await stack.enter_async_context(here.attached("usbredir")) for _ in guests]
        for number, device in enumerate(devices):
            await device.send_bytes(bytes([number]))
            assert await device.receive_bytes() == bytes([number])
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            async with here.attached("usbredir"):
                pass
        _, refusal = await here.ask("GET", "usbredir")
        assert refusal["message"].startswith("websocket: bad handshake: all 4 USB redirections are in use")
        await devices[2].close()
        async with asyncio.timeout(20):
            while True:
                with suppress(aiohttp.WSServerHandshakeError):
                    again = await stack.enter_async_context(here.attached("usbredir"))
                    break
                await asyncio.sleep(0.02)
        await again.send_bytes(b"next")
        assert await again.receive_bytes() == b"next"


async def test_a_vm_without_usb_ports_says_so(here: Node) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError, match="400"):
        async with here.attached("usbredir"):
            pass


async def test_a_guest_that_ends_closes_the_console_in_order(here: Node) -> None:
    async with GuestSocket(here.console) as guest, here.attached() as console:
        await eventually(lambda: guest.client)
        assert guest.client
        guest.client.write(b"Power down.\r\n")
        guest.client.close()
        assert await console.receive_bytes() == b"Power down.\r\n"
        last = await console.receive()
        assert (last.type, last.data) == (WSMsgType.CLOSE, WSCloseCode.OK)


async def test_a_handler_that_stops_tells_everybody(here: Node) -> None:
    async with GuestSocket(here.console), here.attached() as console:
        await console.send_bytes(b"hello")
        assert await console.receive_bytes() == b"hello"
        here.access.close()
        last = await console.receive()
        assert (last.type, last.data) == (WSMsgType.CLOSE, WSCloseCode.GOING_AWAY)


async def test_a_vm_without_the_device_and_plain_requests_are_refused(here: Node) -> None:
    code, status = await here.ask("GET", "console")
    assert (code, "is a websocket" in status["message"]) == (400, True)
    with pytest.raises(aiohttp.WSServerHandshakeError, match="400"):
        async with here.attached("console"):
            pass


async def test_a_link_to_the_console_of_another_vm_is_not_followed(here: Node) -> None:
    async with GuestSocket(here.private / "another" / "virt-serial0") as other:
        here.console.parent.mkdir()
        here.console.symlink_to(here.private / "another" / "virt-serial0")
        with pytest.raises(aiohttp.WSServerHandshakeError, match="500"):
            async with here.attached():
                pass
        assert other.served == 0


async def test_a_guest_that_does_not_read_holds_up_its_client_and_nobody_elses_turn(here: Node) -> None:
    async with GuestSocket(here.console) as guest:
        guest.reads.clear()
        async with here.attached() as eager:
            sent = 0

            async def type_for_ever() -> None:
                nonlocal sent
                while True:
                    await eager.send_bytes(b"x" * 65536)
                    sent += 65536

            typing = asyncio.create_task(type_for_ever())
            before = -1
            while before != sent:  # until nothing more gets through
                before = sent
                await asyncio.wait({typing}, timeout=0.5)
            assert sent < 64 << 20, "somebody keeps it all in memory"
            typing.cancel()
            await asyncio.gather(typing, return_exceptions=True)
            guest.reads.set()
            async with here.attached() as second:
                await second.send_bytes(b"my turn")
                assert await second.receive_bytes() == b"my turn"


async def test_a_client_that_does_not_read_holds_up_its_guest_and_nobody_elses_turn(here: Node) -> None:
    async with GuestSocket(here.console) as guest, here.attached():
        flooded = await eventually(lambda: guest.client)
        written = 0
        with suppress(TimeoutError):
            while True:  # until nothing more gets through
                flooded.write(b"x" * 65536)
                await asyncio.wait_for(flooded.drain(), 0.5)
                written += 65536
        assert written < 64 << 20, "somebody keeps it all in memory"
        async with here.attached() as second:
            await second.send_bytes(b"my turn")
            assert await second.receive_bytes() == b"my turn"


@pytest.mark.slow
async def test_random_connects_and_disconnects_leave_nothing_behind(here: Node) -> None:
    chance = random.Random(8)
    async with GuestSocket(here.console), GuestSocket(here.vnc), here.session(here.credential()) as session:

        async def come_and_go(subresource: str) -> None:
            with suppress(aiohttp.ClientError, TimeoutError, ConnectionError):
                websocket = await session.ws_connect(here.url(subresource))
                for _ in range(chance.randrange(4)):
                    await websocket.send_bytes(b"x" * chance.randrange(1, 100_000))
                    await asyncio.wait_for(websocket.receive(), chance.random() / 10)
                if chance.random() < 0.5:
                    await websocket.close()
                elif connection := websocket._response.connection:
                    connection.transport.abort()  # as a client that is killed

        def left() -> tuple[int, int, int]:
            """Claims, tasks and descriptors."""
            return len(here.access._seats._places), len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))

        await come_and_go("console")
        await eventually(lambda: left()[0] == 0)
        before = left()
        for _ in range(12):
            await asyncio.gather(*(come_and_go(chance.choice(("console", "vnc"))) for _ in range(8)))
        await eventually(lambda: all(now <= then for now, then in zip(left(), before, strict=True)))
