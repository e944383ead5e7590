"""Tests of `onConflict: adopt` for kinds of controllers: adopted if the object can become as desired, else refused.

The table of objects that may be adopted is the same for every kind. This module has the special cases of each kind.
"""

from typing import Any

import pytest
from rbackit import BINDING_KEY, ROBOT, binding, put_lower_binding, put_lower_role, rbac_world
from servicekit import KEY as SERVICE_KEY
from servicekit import SLICE_KEY, SLICE_REF, apply_desired, endpoint_slice, service, service_world
from storagekit import KEY as CLAIM_KEY
from storagekit import (
    make_claim,
    make_lower_claim,
    make_placeholder,
    put_bound_pod,
    put_lower_claims,
    put_upper_claims,
    put_upper_volumes,
    storage_world,
)
from worldkit import SIBLING, A, decision_and_plan, make_object, make_owned_node, put, with_owner_marks

from tensile.names import LEGACY, LOWER, OWNER, UPPER_UID
from tensile.objects import (
    CLAIM,
    ENDPOINT_SLICE,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    UPPER,
    VOLUME,
    Kind,
    Manifest,
    Ref,
    uid,
)
from tensile.reconcile.desired import Decision, EmitEvent, TokenSecret
from tensile.reconcile.plan import Plan, Step, plan
from tensile.reconcile.rules import endpoint_slices, rbac, service_accounts, services
from tensile.reconcile.rules.claim_rule import ClaimRule
from tensile.reconcile.rules.service_accounts import key_of as account_key
from tensile.reconcile.rules.volumes import VolumeRule
from tensile.reconcile.rules.volumes import key_of as volume_key
from tensile.reconcile.world import Key, Problem, World

ADOPT = "onConflict: adopt\n"
VOLUME_KEY = volume_key(A, "pvc-claim-data")
RULES: dict[str, Any] = {
    "service": services.RULE,
    "slice": endpoint_slices.RULE,
    "claim": ClaimRule(),
    "volume": VolumeRule(),
    "rights": rbac.RULE,
    "account": service_accounts.RULE,
}


def adopting(world: World) -> World:
    """Let lower-a adopt objects that lost their owner."""
    world.lowers[A].spec = world.lowers[A].spec.model_copy(update={"on_conflict": "adopt"})
    return world


def legacy(manifest: Manifest, **meta: Any) -> Manifest:
    """Return an object as tensile-kube leaves it."""
    notes = {**(manifest["metadata"].get("annotations") or {}), LEGACY: "true"}
    return {**manifest, "metadata": {**manifest["metadata"], "uid": "theirs", **meta, "annotations": notes}}


def planned(world: World, key: Key) -> Plan:
    """Return the plan of a key."""
    return decision_and_plan(RULES[key.rule], key, world)[1]


def taken(world: World, key: Key) -> Step:
    """Return the only step of a plan, which adopts an object by its marks alone."""
    found = planned(world, key)
    assert found.problem is None
    (step,) = (one for one in found.steps if one.ref.kind.name != "Event")
    assert (step.verb, step.reason, step.uid) == ("patch", "onConflict: adopt", "theirs")
    assert step.patch is not None
    assert step.patch.body[1]["path"] == "/metadata/resourceVersion"
    assert all(one["path"].startswith("/metadata/") for one in step.operations)
    return step


def refusal(world: World, key: Key) -> str:
    """Return the reason why an object is not adopted, and check that nothing is written in the lower cluster."""
    found = planned(world, key)
    assert [step for step in found.steps if step.ref.cluster != UPPER] == []
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"
    return found.problem.message


# Services.


def served(theirs: Manifest, more: str = ADOPT) -> World:
    """Create a world in which a Service of tensile-kube has the name of the desired one."""
    world = service_world(more=more)
    put(world.lowers[A].more[SERVICE], legacy(theirs))
    return world


def test_a_service_without_a_selector_is_adopted_and_keeps_its_address() -> None:
    """tensile-kube moved selectors into an annotation.

    Ports and type are patched once the Service is ours.
    """
    world = served(service(selector=None, ports=[{"port": 1}]))
    taken(world, SERVICE_KEY)
    put(
        world.lowers[A].more[SERVICE],
        with_owner_marks(legacy(service(selector=None, ports=[{"port": 1}])), uid(service())),
    )
    (step,) = planned(world, SERVICE_KEY).steps
    assert (step.verb, step.uid) == ("patch", "theirs")
    assert not any("clusterIP" in one["path"] for one in step.operations)


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (service(), "another client added a selector"),
        (service(selector=None, clusterIP="None"), "it is headless in one cluster only"),
    ],
    ids=["with a selector", "headless"],
)
def test_a_service_that_cannot_become_as_desired_is_not_adopted(theirs: Manifest, message: str) -> None:
    """It would have to be created again with another address, and its clients are unknown."""
    assert f"it is not adopted: {message}" in refusal(served(theirs), SERVICE_KEY)
    assert refusal(served(theirs, more=""), SERVICE_KEY).endswith("rename or delete one of the two")


def test_a_service_without_marks_is_not_adopted() -> None:
    """The reason is that no owner of it is known, whatever its spec."""
    world = service_world(more=ADOPT)
    put(world.lowers[A].more[SERVICE], service())
    assert "only objects created by tensile-kube" in refusal(world, SERVICE_KEY)


def test_a_refused_adoption_is_reported_by_an_event_of_the_upper_service() -> None:
    """The owner of the Service sees the Event there."""
    world = served(service())
    world.problems[SERVICE_KEY] = Problem("NameConflict", "because")
    decision, _ = decision_and_plan(services.RULE, SERVICE_KEY, world)
    assert [(one.about, one.message) for one in decision.wanted if isinstance(one, EmitEvent)] == [
        (Ref(UPPER, SERVICE, "default", "web"), "because")
    ]


def test_an_endpoint_slice_is_adopted_and_gets_our_endpoints() -> None:
    """Its owner reference is then our Service."""
    world = apply_desired(service_world(more=ADOPT), SERVICE_KEY)
    put(world.lowers[A].more[ENDPOINT_SLICE], legacy(endpoint_slice()))
    taken(world, SLICE_KEY)
    put(
        world.lowers[A].more[ENDPOINT_SLICE],
        with_owner_marks(legacy({**endpoint_slice(), "endpoints": []}), uid(endpoint_slice())),
    )
    (step,) = planned(world, SLICE_KEY).steps
    assert {one["path"] for one in step.operations} >= {"/endpoints", "/metadata/ownerReferences"}


def test_an_adopted_slice_of_another_address_type_is_replaced() -> None:
    """The type is immutable.

    The slice is ours by then, and no client uses a slice by its own address.
    """
    world = apply_desired(service_world(more=ADOPT), SERVICE_KEY)
    other = {**endpoint_slice(), "addressType": "IPv6"}
    put(world.lowers[A].more[ENDPOINT_SLICE], with_owner_marks(legacy(other), uid(endpoint_slice())))
    (step,) = planned(world, SLICE_KEY).steps
    assert (step.verb, step.ref, step.uid) == ("delete", SLICE_REF, "theirs")


# Claims and volumes.


def claimed(theirs: Manifest) -> World:
    """Create a world in which a claim of tensile-kube has the name of the claim that a pod needs."""
    world = adopting(storage_world())
    put_upper_claims(world, make_claim())
    put_bound_pod(world)
    put_lower_claims(world, theirs)
    return world


def bare(size: str = "1Gi", **spec: Any) -> Manifest:
    """Return a lower claim with a volume, as tensile-kube leaves it."""
    made = make_lower_claim(make_claim(), size)
    meta = {"name": "data", "namespace": "default", "annotations": {LEGACY: "true"}, "uid": "theirs"}
    return {**made, "metadata": meta, "spec": {**made["spec"], **spec}}


def test_a_claim_that_equals_the_upper_claims_request_is_adopted() -> None:
    """It keeps its data."""
    step = taken(claimed(bare()), CLAIM_KEY)
    assert step.ref == Ref(A, CLAIM, "default", "data")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"storageClassName": "tape"}, "its storageClassName is tape, not disk"),
        ({"accessModes": ["ReadOnlyMany"]}, "its accessModes is ['ReadOnlyMany'], not ['ReadWriteOnce']"),
        ({"resources": {"requests": {"storage": "2Gi"}}}, "it requests more storage, and claims cannot shrink"),
    ],
    ids=["class", "modes", "size"],
)
def test_a_claim_that_differs_is_not_adopted_and_the_upper_claim_gets_an_event(spec: Manifest, message: str) -> None:
    """Kubernetes does not allow these fields of a claim to change."""
    world = claimed(bare(**spec))
    assert f"it is not adopted: {message}" in refusal(world, CLAIM_KEY)
    (event,) = (one for one in decision_and_plan(ClaimRule(), CLAIM_KEY, world)[0].wanted if isinstance(one, EmitEvent))
    assert message in event.message


def test_a_claim_without_marks_is_not_adopted() -> None:
    """Its owner is checked before its fields."""
    theirs = bare(storageClassName="tape")
    del theirs["metadata"]["annotations"]
    assert "only objects created by tensile-kube" in refusal(claimed(theirs), CLAIM_KEY)


def renamed(*found: Manifest) -> World:
    """Create a world with these volumes and an upper claim that is bound to the placeholder of a removed topology."""
    world = adopting(storage_world())
    put_upper_claims(world, make_claim(volume="pvc-claim-data", node=A))
    for one in found:
        put_upper_volumes(world, one)
    return world


def theirs() -> Manifest:
    """Return the placeholder of the removed topology."""
    return with_owner_marks(make_placeholder(make_claim()), "claim-data", SIBLING, uid="theirs")


def test_the_placeholder_of_a_removed_topology_is_read_and_adopted() -> None:
    """Its name follows from the claim, and its record of the lower claim stays."""
    (step,) = planned(renamed(), VOLUME_KEY).steps
    ref = Ref(UPPER, VOLUME, "", "pvc-claim-data")
    assert (step.verb, step.ref, step.uid) == ("confirm", ref, "")
    step = taken(renamed(theirs()), VOLUME_KEY)
    changed = {one["path"]: one["value"] for one in step.operations}
    assert changed[f"/metadata/labels/{OWNER.replace('/', '~1')}"] == renamed().owner.mark
    assert not any(LOWER in path.replace("~1", "/") for path in changed)


def test_a_volume_of_another_owner_is_not_adopted() -> None:
    """Its topology runs, it represents the claim of another lower, it is absent, or the lower does not adopt."""
    world = renamed(theirs())
    put(world.upper.nodes, make_owned_node(SIBLING.mark))
    assert "topology second of this upper cluster owns it and is running" in refusal(world, VOLUME_KEY)
    elsewhere = theirs()
    elsewhere["metadata"]["annotations"][LOWER] = "lower-b"
    assert planned(renamed(elsewhere), VOLUME_KEY) == Plan(())
    world = renamed()
    world.upper.more[VOLUME].confirm_absent("", "pvc-claim-data")
    assert planned(world, VOLUME_KEY) == Plan(())
    world = renamed(theirs())
    world.lowers[A].spec = world.lowers[A].spec.model_copy(update={"on_conflict": "fail"})
    assert planned(world, VOLUME_KEY) == Plan(())


def test_a_name_conflict_of_a_placeholder_is_reported_by_an_event_of_the_claim() -> None:
    """The owner of the claim would otherwise wait for a volume without a reason."""
    world = storage_world()
    put_upper_claims(world, make_claim(node=A))
    put_lower_claims(world, make_lower_claim(make_claim()))
    put_upper_volumes(world, make_object("PersistentVolume", "pvc-claim-data", ""))
    assert "exists in the upper cluster and has another owner" in refusal(world, VOLUME_KEY)
    world.problems[VOLUME_KEY] = Problem("NameConflict", "because")
    (event,) = (
        one for one in decision_and_plan(VolumeRule(), VOLUME_KEY, world)[0].wanted if isinstance(one, EmitEvent)
    )
    assert (event.about, event.uid, event.message) == (Ref(UPPER, CLAIM, "default", "data"), "claim-data", "because")


# Accounts and rights.


@pytest.mark.parametrize(
    ("kind", "key", "made"),
    [
        (ROLE, BINDING_KEY._replace(name="Role/reader"), make_object("Role", "reader")),
        (SERVICE_ACCOUNT, account_key(A, "default", "robot"), make_object("ServiceAccount", "robot")),
    ],
    ids=["Role", "ServiceAccount"],
)
def test_roles_and_service_accounts_are_adopted(kind: Kind, key: Key, made: Manifest) -> None:
    """Their content is patched once they are ours."""
    world = adopting(rbac_world())
    put(world.lowers[A].more[kind], legacy(made))
    taken(world, key)


def test_an_adopted_role_binding_to_another_role_is_replaced() -> None:
    """It would grant other permissions to our ServiceAccounts, and its role reference is immutable."""
    other = binding(kind="ClusterRole", name="cluster-admin", subjects=[])
    world = adopting(put_lower_role(rbac_world()))
    put(world.lowers[A].more[ROLE_BINDING], legacy(other))
    taken(world, BINDING_KEY)
    world = put_lower_binding(put_lower_role(rbac_world()), roleRef=other["roleRef"], subjects=[])
    (step,) = planned(world, BINDING_KEY).steps
    assert (step.verb, step.uid) == ("delete", "below-binding")


def test_a_role_binding_is_deleted_if_another_owner_has_its_role_now() -> None:
    """The role name stands for other permissions then."""
    world = put_lower_binding(rbac_world(), subjects=[ROBOT])
    put(world.lowers[A].more[ROLE], make_object("Role", "reader"))
    (step,) = planned(world, BINDING_KEY).steps
    assert (step.verb, step.uid) == ("delete", "below-binding")


# Secrets with tokens.


@pytest.mark.parametrize("owner", [SIBLING, None], ids=["of a removed topology", "without marks"])
def test_a_token_secret_is_adopted_before_tokens_are_requested(owner: Any) -> None:
    """No token is written to a Secret of another owner."""
    ref, key = Ref(A, SECRET, "default", "tokens"), Key("token", A, "default", "web")
    meta = {"name": "tokens", "namespace": "default"}
    wanted = with_owner_marks({"kind": "Secret", "metadata": meta, "data": {"token": ""}}, "Pod-web")
    found = make_object("Secret", "tokens", uid="theirs")
    world = adopting(rbac_world())
    put(world.lowers[A].secrets, found if owner is None else with_owner_marks(found, "Pod-web", owner, uid="theirs"))
    account = Ref(UPPER, SERVICE_ACCOUNT, "default", "robot")
    plans = plan(key, Decision((TokenSecret(ref, account, (), wanted, "because"),)), world)
    if owner is None:
        assert plans.steps == ()
        assert plans.problem is not None
        assert "only objects created by tensile-kube" in plans.problem.message
    else:
        (step,) = plans.steps
        assert (step.verb, step.reason, step.grant) == ("patch", "onConflict: adopt", None)
        assert {one["path"] for one in step.operations} >= {f"/metadata/labels/{OWNER.replace('/', '~1')}"}
        assert not any(UPPER_UID in one["path"].replace("~1", "/") for one in step.operations)
