"""What every command has in common: how a cluster is named, colours, JSON, words for mistakes and for ^C."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import click
import pytest
from aiohttp import web
from kube_fixtures import ScriptedServer, eventually

from virtfleet.cli.main import main
from virtfleet.kube.resource import EVENTS, KUBEVIRTS, NODES, PODS, VMIS, VMS

BIN = Path(sys.executable).parent
# What they print is a program's or a stream's, and no result of their own.
WITHOUT_JSON = {
    "completion",
    "console",
    "ssh",
    "pools import-aie",
    "render pod",
    "render domain",
    "render operator",
    "render vmi",
}
KEY = "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----"


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")


def test_every_command_has_json_but_those_that_print_something_else() -> None:
    assert isinstance(main, click.Group)
    without = {name for name, command in commands(main) if "output" not in {p.name for p in command.params}}
    assert without == WITHOUT_JSON


def test_every_command_that_asks_a_cluster_can_be_told_which() -> None:
    assert isinstance(main, click.Group)
    for name, command in commands(main):
        options = {option for p in command.params for option in p.opts}
        assert ("--kubeconfig" in options) == ("--context" in options), name
    named = {name for name, command in commands(main) if "--context" in {o for p in command.params for o in p.opts}}
    assert {"explain", "pools", "validate", "start", "console", "ssh", "version", "doctor", "logs"} <= named


class Run:
    """The command, with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "HOME": str(home), "TERM": "xterm"}
        self.environment["VIRTFLEET_DATA"] = str(home / "data")

    async def __call__(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**self.environment, **environment},
        )
        out, errors = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode or 0, out.decode(), errors.decode()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


def written(file: Path, server: ScriptedServer, name: str = "c") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    nowhere = {"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}}
    clusters = [{"name": name, "cluster": {"server": server.url}}, nowhere]
    contexts = [{"name": each["name"], "context": {"cluster": each["name"]}} for each in clusters]
    file.write_text(json.dumps({"current-context": "nowhere", "clusters": clusters, "contexts": contexts}))
    return file


def kubevirt() -> dict[str, object]:
    return {"metadata": {"name": "kubevirt", "namespace": "kubevirt"}, "status": {"observedKubeVirtVersion": "9.9.9"}}


@pytest.mark.slow  # it asks a cluster that is away, three times
async def test_a_cluster_is_named_by_options_by_the_environment_or_found(server: ScriptedServer, run: Run) -> None:
    server.put(KUBEVIRTS, kubevirt())
    file = written(run.home / "elsewhere", server)
    code, out, errors = await run("virtfleet", "version", "--kubeconfig", str(file), "--context", "c")
    assert (code, out.splitlines()[1]) == (0, "cluster: 9.9.9"), errors
    away = "http://127.0.0.1:1 does not answer"
    assert away in (await run("virtfleet", "version", KUBECONFIG=str(file)))[1]
    assert "9.9.9" in (await run("virtfleet", "version", "--context", "c", KUBECONFIG=str(file)))[1]
    assert "no cluster is configured" in (await run("virtfleet", "version"))[1]
    local = written(run.home / "data" / "kubeconfig", server)
    local.write_text(local.read_text().replace('"current-context": "nowhere"', '"current-context": "c"'))
    assert "9.9.9" in (await run("virtfleet", "version"))[1], "the local cluster is there for whoever names none"
    written(run.home / ".kube" / "config", server)
    assert away in (await run("virtfleet", "version"))[1], "kubectl's own configuration comes first"


@pytest.mark.slow
async def test_kubectl_finds_it_as_a_plugin(server: ScriptedServer, run: Run) -> None:
    server.put(KUBEVIRTS, kubevirt())
    file = written(run.home / "config", server)
    code, out, errors = await run("kubectl", "virtfleet", "version", "--kubeconfig", str(file), "--context", "c")
    assert code == 0 and "cluster: 9.9.9" in out, errors
    assert "Usage: kubectl virtfleet" in (await run("kubectl", "virtfleet", "--help"))[1]


@pytest.mark.slow
async def test_words_that_are_spelt_wrong(run: Run) -> None:
    for arguments, meant in (("node lss", "'ls'"), ("pols", "'pools'"), ("image drive x", "'derive'")):
        code, _, errors = await run("virtfleet", *arguments.split())
        assert code == 2 and f"did you mean {meant}" in errors, errors
    assert "--follow" in (await run("virtfleet", "logs", "--folow"))[2]


@pytest.mark.slow
async def test_an_error_has_colours_on_a_terminal_alone(run: Run) -> None:
    assert "\x1b" not in (await run("virtfleet", "node", "ls"))[2]
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        master, slave = pty.openpty()
        env = {**run.environment, **environment}
        process = await asyncio.create_subprocess_exec("virtfleet", "node", "ls", stderr=slave, stdout=slave, env=env)
        os.close(slave)
        await asyncio.wait_for(process.wait(), 60)
        said = os.read(master, 4096)
        os.close(master)
        assert b"there is no cluster" in said and (b"\x1b[" in said) == coloured, said


@pytest.mark.slow
async def test_a_command_can_wait_until_it_is_so(server: ScriptedServer, run: Run) -> None:
    file = str(written(run.home / "config", server))
    vm = {"metadata": {"name": "web", "namespace": "default"}, "status": {"printableStatus": "Starting"}}
    server.put(VMS, vm)

    async def accepted(_: web.Request) -> web.StreamResponse:
        return web.Response(status=202)

    server.next("PUT", "/start", accepted)
    arguments = ("start", "web", "--wait", "--kubeconfig", file, "--context", "c")
    waiting = asyncio.create_task(run("virtfleet", *arguments))
    await eventually(lambda: server.count("GET", "virtualmachineinstances/web") > 2)
    assert not waiting.done()
    status = {"phase": "Running", "nodeName": "node-b"}
    server.put(VMIS, {"metadata": {"name": "web", "namespace": "default", "uid": "1"}, "status": status})
    looks = server.count("GET", "virtualmachineinstances/web")
    await eventually(lambda: server.count("GET", "virtualmachineinstances/web") > looks + 2)
    assert not waiting.done(), "the VM does not say yet that it runs"
    server.put(VMS, {**vm, "status": {"printableStatus": "Running"}})
    code, out, errors = await waiting
    assert (code, out) == (0, "default/web is Running on node-b\n"), errors
    assert "default/web is Starting" in errors
    server.next("PUT", "/restart", accepted)
    arguments = ("restart", "web", "--wait", "--timeout", "0.1", "--kubeconfig", file, "--context", "c")
    code, _, errors = await run("virtfleet", *arguments)
    assert code == 1 and "after 0.1 s, default/web is Running" in errors and "kubectl -n default describe" in errors


@pytest.mark.slow
async def test_interrupting_says_what_goes_on(server: ScriptedServer, run: Run) -> None:
    file = str(written(run.home / "config", server))
    server.put(VMS, {"metadata": {"name": "web", "namespace": "default"}, "status": {"printableStatus": "Starting"}})

    async def accepted(_: web.Request) -> web.StreamResponse:
        return web.Response(status=202)

    server.next("PUT", "/start", accepted)
    process = await asyncio.create_subprocess_exec(
        *("virtfleet", "start", "web", "--wait", "--kubeconfig", file, "--context", "c"),
        stderr=asyncio.subprocess.PIPE,
        env=run.environment,
    )
    await eventually(lambda: server.count("GET", "virtualmachineinstances/web") > 2)
    process.send_signal(signal.SIGINT)
    _, errors = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130
    assert b"interrupted: what was asked for goes on: web is being started" in errors and b"Aborted" not in errors


@pytest.mark.slow
@pytest.mark.timeout(300)  # it starts a control plane twice
async def test_an_up_that_is_interrupted_says_what_runs(run: Run) -> None:
    nodes = run.home / "nodes.yaml"
    nodes.write_text("nodes: []")
    arguments = ("up", "--bare", "--nodes", str(nodes), "--port", str(free_port()))
    process = await asyncio.create_subprocess_exec(
        *("virtfleet", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=run.environment,
    )
    try:
        assert process.stderr
        assert b"starting the control plane" in await asyncio.wait_for(process.stderr.readline(), 60)
        process.send_signal(signal.SIGINT)
        errors = await asyncio.wait_for(process.stderr.read(), 60)
        assert await process.wait() == 130, errors
        assert b"what was started goes on, and the cluster is not ready" in errors and b"virtfleet down" in errors
        code, out, _ = await run("virtfleet", "status")
        assert code in (0, 1) and "cluster" in out
        code, _, errors_again = await run("virtfleet", *arguments)
        assert code == 0, errors_again
    finally:
        await run("virtfleet", "down", "--wipe")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pod(name: str, component: str, node: str, daemon_set: str = "") -> dict[str, object]:
    owners = [{"kind": "DaemonSet", "name": daemon_set}] if daemon_set else []
    meta = {"name": name, "namespace": "kubevirt", "labels": {"kubevirt.io": component}, "ownerReferences": owners}
    env = [{"name": "DB_PASSWORD", "value": "hunter2"}]
    return {"metadata": meta, "spec": {"nodeName": node, "containers": [{"name": component, "env": env}]}}


async def says(request: web.Request) -> web.StreamResponse:
    return web.Response(text=f"{request.path.split('/')[-2]} works\n{KEY}\n")


@pytest.mark.slow
async def test_logs_of_components(server: ScriptedServer, run: Run) -> None:
    named = ("--kubeconfig", str(written(run.home / "config", server)), "--context", "c")
    for each in (
        pod("virt-api-1", "virt-api", "a"),
        pod("virt-handler-x", "virt-handler", "a", "virt-handler"),
        pod("virt-handler-canary-y", "virt-handler", "b", "virt-handler-canary"),
    ):
        server.put(PODS, each)
    server.next("GET", "/log", says, times=100)
    listed = (await run("virtfleet", "logs", *named))[1].split()
    assert listed == ["virt-api", "virt-handler", "virt-handler-canary"]
    assert (await run("virtfleet", "logs", "virt-api", *named))[1].splitlines()[0] == "virt-api-1 works"
    both = (await run("virtfleet", "logs", "virt-handler", *named))[1]
    assert "[virt-handler-x] virt-handler-x works" in both and "[virt-handler-canary-y]" in both
    only = (await run("virtfleet", "logs", "virt-handler", "--node", "b", "-o", "json", *named))[1]
    assert {json.loads(line)["pod"] for line in only.splitlines()} == {"virt-handler-canary-y"}
    code, _, errors = await run("virtfleet", "logs", "virt-apo", *named)
    assert code == 1 and "did you mean 'virt-api'?" in errors


@pytest.mark.slow
async def test_a_support_bundle_has_no_secrets(server: ScriptedServer, run: Run) -> None:
    file = written(run.home / "config", server)
    server.put(PODS, pod("virt-api-1", "virt-api", "a"))
    server.put(
        PODS, {"metadata": {"name": "private", "namespace": "shop"}, "spec": {"containers": [{"name": "hunter2"}]}}
    )
    volumes = [{"name": "c", "cloudInitNoCloud": {"userData": "password: hunter2"}}]
    server.put(VMIS, {"metadata": {"name": "web", "namespace": "default"}, "spec": {"volumes": volumes}})
    server.put(KUBEVIRTS, kubevirt())
    server.put(NODES, {"metadata": {"name": "node-a"}})
    server.put(EVENTS, {"metadata": {"name": "e", "namespace": "default"}, "message": "Bearer hunter2hunter2"})
    server.next("GET", "/log", says, times=100)
    bundle = run.home / "bundle.tar.gz"
    arguments = ("support-bundle", "--to", str(bundle), "--kubeconfig", str(file), "--context", "c", "-o", "json")
    code, out, errors = await run("virtfleet", *arguments)
    assert code == 0, errors
    assert bundle.stat().st_mode & 0o777 == 0o600
    with tarfile.open(bundle) as archive:
        content = {m.name: (archive.extractfile(m) or sys.exit()).read() for m in archive.getmembers()}
    assert json.loads(out)["entries"] == len(content)
    named = {name.partition("/")[2] for name in content}
    expected = {
        "version.txt",
        "doctor.json",
        "objects/virtualmachineinstances.kubevirt.io.json",
        "objects/nodes.json",
        "logs/kubevirt/virt-api-1/virt-api.log",
    }
    assert expected <= named
    assert not [name for name in named if "secret" in name or "configmap" in name]
    assert not [name for name, data in content.items() if b"hunter2" in data]
    assert any(b"virt-api-1 works" in data for data in content.values())
    assert server.count("GET", "/secrets") == 0
    code, _, errors = await run("virtfleet", *arguments)
    assert code == 1 and "is there already" in errors


def test_two_clusters_have_different_contexts(tmp_path: Path) -> None:
    from virtfleet.local.directory import DEFAULT, Settings, cluster_name
    from virtfleet.local.identities import context

    def called(data: Path) -> str:
        return context(data, Settings(cluster_name(data), 1, "10.1.0.0/16", "10.2.0.0/16"))

    assert called(DEFAULT) == "virtfleet"
    assert len({called(DEFAULT), called(tmp_path / "a"), called(tmp_path / "b")}) == 3


def test_the_plugin_is_installed() -> None:
    done = subprocess.run([BIN / "kubectl-virtfleet", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
