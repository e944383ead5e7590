"""Renew the Lease of a virtual node, as a kubelet does.

The Lease is owned by the Node and deleted with it. It is renewed as long as the engine runs, whether or not the lower
cluster responds. An unreachable cluster is not a dead node, and an expired Lease would have its pods evicted.

A renewal has the resourceVersion of the one before it as its precondition, so it also finds a second engine that renews
the same Lease: two engines without leader election undo each other's changes, and neither sees it otherwise.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import orjson

from tensile.errors import ClusterError, Conflict, NotFound, Unreachable
from tensile.kube.cluster import Cluster, Patch
from tensile.names import ENGINE, LEASE_NAMESPACE, OTHER_ENGINE
from tensile.objects import LEASE, UPPER, Manifest, Ref, annotations, as_read

RENEW_SECONDS = 10.0
DURATION_SECONDS = 40
_RETRY_SECONDS = 1.0
_RENEWAL_TIMEOUT = 10.0
"""Seconds for one renewal, as in a kubelet: with the client's own timeout, a hanging request could cost the Lease."""
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"


class Heartbeat:
    """Renews the Lease of one node until it is cancelled.

    `engine` identifies this engine. `node_uid` returns the UID of our Node, "" while there is none; then nothing is
    written. `lost` is called with the first failure in a row, and with None when a renewal succeeds again. `shared` is
    called with the identity of another engine when that has renewed the Lease between two of our renewals twice in a
    row, and with "" when it no longer does: once is a leader election that has just changed hands.
    """

    def __init__(
        self,
        upper: Cluster,
        node: str,
        node_uid: Callable[[], str],
        now: Callable[[], datetime],
        lost: Callable[[str, ClusterError | None], None],
        *,
        engine: str,
        shared: Callable[[str], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._upper = upper
        self._ref = Ref(UPPER, LEASE, LEASE_NAMESPACE, node)
        self._node_uid = node_uid
        self._now = now
        self._on_failure = lost
        self._sleep = sleep
        self._is_failing = False
        self._engine = engine
        self._on_shared = shared
        self._lease: Manifest | None = None
        self._previous_engine = ""
        """The other engine that renewed the Lease before our last renewal, "" for none."""
        self._reported = ""

    async def run(self) -> None:
        """Renew the Lease every ten seconds, sooner after a failure and while the Node does not exist yet."""
        while True:
            await self._sleep(RENEW_SECONDS if await self.beat() else _RETRY_SECONDS)

    async def beat(self) -> bool:
        """Renew the Lease once, and report whether that succeeded."""
        node_uid = self._node_uid()
        if not node_uid:
            return False
        try:
            async with asyncio.timeout(_RENEWAL_TIMEOUT):
                await self._renew(node_uid)
        except TimeoutError:
            return self._report_failure(
                Unreachable(f"no response in {_RENEWAL_TIMEOUT:g} s", cluster=UPPER, doing=f"renew {self._ref}")
            )
        except ClusterError as error:
            return self._report_failure(error)
        if self._is_failing:
            self._is_failing = False
            self._on_failure(self._ref.name, None)
        return True

    def _report_failure(self, error: ClusterError) -> bool:
        if not self._is_failing:
            self._is_failing = True
            self._on_failure(self._ref.name, error)
        return False

    async def _renew(self, node_uid: str) -> None:
        """Patch the known Lease, else read it and patch it, else create it."""
        known, self._lease = self._lease, None
        try:
            before = known or await self._read()
            try:
                self._lease = await self._patched(before, node_uid)
            except Conflict:
                before = await self._read()
                if known is not None:
                    # First, so that the Lease names the other engine.
                    self._note_engine(annotations(before).get(ENGINE, ""))
                self._lease = await self._patched(before, node_uid)
            else:
                if known is not None:
                    self._note_engine(self._engine)
        except NotFound:
            lease = {"apiVersion": LEASE.api, "kind": LEASE.name, **self._body(node_uid)}
            self._lease = orjson.loads(await self._upper.create(self._ref, lease))

    async def _read(self) -> Manifest:
        found: Manifest = orjson.loads(await self._upper.read(self._ref))
        return found

    async def _patched(self, lease: Manifest, node_uid: str) -> Manifest:
        body = self._body(node_uid)
        patch = Patch("merge-patch", {**body, "metadata": {**body["metadata"], **as_read(lease)}})
        found: Manifest = orjson.loads(await self._upper.patch(self._ref, patch))
        return found

    def _note_engine(self, engine: str) -> None:
        """Record which engine renewed the Lease last before us, and report a change of what is to be reported."""
        other = "" if engine == self._engine else engine
        reported = other if self._previous_engine else ""
        self._previous_engine = other
        if reported != self._reported:
            self._reported = reported
            self._on_shared(reported)

    def _body(self, node_uid: str) -> Manifest:
        owner: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "name": self._ref.name, "uid": node_uid}
        return {
            "metadata": {
                "name": self._ref.name,
                "namespace": LEASE_NAMESPACE,
                "annotations": {ENGINE: self._engine, OTHER_ENGINE: self._reported or None},
                "ownerReferences": [owner],
            },
            "spec": {
                "holderIdentity": self._ref.name,
                "leaseDurationSeconds": DURATION_SECONDS,
                "renewTime": self._now().strftime(_TIME_FORMAT),
            },
        }
