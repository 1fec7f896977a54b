"""`virtfleet validate` and `virtfleet render vmi` on files."""

from __future__ import annotations

import json
import re
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

# Nine lines that stand for a billion words.
BOMB = b"a0: &a0 [x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 10)) for i in range(1, 10)
)
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine decides."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VIRTFLEET_DATA", str(tmp_path / "none"))


def run(*arguments: str, text: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=text, catch_exceptions=False)


def written(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def judged(directory: Path, text: str, *arguments: str) -> dict[str, Any]:
    """The first object of a file, as `-o json` describes it."""
    done = run("validate", "-f", written(directory, "manifest.yaml", text), "-o", "json", *arguments)
    data: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == (0 if data["allowed"] else 1)
    described: dict[str, Any] = data["objects"][0]
    return described


def test_a_sound_file_is_allowed(tmp_path: Path) -> None:
    file = written(tmp_path, "vmi.yaml", VMI)
    done = run("validate", "-f", file, "-o", "json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "allowed": True,
        "configuration": "VirtFleet's defaults, as for a KubeVirt object without settings",
        "objects": [
            {
                "file": file,
                "index": 0,
                "apiVersion": "kubevirt.io/v1",
                "kind": "VirtualMachineInstance",
                "namespace": "default",
                "name": "one",
                "verdict": "allowed",
                "causes": [],
                "warnings": [],
                "note": "",
            }
        ],
        "causes": [],
        "warnings": [],
    }


def test_every_document_list_and_file_is_checked(tmp_path: Path) -> None:
    wrong = yaml.safe_load(VM)
    wrong["spec"]["template"]["spec"]["hostname"] = "No_"
    listed = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(VMI), wrong]})
    files = [written(tmp_path, "a.yaml", f"{VMI}\n---\n{VM}\n---\n"), written(tmp_path, "b.yaml", listed)]
    done = run("validate", "-f", files[0], "-f", files[1])
    assert done.exit_code == 1
    assert done.stdout.count("is allowed") == 3
    assert "virtualmachine/two is refused\n  spec.template.spec.hostname: 'No_' is not a host name" in done.stdout
    named = json.loads(run("validate", "-f", files[0], "-f", files[1], "-o", "json").stdout)["objects"]
    assert [(o["file"], o["index"], o["namespace"], o["name"], o["verdict"]) for o in named] == [
        (files[0], 0, "default", "one", "allowed"),
        (files[0], 1, "web", "two", "allowed"),
        (files[1], 0, "default", "one", "allowed"),
        (files[1], 1, "web", "two", "refused"),
    ]


def test_causes_and_warnings_are_data(tmp_path: Path) -> None:
    found = judged(tmp_path, VM.replace("runStrategy: Always", "running: true").replace("web-1", "No_"))
    assert [set(cause) for cause in found["causes"]] == [{"field", "reason", "message"}]
    assert len(found["warnings"]) == 1


def test_objects_of_other_groups_are_listed_and_not_checked(tmp_path: Path) -> None:
    other = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
    done = run("validate", "-f", written(tmp_path, "all.yaml", f"{other}---{VMI}"))
    assert done.exit_code == 0
    assert done.stdout == "secret/s is not checked: v1 is not VirtFleet's\nvirtualmachineinstance/one is allowed\n"


@pytest.mark.parametrize(
    ("version", "kind", "words"),
    [
        ("", "VirtualMachineInstance", "apiVersion is not set"),
        ("kubevirt.io/v9", "VirtualMachineInstance", "use apiVersion kubevirt.io/v1"),
        ("kubevirt.io/v1", "VirtualMachineThought", "VirtFleet does not have that kind"),
        ("template.kubevirt.io/v1alpha1", "VirtualMachineTemplate", "no matches for kind"),
        ("cdi.kubevirt.io/v1alpha1", "DataImportCron", "where CDI is installed"),
    ],
)
def test_what_is_not_served_is_refused(tmp_path: Path, version: str, kind: str, words: str) -> None:
    found = judged(tmp_path, f'apiVersion: "{version}"\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{}}\n')
    assert (found["verdict"], found["causes"][0]["field"]) == ("refused", "apiVersion")
    assert words in found["causes"][0]["message"]


@pytest.mark.parametrize(
    ("version", "kind", "words"),
    [
        ("kubevirt.io/v1", "VirtualMachineInstancePreset", "write the fields into the VM instead"),
        ("snapshot.kubevirt.io/v1alpha1", "VirtualMachineSnapshot", "does not take snapshots of VMs yet"),
    ],
)
def test_what_is_not_built_yet_is_refused_with_what_to_do(tmp_path: Path, version: str, kind: str, words: str) -> None:
    found = judged(tmp_path, f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{}}\n")
    assert (found["verdict"], [cause["field"] for cause in found["causes"]]) == ("refused", ["kind"])
    assert words in found["causes"][0]["message"]


def test_a_kind_that_is_not_given_is_a_refusal(tmp_path: Path) -> None:
    assert judged(tmp_path, "apiVersion: kubevirt.io/v1\nmetadata: {name: a}\n")["causes"][0]["field"] == "kind"


@pytest.mark.parametrize(
    ("right", "wrong", "hint"),
    [
        ("containerDisk", "containerdisk", "did you mean containerDisk?"),
        ("disks:", "disk:", "did you mean disks?"),
        ("memory:", "ram:", ""),
    ],
)
def test_a_field_that_does_not_exist_is_refused(tmp_path: Path, right: str, wrong: str, hint: str) -> None:
    found = judged(tmp_path, VMI.replace(right, wrong))
    (cause,) = [cause for cause in found["causes"] if cause["message"].startswith("unknown field")]
    assert cause["field"].endswith(wrong.rstrip(":"))
    assert hint in cause["message"]


def test_a_refused_object_is_not_said_to_be_accepted(tmp_path: Path) -> None:
    asking = VM.replace("labels: {app: web}", "annotations: {sidecar.istio.io/inject: 'true'}")
    assert "is accepted, but" in judged(tmp_path, asking)["warnings"][0]
    assert judged(tmp_path, asking.replace("Always", "Sometimes"))["warnings"] == []


@pytest.mark.parametrize(("vmi", "refused"), [("a", []), ("''", ["spec.vmiName"])])
def test_a_migration_names_the_vm_that_moves(tmp_path: Path, vmi: str, refused: list[str]) -> None:
    kind = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstanceMigration\n"
    found = judged(tmp_path, f"{kind}metadata: {{name: m}}\nspec: {{vmiName: {vmi}}}\n")
    assert [cause["field"] for cause in found["causes"]] == refused


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
    assert done.exit_code == 2
    assert words in done.stderr.splitlines()[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "is not text in UTF-8"),
        (b"kind: \x00\x01", "is not YAML"),
        (b"a: 1\na: 2\n", "'a' is given twice"),
        (b"kind: VirtualMachine\nspec: !!binary aGk=\n", "that JSON has not"),
        (b"kind: VirtualMachine\nspec: 123456789012345678901234567890\n", "that JSON has not"),
        (b"&a [*a]", "that JSON has not"),
        (b"[" * 20000, ""),
        (BOMB, "more than any API server takes"),
    ],
)
def test_what_is_no_manifest_is_told_in_one_line(tmp_path: Path, raw: bytes, words: str) -> None:
    (tmp_path / "file").write_bytes(raw)
    done = run("validate", "-f", str(tmp_path / "file"))
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert words in done.stderr


def test_a_cluster_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtfleet.cli.look.validate._PATIENCE", 0.3)
    clusters = "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
    contexts = "contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
    nowhere = written(tmp_path, "kubeconfig", f"kind: Config\n{clusters}{contexts}")
    file = written(tmp_path, "vmi.yaml", VMI)
    for arguments in (("--kubeconfig", nowhere), ()):
        done = run("validate", "-f", file, *arguments)
        assert (done.exit_code, "does not answer" in done.stderr, "--kubevirt" in done.stderr) == (2, True, True)
        monkeypatch.setenv("KUBECONFIG", nowhere)
    monkeypatch.delenv("KUBECONFIG")
    (tmp_path / "none").mkdir()
    written(tmp_path / "none", "kubeconfig", Path(nowhere).read_text())
    done = run("validate", "-f", file)
    assert (done.exit_code, "Checked with VirtFleet's defaults" in done.stderr) == (0, True), (
        "the local cluster is down"
    )


# --- the examples, each with the configuration that its README names


def example(name: str) -> str:
    return str(EXAMPLES / name)


XEN = EXAMPLES / "xen.yaml"


# nodes.yaml is read by `virtfleet up`, and no manifest.
@pytest.mark.parametrize("file", sorted({*EXAMPLES.glob("[!n]*.yaml")} - {XEN}), ids=lambda file: file.name)
def test_every_example_is_allowed_on_the_cluster_of_make_up(file: Path) -> None:
    done = run("validate", "-f", str(file), "--kubevirt", example("kubevirt.yaml"))
    assert done.exit_code == 0, done.output
    assert "is accepted, but" not in done.stdout


@pytest.mark.parametrize("file", [*sorted((EXAMPLES / "pools").glob("*.yaml")), XEN], ids=lambda file: file.name)
def test_every_example_of_a_pool_brings_its_configuration(file: Path) -> None:
    done = run("validate", "-f", str(file))
    assert done.exit_code == 0, done.output


def test_what_the_readme_of_the_examples_shows_is_true() -> None:
    listed = set(re.findall(r"\]\(([a-z/-]+\.yaml)\)", (EXAMPLES / "README.md").read_text()))
    assert listed == {str(file.relative_to(EXAMPLES)) for file in EXAMPLES.rglob("*.yaml")}


def test_validate_loads_neither_a_web_server_nor_libvirt() -> None:
    code = "import sys, virtfleet.cli.look.validate, virtfleet.admission.review; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"aiohttp", "libvirt", "grpc", "kubernetes", "rich", "jsonschema_rs"} & set(loaded)
