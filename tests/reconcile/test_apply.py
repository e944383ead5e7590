"""Steps carried out to the letter, and what the caches know afterwards."""

from typing import Any

import orjson
import pytest
from answering import STATUS, Answering
from worldkit import STRANGER, A, B, config_map, filled, marked, put, space, thing, upper_pod, world

from tensile.errors import Conflict, Denied, NotFound, Unreachable
from tensile.kube.cluster import Cluster, Patch
from tensile.kube.store import Cache
from tensile.names import REPLACES, UPPER_UID
from tensile.objects import CONFIG_MAP, EVENT, NAMESPACE, POD, UPPER, Manifest, Ref
from tensile.reconcile.apply import carry_out, reread, taken
from tensile.reconcile.ownership import conflict
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Problem

REF = Ref(A, CONFIG_MAP, "default", "settings")
TAKEN = conflict(REF)
SOME_PATCH = Patch("json-patch", [{"op": "replace", "path": "/metadata/uid", "value": "below"}])


def copy(version: int = 0, **meta: Any) -> Manifest:
    """Make our ConfigMap below, as a cluster answers it where a version is given."""
    more = {"resourceVersion": str(version)} if version else {}
    return marked(config_map("settings", uid="below", **more, **meta), "above")


def holding(*manifests: Manifest) -> Cache:
    """Make a cache that was told of objects."""
    cache = filled()
    if manifests:
        put(cache, *manifests)
    return cache


def uid_in(cache: Cache) -> str | None:
    """Return the UID of what the cache has under our name, None when nothing."""
    entry = cache.get("default", "settings")
    return entry.uid if entry else None


def departed(cache: Cache) -> bool:
    """Report whether the name is known to be empty."""
    return cache.tombstone("default", "settings") is not None


def test_the_fake_honours_the_protocol() -> None:
    """Or the tests here would prove nothing about a real client."""
    cluster: Cluster = Answering()
    assert cluster.name == A


async def test_a_create_is_sent_as_it_is_and_known_at_once() -> None:
    """The next decision sees it without waiting for the watch."""
    cluster, cache = Answering(), holding()
    await carry_out(Step("create", REF, "", body=copy()), cluster, cache)
    assert cluster.asked == [("create", REF, copy())]
    assert uid_in(cache) == "made-settings"


async def test_a_patch_is_sent_as_it_is_and_known_at_once() -> None:
    """With its subresource."""
    cluster, cache = Answering(), holding(copy())
    cluster.answer("patch", copy(50, labels={"app": "web"}))
    await carry_out(Step("patch", REF, "", patch=SOME_PATCH, subresource="status"), cluster, cache)
    assert cluster.asked == [("patch", REF, (SOME_PATCH, "status"))]
    entry = cache.get("default", "settings")
    assert entry is not None
    assert entry.manifest()["metadata"]["labels"]["app"] == "web"


@pytest.mark.parametrize("verb", ["create", "patch", "delete", "confirm"])
async def test_an_object_that_nobody_follows_is_written_all_the_same(verb: Any) -> None:
    """Events and leases have no cache; nothing is read for one either."""
    cluster = Answering()
    await carry_out(Step(verb, REF, "", body=copy(), patch=SOME_PATCH, uid="below"), cluster, None)
    assert [one.verb for one in cluster.asked] == ([] if verb == "confirm" else [verb])


@pytest.mark.parametrize("verb", ["create", "patch", "delete"])
async def test_a_refusal_is_raised_and_changes_no_cache(verb: Any) -> None:
    """What it means is decided in one place, which is not here."""
    cluster, cache = Answering(), holding(copy())
    cluster.answer(verb, Denied("quota"))
    with pytest.raises(Denied, match="quota"):
        await carry_out(Step(verb, REF, "", body=copy(), patch=SOME_PATCH, uid="below"), cluster, cache)
    assert uid_in(cache) == "below"
    assert not departed(cache)


async def test_a_delete_carries_uid_and_grace() -> None:
    """So that another object of that name survives it; and a resourceVersion where the object has to be as it was."""
    cluster = Answering()
    await carry_out(Step("delete", REF, "", uid="below", grace=5), cluster, holding(copy()))
    await carry_out(Step("delete", REF, "", uid="below", version="7"), cluster, holding(copy()))
    assert cluster.asked == [("delete", REF, ("below", 5)), ("delete", REF, ("below", None, "7"))]


ENDING: Manifest = {"deletionTimestamp": "2026-03-01T12:00:30Z", "deletionGracePeriodSeconds": 30}
GONE_AFTER = {
    "a v1 Status": (orjson.loads(STATUS), None, True),
    "the object as it was": (copy(50), None, True),
    "a pod with time left": (copy(50, **ENDING), None, False),
    "a pod without time left": (copy(50, **ENDING | {"deletionGracePeriodSeconds": 0}), None, True),
    "a forced end": (copy(50, **ENDING), 0, True),
    "a forced end that a finalizer holds up": (copy(50, **ENDING, finalizers=["x/y"]), 0, False),
    "a finalizer": (copy(50, finalizers=["x/y"]), None, False),
    "an object that ends by and by, such as a namespace": (
        copy(50, deletionTimestamp="2026-03-01T12:00:00Z"), None, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "grace", "gone"), GONE_AFTER.values(), ids=GONE_AFTER.keys())
async def test_a_delete_tells_whether_the_object_is_gone(answer: Manifest, grace: int | None, gone: bool) -> None:  # noqa: FBT001 - a parameter
    """Gone for certain only when nothing holds it; else it is known to be ending."""
    cluster, cache = Answering(), holding(copy())
    cluster.answer("delete", answer)
    await carry_out(Step("delete", REF, "", uid="below", grace=grace), cluster, cache)
    assert departed(cache) is gone
    assert (uid_in(cache) is None) is gone
    entry = cache.get("default", "settings")
    assert entry is None or entry.version == 50


async def test_a_successor_seen_meanwhile_outlives_the_answer_to_a_delete() -> None:
    """The watch told of the next object of that name before the answer arrived."""

    class Overtaken(Answering):
        """Lets the watch be faster than the answer."""

        async def delete(self, ref: Ref, *, uid: str, grace: int | None = None, version: str = "") -> bytes:
            """Tell the cache of a successor first."""
            put(cache, config_map("settings", uid="next"))
            return await super().delete(ref, uid=uid, grace=grace, version=version)

    cache = holding(copy())
    await carry_out(Step("delete", REF, "", uid="below"), Overtaken(), cache)
    assert uid_in(cache) == "next"
    assert not departed(cache)


async def test_a_deleted_object_is_gone_also_where_the_watch_lags_behind_our_own_write() -> None:
    """The answer to a patch made it newer than anything that the watch has told; else it would be deleted twice."""
    cache = holding(copy())
    cache.apply_response(orjson.dumps(copy(cache.version + 10)))
    await carry_out(Step("delete", REF, "", uid="below", grace=0), Answering(), cache)
    assert uid_in(cache) is None
    assert departed(cache)


async def test_a_name_is_found_empty_also_where_the_watch_lags_behind_our_own_write() -> None:
    """What we wrote ourselves came before the read was sent."""
    cluster, cache = Answering(), holding(copy())
    cache.apply_response(orjson.dumps(copy(cache.version + 10)))
    cluster.answer("read", NotFound("gone", cluster=A))
    await reread(Step("confirm", REF, "", uid="below"), cluster, cache)
    assert departed(cache)


async def test_a_confirmation_finds_the_name_empty() -> None:
    """Read at quorum: now its absence means something."""
    cluster, cache = Answering(), holding()
    await carry_out(Step("confirm", REF, "", uid="above"), cluster, cache)
    assert cluster.verbs() == ["read ConfigMap settings"]
    assert departed(cache)
    assert cache.is_deleted("default", "settings", "above")


@pytest.mark.parametrize("uid", ["below", "above"])
async def test_a_confirmation_finds_what_was_missed(uid: str) -> None:
    """The object itself, or what was made for the upper object of that UID: the cache gets to know it."""
    cluster, cache = Answering(), holding()
    cluster.answer("read", copy(50))
    await carry_out(Step("confirm", REF, "", uid=uid), cluster, cache)
    assert uid_in(cache) == "below"
    assert not departed(cache)
    assert not cache.is_deleted("default", "settings", uid)


async def test_a_name_that_is_anothers_counts_as_empty() -> None:
    """What we look for is gone, whoever took its place."""
    cluster, cache = Answering(), holding(copy())
    cluster.answer("read", config_map("settings", uid="theirs", resourceVersion="50"))
    await reread(Step("confirm", REF, "", uid="above"), cluster, cache)
    assert uid_in(cache) is None
    assert departed(cache)
    assert cache.is_deleted("default", "settings", "above")


async def test_a_failed_confirmation_confirms_nothing() -> None:
    """A cluster that does not answer says nothing about what is there."""
    cluster, cache = Answering(), holding()
    cluster.answer("read", Unreachable("no answer"))
    with pytest.raises(Unreachable):
        await carry_out(Step("confirm", REF, "", uid="above"), cluster, cache)
    assert not departed(cache)


async def test_after_a_lost_race_the_object_is_known_as_it_is_now() -> None:
    """A conflict over a version leaves the object where it is: nothing may take it for gone."""
    cluster, cache = Answering(), holding(copy())
    cluster.answer("read", copy(50))
    await reread(Step("patch", REF, "", patch=SOME_PATCH, uid="below"), cluster, cache)
    entry = cache.get("default", "settings")
    assert entry is not None
    assert entry.version == 50


async def test_a_write_about_whatever_stands_there_finds_it() -> None:
    """Fenced by a version alone, a step names no UID, so whatever is read is what it is about."""
    cluster, cache = Answering(), holding()
    cluster.answer("read", copy(50))
    await reread(Step("patch", REF, "", patch=SOME_PATCH), cluster, cache)
    assert uid_in(cache) == "below"
    assert not departed(cache)


async def test_a_successor_that_is_known_stays_known() -> None:
    """The upper pod was replaced while its predecessor's status was being written: the new one is not gone."""
    ref = Ref(UPPER, POD, "default", "web")
    successor = upper_pod(uid="two")
    cluster, cache = Answering(UPPER), holding(successor)
    cluster.answer("read", {**successor, "metadata": {**successor["metadata"], "resourceVersion": "50"}})
    await reread(Step("patch", ref, "", patch=SOME_PATCH, uid="one"), cluster, cache)
    entry = cache.get("default", "web")
    assert entry is not None
    assert (entry.uid, entry.version) == ("two", 50)
    assert cache.tombstone("default", "web") is None
    assert cache.is_deleted("default", "web", "one")
    assert not cache.is_deleted("default", "web", "two")


async def test_news_that_came_while_reading_count() -> None:
    """The watch told of a newer object after the read was sent, so the name is not empty."""

    class Overtaken(Answering):
        """Lets the watch be faster than the answer."""

        async def read(self, ref: Ref) -> bytes:
            """Tell the cache first."""
            put(cache, copy())
            return await super().read(ref)

    cache = holding()
    await reread(Step("confirm", REF, "", uid="above"), Overtaken(), cache)
    assert uid_in(cache) == "below"


async def problem_of(
    found: Manifest | Exception,
    step: Step | None = None,
    cache: Cache | None = None,
    judged: Problem | None = TAKEN,
) -> bool:
    """Ask whose a name is after a create met it; `judged` is what keeps a stranger's object from being taken over."""
    cluster = Answering()
    cluster.answer("read", found)
    asked = step or Step("create", REF, "", body=copy())
    problem = await taken(asked, cluster, holding() if cache is None else cache, lambda _found: judged)
    return problem is not None


@pytest.mark.parametrize(
    "found",
    [
        config_map("settings", resourceVersion="50"),
        marked(config_map("settings", resourceVersion="50"), "above", STRANGER),
        config_map("settings", resourceVersion="50", labels=copy()["metadata"]["labels"]),
    ],
    ids=["without marks", "of another owner", "with the label alone"],
)
async def test_a_name_is_taken_by_what_is_not_ours(found: Manifest) -> None:
    """A forged label is not enough; and the cache holds nothing of others."""
    cache = holding()
    assert await problem_of(found, cache=cache)
    assert uid_in(cache) is None


async def test_our_own_object_is_not_taken() -> None:
    """Its creation was answered into a broken connection: the cache gets to know it."""
    cache = holding()
    assert not await problem_of(copy(50), cache=cache)
    assert uid_in(cache) == "below"


async def test_our_own_object_is_known_again_that_the_watch_has_lost_sight_of() -> None:
    """Somebody took off the label by which it is selected; what is found is as it was when the watch saw it leave."""
    cache = holding(copy())
    cache.remove(orjson.dumps(copy(50)))
    assert not await problem_of(copy(50), cache=cache)
    assert uid_in(cache) == "below"


async def test_our_own_object_that_goes_while_it_is_read_stays_gone() -> None:
    """Nobody would tell of its end again."""
    cache = holding(copy())
    cache.remove(orjson.dumps(copy(51)))
    assert not await problem_of(copy(50), cache=cache)
    assert uid_in(cache) is None


async def test_a_pod_in_anothers_place_is_known_again_that_lost_its_label() -> None:
    """Or it would be made in vain for ever, and what keeps it never go."""
    cache = holding(successor("new", "old"))
    cache.remove(orjson.dumps(successor("new", "old")))
    step = Step("create", Ref(UPPER, POD, "default", "web"), "", body=successor("", "old"))
    assert not await problem_of(successor("new", "old"), step, cache)
    assert cache.get("default", "web") is not None


def successor(uid: str, replaces: str) -> Manifest:
    """Make a pod that has another's place, as a cluster answers it."""
    return upper_pod(uid=uid, resourceVersion="50", annotations={REPLACES: replaces})


@pytest.mark.parametrize(
    ("found", "is_taken", "known"),
    [
        pytest.param(successor("new", "old"), False, True, id="made by the engine before"),
        pytest.param(successor("new", "other"), True, False, id="in another's place"),
        pytest.param(upper_pod(uid="new", resourceVersion="50"), True, False, id="somebody else's"),
        pytest.param(successor("old", "older"), False, False, id="not gone yet"),
    ],
)
async def test_the_place_of_a_pod_is_taken_by_no_other(found: Manifest, *, is_taken: bool, known: bool) -> None:
    """What is there in its place already is known from then on."""
    cache = holding()
    step = Step("create", Ref(UPPER, POD, "default", "web"), "", body=successor("", "old"))
    assert await problem_of(found, step, cache) == is_taken
    assert (cache.get("default", "web") is not None) == known


async def test_a_name_that_came_free_is_not_taken() -> None:
    """It is tried again."""
    assert not await problem_of(NotFound("gone"))


async def test_a_namespace_is_nobodys() -> None:
    """One that somebody else made can be used."""
    cache = holding()
    step = Step("create", Ref(A, NAMESPACE, "", "default"), "", body=marked(space(), "above"))
    assert not await problem_of(space(resourceVersion="50"), step, cache)
    assert cache.get("", "default") is not None


async def test_an_event_that_exists_has_been_told() -> None:
    """Nothing has to be read for that."""
    cluster = Answering()
    event = Step("create", Ref(UPPER, EVENT, "default", "web.1"), "", body=thing("Event", "web.1"))
    assert await taken(event, cluster, None, lambda _found: conflict(REF)) is None
    assert cluster.asked == []


async def test_who_cannot_be_asked_decides_nothing() -> None:
    """The error goes to the one place that knows what it means."""
    with pytest.raises(Conflict):
        await problem_of(Conflict("not now"))


async def test_what_may_be_taken_over_gets_into_the_cache() -> None:
    """For the decision that makes it ours; also where the watch has seen it leave what is ours."""
    cache = holding(copy())
    cache.remove(orjson.dumps(copy(40)))
    assert not await problem_of(config_map("settings", uid="below", resourceVersion="40"), cache=cache, judged=None)
    assert uid_in(cache) == "below"


# What somebody wrote on an upper pod, and pods of other nodes.

ABOVE = Ref(UPPER, POD, "default", "web")


def stored_pod(**meta: Any) -> Manifest:
    """Make an upper pod as a cluster answers it."""
    return upper_pod(resourceVersion="50", **meta)


async def test_the_uid_that_is_written_on_an_upper_pod_does_not_make_it_the_one_that_is_sought() -> None:
    """Else the question would be asked again and again: its tenant writes what he likes."""
    cluster, cache = Answering(), filled()
    cluster.answer("read", stored_pod(uid="theirs", annotations={UPPER_UID: "sought"}))
    await carry_out(Step("confirm", ABOVE, "", uid="sought"), cluster, cache)
    assert cache.is_deleted("default", "web", "sought")


async def test_an_upper_pod_on_another_node_is_not_taken_for_one_of_this_lower() -> None:
    """A forged lower pod with its UID asks after it: its own lower's engine would mirror it there a second time."""
    lower = world().lowers[A]
    cluster = Answering()
    cluster.answer("read", {**stored_pod(uid="sought"), "spec": {"nodeName": B}})
    await carry_out(Step("confirm", ABOVE, "", uid="sought"), cluster, lower.upper_pods)
    assert lower.upper_pods.get("default", "web") is None
    assert lower.upper_pods.is_deleted("default", "web", "sought")
