"""Where the API server is and how to reach it: kubeconfig files, or the service account of a pod.

`load` chooses. The rules are those of kubectl and client-go, so that whatever people have keeps working; what VirtFleet
does not honour (proxies, impersonation, basic auth) is refused rather than ignored, because a client that silently acts
as somebody else is worse than none.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from virtfleet.kube.certificates import Credential, client_context
from virtfleet.kube.credentials import (
    ConfigError,
    Credentials,
    ExecCredentials,
    ExecPlugin,
    Grant,
    Material,
    StoredCredentials,
)

logger = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Config:
    """One API server, and who we are there."""

    def __init__(
        self,
        server: str,
        credentials: Credentials | None = None,
        *,
        namespace: str = "default",
        ca: Material | None = None,
        insecure: bool = False,
        tls_server_name: str = "",
    ) -> None:
        if not server.startswith(("https://", "http://")):
            raise ConfigError(f"server: {server!r} is not an http(s) URL")
        self.server = server.rstrip("/")
        self.namespace = namespace
        self.tls_server_name = tls_server_name or None
        self._credentials = credentials or StoredCredentials()
        self._ca = ca
        self._insecure = insecure
        self._tls: tuple[Credential, ssl.SSLContext] | None = None

    async def grant(self) -> Grant:
        return await self._credentials.grant()

    def reject(self, grant: Grant) -> None:
        self._credentials.reject(grant)

    def tls(self, grant: Grant) -> ssl.SSLContext | None:
        """The context for a connection now, None for plain http.

        A context cannot forget an authority or a certificate, so every rotation makes a new one; connections are pooled
        by context, and those of the old one are not used again.
        """
        if self.server.startswith("http://"):
            return None
        ca = self._ca.read() if self._ca else b""
        material = Credential(grant.certificate, grant.key, ca)
        if self._tls is None or self._tls[0] != material:
            own = material if grant.certificate else None
            try:
                self._tls = (material, client_context(ca, own, insecure=self._insecure))
            except (ssl.SSLError, ValueError) as error:
                if self._tls is None:
                    raise ConfigError(f"TLS for {self.server}: {error}") from error
                # A certificate and its key are two files: for a moment one may be newer than the other.
                logger.warning("keeping the TLS settings of before, the new ones do not fit together: %s", error)
        return self._tls[1]


def load(kubeconfig: str | Path | None = None, context: str = "") -> Config:
    """The file asked for, else $KUBECONFIG, else the service account of this pod, else ~/.kube/config."""
    if kubeconfig:
        return from_kubeconfig([Path(kubeconfig)], context)
    if named := os.environ.get("KUBECONFIG"):
        return from_kubeconfig([Path(part) for part in named.split(os.pathsep) if part], context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and not context:
        return in_cluster()
    home = Path.home() / ".kube" / "config"
    if not home.exists():
        raise ConfigError(
            f"no cluster is configured: $KUBECONFIG is not set, {home} does not exist, and this is no pod"
        )
    return from_kubeconfig([home], context)


def in_cluster(account: Path = SERVICE_ACCOUNT) -> Config:
    """The API server as every pod finds it. Token and CA are read anew when the kubelet rotates them."""
    try:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    except KeyError as error:
        raise ConfigError(f"${error.args[0]} is not set: this process does not run in a pod") from error
    try:
        namespace = (account / "namespace").read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"cannot read {account / 'namespace'}: {error.strerror}; is automountServiceAccountToken false?"
        ) from error
    return Config(
        f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        StoredCredentials(token=Material("service account token", account / "token")),
        namespace=namespace,
        ca=Material("service account CA", account / "ca.crt"),
    )


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[dict[str, Any]] | None = None


class _User(msgspec.Struct, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    exec: ExecPlugin | None = None
    username: str = ""
    impersonate: str = msgspec.field(default="", name="as")
    auth_provider: dict[str, Any] | None = None


class _Context(msgspec.Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _Entry(msgspec.Struct):
    """An entry of one of the three lists."""

    name: str
    cluster: _Cluster = msgspec.field(default_factory=_Cluster)
    user: _User = msgspec.field(default_factory=_User)
    context: _Context = msgspec.field(default_factory=_Context)


class _Kubeconfig(msgspec.Struct, rename="kebab"):
    current_context: str = ""
    clusters: list[_Entry] | None = None
    users: list[_Entry] | None = None
    contexts: list[_Entry] | None = None


_Entries = dict[str, tuple[Path, _Entry]]


def from_kubeconfig(paths: list[Path], context: str = "") -> Config:
    """One context of the files, merged as kubectl does: an earlier file wins over a later one, missing are skipped."""
    files = [(path, _read(path)) for path in paths if path.exists()]
    if not files:
        raise ConfigError(f"kubeconfig: {', '.join(map(str, paths))}: no such file")
    clusters: _Entries = {entry.name: (path, entry) for path, file in files[::-1] for entry in file.clusters or ()}
    users: _Entries = {entry.name: (path, entry) for path, file in files[::-1] for entry in file.users or ()}
    contexts: _Entries = {entry.name: (path, entry) for path, file in files[::-1] for entry in file.contexts or ()}
    chosen = context or next((file.current_context for _, file in files if file.current_context), "")
    if not chosen:
        raise ConfigError(f"{paths[0]}: current-context is not set; there are {_names(contexts)}")
    where, named = _lookup(files[0][0], "context" if context else "current-context", chosen, contexts)
    selected = named.context
    cluster_file, entry = _lookup(where, f"contexts[{chosen}].context.cluster", selected.cluster, clusters)
    cluster, field = entry.cluster, f"{cluster_file}: clusters[{selected.cluster}].cluster"
    if cluster.proxy_url:
        raise ConfigError(f"{field}.proxy-url: proxies are not supported")
    if not cluster.server:
        raise ConfigError(f"{field}.server: is not set")
    data = cluster.certificate_authority_data
    ca = _material(field, cluster_file, "certificate-authority", cluster.certificate_authority, data)
    credentials: Credentials = StoredCredentials()
    if selected.user:
        user_file, entry = _lookup(where, f"contexts[{chosen}].context.user", selected.user, users)
        user_field = f"{user_file}: users[{selected.user}].user"
        credentials = _credentials(user_field, user_file, entry.user, _cluster_info(cluster, ca))
    try:
        return Config(
            cluster.server,
            credentials,
            namespace=selected.namespace or "default",
            ca=ca,
            insecure=cluster.insecure_skip_tls_verify,
            tls_server_name=cluster.tls_server_name,
        )
    except ConfigError as error:
        raise ConfigError(f"{field}.{error}") from error


def _read(path: Path) -> _Kubeconfig:
    try:
        return msgspec.yaml.decode(path.read_bytes() or b"{}", type=_Kubeconfig)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: {error}") from error


def _lookup(path: Path, field: str, name: str, entries: _Entries) -> tuple[Path, _Entry]:
    if name not in entries:
        raise ConfigError(f"{path}: {field}: {name!r} does not exist; there are {_names(entries)}")
    return entries[name]


def _names(entries: Iterable[str]) -> str:
    return ", ".join(sorted(entries)) or "none"


def _material(where: str, file: Path, field: str, path: str, data: str) -> Material | None:
    """`field` of an entry: inline data wins over a path, and a path is relative to the file that names it."""
    if data:
        try:
            return Material(f"{where}.{field}-data", base64.b64decode(data, validate=True))
        except binascii.Error as error:
            raise ConfigError(f"{where}.{field}-data: is not base64: {error}") from error
    return Material(f"{where}.{field}", file.parent / path) if path else None


def _cluster_info(cluster: _Cluster, ca: Material | None) -> dict[str, Any]:
    """What an exec plugin with provideClusterInfo is told."""
    known = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": base64.b64encode(ca.read()).decode() if ca else "",
    }
    info: dict[str, Any] = {name: value for name, value in known.items() if value}
    for extension in cluster.extensions or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.get("extension")
    return info


def _credentials(where: str, file: Path, user: _User, cluster_info: dict[str, Any]) -> Credentials:
    if user.auth_provider:
        raise ConfigError(f"{where}.auth-provider: Kubernetes has dropped these; use an exec plugin")
    if user.username:
        raise ConfigError(f"{where}.username: Kubernetes has dropped basic authentication; use a token or certificate")
    if user.impersonate:
        raise ConfigError(f"{where}.as: impersonation is not supported")
    if user.exec:
        if "/" in user.exec.command:  # relative to the file, as every path in it; a bare name is looked up in $PATH
            user.exec.command = str(file.parent / user.exec.command)
        return ExecCredentials(f"{where}.exec", user.exec, cluster_info)
    token = None
    if user.token_file:
        token = Material(f"{where}.tokenFile", file.parent / user.token_file)
    elif user.token:
        token = Material(f"{where}.token", user.token.encode())
    return StoredCredentials(
        token=token,
        certificate=_material(where, file, "client-certificate", user.client_certificate, user.client_certificate_data),
        key=_material(where, file, "client-key", user.client_key, user.client_key_data),
    )
