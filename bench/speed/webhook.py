"""The cost of the admission webhook: the time to answer one review, and the delay of the creation of a pod.

    .venv/bin/python -m bench.speed.webhook --pods 2000 --rounds 3

The review of a usual pod is timed, and the most expensive one among those that a user could send to block the engine,
because reviews are answered on its event loop. Each round creates pods at 200 per second through a real apiserver, in
turns of a second: pods for which the webhook is not called, and pods that it prepares. Both kinds are created once more
after the webhook was killed, when no creation may fail. Pods name a scheduler that does not exist, so that only their
creation is measured. Writes webhook.json; exits with 1 if a measurement is over its bar.
"""

import asyncio
import socket
import statistics
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from bench.kit.child_processes import Child
from bench.kit.clusters import on_clusters
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.sites import PODS, Manifest, Refused, Site, until
from bench.speed.heavy_reviews import SIZES, heavy_review, volume_review
from bench.speed.makespan import percentile
from tensile.names import VIRTUAL_POD
from tensile.policy.webhook.admission import MutationTerms
from tensile.policy.webhook.review import answer
from tensile.reconcile.pods.scheduling import REQUIRED, UPPER_ONLY_KEYS
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

NAMESPACE = "default"
RATE = 200.0
TURN = 200
REVIEWS = 5_000
LIMIT = 60.0
NOBODY = "nobody"
BARS = {"cpu_us": 100.0, "worst_ms": 20.0, "added_p50_ms": 3.0, "added_p99_ms": 15.0, "failed_creations": 0}
CROSSED = ((1, 200), (5, 190), (10, 20), (20, 20), (200, 200), (400, 400))
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
TAINT = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
TERMS = MutationTerms(
    UPPER_ONLY_KEYS | {"clusterID"}, frozenset({"lower-a", "lower-b"}), (TAINT,), frozenset({"kube-system"})
)


def pod(name: str, *, opted: bool) -> Manifest:
    """Return a pod that requires a lower cluster, and a kind of node in it."""
    kinds = [{"key": "disk", "operator": "In", "values": ["ssd", "nvme"]}, {"key": "clusterID", "operator": "Exists"}]
    terms = {"nodeSelectorTerms": [{"matchExpressions": kinds}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "webhook", **({VIRTUAL_POD: "true"} if opted else {})}},
        "spec": {
            "schedulerName": NOBODY,
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"clusterID": "lower-a", "gpu": "a100"},
            "affinity": {"nodeAffinity": {REQUIRED: terms}},
            "containers": [{"name": "c", "image": "nginx", "resources": {"requests": {"cpu": "1m"}}}],
        },
    }


def cost(stored: Manifest, reviews: int = REVIEWS) -> float:
    """Return the CPU microseconds of one review, from bytes to bytes: the median of ten series.

    `stored` is a pod as an apiserver sends it, with all fields that earlier admission has added.
    """
    request = {"uid": "asked", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE"}
    question = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    opted = {**stored, "metadata": {**stored["metadata"], "labels": {VIRTUAL_POD: "true"}}}
    body = orjson.dumps({**question, "request": {**request, "namespace": NAMESPACE, "object": opted}})
    assert b'"patch"' in answer(body, TERMS)
    return round(statistics.median(_series(body, max(reviews // 10, 1))), 1)


def worst() -> tuple[float, str]:
    """Return the CPU milliseconds of the most expensive review, the best of three tries, and its name."""
    every = [(f"{name}, {size >> 10} KiB", body) for size in SIZES for name, body in heavy_review(size)]
    every += [(f"{first} terms and {second}", volume_review(first, second)) for first, second in CROSSED]
    return max((round(min(_series(body, 1, 3)) / 1000, 1), name) for name, body in every)


def _series(body: bytes, reviews: int, series: int = 10) -> Iterator[float]:
    """Yield the CPU microseconds of one review, once for each series."""
    for _ in range(series):
        begin = time.process_time()
        for _ in range(reviews):
            answer(body, TERMS)
        yield (time.process_time() - begin) / reviews * 1e6


async def create(site: Site, tag: str, pods: int, *, opted: bool, rate: float = RATE) -> tuple[list[float], int]:
    """Create pods at a rate; return the sorted seconds of the successful creations, and the number of failed ones."""
    begin = time.monotonic()

    async def one(number: int) -> float | None:
        """Create one pod when it is due; the time that it waits for others counts."""
        due = begin + number / rate
        await asyncio.sleep(max(due - time.monotonic(), 0.0))
        try:
            await site.call("POST", PODS.format(NAMESPACE), pod(f"{tag}-{number}", opted=opted))
        except Refused:
            return None
        return time.monotonic() - due

    taken = await asyncio.gather(*(one(number) for number in range(pods)))
    await site.call("DELETE", f"{PODS.format(NAMESPACE)}?labelSelector=app%3Dwebhook")
    through = sorted(seconds for seconds in taken if seconds is not None)
    return through, pods - len(through)


def milliseconds(taken: list[float]) -> dict[str, float]:
    """Return median and 99th percentile."""
    return {"p50_ms": round(percentile(taken, 0.5) * 1000, 2), "p99_ms": round(percentile(taken, 0.99) * 1000, 2)}


def topology(sandbox: Sandbox, directory: Path) -> Path:
    """Write a topology whose webhook is on loopback; without lower clusters the engine does nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as hook, socket.create_server(("127.0.0.1", 0)) as telemetry:
        port, telemetry_port = hook.getsockname()[1], telemetry.getsockname()[1]
    found = {
        "apiVersion": "tensile-kube.io/v1alpha1",
        "kind": "Topology",
        "name": "webhook",
        "upper": {"kubeconfig": str(sandbox.directory / "upper.kubeconfig")},
        "lowers": [],
        "telemetry": {"port": telemetry_port},
        "webhook": {"enabled": True, "bind": "127.0.0.1", "port": port, "url": f"https://127.0.0.1:{port}/mutate"},
    }
    path = directory / "topology.yaml"
    path.write_bytes(orjson.dumps(found))
    return path


async def measured(sandbox: Sandbox, directory: Path, pods: int, rounds: int) -> dict[str, Any]:
    """Run all rounds; return the results of each kind, and the failed creations without the webhook."""
    command = ["tensile", "run", "-f", str(topology(sandbox, directory)), "--log-format", "json"]
    child = Child(command, sandbox, directory / "webhook.log")
    try:
        async with Site(sandbox.clusters[UPPER]) as site:
            await until(lambda: _is_called(site), "the apiserver calls the webhook", LIMIT)
            stored = await site.call("POST", f"{PODS.format(NAMESPACE)}?dryRun=All", pod("asked", opted=False))
            runs = [await _round(site, number, pods) for number in range(rounds)]
            used = child.usage()
            child.kill()
            failed = {
                kind: (await create(site, f"down-{kind}", min(pods, 200), opted=kind == "opted"))[1]
                for kind in ("plain", "opted")
            }
            await site.delete(f"{HOOKS}/tensile-webhook")
    finally:
        child.kill()
    most, which = worst()
    return {
        "cpu_us": cost(stored),
        "worst_ms": most,
        "worst": which,
        "runs": runs,
        "failed_while_down": failed,
        "rss_mib": used.rss >> 20,
    }


async def _is_called(site: Site) -> bool:
    found = await site.call("POST", f"{PODS.format(NAMESPACE)}?dryRun=All", pod("asked", opted=True))
    return "annotations" in found["metadata"]


async def _round(site: Site, number: int, pods: int) -> dict[str, Any]:
    """Create both kinds in turns, so that other load of the machine affects them alike."""
    seconds: dict[str, list[float]] = {"plain": [], "opted": []}
    failures = 0
    for turn in range(max(pods // TURN, 1)):
        for kind, known in seconds.items():
            taken, failed = await create(site, f"r{number}-t{turn}-{kind}", min(pods, TURN), opted=kind == "opted")
            known.extend(taken)
            failures += failed
    figures = {kind: milliseconds(sorted(known)) for kind, known in seconds.items()}
    print(orjson.dumps(figures).decode(), flush=True)
    return {**figures, "failed": failures}


def judged(found: dict[str, Any]) -> dict[str, Any]:
    """Add the delay that the webhook adds, by the medians of the rounds, and which results are over their bar."""
    figures = {
        "cpu_us": found["cpu_us"],
        "worst_ms": found["worst_ms"],
        "added_p50_ms": _added(found["runs"], "p50_ms"),
        "added_p99_ms": _added(found["runs"], "p99_ms"),
        "failed_creations": sum(run["failed"] for run in found["runs"]) + sum(found["failed_while_down"].values()),
    }
    broken = [f"{name} is {figures[name]:g}, the bar is {bar:g}" for name, bar in BARS.items() if figures[name] > bar]
    return {**found, **figures, "bars": BARS, "broken": broken}


def _added(runs: list[dict[str, Any]], field: str) -> float:
    return round(statistics.median(run["opted"][field] - run["plain"][field] for run in runs), 2)


def main() -> int:
    """Parse the arguments, measure and store the result; return the exit code."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pods", type=int, default=2000, help="the number of pods to create in each turn")
    parser.add_argument("--rounds", type=int, default=3, help="the number of rounds")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()

    async def scenario(sandbox: Sandbox, scratch: Path) -> dict[str, Any]:
        """Measure on new clusters."""
        return judged(await measured(sandbox, scratch, args.pods, args.rounds))

    kubernetes, result = on_clusters(scenario)
    path = keep(args.results, "webhook", kubernetes, {"pods": args.pods, "rate": RATE, **result})
    return verdict("webhook", result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
