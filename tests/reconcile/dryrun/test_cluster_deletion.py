"""Tests of deletions of objects, with the same results in memory and on a real apiserver."""

from datetime import datetime, timedelta

import pytest
from rehearsal_ground import FINALIZER, STRANGER, TIME, ClusterUnderTest, told, version_of

from tensile.errors import Conflict, NotFound
from tensile.objects import CONFIG_MAP, LEASE, NAMESPACE, NODE, POD, SECRET, SERVICE_ACCOUNT, Kind
from tensile.reconcile.apply import _is_gone


@pytest.mark.parametrize("kind", [CONFIG_MAP, POD, NODE, NAMESPACE], ids=lambda kind: kind.name)
async def test_a_delete_with_another_uid_is_a_conflict(ground: ClusterUnderTest, kind: Kind) -> None:
    """Every kind has the precondition, and the object is not changed."""
    ref = ground.at({NODE: ground.node, NAMESPACE: ground.namespace}.get(kind, "a"), kind)
    if kind == POD:
        await ground.pod("a")
    elif kind == CONFIG_MAP:
        await ground.made(ref)
    with pytest.raises(Conflict) as error:
        await ground.cluster.delete(ref, uid=STRANGER)
    assert told(error.value) == (409, "Conflict", ())
    assert "deletionTimestamp" not in (await ground.read(ref))["metadata"]


async def test_a_delete_with_an_outdated_resource_version_is_a_conflict(ground: ClusterUnderTest) -> None:
    """With the current resourceVersion, the object is deleted."""
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
async def test_an_object_without_finalizers_is_deleted_at_once(ground: ClusterUnderTest, kind: Kind) -> None:
    """The response is a Status or the object, and both show that it is gone."""
    ref = ground.at("a", kind)
    answer = await ground.deleted(await ground.made(ref), ref)
    assert answer["kind"] == ("ServiceAccount" if kind == SERVICE_ACCOUNT else "Status")
    assert "deletionTimestamp" not in answer["metadata"]
    assert _is_gone(answer, None)
    assert await ground.is_deleted(ref)


async def test_an_object_with_a_finalizer_is_deleted_when_the_finalizer_is_removed(ground: ClusterUnderTest) -> None:
    """It is terminating before, further deletes change nothing, and the last patch returns the object."""
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


async def test_a_bound_pod_terminates_gracefully(ground: ClusterUnderTest) -> None:
    """It is marked as terminating.

    A longer grace period is ignored, a shorter one applies, and one of 0 deletes it.
    """
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


async def test_the_default_grace_period_of_a_bound_pod_is_30_seconds(ground: ClusterUnderTest) -> None:
    """That of the request has precedence over that of the pod, and a negative one means one second."""
    for name, grace, expected in (("p", None, 30), ("q", 7, 7), ("r", -1, 1)):
        answer = await ground.deleted(await ground.pod(name), ground.at(name, POD), grace)
        assert answer["metadata"]["deletionGracePeriodSeconds"] == expected


@pytest.mark.parametrize("case", ["unbound", "Succeeded", "Failed", "without grace", "at once"])
async def test_a_pod_that_needs_no_grace_period_is_deleted_at_once(ground: ClusterUnderTest, case: str) -> None:
    """It is unbound, has ended, or has a grace period of 0, and the response is the pod."""
    ref = ground.at("p", POD)
    more = {"terminationGracePeriodSeconds": 0} if case == "without grace" else {}
    pod = await ground.pod("p", bound=case != "unbound", **more)
    if case in ("Succeeded", "Failed"):
        await ground.laid_over(pod, ref, "status", status={"phase": case})
    answer = await ground.deleted(pod, ref, 0 if case == "at once" else None)
    assert answer["metadata"]["deletionGracePeriodSeconds"] == 0
    assert _is_gone(answer, None)
    assert await ground.is_deleted(ref)


async def test_a_terminating_pod_that_ends_stays_until_a_delete_with_grace_period_0(ground: ClusterUnderTest) -> None:
    """Neither a terminal phase nor another delete without a grace period removes it."""
    ref = ground.at("p", POD)
    pod = await ground.pod("p")
    await ground.deleted(pod, ref)
    ended = await ground.laid_over(pod, ref, "status", status={"phase": "Failed"})
    assert await ground.deleted(pod, ref) == ended
    await ground.deleted(pod, ref, 0)
    assert await ground.is_deleted(ref)


@pytest.mark.parametrize("grace", [0, 9])
async def test_a_pod_waits_for_its_finalizer_and_its_grace_period(ground: ClusterUnderTest, grace: int) -> None:
    """If the grace period is 0, removing the finalizer deletes the pod, but not before the end of a longer one."""
    ref = ground.at("p", POD)
    pod = await ground.pod("p", meta={"finalizers": [FINALIZER]})
    answer = await ground.deleted(pod, ref, grace)
    assert not _is_gone(answer, grace)
    await ground.operated(pod, ref, {"op": "remove", "path": "/metadata/finalizers"})
    assert await ground.is_deleted(ref) == (grace == 0)


async def test_an_evicted_pod_terminates_like_a_deleted_one(ground: ClusterUnderTest) -> None:
    """No disruption budget applies here.

    It has its own grace period, and a condition with the reason.
    """
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
async def test_an_eviction_with_another_uid_is_a_conflict(ground: ClusterUnderTest) -> None:
    """The pod is not changed.

    An apiserver retries for ten seconds before it returns the conflict.
    """
    await ground.pod("a")
    ref = ground.at("a", POD)
    with pytest.raises(Conflict):
        await ground.cluster.evict(ref, uid=STRANGER)
    assert "deletionTimestamp" not in (await ground.read(ref))["metadata"]


async def test_an_eviction_of_a_missing_pod_is_not_found(ground: ClusterUnderTest) -> None:
    """The error is NotFound."""
    with pytest.raises(NotFound):
        await ground.cluster.evict(ground.at("a", POD), uid=STRANGER)
