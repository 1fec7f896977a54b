"""Images for containers: what is here is used, what is not is pulled in the background, failures are paced.

Nothing here waits: a pod whose image is on its way must still be deletable, so its worker is told to come back.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from virtfleet.local.node import registry
from virtfleet.local.node.images import Image, ImageError, ImageStore, canonical
from virtfleet.local.node.lifecycle import FIRST_BACKOFF, LAST_BACKOFF
from virtfleet.work.tasks import start

_NAME = re.compile(r"[a-z0-9]+([._:/-]+[a-zA-Z0-9_]+)*(@sha256:[0-9a-f]{64})?")
_FRESH = 60.0  # seconds for which a finished pull serves a pod that asked with the policy Always


class ImageUnavailable(Exception):
    """The container must wait. `until` is when to ask again; None: the asker is woken."""

    def __init__(self, image: str, reason: str, message: str = "", until: float | None = None) -> None:
        super().__init__(message)
        self.image, self.reason, self.message, self.until = image, reason, message, until


@dataclass(slots=True)
class _Trouble:
    pause: float
    until: float
    message: str
    published: bool = False  # some container's status has it


class Puller:
    """The images of one node."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self._pulls: dict[str, asyncio.Task[None]] = {}
        self._wakers: dict[str, set[Callable[[], None]]] = {}
        self._pulled: dict[str, float] = {}
        self._trouble: dict[str, _Trouble] = {}

    def obtain(self, name: str, policy: str, wake: Callable[[], None]) -> Image:
        """The image, or ImageUnavailable with the reason that the container's status gets."""
        if not _NAME.fullmatch(name):
            text = f'Failed to apply default image tag "{name}": invalid reference'
            raise ImageUnavailable(name, "InvalidImageName", text)
        image = self._store.find(name)
        if policy == "Never" and image is None:
            text = f'Container image "{name}" is not present with pull policy of Never'
            raise ImageUnavailable(name, "ErrImageNeverPull", text)
        # An image that was made on this machine has no registry to be asked again.
        key = canonical(name)
        fresh = time.time() - self._pulled.get(key, 0) < _FRESH
        if image is not None and (policy != "Always" or not image.origin or fresh):
            return image
        trouble = self._trouble.get(key)
        if trouble is not None and not trouble.published:
            trouble.published = True
            raise ImageUnavailable(name, "ErrImagePull", trouble.message, time.time() + 1)
        backing_off = f'Back-off pulling image "{name}": ErrImagePull: {trouble.message}' if trouble else ""
        if trouble is not None and 0 < trouble.until - time.time() <= trouble.pause:  # or the clock was set
            raise ImageUnavailable(name, "ImagePullBackOff", backing_off, trouble.until)
        self._wakers.setdefault(key, set()).add(wake)
        if key not in self._pulls:
            self._pulls[key] = start(self._pull(name), f"pull: {name}")
        # Until this attempt is over, the last one is what is known.
        raise ImageUnavailable(name, "ImagePullBackOff" if trouble else "ContainerCreating", backing_off)

    async def _pull(self, name: str) -> None:
        key = canonical(name)
        try:
            await registry.pull(self._store, name)
        except (ImageError, OSError, ValueError, KeyError) as error:  # of the registry, and of what it sent
            before = self._trouble.get(key)
            pause = min(2 * before.pause, LAST_BACKOFF) if before else FIRST_BACKOFF
            self._trouble[key] = _Trouble(pause, time.time() + pause, f'failed to pull image "{name}": {error}')
        else:
            self._trouble.pop(key, None)
            self._pulled[key] = time.time()
        finally:
            del self._pulls[key]
            for wake in self._wakers.pop(key, ()):
                wake()
