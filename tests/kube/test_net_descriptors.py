"""Tests of the division of file descriptors: how many lower clusters the limit of a process is enough for."""

import pytest

from tensile.kube.net import EACH, OWN, DescriptorShares, parts, shortage


@pytest.mark.parametrize(("lowers", "most"), [(24, None), (0, OWN), (5, OWN + 5 * EACH), (1000, 1 << 20)])
def test_no_shortage_is_reported_if_there_are_enough_descriptors(lowers: int, most: int | None) -> None:
    """This includes a process without a limit, and exactly as many descriptors as needed."""
    assert shortage(lowers, most) == ""


def test_a_shortage_of_descriptors_is_reported_with_the_number_needed() -> None:
    """A limit of 300 is not enough for twelve lower clusters, but for eight."""
    assert shortage(12, 300) == (
        "this process may open 300 files and connections, and 12 lower clusters need 400: raise the hard limit "
        "(LimitNOFILE of a systemd service, ulimit -Hn 400 of a shell)"
    )
    assert shortage(8, 300) == ""


@pytest.mark.parametrize("most", [None, 1 << 20])
def test_many_descriptors_allow_the_most_connections_for_calls(most: int | None) -> None:
    """There are up to 32 connections to each lower and 64 to the upper cluster, and many streams."""
    found = parts(24, most)
    assert (found.calls, found.upper_calls) == (32, 64)
    assert min(found.streams, found.waiting) > 10_000


def test_every_part_has_its_minimum_if_descriptors_are_scarce() -> None:
    """Each lower can still be watched and called, and some streams are possible."""
    assert parts(8, OWN + 8 * EACH) == parts(8, 0) == DescriptorShares(calls=3, upper_calls=7, streams=8, waiting=8)


@pytest.mark.parametrize("lowers", [0, 1, 2, 7, 24, 37])
@pytest.mark.parametrize("most", [300, 512, 1024, 4096])
def test_all_parts_together_do_not_exceed_the_limit(lowers: int, most: int) -> None:
    """A stream uses two descriptors."""
    found, least = parts(lowers, most), parts(lowers, 0)
    taken = lowers * (found.calls - least.calls) + found.upper_calls + 2 * found.streams + found.waiting
    spare = max(0, most - OWN - EACH * lowers)
    assert taken - least.upper_calls - 2 * least.streams - least.waiting <= spare
