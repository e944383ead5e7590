"""Which refusals other pods are the reason for, as the kube-scheduler's plugins tell them from those that stay."""

from typing import Any

import pytest
from placekit import ZONE, asking, node, on_hosts, pod, space, using
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
    """Make the spec of a pod that has to be near others, or apart from them."""
    return {"affinity": {kind: {REQUIRED: [OTHERS]}}}


def spread(key: str) -> Manifest:
    """Make the spec of a pod that is spread over domains."""
    return {"topologySpreadConstraints": [{**SPREAD, "topologyKey": key}]}


def is_cured(wanted: Manifest, place: Manifest, **storage: list[Manifest]) -> bool:
    """Report whether it is other pods that keep one from a node, on which there is one, beside an empty node."""
    there = pod("there", PORTS | {"containers": [PORTS["containers"][0] | asking(cpu="3")["containers"][0]]}, on="n")
    there["metadata"]["labels"] = {"app": "there"}
    nodes = [place, node("empty", labels={ZONE: "z"})]
    seen = snapshot_of(nodes, [there], [space("default")], storage_of(**storage))
    asked = pod_of(wanted)
    prepared = prepare(asked, seen)
    assert isinstance(prepared, list)
    reasons = first_reasons(seen.nodes["n"], [one.judge for _, one in prepared])
    assert reasons
    return is_curable(asked, seen.nodes["n"], reasons)


@pytest.mark.parametrize(
    "wanted",
    [
        pod("room", asking(cpu="2")),
        pod("all", asking(cpu="4")),
        pod("port", PORTS),
        pod("apart", company("podAntiAffinity")),
        pod("spread", spread(HOST), labels={"app": "there"}),
    ],
    ids=lambda one: str(one["metadata"]["name"]),
)
def test_what_other_pods_are_the_reason_for(wanted: Manifest) -> None:
    """Room, host ports, those that are kept apart from, and those that are too many in a domain."""
    assert is_cured(wanted, node("n"))


def test_room_for_one_more_pod() -> None:
    """A node that has as many as it may have takes another one once one has gone."""
    assert is_cured(pod("one"), node("n", pods="1"))


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        (pod("large", asking(cpu="5")), node("n")),
        (pod("unknown", asking(**{"example.com/gpu": "1"})), node("n")),
        (pod("both", asking(cpu="2", memory="9Gi")), node("n")),
        (pod("cordoned"), node("n", spec={"unschedulable": True})),
        (pod("tainted"), node("n", spec={"taints": [{"key": "k", "effect": "NoSchedule"}]})),
        (pod("selected", {"nodeSelector": {"disk": "ssd"}}), node("n")),
        (pod("named", {"affinity": {"nodeAffinity": {REQUIRED: on_hosts("other")["required"]}}}), node("n")),
        (pod("near", {"affinity": {"podAffinity": {REQUIRED: [{**OTHERS, "topologyKey": ZONE}]}}}), node("n")),
        (pod("unlabelled", spread(ZONE), labels={"app": "there"}), node("n")),
    ],
    ids=lambda one: str(one["metadata"]["name"]),
)
def test_what_stays_whoever_goes(wanted: Manifest, place: Manifest) -> None:
    """A node that is too small, even for one of the resources, or the wrong one."""
    assert not is_cured(wanted, place)


def test_a_volume_stays_where_it_is() -> None:
    """A node from which it cannot be reached is none, whoever goes."""
    volume = stored("pv", phase="Bound", nodeAffinity=on_hosts("empty"))
    assert not is_cured(pod("stored", using("data")), node("n"), claims=[BOUND], volumes=[volume])
