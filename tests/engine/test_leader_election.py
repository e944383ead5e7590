"""Tests of leader election: one engine of a topology leads, the others wait for the end of its lease."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from electionkit import leading
from stagekit import FaultyCluster
from virtualtime import clock, in_virtual_time
from worldkit import OWNER_HERE as OWNER

from tensile.engine.leader_election import Election, LeaseTimings, active_holder, lease_ref, new_lease, warn_of_leader
from tensile.errors import Denied
from tensile.kube.cluster import Patch
from tensile.objects import LEASE, NAMESPACE, UPPER, Manifest, Ref, metadata, uid

PACE = LeaseTimings()
REF = lease_ref("demo")
BEGIN = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SKEW = timedelta(hours=1)
"""Difference of the clocks of two engines: nothing may depend on it."""


class SlowUpperCluster(FaultyCluster):
    """An upper cluster with `takes` seconds for each write, and `thinks` seconds for each read.

    Reads are denied while it is `hidden`.
    """

    takes = thinks = 0.0
    hidden = False

    async def read(self, ref: Ref) -> bytes:
        """Read an object after a delay."""
        await asyncio.sleep(self.thinks)
        if self.hidden:
            raise Denied("leases is forbidden", status=403)
        return await super().read(ref)

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Create an object, and respond after a delay."""
        found = await super().create(ref, body)
        await asyncio.sleep(self.takes)
        return found

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Patch an object, and respond after a delay."""
        found = await super().patch(ref, patch, subresource)
        await asyncio.sleep(self.takes)
        return found


class Candidates:
    """An upper cluster in memory, and engines that try to become its leader."""

    def __init__(self) -> None:
        self.upper = SlowUpperCluster(UPPER, ends_pods=False, now=lambda: BEGIN)
        self.upper.place(NAMESPACE, {"metadata": {"name": REF.namespace}})
        self.engines = 0

    def engine(self) -> Election:
        """Create another engine, whose clock is an hour ahead of that of the previous one."""
        self.engines += 1
        ahead = SKEW * self.engines
        return Election(
            self.upper, REF, lambda: OWNER, f"engine-{self.engines}", lambda: BEGIN + ahead + timedelta(seconds=clock())
        )

    @property
    def lease(self) -> Manifest:
        """Return the lease."""
        found = self.upper.find(LEASE, REF.namespace, REF.name)
        assert found is not None
        return found

    @property
    def holder(self) -> str:
        """Return the holder of the lease."""
        return str(self.lease["spec"]["holderIdentity"])

    async def write(self, body: Manifest) -> None:
        """Change the lease as another client."""
        await self.upper.patch(REF, Patch("merge-patch", {"metadata": {"uid": uid(self.lease)}, **body}))


@in_virtual_time
async def test_the_first_engine_leads_at_once() -> None:
    """It creates the lease with the owner marks, its name, the times and the duration."""
    candidates = Candidates()
    await candidates.engine().acquire()
    assert clock() == 0
    spec = candidates.lease["spec"]
    assert (candidates.holder, spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("engine-1", 15, 0)
    assert spec["acquireTime"] == spec["renewTime"] == "2026-03-01T13:00:00.000000Z"
    assert metadata(candidates.lease)["labels"]["tensile-kube.io/owner"] == OWNER.mark


@in_virtual_time
async def test_a_second_engine_waits_while_the_lease_is_renewed() -> None:
    """It does so for an hour, whatever the two clocks show."""
    candidates = Candidates()
    async with leading(candidates.engine()):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await candidates.engine().acquire()
        assert candidates.holder == "engine-1"


@in_virtual_time
async def test_a_released_lease_is_acquired_at_the_next_attempt() -> None:
    """Another engine leads within two seconds, and the transition is counted."""
    candidates = Candidates()
    first, second = candidates.engine(), candidates.engine()
    async with leading(first):
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(5)
    await first.release_lease()
    gone = clock()
    await waiting
    assert clock() - gone <= PACE.retry_period
    assert (candidates.holder, candidates.lease["spec"]["leaseTransitions"]) == ("engine-2", 1)
    assert (first.leads, second.leads) == (False, True)


@in_virtual_time
async def test_a_lease_is_released_although_the_response_to_a_renewal_was_lost() -> None:
    """An engine that stops during a renewal knows an older resourceVersion than the present one."""
    candidates = Candidates()
    engine = candidates.engine()
    async with leading(engine):
        await candidates.write({"spec": {"renewTime": "2026-03-01T13:00:01.000000Z"}})
    await engine.release_lease()
    assert candidates.holder == ""


@in_virtual_time
async def test_the_lease_of_a_dead_leader_is_acquired_once_it_has_expired() -> None:
    """It expires 15 seconds after the last observed renewal, and is acquired within two more seconds."""
    candidates = Candidates()
    async with leading(candidates.engine()):
        waiting = asyncio.create_task(candidates.engine().acquire())
        await asyncio.sleep(5)
    gone = clock()
    await waiting
    assert PACE.lease_duration - PACE.retry_period <= clock() - gone <= PACE.lease_duration + PACE.retry_period
    assert candidates.holder == "engine-2"


@in_virtual_time
async def test_a_leader_that_cannot_renew_its_lease_stops_before_it_expires() -> None:
    """It stops ten seconds after its last renewal, so that five seconds remain for that."""
    candidates = Candidates()
    async with leading(candidates.engine()) as ended:
        await asyncio.sleep(20)
        candidates.upper.is_down = True
        down = clock()
        why = await ended
        assert PACE.renew_deadline - PACE.retry_period <= clock() - down <= PACE.renew_deadline
    assert "not renewed for 10 s" in why
    assert "no answer" in why


@in_virtual_time
async def test_a_renewal_that_hangs_does_not_delay_the_loss_of_leadership() -> None:
    """The leader stops at the same time as if renewals were refused."""
    candidates = Candidates()
    async with leading(candidates.engine()) as ended:
        await asyncio.sleep(1)
        candidates.upper.takes = 3600
        await ended
        assert clock() == PACE.renew_deadline


@in_virtual_time
async def test_a_lease_is_valid_from_the_time_of_its_request() -> None:
    """Other engines observe the change as soon as it is written, however late the response is."""
    candidates = Candidates()
    candidates.upper.takes = 8
    engine = candidates.engine()
    await engine.acquire()
    candidates.upper.is_down = True
    await engine.renew_until_lost()
    assert clock() == PACE.renew_deadline


@in_virtual_time
async def test_a_short_outage_does_not_end_the_leadership() -> None:
    """A failed renewal is retried two seconds later."""
    candidates = Candidates()
    async with leading(candidates.engine()) as ended:
        candidates.upper.is_down = True
        await asyncio.sleep(7)
        candidates.upper.is_down = False
        await asyncio.sleep(60)
        assert not ended.done()


@in_virtual_time
async def test_one_renewal_that_hangs_does_not_end_the_leadership() -> None:
    """It times out early enough for further attempts."""
    candidates = Candidates()
    async with leading(candidates.engine()) as ended:
        await asyncio.sleep(1)
        candidates.upper.takes = 3600
        await asyncio.sleep(3)
        candidates.upper.takes = 0.0
        await asyncio.sleep(60)
        assert not ended.done()
        assert candidates.holder == "engine-1"


@in_virtual_time
async def test_an_engine_that_stops_before_its_acquisition_is_confirmed_releases_the_lease() -> None:
    """Its write may have succeeded, and other engines would have to wait until that lease expires."""
    candidates = Candidates()
    candidates.upper.takes = 5
    engine = candidates.engine()
    winning = asyncio.create_task(engine.acquire())
    await asyncio.sleep(1)
    winning.cancel()
    await asyncio.gather(winning, return_exceptions=True)
    assert candidates.holder == "engine-1"
    candidates.upper.takes = 0.0
    await engine.release_lease()
    assert candidates.holder == ""


@in_virtual_time
async def test_an_engine_that_stops_during_an_acquisition_keeps_the_lease_of_another_holder() -> None:
    """Another engine has acquired the lease since, so it is not released."""
    candidates = Candidates()
    candidates.upper.takes = 5
    engine = candidates.engine()
    winning = asyncio.create_task(engine.acquire())
    await asyncio.sleep(1)
    winning.cancel()
    await asyncio.gather(winning, return_exceptions=True)
    await candidates.write({"spec": {"holderIdentity": "another"}})
    await engine.release_lease()
    assert candidates.holder == "another"


@in_virtual_time
async def test_a_leader_stops_if_another_engine_holds_its_lease() -> None:
    """An engine that was paused learns this at its next renewal, reports the holder and does not release the lease."""
    candidates = Candidates()
    engine = candidates.engine()
    async with leading(engine) as ended:
        await candidates.write({"spec": {"holderIdentity": "another"}})
        assert await ended == "another holds the lease"
    assert not engine.leads
    assert clock() <= PACE.retry_period
    await engine.release_lease()
    assert candidates.holder == "another"


@in_virtual_time
async def test_another_change_of_the_lease_does_not_end_the_leadership() -> None:
    """A label that another client adds only makes one renewal fail."""
    candidates = Candidates()
    async with leading(candidates.engine()) as ended:
        await candidates.write({"metadata": {"uid": uid(candidates.lease), "labels": {"a": "b"}}})
        await asyncio.sleep(61)
        assert not ended.done()
    assert metadata(candidates.lease)["labels"]["a"] == "b"
    assert candidates.lease["spec"]["renewTime"] == "2026-03-01T13:01:00.000000Z"


@in_virtual_time
async def test_a_deleted_lease_ends_the_leadership() -> None:
    """Another engine may have created it and lost it again since, which cannot be known."""
    candidates = Candidates()
    async with leading(candidates.engine()) as ended:
        await candidates.upper.delete(REF, uid=uid(candidates.lease))
        assert await ended == "no engine holds the lease"


FORGED = {
    "no duration": {"leaseDurationSeconds": None},
    "a short one": {"leaseDurationSeconds": 1},
    "an old renewal": {"renewTime": "1999-01-01T00:00:00.000000Z"},
    "a renewal to come": {"renewTime": "2999-01-01T00:00:00.000000Z"},
    "ten years": {"leaseDurationSeconds": 2147483647},
    "no renewal": {"renewTime": None, "acquireTime": None},
    "the other's name": {"holderIdentity": "engine-2"},
}


@pytest.mark.parametrize("spec", FORGED.values(), ids=FORGED.keys())
@in_virtual_time
async def test_no_forged_lease_makes_two_engines_lead(spec: Manifest) -> None:
    """The forged value is written every half a second beside a leader and an engine that waits."""
    candidates = Candidates()
    async with leading(candidates.engine()) as ended:
        await asyncio.sleep(PACE.retry_period / 2)
        second = candidates.engine()
        waiting = asyncio.create_task(second.acquire())
        for _ in range(100):
            await candidates.write({"spec": spec})
            await asyncio.sleep(0.5)
            assert ended.done() or not second.leads
        waiting.cancel()


@pytest.mark.parametrize("spec", [{"leaseDurationSeconds": 2147483647}, {"leaseTransitions": 2147483647}])
@in_virtual_time
async def test_no_forged_lease_prevents_its_acquisition(spec: Manifest) -> None:
    """The lease of a dead leader is acquired within about a minute by a write that the API accepts."""
    candidates = Candidates()
    async with leading(candidates.engine()):
        await candidates.write({"spec": spec})
    waiting = asyncio.create_task(candidates.engine().acquire())
    async with asyncio.timeout(62):
        await waiting
    assert candidates.holder == "engine-2"
    assert candidates.lease["spec"]["leaseTransitions"] < 1 << 31


@in_virtual_time
async def test_a_deleted_lease_is_not_created_again_before_it_would_have_expired() -> None:
    """Its former holder leads until its next renewal, which can be slow."""
    candidates = Candidates()
    candidates.upper.takes = 3
    async with leading(candidates.engine()) as ended:
        second = candidates.engine()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(5)
        await candidates.upper.delete(REF, uid=uid(candidates.lease))
        gone = clock()
        await ended
        assert not second.leads
        await waiting
    assert PACE.lease_duration <= clock() - gone <= PACE.lease_duration + 2 * PACE.retry_period + candidates.upper.takes
    assert candidates.holder == "engine-2"


@in_virtual_time
async def test_one_of_two_engines_that_start_at_once_leads() -> None:
    """The other one finds the lease created or changed, and waits."""
    candidates = Candidates()
    engines = [candidates.engine(), candidates.engine()]
    tasks = [asyncio.create_task(engine.acquire()) for engine in engines]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert [engine.leads for engine in engines].count(True) == 1
    for task in tasks:
        task.cancel()


@in_virtual_time
async def test_a_lease_of_another_owner_is_not_changed(capsys: pytest.CaptureFixture[str]) -> None:
    """The engine waits even if it has no holder, and logs the remedy once."""
    candidates = Candidates()
    candidates.upper.place(LEASE, {"metadata": {"namespace": REF.namespace, "name": REF.name}, "spec": {}})
    candidates.upper.writes.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await candidates.engine().acquire()
    assert not candidates.upper.writes
    output = capsys.readouterr().out
    assert output.count("belongs to another owner and is left unchanged: delete it, or rename the topology") == 1


@in_virtual_time
async def test_a_missing_permission_for_the_lease_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    """It is a warning, because the engine cannot lead until the permission is granted."""
    candidates = Candidates()
    candidates.upper.denied["create", LEASE.name] = "leases is forbidden"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await candidates.engine().acquire()
    log_lines = [line for line in capsys.readouterr().out.splitlines() if "waiting to become leader" in line]
    assert len(log_lines) == 1
    assert "warning" in log_lines[0]
    assert "leases is forbidden" in log_lines[0]


@in_virtual_time
async def test_an_engine_waits_for_an_unreachable_upper_cluster() -> None:
    """It leads within two seconds after the cluster responds."""
    candidates = Candidates()
    candidates.upper.is_down = True
    waiting = asyncio.create_task(candidates.engine().acquire())
    await asyncio.sleep(60)
    assert not waiting.done()
    candidates.upper.is_down = False
    await waiting
    assert clock() <= 62


@in_virtual_time
async def test_an_engine_that_never_led_does_not_release_the_lease() -> None:
    """An engine that stops while it waits leaves the lease unchanged."""
    candidates = Candidates()
    async with leading(candidates.engine()):
        second = candidates.engine()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(5)
        waiting.cancel()
        await second.release_lease()
        assert candidates.holder == "engine-1"


def test_a_new_lease_has_the_owner_marks() -> None:
    """They contain the UID of the upper cluster."""
    made = new_lease(REF, "me", OWNER, BEGIN, PACE)
    assert made["metadata"]["annotations"]["tensile-kube.io/upper-uid"] == OWNER.upper


def test_the_lease_of_a_topology_has_a_fixed_name_in_kube_system() -> None:
    """Engines only recognize each other by it, so engines with the same owner marks must share one lease."""
    assert (REF.cluster, REF.namespace, REF.name) == (UPPER, "kube-system", "tensile-demo")


@pytest.mark.parametrize(
    ("spec", "leader"),
    [
        ({}, "me"),
        ({"renewTime": "2026-03-01T11:59:45.100000Z"}, "me"),
        ({"renewTime": "2026-03-01T11:59:45.000000Z"}, ""),
        ({"renewTime": "2026-03-01T13:00:00.000000Z"}, "me"),
        ({"renewTime": None}, ""),
        ({"holderIdentity": ""}, ""),
        ({"leaseDurationSeconds": None}, "me"),
        ({"leaseDurationSeconds": 1, "renewTime": "2026-03-01T11:59:50.000000Z"}, "me"),
        ({"leaseDurationSeconds": 2147483647, "renewTime": "2026-03-01T11:58:59.000000Z"}, ""),
    ],
)
def test_kept_by_returns_the_holder_of_a_lease_that_has_not_expired(spec: Manifest, leader: str) -> None:
    """The result is empty if the lease was released or has no renewal."""
    made = new_lease(REF, "me", OWNER, BEGIN, PACE)
    assert active_holder({**made, "spec": {**made["spec"], **spec}}, BEGIN) == leader
    assert active_holder({"metadata": {}}, BEGIN) == ""


@in_virtual_time
async def test_an_engine_without_leader_election_warns_of_a_leader(capsys: pytest.CaptureFixture[str]) -> None:
    """The warning has the leader, the lease and the remedy; an expired or released lease causes none."""
    candidates = Candidates()
    engine = candidates.engine()
    await engine.acquire()
    await warn_of_leader(candidates.upper, REF, BEGIN + SKEW)
    (log_line,) = [line for line in capsys.readouterr().out.splitlines() if "leads this topology" in line]
    for message in ("warning", "engine-1", "kube-system/tensile-demo", "run both with --leader-elect"):
        assert message in log_line
    await warn_of_leader(candidates.upper, REF, BEGIN + SKEW + timedelta(seconds=PACE.lease_duration))
    await engine.release_lease()
    await warn_of_leader(candidates.upper, REF, BEGIN + SKEW)
    assert "leads this topology" not in capsys.readouterr().out


@in_virtual_time
async def test_an_engine_without_leader_election_continues_if_the_lease_cannot_be_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The lease can be missing, forbidden or slow to read; none of these is logged."""
    candidates = Candidates()
    await warn_of_leader(candidates.upper, REF, BEGIN)
    await candidates.engine().acquire()
    capsys.readouterr()
    candidates.upper.hidden = True
    await warn_of_leader(candidates.upper, REF, BEGIN)
    candidates.upper.thinks = 3600
    await warn_of_leader(candidates.upper, REF, BEGIN)
    assert (capsys.readouterr().out, clock()) == ("", 2.0)
