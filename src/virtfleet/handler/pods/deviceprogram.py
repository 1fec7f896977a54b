"""Programs in the kernel that say which devices a control group of version 2 may open: read, asked, and added to.

Such a program gets the kind of device, the access and both numbers of a device, and answers 1 or 0. The container
runtime loads one per container, and all that are attached must say 1: adding one more allows nothing. So the runtime's
program is replaced by one that first looks for our device, and otherwise goes on as the runtime's own did, instruction
by instruction. What it allows cannot get less in that way, whatever it consists of.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_INSTRUCTION: Final = struct.Struct("=BBhi")
_KINDS: Final = {"b": 1, "c": 2}
_ACCESS: Final = {"m": 1, "r": 2, "w": 4}
_KIND_AND_ACCESS, _MAJOR, _MINOR = 0, 4, 8  # where a program finds them, from register 1 on

_LOAD, _EXIT, _JUMP, _CALL, _WIDE = 0x61, 0x95, 0x05, 0x85, 0x18
_AND32, _SHIFT32, _SET32, _COPY32 = 0x54, 0x74, 0xB4, 0xBC
_UNEQUAL = 0x55
_WORD = 0xFFFFFFFF
_LONG = 0xFFFFFFFFFFFFFFFF
# By the upper four bits of the code. Of the jumps there are those that runtimes use; others are not understood.
_ARITHMETIC: Final[dict[int, Callable[[int, int], int]]] = {
    0x4: lambda a, b: a | b,
    0x5: lambda a, b: a & b,
    0x6: lambda a, b: a << (b & 63),
    0x7: lambda a, b: a >> (b & 63),
    0xB: lambda a, b: b,
}
_CONDITIONS: Final[dict[int, Callable[[int, int], bool]]] = {
    0x1: lambda a, b: a == b,
    0x2: lambda a, b: a > b,
    0x3: lambda a, b: a >= b,
    0x4: lambda a, b: bool(a & b),
    0x5: lambda a, b: a != b,
    0xA: lambda a, b: a < b,
    0xB: lambda a, b: a <= b,
}
_LONGEST = 1 << 16


class NotUnderstood(Exception):
    """A program has something in it that is not known here."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device, and what may be done with it."""

    kind: int
    major: int
    minor: int
    access: int

    @classmethod
    def parse(cls, line: str) -> Device:
        """From a line as version 1 has it: "c 10:232 rwm"."""
        kind, numbers, access = line.split()
        major, _, minor = numbers.partition(":")
        return cls(_KINDS[kind], int(major), int(minor), sum(_ACCESS[letter] for letter in set(access)))


def allowing(device: Device, program: bytes) -> bytes:
    """The program that allows this device, and else says what `program` says."""
    checks = [
        _instruction(_LOAD, 2, 1, _KIND_AND_ACCESS),
        _instruction(_COPY32, 3, 2),
        _instruction(_AND32, 2, value=0xFFFF),
        (2, device.kind),
        _instruction(_SHIFT32, 3, value=16),
        _instruction(_AND32, 3, value=~device.access & 7),
        (3, 0),
        _instruction(_LOAD, 2, 1, _MAJOR),
        (2, device.major),
        _instruction(_LOAD, 2, 1, _MINOR),
        (2, device.minor),
        _instruction(_SET32, 0, value=1),
        _instruction(_EXIT),
    ]
    return b"".join(
        check if isinstance(check, bytes) else _instruction(_UNEQUAL, check[0], 0, len(checks) - at - 1, check[1])
        for at, check in enumerate(checks)
    ) + (program or _YES)


def without(device: Device, program: bytes) -> bytes:
    """The program without what `allowing` put in front of it for this device. Anything else stays as it is."""
    ours = allowing(device, b"").removesuffix(_YES)
    for at in range(0, len(program), len(ours)):
        block = program[at : at + len(ours)]
        if block == ours:
            return program[:at] + program[at + len(ours) :]
        if _codes(block) != _codes(ours):  # of whichever device
            break
    return program


def movable(program: bytes) -> bool:
    """Whether a program stays what it is behind others: it calls nothing, and refers to nothing in the kernel."""
    return not {_CALL, _WIDE}.intersection(_codes(program))


def _codes(program: bytes) -> list[int]:
    return [code for code, *_ in _INSTRUCTION.iter_unpack(program)]


def permits(program: bytes, device: Device) -> bool:
    """What a program says of a device. It is run here, as the kernel would."""
    context = {_KIND_AND_ACCESS: device.access << 16 | device.kind, _MAJOR: device.major, _MINOR: device.minor}
    registers = [0] * 11
    instructions = list(_INSTRUCTION.iter_unpack(program))
    at = 0
    for _ in range(_LONGEST):
        if at >= len(instructions):
            break
        code, operands, offset, value = instructions[at]
        target, source = _registers(operands)
        at += 1
        family, operation = code & 7, code >> 4
        right = registers[source] if code & 8 else value & _LONG
        if code == _EXIT:
            return registers[0] == 1
        if code == _LOAD and source == 1 and offset in context:
            registers[target] = context[offset]
        elif code == _JUMP:
            at += offset
        elif family in (4, 7) and operation in _ARITHMETIC:
            width = _WORD if family == 4 else _LONG
            registers[target] = _ARITHMETIC[operation](registers[target] & width, right & width) & width
        elif family in (5, 6) and operation in _CONDITIONS:
            width = _WORD if family == 6 else _LONG
            at += offset if _CONDITIONS[operation](registers[target] & width, right & width) else 0
        else:
            raise NotUnderstood(f"instruction {at - 1} ({code:#x}) of the device program")
    raise NotUnderstood("the device program has no end")


def _instruction(code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    operands = source << 4 | target if sys.byteorder == "little" else target << 4 | source
    return _INSTRUCTION.pack(code, operands, offset, value)


def _registers(operands: int) -> tuple[int, int]:
    low, high = operands & 15, operands >> 4
    return (low, high) if sys.byteorder == "little" else (high, low)


_YES: Final = _instruction(_SET32, 0, value=1) + _instruction(_EXIT)
