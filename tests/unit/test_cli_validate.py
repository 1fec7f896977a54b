"""`virtfleet validate` and `virtfleet render vmi` on files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from virtfleet.cli.main import main

VMI = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: one, namespace: default}
spec:
  domain:
    memory: {guest: 1Gi}
    devices: {disks: [{name: root, disk: {bus: virtio}}]}
  volumes: [{name: root, containerDisk: {image: "registry.example.com/disk:v1"}}]
"""
VM = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: two, namespace: web}
spec:
  runStrategy: Always
  template:
    metadata: {labels: {app: web}}
    spec:
      hostname: web-1
      domain: {memory: {guest: 1Gi}, devices: {}}
"""
KUBEVIRT = """
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata: {name: kubevirt, namespace: kubevirt}
spec: {configuration: {cpuModel: EPYC}}
"""


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=text, catch_exceptions=False)


def written(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def test_a_sound_file_is_allowed(tmp_path: Path) -> None:
    done = run("validate", "-f", written(tmp_path, "vmi.yaml", VMI), "-o", "json")
    assert (done.exit_code, json.loads(done.output)) == (0, {"allowed": True, "causes": [], "warnings": []})


def test_every_document_list_and_file_is_checked(tmp_path: Path) -> None:
    wrong = yaml.safe_load(VM)
    wrong["spec"]["template"]["spec"]["hostname"] = "No_"
    listed = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(VMI), wrong]})
    files = [written(tmp_path, "a.yaml", f"{VMI}\n---\n{VM}\n---\n"), written(tmp_path, "b.yaml", listed)]
    done = run("validate", "-f", files[0], "-f", files[1])
    assert done.exit_code == 1
    assert done.output.count("is allowed") == 3
    assert "virtualmachine/two is refused\n  spec.template.spec.hostname: 'No_' is not a host name" in done.output


def test_causes_and_warnings_are_data(tmp_path: Path) -> None:
    text = VM.replace("runStrategy: Always", "running: true").replace("web-1", "No_")
    done = run("validate", "-f", written(tmp_path, "vm.yaml", text), "-o", "json")
    data: dict[str, Any] = json.loads(done.output)
    assert done.exit_code == 1
    assert data["allowed"] is False
    assert [set(cause) for cause in data["causes"]] == [{"field", "reason", "message"}]
    assert len(data["warnings"]) == 1


def test_objects_of_other_groups_are_passed_over(tmp_path: Path) -> None:
    other = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
    done = run("validate", "-f", written(tmp_path, "all.yaml", f"{other}---{VMI}"))
    assert (done.exit_code, done.output) == (0, "virtualmachineinstance/one is allowed\n")


@pytest.mark.parametrize(
    ("right", "wrong", "hint"),
    [
        ("containerDisk", "containerdisk", "did you mean containerDisk?"),
        ("disks:", "disk:", "did you mean disks?"),
        ("memory:", "ram:", "has no effect"),
    ],
)
def test_a_misspelt_field_is_pointed_out(tmp_path: Path, right: str, wrong: str, hint: str) -> None:
    done = run("validate", "-f", written(tmp_path, "vmi.yaml", VMI.replace(right, wrong)))
    assert f"{wrong.rstrip(':')} is not a field and has no effect" in done.output
    assert hint in done.output


def test_standard_input_is_a_file() -> None:
    assert run("validate", "-f", "-", text=VMI).exit_code == 0


def test_the_kubevirt_object_decides(tmp_path: Path) -> None:
    kubevirt = written(tmp_path, "kv.yaml", KUBEVIRT)
    done = run("render", "vmi", "-f", written(tmp_path, "vmi.yaml", VMI), "--kubevirt", kubevirt)
    assert yaml.safe_load(done.output)["spec"]["domain"]["cpu"]["model"] == "EPYC"
    beside = run("render", "vmi", "-f", written(tmp_path, "both.yaml", f"{KUBEVIRT}---{VMI}"))
    assert yaml.safe_load(beside.output)["spec"]["domain"]["cpu"]["model"] == "EPYC"


def test_a_vm_is_rendered_as_the_vmi_that_it_makes(tmp_path: Path) -> None:
    done = run("render", "vmi", "-f", written(tmp_path, "vm.yaml", f"{VM}---{VMI}"))
    first, second = yaml.safe_load_all(done.output)
    assert (first["kind"], first["metadata"]["name"], first["metadata"]["namespace"]) == (
        "VirtualMachineInstance",
        "two",
        "web",
    )
    assert first["metadata"]["labels"] == {"app": "web"}
    assert first["spec"]["domain"]["cpu"]["sockets"] == 1
    assert second["metadata"]["name"] == "one"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- 1", "not a Kubernetes object"),
        ("a: [", "is not YAML"),
        ("kind: KubeVirt\nspec: {configuration: {cpuRequest: lots}}", "not a quantity"),
        (VMI, "has no KubeVirt object"),
    ],
)
def test_a_wrong_kubevirt_file_is_told_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    done = run("validate", "-f", written(tmp_path, "vmi.yaml", VMI), "--kubevirt", written(tmp_path, "kv.yaml", text))
    assert done.exit_code == 1
    assert words in done.output
    assert "Traceback" not in done.output


def test_validate_loads_neither_a_web_server_nor_libvirt() -> None:
    code = "import sys, virtfleet.cli.validate, virtfleet.admission.review; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"aiohttp", "libvirt", "grpc", "kubernetes", "rich", "jsonschema_rs"} & set(loaded)
