"""How often the same is said, and how much one author may say."""

from tensile.kube.limits import AT_ONCE, EVERY, PAUSE, LogBudget, LogThrottle


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


def test_one_author_has_so_many_lines() -> None:
    """Whatever they say: then one more in a while, and never more than that at once."""
    now = [0.0]
    ration = LogBudget(lambda: now[0])
    assert sum(ration.take() for _ in range(1_000)) == AT_ONCE
    now[0] += EVERY
    assert [ration.take() for _ in range(3)] == [True, False, False]
    now[0] += 1_000 * EVERY
    assert sum(ration.take() for _ in range(1_000)) == AT_ONCE
