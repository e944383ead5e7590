"""Tests of the pods that a virtual node's kubelet API serves: only lower pods of upper pods that are bound to it."""

from typing import Any

import orjson
import pytest
from stagekit import FaultyCluster
from worldkit import (
    NOW,
    OWNER_HERE,
    STRANGER,
    A,
    add_namespace,
    make_lower_pod,
    make_upper_pod,
    make_world,
    put,
    with_owner_marks,
)

from tensile.kubelet.api.requests import EmptyPodLister, MirroredPods
from tensile.objects import Manifest
from tensile.reconcile.world import LowerWorld

CLUSTER = FaultyCluster(A, ends_pods=True, now=lambda: NOW)


def lower(*below: Manifest) -> LowerWorld:
    """Return a lower with an upper pod bound to its node, and the given lower pods."""
    world = make_world()
    add_namespace(world)
    put(world.lowers[A].upper_pods, make_upper_pod())
    for pod in below:
        put(world.lowers[A].pods, pod)
    return world.lowers[A]


def pods(of: LowerWorld, cluster: Any = CLUSTER) -> MirroredPods:
    """Return the pods of a lower, as the kubelet API sees them."""
    return MirroredPods(of, OWNER_HERE, lambda: cluster)


def test_a_mirrored_pod_is_found_by_its_upper_name() -> None:
    """The target contains its cluster's connection, and its namespace and name there."""
    target = pods(lower(make_lower_pod(make_upper_pod()))).locate("default", "web")
    assert target is not None
    assert (target.cluster, target.namespace, target.name) == (CLUSTER, "default", "web")


def test_containers_of_every_kind_are_known() -> None:
    """The containers are those of the upper pod, because a new one is there before it is in the lower pod."""
    pod = make_upper_pod()
    pod["spec"]["initContainers"] = [{"name": "first"}]
    pod["spec"]["ephemeralContainers"] = [{"name": "probe"}]
    lower_state = lower(make_lower_pod(make_upper_pod()))
    put(lower_state.upper_pods, pod)
    target = pods(lower_state).locate("default", "web")
    assert target is not None
    assert target.containers == {"main", "first", "probe"}


@pytest.mark.parametrize(
    "below",
    [
        (),
        (with_owner_marks(make_upper_pod(uid="theirs"), "Pod-web", STRANGER),),
        (with_owner_marks(make_upper_pod(uid="theirs"), ""),),
        (make_lower_pod(make_upper_pod(uid="older")),),
    ],
    ids=["nothing", "another owner's", "label alone", "an older pod's"],
)
def test_pods_not_mirrored_by_this_topology_are_not_served(below: tuple[Manifest, ...]) -> None:
    """A user of the upper cluster must not reach pods of another owner or of an older upper pod."""
    found = pods(lower(*below))
    assert found.locate("default", "web") is None
    assert orjson.loads(found.listed())["items"] == []


def test_a_lower_pod_without_its_upper_pod_is_not_served() -> None:
    """Rights on upper pods of a name must not open a leftover lower pod of another upper pod."""
    found = pods(lower(make_lower_pod(make_upper_pod()), make_lower_pod(make_upper_pod("orphan"))))
    assert found.locate("default", "orphan") is None
    assert [pod["metadata"]["name"] for pod in orjson.loads(found.listed())["items"]] == ["web"]


def test_pods_are_listed_but_not_served_without_a_connection() -> None:
    """Without a connection no target is found, and the list is complete."""
    found = pods(lower(make_lower_pod(make_upper_pod())), None)
    assert found.locate("default", "web") is None
    assert len(orjson.loads(found.listed())["items"]) == 1


def test_pods_are_listed_as_in_the_upper_cluster() -> None:
    """The answer is a v1 PodList, and its pods have their upper UIDs."""
    listed = orjson.loads(pods(lower(make_lower_pod(make_upper_pod()))).listed())
    assert (listed["kind"], listed["apiVersion"]) == ("PodList", "v1")
    assert [pod["metadata"]["uid"] for pod in listed["items"]] == ["Pod-web"]


def test_a_node_without_known_pods_has_an_empty_list() -> None:
    """It has an empty pod list, and no target for any pod."""
    assert EmptyPodLister().locate("default", "web") is None
    assert orjson.loads(EmptyPodLister().listed())["items"] == []


def test_only_pods_with_a_running_container_are_running() -> None:
    """A mirrored pod without a running container, or a pod of another owner, does not count."""
    state = {"running": {"startedAt": "2026-03-01T11:00:00Z"}}
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": state}]}
    assert [one.uid for one in pods(lower(make_lower_pod(make_upper_pod(), status))).running()] == ["Pod-web"]
    assert pods(lower(make_lower_pod(make_upper_pod()))).running() == []
    assert pods(lower(with_owner_marks(make_upper_pod(uid="theirs"), "Pod-web", STRANGER))).running() == []
    assert EmptyPodLister().running() == []
