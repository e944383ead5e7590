"""The throughput of streams through the upper cluster, compared with the same streams to the lower cluster directly.

    .venv/bin/python -m bench.speed.streams --megabytes 100 --rounds 5
    .venv/bin/python -m bench.speed.streams --megabytes 1000 --only exec_out exec_in --result streams-1000

Both ways take turns with kubectl's exec (out and in), cp (both directions) and port-forward, on a simulated node and,
if the machine allows one, on a real node. Data of exec are compared by their sha256 every time. The time to the first
byte of a command is measured before. Writes RESULT.json. Exits with 1 if a median is below the bar, as a multiple of
the direct one, or if a first byte is too late.
"""

import argparse
import asyncio
import hashlib
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

from bench.kit.child_processes import engine
from bench.kit.oracles import is_ready
from bench.kit.participants import wait_until_machine_idle, wait_until_nodes_usable
from bench.kit.reporting import RESULTS, keep, table, verdict
from bench.kit.sites import PODS, Manifest, Site, until
from bench.speed.first_byte import first_bytes, late, summary
from tensile.sandbox import real_node
from tensile.sandbox.binaries import cache_directory
from tensile.sandbox.real_node import IMAGE
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import LOOPBACK, UPPER, Options

NAMESPACE = "default"
BAR = 0.65
LIMIT = 600.0
MEGABYTE = 1_000_000
HTTP_PORT = 8000
REAL, NAMED = "lower-a", "lower-b"


class Pod(NamedTuple):
    """The pod whose streams are measured: its name, its lower cluster, and the port at which it serves the content."""

    name: str
    lower: str
    port: int


class Place(NamedTuple):
    """The sandbox, a file with content, its sha256, a file to receive it, and the size in megabytes."""

    sandbox: Sandbox
    content: Path
    digest: str
    received: Path
    megabytes: int

    def kubectl(self, cluster: str, *arguments: str, stdin: Path = Path(os.devnull)) -> None:
        """Run kubectl to its end, and discard its output."""
        command = self.sandbox.kubectl_command("-n", NAMESPACE, *arguments, cluster=cluster)
        with stdin.open("rb") as source:
            subprocess.run(command, stdin=source, stdout=subprocess.DEVNULL, check=True, timeout=LIMIT)

    def checked_output(self, cluster: str, *arguments: str) -> str:
        """Run kubectl to its end; return the sha256 of its output."""
        command = self.sandbox.kubectl_command("-n", NAMESPACE, *arguments, cluster=cluster)
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            digest = hashlib.file_digest(process.stdout, "sha256").hexdigest()
        assert process.returncode == 0, f"kubectl ended with {process.returncode}"
        return digest


Stream = Callable[[Place, Pod, str], float]


def timed(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    begin = time.monotonic()
    run()
    return time.monotonic() - begin


def exec_out(place: Place, pod: Pod, cluster: str) -> float:
    """Time the output of a command, which must be the content."""
    begin = time.monotonic()
    digest = place.checked_output(cluster, "exec", pod.name, "--", "cat", "big")
    assert digest == place.digest, f"{pod.name}: {cluster}: the output is not what it should be"
    return time.monotonic() - begin


def exec_in(place: Place, pod: Pod, cluster: str) -> float:
    """Time the input of a command, which fails unless the input is the content."""
    script = f'test "$(sha256sum)" = "{place.digest}  -"'
    return timed(lambda: place.kubectl(cluster, "exec", "-i", pod.name, "--", "sh", "-c", script, stdin=place.content))


def put(place: Place, pod: Pod) -> None:
    """Copy the content into the pod, as `big`."""
    script = f'cat > big && test "$(sha256sum big)" = "{place.digest}  big"'
    place.kubectl(pod.lower, "exec", "-i", pod.name, "--", "sh", "-c", script, stdin=place.content)


def copy_in(place: Place, pod: Pod, cluster: str) -> float:
    """Time a copy into the pod."""
    return timed(lambda: place.kubectl(cluster, "cp", str(place.content), f"{pod.name}:big"))


def copy_out(place: Place, pod: Pod, cluster: str) -> float:
    """Time a copy out of the pod."""
    place.received.unlink(missing_ok=True)
    return timed(lambda: place.kubectl(cluster, "cp", f"{pod.name}:big", str(place.received)))


def forward(place: Place, pod: Pod, cluster: str) -> float:
    """Time a transfer through a forwarded port, without the start of kubectl."""
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
    """Download the content from a port of this machine, and check that it is complete."""
    with socket.create_connection((LOOPBACK, port), timeout=LIMIT) as connection:
        connection.sendall(b"GET /big HTTP/1.0\r\n\r\n")
        got = 0
        while piece := connection.recv(1 << 20):
            got += len(piece)
    assert got > length, f"{got} of {length} bytes arrived"


@contextmanager
def served(content: Path) -> Iterator[int]:
    """Serve the content to any number of clients, one after the other; yield the port."""
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
    """Return the pod, bound to its virtual node; a real one serves the content itself."""
    script = f"head -c {megabytes * MEGABYTE} /dev/zero > /tmp/big; httpd -f -p {HTTP_PORT} -h /tmp"
    main: Manifest = {"name": "main", "image": IMAGE, "imagePullPolicy": "IfNotPresent"}
    if pod.lower == REAL:
        main |= {"command": ["sh", "-c", script], "readinessProbe": {"tcpSocket": {"port": HTTP_PORT}}}
    spec = {"nodeName": pod.lower, "containers": [main], "terminationGracePeriodSeconds": 1}
    return {"metadata": {"name": pod.name}, "spec": spec}


async def made(place: Place, pods: Sequence[Pod]) -> str:
    """Create the upper pods and wait until they are ready; return the version of the clusters."""
    async with Site(place.sandbox.clusters[UPPER]) as site:
        await wait_until_nodes_usable(site, 2)
        for pod in pods:
            await site.call("POST", PODS.format(NAMESPACE), manifest(pod, place.megabytes))

        async def are_ready() -> bool:
            """Report whether all pods are ready."""
            return all(map(is_ready, await site.items(PODS.format(NAMESPACE))))

        await until(are_ready, "the pods are ready", LIMIT)
        return await site.version()


def rounds_of(place: Place, pods: Sequence[Pod], rounds: int, only: Sequence[str]) -> list[dict[str, Any]]:
    """Run these streams through the upper cluster and directly, in turns; the first round does not count."""
    runs: list[dict[str, Any]] = []
    for number in range(rounds + 1):
        for pod in pods:
            for name, stream in ((name, STREAMS[name]) for name in only):
                for way, cluster in (("through", UPPER), ("direct", pod.lower)):
                    seconds = stream(place, pod, cluster)
                    run = {"round": number, "pod": pod.name, "stream": name, "way": way, "seconds": round(seconds, 3)}
                    print(" ".join(f"{key}={value}" for key, value in run.items()), flush=True)
                    runs += [run] if number else []
    return runs


def speeds(runs: Sequence[dict[str, Any]], pod: str, way: str, megabytes: int) -> dict[str, float]:
    """Return the median throughput of each stream that ran, in megabytes per second."""
    own = [run for run in runs if (run["pod"], run["way"]) == (pod, way)]
    return {
        name: round(megabytes / statistics.median(run["seconds"] for run in own if run["stream"] == name), 1)
        for name in dict.fromkeys(run["stream"] for run in own)
    }


def judged(place: Place, pods: Sequence[Pod], runs: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return medians and ratios of each pod, and the ratios that are below the bar."""
    found: dict[str, Any] = {}
    broken = []
    for pod in pods:
        ways = {way: speeds(runs, pod.name, way, place.megabytes) for way in ("through", "direct")}
        ratios = {name: round(ways["through"][name] / speed, 3) for name, speed in ways["direct"].items()}
        found[pod.name] = {**ways, "ratio": ratios}
        print(f"{pod.name}\n{table(found[pod.name], list(ratios))}")
        broken += [f"{pod.name}: {name}: {ratio:g} x direct" for name, ratio in ratios.items() if ratio < BAR]
    return found, broken


def measure(place: Place, args: argparse.Namespace, port: int, *, is_real: bool) -> int:
    """Run all measurements with an engine, store and print the results; return the exit code."""
    pods = [Pod("in-name-only", NAMED, port), *([Pod("real-node", REAL, HTTP_PORT)] if is_real else ())]
    child = engine(place.sandbox, place.sandbox.directory / "engine.log")
    try:
        kubernetes = asyncio.run(made(place, pods))
        asyncio.run(wait_until_machine_idle())
        first = asyncio.run(first_bytes(place.sandbox, {pod.name: pod.lower for pod in pods}, args.first))
        print("\n".join(summary(first)), flush=True)
        for pod in pods:
            put(place, pod)
        runs = rounds_of(place, pods, args.rounds, args.only)
    finally:
        child.stop()
    found, broken = judged(place, pods, runs)
    whole = {"megabytes": place.megabytes, "rounds": args.rounds, "bar": BAR, "medians_mb_s": found}
    whole |= {"first_byte": first, "runs": runs}
    return verdict("streams", broken + late(first), keep(args.results, args.result, kubernetes, whole))


def main() -> int:
    """Parse the arguments, start a sandbox and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=100, help="the megabytes that each stream transfers")
    parser.add_argument("--rounds", type=int, default=5, help="the number of rounds")
    parser.add_argument(
        "--only", nargs="+", choices=list(STREAMS), default=list(STREAMS), help="run only these kinds of streams"
    )
    parser.add_argument("--first", type=int, default=25, help="how many times to measure the time to the first byte")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    parser.add_argument("--result", default="streams", help="the name of the result file, without .json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        why = real_node.obstacle((folder, cache_directory(os.environ)), os.environ)
        print(f"without a real node: {why}" if why else "with a real node")
        content = folder / "content"
        digest = drawn(content, args.megabytes)
        options = Options(nodes=1, real_node=not why)
        with Sandbox.start(folder / "sandbox", options) as sandbox, served(content) as port:
            sandbox.adopt("engine.log")
            place = Place(sandbox, content, digest, folder / "received", args.megabytes)
            return measure(place, args, port, is_real=not why)


def drawn(path: Path, megabytes: int) -> str:
    """Fill a file with random data; return its sha256."""
    with path.open("w+b") as file:
        for _ in range(megabytes):
            file.write(os.urandom(MEGABYTE))
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
