"""Quantities as Kubernetes reads, writes, sums and limits them."""

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
    """What is finer is rounded away from zero, what is larger than Kubernetes counts is its largest."""
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
    """Whole units round up, as the scheduler counts memory; nano-units are what metrics come in."""
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
def test_zeros_that_an_apiserver_keeps_are_of_no_account(text: str, milli: int) -> None:
    """Kubernetes 1.36.3 gives these back as they came: one pod with such a request must not hide the others."""
    assert parse(text) == milli
    assert is_quantity(text)


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_quantity_is_refused_with_words(text: str) -> None:
    """The words show how one looks."""
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
def test_an_amount_is_written_canonically(milli: int, text: str) -> None:
    """Without a fraction, with the largest suffix that allows it."""
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
def test_bytes_are_written_in_powers_of_1024(amount: int, text: str) -> None:
    """With the largest suffix that leaves no fraction."""
    assert render(amount * 1000, binary=True) == text


@pytest.mark.parametrize(
    ("milli", "text"), [(1, "1m"), (1_023_500, "1023500m"), (1_024_001, "1025"), (2_047_999, "2Ki")]
)
def test_parts_of_bytes_round_up_from_1024_on(milli: int, text: str) -> None:
    """And are kept below, as in Kubernetes."""
    assert render(milli, binary=True) == text


def test_nano_units_are_written_with_their_suffix() -> None:
    """For amounts that metrics give."""
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
def test_bytes_are_known_by_the_resource(resource: str, *, binary: bool) -> None:
    """Memory and storage, not counts."""
    assert is_binary(resource) is binary


def test_a_resource_list_is_parsed_and_written() -> None:
    """Each resource in the form that Kubernetes gives it."""
    amounts = parse_all({"cpu": "1500m", "memory": "2048Mi", "pods": "110", "a/b": 4})
    assert amounts == {"cpu": 1500, "memory": 2 * 1024**3 * 1000, "pods": 110_000, "a/b": 4000}
    assert render_all(amounts) == {"cpu": "1500m", "memory": "2Gi", "pods": "110", "a/b": "4"}


def test_a_bad_amount_in_a_list_is_named() -> None:
    """By its resource."""
    with pytest.raises(ValueError, match=r"^memory: not a quantity"):
        parse_all({"cpu": "1", "memory": "1GB", "pods": "x"})


def test_lists_are_added() -> None:
    """What only one has counts as nothing in the other; neither is changed."""
    left, right = {"cpu": 1, "memory": 2}, {"cpu": 10, "pods": 3}
    assert add(left, right) == {"cpu": 11, "memory": 2, "pods": 3}
    assert (left, right) == ({"cpu": 1, "memory": 2}, {"cpu": 10, "pods": 3})
    assert add({}, {}) == {}


def test_amounts_are_clamped() -> None:
    """Between nothing and the limit; a limit of what is not there adds nothing."""
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
def test_parsing_is_exact_and_rounds_up(number: Decimal, suffix: str) -> None:
    """The result is the smallest number of milli-units that is not less than the quantity."""
    exact = Fraction(number) * FACTORS[suffix] * 1000
    milli = parse(f"{number:f}{suffix}")
    assert exact <= milli < exact + 1


@examples(400, derandomize=True)
@given(st.integers(min_value=-LARGEST, max_value=LARGEST))
def test_what_is_written_is_read_again(milli: int) -> None:
    """No precision is lost in decimal; binary loses less than a byte."""
    assert parse(render(milli)) == milli
    assert 0 <= abs(parse(render(milli, binary=True))) - abs(milli) < 1000
    assert "." not in render(milli)


@examples(300, derandomize=True)
@given(st.text(st.sampled_from("0123456789.+-eEKMGinumk _x"), max_size=12))
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    """is_quantity says which, and nothing else is raised."""
    try:
        parse(text)
    except ValueError:
        assert not is_quantity(text)
    else:
        assert is_quantity(text)
