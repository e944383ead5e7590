"""How many pods of a kind a cluster takes: worked out at once, or found pod by pod, it is the same."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placekit import ZONE, asking, claim, kind, node, pod, seen, stock, using
from properties import examples

from tensile.policy.placement.placement import MOST, examine, fill, put, replica, room
from tensile.policy.placement.snapshot import Snapshot, pod_of

HOST = "kubernetes.io/hostname"


def by_hand(wanted: dict, snapshot: Snapshot, limit: int) -> int:
    """Place pods one after another, each on the first node that does."""
    for number in range(limit):
        one = replica(pod_of(wanted), number)
        found = examine(one, snapshot)
        if not found.fits:
            return number
        snapshot.add(one, found.fitting[0])
    return limit


def drawn(chance: Random) -> tuple[dict, Snapshot]:
    """Make a pod that asks for something, and nodes with pods on them."""
    asked = {"cpu": chance.choice(("100m", "1", "1500m")), "memory": chance.choice(("64Mi", "1Gi"))}
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
        pod(f"r{number}", asking(cpu="700m"), on=f"n{number % len(nodes)}") for number in range(chance.randint(0, 6))
    ]
    spec = asking(**asked) | ({"nodeSelector": {"disk": "a"}} if chance.random() < 0.4 else {})
    return pod(spec=spec), seen(nodes, there)


@examples(200)
@given(st.integers(0, 2**32))
def test_at_once_is_as_many_as_one_by_one(seed: int) -> None:
    """Nodes that do not depend on each other are filled to the last pod."""
    wanted, snapshot = drawn(Random(seed))
    expected = by_hand(wanted, snapshot.copy(), 200)
    filled = snapshot.copy()
    found = fill(pod_of(wanted), filled)
    assert found.total == expected
    assert not found.more
    assert not examine(pod_of(wanted), filled).fits
    for name, count in found.counts.items():
        assert len(filled.nodes[name].pods) == len(snapshot.nodes[name].pods) + count


def test_a_number_that_is_not_exceeded() -> None:
    """There may be room for more then."""
    found = fill(pod_of(pod(spec=asking(cpu="1"))), seen([node("a"), node("b")]), 5)
    assert (found.total, found.more) == (5, True)


def test_pods_that_ask_for_nothing_take_places() -> None:
    """As many as the nodes have."""
    found = fill(pod_of(pod()), seen([node("a", pods="3"), node("b", pods="2")]))
    assert found.counts == {"a": 3, "b": 2}
    assert found.rest.message == "0/2 nodes are available: 2 Too many pods."


def test_a_port_of_the_node_is_for_one() -> None:
    """Each node takes one."""
    spec = {"containers": [{"name": "m", "ports": [{"hostPort": 80}]}]}
    assert fill(pod_of(pod(spec=spec)), seen([node("a"), node("b")])).counts == {"a": 1, "b": 1}


def apart(app: str) -> dict:
    """Make the spec of a pod that shares no host with its own kind."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def test_replicas_that_keep_apart() -> None:
    """One to a host."""
    wanted = pod_of(pod(spec=apart("web"), labels={"app": "web"}))
    found = fill(wanted, seen([node("a"), node("b"), node("c")]))
    assert found.counts == {"a": 1, "b": 1, "c": 1}
    assert not found.more


def test_replicas_that_spread() -> None:
    """The zone with less room holds the other one back."""
    constraint = {
        "topologyKey": ZONE,
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    wanted = pod_of(pod(spec={"topologySpreadConstraints": [constraint], **asking(cpu="1")}, labels={"app": "web"}))
    found = fill(wanted, seen([node("a", labels={ZONE: "1"}, cpu="8"), node("b", labels={ZONE: "2"}, cpu="2")]))
    assert found.counts == {"a": 3, "b": 2}


def test_a_claim_for_one_pod() -> None:
    """There is no second one."""
    alone = claim(storageClassName="later", accessModes=["ReadWriteOncePod"])
    storage = stock(claims=[alone], classes=[kind()])
    assert fill(pod_of(pod(spec=using("data"))), seen([node("a")], storage=storage)).total == 1


def test_one_by_one_stops_somewhere() -> None:
    """And says that there may be more."""
    wanted = pod_of(pod(spec=apart("other"), labels={"app": "web"}))
    found = fill(wanted, seen([node("a", pods="5000")]), steps=20)
    assert (found.total, found.more) == (20, True)
    assert MOST == 1000


def test_a_pod_goes_where_most_is_left() -> None:
    """Of what is scarcest, and where that is equal, to fewer pods."""
    snapshot = seen([node("a"), node("b")], [pod("r", asking(cpu="1"), on="a")])
    assert put(pod_of(pod(spec=asking(cpu="1"))), snapshot) == "b"
    empty = seen([node("a"), node("b")], [pod("r", on="a")])
    assert put(pod_of(pod()), empty) == "b"


@pytest.mark.parametrize("cpu", ["5", "100"])
def test_a_pod_that_fits_nowhere(cpu: str) -> None:
    """It is put nowhere, and nothing changes."""
    snapshot = seen([node("a")])
    assert put(pod_of(pod(spec=asking(cpu=cpu))), snapshot) == ""
    assert fill(pod_of(pod(spec=asking(cpu=cpu))), snapshot).total == 0
    assert snapshot.nodes["a"].pods == {}


def test_the_room_of_a_node() -> None:
    """By resources and by places, whichever is less."""
    (one,) = seen([node("a", pods="3")]).nodes.values()
    assert room(one, pod_of(pod(spec=asking(cpu="1")))) == 3
    assert room(one, pod_of(pod(spec=asking(cpu="3")))) == 1
    assert room(one, pod_of(pod())) == 3
