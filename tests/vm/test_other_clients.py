"""A VM is made, changed, moved and deleted with clients that others wrote, as they come from PyPI.

openshift-python-wrapper and Ansible with kubevirt.core have an environment of their own, pinned in clients/, which is
made once and kept in the cache. Ansible's collections come out of the package `ansible`, of which two are unpacked.
Terraform is not tried: neither PyPI nor Debian has a Terraform of this decade, or its provider for Kubernetes.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from cluster.clusters import Cluster, Kubectl
from virtfleet.local import guestimage
from vm.accessed import a_vm

NAMESPACE = "clients"
HERE = Path(__file__).parent / "clients"
TOOLS = HERE.parents[2] / ".tools/bin"
COLLECTIONS = ("kubernetes/core", "kubevirt/core")

pytestmark = pytest.mark.timeout(600)


@cache
def environment() -> Path:
    """Where the clients are installed, as the locks say."""
    locks = [HERE / "requirements.lock", HERE / "collections.lock"]
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()[:12]
    made = guestimage.default_cache() / f"clients-{digest}"
    if made.exists():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        place = Path(scratch, "made")
        installing = ("pip", "sync", "--python", place, "--require-hashes", "--link-mode", "copy", locks[0])
        for arguments in (("venv", "--python", "/usr/bin/python3", "--relocatable", place), installing):
            _run(TOOLS / "uv", *arguments, "--quiet")
        _run(TOOLS / "pip", "download", "--quiet", "--no-deps", "--require-hashes", "-r", locks[1], "-d", scratch)
        with zipfile.ZipFile(next(Path(scratch).glob("ansible-*.whl"))) as wheel:
            wanted = tuple(f"ansible_collections/{collection}/" for collection in COLLECTIONS)
            wheel.extractall(place, [name for name in wheel.namelist() if name.startswith(wanted)])
        place.rename(made)
    return made


def _run(*command: str | Path, **more: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, **more)
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def namespace(fleet: Cluster) -> Iterator[str]:
    kubectl = Kubectl(fleet, NAMESPACE)
    kubectl("create", "namespace", NAMESPACE)
    yield NAMESPACE
    kubectl("delete", "vm", "--all", "--timeout=80s")
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
def as_user(fleet: Cluster, tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has the clients and a kubeconfig."""
    own = {"KUBECONFIG": str(fleet.kubeconfig), "HOME": str(tmp_path), "OPENSHIFT_PYTHON_WRAPPER_LOG_LEVEL": "WARNING"}
    path = f"{environment() / 'bin'}:{os.environ['PATH']}"
    ansible = {"ANSIBLE_COLLECTIONS_PATH": str(environment()), "ANSIBLE_PIPELINING": "1"}
    return {**os.environ, **own, **ansible, "PATH": path}


def the_vm() -> dict[str, Any]:
    vm = a_vm("nobody's")
    vm["spec"]["template"]["spec"]["domain"]["cpu"] = {"sockets": 1}
    return vm


@pytest.mark.thorough("it asks what the official client asks")
def test_openshift_python_wrapper(namespace: str, as_user: dict[str, str]) -> None:
    spec = the_vm()["spec"] | {"runStrategy": "Manual"}
    _run("python", HERE / "life.py", namespace, json.dumps(spec), env=as_user)


@pytest.mark.thorough("it asks what the official client asks")
def test_ansible(namespace: str, as_user: dict[str, str], tmp_path: Path) -> None:
    inventory = {"plugin": "kubevirt.core.kubevirt", "namespaces": [namespace]}
    (tmp_path / "inventory.kubevirt.yaml").write_text(json.dumps(inventory))
    given = {"home": namespace, "spec": the_vm()["spec"]["template"]["spec"], "directory": str(tmp_path)}
    _run("ansible-playbook", HERE / "life.yaml", "-e", json.dumps(given), env=as_user)


def test_the_official_client(namespace: str, fleet: Cluster) -> None:
    client = kubernetes.config.new_client_from_config(str(fleet.kubeconfig))
    objects = kubernetes.client.CustomObjectsApi(client)
    where = ("kubevirt.io", "v1", namespace)

    def until(plural: str, name: str, came: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The object as soon as it is so, as a watch tells."""
        watch = kubernetes.watch.Watch()
        stream = watch.stream(
            objects.list_namespaced_custom_object, *where, plural, field_selector=f"metadata.name={name}",
            timeout_seconds=200,
        )  # fmt: skip
        for event in stream:
            if came(event["object"]):
                watch.stop()
                return dict(event["object"])
        raise AssertionError(f"the watch of {plural} ended")

    vm = the_vm() | {"metadata": {"name": "official"}}
    objects.create_namespaced_custom_object(*where, "virtualmachines", vm)
    until("virtualmachines", "official", lambda o: o.get("status", {}).get("ready"))
    before = objects.get_namespaced_custom_object(*where, "virtualmachineinstances", "official")
    larger = {"spec": {"template": {"spec": {"domain": {"cpu": {"sockets": 2}}}}}}
    objects.patch_namespaced_custom_object(*where, "virtualmachines", "official", larger)
    until("virtualmachineinstances", "official", _has_two_sockets)
    migration = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstanceMigration",
        "metadata": {"generateName": "official-"},
        "spec": {"vmiName": "official"},
    }
    made = objects.create_namespaced_custom_object(*where, "virtualmachineinstancemigrations", migration)
    moved = until(
        "virtualmachineinstancemigrations", made["metadata"]["name"],
        lambda o: o.get("status", {}).get("phase") in ("Succeeded", "Failed"),
    )  # fmt: skip
    assert moved["status"]["phase"] == "Succeeded", moved["status"]
    after = objects.get_namespaced_custom_object(*where, "virtualmachineinstances", "official")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["nodeName"] != before["status"]["nodeName"]
    seen = objects.list_namespaced_custom_object(*where, "virtualmachineinstances")["metadata"]["resourceVersion"]
    objects.delete_namespaced_custom_object(*where, "virtualmachines", "official")
    watch = kubernetes.watch.Watch()
    for event in watch.stream(
        objects.list_namespaced_custom_object, *where, "virtualmachineinstances", resource_version=seen,
        field_selector="metadata.name=official", timeout_seconds=100,
    ):  # fmt: skip
        if event["type"] == "DELETED":
            return
    raise AssertionError("the instance is still there")


def _has_two_sockets(vmi: dict[str, Any]) -> bool:
    status = vmi.get("status", {})
    waits = {c["type"] for c in status.get("conditions", ())} & {"HotVCPUChange", "MigrationRequired"}
    return status.get("currentCPUTopology", {}).get("sockets") == 2 and not waits
