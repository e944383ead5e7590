"""Tests of placeholder volumes: when they are created, what they contain, and that only a reclaim deletes data."""

from typing import Any

import orjson
import pytest
from rulekit import RuleUnderTest
from storagekit import (
    PROVISIONER_ANNOTATION,
    make_claim,
    make_lower_claim,
    make_lower_volume,
    make_placeholder,
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
    make_object,
    put,
    relist_without,
    sorted_names,
    with_owner_marks,
)

from tensile.kube.store import Delta
from tensile.names import (
    LOWER,
    LOWER_CLAIM_UID,
    LOWER_VOLUME,
    LOWER_VOLUME_SOURCE,
    OWNER,
    OWNER_NAME,
    PROVISIONER,
    UPPER_UID,
)
from tensile.objects import CLAIM, STORAGE_CLASS, UPPER, VOLUME, Manifest, Ref
from tensile.reconcile.plan import Plan
from tensile.reconcile.rules import claim_rule
from tensile.reconcile.rules.volumes import PROVISIONED_BY, VolumeRule, key_of, transform_lower
from tensile.reconcile.world import World

RULE = VolumeRule()
KEY = key_of(A, "pvc-claim-data")
REF = Ref(UPPER, VOLUME, "", "pvc-claim-data")
QUESTIONS = RuleUnderTest(RULE, KEY)
planned, the_step, heard = QUESTIONS.plan, QUESTIONS.step, QUESTIONS.affected_keys
BELOW = Ref(A, CLAIM, "default", "data")
POD = [{"kind": "Pod", "name": "web", "controller": True}]


def body(world: World) -> Manifest:
    """Return the placeholder that is to be created."""
    step = the_step(world)
    assert (step.verb, step.ref) == ("create", REF)
    assert step.body is not None
    return step.body


def test_no_placeholder_is_created_for_a_terminating_lower_claim() -> None:
    """It was deleted while its volume was being created, so the upper claim waits for another one."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=A))
    ending = {"deletionTimestamp": "2026-03-01T12:00:00Z", "finalizers": ["kubernetes.io/pvc-protection"]}
    put_lower_claims(world, make_lower_claim(make_claim(), "1Gi", **ending))
    assert planned(world).steps == ()
    put_lower_claims(world, make_lower_claim(make_claim(), "1Gi"))
    assert the_step(world).verb == "create"


def test_a_placeholder_is_created_once_the_lower_has_accepted_the_claim() -> None:
    """It binds the claim, is on the virtual node, names the lower claim, and holds no data."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=A))
    put_lower_claims(world, make_lower_claim(make_claim()))
    made = body(world)
    assert made["metadata"] == {
        "name": "pvc-claim-data",
        "labels": {OWNER: OWNER_HERE.mark},
        "annotations": {
            OWNER_NAME: "demo",
            UPPER_UID: "claim-data",
            LOWER: A,
            PROVISIONED_BY: PROVISIONER,
            LOWER_CLAIM_UID: "below-claim-data",
        },
    }
    here_only = {"key": "kubernetes.io/hostname", "operator": "In", "values": [A]}
    assert made["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "storageClassName": "goes",
        "persistentVolumeReclaimPolicy": "Delete",
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": "default",
            "name": "data",
            "uid": "claim-data",
        },
        "local": {"path": "/tensile-placeholder"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here_only]}]}},
    }


def test_a_placeholder_waits_for_the_lower_to_accept_the_claim() -> None:
    """A denied claim has no upper volume, so the scheduler can select another node."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=A))
    decision, found = decision_and_plan(RULE, KEY, world)
    assert (found.steps, decision.depends_on) == ((), (claim_rule.key_of(A, "default", "data"),))


def test_a_placeholder_for_a_bound_pod_is_created_with_the_lower_volume() -> None:
    """The scheduler ignores volumes, so the upper claim is bound when the lower one is, with the same size."""
    world = storage_world()
    put_upper_claims(world, make_claim())
    put_bound_pod(world)
    lower = make_lower_claim(make_claim(), "5Gi")
    put_lower_claims(world, make_lower_claim(make_claim()))
    assert planned(world) == Plan(())
    put_lower_claims(world, lower)
    assert planned(world) == Plan(())
    put(world.lowers[A].more[VOLUME], make_lower_volume(lower))
    made = body(world)
    assert made["spec"]["capacity"] == {"storage": "5Gi"}
    assert made["metadata"]["annotations"][LOWER_VOLUME] == "disk-1"


@pytest.mark.parametrize(
    ("word", "lower_policy", "policy"),
    [
        ("goes", "Retain", "Delete"),
        ("stays", "Delete", "Retain"),
        ("unknown", "Delete", "Delete"),
        ("unknown", "Retain", "Retain"),
    ],
)
def test_the_reclaim_policy_is_that_of_the_upper_class(word: str, lower_policy: str, policy: str) -> None:
    """Without an upper class, it is that of the lower volume."""
    world = storage_world()
    made = make_claim(storage_class=word)
    put_upper_claims(world, made)
    put_bound_pod(world)
    put_lower_claims(world, make_lower_claim(made, "1Gi"))
    put(world.lowers[A].more[VOLUME], make_lower_volume(make_lower_claim(made), lower_policy))
    assert body(world)["spec"]["persistentVolumeReclaimPolicy"] == policy


def test_the_reclaim_policy_is_retain_if_the_upper_class_was_deleted() -> None:
    """The class is unknown after the node was selected, so no data may be deleted."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=A, storage_class="unknown"))
    put_lower_claims(world, make_lower_claim(make_claim(storage_class="unknown")))
    assert body(world)["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_the_placeholder_of_an_ephemeral_volume_is_created_at_once() -> None:
    """No mirrored claim exists in the lower cluster, so its policy would protect no data."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=A, storage_class="stays", ownerReferences=POD))
    made = body(world)
    assert LOWER_CLAIM_UID not in made["metadata"]["annotations"]
    assert made["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
    put_upper_claims(world, make_claim(ownerReferences=POD, annotations=PROVISIONER_ANNOTATION))
    assert planned(world) == Plan(())


def test_a_copy_with_a_volume_binds_the_claim_in_its_own_lower() -> None:
    """The scheduler may have selected another node since.

    It sees the node affinity of the volume, and selects again.
    """
    world = storage_world()
    put_upper_claims(world, make_claim(node=B))
    put_lower_claims(world, make_lower_claim(make_claim(), "1Gi"))
    assert body(world)["metadata"]["annotations"][LOWER] == A
    assert decision_and_plan(RULE, key_of(B, "pvc-claim-data"), world)[1] == Plan(())


@pytest.mark.parametrize("field", ["volumeMode", "volumeAttributesClassName"])
def test_the_fields_that_kubernetes_compares_are_those_of_the_claim(field: str) -> None:
    """Otherwise it would never bind the two."""
    world = storage_world()
    made = make_claim(node=A)
    made["spec"][field] = "asked"
    put_upper_claims(world, made)
    put_lower_claims(world, make_lower_claim(made))
    assert body(world)["spec"][field] == "asked"


@pytest.mark.parametrize(
    "made",
    [
        make_claim(node=B),
        make_claim(volume="v"),
        make_claim(node=A, deletionTimestamp="2026-03-01T12:00:00Z"),
        make_claim(),
    ],
    ids=["elsewhere", "has a volume", "terminating", "not selected"],
)
def test_no_placeholder_is_created_for_a_claim_that_does_not_wait_for_it(made: Manifest) -> None:
    """The same applies to a claim whose home is another lower."""
    world = storage_world()
    put_upper_claims(world, made)
    put_lower_claims(world, make_lower_claim(make_claim()))
    assert planned(world) == Plan(())


def test_no_placeholder_is_created_for_a_node_of_another_owner() -> None:
    """Pods of that node are not ours."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=A))
    put_lower_claims(world, make_lower_claim(make_claim()))
    delete_observed(world.upper.nodes, A, "")
    put(world.upper.nodes, make_object("Node", A, ""))
    assert planned(world) == Plan(())


def test_a_volume_of_another_owner_with_the_placeholders_name_is_a_conflict() -> None:
    """The volume is not changed.

    Without our label it is not watched, and only the create finds it.
    """
    world = storage_world()
    put_upper_claims(world, make_claim(node=A))
    put_lower_claims(world, make_lower_claim(make_claim()))
    put_upper_volumes(world, with_owner_marks(make_placeholder(make_claim()), "claim-data", STRANGER))
    found = decision_and_plan(RULE, KEY, world)[1]
    assert (found.steps, found.problem and found.problem.reason) == ((), "NameConflict")


# What a placeholder shows.


def test_the_placeholder_shows_lower_volume_source_and_size() -> None:
    """Annotations of other clients stay."""
    world = storage_world()
    made = put_bound_claim(world)
    assert planned(world) == Plan(())
    lower = make_lower_claim(made, "2Gi")
    put_lower_claims(world, {**lower, "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}}})
    put(world.lowers[A].more[VOLUME], make_lower_volume(lower))
    change_as_other_client(world.upper.more[VOLUME], "pvc-claim-data", _annotate, "")
    step = the_step(world)
    assert (step.verb, step.uid) == ("patch", "PersistentVolume-pvc-claim-data")
    assert {one["path"]: one["value"] for one in step.operations} == {
        "/metadata/annotations/tensile-kube.io~1lower-volume": "disk-1",
        "/metadata/annotations/tensile-kube.io~1lower-volume-source": "csi disk.example.com",
        "/spec/capacity/storage": "2Gi",
    }
    assert LOWER_VOLUME_SOURCE == "tensile-kube.io/lower-volume-source"


def _annotate(one: Manifest) -> None:
    one["metadata"]["annotations"]["theirs"] = "yes"


def test_a_placeholder_with_a_missing_lower_claim_is_not_changed() -> None:
    """It is the only record of the lower claim."""
    world = storage_world()
    put_bound_claim(world)
    relist_without(world.lowers[A].more[CLAIM], "data")
    assert planned(world) == Plan(())


def test_a_lower_claim_with_another_uid_does_not_change_the_placeholder() -> None:
    """A placeholder belongs to a lower claim by its UID."""
    world = storage_world()
    made = put_bound_claim(world)
    put_lower_claims(world, make_lower_claim(made, "9Gi", uid="by-hand"))
    assert planned(world) == Plan(())


@pytest.mark.parametrize(
    ("spec", "source"),
    [
        ({"nfs": {"server": "a", "path": "/b"}}, "nfs"),
        ({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "secret"}}}, "csi d"),
        ({}, ""),
    ],
)
def test_only_the_kind_of_a_lower_volumes_source_is_cached(spec: Manifest, source: str) -> None:
    """Its references to Secrets and its addresses are not."""
    whole = {"spec": {"capacity": {}, "claimRef": {"uid": "u"}, "storageClassName": "disk", **spec}}
    kept = transform_lower(orjson.dumps(whole))
    assert (kept.raw, kept.facts.claim_uid, kept.facts.source, kept.facts.policy) == (b"", "u", source, "Retain")


# Deletion.


def released(policy: str = "Delete", **fields: Any) -> World:
    """Create a world in which the upper claim was deleted and its placeholder is released."""
    world = storage_world()
    made = put_bound_claim(world)
    put_upper_volumes(world, make_placeholder(made, phase="Released", policy=policy, **fields))
    delete_observed(world.upper.more[CLAIM], "data")
    return world


def test_with_the_policy_delete_the_lower_claim_and_then_the_placeholder_are_deleted() -> None:
    """The deletion of the upper claim requests that, and the lower claim is deleted by its UID."""
    world = released()
    step = the_step(world)
    assert (step.verb, step.ref, step.uid, step.requested) == ("delete", BELOW, "below-claim-data", True)
    change_as_other_client(world.lowers[A].more[CLAIM], "data", _ending)
    assert planned(world) == Plan(())
    delete_observed(world.lowers[A].more[CLAIM], "data")
    step = the_step(world)
    assert (step.verb, step.ref, step.uid) == ("delete", REF, "PersistentVolume-pvc-claim-data")
    change_as_other_client(world.upper.more[VOLUME], "pvc-claim-data", _ending, "")
    assert planned(world) == Plan(())


def _ending(one: Manifest) -> None:
    one["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"


def test_with_the_policy_retain_nothing_is_deleted() -> None:
    """Neither the lower claim nor the placeholder is changed."""
    assert planned(released("Retain")) == Plan(())


def test_nothing_is_deleted_while_the_upper_claim_exists() -> None:
    """The phase of the placeholder may be older than the claim, but a claim with another UID does not count."""
    world = storage_world()
    made = put_bound_claim(world)
    put_upper_volumes(world, make_placeholder(made, phase="Released"))
    assert planned(world) == Plan(())
    put_upper_claims(world, make_claim(uid="second"))
    assert the_step(world).verb == "delete"


def test_a_missing_lower_claim_is_confirmed_before_the_placeholder_is_deleted() -> None:
    """A list may lack it, so its absence must be certain."""
    world = released()
    relist_without(world.lowers[A].more[CLAIM], "data")
    step = the_step(world)
    assert (step.verb, step.ref, step.uid) == ("confirm", BELOW, "below-claim-data")
    world.lowers[A].more[CLAIM].confirm_absent("default", "data")
    assert the_step(world).ref == REF


def test_another_lower_claim_of_the_same_name_is_not_deleted() -> None:
    """The lower claim with the data does not exist any more, so only the placeholder is deleted."""
    world = released()
    put_lower_claims(world, make_lower_claim(make_claim(uid="second"), "1Gi"))
    assert the_step(world).ref == REF


def test_a_forged_annotation_deletes_no_other_lower_claim() -> None:
    """The lower claim must be that of the claim that had the placeholder."""
    world = released()
    put_lower_claims(world, make_lower_claim(make_claim(uid="second"), "1Gi", uid="below-second"))
    put_upper_volumes(
        world, make_placeholder(make_claim(), phase="Released", annotations={LOWER_CLAIM_UID: "below-second"})
    )
    assert planned(world) == Plan(())


def test_the_placeholder_of_an_ephemeral_volume_is_deleted_alone() -> None:
    """The lower cluster deletes its own claim with the pod."""
    world = storage_world()
    made = make_placeholder(make_claim(), phase="Released", annotations={LOWER_CLAIM_UID: ""})
    put_upper_volumes(world, made)
    assert the_step(world).ref == REF
    change_as_other_client(world.upper.more[VOLUME], "pvc-claim-data", _ending, "")
    assert planned(world) == Plan(())


@pytest.mark.parametrize("lower", [B, "gone"])
def test_a_placeholder_of_another_lower_is_ignored(lower: str) -> None:
    """One of a lower that left the topology is ignored too, because its data cannot be reached."""
    world = storage_world()
    put_upper_volumes(world, make_placeholder(make_claim(), lower, phase="Released"))
    assert planned(world) == Plan(())


def test_nothing_is_decided_before_storage_classes_are_synced() -> None:
    """They determine whether data are deleted."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=A))
    put_lower_claims(world, make_lower_claim(make_claim()))
    assert the_step(world).verb == "create"
    world.upper.more[STORAGE_CLASS].mark_stale()
    assert planned(world) == Plan(())


# Keys that changes enqueue.


def test_every_placeholder_and_every_claim_that_may_need_one_has_one_key() -> None:
    """Placeholders of another lower have no key in this one."""
    world = storage_world()
    put_bound_claim(world)
    put_upper_claims(world, make_claim("chosen", node=A))
    put_upper_volumes(world, make_placeholder(make_claim("old"), name="kept"), make_placeholder(make_claim("far"), B))
    assert list(sorted_names(RULE.keys(world, A))) == ["kept", "pvc-claim-chosen", "pvc-claim-data"]


def test_changes_of_claims_and_volumes_in_both_clusters_enqueue_the_placeholder() -> None:
    """Only the lower that it represents gets the key."""
    world = storage_world()
    made = put_bound_claim(world)
    lower = put_lower_claims(world, make_lower_claim(made, "1Gi"))
    real = put(world.lowers[A].more[VOLUME], make_lower_volume(lower.manifest()))
    own = ["pvc-claim-data"]
    assert set(heard(world, "upper.PersistentVolumeClaim", None, put_upper_claims(world, made))) == set(own)
    assert heard(world, "upper.PersistentVolumeClaim", None, put_upper_claims(world, made), B) == []
    assert heard(world, "upper.PersistentVolume", None, world.upper.more[VOLUME].get("", "pvc-claim-data")) == own
    assert heard(world, "upper.PersistentVolume", None, world.upper.more[VOLUME].get("", "pvc-claim-data"), B) == []
    assert set(heard(world, "PersistentVolumeClaim", None, lower)) == set(own)
    assert set(heard(world, "PersistentVolume", None, real)) == set(own)


def test_a_change_of_a_claim_enqueues_the_placeholder_that_it_may_get() -> None:
    """This applies to the upper and the lower claim, and to the lower volume."""
    world = storage_world()
    chosen = put_upper_claims(world, make_claim(node=A))
    assert heard(world, "upper.PersistentVolumeClaim", None, chosen) == ["pvc-claim-data"]
    assert heard(world, "upper.PersistentVolumeClaim", None, chosen, B) == []
    lower = put_lower_claims(world, make_lower_claim(make_claim()))
    assert heard(world, "PersistentVolumeClaim", None, lower) == ["pvc-claim-data"]
    real = put(world.lowers[A].more[VOLUME], make_lower_volume(lower.manifest()))
    assert heard(world, "PersistentVolume", None, real) == ["pvc-claim-data"]


def test_a_node_that_is_created_or_becomes_ours_enqueues_its_placeholders() -> None:
    """No placeholder is created without it, and later changes of the node do not matter."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=A))
    node = world.upper.nodes.get("", A)
    theirs = put(world.upper.nodes, make_object("Node", A, ""))
    (route,) = (one for one in RULE.watches() if one.cache == "upper.nodes")
    for delta in (Delta(None, node), Delta(theirs, node)):
        assert list(sorted_names(route.keys(world, A, delta))) == ["pvc-claim-data"]
        assert list(route.keys(world, B, delta)) == []
    assert list(route.keys(world, A, Delta(node, node))) == list(route.keys(world, A, Delta(node, None))) == []


def test_without_the_controller_the_rule_has_no_keys() -> None:
    """It decides nothing either."""
    world = storage_world()
    put_bound_claim(world)
    lower = world.lowers[A]
    lower.spec = lower.spec.model_copy(update={"controllers": ()})
    assert (list(RULE.keys(world, A)), planned(world)) == ([], Plan(()))
