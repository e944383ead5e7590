"""Tests of the namespace of the engine's own ServiceAccount, whose pods could use the engine's credential."""

import pytest
from worldkit import (
    A,
    add_namespace,
    add_virtual_node,
    config_map,
    decision_and_plan,
    make_lower_pod,
    make_upper_pod,
    make_world,
    put,
    spec_with_references,
)

from tensile.engine.caches import rules
from tensile.kubelet.pods.rule import PodRule
from tensile.kubelet.pods.rule import key_of as pod_key
from tensile.objects import POD, UPPER
from tensile.reconcile.desired import Present
from tensile.reconcile.plan import Plan
from tensile.reconcile.rules import config, namespaces
from tensile.reconcile.world import Problem, World


def bound(namespace: str, *, below: str = "", above: str = "", mapping: str = "same") -> World:
    """Create a world with a pod bound to lower-a in a namespace of both clusters, and with the engine's accounts."""
    world = make_world(f"name: {A}, namespaces: {{mapping: {mapping}}}")
    add_virtual_node(world)
    add_namespace(world, namespace=namespace)
    spec = spec_with_references(config_maps=["settings"])
    put(world.upper.config_maps, config_map("settings", namespace=namespace))
    put(world.lowers[A].upper_pods, make_upper_pod(spec=spec, namespace=namespace, resourceVersion="7"))
    world.lowers[A].account, world.lowers[A].upper_account = below, above
    return world


OWN = {
    "below": ({"namespace": "tensile", "below": "tensile"}, "tensile of lower-a"),
    "above": ({"namespace": "tensile", "above": "tensile", "below": "engine"}, "tensile of the upper cluster"),
    "by its lower name": ({"namespace": "x", "below": "demo-x", "mapping": "prefix"}, "demo-x of lower-a"),
}


@pytest.mark.parametrize(("given", "where"), OWN.values(), ids=OWN)
def test_no_rule_creates_objects_in_the_engines_own_namespace(given: dict[str, str], where: str) -> None:
    """The pod shows the reason in its condition and in an Event."""
    world, namespace = bound(**given), given["namespace"]
    message = f"namespace {where} has the engine's own ServiceAccount: nothing in {namespace} is mirrored"
    problem = Problem("NamespaceExcluded", message)
    assert decision_and_plan(namespaces.NamespaceRule(), namespaces.key_of(A, namespace), world)[1] == Plan((), problem)
    world.problems[namespaces.key_of(A, namespace)] = problem
    for rule in rules():
        wanted = (one for key in rule.keys(world, A) for one in rule.decide(key, world).wanted)
        assert [one for one in wanted if isinstance(one, Present) and one.ref.cluster != UPPER] == []
    steps = decision_and_plan(PodRule(), pod_key(A, namespace, "web"), world)[1].steps
    assert [(step.ref.cluster, step.subresource) for step in steps] == [(UPPER, "status"), (UPPER, "")]
    assert steps[1].body is not None
    assert (steps[1].body["reason"], steps[1].body["message"]) == problem


OTHERS = [
    {"namespace": "shop", "below": "tensile", "above": "tensile"},
    {"namespace": "shop"},
    {"namespace": "tensile", "below": "tensile", "mapping": "prefix"},
]


@pytest.mark.parametrize("given", OTHERS, ids=["another", "no accounts", "another name in the lower cluster"])
def test_other_namespaces_are_mirrored(given: dict[str, str]) -> None:
    """With a prefix, the name in the lower cluster counts."""
    world, namespace = bound(**given), given["namespace"]
    assert not world.lowers[A].is_own(namespace)
    found = decision_and_plan(namespaces.NamespaceRule(), namespaces.key_of(A, namespace), world)[1]
    assert found.problem is None
    assert bool(namespaces.ready(world.lowers[A], namespace)) is (given.get("mapping") != "prefix")


def test_an_existing_lower_pod_in_the_engines_namespace_keeps_its_status_updates() -> None:
    """An earlier release may have created it, and no more objects are copied for it."""
    world = bound("tensile", below="tensile")
    pod = make_upper_pod(spec=spec_with_references(config_maps=["settings"]), namespace="tensile", resourceVersion="7")
    put(world.lowers[A].pods, make_lower_pod(pod, {"phase": "Running"}))
    steps = decision_and_plan(PodRule(), pod_key(A, "tensile", "web"), world)[1].steps
    assert (steps[0].ref.kind, steps[0].subresource) == (POD, "status")
    key = config.key_of(A, "tensile", "ConfigMap", "settings")
    assert decision_and_plan(config.RULE, key, world)[1] == Plan(())


@pytest.mark.parametrize("name", ["", "other"])
def test_a_cluster_scoped_object_is_not_in_the_engines_namespace(name: str) -> None:
    """Without an account, the engine has no namespace."""
    world = make_world()
    assert not world.lowers[A].is_own(name)
    world.lowers[A].account = "tensile"
    assert not world.lowers[A].is_own(name)


def test_a_copy_of_a_world_keeps_the_engines_accounts() -> None:
    """`plan` decides on a copy of the world."""
    world = bound("tensile", below="tensile", above="engine")
    world.upper.account = "engine"
    copied = world.copy()
    assert (copied.lowers[A].account, copied.lowers[A].upper_account, copied.upper.account) == (
        "tensile",
        "engine",
        "engine",
    )
    assert copied.lowers[A].is_own("tensile")
