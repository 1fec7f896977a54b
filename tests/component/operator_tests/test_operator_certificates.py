"""Certificates of an installation: there from the start, renewed in time, trusted throughout."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from hollow import NAMESPACE, Hollow, hollow

from virtfleet.kube.api import Patch
from virtfleet.kube.resource import CONFIG_MAPS, SECRETS, VALIDATING_WEBHOOKS


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Hollow]:
    async with hollow(tmp_path) as cluster:
        await cluster.install(
            certificateRotateStrategy={
                "selfSigned": {
                    "ca": {"duration": "48h", "renewBefore": "24h"},
                    "server": {"duration": "24h", "renewBefore": "12h"},
                }
            }
        )
        yield cluster


async def certificate(fleet: Hollow, name: str, file: str = "tls.crt") -> list[x509.Certificate]:
    secret = await fleet.api.get(SECRETS, name, NAMESPACE)
    return x509.load_pem_x509_certificates(base64.b64decode(secret["data"][file]))


async def trusted(fleet: Hollow) -> list[x509.Certificate]:
    [configuration] = await fleet.api.list(VALIDATING_WEBHOOKS)
    return x509.load_pem_x509_certificates(base64.b64decode(configuration["webhooks"][0]["clientConfig"]["caBundle"]))


@pytest.mark.slow
async def test_virt_api_has_a_certificate_that_its_webhooks_trust(fleet: Hollow) -> None:
    [leaf] = await certificate(fleet, "kubevirt-virt-api-certs")
    hosts = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "virt-api.kubevirt.svc" in hosts.get_values_for_type(x509.DNSName)
    [authority] = await trusted(fleet)
    leaf.verify_directly_issued_by(authority)
    bundle = (await fleet.api.get(CONFIG_MAPS, "kubevirt-ca", NAMESPACE))["data"]["ca-bundle"]
    assert x509.load_pem_x509_certificates(bundle.encode()) == [authority]


@pytest.mark.slow
async def test_certificates_are_renewed_in_time_and_trusted_at_every_moment(fleet: Hollow) -> None:
    [first] = await certificate(fleet, "kubevirt-virt-api-certs")
    [old_authority] = await trusted(fleet)

    fleet.time = timedelta(hours=13)
    await fleet.kill_operator()
    fleet.start_operator()

    async def renewed() -> bool:
        return await certificate(fleet, "kubevirt-virt-api-certs") != [first]

    await fleet.until(renewed)
    [second] = await certificate(fleet, "kubevirt-virt-api-certs")
    second.verify_directly_issued_by(old_authority)

    fleet.time = timedelta(hours=25)  # the authority's successor is announced before it signs
    await fleet.kill_operator()
    fleet.start_operator()

    async def two_authorities() -> bool:
        return len(await trusted(fleet)) == 2 and len(await certificate(fleet, "kubevirt-ca", "ca.crt")) == 2

    await fleet.until(two_authorities)
    [signed] = await certificate(fleet, "kubevirt-virt-handler-certs")
    signed.verify_directly_issued_by(old_authority)

    fleet.time = timedelta(hours=26)
    await fleet.kill_operator()
    fleet.start_operator()

    async def signed_by_the_successor() -> bool:
        [leaf] = await certificate(fleet, "kubevirt-virt-handler-certs")
        [new_authority] = [a for a in await trusted(fleet) if a != old_authority]
        return leaf.issuer == new_authority.subject

    await fleet.until(signed_by_the_successor)


async def test_a_lost_secret_is_made_again(fleet: Hollow) -> None:
    await fleet.api.delete(SECRETS, "kubevirt-virt-handler-certs", NAMESPACE)

    async def there() -> bool:
        [leaf] = await certificate(fleet, "kubevirt-virt-handler-certs")
        [authority] = await trusted(fleet)
        return leaf.issuer == authority.subject

    await fleet.until(there)


@pytest.mark.slow
async def test_a_secret_without_its_labels_is_taken_back_as_it_is(fleet: Hollow) -> None:
    before = await fleet.api.get(SECRETS, "kubevirt-virt-api-certs", NAMESPACE)
    bare = [{"op": "replace", "path": "/metadata/labels", "value": {}}]
    await fleet.api.patch(SECRETS, "kubevirt-virt-api-certs", bare, NAMESPACE, how=Patch.JSON)

    async def labelled() -> bool:
        after = await fleet.api.get(SECRETS, "kubevirt-virt-api-certs", NAMESPACE)
        assert after["data"] == before["data"]
        return bool(after["metadata"].get("labels") == before["metadata"]["labels"])

    await fleet.until(labelled)


@pytest.mark.slow
async def test_a_lost_authority_has_a_successor_that_is_trusted_beside_it(fleet: Hollow) -> None:
    [old] = await trusted(fleet)
    served = await certificate(fleet, "kubevirt-virt-api-certs")
    empty = {"data": {"tls.crt": "", "tls.key": ""}}
    await fleet.api.patch(SECRETS, "kubevirt-ca", empty, NAMESPACE)

    async def both() -> bool:
        return old in (known := await trusted(fleet)) and len(known) == 2

    await fleet.until(both)
    assert await certificate(fleet, "kubevirt-ca") == [each for each in await trusted(fleet) if each != old]
    assert await certificate(fleet, "kubevirt-virt-api-certs") == served


@pytest.mark.slow
@pytest.mark.parametrize("component", ["operator", "virt-api", "controller", "virt-handler"])
async def test_every_component_has_a_certificate_under_the_name_that_kubevirt_gives_it(
    fleet: Hollow, component: str
) -> None:
    [leaf] = await certificate(fleet, f"kubevirt-{component}-certs")
    [authority] = await trusted(fleet)
    leaf.verify_directly_issued_by(authority)


@pytest.mark.slow
async def test_a_secret_of_the_version_before_goes_also_where_a_new_operator_finds_it_in_a_list(fleet: Hollow) -> None:
    """Items of lists do not say of which kind they are."""
    await fleet.kill_operator()
    known = await fleet.api.get(SECRETS, "kubevirt-controller-certs", NAMESPACE)
    labels = {**known["metadata"]["labels"], "app.kubernetes.io/version": "0.1.0"}
    meta = {"name": "kubevirt-virt-controller-certs", "namespace": NAMESPACE, "labels": labels}
    await fleet.api.create(SECRETS, {"metadata": meta, "data": known["data"]})
    fleet.start_operator()

    async def gone() -> bool:
        names = [secret["metadata"]["name"] for secret in await fleet.api.list(SECRETS, NAMESPACE)]
        return meta["name"] not in names and known["metadata"]["name"] in names

    await fleet.until(gone)
    await fleet.settled()
