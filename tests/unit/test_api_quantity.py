"""Quantities behave like Kubernetes': exact, canonical, rounded away from zero."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.api.quantity import BINARY, DECIMAL, Quantity, QuantityError

q = Quantity.parse

SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-2", "e+6"]
quantities = st.builds(
    Quantity, st.integers(-(10**24), 10**24), st.sampled_from(["DecimalSI", "BinarySI", "DecimalExponent"])
)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("0", "0"),
        ("0Mi", "0"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("1000m", "1"),
        ("1.5", "1500m"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("1.G", "1G"),
        ("512", "512"),
        ("1000", "1k"),
        ("1023", "1023"),
        ("1048576Ki", "1Gi"),
        ("1e3", "1e3"),
        ("12E4", "120e3"),
        ("1e2", "100"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("1E", "1E"),
        ("0.5Ki", "512"),
        ("0.1Ki", "102400m"),
        ("0.0001Ki", "102400u"),
        ("100m", "100m"),
        ("9000000Ei", "9223372036854775807"),
        ("1024Ei", "9223372036854775807"),
        ("+5", "5"),
        (" 5Gi ", "5Gi"),
        ("-1500m", "-1500m"),
    ],
)
def test_canonical_form(written: str, canonical: str) -> None:
    assert str(q(written)) == canonical


def test_numbers_are_quantities_too() -> None:
    assert str(q(1)) == "1"
    assert str(q(0.1)) == "100m"
    assert str(q(2.5e9)) == "2500M"


@pytest.mark.parametrize("text", ["", "Mi", "1 Mi", "1mi", "1K", "1e", "1.2.3", "--1", "1Zi", "٣", "1e1000000000", "."])
def test_what_is_not_a_quantity_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        q(text)


def test_a_boolean_is_not_a_quantity() -> None:
    with pytest.raises(QuantityError):
        q(True)


def test_whole_and_milli_values_round_away_from_zero() -> None:
    assert (q("1500m").value(), q("-1500m").value()) == (2, -2)
    assert (q("1u").milli(), q("100m").milli(), q("-1u").milli()) == (1, 100, -1)
    assert q("1Gi").value() == 2**30


def test_zero_takes_the_suffixes_of_what_is_added() -> None:
    assert str(q("0") + q("1024Ki")) == "1Mi"
    assert str(q("1Gi") + q("1M")) == str(Quantity.of(2**30 + 10**6, BINARY))


@given(quantities)
def test_canonical_form_reads_back_as_the_same_amount(amount: Quantity) -> None:
    if amount.format == BINARY and abs(amount.nano) > (2**63 - 1) * 10**9:
        return  # binary amounts are capped when read
    assert q(str(amount)) == amount


@given(st.decimals(min_value=-(10**9), max_value=10**9, places=4), st.sampled_from(SUFFIXES))
def test_reading_agrees_with_decimal_arithmetic(number: Decimal, suffix: str) -> None:
    bits = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
    powers = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
    unscaled = int(number.scaleb(4))
    if suffix in bits:
        nano, unit = unscaled * 2 ** bits[suffix] * 10**5, 1
    else:
        power = powers[suffix] if suffix in powers else int(suffix[1:])
        nano, unit = unscaled * 10 ** max(power + 5, 0), 10 ** max(-(power + 5), 0)
    expected = (abs(nano) + unit - 1) // unit
    if suffix in bits:
        expected = min(expected, (2**63 - 1) * 10**9)
    assert q(f"{number:f}{suffix}").nano == (expected if nano >= 0 else -expected)


@given(quantities, quantities, quantities)
def test_arithmetic_is_exact(a: Quantity, b: Quantity, c: Quantity) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b - b == a
    assert a - a == Quantity(0)
    assert (a < b) == (b > a)
    assert (a <= b) != (a > b)
    if a == b:
        assert hash(a) == hash(b)


@given(quantities)
def test_rounding_up_never_gives_less_than_asked(amount: Quantity) -> None:
    assert abs(amount.value()) * 10**9 >= abs(amount.nano) > (abs(amount.value()) - 1) * 10**9


def test_thousandths_and_wholes_can_be_given_directly() -> None:
    assert str(Quantity.of_milli(1500)) == "1500m"
    assert str(Quantity.of(2048, BINARY)) == "2Ki"
    assert Quantity.of(1, DECIMAL) == q("1")
