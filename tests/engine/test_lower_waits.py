"""Tests of what a lower with its kubeconfig in a Secret requires of the upper cluster before it is connected."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from certkit import kubeconfig
from scripted import (
    WAIT,
    ChangeSignal,
    RecordedRequest,
    ScriptedApiserver,
    ServerAction,
    access_to,
    listing,
    refusal,
    running,
)
from worldkit import make_object

from tensile.engine.caches import upper_feeds, upper_world
from tensile.engine.lower import ClusterAccess, LowerConnection, placeholder_spec
from tensile.kube.fleet import Fleet
from tensile.kube.health import ADVICE
from tensile.kube.limits import InformerTimings
from tensile.kubelet.pods.rule import UNREACHABLE_AFTER
from tensile.names import owner_of
from tensile.objects import UPPER, Manifest
from tensile.reconcile.world import World
from tensile.topology import Topology, parse

A = "lower-a"
TOPOLOGY = parse(f"""
apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: demo
controllers: [RBAC, ServiceAccount]
lowers:
- name: {A}
  kubeconfigSecret: {{namespace: ops, name: {A}}}
  unreachable: {{evictAfter: 10m}}
""")
BY_FILE = parse("""
apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: demo
lowers:
- {name: lower-a, kubeconfig: later}
""")
HERE = Path()
NOBODY = "https://127.0.0.1:1"
"""An address on which no program listens."""
QUICK = InformerTimings(first=0.001, cap=0.002, near=0.002, shortest=60, longest=60, settled=0.0)


class DenyingApiserver(ScriptedApiserver):
    """An upper apiserver that has the Secret, and denies lists of the kinds in `closed`."""

    def __init__(self, closed: Iterable[str]) -> None:
        super().__init__()
        self.closed = set(closed)

    def _ordinary(self, request: RecordedRequest) -> ServerAction:
        plural = request.path.rpartition("/")[2]
        if plural in self.closed:
            return refusal(403, "Forbidden")
        return listing(20, secret()) if (request.sort, plural) == ("list", "secrets") else super()._ordinary(request)


def secret() -> Manifest:
    """Return the Secret with the kubeconfig of an unreachable cluster."""
    text = kubeconfig({"token": "t"}, server=NOBODY)
    meta = {"namespace": "ops", "name": A, "uid": "s", "resourceVersion": "5"}
    return {"metadata": meta, "data": {"kubeconfig": b64encode(text.encode()).decode()}}


class OpeningLower:
    """A lower that joins an upper cluster; `ahead` is the number of seconds by which its clock is ahead."""

    def __init__(self, *closed: str, topology: Topology = TOPOLOGY, directory: Path = HERE) -> None:
        self.topology = topology
        self.directory = directory
        self.server = DenyingApiserver(closed)
        self.news = ChangeSignal()
        self.ahead = 0.0
        self.fleet = Fleet(
            chance=self.news.fixed_random, pace=QUICK, clock=lambda: asyncio.get_running_loop().time() + self.ahead
        )
        self.joined: LowerConnection

    async def join(self) -> None:
        """Connect to the upper cluster, and begin with the lower."""
        self.fleet.open(UPPER, access_to(self.server.port))
        owner = owner_of(await self.fleet[UPPER].identified(), self.topology.name)
        world = World(self.topology, owner, upper_world(), datetime.now(UTC))
        for feed in upper_feeds(world.upper, owner, self.topology.enabled):
            self.fleet.follow(feed)
        self.joined = LowerConnection(
            world, self.fleet, ClusterAccess(self.directory), lambda: datetime.now(UTC), self.news.notify
        )
        self.joined.begin(self.topology.lowers[0])

    @property
    def is_open(self) -> bool:
        """Report whether a connection to the lower cluster exists."""
        return A in self.fleet

    def look(self, ahead: float = 0.0) -> tuple[bool, bool]:
        """Check the lower after some time, and report whether it was attempted and unreachable for evictAfter."""
        self.ahead += ahead
        self.joined.refresh()
        lower = self.joined.lower
        limit = lower.spec.unreachable.evict_after
        assert limit is not None
        return lower.silence_is_evidence, timedelta(seconds=lower.unreachable_seconds) >= limit


@asynccontextmanager
async def ground(*closed: str, **options: Any) -> AsyncIterator[OpeningLower]:
    """Join a lower to an upper cluster that denies some kinds; every attempt of a list wakes the test."""
    made = OpeningLower(*closed, **options)
    async with running(made.server), asyncio.timeout(2 * WAIT):
        await made.join()
        try:
            yield made
        finally:
            await made.joined.end()
            await made.fleet.close_all()


@pytest.mark.parametrize("plural", ["roles", "rolebindings", "serviceaccounts", "configmaps", "namespaces"])
async def test_a_lower_is_connected_although_a_list_that_it_does_not_need_is_denied(plural: str) -> None:
    """A missing permission only affects what needs it, and not every lower."""
    async with ground(plural) as opening_lower:
        await opening_lower.news.wait_until(lambda: opening_lower.is_open)
        await opening_lower.news.wait_until(lambda: opening_lower.fleet[UPPER].denied)
        opening_lower.look()
        assert opening_lower.joined.lower.access_error == ""


@pytest.mark.parametrize(("plural", "kind"), [("secrets", "Secret"), ("nodes", "Node")])
async def test_a_lower_is_not_connected_while_a_list_that_it_needs_is_denied(plural: str, kind: str) -> None:
    """The denial is the lower's refusal, which its node shows; once permitted, the lower is connected."""
    async with ground(plural) as opening_lower:
        message = f"upper: list {kind}: denied: words about Forbidden: {ADVICE}"
        await opening_lower.news.wait_until(lambda: opening_lower.joined.lower.access_error == message)
        opening_lower.look()
        assert (opening_lower.is_open, opening_lower.joined.lower.access_error) == (False, message)
        opening_lower.server.closed.clear()
        await opening_lower.news.wait_until(lambda: opening_lower.is_open)
        await opening_lower.news.wait_until(lambda: opening_lower.joined.lower.access_error == "")


async def test_a_cluster_counts_as_unreachable_from_the_first_attempt_to_connect() -> None:
    """No request is sent before its credentials are known; a cluster that never responds counts too."""
    async with ground("secrets") as opening_lower:
        await opening_lower.news.wait_until(lambda: opening_lower.joined.lower.access_error)
        assert opening_lower.look(3600.0)[0] is False
        opening_lower.server.closed.clear()
        await opening_lower.news.wait_until(lambda: opening_lower.is_open)
        assert opening_lower.look() == (False, False)
        assert opening_lower.look(UNREACHABLE_AFTER + 1) == (True, False)
        assert opening_lower.look(560.0) == (True, True)


async def test_a_lower_is_connected_once_its_credential_files_exist(tmp_path: Path) -> None:
    """First the kubeconfig appears, then the token file that it names, and each is read then."""
    async with ground(topology=BY_FILE, directory=tmp_path) as opening_lower:
        await opening_lower.news.wait_until(lambda: "later: cannot be read" in opening_lower.joined.lower.access_error)
        (tmp_path / "later").write_text(kubeconfig({"tokenFile": "token"}, server=NOBODY))
        await opening_lower.news.wait_until(lambda: "token: cannot be read" in opening_lower.joined.lower.access_error)
        (tmp_path / "token").write_text("t")
        await opening_lower.news.wait_until(lambda: opening_lower.is_open)
        assert opening_lower.joined.lower.access_error == ""


async def test_a_changed_kubeconfig_secret_is_used() -> None:
    """An invalid kubeconfig is reported as a warning, and the last good connection is kept."""
    async with ground() as opening_lower:
        secrets = opening_lower.joined._world.upper.secrets
        await opening_lower.news.wait_until(lambda: opening_lower.is_open)

        def become(text: str, version: int) -> None:
            """Deliver another version of the Secret by the watch."""
            found = secret()
            found["metadata"]["resourceVersion"] = str(version)
            found["data"]["kubeconfig"] = b64encode(text.encode()).decode()
            secrets.put(orjson.dumps(found))

        become("clusters: [", 21)
        await opening_lower.news.wait_until(
            lambda: "the last good connection is kept" in opening_lower.joined.lower.warning
        )
        become(kubeconfig({"token": "other"}, server=NOBODY), 22)
        await opening_lower.news.wait_until(
            lambda: opening_lower.fleet[A].cluster.access.headers["Authorization"] == "Bearer other"
        )
        await opening_lower.news.wait_until(lambda: opening_lower.joined.lower.warning == "")
    assert not secrets._sync_listeners or opening_lower.joined._secret_changed.set not in secrets._sync_listeners


async def test_a_lower_of_which_only_the_node_is_left_does_not_count_as_unreachable() -> None:
    """No request is sent to its cluster, so an alert about missing responses would be wrong."""
    async with ground() as opening_lower:
        world = opening_lower.joined._world
        stray = LowerConnection(
            world, opening_lower.fleet, ClusterAccess(HERE), lambda: datetime.now(UTC), lambda _name: None
        )
        stray.begin(placeholder_spec(make_object("Node", "edge-1", "")), connect=False)
        stray._begun_at -= 3600.0
        stray.refresh()
        assert stray.lower.unreachable_seconds == 0
        await stray.end()
