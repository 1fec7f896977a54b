"""What proves to the API server who we are, and how it is kept fresh.

Tokens and certificates are replaced while a process runs: service-account tokens every hour, client certificates by
whoever issued them, exec plugins at the expiry that they state. So nothing here is read once: every request asks for
the present `Grant`, which costs a stat(2) per file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import orjson

logger = logging.getLogger(__name__)

EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
# A plugin that cannot ask anybody anything has no reason to take longer.
EXEC_TIME_LIMIT = 60.0


class ConfigError(Exception):
    """A configuration that cannot be used; the message names the file and the field."""


class Material:
    """Bytes that were given inline, or that live in a file which may be replaced at any time."""

    def __init__(self, field: str, source: bytes | Path) -> None:
        self.field = field
        self._path = source if isinstance(source, Path) else None
        self._data = source if isinstance(source, bytes) else b""
        self._mark: tuple[int, int, int] | None = None

    def read(self) -> bytes:
        if self._path is None:
            return self._data
        try:
            stat = self._path.stat()
            mark = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if mark != self._mark:
                self._data, self._mark = self._path.read_bytes(), mark
        except OSError as error:
            # A file that is being replaced may be away for a moment: what was read before still counts.
            if not self._data:
                raise ConfigError(f"{self.field}: cannot read {self._path}: {error.strerror}") from error
        if not self._data:
            raise ConfigError(f"{self.field}: {self._path} is empty")
        return self._data


@dataclass(frozen=True, slots=True)
class Grant:
    """What one request carries: a bearer token, a client certificate, both, or nothing."""

    token: str = ""
    certificate: bytes = b""
    key: bytes = b""


class StoredCredentials:
    """A token or a certificate pair that stands in the configuration or in files. Without any: anonymous."""

    def __init__(
        self, *, token: Material | None = None, certificate: Material | None = None, key: Material | None = None
    ) -> None:
        if (certificate is None) != (key is None):
            given = certificate or key
            assert given is not None
            raise ConfigError(f"{given.field}: a client certificate and its key belong together; one is missing")
        self._token = token
        self._certificate = certificate
        self._key = key

    async def grant(self) -> Grant:
        return Grant(
            self._token.read().decode().strip() if self._token else "",
            self._certificate.read() if self._certificate else b"",
            self._key.read() if self._key else b"",
        )

    def reject(self, grant: Grant) -> None:
        """The server answered 401 to this grant. Files are looked at for every request anyway."""


class _ExecStatus(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    status: _ExecStatus | None = None


class EnvVar(msgspec.Struct):
    name: str
    value: str


class ExecPlugin(msgspec.Struct, rename="camel"):
    """`users[].user.exec` of a kubeconfig."""

    command: str
    api_version: str
    args: list[str] | None = None
    env: list[EnvVar] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class ExecCredentials:
    """Asks an exec plugin, remembers its answer until it expires or the server refuses it."""

    def __init__(self, field: str, plugin: ExecPlugin, cluster: dict[str, Any]) -> None:
        if plugin.api_version not in EXEC_API_VERSIONS:
            raise ConfigError(
                f"{field}.apiVersion: {plugin.api_version!r} is not one of {', '.join(EXEC_API_VERSIONS)}"
            )
        self._field = field
        self._plugin = plugin
        self._cluster = cluster
        self._lock = asyncio.Lock()
        self._grant: Grant | None = None
        self._expires: datetime | None = None

    async def grant(self) -> Grant:
        async with self._lock:  # one run of the plugin answers everybody who waits
            if self._grant is None or (self._expires and datetime.now(UTC) >= self._expires):
                self._grant, self._expires = self._read(await self._run())
            return self._grant

    def reject(self, grant: Grant) -> None:
        """Do not give it out again."""
        if self._grant is grant:
            self._grant = None

    async def _run(self) -> bytes:
        plugin = self._plugin
        interactive = plugin.interactive_mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
        if plugin.interactive_mode == "Always" and not interactive:
            raise ConfigError(f"{self._field}.interactiveMode: Always, but standard input is not a terminal")
        spec: dict[str, Any] = {"interactive": interactive}
        if plugin.provide_cluster_info:
            spec["cluster"] = self._cluster
        info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
        env = {
            **os.environ,
            **{variable.name: variable.value for variable in plugin.env or ()},
            "KUBERNETES_EXEC_INFO": orjson.dumps(info).decode(),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *plugin.args or (),
                env=env,
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = f"\n{plugin.install_hint}" if plugin.install_hint else ""
            raise ConfigError(
                f"{self._field}.command: cannot run {plugin.command!r}: {error.strerror}{hint}"
            ) from error
        try:
            async with asyncio.timeout(None if interactive else EXEC_TIME_LIMIT):
                output, _ = await process.communicate()
        except TimeoutError as error:
            raise ConfigError(f"{self._field}: {plugin.command!r} gave no answer in {EXEC_TIME_LIMIT:.0f} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise ConfigError(f"{self._field}: {plugin.command!r} failed with exit code {process.returncode}")
        return output

    def _read(self, output: bytes) -> tuple[Grant, datetime | None]:
        try:
            answer = msgspec.json.decode(output, type=_ExecCredential)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{self._field}: the plugin's answer is not an ExecCredential: {error}") from error
        if answer.api_version != self._plugin.api_version:
            raise ConfigError(
                f"{self._field}.apiVersion: {self._plugin.api_version} is configured, "
                f"the plugin answered with {answer.api_version}"
            )
        status = answer.status or _ExecStatus()
        if not status.token and not (status.client_certificate_data and status.client_key_data):
            raise ConfigError(f"{self._field}: the plugin returned neither a token nor a certificate with its key")
        expires = status.expiration_timestamp
        if expires and expires.tzinfo is None:
            raise ConfigError(f"{self._field}: the plugin's expirationTimestamp has no time zone")
        return (
            Grant(status.token, status.client_certificate_data.encode(), status.client_key_data.encode()),
            expires,
        )


Credentials = StoredCredentials | ExecCredentials
