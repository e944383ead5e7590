"""The webhook as a part of the engine: its server, the cache that it reads, and the task that keeps it."""

import asyncio
from contextlib import suppress
from pathlib import Path

from tensile.kube.cluster import Selection
from tensile.kube.credentials import SERVICE_ACCOUNT
from tensile.kube.fleet import Fleet, InformerSpec
from tensile.kube.net import supervised
from tensile.objects import CLAIM, UPPER
from tensile.policy.webhook.server import WebhookContext, WebhookServer
from tensile.topology import Topology


class WebhookPort:
    """The webhook on its port; the cache of claims in `home` is filled while it is served."""

    def __init__(self, home: WebhookContext, fleet: Fleet) -> None:
        self.server = WebhookServer(home)
        self._feed = InformerSpec(UPPER, CLAIM, Selection(), home.claims)
        self._fleet = fleet
        self._task: asyncio.Task[None] | None = None

    async def open(self, topology: Topology) -> None:
        """Serve as a topology says; raises TensileError if that is not possible yet: it is tried again."""
        if topology.webhook.enabled:
            self._fleet.follow(self._feed)
        if self._task is None:
            self._task = supervised("webhook", self.server.run)
        await self.server.serve(topology)

    async def close(self) -> None:
        """Stop serving."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.server.close()


def own_namespace(account: Path = SERVICE_ACCOUNT) -> str:
    """Return the namespace that this process runs in, "" outside a cluster; `account` is its ServiceAccount."""
    with suppress(OSError):
        return (account / "namespace").read_text().strip()
    return ""
