"""What firmware and TPM keep beyond this run of the VM: directories of libvirt's that lie in the VM's own claim."""

from __future__ import annotations

import os
from pathlib import Path

from virtfleet.domain import paths

_LIBVIRTS = f"{paths.PRIVATE}/libvirt/qemu"


def link(kept: str) -> None:
    """Lead libvirt to the claim, before it makes such directories itself. May be repeated."""
    for name in filter(None, kept.split(":")):
        place, link = Path(paths.VM_STATE, name), Path(_LIBVIRTS, name)
        place.mkdir(mode=0o770, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(link):
            link.symlink_to(place)
