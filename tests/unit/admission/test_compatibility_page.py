"""docs/compatibility.md says of everything that KubeVirt has whether it works; the registry says what is absent."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise

import msgspec
import pytest

from scripts import compatibility
from virtfleet.api.configuration import DeveloperConfiguration, KubeVirtConfiguration
from virtfleet.api.devices import Devices
from virtfleet.api.disks import Disk, Volume
from virtfleet.api.domainspec import DomainSpec
from virtfleet.api.kinds import KINDS
from virtfleet.api.kubevirt import KubeVirtSpec
from virtfleet.api.networks import Interface, Network
from virtfleet.api.subresources import TABLE
from virtfleet.api.view import View
from virtfleet.api.vm import VirtualMachineSpec
from virtfleet.api.vmi import VirtualMachineInstanceSpec

PAGE = compatibility.PAGE
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
GENERATED = ("What is absent", "What works on which hypervisor")


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
    return {*spans, *(part for span in spans for part in re.split(r"[.:/ \[\]]+", span))}


def in_section(section: str) -> set[str]:
    return {name for row in rows()[section] for name in named(row[0])}


@pytest.mark.parametrize(("section", "view"), FIELDS, ids=lambda value: getattr(value, "__name__", value))
def test_every_field_is_on_the_page(section: str, view: type[View]) -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(view)}
    assert fields - ELSEWHERE - in_section(section) - in_section("What is absent") == set()


def test_every_kind_is_on_the_page() -> None:
    assert {kind.kind for kind in KINDS} - in_section("Kinds") == set()


def test_every_subresource_is_on_the_page() -> None:
    assert {entry.name or entry.resource for entry in TABLE} - in_section("Subresources") == set()


def test_every_command_of_virtctl_is_on_the_page() -> None:
    assert set(VIRTCTL.split()) - in_section("virtctl") == set()


def test_every_row_says_what_happens() -> None:
    apart = (*GENERATED, "Refused here, accepted by KubeVirt")
    compared = {section: found for section, found in rows().items() if section not in apart}
    vague = [row[0] for found in compared.values() for row in found if not row[1].startswith(STATES) and not row[2]]
    assert vague == []


def test_what_the_registry_knows_is_written_from_it() -> None:
    assert PAGE.read_text() == compatibility.written(PAGE.read_text()), "run `make docs`"


@pytest.mark.parametrize("section", dict(FIELDS))
def test_what_is_absent_is_said_by_the_registry_alone(section: str) -> None:
    assert [row[0] for row in rows()[section] if row[1].startswith("absent")] == []
