"""KubeVirt objects and rendered installations for the operator's unit tests."""

from __future__ import annotations

from typing import Any

from virtfleet.installation import Installation
from virtfleet.kube.resource import Obj
from virtfleet.operator.render import render

TRUST = b"-----BEGIN CERTIFICATE-----"


def kubevirt(**spec: Any) -> Obj:
    gates = ["VirtHandlerPools", "AdditionalVirtHandlers"]
    configuration = {"developerConfiguration": {"featureGates": gates}, **spec.pop("configuration", {})}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "KubeVirt",
        "metadata": {"name": "kubevirt", "namespace": "kubevirt", "generation": 1},
        "spec": {"configuration": configuration, **spec},
    }


def pool(name: str, *, launcher: str = "", handler: str = "", **more: Any) -> dict[str, Any]:
    made = {
        "name": name,
        "nodeSelector": {"pool": name},
        "virtLauncherImage": launcher or f"registry.example.com/virt-launcher:{name}",
        "selector": {"deviceNames": [f"superduper.io/{name}"]},
        **more,
    }
    return {**made, "virtHandlerImage": handler} if handler else made


def objects(**spec: Any) -> dict[tuple[str, str], Obj]:
    rendered = render(Installation(kubevirt(**spec)), TRUST)
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in rendered}


def daemon_set(name: str = "virt-handler", **spec: Any) -> Obj:
    return objects(**spec)["DaemonSet", name]


def pod_spec(obj: Obj) -> dict[str, Any]:
    spec: dict[str, Any] = obj["spec"]["template"]["spec"]
    return spec
