"""What a DataVolume's status says, in CDI's words. Pure."""

from __future__ import annotations

from typing import Any

from virtfleet.api import conditions, imports
from virtfleet.api.conditions import Condition
from virtfleet.controller.datavolumes.records import FAILED, PENDING, SUCCEEDED, Importer
from virtfleet.controller.records.cluster import Claim

_VERBS = {imports.UPLOAD: "Upload", imports.CLAIM: "Clone"}
_UNKNOWN, _ALL = "N/A", "100.0%"


def phase(source: str, importer: Importer) -> str:
    """How far it is, as far as it is not at its end."""
    if importer.done or importer.lost:
        return PENDING
    verb = _VERBS.get(source, "Import")
    if source == imports.UPLOAD:
        return f"{verb}Ready" if importer.ready else f"{verb}Scheduled"
    begun = importer.running or importer.restarts
    # An image is imported by the node that pulls it.
    begun = begun or (source == imports.REGISTRY and importer.pulled_in_vain)
    return f"{verb}InProgress" if begun else f"{verb}Scheduled"


def status(
    old: dict[str, Any], name: str, at: str, claim: Claim | None, importer: Importer | None, trouble: str, now: float
) -> dict[str, Any]:
    """The whole status; `trouble` is what stands in its way."""
    told: list[Condition] = old.get("conditions") or []
    bound = claim is not None and claim.bound
    words = f"PVC {name} Bound" if bound else f"PVC {name} Pending" if claim else "No PVC found"
    told = _put(told, "Bound", bound, "Bound" if bound else "Pending" if claim else "NotFound", words, now)
    done = at == SUCCEEDED
    told = _put(told, "Ready", done, "" if done else "TransferFailed" if at == FAILED else "TransferRunning", "", now)
    if done:
        told = _put(told, "Running", False, "Completed", "the disk is whole", now)
    elif trouble:
        told = _put(told, "Running", False, "Error", trouble, now)
    else:
        running = importer is not None and importer.running
        told = _put(told, "Running", running, "Pod is running" if running else "Pending", "", now)
    return {
        "claimName": name,
        "phase": at,
        "progress": _ALL if done else _UNKNOWN,
        "restartCount": importer.restarts if importer else old.get("restartCount") or 0,
        "conditions": told,
    }


def _put(told: list[Condition], kind: str, holds: bool, reason: str, message: str, now: float) -> list[Condition]:
    return conditions.put(told, kind, "True" if holds else "False", now, reason=reason, message=message)
