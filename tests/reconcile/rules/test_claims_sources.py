"""Tests of data sources of claims: only an upper claim whose copy is ours, and no object of the lower cluster alone."""

import pytest
from storagekit import (
    KEY,
    make_claim,
    make_lower_claim,
    make_placeholder,
    plan_of,
    problem_reason,
    put_bound_claim,
    put_bound_pod,
    put_lower_claims,
    put_upper_claims,
    put_upper_volumes,
    storage_world,
)
from worldkit import A, decision_and_plan, make_object

from tensile.objects import CLAIM, Manifest
from tensile.reconcile.rules.claim_rule import ClaimRule, key_of
from tensile.reconcile.rules.claims import SELECTED_NODE, foreign_source, source_claims
from tensile.reconcile.world import World

ORIGIN = {"kind": "PersistentVolumeClaim", "name": "origin"}
SNAPSHOT = {"kind": "VolumeSnapshot", "apiGroup": "snapshot.storage.k8s.io", "name": "origin"}
ELSEWHERE = {**ORIGIN, "namespace": "other"}


def filled(source: Manifest, field: str = "dataSource", **given: str) -> Manifest:
    """Return an upper claim with a data source."""
    made = make_claim(**given)
    return {**made, "spec": {**made["spec"], field: source}}


def used(source: Manifest, field: str = "dataSource") -> World:
    """Create a world in which a pod on lower-a uses such a claim."""
    world = storage_world()
    put_upper_claims(world, filled(source, field))
    put_bound_pod(world)
    return world


@pytest.mark.parametrize("field", ["dataSource", "dataSourceRef"])
@pytest.mark.parametrize("source", [SNAPSHOT, ELSEWHERE], ids=["snapshot", "of another namespace"])
def test_a_claim_with_a_data_source_that_is_not_mirrored_is_not_created(source: Manifest, field: str) -> None:
    """An object of that name in the lower cluster has other data, and an Event of the upper claim has the reason."""
    world = used(source, field)
    assert problem_reason(world) == "ClaimNotMirrored"
    message = f"claim default/data has the data source {source['kind']} origin"
    assert (plan_of(world).problem or ("", ""))[1].startswith(message)
    assert any(message in step.body["message"] for step in plan_of(world).steps if step.body)


def test_a_cloned_claim_waits_for_the_copy_of_its_source() -> None:
    """A lower claim of that name does not count unless it is the copy of the upper one."""
    world = used(ORIGIN)
    assert problem_reason(world) == "ClaimNotMirrored"
    assert decision_and_plan(ClaimRule(), KEY, world)[0].depends_on == (key_of(A, "default", "origin"),)
    put_lower_claims(world, {**make_lower_claim(make_claim("origin"), "1Gi"), **make_object(CLAIM.name, "origin")})
    assert problem_reason(world) == "ClaimNotMirrored"
    origin = make_claim("origin", volume="pvc-claim-origin")
    put_upper_claims(world, origin)
    put_lower_claims(world, make_lower_claim(origin, "1Gi"))
    put_upper_volumes(world, make_placeholder(origin))
    found = plan_of(world)
    assert found.problem is None
    assert [(step.verb, step.ref.kind, step.ref.cluster) for step in found.steps if step.ref.cluster] == [
        ("create", CLAIM, A)
    ]


def test_the_selected_node_of_a_claim_without_its_source_is_removed() -> None:
    """The scheduler may then select the node of the lower that has the source."""
    world = storage_world()
    put_upper_claims(world, filled(ORIGIN, node=A))
    taken = f"/metadata/annotations/{SELECTED_NODE.replace('/', '~1')}"
    removed = [one["path"] for step in plan_of(world).steps for one in step.operations if one["op"] == "remove"]
    assert removed == [taken]


def test_an_existing_claim_is_not_affected_by_its_data_source() -> None:
    """It was filled when it was created."""
    world = storage_world()
    made = {**put_bound_claim(world)}
    put_upper_claims(world, {**made, "spec": {**made["spec"], "dataSource": SNAPSHOT}})
    assert plan_of(world).problem is None


def test_both_data_source_fields_are_read() -> None:
    """Kubernetes sets one of the fields if the other one is set."""
    assert (foreign_source({}), source_claims({})) == ("", frozenset())
    assert (foreign_source({"dataSource": None}), foreign_source({"dataSource": ORIGIN})) == ("", "")
    assert source_claims({"dataSource": ORIGIN, "dataSourceRef": {**ORIGIN, "apiGroup": ""}}) == {"origin"}
    assert foreign_source({"dataSource": ORIGIN, "dataSourceRef": SNAPSHOT}).startswith("VolumeSnapshot origin: ")
    assert foreign_source({"dataSourceRef": ELSEWHERE}).startswith("PersistentVolumeClaim origin of namespace other: ")
    assert source_claims({"dataSourceRef": ELSEWHERE}) == frozenset()
