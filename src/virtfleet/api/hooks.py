"""Hook sidecars: containers that the owner of a VM has beside its launcher, and that are asked about its domain."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from virtfleet.api import names
from virtfleet.api.view import View, fields

MOST = 8


class HookScript(View):
    """A file for a sidecar, from a ConfigMap."""

    name: str = ""
    key: str = ""
    hook_path: str = ""


class HookSidecar(View):
    """One of them, as the annotation has it."""

    image: str = ""
    image_pull_policy: str = ""
    command: list[str] = []
    args: list[str] = []
    config_map: HookScript | None = None


def sidecars(annotations: Mapping[str, str]) -> list[HookSidecar]:
    """Those of a VMI. Raises ValueError, whose text says what is wrong with the annotation and what to do."""
    text = annotations.get(names.HOOK_SIDECARS) or "[]"
    try:
        wanted = msgspec.json.decode(text, type=list[HookSidecar])
        said = msgspec.json.decode(text, type=list[dict[str, msgspec.Raw]])
    except msgspec.MsgspecError as error:
        raise _malformed(f"it is not a list of sidecars in JSON: {error}") from None
    if len(wanted) > MOST:
        raise _malformed(f"there may be {MOST} sidecars, and it lists {len(wanted)}")
    for number, sidecar in enumerate(wanted):
        if others := sorted(said[number].keys() - fields(HookSidecar)):
            raise _malformed(f"VirtFleet knows no {', '.join(others)} of sidecar {number}; remove it")
        if not sidecar.image:
            raise _malformed(f"sidecar {number} has no image, and VirtFleet brings none for it; set image")
        script = sidecar.config_map
        if script and not (script.name and script.key and script.hook_path.startswith("/")):
            raise _malformed(f"configMap of sidecar {number} needs name, key and hookPath, an absolute path")
    return wanted


def _malformed(why: str) -> ValueError:
    return ValueError(f"annotation {names.HOOK_SIDECARS}: {why}")
