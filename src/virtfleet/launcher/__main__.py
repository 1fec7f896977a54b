"""Entry point of the launcher: `python -m virtfleet.launcher`.

Before anything else is imported, what others would bring along for nothing is hidden from them, because there is a
launcher for every VM: asyncio's encryption, as it speaks over local sockets only, and msgspec's names for what this
Python's own `typing` has.
"""

from __future__ import annotations

import sys

_IMPORT = sys.argv[1:2] == ["import"]
if not _IMPORT:  # which asks web servers
    sys.modules |= {"ssl": None, "typing_extensions": None}  # type: ignore[dict-item]


def main() -> None:
    if sys.argv[1:2] == ["probe"]:  # as often as every second, so without libvirt
        from virtfleet.launcher.probe import main
    elif sys.argv[1:2] == ["share"]:
        from virtfleet.launcher.sharing.main import main
    elif _IMPORT:
        from virtfleet.launcher.importing.main import main
    else:
        from virtfleet.launcher.main import main

    main()


if __name__ == "__main__":
    main()
