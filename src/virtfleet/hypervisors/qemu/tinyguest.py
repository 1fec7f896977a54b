"""A guest that shows whether hardware virtualisation really works: QEMU boots a firmware of a few instructions.

A device node that opens is no proof: where virtualisation is itself emulated, each instruction may take so long that no
guest ever gets to its end. This one switches to protected mode and copies memory, which takes milliseconds on hardware.
"""

from __future__ import annotations

from virtfleet.hypervisors.proof import TinyGuest

_SECONDS = 3.0
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


def tiny_guest(emulator: str, accelerator: str) -> TinyGuest:
    """The guest, for an emulator of x86."""
    rom = bytearray(_CODE.ljust(_ROM_SIZE, b"\xf4"))
    rom[_RESET_VECTOR : _RESET_VECTOR + len(_JUMP_TO_START)] = _JUMP_TO_START
    return TinyGuest(
        command=(
            *(emulator, "-accel", accelerator, "-machine", "pc", "-m", "64", "-nodefaults", "-display", "none"),
            *("-bios", "{rom}", "-device", "isa-debug-exit,iobase=0x501,iosize=1"),
        ),
        files={"rom": bytes(rom)},
        does="copies 64 MiB of memory",
        status=_FINISHED,
        seconds=_SECONDS,
    )
