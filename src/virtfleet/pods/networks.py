"""Networks of a VMI beside the cluster's own, as annotations that Multus reads."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

import orjson

from virtfleet.api.vmi import VirtualMachineInstance as VMI

NETWORKS = "k8s.v1.cni.cncf.io/networks"
NETWORK_STATUS = "k8s.v1.cni.cncf.io/network-status"
"""In which is said what a Pod was attached to."""
DEFAULT_NETWORK = "v1.multus-cni.io/default-network"


def pod_interface(network: str) -> str:
    """Name of the Pod's interface for a secondary network: stable, and short enough for the kernel."""
    return f"pod{hashlib.sha256(network.encode()).hexdigest()[:11]}"


def attachments(vmi: VMI, held: Collection[str] = ()) -> dict[str, str]:
    """Which networks Multus shall attach the Pod to. `held` are interfaces that are to go, and are still in use."""
    annotations: dict[str, str] = {}
    wanted = []
    absent = {i.name for i in vmi.spec.domain.devices.interfaces if i.state == "absent"} - {*held}
    macs = {i.name: i.mac_address for i in vmi.spec.domain.devices.interfaces if i.mac_address}
    for network in vmi.spec.networks:
        if not network.multus or network.name in absent:
            continue
        if network.multus.default:
            annotations[DEFAULT_NETWORK] = network.multus.network_name
            continue
        namespace, _, name = network.multus.network_name.rpartition("/")
        attachment: dict[str, Any] = {
            "name": name,
            "namespace": namespace or vmi.metadata.namespace,
            "interface": pod_interface(network.name),
        }
        if mac := macs.get(network.name):
            attachment["mac"] = mac
        wanted.append(attachment)
    if wanted:
        annotations[NETWORKS] = orjson.dumps(wanted).decode()
    return annotations
