"""The nodes file is read whole or refused with the place of the fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from virtfleet.local.nodesfile import NodesFileError, Taint, load, parse


def test_labels_taints_and_devices_are_read() -> None:
    a, c = parse(
        {
            "nodes": [
                {"name": "node-a"},
                {
                    "name": "node-c",
                    "labels": {"superduper.io/megaslop": "true"},
                    "taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}],
                    "devices": {"superduper.io/MegaSlop_9000": 2},
                },
            ]
        }
    )
    assert (a.name, a.labels, a.taints, a.devices) == ("node-a", {}, [], {})
    assert c.taints == [Taint("dedicated", "NoSchedule", "gpu")]
    assert c.devices == {"superduper.io/MegaSlop_9000": 2}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "object"),
        ({"nodes": [{}]}, "name"),
        ({"nodes": [{"name": "Node_A"}]}, r"nodes\[0\].name"),
        ({"nodes": [{"name": "a"}, {"name": "a"}]}, r"nodes\[1\].name: 'a' is used twice"),
        ({"nodes": [{"name": "a", "label": {}}]}, "label"),
        ({"nodes": [{"name": "a", "labels": {"x": True}}]}, "str"),
        ({"nodes": [{"name": "a", "labels": {"-x": "y"}}]}, r"labels: '-x'"),
        ({"nodes": [{"name": "a", "labels": {"x": "a b"}}]}, r"labels\[x\]: 'a b'"),
        ({"nodes": [{"name": "a", "taints": [{"key": "k", "effect": "Never"}]}]}, "none of NoSchedule"),
        ({"nodes": [{"name": "a", "devices": {"gpu": 1}}]}, "vendor.example/device"),
        ({"nodes": [{"name": "a", "devices": {"x.io/gpu": -1}}]}, "0 or more"),
    ],
)
def test_faults_name_their_place(data: Any, says: str) -> None:
    with pytest.raises(NodesFileError, match=says):
        parse(data)


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodesFileError, match=r"nodes\.yaml"):
        load(tmp_path / "nodes.yaml")
    (tmp_path / "nodes.yaml").write_text("nodes: [")
    with pytest.raises(NodesFileError, match=r"nodes\.yaml"):
        load(tmp_path / "nodes.yaml")
