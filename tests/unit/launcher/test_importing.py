"""Importers: disks of all kinds of images, hostile ones among them, into a directory that stands for a claim."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import lzma
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from virtfleet.launcher.importing import streams
from virtfleet.launcher.importing.streams import Counted, Hopeless, Trouble, download
from virtfleet.launcher.importing.target import DISK, Target
from virtfleet.protocol.importing import Job, Source

MIB = 1 << 20
CONTENT = b"boot" + bytes(MIB) + bytes(range(256)) * 2048


def job(size: int = 4 * MIB, **facts: object) -> Job:
    return Job(Source.HTTP, size, **facts)  # type: ignore[arg-type]


def target(directory: Path, wanted: Job | None = None) -> Target:
    return Target(wanted or job(), str(directory))


@pytest.fixture
def scratch(tmp_path: Path) -> str:
    (tmp_path / "scratch").mkdir()
    return str(tmp_path / "scratch")


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    (tmp_path / "claim").mkdir()
    return tmp_path / "claim"


def qcow2(path: Path, *options: str, size: str = "2M") -> bytes:
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *options, str(path), size], check=True)
    return path.read_bytes()


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress], ids=["plain", "gzip", "xz"])
def test_a_stream_becomes_a_disk_of_the_size_that_was_asked_for(pack, claim: Path, scratch: str) -> None:  # type: ignore[no-untyped-def]
    target(claim).stream(io.BytesIO(pack(CONTENT)), scratch)
    disk = (claim / DISK).read_bytes()
    assert disk == CONTENT.ljust(4 * MIB, b"\0")
    assert [path.name for path in claim.iterdir()] == [DISK]
    assert (claim / DISK).stat().st_blocks * 512 < 2 * MIB, "nothing is written where there is nothing"


def test_packed_parts_that_follow_each_other_are_one(claim: Path, scratch: str) -> None:
    target(claim).stream(io.BytesIO(gzip.compress(CONTENT) + gzip.compress(b"more")), scratch)
    assert (claim / DISK).read_bytes().startswith(CONTENT + b"more")


def test_a_qcow2_image_is_converted(claim: Path, scratch: str, tmp_path: Path) -> None:
    image = tmp_path / "image"
    qcow2(image)
    subprocess.run(["qemu-io", "-c", "write -P 0x41 64k 64k", str(image)], check=True, capture_output=True)
    target(claim).stream(io.BytesIO(image.read_bytes()), scratch)
    assert (claim / DISK).read_bytes()[65536 : 65536 + 4] == b"AAAA"
    assert (claim / DISK).stat().st_size == 4 * MIB
    assert not [*Path(scratch).iterdir()]


def test_a_conversion_that_is_killed_says_nothing_of_the_image(
    claim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qcow2(tmp_path / "image")
    broken = tmp_path / "qemu-img"
    broken.write_text("#!/bin/sh\necho no thread >&2\nkill -ABRT $$\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(Trouble, match="qemu-img ended by signal 6: no thread"):
        target(claim).file(tmp_path / "image")


def test_an_image_that_refers_to_another_file_is_refused_before_anybody_opens_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret" * 1000)
    on_another = qcow2(tmp_path / "backed", "-b", str(secret), "-F", "raw")
    apart = qcow2(tmp_path / "apart", "-o", f"data_file={tmp_path / 'data'},data_file_raw=on")
    for image in (on_another, apart):
        with pytest.raises(Hopeless, match="another file"):
            streams.disk_size(image[: streams.HEAD])
    forged = bytearray(qcow2(tmp_path / "odd"))
    struct.pack_into(">Q", forged, 72, 1 << 40)
    with pytest.raises(Hopeless):
        streams.disk_size(bytes(forged))
    with pytest.raises(Hopeless, match="header"):
        streams.disk_size(b"QFI\xfb\0\0")


@pytest.mark.parametrize("head", [b"KDMV", b"vhdxfile", b"conectix", b"BZh9", b"LUKS\xba\xbe"])
def test_other_formats_are_refused_with_what_to_do(head: bytes, claim: Path, scratch: str) -> None:
    with pytest.raises(Hopeless, match="convert it"):
        target(claim).stream(io.BytesIO(head + bytes(1000)), scratch)
    assert not (claim / DISK).exists()


def test_nothing_half_done_looks_done(claim: Path, scratch: str, tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(8 * MIB))
    for image, wrong in (
        (bomb, "more than"),
        (CONTENT * 9, "more than"),
        (b"", "empty"),
        (qcow2(tmp_path / "large", size="1P"), "has room"),
        (gzip.compress(CONTENT)[:-2000], "too early"),
        (b"\x1f\x8b" + b"x" * 600, "unpacked"),
    ):
        with pytest.raises((Hopeless, Trouble), match=wrong):
            target(claim).stream(io.BytesIO(image), scratch)
        assert not (claim / DISK).exists()


def test_the_archive_that_wants_all_memory_is_refused(claim: Path, scratch: str) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 256 * MIB}]
    with pytest.raises(Hopeless, match="unpacked"):
        target(claim).stream(io.BytesIO(lzma.compress(CONTENT, filters=filters)), scratch)


def test_a_copy_takes_a_guests_disk_as_it_is(claim: Path, tmp_path: Path) -> None:
    """A guest may write the head of an image into its disk that names files of whoever copies it."""
    (tmp_path / "secret").write_bytes(b"secret" * 1000)
    disk = tmp_path / DISK
    disk.write_bytes(qcow2(tmp_path / "forged", "-b", str(tmp_path / "secret"), "-F", "raw"))
    target(claim).copy(disk)
    assert (claim / DISK).read_bytes().startswith(disk.read_bytes())
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "secret")
    with pytest.raises((Hopeless, Trouble)):
        target(claim).copy(link)
    with pytest.raises(Hopeless, match="has no"):
        target(claim).copy(tmp_path / "none")


def test_a_blank_disk_is_one(claim: Path) -> None:
    (claim / f".{DISK}.part").write_bytes(b"of an attempt that was killed")
    target(claim).blank()
    assert (claim / DISK).read_bytes() == bytes(4 * MIB)


def test_the_checksum_and_the_length_have_to_be_right() -> None:
    good = Counted(io.BytesIO(CONTENT), len(CONTENT), f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")
    good.finish()
    with pytest.raises(Hopeless, match="checksum"):
        Counted(io.BytesIO(CONTENT), None, "sha256:00").finish()
    with pytest.raises(Trouble, match="broke off"):
        Counted(io.BytesIO(CONTENT), len(CONTENT) + 1).finish()
    with pytest.raises(Hopeless, match="not one of"):
        Counted(io.BytesIO(b""), None, "crc:1")


class _Answers(http.server.BaseHTTPRequestHandler):
    seen: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization")))
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "file:///etc/passwd")
            self.end_headers()
        elif self.path == "/other":
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/disk")
            self.end_headers()
        elif self.path == "/disk":
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"disk")
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    seen: list[tuple[str, str | None]] = []
    handler = type("Answers", (_Answers,), {"seen": seen})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_address[1]}", seen
        listening.shutdown()
        thread.join()


def test_downloads_lead_to_servers_only_and_tell_no_other_one_the_password(
    server: tuple[str, list[tuple[str, str | None]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, seen = server
    monkeypatch.setattr(streams.importing, "CREDENTIALS", str(tmp_path))
    (tmp_path / "accessKeyId").write_text("me\n")
    (tmp_path / "secretKey").write_text("secret\n")
    assert download(job(url=f"{address}/disk")).read(10) == b"disk"
    assert download(job(url=f"{address}/other")).read(10) == b"disk"
    assert [(path, told is not None) for path, told in seen] == [("/disk", True), ("/other", True), ("/disk", False)]
    with pytest.raises(Trouble, match="not allowed"):
        download(job(url=f"{address}/away"))
    for url in ("file:///etc/passwd", "ftp://127.0.0.1/x"):
        with pytest.raises(Hopeless, match="no address of a web server"):
            download(job(url=url))
    with pytest.raises(Trouble, match="404"):
        download(job(url=f"{address}/none"))
