"""Tests of the special cases of lower ServiceAccounts.

Other cases are in test_mirror.py and in the scenarios account_*.
"""

from typing import Any

import pytest
from rulekit import RuleUnderTest
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    add_namespace,
    add_virtual_node,
    decision_and_plan,
    delete_observed,
    make_lower_pod,
    make_service_account,
    make_upper_pod,
    make_world,
    put,
    secret,
    sorted_names,
    with_owner_marks,
)

from tensile.objects import SERVICE_ACCOUNT, Manifest, Ref
from tensile.reconcile.plan import Plan
from tensile.reconcile.pods.references import Reference
from tensile.reconcile.rules import config, service_accounts
from tensile.reconcile.rules.config import key_of as secret_key
from tensile.reconcile.rules.service_accounts import is_requested, key_of, missing, pulling, secrets_of, transform
from tensile.reconcile.world import World

RULE = service_accounts.RULE
KEY = key_of(A, "default", "robot")
REF = Ref(A, SERVICE_ACCOUNT, "default", "robot")
ROBOT = (Reference("ServiceAccount", "robot", optional=False),)
RUNS = {"serviceAccountName": "robot"}
NONE = "serviceAccounts: {identity: none}\n"
ASKED = RuleUnderTest(RULE, KEY)
planned, the_step, heard = ASKED.plan, ASKED.step, ASKED.affected_keys


def robot(**fields: Any) -> Manifest:
    """Return the upper ServiceAccount."""
    return {**make_service_account(name="robot"), **fields}


def bound(more: str = "", **fields: Any) -> World:
    """Create a world in which a pod with ServiceAccount robot is bound to lower-a."""
    world = make_world(more=more)
    add_virtual_node(world)
    add_namespace(world)
    put(world.upper.more[SERVICE_ACCOUNT], robot(**fields))
    put(world.lowers[A].upper_pods, make_upper_pod(spec=RUNS))
    return world


def add_copy(world: World, **fields: Any) -> Manifest:
    """Add the copy as the engine makes it, with other fields, and return it."""
    body = the_step(world).body
    assert body is not None
    made = with_owner_marks({**body, **fields}, "ServiceAccount-robot", uid="below")
    put(world.lowers[A].more[SERVICE_ACCOUNT], made)
    return made


def test_the_service_account_of_a_pod_is_created() -> None:
    """It has its labels and annotations and our marks, but not the list of the upper cluster's own Secrets."""
    meta = {"labels": {"team": "a"}, "annotations": {"role": "x", "kubernetes.io/enforce-mountable-secrets": "true"}}
    world = bound(metadata={**robot()["metadata"], **meta}, secrets=[{"name": "robot-token"}])
    step = the_step(world)
    assert (step.verb, step.ref, step.reason) == ("create", REF, "pods on node lower-a use it")
    assert step.body == {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {
            "name": "robot",
            "namespace": "default",
            "labels": {"team": "a", "tensile-kube.io/owner": OWNER_HERE.mark},
            "annotations": {
                "role": "x",
                "tensile-kube.io/owner-name": "demo",
                "tensile-kube.io/upper-uid": "ServiceAccount-robot",
            },
        },
        "automountServiceAccountToken": True,
    }


@pytest.mark.parametrize("value", [True, False])
def test_the_default_for_mounting_tokens_is_copied(value: bool) -> None:  # noqa: FBT001 - a parameter
    """The field is always set, because an absent one means true."""
    world = bound(automountServiceAccountToken=value)
    made = add_copy(world, automountServiceAccountToken=not value)
    assert [one["path"] for one in the_step(world).operations] == ["/automountServiceAccountToken"]
    del made["automountServiceAccountToken"]
    put(world.lowers[A].more[SERVICE_ACCOUNT], made)
    assert [one["value"] for one in the_step(world).operations] == [value]


def test_pull_secrets_are_copied_and_those_that_a_lower_adds_stay() -> None:
    """Some clusters add their own one to each account.

    One that is an upper Secret is removed if the upper account does not list it.
    """
    world = bound(imagePullSecrets=[{"name": "pull"}])
    put(world.upper.secrets, secret("old"))
    add_copy(world, imagePullSecrets=[{"name": "old"}, {"name": "robot-dockercfg"}])
    (operation,) = the_step(world).operations
    assert (operation["path"], operation["value"]) == (
        "/imagePullSecrets",
        [{"name": "pull"}, {"name": "robot-dockercfg"}],
    )


def test_a_service_account_of_another_owner_is_a_conflict_and_is_not_used() -> None:
    """It would give its permissions to the pod."""
    world = bound()
    for foreign in (robot(), with_owner_marks(robot(), "ServiceAccount-robot", STRANGER)):
        put(world.lowers[A].more[SERVICE_ACCOUNT], foreign)
        found = planned(world)
        assert found.steps == ()
        assert found.problem is not None
        assert found.problem.reason == "NameConflict"
        assert missing(world, world.lowers[A], "default", ROBOT) == [KEY]


def test_a_service_account_is_deleted_after_its_last_upper_and_lower_pod() -> None:
    """A lower pod that is not needed any more may still be terminating."""
    world = bound()
    add_copy(world)
    put(world.lowers[A].pods, twin_of_robot())
    delete_observed(world.lowers[A].upper_pods, "web")
    assert planned(world) == Plan(())
    delete_observed(world.lowers[A].pods, "web")
    step = the_step(world)
    assert (step.verb, step.uid, step.reason) == ("delete", "below", "no pod uses it any more")


def twin_of_robot() -> Manifest:
    """Return the lower pod, with the ServiceAccount."""
    made = make_lower_pod(make_upper_pod(spec=RUNS))
    return {**made, "spec": {**made["spec"], "serviceAccountName": "robot"}}


def test_without_an_identity_no_service_account_is_created_or_waited_for() -> None:
    """Pods use `default`.

    The copy is kept unchanged while an earlier pod uses it.
    """
    world = bound(NONE)
    assert planned(world) == Plan(())
    assert missing(world, world.lowers[A], "default", ROBOT) == []
    put(world.lowers[A].more[SERVICE_ACCOUNT], with_owner_marks(robot(), "ServiceAccount-robot", uid="below"))
    assert the_step(world).verb == "delete"
    put(world.lowers[A].pods, twin_of_robot())
    assert planned(world) == Plan(())


def test_a_pod_waits_for_the_copy_of_the_current_upper_service_account() -> None:
    """It does not wait for `default`, which every namespace has."""
    world = bound()
    lower = world.lowers[A]
    assert missing(world, lower, "default", ROBOT) == [KEY]
    assert missing(world, lower, "default", (Reference("ServiceAccount", "default", optional=False),)) == []
    assert missing(world, lower, "default", (Reference("Secret", "robot", optional=False),)) == []
    add_copy(world)
    assert missing(world, lower, "default", ROBOT) == []


def test_every_service_account_of_pods_and_every_copy_has_a_key() -> None:
    """Copies of an earlier run are included, but `default` is not."""
    world = bound()
    put(world.lowers[A].upper_pods, make_upper_pod("plain", {"serviceAccountName": "default"}))
    put(world.lowers[A].more[SERVICE_ACCOUNT], with_owner_marks(make_service_account(name="left"), "gone"))
    assert list(sorted_names(RULE.keys(world, A))) == ["default/left", "default/robot"]
    assert list(RULE.keys(world, B)) == []


@pytest.mark.parametrize("runs", [True, False], ids=["pods run as it", "no pod runs as it"])
def test_a_default_service_account_with_our_marks_is_not_changed(runs: bool) -> None:  # noqa: FBT001 - a case
    """The lower cluster created it, and a client that may label it must not cause its change or deletion."""
    world = bound()
    key = key_of(A, "default", "default")
    if runs:
        put(world.lowers[A].upper_pods, make_upper_pod("plain", {"serviceAccountName": "default"}))
    put(world.upper.more[SERVICE_ACCOUNT], make_service_account() | {"imagePullSecrets": [{"name": "pull"}]})
    put(
        world.lowers[A].more[SERVICE_ACCOUNT],
        with_owner_marks(make_service_account(), "ServiceAccount-default", uid="below"),
    )
    assert key in set(RULE.keys(world, A))
    assert planned(world, key) == Plan(())


def test_a_change_of_a_service_account_enqueues_its_key_if_a_pod_or_copy_exists() -> None:
    """Every namespace has a `default`, which enqueues no key."""
    world = bound()
    entry = world.upper.more[SERVICE_ACCOUNT].get("default", "robot")
    assert heard(world, "upper.ServiceAccount", None, entry) == ["default/robot"]
    assert heard(world, "upper.ServiceAccount", None, entry, B) == []
    default = put(world.upper.more[SERVICE_ACCOUNT], make_service_account())
    assert heard(world, "upper.ServiceAccount", None, default) == []
    left = put(world.lowers[B].more[SERVICE_ACCOUNT], with_owner_marks(robot(), "x"))
    assert heard(world, "ServiceAccount", None, left, B) == ["default/robot"]
    assert heard(world, "upper.ServiceAccount", entry, None, B) == ["default/robot"]


# Image pull secrets.


def with_pull(more: str = "") -> World:
    """Create a world in which the ServiceAccount has a pull secret that its pod does not name."""
    world = bound(more, imagePullSecrets=[{"name": "pull"}, {}])
    put(world.upper.secrets, secret("pull"))
    return world


def test_the_pull_secrets_of_a_service_account_are_mirrored() -> None:
    """They count as references of its pods, and their copies are deleted if the account does not list them any more."""
    world = with_pull()
    rule, key = config.RULE, secret_key(A, "default", "Secret", "pull")
    assert key in set(rule.keys(world, A))
    (step,) = decision_and_plan(rule, key, world)[1].steps
    assert step.verb == "create"
    put(world.lowers[A].secrets, with_owner_marks(secret("pull"), "Secret-pull", uid="below"))
    put(world.upper.more[SERVICE_ACCOUNT], robot())
    (step,) = decision_and_plan(rule, key, world)[1].steps
    assert (step.verb, step.uid) == ("delete", "below")


def test_a_secret_is_not_deleted_before_service_accounts_are_synced() -> None:
    """It may be the pull secret of one.

    Without the controller there are no such accounts.
    """
    rule, key = config.RULE, secret_key(A, "default", "Secret", "pull")
    for more, verbs in (("", []), ("controllers: []\n", ["delete"])):
        world = bound(more)
        put(world.lowers[A].secrets, with_owner_marks(secret("pull"), "Secret-pull", uid="below"))
        world.upper.more[SERVICE_ACCOUNT].mark_stale()
        assert [step.verb for step in decision_and_plan(rule, key, world)[1].steps] == verbs


def test_pull_secrets_of_unused_service_accounts_are_not_mirrored() -> None:
    """Those of `default` are not mirrored either, because its pods name them."""
    world = with_pull(NONE)
    assert pulling(world, "default", "pull") == ["robot"]
    assert not is_requested(world, world.lowers[A], "default", "robot")
    world = with_pull()
    assert not is_requested(world, world.lowers[B], "default", "robot")
    put(world.upper.more[SERVICE_ACCOUNT], {**make_service_account(), "imagePullSecrets": [{"name": "other"}]})
    assert pulling(world, "default", "other") == []
    assert list(secrets_of(world, "default", ROBOT)) == ["pull"]
    assert list(secrets_of(world, "default", (Reference("ServiceAccount", "default", optional=False),))) == []


def test_changes_of_service_account_pod_and_secret_enqueue_the_pull_secret() -> None:
    """Only the lower with the pod gets the key."""
    world, rule_under_test = with_pull(), RuleUnderTest(config.RULE, secret_key(A, "default", "Secret", "pull"))
    accounts, pods = world.upper.more[SERVICE_ACCOUNT], world.lowers[A].upper_pods
    pod, pull = pods.get("default", "web"), world.upper.secrets.get("default", "pull")
    assert rule_under_test.affected_keys(world, "upper_pods", None, pod) == ["default/Secret/pull"]
    assert rule_under_test.affected_keys(world, "upper.secrets", None, pull) == ["default/Secret/pull"]
    before = accounts.get("default", "robot")
    after = put(accounts, robot(imagePullSecrets=[{"name": "next"}]))
    concerned = ["default/Secret/next", "default/Secret/pull"]
    assert rule_under_test.affected_keys(world, "upper.ServiceAccount", before, after) == concerned
    assert rule_under_test.affected_keys(world, "upper.ServiceAccount", before, after, B) == []
    mirror = put(world.lowers[A].pods, twin_of_robot())
    assert rule_under_test.affected_keys(world, "pods", mirror, None) == ["default/Secret/next"]


def test_a_service_account_is_cached_with_the_names_of_its_pull_secrets() -> None:
    """An entry without a name does not count."""
    world = with_pull()
    entry = world.upper.more[SERVICE_ACCOUNT].get("default", "robot")
    assert entry is not None
    assert (entry.facts, transform(entry.raw).raw) == (("pull",), entry.raw)
