"""virt-api in front of a real API server: what users send is completed, checked, and answered at once.

The gateway runs here as a process of its own and is reached by URL, so that its own life (certificates, restarts) can
be tested too; in an installation the operator runs it as a Deployment behind a Service.
"""

from __future__ import annotations

import base64
import concurrent.futures
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster, Kubectl, free_port, start_local, stop_local

from virtfleet.api import crds
from virtfleet.kube import certificates, component
from virtfleet.kube.authority import Authority, Lifespan, Profile
from waiting import eventually

KEY = "only-the-api-server-is-told"
pytestmark = pytest.mark.local_home("its gateway listens on this machine's loopback")
LIFE = Lifespan(timedelta(hours=1), timedelta(minutes=20))
KUBEVIRT = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "KubeVirt",
    "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
    "spec": {},
}
MACHINES = [
    "virtualmachines",
    "virtualmachineinstances",
    "virtualmachineinstancereplicasets",
    "virtualmachineinstancemigrations",
]


def vmi(name: str, **spec: Any) -> dict[str, Any]:
    devices = {"disks": [{"name": "disk0", "disk": {"bus": "virtio"}}]}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name},
        "spec": {
            "domain": {"memory": {"guest": "128Mi"}, "devices": devices},
            "volumes": [{"name": "disk0", "containerDisk": {"image": "virtfleet/guest:demo"}}],
            **spec,
        },
    }


@dataclass
class Gateway:
    """A virt-api process and the certificates that it serves with."""

    cluster: Cluster
    directory: Path
    port: int = field(default_factory=free_port)
    authority: Authority = field(default_factory=lambda: Authority.create("test", LIFE))
    process: subprocess.Popen[bytes] | None = None

    def certify(self) -> None:
        profile = Profile("virt-api", LIFE, hosts=("127.0.0.1",))
        files = {**self.authority.issue(profile).files(), component.ADMISSION_KEY: KEY.encode()}
        certificates.write(self.directory, files)

    def start(self) -> None:
        command = [sys.executable, "-m", "virtfleet.gateway", "--kubeconfig", str(self.cluster.kubeconfig)]
        self.process = subprocess.Popen(
            [*command, "--certificates", str(self.directory), "--port", str(self.port)], stderr=subprocess.DEVNULL
        )
        eventually(lambda: self.get("/readyz") == b"ok")

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(30) == 0

    def get(self, path: str) -> bytes:
        context = certificates.client_context(self.authority.bundle)
        url = f"https://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, context=context, timeout=5) as answer:
            body: bytes = answer.read()
            return body

    def configuration(self, kind: str, path: str, rules: dict[str, list[str]]) -> dict[str, Any]:
        webhooks = [
            {
                "name": f"{plural}.{kind[:4].lower()}.kubevirt.io",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": {
                    "url": f"https://127.0.0.1:{self.port}{path}",
                    "caBundle": base64.b64encode(self.authority.bundle).decode(),
                },
                "rules": [
                    {
                        "apiGroups": ["kubevirt.io"],
                        "apiVersions": ["v1"],
                        "operations": operations,
                        "resources": [plural],
                    }
                ],
            }
            for plural, operations in rules.items()
        ]
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": "virt-api"},
            "webhooks": webhooks,
        }

    def register(self) -> None:
        changes = ["CREATE", "UPDATE"]
        Kubectl(self.cluster).apply(
            self.configuration(
                "MutatingWebhookConfiguration",
                component.admission_path(KEY, "mutate"),
                {"virtualmachines": changes, "virtualmachineinstances": changes},
            ),
            self.configuration(
                "ValidatingWebhookConfiguration",
                component.admission_path(KEY, "validate"),
                {**dict.fromkeys(MACHINES, changes), "kubevirts": [*changes, "DELETE"]},
            ),
        )


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    cluster = start_local("nodes: []")
    kubectl = Kubectl(cluster)
    kubectl("create", "-f", "-", stdin="\n---\n".join(map(json.dumps, crds.definitions())))
    kubectl("create", "namespace", "kubevirt")
    served = Gateway(cluster, tmp_path_factory.mktemp("certificates"))
    served.certify()
    served.start()
    served.register()
    Kubectl(cluster, "kubevirt")("create", "-f", "-", stdin=json.dumps(KUBEVIRT))
    eventually(lambda: kubectl.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(vmi("x"))).returncode == 0)
    yield served
    served.stop()
    stop_local(cluster)


@pytest.fixture
def kubectl(gateway: Gateway) -> Kubectl:
    return Kubectl(gateway.cluster)


def create(kubectl: Kubectl, *objects: dict[str, Any]) -> None:
    kubectl("create", "-f", "-", stdin="\n---\n".join(map(json.dumps, objects)))


def refused(kubectl: Kubectl, obj: dict[str, Any]) -> str:
    return kubectl.fails("create", "-f", "-", stdin=json.dumps(obj))


def test_a_vmi_gets_its_defaults(kubectl: Kubectl) -> None:
    create(kubectl, vmi("plain"))
    spec = kubectl.json("get", "vmi", "plain")["spec"]
    assert spec["domain"]["machine"]["type"] == "q35"
    assert spec["domain"]["cpu"]["sockets"] == 1
    assert spec["domain"]["firmware"]["uuid"]
    assert spec["networks"] == [{"name": "default", "pod": {}}]
    assert spec["evictionStrategy"] == "None"


def test_a_refusal_names_every_fault_with_its_field(kubectl: Kubectl) -> None:
    bad = vmi("bad", hypervisor="nonsense")
    bad["spec"]["domain"]["devices"]["disks"][0]["disk"]["bus"] = "floppy"
    error = refused(kubectl, bad)
    assert error.startswith("The request is invalid:")
    assert "spec.domain.devices.disks[0].disk.bus" in error
    assert "spec.hypervisor" in error


def test_what_a_hypervisor_cannot_do_is_refused_with_the_reason(kubectl: Kubectl) -> None:
    machine = vmi("graphic", hypervisor="cloud-hypervisor")
    machine["spec"]["domain"]["devices"]["autoattachGraphicsDevice"] = True
    error = refused(kubectl, machine)
    assert "cloud-hypervisor" in error
    assert "graphics" in error.lower()


def test_the_spec_of_a_vmi_cannot_be_edited(kubectl: Kubectl) -> None:
    create(kubectl, vmi("fixed"))
    error = kubectl.fails("patch", "vmi", "fixed", "--type=merge", "-p", '{"spec":{"terminationGracePeriodSeconds":5}}')
    assert "the spec of a VMI cannot change" in error
    kubectl("label", "vmi", "fixed", "mine=yes")


def test_a_migration_of_nothing_is_refused(kubectl: Kubectl) -> None:
    migration = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": "m"},
        "spec": {"vmiName": "nobody"},
    }
    assert 'nobody" does not exist' in refused(kubectl, migration)


def test_a_pool_with_running_vmis_cannot_be_removed(kubectl: Kubectl) -> None:
    pool = {
        "name": "megaslop",
        "virtLauncherImage": "example.com/launcher:v1",
        "nodeSelector": {"superduper.io/megaslop": "true"},
        "selector": {"vmLabels": {"matchLabels": {"pool": "megaslop"}}},
    }
    gates = {"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}}
    installation = Kubectl(kubectl.cluster, "kubevirt")
    patch = ("patch", "kubevirt", "kubevirt", "--type=merge", "-p")
    without_gate = installation.fails(*patch, json.dumps({"spec": {"virtHandlerPools": [pool]}}))
    assert "VirtHandlerPools feature gate" in without_gate
    installation(*patch, json.dumps({"spec": {"configuration": gates, "virtHandlerPools": [pool]}}))
    pooled = vmi("pooled")
    pooled["metadata"]["labels"] = {"pool": "megaslop"}
    create(kubectl, pooled)
    removal = json.dumps({"spec": {"virtHandlerPools": []}})
    eventually(lambda: "default/pooled" in installation.run(*patch, removal, "--dry-run=server").stderr)
    kubectl("delete", "vmi", "pooled", "--wait=false")
    kubectl("patch", "vmi", "pooled", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    eventually(lambda: installation.run(*patch, removal).returncode == 0)


def test_certificates_rotate_without_a_refused_request(gateway: Gateway, kubectl: Kubectl) -> None:
    """The authority, too, is replaced while users go on creating."""

    def dry_run(_: int) -> int:
        return kubectl.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(vmi("busy"))).returncode

    old = gateway.authority
    with concurrent.futures.ThreadPoolExecutor(2) as users:
        answers = users.map(dry_run, range(20))
        gateway.authority = old.succeeded()
        gateway.register()  # peers trust both from now on
        gateway.certify()
        assert set(answers) == {0}
    assert gateway.get("/livez") == b"ok"


def test_without_a_gateway_nothing_is_admitted_and_the_reason_is_clear(gateway: Gateway, kubectl: Kubectl) -> None:
    gateway.stop()
    try:
        error = refused(kubectl, vmi("closed"))
        assert "failed calling webhook" in error
        assert "NotFound" in kubectl.fails("get", "vmi", "closed")
    finally:
        gateway.start()
    create(kubectl, vmi("open"))
