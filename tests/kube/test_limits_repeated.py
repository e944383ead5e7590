"""How often the same is said, and how much one author may say."""

from tensile.kube.limits import PAUSE, LogThrottle


def test_the_first_of_a_sort_is_told_and_the_others_are_counted() -> None:
    """Until a while has passed; then the next one says how many were held back."""
    now, told = [0.0], []
    seldom = LogThrottle(lambda: now[0])
    assert [seldom.tell("a", told.append) for _ in range(5)] == [True, False, False, False, False]
    assert seldom.tell("b", told.append)
    now[0] = PAUSE
    assert seldom.tell("a", told.append)
    assert told == [{}, {}, {"more_since": 4}]


def test_sorts_without_end_take_no_room_without_end() -> None:
    """The oldest are forgotten."""
    seldom = LogThrottle(lambda: 0.0)
    for number in range(20_000):
        seldom.tell(number, lambda _more: None)
    assert len(seldom._told) == 10_000
    assert not seldom.tell(19_999, lambda _more: None)
    assert seldom.tell(0, lambda _more: None)
