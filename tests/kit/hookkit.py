"""A webhook that is served on loopback and registered in a cluster in memory, with a clock that tests set."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
from cryptography import x509

from bench.kit.spareports import spare_port
from tensile.kube.file_watch import FileWatcher
from tensile.kube.store import Cache
from tensile.names import owner_of
from tensile.objects import MUTATING_WEBHOOK, NAMESPACE, SECRET, UPPER, Ref
from tensile.policy.webhook.certificates import certificates_in
from tensile.policy.webhook.registration import bundle_in, call
from tensile.policy.webhook.server import WebhookContext, WebhookServer
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.rules import claims
from tensile.topology import Topology, parse

OWNER = owner_of("11111111-upper", "demo")
NAME, SECRET_NAME, INSIDE = "tensile-demo", "tensile-webhook-demo", "engines"


class WebhookHarness:
    """The environment of a webhook: `upper` in memory, a clock `now` that a test may advance, and a topology.

    The webhook runs in namespace `inside` of the upper cluster, "" for outside of the cluster.
    """

    def __init__(self, directory: Path, port: int, upper: Any = None, inside: str = "") -> None:
        self.port = port
        self.now = datetime.now(UTC)
        self.monotonic_seconds = 0.0
        self.upper = upper or DryRunCluster(UPPER, now=lambda: self.now)
        self.claims = Cache(claims.transform, claims.INDEXES)
        self.nodes, self.secrets = Cache(), Cache()
        self.is_leader = True
        self.watcher = FileWatcher()
        caches = (self.claims, self.nodes, self.secrets)
        home = WebhookContext(self.upper, OWNER, directory, *caches, self.watcher, inside, lambda: self.is_leader)
        self.server = WebhookServer(home, lambda: self.now, lambda: self.monotonic_seconds)
        if isinstance(self.upper, DryRunCluster):
            self.upper.place(NAMESPACE, {"metadata": {"name": INSIDE}})
            self.upper.follow(SECRET, self.secrets, bool)
            self.secrets.replace(map(orjson.dumps, filter(None, [self.secret()])), 0)

    def topology(self, more: str = "", *, enabled: bool = True, url: str = "") -> Topology:
        """Make a topology whose webhook is reached on loopback."""
        where = url or f"https://127.0.0.1:{self.port}/mutate"
        state = str(enabled).lower()
        return parse(
            "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers: []\n"
            f"webhook: {{enabled: {state}, bind: 127.0.0.1, port: {self.port}, url: '{where}'{more}}}\n"
        )

    async def start(self, more: str = "", *, url: str = "") -> float | None:
        """Serve the webhook, and run `reconcile` once."""
        await self.server.serve(self.topology(more, url=url))
        return await self.server.reconcile()

    def registered(self) -> dict[str, Any] | None:
        """Return the registered MutatingWebhookConfiguration, None if there is none."""
        found: dict[str, Any] | None = self.upper.find(MUTATING_WEBHOOK, "", NAME)
        return found

    def secret(self) -> dict[str, Any] | None:
        """Return the Secret with the certificates."""
        found: dict[str, Any] | None = self.upper.find(SECRET, INSIDE, SECRET_NAME)
        return found

    async def delete_secret(self) -> None:
        """Delete the Secret, as a user does."""
        found = (self.secret() or {})["metadata"]
        await self.upper.delete(Ref(UPPER, SECRET, INSIDE, SECRET_NAME), uid=found["uid"])

    def ca_bundle(self) -> bytes:
        """Return the CA bundle that is registered."""
        return bundle_in(self.registered() or {})

    async def call_webhook(self) -> str:
        """Call the webhook as an apiserver does, by its registration; return the URL."""
        (hook,) = (self.registered() or {})["webhooks"]
        await call(hook["clientConfig"]["url"], self.ca_bundle())
        return str(hook["clientConfig"]["url"])

    async def served_certificate(self) -> x509.Certificate:
        """Return the certificate that the webhook presents to a caller."""
        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=plain)
        found = x509.load_der_x509_certificate(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.close()
        await writer.wait_closed()
        return found

    def count_trusted_cas(self) -> int:
        """Return the number of certificates in the registered CA bundle."""
        return len(certificates_in(self.ca_bundle()))

    def advance(self, **passed: float) -> None:
        """Advance the clocks."""
        self.now += timedelta(**passed)
        self.monotonic_seconds += timedelta(**passed).total_seconds()


@asynccontextmanager
async def webhook_harness(directory: Path, upper: Any = None, inside: str = "") -> AsyncIterator[WebhookHarness]:
    """Yield a harness; at the end, its server is closed."""
    made = WebhookHarness(directory, spare_port(), upper, inside)
    try:
        yield made
    finally:
        await made.server.close()
        await made.watcher.close()
