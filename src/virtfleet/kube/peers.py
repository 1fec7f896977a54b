"""Who is at the other end of a TLS connection, by the client certificate that its handshake verified."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from aiohttp import web
from cryptography import x509

from virtfleet.kube import certificates


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
    der = connection.getpeercert(binary_form=True) if connection else None
    return of(der) if der else None


def verified(request: web.BaseRequest) -> Peer | None:
    """The peer, while its certificate is good."""
    peer = presented(request)
    return peer if peer and peer.is_current() else None


@lru_cache(maxsize=1024)
def of(der: bytes) -> Peer:
    """Whose certificate this is."""
    certificate = x509.load_der_x509_certificate(der)
    name, organizations = certificates.subject(certificate)
    return Peer(name, organizations, certificate.not_valid_before_utc, certificate.not_valid_after_utc)
