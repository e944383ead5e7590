"""Tests that each step is carried out exactly, and of the caches' content afterwards."""

from typing import Any

import orjson
import pytest
from answering import STATUS, FakeCluster
from worldkit import (
    STRANGER,
    A,
    B,
    config_map,
    make_namespace,
    make_object,
    make_upper_pod,
    make_world,
    put,
    synced_cache,
    with_owner_marks,
)

from tensile.errors import Conflict, Denied, NotFound, Unreachable
from tensile.kube.cluster import Cluster, Patch
from tensile.kube.store import Cache
from tensile.names import REPLACES, UPPER_UID
from tensile.objects import CONFIG_MAP, EVENT, NAMESPACE, POD, UPPER, Manifest, Ref
from tensile.reconcile.apply import carry_out, reread, resolve_existing
from tensile.reconcile.ownership import conflict
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Problem

REF = Ref(A, CONFIG_MAP, "default", "settings")
TAKEN = conflict(REF)
SOME_PATCH = Patch("json-patch", [{"op": "replace", "path": "/metadata/uid", "value": "below"}])


def copy(version: int = 0, **meta: Any) -> Manifest:
    """Return the engine's ConfigMap in the lower cluster, as a cluster returns it if a version is given."""
    more = {"resourceVersion": str(version)} if version else {}
    return with_owner_marks(config_map("settings", uid="below", **more, **meta), "above")


def holding(*manifests: Manifest) -> Cache:
    """Create a synced cache that contains these objects."""
    cache = synced_cache()
    if manifests:
        put(cache, *manifests)
    return cache


def uid_in(cache: Cache) -> str | None:
    """Return the UID of the cached object of the ConfigMap's name, None if there is none."""
    entry = cache.get("default", "settings")
    return entry.uid if entry else None


def departed(cache: Cache) -> bool:
    """Report whether the name is known to be absent."""
    return cache.tombstone("default", "settings") is not None


def test_the_fake_cluster_implements_the_protocol() -> None:
    """Otherwise the tests in this module would not apply to a real client."""
    cluster: Cluster = FakeCluster()
    assert cluster.name == A


async def test_a_create_is_sent_unchanged_and_its_response_is_cached() -> None:
    """The next decision sees the object without waiting for the watch."""
    cluster, cache = FakeCluster(), holding()
    await carry_out(Step("create", REF, "", body=copy()), cluster, cache)
    assert cluster.calls == [("create", REF, copy())]
    assert uid_in(cache) == "made-settings"


async def test_a_patch_is_sent_unchanged_and_its_response_is_cached() -> None:
    """The patch is sent with its subresource."""
    cluster, cache = FakeCluster(), holding(copy())
    cluster.queue_responses("patch", copy(50, labels={"app": "web"}))
    await carry_out(Step("patch", REF, "", patch=SOME_PATCH, subresource="status"), cluster, cache)
    assert cluster.calls == [("patch", REF, (SOME_PATCH, "status"))]
    entry = cache.get("default", "settings")
    assert entry is not None
    assert entry.manifest()["metadata"]["labels"]["app"] == "web"


@pytest.mark.parametrize("verb", ["create", "patch", "delete", "confirm"])
async def test_a_step_without_a_cache_is_sent_unless_it_is_a_confirm(verb: Any) -> None:
    """Events and leases have no cache, so writes are sent, and a confirm reads nothing."""
    cluster = FakeCluster()
    await carry_out(Step(verb, REF, "", body=copy(), patch=SOME_PATCH, uid="below"), cluster, None)
    assert [one.verb for one in cluster.calls] == ([] if verb == "confirm" else [verb])


@pytest.mark.parametrize("verb", ["create", "patch", "delete"])
async def test_a_denied_write_raises_the_error_and_changes_no_cache(verb: Any) -> None:
    """The loop decides what the error means, so carry_out only raises it."""
    cluster, cache = FakeCluster(), holding(copy())
    cluster.queue_responses(verb, Denied("quota"))
    with pytest.raises(Denied, match="quota"):
        await carry_out(Step(verb, REF, "", body=copy(), patch=SOME_PATCH, uid="below"), cluster, cache)
    assert uid_in(cache) == "below"
    assert not departed(cache)


async def test_a_delete_sends_uid_grace_period_and_resource_version() -> None:
    """The UID protects a successor of that name, and a resourceVersion requires an unchanged object."""
    cluster = FakeCluster()
    await carry_out(Step("delete", REF, "", uid="below", grace=5), cluster, holding(copy()))
    await carry_out(Step("delete", REF, "", uid="below", version="7"), cluster, holding(copy()))
    assert cluster.calls == [("delete", REF, ("below", 5)), ("delete", REF, ("below", None, "7"))]


ENDING: Manifest = {"deletionTimestamp": "2026-03-01T12:00:30Z", "deletionGracePeriodSeconds": 30}
GONE_AFTER = {
    "a v1 Status": (orjson.loads(STATUS), None, True),
    "the object as it was": (copy(50), None, True),
    "a pod with time left": (copy(50, **ENDING), None, False),
    "a pod without time left": (copy(50, **ENDING | {"deletionGracePeriodSeconds": 0}), None, True),
    "a forced deletion": (copy(50, **ENDING), 0, True),
    "a forced deletion that a finalizer delays": (copy(50, **ENDING, finalizers=["x/y"]), 0, False),
    "a finalizer": (copy(50, finalizers=["x/y"]), None, False),
    "an object that terminates gradually, such as a namespace": (
        copy(50, deletionTimestamp="2026-03-01T12:00:00Z"), None, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "grace", "gone"), GONE_AFTER.values(), ids=GONE_AFTER.keys())
async def test_a_delete_response_shows_if_the_object_is_gone(answer: Manifest, grace: int | None, gone: bool) -> None:  # noqa: FBT001 - a parameter
    """It is only gone if neither a finalizer nor a grace period keeps it.

    Otherwise it is cached as terminating.
    """
    cluster, cache = FakeCluster(), holding(copy())
    cluster.queue_responses("delete", answer)
    await carry_out(Step("delete", REF, "", uid="below", grace=grace), cluster, cache)
    assert departed(cache) is gone
    assert (uid_in(cache) is None) is gone
    entry = cache.get("default", "settings")
    assert entry is None or entry.version == 50


async def test_a_successor_that_the_watch_reports_first_survives_a_delete_response() -> None:
    """The watch reports the next object of that name before the delete returns."""

    class Overtaken(FakeCluster):
        """A cluster whose watch is faster than its response to a delete."""

        async def delete(self, ref: Ref, *, uid: str, grace: int | None = None, version: str = "") -> bytes:
            """Add a successor to the cache before the delete is sent."""
            put(cache, config_map("settings", uid="next"))
            return await super().delete(ref, uid=uid, grace=grace, version=version)

    cache = holding(copy())
    await carry_out(Step("delete", REF, "", uid="below"), Overtaken(), cache)
    assert uid_in(cache) == "next"
    assert not departed(cache)


async def test_a_deleted_object_leaves_the_cache_even_if_the_watch_lags_behind_a_patch() -> None:
    """The response to a patch is newer than all watch events.

    Without the removal the object would be deleted twice.
    """
    cache = holding(copy())
    cache.apply_response(orjson.dumps(copy(cache.version + 10)))
    await carry_out(Step("delete", REF, "", uid="below", grace=0), FakeCluster(), cache)
    assert uid_in(cache) is None
    assert departed(cache)


async def test_a_reread_confirms_absence_even_if_the_watch_lags_behind_a_patch() -> None:
    """The engine's own write precedes the read, so the read is newer."""
    cluster, cache = FakeCluster(), holding(copy())
    cache.apply_response(orjson.dumps(copy(cache.version + 10)))
    cluster.queue_responses("read", NotFound("gone", cluster=A))
    await reread(Step("confirm", REF, "", uid="below"), cluster, cache)
    assert departed(cache)


async def test_a_confirm_that_finds_no_object_records_the_name_as_absent() -> None:
    """The object is read at quorum, so its absence is certain."""
    cluster, cache = FakeCluster(), holding()
    await carry_out(Step("confirm", REF, "", uid="above"), cluster, cache)
    assert cluster.verbs() == ["read ConfigMap settings"]
    assert departed(cache)
    assert cache.is_deleted("default", "settings", "above")


@pytest.mark.parametrize("uid", ["below", "above"])
async def test_a_confirm_caches_the_object_if_it_has_the_uid_or_was_made_for_it(uid: str) -> None:
    """The step's UID is that of the object or of its upper object, and the object is not recorded as deleted."""
    cluster, cache = FakeCluster(), holding()
    cluster.queue_responses("read", copy(50))
    await carry_out(Step("confirm", REF, "", uid=uid), cluster, cache)
    assert uid_in(cache) == "below"
    assert not departed(cache)
    assert not cache.is_deleted("default", "settings", uid)


async def test_an_object_of_another_owner_counts_as_absent_in_a_reread() -> None:
    """The object that is looked for is deleted, whichever object has its name now."""
    cluster, cache = FakeCluster(), holding(copy())
    cluster.queue_responses("read", config_map("settings", uid="theirs", resourceVersion="50"))
    await reread(Step("confirm", REF, "", uid="above"), cluster, cache)
    assert uid_in(cache) is None
    assert departed(cache)
    assert cache.is_deleted("default", "settings", "above")


async def test_a_failed_confirm_records_no_absence() -> None:
    """A cluster that does not respond proves nothing about its objects."""
    cluster, cache = FakeCluster(), holding()
    cluster.queue_responses("read", Unreachable("no answer"))
    with pytest.raises(Unreachable):
        await carry_out(Step("confirm", REF, "", uid="above"), cluster, cache)
    assert not departed(cache)


async def test_a_reread_after_a_conflict_caches_the_current_object() -> None:
    """A conflict over a resourceVersion must not make the object count as deleted."""
    cluster, cache = FakeCluster(), holding(copy())
    cluster.queue_responses("read", copy(50))
    await reread(Step("patch", REF, "", patch=SOME_PATCH, uid="below"), cluster, cache)
    entry = cache.get("default", "settings")
    assert entry is not None
    assert entry.version == 50


async def test_a_reread_for_a_step_without_a_uid_caches_any_object_of_that_name() -> None:
    """A step with only a resourceVersion as precondition names no UID, so it applies to the object that is read."""
    cluster, cache = FakeCluster(), holding()
    cluster.queue_responses("read", copy(50))
    await reread(Step("patch", REF, "", patch=SOME_PATCH), cluster, cache)
    assert uid_in(cache) == "below"
    assert not departed(cache)


async def test_a_cached_successor_stays_cached_if_its_predecessor_is_reread() -> None:
    """The upper pod was replaced during a write of its predecessor's status: only the predecessor is deleted."""
    ref = Ref(UPPER, POD, "default", "web")
    successor = make_upper_pod(uid="two")
    cluster, cache = FakeCluster(UPPER), holding(successor)
    cluster.queue_responses("read", {**successor, "metadata": {**successor["metadata"], "resourceVersion": "50"}})
    await reread(Step("patch", ref, "", patch=SOME_PATCH, uid="one"), cluster, cache)
    entry = cache.get("default", "web")
    assert entry is not None
    assert (entry.uid, entry.version) == ("two", 50)
    assert cache.tombstone("default", "web") is None
    assert cache.is_deleted("default", "web", "one")
    assert not cache.is_deleted("default", "web", "two")


async def test_an_object_that_the_watch_reports_during_a_read_stays_cached() -> None:
    """The watch reports a newer object after the read was sent, so the name is not absent."""

    class Overtaken(FakeCluster):
        """A cluster whose watch is faster than its response to a read."""

        async def read(self, ref: Ref) -> bytes:
            """Add the object to the cache before the read."""
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
    """Report whether a create that met AlreadyExists is a conflict.

    `judged` is the reason why an object of another owner must not be adopted, None if it may be.
    """
    cluster = FakeCluster()
    cluster.queue_responses("read", found)
    attempted = step or Step("create", REF, "", body=copy())
    problem = await resolve_existing(attempted, cluster, holding() if cache is None else cache, lambda _found: judged)
    return problem is not None


@pytest.mark.parametrize(
    "found",
    [
        config_map("settings", resourceVersion="50"),
        with_owner_marks(config_map("settings", resourceVersion="50"), "above", STRANGER),
        config_map("settings", resourceVersion="50", labels=copy()["metadata"]["labels"]),
    ],
    ids=["without marks", "of another owner", "with the label alone"],
)
async def test_an_object_that_is_not_ours_is_a_conflict_and_is_not_cached(found: Manifest) -> None:
    """A forged owner label alone does not make it an object of this topology."""
    cache = holding()
    assert await problem_of(found, cache=cache)
    assert uid_in(cache) is None


async def test_an_existing_object_of_this_owner_is_no_conflict_and_is_cached() -> None:
    """The connection broke before the response to its creation arrived."""
    cache = holding()
    assert not await problem_of(copy(50), cache=cache)
    assert uid_in(cache) == "below"


async def test_an_object_of_this_owner_that_lost_its_label_is_cached_again() -> None:
    """The watch does not select it any more because a client removed the label, and the object is unchanged since."""
    cache = holding(copy())
    cache.remove(orjson.dumps(copy(50)))
    assert not await problem_of(copy(50), cache=cache)
    assert uid_in(cache) == "below"


async def test_an_object_that_is_deleted_during_a_read_is_not_cached_again() -> None:
    """No further watch event would report its deletion."""
    cache = holding(copy())
    cache.remove(orjson.dumps(copy(51)))
    assert not await problem_of(copy(50), cache=cache)
    assert uid_in(cache) is None


async def test_a_replacement_pod_that_lost_its_label_is_cached_again() -> None:
    """Otherwise the engine would try to create it again and again, and would never delete the pod that it replaces."""
    cache = holding(successor("new", "old"))
    cache.remove(orjson.dumps(successor("new", "old")))
    step = Step("create", Ref(UPPER, POD, "default", "web"), "", body=successor("", "old"))
    assert not await problem_of(successor("new", "old"), step, cache)
    assert cache.get("default", "web") is not None


def successor(uid: str, replaces: str) -> Manifest:
    """Return a pod that replaces another pod, as a cluster returns it."""
    return make_upper_pod(uid=uid, resourceVersion="50", annotations={REPLACES: replaces})


@pytest.mark.parametrize(
    ("found", "is_taken", "known"),
    [
        pytest.param(successor("new", "old"), False, True, id="created earlier by the engine"),
        pytest.param(successor("new", "other"), True, False, id="replaces another pod"),
        pytest.param(make_upper_pod(uid="new", resourceVersion="50"), True, False, id="of another client"),
        pytest.param(successor("old", "older"), False, False, id="the predecessor"),
    ],
)
async def test_a_replacement_pod_conflicts_with_unrelated_pods(found: Manifest, *, is_taken: bool, known: bool) -> None:
    """A pod that replaces the same predecessor is cached, and the predecessor itself is no conflict."""
    cache = holding()
    step = Step("create", Ref(UPPER, POD, "default", "web"), "", body=successor("", "old"))
    assert await problem_of(found, step, cache) == is_taken
    assert (cache.get("default", "web") is not None) == known


async def test_a_name_that_is_free_again_is_no_conflict() -> None:
    """The create can be retried."""
    assert not await problem_of(NotFound("gone"))


async def test_an_existing_namespace_of_another_client_is_no_conflict() -> None:
    """The engine can use a namespace that another client created, so it is cached."""
    cache = holding()
    step = Step("create", Ref(A, NAMESPACE, "", "default"), "", body=with_owner_marks(make_namespace(), "above"))
    assert not await problem_of(make_namespace(resourceVersion="50"), step, cache)
    assert cache.get("", "default") is not None


async def test_an_event_that_exists_is_no_conflict_and_is_not_read() -> None:
    """An Event that exists has been recorded already."""
    cluster = FakeCluster()
    event = Step("create", Ref(UPPER, EVENT, "default", "web.1"), "", body=make_object("Event", "web.1"))
    assert await resolve_existing(event, cluster, None, lambda _found: conflict(REF)) is None
    assert cluster.calls == []


async def test_an_error_of_the_read_after_already_exists_is_raised() -> None:
    """The loop decides what the error means."""
    with pytest.raises(Conflict):
        await problem_of(Conflict("not now"))


async def test_an_object_that_may_be_adopted_is_cached() -> None:
    """The next decision adopts it.

    This also applies if the watch reported that the object is not selected any more.
    """
    cache = holding(copy())
    cache.remove(orjson.dumps(copy(40)))
    assert not await problem_of(config_map("settings", uid="below", resourceVersion="40"), cache=cache, judged=None)
    assert uid_in(cache) == "below"


# Annotations of tenants on upper pods, and pods of other nodes.

ABOVE = Ref(UPPER, POD, "default", "web")


def stored_pod(**meta: Any) -> Manifest:
    """Return an upper pod as a cluster returns it."""
    return make_upper_pod(resourceVersion="50", **meta)


async def test_the_upper_uid_annotation_on_an_upper_pod_does_not_identify_it_in_a_confirm() -> None:
    """Its tenant can write any annotation.

    If it counted, the same confirm would be sent again and again.
    """
    cluster, cache = FakeCluster(), synced_cache()
    cluster.queue_responses("read", stored_pod(uid="theirs", annotations={UPPER_UID: "sought"}))
    await carry_out(Step("confirm", ABOVE, "", uid="sought"), cluster, cache)
    assert cache.is_deleted("default", "web", "sought")


async def test_an_upper_pod_on_another_node_is_not_cached_for_this_lower() -> None:
    """A forged lower pod may name its UID.

    The engine would then mirror an upper pod of another lower a second time.
    """
    lower = make_world().lowers[A]
    cluster = FakeCluster()
    cluster.queue_responses("read", {**stored_pod(uid="sought"), "spec": {"nodeName": B}})
    await carry_out(Step("confirm", ABOVE, "", uid="sought"), cluster, lower.upper_pods)
    assert lower.upper_pods.get("default", "web") is None
    assert lower.upper_pods.is_deleted("default", "web", "sought")
