"""Rules for the pools of a KubeVirt object.

A wrong pool leaves nodes without a handler or VMs without a node, and shows hours later; so whatever can be seen in the
object is refused here, and what is only doubtful is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from virtfleet.admission.findings import Findings
from virtfleet.admission.hypervisor import hypervisor_error
from virtfleet.admission.scheduling import check_label_selector
from virtfleet.admission.sections import Section, read
from virtfleet.api import names
from virtfleet.api.feature_gates import FeatureGates
from virtfleet.api.selectors import label_key_error, label_value_error
from virtfleet.pools.matching import match
from virtfleet.pools.model import POOL_FIELDS, Pool, listed, pools_of
from virtfleet.pools.overlap import overlaps, shadowed, shared_devices
from virtfleet.pools.placement import OS_LABEL, handler_placement
from virtfleet.pools.terms import TooManyTermsError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 48  # virt-handler-<name> and the suffixes of its Pods must stay within 63 characters
_NAMED_VMIS = 10
_NAMED_OVERLAPS = 10
_FINAL = ("Succeeded", "Failed")


def check(kubevirt: Section, found: Findings, old: Section | None = None) -> None:
    spec = read(kubevirt, "spec")
    gates = FeatureGates.of(kubevirt)
    seen: dict[str, str] = {}
    for field, gate in POOL_FIELDS.items():
        entries = spec.get(field) or ()
        if entries and not gates.enabled(gate):
            # A gate can be switched off while pools are listed: they rest until it is on again.
            if old is not None and entries == read(old, "spec").get(field):
                found.warn(f"spec.{field}: the {gate} feature gate is off, so these pools get no handlers")
            else:
                found.invalid(
                    f"spec.{field}",
                    f"{field} cannot be set without enabling the {gate} feature gate; add {gate} to "
                    "spec.configuration.developerConfiguration.featureGates",
                )
        for i, entry in enumerate(entries):
            path = f"spec.{field}[{i}]"
            _check_name(entry.get("name") or "", path, seen, found)
            _check_node_selector(entry, path, read(spec, "workloads", "nodePlacement", "nodeSelector"), found)
            _check_images(entry, field, path, found)
            if field == "virtHandlerPools":
                _check_selector(entry.get("selector"), f"{path}.selector", found)
            _check_hypervisor(entry.get("hypervisor") or "", path, found)
    pools = tuple(pool for field in POOL_FIELDS for pool in listed(kubevirt, field))
    if found.allowed and pools:
        _check_placement(pools, read(spec, "workloads", "nodePlacement"), found)
    if found.allowed and pools:
        _warn_of_overlaps(pools, found)


def _check_name(name: str, path: str, seen: dict[str, str], found: Findings) -> None:
    if not name:
        found.required(f"{path}.name", "a pool needs a name; its DaemonSet is called virt-handler-<name>")
    elif not _NAME.fullmatch(name):
        found.invalid(
            f"{path}.name",
            f"pool name {name!r} may only have lower case letters, digits and '-', and no '-' at its ends",
        )
    elif len(name) > _LONGEST_NAME:
        found.invalid(f"{path}.name", f"pool name {name!r} has {len(name)} characters; {_LONGEST_NAME} are allowed")
    if name and name in seen:
        found.duplicate(f"{path}.name", f"pool name {name!r} is duplicated, {seen[name]} has it too; rename one")
    seen.setdefault(name, path)


def _check_node_selector(entry: Section, path: str, workloads: Section, found: Findings) -> None:
    selector, field = read(entry, "nodeSelector"), f"{path}.nodeSelector"
    if not selector:
        found.required(field, "nodeSelector must have at least one entry: the labels of the pool's nodes")
    for key, value in selector.items():
        if why := label_key_error(key):
            found.invalid(f"{field}[{key}]", f"{key!r} is not a label: {why}")
        elif why := label_value_error(value):
            found.invalid(f"{field}[{key}]", f"{value!r} is not a label value: {why}")
        wanted = {OS_LABEL: "linux", **workloads}.get(key, value)
        if wanted != value:
            found.invalid(
                f"{field}[{key}]",
                f"no node can be in this pool: every handler needs {key}={wanted} (spec.workloads.nodePlacement), the "
                f"pool {key}={value}; change one of them",
            )


def _check_images(entry: Section, field: str, path: str, found: Findings) -> None:
    images = {name: entry[name] for name in ("virtHandlerImage", "virtLauncherImage") if entry.get(name)}
    if field == "virtHandlerPools" and not images:
        found.required(
            path,
            "pool must specify at least one of virtHandlerImage or virtLauncherImage; without it, it changes nothing",
        )
    for name, image in images.items():
        if " " in image:
            found.invalid(f"{path}.{name}", f"{image!r} is not the name of an image; remove the spaces")
        elif "@" not in image and ":" not in image.rpartition("/")[2]:
            found.warn(
                f"{path}.{name}: image {image} has no tag, so what runs may change by itself; add a tag or digest"
            )


def _check_selector(selector: Section | None, path: str, found: Findings) -> None:
    selector = selector or {}
    devices, labels = selector.get("deviceNames") or (), selector.get("vmLabels")
    if not devices and labels is None:
        found.required(path, "selector must define at least one of deviceNames or vmLabels: which VMs belong here")
    for i, device in enumerate(devices):
        if not device.strip():
            found.invalid(f"{path}.deviceNames[{i}]", "deviceNames entry must not be empty; remove it or name a device")
    if labels is None:
        return
    if not labels.get("matchLabels") and not labels.get("matchExpressions"):
        found.required(
            f"{path}.vmLabels.matchLabels",
            "matchLabels must have at least one entry when vmLabels is set, or matchExpressions: it must not be empty",
        )
    check_label_selector(labels, f"{path}.vmLabels", found)


def _check_hypervisor(name: str, path: str, found: Findings) -> None:
    if name and (why := hypervisor_error(name)):
        found.unsupported(f"{path}.hypervisor", why)


def _check_placement(pools: tuple[Pool, ...], workloads: Section, found: Findings) -> None:
    for pool in (None, *pools):
        try:
            handler_placement(pools, pool, workloads)
        except TooManyTermsError as error:
            found.invalid(pool.path if pool else f"spec.{pools[0].field}", str(error))
            return


def _warn_of_overlaps(pools: tuple[Pool, ...], found: Findings) -> None:
    hidden = shadowed(pools)
    for pool in hidden:
        found.warn(
            f"{pool.path}: pool {pool.name} gets no node, as earlier pools take all that it selects; reorder them"
        )
    doubtful = [overlap for overlap in overlaps(pools) if overlap.second not in hidden]
    for overlap in doubtful[:_NAMED_OVERLAPS]:
        labels = ", ".join(f"{key}={value}" for key, value in overlap.witness.items())
        found.warn(
            f"pools {overlap.first.name} and {overlap.second.name} overlap: a node with {labels} belongs to "
            f"{overlap.first.name} (first-match-wins)"
        )
    if len(doubtful) > _NAMED_OVERLAPS:
        found.warn(f"{len(doubtful) - _NAMED_OVERLAPS} more pairs of pools overlap; `virtfleet pools` lists them")
    for first, second, device in shared_devices(pools):
        found.warn(
            f"pools {first.name} and {second.name} both name device {device}: VMs with it belong to {first.name} "
            "(first-match-wins)"
        )


def check_removal(kubevirt: Section, old: Section, vmis: Iterable[Section], found: Findings) -> None:
    """Pools that go while VMIs of theirs still run; `vmis` are those of the cluster.

    Each would be left with a handler and an image that were not made for it. The annotation says that this is meant.
    """
    pools = pools_of(old)
    left = {pool.name for field in POOL_FIELDS for pool in listed(kubevirt, field)}
    going = {pool.name: pool for pool in pools if pool.name not in left}
    if not going:
        return
    forced = {
        name.strip() for name in read(kubevirt, "metadata", "annotations").get(names.FORCE_POOL_REMOVAL, "").split(",")
    }
    running: dict[str, list[str]] = {name: [] for name in going}
    for vmi in vmis:
        if read(vmi, "status").get("phase") in _FINAL:
            continue
        pool = match(pools, vmi)
        if pool is not None and pool.name in running:
            metadata = read(vmi, "metadata")
            running[pool.name].append(f"{metadata.get('namespace')}/{metadata.get('name')}")
    for name, users in running.items():
        if users and name not in forced:
            shown = ", ".join(sorted(users)[:_NAMED_VMIS]) + (", …" if len(users) > _NAMED_VMIS else "")
            found.forbidden(
                f"spec.{going[name].field}",
                f"cannot remove pool {name}: {len(users)} VMIs belong to it ({shown}); stop them, or set annotation "
                f"{names.FORCE_POOL_REMOVAL}: {name}",
            )
