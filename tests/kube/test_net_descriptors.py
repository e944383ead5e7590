"""How many lower clusters the descriptors of a process are enough for."""

import pytest

from tensile.kube.net import EACH, OWN, DescriptorShares, parts, shortage


@pytest.mark.parametrize(("lowers", "most"), [(24, None), (0, OWN), (5, OWN + 5 * EACH), (1000, 1 << 20)])
def test_enough_is_not_spoken_of(lowers: int, most: int | None) -> None:
    """Where the system gives as many as one likes, and where just as many as are needed."""
    assert shortage(lowers, most) == ""


def test_too_few_are_told_with_how_many_are_needed() -> None:
    """Twelve lowers do not fit into 300."""
    assert shortage(12, 300) == (
        "this process may open 300 files and connections, and 12 lower clusters need 400: raise the hard limit "
        "(LimitNOFILE of a systemd service, ulimit -Hn 400 of a shell)"
    )
    assert shortage(8, 300) == ""


@pytest.mark.parametrize("most", [None, 1 << 20])
def test_with_enough_nobody_is_kept_short(most: int | None) -> None:
    """A burst goes over 32 connections to each lower and 64 to the upper cluster."""
    found = parts(24, most)
    assert (found.calls, found.upper_calls) == (32, 64)
    assert min(found.streams, found.waiting) > 10_000


def test_with_just_as_many_as_are_needed_each_has_its_least() -> None:
    """A lower is followed and called, and some streams go."""
    assert parts(8, OWN + 8 * EACH) == parts(8, 0) == DescriptorShares(calls=3, upper_calls=7, streams=8, waiting=8)


@pytest.mark.parametrize("lowers", [0, 1, 2, 7, 24, 37])
@pytest.mark.parametrize("most", [300, 512, 1024, 4096])
def test_all_parts_together_are_not_more_than_there_is(lowers: int, most: int) -> None:
    """A stream takes two descriptors."""
    found, least = parts(lowers, most), parts(lowers, 0)
    taken = lowers * (found.calls - least.calls) + found.upper_calls + 2 * found.streams + found.waiting
    spare = max(0, most - OWN - EACH * lowers)
    assert taken - least.upper_calls - 2 * least.streams - least.waiting <= spare
