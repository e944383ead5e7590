"""Tests of the descheduler rule: its steps, their order, and what it reports."""

from base64 import b64decode

import orjson
import pytest
from deschedulingkit import (
    NOW,
    ON,
    A,
    B,
    descheduling_world,
    eviction_record,
    eviction_records_in,
    put_eviction_records,
    put_waiting_pods,
    requesting_pod,
)
from worldkit import (
    apply_topology,
    change_as_other_client,
    decision_and_plan,
    delete_observed,
    put,
    sorted_names,
    with_managed_fields,
)

from tensile.names import WITHDRAWN
from tensile.objects import EVENT, NODE, POD, UPPER, Ref, annotations
from tensile.policy.descheduler.limits import EvictionRecord
from tensile.policy.descheduler.replacement import avoided_nodes, backup, backup_ref, successor_of
from tensile.policy.descheduler.rule import DeschedulerRule, key_of
from tensile.reconcile.desired import Decision, PodMove
from tensile.reconcile.plan import Plan, Step
from tensile.reconcile.world import Problem, World

CLAIMED = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
GONE = WITHDRAWN.replace("/", "~1")
DRY = "descheduler: {enabled: true, dryRun: true}\n"


def decision_and_plan_of(world: World, lower: str = A) -> tuple[Decision, Plan]:
    """Return the rule's decision and plan for a lower cluster."""
    return decision_and_plan(DeschedulerRule(), key_of(lower), world)


def test_the_record_is_written_before_the_eviction() -> None:
    """Each eviction counts towards the limit, even if the engine crashes in between."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod())
    decision, (steps, problem) = decision_and_plan_of(world)
    note, eviction = steps
    assert (note.verb, note.ref, note.in_plan) == ("patch", Ref(UPPER, NODE, "", A), False)
    assert eviction_records_in(note.patch) == [EvictionRecord("web", "Pod-web", NOW, (A,))]
    assert (eviction.verb, eviction.subresource, eviction.uid) == ("delete", "eviction", "Pod-web")
    assert eviction.ref == Ref(UPPER, POD, "default", "web")
    assert (
        eviction.reason
        == "unschedulable in lower cluster lower-a for longer than 2m: it fits on node lower-b (lower-b-n1)"
    )
    assert eviction.independent, "one that is refused holds up no other"
    assert (problem, decision.requeue_after) == (None, 60.0)


def test_the_record_has_the_nodes_resourceversion_as_a_precondition() -> None:
    """Two engines with the same view cannot both evict pods."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod())
    (note, _) = decision_and_plan_of(world)[1].steps
    node = world.upper.nodes.get("", A)
    assert node is not None
    assert note.patch is not None
    meta = note.patch.body["metadata"]
    assert (meta["uid"], meta["resourceVersion"]) == (node.uid, str(node.version))


def test_records_that_do_not_count_any_more_are_removed() -> None:
    """Otherwise the annotation would grow without a limit."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod())
    put_eviction_records(
        world,
        eviction_record("older", "x", ago=601),
        eviction_record("younger", "y", ago=500),
        eviction_record(ago=100),
    )
    (note, _) = decision_and_plan_of(world)[1].steps
    assert [(one.pod, one.at) for one in eviction_records_in(note.patch)][1:] == [("Pod-web", NOW)]
    assert [one.pod for one in eviction_records_in(note.patch)] == ["younger", "Pod-web"]


def test_each_lowers_queue_evicts_only_its_own_pods() -> None:
    """One plan covers all lower clusters, and each has its own queue."""
    world = descheduling_world(cpus=(("2",), ("2",)))
    put_waiting_pods(world, requesting_pod(cpu="1"), requesting_pod("other", node=B, cpu="1"))
    assert [step.ref.name for step in decision_and_plan_of(world)[1].steps] == [A, "web"]
    assert [step.ref.name for step in decision_and_plan_of(world, B)[1].steps] == [B, "other"]


def test_the_rescheduled_event_is_emitted_when_the_pod_terminates() -> None:
    """A refused eviction emits no such event."""
    hook = "webhook: {enabled: true, url: 'https://10.0.0.1:10250'}\n"
    world, labels = descheduling_world(more=ON + hook), {"virtual-pod": "true"}
    pod = requesting_pod(labels=labels)
    put_waiting_pods(world, pod)
    put_eviction_records(world, eviction_record(ago=5))
    assert not decision_and_plan_of(world)[1].steps
    put(world.lowers[A].upper_pods, requesting_pod(labels=labels, deletionTimestamp="2026-03-01T12:00:00Z"))
    (step,) = decision_and_plan_of(world)[1].steps
    assert step.ref.kind == EVENT
    assert step.body is not None
    assert (step.body["reason"], step.body["type"]) == ("Rescheduled", "Normal")
    assert (
        step.body["message"]
        == "no node of lower cluster lower-a fits: new pods of its controller avoid node lower-a for 10m"
    )


def test_the_event_mentions_no_avoided_node_without_the_webhook() -> None:
    """Only the webhook keeps new pods off a node."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod())
    put_eviction_records(world, eviction_record(ago=5))
    put(world.lowers[A].upper_pods, requesting_pod(deletionTimestamp="2026-03-01T12:00:00Z"))
    (step,) = decision_and_plan_of(world)[1].steps
    assert step.body is not None
    assert step.body["message"] == "no node of lower cluster lower-a fits: its controller creates a new pod"


def test_a_drain_of_only_unmovable_pods_does_not_report_a_closed_window() -> None:
    """Its problem is the bare pod; with another pod to move it waits for the window."""
    windows = "windows: [{schedule: '0 2 * * *', duration: 1h}]\n"
    world = descheduling_world(f"name: {A}, maintenance: drain", f"name: {B}", more=windows)
    change_as_other_client(world.upper.nodes, A, lambda node: node["spec"].update(unschedulable=True), "")
    put(world.lowers[A].upper_pods, requesting_pod("bare", ownerReferences=[]))
    problem = decision_and_plan_of(world)[0].problem
    assert problem is not None
    assert problem.reason == "NoController"
    put(world.lowers[A].upper_pods, requesting_pod("web"), requesting_pod("bare", ownerReferences=[]))
    problem = decision_and_plan_of(world)[0].problem
    assert problem is not None
    assert (problem.reason, problem.message.endswith("pods to move: 1")) == ("OutsideWindow", True)


def kept_bare(world: World, *off: str, notes: dict[str, str] | None = None) -> None:
    """Add a backed-up bare pod that waits in lower-a and avoids some nodes."""
    pod = requesting_pod(ownerReferences=[])
    put_waiting_pods(world, pod)
    entry = world.lowers[A].upper_pods.get("default", "web")
    assert entry is not None
    secret = backup(successor_of(pod, off), entry, world.owner, "it moves").manifest
    marks = {**annotations(secret), **(notes or {})}
    put(
        world.upper.secrets,
        with_managed_fields({**secret, "metadata": {**secret["metadata"], "uid": "s", "annotations": marks}}),
    )


def backed_up_off(step: Step) -> list[str]:
    """Return the nodes that the pod in a backup avoids, from the step that writes the backup."""
    (data,) = (one["value"] for one in step.operations if one["path"] == "/data/pod.json")
    return avoided_nodes(orjson.loads(b64decode(data)))


def test_a_pod_is_evicted_only_if_its_backup_may_run_on_a_node_with_room() -> None:
    """Room may have changed since the backup was written, in which case it is updated first."""
    world = descheduling_world(*(f"name: lower-{letter}" for letter in "abc"), cpus=(("2",), ("4",), ("4",)))
    kept_bare(world, A)
    assert [step.verb for step in decision_and_plan_of(world)[1].steps] == ["patch", "delete"]
    kept_bare(world, A, "lower-c")
    assert [step.verb for step in decision_and_plan_of(world)[1].steps] == ["patch", "delete"], "it goes to lower-b"
    for off in ((A, B), ()):
        kept_bare(world, *off)
        (step,) = decision_and_plan_of(world)[1].steps
        assert (step.verb, step.ref, backed_up_off(step)) == ("patch", backup_ref("default", "Pod-web"), [A])


def test_a_changed_pod_is_not_evicted_before_its_backup_is_updated() -> None:
    """Otherwise the old state would be created; a withdrawal of the backup is removed too."""
    world = descheduling_world()
    kept_bare(world, A)
    change_as_other_client(
        world.lowers[A].upper_pods, "web", lambda pod: pod["spec"]["containers"][0].update(image="app:2")
    )
    (step,) = decision_and_plan_of(world)[1].steps
    assert (step.verb, step.ref) == ("patch", backup_ref("default", "Pod-web"))
    kept_bare(world, A, notes={WITHDRAWN: "2026-03-01T12:00:00Z"})
    (step,) = decision_and_plan_of(world)[1].steps
    assert [(one["op"], one["path"]) for one in step.operations] == [("remove", f"/metadata/annotations/{GONE}")]


def test_between_two_passes_only_newly_backed_up_pods_are_evicted() -> None:
    """A pass reads every node, so it is not repeated; a pod that is already recorded does not count."""
    world = descheduling_world(cpus=(("2",), ("64",)))
    put_waiting_pods(world, requesting_pod("large", cpu="65"))
    put_eviction_records(world, eviction_record("gone", "x", ago=20))
    decision, plan = decision_and_plan_of(world)
    assert (plan, decision.requeue_after) == (Plan((), None), pytest.approx(40.05))
    kept_bare(world, A)
    assert [step.ref.name for step in decision_and_plan_of(world)[1].steps] == [A, "web"]
    put_eviction_records(world, eviction_record("Pod-web", "", ago=20))
    assert decision_and_plan_of(world)[1] == Plan((), None)


def test_an_eviction_has_its_source_and_all_targets() -> None:
    """The first target is the node whose room is reserved."""
    world = descheduling_world(*(f"name: lower-{letter}" for letter in "abc"), cpus=(("2",), ("4",), ("4",)))
    put_waiting_pods(world, requesting_pod())
    _, eviction = decision_and_plan_of(world)[1].steps
    assert eviction.moving == PodMove(A, (B, "lower-c"), "lower-b-n1")
    assert eviction.cause == "descheduled"
    assert eviction.reason.endswith("it fits on node lower-b (lower-b-n1) or lower-c")


def test_no_further_pod_is_evicted_until_the_interval_is_over() -> None:
    """Evicted pods need time to be bound again; the reported problem stays."""
    world = descheduling_world(cpus=(("2",), ("64",)))
    put_waiting_pods(world, requesting_pod(), requesting_pod("late"))
    put_eviction_records(world, eviction_record(ago=20))
    world.problems[key_of(A)] = problem = Problem("NoFeasibleCluster", "late: it fits in no other lower cluster")
    decision, (steps, reported) = decision_and_plan_of(world)
    assert (steps, reported) == ((), problem)
    assert decision.requeue_after == pytest.approx(40.05)
    put_eviction_records(world, eviction_record(ago=60))
    assert [step.ref.name for step in decision_and_plan_of(world)[1].steps] == [A, "late", "web"]


def test_a_record_of_the_future_delays_the_next_pass_by_one_interval_only() -> None:
    """The clock may have been set back since the record was written."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod())
    put_eviction_records(world, eviction_record(ago=-86_400))
    assert decision_and_plan_of(world)[0].requeue_after == pytest.approx(60.05)


def test_a_pod_that_fits_no_lower_has_an_event_and_a_problem() -> None:
    """The key is requeued after the interval."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod(cpu="5"))
    decision, (steps, problem) = decision_and_plan_of(world)
    assert [(step.ref.kind, step.reason) for step in steps] == [(EVENT, "NoFeasibleCluster")]
    assert problem is not None
    assert problem.reason == "NoFeasibleCluster"
    assert problem.message.startswith("default/web: it fits in no other lower cluster: lower-b: ")
    assert decision.requeue_after == 60.0


def test_a_problem_names_at_most_five_pods() -> None:
    """The message counts the others, so that a log line stays readable."""
    world = descheduling_world()
    for place in range(7):
        put_waiting_pods(world, requesting_pod(f"web-{place}", spec={"volumes": CLAIMED}))
    problem = decision_and_plan_of(world)[1].problem
    assert problem is not None
    assert problem.message.count("default/web-") == 5
    assert problem.message.endswith("; and 2 more")


def test_a_dry_run_reports_the_moves_and_has_no_steps() -> None:
    """The report has the source and the target."""
    world = descheduling_world(more=DRY)
    put_waiting_pods(world, requesting_pod())
    steps, problem = decision_and_plan_of(world)[1]
    assert not steps
    assert problem is not None
    assert problem == ("DryRun", "dry run, would be evicted: default/web: from lower-a to node lower-b (lower-b-n1)")


def test_a_disabled_descheduler_has_no_steps() -> None:
    """It is disabled by default; an earlier problem still has a key, so that it is cleared."""
    world = descheduling_world(more="")
    put_waiting_pods(world, requesting_pod())
    assert list(DeschedulerRule().keys(world, A)) == []
    assert decision_and_plan_of(world) == (Decision(), Plan((), None))
    world.problems[key_of(A)] = decision_and_plan_of(here_on())[1].problem  # type: ignore[assignment]
    assert list(DeschedulerRule().keys(world, A)) == [key_of(A)]


def here_on() -> World:
    """Return a world in which a pod stays."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod(cpu="5"))
    return world


def test_each_lower_has_one_key() -> None:
    """The limit applies to all pods of a node together."""
    world = descheduling_world()
    found = [key for lower in world.lowers for key in DeschedulerRule().keys(world, lower)]
    assert found == [key_of(A), key_of(B)]
    assert list(sorted_names(found)) == ["", ""]


def test_a_pass_is_repeated_after_the_interval_but_not_within_two_seconds() -> None:
    """It is also repeated soon if the nodes are not synced, because their watch starts with the descheduler."""
    world = descheduling_world(more="descheduler: {enabled: true, interval: 30s}\n")
    assert decision_and_plan_of(world)[0].requeue_after == 30.0
    world.lowers[A].place_nodes.mark_stale()
    assert decision_and_plan_of(world)[0].requeue_after == 2.0
    apply_topology(world, f"name: {A}", f"name: {B}", more="descheduler: {enabled: true, interval: 10ms}\n")
    assert decision_and_plan_of(world)[0].requeue_after == 2.0


def test_a_problem_is_decided_again_when_a_pod_that_it_names_is_deleted() -> None:
    """Otherwise it would be reported for up to an interval; other deleted pods have no effect."""
    world = here_on()
    enqueued: list[object] = []
    route, _, _ = DeschedulerRule().watches()
    pods = world.lowers[A].upper_pods
    put(pods, requesting_pod("other"))
    pods.subscribe(lambda delta: enqueued.extend(route.keys(world, A, delta)))
    world.problems[key_of(A)] = decision_and_plan_of(world)[1].problem  # type: ignore[assignment]
    delete_observed(pods, "other")
    assert not enqueued
    put(pods, requesting_pod(deletionTimestamp="2026-03-01T12:00:00Z"))
    assert enqueued == [key_of(A)]
    delete_observed(pods, "web")
    assert enqueued == [key_of(A), key_of(A)]
    assert decision_and_plan_of(world)[1].problem is None


def test_the_rule_watches_recorded_pods_that_start_to_terminate() -> None:
    """Other pod events are ignored, because a pass runs once in an interval."""
    world = descheduling_world()
    enqueued: list[object] = []
    route, _, _ = DeschedulerRule().watches()
    world.lowers[A].upper_pods.subscribe(lambda delta: enqueued.extend(route.keys(world, A, delta)))
    pod = requesting_pod()
    put(world.lowers[A].upper_pods, pod)
    put(world.lowers[A].upper_pods, requesting_pod("other", deletionTimestamp="2026-03-01T12:00:00Z"))
    assert not enqueued, "that pod was not evicted"
    put_eviction_records(world, eviction_record())
    for _ in range(2):
        put(world.lowers[A].upper_pods, requesting_pod(deletionTimestamp="2026-03-01T12:00:00Z"))
    delete_observed(world.lowers[A].upper_pods, "web")
    assert enqueued == [key_of(A)]
    apply_topology(world, f"name: {A}", f"name: {B}", more=ON)
