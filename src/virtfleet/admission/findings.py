"""What admission found: causes that refuse an object, warnings that only tell.

A cause has the field path, reason and wire form of a Kubernetes StatusCause. Field paths are KubeVirt's, also where
those are odd, because tools look for them; the message is ours, names the real field and says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from virtfleet.hypervisors import notyet

INVALID = "FieldValueInvalid"
REQUIRED = "FieldValueRequired"
NOT_SUPPORTED = "FieldValueNotSupported"
DUPLICATE = "FieldValueDuplicate"
NOT_FOUND = "FieldValueNotFound"
FORBIDDEN = "FieldValueForbidden"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an object is refused."""

    field: str
    reason: str
    message: str


@dataclass(slots=True)
class Findings:
    """Collected over all rules, so that a user sees everything that is wrong at once."""

    causes: list[Cause] = field(default_factory=list)
    _warnings: list[str] = field(default_factory=list)
    _accepted: list[str] = field(default_factory=list)
    _missing: set[str] = field(default_factory=set)
    path: str = ""
    """Where the fields are that rules name."""

    def lists(self) -> tuple[list[Cause], list[str], list[str], set[str]]:
        """Where it is collected, for others who collect to the same place."""
        return self.causes, self._warnings, self._accepted, self._missing

    def below(self, path: str) -> Findings:
        """The same findings, for rules that name fields below a path."""
        return Findings(*self.lists(), self.at(path))

    def at(self, field: str) -> str:
        """The full path of a field; of the object that is looked at where the field is empty."""
        return f"{self.path}.{field}" if self.path and field else self.path or field

    @property
    def allowed(self) -> bool:
        return not self.causes

    @property
    def warnings(self) -> list[str]:
        """What is told besides; that something has no effect only where the object is accepted."""
        return self._warnings + (self._accepted if self.allowed else [])

    def _add(self, field: str, reason: str, message: str) -> None:
        if (path := self.at(field)) not in self._missing:
            self.causes.append(Cause(path, reason, message))

    def missing(self, path: str) -> None:
        """A field that must be there is not; what rules say of it besides would only repeat that."""
        self.required(path, f"{path.rpartition('.')[2]} is missing; set it")
        self._missing.add(path)

    def invalid(self, path: str, message: str) -> None:
        self._add(path, INVALID, message)

    def required(self, path: str, message: str) -> None:
        self._add(path, REQUIRED, message)

    def unsupported(self, path: str, message: str) -> None:
        self._add(path, NOT_SUPPORTED, message)

    def duplicate(self, path: str, message: str) -> None:
        self._add(path, DUPLICATE, message)

    def not_found(self, path: str, message: str) -> None:
        self._add(path, NOT_FOUND, message)

    def forbidden(self, path: str, message: str) -> None:
        self._add(path, FORBIDDEN, message)

    def check_choice(self, path: str, what: str, value: str, known: Sequence[str], reason: str = INVALID) -> None:
        """A value that must be one of a few; "" among them means that none was chosen."""
        if value not in known:
            self._add(path, reason, f"{what} {value!r} does not exist; use one of {', '.join(filter(None, known))}")

    def gate_is_off(self, path: str, gate: str, what: str) -> None:
        """`what` needs a feature gate that is not on. Nobody is told to switch on one behind which nothing is."""
        remedy = (
            "an administrator can add it to "
            "spec.configuration.developerConfiguration.featureGates of the KubeVirt object"
        )
        if gap := notyet.behind(gate):
            remedy = f"{gap}, so do without: {notyet.instead_of(gate)}"
        self.invalid(path, f"{what} needs the feature gate {gate}, which is not enabled; {remedy}")

    def warn(self, message: str) -> None:
        self._warnings.append(message)

    def without_effect(self, message: str) -> None:
        """A warning that something is accepted and nothing comes of it."""
        self._accepted.append(message)
