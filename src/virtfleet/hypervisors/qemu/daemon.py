"""libvirt for one QEMU VM.

QEMU writes its log through virtlogd, so that a restart of the daemon loses nothing. A session's qemu.conf has no user:
QEMU runs as the daemon does.
"""

from __future__ import annotations

from virtfleet.hypervisors import daemons
from virtfleet.hypervisors.base import DaemonPlan, DaemonSettings, Descriptor

_QEMU_CONF = """\
stdio_handler = "logd"
vnc_listen = "0.0.0.0"
vnc_tls = 0
vnc_sasl = 0
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = [ ]
cgroup_controllers = [ ]
"""


def plan(descriptor: Descriptor, settings: DaemonSettings) -> DaemonPlan:
    return daemons.plan(
        descriptor,
        settings,
        scheme="qemu",
        driver_files={"qemu.conf": _QEMU_CONF},
        directories=("qemu/nvram",),
        log_daemon=True,
    )
