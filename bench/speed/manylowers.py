"""Many lower clusters in one engine, whose process may open few files.

    .venv/bin/python -m bench.speed.manylowers --lowers 24 --pods 5

First with a soft limit of 512, as a shell or a service manager may set it, and every lower cluster: all nodes must
become Ready, and pods must run on each. Then with a hard limit of 300 and half of the lower clusters: as many as there
are descriptors for must run their pods, and the log, `tensile status`, `tensile doctor` and the nodes of the others
must state the limit that is needed. Seconds, descriptors and memory are measured too.

Each lower cluster is a control plane of its own, which uses half a GiB of memory; the start of 24 takes minutes.
"""

import asyncio
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from bench.kit import oracles
from bench.kit.child_processes import ROOT, Child, after
from bench.kit.clusters import on_clusters
from bench.kit.participants import is_usable, remove_nodes
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.rig import with_own_ports
from bench.kit.sites import DEPLOYMENTS, NODES, PODS, Manifest, until, until_gone
from bench.kit.trial import NAMESPACE, Trial
from bench.kit.workload import deployment
from tensile.kube.net import EACH, OWN
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

SOFT, HARD = 512, 300
LIMIT = 180.0
"""Seconds; the control planes of the lower clusters share the processors with the engine."""
SETTLED = 30.0
"""Seconds after which unused connections are closed."""
LOOK = 0.2


class Case(NamedTuple):
    """Limits of the engine's process, the number of lower clusters, and how many of them it must serve."""

    name: str
    limits: str
    lowers: int
    served: int


class LowersTrial:
    """An engine with the lower clusters and limits of one case, and the checks."""

    def __init__(self, trial: Trial, case: Case) -> None:
        self.trial = trial
        self.case = case
        self.names = list(trial.lowers)[: case.lowers]
        self.served = self.names[: case.served]
        self.file = _topology(trial.sandbox, self.names)
        clusters = trial.sandbox.clusters
        self._by_port = {urlsplit(clusters[name].server).port: name for name in (UPPER, *trial.lowers)}
        self._most: Counter[str] = Counter()
        self.began = time.monotonic()
        command = ["tensile", "run", "-f", str(self.file), "--log-format", "json"]
        self.child = Child(command, trial.sandbox, trial.log, after(case.limits))

    def passed(self) -> float:
        """Return the seconds since the engine was started."""
        return round(time.monotonic() - self.began, 1)

    def descriptors(self) -> dict[str, int]:
        """Return the numbers of descriptors, of upper connections, and of those to the lower with the most."""
        process = self.child.process
        found = Counter(self._by_port.get(one.raddr.port, "") for one in process.net_connections("tcp") if one.raddr)
        lower = max((found[name] for name in self.names), default=0)
        return {"all": process.num_fds(), "upper": found[UPPER], "lower": lower}

    async def nodes_are_ready(self) -> bool:
        """Report whether the served lower clusters have usable nodes."""
        usable = {one["metadata"]["name"] for one in await self.trial.upper.items(NODES) if is_usable(one)}
        return usable >= set(self.served)

    async def pods_are_ready(self, pods: int) -> bool:
        """Report whether so many pods are Ready, and record the number of descriptors."""
        for what, count in self.descriptors().items():
            self._most[what] = max(self._most[what], count)
        found = await self.trial.upper.items(PODS.format(NAMESPACE))
        return sum(map(oracles.is_ready, found)) >= pods

    async def burst(self, pods: int) -> dict[str, Any]:
        """Create pods on each served lower cluster; return the seconds and the highest numbers of descriptors."""
        begin, path = time.monotonic(), DEPLOYMENTS.format(NAMESPACE)
        for name in self.served:
            await self.trial.upper.call("POST", path, deployment(f"on-{name}", pods, name))
        await until(lambda: self.pods_are_ready(pods * len(self.served)), "pods are Ready", LIMIT, LOOK)
        return {"pods_ready_s": round(time.monotonic() - begin, 1), "descriptors_most": dict(self._most)}

    async def wrong(self, pods: int) -> list[str]:
        """Return the lower clusters on which the number of running pods is wrong."""
        path, found = PODS.format(NAMESPACE), []
        for name in self.served:
            below = oracles.owned(await self.trial.lowers[name].items(path), self.trial.mark)
            if (ready := sum(map(oracles.is_ready, below))) != pods:
                found.append(f"{self.case.name}: {ready} of {pods} pods run on {name}")
        return found

    async def unsaid(self) -> list[str]:
        """Return where the limit that is needed is missing, or is stated without need."""
        expected_text = f"{self.case.lowers} lower clusters need {OWN + EACH * self.case.lowers}"
        places = {
            "the log": self.child.log.read_text(),
            "status": await self._told("status", "-f", str(self.file)),
            "doctor": await self._told("doctor", "-f", str(self.file)),
        }
        for node in await self.trial.upper.items(NODES):
            if (name := node["metadata"]["name"]) in self.names and name not in self.served:
                places[f"node {name}"] = _messages(node)
        is_short = self.case.served < self.case.lowers
        manner = "does not say" if is_short else "says without need"
        wrong = [place for place, text in places.items() if (expected_text in text) != is_short]
        return [f"{self.case.name}: {place} {manner}: {expected_text}" for place in wrong]

    async def cleared(self) -> None:
        """Delete the pods, and wait until they are removed from the lower clusters."""
        path = DEPLOYMENTS.format(NAMESPACE)
        for name in self.served:
            await self.trial.upper.delete(f"{path}/on-{name}?propagationPolicy=Background")
        for site in (self.trial.upper, *(self.trial.lowers[name] for name in self.served)):
            await until_gone(site, PODS.format(NAMESPACE), "", LIMIT)

    async def _told(self, *arguments: str) -> str:
        """Return the output of a command under the same limits, as one line."""
        command = [*after(self.case.limits), sys.executable, "-m", "tensile", *arguments]
        done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
        return " ".join((done.stdout + done.stderr).split())


def cases(lowers: int) -> list[Case]:
    """Return the cases for a number of lower clusters."""
    few = lowers // 2
    return [
        Case("soft", f"ulimit -Sn {SOFT}", lowers, lowers),
        Case("hard", f"ulimit -Sn {HARD} && ulimit -Hn {HARD}", few, min(few, (HARD - OWN) // EACH)),
    ]


def _topology(sandbox: Sandbox, names: list[str]) -> Path:
    """Write the sandbox's topology with some of its lower clusters."""
    found, _ = with_own_ports(sandbox)
    found["lowers"] = [lower for lower in found["lowers"] if lower["name"] in names]
    path = sandbox.directory / "many.yaml"
    path.write_text(yaml.safe_dump(found))
    return path


def _messages(node: Manifest) -> str:
    return " ".join(one.get("message", "") for one in node["status"].get("conditions") or ())


async def tried(trial: Trial, case: Case, pods: int) -> dict[str, Any]:
    """Run an engine in one case; return the measurements and the failures."""
    trial_run = LowersTrial(trial, case)
    try:
        await until(trial_run.nodes_are_ready, "nodes are Ready", LIMIT, LOOK)
        ready = trial_run.passed()
        await asyncio.sleep(SETTLED)
        idle = trial_run.descriptors()
        found = {**case._asdict(), "nodes_ready_s": ready, "pods": pods * case.served, **await trial_run.burst(pods)}
        broken = [*await trial_run.unsaid(), *await trial_run.wrong(pods)]
        await asyncio.sleep(SETTLED)
        after, rss = trial_run.descriptors(), trial_run.child.usage().rss
        await trial_run.cleared()
    finally:
        trial_run.child.stop()
    await remove_nodes(trial.upper)
    result = {**found, "descriptors_idle": idle, "descriptors_after": after, "rss_mib": rss >> 20, "broken": broken}
    print(" ".join(f"{key}={value}" for key, value in result.items()), flush=True)
    return result


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Try each case."""
    async with Trial(sandbox) as trial:
        runs = [await tried(trial, case, args.pods) for case in cases(len(trial.lowers))]
    return {"runs": runs, "broken": [expected_text for one in runs for expected_text in one["broken"]]}


def main() -> int:
    """Parse the arguments, try the cases and store the result; return the exit code."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lowers", type=int, default=24, help="the number of lower clusters, at most 26")
    parser.add_argument("--pods", type=int, default=5, help="the number of pods in each lower cluster")
    parser.add_argument("--sandbox", type=Path, help="the directory of a running sandbox; default: start one")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    options = Options(lowers=args.lowers, nodes=1)
    kubernetes, result = on_clusters(lambda sandbox, _scratch: scenario(sandbox, args), args.sandbox, options)
    path = keep(args.results, "manylowers", kubernetes, result)
    return verdict("manylowers", result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
