"""How many lower clusters the descriptors of a process are enough for."""

import pytest

from tensile.descriptors import EACH, OWN, shortage


@pytest.mark.parametrize(("lowers", "most"), [(24, None), (0, OWN), (5, OWN + 5 * EACH), (1000, 1 << 20)])
def test_enough_is_not_spoken_of(lowers: int, most: int | None) -> None:
    """Where the system gives as many as one likes, and where just as many as are needed."""
    assert shortage(lowers, most) == ""


def test_too_few_are_told_with_how_many_are_needed() -> None:
    """Twelve lowers do not fit into 300."""
    assert shortage(12, 300) == (
        "this process may open 300 files and connections, and 12 lower clusters need 580: raise the hard limit "
        "(LimitNOFILE of a systemd service, ulimit -Hn 580 of a shell)"
    )
    assert shortage(5, 300) == ""
