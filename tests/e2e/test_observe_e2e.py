"""Tests of `tensile run --observe` on real clusters, beside another engine of the same virtual node."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
from enginekit import A, EngineHarness, unstarted_engine, with_fields
from sitekit import Manifest, is_ready

from tensile.names import LEGACY, VIRTUAL_POD
from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real

KEPT = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "another engine renews this"}


class Log:
    """The log of an engine that observes."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self.lines: list[Manifest] = []

    async def until(self, event: str, name: str) -> Manifest:
        """Return the next line with this text about an object of this name."""
        async with asyncio.timeout(60):
            while raw := await self._stream.readline():
                line: Manifest = orjson.loads(raw)
                self.lines.append(line)
                if line["event"].startswith(event) and line.get("object", "").endswith(name):
                    return line
        raise AssertionError(f"no line {event!r} about {name}: {self.lines}")


@pytest.fixture
async def other_harness(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[EngineHarness]:
    """Return a harness whose engine is never started."""
    async with unstarted_engine(EngineHarness(sandbox, tmp_path)) as harness:
        yield harness


async def keep_node(other_harness: EngineHarness) -> None:
    """Create the virtual node as tensile-kube does, and set its condition Ready."""
    node = other_harness.nodes[A]
    await other_harness.upper.create(
        "/api/v1/nodes", {"metadata": {"name": node, "labels": {"type": "virtual-kubelet"}}}
    )
    await other_harness.upper.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [KEPT]}}, "strategic")


async def mirrored(other_harness: EngineHarness, name: str) -> Manifest:
    """Create a pod in both clusters, as tensile-kube does, and return the lower one once it runs."""
    await other_harness.bind(name)
    spec = {"containers": [{"name": "main", "image": "app:1"}]}
    marks = {"annotations": {LEGACY: "true"}, "labels": {VIRTUAL_POD: "true"}}
    await other_harness.sites[A].create(other_harness.path("pods"), {"metadata": {"name": name, **marks}, "spec": spec})
    return await other_harness.sites[A].until(other_harness.pod_path(name), is_ready)


@asynccontextmanager
async def observing(other_harness: EngineHarness, file: Path) -> AsyncIterator[Log]:
    """Run the command until the block ends, and assert that SIGTERM ends it with code 0."""
    command = [sys.executable, "-m", "tensile", "run", "--observe", "-f", str(file), "--log-format", "json"]
    child = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, env=os.environ.copy())
    assert child.stderr is not None
    try:
        yield Log(child.stderr)
        child.send_signal(signal.SIGTERM)
        await child.stderr.read()
        assert await child.wait() == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def test_an_observing_engine_reports_its_plan_and_writes_nothing(other_harness: EngineHarness) -> None:
    """It reports adoptions and creations, also of later pods, and tries no write, not even of a lease."""
    await other_harness.make_namespace(A, other_harness.namespace)
    await keep_node(other_harness)
    before = await mirrored(other_harness, "running")
    await other_harness.bind("first")
    await other_harness.mark_audit_logs()
    async with observing(other_harness, other_harness.save(with_fields(onConflict="adopt"))) as log:
        assert (await log.until("would create Pod", "/first"))["cluster"] == A
        adopted = await log.until("would change Pod", "/running")
        assert "adopt" in adopted["because"], adopted
        summary = await log.until("Plan: ", "")
        await other_harness.bind("second")
        await log.until("would create Pod", "/second")
        await other_harness.upper.delete(other_harness.pod_path("first"), 0)
        await log.until("no longer: would create Pod", "/first")
    assert "to add" in summary["event"]
    assert await other_harness.attempts() == []
    assert (await other_harness.sites[A].read(other_harness.pod_path("running")))["metadata"] == before["metadata"]
