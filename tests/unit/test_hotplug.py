"""Volumes that come and go: what requests and templates make of a spec, and what each side says of a volume."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from unit.controller import objects
from virtfleet.api import hotplug
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.controller import plugging as controller
from virtfleet.controller import templates
from virtfleet.controller.attachments import _decode
from virtfleet.handler.vms import plugging as handler
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
    assert templates.template_changes(old, new, live) == changed


# --- what is said of a volume


def attachment(*, running: bool = True) -> Any:
    state = {"running": {}} if running else {"waiting": {"reason": "R", "message": "no such thing"}}
    return _decode(
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
    assert phase([], controller.Plugged(data, there, attachment(running=False))) == ("Pending", "R: no such thing")
    assert phase([entry("Pending")], controller.Plugged(data, there, attachment()))[0] == "AttachedToNode"
    for kept in ("MountedToPod", "Ready"):
        assert phase([entry(kept)], controller.Plugged(data, there, attachment()))[0] == kept
    assert phase([entry("UnMountedFromPod")], controller.Plugged(data, there, attachment()))[0] == "AttachedToNode"
    assert phase([entry("Ready")], None)[0] == "Detaching"
    assert phase([entry("Ready", "other")], controller.Plugged(data, there, attachment()))[0] == "Detaching"
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
        return str(handler.told(copy, at[1], there, state)["status"]["volumeStatus"][0]["phase"])

    assert told(wanted, set(), runs) == "Pending"
    assert told(wanted, {"data"}, runs) == "MountedToPod"
    assert told(wanted, set(), uses) == "MountedToPod", "what the guest has stays, whatever is seen of the mount"
    exchanged = machine("Ready", volume("data", "other"))
    assert told(exchanged, {"data"}, uses) == "Pending"
