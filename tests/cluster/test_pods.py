"""Pods as people use them through kubectl: logs, exec, Services, access from inside, devices, and nodes that fail."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import urllib.request
from typing import Any

import pytest
from clusters import KUBECONFIG, VIRTFLEET, Cluster, Kubectl, start_local, stop_local
from manifests import FOREVER, IMAGE, pod, workload

from waiting import eventually

pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0 and not KUBECONFIG, reason="local nodes run real containers, which needs root"
    ),
    pytest.mark.thorough("they are Kubernetes' Pods there"),
]
its_own_nodes = pytest.mark.local_home("its nodes have pretend devices, and are killed")


def shell(script: str, **extra: Any) -> list[dict[str, Any]]:
    return [{"name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", script], **extra}]


def ready(kubectl: Kubectl, *names: str) -> None:
    kubectl("wait", *(f"pod/{name}" for name in names), "--for=condition=Ready", "--timeout=60s")


def test_logs_follow_a_container_to_its_end(kubectl: Kubectl) -> None:
    kubectl.apply(
        pod("q", containers=shell("mkfifo /tmp/go; echo one; read x < /tmp/go; echo two"), restartPolicy="Never")
    )
    ready(kubectl, "q")
    with kubectl.start("logs", "-f", "q") as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "one\n"
        kubectl("exec", "q", "--", "/bin/sh", "-c", "echo go > /tmp/go")
        assert following.stdout.readline() == "two\n"
        assert following.wait(30) == 0
    kubectl("wait", "pod/q", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=30s")
    assert kubectl("logs", "q", "--tail=1") == "two\n"
    assert kubectl("logs", "q", "--timestamps").splitlines()[0].endswith(" one")


def test_a_sidecar_goes_on_beside_the_others_and_ends_after_them(kubectl: Kubectl) -> None:
    side = shell("trap 'echo ends; exit 0' TERM; echo begins; while :; do sleep 0.1; done", name="side")
    main = shell("until test -e /tmp/go; do sleep 0.1; done")
    before = [{**side[0], "restartPolicy": "Always"}]
    kubectl.apply(pod("p", containers=main, initContainers=before, restartPolicy="Never"))
    ready(kubectl, "p")
    assert kubectl("get", "pod", "p", "--no-headers").split()[1:3] == ["2/2", "Running"]
    assert kubectl("logs", "p", "-c", "side") == "begins\n"
    kubectl("exec", "p", "-c", "main", "--", "touch", "/tmp/go")
    kubectl("wait", "pod/p", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=30s")
    assert kubectl("logs", "p", "-c", "side") == "begins\nends\n"


def test_exec_passes_input_output_and_exit_code(kubectl: Kubectl) -> None:
    kubectl.apply(pod("p"))
    ready(kubectl, "p")
    assert kubectl("exec", "-i", "p", "--", "cat", stdin="through\n") == "through\n"
    failed = kubectl.run("exec", "p", "--", "/bin/sh", "-c", "echo out; echo err >&2; exit 7")
    assert (failed.returncode, failed.stdout) == (7, "out\n")
    assert failed.stderr.startswith("err\n")
    assert "container other is not valid for pod p" in kubectl.fails("exec", "p", "-c", "other", "--", "true")


def test_exec_with_a_terminal(kubectl: Kubectl) -> None:
    kubectl.apply(pod("p"))
    ready(kubectl, "p")
    ours, theirs = pty.openpty()
    command = kubectl.command("exec", "-it", "p", "--", "/bin/sh")
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as session:
        os.close(theirs)
        os.write(ours, b"echo $((20 + 22)); tty; exit 3\n")
        said = b""
        while session.poll() is None or b"/dev/pts" not in said:
            try:
                said += os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
        assert session.wait(30) == 3
    os.close(ours)
    assert b"42" in said
    assert b"/dev/pts/" in said


def test_attach_shows_what_a_container_says_and_writes_to_its_input(kubectl: Kubectl) -> None:
    reading = "while read line; do test $line = bye && exit; echo got $line; done"
    kubectl.apply(pod("p", containers=shell(reading, stdin=True), restartPolicy="Never"))
    ready(kubectl, "p")
    # What a container says last is not always heard where it ends at once, on any Kubernetes.
    with kubectl.start("attach", "-q", "-i", "p", stdin=subprocess.PIPE) as attached:
        assert attached.stdin and attached.stdout
        for line in ("one\n", "end\n"):
            attached.stdin.write(line)
            attached.stdin.flush()
            assert attached.stdout.readline() == f"got {line}"
        attached.stdin.write("bye\n")
        attached.stdin.close()
        assert attached.wait(60) == 0
    kubectl("wait", "pod/p", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=30s")


def test_debug_adds_a_container_that_sees_the_processes_of_another(kubectl: Kubectl) -> None:
    kubectl.apply(pod("p"))
    ready(kubectl, "p")
    look = ("--", "/bin/sh", "-c", "tr '\\0' ' ' < /proc/1/cmdline")
    kubectl("debug", "p", f"--image={IMAGE}", "--profile=general", "-c", "looking", "--target=main", *look)
    eventually(lambda: "while :" in kubectl("logs", "p", "-c", "looking"), 60)
    ended = "{.status.ephemeralContainerStatuses[0].state.terminated.exitCode}"
    eventually(lambda: kubectl("get", "pod", "p", "-o", f"jsonpath={ended}") == "0", 30)
    assert kubectl("get", "pod", "p", "--no-headers").split()[1:4] == ["1/1", "Running", "0"]


SERVER = (
    "import http.server, socket\n"
    "class H(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.end_headers(); self.wfile.write(socket.gethostname().encode())\n"
    "http.server.ThreadingHTTPServer(('%s', 8080), H).serve_forever()\n"
)


def serving(address: str) -> dict[str, Any]:
    return {"name": "main", "image": IMAGE, "command": ["/usr/bin/python3", "-c", SERVER % address]}


def test_ports_of_pods_and_services_are_forwarded(kubectl: Kubectl) -> None:
    """Also of what listens on the Pod's own 127.0.0.1 alone."""
    listens = ["/usr/bin/python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 8080))"]
    probe = {"readinessProbe": {"exec": {"command": listens}, "periodSeconds": 1, "timeoutSeconds": 20}}
    kubectl.apply(pod("web", {"app": "web"}, containers=[{**serving("127.0.0.1"), **probe}]))
    kubectl("expose", "pod/web", "--port=80", "--target-port=8080")
    ready(kubectl, "web")
    for what, port in (("pod/web", ":8080"), ("svc/web", ":80")):
        with kubectl.start("port-forward", "--address=127.0.0.1", what, port) as forwarding:
            assert forwarding.stdout is not None
            here = forwarding.stdout.readline().split()[2]
            for _ in range(3):
                with urllib.request.urlopen(f"http://{here}/", timeout=30) as answer:
                    assert answer.read() == b"web"
            forwarding.terminate()


def test_who_may_only_read_forwards_no_ports(kubectl: Kubectl) -> None:
    kubectl("create", "serviceaccount", "robot")
    kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods,pods/portforward")
    kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={kubectl.namespace}:robot")
    kubectl.apply(pod("p"))
    ready(kubectl, "p")
    robot = f"system:serviceaccount:{kubectl.namespace}:robot"
    assert 'cannot create resource "pods/portforward"' in kubectl.fails("port-forward", "pod/p", ":80", "--as", robot)


def test_a_service_balances_over_its_pods(kubectl: Kubectl) -> None:
    web = workload("Deployment", "web", replicas=2)
    probe = {"readinessProbe": {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 1}}
    web["spec"]["template"]["spec"]["containers"] = [{**serving(""), **probe}]
    kubectl.apply(web, pod("client"))
    kubectl("expose", "deploy/web", "--port=80", "--target-port=8080")
    kubectl("rollout", "status", "deploy/web", "--timeout=60s")
    ready(kubectl, "client")
    address = kubectl.json("get", "service", "web")["spec"]["clusterIP"]
    ask = f"import urllib.request as u; print(u.urlopen('http://{address}/', timeout=5).read().decode())"
    names = {p["metadata"]["name"] for p in kubectl.json("get", "pods", "-l", "app=web")["items"]}
    answered: set[str] = set()

    def everybody() -> bool:
        answered.add(kubectl("exec", "client", "--", "/usr/bin/python3", "-c", ask).strip())
        return answered == names

    eventually(everybody, 60)


def test_a_pod_may_do_what_its_service_account_may_and_no_more(kubectl: Kubectl) -> None:
    kubectl("create", "serviceaccount", "reader")
    kubectl("create", "role", "reader", "--verb=get,list", "--resource=configmaps")
    kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={kubectl.namespace}:reader")
    kubectl.apply(pod("p", serviceAccountName="reader"))
    ready(kubectl, "p")
    script = (
        "import os, ssl, urllib.error, urllib.request as u, sys\n"
        "d = '/var/run/secrets/kubernetes.io/serviceaccount/'\n"
        "token = open(d + 'token').read()\n"
        "host, port = os.environ['KUBERNETES_SERVICE_HOST'], os.environ['KUBERNETES_SERVICE_PORT']\n"
        "ns = open(d + 'namespace').read()\n"
        "for what in sys.argv[1:]:\n"
        "    r = u.Request(f'https://{host}:{port}/api/v1/namespaces/{ns}/{what}')\n"
        "    r.add_header('Authorization', 'Bearer ' + token)\n"
        "    try: print(u.urlopen(r, context=ssl.create_default_context(cafile=d + 'ca.crt')).status)\n"
        "    except urllib.error.HTTPError as e: print(e.code)\n"
    )
    done = kubectl("exec", "p", "--", "/usr/bin/python3", "-c", script, "configmaps", "secrets")
    assert done.split() == ["200", "403"]


@pytest.fixture(scope="module")
def fleet() -> Any:
    """A local cluster of its own whose nodes may fail, with pretend devices on one of them."""
    local = start_local("nodes: [{name: plain}, {name: special, devices: {superduper.io/MegaSlop_9000: 2}}]")
    yield local
    stop_local(local)


@its_own_nodes
def test_devices_are_counted_handed_out_and_given_back(fleet: Cluster) -> None:
    kubectl = Kubectl(fleet)

    def with_device(name: str) -> dict[str, Any]:
        resources = {"limits": {"superduper.io/MegaSlop_9000": "1"}}
        return pod(name, containers=[{"name": "c", "image": IMAGE, "command": FOREVER, "resources": resources}])

    assert kubectl.json("get", "node", "special")["status"]["allocatable"]["superduper.io/MegaSlop_9000"] == "2"
    kubectl.apply(*(with_device(f"d{n}") for n in range(3)))
    eventually(lambda: len(running(kubectl, "d")) == 2)
    waiting = ({"d0", "d1", "d2"} - running(kubectl, "d")).pop()
    assert "Insufficient superduper.io/MegaSlop_9000" in kubectl("describe", "pod", waiting)
    first = min(running(kubectl, "d"))
    given = kubectl("exec", first, "--", "/usr/bin/env")
    assert "MEGASLOP" in given.upper()
    kubectl("delete", "pod", first)
    eventually(lambda: waiting in running(kubectl, "d"))
    kubectl("delete", "pod", "--all", "--now")


def running(kubectl: Kubectl, prefix: str) -> set[str]:
    items = kubectl.json("get", "pods")["items"]
    return {
        p["metadata"]["name"]
        for p in items
        if p["metadata"]["name"].startswith(prefix) and p["status"].get("phase") == "Running"
    }


@its_own_nodes
def test_a_node_that_loses_its_power_comes_back_with_its_pods(fleet: Cluster) -> None:
    kubectl = Kubectl(fleet)
    kubectl.apply(pod("p", nodeSelector={"kubernetes.io/hostname": "plain"}))
    ready(kubectl, "p")
    before = kubectl.json("get", "pod", "p")["status"]["containerStatuses"][0]["containerID"]
    done = subprocess.run(
        [*node_command(fleet, "kill", "plain"), "-o", "json"], capture_output=True, text=True, timeout=60
    )
    assert json.loads(done.stdout)["agent"] == "killed", done.stderr
    subprocess.run(node_command(fleet, "start", "plain"), check=True, timeout=60)

    def again() -> bool:
        status = kubectl.json("get", "pod", "p")["status"]["containerStatuses"][0]
        return bool(status.get("ready")) and status["containerID"] != before

    eventually(again, 60)
    assert kubectl("exec", "p", "--", "echo", "back") == "back\n"
    kubectl("delete", "pod", "p", "--now")


def node_command(cluster: Cluster, action: str, name: str) -> list[str]:
    return [VIRTFLEET, "node", action, name, "--data", str(cluster.data)]
