"""Tests of engines of one topology that were set up separately: on a machine, and in two namespaces.

One of them leads, and the others know which one.
"""

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest
import pytest_asyncio
from enginekit import LOWERS, UPPER, A, EngineHarness, wait_until
from mapkit import KEY, NAME, MapProgram
from programkit import running_program
from sitekit import Manifest

from bench.kit.rbac import grant, path_of, roles_of
from bench.kit.spareports import spare_ports
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

HAND_OVER = 12.0
"""Seconds: fewer than until a Lease that is not released expires."""
LEADS, WAITS = "became leader", "waiting to become leader"


class RenderedSetup(MapProgram):
    """A set-up in a namespace, as `tensile manifests` renders it."""

    options = ("--leader-elect",)


class OtherEngine(NamedTuple):
    """A separate engine of the same topology: its process, its log, and the ports of its nodes."""

    process: Process
    log: Path
    ports: list[int]


Way = Callable[[RenderedSetup], AbstractAsyncContextManager[OtherEngine]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RenderedSetup]:
    """Start the first engine, which leads, with one pod that runs in the first lower."""
    async with running_program(sandbox, tmp_path_factory.mktemp("one"), RenderedSetup) as harness:
        await harness.run_pod("web")
        yield harness


@asynccontextmanager
async def running(program: RenderedSetup, command: list[str], ports: list[int]) -> AsyncIterator[OtherEngine]:
    """Run another engine."""
    log = program.directory / "other.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
    try:
        yield OtherEngine(process, log, ports)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    assert "Traceback" not in log.read_text()


def elsewhere(file: Manifest, ports: list[int]) -> None:
    """Set other ports in a topology, since all engines of the test run on one machine."""
    for lower, port in zip(file["lowers"], ports, strict=False):
        lower["node"]["kubeletPort"] = port
    file["kubelet"]["port"], file["telemetry"]["port"] = ports[len(LOWERS) :]


@asynccontextmanager
async def on_a_machine(program: RenderedSetup, *options: str) -> AsyncIterator[OtherEngine]:
    """Run an engine on a file, with leader election unless other options are given."""
    ports = spare_ports(len(LOWERS) + 2)
    path = program.directory / "other.yaml"
    path.write_bytes(orjson.dumps(EngineHarness.file(program, lambda file: elsewhere(file, ports))))
    given = options or program.options
    command = [sys.executable, "-m", "tensile", "run", "-f", str(path), "--log-format", "json", *given]
    async with running(program, command, ports) as other:
        yield other


@asynccontextmanager
async def in_another_namespace(program: RenderedSetup) -> AsyncIterator[OtherEngine]:
    """Run an engine on a ConfigMap in another namespace, with the roles that are rendered for that."""
    ports, namespace = spare_ports(len(LOWERS) + 2), f"{program.namespace}-other"
    await program.make_namespace(UPPER, namespace)
    roles = roles_of(program.topology(), namespace, NAME)[UPPER]
    await grant(program.upper, roles, program.user)
    text = program.text(lambda file: elsewhere(file, ports))
    body = {"metadata": {"name": NAME}, "data": {KEY: text}}
    await program.upper.create(program.path("configmaps", namespace=namespace), body)
    command = [part.replace(f"{program.namespace}/", f"{namespace}/") for part in program.command("run")]
    try:
        async with running(program, command, ports) as other:
            yield other
    finally:
        for one in roles:
            await program.upper.delete(path_of(one))
        await program.upper.delete(f"/api/v1/namespaces/{namespace}")


async def nodes(program: RenderedSetup) -> dict[str, str]:
    """Return the UIDs of the virtual nodes."""
    found = [await program.upper.read(f"/api/v1/nodes/{node}") for node in program.nodes.values()]
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in found}


async def served_at(program: RenderedSetup, port: int) -> None:
    """Wait until the first lower's node contains this port of its kubelet API."""
    await program.upper.until(
        f"/api/v1/nodes/{program.nodes[A]}",
        lambda one: one["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == port,
    )


@pytest.mark.parametrize("way", [on_a_machine, in_another_namespace])
async def test_engines_of_one_topology_elect_one_leader_wherever_they_were_set_up(
    program: RenderedSetup, way: Way
) -> None:
    """The other engine logs the leader and its Lease, and each takes over from the other.

    A new leader continues with the existing objects: no node is written and no object is deleted while both run, and
    the nodes keep their UIDs.
    """
    before, own = await nodes(program), program.topology().lowers[0].node.kubelet_port
    assert own is not None
    lease = await program.upper.read(program.lease)
    async with way(program) as other:
        await wait_until(lambda: WAITS in other.log.read_text() or LEADS in other.log.read_text())
        await program.mark_audit_logs()
        await program.run_pod(f"first-{way.__name__.replace('_', '-')}")
        log_text = other.log.read_text()
        assert LEADS not in log_text
        assert f"{lease['spec']['holderIdentity']} is the leader" in log_text
        assert f"kube-system/{lease['metadata']['name']}" in log_text
        assert [one for one in await program.writes() if one.verb == "delete" or one.resource == "nodes"] == []
        await served_at(program, own)
        async with asyncio.timeout(HAND_OVER):
            await program.stop()
            await wait_until(lambda: LEADS in other.log.read_text())
        await program.run_pod(f"second-{way.__name__.replace('_', '-')}")
        await served_at(program, other.ports[0])
        since = len(program.log.read_text())
        await program.launch_from_configmap()
        await program.wait_for_log(WAITS, since)
        other.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(HAND_OVER):
            assert await other.process.wait() == 0
            await program.wait_for_log(LEADS, since)
    await served_at(program, own)
    assert await nodes(program) == before
