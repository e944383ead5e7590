"""Topology spread constraints, counted as the scheduler counts them."""

from typing import Any

import pytest
from placekit import ZONE, checks, node, place, pod, reasons

from tensile.policy.placement.checks import SKEWED, UNLABELLED

HOST = "kubernetes.io/hostname"
NODES = [node("a", labels={ZONE: "1"}), node("b", labels={ZONE: "1"}), node("c", labels={ZONE: "2"})]
OWN = {"app": "web"}


def even(key: str = ZONE, skew: int = 1, **fields: Any) -> dict[str, Any]:
    """Make a constraint."""
    base = {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule"}
    return base | {"labelSelector": {"matchLabels": OWN}} | fields


def spec(*constraints: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Make a spec with constraints."""
    return {"topologySpreadConstraints": list(constraints), **fields}


def replicas(**counts: int) -> list[dict[str, Any]]:
    """Make so many pods on each node."""
    return [pod(f"{name}{number}", on=name, labels=OWN) for name, count in counts.items() for number in range(count)]


def test_the_fuller_domain_does_not_do() -> None:
    """One more there would be two more than in the other."""
    found = place(pod(spec=spec(even()), labels=OWN), NODES, replicas(a=1))
    assert found.fitting == ("c",)
    assert reasons(found) == {"a": (SKEWED,), "b": (SKEWED,)}
    assert found.refused["a"].detail == f"{ZONE}=1: matching pods 1, allowed 0"
    assert set(checks(found).values()) == {"spread"}


def test_as_much_skew_as_is_allowed() -> None:
    """And no more."""
    assert place(pod(spec=spec(even(skew=2)), labels=OWN), NODES, replicas(a=1)).fitting == ("a", "b", "c")
    assert place(pod(spec=spec(even(skew=2)), labels=OWN), NODES, replicas(a=1, b=1)).fitting == ("c",)


def test_a_pod_that_it_does_not_select_itself() -> None:
    """It does not make its domain any fuller."""
    assert place(pod(spec=spec(even())), NODES, replicas(a=1)).fitting == ("a", "b", "c")
    assert place(pod(spec=spec(even())), NODES, replicas(a=2)).fitting == ("c",)


def test_a_node_without_the_label() -> None:
    """It is in no domain, and does not do."""
    found = place(pod(spec=spec(even()), labels=OWN), [*NODES, node("d")])
    assert reasons(found) == {"d": (UNLABELLED,)}
    assert found.refused["d"].detail == f"missing label {ZONE}"


def test_only_nodes_with_all_labels_count() -> None:
    """A domain of hosts that are in no zone is none, where zones are asked for as well."""
    nodes = [*NODES[:1], node("d")]
    found = place(pod(spec=spec(even(HOST), even()), labels=OWN), nodes, replicas(a=1))
    assert found.fitting == ("a",)


@pytest.mark.parametrize(("least", "fits"), [(None, True), (2, True), (3, False)])
def test_fewer_domains_than_wanted(least: int | None, *, fits: bool) -> None:
    """With less than minDomains, the emptiest is taken to have none."""
    constraint = even() | ({"minDomains": least} if least else {})
    found = place(pod(spec=spec(constraint), labels=OWN), NODES, replicas(a=1, c=1))
    assert found.fits == fits


def test_pods_that_do_not_count() -> None:
    """Of another namespace, with other labels, ending, or ended."""
    others = [
        pod("n", on="a", labels=OWN, namespace="side"),
        pod("l", on="a", labels={"app": "db"}),
        pod("e", on="a", labels=OWN, deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("s", on="a", labels=OWN) | {"status": {"phase": "Succeeded"}},
    ]
    assert place(pod(spec=spec(even()), labels=OWN), NODES, others).fitting == ("a", "b", "c")


def test_a_selector_that_selects_everything_counts_nothing() -> None:
    """As the scheduler has it."""
    found = place(pod(spec=spec(even(labelSelector={})), labels=OWN), NODES, replicas(a=5))
    assert found.fitting == ("a", "b", "c")


def test_no_selector_counts_nothing() -> None:
    """And not the pod itself."""
    constraint = {key: value for key, value in even().items() if key != "labelSelector"}
    assert place(pod(spec=spec(constraint), labels=OWN), NODES, replicas(a=5)).fits


@pytest.mark.parametrize(("policy", "fitting"), [("Honor", ("a",)), (None, ("a",)), ("Ignore", ())])
def test_nodes_that_the_pod_does_not_select(policy: str | None, fitting: tuple[str, ...]) -> None:
    """They are no domain to be even with, unless that is to be ignored."""
    constraint = even(**({"nodeAffinityPolicy": policy} if policy else {}))
    wanted = pod(spec=spec(constraint, nodeSelector={ZONE: "1", HOST: "a"}), labels=OWN)
    assert place(wanted, NODES, replicas(a=1)).fitting == fitting


@pytest.mark.parametrize(("policy", "fitting"), [("Honor", ("a", "b")), (None, ()), ("Ignore", ())])
def test_nodes_whose_taints_it_does_not_tolerate(policy: str | None, fitting: tuple[str, ...]) -> None:
    """They are a domain, unless taints are to be honoured."""
    taint = {"taints": [{"key": "x", "effect": "NoSchedule"}]}
    nodes = [*NODES[:2], node("c", labels={ZONE: "2"}, spec=taint)]
    constraint = even(**({"nodeTaintsPolicy": policy} if policy else {}))
    assert place(pod(spec=spec(constraint), labels=OWN), nodes, replicas(a=1)).fitting == fitting


def test_keys_of_the_pod_itself() -> None:
    """With matchLabelKeys only pods of its own version count."""
    constraint = even(matchLabelKeys=["version"])
    there = [pod("r", on="a", labels=OWN | {"version": "1"})]
    assert place(pod(spec=spec(constraint), labels=OWN | {"version": "2"}), NODES, there).fitting == ("a", "b", "c")
    assert place(pod(spec=spec(constraint), labels=OWN | {"version": "1"}), NODES, there).fitting == ("c",)


def test_a_wish_keeps_nobody_away() -> None:
    """ScheduleAnyway is for scores."""
    constraint = even(whenUnsatisfiable="ScheduleAnyway")
    assert place(pod(spec=spec(constraint), labels=OWN), NODES, replicas(a=9)).fitting == ("a", "b", "c")


def test_each_constraint_has_to_hold() -> None:
    """Even over zones and over hosts."""
    found = place(pod(spec=spec(even(skew=2), even(HOST)), labels=OWN), NODES, replicas(a=1, c=1))
    assert found.fitting == ("b",)
    assert found.refused["c"].detail == f"{HOST}=c: matching pods 1, allowed 0"
