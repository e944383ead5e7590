"""Tests of what the engine may rely on: that a client deleted a pod, that a name is absent, that a Node is its own."""

import pytest
from answering import FakeCluster
from worldkit import (
    A,
    add_virtual_node,
    config_map,
    delete_observed,
    make_object,
    make_upper_pod,
    make_world,
    put,
    with_owner_marks,
)

from tensile.errors import ClusterError, Denied, Unreachable
from tensile.kube.tombstones import Tombstone
from tensile.objects import CONFIG_MAP, Manifest, Ref
from tensile.reconcile.apply import carry_out
from tensile.reconcile.ownership import has_node
from tensile.reconcile.plan import Step
from tensile.reconcile.pods.index import facts_of, was_deleted

REF = Ref(A, CONFIG_MAP, "default", "settings")
ENDING = {"deletionTimestamp": "2026-03-01T12:00:30Z"}
GC = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]}


@pytest.mark.parametrize(
    ("pod", "seen", "deleted"),
    [
        (make_upper_pod(), True, True),
        (make_upper_pod(**ENDING), False, True),
        (make_upper_pod(), False, False),
        (make_upper_pod(status=GC), True, False),
        (make_upper_pod(status=GC, **ENDING), False, False),
    ],
    ids=["deletion seen", "was terminating", "missing", "by Kubernetes", "terminating by Kubernetes"],
)
def test_a_pod_counts_as_deleted_if_its_deletion_was_observed(pod: Manifest, *, seen: bool, deleted: bool) -> None:
    """The watch reported its removal, or it was terminating before.

    Deletion by the garbage collector of Kubernetes does not count.
    """
    assert was_deleted(Tombstone("Pod-web", facts_of(pod), seen), "Pod-web") is deleted


def test_a_tombstone_of_another_uid_proves_no_deletion() -> None:
    """Neither does an absent name without a UID."""
    assert not was_deleted(Tombstone("Pod-web", facts_of(make_upper_pod())), "another")
    assert not was_deleted(Tombstone("", None), "")


@pytest.mark.parametrize("error", [Unreachable("broke"), Denied("no")])
async def test_a_failed_create_invalidates_the_recorded_absence_of_its_name(error: ClusterError) -> None:
    """A request without a response may have succeeded, so the absence is dropped before the request is sent."""
    world = make_world()
    cache, cluster = world.lowers[A].config_maps, FakeCluster()
    put(cache, config_map())
    delete_observed(cache, "settings")
    cluster.queue_responses("create", error)
    with pytest.raises(type(error)):
        await carry_out(Step("create", REF, "because", body=config_map()), cluster, cache)
    assert cache.tombstone("default", "settings") is None


async def test_the_engines_own_delete_counts_as_an_observed_deletion() -> None:
    """The watch event of the deletion is not needed any more."""
    world = make_world()
    cache = world.lowers[A].config_maps
    entry = put(cache, config_map())
    await carry_out(Step("delete", REF, "because", uid=entry.uid), FakeCluster(), cache)
    departure = cache.tombstone("default", "settings")
    assert departure is not None
    assert departure.seen


def test_a_lower_has_its_node_only_if_the_node_has_both_marks() -> None:
    """A node that is missing or belongs to another owner does not count, and its pods are not mirrored."""
    world = make_world()
    lower = world.lowers[A]
    assert not has_node(lower, world)
    add_virtual_node(world)
    assert has_node(lower, world)
    delete_observed(world.upper.nodes, A, "")
    put(world.upper.nodes, with_owner_marks(make_object("Node", A, "", uid="theirs"), ""))
    assert not has_node(lower, world)
