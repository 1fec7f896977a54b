"""Images as OCI archives: layers that images share are there once, and the same content has the same digest."""

from __future__ import annotations

import io
import json
import stat
import tarfile
from pathlib import Path

import pytest

from virtfleet.local.ociarchive import Entry, Image, entries_of, full_name, layer, write_images

FILE = stat.S_IFREG | 0o644


def written(*images: Image) -> tuple[dict[str, str], dict[str, bytes]]:
    """The digests by name, and the archive's files."""
    buffer = io.BytesIO()
    digests = write_images(buffer, images)
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as archive:
        return digests, {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def test_a_layer_that_images_share_is_in_the_archive_once() -> None:
    base, top = layer([Entry("etc/hosts", FILE, b"127.0.0.1")]), layer([Entry("bin/x", FILE, b"x")])
    digests, files = written(Image("fleet/a:1", (base,)), Image("fleet/b:1", (base, top), {"Entrypoint": ["/bin/x"]}))
    assert len(digests) == 2
    assert len([name for name in files if name.startswith("blobs/")]) == 2 + 2 + 2  # layers, configurations, manifests


def test_names_are_whole_for_the_kubelet_and_as_given_for_people() -> None:
    _, files = written(Image("virtfleet/guest:demo", (layer([]),)))
    (reference,) = json.loads(files["index.json"])["manifests"]
    assert reference["annotations"] == {
        "org.opencontainers.image.ref.name": "virtfleet/guest:demo",
        "io.containerd.image.name": "docker.io/virtfleet/guest:demo",
    }


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("alpine:3", "docker.io/library/alpine:3"),
        ("virtfleet/guest:demo", "docker.io/virtfleet/guest:demo"),
        ("localhost/pause:1", "localhost/pause:1"),
        ("registry:5000/x:1", "registry:5000/x:1"),
        ("registry.example/x/y:1", "registry.example/x/y:1"),
    ],
)
def test_a_name_without_a_registry_is_docker_s(name: str, whole: str) -> None:
    assert full_name(name) == whole


def test_the_same_tree_gives_the_same_layer_whoever_made_it_and_when(tmp_path: Path) -> None:
    trees = []
    for number in (1, 2):
        tree = tmp_path / str(number)
        for name in ("b", "a") if number == 1 else ("a", "b"):
            (tree / "usr" / name).mkdir(parents=True)
            (tree / "usr" / name / "file").write_text(name)
        (tree / "bin").symlink_to("usr/a")
        trees.append(layer(entries_of(tree)))
    assert trees[0] == trees[1]
