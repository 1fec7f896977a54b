"""From a domain's state to a VMI's status, and to what is done next."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest

from virtfleet.api import names
from virtfleet.api.names import Phase, VMICondition
from virtfleet.api.quantity import Quantity
from virtfleet.handler.network.networks import Wired
from virtfleet.handler.pods.launchers import Presence
from virtfleet.handler.vms import status
from virtfleet.handler.vms.instances import Instance, Role, decode_instance, role_of
from virtfleet.handler.vms.status import Situation
from virtfleet.handler.vms.work import Step, next_step
from virtfleet.hypervisors import registry
from virtfleet.protocol.messages import DomainState, GuestABI, GuestDevice, GuestInfo, GuestInterface, Status

NOW = 1_700_000_000.0
RUNNING = DomainState(
    status=Status.RUNNING,
    name="default_vm",
    uuid="u",
    disks={"root": "vda"},
    links={"02:00:00:00:00:01": "up"},
    topology=(2, 1, 1),
    boot_memory=128 << 20,
    memory=96 << 20,
)
WIRED = Wired(
    name="default",
    mac="02:00:00:00:00:01",
    tap="tap0",
    bridge="k6t-eth0",
    link="eth0",
    addresses=["10.244.1.7"],
    lease=None,
    queues=0,
)


def instance(
    phase: str = Phase.SCHEDULED, *, deleting: bool = False, binding: str = "masquerade", **spec: Any
) -> Instance:
    metadata: dict[str, Any] = {"name": "vm", "namespace": "default", "uid": "u1", "resourceVersion": "7"}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    domain = {
        "memory": {"guest": "128Mi"},
        "devices": {"interfaces": [{"name": "default", binding: {}}], "disks": [{"name": "root", "disk": {}}]},
        **spec.pop("domain", {}),
    }
    obj = {
        "metadata": metadata,
        "spec": {
            "domain": domain,
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [{"name": "root", "containerDisk": {"image": "disk"}}],
            **spec,
        },
        "status": {
            "phase": phase,
            "nodeName": "n1",
            "activePods": {"p1": "n1"},
            "conditions": [{"type": "Ready", "status": "False", "reason": "GuestNotRunning"}],
            "phaseTransitionTimestamps": [{"phase": "Scheduled", "phaseTransitionTimestamp": "2026-01-01T00:00:00Z"}],
        },
    }
    return decode_instance(orjson.dumps(obj))


def situation(found: Instance, state: DomainState | None = RUNNING, **more: Any) -> Situation:
    settings = {"presence": Presence.HERE, "wired": [WIRED], **more}
    return Situation(found.object(), found.vmi, registry.get("qemu-kvm"), state=state, **settings)


def ended(status_: Status, reason: str) -> DomainState:
    return DomainState(status=status_, reason=reason)


def conditions(change: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in change["status"]["conditions"]}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (DomainState(), Phase.SCHEDULED),
        (RUNNING, Phase.RUNNING),
        (ended(Status.BLOCKED, ""), Phase.RUNNING),
        (ended(Status.SUSPENDED, ""), Phase.RUNNING),
        (ended(Status.PAUSED, "User"), Phase.RUNNING),
        (ended(Status.PAUSED, "PostCopyFailed"), Phase.FAILED),
        (ended(Status.SHUTOFF, "Shutdown"), Phase.SUCCEEDED),
        (ended(Status.SHUTOFF, "Saved"), Phase.SUCCEEDED),
        (ended(Status.SHUTOFF, "Crashed"), Phase.FAILED),
        (ended(Status.SHUTOFF, "Failed"), Phase.FAILED),
        (ended(Status.SHUTOFF, "Destroyed"), Phase.FAILED),
        (ended(Status.CRASHED, "Panicked"), Phase.FAILED),
        (ended(Status.SHUTOFF, "Migrated"), Phase.SCHEDULED),
    ],
)
def test_the_domain_decides_the_phase(state: DomainState, expected: str) -> None:
    assert status.next_phase(situation(instance(), state))[0] == expected


@pytest.mark.parametrize(
    "spec", [{"terminationGracePeriodSeconds": 0}, {"domain": {"features": {"acpi": {"enabled": False}}}}]
)
def test_a_guest_that_was_given_no_time_may_be_destroyed(spec: dict[str, Any]) -> None:
    at = situation(instance(**spec), ended(Status.SHUTOFF, "Destroyed"))
    assert status.next_phase(at)[0] == Phase.SUCCEEDED


def test_a_vm_whose_launcher_is_gone_without_a_word_has_failed() -> None:
    at = situation(instance(Phase.RUNNING), RUNNING, presence=Presence.GONE)
    assert status.next_phase(at) == (Phase.FAILED, status.LAUNCHER_LOST)
    at = situation(instance(Phase.RUNNING), ended(Status.SHUTOFF, "Shutdown"), presence=Presence.GONE)
    assert status.next_phase(at)[0] == Phase.SUCCEEDED


def test_a_launcher_that_cannot_be_reached_changes_nothing() -> None:
    found = instance(Phase.RUNNING)
    at = situation(found, None, presence=Presence.COMING)
    assert status.change(at, NOW) == {}


def test_final_phases_stay() -> None:
    at = situation(instance(Phase.SUCCEEDED), None, presence=Presence.GONE)
    assert status.next_phase(at)[0] == Phase.SUCCEEDED


def test_a_vm_that_runs_is_reported_in_one_patch() -> None:
    change = status.change(situation(instance()), NOW)
    assert change["metadata"] == {"resourceVersion": "7", "uid": "u1"}
    told = change["status"]
    assert told["phase"] == Phase.RUNNING
    assert [t["phase"] for t in told["phaseTransitionTimestamps"]] == ["Scheduled", "Running"]
    assert told["interfaces"] == [
        {
            "name": "default",
            "mac": "02:00:00:00:00:01",
            "ipAddress": "10.244.1.7",
            "ipAddresses": ["10.244.1.7"],
            "infoSource": "domain",
            "podInterfaceName": "eth0",
            "queueCount": 1,
            "linkState": "up",
        }
    ]
    assert told["volumeStatus"] == [{"name": "root", "target": "vda"}]
    assert told["memory"] == {"guestAtBoot": "128Mi", "guestCurrent": "96Mi", "guestRequested": "128Mi"}
    assert told["currentCPUTopology"] == {"sockets": 2, "cores": 1, "threads": 1}, "whatever the spec says"
    assert told["runtimeUser"] == 107
    assert told["migrationMethod"] == "BlockMigration", "the disk is only here"
    assert conditions(change)["LiveMigratable"]["status"] == "True"
    assert conditions(change)["Ready"]["status"] == "True"


def test_what_a_vm_takes_beside_its_guest_is_told_when_it_comes_to_its_size() -> None:
    def told(sockets: int, overhead: str, asked: int = 1, known: dict[str, Any] | None = None) -> Any:
        obj = instance(domain={"cpu": {"sockets": asked}}).object()
        found = decode_instance(orjson.dumps({**obj, "status": {**obj["status"], **(known or {})}}))
        state = msgspec.structs.replace(RUNNING, topology=(sockets, 1, 1))
        change = status.change(situation(found, state, overhead=Quantity.parse(overhead)), NOW)
        return change["status"]["memory"]["memoryOverhead"]

    before = {"memory": {"guestRequested": "128Mi", "memoryOverhead": "200Mi"}, "currentCPUTopology": {"sockets": 1}}
    assert told(1, "200Mi") == "200Mi"
    assert told(1, "300Mi", known=before) == "200Mi", "other settings are for Pods that come"
    assert told(1, "208Mi", asked=2, known=before) == "200Mi", "it does not have them yet"
    assert told(2, "208Mi", asked=2, known=before) == "208Mi"


def test_what_an_earlier_launcher_does_not_say_is_left_as_it_was() -> None:
    earlier = DomainState(status=Status.RUNNING, name="default_vm", uuid="u", disks={"root": "vda"})
    told = status.change(situation(instance(), earlier), NOW)["status"]
    assert {"memory", "currentCPUTopology", "guestABI"} & told.keys() == set()
    assert [interface["linkState"] for interface in told["interfaces"]] == ["up"]


def test_interfaces_are_those_of_the_domain() -> None:
    """Not those of the spec: one may not be plugged in yet, and its link may be down."""
    down = msgspec.structs.replace(RUNNING, links={WIRED.mac: "down"})
    (told,) = status.change(situation(instance(), down), NOW)["status"]["interfaces"]
    assert told["linkState"] == "down"
    without = msgspec.structs.replace(RUNNING, links={"02:00:00:00:00:02": "up"})
    assert "interfaces" not in status.change(situation(instance(), without), NOW)["status"]


def test_the_guests_machine_is_recorded_as_far_as_it_is_well_formed() -> None:
    said = GuestABI(
        machine="pc-q35-7.2",
        loader="/usr/share/OVMF/../../etc/shadow",
        devices=[
            GuestDevice(name="disk/virtio/root", address="0000:04:00.0", target="vda"),
            GuestDevice(name="disk/virtio/data", address="0000:04:00.0", target="../x"),
            GuestDevice(name="interface/virtio/default", address="nonsense", mac=WIRED.mac),
            GuestDevice(name="<script>", address="0000:05:00.0"),
        ],
        cpu_model="Skylake-Client",
        cpu_features=["vmx", "-mpx", "; rm"],
    )
    change = status.change(situation(instance(), msgspec.structs.replace(RUNNING, abi=said)), NOW)
    assert change["status"]["guestABI"] == {
        "machine": "pc-q35-7.2",
        "loader": "",
        "variables": "",
        "secureBoot": False,
        "devices": [
            {"name": "disk/virtio/root", "address": "0000:04:00.0", "target": "vda"},
            {"name": "disk/virtio/data"},
            {"name": "interface/virtio/default", "mac": WIRED.mac},
        ],
        "cpu": {"model": "Skylake-Client", "features": ["vmx", "-mpx"]},
    }


def test_interfaces_whose_names_a_driver_forgets_are_known_by_their_addresses() -> None:
    said = GuestABI(devices=[GuestDevice(name="interface/bridge/0", mac=WIRED.mac)])
    change = status.change(situation(instance(), msgspec.structs.replace(RUNNING, abi=said)), NOW)
    assert [{"name": "interface/bridge/default", "mac": WIRED.mac}] == change["status"]["guestABI"]["devices"]


def test_whether_a_probed_guest_is_ready_is_left_to_who_sees_the_probe() -> None:
    change = status.change(situation(instance(readinessProbe={"guestAgentPing": {}})), NOW)
    assert conditions(change)["Ready"]["reason"] == "GuestNotRunning", "as it was"


def test_readiness_of_a_guest_that_runs_already_is_left_to_who_sees_its_pod() -> None:
    found = instance(Phase.RUNNING)
    assert conditions(status.change(situation(found), NOW))["Ready"]["reason"] == "GuestNotRunning", "as it was"


def test_nothing_is_written_when_nothing_is_new() -> None:
    found = instance()
    change = status.change(situation(found), NOW)
    obj = found.object()
    obj["status"] |= change["status"]
    again = decode_instance(orjson.dumps(obj))
    assert status.change(situation(again), NOW + 100) == {}


def test_the_guests_agent_adds_what_it_knows() -> None:
    guest = GuestInfo(
        os={"id": "debian", "pretty-name": "Debian 12", "kernel-release": "6.1"},
        interfaces=[
            GuestInterface(name="lo", mac="00:00:00:00:00:00", addresses=["127.0.0.1/8"]),
            GuestInterface(name="enp1s0", mac="02:00:00:00:00:01", addresses=["10.0.2.2/24", "fe80::1/64"]),
            GuestInterface(name="docker0", mac="02:42:00:00:00:01", addresses=["172.17.0.1/16"]),
        ],
    )
    state = DomainState(status=Status.RUNNING, agent=True, frozen=True)
    change = status.change(situation(instance(), state, guest=guest), NOW)
    assert conditions(change)["AgentConnected"]["status"] == "True"
    assert change["status"]["fsFreezeStatus"] == "frozen"
    assert change["status"]["guestOSInfo"] == {"id": "debian", "prettyName": "Debian 12", "kernelRelease": "6.1"}
    first, second = change["status"]["interfaces"]
    assert first["interfaceName"] == "enp1s0"
    assert first["ipAddresses"] == ["10.244.1.7"], "the guest's own address is private"
    assert first["infoSource"] == "domain, guest-agent"
    assert (second["interfaceName"], second["ipAddress"]) == ("docker0", "172.17.0.1")


def test_an_agent_that_knows_too_little_is_named_until_it_is_replaced() -> None:
    connected = DomainState(status=Status.RUNNING, agent=True)
    found = instance(Phase.RUNNING)
    change = status.change(situation(found, connected, guest=GuestInfo(commands=["guest-ping", "guest-info"])), NOW)
    assert "guest-get-osinfo" in conditions(change)["AgentVersionNotSupported"]["message"]
    obj = found.object()
    obj["status"] |= change["status"]
    again = decode_instance(orjson.dumps(obj))
    good = GuestInfo(commands=sorted(status._AGENT_COMMANDS))
    assert "AgentVersionNotSupported" not in conditions(status.change(situation(again, connected, guest=good), NOW))


def test_a_bridged_guest_tells_its_own_addresses() -> None:
    guest = GuestInfo(interfaces=[GuestInterface(name="eth0", mac=WIRED.mac, addresses=["10.1.1.9/24", "fe80::1/64"])])
    state = DomainState(status=Status.RUNNING, agent=True)
    change = status.change(situation(instance(binding="bridge"), state, guest=guest), NOW)
    assert change["status"]["interfaces"][0]["ipAddresses"] == ["10.1.1.9"]


def test_a_paused_vm_says_why() -> None:
    change = status.change(situation(instance(Phase.RUNNING), ended(Status.PAUSED, "IOError")), NOW)
    assert conditions(change)["Paused"]["reason"] == "PausedIOError"
    found = instance(Phase.RUNNING)
    obj = found.object()
    obj["status"]["conditions"] = change["status"]["conditions"]
    resumed = status.change(situation(decode_instance(orjson.dumps(obj))), NOW)
    assert "Paused" not in conditions(resumed)


def test_a_guest_that_starts_paused_runs_but_is_not_ready() -> None:
    change = status.change(situation(instance(), DomainState(status=Status.PAUSED, reason="User")), NOW)
    assert change["status"]["phase"] == "Running"
    assert conditions(change)["Paused"]["status"] == "True"
    assert conditions(change)["Ready"]["status"] == "False"


def test_the_machine_type_is_the_one_that_the_domain_has() -> None:
    state = msgspec.structs.replace(RUNNING, machine="pc-q35-7.2")
    assert status.change(situation(instance(), state), NOW)["status"]["machine"] == {"type": "pc-q35-7.2"}
    assert "machine" not in status.change(situation(instance()), NOW)["status"], "containers have none"


def test_addresses_that_a_guest_invents_are_left_out() -> None:
    told = GuestInfo(
        interfaces=[GuestInterface(name="eth9", mac="aa", addresses=["../../etc", "10.1.1.1/24", "1/999"])]
    )
    (_, found) = status.change(situation(instance(), guest=told), NOW)["status"]["interfaces"]
    assert found["ipAddresses"] == ["10.1.1.1"]


def test_a_vm_on_an_unknown_hypervisor_is_still_reported() -> None:
    found = instance(Phase.RUNNING)
    at = Situation(found.object(), found.vmi, None, Presence.HERE, RUNNING, trouble="there is no hypervisor 'acme'")
    assert conditions(status.change(at, NOW))["Synchronized"]["message"] == "there is no hypervisor 'acme'"
    gone = Situation(found.object(), found.vmi, None, Presence.GONE)
    assert status.change(gone, NOW)["status"]["phase"] == "Failed"


def test_emulation_is_said() -> None:
    assert conditions(status.change(situation(instance(), emulated=True), NOW))["SoftwareEmulation"]["status"] == "True"
    assert "SoftwareEmulation" not in conditions(status.change(situation(instance()), NOW))


def test_what_went_wrong_is_said_until_it_is_right() -> None:
    at = situation(instance(), DomainState(), trouble="libvirt: no such disk")
    change = status.change(at, NOW)
    assert "phase" not in change["status"]
    assert conditions(change)["Synchronized"]["message"] == "libvirt: no such disk"
    found = instance()
    obj = found.object()
    obj["status"]["conditions"] = change["status"]["conditions"]
    assert "Synchronized" not in conditions(status.change(situation(decode_instance(orjson.dumps(obj))), NOW))


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (instance(binding="bridge"), names.NotMigratable.INTERFACE),
        (instance(volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]), names.NotMigratable.DISKS),
        (instance(volumes=[{"name": "d", "hostDisk": {"path": "/x", "type": "Disk"}}]), names.NotMigratable.DISKS),
        (
            instance(domain={"devices": {"hostDevices": [{"name": "d", "deviceName": "x/y"}]}}),
            names.NotMigratable.HOST_DEVICE,
        ),
        (instance(domain={"launchSecurity": {"sev": {}}}), names.NotMigratable.SEV),
    ],
)
def test_a_vm_that_cannot_move_says_why(found: Instance, reason: str) -> None:
    condition = conditions(status.change(situation(found, wired=[]), NOW))["LiveMigratable"]
    assert (condition["status"], condition["reason"]) == ("False", reason)


def test_a_vm_that_nothing_keeps_can_move() -> None:
    condition = conditions(status.change(situation(instance(), wired=[]), NOW))["LiveMigratable"]
    assert (condition["status"], condition.get("reason")) == ("True", None)


def test_a_hypervisor_that_cannot_migrate_is_a_reason() -> None:
    found = instance()
    at = Situation(found.object(), found.vmi, registry.get("lxc"), Presence.HERE, RUNNING)
    assert conditions(status.change(at, NOW))["LiveMigratable"]["reason"] == names.NotMigratable.OTHER


HERE, COMING, GONE = Presence.HERE, Presence.COMING, Presence.GONE


@pytest.mark.parametrize(
    ("found", "presence", "state", "step"),
    [
        (instance(), HERE, DomainState(), Step.START),
        (instance(Phase.RUNNING), HERE, RUNNING, Step.UPDATE),
        (instance(Phase.RUNNING, deleting=True), HERE, RUNNING, Step.SHUT_DOWN),
        (instance(deleting=True), HERE, DomainState(), Step.SHUT_DOWN),
        (instance(Phase.FAILED), HERE, RUNNING, Step.KILL),
        (instance(Phase.FAILED, deleting=True), HERE, RUNNING, Step.KILL),
        (instance(Phase.RUNNING), HERE, DomainState(status=Status.RUNNING, stopping=True), Step.NOTHING),
        (instance(Phase.RUNNING), HERE, ended(Status.SHUTOFF, "Shutdown"), Step.NOTHING),
        (instance(), COMING, None, Step.NOTHING),
        (instance(Phase.RUNNING, deleting=True), COMING, RUNNING, Step.NOTHING),
        (instance(), GONE, None, Step.NOTHING),
    ],
)
def test_the_next_step(found: Instance, presence: Presence, state: DomainState | None, step: Step) -> None:
    assert next_step(found, Role.SOURCE, presence, state) is step


@pytest.mark.parametrize(
    ("found", "presence", "state", "step"),
    [
        (instance(Phase.RUNNING), HERE, DomainState(), Step.PREPARE),
        (instance(Phase.RUNNING, deleting=True), HERE, DomainState(), Step.PREPARE),
        (instance(Phase.RUNNING), HERE, RUNNING, Step.NOTHING),
        (instance(Phase.FAILED), HERE, DomainState(), Step.KILL),
        (instance(Phase.RUNNING), COMING, DomainState(), Step.NOTHING),
    ],
)
def test_a_target_is_prepared_and_never_started(
    found: Instance, presence: Presence, state: DomainState, step: Step
) -> None:
    assert next_step(found, Role.TARGET, presence, state) is step


@pytest.mark.parametrize(
    ("runs_on", "migration", "role"),
    [
        ("n1", None, Role.SOURCE),
        ("n1", {"targetNode": "n2"}, Role.SOURCE),
        ("n1", {"targetNode": "n1", "completed": True, "endTimestamp": "2026-01-01T00:00:00Z"}, Role.SOURCE),
        ("n2", {"targetNode": "n1"}, Role.TARGET),
        ("n2", {"targetNode": "n3"}, None),
        ("n2", {"targetNode": "n1", "failed": True}, None),
        ("n2", {"targetNode": "n1", "endTimestamp": "2026-01-01T00:00:00Z"}, None),
        ("n2", None, None),
    ],
)
def test_what_a_node_is_to_a_vm(runs_on: str, migration: dict[str, Any] | None, role: Role | None) -> None:
    obj = instance(Phase.RUNNING).object()
    obj["status"] |= {"nodeName": runs_on, "migrationState": migration}
    assert role_of(decode_instance(orjson.dumps(obj)).vmi, "n1") is role


def test_it_is_no_news_that_the_agent_of_a_guest_that_has_just_begun_does_not_answer() -> None:
    def vmi(*present: tuple[str, str, str]) -> dict[str, Any]:
        return {"status": {"conditions": [{"type": kind, "status": s, "message": why} for kind, s, why in present]}}

    offline = (VMICondition.CREDENTIALS, "False", "Guest agent is offline")
    refused = (VMICondition.CREDENTIALS, "False", "no such user")
    there = (VMICondition.CREDENTIALS, "True", "")
    agent = (VMICondition.AGENT_CONNECTED, "True", "")
    assert status.credentials(vmi(), vmi(offline)) is None
    assert status.credentials(vmi(offline), vmi(offline, agent)) is None
    assert status.credentials(vmi(), vmi(refused, agent)) == "no such user"
    assert status.credentials(vmi(offline), vmi(refused)) == "no such user"
    assert status.credentials(vmi(offline), vmi(there, agent)) == ""
    assert status.credentials(vmi(there, agent), vmi(offline)) == "Guest agent is offline", "it has gone away"
    assert status.credentials(vmi(there), vmi(there)) is None and status.credentials(vmi(), {}) is None


def test_an_agent_that_may_not_set_what_the_vm_asks_for_is_named() -> None:
    connected = DomainState(status=Status.RUNNING, agent=True)
    secret = {"secret": {"secretName": "s"}}
    keys = {"sshPublicKey": {"source": secret, "propagationMethod": {"qemuGuestAgent": {"users": ["fedora"]}}}}
    drive = {"sshPublicKey": {"source": secret, "propagationMethod": {"noCloud": {}}}}
    password = {"userPassword": {"source": secret, "propagationMethod": {"qemuGuestAgent": {}}}}
    commands = sorted(status._AGENT_COMMANDS)

    def said(credential: dict[str, Any], *more: str) -> str:
        found = instance(Phase.RUNNING, accessCredentials=[credential])
        change = status.change(situation(found, connected, guest=GuestInfo(commands=[*commands, *more])), NOW)
        return str(conditions(change).get("AgentVersionNotSupported", {}).get("message", ""))

    assert "missing: guest-ssh-add-authorized-keys; allow them" in said(keys)
    assert "missing: guest-set-user-password; allow them" in said(password)
    assert not said(keys, "guest-ssh-add-authorized-keys") and not said(password, "guest-set-user-password")
    assert not said(drive), "the agent has nothing to do with it"
