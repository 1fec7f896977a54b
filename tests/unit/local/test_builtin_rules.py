"""What the built-in kinds do beyond their schemas: defaults, allocation, checks, immutability."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds import builtin, pod_spec
from virtfleet.local.apiserver.kinds.registry import Kind, Kinds


@dataclass
class Shelf:
    """Stored objects, by storage."""

    there: dict[str, list[Obj]] = field(default_factory=dict)

    def read(self, storage: str, namespace: str, name: str) -> Obj | None:
        for obj in self.objects(storage):
            meta = obj["metadata"]
            if (meta.get("namespace", ""), meta["name"]) == (namespace, name):
                return obj
        return None

    def objects(self, storage: str, namespace: str | None = None) -> list[Obj]:
        copied: list[Obj] = orjson.loads(orjson.dumps(self.there.get(storage, [])))
        return copied


class Server:
    """The stations of a write that belong to the kind."""

    def __init__(self, **services: str) -> None:
        self.shelf = Shelf()
        self.kinds = Kinds()
        builtin.register(self.kinds, self.shelf, **services)

    def kind(self, group: str, plural: str) -> Kind:
        found = self.kinds.find(group, "v1", plural)
        assert found
        return found

    def create(self, group: str, plural: str, obj: Obj, name: str = "x") -> tuple[Obj, list[str]]:
        kind = self.kind(group, plural)
        obj["metadata"] = {"name": name, "creationTimestamp": "2024-01-01T00:00:00Z", **obj.get("metadata", {})}
        if kind.resource.namespaced:
            obj["metadata"].setdefault("namespace", "default")
        assert kind.schema
        kind.schema.shape(obj)
        kind.rules.prepare_create(obj)
        faults = [*kind.schema.validate(obj), *kind.rules.faults(obj)]
        if not faults:
            self.shelf.there.setdefault(kind.storage, []).append(obj)
        return obj, list(dict.fromkeys(f"{f.field}: {f.message}" for f in faults))

    def update(self, group: str, plural: str, old: Obj, change: Obj, subresource: str = "") -> tuple[Obj, list[str]]:
        kind = self.kind(group, plural)
        obj = {**orjson.loads(orjson.dumps(old)), **change}
        assert kind.schema
        kind.schema.shape(obj)
        kind.rules.prepare_update(obj, old, subresource)
        faults = [*kind.schema.validate(obj), *kind.rules.update_faults(obj, old, subresource)]
        return obj, list(dict.fromkeys(f"{f.field}: {f.message}" for f in faults))


@pytest.fixture
def server() -> Server:
    return Server()


def pod(**spec: Any) -> Obj:
    return {"spec": {"containers": [{"name": "c", "image": "busybox"}], **spec}}


# Pods


def test_a_pod_gets_what_kubernetes_gives_it(server: Server) -> None:
    obj, faults = server.create("", "pods", pod())
    spec = obj["spec"]
    assert faults == []
    assert obj["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert (spec["restartPolicy"], spec["dnsPolicy"], spec["schedulerName"]) == (
        "Always",
        "ClusterFirst",
        "default-scheduler",
    )
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    assert spec["serviceAccountName"] == spec["serviceAccount"] == "default"
    assert {t["key"]: t["tolerationSeconds"] for t in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready": 300,
        "node.kubernetes.io/unreachable": 300,
    }
    mount = spec["containers"][0]["volumeMounts"][0]
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    assert spec["volumes"][0]["name"] == mount["name"]
    assert [list(source) for source in spec["volumes"][0]["projected"]["sources"]] == [
        ["serviceAccountToken"],
        ["configMap"],
        ["downwardAPI"],
    ]


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("nginx", "Always"),
        ("nginx:latest", "Always"),
        ("nginx:1.2", "IfNotPresent"),
        ("registry:5000/nginx", "Always"),
        ("registry:5000/nginx:1", "IfNotPresent"),
        ("nginx@sha256:abc", "IfNotPresent"),
    ],
)
def test_only_latest_images_are_pulled_always(image: str, policy: str) -> None:
    spec: Obj = {"containers": [{"name": "c", "image": image}]}
    pod_spec.complete(spec)
    assert spec["containers"][0]["imagePullPolicy"] == policy


@pytest.mark.parametrize(
    ("account", "spec", "mounted"),
    [
        ({}, {}, True),
        ({"automountServiceAccountToken": False}, {}, False),
        ({"automountServiceAccountToken": False}, {"automountServiceAccountToken": True}, True),
        ({}, {"automountServiceAccountToken": False}, False),
    ],
)
def test_the_pod_has_the_last_word_on_its_token(server: Server, account: Obj, spec: Obj, mounted: bool) -> None:
    server.create("", "serviceaccounts", account, name="robot")
    obj, _ = server.create("", "pods", pod(serviceAccountName="robot", **spec))
    assert bool(obj["spec"].get("volumes")) is mounted


def test_a_pod_of_an_unknown_account_is_forbidden(server: Server) -> None:
    with pytest.raises(ApiError) as refused:
        server.create("", "pods", pod(serviceAccountName="nobody"))
    assert refused.value.code == 403
    assert refused.value.message == (
        'pods "x" is forbidden: error looking up service account default/nobody: serviceaccount "nobody" not found'
    )


def test_priority_comes_from_the_class(server: Server) -> None:
    server.create("scheduling.k8s.io", "priorityclasses", {"value": 7, "preemptionPolicy": "Never"}, name="high")
    obj, _ = server.create("", "pods", pod(priorityClassName="high"))
    assert (obj["spec"]["priority"], obj["spec"]["preemptionPolicy"]) == (7, "Never")
    with pytest.raises(ApiError, match="no PriorityClass with name none was found"):
        server.create("", "pods", pod(priorityClassName="none"))


def test_the_global_default_class_is_for_pods_without_one(server: Server) -> None:
    server.create("scheduling.k8s.io", "priorityclasses", {"value": 3, "globalDefault": True}, name="usual")
    obj, _ = server.create("", "pods", pod())
    assert (obj["spec"]["priority"], obj["spec"]["priorityClassName"]) == (3, "usual")


@pytest.mark.parametrize(
    ("resources", "qos"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}}, "Burstable"),
        ({"limits": {"example.com/gpu": "1"}}, "BestEffort"),
    ],
)
def test_quality_of_service_follows_requests_and_limits(server: Server, resources: Obj, qos: str) -> None:
    containers = [{"name": "c", "image": "i", "resources": resources}]
    obj, faults = server.create("", "pods", {"spec": {"containers": containers}})
    assert (faults, obj["status"]["qosClass"]) == ([], qos)


@pytest.mark.parametrize(
    ("container", "fault"),
    [
        ({"image": "i"}, "spec.containers[0].name: Required value"),
        ({"name": "c"}, "spec.containers[0].image: Required value"),
        (
            {"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/x"}]},
            'spec.containers[0].volumeMounts[0].name: Not found: "v"',
        ),
        (
            {"name": "c", "image": "i", "ports": [{"containerPort": 70000}]},
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be less than or equal to 65535",
        ),
        (
            {"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}},
            'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
        ),
        (
            {"name": "c", "image": "i", "resources": {"requests": {"example.com/gpu": "1"}}},
            "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
        ),
        (
            {"name": "c", "image": "i", "livenessProbe": {}},
            "spec.containers[0].livenessProbe: Required value: must specify a handler type",
        ),
        (
            {"name": "c", "image": "i", "imagePullPolicy": "Often"},
            'spec.containers[0].imagePullPolicy: Unsupported value: "Often": '
            'supported values: "Always", "IfNotPresent", "Never"',
        ),
    ],
)
def test_faulty_containers_are_refused(server: Server, container: Obj, fault: str) -> None:
    assert fault in server.create("", "pods", {"spec": {"containers": [container]}})[1]


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"containers": []}, "spec.containers: Required value"),
        (
            {"initContainers": [{"name": "c", "image": "i"}]},
            'spec.containers[0].name: Duplicate value: "c"',
        ),
        (
            {"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]},
            "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
        ),
        (
            {"tolerations": [{"operator": "Equal"}]},
            'spec.tolerations[0].operator: Invalid value: "Equal": operator must be Exists when `key` is empty, '
            'which means "match all values and all keys"',
        ),
        (
            {
                "affinity": {
                    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
                }
            },
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: "
            "Required value",
        ),
    ],
)
def test_faulty_pods_are_refused(server: Server, spec: Obj, fault: str) -> None:
    assert fault in server.create("", "pods", pod(**spec))[1]


def test_of_a_running_pod_only_a_few_fields_change(server: Server) -> None:
    old, _ = server.create("", "pods", pod())

    def faults(**changes: Any) -> list[str]:
        return server.update("", "pods", old, {"spec": {**old["spec"], **changes}})[1]

    image = [{**old["spec"]["containers"][0], "image": "busybox:2"}]
    assert faults(containers=image) == []
    assert faults(tolerations=[*old["spec"]["tolerations"], {"key": "a", "operator": "Exists"}]) == []
    assert faults(activeDeadlineSeconds=5) == []
    assert "pod updates may not change fields other than" in faults(nodeName="n")[0]
    assert faults(nodeName="n")[0].endswith("changed: nodeName")
    more = [*old["spec"]["tolerations"], {"key": "a", "operator": "Exists"}]
    kept = {**old, "spec": {**old["spec"], "tolerations": more}}
    assert server.update("", "pods", kept, {"spec": old["spec"]})[1] != []
    assert "spec.containers: Forbidden: pod updates may not add or remove containers" in faults(containers=image * 2)


def test_a_resize_changes_processors_and_memory_and_nothing_else(server: Server) -> None:
    old, _ = server.create("", "pods", pod())

    def resized(before: Obj, image: str = "other", **resources: Any) -> tuple[Obj, list[str]]:
        containers = [{**before["spec"]["containers"][0], "image": image, "resources": resources}]
        return server.update("", "pods", before, {"spec": {"containers": containers}}, "resize")

    pages = {"limits": {"hugepages-2Mi": "2Mi"}}
    old["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1", "memory": "1Gi"}, **pages}
    obj, faults = resized(old, requests={"cpu": "2", "memory": "2Gi"}, **pages)
    assert faults == []
    (container,) = obj["spec"]["containers"]
    assert container["image"] == old["spec"]["containers"][0]["image"], "what else was sent is not looked at"
    assert container["resources"]["requests"]["memory"] == "2Gi"
    more = {"limits": {"hugepages-2Mi": "4Mi"}}
    assert "only cpu and memory" in resized(old, requests={"cpu": "1", "memory": "1Gi"}, **more)[1][0]
    same = {"cpu": "1", "memory": "1Gi"}
    guaranteed = {
        **old,
        "spec": {**old["spec"], "containers": [{**container, "resources": {"requests": same, "limits": same}}]},
    }
    less = {**same, "memory": "512Mi"}
    assert "QOS Class may not change" in resized(guaranteed, requests=less, limits=same)[1][0]


def test_status_writes_keep_the_quality_of_service_and_both_forms_of_the_address(server: Server) -> None:
    old, _ = server.create("", "pods", pod())
    obj, faults = server.update("", "pods", old, {"status": {"phase": "Running", "podIP": "10.0.0.1"}}, "status")
    assert faults == []
    assert obj["status"] == {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        "qosClass": "BestEffort",
    }


@pytest.mark.parametrize(
    ("spec", "phase", "asked", "grace"),
    [
        ({"nodeName": "n", "terminationGracePeriodSeconds": 30}, "Running", None, 30),
        ({"nodeName": "n", "terminationGracePeriodSeconds": 30}, "Running", 5, 5),
        ({"nodeName": "n", "terminationGracePeriodSeconds": 30}, "Running", 0, 0),
        ({"terminationGracePeriodSeconds": 30}, "Pending", None, 0),
        ({"nodeName": "n", "terminationGracePeriodSeconds": 30}, "Succeeded", None, 0),
    ],
)
def test_only_a_pod_on_a_node_is_given_grace(
    server: Server, spec: Obj, phase: str, asked: int | None, grace: int
) -> None:
    assert server.kind("", "pods").rules.grace({"spec": spec, "status": {"phase": phase}}, asked) == grace


# Services


def service(**spec: Any) -> Obj:
    return {"spec": {"ports": [{"port": 80}], **spec}}


def test_services_get_addresses_that_nobody_else_has(server: Server) -> None:
    addresses = [server.create("", "services", service(), name=f"s{i}")[0]["spec"]["clusterIP"] for i in range(50)]
    assert len(set(addresses)) == 50


def test_services_of_the_same_name_in_two_namespaces_share_nothing(server: Server) -> None:
    here, _ = server.create("", "services", service(type="NodePort"))
    there, faults = server.create("", "services", {"metadata": {"namespace": "other"}, **service(type="NodePort")})
    assert faults == []
    assert here["spec"]["clusterIP"] != there["spec"]["clusterIP"]
    assert here["spec"]["ports"][0]["nodePort"] != there["spec"]["ports"][0]["nodePort"]


def test_a_chosen_node_port_must_be_free_and_in_range(server: Server) -> None:
    def faults(port: int, name: str) -> list[str]:
        return server.create("", "services", service(type="NodePort", ports=[{"port": 80, "nodePort": port}]), name)[1]

    assert faults(30123, "a") == []
    assert faults(30123, "b") == ["spec.ports[0].nodePort: Invalid value: 30123: provided port is already allocated"]
    assert "The range of valid ports is 30000-32767" in faults(80, "c")[0]


def test_addresses_of_stored_services_are_taken_after_a_restart(server: Server) -> None:
    first = server.create("", "services", service(), name="a")[0]["spec"]["clusterIP"]
    restarted = Server()
    restarted.shelf.there = server.shelf.there
    second = restarted.create("", "services", service(), name="b")[0]["spec"]["clusterIP"]
    assert first != second


def test_a_chosen_address_must_be_free_and_in_range(server: Server) -> None:
    assert server.create("", "services", service(clusterIP="10.96.0.1"), name="kubernetes")[1] == []
    assert server.create("", "services", service(clusterIP="10.96.0.1"), name="b")[1] == [
        'spec.clusterIPs: Invalid value: ["10.96.0.1"]: failed to allocate IP 10.96.0.1: '
        "provided IP is already allocated"
    ]
    assert "provided IP is not in the valid range" in server.create("", "services", service(clusterIP="1.1.1.1"))[1][0]


def test_a_full_range_says_so() -> None:
    server = Server(services="10.0.0.0/28")
    for number in range(5):
        server.create("", "services", service(), name=f"s{number}")
    with pytest.raises(ApiError, match=r"failed to allocate a serviceIP: range 10\.0\.0\.0/28 is full"):
        server.create("", "services", service(), name="one-too-many")


def test_headless_services_have_no_address(server: Server) -> None:
    headless, faults = server.create("", "services", service(clusterIP="None"), name="a")
    assert (headless["spec"]["clusterIP"], faults) == ("None", [])


def test_node_ports_are_kept_when_the_client_leaves_them_out(server: Server) -> None:
    old, _ = server.create("", "services", service(type="NodePort"))
    port = old["spec"]["ports"][0]["nodePort"]
    assert 30000 <= port <= 32767
    new, faults = server.update("", "services", old, service(type="NodePort"))
    assert (new["spec"]["ports"][0]["nodePort"], new["spec"]["clusterIP"], faults) == (
        port,
        old["spec"]["clusterIP"],
        [],
    )
    assert "nodePort" not in server.update("", "services", old, service(type="ClusterIP"))[0]["spec"]["ports"][0]


def test_the_address_of_a_service_does_not_change(server: Server) -> None:
    old, _ = server.create("", "services", service())
    _, faults = server.update("", "services", old, service(clusterIP="10.96.7.7"))
    assert faults == ['spec.clusterIPs[0]: Invalid value: ["10.96.7.7"]: field is immutable']


@pytest.mark.parametrize(
    ("ports", "fault"),
    [
        ([], "spec.ports: Required value"),
        ([{"port": 0}], "spec.ports[0].port: Invalid value: 0: must be greater than or equal to 1"),
        ([{"port": 1}, {"port": 2}], "spec.ports[0].name: Required value"),
        ([{"port": 1, "name": "a"}, {"port": 2, "name": "a"}], 'spec.ports[1].name: Duplicate value: "a"'),
        (
            [{"port": 1, "name": "a"}, {"port": 1, "name": "b"}],
            'spec.ports[1]: Duplicate value: {"protocol":"TCP","port":1}',
        ),
    ],
)
def test_faulty_ports_are_refused(server: Server, ports: list[Obj], fault: str) -> None:
    assert fault in server.create("", "services", service(ports=ports))[1]


# Workloads


def workload(labels: Obj | None = None, **spec: Any) -> Obj:
    template = {"metadata": {"labels": labels or {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    return {"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template, **spec}}


def test_a_deployment_gets_its_defaults(server: Server) -> None:
    obj, faults = server.create("apps", "deployments", workload())
    assert faults == []
    assert obj["spec"]["replicas"] == 1
    assert obj["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    }
    assert obj["spec"]["template"]["spec"]["restartPolicy"] == "Always"
    assert "enableServiceLinks" not in obj["spec"]["template"]["spec"]


def test_a_daemon_set_gets_its_defaults(server: Server) -> None:
    obj, faults = server.create("apps", "daemonsets", workload())
    assert faults == []
    assert obj["spec"]["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
    }


@pytest.mark.parametrize("plural", ["deployments", "replicasets", "daemonsets"])
def test_selectors_match_their_template_and_stay(server: Server, plural: str) -> None:
    fault = 'spec.template.metadata.labels: Invalid value: {"x":"y"}: `selector` does not match template `labels`'
    assert server.create("apps", plural, workload({"x": "y"}))[1] == [fault]
    old, _ = server.create("apps", plural, workload())
    changed = {"spec": {**old["spec"], "selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}}
    assert server.update("apps", plural, old, changed)[1][0].endswith("field is immutable")


@pytest.mark.parametrize(
    ("plural", "spec", "fault"),
    [
        ("deployments", {"replicas": -1}, "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
        (
            "deployments",
            {"strategy": {"type": "Recreate", "rollingUpdate": {}}},
            "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'",
        ),
        (
            "deployments",
            {"strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": "0%"}}},
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
        ),
        (
            "daemonsets",
            {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "200%"}}},
            'spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: "200%": '
            "must match '^(100|[0-9]{1,2})%$'",
        ),
        (
            "daemonsets",
            {"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}},
            'spec.updateStrategy.rollingUpdate.maxSurge: Unsupported value: 1: supported values: "0", "0%"',
        ),
        (
            "daemonsets",
            {"updateStrategy": {"type": "Sometimes"}},
            'spec.updateStrategy.type: Unsupported value: "Sometimes": supported values: "RollingUpdate", "OnDelete"',
        ),
        ("replicasets", {"selector": {}}, "spec.selector: Invalid value: {}: empty selector is invalid for deployment"),
    ],
)
def test_faulty_workloads_are_refused(server: Server, plural: str, spec: Obj, fault: str) -> None:
    assert fault in server.create("apps", plural, workload(**spec))[1]


# Smaller kinds


def test_namespaces_are_labelled_and_held_by_their_finalizer(server: Server) -> None:
    obj, _ = server.create("", "namespaces", {}, name="team")
    assert obj["metadata"]["labels"] == {"kubernetes.io/metadata.name": "team"}
    assert (obj["spec"], obj["status"]) == ({"finalizers": ["kubernetes"]}, {"phase": "Active"})
    kept, _ = server.update("", "namespaces", obj, {"spec": {"finalizers": []}})
    assert kept["spec"] == {"finalizers": ["kubernetes"]}
    released, _ = server.update("", "namespaces", obj, {"spec": {"finalizers": []}}, "finalize")
    assert released["spec"] == {}


def test_secrets_take_text_and_keep_base64(server: Server) -> None:
    obj, _ = server.create("", "secrets", {"stringData": {"a": "b"}, "data": {"c": "ZA=="}})
    assert obj["data"] == {"a": "Yg==", "c": "ZA=="}
    assert "stringData" not in obj
    assert obj["type"] == "Opaque"


def test_data_that_is_not_base64_is_refused(server: Server) -> None:
    with pytest.raises(ApiError, match="illegal base64 data"):
        server.create("", "secrets", {"data": {"a": "???"}})


def test_immutable_configuration_stays(server: Server) -> None:
    old, _ = server.create("", "configmaps", {"data": {"a": "b"}, "immutable": True})
    assert server.update("", "configmaps", old, {"data": {}})[1] == [
        "data: Forbidden: field is immutable when `immutable` is set"
    ]


def test_a_claim_gets_the_default_class(server: Server) -> None:
    default = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    server.create("storage.k8s.io", "storageclasses", {"provisioner": "p", "metadata": default}, name="local")
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    obj, faults = server.create("", "persistentvolumeclaims", {"spec": dict(spec)})
    assert (obj["spec"]["storageClassName"], obj["status"], faults) == ("local", {"phase": "Pending"}, [])
    explicit, _ = server.create("", "persistentvolumeclaims", {"spec": {**spec, "storageClassName": ""}}, name="y")
    assert explicit["spec"]["storageClassName"] == ""


def test_a_role_binding_keeps_its_role(server: Server) -> None:
    old, faults = server.create(
        "rbac.authorization.k8s.io",
        "rolebindings",
        {"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}]},
    )
    assert faults == []
    assert old["roleRef"]["apiGroup"] == old["subjects"][0]["apiGroup"] == "rbac.authorization.k8s.io"
    changed = {"roleRef": {**old["roleRef"], "name": "other"}}
    assert server.update("rbac.authorization.k8s.io", "rolebindings", old, changed)[1][0].endswith(
        "cannot change roleRef"
    )


def test_a_webhook_gets_its_defaults(server: Server) -> None:
    hook = {
        "name": "a.b.c",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"name": "s", "namespace": "n"}},
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
    }
    obj, faults = server.create("admissionregistration.k8s.io", "mutatingwebhookconfigurations", {"webhooks": [hook]})
    made = obj["webhooks"][0]
    assert faults == []
    assert (made["failurePolicy"], made["timeoutSeconds"], made["matchPolicy"], made["reinvocationPolicy"]) == (
        "Fail",
        10,
        "Equivalent",
        "Never",
    )
    assert made["rules"][0]["scope"] == "*"
    assert made["clientConfig"]["service"]["port"] == 443


def test_a_webhook_with_a_condition_that_cannot_be_asked_is_refused(server: Server) -> None:
    hook = {
        "name": "a.b.c",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://example.com"},
        "matchConditions": [
            {"name": "only-mine", "expression": "request.name == 'mine'"},
            {"name": "half", "expression": "request.name =="},
        ],
    }
    _, faults = server.create("admissionregistration.k8s.io", "validatingwebhookconfigurations", {"webhooks": [hook]})
    assert len(faults) == 1 and faults[0].startswith("webhooks[0].matchConditions[1].expression: Invalid value"), faults


def test_field_selectors_know_their_fields_even_of_nothing(server: Server) -> None:
    assert "spec.nodeName" in server.kind("", "pods").rules.fields({"metadata": {}})
    assert "involvedObject.uid" in server.kind("", "events").rules.fields({"metadata": {}})
    for kind in server.kinds:
        assert all(isinstance(v, str) for v in kind.rules.fields({"metadata": {}}).values())
