"""Probes that reach into a container over the network, and what follows from their verdicts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from node_cluster import NodeCluster, needs_root, node_cluster, restarts, state

from virtfleet.kube.resource import EVENTS

pytestmark = [needs_root, pytest.mark.slow]

# Listens after a moment; is well once /d/well is there; writes down what it is asked for.
SERVER = """
import http.server, os, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open('/d/asked', 'a') as asked:
            print(self.path, self.headers.get('X-From', ''), file=asked)
        self.send_response(200 if self.path != '/ready' or os.path.exists('/d/well') else 503)
        self.end_headers()
    def log_message(self, *_): pass
time.sleep(0.3)
http.server.HTTPServer(('', 8080), Handler).serve_forever()
"""


@pytest.fixture
async def cluster() -> AsyncIterator[NodeCluster]:
    async with node_cluster() as made:
        await made.start()
        yield made


async def said(cluster: NodeCluster, *parts: str) -> None:
    """An event has told all of this."""

    async def look() -> bool:
        messages = [event["message"] for event in await cluster.api.list(EVENTS, "default")]
        return any(all(part in message for part in parts) for message in messages)

    await cluster.eventually(look)


async def test_tcp_and_http_probes_by_a_ports_name(cluster: NodeCluster) -> None:
    shared = cluster.directory / "shared"
    shared.mkdir()
    ask: dict[str, Any] = {"port": "web", "httpHeaders": [{"name": "X-From", "value": "node"}]}
    await cluster.run(
        "p",
        "",
        restartPolicy="Always",
        terminationGracePeriodSeconds=5,
        volumes=[{"name": "d", "hostPath": {"path": str(shared)}}],
        container={
            "command": ["python3", "-c", SERVER],
            "ports": [{"name": "web", "containerPort": 8080}],
            "volumeMounts": [{"name": "d", "mountPath": "/d"}],
            "startupProbe": {"tcpSocket": {"port": "web"}, "periodSeconds": 1, "failureThreshold": 30},
            "readinessProbe": {"httpGet": {**ask, "path": "/ready"}, "periodSeconds": 1},
        },
    )
    pod = await cluster.until("p", lambda p: (p["status"].get("containerStatuses") or [{}])[0].get("started"))
    assert not pod["status"]["containerStatuses"][0]["ready"]
    await said(cluster, "Readiness probe failed: HTTP probe failed with statuscode: 503")
    (shared / "well").touch()
    pod = await cluster.ready("p")
    assert restarts(pod) == 0
    (shared / "well").unlink()
    await cluster.until("p", lambda p: not p["status"]["containerStatuses"][0]["ready"])
    assert (shared / "asked").read_text().splitlines()[-1] == "/ready node"


async def test_a_port_that_nobody_listens_on_ends_the_container(cluster: NodeCluster) -> None:
    liveness = {"tcpSocket": {"port": 1}, "periodSeconds": 1, "failureThreshold": 1}
    script = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
    await cluster.run("deaf", script, restartPolicy="Always", container={"livenessProbe": liveness})
    await cluster.until("deaf", lambda p: restarts(p) >= 1)
    await said(cluster, "Liveness probe failed: dial tcp", ":1: ")


async def test_a_user_that_the_pod_forbids_is_refused_before_anything_runs(cluster: NodeCluster) -> None:
    rule = {"securityContext": {"runAsNonRoot": True}}
    await cluster.run("root", "true", container=rule)
    pod = await cluster.until("root", lambda p: "waiting" in state(p) and "Error" in state(p)["waiting"]["reason"])
    waiting = state(pod)["waiting"]
    assert waiting["reason"] == "CreateContainerConfigError"
    assert waiting["message"] == "container has runAsNonRoot and image will run as root (container: c)"
    named = {"securityContext": {**rule["securityContext"], "runAsUser": 107}}
    assert await cluster.output("qemu", "id -u", container=named) == "107"
