"""Tests of bare pods in a drained lower cluster: which are evicted, and what is reported of those that stay."""

from typing import Any

import pytest
from deschedulingkit import (
    DRAIN_ONLY,
    A,
    B,
    descheduling_world,
    eviction_records_in,
    foreign_pod,
    owned_by,
    put_foreign_pods,
    requesting_pod,
)
from worldkit import apply_topology, change_as_other_client, decision_and_plan, put, with_managed_fields

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
    """Return a world with running pods in lower-a, which is drained; its node is unschedulable if `closed`."""
    world = descheduling_world(*DRAINED, more=DRAIN_ONLY, cpus=cpus)
    change_as_other_client(world.upper.nodes, A, lambda node: node["spec"].update(unschedulable=closed), "")
    for pod in pods:
        put(world.lowers[A].upper_pods, {**pod, "status": {"phase": "Running"}})
    return world


def bare(name: str, cpu: str = "3", **given: Any) -> Manifest:
    """Create a bare pod."""
    return requesting_pod(name, cpu=cpu, **{"ownerReferences": [], **given})


def steps(world: World) -> tuple[Step, ...]:
    """Return the steps for all pods."""
    return decision_and_plan(DeschedulerRule(), KEY, world)[1].steps


def remaining_problem(world: World) -> Problem:
    """Return the problem about the pods that stay."""
    problem = decision_and_plan(DeschedulerRule(), KEY, world)[1].problem
    assert problem is not None
    return problem


def kept(world: World) -> list[str]:
    """Return the names of the pods whose backups are to be created."""
    names = [step.ref.name for step in steps(world) if step.verb == "create" and step.ref.kind == SECRET]
    return [name.removeprefix("tensile-pod-Pod-") for name in names]


def safe(world: World, name: str, **marks: str) -> None:
    """Store a current backup of a pod of lower-a."""
    pod = world.lowers[A].upper_pods.get("default", name)
    assert pod is not None
    secret = backup(successor_of(pod.manifest(), (A,)), pod, world.owner, "it moves").manifest
    meta = {**secret["metadata"], "uid": "s", "annotations": {**annotations(secret), **marks}}
    put(world.upper.secrets, with_managed_fields({**secret, "metadata": meta}))


def apply_records(world: World) -> list[str]:
    """Apply the record of evictions to the Node, and return the UIDs of the pods that it allows to be evicted."""
    (note,) = [step for step in steps(world) if step.ref.kind.name == "Node"]
    assert note.patch is not None
    annotation = note.patch.body["metadata"]["annotations"][TRIED]
    change_as_other_client(
        world.upper.nodes,
        A,
        lambda node: node["metadata"].setdefault("annotations", {}).update({TRIED: annotation}),
        "",
    )
    return [one.pod for one in eviction_records_in(note.patch)]


def evicted(world: World, name: str) -> bool:
    """Report whether the drain rule evicts the pod."""
    return bool(decision_and_plan(DrainRule(), drain_key(A, "default", name), world)[1].steps)


def test_a_bare_pod_is_backed_up_then_recorded_then_evicted() -> None:
    """Each step waits for the one before, so that a crash leaves either the running pod or its backup."""
    world = drained(bare("one"))
    (step,) = steps(world)
    assert (step.verb, step.ref, step.independent, step.in_plan) == (
        "create",
        backup_ref("default", "Pod-one"),
        True,
        True,
    )
    assert step.reason == "lower cluster lower-a is being drained: it fits on node lower-b (lower-b-n1)"
    assert not evicted(world, "one")
    safe(world, "one")
    assert not evicted(world, "one")
    assert [step.verb for step in steps(world)] == ["patch"], "the drain sends the eviction"
    assert apply_records(world) == ["Pod-one"]
    assert evicted(world, "one")


def test_a_bare_pod_without_a_current_backup_is_not_evicted() -> None:
    """The backup must be equal to the pod, must not be withdrawn, and must contain a pod."""
    world = drained(bare("one"))
    safe(world, "one")
    apply_records(world)
    safe(world, "one", **{WITHDRAWN: "2026-03-01T12:00:00Z"})
    assert not evicted(world, "one")
    safe(world, "one")
    change_as_other_client(world.lowers[A].upper_pods, "one", lambda pod: pod["metadata"].update(labels={"new": "yes"}))
    assert not evicted(world, "one")
    safe(world, "one")
    assert evicted(world, "one")
    change_as_other_client(world.upper.secrets, "tensile-pod-Pod-one", lambda secret: secret.update(data={}))
    assert not evicted(world, "one")


def test_a_backed_up_pod_is_not_evicted_if_its_room_is_used_by_then() -> None:
    """A disruption budget may delay an eviction for hours, so each pass checks for room again."""
    world = drained(bare("one"), cpus=(("8",), ("3",)))
    safe(world, "one")
    put_foreign_pods(world, B, foreign_pod("theirs", "lower-b-n1", "1"))
    assert [step.reason for step in steps(world)] == ["NoFeasibleCluster"]
    assert remaining_problem(world).message.startswith(
        "pods block the drain: default/one: it fits in no other lower cluster: "
    )


def test_bare_pods_of_one_drain_do_not_count_on_the_same_room() -> None:
    """A pod that fits nowhere else stays and is reported; the descheduler's limit does not apply to a drain."""
    world = drained(bare("one"), bare("two"), bare("three", cpu="2"))
    assert kept(world) == ["one", "three"]
    assert remaining_problem(world).message.startswith(
        "pods block the drain: default/two: it fits in no other lower cluster: "
    )
    many = drained(*(bare(f"web-{place}", cpu="1") for place in range(12)), cpus=(("8",), ("64",)))
    for place in range(12):
        safe(many, f"web-{place}")
    assert len(apply_records(many)) == 12


def test_a_backup_name_conflict_does_not_block_other_pods() -> None:
    """A user who may create Secrets in one namespace must not affect pods of others; the conflict is reported."""
    world = drained(bare("one", cpu="1"), bare("two", cpu="1"))
    put(world.upper.secrets, {"metadata": {"name": "tensile-pod-Pod-one", "namespace": "default", "uid": "x"}})
    assert kept(world) == ["two"]
    assert remaining_problem(world).reason == "NameConflict"
    assert not evicted(world, "one")


def test_owned_terminating_and_terminated_pods_are_not_backed_up() -> None:
    """They need no replacement from a backup."""
    world = drained(requesting_pod("owned", ownerReferences=owned_by("x")), bare("ending", deletionTimestamp="x"))
    put(world.lowers[A].upper_pods, {**bare("done"), "status": {"phase": "Succeeded"}})
    assert decision_and_plan(DeschedulerRule(), KEY, world) == (Decision(requeue_after=60.0), Plan((), None))


def odd(spec: Manifest | None = None, **meta: Any) -> Manifest:
    """Create a bare pod with an unusual request that an apiserver accepts."""
    pod = bare("odd", cpu="1", **meta)
    (container,) = pod["spec"]["containers"]
    pod_spec = {**container, **(spec or {})}
    return {**pod, "spec": {**pod["spec"], "containers": [pod_spec]}}


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
def test_a_pod_with_unusual_fields_does_not_block_other_pods(strange: Manifest, leaves: bool) -> None:  # noqa: FBT001
    """An apiserver accepts each of these pods; otherwise one such pod could keep all others on the node."""
    renamed = {"name": "owned", "uid": "Pod-owned", "ownerReferences": owned_by("rs")}
    owned = {**strange, "metadata": {**strange["metadata"], **renamed}}
    world = drained(bare("one"), strange, owned, cpus=(("8",), ("16", "2")))
    assert kept(world) == (["odd", "one"] if leaves else ["one"])


def test_bare_pods_that_are_bound_to_their_lower_stay_and_are_reported() -> None:
    """They have volumes there, or are static pods, or their namespace is not mirrored."""
    claims = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    static = bare("static", annotations={"kubernetes.io/config.mirror": "x"})
    world = drained(bare("claims", spec={"volumes": claims}), static, bare("agent", namespace="kube-system"))
    assert steps(world) == ()
    problem = remaining_problem(world)
    assert problem.reason == "UsesPersistentVolumeClaims"
    for message in (
        "default/claims: not moved: its claims are bound to volumes of its lower cluster",
        "default/static: not moved: static pod, cannot be recreated elsewhere",
        "kube-system/agent: not moved: pods of its namespace are not mirrored",
    ):
        assert message in problem.message


def test_a_pod_is_not_evicted_while_its_predecessors_backup_exists() -> None:
    """Otherwise two pods would be created with one name."""
    world = drained(bare("one", annotations={"tensile-kube.io/replaces": "old"}))
    put(world.upper.secrets, {"metadata": {"name": "tensile-pod-old", "namespace": "default", "uid": "x"}})
    assert steps(world) == ()
    assert remaining_problem(world).reason == "BackupPending"


def test_no_bare_pod_is_evicted_before_the_cordon_and_the_sync_of_real_nodes() -> None:
    """The replacement could be bound to the same node, and the watch on real nodes starts with the drain."""
    closed, unknown = drained(bare("one"), closed=False), drained(bare("one"))
    unknown.lowers[A].place_nodes.mark_stale()
    for world in (closed, unknown):
        assert decision_and_plan(DeschedulerRule(), KEY, world) == (Decision(requeue_after=2.0), Plan((), None))


def test_the_rule_has_keys_for_drained_lowers_and_reported_problems() -> None:
    """That is so while the descheduler is disabled; a problem is cleared after the drain."""
    world = drained(bare("one"))
    assert [list(DeschedulerRule().keys(world, lower)) for lower in (A, B)] == [[KEY], []]
    apply_topology(world, f"name: {A}", f"name: {B}", more=DRAIN_ONLY)
    assert list(DeschedulerRule().keys(world, A)) == []
    world.problems[KEY] = Problem("FitsNowhereElse", "x")
    assert list(DeschedulerRule().keys(world, A)) == [KEY]
    assert decision_and_plan(DeschedulerRule(), KEY, world)[1].problem is None


def test_the_rule_watches_backups_and_the_cordon_of_its_node() -> None:
    """Other changes of a Node are frequent, and are ignored."""
    world = drained(bare("one"), closed=False)
    enqueued: list[object] = []
    _, secrets, nodes = DeschedulerRule().watches()
    world.upper.secrets.subscribe(lambda delta: enqueued.extend(secrets.keys(world, A, delta)))
    world.upper.nodes.subscribe(lambda delta: enqueued.extend(nodes.keys(world, A, delta)))
    put(world.upper.secrets, {"metadata": {"name": "tensile-pod-another", "namespace": "default", "uid": "x"}})
    for node in (A, B):
        change_as_other_client(world.upper.nodes, node, lambda one: one["spec"].update(podCIDR="10.1.0.0/16"), "")
    assert enqueued == []
    safe(world, "one")
    assert enqueued == [KEY]
    change_as_other_client(world.upper.nodes, A, lambda node: node["spec"].update(unschedulable=True), "")
    assert enqueued == [KEY, KEY]
