"""Tests of lower Roles and RoleBindings: only for mirrored ServiceAccounts of this topology."""

from typing import Any

import pytest
from rbackit import (
    BINDING_KEY,
    GROUP,
    ON,
    OTHERS,
    ROBOT,
    ROLE_KEY,
    RULES,
    binding,
    put_lower_binding,
    put_lower_role,
    rbac_world,
    role,
)
from rulekit import RuleUnderTest
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    decision_and_plan,
    delete_observed,
    make_object,
    make_service_account,
    make_upper_pod,
    put,
    relist_without,
    sorted_names,
    with_owner_marks,
)

from tensile.objects import CLUSTER_ROLE, ROLE, ROLE_BINDING, SERVICE_ACCOUNT, UPPER, Manifest, Ref
from tensile.reconcile.desired import Decision, EmitEvent
from tensile.reconcile.plan import Plan
from tensile.reconcile.rules import rbac
from tensile.reconcile.rules.rbac import BindingFacts, transform
from tensile.reconcile.world import Problem

RULE = rbac.RULE
ASKED = RuleUnderTest(RULE, BINDING_KEY)
planned, the_step, heard = ASKED.plan, ASKED.step, ASKED.affected_keys
REFUSED = Problem("Forbidden", "attempting to grant permissions not currently held")


def test_a_role_of_a_mirrored_service_account_is_created() -> None:
    """It has our marks, and its denial blocks no later step."""
    step = the_step(rbac_world(), ROLE_KEY)
    assert (step.verb, step.ref, step.independent) == ("create", Ref(A, ROLE, "default", "reader"), True)
    assert step.body == {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Role",
        "metadata": {
            "name": "reader",
            "namespace": "default",
            "labels": {"tensile-kube.io/owner": OWNER_HERE.mark},
            "annotations": {"tensile-kube.io/owner-name": "demo", "tensile-kube.io/upper-uid": "Role-reader"},
        },
        "rules": RULES,
    }


def test_a_role_binding_is_created_with_mirrored_service_accounts_only() -> None:
    """Other subjects may be other identities in the lower cluster, and must not get permissions there."""
    world = put_lower_role(rbac_world())
    step = the_step(world)
    assert step.body is not None
    assert step.body["subjects"] == [ROBOT]
    assert step.body["roleRef"] == {"apiGroup": GROUP, "kind": "Role", "name": "reader"}
    near = [{"kind": "ServiceAccount", "name": "robot"}]  # the namespace of the binding, as kube-apiserver reads it
    put(world.upper.more[ROLE_BINDING], binding(subjects=near))
    assert the_step(world).body["subjects"] == [ROBOT]  # type: ignore[index]
    assert step.reason == "it grants permissions to pods on node lower-a"


def test_a_role_binding_waits_for_its_role() -> None:
    """The lower role must be the copy of the current upper one.

    Kubernetes refuses a binding to a role that does not exist.
    """
    world = rbac_world()
    assert decision_and_plan(RULE, BINDING_KEY, world)[0] == Decision(depends_on=(ROLE_KEY,))
    put(world.lowers[A].more[ROLE], with_owner_marks(role(), "older", uid="below-role"))
    assert decision_and_plan(RULE, BINDING_KEY, world)[0] == Decision(depends_on=(ROLE_KEY,))
    delete_observed(world.upper.more[ROLE], "reader")
    assert decision_and_plan(RULE, BINDING_KEY, world)[0] == Decision()


OFF = {
    "not enabled": "controllers: [ServiceAccount]\n",
    "the upper's identity": f"{ON}serviceAccounts: {{identity: upper}}\n",
    "no identity": f"{ON}serviceAccounts: {{identity: none}}\n",
    "no accounts": "controllers: [RBAC]\n",
}


@pytest.mark.parametrize("more", OFF.values(), ids=OFF)
@pytest.mark.parametrize("key", [ROLE_KEY, BINDING_KEY])
def test_rights_are_deleted_and_not_created_if_they_are_disabled(more: str, key: Any) -> None:
    """A pod with another identity does not use them."""
    world = rbac_world(more)
    assert planned(world, key) == Plan(())
    step = the_step(put_lower_binding(put_lower_role(world)), key)
    assert (step.verb, step.reason) == ("delete", "it grants nothing to a mirrored ServiceAccount any more")


@pytest.mark.parametrize(
    "copy",
    [None, make_service_account(name="robot"), with_owner_marks(make_service_account(name="robot"), "x", STRANGER)],
)
@pytest.mark.parametrize("key", [ROLE_KEY, BINDING_KEY])
def test_a_service_account_that_is_not_ours_gets_no_rights(copy: Manifest | None, key: Any) -> None:
    """Another client created the lower one for its own purpose."""
    world = rbac_world()
    delete_observed(world.lowers[A].more[SERVICE_ACCOUNT], "robot")
    if copy:
        put(world.lowers[A].more[SERVICE_ACCOUNT], copy)
    assert planned(world, key) == Plan(())


@pytest.mark.parametrize("key", [ROLE_KEY, BINDING_KEY])
def test_a_role_of_another_owner_is_not_changed(key: Any) -> None:
    """The Role has a conflict, and its binding is not created, but the pod runs."""
    world = rbac_world()
    put(world.lowers[A].more[ROLE], role())
    put(world.lowers[A].more[ROLE_BINDING], binding(subjects=[ROBOT]))
    if key == ROLE_KEY:
        problem = planned(world, key).problem
        assert problem is not None
        assert problem.reason == "NameConflict"
    assert planned(world, key).steps == ()


def test_rights_are_deleted_after_an_observed_deletion_of_their_upper_object() -> None:
    """The lower Role is also deleted with its last binding."""
    world = put_lower_binding(put_lower_role(rbac_world()))
    delete_observed(world.upper.more[ROLE], "reader")
    assert the_step(world, ROLE_KEY).verb == "delete"
    put(world.upper.more[ROLE], role())
    delete_observed(world.upper.more[ROLE_BINDING], "reads")
    assert the_step(world).verb == the_step(world, ROLE_KEY).verb == "delete"


def test_rights_whose_upper_object_is_merely_missing_are_kept() -> None:
    """A lost permission to read them, or a restored store, looks the same.

    The role of such a binding is kept too.
    """
    world = put_lower_binding(put_lower_role(rbac_world()))
    for kind, name in ((ROLE, "reader"), (ROLE_BINDING, "reads")):
        relist_without(world.upper.more[kind], name)
        assert planned(world, ROLE_KEY) == planned(world) == Plan(())
        world.upper.more[kind].confirm_absent("default", name)
        assert planned(world, ROLE_KEY) == planned(world) == Plan(())
        put(world.upper.more[kind], role() if kind == ROLE else binding())


def test_rights_of_a_service_account_that_is_merely_missing_are_kept() -> None:
    """Its copy and its pods are kept too.

    After an observed deletion of the account, the rights are deleted.
    """
    world = put_lower_binding(put_lower_role(rbac_world()))
    relist_without(world.upper.more[SERVICE_ACCOUNT], "robot")
    assert planned(world, ROLE_KEY) == planned(world) == Plan(())
    world = put_lower_binding(put_lower_role(rbac_world()))
    delete_observed(world.upper.more[SERVICE_ACCOUNT], "robot")
    assert the_step(world).verb == the_step(world, ROLE_KEY).verb == "delete"


def test_a_role_is_deleted_after_the_binding_that_kept_it() -> None:
    """The deletion of the lower binding enqueues the key of its role."""
    world = put_lower_binding(put_lower_role(rbac_world()))
    relist_without(world.upper.more[ROLE_BINDING], "reads")
    copy = world.lowers[A].more[ROLE_BINDING].get("default", "reads")
    delete_observed(world.lowers[A].more[ROLE_BINDING], "reads")
    assert heard(world, "RoleBinding", copy, None) == ["default/Role/reader", "default/RoleBinding/reads"]
    assert the_step(world, ROLE_KEY).verb == "delete"


def test_a_role_binding_without_mirrored_service_accounts_is_deleted() -> None:
    """Its role is deleted too unless another binding grants it."""
    world = put_lower_binding(put_lower_role(rbac_world(subjects=OTHERS)))
    assert the_step(world).verb == the_step(world, ROLE_KEY).verb == "delete"
    put(world.upper.more[ROLE_BINDING], {**binding(), "metadata": {**binding()["metadata"], "name": "also"}})
    assert planned(world, ROLE_KEY) == Plan(())


@pytest.mark.parametrize(
    "which", ["bindings above", "roles below", "cluster roles", "pods", "accounts above", "accounts below"]
)
def test_nothing_is_decided_from_caches_that_are_not_synced(which: str) -> None:
    """Otherwise a running pod could lose its permissions."""
    world = put_lower_role(rbac_world(subjects=OTHERS))
    lower = world.lowers[A]
    caches = {
        "bindings above": world.upper.more[ROLE_BINDING],
        "roles below": lower.more[ROLE],
        "cluster roles": lower.more[CLUSTER_ROLE],
        "pods": lower.pods,
        "accounts above": world.upper.more[SERVICE_ACCOUNT],
        "accounts below": lower.more[SERVICE_ACCOUNT],
    }
    caches[which].mark_stale()
    assert decision_and_plan(RULE, ROLE_KEY, world)[0] == Decision()


def test_a_denial_is_reported_by_events_of_the_role_and_of_some_pods() -> None:
    """At most five pods get an Event, because a user only needs one of them."""
    world = rbac_world()
    for number in range(8):
        put(world.lowers[A].upper_pods, make_upper_pod(f"p{number}", {"serviceAccountName": "robot"}))
    world.problems[ROLE_KEY] = REFUSED
    wanted = decision_and_plan(RULE, ROLE_KEY, world)[0].wanted
    events = [one for one in wanted if isinstance(one, EmitEvent)]
    assert events[0].about == Ref(UPPER, ROLE, "default", "reader")
    assert [one.about.name for one in events[1:]] == ["p0", "p1", "p2", "p3", "p4"]
    assert {one.reason for one in events} == {"Forbidden"}
    assert {one.message for one in events} == {
        f"Role default/reader is not mirrored to lower cluster lower-a: {REFUSED.message}"
    }
    assert len(wanted) == 1 + len(events), "and it is tried again"


def test_every_right_of_a_mirrored_service_account_and_every_copy_has_a_key() -> None:
    """Copies of an earlier run are included."""
    world = rbac_world()
    put(
        world.upper.more[ROLE_BINDING],
        {**binding("ClusterRole", "view"), "metadata": {"name": "views", "namespace": "default", "uid": "v"}},
    )
    put(
        world.lowers[A].more[ROLE],
        with_owner_marks({**role(), "metadata": {"name": "left", "namespace": "default"}}, "x"),
    )
    assert list(sorted_names(RULE.keys(world, A))) == [
        "default/Role/left",
        "default/Role/reader",
        "default/RoleBinding/reads",
        "default/RoleBinding/views",
    ]
    assert list(RULE.keys(world, B)) == []


def test_changes_that_concern_mirrored_service_accounts_enqueue_their_bindings() -> None:
    """Only the lower with the ServiceAccount gets the keys."""
    world = rbac_world(kind="ClusterRole", name="view")
    upper, lower = world.upper.more, world.lowers[A].more
    reads = upper[ROLE_BINDING].get("default", "reads")
    copy = lower[SERVICE_ACCOUNT].get("default", "robot")
    view = put(lower[CLUSTER_ROLE], make_object("ClusterRole", "view", ""))
    assert heard(world, "upper.RoleBinding", None, reads) == ["default/RoleBinding/reads"]
    assert heard(world, "upper.RoleBinding", None, reads, B) == []
    assert heard(world, "ServiceAccount", None, copy) == ["default/RoleBinding/reads"]
    assert heard(world, "ServiceAccount", copy, copy) == []
    assert heard(world, "ClusterRole", None, view) == ["default/RoleBinding/reads"]
    assert heard(world, "ClusterRole", view, view) == heard(world, "ClusterRole", None, view, B) == []
    theirs = put(lower[SERVICE_ACCOUNT], make_service_account(name="robot"))
    assert heard(world, "ServiceAccount", theirs, copy) == ["default/RoleBinding/reads"], "it is ours now"


def test_a_change_of_a_role_or_its_binding_enqueues_both_keys() -> None:
    """The creation and deletion of copies enqueue keys too."""
    world = rbac_world()
    upper = world.upper.more
    reads, reader = upper[ROLE_BINDING].get("default", "reads"), upper[ROLE].get("default", "reader")
    both = ["default/Role/reader", "default/RoleBinding/reads"]
    assert heard(world, "upper.RoleBinding", reads, None) == both
    assert heard(world, "upper.Role", None, reader) == ["default/Role/reader"]
    assert heard(world, "upper.Role", None, reader, B) == []
    put_lower_role(world)
    copy = world.lowers[A].more[ROLE].get("default", "reader")
    assert heard(world, "Role", copy, None) == both
    assert heard(world, "Role", copy, copy) == ["default/Role/reader"], "a binding depends on whether it is there"


def test_a_role_binding_is_cached_with_its_role_and_service_accounts() -> None:
    """One without subjects, or of an unknown form, has no ServiceAccounts."""
    world = rbac_world()
    entry = world.upper.more[ROLE_BINDING].get("default", "reads")
    assert entry is not None
    accounts = (("default", "robot"), ("default", "default"), ("elsewhere", "robot"))
    assert entry.facts == BindingFacts("Role", "reader", accounts)
    assert transform(b'{"metadata": {"name": "a"}, "subjects": null}').facts == BindingFacts("", "", ())
