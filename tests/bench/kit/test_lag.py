"""For how long statuses stay wrong."""

from bench.kit.lag import Lag


def test_the_longest_wrong_status_counts() -> None:
    """Each is measured by itself, up to the look that finds it right."""
    lag = Lag(0.0)
    lag.look(1.0, {"a": "a is wrong"})
    lag.look(3.0, {"a": "a is wrong", "b": "b is wrong"})
    lag.look(4.0, {"b": "b is wrong"})
    lag.look(5.0, {})
    assert (lag.longest, lag.what) == (3.0, "a is wrong")


def test_load_is_no_lag() -> None:
    """Another pod that is a moment behind at every look adds up to nothing."""
    lag = Lag(0.0)
    for number in range(100):
        lag.look(float(number), {str(number): "is behind"})
    assert lag.longest == 1.0


def test_what_was_wrong_before_counts_from_the_beginning() -> None:
    """Nobody can be blamed for the time before the cluster was back."""
    lag = Lag(10.0)
    lag.look(2.0, {"a": "a is wrong"})
    lag.look(9.0, {"a": "a is wrong"})
    assert lag.longest == 0.0
    lag.look(12.0, {"a": "a is wrong still"})
    assert (lag.longest, lag.what) == (2.0, "a is wrong")


def test_what_is_wrong_again_begins_anew() -> None:
    """Two short lags are not one long one."""
    lag = Lag(0.0)
    for now, wrong in enumerate([{"a": ""}, {}, {"a": ""}, {}]):
        lag.look(float(now), wrong)
    assert lag.longest == 1.0
