"""Tests of the throttle for repeated log lines."""

from tensile.kube.limits import PAUSE, LogThrottle


def test_the_first_line_of_a_key_is_logged_and_the_others_are_counted() -> None:
    """After the interval, the next line has the number of suppressed ones."""
    now, logged = [0.0], []
    throttle = LogThrottle(lambda: now[0])
    assert [throttle.log("a", logged.append) for _ in range(5)] == [True, False, False, False, False]
    assert throttle.log("b", logged.append)
    now[0] = PAUSE
    assert throttle.log("a", logged.append)
    assert logged == [{}, {}, {"more_since": 4}]


def test_the_number_of_throttled_keys_is_limited() -> None:
    """The oldest keys are removed."""
    throttle = LogThrottle(lambda: 0.0)
    for number in range(20_000):
        throttle.log(number, lambda _more: None)
    assert len(throttle._last_logged) == 10_000
    assert not throttle.log(19_999, lambda _more: None)
    assert throttle.log(0, lambda _more: None)
