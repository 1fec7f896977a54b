"""Whatever is sent about the API server's own kinds, it answers with a reason: never with a 5xx, never with silence."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from component.apiserver_kit import Client, call, serving
from virtfleet.api.quantity import Quantity, QuantityError
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds import builtin
from virtfleet.local.apiserver.kinds.registry import Kinds
from virtfleet.local.apiserver.objects.operations import Operations
from virtfleet.local.apiserver.objects.store import Store

CONTAINER = {"name": "c", "image": "i", "resources": {"limits": {"memory": "1Gi"}}, "ports": [{"containerPort": 1}]}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}
POD = {
    "containers": [CONTAINER],
    "terminationGracePeriodSeconds": 3,
    "activeDeadlineSeconds": 3,
    "nodeName": "n",
    "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}, {"name": "w", "configMap": {"name": "a"}}],
    "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3}],
    "affinity": AFFINITY,
    "securityContext": {"runAsUser": 1, "sysctls": [{"name": "a", "value": "b"}]},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    ],
}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {k: v for k, v in POD.items() if k != "nodeName"}}
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}
META = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["x.io/f"], "ownerReferences": [OWNER]}
SELECTOR = {"matchLabels": {"a": "b"}}
RULE = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
# Path of a kind -> what its objects have beside apiVersion, kind and metadata.
KINDS: dict[str, Obj] = {
    "api/v1 namespaces default pods Pod": {"spec": POD, "status": {"phase": "Running"}},
    "api/v1 namespaces default configmaps ConfigMap": {"data": {"a": "b"}, "binaryData": {"c": "aGk="}},
    "api/v1 namespaces default secrets Secret": {"type": "Opaque", "data": {"a": "aGk="}},
    "api/v1 namespaces default services Service": {
        "spec": {"ports": [{"port": 80, "targetPort": "x"}], "selector": {"a": "b"}, "clusterIPs": ["10.96.0.9"]}
    },
    "api/v1 namespaces default serviceaccounts ServiceAccount": {"imagePullSecrets": [{"name": "a"}]},
    "api/v1 persistentvolumes PersistentVolume": {
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
    },
    "apis/storage.k8s.io/v1 storageclasses StorageClass": {"provisioner": "p", "parameters": {"a": "b"}},
    "apis/rbac.authorization.k8s.io/v1 clusterrolebindings ClusterRoleBinding": {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "a"},
        "subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": "default"}],
    },
    "apis/apps/v1 namespaces default replicasets ReplicaSet": {
        "spec": {"replicas": 1, "selector": SELECTOR, "template": TEMPLATE}
    },
    "apis/discovery.k8s.io/v1 namespaces default endpointslices EndpointSlice": {
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
        "ports": [{"name": "a", "port": 1}],
    },
    "apis/apiregistration.k8s.io/v1 apiservices APIService": {
        "spec": {
            "group": "g.io",
            "version": "v1",
            "groupPriorityMinimum": 1,
            "versionPriority": 1,
            "service": {"namespace": "default", "name": "s"},
        }
    },
    "api/v1 namespaces default persistentvolumeclaims PersistentVolumeClaim": {
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    },
    "api/v1 namespaces default events Event": {"involvedObject": {"namespace": "default"}, "reason": "r", "count": 1},
    "api/v1 nodes Node": {
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {"capacity": {"cpu": "1"}},
    },
    "api/v1 namespaces Namespace": {"spec": {}},
    "apis/apps/v1 namespaces default deployments Deployment": {
        "spec": {"replicas": 1, "selector": SELECTOR, "template": TEMPLATE, "strategy": {"type": "RollingUpdate"}}
    },
    "apis/apps/v1 namespaces default daemonsets DaemonSet": {"spec": {"selector": SELECTOR, "template": TEMPLATE}},
    "apis/policy/v1 namespaces default poddisruptionbudgets PodDisruptionBudget": {
        "spec": {"minAvailable": 1, "selector": SELECTOR}
    },
    "apis/coordination.k8s.io/v1 namespaces default leases Lease": {
        "spec": {"holderIdentity": "h", "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z"}
    },
    "apis/rbac.authorization.k8s.io/v1 clusterroles ClusterRole": {"rules": [RULE]},
    "apis/apiextensions.k8s.io/v1 customresourcedefinitions CustomResourceDefinition": {
        "spec": {
            "group": "x.io",
            "scope": "Namespaced",
            "names": {"plural": "as", "singular": "a", "kind": "A", "listKind": "AList"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ],
        }
    },
    "apis/admissionregistration.k8s.io/v1 validatingwebhookconfigurations ValidatingWebhookConfiguration": {
        "webhooks": [
            {
                "name": "a.b.c",
                "clientConfig": {"url": "https://x"},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ]
    },
}
HUGE = (2**62, -(2**62), 2**63 - 1, -(2**63), 2**64, 1e308, -1e-308, "9" * 5000, "1e" + "9" * 5000, "0." + "0" * 5000)
ODD = (
    "",
    "a/b",
    "../..",
    "\x00",
    "\ud7ff",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "2026-99-99T00:00:00Z",
    "-1",
    "2e3",
)
LEAVES = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(HUGE) | st.sampled_from(ODD) | st.text(max_size=5)
)
WORDS = st.sampled_from(["name", "spec", "metadata", "a", "", "items", "$patch", "$retainKeys", "key", "replicas"])
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(WORDS, v, max_size=3), max_leaves=6)
MERGE, STRATEGIC, OPERATIONS = (
    f"application/{kind}+json" for kind in ("merge-patch", "strategic-merge-patch", "json-patch")
)


OPTIONS = ("gracePeriodSeconds", "propagationPolicy", "dryRun", "preconditions", "kind", "orphanDependents")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(obj: Obj, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of `obj` with another value at one place."""
    if not path:
        return value
    copy = orjson.loads(orjson.dumps(obj))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


class Attack(NamedTuple):
    """A kind by its path, a good object of it, one with an odd value, and what is sent about the good one."""

    path: str
    name: str
    good: Obj
    bad: Any
    sent: list[tuple[str, Any, str]]


@st.composite
def attacks(draw: st.DrawFn) -> Attack:
    kind = draw(st.sampled_from(sorted(KINDS)))
    version, *parts, plural, word = kind.split()
    name = {"customresourcedefinitions": "as.x.io", "apiservices": "v1.g.io"}.get(plural, "a")
    obj = {
        "apiVersion": version.removeprefix("apis/").removeprefix("api/"),
        "kind": word,
        "metadata": {"name": name, **META},
        **KINDS[kind],
    }
    bad = changed(obj, draw(st.sampled_from([*places(obj)][1:])), draw(VALUES))
    path = draw(st.sampled_from([*places(obj)][1:]))
    pointer = "/" + "/".join(str(part).replace("~", "~0").replace("/", "~1") for part in path)
    operation = {"op": draw(st.sampled_from(["add", "replace", "remove", "test", "move", "copy"])), "path": pointer}
    sent = [
        ("PUT", changed(obj, draw(st.sampled_from([*places(obj)][1:])), draw(VALUES)), "application/json"),
        ("PATCH", changed(obj, path, draw(VALUES)), draw(st.sampled_from([MERGE, STRATEGIC]))),
        ("PATCH", draw(VALUES), draw(st.sampled_from([MERGE, STRATEGIC, OPERATIONS]))),
        ("PATCH", [{**operation, "value": draw(VALUES), "from": "/metadata/name"}], OPERATIONS),
        ("DELETE", draw(st.dictionaries(st.sampled_from(OPTIONS), VALUES, max_size=2)), "application/json"),
        ("DELETE", {}, "application/json"),
    ]
    return Attack(f"/{'/'.join([version, *parts, plural])}", name, obj, bad, sent)


async def tell(client: Client, method: str, path: str, body: Any, content: str = "application/json") -> int:
    try:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
    except TypeError:  # a number that is none in JSON
        return 0
    async with client.session.request(method, path, data=data, headers={"Content-Type": content}) as answer:
        said = await answer.text()
        assert answer.status < 500, f"{method} {path} {content} {data[:2000]!r}: {answer.status} {said[:1000]}"
        return answer.status


class Server:
    """An API server with its own kinds, for the length of this module."""

    def __init__(self, directory: Path) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self.client = self._runner.run(self._start(directory))

    async def _start(self, directory: Path) -> Client:
        store, kinds = Store(directory), Kinds()
        builtin.register(kinds, store, services="10.96.0.0/16")
        operations = Operations(store, kinds)
        namespaces = kinds.find("", "v1", "namespaces")
        assert namespaces is not None
        await operations.create(namespaces, "", {"metadata": {"name": "default"}}, call())
        self._stack.push_async_callback(store.close)
        return await self._stack.enter_async_context(serving(operations))

    def suffers(self, attack: Attack) -> None:
        self._runner.run(self._suffer(attack))

    async def _suffer(self, attack: Attack) -> None:
        here = f"{attack.path}/{attack.name}"
        await tell(self.client, "POST", attack.path, attack.bad)
        await self._clear(here)
        assert await tell(self.client, "POST", attack.path, attack.good) in (201, 409)
        for method, body, content in attack.sent:
            await tell(self.client, method, here, body, content)
        await self._clear(here)

    async def _clear(self, here: str) -> None:
        await tell(self.client, "PATCH", here, {"metadata": {"finalizers": None}}, MERGE)
        await tell(self.client, "DELETE", here, {"gracePeriodSeconds": 0})

    def end(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("store"))
    yield made
    made.end()


def about_a_pod(*sent: tuple[str, Any, str], **spec: Any) -> Attack:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {**POD, **spec}}
    return Attack("/api/v1/namespaces/default/pods", "a", pod, pod, list(sent))


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 1


@given(attacks())
@example(about_a_pod(("DELETE", {}, "application/json"), terminationGracePeriodSeconds=2**62))
@example(about_a_pod(("DELETE", {"gracePeriodSeconds": 2**62}, "application/json")))
@example(about_a_pod(("PATCH", {"metadata": {"annotations": nested(200)}}, MERGE)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_request_about_a_built_in_kind_is_answered_with_a_5xx(server: Server, attack: Attack) -> None:
    server.suffers(attack)


@pytest.mark.parametrize("depth", [200, 300, 900, 1500, 100_000])
def test_depth_is_refused(server: Server, depth: int) -> None:
    body = b'{"data":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"
    path = "/api/v1/namespaces/default/configmaps"
    assert server._runner.run(tell(server.client, "POST", path, body)) in (400, 413, 422)
    patch = tell(server.client, "PATCH", f"{path}/none", body, MERGE)
    assert server._runner.run(patch) in (400, 404, 413, 422)


@pytest.mark.parametrize("text", [t for t in HUGE if isinstance(t, str)], ids=lambda t: t[:4])
def test_a_quantity_of_thousands_of_digits_is_none(server: Server, text: str) -> None:
    with pytest.raises(QuantityError, match="longer than any quantity can be"):
        Quantity.parse(text)
    container = {**CONTAINER, "resources": {"limits": {"memory": text}}}
    pod = about_a_pod(containers=[container]).good
    assert server._runner.run(tell(server.client, "POST", "/api/v1/namespaces/default/pods", pod)) in (400, 422)
