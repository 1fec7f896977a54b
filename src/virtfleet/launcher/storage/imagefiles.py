"""Files in images that somebody else made, of which no link leads out."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path

from virtfleet.launcher.failure import Failure

_MOST_LINKS = 40  # as many as the kernel follows


def disk(image: Path, what: str, reference: str = "") -> Path:
    """The one file under /disk."""
    directory = _resolved(image, "/disk")
    listed = sorted(os.listdir(directory)) if directory.is_dir() else []
    files = [name for name in listed if name[0] != "." and not _resolved(image, f"/disk/{name}").is_dir()]
    if len(files) > 1:
        raise Failure(f"{what} has several files under /disk ({', '.join(files)}); name one as `path`")
    if not files:
        raise Failure(f"{f'{what} {reference}'.rstrip()} has no file under /disk")
    return inside(image, f"/disk/{files[0]}", what)


def inside(image: Path, path: str, what: str) -> Path:
    """A file of an image."""
    file = _resolved(image, path)
    if not file.is_file():
        named = f"/{file.relative_to(image.resolve())}"
        link = "" if named == posixpath.normpath(f"/{path}") else f": it is a link to {named}, which the image has not"
        raise Failure(f"{what} has no file {path}{link}")
    return file


def _resolved(image: Path, path: str) -> Path:
    """A path of an image. Links in it mean files of the image, as if that were all there is: none leads out of it."""
    top = place = image.resolve()
    ahead, links = [*reversed(Path(path).parts)], 0
    while ahead:
        part = ahead.pop()
        if part in ("/", ".."):
            place = top if part == "/" or place == top else place.parent
        elif not (place / part).is_symlink():
            place /= part
        else:
            ahead += reversed((place / part).readlink().parts)
            links += 1
        if links > _MOST_LINKS:
            raise Failure(f"{path} of the image goes through more than {_MOST_LINKS} links")
    return place
