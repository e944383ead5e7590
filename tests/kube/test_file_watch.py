"""Tests of watching files: real files, every way in which they change, and systems that do not report changes."""

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from filekit import PATIENCE, wait_for_watcher
from structlog.testing import capture_logs

from tensile.kube.file_watch import FileCache, FileStates, FileWatcher, Notifier, notifier, watched


class FileWatchQueue:
    """A watcher of files and a queue of its callbacks by name."""

    def __init__(self, watcher: FileWatcher) -> None:
        self.watcher = watcher
        self.callbacks: asyncio.Queue[str] = asyncio.Queue()

    def watch(self, *paths: Path, name: str = "f") -> None:
        """Watch files under a name."""
        self.watcher.watch(watched(paths), lambda: self.callbacks.put_nowait(name))

    async def next(self) -> str:
        """Wait for the next callback and return its name."""
        async with asyncio.timeout(PATIENCE):
            return await self.callbacks.get()


class RecordingNotifiers:
    """Real notifiers, with a record of the watched paths: from then on the system reports their changes."""

    def __init__(self) -> None:
        self.targets: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def notify(self, paths: Sequence[str]) -> Notifier:
        """Create a notifier and record its paths."""
        made = notifier(paths)
        self._loop.call_soon_threadsafe(self.targets.put_nowait, frozenset(paths))
        return made

    async def until(self, directory: Path) -> None:
        """Wait until a directory is watched."""
        async with asyncio.timeout(PATIENCE):
            while str(directory) not in await self.targets.get():
                pass


@asynccontextmanager
async def ears(watcher: FileWatcher) -> AsyncIterator[FileWatchQueue]:
    """Watch files during a test, and check that no thread is left afterwards."""
    try:
        yield FileWatchQueue(watcher)
    finally:
        await watcher.close()
    assert threads() == []


def threads() -> list[str]:
    """Return the threads that wait for notices."""
    return [thread.name for thread in threading.enumerate() if thread.name == "file watch"]


def instances() -> int:
    """Return the number of inotify instances of this process."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        try:
            found += one.readlink().name == "anon_inode:inotify"
        except OSError:
            continue
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file, two directories below the test's own."""
    made = tmp_path.resolve() / "a" / "b" / "f"
    made.parent.mkdir(parents=True)
    made.write_text("first")
    return made


def put(file: Path, content: str) -> None:
    """Write a file in place."""
    file.write_text(content)


def is_file(file: Path) -> bool:
    """Report whether a path leads to a file."""
    return file.is_file()


def device(file: Path) -> str:
    """Return the device of a file."""
    number = file.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """Return an empty directory by its real path."""
    return tmp_path.resolve()


def renamed_over(file: Path) -> None:
    """Replace the file by a rename, as editors do."""
    file.with_name("new").write_text("other")
    file.with_name("new").rename(file)


def rewritten(file: Path) -> None:
    """Write other content of the same length, with the same modification time as before."""
    before = file.stat()
    file.write_text("other")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def directory_again(file: Path) -> None:
    """Delete the directory of the file and create it again."""
    shutil.rmtree(file.parent)
    file.parent.mkdir()
    file.write_text("other")


def directory_swapped(file: Path, depth: int) -> None:
    """Replace a directory on the path by another one."""
    there = file.parents[depth]
    other = there.with_name("other") / file.parent.relative_to(there)
    other.mkdir(parents=True)
    (other / "f").write_text("other")
    there.rename(there.with_name("old"))
    there.with_name("other").rename(there)


def written_by_another_name(file: Path) -> None:
    """Write through a hard link in another directory."""
    (file.parents[1] / "link").write_text("other")


CHANGES: dict[str, Callable[[Path], object]] = {
    "written": lambda file: file.write_text("longer"),
    "same length and time": rewritten,
    "touched": os.utime,
    "deleted": lambda file: file.unlink(),
    "deleted and created": lambda file: (file.unlink(), file.write_text("other")),
    "renamed over": renamed_over,
    "moved away": lambda file: file.rename(file.parents[1] / "elsewhere"),
    "a directory now": lambda file: (file.unlink(), file.mkdir()),
    "a symlink now": lambda file: (file.rename(file.with_name("real")), file.symlink_to("real")),
    "directory deleted": lambda file: shutil.rmtree(file.parent),
    "directory recreated": directory_again,
    "directory swapped": lambda file: directory_swapped(file, 0),
    "parent directory swapped": lambda file: directory_swapped(file, 1),
    "through a hard link": written_by_another_name,
}


@pytest.mark.parametrize("change", CHANGES)
async def test_the_callback_is_called_once_after_every_kind_of_change(file: Path, change: str) -> None:
    """The notice of the system triggers it, and a later write to the new file triggers it again."""
    os.link(file, file.parents[1] / "link")
    begun = RecordingNotifiers()
    async with ears(FileWatcher(begun.notify)) as watch_queue:
        watch_queue.watch(file)
        await begun.until(file.parent)
        CHANGES[change](file)
        assert await watch_queue.next() == "f"
        if is_file(file):
            put(file, "once more")
            assert await watch_queue.next() == "f"
        assert watch_queue.callbacks.empty()


@pytest.mark.parametrize("change", CHANGES)
def test_file_states_detect_every_kind_of_change(file: Path, change: str) -> None:
    """A change that keeps length and modification time is detected too; without a change the states are equal."""
    os.link(file, file.parents[1] / "link")
    before = watched([file, file.with_name("other")])
    assert before.again() == before
    CHANGES[change](file)
    assert before.again() != before


def test_the_state_of_no_files_or_an_invalid_path_never_changes() -> None:
    """An access that was not read from files has no states to compare."""
    assert FileStates().again() == FileStates()
    assert watched(["a\0b"]).again() == watched(["a\0b"])


def mounted(directory: Path, content: str, number: int) -> None:
    """Mount a Secret into a directory as the kubelet does: a new directory, and a symlink that is replaced."""
    fresh = directory / f"..2026_{number}"
    fresh.mkdir(parents=True)
    (fresh / "token").write_text(content)
    (directory / "..data_tmp").symlink_to(fresh.name)
    (directory / "..data_tmp").rename(directory / "..data")
    shutil.rmtree(directory / f"..2026_{number - 1}", ignore_errors=True)


async def test_the_callback_is_called_once_per_update_of_a_mounted_secret(top: Path) -> None:
    """The kubelet replaces the symlink ..data, and the symlink at the watched path stays the same."""
    directory, begun = top, RecordingNotifiers()
    mounted(directory, "same", 0)
    (directory / "token").symlink_to("..data/token")
    async with ears(FileWatcher(begun.notify)) as watch_queue:
        watch_queue.watch(directory / "token")
        for number in (1, 2, 3):
            await begun.until(directory / f"..2026_{number - 1}")
            mounted(directory, "same", number)
            assert await watch_queue.next() == "f"
        assert watch_queue.callbacks.empty()


async def test_the_callback_is_called_if_a_file_is_created_with_its_directories(top: Path) -> None:
    """None of the directories exists at first; the deletion of all and a second creation are reported too."""
    begun = RecordingNotifiers()
    async with ears(FileWatcher(begun.notify)) as watch_queue:
        watch_queue.watch(top / "late" / "b" / "f")
        await begun.until(top)
        for content in ("one", "two"):
            (top / "late" / "b").mkdir(parents=True)
            (top / "late" / "b" / "f").write_text(content)
            assert await watch_queue.next() == "f"
            shutil.rmtree(top / "late")
            assert await watch_queue.next() == "f"


async def test_a_change_between_reading_a_file_and_watching_it_is_reported(file: Path) -> None:
    """The watch compares with the state that was recorded before the file was read."""
    seen = watched([file])
    put(file, "changed since")
    async with ears(FileWatcher()) as watch_queue:
        watch_queue.watcher.watch(seen, lambda: watch_queue.callbacks.put_nowait("since"))
        assert await watch_queue.next() == "since"


async def test_many_files_share_one_thread_and_one_inotify_instance(file: Path) -> None:
    """Only the callback of the changed file is called, also for a file that is added later."""
    begun = RecordingNotifiers()
    async with ears(FileWatcher(begun.notify)) as watch_queue:
        for number in range(200):
            watch_queue.watch(file.with_name(f"{number}"), name=str(number))
        await begun.until(file.parent)
        put(file.with_name("unwatched"), "")
        put(file.with_name("17"), "")
        assert await watch_queue.next() == "17"
        watch_queue.watch(file, name="later")
        put(file, "other")
        assert await watch_queue.next() == "later"
        put(file, "once more")
        assert await watch_queue.next() == "later"
        assert (threads(), watch_queue.callbacks.empty()) == (["file watch"], True)
        assert instances() <= 2, "one, and briefly the previous one"


async def test_a_closed_or_moved_watch_gets_no_callback_for_its_old_file(file: Path) -> None:
    """A watch that follows another file instead gets callbacks for that file."""
    other = file.with_name("other")
    async with ears(FileWatcher()) as watch_queue:
        gone = watch_queue.watcher.watch(watched([file]), lambda: watch_queue.callbacks.put_nowait("gone"))
        moved = watch_queue.watcher.watch(watched([file]), lambda: watch_queue.callbacks.put_nowait("moved"))
        async with wait_for_watcher(watch_queue.watcher, file):
            put(file, "one")
        notified = {await watch_queue.next()}
        while notified != {"gone", "moved"}:
            notified.add(await watch_queue.next())
        gone.close()
        moved.follow(watched([other]))
        async with wait_for_watcher(
            watch_queue.watcher, file
        ):  # the system may report one write twice: the notices of the first one end here
            put(file, "two")
        while not watch_queue.callbacks.empty():
            watch_queue.callbacks.get_nowait()
        async with wait_for_watcher(watch_queue.watcher, file):
            put(file, "three")
        assert watch_queue.callbacks.empty()
        put(other, "four")
        assert await watch_queue.next() == "moved"


async def test_closing_a_watch_cancels_its_pending_callback(file: Path) -> None:
    """A change that was already noticed is not reported after the close."""
    async with ears(FileWatcher()) as watch_queue:
        watch = watch_queue.watcher.watch(watched([file]), lambda: watch_queue.callbacks.put_nowait("f"))
        watch.record_notice()
        watch.close()
        async with wait_for_watcher(watch_queue.watcher, file):
            put(file, "one")
        assert watch_queue.callbacks.empty()


async def test_a_watcher_can_be_used_again_after_it_was_closed(file: Path) -> None:
    """No thread runs while no file is watched."""
    watcher = FileWatcher()
    for _ in range(2):
        async with ears(watcher) as watch_queue:
            assert threads() == []
            async with wait_for_watcher(watch_queue.watcher, file):
                put(file, "other")


def no_watches(_paths: Sequence[str]) -> Notifier:
    """Fail as a system does whose limit of watches is reached."""
    raise OSError("OS file watch limit reached")


def broken(_paths: Sequence[str]) -> Notifier:
    """Fail because of a bug."""
    raise KeyError("a defect")


class SilentNotifier:
    """A notifier that reports no change, as for files that other hosts write over a network."""

    def __init__(self, _paths: Sequence[str]) -> None:
        self._nothing: set[tuple[int, str]] = set()

    def watch(self, _most: int, _step: int, timeout_ms: int, stop_event: threading.Event) -> set[tuple[int, str]] | str:
        """Wait for the timeout or the stop event."""
        stop_event.wait(timeout_ms / 1000 or None)
        return self._nothing

    def close(self) -> None:
        """Do nothing."""


class ForgetfulNotifier(SilentNotifier):
    """A notifier that loses the notice of a change while it returns another one."""

    def __init__(self, change: Callable[[], object]) -> None:
        super().__init__([])
        self._changes = [change]

    def watch(self, most: int, step: int, timeout_ms: int, stop_event: threading.Event) -> set[tuple[int, str]] | str:
        """Return one notice, then only wait."""
        if self._changes:
            self._changes.pop()()
            return {(1, "/elsewhere")}
        super().watch(most, step, timeout_ms, stop_event)
        return "stop" if stop_event.is_set() else "timeout"


async def test_a_change_whose_notice_is_lost_is_found_by_comparing_files(file: Path) -> None:
    """Files are compared after notices, because watchfiles loses one that arrives while it returns earlier ones."""
    async with ears(
        FileWatcher(lambda _paths: ForgetfulNotifier(partial(put, file, "other")), poll_seconds=0.05)
    ) as watch_queue:
        watch_queue.watch(file)
        assert await watch_queue.next() == "f"


class FailingNotifier(SilentNotifier):
    """A notifier that fails as soon as it is waited for."""

    def watch(self, *_given: object) -> set[tuple[int, str]] | str:
        """Raise RuntimeError."""
        raise RuntimeError("error in underlying watcher")


@pytest.mark.parametrize(
    ("notify", "why"),
    [
        (no_watches, "OS file watch limit reached"),
        (broken, "KeyError (bug, please report)"),
        (FailingNotifier, "error in underlying watcher"),
        (SilentNotifier, "is on a file system of type nfs4"),
    ],
)
async def test_files_are_polled_if_the_system_does_not_report_changes(
    file: Path, top: Path, notify: Callable[[Sequence[str]], Notifier], why: str
) -> None:
    """Polling is logged once, and a file that does not change causes no callback."""
    mounts = top / "mounts"
    if notify is SilentNotifier:
        put(mounts, f"1 1 {device(file)} / / rw - nfs4 there rw\n")
    with capture_logs() as logs:
        async with ears(FileWatcher(notify, mounts, poll_seconds=0.01)) as watch_queue:
            watch_queue.watch(file)
            for change in (renamed_over, directory_again, rewritten):
                change(file)
                assert await watch_queue.next() == "f"
            watch_queue.watch(file, name="beside")
            put(file, "longer")
            assert {await watch_queue.next(), await watch_queue.next()} == {"f", "beside"}
            assert watch_queue.callbacks.empty()
    (log_line,) = logs
    assert (log_line["event"], log_line["log_level"]) == (
        "cannot watch files for changes, polling them instead",
        "warning",
    )
    assert why in log_line["error"]


_IN_A_NAMESPACE = """
import asyncio, sys
from pathlib import Path
from tensile.kube.file_watch import FileWatcher, watched
Path("/proc/sys/user/max_inotify_instances").write_text("0")
file = Path(sys.argv[1])
async def main():
    watcher, changed = FileWatcher(poll_seconds=0.01), asyncio.Event()
    watcher.watch(watched([file]), changed.set)
    file.write_text("other")
    await asyncio.wait_for(changed.wait(), 20)
    await watcher.close()
asyncio.run(main())
"""


@pytest.mark.process
def test_files_are_polled_in_a_user_namespace_without_inotify_instances(file: Path) -> None:
    """The warning is logged once, and the change is detected."""
    run = ["unshare", "--user", "--map-root-user", sys.executable, "-c"]
    if shutil.which("unshare") is None or subprocess.run([*run, ""], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    done = subprocess.run([*run, _IN_A_NAMESPACE, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Too many open files") == 1


async def test_the_file_cache_reads_a_file_once_until_it_changes(file: Path) -> None:
    """An OSError is cached too, and the callback is called when a file changes."""
    read_files: list[str] = []
    other = file.with_name("other")
    async with ears(FileWatcher()) as watch_queue:
        kept = FileCache(watch_queue.watcher, (file, other), lambda: read_files.append("changed"))
        assert kept.read(file) == b"first"
        with pytest.raises(FileNotFoundError, match="other"):
            kept.read(other)
        async with wait_for_watcher(watch_queue.watcher, file, other):
            put(file, "second")
            put(other, "there now")
            assert kept.read(file) == b"first"
            with pytest.raises(FileNotFoundError):
                kept.read(other)
        assert (kept.read(file), kept.read(other), read_files) == (b"second", b"there now", ["changed"])
        kept.close()
        put(file, "third")
        assert kept.read(file) == b"third"
        kept.close()


async def test_watching_is_retried_if_a_directory_is_deleted_at_that_moment(file: Path) -> None:
    """Files are polled only if the directory is still missing at the next try."""
    begun, tries = RecordingNotifiers(), 0

    def notify(paths: Sequence[str]) -> Notifier:
        """Fail the first time as if a path were missing."""
        nonlocal tries
        tries += 1
        if tries == 1:
            raise FileNotFoundError("No such file or directory")
        return begun.notify(paths)

    with capture_logs() as logs:
        async with ears(FileWatcher(notify)) as watch_queue:
            watch_queue.watch(file)
            await begun.until(file.parent)
            put(file, "other")
            assert await watch_queue.next() == "f"
    assert (tries, logs) == (2, [])


def test_the_watcher_thread_ends_if_its_event_loop_is_closed(file: Path) -> None:
    """A watcher that was not closed leaves no thread after the next change of a file."""
    watcher = FileWatcher()

    async def leave() -> None:
        """Watch a file and return without closing the watcher."""
        watcher.watch(watched([file]), lambda: None)

    asyncio.run(leave())
    (thread,) = (one for one in threading.enumerate() if one.name == "file watch")
    file.write_text("other")
    thread.join(PATIENCE)
    assert threads() == []
