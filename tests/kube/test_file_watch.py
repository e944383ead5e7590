"""Watching files: real files, every way in which they change, and systems that tell nothing of it."""

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
from filekit import PATIENCE, heard
from structlog.testing import capture_logs

from tensile.kube.file_watch import FileCache, FileStates, FileWatcher, Notifier, notifier, watched


class Ears:
    """Who watches files, and what of it was heard, by name."""

    def __init__(self, watcher: FileWatcher) -> None:
        self.watcher = watcher
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    def watch(self, *paths: Path, name: str = "f") -> None:
        """Watch files under a name."""
        self.watcher.watch(watched(paths), lambda: self.heard.put_nowait(name))

    async def next(self) -> str:
        """Wait for the next that is heard of."""
        async with asyncio.timeout(PATIENCE):
            return await self.heard.get()


class Begun:
    """Real notices, and what is watched for them, from when on a change is certain to be noticed."""

    def __init__(self) -> None:
        self.targets: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def notify(self, paths: Sequence[str]) -> Notifier:
        """Begin."""
        made = notifier(paths)
        self._loop.call_soon_threadsafe(self.targets.put_nowait, frozenset(paths))
        return made

    async def until(self, directory: Path) -> None:
        """Wait until a directory is watched."""
        async with asyncio.timeout(PATIENCE):
            while str(directory) not in await self.targets.get():
                pass


@asynccontextmanager
async def ears(watcher: FileWatcher) -> AsyncIterator[Ears]:
    """Listen for the length of a test; nothing runs afterwards."""
    try:
        yield Ears(watcher)
    finally:
        await watcher.close()
    assert threads() == []


def threads() -> list[str]:
    """Return the threads that wait for notices."""
    return [thread.name for thread in threading.enumerate() if thread.name == "file watch"]


def instances() -> int:
    """Count the system's watchers that this process has."""
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
    """Return the device that a file is on."""
    number = file.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """Return an empty directory by its real path."""
    return tmp_path.resolve()


def renamed_over(file: Path) -> None:
    """Write as editors do."""
    file.with_name("new").write_text("other")
    file.with_name("new").rename(file)


def rewritten(file: Path) -> None:
    """Write another content of the same length, with the same time of change as before."""
    before = file.stat()
    file.write_text("other")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def directory_again(file: Path) -> None:
    """Delete the directory, and make another one."""
    shutil.rmtree(file.parent)
    file.parent.mkdir()
    file.write_text("other")


def directory_swapped(file: Path, depth: int) -> None:
    """Put another directory in the place of one on the way."""
    there = file.parents[depth]
    other = there.with_name("other") / file.parent.relative_to(there)
    other.mkdir(parents=True)
    (other / "f").write_text("other")
    there.rename(there.with_name("old"))
    there.with_name("other").rename(there)


def written_by_another_name(file: Path) -> None:
    """Write by a hard link in another directory."""
    (file.parents[1] / "link").write_text("other")


CHANGES: dict[str, Callable[[Path], object]] = {
    "written": lambda file: file.write_text("longer"),
    "written alike": rewritten,
    "touched": os.utime,
    "gone": lambda file: file.unlink(),
    "gone and back": lambda file: (file.unlink(), file.write_text("other")),
    "renamed over": renamed_over,
    "moved away": lambda file: file.rename(file.parents[1] / "elsewhere"),
    "a directory now": lambda file: (file.unlink(), file.mkdir()),
    "a symlink now": lambda file: (file.rename(file.with_name("real")), file.symlink_to("real")),
    "directory gone": lambda file: shutil.rmtree(file.parent),
    "directory again": directory_again,
    "directory swapped": lambda file: directory_swapped(file, 0),
    "directory above swapped": lambda file: directory_swapped(file, 1),
    "by another name": written_by_another_name,
}


@pytest.mark.parametrize("change", CHANGES)
async def test_every_change_is_heard_of_once_it_is_over(file: Path, change: str) -> None:
    """By a notice, and so is a change in place after it, wherever the path leads then."""
    os.link(file, file.parents[1] / "link")
    begun = Begun()
    async with ears(FileWatcher(begun.notify)) as here:
        here.watch(file)
        await begun.until(file.parent)
        CHANGES[change](file)
        assert await here.next() == "f"
        if is_file(file):
            put(file, "once more")
            assert await here.next() == "f"
        assert here.heard.empty()


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen(file: Path, change: str) -> None:
    """Also one that leaves length and time as they were; nothing is seen where nothing happened."""
    os.link(file, file.parents[1] / "link")
    before = watched([file, file.with_name("other")])
    assert before.again() == before
    CHANGES[change](file)
    assert before.again() != before


def test_no_files_never_change() -> None:
    """What was read from no file has nothing to be looked at."""
    assert FileStates().again() == FileStates()
    assert watched(["a\0b"]).again() == watched(["a\0b"])


def mounted(directory: Path, content: str, number: int) -> None:
    """Put a Secret into a directory as the kubelet does: a fresh directory, and a symlink that swaps."""
    fresh = directory / f"..2026_{number}"
    fresh.mkdir(parents=True)
    (fresh / "token").write_text(content)
    (directory / "..data_tmp").symlink_to(fresh.name)
    (directory / "..data_tmp").rename(directory / "..data")
    shutil.rmtree(directory / f"..2026_{number - 1}", ignore_errors=True)


async def test_swaps_of_a_mounted_secret_are_heard_of(top: Path) -> None:
    """Each of them, once; the symlink that the path names stays as it is."""
    directory, begun = top, Begun()
    mounted(directory, "same", 0)
    (directory / "token").symlink_to("..data/token")
    async with ears(FileWatcher(begun.notify)) as here:
        here.watch(directory / "token")
        for number in (1, 2, 3):
            await begun.until(directory / f"..2026_{number - 1}")
            mounted(directory, "same", number)
            assert await here.next() == "f"
        assert here.heard.empty()


async def test_a_file_is_heard_of_that_comes_with_all_its_directories(top: Path) -> None:
    """Nothing of the way was there; also when it goes and comes again."""
    begun = Begun()
    async with ears(FileWatcher(begun.notify)) as here:
        here.watch(top / "late" / "b" / "f")
        await begun.until(top)
        for content in ("one", "two"):
            (top / "late" / "b").mkdir(parents=True)
            (top / "late" / "b" / "f").write_text(content)
            assert await here.next() == "f"
            shutil.rmtree(top / "late")
            assert await here.next() == "f"


async def test_a_change_before_the_watching_began_is_heard_of(file: Path) -> None:
    """What counts is how the files were when they were looked at, which is before they were read."""
    seen = watched([file])
    put(file, "changed since")
    async with ears(FileWatcher()) as here:
        here.watcher.watch(seen, lambda: here.heard.put_nowait("since"))
        assert await here.next() == "since"


async def test_many_files_share_one_watcher_and_are_told_apart(file: Path) -> None:
    """Files of one directory; others beside them are nobody's. One that is added later is watched as well."""
    begun = Begun()
    async with ears(FileWatcher(begun.notify)) as here:
        for number in range(200):
            here.watch(file.with_name(f"{number}"), name=str(number))
        await begun.until(file.parent)
        put(file.with_name("nobody's"), "")
        put(file.with_name("17"), "")
        assert await here.next() == "17"
        here.watch(file, name="later")
        put(file, "other")
        assert await here.next() == "later"
        put(file, "once more")
        assert await here.next() == "later"
        assert (threads(), here.heard.empty()) == (["file watch"], True)
        assert instances() <= 2, "one, and for a moment the one before it"


async def test_a_file_that_is_watched_no_more_is_not_heard_of(file: Path) -> None:
    """Others go on, and so does one that follows another file instead."""
    other = file.with_name("other")
    async with ears(FileWatcher()) as here:
        gone = here.watcher.watch(watched([file]), lambda: here.heard.put_nowait("gone"))
        moved = here.watcher.watch(watched([file]), lambda: here.heard.put_nowait("moved"))
        async with heard(here.watcher, file):
            put(file, "one")
        told = {await here.next()}
        while told != {"gone", "moved"}:
            told.add(await here.next())
        gone.close()
        moved.follow(watched([other]))
        async with heard(
            here.watcher, file
        ):  # the system may tell of one write twice: the first one's notices end here
            put(file, "two")
        while not here.heard.empty():
            here.heard.get_nowait()
        async with heard(here.watcher, file):
            put(file, "three")
        assert here.heard.empty()
        put(other, "four")
        assert await here.next() == "moved"


async def test_what_is_closed_hears_nothing_of_a_change_on_its_way(file: Path) -> None:
    """Nor is anything left that waits."""
    async with ears(FileWatcher()) as here:
        watch = here.watcher.watch(watched([file]), lambda: here.heard.put_nowait("f"))
        watch.stir()
        watch.close()
        async with heard(here.watcher, file):
            put(file, "one")
        assert here.heard.empty()


async def test_a_watcher_begins_anew_after_its_end(file: Path) -> None:
    """Nothing runs while nothing is watched."""
    watcher = FileWatcher()
    for _ in range(2):
        async with ears(watcher) as here:
            assert threads() == []
            async with heard(here.watcher, file):
                put(file, "other")


def no_watches(_paths: Sequence[str]) -> Notifier:
    """Watch as a system does whose watches are all taken."""
    raise OSError("OS file watch limit reached")


def broken(_paths: Sequence[str]) -> Notifier:
    """Watch with a defect."""
    raise KeyError("a defect")


class Silent:
    """What tells nothing of any change, as of what others write over a network."""

    def __init__(self, _paths: Sequence[str]) -> None:
        self._nothing: set[tuple[int, str]] = set()

    def watch(self, _most: int, _step: int, timeout_ms: int, stop_event: threading.Event) -> set[tuple[int, str]] | str:
        """Wait in vain."""
        stop_event.wait(timeout_ms / 1000 or None)
        return self._nothing

    def close(self) -> None:
        """Tell no more."""


class Forgetful(Silent):
    """What loses the notice of a change while it tells of something else."""

    def __init__(self, change: Callable[[], object]) -> None:
        super().__init__([])
        self._changes = [change]

    def watch(self, most: int, step: int, timeout_ms: int, stop_event: threading.Event) -> set[tuple[int, str]] | str:
        """Tell once, then wait in vain."""
        if self._changes:
            self._changes.pop()()
            return {(1, "/elsewhere")}
        super().watch(most, step, timeout_ms, stop_event)
        return "stop" if stop_event.is_set() else "timeout"


async def test_a_change_whose_notice_is_lost_is_found_by_a_look_after_others(file: Path) -> None:
    """As watchfiles loses one that comes while it hands over what came before."""
    async with ears(FileWatcher(lambda _paths: Forgetful(partial(put, file, "other")), look=0.05)) as here:
        here.watch(file)
        assert await here.next() == "f"


class Failing(Silent):
    """What breaks off as soon as it is waited for."""

    def watch(self, *_given: object) -> set[tuple[int, str]] | str:
        """Fail."""
        raise RuntimeError("error in underlying watcher")


@pytest.mark.parametrize(
    ("notify", "why"),
    [
        (no_watches, "OS file watch limit reached"),
        (broken, "KeyError (bug, please report)"),
        (Failing, "error in underlying watcher"),
        (Silent, "is on a file system of type nfs4"),
    ],
)
async def test_without_notices_files_are_looked_at(
    file: Path, top: Path, notify: Callable[[Sequence[str]], Notifier], why: str
) -> None:
    """Which is said once, however often they change; one that stays as it is is not heard of."""
    mounts = top / "mounts"
    if notify is Silent:
        put(mounts, f"1 1 {device(file)} / / rw - nfs4 there rw\n")
    with capture_logs() as logs:
        async with ears(FileWatcher(notify, mounts, look=0.01)) as here:
            here.watch(file)
            for change in (renamed_over, directory_again, rewritten):
                change(file)
                assert await here.next() == "f"
            here.watch(file, name="beside")
            put(file, "longer")
            assert {await here.next(), await here.next()} == {"f", "beside"}
            assert here.heard.empty()
    (said,) = logs
    assert (said["event"], said["log_level"]) == ("cannot watch files for changes, polling them instead", "warning")
    assert why in said["error"]


_IN_A_NAMESPACE = """
import asyncio, sys
from pathlib import Path
from tensile.kube.file_watch import FileWatcher, watched
Path("/proc/sys/user/max_inotify_instances").write_text("0")
file = Path(sys.argv[1])
async def main():
    watcher, changed = FileWatcher(look=0.01), asyncio.Event()
    watcher.watch(watched([file]), changed.set)
    file.write_text("other")
    await asyncio.wait_for(changed.wait(), 20)
    await watcher.close()
asyncio.run(main())
"""


@pytest.mark.process
def test_a_system_that_gives_no_watcher_is_really_met_so(file: Path) -> None:
    """As in a user namespace that may have none."""
    run = ["unshare", "--user", "--map-root-user", sys.executable, "-c"]
    if shutil.which("unshare") is None or subprocess.run([*run, ""], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    done = subprocess.run([*run, _IN_A_NAMESPACE, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Too many open files") == 1


async def test_files_are_read_once_and_again_when_they_changed(file: Path) -> None:
    """Also one that cannot be read; who wants to know is told."""
    told: list[str] = []
    other = file.with_name("other")
    async with ears(FileWatcher()) as here:
        kept = FileCache(here.watcher, (file, other), lambda: told.append("changed"))
        assert kept.read(file) == b"first"
        with pytest.raises(FileNotFoundError, match="other"):
            kept.read(other)
        async with heard(here.watcher, file, other):
            put(file, "second")
            put(other, "there now")
            assert kept.read(file) == b"first"
            with pytest.raises(FileNotFoundError):
                kept.read(other)
        assert (kept.read(file), kept.read(other), told) == (b"second", b"there now", ["changed"])
        kept.close()
        put(file, "third")
        assert kept.read(file) == b"third"
        kept.close()


async def test_a_directory_that_goes_while_it_is_about_to_be_watched_costs_nothing(file: Path) -> None:
    """It is looked again what there is; only what stays missing is looked at instead."""
    begun, tries = Begun(), 0

    def notify(paths: Sequence[str]) -> Notifier:
        """Miss one of them, the first time."""
        nonlocal tries
        tries += 1
        if tries == 1:
            raise FileNotFoundError("No such file or directory")
        return begun.notify(paths)

    with capture_logs() as logs:
        async with ears(FileWatcher(notify)) as here:
            here.watch(file)
            await begun.until(file.parent)
            put(file, "other")
            assert await here.next() == "f"
    assert (tries, logs) == (2, [])


def test_nothing_is_watched_for_a_loop_that_has_ended(file: Path) -> None:
    """Whoever forgot to close leaves no thread behind, once there is something to tell."""
    watcher = FileWatcher()

    async def leave() -> None:
        """Watch, and go."""
        watcher.watch(watched([file]), lambda: None)

    asyncio.run(leave())
    (thread,) = (one for one in threading.enumerate() if one.name == "file watch")
    file.write_text("other")
    thread.join(PATIENCE)
    assert threads() == []
