"""Tests of the descheduler rule: its steps, their order, and what it reports."""

from base64 import b64decode

import orjson
import pytest
from deschedulingkit import NOW, ON, A, B, ground, left, noted, notes_in, seeker, wait
from worldkit import changed, decided, drop, names, put, reload, written

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


def asked(here: World, lower: str = A) -> tuple[Decision, Plan]:
    """Return the rule's decision and plan for a lower cluster."""
    return decided(DeschedulerRule(), key_of(lower), here)


def test_the_record_is_written_before_the_eviction() -> None:
    """Each eviction counts towards the limit, even if the engine crashes in between."""
    here = ground()
    wait(here, seeker())
    decision, (steps, problem) = asked(here)
    note, eviction = steps
    assert (note.verb, note.ref, note.in_plan) == ("patch", Ref(UPPER, NODE, "", A), False)
    assert notes_in(note.patch) == [EvictionRecord("web", "Pod-web", NOW, (A,))]
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
    here = ground()
    wait(here, seeker())
    (note, _) = asked(here)[1].steps
    node = here.upper.nodes.get("", A)
    assert node is not None
    assert note.patch is not None
    meta = note.patch.body["metadata"]
    assert (meta["uid"], meta["resourceVersion"]) == (node.uid, str(node.version))


def test_records_that_do_not_count_any_more_are_removed() -> None:
    """Otherwise the annotation would grow without a limit."""
    here = ground()
    wait(here, seeker())
    noted(here, left("older", "x", ago=601), left("younger", "y", ago=500), left(ago=100))
    (note, _) = asked(here)[1].steps
    assert [(one.pod, one.at) for one in notes_in(note.patch)][1:] == [("Pod-web", NOW)]
    assert [one.pod for one in notes_in(note.patch)] == ["younger", "Pod-web"]


def test_each_lowers_queue_evicts_only_its_own_pods() -> None:
    """One plan covers all lower clusters, and each has its own queue."""
    here = ground(cpus=(("2",), ("2",)))
    wait(here, seeker(cpu="1"), seeker("other", node=B, cpu="1"))
    assert [step.ref.name for step in asked(here)[1].steps] == [A, "web"]
    assert [step.ref.name for step in asked(here, B)[1].steps] == [B, "other"]


def test_the_rescheduled_event_is_emitted_when_the_pod_terminates() -> None:
    """A refused eviction emits no such event."""
    hook = "webhook: {enabled: true, url: 'https://10.0.0.1:10250'}\n"
    here, labels = ground(more=ON + hook), {"virtual-pod": "true"}
    pod = seeker(labels=labels)
    wait(here, pod)
    noted(here, left(ago=5))
    assert not asked(here)[1].steps
    put(here.lowers[A].upper_pods, seeker(labels=labels, deletionTimestamp="2026-03-01T12:00:00Z"))
    (told,) = asked(here)[1].steps
    assert told.ref.kind == EVENT
    assert told.body is not None
    assert (told.body["reason"], told.body["type"]) == ("Rescheduled", "Normal")
    assert (
        told.body["message"]
        == "no node of lower cluster lower-a fits: new pods of its controller avoid node lower-a for 10m"
    )


def test_the_event_mentions_no_avoided_node_without_the_webhook() -> None:
    """Only the webhook keeps new pods off a node."""
    here = ground()
    wait(here, seeker())
    noted(here, left(ago=5))
    put(here.lowers[A].upper_pods, seeker(deletionTimestamp="2026-03-01T12:00:00Z"))
    (told,) = asked(here)[1].steps
    assert told.body is not None
    assert told.body["message"] == "no node of lower cluster lower-a fits: its controller creates a new pod"


def test_a_drain_of_only_unmovable_pods_does_not_report_a_closed_window() -> None:
    """Its problem is the bare pod; with another pod to move it waits for the window."""
    windows = "windows: [{schedule: '0 2 * * *', duration: 1h}]\n"
    here = ground(f"name: {A}, maintenance: drain", f"name: {B}", more=windows)
    changed(here.upper.nodes, A, lambda node: node["spec"].update(unschedulable=True), "")
    put(here.lowers[A].upper_pods, seeker("bare", ownerReferences=[]))
    problem = asked(here)[0].problem
    assert problem is not None
    assert problem.reason == "NoController"
    put(here.lowers[A].upper_pods, seeker("web"), seeker("bare", ownerReferences=[]))
    problem = asked(here)[0].problem
    assert problem is not None
    assert (problem.reason, problem.message.endswith("pods to move: 1")) == ("OutsideWindow", True)


def kept_bare(here: World, *off: str, notes: dict[str, str] | None = None) -> None:
    """Add a backed-up bare pod that waits in lower-a and avoids some nodes."""
    pod = seeker(ownerReferences=[])
    wait(here, pod)
    entry = here.lowers[A].upper_pods.get("default", "web")
    assert entry is not None
    secret = backup(successor_of(pod, off), entry, here.owner, "it moves").manifest
    marks = {**annotations(secret), **(notes or {})}
    put(here.upper.secrets, written({**secret, "metadata": {**secret["metadata"], "uid": "s", "annotations": marks}}))


def backed_up_off(step: Step) -> list[str]:
    """Return the nodes that the pod in a backup avoids, from the step that writes the backup."""
    (data,) = (one["value"] for one in step.operations if one["path"] == "/data/pod.json")
    return avoided_nodes(orjson.loads(b64decode(data)))


def test_a_pod_is_evicted_only_if_its_backup_may_run_on_a_node_with_room() -> None:
    """Room may have changed since the backup was written, in which case it is updated first."""
    here = ground(*(f"name: lower-{letter}" for letter in "abc"), cpus=(("2",), ("4",), ("4",)))
    kept_bare(here, A)
    assert [step.verb for step in asked(here)[1].steps] == ["patch", "delete"]
    kept_bare(here, A, "lower-c")
    assert [step.verb for step in asked(here)[1].steps] == ["patch", "delete"], "it goes to lower-b"
    for off in ((A, B), ()):
        kept_bare(here, *off)
        (step,) = asked(here)[1].steps
        assert (step.verb, step.ref, backed_up_off(step)) == ("patch", backup_ref("default", "Pod-web"), [A])


def test_a_changed_pod_is_not_evicted_before_its_backup_is_updated() -> None:
    """Otherwise the old state would be created; a withdrawal of the backup is removed too."""
    here = ground()
    kept_bare(here, A)
    changed(here.lowers[A].upper_pods, "web", lambda pod: pod["spec"]["containers"][0].update(image="app:2"))
    (step,) = asked(here)[1].steps
    assert (step.verb, step.ref) == ("patch", backup_ref("default", "Pod-web"))
    kept_bare(here, A, notes={WITHDRAWN: "2026-03-01T12:00:00Z"})
    (step,) = asked(here)[1].steps
    assert [(one["op"], one["path"]) for one in step.operations] == [("remove", f"/metadata/annotations/{GONE}")]


def test_between_two_passes_only_newly_backed_up_pods_are_evicted() -> None:
    """A pass reads every node, so it is not repeated; a pod that is already recorded does not count."""
    here = ground(cpus=(("2",), ("64",)))
    wait(here, seeker("large", cpu="65"))
    noted(here, left("gone", "x", ago=20))
    decision, plan = asked(here)
    assert (plan, decision.requeue_after) == (Plan((), None), pytest.approx(40.05))
    kept_bare(here, A)
    assert [step.ref.name for step in asked(here)[1].steps] == [A, "web"]
    noted(here, left("Pod-web", "", ago=20))
    assert asked(here)[1] == Plan((), None)


def test_an_eviction_has_its_source_and_all_targets() -> None:
    """The first target is the node whose room is reserved."""
    here = ground(*(f"name: lower-{letter}" for letter in "abc"), cpus=(("2",), ("4",), ("4",)))
    wait(here, seeker())
    _, eviction = asked(here)[1].steps
    assert eviction.moving == PodMove(A, (B, "lower-c"), "lower-b-n1")
    assert eviction.cause == "descheduled"
    assert eviction.reason.endswith("it fits on node lower-b (lower-b-n1) or lower-c")


def test_no_further_pod_is_evicted_until_the_interval_is_over() -> None:
    """Evicted pods need time to be bound again; the reported problem stays."""
    here = ground(cpus=(("2",), ("64",)))
    wait(here, seeker(), seeker("late"))
    noted(here, left(ago=20))
    here.problems[key_of(A)] = problem = Problem("NoFeasibleCluster", "late: it fits in no other lower cluster")
    decision, (steps, told) = asked(here)
    assert (steps, told) == ((), problem)
    assert decision.requeue_after == pytest.approx(40.05)
    noted(here, left(ago=60))
    assert [step.ref.name for step in asked(here)[1].steps] == [A, "late", "web"]


def test_a_record_of_the_future_delays_the_next_pass_by_one_interval_only() -> None:
    """The clock may have been set back since the record was written."""
    here = ground()
    wait(here, seeker())
    noted(here, left(ago=-86_400))
    assert asked(here)[0].requeue_after == pytest.approx(60.05)


def test_a_pod_that_fits_no_lower_has_an_event_and_a_problem() -> None:
    """The key is requeued after the interval."""
    here = ground()
    wait(here, seeker(cpu="5"))
    decision, (steps, problem) = asked(here)
    assert [(step.ref.kind, step.reason) for step in steps] == [(EVENT, "NoFeasibleCluster")]
    assert problem is not None
    assert problem.reason == "NoFeasibleCluster"
    assert problem.message.startswith("default/web: it fits in no other lower cluster: lower-b: ")
    assert decision.requeue_after == 60.0


def test_a_problem_names_at_most_five_pods() -> None:
    """The message counts the others, so that a log line stays readable."""
    here = ground()
    for place in range(7):
        wait(here, seeker(f"web-{place}", spec={"volumes": CLAIMED}))
    problem = asked(here)[1].problem
    assert problem is not None
    assert problem.message.count("default/web-") == 5
    assert problem.message.endswith("; and 2 more")


def test_a_dry_run_reports_the_moves_and_has_no_steps() -> None:
    """The report has the source and the target."""
    here = ground(more=DRY)
    wait(here, seeker())
    steps, problem = asked(here)[1]
    assert not steps
    assert problem is not None
    assert problem == ("DryRun", "dry run, would be evicted: default/web: from lower-a to node lower-b (lower-b-n1)")


def test_a_disabled_descheduler_has_no_steps() -> None:
    """It is disabled by default; an earlier problem still has a key, so that it is cleared."""
    here = ground(more="")
    wait(here, seeker())
    assert list(DeschedulerRule().keys(here, A)) == []
    assert asked(here) == (Decision(), Plan((), None))
    here.problems[key_of(A)] = asked(here_on())[1].problem  # type: ignore[assignment]
    assert list(DeschedulerRule().keys(here, A)) == [key_of(A)]


def here_on() -> World:
    """Return a world in which a pod stays."""
    here = ground()
    wait(here, seeker(cpu="5"))
    return here


def test_each_lower_has_one_key() -> None:
    """The limit applies to all pods of a node together."""
    here = ground()
    found = [key for lower in here.lowers for key in DeschedulerRule().keys(here, lower)]
    assert found == [key_of(A), key_of(B)]
    assert list(names(found)) == ["", ""]


def test_a_pass_is_repeated_after_the_interval_but_not_within_two_seconds() -> None:
    """It is also repeated soon if the nodes are not synced, because their watch starts with the descheduler."""
    here = ground(more="descheduler: {enabled: true, interval: 30s}\n")
    assert asked(here)[0].requeue_after == 30.0
    here.lowers[A].place_nodes.mark_stale()
    assert asked(here)[0].requeue_after == 2.0
    reload(here, f"name: {A}", f"name: {B}", more="descheduler: {enabled: true, interval: 10ms}\n")
    assert asked(here)[0].requeue_after == 2.0


def test_a_problem_is_decided_again_when_a_pod_that_it_names_is_deleted() -> None:
    """Otherwise it would be reported for up to an interval; other deleted pods have no effect."""
    here = here_on()
    heard: list[object] = []
    route, _, _ = DeschedulerRule().watches()
    pods = here.lowers[A].upper_pods
    put(pods, seeker("other"))
    pods.subscribe(lambda delta: heard.extend(route.keys(here, A, delta)))
    here.problems[key_of(A)] = asked(here)[1].problem  # type: ignore[assignment]
    drop(pods, "other")
    assert not heard
    put(pods, seeker(deletionTimestamp="2026-03-01T12:00:00Z"))
    assert heard == [key_of(A)]
    drop(pods, "web")
    assert heard == [key_of(A), key_of(A)]
    assert asked(here)[1].problem is None


def test_the_rule_watches_recorded_pods_that_start_to_terminate() -> None:
    """Other pod events are ignored, because a pass runs once in an interval."""
    here = ground()
    heard: list[object] = []
    route, _, _ = DeschedulerRule().watches()
    here.lowers[A].upper_pods.subscribe(lambda delta: heard.extend(route.keys(here, A, delta)))
    pod = seeker()
    put(here.lowers[A].upper_pods, pod)
    put(here.lowers[A].upper_pods, seeker("other", deletionTimestamp="2026-03-01T12:00:00Z"))
    assert not heard, "nobody has told that one to leave"
    noted(here, left())
    for _ in range(2):
        put(here.lowers[A].upper_pods, seeker(deletionTimestamp="2026-03-01T12:00:00Z"))
    drop(here.lowers[A].upper_pods, "web")
    assert heard == [key_of(A)]
    reload(here, f"name: {A}", f"name: {B}", more=ON)
