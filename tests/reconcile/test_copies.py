"""Tests that the copy of an upper object is the object at its place, and that a marked object elsewhere is a stray."""

from time import perf_counter

import pytest
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    add_namespace,
    add_virtual_node,
    config_map,
    decision_and_plan,
    make_lower_pod,
    make_namespace,
    make_service_account,
    make_upper_pod,
    make_world,
    put,
    secret,
    spec_with_references,
    with_owner_marks,
)

from tensile.kubelet.pods.rule import PodRule, key_of
from tensile.kubelet.pods.token_rule import TokenRule
from tensile.kubelet.pods.token_rule import key_of as token_key
from tensile.names import UPPER_NAMESPACE, prefixed
from tensile.objects import SERVICE_ACCOUNT, Manifest
from tensile.reconcile import copies
from tensile.reconcile.rules import config, service_accounts
from tensile.reconcile.rules.service_accounts import key_of as account_key
from tensile.reconcile.world import NamespaceNaming, World

RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main"}]}
NAMES = spec_with_references(secrets=["password"]) | {"serviceAccountName": "robot"}


def world_with_pod(**pod: object) -> World:
    """Create a world with a pod bound to lower-a, in which the namespaces of the upper cluster are known."""
    world = make_world(f"name: {A}")
    world.lowers[A].upper_namespaces = world.upper.namespaces
    add_namespace(world)
    add_virtual_node(world)
    put(world.lowers[A].upper_pods, make_upper_pod(**pod))
    return world


def elsewhere(pod: Manifest, namespace: str = "aaa", status: Manifest | None = None) -> Manifest:
    """Return a lower pod in another namespace with all marks of an upper pod's copy."""
    made = make_lower_pod(pod, status, uid=f"forged-{namespace}")
    return {**made, "metadata": {**made["metadata"], "namespace": namespace}}


def test_the_copy_of_a_pod_is_only_found_at_its_place() -> None:
    """Forged copies in other namespaces do not count, whether they sort before or after the real one."""
    world = world_with_pod()
    lower = world.lowers[A]
    (upper,) = lower.upper_pods
    put(lower.pods, elsewhere(upper.manifest()))
    assert copies.mirror_of(upper, lower, OWNER_HERE) is None
    real = put(lower.pods, make_lower_pod(upper.manifest()))
    put(lower.pods, elsewhere(upper.manifest(), "zzz"))
    assert copies.mirror_of(upper, lower, OWNER_HERE) == real
    assert copies.upper_of(real, lower) == upper
    assert [copies.upper_of(one, lower) for one in lower.pods if one != real] == [None, None]


@pytest.mark.parametrize(("owner", "uid"), [(STRANGER, "Pod-web"), (OWNER_HERE, "another")])
def test_a_pod_at_the_place_is_no_copy_if_its_owner_or_upper_uid_differs(owner: object, uid: str) -> None:
    """It blocks the name, but it is not the copy."""
    world = world_with_pod()
    lower = world.lowers[A]
    (upper,) = lower.upper_pods
    put(lower.pods, with_owner_marks(make_upper_pod(), uid, owner))
    assert copies.mirror_of(upper, lower, OWNER_HERE) is None
    assert copies.existing_copy(upper, lower) is not None


def test_a_copy_in_a_prefixed_namespace_requires_the_namespaces_own_marks() -> None:
    """A pod in a namespace that another client created under that name is no copy."""
    world = world_with_pod()
    lower = world.lowers[A]
    lower.naming = NamespaceNaming("demo", OWNER_HERE.mark)
    (upper,) = lower.upper_pods
    put(lower.pods, elsewhere(upper.manifest(), "demo-default"))
    put(lower.namespaces, make_namespace("demo-default", uid="squatter"))
    assert copies.mirror_of(upper, lower, OWNER_HERE) is None
    ours = make_namespace("demo-default", uid="ours", annotations={UPPER_NAMESPACE: "default"})
    put(lower.namespaces, with_owner_marks(ours, "Namespace-default"))
    assert copies.mirror_of(upper, lower, OWNER_HERE) is not None


def squatted(status: Manifest | None = None) -> World:
    """Create a world in which a tenant created the mapped namespace first, with objects that have our marks."""
    world = world_with_pod(deletionTimestamp="2026-03-01T12:00:30Z", **({"status": status} if status else {}))
    lower = world.lowers[A]
    lower.naming = NamespaceNaming("demo", OWNER_HERE.mark)
    add_virtual_node(world)
    (upper,) = lower.upper_pods
    put(lower.namespaces, make_namespace("demo-default", uid="squatter"))
    put(lower.pods, elsewhere(upper.manifest(), "demo-default"))
    put(lower.secrets, with_owner_marks(secret(namespace="demo-default"), "x", uid="theirs"))
    return world


def test_a_pod_that_never_ran_is_deleted_despite_a_pod_in_a_foreign_namespace() -> None:
    """The engine creates nothing in a namespace of another owner, so the lower pod cannot be its copy."""
    decision, plan = decision_and_plan(PodRule(), key_of(A, "default", "web"), squatted())
    assert [(step.verb, step.ref.cluster) for step in plan.steps] == [("delete", "")]
    assert decision.problem is None


def test_a_pod_that_ran_gets_a_conflict_if_its_namespace_is_not_ours_any_more() -> None:
    """Its lower pod still runs, but the engine may not delete it, and does not read it again and again."""
    decision, plan = decision_and_plan(PodRule(), key_of(A, "default", "web"), squatted(RUNNING))
    assert decision.problem is not None
    assert decision.problem.reason == "NameConflict"
    assert "pod demo-default/web in lower cluster lower-a is not deleted" in decision.problem.message
    assert [(step.verb, step.ref.cluster, step.ref.kind.name) for step in plan.steps] == [
        ("patch", "", "Pod"),
        ("create", "", "Event"),
    ]


def test_no_object_is_deleted_in_a_namespace_of_another_owner() -> None:
    """A marked Secret to which no pod refers is only deleted if its namespace belongs to this topology."""
    world = squatted()
    lower, key = world.lowers[A], config.key_of(A, "default", "Secret", "password")
    assert decision_and_plan(config.RULE, key, world)[1].steps == ()
    ours = make_namespace("demo-default", uid="ours", annotations={UPPER_NAMESPACE: "default"})
    put(lower.namespaces, with_owner_marks(ours, "Namespace-default"))
    assert [step.verb for step in decision_and_plan(config.RULE, key, world)[1].steps] == ["delete"]


def test_strays_are_counted_and_map_to_no_upper_namespace() -> None:
    """The upper cluster has no namespace of that name, unless the lower one was created for it."""
    world = world_with_pod()
    lower = world.lowers[A]
    put(lower.pods, elsewhere(make_upper_pod()), make_lower_pod(make_upper_pod()))
    put(lower.secrets, with_owner_marks(secret(namespace="aaa"), "x"))
    assert copies.strays(lower, OWNER_HERE) == 2
    assert lower.upper_namespace("aaa") == ""
    put(
        lower.namespaces, with_owner_marks(make_namespace("aaa", uid="n", annotations={UPPER_NAMESPACE: "aaa"}), "gone")
    )
    assert lower.upper_namespace("aaa") == "aaa"
    assert copies.strays(lower, OWNER_HERE) == 0


@pytest.mark.parametrize("marks", ["label alone", "all"])
def test_a_lower_pod_causes_no_copies(marks: str) -> None:
    """Only an upper pod that is bound to the node causes copies of Secrets and ServiceAccounts."""
    world = make_world(f"name: {A}")
    add_namespace(world)
    add_virtual_node(world)
    put(world.upper.secrets, secret())
    put(world.upper.more[SERVICE_ACCOUNT], make_service_account(name="robot"))
    bait = make_lower_pod(make_upper_pod(spec=NAMES))
    if marks == "label alone":
        del bait["metadata"]["managedFields"]
    put(world.lowers[A].pods, bait)
    key = config.key_of(A, "default", "Secret", "password")
    assert decision_and_plan(config.RULE, key, world)[1].steps == ()
    assert decision_and_plan(service_accounts.RULE, account_key(A, "default", "robot"), world)[1].steps == ()
    put(world.lowers[A].upper_pods, make_upper_pod(spec=NAMES))
    assert [step.verb for step in decision_and_plan(config.RULE, key, world)[1].steps] == ["create"]


def test_no_copy_is_created_for_a_terminating_pod() -> None:
    """Existing copies are still updated."""
    world = world_with_pod(
        spec=spec_with_references(config_maps=["settings"]), deletionTimestamp="2026-03-01T12:00:00Z"
    )
    put(world.upper.config_maps, config_map())
    key = config.key_of(A, "default", "ConfigMap", "settings")
    assert decision_and_plan(config.RULE, key, world)[1].steps == ()
    put(world.lowers[A].config_maps, with_owner_marks(config_map(data={"key": "old"}), "ConfigMap-settings"))
    assert [step.verb for step in decision_and_plan(config.RULE, key, world)[1].steps] == ["patch"]


def test_ten_thousand_forged_copies_do_not_slow_a_decision() -> None:
    """A decision reads one place and does not search for marks."""
    world = world_with_pod(status=RUNNING)
    lower = world.lowers[A]
    (upper,) = lower.upper_pods
    put(lower.pods, make_lower_pod(upper.manifest(), RUNNING))
    rules = ((PodRule(), key_of(A, "default", "web")), (TokenRule(), token_key(A, "default", "web")))

    def cost() -> float:
        """Return the seconds that a hundred decisions about the pod need."""
        began = perf_counter()
        for _ in range(100):
            for rule, key in rules:
                rule.decide(key, world)
        return perf_counter() - began

    before = min(cost() for _ in range(3))
    put(lower.pods, *(elsewhere(upper.manifest(), f"aaa-{number}") for number in range(10_000)))
    assert min(cost() for _ in range(3)) < 3 * before + 0.05


SANDBOX, VICTIM = "sandbox", "victim-" + "v" * 54


def test_a_truncated_namespace_name_cannot_be_chosen_by_another_tenant() -> None:
    """Otherwise a tenant who may name namespaces could choose the truncated name of another one's."""
    cut = prefixed(SANDBOX, VICTIM)
    assert len(cut) <= 63
    attackers = cut.removeprefix(f"{SANDBOX}-")
    assert prefixed(SANDBOX, attackers) != cut
    assert prefixed(SANDBOX, attackers) != prefixed(SANDBOX, attackers + "x")
    assert prefixed(SANDBOX, "shop") == "sandbox-shop"
