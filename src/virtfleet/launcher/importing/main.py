"""The importer's process: one job, its last words for whoever asks the Pod, and an exit code."""

from __future__ import annotations

import errno
import logging
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from virtfleet.launcher.failure import Failure, leave_word
from virtfleet.launcher.importing import streams, upload
from virtfleet.launcher.importing.streams import Hopeless, Trouble
from virtfleet.launcher.importing.target import DISK, Target
from virtfleet.launcher.storage import imagefiles
from virtfleet.protocol import importing
from virtfleet.protocol.importing import HOPELESS, Job, Source

_MOST_WORDS: Final = 2048
_TROUBLE: Final = 1

logger = logging.getLogger(__name__)


def fill(job: Job) -> None:
    """Do what the job says."""
    target = Target(job)
    match job.source:
        case Source.BLANK:
            target.blank()
        case Source.HTTP:
            target.stream(streams.download(job))
        case Source.REGISTRY:
            try:
                target.file(imagefiles.disk(Path(importing.IMAGE), what="the image"))
            except Failure as error:
                raise Hopeless(str(error)) from None
        case Source.CLAIM:
            target.copy(Path(importing.SOURCE_DEVICE) if job.source_block else Path(importing.SOURCE, DISK))
        case Source.UPLOAD:
            upload.receive(job, importing.PORT, target.stream)


def main() -> None:
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    job = msgspec.json.decode(sys.argv[2], type=Job)
    words, code = "the disk is whole", 0
    try:
        fill(job)
    except Hopeless as error:
        words, code = str(error), HOPELESS
    except Trouble as error:
        words, code = str(error), _TROUBLE
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        words, code = "the claim or the node has no room left" if full else str(error), _TROUBLE
    logger.info("%s", words)
    leave_word(words[:_MOST_WORDS])
    os._exit(code)  # nothing here is worth waiting for
