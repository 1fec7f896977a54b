"""Network interfaces of a VM and the networks that they join."""

from __future__ import annotations

from msgspec import field

from virtfleet.api.view import Empty, Required, View


class Interface(View):
    """A network interface; exactly one binding is set."""

    name: Required[str] = ""
    """The network that it joins."""
    masquerade: Empty | None = None
    """Share the Pod's address by NAT."""
    bridge: Empty | None = None
    """Join the network as a bridge does, with the Pod's address."""
    sriov: Empty | None = None
    """Pass a virtual function of a network card through."""
    passt_binding: Empty | None = None
    """Connect through passt, in user space."""
    binding: PluginBinding | None = None
    """Connect through a plugin."""
    macvtap: Empty | None = None
    """No longer supported."""
    passt: Empty | None = None
    """No longer supported."""
    slirp: Empty | None = None
    """No longer supported."""
    model: str = ""
    """virtio, e1000, e1000e, rtl8139, igb or ne2k_pci."""
    mac_address: str = ""
    """MAC address in the guest."""
    ports: list[Port] = []
    """Ports that are forwarded to the guest; all of them where empty."""
    port_ranges: list[PortRange] = []
    """Ranges of ports that are forwarded to the guest."""
    boot_order: int | None = None
    """Position among the devices that are booted from, 1 first."""
    pci_address: str = ""
    """Address in the guest, for example 0000:81:01.0."""
    dhcp_options: DHCPOptions | None = None
    """What the guest is told by DHCP."""
    acpi_index: int | None = None
    """Index that gives the guest's interface a stable name."""
    state: str = ""
    """up, down, or absent to remove it."""
    tag: str = ""
    """Name that cloud-init shows to the guest."""


class PluginBinding(View):
    """A plugin that connects the interface."""

    name: Required[str] = ""
    """Name of the plugin in the KubeVirt object."""


class Port(View):
    """A port of the guest."""

    port: Required[int] | None = None
    """Its number."""
    protocol: str = ""
    """TCP or UDP."""
    name: str = ""
    """A name for it."""


class PortRange(View):
    """A range of ports."""

    start: Required[int] | None = None
    """First port."""
    end: Required[int] | None = None
    """Last port."""
    protocol: Required[str] = ""
    """TCP or UDP."""


class DHCPOptions(View):
    """What the guest is told by DHCP."""

    boot_file_name: str = ""
    """File that is loaded for network boot (option 67)."""
    tftp_server_name: str = ""
    """Server that it is loaded from (option 66)."""
    ntp_servers: list[str] = []
    """Time servers (option 42)."""
    private_options: list[DHCPPrivateOptions] = []
    """Options 224 to 254."""


class DHCPPrivateOptions(View):
    """One private option."""

    option: Required[int] | None = None
    """Number from 224 to 254."""
    value: Required[str] = ""
    """Its value."""


class Network(View):
    """A network that an interface can join; exactly one source is set."""

    name: Required[str] = ""
    """Name that an interface refers to."""
    pod: PodNetwork | None = None
    """The cluster's own network."""
    multus: MultusNetwork | None = None
    """A network attachment of Multus."""
    resource_claim: ClaimRequest | None = None
    """A network device from a resource claim."""


class PodNetwork(View):
    """The cluster's own network."""

    vm_network_cidr: str = field(name="vmNetworkCIDR", default="")
    """IPv4 network inside the VM; 10.0.2.0/24 where empty."""
    vm_ipv6_network_cidr: str = field(name="vmIPv6NetworkCIDR", default="")
    """IPv6 network inside the VM; fd10:0:2::/120 where empty."""


class MultusNetwork(View):
    """A network attachment."""

    network_name: Required[str] = ""
    """Name, or namespace/name, of the NetworkAttachmentDefinition."""
    default: bool | None = None
    """Whether it replaces the cluster's network."""


class ClaimRequest(View):
    """One device of a resource claim."""

    claim_name: str = ""
    """Resource claim of the VM."""
    request_name: str = ""
    """Request within that claim."""
