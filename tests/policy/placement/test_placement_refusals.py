"""Tests of which refusals other pods cause, as the kube-scheduler's plugins distinguish them from permanent ones."""

from typing import Any

import pytest
from placekit import ZONE, make_namespace, node, on_hosts, pod, spec_requesting, spec_with_claims
from placekit import claim as claimed
from placekit import volume as stored

from tensile.policy.extender.node_cache import first_reasons
from tensile.policy.placement.placement import is_curable, prepare
from tensile.policy.placement.snapshot import pod_of, snapshot_of, storage_of

Manifest = dict[str, Any]
HOST = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PORTS = {"containers": [{"name": "main", "ports": [{"containerPort": 80, "hostPort": 80}]}]}
OTHERS = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "there"}}}
SPREAD = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "there"}}}
BOUND = claimed("data", volumeName="pv")


def company(kind: str) -> Manifest:
    """Return the spec of a pod with affinity or anti-affinity to other pods."""
    return {"affinity": {kind: {REQUIRED: [OTHERS]}}}


def spread(key: str) -> Manifest:
    """Return the spec of a pod that is spread over domains."""
    return {"topologySpreadConstraints": [{**SPREAD, "topologyKey": key}]}


def is_cured(wanted: Manifest, place: Manifest, **storage: list[Manifest]) -> bool:
    """Report whether only other pods exclude a pod from a node that has one, beside an empty node."""
    there = pod(
        "there", PORTS | {"containers": [PORTS["containers"][0] | spec_requesting(cpu="3")["containers"][0]]}, on="n"
    )
    there["metadata"]["labels"] = {"app": "there"}
    nodes = [place, node("empty", labels={ZONE: "z"})]
    seen = snapshot_of(nodes, [there], [make_namespace("default")], storage_of(**storage))
    wanted_pod = pod_of(wanted)
    prepared = prepare(wanted_pod, seen)
    assert isinstance(prepared, list)
    reasons = first_reasons(seen.nodes["n"], [one.judge for _, one in prepared])
    assert reasons
    return is_curable(wanted_pod, seen.nodes["n"], reasons)


@pytest.mark.parametrize(
    "wanted",
    [
        pod("room", spec_requesting(cpu="2")),
        pod("all", spec_requesting(cpu="4")),
        pod("port", PORTS),
        pod("apart", company("podAntiAffinity")),
        pod("spread", spread(HOST), labels={"app": "there"}),
    ],
    ids=lambda one: str(one["metadata"]["name"]),
)
def test_refusals_because_of_other_pods_are_curable(wanted: Manifest) -> None:
    """These are lack of room, used host ports, anti-affinity and too many pods in a domain."""
    assert is_cured(wanted, node("n"))


def test_a_full_number_of_pods_is_curable() -> None:
    """The node accepts another pod once one is removed."""
    assert is_cured(pod("one"), node("n", pods="1"))


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        (pod("large", spec_requesting(cpu="5")), node("n")),
        (pod("unknown", spec_requesting(**{"example.com/gpu": "1"})), node("n")),
        (pod("both", spec_requesting(cpu="2", memory="9Gi")), node("n")),
        (pod("cordoned"), node("n", spec={"unschedulable": True})),
        (pod("tainted"), node("n", spec={"taints": [{"key": "k", "effect": "NoSchedule"}]})),
        (pod("selected", {"nodeSelector": {"disk": "ssd"}}), node("n")),
        (pod("named", {"affinity": {"nodeAffinity": {REQUIRED: on_hosts("other")["required"]}}}), node("n")),
        (pod("near", {"affinity": {"podAffinity": {REQUIRED: [{**OTHERS, "topologyKey": ZONE}]}}}), node("n")),
        (pod("unlabelled", spread(ZONE), labels={"app": "there"}), node("n")),
    ],
    ids=lambda one: str(one["metadata"]["name"]),
)
def test_refusals_because_of_the_node_are_not_curable(wanted: Manifest, place: Manifest) -> None:
    """The node is too small, even for one resource only, or it is the wrong one."""
    assert not is_cured(wanted, place)


def test_an_unreachable_volume_is_not_curable() -> None:
    """The volume cannot be reached from the node, regardless of other pods."""
    volume = stored("pv", phase="Bound", nodeAffinity=on_hosts("empty"))
    assert not is_cured(pod("stored", spec_with_claims("data")), node("n"), claims=[BOUND], volumes=[volume])
