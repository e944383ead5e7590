"""How objects end: each sentence holds in memory and before a real apiserver alike."""

from datetime import datetime, timedelta

import pytest
from rehearsal_ground import FINALIZER, STRANGER, TIME, ClusterUnderTest, told, version_of

from tensile.errors import Conflict, NotFound
from tensile.objects import CONFIG_MAP, LEASE, NAMESPACE, NODE, POD, SECRET, SERVICE_ACCOUNT, Kind
from tensile.reconcile.apply import _is_gone


@pytest.mark.parametrize("kind", [CONFIG_MAP, POD, NODE, NAMESPACE], ids=lambda kind: kind.name)
async def test_a_delete_of_another_object_under_the_name_is_a_conflict(ground: ClusterUnderTest, kind: Kind) -> None:
    """The precondition holds for every kind, and the object stays as it is."""
    ref = ground.at({NODE: ground.node, NAMESPACE: ground.namespace}.get(kind, "a"), kind)
    if kind == POD:
        await ground.pod("a")
    elif kind == CONFIG_MAP:
        await ground.made(ref)
    with pytest.raises(Conflict) as error:
        await ground.cluster.delete(ref, uid=STRANGER)
    assert told(error.value) == (409, "Conflict", ())
    assert "deletionTimestamp" not in (await ground.read(ref))["metadata"]


async def test_a_delete_of_an_object_that_was_written_since_is_a_conflict(ground: ClusterUnderTest) -> None:
    """Where the request says as of which resourceVersion; as it is now, it goes."""
    ref = ground.at("a")
    first = await ground.made(ref)
    second = await ground.operated(first, ref, {"op": "add", "path": "/data", "value": {"k": "v"}})
    uid = first["metadata"]["uid"]
    with pytest.raises(Conflict) as error:
        await ground.cluster.delete(ref, uid=uid, version=version_of(first))
    assert told(error.value) == (409, "Conflict", ())
    await ground.cluster.delete(ref, uid=uid, version=version_of(second))
    assert await ground.is_deleted(ref)


@pytest.mark.parametrize("kind", [CONFIG_MAP, SECRET, SERVICE_ACCOUNT, LEASE], ids=lambda kind: kind.name)
async def test_an_object_that_nothing_holds_goes_at_once(ground: ClusterUnderTest, kind: Kind) -> None:
    """The answer is a Status or the object, and says in either case that it is gone."""
    ref = ground.at("a", kind)
    answer = await ground.deleted(await ground.made(ref), ref)
    assert answer["kind"] == ("ServiceAccount" if kind == SERVICE_ACCOUNT else "Status")
    assert "deletionTimestamp" not in answer["metadata"]
    assert _is_gone(answer, None)
    assert await ground.is_deleted(ref)


async def test_an_object_with_a_finalizer_ends_when_that_is_taken_away(ground: ClusterUnderTest) -> None:
    """It is marked, a second request changes nothing, and the last write's answer is the object."""
    ref = ground.at("a")
    stored = await ground.made(ref, {"finalizers": [FINALIZER]})
    answer = await ground.deleted(stored, ref)
    assert answer["metadata"]["deletionGracePeriodSeconds"] == 0
    assert not _is_gone(answer, None)
    assert await ground.deleted(stored, ref) == answer
    assert await ground.deleted(stored, ref, grace=0) == answer
    released = await ground.operated(stored, ref, {"op": "remove", "path": "/metadata/finalizers"})
    assert "finalizers" not in released["metadata"]
    assert version_of(released) == version_of(answer)
    assert await ground.is_deleted(ref)


async def test_a_bound_pod_ends_gracefully(ground: ClusterUnderTest) -> None:
    """It stays with its end marked; a longer grace is passed over, a shorter one counts, and none ends it."""
    ref = ground.at("p", POD)
    pod = await ground.pod("p", terminationGracePeriodSeconds=20)
    answer = await ground.deleted(pod, ref)
    assert (answer["metadata"]["deletionGracePeriodSeconds"], answer["metadata"]["generation"]) == (20, 2)
    assert not _is_gone(answer, None)
    for grace in (None, 60, 20):
        assert await ground.deleted(pod, ref, grace) == answer
    shorter = await ground.deleted(pod, ref, 5)
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    ends = [datetime.strptime(one["metadata"]["deletionTimestamp"], TIME) for one in (answer, shorter)]  # noqa: DTZ007
    assert ends[0] - ends[1] == timedelta(seconds=15)
    shortest = await ground.deleted(pod, ref, -1)
    assert shortest["metadata"]["deletionGracePeriodSeconds"] == 1
    assert await ground.deleted(pod, ref, -1) == shortest
    last = await ground.deleted(pod, ref, 0)
    assert last["metadata"]["deletionGracePeriodSeconds"] == 0
    assert _is_gone(last, 0)
    assert await ground.is_deleted(ref)


async def test_a_bound_pod_has_half_a_minute_where_nobody_says_otherwise(ground: ClusterUnderTest) -> None:
    """The grace of the request comes before the pod's, and a negative one means a second."""
    for name, grace, expected in (("p", None, 30), ("q", 7, 7), ("r", -1, 1)):
        answer = await ground.deleted(await ground.pod(name), ground.at(name, POD), grace)
        assert answer["metadata"]["deletionGracePeriodSeconds"] == expected


@pytest.mark.parametrize("case", ["unbound", "Succeeded", "Failed", "without grace", "at once"])
async def test_a_pod_that_needs_no_time_goes_at_once(ground: ClusterUnderTest, case: str) -> None:
    """One that runs nowhere, has ended, or is given no time; the answer is the pod."""
    ref = ground.at("p", POD)
    more = {"terminationGracePeriodSeconds": 0} if case == "without grace" else {}
    pod = await ground.pod("p", bound=case != "unbound", **more)
    if case in ("Succeeded", "Failed"):
        await ground.laid_over(pod, ref, "status", status={"phase": case})
    answer = await ground.deleted(pod, ref, 0 if case == "at once" else None)
    assert answer["metadata"]["deletionGracePeriodSeconds"] == 0
    assert _is_gone(answer, None)
    assert await ground.is_deleted(ref)


async def test_a_pod_that_reached_its_end_while_it_was_ending_stays_until_it_is_told(ground: ClusterUnderTest) -> None:
    """A terminal phase takes nothing away by itself, nor does a second request with the grace left."""
    ref = ground.at("p", POD)
    pod = await ground.pod("p")
    await ground.deleted(pod, ref)
    ended = await ground.laid_over(pod, ref, "status", status={"phase": "Failed"})
    assert await ground.deleted(pod, ref) == ended
    await ground.deleted(pod, ref, 0)
    assert await ground.is_deleted(ref)


@pytest.mark.parametrize("grace", [0, 9])
async def test_a_pod_with_a_finalizer_goes_when_both_are_over(ground: ClusterUnderTest, grace: int) -> None:
    """With the grace over, taking the finalizer away ends it; before that, it does not."""
    ref = ground.at("p", POD)
    pod = await ground.pod("p", meta={"finalizers": [FINALIZER]})
    answer = await ground.deleted(pod, ref, grace)
    assert not _is_gone(answer, grace)
    await ground.operated(pod, ref, {"op": "remove", "path": "/metadata/finalizers"})
    assert await ground.is_deleted(ref) == (grace == 0)


async def test_a_pod_that_is_evicted_ends_as_one_that_is_deleted(ground: ClusterUnderTest) -> None:
    """Nothing stands in its way here; it has its own time, and says why it ends."""
    await ground.pod("a", terminationGracePeriodSeconds=17)
    ref = ground.at("a", POD)
    await ground.cluster.evict(ref, uid=(await ground.read(ref))["metadata"]["uid"])
    ending = await ground.read(ref)
    assert ending["metadata"]["deletionGracePeriodSeconds"] == 17
    said = [one for one in ending["status"]["conditions"] if one["type"] == "DisruptionTarget"]
    assert [(one["status"], one["reason"]) for one in said] == [("True", "EvictionByEvictionAPI")]


@pytest.mark.parametrize(
    "ground", ["rehearsal", pytest.param("real", marks=[pytest.mark.real, pytest.mark.slow])], indirect=True
)
async def test_an_eviction_of_another_pod_under_the_name_is_a_conflict(ground: ClusterUnderTest) -> None:
    """The pod stays as it is. An apiserver tries it again for ten seconds before it says so."""
    await ground.pod("a")
    ref = ground.at("a", POD)
    with pytest.raises(Conflict):
        await ground.cluster.evict(ref, uid=STRANGER)
    assert "deletionTimestamp" not in (await ground.read(ref))["metadata"]


async def test_a_pod_that_is_not_there_cannot_be_evicted(ground: ClusterUnderTest) -> None:
    """It is not found."""
    with pytest.raises(NotFound):
        await ground.cluster.evict(ground.at("a", POD), uid=STRANGER)
