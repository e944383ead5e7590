"""One fault trial: a sandbox, the engine as a child process, and snapshots of the state of all clusters."""

import asyncio
import shutil
import tempfile
import time
from argparse import ArgumentParser, Namespace
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.kit import audit
from bench.kit.child_processes import Child, engine
from bench.kit.clusters import on_clusters
from bench.kit.oracles import Manifest, failed, is_ready, living_twice, not_once_below, orphans, owned, unlike
from bench.kit.participants import wait_until_nodes_usable
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.sites import DEPLOYMENTS, MERGE, PODS, NotInTime, Refused, Site, until
from bench.kit.wrong_time import WrongTime
from tensile.names import owner_of
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

AGENT = "tensile/"
TOPOLOGY = "sandbox"
NAMESPACE = "default"
LIMIT = 60.0
QUIET = 2.0
ENGINE_LOG = "engine.log"


@dataclass(frozen=True)
class Snapshot:
    """The pods of all clusters: all upper pods in the trial's namespace, and the lower pods that carry our mark."""

    upper: list[Manifest]
    lowers: dict[str, list[Manifest]]

    def unsettled(self) -> list[str]:
        """Return what is still pending or wrong, nothing if all pods have settled."""
        waiting = [
            f"{pod['metadata']['name']} is {'not Ready' if 'nodeName' in pod['spec'] else 'not bound to a node'}"
            for pod in self.upper
            if not is_ready(pod)
        ]
        waiting += [
            f"{pod['metadata']['name']} is not gone" for pod in self.upper if "deletionTimestamp" in pod["metadata"]
        ]
        wrong = [*not_once_below(self.upper, self.lowers), *orphans(self.upper, self.lowers)]
        return [*waiting, *wrong, *unlike(self.upper, self.lowers).values()]


class Aftermath:
    """The observations after an outage: for how long statuses are wrong, and what must never be true."""

    def __init__(self, wrong_time: WrongTime) -> None:
        self.wrong_time = wrong_time
        self.broken: set[str] = set()

    def update(self, now: float, found: Snapshot) -> None:
        """Evaluate a snapshot at a time (monotonic seconds)."""
        self.wrong_time.update(now, unlike(found.upper, found.lowers))
        self.broken |= {*failed(found.upper), *living_twice(found.lowers)}


class Trial:
    """A sandbox under a fault; used with `async with`, at whose end the engine is terminated."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        sites = {name: Site(cluster) for name, cluster in sandbox.clusters.items()}
        self.upper = sites.pop(UPPER)
        self.lowers = sites
        self.engine: Child | None = None
        self.log = sandbox.directory / ENGINE_LOG
        self.mark = ""
        self._begin: dict[str, int] = {}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> "Self":
        for site in (self.upper, *self.lowers.values()):
            await self._open.enter_async_context(site)
        system = await self.upper.call("GET", "/api/v1/namespaces/kube-system")
        self.mark = owner_of(system["metadata"]["uid"], TOPOLOGY).mark
        self._begin = {site.name: audit.position(site.audit_log) for site in (self.upper, *self.lowers.values())}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        if self.engine is not None:
            self.engine.stop()
        await self._open.aclose()

    def start_engine(self) -> Child:
        """Start the engine, which logs to `log`."""
        self.engine = engine(self.sandbox, self.log)
        return self.engine

    async def start_engine_and_nodes(self) -> None:
        """Start the engine and return when its nodes accept pods."""
        self.start_engine()
        await wait_until_nodes_usable(self.upper, len(self.lowers))

    async def snapshot(self) -> Snapshot:
        """Return the pods of every cluster.

        The lower clusters are listed first, so a pod that is created in between may be missing from the lower pods, but
        not from the upper pods.
        """
        path = PODS.format(NAMESPACE)
        lowers = {name: owned(await site.items(path), self.mark) for name, site in self.lowers.items()}
        return Snapshot(await self.upper.items(path), lowers)

    async def wait_until_settled(self, pods: int, limit: float = LIMIT) -> Snapshot:
        """Return the state in which so many pods exist, each is Ready and runs once, and nothing is left to do."""
        return await self._until_settled(pods, limit, lambda _found: None)

    async def observe(self, begin: float, pods: int, limit: float = LIMIT) -> "Aftermath":
        """Observe from `begin` (monotonic) until so many pods are settled; raises NotInTime if they never are."""
        seen = Aftermath(WrongTime(begin))
        await self._until_settled(pods, limit, lambda found: seen.update(time.monotonic(), found))
        return seen

    def records(self, cluster: str) -> list[audit.Record]:
        """Return the audit records of a cluster since the trial began."""
        return audit.read(self._site(cluster).audit_log, self._begin[cluster])

    async def apply_data(self, collection: str, name: str, data: dict[str, str]) -> None:
        """Create an object of the upper cluster with some data, or change it."""
        try:
            await self.upper.call("PATCH", f"{collection}/{name}", {"data": data}, MERGE)
        except Refused:
            await self.upper.call("POST", collection, {"metadata": {"name": name}, "data": data})

    async def keep_kubeconfigs(self, files: Mapping[str, Path]) -> None:
        """Write the kubeconfig of each lower to a Secret of its name in the trial's namespace."""
        for name in self.lowers:
            content = b64encode(files[name].read_bytes()).decode()
            await self.apply_data(f"/api/v1/namespaces/{NAMESPACE}/secrets", name, {"kubeconfig": content})

    async def wait_idle(self, seconds: float, limit: float = LIMIT) -> dict[str, list[audit.Record]]:
        """Wait until only heartbeats are written for a moment; return the writes of the seconds after it."""
        positions: dict[str, int] = {}

        async def holds() -> bool:
            """Report whether nothing but leases and nodes is written for a moment."""
            positions.update({name: audit.position(self._site(name).audit_log) for name in self._begin})
            await asyncio.sleep(QUIET)
            return not any(self._written(name, positions[name], ("leases", "nodes")) for name in positions)

        await until(holds, "the engine is quiet", limit)
        positions = {name: audit.position(self._site(name).audit_log) for name in self._begin}
        await asyncio.sleep(seconds)
        return {name: self._written(name, start, ()) for name, start in positions.items()}

    async def remove(self, *deployments: str) -> None:
        """Delete Deployments, and return when no pod is left in any cluster."""
        for name in deployments:
            await self.upper.delete(f"{DEPLOYMENTS.format(NAMESPACE)}/{name}?propagationPolicy=Background")
        await self.wait_until_settled(0)

    async def _until_settled(self, pods: int, limit: float, look: Callable[[Snapshot], None]) -> Snapshot:
        """Take snapshots until so many pods are settled; a timeout's error contains what is left to do."""
        found = Snapshot([], {})

        async def holds() -> bool:
            """Take a snapshot and report whether it is settled."""
            nonlocal found
            found = await self.snapshot()
            look(found)
            return len(found.upper) == pods and not found.unsettled()

        try:
            await until(holds, f"{pods} pods settled", limit)
        except NotInTime as error:
            left = found.unsettled()
            raise NotInTime(
                f"{error}; {len(found.upper)} are there, {len(left)} not as they should be: {left[:5]}"
            ) from None
        return found

    async def clear(self) -> None:
        """Delete everything in the trial's namespace, and return when no pod is left in any cluster."""
        for collection in (DEPLOYMENTS.format(NAMESPACE), PODS.format(NAMESPACE)):
            for one in await self.upper.items(collection):
                await self.upper.delete(f"{collection}/{one['metadata']['name']}?propagationPolicy=Background")
        await self._until_settled(0, LIMIT, lambda _found: None)

    def _written(self, cluster: str, start: int, without: tuple[str, ...]) -> list[audit.Record]:
        return audit.writes(audit.read(self._site(cluster).audit_log, start), AGENT, without=without)

    def _site(self, cluster: str) -> Site:
        return self.upper if cluster == UPPER else self.lowers[cluster]


Scenario = Callable[[Sandbox, Namespace], Awaitable[dict[str, Any]]]


def run(
    name: str,
    scenario: Scenario,
    options: Options,
    *,
    pods: int,
    rounds: int,
    doc: str,
    long: str = "",
    arguments: Callable[[ArgumentParser], None] | None = None,
) -> int:
    """Parse the arguments, run a scenario on its own sandbox, store its result, and return the exit code.

    The scenario's result lists its failures in "broken". `long` is the help of `--long`, if the scenario has that
    option; its result is stored beside the other. `arguments` adds options of the scenario's own.
    """
    parser = ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--pods", type=int, default=pods, help="the number of pods")
    parser.add_argument("--rounds", type=int, default=rounds, help="the number of rounds")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="the seed of the random choices")
    parser.add_argument(
        "--quiet", type=float, default=30.0, help="the seconds at the end in which the engine may write only heartbeats"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    if long:
        parser.add_argument("--long", action="store_true", help=long)
    if arguments is not None:
        arguments(parser)
    args = parser.parse_args()
    name += "-long" if long and args.long else ""
    print(f"{name}: seed {args.seed}, {args.rounds} rounds, {args.pods} pods", flush=True)
    kubernetes, result = on_clusters(lambda sandbox, _scratch: _with_log_kept(scenario, sandbox, args), options=options)
    path = keep(args.results, f"faults-{name}", kubernetes, {**_parameters(args), **result})
    return verdict(name, result["broken"], path)


async def _with_log_kept(scenario: Scenario, sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Return a scenario's result; after a timeout keep the engine's log, and name its path in the error."""
    try:
        return await scenario(sandbox, args)
    except NotInTime as error:
        kept = Path(tempfile.gettempdir()) / f"tensile-faults-{ENGINE_LOG}"
        shutil.copy(sandbox.directory / ENGINE_LOG, kept)
        raise NotInTime(f"{error}; see {kept}") from None


def _parameters(args: Namespace) -> dict[str, Any]:
    return {"seed": args.seed, "rounds": args.rounds, "pods": args.pods}
