"""Tests of truncated, swapped and half-written topology files: the last valid topology stays active."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from tensile.engine.topology_reader import SETTLE, SHRUNK, TopologyUpdate, follow_file
from tensile.kube.file_watch import FileStates, FileWatch, FileWatcher
from tensile.topology import Topology, TopologyErrors, parse

CUTS = 500
SWAPS = 60


def text(*, qps: int = 500, lowers: int = 6) -> str:
    """Return a topology in block style, as users write it; many a prefix of it is a valid topology too."""
    entries = "".join(
        f"- name: lower-{number}\n  kubeconfig: kubeconfigs/lower-{number}\n  node:\n    labels: {{tier: gold}}\n"
        f"  capacity:\n    basis: allocatable\n  qps: {qps}\n"
        for number in range(lowers)
    )
    return f"apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers:\n{entries}"


class AlwaysNotifyingWatcher(FileWatcher):
    """A file watcher that reports changes all the time."""

    def watch(self, seen: FileStates, hear: Callable[[], object]) -> FileWatch:
        """Begin to report changes."""
        made = FileWatch(seen, hear, self)
        self._watches[made] = None
        self._go_on(made, hear)
        return made

    def _go_on(self, made: FileWatch, hear: Callable[[], object]) -> None:
        if made in self._watches:
            hear()
            asyncio.get_running_loop().call_soon(self._go_on, made, hear)


class RecordedSleep:
    """A sleep that takes no time, and records the requested durations."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Record a duration, and return at once."""
        self.seconds.append(seconds)
        await asyncio.sleep(0)


class FollowedTopology:
    """A file of an active topology, and the updates that follow from its changes."""

    def __init__(self, path: Path, readings: AsyncGenerator[TopologyUpdate, None], rests: RecordedSleep) -> None:
        self.path = path
        self.rests = rests
        self._readings = readings

    async def after(self, data: bytes) -> TopologyUpdate:
        """Write the file, and return the next update."""
        self.path.write_bytes(data)
        return await self._next()

    async def gone(self) -> TopologyUpdate:
        """Delete the file, and return the next update."""
        self.path.unlink()
        return await self._next()

    async def _next(self) -> TopologyUpdate:
        async with asyncio.timeout(20):
            return await anext(self._readings)


@asynccontextmanager
async def followed(path: Path, whole: str) -> AsyncGenerator[FollowedTopology, None]:
    """Follow a file that contains `whole`."""
    rests = RecordedSleep()
    async with aclosing(follow_file(path, parse(whole), AlwaysNotifyingWatcher(), sleep=rests.sleep)) as readings:
        found = FollowedTopology(path, readings, rests)
        first = await found.after(whole.encode())
        assert (first.changed, first.error) == (False, None)
        rests.seconds.clear()
        yield found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the file."""
    return tmp_path / "topology.yaml"


def meaning(data: bytes) -> Topology | None:
    """Return the topology that some bytes contain, None if they contain none."""
    try:
        return parse(data.decode())
    except TopologyErrors:
        return None


@pytest.mark.parametrize("seed", range(5))
async def test_a_truncated_file_leaves_the_last_valid_topology_active(path: Path, seed: int) -> None:
    """It is only an edit if it ends after a whole line and is valid; a cut within a line never is."""
    chance = Random(seed)
    whole = text().encode()
    taken = 0
    async with followed(path, whole.decode()) as file:
        for _ in range(CUTS // 5):
            cut = whole[: chance.randrange(len(whole))]
            reading = await file.after(cut)
            assert reading.text.sha256 == sha256(cut).hexdigest()
            if reading.changed:
                assert reading.topology == meaning(cut)
                assert cut.endswith(b"\n")
                taken += 1
            else:
                assert reading.error is not None or reading.topology == parse(whole.decode())
            again = await file.after(whole)
            assert again.topology == parse(whole.decode())
            assert again.changed is reading.changed
    assert taken < CUTS // 5 // 10


async def test_a_file_that_is_cut_within_a_number_is_rejected(path: Path) -> None:
    """A file that ends with 50 instead of 500 would be another topology."""
    whole = text().encode()
    async with followed(path, whole.decode()) as file:
        for cut in (whole[:-2], whole[:-3]):
            assert meaning(cut) not in (None, parse(whole.decode()))
            reading = await file.after(cut)
            line, column = whole.count(b"\n"), len(cut) - cut.rfind(b"\n")
            assert str(reading.error) == (
                f"{path}:{line}:{column}: (file): is a truncated copy of the active topology; "
                "write the whole file, with a newline at its end"
            )


async def test_a_file_that_is_truncated_while_the_engine_starts_is_rejected(path: Path) -> None:
    """It was complete at the first read, and is truncated at the next one."""
    whole = text().encode()
    await asyncio.to_thread(path.write_bytes, whole[:-2])
    rests = RecordedSleep()
    first = parse(whole.decode())
    async with aclosing(follow_file(path, first, AlwaysNotifyingWatcher(), data=whole, sleep=rests.sleep)) as readings:
        assert "is a truncated copy of the active topology" in str((await anext(readings)).error)
    assert rests.seconds == [SHRUNK]


async def test_a_missing_newline_at_the_end_is_no_truncation(path: Path) -> None:
    """The file has the same meaning without it."""
    async with followed(path, text()) as file:
        reading = await file.after(text().rstrip("\n").encode())
        assert (reading.changed, reading.error) == (False, None)


async def test_a_file_that_shrinks_has_more_time_to_settle(path: Path) -> None:
    """Any other change is used as soon as two reads return the same."""
    fewer = text(lowers=3).encode()
    async with followed(path, text()) as file:
        assert (await file.after(fewer)).changed
        assert file.rests.seconds == [SHRUNK]
        file.rests.seconds.clear()
        assert (await file.after(text(qps=7).encode())).changed
        assert file.rests.seconds == [SETTLE]
    assert SHRUNK < 2.0


def swapped(folder: Path, content: str, number: int) -> None:
    """Replace the content of a mounted ConfigMap as the kubelet does: a new folder, and a symlink that is renamed."""
    fresh = folder / f"..2026_{number}"
    fresh.mkdir()
    (fresh / "topology.yaml").write_text(content)
    (folder / "..data_tmp").symlink_to(fresh.name)
    (folder / "..data_tmp").replace(folder / "..data")


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """Return the path of a file in a mounted ConfigMap."""
    swapped(tmp_path, text(), 0)
    path = tmp_path / "topology.yaml"
    path.symlink_to("..data/topology.yaml")
    return path


def contents() -> Iterator[str]:
    """Yield valid and invalid contents, each of them different from all others."""
    for number in range(SWAPS):
        good = text(qps=1000 + number, lowers=1 + number % 5)
        yield good if number % 3 else good.replace("capacity", "kapacity")


async def test_each_swap_of_a_mounted_config_map_is_read_completely(mounted: Path) -> None:
    """Each update is exactly one of the contents; valid ones become active, and invalid ones are errors."""
    rests = RecordedSleep()
    async with aclosing(follow_file(mounted, parse(text()), AlwaysNotifyingWatcher(), sleep=rests.sleep)) as readings:
        assert not (await anext(readings)).changed
        for number, content in enumerate(contents(), start=1):
            swapped(mounted.parent, content, number)
            async with asyncio.timeout(20):
                reading = await anext(readings)
            assert reading.text.sha256 == sha256(content.encode()).hexdigest()
            wanted = meaning(content.encode())
            assert (reading.topology, reading.error is None) == (wanted, wanted is not None)


async def test_swaps_during_a_read_are_never_mixed(mounted: Path) -> None:
    """Whenever a swap happens, the text that is read is one of the contents."""
    known = [sha256(one.encode()).hexdigest() for one in (text(), *contents())]
    seen: set[str] = set()
    pending = enumerate(contents(), start=1)

    async def swap(_seconds: float) -> None:
        """Swap the content again whenever the reader sleeps."""
        for number, content in pending:
            swapped(mounted.parent, content, number)
            return

    async with aclosing(follow_file(mounted, parse(text()), AlwaysNotifyingWatcher(), sleep=swap)) as readings:
        async with asyncio.timeout(20):
            while known[-1] not in seen:
                seen.add((await anext(readings)).text.sha256)
    assert seen <= set(known)


async def test_a_file_that_is_deleted_and_created_again_is_followed(path: Path) -> None:
    """The deletion is an error; the same content is no change afterwards, and other content is one."""
    async with followed(path, text()) as file:
        reading = await file.gone()
        assert "no such file" in str(reading.error)
        assert reading.text.sha256 == ""
        assert not (await file.after(text().encode())).changed
        await file.gone()
        assert (await file.after(text(qps=3).encode())).changed
