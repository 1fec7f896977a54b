"""Hook sidecars in the launcher Pod: as locked down as the launcher, and only where the administrator lets them be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from admission.machines import cluster, verdict, vmi

from pods.machines import compute, kubevirt, machine, mounts, pod, volumes
from pods.restricted import violations
from virtfleet.api.hooks import MOST
from virtfleet.installation import Installation
from virtfleet.pods.launcher import Unrenderable, render

NAME = "hooks.kubevirt.io/hookSidecars"
WHERE = kubevirt("Sidecar")
SCRIPT = {"name": "scripts", "key": "run.sh", "hookPath": "/usr/bin/onDefineDomain"}


def hooked(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [c for c in made["spec"].get("initContainers", ()) if c["name"].startswith("hook-sidecar")]


def annotated(*sidecars: Any) -> dict[str, Any]:
    return {"metadata.annotations": {NAME: json.dumps(sidecars)}}


def test_sidecars_have_a_directory_each_and_no_rights() -> None:
    first = {"image": "one:1", "args": ["--version", "v1alpha2"], "imagePullPolicy": "Always"}
    made = pod(annotated(first, {"image": "two:1", "command": ["/run"], "configMap": SCRIPT}), WHERE)
    one, two = hooked(made)
    assert (one["name"], one["image"], one["args"], one["imagePullPolicy"]) == (
        "hook-sidecar-0",
        "one:1",
        ["--version", "v1alpha2"],
        "Always",
    )
    assert (two["command"], one["restartPolicy"]) == (["/run"], "Always")
    own = {"name": "hook-sidecar-sockets", "mountPath": "/var/run/kubevirt-hooks", "subPath": "hook-sidecar-1"}
    script = {"name": "hook-sidecar-1-script", "mountPath": "/usr/bin/onDefineDomain", "subPath": "script"}
    assert two["volumeMounts"] == [own, script]
    assert volumes(made)["hook-sidecar-1-script"]["configMap"]["items"] == [{"key": "run.sh", "path": "script"}]
    assert mounts(made)["hook-sidecar-sockets"] == "/var/run/kubevirt-hooks"
    assert "--hook-sidecars=2" in compute(made)["args"]
    assert not violations(made)


def test_an_ordinary_vm_has_nothing_of_it() -> None:
    made = pod(where=WHERE)
    assert not hooked(made) and "hook-sidecar-sockets" not in volumes(made)
    assert not any("hook" in argument for argument in compute(made)["args"])


@pytest.mark.parametrize("text", [json.dumps([{"image": "evil:1"}]), "not JSON"])
def test_an_annotation_that_came_after_admission_is_nothing_without_the_gate(text: str) -> None:
    """A VMI's annotations may be edited, and the target of a migration is rendered from them."""
    edited = machine()
    edited["metadata"].setdefault("annotations", {})[NAME] = text
    assert not hooked(render(edited, Installation(kubevirt())))


def test_an_annotation_that_was_spoilt_after_admission_is_told() -> None:
    edited = machine()
    edited["metadata"].setdefault("annotations", {})[NAME] = "not JSON"
    with pytest.raises(Unrenderable, match="hookSidecars: it is not a list"):
        render(edited, Installation(WHERE))


def test_launchers_with_power_on_their_node_have_none() -> None:
    where = kubevirt("Sidecar", configuration={"hypervisors": [{"name": "qemu-kvm"}, {"name": "lxc"}]})
    lxc = {
        **annotated({"image": "one:1"}),
        "hypervisor": "lxc",
        "domain.devices.disks": [],
        "domain.devices.filesystems": [{"name": "root", "virtiofs": {}}],
    }
    found = verdict(vmi(lxc), Installation(where))
    assert [c.message for c in found.causes if "power on the node" in c.message]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "not a list of sidecars"),
        ("[1]", "not a list of sidecars"),
        ('[{"image": 7}]', "not a list of sidecars"),
        ('[{"args": []}]', "sidecar 0 has no image"),
        ('[{"image": "i", "pvc": {"name": "p"}}]', "knows no pvc of sidecar 0"),
        ('[{"image": "i", "configMap": {"name": "c", "key": "k", "hookPath": "relative"}}]', "an absolute path"),
        (json.dumps([{"image": "i"}] * (MOST + 1)), f"there may be {MOST} sidecars"),
    ],
)
def test_what_is_wrong_with_it_is_told_at_once(text: str, message: str) -> None:
    found = verdict(vmi({"metadata.annotations": {NAME: text}}), cluster("Sidecar"))
    assert [(c.field, message in c.message) for c in found.causes] == [("metadata.annotations", True)]
