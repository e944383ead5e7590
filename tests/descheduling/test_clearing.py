"""Which pods without a controller are kept, to leave a lower cluster that is drained."""

from typing import Any

import pytest
from deschedulingkit import A, B, crowd, ground, owned_by, seeker, stranger
from worldkit import changed, decided, put, reload, written

from tensile.kube.store import Delta
from tensile.names import KEPT_OFF, WITHDRAWN
from tensile.objects import Manifest, annotations
from tensile.policy.descheduler.drain import DrainRule
from tensile.policy.descheduler.drain import key_of as drain_key
from tensile.policy.descheduler.drain_bare_pods import BarePodDrainRule, key_of
from tensile.policy.descheduler.records import kept_in, present, ref_of
from tensile.policy.descheduler.replacement import successor_of
from tensile.reconcile.desired import Decision
from tensile.reconcile.plan import Plan
from tensile.reconcile.world import Problem, World

KEY = key_of(A)
DRAINED = (f"name: {A}, maintenance: drain", f"name: {B}")


def drained(*pods: Manifest, cpus: tuple[tuple[str, ...], ...] = (("8",), ("4", "2")), closed: bool = True) -> World:
    """Make a world in which pods run in lower-a, which is drained; its node takes no new ones where it is closed."""
    here = ground(*DRAINED, more="", cpus=cpus)
    changed(here.upper.nodes, A, lambda node: node["spec"].update(unschedulable=closed), "")
    for pod in pods:
        put(here.lowers[A].upper_pods, {**pod, "status": {"phase": "Running"}})
    return here


def bare(name: str, cpu: str = "3", **given: Any) -> Manifest:
    """Make a pod without a controller."""
    return seeker(name, cpu=cpu, **{"ownerReferences": [], **given})


def kept(here: World) -> list[str]:
    """Return the names of those that are to be kept."""
    return [str(kept_pod(step.body)["name"]) for step in decided(BarePodDrainRule(), KEY, here)[1].steps]


def safe(here: World, name: str, *, off: tuple[str, ...] = (), notes: dict[str, str] | None = None) -> None:
    """Let a pod of lower-a be kept as it is, and kept off some nodes."""
    pod = here.lowers[A].upper_pods.get("default", name)
    assert pod is not None
    secret = present(successor_of(pod.manifest(), off), pod, here.owner, "it moves").manifest
    marks = {**annotations(secret), **(notes or {})}
    meta = {**secret["metadata"], "uid": "s", "annotations": marks}
    put(here.upper.secrets, written({**secret, "metadata": meta}))


def evicted(here: World, name: str) -> bool:
    """Report whether the rule of the drain has the pod leave."""
    return bool(decided(DrainRule(), drain_key(A, "default", name), here)[1].steps)


def withdrawn(here: World) -> list[str]:
    """Return the names of the Secrets on which it is to be noted that they go."""
    steps = decided(BarePodDrainRule(), KEY, here)[1].steps
    return [step.ref.name for step in steps if step.patch and WITHDRAWN in annotations(step.patch.body)]


def kept_pod(secret: Manifest | None) -> Manifest:
    """Return the metadata of the pod in a Secret that is to be created."""
    assert secret is not None
    here = ground()
    stored = written({**secret, "metadata": {**secret["metadata"], "uid": "s"}})
    found = kept_in(put(here.upper.secrets, stored), here.owner)
    assert found is not None
    assert found.pod is not None
    meta: Manifest = found.pod["metadata"]
    return meta


def test_a_pod_that_has_a_place_elsewhere_is_kept_first() -> None:
    """It is evicted by the rule of the drain, which sees the Secret; its own node is closed, and not noted."""
    here = drained(bare("one"))
    (step,) = decided(BarePodDrainRule(), KEY, here)[1].steps
    assert (step.verb, step.ref, step.independent, step.in_plan) == ("create", ref_of("default", "Pod-one"), True, True)
    assert step.reason == "lower cluster lower-a is drained, and the pod fits on node lower-b (lower-b-n1)"
    assert KEPT_OFF not in annotations({"metadata": kept_pod(step.body)})


def test_pods_that_leave_together_do_not_count_on_the_same_room() -> None:
    """Nor do they on that of one that is kept already, or bound for there."""
    here = drained(bare("one"), bare("two"), bare("three", cpu="2"))
    assert kept(here) == ["one", "three"]
    problem = decided(BarePodDrainRule(), KEY, here)[1].problem
    assert problem is not None
    assert problem.reason == "FitsNowhereElse"
    assert problem.message.startswith(
        "default/two: it has no controller, and fits in no other lower cluster: lower-b: "
    )
    safe(here, "one")
    assert kept(here) == ["three"]


def test_what_is_kept_has_its_place_before_others() -> None:
    """It is about to go there, whatever its name is."""
    here = drained(bare("one"), bare("two"), cpus=(("8",), ("3",)))
    safe(here, "two")
    assert kept(here) == []


def test_what_changes_while_it_is_kept_is_let_go_of_and_kept_anew() -> None:
    """The pod that is made would be the old one, or could not go where there is room now; it does not leave meanwhile.

    While nobody may rely on the Secret it is not touched: an eviction may be on its way.
    """
    here = drained(bare("one"), cpus=(("8",), ("3",)))
    safe(here, "one")
    assert (withdrawn(here), evicted(here, "one")) == ([], True)
    changed(here.lowers[A].upper_pods, "one", lambda pod: pod["metadata"].update(labels={"new": "yes"}))
    assert (withdrawn(here), evicted(here, "one")) == (["tensile-pod-Pod-one"], False)
    safe(here, "one", off=(B,))
    assert (withdrawn(here), evicted(here, "one")) == (["tensile-pod-Pod-one"], False)
    safe(here, "one", notes={WITHDRAWN: "2026-03-01T12:00:00Z"})
    assert (withdrawn(here), kept(here), evicted(here, "one")) == ([], [], False)
    problem = decided(BarePodDrainRule(), KEY, here)[1].problem
    assert problem is not None
    assert problem.reason == "KeptOtherwise"


def test_a_secret_that_holds_no_pod_is_told_and_goes() -> None:
    """Nothing could be made of it; what it was meant for stands and is kept anew."""
    here = drained(bare("one"))
    safe(here, "one")
    changed(here.upper.secrets, "tensile-pod-Pod-one", lambda secret: secret.update(data={}))
    assert (withdrawn(here), evicted(here, "one")) == (["tensile-pod-Pod-one"], False)
    problem = decided(BarePodDrainRule(), KEY, here)[1].problem
    assert problem is not None
    assert problem.message.startswith("default/one: the Secret that keeps it holds something else")


def test_a_secret_of_somebody_else_in_the_place_of_ours_holds_up_nobody_else() -> None:
    """Who may make Secrets in one namespace says nothing of the pods of another; what was to be told still is."""
    here = drained(bare("one", cpu="1"), bare("two", cpu="1"))
    put(here.upper.secrets, {"metadata": {"name": "tensile-pod-Pod-one", "namespace": "default", "uid": "x"}})
    steps, problem = decided(BarePodDrainRule(), KEY, here)[1]
    assert [step.ref.name for step in steps] == ["tensile-pod-Pod-two"]
    assert problem is not None
    assert problem.reason == "NameConflict"
    put(here.lowers[A].upper_pods, bare("large", cpu="7"))
    steps, problem = decided(BarePodDrainRule(), KEY, here)[1]
    assert [step.ref.name for step in steps] == ["tensile-pod-Pod-two"]
    assert problem is not None
    assert problem.message.startswith("default/large: ")


def test_what_is_kept_for_room_that_is_gone_by_now_does_not_leave() -> None:
    """A budget may hold an eviction up for hours; it is looked at again for as long as the pod stands, and told."""
    here = drained(bare("one"), cpus=(("8",), ("3",)))
    safe(here, "one")
    decision, plan = decided(BarePodDrainRule(), KEY, here)
    assert (plan, decision.requeue_after) == (Plan((), None), 15.0)
    crowd(here, B, stranger("theirs", "lower-b-n1", "1"))
    assert withdrawn(here) == ["tensile-pod-Pod-one"]
    problem = decided(BarePodDrainRule(), KEY, here)[1].problem
    assert problem is not None
    assert problem.reason == "FitsNowhereElse"


def test_those_that_a_controller_would_make_again_are_not_kept() -> None:
    """Nor those that have ended, or are ending."""
    here = drained(seeker("owned", ownerReferences=owned_by("x")), bare("ending", deletionTimestamp="x"))
    put(here.lowers[A].upper_pods, {**bare("done"), "status": {"phase": "Succeeded"}})
    assert decided(BarePodDrainRule(), KEY, here) == (Decision(), Plan((), None))


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
    """A volume of that cluster; a file on its node."""
    claims = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    static = bare("static", annotations={"kubernetes.io/config.mirror": "x"})
    here = drained(bare("claims", spec={"volumes": claims}), static)
    steps, problem = decided(BarePodDrainRule(), KEY, here)[1]
    assert steps == ()
    assert problem is not None
    assert problem.reason == "UsesClaims"
    assert "default/claims: its claims are of the lower" in problem.message
    assert "default/static: a file on its node" in problem.message


def test_what_is_not_mirrored_is_left_alone() -> None:
    """It runs nowhere, and is for whoever made it."""
    here = drained(bare("agent", namespace="kube-system"))
    steps, problem = decided(BarePodDrainRule(), KEY, here)[1]
    assert steps == ()
    assert problem is not None
    assert problem.reason == "NamespaceExcluded"


def test_nobody_is_kept_before_the_node_takes_no_new_pods() -> None:
    """What is made in its place would come back to it."""
    assert kept(drained(bare("one"), closed=False)) == []


def test_nobody_is_kept_before_the_others_are_known() -> None:
    """Following real nodes begins with the drain; a lower that does not answer is not waited for."""
    here = drained(bare("one"))
    here.lowers[B].place_nodes.mark_stale()
    decision, plan = decided(BarePodDrainRule(), KEY, here)
    assert (plan, decision.requeue_after) == (Plan((), None), 1.0)
    here.lowers[B].unreachable_seconds = 60.0
    problem = decided(BarePodDrainRule(), KEY, here)[1].problem
    assert problem is not None
    assert problem.message.endswith("there is no other")


def test_room_is_looked_for_again() -> None:
    """Nobody tells of it."""
    assert decided(BarePodDrainRule(), KEY, drained(bare("one", cpu="5")))[0].requeue_after == 15.0


def test_the_keys_are_the_lowers_that_are_drained() -> None:
    """And those of which something is still said."""
    here = drained(bare("one"))
    assert [list(BarePodDrainRule().keys(here, lower)) for lower in (A, B)] == [[KEY], []]
    reload(here, f"name: {A}", f"name: {B}")
    assert list(BarePodDrainRule().keys(here, A)) == []
    here.problems[KEY] = Problem("FitsNowhereElse", "x")
    assert list(BarePodDrainRule().keys(here, A)) == [KEY]
    assert decided(BarePodDrainRule(), KEY, here)[1].problem is None


def test_it_hears_of_pods_that_come_and_go_and_of_nodes() -> None:
    """What others wrote to a pod says nothing of where it fits; of what may make room it hears a little later."""
    here = drained()
    heard: list[object] = []
    pods, nodes, room = BarePodDrainRule().watches()
    assert (nodes.delay, room.delay) == (0.0, 5.0)
    entry = here.upper.nodes.get("", B)
    assert entry is not None
    assert [list(room.keys(here, lower, Delta(None, entry))) for lower in (A, B)] == [[KEY], []]
    here.lowers[A].upper_pods.subscribe(lambda delta: heard.extend(pods.keys(here, A, delta)))
    here.upper.nodes.subscribe(lambda delta: heard.extend(nodes.keys(here, A, delta)))
    for _ in range(2):
        put(here.lowers[A].upper_pods, bare("one"))
    assert heard == [KEY]
    for node in (A, B):
        changed(here.upper.nodes, node, lambda one: one["spec"].update(podCIDR="10.1.0.0/16"), "")
    assert heard == [KEY, KEY]
