"""In which lower cluster a claim lives, and what is taken out of a claim when it comes."""

import pytest
from storagekit import ASKED, above, below, bound, claim, copy, ground, settled_claim, volume, volumes
from worldkit import STRANGER, A, B, marked, put, reload, upper_pod

from tensile.names import LOWER, PROVISIONER
from tensile.objects import CLAIM, VOLUME, Manifest
from tensile.reconcile.rules.claims import (
    SELECTED_NODE,
    can_tell,
    class_of,
    facts_of,
    home,
    mapped,
    namespaces_selected_in,
)
from tensile.reconcile.world import World

FOREIGN = {"volume.kubernetes.io/storage-provisioner": "ebs.example.com"}


def where(here: World, made: Manifest) -> str:
    """Return where a claim lives: the lower's name, or the reason why it lives nowhere."""
    found = home(above(here, made), here)
    return found.problem.reason if found.problem else found.lower


def test_a_claim_with_a_placeholder_lives_where_that_says() -> None:
    """Whoever uses it, and whatever node was chosen for it before."""
    here = ground()
    settled_claim(here, B)
    bound(here, lower=A)
    assert where(here, claim(volume="pvc-claim-data", node=A)) == B


@pytest.mark.parametrize("made", [None, STRANGER], ids=["the upper's own", "another owner's"])
def test_a_claim_with_another_volume_lives_in_no_lower(made: object) -> None:
    """It is real storage of the upper cluster, or another topology's."""
    here = ground()
    theirs = volume(claim(), name="theirs")
    volumes(here, marked(theirs, "claim-data", STRANGER) if made else {**theirs, "metadata": {"name": "theirs"}})
    bound(here)
    assert where(here, claim(volume="theirs")) == "ClaimNotMirrored"


def test_a_claim_that_asks_for_a_placeholder_of_another_is_told_so() -> None:
    """Kubernetes binds it once the volume is free."""
    here = ground()
    volumes(here, volume(claim("other"), name="pvc-other"))
    assert where(here, claim(volume="pvc-other")) == "ClaimNotBound"


def test_a_claim_lives_where_the_scheduler_chose_its_node() -> None:
    """Before any pod is bound, and only where it asks us for its volume."""
    here = ground()
    assert where(here, claim(node=B)) == B
    assert where(here, claim(annotations={SELECTED_NODE: B})) == ""
    assert where(here, claim(annotations={SELECTED_NODE: B, **FOREIGN})) == ""
    assert where(here, claim(node="real-node")) == ""


def test_a_claim_lives_where_it_may_have_data() -> None:
    """Whatever node the scheduler chooses next; a copy without a volume, or of an earlier claim, holds nothing."""
    here = ground()
    below(here, copy(claim()))
    assert where(here, claim(node=B)) == B
    below(here, copy(claim(uid="earlier"), "1Gi"))
    assert where(here, claim(node=B)) == B
    below(here, copy(claim(), "1Gi"))
    assert where(here, claim(node=B)) == A


def test_a_claim_of_an_excluded_namespace_lives_nowhere() -> None:
    """But one that has its volume already: nobody loses data by an edit of the topology."""
    here = ground()
    here.topology = here.topology.model_copy(update={"exclude_namespaces": ("default",)})
    assert where(here, claim(node=A)) == "NamespaceExcluded"
    assert "default" not in namespaces_selected_in(here, here.lowers[A])
    settled_claim(here, B)
    assert where(here, claim(volume="pvc-claim-data", node=A)) == B


def test_a_claim_lives_where_its_first_pod_is() -> None:
    """The one that has been there longest, so that every lower says the same."""
    here = ground()
    assert where(here, claim()) == ""
    bound(here, "second", A, creationTimestamp="2026-03-01T12:00:05Z")
    assert where(here, claim()) == A
    bound(here, "first", B, creationTimestamp="2026-03-01T12:00:01Z")
    assert where(here, claim()) == B


def test_pods_that_are_not_mirrored_choose_nothing() -> None:
    """One that has ended needs no volume."""
    here = ground()
    put(here.lowers[A].upper_pods, upper_pod(spec=bound(here).manifest()["spec"], status={"phase": "Succeeded"}))
    assert where(here, claim()) == ""


def test_a_copy_that_is_in_use_or_bound_keeps_a_claim() -> None:
    """Though an older pod turns up elsewhere; one that is neither keeps nothing, and data weigh more than use."""
    here = ground()
    below(here, copy(claim()), lower=A)
    bound(here, "older", B, creationTimestamp="2026-03-01T12:00:01Z")
    assert where(here, claim()) == B
    bound(here, "younger", A, creationTimestamp="2026-03-01T12:00:05Z")
    assert where(here, claim()) == A
    below(here, copy(claim(), "1Gi"), lower=B)
    assert where(here, claim()) == B


def test_a_claim_waits_for_a_lower_that_may_have_it() -> None:
    """It was to be made there, and nothing was heard of it since the start; a copy in use is better known."""
    here = ground()
    noted = claim(annotations={LOWER: A})
    bound(here, "younger", A, creationTimestamp="2026-03-01T12:00:05Z")
    bound(here, "older", B, creationTimestamp="2026-03-01T12:00:01Z")
    here.lowers[A].more[CLAIM].mark_stale()
    found = home(above(here, noted), here)
    assert (found.lower, found.problem and found.problem.reason) == (A, "LowerUnreachable")
    below(here, copy(claim()), lower=B)
    assert where(here, noted) == B


def test_a_claim_does_not_wait_for_a_lower_that_it_was_not_to_be_in() -> None:
    """Else one cluster that is away would keep the pods of all others waiting; nor for one that has not got it."""
    here = ground()
    bound(here, lower=B)
    assert where(here, claim(annotations={LOWER: A})) == B
    here.lowers[A].more[CLAIM].mark_stale()
    assert where(here, claim()) == B
    assert where(here, claim(annotations={LOWER: "gone"})) == B


def test_a_claim_of_another_provisioner_goes_down_only_where_its_class_is_listed() -> None:
    """Else two clusters would each make a volume for it."""
    here = ground()
    bound(here)
    assert where(here, claim(annotations=ASKED, word="ebs")) == A
    assert where(here, claim(annotations=FOREIGN)) == A
    assert where(here, claim(annotations=FOREIGN, word="ebs")) == "ClaimNotMirrored"
    assert where(here, claim(word="ebs")) == A


def test_without_the_controller_no_claim_lives_there() -> None:
    """Nor is anything known of storage."""
    here = ground()
    assert can_tell(here, here.lowers[A])
    bound(here)
    reload(here, more="controllers: [Service]")
    assert where(here, claim()) == where(here, claim(node=A)) == ""
    assert not can_tell(here, here.lowers[A])


@pytest.mark.parametrize("kind", [CLAIM, VOLUME])
def test_nothing_is_told_from_incomplete_caches(kind: object) -> None:
    """On either side."""
    for side in ("upper", "lower"):
        here = ground()
        holder = here.upper if side == "upper" else here.lowers[A]
        next(cache for one, cache in holder.more.items() if one == kind).mark_stale()
        assert not can_tell(here, here.lowers[A])


def test_a_namespace_is_needed_for_a_claim_that_a_pod_waits_for() -> None:
    """The pod itself is bound only afterwards."""
    here = ground()
    above(here, claim(node=A))
    assert "default" in namespaces_selected_in(here, here.lowers[A])
    assert "other" not in namespaces_selected_in(here, here.lowers[A])
    assert "default" not in namespaces_selected_in(here, here.lowers[B])
    above(here, claim(node=A, volume="pvc-claim-data"))
    assert "default" not in namespaces_selected_in(here, here.lowers[A])


def test_the_facts_of_a_claim() -> None:
    """Everything that decisions ask for often."""
    owner = [{"kind": "Pod", "name": "web", "controller": True}]
    facts = facts_of(claim(node=A, ownerReferences=owner, deletionTimestamp="2026-03-01T12:00:00Z"))
    assert (facts.selected, facts.provisioner, facts.storage_class) == (A, PROVISIONER, "goes")
    assert (facts.passing, facts.terminating, facts.bound, facts.volume) == (True, True, False, "")
    assert facts_of(claim(volume="v")).bound
    assert facts_of(copy(claim(), phase="Lost")).lost
    assert facts_of(copy(claim())).upper_uid == "claim-data"
    old = claim(annotations={"volume.beta.kubernetes.io/storage-provisioner": "old"})
    assert facts_of(old).provisioner == "old"


def test_a_class_in_the_old_annotation_counts() -> None:
    """No class in particular and the empty class are two things."""
    made = claim()
    assert class_of(made) == "goes"
    assert class_of(claim(annotations={"volume.beta.kubernetes.io/storage-class": "old"})) == "old"
    del made["spec"]["storageClassName"]
    assert class_of(made) is None


def test_a_class_keeps_its_name_unless_it_is_mapped() -> None:
    """As the topology has it."""
    assert (mapped({"goes": "disk"}, "goes"), mapped({"goes": "disk"}, "other")) == ("disk", "other")
