"""Health probes of a VM as probes of its Pod's compute container.

Probes over the network reach the guest through the Pod's address. Those inside the guest go through the launcher, which
asks the guest agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtfleet.api.probes import DEFAULTS, INSIDE


def probe(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The container's probe for one of the VMI's."""
    if not any(wanted.get(action) is not None for action in INSIDE):
        return dict(wanted)
    rest = {key: value for key, value in wanted.items() if key not in INSIDE}
    command = ["virt-launcher", "probe", "--timeout", str(wanted.get("timeoutSeconds") or DEFAULTS["timeoutSeconds"])]
    if wanted.get("exec") is not None:
        command += ["--", *(wanted["exec"].get("command") or ())]
    return {**rest, "exec": {"command": command}}
