"""No module but a hypervisor's own knows a hypervisor by name: whoever acts on one, acts by what its contract says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from source import Module, modules
from virtfleet.hypervisors import registry

OURS = {name.replace("-", "_") for name in registry.names()} | {"qemu"}
# What names one: its name and other names, the domain types, drivers and daemons of libvirt, and what it runs.
WORDS = {*registry.names(), *registry.ALIASES, "qemu", "libxl", "virtqemud", "virtlxcd", "virtchd", "virtxend"}
NAMED = re.compile(
    rf"(?<![\w-])({'|'.join(sorted(map(re.escape, WORDS), key=len, reverse=True))})(?![\w-])", re.IGNORECASE
)
# A guest agent, tools for images and fields of KubeVirt's API have such words in them, and are nobody's hypervisor.
OTHERS = re.compile(
    r"qemu[ -]guest[ -]agent|org\.qemu\.guest_agent|qemu-(?:img|ga)|QEMUGuestAgent|kubevirt", re.IGNORECASE
)
# Where such words are what KubeVirt, libvirt or the machine itself call something.
LEGITIMATE = {
    "hypervisors/registry.py": "the list of them, with the name of the default",
    "admission/defaults.py": "timers and enlightenments, as KubeVirt's API names them",
    "instancetypes/preferences.py": "features of a guest, as KubeVirt's API names them",
    "admission/devices.py": "models of panic devices",
    "admission/hyperv.py": "enlightenments, as KubeVirt's API names them",
    "api/names.py": "labels, as KubeVirt names them",
    "domain/xml.py": "libvirt's name for a part of its schema",
    "hypervisors/features.py": "fields of KubeVirt's API",
    "hypervisors/plain.py": "what memory is taken to be, where nobody has measured it",
    "hypervisors/migration.py": "messages of KubeVirt's conditions",
    "handler/node/labeller.py": "where libvirt lists enlightenments",
    "operator/commontypes.py": "features of a guest, as KubeVirt's API names them",
    "launcher/failure.py": "how libvirt's messages begin, which are cut",
    "launcher/alone/inside.py": "the account that launchers run as",
    "local/node/hostimage.py": "accounts of the machine, and the launcher images that are built",
}


def own(place: str) -> bool:
    """Whether a module is a hypervisor's own."""
    parts = Path(place).parts
    return parts[0] == "hypervisors" and parts[1].removesuffix(".py") in OURS


def others() -> dict[str, Module]:
    return {place: module for place, module in modules().items() if not own(place)}


def names(module: Module) -> list[str]:
    return [f"line {line}: {text!r}" for line, text in module.texts if NAMED.search(OTHERS.sub("", text))]


def test_no_module_knows_a_hypervisor_by_name() -> None:
    strangers = re.compile(rf"virtfleet\.hypervisors\.({'|'.join(OURS)})\b")
    for place, module in others().items():
        assert place in LEGITIMATE or names(module) == [], place
        assert [name for name in module.imported if strangers.match(name)] == [], place


@pytest.mark.parametrize("place", LEGITIMATE)
def test_places_that_may_have_such_words_still_do(place: str) -> None:
    assert names(modules()[place]), "take it off the list"


def test_the_default_has_its_name_in_one_place() -> None:
    named = [place for place, module in others().items() if "qemu-kvm" in (text for _, text in module.texts)]
    assert named == ["hypervisors/registry.py"]
