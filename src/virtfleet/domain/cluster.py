"""Settings of the cluster that shape domains, taken from the KubeVirt object."""

from __future__ import annotations

from virtfleet.api.configuration import KubeVirtConfiguration
from virtfleet.api.feature_gates import FeatureGates
from virtfleet.api.kubevirt import KubeVirt
from virtfleet.domain.context import Context, Smbios

VERBOSE = 5  # of the launcher's log: above it, the firmware's messages are kept too

_VGA_FOR_EFI = "kubevirt.io/vga-display-efi-x86"


def cluster_context(kubevirt: KubeVirt, gates: FeatureGates, architecture: str) -> Context:
    """A context with the cluster's settings; the facts of a node are added where they are known."""
    configuration = kubevirt.spec.configuration
    options = configuration.virtual_machine_options
    verbosity = configuration.developer_configuration.log_verbosity
    period = configuration.mem_balloon_stats_period
    bindings = configuration.network.binding if configuration.network else {}
    return Context(
        smbios=_smbios(configuration),
        balloon_period=10 if period is None else period,
        free_page_reporting=not (options and options.disable_free_page_reporting),
        serial_console_log=not (options and options.disable_serial_console_log),
        bochs_for_efi=_VGA_FOR_EFI not in kubevirt.metadata.annotations,
        firmware_autoselection=gates.enabled("FirmwareAutoSelection"),
        firmware_dir=_firmware_dir(configuration, architecture),
        attachments={name: plugin.domain_attachment_type for name, plugin in bindings.items()},
        verbose=bool(verbosity and verbosity.virt_launcher and verbosity.virt_launcher > VERBOSE),
    )


def _smbios(configuration: KubeVirtConfiguration) -> Smbios:
    default, wanted = Smbios(), configuration.smbios
    if not wanted:
        return default
    return Smbios(
        manufacturer=wanted.manufacturer or default.manufacturer,
        family=wanted.family or default.family,
        product=wanted.product or default.product,
        sku=wanted.sku,
        version=wanted.version,
    )


def _firmware_dir(configuration: KubeVirtConfiguration, architecture: str) -> str:
    by_architecture = configuration.architecture_configuration
    specific = getattr(by_architecture, architecture or "amd64", None) if by_architecture else None
    return (specific.ovmf_path if specific else "") or configuration.ovmf_path
