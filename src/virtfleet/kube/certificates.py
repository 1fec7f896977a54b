"""Certificates as those have them who speak TLS: files, and contexts that outlive what is in the files.

Who issues certificates is in `authority`.
"""

from __future__ import annotations

import logging
import os
import shutil
import ssl
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

log = logging.getLogger(__name__)

# The names of Secrets of type kubernetes.io/tls, used on disk as well.
CERTIFICATE, KEY, BUNDLE = "tls.crt", "tls.key", "ca.crt"
# Beside virt-handler's own: what it shows to guests that ask who calls.
GUEST_CERTIFICATE, GUEST_KEY = "vsock.crt", "vsock.key"


@dataclass(frozen=True, slots=True)
class Credential:
    """A certificate with its key and the authorities that its peers are checked against, all in PEM."""

    certificate: bytes
    key: bytes
    bundle: bytes

    def files(self) -> dict[str, bytes]:
        return {CERTIFICATE: self.certificate, KEY: self.key, BUNDLE: self.bundle}

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Credential | None:
        """From the content of a Secret or directory; None where it is incomplete or key and certificate differ."""
        credential = cls(files.get(CERTIFICATE, b""), files.get(KEY, b""), files.get(BUNDLE, b""))
        return credential if _fit(credential) else None


@lru_cache(maxsize=32)
def _fit(credential: Credential) -> bool:
    """Whether key and certificate belong together. Who keeps certificates asks again and again of the same ones."""
    try:
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), credential)
    except ssl.SSLError:
        return False
    return True


def for_guests(files: Mapping[str, bytes]) -> Credential | None:
    """What a handler shows to guests, from the files that it has."""
    named = {CERTIFICATE: GUEST_CERTIFICATE, KEY: GUEST_KEY, BUNDLE: BUNDLE}
    return Credential.of({name: files.get(file, b"") for name, file in named.items()})


# --- files -----------------------------------------------------------------------------------------------------------


def read(directory: Path) -> dict[str, bytes]:
    """The files of a mounted Secret, or of `write`: all of one version, even while they are being replaced."""
    for _ in range(3):
        version = directory / "..data"
        root = version.resolve() if version.exists() else directory
        try:
            return {p.name: p.read_bytes() for p in root.iterdir() if p.is_file()}
        except FileNotFoundError:
            continue  # it was replaced and removed under our hands, or never was there
    return {}


def write(directory: Path, files: Mapping[str, bytes]) -> None:
    """Replace the files of a directory at once, durably, as a kubelet does: a new version behind a swapped link."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    version = Path(tempfile.mkdtemp(prefix="..", dir=directory))
    for name, content in files.items():
        with open(version / name, "wb", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    show(directory, version, files)
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def show(directory: Path, version: Path, names: Iterable[str]) -> None:
    """Have `names` of a directory be those of a version in it, all at once; other versions are removed."""
    _swap(directory / "..data", version.name)
    for name in names:
        if not (directory / name).is_symlink():
            _swap(directory / name, f"..data/{name}")
    for stale in directory.glob("..*"):
        if stale.is_dir() and not stale.is_symlink() and stale != version:
            shutil.rmtree(stale)


def _swap(link: Path, target: str) -> None:
    fresh = link.with_name(f"..{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


# --- TLS -------------------------------------------------------------------------------------------------------------


def server_context(credential: Credential, *, clients: bytes | None = None, required: bool = False) -> ssl.SSLContext:
    """For listening. `clients` are the authorities of client certificates, which are optional unless `required`. Where
    it is empty, no client certificate is good; where it is None, none is asked for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context)
    # A resumed session would carry a client's identity past the end of its certificate or authority.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    _load(context, credential)
    if clients is not None:
        if clients:
            context.load_verify_locations(cadata=clients.decode())
        context.sslobject_class = _Listening
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


class _Listening(ssl.SSLObject):
    """A server's side of a connection. A client that fails the handshake is never seen by any code but this."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as error:
            log.warning("refused a client's certificate: %s", error.verify_message)
            raise


def client_context(
    trust: bytes = b"", credential: Credential | None = None, *, insecure: bool = False
) -> ssl.SSLContext:
    """For calling a server whose authority is in `trust` (the machine's own where empty), with a client certificate
    where one is given. `insecure` accepts any server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _restrict(context)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif trust:
        context.load_verify_locations(cadata=trust.decode("ascii", "ignore"))
    else:
        context.load_default_certs()
    if credential:
        _load(context, credential)
    return context


def _restrict(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2


def _load(context: ssl.SSLContext, credential: Credential) -> None:
    # The ssl module reads keys from files only; an anonymous one in memory leaves no key behind.
    descriptor = os.memfd_create("credential", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(credential.key + b"\n" + credential.certificate)
        # Without a password OpenSSL would ask for one on the terminal, if a key wants it.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
    finally:
        os.close(descriptor)


class RotatingContext:
    """The context of a listener that outlives its certificates.

    An SSLContext cannot forget an authority, and a listener cannot be given another context. So the listener keeps
    `listening` for ever, and every handshake that begins is moved to the newest context (certificate, key and trusted
    client authorities alike) from within OpenSSL's server-name callback, which runs whether a name was sent or not.
    All contexts must agree on whether client certificates are required.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.listening = context
        self._present = context
        context.sni_callback = self._move

    def renew(self, context: ssl.SSLContext) -> None:
        """Use this context from the next handshake on; connections that exist are left alone."""
        if context.verify_mode != self.listening.verify_mode:
            raise ValueError("client certificates cannot become required, optional or unwanted by rotation")
        # The version is settled before a name was read, by what the connection began with.
        self.listening.minimum_version = context.minimum_version
        self._present = context

    def _move(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = self._present
