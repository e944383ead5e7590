"""Nodes that pass their ports on to each other: who is reached where, and what becomes of open streams."""

import asyncio
import socket

import pytest
from kubelet_lab import CONTAINERS, NODE, Lab, NamedPods, alive, answering, streaming

from bench.kit.spareports import spare_port, spare_ports
from tensile.kubelet.api.pods import PodTarget
from tensile.kubelet.api.server import NodeEndpoint

THIRD, SECOND = "virtual-c", "virtual-b"
NODES = (NODE, SECOND, THIRD)
LOGS = "GET /containerLogs/shop/{0}/main"


def seats(lab: Lab, **ports: int) -> dict[str, NodeEndpoint]:
    """Return places of nodes, each with one pod of its own name."""
    target = PodTarget(lab.cluster, "mapped", "web-0", CONTAINERS)
    names = {node.replace("-", "_"): node for node in NODES}
    return {
        names[name]: NodeEndpoint(("127.0.0.1", port), NamedPods({("shop", names[name]): target}))
        for name, port in ports.items()
    }


@pytest.fixture
async def row(lab: Lab) -> list[int]:
    """Serve the three nodes at ports in a row, and give these."""
    for node in NODES[1:]:
        lab.upper.permit("kube-apiserver", "get", "proxy", node)
    lab.lower.script = answering("200 OK", b"line\n")
    ports = spare_ports(3)
    assert await lab.server.arrange(seats(lab, virtual_a=ports[0], virtual_b=ports[1], virtual_c=ports[2])) == {}
    return ports


async def answers(lab: Lab, node: str) -> bool:
    """Report whether a node's own pod is found at the node's port, and no other's."""
    others = [name for name in NODES if name != node]
    told = [(await lab.ask(lab.pki.apiserver, LOGS.format(name), node=node)).status for name in (node, *others)]
    return told == [200, 404, 404]


async def test_the_rest_moves_up_when_the_first_is_taken_out(lab: Lab, row: list[int]) -> None:
    """Its port goes to the second and the second's to the third, in one go; the last port is closed."""
    assert await lab.server.arrange(seats(lab, virtual_b=row[0], virtual_c=row[1])) == {}
    assert [lab.server.port(node) for node in NODES] == [0, *row[:2]]
    assert await answers(lab, SECOND)
    assert await answers(lab, THIRD)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", row[2])


async def test_the_rest_waits_where_it_is_for_the_first_to_go(lab: Lab, row: list[int]) -> None:
    """One that left the topology and has pods keeps its port; the others are reached as before, and it is said why."""
    waiting = seats(lab, virtual_b=row[0], virtual_c=row[1], virtual_a=row[0])
    for _ in range(2):
        told = await lab.server.arrange(waiting)
        assert sorted(told) == [SECOND, THIRD]
        assert f"port {row[0]} is that of node {NODE}" in str(told[SECOND])
        assert "node.kubeletPort" in str(told[SECOND])
        assert f"port {row[1]} is that of node {SECOND}" in str(told[THIRD])
        assert [lab.server.port(node) for node in NODES] == row
    assert await answers(lab, SECOND)
    assert await answers(lab, NODE)
    del waiting[NODE]
    assert await lab.server.arrange(waiting) == {}
    assert [lab.server.port(node) for node in NODES[1:]] == row[:2]


async def test_two_change_places_and_keep_their_streams(lab: Lab, row: list[int]) -> None:
    """Each is reached at the other's port from then on; what is open goes on with the node that it was opened at."""
    lab.pods.targets["shop", "web"] = PodTarget(lab.cluster, "mapped", "web-0", CONTAINERS)
    again = seats(lab, virtual_a=row[0], virtual_b=row[1], virtual_c=row[2])
    again[NODE] = NodeEndpoint(again[NODE].address, lab.pods)
    await lab.server.arrange(again)
    stream = await streaming(lab)
    assert await lab.server.arrange(seats(lab, virtual_a=row[1], virtual_b=row[0], virtual_c=row[2])) == {}
    assert [lab.server.port(node) for node in NODES] == [row[1], row[0], row[2]]
    lab.lower.script = answering("200 OK", b"line\n")
    for node in NODES:
        assert await answers(lab, node)
    assert lab.server.streams() == {NODE: 1, SECOND: 0, THIRD: 0}
    assert await alive(stream)
    await lab.server.stop(SECOND)
    assert await alive(stream)
    await stream.close()


async def test_a_node_that_is_replaced_gives_its_port_to_the_other(lab: Lab, row: list[int]) -> None:
    """In one go, and what was open to it ends."""
    assert await lab.server.arrange(seats(lab, virtual_b=row[0])) == {}
    assert lab.server.port(SECOND) == row[0]
    assert await answers(lab, SECOND)
    assert lab.server.streams() == {SECOND: 0}


async def test_a_port_of_another_program_holds_up_nobody(lab: Lab, row: list[int]) -> None:
    """The one that is to have it makes way for the next, is said with its port, and has it once it is free."""
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        taken = int(foreign.getsockname()[1])
        wanted = seats(lab, virtual_a=taken, virtual_b=row[0], virtual_c=row[1])
        told = await lab.server.arrange(wanted)
        assert list(told) == [NODE]
        assert f"port {taken} on 127.0.0.1: is taken" in str(told[NODE])
        assert [lab.server.port(node) for node in NODES] == [0, *row[:2]]
        assert await answers(lab, SECOND)
        assert await answers(lab, THIRD)
    assert await lab.server.arrange(wanted) == {}
    assert [lab.server.port(node) for node in NODES] == [taken, *row[:2]]
    assert await answers(lab, NODE)


async def test_a_node_without_a_port_keeps_its_streams(lab: Lab, row: list[int]) -> None:
    """Its port went to another while its new one is taken: what is open to it goes on, and ends when it is stopped."""
    lab.pods.targets["shop", "web"] = PodTarget(lab.cluster, "mapped", "web-0", CONTAINERS)
    await lab.server.arrange({NODE: NodeEndpoint(("127.0.0.1", row[0]), lab.pods)})
    stream = await streaming(lab)
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        taken = int(foreign.getsockname()[1])
        assert list(await lab.server.arrange(seats(lab, virtual_a=taken, virtual_b=row[0]))) == [NODE]
        assert (lab.server.port(NODE), lab.server.streams()) == (0, {NODE: 1, SECOND: 0})
        assert await alive(stream)
    await lab.server.arrange(seats(lab, virtual_b=spare_port()))
    assert await stream.to_end() == b""
    await stream.close()
    assert lab.server.streams() == {SECOND: 0}
