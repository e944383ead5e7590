"""The cache of one kind: what is filed, what is passed over, what departed, and what listeners hear."""

from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.kube.store import Cache, Delta, Entry, Transform, Transformed, forget_decoded, keep_all
from tensile.kube.tombstones import Tombstone


def raw(name: str, version: int, uid: str = "", **more: object) -> bytes:
    """Make an object in namespace `ns`; its UID is derived from its name unless given."""
    meta = {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return orjson.dumps({"metadata": meta, **more})


def facts(bytes_: bytes) -> Transformed:
    """Keep what an object says about its node, and no bytes."""
    return Transformed(b"", orjson.loads(bytes_).get("node"))


def node(entry: Entry) -> tuple[str, ...]:
    """Index by node, objects without one under nothing."""
    return (entry.facts,) if entry.facts else ()


def names(cache: Cache) -> list[str]:
    """Return the cached names, sorted."""
    return sorted(entry.name for entry in cache)


def found(cache: Cache, name: str, namespace: str = "ns") -> Entry:
    """Return the entry of a name, which has one."""
    entry = cache.get(namespace, name)
    assert entry is not None
    return entry


def filled(*raws: bytes, version: int = 10) -> Cache:
    """Make a cache that has been listed once."""
    cache = Cache()
    cache.replace(raws, version)
    return cache


def heard(cache: Cache) -> list[tuple[str, str]]:
    """Collect from now on what a listener hears, as pairs of UIDs before and after."""
    told: list[tuple[str, str]] = []

    def hear(delta: Delta) -> None:
        told.append((delta.before.uid if delta.before else "", delta.after.uid if delta.after else ""))

    cache.subscribe(hear)
    return told


def test_a_list_fills_it() -> None:
    """Objects are found by namespace, "" for none, and name, as bytes and decoded, once for all who ask."""
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


def test_what_a_list_lacks_is_gone_but_did_not_depart() -> None:
    """Something may have been missed, so the absence allows nothing that cannot be undone."""
    cache = filled(raw("a", 5), raw("b", 6))
    told = heard(cache)
    cache.replace([raw("b", 6)], 30)
    assert names(cache) == ["b"]
    assert cache.tombstone("ns", "a") is None
    assert not cache.is_lost("ns", "a")
    assert told == [("uid-a", "")]


def test_a_list_tells_only_what_changed() -> None:
    """Listeners are called for objects that are changed, new or exchanged, not for unchanged ones."""
    cache = filled(raw("same", 5), raw("moved", 6), raw("exchanged", 7, uid="one"))
    told = heard(cache)
    fresh = [raw("same", 5), raw("moved", 16, x=1), raw("exchanged", 17, uid="two"), raw("new", 18)]
    cache.replace(fresh, 30)
    assert sorted(told) == [("", "uid-new"), ("one", "two"), ("uid-moved", "uid-moved")]


@pytest.mark.parametrize("digest", [keep_all, facts], ids=["bytes", "facts alone"])
def test_an_object_that_is_only_renumbered_tells_nothing(digest: Transform) -> None:
    """Its new resourceVersion is in the cache, for writes that name it; listeners are called for other changes only."""
    cache = Cache(digest)
    cache.replace([raw("a", 5, node="one")], 5)
    told = heard(cache)
    cache.put(raw("a", 6, node="one"))
    entry = found(cache, "a")
    assert (entry.version, b'"resourceVersion":"6"' in entry.raw, told) == (6, digest is keep_all, [])
    cache.put(raw("a", 7, node="two"))
    assert told == [("uid-a", "uid-a")]


def test_a_list_does_not_undo_what_was_written_after_it() -> None:
    """A list that compares takes a while; an answer to a write may overtake it, and the watch will tell the rest."""
    cache = filled(raw("changed", 5), raw("old", 6))
    cache.apply_response(raw("made", 31))
    cache.apply_response(raw("changed", 32))
    told = heard(cache)
    cache.replace([raw("changed", 5)], 30)
    assert sorted((entry.name, entry.version) for entry in cache) == [("changed", 32), ("made", 31)]
    assert told == [("uid-old", "")]
    cache.remove(raw("made", 40))
    assert names(cache) == ["changed"]


def test_after_distrust_a_list_is_all_that_counts() -> None:
    """After a restore versions are lower than before, and those of the history that is gone say nothing."""
    cache = filled(raw("a", 500), version=600)
    cache.apply_response(raw("b", 700))
    cache.mark_stale()
    assert (cache.synced, names(cache)) == (False, ["a", "b"])
    cache.replace([raw("a", 90)], 100)
    assert (cache.synced, cache.version, names(cache)) == (True, 100, ["a"])
    assert found(cache, "a").version == 90


def test_a_newer_object_replaces_an_older_one() -> None:
    """Versions decide, not the order of arrival; the cache's own version only grows."""
    cache = filled(raw("a", 5))
    told = heard(cache)
    cache.put(raw("a", 25, x=1))
    cache.put(raw("a", 24, x=2))
    cache.put(raw("a", 25, x=3))
    entry = found(cache, "a")
    assert entry.manifest()["x"] == 1
    assert cache.version == 25
    assert told == [("uid-a", "uid-a")]


def test_a_successor_is_heard_of_with_its_predecessor() -> None:
    """Same name, other UID: listeners see both and can tell that it is another object."""
    cache = filled(raw("a", 5, uid="one"))
    told = heard(cache)
    cache.put(raw("a", 25, uid="two"))
    assert told == [("one", "two")]


def test_a_predecessors_late_news_do_not_displace_the_successor() -> None:
    """The answer to our create is here before the watch has told the end of the object that stood there before."""
    cache = filled(raw("a", 5, uid="one"))
    cache.apply_response(raw("a", 25, uid="two"))
    told = heard(cache)
    cache.put(raw("a", 23, uid="one", deleting=True))
    cache.remove(raw("a", 24, uid="one"))
    entry = found(cache, "a")
    assert entry.uid == "two"
    assert cache.tombstone("ns", "a") is None
    assert told == []


def test_a_deletion_that_was_seen_is_a_departure() -> None:
    """What the watch saw go is gone for certain, known or not, and its last facts stay readable."""
    cache = Cache(facts)
    cache.replace([raw("a", 5, node="n1")], 10)
    told = heard(cache)
    cache.remove(raw("a", 25, node="n2"))
    assert names(cache) == []
    assert cache.tombstone("ns", "a") == Tombstone("uid-a", "n2")
    cache.remove(raw("unknown", 26))
    assert cache.tombstone("ns", "unknown") == Tombstone("uid-unknown", None)
    assert cache.version == 26
    assert told == [("uid-a", "")]
    cache.put(raw("a", 27, uid="two"))
    assert cache.tombstone("ns", "a") is None


def test_an_answer_to_a_write_is_known_at_once() -> None:
    """The next decision sees what was written, for new objects and changed ones, without the watch."""
    cache = filled(raw("a", 5), version=10)
    cache.apply_response(raw("a", 11, x=1))
    cache.apply_response(raw("b", 12))
    assert names(cache) == ["a", "b"]
    assert cache.version == 10


def test_an_answer_that_the_watch_has_overtaken_is_passed_over() -> None:
    """A created object that the watch already saw come and go does not rise again."""
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
def test_an_answer_that_is_no_stored_object_is_not_filed(version: str) -> None:
    """Reviews and other answers without a resourceVersion are nobody's state."""
    cache = filled()
    cache.apply_response(orjson.dumps({"metadata": {"name": "a", "resourceVersion": version}}))
    assert names(cache) == []


def test_a_read_at_quorum_can_confirm_an_absence() -> None:
    """404 for a name makes it empty for certain, though nobody saw how it came to be."""
    cache = Cache(facts)
    cache.replace([raw("a", 5, node="n1")], 10)
    told = heard(cache)
    cache.confirm_absent("ns", "a")
    cache.confirm_absent("ns", "never")
    assert cache.tombstone("ns", "a") == Tombstone("uid-a", "n1", seen=False)
    assert cache.tombstone("ns", "never") == Tombstone("", None, seen=False)
    assert told == [("uid-a", "")]


def test_an_absence_is_not_confirmed_against_newer_news() -> None:
    """An object that the watch brought while the read was under way stays."""
    cache = filled(raw("a", 5))
    since = cache.version
    cache.put(raw("a", 25, uid="two"))
    cache.confirm_absent("ns", "a", since)
    assert names(cache) == ["a"]
    assert cache.tombstone("ns", "a") is None
    cache.confirm_absent("ns", "a", 25)
    assert names(cache) == []


def test_a_late_word_of_what_is_gone_does_not_bring_it_back() -> None:
    """After a deletion is confirmed, older events of that object are passed over; a successor is not."""
    cache = filled(raw("a", 5))
    cache.confirm_absent("ns", "a")
    cache.put(raw("a", 12))
    assert cache.get("ns", "a") is None
    cache.put(raw("a", 13, uid="another"))
    assert names(cache) == ["a"]


def test_an_object_can_come_back_into_a_selection() -> None:
    """A label that somebody takes off and puts back is told as a deletion and an addition of the same UID."""
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


def test_what_left_the_selection_is_admitted_as_it_left() -> None:
    """A read finds it at the very version that the watch gave its leaving; an older answer says nothing of it."""
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
def test_what_is_gone_for_good_is_not_admitted(is_gone: Callable[..., None]) -> None:
    """The answer to a read was on its way when the object went: no version brings it back, but another object does."""
    cache = filled(raw("a", 5))
    is_gone(cache, "ns", "a")
    cache.add_unselected(raw("a", 12))
    assert names(cache) == []
    cache.add_unselected(raw("a", 12, uid="another"))
    assert names(cache) == ["a"]


def test_what_the_watch_has_told_since_a_read_counts_more() -> None:
    """An answer that was overtaken would stand there until the next change."""
    cache = filled(raw("a", 5))
    cache.put(raw("a", 14, node="new"))
    cache.add_unselected(raw("a", 12, node="old"))
    entry = found(cache, "a")
    assert (entry.version, entry.manifest()["node"]) == (14, "new")


def test_a_confirmation_does_not_forget_what_was_seen_to_go() -> None:
    """When the watch tells of a deletion first, the answer to it adds nothing and takes nothing away."""
    cache = filled(raw("a", 5))
    cache.remove(raw("a", 12))
    cache.confirm_absent("ns", "a")
    assert cache.tombstone("ns", "a") == Tombstone("uid-a", None)


def test_an_echo_is_not_digested_again() -> None:
    """What the watch tells of a write that was absorbed costs no digest."""
    digested: list[bytes] = []

    def digest(bytes_: bytes) -> Transformed:
        """Count, and keep everything."""
        digested.append(bytes_)
        return Transformed(bytes_, None)

    cache = Cache(digest)
    cache.replace([], 10)
    cache.apply_response(raw("a", 11))
    cache.put(raw("a", 11))
    assert (len(digested), cache.version) == (1, 11)


def decoding(bytes_: bytes) -> Transformed:
    """Decode an object, and keep all of it."""
    return Transformed(bytes_, None, orjson.loads(bytes_))


def test_what_a_digest_has_decoded_is_filed_by_that() -> None:
    """It is the same entry as without, whatever of the metadata is not there."""
    for one in (raw("a", 5), orjson.dumps({"metadata": {"name": "node"}})):
        assert Cache(decoding).read(one) == Cache().read(one)


def test_what_comes_alone_stays_decoded_and_what_is_listed_does_not() -> None:
    """Something is decided about the one next; of a list there may be thousands."""
    made: list[Transformed] = []

    def digest(bytes_: bytes) -> Transformed:
        """Decode, and note what came of it."""
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


def test_a_cache_tells_when_it_becomes_complete() -> None:
    """Each first list and each list after a doubt is told once its changes are known; one that was true is not."""
    cache, told = Cache(), list[int]()
    cache.on_sync(lambda: told.append(len(cache)))
    cache.replace([raw("a", 5)], 10)
    cache.replace([raw("a", 5), raw("b", 6)], 11)
    cache.mark_stale()
    cache.replace([raw("a", 5), raw("b", 6)], 12)
    assert told == [1, 2]


def test_a_copy_goes_its_own_way() -> None:
    """A copy has the same objects, departures, indexes and standing, and neither changes the other or tells of it."""
    cache = Cache(facts, {"node": node})
    cache.replace([raw("a", 5, node="n1"), raw("b", 6)], 10)
    cache.confirm_absent("ns", "b")
    told = heard(cache)
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
    assert (names(cache), names(copy), told) == (["a"], ["c"], [])


def test_departures_are_kept_up_to_a_bound() -> None:
    """The oldest are forgotten first, so that a long life does not fill the memory; forgetting only costs a read."""
    cache = filled()
    for number in range(20_000):
        cache.confirm_absent("ns", f"p{number}")
    cache.confirm_absent("ns", "p0")
    cache.confirm_absent("ns", "more")
    assert cache.tombstone("ns", "p0") is not None
    assert cache.tombstone("ns", "p1") is None
    assert cache.tombstone("ns", "p2") is not None


def test_an_index_follows_its_objects() -> None:
    """Objects are found by what the digest took out of them, move with it, and leave nothing behind."""
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


def test_listeners_see_the_cache_as_it_is_after_the_change() -> None:
    """A listener that looks finds the new state, and may change nothing for those that iterate."""
    cache = filled(raw("a", 5), raw("b", 6))
    seen: list[list[str]] = []
    cache.subscribe(lambda _: seen.append(names(cache)))
    for entry in cache:
        cache.confirm_absent("ns", entry.name)
    assert seen == [["b"], []]


NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(st.tuples(st.sampled_from(["put", "remove", "successor"]), NAMES), max_size=30)


@given(STEPS, st.data())
def test_answers_absorbed_at_any_time_change_no_end(steps: list[tuple[str, str]], data: st.DataObject) -> None:
    """Whatever the watch tells, absorbing some of it early or late leads to the same objects in the end."""
    told: list[tuple[str, bytes]] = []
    uids = dict.fromkeys("abc", 0)
    for version, (verb, name) in enumerate(steps, 11):
        uids[name] += verb == "successor"
        told.append(("remove" if verb == "remove" else "put", raw(name, version, uid=f"{name}{uids[name]}")))
        uids[name] += verb == "remove"
    plain, eager = filled(), filled()
    for at, (verb, body) in enumerate(told):
        for early in data.draw(st.lists(st.sampled_from(told[: at + 2]), max_size=2)):
            if early[0] == "put":
                eager.apply_response(early[1])
        getattr(plain, verb)(body)
        getattr(eager, verb)(body)
    assert sorted((e.name, e.uid, e.version) for e in eager) == sorted((e.name, e.uid, e.version) for e in plain)
