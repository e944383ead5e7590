"""Tests of topology spread constraints, which count pods as the scheduler does."""

from typing import Any

import pytest
from placekit import ZONE, checks, examine_placement, node, pod, reasons

from tensile.policy.placement.checks import SKEWED, UNLABELLED

HOST = "kubernetes.io/hostname"
NODES = [node("a", labels={ZONE: "1"}), node("b", labels={ZONE: "1"}), node("c", labels={ZONE: "2"})]
OWN = {"app": "web"}


def even(key: str = ZONE, skew: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a topology spread constraint."""
    base = {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule"}
    return base | {"labelSelector": {"matchLabels": OWN}} | fields


def spec(*constraints: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a spec with constraints."""
    return {"topologySpreadConstraints": list(constraints), **fields}


def replicas(**counts: int) -> list[dict[str, Any]]:
    """Create so many pods on each node."""
    return [pod(f"{name}{number}", on=name, labels=OWN) for name, count in counts.items() for number in range(count)]


def test_a_domain_that_would_exceed_the_skew_does_not_fit() -> None:
    """With one more pod it would have two more than the other domain."""
    found = examine_placement(pod(spec=spec(even()), labels=OWN), NODES, replicas(a=1))
    assert found.fitting == ("c",)
    assert reasons(found) == {"a": (SKEWED,), "b": (SKEWED,)}
    assert found.refused["a"].detail == f"{ZONE}=1: matching pods 1, allowed 0"
    assert set(checks(found).values()) == {"spread"}


def test_a_skew_up_to_the_maximum_is_allowed() -> None:
    """A domain that would exceed maxSkew does not fit."""
    assert examine_placement(pod(spec=spec(even(skew=2)), labels=OWN), NODES, replicas(a=1)).fitting == ("a", "b", "c")
    assert examine_placement(pod(spec=spec(even(skew=2)), labels=OWN), NODES, replicas(a=1, b=1)).fitting == ("c",)


def test_a_pod_that_its_own_selector_does_not_match_adds_no_skew() -> None:
    """Its domain has the same count with it."""
    assert examine_placement(pod(spec=spec(even())), NODES, replicas(a=1)).fitting == ("a", "b", "c")
    assert examine_placement(pod(spec=spec(even())), NODES, replicas(a=2)).fitting == ("c",)


def test_a_node_without_the_topology_key_does_not_fit() -> None:
    """It is in no topology domain."""
    found = examine_placement(pod(spec=spec(even()), labels=OWN), [*NODES, node("d")])
    assert reasons(found) == {"d": (UNLABELLED,)}
    assert found.refused["d"].detail == f"missing label {ZONE}"


def test_only_nodes_with_the_keys_of_all_constraints_count() -> None:
    """A host without a zone is no domain if there is a constraint over zones too."""
    nodes = [*NODES[:1], node("d")]
    found = examine_placement(pod(spec=spec(even(HOST), even()), labels=OWN), nodes, replicas(a=1))
    assert found.fitting == ("a",)


@pytest.mark.parametrize(("least", "fits"), [(None, True), (2, True), (3, False)])
def test_with_fewer_domains_than_min_domains_the_minimum_counts_as_zero(least: int | None, *, fits: bool) -> None:
    """With enough domains the emptiest one counts."""
    constraint = even() | ({"minDomains": least} if least else {})
    found = examine_placement(pod(spec=spec(constraint), labels=OWN), NODES, replicas(a=1, c=1))
    assert found.fits == fits


def test_pods_of_other_namespaces_or_labels_and_ending_pods_do_not_count() -> None:
    """Terminating and terminated pods are not counted."""
    others = [
        pod("n", on="a", labels=OWN, namespace="side"),
        pod("l", on="a", labels={"app": "db"}),
        pod("e", on="a", labels=OWN, deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("s", on="a", labels=OWN) | {"status": {"phase": "Succeeded"}},
    ]
    assert examine_placement(pod(spec=spec(even()), labels=OWN), NODES, others).fitting == ("a", "b", "c")


def test_an_empty_selector_counts_no_pod() -> None:
    """That is the scheduler's rule."""
    found = examine_placement(pod(spec=spec(even(labelSelector={})), labels=OWN), NODES, replicas(a=5))
    assert found.fitting == ("a", "b", "c")


def test_a_constraint_without_a_selector_counts_no_pod() -> None:
    """It does not count the pod itself either."""
    constraint = {key: value for key, value in even().items() if key != "labelSelector"}
    assert examine_placement(pod(spec=spec(constraint), labels=OWN), NODES, replicas(a=5)).fits


@pytest.mark.parametrize(("policy", "fitting"), [("Honor", ("a",)), (None, ("a",)), ("Ignore", ())])
def test_nodes_that_the_pod_does_not_select_are_no_domain_unless_ignored(
    policy: str | None, fitting: tuple[str, ...]
) -> None:
    """The default of nodeAffinityPolicy is Honor."""
    constraint = even(**({"nodeAffinityPolicy": policy} if policy else {}))
    wanted = pod(spec=spec(constraint, nodeSelector={ZONE: "1", HOST: "a"}), labels=OWN)
    assert examine_placement(wanted, NODES, replicas(a=1)).fitting == fitting


@pytest.mark.parametrize(("policy", "fitting"), [("Honor", ("a", "b")), (None, ()), ("Ignore", ())])
def test_nodes_with_untolerated_taints_are_a_domain_unless_honored(
    policy: str | None, fitting: tuple[str, ...]
) -> None:
    """The default of nodeTaintsPolicy is Ignore."""
    taint = {"taints": [{"key": "x", "effect": "NoSchedule"}]}
    nodes = [*NODES[:2], node("c", labels={ZONE: "2"}, spec=taint)]
    constraint = even(**({"nodeTaintsPolicy": policy} if policy else {}))
    assert examine_placement(pod(spec=spec(constraint), labels=OWN), nodes, replicas(a=1)).fitting == fitting


def test_match_label_keys_count_only_pods_with_the_pods_own_value() -> None:
    """With key version, only pods of the same version count."""
    constraint = even(matchLabelKeys=["version"])
    there = [pod("r", on="a", labels=OWN | {"version": "1"})]
    assert examine_placement(pod(spec=spec(constraint), labels=OWN | {"version": "2"}), NODES, there).fitting == (
        "a",
        "b",
        "c",
    )
    assert examine_placement(pod(spec=spec(constraint), labels=OWN | {"version": "1"}), NODES, there).fitting == ("c",)


def test_schedule_anyway_excludes_no_node() -> None:
    """Such a constraint only affects scores."""
    constraint = even(whenUnsatisfiable="ScheduleAnyway")
    assert examine_placement(pod(spec=spec(constraint), labels=OWN), NODES, replicas(a=9)).fitting == ("a", "b", "c")


def test_each_constraint_must_hold() -> None:
    """The pod is spread over zones and over hosts."""
    found = examine_placement(pod(spec=spec(even(skew=2), even(HOST)), labels=OWN), NODES, replicas(a=1, c=1))
    assert found.fitting == ("b",)
    assert found.refused["c"].detail == f"{HOST}=c: matching pods 1, allowed 0"
