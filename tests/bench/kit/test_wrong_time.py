"""Tests of the measurement of how long statuses are wrong."""

from bench.kit.wrong_time import WrongTime


def test_the_longest_wrong_status_counts() -> None:
    """Each status is measured separately, until it is seen to be right."""
    lag = WrongTime(0.0)
    lag.update(1.0, {"a": "a is wrong"})
    lag.update(3.0, {"a": "a is wrong", "b": "b is wrong"})
    lag.update(4.0, {"b": "b is wrong"})
    lag.update(5.0, {})
    assert (lag.longest, lag.description) == (3.0, "a is wrong")


def test_short_lags_of_different_pods_do_not_add_up() -> None:
    """A different pod that lags at every look is a result of load."""
    lag = WrongTime(0.0)
    for number in range(100):
        lag.update(float(number), {str(number): "is behind"})
    assert lag.longest == 1.0


def test_a_status_that_was_wrong_before_the_return_counts_from_the_return() -> None:
    """The time before the cluster is reachable again is not the engine's fault."""
    lag = WrongTime(10.0)
    lag.update(2.0, {"a": "a is wrong"})
    lag.update(9.0, {"a": "a is wrong"})
    assert lag.longest == 0.0
    lag.update(12.0, {"a": "a is wrong still"})
    assert (lag.longest, lag.description) == (2.0, "a is wrong")


def test_a_status_that_is_wrong_again_is_measured_again() -> None:
    """Two short lags do not count as one long one."""
    lag = WrongTime(0.0)
    for now, wrong in enumerate([{"a": ""}, {}, {"a": ""}, {}]):
        lag.update(float(now), wrong)
    assert lag.longest == 1.0
