"""docs/compatibility.md says of everything that KubeVirt has whether it works, and of every gap that it is one."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from virtfleet.admission import gaps
from virtfleet.admission.gaps import Gap
from virtfleet.api.configuration import DeveloperConfiguration, KubeVirtConfiguration
from virtfleet.api.crds import DEFINITIONS
from virtfleet.api.devices import Devices
from virtfleet.api.disks import Disk, Volume
from virtfleet.api.domainspec import DomainSpec
from virtfleet.api.kubevirt import KubeVirtSpec
from virtfleet.api.networks import Interface, Network
from virtfleet.api.subresources import TABLE
from virtfleet.api.view import View
from virtfleet.api.vm import VirtualMachineSpec
from virtfleet.api.vmi import VirtualMachineInstanceSpec

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"
STATES = ("works", "refused", "absent")
# Views, and the section in which the page has their fields.
FIELDS: list[tuple[str, type[View]]] = [
    ("VirtualMachineInstance", VirtualMachineInstanceSpec),
    ("The machine", DomainSpec),
    ("Devices", Devices),
    ("Disks and volumes", Disk),
    ("Disks and volumes", Volume),
    ("Networks", Network),
    ("Networks", Interface),
    ("VirtualMachine", VirtualMachineSpec),
    ("The KubeVirt object", KubeVirtSpec),
    ("The KubeVirt object", KubeVirtConfiguration),
    ("The KubeVirt object", DeveloperConfiguration),
]
ELSEWHERE = {"domain", "networks", "volumes", "name"}  # sections of their own, and what everything has
VIRTCTL = """
    adm addvolume console create credentials evacuate-cancel expand expose fslist guestfs guestosinfo image-upload
    memory-dump migrate migrate-cancel objectgraph pause permitted-devices port-forward removevolume reset restart scp
    soft-reboot ssh start stop template unpause usbredir userlist version vmexport vnc
"""
GAPS = [*gaps.SPEC, gaps.FILESYSTEMS, *gaps.ANNOTATIONS, *gaps.VM, *gaps.KUBEVIRT]
# Fields in rows of gaps that the warning has under another name: the list it is in, or what it depends on.
TOLD_WITH_OTHERS = {"accessCredentials", "userPassword", "gpus", "hostDevices", "containerPath", "logVerbosity"}


def name_of(gap: Gap) -> str:
    """The last part of a gap's field."""
    annotation = re.fullmatch(r"annotations\[(.+)\]", gap.field)
    return annotation[1] if annotation else gap.field.removesuffix(".enabled").rpartition(".")[2]


@cache
def rows() -> dict[str, list[list[str]]]:
    """The cells of the tables of each section: what it is about, its state, and what there is to say."""
    found: dict[str, list[list[str]]] = {}
    section = ""
    for line, following in pairwise([*PAGE.read_text().splitlines(), ""]):
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif line.startswith("| ") and not following.startswith("|---"):
            found.setdefault(section, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def named(cell: str) -> set[str]:
    """Everything that a cell has in code, and the parts of its paths."""
    spans = re.findall(r"`([^`]+)`", cell)
    return {*spans, *(part for span in spans for part in re.split(r"[.:/ ]+", span))}


def in_section(section: str) -> set[str]:
    return {name for row in rows()[section] for name in named(row[0])}


@pytest.mark.parametrize(("section", "view"), FIELDS, ids=lambda value: getattr(value, "__name__", value))
def test_every_field_is_on_the_page(section: str, view: type[View]) -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(view)}
    assert fields - ELSEWHERE - in_section(section) == set()


def test_every_kind_is_on_the_page() -> None:
    assert {definition.kind for definition in DEFINITIONS} - in_section("Kinds") == set()


def test_every_subresource_is_on_the_page() -> None:
    assert {entry.name or entry.resource for entry in TABLE} - in_section("Subresources") == set()


def test_every_command_of_virtctl_is_on_the_page() -> None:
    assert set(VIRTCTL.split()) - in_section("virtctl") == set()


def test_every_row_says_what_happens() -> None:
    compared = {section: found for section, found in rows().items() if section != "Refused here, accepted by KubeVirt"}
    vague = [row[0] for found in compared.values() for row in found if not row[1].startswith(STATES) and not row[2]]
    assert vague == []


@pytest.mark.parametrize("gap", GAPS, ids=lambda gap: gap.field)
def test_every_gap_is_said_to_be_absent(gap: Gap) -> None:
    absent = {
        name for found in rows().values() for row in found if row[1].startswith("absent") for name in named(row[0])
    }
    assert name_of(gap) in absent


@pytest.mark.parametrize("section", dict(FIELDS))
def test_what_is_absent_is_warned_of(section: str) -> None:
    told = {name_of(gap) for gap in GAPS}
    for what, state, _ in rows()[section]:
        for span in re.findall(r"`([^`]+)`", what) if state.startswith("absent") else ():
            assert span in TOLD_WITH_OTHERS or {span, *re.split(r"[.: ]+", span)} & told, what


def test_gates_without_a_feature_are_listed() -> None:
    text = PAGE.read_text().partition("### Feature gates")[2].partition("\n## ")[0]
    assert named(text) == gaps.GATES
