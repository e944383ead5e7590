"""Tests of how the bench of costs compares the cost in a plan with what happened."""

from typing import Any

import pytest

from bench.conformance.costs.comparison import ANYWHERE, NOWHERE, SeenPod, State, differences, effects, goes_together

Manifest = dict[str, Any]
PLACE = {"namespace": "shop", "name": "web-1"}
MOVED = {**PLACE, "targets": ["b"]}


def said(**cost: Any) -> Manifest:
    """Return the cost of a plan."""
    parts = (
        "restarted",
        "moved",
        "stranded",
        "evicted",
        "ended",
        "budgets",
        "claims",
        "services",
        "endpoints",
        "streams",
    )
    return {**{part: [] for part in parts}, "unknownBudgets": "", **cost}


def pod(
    uid: str = "one", node: str = "a", *, is_ready: bool = True, runs: tuple[tuple[str, str], ...] = (("l", "i"),)
) -> SeenPod:
    """Return a pod of the ReplicaSet of `web`."""
    return SeenPod(uid, "shop/ReplicaSet web", {"app": "web"}, node, runs, is_ready=is_ready, is_ending=False)


def state(**fields: Any) -> State:
    """Return a state; without fields, one pod runs that is an endpoint of a Service."""
    there = {"pods": {"shop/web-1": pod()}, "endpoints": {"shop/web": frozenset({"10.0.0.1"})}}
    return State(**{"cut": frozenset(), "copies": {}, **there, **fields})


GONE = {"pods": {"shop/web-2": pod("two", "b")}, "endpoints": {"shop/web": frozenset({"10.0.0.2"})}}
LOST = {"endpoints": [{"namespace": "shop", "name": "web", "lost": 1, "ready": 1}]}
BUDGET = {"metadata": {"namespace": "shop", "name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}}}


def budget(allowed: int) -> Manifest:
    """Return a budget of `web` that allows this many disruptions."""
    return {**BUDGET, "status": {"disruptionsAllowed": allowed}}


def found(cost: Manifest, after: State, evicted: tuple[str, ...] = (), *budgets: Manifest) -> list[str]:
    """Return the differences between the cost and what happened."""
    return differences(cost, state(), after, evicted, budgets)


def test_what_happened_to_pods_is_classified() -> None:
    """Pods are restarted, evicted, or ended with or without their upper pod; pods that were not ready do not count."""
    before = state(pods={f"shop/{one}": pod(one) for one in "abcdefg"} | {"shop/late": pod("late", is_ready=False)})
    ending = pod("f")._replace(is_ending=True)
    after = state(
        pods={
            "shop/a": pod("a"),
            "shop/b": pod("b", runs=(("other", "i"),)),
            "shop/e": pod("e", runs=()),
            "shop/f": ending,
        }
    )
    happened = effects(before, after, {"shop/c"})
    assert happened.restarted == {"shop/b"}
    assert happened.left == {"shop/c"}
    assert happened.ended == {"shop/d", "shop/e", "shop/f", "shop/g"}


def test_a_predicted_move_is_no_difference() -> None:
    """Neither is a state without changes if none was predicted."""
    assert found(said(), state()) == []
    assert found(said(moved=[MOVED], **LOST), state(**GONE), ("shop/web-1",)) == []


@pytest.mark.parametrize(
    ("cost", "after", "evicted", "words"),
    [
        (said(), state(**GONE), ("shop/web-1",), "left: happened and not predicted"),
        (said(moved=[MOVED], **LOST), state(), (), "left: predicted and not happened"),
        (said(moved=[{**MOVED, "targets": ["c"]}], **LOST), state(**GONE), ("shop/web-1",), "went to ['b']"),
        (said(stranded=[PLACE], **LOST), state(**GONE), ("shop/web-1",), "went to ['b']"),
        (said(ended=[PLACE], **LOST), state(**GONE), ("shop/web-1",), "ended: predicted and not happened"),
        (said(restarted=[PLACE]), state(), (), "restarted: predicted and not happened"),
        (said(moved=[MOVED]), state(**GONE), ("shop/web-1",), "endpoints"),
        (said(), state(copies={"services": frozenset({("a", "shop", "web")})}), (), ""),
        (said(services=[{"lower": "a", **PLACE}]), state(), (), "Services lost: predicted and not happened"),
        (said(), state(cut=frozenset({"shop/web-1"})), (), "streams cut: happened and not predicted: ['a']"),
        (said(streams=[{"node": "a"}]), state(), (), "streams cut: predicted and not happened"),
    ],
)
def test_each_deviation_from_the_cost_is_named(
    cost: Manifest, after: State, evicted: tuple[str, ...], words: str
) -> None:
    """An object that is created is no loss."""
    told = found(cost, after, evicted)
    assert bool(told) == bool(words)
    assert words in "; ".join(told)


def test_copies_that_running_pods_lose_are_differences_unless_the_plan_names_them() -> None:
    """A plan has to name a lost Service; a Secret that a pod of its namespace uses must not be deleted at all."""
    copies = {kind: frozenset({("a", "shop", "web")}) for kind in ("services", "Secrets")}
    before = state(copies=copies)
    named = said(services=[{"lower": "a", "namespace": "shop", "name": "web"}])
    told = differences(named, before, state(), (), ())
    assert told == ["Secrets lost by running pods: happened and not predicted: [('a', 'shop', 'web')]"]
    assert differences(said(), before, before, (), ()) == []
    moved = {**named, "moved": [MOVED], **LOST}
    assert differences(moved, before, state(**GONE), ("shop/web-1",), ()) == []


def test_budgets_are_compared_and_pods_of_an_exhausted_budget_must_stay() -> None:
    """The cost lists both which pods would move, and that the budget allows no disruption now."""
    named = {"namespace": "shop", "name": "web", "pods": 1}
    assert found(said(moved=[MOVED], budgets=[{**named, "allowed": 0}], **LOST), state(), (), budget(0)) == []
    assert (
        found(said(moved=[MOVED], budgets=[{**named, "allowed": 1}], **LOST), state(**GONE), ("shop/web-1",), budget(1))
        == []
    )
    assert "budgets" in found(said(moved=[MOVED], **LOST), state(**GONE), ("shop/web-1",), budget(1))[0]
    told = found(
        said(moved=[MOVED], budgets=[{**named, "allowed": 0}], **LOST), state(**GONE), ("shop/web-1",), budget(0)
    )
    assert told[0] == "shop/web-1 left, which its budget does not allow"


def test_new_pods_match_if_each_can_be_assigned_to_another_target() -> None:
    """There is one new pod for each old one, in any order."""
    assert goes_together(["b", ""], [NOWHERE, frozenset({"b"})])
    assert goes_together(["b", "c"], [ANYWHERE, ANYWHERE])
    assert not goes_together(["b", "b"], [NOWHERE, frozenset({"b"})])
    assert not goes_together(["b"], [NOWHERE, frozenset({"b"})])
