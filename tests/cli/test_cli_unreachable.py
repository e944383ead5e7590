"""A cluster that is out of reach: named with the reason, by commands that wait for it no longer than they may."""

import pytest
from clikit import Wait

from tensile.oneshot import PATIENCE

pytestmark = pytest.mark.real


def last_line(wait: Wait) -> str:
    """Wait for a command's end, which has to come soon after its patience; gives its error."""
    told, seconds = wait.result.result()
    assert (told.code, told.out) == (1, "")
    assert seconds < PATIENCE + 10
    return told.err.splitlines()[-1]


def test_a_lower_that_is_away_is_the_only_one_named(waits: dict[str, Wait]) -> None:
    """Half a plan is none: the error says which lower did not answer and why, and nothing of the one that did."""
    wait = waits["partly"]
    error = last_line(wait)
    assert error.startswith(f"below: out of reach: {wait.address} cannot be connected to (Connection refused): ")
    assert "answering: " not in wait.result.result()[0].err


def test_an_upper_cluster_that_refuses_is_told_at_once_and_at_the_end(waits: dict[str, Wait]) -> None:
    """The log has it while the command still waits; the last line is the error."""
    wait = waits["refusing"]
    error = last_line(wait)
    assert error.startswith(f"upper: out of reach: {wait.address} cannot be connected to (Connection refused): ")
    assert "cluster does not answer" in wait.result.result()[0].err.splitlines()[0]


def test_an_upper_cluster_that_hangs_is_out_of_reach(waits: dict[str, Wait]) -> None:
    """Patience ends where a connection is taken and nothing comes."""
    assert last_line(waits["hanging"]).startswith("upper: out of reach: ")
