"""An engine with its webhook, which receives every opted-in pod of the upper, so its tests need their own sandbox."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from enginekit import EngineHarness
from sitekit import Manifest

from bench.kit.spareports import spare_ports
from tensile.sandbox.sandbox import Sandbox

HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
OPTED = {"virtual-pod": "true"}
H = TypeVar("H", bound="WebhookEngineHarness")


class WebhookEngineHarness(EngineHarness):
    """A harness with a port for the webhook."""

    hook_port: int

    def webhook_edit(self, *, enabled: bool = True, **more: Any) -> Any:
        """Make the edit that configures the webhook on loopback, enabled by default."""
        url = f"https://127.0.0.1:{self.hook_port}/mutate"
        section = {"enabled": enabled, "bind": "127.0.0.1", "port": self.hook_port, "url": url, **more}
        return lambda file: file.update(webhook={**section, "ignoreSelectorKeys": ["clusterID", "e2e"]})

    @property
    def webhook_path(self) -> str:
        """The path of the webhook's registration."""
        return f"{HOOKS}/tensile-{self.namespace}"

    async def wait_registered(self) -> Manifest:
        """Wait until the webhook is registered."""
        return await self.upper.until(self.webhook_path, bool)

    async def create_opted_in_pod(
        self, name: str, spec: Manifest | None = None, dry: str = "", **meta: Any
    ) -> Manifest:
        """Create a pod opted in to a virtual node of this harness; `dry` is appended to the path as a query."""
        basis = {"nodeSelector": {"e2e": self.mark}, "containers": [{"name": "main", "image": "app:1"}]}
        body = {"metadata": {"name": name, "labels": OPTED, **meta}, "spec": {**basis, **(spec or {})}}
        return await self.upper.create(self.path("pods") + dry, body)


@asynccontextmanager
async def running_webhook_engine(harness: H) -> AsyncIterator[H]:
    """Yield a harness whose engine has registered its webhook; at the end, no object of either may be left."""
    (harness.hook_port,) = spare_ports(1)
    try:
        await harness.open()
        await harness.start(harness.webhook_edit())
        await harness.wait_registered()
        yield harness
        await harness.clear()
        await harness.upper.gone(harness.webhook_path)
    finally:
        await harness.close()


@asynccontextmanager
async def webhook_engine(sandbox: Sandbox, directory: Path) -> AsyncIterator[WebhookEngineHarness]:
    """Run such an engine in this process; it may log no defect."""
    async with running_webhook_engine(WebhookEngineHarness(sandbox, directory)) as harness:
        yield harness
    assert harness.loop_recorder.defects == []
