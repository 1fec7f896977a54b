"""Kubernetes quantities (`512Mi`, `1500m`, `2e3`) with exact arithmetic.

Memory sizes end up in domain XML and in Pod resources, where a rounding error shows as a VM that differs from what its
owner asked for, so floating point is out. A quantity is an integer number of nano units, the smallest that Kubernetes
keeps, plus the family of suffixes it was written with, in which it is printed again.
"""

from __future__ import annotations

import re
from functools import lru_cache, total_ordering
from typing import Annotated, Final

from msgspec import Meta

DECIMAL: Final = "DecimalSI"
BINARY: Final = "BinarySI"
EXPONENT: Final = "DecimalExponent"

# The pattern that Kubernetes publishes for quantities in CRD schemas.
PATTERN: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)

# How a quantity arrives in an object: mostly a string, but `memory: 1` and `cpu: 0.5` are numbers.
Amount = Annotated[str | int | float, Meta(extra_json_schema={"pattern": PATTERN, "x-kubernetes-int-or-string": True})]

_NANO: Final = 10**9
_LARGEST_BINARY: Final = (2**63 - 1) * _NANO
_LONGEST: Final = 1000  # characters; Python reads no number of more than 4,300 digits
_LARGEST_EXPONENT: Final = 99  # far beyond any machine; keeps `1e999999999` from becoming a gigabyte of digits

_FORM = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?", re.ASCII)
_PLAIN = re.compile(r"\d+", re.ASCII)

_BINARY_BITS: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BINARY_SUFFIXES: Final = ("", *_BINARY_BITS)
_DECIMAL_POWERS: Final = {
    "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18
}  # fmt: skip
_DECIMAL_SUFFIXES: Final = {power: suffix for suffix, power in _DECIMAL_POWERS.items()}


class QuantityError(ValueError):
    """Text that is not a quantity; the message says so in Kubernetes' words."""


@total_ordering
class Quantity:
    """An immutable amount. Equality and order look at the amount only: `1Gi` equals `1024Mi`."""

    __slots__ = ("format", "nano")

    nano: int
    format: str

    def __init__(self, nano: int, format: str = DECIMAL) -> None:  # noqa: A002 (Kubernetes' own word)
        self.nano = nano
        self.format = format

    @staticmethod
    def parse(amount: Quantity | str | int | float) -> Quantity:
        """Read a quantity. More digits than nano units can hold are rounded away from zero, as Kubernetes does."""
        if isinstance(amount, str):
            return _parse(amount)
        if isinstance(amount, Quantity):
            return amount
        if isinstance(amount, bool):
            raise QuantityError(f"{amount!r} is not a quantity")
        return Quantity(amount * _NANO) if isinstance(amount, int) else _parse(repr(amount))

    @staticmethod
    def of(value: int, format: str = DECIMAL) -> Quantity:  # noqa: A002
        """A whole number."""
        return Quantity(value * _NANO, format)

    @staticmethod
    def of_milli(value: int) -> Quantity:
        """A number of thousandths."""
        return Quantity(value * 10**6)

    def value(self) -> int:
        """The amount as a whole number, rounded away from zero."""
        return _rounded(self.nano, _NANO)

    def milli(self) -> int:
        """The amount in thousandths, rounded away from zero."""
        return _rounded(self.nano, 10**6)

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.nano + other.nano, self.format if self.nano else other.format)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nano - other.nano, self.format if self.nano else other.format)

    def __bool__(self) -> bool:
        return self.nano != 0

    def __eq__(self, other: object) -> bool:
        return self.nano == other.nano if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self.nano < other.nano

    def __hash__(self) -> int:
        return hash(self.nano)

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __str__(self) -> str:
        """Canonical form: no fraction, the largest suffix of the family that loses nothing."""
        if not self.nano:
            return "0"
        whole, fraction = divmod(self.nano, _NANO)
        # Small and fractional binary amounts would lose digits in powers of 1024, so they are printed as decimals.
        if self.format == BINARY and not fraction and abs(whole) >= 1024:
            step = 0
            while step < len(_BINARY_SUFFIXES) - 1 and whole % 1024 == 0:
                whole //= 1024
                step += 1
            return f"{whole}{_BINARY_SUFFIXES[step]}"
        mantissa, power = self.nano, -9
        largest = _LARGEST_EXPONENT if self.format == EXPONENT else 18
        while power < largest and mantissa % 1000 == 0:
            mantissa //= 1000
            power += 3
        if self.format == EXPONENT:
            return f"{mantissa}e{power}" if power else str(mantissa)
        return f"{mantissa}{_DECIMAL_SUFFIXES[power]}"


@lru_cache(maxsize=8192)
def _parse(text: str) -> Quantity:
    text = text.strip()
    if len(text) > _LONGEST:
        raise QuantityError(f"'{text[:20]}…' has {len(text)} characters, which is longer than any quantity can be")
    if _PLAIN.fullmatch(text):
        return Quantity(int(text) * _NANO)
    match = _FORM.fullmatch(text)
    if not match or not (match[2] or match[3]):
        raise QuantityError(
            f"quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$': {text!r}"
        )
    sign, whole, fraction, suffix = match[1], match[2], match[3] or "", match[4] or ""
    digits = int((whole + fraction) or "0")
    if suffix in _BINARY_BITS:
        form, scale = BINARY, 9 - len(fraction)
        digits <<= _BINARY_BITS[suffix]
    elif suffix in _DECIMAL_POWERS:
        form, scale = DECIMAL, 9 - len(fraction) + _DECIMAL_POWERS[suffix]
    else:
        form, power = EXPONENT, int(suffix[1:])
        if digits and power > _LARGEST_EXPONENT:
            raise QuantityError(f"{text!r} is larger than any quantity can be")
        scale = 9 - len(fraction) + max(power, -_LARGEST_EXPONENT)
    nano = digits * 10**scale if scale >= 0 else _rounded(digits, 10**-scale)
    if form == BINARY:
        nano = min(nano, _LARGEST_BINARY)
        if nano < _NANO:
            form = DECIMAL
    return Quantity(-nano if sign == "-" else nano, form)


def _rounded(amount: int, unit: int) -> int:
    """`amount` in units, away from zero."""
    return -(-amount // unit) if amount >= 0 else amount // unit
