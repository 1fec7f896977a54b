"""What a VM uses, from the metrics of its node's handler: for charts.

The handler is found with the visitor's rights, so only who may see the installation's Pods sees charts; its page of
metrics is open to the cluster's network, where this server has to be, too.
"""

from __future__ import annotations

import re

import aiohttp
from aiohttp import web

from virtfleet.api import names
from virtfleet.dashboard.passing import is_name
from virtfleet.dashboard.visitors import Visitor
from virtfleet.kube.certificates import client_context
from virtfleet.kube.component import PORT
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import CONFIG_MAPS, KUBEVIRTS, PODS, VMIS

_AUTHORITY, _BUNDLE = "kubevirt-ca", "ca-bundle"
_PATIENCE = 5.0
_LARGEST = 32 << 20
_LINE = re.compile(r"(kubevirt_vmi_[a-z_]+)\{([^}]*)\} ([0-9.e+-]+)")
_SHOWN = {
    "kubevirt_vmi_cpu_usage_seconds_total": "cpu",
    "kubevirt_vmi_memory_resident_bytes": "resident",
    "kubevirt_vmi_memory_available_bytes": "available",
    "kubevirt_vmi_memory_unused_bytes": "unused",
    "kubevirt_vmi_memory_domain_bytes": "domain",
    "kubevirt_vmi_storage_read_traffic_bytes_total": "read",
    "kubevirt_vmi_storage_write_traffic_bytes_total": "written",
    "kubevirt_vmi_network_receive_bytes_total": "received",
    "kubevirt_vmi_network_transmit_bytes_total": "sent",
}


async def figures(request: web.Request, visitor: Visitor) -> web.StreamResponse:
    namespace, name = request.query.get("namespace", ""), request.query.get("name", "")
    if not (is_name(namespace) and is_name(name)):
        raise ApiError("BadRequest", "say of which VM")
    vmi = await visitor.api.get(VMIS, name, namespace)
    node = (vmi.get("status") or {}).get("nodeName", "")
    try:
        page = await _page(visitor, node)
    except ApiError as error:
        why = "you may not see the installation's handlers" if error.code == 403 else error.message
        return web.json_response({"why": why})
    return web.json_response({"figures": of_vm(page, namespace, name)})


def of_vm(page: str, namespace: str, name: str) -> dict[str, float]:
    """The sums over disks and interfaces of one VM."""
    mine = (f'namespace="{namespace}"', f'name="{name}"')
    sums: dict[str, float] = {}
    for metric, labels, value in _LINE.findall(page):
        if (short := _SHOWN.get(metric)) and all(label in labels.split(",") for label in mine):
            sums[short] = sums.get(short, 0.0) + float(value)
    return sums


async def _page(visitor: Visitor, node: str) -> str:
    kubevirts = await visitor.api.list(KUBEVIRTS)
    if not node or not kubevirts:
        raise ApiError("NotFound", "it does not run")
    namespace = kubevirts[0]["metadata"]["namespace"]
    pods = await visitor.api.list(PODS, namespace, labels=f"{names.APP_LABEL}=virt-handler")
    here = [pod.get("status") or {} for pod in pods if (pod.get("spec") or {}).get("nodeName") == node]
    address = next((str(s["podIP"]) for s in here if s.get("podIP") and s.get("phase") == "Running"), "")
    if not address:
        raise ApiError("NotFound", f"no handler runs on {node}")
    bundle = (await visitor.api.get(CONFIG_MAPS, _AUTHORITY, namespace)).get("data", {}).get(_BUNDLE, "")
    context = client_context(bundle.encode(), None)
    context.check_hostname = False  # it is asked by address; its certificate is of the installation's own authority
    host = f"[{address}]" if ":" in address else address
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PATIENCE)) as session,
            session.get(f"https://{host}:{PORT}/metrics", ssl=context, allow_redirects=False) as answer,
        ):
            return (await answer.content.read(_LARGEST)).decode(errors="replace") if answer.status == 200 else ""
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ApiError("ServiceUnavailable", f"the handler of {node} is not reached from here: {error}") from error
