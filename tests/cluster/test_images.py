"""VirtFleet's images, as `make images` has just made them for the cluster: what is in them, and what is not."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.on_demand("KUBECONFIG", "it looks at the images that `make test-kube` made")
DIST = Path(__file__).parents[2] / "dist"
ARCHIVE, BILL = DIST / "virtfleet-images.tar", DIST / "virtfleet-images.spdx.json"
# What nobody needs there; licences stay.
UNWANTED = re.compile(
    r"usr/share/(doc/[^/]+/(?!copyright)|(man|info|locale)/.*\.)"
    r"|usr/bin/(gcc|g\+\+|cc|ld|make|pip3?)(-[\d.]+)?$|var/(cache|lib/apt/lists)/.*\."
)
OWNED = re.compile(r"var/lib/dpkg/status\.d/(?P<name>[^/]+)$|var/lib/dpkg/info/(?P<package>[^/:]+)(:\w+)?\.list$")


class Image(NamedTuple):
    """An image: the digests of its layers, and the names of all that is in them."""

    layers: list[str]
    files: set[str]


@pytest.fixture(scope="module")
def images() -> dict[str, Image]:
    """By component, of this version."""
    with tarfile.open(ARCHIVE) as archive:

        def blob(digest: str) -> Any:
            file = archive.extractfile(f"blobs/{digest.replace(':', '/')}")
            assert file
            return file

        names: dict[str, set[str]] = {}
        found = {}
        for entry in json.load(archive.extractfile("index.json"))["manifests"]:  # type: ignore[arg-type]
            layers = [layer["digest"] for layer in json.load(blob(entry["digest"]))["layers"]]
            for digest in layers:
                if digest not in names:
                    with tarfile.open(fileobj=blob(digest)) as layer:
                        names[digest] = set(layer.getnames())
            name = entry["annotations"]["org.opencontainers.image.ref.name"].rpartition("/")[2].partition(":")[0]
            found[name] = Image(layers, set().union(*(names[digest] for digest in layers)))
        return found


def test_all_images_stand_on_one_layer(images: dict[str, Image]) -> None:
    assert {"virt-operator", "virt-api", "virt-controller", "virt-handler", "virt-launcher"} <= images.keys()
    (lowest,) = {image.layers[0] for image in images.values()}
    assert images["virt-operator"].layers == images["virt-api"].layers == [lowest]


def test_no_image_has_compilers_pages_of_manuals_or_caches(images: dict[str, Image]) -> None:
    assert not sorted(filter(UNWANTED.match, set().union(*(image.files for image in images.values()))))


def test_what_is_in_the_images_is_in_their_bill_of_materials(images: dict[str, Image]) -> None:
    bill = json.loads(BILL.read_text())
    assert bill["spdxVersion"] == "SPDX-2.3"
    known = {package["name"].lower().replace("_", "-") for package in bill["packages"]}
    python = {
        Path(file).parts[3].partition("-")[0].lower().replace("_", "-")
        for image in images.values()
        for file in image.files
        if file.startswith("opt/virtfleet/lib/") and file.endswith(".dist-info/METADATA")
    }
    assert python and python <= known
    debian = {m["name"] or m["package"] for i in images.values() for f in i.files if (m := OWNED.match(f))}
    assert debian <= known
    assert {"python3.11-minimal", "libvirt-daemon", "qemu-system-x86"} <= known
