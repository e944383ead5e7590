"""Tests of two engines of one topology, as in a Deployment of two replicas: one leads, and the other takes over."""

import asyncio
import re
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import orjson
import pytest
import pytest_asyncio
from enginekit import A, B, Edit, wait_until
from programkit import Program, running_program
from sitekit import Manifest

from bench.kit.spareports import spare_ports
from tensile.names import LEADS as MARK
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

HAND_OVER = 12.0
"""Seconds: fewer than until a Lease that is not released expires."""
POLL = 0.05
FIRST, SECOND = "engine-1", "engine-2"
ENGINE = {"app.kubernetes.io/name": "tensile"}
ASIDE = {"schedulerName": "nobody", "containers": [{"name": "engine", "image": "tensile"}]}
"""A pod that is never scheduled."""
LEADS, WAITS = "became leader", "waiting to become leader"


class ReplicatedProgram(Program):
    """A program with leader election; each engine has an upper pod that represents it, as in a Deployment."""

    options = ("--leader-elect",)

    async def start(self, *edits: Edit, await_nodes: bool = True) -> None:
        """Start it in the pod of the first engine."""
        self.variables = await self.own(FIRST)
        await super().start(*edits, await_nodes=await_nodes)

    async def own(self, name: str) -> dict[str, str]:
        """Create an engine's pod if it is absent, and return the variables that a Deployment sets for it."""
        if not await self.upper.read(self.pod_path(name)):
            await self.upper.create(self.path("pods"), {"metadata": {"name": name, "labels": ENGINE}, "spec": ASIDE})
        return {"POD_NAME": name, "POD_NAMESPACE": self.namespace}

    async def marked(self, *names: str) -> None:
        """Wait until exactly these engines' pods have the leader label of the topology."""
        await self.upper.until_all(
            f"{self.path('pods')}?labelSelector={MARK}%3D{self.namespace}", lambda found: set(found) == set(names)
        )


class SecondEngine(NamedTuple):
    """The second engine, its log, the ports of its telemetry and extender, and a function that edits its file."""

    process: Process
    log: Path
    port: int
    extender: int
    save: Callable[..., object]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ReplicatedProgram]:
    """Start the first engine, which leads, with one pod that runs in the first lower."""
    async with running_program(sandbox, tmp_path_factory.mktemp("replicated"), ReplicatedProgram) as harness:
        await harness.run_pod("web")
        yield harness


@asynccontextmanager
async def beside(program: ReplicatedProgram, *edits: Edit) -> AsyncIterator[SecondEngine]:
    """Run a second engine on the same topology, with ports of its own, because both share a machine."""
    ports = spare_ports(5)

    def elsewhere(file: Manifest) -> None:
        """Set other ports in the file."""
        for lower, port in zip(file["lowers"], ports, strict=False):
            lower["node"]["kubeletPort"] = port
        file["kubelet"]["port"], file["telemetry"]["port"] = ports[2:4]
        file["extender"] = {"enabled": True, "bind": "127.0.0.1", "port": ports[4]}

    def save(*more: Edit) -> None:
        """Write the file atomically."""
        written = file.with_suffix(".new")
        written.write_bytes(orjson.dumps(program.file(elsewhere, *edits, *more)))
        written.rename(file)

    file, log = program.directory / "other.yaml", program.directory / "other.log"
    save()
    process = await program.launch(file, log, **await program.own(SECOND))
    try:
        await wait_until(lambda: WAITS in log.read_text())
        yield SecondEngine(process, log, *ports[3:], save)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    assert "Traceback" not in log.read_text()


async def runs(program: ReplicatedProgram, name: str, lower: str = A) -> None:
    """Run a new pod in a lower, and assert that kubectl gets its log from the leading engine."""
    await program.run_pod(name, lower=lower)
    line = f"2026-01-01T00:00:00Z stdout F hello from {name}\n"
    log = program.sites[lower].logs / program.namespace / name / "main.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(line)
    done = await program.kubectl("logs", name)
    assert done.out == f"hello from {name}\n", done.err


async def test_an_engine_that_stops_hands_over_before_its_lease_would_expire(program: ReplicatedProgram) -> None:
    """The other engine takes over, and the first one afterwards.

    Running pods stay the same, new ones run, and the leading engine serves logs.
    """
    before = await program.upper.read(program.pod_path("web"))
    async with beside(program) as other:
        async with asyncio.timeout(HAND_OVER):
            await program.stop()
            await wait_until(lambda: LEADS in other.log.read_text())
        await runs(program, "second")
        _, asking = await asyncio.open_connection("127.0.0.1", other.extender)
        asking.close()
        await program.start(await_nodes=False)
        await program.wait_for_log(WAITS)
        other.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(HAND_OVER):
            assert await other.process.wait() == 0
            await program.wait_for_log(LEADS)
    await runs(program, "first")
    after = await program.upper.read(program.pod_path("web"))
    assert (after["metadata"]["uid"], after["status"]["containerStatuses"]) == (
        before["metadata"]["uid"],
        before["status"]["containerStatuses"],
    )


async def test_an_engine_that_stands_by_is_ready_and_does_not_lead(program: ReplicatedProgram) -> None:
    """It watches the upper cluster so that it can take over, and the nodes keep the ports of the leader.

    Its extender is closed, because it has no data of the lowers.
    """
    node = f"/api/v1/nodes/{program.nodes[A]}"
    async with beside(program) as other, aiohttp.ClientSession() as session:
        async with asyncio.timeout(HAND_OVER):
            while (await session.get(f"http://127.0.0.1:{other.port}/readyz")).status != 200:  # noqa: ASYNC110 - no event
                await asyncio.sleep(POLL)
        async with session.get(f"http://127.0.0.1:{other.port}/metrics") as answer:
            assert 'leader_election_master_status{name="tensile-' in (text := await answer.text())
            assert not re.search(r"^leader_election_master_status\{.*\} 1", text, re.MULTILINE)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", other.extender)
        await runs(program, "beside")
        port = (await program.upper.read(node))["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        assert port == program.topology().lowers[0].node.kubelet_port
        assert LEADS not in other.log.read_text()


async def test_an_engine_that_loses_its_lease_exits_and_logs_the_new_holder(program: ReplicatedProgram) -> None:
    """It exits with code 1, so that it is restarted and stands by."""
    async with beside(program) as other:
        await program.stop()
        await wait_until(lambda: LEADS in other.log.read_text())
        await program.upper.patch(program.lease, {"spec": {"holderIdentity": "somebody-else"}})
        async with asyncio.timeout(HAND_OVER):
            assert await other.process.wait() == 1
        assert "leader election lost (somebody-else holds the lease" in other.log.read_text()
        await program.upper.delete(program.lease)
    await program.start()
    await program.wait_for_log(LEADS)


async def test_an_engine_that_stands_by_uses_ports_that_were_edited_meanwhile_once_it_leads(
    program: ReplicatedProgram,
) -> None:
    """Two nodes exchange ports in its file; once it leads, each Node contains the port of its own pods."""

    def exchanged(file: Manifest) -> None:
        nodes = [lower["node"] for lower in file["lowers"]]
        nodes[0]["kubeletPort"], nodes[1]["kubeletPort"] = nodes[1]["kubeletPort"], nodes[0]["kubeletPort"]
        ports[:] = (node["kubeletPort"] for node in nodes)

    ports: list[int] = []
    async with beside(program) as other:
        other.save(exchanged)
        await wait_until(lambda: "topology changed" in other.log.read_text())
        await program.stop()
        for lower, port in zip((A, B), ports, strict=True):
            await program.upper.until(
                f"/api/v1/nodes/{program.nodes[lower]}",
                lambda one, port=port: one["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == port,
            )
            await runs(program, f"exchanged-{lower}", lower)
    await program.start()
    await program.wait_for_log(LEADS)


async def test_certificates_are_approved_before_an_engine_takes_over(program: ReplicatedProgram) -> None:
    """An engine that stands by requests them at its start, and uses them without another request once it leads."""

    def without_files(file: Manifest) -> None:
        del file["kubelet"]["tlsCertFile"], file["kubelet"]["tlsKeyFile"]

    def requests() -> set[str]:
        lines = map(orjson.loads, other.log.read_text().splitlines())
        return {line["do"].split()[-1] for line in lines if line.get("waits_for") == "approval"}

    def issued() -> int:
        return other.log.read_text().count("the certificate that the upper cluster issued")

    async with beside(program, without_files) as other:
        await wait_until(lambda: len(requests()) == len(program.lowers))
        names = requests()
        assert all(any(f"tensile-{node}-" in name for name in names) for node in program.nodes.values())
        done = await program.kubectl("certificate", "approve", *names)
        assert done.code == 0, done.err
        await wait_until(lambda: issued() == len(names))
        assert LEADS not in other.log.read_text()
        await program.stop()
        await wait_until(lambda: LEADS in other.log.read_text())
        for lower in program.lowers:
            await runs(program, f"certified-{lower}", lower)
        assert requests() == names
    await program.start()
    await program.wait_for_log(LEADS)
    await program.kubectl("delete", "csr", *names)
