"""Which versions and ciphers of TLS servers speak, by `tlsConfiguration` of the KubeVirt object.

Ciphers go by the names that Go and IANA have for them; OpenSSL has its own. Those of TLS 1.3 are not to be chosen, in
neither world. Versions before 1.2 are not spoken, whatever is asked for.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

from virtfleet.api.configuration import TLSConfiguration

_OPENSSL = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
}


class TlsRules(NamedTuple):
    """What a server speaks at least."""

    minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    ciphers: str = ""
    """In OpenSSL's syntax; empty for those of the library."""

    def apply(self, context: ssl.SSLContext) -> None:
        context.minimum_version = self.minimum
        if self.ciphers:
            context.set_ciphers(self.ciphers)


def unusable(names: list[str]) -> list[str]:
    """Ciphers that no server of ours has: unknown ones, and those for keys of another kind than theirs."""
    return [name for name in names if name not in _OPENSSL]


def rules(configured: TLSConfiguration | None) -> TlsRules:
    """A configuration that says nothing of a version is one of TLS 1.2, as with KubeVirt."""
    if configured is None:
        return TlsRules()
    newest = ssl.TLSVersion.TLSv1_3 if configured.min_tls_version == "VersionTLS13" else ssl.TLSVersion.TLSv1_2
    known = [_OPENSSL[name] for name in configured.ciphers if name in _OPENSSL]
    return TlsRules(newest, ":".join(dict.fromkeys(known)))
