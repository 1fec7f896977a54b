"""What VirtFleet does not do yet, and what to do instead."""

from __future__ import annotations

_NO_SEV = "SEV attestation is not there yet; start the VM without launchSecurity.sev.attestation"

INSTEAD = {
    "memorydump": "memory cannot be dumped to a claim yet; use a crash dump of the guest's own",
    "removememorydump": "memory cannot be dumped to a claim yet, so there is no dump to forget",
    "backup": "backups are not there yet; copy the disks inside the guest, or their claims while the VM is stopped",
    "redefine-checkpoint": "backups are not there yet, and neither are checkpoints",
    "sev/fetchcertchain": _NO_SEV,
    "sev/querylaunchmeasurement": _NO_SEV,
    "sev/setupsession": _NO_SEV,
    "sev/injectlaunchsecret": _NO_SEV,
}
