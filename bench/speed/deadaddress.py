"""The time to the first answer of an apiserver whose name has two addresses, of which the first is dead.

    .venv/bin/python -m bench.speed.deadaddress --rounds 5

The listener of the dead address has a full queue, so the system drops connection attempts, as if the host were down.
Measured are the first answer to a call, to a watch and to `tensile doctor`, each in a program that has just started,
and `kubectl exec` through the virtual node of an engine that connects to its lower cluster by that name. Each is
measured with the name that has both addresses, and with a name that has the working address only.

The names are in a file that replaces /etc/hosts for these programs only, which requires Linux and root.
"""

import asyncio
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import uvloop
import yaml

from bench.kit.child_processes import ROOT, Child, after
from bench.kit.clusters import on_clusters
from bench.kit.oracles import is_ready
from bench.kit.participants import wait_until_nodes_usable
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.rig import with_own_ports
from bench.kit.sites import DEPLOYMENTS, PODS, Site, until
from bench.kit.workload import deployment
from tensile.diagnostics.doctor.facts import Stage
from tensile.diagnostics.doctor.queries import probe_apiserver
from tensile.engine.clusters import utc_now
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Selection
from tensile.kube.credentials import from_kubeconfig
from tensile.objects import NAMESPACE
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

BAR = 0.6
"""The limit for the seconds to the first answer."""
LOWER, NAME, SPACE = "lower-a", "first-dead", "default"
BOTH, ONE = "both.test", "one.test"
DEAD, ALIVE = "::1", "127.0.0.1"
"""The system tries IPv6 first."""
HOSTS = f"{ALIVE} localhost\n{DEAD} {BOTH}\n{ALIVE} {BOTH}\n{ALIVE} {ONE}\n"
LIMIT = 60.0


@contextmanager
def dead(port: int) -> Iterator[None]:
    """Let connections to a port of the dead address hang."""
    with socket.socket(socket.AF_INET6) as full, ExitStack() as callers:
        full.bind((DEAD, port))
        full.listen(0)
        for _ in range(4):
            caller = callers.enter_context(socket.socket(socket.AF_INET6))
            caller.setblocking(False)
            caller.connect_ex((DEAD, port))
        yield


async def first(way: str, kubeconfig: Path) -> float:
    """Return the seconds to the first answer to one kind of request, in a program that has just started."""
    access = await from_kubeconfig(kubeconfig)
    begin = time.monotonic()
    if way == "doctor":
        found = await probe_apiserver(access, utc_now)
        assert found.stage == Stage.DONE, found.error
        return time.monotonic() - begin
    cluster = HttpCluster(LOWER, access)
    try:
        await (cluster.version() if way == "call" else _watched(cluster))
        return time.monotonic() - begin
    finally:
        await cluster.close()


async def _watched(cluster: HttpCluster) -> None:
    """Return after the first event of a watch that begins with the existing objects."""
    async with aclosing(cluster.watch(NAMESPACE, Selection(), "0", 60)) as events:
        async for _ in events:
            return


WAYS = ("call", "watch", "doctor")


class Place:
    """A sandbox's lower cluster under two names; `directory` is for the files."""

    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        self.sandbox = sandbox
        self._directory = directory
        self._hosts = directory / "hosts"
        self._hosts.write_text(HOSTS)

    @property
    def before(self) -> list[str]:
        """The beginning of a command line for which these names exist."""
        return ["unshare", "-m", *after(f"mount --bind '{self._hosts}' /etc/hosts")]

    def kubeconfig(self, name: str) -> Path:
        """Write a kubeconfig that connects to the lower cluster by a name; return its path."""
        found = yaml.safe_load((self.sandbox.directory / f"{LOWER}.kubeconfig").read_text())
        cluster = found["clusters"][0]["cluster"]
        cluster["server"] = f"https://{name}:{urlsplit(cluster['server']).port}"
        cluster["tls-server-name"] = ALIVE
        path = self._directory / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(found))
        return path

    def topology(self, name: str) -> Path:
        """Write a topology whose lower cluster is connected to by a name; return its path."""
        found, _ = with_own_ports(self.sandbox)
        found["lowers"][0]["kubeconfig"] = str(self.kubeconfig(name))
        path = self.sandbox.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(found))
        return path

    def seconds(self, way: str, name: str) -> float:
        """Return the seconds to the first answer, measured in a new process."""
        module = ("-m", "bench.speed.deadaddress")
        command = [*self.before, sys.executable, *module, "--way", way, str(self.kubeconfig(name))]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=LIMIT)
        return float(done.stdout)


async def execs(place: Place, name: str, rounds: int) -> list[float]:
    """Return the seconds that `kubectl exec` takes through an engine that connects to its lower cluster by name."""
    log = place.sandbox.directory / f"{name}.log"
    child = Child(["tensile", "run", "-f", str(place.topology(name))], place.sandbox, log, place.before)
    try:
        async with Site(place.sandbox.clusters[UPPER]) as upper:
            await wait_until_nodes_usable(upper, 1)
            await upper.call("POST", DEPLOYMENTS.format(SPACE), deployment(NAME, 1))
            await until(lambda: _are_ready(upper), "the pod is Ready", LIMIT)
            found = [await asyncio.to_thread(_exec, place.sandbox) for _ in range(rounds)]
            await upper.delete(f"{DEPLOYMENTS.format(SPACE)}/{NAME}?propagationPolicy=Background")
            await until(lambda: _are_gone(upper), "the pod is gone", LIMIT)
    finally:
        child.stop()
    return found


async def _are_ready(upper: Site) -> bool:
    found = await upper.items(PODS.format(SPACE))
    return bool(found) and all(map(is_ready, found))


async def _are_gone(upper: Site) -> bool:
    return not await upper.items(PODS.format(SPACE))


def _exec(sandbox: Sandbox) -> float:
    begin = time.monotonic()
    done = sandbox.kubectl("exec", f"deployment/{NAME}", "--", "echo", "here")
    assert done.stdout == "here\n", done.stderr
    return time.monotonic() - begin


async def scenario(sandbox: Sandbox, directory: Path, rounds: int) -> dict[str, Any]:
    """Measure every kind of request by either name, in turns."""
    place = Place(sandbox, directory)
    port = urlsplit(sandbox.clusters[LOWER].server).port
    assert port is not None
    found: dict[str, dict[str, list[float]]] = {way: {BOTH: [], ONE: []} for way in (*WAYS, "exec")}
    with dead(port):
        for _ in range(rounds):
            for way in WAYS:
                for name in (BOTH, ONE):
                    found[way][name].append(await asyncio.to_thread(place.seconds, way, name))
        for name in (BOTH, ONE):
            found["exec"][name] = await execs(place, name, rounds)
    medians = {way: {name: round(median(runs), 3) for name, runs in names.items()} for way, names in found.items()}
    late = [f"{way}: first answer after {names[BOTH]} s" for way, names in medians.items() if names[BOTH] > BAR]
    print(" ".join(f"{way}={names}" for way, names in medians.items()), flush=True)
    runs = {
        way: {name: [round(one, 3) for one in runs] for name, runs in names.items()} for way, names in found.items()
    }
    return {"medians_s": medians, "runs_s": runs, "broken": late}


def main(words: Sequence[str] | None = None) -> int:
    """Measure and store the result; with --way, run as one of the programs that are measured, and print seconds."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="the number of measurements")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    parser.add_argument("--way", choices=WAYS, help="measure only this kind of connection")
    parser.add_argument("kubeconfig", type=Path, nargs="?")
    args: Namespace = parser.parse_args(words)
    if args.way:
        print(uvloop.run(first(args.way, args.kubeconfig)))
        return 0
    kubernetes, result = on_clusters(
        lambda sandbox, directory: scenario(sandbox, directory, args.rounds), options=Options(lowers=1, nodes=1)
    )
    path = keep(args.results, "dead-address", kubernetes, {"rounds": args.rounds, **result})
    return verdict("deadaddress", result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
