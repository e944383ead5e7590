"""Tests of lower claims: created once, updated, never created again, and deleted only if they cannot hold data."""

from typing import Any

import pytest
from rulekit import Asked
from storagekit import (
    KEY,
    RULE,
    USES,
    above,
    below,
    bound,
    claim,
    copy,
    ground,
    planned,
    reason,
    settled_claim,
    the_step,
    volume,
    volumes,
)
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    changed,
    decided,
    drop,
    lose,
    marked,
    names,
    put,
    stored,
    thing,
    twin,
    upper_pod,
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
_BINDING = copy(claim())
DATA = [
    copy(claim(), "1Gi"),
    copy(claim(), phase="Lost"),
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
    here = ground()
    notes = {"note": "kept", "pv.kubernetes.io/bind-completed": "yes", "kubectl.kubernetes.io/last-applied": "{}"}
    above(here, claim(node=A, labels={"app": "db"}, annotations=notes, finalizers=["x"]))
    step = the_step(here)
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
    assert planned(here, KEY._replace(lower=B)) == Plan(())


@pytest.mark.parametrize(
    "field", ["selector", "volumeMode", "dataSource", "dataSourceRef", "volumeAttributesClassName"]
)
def test_all_requests_of_a_claim_are_copied(field: str) -> None:
    """The volume name is not copied, because the lower volume is another one.

    A claim without a class gets the lower's default.
    """
    asked = claim(volume="pvc-1")
    asked["spec"] |= {field: "asked"}
    made = lower_claim(asked, OWNER_HERE, "default", None)
    assert made["spec"][field] == "asked"
    assert made["spec"].keys().isdisjoint({"volumeName", "storageClassName"})


def test_a_claim_without_a_selected_node_is_created_with_its_bound_pod() -> None:
    """An upper scheduler that ignores volumes binds the pod first.

    An annotation records the lower first, for later engines.
    """
    here = ground()
    above(here, claim())
    assert planned(here) == Plan(())
    bound(here)
    noted, made = planned(here).steps
    assert (noted.verb, noted.ref, noted.uid) == ("patch", ABOVE, "claim-data")
    assert noted.patch is not None
    assert noted.patch.body["metadata"]["annotations"] == {LOWER: A}
    assert {"uid", "resourceVersion"} <= noted.patch.body["metadata"].keys()
    assert (made.verb, made.ref.cluster) == ("create", A)
    above(here, claim(annotations={LOWER: A}))
    assert the_step(here).verb == "create"
    assert LOWER not in metadata(the_step(here).body or {})["annotations"]


def test_the_claim_of_an_ephemeral_volume_is_not_mirrored() -> None:
    """The lower cluster creates its own claim for the lower pod."""
    here = ground()
    above(here, claim(node=A, ownerReferences=[{"kind": "Pod", "name": "web", "controller": True}]))
    assert planned(here) == Plan(())


def test_no_claim_is_created_for_a_node_of_another_owner_or_if_it_is_terminating() -> None:
    """Pods of such a node are not ours."""
    here = ground()
    above(here, claim(node=A, deletionTimestamp="2026-03-01T12:00:00Z"))
    assert planned(here) == Plan(())
    above(here, claim(node=A, uid="another"))
    drop(here.upper.nodes, A, "")
    put(here.upper.nodes, thing("Node", A, ""))
    assert planned(here) == Plan(())


def test_a_lower_claim_of_another_owner_is_a_conflict() -> None:
    """It is not changed, and the problem is reported."""
    here = ground()
    above(here, claim(node=A))
    below(here, {**copy(claim()), "metadata": {**thing("", "data")["metadata"], "labels": {OWNER: OWNER_HERE.mark}}})
    assert reason(here) == "NameConflict"


def test_a_denied_claim_is_returned_to_the_scheduler() -> None:
    """An Event has the reason.

    This only happens while no pod is bound, and only because of the response to the last try.
    """
    here = ground()
    above(here, claim(node=A))
    here.problems[KEY] = DENIED
    event, patch = planned(here).steps
    assert event.body is not None
    assert (event.body["reason"], event.body["message"]) == ("ProvisioningFailed", DENIED.message)
    assert [one["path"] for one in patch.operations] == [f"/metadata/annotations/{SELECTED_NODE.replace('/', '~1')}"]
    assert (patch.ref, patch.uid, reason(here)) == (ABOVE, "claim-data", "Forbidden")
    here.problems[KEY] = Problem("ClaimInOtherCluster", "an earlier finding")
    assert the_step(here).verb == "create"


def test_the_selected_node_of_a_bound_claim_is_that_of_its_volume() -> None:
    """Schedulers that ignore volumes need it, and a claim that names a node is not changed."""
    here = ground()
    settled_claim(here, annotations={"pv.kubernetes.io/bind-completed": "yes"})
    step = the_step(here)
    assert (step.ref, step.uid) == (ABOVE, "claim-data")
    path = f"/metadata/annotations/{SELECTED_NODE.replace('/', '~1')}"
    assert step.operations == ({"op": "add", "path": path, "value": A},)
    settled_claim(here, node=A)
    assert planned(here) == Plan(())


# Claims with another home.


def test_a_pod_reports_that_its_claim_has_its_volume_in_another_lower() -> None:
    """It depends on no other lower, and a lower without pods of the claim reports no problem."""
    here = ground()
    made = settled_claim(here, B)
    assert planned(here) == Plan(())
    bound(here)
    decision, found = decided(RULE, KEY, here)
    assert decision.depends_on == ()
    assert found.problem == (
        "ClaimInOtherCluster",
        "claim default/data has its volume in lower cluster lower-b, not in the cluster of its pod",
    )
    below(here, copy(made, "1Gi"))
    assert reason(here) == "ClaimInOtherCluster"
    below(here, copy(claim(uid="earlier"), "1Gi"))
    assert reason(here) == "ClaimInOtherCluster"


def test_a_pod_reports_that_its_claim_waits_for_another_claims_volume() -> None:
    """It also does if a copy already exists in the lower cluster."""
    here = ground()
    above(here, claim(volume="pvc-other"))
    volumes(here, volume(claim("other"), name="pvc-other"))
    bound(here)
    assert reason(here) == "ClaimNotBound"
    below(here, copy(claim(), "1Gi"))
    assert reason(here) == "ClaimNotBound"


def test_a_claim_that_is_selected_for_a_real_node_is_a_problem() -> None:
    """Pods on virtual nodes cannot use its volume."""
    here = ground()
    above(here, claim(node="real-node"))
    bound(here)
    assert planned(here).problem == (
        "ClaimInOtherCluster",
        "claim default/data gets its volume on node real-node, not on the node of its pod",
    )


def test_the_copy_of_a_claim_with_a_new_home_is_deleted_if_it_has_no_volume() -> None:
    """No pod can have written to it, but one that a pod mounts may get its volume at any moment."""
    here = ground()
    above(here, claim(node=B))
    below(here, copy(claim()))
    step = the_step(here)
    assert (step.verb, step.ref, step.uid) == ("delete", REF, "below-claim-data")
    assert step.version == str(here.lowers[A].more[CLAIM].get("default", "data").version)
    put(here.lowers[A].pods, twin(upper_pod(spec=USES)))
    assert planned(here) == Plan(())


@pytest.mark.parametrize("one", DATA, ids=DATA_IDS)
def test_a_copy_that_may_hold_data_is_kept_whatever_node_the_scheduler_selects(one: Manifest) -> None:
    """A pod may have written data before the upper cluster shows its volume, so no other node can have the claim."""
    here = ground()
    above(here, claim(node=B))
    below(here, one)
    assert [step for step in planned(here).steps if step.ref == REF] == []
    assert planned(here, KEY._replace(lower=B)) == Plan(())


def test_a_claim_of_an_excluded_namespace_is_reported_and_not_created() -> None:
    """No pod of the namespace is mirrored, and a lower that is not selected reports no problem."""
    here = ground()
    here.topology = here.topology.model_copy(update={"exclude_namespaces": ("default",)})
    above(here, claim(node=A))
    assert reason(here) == "NamespaceExcluded"
    assert [(step.ref.kind.name, step.subresource) for step in planned(here).steps] == [
        ("PersistentVolumeClaim", "status"),
        ("Event", ""),
    ]
    assert planned(here, KEY._replace(lower=B)) == Plan(())
    bound(here)
    above(here, claim())
    assert planned(here) == Plan(())


def test_a_copy_with_a_volume_is_kept_if_its_claim_has_another_home() -> None:
    """It may hold data, but a copy without a volume is deleted."""
    here = ground()
    made = settled_claim(here, B)
    below(here, copy(made, "1Gi"))
    assert planned(here) == Plan(())
    below(here, copy(made, uid="another"))
    assert the_step(here).verb == "delete"


def test_a_copy_without_a_volume_is_deleted_with_its_last_pod() -> None:
    """The next pod causes its creation again."""
    here = ground()
    above(here, claim())
    below(here, copy(claim()))
    bound(here)
    assert planned(here) == Plan(())
    drop(here.lowers[A].upper_pods, "web")
    assert the_step(here).verb == "delete"


# Copies without an upper claim.


def test_a_copy_without_a_volume_is_deleted_with_its_upper_claim() -> None:
    """The deletion or replacement must be observed: a claim that a list or a read lacks does not suffice."""
    here = ground()
    above(here, claim())
    below(here, copy(claim()))
    lose(here.upper.more[CLAIM], "data")
    assert planned(here) == Plan(())
    above(here, claim(uid="second"))
    assert the_step(here).verb == "delete"
    above(here, claim())
    here.upper.more[CLAIM].confirm_absent("default", "data")
    assert planned(here) == Plan(())
    here.upper.more[CLAIM].remove(stored(claim(), here.upper.more[CLAIM].version + 1))
    assert the_step(here).reason == "the upper claim was deleted before it had a volume"


def test_a_copy_is_kept_if_another_claim_was_deleted_or_a_volume_is_retained() -> None:
    """The other claim had the same name, and a retained volume shows that the data exist."""
    here = ground()
    below(here, copy(claim(uid="first")))
    above(here, claim())
    drop(here.upper.more[CLAIM], "data")
    assert planned(here) == Plan(())
    below(here, copy(claim()))
    assert the_step(here).verb == "delete"
    volumes(here, volume(claim(), phase="Released", policy="Retain"))
    assert planned(here) == Plan(())


@pytest.mark.parametrize("one", DATA, ids=DATA_IDS)
@pytest.mark.parametrize("named", [True, False], ids=["with its placeholder", "without"])
def test_the_claim_rule_never_deletes_a_copy_with_a_volume(*, named: bool, one: Manifest) -> None:
    """Only the reclaim policy of a placeholder can cause its deletion, whatever upper objects are missing."""
    here = ground()
    made = claim(volume="pvc-claim-data")
    above(here, made)
    below(here, one)
    if named:
        volumes(here, volume(made, phase="Released", policy="Retain"))
    drop(here.upper.more[CLAIM], "data")
    assert planned(here) == Plan(())


def test_a_new_claim_waits_while_the_old_copy_is_deleted() -> None:
    """With the policy Delete, its name is free soon."""
    here = ground()
    old = claim(volume="pvc-claim-data")
    below(here, copy(old, "1Gi"))
    volumes(here, volume(old, phase="Released"))
    above(here, claim(node=A, uid="second"))
    assert planned(here) == Plan(())


def test_a_retained_volume_that_is_bound_again_is_used_by_its_new_claim() -> None:
    """A user bound it to the new claim, so the lower claim is marked again and keeps its data."""
    here = ground()
    old, new = claim(volume="pvc-claim-data"), claim(volume="pvc-claim-data", uid="second")
    below(here, copy(old, "1Gi"))
    volumes(here, volume(new, name="pvc-claim-data", annotations={LOWER_CLAIM_UID: "below-claim-data"}))
    above(here, new)
    step = the_step(here)
    assert step.uid == "below-claim-data"
    assert [(one["path"], one["value"]) for one in step.operations] == [
        ("/metadata/annotations/tensile-kube.io~1upper-uid", "second")
    ]


def test_a_lower_claim_of_another_uid_is_not_used_for_a_retained_volume() -> None:
    """A user created it by hand, but the data are in the claim whose UID the volume names."""
    here = ground()
    new = claim(volume="pvc-claim-data", uid="second")
    below(here, copy(claim(), "1Gi", uid="by-hand"))
    volumes(here, volume(new, name="pvc-claim-data", annotations={LOWER_CLAIM_UID: "below-claim-data"}))
    above(here, new)
    assert reason(here) == "ClaimRetained"


def test_a_copy_with_an_earlier_storage_class_stays_the_copy() -> None:
    """`storageClasses` may change while a claim waits for its volume, but the class of a claim is immutable."""
    here = ground()
    made = claim(node=A)
    above(here, made)
    earlier = copy(made)
    below(here, {**earlier, "spec": {**earlier["spec"], "storageClassName": "slow"}})
    assert planned(here) == Plan(())


# Dependencies of pods.


def awaited(here: World, lower: str = A) -> list[str]:
    """Return the keys on which a pod with claim `data` depends."""
    needs = [Reference(CLAIM.name, "data", optional=False), Reference("Secret", "other", optional=False)]
    return list(names(missing(here, here.lowers[lower], "default", needs)))


def test_a_pod_waits_for_the_copy_of_its_claim() -> None:
    """The copy need not be bound, because a lower cluster creates some volumes only for existing pods."""
    here = ground()
    assert awaited(here) == ["default/data"]
    above(here, claim())
    bound(here)
    assert awaited(here) == ["default/data"]
    below(here, copy(claim()))
    assert awaited(here) == []
    above(here, claim(uid="second"))
    assert awaited(here) == ["default/data"]


def test_a_pod_waits_if_its_claim_has_its_home_in_another_lower() -> None:
    """The copy in its own lower would be an empty volume."""
    here = ground()
    made = settled_claim(here, B)
    below(here, copy(made, "1Gi"))
    assert awaited(here) == ["default/data"]
    assert awaited(here, B) == []


def test_without_the_controller_a_pod_with_a_claim_waits_and_has_a_problem() -> None:
    """A lower claim of that name belongs to another owner, and the message has the remedy."""
    here = ground()
    lower = here.lowers[A]
    lower.spec = lower.spec.model_copy(update={"controllers": ()})
    above(here, claim(node=A))
    assert (planned(here), list(RULE.keys(here, A))) == (Plan(()), [])
    bound(here)
    assert awaited(here) == ["default/data"]
    where = f"claim {KEY.namespace}/{KEY.name}"
    words = f"{where}: controller PV is not enabled for lower cluster lower-a: add PV to controllers"
    assert planned(here) == Plan((), Problem("ClaimNotMirrored", words))


def test_a_missing_claim_is_a_problem_if_a_pod_needs_it() -> None:
    """Kubernetes reports it in the same way."""
    here = ground()
    assert planned(here) == Plan(())
    bound(here)
    assert planned(here).problem == (
        "PersistentVolumeClaimNotFound",
        "PersistentVolumeClaim default/data does not exist in the upper cluster",
    )


CACHES: list[Any] = [("upper", CLAIM), ("upper", VOLUME), ("lower", CLAIM), ("lower", VOLUME)]


@pytest.mark.parametrize(("side", "kind"), CACHES)
def test_nothing_is_decided_from_a_cache_that_is_not_synced(side: str, kind: Any) -> None:
    """An object that it lacks may exist."""
    here = ground()
    above(here, claim(node=A))
    assert the_step(here).verb == "create"
    cache = (here.upper if side == "upper" else here.lowers[A]).more[kind]
    cache.mark_stale()
    assert planned(here) == Plan(())


def test_a_copy_of_another_owner_is_not_deleted() -> None:
    """Its upper claim is missing, but that does not matter."""
    here = ground()
    below(here, marked(copy(claim()), "claim-data", STRANGER))
    assert planned(here) == Plan(())


# Keys that changes enqueue.

heard = Asked(RULE, KEY).heard


def test_every_used_selected_or_copied_claim_has_one_key() -> None:
    """A claim with only an annotation for the lower has a key too, because the annotation must be removed."""
    here = ground()
    above(here, claim("chosen", node=A), claim("idle"), claim(), claim("noted", annotations={LOWER: A}))
    bound(here)
    below(here, copy(claim()), copy(claim("left")))
    assert list(names(RULE.keys(here, A))) == ["default/chosen", "default/data", "default/left", "default/noted"]
    assert list(RULE.keys(here, B)) == []


def test_a_change_of_an_upper_claim_enqueues_the_key_of_each_lower_involved() -> None:
    """This includes the lower whose node was selected before."""
    here = ground()
    before, after = above(here, claim(node=A)), above(here, claim(node=B))
    assert heard(here, "upper.PersistentVolumeClaim", before, after) == ["default/data"]
    assert heard(here, "upper.PersistentVolumeClaim", before, after, B) == ["default/data"]
    assert heard(here, "upper.PersistentVolumeClaim", after, after) == []
    bound(here)
    assert heard(here, "upper.PersistentVolumeClaim", after, after) == ["default/data"]


def test_a_node_that_becomes_ours_enqueues_the_keys_of_all_its_claims() -> None:
    """No claim was created without it."""
    here = ground()
    above(here, claim(node=A))
    node = here.upper.nodes.get("", A)
    assert heard(here, "upper.nodes", None, node) == ["default/data"]
    assert heard(here, "upper.nodes", node, node) == []


def test_a_change_of_an_upper_volume_enqueues_the_key_of_its_claim() -> None:
    """The volume determines the home of the claim."""
    here = ground()
    made = settled_claim(here)
    entry = here.upper.more[VOLUME].get("", "pvc-claim-data")
    assert heard(here, "upper.PersistentVolume", None, entry) == ["default/data"]
    assert heard(here, "upper.PersistentVolume", None, entry, B) == []
    bound(here, lower=B)
    assert heard(here, "upper.PersistentVolume", entry, None, B) == ["default/data"]
    assert made["metadata"]["name"] == "data"


def test_a_pod_that_begins_or_stops_using_a_claim_enqueues_its_key() -> None:
    """Other changes of a pod do not, except for its end."""
    here = ground()
    pod = bound(here)
    ended = changed(here.lowers[A].upper_pods, "web", _end)
    assert heard(here, "upper_pods", None, pod) == heard(here, "upper_pods", pod, None) == ["default/data"]
    assert heard(here, "upper_pods", pod, pod) == []
    assert heard(here, "upper_pods", pod, ended) == ["default/data"]
    assert heard(here, "pods", pod, None) == ["default/data"]
    assert heard(here, "pods", None, pod) == []


def _end(pod: Manifest) -> None:
    pod["status"]["phase"] = "Succeeded"


def test_a_change_of_a_lower_claim_enqueues_its_key() -> None:
    """Its creation and its deletion are watched."""
    here = ground()
    entry = below(here, copy(claim()))
    assert heard(here, "PersistentVolumeClaim", entry, None) == ["default/data"]
