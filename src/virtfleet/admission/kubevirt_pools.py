"""Rules for the pools of a KubeVirt object.

A wrong pool leaves nodes without a handler or VMs without a node, and shows hours later; so whatever can be seen in the
object is refused here, and what is only doubtful is a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from virtfleet.admission.findings import Findings
from virtfleet.admission.hypervisor import hypervisor_error
from virtfleet.admission.names import LABEL
from virtfleet.admission.scheduling import check_label_selector
from virtfleet.admission.sections import Section, read
from virtfleet.api import names
from virtfleet.api import view as views
from virtfleet.api.feature_gates import FeatureGates
from virtfleet.api.kubevirt import (
    AdditionalVirtHandler,
    KubeVirt,
    NodePlacement,
    VirtHandlerPool,
    VirtHandlerPoolSelector,
)
from virtfleet.api.selectors import label_key_error, label_value_error
from virtfleet.pools.matching import match
from virtfleet.pools.model import POOL_FIELDS, Pool, listed, pools_of
from virtfleet.pools.overlap import overlaps, shadowed, shared_devices
from virtfleet.pools.placement import OS_LABEL, handler_placement
from virtfleet.pools.terms import TooManyTermsError

_LONGEST_NAME = 48  # virt-handler-<name> and the suffixes of its Pods must stay within 63 characters
_NAMED_VMIS = 10
_NAMED_OVERLAPS = 10


def check(kubevirt: Section, findings: Findings, old: Section | None = None) -> None:
    raw, spec = read(kubevirt, "spec"), views.read(KubeVirt, kubevirt).spec
    gates = FeatureGates.of(kubevirt)
    workloads = (spec.workloads and spec.workloads.node_placement) or NodePlacement()
    labels, seen = {OS_LABEL: "linux", **workloads.node_selector}, dict[str, str]()
    for field, gate in POOL_FIELDS.items():
        entries: list[AdditionalVirtHandler] = views.part(spec, field)
        if entries and not gates.enabled(gate):
            # A gate can be switched off while pools are listed: they rest until it is on again.
            if old is not None and raw[field] == read(old, "spec").get(field):
                findings.warn(f"spec.{field}: the {gate} feature gate is off, so these pools get no handlers")
            else:
                findings.invalid(
                    f"spec.{field}",
                    f"{field} cannot be set without enabling the {gate} feature gate; add {gate} to "
                    "spec.configuration.developerConfiguration.featureGates",
                )
        for i, entry in enumerate(entries):
            pool = findings.below(f"spec.{field}[{i}]")
            _check_name(entry.name, seen, pool)
            _check_node_selector(entry.node_selector, labels, pool)
            _check_images(entry, pool)
            if isinstance(entry, VirtHandlerPool):
                _check_selector(entry.selector, pool.below("selector"))
            if entry.hypervisor and (why := hypervisor_error(entry.hypervisor)):
                pool.unsupported("hypervisor", why)
    pools = tuple(pool for field in POOL_FIELDS for pool in listed(kubevirt, field))
    if findings.allowed and pools:
        _check_placement(pools, read(raw, "workloads", "nodePlacement"), findings)
    if findings.allowed and pools:
        _warn_of_overlaps(pools, findings)


def _check_name(name: str, seen: dict[str, str], pool: Findings) -> None:
    if not name:
        pool.required("name", "a pool needs a name; its DaemonSet is called virt-handler-<name>")
    elif not LABEL.fullmatch(name):
        pool.invalid(
            "name", f"pool name {name!r} may only have lower case letters, digits and '-', and no '-' at its ends"
        )
    elif len(name) > _LONGEST_NAME:
        pool.invalid("name", f"pool name {name!r} has {len(name)} characters; {_LONGEST_NAME} are allowed")
    if name and name in seen:
        pool.duplicate("name", f"pool name {name!r} is duplicated, {seen[name]} has it too; rename one")
    seen.setdefault(name, pool.path)


def _check_node_selector(selector: Mapping[str, str], demanded: Mapping[str, str], pool: Findings) -> None:
    """`demanded` are labels of all nodes that have handlers."""
    if not selector:
        pool.required("nodeSelector", "nodeSelector must have at least one entry: the labels of the pool's nodes")
    for key, value in selector.items():
        field = f"nodeSelector[{key}]"
        if why := label_key_error(key):
            pool.invalid(field, f"{key!r} is not a label: {why}")
        elif why := label_value_error(value):
            pool.invalid(field, f"{value!r} is not a label value: {why}")
        if (wanted := demanded.get(key, value)) != value:
            pool.invalid(
                field,
                f"no node can be in this pool: every handler needs {key}={wanted} (spec.workloads.nodePlacement), the "
                f"pool {key}={value}; change one of them",
            )


def _check_images(entry: AdditionalVirtHandler, pool: Findings) -> None:
    images = {"virtHandlerImage": entry.virt_handler_image, "virtLauncherImage": entry.virt_launcher_image}
    if isinstance(entry, VirtHandlerPool) and not any(images.values()):
        pool.required(
            "",
            "pool must specify at least one of virtHandlerImage or virtLauncherImage; without it, it changes nothing",
        )
    for name, image in images.items():
        if " " in image:
            pool.invalid(name, f"{image!r} is not the name of an image; remove the spaces")
        elif image and "@" not in image and ":" not in image.rpartition("/")[2]:
            at = pool.at(name)
            pool.warn(f"{at}: image {image} has no tag, so what runs may change by itself; add a tag or digest")


def _check_selector(selector: VirtHandlerPoolSelector, findings: Findings) -> None:
    labels = selector.vm_labels
    if not selector.device_names and labels is None:
        findings.required("", "selector must define at least one of deviceNames or vmLabels: which VMs belong here")
    for i, device in enumerate(selector.device_names):
        if not device.strip():
            findings.invalid(f"deviceNames[{i}]", "deviceNames entry must not be empty; remove it or name a device")
    if labels is None:
        return
    if not labels.match_labels and not labels.match_expressions:
        findings.required(
            "vmLabels.matchLabels",
            "matchLabels must have at least one entry when vmLabels is set, or matchExpressions: it must not be empty",
        )
    check_label_selector(findings, labels, "vmLabels")


def _check_placement(pools: tuple[Pool, ...], workloads: Section, findings: Findings) -> None:
    for pool in (None, *pools):
        try:
            handler_placement(pools, pool, workloads)
        except TooManyTermsError as error:
            findings.invalid(pool.path if pool else f"spec.{pools[0].field}", str(error))
            return


def _warn_of_overlaps(pools: tuple[Pool, ...], findings: Findings) -> None:
    hidden = shadowed(pools)
    for pool in hidden:
        findings.warn(
            f"{pool.path}: pool {pool.name} gets no node, as earlier pools take all that it selects; reorder them"
        )
    doubtful = [overlap for overlap in overlaps(pools) if overlap.second not in hidden]
    for overlap in doubtful[:_NAMED_OVERLAPS]:
        labels = ", ".join(f"{key}={value}" for key, value in overlap.witness.items())
        findings.warn(
            f"pools {overlap.first.name} and {overlap.second.name} overlap: a node with {labels} belongs to "
            f"{overlap.first.name} (first-match-wins)"
        )
    if len(doubtful) > _NAMED_OVERLAPS:
        findings.warn(f"{len(doubtful) - _NAMED_OVERLAPS} more pairs of pools overlap; `virtfleet pools` lists them")
    for first, second, device in shared_devices(pools):
        findings.warn(
            f"pools {first.name} and {second.name} both name device {device}: VMs with it belong to {first.name} "
            "(first-match-wins)"
        )


def check_removal(kubevirt: Section, old: Section, vmis: Iterable[Section], findings: Findings) -> None:
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
        if read(vmi, "status").get("phase") in names.FINAL:
            continue
        pool = match(pools, vmi)
        if pool is not None and pool.name in running:
            metadata = read(vmi, "metadata")
            running[pool.name].append(f"{metadata.get('namespace')}/{metadata.get('name')}")
    for name, users in running.items():
        if users and name not in forced:
            shown = ", ".join(sorted(users)[:_NAMED_VMIS]) + (", …" if len(users) > _NAMED_VMIS else "")
            findings.forbidden(
                f"spec.{going[name].field}",
                f"cannot remove pool {name}: {len(users)} VMIs belong to it ({shown}); stop them, or set annotation "
                f"{names.FORCE_POOL_REMOVAL}: {name}",
            )
