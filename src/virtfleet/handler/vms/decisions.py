"""What a handler does next for a VM, by what the VMI wants and what its domain does. Pure."""

from __future__ import annotations

import enum

from virtfleet.api.names import FINAL
from virtfleet.handler.pods.launchers import Presence
from virtfleet.handler.vms.instances import Instance, Role
from virtfleet.protocol.messages import DomainState, Status


class Step(enum.Enum):
    """In the order in which they are considered: an end that was asked for goes before everything else."""

    NOTHING = "nothing"
    KILL = "kill"
    PREPARE = "prepare"
    SHUT_DOWN = "shut down"
    START = "start"
    UPDATE = "update"


def next_step(instance: Instance, role: Role, presence: Presence, state: DomainState | None) -> Step:
    """The next step. Where nothing is known of the domain, nothing is done to it."""
    if presence is not Presence.HERE or state is None or state.status.ended:
        return Step.NOTHING
    if instance.phase in FINAL:
        return Step.KILL
    if role is Role.TARGET:  # the guest's end is the source's business, and with it this Pod's
        return Step.PREPARE if state.status is Status.ABSENT else Step.NOTHING
    if instance.deleting:
        return Step.SHUT_DOWN
    if state.stopping:
        return Step.NOTHING
    if state.status is Status.ABSENT:
        return Step.START
    return Step.UPDATE
