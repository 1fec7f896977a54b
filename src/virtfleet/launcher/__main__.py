"""Entry point of the launcher: `python -m virtfleet.launcher`.

Before anything else is imported, the encryption that asyncio would bring along is hidden from it: the launcher speaks
over local sockets only, and there is one of it for every VM.
"""

from __future__ import annotations

import sys

_IMPORT = sys.argv[1:2] == ["import"]
if not _IMPORT:  # which asks web servers
    sys.modules["ssl"] = None  # type: ignore[assignment]


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
