"""Tests of the capacity that a lower cluster offers: it follows from the state, is never negative, and is canonical."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.kube.store import Transformed
from tensile.kubelet.node.capacity import (
    MAX_RESOURCES,
    NodeOffer,
    ResourceShare,
    capacity,
    declared_features,
    node_offer,
    shares,
)
from tensile.reconcile.pods.demand import PodDemand

GI = 1024**3 * 1000
READY = {"type": "Ready", "status": "True"}


def node(name: str = "n1", *, ready: bool = True, schedulable: bool = True, **offer: int) -> NodeOffer:
    """Return a node of 4 CPUs, 8Gi and 110 pods, changed by the given amounts in milli-units."""
    basis = {"cpu": 4000, "memory": 8 * GI, "pods": 110_000}
    return NodeOffer(name, basis | offer, ready=ready, schedulable=schedulable)


def taker(where: str = "n1", *, ended: bool = False, **requests: int) -> PodDemand:
    """Return a pod that requests these amounts of a node."""
    return PodDemand(where, ended, {"pods": 1000} | requests)


def free(nodes: list[NodeOffer], *pods: PodDemand, **limits: str) -> dict[str, str]:
    """Return the free capacity, under limits."""
    return capacity(nodes, pods, "free", {}, limits)


def test_a_cluster_without_nodes_offers_zero() -> None:
    """The basic resources are listed as 0, because some clients mistake a node without them for no node."""
    assert free([]) == {"cpu": "0", "memory": "0", "pods": "0"}


def test_the_allocatable_of_all_nodes_is_summed() -> None:
    """The quantities are canonical, as the apiserver writes them, so equal values need no write."""
    assert free([node(), node("n2", cpu=500)]) == {"cpu": "4500m", "memory": "16Gi", "pods": "220"}


@pytest.mark.parametrize("state", [{"ready": False}, {"schedulable": False}])
def test_a_node_that_accepts_no_pods_does_not_count(state: dict) -> None:
    """A node that is not Ready or is cordoned adds nothing."""
    assert free([node(), node("n2", **state)]) == free([node()])


def test_requests_of_other_pods_are_subtracted_from_free_capacity() -> None:
    """Both their resource requests and their number are subtracted."""
    assert free([node()], taker(cpu=1500, memory=GI)) == {"cpu": "2500m", "memory": "7Gi", "pods": "109"}


def test_the_requests_of_all_pods_on_a_node_are_subtracted() -> None:
    """Two pods on a node reduce its free capacity by both their requests."""
    assert free([node()], taker(cpu=500), taker(cpu=1000)) == {"cpu": "2500m", "memory": "8Gi", "pods": "108"}


def test_allocatable_capacity_ignores_running_pods() -> None:
    """This basis is for a cluster without other pods, or whose pods change too fast to count."""
    assert capacity([node()], [taker(cpu=1500)], "allocatable", {}, {})["cpu"] == "4"


@pytest.mark.parametrize("pod", [taker("n1", ended=True, cpu=1000), taker("", cpu=1000), taker("gone", cpu=1000)])
def test_pods_that_use_no_resources_do_not_count(pod: PodDemand) -> None:
    """Pods that have ended, are not scheduled, or are on a node that does not count are ignored."""
    assert free([node()], pod)["cpu"] == "4"


def test_an_overcommitted_node_does_not_reduce_other_nodes() -> None:
    """Static pods may request more than a node has; the free capacity of other nodes is still offered."""
    assert free([node(), node("n2")], taker(cpu=9000))["cpu"] == "4"


def test_a_resource_that_no_node_has_is_not_offered() -> None:
    """A pod that requests an undeclared resource causes no negative number."""
    assert "example.com/x" not in free([node()], taker(**{"example.com/x": 20_000}))


def test_reserved_amounts_are_not_offered() -> None:
    """The reserve is subtracted from the sum down to zero; a resource that no node has is still not offered."""
    found = capacity([node()], [], "free", {"cpu": "1500m", "memory": "1Ti", "example.com/x": "1"}, {})
    assert found == {"cpu": "2500m", "memory": "0", "pods": "110"}


def test_a_limit_is_the_maximum_that_is_offered() -> None:
    """A smaller sum is not raised, and a limit for an absent resource offers nothing."""
    assert free([node()], cpu="1", memory="1Ti", **{"nvidia.com/gpu": "4"}) == {
        "cpu": "1",
        "memory": "8Gi",
        "pods": "110",
    }


def test_all_quantities_except_cpu_are_whole_numbers() -> None:
    """The apiserver rejects fractions of a device, and fractions of a byte are useless."""
    found = free([node(**{"example.com/x": 2500, "memory": 1999})], taker(**{"example.com/x": 1, "cpu": 1}))
    assert (found["example.com/x"], found["memory"], found["cpu"]) == ("2", "1", "3999m")


def test_a_node_is_parsed_from_its_bytes() -> None:
    """All facts that the virtual node needs are extracted, and the bytes are dropped."""
    raw = orjson.dumps(
        {
            "metadata": {"name": "n1", "labels": {"zone": "a"}},
            "spec": {},
            "status": {
                "allocatable": {"cpu": "3920m", "memory": "8Gi"},
                "conditions": [{"type": "MemoryPressure", "status": "False"}, READY],
                "nodeInfo": {
                    "kubeletVersion": "v1.36.3",
                    "operatingSystem": "linux",
                    "architecture": "arm64",
                    "kernelVersion": "6.12.1",
                    "osImage": "Linux",
                    "containerRuntimeVersion": "containerd://2.1.0",
                    "machineID": "1",
                },
                "declaredFeatures": ["A", "B"],
            },
        }
    )
    assert node_offer(raw) == Transformed(
        b"",
        NodeOffer(
            "n1",
            {"cpu": 3920, "memory": 8 * GI},
            ready=True,
            schedulable=True,
            kubelet_version="v1.36.3",
            operating_system="linux",
            architecture="arm64",
            kernel_version="6.12.1",
            os_image="Linux",
            container_runtime="containerd://2.1.0",
            declared_features=frozenset({"A", "B"}),
            label_keys=frozenset({"zone"}),
        ),
    )


@pytest.mark.parametrize(
    ("cidrs", "addresses", "found"),
    [
        ([], [], set()),
        ([], ["10.0.0.1"], {"IPv4"}),
        ([], ["10.0.0.1", "fd00::1"], {"IPv4", "IPv6"}),
        (["fd00::/64"], ["10.0.0.1"], {"IPv6"}),
    ],
)
def test_a_nodes_ip_families_are_those_of_its_pod_cidrs(
    cidrs: list[str], addresses: list[str], found: set[str]
) -> None:
    """Without pod CIDRs the families of its own addresses count."""
    listed = [{"type": "InternalIP", "address": one} for one in addresses]
    listed.append({"type": "Hostname", "address": "a:b"})
    node = {"metadata": {"name": "n"}, "spec": {"podCIDRs": cidrs}, "status": {"addresses": listed}}
    assert node_offer(orjson.dumps(node)).facts.families == found


@pytest.mark.parametrize(
    ("manifest", "counts"),
    [
        ({"status": {"conditions": [READY]}}, True),
        ({"spec": {"unschedulable": False}, "status": {"conditions": [READY]}}, True),
        ({"spec": {"unschedulable": True}, "status": {"conditions": [READY]}}, False),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, False),
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, False),
        ({"status": {"conditions": [{"type": "MemoryPressure", "status": "True"}]}}, False),
        ({"status": {"conditions": None}}, False),
        ({}, False),
    ],
)
def test_a_node_counts_if_it_is_ready_and_schedulable(manifest: dict, counts: bool) -> None:  # noqa: FBT001
    """A Ready condition of Unknown does not count, because the node's kubelet does not respond."""
    assert node_offer(orjson.dumps({"metadata": {"name": "n"}, **manifest})).facts.counts is counts


def test_a_node_that_is_being_deleted_does_not_count() -> None:
    """Its pods are about to be removed."""
    raw = orjson.dumps(
        {"metadata": {"name": "n", "deletionTimestamp": "2026-03-01T12:00:00Z"}, "status": {"conditions": [READY]}}
    )
    assert not node_offer(raw).facts.counts


def test_declared_features_are_those_of_all_nodes_that_count() -> None:
    """A feature that one such node lacks cannot be promised for the cluster."""
    some = NodeOffer("a", {}, ready=True, schedulable=True, declared_features=frozenset({"A", "B"}))
    others = NodeOffer("b", {}, ready=True, schedulable=True, declared_features=frozenset({"B", "C"}))
    down = NodeOffer("c", {}, ready=False, schedulable=True)
    assert declared_features([some, others, down]) == {"B"}
    assert declared_features([down]) == frozenset()


def test_the_number_of_offered_resources_is_limited() -> None:
    """If nodes declare too many resources, those that every node has are kept; other node facts are limited too."""
    names = [f"a.example.com/{number}" for number in range(150)]
    basis = {"cpu": "4", "memory": "8Gi", "pods": "110", "ephemeral-storage": "1Gi"}
    raw = orjson.dumps(
        {
            "metadata": {"name": "n1"},
            "status": {
                "allocatable": dict.fromkeys(names, "1") | basis,
                "conditions": [READY],
                "nodeInfo": {"osImage": "x" * 10_000},
                "declaredFeatures": [f"F{number}" for number in range(10_000)],
            },
        }
    )
    offer = node_offer(raw).facts
    assert len(offer.allocatable) == MAX_RESOURCES
    assert (len(offer.os_image), len(offer.declared_features)) == (256, 500)
    shown = free([offer, node("n2", **dict.fromkeys(names[100:], 1000))])
    assert len(shown) == MAX_RESOURCES
    assert shown.keys() > basis.keys()


AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "pods", "example.com/x"]), st.integers(0, 9999), max_size=4)
NODES = st.lists(
    st.builds(NodeOffer, st.sampled_from(["n1", "n2"]), AMOUNTS, ready=st.booleans(), schedulable=st.booleans()),
    max_size=3,
    unique_by=lambda offer: offer.name,
)
PODS = st.lists(st.builds(PodDemand, st.sampled_from(["n1", "n2", ""]), st.booleans(), AMOUNTS), max_size=4)


@given(NODES, PODS, st.randoms(use_true_random=False))
def test_the_offered_capacity_does_not_depend_on_the_order_of_nodes_and_pods(
    nodes: list[NodeOffer], pods: list[PodDemand], order: object
) -> None:
    """No amount is negative, and the resources are those that are allocatable."""
    found = capacity(nodes, pods, "free", {}, {})
    shuffled_nodes, shuffled_pods = list(nodes), list(pods)
    order.shuffle(shuffled_nodes)
    order.shuffle(shuffled_pods)
    assert capacity(shuffled_nodes, shuffled_pods, "free", {}, {}) == found
    most = capacity(nodes, [], "allocatable", {}, {})
    assert found.keys() == most.keys()
    assert not any(amount.startswith("-") for amount in found.values())


OURS = (taker("n1", cpu=1000), taker("", cpu=500), taker("n1", ended=True, cpu=9000))


@pytest.mark.parametrize("basis", ["free", "allocatable"])
def test_a_resource_is_divided_into_mirrored_other_and_reserved_shares(basis: str) -> None:
    """Other pods count only on nodes that count, mirrored pods anywhere; `reserve` and `limit` both reserve."""
    nodes = [node(), node("n2", cpu=2000), node("away", ready=False)]
    foreign = [taker("n2", cpu=3000), taker("away", cpu=700)]
    found = shares(nodes, foreign, OURS, basis, ({"cpu": "1"}, {"pods": "50"}))  # type: ignore[arg-type]
    assert found["cpu"] == ResourceShare(total=6000, ours=1500, others=2000, reserved=1000)
    assert found["cpu"].free == 1500
    assert (found["memory"].reserved, found["memory"].free) == (0, 16 * GI)
    assert found["pods"].reserved == (220_000 if basis == "allocatable" else 219_000) - 50_000


def test_free_is_zero_if_more_is_requested_than_exists() -> None:
    """It is never negative, and a cluster without nodes has an empty share."""
    assert shares([node()], [taker(cpu=3000)], [taker(cpu=3000)], "free", ({}, {}))["cpu"].free == 0
    assert shares([], [], [], "free", ({"cpu": "1"}, {}))["cpu"] == ResourceShare()
