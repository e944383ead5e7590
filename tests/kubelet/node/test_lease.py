"""Tests of the Lease of a virtual node: created for a Node of this topology, renewed continuously, and only for it."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from stagekit import FaultyCluster
from virtualtime import clock, in_virtual_time
from worldkit import A

from tensile.errors import ClusterError, Unreachable
from tensile.kube.cluster import Patch
from tensile.kubelet.node.lease import DURATION_SECONDS, RENEW_SECONDS, Heartbeat
from tensile.names import ENGINE, OTHER_ENGINE
from tensile.objects import LEASE, NAMESPACE, UPPER, Manifest, Ref, annotations, metadata, uid

REF = Ref(UPPER, LEASE, "kube-node-lease", A)
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class Hanging(FaultyCluster):
    """A cluster that does not answer writes while it `hangs`."""

    hangs = False

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Patch, or never return."""
        if self.hangs:
            await asyncio.sleep(3600)
        return await super().patch(ref, patch, subresource)


class HeartbeatUnderTest:
    """A heartbeat with an upper cluster in memory, a settable time and Node UID, and a list of reported failures."""

    def __init__(self) -> None:
        self.now = NOW
        self.node = "node-1"
        self.lost: list[tuple[str, ClusterError | None]] = []
        self.others: list[str] = []
        self.upper = Hanging(UPPER, ends_pods=False, now=lambda: self.now)
        self.upper.place(NAMESPACE, {"metadata": {"name": "kube-node-lease"}})
        self.heartbeat = self.made()

    def made(self, **more: Any) -> Heartbeat:
        """Return a new heartbeat, as an engine that starts creates it."""
        given = {"engine": "first", "shared": self.others.append, **more}
        return Heartbeat(self.upper, A, lambda: self.node, lambda: self.now, self.complain, **given)

    def complain(self, node: str, error: ClusterError | None) -> None:
        """Record a report of the heartbeat."""
        self.lost.append((node, error))

    @property
    def lease(self) -> Manifest:
        """Return the current Lease."""
        found = self.upper.find(LEASE, REF.namespace, REF.name)
        assert found is not None
        return found


async def test_the_lease_is_created_with_the_node_as_its_owner() -> None:
    """It is deleted with the Node, and contains its holder, duration and time of renewal."""
    bench = HeartbeatUnderTest()
    assert await bench.heartbeat.beat()
    (owner,) = metadata(bench.lease)["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Node", "name": A, "uid": "node-1"}
    spec = bench.lease["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == (A, DURATION_SECONDS)
    assert spec["renewTime"] == "2026-03-01T12:00:00.000000Z"


@in_virtual_time
async def test_a_hanging_renewal_is_aborted_before_the_lease_expires() -> None:
    """It is reported as Unreachable, and the next renewal succeeds if the cluster answers."""
    bench = HeartbeatUnderTest()
    await bench.heartbeat.beat()
    bench.upper.hangs = True
    begin = clock()
    assert not await bench.heartbeat.beat()
    assert clock() - begin == RENEW_SECONDS
    ((node, error),) = bench.lost
    assert node == A
    assert isinstance(error, Unreachable)
    bench.upper.hangs = False
    assert await bench.heartbeat.beat()
    assert 2 * RENEW_SECONDS + 1 < DURATION_SECONDS


async def test_the_lease_is_renewed_by_one_write() -> None:
    """The renewal writes only one patch, and the Lease keeps its UID."""
    bench = HeartbeatUnderTest()
    await bench.heartbeat.beat()
    first = uid(bench.lease)
    bench.now = NOW.replace(second=10)
    bench.upper.writes.clear()
    assert await bench.heartbeat.beat()
    assert bench.upper.writes == [("patch", REF)]
    assert (bench.lease["spec"]["renewTime"], uid(bench.lease)) == ("2026-03-01T12:00:10.000000Z", first)


async def test_a_new_engine_continues_the_existing_lease() -> None:
    """The Lease is not created again, and its owner becomes the new Node if the Node was recreated."""
    bench = HeartbeatUnderTest()
    await bench.heartbeat.beat()
    first, bench.node = uid(bench.lease), "node-2"
    assert await bench.made().beat()
    assert uid(bench.lease) == first
    assert [owner["uid"] for owner in metadata(bench.lease)["ownerReferences"]] == ["node-2"]


async def test_no_lease_is_written_without_a_node_of_this_topology() -> None:
    """A Node of another owner has its own kubelet, which renews its own Lease."""
    bench = HeartbeatUnderTest()
    bench.node = ""
    assert not await bench.heartbeat.beat()
    assert bench.upper.writes == []


@pytest.mark.parametrize("recreated", [True, False])
async def test_a_deleted_lease_is_created_again(*, recreated: bool) -> None:
    """A Lease that another client created in its place is renewed instead."""
    bench = HeartbeatUnderTest()
    await bench.heartbeat.beat()
    bench.upper.vanish(REF)
    if recreated:
        bench.upper.place(LEASE, {"metadata": {"name": A, "namespace": REF.namespace}, "spec": {}})
    await bench.heartbeat.beat()
    assert await bench.heartbeat.beat()
    assert bench.lease["spec"]["holderIdentity"] == A


async def test_only_the_first_failure_in_a_row_and_its_end_are_reported() -> None:
    """Reports of each failure would fill the log while the upper cluster is down."""
    bench = HeartbeatUnderTest()
    await bench.heartbeat.beat()
    bench.upper.is_down = True
    assert [await bench.heartbeat.beat() for _ in range(3)] == [False] * 3
    ((node, error),) = bench.lost
    assert node == A
    assert isinstance(error, Unreachable)
    bench.upper.is_down = False
    assert await bench.heartbeat.beat()
    assert bench.lost[1:] == [(A, None)]
    bench.upper.is_down = True
    await bench.heartbeat.beat()
    assert len(bench.lost) == 3


async def test_two_engines_detect_each_other() -> None:
    """Each engine that sees another renew the same Lease reports it once, and reports when that has ended."""
    bench, seen = HeartbeatUnderTest(), []
    second = bench.made(engine="second", shared=seen.append)
    for _ in range(3):
        assert await bench.heartbeat.beat()
        assert await second.beat()
    assert (bench.others, seen) == (["second"], ["first"])
    assert annotations(bench.lease) == {ENGINE: "second", OTHER_ENGINE: "first"}
    assert await second.beat()
    assert (bench.others, seen) == (["second"], ["first", ""])
    assert await second.beat()
    assert annotations(bench.lease) == {ENGINE: "second"}


async def test_an_engine_that_takes_over_is_not_reported_as_a_second_engine() -> None:
    """This holds even if the former leader renews the Lease once more before it notices the loss."""
    bench, seen = HeartbeatUnderTest(), []
    await bench.heartbeat.beat()
    second = bench.made(engine="second", shared=seen.append)
    await second.beat()
    await bench.heartbeat.beat()
    for _ in range(3):
        await second.beat()
    assert bench.others == seen == []


async def test_another_writer_of_the_lease_is_not_reported_as_an_engine() -> None:
    """A user may annotate the Lease, and it is still renewed."""
    bench = HeartbeatUnderTest()
    for number in range(3):
        assert await bench.heartbeat.beat()
        await bench.upper.patch(REF, Patch("merge-patch", {"metadata": {"annotations": {"note": str(number)}}}))
    assert bench.others == []


class ObservedEnough(Exception):
    """The test has observed enough."""


@in_virtual_time
async def test_the_lease_is_renewed_every_ten_seconds_and_sooner_after_a_failure() -> None:
    """A single lost request then does not cost half of the Lease's duration."""
    bench, slept = HeartbeatUnderTest(), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        bench.upper.is_down = len(slept) in (2, 3)
        if len(slept) == 5:
            raise ObservedEnough

    with pytest.raises(ObservedEnough):
        await bench.made(sleep=sleep).run()
    assert slept == [RENEW_SECONDS, RENEW_SECONDS, 1.0, 1.0, RENEW_SECONDS]
    assert clock() == 0.0
    assert RENEW_SECONDS * 2 < DURATION_SECONDS
