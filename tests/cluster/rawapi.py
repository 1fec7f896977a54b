"""Plain HTTP to an API server: requests that no well-behaved client would send, and their bare answers."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml


@dataclass(frozen=True)
class Answer:
    """Status code, headers and body of one answer."""

    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return str(self.json.get("reason", ""))

    @property
    def message(self) -> str:
        return str(self.json.get("message", ""))


class RawApi:
    """One connection per request, so that no test leans on another's; but for questions, which `look` asks."""

    def __init__(self, kubeconfig: Path, *, certificate: bool = True) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        context = next(c["context"] for c in config["contexts"] if c["name"] == config["current-context"])
        cluster = next(c["cluster"] for c in config["clusters"] if c["name"] == context["cluster"])
        user = next(u["user"] for u in config["users"] if u["name"] == context["user"])
        self.server = urlsplit(cluster["server"])
        self.context = ssl.create_default_context(
            cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
        )
        if certificate:
            with tempfile.NamedTemporaryFile() as pem:
                for part in ("client-certificate-data", "client-key-data"):
                    pem.write(base64.b64decode(user[part]))
                pem.flush()
                self.context.load_cert_chain(pem.name)

        self._kept = threading.local()

    def _connection(self) -> HTTPSConnection:
        return HTTPSConnection(self.server.hostname or "", self.server.port, context=self.context, timeout=30)

    def look(self, path: str, **headers: str) -> Answer:
        """The answer to a GET over a connection that stays: whoever waits looks again and again."""
        kept = getattr(self._kept, "connection", None)
        if kept is not None:
            with suppress(OSError, HTTPException):  # closed by a server that is another one by now
                return _asked(kept, "GET", path, None, headers)
            kept.close()
        self._kept.connection = fresh = self._connection()
        return _asked(fresh, "GET", path, None, headers)

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        connection = self._connection()
        sent = {k.replace("_", "-"): v for k, v in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            return _asked(connection, method, path, body, sent)
        finally:
            connection.close()


def _asked(connection: HTTPSConnection, method: str, path: str, body: Any, headers: dict[str, str]) -> Answer:
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
