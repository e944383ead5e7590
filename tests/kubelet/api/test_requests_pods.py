"""Which lower pods the kubelet API of a virtual node opens: those of the pods bound to it, and no stranger's."""

from typing import Any

import orjson
import pytest
from stagekit import FaultyCluster
from worldkit import NOW, OWNER_HERE, STRANGER, A, home, marked, put, twin, upper_pod, world

from tensile.kubelet.api.requests import EmptyPodLister, MirroredPods
from tensile.objects import Manifest
from tensile.reconcile.world import LowerWorld

CLUSTER = FaultyCluster(A, ends_pods=True, now=lambda: NOW)


def lower(*below: Manifest) -> LowerWorld:
    """Make a lower with a pod bound to it, and something below."""
    here = world()
    home(here)
    put(here.lowers[A].upper_pods, upper_pod())
    for pod in below:
        put(here.lowers[A].pods, pod)
    return here.lowers[A]


def pods(of: LowerWorld, cluster: Any = CLUSTER) -> MirroredPods:
    """Make the pods of a lower, as the kubelet API sees them."""
    return MirroredPods(of, OWNER_HERE, lambda: cluster)


def test_a_mirrored_pod_is_found_under_its_upper_name() -> None:
    """With the connection to its cluster, and its place there."""
    target = pods(lower(twin(upper_pod()))).locate("default", "web")
    assert target is not None
    assert (target.cluster, target.namespace, target.name) == (CLUSTER, "default", "web")


def test_containers_of_every_kind_are_known() -> None:
    """Those that the pod has above: one that was just added has a name before it is below."""
    pod = upper_pod()
    pod["spec"]["initContainers"] = [{"name": "first"}]
    pod["spec"]["ephemeralContainers"] = [{"name": "probe"}]
    here = lower(twin(upper_pod()))
    put(here.upper_pods, pod)
    target = pods(here).locate("default", "web")
    assert target is not None
    assert target.containers == {"main", "first", "probe"}


@pytest.mark.parametrize(
    "below",
    [
        (),
        (marked(upper_pod(uid="theirs"), "Pod-web", STRANGER),),
        (marked(upper_pod(uid="theirs"), ""),),
        (twin(upper_pod(uid="older")),),
    ],
    ids=["nothing", "another owner's", "label alone", "an older pod's"],
)
def test_no_other_pod_is_opened(below: tuple[Manifest, ...]) -> None:
    """Through the upper cluster nobody reaches what is not his."""
    found = pods(lower(*below))
    assert found.locate("default", "web") is None
    assert orjson.loads(found.listed())["items"] == []


def test_a_lower_pod_without_its_upper_one_is_not_opened() -> None:
    """Whoever may enter pods of that name above may not enter what is left of another."""
    found = pods(lower(twin(upper_pod()), twin(upper_pod("orphan"))))
    assert found.locate("default", "orphan") is None
    assert [pod["metadata"]["name"] for pod in orjson.loads(found.listed())["items"]] == ["web"]


def test_without_a_connection_nothing_is_opened() -> None:
    """The pods are listed all the same."""
    found = pods(lower(twin(upper_pod())), None)
    assert found.locate("default", "web") is None
    assert len(orjson.loads(found.listed())["items"]) == 1


def test_pods_are_listed_as_the_upper_cluster_has_them() -> None:
    """By their upper UID, as a v1 PodList."""
    listed = orjson.loads(pods(lower(twin(upper_pod()))).listed())
    assert (listed["kind"], listed["apiVersion"]) == ("PodList", "v1")
    assert [pod["metadata"]["uid"] for pod in listed["items"]] == ["Pod-web"]


def test_a_node_of_which_nothing_is_known_has_no_pods() -> None:
    """An empty list, and nothing to open."""
    assert EmptyPodLister().locate("default", "web") is None
    assert orjson.loads(EmptyPodLister().listed())["items"] == []


def test_only_what_runs_is_running() -> None:
    """A mirrored pod without a running container is listed, and does not run."""
    state = {"running": {"startedAt": "2026-03-01T11:00:00Z"}}
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": state}]}
    assert [one.uid for one in pods(lower(twin(upper_pod(), status))).running()] == ["Pod-web"]
    assert pods(lower(twin(upper_pod()))).running() == []
    assert pods(lower(marked(upper_pod(uid="theirs"), "Pod-web", STRANGER))).running() == []
    assert EmptyPodLister().running() == []
