"""A certificate authority that issues and rotates, for every component that speaks TLS.

The operator signs the certificates of webhooks, gateway and handlers with it, the local cluster those of its API server
and its nodes. Everything here is level-triggered: `Authority.rotated` and `Authority.ensure` take what exists and give
back what should exist now, the same object where nothing is due, so a caller runs them as often as it likes.

An authority is replaced in three steps that time alone decides, so that no connection is refused on the way: the
successor joins the bundle that peers trust; once peers had time to see it (`settle`) it signs, and certificates of its
predecessor are due; the predecessor leaves the bundle when it expires. One whose key was lost is replaced likewise.

Only who issues imports this: the library behind it takes 9 MiB of memory. Who uses certificates has `certificates`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from virtfleet.kube.certificates import BUNDLE, CERTIFICATE, KEY, Credential

# Certificates begin a little in the past, because the clocks of a cluster never agree entirely.
SKEW = timedelta(minutes=5)
# How long peers may need to see a new authority in the bundle: a mounted ConfigMap is refreshed about every minute.
SETTLE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Lifespan:
    """How long a certificate is good for, and how long before its end it is replaced."""

    lifetime: timedelta
    renew_before: timedelta

    @property
    def settle(self) -> timedelta:
        return min(SETTLE, self.renew_before / 2)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a certificate says. With `hosts` (names and addresses) it serves, with `client` it identifies a caller."""

    common_name: str
    lifespan: Lifespan
    organizations: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    client: bool = False


@dataclass(frozen=True, slots=True)
class _Generation:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def born(self) -> datetime:
        return self.certificate.not_valid_before_utc + SKEW

    @property
    def expires(self) -> datetime:
        return self.certificate.not_valid_after_utc


class Authority:
    """A certificate authority: its generations, newest first. Usually one is alive, during a rotation two.

    `former` are those whose keys were lost: they sign no more, and are trusted for what they have signed.
    """

    def __init__(
        self,
        name: str,
        lifespan: Lifespan,
        generations: tuple[_Generation, ...],
        former: tuple[x509.Certificate, ...] = (),
    ) -> None:
        self.name = name
        self.lifespan = lifespan
        self._generations = generations
        self._former = former

    @classmethod
    def create(cls, name: str, lifespan: Lifespan, now: datetime | None = None) -> Authority:
        return cls(name, lifespan, ()).succeeded(now)

    @classmethod
    def load(cls, name: str, lifespan: Lifespan, files: Mapping[str, bytes], trusted: bytes = b"") -> Authority:
        """From `files()` of an earlier one, as far as they are left, and what peers trust. To be `rotated` at once."""
        parts = (files.get(CERTIFICATE, b""), files.get(BUNDLE, b""), trusted)
        certificates = list(dict.fromkeys(certificate for part in parts for certificate in _certificates(part)))
        try:
            keys = load_keys(files.get(KEY, b""))
        except ValueError:
            keys = []
        pairs = tuple(
            _Generation(certificate, key)
            for certificate in certificates
            for key in keys
            if key.public_key() == certificate.public_key()
        )
        kept = {pair.certificate for pair in pairs}
        return cls(name, lifespan, pairs, tuple(each for each in certificates if each not in kept))

    def files(self) -> dict[str, bytes]:
        """All generations in the shape of a Secret: the newest certificate, keys, and what peers should trust."""
        return {
            CERTIFICATE: _pem(self._generations[0].certificate),
            KEY: dump_keys(g.key for g in self._generations),
            BUNDLE: self.bundle,
        }

    @property
    def bundle(self) -> bytes:
        """What peers should trust, in PEM."""
        return b"".join(_pem(each) for each in (*(g.certificate for g in self._generations), *self._former))

    def rotated(self, now: datetime | None = None) -> Authority:
        """The authority as it should be now: a successor announced when its time has come, expired ones dropped."""
        now = now or datetime.now(UTC)
        alive = tuple(g for g in self._generations if g.expires > now)
        former = tuple(each for each in self._former if each.not_valid_after_utc > now)
        left = Authority(self.name, self.lifespan, alive, former)
        if not alive or alive[0].expires - now <= self.lifespan.renew_before:
            return left.succeeded(now)
        return self if (alive, former) == (self._generations, self._former) else left

    def succeeded(self, now: datetime | None = None) -> Authority:
        """The authority with a new generation, whether it was due or not."""
        now = now or datetime.now(UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{self.name}@{int(now.timestamp())}")])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(now + self.lifespan.lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return Authority(self.name, self.lifespan, (_Generation(certificate, key), *self._generations), self._former)

    def signer(self, now: datetime) -> _Generation:
        """The newest generation that peers had time to learn of; the oldest where none had."""
        alive = [g for g in self._generations if g.expires > now]
        return next((g for g in alive if now - g.born >= self.lifespan.settle), alive[-1])

    def issue(self, profile: Profile, now: datetime | None = None) -> Credential:
        now = now or datetime.now(UTC)
        signer = self.signer(now)
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, o) for o in profile.organizations]
        subject = x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, profile.common_name)])
        usages = [ExtendedKeyUsageOID.SERVER_AUTH] if profile.hosts else []
        usages += [ExtendedKeyUsageOID.CLIENT_AUTH] if profile.client else []
        builder = (
            x509.CertificateBuilder(signer.certificate.subject, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(min(now + profile.lifespan.lifetime, signer.expires))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
        )
        if profile.hosts:
            hosts = x509.SubjectAlternativeName([_general_name(h) for h in profile.hosts])
            builder = builder.add_extension(hosts, critical=False)
        certificate = builder.sign(signer.key, hashes.SHA256())
        return Credential(_pem(certificate), dump_keys([key]), self.bundle)

    def ensure(self, credential: Credential | None, profile: Profile, now: datetime | None = None) -> Credential:
        """The credential as it should be now: the given one while it says what it should and nothing is due."""
        now = now or datetime.now(UTC)
        if credential is None or self._due(leaf_of(credential), profile, now):
            return self.issue(profile, now)
        if credential.bundle != self.bundle:
            return Credential(credential.certificate, credential.key, self.bundle)
        return credential

    def _due(self, leaf: x509.Certificate, profile: Profile, now: datetime) -> bool:
        # Measured by its real length, which the end of its signer may have cut: else it would be due from the start.
        length = leaf.not_valid_after_utc - leaf.not_valid_before_utc - SKEW
        renewal = leaf.not_valid_after_utc - min(profile.lifespan.renew_before, length / 2)
        signer = self.signer(now)
        good = [signer.certificate, *(self._former if now - signer.born < self.lifespan.settle else ())]
        return now >= renewal or _says(leaf) != _wanted(profile) or not any(_signed(each, leaf) for each in good)


def _signed(issuer: x509.Certificate, leaf: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(issuer)
    except Exception:  # a wrong name, algorithm and signature are three unrelated exceptions
        return False
    return True


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:  # none, or broken ones
        return []


def _wanted(profile: Profile) -> tuple[object, ...]:
    return profile.common_name, profile.organizations, set(profile.hosts), bool(profile.hosts), profile.client


def _says(leaf: x509.Certificate) -> tuple[object, ...]:
    """What a certificate says, in the terms of `_wanted`."""
    hosts: set[str] = set()
    with suppress(x509.ExtensionNotFound):
        hosts = {str(n.value) for n in leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value}
    usages = set(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    serves, calls = ExtendedKeyUsageOID.SERVER_AUTH in usages, ExtendedKeyUsageOID.CLIENT_AUTH in usages
    return *subject(leaf), hosts, serves, calls


def leaf_of(credential: Credential) -> x509.Certificate:
    """The credential's own certificate."""
    return x509.load_pem_x509_certificate(credential.certificate)


def subject(certificate: x509.Certificate) -> tuple[str, tuple[str, ...]]:
    """The common name and the organizations of a certificate: to Kubernetes, user and groups."""
    names = [str(a.value) for a in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    organizations = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return names[0] if names else "", tuple(str(a.value) for a in organizations)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def dump_keys(keys: Iterable[ec.EllipticCurvePrivateKey]) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    return b"".join(key.private_bytes(serialization.Encoding.PEM, form, plain) for key in keys)


def load_keys(pem: bytes) -> list[ec.EllipticCurvePrivateKey]:
    """What `dump_keys` wrote."""
    end = b"-----END PRIVATE KEY-----\n"
    blocks = [block + end for block in pem.split(end) if block.strip()]
    keys = [serialization.load_pem_private_key(block, None) for block in blocks]
    return [key for key in keys if isinstance(key, ec.EllipticCurvePrivateKey)]
