"""What the descheduler writes, in which order, and what it says."""

from base64 import b64decode

import orjson
import pytest
from deschedulingkit import NOW, ON, A, B, ground, left, noted, notes_in, seeker, wait
from worldkit import changed, decided, drop, names, put, reload, written

from tensile.names import WITHDRAWN
from tensile.objects import EVENT, NODE, POD, UPPER, Ref, annotations
from tensile.policy.descheduler.limits import EvictionRecord
from tensile.policy.descheduler.replacement import backup, backup_ref, nodes_off, successor_of
from tensile.policy.descheduler.rule import DeschedulerRule, key_of
from tensile.reconcile.desired import Decision, PodMove
from tensile.reconcile.plan import Plan, Step
from tensile.reconcile.world import Problem, World

CLAIMED = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
GONE = WITHDRAWN.replace("/", "~1")
DRY = "descheduler: {enabled: true, dryRun: true}\n"


def asked(here: World, lower: str = A) -> tuple[Decision, Plan]:
    """Ask the rule about a lower."""
    return decided(DeschedulerRule(), key_of(lower), here)


def test_the_note_comes_before_the_eviction() -> None:
    """What leaves is counted, whatever comes in between."""
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


def test_the_note_is_written_only_on_the_node_as_it_was_read() -> None:
    """Two engines that see the same do not both let pods go."""
    here = ground()
    wait(here, seeker())
    (note, _) = asked(here)[1].steps
    node = here.upper.nodes.get("", A)
    assert node is not None
    assert note.patch is not None
    meta = note.patch.body["metadata"]
    assert (meta["uid"], meta["resourceVersion"]) == (node.uid, str(node.version))


def test_notes_that_count_are_kept_and_others_go() -> None:
    """So the annotation does not grow."""
    here = ground()
    wait(here, seeker())
    noted(here, left("older", "x", ago=601), left("younger", "y", ago=500), left(ago=100))
    (note, _) = asked(here)[1].steps
    assert [(one.pod, one.at) for one in notes_in(note.patch)][1:] == [("Pod-web", NOW)]
    assert [one.pod for one in notes_in(note.patch)] == ["younger", "Pod-web"]


def test_a_lower_acts_on_its_own_pods_only() -> None:
    """The plan is one, the queues are many."""
    here = ground(cpus=(("2",), ("2",)))
    wait(here, seeker(cpu="1"), seeker("other", node=B, cpu="1"))
    assert [step.ref.name for step in asked(here)[1].steps] == [A, "web"]
    assert [step.ref.name for step in asked(here, B)[1].steps] == [B, "other"]


def test_what_leaves_is_told_once_it_does() -> None:
    """An eviction that was refused is not told as one."""
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


def test_without_the_webhook_no_new_pod_is_said_to_be_kept_off() -> None:
    """Nothing keeps it off a node then."""
    here = ground()
    wait(here, seeker())
    noted(here, left(ago=5))
    put(here.lowers[A].upper_pods, seeker(deletionTimestamp="2026-03-01T12:00:00Z"))
    (told,) = asked(here)[1].steps
    assert told.body is not None
    assert told.body["message"] == "no node of lower cluster lower-a fits: its controller creates a new pod"


def test_before_a_window_opens_what_stays_anyway_is_told() -> None:
    """A drain that only waits for a pod without a controller does not wait for the window."""
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
    """Let a pod without a controller wait in lower-a, kept, and kept off some nodes."""
    pod = seeker(ownerReferences=[])
    wait(here, pod)
    entry = here.lowers[A].upper_pods.get("default", "web")
    assert entry is not None
    secret = backup(successor_of(pod, off), entry, here.owner, "it moves").manifest
    marks = {**annotations(secret), **(notes or {})}
    put(here.upper.secrets, written({**secret, "metadata": {**secret["metadata"], "uid": "s", "annotations": marks}}))


def backed_up_off(step: Step) -> list[str]:
    """Return the nodes that the pod in a backup is kept off, which a step writes."""
    (data,) = (one["value"] for one in step.operations if one["path"] == "/data/pod.json")
    return nodes_off(orjson.loads(b64decode(data)))


def test_a_pod_leaves_only_for_where_its_backup_may_go() -> None:
    """Room may have come elsewhere since it was written, and gone where it was; then it is brought up to date."""
    here = ground(*(f"name: lower-{letter}" for letter in "abc"), cpus=(("2",), ("4",), ("4",)))
    kept_bare(here, A)
    assert [step.verb for step in asked(here)[1].steps] == ["patch", "delete"]
    kept_bare(here, A, "lower-c")
    assert [step.verb for step in asked(here)[1].steps] == ["patch", "delete"], "it goes to lower-b"
    for off in ((A, B), ()):
        kept_bare(here, *off)
        (step,) = asked(here)[1].steps
        assert (step.verb, step.ref, backed_up_off(step)) == ("patch", backup_ref("default", "Pod-web"), [A])


def test_a_pod_that_is_another_by_now_does_not_leave() -> None:
    """What is created would be as it was: the backup is brought up to date, and a withdrawal of it taken back."""
    here = ground()
    kept_bare(here, A)
    changed(here.lowers[A].upper_pods, "web", lambda pod: pod["spec"]["containers"][0].update(image="app:2"))
    (step,) = asked(here)[1].steps
    assert (step.verb, step.ref) == ("patch", backup_ref("default", "Pod-web"))
    kept_bare(here, A, notes={WITHDRAWN: "2026-03-01T12:00:00Z"})
    (step,) = asked(here)[1].steps
    assert [(one["op"], one["path"]) for one in step.operations] == [("remove", f"/metadata/annotations/{GONE}")]


def test_between_two_passes_only_what_is_backed_up_by_now_is_looked_at() -> None:
    """A pass looks at every node, and pods may begin to end by the thousand; whom the last one told does not count."""
    here = ground(cpus=(("2",), ("64",)))
    wait(here, seeker("large", cpu="65"))
    noted(here, left("gone", "x", ago=20))
    decision, plan = asked(here)
    assert (plan, decision.requeue_after) == (Plan((), None), pytest.approx(40.05))
    kept_bare(here, A)
    assert [step.ref.name for step in asked(here)[1].steps] == [A, "web"]
    noted(here, left("Pod-web", "", ago=20))
    assert asked(here)[1] == Plan((), None)


def test_the_plan_says_where_from_and_where_to() -> None:
    """All nodes that will do, the one first on which room was counted."""
    here = ground(*(f"name: lower-{letter}" for letter in "abc"), cpus=(("2",), ("4",), ("4",)))
    wait(here, seeker())
    _, eviction = asked(here)[1].steps
    assert eviction.moving == PodMove(A, (B, "lower-c"), "lower-b-n1")
    assert eviction.cause == "descheduled"
    assert eviction.reason.endswith("it fits on node lower-b (lower-b-n1) or lower-c")


def test_no_more_leave_until_the_interval_is_over() -> None:
    """Those that left have to come somewhere first; what was said of the others stays said."""
    here = ground(cpus=(("2",), ("64",)))
    wait(here, seeker(), seeker("late"))
    noted(here, left(ago=20))
    here.problems[key_of(A)] = problem = Problem("NoFeasibleCluster", "late: it fits in no other lower cluster")
    decision, (steps, told) = asked(here)
    assert (steps, told) == ((), problem)
    assert decision.requeue_after == pytest.approx(40.05)
    noted(here, left(ago=60))
    assert [step.ref.name for step in asked(here)[1].steps] == [A, "late", "web"]


def test_a_clock_that_was_put_back_holds_nobody_up_for_long() -> None:
    """A note of tomorrow counts for one interval."""
    here = ground()
    wait(here, seeker())
    noted(here, left(ago=-86_400))
    assert asked(here)[0].requeue_after == pytest.approx(60.05)


def test_a_deadlock_is_told_in_an_event_and_as_a_problem() -> None:
    """The event has the same words whatever the numbers are, so it is one."""
    here = ground()
    wait(here, seeker(cpu="5"))
    decision, (steps, problem) = asked(here)
    assert [(step.ref.kind, step.reason) for step in steps] == [(EVENT, "NoFeasibleCluster")]
    assert problem is not None
    assert problem.reason == "NoFeasibleCluster"
    assert problem.message.startswith("default/web: it fits in no other lower cluster: lower-b: ")
    assert decision.requeue_after == 60.0


def test_many_that_stay_are_named_by_a_few() -> None:
    """A log line is read by people."""
    here = ground()
    for place in range(7):
        wait(here, seeker(f"web-{place}", spec={"volumes": CLAIMED}))
    problem = asked(here)[1].problem
    assert problem is not None
    assert problem.message.count("default/web-") == 5
    assert problem.message.endswith("; and 2 more")


def test_a_dry_run_says_it_and_does_nothing() -> None:
    """From where to where."""
    here = ground(more=DRY)
    wait(here, seeker())
    steps, problem = asked(here)[1]
    assert not steps
    assert problem is not None
    assert problem == ("DryRun", "dry run, would be evicted: default/web: from lower-a to node lower-b (lower-b-n1)")


def test_nothing_is_done_while_it_is_off() -> None:
    """It is off unless somebody wants it; what was said before is taken back."""
    here = ground(more="")
    wait(here, seeker())
    assert list(DeschedulerRule().keys(here, A)) == []
    assert asked(here) == (Decision(), Plan((), None))
    here.problems[key_of(A)] = asked(here_on())[1].problem  # type: ignore[assignment]
    assert list(DeschedulerRule().keys(here, A)) == [key_of(A)]


def here_on() -> World:
    """Make a world in which a pod stays."""
    here = ground()
    wait(here, seeker(cpu="5"))
    return here


def test_every_lower_has_one_key() -> None:
    """The limit holds for all pods of a node together."""
    here = ground()
    found = [key for lower in here.lowers for key in DeschedulerRule().keys(here, lower)]
    assert found == [key_of(A), key_of(B)]
    assert list(names(found)) == ["", ""]


def test_it_comes_back_after_the_interval_and_not_faster_than_it_can() -> None:
    """Where nothing is known yet it does so soon: real nodes are followed from when the descheduler is on."""
    here = ground(more="descheduler: {enabled: true, interval: 30s}\n")
    assert asked(here)[0].requeue_after == 30.0
    here.lowers[A].place_nodes.mark_stale()
    assert asked(here)[0].requeue_after == 2.0
    reload(here, f"name: {A}", f"name: {B}", more="descheduler: {enabled: true, interval: 10ms}\n")
    assert asked(here)[0].requeue_after == 2.0


def test_a_problem_is_looked_at_again_when_a_pod_that_it_names_leaves() -> None:
    """It would be reported for up to an interval after its cause is gone; other pods that leave change nothing."""
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


def test_a_pod_that_begins_to_leave_is_heard_of() -> None:
    """And nothing else is: a pass is made once in an interval."""
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
