"""Tests of every path and method for every identity: a real upper cluster's RBAC against the documented table."""

import asyncio
import json
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import kubelet_rights
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from kubelet_lab import HttpStream, NamedPods, RecordingLogger, leak_watch, request
from kubelet_pki import Identity, load
from kubelet_rights import ADMITTED, CALLERS, GROUPS, OTHER_NODE, TLS, WEBSOCKET, Caller, RightsCase

from tensile.kube.client import HttpCluster
from tensile.kube.credentials import from_kubeconfig
from tensile.kubelet.api import routes
from tensile.kubelet.api.auth import Authenticator, Authorizer
from tensile.kubelet.api.certificates import ClientCA, ServingCertificate, ServingFiles
from tensile.kubelet.api.server import KubeletServer, NodeEndpoint
from tensile.kubelet.api.service import RequestAuth
from tensile.objects import UPPER
from tensile.sandbox.credentials import Authority, authority

if TYPE_CHECKING:
    from pathlib import Path

    from tensile.sandbox.sandbox import Sandbox

AT_ONCE = 16
RBAC = "rbac.authorization.k8s.io"


class Credentials(NamedTuple):
    """The credentials of an identity: the TLS context of its connections, and the header fields of its requests."""

    tls: ssl.SSLContext
    fields: tuple[str, ...]


class CallersInCluster:
    """The identities of the table in a real upper cluster, with the rights that the table gives them."""

    def __init__(self, sandbox: "Sandbox") -> None:
        self.sandbox = sandbox
        self.name = f"rights-{uuid4().hex[:8]}"
        self.node = f"{self.name}-node"
        self.pki = sandbox.directory / "upper" / "pki"
        now = datetime.now(UTC)
        self._signers = {
            "certificate": self._signer(now),
            "ended certificate": self._signer(now - timedelta(days=400)),
            "bad certificate": authority("strangers", now),
        }

    def create(self) -> dict[str, Credentials]:
        """Create accounts and rights, and return the credentials of each identity by its title."""
        self._kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": self._all()}))
        return {each.title: self._shown(place, each) for place, each in enumerate(CALLERS)}

    def delete(self) -> None:
        """Delete all of them."""
        named = [str(item["metadata"]["name"]) for item in self._all() if item["kind"] == "ClusterRole"]
        bound = [str(item["metadata"]["name"]) for item in self._all() if item["kind"] == "ClusterRoleBinding"]
        self._kubectl("delete", "clusterrole", *named)
        self._kubectl("delete", "clusterrolebinding", *bound)
        self._kubectl("delete", "namespace", self.name, "--wait=false")

    def _signer(self, now: datetime) -> Authority:
        """Load the cluster's own CA, as of a given date."""
        certificate = x509.load_pem_x509_certificate((self.pki / "ca.crt").read_bytes())
        key = load_pem_private_key((self.pki / "ca.key").read_bytes(), None)
        return Authority(pair=None, name=certificate.subject, key=key, now=now)  # type: ignore[arg-type]

    def _all(self) -> list[dict[str, Any]]:
        items = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}}]
        for place, each in enumerate(CALLERS):
            if each.credential == "token":
                account = {"name": f"someone-{place}", "namespace": self.name}
                items.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
            if each.grants and not each.group:
                items += self._rights(place, each)
        return items

    def _rights(self, place: int, someone: Caller) -> Iterator[dict[str, Any]]:
        name = f"{self.name}-{place}"
        if not someone.role:
            rules = [self._rule(grant.verb, grant.subresources, someone.node) for grant in someone.grants]
            yield {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
        subject: dict[str, Any] = {"kind": "User", "name": name, "apiGroup": RBAC}
        if someone.credential == "token":
            subject = {"kind": "ServiceAccount", "name": f"someone-{place}", "namespace": self.name}
        yield {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": someone.role or name},
            "subjects": [subject],
        }

    def _rule(self, verb: str, subresources: tuple[str, ...], on: str) -> dict[str, Any]:
        resources = [f"nodes/{each}" if each else "nodes" for each in subresources]
        rule: dict[str, Any] = {"apiGroups": [""], "resources": resources, "verbs": [verb]}
        return rule | ({"resourceNames": [f"{self.name}-{OTHER_NODE}"]} if on else {})

    def _shown(self, place: int, someone: Caller) -> Credentials:
        tls = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        if someone.credential in self._signers:
            user, groups = someone.user or f"{self.name}-{place}", (someone.group,) if someone.group else ()
            pair = self._signers[someone.credential].issue(user, groups)
            load(tls, Identity(pair.certificate, pair.key))
        return Credentials(tls, self._fields(place, someone))

    def _fields(self, place: int, someone: Caller) -> tuple[str, ...]:
        if someone.credential == "bad token":
            return ("Authorization: Bearer x.y.z",)
        if someone.credential == "token":
            token = self._kubectl("-n", self.name, "create", "token", f"someone-{place}")
            return (f"Authorization: Bearer {token.strip()}",)
        return ()

    def _kubectl(self, *arguments: str, stdin: str = "") -> str:
        done = self.sandbox.kubectl(*arguments, cluster="upper", stdin=stdin)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)


@pytest.fixture(scope="module")
def people(sandbox: "Sandbox") -> Iterator[tuple[CallersInCluster, dict[str, Credentials]]]:
    """Create every identity of the table in the shared upper cluster."""
    made = CallersInCluster(sandbox)
    yield made, made.create()
    made.delete()


@asynccontextmanager
async def served(people: CallersInCluster) -> AsyncIterator[int]:
    """Serve one node without pods, with the reviews of the real cluster; yield its port."""
    directory: Path = people.sandbox.directory
    upper = HttpCluster(UPPER, await from_kubeconfig(directory / "upper.kubeconfig"))
    log = RecordingLogger()
    gate = RequestAuth(
        ServingCertificate(log, "127.0.0.1", ServingFiles(directory / "kubelet.crt", directory / "kubelet.key")),
        ClientCA(log, people.pki / "ca.crt"),
        Authenticator(upper, log),
        Authorizer(upper, log, clock=lambda: 60 * time.monotonic()),  # otherwise denials would exceed a user's limit
    )
    server = KubeletServer(gate, log)
    assert await server.serve({people.node: NodeEndpoint(("127.0.0.1", 0), NamedPods())}) == {}
    try:
        yield server.port(people.node)
    finally:
        await server.close()
        await upper.close()


async def request_outcome(port: int, shown: Credentials, case: RightsCase) -> tuple[str, int]:
    """Make one request, and return its outcome in the terms of the table and its status (0: no TLS)."""
    method = "GET" if case.method == WEBSOCKET else case.method
    upgrade = ("Connection: Upgrade", "Upgrade: websocket") if case.method == WEBSOCKET else ()
    try:
        stream = HttpStream(*await asyncio.open_connection("127.0.0.1", port, ssl=shown.tls))
    except OSError:
        return TLS, 0
    try:
        await stream.send(request(f"{method} {case.path}", *shown.fields, *upgrade))
        status = (await stream.head()).status
    except (OSError, asyncio.IncompleteReadError):
        return TLS, 0
    finally:
        await stream.close()
    return (str(status) if status in {401, 403} else ADMITTED), status


async def tried(people: CallersInCluster, everyone: dict[str, Credentials]) -> list[tuple[RightsCase, str, int]]:
    """Make every request of the table, several at a time."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(port: int, case: RightsCase) -> tuple[RightsCase, str, int]:
        async with places:
            return case, *await request_outcome(port, everyone[case.caller.title], case)

    async with leak_watch(), served(people) as port:
        return await asyncio.gather(*(one(port, case) for case in kubelet_rights.cases()))


@pytest.mark.real
def test_every_identity_gets_the_outcome_in_the_table(people: tuple[CallersInCluster, dict[str, Credentials]]) -> None:
    """Over 1,000 requests end as documented, and admitted ones get no 5xx, only 200, 400, 404 or 405."""
    found = asyncio.run(tried(*people))
    wrong = [
        f"{case.caller.title}: {case.method} {case.path}: {status}"
        for case, out, status in found
        if out != case.outcome
    ]
    assert wrong == []
    assert len(found) > 1000
    statuses = Counter(status for _, outcome, status in found if outcome == ADMITTED)
    assert set(statuses) <= {200, 400, 404, 405}
    assert statuses[200] > 0
    assert statuses[405] > 0


def test_every_route_is_in_the_table() -> None:
    """A path that is served, or has rights of its own, must be in the table."""
    stated = {path.partition("?")[0].split("/")[1] for group in GROUPS for path in group.paths}
    assert {area.split("/")[0] for area in (*routes.ROUTES, *routes.OWN_RIGHTS)} <= stated


def test_the_documentation_contains_the_tested_table() -> None:
    """The tables in the documentation are those that `python -m kubelet_rights` writes."""
    text = kubelet_rights.DOCUMENT.read_text()
    assert kubelet_rights.rewritten(text) == text
