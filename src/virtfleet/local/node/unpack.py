"""Unpacks one image layer, as a child process of its own: `python -m virtfleet.local.node.unpack ROOT < layer.tar`.

The child makes ROOT its `/` first, so that no path and no link in the archive can name a file of the machine. Whiteouts
become the marks that overlay mounts understand: what lower layers have there is hidden.
"""

from __future__ import annotations

import os
import stat
import sys
import tarfile

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"


def main() -> None:
    root = sys.argv[1]
    os.umask(0)
    os.chroot(root)
    os.chdir("/")
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        # The root is confined; owners, modes and devices are meant.
        archive.extraction_filter = lambda member, _: member
        for member in archive:
            parent, name = os.path.split("/" + member.name.lstrip("/"))
            if name == _OPAQUE:
                os.makedirs(parent, exist_ok=True)
                os.setxattr(parent, "trusted.overlay.opaque", b"y")
            elif name.startswith(_WHITEOUT):
                os.makedirs(parent, exist_ok=True)
                os.mknod(os.path.join(parent, name[len(_WHITEOUT) :]), stat.S_IFCHR, os.makedev(0, 0))
            else:
                archive.extract(member, "/", numeric_owner=True)
                # File capabilities travel as PAX records, which tarfile leaves alone.
                if attribute := member.pax_headers.get("SCHILY.xattr.security.capability"):
                    path = os.path.join(parent, name)
                    os.setxattr(path, "security.capability", attribute.encode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    main()
