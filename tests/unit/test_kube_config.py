"""Which server and which credentials come of kubeconfig files and of a pod's service account."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from virtfleet.kube.config import Config, in_cluster, load
from virtfleet.kube.credentials import ConfigError, Grant, Material

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a kubeconfig with one context `dev` and lets a test change any part of it."""

    def make(
        name: str = "config",
        *,
        cluster: dict[str, Any] | None = None,
        user: dict[str, Any] | None = None,
        context: dict[str, Any] | None = None,
        entry: str = "dev",
        current: str | None = "dev",
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": entry, "cluster": cluster or {"server": f"https://{entry}:6443"}}],
            "users": [{"name": entry, "user": {"token": f"token-of-{entry}"} if user is None else user}],
            "contexts": [{"name": entry, "context": context or {"cluster": entry, "user": entry}}],
            "preferences": {},
        }
        if current is not None:
            document["current-context"] = current
        path.write_text(yaml.safe_dump(document))
        return path

    return make


async def token(config: Config) -> str:
    return (await config.grant()).token


async def test_the_current_context_says_server_user_and_namespace(write: Write) -> None:
    config = load(write(context={"cluster": "dev", "user": "dev", "namespace": "vms"}))
    assert (config.server, config.namespace, await token(config)) == ("https://dev:6443", "vms", "token-of-dev")


async def test_of_several_files_the_first_that_says_something_wins(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_current = write("a", current=None)
    other = write("b", entry="prod", current="prod")
    same_name = write("c", cluster={"server": "https://shadowed"}, current="dev")
    names = [str(tmp_path / "missing"), str(no_current), "", str(other), str(same_name)]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(names))
    assert load().server == "https://prod:6443"
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(no_current), str(same_name)]))
    assert load().server == "https://dev:6443"


async def test_paths_are_relative_to_the_file_that_names_them(write: Write, tmp_path: Path) -> None:
    path = write("sub/config", user={"tokenFile": "token", "token": "ignored"})
    (tmp_path / "sub" / "token").write_text("from-file\n")
    assert await token(load(path)) == "from-file"


async def test_a_token_file_is_read_again_when_it_is_replaced(write: Write, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("first")
    config = load(write(user={"tokenFile": str(secret)}))
    assert await token(config) == "first"
    (tmp_path / "new").write_text("second")
    (tmp_path / "new").rename(secret)
    assert await token(config) == "second"
    secret.unlink()  # being replaced the clumsy way
    assert await token(config) == "second"


async def test_certificates_inline_win_over_files_and_both_make_a_context(write: Write, tmp_path: Path) -> None:
    authority = trustme.CA()
    pair = authority.issue_cert("someone@example.org")
    (tmp_path / "ca.crt").write_bytes(authority.cert_pem.bytes())
    (tmp_path / "key.pem").write_bytes(pair.private_key_pem.bytes())
    certificate = pair.cert_chain_pems[0].bytes()
    config = load(
        write(
            cluster={"server": "https://dev:6443", "certificate-authority": "ca.crt", "tls-server-name": "kubernetes"},
            user={
                "client-certificate-data": base64.b64encode(certificate).decode(),
                "client-certificate": "does-not-exist",
                "client-key": "key.pem",
            },
        )
    )
    grant = await config.grant()
    assert grant == Grant("", certificate, pair.private_key_pem.bytes())
    assert config.tls_server_name == "kubernetes"
    context = config.tls(grant)
    assert context is not None
    assert config.tls(grant) is context
    other = trustme.CA()
    (tmp_path / "ca.crt").write_bytes(other.cert_pem.bytes())
    rotated = config.tls(grant)
    assert rotated is not None
    assert rotated is not context
    assert len(rotated.get_ca_certs()) == 1  # the old authority is trusted no more


async def test_a_certificate_that_waits_for_its_key_does_not_break_what_works(write: Write, tmp_path: Path) -> None:
    authority = trustme.CA()
    old, new = authority.issue_cert("old@example.org"), authority.issue_cert("new@example.org")
    (tmp_path / "crt").write_bytes(old.cert_chain_pems[0].bytes())
    (tmp_path / "key").write_bytes(old.private_key_pem.bytes())
    config = load(write(user={"client-certificate": "crt", "client-key": "key"}))
    context = config.tls(await config.grant())
    (tmp_path / "crt").write_bytes(new.cert_chain_pems[0].bytes())
    assert config.tls(await config.grant()) is context
    (tmp_path / "key").write_bytes(new.private_key_pem.bytes())
    assert config.tls(await config.grant()) is not context


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cluster": {"server": 7}}, r"\$\.clusters\[0\]\.cluster\.server"),
        ({"cluster": {"insecure-skip-tls-verify": True}}, r"clusters\[dev\]\.cluster\.server: is not set"),
        ({"cluster": {"server": "dev:6443"}}, r"clusters\[dev\]\.cluster\.server: 'dev:6443' is not an http\(s\) URL"),
        ({"cluster": {"server": "https://x", "proxy-url": "http://p"}}, r"cluster\.proxy-url: .*not supported"),
        (
            {"cluster": {"server": "https://x", "certificate-authority-data": "?"}},
            r"clusters\[dev\]\.cluster\.certificate-authority-data: is not base64",
        ),
        ({"user": {"as": "root"}}, r"users\[dev\]\.user\.as: impersonation is not supported"),
        ({"user": {"username": "x"}}, r"users\[dev\]\.user\.username: .*use a token"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, r"users\[dev\]\.user\.auth-provider: .*exec plugin"),
        ({"user": {"client-key": "k"}}, r"users\[dev\]\.user\.client-key: .*one is missing"),
        ({"user": {"exec": {"command": "x", "apiVersion": "v9"}}}, r"users\[dev\]\.user\.exec\.apiVersion: 'v9'"),
        ({"context": {"cluster": "typo", "user": "dev"}}, r"contexts\[dev\].context.cluster: 'typo' .*there are dev"),
        ({"context": {"cluster": "dev", "user": "typo"}}, r"contexts\[dev\].context.user: 'typo' .*there are dev"),
        ({"current": "typo"}, r"current-context: 'typo' does not exist; there are dev"),
        ({"current": None}, r"current-context is not set; there are dev"),
    ],
)
def test_what_cannot_be_used_is_refused_with_file_and_field(write: Write, change: dict[str, Any], message: str) -> None:
    path = write(**change)
    with pytest.raises(ConfigError, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value)


def test_a_file_that_is_not_yaml_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("clusters: [")
    with pytest.raises(ConfigError, match=str(tmp_path / "config")):
        load(tmp_path / "config")


async def test_a_missing_token_file_is_named_with_its_field(write: Write) -> None:
    config = load(write(user={"tokenFile": "nowhere"}))
    with pytest.raises(ConfigError, match=r"users\[dev\]\.user\.tokenFile: cannot read .*nowhere: No such file"):
        await config.grant()


def test_without_any_configuration_the_error_says_what_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"KUBECONFIG is not set, .*/\.kube/config does not exist"):
        load()


class TestInAPod:
    @pytest.fixture
    def account(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        (tmp_path / "token").write_text("pod-token")
        (tmp_path / "namespace").write_text("kubevirt")
        (tmp_path / "ca.crt").write_bytes(trustme.CA().cert_pem.bytes())
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
        return tmp_path

    async def test_the_service_account_is_used(self, account: Path) -> None:
        config = in_cluster(account)
        assert (config.server, config.namespace) == ("https://10.96.0.1:443", "kubevirt")
        assert await token(config) == "pod-token"
        assert config.tls(await config.grant()) is not None

    async def test_a_rotated_token_is_used_from_the_next_request_on(self, account: Path) -> None:
        config = in_cluster(account)
        assert await token(config) == "pod-token"
        (account / "token").write_text("rotated")
        assert await token(config) == "rotated"

    def test_ipv6_addresses_get_their_brackets(self, account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
        assert in_cluster(account).server == "https://[fd00::1]:443"

    def test_a_pod_without_token_is_told_why(self, account: Path) -> None:
        (account / "namespace").unlink()
        with pytest.raises(ConfigError, match="automountServiceAccountToken"):
            in_cluster(account)


def test_an_empty_secret_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("")
    with pytest.raises(ConfigError, match=r"token: .* is empty"):
        Material("token", tmp_path / "token").read()
