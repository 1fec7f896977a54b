"""DataVolumes without CDI: claims that are filled from everywhere. test_examples.py boots a VM from one."""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.clusters import Cluster, Kubectl, free_port
from cluster.manifests import pod
from vm.guests import PATIENCE
from vm.test_virtctl import virtctl
from waiting import eventually

NAMESPACE = "filled"

pytestmark = pytest.mark.timeout(600)

SERVER = "http.server --directory /tmp/www 8080"


def volume(name: str, source: dict[str, Any], size: str = "48Mi", **claim: Any) -> dict[str, Any]:
    return {
        "apiVersion": "cdi.kubevirt.io/v1beta1",
        "kind": "DataVolume",
        "metadata": {"name": name},
        "spec": {"source": source, "storage": {"resources": {"requests": {"storage": size}}, **claim}},
    }


@pytest.fixture(scope="module")
def kubectl(fleet: Cluster) -> Iterator[Kubectl]:
    kubectl = Kubectl(fleet, NAMESPACE)
    kubectl("create", "namespace", NAMESPACE)
    try:
        yield kubectl
    finally:
        kubectl("delete", "vm,pod,dv", "--all", "--timeout=80s")
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def phase(kubectl: Kubectl, name: str, *wanted: str) -> dict[str, Any]:
    """The DataVolume, once it is in one of these phases."""

    def reached() -> dict[str, Any]:
        found: dict[str, Any] = kubectl.json("get", "dv", name)
        assert found.get("status", {}).get("phase") in wanted, found.get("status")
        return found

    return eventually(reached, PATIENCE)


def inside(kubectl: Kubectl, claim: str, command: str) -> str:
    """What a command says in a Pod that has a claim at /claim."""
    name = f"look-{claim}"
    volumes = [{"name": "claim", "persistentVolumeClaim": {"claimName": claim}}]
    looking = pod(name, volumes=volumes)
    [container] = looking["spec"]["containers"]
    container["volumeMounts"] = [{"name": "claim", "mountPath": "/claim"}]
    kubectl.apply(looking)
    kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=80s")
    said = kubectl("exec", name, "--", "/bin/sh", "-c", command)
    kubectl("delete", "pod", name, "--timeout=60s")
    return said


def test_claims_are_filled_from_nothing_from_the_web_and_from_each_other(kubectl: Kubectl) -> None:
    server = pod("server")
    [container] = server["spec"]["containers"]
    made = "mkdir /tmp/www && head -c 3000000 /dev/urandom > /tmp/www/disk && gzip -k /tmp/www/disk"
    container["command"] = ["/bin/sh", "-c", f"{made} && exec python3 -m {SERVER}"]
    container["readinessProbe"] = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    kubectl.apply(server)
    kubectl("wait", "pod/server", "--for=condition=Ready", "--timeout=80s")
    at = f"http://{kubectl.json('get', 'pod', 'server')['status']['podIP']}:8080"
    kubectl.apply(
        volume("blank", {"blank": {}}),
        volume("web", {"http": {"url": f"{at}/disk.gz"}}),
        volume("small", {"http": {"url": f"{at}/disk"}}, size="1Mi"),
        volume("later", {"http": {"url": f"{at}/none"}}),
        volume("copy", {"pvc": {"name": "web", "namespace": NAMESPACE}}),
    )
    phase(kubectl, "blank", "Succeeded")
    phase(kubectl, "web", "Succeeded")
    failed = phase(kubectl, "small", "Failed")
    running = next(c for c in failed["status"]["conditions"] if c["type"] == "Running")
    assert "ask for more storage" in running["message"]
    phase(kubectl, "copy", "Succeeded")
    assert kubectl("exec", "server", "--", "sha256sum", "/tmp/www/disk").split()[0] == inside(
        kubectl, "copy", "head -c 3000000 /claim/disk.img | sha256sum; stat -c %s /claim/disk.img >&2"
    ).split()[0]  # fmt: skip
    assert inside(kubectl, "blank", "stat -c %s /claim/disk.img; ls -A /claim").split() == [str(48 << 20), "disk.img"]

    def told() -> bool:
        later = kubectl.json("get", "dv", "later")["status"]
        assert later["phase"] == "ImportInProgress"
        assert later["restartCount"] > 0
        assert any("404" in c.get("message", "") for c in later["conditions"]), later
        return True

    eventually(told, PATIENCE)
    kubectl("exec", "server", "--", "cp", "/tmp/www/disk", "/tmp/www/none")
    phase(kubectl, "later", "Succeeded")
    assert "does not import from s3" in kubectl.fails(
        "apply", "-f", "-", stdin=json.dumps(volume("s3", {"s3": {"url": "http://x/y"}}))
    )


@contextmanager
def uploading(cluster: Cluster) -> Iterator[str]:
    """Where virt-api is reached from here."""
    kubectl = Kubectl(cluster, "kubevirt")
    if cluster.data:  # this machine is on the network of its Pods
        [first, *_] = kubectl.json("get", "pods", "-l", "kubevirt.io=virt-api")["items"]
        yield f"https://{first['status']['podIP']}:8443"
        return
    port = free_port()
    forwarding = kubectl.start("port-forward", "service/virt-api", f"{port}:443")
    try:
        assert forwarding.stdout
        assert "Forwarding" in forwarding.stdout.readline()
        yield f"https://127.0.0.1:{port}"
    finally:
        forwarding.kill()
        forwarding.wait()


def test_a_disk_is_uploaded_with_virtctl(kubectl: Kubectl, tmp_path: Path) -> None:
    image = tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(image), "16M"], check=True)
    subprocess.run(["qemu-io", "-c", "write -P 0x5a 1M 64k", str(image)], check=True, capture_output=True)
    with uploading(kubectl.cluster) as url:
        for kind, name in (("dv", "sent"), ("pvc", "sent-to-claim")):
            words = ("image-upload", kind, name, "--size=32Mi", f"--image-path={image}", "--insecure")
            where = ("--uploadproxy-url", url, "--kubeconfig", str(kubectl.cluster.kubeconfig), "-n", NAMESPACE)
            done = subprocess.run([virtctl(), *words, *where], capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, done.stdout + done.stderr
            assert inside(kubectl, name, "dd if=/claim/disk.img bs=1M skip=1 count=1 | head -c 3") == "ZZZ"
        forged = urllib.request.Request(f"{url}/v1beta1/upload", b"disk", {"Authorization": "Bearer nobody"})
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(forged, context=ssl._create_unverified_context())
    phase(kubectl, "sent", "Succeeded")
