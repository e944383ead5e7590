"""Placeholders above: when they come, what they tell, and that data go only as the upper cluster asked."""

from typing import Any

import orjson
import pytest
from rulekit import Asked
from storagekit import ASKED, above, below, bound, claim, copy, disk, ground, settled_claim, volume, volumes
from worldkit import OWNER_HERE, STRANGER, A, B, changed, decided, drop, lose, marked, names, put, thing

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
from tensile.reconcile.rules.volumes import PROVISIONED_BY, VolumeRule, digest_below, key_of
from tensile.reconcile.world import World

RULE = VolumeRule()
KEY = key_of(A, "pvc-claim-data")
REF = Ref(UPPER, VOLUME, "", "pvc-claim-data")
QUESTIONS = Asked(RULE, KEY)
planned, the_step, heard = QUESTIONS.plan, QUESTIONS.step, QUESTIONS.heard
BELOW = Ref(A, CLAIM, "default", "data")
POD = [{"kind": "Pod", "name": "web", "controller": True}]


def body(here: World) -> Manifest:
    """Return the placeholder that is to be made."""
    step = the_step(here)
    assert (step.verb, step.ref) == ("create", REF)
    assert step.body is not None
    return step.body


def test_no_placeholder_stands_for_a_lower_claim_that_is_going() -> None:
    """It was taken back while its volume was being made: the claim above waits for one that stays."""
    here = ground()
    above(here, claim(node=A))
    ending = {"deletionTimestamp": "2026-03-01T12:00:00Z", "finalizers": ["kubernetes.io/pvc-protection"]}
    below(here, copy(claim(), "1Gi", **ending))
    assert planned(here).steps == ()
    below(here, copy(claim(), "1Gi"))
    assert the_step(here).verb == "create"


def test_a_placeholder_comes_as_soon_as_the_lower_has_taken_the_claim() -> None:
    """It binds the claim, exists on the virtual node, says what it stands for, and holds nothing."""
    here = ground()
    above(here, claim(node=A))
    below(here, copy(claim()))
    made = body(here)
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


def test_a_placeholder_waits_for_the_lower_to_take_the_claim() -> None:
    """One that it refuses has no volume above, so that the scheduler can look elsewhere."""
    here = ground()
    above(here, claim(node=A))
    decision, found = decided(RULE, KEY, here)
    assert (found.steps, decision.depends_on) == ((), (claim_rule.key_of(A, "default", "data"),))


def test_where_volumes_are_not_minded_the_placeholder_comes_with_the_lowers_volume() -> None:
    """The claim above is bound when the one below is, and is as large."""
    here = ground()
    above(here, claim())
    bound(here)
    lower = copy(claim(), "5Gi")
    below(here, copy(claim()))
    assert planned(here) == Plan(())
    below(here, lower)
    assert planned(here) == Plan(())
    put(here.lowers[A].more[VOLUME], disk(lower))
    made = body(here)
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
def test_the_policy_is_the_upper_classes(word: str, lower_policy: str, policy: str) -> None:
    """Without one, the lower volume's own."""
    here = ground()
    made = claim(word=word)
    above(here, made)
    bound(here)
    below(here, copy(made, "1Gi"))
    put(here.lowers[A].more[VOLUME], disk(copy(made), lower_policy))
    assert body(here)["spec"]["persistentVolumeReclaimPolicy"] == policy


def test_a_class_that_went_after_the_node_was_chosen_retains() -> None:
    """In doubt nothing is lost."""
    here = ground()
    above(here, claim(node=A, word="unknown"))
    below(here, copy(claim(word="unknown")))
    assert body(here)["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_an_ephemeral_volume_gets_its_placeholder_at_once() -> None:
    """There is no claim of ours below, so there are no data that its policy could keep."""
    here = ground()
    above(here, claim(node=A, word="stays", ownerReferences=POD))
    made = body(here)
    assert LOWER_CLAIM_UID not in made["metadata"]["annotations"]
    assert made["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
    above(here, claim(ownerReferences=POD, annotations=ASKED))
    assert planned(here) == Plan(())


def test_data_that_are_below_already_bind_the_claim_where_they_are() -> None:
    """Though the scheduler has chosen another node since: it sees the volume's affinity, and looks again."""
    here = ground()
    above(here, claim(node=B))
    below(here, copy(claim(), "1Gi"))
    assert body(here)["metadata"]["annotations"][LOWER] == A
    assert decided(RULE, key_of(B, "pvc-claim-data"), here)[1] == Plan(())


@pytest.mark.parametrize("field", ["volumeMode", "volumeAttributesClassName"])
def test_what_kubernetes_compares_is_the_claims(field: str) -> None:
    """Else the two were never bound."""
    here = ground()
    made = claim(node=A)
    made["spec"][field] = "asked"
    above(here, made)
    below(here, copy(made))
    assert body(here)["spec"][field] == "asked"


@pytest.mark.parametrize(
    "made",
    [claim(node=B), claim(volume="v"), claim(node=A, deletionTimestamp="2026-03-01T12:00:00Z"), claim()],
    ids=["elsewhere", "has one", "is going", "nobody asks"],
)
def test_no_placeholder_is_made_that_nobody_waits_for(made: Manifest) -> None:
    """Nor one for a claim that is another lower's."""
    here = ground()
    above(here, made)
    below(here, copy(claim()))
    assert planned(here) == Plan(())


def test_no_placeholder_is_made_for_a_node_that_is_not_ours() -> None:
    """Pods there are not our concern."""
    here = ground()
    above(here, claim(node=A))
    below(here, copy(claim()))
    drop(here.upper.nodes, A, "")
    put(here.upper.nodes, thing("Node", A, ""))
    assert planned(here) == Plan(())


def test_a_volume_of_others_under_the_name_is_left_alone() -> None:
    """Without our label it is not even seen, and the create finds that the name is taken; what is seen says so."""
    here = ground()
    above(here, claim(node=A))
    below(here, copy(claim()))
    volumes(here, marked(volume(claim()), "claim-data", STRANGER))
    found = decided(RULE, KEY, here)[1]
    assert (found.steps, found.problem and found.problem.reason) == ((), "NameConflict")


# What it tells.


def test_what_is_known_below_is_told_above() -> None:
    """The lower volume, its kind, and its size; others' annotations stay."""
    here = ground()
    made = settled_claim(here)
    assert planned(here) == Plan(())
    lower = copy(made, "2Gi")
    below(here, {**lower, "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}}})
    put(here.lowers[A].more[VOLUME], disk(lower))
    changed(here.upper.more[VOLUME], "pvc-claim-data", _annotate, "")
    step = the_step(here)
    assert (step.verb, step.uid) == ("patch", "PersistentVolume-pvc-claim-data")
    assert {one["path"]: one["value"] for one in step.operations} == {
        "/metadata/annotations/tensile-kube.io~1lower-volume": "disk-1",
        "/metadata/annotations/tensile-kube.io~1lower-volume-source": "csi disk.example.com",
        "/spec/capacity/storage": "2Gi",
    }
    assert LOWER_VOLUME_SOURCE == "tensile-kube.io/lower-volume-source"


def _annotate(one: Manifest) -> None:
    one["metadata"]["annotations"]["theirs"] = "yes"


def test_a_placeholder_whose_lower_claim_is_missing_stays_as_it_is() -> None:
    """What it stood for is still known by it."""
    here = ground()
    settled_claim(here)
    lose(here.lowers[A].more[CLAIM], "data")
    assert planned(here) == Plan(())


def test_another_claim_of_the_name_says_nothing_of_the_volume() -> None:
    """What a placeholder stands for is known by UID."""
    here = ground()
    made = settled_claim(here)
    below(here, copy(made, "9Gi", uid="by-hand"))
    assert planned(here) == Plan(())


@pytest.mark.parametrize(
    ("spec", "source"),
    [
        ({"nfs": {"server": "a", "path": "/b"}}, "nfs"),
        ({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "secret"}}}, "csi d"),
        ({}, ""),
    ],
)
def test_of_a_lower_volume_only_its_kind_is_told(spec: Manifest, source: str) -> None:
    """Never where its secrets are, nor anything that it is reached by."""
    whole = {"spec": {"capacity": {}, "claimRef": {"uid": "u"}, "storageClassName": "disk", **spec}}
    kept = digest_below(orjson.dumps(whole))
    assert (kept.raw, kept.facts.claim_uid, kept.facts.source, kept.facts.policy) == (b"", "u", source, "Retain")


# The end.


def released(policy: str = "Delete", **fields: Any) -> World:
    """Make a world where the claim above was deleted, and its placeholder is released."""
    here = ground()
    made = settled_claim(here)
    volumes(here, volume(made, phase="Released", policy=policy, **fields))
    drop(here.upper.more[CLAIM], "data")
    return here


def test_data_go_by_their_uid_and_then_the_placeholder() -> None:
    """With the policy Delete: the claim above was deleted, so it was asked for."""
    here = released()
    step = the_step(here)
    assert (step.verb, step.ref, step.uid, step.requested) == ("delete", BELOW, "below-claim-data", True)
    changed(here.lowers[A].more[CLAIM], "data", _ending)
    assert planned(here) == Plan(())
    drop(here.lowers[A].more[CLAIM], "data")
    step = the_step(here)
    assert (step.verb, step.ref, step.uid) == ("delete", REF, "PersistentVolume-pvc-claim-data")
    changed(here.upper.more[VOLUME], "pvc-claim-data", _ending, "")
    assert planned(here) == Plan(())


def _ending(one: Manifest) -> None:
    one["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"


def test_retained_data_stay() -> None:
    """Neither side is touched."""
    assert planned(released("Retain")) == Plan(())


def test_nothing_goes_while_the_claim_is_there() -> None:
    """A phase can be older than the claim."""
    here = ground()
    made = settled_claim(here)
    volumes(here, volume(made, phase="Released"))
    assert planned(here) == Plan(())
    above(here, claim(uid="second"))
    assert the_step(here).verb == "delete"


def test_a_lower_claim_that_is_not_to_be_found_is_looked_for_first() -> None:
    """A list may lack it; only its certain absence ends the placeholder."""
    here = released()
    lose(here.lowers[A].more[CLAIM], "data")
    step = the_step(here)
    assert (step.verb, step.ref, step.uid) == ("confirm", BELOW, "below-claim-data")
    here.lowers[A].more[CLAIM].confirm_absent("default", "data")
    assert the_step(here).ref == REF


def test_another_claim_under_the_name_is_not_touched() -> None:
    """The one with the data is gone, so the placeholder goes."""
    here = released()
    below(here, copy(claim(uid="second"), "1Gi"))
    assert the_step(here).ref == REF


def test_a_forged_annotation_ends_no_other_claim() -> None:
    """The lower claim has to be the one of the claim that had the placeholder."""
    here = released()
    below(here, copy(claim(uid="second"), "1Gi", uid="below-second"))
    volumes(here, volume(claim(), phase="Released", annotations={LOWER_CLAIM_UID: "below-second"}))
    assert planned(here) == Plan(())


def test_the_placeholder_of_an_ephemeral_volume_goes_alone() -> None:
    """The lower's own claim goes with its pod."""
    here = ground()
    made = volume(claim(), phase="Released", annotations={LOWER_CLAIM_UID: ""})
    volumes(here, made)
    assert the_step(here).ref == REF
    changed(here.upper.more[VOLUME], "pvc-claim-data", _ending, "")
    assert planned(here) == Plan(())


@pytest.mark.parametrize("lower", [B, "gone"])
def test_a_placeholder_of_another_lower_is_not_decided_here(lower: str) -> None:
    """Nor one of a lower that has left the topology: nobody can reach its data."""
    here = ground()
    volumes(here, volume(claim(), lower, phase="Released"))
    assert planned(here) == Plan(())


def test_nothing_is_decided_without_classes() -> None:
    """They say what is to become of data."""
    here = ground()
    above(here, claim(node=A))
    below(here, copy(claim()))
    assert the_step(here).verb == "create"
    here.upper.more[STORAGE_CLASS].mark_stale()
    assert planned(here) == Plan(())


# Which changes concern which keys.


def test_every_placeholder_and_every_claim_that_may_need_one_has_a_key() -> None:
    """Once."""
    here = ground()
    settled_claim(here)
    above(here, claim("chosen", node=A))
    volumes(here, volume(claim("old"), name="kept"), volume(claim("far"), B))
    assert list(names(RULE.keys(here, A))) == ["kept", "pvc-claim-chosen", "pvc-claim-data"]


def test_claims_and_volumes_on_both_sides_concern_the_placeholder() -> None:
    """In the lower that it stands for."""
    here = ground()
    made = settled_claim(here)
    lower = below(here, copy(made, "1Gi"))
    real = put(here.lowers[A].more[VOLUME], disk(lower.manifest()))
    own = ["pvc-claim-data"]
    assert set(heard(here, "upper.PersistentVolumeClaim", None, above(here, made))) == set(own)
    assert heard(here, "upper.PersistentVolumeClaim", None, above(here, made), B) == []
    assert heard(here, "upper.PersistentVolume", None, here.upper.more[VOLUME].get("", "pvc-claim-data")) == own
    assert heard(here, "upper.PersistentVolume", None, here.upper.more[VOLUME].get("", "pvc-claim-data"), B) == []
    assert set(heard(here, "PersistentVolumeClaim", None, lower)) == set(own)
    assert set(heard(here, "PersistentVolume", None, real)) == set(own)


def test_a_claim_concerns_the_placeholder_that_it_is_yet_to_have() -> None:
    """From either side."""
    here = ground()
    chosen = above(here, claim(node=A))
    assert heard(here, "upper.PersistentVolumeClaim", None, chosen) == ["pvc-claim-data"]
    assert heard(here, "upper.PersistentVolumeClaim", None, chosen, B) == []
    lower = below(here, copy(claim()))
    assert heard(here, "PersistentVolumeClaim", None, lower) == ["pvc-claim-data"]
    real = put(here.lowers[A].more[VOLUME], disk(lower.manifest()))
    assert heard(here, "PersistentVolume", None, real) == ["pvc-claim-data"]


def test_a_node_that_comes_or_gets_another_owner_is_heard() -> None:
    """Without it no placeholder is made; what it says of itself later does not matter."""
    here = ground()
    above(here, claim(node=A))
    node = here.upper.nodes.get("", A)
    theirs = put(here.upper.nodes, thing("Node", A, ""))
    (route,) = (one for one in RULE.watches() if one.cache == "upper.nodes")
    for delta in (Delta(None, node), Delta(theirs, node)):
        assert list(names(route.keys(here, A, delta))) == ["pvc-claim-data"]
        assert list(route.keys(here, B, delta)) == []
    assert list(route.keys(here, A, Delta(node, node))) == list(route.keys(here, A, Delta(node, None))) == []


def test_without_the_controller_there_are_no_keys() -> None:
    """And nothing is decided."""
    here = ground()
    settled_claim(here)
    lower = here.lowers[A]
    lower.spec = lower.spec.model_copy(update={"controllers": ()})
    assert (list(RULE.keys(here, A)), planned(here)) == ([], Plan(()))
