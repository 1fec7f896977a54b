"""Images and pictures that the launcher makes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zlib
from pathlib import Path

import msgspec
import pycdlib
import pytest

from virtfleet.launcher.failure import Failure
from virtfleet.launcher.storage.iso import Image
from virtfleet.launcher.vm.operations import png


def test_an_iso_has_its_label_and_its_files_in_their_places(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"from a file")
    output = tmp_path / "made" / "seed.iso"
    image = Image(
        str(output), "cidata", {"openstack/latest/user_data": b"inline"}, {"Key.with-a-Name": f"{tmp_path}/source"}
    )
    again = Image(str(tmp_path / "again.iso"), image.label, image.contents, image.sources)
    for request, zone in ((image, "UTC"), (again, "Asia/Tokyo")):
        subprocess.run(
            [sys.executable, "-m", "virtfleet.launcher.storage.iso"],
            input=msgspec.json.encode([request]),
            env=os.environ | {"TZ": zone},
            check=True,
            timeout=60,
        )
    assert output.read_bytes() == Path(again.output).read_bytes(), "another node makes the same of it"
    assert output.stat().st_size % 4096 == 0, "a disk with sectors of that size has whole ones"
    iso = pycdlib.PyCdlib()
    iso.open(str(output))
    assert iso.pvd.volume_identifier.rstrip() == b"cidata"
    for path, content in (("/openstack/latest/user_data", b"inline"), ("/Key.with-a-Name", b"from a file")):
        read = io.BytesIO()
        iso.get_file_from_iso_fp(read, rr_path=path)
        assert read.getvalue() == content
    iso.close()
    assert [path.name for path in output.parent.iterdir()] == ["seed.iso"]


def test_a_pixmap_becomes_a_png_with_the_same_pixels() -> None:
    pixels = bytes(range(18))
    made = png(b"P6\n# a comment\n3 2\n255\n" + pixels)
    assert made[16:24] == bytes([0, 0, 0, 3, 0, 0, 0, 2])
    length = int.from_bytes(made[33:37], "big")
    rows = zlib.decompress(made[41 : 41 + length])
    assert rows == b"\0" + pixels[:9] + b"\0" + pixels[9:]
    assert png(made) == made


def test_a_picture_of_another_format_is_refused() -> None:
    with pytest.raises(Failure, match="not known"):
        png(b"GIF89a")
