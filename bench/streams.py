"""How fast streams are through the upper cluster, against the same streams at the lower directly.

    .venv/bin/python -m bench.streams --megabytes 100 --rounds 5

Both take turns with kubectl's exec (out and in), cp (both ways) and port-forward, on a node in name only and, where the
machine allows one, on a real node. Writes streams.json; exits with 1 when a median is under the bar, in multiples of
the direct one's.
"""

import argparse
import asyncio
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.children import engine
from bench.oracles import is_ready
from bench.parties import calm, nodes_usable
from bench.reporting import RESULTS, keep, table, verdict
from bench.sites import PODS, Manifest, Site, until
from tensile.sandbox import machine
from tensile.sandbox.binaries import cache_directory
from tensile.sandbox.environment import Sandbox
from tensile.sandbox.images import IMAGE
from tensile.sandbox.layout import LOOPBACK, UPPER
from tensile.sandbox.state import Options

NAMESPACE = "default"
BAR = 0.6
LIMIT = 120.0
MEGABYTE = 1_000_000
HTTP_PORT = 8000
REAL, NAMED = "lower-a", "lower-b"


class Pod(NamedTuple):
    """The pod whose streams are measured: its name, its lower, and its port that serves the content."""

    name: str
    lower: str
    port: int


class Place(NamedTuple):
    """Where streams run: the sandbox, a file with content, a file to receive it, and how much it is in megabytes."""

    sandbox: Sandbox
    content: Path
    received: Path
    megabytes: int

    def kubectl(self, cluster: str, *arguments: str, stdin: Path = Path(os.devnull)) -> None:
        """Run kubectl to its end; what it prints is thrown away."""
        command = self.sandbox.kubectl_command("-n", NAMESPACE, *arguments, cluster=cluster)
        with stdin.open("rb") as source:
            subprocess.run(command, stdin=source, stdout=subprocess.DEVNULL, check=True, timeout=LIMIT)


Stream = Callable[[Place, Pod, str], float]


def timed(run: Callable[[], object]) -> float:
    """Give the seconds that something takes."""
    begin = time.monotonic()
    run()
    return time.monotonic() - begin


def exec_out(place: Place, pod: Pod, cluster: str) -> float:
    """Time the output of a command."""
    script = f"head -c {place.megabytes * MEGABYTE} /dev/zero"
    return timed(lambda: place.kubectl(cluster, "exec", pod.name, "--", "sh", "-c", script))


def exec_in(place: Place, pod: Pod, cluster: str) -> float:
    """Time the input of a command, which fails unless all of it comes."""
    script = f'test "$(wc -c)" -eq {place.megabytes * MEGABYTE}'
    return timed(lambda: place.kubectl(cluster, "exec", "-i", pod.name, "--", "sh", "-c", script, stdin=place.content))


def copy_in(place: Place, pod: Pod, cluster: str) -> float:
    """Time a copy into the pod."""
    return timed(lambda: place.kubectl(cluster, "cp", str(place.content), f"{pod.name}:big"))


def copy_out(place: Place, pod: Pod, cluster: str) -> float:
    """Time a copy out of the pod."""
    place.received.unlink(missing_ok=True)
    return timed(lambda: place.kubectl(cluster, "cp", f"{pod.name}:big", str(place.received)))


def forward(place: Place, pod: Pod, cluster: str) -> float:
    """Time a transfer through a forwarded port, without kubectl's start."""
    command = place.sandbox.kubectl_command(
        "-n", NAMESPACE, "port-forward", f"--address={LOOPBACK}", f"pod/{pod.name}", f":{pod.port}", cluster=cluster
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r":(\d+) -> ", process.stdout.readline())
        assert found is not None
        try:
            return timed(lambda: fetch(int(found[1]), place.megabytes * MEGABYTE))
        finally:
            process.kill()


STREAMS: dict[str, Stream] = {
    "exec_out": exec_out,
    "exec_in": exec_in,
    "cp_in": copy_in,
    "cp_out": copy_out,
    "port_forward": forward,
}


def fetch(port: int, length: int) -> None:
    """Get the content at a port of this machine; it has to be all there."""
    with socket.create_connection((LOOPBACK, port), timeout=LIMIT) as connection:
        connection.sendall(b"GET /big HTTP/1.0\r\n\r\n")
        got = 0
        while piece := connection.recv(1 << 20):
            got += len(piece)
    assert got > length, f"{got} of {length} bytes arrived"


@contextmanager
def served(content: Path) -> Iterator[int]:
    """Serve the content to any number of callers, one after the other, and give the port."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        thread = threading.Thread(target=_serve, args=(listening, content), daemon=True)
        thread.start()
        yield int(listening.getsockname()[1])


def _serve(listening: socket.socket, content: Path) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection, content.open("rb") as file:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            connection.sendfile(file)


def manifest(pod: Pod, megabytes: int) -> Manifest:
    """Make the pod, bound to its virtual node; a real one serves the content itself."""
    script = f"head -c {megabytes * MEGABYTE} /dev/zero > /tmp/big; httpd -f -p {HTTP_PORT} -h /tmp"
    main: Manifest = {"name": "main", "image": IMAGE, "imagePullPolicy": "IfNotPresent"}
    if pod.lower == REAL:
        main |= {"command": ["sh", "-c", script], "readinessProbe": {"tcpSocket": {"port": HTTP_PORT}}}
    spec = {"nodeName": pod.lower, "containers": [main], "terminationGracePeriodSeconds": 1}
    return {"metadata": {"name": pod.name}, "spec": spec}


async def made(place: Place, pods: Sequence[Pod]) -> str:
    """Create the pods above and wait until they are ready; gives the clusters' version."""
    async with Site(place.sandbox.clusters[UPPER]) as site:
        await nodes_usable(site, 2)
        for pod in pods:
            await site.call("POST", PODS.format(NAMESPACE), manifest(pod, place.megabytes))

        async def are_ready() -> bool:
            """Look at all of them."""
            return all(map(is_ready, await site.items(PODS.format(NAMESPACE))))

        await until(are_ready, "the pods are ready", LIMIT)
        await calm()
        return await site.version()


def rounds_of(place: Place, pods: Sequence[Pod], rounds: int) -> list[dict[str, Any]]:
    """Run every stream through the upper and directly, by turns; one round before counts for nothing."""
    runs: list[dict[str, Any]] = []
    for number in range(rounds + 1):
        for pod in pods:
            for name, stream in STREAMS.items():
                for way, cluster in (("through", UPPER), ("direct", pod.lower)):
                    seconds = stream(place, pod, cluster)
                    run = {"round": number, "pod": pod.name, "stream": name, "way": way, "seconds": round(seconds, 3)}
                    print(" ".join(f"{key}={value}" for key, value in run.items()), flush=True)
                    runs += [run] if number else []
    return runs


def speeds(runs: Sequence[dict[str, Any]], pod: str, way: str, megabytes: int) -> dict[str, float]:
    """Give the median of each stream in megabytes a second."""
    own = [run for run in runs if (run["pod"], run["way"]) == (pod, way)]
    return {
        name: round(megabytes / statistics.median(run["seconds"] for run in own if run["stream"] == name), 1)
        for name in STREAMS
    }


def judged(place: Place, pods: Sequence[Pod], runs: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Give medians and ratios of each pod, and what is under the bar."""
    found: dict[str, Any] = {}
    broken = []
    for pod in pods:
        ways = {way: speeds(runs, pod.name, way, place.megabytes) for way in ("through", "direct")}
        ratios = {name: round(ways["through"][name] / ways["direct"][name], 3) for name in STREAMS}
        found[pod.name] = {**ways, "ratio": ratios}
        print(f"{pod.name}\n{table(found[pod.name], list(STREAMS))}")
        broken += [f"{pod.name}: {name}: {ratio:g} x direct" for name, ratio in ratios.items() if ratio < BAR]
    return found, broken


def measure(place: Place, rounds: int, results: Path, port: int, *, is_real: bool) -> int:
    """Run it all beside an engine, keep and print what came out; gives the exit code."""
    pods = [Pod("in-name-only", NAMED, port), *([Pod("real-node", REAL, HTTP_PORT)] if is_real else ())]
    child = engine(place.sandbox, place.sandbox.directory / "engine.log")
    try:
        kubernetes = asyncio.run(made(place, pods))
        runs = rounds_of(place, pods, rounds)
    finally:
        child.stop()
    found, broken = judged(place, pods, runs)
    whole = {"megabytes": place.megabytes, "rounds": rounds, "bar": BAR, "medians_mb_s": found, "runs": runs}
    return verdict("streams", broken, keep(results, "streams", kubernetes, whole))


def main() -> int:
    """Read the arguments, start a sandbox, measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        why = machine.obstacle((folder, cache_directory(os.environ)), os.environ)
        print(f"without a real node: {why}" if why else "with a real node")
        content = folder / "content"
        content.write_bytes(os.urandom(given.megabytes * MEGABYTE))
        options = Options(nodes=1, real_node=not why)
        with Sandbox.start(folder / "sandbox", options) as sandbox, served(content) as port:
            sandbox.adopt("engine.log")
            place = Place(sandbox, content, folder / "received", given.megabytes)
            return measure(place, given.rounds, given.results, port, is_real=not why)


if __name__ == "__main__":
    sys.exit(main())
