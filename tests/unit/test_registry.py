"""The registry of what works: what it says of a hypervisor is what admission does and what the hypervisor can build."""

from __future__ import annotations

from typing import Any, ClassVar
from xml.etree.ElementTree import Element

import orjson
import pytest

from tests.unit.feature_samples import SPECS, asking, that_work
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain.context import AssignedDevice, Context, NumaCell
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import DaemonPlan, DaemonSettings, Descriptor, Hypervisor, Overheads
from virtfleet.hypervisors.features import (
    BY_KEY,
    FEATURES,
    Feature,
    obstacles,
    refusals,
    support,
    warnings,
)
from virtfleet.hypervisors.notyet import EMPTY_GATES
from virtfleet.hypervisors.support import Level, Support, Supports, works

RUNNING = [name for name in registry.names() if not registry.get(name).refusal]
ARCHITECTURES = ("amd64", "arm64", "s390x")


class Plugin(Hypervisor):
    """Somebody else's hypervisor, which says of itself what `supports` says."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="theirs", title="Theirs", overheads=Overheads(daemon="0", vmm="0"), launcher_image="l", uri="theirs:///"
    )

    def __init__(self, supports: Supports) -> None:
        self.supports = supports  # type: ignore[misc]

    def build(self, vmi: VirtualMachineInstance, context: Context) -> Element:
        return Element("domain")

    def daemon(self, settings: DaemonSettings) -> DaemonPlan:
        return DaemonPlan(uri=self.descriptor.uri)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda f: f.key)
def test_admission_does_what_the_registry_says(feature: Feature) -> None:
    for name in registry.names():
        hypervisor = registry.get(name)
        for architecture in ARCHITECTURES:
            asked = asking(feature, architecture)
            assert feature.asked(asked)
            found = support(hypervisor, feature.key, architecture)
            refused = [r for r in refusals(hypervisor, asked) if feature.title in r.message]
            others = [f for f in FEATURES if f is not feature and f.not_yet and f.asked(asked)]
            elsewhere = {f.not_yet.warning(f.field) for f in others if f.not_yet}
            warned = [w for w in warnings(hypervisor, asked) if w.startswith(f"{feature.field} is accepted")]
            warned = [w for w in warned if w not in elsewhere]
            if hypervisor.refusal:  # runs no VMs yet, and says so instead
                assert [r.field for r in refusals(hypervisor, asked)] == ["spec.hypervisor"]
                assert found.level in (Level.ABSENT, Level.IMPOSSIBLE)
            elif found.level is Level.WORKS:
                assert (refused, warned) == ([], [])
            elif found.admitted:
                assert refused == []
                assert warned
            elif not (feature.part_of and refusals_of(hypervisor, BY_KEY[feature.part_of], asked)):
                (refusal,) = refused
                assert refusal.field == feature.field
                assert name in refusal.message and found.reason in refusal.message


def refusals_of(hypervisor: Hypervisor, feature: Feature, vmi: VirtualMachineInstance) -> list[str]:
    return [r.message for r in refusals(hypervisor, vmi) if feature.title in r.message]


@pytest.mark.parametrize("feature", [f for f in FEATURES if not f.everywhere], ids=lambda f: f.key)
def test_what_a_hypervisor_does_not_name_is_refused(feature: Feature) -> None:
    nameless = Plugin({})
    (refusal, *_) = refusals(nameless, asking(feature))
    assert refusal.message.startswith("hypervisor theirs does not support ")
    assert refusal.message.endswith(": its description does not name it")
    assert support(nameless, feature.key).level is Level.ABSENT
    assert not support(nameless, feature.key).admitted


def test_a_part_comes_with_the_whole_and_goes_with_it() -> None:
    persistent = asking(BY_KEY["tpm-persistent"])
    assert list(refusals(Plugin(works("tpm")), persistent)) == []
    assert len(list(refusals(registry.get("lxc"), persistent))) == 1, "said once"


def test_an_experimental_feature_needs_its_gate() -> None:
    plugin = Plugin({"sound": Support(Level.EXPERIMENTAL, "it crackles", gate="Crackle")})
    asked = asking(BY_KEY["sound"])
    assert "the feature gate Crackle enables it" in next(refusals(plugin, asked)).message
    assert list(refusals(plugin, asked, {"Crackle"})) == []


def test_a_gate_without_a_name_opens_nothing() -> None:
    asked = asking(BY_KEY["sound"])
    assert list(refusals(Plugin({}), asked, {""})) == list(refusals(Plugin({}), asked)) != []


def test_nobody_is_told_to_switch_on_a_gate_of_something_that_virtfleet_does_not_do() -> None:
    plugin = Plugin({"net-passt": Support(Level.EXPERIMENTAL, "new", gate="Grow")})
    assert list(refusals(plugin, asking(BY_KEY["net-passt"]))) == []
    gates = {f.not_yet.gate for f in FEATURES if f.not_yet and f.not_yet.gate}
    assert gates <= EMPTY_GATES


def test_what_moves_has_no_obstacle_and_what_cannot_says_why() -> None:
    for name in RUNNING:
        moves = support(registry.get(name), "live-migration").level in (Level.WORKS, Level.EXPERIMENTAL)
        assert bool(list(obstacles(registry.get(name), read(VirtualMachineInstance, {})))) != moves
    assert support(registry.get(registry.DEFAULT), "live-migration").level is Level.WORKS


def test_every_predicate_can_be_asked_of_an_empty_vmi() -> None:
    empty = read(VirtualMachineInstance, {})
    assert [f.key for f in FEATURES if f.asked(empty)] == []


# --- what works can be built


def copied(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value))


def laid_over(base: Any, more: Any) -> Any:
    if isinstance(base, dict) and isinstance(more, dict):
        return {key: laid_over(base.get(key), more.get(key)) for key in {**base, **more}}
    return base if more is None else more


# What the document of a feature needs besides.
_PINNED: dict[str, Any] = {"cpu": {"cores": 1, "dedicatedCpuPlacement": True}}
WITH: dict[str, dict[str, Any]] = {
    "lun": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "x"}}]},
    "acpi-tables": {"volumes": [{"name": "x", "secret": {"secretName": "x"}}]},
    "realtime": {"domain": _PINNED},
    "numa": {"domain": {**_PINNED, "memory": {"hugepages": {"pageSize": "2Mi"}}}},
}


def as_directories(spec: dict[str, Any]) -> None:
    """A container's disks are directories: its root, what is made of configuration, and the volumes that it mounts."""
    kinds = {"containerDisk", "persistentVolumeClaim", "dataVolume"}
    mounted = {volume["name"] for volume in spec["volumes"] if volume.keys() & kinds}
    spec["domain"]["devices"]["disks"] = [d for d in spec["domain"]["devices"]["disks"] if d["name"] not in mounted]
    shared = [{"name": name, "virtiofs": {}} for name in ("rootfs", *mounted)]
    spec["domain"]["devices"]["filesystems"] = [*spec["domain"]["devices"].get("filesystems", []), *shared]
    made = [v for v in spec["volumes"] if "emptyDisk" not in v]
    names = {volume["name"] for volume in made}
    wanted = [disk["name"] for disk in spec["domain"]["devices"]["disks"] if disk["name"] not in names]
    spec["volumes"] = [*made, {"name": "rootfs", "containerDisk": {"image": "x"}}]
    spec["volumes"] += [{"name": name, "configMap": {"name": "x"}} for name in wanted]


def as_own_disks(spec: dict[str, Any]) -> None:
    """Disks of a hypervisor that reads its own format only are files that somebody has prepared for it."""
    made = [v for v in spec["volumes"] if not v.keys() & {"emptyDisk", "containerDisk", "persistentVolumeClaim"}]
    missing = {d["name"] for d in spec["domain"]["devices"]["disks"]} - {v["name"] for v in made}
    spec["volumes"] = [*made, *({"name": n, "hostDisk": {"path": "/store/d.img"}} for n in sorted(missing))]


CELL = NumaCell(0, ((0, (0,)), (1, (1,))))


@pytest.mark.parametrize(
    ("name", "feature"),
    [(name, feature) for name in RUNNING for feature in that_work(name)],
    ids=lambda value: getattr(value, "key", value),
)
def test_what_works_can_be_built(name: str, feature: Feature) -> None:
    hypervisor = registry.get(name)
    disk = {"name": "d", "disk": {"bus": hypervisor.descriptor.disk_bus}}
    base = {
        "domain": {
            "cpu": {"cores": 1},
            "memory": {"guest": "128Mi"},
            "devices": {"disks": [disk], "interfaces": [{"name": "n", "bridge": {}}]},
        },
        "networks": [{"name": "n", "pod": {}}],
        "volumes": [{"name": "d", "emptyDisk": {"capacity": "1Gi"}}],
    }
    spec = copied(laid_over(laid_over(base, WITH.get(feature.key, {})), SPECS.get(feature.key, {})))
    spec["domain"]["devices"]["disks"].insert(0, disk | {"name": "root"})
    if hypervisor.descriptor.container:
        as_directories(spec)
    elif not hypervisor.has("ephemeral-disk"):
        as_own_disks(spec)
    if not hypervisor.has("net-bridge"):
        spec["networks"] = spec["domain"]["devices"]["interfaces"] = []
    named = {volume["name"] for volume in spec["volumes"]}
    spec["volumes"] += [{"name": n, "emptyDisk": {"capacity": "1Gi"}} for n in ("root", "d") if n not in named]
    obj = {"metadata": {"name": "vm", "namespace": "n", "uid": "u"}, "spec": spec}
    vmi = read(VirtualMachineInstance, obj)
    device = AssignedDevice("pci", "0000:81:00.0")
    node = Context(gpus={"g": device}, host_devices={"h": device}, cpus=(0, 1), cells=(CELL,))
    assert hypervisor.build(vmi, node).tag == "domain"
