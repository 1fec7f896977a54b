"""What a handler does next for a VM, by what the VMI wants and what its domain does. Pure."""

from __future__ import annotations

import enum

from virtfleet.api.names import FINAL
from virtfleet.handler.pods.launchers import Presence
from virtfleet.handler.vms.records import Instance
from virtfleet.protocol.messages import DomainState, Status


class Step(enum.Enum):
    """In the order in which they are considered: an end that was asked for goes before everything else."""

    NOTHING = "nothing"
    SHUT_DOWN = "shut down"
    KILL = "kill"
    START = "start"
    UPDATE = "update"


def next_step(found: Instance, presence: Presence, state: DomainState | None) -> Step:
    """The next step. Where nothing is known of the domain, nothing is done to it."""
    if presence is not Presence.HERE or state is None or state.status.ended:
        return Step.NOTHING
    if found.phase in FINAL:
        return Step.KILL
    if found.deleting:
        return Step.SHUT_DOWN
    if state.stopping:
        return Step.NOTHING
    if state.status is Status.ABSENT:
        return Step.START
    return Step.UPDATE
