"""Kubelet ports that follow from the order of the file, while lowers leave, come, and change places.

Whatever an edit does, the Node says the port at which its own pods are reached, and kubectl reaches them.
"""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from enginekit import A, B, Edit, edit_lower, polled
from programkit import STAMP, Program, served, streaming
from sitekit import Manifest, condition_of, is_ready

from tensile.names import NOWHERE
from tensile.sandbox.processes import choose
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

POD = {A: "web", B: "other"}
"""The pod of each lower."""


def in_row(*order: str) -> Edit:
    """Make an edit that leaves these lowers, in this order."""

    def edit(file: Manifest) -> None:
        known = {lower["name"]: lower for lower in file["lowers"]}
        file["lowers"] = [known[name] for name in order]

    return edit


class Row(Program):
    """A program whose lowers have the ports from `row`, by their places in the file."""

    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        super().__init__(sandbox, directory)
        (self.row,) = choose([3])

    def file(self, *edits: Edit) -> Manifest:
        """Return the file without a word of the nodes' own ports."""
        return super().file(self._by_place, *edits)

    def _by_place(self, file: Manifest) -> None:
        file["kubelet"]["port"] = self.row[0]
        for lower in file["lowers"]:
            del lower["node"]["kubeletPort"]

    async def says(self, lower: str, port: int) -> None:
        """Wait until a Node says a port."""
        await self.upper.until(
            f"/api/v1/nodes/{self.nodes[lower]}",
            lambda one: one["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == port,
        )

    async def run(self, *lowers: str) -> None:
        """Run the pods of these lowers, and nothing else."""
        for lower, pod in POD.items():
            found = await self.upper.read(self.pod_path(pod))
            if found and lower not in lowers:
                await self.upper.delete(self.pod_path(pod))
                await self.upper.gone(self.pod_path(pod))
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
        """See the pod of each of these lowers answer for itself: its log, and a command in it."""
        for lower in lowers:
            below = self.log_below(lower)
            assert await self.kubectl("logs", POD[lower]) == (0, below, "")
            assert await self.kubectl("exec", POD[lower], "--", "echo", lower) == (0, f"{lower}\n", "")


def is_closed(port: int) -> bool:
    """Report whether nobody listens on a port."""
    with socket.socket() as calling:
        return calling.connect_ex(("127.0.0.1", port)) != 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Row]:
    """The program on a topology whose lowers have their ports by place."""
    async with served(sandbox, tmp_path_factory.mktemp("row"), Row) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def row(program: Row) -> AsyncIterator[range]:
    """The ports, with both lowers at theirs; and so again at the end."""
    await program.reload()
    for lower, port in zip((A, B), program.row, strict=False):
        await program.usable(program.nodes[lower])
        await program.says(lower, port)
    yield program.row


async def test_what_is_behind_the_first_moves_up_when_that_is_taken_out(program: Row, row: range) -> None:
    """The Node says the first port once the first lower is gone, and logs and exec go on; likewise back."""
    await program.run(B)
    await program.answers(B)
    await program.reload(in_row(B))
    await program.upper.gone(f"/api/v1/nodes/{program.nodes[A]}")
    await program.says(B, row[0])
    await program.answers(B)
    await program.reload()
    await program.says(B, row[1])
    await program.usable(program.nodes[A])
    await program.says(A, row[0])
    await program.run(A, B)
    await program.answers(A, B)


async def test_two_change_places(program: Row, row: range) -> None:
    """Each is reached at the other's port, and a log that is followed goes on through both moves."""
    await program.run(A, B)
    async with streaming(program) as stream:
        await program.reload(in_row(B, A))
        await program.says(A, row[1])
        await program.says(B, row[0])
        await program.answers(A, B)
        await stream.carries("at another port")
        await program.reload()
        await program.says(A, row[0])
        await program.says(B, row[1])
        await program.answers(A, B)


async def test_one_that_left_with_pods_keeps_its_port_until_it_is_empty(program: Row, row: range) -> None:
    """Those behind it stay where they are so long, and all are reached; when it has gone they move up."""
    await program.run(A, B)
    since = program.log.stat().st_size
    await program.reload(in_row(B))
    await program.upper.until(
        f"/api/v1/nodes/{program.nodes[A]}", lambda one: condition_of(one, "InTopology").get("status") == "False"
    )
    await program.logged("stays on another kubelet port", since)
    assert f"port {row[0]} is that of node {program.nodes[A]}" in program.log.read_text()[since:]
    await program.says(A, row[0])
    await program.says(B, row[1])
    await program.answers(A, B)
    await program.run(B)
    await program.says(B, row[0])
    await program.answers(B)


async def test_one_that_takes_the_place_of_another_waits_for_its_port(program: Row, row: range) -> None:
    """Until the other is empty its Node says no port, and its pods are asked of nobody else; then they are reached."""
    await program.run(A)
    await program.reload(in_row(A))
    await polled(lambda: is_closed(row[1]))
    since = program.log.stat().st_size
    await program.reload(in_row(B))
    await program.usable(program.nodes[B])
    await program.says(B, NOWHERE)
    assert "logs and exec of a virtual node are not served" in program.log.read_text()[since:]
    await program.bind(POD[B], lower=B)
    await program.upper.until(program.pod_path(POD[B]), is_ready)
    await program.answers(A)
    refused = await program.kubectl("logs", POD[B])
    assert (refused.code, "does not run through node" in refused.err) == (1, False)
    await program.run(B)
    await program.says(B, row[0])
    await program.answers(B)


async def test_a_port_that_another_program_has_is_said_and_had_when_it_is_free(program: Row, row: range) -> None:
    """Meanwhile the node stays where it was, says so, and is reached there."""
    await program.run(A, B)
    since = program.log.stat().st_size
    with socket.create_server(("127.0.0.1", row[2])):
        await program.reload(edit_lower(B, node={"kubeletPort": row[2]}))
        await program.logged(f"port {row[2]} on 127.0.0.1: is taken", since)
        await program.says(B, row[1])
        await program.answers(A, B)
    await program.says(B, row[2])
    await program.answers(A, B)
    assert program.log.read_text()[since:].count("is taken") == 1


async def test_the_first_port_moves_and_a_node_with_one_of_its_own_stays(program: Row, row: range) -> None:
    """What is open to that node goes on, although the section of the file that moves the other is about both."""
    await program.run(A, B)
    own = edit_lower(A, node={"kubeletPort": row[0]})
    await program.reload(own)

    def later(file: Manifest) -> None:
        file["kubelet"]["port"] = row[1]

    async with streaming(program) as stream:
        await program.reload(own, later)
        await program.says(B, row[2])
        await program.answers(A, B)
        await stream.carries("after the other has moved")
