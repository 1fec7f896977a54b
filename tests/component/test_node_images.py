"""Images: archives with whiteouts, derived images, and what of them containers really have."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from node_cluster import NodeCluster, needs_root, node_cluster, state

from ocilayout import layer, oci_layout
from virtfleet.local.node import registry
from virtfleet.local.node.images import ImageError

pytestmark = [needs_root, pytest.mark.slow]


@pytest.fixture
async def cluster() -> AsyncIterator[NodeCluster]:
    async with node_cluster() as made:
        await made.start()
        yield made


BUSYBOX = Path("/bin/busybox").read_bytes() if os.path.exists("/bin/busybox") else b""
SCRIPT = """
b=/bin/busybox
echo $GREETING $($b id -u) $($b id -g) $($b pwd)
$b ls
echo $($b cat /data)
$b test -e /removed || echo gone
"""


async def test_an_imported_image_runs_with_its_configuration_and_without_what_later_layers_removed(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    layers = [
        layer(
            {
                "bin": None,
                "bin/busybox": BUSYBOX,
                "etc": None,
                "etc/passwd": b"app:x:1234:5678::/:/bin/sh\n",
                "removed": b"x",
                "opaque": None,
                "opaque/old": b"x",
            }
        ),
        layer({".wh.removed": b"", "opaque": None, "opaque/.wh..wh..opq": b"", "opaque/new": b"y", "data": b"hello"}),
    ]
    config = {"Env": ["GREETING=hi"], "Entrypoint": ["/bin/busybox"], "User": "app", "WorkingDir": "/opaque"}
    layout = oci_layout(tmp_path / "layout", layers, config)
    store = cluster.agents["n1"].node.store
    image = await registry.load(store, layout, "app:1")
    assert len(image.layers) == 2 and not image.on_host
    container = {"name": "c", "image": "app:1", "args": ["sh", "-c", SCRIPT], "imagePullPolicy": "IfNotPresent"}
    await cluster.create("p", restartPolicy="Never", containers=[container])
    await cluster.phase("p", "Succeeded")
    assert cluster.log("p").splitlines() == ["hi 1234 5678 /opaque", "new", "hello", "gone"]


async def test_a_derived_images_files_and_environment_are_in_its_containers_and_the_rest_is_the_old_ones(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho tool of the pool\n")
    (tmp_path / "tool").chmod(0o755)
    store = cluster.agents["n1"].node.store
    add = [(tmp_path / "tool", "/usr/bin/pool-tool"), (tmp_path / "tool", "/etc/marker")]
    store.derive("pool/launcher:1", "host", add, {"POOL": "gpu"})
    text = await cluster.output(
        "p",
        "echo $POOL; pool-tool; ls /etc/marker; python3 -c 'import virtfleet; print(virtfleet.__file__)'",
        container={"image": "pool/launcher:1"},
    )
    assert text.splitlines() == ["gpu", "tool of the pool", "/etc/marker", "/opt/virtfleet/src/virtfleet/__init__.py"]
    assert "pool-tool" not in os.listdir("/usr/bin"), "the machine's own /usr is untouched"


async def test_an_image_in_use_is_not_removed(cluster: NodeCluster, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    store = cluster.agents["n1"].node.store
    store.derive("used:1", "host", [(tmp_path / "f", "/f")], {})
    await cluster.run("p", "exec sleep 1000", restartPolicy="Always", container={"image": "used:1"})
    await cluster.ready("p")
    with pytest.raises(ImageError, match="in use"):
        store.remove("used:1")
    await cluster.delete("p")
    store.remove("used:1")
    assert store.find("used:1") is None


async def test_an_image_volume_shows_the_images_files_read_only(cluster: NodeCluster, tmp_path: Path) -> None:
    layout = oci_layout(tmp_path / "layout", [layer({"disk": None, "disk/disk.img": b"guest"})], {})
    await registry.load(cluster.agents["n1"].node.store, layout, "disk:1")
    text = await cluster.output(
        "p",
        "cat /v/disk/disk.img; touch /v/x 2>&1",
        volumes=[{"name": "v", "image": {"reference": "disk:1", "pullPolicy": "IfNotPresent"}}],
        container={
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "command": ["sh", "-c", "cat /v/disk/disk.img; touch /v/x 2>&1 || true"],
        },
    )
    assert text.startswith("guest") and "Read-only" in text


async def test_an_image_volume_that_cannot_be_had_is_named_until_it_can(cluster: NodeCluster, tmp_path: Path) -> None:
    volumes = [{"name": "v", "image": {"reference": "disk:1", "pullPolicy": "Never"}}]
    mounted = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    await cluster.run("p", "cat /v/disk/disk.img", volumes=volumes, container=mounted)
    pod = await cluster.until("p", lambda p: "ErrImageNeverPull" in str(state(p)))
    assert '"disk:1" is not present' in state(pod)["waiting"]["message"]
    layout = oci_layout(tmp_path / "layout", [layer({"disk": None, "disk/disk.img": b"guest"})], {})
    await registry.load(cluster.agents["n1"].node.store, layout, "disk:1")
    await cluster.phase("p", "Succeeded")
    assert cluster.log("p") == "guest"


async def test_links_in_a_layer_lead_nowhere_but_into_the_image(cluster: NodeCluster, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        directory, link = tarfile.TarInfo("etc"), tarfile.TarInfo("way-out")
        directory.type, link.type, link.linkname = tarfile.DIRTYPE, tarfile.SYMTYPE, "/etc"
        archive.addfile(directory)
        archive.addfile(link)
        for name in ("way-out/one", "../../etc/two"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    layout = oci_layout(tmp_path / "layout", [buffer.getvalue()], {})
    store = cluster.agents["n1"].node.store
    (tree,) = store.trees(await registry.load(store, layout, "evil:1"))
    assert sorted(os.listdir(tree / "etc")) == ["one", "two"]
    assert not {"one", "two"} & set(os.listdir("/etc"))


async def test_an_archive_that_is_none_is_refused_by_name(cluster: NodeCluster, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(layer({"some": b"file"}))
    with pytest.raises(ImageError, match=r"x\.tar: an archive, but of neither"):
        await registry.load(cluster.agents["n1"].node.store, tmp_path / "x.tar", "x")
