"""The life of one VM with openshift-python-wrapper, in an environment of its own. Arguments: namespace, VM's spec."""

from __future__ import annotations

import json
import sys

from ocp_resources.resource import ResourceEditor, get_client
from ocp_resources.virtual_machine import VirtualMachine
from ocp_resources.virtual_machine_instance_migration import VirtualMachineInstanceMigration
from timeout_sampler import TimeoutSampler

namespace, spec = sys.argv[1], json.loads(sys.argv[2])
client = get_client()
with VirtualMachine(client=client, name="wrapped", namespace=namespace, body={"spec": spec}) as vm:
    vm.start()
    vm.wait_for_ready_status(status=True)
    vm.vmi.wait_until_running()
    before = vm.vmi.instance

    larger = {"spec": {"template": {"spec": {"domain": {"cpu": {"sockets": 2}}}}}}
    ResourceEditor(patches={vm: larger}).update()

    def settled() -> bool:
        status = vm.vmi.instance.status
        waits = {condition["type"] for condition in status.conditions} & {"HotVCPUChange", "MigrationRequired"}
        return status.currentCPUTopology.sockets == 2 and not waits

    for done in TimeoutSampler(wait_timeout=100, sleep=1, func=settled):
        if done:
            break

    with VirtualMachineInstanceMigration(client=client, name="wrapped", namespace=namespace, vmi_name="wrapped") as m:
        m.wait_for_status(status=m.Status.SUCCEEDED, timeout=100)
    after = vm.vmi.instance
    assert after.metadata.uid == before.metadata.uid
    assert after.status.nodeName != before.status.nodeName, after.status.nodeName
    assert vm.vmi.virt_launcher_pod.node.name == after.status.nodeName
    assert vm.printable_status == vm.Status.RUNNING
    vm.stop(wait=True)
    assert vm.printable_status == vm.Status.STOPPED
assert not vm.exists
