"""kubectl logs, exec and attach, by the real kubectl, through the API server to a node's agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from node_cluster import NodeCluster, needs_root, node_cluster, restarts, state

from virtfleet.local import directory
from virtfleet.local.node.runtime import LOG_LIMIT

pytestmark = [needs_root, pytest.mark.slow]


@pytest.fixture
async def cluster() -> AsyncIterator[NodeCluster]:
    async with node_cluster() as made:
        await made.serve()
        await made.start()
        yield made


async def test_logs_are_read_followed_cut_and_kept_of_the_run_before(cluster: NodeCluster) -> None:
    script = "echo run $(cat /d/n 2>/dev/null); seq -f 'line %g' 3; test -e /d/n && exec sleep 1000; echo 2 > /d/n"
    await cluster.run(
        "p",
        f"{script}; exit 1",
        restartPolicy="Always",
        volumes=[{"name": "d", "emptyDir": {}}],
        container={"volumeMounts": [{"name": "d", "mountPath": "/d"}]},
    )
    await cluster.until("p", lambda p: restarts(p) == 1 and "line 3" in cluster.log("p", attempt=1))
    assert await cluster.says("logs", "p") == (0, "run 2\nline 1\nline 2\nline 3\n", "")
    assert (await cluster.says("logs", "p", "--previous"))[1].startswith("run\n")
    assert (await cluster.says("logs", "p", "--tail=1"))[1] == "line 3\n"
    assert (await cluster.says("logs", "p", "--limit-bytes=8"))[1] == "run 2\nli"
    stamped = (await cluster.says("logs", "p", "--timestamps"))[1].split()[0]
    assert stamped.startswith("20") and "T" in stamped
    assert (await cluster.says("logs", "p", "--since=1h", "--tail=2"))[1] == "line 2\nline 3\n"
    code, _, err = await cluster.says("logs", "p", "-c", "none")
    assert code == 1 and "container none is not valid for pod p" in err


async def test_following_a_log_shows_lines_as_they_come_and_ends_with_the_container(cluster: NodeCluster) -> None:
    await cluster.run(
        "p",
        "echo first; while ! test -e /tmp/go; do sleep 0.05; done; echo second",
        container={"lifecycle": {}},
    )
    await cluster.ready("p")
    process = await cluster.kubectl("logs", "-f", "p")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"first\n"
    # What the file ends is the container, and with it, perhaps, the command that made the file.
    assert (await cluster.says("exec", "p", "--", "touch", "/tmp/go"))[0] in (0, 137)
    assert await asyncio.wait_for(process.stdout.read(), 30) == b"second\n"
    assert await process.wait() == 0


async def test_a_log_is_bounded_and_followed_over_its_new_beginning(cluster: NodeCluster) -> None:
    await cluster.run("p", "yes | head -n 300000; until test -e /tmp/go; do sleep 0.05; done; echo last")
    await cluster.until("p", lambda _: cluster.log("p").count("y") == 300_000)
    process = await cluster.kubectl("logs", "-f", "p", "--tail=1")
    assert await process.stdout.readline() == b"y\n"
    assert (await cluster.says("exec", "p", "--", "sh", "-c", "yes no | head -n 200000 > /proc/1/fd/1"))[0] == 0
    assert (await cluster.says("exec", "p", "--", "touch", "/tmp/go"))[0] in (0, 137)
    assert (await asyncio.wait_for(process.stdout.read(), 60)).endswith(b"no\nlast\n")
    [log] = cluster.layout().logs.glob("default_p_*/c/0.log")
    assert log.stat().st_size < LOG_LIMIT
    assert (await cluster.says("logs", "p"))[1].endswith("no\nlast\n")


async def test_a_command_has_its_streams_its_exit_code_and_its_input_to_the_end(cluster: NodeCluster) -> None:
    await cluster.run("p", "exec sleep 1000", restartPolicy="Always", securityContext={"runAsUser": 107})
    await cluster.ready("p")
    assert await cluster.says("exec", "p", "--", "id", "-u") == (0, "107\n", "")
    code, out, err = await cluster.says("exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (code, out) == (3, "out\n")
    assert err.startswith("err\n") and "exit code 3" in err
    content = b"x" * 300_000
    code, out, _ = await cluster.says("exec", "-i", "p", "--", "wc", "-c", feed=content)
    assert (code, out.strip()) == (0, "300000"), "the end of the input reaches the command"
    code, _, err = await cluster.says("exec", "p", "--", "no-such-program")
    assert code != 0 and "no-such-program" in err


async def test_plain_spdy_is_refused_with_what_is_spoken_instead(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/local-cluster.md says; a kubectl that is told not to use websockets speaks it."""
    await cluster.run("p", "exec sleep 1000", restartPolicy="Always")
    await cluster.ready("p")
    monkeypatch.setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
    monkeypatch.setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")
    for words in (("exec", "p", "--", "true"), ("attach", "p"), ("port-forward", "p", ":80")):
        code, _, err = await cluster.says(*words)
        assert code != 0 and "needs a websocket" in err and "SPDY" in err, err


@asynccontextmanager
async def talking(
    cluster: NodeCluster, what: str, **query: str
) -> AsyncIterator[tuple[aiohttp.ClientWebSocketResponse, Callable[[bytes], Awaitable[bytes]]]]:
    """A websocket to the container, and a function that reads its output until some text has come."""
    settings = directory.load(cluster.directory)
    assert settings is not None
    url = f"http://127.0.0.1:{settings.port}/api/v1/namespaces/default/pods/p/{what}"
    output = b""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, params=query, protocols=["v5.channel.k8s.io"]) as socket,
    ):

        async def read_until(text: bytes) -> bytes:
            nonlocal output
            while text not in output:
                message = await asyncio.wait_for(socket.receive_bytes(), 20)
                if message[0] == 1:
                    output += message[1:]
            return output

        yield socket, read_until


async def takes_sizes(socket: aiohttp.ClientWebSocketResponse, read_until: Callable[[bytes], Awaitable[bytes]]) -> None:
    for nonsense in (b"\x04{}", b"\x04null", b'\x04{"Width": -1, "Height": 1e9}', b"\x09", b"\xff", b"\x04"):
        await socket.send_bytes(nonsense)
    await socket.send_bytes(b"\x04" + json.dumps({"Width": 101, "Height": 33}).encode())
    await socket.send_bytes(b"\x00until [ \"$(stty size)\" = '33 101' ]; do sleep 0.05; done; echo si''ze\n")
    await read_until(b"size\r\n# ")


async def test_a_terminal_has_a_size_that_follows_the_clients(cluster: NodeCluster) -> None:
    await cluster.run("p", "exec sleep 1000", restartPolicy="Always")
    await cluster.ready("p")
    asked = {"command": "sh", "stdin": "true", "stdout": "true", "tty": "true"}
    async with talking(cluster, "exec", **asked) as (socket, read_until):
        await takes_sizes(socket, read_until)
        await socket.send_bytes(b"\x00tty; exit 5\n")
        await read_until(b"/dev/pts/")
        while (message := await asyncio.wait_for(socket.receive_bytes(), 20))[0] != 3:
            pass
        status = json.loads(message[1:])
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "5"}]


async def test_an_exec_whose_client_is_gone_leaves_no_process(cluster: NodeCluster) -> None:
    await cluster.run("p", "exec sleep 1000", restartPolicy="Always")
    await cluster.ready("p")
    process = await cluster.kubectl("exec", "p", "--", "sleep", "4321")

    async def sleeping() -> bool:
        return "sleep 4321" in (await cluster.says("exec", "p", "--", "ps", "-eo", "args"))[1]

    await cluster.eventually(sleeping)
    process.kill()
    await process.wait()

    async def over() -> bool:
        return not await sleeping()

    await cluster.eventually(over)


async def test_top_tells_what_pods_and_nodes_use_when_asked(cluster: NodeCluster) -> None:
    await cluster.run("busy", "x=$(head -c 30000000 /dev/zero | tr '\\0' x); while :; do :; done")
    await cluster.run("idle", "exec sleep 1000")
    for pod in ("busy", "idle"):
        await cluster.ready(pod)
    code, out, err = await cluster.says("top", "pods", "--containers", "--no-headers")
    assert code == 0, err
    used = {row.split()[0]: (row.split()[2], row.split()[3]) for row in out.splitlines()}
    assert set(used) == {"busy", "idle"}
    cores = {pod: int(cpu.removesuffix("m")) for pod, (cpu, _) in used.items()}
    memory = {pod: int(amount.removesuffix("Mi")) for pod, (_, amount) in used.items()}
    assert cores["busy"] > cores["idle"]
    assert memory["busy"] >= 20 > memory["idle"]
    code, out, err = await cluster.says("top", "pod", "busy", "--no-headers")
    assert (code, out.split()[0]) == (0, "busy")
    code, out, err = await cluster.says("top", "nodes", "--no-headers")
    name, cpu, *_ = out.split()
    assert (name, int(cpu.removesuffix("m")) > cores["idle"]) == ("n1", True)
    code, _, err = await cluster.says("top", "pod", "nobody")
    assert (code == 1 and 'podmetrics.metrics.k8s.io "nobody" not found' in err.lower()) or "not found" in err
    code, _, err = await cluster.says("delete", "--raw", "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/busy")
    assert code == 1 and "does not allow this method" in err


READING = "echo ready; while read line; do echo got $line; test $line = end && exit 3; done; echo no more"


async def test_who_attaches_reads_what_comes_and_writes_to_the_containers_input(cluster: NodeCluster) -> None:
    await cluster.run("p", READING, container={"stdin": True})
    await cluster.until("p", lambda _: "ready" in cluster.log("p"))
    first = await cluster.kubectl("attach", "-i", "p", feed=b"one\n")
    assert await asyncio.wait_for(first.stdout.readline(), 30) == b"got one\n"
    first.kill()
    await first.wait()  # neither its end nor that of what it had to say is the end of the container's input
    code, out, _ = await cluster.says("attach", "-i", "p", feed=b"two\nend\n")
    assert "got two\ngot end\n" in out
    pod = await cluster.phase("p", "Failed")
    assert state(pod)["terminated"]["exitCode"] == 3
    code, _, err = await cluster.says("attach", "p")
    assert code == 1 and "cannot attach a container in a completed pod" in err


async def test_an_input_that_is_for_one_client_ends_with_it(cluster: NodeCluster) -> None:
    await cluster.run("p", READING, container={"stdin": True, "stdinOnce": True})
    await cluster.until("p", lambda _: "ready" in cluster.log("p"))
    assert (await cluster.says("attach", "-i", "p", feed=b"one\n"))[0] == 0
    await cluster.phase("p", "Succeeded")
    assert cluster.log("p").endswith("got one\nno more")


async def test_attach_has_a_terminal_where_the_container_has_one(cluster: NodeCluster) -> None:
    await cluster.run("p", "exec sh", container={"stdin": True, "tty": True})
    await cluster.ready("p")
    async with talking(cluster, "attach", stdin="true", stdout="true", tty="true") as (socket, read_until):
        await takes_sizes(socket, read_until)


async def test_a_client_that_does_not_read_is_let_go_and_the_container_goes_on(cluster: NodeCluster) -> None:
    much = "head -c 20000000 /dev/zero | tr '\\0' x | fold -w 1000"
    loud = f"until test -e /tmp/go; do sleep 0.05; done; {much}; touch /tmp/said; sleep 1000"
    await cluster.run("p", loud)
    await cluster.ready("p")
    async with talking(cluster, "attach", stdout="true") as (socket, _):
        assert (await cluster.says("exec", "p", "--", "touch", "/tmp/go"))[0] == 0

        async def said() -> bool:
            return (await cluster.says("exec", "p", "--", "test", "-e", "/tmp/said"))[0] == 0

        await cluster.eventually(said, 60)
        *_, last = [message async for message in socket]
    assert json.loads(last.data[1:])["message"] == "the client did not read fast enough"
