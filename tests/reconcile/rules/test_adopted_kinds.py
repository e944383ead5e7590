"""Tests of `onConflict: adopt` for kinds of controllers: adopted if the object can become as desired, else refused.

The table of objects that may be adopted is the same for every kind. This module has the special cases of each kind.
"""

from typing import Any

import pytest
from rbackit import BINDING_KEY, ROBOT, binding, granted, with_binding, with_role
from servicekit import KEY as SERVICE_KEY
from servicekit import SLICE_KEY, SLICE_REF, done, exposed, service, sliced
from storagekit import KEY as CLAIM_KEY
from storagekit import above, below, bound, claim, copy, ground, volume, volumes
from worldkit import SIBLING, A, decided, kept_node, marked, put, thing

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


def adopting(here: World) -> World:
    """Let lower-a adopt objects that lost their owner."""
    here.lowers[A].spec = here.lowers[A].spec.model_copy(update={"on_conflict": "adopt"})
    return here


def legacy(manifest: Manifest, **meta: Any) -> Manifest:
    """Return an object as tensile-kube leaves it."""
    notes = {**(manifest["metadata"].get("annotations") or {}), LEGACY: "true"}
    return {**manifest, "metadata": {**manifest["metadata"], "uid": "theirs", **meta, "annotations": notes}}


def planned(here: World, key: Key) -> Plan:
    """Return the plan of a key."""
    return decided(RULES[key.rule], key, here)[1]


def taken(here: World, key: Key) -> Step:
    """Return the only step of a plan, which adopts an object by its marks alone."""
    found = planned(here, key)
    assert found.problem is None
    (step,) = (one for one in found.steps if one.ref.kind.name != "Event")
    assert (step.verb, step.reason, step.uid) == ("patch", "onConflict: adopt", "theirs")
    assert step.patch is not None
    assert step.patch.body[1]["path"] == "/metadata/resourceVersion"
    assert all(one["path"].startswith("/metadata/") for one in step.operations)
    return step


def refusal(here: World, key: Key) -> str:
    """Return the reason why an object is not adopted, and check that nothing is written in the lower cluster."""
    found = planned(here, key)
    assert [step for step in found.steps if step.ref.cluster != UPPER] == []
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"
    return found.problem.message


# Services.


def served(theirs: Manifest, more: str = ADOPT) -> World:
    """Create a world in which a Service of tensile-kube has the name of the desired one."""
    here = exposed(more=more)
    put(here.lowers[A].more[SERVICE], legacy(theirs))
    return here


def test_a_service_without_a_selector_is_adopted_and_keeps_its_address() -> None:
    """tensile-kube moved selectors into an annotation.

    Ports and type are patched once the Service is ours.
    """
    here = served(service(selector=None, ports=[{"port": 1}]))
    taken(here, SERVICE_KEY)
    put(here.lowers[A].more[SERVICE], marked(legacy(service(selector=None, ports=[{"port": 1}])), uid(service())))
    (step,) = planned(here, SERVICE_KEY).steps
    assert (step.verb, step.uid) == ("patch", "theirs")
    assert not any("clusterIP" in one["path"] for one in step.operations)


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (service(), "another client added a selector"),
        (service(selector=None, clusterIP="None"), "it is headless in one cluster only"),
    ],
    ids=["with a selector", "headless"],
)
def test_a_service_that_cannot_become_as_desired_is_not_adopted(theirs: Manifest, words: str) -> None:
    """It would have to be created again with another address, and its clients are unknown."""
    assert f"it is not adopted: {words}" in refusal(served(theirs), SERVICE_KEY)
    assert refusal(served(theirs, more=""), SERVICE_KEY).endswith("rename or delete one of the two")


def test_a_service_without_marks_is_not_adopted() -> None:
    """The reason is that no owner of it is known, whatever its spec."""
    here = exposed(more=ADOPT)
    put(here.lowers[A].more[SERVICE], service())
    assert "only objects created by tensile-kube" in refusal(here, SERVICE_KEY)


def test_a_refused_adoption_is_reported_by_an_event_of_the_upper_service() -> None:
    """The owner of the Service sees the Event there."""
    here = served(service())
    here.problems[SERVICE_KEY] = Problem("NameConflict", "because")
    decision, _ = decided(services.RULE, SERVICE_KEY, here)
    assert [(one.about, one.message) for one in decision.wanted if isinstance(one, EmitEvent)] == [
        (Ref(UPPER, SERVICE, "default", "web"), "because")
    ]


def test_an_endpoint_slice_is_adopted_and_gets_our_endpoints() -> None:
    """Its owner reference is then our Service."""
    here = done(exposed(more=ADOPT), SERVICE_KEY)
    put(here.lowers[A].more[ENDPOINT_SLICE], legacy(sliced()))
    taken(here, SLICE_KEY)
    put(here.lowers[A].more[ENDPOINT_SLICE], marked(legacy({**sliced(), "endpoints": []}), uid(sliced())))
    (step,) = planned(here, SLICE_KEY).steps
    assert {one["path"] for one in step.operations} >= {"/endpoints", "/metadata/ownerReferences"}


def test_an_adopted_slice_of_another_address_type_is_replaced() -> None:
    """The type is immutable.

    The slice is ours by then, and no client uses a slice by its own address.
    """
    here = done(exposed(more=ADOPT), SERVICE_KEY)
    other = {**sliced(), "addressType": "IPv6"}
    put(here.lowers[A].more[ENDPOINT_SLICE], marked(legacy(other), uid(sliced())))
    (step,) = planned(here, SLICE_KEY).steps
    assert (step.verb, step.ref, step.uid) == ("delete", SLICE_REF, "theirs")


# Claims and volumes.


def claimed(theirs: Manifest) -> World:
    """Create a world in which a claim of tensile-kube has the name of the claim that a pod needs."""
    here = adopting(ground())
    above(here, claim())
    bound(here)
    below(here, theirs)
    return here


def bare(size: str = "1Gi", **spec: Any) -> Manifest:
    """Return a lower claim with a volume, as tensile-kube leaves it."""
    made = copy(claim(), size)
    meta = {"name": "data", "namespace": "default", "annotations": {LEGACY: "true"}, "uid": "theirs"}
    return {**made, "metadata": meta, "spec": {**made["spec"], **spec}}


def test_a_claim_that_equals_the_upper_claims_request_is_adopted() -> None:
    """It keeps its data."""
    step = taken(claimed(bare()), CLAIM_KEY)
    assert step.ref == Ref(A, CLAIM, "default", "data")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"storageClassName": "tape"}, "its storageClassName is tape, not disk"),
        ({"accessModes": ["ReadOnlyMany"]}, "its accessModes is ['ReadOnlyMany'], not ['ReadWriteOnce']"),
        ({"resources": {"requests": {"storage": "2Gi"}}}, "it requests more storage, and claims cannot shrink"),
    ],
    ids=["class", "modes", "size"],
)
def test_a_claim_that_differs_is_not_adopted_and_the_upper_claim_gets_an_event(spec: Manifest, words: str) -> None:
    """Kubernetes does not allow these fields of a claim to change."""
    here = claimed(bare(**spec))
    assert f"it is not adopted: {words}" in refusal(here, CLAIM_KEY)
    (told,) = (one for one in decided(ClaimRule(), CLAIM_KEY, here)[0].wanted if isinstance(one, EmitEvent))
    assert words in told.message


def test_a_claim_without_marks_is_not_adopted() -> None:
    """Its owner is checked before its fields."""
    theirs = bare(storageClassName="tape")
    del theirs["metadata"]["annotations"]
    assert "only objects created by tensile-kube" in refusal(claimed(theirs), CLAIM_KEY)


def renamed(*found: Manifest) -> World:
    """Create a world with these volumes and an upper claim that is bound to the placeholder of a removed topology."""
    here = adopting(ground())
    above(here, claim(volume="pvc-claim-data", node=A))
    for one in found:
        volumes(here, one)
    return here


def theirs() -> Manifest:
    """Return the placeholder of the removed topology."""
    return marked(volume(claim()), "claim-data", SIBLING, uid="theirs")


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
    here = renamed(theirs())
    put(here.upper.nodes, kept_node(SIBLING.mark))
    assert "topology second of this upper cluster owns it and is running" in refusal(here, VOLUME_KEY)
    elsewhere = theirs()
    elsewhere["metadata"]["annotations"][LOWER] = "lower-b"
    assert planned(renamed(elsewhere), VOLUME_KEY) == Plan(())
    here = renamed()
    here.upper.more[VOLUME].confirm_absent("", "pvc-claim-data")
    assert planned(here, VOLUME_KEY) == Plan(())
    here = renamed(theirs())
    here.lowers[A].spec = here.lowers[A].spec.model_copy(update={"on_conflict": "fail"})
    assert planned(here, VOLUME_KEY) == Plan(())


def test_a_name_conflict_of_a_placeholder_is_reported_by_an_event_of_the_claim() -> None:
    """The owner of the claim would otherwise wait for a volume without a reason."""
    here = ground()
    above(here, claim(node=A))
    below(here, copy(claim()))
    volumes(here, thing("PersistentVolume", "pvc-claim-data", ""))
    assert "exists in the upper cluster and has another owner" in refusal(here, VOLUME_KEY)
    here.problems[VOLUME_KEY] = Problem("NameConflict", "because")
    (told,) = (one for one in decided(VolumeRule(), VOLUME_KEY, here)[0].wanted if isinstance(one, EmitEvent))
    assert (told.about, told.uid, told.message) == (Ref(UPPER, CLAIM, "default", "data"), "claim-data", "because")


# Accounts and rights.


@pytest.mark.parametrize(
    ("kind", "key", "made"),
    [
        (ROLE, BINDING_KEY._replace(name="Role/reader"), thing("Role", "reader")),
        (SERVICE_ACCOUNT, account_key(A, "default", "robot"), thing("ServiceAccount", "robot")),
    ],
    ids=["Role", "ServiceAccount"],
)
def test_roles_and_service_accounts_are_adopted(kind: Kind, key: Key, made: Manifest) -> None:
    """Their content is patched once they are ours."""
    here = adopting(granted())
    put(here.lowers[A].more[kind], legacy(made))
    taken(here, key)


def test_an_adopted_role_binding_to_another_role_is_replaced() -> None:
    """It would grant other permissions to our ServiceAccounts, and its role reference is immutable."""
    other = binding(kind="ClusterRole", name="cluster-admin", subjects=[])
    here = adopting(with_role(granted()))
    put(here.lowers[A].more[ROLE_BINDING], legacy(other))
    taken(here, BINDING_KEY)
    here = with_binding(with_role(granted()), roleRef=other["roleRef"], subjects=[])
    (step,) = planned(here, BINDING_KEY).steps
    assert (step.verb, step.uid) == ("delete", "below-binding")


def test_a_role_binding_is_deleted_if_another_owner_has_its_role_now() -> None:
    """The role name stands for other permissions then."""
    here = with_binding(granted(), subjects=[ROBOT])
    put(here.lowers[A].more[ROLE], thing("Role", "reader"))
    (step,) = planned(here, BINDING_KEY).steps
    assert (step.verb, step.uid) == ("delete", "below-binding")


# Secrets with tokens.


@pytest.mark.parametrize("owner", [SIBLING, None], ids=["of a removed topology", "without marks"])
def test_a_token_secret_is_adopted_before_tokens_are_requested(owner: Any) -> None:
    """No token is written to a Secret of another owner."""
    ref, key = Ref(A, SECRET, "default", "tokens"), Key("token", A, "default", "web")
    meta = {"name": "tokens", "namespace": "default"}
    wanted = marked({"kind": "Secret", "metadata": meta, "data": {"token": ""}}, "Pod-web")
    found = thing("Secret", "tokens", uid="theirs")
    here = adopting(granted())
    put(here.lowers[A].secrets, found if owner is None else marked(found, "Pod-web", owner, uid="theirs"))
    account = Ref(UPPER, SERVICE_ACCOUNT, "default", "robot")
    plans = plan(key, Decision((TokenSecret(ref, account, (), wanted, "because"),)), here)
    if owner is None:
        assert plans.steps == ()
        assert plans.problem is not None
        assert "only objects created by tensile-kube" in plans.problem.message
    else:
        (step,) = plans.steps
        assert (step.verb, step.reason, step.grant) == ("patch", "onConflict: adopt", None)
        assert {one["path"] for one in step.operations} >= {f"/metadata/labels/{OWNER.replace('/', '~1')}"}
        assert not any(UPPER_UID in one["path"].replace("~1", "/") for one in step.operations)
