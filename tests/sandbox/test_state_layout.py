"""Paths, ports and ranges of clusters."""

from ipaddress import ip_interface, ip_network
from pathlib import Path

import pytest

from tensile.sandbox.state import MAX_LOWERS, Layout, Ports, cluster_names

PORTS = Ports(1, 2, 3, 4, 5, 6)


def layouts(count: int) -> list[Layout]:
    """Return the layouts of a sandbox with that many lowers."""
    return [Layout("/s", name, place, 3, PORTS) for place, name in enumerate(cluster_names(count))]


def test_clusters_are_called_upper_and_lower_with_letters() -> None:
    """The upper cluster comes first, the lowers get the letters of the alphabet."""
    assert cluster_names(0) == ["upper"]
    assert cluster_names(2) == ["upper", "lower-a", "lower-b"]
    assert cluster_names(26)[-1] == "lower-z"


def test_there_is_a_name_for_every_lower_that_is_allowed() -> None:
    """The largest sandbox has as many distinct names as clusters."""
    assert len(set(cluster_names(MAX_LOWERS))) == MAX_LOWERS + 1


def test_what_a_user_reads_lies_directly_in_the_directory(lower: Layout) -> None:
    """A kubeconfig is called as its cluster is, and stands beside the cluster's folder."""
    root = Path(lower.root)
    assert lower.kubeconfig == root / "lower-a.kubeconfig"
    assert lower.directory == root / "lower-a"


@pytest.mark.parametrize("part", ["pki", "output", "logs", "work", "audit_log"])
def test_what_only_the_cluster_needs_lies_in_its_folder(lower: Layout, part: str) -> None:
    """Removing the cluster's folder removes all of it."""
    assert lower.directory in getattr(lower, part).parents


def test_the_parts_of_a_cluster_do_not_overlap(lower: Layout) -> None:
    """No folder of a cluster holds another one."""
    parts = [lower.pki, lower.output, lower.logs, lower.work]
    assert not [(a, b) for a in parts for b in parts if a in b.parents]


def test_the_server_is_on_loopback_at_the_port_of_the_apiserver(lower: Layout) -> None:
    """Nothing of a sandbox can be reached from another machine."""
    assert lower.server == "https://127.0.0.1:21001"


def test_no_two_clusters_share_an_address() -> None:
    """Service and pod ranges of the largest sandbox are disjoint."""
    ranges = [ip_network(one.service_range) for one in layouts(MAX_LOWERS)]
    ranges += [ip_interface(one.pod_range).network for one in layouts(MAX_LOWERS)]
    assert not [(a, b) for a in ranges for b in ranges if a is not b and a.overlaps(b)]


def test_service_kubernetes_has_the_first_address_of_the_range(lower: Layout) -> None:
    """Kubernetes gives the first address to Service `kubernetes`, which the certificate must name."""
    network = ip_network(lower.service_range)
    assert lower.service_address == str(network[1])


def test_nodes_are_named_after_their_cluster(lower: Layout) -> None:
    """Node names tell the cluster, so that a person sees where a pod is."""
    assert lower.node_names == ["lower-a-node-1", "lower-a-node-2"]


def test_the_upper_cluster_has_no_nodes_of_its_own(upper: Layout) -> None:
    """What runs above runs on virtual nodes only."""
    assert upper.node_names == []
