"""What becomes of VMs with an old launcher: by their pool's strategy, by whether they can move; and told why."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from virtfleet.api import names
from virtfleet.controller.records.instance import decode_instance
from virtfleet.controller.workloads.outlook import Fate, outlook, strategy
from virtfleet.installation import Installation

OLD, NOW = "registry/virt-launcher:old", "virtfleet/virt-launcher:now"
MOVABLE = {"type": "LiveMigratable", "status": "True"}
ROOTED = {"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable", "message": "a disk is local"}


def installation(*methods: str, pools: list[dict[str, Any]] | None = None, **strategy: Any) -> Installation:
    gates = {"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}}
    updates = {"workloadUpdateMethods": [*methods], **strategy}
    spec = {"configuration": gates, "workloadUpdateStrategy": updates, "virtHandlerPools": pools or []}
    return Installation({"spec": {**spec, "imageTag": "now"}})


def pool(*methods: str, image: str = NOW, **more: Any) -> dict[str, Any]:
    own = {"workloadUpdateStrategy": {"workloadUpdateMethods": [*methods], **more}}
    selector = {"vmLabels": {"matchLabels": {"ring": "gold"}}}
    return {"name": "gold", "nodeSelector": {"a": "b"}, "virtLauncherImage": image, "selector": selector, **own}


def vmi(
    condition: dict[str, Any] | None = MOVABLE, image: str = OLD, eviction: str = "", **more: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": "vm", "namespace": "default", "labels": more.get("labels", {}), "annotations": {}},
        "spec": {"evictionStrategy": eviction, "domain": {}},
        "status": {
            "phase": "Running",
            "launcherContainerImageVersion": image,
            "conditions": [condition] if condition else [],
        },
    }


def fate(found: dict[str, Any], settings: Installation) -> tuple[Fate, str]:
    decided = outlook(found, settings)
    assert decided
    assert outlook(decode_instance(orjson.dumps(found)).essence(), settings) == decided, (
        "the controller's record says less"
    )
    return decided.fate, decided.why


def test_a_vm_with_the_image_of_now_has_nothing_to_come() -> None:
    assert outlook(vmi(image=NOW), installation("LiveMigrate")) is None
    assert outlook(vmi(image=""), installation("LiveMigrate")) is None, "what runs is not known yet"


def test_without_methods_nothing_moves_whatever_changes() -> None:
    assert fate(vmi(), installation()) == (
        Fate.STAYS,
        "workloadUpdateStrategy of the KubeVirt object names no method",
    )
    assert outlook(vmi(), Installation({"spec": {"imageTag": "now"}})).fate is Fate.STAYS  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("methods", "found", "expected", "why"),
    [
        (("LiveMigrate",), vmi(), Fate.MOVES, "by LiveMigrate"),
        (("LiveMigrate", "Evict"), vmi(eviction="LiveMigrate"), Fate.MOVES, "by LiveMigrate"),
        (("LiveMigrate",), vmi(ROOTED), Fate.STAYS, "it cannot move (a disk is local), and Evict is not among"),
        (("LiveMigrate",), vmi(None), Fate.STAYS, "it is not known whether it can move"),
        (("LiveMigrate", "Evict"), vmi(ROOTED), Fate.RESTARTS, "by Evict, as it cannot move (a disk is local)"),
        (("Evict",), vmi(), Fate.RESTARTS, "by Evict"),
        # What an eviction would turn into a migration that keeps the image would go on for ever.
        (("Evict",), vmi(eviction="LiveMigrate"), Fate.STAYS, "asks for LiveMigrate, which is not among the methods"),
        (("Evict",), vmi(eviction="LiveMigrateIfPossible"), Fate.STAYS, "asks for LiveMigrate"),
        (("Evict",), vmi(ROOTED, eviction="LiveMigrateIfPossible"), Fate.RESTARTS, "by Evict"),
        (("LiveMigrate", "Evict"), vmi(ROOTED, eviction="External"), Fate.STAYS, "forbids to shut it down"),
    ],
)
def test_the_method_that_fits_the_vm_is_taken(
    methods: tuple[str, ...], found: dict[str, Any], expected: Fate, why: str
) -> None:
    decided, said = fate(found, installation(*methods))
    assert (decided, why in said) == (expected, True), said


def test_a_pool_with_a_strategy_of_its_own_is_asked_in_place_of_the_installation() -> None:
    gold = {"labels": {"ring": "gold"}}
    kept = installation("LiveMigrate", pools=[pool()])
    assert fate(vmi(**gold), kept) == (Fate.STAYS, "workloadUpdateStrategy of pool gold names no method")
    assert fate(vmi(), kept)[0] is Fate.MOVES
    moved = installation(pools=[pool("LiveMigrate")])
    assert fate(vmi(**gold), moved)[0] is Fate.MOVES
    assert fate(vmi(), moved)[0] is Fate.STAYS
    general = {key: value for key, value in pool().items() if key != "workloadUpdateStrategy"}
    assert fate(vmi(**gold), installation("Evict", pools=[general]))[0] is Fate.RESTARTS


def test_every_way_to_become_outdated_counts_by_the_pool_of_now() -> None:
    """An edited image, a new pool, a pool that is gone, a label on the VMI."""
    gold, settings = {"labels": {"ring": "gold"}}, installation("LiveMigrate", pools=[pool(image="gold:1")])
    assert outlook(vmi(image="gold:1", **gold), settings) is None
    assert outlook(vmi(image=NOW, **gold), settings), "a new pool, or a label by which the VMI came into it"
    assert outlook(vmi(image="gold:1"), settings), "the VMI lost its label"
    assert outlook(vmi(image="gold:1", **gold), installation("LiveMigrate", pools=[pool(image="gold:2")]))
    assert outlook(vmi(image="gold:1", **gold), installation("LiveMigrate")), "the pool is gone"


def test_a_vm_that_would_start_on_another_hypervisor_or_not_at_all_is_not_moved() -> None:
    found = vmi()
    found["metadata"]["annotations"][names.LAUNCHER_HYPERVISOR] = "lxc"
    decided, why = fate(found, installation("LiveMigrate"))
    assert (decided, "would start on qemu-kvm" in why) == (Fate.STAYS, True)
    assert fate(found, installation("LiveMigrate", "Evict"))[0] is Fate.RESTARTS
    found["spec"]["hypervisor"] = "lxc"  # which nobody gave leave to: evicted, it would never come back
    decided, why = fate(found, installation("LiveMigrate", "Evict"))
    assert (decided, "may not have it here" in why) == (Fate.STAYS, True)


def test_batches_are_kubevirts_unless_said_otherwise() -> None:
    general = strategy(installation("Evict"), None)
    assert (general.scope, general.batch, general.interval) == ("", 10, 60.0)
    settings = installation("Evict", pools=[pool("Evict", batchEvictionSize=2, batchEvictionInterval="1m30s")])
    own = strategy(settings, settings.fleet.pools[0])
    assert (own.scope, own.batch, own.interval) == ("gold", 2, 90.0)
