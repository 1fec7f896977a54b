"""What may leave a cluster in a support bundle: objects and logs without what is secret in them. Pure.

Secrets are never asked for. What people write into other objects all the same (passwords in cloud-init, in variables of
containers) is left out by the name of its field, and once more by its shape.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

LEFT_OUT = "(left out)"
# Fields whose content is the user's own: what a guest is set up with, and what clients prove themselves with.
_FIELDS = {
    "userdata",
    "userdatabase64",
    "networkdata",
    "networkdatabase64",
    "cabundle",
    "token",
    "password",
    "bearertoken",
    "data",
    "binarydata",
    "stringdata",
    "unattend",
    "autounattend",
    "kernelargs",
}
_DROPPED = {"managedFields", "kubectl.kubernetes.io/last-applied-configuration"}
_TELLING = re.compile(r"passw|secret|token|credential|private|api[-_]?key|auth", re.IGNORECASE)
_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_HEADER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_TOKEN = re.compile(r"\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_IN_ADDRESS = re.compile(r"(://)[^/\s:@]+:[^/\s@]+@")
_ASSIGNED = re.compile(r"(?i)([\w-]*(?:passw(?:or)?d|secret|token|api[-_]?key)[\w-]*[\"']?\s*[:=]\s*[\"']?)[^\s\"',}]+")


def cleaned(value: Any) -> Any:
    """An object as it may be shown."""
    if isinstance(value, dict):
        if "name" in value and "value" in value and isinstance(value["value"], str):  # a variable of a container
            shown = LEFT_OUT if _TELLING.search(str(value["name"])) else text(value["value"])
            return {**{k: cleaned(v) for k, v in value.items()}, "value": shown}
        return {key: _field(key, part) for key, part in value.items() if key not in _DROPPED}
    if isinstance(value, list):
        return [cleaned(part) for part in value]
    return _string(value) if isinstance(value, str) else value


def _field(key: str, value: Any) -> Any:
    if key.lower() in _FIELDS and value:
        return LEFT_OUT
    if isinstance(value, str) and _TELLING.search(key) and not key.endswith(("Name", "Ref")):
        return LEFT_OUT
    return cleaned(value)


def _string(value: str) -> str:
    """A string; one that is an object itself, as annotations are, is cleaned like one."""
    if value[:1] in ("{", "["):
        try:
            return orjson.dumps(cleaned(orjson.loads(value))).decode()
        except orjson.JSONDecodeError:
            pass
    return text(value)


def text(value: str) -> str:
    """Lines of a log, or any other text."""
    value = _KEY.sub(LEFT_OUT, value)
    value = _TOKEN.sub(LEFT_OUT, value)
    value = _HEADER.sub(rf"\1 {LEFT_OUT}", value)
    value = _IN_ADDRESS.sub(rf"\1{LEFT_OUT}@", value)
    return _ASSIGNED.sub(rf"\1{LEFT_OUT}", value)
