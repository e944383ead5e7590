"""The lease of a virtual node: made for our Node, renewed for ever, and never for anybody else's."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from stagekit import FaultyCluster
from virtualtime import clock, in_virtual_time
from worldkit import A

from tensile.errors import ClusterError, Unreachable
from tensile.kube.cluster import Patch
from tensile.kubelet.node.lease import DURATION, RENEW, Heartbeat
from tensile.names import ENGINE, OTHER_ENGINE
from tensile.objects import LEASE, NAMESPACE, UPPER, Manifest, Ref, annotations, metadata, uid

REF = Ref(UPPER, LEASE, "kube-node-lease", A)
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class Hanging(FaultyCluster):
    """A cluster that does not answer writes while it `hangs`."""

    hangs = False

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Patch, or never end."""
        if self.hangs:
            await asyncio.sleep(3600)
        return await super().patch(ref, patch, subresource)


class HeartbeatUnderTest:
    """A heartbeat on an upper cluster in memory: its time is `now`, its Node's UID `node`; it complains to `lost`."""

    def __init__(self) -> None:
        self.now = NOW
        self.node = "node-1"
        self.lost: list[tuple[str, ClusterError | None]] = []
        self.others: list[str] = []
        self.upper = Hanging(UPPER, ends_pods=False, now=lambda: self.now)
        self.upper.place(NAMESPACE, {"metadata": {"name": "kube-node-lease"}})
        self.heartbeat = self.made()

    def made(self, **more: Any) -> Heartbeat:
        """Make a heartbeat, as an engine that starts does."""
        given = {"engine": "first", "shared": self.others.append, **more}
        return Heartbeat(self.upper, A, lambda: self.node, lambda: self.now, self.complain, **given)

    def complain(self, node: str, error: ClusterError | None) -> None:
        """Note what the heartbeat says of itself."""
        self.lost.append((node, error))

    @property
    def lease(self) -> Manifest:
        """The lease as it is."""
        found = self.upper.find(LEASE, REF.namespace, REF.name)
        assert found is not None
        return found


async def test_the_lease_is_made_for_our_node() -> None:
    """It goes with the Node, and says who holds it and for how long."""
    bench = HeartbeatUnderTest()
    assert await bench.heartbeat.beat()
    (owner,) = metadata(bench.lease)["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Node", "name": A, "uid": "node-1"}
    spec = bench.lease["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == (A, DURATION)
    assert spec["renewTime"] == "2026-03-01T12:00:00.000000Z"


@in_virtual_time
async def test_a_renewal_that_hangs_is_given_up_before_the_lease_has_run_out() -> None:
    """It is told, and tried again a second later."""
    bench = HeartbeatUnderTest()
    await bench.heartbeat.beat()
    bench.upper.hangs = True
    begin = clock()
    assert not await bench.heartbeat.beat()
    assert clock() - begin == RENEW
    ((node, error),) = bench.lost
    assert node == A
    assert isinstance(error, Unreachable)
    bench.upper.hangs = False
    assert await bench.heartbeat.beat()
    assert 2 * RENEW + 1 < DURATION


async def test_the_lease_is_renewed_by_one_write() -> None:
    """With its UID, so that one that was made anew meanwhile is looked at first."""
    bench = HeartbeatUnderTest()
    await bench.heartbeat.beat()
    first = uid(bench.lease)
    bench.now = NOW.replace(second=10)
    bench.upper.writes.clear()
    assert await bench.heartbeat.beat()
    assert bench.upper.writes == [("patch", REF)]
    assert (bench.lease["spec"]["renewTime"], uid(bench.lease)) == ("2026-03-01T12:00:10.000000Z", first)


async def test_an_engine_that_starts_goes_on_with_the_lease_that_is_there() -> None:
    """It is found, not made again; and it becomes the new Node's when the Node was made anew."""
    bench = HeartbeatUnderTest()
    await bench.heartbeat.beat()
    first, bench.node = uid(bench.lease), "node-2"
    assert await bench.made().beat()
    assert uid(bench.lease) == first
    assert [owner["uid"] for owner in metadata(bench.lease)["ownerReferences"]] == ["node-2"]


async def test_without_our_node_nothing_is_written() -> None:
    """Another's Node of that name has a kubelet of its own, which renews its own lease."""
    bench = HeartbeatUnderTest()
    bench.node = ""
    assert not await bench.heartbeat.beat()
    assert bench.upper.writes == []


@pytest.mark.parametrize("anew", [True, False])
async def test_a_lease_that_went_is_made_again(*, anew: bool) -> None:
    """Also where somebody made another in its place: that one is then renewed."""
    bench = HeartbeatUnderTest()
    await bench.heartbeat.beat()
    bench.upper.vanish(REF)
    if anew:
        bench.upper.place(LEASE, {"metadata": {"name": A, "namespace": REF.namespace}, "spec": {}})
    await bench.heartbeat.beat()
    assert await bench.heartbeat.beat()
    assert bench.lease["spec"]["holderIdentity"] == A


async def test_the_first_failure_of_a_row_is_told_and_its_end() -> None:
    """Not each: an upper cluster that is down would fill the log."""
    bench = HeartbeatUnderTest()
    await bench.heartbeat.beat()
    bench.upper.down = True
    assert [await bench.heartbeat.beat() for _ in range(3)] == [False] * 3
    ((node, error),) = bench.lost
    assert node == A
    assert isinstance(error, Unreachable)
    bench.upper.down = False
    assert await bench.heartbeat.beat()
    assert bench.lost[1:] == [(A, None)]
    bench.upper.down = True
    await bench.heartbeat.beat()
    assert len(bench.lost) == 3


async def test_two_engines_find_each_other() -> None:
    """Each sees that the other renews the same lease, says so once, and says when it has ended."""
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


async def test_an_engine_that_takes_over_is_no_second_one() -> None:
    """Neither after the other has ended, nor when that one renews the lease once more before it sees that it lost."""
    bench, seen = HeartbeatUnderTest(), []
    await bench.heartbeat.beat()
    second = bench.made(engine="second", shared=seen.append)
    await second.beat()
    await bench.heartbeat.beat()
    for _ in range(3):
        await second.beat()
    assert bench.others == seen == []


async def test_another_writer_of_the_lease_is_no_engine() -> None:
    """Such as a person who annotates it; it is renewed all the same."""
    bench = HeartbeatUnderTest()
    for number in range(3):
        assert await bench.heartbeat.beat()
        await bench.upper.patch(REF, Patch("merge-patch", {"metadata": {"annotations": {"note": str(number)}}}))
    assert bench.others == []


class Enough(Exception):
    """The test has seen enough."""


@in_virtual_time
async def test_it_beats_every_ten_seconds_and_sooner_while_it_fails() -> None:
    """So that one lost request does not cost half of the lease."""
    bench, slept = HeartbeatUnderTest(), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        bench.upper.down = len(slept) in (2, 3)
        if len(slept) == 5:
            raise Enough

    with pytest.raises(Enough):
        await bench.made(sleep=sleep).run()
    assert slept == [RENEW, RENEW, 1.0, 1.0, RENEW]
    assert clock() == 0.0
    assert RENEW * 2 < DURATION
