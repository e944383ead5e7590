"""Tests of the lower cluster in which a claim has its home, and of the facts of a claim."""

import pytest
from storagekit import (
    PROVISIONER_ANNOTATION,
    make_claim,
    make_lower_claim,
    make_placeholder,
    put_bound_claim,
    put_bound_pod,
    put_lower_claims,
    put_upper_claims,
    put_upper_volumes,
    storage_world,
)
from worldkit import STRANGER, A, B, apply_topology, make_upper_pod, put, with_owner_marks

from tensile.names import LOWER, PROVISIONER
from tensile.objects import CLAIM, VOLUME, Manifest
from tensile.reconcile.rules.claims import (
    SELECTED_NODE,
    class_of,
    facts_of,
    home,
    is_listed,
    mapped,
    namespaces_selected_in,
)
from tensile.reconcile.world import World

FOREIGN = {"volume.kubernetes.io/storage-provisioner": "ebs.example.com"}


def where(world: World, made: Manifest) -> str:
    """Return the name of the home lower of a claim, or the reason why it has none."""
    found = home(put_upper_claims(world, made), world)
    return found.problem.reason if found.problem else found.lower


def test_a_claim_with_a_placeholder_has_its_home_where_the_placeholder_is() -> None:
    """Its pods and the node that was selected before do not matter."""
    world = storage_world()
    put_bound_claim(world, B)
    put_bound_pod(world, lower=A)
    assert where(world, make_claim(volume="pvc-claim-data", node=A)) == B


@pytest.mark.parametrize("made", [None, STRANGER], ids=["of the upper cluster", "of another owner"])
def test_a_claim_with_another_volume_has_no_home(made: object) -> None:
    """The volume is real storage of the upper cluster, or that of another topology."""
    world = storage_world()
    theirs = make_placeholder(make_claim(), name="theirs")
    put_upper_volumes(
        world, with_owner_marks(theirs, "claim-data", STRANGER) if made else {**theirs, "metadata": {"name": "theirs"}}
    )
    put_bound_pod(world)
    assert where(world, make_claim(volume="theirs")) == "ClaimNotMirrored"


def test_a_claim_that_names_the_placeholder_of_another_claim_is_not_bound() -> None:
    """Kubernetes binds it once the volume is free."""
    world = storage_world()
    put_upper_volumes(world, make_placeholder(make_claim("other"), name="pvc-other"))
    assert where(world, make_claim(volume="pvc-other")) == "ClaimNotBound"


def test_a_claim_has_its_home_where_the_scheduler_selected_its_node() -> None:
    """No pod is bound yet, and only claims with our provisioner count."""
    world = storage_world()
    assert where(world, make_claim(node=B)) == B
    assert where(world, make_claim(annotations={SELECTED_NODE: B})) == ""
    assert where(world, make_claim(annotations={SELECTED_NODE: B, **FOREIGN})) == ""
    assert where(world, make_claim(node="real-node")) == ""


def test_a_claim_has_its_home_where_it_may_have_data() -> None:
    """The node that the scheduler selects next does not matter.

    A copy without a volume, or of an earlier claim, holds no data.
    """
    world = storage_world()
    put_lower_claims(world, make_lower_claim(make_claim()))
    assert where(world, make_claim(node=B)) == B
    put_lower_claims(world, make_lower_claim(make_claim(uid="earlier"), "1Gi"))
    assert where(world, make_claim(node=B)) == B
    put_lower_claims(world, make_lower_claim(make_claim(), "1Gi"))
    assert where(world, make_claim(node=B)) == A


def test_a_claim_of_an_excluded_namespace_has_no_home() -> None:
    """A claim that has its volume keeps its home, so an edit of the topology loses no data."""
    world = storage_world()
    world.topology = world.topology.model_copy(update={"exclude_namespaces": ("default",)})
    assert where(world, make_claim(node=A)) == "NamespaceExcluded"
    assert "default" not in namespaces_selected_in(world, world.lowers[A])
    put_bound_claim(world, B)
    assert where(world, make_claim(volume="pvc-claim-data", node=A)) == B


def test_a_claim_has_its_home_where_its_first_pod_is() -> None:
    """The oldest pod decides, so every lower gets the same result."""
    world = storage_world()
    assert where(world, make_claim()) == ""
    put_bound_pod(world, "second", A, creationTimestamp="2026-03-01T12:00:05Z")
    assert where(world, make_claim()) == A
    put_bound_pod(world, "first", B, creationTimestamp="2026-03-01T12:00:01Z")
    assert where(world, make_claim()) == B


def test_pods_that_are_not_mirrored_do_not_determine_the_home() -> None:
    """A pod that has ended needs no volume."""
    world = storage_world()
    put(
        world.lowers[A].upper_pods,
        make_upper_pod(spec=put_bound_pod(world).manifest()["spec"], status={"phase": "Succeeded"}),
    )
    assert where(world, make_claim()) == ""


def test_a_copy_in_use_or_with_a_volume_keeps_the_home() -> None:
    """An older pod elsewhere does not matter then.

    A copy with a volume has precedence over one in use, and a copy without either has no effect.
    """
    world = storage_world()
    put_lower_claims(world, make_lower_claim(make_claim()), lower=A)
    put_bound_pod(world, "older", B, creationTimestamp="2026-03-01T12:00:01Z")
    assert where(world, make_claim()) == B
    put_bound_pod(world, "younger", A, creationTimestamp="2026-03-01T12:00:05Z")
    assert where(world, make_claim()) == A
    put_lower_claims(world, make_lower_claim(make_claim(), "1Gi"), lower=B)
    assert where(world, make_claim()) == B


def test_a_claim_waits_for_an_unsynced_lower_that_may_have_its_copy() -> None:
    """Its annotation names that lower, which has not been listed yet, but a known copy has precedence."""
    world = storage_world()
    noted = make_claim(annotations={LOWER: A})
    put_bound_pod(world, "younger", A, creationTimestamp="2026-03-01T12:00:05Z")
    put_bound_pod(world, "older", B, creationTimestamp="2026-03-01T12:00:01Z")
    world.lowers[A].more[CLAIM].mark_stale()
    found = home(put_upper_claims(world, noted), world)
    assert (found.lower, found.problem and found.problem.reason) == (A, "LowerUnreachable")
    put_lower_claims(world, make_lower_claim(make_claim()), lower=B)
    assert where(world, noted) == B


def test_a_claim_does_not_wait_for_an_unsynced_lower_that_it_does_not_name() -> None:
    """Otherwise an unreachable cluster would block the pods of all others.

    Neither does it wait for a synced lower without its copy.
    """
    world = storage_world()
    put_bound_pod(world, lower=B)
    assert where(world, make_claim(annotations={LOWER: A})) == B
    world.lowers[A].more[CLAIM].mark_stale()
    assert where(world, make_claim()) == B
    assert where(world, make_claim(annotations={LOWER: "gone"})) == B


def test_a_claim_of_another_provisioner_has_a_home_only_if_its_class_is_mapped() -> None:
    """Otherwise two clusters would each create a volume for it."""
    world = storage_world()
    put_bound_pod(world)
    assert where(world, make_claim(annotations=PROVISIONER_ANNOTATION, storage_class="ebs")) == A
    assert where(world, make_claim(annotations=FOREIGN)) == A
    assert where(world, make_claim(annotations=FOREIGN, storage_class="ebs")) == "ClaimNotMirrored"
    assert where(world, make_claim(storage_class="ebs")) == A


def test_a_lower_without_the_controller_is_no_home() -> None:
    """Nothing is known about its storage."""
    world = storage_world()
    assert is_listed(world, world.lowers[A])
    put_bound_pod(world)
    apply_topology(world, more="controllers: [Service]")
    assert where(world, make_claim()) == where(world, make_claim(node=A)) == ""
    assert not is_listed(world, world.lowers[A])


@pytest.mark.parametrize("kind", [CLAIM, VOLUME])
def test_storage_is_not_decided_from_caches_that_are_not_synced(kind: object) -> None:
    """This applies to claims and volumes of both clusters."""
    for side in ("upper", "lower"):
        world = storage_world()
        holder = world.upper if side == "upper" else world.lowers[A]
        next(cache for one, cache in holder.more.items() if one == kind).mark_stale()
        assert not is_listed(world, world.lowers[A])


def test_a_namespace_is_needed_by_a_claim_that_is_selected_for_the_node() -> None:
    """The pod that waits for the claim is bound only afterwards."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=A))
    assert "default" in namespaces_selected_in(world, world.lowers[A])
    assert "other" not in namespaces_selected_in(world, world.lowers[A])
    assert "default" not in namespaces_selected_in(world, world.lowers[B])
    put_upper_claims(world, make_claim(node=A, volume="pvc-claim-data"))
    assert "default" not in namespaces_selected_in(world, world.lowers[A])


def test_the_facts_of_a_claim_are_extracted() -> None:
    """They are the values that decisions read often."""
    owner = [{"kind": "Pod", "name": "web", "controller": True}]
    facts = facts_of(make_claim(node=A, ownerReferences=owner, deletionTimestamp="2026-03-01T12:00:00Z"))
    assert (facts.selected, facts.provisioner, facts.storage_class) == (A, PROVISIONER, "goes")
    assert (facts.ephemeral, facts.terminating, facts.bound, facts.volume) == (True, True, False, "")
    assert facts_of(make_claim(volume="v")).bound
    assert facts_of(make_lower_claim(make_claim(), phase="Lost")).lost
    assert facts_of(make_lower_claim(make_claim())).upper_uid == "claim-data"
    old = make_claim(annotations={"volume.beta.kubernetes.io/storage-provisioner": "old"})
    assert facts_of(old).provisioner == "old"


def test_the_storage_class_in_the_beta_annotation_counts() -> None:
    """A claim without a class differs from one with an empty class."""
    made = make_claim()
    assert class_of(made) == "goes"
    assert class_of(make_claim(annotations={"volume.beta.kubernetes.io/storage-class": "old"})) == "old"
    del made["spec"]["storageClassName"]
    assert class_of(made) is None


def test_a_storage_class_keeps_its_name_unless_it_is_mapped() -> None:
    """The topology has the mapping."""
    assert (mapped({"goes": "disk"}, "goes"), mapped({"goes": "disk"}, "other")) == ("disk", "other")
