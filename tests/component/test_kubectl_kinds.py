"""The real kubectl against a server with nothing but kinds: what it can list, explain, print and check."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from virtfleet.local.apiserver.kinds import builtin, left_out
from virtfleet.local.apiserver.kinds.crds import CustomKinds
from virtfleet.local.apiserver.kinds.registry import Kinds
from virtfleet.local.apiserver.objects.operations import Call, Operations
from virtfleet.local.apiserver.objects.store import Store
from virtfleet.local.apiserver.rights.access import MASTER, User
from virtfleet.local.apiserver.serving.discovery import Discovery
from virtfleet.local.apiserver.serving.http import Server
from virtfleet.local.apiserver.serving.openapi import OpenApi

KUBECTL = Path(sys.executable).parent / "kubectl"
CRONTABS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: crontabs.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: crontabs, kind: CronTab, shortNames: [ct], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns:
    - {name: Spec, type: string, jsonPath: .spec.cronSpec}
    - {name: Ready, type: string, jsonPath: '.status.conditions[?(@.type=="Ready")].status', priority: 1}
    schema:
      openAPIV3Schema:
        type: object
        description: Work to be done again and again.
        properties:
          spec:
            type: object
            required: [cronSpec]
            properties:
              cronSpec: {type: string, description: When it is done.}
              replicas: {type: integer, minimum: 1, default: 1}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""


class Kubectl:
    def __init__(self, port: int, home: Path) -> None:
        self._command = [
            str(KUBECTL),
            f"--server=http://127.0.0.1:{port}",
            f"--cache-dir={home}",
            "--request-timeout=20",
        ]

    async def run(self, *args: str, stdin: str = "") -> tuple[int, str]:
        """Exit code, and what it printed."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"HOME": "/nonexistent", "KUBECONFIG": "/dev/null", "PATH": os.defpath},
        )
        output, _ = await asyncio.wait_for(process.communicate(stdin.encode()), 60)
        assert process.returncode is not None
        return process.returncode, output.decode()

    async def __call__(self, *args: str, stdin: str = "") -> str:
        code, output = await self.run(*args, stdin=stdin)
        assert code == 0, output
        return output


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    store = Store(tmp_path / "store")
    kinds = Kinds()
    builtin.register(kinds, store)
    operations = Operations(store, kinds)
    custom = CustomKinds(kinds, operations)
    custom.load()

    async def everybody(request: web.Request) -> User:
        return MASTER

    server = Server(operations, kinds, everybody, lambda attributes: True)
    discovery, openapi = Discovery(kinds), OpenApi(kinds)
    server.documents = lambda path: discovery.handler(path) or openapi.handler(path)
    namespaces = kinds.find("", "v1", "namespaces")
    assert namespaces
    await operations.create(namespaces, "", {"metadata": {"name": "default"}}, Call(MASTER))
    (port,) = await server.start([("127.0.0.1", 0)])
    try:
        yield Kubectl(port, tmp_path / "cache")
    finally:
        await server.stop()
        await store.close()


async def test_api_resources_lists_names_groups_and_categories(kubectl: Kubectl) -> None:
    lines = {line.split()[0]: line.split() for line in (await kubectl("api-resources", "-o", "wide")).splitlines()}
    assert lines["pods"][1:5] == ["po", "v1", "true", "Pod"]
    assert lines["deployments"][1:5] == ["deploy", "apps/v1", "true", "Deployment"]
    assert lines["deployments"][-1] == "all"
    assert lines["nodes"][3] == "false"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (["pod"], ["KIND:       Pod", "A group of containers that run together on one node.", "spec\t<PodSpec>"]),
        (["pod.spec.containers"], ["<[]Container>", "imagePullPolicy", "enum: Always, IfNotPresent, Never"]),
        (["deployment.spec", "--recursive"], ["matchLabels\t<map[string]string>", "maxSurge\t<IntOrString>"]),
        (["svc.spec.clusterIP"], ["FIELD: clusterIP <string>", "None for a headless service"]),
    ],
)
async def test_explain_says_what_fields_are(kubectl: Kubectl, what: list[str], words: list[str]) -> None:
    said = await kubectl("explain", *what)
    for word in words:
        assert word in said


POD = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}"
LEFT_OUT_COMMANDS = {
    "nodes/proxy": "get --raw /api/v1/nodes/n/proxy/stats",
    "pods/proxy": "get --raw /api/v1/namespaces/default/pods/a/proxy/",
    "services/proxy": "get --raw /api/v1/namespaces/default/services/s/proxy/",
    "horizontalpodautoscalers.autoscaling": "autoscale deployment web --max=3 --cpu=80%",
    "cronjobs.batch": "create cronjob j --image=i --schedule=*",
}


@pytest.mark.parametrize("what", LEFT_OUT_COMMANDS)
async def test_kubectl_tells_what_is_left_out(kubectl: Kubectl, what: str) -> None:
    await kubectl("create", "-f", "-", stdin=POD)
    await kubectl("create", "deployment", "web", "--image=i")
    pod = {"status": {"phase": "Running", "containerStatuses": []}}
    await kubectl("patch", "pod", "a", "--subresource=status", "--type=merge", "-p", json.dumps(pod))
    code, said = await kubectl.run(*LEFT_OUT_COMMANDS[what].split())
    assert code == 1 and "panic" not in said, said
    assert f"the local cluster does not serve {what}: " in said


@pytest.mark.slow
async def test_every_resource_of_kubernetes_is_served_or_left_out_with_a_word(
    kubectl: Kubectl,
) -> None:
    standard = json.loads((Path(__file__).parent / "kubernetes_resources.json").read_text())
    page = (Path(__file__).parents[2] / "docs/local-cluster.md").read_text()
    missing: set[tuple[str, str, str]] = set()
    for version, resources in standard.items():
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        code, listed = await kubectl.run("get", "--raw", root)
        served = {entry["name"] for entry in json.loads(listed)["resources"]} if code == 0 else set()
        for plural, _, subresource in (each.partition("/") for each in resources if each not in served):
            whole = "/".join(filter(None, (plural, subresource)))
            refused = left_out.refusal(version.rpartition("/")[0], plural, subresource)
            assert refused and "the local cluster does not serve" in refused.message, f"{version} {whole}"
            if plural not in served or f"`{whole}`" not in page:
                assert f"`{plural}`" in page, f"docs/local-cluster.md does not say that {version} {whole} is left out"
            missing.add((version.rpartition("/")[0], plural, subresource))
            if not subresource:
                code, said = await kubectl.run("get", "--raw", f"{root}/{plural}")
                if left_out.empty(version.rpartition("/")[0], "v1", plural, "list"):
                    assert code == 0 and json.loads(said)["items"] == []
                else:
                    assert code == 1 and f"the local cluster does not serve {plural}" in said
    named = {(group, *name.partition("/")[::2]) for group, names in left_out.table().items() for name in names}
    assert named <= missing, "what is served is not left out"


@pytest.mark.slow
async def test_a_custom_kind_is_listed_explained_and_printed(kubectl: Kubectl) -> None:
    assert "created" in await kubectl("apply", "-f", "-", stdin=CRONTABS)
    assert "When it is done." in await kubectl("explain", "crontab.spec.cronSpec")
    tab = '{"apiVersion": "example.com/v1", "kind": "CronTab", "metadata": {"name": "a"}, "spec": {"cronSpec": "* *"}}'
    await kubectl("create", "-f", "-", stdin=tab)
    assert (await kubectl("get", "ct", "-o", "wide")).split() == ["NAME", "SPEC", "READY", "a", "*", "*"]
    assert "crontab.example.com/a" in await kubectl("get", "all")
    assert await kubectl("get", "ct", "a", "-o", "jsonpath={.spec.replicas}") == "1"


async def test_applying_the_same_again_changes_nothing(kubectl: Kubectl) -> None:
    deployment = await kubectl("create", "deployment", "web", "--image=i:1", "--dry-run=client", "-o", "yaml")
    assert "deployment.apps/web created" in await kubectl("apply", "-f", "-", stdin=deployment)
    assert "deployment.apps/web unchanged" in await kubectl("apply", "-f", "-", stdin=deployment)
    assert "configured" in await kubectl("apply", "-f", "-", stdin=deployment.replace("i:1", "i:2"))
    assert await kubectl("get", "deploy", "web", "-o", "jsonpath={..image}") == "i:2"


async def test_lists_are_applied_and_their_items_checked(kubectl: Kubectl) -> None:
    def items(more: str) -> str:
        item = f'{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {{"name": "a"}}{more}}}'
        return f'{{"apiVersion": "v1", "kind": "List", "items": [{item}]}}'

    assert "configmap/a created" in await kubectl("apply", "-f", "-", stdin=items(""))
    code, said = await kubectl.run("apply", "-f", "-", stdin=items(', "x": 1'))
    assert code == 1
    assert 'unknown field "x"' in said


async def test_unknown_fields_are_refused_by_the_server(kubectl: Kubectl) -> None:
    code, said = await kubectl.run(
        "create", "-f", "-", stdin='{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"x":1}'
    )
    assert code == 1
    assert (
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "x"' in said
    )


async def test_faults_are_listed_as_kubernetes_lists_them(kubectl: Kubectl) -> None:
    spec = '{"restartPolicy": "Maybe", "containers": [{"name": "c"}]}'
    pod = f'{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "a"}}, "spec": {spec}}}'
    code, said = await kubectl.run("create", "-f", "-", stdin=pod)
    assert code == 1
    assert said.splitlines() == [
        'The Pod "a" is invalid: ',
        "* spec.containers[0].image: Required value",
        '* spec.restartPolicy: Unsupported value: "Maybe": supported values: "Always", "OnFailure", "Never"',
    ]


@pytest.mark.slow
async def test_people_see_pods_services_and_deployments_as_usual(kubectl: Kubectl) -> None:
    await kubectl("create", "deployment", "web", "--image=i:1", "--replicas=2")
    await kubectl("expose", "deployment", "web", "--port=80")
    await kubectl("run", "one", "--image=busybox")
    heads = [line for line in (await kubectl("get", "deploy,svc,pods", "-o", "wide")).splitlines() if "NAME" in line]
    assert [head.split() for head in heads] == [
        ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE", "CONTAINERS", "IMAGES", "SELECTOR"],
        ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE", "SELECTOR"],
        ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE", "NOMINATED", "NODE", "READINESS", "GATES"],
    ]
    assert "QoS Class:" in await kubectl("describe", "pod", "one")
    assert "10.96.0." in await kubectl("describe", "svc", "web")
    assert (await kubectl("scale", "deployment", "web", "--replicas=5")).strip() == "deployment.apps/web scaled"
    assert (await kubectl("get", "deploy", "web", "-o", "jsonpath={.spec.replicas}")) == "5"
