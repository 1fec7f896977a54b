"""Files that processes append to without an end are kept short."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from virtfleet.launcher.libvirtd import host, logs
from virtfleet.launcher.main import JsonFormatter


def filled(path: Path, size: int) -> int:
    """A process that appends, and has done so."""
    writer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    line = b"%015d\n"
    os.write(writer, b"".join(line % number for number in range(size // 16)))
    return writer


def test_what_is_full_begins_anew_and_its_last_part_is_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "console-log"
    writer = filled(path, 3 * logs.MOST)
    logs.shorten(str(path))
    os.write(writer, b"more\n")
    os.close(writer)
    assert path.read_bytes() == b"more\n", "whoever appends goes on"
    kept = path.with_name("console-log.0")
    assert kept.stat().st_size == logs.MOST
    assert kept.read_bytes().endswith(b"%015d\n" % (3 * logs.MOST // 16 - 1))
    assert kept.stat().st_mode & 0o777 == 0o600


def test_the_last_three_parts_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "console-log"
    for number in range(5):
        path.write_bytes(b"%d" % number * 2 * logs.MOST)
        logs.shorten(str(path))
    found = {file.name: file.read_bytes()[:1] for file in tmp_path.iterdir()}
    assert found == {"console-log": b"", "console-log.0": b"4", "console-log.1": b"3", "console-log.2": b"2"}


def test_what_is_not_full_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    os.close(filled(path, logs.MOST // 2))
    logs.shorten(str(path))
    assert path.stat().st_size == logs.MOST // 2 and not path.with_name("log.0").exists()
    logs.shorten(str(tmp_path / "gone"))


def test_a_process_that_does_not_append_takes_no_more_space_either(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(writer, b"x" * 2 * logs.MOST)
    logs.shorten(str(path))
    os.write(writer, b"more\n")
    assert path.stat().st_size > 2 * logs.MOST, "it goes on where it was"
    before = path.stat().st_blocks
    logs.shorten(str(path))
    assert path.stat().st_blocks == before < logs.MOST // 512, "and is left alone"
    os.close(writer)


def test_nothing_is_done_to_what_a_name_leads_to(tmp_path: Path) -> None:
    victim, link, pipe = tmp_path / "victim", tmp_path / "log", tmp_path / "pipe"
    os.close(filled(victim, 2 * logs.MOST))
    link.symlink_to(victim)
    os.mkfifo(pipe)
    for path in (link, pipe):
        logs.shorten(str(path))
    assert victim.stat().st_size == 2 * logs.MOST


@pytest.mark.parametrize("planted", ["a link", "a directory"])
def test_what_lies_in_the_way_keeps_no_log_long(tmp_path: Path, planted: str) -> None:
    path, elsewhere, way = tmp_path / "log", tmp_path / "elsewhere", tmp_path / "log.0"
    os.close(filled(path, 2 * logs.MOST))
    way.symlink_to(elsewhere) if planted == "a link" else way.mkdir()
    logs.shorten(str(path))
    assert path.stat().st_size == 0 and not elsewhere.exists()
    os.close(filled(path, 2 * logs.MOST))
    logs.shorten(str(path))
    assert path.stat().st_size == 0 and not elsewhere.exists()


def test_the_last_words_of_a_process_are_the_end_of_its_log(tmp_path: Path) -> None:
    assert logs.last_words(str(tmp_path / "*.log")) == ""
    (tmp_path / "qemu.log").write_bytes(b"long ago\n" * 1000 + b"assertion failed \xff\n")
    assert logs.last_words(str(tmp_path / "*.log"), most=23) == "ago\nassertion failed \ufffd\n"
    (tmp_path / "link.log").symlink_to(__file__)
    os.mkfifo(tmp_path / "pipe.log")
    assert logs.last_words(str(tmp_path / "*.log"), most=23) == "ago\nassertion failed \ufffd\n", "and no other's"


async def test_what_libvirt_says_is_part_of_the_launchers_log(caplog: pytest.LogCaptureFixture) -> None:
    async with logs.passed_on() as stderr:
        said = b"2026-11-17 14:17:44.701+0000: 28: warning : virSecurityManagerNew:194 : no driver\nnot libvirt's\xff"
        os.write(stderr, said)
    first, second = caplog.records
    assert (first.levelname, first.getMessage()) == ("WARNING", "no driver")
    assert first.created == datetime(2026, 11, 17, 14, 17, 44, 701000, UTC).timestamp()
    assert (second.levelname, second.getMessage()) == ("INFO", "not libvirt's\N{REPLACEMENT CHARACTER}")
    line = json.loads(JsonFormatter().format(first))
    assert (line["component"], line["subcomponent"], line["level"]) == ("virt-launcher", "libvirt", "warning")
    assert line["pos"] == "virSecurityManagerNew:194"


async def test_a_line_without_an_end_takes_no_memory_without_an_end(caplog: pytest.LogCaptureFixture) -> None:
    async with logs.passed_on() as stderr:
        for _ in range(8):
            await asyncio.to_thread(os.write, stderr, b"x" * (1 << 16))
    assert max(len(record.getMessage()) for record in caplog.records) <= 3 << 16
    assert sum(len(record.getMessage()) for record in caplog.records) == 8 << 16


def test_the_hypervisors_process_is_found_by_its_name(tmp_path: Path) -> None:
    for number, name in (("1", "catatonit"), ("17", "qemu-system-x86"), ("self", "qemu-system-x86")):
        (tmp_path / number).mkdir()
        (tmp_path / number / "comm").write_text(f"{name}\n")
    assert host.process(("qemu-system",), tmp_path) == 17
    assert host.process(("xl",), tmp_path) is None
    assert host.process((), tmp_path) is None
