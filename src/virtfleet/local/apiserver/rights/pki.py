"""The local cluster's certificates and keys on disk, made on the first start and renewed on every later one.

    DIR/pki/ca                 signs the API server and everyone who identifies themselves to it
    DIR/pki/front-proxy-ca     signs only the API server as the caller of aggregated servers
    DIR/pki/apiserver, front-proxy-client, admin
    DIR/pki/service-accounts   the key that signs service-account tokens
    DIR/kubeconfig             the administrator's way in

Each directory has the shape of a TLS Secret and is replaced at once, so a kill leaves either the old or the new.
"""

from __future__ import annotations

import base64
import os
from datetime import datetime, timedelta
from pathlib import Path

import yaml

from virtfleet.kube import certificates
from virtfleet.kube.authority import Authority, Lifespan, Profile
from virtfleet.kube.certificates import Credential
from virtfleet.local.apiserver.rights.tokens import SigningKey

DAY = timedelta(days=1)
_AUTHORITY = Lifespan(3650 * DAY, 365 * DAY)
_LEAF = Lifespan(365 * DAY, 90 * DAY)
FRONT_PROXY = "front-proxy-client"
_NAMES = (
    *("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"),
    *("kubernetes.default.svc.cluster.local", "127.0.0.1", "::1"),
)
_KEY = "sa.key"


class Pki:
    """Opens `directory`/pki. `hosts` are the names and addresses that the API server is reached by, beside loopback;
    `name` is what the cluster, its context and its user are called in kubeconfigs."""

    def __init__(self, directory: Path, hosts: tuple[str, ...] = (), name: str = "virtfleet") -> None:
        self.directory, self._name = directory, name
        self._root = directory / "pki"
        self._serving = Profile("kube-apiserver", _LEAF, hosts=tuple(dict.fromkeys((*_NAMES, *hosts))))
        self.renew()
        stored = certificates.read(self._root / "service-accounts")
        self.signing_key = SigningKey(stored.get(_KEY, b""))
        self._save("service-accounts", stored, {_KEY: self.signing_key.dump()})

    def renew(self, now: datetime | None = None) -> None:
        """Replace whatever is missing, due or says something else than it should."""
        self.authority = self._authority("ca", "kubernetes", now)
        self.front_proxy_authority = self._authority("front-proxy-ca", "front-proxy-ca", now)
        self.serving = self._credential("apiserver", self.authority, self._serving, now)
        admin = Profile("kubernetes-admin", _LEAF, organizations=("system:masters",), client=True)
        self.admin = self._credential("admin", self.authority, admin, now)
        caller = Profile(FRONT_PROXY, _LEAF, client=True)
        self.front_proxy = self._credential(FRONT_PROXY, self.front_proxy_authority, caller, now)

    def node(self, name: str) -> Credential:
        """The identity of a node's agent."""
        profile = Profile(f"system:node:{name}", _LEAF, organizations=("system:nodes",), client=True)
        return self._credential(f"nodes/{name}", self.authority, profile, None)

    def _authority(self, place: str, name: str, now: datetime | None) -> Authority:
        stored = certificates.read(self._root / place)
        authority = Authority.load(name, _AUTHORITY, stored).rotated(now)
        self._save(place, stored, authority.files())
        return authority

    def _credential(self, place: str, authority: Authority, profile: Profile, now: datetime | None) -> Credential:
        stored = certificates.read(self._root / place)
        credential = authority.ensure(Credential.of(stored), profile, now)
        self._save(place, stored, credential.files())
        return credential

    def _save(self, place: str, stored: dict[str, bytes], files: dict[str, bytes]) -> None:
        if files != stored:
            certificates.write(self._root / place, files)

    def kubeconfig(self, server: str, credential: Credential) -> str:
        """A kubeconfig for the server's URL."""
        user = {"client-certificate-data": _base64(credential.certificate), "client-key-data": _base64(credential.key)}
        cluster = {"server": server, "certificate-authority-data": _base64(self.authority.bundle)}
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": self._name, "cluster": cluster}],
                "users": [{"name": self._name, "user": user}],
                "contexts": [{"name": self._name, "context": {"cluster": self._name, "user": self._name}}],
                "current-context": self._name,
            },
            sort_keys=False,
        )

    def write_kubeconfig(self, server: str, node: str = "") -> Path:
        """DIR/kubeconfig for the administrator, or that of a node's agent. One that is right is left alone: the disk
        may be full."""
        path = self.directory / (f"nodes/{node}/kubeconfig" if node else "kubeconfig")
        wanted = self.kubeconfig(server, self.node(node) if node else self.admin)
        if path.is_file() and path.read_text() == wanted:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name("kubeconfig.new")
        with open(fresh, "w", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
            file.write(wanted)
        fresh.replace(path)
        return path


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
