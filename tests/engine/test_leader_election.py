"""Engines of one topology take turns: one leads, the others wait until it is gone or gives the lead back."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from electionkit import leading
from stagekit import FaultyCluster
from virtualtime import clock, in_virtual_time
from worldkit import OWNER_HERE as OWNER

from tensile.engine.leader_election import Election, LeaseTimings, kept_by, lease_ref, new, warn_of_leader
from tensile.errors import Denied
from tensile.kube.cluster import Patch
from tensile.objects import LEASE, NAMESPACE, UPPER, Manifest, Ref, metadata, uid

PACE = LeaseTimings()
REF = lease_ref("demo")
BEGIN = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SKEW = timedelta(hours=1)
"""By how much the clocks of two engines differ: nothing may depend on it."""


class Upper(FaultyCluster):
    """An upper cluster that `takes` so many seconds over the answer to a write, and `thinks` over that to a read.

    It lets nobody look at what is `hidden`.
    """

    takes = thinks = 0.0
    hidden = False

    async def read(self, ref: Ref) -> bytes:
        """Read, and take time."""
        await asyncio.sleep(self.thinks)
        if self.hidden:
            raise Denied("leases is forbidden", status=403)
        return await super().read(ref)

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Create, and take time."""
        found = await super().create(ref, body)
        await asyncio.sleep(self.takes)
        return found

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Patch, and take time."""
        found = await super().patch(ref, patch, subresource)
        await asyncio.sleep(self.takes)
        return found


class Candidates:
    """An upper cluster in memory, and engines that would lead."""

    def __init__(self) -> None:
        self.upper = Upper(UPPER, ends_pods=False, now=lambda: BEGIN)
        self.upper.place(NAMESPACE, {"metadata": {"name": REF.namespace}})
        self.engines = 0

    def engine(self) -> Election:
        """Make one more; the clock of each is an hour ahead of that of the one before."""
        self.engines += 1
        ahead = SKEW * self.engines
        return Election(
            self.upper, REF, lambda: OWNER, f"engine-{self.engines}", lambda: BEGIN + ahead + timedelta(seconds=clock())
        )

    @property
    def lease(self) -> Manifest:
        """The lease as it is."""
        found = self.upper.find(LEASE, REF.namespace, REF.name)
        assert found is not None
        return found

    @property
    def holder(self) -> str:
        """Who holds it."""
        return str(self.lease["spec"]["holderIdentity"])

    async def write(self, body: Manifest) -> None:
        """Write to the lease as somebody else."""
        await self.upper.patch(REF, Patch("merge-patch", {"metadata": {"uid": uid(self.lease)}, **body}))


@in_virtual_time
async def test_the_first_engine_leads_at_once() -> None:
    """It makes the lease, which is marked as ours and says who leads, since when and for how long."""
    ground = Candidates()
    await ground.engine().acquired()
    assert clock() == 0
    spec = ground.lease["spec"]
    assert (ground.holder, spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("engine-1", 15, 0)
    assert spec["acquireTime"] == spec["renewTime"] == "2026-03-01T13:00:00.000000Z"
    assert metadata(ground.lease)["labels"]["tensile-kube.io/owner"] == OWNER.mark


@in_virtual_time
async def test_another_waits_for_as_long_as_the_lease_is_renewed() -> None:
    """An hour changes nothing, whatever the two clocks say."""
    ground = Candidates()
    async with leading(ground.engine()):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await ground.engine().acquired()
        assert ground.holder == "engine-1"


@in_virtual_time
async def test_a_lease_that_is_given_back_is_taken_at_the_next_look() -> None:
    """Two seconds later another engine leads; that it changed hands is counted."""
    ground = Candidates()
    first, second = ground.engine(), ground.engine()
    async with leading(first):
        waiting = asyncio.create_task(second.acquired())
        await asyncio.sleep(5)
    await first.release_lease()
    gone = clock()
    await waiting
    assert clock() - gone <= PACE.look
    assert (ground.holder, ground.lease["spec"]["leaseTransitions"]) == ("engine-2", 1)
    assert (first.leads, second.leads) == (False, True)


@in_virtual_time
async def test_a_lease_is_given_back_after_a_renewal_whose_answer_was_lost() -> None:
    """An engine that ends in the middle of a renewal knows an older state of its lease than there is."""
    ground = Candidates()
    engine = ground.engine()
    async with leading(engine):
        await ground.write({"spec": {"renewTime": "2026-03-01T13:00:01.000000Z"}})
    await engine.release_lease()
    assert ground.holder == ""


@in_virtual_time
async def test_a_lease_whose_holder_is_gone_is_taken_when_it_has_run_out() -> None:
    """Fifteen seconds after the last renewal that was seen, not earlier, and two later at the most."""
    ground = Candidates()
    async with leading(ground.engine()):
        waiting = asyncio.create_task(ground.engine().acquired())
        await asyncio.sleep(5)
    gone = clock()
    await waiting
    assert PACE.holds - PACE.look <= clock() - gone <= PACE.holds + PACE.look
    assert ground.holder == "engine-2"


@in_virtual_time
async def test_a_leader_that_cannot_renew_gives_up_before_anybody_else_may_lead() -> None:
    """Ten seconds after its last renewal it knows, and five are left to it for stopping."""
    ground = Candidates()
    async with leading(ground.engine()) as ended:
        await asyncio.sleep(20)
        ground.upper.down = True
        down = clock()
        why = await ended
        assert PACE.gives_up - PACE.look <= clock() - down <= PACE.gives_up
    assert "not renewed for 10 s" in why
    assert "no answer" in why


@in_virtual_time
async def test_a_renewal_that_hangs_does_not_put_off_the_end() -> None:
    """The time to stop in is the same as where renewals are refused."""
    ground = Candidates()
    async with leading(ground.engine()) as ended:
        await asyncio.sleep(1)
        ground.upper.takes = 3600
        await ended
        assert clock() == PACE.gives_up


@in_virtual_time
async def test_a_lease_counts_from_when_it_was_asked_for() -> None:
    """Others see it change as soon as it is written, however late the answer is."""
    ground = Candidates()
    ground.upper.takes = 8
    engine = ground.engine()
    await engine.acquired()
    ground.upper.down = True
    await engine.lost()
    assert clock() == PACE.gives_up


@in_virtual_time
async def test_a_short_silence_costs_nothing() -> None:
    """A renewal that fails is tried again two seconds later."""
    ground = Candidates()
    async with leading(ground.engine()) as ended:
        ground.upper.down = True
        await asyncio.sleep(7)
        ground.upper.down = False
        await asyncio.sleep(60)
        assert not ended.done()


@in_virtual_time
async def test_one_renewal_that_hangs_costs_nothing() -> None:
    """It is given up in time for others, which are answered."""
    ground = Candidates()
    async with leading(ground.engine()) as ended:
        await asyncio.sleep(1)
        ground.upper.takes = 3600
        await asyncio.sleep(3)
        ground.upper.takes = 0.0
        await asyncio.sleep(60)
        assert not ended.done()
        assert ground.holder == "engine-1"


@in_virtual_time
async def test_who_is_stopped_before_it_hears_that_it_leads_gives_the_lease_back() -> None:
    """Its write may have come through: nobody shall have to wait until that lease has run out."""
    ground = Candidates()
    ground.upper.takes = 5
    engine = ground.engine()
    winning = asyncio.create_task(engine.acquired())
    await asyncio.sleep(1)
    winning.cancel()
    await asyncio.gather(winning, return_exceptions=True)
    assert ground.holder == "engine-1"
    ground.upper.takes = 0.0
    await engine.release_lease()
    assert ground.holder == ""


@in_virtual_time
async def test_who_asked_for_a_lease_in_vain_takes_it_from_nobody() -> None:
    """Somebody else holds it by now, or it is gone."""
    ground = Candidates()
    ground.upper.takes = 5
    engine = ground.engine()
    winning = asyncio.create_task(engine.acquired())
    await asyncio.sleep(1)
    winning.cancel()
    await asyncio.gather(winning, return_exceptions=True)
    await ground.write({"spec": {"holderIdentity": "another"}})
    await engine.release_lease()
    assert ground.holder == "another"


@in_virtual_time
async def test_a_leader_whose_lease_somebody_else_holds_leads_no_more() -> None:
    """So it is with one that was paused: it learns of it at its next renewal, and says who leads."""
    ground = Candidates()
    engine = ground.engine()
    async with leading(engine) as ended:
        await ground.write({"spec": {"holderIdentity": "another"}})
        assert await ended == "another holds the lease"
    assert not engine.leads
    assert clock() <= PACE.look
    await engine.release_lease()
    assert ground.holder == "another"


@in_virtual_time
async def test_what_else_is_written_to_the_lease_does_not_end_the_lead() -> None:
    """A label that somebody adds makes the next renewal fail once."""
    ground = Candidates()
    async with leading(ground.engine()) as ended:
        await ground.write({"metadata": {"uid": uid(ground.lease), "labels": {"a": "b"}}})
        await asyncio.sleep(61)
        assert not ended.done()
    assert metadata(ground.lease)["labels"]["a"] == "b"
    assert ground.lease["spec"]["renewTime"] == "2026-03-01T13:01:00.000000Z"


@in_virtual_time
async def test_a_lease_that_is_deleted_ends_the_lead() -> None:
    """Another engine may have made it anew and be gone again: nobody can tell, so all begin from the start."""
    ground = Candidates()
    async with leading(ground.engine()) as ended:
        await ground.upper.delete(REF, uid=uid(ground.lease))
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
async def test_nothing_that_is_forged_in_a_lease_makes_two_lead(spec: Manifest) -> None:
    """Written every half a second beside an engine that leads and one that waits, whatever it says."""
    ground = Candidates()
    async with leading(ground.engine()) as ended:
        await asyncio.sleep(PACE.look / 2)
        second = ground.engine()
        waiting = asyncio.create_task(second.acquired())
        for _ in range(100):
            await ground.write({"spec": spec})
            await asyncio.sleep(0.5)
            assert ended.done() or not second.leads
        waiting.cancel()


@pytest.mark.parametrize("spec", [{"leaseDurationSeconds": 2147483647}, {"leaseTransitions": 2147483647}])
@in_virtual_time
async def test_nothing_that_is_forged_in_a_lease_keeps_it_for_ever(spec: Manifest) -> None:
    """Its holder is gone; it is taken within a minute, by a write that the API takes."""
    ground = Candidates()
    async with leading(ground.engine()):
        await ground.write({"spec": spec})
    waiting = asyncio.create_task(ground.engine().acquired())
    async with asyncio.timeout(62):
        await waiting
    assert ground.holder == "engine-2"
    assert ground.lease["spec"]["leaseTransitions"] < 1 << 31


@in_virtual_time
async def test_a_lease_that_is_deleted_while_somebody_holds_it_is_not_made_at_once() -> None:
    """Who held it drives until its next renewal, which it may have to wait for."""
    ground = Candidates()
    ground.upper.takes = 3
    async with leading(ground.engine()) as ended:
        second = ground.engine()
        waiting = asyncio.create_task(second.acquired())
        await asyncio.sleep(5)
        await ground.upper.delete(REF, uid=uid(ground.lease))
        gone = clock()
        await ended
        assert not second.leads
        await waiting
    assert PACE.holds <= clock() - gone <= PACE.holds + 2 * PACE.look + ground.upper.takes
    assert ground.holder == "engine-2"


@in_virtual_time
async def test_of_two_that_come_at_once_one_leads() -> None:
    """Whoever is later finds the lease made, or changed, and waits."""
    ground = Candidates()
    engines = [ground.engine(), ground.engine()]
    tasks = [asyncio.create_task(engine.acquired()) for engine in engines]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert [engine.leads for engine in engines].count(True) == 1
    for task in tasks:
        task.cancel()


@in_virtual_time
async def test_a_lease_that_is_not_ours_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Be it free: the engine waits, and says once what to do."""
    ground = Candidates()
    ground.upper.place(LEASE, {"metadata": {"namespace": REF.namespace, "name": REF.name}, "spec": {}})
    ground.upper.writes.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await ground.engine().acquired()
    assert not ground.upper.writes
    said = capsys.readouterr().out
    assert said.count("belongs to another owner and is left unchanged: delete it, or rename the topology") == 1


@in_virtual_time
async def test_who_may_not_have_a_lease_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """As a warning, once: nothing is driven until somebody grants the right."""
    ground = Candidates()
    ground.upper.denied["create", LEASE.name] = "leases is forbidden"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await ground.engine().acquired()
    said = [line for line in capsys.readouterr().out.splitlines() if "waiting to become leader" in line]
    assert len(said) == 1
    assert "warning" in said[0]
    assert "leases is forbidden" in said[0]


@in_virtual_time
async def test_an_engine_waits_for_an_upper_cluster_that_is_away() -> None:
    """And leads within two seconds when it answers."""
    ground = Candidates()
    ground.upper.down = True
    waiting = asyncio.create_task(ground.engine().acquired())
    await asyncio.sleep(60)
    assert not waiting.done()
    ground.upper.down = False
    await waiting
    assert clock() <= 62


@in_virtual_time
async def test_who_never_led_gives_nothing_back() -> None:
    """An engine that is ended while it waits leaves the lease as it is."""
    ground = Candidates()
    async with leading(ground.engine()):
        second = ground.engine()
        waiting = asyncio.create_task(second.acquired())
        await asyncio.sleep(5)
        waiting.cancel()
        await second.release_lease()
        assert ground.holder == "engine-1"


def test_a_new_lease_names_its_owner() -> None:
    """The mark on it is that of the topology in its upper cluster."""
    made = new(REF, "me", OWNER, BEGIN, PACE)
    assert made["metadata"]["annotations"]["tensile-kube.io/upper-uid"] == OWNER.upper


def test_the_lease_has_one_place_in_an_upper_cluster() -> None:
    """Engines know each other by it alone: whose objects have the same marks has the same lease."""
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
def test_who_keeps_a_lease_that_is_looked_at_once(spec: Manifest, leader: str) -> None:
    """Whoever renewed it for as long as it holds; nobody where it was given back, or says nothing."""
    made = new(REF, "me", OWNER, BEGIN, PACE)
    assert kept_by({**made, "spec": {**made["spec"], **spec}}, BEGIN) == leader
    assert kept_by({"metadata": {}}, BEGIN) == ""


@in_virtual_time
async def test_an_engine_that_takes_no_turns_tells_of_one_that_leads(capsys: pytest.CaptureFixture[str]) -> None:
    """As a warning: by its name, with the lease, and what to do; of a leader that is gone nothing is told."""
    ground = Candidates()
    engine = ground.engine()
    await engine.acquired()
    await warn_of_leader(ground.upper, REF, BEGIN + SKEW)
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "leads this topology" in line]
    for words in ("warning", "engine-1", "kube-system/tensile-demo", "run both with --leader-elect"):
        assert words in said
    await warn_of_leader(ground.upper, REF, BEGIN + SKEW + timedelta(seconds=PACE.holds))
    await engine.release_lease()
    await warn_of_leader(ground.upper, REF, BEGIN + SKEW)
    assert "leads this topology" not in capsys.readouterr().out


@in_virtual_time
async def test_an_engine_that_cannot_see_who_leads_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a lease, without the right to look at it, and without an answer: it needs none of that to drive."""
    ground = Candidates()
    await warn_of_leader(ground.upper, REF, BEGIN)
    await ground.engine().acquired()
    capsys.readouterr()
    ground.upper.hidden = True
    await warn_of_leader(ground.upper, REF, BEGIN)
    ground.upper.thinks = 3600
    await warn_of_leader(ground.upper, REF, BEGIN)
    assert (capsys.readouterr().out, clock()) == ("", 2.0)
