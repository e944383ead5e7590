"""Tests of the writer of NAME-status against a cluster in memory, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from statuskit import LATER, NOW, OWNER, PLACE, invalid_update, row, valid_update
from structlog.testing import capture_logs
from tasks import background
from virtualtime import in_virtual_time

from tensile.engine.status.configmap import CHECK_INTERVAL, FREQUENT_CHECK_INTERVAL, StatusWriter, status_ref
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


class CountingCluster(DryRunCluster):
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


class StatusWriterHarness:
    """A status writer with its cluster, its engine status and its cache."""

    def __init__(self) -> None:
        self.cluster = CountingCluster()
        self.cluster.place(NAMESPACE, {"metadata": {"name": PLACE.namespace}})
        self.engine_status = EngineStatus(lambda: NOW)
        self.rows: list[LowerRow] | None = None
        self.engine_status.lowers = lambda: self.rows
        self.cache = Cache()
        self.cluster.follow(CONFIG_MAP, self.cache, lambda found: found["metadata"]["name"] == REF.name)
        self.keeper = self._keeper()

    def _keeper(self) -> StatusWriter:
        return StatusWriter(self.cluster, PLACE, OWNER, self.cache, self.engine_status, now=lambda: NOW)

    def restart(self) -> None:
        """Create a new writer for the same cluster, as after a restart."""
        self.engine_status = EngineStatus(lambda: NOW)
        self.engine_status.lowers = lambda: self.rows
        self.keeper = self._keeper()

    def report(self, reading: TopologyUpdate) -> None:
        """Report the result of a text to the writer."""
        self.engine_status.record(reading)
        self.keeper.report(reading)

    @property
    def data(self) -> dict[str, str]:
        """Return the data of the status ConfigMap."""
        found = self.cluster.find(CONFIG_MAP, REF.namespace, REF.name)
        return found["data"] if found else {}

    def take(self) -> list[tuple[str, str]]:
        """Return the writes since the last call."""
        found, self.cluster.writes = self.cluster.writes, []
        return found


@asynccontextmanager
async def keeping(kept: StatusWriterHarness) -> AsyncIterator[None]:
    """Run the writer in the background."""
    async with background(kept.keeper.run()):
        yield


MADE = [("create", "ConfigMap"), ("create", "Event")]
CHANGED = [("patch", "ConfigMap"), ("create", "Event")]


@in_virtual_time
async def test_the_result_of_each_edit_is_written_at_once() -> None:
    """One write of the status and one Event are sent for each result."""
    kept = StatusWriterHarness()
    async with keeping(kept):
        for reading, state, writes in ((valid_update(), "Accepted", MADE), (invalid_update(), "Rejected", CHANGED)):
            kept.report(reading)
            await asyncio.sleep(0.01)
            assert (kept.data["state"], kept.take()) == (state, writes)


@in_virtual_time
async def test_a_standby_that_becomes_leader_emits_only_the_event_of_the_last_edit() -> None:
    """The former leader emitted the Events of the earlier edits, possibly hours ago."""
    kept = StatusWriterHarness()
    for reading in (
        valid_update(sha="aa", version="1"),
        invalid_update(sha="bb", version="2"),
        valid_update(sha="cc", version="3"),
    ):
        kept.report(reading)
    async with keeping(kept):
        await asyncio.sleep(60)
    (event,) = events(kept)
    assert (event["reason"], "resourceVersion 3" in event["message"]) == ("TopologyAccepted", True)


@in_virtual_time
async def test_an_unchanged_status_is_not_written_for_hours() -> None:
    """The writer compares the status with its cache, and sends nothing if they agree."""
    kept = StatusWriterHarness()
    kept.rows = [row()]
    async with keeping(kept):
        kept.report(valid_update())
        await asyncio.sleep(60)
        kept.take()
        await asyncio.sleep(7200)
    assert kept.take() == []


@in_virtual_time
async def test_the_state_of_the_lowers_is_written_every_few_seconds_at_most() -> None:
    """Shortly after an edit it is written sooner, because lowers are added and removed then."""
    kept = StatusWriterHarness()
    async with keeping(kept):
        kept.report(valid_update())
        await asyncio.sleep(0.01)
        kept.take()
        kept.rows = [row()]
        await asyncio.sleep(FREQUENT_CHECK_INTERVAL)
        assert kept.take() == [("patch", "ConfigMap")]
        await asyncio.sleep(60)
        for number in range(100):
            kept.rows = [row(pods=number)]
            await asyncio.sleep(CHECK_INTERVAL / 10)
        assert 10 <= len(kept.take()) <= 11
        assert '"pods": 9' in kept.data["lowers"]


@in_virtual_time
async def test_a_status_that_another_client_changes_or_deletes_is_restored() -> None:
    """The next periodic check writes it again."""
    kept = StatusWriterHarness()
    async with keeping(kept):
        kept.report(valid_update())
        await asyncio.sleep(60)
        kept.cluster.alter(REF, lambda found: found["data"].update(state="Fine"))
        await asyncio.sleep(CHECK_INTERVAL)
        assert kept.data["state"] == "Accepted"
        kept.cluster.vanish(REF)
        await asyncio.sleep(CHECK_INTERVAL)
        assert kept.data["state"] == "Accepted"


@in_virtual_time
async def test_a_restart_writes_nothing_if_the_status_describes_the_text_already() -> None:
    """This is so for a valid text, and for an invalid one with which the engine does not start."""
    for reading in (valid_update(), invalid_update()):
        kept = StatusWriterHarness()
        async with keeping(kept):
            kept.report(reading)
            await asyncio.sleep(60)
        kept.take()
        kept.restart()
        async with keeping(kept):
            kept.report(reading)
            await asyncio.sleep(60)
        assert kept.take() == []


@in_virtual_time
async def test_two_engines_do_not_overwrite_each_others_status() -> None:
    """Each engine reads a text at another time, and the second one keeps the time that the first one wrote."""
    kept = StatusWriterHarness()
    async with keeping(kept):
        kept.report(valid_update())
        await asyncio.sleep(1)
        before = kept.take(), kept.data
        other = StatusWriter(kept.cluster, PLACE, OWNER, kept.cache, EngineStatus(lambda: LATER), now=lambda: LATER)
        other._engine_status.record(valid_update())
        other.report(valid_update())
        assert await other.write()
        await asyncio.sleep(60)
    assert (before[0], kept.data, kept.take()) == (MADE, before[1], [])


@in_virtual_time
async def test_a_deleted_topology_config_map_is_reported_without_an_event() -> None:
    """The object that the Event would be about does not exist."""
    kept = StatusWriterHarness()
    async with keeping(kept):
        kept.report(valid_update())
        await asyncio.sleep(60)
        kept.take()
        kept.report(TopologyUpdate(TopologyText(), error=invalid_update("the ConfigMap does not exist").error))
        await asyncio.sleep(1)
    assert (kept.take(), kept.data["state"]) == ([("patch", "ConfigMap")], "Rejected")


@in_virtual_time
async def test_no_status_is_written_before_the_topology_config_map_was_read() -> None:
    """There is no result to report yet."""
    kept = StatusWriterHarness()
    async with keeping(kept):
        await asyncio.sleep(60)
    assert kept.take() == []


@in_virtual_time
async def test_a_config_map_of_another_owner_is_not_changed() -> None:
    """The conflict is logged once and emitted as an Event, and the status is created once that ConfigMap is deleted."""
    kept = StatusWriterHarness()
    theirs = {"metadata": {"name": REF.name, "namespace": REF.namespace}, "data": {"state": "theirs"}}
    kept.cluster.place(CONFIG_MAP, theirs)
    with capture_logs() as logs:
        async with keeping(kept):
            kept.report(valid_update())
            await asyncio.sleep(600)
            assert kept.data == {"state": "theirs"}
            assert set(kept.take()) == {("create", "Event")}
            kept.cluster.vanish(REF)
            await asyncio.sleep(CHECK_INTERVAL)
            assert kept.data["state"] == "Accepted"
    assert [entry["event"] for entry in logs] == ["cannot report the topology's status"]
    reasons = [event["reason"] for event in events(kept)]
    assert sorted(reasons) == ["StatusNameConflict", "TopologyAccepted"]


def events(kept: StatusWriterHarness) -> list[dict[str, Any]]:
    """Return the Events in the cluster."""
    return [kept.cluster.find(EVENT, *name) or {} for name in kept.cluster._held[EVENT]]


@in_virtual_time
async def test_the_status_is_written_once_the_cluster_is_reachable_again() -> None:
    """The status then has the latest result, and each Event is emitted once."""
    kept = StatusWriterHarness()
    kept.cluster.failure = lambda _ref: Unreachable("away")
    with capture_logs() as logs:
        async with keeping(kept):
            kept.report(valid_update())
            await asyncio.sleep(30)
            kept.report(invalid_update())
            await asyncio.sleep(30)
            assert kept.data == {}
            kept.cluster.failure = lambda _ref: None
            await asyncio.sleep(10)
            assert kept.data["state"] == "Rejected"
    assert len(logs) == 2
    assert sorted(event["reason"] for event in events(kept)) == ["TopologyAccepted", "TopologyRejected"]


@in_virtual_time
async def test_the_status_is_written_without_the_permission_to_create_events() -> None:
    """The Event is dropped after one attempt, which is logged."""
    kept = StatusWriterHarness()
    kept.cluster.failure = lambda ref: Denied("events is forbidden") if ref.kind == EVENT else None
    with capture_logs() as logs:
        async with keeping(kept):
            kept.report(valid_update())
            await asyncio.sleep(600)
    assert kept.data["state"] == "Accepted"
    assert kept.take() == MADE
    assert ["forbidden" in entry["error"] for entry in logs] == [True]


@in_virtual_time
async def test_an_event_describes_the_result_of_a_text() -> None:
    """The message for an invalid first text does not mention a last valid topology, because none exists."""
    kept = StatusWriterHarness()
    async with keeping(kept):
        for reading in (invalid_update(), valid_update(), invalid_update(sha="cc", version="9")):
            kept.report(reading)
            await asyncio.sleep(1)
    fields = [(one["message"], one["reason"], one["type"], one["involvedObject"]["uid"]) for one in events(kept)]
    fields_by_message = {message: tuple(rest) for message, *rest in fields}
    assert fields_by_message == {
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


# A program that does not start because of an invalid text, beside an engine that leads.


async def begun(kept: StatusWriterHarness, reading: TopologyUpdate) -> None:
    """Run another program that rejects a text, reports that, and ends."""
    standing = EngineStatus(lambda: LATER)
    standing.record(reading)
    other = StatusWriter(kept.cluster, PLACE, OWNER, kept.cache, standing, now=lambda: LATER)
    other.report(reading)
    assert await other.write()


LEADS_ON = "a running leader keeps its active topology; an engine that starts now exits"


@in_virtual_time
async def test_a_program_that_does_not_start_only_adds_the_rejection_to_the_status() -> None:
    """It does not know the active topology or the lowers, and the leader has nothing to correct afterwards."""
    kept = StatusWriterHarness()
    kept.rows = [row()]
    async with keeping(kept):
        kept.report(valid_update())
        await asyncio.sleep(60)
    before = kept.data
    kept.take()
    await begun(kept, invalid_update())
    assert kept.take() == CHANGED
    assert kept.data == {**before, "state": "Rejected", "rejected": kept.data["rejected"]}
    assert "lowerz: unknown key" in kept.data["rejected"]
    async with keeping(kept):
        kept.report(invalid_update())
        await asyncio.sleep(60)
    assert kept.take() == [("create", "Event")]


@in_virtual_time
async def test_a_program_that_does_not_start_repeats_no_rejection_that_the_leader_reported() -> None:
    """At each start it sends only its own Event, which exists once and states that the leader goes on."""
    kept = StatusWriterHarness()
    kept.rows = [row()]
    async with keeping(kept):
        kept.report(valid_update())
        await asyncio.sleep(1)
        kept.report(invalid_update())
        await asyncio.sleep(60)
        before = kept.data
        kept.take()
        for _ in range(3):
            await begun(kept, invalid_update())
        assert kept.take() == [("create", "Event")] * 3
        await asyncio.sleep(60)
    assert (kept.data, kept.take()) == (before, [])
    messages = sorted(event["message"].partition(" (")[0] for event in events(kept) if event["type"] == "Warning")
    assert messages == [LEADS_ON, "the last valid topology stays active"]


@in_virtual_time
async def test_a_program_that_rejects_the_leaders_active_text_does_not_write_the_status() -> None:
    """Engines of two versions would otherwise overwrite each other's status; the program only emits an Event."""
    kept = StatusWriterHarness()
    kept.rows = [row()]
    async with keeping(kept):
        kept.report(valid_update())
        await asyncio.sleep(60)
        before = kept.data
        kept.take()
        await begun(kept, invalid_update(sha=valid_update().text.sha256))
        assert kept.take() == [("create", "Event")]
        await asyncio.sleep(60)
    assert (kept.data, kept.take()) == (before, [])
    assert any(event["message"].startswith(LEADS_ON) for event in events(kept))


@in_virtual_time
async def test_an_engine_that_starts_with_a_corrected_text_removes_the_rejection() -> None:
    """The status has the new accepted text and no trace of the rejected one."""
    kept = StatusWriterHarness()
    kept.rows = [row()]
    async with keeping(kept):
        kept.report(valid_update())
        await asyncio.sleep(1)
    await begun(kept, invalid_update())
    kept.restart()
    async with keeping(kept):
        kept.report(valid_update("cc", "9"))
        await asyncio.sleep(1)
    assert (kept.data["state"], "rejected" in kept.data, '"cc"' in kept.data["accepted"]) == ("Accepted", False, True)
