"""What passes through the proxy: bodies, streams, refusals and websockets, faithfully and without piling up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from virtfleet.kube import proxy
from virtfleet.kube.errors import ApiError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Through = Callable[[Handler], Awaitable[str]]
pytestmark = pytest.mark.timeout(30)


async def listen(handler: Handler, runners: list[web.AppRunner]) -> str:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    runners.append(runner)
    host, port = runner.addresses[0][:2]
    return f"http://{host}:{port}"


@pytest.fixture
async def through() -> AsyncIterator[Through]:
    """Put a handler behind a proxy; answers the proxy's URL."""
    runners: list[web.AppRunner] = []
    session = aiohttp.ClientSession(auto_decompress=False)

    async def start(handler: Handler) -> str:
        behind = await listen(handler, runners)

        async def front(request: web.Request) -> web.StreamResponse:
            try:
                return await proxy.forward(
                    request, session, behind + request.raw_path, ssl=None, headers=request.headers
                )
            except ApiError as error:
                return web.json_response(error.status(), status=error.code)

        return await listen(front, runners)

    yield start
    for runner in reversed(runners):
        await runner.cleanup()
    await session.close()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_method_path_query_headers_and_body_arrive_as_they_were_sent(
    through: Through, client: aiohttp.ClientSession
) -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        answer = web.Response(
            status=207, body=f"{request.method} {request.raw_path} {body.decode()}".encode(), headers={"X-A": "1"}
        )
        answer.headers.add("X-A", "2")
        return answer

    url = await through(echo)
    async with client.patch(f"{url}/a%2Fb?x=%20y&x=z", data=b"body") as answer:
        assert answer.status == 207
        assert answer.headers.getall("X-A") == ["1", "2"]
        assert await answer.text() == "PATCH /a%2Fb?x=%20y&x=z body"


async def test_a_streamed_answer_arrives_piece_by_piece(through: Through, client: aiohttp.ClientSession) -> None:
    more = asyncio.Event()

    async def events(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"one\n")
        await more.wait()
        await answer.write(b"two\n")
        return answer

    async with client.get(await through(events)) as answer:
        assert await answer.content.readline() == b"one\n"
        more.set()
        assert await answer.content.read() == b"two\n"


async def test_an_answer_that_breaks_off_does_not_look_complete(
    through: Through, client: aiohttp.ClientSession
) -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return answer

    with pytest.raises(aiohttp.ClientError):
        async with client.get(await through(broken)) as answer:
            await answer.read()


async def test_a_client_that_leaves_a_quiet_stream_frees_the_server_behind(
    through: Through, client: aiohttp.ClientSession
) -> None:
    gone = asyncio.Event()

    async def quiet(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"hello\n")
        while request.transport is not None:  # noqa: ASYNC110 (aiohttp has no event for it)
            await asyncio.sleep(0.05)
        gone.set()
        return answer

    async with client.get(await through(quiet)) as answer:
        await answer.content.readline()
        answer.close()
    await gone.wait()


async def test_a_server_that_does_not_answer_is_unavailable(client: aiohttp.ClientSession) -> None:
    runners: list[web.AppRunner] = []

    async def front(request: web.Request) -> web.StreamResponse:
        with pytest.raises(ApiError) as refused:
            await proxy.forward(request, client, "http://127.0.0.1:1/", ssl=None, headers=request.headers)
        return web.Response(status=refused.value.code, text=refused.value.message)

    async with client.get(await listen(front, runners)) as answer:
        assert answer.status == 503
        assert (await answer.text()).startswith("error trying to reach service:")
    await runners[0].cleanup()


# --- websockets ------------------------------------------------------------------------------------------------------


async def echo_socket(request: web.Request) -> web.StreamResponse:
    socket = web.WebSocketResponse(protocols=["v5.channel.k8s.io", "plain.kubevirt.io"], max_msg_size=0)
    await socket.prepare(request)
    async for message in socket:
        if message.data == "bye":
            await socket.close(code=4321, message=b"as asked")
        elif message.type is aiohttp.WSMsgType.TEXT:
            await socket.send_str(message.data)
        else:
            await socket.send_bytes(message.data)
    return socket


async def test_a_websocket_keeps_its_subprotocol_its_messages_and_its_closing_code(
    through: Through, client: aiohttp.ClientSession
) -> None:
    url = await through(echo_socket)
    async with client.ws_connect(url, protocols=["unknown", "plain.kubevirt.io"]) as socket:
        assert socket.protocol == "plain.kubevirt.io"
        await socket.send_str("text")
        assert (await socket.receive()).data == "text"
        await socket.send_bytes(b"\x00\x01")
        assert (await socket.receive()).data == b"\x00\x01"
        await socket.send_str("bye")
        end = await socket.receive()
        assert (end.type, end.data, end.extra) == (aiohttp.WSMsgType.CLOSE, 4321, "as asked")


async def test_a_refused_websocket_carries_the_refusal(through: Through, client: aiohttp.ClientSession) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "Status", "message": "VMI is not running"}, status=400)

    url = await through(refuse)
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    async with client.get(url, headers={**headers, "Sec-WebSocket-Version": "13"}) as answer:
        assert answer.status == 400
        assert (await answer.json())["message"] == "VMI is not running"


async def test_megabytes_pass_both_ways_while_neither_side_waits_for_the_other(
    through: Through, client: aiohttp.ClientSession
) -> None:
    url = await through(echo_socket)
    block, blocks = bytes(range(256)) * 1024, 64
    async with client.ws_connect(url, max_msg_size=0) as socket:

        async def send() -> None:
            for _ in range(blocks):
                await socket.send_bytes(block)

        sending = asyncio.create_task(send())
        for _ in range(blocks):
            assert (await socket.receive()).data == block
        await sending


async def test_a_reader_that_does_not_read_stops_the_writer(through: Through, client: aiohttp.ClientSession) -> None:
    sent = 0
    stalled = asyncio.Event()

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        socket = web.WebSocketResponse(max_msg_size=0, writer_limit=1 << 16)
        await socket.prepare(request)
        block = b"x" * (1 << 16)
        try:
            while sent < 1 << 30:
                async with asyncio.timeout(1):
                    await socket.send_bytes(block)
                sent += len(block)
        except TimeoutError:
            stalled.set()
        return socket

    url = await through(flood)
    reader, writer = await asyncio.open_connection(url.split(":")[1][2:], int(url.rsplit(":", 1)[1]))
    writer.write(
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    await reader.readline()
    await stalled.wait()
    assert sent < 64 << 20, "what nobody reads must wait in the sender, not in the proxy's memory"
    writer.close()


@pytest.mark.parametrize("side", ["client", "server"])
async def test_when_one_end_of_a_websocket_dies_the_other_notices(
    through: Through, client: aiohttp.ClientSession, side: str
) -> None:
    over = asyncio.Event()

    async def hold(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        assert request.transport is not None
        if side == "server":
            request.transport.abort()
        await socket.receive()
        over.set()
        return socket

    socket = await client.ws_connect(await through(hold))
    if side == "client":
        assert socket._response.connection is not None
        assert socket._response.connection.transport is not None
        socket._response.connection.transport.abort()
    else:
        assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
    await over.wait()
    await socket.close()
