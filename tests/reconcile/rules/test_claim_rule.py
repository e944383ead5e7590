"""Claims below: made once, kept in step, never made again, and taken away only when nothing can be in them."""

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
"""Lower claims that have a volume, had one, or will in a moment."""


def test_a_claim_for_which_the_node_is_chosen_is_made_there() -> None:
    """With the lower's class, our marks, and nothing of what the upper cluster made of it."""
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
def test_all_that_a_claim_asks_for_goes_down(field: str) -> None:
    """But the volume, which is another one there; a claim without a class gets the lower's default."""
    asked = claim(volume="pvc-1")
    asked["spec"] |= {field: "asked"}
    made = lower_claim(asked, OWNER_HERE, "default", None)
    assert made["spec"][field] == "asked"
    assert made["spec"].keys().isdisjoint({"volumeName", "storageClassName"})


def test_a_claim_goes_down_with_a_pod_that_was_bound_regardless() -> None:
    """Where the upper scheduler takes no notice of volumes. Where it goes is noted first, for an engine after us."""
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


def test_the_claim_of_an_ephemeral_volume_never_goes_down() -> None:
    """The lower cluster makes its own for the lower pod."""
    here = ground()
    above(here, claim(node=A, ownerReferences=[{"kind": "Pod", "name": "web", "controller": True}]))
    assert planned(here) == Plan(())


def test_nothing_is_made_for_a_node_that_is_not_ours() -> None:
    """Or for a claim that is going."""
    here = ground()
    above(here, claim(node=A, deletionTimestamp="2026-03-01T12:00:00Z"))
    assert planned(here) == Plan(())
    above(here, claim(node=A, uid="another"))
    drop(here.upper.nodes, A, "")
    put(here.upper.nodes, thing("Node", A, ""))
    assert planned(here) == Plan(())


def test_a_claim_of_others_is_a_conflict() -> None:
    """Untouched, and said."""
    here = ground()
    above(here, claim(node=A))
    below(here, {**copy(claim()), "metadata": {**thing("", "data")["metadata"], "labels": {OWNER: OWNER_HERE.mark}}})
    assert reason(here) == "NameConflict"


def test_a_refused_claim_is_given_back_to_the_scheduler() -> None:
    """With an event; only while no pod is bound, and only what the lower said to the last try."""
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


def test_a_bound_claim_names_the_node_of_its_volume() -> None:
    """For schedulers that mind no volumes; one that names a node is left as it is."""
    here = ground()
    settled_claim(here, annotations={"pv.kubernetes.io/bind-completed": "yes"})
    step = the_step(here)
    assert (step.ref, step.uid) == (ABOVE, "claim-data")
    path = f"/metadata/annotations/{SELECTED_NODE.replace('/', '~1')}"
    assert step.operations == ({"op": "add", "path": path, "value": A},)
    settled_claim(here, node=A)
    assert planned(here) == Plan(())


# Claims that live elsewhere.


def test_a_pod_whose_claim_lives_elsewhere_is_told() -> None:
    """It depends on no other lower; a lower without pods of the claim reports no problem."""
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


def test_a_pod_whose_claim_waits_for_anothers_volume_is_told() -> None:
    """Also where a copy of it is below already."""
    here = ground()
    above(here, claim(volume="pvc-other"))
    volumes(here, volume(claim("other"), name="pvc-other"))
    bound(here)
    assert reason(here) == "ClaimNotBound"
    below(here, copy(claim(), "1Gi"))
    assert reason(here) == "ClaimNotBound"


def test_a_claim_that_is_chosen_for_a_real_node_is_told() -> None:
    """Pods on virtual nodes cannot have it."""
    here = ground()
    above(here, claim(node="real-node"))
    bound(here)
    assert planned(here).problem == (
        "ClaimInOtherCluster",
        "claim default/data gets its volume on node real-node, not on the node of its pod",
    )


def test_the_copy_of_a_claim_that_is_now_to_live_elsewhere_goes() -> None:
    """Without a volume nobody can have written to it; one that a pod mounts may get its volume at any moment."""
    here = ground()
    above(here, claim(node=B))
    below(here, copy(claim()))
    step = the_step(here)
    assert (step.verb, step.ref, step.uid) == ("delete", REF, "below-claim-data")
    assert step.version == str(here.lowers[A].more[CLAIM].get("default", "data").version)
    put(here.lowers[A].pods, twin(upper_pod(spec=USES)))
    assert planned(here) == Plan(())


@pytest.mark.parametrize("one", DATA, ids=DATA_IDS)
def test_a_copy_that_may_hold_data_outlives_every_choice_of_the_scheduler(one: Manifest) -> None:
    """A pod may have written before its volume was told above, so no other node can have the claim."""
    here = ground()
    above(here, claim(node=B))
    below(here, one)
    assert [step for step in planned(here).steps if step.ref == REF] == []
    assert planned(here, KEY._replace(lower=B)) == Plan(())


def test_a_claim_of_an_excluded_namespace_is_told_and_not_made() -> None:
    """No pod of it runs below; a lower that it does not concern says nothing."""
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


def test_a_copy_with_a_volume_stays_where_a_claim_has_one_elsewhere() -> None:
    """Nobody knows what is in it."""
    here = ground()
    made = settled_claim(here, B)
    below(here, copy(made, "1Gi"))
    assert planned(here) == Plan(())
    below(here, copy(made, uid="another"))
    assert the_step(here).verb == "delete"


def test_a_copy_that_came_to_nothing_goes_with_its_last_pod() -> None:
    """It never had a volume; the next pod has it made again."""
    here = ground()
    above(here, claim())
    below(here, copy(claim()))
    bound(here)
    assert planned(here) == Plan(())
    drop(here.lowers[A].upper_pods, "web")
    assert the_step(here).verb == "delete"


# Copies whose claim is gone.


def test_a_copy_without_a_volume_goes_with_its_claim() -> None:
    """When it was seen deleted, or replaced; not when it is merely missing, in a list or to a read."""
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


def test_a_copy_outlives_what_was_not_its_claim() -> None:
    """Another claim of that name was deleted, or a retained volume still says that the data are there."""
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
def test_a_copy_with_a_volume_is_never_ended_here(*, named: bool, one: Manifest) -> None:
    """Whatever is missing above: only the reclaim policy of a placeholder ends it."""
    here = ground()
    made = claim(volume="pvc-claim-data")
    above(here, made)
    below(here, one)
    if named:
        volumes(here, volume(made, phase="Released", policy="Retain"))
    drop(here.upper.more[CLAIM], "data")
    assert planned(here) == Plan(())


def test_a_new_claim_waits_while_the_old_one_goes() -> None:
    """With the policy Delete its place is free in a moment."""
    here = ground()
    old = claim(volume="pvc-claim-data")
    below(here, copy(old, "1Gi"))
    volumes(here, volume(old, phase="Released"))
    above(here, claim(node=A, uid="second"))
    assert planned(here) == Plan(())


def test_a_retained_volume_that_is_bound_again_serves_its_new_claim() -> None:
    """Somebody pointed it there; the lower claim is marked anew and keeps its data."""
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


def test_a_claim_made_by_hand_below_does_not_serve_a_retained_volume() -> None:
    """The data were in the claim whose UID the volume names."""
    here = ground()
    new = claim(volume="pvc-claim-data", uid="second")
    below(here, copy(claim(), "1Gi", uid="by-hand"))
    volumes(here, volume(new, name="pvc-claim-data", annotations={LOWER_CLAIM_UID: "below-claim-data"}))
    above(here, new)
    assert reason(here) == "ClaimRetained"


def test_a_copy_of_an_earlier_storage_class_stays_the_copy() -> None:
    """`storageClasses` may be edited while a claim waits for its volume; the class of a claim never changes."""
    here = ground()
    made = claim(node=A)
    above(here, made)
    earlier = copy(made)
    below(here, {**earlier, "spec": {**earlier["spec"], "storageClassName": "slow"}})
    assert planned(here) == Plan(())


# What a pod waits for.


def awaited(here: World, lower: str = A) -> list[str]:
    """Return what a pod that uses claim `data` waits for."""
    needs = [Reference(CLAIM.name, "data", optional=False), Reference("Secret", "other", optional=False)]
    return list(names(missing(here, here.lowers[lower], "default", needs)))


def test_a_pod_waits_for_its_claim() -> None:
    """Which need not be bound: a lower cluster makes volumes for pods that are there."""
    here = ground()
    assert awaited(here) == ["default/data"]
    above(here, claim())
    bound(here)
    assert awaited(here) == ["default/data"]
    below(here, copy(claim()))
    assert awaited(here) == []
    above(here, claim(uid="second"))
    assert awaited(here) == ["default/data"]


def test_a_pod_does_not_start_on_a_copy_of_a_claim_that_lives_elsewhere() -> None:
    """It would be an empty volume."""
    here = ground()
    made = settled_claim(here, B)
    below(here, copy(made, "1Gi"))
    assert awaited(here) == ["default/data"]
    assert awaited(here, B) == []


def test_without_the_controller_no_claim_below_is_used() -> None:
    """One of that name there is another's; a pod waits, and is told what to do. Nothing else is decided."""
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


def test_a_claim_that_does_not_exist_is_said_where_a_pod_needs_it() -> None:
    """As Kubernetes would."""
    here = ground()
    assert planned(here) == Plan(())
    bound(here)
    assert planned(here).problem == (
        "PersistentVolumeClaimNotFound",
        "PersistentVolumeClaim default/data does not exist in the upper cluster",
    )


CACHES: list[Any] = [("upper", CLAIM), ("upper", VOLUME), ("lower", CLAIM), ("lower", VOLUME)]


@pytest.mark.parametrize(("side", "kind"), CACHES)
def test_nothing_is_decided_from_an_incomplete_cache(side: str, kind: Any) -> None:
    """Absence means nothing then."""
    here = ground()
    above(here, claim(node=A))
    assert the_step(here).verb == "create"
    cache = (here.upper if side == "upper" else here.lowers[A]).more[kind]
    cache.mark_stale()
    assert planned(here) == Plan(())


def test_a_copy_of_another_owner_is_not_ours_to_end() -> None:
    """Also where its upper claim is nobody's we know."""
    here = ground()
    below(here, marked(copy(claim()), "claim-data", STRANGER))
    assert planned(here) == Plan(())


# Which changes concern which keys.

heard = Asked(RULE, KEY).heard


def test_every_claim_that_is_used_chosen_or_copied_has_a_key() -> None:
    """Once; so has one that is only noted for the lower, whose note has to go."""
    here = ground()
    above(here, claim("chosen", node=A), claim("idle"), claim(), claim("noted", annotations={LOWER: A}))
    bound(here)
    below(here, copy(claim()), copy(claim("left")))
    assert list(names(RULE.keys(here, A))) == ["default/chosen", "default/data", "default/left", "default/noted"]
    assert list(RULE.keys(here, B)) == []


def test_a_claim_above_concerns_the_lower_that_has_to_do_with_it() -> None:
    """Also the one whose node was chosen before."""
    here = ground()
    before, after = above(here, claim(node=A)), above(here, claim(node=B))
    assert heard(here, "upper.PersistentVolumeClaim", before, after) == ["default/data"]
    assert heard(here, "upper.PersistentVolumeClaim", before, after, B) == ["default/data"]
    assert heard(here, "upper.PersistentVolumeClaim", after, after) == []
    bound(here)
    assert heard(here, "upper.PersistentVolumeClaim", after, after) == ["default/data"]


def test_a_node_that_is_ours_again_concerns_every_claim() -> None:
    """Nothing was created without it."""
    here = ground()
    above(here, claim(node=A))
    node = here.upper.nodes.get("", A)
    assert heard(here, "upper.nodes", None, node) == ["default/data"]
    assert heard(here, "upper.nodes", node, node) == []


def test_a_volume_above_concerns_its_claim_where_that_is_known() -> None:
    """It says where the claim lives."""
    here = ground()
    made = settled_claim(here)
    entry = here.upper.more[VOLUME].get("", "pvc-claim-data")
    assert heard(here, "upper.PersistentVolume", None, entry) == ["default/data"]
    assert heard(here, "upper.PersistentVolume", None, entry, B) == []
    bound(here, lower=B)
    assert heard(here, "upper.PersistentVolume", entry, None, B) == ["default/data"]
    assert made["metadata"]["name"] == "data"


def test_pods_concern_the_claims_that_they_begin_or_cease_to_use() -> None:
    """A pod that goes on using one concerns nothing, until it has ended."""
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


def test_a_claim_below_concerns_itself() -> None:
    """Whether it comes or goes."""
    here = ground()
    entry = below(here, copy(claim()))
    assert heard(here, "PersistentVolumeClaim", entry, None) == ["default/data"]
