"""Tests of deletions of objects, with the same results in memory and on a real apiserver."""

from datetime import datetime, timedelta

import pytest
from dryrunkit import FINALIZER, STRANGER, TIME, ClusterUnderTest, error_fields, version_of

from tensile.errors import Conflict, NotFound
from tensile.objects import CONFIG_MAP, LEASE, NAMESPACE, NODE, POD, SECRET, SERVICE_ACCOUNT, Kind
from tensile.reconcile.apply import _is_gone


@pytest.mark.parametrize("kind", [CONFIG_MAP, POD, NODE, NAMESPACE], ids=lambda kind: kind.name)
async def test_a_delete_with_another_uid_is_a_conflict(cluster_under_test: ClusterUnderTest, kind: Kind) -> None:
    """Every kind has the precondition, and the object is not changed."""
    ref = cluster_under_test.ref(
        {NODE: cluster_under_test.node, NAMESPACE: cluster_under_test.namespace}.get(kind, "a"), kind
    )
    if kind == POD:
        await cluster_under_test.pod("a")
    elif kind == CONFIG_MAP:
        await cluster_under_test.create(ref)
    with pytest.raises(Conflict) as error:
        await cluster_under_test.cluster.delete(ref, uid=STRANGER)
    assert error_fields(error.value) == (409, "Conflict", ())
    assert "deletionTimestamp" not in (await cluster_under_test.read(ref))["metadata"]


async def test_a_delete_with_an_outdated_resource_version_is_a_conflict(cluster_under_test: ClusterUnderTest) -> None:
    """With the current resourceVersion, the object is deleted."""
    ref = cluster_under_test.ref("a")
    first = await cluster_under_test.create(ref)
    second = await cluster_under_test.json_patch(first, ref, {"op": "add", "path": "/data", "value": {"k": "v"}})
    uid = first["metadata"]["uid"]
    with pytest.raises(Conflict) as error:
        await cluster_under_test.cluster.delete(ref, uid=uid, version=version_of(first))
    assert error_fields(error.value) == (409, "Conflict", ())
    await cluster_under_test.cluster.delete(ref, uid=uid, version=version_of(second))
    assert await cluster_under_test.is_deleted(ref)


@pytest.mark.parametrize("kind", [CONFIG_MAP, SECRET, SERVICE_ACCOUNT, LEASE], ids=lambda kind: kind.name)
async def test_an_object_without_finalizers_is_deleted_at_once(
    cluster_under_test: ClusterUnderTest, kind: Kind
) -> None:
    """The response is a Status or the object, and both show that it is gone."""
    ref = cluster_under_test.ref("a", kind)
    answer = await cluster_under_test.delete(await cluster_under_test.create(ref), ref)
    assert answer["kind"] == ("ServiceAccount" if kind == SERVICE_ACCOUNT else "Status")
    assert "deletionTimestamp" not in answer["metadata"]
    assert _is_gone(answer, None)
    assert await cluster_under_test.is_deleted(ref)


async def test_an_object_with_a_finalizer_is_deleted_when_the_finalizer_is_removed(
    cluster_under_test: ClusterUnderTest,
) -> None:
    """It is terminating before, further deletes change nothing, and the last patch returns the object."""
    ref = cluster_under_test.ref("a")
    stored = await cluster_under_test.create(ref, {"finalizers": [FINALIZER]})
    answer = await cluster_under_test.delete(stored, ref)
    assert answer["metadata"]["deletionGracePeriodSeconds"] == 0
    assert not _is_gone(answer, None)
    assert await cluster_under_test.delete(stored, ref) == answer
    assert await cluster_under_test.delete(stored, ref, grace=0) == answer
    released = await cluster_under_test.json_patch(stored, ref, {"op": "remove", "path": "/metadata/finalizers"})
    assert "finalizers" not in released["metadata"]
    assert version_of(released) == version_of(answer)
    assert await cluster_under_test.is_deleted(ref)


async def test_a_bound_pod_terminates_gracefully(cluster_under_test: ClusterUnderTest) -> None:
    """It is marked as terminating.

    A longer grace period is ignored, a shorter one applies, and one of 0 deletes it.
    """
    ref = cluster_under_test.ref("p", POD)
    pod = await cluster_under_test.pod("p", terminationGracePeriodSeconds=20)
    answer = await cluster_under_test.delete(pod, ref)
    assert (answer["metadata"]["deletionGracePeriodSeconds"], answer["metadata"]["generation"]) == (20, 2)
    assert not _is_gone(answer, None)
    for grace in (None, 60, 20):
        assert await cluster_under_test.delete(pod, ref, grace) == answer
    shorter = await cluster_under_test.delete(pod, ref, 5)
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    ends = [datetime.strptime(one["metadata"]["deletionTimestamp"], TIME) for one in (answer, shorter)]  # noqa: DTZ007
    assert ends[0] - ends[1] == timedelta(seconds=15)
    shortest = await cluster_under_test.delete(pod, ref, -1)
    assert shortest["metadata"]["deletionGracePeriodSeconds"] == 1
    assert await cluster_under_test.delete(pod, ref, -1) == shortest
    last = await cluster_under_test.delete(pod, ref, 0)
    assert last["metadata"]["deletionGracePeriodSeconds"] == 0
    assert _is_gone(last, 0)
    assert await cluster_under_test.is_deleted(ref)


async def test_the_default_grace_period_of_a_bound_pod_is_30_seconds(cluster_under_test: ClusterUnderTest) -> None:
    """That of the request has precedence over that of the pod, and a negative one means one second."""
    for name, grace, expected in (("p", None, 30), ("q", 7, 7), ("r", -1, 1)):
        answer = await cluster_under_test.delete(
            await cluster_under_test.pod(name), cluster_under_test.ref(name, POD), grace
        )
        assert answer["metadata"]["deletionGracePeriodSeconds"] == expected


@pytest.mark.parametrize("case", ["unbound", "Succeeded", "Failed", "without grace", "at once"])
async def test_a_pod_that_needs_no_grace_period_is_deleted_at_once(
    cluster_under_test: ClusterUnderTest, case: str
) -> None:
    """It is unbound, has ended, or has a grace period of 0, and the response is the pod."""
    ref = cluster_under_test.ref("p", POD)
    more = {"terminationGracePeriodSeconds": 0} if case == "without grace" else {}
    pod = await cluster_under_test.pod("p", bound=case != "unbound", **more)
    if case in ("Succeeded", "Failed"):
        await cluster_under_test.strategic_merge_patch(pod, ref, "status", status={"phase": case})
    answer = await cluster_under_test.delete(pod, ref, 0 if case == "at once" else None)
    assert answer["metadata"]["deletionGracePeriodSeconds"] == 0
    assert _is_gone(answer, None)
    assert await cluster_under_test.is_deleted(ref)


async def test_a_terminating_pod_that_ends_stays_until_a_delete_with_grace_period_0(
    cluster_under_test: ClusterUnderTest,
) -> None:
    """Neither a terminal phase nor another delete without a grace period removes it."""
    ref = cluster_under_test.ref("p", POD)
    pod = await cluster_under_test.pod("p")
    await cluster_under_test.delete(pod, ref)
    ended = await cluster_under_test.strategic_merge_patch(pod, ref, "status", status={"phase": "Failed"})
    assert await cluster_under_test.delete(pod, ref) == ended
    await cluster_under_test.delete(pod, ref, 0)
    assert await cluster_under_test.is_deleted(ref)


@pytest.mark.parametrize("grace", [0, 9])
async def test_a_pod_waits_for_its_finalizer_and_its_grace_period(
    cluster_under_test: ClusterUnderTest, grace: int
) -> None:
    """If the grace period is 0, removing the finalizer deletes the pod, but not before the end of a longer one."""
    ref = cluster_under_test.ref("p", POD)
    pod = await cluster_under_test.pod("p", meta={"finalizers": [FINALIZER]})
    answer = await cluster_under_test.delete(pod, ref, grace)
    assert not _is_gone(answer, grace)
    await cluster_under_test.json_patch(pod, ref, {"op": "remove", "path": "/metadata/finalizers"})
    assert await cluster_under_test.is_deleted(ref) == (grace == 0)


async def test_an_evicted_pod_terminates_like_a_deleted_one(cluster_under_test: ClusterUnderTest) -> None:
    """No disruption budget applies here.

    It has its own grace period, and a condition with the reason.
    """
    await cluster_under_test.pod("a", terminationGracePeriodSeconds=17)
    ref = cluster_under_test.ref("a", POD)
    await cluster_under_test.cluster.evict(ref, uid=(await cluster_under_test.read(ref))["metadata"]["uid"])
    ending = await cluster_under_test.read(ref)
    assert ending["metadata"]["deletionGracePeriodSeconds"] == 17
    conditions = [one for one in ending["status"]["conditions"] if one["type"] == "DisruptionTarget"]
    assert [(one["status"], one["reason"]) for one in conditions] == [("True", "EvictionByEvictionAPI")]


@pytest.mark.parametrize(
    "cluster_under_test", ["rehearsal", pytest.param("real", marks=[pytest.mark.real, pytest.mark.slow])], indirect=True
)
async def test_an_eviction_with_another_uid_is_a_conflict(cluster_under_test: ClusterUnderTest) -> None:
    """The pod is not changed.

    An apiserver retries for ten seconds before it returns the conflict.
    """
    await cluster_under_test.pod("a")
    ref = cluster_under_test.ref("a", POD)
    with pytest.raises(Conflict):
        await cluster_under_test.cluster.evict(ref, uid=STRANGER)
    assert "deletionTimestamp" not in (await cluster_under_test.read(ref))["metadata"]


async def test_an_eviction_of_a_missing_pod_is_not_found(cluster_under_test: ClusterUnderTest) -> None:
    """The error is NotFound."""
    with pytest.raises(NotFound):
        await cluster_under_test.cluster.evict(cluster_under_test.ref("a", POD), uid=STRANGER)
