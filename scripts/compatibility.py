"""Writes the part of docs/compatibility.md that comes from the registry of what works: `make docs`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from virtfleet.hypervisors import notyet, registry
from virtfleet.hypervisors.features import FEATURES, support

PAGE = Path(__file__).resolve().parents[1] / "docs" / "compatibility.md"
BEGIN = "<!-- from here on written by `make docs` from the registry of what works (hypervisors/features.py) -->"
END = "<!-- up to here -->"
_OWN = [h for h in map(registry.get, registry.names()) if h.__module__.startswith("virtfleet.")]
_HYPERVISORS = [h for h in _OWN if not h.refusal]
_COLUMNS = ("what happens instead", "what to do")
_WIDTH = 124


def generated() -> str:
    """The generated part, without its marks."""
    sections = (
        "## What is absent",
        "Fields that are admitted, because KubeVirt admits them, and not done yet. Whoever applies one reads the same.",
        _table(("field of a VMI, or of a template", *_COLUMNS), dict.fromkeys(_of_machines())),
        _table(("field of a VirtualMachine", *_COLUMNS), _of_fields(notyet.VM)),
        _table(("field of the KubeVirt object", *_COLUMNS), _of_fields(notyet.KUBEVIRT)),
        "Behind these feature gates there is nothing yet, and switching one on is answered with a warning:",
        _listed(notyet.EMPTY_GATES),
        "Behind these there is something only for guests that are containers:",
        _listed(notyet.CONTAINER_GATES),
        "Behind these there is `maxDowntimeMs`, of `configuration.migrations` and of a MigrationPolicy, and no more:",
        _listed(notyet.DOWNTIME_GATES),
        "## What works on which hypervisor",
        "On amd64; `virtfleet hypervisors features NAME --architecture arm64` tells of others, and why not. A `–` is\n"
        "impossible, for libvirt's driver or for the hypervisor, and refused. The first row says how far\n"
        "each was tested ([hypervisors.md](hypervisors.md#are-documents-right)); those on which no VM is admitted are\n"
        "left out.",
        _table(("feature", "", *(h.descriptor.name for h in _HYPERVISORS)), [_evidence(), *_matrix()]),
    )
    return "\n\n".join(sections) + "\n"


def written(page: str) -> str:
    """A page with its generated part made anew."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{generated()}\n{END}{rest.partition(END)[2]}"


def _evidence() -> tuple[str, ...]:
    return ("", "how far it was tested", *(h.evidence.value for h in _HYPERVISORS))


def _of_machines() -> Iterable[tuple[str, ...]]:
    qemu = registry.get(registry.DEFAULT)
    for feature in FEATURES:
        found = support(qemu, feature.key)
        if found.admitted:
            yield f"`{feature.field.removeprefix('spec.')}`", found.reason, found.advice


def _of_fields(fields: Iterable[notyet.AbsentField]) -> Iterable[tuple[str, ...]]:
    return ((f"`{field.field}`", field.not_yet.instead, field.not_yet.advice) for field in fields)


def _matrix() -> Iterable[tuple[str, ...]]:
    for feature in FEATURES:
        levels = [support(h, feature.key).level.value for h in _HYPERVISORS]
        yield f"`{feature.key}`", feature.title, *("–" if level == "impossible" else level for level in levels)


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("|" + "|".join(cell if cell == "---" else f" {cell} " for cell in line) + "|" for line in lines)


def _listed(gates: Iterable[str]) -> str:
    lines = [""]
    for gate in sorted(gates):
        word = f"`{gate}`, "
        if len(lines[-1]) + len(word) > _WIDTH:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines).rstrip(",") + "."


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
