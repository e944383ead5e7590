"""Tests of the pods that run on a virtual node, in the output formats of a kubelet."""

import orjson
from prometheus_client.parser import text_string_to_metric_families
from usagekit import running

from tensile.kubelet.stats.collector import node_metrics, running_pod_list


def test_running_pods_and_containers_are_counted() -> None:
    """They have the kubelet's metric names, beside the node's name."""
    text = node_metrics("virtual-a", [running(main=1, side=1), running("db")]).decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    assert {one.name: (one.labels, one.value) for one in samples} == {
        "kubelet_node_name": ({"node": "virtual-a"}, 1),
        "kubelet_running_pods": ({}, 2),
        "kubelet_running_containers": ({"container_state": "running"}, 3),
    }


def test_an_empty_node_has_a_count_of_zero() -> None:
    """A missing metric would look like a failure."""
    assert b"\nkubelet_running_pods 0\n" in node_metrics("virtual-a", [])


def test_running_pods_are_a_pod_list() -> None:
    """Pods have their upper name and UID, and the containers that run."""
    found = orjson.loads(running_pod_list([running(main=1, side=1)]))
    assert (found["kind"], found["apiVersion"]) == ("PodList", "v1")
    (pod,) = found["items"]
    assert pod["metadata"] == {"name": "web", "namespace": "shop", "uid": "web-uid"}
    assert [one["name"] for one in pod["spec"]["containers"]] == ["main", "side"]


def test_a_node_without_running_pods_has_an_empty_list() -> None:
    """An empty list is no error."""
    assert orjson.loads(running_pod_list([]))["items"] == []
