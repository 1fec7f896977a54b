"""Limits of launcher Pods whose VMs name none, in namespaces that ask for them.

A ResourceQuota on limits asks for them of every container: the API server refuses the Pod and says which are lacking,
so nobody has to read quotas. CPUs are limited also where the installation's selector chooses the namespace.
"""

from __future__ import annotations

import re

import msgspec

from virtfleet.api import names, traits
from virtfleet.api.selectors import from_label_selector
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.controller.launcherpod import LauncherPod
from virtfleet.controller.pods import LauncherPods
from virtfleet.controller.records.instance import Instance
from virtfleet.installation import Installation
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import NAMESPACES, Obj
from virtfleet.pods.launcher import COMPUTE
from virtfleet.pods.resources import add_limits

_LACKING = re.compile(r"limits\.(cpu|memory)\b")
_RATIO, _MOST = 2.0, 100.0


async def create(
    api: KubeApi, pods: LauncherPods, vmi: Instance, whole: Obj, pod: Obj, settings: Installation
) -> tuple[LauncherPod, bool]:
    """`LauncherPods.create`, with the limits that the Pod's namespace asks for."""
    selector = settings.configuration.auto_cpu_limit_namespace_label_selector
    (compute,) = (c for c in pod["spec"]["containers"] if c["name"] == COMPUTE)
    if selector and from_label_selector(msgspec.to_builtins(selector)).matches(await _labels(api, vmi)):
        add_limits(compute["resources"], {"cpu": _vcpus(whole)})
    try:
        return await pods.create(vmi, pod)
    except ApiError as error:
        _, quota, said = error.message.partition("must specify")
        if error.code != 403 or not quota:
            raise
        ratio = memory_ratio((await _labels(api, vmi)).get(names.MEMORY_LIMITS_RATIO, ""))
        amounts = {"cpu": _vcpus(whole), "memory": ratio}
        if not add_limits(compute["resources"], {name: amounts[name] for name in _LACKING.findall(said)}):
            raise
    return await pods.create(vmi, pod)


def _vcpus(vmi: Obj) -> int:
    return traits.topology(read(VMI, vmi)).vcpus


async def _labels(api: KubeApi, vmi: Instance) -> dict[str, str]:
    namespace = await api.get(NAMESPACES, vmi.namespace)
    return namespace["metadata"].get("labels") or {}


def memory_ratio(said: str) -> float:
    """By how much the limit of memory exceeds the request, as a namespace's label has it."""
    try:
        ratio = float(said or _RATIO)
    except ValueError:
        return _RATIO
    return ratio if 1 <= ratio <= _MOST else _RATIO
