"""The views know every field of KubeVirt's API, and the CRDs made from them accept what users write."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import yaml

from tests.reference import FIELDS, GOLDEN
from virtfleet.api import crds
from virtfleet.api.kinds import BUILT
from virtfleet.api.kubevirt import KubeVirt
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance

KINDS = {kind.kind: kind for kind in BUILT}
REFERENCE_HAS = [name for name, kind in KINDS.items() if kind.group == "kubevirt.io"]
# Types of Kubernetes and CDI that are handed on as they are.
HANDED_ON = (
    "Affinity",
    "TopologySpreadConstraint",
    "PodDNSConfig",
    "DataVolumeSpec",
    "DownwardAPIVolumeFile",
    "ObjectMeta",
)


def version_of(kind: str) -> str:
    return KINDS[kind].versions[0]


def missing(schema: dict[str, Any], name: str, facts: dict[str, Any], path: str) -> list[str]:
    """Fields of a type in the reference that the schema does not have."""
    found = []
    for field, expected in facts[name].get("properties", {}).items():
        if field not in schema.get("properties", {}):
            found.append(f"{path}.{field}")
            continue
        entry, inner = schema["properties"][field], expected
        while "items" in inner or "additionalProperties" in inner:
            key = "items" if "items" in inner else "additionalProperties"
            entry, inner = entry[key], inner[key]
        reference_name = inner.get("$ref", "").rpartition("/")[2]
        if reference_name and not reference_name.endswith(HANDED_ON):
            found += missing(entry, reference_name, facts, f"{path}.{field}")
    return found


@pytest.mark.parametrize("kind", REFERENCE_HAS)
def test_every_field_of_the_api_is_in_the_schema(kind: str) -> None:
    facts = json.loads(FIELDS.read_text())
    left_out = ["VirtualMachine.spec.dataVolumeTemplates.status"] if kind == "VirtualMachine" else []
    assert missing(crds.schema(KINDS[kind].view), f"{version_of(kind)}.{kind}", facts, kind) == left_out


def structural_faults(schema: dict[str, Any], path: str) -> list[str]:
    """What the API server would not accept as a structural schema."""
    if schema.get("x-kubernetes-int-or-string"):
        return [] if "type" not in schema else [f"{path}: int-or-string with a type"]
    faults = [] if "type" in schema else [f"{path}: no type"]
    for name, inner in schema.get("properties", {}).items():
        faults += structural_faults(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            faults += structural_faults(schema[key], f"{path}.{key}")
    keys = schema.get("x-kubernetes-list-map-keys", [])
    faults += [f"{path}: key {key} is not required" for key in keys if key not in schema["items"]["required"]]
    return faults


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_structural_and_explain_themselves(kind: str) -> None:
    schema = crds.schema(KINDS[kind].view)
    assert structural_faults(schema, kind) == []
    assert jsonschema_rs.meta.is_valid(schema)
    assert schema["description"]
    assert schema["properties"]["spec"]["description"]


CASES = sorted(p.parent.name for p in GOLDEN.glob("*/vmi.yaml"))


@pytest.mark.parametrize("case", CASES)
def test_reference_objects_pass_the_schema_and_can_be_read(case: str) -> None:
    vmi = yaml.safe_load((GOLDEN / case / "vmi.yaml").read_text())
    schema = json.loads(json.dumps(crds.schema(VirtualMachineInstance)).replace('"nullable": true', '"x": 1'))
    assert [e.message for e in jsonschema_rs.validator_for(schema).iter_errors(vmi)] == []
    assert read(VirtualMachineInstance, vmi).spec.domain.devices is not None


def test_the_vmi_has_no_status_subresource_and_replica_sets_can_be_scaled() -> None:
    by_name = {d["spec"]["names"]["kind"]: d["spec"] for d in crds.definitions()}
    versions = by_name["VirtualMachineInstance"]["versions"]
    assert [(v["name"], v["served"], v["storage"], v["subresources"]) for v in versions] == [
        ("v1", True, True, {}),
        ("v1alpha3", True, False, {}),
    ]
    scale = by_name["VirtualMachineInstanceReplicaSet"]["versions"][0]["subresources"]["scale"]
    assert scale["labelSelectorPath"] == ".status.labelSelector"


def test_unknown_fields_are_ignored_and_wrong_types_are_named() -> None:
    assert read(VirtualMachineInstance, {"spec": {"fromTheFuture": 1}}).spec.hypervisor == ""
    with pytest.raises(msgspec.ValidationError, match=r"\$\.spec\.domain\.cpu\.cores"):
        read(VirtualMachineInstance, {"spec": {"domain": {"cpu": {"cores": "two"}}}})


def test_fields_of_our_own_are_read() -> None:
    kubevirt = read(
        KubeVirt,
        {
            "spec": {
                "virtHandlerPools": [
                    {"name": "gpu", "nodeSelector": {"gpu": "true"}, "hypervisor": "mshv", "exclusive": True}
                ],
                "configuration": {"hypervisors": [{"name": "lxc", "virtLauncherImage": "example.com/lxc"}]},
            },
            "status": {"virtHandlerPools": [{"name": "gpu", "matchedVMIs": 3}]},
        },
    )
    assert kubevirt.spec.virt_handler_pools[0].exclusive
    assert kubevirt.spec.configuration.hypervisors[0].virt_launcher_image == "example.com/lxc"
    assert kubevirt.status.virt_handler_pools[0].matched_vmis == 3
