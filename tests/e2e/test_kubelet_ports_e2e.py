"""Tests of kubelet ports, which are chosen once and kept while lowers are removed and added.

After every edit, the Node contains the port at which its own pods are reached, and kubectl reaches them.
"""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from enginekit import A, B, Edit, wait_until
from programkit import STAMP, Program, followed_log, running_program
from sitekit import LIMIT, Manifest, is_ready

from bench.kit.sites import until
from tensile.sandbox.processes import choose
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

POD = {A: "web", B: "other"}
"""The pod of each lower."""


def in_row(*order: str) -> Edit:
    """Return an edit that keeps these lowers, in this order."""

    def edit(file: Manifest) -> None:
        known = {lower["name"]: lower for lower in file["lowers"]}
        file["lowers"] = [known[name] for name in order]

    return edit


class ConsecutivePortsProgram(Program):
    """A program whose nodes get consecutive ports, starting at `row`."""

    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        super().__init__(sandbox, directory)
        (self.row,) = choose([4])

    def file(self, *edits: Edit) -> Manifest:
        """Return the topology without ports of its nodes."""
        return super().file(self._by_place, *edits)

    def _by_place(self, file: Manifest) -> None:
        file["kubelet"]["port"] = self.row[0]
        for lower in file["lowers"]:
            del lower["node"]["kubeletPort"]

    async def wait_for_port_status(self, lower: str, port: int) -> None:
        """Wait until a Node contains a port."""
        await self.upper.until(
            f"/api/v1/nodes/{self.nodes[lower]}",
            lambda one: one["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == port,
        )

    async def port(self, lower: str) -> int:
        """Return the port that a Node contains."""
        node = await self.upper.read(f"/api/v1/nodes/{self.nodes[lower]}")
        return int(node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"])

    async def run(self, *lowers: str) -> None:
        """Run the pods of these lowers, and no others."""
        for lower, pod in POD.items():
            found = await self.upper.read(self.pod_path(pod))
            if found and lower not in lowers:
                await self.end_pods(pod)
            elif not found and lower in lowers:
                await self.bind(pod, lower=lower)
        for lower in lowers:
            await self.upper.until(self.pod_path(POD[lower]), is_ready)

    def log_below(self, lower: str) -> str:
        """Return the container log of a lower pod; a log that does not exist yet begins with the pod's name."""
        log = self.sites[lower].logs / self.namespace / POD[lower] / "main.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        if not log.exists() or not log.read_text():
            log.write_text(f"{STAMP}{POD[lower]}\n")
        return log.read_text().replace(STAMP, "")

    async def answers(self, *lowers: str) -> None:
        """Assert that kubectl gets the log of each lower's pod, and runs a command in it.

        A port may be open before a starting engine has read its pods; it then refuses requests, and never returns
        another pod's data.
        """
        for lower in lowers:
            below = self.log_below(lower)

            async def has_log(lower: str = lower, below: str = below) -> bool:
                """Request the log once."""
                found = await self.kubectl("logs", POD[lower])
                assert found.code != 0 or found.out == below
                return found.code == 0

            await until(has_log, f"the log of {POD[lower]}", LIMIT)
            assert await self.kubectl("exec", POD[lower], "--", "echo", lower) == (0, f"{lower}\n", "")


def is_open(port: int) -> bool:
    """Report whether a port accepts connections.

    A Node may still contain the port of an engine that has ended.
    """
    with socket.socket() as made:
        return made.connect_ex(("127.0.0.1", port)) == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConsecutivePortsProgram]:
    """Start the program on a topology that sets no ports of nodes."""
    async with running_program(sandbox, tmp_path_factory.mktemp("row"), ConsecutivePortsProgram) as harness:
        yield harness


@pytest_asyncio.fixture(loop_scope="module")
async def ports(program: ConsecutivePortsProgram) -> AsyncIterator[dict[str, int]]:
    """Return the ports of both nodes; before and after, the topology has both lowers."""
    await program.reload()
    for lower in (A, B):
        await program.wait_for_node(program.nodes[lower])
    yield {lower: await program.port(lower) for lower in (A, B)}
    await program.reload()


async def test_nodes_get_ports_in_order_and_keep_them_when_lowers_are_removed_and_added(
    program: ConsecutivePortsProgram, ports: dict[str, int]
) -> None:
    """Ports start at `kubelet.port`, and a lower that is removed before another does not change the other's port.

    Nor does a lower that is added again, or a restart. A log of the other lower is followed through all edits.
    """
    assert ports == {A: program.row[0], B: program.row[1]}
    await program.run(A, B)
    async with followed_log(program) as stream:
        await program.run(A)
        await program.reload(in_row(A))
        await program.upper.gone(f"/api/v1/nodes/{program.nodes[B]}")
        await program.reload(in_row(B, A))
        await program.wait_for_node(program.nodes[B])
        await program.wait_for_port_status(B, program.row[1])
        await program.wait_for_port_status(A, program.row[0])
        await stream.check_line_arrives("after another one left and came back before it")
    await program.run(B)
    await program.reload(in_row(B))
    await program.upper.gone(f"/api/v1/nodes/{program.nodes[A]}")
    await program.wait_for_port_status(B, program.row[1])
    await program.answers(B)
    await program.stop()
    await program.start(in_row(B))
    await wait_until(lambda: is_open(program.row[1]))
    await program.wait_for_port_status(B, program.row[1])
    await program.answers(B)
    await program.reload(in_row(B, A))
    await program.wait_for_node(program.nodes[A])
    await program.wait_for_port_status(A, program.row[2])
    await program.wait_for_port_status(B, program.row[1])
    await program.run(A, B)
    await program.answers(A, B)
