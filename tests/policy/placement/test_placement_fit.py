"""Tests of the number of equal pods that fit in a cluster: computed at once, it equals a placement one by one."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placekit import (
    ZONE,
    claim,
    make_snapshot,
    make_storage,
    make_storage_class,
    node,
    pod,
    spec_requesting,
    spec_with_claims,
)
from properties import examples

from tensile.policy.placement.placement import MOST, capacity_for, examine, fill, put, replica
from tensile.policy.placement.snapshot import Snapshot, pod_of

HOST = "kubernetes.io/hostname"


def by_hand(wanted: dict, snapshot: Snapshot, limit: int) -> int:
    """Place pods one after another, each on the first node that fits, and return their number."""
    for number in range(limit):
        one = replica(pod_of(wanted), number)
        found = examine(one, snapshot)
        if not found.fits:
            return number
        snapshot.add(one, found.fitting[0])
    return limit


def drawn(chance: Random) -> tuple[dict, Snapshot]:
    """Return a random pod, and the snapshot of nodes with pods."""
    requests = {"cpu": chance.choice(("100m", "1", "1500m")), "memory": chance.choice(("64Mi", "1Gi"))}
    nodes = [
        node(
            f"n{number}",
            labels={"disk": chance.choice("ab")},
            spec={"unschedulable": chance.random() < 0.2},
            cpu=chance.choice(("1", "3", "8")),
            pods=str(chance.randint(0, 6)),
        )
        for number in range(chance.randint(1, 5))
    ]
    there = [
        pod(f"r{number}", spec_requesting(cpu="700m"), on=f"n{number % len(nodes)}")
        for number in range(chance.randint(0, 6))
    ]
    spec = spec_requesting(**requests) | ({"nodeSelector": {"disk": "a"}} if chance.random() < 0.4 else {})
    return pod(spec=spec), make_snapshot(nodes, there)


@examples(200)
@given(st.integers(0, 2**32))
def test_fill_equals_a_placement_one_by_one(seed: int) -> None:
    """Nodes that do not depend on each other are filled until no further pod fits."""
    wanted, snapshot = drawn(Random(seed))
    expected = by_hand(wanted, snapshot.copy(), 200)
    filled = snapshot.copy()
    found = fill(pod_of(wanted), filled)
    assert found.total == expected
    assert not found.more
    assert not examine(pod_of(wanted), filled).fits
    for name, count in found.counts.items():
        assert len(filled.nodes[name].pods) == len(snapshot.nodes[name].pods) + count


def test_fill_stops_at_the_given_limit() -> None:
    """The result reports that more may fit."""
    found = fill(pod_of(pod(spec=spec_requesting(cpu="1"))), make_snapshot([node("a"), node("b")]), 5)
    assert (found.total, found.more) == (5, True)


def test_pods_without_requests_use_pod_slots() -> None:
    """As many fit as the nodes have slots."""
    found = fill(pod_of(pod()), make_snapshot([node("a", pods="3"), node("b", pods="2")]))
    assert found.counts == {"a": 3, "b": 2}
    assert found.next_result.message == "0/2 nodes are available: 2 Too many pods."


def test_one_pod_with_a_host_port_fits_on_each_node() -> None:
    """A second one would have a port conflict."""
    spec = {"containers": [{"name": "m", "ports": [{"hostPort": 80}]}]}
    assert fill(pod_of(pod(spec=spec)), make_snapshot([node("a"), node("b")])).counts == {"a": 1, "b": 1}


def apart(app: str) -> dict:
    """Return the spec of a pod that shares no host with its own kind."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def test_one_replica_with_anti_affinity_fits_on_each_host() -> None:
    """There are no more than that."""
    wanted = pod_of(pod(spec=apart("web"), labels={"app": "web"}))
    found = fill(wanted, make_snapshot([node("a"), node("b"), node("c")]))
    assert found.counts == {"a": 1, "b": 1, "c": 1}
    assert not found.more


def test_spread_replicas_are_limited_by_the_smaller_zone() -> None:
    """The larger zone has at most one more pod."""
    constraint = {
        "topologyKey": ZONE,
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    wanted = pod_of(
        pod(spec={"topologySpreadConstraints": [constraint], **spec_requesting(cpu="1")}, labels={"app": "web"})
    )
    found = fill(
        wanted, make_snapshot([node("a", labels={ZONE: "1"}, cpu="8"), node("b", labels={ZONE: "2"}, cpu="2")])
    )
    assert found.counts == {"a": 3, "b": 2}


def test_one_pod_fits_with_a_read_write_once_pod_claim() -> None:
    """A second pod cannot use the claim."""
    alone = claim(storageClassName="later", accessModes=["ReadWriteOncePod"])
    storage = make_storage(claims=[alone], classes=[make_storage_class()])
    assert fill(pod_of(pod(spec=spec_with_claims("data"))), make_snapshot([node("a")], storage=storage)).total == 1


def test_a_placement_one_by_one_stops_at_the_step_limit() -> None:
    """The result reports that more may fit."""
    wanted = pod_of(pod(spec=apart("other"), labels={"app": "web"}))
    found = fill(wanted, make_snapshot([node("a", pods="5000")]), steps=20)
    assert (found.total, found.more) == (20, True)
    assert MOST == 1000


def test_put_chooses_the_node_with_most_room() -> None:
    """The scarcest resource counts, and then the number of pods."""
    snapshot = make_snapshot([node("a"), node("b")], [pod("r", spec_requesting(cpu="1"), on="a")])
    assert put(pod_of(pod(spec=spec_requesting(cpu="1"))), snapshot) == "b"
    empty = make_snapshot([node("a"), node("b")], [pod("r", on="a")])
    assert put(pod_of(pod()), empty) == "b"


@pytest.mark.parametrize("cpu", ["5", "100"])
def test_a_pod_that_fits_on_no_node_changes_nothing(cpu: str) -> None:
    """Neither put nor fill adds a pod."""
    snapshot = make_snapshot([node("a")])
    assert put(pod_of(pod(spec=spec_requesting(cpu=cpu))), snapshot) == ""
    assert fill(pod_of(pod(spec=spec_requesting(cpu=cpu))), snapshot).total == 0
    assert snapshot.nodes["a"].pods == {}


def test_room_is_the_smaller_of_resources_and_pod_slots() -> None:
    """A pod without requests is limited by the slots alone."""
    (one,) = make_snapshot([node("a", pods="3")]).nodes.values()
    assert capacity_for(one, pod_of(pod(spec=spec_requesting(cpu="1")))) == 3
    assert capacity_for(one, pod_of(pod(spec=spec_requesting(cpu="3")))) == 1
    assert capacity_for(one, pod_of(pod())) == 3
