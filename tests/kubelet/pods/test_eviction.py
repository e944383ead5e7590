"""Eviction from a lower cluster that is out of reach: of which pods, when, and how it ends."""

from typing import Any

import pytest
from stagekit import Stage
from virtualtime import in_virtual_time
from worldkit import NOW, A, B, decided, home, lower_node, put, raised, reload, space, twin, upper_pod, world

from tensile.kubelet.pods.conditions import conditions_of
from tensile.kubelet.pods.deletion import EVICTED
from tensile.kubelet.pods.rule import PodRule, key_of
from tensile.names import UNREACHABLE_TAINT
from tensile.objects import EVENT, NAMESPACE, NODE, POD, UPPER, Manifest, Ref, metadata, timestamp
from tensile.reconcile.desired import Absent, EmitEvent
from tensile.reconcile.plan import Step
from tensile.reconcile.world import World

KEY = key_of(A, "default", "web")
ABOVE, BELOW = Ref(UPPER, POD, "default", "web"), Ref(A, POD, "default", "web")
PATIENT = "name: lower-a, unreachable: {evictAfter: 10m}"
OTHER = "name: lower-b"
LONG = 601.0
READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T11:00:00Z"}
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main"}], "conditions": [READY]}


def away(silent: float = LONG, lower: str = PATIENT, more: str = "", **pod: Any) -> World:
    """Make a world where a pod runs in lower-a, which has not answered for so long."""
    here = world(lower, OTHER, more=more)
    home(here)
    raised(here)
    upper = upper_pod(status=RUNNING, **pod)
    put(here.lowers[A].upper_pods, upper)
    put(here.lowers[A].pods, twin(upper, RUNNING))
    here.lowers[A].unreachable_seconds = silent
    return here


def steps(here: World) -> list[Step]:
    """Return what is to be done about the pod."""
    return list(decided(PodRule(), KEY, here)[1].steps)


def is_evicted(here: World) -> bool:
    """Report whether the pod is deleted above."""
    return any(step.verb == "delete" and step.ref == ABOVE for step in steps(here))


def test_a_pod_is_marked_then_told_of_then_deleted_with_its_own_time() -> None:
    """By its UID, asked for by the topology: the mark comes first, or a Job would count it as the pod's own failure."""
    found = steps(away())
    assert [(step.verb, step.ref.kind, step.subresource) for step in found] == [
        ("patch", POD, "status"),
        ("create", EVENT, ""),
        ("delete", POD, ""),
    ]
    mark, told, deletion = found
    assert mark.patch is not None
    said = {one["type"]: (one["status"], one["reason"]) for one in mark.patch.body["status"]["conditions"]}
    assert said == {"DisruptionTarget": ("True", "LowerUnreachable"), "Ready": ("False", "LowerUnreachable")}
    assert told.body is not None
    assert (told.body["reason"], "unreachable.evictAfter" in told.body["message"]) == (EVICTED, True)
    assert (deletion.uid, deletion.grace, deletion.requested) == ("Pod-web", None, True)


@pytest.mark.parametrize(
    ("silent", "lower"),
    [(1e9, "name: lower-a"), (1e9, "name: lower-a, unreachable: {evictAfter: null}"), (600.0 - 1, PATIENT)],
    ids=["by default", "never", "not yet"],
)
def test_nothing_is_evicted_unless_the_topology_says_so(silent: float, lower: str) -> None:
    """However long the cluster is away."""
    here = away(silent, lower)
    assert [step.subresource for step in steps(here)] == ["status"]


def test_what_is_not_due_yet_is_looked_at_again_when_it_is() -> None:
    """Nothing else may happen until then; without a limit there is no other look."""
    assert decided(PodRule(), KEY, away(200.0))[0].requeue_after == 400.0
    assert decided(PodRule(), KEY, away(599.9))[0].requeue_after == 1.0
    assert decided(PodRule(), KEY, away(200.0, "name: lower-a"))[0].requeue_after is None


def test_nobody_is_evicted_who_is_not_called_unready_yet() -> None:
    """A limit below forty seconds is forty seconds: an apiserver that starts anew is away for some of them."""
    lower = "name: lower-a, unreachable: {evictAfter: 1s}"
    assert not is_evicted(away(40.0, lower))
    assert is_evicted(away(40.1, lower))


def test_a_pod_that_waits_for_its_lower_cluster_is_evicted_too() -> None:
    """It was bound before the cluster went, and could run somewhere else."""
    here = world(PATIENT, OTHER)
    home(here)
    raised(here)
    put(here.lowers[A].upper_pods, upper_pod())
    here.lowers[A].unreachable_seconds = LONG
    assert is_evicted(here)


def test_a_pod_has_to_have_waited_itself() -> None:
    """What is made anew for the same node, past its taint, would be evicted over and over."""
    assert not is_evicted(away(creationTimestamp=timestamp(NOW)))
    assert is_evicted(away(creationTimestamp="2026-03-01T11:50:00Z"))


@pytest.mark.parametrize(
    "pod",
    [
        {"spec": {"tolerations": [{"operator": "Exists"}]}},
        {"spec": {"tolerations": [{"key": UNREACHABLE_TAINT, "operator": "Exists"}]}},
        {
            "ownerReferences": [{"kind": "DaemonSet", "controller": True, "name": "d"}],
            "labels": {"virtual-pod": "true"},
        },
    ],
    ids=["tolerates all", "tolerates the taint", "of a DaemonSet"],
)
def test_who_would_come_back_to_the_same_node_stays(pod: Manifest) -> None:
    """Evicting it gains nothing."""
    assert not is_evicted(away(**pod))


def test_a_toleration_of_something_else_keeps_nobody() -> None:
    """Nor does an owner that is no DaemonSet."""
    owner = {"kind": "ReplicaSet", "controller": True, "name": "r"}
    assert is_evicted(away(spec={"tolerations": [{"key": "x", "operator": "Exists"}]}, ownerReferences=[owner]))


def test_pods_that_are_not_mirrored_are_not_evicted() -> None:
    """Their lower cluster has nothing to do with them."""
    here = away(more="excludeNamespaces: [default]\n")
    assert not is_evicted(here)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_is_left_where_it_is(phase: str) -> None:
    """There is nothing to move."""
    here = away()
    put(here.lowers[A].upper_pods, upper_pod(status={"phase": phase}))
    assert steps(here) == []


def test_another_cluster_in_its_place_evicts_nobody() -> None:
    """A wrong kubeconfig is no reason to end what runs."""
    here = away()
    here.lowers[A].is_wrong = True
    assert not is_evicted(here)


def test_a_cluster_that_was_hardly_asked_evicts_nobody() -> None:
    """Nobody knows how to reach it yet, or that has just become another way: its pods are unready, and stay."""
    here = away()
    here.lowers[A].was_attempted = False
    assert [step.subresource for step in steps(here)] == ["status"]
    here.lowers[A].was_attempted = True
    assert is_evicted(here)


def test_a_way_there_that_somebody_has_to_put_right_evicts_nobody() -> None:
    """Credentials that cannot be read, or are not accepted, are no sign that pods have ended."""
    here = away()
    here.lowers[A].refusal = "upper: list Secret: denied"
    assert not is_evicted(here)
    here.lowers[A].refusal = ""
    assert is_evicted(here)


def test_a_lower_that_left_the_topology_evicts_nobody() -> None:
    """What was written there does not hold any more."""
    here = away()
    reload(here, OTHER)
    assert not is_evicted(here)


def test_what_is_marked_already_is_not_marked_again() -> None:
    """A deletion that did not come through is simply tried again."""
    here = away()
    upper = here.lowers[A].upper_pods.get("default", "web")
    assert upper is not None
    (mark,) = (step.patch for step in steps(here) if step.subresource == "status")
    assert mark is not None
    status = {**RUNNING, "conditions": mark.body["status"]["conditions"]}
    put(here.lowers[A].upper_pods, {**upper.manifest(), "status": status})
    decision, _ = decided(PodRule(), KEY, here)
    assert [type(one) for one in decision.wanted] == [EmitEvent, Absent]


# From beginning to end, by the whole loop.


def staged() -> Stage:
    """Set a stage where a pod is bound to lower-a, whose pods take their time to end."""
    stage = Stage(PATIENT, OTHER, prompt=False)
    stage.raise_nodes()
    stage.clusters[A].place(NODE, lower_node())
    stage.clusters[UPPER].place(NAMESPACE, space("default"))
    stage.clusters[UPPER].place(POD, upper_pod(creationTimestamp="2026-03-01T11:00:00Z"))
    stage.start()
    return stage


async def run_below(stage: Stage) -> None:
    """Let the lower pod run."""
    await stage.settle()
    stage.clusters[A].alter(BELOW, lambda pod: pod["status"].update(RUNNING))
    await stage.settle()


def taints(stage: Stage) -> list[str]:
    """Return the keys of the node's taints."""
    node = stage.find(Ref(UPPER, NODE, "", A))
    assert node is not None
    return [one["key"] for one in node["spec"]["taints"]]


@in_virtual_time
async def test_an_evicted_pod_stays_until_its_lower_pod_has_ended() -> None:
    """Out of sight it may run, so nothing is let go; the cluster answers, the lower pod ends by its UID, both go."""
    stage = staged()
    await run_below(stage)
    stage.quieten(A, LONG)
    await stage.settle()
    above = stage.find(ABOVE)
    assert above is not None
    assert "deletionTimestamp" in metadata(above)
    assert conditions_of(above)["DisruptionTarget"]["reason"] == "LowerUnreachable"
    assert (above["status"]["phase"], UNREACHABLE_TAINT in taints(stage)) == ("Running", True)
    await stage.calm(3600)
    below = stage.find(BELOW)
    assert stage.find(ABOVE) is not None
    assert below is not None
    assert "deletionTimestamp" not in metadata(below)
    stage.quieten(A, 0)
    await stage.calm()
    assert "deletionTimestamp" in metadata(stage.find(BELOW) or {})
    assert (stage.find(ABOVE) is not None, UNREACHABLE_TAINT in taints(stage)) == (True, False)
    stage.clusters[A].vanish(BELOW)
    await stage.settle()
    assert stage.find(ABOVE) is None
    await stage.stop()


@in_virtual_time
async def test_an_engine_that_starts_in_between_ends_the_lower_pod_too() -> None:
    """It finds the pod Terminating above and running below, and nothing else tells it what happened."""
    stage = staged()
    await run_below(stage)
    stage.quieten(A, LONG)
    await stage.settle()
    await stage.restart()
    stage.quieten(A, 0)
    await stage.calm()
    assert "deletionTimestamp" in metadata(stage.find(BELOW) or {})
    await stage.stop()


@in_virtual_time
async def test_a_cluster_that_comes_back_in_time_loses_nobody() -> None:
    """Half a minute before the limit: the same two objects as before, and ready again."""
    stage = staged()
    await run_below(stage)
    stage.quieten(A, LONG - 30)
    await stage.settle()
    stage.quieten(A, 0)
    await stage.calm(60)
    above, below = stage.find(ABOVE), stage.find(BELOW)
    assert above is not None
    assert below is not None
    assert "deletionTimestamp" not in metadata(above) | metadata(below)
    assert conditions_of(above)["Ready"]["status"] == "True"
    assert "DisruptionTarget" not in conditions_of(above)
    await stage.stop()


@in_virtual_time
async def test_a_pod_of_the_same_name_elsewhere_waits_for_the_evicted_one() -> None:
    """Deleted above by force after its eviction, its lower pod may still run: another of that name waits for it."""
    stage = staged()
    await run_below(stage)
    stage.quieten(A, LONG)
    await stage.settle()
    await stage.delete(ABOVE, 0)
    stage.clusters[UPPER].place(POD, upper_pod(spec={"nodeName": B}, uid="second"))
    await stage.calm()
    assert stage.find(BELOW._replace(cluster=B)) is None
    assert (stage.find(ABOVE) or {})["status"]["reason"] == "PredecessorUnreachable"
    stage.quieten(A, 0)
    await stage.calm()
    stage.clusters[A].vanish(BELOW)
    await stage.calm()
    assert stage.find(BELOW._replace(cluster=B)) is not None
    await stage.stop()
