"""The keeper of NAME-status against a cluster in memory, on a clock that passes at once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from statuskit import LATER, NOW, OWNER, PLACE, bad, good, row
from structlog.testing import capture_logs
from tasks import background
from virtualtime import in_virtual_time

from tensile.engine.status.configmap import OFTEN, SELDOM, StatusWriter, status_ref
from tensile.engine.status.report import EngineStatus
from tensile.engine.topology_reader import TopologyText, TopologyUpdate
from tensile.errors import ClusterError, Denied, Unreachable
from tensile.kube.cluster import Patch
from tensile.kube.store import Cache
from tensile.objects import CONFIG_MAP, EVENT, NAMESPACE, UPPER, Manifest, Ref
from tensile.reconcile.dryrun.cluster import DryRunCluster

if TYPE_CHECKING:
    from tensile.engine.status.report import LowerRow

REF = status_ref(PLACE)
UID = "map-1"


class Counted(DryRunCluster):
    """A cluster in memory that counts writes, and can refuse them."""

    def __init__(self) -> None:
        super().__init__(UPPER, now=lambda: NOW)
        self.writes: list[tuple[str, str]] = []
        self.failure: Callable[[Ref], ClusterError | None] = lambda _ref: None

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Create an object."""
        self._count_one("create", ref)
        return await super().create(ref, body)

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Change an object."""
        self._count_one("patch", ref)
        return await super().patch(ref, patch, subresource)

    def _count_one(self, verb: str, ref: Ref) -> None:
        self.writes.append((verb, ref.kind.name))
        error = self.failure(ref)
        if error is not None:
            raise error


class Kept:
    """A keeper at work, what it keeps, and what it is told."""

    def __init__(self) -> None:
        self.cluster = Counted()
        self.cluster.place(NAMESPACE, {"metadata": {"name": PLACE.namespace}})
        self.standing = EngineStatus(lambda: NOW)
        self.rows: list[LowerRow] | None = None
        self.standing.lowers = lambda: self.rows
        self.cache = Cache()
        self.cluster.follow(CONFIG_MAP, self.cache, lambda found: found["metadata"]["name"] == REF.name)
        self.keeper = self._keeper()

    def _keeper(self) -> StatusWriter:
        return StatusWriter(self.cluster, PLACE, OWNER, self.cache, self.standing, now=lambda: NOW)

    def restart(self) -> None:
        """Begin anew on the same cluster, as after a restart."""
        self.standing = EngineStatus(lambda: NOW)
        self.standing.lowers = lambda: self.rows
        self.keeper = self._keeper()

    def tell(self, reading: TopologyUpdate) -> None:
        """Tell what became of a text."""
        self.standing.take(reading)
        self.keeper.tell(reading)

    @property
    def data(self) -> dict[str, str]:
        """What the status says."""
        found = self.cluster.find(CONFIG_MAP, REF.namespace, REF.name)
        return found["data"] if found else {}

    def take(self) -> list[tuple[str, str]]:
        """Return the writes since the last time."""
        found, self.cluster.writes = self.cluster.writes, []
        return found


@asynccontextmanager
async def keeping(kept: Kept) -> AsyncIterator[None]:
    """Let the keeper run."""
    async with background(kept.keeper.run()):
        yield


MADE = [("create", "ConfigMap"), ("create", "Event")]
CHANGED = [("patch", "ConfigMap"), ("create", "Event")]


@in_virtual_time
async def test_each_edit_is_told_at_once() -> None:
    """By one write of the status, and one Event."""
    kept = Kept()
    async with keeping(kept):
        for reading, state, writes in ((good(), "Accepted", MADE), (bad(), "Rejected", CHANGED)):
            kept.tell(reading)
            await asyncio.sleep(0.01)
            assert (kept.data["state"], kept.take()) == (state, writes)


@in_virtual_time
async def test_a_standby_that_takes_over_tells_only_of_the_last_edit() -> None:
    """The leader told of those before, perhaps hours ago."""
    kept = Kept()
    for reading in (good(sha="aa", version="1"), bad(sha="bb", version="2"), good(sha="cc", version="3")):
        kept.tell(reading)
    async with keeping(kept):
        await asyncio.sleep(60)
    (told,) = events(kept)
    assert (told["reason"], "resourceVersion 3" in told["message"]) == ("TopologyAccepted", True)


@in_virtual_time
async def test_nothing_is_written_while_nothing_changes() -> None:
    """For hours."""
    kept = Kept()
    kept.rows = [row()]
    async with keeping(kept):
        kept.tell(good())
        await asyncio.sleep(60)
        kept.take()
        await asyncio.sleep(7200)
    assert kept.take() == []


@in_virtual_time
async def test_what_becomes_of_lowers_is_told_every_few_seconds_at_most() -> None:
    """Sooner just after an edit, when they come and go."""
    kept = Kept()
    async with keeping(kept):
        kept.tell(good())
        await asyncio.sleep(0.01)
        kept.take()
        kept.rows = [row()]
        await asyncio.sleep(OFTEN)
        assert kept.take() == [("patch", "ConfigMap")]
        await asyncio.sleep(60)
        for number in range(100):
            kept.rows = [row(pods=number)]
            await asyncio.sleep(SELDOM / 10)
        assert 10 <= len(kept.take()) <= 11
        assert '"pods": 9' in kept.data["lowers"]


@in_virtual_time
async def test_what_somebody_does_to_the_status_is_put_right() -> None:
    """Changed or deleted."""
    kept = Kept()
    async with keeping(kept):
        kept.tell(good())
        await asyncio.sleep(60)
        kept.cluster.alter(REF, lambda found: found["data"].update(state="Fine"))
        await asyncio.sleep(SELDOM)
        assert kept.data["state"] == "Accepted"
        kept.cluster.vanish(REF)
        await asyncio.sleep(SELDOM)
        assert kept.data["state"] == "Accepted"


@in_virtual_time
async def test_a_restart_on_what_was_told_writes_nothing() -> None:
    """Neither for a good text nor for a bad one that keeps the engine from starting."""
    for reading in (good(), bad()):
        kept = Kept()
        async with keeping(kept):
            kept.tell(reading)
            await asyncio.sleep(60)
        kept.take()
        kept.restart()
        async with keeping(kept):
            kept.tell(reading)
            await asyncio.sleep(60)
        assert kept.take() == []


@in_virtual_time
async def test_two_engines_do_not_write_in_turns() -> None:
    """Each takes a text up at a time of its own; the first to tell of it has told it."""
    kept = Kept()
    async with keeping(kept):
        kept.tell(good())
        await asyncio.sleep(1)
        before = kept.take(), kept.data
        other = StatusWriter(kept.cluster, PLACE, OWNER, kept.cache, EngineStatus(lambda: LATER), now=lambda: LATER)
        other._standing.take(good())
        other.tell(good())
        assert await other.write()
        await asyncio.sleep(60)
    assert (before[0], kept.data, kept.take()) == (MADE, before[1], [])


@in_virtual_time
async def test_a_text_that_is_gone_is_told_without_an_event() -> None:
    """There is no object that it could be about."""
    kept = Kept()
    async with keeping(kept):
        kept.tell(good())
        await asyncio.sleep(60)
        kept.take()
        kept.tell(TopologyUpdate(TopologyText(), error=bad("the ConfigMap does not exist").error))
        await asyncio.sleep(1)
    assert (kept.take(), kept.data["state"]) == ([("patch", "ConfigMap")], "Rejected")


@in_virtual_time
async def test_before_the_config_map_was_seen_nothing_is_written() -> None:
    """There is nothing to tell of."""
    kept = Kept()
    async with keeping(kept):
        await asyncio.sleep(60)
    assert kept.take() == []


@in_virtual_time
async def test_anothers_config_map_is_left_alone() -> None:
    """That is said once, in the log and as an Event; when it goes, ours comes."""
    kept = Kept()
    theirs = {"metadata": {"name": REF.name, "namespace": REF.namespace}, "data": {"state": "theirs"}}
    kept.cluster.place(CONFIG_MAP, theirs)
    with capture_logs() as logs:
        async with keeping(kept):
            kept.tell(good())
            await asyncio.sleep(600)
            assert kept.data == {"state": "theirs"}
            assert set(kept.take()) == {("create", "Event")}
            kept.cluster.vanish(REF)
            await asyncio.sleep(SELDOM)
            assert kept.data["state"] == "Accepted"
    assert [entry["event"] for entry in logs] == ["cannot report the topology's status"]
    reasons = [event["reason"] for event in events(kept)]
    assert sorted(reasons) == ["StatusNameConflict", "TopologyAccepted"]


def events(kept: Kept) -> list[dict[str, Any]]:
    """Return the Events that there are."""
    return [kept.cluster.find(EVENT, *name) or {} for name in kept.cluster._held[EVENT]]


@in_virtual_time
async def test_a_cluster_that_is_away_is_told_when_it_is_back() -> None:
    """What is told then is how it is then, and each Event once."""
    kept = Kept()
    kept.cluster.failure = lambda _ref: Unreachable("away")
    with capture_logs() as logs:
        async with keeping(kept):
            kept.tell(good())
            await asyncio.sleep(30)
            kept.tell(bad())
            await asyncio.sleep(30)
            assert kept.data == {}
            kept.cluster.failure = lambda _ref: None
            await asyncio.sleep(10)
            assert kept.data["state"] == "Rejected"
    assert len(logs) == 2
    assert sorted(event["reason"] for event in events(kept)) == ["TopologyAccepted", "TopologyRejected"]


@in_virtual_time
async def test_without_the_right_to_make_events_the_status_is_told() -> None:
    """The Event is given up, which is said."""
    kept = Kept()
    kept.cluster.failure = lambda ref: Denied("events is forbidden") if ref.kind == EVENT else None
    with capture_logs() as logs:
        async with keeping(kept):
            kept.tell(good())
            await asyncio.sleep(600)
    assert kept.data["state"] == "Accepted"
    assert kept.take() == MADE
    assert ["forbidden" in entry["error"] for entry in logs] == [True]


@in_virtual_time
async def test_an_event_says_what_became_of_the_text() -> None:
    """A bad first text has no last good one."""
    kept = Kept()
    async with keeping(kept):
        for reading in (bad(), good(), bad(sha="cc", version="9")):
            kept.tell(reading)
            await asyncio.sleep(1)
    fields = [(one["message"], one["reason"], one["type"], one["involvedObject"]["uid"]) for one in events(kept)]
    said = {message: tuple(rest) for message, *rest in fields}
    assert said == {
        "the engine does not start (resourceVersion 8): topo:3:5: lowerz: unknown key": (
            "TopologyRejected",
            "Warning",
            UID,
        ),
        "topology active: resourceVersion 7, sha256 aa": ("TopologyAccepted", "Normal", UID),
        "the last valid topology stays active (resourceVersion 9): topo:3:5: lowerz: unknown key": (
            "TopologyRejected",
            "Warning",
            UID,
        ),
    }


# A program that does not start on what it found, beside an engine that drives.


async def begun(kept: Kept, reading: TopologyUpdate) -> None:
    """Let another program refuse a text, report that, and end."""
    standing = EngineStatus(lambda: LATER)
    standing.take(reading)
    other = StatusWriter(kept.cluster, PLACE, OWNER, kept.cache, standing, now=lambda: LATER)
    other.tell(reading)
    assert await other.write()


LEADS_ON = "a running leader keeps its active topology; an engine that starts now exits"


@in_virtual_time
async def test_a_program_that_does_not_start_leaves_what_is_in_force_as_it_is_told() -> None:
    """It tells that the text is bad, which is all that it knows; the engine that drives has nothing to put right."""
    kept = Kept()
    kept.rows = [row()]
    async with keeping(kept):
        kept.tell(good())
        await asyncio.sleep(60)
    before = kept.data
    kept.take()
    await begun(kept, bad())
    assert kept.take() == CHANGED
    assert kept.data == {**before, "state": "Rejected", "rejected": kept.data["rejected"]}
    assert "lowerz: unknown key" in kept.data["rejected"]
    async with keeping(kept):
        kept.tell(bad())
        await asyncio.sleep(60)
    assert kept.take() == [("create", "Event")]


@in_virtual_time
async def test_it_writes_nothing_where_the_engine_that_drives_has_told_it() -> None:
    """However often it is started; its own Event says what becomes of it, and exists once."""
    kept = Kept()
    kept.rows = [row()]
    async with keeping(kept):
        kept.tell(good())
        await asyncio.sleep(1)
        kept.tell(bad())
        await asyncio.sleep(60)
        before = kept.data
        kept.take()
        for _ in range(3):
            await begun(kept, bad())
        assert kept.take() == [("create", "Event")] * 3
        await asyncio.sleep(60)
    assert (kept.data, kept.take()) == (before, [])
    said = sorted(event["message"].partition(" (")[0] for event in events(kept) if event["type"] == "Warning")
    assert said == [LEADS_ON, "the last valid topology stays active"]


@in_virtual_time
async def test_the_status_of_a_text_that_another_engine_has_in_force_is_its_own() -> None:
    """One version takes what another one refuses: they would write in turns. The Event is all that is told."""
    kept = Kept()
    kept.rows = [row()]
    async with keeping(kept):
        kept.tell(good())
        await asyncio.sleep(60)
        before = kept.data
        kept.take()
        await begun(kept, bad(sha=good().text.sha256))
        assert kept.take() == [("create", "Event")]
        await asyncio.sleep(60)
    assert (kept.data, kept.take()) == (before, [])
    assert any(event["message"].startswith(LEADS_ON) for event in events(kept))


@in_virtual_time
async def test_the_text_that_is_put_right_is_told_by_who_starts_on_it() -> None:
    """With nothing left of what was refused."""
    kept = Kept()
    kept.rows = [row()]
    async with keeping(kept):
        kept.tell(good())
        await asyncio.sleep(1)
    await begun(kept, bad())
    kept.restart()
    async with keeping(kept):
        kept.tell(good("cc", "9"))
        await asyncio.sleep(1)
    assert (kept.data["state"], "rejected" in kept.data, '"cc"' in kept.data["accepted"]) == ("Accepted", False, True)
