"""An engine with its webhook, which receives every opted-in pod of the upper, so its tests need their own sandbox."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from enginekit import Ground
from sitekit import Manifest

from bench.kit.spareports import spare_ports
from tensile.sandbox.sandbox import Sandbox

HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
OPTED = {"virtual-pod": "true"}
H = TypeVar("H", bound="Hooked")


class Hooked(Ground):
    """A ground with a port for the webhook."""

    hook_port: int

    def hooked(self, *, enabled: bool = True, **more: Any) -> Any:
        """Make the edit that configures the webhook on loopback, enabled by default."""
        url = f"https://127.0.0.1:{self.hook_port}/mutate"
        section = {"enabled": enabled, "bind": "127.0.0.1", "port": self.hook_port, "url": url, **more}
        return lambda file: file.update(webhook={**section, "ignoreSelectorKeys": ["clusterID", "e2e"]})

    @property
    def hook(self) -> str:
        """The path of the webhook's registration."""
        return f"{HOOKS}/tensile-{self.namespace}"

    async def registered(self) -> Manifest:
        """Wait until the webhook is registered."""
        return await self.upper.until(self.hook, bool)

    async def asked(self, name: str, spec: Manifest | None = None, dry: str = "", **meta: Any) -> Manifest:
        """Create a pod opted in to a virtual node of this ground; `dry` is appended to the path as a query."""
        basis = {"nodeSelector": {"e2e": self.mark}, "containers": [{"name": "main", "image": "app:1"}]}
        body = {"metadata": {"name": name, "labels": OPTED, **meta}, "spec": {**basis, **(spec or {})}}
        return await self.upper.create(self.path("pods") + dry, body)


@asynccontextmanager
async def serving_hooks(made: H) -> AsyncIterator[H]:
    """Yield a ground whose engine has registered its webhook; at the end, no object of either may be left."""
    (made.hook_port,) = spare_ports(1)
    try:
        await made.open()
        await made.start(made.hooked())
        await made.registered()
        yield made
        await made.clear()
        await made.upper.gone(made.hook)
    finally:
        await made.close()


@asynccontextmanager
async def hooking(sandbox: Sandbox, directory: Path) -> AsyncIterator[Hooked]:
    """Run such an engine in this process; it may log no defect."""
    async with serving_hooks(Hooked(sandbox, directory)) as made:
        yield made
    assert made.heard.defects == []
