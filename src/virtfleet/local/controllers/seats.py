"""The scheduler's book: which pods sit on which node, and what they use together.

Pods that were just bound are entered at once and not only when the cache shows them, so that two pods never get the
same room. Entries go by uid, so that the cache's later word changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from virtfleet.local.controllers.nodes import NodeView
from virtfleet.local.controllers.pods import Pod


class Seat:
    """One node with the pods on it."""

    __slots__ = ("guards", "node", "owners", "pods", "ports", "used")

    def __init__(self, node: NodeView) -> None:
        self.node = node
        self.pods: dict[str, Pod] = {}  # by uid
        self.guards: dict[str, Pod] = {}  # those of them with anti-affinity, which others must respect
        self.owners: Counter[str] = Counter()  # uid of a workload -> its pods here
        self.used: Counter[str] = Counter()
        self.ports: Counter[tuple[str, str, int]] = Counter()

    def add(self, pod: Pod) -> None:
        self.pods[pod.uid] = pod
        if pod.template.affinity.get("podAntiAffinity"):
            self.guards[pod.uid] = pod
        self.owners[pod.owner_uid] += 1
        self.used.update(pod.template.requests)
        self.ports.update(pod.template.host_ports)

    def remove(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        self.guards.pop(uid, None)
        self.used.subtract(pod.template.requests)
        # What nobody has any more is not kept.
        self.owners -= Counter([pod.owner_uid])
        self.ports -= Counter(pod.template.host_ports)


class Book:
    """All seats, and who sits where. Pods may name nodes that do not exist, yet or any more."""

    def __init__(self, namespaces: Callable[[str], Mapping[str, str] | None] = lambda name: None) -> None:
        self._nodes: set[str] = set()
        self._seats: dict[str, Seat] = {}
        self._where: dict[str, str] = {}  # pod uid -> node
        self.namespaces = namespaces  # their labels, for namespaceSelector

    def seats(self) -> list[Seat]:
        """The seats of nodes that exist."""
        return [self._seats[name] for name in sorted(self._nodes)]

    def node_seen(self, node: NodeView) -> None:
        self._nodes.add(node.name)
        self._seat(node.name).node = node

    def node_gone(self, name: str) -> None:
        self._nodes.discard(name)

    def enter(self, pod: Pod, node: str) -> None:
        """Seat the pod, or move it; entering it again where it sits only refreshes what it uses."""
        self.leave(pod.uid)
        self._seat(node).add(pod)
        self._where[pod.uid] = node

    def leave(self, uid: str) -> None:
        node = self._where.pop(uid, None)
        if node is not None:
            self._seats[node].remove(uid)
            if node not in self._nodes and not self._seats[node].pods:
                del self._seats[node]

    def _seat(self, name: str) -> Seat:
        if name not in self._seats:
            self._seats[name] = Seat(NodeView(name=name))
        return self._seats[name]
