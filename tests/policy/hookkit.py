"""A webhook that is served on loopback and registered in a cluster in memory, with a clock that is set by hand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.spareports import spare_port
from tensile.kube.file_watch import FileWatcher
from tensile.kube.store import Cache
from tensile.names import owner_of
from tensile.objects import MUTATING_WEBHOOK, UPPER
from tensile.policy.webhook.server import WebhookContext, WebhookServer, WebhookTimings
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.rules import claims
from tensile.topology import Topology, parse

OWNER = owner_of("11111111-upper", "demo")
PACE = WebhookTimings(look=10.0, rest=5.0, overlap=20.0)
NAME = "tensile-demo"


class Scene:
    """The webhook's world: `upper` in memory, `now` that a test may move, and the topology that it is given."""

    def __init__(self, directory: Path, port: int, upper: Any = None) -> None:
        self.port = port
        self.now = datetime.now(UTC)
        self.passed = 0.0
        self.upper = upper or DryRunCluster(UPPER, now=lambda: self.now)
        self.claims = Cache(claims.digest, claims.INDEXES)
        self.nodes = Cache()
        self.leads = True
        self.watcher = FileWatcher()
        home = WebhookContext(
            self.upper, OWNER, directory, self.claims, self.nodes, self.watcher, leads=lambda: self.leads
        )
        self.server = WebhookServer(home, PACE, lambda: self.now, lambda: self.passed)

    def topology(self, more: str = "", *, enabled: bool = True, url: str = "") -> Topology:
        """Make a topology whose webhook is reached on loopback."""
        where = url or f"https://127.0.0.1:{self.port}/mutate"
        state = str(enabled).lower()
        return parse(
            "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers: []\n"
            f"webhook: {{enabled: {state}, bind: 127.0.0.1, port: {self.port}, url: '{where}'{more}}}\n"
        )

    def registered(self) -> dict[str, Any] | None:
        """Return what is registered."""
        found: dict[str, Any] | None = self.upper.find(MUTATING_WEBHOOK, "", NAME)
        return found

    def add_after(self, **passed: float) -> None:
        """Let time pass."""
        self.now += timedelta(**passed)
        self.passed += timedelta(**passed).total_seconds()


@asynccontextmanager
async def scene(directory: Path, upper: Any = None) -> AsyncIterator[Scene]:
    """Make a scene; at its end nothing is served any more."""
    made = Scene(directory, spare_port(), upper)
    try:
        yield made
    finally:
        await made.server.close()
        await made.watcher.close()
