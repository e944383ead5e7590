"""Tests of the history of accepted topologies: what is kept, its size limit, and the owner of its ConfigMap."""

import asyncio
from hashlib import sha256

import orjson
import pytest
from statuskit import NOW, OWNER, PLACE
from structlog.testing import capture_logs
from tasks import background
from virtualtime import in_virtual_time
from worldkit import STRANGER, with_managed_fields

from tensile.engine.history import (
    MAX_ENTRIES,
    MAX_TEXT_BYTES,
    AcceptedText,
    HistoryWriter,
    added,
    data_of,
    entries,
    file_place,
    history_ref,
    read_records,
    write,
)
from tensile.engine.status.configmap import NameTaken, marked_manifest
from tensile.engine.topology_reader import TopologyText, TopologyUpdate
from tensile.errors import ClusterError, Conflict, Denied, Unreachable
from tensile.kube.cluster import Patch
from tensile.names import Owner
from tensile.objects import CONFIG_MAP, NAMESPACE, UPPER, Manifest, Ref
from tensile.reconcile.dryrun.cluster import DryRunCluster

REF = history_ref(PLACE)


def entry(content: str, time: str = "2026-03-01T12:00:00Z") -> AcceptedText:
    """Return an entry of a text."""
    return AcceptedText(sha256(content.encode()).hexdigest(), time, content)


def stored(*history: AcceptedText, owner: Owner = OWNER) -> Manifest:
    """Return the ConfigMap with a history, as an apiserver has it."""
    made = with_managed_fields(marked_manifest(data_of(history), REF, owner, owner.upper))
    return {**made, "metadata": {**made["metadata"], "uid": "map-2", "resourceVersion": "5"}}


def reading(content: str) -> TopologyUpdate:
    """Return the result of a valid text; the topology in it does not matter here."""
    data = content.encode()
    return TopologyUpdate(TopologyText(len(data), sha256(data).hexdigest()), data=data)


def test_a_written_history_is_read_back_in_order() -> None:
    """Each entry keeps its time, and a text that was accepted twice is stored once."""
    history = (entry("a: 1\n"), entry("b: \u00fc\r\n"), entry("a: 1\n", "2026-03-02T12:00:00Z"))
    assert entries(stored(*history), OWNER) == history
    assert len(data_of(history)) == 3


def test_only_the_last_ten_texts_are_kept() -> None:
    """The oldest one is removed first."""
    history: tuple[AcceptedText, ...] = ()
    for number in range(MAX_ENTRIES + 5):
        history = added(history, entry(f"n: {number}\n"))
    assert [one.content for one in history] == [f"n: {number}\n" for number in range(5, MAX_ENTRIES + 5)]


def test_the_last_accepted_text_is_not_added_again() -> None:
    """An engine that restarts with it has nothing to record."""
    history = added((), entry("a: 1\n"))
    assert added(history, entry("a: 1\n", "2027-01-01T00:00:00Z")) == history


def test_the_history_fits_into_a_config_map() -> None:
    """Of large texts only the newest are kept, and one that is too large itself is recorded without its content."""
    large = [entry(f"# {number}" + "x" * (MAX_TEXT_BYTES // 3 - 8)) for number in range(6)]
    history: tuple[AcceptedText, ...] = ()
    for one in large:
        history = added(history, one)
        assert sum(len(key) + len(value) for key, value in data_of(history).items()) < 1 << 20
    assert history == tuple(large[3:])
    history = added(history, entry("y" * (MAX_TEXT_BYTES + 1)))
    assert (history[-1].content, history[:-1]) == ("", tuple(large[3:]))


def test_the_size_limit_counts_bytes_and_not_characters() -> None:
    """The apiserver limits bytes."""
    history = added((entry("a: 1\n"),), entry("\u20ac" * (MAX_TEXT_BYTES // 2)))
    assert [one.content for one in history] == ["a: 1\n", ""]


@pytest.mark.parametrize("index", [None, "", "[", "{}", "[1]", '[{"sha256": "x"}]'])
def test_an_invalid_index_is_read_as_an_empty_history(index: str | None) -> None:
    """An engine reads it at its start, which must not fail."""
    found = stored(entry("a: 1\n"))
    found["data"]["index"] = index
    assert entries(found, OWNER) == ()
    assert entries({**found, "data": None}, OWNER) == ()


def test_only_the_last_ten_entries_of_a_long_index_are_read() -> None:
    """It may name one large text thousands of times, and 5,000 digests of 500 KB take 1.5 seconds."""
    large = entry("x" * (MAX_TEXT_BYTES // 2))
    found = stored(*[entry("a: 1\n")] * 3000, large)
    assert entries(found, OWNER) == (*[entry("a: 1\n")] * (MAX_ENTRIES - 1), large)


def test_a_text_that_does_not_match_its_hash_is_left_out() -> None:
    """The SHA-256 is what a user approved."""
    kept, changed = entry("a: 1\n"), entry("b: 1\n")
    found = stored(kept, changed)
    found["data"][f"{changed.sha256}.yaml"] = "b: 2\n"
    assert entries(found, OWNER) == (kept,)


def test_a_history_of_another_owner_is_neither_read_nor_written() -> None:
    """A write raises NameTaken."""
    theirs = stored(entry("a: 1\n"), owner=STRANGER)
    assert entries(theirs, OWNER) == ()
    with pytest.raises(NameTaken, match="ConfigMap ops/topo-history belongs to another owner"):
        write(theirs, entry("b: 1\n"), REF, OWNER)


def test_a_write_removes_texts_that_are_no_longer_kept() -> None:
    """It has the resourceVersion that was read as its precondition, and an unchanged history is not written."""
    history = tuple(entry(f"n: {number}\n") for number in range(MAX_ENTRIES))
    found = write(stored(*history), entry("new: 1\n"), REF, OWNER)
    assert found is not None
    assert found.patch is not None
    body = found.patch.body
    assert body["metadata"] == {"uid": "map-2", "resourceVersion": "5"}
    assert body["data"][f"{history[0].sha256}.yaml"] is None
    assert set(body["data"]) == {f"{history[0].sha256}.yaml", f"{entry('new: 1' + chr(10)).sha256}.yaml", "index"}
    assert write(stored(*history), history[-1], REF, OWNER) is None


def test_the_history_of_a_topology_file_is_in_kube_system_under_the_topologys_name() -> None:
    """It is in the namespace of the lease, and does not depend on the machine of the engine."""
    assert history_ref(file_place("demo")).path() == "/api/v1/namespaces/kube-system/configmaps/tensile-demo-history"


class CountingUpperCluster(DryRunCluster):
    """An upper cluster that counts writes, and can refuse them."""

    def __init__(self) -> None:
        super().__init__(UPPER, now=lambda: NOW)
        self.place(NAMESPACE, {"metadata": {"name": PLACE.namespace}})
        self.failures: list[ClusterError] = []
        self.tried = 0

    async def read(self, ref: Ref) -> bytes:
        """Read an object, unless the cluster is unreachable."""
        if self.failures and isinstance(self.failures[0], Unreachable):
            raise self.failures.pop(0)
        return await super().read(ref)

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Create an object, unless it is refused."""
        self._try()
        return await super().create(ref, body)

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Patch an object, unless it is refused."""
        self._try()
        return await super().patch(ref, patch, subresource)

    def _try(self) -> None:
        self.tried += 1
        if self.failures:
            raise self.failures.pop(0)

    async def kept(self) -> list[str]:
        """Return the texts in the stored history."""
        return [one.content for one in (await read_records(self, OWNER.upper, PLACE)).history]


def writer(upper: CountingUpperCluster, reports: list[tuple[str, str]] | None = None) -> HistoryWriter:
    """Return a history writer that adds its Events to the given list."""
    reports = [] if reports is None else reports
    return HistoryWriter(
        upper, PLACE, OWNER.upper, emit_event=lambda reason, words: reports.append((reason, words)), now=lambda: NOW
    )


async def test_each_active_topology_is_written_once() -> None:
    """Repeated reports and a second engine cause no further write."""
    upper = CountingUpperCluster()
    for content in ("a: 1\n", "a: 1\n", "b: 1\n"):
        for _ in range(2):
            one = writer(upper)
            one.keep(reading(content))
            assert await one.write() is None
    assert (await upper.kept(), upper.tried) == (["a: 1\n", "b: 1\n"], 2)


@in_virtual_time
async def test_a_failed_write_is_retried() -> None:
    """A conflict is retried at once and an outage after a delay, and the outage is logged once."""
    upper = CountingUpperCluster()
    upper.failures = [Conflict("other"), Unreachable("away"), Unreachable("away")]
    one = writer(upper)
    with capture_logs() as logs:
        one.keep(reading("a: 1\n"))
        delays = [await one.write() for _ in range(4)]
    assert delays == [0.0, 5.0, 5.0, None]
    assert (await upper.kept(), len(logs)) == (["a: 1\n"], 1)


@in_virtual_time
async def test_a_denied_write_is_retried_periodically() -> None:
    """The permission may be granted later; the denial is logged once."""
    upper = CountingUpperCluster()
    upper.failures = [Denied("configmaps is forbidden") for _ in range(3)]
    one = writer(upper)
    with capture_logs() as logs:
        async with background(one.run()):
            one.keep(reading("a: 1\n"))
            await asyncio.sleep(600)
    assert (await upper.kept(), upper.tried, len(logs)) == (["a: 1\n"], 4, 1)


async def test_a_history_config_map_of_another_owner_is_reported_and_not_changed() -> None:
    """It is logged once, and one Event is emitted."""
    upper, reports = CountingUpperCluster(), list[tuple[str, str]]()
    upper.place(CONFIG_MAP, {"metadata": {"name": REF.name, "namespace": REF.namespace}, "data": {"x": "y"}})
    one = writer(upper, reports)
    with capture_logs() as logs:
        one.keep(reading("a: 1\n"))
        assert [await one.write() for _ in range(2)] == [60.0, 60.0]
    assert [reason for reason, _ in reports] == ["HistoryNameConflict"]
    assert (len(logs), upper.tried) == (1, 0)
    assert orjson.loads(await upper.read(REF))["data"] == {"x": "y"}
