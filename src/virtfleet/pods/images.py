"""Names of the images of an installation, from the KubeVirt object.

The operator installs components by them, the controller starts launchers by them, and the commands that work without
a cluster print them; all have to mean the same image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import virtfleet

DEFAULT_REGISTRY = "virtfleet"


@dataclass(frozen=True, slots=True)
class Images:
    """Where an installation's images come from, and of which version they are."""

    registry: str = DEFAULT_REGISTRY
    tag: str = virtfleet.__version__

    @staticmethod
    def of(kubevirt: Mapping[str, Any]) -> Images:
        spec = kubevirt.get("spec") or {}
        return Images(spec.get("imageRegistry") or DEFAULT_REGISTRY, spec.get("imageTag") or virtfleet.__version__)

    def image(self, component: str) -> str:
        """The image of `virt-operator`, `virt-launcher` and so on."""
        return f"{self.registry}/{component}:{self.tag}"

    @property
    def launcher(self) -> str:
        return self.image("virt-launcher")
