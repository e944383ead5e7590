"""Tests of the namespace of the engine's own ServiceAccount, whose pods could use the engine's credential."""

import pytest
from worldkit import (
    A,
    config_map,
    decided,
    home,
    put,
    raised,
    referring,
    twin,
    upper_pod,
    world,
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
    here = world(f"name: {A}, namespaces: {{mapping: {mapping}}}")
    raised(here)
    home(here, namespace=namespace)
    spec = referring(config_maps=["settings"])
    put(here.upper.config_maps, config_map("settings", namespace=namespace))
    put(here.lowers[A].upper_pods, upper_pod(spec=spec, namespace=namespace, resourceVersion="7"))
    here.lowers[A].account, here.lowers[A].upper_account = below, above
    return here


OWN = {
    "below": ({"namespace": "tensile", "below": "tensile"}, "tensile of lower-a"),
    "above": ({"namespace": "tensile", "above": "tensile", "below": "engine"}, "tensile of the upper cluster"),
    "by its lower name": ({"namespace": "x", "below": "demo-x", "mapping": "prefix"}, "demo-x of lower-a"),
}


@pytest.mark.parametrize(("given", "where"), OWN.values(), ids=OWN)
def test_no_rule_creates_objects_in_the_engines_own_namespace(given: dict[str, str], where: str) -> None:
    """The pod shows the reason in its condition and in an Event."""
    here, namespace = bound(**given), given["namespace"]
    words = f"namespace {where} has the engine's own ServiceAccount: nothing in {namespace} is mirrored"
    problem = Problem("NamespaceExcluded", words)
    assert decided(namespaces.NamespaceRule(), namespaces.key_of(A, namespace), here)[1] == Plan((), problem)
    here.problems[namespaces.key_of(A, namespace)] = problem
    for rule in rules():
        wanted = (one for key in rule.keys(here, A) for one in rule.decide(key, here).wanted)
        assert [one for one in wanted if isinstance(one, Present) and one.ref.cluster != UPPER] == []
    told = decided(PodRule(), pod_key(A, namespace, "web"), here)[1].steps
    assert [(step.ref.cluster, step.subresource) for step in told] == [(UPPER, "status"), (UPPER, "")]
    assert told[1].body is not None
    assert (told[1].body["reason"], told[1].body["message"]) == problem


OTHERS = [
    {"namespace": "shop", "below": "tensile", "above": "tensile"},
    {"namespace": "shop"},
    {"namespace": "tensile", "below": "tensile", "mapping": "prefix"},
]


@pytest.mark.parametrize("given", OTHERS, ids=["another", "no accounts", "another name in the lower cluster"])
def test_other_namespaces_are_mirrored(given: dict[str, str]) -> None:
    """With a prefix, the name in the lower cluster counts."""
    here, namespace = bound(**given), given["namespace"]
    assert not here.lowers[A].is_own(namespace)
    found = decided(namespaces.NamespaceRule(), namespaces.key_of(A, namespace), here)[1]
    assert found.problem is None
    assert bool(namespaces.ready(here.lowers[A], namespace)) is (given.get("mapping") != "prefix")


def test_an_existing_lower_pod_in_the_engines_namespace_keeps_its_status_updates() -> None:
    """An earlier release may have created it, and no more objects are copied for it."""
    here = bound("tensile", below="tensile")
    pod = upper_pod(spec=referring(config_maps=["settings"]), namespace="tensile", resourceVersion="7")
    put(here.lowers[A].pods, twin(pod, {"phase": "Running"}))
    steps = decided(PodRule(), pod_key(A, "tensile", "web"), here)[1].steps
    assert (steps[0].ref.kind, steps[0].subresource) == (POD, "status")
    key = config.key_of(A, "tensile", "ConfigMap", "settings")
    assert decided(config.RULE, key, here)[1] == Plan(())


@pytest.mark.parametrize("name", ["", "other"])
def test_a_cluster_scoped_object_is_not_in_the_engines_namespace(name: str) -> None:
    """Without an account, the engine has no namespace."""
    here = world()
    assert not here.lowers[A].is_own(name)
    here.lowers[A].account = "tensile"
    assert not here.lowers[A].is_own(name)


def test_a_copy_of_a_world_keeps_the_engines_accounts() -> None:
    """`plan` decides on a copy of the world."""
    here = bound("tensile", below="tensile", above="engine")
    here.upper.account = "engine"
    copied = here.copy()
    assert (copied.lowers[A].account, copied.lowers[A].upper_account, copied.upper.account) == (
        "tensile",
        "engine",
        "engine",
    )
    assert copied.lowers[A].is_own("tensile")
