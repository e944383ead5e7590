"""Tests of paths, ports and address ranges of clusters."""

from ipaddress import ip_interface, ip_network
from pathlib import Path

import pytest

from tensile.sandbox.state import MAX_LOWERS, Layout, Ports, cluster_names

PORTS = Ports(1, 2, 3, 4, 5, 6)


def layouts(count: int) -> list[Layout]:
    """Return the layouts of a sandbox with that many lowers."""
    return [Layout("/s", name, place, 3, PORTS) for place, name in enumerate(cluster_names(count))]


def test_clusters_are_named_upper_and_lower_with_a_letter() -> None:
    """The upper cluster is the first, and the lowers have the letters of the alphabet."""
    assert cluster_names(0) == ["upper"]
    assert cluster_names(2) == ["upper", "lower-a", "lower-b"]
    assert cluster_names(26)[-1] == "lower-z"


def test_the_largest_sandbox_has_distinct_cluster_names() -> None:
    """There are as many names as clusters."""
    assert len(set(cluster_names(MAX_LOWERS))) == MAX_LOWERS + 1


def test_a_kubeconfig_is_directly_in_the_sandboxs_directory(lower: Layout) -> None:
    """It has the name of its cluster, and is beside the cluster's folder."""
    root = Path(lower.root)
    assert lower.kubeconfig == root / "lower-a.kubeconfig"
    assert lower.directory == root / "lower-a"


@pytest.mark.parametrize("part", ["pki", "output", "logs", "work", "audit_log"])
def test_internal_files_are_in_the_clusters_folder(lower: Layout, part: str) -> None:
    """The removal of that folder removes all of them."""
    assert lower.directory in getattr(lower, part).parents


def test_the_folders_of_a_cluster_do_not_contain_each_other(lower: Layout) -> None:
    """None of these folders is inside another one."""
    parts = [lower.pki, lower.output, lower.logs, lower.work]
    assert not [(a, b) for a in parts for b in parts if a in b.parents]


def test_the_apiserver_is_on_loopback(lower: Layout) -> None:
    """No part of a sandbox is reachable from another machine."""
    assert lower.server == "https://127.0.0.1:21001"


def test_clusters_have_disjoint_address_ranges() -> None:
    """Service and pod ranges of the largest sandbox do not overlap."""
    ranges = [ip_network(one.service_range) for one in layouts(MAX_LOWERS)]
    ranges += [ip_interface(one.pod_range).network for one in layouts(MAX_LOWERS)]
    assert not [(a, b) for a in ranges for b in ranges if a is not b and a.overlaps(b)]


def test_the_kubernetes_service_has_the_first_address_of_its_range(lower: Layout) -> None:
    """Kubernetes assigns this address, and the apiserver's certificate must contain it."""
    network = ip_network(lower.service_range)
    assert lower.service_address == str(network[1])


def test_nodes_are_named_after_their_cluster(lower: Layout) -> None:
    """The node's name shows in which cluster a pod runs."""
    assert lower.node_names == ["lower-a-node-1", "lower-a-node-2"]


def test_the_upper_cluster_has_no_nodes(upper: Layout) -> None:
    """Pods of the upper cluster run only on virtual nodes."""
    assert upper.node_names == []
