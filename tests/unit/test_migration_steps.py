"""The steps of a migration decide by VMI, documents and settings; a hypervisor without steps refuses them."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest

from virtfleet.api.migration import ExperimentalMigrationOptions, MigrationOptions
from virtfleet.api.names import NotMigratable
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain.errors import DomainError
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.migration import Look, Mode, Route, Turn, copies_disks, pace
from virtfleet.hypervisors.qemu.migration import copied

STEPS = registry.get("qemu-kvm").migration
ROUTE = Route(libvirt="/s/libvirt", memory="/s/memory", disks="/s/disks")


def vmi(spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None) -> VirtualMachineInstance:
    return read(VirtualMachineInstance, {"spec": spec or {}, "status": status or {}})


def document(path: str, *, kind: str = "disk", tap: str = "tap0", cpu: int = 0, more: str = "") -> Element:
    return fromstring(f"""<domain type="kvm"><name>n</name><cputune><vcpupin vcpu="0" cpuset="{cpu}"/></cputune>
      <os><loader>{path}/code</loader><nvram template="{path}/vars">{path}/own</nvram></os>
      <devices>
        <disk type="file" device="{kind}"><driver name="qemu"/><source file="{path}/disk"/>
          <backingStore type="file"><source file="{path}/below"/></backingStore>
          <target dev="vda"/>{more}<alias name="ua-root"/></disk>
        <interface type="ethernet"><mac address="02:00:00:00:00:01"/><target dev="{tap}" managed="no"/>
          <alias name="ua-default"/></interface>
      </devices></domain>""")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"domain": {"launchSecurity": {"snp": {}}}}, NotMigratable.SEV),
        ({"domain": {"launchSecurity": {"tdx": {}}}}, NotMigratable.TDX),
        ({"architecture": "s390x", "domain": {"launchSecurity": {}}}, NotMigratable.SECURE_EXECUTION),
        ({"domain": {"devices": {"gpus": [{"name": "g"}]}}}, NotMigratable.HOST_DEVICE),
        ({"domain": {"devices": {"interfaces": [{"name": "n", "sriov": {}}]}}}, NotMigratable.HOST_DEVICE),
        ({"domain": {"devices": {"filesystems": [{"name": "f", "virtiofs": {}}]}}}, NotMigratable.VIRTIOFS),
        (
            {"domain": {"devices": {"disks": [{"name": "d", "lun": {"reservation": True}}]}}},
            NotMigratable.PERSISTENT_RESERVATION,
        ),
        (
            {"domain": {"features": {"hypervPassthrough": {"enabled": True}}}},
            NotMigratable.HYPERV_PASSTHROUGH,
        ),
        (
            {"domain": {"features": {"hyperv": {"reenlightenment": {"enabled": True}}}}},
            NotMigratable.TSC_FREQUENCY,
        ),
        ({"volumes": [{"name": "d", "hostDisk": {"path": "/x", "shared": True}}]}, None),
    ],
)
def test_what_keeps_a_vm_is_said_with_kubevirts_reason(spec: dict[str, Any], reason: str | None) -> None:
    assert [o.reason for o in STEPS.obstacles(vmi(spec))][:1] == ([reason] if reason else [])


def test_a_device_of_the_node_in_the_running_domain_keeps_it_too() -> None:
    running = fromstring("<domain><devices><hostdev/></devices></domain>")
    assert [o.reason for o in STEPS.obstacles(vmi(), running)] == [NotMigratable.HOST_DEVICE]


def test_the_target_gets_the_guests_view_from_here_and_the_nodes_from_there() -> None:
    made = STEPS.destination(document("/here", cpu=1), document("/there", tap="tap7", cpu=5))
    assert made.findtext("os/loader") == "/there/code"
    nvram = made.find("os/nvram")
    assert nvram is not None and (nvram.text, nvram.get("template")) == ("/there/own", "/there/vars")
    assert [s.get("file") for s in made.iter("source")] == ["/there/disk", "/there/below"]
    assert [t.get("dev") for t in made.iterfind("devices/*/target")] == ["vda", "tap7"]
    assert [p.get("cpuset") for p in made.iter("vcpupin")] == ["5"]
    with pytest.raises(DomainError, match="the target has no disk 'root'"):
        STEPS.destination(document("/here"), fromstring("<domain><devices/></domain>"))


def test_a_plain_move_is_live_and_driven_by_the_source() -> None:
    shared = vmi({"volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "c"}}]})
    run = STEPS.run(shared, document("/here"), document("/there"), ROUTE, MigrationOptions())
    assert run.uri == "qemu+unix:///session?socket=/s/libvirt"
    assert run.flags == ("LIVE", "PEER2PEER", "PERSIST_DEST", "ABORT_ON_ERROR", "PAUSED")
    assert run.parameters["migrate_uri"] == "unix:///s/memory"
    assert run.parameters.keys() == {"migrate_uri", "destination_xml", "persistent_xml"}


def test_a_claim_that_both_nodes_have_is_safe_where_neither_caches_it() -> None:
    """libvirt would judge by the kind of the file system, and refuse."""
    shared = vmi({"volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "c"}}]})
    for cache, safe in (("none", True), ("directsync", True), ("writeback", False)):
        running = document("/here")
        for driver in running.iterfind("devices/disk/driver"):
            driver.set("cache", cache)
        run = STEPS.run(shared, running, document("/there"), ROUTE, MigrationOptions())
        assert ("UNSAFE" in run.flags) is safe
    copied_here = STEPS.run(vmi(), document("/here"), document("/there"), ROUTE, MigrationOptions())
    assert "UNSAFE" not in copied_here.flags


def test_settings_become_flags_and_parameters() -> None:
    options = MigrationOptions(
        bandwidth_per_migration="1.5Mi",
        allow_auto_converge=True,
        allow_post_copy=True,
        unsafe_migration_override=True,
        max_downtime_ms=500,
        experimental=ExperimentalMigrationOptions(compression="zstd"),
    )
    run = STEPS.run(vmi(), document("/here"), document("/there"), ROUTE, options)
    assert "PAUSED" not in run.flags, "after post-copy there is nothing to wait for"
    assert set(run.flags) > {"NON_SHARED_INC", "UNSAFE", "AUTO_CONVERGE", "POSTCOPY", "COMPRESSED"}
    assert run.parameters["bandwidth"] == 2, "MiB, as libvirt counts, and not less than was asked for"
    assert run.parameters["bandwidth.postcopy"] == 2, "it is a limit whatever the mode"
    assert (run.parameters["migrate_disks"], run.parameters["disks_uri"]) == (["vda"], "unix:///s/disks")
    assert run.parameters["compression"] == "zstd"
    assert (run.copied, run.longest_pause) == (("vda",), 500)


def test_disks_that_are_only_here_are_copied() -> None:
    claim = vmi({"volumes": [{"name": "root", "dataVolume": {"name": "c"}}]})
    made = vmi({"volumes": [{"name": "root", "cloudInitNoCloud": {"userData": "x"}}]})
    assert copied(vmi(), document("/x")) == ["vda"]
    assert copied(claim, document("/x")) == []
    assert copied(vmi(), document("/x", kind="cdrom")) == []
    assert copied(vmi(), document("/x", more="<readonly/>")) == []
    assert copied(made, document("/x", more="<readonly/>")) == ["vda"], "the guest may have it mounted"
    disks = {"domain": {"devices": {"disks": [{"name": "root"}]}}, "volumes": [{"name": "root", "emptyDisk": {}}]}
    assert copies_disks(vmi(disks)) and not copies_disks(claim)


GIB = {"domain": {"memory": {"guest": "1Gi"}}}
PATIENT = MigrationOptions(completion_timeout_per_gi_b=10, progress_timeout=30)


@pytest.mark.parametrize(
    ("options", "look", "mode"),
    [
        (PATIENT, Look(elapsed=9), "go on"),
        (PATIENT, Look(elapsed=11), None),
        (PATIENT, Look(elapsed=9, stuck=31), None),
        (PATIENT, Look(elapsed=99, stuck=99, mode=Mode.POST_COPY), "go on"),
        (MigrationOptions(), Look(elapsed=9999, stuck=9999), "go on"),
        (
            MigrationOptions(completion_timeout_per_gi_b=10, allow_workload_disruption=True),
            Look(elapsed=11),
            Mode.PAUSED,
        ),
        (
            MigrationOptions(completion_timeout_per_gi_b=10, allow_workload_disruption=True, allow_post_copy=True),
            Look(elapsed=11),
            Mode.POST_COPY,
        ),
        (
            MigrationOptions(completion_timeout_per_gi_b=10, allow_workload_disruption=True),
            Look(elapsed=19, mode=Mode.PAUSED),
            "go on",
        ),
        (
            MigrationOptions(completion_timeout_per_gi_b=10, allow_workload_disruption=True),
            Look(elapsed=21, mode=Mode.PAUSED),
            None,
        ),
    ],
)
def test_what_takes_too_long_changes_its_mode_or_ends(options: MigrationOptions, look: Look, mode: object) -> None:
    turn = pace(vmi(GIB), options, look)
    assert turn is None if mode == "go on" else isinstance(turn, Turn) and turn.mode is mode


def test_what_holds_a_migration_up_is_said_with_figures() -> None:
    busy = Look(elapsed=9, stuck=31, rate=20 << 20, dirty_rate=50 << 20, left=300 << 20, throttle=40)
    turn = pace(vmi(GIB), PATIENT, busy)
    assert turn and turn.why.startswith(
        "it has made no progress for 31 s: the guest writes 50.0 MiB of its memory a second anew, though its CPUs are"
        " slowed down by 40 %, and 20.0 MiB a second are sent; allow more bandwidth"
    )
    slow = pace(vmi(GIB), PATIENT, Look(elapsed=11, rate=2 << 20, dirty_rate=1 << 19, left=300 << 20))
    assert slow and slow.why.endswith("2.0 MiB a second are sent, with 300 MiB left")


def test_memory_and_copied_disks_make_the_limit() -> None:
    assert pace(vmi(GIB), PATIENT, Look(elapsed=19), copied=1 << 30) is None


@pytest.mark.parametrize("name", [n for n in registry.names() if not n.startswith(("qemu", "mshv"))])
def test_a_hypervisor_without_steps_refuses_each_of_them(name: str) -> None:
    steps, empty = registry.get(name).migration, Element("domain")
    (obstacle,) = steps.obstacles(vmi())
    assert obstacle.reason == NotMigratable.OTHER and steps.refusal in obstacle.message
    assert steps.abort(Mode.PRE_COPY)
    for step in (
        lambda: steps.destination(empty, empty),
        lambda: steps.run(vmi(), empty, empty, ROUTE, MigrationOptions()),
        lambda: steps.finish(source=True),
    ):
        with pytest.raises(DomainError, match=steps.refusal):
            step()


def test_a_claim_that_changes_is_copied_and_as_large_as_before() -> None:
    spec = {
        "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "new"}}],
        "domain": {"devices": {"disks": [{"name": "root", "disk": {}}]}},
    }
    stays, goes = vmi(spec), vmi(spec, {"migratedVolumes": [{"volumeName": "root"}]})
    assert [o.reason for o in STEPS.obstacles(stays)] == [NotMigratable.DISKS] and not [*STEPS.obstacles(goes)]
    here, there = document("/here"), document("/there")
    assert (copied(stays, here), copied(goes, here)) == ([], ["vda"])
    assert (copies_disks(stays), copies_disks(goes)) == (False, True)
    run = STEPS.run(goes, here, there, ROUTE, MigrationOptions(), {"vda": 4096})
    assert '<slice type="storage" offset="0" size="4096"/>' in str(run.parameters["destination_xml"])
    plain = STEPS.run(stays, here, there, ROUTE, MigrationOptions(), {"vda": 4096})
    assert "slice" not in str(plain.parameters["destination_xml"])
