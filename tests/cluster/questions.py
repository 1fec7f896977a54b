"""Questions to an API server, as stories: what is asked one after the other in a namespace of its own.

A step is a method, a path and what goes with it. In paths and bodies `{ns}` is the story's namespace, and `{cluster}`
what the names of objects outside of namespaces begin with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MERGE, JSON, STRATEGIC, APPLY = (
    "application/merge-patch+json",
    "application/json-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
CORE = "/api/v1/namespaces/{ns}"
APPS = "/apis/apps/v1/namespaces/{ns}"
MAPS, PODS, SECRETS, SERVICES = f"{CORE}/configmaps", f"{CORE}/pods", f"{CORE}/secrets", f"{CORE}/services"
DEPLOYMENTS, SETS = f"{APPS}/deployments", f"{APPS}/replicasets"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
Obj = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """One request."""

    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


def get(path: str, **headers: str) -> Step:
    return Step("GET", path, None, headers)


def post(path: str, body: Any, **headers: str) -> Step:
    return Step("POST", path, body, headers)


def put(path: str, body: Any) -> Step:
    return Step("PUT", path, body)


def patch(path: str, body: Any, kind: str = MERGE) -> Step:
    return Step("PATCH", path, body, {"Content-Type": kind})


def delete(path: str, body: Any = None) -> Step:
    return Step("DELETE", path, body)


def config_map(name: str = "a", data: Any = None, **metadata: Any) -> Obj:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data or {"k": "v"}}


def pod(name: str = "p", **spec: Any) -> Obj:
    # It is never placed, so that nobody but the test writes it.
    containers = [{"name": "c", "image": "busybox:1"}]
    placed = {"nodeSelector": {"nowhere": "yes"}, "containers": containers, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": placed}


def service(name: str = "s", **spec: Any) -> Obj:
    filled = {"selector": {"app": "x"}, "ports": [{"port": 80}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": filled}


def deployment(name: str = "d", **spec: Any) -> Obj:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": pod()["spec"]}
    filled = {"replicas": 0, "selector": {"matchLabels": {"app": "x"}}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": filled}


def crd(plural: str = "gadgets", **version: Any) -> Obj:
    group, kind = "{cluster}.example.com", plural.removesuffix("s").capitalize()
    spec: Obj = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": "integer", "minimum": 1, "maximum": 9},
            "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
            "tags": {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 5}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "amount": {"x-kubernetes-int-or-string": True},
        },
    }
    schema = {"type": "object", "properties": {"spec": spec, "status": {"type": "object", "properties": {
        "ready": {"type": "boolean"}}}}}  # fmt: skip
    one = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
        **version,
    }
    names = {"plural": plural, "singular": plural.removesuffix("s"), "kind": kind, "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [one]},
    }


GADGETS = "/apis/{cluster}.example.com/v1/namespaces/{ns}/gadgets"


def gadget(name: str = "g", **spec: Any) -> Obj:
    filled = {"size": 3, **spec}
    return {"apiVersion": "{cluster}.example.com/v1", "kind": "Gadget", "metadata": {"name": name}, "spec": filled}


def _bodies() -> list[Step]:
    """What is no such object."""
    bodies: list[Any] = [
        *(b"{", b"", b"[]", b"null", b'"text"', b"17", b"true", b"\xff\xfe", b'{"kind": "ConfigMap"'),
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}},
        {"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "a"}},
        {"kind": "ConfigMap", "metadata": {"name": "a"}},
        {"apiVersion": "v1", "metadata": {"name": "a"}},
        {"metadata": {"name": "plain"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": None},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": []},
        config_map(data={"a": 1}),
        config_map(data=["a"]),
        config_map(data={"../x": "y"}),
        config_map(data={"": "y"}),
        config_map("Not_A_Name"),
        config_map("a" * 254),
        config_map(".."),
        config_map("."),
        config_map("a/b"),
        config_map("%41"),
        config_map(""),
        config_map(namespace="other"),
        config_map(labels={"-": "x"}),
        config_map(labels={"a": "x y"}),
        config_map(labels={"a": 1}),
        config_map(annotations={"bad key!": "x"}),
        config_map(finalizers=["nameonly"]),
        config_map(finalizers=["a.example/b"], name="withfinalizer"),
        config_map(ownerReferences=[{"name": "x"}]),
        config_map(ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": ""}]),
        config_map(resourceVersion="1"),
        config_map(generateName="gen-", name=""),
        config_map(uid="11111111-1111-1111-1111-111111111111", name="withuid"),
        config_map(creationTimestamp="2001-01-01T00:00:00Z", name="old"),
        config_map(deletionTimestamp="2001-01-01T00:00:00Z", name="doomed"),
        config_map(generation=17, name="generation"),
        config_map(selfLink="/x", name="selflink"),
        config_map("binary") | {"binaryData": {"k2": "AAEC"}},
        config_map("twice") | {"binaryData": {"k": "AAEC"}},
        config_map("notbase64") | {"binaryData": {"b": "%%%"}},
        config_map("unknown") | {"unknownField": 1},
        config_map("fixed") | {"immutable": True},
    ]
    return [post(MAPS, body) for body in bodies]


def _strictness() -> list[Step]:
    unknown = config_map("strict") | {"unknownField": 1}
    return [
        *(post(f"{MAPS}?fieldValidation={level}", unknown) for level in ("Strict", "Warn", "Ignore", "Nonsense")),
        post(f"{MAPS}?fieldValidation=Strict", b'{"apiVersion":"v1","kind":"ConfigMap","kind":"ConfigMap"}'),
        post(
            f"{MAPS}?fieldValidation=Strict", b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","nam":1}}'
        ),
        post(f"{MAPS}?dryRun=All", config_map("dry")),
        get(f"{MAPS}/dry"),
        post(f"{MAPS}?dryRun=Some", config_map("dry")),
        post(f"{MAPS}?fieldManager=me", config_map("managed")),
        post(f"{MAPS}?fieldManager={'x' * 129}", config_map("managed2")),
        post(f"{MAPS}?pretty=true", config_map("pretty")),
        Step("POST", MAPS, b"a: b", {"Content-Type": "text/plain"}),
        Step(
            "POST",
            MAPS,
            b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yaml}\n",
            {"Content-Type": "application/yaml"},
        ),
        Step("GET", MAPS, None, {"Accept": "text/html"}),
        Step("GET", MAPS, None, {"Accept": "application/nonsense"}),
    ]


def _absent() -> list[Step]:
    return [
        get(f"{MAPS}/absent"),
        put(f"{MAPS}/absent", config_map("absent")),
        delete(f"{MAPS}/absent"),
        patch(f"{MAPS}/absent", {"data": {"a": "b"}}),
        post(f"{MAPS}/named", config_map("named")),
        put(MAPS, config_map()),
        get(f"{MAPS}/a/status"),
        get(f"{MAPS}/a/b/c"),
        get(f"{CORE}/nonsense"),
        get("/api/v1/nonsense"),
        get("/apis/nonsense.example/v1/things"),
        get("/apis/apps/v7/deployments"),
        get("/nonsense"),
        get("/api/v1/namespaces/{ns}-gone/configmaps"),
        post("/api/v1/namespaces/{ns}-gone/configmaps", config_map()),
        get("/api/v1/namespaces/{ns}-gone"),
        post("/api/v1/configmaps", config_map(namespace="{ns}")),
        get("/version/nonsense"),
        Step("TRACE", MAPS),
        Step("OPTIONS", f"{MAPS}/absent"),
    ]


def _updates() -> list[Step]:
    one = f"{MAPS}/a"
    return [
        post(MAPS, config_map()),
        post(MAPS, config_map()),
        get(one),
        put(one, config_map(data={"k": "w"})),
        put(one, config_map(data={"k": "w"}, resourceVersion="1")),
        put(one, config_map(data={"k": "w"}, resourceVersion="nonsense")),
        put(one, config_map("b")),
        put(one, config_map(uid="11111111-1111-1111-1111-111111111111")),
        put(one, config_map(namespace="other")),
        put(one, config_map(creationTimestamp="2001-01-01T00:00:00Z")),
        put(one, config_map(deletionTimestamp="2001-01-01T00:00:00Z")),
        put(f"{one}?dryRun=All", config_map(data={"k": "dry"})),
        get(one),
        put(one, config_map(data={"k": "w"}, labels={"a": "b"}, annotations={"c": "d"})),
        put(one, b"null"),
        put(one, config_map(data={"k": "w"}) | {"immutable": True}),
        put(one, config_map(data={"k": "x"}) | {"immutable": True}),
        put(one, config_map(data={"k": "w"})),
        patch(one, {"metadata": {"labels": {"new": "label"}}}),
        get(one),
    ]


def _merge_patches() -> list[Step]:
    one = f"{MAPS}/m"
    bodies: list[Any] = [
        *(
            {"data": {"k": "2"}},
            {"data": {"k": None}},
            {"data": {"n": "1", "m": "2"}},
            {"data": None},
            {},
            {"data": {}},
        ),
        *({"data": {"a": 1}}, {"data": []}, {"data": "x"}, {"metadata": {"name": "other"}}, {"metadata": None}),
        {"metadata": {"labels": {"a": "b", "c": "d"}}},
        {"metadata": {"labels": {"a": None}}},
        {"metadata": {"labels": None}},
        {"metadata": {"resourceVersion": "1"}},
        {"metadata": {"uid": "11111111-1111-1111-1111-111111111111"}},
        {"metadata": {"finalizers": ["a.example/b"]}},
        {"metadata": {"finalizers": []}},
        {"unknownField": 1},
        {"kind": "Secret"},
        {"apiVersion": "v9"},
        *(b"", b"null", b"[]", b'"x"', b"{"),
    ]
    return [post(MAPS, config_map("m")), *(patch(one, body) for body in bodies), get(one)]


def _json_patches() -> list[Step]:
    one = f"{MAPS}/j"

    def operation(op: str, path: str, **more: Any) -> list[Obj]:
        return [{"op": op, "path": path, **more}]

    patches: list[Any] = [
        operation("add", "/data/n", value="1"),
        operation("replace", "/data/k", value="2"),
        operation("replace", "/data/missing", value="2"),
        operation("remove", "/data/missing"),
        operation("remove", "/data/n"),
        operation("test", "/data/k", value="2"),
        operation("test", "/data/k", value="3"),
        operation("test", "/data/missing", value=None),
        operation("copy", "/data/copied", **{"from": "/data/k"}),
        operation("move", "/data/moved", **{"from": "/data/copied"}),
        operation("move", "/data/x", **{"from": "/data/missing"}),
        operation("add", "/metadata/labels/a", value="b"),
        operation("add", "/metadata/labels", value={"a": "b"}),
        operation("add", "/metadata/labels/a~1b", value="c"),
        operation("add", "/metadata/finalizers", value=["x.example/1"]),
        operation("add", "/metadata/finalizers/-", value="x.example/2"),
        operation("add", "/metadata/finalizers/0", value="x.example/0"),
        operation("add", "/metadata/finalizers/9", value="x.example/9"),
        operation("remove", "/metadata/finalizers/-1"),
        operation("remove", "/metadata/finalizers"),
        operation("nonsense", "/data/k"),
        operation("add", "data/k", value="1"),
        operation("add", "/data/k"),
        operation("replace", "", value=config_map("j")),
        operation("replace", "/metadata/name", value="other"),
        operation("add", "/data/k", value=7),
        [],
        {},
        b"null",
        b"x",
        operation("add", "/data/a", value="1") + operation("test", "/data/a", value="2"),
    ]
    return [post(MAPS, config_map("j")), *(patch(one, body, JSON) for body in patches), get(one)]


def _strategic() -> list[Step]:
    one = f"{PODS}/p"
    containers = {"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}}
    return [
        post(PODS, pod()),
        patch(one, containers, STRATEGIC),
        patch(one, {"spec": {"containers": [{"name": "d", "image": "x"}]}}, STRATEGIC),
        patch(one, {"metadata": {"labels": {"a": "b"}}}, STRATEGIC),
        patch(one, {"metadata": {"labels": {"$patch": "replace", "c": "d"}}}, STRATEGIC),
        patch(one, {"metadata": {"labels": {"$patch": "delete"}}}, STRATEGIC),
        patch(one, {"spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}}, STRATEGIC),
        patch(one, {"spec": {"nodeName": "x"}}, STRATEGIC),
        patch(one, {"spec": {"$retainKeys": ["x"]}}, STRATEGIC),
        patch(one, b"[]", STRATEGIC),
        patch(one, {"spec": {"activeDeadlineSeconds": 100}}, STRATEGIC),
        patch(one, {"spec": {"activeDeadlineSeconds": 200}}, STRATEGIC),
        patch(one, {"spec": {"activeDeadlineSeconds": 50}}, STRATEGIC),
        Step("PATCH", one, {}, {"Content-Type": "application/nonsense"}),
        Step("PATCH", one, {}, {"Content-Type": "application/json"}),
        get(one),
    ]


def _pods() -> list[Step]:
    bad: list[Obj] = [
        {"containers": []},
        {"containers": None},
        {"containers": [{"name": "c"}]},
        {"containers": [{"name": "C!", "image": "x"}]},
        {"containers": [{"name": "c", "image": "x"}, {"name": "c", "image": "y"}]},
        {"restartPolicy": "Sometimes"},
        {"dnsPolicy": "None"},
        {"terminationGracePeriodSeconds": -1},
        {"activeDeadlineSeconds": 0},
        {"nodeSelector": {"a b": "c"}},
        {"volumes": [{"name": "v"}, {"name": "v"}]},
        {"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]},
        {"containers": [{"name": "c", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
        {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]},
        {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "much"}}}]},
        {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"example.com/x": "1"}}}]},
        {"containers": [{"name": "c", "image": "x", "ports": [{"containerPort": 70000}]}]},
        {"containers": [{"name": "c", "image": "x", "env": [{"name": "a=b", "value": "1"}]}]},
        {"serviceAccountName": "nobody"},
        {"priorityClassName": "nothing"},
        {"tolerations": [{"operator": "Nonsense"}]},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}},
    ]
    return [
        *(post(PODS, pod("bad", **spec)) for spec in bad),
        post(PODS, pod()),
        get(f"{PODS}/p"),
        get(f"{PODS}?fieldSelector=metadata.name=p"),
        get(f"{PODS}?fieldSelector=spec.nodeName=,status.phase=Pending"),
        get(f"{PODS}?fieldSelector=spec.nonsense=x"),
        get(f"{PODS}?labelSelector=a in (b"),
        get(f"{PODS}?labelSelector=!a"),
        get(f"{PODS}/p/log"),
        post(f"{PODS}/p/binding", {"apiVersion": "v1", "kind": "Binding", "target": {}}),
        post(f"{PODS}/q/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "q"}}),
        get(f"{PODS}/p/status"),
        patch(f"{PODS}/p/status", {"status": {"message": "hello"}, "spec": {"nodeName": "x"}}),
        get(f"{PODS}/p", Accept=TABLE),
        delete(f"{PODS}/p?gracePeriodSeconds=-5"),
        delete(f"{PODS}/p", {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Sometimes"}),
        delete(f"{PODS}/p", {"preconditions": {"uid": "11111111-1111-1111-1111-111111111111"}}),
        delete(f"{PODS}/p?dryRun=All"),
        get(f"{PODS}/p"),
        delete(f"{PODS}/p"),
        get(f"{PODS}/p"),
    ]


def _lists() -> list[Step]:
    made = [post(MAPS, config_map(f"l{i}", labels={"n": str(i), "odd": str(i % 2)})) for i in range(5)]
    only = "labelSelector=n"
    return [
        *made,
        get(f"{MAPS}?{only}"),
        get(f"{MAPS}?labelSelector=odd=1"),
        get(f"{MAPS}?labelSelector=odd!=1,n"),
        get(f"{MAPS}?labelSelector=n in (1,2)"),
        get(f"{MAPS}?labelSelector=n notin (1,2),n"),
        get(f"{MAPS}?labelSelector=n>2"),
        get(f"{MAPS}?labelSelector==,="),
        get(f"{MAPS}?{only}&limit=2"),
        get(f"{MAPS}?{only}&limit=2&continue=nonsense"),
        get(f"{MAPS}?limit=-1&{only}"),
        get(f"{MAPS}?limit=x"),
        get(f"{MAPS}?resourceVersion=0&{only}"),
        get(f"{MAPS}?resourceVersion=x"),
        get(f"{MAPS}?resourceVersion=0&resourceVersionMatch=Exact&{only}"),
        get(f"{MAPS}?resourceVersionMatch=Exact"),
        get(f"{MAPS}?resourceVersion=0&resourceVersionMatch=NotOlderThan&{only}"),
        get(f"{MAPS}?fieldSelector=metadata.name=l1"),
        get(f"{MAPS}?fieldSelector=metadata.name!=l1&{only}"),
        get(f"{MAPS}?fieldSelector=data.k=v"),
        get(f"{MAPS}?{only}", Accept=TABLE),
        get(f"{MAPS}/l1", Accept=TABLE),
        get(f"{MAPS}?{only}&limit=1", Accept=PARTIAL),
        get(f"{MAPS}/l1", Accept=PARTIAL),
        get(f"{MAPS}?{only}&includeObject=Object", Accept=TABLE),
        get(f"/api/v1/configmaps?{only}&fieldSelector=metadata.namespace={{ns}}"),
        Step("DELETE", f"{MAPS}?labelSelector=odd=1"),
        get(f"{MAPS}?{only}"),
        Step("DELETE", f"{MAPS}?{only}&dryRun=All"),
        get(f"{MAPS}?labelSelector=n&limit=10"),
    ]


def _watches() -> list[Step]:
    return [
        post(MAPS, config_map("w", labels={"w": "1"})),
        get(f"{MAPS}?watch=true&labelSelector=w&timeoutSeconds=1"),
        get(f"{MAPS}?watch=true&labelSelector=w&timeoutSeconds=1&resourceVersion=0"),
        get(f"{MAPS}?watch=true&labelSelector=w&timeoutSeconds=1&resourceVersion=x"),
        get(f"{MAPS}?watch=true&labelSelector=w&timeoutSeconds=1", Accept=TABLE),
        get(f"{MAPS}?watch=nonsense&labelSelector=w&timeoutSeconds=1"),
        get(f"{MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
            "&labelSelector=w&timeoutSeconds=1"),
        get(f"{MAPS}?watch=true&sendInitialEvents=true&labelSelector=w&timeoutSeconds=1"),
        get(f"{MAPS}/w?watch=true&timeoutSeconds=1"),
        delete(f"{MAPS}/w"),
    ]  # fmt: skip


def _deletion() -> list[Step]:
    return [
        post(MAPS, config_map("f", finalizers=["a.example/hold"])),
        delete(f"{MAPS}/f"),
        get(f"{MAPS}/f"),
        put(f"{MAPS}/f", config_map("f", data={"k": "changed"}, finalizers=["a.example/hold"])),
        patch(f"{MAPS}/f", {"metadata": {"finalizers": ["a.example/hold", "b.example/new"]}}),
        delete(f"{MAPS}/f"),
        patch(f"{MAPS}/f", {"metadata": {"finalizers": None}}),
        get(f"{MAPS}/f"),
        post(MAPS, config_map("g")),
        delete(f"{MAPS}/g", {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"resourceVersion": "1"}}),
        delete(f"{MAPS}/g", b"nonsense"),
        delete(f"{MAPS}/g", {"kind": "Nonsense", "apiVersion": "v1"}),
        delete(f"{MAPS}/g", {"propagationPolicy": "Orphan", "orphanDependents": True}),
        delete(f"{MAPS}/g?propagationPolicy=Background"),
        get(f"{MAPS}/g"),
    ]


def _others() -> list[Step]:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}
    return [
        post(SECRETS, secret | {"stringData": {"a": "b"}, "data": {"c": "ZA=="}}),
        post(SECRETS, secret | {"metadata": {"name": "y"}, "data": {"a": "not base64"}}),
        post(SECRETS, secret | {"metadata": {"name": "z"}, "type": "kubernetes.io/tls"}),
        get(f"{SECRETS}/x", Accept=TABLE),
        patch(f"{SECRETS}/x", {"type": "other"}),
        post(SERVICES, service()),
        post(SERVICES, service("nopath", ports=[])),
        post(SERVICES, service("badtype", type="Nonsense")),
        post(SERVICES, service("port", ports=[{"port": 70000}])),
        post(SERVICES, service("two", ports=[{"port": 80}, {"port": 81}])),
        post(SERVICES, service("Bad_Name")),
        post(SERVICES, service("headless", clusterIP="None")),
        post(SERVICES, service("address", clusterIP="1.2.3.4")),
        patch(f"{SERVICES}/s", {"spec": {"clusterIP": "10.0.0.1"}}),
        patch(f"{SERVICES}/s", {"spec": {"ports": [{"port": 81, "name": "x"}]}}),
        delete(f"{SERVICES}/s"),
        post(DEPLOYMENTS, deployment()),
        post(DEPLOYMENTS, deployment("mismatch", selector={"matchLabels": {"app": "y"}})),
        post(DEPLOYMENTS, deployment("noselector", selector={})),
        post(DEPLOYMENTS, deployment("negative", replicas=-1)),
        patch(f"{DEPLOYMENTS}/d", {"spec": {"selector": {"matchLabels": {"app": "z"}}}}),
        get(f"{DEPLOYMENTS}/d/scale"),
        patch(f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": -1}}),
        post(f"{CORE}/serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa"}}),
        post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "Bad_Name"}}),
        delete("/api/v1/namespaces/default?dryRun=All"),
        get("/api/v1/namespaces/{ns}"),
        patch("/api/v1/namespaces/{ns}", {"spec": {"finalizers": []}}),
        post("/api/v1/namespaces?dryRun=All", {"metadata": {"name": "{cluster}-in", "namespace": "default"}}),
    ]


def _custom() -> list[Step]:
    bad: list[Obj] = [
        {"size": 0}, {"size": 10}, {"size": "3"}, {"size": 1.5}, {"size": None},
        {"colour": "green"}, {"tags": ["a", "b", "c", "d"]}, {"tags": ["too long"]}, {"tags": "x"},
        {"free": []}, {"amount": True}, {"amount": "x"}, {"amount": 7}, {"unknown": 1},
        {"free": {"any": [1, {"x": None}]}},
    ]  # fmt: skip
    one = f"{GADGETS}/g"
    return [
        *(post(GADGETS, gadget(f"b{number}", **spec)) for number, spec in enumerate(bad)),
        post(
            GADGETS, {"apiVersion": "{cluster}.example.com/v1", "kind": "Gadget", "metadata": {"name": "e"}, "spec": {}}
        ),
        post(GADGETS, gadget()),
        post(GADGETS, gadget()),
        post(f"{GADGETS}?fieldValidation=Strict", gadget("strict", unknown=1)),
        get(one),
        get(f"{GADGETS}", Accept=TABLE),
        patch(one, {"spec": {"size": 4}}),
        patch(one, {"spec": {"size": 44}}),
        patch(one, {"spec": {"size": None}}),
        patch(one, {"status": {"ready": True}}),
        patch(f"{one}/status", {"status": {"ready": True}, "spec": {"size": 9}}),
        patch(f"{one}/status", {"status": {"ready": "yes"}}),
        patch(one, {"spec": {"colour": None}}),
        patch(one, [{"op": "replace", "path": "/spec/size", "value": 5}], JSON),
        patch(one, {"spec": {"size": 5}}, STRATEGIC),
        put(one, gadget(size=6)),
        get(f"{one}/scale"),
        get(one),
        get("/apis/{cluster}.example.com/v1"),
        get("/apis/{cluster}.example.com/v2"),
        delete(one),
    ]


def _definitions() -> list[Step]:
    def broken(**version: Any) -> Step:
        return post(CRDS, crd("widgets", **version))

    array = {"openAPIV3Schema": {"type": "object", "properties": {"a": {"type": "array"}}}}
    untyped = {"openAPIV3Schema": {"type": "object", "properties": {"a": {"minimum": 1}}}}
    reference = {"openAPIV3Schema": {"type": "object", "properties": {"a": {"$ref": "#/x"}}}}
    return [
        broken(schema={}),
        broken(schema=array),
        broken(schema=untyped),
        broken(schema=reference),
        broken(name="Nonsense"),
        broken(served=False, storage=False),
        post(CRDS, crd("widgets") | {"metadata": {"name": "other"}}),
        post(CRDS, crd("gadgets")),
        get(f"{CRDS}/absent.example.com"),
    ]


def apply(path: str, body: Any, who: str = "one", query: str = "") -> Step:
    return patch(f"{path}?fieldManager={who}{query}", body, APPLY)


def _apply() -> list[Step]:
    """Server-side apply: who manages what is compared, too."""
    a, force = f"{MAPS}/a", "&force=true"
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1"}
    return [
        patch(a, config_map(), APPLY),
        patch(f"{a}?force=true", {"data": {"x": "1"}}),
        apply(a, b"{"),
        apply(a, b""),
        apply(a, []),
        apply(a, {}),
        apply(a, {"apiVersion": "v1", "kind": "ConfigMap"}),
        apply(a, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}),
        apply(a, config_map("b")),
        apply(a, config_map(namespace="other")),
        apply(a, {**config_map(), "kind": "Secret"}),
        apply(a, {**config_map(), "apiVersion": "v2"}),
        apply(a, config_map(managedFields=[{"manager": "x"}])),
        apply(a, config_map(managedFields=[])),
        apply(a, config_map(resourceVersion="77")),
        apply(a, config_map(data={"k": 1})),
        apply(a, {**config_map(), "dta": {}}),
        apply("/api/v1/namespaces/{ns}-none/configmaps/a", config_map()),
        apply(a, config_map(), query="&dryRun=All"),
        get(a),
        apply(a, config_map(data={"k": "1", "l": "1"}, labels={"a": "b"}, finalizers=["x.io/a"])),
        apply(a, config_map(data={"k": "1", "l": "1"}, labels={"a": "b"}, finalizers=["x.io/a"])),
        apply(a, config_map(data={"k": "2", "m": "1"}, labels={}, finalizers=["x.io/b", "x.io/a"])),
        apply(a, config_map(data={"k": "3", "n": "1"}), "two"),
        apply(a, config_map(data={"k": "3", "m": "3"}, finalizers=["x.io/c"]), "two"),
        apply(a, config_map(data={"k": "2", "n": "1"}, finalizers=["x.io/c"]), "two"),
        apply(a, config_map(data={"k": "3", "n": "1"}), "two", force),
        apply(a, config_map(data={"m": "1"})),
        patch(f"{a}?fieldManager=ed", {"data": {"m": "9", "z": "1"}, "metadata": {"labels": {"y": "1"}}}),
        apply(a, config_map(data={"m": "1"})),
        apply(a, config_map(data={"m": "9"})),
        apply(a, config_map(data={"n": "1"})),
        patch(f"{a}?fieldManager=ed", {"data": {"z": None}}),
        put(f"{a}?fieldManager=ed", config_map(data={"only": "1"})),
        # Not in earnest: this owner does not exist, and Kubernetes would remove what is owned, now or a moment later.
        apply(a, config_map(data={"n": "1"}, ownerReferences=[owner]), query="&dryRun=All"),
        apply(a, config_map(data={"n": None})),
        patch(f"{a}?fieldManager=ed", [{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}], JSON),
        get(a),
        patch(f"{a}?fieldManager=ed", {"metadata": {"managedFields": [{"manager": "x"}], "finalizers": None}}),
        get(a),
        apply(f"{SECRETS}/s", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "YQ=="}}),
        apply(f"{SECRETS}/s", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "%"}}),
    ]


def _apply_lists() -> list[Step]:
    """Lists by their keys, and what is one value."""
    s, d, g = f"{SERVICES}/s", f"{DEPLOYMENTS}/d", f"{GADGETS}/g"
    web, ssl = {"name": "web", "port": 80}, {"name": "ssl", "port": 443, "targetPort": 8443}

    def run(*names: str, **first: Any) -> Obj:
        containers = [{"name": name, "image": "i", **(first if name == names[0] else {})} for name in names]
        template = {
            "metadata": {"labels": {"app": "x"}},
            "spec": {"nodeSelector": {"a": "b"}, "containers": containers},
        }
        return deployment(paused=True, template=template)

    def without(obj: Obj, field: str) -> Obj:
        return {**obj, "spec": {key: value for key, value in obj["spec"].items() if key != field}}

    ports = [{"containerPort": 1}, {"containerPort": 1, "protocol": "UDP"}]
    return [
        apply(s, service(ports=[web, ssl])),
        apply(s, service(ports=[{**web, "targetPort": 99}]), "two"),
        apply(
            s,
            without(service(), "selector") | {"spec": {"ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}},
            "two",
        ),
        apply(s, service(selector={"app": "y"}, ports=[ssl, web]), "two"),
        apply(s, service(ports=[ssl])),
        apply(s, service(ports=[web, web])),
        apply(d, run("one", "two", args=["1"], ports=ports)),
        apply(d, run("one", args=["2"]), "other"),
        apply(d, run("three", image="j"), "other"),
        apply(d, run("two", "one", command=["c"])),
        apply(d, run("three")),
        apply(d, run("three"), query="&force=true"),
        patch(f"{d}?fieldManager=ed", {"spec": {"replicas": 3}}),
        apply(d, run("three")),
        apply(d, without(run("three"), "replicas")),
        apply(d, without(run("three"), "selector")),
        apply(d, run("three", image=7)),
        apply(d, run("three", ports="x")),
        apply(d, run("three", unknown=1)),
        apply(d, run("one", "one")),
        apply(g, gadget(tags=["a", "b"], free={"x": {"y": 1}, "l": [1]}, amount=1)),
        apply(g, gadget(tags=["a"]), "two"),
        apply(g, gadget(free={"x": {"z": 1}}), "two"),
        apply(g, gadget(free={"l": [2]}), "two"),
        apply(g, gadget(free={"x": {"y": 1}})),
        apply(g, gadget(size="x")),
        apply(g, gadget(free=[])),
        apply(g, gadget(tags="x")),
        apply(g, gadget(size=99)),
        apply(g, gadget(unknown=1)),
        apply(g, {**gadget(), "status": {"ready": True}}, "three"),
        apply(f"{g}/status", {**gadget(), "status": {"ready": True}}, "three"),
        apply(f"{g}/status", {**gadget(), "status": {"ready": False}}, "four"),
        patch(f"{g}/status?fieldManager=ed", {"status": {"ready": False}}),
        apply(f"{GADGETS}/none/status", {**gadget("none"), "status": {"ready": True}}, "three"),
        apply(g, {**gadget(), "spec": {}}),
        apply(g, {**gadget(), "spec": {}}, "two"),
    ]


def _apply_late() -> list[Step]:
    """What others have made before anybody applied anything; who they were is not compared."""
    a = f"{MAPS}/a"
    return [
        post(MAPS, config_map(data={"k": "1", "l": "1"})),
        apply(a, config_map(data={"k": "2"})),
        apply(a, config_map(data={"k": "1", "m": "1"})),
        apply(a, config_map(data={"m": "1"})),
        apply(a, config_map(data={"l": "2"}), query="&force=true"),
        apply(a, config_map(data={})),
    ]


STORIES: dict[str, list[Step]] = {
    "bodies": _bodies(),
    "strictness": _strictness(),
    "absent": _absent(),
    "updates": _updates(),
    "merge patches": _merge_patches(),
    "JSON patches": _json_patches(),
    "strategic patches": _strategic(),
    "pods": _pods(),
    "lists": _lists(),
    "watches": _watches(),
    "deletion": _deletion(),
    "other kinds": _others(),
    "definitions": _definitions(),
    "custom kinds": _custom(),
    "server-side apply": _apply(),
    "applied lists": _apply_lists(),
    "late apply": _apply_late(),
}
MANAGERS_COUNT = ("server-side apply", "applied lists")  # stories in which who manages what is compared


def questions() -> Iterator[tuple[str, int, Step]]:
    for story, steps in STORIES.items():
        for number, step in enumerate(steps):
            yield story, number, step
