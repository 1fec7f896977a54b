"""Other people's clients: each makes a VM, changes it, has it migrate, and deletes it.

The official Python client comes with the tests. The others are installed for the test, each into an environment of its
own, from whatever index the machine is set up for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.clusters import Cluster, Kubectl
from vm.accessed import a_vm
from vm.guests import PATIENCE
from waiting import eventually

NAMESPACE = "clients"

pytestmark = [
    pytest.mark.on_demand("OTHER_CLIENTS", "it installs clients, and boots and moves a VM with each"),
    pytest.mark.timeout(1500),
]

# Programs are given the VM as JSON, and print a word when a step is done.
_OFFICIAL = """
import json, sys, time, kubernetes
vm = json.load(sys.stdin)
namespace, name = vm["metadata"]["namespace"], vm["metadata"]["name"]
api = kubernetes.client.CustomObjectsApi(kubernetes.config.new_client_from_config())
at = ("kubevirt.io", "v1", namespace)
def until(what, plural, wanted, test):
    for _ in range(600):
        if test(api.get_namespaced_custom_object(*at, plural, wanted)):
            return print(what, flush=True)
        time.sleep(0.5)
    raise SystemExit(f"never {what}")
api.create_namespaced_custom_object(*at, "virtualmachines", vm)
until("ready", "virtualmachines", name, lambda o: o.get("status", {}).get("ready"))
api.patch_namespaced_custom_object(*at, "virtualmachines", name, {"metadata": {"labels": {"changed": "yes"}}})
move = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": "move"}, "spec": {"vmiName": name}}
api.create_namespaced_custom_object(*at, "virtualmachineinstancemigrations", move)
until("moved", "virtualmachineinstancemigrations", "move", lambda o: o.get("status", {}).get("phase") == "Succeeded")
api.delete_namespaced_custom_object(*at, "virtualmachines", name)
"""

_WRAPPER = """
import json, sys
from ocp_resources.resource import get_client
from ocp_resources.virtual_machine import VirtualMachine
from ocp_resources.virtual_machine_instance_migration import VirtualMachineInstanceMigration
body = json.load(sys.stdin)
namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
client = get_client()
vm = VirtualMachine(client=client, name=name, namespace=namespace, body=body["spec"]["template"])
vm.res = body
vm.to_dict = lambda: None
vm.create()
vm.wait_for_ready_status(status=True, timeout=300)
print("ready", flush=True)
vm.update({"metadata": {"name": name, "labels": {"changed": "yes"}}})
move = VirtualMachineInstanceMigration(client=client, name="move", namespace=namespace, vmi_name=name)
move.create()
move.wait_for_status(status="Succeeded", timeout=300)
print("moved", flush=True)
assert vm.delete(wait=True, timeout=300)
"""

_PLAYBOOK = """
- hosts: localhost
  gather_facts: false
  vars: {vm: "{{ lookup('file', 'vm.json') | from_json }}"}
  tasks:
  - kubevirt.core.kubevirt_vm:
      state: present
      name: "{{ vm.metadata.name }}"
      namespace: "{{ vm.metadata.namespace }}"
      run_strategy: Always
      spec: "{{ vm.spec.template.spec }}"
      wait: true
      wait_timeout: 300
  - kubernetes.core.k8s:
      state: patched
      api_version: kubevirt.io/v1
      kind: VirtualMachine
      name: "{{ vm.metadata.name }}"
      namespace: "{{ vm.metadata.namespace }}"
      definition: {metadata: {labels: {changed: "yes"}}}
  - kubernetes.core.k8s:
      state: present
      definition:
        apiVersion: kubevirt.io/v1
        kind: VirtualMachineInstanceMigration
        metadata: {name: move, namespace: "{{ vm.metadata.namespace }}"}
        spec: {vmiName: "{{ vm.metadata.name }}"}
  - kubernetes.core.k8s_info:
      api_version: kubevirt.io/v1
      kind: VirtualMachineInstanceMigration
      name: move
      namespace: "{{ vm.metadata.namespace }}"
    register: move
    until: move.resources[0].status.phase | default('') == 'Succeeded'
    retries: 150
    delay: 2
  - kubevirt.core.kubevirt_vm:
      state: absent
      name: "{{ vm.metadata.name }}"
      namespace: "{{ vm.metadata.namespace }}"
      wait: true
      wait_timeout: 300
"""


@pytest.fixture
def kubectl(fleet: Cluster, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    kubectl = Kubectl(fleet, f"{NAMESPACE}-{request.node.name.split('_')[-1]}")
    kubectl("create", "namespace", kubectl.namespace)
    try:
        yield kubectl
    finally:
        kubectl("delete", "vm", "--all", "--timeout=80s")
        kubectl("delete", "namespace", kubectl.namespace, "--wait=false")


def machine(kubectl: Kubectl) -> dict[str, Any]:
    vm = a_vm("ssh-ed25519 AAAA nobody")
    vm["metadata"]["namespace"] = kubectl.namespace
    return vm


def environment(where: Path, *packages: str) -> Path:
    """The directory of programs of a new environment with these packages."""
    subprocess.run([sys.executable, "-m", "venv", str(where)], check=True)
    subprocess.run([where / "bin/pip", "install", "-q", *packages], check=True, timeout=900)
    return where / "bin"


def runs(kubectl: Kubectl, *command: str | Path, stdin: str = "", **places: Any) -> str:
    known = {**os.environ, "KUBECONFIG": str(kubectl.cluster.kubeconfig)}
    done = subprocess.run(
        [str(word) for word in command], input=stdin, capture_output=True, text=True, timeout=900, env=known, **places
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def judged(kubectl: Kubectl) -> None:
    """What has to be true in the end, whoever did it."""
    move = kubectl.json("get", "vmim", "move")
    assert move["status"]["phase"] == "Succeeded"
    eventually(lambda: not kubectl.json("get", "vm,vmi")["items"], PATIENCE)


def test_the_official_client(kubectl: Kubectl) -> None:
    said = runs(kubectl, sys.executable, "-c", _OFFICIAL, stdin=json.dumps(machine(kubectl)))
    assert said.split() == ["ready", "moved"]
    judged(kubectl)


def test_the_python_wrapper(kubectl: Kubectl, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", "openshift-python-wrapper") / "python"
    said = runs(kubectl, python, "-c", _WRAPPER, stdin=json.dumps(machine(kubectl)))
    assert said.split()[-2:] == ["ready", "moved"]
    judged(kubectl)


def test_the_collection_for_ansible(kubectl: Kubectl, tmp_path: Path) -> None:
    """The package `ansible` brings the collections kubevirt.core and kubernetes.core along."""
    programs = environment(tmp_path / "venv", "ansible", "kubernetes")
    (tmp_path / "vm.json").write_text(json.dumps(machine(kubectl)))
    (tmp_path / "play.yaml").write_text(_PLAYBOOK)
    interpreter = f"ansible_python_interpreter={programs / 'python'}"
    runs(kubectl, programs / "ansible-playbook", "-e", interpreter, tmp_path / "play.yaml", cwd=tmp_path)
    judged(kubectl)
