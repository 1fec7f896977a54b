"""`virtfleet console`, `vnc`, `ssh`, `port-forward` and the power commands as processes, against a scripted API."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import socket
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest
from aiohttp import WSCloseCode, web
from kube_fixtures import eventually

from virtfleet.kube.errors import ApiError

VIRTFLEET = str(Path(sys.executable).parent / "virtfleet")
FAKE_SSH = """
import subprocess, sys
print(*sys.argv[1:], flush=True)
proxy = subprocess.Popen(sys.argv[2].removeprefix("ProxyCommand="), shell=True, stdin=-1, stdout=-1)
proxy.stdin.write(b"hello")
proxy.stdin.flush()
print(proxy.stdout.read(5).decode(), end="", flush=True)
proxy.stdin.close()
sys.exit(proxy.wait())
"""
GROUP = "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/{resource}/{name}"


@dataclass
class Cluster:
    """An API server on which VMI default/vm runs, and which echoes what is sent to its streams."""

    directory: Path
    kubeconfig: Path
    asked: list[str] = field(default_factory=list)
    refusal: ApiError | None = None
    streams: list[web.WebSocketResponse] = field(default_factory=list)
    statuses: list[dict[str, object]] = field(default_factory=list)  # of a migration, one for each look at it

    async def migrate(self, request: web.Request) -> web.Response:
        self.asked.append((await request.read()).decode())
        return web.json_response(self._migration({}), status=201)

    async def migration(self, request: web.Request) -> web.Response:
        return web.json_response(self._migration(self.statuses.pop(0) if self.statuses[1:] else self.statuses[0]))

    def _migration(self, status: dict[str, object]) -> dict[str, object]:
        meta = {"name": "kubevirt-migrate-vm-1", "namespace": "default"}
        return {"metadata": meta, "spec": {"vmiName": "vm"}, "status": status}

    async def vmi(self, request: web.Request) -> web.Response:
        if request.match_info["name"] != "vm":
            problem = ApiError("NotFound", f'{request.match_info["plural"]} "{request.match_info["name"]}" not found')
            return web.Response(status=404, body=orjson.dumps(problem.status()), content_type="application/json")
        return web.json_response({"metadata": {"name": "vm"}, "status": {"phase": "Running"}})

    async def subresource(self, request: web.Request) -> web.StreamResponse:
        body = (await request.read()).decode()
        self.asked.append(f"{request.method} {request.path_qs.partition('/namespaces/')[2]} {body}".strip())
        if self.refusal:
            status = self.refusal.status()
            return web.Response(status=self.refusal.code, body=orjson.dumps(status), content_type="application/json")
        if request.method == "PUT":
            return web.Response(status=202)
        if request.path.endswith("/screenshot"):
            return web.Response(body=b"\x89PNG")
        stream = web.WebSocketResponse(protocols=("plain.kubevirt.io",))
        await stream.prepare(request)
        self.streams.append(stream)
        async for message in stream:
            await stream.send_bytes(message.data.upper())
        return stream

    def command(self, *arguments: str) -> list[str]:
        return [VIRTFLEET, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        process = await asyncio.create_subprocess_exec(
            *self.command(*arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
        )
        out, errors = await asyncio.wait_for(process.communicate(), 30)
        return process.returncode or 0, out.decode(), errors.decode()

    @asynccontextmanager
    async def running(self, *arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, object]]:
        """A command that goes on until ^C, and what it printed as JSON."""
        process = await asyncio.create_subprocess_exec(
            *self.command(*arguments, "-o", "json"), stdout=asyncio.subprocess.PIPE, env=self.environment
        )
        try:
            assert process.stdout
            printed = b""
            async with asyncio.timeout(30):
                while True:
                    printed += await process.stdout.readline()
                    try:
                        value = json.loads(printed)
                    except ValueError:
                        continue
                    break
            yield process, value
            process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(process.wait(), 30) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, tmp_path / "kubeconfig")
    app = web.Application()
    of_migrations = "/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstancemigrations"
    app.router.add_post(of_migrations, made.migrate)
    app.router.add_get(of_migrations + "/{name}", made.migration)
    app.router.add_get("/apis/kubevirt.io/v1/namespaces/{namespace}/{plural}/{name}", made.vmi)
    app.router.add_route("*", GROUP + "/{subresource:.+}", made.subresource)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    yield made
    await runner.cleanup()


class Terminal:
    """A terminal with a command in it."""

    def __init__(self) -> None:
        self.side, self._other = pty.openpty()
        os.set_blocking(self.side, False)
        self.before = termios.tcgetattr(self._other)
        self.shown = ""

    async def start(self, *command: str, env: dict[str, str]) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *command, stdin=self._other, stdout=self._other, stderr=self._other, env=env, start_new_session=True
        )

    def read(self) -> str:
        with suppress(BlockingIOError):
            self.shown += os.read(self.side, 65536).decode(errors="replace")
        return self.shown

    async def shows(self, text: str) -> None:
        await eventually(lambda: text in self.read())

    async def ended(self) -> int:
        code = await asyncio.wait_for(self.process.wait(), 30)
        self.read()
        assert termios.tcgetattr(self._other) == self.before, "the terminal is as it was"
        return code

    def close(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        os.close(self.side)
        os.close(self._other)


@pytest.fixture
async def terminal(cluster: Cluster) -> AsyncIterator[Terminal]:
    """A terminal that shows the console of vm."""
    made = Terminal()
    await made.start(*cluster.command("console", "vm"), env=cluster.environment)
    await made.shows("Connected to the console of default/vm")
    await eventually(lambda: termios.tcgetattr(made.side)[3] & termios.ICANON == 0)
    yield made
    made.close()


async def test_a_console_shows_what_the_guest_says_until_it_is_escaped(terminal: Terminal) -> None:
    os.write(terminal.side, b"whoami\r")
    await terminal.shows("WHOAMI")
    os.write(terminal.side, b"\x03 is for the guest")  # ^C
    await terminal.shows("\x03 IS FOR THE GUEST")
    os.write(terminal.side, b"\x1d")
    assert await terminal.ended() == 0


async def test_a_console_that_somebody_else_takes_says_so(cluster: Cluster, terminal: Terminal) -> None:
    await cluster.streams[0].close(code=WSCloseCode.POLICY_VIOLATION, message=b"somebody else took over")
    assert await terminal.ended() == 1
    assert "somebody else has connected to the console of default/vm" in terminal.shown
    assert "virtfleet console vm -n default" in terminal.shown


async def test_a_guest_that_ends_ends_its_console(cluster: Cluster, terminal: Terminal) -> None:
    await cluster.streams[0].close(code=WSCloseCode.OK)
    assert await terminal.ended() == 0
    assert "The console of default/vm has ended." in terminal.shown


async def test_a_console_that_is_told_to_end_gives_the_terminal_back(terminal: Terminal) -> None:
    terminal.process.send_signal(signal.SIGTERM)
    assert await terminal.ended() == 0


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("start", "vm"), "PUT default/virtualmachines/vm/start {}"),
        (("start", "vm", "--paused"), 'PUT default/virtualmachines/vm/start {"paused":true}'),
        (("stop", "vm", "--force", "-n", "web"), 'PUT web/virtualmachines/vm/stop {"gracePeriod":0}'),
        (("restart", "vm", "--force"), 'PUT default/virtualmachines/vm/restart {"gracePeriodSeconds":0}'),
        (("pause", "vm"), "PUT default/virtualmachineinstances/vm/pause {}"),
        (("unpause", "vm"), "PUT default/virtualmachineinstances/vm/unpause {}"),
    ],
)
async def test_power_commands_ask_what_virtctl_asks(cluster: Cluster, arguments: tuple[str, ...], asked: str) -> None:
    code, out, errors = await cluster.run(*arguments, "-o", "json")
    assert (code, errors) == (0, "")
    assert json.loads(out)["action"] == arguments[0]
    assert cluster.asked == [asked]


NODES = {"sourceNode": "a", "targetNode": "b"}


async def test_migrate_asks_for_a_migration(cluster: Cluster) -> None:
    code, out, errors = await cluster.run("migrate", "vm", "--to", "b", "-o", "json")
    assert (code, errors) == (0, "")
    assert json.loads(out)["name"] == "kubevirt-migrate-vm-1"
    [asked] = map(json.loads, cluster.asked)
    assert asked["spec"] == {"vmiName": "vm", "addedNodeSelector": {"kubernetes.io/hostname": "b"}}


async def test_a_migration_is_watched_to_its_end(cluster: Cluster) -> None:
    far = {"elapsedMilliseconds": 2000, "totalBytes": 512 << 20, "remainingBytes": 128 << 20}
    far |= {"bytesPerSecond": 64 << 20, "dirtyBytesPerSecond": 1 << 19}
    end = {"elapsedMilliseconds": 4321, "totalBytes": 512 << 20, "downtimeMilliseconds": 87}  # what is 0 is left out
    cluster.statuses = [{"phase": "Pending"}, {"phase": "Running", "migrationState": {**NODES, "mode": "PreCopy"}}]
    cluster.statuses.append({"phase": "Running", "migrationState": {**NODES, "migrationMetrics": far}})
    cluster.statuses.append({"phase": "Succeeded", "migrationState": {**NODES, "migrationMetrics": end}})
    code, out, errors = await cluster.run("migrate", "vm", "--watch")
    came_to = "512.0 MiB in 4.3 s; the guest stood still for 87 ms"
    assert (code, out) == (0, f"default/vm runs on b now; it was on a ({came_to})\n")
    assert "waits for its turn" in errors and "from a to b is under way (" in errors
    assert "under way: 384.0 MiB of 512.0 MiB, 64.0 MiB/s, the guest writes 0.5 MiB/s anew" in errors


async def test_a_migration_that_fails_is_an_error_with_the_reason(cluster: Cluster) -> None:
    cluster.statuses = [{"phase": "Failed", "migrationState": {**NODES, "failureReason": "no node took it"}}]
    code, out, errors = await cluster.run("migrate", "vm", "--watch")
    assert (code, out) == (1, "")
    assert "default/vm stays on a: no node took it" in errors


async def test_waiting_for_a_migration_has_a_limit(cluster: Cluster) -> None:
    cluster.statuses = [{"phase": "Scheduling"}]
    code, _, errors = await cluster.run("migrate", "vm", "--watch", "--timeout", "0.2")
    assert code == 1
    assert "has not ended within 0.2 s; it was asked for" in errors
    assert "kubectl describe vmim -n default kubevirt-migrate-vm-1" in errors


@pytest.mark.slow
async def test_a_refusal_is_told_in_the_servers_words_with_the_next_step(cluster: Cluster) -> None:
    cluster.refusal = ApiError("Conflict", 'cannot be fulfilled on "vm": VM is already running')
    code, out, errors = await cluster.run("start", "vm")
    assert (code, out) == (1, "")
    assert "VM is already running" in errors
    cluster.refusal = ApiError("Forbidden", 'User "eve" cannot get resource "virtualmachineinstances/console"')
    code, _, errors = await cluster.run("console", "vm")
    assert code == 1
    assert 'User "eve" cannot get' in errors and "kubevirt.io:edit" in errors
    code, _, errors = await cluster.run("console", "nobody")
    assert code == 1
    assert 'virtualmachines "nobody" not found' in errors and "kubectl get vm,vmi" in errors


async def test_a_tcp_port_of_the_guest_is_here(cluster: Cluster) -> None:
    async with cluster.running("port-forward", "vm", "0:80") as (_, [port]):
        assert (port["protocol"], port["target"]) == ("tcp", 80)
        for text in (b"one", b"two" * 50_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", port["port"])
            writer.write(text)
            assert await reader.readexactly(len(text)) == text.upper()
            writer.close()
    assert cluster.asked == ["GET default/virtualmachineinstances/vm/portforward/80/tcp"] * 2


async def test_a_local_port_that_is_taken_is_refused_with_the_next_step(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, errors = await cluster.run("port-forward", "vm", f"{port}:80")
    assert code == 1
    assert f"port {port} of 127.0.0.1 cannot be used: address already in use\nChoose another" in errors


async def test_a_udp_port_of_the_guest_is_here(cluster: Cluster) -> None:
    class Received(asyncio.DatagramProtocol):
        def __init__(self) -> None:
            self.data: list[bytes] = []

        def datagram_received(self, data: bytes, _: object) -> None:
            self.data.append(data)

    loop = asyncio.get_running_loop()
    async with cluster.running("port-forward", "vm", "udp/0:53") as (_, [port]):
        transport, received = await loop.create_datagram_endpoint(Received, remote_addr=("127.0.0.1", port["port"]))
        transport.sendto(b"one")
        transport.sendto(b"two")
        await eventually(lambda: received.data == [b"ONE", b"TWO"])
        transport.close()
    assert cluster.asked == ["GET default/virtualmachineinstances/vm/portforward/53/udp"]


async def test_a_viewer_finds_the_screen_on_a_local_port(cluster: Cluster) -> None:
    async with cluster.running("vnc", "vm", "--preserve-session") as (_, told):
        reader, writer = await asyncio.open_connection(told["address"], told["port"])  # type: ignore[index]
        writer.write(b"rfb 003.008\n")
        assert await reader.readline() == b"RFB 003.008\n"
        writer.close()
    assert cluster.asked == ["GET default/virtualmachineinstances/vm/vnc?preserveSession=true"]


async def test_a_screenshot_is_written_to_a_file(cluster: Cluster) -> None:
    file = cluster.directory / "screen.png"
    assert (await cluster.run("vnc", "vm", "--screenshot", str(file)))[0] == 0
    assert file.read_bytes() == b"\x89PNG"


@pytest.mark.slow
async def test_ssh_goes_through_this_command(cluster: Cluster) -> None:
    """`ssh` is a script here that says what it was given, and uses its ProxyCommand."""
    fake = cluster.directory / "ssh"
    fake.write_text(f"#!{sys.executable}\n{FAKE_SSH}")
    fake.chmod(0o755)
    process = await asyncio.create_subprocess_exec(
        *cluster.command("ssh", "--port", "2222", "root@vm", "-i", "key", "mkdir", "-p", "x"),
        stdout=asyncio.subprocess.PIPE,
        env={**cluster.environment, "PATH": f"{cluster.directory}:{os.environ['PATH']}"},
    )
    assert process.stdout
    given = (await process.stdout.readline()).decode()
    assert given.endswith("-o HostKeyAlias=vm.vm.default root@vm -i key mkdir -p x\n")
    assert await asyncio.wait_for(process.stdout.read(), 30) == b"HELLO"
    assert await process.wait() == 0
    assert cluster.asked == ["GET default/virtualmachineinstances/vm/portforward/2222/tcp"]
