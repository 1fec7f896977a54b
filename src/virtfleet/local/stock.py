"""The images that every local cluster has in stock, so that examples run without a registry.

Those of VirtFleet's components come with the image store (`node.hostimage`); here are the rest: a guest to boot, and
handlers and launchers of pools, which are the ordinary ones under another name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import virtfleet
from virtfleet.local import guestimage
from virtfleet.local.node.hostimage import open_store
from virtfleet.local.node.registry import load

POOLS = ("megaslop", "canary")
"""The pools of the examples: tags of their images, and values of POOL in their environments."""

WITH_KERNEL = "virtfleet/guest:kernel"
"""The guest with its kernel outside of its disk, for VMs that boot one by itself."""


async def fill(images: Path, progress: Callable[[str], None]) -> None:
    """Provide the images, made anew where this machine or VirtFleet changed."""
    store = open_store(images)
    for component, pool in itertools.product(("virt-handler", "virt-launcher"), POOLS):
        ordinary = f"virtfleet/{component}:{virtfleet.__version__}"
        store.derive(f"virtfleet/{component}:{pool}", ordinary, (), {"POOL": pool})
    try:
        guest = guestimage.build(guestimage.default_cache())
    except guestimage.GuestError as error:
        progress(f"there is no {guestimage.IMAGE}: {error}")
        return
    await load(store, guest.archive, guestimage.IMAGE)
    files = [(guest.kernel, "/boot/vmlinuz"), (guest.initrd, "/boot/initrd")]
    store.derive(WITH_KERNEL, guestimage.IMAGE, files, {})
    progress(f"{guestimage.IMAGE} is there for guests" + ("" if guest.cached else " (built now, and kept)"))
