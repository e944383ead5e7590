"""How the bench of Services tells how old a state is when it comes true below."""

from typing import Any

import pytest

from bench.speed.propagation import Manifest, Readiness, Slices, content, figures, ready

A, B = "lower-a", "lower-b"


def sliced(*addresses: str, ready: bool = True, port: int = 80) -> Manifest:
    """Make a slice of Service `web`."""
    return {
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": [{"addresses": [one], "conditions": {"ready": ready}} for one in addresses],
        "ports": [{"port": port}],
    }


def pod(uid: str = "p", address: str = "10.0.0.1", *, ready: bool = True, **meta: Any) -> Manifest:
    """Make a pod of Service `web`."""
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"uid": uid, "labels": {"app": "web"}, **meta},
        "status": {"podIP": address, "conditions": conditions},
    }


@pytest.mark.parametrize(
    "other", [sliced("a"), sliced("a", "b", ready=False), sliced("a", "b", port=81), {"metadata": {"name": "x"}}]
)
def test_states_differ_by_what_has_to_be_the_same_everywhere(other: Manifest) -> None:
    """The order of endpoints is not, nor on which node they are."""
    assert content(sliced("a", "b")) != content(other)
    moved = sliced("b", "a")
    moved["endpoints"][0]["nodeName"] = "n"
    assert content(sliced("a", "b")) == content(moved)


def test_a_state_counts_until_it_is_below() -> None:
    """In each lower."""
    found = Slices([A, B])
    found.above(1.0, "x", ("one",))
    found.below(1.5, A, "x", ("one",))
    assert found.lags == [0.5]
    assert found.stale() == [f"{B}: slice x is not as it is above"]
    found.below(3.0, B, "x", ("one",))
    assert (found.lags, found.stale(), found.changes) == ([0.5, 2.0], [], 1)


def test_a_state_that_was_passed_over_counts_until_a_later_one() -> None:
    """It was true for as long as nothing newer was below."""
    found = Slices([A])
    found.above(1.0, "x", ("one",))
    found.above(2.0, "x", ("two",))
    found.above(2.5, "x", ("two",))
    found.below(4.0, A, "x", ("two",))
    assert (found.lags, found.changes) == ([3.0, 2.0], 2)


def test_an_older_state_is_no_news() -> None:
    """A slice that stays at it is stale."""
    found = Slices([A])
    found.above(1.0, "x", ("one",))
    found.below(1.1, A, "x", ("one",))
    found.above(2.0, "x", ("two",))
    found.below(3.0, A, "x", ("one",))
    assert len(found.lags) == 1
    assert found.stale()


def test_what_is_told_below_first_is_not_late() -> None:
    """The bench's own watches may be behind one another."""
    found = Slices([A])
    found.below(1.0, A, "x", ("one",))
    found.above(1.2, "x", ("one",))
    assert (found.lags, found.stale()) == ([0.0], [])


def test_a_slice_that_went_has_to_go_below() -> None:
    """And one that never was above is stale."""
    found = Slices([A])
    found.above(1.0, "x", ("one",))
    found.below(1.0, A, "x", ("one",))
    found.above(2.0, "x", None)
    assert found.stale()
    found.below(2.5, A, "x", None)
    assert (found.lags, found.stale()) == ([0.0, 0.5], [])
    found.below(3.0, A, "y", ("odd",))
    assert found.stale() == [f"{A}: slice y is not as it is above"]


def test_readiness_counts_until_the_address_is_ready_in_every_cluster() -> None:
    """And again until it is ready in none."""
    found = Readiness([A, B])
    found.pod(1.0, pod(), gone=False)
    found.told(1.5, A, ("web", "web-1"), frozenset(ready(sliced("10.0.0.1"))))
    assert (found.lags, found.waiting) == ([0.5], 1)
    found.told(2.0, B, ("web", "web-1"), frozenset(["10.0.0.1"]))
    found.pod(3.0, pod(deletionTimestamp="now"), gone=False)
    assert found.waiting == 2
    for lower in (A, B):
        found.told(3.5, lower, ("web", "web-1"), frozenset(ready(sliced("10.0.0.1", ready=False))))
    assert (found.lags, found.waiting) == ([0.5, 1.0, 0.5, 0.5], 0)


def test_an_address_that_another_pod_took_over_stays_ready() -> None:
    """Nothing has to change then."""
    found = Readiness([A])
    found.told(1.0, A, ("web", "web-1"), frozenset(["10.0.0.1"]))
    found.pod(1.0, pod("one"), gone=False)
    found.pod(2.0, pod("two"), gone=False)
    found.pod(3.0, pod("one"), gone=True)
    assert (found.lags, found.waiting) == ([0.0, 0.0], 0)


def test_a_pod_that_was_never_ready_is_not_waited_for() -> None:
    """It is in no slice."""
    found = Readiness([A])
    found.pod(1.0, pod(ready=False), gone=False)
    found.pod(2.0, pod(ready=False), gone=True)
    assert (found.lags, found.waiting) == ([], 0)


def test_figures_are_of_the_ordered_lags() -> None:
    """The longest is the last."""
    lags = [float(one) for one in range(101)]
    assert figures(lags[::-1]) == {"count": 101, "p50_s": 50.0, "p99_s": 99.0, "longest_s": 100.0}
