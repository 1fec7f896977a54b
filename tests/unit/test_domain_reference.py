"""For qemu-kvm, the domain of every reference VMI is what KubeVirt makes of it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.reference import GOLDEN
from virtfleet.cli.main import main

CASES = sorted(GOLDEN.glob("*/domain.xml"))
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# Elements that say something by being there; others without content count as absent.
FLAGS = {"acpi", "apic", "hyperv", "kvm", "smm", "nosharepages", "readonly", "shareable"}


def lines(element: ET.Element, path: str = "") -> list[str]:
    """A document as comparable lines: the order of children counts among children of one name only."""
    found: list[str] = []
    counts: dict[str, int] = {}
    for child in element:
        if child.tag == "metadata":
            continue
        inner = lines(child, f"{path}/{child.tag}")
        if not inner and child.tag not in FLAGS:
            continue
        number = counts[child.tag] = counts.get(child.tag, -1) + 1
        prefix = f"{path}/{child.tag}"
        found += [f"{prefix}[{number}]{line.removeprefix(prefix)}" for line in inner or [prefix]]
    text = UUID.sub("UUID", (element.text or "").strip())
    if text:
        found.append(f"{path}={text}")
    return found + [f"{path}@{name}={UUID.sub('UUID', value)}" for name, value in element.attrib.items()]


@pytest.mark.parametrize("document", CASES, ids=[c.parent.name for c in CASES])
def test_the_domain_equals_the_reference(document: Path) -> None:
    case = document.parent
    options = json.loads((case / "options.json").read_text()) if (case / "options.json").exists() else {}
    arguments = ["domain", "-f", str(case / "vmi.yaml"), "--kubevirt", str(case / "kubevirt.yaml")]
    for volume in options.get("block", []):
        arguments += ["--block-volume", volume]
    if "diskFormat" in options:
        arguments += ["--disk-format", options["diskFormat"]]
    result = CliRunner().invoke(main, ["render", *arguments])
    assert result.exit_code == 0, result.output
    assert sorted(lines(ET.fromstring(result.stdout))) == sorted(lines(ET.parse(document).getroot()))
