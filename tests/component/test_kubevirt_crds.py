"""The real kubectl with our CustomResourceDefinitions: short names, columns, explanations, refusals."""

from __future__ import annotations

import orjson
import pytest

from tests.component.test_kubectl_kinds import Kubectl, kubectl  # noqa: F401 (the fixture)
from virtfleet.api import crds
from virtfleet.api.kinds import KINDS

VMI = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: vm, namespace: default}
spec:
  hypervisor: lxc
  domain:
    memory: {guest: 64Mi}
    devices: {disks: [{name: root, disk: {bus: virtio}}], interfaces: [{name: default, masquerade: {}}]}
status: {phase: Running, nodeName: node-1, interfaces: [{ipAddress: 10.0.0.1}]}
"""


@pytest.fixture
async def installed(kubectl: Kubectl) -> Kubectl:  # noqa: F811
    definitions = {"apiVersion": "v1", "kind": "List", "items": crds.definitions()}
    await kubectl("create", "-f", "-", stdin=orjson.dumps(definitions).decode())
    await kubectl("api-resources")  # forgets what kubectl remembers of the server
    return kubectl


@pytest.mark.slow
async def test_vmis_have_kubevirts_short_names_and_columns(installed: Kubectl) -> None:
    await installed("create", "-f", "-", stdin=VMI)
    lines = (await installed("get", "vmi", "-o", "wide")).splitlines()
    columns = ["NAME", "AGE", "PHASE", "IP", "NODENAME", "READY", "LIVE-MIGRATABLE", "PAUSED"]
    assert lines[0].split() == [*columns, "POOL", "HYPERVISOR"]
    assert lines[1].split()[2:] == ["Running", "10.0.0.1", "node-1"]
    assert "virtualmachineinstance.kubevirt.io/vm" in await installed("get", "all")


@pytest.mark.slow
async def test_fields_explain_themselves(installed: Kubectl) -> None:
    assert "Hypervisor that runs the VM" in await installed("explain", "vmi.spec.hypervisor")
    assert "Node pools with images of their own" in await installed("explain", "kv.spec.virtHandlerPools")


@pytest.mark.slow
async def test_kinds_that_are_not_built_are_there_and_empty(installed: Kubectl) -> None:
    short = ",".join(kind.short_names[-1] if kind.short_names else kind.plural for kind in KINDS if kind.refusal)
    assert "No resources found" in await installed("get", short)
    assert "No resources found" in await installed("delete", "vmpool,vmsnapshot,vmclone", "--all")


@pytest.mark.slow
async def test_wrong_types_and_missing_fields_are_refused(installed: Kubectl) -> None:
    wrong = VMI.replace("guest: 64Mi", "guest: much").replace("name: root, ", "")
    code, output = await installed.run("create", "-f", "-", stdin=wrong)
    assert code == 1
    assert "spec.domain.memory.guest" in output
    assert "spec.domain.devices.disks[0].name: Required value" in output
