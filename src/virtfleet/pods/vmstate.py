"""What firmware and TPM of a VM keep beyond its runs, and how its launcher finds it. Pure."""

from __future__ import annotations

from virtfleet.api import traits
from virtfleet.api.vmi import VirtualMachineInstance as VMI

VOLUME = "vm-state"
_LONGEST_NAME = 253


def claim_name(vm: str, migration_uid: str = "") -> str:
    """The claim that holds it; a migration brings it into another one."""
    prefix, suffix = "persistent-state-for-", f"-{migration_uid.partition('-')[0]}" if migration_uid else ""
    return f"{prefix}{vm[: _LONGEST_NAME - len(prefix) - len(suffix)].rstrip('-.')}{suffix}"


def kept(vmi: VMI) -> list[str]:
    """Directories of libvirt's that lie in the claim, by the names that they have in both."""
    return ["nvram"] * traits.persistent_efi(vmi) + ["swtpm"] * traits.persistent_tpm(vmi)
