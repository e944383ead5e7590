"""How the bench of costs tells what a plan said from what happened."""

from typing import Any

import pytest

from bench.conformance.costs.comparing import ANYWHERE, NOWHERE, SeenPod, State, differences, goes_together, hits

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
    """Return a state; without fields, one pod runs that a Service has as its endpoint."""
    there = {"pods": {"shop/web-1": pod()}, "endpoints": {"shop/web": frozenset({"10.0.0.1"})}}
    return State(**{"cut": frozenset(), "copies": {}, **there, **fields})


GONE = {"pods": {"shop/web-2": pod("two", "b")}, "endpoints": {"shop/web": frozenset({"10.0.0.2"})}}
LOST = {"endpoints": [{"namespace": "shop", "name": "web", "lost": 1, "ready": 1}]}
BUDGET = {"metadata": {"namespace": "shop", "name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}}}


def budget(allowed: int) -> Manifest:
    """Return a budget of `web` that allows so many disruptions."""
    return {**BUDGET, "status": {"disruptionsAllowed": allowed}}


def found(cost: Manifest, after: State, evicted: tuple[str, ...] = (), *budgets: Manifest) -> list[str]:
    """Return what happened otherwise than said."""
    return differences(cost, state(), after, evicted, budgets)


def test_what_happens_to_pods_is_told_apart() -> None:
    """Restarted at its place, evicted, ended with or without its upper pod; one that did not run does not count."""
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
    happened = hits(before, after, {"shop/c"})
    assert happened.restarted == {"shop/b"}
    assert happened.left == {"shop/c"}
    assert happened.ended == {"shop/d", "shop/e", "shop/f", "shop/g"}


def test_a_move_as_said_is_no_difference() -> None:
    """Nor is nothing, where nothing was said."""
    assert found(said(), state()) == []
    assert found(said(moved=[MOVED], **LOST), state(**GONE), ("shop/web-1",)) == []


@pytest.mark.parametrize(
    ("cost", "after", "evicted", "words"),
    [
        (said(), state(**GONE), ("shop/web-1",), "left: so and not said"),
        (said(moved=[MOVED], **LOST), state(), (), "left: said and not so"),
        (said(moved=[{**MOVED, "targets": ["c"]}], **LOST), state(**GONE), ("shop/web-1",), "went to ['b']"),
        (said(stranded=[PLACE], **LOST), state(**GONE), ("shop/web-1",), "went to ['b']"),
        (said(ended=[PLACE], **LOST), state(**GONE), ("shop/web-1",), "ended: said and not so"),
        (said(restarted=[PLACE]), state(), (), "restarted: said and not so"),
        (said(moved=[MOVED]), state(**GONE), ("shop/web-1",), "endpoints"),
        (said(), state(copies={"services": frozenset({("a", "shop", "web")})}), (), ""),
        (said(services=[{"lower": "a", **PLACE}]), state(), (), "Services lost: said and not so"),
        (said(), state(cut=frozenset({"shop/web-1"})), (), "streams cut: so and not said: ['a']"),
        (said(streams=[{"node": "a"}]), state(), (), "streams cut: said and not so"),
    ],
)
def test_what_is_otherwise_is_told(cost: Manifest, after: State, evicted: tuple[str, ...], words: str) -> None:
    """In words; an object that comes is no loss."""
    told = found(cost, after, evicted)
    assert bool(told) == bool(words)
    assert words in "; ".join(told)


def test_what_running_pods_lose_below_is_told() -> None:
    """A Service has to be named by the plan; a Secret that a pod of its namespace still uses must not go at all."""
    copies = {kind: frozenset({("a", "shop", "web")}) for kind in ("services", "Secrets")}
    before = state(copies=copies)
    named = said(services=[{"lower": "a", "namespace": "shop", "name": "web"}])
    told = differences(named, before, state(), (), ())
    assert told == ["Secrets lost by running pods: so and not said: [('a', 'shop', 'web')]"]
    assert differences(said(), before, before, (), ()) == []
    moved = {**named, "moved": [MOVED], **LOST}
    assert differences(moved, before, state(**GONE), ("shop/web-1",), ()) == []


def test_budgets_are_compared_and_one_that_allows_nothing_keeps_its_pods() -> None:
    """The report says both: who would move, and that the budget allows none now."""
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


def test_new_pods_go_together_where_each_has_a_place() -> None:
    """One for each old pod, in any order."""
    assert goes_together(["b", ""], [NOWHERE, frozenset({"b"})])
    assert goes_together(["b", "c"], [ANYWHERE, ANYWHERE])
    assert not goes_together(["b", "b"], [NOWHERE, frozenset({"b"})])
    assert not goes_together(["b"], [NOWHERE, frozenset({"b"})])
