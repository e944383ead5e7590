"""Whose event is next, and whose is given up where there are too many."""

from hypothesis import given
from hypothesis import strategies as st

from tensile.kubelet.pods.event_mirror import EventKey, FairQueue


def queue(*places: str, limit: int = 100) -> FairQueue[str]:
    """Make a queue of items "NAMESPACE/UID", each named as its place."""
    found: FairQueue[str] = FairQueue(limit)
    for one in places:
        found.put(place(one), one)
    return found


def place(name: str) -> EventKey:
    """Return the place that "NAMESPACE/UID" names."""
    return EventKey(*name.split("/"))


def emptied(found: FairQueue[str], *but: str) -> list[str]:
    """Take everything but what is of some namespaces, in order."""
    taken = []
    while one := found.take(lambda namespace: namespace not in but):
        assert one[0] == place(one[1])
        taken.append(one[1])
    return taken


def test_namespaces_take_turns() -> None:
    """Each by the order of its events, however many another has."""
    assert emptied(queue("a/1", "a/2", "a/3", "b/1", "c/1")) == ["a/1", "b/1", "c/1", "a/2", "a/3"]


def test_a_namespace_that_may_not_now_holds_up_no_other() -> None:
    """What it has stays until it may."""
    found = queue("a/1", "b/1", "a/2")
    assert emptied(found, "a") == ["b/1"]
    assert len(found) == 2
    assert emptied(found) == ["a/1", "a/2"]


def test_a_newer_item_takes_the_place_of_the_one_before() -> None:
    """It is one item, at the place where the first was put."""
    found = queue("a/1", "a/2")
    assert not found.put(place("a/1"), "a/1")
    assert len(found) == 2
    assert place("a/1") in found
    assert place("b/1") not in found
    assert emptied(found) == ["a/1", "a/2"]


def test_the_longest_queue_loses_its_oldest() -> None:
    """Who has few events loses none of them to who has many."""
    found = queue("quiet/1", "quiet/2", limit=10)
    dropped = [found.put(EventKey("loud", str(number)), f"loud/{number}") for number in range(100)]
    assert dropped.count(True) == 92
    assert len(found) == 10
    assert [one for one in emptied(found) if one.startswith("quiet")] == ["quiet/1", "quiet/2"]
    full = queue(*[f"loud/{number}" for number in range(10)], limit=10)
    assert full.put(place("quiet/1"), "quiet/1")
    assert emptied(full)[:2] == ["loud/1", "quiet/1"]


def test_what_is_put_back_is_the_first_of_its_namespace() -> None:
    """Unless a newer word of it has come, or there is no room any more."""
    found = queue("a/1", "a/2")
    where, item = found.take(lambda _: True) or (place("?/?"), "")
    found.put_back(where, item)
    assert emptied(found) == ["a/1", "a/2"]
    found = queue("a/1")
    found.put_back(place("a/1"), "older")
    assert emptied(found) == ["a/1"]
    full = queue("a/1", limit=1)
    full.put_back(place("b/1"), "b/1")
    assert emptied(full) == ["a/1"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=200))
def test_it_never_holds_more_than_its_limit(given_: list[tuple[str, int]]) -> None:
    """And everything that it holds comes out once."""
    found: FairQueue[str] = FairQueue(12)
    for namespace, number in given_:
        found.put(EventKey(namespace, str(number)), f"{namespace}/{number}")
        assert len(found) <= 12
    held = len(found)
    taken = emptied(found)
    assert len(taken) == len(set(taken)) == held
    assert len(found) == 0
