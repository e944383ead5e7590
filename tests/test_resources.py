"""Tests of quantities: how Kubernetes parses, formats, adds and limits them."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from tensile.resources import NANO, add, clamp, is_binary, is_quantity, parse, parse_all, render, render_all

LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("0", 0),
        ("2", 2000),
        ("+2", 2000),
        ("-2", -2000),
        ("100m", 100),
        ("0.5", 500),
        (".5", 500),
        ("5.", 5000),
        ("1.5", 1500),
        ("00.100", 100),
        ("1k", 1_000_000),
        ("1M", 10**9),
        ("1G", 10**12),
        ("1T", 10**15),
        ("1P", 10**18),
        ("1E", 10**21),
        ("1Ki", 1024 * 1000),
        ("1Mi", 1024**2 * 1000),
        ("1Gi", 1024**3 * 1000),
        ("1Ti", 1024**4 * 1000),
        ("1Pi", 1024**5 * 1000),
        ("1Ei", 1024**6 * 1000),
        ("1.5Gi", 1536 * 1024**2 * 1000),
        ("1e3", 10**6),
        ("1E3", 10**6),
        ("1e-3", 1),
        ("1.5e+2", 150_000),
        ("1u", 1),
        ("1n", 1),
        ("-1n", -1),
        ("1000001u", 1001),
        ("0.0001", 1),
        ("12E", LARGEST * 1000),
        ("8Ei", LARGEST * 1000),
        ("9223372036854775807", LARGEST * 1000),
        ("9223372036854775808", LARGEST * 1000),
        ("-12E", -LARGEST * 1000),
        ("1e999999999", LARGEST * 1000),
        ("1e-999999999", 1),
        ("0e999999999", 0),
        ("0e-999999999", 0),
    ],
)
def test_a_quantity_is_parsed_to_milli_units(text: str, milli: int) -> None:
    """Smaller fractions are rounded away from zero, and larger amounts become the largest that Kubernetes allows."""
    assert parse(text) == milli


@pytest.mark.parametrize(
    ("text", "scale", "amount"),
    [
        ("250n", NANO, 250),
        ("1.5u", NANO, 1500),
        ("2", NANO, 2 * 10**9),
        ("1500m", 0, 2),
        ("1Gi", 0, 1024**3),
        ("100m", 0, 1),
    ],
)
def test_a_quantity_is_parsed_to_any_scale(text: str, scale: int, amount: int) -> None:
    """Whole units are rounded up, as the scheduler counts memory, and metrics use nano-units."""
    assert parse(text, scale) == amount


BAD = (
    "",
    " ",
    ".",
    "+",
    "m",
    "Gi",
    "1 Gi",
    " 1",
    "1\n",
    "1gi",
    "1K",
    "1KB",
    "1Gib",
    "1i",
    "1mi",
    "1.2.3",
    "--1",
    "1-",
    "1e",
    "1e+",
    "1e1.5",
    "1_000",
    "1,5",
    "0x10",
    "inf",
    "nan",
    "two",
    "\u0663",
    "1\u0663",
    "1" * 65,
)


ZEROS = "0" * 90


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        (f"{ZEROS}1m", 1),
        (f"{ZEROS}1", 1000),
        (f"+{ZEROS}1.5", 1500),
        (f"{ZEROS}1Gi", 1024**3 * 1000),
        (f"1e{ZEROS}3", 10**6),
        (f"1e-{ZEROS}3", 1),
        (ZEROS, 0),
        ("0" * 100_000 + "1", 1000),
    ],
)
def test_leading_zeros_of_a_quantity_are_ignored(text: str, milli: int) -> None:
    """Kubernetes 1.36.3 returns them unchanged, and one pod with such a request must not hide the others."""
    assert parse(text) == milli
    assert is_quantity(text)


@pytest.mark.parametrize("text", BAD)
def test_a_text_that_is_no_quantity_is_rejected_with_an_example(text: str) -> None:
    """The error shows the form of a quantity."""
    assert not is_quantity(text)
    with pytest.raises(ValueError, match='not a quantity; write a number with a suffix such as "2"'):
        parse(text)


@pytest.mark.parametrize(
    ("milli", "text"),
    [
        (0, "0"),
        (1, "1m"),
        (100, "100m"),
        (1000, "1"),
        (1500, "1500m"),
        (-500, "-500m"),
        (-2000, "-2"),
        (10_000, "10"),
        (1_000_000, "1k"),
        (1_500_000, "1500"),
        (10**12, "1G"),
        (10**21, "1E"),
        (10**24, "1000E"),
    ],
)
def test_an_amount_is_formatted_in_canonical_form(milli: int, text: str) -> None:
    """It has no fraction, and the largest suffix that is possible without one."""
    assert render(milli) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1025, "1025"),
        (1536, "1536"),
        (1536 * 1024, "1536Ki"),
        (1024**2, "1Mi"),
        (1024**3, "1Gi"),
        (1024**6, "1Ei"),
        (1024**7, "1024Ei"),
        (1000**3, "1000000000"),
        (-(1024**2), "-1Mi"),
    ],
)
def test_bytes_are_formatted_in_powers_of_1024(amount: int, text: str) -> None:
    """They have the largest suffix that is possible without a fraction."""
    assert render(amount * 1000, binary=True) == text


@pytest.mark.parametrize(
    ("milli", "text"), [(1, "1m"), (1_023_500, "1023500m"), (1_024_001, "1025"), (2_047_999, "2Ki")]
)
def test_fractions_of_bytes_are_rounded_up_from_1024_bytes(milli: int, text: str) -> None:
    """Smaller amounts keep their fraction, as in Kubernetes."""
    assert render(milli, binary=True) == text


def test_nano_units_are_formatted_with_their_suffix() -> None:
    """Metrics have such amounts."""
    assert render(1, scale=NANO) == "1n"
    assert render(1_500_000, scale=NANO) == "1500u"
    assert render(2 * 10**9, scale=NANO) == "2"


@pytest.mark.parametrize(
    ("resource", "binary"),
    [
        ("memory", True),
        ("storage", True),
        ("ephemeral-storage", True),
        ("hugepages-2Mi", True),
        ("cpu", False),
        ("pods", False),
        ("nvidia.com/gpu", False),
    ],
)
def test_is_binary_is_true_for_memory_and_storage(resource: str, *, binary: bool) -> None:
    """Other resources are counted in decimal."""
    assert is_binary(resource) is binary


def test_a_resource_list_is_parsed_and_formatted() -> None:
    """Each resource has the form that Kubernetes uses for it."""
    amounts = parse_all({"cpu": "1500m", "memory": "2048Mi", "pods": "110", "a/b": 4})
    assert amounts == {"cpu": 1500, "memory": 2 * 1024**3 * 1000, "pods": 110_000, "a/b": 4000}
    assert render_all(amounts) == {"cpu": "1500m", "memory": "2Gi", "pods": "110", "a/b": "4"}


def test_the_error_for_an_invalid_resource_list_names_the_resource() -> None:
    """It begins with the name of the first resource whose quantity is invalid."""
    with pytest.raises(ValueError, match=r"^memory: not a quantity"):
        parse_all({"cpu": "1", "memory": "1GB", "pods": "x"})


def test_resource_lists_are_added() -> None:
    """A resource in only one of them counts as zero in the other, and neither list is changed."""
    left, right = {"cpu": 1, "memory": 2}, {"cpu": 10, "pods": 3}
    assert add(left, right) == {"cpu": 11, "memory": 2, "pods": 3}
    assert (left, right) == ({"cpu": 1, "memory": 2}, {"cpu": 10, "pods": 3})
    assert add({}, {}) == {}


def test_amounts_are_clamped_between_zero_and_the_limit() -> None:
    """A limit for a resource that is absent adds nothing."""
    amounts = {"cpu": 5, "memory": -1, "pods": 3}
    assert clamp(amounts, {"cpu": 2, "pods": 9, "a/b": 1}) == {"cpu": 2, "memory": 0, "pods": 3}
    assert clamp(amounts, {}) == {"cpu": 5, "memory": 0, "pods": 3}


FACTORS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "Ki": Fraction(1024),
    "Mi": Fraction(1024**2),
    "Gi": Fraction(1024**3),
}


@examples(400, derandomize=True)
@given(
    st.decimals(min_value=0, max_value=10**6, places=4, allow_nan=False),
    st.sampled_from(sorted(FACTORS)),
)
def test_parsing_a_quantity_is_exact_and_rounds_up(number: Decimal, suffix: str) -> None:
    """The result is the smallest number of milli-units that is not less than the quantity."""
    exact = Fraction(number) * FACTORS[suffix] * 1000
    milli = parse(f"{number:f}{suffix}")
    assert exact <= milli < exact + 1


@examples(400, derandomize=True)
@given(st.integers(min_value=-LARGEST, max_value=LARGEST))
def test_a_formatted_amount_parses_to_the_same_amount(milli: int) -> None:
    """Decimal form loses no precision, and binary form less than a byte."""
    assert parse(render(milli)) == milli
    assert 0 <= abs(parse(render(milli, binary=True))) - abs(milli) < 1000
    assert "." not in render(milli)


@examples(300, derandomize=True)
@given(st.text(st.sampled_from("0123456789.+-eEKMGinumk _x"), max_size=12))
def test_any_text_is_a_quantity_or_raises_value_error(text: str) -> None:
    """is_quantity agrees with it, and no other exception is raised."""
    try:
        parse(text)
    except ValueError:
        assert not is_quantity(text)
    else:
        assert is_quantity(text)
