"""When credential files are read again."""

from pathlib import Path

from tensile.kube.files import Watched
from tensile.kube.freshness import AGAIN, Freshness

OLD, HALF, NEW = (Watched((Path("f"),), ((mark,),)) for mark in range(3))


def test_nothing_is_read_while_nothing_changes() -> None:
    """However long it is looked at."""
    freshness = Freshness(OLD)
    assert not any(freshness.is_due(OLD, now) for now in range(1000))


def test_a_change_is_read_once_it_stays() -> None:
    """A file that is being written changes with each look and is left alone; the second equal look counts."""
    freshness = Freshness(OLD)
    assert [freshness.is_due(found, 0.0) for found in (HALF, NEW, NEW)] == [False, False, True]
    freshness.note_read(NEW)
    assert not freshness.is_due(NEW, 1000.0)


def test_a_change_that_is_taken_back_is_none() -> None:
    """What is as it was when it was read needs no reading."""
    freshness = Freshness(OLD)
    assert not any(freshness.is_due(found, 0.0) for found in (HALF, OLD, OLD))


def test_a_change_during_the_reading_is_another_one() -> None:
    """The files count as they were before they were read."""
    freshness = Freshness(OLD)
    assert [freshness.is_due(HALF, 0.0) for _ in range(2)] == [False, True]
    freshness.note_read(HALF)
    assert [freshness.is_due(NEW, 1.0) for _ in range(2)] == [False, True]


def test_what_cannot_be_used_is_tried_again_after_a_while() -> None:
    """What it lacks may lie in a file that nobody knows to look at; a change is tried at once all the same."""
    freshness = Freshness(OLD)
    assert [freshness.is_due(HALF, 0.0) for _ in range(2)] == [False, True]
    freshness.note_refused(0.0)
    assert not freshness.is_due(HALF, AGAIN - 1)
    assert freshness.is_due(HALF, AGAIN)
    freshness.note_refused(AGAIN)
    assert not freshness.is_due(HALF, AGAIN + 1)
    assert [freshness.is_due(NEW, AGAIN + 2) for _ in range(2)] == [False, True]
    freshness.note_read(NEW)
    assert not freshness.is_due(NEW, 1000.0)
