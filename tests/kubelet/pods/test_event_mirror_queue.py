"""Tests of the fair queue of events: which is next, and which is dropped if there are too many."""

from hypothesis import given
from hypothesis import strategies as st

from tensile.kubelet.pods.event_mirror import EventKey, FairQueue


def queue(*places: str, limit: int = 100) -> FairQueue[str]:
    """Return a queue of items "NAMESPACE/UID", each named after its key."""
    found: FairQueue[str] = FairQueue(limit)
    for one in places:
        found.put(event_key(one), one)
    return found


def event_key(name: str) -> EventKey:
    """Return the key that "NAMESPACE/UID" names."""
    return EventKey(*name.split("/"))


def emptied(found: FairQueue[str], *but: str) -> list[str]:
    """Remove all items except those of some namespaces, and return them in order."""
    taken = []
    while one := found.take(lambda namespace: namespace not in but):
        assert one[0] == event_key(one[1])
        taken.append(one[1])
    return taken


def test_namespaces_take_turns() -> None:
    """Each namespace keeps the order of its events, however many another has."""
    assert emptied(queue("a/1", "a/2", "a/3", "b/1", "c/1")) == ["a/1", "b/1", "c/1", "a/2", "a/3"]


def test_a_paused_namespace_does_not_delay_others() -> None:
    """Its items stay until it may send again."""
    found = queue("a/1", "b/1", "a/2")
    assert emptied(found, "a") == ["b/1"]
    assert len(found) == 2
    assert emptied(found) == ["a/1", "a/2"]


def test_a_newer_item_replaces_the_one_with_its_key() -> None:
    """It keeps the position of the first item."""
    found = queue("a/1", "a/2")
    assert not found.put(event_key("a/1"), "a/1")
    assert len(found) == 2
    assert event_key("a/1") in found
    assert event_key("b/1") not in found
    assert emptied(found) == ["a/1", "a/2"]


def test_the_longest_queue_loses_its_oldest_item() -> None:
    """A namespace with few events loses none of them because of one with many."""
    found = queue("quiet/1", "quiet/2", limit=10)
    dropped = [found.put(EventKey("loud", str(number)), f"loud/{number}") for number in range(100)]
    assert dropped.count(True) == 92
    assert len(found) == 10
    assert [one for one in emptied(found) if one.startswith("quiet")] == ["quiet/1", "quiet/2"]
    full = queue(*[f"loud/{number}" for number in range(10)], limit=10)
    assert full.put(event_key("quiet/1"), "quiet/1")
    assert emptied(full)[:2] == ["loud/1", "quiet/1"]


def test_an_item_that_is_put_back_is_the_first_of_its_namespace() -> None:
    """It is dropped if a newer item of its key has arrived, or if the queue is full."""
    found = queue("a/1", "a/2")
    where, item = found.take(lambda _: True) or (event_key("?/?"), "")
    found.put_back(where, item)
    assert emptied(found) == ["a/1", "a/2"]
    found = queue("a/1")
    found.put_back(event_key("a/1"), "older")
    assert emptied(found) == ["a/1"]
    full = queue("a/1", limit=1)
    full.put_back(event_key("b/1"), "b/1")
    assert emptied(full) == ["a/1"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=200))
def test_the_queue_never_exceeds_its_limit(given_: list[tuple[str, int]]) -> None:
    """Every item that it holds is returned once."""
    found: FairQueue[str] = FairQueue(12)
    for namespace, number in given_:
        found.put(EventKey(namespace, str(number)), f"{namespace}/{number}")
        assert len(found) <= 12
    held = len(found)
    taken = emptied(found)
    assert len(taken) == len(set(taken)) == held
    assert len(found) == 0
