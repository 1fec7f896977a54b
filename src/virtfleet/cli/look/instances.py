"""The VMIs that manifests lead to, as the cluster would have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from virtfleet.api.kinds import BY_NAME
from virtfleet.cli.output import CommandError, refused

if TYPE_CHECKING:
    from virtfleet.installation import Installation


def completed_instances(made: Iterable[dict[str, Any]], cluster: Installation) -> list[dict[str, Any]]:
    """The VMIs among the objects, and those that their VMs and replica sets make, with their defaults."""
    from virtfleet.reasons.instances import completed_instance

    instances = []
    for obj in made:
        kind = BY_NAME.get(obj["kind"])
        if kind is None or not kind.instance:
            continue
        completed, findings = completed_instance(obj, cluster)
        if not findings.allowed:
            raise refused(findings.causes)
        instances.append(completed)
    if not instances:
        raise CommandError("no VMI, VM or replica set to work on", "Name a file with one after -f.")
    return instances
