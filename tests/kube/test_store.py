"""Tests of the cache of one kind: which objects are stored, ignored or removed, and what listeners receive."""

from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.errors import Malformed
from tensile.kube.store import Cache, Delta, Entry, Transform, Transformed, forget_decoded, keep_all
from tensile.kube.tombstones import Tombstone


def raw(name: str, version: int, uid: str = "", **more: object) -> bytes:
    """Make an object in namespace `ns`; its UID is derived from its name unless given."""
    meta = {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return orjson.dumps({"metadata": meta, **more})


def facts(bytes_: bytes) -> Transformed:
    """Keep the node of an object as its facts, and no bytes."""
    return Transformed(b"", orjson.loads(bytes_).get("node"))


def node(entry: Entry) -> tuple[str, ...]:
    """Index by node; an object without one has no index value."""
    return (entry.facts,) if entry.facts else ()


def names(cache: Cache) -> list[str]:
    """Return the cached names, sorted."""
    return sorted(entry.name for entry in cache)


def found(cache: Cache, name: str, namespace: str = "ns") -> Entry:
    """Return the entry of a name that has one."""
    entry = cache.get(namespace, name)
    assert entry is not None
    return entry


def filled(*raws: bytes, version: int = 10) -> Cache:
    """Make a cache that has been listed once."""
    cache = Cache()
    cache.replace(raws, version)
    return cache


def record_notifications(cache: Cache) -> list[tuple[str, str]]:
    """Return a list to which a listener appends the UIDs before and after each change."""
    notifications: list[tuple[str, str]] = []

    def hear(delta: Delta) -> None:
        notifications.append((delta.before.uid if delta.before else "", delta.after.uid if delta.after else ""))

    cache.subscribe(hear)
    return notifications


def test_a_list_fills_the_cache() -> None:
    """Objects are found by namespace ("" for none) and name, and are decoded once for all callers."""
    cache = Cache()
    assert (cache.synced, cache.version, len(cache), cache.tombstone("ns", "a")) == (False, 0, 0, None)
    node = b'{"metadata":{"name":"n","uid":"u","resourceVersion":"3"}}'
    cache.replace([raw("a", 5, spec={"x": 1}), raw("b", 6), node], 20)
    assert (cache.synced, cache.version, len(cache), names(cache)) == (True, 20, 3, ["a", "b", "n"])
    assert found(cache, "n", "").uid == "u"
    entry = found(cache, "a")
    assert (entry.uid, entry.version, entry.manifest()["spec"]) == ("uid-a", 5, {"x": 1})
    assert entry.manifest() is entry.manifest()
    assert cache.get("other", "a") is None


def test_an_object_that_a_list_lacks_is_removed_without_a_tombstone() -> None:
    """Events may have been missed, so the absence allows no irreversible action."""
    cache = filled(raw("a", 5), raw("b", 6))
    notifications = record_notifications(cache)
    cache.replace([raw("b", 6)], 30)
    assert names(cache) == ["b"]
    assert cache.tombstone("ns", "a") is None
    assert not cache.is_lost("ns", "a")
    assert notifications == [("uid-a", "")]


def test_a_list_notifies_listeners_only_of_changes() -> None:
    """Changes are modified, new and replaced objects."""
    cache = filled(raw("same", 5), raw("moved", 6), raw("exchanged", 7, uid="one"))
    notifications = record_notifications(cache)
    fresh = [raw("same", 5), raw("moved", 16, x=1), raw("exchanged", 17, uid="two"), raw("new", 18)]
    cache.replace(fresh, 30)
    assert sorted(notifications) == [("", "uid-new"), ("one", "two"), ("uid-moved", "uid-moved")]


@pytest.mark.parametrize("digest", [keep_all, facts], ids=["bytes", "facts alone"])
def test_a_new_resource_version_without_another_change_notifies_no_listener(digest: Transform) -> None:
    """The new resourceVersion is cached for later writes."""
    cache = Cache(digest)
    cache.replace([raw("a", 5, node="one")], 5)
    notifications = record_notifications(cache)
    cache.put(raw("a", 6, node="one"))
    entry = found(cache, "a")
    assert (entry.version, b'"resourceVersion":"6"' in entry.raw, notifications) == (6, digest is keep_all, [])
    cache.put(raw("a", 7, node="two"))
    assert notifications == [("uid-a", "uid-a")]


def test_a_list_does_not_undo_newer_writes() -> None:
    """The response to a write may arrive during a list, and the watch delivers its event later."""
    cache = filled(raw("changed", 5), raw("old", 6))
    cache.apply_response(raw("made", 31))
    cache.apply_response(raw("changed", 32))
    notifications = record_notifications(cache)
    cache.replace([raw("changed", 5)], 30)
    assert sorted((entry.name, entry.version) for entry in cache) == [("changed", 32), ("made", 31)]
    assert notifications == [("uid-old", "")]
    cache.remove(raw("made", 40))
    assert names(cache) == ["changed"]


def test_a_list_after_mark_stale_replaces_newer_objects_too() -> None:
    """After a restore, resourceVersions are lower than before, so the old ones prove nothing."""
    cache = filled(raw("a", 500), version=600)
    cache.apply_response(raw("b", 700))
    cache.mark_stale()
    assert (cache.synced, names(cache)) == (False, ["a", "b"])
    cache.replace([raw("a", 90)], 100)
    assert (cache.synced, cache.version, names(cache)) == (True, 100, ["a"])
    assert found(cache, "a").version == 90


def test_only_a_newer_resource_version_replaces_an_object() -> None:
    """The order of arrival does not matter, and the version of the cache only increases."""
    cache = filled(raw("a", 5))
    notifications = record_notifications(cache)
    cache.put(raw("a", 25, x=1))
    cache.put(raw("a", 24, x=2))
    cache.put(raw("a", 25, x=3))
    entry = found(cache, "a")
    assert entry.manifest()["x"] == 1
    assert cache.version == 25
    assert notifications == [("uid-a", "uid-a")]


def test_listeners_receive_the_old_and_the_new_object_if_the_uid_changes() -> None:
    """They can recognize that another object has the same name."""
    cache = filled(raw("a", 5, uid="one"))
    notifications = record_notifications(cache)
    cache.put(raw("a", 25, uid="two"))
    assert notifications == [("one", "two")]


def test_late_events_of_an_old_object_do_not_replace_its_successor() -> None:
    """The response to our create may arrive before the watch delivers the deletion of the old object."""
    cache = filled(raw("a", 5, uid="one"))
    cache.apply_response(raw("a", 25, uid="two"))
    notifications = record_notifications(cache)
    cache.put(raw("a", 23, uid="one", deleting=True))
    cache.remove(raw("a", 24, uid="one"))
    entry = found(cache, "a")
    assert entry.uid == "two"
    assert cache.tombstone("ns", "a") is None
    assert notifications == []


def test_a_deletion_on_the_watch_leaves_a_tombstone() -> None:
    """It does so also for an unknown object, and the tombstone has the object's last facts."""
    cache = Cache(facts)
    cache.replace([raw("a", 5, node="n1")], 10)
    notifications = record_notifications(cache)
    cache.remove(raw("a", 25, node="n2"))
    assert names(cache) == []
    assert cache.tombstone("ns", "a") == Tombstone("uid-a", "n2")
    cache.remove(raw("unknown", 26))
    assert cache.tombstone("ns", "unknown") == Tombstone("uid-unknown", None)
    assert cache.version == 26
    assert notifications == [("uid-a", "")]
    cache.put(raw("a", 27, uid="two"))
    assert cache.tombstone("ns", "a") is None


def test_a_deletion_event_with_an_unreadable_object_removes_the_known_object() -> None:
    """The tombstone has the facts of the last readable state; an event about an unknown object is left out."""

    def strict(data: bytes) -> Transformed:
        """Fail for an object without a node."""
        return Transformed(data, orjson.loads(data)["node"])

    cache = Cache(strict)
    cache.replace([raw("a", 5, node="n1")], 10)
    cache.remove(raw("a", 25))
    assert (names(cache), cache.version) == ([], 25)
    assert cache.tombstone("ns", "a") == Tombstone("uid-a", "n1")
    for other in (raw("unknown", 26), raw("a", 26)):
        with pytest.raises(Malformed):
            cache.remove(other)


def test_the_response_to_a_write_is_cached_at_once() -> None:
    """The next decision sees created and changed objects without waiting for the watch."""
    cache = filled(raw("a", 5), version=10)
    cache.apply_response(raw("a", 11, x=1))
    cache.apply_response(raw("b", 12))
    assert names(cache) == ["a", "b"]
    assert cache.version == 10


def test_the_response_to_a_write_is_ignored_if_the_watch_is_newer() -> None:
    """A created object whose deletion was already seen does not appear again."""
    cache = filled(version=10)
    cache.put(raw("a", 11))
    cache.remove(raw("a", 12))
    cache.apply_response(raw("a", 11))
    assert names(cache) == []
    cache.put(raw("b", 14))
    cache.apply_response(raw("b", 13))
    entry = found(cache, "b")
    assert entry.version == 14


@pytest.mark.parametrize("version", ["", "abc"])
def test_a_response_without_a_resource_version_is_not_cached(version: str) -> None:
    """Reviews, for example, are not stored by the cluster."""
    cache = filled()
    cache.apply_response(orjson.dumps({"metadata": {"name": "a", "resourceVersion": version}}))
    assert names(cache) == []


def test_a_quorum_read_without_a_result_leaves_a_tombstone() -> None:
    """A 404 proves that the name has no object, although no deletion was seen."""
    cache = Cache(facts)
    cache.replace([raw("a", 5, node="n1")], 10)
    notifications = record_notifications(cache)
    cache.confirm_absent("ns", "a")
    cache.confirm_absent("ns", "never")
    assert cache.tombstone("ns", "a") == Tombstone("uid-a", "n1", seen=False)
    assert cache.tombstone("ns", "never") == Tombstone("", None, seen=False)
    assert notifications == [("uid-a", "")]


def test_a_quorum_read_does_not_remove_an_object_that_the_watch_added_since() -> None:
    """The object was created during the read."""
    cache = filled(raw("a", 5))
    since = cache.version
    cache.put(raw("a", 25, uid="two"))
    cache.confirm_absent("ns", "a", since)
    assert names(cache) == ["a"]
    assert cache.tombstone("ns", "a") is None
    cache.confirm_absent("ns", "a", 25)
    assert names(cache) == []


def test_a_late_event_does_not_restore_an_object_that_was_confirmed_absent() -> None:
    """A new object with another UID is stored."""
    cache = filled(raw("a", 5))
    cache.confirm_absent("ns", "a")
    cache.put(raw("a", 12))
    assert cache.get("ns", "a") is None
    cache.put(raw("a", 13, uid="another"))
    assert names(cache) == ["a"]


def test_an_object_that_is_selected_again_is_stored_again() -> None:
    """If a label is removed and set again, the watch delivers a deletion and an addition of the same UID."""
    cache = filled(raw("a", 5))
    cache.remove(raw("a", 12))
    for version in (11, 12):
        cache.put(raw("a", version))
        assert names(cache) == []
    cache.put(raw("a", 13))
    assert names(cache) == ["a"]
    assert cache.tombstone("ns", "a") is None
    copy = cache.copy()
    copy.remove(raw("a", 14))
    copy.copy().put(raw("a", 14))
    assert names(copy) == []
    copy.put(raw("a", 15))
    assert names(copy) == ["a"]


def test_an_object_that_left_the_selection_can_be_added_from_a_read() -> None:
    """The read returns the version of the deletion event; an older response is ignored."""
    cache = filled(raw("a", 5))
    cache.remove(raw("a", 12))
    cache.add_unselected(raw("a", 11))
    assert names(cache) == []
    cache.add_unselected(raw("a", 12))
    entry = found(cache, "a")
    assert (entry.version, cache.tombstone("ns", "a")) == (12, None)
    cache.put(raw("a", 13, node="x"))
    assert names(cache) == ["a"]


@pytest.mark.parametrize("is_gone", [Cache.confirm_absent, lambda cache, *name: cache.confirm_deleted(*name, "uid-a")])
def test_a_deleted_object_cannot_be_added_from_a_read(is_gone: Callable[..., None]) -> None:
    """The response may have been sent before the deletion; an object with another UID is added."""
    cache = filled(raw("a", 5))
    is_gone(cache, "ns", "a")
    cache.add_unselected(raw("a", 12))
    assert names(cache) == []
    cache.add_unselected(raw("a", 12, uid="another"))
    assert names(cache) == ["a"]


def test_an_older_read_does_not_replace_a_newer_watch_event() -> None:
    """Otherwise the old state would stay cached until the next change."""
    cache = filled(raw("a", 5))
    cache.put(raw("a", 14, node="new"))
    cache.add_unselected(raw("a", 12, node="old"))
    entry = found(cache, "a")
    assert (entry.version, entry.manifest()["node"]) == (14, "new")


def test_confirming_an_absence_keeps_the_tombstone_of_a_seen_deletion() -> None:
    """The watch may deliver the deletion before its response arrives."""
    cache = filled(raw("a", 5))
    cache.remove(raw("a", 12))
    cache.confirm_absent("ns", "a")
    assert cache.tombstone("ns", "a") == Tombstone("uid-a", None)


def test_the_watch_event_of_an_own_write_is_not_transformed_again() -> None:
    """The response to the write was transformed already."""
    digested: list[bytes] = []

    def digest(bytes_: bytes) -> Transformed:
        """Record the call and keep the object."""
        digested.append(bytes_)
        return Transformed(bytes_, None)

    cache = Cache(digest)
    cache.replace([], 10)
    cache.apply_response(raw("a", 11))
    cache.put(raw("a", 11))
    assert (len(digested), cache.version) == (1, 11)


def decoding(bytes_: bytes) -> Transformed:
    """Decode an object and keep all of it."""
    return Transformed(bytes_, None, orjson.loads(bytes_))


def test_an_object_that_its_transform_decoded_has_the_same_entry() -> None:
    """This holds even if fields of the metadata are absent."""
    for one in (raw("a", 5), orjson.dumps({"metadata": {"name": "node"}})):
        assert Cache(decoding).read(one) == Cache().read(one)


def test_single_objects_stay_decoded_and_listed_objects_do_not() -> None:
    """The next decision is about a single object, while a list may have thousands."""
    made: list[Transformed] = []

    def digest(bytes_: bytes) -> Transformed:
        """Decode the object and record the result."""
        made.append(decoding(bytes_))
        return made[-1]

    forget_decoded()
    cache = Cache(digest)
    cache.replace([raw("a", 5)], 10)
    cache.put(raw("b", 11))
    cache.apply_response(raw("c", 12))
    found = [entry.manifest() for entry in cache]
    assert found == [one.manifest for one in made]
    assert [one is known.manifest for one, known in zip(found, made, strict=True)] == [False, True, True]


def test_on_sync_listeners_are_called_when_the_cache_becomes_synced() -> None:
    """They are called after the changes of the first list and of a list after mark_stale, and not after others."""
    cache, calls = Cache(), list[int]()
    cache.on_sync(lambda: calls.append(len(cache)))
    cache.replace([raw("a", 5)], 10)
    cache.replace([raw("a", 5), raw("b", 6)], 11)
    cache.mark_stale()
    cache.replace([raw("a", 5), raw("b", 6)], 12)
    assert calls == [1, 2]


def test_a_copy_of_a_cache_is_independent() -> None:
    """It has the same objects, tombstones, indexes and state, and no listeners of the original are called."""
    cache = Cache(facts, {"node": node})
    cache.replace([raw("a", 5, node="n1"), raw("b", 6)], 10)
    cache.confirm_absent("ns", "b")
    notifications = record_notifications(cache)
    copy = cache.copy()
    assert (names(copy), copy.synced, copy.version, copy.tombstone("ns", "b")) == (
        ["a"],
        True,
        10,
        cache.tombstone("ns", "b"),
    )
    assert [entry.name for entry in copy.select("node", "n1")] == ["a"]
    copy.put(raw("c", 12))
    copy.confirm_absent("ns", "a")
    assert (names(cache), names(copy), notifications) == (["a"], ["c"], [])


def test_the_number_of_tombstones_is_limited() -> None:
    """The oldest are removed first, which costs no more than another read."""
    cache = filled()
    for number in range(20_000):
        cache.confirm_absent("ns", f"p{number}")
    cache.confirm_absent("ns", "p0")
    cache.confirm_absent("ns", "more")
    assert cache.tombstone("ns", "p0") is not None
    assert cache.tombstone("ns", "p1") is None
    assert cache.tombstone("ns", "p2") is not None


def test_an_index_is_updated_with_its_objects() -> None:
    """Objects are found by their facts, and no empty index value is left."""
    cache = Cache(facts, {"node": node})
    cache.replace([raw("a", 5, node="n1"), raw("b", 6, node="n1"), raw("c", 7)], 10)
    assert {entry.name for entry in cache.select("node", "n1")} == {"a", "b"}
    assert cache.count("node", "n1") == 2
    cache.put(raw("a", 11, node="n2"))
    cache.remove(raw("b", 12, node="n1"))
    assert cache.select("node", "n1") == ()
    assert (cache.count("node", "n1"), cache.count("node", "n2")) == (0, 1)
    assert cache.values("node") == ("n2",)
    assert [entry.name for entry in cache.select("node", "n2")] == ["a"]
    cache.replace([], 20)
    assert cache.select("node", "n2") == ()


def test_listeners_are_called_after_the_cache_has_changed() -> None:
    """The cache may also be changed while it is iterated."""
    cache = filled(raw("a", 5), raw("b", 6))
    seen: list[list[str]] = []
    cache.subscribe(lambda _: seen.append(names(cache)))
    for entry in cache:
        cache.confirm_absent("ns", entry.name)
    assert seen == [["b"], []]


NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(st.tuples(st.sampled_from(["put", "remove", "successor"]), NAMES), max_size=30)


@given(STEPS, st.data())
def test_responses_applied_at_any_time_do_not_change_the_final_state(
    steps: list[tuple[str, str]], data: st.DataObject
) -> None:
    """With and without early or late responses, the cache has the same objects in the end."""
    notifications: list[tuple[str, bytes]] = []
    uids = dict.fromkeys("abc", 0)
    for version, (verb, name) in enumerate(steps, 11):
        uids[name] += verb == "successor"
        notifications.append(("remove" if verb == "remove" else "put", raw(name, version, uid=f"{name}{uids[name]}")))
        uids[name] += verb == "remove"
    plain, eager = filled(), filled()
    for at, (verb, body) in enumerate(notifications):
        for early in data.draw(st.lists(st.sampled_from(notifications[: at + 2]), max_size=2)):
            if early[0] == "put":
                eager.apply_response(early[1])
        getattr(plain, verb)(body)
        getattr(eager, verb)(body)
    assert sorted((e.name, e.uid, e.version) for e in eager) == sorted((e.name, e.uid, e.version) for e in plain)
