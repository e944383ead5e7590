"""Checks `kubectl top` and a HorizontalPodAutoscaler on a virtual node, through two real metrics-servers.

    .venv/bin/python -m bench.conformance.top

The pods of an upper Deployment have a known use. What the upper's metrics-server reports from the engine's figures has
to be within a few percent of it, also after it changes, and for the same pods as the lower's reports. An upper
autoscaler has to follow. In the end the lower's metrics API is removed, and the upper's metrics-server has to log why
there are no figures. Writes faults-top.json; exits with 1 if a check failed.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.conformance.metrics_server import CPU, MEMORY, MetricsServer, Used, apply, set_usage, top
from bench.kit.child_processes import engine
from bench.kit.participants import wait_until_nodes_usable
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.sites import Manifest, NotInTime, Site, until
from tensile.sandbox.processes import choose
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

LOWER = "lower-a"
NAME = "busy"
PODS, MOST = 2, 5
LIMIT = 120.0
PAUSE = 1.0
OFF_BY = 0.05
ABSENT = "has no metrics API"
FIRST, LATER = Used(250, 64), Used(10, 32)
"""What each pod uses: of the 100 thousandths of a cpu that it requests, enough to scale up, and to scale down."""


def deployment() -> Manifest:
    """Return a Deployment whose pods run on the virtual node and whose annotations specify their use."""
    resources = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    spec = {
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "app:1", "resources": resources}],
        "terminationGracePeriodSeconds": 0,
    }
    template = {"metadata": {"labels": {"app": NAME}, "annotations": usage_annotations(FIRST)}, "spec": spec}
    body = {"replicas": PODS, "selector": {"matchLabels": {"app": NAME}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": NAME}, "spec": body}


def autoscaler() -> Manifest:
    """Return an autoscaler with a target of half the requested cpu, which scales down without delay."""
    target = {"type": "Utilization", "averageUtilization": 50}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME},
        "minReplicas": 1,
        "maxReplicas": MOST,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": NAME},
        "spec": spec,
    }


def usage_annotations(used: Used) -> dict[str, str]:
    """Return the annotations that specify the use of a pod."""
    return {CPU: f"{used.cpu}m", MEMORY: f"{used.memory}Mi"}


class Trial:
    """Records what is checked: the seconds that each step took, and the output of `kubectl top`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.seconds: dict[str, float] = {}
        self.tops: dict[str, Any] = {}

    async def reached(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds, and record how long it took."""
        begin = time.monotonic()

        async def looked() -> bool:
            """Check in a thread, once a second: kubectl is slow, and figures change every ten seconds."""
            await asyncio.sleep(PAUSE)
            return await asyncio.to_thread(holds)

        await until(looked, what, LIMIT)
        self.seconds[what] = round(time.monotonic() - begin, 1)
        print(f"{what}: {self.seconds[what]} s", flush=True)

    def pods_use(self, used: Used, count: int) -> bool:
        """Report whether that many pods have that use in both clusters, and their node the use of the lower nodes."""
        above, below = (top(self._sandbox, cluster, "pod", "-n", "default") for cluster in (UPPER, LOWER))
        node = top(self._sandbox, UPPER, "node").get(LOWER)
        lower_nodes = top(self._sandbox, LOWER, "node")
        shown = {"above": above, "below": below, "node": {LOWER: node} if node else {}, "lower_nodes": lower_nodes}
        self.tops[f"{count} pods of {used.cpu}m"] = {
            what: {name: one._asdict() for name, one in found.items()} for what, found in shown.items()
        }
        right = all(is_near(found, used) for found in above.values())
        whole = node is not None and is_near(node, summed(lower_nodes))
        return len(above) == count and above.keys() == below.keys() and right and whole

    def replicas(self) -> int:
        """Return how many pods the autoscaler has requested."""
        output = self._sandbox.kubectl("get", "deployment", NAME, "-o", "jsonpath={.spec.replicas}")
        return int(output.stdout or 0)

    def pause_autoscaler(self) -> None:
        """Delete the autoscaler; the number of replicas that it set stays."""
        done = self._sandbox.kubectl("delete", "hpa", NAME)
        assert done.returncode == 0, done.stderr

    def change_use(self, used: Used) -> None:
        """Change what the running pods use."""
        annotations = [f"{key}={value}" for key, value in usage_annotations(used).items()]
        done = self._sandbox.kubectl("annotate", "--overwrite", "pods", "-l", f"app={NAME}", *annotations)
        assert done.returncode == 0, done.stderr


def summed(found: dict[str, Used]) -> Used:
    """Return the sum of what nodes use."""
    return Used(sum(one.cpu for one in found.values()), sum(one.memory for one in found.values()))


def is_near(found: Used, wanted: Used) -> bool:
    """Report whether a figure is right, within a few percent or the unit that kubectl rounds to."""
    return all(abs(one - other) <= max(2, OFF_BY * other) for one, other in zip(found, wanted, strict=True))


async def run(trial: Trial, sandbox: Sandbox, below: MetricsServer, above: MetricsServer) -> str:
    """Run all steps, and return the clusters' version."""
    async with Site(sandbox.clusters[UPPER]) as site:
        await wait_until_nodes_usable(site, 1)
        version = await site.version()
    apply(sandbox, UPPER, deployment())
    await trial.reached("kubectl top is right", lambda: trial.pods_use(FIRST, PODS))
    apply(sandbox, UPPER, autoscaler())
    await trial.reached("the autoscaler adds pods", lambda: trial.replicas() == MOST)
    await trial.reached("kubectl top knows the new pods", lambda: trial.pods_use(FIRST, MOST))
    trial.pause_autoscaler()
    trial.change_use(LATER)
    await trial.reached("kubectl top follows", lambda: trial.pods_use(LATER, MOST))
    apply(sandbox, UPPER, autoscaler())
    await trial.reached("the autoscaler takes pods away", lambda: trial.replicas() == 1)
    below.remove()
    log_position = above.log.stat().st_size
    await trial.reached("its absence is logged", lambda: ABSENT in above.log.read_text()[log_position:])
    return version


def measure(sandbox: Sandbox, results: Path) -> int:
    """Run the steps with an engine, keep and print the result, and return the exit code."""
    ports = [run[0] for run in choose([1, 1, 1])]
    set_usage(sandbox, LOWER, ports[0])
    trial = Trial(sandbox)
    broken: list[str] = []
    version = ""
    child = engine(sandbox, sandbox.directory / "engine.log")
    below = MetricsServer(sandbox, LOWER, ports[1], f"--kubelet-port={ports[0]}")
    above = MetricsServer(sandbox, UPPER, ports[2], "--kubelet-use-node-status-port")
    try:
        with below, above:
            version = asyncio.run(run(trial, sandbox, below, above))
    except (AssertionError, NotInTime) as error:
        broken.append(str(error))
        print(trial.tops, *(path.read_text()[-4000:] for path in (below.log, above.log)), sep="\n")
    finally:
        child.stop()
    logged = [line.partition("err=")[2] for line in above.log.read_text().splitlines() if ABSENT in line]
    whole = {"seconds": trial.seconds, "tops": trial.tops, "logged": logged[:1], "broken": broken}
    return verdict("top", broken, keep(results, "faults-top", version, whole))


def main() -> int:
    """Read the arguments, start a sandbox, and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as scratch,
        Sandbox.start(Path(scratch) / "sandbox", Options(lowers=1, nodes=2)) as sandbox,
    ):
        sandbox.adopt("engine.log", *(f"metrics-server-{cluster}.log" for cluster in (LOWER, UPPER)))
        return measure(sandbox, args.results)


if __name__ == "__main__":
    sys.exit(main())
