"""Whether hardware virtualisation really works here, by trying it.

A device node that opens is no proof: where virtualisation is itself emulated, each instruction may take so long that no
guest ever gets to its end. So a tiny firmware is booted that switches to protected mode and copies memory, which takes
milliseconds on hardware, and it has a few seconds for that. The answer holds until the machine is rebooted.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

from virtfleet.hypervisors.base import Hypervisor
from virtfleet.launcher.libvirtd.daemons import lacking

SECONDS = 3.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FINISHED = 33  # the exit code that the firmware asks for
# Assembled from: cli; lgdt; protected mode on; flat segments; four times: copy 16 MiB with `rep movsl`; then write 16
# to port 0x501, where the device that ends the emulator is.
_CODE = bytes.fromhex(
    "fa2e660f011659000f20c00c010f22c066ea1800ffff0800"
    "66b810008ed88ec0bb04000000be00000001bf00000002b900004000f3a54b75ec66ba0105b010eef4"
    "0000000000000000ffff0000009acf00ffff00000092cf0017004100ffff"
)
_ROM_SIZE = 1 << 16
_RESET_VECTOR = 0xFFF0
_JUMP_TO_START = b"\xe9\x0d\x00"


class Verdict(msgspec.Struct, frozen=True):
    """Whether it works, and if not, why."""

    works: bool
    reason: str = ""


class _Record(msgspec.Struct):
    boot_id: str
    verdict: Verdict


def hypervisor(tried: Hypervisor, cache: Path | None = None) -> Verdict:
    """Whether a hypervisor works on this machine."""
    wanted = tried.descriptor
    if tried.refusal:
        return Verdict(False, tried.refusal)
    if missing := lacking(tried):
        return Verdict(False, missing)
    if wanted.device == "kvm":
        return kvm(cache)
    if wanted.device and not os.path.exists(f"/dev/{wanted.device}"):
        return Verdict(False, f"there is no /dev/{wanted.device}")
    return Verdict(True)


def kvm(cache: Path | None = None) -> Verdict:
    """Whether KVM works. The answer is kept in `cache` for as long as this machine is up."""
    boot_id = _BOOT_ID.read_text().strip()
    if cache is not None:
        try:
            record = msgspec.json.decode((cache / "kvm.json").read_bytes(), type=_Record)
        except (OSError, msgspec.MsgspecError):
            pass
        else:
            if record.boot_id == boot_id:
                return record.verdict
    verdict = _try_kvm()
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        temporary = cache / f"kvm.json.{os.getpid()}"
        temporary.write_bytes(msgspec.json.encode(_Record(boot_id, verdict)))
        temporary.replace(cache / "kvm.json")
    return verdict


def _try_kvm() -> Verdict:
    try:
        os.close(os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return Verdict(False, f"/dev/kvm: {error.strerror}")
    emulator = f"qemu-system-{platform.machine()}"
    if platform.machine() != "x86_64":
        return Verdict(True)  # seen to lie on x86 only
    if not shutil.which(emulator):
        return Verdict(False, f"{emulator} is not installed")
    rom = bytearray(b"\xf4" * _ROM_SIZE)
    rom[: len(_CODE)] = _CODE
    rom[_RESET_VECTOR : _RESET_VECTOR + len(_JUMP_TO_START)] = _JUMP_TO_START
    with tempfile.NamedTemporaryFile(prefix="virtfleet-probe-") as file:
        file.write(rom)
        file.flush()
        command = [
            *(emulator, "-accel", "kvm", "-machine", "pc", "-m", "64", "-nodefaults", "-display", "none"),
            *("-bios", file.name, "-device", "isa-debug-exit,iobase=0x501,iosize=1"),
        ]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return Verdict(
                False, f"/dev/kvm opens, but a guest that copies 64 MiB of memory did not end within {SECONDS:.0f} s"
            )
    if done.returncode != _FINISHED:
        return Verdict(False, f"a tiny guest ended with status {done.returncode}: {done.stderr.strip()}")
    return Verdict(True)
