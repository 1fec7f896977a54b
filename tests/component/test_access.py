"""Who gets in, as whom, and what they may do, on real TLS connections."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from access_plane import LIFESPAN, Plane, plane, until

from virtfleet.kube.authority import Authority, Lifespan, Profile
from virtfleet.kube.certificates import Credential
from virtfleet.kube.resource import NODES, PODS, SECRETS, SERVICE_ACCOUNTS, Obj

PODS_PATH = "/api/v1/namespaces/default/pods"
READ_PODS = {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Plane]:
    async with plane(tmp_path) as made:
        yield made


def account(name: str, namespace: str = "default") -> Obj:
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


async def whoami(server: Plane, credential: Credential) -> tuple[int, Any]:
    session = await server.session(credential)
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    async with session.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json=review) as answer:
        return answer.status, await answer.json()


# --- certificates ----------------------------------------------------------------------------------------------------


async def test_without_credentials_only_health_and_version_are_open(server: Plane) -> None:
    for path in ("/livez", "/readyz", "/healthz", "/version"):
        assert (await server.call("GET", path, anonymous=True)).status == 200
    for path in (PODS_PATH, "/api", "/apis", "/openapi/v3", "/metrics"):
        answer = await server.call("GET", path, anonymous=True)
        assert (answer.status, answer.body["reason"]) == (401, "Unauthorized")


async def test_a_certificate_names_its_user_and_groups(server: Plane) -> None:
    status, body = await whoami(server, server.pki.node("n1"))
    assert status == 201
    assert body["status"]["userInfo"] == {
        "username": "system:node:n1",
        "groups": ["system:nodes", "system:authenticated"],
    }


async def test_an_expired_certificate_is_unauthorized_even_on_open_paths(server: Plane) -> None:
    authority, past = server.pki.authority, datetime.now(UTC) - timedelta(hours=3)
    lifespan = Lifespan(timedelta(hours=1), timedelta(minutes=1))
    expired = authority.issue(Profile("old", lifespan, organizations=("system:masters",), client=True), past)
    session = await server.session(expired)
    for path in ("/livez", PODS_PATH):
        async with session.get(path) as answer:
            assert answer.status == 401
            assert (await answer.json())["reason"] == "Unauthorized"


async def test_a_certificate_of_another_authority_or_for_serving_gets_no_connection(server: Plane) -> None:
    stranger = Authority.create("other", LIFESPAN).issue(
        Profile("admin", LIFESPAN, organizations=("system:masters",), client=True)
    )
    front = server.pki.front_proxy  # good for aggregated servers, of no use here
    for credential in (stranger, server.pki.serving, front):
        session = await server.session(credential)
        with pytest.raises(aiohttp.ClientError):
            await session.get("/livez")


async def test_old_tls_versions_are_refused(server: Plane) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=server.pki.authority.bundle.decode())
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1_1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with aiohttp.ClientSession(server.url) as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get("/livez", ssl=context)


async def test_identity_headers_of_a_client_mean_nothing(server: Plane) -> None:
    forged = {"X_Remote_User": "admin", "X_Remote_Group": "system:masters"}
    assert (await server.call("GET", PODS_PATH, anonymous=True, **forged)).status == 401
    token = await server.token("default")
    assert (await server.call("GET", PODS_PATH, token=token, **forged)).status == 403


# --- tokens ----------------------------------------------------------------------------------------------------------


async def test_a_service_account_may_do_what_its_roles_say_from_the_moment_they_exist(server: Plane) -> None:
    token = await server.token("default")
    refused = await server.call("GET", PODS_PATH, token=token)
    assert refused.status == 403
    assert refused.body["message"] == (
        'pods is forbidden: User "system:serviceaccount:default:default" cannot list resource "pods" '
        'in API group "" in the namespace "default"'
    )
    await server.grant(account("default"), READ_PODS)
    assert (await server.call("GET", PODS_PATH, token=token)).status == 200
    assert (await server.call("GET", "/api/v1/namespaces/default/secrets", token=token)).status == 403


@pytest.mark.parametrize("token", ["nonsense", "a.b.c", "eyJhbGciOiJub25lIn0.e30.", "x" * 5000])
async def test_what_is_not_a_token_is_unauthorized_even_on_open_paths(server: Plane, token: str) -> None:
    answer = await server.call("GET", "/livez", token=token)
    assert (answer.status, answer.body["reason"]) == (401, "Unauthorized")


async def test_an_expired_token_is_unauthorized(server: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    token = await server.token("default", expirationSeconds=600)
    assert (await server.call("GET", "/version", token=token)).status == 200
    real = time.time()
    monkeypatch.setattr("virtfleet.local.apiserver.rights.tokens.time.time", lambda: real + 601)
    assert (await server.call("GET", "/version", token=token)).status == 401


async def test_a_token_for_another_audience_is_unauthorized_here(server: Plane) -> None:
    token = await server.token("default", audiences=["vault"])
    assert (await server.call("GET", "/version", token=token)).status == 401
    review = {"spec": {"token": token, "audiences": ["vault", "other"]}}
    answer = await server.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
    assert answer.body["status"]["authenticated"] is True
    assert answer.body["status"]["audiences"] == ["vault"]


async def test_a_token_of_a_deleted_account_is_unauthorized_even_if_the_name_comes_back(server: Plane) -> None:
    meta = {"metadata": {"name": "builder"}}
    await server.api.create(SERVICE_ACCOUNTS, meta, "default")
    token = await server.token("builder")
    await server.api.delete(SERVICE_ACCOUNTS, "builder", "default")
    assert (await server.call("GET", "/version", token=token)).status == 401
    await server.api.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
    assert (await server.call("GET", "/version", token=token)).status == 401


async def pod(server: Plane, name: str) -> Obj:
    spec = {"containers": [{"name": "c", "image": "host"}], "nodeName": "n1"}
    return await server.api.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")


async def test_a_token_bound_to_a_pod_says_where_it_runs_and_dies_with_it(server: Plane) -> None:
    node = await server.api.create(NODES, {"metadata": {"name": "n1"}})
    bound = await pod(server, "p1")
    token = await server.token("default", boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p1"})
    answer = await server.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, token=token)
    info = answer.body["status"]["userInfo"]
    assert info["username"] == "system:serviceaccount:default:default"
    assert info["groups"] == ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]
    assert info["extra"]["authentication.kubernetes.io/pod-name"] == ["p1"]
    assert info["extra"]["authentication.kubernetes.io/pod-uid"] == [bound["metadata"]["uid"]]
    assert info["extra"]["authentication.kubernetes.io/node-name"] == ["n1"]
    assert info["extra"]["authentication.kubernetes.io/node-uid"] == [node["metadata"]["uid"]]

    await server.api.delete(PODS, "p1", "default", grace=0)
    assert (await server.call("GET", "/version", token=token)).status == 401


async def test_a_token_bound_to_a_secret_dies_with_it(server: Plane) -> None:
    await server.api.create(SECRETS, {"metadata": {"name": "s"}}, "default")
    token = await server.token("default", boundObjectRef={"kind": "Secret", "apiVersion": "v1", "name": "s"})
    assert (await server.call("GET", "/version", token=token)).status == 200
    await server.api.delete(SECRETS, "s", "default")
    assert (await server.call("GET", "/version", token=token)).status == 401


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        ({"expirationSeconds": 599}, 422, "may not specify a duration less than 10 minutes"),
        ({"boundObjectRef": {"kind": "Pod", "name": "nobody"}}, 404, 'pods "nobody" not found'),
        ({"boundObjectRef": {"kind": "Pod", "name": "p1", "uid": "other"}}, 409, "does not match the UID in record"),
        ({"boundObjectRef": {"kind": "ConfigMap", "name": "x"}}, 400, "cannot bind token to object of type"),
    ],
)
async def test_a_token_request_that_makes_no_sense_is_refused(
    server: Plane, spec: Obj, code: int, message: str
) -> None:
    await pod(server, "p1")
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    answer = await server.call("POST", path, {"spec": spec})
    assert answer.status == code
    assert message in answer.body["message"]


# --- impersonation ---------------------------------------------------------------------------------------------------


async def test_the_administrator_may_act_as_others(server: Plane) -> None:
    as_default = {"Impersonate_User": "system:serviceaccount:default:default"}
    assert (await server.call("GET", PODS_PATH, **as_default)).status == 403
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    answer = await server.call("POST", path, {}, **as_default)
    assert "system:serviceaccounts:default" in answer.body["status"]["userInfo"]["groups"]
    answer = await server.call("POST", path, {}, Impersonate_User="jane", Impersonate_Group="dev")
    assert answer.body["status"]["userInfo"] == {"username": "jane", "groups": ["dev", "system:authenticated"]}


async def test_others_may_impersonate_only_whom_they_are_allowed_to(server: Plane) -> None:
    rule = {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["jane"]}
    await server.grant(account("default"), rule)
    token = await server.token("default")
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    assert (await server.call("POST", path, {}, token=token, Impersonate_User="jane")).status == 201
    assert (await server.call("POST", path, {}, token=token, Impersonate_User="root")).status == 403
    masters = {"Impersonate_User": "jane", "Impersonate_Group": "system:masters"}
    refused = await server.call("POST", path, {}, token=token, **masters)
    assert refused.status == 403
    assert 'cannot impersonate resource "groups"' in refused.body["message"]


# --- reviews ---------------------------------------------------------------------------------------------------------


async def test_access_can_be_asked_about(server: Plane) -> None:
    await server.grant(account("default"), READ_PODS)
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    user = "system:serviceaccount:default:default"

    async def ask(verb: str) -> Obj:
        attributes = {"verb": verb, "resource": "pods", "namespace": "default"}
        answer = await server.call("POST", path, {"spec": {"user": user, "resourceAttributes": attributes}})
        status: Obj = answer.body["status"]
        return status

    assert (await ask("list"))["allowed"] is True
    assert (await ask("delete"))["allowed"] is False

    token = await server.token("default")
    own = {"spec": {"nonResourceAttributes": {"verb": "get", "path": "/api"}}}
    answer = await server.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", own, token=token)
    assert answer.body["status"]["allowed"] is True

    rules = await server.call(
        "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {"spec": {"namespace": "x"}}, token=token
    )
    assert READ_PODS in rules.body["status"]["resourceRules"]


async def test_a_review_of_a_bad_token_says_no_and_why(server: Plane) -> None:
    answer = await server.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x.y.z"}})
    assert answer.status == 201
    assert not answer.body["status"].get("authenticated")
    assert answer.body["status"]["error"]


# --- escalation ------------------------------------------------------------------------------------------------------

RBAC = "/apis/rbac.authorization.k8s.io/v1"


async def test_nobody_grants_rights_that_they_do_not_have(server: Plane) -> None:
    group = ["rbac.authorization.k8s.io"]
    write = {"verbs": ["create", "patch"], "apiGroups": group, "resources": ["clusterroles", "clusterrolebindings"]}
    await server.grant(account("default"), READ_PODS, write)
    token = await server.token("default")

    held = {"metadata": {"name": "held"}, "rules": [{**READ_PODS, "verbs": ["get"]}]}
    assert (await server.call("POST", f"{RBAC}/clusterroles", held, token=token)).status == 201
    more = {"metadata": {"name": "more"}, "rules": [{**READ_PODS, "verbs": ["get", "delete"]}]}
    refused = await server.call("POST", f"{RBAC}/clusterroles", more, token=token)
    assert refused.status == 403
    assert refused.body["message"] == (
        'clusterroles.rbac.authorization.k8s.io "more" is forbidden: user "system:serviceaccount:default:default" '
        '(groups=["system:serviceaccounts" "system:serviceaccounts:default" "system:authenticated"]) is attempting to '
        'grant RBAC permissions not currently held:\n{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}'
    )
    widened = await server.call("PATCH", f"{RBAC}/clusterroles/held", {"rules": more["rules"]}, token=token)
    assert widened.status == 403
    labelled = await server.call(
        "PATCH", f"{RBAC}/clusterroles/granted", {"metadata": {"labels": {"a": "b"}}}, token=token
    )
    assert labelled.status == 200, "what does not touch the rules needs no rights"

    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    binding = {"metadata": {"name": "root"}, "roleRef": ref, "subjects": [account("default")]}
    assert (await server.call("POST", f"{RBAC}/clusterrolebindings", binding, token=token)).status == 403
    ref["name"] = "held"
    assert (await server.call("POST", f"{RBAC}/clusterrolebindings", binding, token=token)).status == 201


# --- what a fresh cluster has ----------------------------------------------------------------------------------------


async def test_roles_that_are_sums_follow_their_parts(server: Plane) -> None:
    def rules() -> list[Obj]:
        record = server.store.get("rbac.authorization.k8s.io/clusterroles", "", "admin")
        assert record is not None
        found: list[Obj] = orjson.loads(record.data)["rules"]
        return found

    label = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    rule = {"verbs": ["get"], "apiGroups": ["kubevirt.io"], "resources": ["virtualmachines"]}
    await server.call("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "v", "labels": label}, "rules": [rule]})
    await until(lambda: rule in rules())  # view, therefore edit, therefore admin
    await server.call("DELETE", f"{RBAC}/clusterroles/v")
    await until(lambda: rule not in rules())


async def test_every_namespace_gets_an_account_and_the_authority_and_gets_them_back(server: Plane) -> None:
    await server.call("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    await until(lambda: server.store.get("/serviceaccounts", "team", "default"))
    await until(lambda: server.store.get("/configmaps", "team", "kube-root-ca.crt"))
    published = await server.call("GET", "/api/v1/namespaces/team/configmaps/kube-root-ca.crt")
    assert published.body["data"] == {"ca.crt": server.pki.authority.bundle.decode()}
    uid = (await server.call("GET", "/api/v1/namespaces/team/serviceaccounts/default")).body["metadata"]["uid"]
    await server.call("DELETE", "/api/v1/namespaces/team/serviceaccounts/default")
    await until(lambda: server.store.get("/serviceaccounts", "team", "default"))
    again = await server.call("GET", "/api/v1/namespaces/team/serviceaccounts/default")
    assert again.body["metadata"]["uid"] != uid


async def test_aggregated_servers_can_read_what_they_check_their_callers_with(server: Plane) -> None:
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "extension-apiserver-authentication-reader"}
    binding = {"metadata": {"name": "r"}, "roleRef": ref, "subjects": [account("default")]}
    await server.call("POST", f"{RBAC}/namespaces/kube-system/rolebindings", binding)
    path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
    answer = await server.call("GET", path, token=await server.token("default"))
    assert answer.status == 200
    assert answer.body["data"]["requestheader-allowed-names"] == '["front-proxy-client"]'
    assert answer.body["data"]["client-ca-file"] == server.pki.authority.bundle.decode()


async def test_a_second_start_changes_nothing_and_completes_what_is_missing(tmp_path: Path) -> None:
    async with plane(tmp_path) as first:
        admin = first.pki.admin
        path = f"{RBAC}/clusterroles/system:discovery"
        wanted = (await first.call("GET", path)).body["rules"]
        await first.call("PATCH", path, {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/extra"]}]})
        off = {"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}, "rules": []}
        await first.call("PATCH", f"{RBAC}/clusterroles/system:basic-user", off)
        await first.call("DELETE", f"{RBAC}/clusterroles/system:node")
        untouched = (await first.call("GET", f"{RBAC}/clusterroles/cluster-admin")).body
    async with plane(tmp_path) as second:
        assert second.pki.admin == admin
        rules = (await second.call("GET", path)).body["rules"]
        assert all(rule in rules for rule in wanted)
        assert {"verbs": ["get"], "nonResourceURLs": ["/extra"]} in rules
        assert not (await second.call("GET", f"{RBAC}/clusterroles/system:basic-user")).body.get("rules")
        assert (await second.call("GET", f"{RBAC}/clusterroles/system:node")).status == 200
        assert (await second.call("GET", f"{RBAC}/clusterroles/cluster-admin")).body == untouched
