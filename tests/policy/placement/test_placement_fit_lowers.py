"""Tests of the number of pods that fit in several lowers: each pod has to satisfy all constraints in both clusters."""

from typing import Any

from placekit import make_snapshot, node, pod, spec_requesting

from tensile.policy.placement.placement import ClusterShare, ClusterSpace, fill_clusters
from tensile.policy.placement.snapshot import Snapshot, pod_of

HOST = "kubernetes.io/hostname"
OWN = {"app": "web"}
STEPS = 100


def lower(name: str, *cpu: str) -> tuple[str, Snapshot]:
    """Return a lower whose nodes have these amounts of cpu."""
    return name, make_snapshot([node(f"{name}-{number}", cpu=each) for number, each in enumerate(cpu)])


def shared(
    spec: dict[str, Any], upper: Snapshot, *lowers: tuple[str, Snapshot], steps: int = STEPS
) -> dict[str, ClusterShare]:
    """Distribute pods over lowers whose virtual nodes are named v-NAME."""
    wanted = pod_of(pod(spec=spec, labels=OWN))
    return fill_clusters(
        wanted, upper, {name: ClusterSpace(f"v-{name}", wanted, ground) for name, ground in lowers}, steps
    )


def totals(found: dict[str, ClusterShare]) -> dict[str, int]:
    """Return the number of pods of each lower."""
    return {name: sum(share.counts.values()) for name, share in found.items()}


def upper_with_nodes(*names: str, cpu: str = "100") -> Snapshot:
    """Return an upper cluster with virtual nodes."""
    return make_snapshot([node(f"v-{name}", cpu=cpu, pods="500", memory="999Gi") for name in names])


def apart() -> dict[str, Any]:
    """Return the spec of a pod that shares no host with its own kind."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": OWN}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def even(skew: int = 1) -> dict[str, Any]:
    """Return the spec of a pod that is spread over hosts."""
    selector = {"matchLabels": OWN}
    constraint = {"topologyKey": HOST, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return {"topologySpreadConstraints": [constraint]}


def test_independent_lowers_are_filled_completely() -> None:
    """The share of a full lower cluster has the reason of the next refusal."""
    found = shared(spec_requesting(cpu="2"), upper_with_nodes("a", "b"), lower("a", "4", "3"), lower("b", "2"))
    assert found["a"].counts == {"a-0": 2, "a-1": 1}
    assert found["b"] == ClusterShare({"b-0": 1}, more=False, refusal="0/1 nodes are available: 1 Insufficient cpu.")


def test_the_capacity_of_the_virtual_node_limits_the_pods() -> None:
    """The lower cluster has room for more."""
    found = shared(spec_requesting(cpu="2"), upper_with_nodes("a", cpu="5"), lower("a", "8"))
    assert found["a"] == ClusterShare({"a-0": 2}, more=False, refusal="its virtual node has no free capacity")


def test_pods_with_host_anti_affinity_have_one_per_virtual_node() -> None:
    """A virtual node is one host for the upper scheduler, regardless of its lower nodes."""
    found = shared(apart(), upper_with_nodes("a", "b"), lower("a", "4", "4", "4"), lower("b", "4"))
    assert totals(found) == {"a": 1, "b": 1}
    assert found["a"].refusal.startswith(
        "the upper scheduler does not bind it there: node(s) didn't match pod anti-affinity"
    )
    assert found["b"].refusal == "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."


def test_pods_spread_over_hosts_are_limited_by_the_full_lower() -> None:
    """The upper scheduler would exceed the skew with another pod."""
    found = shared(even() | spec_requesting(cpu="2"), upper_with_nodes("a", "b"), lower("a", "8", "8"), lower("b", "2"))
    assert totals(found) == {"a": 2, "b": 1}
    assert found["a"].refusal.startswith(
        "the upper scheduler does not bind it there: node(s) didn't match pod topology spread"
    )


def test_the_next_lower_is_used_if_no_lower_node_fits() -> None:
    """The upper cluster has room on both virtual nodes."""
    found = shared(
        even(skew=9) | spec_requesting(cpu="3"), upper_with_nodes("a", "b"), lower("a", "2", "2"), lower("b", "8", "8")
    )
    assert totals(found) == {"a": 0, "b": 4}
    assert found["a"].refusal == "0/2 nodes are available: 2 Insufficient cpu."


def test_the_placement_stops_at_the_step_limit() -> None:
    """More pods may fit, so no reason is given."""
    found = shared(even(skew=9), upper_with_nodes("a", "b"), lower("a", "8"), lower("b", "8"), steps=4)
    assert sum(totals(found).values()) == 4
    assert {share.more for share in found.values()} == {True}
    assert {share.refusal for share in found.values()} == {""}


def test_a_lower_without_its_virtual_node_gets_no_pod() -> None:
    """That holds for pods that are placed independently and one by one."""
    for spec in (spec_requesting(cpu="1"), even()):
        found = shared(spec, upper_with_nodes("b"), lower("a", "8"), lower("b", "1"))
        assert totals(found)["a"] == 0
        assert (
            found["a"].refusal
            == "the upper scheduler does not bind it there: node v-a does not exist: check that the engine is running"
        )


def test_pods_on_upper_nodes_that_are_not_virtual_are_not_counted() -> None:
    """Only the share of the lower cluster is counted."""
    found = shared(even(skew=50), upper_with_nodes("a", "other"), lower("a", "8", "8"), steps=30)
    assert totals(found) == {"a": 20}
    assert not found["a"].more
