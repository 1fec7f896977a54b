"""An upload: virt-api connects, shows who it is by its certificate, and sends an image in pieces.

The certificate of this end is made here and vouches for nothing; it encrypts. Whoever is not virt-api is turned away by
the handshake. One image is taken; what breaks off is begun anew by whoever uploads.
"""

from __future__ import annotations

import queue
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from virtfleet.launcher.importing.streams import Head, Hopeless, Readable, Trouble
from virtfleet.protocol.importing import MOST_AT_ONCE, Job

_SILENCE: Final = 120.0
_GREETING: Final = 5.0  # seconds for the handshake
_GREETED: Final = 16  # at once
_LENGTH: Final = struct.Struct(">I")
_DAYS: Final = 3650


def _pieces(sent: BufferedReader) -> Iterator[bytes]:
    """What is sent, up to the piece of none."""
    while length := _LENGTH.unpack(_exactly(sent, _LENGTH.size))[0]:
        if length > MOST_AT_ONCE:
            raise Trouble("a piece of the upload is too long")
        yield _exactly(sent, length)


def _exactly(sent: BufferedReader, size: int) -> bytes:
    try:
        piece = sent.read(size)
    except OSError as error:
        raise Trouble(f"the upload broke off: {error}") from None
    if len(piece) < size:
        raise Trouble("the upload broke off")
    return piece


def receive(job: Job, port: int, write: Callable[[Readable], None]) -> None:
    """Wait for an upload, again after one that broke off, until one is whole. `write` makes the disk of it."""
    known: queue.SimpleQueue[ssl.SSLSocket] = queue.SimpleQueue()
    Thread(target=_listen, args=(job, port, known), daemon=True).start()
    while True:
        with known.get() as connection:
            if _taken(connection, write):
                return


def _listen(job: Job, port: int, known: queue.SimpleQueue[ssl.SSLSocket]) -> None:
    """Find out who comes. Whoever says nothing keeps nobody else waiting."""
    context, greeting = _context(job), ThreadPoolExecutor(_GREETED)
    with socket.create_server(("", port)) as listener:
        while True:
            greeting.submit(_greet, context, listener.accept()[0], job.client, known)


def _greet(context: ssl.SSLContext, plain: socket.socket, client: str, known: queue.SimpleQueue[ssl.SSLSocket]) -> None:
    plain.settimeout(_GREETING)
    try:
        connection = context.wrap_socket(plain, server_side=True)
    except OSError:
        plain.close()
        return
    if _name(connection) != client:
        connection.close()
        return
    connection.settimeout(_SILENCE)
    known.put(connection)


def _taken(connection: ssl.SSLSocket, write: Callable[[Readable], None]) -> bool:
    """Whether the disk is whole; virt-api hears why it is not."""
    failure: Trouble | Hopeless | None = None
    try:
        with connection.makefile("rb") as sent:
            write(Head(_pieces(sent)))
    except (Trouble, Hopeless) as error:
        failure = error
    body = msgspec.json.encode({"done": not failure, "message": str(failure or "")})
    with suppress(OSError):
        connection.sendall(_LENGTH.pack(len(body)) + body)
    if isinstance(failure, Hopeless):
        raise failure
    return not failure


def _name(connection: ssl.SSLSocket) -> str:
    """Who the other end is, by the certificate that the handshake has checked."""
    certificate = connection.getpeercert(binary_form=True)
    if not certificate:
        return ""
    names = x509.load_der_x509_certificate(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def _context(job: Job) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=job.clients)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "virtfleet-importer")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .sign(key, hashes.SHA256())
    )
    with TemporaryDirectory() as directory:
        file = Path(directory, "own.pem")
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        file.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()) + certificate.public_bytes(pem))
        context.load_cert_chain(file)
    return context
