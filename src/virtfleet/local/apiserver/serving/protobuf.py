"""Built-in kinds sent as protobuf, which is how recent kubectl versions send what `kubectl create` makes.

Only bodies of requests are read; answers are JSON, which every client accepts beside protobuf. The types of fields are
those of the JSON schemas, so that all this needs is a table from field numbers to JSON names (builtin_protobuf.json).

In Kubernetes' dialect a field that is not a pointer is always sent, also when it is not set. So zero values count only
where the table marks a field as one that can be absent.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import Any

import orjson
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from virtfleet.api import times
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.builtin import facts
from virtfleet.local.apiserver.objects import refusals

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"

Wire = int | bytes  # what the wire format can say of a value
Numbers = dict[str, Any]  # field number -> JSON name, or the Numbers of a type that is inlined


def decode(body: bytes) -> Obj:
    """The object in a body; a bad request if it is not a message of a built-in kind."""
    try:
        if not body.startswith(_MAGIC):
            raise ValueError("it does not begin with Kubernetes' mark")
        envelope = dict(_fields(body[len(_MAGIC) :]))
        about = {number: _text(value) for number, value in _fields(_raw(envelope.get(1, b"")))}
        api_version, kind = about.get(1, ""), about.get(2, "")
        name = _types().get((api_version, kind))
        if name is None:
            raise ValueError(f"{kind!r} of version {api_version!r} is not a kind that can be sent so; send it as JSON")
        return {"apiVersion": api_version, "kind": kind, **_message(name, _raw(envelope.get(2, b"")))}
    except (ValueError, DecodeError) as error:
        raise refusals.bad_request(f"the body is not a protobuf message of this API: {error}") from error


@cache
def _numbers() -> Any:
    """The Numbers of every type."""
    return orjson.loads(resources.files(__package__).joinpath("builtin_protobuf.json").read_bytes())


@cache
def _types() -> dict[tuple[str, str], str]:
    """(apiVersion, kind) -> the type that describes it."""
    return {
        (f"{gvk['group']}/{gvk['version']}".lstrip("/"), gvk["kind"]): name
        for name in _numbers()
        for gvk in facts().types[name].get("x-kubernetes-group-version-kind", ())
    }


def _message(name: str, data: bytes) -> Obj:
    return _object(_numbers()[name], facts().types[name]["properties"], data)


def _object(numbers: Numbers, properties: dict[str, Any], data: bytes) -> Obj:
    obj: Obj = {}
    for number, wire in _fields(data):
        field = numbers.get(str(number))
        if field is None:
            continue  # of a newer version of the API
        if isinstance(field, dict):
            obj |= _object(field, properties, _raw(wire))
            continue
        name = field.lstrip("*")
        schema = properties[name]
        if schema.get("type") == "array":
            obj.setdefault(name, []).append(_value(schema["items"], wire))
        elif schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
            key, value = _entry(schema["additionalProperties"], _raw(wire))
            obj.setdefault(name, {})[key] = value
        else:
            value = _value(schema, wire)
            if value is not None and (value or field != name):
                obj[name] = value
    return obj


def _entry(schema: dict[str, Any], data: bytes) -> tuple[str, Any]:
    """One entry of a map. A list as its value travels as a message of its own."""
    pair = dict(_fields(data))
    key, wire = _text(pair.get(1, b"")), pair.get(2, b"")
    if schema.get("type") == "array":
        return key, [_value(schema["items"], item) for _, item in _fields(_raw(wire))]
    return key, _value(schema, wire)


def _value(schema: dict[str, Any], wire: Wire) -> Any:
    reference = schema.get("$ref")
    if reference:
        special = _SPECIAL.get(reference.rpartition(".")[2])
        return special(_raw(wire)) if special else _message(reference, _raw(wire))
    match schema.get("type"):
        case "string" if schema.get("format") == "byte":
            return base64.b64encode(_raw(wire)).decode()
        case "string":
            return _text(wire)
        case "boolean":
            return bool(wire)
        case "integer":
            return _signed(wire)
        case "number":
            return struct.unpack("<d", struct.pack("<q", _signed(wire)))[0]
        case kind:
            raise ValueError(f"a value of type {kind} has no place in it")


def _time(data: bytes) -> str | None:
    """Seconds and nanoseconds since 1970; none at all is a time that is not set."""
    parts = dict(_fields(data))
    return times.timestamp(_signed(parts.get(1, 0))) if parts else None


def _micro_time(data: bytes) -> str | None:
    second = _time(data)
    return second and f"{second[:-1]}.{_signed(dict(_fields(data)).get(2, 0)) // 1000:06}Z"


def _int_or_string(data: bytes) -> int | str:
    parts = dict(_fields(data))
    return _text(parts.get(3, b"")) if parts.get(1) else _signed(parts.get(2, 0))


def _json(data: bytes) -> Any:
    raw = _raw(dict(_fields(data)).get(1, b""))
    return orjson.loads(raw) if raw else None


_SPECIAL: dict[str, Callable[[bytes], Any]] = {
    "Time": _time,
    "MicroTime": _micro_time,
    "Quantity": lambda data: _text(dict(_fields(data)).get(1, b"")),
    "IntOrString": _int_or_string,
    "RawExtension": _json,
    "FieldsV1": _json,
}


def _fields(data: bytes) -> Iterator[tuple[int, Wire]]:
    """The fields of a message by their numbers, whatever it is a message of."""
    fields = UnknownFieldSet(Empty.FromString(data))
    for field in (fields[index] for index in range(len(fields))):
        if not isinstance(field.data, int | bytes):
            raise ValueError("there are groups in it")
        yield field.field_number, field.data


def _raw(wire: Wire) -> bytes:
    if not isinstance(wire, bytes):
        raise ValueError("a number stands where bytes belong")
    return wire


def _text(wire: Wire) -> str:
    return _raw(wire).decode()


def _signed(wire: Wire) -> int:
    if isinstance(wire, bytes):
        raise ValueError("bytes stand where a number belongs")
    return wire - (1 << 64) if wire >> 63 else wire
