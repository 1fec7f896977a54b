"""Stand-ins: handlers that serve a node while its DaemonSet replaces the one that did. Pure.

A DaemonSet makes a new Pod only when the old one is gone, so a node would be without a handler while the new one's init
containers run and its program starts. A stand-in is a handler of the new template, on that node, beside the old one: it
comes up as far as the node's lock and waits there. Then the old handler may go. The stand-in holds the lock a moment
later, and gives it up when the DaemonSet's own new Pod has come up as far. Where a stand-in does not come up, the old
handler stays: what does not work costs no VM its console.

Its name says what it stands for. It ends by itself when an operator of another version has come, which may know no
stand-ins, and after a while in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from virtfleet.api import names
from virtfleet.installation import Installation
from virtfleet.kube.resource import Obj
from virtfleet.operator.handlerpods import HandlerPod
from virtfleet.operator.handlers import PLACEMENT, VIRT_HANDLER
from virtfleet.operator.objects import digest, own_pod
from virtfleet.operator.proof import Asking
from virtfleet.operator.rollout import Change

PREFIX = "virt-handler-stand-in-"
_STANDING_IN = {"name": names.STAND_IN_VARIABLE, "value": "true"}  # which a handler of another version does not mind
_LIFE = 400  # seconds: longer than a handler may take that sees migrations through


class StandIns(Asking):
    """Those that are needed now."""

    def waits(self, change: Change, successor: Obj) -> bool:
        """Whether the handler may go: somebody stands by, or nobody needs to, or there is no room for that."""
        if not change.pod.ready:
            return True
        wanted = render(self.installation, successor, change.node)
        there = self.there.get(wanted["metadata"]["name"])
        if there and there.status.phase in names.FINAL:
            return True
        who, stays = successor["metadata"]["name"], change.pod.metadata.name
        self.ask(wanted, f"{who} does not come up on {change.node}, so {stays} stays")
        return there is not None and there.started and not there.ending

    def over(self, handlers: Iterable[HandlerPod]) -> list[HandlerPod]:
        """Stand-ins that nobody needs any more: a handler that is to stay serves the node, or is about to."""
        served = {pod.node for pod in handlers if pod.started and not pod.ending}
        return [pod for name, pod in self.there.items() if name not in self.needed and pod.node in served]


def render(installation: Installation, daemon_set: Obj, node: str) -> Obj:
    template = daemon_set["spec"]["template"]
    spec = {key: value for key, value in template["spec"].items() if key not in PLACEMENT}
    [handler] = [_small(container) for container in spec["containers"] if container["name"] == VIRT_HANDLER]
    content: dict[str, Any] = {
        **spec,
        "nodeName": node,
        "restartPolicy": "OnFailure",
        "activeDeadlineSeconds": _LIFE,
        "tolerations": [{"operator": "Exists"}],
        "initContainers": [_small(container) for container in spec.get("initContainers") or ()],
        "containers": [{**handler, "env": [*handler.get("env", ()), _STANDING_IN]}],
    }
    labels = {**template["metadata"]["labels"], names.STAND_IN: "true"}
    notes = template["metadata"].get("annotations", {})  # its networks, for example
    return own_pod(installation, f"{PREFIX}{digest(content)}", labels, content, annotations=notes)


def _small(container: Mapping[str, Any]) -> dict[str, Any]:
    """As it is, but asking for next to nothing: it must fit beside the handler that it stands in for."""
    limits = (container.get("resources") or {}).get("limits")
    resources = {"requests": {"cpu": "1m", "memory": "1Mi"}, **({"limits": limits} if limits else {})}
    return {**container, "resources": resources}
