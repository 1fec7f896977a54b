"""What a VMI has to be like before the handler of its node is asked. Pure.

Each check refuses with the code that KubeVirt's does.
"""

from __future__ import annotations

from collections.abc import Callable

from virtfleet.api.kinds import VMI
from virtfleet.api.names import Phase, VMICondition
from virtfleet.gateway.vms import VM_NOT_RUNNING, VMI_NOT_RUNNING, Vmi, bad_request
from virtfleet.kube.errors import ApiError

_START = "wait until its phase is Running (kubectl get vmi)"


def _running(vmi: Vmi, words: str = VM_NOT_RUNNING) -> None:
    if not vmi.running:
        raise vmi.conflict(f"{words}, its phase is {vmi.phase or Phase.PENDING}; {_START}")


def _pause(vmi: Vmi) -> None:
    _running(vmi)
    probe = vmi.view.spec.liveness_probe
    if probe and probe.guest_agent_ping is None:
        raise ApiError(
            "Forbidden",
            f'{VMI.singular}.{VMI.group} "{vmi.name}" is forbidden: Pausing VMIs with a non-GuestAgentPing '
            "LivenessProbe is not supported, the probe would end it; remove spec.livenessProbe or use guestAgentPing",
        )
    if vmi.has(VMICondition.PAUSED):
        raise vmi.conflict("VMI is already paused")


def _unpause(vmi: Vmi) -> None:
    _running(vmi, VMI_NOT_RUNNING)
    if not vmi.has(VMICondition.PAUSED):
        raise vmi.conflict("VMI is not paused")


def _soft_reboot(vmi: Vmi) -> None:
    _running(vmi)
    not_paused(vmi)
    features = vmi.view.spec.domain.features
    acpi = features.acpi if features else None
    if not vmi.has(VMICondition.AGENT_CONNECTED) and acpi and acpi.enabled is False:
        raise vmi.conflict(
            "VMI neither have the agent connected nor the ACPI feature enabled; "
            "install qemu-guest-agent in the guest, or use virtctl reset"
        )


def not_paused(vmi: Vmi) -> None:
    """The guest is not paused."""
    if vmi.has(VMICondition.PAUSED):
        raise vmi.conflict(f"VMI is paused; let it go on with virtctl unpause vmi {vmi.name}")


def _agent(vmi: Vmi) -> None:
    _running(vmi, VMI_NOT_RUNNING)
    if not vmi.has(VMICondition.AGENT_CONNECTED):
        raise vmi.conflict("VMI does not have guest agent connected; install and start qemu-guest-agent in the guest")


def _console(vmi: Vmi) -> None:
    if vmi.view.spec.domain.devices.autoattach_serial_console is False:
        raise bad_request("No serial consoles are present.")
    if vmi.phase == Phase.FAILED:
        raise vmi.conflict("VMI is in failed status; see its events and status.reason")
    _reachable(vmi)


def _display(vmi: Vmi) -> None:
    if vmi.view.spec.domain.devices.autoattach_graphics_device is False:
        raise bad_request("No graphics devices are present.")
    _reachable(vmi)


def _usb(vmi: Vmi) -> None:
    if vmi.view.spec.domain.devices.client_passthrough is None:
        raise bad_request("Not configured with USB Redirection; set spec.domain.devices.clientPassthrough: {}")
    _reachable(vmi)


def _vsock(vmi: Vmi) -> None:
    if not vmi.view.spec.domain.devices.autoattach_vsock:
        raise bad_request("VSOCK is not attached. Set spec.domain.devices.autoattachVSOCK: true and restart the VM")
    _reachable(vmi)
    if vmi.view.status.vsock_cid is None:
        raise vmi.conflict("VMI was started without a vsock; restart the VM")


def _reachable(vmi: Vmi) -> None:
    if not vmi.running:
        raise bad_request(f"{VMI_NOT_RUNNING}, its phase is {vmi.phase or Phase.PENDING}; {_START}")


def on_a_node(vmi: Vmi) -> None:
    """A handler has the VMI."""
    if vmi.phase not in (Phase.RUNNING, Phase.SCHEDULED):
        raise bad_request(
            f"Unable to connect to VirtualMachineInstance because phase is {vmi.phase or Phase.PENDING} "
            f"instead of {Phase.RUNNING} or {Phase.SCHEDULED}; {_START}"
        )


# subresource of a VMI -> what must hold before its handler is asked
CHECKS: dict[str, Callable[[Vmi], None]] = {
    "console": _console,
    "vnc": _display,
    "vnc/screenshot": _display,
    "usbredir": _usb,
    "vsock": _vsock,
    "pause": _pause,
    "unpause": _unpause,
    "reset": on_a_node,
    "softreboot": _soft_reboot,
    "freeze": _running,
    "unfreeze": _running,
    "guestosinfo": _agent,
    "userlist": _agent,
    "filesystemlist": _agent,
}
