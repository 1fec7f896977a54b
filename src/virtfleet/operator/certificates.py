"""The installation's own authority and the certificates of its components, kept in Secrets and rotated.

What should be there follows from what is there and the time (`kube.authority`): the same Secrets while nothing is
due. The authority's key stays in a Secret that only the operator reads; components mount theirs.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Any

from virtfleet.installation import Installation
from virtfleet.kube import certificates
from virtfleet.kube.authority import Authority, Lifespan, Profile
from virtfleet.kube.certificates import Credential
from virtfleet.kube.component import ADMISSION_KEY
from virtfleet.kube.resource import Obj
from virtfleet.operator.deployments import VIRT_CONTROLLER, VIRT_DASHBOARD, secret_name
from virtfleet.operator.endpoints import VIRT_API
from virtfleet.operator.handlers import VIRT_HANDLER
from virtfleet.operator.manifest import VIRT_OPERATOR
from virtfleet.operator.render import stamped

AUTHORITY = "kubevirt-ca"
BUNDLE = "ca-bundle"
TO_GUESTS = "kubevirt.io:system:client:vsock"
"""Who handlers are to servers in guests, which look for this name."""
COMPONENTS = (VIRT_API, VIRT_CONTROLLER, VIRT_HANDLER, VIRT_OPERATOR)
_LOOKS = 4  # at certificates, in the time between the moment of renewal and the end


@dataclass(frozen=True, slots=True)
class Issued:
    """Objects as they should be now, in the order in which they must be written, and what peers should trust."""

    objects: list[Obj]
    trust: bytes
    admission_key: str
    look_again: timedelta


def issue(installation: Installation, secrets: Mapping[str, Obj], now: datetime) -> Issued:
    """Certificates for all components. `secrets` are those that exist, by name."""
    of_authority, of_server = (Lifespan(*installation.lifespan(kind)) for kind in ("ca", "server"))
    known = _files(secrets.get(secret_name(VIRT_API)))  # with what peers trust, also where the authority was lost
    authority = Authority.load(
        AUTHORITY, of_authority, _files(secrets.get(AUTHORITY)), known.get(certificates.BUNDLE, b"")
    ).rotated(now)
    # What anybody may check the components' certificates against.
    bundle = _object(installation, "ConfigMap", AUTHORITY, data={BUNDLE: authority.bundle.decode()})
    objects = [_secret(installation, AUTHORITY, authority.files()), bundle]
    key = known.get(ADMISSION_KEY) or token_hex(16).encode()
    guests = certificates.for_guests(_files(secrets.get(secret_name(VIRT_HANDLER))))
    to_guests = authority.ensure(guests, Profile(TO_GUESTS, of_server, client=True), now)
    more = {
        VIRT_API: {ADMISSION_KEY: key},
        VIRT_HANDLER: {certificates.GUEST_CERTIFICATE: to_guests.certificate, certificates.GUEST_KEY: to_guests.key},
    }
    for component in _certified(installation):
        service = f"{component}.{installation.namespace}"
        hosts = (component, service, f"{service}.svc", f"{service}.svc.cluster.local")
        profile = Profile(f"{installation.namespace}:{component}", of_server, hosts=hosts, client=True)
        name = secret_name(component)
        files = authority.ensure(Credential.of(_files(secrets.get(name))), profile, now).files()
        objects.append(_secret(installation, name, files | more.get(component, {})))
    soonest = min(of_authority.renew_before, of_server.renew_before, of_server.settle * _LOOKS)
    return Issued(objects, authority.bundle, key.decode(), soonest / _LOOKS)


def expected(installation: Installation) -> list[str]:
    """Names of the Secrets that an installation has."""
    return [AUTHORITY, *map(secret_name, _certified(installation))]


def _certified(installation: Installation) -> list[str]:
    return [*COMPONENTS, *([VIRT_DASHBOARD] if installation.configuration.dashboard else ())]


def _files(secret: Obj | None) -> dict[str, bytes]:
    return {name: base64.b64decode(data) for name, data in ((secret or {}).get("data") or {}).items()}


def _secret(installation: Installation, name: str, files: Mapping[str, bytes]) -> Obj:
    data = {file: base64.b64encode(content).decode() for file, content in files.items()}
    return _object(installation, "Secret", name, type="kubernetes.io/tls", data=data)


def _object(installation: Installation, kind: str, name: str, **content: Any) -> Obj:
    return stamped({"apiVersion": "v1", "kind": kind, "metadata": installation.metadata(name), **content})
