"""Who reaches virt-api's webhooks: the API server, which the operator tells the path, and nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from component.gateway.gateway_kit import Kit, gateway
from virtfleet.installation import Installation
from virtfleet.kube.resource import SECRETS
from virtfleet.operator import certificates, endpoints, roles

NOW = datetime(2030, 1, 1, tzinfo=UTC)
INSTALLATION = Installation({"metadata": {"name": "kubevirt", "namespace": "kubevirt"}})
VMI = {"kind": "VirtualMachineInstance", "metadata": {"name": "x"}, "spec": {"domain": {"devices": {}}}}
REVIEW = {"request": {"uid": "u", "operation": "CREATE", "kind": {"kind": VMI["kind"]}, "object": VMI}}


@pytest.fixture
async def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kit]:
    async with gateway(tmp_path, monkeypatch) as made:
        yield made


async def test_from_the_pod_network_there_is_no_way_in(kit: Kit) -> None:
    objects = endpoints.admission(INSTALLATION, b"", kit.admission_key)
    told = {hook["clientConfig"]["service"]["path"] for obj in objects for hook in obj.get("webhooks", ())}
    assert {path.rpartition("/")[2] for path in told} == {"mutate", "validate", "evict"}
    async with kit.directly() as session:
        for path in told:
            async with session.post(path, json=REVIEW) as answer:
                assert (await answer.json())["response"]["uid"] == "u"
            for guess in (path.replace(kit.admission_key, "0" * 32), path.rpartition("/")[2]):
                async with session.post(f"/{guess.lstrip('/')}", data=b"x" * (1 << 20)) as answer:
                    assert answer.status == 404, guess


def test_the_key_outlives_certificates_and_no_other_component_sees_it() -> None:
    first = certificates.issue(INSTALLATION, {}, NOW)
    secrets = {obj["metadata"]["name"]: obj for obj in first.objects if obj["kind"] == SECRETS.kind}
    later = certificates.issue(INSTALLATION, secrets, NOW + timedelta(days=30))
    assert later.admission_key == first.admission_key and len(first.admission_key) == 32
    assert [name for name, obj in secrets.items() if "admission-key" in obj["data"]] == ["kubevirt-virt-api-certs"]
    granted = [rule for rules in roles.OWN_RULES.values() for rule in rules if "secrets" in rule["resources"]]
    assert granted == [], "components mount their Secrets and read no others"
