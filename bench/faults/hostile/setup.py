"""An engine with one honest lower and one behind the hostile server, and upper objects that must not leak.

The upper cluster contains many objects that the hostile one must not receive: Secrets, ConfigMaps, accounts and a
namespace, each with a word in it that must never be sent there. Two pods with their own Secret run there.
"""

import asyncio
import ssl
import sys
import time
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import orjson
import yaml

from bench.kit import topologies
from bench.kit.child_processes import ROOT, Child
from bench.kit.faultproxy.tls import signer_of
from bench.kit.participants import wait_until_nodes_usable
from bench.kit.rig import with_own_ports
from bench.kit.sites import DEPLOYMENTS, PODS, Manifest, Refused, Site, until
from bench.kit.workload import deployment
from tensile.sandbox.credentials import ADMINISTRATORS
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

HONEST, HOSTILE = "lower-a", "lower-b"
CANARY = "canary-of-the-upper"
HERE = "here"
KEPT = "kept"
LIMIT = 60.0
LOOK = 0.05
_NAMESPACES = "/api/v1/namespaces"


class EngineMeter:
    """The engine's largest memory in bytes, and the longest response time of its /healthz in seconds, since `begin`."""

    def __init__(self, port: int) -> None:
        self.rss = 0
        self.late = 0.0
        self._url = f"http://127.0.0.1:{port}/healthz"

    def begin(self) -> None:
        """Reset the measurements."""
        self.rss, self.late = 0, 0.0

    async def run(self, child: Child) -> None:
        """Measure again and again."""
        async with aiohttp.ClientSession() as session:
            while True:
                began = time.monotonic()
                with suppress(aiohttp.ClientError):
                    async with session.get(self._url) as answer:
                        await answer.read()
                        self.late = max(self.late, time.monotonic() - began)
                self.rss = max(self.rss, child.usage().rss)
                await asyncio.sleep(LOOK)


class HostileSetup:
    """Used with `async with`, on a sandbox that nothing else uses."""

    def __init__(self, sandbox: Sandbox, scratch: Path) -> None:
        self.sandbox = sandbox
        self.scratch = scratch
        self.upper = Site(sandbox.clusters[UPPER])
        self.honest = Site(sandbox.clusters[HONEST])
        self.log = sandbox.directory / "engine.log"
        self._server: Process

    async def __aenter__(self) -> "Self":
        await self.upper.__aenter__()
        await self.honest.__aenter__()
        pki = self.sandbox.clusters[HOSTILE].audit_log.parent / "pki"
        parts = urlsplit(self.sandbox.clusters[HOSTILE].server)
        arguments = ["-m", "bench.faults.hostile.service", str(pki), f"{parts.hostname}:{parts.port}"]
        self._server = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdin=PIPE, stdout=PIPE, cwd=ROOT, limit=1 << 28
        )
        url = f"https://127.0.0.1:{(await self._answer())['port']}"
        text = topologies.kubeconfig(self.sandbox.clusters[HOSTILE], "the-engine", server=url)
        (self.sandbox.directory / f"{HOSTILE}.kubeconfig").write_text(text)
        found, self._port = with_own_ports(self.sandbox)
        self._topology = self.sandbox.directory / "hostile.yaml"
        self._topology.write_text(yaml.safe_dump(found))
        self.meter = EngineMeter(found["telemetry"]["port"])
        self._monitoring = self._caller()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        await self._server.wait()
        await self.honest.__aexit__(kind, error, trace)
        await self.upper.__aexit__(kind, error, trace)

    async def set_behavior(self, behavior: str | None) -> dict[str, Any]:
        """Make the server answer in another way; return the requests received so far, and the last way's result."""
        assert self._server.stdin is not None
        self._server.stdin.write(orjson.dumps(behavior) + b"\n")
        return await self._answer()

    async def is_applied(self) -> bool:
        """Report whether the server received a request that it answers in its current way."""
        assert self._server.stdin is not None
        self._server.stdin.write(b"true\n")
        return bool((await self._answer())["met"])

    def _caller(self) -> ssl.SSLContext:
        """Return the client TLS context for a node's port, with a certificate of the upper cluster."""
        pair = signer_of(self.sandbox.clusters[UPPER].audit_log.parent / "pki").issue("monitoring", (ADMINISTRATORS,))
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        file = self.scratch / "monitoring.pem"
        file.write_bytes(pair.certificate + pair.key)
        context.load_cert_chain(file)
        return context

    async def _answer(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        found: dict[str, Any] = orjson.loads(await self._server.stdout.readline())
        return found

    def engine(self) -> Child:
        """Start an engine."""
        return Child(["tensile", "run", "-f", str(self._topology), "--log-format", "json"], self.sandbox, self.log)

    async def create_objects(self) -> None:
        """Create the objects of the upper cluster, and wait until the pods of the hostile lower run."""
        for namespace in (HERE, CANARY):
            await self._make(_NAMESPACES, {"metadata": {"name": namespace}})
        for namespace in (HERE, CANARY, "default"):
            where = f"{_NAMESPACES}/{namespace}"
            secret = {"metadata": {"name": CANARY}, "stringData": {"password": CANARY}}
            await self._make(f"{where}/secrets", secret)
            await self._make(f"{where}/configmaps", {"metadata": {"name": CANARY}, "data": {"a": CANARY}})
            await self._make(f"{where}/serviceaccounts", {"metadata": {"name": CANARY}})
        await self._make(
            f"{_NAMESPACES}/{HERE}/secrets", {"metadata": {"name": KEPT}, "stringData": {"own": "its own"}}
        )
        wanted = deployment(KEPT, 2, HOSTILE)
        wanted["spec"]["template"]["spec"]["containers"][0]["envFrom"] = [{"secretRef": {"name": KEPT}}]
        child = self.engine()
        try:
            await wait_until_nodes_usable(self.upper, 2)
            await self._make(DEPLOYMENTS.format(HERE), wanted)
            await until(self._runs, "the pods of the hostile lower run", LIMIT)
        finally:
            child.stop()

    async def read(self, path: str) -> None:
        """Read an answer of the upper cluster to its end."""
        async with self.upper.session.get(path) as answer:
            async for _ in answer.content.iter_any():
                continue

    async def measure(self) -> None:
        """Request the statistics of the hostile lower's node, at its own port as a metrics-server does."""
        node = await self.upper.call("GET", f"/api/v1/nodes/{HOSTILE}")
        port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        url = f"https://127.0.0.1:{port}/stats/summary"
        async with self.upper.session.get(url, ssl=self._monitoring) as answer:
            await answer.read()

    async def pods(self) -> list[Manifest]:
        """Return the pods that are permanently bound to the hostile lower."""
        return await self.upper.items(f"{PODS.format(HERE)}?labelSelector=app%3D{KEPT}")

    async def _runs(self) -> bool:
        return sum(one["status"].get("phase") == "Running" for one in await self.pods()) == 2  # noqa: PLR2004

    async def _make(self, path: str, body: Manifest) -> None:
        try:
            await self.upper.call("POST", path, body)
        except Refused as error:
            if error.status != 409:  # noqa: PLR2004 - it exists already
                raise
