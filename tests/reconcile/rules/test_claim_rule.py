"""Tests of lower claims: created once, updated, never created again, and deleted only if they cannot hold data."""

from typing import Any

import pytest
from rulekit import RuleUnderTest
from storagekit import (
    KEY,
    RULE,
    USES,
    make_claim,
    make_lower_claim,
    make_placeholder,
    only_step,
    plan_of,
    problem_reason,
    put_bound_claim,
    put_bound_pod,
    put_lower_claims,
    put_upper_claims,
    put_upper_volumes,
    storage_world,
)
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    change_as_other_client,
    decision_and_plan,
    delete_observed,
    make_lower_pod,
    make_object,
    make_upper_pod,
    put,
    relist_without,
    sorted_names,
    stored_bytes,
    with_owner_marks,
)

from tensile.names import LOWER, LOWER_CLAIM_UID, OWNER, OWNER_NAME, UPPER_UID
from tensile.objects import CLAIM, UPPER, VOLUME, Manifest, Ref, metadata
from tensile.reconcile.plan import Plan
from tensile.reconcile.pods.references import Reference
from tensile.reconcile.rules.claim_rule import lower_claim, missing
from tensile.reconcile.rules.claims import SELECTED_NODE
from tensile.reconcile.world import Problem, World

REF = Ref(A, CLAIM, "default", "data")
ABOVE = Ref(UPPER, CLAIM, "default", "data")
DENIED = Problem("Forbidden", "exceeded quota: full")
_BINDING = make_lower_claim(make_claim())
DATA = [
    make_lower_claim(make_claim(), "1Gi"),
    make_lower_claim(make_claim(), phase="Lost"),
    {
        **_BINDING,
        "metadata": _BINDING["metadata"]
        | {"annotations": {**_BINDING["metadata"]["annotations"], "pv.kubernetes.io/bound-by-controller": "yes"}},
        "spec": {**_BINDING["spec"], "volumeName": "v"},
    },
]
DATA_IDS = ["bound", "lost its volume", "about to be bound"]
"""Lower claims that have, had or will soon have a volume."""


def test_a_claim_is_created_in_the_lower_of_its_selected_node() -> None:
    """It has the lower's class and our marks, but no metadata that the upper cluster's controllers added."""
    world = storage_world()
    notes = {"note": "kept", "pv.kubernetes.io/bind-completed": "yes", "kubectl.kubernetes.io/last-applied": "{}"}
    put_upper_claims(world, make_claim(node=A, labels={"app": "db"}, annotations=notes, finalizers=["x"]))
    step = only_step(world)
    assert (step.verb, step.ref) == ("create", REF)
    assert step.body is not None
    assert step.body["metadata"] == {
        "name": "data",
        "namespace": "default",
        "labels": {"app": "db", OWNER: OWNER_HERE.mark},
        "annotations": {"note": "kept", OWNER_NAME: "demo", UPPER_UID: "claim-data"},
    }
    assert step.body["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "disk",
    }
    assert plan_of(world, KEY._replace(lower=B)) == Plan(())


@pytest.mark.parametrize(
    "field", ["selector", "volumeMode", "dataSource", "dataSourceRef", "volumeAttributesClassName"]
)
def test_all_requests_of_a_claim_are_copied(field: str) -> None:
    """The volume name is not copied, because the lower volume is another one.

    A claim without a class gets the lower's default.
    """
    upper_claim = make_claim(volume="pvc-1")
    upper_claim["spec"] |= {field: "asked"}
    made = lower_claim(upper_claim, OWNER_HERE, "default", None)
    assert made["spec"][field] == "asked"
    assert made["spec"].keys().isdisjoint({"volumeName", "storageClassName"})


def test_a_claim_without_a_selected_node_is_created_with_its_bound_pod() -> None:
    """An upper scheduler that ignores volumes binds the pod first.

    An annotation records the lower first, for later engines.
    """
    world = storage_world()
    put_upper_claims(world, make_claim())
    assert plan_of(world) == Plan(())
    put_bound_pod(world)
    noted, made = plan_of(world).steps
    assert (noted.verb, noted.ref, noted.uid) == ("patch", ABOVE, "claim-data")
    assert noted.patch is not None
    assert noted.patch.body["metadata"]["annotations"] == {LOWER: A}
    assert {"uid", "resourceVersion"} <= noted.patch.body["metadata"].keys()
    assert (made.verb, made.ref.cluster) == ("create", A)
    put_upper_claims(world, make_claim(annotations={LOWER: A}))
    assert only_step(world).verb == "create"
    assert LOWER not in metadata(only_step(world).body or {})["annotations"]


def test_the_claim_of_an_ephemeral_volume_is_not_mirrored() -> None:
    """The lower cluster creates its own claim for the lower pod."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=A, ownerReferences=[{"kind": "Pod", "name": "web", "controller": True}]))
    assert plan_of(world) == Plan(())


def test_no_claim_is_created_for_a_node_of_another_owner_or_if_it_is_terminating() -> None:
    """Pods of such a node are not ours."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=A, deletionTimestamp="2026-03-01T12:00:00Z"))
    assert plan_of(world) == Plan(())
    put_upper_claims(world, make_claim(node=A, uid="another"))
    delete_observed(world.upper.nodes, A, "")
    put(world.upper.nodes, make_object("Node", A, ""))
    assert plan_of(world) == Plan(())


def test_a_lower_claim_of_another_owner_is_a_conflict() -> None:
    """It is not changed, and the problem is reported."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=A))
    put_lower_claims(
        world,
        {
            **make_lower_claim(make_claim()),
            "metadata": {**make_object("", "data")["metadata"], "labels": {OWNER: OWNER_HERE.mark}},
        },
    )
    assert problem_reason(world) == "NameConflict"


def test_a_denied_claim_is_returned_to_the_scheduler() -> None:
    """An Event has the reason.

    This only happens while no pod is bound, and only because of the response to the last try.
    """
    world = storage_world()
    put_upper_claims(world, make_claim(node=A))
    world.problems[KEY] = DENIED
    event, patch = plan_of(world).steps
    assert event.body is not None
    assert (event.body["reason"], event.body["message"]) == ("ProvisioningFailed", DENIED.message)
    assert [one["path"] for one in patch.operations] == [f"/metadata/annotations/{SELECTED_NODE.replace('/', '~1')}"]
    assert (patch.ref, patch.uid, problem_reason(world)) == (ABOVE, "claim-data", "Forbidden")
    world.problems[KEY] = Problem("ClaimInOtherCluster", "an earlier finding")
    assert only_step(world).verb == "create"


def test_the_selected_node_of_a_bound_claim_is_that_of_its_volume() -> None:
    """Schedulers that ignore volumes need it, and a claim that names a node is not changed."""
    world = storage_world()
    put_bound_claim(world, annotations={"pv.kubernetes.io/bind-completed": "yes"})
    step = only_step(world)
    assert (step.ref, step.uid) == (ABOVE, "claim-data")
    path = f"/metadata/annotations/{SELECTED_NODE.replace('/', '~1')}"
    assert step.operations == ({"op": "add", "path": path, "value": A},)
    put_bound_claim(world, node=A)
    assert plan_of(world) == Plan(())


# Claims with another home.


def test_a_pod_reports_that_its_claim_has_its_volume_in_another_lower() -> None:
    """It depends on no other lower, and a lower without pods of the claim reports no problem."""
    world = storage_world()
    made = put_bound_claim(world, B)
    assert plan_of(world) == Plan(())
    put_bound_pod(world)
    decision, found = decision_and_plan(RULE, KEY, world)
    assert decision.depends_on == ()
    assert found.problem == (
        "ClaimInOtherCluster",
        "claim default/data has its volume in lower cluster lower-b, not in the cluster of its pod",
    )
    put_lower_claims(world, make_lower_claim(made, "1Gi"))
    assert problem_reason(world) == "ClaimInOtherCluster"
    put_lower_claims(world, make_lower_claim(make_claim(uid="earlier"), "1Gi"))
    assert problem_reason(world) == "ClaimInOtherCluster"


def test_a_pod_reports_that_its_claim_waits_for_another_claims_volume() -> None:
    """It also does if a copy already exists in the lower cluster."""
    world = storage_world()
    put_upper_claims(world, make_claim(volume="pvc-other"))
    put_upper_volumes(world, make_placeholder(make_claim("other"), name="pvc-other"))
    put_bound_pod(world)
    assert problem_reason(world) == "ClaimNotBound"
    put_lower_claims(world, make_lower_claim(make_claim(), "1Gi"))
    assert problem_reason(world) == "ClaimNotBound"


def test_a_claim_that_is_selected_for_a_real_node_is_a_problem() -> None:
    """Pods on virtual nodes cannot use its volume."""
    world = storage_world()
    put_upper_claims(world, make_claim(node="real-node"))
    put_bound_pod(world)
    assert plan_of(world).problem == (
        "ClaimInOtherCluster",
        "claim default/data gets its volume on node real-node, not on the node of its pod",
    )


def test_the_copy_of_a_claim_with_a_new_home_is_deleted_if_it_has_no_volume() -> None:
    """No pod can have written to it, but one that a pod mounts may get its volume at any moment."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=B))
    put_lower_claims(world, make_lower_claim(make_claim()))
    step = only_step(world)
    assert (step.verb, step.ref, step.uid) == ("delete", REF, "below-claim-data")
    assert step.version == str(world.lowers[A].more[CLAIM].get("default", "data").version)
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod(spec=USES)))
    assert plan_of(world) == Plan(())


@pytest.mark.parametrize("one", DATA, ids=DATA_IDS)
def test_a_copy_that_may_hold_data_is_kept_whatever_node_the_scheduler_selects(one: Manifest) -> None:
    """A pod may have written data before the upper cluster shows its volume, so no other node can have the claim."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=B))
    put_lower_claims(world, one)
    assert [step for step in plan_of(world).steps if step.ref == REF] == []
    assert plan_of(world, KEY._replace(lower=B)) == Plan(())


def test_a_claim_of_an_excluded_namespace_is_reported_and_not_created() -> None:
    """No pod of the namespace is mirrored, and a lower that is not selected reports no problem."""
    world = storage_world()
    world.topology = world.topology.model_copy(update={"exclude_namespaces": ("default",)})
    put_upper_claims(world, make_claim(node=A))
    assert problem_reason(world) == "NamespaceExcluded"
    assert [(step.ref.kind.name, step.subresource) for step in plan_of(world).steps] == [
        ("PersistentVolumeClaim", "status"),
        ("Event", ""),
    ]
    assert plan_of(world, KEY._replace(lower=B)) == Plan(())
    put_bound_pod(world)
    put_upper_claims(world, make_claim())
    assert plan_of(world) == Plan(())


def test_a_copy_with_a_volume_is_kept_if_its_claim_has_another_home() -> None:
    """It may hold data, but a copy without a volume is deleted."""
    world = storage_world()
    made = put_bound_claim(world, B)
    put_lower_claims(world, make_lower_claim(made, "1Gi"))
    assert plan_of(world) == Plan(())
    put_lower_claims(world, make_lower_claim(made, uid="another"))
    assert only_step(world).verb == "delete"


def test_a_copy_without_a_volume_is_deleted_with_its_last_pod() -> None:
    """The next pod causes its creation again."""
    world = storage_world()
    put_upper_claims(world, make_claim())
    put_lower_claims(world, make_lower_claim(make_claim()))
    put_bound_pod(world)
    assert plan_of(world) == Plan(())
    delete_observed(world.lowers[A].upper_pods, "web")
    assert only_step(world).verb == "delete"


# Copies without an upper claim.


def test_a_copy_without_a_volume_is_deleted_with_its_upper_claim() -> None:
    """The deletion or replacement must be observed: a claim that a list or a read lacks does not suffice."""
    world = storage_world()
    put_upper_claims(world, make_claim())
    put_lower_claims(world, make_lower_claim(make_claim()))
    relist_without(world.upper.more[CLAIM], "data")
    assert plan_of(world) == Plan(())
    put_upper_claims(world, make_claim(uid="second"))
    assert only_step(world).verb == "delete"
    put_upper_claims(world, make_claim())
    world.upper.more[CLAIM].confirm_absent("default", "data")
    assert plan_of(world) == Plan(())
    world.upper.more[CLAIM].remove(stored_bytes(make_claim(), world.upper.more[CLAIM].version + 1))
    assert only_step(world).reason == "the upper claim was deleted before it had a volume"


def test_a_copy_is_kept_if_another_claim_was_deleted_or_a_volume_is_retained() -> None:
    """The other claim had the same name, and a retained volume shows that the data exist."""
    world = storage_world()
    put_lower_claims(world, make_lower_claim(make_claim(uid="first")))
    put_upper_claims(world, make_claim())
    delete_observed(world.upper.more[CLAIM], "data")
    assert plan_of(world) == Plan(())
    put_lower_claims(world, make_lower_claim(make_claim()))
    assert only_step(world).verb == "delete"
    put_upper_volumes(world, make_placeholder(make_claim(), phase="Released", policy="Retain"))
    assert plan_of(world) == Plan(())


@pytest.mark.parametrize("one", DATA, ids=DATA_IDS)
@pytest.mark.parametrize("named", [True, False], ids=["with its placeholder", "without"])
def test_the_claim_rule_never_deletes_a_copy_with_a_volume(*, named: bool, one: Manifest) -> None:
    """Only the reclaim policy of a placeholder can cause its deletion, whatever upper objects are missing."""
    world = storage_world()
    made = make_claim(volume="pvc-claim-data")
    put_upper_claims(world, made)
    put_lower_claims(world, one)
    if named:
        put_upper_volumes(world, make_placeholder(made, phase="Released", policy="Retain"))
    delete_observed(world.upper.more[CLAIM], "data")
    assert plan_of(world) == Plan(())


def test_a_new_claim_waits_while_the_old_copy_is_deleted() -> None:
    """With the policy Delete, its name is free soon."""
    world = storage_world()
    old = make_claim(volume="pvc-claim-data")
    put_lower_claims(world, make_lower_claim(old, "1Gi"))
    put_upper_volumes(world, make_placeholder(old, phase="Released"))
    put_upper_claims(world, make_claim(node=A, uid="second"))
    assert plan_of(world) == Plan(())


def test_a_retained_volume_that_is_bound_again_is_used_by_its_new_claim() -> None:
    """A user bound it to the new claim, so the lower claim is marked again and keeps its data."""
    world = storage_world()
    old, new = make_claim(volume="pvc-claim-data"), make_claim(volume="pvc-claim-data", uid="second")
    put_lower_claims(world, make_lower_claim(old, "1Gi"))
    put_upper_volumes(
        world, make_placeholder(new, name="pvc-claim-data", annotations={LOWER_CLAIM_UID: "below-claim-data"})
    )
    put_upper_claims(world, new)
    step = only_step(world)
    assert step.uid == "below-claim-data"
    assert [(one["path"], one["value"]) for one in step.operations] == [
        ("/metadata/annotations/tensile-kube.io~1upper-uid", "second")
    ]


def test_a_lower_claim_of_another_uid_is_not_used_for_a_retained_volume() -> None:
    """A user created it by hand, but the data are in the claim whose UID the volume names."""
    world = storage_world()
    new = make_claim(volume="pvc-claim-data", uid="second")
    put_lower_claims(world, make_lower_claim(make_claim(), "1Gi", uid="by-hand"))
    put_upper_volumes(
        world, make_placeholder(new, name="pvc-claim-data", annotations={LOWER_CLAIM_UID: "below-claim-data"})
    )
    put_upper_claims(world, new)
    assert problem_reason(world) == "ClaimRetained"


def test_a_copy_with_an_earlier_storage_class_stays_the_copy() -> None:
    """`storageClasses` may change while a claim waits for its volume, but the class of a claim is immutable."""
    world = storage_world()
    made = make_claim(node=A)
    put_upper_claims(world, made)
    earlier = make_lower_claim(made)
    put_lower_claims(world, {**earlier, "spec": {**earlier["spec"], "storageClassName": "slow"}})
    assert plan_of(world) == Plan(())


# Dependencies of pods.


def awaited(world: World, lower: str = A) -> list[str]:
    """Return the keys on which a pod with claim `data` depends."""
    needs = [Reference(CLAIM.name, "data", optional=False), Reference("Secret", "other", optional=False)]
    return list(sorted_names(missing(world, world.lowers[lower], "default", needs)))


def test_a_pod_waits_for_the_copy_of_its_claim() -> None:
    """The copy need not be bound, because a lower cluster creates some volumes only for existing pods."""
    world = storage_world()
    assert awaited(world) == ["default/data"]
    put_upper_claims(world, make_claim())
    put_bound_pod(world)
    assert awaited(world) == ["default/data"]
    put_lower_claims(world, make_lower_claim(make_claim()))
    assert awaited(world) == []
    put_upper_claims(world, make_claim(uid="second"))
    assert awaited(world) == ["default/data"]


def test_a_pod_waits_if_its_claim_has_its_home_in_another_lower() -> None:
    """The copy in its own lower would be an empty volume."""
    world = storage_world()
    made = put_bound_claim(world, B)
    put_lower_claims(world, make_lower_claim(made, "1Gi"))
    assert awaited(world) == ["default/data"]
    assert awaited(world, B) == []


def test_without_the_controller_a_pod_with_a_claim_waits_and_has_a_problem() -> None:
    """A lower claim of that name belongs to another owner, and the message has the remedy."""
    world = storage_world()
    lower = world.lowers[A]
    lower.spec = lower.spec.model_copy(update={"controllers": ()})
    put_upper_claims(world, make_claim(node=A))
    assert (plan_of(world), list(RULE.keys(world, A))) == (Plan(()), [])
    put_bound_pod(world)
    assert awaited(world) == ["default/data"]
    where = f"claim {KEY.namespace}/{KEY.name}"
    message = f"{where}: controller PV is not enabled for lower cluster lower-a: add PV to controllers"
    assert plan_of(world) == Plan((), Problem("ClaimNotMirrored", message))


def test_a_missing_claim_is_a_problem_if_a_pod_needs_it() -> None:
    """Kubernetes reports it in the same way."""
    world = storage_world()
    assert plan_of(world) == Plan(())
    put_bound_pod(world)
    assert plan_of(world).problem == (
        "PersistentVolumeClaimNotFound",
        "PersistentVolumeClaim default/data does not exist in the upper cluster",
    )


CACHES: list[Any] = [("upper", CLAIM), ("upper", VOLUME), ("lower", CLAIM), ("lower", VOLUME)]


@pytest.mark.parametrize(("side", "kind"), CACHES)
def test_nothing_is_decided_from_a_cache_that_is_not_synced(side: str, kind: Any) -> None:
    """An object that it lacks may exist."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=A))
    assert only_step(world).verb == "create"
    cache = (world.upper if side == "upper" else world.lowers[A]).more[kind]
    cache.mark_stale()
    assert plan_of(world) == Plan(())


def test_a_copy_of_another_owner_is_not_deleted() -> None:
    """Its upper claim is missing, but that does not matter."""
    world = storage_world()
    put_lower_claims(world, with_owner_marks(make_lower_claim(make_claim()), "claim-data", STRANGER))
    assert plan_of(world) == Plan(())


# Keys that changes enqueue.

heard = RuleUnderTest(RULE, KEY).affected_keys


def test_every_used_selected_or_copied_claim_has_one_key() -> None:
    """A claim with only an annotation for the lower has a key too, because the annotation must be removed."""
    world = storage_world()
    put_upper_claims(
        world,
        make_claim("chosen", node=A),
        make_claim("idle"),
        make_claim(),
        make_claim("noted", annotations={LOWER: A}),
    )
    put_bound_pod(world)
    put_lower_claims(world, make_lower_claim(make_claim()), make_lower_claim(make_claim("left")))
    assert list(sorted_names(RULE.keys(world, A))) == [
        "default/chosen",
        "default/data",
        "default/left",
        "default/noted",
    ]
    assert list(RULE.keys(world, B)) == []


def test_a_change_of_an_upper_claim_enqueues_the_key_of_each_lower_involved() -> None:
    """This includes the lower whose node was selected before."""
    world = storage_world()
    before, after = put_upper_claims(world, make_claim(node=A)), put_upper_claims(world, make_claim(node=B))
    assert heard(world, "upper.PersistentVolumeClaim", before, after) == ["default/data"]
    assert heard(world, "upper.PersistentVolumeClaim", before, after, B) == ["default/data"]
    assert heard(world, "upper.PersistentVolumeClaim", after, after) == []
    put_bound_pod(world)
    assert heard(world, "upper.PersistentVolumeClaim", after, after) == ["default/data"]


def test_a_node_that_becomes_ours_enqueues_the_keys_of_all_its_claims() -> None:
    """No claim was created without it."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=A))
    node = world.upper.nodes.get("", A)
    assert heard(world, "upper.nodes", None, node) == ["default/data"]
    assert heard(world, "upper.nodes", node, node) == []


def test_a_change_of_an_upper_volume_enqueues_the_key_of_its_claim() -> None:
    """The volume determines the home of the claim."""
    world = storage_world()
    made = put_bound_claim(world)
    entry = world.upper.more[VOLUME].get("", "pvc-claim-data")
    assert heard(world, "upper.PersistentVolume", None, entry) == ["default/data"]
    assert heard(world, "upper.PersistentVolume", None, entry, B) == []
    put_bound_pod(world, lower=B)
    assert heard(world, "upper.PersistentVolume", entry, None, B) == ["default/data"]
    assert made["metadata"]["name"] == "data"


def test_a_pod_that_begins_or_stops_using_a_claim_enqueues_its_key() -> None:
    """Other changes of a pod do not, except for its end."""
    world = storage_world()
    pod = put_bound_pod(world)
    ended = change_as_other_client(world.lowers[A].upper_pods, "web", _end)
    assert heard(world, "upper_pods", None, pod) == heard(world, "upper_pods", pod, None) == ["default/data"]
    assert heard(world, "upper_pods", pod, pod) == []
    assert heard(world, "upper_pods", pod, ended) == ["default/data"]
    assert heard(world, "pods", pod, None) == ["default/data"]
    assert heard(world, "pods", None, pod) == []


def _end(pod: Manifest) -> None:
    pod["status"]["phase"] = "Succeeded"


def test_a_change_of_a_lower_claim_enqueues_its_key() -> None:
    """Its creation and its deletion are watched."""
    world = storage_world()
    entry = put_lower_claims(world, make_lower_claim(make_claim()))
    assert heard(world, "PersistentVolumeClaim", entry, None) == ["default/data"]
