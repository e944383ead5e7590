"""What claims are filled from: a claim above whose copy is ours, and nothing that the lower cluster alone has."""

import pytest
from storagekit import KEY, above, below, bound, claim, copy, ground, planned, reason, settled_claim, volume, volumes
from worldkit import A, decided, thing

from tensile.objects import CLAIM, Manifest
from tensile.reconcile.rules.claim_rule import ClaimRule, key_of
from tensile.reconcile.rules.claims import SELECTED_NODE, foreign_source, source_claims
from tensile.reconcile.world import World

ORIGIN = {"kind": "PersistentVolumeClaim", "name": "origin"}
SNAPSHOT = {"kind": "VolumeSnapshot", "apiGroup": "snapshot.storage.k8s.io", "name": "origin"}
ELSEWHERE = {**ORIGIN, "namespace": "other"}


def filled(source: Manifest, field: str = "dataSource", **given: str) -> Manifest:
    """Make a claim above that has the data source a source."""
    made = claim(**given)
    return {**made, "spec": {**made["spec"], field: source}}


def used(source: Manifest, field: str = "dataSource") -> World:
    """Make a world where a pod in lower-a uses such a claim."""
    here = ground()
    above(here, filled(source, field))
    bound(here)
    return here


@pytest.mark.parametrize("field", ["dataSource", "dataSourceRef"])
@pytest.mark.parametrize("source", [SNAPSHOT, ELSEWHERE], ids=["snapshot", "of another namespace"])
def test_what_is_not_mirrored_is_no_source(source: Manifest, field: str) -> None:
    """Nothing is made below: what has that name there is another's data. The claim above says why."""
    here = used(source, field)
    assert reason(here) == "ClaimNotMirrored"
    words = f"claim default/data has the data source {source['kind']} origin"
    assert (planned(here).problem or ("", ""))[1].startswith(words)
    assert any(words in step.body["message"] for step in planned(here).steps if step.body)


def test_a_clone_waits_for_its_origin_below() -> None:
    """A claim of that name in the lower cluster is not it, unless it is the copy of the one above."""
    here = used(ORIGIN)
    assert reason(here) == "ClaimNotMirrored"
    assert decided(ClaimRule(), KEY, here)[0].depends_on == (key_of(A, "default", "origin"),)
    below(here, {**copy(claim("origin"), "1Gi"), **thing(CLAIM.name, "origin")})
    assert reason(here) == "ClaimNotMirrored"
    origin = claim("origin", volume="pvc-claim-origin")
    above(here, origin)
    below(here, copy(origin, "1Gi"))
    volumes(here, volume(origin))
    found = planned(here)
    assert found.problem is None
    assert [(step.verb, step.ref.kind, step.ref.cluster) for step in found.steps if step.ref.cluster] == [
        ("create", CLAIM, A)
    ]


def test_the_upper_scheduler_may_choose_another_node_for_a_claim_that_cannot_be_filled() -> None:
    """Its source may be in the lower behind that one."""
    here = ground()
    above(here, filled(ORIGIN, node=A))
    taken = f"/metadata/annotations/{SELECTED_NODE.replace('/', '~1')}"
    removed = [one["path"] for step in planned(here).steps for one in step.operations if one["op"] == "remove"]
    assert removed == [taken]


def test_a_claim_that_is_there_stays_as_it_is() -> None:
    """It was filled when it was made."""
    here = ground()
    made = {**settled_claim(here)}
    above(here, {**made, "spec": {**made["spec"], "dataSource": SNAPSHOT}})
    assert planned(here).problem is None


def test_a_source_is_read_from_both_fields() -> None:
    """Kubernetes gives the one where the other is named."""
    assert (foreign_source({}), source_claims({})) == ("", frozenset())
    assert (foreign_source({"dataSource": None}), foreign_source({"dataSource": ORIGIN})) == ("", "")
    assert source_claims({"dataSource": ORIGIN, "dataSourceRef": {**ORIGIN, "apiGroup": ""}}) == {"origin"}
    assert foreign_source({"dataSource": ORIGIN, "dataSourceRef": SNAPSHOT}).startswith("VolumeSnapshot origin: ")
    assert foreign_source({"dataSourceRef": ELSEWHERE}).startswith("PersistentVolumeClaim origin of namespace other: ")
    assert source_claims({"dataSourceRef": ELSEWHERE}) == frozenset()
