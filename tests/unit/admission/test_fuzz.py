"""Whatever is sent, admission answers: never an exception, and a second look finds nothing new."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples import examples
from virtfleet.admission.review import complete, complete_update, review, review_update
from virtfleet.admission.shape import without_nulls
from virtfleet.admission.updates import Requester
from virtfleet.installation import Installation

from .machines import BASE, cluster, edited
from .test_refusals import GATED, REFUSED

WHERE = cluster("HostDevices", "HostDisk", "DownwardMetrics", "VSOCK", "WorkloadEncryptionTDX", "PortRangesSpec")
HANDLER = Requester(
    "system:serviceaccount:kubevirt:kubevirt-handler", {"authentication.kubernetes.io/node-name": ["n"]}
)


def copied(value: Any) -> Any:
    """Mutations must not reach the seeds and strategies."""
    return orjson.loads(orjson.dumps(value))


# Every shape that the tests of single rules know is a start for mutations.
SEEDS = [
    edited(BASE, {path if path.startswith("metadata") else f"spec.{path}": value for path, value in edits.items()})
    for edits in (*(edits for edits, _ in REFUSED.values()), *GATED.values())
    if all(type(value) is not object for value in edits.values())
]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 70000),
    st.sampled_from(
        ["", "x", "-1", "1e99", "0", "Not_Valid", "1Gi", "-1Gi", "virtio", "sata", "tablet", "é\n", "a" * 300]
    ),
    st.just([]),
    st.just({}),
    st.just([{}]),
    st.just({"enabled": False}),
).map(copied)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        found += places(child, (*path, key))
    return found


@st.composite
def mutations(draw: st.DrawFn, *seeds: dict[str, Any]) -> dict[str, Any]:
    obj: Any = copied(draw(st.sampled_from(seeds)))
    other = copied(draw(st.sampled_from(seeds)))
    obj["spec"] = {**other["spec"], **obj["spec"]} if draw(st.booleans()) else obj["spec"]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.sampled_from(places(obj["spec"])))
        parent = obj["spec"]
        for step in at[:-1]:
            parent = parent[step]
        action = draw(st.sampled_from(["replace", "remove", "repeat"]))
        if action == "replace":
            parent[at[-1]] = draw(VALUES)
        elif action == "remove":
            del parent[at[-1]]
        elif isinstance(parent, list):
            parent.append(copied(parent[at[-1]]))
        if not places(obj["spec"]):
            break
    return obj  # type: ignore[no-any-return]


def mutated() -> st.SearchStrategy[dict[str, Any]]:
    return mutations(*SEEDS)


@pytest.mark.slow
@settings(max_examples=examples(1500), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_mutated_vmis_are_answered(obj: dict[str, Any]) -> None:
    completed, found = complete(obj, WHERE)
    if not found.allowed:
        assert all(cause.message for cause in found.causes)
        return
    assert complete(completed, WHERE, HANDLER)[0] == completed, "defaults are complete after one pass"
    found = review(completed, WHERE)
    assert all(cause.message and cause.reason for cause in found.causes)


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated(), mutated(), st.sampled_from([Requester(), HANDLER]))
def test_mutated_updates_are_answered(obj: dict[str, Any], old: dict[str, Any], user: Requester) -> None:
    stored, found = complete(old, WHERE)
    if not found.allowed:
        return
    review_update(complete_update(obj, stored, WHERE, user), stored, WHERE, user)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated(), st.sampled_from(["VirtualMachine", "VirtualMachineInstanceReplicaSet"]), VALUES)
def test_mutated_templates_are_answered(obj: dict[str, Any], kind: str, selector: Any) -> None:
    spec = {
        "runStrategy": "Always",
        "selector": selector,
        "template": {"spec": obj["spec"], "metadata": obj["metadata"]},
    }
    completed, found = complete({"kind": kind, "metadata": {"name": "x"}, "spec": spec}, WHERE)
    if found.allowed:
        review(completed, WHERE)


CLUSTER = {
    "kind": "KubeVirt",
    "metadata": {"name": "kubevirt"},
    "spec": {
        "configuration": {
            "developerConfiguration": {"featureGates": ["VirtHandlerPools", "AdditionalVirtHandlers"]},
            "cpuRequest": "200m",
            "liveUpdateConfiguration": {"maxGuest": "8Gi", "maxCpuSockets": 8},
            "permittedHostDevices": {"pciHostDevices": [{"pciVendorSelector": "1:2", "resourceName": "x.io/a"}]},
            "hypervisors": [{"name": "qemu-kvm"}],
            "network": {"defaultNetworkInterface": "masquerade"},
        },
        "workloads": {
            "nodePlacement": {
                "nodeSelector": {"a": "b"},
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
                        }
                    }
                },
            }
        },
        "virtHandlerPools": [
            {
                "name": "gpu",
                "virtLauncherImage": "l:v1",
                "nodeSelector": {"gpu": "true"},
                "selector": {
                    "deviceNames": ["x.io/a"],
                    "vmLabels": {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
                },
            }
        ],
        "additionalVirtHandlers": [{"name": "arm", "nodeSelector": {"arch": "arm"}, "exclusive": True}],
    },
}


@settings(max_examples=examples(500), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutations(CLUSTER))
def test_mutated_clusters_are_answered_and_what_is_accepted_works(obj: dict[str, Any]) -> None:
    found = review(obj, WHERE)
    review_update(obj, CLUSTER, WHERE)
    if found.allowed:
        where = Installation(without_nulls(obj))
        completed, _ = complete(BASE, where)
        review(completed, where)
        where.fleet.affinity(completed, where.fleet.launcher(completed).pool)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.recursive(VALUES, lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=8), VALUES
)
def test_any_json_is_answered(value: Any, kind: Any) -> None:
    for obj in ({"kind": kind, "spec": value}, {"kind": "VirtualMachineInstance", "metadata": value, "spec": value}):
        completed, found = complete(obj, WHERE)
        if found.allowed:
            review(completed, WHERE)
