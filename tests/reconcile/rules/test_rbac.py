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
    granted,
    role,
    with_binding,
    with_role,
)
from rulekit import Asked
from worldkit import OWNER_HERE, STRANGER, A, B, account, decided, drop, lose, marked, names, put, thing, upper_pod

from tensile.objects import CLUSTER_ROLE, ROLE, ROLE_BINDING, SERVICE_ACCOUNT, UPPER, Manifest, Ref
from tensile.reconcile.desired import Decision, EmitEvent
from tensile.reconcile.plan import Plan
from tensile.reconcile.rules import rbac
from tensile.reconcile.rules.rbac import BindingFacts, transform
from tensile.reconcile.world import Problem

RULE = rbac.RULE
ASKED = Asked(RULE, BINDING_KEY)
planned, the_step, heard = ASKED.plan, ASKED.step, ASKED.heard
REFUSED = Problem("Forbidden", "attempting to grant permissions not currently held")


def test_a_role_of_a_mirrored_service_account_is_created() -> None:
    """It has our marks, and its denial blocks no later step."""
    step = the_step(granted(), ROLE_KEY)
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
    here = with_role(granted())
    step = the_step(here)
    assert step.body is not None
    assert step.body["subjects"] == [ROBOT]
    assert step.body["roleRef"] == {"apiGroup": GROUP, "kind": "Role", "name": "reader"}
    near = [{"kind": "ServiceAccount", "name": "robot"}]  # the namespace of the binding, as kube-apiserver reads it
    put(here.upper.more[ROLE_BINDING], binding(subjects=near))
    assert the_step(here).body["subjects"] == [ROBOT]  # type: ignore[index]
    assert step.reason == "it grants permissions to pods on node lower-a"


def test_a_role_binding_waits_for_its_role() -> None:
    """The lower role must be the copy of the current upper one.

    Kubernetes refuses a binding to a role that does not exist.
    """
    here = granted()
    assert decided(RULE, BINDING_KEY, here)[0] == Decision(depends_on=(ROLE_KEY,))
    put(here.lowers[A].more[ROLE], marked(role(), "older", uid="below-role"))
    assert decided(RULE, BINDING_KEY, here)[0] == Decision(depends_on=(ROLE_KEY,))
    drop(here.upper.more[ROLE], "reader")
    assert decided(RULE, BINDING_KEY, here)[0] == Decision()


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
    here = granted(more)
    assert planned(here, key) == Plan(())
    step = the_step(with_binding(with_role(here)), key)
    assert (step.verb, step.reason) == ("delete", "it grants nothing to a mirrored ServiceAccount any more")


@pytest.mark.parametrize("copy", [None, account(name="robot"), marked(account(name="robot"), "x", STRANGER)])
@pytest.mark.parametrize("key", [ROLE_KEY, BINDING_KEY])
def test_a_service_account_that_is_not_ours_gets_no_rights(copy: Manifest | None, key: Any) -> None:
    """Another client created the lower one for its own purpose."""
    here = granted()
    drop(here.lowers[A].more[SERVICE_ACCOUNT], "robot")
    if copy:
        put(here.lowers[A].more[SERVICE_ACCOUNT], copy)
    assert planned(here, key) == Plan(())


@pytest.mark.parametrize("key", [ROLE_KEY, BINDING_KEY])
def test_a_role_of_another_owner_is_not_changed(key: Any) -> None:
    """The Role has a conflict, and its binding is not created, but the pod runs."""
    here = granted()
    put(here.lowers[A].more[ROLE], role())
    put(here.lowers[A].more[ROLE_BINDING], binding(subjects=[ROBOT]))
    if key == ROLE_KEY:
        problem = planned(here, key).problem
        assert problem is not None
        assert problem.reason == "NameConflict"
    assert planned(here, key).steps == ()


def test_rights_are_deleted_after_an_observed_deletion_of_their_upper_object() -> None:
    """The lower Role is also deleted with its last binding."""
    here = with_binding(with_role(granted()))
    drop(here.upper.more[ROLE], "reader")
    assert the_step(here, ROLE_KEY).verb == "delete"
    put(here.upper.more[ROLE], role())
    drop(here.upper.more[ROLE_BINDING], "reads")
    assert the_step(here).verb == the_step(here, ROLE_KEY).verb == "delete"


def test_rights_whose_upper_object_is_merely_missing_are_kept() -> None:
    """A lost permission to read them, or a restored store, looks the same.

    The role of such a binding is kept too.
    """
    here = with_binding(with_role(granted()))
    for kind, name in ((ROLE, "reader"), (ROLE_BINDING, "reads")):
        lose(here.upper.more[kind], name)
        assert planned(here, ROLE_KEY) == planned(here) == Plan(())
        here.upper.more[kind].confirm_absent("default", name)
        assert planned(here, ROLE_KEY) == planned(here) == Plan(())
        put(here.upper.more[kind], role() if kind == ROLE else binding())


def test_rights_of_a_service_account_that_is_merely_missing_are_kept() -> None:
    """Its copy and its pods are kept too.

    After an observed deletion of the account, the rights are deleted.
    """
    here = with_binding(with_role(granted()))
    lose(here.upper.more[SERVICE_ACCOUNT], "robot")
    assert planned(here, ROLE_KEY) == planned(here) == Plan(())
    here = with_binding(with_role(granted()))
    drop(here.upper.more[SERVICE_ACCOUNT], "robot")
    assert the_step(here).verb == the_step(here, ROLE_KEY).verb == "delete"


def test_a_role_is_deleted_after_the_binding_that_kept_it() -> None:
    """The deletion of the lower binding enqueues the key of its role."""
    here = with_binding(with_role(granted()))
    lose(here.upper.more[ROLE_BINDING], "reads")
    copy = here.lowers[A].more[ROLE_BINDING].get("default", "reads")
    drop(here.lowers[A].more[ROLE_BINDING], "reads")
    assert heard(here, "RoleBinding", copy, None) == ["default/Role/reader", "default/RoleBinding/reads"]
    assert the_step(here, ROLE_KEY).verb == "delete"


def test_a_role_binding_without_mirrored_service_accounts_is_deleted() -> None:
    """Its role is deleted too unless another binding grants it."""
    here = with_binding(with_role(granted(subjects=OTHERS)))
    assert the_step(here).verb == the_step(here, ROLE_KEY).verb == "delete"
    put(here.upper.more[ROLE_BINDING], {**binding(), "metadata": {**binding()["metadata"], "name": "also"}})
    assert planned(here, ROLE_KEY) == Plan(())


@pytest.mark.parametrize(
    "which", ["bindings above", "roles below", "cluster roles", "pods", "accounts above", "accounts below"]
)
def test_nothing_is_decided_from_caches_that_are_not_synced(which: str) -> None:
    """Otherwise a running pod could lose its permissions."""
    here = with_role(granted(subjects=OTHERS))
    lower = here.lowers[A]
    caches = {
        "bindings above": here.upper.more[ROLE_BINDING],
        "roles below": lower.more[ROLE],
        "cluster roles": lower.more[CLUSTER_ROLE],
        "pods": lower.pods,
        "accounts above": here.upper.more[SERVICE_ACCOUNT],
        "accounts below": lower.more[SERVICE_ACCOUNT],
    }
    caches[which].mark_stale()
    assert decided(RULE, ROLE_KEY, here)[0] == Decision()


def test_a_denial_is_reported_by_events_of_the_role_and_of_some_pods() -> None:
    """At most five pods get an Event, because a user only needs one of them."""
    here = granted()
    for number in range(8):
        put(here.lowers[A].upper_pods, upper_pod(f"p{number}", {"serviceAccountName": "robot"}))
    here.problems[ROLE_KEY] = REFUSED
    wanted = decided(RULE, ROLE_KEY, here)[0].wanted
    told = [one for one in wanted if isinstance(one, EmitEvent)]
    assert told[0].about == Ref(UPPER, ROLE, "default", "reader")
    assert [one.about.name for one in told[1:]] == ["p0", "p1", "p2", "p3", "p4"]
    assert {one.reason for one in told} == {"Forbidden"}
    assert {one.message for one in told} == {
        f"Role default/reader is not mirrored to lower cluster lower-a: {REFUSED.message}"
    }
    assert len(wanted) == 1 + len(told), "and it is tried again"


def test_every_right_of_a_mirrored_service_account_and_every_copy_has_a_key() -> None:
    """Copies of an earlier run are included."""
    here = granted()
    put(
        here.upper.more[ROLE_BINDING],
        {**binding("ClusterRole", "view"), "metadata": {"name": "views", "namespace": "default", "uid": "v"}},
    )
    put(here.lowers[A].more[ROLE], marked({**role(), "metadata": {"name": "left", "namespace": "default"}}, "x"))
    assert list(names(RULE.keys(here, A))) == [
        "default/Role/left",
        "default/Role/reader",
        "default/RoleBinding/reads",
        "default/RoleBinding/views",
    ]
    assert list(RULE.keys(here, B)) == []


def test_changes_that_concern_mirrored_service_accounts_enqueue_their_bindings() -> None:
    """Only the lower with the ServiceAccount gets the keys."""
    here = granted(kind="ClusterRole", name="view")
    upper, lower = here.upper.more, here.lowers[A].more
    reads = upper[ROLE_BINDING].get("default", "reads")
    copy = lower[SERVICE_ACCOUNT].get("default", "robot")
    view = put(lower[CLUSTER_ROLE], thing("ClusterRole", "view", ""))
    assert heard(here, "upper.RoleBinding", None, reads) == ["default/RoleBinding/reads"]
    assert heard(here, "upper.RoleBinding", None, reads, B) == []
    assert heard(here, "ServiceAccount", None, copy) == ["default/RoleBinding/reads"]
    assert heard(here, "ServiceAccount", copy, copy) == []
    assert heard(here, "ClusterRole", None, view) == ["default/RoleBinding/reads"]
    assert heard(here, "ClusterRole", view, view) == heard(here, "ClusterRole", None, view, B) == []
    theirs = put(lower[SERVICE_ACCOUNT], account(name="robot"))
    assert heard(here, "ServiceAccount", theirs, copy) == ["default/RoleBinding/reads"], "it is ours now"


def test_a_change_of_a_role_or_its_binding_enqueues_both_keys() -> None:
    """The creation and deletion of copies enqueue keys too."""
    here = granted()
    upper = here.upper.more
    reads, reader = upper[ROLE_BINDING].get("default", "reads"), upper[ROLE].get("default", "reader")
    both = ["default/Role/reader", "default/RoleBinding/reads"]
    assert heard(here, "upper.RoleBinding", reads, None) == both
    assert heard(here, "upper.Role", None, reader) == ["default/Role/reader"]
    assert heard(here, "upper.Role", None, reader, B) == []
    with_role(here)
    copy = here.lowers[A].more[ROLE].get("default", "reader")
    assert heard(here, "Role", copy, None) == both
    assert heard(here, "Role", copy, copy) == ["default/Role/reader"], "a binding depends on whether it is there"


def test_a_role_binding_is_cached_with_its_role_and_service_accounts() -> None:
    """One without subjects, or of an unknown form, has no ServiceAccounts."""
    here = granted()
    entry = here.upper.more[ROLE_BINDING].get("default", "reads")
    assert entry is not None
    accounts = (("default", "robot"), ("default", "default"), ("elsewhere", "robot"))
    assert entry.facts == BindingFacts("Role", "reader", accounts)
    assert transform(b'{"metadata": {"name": "a"}, "subjects": null}').facts == BindingFacts("", "", ())
