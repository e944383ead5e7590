"""Tests of following the topology file with real files, for every way in which they can change."""

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from filekit import wait_for_watcher
from structlog.testing import capture_logs
from tasks import background

from tensile.engine.topology_reader import SETTLE, TopologyText, TopologyUpdate, follow_file, read_file
from tensile.errors import TensileError
from tensile.kube.file_watch import FileWatcher, Notifier, notifier
from tensile.topology import Topology, TopologyErrors, parse

PATIENCE = 20.0
"""Seconds after which a change counts as unseen; far more than any change takes."""


def text(*lowers: str, qps: int = 1) -> str:
    """Return a topology of these lowers."""
    head = f"apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowerDefaults: {{qps: {qps}}}\nlowers:"
    return head + "".join(f"\n- name: {lower}\n  kubeconfig: k" for lower in lowers) + ("\n" if lowers else " []\n")


def names(topology: Topology) -> list[str]:
    """Return the names of the lowers."""
    return [lower.name for lower in topology.lowers]


class Following:
    """A followed file, with its updates and the errors of rejected texts."""

    def __init__(self, path: Path, watcher: FileWatcher, **options: Any) -> None:
        self.path = path
        self.watcher = watcher
        self.refusals: asyncio.Queue[str] = asyncio.Queue()
        self.readings: list[TopologyUpdate] = []
        self.topologies = self._changes(follow_file(path, parse(text("first")), watcher, **options))

    async def _changes(self, readings: AsyncGenerator[TopologyUpdate, None]) -> AsyncGenerator[Topology, None]:
        """Yield the topologies to activate; keep errors separately, and all updates together."""
        async with aclosing(readings):
            async for reading in readings:
                self.readings.append(reading)
                if reading.error is not None:
                    self.refusals.put_nowait(str(reading.error))
                elif reading.topology is not None and reading.changed:
                    yield reading.topology

    async def next(self) -> list[str]:
        """Wait for the next topology, and return its lowers."""
        async with asyncio.timeout(PATIENCE):
            return names(await anext(self.topologies))


@asynccontextmanager
async def following(path: Path, watcher: FileWatcher | None = None, **options: Any) -> AsyncIterator[Following]:
    """Follow a file for the duration of a test."""
    found = Following(path, watcher or FileWatcher(), **options)
    async with aclosing(found.topologies):
        yield found
    await found.watcher.close()


@asynccontextmanager
async def looking(found: Following) -> AsyncIterator[asyncio.Queue[str]]:
    """Follow in the background, and yield a queue of the lowers of each topology and the message of each rejection."""

    async def keep() -> None:
        """Add the topologies to the queue of the errors."""
        async for topology in found.topologies:
            found.refusals.put_nowait(",".join(names(topology)))

    async with background(keep()), asyncio.timeout(PATIENCE):
        yield found.refusals


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a topology file with one lower, in its own folder."""
    folder = tmp_path / "etc"
    folder.mkdir()
    file = folder / "topology.yaml"
    file.write_text(text("first"))
    return file


class RecordingFileWatcher:
    """A watcher with real file notifications; `begun` has the paths that are watched from then on."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self.watcher = FileWatcher(self._begin)

    def _begin(self, paths: Sequence[str]) -> Notifier:
        made = notifier(paths)
        self._loop.call_soon_threadsafe(self.begun.put_nowait, frozenset(paths))
        return made

    async def watched(self, *directories: Path) -> None:
        """Wait until these directories are watched."""
        while not {str(one) for one in directories} <= await self.begun.get():
            pass


def in_place(path: Path, content: str | bytes) -> None:
    """Write as `cp` does."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def gone(path: Path) -> None:
    """Delete the file."""
    path.unlink()


def folder_again(path: Path, content: str) -> None:
    """Create the folder and the file that were deleted."""
    path.parent.mkdir()
    path.write_text(content)


def renamed_over(path: Path, content: str) -> None:
    """Write as editors do: a new file is renamed to the old name."""
    fresh = path.with_suffix(".swp")
    fresh.write_text(content)
    fresh.replace(path)


def made_anew(path: Path, content: str) -> None:
    """Write as tools do that delete the file first."""
    path.unlink()
    path.write_text(content)


def kept_as_backup(path: Path, content: str) -> None:
    """Write as editors do that keep the old file under another name."""
    path.replace(path.with_suffix(".yaml~"))
    path.write_text(content)


@pytest.mark.parametrize("write", [in_place, renamed_over, made_anew, kept_as_backup])
async def test_an_edit_is_noticed_for_every_way_of_writing_the_file(
    path: Path, write: Callable[[Path, str], None]
) -> None:
    """There are two edits, because the first one must not end the watch."""
    notices = RecordingFileWatcher()
    async with following(path, notices.watcher) as found, looking(found) as updates:
        await notices.watched(path.parent)
        for lower in ("a", "b"):
            write(path, text(lower))
            assert await updates.get() == lower


def mounted(folder: Path, content: str, number: int) -> None:
    """Write content to a folder as the kubelet mounts a ConfigMap: a new folder, and a symlink that is swapped."""
    fresh = folder / f"..2026_{number}"
    fresh.mkdir()
    (fresh / "topology.yaml").write_text(content)
    (folder / "..data_tmp").symlink_to(fresh.name)
    (folder / "..data_tmp").replace(folder / "..data")
    old = folder / f"..2026_{number - 1}"
    if old.exists():
        shutil.rmtree(old)


async def test_a_mounted_config_map_is_followed(tmp_path: Path) -> None:
    """The file itself is a symlink that never changes, and the folder that it points to does."""
    mounted(tmp_path, text("first"), 0)
    (tmp_path / "topology.yaml").symlink_to("..data/topology.yaml")
    notices = RecordingFileWatcher()
    async with following(tmp_path / "topology.yaml", notices.watcher) as found, looking(found) as updates:
        for number in (1, 2, 3):
            await notices.watched(tmp_path, tmp_path / f"..2026_{number - 1}")
            mounted(tmp_path, text(f"a{number}"), number)
            assert await updates.get() == f"a{number}"


async def test_a_symlink_and_its_target_are_followed(tmp_path: Path, path: Path) -> None:
    """Both a write to the target and another target of the symlink are noticed."""
    link, other = tmp_path / "link.yaml", tmp_path / "other.yaml"
    link.symlink_to(path)
    other.write_text(text("other"))
    notices = RecordingFileWatcher()
    async with following(link, notices.watcher) as found, looking(found) as updates:
        await notices.watched(tmp_path, path.parent)
        renamed_over(path, text("a"))
        assert await updates.get() == "a"
        link.unlink()
        link.symlink_to(other)
        assert await updates.get() == "other"
        in_place(other, text("b"))
        assert await updates.get() == "b"


@pytest.fixture
def relative(path: Path) -> Path:
    """Return the path of the file relative to the working directory."""
    return Path(os.path.relpath(path))


async def test_a_relative_path_is_followed(relative: Path, path: Path) -> None:
    """It can be given like that on the command line."""
    async with following(relative) as found:
        in_place(path, text("a"))
        assert await found.next() == ["a"]


async def test_a_folder_that_is_deleted_and_created_again_is_followed(path: Path) -> None:
    """The missing file is reported once, and edits in the new folder are noticed."""
    notices = RecordingFileWatcher()
    with capture_logs() as logs:
        async with following(path, notices.watcher) as found, looking(found) as updates:
            await notices.watched(path.parent)
            shutil.rmtree(path.parent)
            assert await updates.get() == f"{path}: no such file: create it, or name another with -f"
            folder_again(path, text("a"))
            assert await updates.get() == "a"
            in_place(path, text("b"))
            assert await updates.get() == "b"
    assert [entry["event"] for entry in logs] == ["topology is valid again"]


async def test_an_edit_before_the_start_of_the_watch_is_noticed(path: Path) -> None:
    """The file is compared with the first topology, and not with the content at the first read."""
    in_place(path, text("a"))
    async with following(path) as found:
        assert await found.next() == ["a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "topology.yaml:1:1: (file): the file is empty"),
        (text("a").encode()[:60], "topology.yaml:1:1: lowers: required key is missing"),
        (text("a").replace("qps", "qsp").encode(), "topology.yaml:4:17: lowerDefaults.qsp: "),
        (b"\xff" + text("a").encode(), "topology.yaml:1:1: (file): this byte is not valid UTF-8"),
        (b"\xff\xfea\x00", "topology.yaml:1:1: (file): the file is UTF-16 text"),
        (b"#" * 2_000_000, "topology.yaml:1:1: (file): the file is larger than"),
    ],
)
async def test_an_invalid_file_is_rejected_once_and_the_next_valid_one_accepted(
    path: Path, content: bytes, message: str
) -> None:
    """The error has line, column and key, and no topology is yielded for the invalid file."""
    async with following(path) as found, looking(found) as updates:
        in_place(path, content)
        assert message in await updates.get()
        in_place(path, text("a"))
        assert await updates.get() == "a"
        assert updates.empty()


async def test_a_deleted_file_is_rejected_once(path: Path) -> None:
    """The last valid topology stays active until another one is written."""
    async with following(path) as found, looking(found) as updates:
        gone(path)
        assert "no such file" in await updates.get()
        in_place(path, text("a"))
        assert await updates.get() == "a"


async def test_a_file_with_another_error_is_rejected_again(path: Path) -> None:
    """Each state is reported once, so that the user who corrects it sees the remaining errors."""
    async with following(path) as found, looking(found) as updates:
        in_place(path, text("A"))
        assert "lowers[0].name" in await updates.get()
        in_place(path, text("a", qps=-1))
        assert "lowerDefaults.qps" in await updates.get()


async def test_an_edit_with_the_same_meaning_is_not_yielded(path: Path) -> None:
    """These are a new comment and the same content written again."""
    async with following(path) as found, looking(found) as updates:
        in_place(path, text())
        assert await updates.get() == ""
        in_place(path, "# a comment\n" + text())
        renamed_over(path, text())
        in_place(path, text("a"))
        assert await updates.get() == "a"


async def test_restoring_the_valid_content_after_an_invalid_edit_is_no_change(path: Path) -> None:
    """The active topology stays, and the log has that the file is valid again."""
    with capture_logs() as logs:
        async with following(path) as found, looking(found) as updates:
            in_place(path, "")
            assert "empty" in await updates.get()
            in_place(path, text("first"))
            for lower in ("a", "b"):
                in_place(path, text(lower))
                assert await updates.get() == lower
    assert [entry["event"] for entry in logs] == ["topology is valid again"]


class Writer:
    """A client that writes the next part whenever the follower waits for the file to settle."""

    def __init__(self, path: Path, parts: Iterator[str]) -> None:
        self.path = path
        self.parts = parts
        self.waited: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Write the next part, and return at once."""
        self.waited.append(seconds)
        for part in self.parts:
            with self.path.open("a") as file:
                file.write(part)
            return


async def test_a_file_that_is_still_being_written_is_not_used(path: Path) -> None:
    """Each prefix of it is a valid topology with fewer lowers, and the missing ones must not be removed."""
    whole = text("a", "b", "c", "d")
    start, *rest = whole.split("- name: b")
    writer = Writer(path, iter(["- name: b", *rest]))
    in_place(path, start)
    async with following(path, sleep=writer.sleep) as found:
        assert await found.next() == ["a", "b", "c", "d"]
        assert found.refusals.empty()
    assert writer.waited == [SETTLE] * 3


def no_notice(_paths: Sequence[str]) -> Notifier:
    """Raise the error of a system that has no file watches left."""
    raise OSError("OS file watch limit reached")


def broken_notice(_paths: Sequence[str]) -> Notifier:
    """Raise the error of watchfiles if it cannot start."""
    raise RuntimeError("Error creating recommended watcher: Too many open files (os error 24)")


@pytest.mark.parametrize("notify", [no_notice, broken_notice])
async def test_the_file_is_polled_if_it_cannot_be_watched(
    path: Path, notify: Callable[[Sequence[str]], Notifier]
) -> None:
    """One warning has the reason, however long it lasts."""
    with capture_logs() as logs:
        async with following(path, FileWatcher(notify, poll_seconds=0.01)) as found:
            for lower in ("a", "b", "c"):
                in_place(path, text(lower))
                assert await found.next() == [lower]
    (warning,) = logs
    assert warning["log_level"] == "warning"
    assert warning["event"] == "cannot watch files for changes, polling them instead"
    assert "limit reached" in warning["error"] or "Too many open files" in warning["error"]


@pytest.mark.parametrize("content", ["", text("first"), text("a")])
async def test_an_unchanged_file_is_reported_once(path: Path, content: str) -> None:
    """This holds for valid and invalid content, however often it is written again."""
    async with following(path) as found, looking(found) as updates:
        in_place(path, content)
        if content != text("first"):
            await updates.get()
        for _ in range(3):
            async with wait_for_watcher(found.watcher, path):
                renamed_over(path, content)
        in_place(path, text("b"))
        assert await updates.get() == "b"


async def test_waiting_for_the_next_topology_can_be_canceled(path: Path) -> None:
    """It ends at once, and the iterator is exhausted then."""
    async with following(path) as found:
        task = asyncio.ensure_future(anext(found.topologies))
        in_place(path, text("a"))
        assert names(await task) == ["a"]
        task = asyncio.ensure_future(anext(found.topologies))
        await asyncio.wait([task], timeout=0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(StopAsyncIteration):
            await anext(found.topologies)


async def test_closing_the_follower_leaves_no_task_and_no_thread(path: Path) -> None:
    """It does so before its first update and after one."""
    async with following(path):
        pass
    async with following(path) as found:
        in_place(path, text("a"))
        assert await found.next() == ["a"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not any(thread.name == "file watch" for thread in threading.enumerate())


async def test_read_file_returns_topology_text_and_bytes(path: Path) -> None:
    """The text has the size and the SHA-256 of the bytes."""
    reading = await read_file(path)
    assert reading.data == text("first").encode()
    assert reading.topology is not None
    assert names(reading.topology) == ["first"]
    whole = text("first").encode()
    assert reading.text == TopologyText(len(whole), sha256(whole).hexdigest())


async def test_a_large_file_is_parsed_without_blocking_the_event_loop(path: Path) -> None:
    """Other tasks run while it is parsed."""
    in_place(path, "#" * 70_000 + "\n" + text(*(f"lower-{number}" for number in range(200))))
    turns = 0
    task = asyncio.create_task(read_file(path))
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    topology = (await task).topology
    assert topology is not None
    assert len(names(topology)) == 200
    assert turns > 10


async def test_an_invalid_file_is_refused_with_every_error(path: Path) -> None:
    """Each error has its line and column."""
    in_place(path, text("A", "B"))
    with pytest.raises(TopologyErrors) as refusal:
        await read_file(path)
    assert [line.split(": ")[0] for line in str(refusal.value).splitlines()] == [f"{path}:6:9", f"{path}:8:9"]


async def test_a_path_that_is_no_regular_file_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """It can be missing, a folder, a pipe that would block the reader, or a symlink to itself."""
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    expected = {
        "nothing": "no such file: create it, or name another with -f",
        "pipe": "not a regular file: use the path of a topology file",
        ".": "not a regular file: use the path of a topology file",
        "loop": "cannot be read: Too many levels of symbolic links: fix that, or name another with -f",
    }
    for name, message in expected.items():
        with pytest.raises(TensileError) as refusal:
            await read_file(tmp_path / name)
        assert str(refusal.value) == f"{tmp_path / name}: {message}"
