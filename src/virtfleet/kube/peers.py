"""Who is at the other end of a TLS connection, by the client certificate that its handshake verified."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Peer:
    """What the certificate says: to Kubernetes, name and organizations are user and groups."""

    name: str
    organizations: tuple[str, ...]
    begins: datetime
    ends: datetime

    def is_current(self) -> bool:
        """A handshake checks the dates once, but a connection may outlive them."""
        return self.begins <= datetime.now(UTC) < self.ends


def presented(request: web.BaseRequest) -> Peer | None:
    """Whose certificate of a trusted authority came with the connection, if any."""
    connection = request.transport.get_extra_info("ssl_object") if request.transport else None
    certificate = connection.getpeercert() if connection else None
    return of(certificate) if certificate else None


def verified(request: web.BaseRequest) -> Peer | None:
    """The peer, while its certificate is good."""
    peer = presented(request)
    return peer if peer and peer.is_current() else None


def of(certificate: Mapping[str, Any]) -> Peer:
    """Whose certificate this is, as `getpeercert` has it of one that was verified."""
    subject = [attribute for names in certificate["subject"] for attribute in names]
    name = next((value for key, value in subject if key == "commonName"), "")
    organizations = tuple(value for key, value in subject if key == "organizationName")
    return Peer(name, organizations, _time(certificate["notBefore"]), _time(certificate["notAfter"]))


def _time(words: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(words), UTC)
