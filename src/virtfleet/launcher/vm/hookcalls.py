"""Calls hook sidecars, as a short-lived child: `python -m virtfleet.launcher.vm.hookcalls DIRECTORY < call.json`.

Each has a directory, in which it listens on a socket and speaks gRPC: `Info` tells which hook points it wants to be
asked at, and with which priority. Messages have fields of bytes and numbers only, and need no generated code.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from virtfleet.domain import paths

VERSIONS: Final = {"v1alpha1": ("OnDefineDomain",), "v1alpha2": ("OnDefineDomain", "PreCloudInitIso"),
                   "v1alpha3": ("OnDefineDomain", "PreCloudInitIso", "Shutdown")}  # fmt: skip
_COMING = 60.0  # seconds for a sidecar's socket to be there, and to answer
_CALL = 20.0  # seconds for one answer
_LARGEST = 1 << 20  # bytes of an answer
_NAME, _POINTS, _VERSIONS, _PRIORITY = 1, 3, 4, 2  # numbers of fields


Fields = dict[int, list[Any]]
"""Of a message: bytes and numbers, by the number of the field."""


class Call(msgspec.Struct):
    """A question to all sidecars that want it, one after the other; what one has changed is passed on to the next."""

    count: int
    point: str
    fields: dict[int, bytes]
    passed_on: tuple[int, ...]


class SidecarError(Exception):
    """A sidecar does not do as it should; the message is for its owner."""


class Sidecar(msgspec.Struct):
    """One that has introduced itself."""

    number: int
    socket: str
    name: str
    version: str
    points: dict[str, int]


def encode(fields: dict[int, bytes]) -> bytes:
    """A message of such fields."""
    return b"".join(_varint(number << 3 | 2) + _varint(len(data)) + data for number, data in fields.items())


def decode(message: bytes) -> Fields:
    """Fields of a message, by number. Raises DecodeError where it is none."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    fields: Fields = {}
    unknown = UnknownFieldSet(Empty.FromString(message))
    for field in (unknown[index] for index in range(len(unknown))):
        if field.wire_type not in (0, 2):
            raise DecodeError("not a message of bytes and numbers")
        fields.setdefault(field.field_number, []).append(field.data)
    return fields


def _varint(number: int) -> bytes:
    low = bytes([number & 0x7F])
    return low if number < 0x80 else bytes([low[0] | 0x80]) + _varint(number >> 7)


def answered(call: Call, directory: Path) -> dict[int, bytes]:
    """The fields as all sidecars leave them: those of high priority first, then by name."""
    sidecars = [_introduced(number, directory, time.monotonic() + _COMING) for number in range(call.count)]
    fields = dict(call.fields)
    interested = [s for s in sidecars if call.point in s.points and call.point in VERSIONS[s.version]]
    for sidecar in sorted(interested, key=lambda s: (-s.points[call.point], s.name)):
        method = f"/kubevirt.hooks.{sidecar.version}.Callbacks/{call.point}"
        said = _called(sidecar.number, sidecar.socket, method, encode(fields))
        changed = {number: values[-1] for number, values in said.items() if number in call.passed_on}
        fields |= {number: value for number, value in changed.items() if isinstance(value, bytes) and value}
    return {number: fields[number] for number in call.passed_on}


def _introduced(number: int, directory: Path, deadline: float) -> Sidecar:
    """What a sidecar says of itself, when it is there."""
    trouble = "it listens on no socket"
    while time.monotonic() < deadline:
        for socket in _sockets(directory / paths.hook_sidecar(number)):
            try:
                return _described(number, socket, _called(number, socket, "/kubevirt.hooks.info.Info/Info", b""))
            except SidecarError as error:
                trouble = str(error)
        time.sleep(0.1)
    raise SidecarError(f"sidecar {number} did not answer within {_COMING:.0f} s: {trouble}")


def _described(number: int, socket: str, info: Fields) -> Sidecar:
    offered = {version.decode(errors="replace") for version in _bytes(info, _VERSIONS)}
    version = max(offered & VERSIONS.keys(), default="")
    if not version:
        raise SidecarError(f"sidecar {number} offers versions {sorted(offered)}; one of {[*VERSIONS]} is needed")
    points = [_decoded(number, point) for point in _bytes(info, _POINTS)]
    priorities = {_text(point, _NAME): _integer(point.get(_PRIORITY, [0])[-1]) for point in points}
    return Sidecar(number, socket, _text(info, _NAME), version, priorities)


def _bytes(fields: Fields, number: int) -> list[bytes]:
    return [value for value in fields.get(number, ()) if isinstance(value, bytes)]


def _text(fields: Fields, number: int) -> str:
    return b"".join(_bytes(fields, number)[-1:]).decode(errors="replace")


def _integer(value: object) -> int:
    """A number as the message means it: what is negative is written as a large one."""
    if not isinstance(value, int):
        return 0
    return value - (1 << 64) if value >> 63 else value


def _sockets(directory: Path) -> list[str]:
    """What a sidecar listens on; a link is none, and would lead elsewhere."""
    return [str(path) for path in sorted(directory.glob("*")) if path.is_socket() and not path.is_symlink()]


def _called(number: int, socket: str, method: str, message: bytes) -> Fields:
    import grpc

    # Without an authority grpc sends the socket's path as one, which servers written in Go refuse.
    options = [("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", _LARGEST)]
    with grpc.insecure_channel(f"unix://{socket}", options=options) as channel:
        try:
            said: bytes = channel.unary_unary(method)(message, timeout=_CALL)
        except grpc.RpcError as error:
            details = error.details() if isinstance(error, grpc.Call) else error
            raise SidecarError(f"sidecar {number}: {method.rpartition('/')[2]}: {details}") from None
    return _decoded(number, said)


def _decoded(number: int, message: bytes) -> Fields:
    from google.protobuf.message import DecodeError

    try:
        return decode(message)
    except DecodeError as error:
        raise SidecarError(f"sidecar {number} answers with something else than a message: {error}") from None


def main() -> None:
    call = msgspec.json.decode(sys.stdin.buffer.read(), type=Call)
    try:
        fields = answered(call, Path(sys.argv[1]))
    except SidecarError as error:
        sys.exit(str(error)[:2000])
    sys.stdout.buffer.write(msgspec.json.encode(fields))


if __name__ == "__main__":
    main()
