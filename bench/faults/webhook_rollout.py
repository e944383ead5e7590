"""A rolling update replaces the webhook's replicas: no creation fails, and no pod is created without a mutation.

    .venv/bin/python -m bench.faults.webhook_rollout --pods 500 --rate 10

Two engines of one topology share one address, which directs new connections to those that are ready (/readyz) and keeps
open connections, as a Service does. Each runs as in a pod of namespace `tensile`, so that they share the certificate in
a Secret there; that requires `unshare`. The replicas are replaced one after the other: a new one starts and becomes
ready, an old one receives no new connections, a pause passes (preStop), and it is terminated. At intervals one is
killed instead: requests to it leave pods unmutated until it receives no more connections. Meanwhile pods are created,
every other one with the opt-in. Writes faults-replaced.json; exits with 1 if a creation failed, a pod with the opt-in
was not mutated although no replica had been killed, or more than one CA is trusted at the end.
"""

import asyncio
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import orjson

from bench.kit.child_processes import Child, after
from bench.kit.rig import with_own_ports
from bench.kit.sites import PODS, Refused, Site, until
from bench.kit.trial import ENGINE_LOG, NAMESPACE, run
from bench.speed.webhook import HOOKS, pod
from tensile.policy.webhook.registration import TIMEOUT_SECONDS
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

LIMIT = 60.0
BESIDE = 2
"""Replicas that are ready at any time."""
NOTICED = 1.0
"""Seconds until a killed replica gets no more connections: about what a kubelet and its cluster need to detect it."""
OVER = 1.0
"""Seconds after that in which a creation that began before may still be in progress."""
KILLED_EVERY = 4
INSIDE = "tensile"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class Replica(NamedTuple):
    """One engine: its process, and the ports of its webhook and its telemetry."""

    child: Child
    hook: int
    telemetry: int


class Address:
    """The shared address: directs each new connection to the next replica, and does not move it afterwards."""

    def __init__(self) -> None:
        self.replicas: list[Replica] = []
        self.port = 0
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Listen inside the block."""
        server = await asyncio.start_server(self._led, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            await asyncio.wait_for(asyncio.gather(*self._tasks), LIMIT)

    async def _led(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection to a replica, from its first byte to its last; abort it if there is none."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            self._turn += 1
            chosen = self.replicas[self._turn % len(self.replicas)]
            there, back = await asyncio.open_connection("127.0.0.1", chosen.hook)
        except (OSError, ZeroDivisionError):
            writer.transport.abort()
            return
        await asyncio.gather(_passed(reader, back), _passed(there, writer))


async def _passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward the data of a stream, and its end."""
    with suppress(OSError):
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
            await writer.drain()
    with suppress(OSError):
        writer.close()
        await writer.wait_closed()


class Rolling:
    """The replicas of a sandbox's topology, replaced one after the other; `killed` are the times of kills."""

    def __init__(self, sandbox: Sandbox, address: Address, pause: float) -> None:
        self.killed: list[float] = []
        self.replaced = 0
        self.history: list[tuple[float, str]] = []
        self.codes: list[int] = []
        self._sandbox = sandbox
        self._address = address
        self._pause = pause
        self._made = 0
        self._all: list[Replica] = []

    async def joined(self) -> None:
        """Start another replica, and direct connections to it once it is ready."""
        replica = self._started()
        self._all.append(replica)
        await until(lambda: _is_ready(replica), "a replica is ready", LIMIT, pause=0.05)
        self._address.replicas.append(replica)
        self._note("one more is led to")

    def _note(self, event: str) -> None:
        self.history.append((time.monotonic(), event))

    async def rolled(self) -> None:
        """Replace one replica after the other until this is cancelled."""
        while True:
            self.replaced += 1
            await (self._crashed() if self.replaced % KILLED_EVERY == 0 else self._exchanged())

    async def _exchanged(self) -> None:
        """Replace the oldest replica in an orderly way."""
        await self.joined()
        old = self._address.replicas.pop(0)
        self._note("one is led to no more")
        await asyncio.sleep(self._pause)
        self._note("it receives SIGTERM")
        self.codes.append(await asyncio.to_thread(old.child.stop))
        self._note("it has ended")

    async def _crashed(self) -> None:
        """Kill the oldest replica, and then replace it."""
        old = self._address.replicas[0]
        self.killed.append(time.monotonic())
        self._note("one is killed")
        await asyncio.to_thread(old.child.kill)
        await asyncio.sleep(NOTICED)
        self._address.replicas.remove(old)
        self._note("it is led to no more")
        await self.joined()

    def end(self) -> None:
        """Kill all replicas that were started."""
        for replica in self._all:
            replica.child.kill()

    def _started(self) -> Replica:
        self._made += 1
        path = self._sandbox.directory / f"replaced-{self._made}.yaml"
        hook, telemetry = _written(self._sandbox, path, self._address.port)
        options = ["-f", str(path), "--log-format", "json", "--leader-elect"]
        log = self._sandbox.directory / ENGINE_LOG
        return Replica(Child(["tensile", "run", *options], self._sandbox, log, in_a_pod()), hook, telemetry)


def in_a_pod() -> list[str]:
    """Return the start of a command line that lets a process seem to run in a pod of the engines' namespace."""
    mounted = f"mount -t tmpfs none /var/run && mkdir -p {ACCOUNT} && printf {INSIDE} >{ACCOUNT}/namespace"
    return ["unshare", "-m" if os.geteuid() == 0 else "-rm", *after(mounted)]


def _written(sandbox: Sandbox, path: Path, address: int) -> tuple[int, int]:
    """Write the sandbox's topology for another replica, and return the ports of its webhook and its telemetry."""
    found, hook = with_own_ports(sandbox)
    url = f"https://127.0.0.1:{address}/mutate"
    found["webhook"] = {"enabled": True, "bind": "127.0.0.1", "port": hook, "url": url}
    path.write_bytes(orjson.dumps(found))
    return hook, found["telemetry"]["port"]


async def _is_ready(replica: Replica) -> bool:
    async with aiohttp.ClientSession() as session:
        with suppress(aiohttp.ClientError):
            async with session.get(f"http://127.0.0.1:{replica.telemetry}/readyz") as response:
                return response.status == HTTPStatus.OK
    assert replica.child.is_running, f"a replica ended: see {replica.child.log}"
    return False


class Creation(NamedTuple):
    """One pod: the times of the request and the response, whether it opted in, was mutated, and why it failed."""

    begin: float
    end: float
    opted: bool
    prepared: bool
    failure: str = ""


async def created(site: Site, number: int) -> Creation:
    """Create a pod; every other one has opted in."""
    opted, begin = number % 2 == 0, time.monotonic()
    try:
        made = await site.call("POST", PODS.format(NAMESPACE), pod(f"replaced-{number}", opted=opted))
    except (Refused, aiohttp.ClientError) as error:
        return Creation(begin, time.monotonic(), opted, prepared=False, failure=str(error))
    return Creation(begin, time.monotonic(), opted, "clusterSelector" in made["metadata"].get("annotations", {}))


async def creations(site: Site, pods: int, rate: float) -> list[Creation]:
    """Create pods at a rate (per second)."""
    begin = time.monotonic()

    async def one(number: int) -> Creation:
        """Create one pod at its time."""
        await asyncio.sleep(max(begin + number / rate - time.monotonic(), 0.0))
        return await created(site, number)

    return await asyncio.gather(*(one(number) for number in range(pods)))


def missing(found: list[Creation]) -> list[Creation]:
    """Return the pods that opted in, were created, and were not mutated."""
    return [one for one in found if one.opted and not one.prepared and not one.failure]


def judged(found: list[Creation], killed: list[float]) -> dict[str, Any]:
    """Return the counts and the failures: failed creations, and pods not mutated although no replica was killed."""
    missed = missing(found)
    in_vain = [one for one in missed if any(at <= one.end and one.begin <= at + NOTICED + OVER for at in killed)]
    touched = [one for one in found if not one.opted and one.prepared]
    failed = [one.failure for one in found if one.failure]
    slow = [one for one in missed if one.end - one.begin >= TIMEOUT_SECONDS and one not in in_vain]
    lost = len(missed) - len(in_vain)
    broken = [f"{len(failed)} creations failed: {failed[0]}"] if failed else []
    broken += [f"{lost} pods were not mutated although no replica had been killed"] if lost else []
    broken += [f"{len(touched)} pods were prepared that had not opted in"] if touched else []
    return {
        "created": len(found) - len(failed),
        "opted_in": sum(one.opted for one in found),
        "failed": len(failed),
        "unprepared": lost,
        "unprepared_in_time": lost - len(slow),
        "unprepared_after_a_kill": len(in_vain),
        "slowest_ms": round(max(one.end - one.begin for one in found) * 1000, 1),
        "broken": broken,
    }


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Replace replicas while pods are created."""
    address = Address()
    rolling = Rolling(sandbox, address, args.pause)
    async with Site(sandbox.clusters[UPPER]) as site, address.open():
        try:
            with suppress(Refused):
                await site.call("POST", "/api/v1/namespaces", {"metadata": {"name": INSIDE}})
            for _ in range(BESIDE):
                await rolling.joined()
            await until(lambda: _is_registered(site), "the webhook is registered", LIMIT)
            turning = asyncio.create_task(rolling.rolled())
            found = await creations(site, args.pods, args.rate)
            failure = turning.exception() if turning.done() else None
            turning.cancel()
            await asyncio.gather(turning, return_exceptions=True)
            hook = await site.call("GET", f"{HOOKS}/tensile-sandbox")
            await site.call("DELETE", f"{PODS.format(NAMESPACE)}?labelSelector=app%3Dwebhook")
        finally:
            rolling.end()
    result = judged(found, rolling.killed)
    result["broken"] += [f"rolling ended: {failure}"] if failure else []
    marks = [*rolling.history, *((one.end, "a pod was not mutated") for one in missing(found))]
    begun = min(at for at, _ in marks)
    result["history"] = [f"{at - begun:.2f} s: {event}" for at, event in sorted(marks)]
    result["broken"] += [f"a replica ended with {code}" for code in rolling.codes if code]
    trusted = b64decode(hook["webhooks"][0]["clientConfig"]["caBundle"]).count(b"BEGIN CERTIFICATE")
    result["broken"] += [f"{trusted} CAs are trusted in the end"] if trusted != 1 else []
    return {"replaced": len(rolling.codes), "killed": len(rolling.killed), **result}


async def _is_registered(site: Site) -> bool:
    """Report whether the webhook is registered: replicas that start together are ready before one registers it."""
    return bool(await site.items(HOOKS))


def arguments(parser: ArgumentParser) -> None:
    """Add the rate of creations, and the time that a replica still runs without new connections."""
    parser.add_argument("--rate", type=float, default=10.0, help="the number of pods to create per second")
    parser.add_argument(
        "--pause", type=float, default=2.0, help="the seconds between the removal of an endpoint and SIGTERM"
    )


if __name__ == "__main__":
    sys.exit(run("replaced", scenario, Options(), pods=500, rounds=1, doc=__doc__ or "", arguments=arguments))
