"""The kernel's programs of a control group of version 2: those that are attached, and others in their place."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from contextlib import AbstractContextManager
from pathlib import Path

from virtfleet.kube.confined import closing

_BPF = {"x86_64": 321, "aarch64": 280, "s390x": 351, "ppc64le": 361, "riscv64": 280}
_LOAD, _ATTACH, _OPEN, _INFO, _QUERY = 5, 8, 13, 15, 16
_CGROUP_DEVICE = 15  # the kind of program
_DEVICE = 6  # the kind of place
_ALLOW_MULTI, _REPLACE = 2, 4
_MOST = 64  # the kernel attaches no more to one group
_LICENSE = b"Apache-2.0\0"
_INFO_SIZE = 40
_XLATED_SIZE = 20

_libc = ctypes.CDLL(None, use_errno=True)


def device_programs(group: Path) -> list[int]:
    """The numbers of the programs that are attached to a group itself."""
    with _opened(group) as directory:
        return _query(directory)[1]


def instructions(number: int) -> bytes:
    """Of a program, as the kernel runs them. Empty where they are kept from us."""
    with _program(number) as program:
        size = struct.unpack_from("=I", _info(program), _XLATED_SIZE)[0]
        content = ctypes.create_string_buffer(max(1, size))
        _info(program, size, ctypes.addressof(content))
        return content.raw[:size]


def _load(program: bytes) -> int:
    """A descriptor of a new program for devices; the kernel refuses what could do harm."""
    content, license_ = ctypes.create_string_buffer(program, len(program)), ctypes.create_string_buffer(_LICENSE)
    request = struct.pack(
        "=IIQQ", _CGROUP_DEVICE, len(program) // 8, ctypes.addressof(content), ctypes.addressof(license_)
    )
    return _bpf(_LOAD, request)


def replace(group: Path, number: int, program: bytes) -> None:
    """Another program in the place of an attached one, with no moment between them."""
    with _opened(group) as directory, _program(number) as old, closing(_load(program)) as new:
        flags = _query(directory)[0]
        if flags & _ALLOW_MULTI:
            flags |= _REPLACE
        _bpf(_ATTACH, struct.pack("=IIIII", directory, new, _DEVICE, flags, old if flags & _REPLACE else 0))


def _query(directory: int) -> tuple[int, list[int]]:
    numbers = (ctypes.c_uint32 * _MOST)()
    request = bytearray(struct.pack("=IIIIQII", directory, _DEVICE, 0, 0, ctypes.addressof(numbers), _MOST, 0))
    _bpf(_QUERY, request)
    _, _, _, flags, _, count, _ = struct.unpack("=IIIIQII", request)
    return flags, list(numbers[:count])


def _info(program: int, size: int = 0, place: int = 0) -> bytes:
    info = ctypes.create_string_buffer(_INFO_SIZE)
    struct.pack_into("=IQQ", info, _XLATED_SIZE, size, 0, place)
    _bpf(_INFO, struct.pack("=IIQ", program, _INFO_SIZE, ctypes.addressof(info)))
    return info.raw


def _bpf(command: int, request: bytes | bytearray) -> int:
    call = _BPF.get(platform.machine())
    if call is None:
        raise OSError(errno.ENOSYS, f"device programs are not known on {platform.machine()}")
    attributes = (ctypes.c_char * len(request)).from_buffer_copy(request)
    answer = int(_libc.syscall(call, command, ctypes.byref(attributes), len(request)))
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"the kernel refuses a device program: {os.strerror(code)}")
    if isinstance(request, bytearray):
        request[:] = attributes.raw
    return answer


def _opened(group: Path) -> AbstractContextManager[int]:
    return closing(os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def _program(number: int) -> AbstractContextManager[int]:
    return closing(_bpf(_OPEN, struct.pack("=III", number, 0, 0)))
