"""The history of accepted topologies: what is kept, how large it may be, and whose ConfigMap it is."""

import asyncio
from hashlib import sha256

import orjson
import pytest
from statuskit import NOW, OWNER, PLACE
from structlog.testing import capture_logs
from tasks import background
from virtualtime import in_virtual_time
from worldkit import STRANGER, written

from tensile.engine.history import (
    MOST,
    MOST_BYTES,
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
    """Make an entry of a text."""
    return AcceptedText(sha256(content.encode()).hexdigest(), time, content)


def stored(*history: AcceptedText, owner: Owner = OWNER) -> Manifest:
    """Make the ConfigMap with a history, as an apiserver has it."""
    made = written(marked_manifest(data_of(history), REF, owner, owner.upper))
    return {**made, "metadata": {**made["metadata"], "uid": "map-2", "resourceVersion": "5"}}


def reading(content: str) -> TopologyUpdate:
    """Make the result of a good text; what its topology is does not matter here."""
    data = content.encode()
    return TopologyUpdate(TopologyText(len(data), sha256(data).hexdigest()), data=data)


def test_what_is_written_is_read_again() -> None:
    """In order, with the time of each; one text that was accepted twice is stored once."""
    history = (entry("a: 1\n"), entry("b: \u00fc\r\n"), entry("a: 1\n", "2026-03-02T12:00:00Z"))
    assert entries(stored(*history), OWNER) == history
    assert len(data_of(history)) == 3


def test_only_the_last_ten_are_kept() -> None:
    """The oldest goes first."""
    history: tuple[AcceptedText, ...] = ()
    for number in range(MOST + 5):
        history = added(history, entry(f"n: {number}\n"))
    assert [one.content for one in history] == [f"n: {number}\n" for number in range(5, MOST + 5)]


def test_the_same_text_again_adds_nothing() -> None:
    """An engine that starts again has nothing to tell."""
    history = added((), entry("a: 1\n"))
    assert added(history, entry("a: 1\n", "2027-01-01T00:00:00Z")) == history


def test_the_whole_fits_into_a_config_map() -> None:
    """With large texts fewer are kept, the newest ones; one that fits nowhere is noted without its text."""
    large = [entry(f"# {number}" + "x" * (MOST_BYTES // 3 - 8)) for number in range(6)]
    history: tuple[AcceptedText, ...] = ()
    for one in large:
        history = added(history, one)
        assert sum(len(key) + len(value) for key, value in data_of(history).items()) < 1 << 20
    assert history == tuple(large[3:])
    history = added(history, entry("y" * (MOST_BYTES + 1)))
    assert (history[-1].content, history[:-1]) == ("", tuple(large[3:]))


def test_characters_of_several_bytes_count_as_such() -> None:
    """The limit of the apiserver is one of bytes."""
    history = added((entry("a: 1\n"),), entry("\u20ac" * (MOST_BYTES // 2)))
    assert [one.content for one in history] == ["a: 1\n", ""]


@pytest.mark.parametrize("index", [None, "", "[", "{}", "[1]", '[{"sha256": "x"}]'])
def test_what_somebody_else_wrote_into_it_is_no_history(index: str | None) -> None:
    """It is read by an engine that has to start."""
    found = stored(entry("a: 1\n"))
    found["data"]["index"] = index
    assert entries(found, OWNER) == ()
    assert entries({**found, "data": None}, OWNER) == ()


def test_an_index_that_somebody_filled_costs_no_more_than_ten_texts() -> None:
    """It may name one large text thousands of times, and 5,000 digests of 500 KB take 1.5 seconds."""
    large = entry("x" * (MOST_BYTES // 2))
    found = stored(*[entry("a: 1\n")] * 3000, large)
    assert entries(found, OWNER) == (*[entry("a: 1\n")] * (MOST - 1), large)


def test_a_text_that_was_changed_is_left_out() -> None:
    """Its SHA-256 is what a user approved."""
    kept, changed = entry("a: 1\n"), entry("b: 1\n")
    found = stored(kept, changed)
    found["data"][f"{changed.sha256}.yaml"] = "b: 2\n"
    assert entries(found, OWNER) == (kept,)


def test_the_history_of_another_owner_is_none() -> None:
    """It is not read, and not written to."""
    theirs = stored(entry("a: 1\n"), owner=STRANGER)
    assert entries(theirs, OWNER) == ()
    with pytest.raises(NameTaken, match="ConfigMap ops/topo-history belongs to another owner"):
        write(theirs, entry("b: 1\n"), REF, OWNER)


def test_a_write_removes_what_is_no_longer_kept() -> None:
    """And says which version it has read."""
    history = tuple(entry(f"n: {number}\n") for number in range(MOST))
    found = write(stored(*history), entry("new: 1\n"), REF, OWNER)
    assert found is not None
    assert found.patch is not None
    body = found.patch.body
    assert body["metadata"] == {"uid": "map-2", "resourceVersion": "5"}
    assert body["data"][f"{history[0].sha256}.yaml"] is None
    assert set(body["data"]) == {f"{history[0].sha256}.yaml", f"{entry('new: 1' + chr(10)).sha256}.yaml", "index"}
    assert write(stored(*history), history[-1], REF, OWNER) is None


def test_a_file_has_its_history_beside_its_lease() -> None:
    """By the name of its topology, wherever the engine runs."""
    assert history_ref(file_place("demo")).path() == "/api/v1/namespaces/kube-system/configmaps/tensile-demo-history"


class Upper(DryRunCluster):
    """An upper cluster that counts writes, and may refuse them."""

    def __init__(self) -> None:
        super().__init__(UPPER, now=lambda: NOW)
        self.place(NAMESPACE, {"metadata": {"name": PLACE.namespace}})
        self.failures: list[ClusterError] = []
        self.tried = 0

    async def read(self, ref: Ref) -> bytes:
        """Read, unless it is away."""
        if self.failures and isinstance(self.failures[0], Unreachable):
            raise self.failures.pop(0)
        return await super().read(ref)

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Create, unless refused."""
        self._try()
        return await super().create(ref, body)

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Patch, unless refused."""
        self._try()
        return await super().patch(ref, patch, subresource)

    def _try(self) -> None:
        self.tried += 1
        if self.failures:
            raise self.failures.pop(0)

    async def kept(self) -> list[str]:
        """Return the texts that it has."""
        return [one.content for one in (await read_records(self, OWNER.upper, PLACE)).history]


def writer(upper: Upper, told: list[tuple[str, str]] | None = None) -> HistoryWriter:
    """Make a writer; Events are added to `told`."""
    heard = [] if told is None else told
    return HistoryWriter(
        upper, PLACE, OWNER.upper, tell=lambda reason, words: heard.append((reason, words)), now=lambda: NOW
    )


async def test_each_topology_in_force_is_written_once() -> None:
    """However often it is told of, and by a second engine too."""
    upper = Upper()
    for content in ("a: 1\n", "a: 1\n", "b: 1\n"):
        for _ in range(2):
            one = writer(upper)
            one.keep(reading(content))
            assert await one.write() is None
    assert (await upper.kept(), upper.tried) == (["a: 1\n", "b: 1\n"], 2)


@in_virtual_time
async def test_a_write_that_fails_is_tried_again() -> None:
    """After a lost race at once, and after an outage as well; a failure is logged once."""
    upper = Upper()
    upper.failures = [Conflict("other"), Unreachable("away"), Unreachable("away")]
    one = writer(upper)
    with capture_logs() as logs:
        one.keep(reading("a: 1\n"))
        delays = [await one.write() for _ in range(4)]
    assert delays == [0.0, 5.0, 5.0, None]
    assert (await upper.kept(), len(logs)) == (["a: 1\n"], 1)


@in_virtual_time
async def test_without_the_permission_it_is_tried_now_and_then() -> None:
    """Somebody may grant it."""
    upper = Upper()
    upper.failures = [Denied("configmaps is forbidden") for _ in range(3)]
    one = writer(upper)
    with capture_logs() as logs:
        async with background(one.run()):
            one.keep(reading("a: 1\n"))
            await asyncio.sleep(600)
    assert (await upper.kept(), upper.tried, len(logs)) == (["a: 1\n"], 4, 1)


async def test_a_name_that_is_taken_is_told() -> None:
    """Once, in the log and as an Event; the ConfigMap stays as it is."""
    upper, told = Upper(), list[tuple[str, str]]()
    upper.place(CONFIG_MAP, {"metadata": {"name": REF.name, "namespace": REF.namespace}, "data": {"x": "y"}})
    one = writer(upper, told)
    with capture_logs() as logs:
        one.keep(reading("a: 1\n"))
        assert [await one.write() for _ in range(2)] == [60.0, 60.0]
    assert [reason for reason, _ in told] == ["HistoryNameConflict"]
    assert (len(logs), upper.tried) == (1, 0)
    assert orjson.loads(await upper.read(REF))["data"] == {"x": "y"}
