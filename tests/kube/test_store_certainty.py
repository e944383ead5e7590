"""Tests of how certain a cache is that a name has no object, and what it remembers of earlier objects."""

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
    """Make a cache with one object, and a list of its later changes."""
    cache, deltas = Cache(phase_of, remembers=remembers), list[Delta]()
    cache.replace([raw("a", 5)], 5)
    cache.subscribe(deltas.append)
    return cache, deltas


def test_the_response_to_our_deletion_removes_only_the_object_with_its_uid() -> None:
    """The watch may have delivered a newer state of the object, or its successor, before the response arrives."""
    cache, _ = filled()
    cache.put(raw("a", 8))
    cache.confirm_deleted("ns", "a", "uid-a")
    assert cache.get("ns", "a") is None
    cache.put(raw("a", 9, uid="next"))
    cache.confirm_deleted("ns", "a", "uid-a")
    assert cache.get("ns", "a") is not None


def test_a_deletion_event_after_a_read_updates_the_tombstone_and_notifies_listeners() -> None:
    """Listeners get the final state of the object although they know already that it is deleted."""
    cache, deltas = filled()
    cache.confirm_absent("ns", "a")
    assert cache.tombstone("ns", "a") == Tombstone("uid-a", "Running", seen=False)
    deltas.clear()
    cache.remove(raw("a", 6, phase="Failed"))
    assert cache.tombstone("ns", "a") == Tombstone("uid-a", "Failed", seen=True)
    ((before, after),) = deltas
    assert (before and before.facts, after) == ("Failed", None)


def test_listeners_are_not_notified_twice_of_a_certain_deletion() -> None:
    """The watch delivers our own deletions too, and that of another object than the one a read found missing."""
    cache, deltas = filled()
    cache.confirm_deleted("ns", "a", "uid-a")
    assert cache.tombstone("ns", "a") == Tombstone("uid-a", "Running", seen=True)
    deltas.clear()
    cache.remove(raw("a", 6))
    assert deltas == []
    cache, deltas = filled()
    cache.confirm_absent("ns", "a")
    deltas.clear()
    cache.remove(raw("a", 6, uid="another"))
    assert deltas == []


def test_invalidate_only_removes_the_tombstone() -> None:
    """The name still counts as empty, and late events of the old object are ignored."""
    cache, deltas = filled()
    cache.remove(raw("a", 6))
    deltas.clear()
    cache.invalidate("ns", "a")
    assert cache.tombstone("ns", "a") is None
    cache.put(raw("a", 5))
    assert cache.get("ns", "a") is None
    assert deltas == []


def test_a_read_or_a_seen_deletion_restores_the_tombstone_after_invalidate() -> None:
    """The read finds no object, or another object is created and deleted."""
    cache, _ = filled()
    cache.remove(raw("a", 6))
    cache.invalidate("ns", "a")
    cache.confirm_absent("ns", "a")
    assert cache.tombstone("ns", "a") == Tombstone("uid-a", "Running", seen=True)
    cache.invalidate("ns", "a")
    cache.put(raw("a", 7, uid="second"))
    cache.remove(raw("a", 8, uid="second"))
    assert cache.tombstone("ns", "a") == Tombstone("second", "Running", seen=True)


def test_invalidate_has_no_effect_on_a_name_with_an_object() -> None:
    """The later deletion of that object leaves a tombstone."""
    cache, _ = filled()
    cache.invalidate("ns", "a")
    assert cache.get("ns", "a") is not None
    cache.remove(raw("a", 6))
    assert cache.tombstone("ns", "a") is not None


def test_a_copy_of_a_cache_inherits_invalidated_names() -> None:
    """Later changes affect only the copy."""
    cache, _ = filled(remembers=1)
    cache.remove(raw("a", 6))
    cache.invalidate("ns", "a")
    copy = cache.copy()
    assert copy.tombstone("ns", "a") is None
    assert copy.last("ns", "a") == cache.last("ns", "a") != b""
    copy.confirm_absent("ns", "a")
    assert cache.tombstone("ns", "a") is None


def test_an_object_is_deleted_if_its_deletion_was_seen_or_a_successor_exists() -> None:
    """An empty name proves nothing about an object of another UID.

    An object that left the selection and was selected again is not deleted.
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


def test_an_object_that_a_quorum_read_searched_and_did_not_find_is_deleted() -> None:
    """It is not if the watch delivered a newer object since, and other UIDs are not deleted."""
    cache, _ = filled()
    cache.put(raw("a", 30))
    cache.confirm_absent("ns", "a", 20, uid="made for this")
    assert not cache.is_deleted("ns", "a", "made for this")
    cache.confirm_absent("ns", "a", 30, uid="made for this")
    cache.confirm_absent("ns", "a", 30, uid="and this")
    cache.confirm_absent("ns", "a")
    assert [cache.is_deleted("ns", "a", uid) for uid in ("made for this", "and this", "")] == [True, True, False]
    assert cache.copy().is_deleted("ns", "a", "and this")


def test_invalidate_or_a_new_object_ends_the_deletion_that_a_read_confirmed() -> None:
    """The object that was not found may be the one that is created now."""
    cache, _ = filled()
    cache.confirm_absent("ns", "a", uid="one")
    cache.invalidate("ns", "a")
    assert not cache.is_deleted("ns", "a", "one")
    cache.confirm_absent("ns", "a", uid="one")
    cache.put(raw("a", 7, uid="next"))
    assert not cache.is_deleted("ns", "a", "one")


def test_the_number_of_remembered_deleted_uids_per_name_is_limited() -> None:
    """The latest are kept, because a name can be used again indefinitely."""
    cache, _ = filled()
    for number in range(20):
        cache.mark_deleted("ns", "a", f"uid-{number}")
        cache.mark_deleted("ns", "a", "uid-0")
    assert cache.is_deleted("ns", "a", "uid-19")
    assert cache.is_deleted("ns", "a", "uid-0")
    assert not cache.is_deleted("ns", "a", "uid-2")


def test_the_last_state_of_an_object_is_that_of_its_deletion_event() -> None:
    """It is not the state that was cached before, and is removed when another object has the name."""
    cache, _ = filled(remembers=1)
    assert cache.last("ns", "a") == b""
    cache.remove(raw("a", 6, phase="Succeeded"))
    assert cache.last("ns", "a") == raw("a", 6, phase="Succeeded")
    cache.put(raw("a", 7, uid="second"))
    assert cache.last("ns", "a") == b""


def test_the_number_of_remembered_last_states_is_limited() -> None:
    """The oldest are removed first; without `remembers` none is kept."""
    cache, _ = filled(remembers=2)
    for version, name in enumerate("abc", start=6):
        cache.remove(raw(name, version))
    assert [bool(cache.last("ns", name)) for name in "abc"] == [False, True, True]
    forgetful, _ = filled()
    forgetful.remove(raw("a", 6))
    assert forgetful.last("ns", "a") == b""


def test_an_object_that_a_restored_store_lacks_is_lost_until_a_newer_object_or_deletion() -> None:
    """A quorum read only confirms the absence and does not end it."""
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


def test_an_older_object_of_a_restored_store_does_not_end_the_loss_of_a_newer_one() -> None:
    """Changes of the older object do not end it either, but a new object of that name does.

    An object that the restored store still has is not lost.
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
