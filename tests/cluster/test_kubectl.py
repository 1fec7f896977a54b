"""The real kubectl takes the cluster for Kubernetes: every command that administrators of VMs use.

What needs running pods is in test_workloads.py.
"""

from __future__ import annotations

import base64
import json
import subprocess
import uuid
from collections.abc import Iterator

import pytest
import yaml
from clusters import KUBECTL, Kubectl
from manifests import crd, pod, workload

from waiting import eventually

pytestmark = pytest.mark.thorough("it is Kubernetes that is asked; the answers of its API are compared by others")


def test_api_resources_lists_the_built_in_kinds_with_short_names(kubectl: Kubectl) -> None:
    lines = kubectl("api-resources", "--no-headers").splitlines()
    listed = {line.split()[0]: line.split()[1:] for line in reversed(lines)}  # metrics of pods come after pods
    assert listed["pods"][:3] == ["po", "v1", "true"]
    assert listed["deployments"][0] == "deploy"
    assert listed["customresourcedefinitions"][:2] == ["crd,crds", "apiextensions.k8s.io/v1"]
    for plural in (
        "nodes",
        "leases",
        "poddisruptionbudgets",
        "storageclasses",
        "apiservices",
        "clusterroles",
        "events",
    ):
        assert plural in listed
    names = kubectl("api-resources", "--api-group=apps", "-o", "name", "--verbs=list,watch").split()
    assert {"deployments.apps", "replicasets.apps", "daemonsets.apps"} <= set(names)
    assert "apps/v1" in kubectl("api-versions").split()


def test_explain_knows_kinds_and_fields(kubectl: Kubectl) -> None:
    text = kubectl("explain", "pod.spec.containers.resources")
    assert "VERSION:    v1" in text
    assert "limits" in text
    assert "requests" in text
    assert "terminationGracePeriodSeconds" in kubectl("explain", "pod.spec", "--recursive")
    assert "GROUP:      apps" in kubectl("explain", "deployment")
    assert 'field "nonsense" does not exist' in kubectl.fails("explain", "pod.spec.nonsense")


def test_create_get_and_delete_in_every_output(kubectl: Kubectl) -> None:
    assert kubectl("create", "configmap", "a", "--from-literal=k=v") == "configmap/a created\n"
    assert kubectl("get", "configmap", "a", "-o", "name") == "configmap/a\n"
    assert kubectl("get", "cm", "a", "-o", "jsonpath={.data.k}") == "v"
    assert yaml.safe_load(kubectl("get", "cm", "a", "-o", "yaml"))["data"] == {"k": "v"}
    assert kubectl.json("get", "cm", "a")["metadata"]["namespace"] == kubectl.namespace
    assert kubectl("get", "cm", "a", "-o", "go-template={{.data.k}}") == "v"
    assert kubectl("get", "cm", "a", "-o", "custom-columns=N:.metadata.name,K:.data.k", "--no-headers").split() == [
        "a",
        "v",
    ]
    header, row = kubectl("get", "cm", "a").splitlines()
    assert header.split() == ["NAME", "DATA", "AGE"]
    assert row.split()[:2] == ["a", "1"]
    assert kubectl("delete", "cm", "a") == f'configmap "a" deleted from {kubectl.namespace} namespace\n'
    assert kubectl.run("get", "cm", "a", "--ignore-not-found").stdout == ""


def test_lists_follow_selectors(kubectl: Kubectl) -> None:
    for name, tier in (("a", "web"), ("b", "web"), ("c", "db")):
        kubectl("create", "configmap", name)
        kubectl("label", "configmap", name, f"tier={tier}")

    def names(*args: str) -> list[str]:
        return [n for n in kubectl("get", "cm", "-o", "name", *args).split() if "kube-root-ca" not in n]

    assert names("-l", "tier=web") == ["configmap/a", "configmap/b"]
    assert names("-l", "tier in (db,x)") == ["configmap/c"]
    assert names("-l", "tier!=web") == ["configmap/c"]
    assert names("--field-selector", "metadata.name=b") == ["configmap/b"]
    assert names("--chunk-size=1") == ["configmap/a", "configmap/b", "configmap/c"]
    assert "TIER" in kubectl("get", "cm", "-L", "tier").splitlines()[0]
    assert names("--sort-by=.metadata.name")[0] == "configmap/a"


def test_labels_and_annotations(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "a")
    assert kubectl("label", "cm", "a", "x=1") == "configmap/a labeled\n"
    assert "already has a value" in kubectl.fails("label", "cm", "a", "x=2")
    kubectl("label", "cm", "a", "x=2", "--overwrite")
    kubectl("annotate", "cm", "a", "note=some text")
    metadata = kubectl.json("get", "cm", "a")["metadata"]
    assert metadata["labels"] == {"x": "2"}
    assert metadata["annotations"]["note"] == "some text"
    kubectl("label", "cm", "a", "x-")
    assert "labels" not in kubectl.json("get", "cm", "a")["metadata"]


def test_patches_of_each_kind(kubectl: Kubectl) -> None:
    kubectl.apply(workload("Deployment", "d", replicas=0))
    kubectl(
        "patch",
        "deploy",
        "d",
        "-p",
        '{"spec":{"template":{"spec":{"containers":[{"name":"main","env":[{"name":"A","value":"1"}]}]}}}}',
    )
    kubectl(
        "patch",
        "deploy",
        "d",
        "-p",
        '{"spec":{"template":{"spec":{"containers":[{"name":"main","env":[{"name":"B","value":"2"}]}]}}}}',
    )
    container = kubectl.json("get", "deploy", "d")["spec"]["template"]["spec"]["containers"][0]
    assert sorted(e["name"] for e in container["env"]) == ["A", "B"]
    assert container["command"]
    kubectl("patch", "deploy", "d", "--type=merge", "-p", '{"metadata":{"labels":{"x":"y"}}}')
    kubectl("patch", "deploy", "d", "--type=json", "-p", '[{"op":"replace","path":"/metadata/labels/x","value":"z"}]')
    assert kubectl.json("get", "deploy", "d")["metadata"]["labels"]["x"] == "z"
    assert "patched (no change)" in kubectl(
        "patch", "deploy", "d", "--type=merge", "-p", '{"metadata":{"labels":{"x":"z"}}}'
    )


def test_apply_creates_configures_prunes_fields_and_leaves_others_alone(kubectl: Kubectl) -> None:
    manifest = workload("Deployment", "d", replicas=0)
    assert kubectl.apply(manifest) == "deployment.apps/d created\n"
    assert kubectl.apply(manifest) == "deployment.apps/d unchanged\n"
    kubectl("annotate", "deploy", "d", "other=kept")
    manifest["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "A", "value": "1"}]
    assert kubectl.apply(manifest) == "deployment.apps/d configured\n"
    del manifest["spec"]["template"]["spec"]["containers"][0]["env"]
    kubectl.apply(manifest)
    now = kubectl.json("get", "deploy", "d")
    assert "env" not in now["spec"]["template"]["spec"]["containers"][0]
    assert now["metadata"]["annotations"]["other"] == "kept"
    diff = kubectl.run("diff", "-f", "-", stdin=json.dumps({**manifest, "spec": {**manifest["spec"], "replicas": 1}}))
    assert diff.returncode == 1, diff.stderr
    assert "+  replicas: 1" in diff.stdout


def test_apply_creates_nothing_of_a_list_with_a_bad_item(kubectl: Kubectl) -> None:
    def config(name: str, **more: object) -> dict[str, object]:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"x": "1"}, **more}

    def listed(*items: dict[str, object]) -> str:
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})

    error = kubectl.fails("apply", "-f", "-", stdin=listed(config("a"), config("b", dta={})))
    assert 'unknown field "dta"' in error
    assert kubectl("apply", "-f", "-", stdin=listed(config("a"), config("b"))) == (
        "configmap/a created\nconfigmap/b created\n"
    )


def test_apply_takes_a_list_of_many_forms(kubectl: Kubectl) -> None:
    ports = [{"name": "a", "port": 80, "targetPort": 8080}, {"name": "b", "port": 81, "targetPort": "http"}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": ports}}
    deployment = workload("Deployment", "d", replicas=0)
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {"requests": {"cpu": 1, "memory": "1Mi"}}
    container["readinessProbe"] = {"httpGet": {"port": "http"}}
    schema = {"type": "object", "properties": {"a": {"type": "integer", "default": 1, "enum": [1, 2]}},
              "x-kubernetes-preserve-unknown-fields": True}  # fmt: skip
    group = f"{kubectl.namespace}.example.com"
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    items = {"apiVersion": "v1", "kind": "List", "items": [service, deployment, definition]}
    assert kubectl("apply", "-f", "-", stdin=json.dumps(items)).count(" created\n") == 3
    kubectl("delete", "crd", f"things.{group}")


def test_apply_refuses_unknown_fields_with_their_names(kubectl: Kubectl) -> None:
    manifest = workload("Deployment", "d", replicas=0)
    manifest["spec"]["replicsa"] = 3
    error = kubectl.fails("apply", "-f", "-", stdin=json.dumps(manifest))
    assert 'unknown field "spec.replicsa"' in error
    warned = kubectl.run("apply", "--validate=warn", "-f", "-", stdin=json.dumps(manifest))
    assert warned.returncode == 0, warned.stderr
    assert 'Warning: unknown field "spec.replicsa"' in warned.stderr


def test_an_invalid_object_is_refused_with_every_fault(kubectl: Kubectl) -> None:
    bad = pod("Bad_Name")
    bad["spec"]["containers"].append({"name": "main", "image": ""})
    error = kubectl.fails("create", "-f", "-", stdin=json.dumps(bad))
    assert 'The Pod "Bad_Name" is invalid:' in error
    assert "metadata.name: Invalid value" in error
    assert "spec.containers[1].name: Duplicate value" in error
    assert "spec.containers[1].image: Required value" in error


def test_edit_saves_what_the_editor_wrote(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "a", "--from-literal=k=v")
    kubectl("edit", "cm", "a", env={"KUBE_EDITOR": "sed -i s/k:\\ v/k:\\ w/"})
    assert kubectl("get", "cm", "a", "-o", "jsonpath={.data.k}") == "w"


def test_dry_run_changes_nothing(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "a", "--dry-run=server")
    assert "NotFound" in kubectl.fails("get", "cm", "a")
    kubectl("create", "configmap", "a", "--from-literal=k=v")
    kubectl("patch", "cm", "a", "--dry-run=server", "--type=merge", "-p", '{"data":{"k":"w"}}')
    kubectl("delete", "cm", "a", "--dry-run=server")
    assert kubectl("get", "cm", "a", "-o", "jsonpath={.data.k}") == "v"


def test_replace_and_generate_name(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "a", "--from-literal=k=v")
    obj = kubectl.json("get", "cm", "a")
    obj["data"] = {"k": "w"}
    assert kubectl("replace", "-f", "-", stdin=json.dumps(obj)) == "configmap/a replaced\n"
    assert "the object has been modified" in kubectl.fails("replace", "-f", "-", stdin=json.dumps(obj))
    named = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "gen-"}}
    made = {kubectl("create", "-f", "-", "-o", "name", stdin=json.dumps(named)).strip() for _ in range(3)}
    assert len(made) == 3
    assert all(n.startswith("configmap/gen-") for n in made)


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
def test_delete_with_each_cascade(kubectl: Kubectl, cascade: str) -> None:
    kubectl("create", "configmap", "owner")
    uid = kubectl.json("get", "cm", "owner")["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid, "blockOwnerDeletion": True}
    owned = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned", "ownerReferences": [reference]}}
    kubectl("create", "-f", "-", stdin=json.dumps(owned))
    kubectl("delete", "cm", "owner", f"--cascade={cascade}")
    if cascade == "orphan":
        eventually(lambda: "ownerReferences" not in kubectl.json("get", "cm", "owned")["metadata"])
    else:
        eventually(lambda: kubectl.run("get", "cm", "owned").returncode == 1)


def test_a_finalizer_holds_an_object_until_it_is_removed(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "a")
    kubectl("patch", "cm", "a", "--type=merge", "-p", '{"metadata":{"finalizers":["example.com/hold"]}}')
    kubectl("delete", "cm", "a", "--wait=false")
    assert kubectl.json("get", "cm", "a")["metadata"]["deletionTimestamp"]
    assert kubectl.run("wait", "cm/a", "--for=delete", "--timeout=1s").returncode == 1
    kubectl("patch", "cm", "a", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    kubectl("wait", "cm/a", "--for=delete", "--timeout=30s")


def test_wait_for_a_field(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "a", "--from-literal=k=v")
    waiting = kubectl.start("wait", "cm/a", "--for=jsonpath={.data.k}=w", "--timeout=60s")
    kubectl("patch", "cm", "a", "--type=merge", "-p", '{"data":{"k":"w"}}')
    assert waiting.wait(60) == 0


def test_watch_shows_changes_as_they_come(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "a")
    watch = ("get", "cm", "-w", "--output-watch-events", "-l", "seen=yes", "--no-headers")
    with kubectl.start(*watch) as watching:
        assert watching.stdout is not None
        try:
            # Labels move an object into and out of a selection: the watch must say ADDED and DELETED then.
            for change, event in (("seen=yes", "ADDED"), ("x=y", "MODIFIED"), ("seen-", "DELETED")):
                kubectl("label", "cm", "a", change)
                assert watching.stdout.readline().split()[:2] == [event, "a"]
        finally:
            watching.terminate()


@pytest.mark.timeout(240)  # a cluster that removes many at the same time takes them one after the other
def test_namespaces_take_their_content_with_them(kubectl: Kubectl) -> None:
    name = f"{kubectl.namespace}-x"
    kubectl("create", "namespace", name)
    inside = Kubectl(kubectl.cluster, name)
    inside("create", "configmap", "a")
    inside("create", "secret", "generic", "s", "--from-literal=a=b")
    assert inside.json("get", "secret", "s")["data"] == {"a": "Yg=="}
    kubectl("delete", "namespace", name, "--timeout=180s")
    assert "NotFound" in kubectl.fails("get", "namespace", name)
    assert f'namespaces "{name}" not found' in inside.fails("create", "configmap", "b")


def test_auth_can_i_follows_roles(kubectl: Kubectl) -> None:
    account = f"system:serviceaccount:{kubectl.namespace}:robot"
    kubectl("create", "serviceaccount", "robot")
    kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods,pods/log")

    def can(*args: str) -> bool:
        return kubectl.run("auth", "can-i", *args, "--as", account).stdout.startswith("yes")

    assert kubectl("auth", "can-i", "delete", "nodes").strip() == "yes"
    assert not can("list", "pods")
    kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={kubectl.namespace}:robot")
    assert can("list", "pods")
    assert can("get", "pods", "--subresource=log")
    assert not can("delete", "pods")
    assert not can("list", "pods", "-n", "kube-system")
    assert "pods/log" in kubectl("auth", "can-i", "--list", "--as", account)
    error = kubectl.fails("get", "secrets", "--as", account)
    assert (
        f'secrets is forbidden: User "{account}" cannot list resource "secrets" in API group "" '
        f'in the namespace "{kubectl.namespace}"' in error
    )
    assert kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.groups}").find("system:masters") > 0


def test_a_service_account_token_opens_what_its_role_allows(kubectl: Kubectl) -> None:
    kubectl("create", "serviceaccount", "robot")
    kubectl("create", "rolebinding", "view", "--clusterrole=view", f"--serviceaccount={kubectl.namespace}:robot")
    token = kubectl("create", "token", "robot", "--duration=10m").strip()
    server = kubectl("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")

    def with_token(*args: str, token: str = token) -> subprocess.CompletedProcess[str]:
        # An empty kubeconfig: the token alone must do, without the administrator's certificate.
        command = [
            KUBECTL,
            "--kubeconfig=/dev/null",
            f"--server={server}",
            "--insecure-skip-tls-verify",
            f"--token={token}",
        ]
        return subprocess.run([*command, "-n", kubectl.namespace, *args], capture_output=True, text=True, timeout=60)

    assert with_token("get", "configmaps").returncode == 0
    assert "forbidden" in with_token("create", "configmap", "x").stderr
    assert "forbidden" in with_token("get", "secrets").stderr
    assert "Unauthorized" in with_token("get", "configmaps", token=token[:-4] + "abcd").stderr or "logged in" in (
        with_token("get", "configmaps", token=token[:-4] + "abcd").stderr
    )


def test_events_are_listed_and_described(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "a")
    obj = kubectl.json("get", "cm", "a")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "a.1"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "a",
            "namespace": kubectl.namespace,
            "uid": obj["metadata"]["uid"],
        },
        "reason": "Noted",
        "message": "something happened",
        "type": "Normal",
        "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "source": {"component": "test"},
    }
    kubectl("create", "-f", "-", stdin=json.dumps(event))
    assert "something happened" in kubectl("events", "--for", "configmap/a")
    assert "Noted" in kubectl("get", "events")
    assert "something happened" in kubectl("describe", "cm", "a")


def test_describe_reads_every_kind_that_administrators_look_at(kubectl: Kubectl) -> None:
    kubectl.apply(workload("Deployment", "d", replicas=0))
    kubectl("create", "service", "clusterip", "s", "--tcp=80:8080")
    assert "Replicas:" in kubectl("describe", "deploy", "d")
    assert "TargetPort:" in kubectl("describe", "service", "s")
    assert "Status:       Active" in kubectl("describe", "namespace", kubectl.namespace)
    assert kubectl("describe", "clusterrole", "view")
    kubectl("describe", "storageclass")  # a cluster may have none
    assert kubectl("get", "all").count("d") > 0


@pytest.fixture
def gadgets(kubectl: Kubectl) -> Iterator[str]:
    """A custom kind of its own group; the value is the group."""
    group = f"g{uuid.uuid4().hex[:6]}.example.com"
    kubectl("create", "-f", "-", stdin=json.dumps(crd(group)))
    kubectl("wait", f"crd/gadgets.{group}", "--for=condition=Established", "--timeout=30s")
    yield group
    kubectl("delete", "crd", f"gadgets.{group}", "--timeout=60s")


def gadget(group: str, name: str = "a", **spec: object) -> str:
    return json.dumps({"apiVersion": f"{group}/v1", "kind": "Gadget", "metadata": {"name": name}, "spec": spec})


def test_custom_kinds_are_validated_pruned_defaulted_and_printed(kubectl: Kubectl, gadgets: str) -> None:
    resource = f"gadgets.{gadgets}"
    kubectl("create", "-f", "-", stdin=gadget(gadgets, size=3, anything={"x": {"y": 1}}))
    spec = kubectl.json("get", resource, "a")["spec"]
    assert spec == {"size": 3, "colour": "green", "anything": {"x": {"y": 1}}}
    assert kubectl("get", resource).splitlines()[0].split() == ["NAME", "SIZE"]
    assert kubectl("get", resource, "-o", "wide").splitlines()[0].split() == ["NAME", "SIZE", "COLOUR"]
    for bad, says in (
        (gadget(gadgets, "b", size=11), "should be less than or equal to 10"),
        (gadget(gadgets, "b", size="x"), "must be of type integer"),
        (gadget(gadgets, "b"), "spec.size: Required value"),
        (gadget(gadgets, "b", size=1, colour="blue"), 'Unsupported value: "blue": supported values: "red", "green"'),
        (gadget(gadgets, "b", size=1, shape="round"), 'unknown field "spec.shape"'),
    ):
        assert says in kubectl.fails("create", "-f", "-", stdin=bad)
    assert "How big it is." in kubectl("explain", f"{resource}.spec")
    assert "A gadget of the tests." in kubectl("explain", resource)


def test_custom_kinds_have_generation_status_and_scale(kubectl: Kubectl, gadgets: str) -> None:
    resource = f"gadgets.{gadgets}"
    kubectl("create", "-f", "-", stdin=gadget(gadgets, size=3, replicas=1))
    kubectl("patch", resource, "a", "--type=merge", "-p", '{"status":{"phase":"Lost"}}')
    assert "status" not in kubectl.json("get", resource, "a")
    kubectl(
        "patch",
        resource,
        "a",
        "--subresource=status",
        "--type=merge",
        "-p",
        '{"status":{"phase":"Kept"},"spec":{"size":9}}',
    )
    obj = kubectl.json("get", resource, "a")
    assert (obj["status"]["phase"], obj["spec"]["size"], obj["metadata"]["generation"]) == ("Kept", 3, 1)
    kubectl("scale", resource, "a", "--replicas=4")
    obj = kubectl.json("get", resource, "a")
    assert (obj["spec"]["replicas"], obj["metadata"]["generation"]) == (4, 2)


def test_deleting_a_custom_kind_deletes_its_objects(kubectl: Kubectl) -> None:
    group = f"g{uuid.uuid4().hex[:6]}.example.com"
    kubectl("create", "-f", "-", stdin=json.dumps(crd(group)))
    kubectl("wait", f"crd/gadgets.{group}", "--for=condition=Established", "--timeout=30s")
    kubectl("create", "-f", "-", stdin=gadget(group, size=1))
    kubectl("delete", "crd", f"gadgets.{group}", "--timeout=60s")
    assert "the server doesn't have a resource type" in kubectl.fails("get", f"gadgets.{group}")
    kubectl("create", "-f", "-", stdin=json.dumps(crd(group)))
    kubectl("wait", f"crd/gadgets.{group}", "--for=condition=Established", "--timeout=30s")
    assert kubectl("get", f"gadgets.{group}", "-A", "--no-headers", "--ignore-not-found") == ""
    kubectl("delete", "crd", f"gadgets.{group}")


def test_server_version_and_health(kubectl: Kubectl) -> None:
    version = kubectl.json("version")
    assert int(version["serverVersion"]["major"]) == 1
    assert "Warning" not in kubectl.run("version").stderr  # no complaint about the skew to this client
    assert kubectl("get", "--raw", "/readyz") == "ok"
    assert kubectl("cluster-info")


def test_a_secret_for_a_service_account_gets_a_token_and_goes_with_it(kubectl: Kubectl) -> None:
    kubectl("create", "serviceaccount", "robot")
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "robot", "annotations": {"kubernetes.io/service-account.name": "robot"}},
            "type": "kubernetes.io/service-account-token",
        }
    )
    data = eventually(lambda: kubectl.json("get", "secret", "robot").get("data"))
    assert sorted(data) == ["ca.crt", "namespace", "token"]
    asked = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": base64.b64decode(data["token"]).decode()},
    }
    answer = json.loads(kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(asked)))
    assert answer["status"]["user"]["username"] == f"system:serviceaccount:{kubectl.namespace}:robot"
    kubectl("delete", "serviceaccount", "robot")
    eventually(lambda: "NotFound" in kubectl.fails("get", "secret", "robot"))
