"""A scheduler extender that records which nodes the scheduler found for a pod, and rejects all of them.

The pod then stays unscheduled, the scheduler's own message counts the reasons for each other node, and the cluster is
unchanged for the next pod.
"""

from pathlib import Path
from typing import Any, Self

import yaml
from aiohttp import web

from tensile.sandbox import processes
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import LOOPBACK

REASON = "recorded"


class Recorder:
    """The extender; used with `async with`. `found` holds the nodes by pod UID."""

    def __init__(self) -> None:
        self.port = processes.choose([1])[0][0]
        self.found: dict[str, frozenset[str]] = {}
        application = web.Application(client_max_size=1 << 24)
        application.router.add_post("/filter", self._filter)
        self._runner = web.AppRunner(application)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, self.port).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _filter(self, request: web.Request) -> web.Response:
        review: dict[str, Any] = await request.json()
        names = review["NodeNames"]
        self.found[review["Pod"]["metadata"]["uid"]] = frozenset(names)
        return web.json_response({"NodeNames": [], "FailedNodes": dict.fromkeys(names, REASON), "Error": ""})


def use_extender(sandbox: Sandbox, cluster: str, port: int) -> None:
    """Restart a cluster's scheduler so that it calls the extender."""
    folder = sandbox.clusters[cluster].audit_log.parent
    config = Path(folder / "scheduler.yaml")
    config.write_text(yaml.safe_dump(_configuration(folder / "pki" / "kube-scheduler.kubeconfig", port)))
    sandbox.restart(cluster, "kube-scheduler", extra=[f"--config={config}"])


def _configuration(kubeconfig: Path, port: int) -> dict[str, Any]:
    extender = {"urlPrefix": f"http://{LOOPBACK}:{port}", "filterVerb": "filter", "nodeCacheCapable": True}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 10000},
        "leaderElection": {"leaderElect": False},
        "extenders": [extender],
    }
