"""Health probes of a VM, and the actions that they share with Kubernetes' containers."""

from __future__ import annotations

from typing import Annotated, Final

from virtfleet.api.view import Empty, OneOf, Required, View


class ExecAction(View):
    """A command that the guest agent runs inside the VM."""

    command: list[str] = []
    """Program and arguments; no shell is involved."""


class HTTPHeader(View):
    """A header of the request."""

    name: Required[str] = ""
    value: Required[str] = ""


class TCPSocketAction(View):
    """A TCP connection to the VM."""

    port: Required[int | str] | None = None
    """Port number or name."""
    host: str = ""
    """Host to connect to; the VM's own address where empty."""


class HTTPGetAction(TCPSocketAction):
    """An HTTP request to the VM."""

    path: str = ""
    """Path of the request."""
    scheme: Annotated[str, OneOf("HTTP", "HTTPS")] = ""
    """HTTP or HTTPS."""
    http_headers: list[HTTPHeader] = []
    """Headers that are sent along."""


OVER_THE_NETWORK: Final = ("httpGet", "tcpSocket")
INSIDE: Final = ("exec", "guestAgentPing")
"""Actions that happen inside the guest, by its agent."""
ACTIONS: Final = (*OVER_THE_NETWORK, *INSIDE)
DEFAULTS: Final = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


class Probe(View):
    """A health check of the VM; exactly one action is set."""

    exec: ExecAction | None = None
    """Run a command inside the guest."""
    guest_agent_ping: Empty | None = None
    """Ask the guest agent for a sign of life."""
    http_get: HTTPGetAction | None = None
    """Send an HTTP request."""
    tcp_socket: TCPSocketAction | None = None
    """Open a TCP connection."""
    initial_delay_seconds: int | None = None
    """Wait this long after the start of the VM."""
    timeout_seconds: int | None = None
    """A check that takes longer has failed; 1 by default."""
    period_seconds: int | None = None
    """Time between two checks; 10 by default."""
    success_threshold: int | None = None
    """Successes in a row that make it healthy."""
    failure_threshold: int | None = None
    """Failures in a row that make it unhealthy."""
