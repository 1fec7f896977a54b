"""From what libvirt and the hypervisors say of a node to its labels. The documents are a real machine's."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from virtfleet.api import names
from virtfleet.handler.node import labeller
from virtfleet.handler.node.labeller import Facts

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def facts() -> Facts:
    return Facts(
        capabilities=(DATA / "capabilities.xml").read_text(),
        domain_capabilities=(DATA / "domain-capabilities-emulated.xml").read_text(),
        hypervisors={"qemu-kvm": "a guest does not boot on /dev/kvm", "lxc": ""},
    )


def test_usable_cpu_models_become_labels_and_obsolete_ones_do_not(facts: Facts) -> None:
    found = labeller.labels(facts)
    assert found["cpu-model.node.kubevirt.io/Nehalem"] == "true"
    assert "cpu-model.node.kubevirt.io/qemu64" not in found
    assert "cpu-model.node.kubevirt.io/Skylake-Server" not in found, "libvirt says that it is not usable"
    assert labeller.labels(facts, obsolete=())["cpu-model.node.kubevirt.io/qemu64"] == "true"


def test_the_host_model_is_labelled_with_what_it_needs(facts: Facts) -> None:
    found = labeller.labels(facts)
    assert found["host-model-cpu.node.kubevirt.io/EPYC"] == "true"
    assert found["cpu-model-migration.node.kubevirt.io/EPYC"] == "true"
    assert found["host-model-required-features.node.kubevirt.io/umip"] == "true"
    assert found["cpu-vendor.node.kubevirt.io/AMD"] == "true"


def test_a_host_model_that_is_obsolete_is_marked(facts: Facts) -> None:
    assert names.OBSOLETE_HOST_MODEL not in labeller.labels(facts)
    assert labeller.labels(facts, obsolete=["EPYC"])[names.OBSOLETE_HOST_MODEL] == "true"


def test_features_of_host_and_guest_are_labelled(facts: Facts) -> None:
    found = labeller.labels(facts)
    assert found["cpu-feature.node.kubevirt.io/avx2"] == "true"
    assert found["cpu-feature.node.kubevirt.io/mpx"] == "true"
    assert found["hyperv.node.kubevirt.io/spinlocks"] == "true"
    assert found["machine-type.node.kubevirt.io/q35"] == "true"


def test_only_hypervisors_that_work_are_labelled(facts: Facts) -> None:
    found = labeller.labels(facts)
    assert found["hypervisor.node.kubevirt.io/lxc"] == "true"
    assert "hypervisor.node.kubevirt.io/qemu-kvm" not in found


def test_the_time_stamp_counter_is_labelled(facts: Facts) -> None:
    counter = "<counter name='tsc' frequency='2445404000' scaling='yes'/></cpu>"
    document = facts.capabilities.replace("</cpu>", counter, 1)
    found = labeller.labels(msgspec.structs.replace(facts, capabilities=document))
    assert found["cpu-timer.node.kubevirt.io/tsc-frequency"] == "2445404000"
    assert found["cpu-timer.node.kubevirt.io/tsc-scalable"] == "true"


def test_memory_encryption_is_labelled_where_the_node_has_it(facts: Facts) -> None:
    assert not {names.SEV, names.SEV_ES, names.TDX} & labeller.labels(facts).keys()
    sev = "<sev supported='yes'><maxGuests>15</maxGuests><maxESGuests>8</maxESGuests></sev>"
    document = facts.domain_capabilities.replace("<sev supported='no'/>", sev)
    found = labeller.labels(msgspec.structs.replace(facts, domain_capabilities=document))
    assert found[names.SEV] == found[names.SEV_ES] == "true"


def test_a_node_that_nothing_is_known_of_gets_no_labels(tmp_path: Path) -> None:
    assert labeller.labels(msgspec.structs.replace(labeller.read(tmp_path), realtime=False)) == {}


def test_what_was_left_in_files_is_read(facts: Facts, tmp_path: Path) -> None:
    (tmp_path / labeller.CAPABILITIES).write_text(facts.capabilities)
    (tmp_path / labeller.DOMAIN_CAPABILITIES).write_text(facts.domain_capabilities)
    (tmp_path / labeller.HYPERVISORS).write_bytes(msgspec.json.encode(facts.hypervisors))
    assert labeller.labels(msgspec.structs.replace(labeller.read(tmp_path), realtime=False)) == labeller.labels(facts)


def test_the_patch_touches_only_labels_of_these_kinds(facts: Facts) -> None:
    gone = f"{names.CPU_MODEL}Penryn2"
    present = {"zone": "a", gone: "true", names.SEV: "true", names.SCHEDULABLE: "true"}
    wanted = labeller.labels(facts)
    assert labeller.patch(present, wanted) == {"metadata": {"labels": {**wanted, gone: None, names.SEV: None}}}


def test_nothing_is_written_when_nothing_changes(facts: Facts) -> None:
    wanted = labeller.labels(facts)
    assert labeller.patch({"zone": "a", **wanted}, wanted) == {}
