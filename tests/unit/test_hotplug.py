"""Volumes that come and go: what requests and templates make of a spec, and what each side says of a volume."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, fromstring

import orjson
import pytest

from unit.controller import objects
from virtfleet.api import hotplug
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.controller import plugging as controller
from virtfleet.controller import templates
from virtfleet.controller.launcherpod import decode_attachment
from virtfleet.domain import paths
from virtfleet.handler.vms import plugging as handler
from virtfleet.hypervisors.qemu.controllers import make_room
from virtfleet.launcher.storage import disks
from virtfleet.pods import attachment
from virtfleet.pools.placement import near
from virtfleet.protocol.messages import DomainState, Status


def volume(name: str, claim: str = "", *, plugged: bool = True) -> dict[str, Any]:
    source = {"claimName": claim or name, **({"hotpluggable": True} if plugged else {})}
    return {"name": name, "persistentVolumeClaim": source}


def spec(*volumes: dict[str, Any], drives: tuple[str, ...] = ()) -> dict[str, Any]:
    disks = [{"name": v["name"], "disk": {"bus": "scsi"}} for v in volumes if v["name"] not in drives]
    disks += [{"name": name, "cdrom": {"bus": "sata"}} for name in drives]
    return {"volumes": list(volumes), "domain": {"devices": {"disks": disks}}}


def names(change: dict[str, Any]) -> tuple[list[str], list[str]]:
    disks = change["domain"]["devices"]["disks"]
    return [v["name"] for v in change["volumes"]], [d["name"] for d in disks]


ROOT = volume("root", plugged=False)
ADD = {
    "addVolumeOptions": {
        "name": "data",
        "disk": {"disk": {"bus": "scsi"}},
        "volumeSource": {"persistentVolumeClaim": {"claimName": "c", "hotpluggable": True}},
    }
}


def test_requests_are_carried_out_once_however_often_they_are() -> None:
    once = hotplug.with_request(spec(ROOT), ADD)
    assert names(once) == (["root", "data"], ["root", "data"])
    assert hotplug.with_request(once, ADD) == once
    for named in ("data", "c"):
        remove = {"removeVolumeOptions": {"name": named}}
        assert names(hotplug.with_request(once, remove)) == (["root"], ["root"])
    assert names(hotplug.with_request(once, {"removeVolumeOptions": {"name": "root"}}))[0] == ["root", "data"]
    drive = spec(ROOT, volume("cd"), drives=("cd",))
    assert names(hotplug.with_request(drive, {"removeVolumeOptions": {"name": "cd"}})) == (["root"], ["root", "cd"])


def test_an_edited_template_plugs_what_can_be_plugged() -> None:
    running = spec(ROOT, volume("old"), volume("cd", "a"), drives=("cd",))
    wanted = spec(ROOT, volume("new"), volume("cd", "b"), volume("fixed", plugged=False), drives=("cd",))
    first = hotplug.as_declared(running, wanted, busy=["root", "old", "cd"])
    assert names(first) == (["root", "new"], ["root", "cd", "new"]), "the drive stays, without its medium"
    then = hotplug.as_declared(first, wanted, busy=["root", "new"])
    assert names(then) == (["root", "new", "cd"], ["root", "cd", "new"])
    assert not hotplug.differs(then, hotplug.as_declared(then, wanted, busy=["root", "new", "cd"]))


def test_a_drive_is_emptied_at_once_and_goes_with_a_restart() -> None:
    running = spec(ROOT, volume("cd"), drives=("cd",))
    emptied = hotplug.as_declared(running, spec(ROOT), busy=["root", "cd"])
    assert names(emptied) == (["root"], ["root", "cd"])
    old, new = ({"template": {"spec": each}} for each in (running, spec(ROOT)))
    assert templates.template_changes(old, new, {"volumes": []}) == ["domain.devices.disks"]


@pytest.mark.parametrize(
    ("now", "live", "changed"),
    [
        (spec(ROOT, volume("data")), {"data": "data"}, []),
        (spec(ROOT, volume("data")), {}, ["domain.devices.disks", "volumes"]),
        (spec(ROOT), {}, []),
        (spec(ROOT), {"before": "before"}, ["domain.devices.disks", "volumes"]),
        (spec(), {"before": "before"}, ["domain.devices.disks", "volumes"]),
    ],
    ids=["plugged in", "only edited", "unplugged", "not yet unplugged", "a fixed one removed"],
)
def test_a_restart_is_needed_for_what_is_not_live(
    now: dict[str, Any], live: dict[str, str], changed: list[str]
) -> None:
    old, new = ({"template": {"spec": each}} for each in (spec(ROOT, volume("before")), now))
    instance = {"volumes": [volume(name, claim) for name, claim in live.items()]}
    assert templates.template_changes(old, new, instance) == changed


# --- what is said of a volume


def attached(*, running: bool = True) -> Any:
    state = {"running": {}} if running else {"waiting": {"reason": "R", "message": "no such thing"}}
    return decode_attachment(
        orjson.dumps(
            {
                "metadata": {"name": "hp-volume-1", "namespace": "ns", "uid": "u"},
                "status": {"phase": "Running", "containerStatuses": [{"name": "hotplug-disk", "state": state}]},
            }
        )
    )


def entry(phase: str, claim: str = "data") -> dict[str, Any]:
    info = {"claimName": claim}
    return {"name": "data", "target": "", "phase": phase, "hotplugVolume": {}, "persistentVolumeClaimInfo": info}


def test_the_controller_says_how_far_a_volume_has_come_to_its_node() -> None:
    [data] = objects.vmi(spec={"volumes": [volume("data")]}).spec.volumes
    there = objects.claim("data")

    def phase(present: list[dict[str, Any]], plugged: controller.Plugged | None, gone: str = "") -> Any:
        wanted = {"data": plugged} if plugged else {}
        said = controller.statuses(present, wanted, frozenset([gone]))
        return (said[0]["phase"], said[0].get("message", "")) if said else None

    assert phase([], controller.Plugged(data)) == ("Pending", "claim data does not exist; create it")
    assert phase([], controller.Plugged(data, there, attached(running=False))) == ("Pending", "R: no such thing")
    assert phase([entry("Pending")], controller.Plugged(data, there, attached()))[0] == "AttachedToNode"
    for kept in ("MountedToPod", "Ready"):
        assert phase([entry(kept)], controller.Plugged(data, there, attached()))[0] == kept
    assert phase([entry("UnMountedFromPod")], controller.Plugged(data, there, attached()))[0] == "AttachedToNode"
    assert phase([entry("Ready")], None)[0] == "Detaching"
    assert phase([entry("Ready", "other")], controller.Plugged(data, there, attached()))[0] == "Detaching"
    assert phase([entry("UnMountedFromPod")], None)[0] == "UnMountedFromPod"
    assert phase([entry("UnMountedFromPod")], None, gone="data") is None


def machine(phase: str, *volumes: dict[str, Any], claim: str = "data") -> tuple[dict[str, Any], VMI]:
    obj = {"metadata": {"name": "vm"}, "spec": spec(ROOT, *volumes), "status": {"volumeStatus": [entry(phase, claim)]}}
    return obj, read(VMI, obj)


def test_a_guest_starts_when_its_volumes_are_on_the_node() -> None:
    assert handler.awaited(machine("Pending", volume("data"))[1]) == ["data"]
    assert handler.awaited(machine("AttachedToNode", volume("data"))[1]) == []
    assert handler.awaited(machine("AttachedToNode", volume("data"), claim="other")[1]) == ["data"]
    assert handler.awaited(machine("Ready")[1]) == []


def test_the_handler_says_what_it_sees_and_takes_nothing_from_a_guest_that_uses_it() -> None:
    runs = DomainState(status=Status.RUNNING)
    uses = DomainState(status=Status.RUNNING, disks={"data": "sda"})

    def phase(at: tuple[dict[str, Any], VMI], there: set[str] | None, state: DomainState) -> str:
        mounted = None if there is None else frozenset(there)
        said = handler.said(at[0]["status"]["volumeStatus"][0], at[1], mounted, state)
        return str(said["phase"])

    wanted, unwanted = machine("AttachedToNode", volume("data")), machine("Detaching")
    assert phase(wanted, set(), runs) == "AttachedToNode"
    assert phase(wanted, {"data"}, runs) == "MountedToPod"
    assert phase(wanted, {"data"}, uses) == "Ready"
    for there, state in (({"data"}, uses), ({"data"}, runs), (set(), uses), (None, runs)):
        assert phase(unwanted, there, state) == "Detaching"
    assert phase(unwanted, set(), runs) == "UnMountedFromPod"

    def told(at: tuple[dict[str, Any], VMI], there: set[str], state: DomainState) -> str:
        copy = orjson.loads(orjson.dumps(at[0]))
        return str(handler.shown(copy, at[1], there, state)["status"]["volumeStatus"][0]["phase"])

    assert told(wanted, set(), runs) == "Pending"
    assert told(wanted, {"data"}, runs) == "MountedToPod"
    assert told(wanted, set(), uses) == "MountedToPod", "what the guest has stays, whatever is seen of the mount"
    exchanged = machine("Ready", volume("data", "other"))
    assert told(exchanged, {"data"}, uses) == "Pending"


# --- what the launcher and the Pods are made of


def ports(domain: Element) -> list[str]:
    return [c.get("index", "") for c in domain.iterfind("devices/controller[@model='pcie-root-port']")]


def test_a_machine_has_free_ports_and_no_more_of_them_from_start_to_start() -> None:
    vmi = read(VMI, {"metadata": {"name": "vm"}, "spec": spec(ROOT)})
    domain = fromstring(
        "<domain><os><type machine='pc-q35-9.0'/></os><devices><interface/><memballoon/>"
        "<disk><target bus='virtio'/></disk><disk><target bus='scsi'/></disk>"
        "<controller type='pci' model='pcie-to-pci-bridge' index='2'/></devices></domain>"
    )
    make_room(domain, vmi)
    assert ports(domain) == ["1", "3", "4", "5", "6", "7"], "one for each of three devices, and three"
    make_room(domain, vmi)
    assert len(ports(domain)) == 6
    large = {"metadata": {}, "spec": {"domain": {"memory": {"guest": "2.1Gi"}}}}
    make_room(domain, read(VMI, large))
    assert len(ports(domain)) == 16
    for _ in range(9):
        SubElement(domain[1], "interface")
    make_room(domain, read(VMI, large))
    assert len(ports(domain)) == 12 + 6
    for machine, notes, devices in (
        ("pc-i440fx-9.0", {}, {}),
        ("pc-q35-9.0", {"kubevirt.io/placePCIDevicesOnRootComplex": "true"}, {}),
        ("pc-q35-9.0", {}, {"disableHotplug": True}),
    ):
        domain = fromstring(f"<domain><os><type machine='{machine}'/></os><devices><interface/></devices></domain>")
        fixed = {"metadata": {"annotations": notes}, "spec": {"domain": {"devices": devices}}}
        make_room(domain, read(VMI, fixed))
        assert ports(domain) == []


def test_a_pod_goes_where_the_volumes_are_that_follow_it() -> None:
    here, zone = ({"key": key, "operator": "In", "values": ["a"]} for key in ("kubernetes.io/hostname", "zone"))
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    chosen = {"nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}, "podAffinity": {}}
    placed = near(chosen, [{"matchExpressions": [here]}, {"matchFields": [here]}])
    assert placed["nodeAffinity"][required]["nodeSelectorTerms"] == [
        {"matchExpressions": [zone, here]},
        {"matchExpressions": [zone], "matchFields": [here]},
    ]
    assert placed["podAffinity"] == {}


def test_names_of_attachment_pods_tell_what_they_hold_and_whom_they_follow() -> None:
    held = attachment.Held("data", "claim")
    made = {
        attachment.name("l", held),
        attachment.name("l", held, "before"),
        attachment.name("other", held),
        attachment.name("l", attachment.Held("data", "other")),
    }
    assert len(made) == 4
    assert attachment.name("l", held) in made


@pytest.mark.parametrize("place", ["HOTPLUG_DISKS", "CLAIMS"])
def test_a_claim_is_cached_as_its_owner_says_or_not_at_all(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was plugged in, or there from the start: what a node keeps to itself could not move with the VM."""
    monkeypatch.setattr(paths, place, str(tmp_path))
    (tmp_path / "data.img").touch()
    domain = fromstring(
        f"<domain><devices><disk><driver/><source file='{tmp_path}/data.img'/></disk>"
        f"<disk><driver cache='writeback'/><source file='{tmp_path}/data.img'/></disk>"
        f"<disk><driver/><source file='{tmp_path}/missing.img'/></disk><disk><driver/><source file='/else'/></disk>"
        "<disk device='cdrom'><driver/></disk></devices></domain>"
    )
    disks.choose_cache(domain)
    chosen = [driver.get("cache") for driver in domain.iterfind("devices/disk/driver")]
    assert chosen[0] in ("none", "writethrough"), "as the file system of this directory allows"
    assert chosen[1:] == ["writeback", "writethrough", None, None]
