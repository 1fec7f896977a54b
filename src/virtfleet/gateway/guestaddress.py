"""Where a guest is reached from the cluster: at the address of its launcher's Pod.

Guests have the Pod's address or are behind it, whatever they say of themselves, and what they say counts for nothing
here: virt-api connects from inside the cluster, to where a VM's user could not. Which Pod it is, VirtFleet's components
say by its UID; labels anybody can put on a Pod.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

import msgspec

from virtfleet.api import names
from virtfleet.gateway.vms import Vmi, bad_request
from virtfleet.kube.api import KubeApi
from virtfleet.kube.pods import PodView
from virtfleet.kube.resource import PODS


async def address_of(api: KubeApi, vmi: Vmi) -> str:
    """The address to connect to. Raises ApiError where there is none, or none that a guest can have."""
    status, networks = vmi.view.status, vmi.view.spec.networks
    if not status.interfaces or (networks and all(network.pod is None for network in networks)):
        raise bad_request("no network interfaces are present: the VMI has none on the network of Pods, or none yet")
    pods = await api.list(PODS, vmi.namespace, labels=f"{names.CREATED_BY}={vmi.view.metadata.uid}")
    for pod in (msgspec.convert(obj, PodView) for obj in pods):
        if pod.metadata.uid in status.active_pods and pod.node == status.node_name and pod.status.pod_ip:
            if why := _why_not(pod):
                raise bad_request(f"the launcher's Pod has address {pod.status.pod_ip}, {why}; nothing connects there")
            return pod.status.pod_ip
    raise bad_request("no network interfaces are present: the launcher's Pod has no address yet")


def _why_not(pod: PodView) -> str:
    """What keeps an address from being a Pod's own."""
    nodes_own = {pod.status.host_ip, *(address.ip for address in pod.status.host_ips)}
    if pod.spec.host_network or pod.status.pod_ip in nodes_own:
        return "which is its node's"
    return why_not_a_pods(pod.status.pod_ip)


def why_not_a_pods(text: str) -> str:
    """What keeps an address from being one that Pods can have; "" where nothing does."""
    try:
        address = ip_address(text)
    except ValueError:
        return "which is none"
    address = (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address
    kinds = {
        "loopback": address.is_loopback,
        "link-local": address.is_link_local,
        "multicast": address.is_multicast,
        "unspecified": address.is_unspecified,
        "reserved": address.is_reserved,
    }
    return next((f"which is {kind}" for kind, holds in kinds.items() if holds), "")
