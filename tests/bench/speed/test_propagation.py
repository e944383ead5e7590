"""Tests of how the bench of Services measures the age of a state when it reaches the lower clusters."""

from typing import Any

import pytest

from bench.speed.propagation import Manifest, Readiness, Slices, content, figures, ready

A, B = "lower-a", "lower-b"


def sliced(*addresses: str, ready: bool = True, port: int = 80) -> Manifest:
    """Return a slice of Service `web`."""
    return {
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": [{"addresses": [one], "conditions": {"ready": ready}} for one in addresses],
        "ports": [{"port": port}],
    }


def pod(uid: str = "p", address: str = "10.0.0.1", *, ready: bool = True, **meta: Any) -> Manifest:
    """Return a pod of Service `web`."""
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"uid": uid, "labels": {"app": "web"}, **meta},
        "status": {"podIP": address, "conditions": conditions},
    }


@pytest.mark.parametrize(
    "other", [sliced("a"), sliced("a", "b", ready=False), sliced("a", "b", port=81), {"metadata": {"name": "x"}}]
)
def test_states_differ_only_by_values_that_are_the_same_in_every_cluster(other: Manifest) -> None:
    """The order of endpoints and their nodes are left out."""
    assert content(sliced("a", "b")) != content(other)
    moved = sliced("b", "a")
    moved["endpoints"][0]["nodeName"] = "n"
    assert content(sliced("a", "b")) == content(moved)


def test_a_state_is_measured_until_it_is_in_each_lower_cluster() -> None:
    """A lower that does not have the state yet is stale."""
    found = Slices([A, B])
    found.above(1.0, "x", ("one",))
    found.below(1.5, A, "x", ("one",))
    assert found.lags == [0.5]
    assert found.stale() == [f"{B}: slice x is not as it is above"]
    found.below(3.0, B, "x", ("one",))
    assert (found.lags, found.stale(), found.changes) == ([0.5, 2.0], [], 1)


def test_a_skipped_state_is_measured_until_a_later_one_is_in_the_lower_cluster() -> None:
    """Until then, the lower cluster had nothing newer."""
    found = Slices([A])
    found.above(1.0, "x", ("one",))
    found.above(2.0, "x", ("two",))
    found.above(2.5, "x", ("two",))
    found.below(4.0, A, "x", ("two",))
    assert (found.lags, found.changes) == ([3.0, 2.0], 2)


def test_an_older_state_is_not_measured_again() -> None:
    """A slice that returns to an older state is stale."""
    found = Slices([A])
    found.above(1.0, "x", ("one",))
    found.below(1.1, A, "x", ("one",))
    found.above(2.0, "x", ("two",))
    found.below(3.0, A, "x", ("one",))
    assert len(found.lags) == 1
    assert found.stale()


def test_a_state_that_is_seen_in_the_lower_cluster_first_has_no_lag() -> None:
    """The bench's own watches may lag behind each other."""
    found = Slices([A])
    found.below(1.0, A, "x", ("one",))
    found.above(1.2, "x", ("one",))
    assert (found.lags, found.stale()) == ([0.0], [])


def test_a_deleted_slice_has_to_be_deleted_in_the_lower_cluster() -> None:
    """A lower slice that never existed in the upper cluster is stale."""
    found = Slices([A])
    found.above(1.0, "x", ("one",))
    found.below(1.0, A, "x", ("one",))
    found.above(2.0, "x", None)
    assert found.stale()
    found.below(2.5, A, "x", None)
    assert (found.lags, found.stale()) == ([0.0, 0.5], [])
    found.below(3.0, A, "y", ("odd",))
    assert found.stale() == [f"{A}: slice y is not as it is above"]


def test_readiness_is_measured_until_the_address_is_ready_in_every_cluster() -> None:
    """When the pod is deleted, it is measured until the address is ready in none."""
    found = Readiness([A, B])
    found.pod(1.0, pod(), gone=False)
    found.record(1.5, A, ("web", "web-1"), frozenset(ready(sliced("10.0.0.1"))))
    assert (found.lags, found.waiting) == ([0.5], 1)
    found.record(2.0, B, ("web", "web-1"), frozenset(["10.0.0.1"]))
    found.pod(3.0, pod(deletionTimestamp="now"), gone=False)
    assert found.waiting == 2
    for lower in (A, B):
        found.record(3.5, lower, ("web", "web-1"), frozenset(ready(sliced("10.0.0.1", ready=False))))
    assert (found.lags, found.waiting) == ([0.5, 1.0, 0.5, 0.5], 0)


def test_an_address_that_another_pod_reuses_stays_ready() -> None:
    """No slice has to change in that case."""
    found = Readiness([A])
    found.record(1.0, A, ("web", "web-1"), frozenset(["10.0.0.1"]))
    found.pod(1.0, pod("one"), gone=False)
    found.pod(2.0, pod("two"), gone=False)
    found.pod(3.0, pod("one"), gone=True)
    assert (found.lags, found.waiting) == ([0.0, 0.0], 0)


def test_a_pod_that_was_never_ready_is_not_measured() -> None:
    """It is in no slice."""
    found = Readiness([A])
    found.pod(1.0, pod(ready=False), gone=False)
    found.pod(2.0, pod(ready=False), gone=True)
    assert (found.lags, found.waiting) == ([], 0)


def test_figures_are_computed_from_sorted_lags() -> None:
    """The last one is the longest."""
    lags = [float(one) for one in range(101)]
    assert figures(lags[::-1]) == {"count": 101, "p50_s": 50.0, "p99_s": 99.0, "longest_s": 100.0}
