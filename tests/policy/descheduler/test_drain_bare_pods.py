"""Which pods without a controller leave a lower cluster that is drained, and what is said of those that stay."""

from typing import Any

import pytest
from deschedulingkit import DRAIN_ONLY, A, B, crowd, ground, notes_in, owned_by, seeker, stranger
from worldkit import changed, decided, put, reload, written

from tensile.names import KEPT_OFF, TRIED, WITHDRAWN
from tensile.objects import SECRET, Manifest, annotations
from tensile.policy.descheduler.replacement import backup, backup_ref, successor_of
from tensile.policy.descheduler.rule import DeschedulerRule, DrainRule, drain_key, key_of
from tensile.reconcile.desired import Decision
from tensile.reconcile.plan import Plan, Step
from tensile.reconcile.world import Problem, World

KEY = key_of(A)
DRAINED = (f"name: {A}, maintenance: drain", f"name: {B}")


def drained(*pods: Manifest, cpus: tuple[tuple[str, ...], ...] = (("8",), ("4", "2")), closed: bool = True) -> World:
    """Make a world in which pods run in lower-a, which is drained; its node takes no new ones where it is closed."""
    here = ground(*DRAINED, more=DRAIN_ONLY, cpus=cpus)
    changed(here.upper.nodes, A, lambda node: node["spec"].update(unschedulable=closed), "")
    for pod in pods:
        put(here.lowers[A].upper_pods, {**pod, "status": {"phase": "Running"}})
    return here


def bare(name: str, cpu: str = "3", **given: Any) -> Manifest:
    """Make a pod without a controller."""
    return seeker(name, cpu=cpu, **{"ownerReferences": [], **given})


def steps(here: World) -> tuple[Step, ...]:
    """Return what is to be done about them all."""
    return decided(DeschedulerRule(), KEY, here)[1].steps


def said(here: World) -> Problem:
    """Return what is said of those that stay."""
    problem = decided(DeschedulerRule(), KEY, here)[1].problem
    assert problem is not None
    return problem


def kept(here: World) -> list[str]:
    """Return the names of the backups that are to be written."""
    names = [step.ref.name for step in steps(here) if step.verb == "create" and step.ref.kind == SECRET]
    return [name.removeprefix("tensile-pod-Pod-") for name in names]


def safe(here: World, name: str, **marks: str) -> None:
    """Let a pod of lower-a be backed up as it is."""
    pod = here.lowers[A].upper_pods.get("default", name)
    assert pod is not None
    secret = backup(successor_of(pod.manifest(), (A,)), pod, here.owner, "it moves").manifest
    meta = {**secret["metadata"], "uid": "s", "annotations": {**annotations(secret), **marks}}
    put(here.upper.secrets, written({**secret, "metadata": meta}))


def tell(here: World) -> list[str]:
    """Carry out the note on the Node; return the UIDs of the pods that it tells to go."""
    (note,) = [step for step in steps(here) if step.ref.kind.name == "Node"]
    assert note.patch is not None
    told = note.patch.body["metadata"]["annotations"][TRIED]
    changed(here.upper.nodes, A, lambda node: node["metadata"].setdefault("annotations", {}).update({TRIED: told}), "")
    return [one.pod for one in notes_in(note.patch)]


def evicted(here: World, name: str) -> bool:
    """Report whether the rule of the drain has the pod leave."""
    return bool(decided(DrainRule(), drain_key(A, "default", name), here)[1].steps)


def test_a_pod_that_has_a_place_elsewhere_is_backed_up_then_told_then_evicted() -> None:
    """Each only once the step before is done, so that a crash in between leaves a pod that runs or a backup of it."""
    here = drained(bare("one"))
    (step,) = steps(here)
    assert (step.verb, step.ref, step.independent, step.in_plan) == (
        "create",
        backup_ref("default", "Pod-one"),
        True,
        True,
    )
    assert step.reason == "lower cluster lower-a is being drained: it fits on node lower-b (lower-b-n1)"
    assert not evicted(here, "one")
    safe(here, "one")
    assert not evicted(here, "one")
    assert [step.verb for step in steps(here)] == ["patch"], "the drain sends the eviction"
    assert tell(here) == ["Pod-one"]
    assert evicted(here, "one")


def test_what_changes_before_it_has_left_does_not_leave() -> None:
    """What would be created is the old one; nor does a pod leave whose backup is withdrawn, or has no pod."""
    here = drained(bare("one"))
    safe(here, "one")
    tell(here)
    safe(here, "one", **{WITHDRAWN: "2026-03-01T12:00:00Z"})
    assert not evicted(here, "one")
    safe(here, "one")
    changed(here.lowers[A].upper_pods, "one", lambda pod: pod["metadata"].update(labels={"new": "yes"}))
    assert not evicted(here, "one")
    safe(here, "one")
    assert evicted(here, "one")
    changed(here.upper.secrets, "tensile-pod-Pod-one", lambda secret: secret.update(data={}))
    assert not evicted(here, "one")


def test_what_is_backed_up_for_room_that_is_gone_by_now_does_not_leave() -> None:
    """A budget may hold an eviction up for hours: room is looked for again in every interval."""
    here = drained(bare("one"), cpus=(("8",), ("3",)))
    safe(here, "one")
    crowd(here, B, stranger("theirs", "lower-b-n1", "1"))
    assert [step.reason for step in steps(here)] == ["NoFeasibleCluster"]
    assert said(here).message.startswith("pods block the drain: default/one: it fits in no other lower cluster: ")


def test_pods_that_leave_together_do_not_count_on_the_same_room() -> None:
    """The one that fits nowhere else stays, and is reported; however many leave, no limit of the descheduler holds."""
    here = drained(bare("one"), bare("two"), bare("three", cpu="2"))
    assert kept(here) == ["one", "three"]
    assert said(here).message.startswith("pods block the drain: default/two: it fits in no other lower cluster: ")
    many = drained(*(bare(f"web-{place}", cpu="1") for place in range(12)), cpus=(("8",), ("64",)))
    for place in range(12):
        safe(many, f"web-{place}")
    assert len(tell(many)) == 12


def test_a_secret_of_somebody_else_in_the_place_of_ours_holds_up_nobody_else() -> None:
    """Who may make Secrets in one namespace says nothing of the pods of another; what was to be said still is."""
    here = drained(bare("one", cpu="1"), bare("two", cpu="1"))
    put(here.upper.secrets, {"metadata": {"name": "tensile-pod-Pod-one", "namespace": "default", "uid": "x"}})
    assert kept(here) == ["two"]
    assert said(here).reason == "NameConflict"
    assert not evicted(here, "one")


def test_those_that_a_controller_would_create_again_are_not_backed_up() -> None:
    """Nor those that have ended, or are ending."""
    here = drained(seeker("owned", ownerReferences=owned_by("x")), bare("ending", deletionTimestamp="x"))
    put(here.lowers[A].upper_pods, {**bare("done"), "status": {"phase": "Succeeded"}})
    assert decided(DeschedulerRule(), KEY, here) == (Decision(requeue_after=60.0), Plan((), None))


def odd(spec: Manifest | None = None, **meta: Any) -> Manifest:
    """Make a pod without a controller that asks for something that an apiserver takes, and few do."""
    pod = bare("odd", cpu="1", **meta)
    (container,) = pod["spec"]["containers"]
    asked = {**container, **(spec or {})}
    return {**pod, "spec": {**pod["spec"], "containers": [asked]}}


@pytest.mark.parametrize(
    ("strange", "leaves"),
    [
        (odd(annotations={"clusterSelector": '{"x":1e400}'}), True),
        (odd(annotations={"clusterSelector": '{"tolerations":[{"x":' + "[" * 300 + "]" * 300 + "}]}"}), True),
        (odd(annotations={KEPT_OFF: ",,\u0000,"}), True),
        (odd({"ports": [{"containerPort": 80, "hostPort": 80}]}), False),
        (odd({"resources": {"requests": {"memory": "9Ei"}}}), False),
        (odd({"resources": {"requests": {"memory": "0" * 90 + "1"}}}), True),
        (odd(deletionTimestamp="2026-11-23T04:39:20Z", deletionGracePeriodSeconds=2**63 - 1), False),
        (odd(deletionTimestamp="2272-12-30T16:33:13Z", deletionGracePeriodSeconds=99_999_999_999), False),
    ],
)
def test_a_pod_that_is_hard_to_read_holds_up_nobody_else(strange: Manifest, leaves: bool) -> None:  # noqa: FBT001
    """Each is as an apiserver stores it; whoever may make one pod on the node could keep all the others there."""
    renamed = {"name": "owned", "uid": "Pod-owned", "ownerReferences": owned_by("rs")}
    owned = {**strange, "metadata": {**strange["metadata"], **renamed}}
    here = drained(bare("one"), strange, owned, cpus=(("8",), ("16", "2")))
    assert kept(here) == (["odd", "one"] if leaves else ["one"])


def test_what_is_tied_to_its_lower_stays_and_it_is_said() -> None:
    """A volume of that cluster; a file on its node; a namespace that is not mirrored."""
    claims = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    static = bare("static", annotations={"kubernetes.io/config.mirror": "x"})
    here = drained(bare("claims", spec={"volumes": claims}), static, bare("agent", namespace="kube-system"))
    assert steps(here) == ()
    problem = said(here)
    assert problem.reason == "UsesPersistentVolumeClaims"
    for words in (
        "default/claims: not moved: its claims are bound to volumes of its lower cluster",
        "default/static: not moved: static pod, cannot be recreated elsewhere",
        "kube-system/agent: not moved: pods of its namespace are not mirrored",
    ):
        assert words in problem.message


def test_one_whose_predecessor_is_still_backed_up_does_not_leave() -> None:
    """While that Secret is there, two pods would be created under one name."""
    here = drained(bare("one", annotations={"tensile-kube.io/replaces": "old"}))
    put(here.upper.secrets, {"metadata": {"name": "tensile-pod-old", "namespace": "default", "uid": "x"}})
    assert steps(here) == ()
    assert said(here).reason == "BackupPending"


def test_nobody_leaves_before_the_node_takes_no_new_pods_and_real_nodes_are_known() -> None:
    """What is created in its place would come back; following real nodes begins with the drain."""
    closed, unknown = drained(bare("one"), closed=False), drained(bare("one"))
    unknown.lowers[A].place_nodes.mark_stale()
    for here in (closed, unknown):
        assert decided(DeschedulerRule(), KEY, here) == (Decision(requeue_after=2.0), Plan((), None))


def test_the_keys_are_the_lowers_that_are_drained() -> None:
    """Where the descheduler is off; and those of which something is still said."""
    here = drained(bare("one"))
    assert [list(DeschedulerRule().keys(here, lower)) for lower in (A, B)] == [[KEY], []]
    reload(here, f"name: {A}", f"name: {B}", more=DRAIN_ONLY)
    assert list(DeschedulerRule().keys(here, A)) == []
    here.problems[KEY] = Problem("FitsNowhereElse", "x")
    assert list(DeschedulerRule().keys(here, A)) == [KEY]
    assert decided(DeschedulerRule(), KEY, here)[1].problem is None


def test_it_hears_of_backups_and_of_the_cordon() -> None:
    """Not of what else is written to the Node, which is written often."""
    here = drained(bare("one"), closed=False)
    heard: list[object] = []
    _, secrets, nodes = DeschedulerRule().watches()
    here.upper.secrets.subscribe(lambda delta: heard.extend(secrets.keys(here, A, delta)))
    here.upper.nodes.subscribe(lambda delta: heard.extend(nodes.keys(here, A, delta)))
    put(here.upper.secrets, {"metadata": {"name": "tensile-pod-another", "namespace": "default", "uid": "x"}})
    for node in (A, B):
        changed(here.upper.nodes, node, lambda one: one["spec"].update(podCIDR="10.1.0.0/16"), "")
    assert heard == []
    safe(here, "one")
    assert heard == [KEY]
    changed(here.upper.nodes, A, lambda node: node["spec"].update(unschedulable=True), "")
    assert heard == [KEY, KEY]
