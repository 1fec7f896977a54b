"""What an authority issues, when it is replaced, and what is on disk while it is."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from virtfleet.kube import certificates
from virtfleet.kube.authority import SETTLE, SKEW, Authority, Lifespan, Profile, leaf_of, subject
from virtfleet.kube.certificates import Credential

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
CA = Lifespan(24 * HOUR, 6 * HOUR)
LEAF = Lifespan(8 * HOUR, 2 * HOUR)
SERVER = Profile("gateway", LEAF, hosts=("gateway.kubevirt.svc", "10.0.0.1", "::1"))
CLIENT = Profile("system:node:n1", LEAF, organizations=("system:nodes",), client=True)


def reloaded(authority: Authority) -> Authority:
    again = Authority.load(authority.name, authority.lifespan, authority.files())
    assert again is not None
    return again


def test_certificates_name_their_user_and_groups_and_begin_in_the_past() -> None:
    credential = Authority.create("ca", CA, NOW).issue(CLIENT, NOW)
    assert subject(leaf_of(credential)) == ("system:node:n1", ("system:nodes",))
    assert leaf_of(credential).not_valid_before_utc == NOW - SKEW
    assert leaf_of(credential).not_valid_after_utc == NOW + 8 * HOUR


def test_nothing_changes_while_nothing_is_due() -> None:
    authority = Authority.create("ca", CA, NOW)
    for profile in (SERVER, CLIENT):
        credential = Credential.of(authority.issue(profile, NOW).files())
        later = NOW + 5 * HOUR
        assert reloaded(authority).rotated(later).files() == authority.files()
        assert reloaded(authority).ensure(credential, profile, later) == credential


@pytest.mark.parametrize(
    "profile",
    [
        Profile("gateway", LEAF, hosts=("gateway.kubevirt.svc", "10.0.0.1")),
        Profile("gateway", LEAF, hosts=SERVER.hosts, client=True),
        Profile("other", LEAF, hosts=SERVER.hosts),
        Profile("gateway", LEAF, organizations=("system:masters",), hosts=SERVER.hosts),
    ],
)
def test_a_certificate_that_should_say_something_else_is_replaced(profile: Profile) -> None:
    authority = Authority.create("ca", CA, NOW)
    credential = authority.issue(SERVER, NOW)
    assert authority.ensure(credential, profile, NOW).certificate != credential.certificate


def test_a_certificate_is_replaced_before_its_end() -> None:
    authority = Authority.create("ca", CA, NOW)
    credential = authority.issue(SERVER, NOW)
    assert leaf_of(authority.ensure(credential, SERVER, NOW + 6 * HOUR)).not_valid_after_utc == NOW + 14 * HOUR


def test_a_new_authority_is_trusted_before_it_signs_and_the_old_one_until_it_expires() -> None:
    authority = Authority.create("ca", CA, NOW)
    old = authority.issue(SERVER, NOW + 17 * HOUR)

    announced = NOW + 18 * HOUR
    authority = reloaded(authority.rotated(announced))
    kept = authority.ensure(old, SERVER, announced)
    assert kept.certificate == old.certificate, "peers that know only the old authority must still accept it"
    assert kept.bundle.count(b"BEGIN CERTIFICATE") == 2

    settled = announced + SETTLE
    authority = reloaded(authority.rotated(settled))
    new = authority.ensure(kept, SERVER, settled)
    assert new.certificate != old.certificate
    assert leaf_of(new).issuer != leaf_of(old).issuer
    assert new.bundle == kept.bundle

    expired = NOW + 24 * HOUR
    authority = reloaded(authority.rotated(expired))
    last = authority.ensure(new, SERVER, expired)
    assert last.certificate == new.certificate
    assert last.bundle.count(b"BEGIN CERTIFICATE") == 1


minutes = st.integers(1, 2000).map(lambda n: timedelta(minutes=n))


def lifespans() -> st.SearchStrategy[Lifespan]:
    return st.tuples(minutes, minutes).map(lambda pair: Lifespan(sum(pair, timedelta(0)), min(pair)))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(lifespans(), lifespans(), st.lists(st.floats(0.05, 1), min_size=1, max_size=25))
def test_who_looks_often_enough_always_has_a_good_certificate_that_its_peers_trust(
    ca: Lifespan, leaf: Lifespan, pauses: list[float]
) -> None:
    profile = Profile("gateway", leaf, hosts=("gateway",))
    now = NOW
    authority = Authority.create("ca", ca, now)
    credential = authority.issue(profile, now)
    longest = min(ca.settle, leaf.renew_before, leaf.lifetime / 2)
    for pause in pauses * 4:
        known_to_peers = authority.bundle
        now += longest * pause
        authority = reloaded(authority.rotated(now))
        credential = authority.ensure(credential, profile, now)
        assert leaf_of(credential).not_valid_before_utc <= now < leaf_of(credential).not_valid_after_utc
        issuers = {c.subject for c in x509.load_pem_x509_certificates(known_to_peers)}
        assert leaf_of(credential).issuer in issuers, "a peer that looked at the bundle last time must accept it"
        assert authority.ensure(credential, profile, now) is credential


def test_a_certificate_never_outlives_its_authority() -> None:
    authority = Authority.create("ca", CA, NOW)
    credential = authority.issue(SERVER, NOW + 20 * HOUR)
    assert leaf_of(credential).not_valid_after_utc == NOW + 24 * HOUR


def test_an_authority_that_slept_past_its_end_begins_anew() -> None:
    authority = Authority.create("ca", CA, NOW).rotated(NOW + 30 * HOUR)
    credential = authority.ensure(Authority.create("ca", CA, NOW).issue(SERVER, NOW), SERVER, NOW + 30 * HOUR)
    assert leaf_of(credential).not_valid_after_utc == NOW + 38 * HOUR


@pytest.mark.parametrize("broken", [{}, {"tls.crt": b"x", "tls.key": b"y"}])
def test_what_cannot_be_read_is_missing(broken: dict[str, bytes]) -> None:
    assert Credential.of(broken) is None
    assert Authority.load("ca", CA, broken).bundle == b""


@pytest.mark.parametrize("lost", [{"tls.crt", "tls.key"}, {"tls.crt", "tls.key", "ca.crt"}])
def test_an_authority_that_was_lost_is_replaced_while_everybody_trusts_what_it_signed(lost: set[str]) -> None:
    old = Authority.create("ca", CA, NOW)
    credential = old.issue(SERVER, NOW)
    left = {name: b"" if name in lost else content for name, content in old.files().items()}

    new = Authority.load("ca", CA, left, trusted=credential.bundle).rotated(NOW + HOUR)
    assert new.bundle.endswith(old.bundle) and new.bundle != old.bundle
    assert len(x509.load_pem_x509_certificates(new.files()["tls.crt"])) == 1
    kept = new.ensure(credential, SERVER, NOW + HOUR)
    assert kept.certificate == credential.certificate, "peers do not trust the new authority yet"

    later = NOW + HOUR + SETTLE
    again = reloaded(new).rotated(later)
    assert again.ensure(kept, SERVER, later).certificate != kept.certificate
    assert old.bundle not in reloaded(again).rotated(NOW + 25 * HOUR).bundle


def test_a_key_of_another_certificate_is_no_credential() -> None:
    authority = Authority.create("ca", CA, NOW)
    one, two = authority.issue(SERVER, NOW), authority.issue(SERVER, NOW)
    assert Credential.of(one.files() | {"tls.key": two.key}) is None


def test_files_change_all_at_once_and_leave_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "pki"
    assert certificates.read(target) == {}
    certificates.write(target, {"tls.crt": b"1", "tls.key": b"1"})
    certificates.write(target, {"tls.crt": b"2", "tls.key": b"2"})
    assert certificates.read(target) == {"tls.crt": b"2", "tls.key": b"2"}
    assert (target / "tls.key").read_bytes() == b"2"
    assert (target / "tls.key").stat().st_mode & 0o777 == 0o600
    assert len([p for p in target.iterdir() if p.is_dir() and not p.is_symlink()]) == 1


def test_a_writer_that_dies_before_the_swap_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates.write(tmp_path, {"tls.crt": b"1", "tls.key": b"1"})

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(certificates, "_swap", die)
        with pytest.raises(KeyboardInterrupt):
            certificates.write(tmp_path, {"tls.crt": b"2", "tls.key": b"2"})
    assert certificates.read(tmp_path) == {"tls.crt": b"1", "tls.key": b"1"}
    certificates.write(tmp_path, {"tls.crt": b"3", "tls.key": b"3"})
    assert certificates.read(tmp_path) == {"tls.crt": b"3", "tls.key": b"3"}


def test_rotation_cannot_change_whether_clients_must_identify_themselves() -> None:
    authority = Authority.create("ca", CA)
    credential = authority.issue(SERVER)
    rotating = certificates.RotatingContext(certificates.server_context(credential))
    assert rotating.listening.minimum_version == ssl.TLSVersion.TLSv1_2
    with pytest.raises(ValueError, match="cannot become required"):
        rotating.renew(certificates.server_context(credential, clients=authority.bundle, required=True))
