"""The local cluster's certificates on disk: made once, kept, and renewed in time."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml

from virtfleet.kube import certificates
from virtfleet.kube.authority import leaf_of, subject
from virtfleet.kube.certificates import Credential
from virtfleet.local.apiserver.rights.pki import Pki

DAY = timedelta(days=1)


def test_a_second_start_finds_everything_as_it_was(tmp_path: Path) -> None:
    first, second = Pki(tmp_path), Pki(tmp_path)
    assert second.authority.files() == first.authority.files()
    assert second.front_proxy_authority.files() == first.front_proxy_authority.files()
    assert (second.serving, second.admin, second.front_proxy) == (first.serving, first.admin, first.front_proxy)
    assert second.signing_key.dump() == first.signing_key.dump()
    assert second.node("n1") == first.node("n1")


def test_a_new_address_gets_a_new_serving_certificate_of_the_same_authority(tmp_path: Path) -> None:
    first, second = Pki(tmp_path), Pki(tmp_path, hosts=("10.96.0.1",))
    assert second.serving.certificate != first.serving.certificate
    assert second.authority.bundle == first.authority.bundle
    assert second.admin == first.admin


def test_certificates_are_renewed_before_they_end_and_old_clients_stay_welcome(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    first = pki.admin
    pki.renew(datetime.now(UTC) + 300 * DAY)
    assert leaf_of(pki.admin).not_valid_after_utc > leaf_of(first).not_valid_after_utc
    old = pki.authority.bundle
    pki.renew(datetime.now(UTC) + 3300 * DAY)
    assert pki.authority.bundle.endswith(old)
    assert pki.authority.bundle != old


def test_a_kill_between_two_files_heals_itself(tmp_path: Path) -> None:
    authority = Pki(tmp_path).authority.bundle
    broken = tmp_path / "pki" / "admin"
    certificates.write(broken, {"tls.crt": b"half"})
    again = Pki(tmp_path)
    assert Credential.of(certificates.read(broken)) == again.admin
    assert again.authority.bundle == authority


def test_the_kubeconfig_is_the_administrators_and_nobody_elses_to_read(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    path = pki.write_kubeconfig("https://127.0.0.1:6443")
    assert path.stat().st_mode & 0o777 == 0o600
    config = yaml.safe_load(path.read_text())
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
    assert base64.b64decode(config["users"][0]["user"]["client-certificate-data"]) == pki.admin.certificate
    assert subject(leaf_of(pki.admin)) == ("kubernetes-admin", ("system:masters",))
