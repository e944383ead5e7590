"""How many pods several lowers take together: a pod has to fit above and below, and company counts on both sides."""

from typing import Any

from placekit import asking, node, pod, seen

from tensile.policy.placement.placement import ClusterShare, ClusterSpace, spread_out
from tensile.policy.placement.snapshot import Snapshot, pod_of

HOST = "kubernetes.io/hostname"
OWN = {"app": "web"}
STEPS = 100


def lower(name: str, *cpu: str) -> tuple[str, Snapshot]:
    """Make a lower whose nodes have so much."""
    return name, seen([node(f"{name}-{number}", cpu=each) for number, each in enumerate(cpu)])


def shared(
    spec: dict[str, Any], upper: Snapshot, *lowers: tuple[str, Snapshot], steps: int = STEPS
) -> dict[str, ClusterShare]:
    """Share pods out among lowers whose virtual nodes are called v-NAME."""
    wanted = pod_of(pod(spec=spec, labels=OWN))
    return spread_out(
        wanted, upper, {name: ClusterSpace(f"v-{name}", wanted, ground) for name, ground in lowers}, steps
    )


def totals(found: dict[str, ClusterShare]) -> dict[str, int]:
    """Return how many each lower takes."""
    return {name: sum(share.counts.values()) for name, share in found.items()}


def above(*names: str, cpu: str = "100") -> Snapshot:
    """Make an upper cluster of virtual nodes."""
    return seen([node(f"v-{name}", cpu=cpu, pods="500", memory="999Gi") for name in names])


def apart() -> dict[str, Any]:
    """Make the spec of a pod that shares no host with its own kind."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": OWN}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def even(skew: int = 1) -> dict[str, Any]:
    """Make the spec of a pod that is spread over hosts."""
    selector = {"matchLabels": OWN}
    constraint = {"topologyKey": HOST, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return {"topologySpreadConstraints": [constraint]}


def test_lowers_that_do_not_depend_on_each_other() -> None:
    """Each is filled."""
    found = shared(asking(cpu="2"), above("a", "b"), lower("a", "4", "3"), lower("b", "2"))
    assert found["a"].counts == {"a-0": 2, "a-1": 1}
    assert found["b"] == ClusterShare({"b-0": 1}, more=False, why="0/1 nodes are available: 1 Insufficient cpu.")


def test_what_is_offered_above_is_a_bound() -> None:
    """Also where there is more below."""
    found = shared(asking(cpu="2"), above("a", cpu="5"), lower("a", "8"))
    assert found["a"] == ClusterShare({"a-0": 2}, more=False, why="its virtual node has no free capacity")


def test_pods_that_share_no_host() -> None:
    """A virtual node is a host above: there is one to each, whatever is behind it."""
    found = shared(apart(), above("a", "b"), lower("a", "4", "4", "4"), lower("b", "4"))
    assert totals(found) == {"a": 1, "b": 1}
    assert found["a"].why.startswith(
        "the upper scheduler does not bind it there: node(s) didn't match pod anti-affinity"
    )
    assert found["b"].why == "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."


def test_pods_spread_over_hosts() -> None:
    """The lower that is full holds the other back, above."""
    found = shared(even() | asking(cpu="2"), above("a", "b"), lower("a", "8", "8"), lower("b", "2"))
    assert totals(found) == {"a": 2, "b": 1}
    assert found["a"].why.startswith(
        "the upper scheduler does not bind it there: node(s) didn't match pod topology spread"
    )


def test_the_next_lower_is_tried_where_one_is_full_below() -> None:
    """Though the upper cluster sees room in both."""
    found = shared(even(skew=9) | asking(cpu="3"), above("a", "b"), lower("a", "2", "2"), lower("b", "8", "8"))
    assert totals(found) == {"a": 0, "b": 4}
    assert found["a"].why == "0/2 nodes are available: 2 Insufficient cpu."


def test_no_more_than_can_be_placed_one_by_one() -> None:
    """There may be room for more, and no reason is given then."""
    found = shared(even(skew=9), above("a", "b"), lower("a", "8"), lower("b", "8"), steps=4)
    assert sum(totals(found).values()) == 4
    assert {share.more for share in found.values()} == {True}
    assert {share.why for share in found.values()} == {""}


def test_a_lower_whose_virtual_node_is_missing() -> None:
    """Nothing is sent there, alone or together."""
    for spec in (asking(cpu="1"), even()):
        found = shared(spec, above("b"), lower("a", "8"), lower("b", "1"))
        assert totals(found)["a"] == 0
        assert (
            found["a"].why
            == "the upper scheduler does not bind it there: node v-a does not exist: check that the engine is running"
        )


def test_nodes_above_that_are_no_lower() -> None:
    """What would run there is not counted."""
    found = shared(even(skew=50), above("a", "other"), lower("a", "8", "8"), steps=30)
    assert totals(found) == {"a": 20}
    assert not found["a"].more
