"""The namespace of the engine's own account: what is made there could be given the credential of the engine."""

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
    """Make a world where a pod of a namespace that exists on both sides is bound to lower-a; the engine's accounts."""
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
    "by its name below": ({"namespace": "x", "below": "demo-x", "mapping": "prefix"}, "demo-x of lower-a"),
}


@pytest.mark.parametrize(("given", "where"), OWN.values(), ids=OWN)
def test_nothing_is_made_in_the_engines_own_namespace(given: dict[str, str], where: str) -> None:
    """By no rule; and the pod says why, in its condition and in an event."""
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


@pytest.mark.parametrize("given", OTHERS, ids=["another", "no accounts", "called otherwise below"])
def test_other_namespaces_are_mirrored(given: dict[str, str]) -> None:
    """With a prefix it is the name below that counts."""
    here, namespace = bound(**given), given["namespace"]
    assert not here.lowers[A].is_own(namespace)
    found = decided(namespaces.NamespaceRule(), namespaces.key_of(A, namespace), here)[1]
    assert found.problem is None
    assert bool(namespaces.ready(here.lowers[A], namespace)) is (given.get("mapping") != "prefix")


def test_a_pod_that_is_there_already_goes_on() -> None:
    """One that an earlier release made: it is reflected, and ends as any other; nothing more is brought to it."""
    here = bound("tensile", below="tensile")
    pod = upper_pod(spec=referring(config_maps=["settings"]), namespace="tensile", resourceVersion="7")
    put(here.lowers[A].pods, twin(pod, {"phase": "Running"}))
    steps = decided(PodRule(), pod_key(A, "tensile", "web"), here)[1].steps
    assert (steps[0].ref.kind, steps[0].subresource) == (POD, "status")
    key = config.key_of(A, "tensile", "ConfigMap", "settings")
    assert decided(config.RULE, key, here)[1] == Plan(())


@pytest.mark.parametrize("name", ["", "other"])
def test_objects_without_a_namespace_are_nobodys(name: str) -> None:
    """An engine without an account has no namespace either."""
    here = world()
    assert not here.lowers[A].is_own(name)
    here.lowers[A].account = "tensile"
    assert not here.lowers[A].is_own(name)


def test_what_is_known_of_the_accounts_outlasts_a_copy() -> None:
    """`plan` decides on one."""
    here = bound("tensile", below="tensile", above="engine")
    here.upper.account = "engine"
    copied = here.copy()
    assert (copied.lowers[A].account, copied.lowers[A].upper_account, copied.upper.account) == (
        "tensile",
        "engine",
        "engine",
    )
    assert copied.lowers[A].is_own("tensile")
