"""What a VMI's launcher pods are made of: its pool, its hypervisor, its image.

One decision for everybody who needs it: the controller that renders pods, the workload updater that asks which VMIs are
outdated, admission that refuses contradictions, and `virtfleet explain`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from virtfleet.hypervisors import registry
from virtfleet.pools.matching import match
from virtfleet.pools.model import Pool
from virtfleet.pools.placement import launcher_terms, restrict_affinity
from virtfleet.pools.terms import Term

_NOT_LISTED = (
    "hypervisor {0} gives launchers power over their node, and VMs may not have it here; to allow it, the cluster's "
    "administrator lists it under spec.configuration.hypervisors of the KubeVirt object, or gives a pool this "
    "hypervisor"
)


@dataclass(frozen=True, slots=True)
class Launcher:
    """How a VMI runs. Every container that runs the launcher gets `image`, hotplug attachment pods included."""

    pool: Pool | None
    hypervisor: str
    image: str
    conflict: str = ""
    """Why the VMI cannot start as it is, in words for its owner; empty where it can."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The pools and images of one installation, asked for every VMI."""

    pools: tuple[Pool, ...]
    default_image: str
    default_hypervisor: str = ""
    images: Mapping[str, str] = field(default_factory=dict)
    """The hypervisors that the KubeVirt object lists, with the launcher images that it names for them, or ""."""
    _terms: dict[str, list[Term]] = field(default_factory=dict, repr=False, compare=False)
    """What pools ask of launcher pods' nodes, by the name of the VMI's pool; worked out when first needed."""

    def launcher(self, vmi: Mapping[str, Any]) -> Launcher:
        """Pool, hypervisor and image as they are to be now."""
        pool = match(self.pools, vmi)
        asked = (vmi.get("spec") or {}).get("hypervisor") or ""
        hypervisor = registry.resolve(asked, pool.hypervisor if pool else "", self.default_hypervisor)
        conflict = _conflict(hypervisor, pool) or self._not_listed(hypervisor, pool)
        return Launcher(pool, hypervisor, self._image(pool, hypervisor), conflict)

    def _not_listed(self, hypervisor: str, pool: Pool | None) -> str:
        """Why a VMI may not have a hypervisor whose launcher has power on the node: nobody said that it may."""
        if hypervisor in self.images or (pool and registry.canonical(pool.hypervisor) == hypervisor):
            return ""
        try:
            by_leave = registry.get(hypervisor).descriptor.by_leave
        except registry.UnknownHypervisor:  # admission says so
            return ""
        return _NOT_LISTED.format(hypervisor) if by_leave else ""

    def node_images(self, pool: Pool | None) -> dict[str, str]:
        """Launcher images that nodes of a pool (None: all others) should have at hand and be described by.

        Beside the usual one, "", those of the listed hypervisors, by their names, which VMs there may name as well.
        """
        usual = registry.resolve("", pool.hypervisor if pool else "", self.default_hypervisor)
        image = self._image(pool, usual)
        others = () if pool and pool.hypervisor else (name for name in self.images if name != usual)
        further = {name: self._image(pool, name) for name in others}
        return {"": image, **{name: each for name, each in further.items() if each != image}}

    def _image(self, pool: Pool | None, hypervisor: str) -> str:
        return (pool.launcher_image if pool else "") or self.images.get(hypervisor) or self._image_of(hypervisor)

    def _image_of(self, hypervisor: str) -> str:
        """The image of the installation that a hypervisor needs: beside the default one, under a name of its own."""
        try:
            name = registry.get(hypervisor).descriptor.launcher_image
        except registry.UnknownHypervisor:  # admission refuses such a VMI
            return self.default_image
        path, slash, default = self.default_image.rpartition("/")
        own, _, version = default.partition(":")
        if own.partition("@")[0] == name:
            return self.default_image
        return f"{path}{slash}{name}:{version}" if version and "@" not in default else f"{path}{slash}{name}"

    def affinity(self, vmi: Mapping[str, Any], pool: Pool | None) -> dict[str, Any]:
        """The affinity of the VMI's launcher pods."""
        name = pool.name if pool else ""
        if name not in self._terms:
            self._terms[name] = launcher_terms(self.pools, pool)
        return restrict_affinity((vmi.get("spec") or {}).get("affinity"), self._terms[name])

    def outdated(self, vmi: Mapping[str, Any]) -> bool:
        """Whether the VMI runs on another launcher image than a new one like it would."""
        running = (vmi.get("status") or {}).get("launcherContainerImageVersion")
        return bool(running) and running != self.launcher(vmi).image


def _conflict(hypervisor: str, pool: Pool | None) -> str:
    if pool is None or not pool.hypervisor or registry.canonical(pool.hypervisor) == hypervisor:
        return ""
    return (
        f"the VMI asks for hypervisor {hypervisor} but matches pool {pool.name}, whose VMIs run on {pool.hypervisor}; "
        "remove spec.hypervisor, or change the VMI so that it does not match the pool"
    )
