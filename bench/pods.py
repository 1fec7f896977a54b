"""How long it takes to make a launcher Pod of a VMI: once for every VM that starts."""

from __future__ import annotations

import orjson

from bench.pools import fleet_of, median_us, pool
from bench.report import Figure
from virtfleet.admission.review import complete
from virtfleet.installation import Installation
from virtfleet.pods.launcher import render

TITLE = "pods: the launcher Pod of a VMI"

VMI = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstance",
    "metadata": {"name": "vm", "namespace": "default", "uid": "6a1a24a1-4061-4607-8bf4-a39963d0c5895"},
    "spec": {
        "domain": {
            "cpu": {"cores": 2},
            "memory": {"guest": "1Gi"},
            "devices": {
                "disks": [{"name": name, "disk": {"bus": "virtio"}} for name in ("root", "data", "init")],
                "interfaces": [{"name": "default", "masquerade": {}}],
            },
        },
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [
            {"name": "root", "containerDisk": {"image": "registry.example.com/disk:v1"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "init", "cloudInitNoCloud": {"userData": "#cloud-config"}},
        ],
    },
}


def run() -> list[Figure]:
    with_device = orjson.loads(orjson.dumps(VMI))
    with_device["spec"]["domain"]["devices"]["hostDevices"] = [{"name": "d", "deviceName": "x.io/device-19"}]
    pools = fleet_of(*(pool(i) for i in range(20)))
    settings, with_pools = Installation({}), Installation(pools)
    plain, _ = complete(VMI, Installation({}))
    matched, _ = complete(with_device, Installation(pools))
    pod = render(plain, settings)
    read = median_us(lambda: orjson.loads(orjson.dumps(pod)))

    def figure(name: str, value: float, **more: str) -> Figure:
        return Figure(name, value, "us", baseline=read, baseline_name="encoding and decoding that Pod", **more)

    aims = {"aim": "under 300", "reference": "30 to 56 in Go"}
    return [
        figure("render, no pools", median_us(lambda: render(plain, settings)), **aims),
        figure("render, the last of 20 pools", median_us(lambda: render(matched, with_pools)), **aims),
        figure("read the settings of a KubeVirt object, 20 pools", median_us(lambda: Installation(pools).fleet)),
    ]
