"""Rolling out new handlers: one as a canary, then a tenth of them at a time, and no further once one fails. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from virtfleet.operator.handlerpods import HandlerPod

SHARE = 10
"""One in so many handlers may be away at once, after the canary."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """How far one DaemonSet's Pods are, and which of them go next."""

    updated: int
    outdated: int
    replace: tuple[HandlerPod, ...] = ()
    starting: int = 0
    """New Pods that are not ready yet, and those still to be made."""
    failure: str = ""
    """Why one of the new Pods does not come up. It stops the rollout."""

    @property
    def done(self) -> bool:
        return not self.outdated and not self.starting

    @property
    def stopped(self) -> bool:
        return bool(self.outdated and self.failure)


def rollout(pods: Sequence[HandlerPod], template: Mapping[str, str], desired: int, now: datetime) -> Rollout:
    """The next step for the Pods of one DaemonSet. `template` are the annotations of its template.

    `desired` is how many nodes should have one: a Pod that is gone and not yet made anew counts as away.
    """
    new = [pod for pod in pods if pod.made_from(template) and not pod.ending]
    old = [pod for pod in pods if not pod.made_from(template)]
    missing = max(0, desired - len(pods))
    starting = missing + sum(pod.starting(now) for pod in new)
    failure = next((pod.failure for pod in new if pod.failure), "")
    if failure:
        return Rollout(len(new), len(old), starting=starting, failure=failure)
    proven = any(pod.ready for pod in new)
    most = max(1, desired // SHARE) if proven else 1
    away = sum(not pod.ready for pod in new) + sum(pod.ending for pod in pods) + missing
    # Those that do not work anyway go first: nothing is lost with them.
    order = sorted((pod for pod in old if not pod.ending), key=lambda pod: (pod.ready, pod.metadata.name))
    return Rollout(len(new), len(old), tuple(order[: max(0, most - away)]), starting)
