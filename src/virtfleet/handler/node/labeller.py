"""Labels of the node that say what its hypervisors can do, for the scheduler to find nodes by.

What there is to know is found out once by the launcher image, which has libvirt and the hypervisors, and left in files;
here it becomes labels. Only labels of these kinds are touched, and the Node is written only when one of them changes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec

from virtfleet.api import names
from virtfleet.domain.paths import CAPABILITIES, DOMAIN_CAPABILITIES, HYPERVISORS
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError
from virtfleet.kube.events import Recorder, Reference
from virtfleet.kube.resource import NODES, Obj

logger = logging.getLogger(__name__)

SKIP = "node-labeller.kubevirt.io/skip-node"
PERIOD = (180.0, 216.0)
_APART = 5.0
_OBSOLETE = "HostModelIsObsolete"

REALTIME_SETTING = Path("/proc/sys/kernel/sched_rt_runtime_us")

# Models that no guest should be given any more, unless the configuration says otherwise.
OBSOLETE_MODELS = frozenset((
    "486", "pentium", "pentium2", "pentium3", "pentiumpro", "coreduo", "n270", "core2duo", "Conroe", "athlon",
    "phenom", "qemu32", "qemu64", "kvm32", "kvm64", "Opteron_G1", "Opteron_G2",
))  # fmt: skip
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher image found out about the node."""

    capabilities: str = "<capabilities/>"
    """libvirt's description of the host."""
    domain_capabilities: str = "<domainCapabilities/>"
    """libvirt's description of the guests that can run."""
    hypervisors: dict[str, str] = {}
    """Why each hypervisor does not work here; "" for those that do."""
    realtime: bool = False


def read(directory: Path) -> Facts:
    """The facts as they were left; what is not there is not known."""

    def content(name: str, fallback: str) -> str:
        try:
            return (directory / name).read_text()
        except OSError:
            return fallback

    return Facts(
        capabilities=content(CAPABILITIES, "<capabilities/>"),
        domain_capabilities=content(DOMAIN_CAPABILITIES, "<domainCapabilities/>"),
        hypervisors=msgspec.json.decode(content(HYPERVISORS, "{}"), type=dict[str, str]),
        realtime=REALTIME_SETTING.read_text().strip() == "-1" if REALTIME_SETTING.exists() else False,
    )


def labels(facts: Facts, obsolete: Collection[str] = OBSOLETE_MODELS) -> dict[str, str]:
    """The labels that follow from the facts."""
    host, guests = ET.fromstring(facts.capabilities), ET.fromstring(facts.domain_capabilities)
    usable = _texts(guests, "cpu/mode[@name='custom']/model[@usable='yes']")
    models = [model for model in usable if model.removesuffix("-v1") not in obsolete]
    host_model = [*_texts(guests, "cpu/mode[@name='host-model']/model")]
    required = [*_named(guests, "cpu/mode[@name='host-model']/feature[@policy='require']")]
    wanted: dict[str, str] = {}
    for prefix, values in (
        (names.CPU_MODEL, models),
        (names.CPU_MODEL_MIGRATION, [*models, *host_model]),
        (names.CPU_FEATURE, {*required, *_named(host, "host/cpu/feature")}),
        (names.CPU_VENDOR, _texts(guests, "cpu/mode[@name='host-model']/vendor")),
        (names.HOST_MODEL_CPU, host_model),
        (names.HOST_MODEL_REQUIRED_FEATURES, required),
        (names.HYPERV, _texts(guests, "features/hyperv[@supported='yes']/enum[@name='features']/value")),
        (names.MACHINE_TYPE, set(_texts(host, "guest/arch/machine"))),
        (names.HYPERVISOR_WORKS, [name for name, trouble in facts.hypervisors.items() if not trouble]),
    ):
        wanted |= {prefix + value: "true" for value in values if _LABEL_NAME.fullmatch(value)}
    wanted |= _timers(host)
    outdated = any(model in obsolete for model in host_model)
    present = {names.REALTIME: facts.realtime, names.OBSOLETE_HOST_MODEL: outdated, **_confidential(guests)}
    return wanted | {label: "true" for label, holds in present.items() if holds}


def _timers(host: ET.Element) -> dict[str, str]:
    counter = host.find("host/cpu/counter[@name='tsc']")
    if counter is None:
        return {}
    return {
        f"{names.CPU_TIMER}tsc-frequency": counter.get("frequency", "0"),
        f"{names.CPU_TIMER}tsc-scalable": "true" if counter.get("scaling") == "yes" else "false",
    }


def _confidential(guests: ET.Element) -> dict[str, bool]:
    """Kinds of memory encryption; newer libvirts list them by name."""
    kinds = set(_texts(guests, "features/launchSecurity[@supported='yes']/enum[@name='sectype']/value"))
    sev = guests.find("features/sev[@supported='yes']")
    return {
        names.SEV: sev is not None,
        names.SEV_ES: sev is not None and int(sev.findtext("maxESGuests", "0")) > 0,
        names.SEV_SNP: "sev-snp" in kinds,
        names.TDX: "tdx" in kinds or guests.find("features/tdx[@supported='yes']") is not None,
        names.SECURE_EXECUTION: "s390-pv" in kinds or guests.find("features/s390-pv[@supported='yes']") is not None,
    }


def _texts(root: ET.Element, path: str) -> Iterator[str]:
    return (element.text for element in root.iterfind(path) if element.text)


def _named(root: ET.Element, path: str) -> Iterator[str]:
    return (element.get("name", "") for element in root.iterfind(path))


def patch(present: Mapping[str, str], wanted: Mapping[str, str]) -> Obj:
    """The merge patch from the labels that a Node has to those that it should have; empty where nothing changes.

    Only labels of these kinds are in it, so that it cannot undo what others write at the same time.
    """
    own = {key for key in present if key.startswith(names.NODE_FACT_PREFIXES) or key in names.NODE_FACTS}
    change: dict[str, str | None] = {key: value for key, value in wanted.items() if present.get(key) != value}
    change |= dict.fromkeys(own - wanted.keys())  # null takes a label away
    return {"metadata": {"labels": change}} if change else {}


class Labeller:
    """`wanted` gives the labels as they should be now."""

    def __init__(self, api: KubeApi, recorder: Recorder, node: str, wanted: Callable[[], dict[str, str]]) -> None:
        self._api = api
        self._recorder = recorder
        self._node = node
        self._wanted = wanted
        self._stirred = asyncio.Event()

    def stir(self) -> None:
        """Other labels may be wanted now. All nodes hear of it at once, and do not act at once."""
        asyncio.get_running_loop().call_later(random.uniform(0, _APART), self._stirred.set)

    async def run(self) -> None:
        while True:
            try:
                await self.label()
                pause = random.uniform(*PERIOD)
            except ApiError as error:
                logger.info("the node was not labelled: %s", error.message)
                pause = random.uniform(1.0, 10.0)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stirred.wait()
            self._stirred.clear()

    async def label(self) -> None:
        """Bring the Node's labels up to date."""
        metadata = (await self._api.get(NODES, self._node))["metadata"]
        if SKIP in (metadata.get("annotations") or {}):
            return
        change = patch(metadata.get("labels") or {}, self._wanted())
        if not change:
            return
        await self._api.patch(NODES, self._node, change)
        if change["metadata"]["labels"].get(names.OBSOLETE_HOST_MODEL):
            what = "The CPU model of this node is in obsoleteCPUModels: VMs with the model host-model do not come here"
            node = Reference(NODES.api_version, NODES.kind, "", self._node, metadata["uid"])
            self._recorder.warning(node, _OBSOLETE, what)
