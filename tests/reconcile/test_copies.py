"""The copy of an upper object is what stands at its place; what carries our marks anywhere else is a stray."""

from time import perf_counter

import pytest
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    account,
    config_map,
    decided,
    home,
    marked,
    put,
    raised,
    referring,
    secret,
    space,
    twin,
    upper_pod,
    world,
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
NAMES = referring(secrets=["password"]) | {"serviceAccountName": "robot"}


def told(**pod: object) -> World:
    """Make a world with a pod bound to lower-a, of which the upper cluster's namespaces are known."""
    here = world(f"name: {A}")
    here.lowers[A].upper_namespaces = here.upper.namespaces
    home(here)
    raised(here)
    put(here.lowers[A].upper_pods, upper_pod(**pod))
    return here


def elsewhere(pod: Manifest, namespace: str = "aaa", status: Manifest | None = None) -> Manifest:
    """Make a lower pod with all the marks of an upper one's copy, in another namespace."""
    made = twin(pod, status, uid=f"forged-{namespace}")
    return {**made, "metadata": {**made["metadata"], "namespace": namespace}}


def test_the_copy_is_at_its_place_and_nowhere_else() -> None:
    """By place, mark and UID; the first of many claimants is as little as the last."""
    here = told()
    lower = here.lowers[A]
    (upper,) = lower.upper_pods
    put(lower.pods, elsewhere(upper.manifest()))
    assert copies.mirror_of(upper, lower, OWNER_HERE) is None
    real = put(lower.pods, twin(upper.manifest()))
    put(lower.pods, elsewhere(upper.manifest(), "zzz"))
    assert copies.mirror_of(upper, lower, OWNER_HERE) == real
    assert copies.upper_of(real, lower) == upper
    assert [copies.upper_of(one, lower) for one in lower.pods if one != real] == [None, None]


@pytest.mark.parametrize(("owner", "uid"), [(STRANGER, "Pod-web"), (OWNER_HERE, "another")])
def test_what_stands_at_the_place_has_to_be_ours_and_of_that_uid(owner: object, uid: str) -> None:
    """It is in the way then, and not the copy."""
    here = told()
    lower = here.lowers[A]
    (upper,) = lower.upper_pods
    put(lower.pods, marked(upper_pod(), uid, owner))
    assert copies.mirror_of(upper, lower, OWNER_HERE) is None
    assert copies.existing_copy(upper, lower) is not None


def test_with_a_prefix_the_namespace_has_to_be_marked_for_the_upper_one() -> None:
    """A pod in a namespace that another made under that name is no copy."""
    here = told()
    lower = here.lowers[A]
    lower.naming = NamespaceNaming("demo", OWNER_HERE.mark)
    (upper,) = lower.upper_pods
    put(lower.pods, elsewhere(upper.manifest(), "demo-default"))
    put(lower.namespaces, space("demo-default", uid="squatter"))
    assert copies.mirror_of(upper, lower, OWNER_HERE) is None
    ours = space("demo-default", uid="ours", annotations={UPPER_NAMESPACE: "default"})
    put(lower.namespaces, marked(ours, "Namespace-default"))
    assert copies.mirror_of(upper, lower, OWNER_HERE) is not None


def squatted(status: Manifest | None = None) -> World:
    """Make a world where a tenant has made the namespace of an upper one first, and what stands there has our marks."""
    here = told(deletionTimestamp="2026-03-01T12:00:30Z", **({"status": status} if status else {}))
    lower = here.lowers[A]
    lower.naming = NamespaceNaming("demo", OWNER_HERE.mark)
    raised(here)
    (upper,) = lower.upper_pods
    put(lower.namespaces, space("demo-default", uid="squatter"))
    put(lower.pods, elsewhere(upper.manifest(), "demo-default"))
    put(lower.secrets, marked(secret(namespace="demo-default"), "x", uid="theirs"))
    return here


def test_a_pod_that_never_ran_goes_whatever_stands_in_a_namespace_of_anothers() -> None:
    """Nothing of it can be there: the engine makes nothing in such a namespace."""
    decision, plan = decided(PodRule(), key_of(A, "default", "web"), squatted())
    assert [(step.verb, step.ref.cluster) for step in plan.steps] == [("delete", "")]
    assert decision.problem is None


def test_a_pod_that_ran_is_told_where_it_is_left_when_its_namespace_is_taken_away() -> None:
    """Its lower pod still runs there, and is not the engine's to end: nothing is read again and again."""
    decision, plan = decided(PodRule(), key_of(A, "default", "web"), squatted(RUNNING))
    assert decision.problem is not None
    assert decision.problem.reason == "NameConflict"
    assert "pod demo-default/web in lower cluster lower-a is not deleted" in decision.problem.message
    assert [(step.verb, step.ref.cluster, step.ref.kind.name) for step in plan.steps] == [
        ("patch", "", "Pod"),
        ("create", "", "Event"),
    ]


def test_nothing_is_deleted_in_a_namespace_of_anothers() -> None:
    """A Secret with our marks that no pod refers to goes where the namespace is ours, and stays where it is not."""
    here = squatted()
    lower, key = here.lowers[A], config.key_of(A, "default", "Secret", "password")
    assert decided(config.RULE, key, here)[1].steps == ()
    ours = space("demo-default", uid="ours", annotations={UPPER_NAMESPACE: "default"})
    put(lower.namespaces, marked(ours, "Namespace-default"))
    assert [step.verb for step in decided(config.RULE, key, here)[1].steps] == ["delete"]


def test_strays_are_counted_and_belong_to_no_namespace() -> None:
    """Where the upper cluster has no namespace of that name, unless the lower one was made for it."""
    here = told()
    lower = here.lowers[A]
    put(lower.pods, elsewhere(upper_pod()), twin(upper_pod()))
    put(lower.secrets, marked(secret(namespace="aaa"), "x"))
    assert copies.strays(lower, OWNER_HERE) == 2
    assert lower.upper_namespace("aaa") == ""
    put(lower.namespaces, marked(space("aaa", uid="n", annotations={UPPER_NAMESPACE: "aaa"}), "gone"))
    assert lower.upper_namespace("aaa") == "aaa"
    assert copies.strays(lower, OWNER_HERE) == 0


@pytest.mark.parametrize("marks", ["label alone", "all"])
def test_a_lower_pod_asks_for_nothing(marks: str) -> None:
    """Neither for a Secret nor for an account: only an upper pod that is bound here does."""
    here = world(f"name: {A}")
    home(here)
    raised(here)
    put(here.upper.secrets, secret())
    put(here.upper.more[SERVICE_ACCOUNT], account(name="robot"))
    bait = twin(upper_pod(spec=NAMES))
    if marks == "label alone":
        del bait["metadata"]["managedFields"]
    put(here.lowers[A].pods, bait)
    asked = config.key_of(A, "default", "Secret", "password")
    assert decided(config.RULE, asked, here)[1].steps == ()
    assert decided(service_accounts.RULE, account_key(A, "default", "robot"), here)[1].steps == ()
    put(here.lowers[A].upper_pods, upper_pod(spec=NAMES))
    assert [step.verb for step in decided(config.RULE, asked, here)[1].steps] == ["create"]


def test_nothing_new_is_made_for_a_pod_that_is_being_deleted() -> None:
    """What it has it keeps, in step."""
    here = told(spec=referring(config_maps=["settings"]), deletionTimestamp="2026-03-01T12:00:00Z")
    put(here.upper.config_maps, config_map())
    key = config.key_of(A, "default", "ConfigMap", "settings")
    assert decided(config.RULE, key, here)[1].steps == ()
    put(here.lowers[A].config_maps, marked(config_map(data={"key": "old"}), "ConfigMap-settings"))
    assert [step.verb for step in decided(config.RULE, key, here)[1].steps] == ["patch"]


def test_ten_thousand_claimants_of_one_uid_cost_no_longer_decision() -> None:
    """Nothing is searched for: a decision looks at one place."""
    here = told(status=RUNNING)
    lower = here.lowers[A]
    (upper,) = lower.upper_pods
    put(lower.pods, twin(upper.manifest(), RUNNING))
    rules = ((PodRule(), key_of(A, "default", "web")), (TokenRule(), token_key(A, "default", "web")))

    def cost() -> float:
        """Time a hundred looks at the pod."""
        began = perf_counter()
        for _ in range(100):
            for rule, key in rules:
                rule.decide(key, here)
        return perf_counter() - began

    before = min(cost() for _ in range(3))
    put(lower.pods, *(elsewhere(upper.manifest(), f"aaa-{number}") for number in range(10_000)))
    assert min(cost() for _ in range(3)) < 3 * before + 0.05


SANDBOX, VICTIM = "sandbox", "victim-" + "v" * 54


def test_no_name_shares_the_namespace_of_another_that_was_cut() -> None:
    """Whoever may name his own namespaces could call one as the cut name of another's is."""
    cut = prefixed(SANDBOX, VICTIM)
    assert len(cut) <= 63
    attackers = cut.removeprefix(f"{SANDBOX}-")
    assert prefixed(SANDBOX, attackers) != cut
    assert prefixed(SANDBOX, attackers) != prefixed(SANDBOX, attackers + "x")
    assert prefixed(SANDBOX, "shop") == "sandbox-shop"
