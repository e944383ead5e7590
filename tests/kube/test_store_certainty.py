"""How certain a cache is that a name is empty, and what it remembers of what stood there."""

import orjson

from tensile.kube.store import Cache, Delta, Transformed
from tensile.kube.tombstones import Tombstone


def raw(name: str, version: int, uid: str = "", phase: str = "Running") -> bytes:
    """Make an object."""
    meta = {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return orjson.dumps({"metadata": meta, "phase": phase})


def phase_of(given: bytes) -> Transformed:
    """Keep an object, and its phase as a fact."""
    return Transformed(given, orjson.loads(given)["phase"])


def filled(*, remembers: int = 0) -> tuple[Cache, list[Delta]]:
    """Make a cache with one object, and a list of what it tells from then on."""
    cache, told = Cache(phase_of, remembers=remembers), list[Delta]()
    cache.replace([raw("a", 5)], 5)
    cache.subscribe(told.append)
    return cache, told


def test_a_deletion_of_ours_takes_its_own_object_only() -> None:
    """However late its answer comes: the watch may have told of a newer state, or of a successor."""
    cache, _ = filled()
    cache.put(raw("a", 8))
    cache.confirm_deleted("ns", "a", "uid-a")
    assert cache.get("ns", "a") is None
    cache.put(raw("a", 9, uid="next"))
    cache.confirm_deleted("ns", "a", "uid-a")
    assert cache.get("ns", "a") is not None


def test_the_watch_makes_certain_what_a_read_found_and_says_so() -> None:
    """With what the object was in the end, to those who have heard that it is gone."""
    cache, told = filled()
    cache.confirm_absent("ns", "a")
    assert cache.tombstone("ns", "a") == Tombstone("uid-a", "Running", seen=False)
    told.clear()
    cache.remove(raw("a", 6, phase="Failed"))
    assert cache.tombstone("ns", "a") == Tombstone("uid-a", "Failed", seen=True)
    ((before, after),) = told
    assert (before and before.facts, after) == ("Failed", None)


def test_nobody_is_told_twice_of_what_is_certain() -> None:
    """Our own deletions come back on the watch, thousands of them; so may that of another than a read found missing."""
    cache, told = filled()
    cache.confirm_deleted("ns", "a", "uid-a")
    assert cache.tombstone("ns", "a") == Tombstone("uid-a", "Running", seen=True)
    told.clear()
    cache.remove(raw("a", 6))
    assert told == []
    cache, told = filled()
    cache.confirm_absent("ns", "a")
    told.clear()
    cache.remove(raw("a", 6, uid="another"))
    assert told == []


def test_a_doubt_takes_the_certainty_and_nothing_else() -> None:
    """The name is still empty as far as is known, and late words of the old object are still passed over."""
    cache, told = filled()
    cache.remove(raw("a", 6))
    told.clear()
    cache.invalidate("ns", "a")
    assert cache.tombstone("ns", "a") is None
    cache.put(raw("a", 5))
    assert cache.get("ns", "a") is None
    assert told == []


def test_a_doubt_ends_with_the_next_certainty() -> None:
    """A read that finds nothing, or an object that comes and goes."""
    cache, _ = filled()
    cache.remove(raw("a", 6))
    cache.invalidate("ns", "a")
    cache.confirm_absent("ns", "a")
    assert cache.tombstone("ns", "a") == Tombstone("uid-a", "Running", seen=True)
    cache.invalidate("ns", "a")
    cache.put(raw("a", 7, uid="second"))
    cache.remove(raw("a", 8, uid="second"))
    assert cache.tombstone("ns", "a") == Tombstone("second", "Running", seen=True)


def test_a_doubt_about_a_name_that_is_taken_changes_nothing() -> None:
    """Once that object goes, its going counts."""
    cache, _ = filled()
    cache.invalidate("ns", "a")
    assert cache.get("ns", "a") is not None
    cache.remove(raw("a", 6))
    assert cache.tombstone("ns", "a") is not None


def test_a_copy_doubts_the_same() -> None:
    """And its doubts are its own from then on."""
    cache, _ = filled(remembers=1)
    cache.remove(raw("a", 6))
    cache.invalidate("ns", "a")
    copy = cache.copy()
    assert copy.tombstone("ns", "a") is None
    assert copy.last("ns", "a") == cache.last("ns", "a") != b""
    copy.confirm_absent("ns", "a")
    assert cache.tombstone("ns", "a") is None


def test_an_object_is_gone_for_good_whatever_has_its_name() -> None:
    """Its going was seen, or another came after it; that a name is empty says nothing of any other object.

    An object that left the selection and came back is not gone.
    """
    cache, _ = filled()
    cache.remove(raw("a", 5))
    assert cache.is_deleted("ns", "a", "uid-a")
    cache.put(raw("a", 6))
    assert not cache.is_deleted("ns", "a", "uid-a")
    cache.put(raw("a", 7, uid="second"))
    assert cache.is_deleted("ns", "a", "uid-a")
    cache.remove(raw("a", 8, uid="second"))
    assert cache.is_deleted("ns", "a", "second")
    assert not cache.is_deleted("ns", "a", "third")
    cache.put(raw("a", 9, uid="third"))
    assert [cache.is_deleted("ns", "a", uid) for uid in ("second", "third")] == [True, False]


def test_what_a_read_looked_for_and_did_not_find_is_gone() -> None:
    """Not where the watch has told of something newer, nor what was not looked for."""
    cache, _ = filled()
    cache.put(raw("a", 30))
    cache.confirm_absent("ns", "a", 20, sought="made for this")
    assert not cache.is_deleted("ns", "a", "made for this")
    cache.confirm_absent("ns", "a", 30, sought="made for this")
    cache.confirm_absent("ns", "a", 30, sought="and this")
    cache.confirm_absent("ns", "a")
    assert [cache.is_deleted("ns", "a", uid) for uid in ("made for this", "and this", "")] == [True, True, False]
    assert cache.copy().is_deleted("ns", "a", "and this")


def test_a_doubt_and_a_new_object_are_about_what_was_not_found_too() -> None:
    """It may be what comes there now."""
    cache, _ = filled()
    cache.confirm_absent("ns", "a", sought="one")
    cache.invalidate("ns", "a")
    assert not cache.is_deleted("ns", "a", "one")
    cache.confirm_absent("ns", "a", sought="one")
    cache.put(raw("a", 7, uid="next"))
    assert not cache.is_deleted("ns", "a", "one")


def test_of_one_name_the_latest_that_are_gone_are_remembered() -> None:
    """A name can be used for ever."""
    cache, _ = filled()
    for number in range(20):
        cache.mark_deleted("ns", "a", f"uid-{number}")
        cache.mark_deleted("ns", "a", "uid-0")
    assert cache.is_deleted("ns", "a", "uid-19")
    assert cache.is_deleted("ns", "a", "uid-0")
    assert not cache.is_deleted("ns", "a", "uid-2")


def test_last_words_are_those_of_the_watch() -> None:
    """The object as it was when it went, not as it was last put; once the name is taken, they were another's."""
    cache, _ = filled(remembers=1)
    assert cache.last("ns", "a") == b""
    cache.remove(raw("a", 6, phase="Succeeded"))
    assert cache.last("ns", "a") == raw("a", 6, phase="Succeeded")
    cache.put(raw("a", 7, uid="second"))
    assert cache.last("ns", "a") == b""


def test_only_so_many_last_words_are_remembered() -> None:
    """The oldest go first; without a number, there are none."""
    cache, _ = filled(remembers=2)
    for version, name in enumerate("abc", start=6):
        cache.remove(raw(name, version))
    assert [bool(cache.last("ns", name)) for name in "abc"] == [False, True, True]
    forgetful, _ = filled()
    forgetful.remove(raw("a", 6))
    assert forgetful.last("ns", "a") == b""


def test_what_a_restored_store_lacks_is_lost_until_something_is_known_of_it() -> None:
    """A read at quorum only finds out the same; a new object, or a deletion that is seen, says more."""
    cache, _ = filled()
    cache.take_over((), 3, rewound=True)
    assert (cache.is_lost("ns", "a"), cache.is_lost("ns", "other")) == (True, False)
    cache.confirm_absent("ns", "a")
    assert cache.is_lost("ns", "a")
    assert cache.tombstone("ns", "a") == Tombstone("", None, seen=False)
    assert cache.copy().is_lost("ns", "a")
    cache.put(raw("a", 4, uid="next"))
    assert not cache.is_lost("ns", "a")
    cache.take_over((), 3, rewound=True)
    assert cache.is_lost("ns", "a", "next")
    cache.remove(raw("a", 5, uid="next"))
    assert not cache.is_lost("ns", "a")


def test_an_older_object_in_its_place_says_nothing_of_a_lost_one() -> None:
    """The store had it before; whatever becomes of it, the later one is forgotten, until it is back or one is made.

    What the restored store still has is not lost.
    """
    cache, _ = filled()
    cache.take_over([cache.read(raw("a", 2))], 3, rewound=True)
    assert not cache.is_lost("ns", "a")
    cache, _ = filled()
    cache.take_over([cache.read(raw("a", 2, uid="older"))], 3, rewound=True)
    for version in (4, 5):
        cache.put(raw("a", version, uid="older", phase="Failed"))
        assert cache.is_lost("ns", "a", "uid-a")
        assert not cache.is_lost("ns", "a", "older")
    cache.remove(raw("a", 6, uid="older"))
    assert cache.is_lost("ns", "a", "uid-a")
    cache.put(raw("a", 7, uid="made since"))
    assert not cache.is_lost("ns", "a", "uid-a")
