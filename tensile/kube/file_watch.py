"""Watches files: reports when one of them may have changed, by notices of the system (inotify, through watchfiles).

Editors rename, Kubernetes swaps a symlink, tools delete directories and create them again, and some files are created
after the watch. So every directory and symlink on the path to a file is watched, and a notice only says that it is time
to check. `hear` is called once the files were unchanged for a moment. All files of a process share one watcher, as the
system limits them per user. Where none is available, or the system does not report changes (directories that other
machines write to over a network), the files are polled twice a second instead, which is logged once.

Blocking work (checking files, waiting for notices) runs in a thread, which exists while anything is watched.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import structlog
from watchfiles import Change
from watchfiles._rust_notify import RustNotify

from tensile.kube.files import ResolvedPath, read_mounts, resolve_path

SETTLE = 0.25
"""Seconds without a change until `hear` is called. Longer than a notice takes."""
LOOK = 0.5
"""Seconds between two polls where the system does not report changes."""
_AGAIN = 60.0
"""Seconds between two tries to get notices from a system that refused them."""
_STEP, _DEBOUNCE = 100, 400
"""Milliseconds: between two checks for notices, and for which notices are collected at most."""
_MODIFIED = int(Change.modified)
_MOUNTS = Path("/proc/self/mountinfo")
_log = structlog.get_logger("tensile.kube.file_watch")
_Mark = tuple[int, ...]


class FileStates(NamedTuple):
    """Files with their state when last checked; equal if none of them changed in between."""

    paths: tuple[Path, ...] = ()
    marks: tuple[_Mark, ...] = ()

    def again(self) -> "FileStates":
        """Check the same files now."""
        return FileStates(self.paths, tuple(map(_mark, self.paths)))


def watched(paths: Iterable[str | Path]) -> FileStates:
    """Check files before they are read, so that a write during the read counts as a change."""
    return FileStates(tuple(map(Path, paths))).again()


class Notifier(Protocol):
    """Reports changes in directories; the interface of watchfiles.RustNotify."""

    def watch(
        self, debounce_ms: int, step_ms: int, timeout_ms: int, stop_event: threading.Event, /
    ) -> set[tuple[int, str]] | str:
        """Wait for changes, the time-out (0: none) or the event. Return a string for anything but changes."""
        ...

    def close(self) -> None:
        """Stop reporting."""
        ...


def notifier(paths: Sequence[str]) -> Notifier:
    """Return a notifier for files and for the entries of directories; raises OSError and RuntimeError."""
    return RustNotify(list(paths), False, False, 0, False, False)


Notify = Callable[[Sequence[str]], Notifier]


class _How(NamedTuple):
    """The arguments of FileWatcher."""

    notify: Notify
    mounts: Path
    look: float


class FileWatch:
    """A set of files that is watched until `close`. Created by FileWatcher.watch."""

    def __init__(self, seen: FileStates, hear: Callable[[], object], watcher: "FileWatcher") -> None:
        self.seen = seen
        self._hear = hear
        self._watcher = watcher
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self.close()

    def follow(self, seen: FileStates) -> None:
        """Watch these files instead; `seen` is their state from before they were read."""
        if seen.paths != self.seen.paths:
            self.seen = seen
            self._watcher.attend()

    def stir(self) -> None:
        """Record a possible change. The callback runs once no other follows for SETTLE seconds."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(SETTLE, self._settled)

    def close(self) -> None:
        """Stop watching. The callback is not called any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._watcher.drop(self)

    def _settled(self) -> None:
        self._timer = None
        self._hear()


class FileWatcher:
    """Watches any number of files. Used inside one event loop. After `close` no thread is left.

    `notify` creates a notifier for paths, `mounts` is where the system lists mounts, and `look` is the seconds between
    two polls of files whose changes are not reported.
    """

    def __init__(self, notify: Notify = notifier, mounts: Path = _MOUNTS, look: float = LOOK) -> None:
        self._how = _How(notify, mounts, look)
        self._watches: dict[FileWatch, None] = {}
        self._lock = threading.Lock()
        self._edited = threading.Event()
        self._ended: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def watch(self, seen: FileStates, hear: Callable[[], object]) -> FileWatch:
        """Call `hear` whenever one of these files may have changed since `seen`."""
        made = FileWatch(seen, hear, self)
        with self._lock:
            self._watches[made] = None
        self.attend()
        return made

    def attend(self) -> None:
        """Start the thread if there are files to watch, and make it read the list of files again."""
        with self._lock:
            if self._ended is None and any(watch.seen.paths for watch in self._watches):
                loop, ended = asyncio.get_running_loop(), asyncio.Event()
                turn, tell = partial(self._turn, loop, ended), partial(self._tell, loop)
                rounds = _Rounds(turn, tell, self._edited, self._how)
                self._ended = ended
                self._thread = threading.Thread(target=rounds.run, name="file watch", daemon=True)
                self._thread.start()
        self._edited.set()

    def drop(self, watch: FileWatch) -> None:
        """Remove one watch."""
        with self._lock:
            self._watches.pop(watch, None)
        self._edited.set()

    async def close(self) -> None:
        """Remove all watches. Return once the thread has ended."""
        for watch in tuple(self._watches):
            watch.close()
        ended, thread = self._ended, self._thread
        if ended is not None:
            await ended.wait()
        if thread is not None:
            thread.join()

    def _turn(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> tuple[FileWatch, ...]:
        """Return the watches for the next round of the thread. Without any, the thread ends."""
        with self._lock:
            self._edited.clear()
            found = tuple(watch for watch in self._watches if watch.seen.paths)
            if not found:
                self._ended = None
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(ended.set)
            return found

    def _tell(self, loop: asyncio.AbstractEventLoop, watches: Sequence[FileWatch]) -> None:
        """Pass changes to the event loop. If that is closed, remove all watches."""
        try:
            loop.call_soon_threadsafe(self._stir, watches)
        except RuntimeError:
            with self._lock:
                self._watches.clear()
            self._edited.set()

    def _stir(self, watches: Sequence[FileWatch]) -> None:
        for watch in watches:
            if watch in self._watches:
                watch.stir()


class FileCache:
    """A cache of file contents. When a file may have changed, it is emptied and `hear` is called.

    The files are watched from the first read until `close`. `read` reads a file, and raises OSError.
    """

    def __init__(
        self,
        watcher: FileWatcher,
        paths: Iterable[Path],
        hear: Callable[[], None] = lambda: None,
        *,
        read: Callable[[Path], bytes] = Path.read_bytes,
    ) -> None:
        self._hear = hear
        self._read = read
        self._watcher = watcher
        self._paths = tuple(paths)
        self._kept: dict[Path, bytes | OSError] = {}
        self._watch: FileWatch | None = None

    def read(self, path: Path) -> bytes:
        """Return the content of one of the files. Raises OSError."""
        if self._watch is None:
            self._watch = self._watcher.watch(watched(self._paths), self._forget)
        if path not in self._kept:
            try:
                self._kept[path] = self._read(path)
            except OSError as error:
                self._kept[path] = error
        found = self._kept[path]
        if isinstance(found, OSError):
            raise found.with_traceback(None)
        return found

    def close(self) -> None:
        """Stop watching, and drop the contents."""
        if self._watch is not None:
            self._watch.close()
        self._watch = None
        self._kept.clear()

    def _forget(self) -> None:
        self._kept.clear()
        self._hear()


class _Survey(NamedTuple):
    """What to watch for all files: `targets`, and the watches that a path concerns. `dark` watches get no notices.

    A modification in place concerns only the content for `ends`, which are files. For other paths it may change where a
    file is.
    """

    targets: set[str]
    concerned: dict[str, list[FileWatch]]
    ends: set[str]
    dark: list[FileWatch]


@dataclass
class _Looked:
    """The states of one watch's files: when its caller read them, when last reported, and in the last poll."""

    given: FileStates
    known: FileStates
    last: FileStates


class _Rounds:
    """The work of the thread, in rounds. Each round begins by finding out what to watch."""

    def __init__(
        self,
        turn: Callable[[], tuple[FileWatch, ...]],
        tell: Callable[[Sequence[FileWatch]], None],
        edited: threading.Event,
        how: _How,
    ) -> None:
        self._turn = turn
        self._tell = tell
        self._edited = edited
        self._how = how
        self._looked: dict[FileWatch, _Looked] = {}
        self._said: set[str] = set()
        self._missed: set[str] = set()
        """The targets of the last round that failed because one of them was gone."""

    def run(self) -> None:
        """Watch until there is nothing to watch."""
        while watches := self._turn():
            before, self._looked = self._looked, {}
            for watch in watches:
                seen, looked = watch.seen, before.get(watch)
                self._looked[watch] = looked if looked and looked.given is seen else _Looked(seen, seen, seen)
            try:
                self._round(watches)
            except (OSError, RuntimeError) as error:
                self._look_on(watches, str(error))
            except Exception as error:  # noqa: BLE001 - after any error the engine still notices changes
                self._look_on(watches, f"{type(error).__name__} (bug, please report)")

    def _round(self, watches: Sequence[FileWatch]) -> None:
        """Watch until the set of paths to watch changes. Raises OSError and RuntimeError where that is not possible."""
        survey = self._survey(watches)
        try:
            told = self._how.notify(sorted(survey.targets))
        except FileNotFoundError:
            if survey.targets == self._missed:
                raise
            self._missed = survey.targets
            self._edited.wait(_STEP / 1000)
            return
        try:
            self._compare(watches)
            self._attend(told, survey, watches)
        finally:
            told.close()

    def _attend(self, told: Notifier, survey: _Survey, watches: Sequence[FileWatch]) -> None:
        """Process notices until a file may be elsewhere, or other files are to be watched.

        After notices all files are compared, at most as often as files are polled without notices. The reason:
        watchfiles loses notices that arrive while it returns earlier ones, and the system loses some in a flood.
        """
        compared, is_due = time.monotonic(), False
        while not self._edited.is_set():
            patience = int(self._how.look * 1000) if survey.dark or is_due else 0
            found = told.watch(_DEBOUNCE, _STEP, patience, self._edited)
            self._look(survey.dark)
            is_due = is_due or not isinstance(found, str)
            if is_due and (found == "timeout" or time.monotonic() - compared >= self._how.look):
                self._compare(watches)
                compared, is_due = time.monotonic(), False
            if not isinstance(found, str):
                names = {name for _, name in found if name in survey.concerned}
                self._note({watch for name in names for watch in survey.concerned[name]})
                if any(name in names and (change != _MODIFIED or name not in survey.ends) for change, name in found):
                    return

    def _survey(self, watches: Sequence[FileWatch]) -> _Survey:
        """Find the path to each file, and which of its changes the system reports."""
        mounts = read_mounts(_text(self._how.mounts))
        trails: dict[Path, ResolvedPath] = {}
        survey = _Survey(set(), {}, set(), [])
        for watch in watches:
            why = ""
            for path in watch.seen.paths:
                if path not in trails:
                    trails[path] = resolve_path(path, mounts)
                trail = trails[path]
                survey.targets.update(trail.targets)
                survey.ends.add(trail.end)
                why = why or trail.dark
                for name in trail.names:
                    survey.concerned.setdefault(name, []).append(watch)
            if why:
                self._go_blind(why)
                survey.dark.append(watch)
        return survey

    def _compare(self, watches: Sequence[FileWatch]) -> None:
        """Report what changed before it was watched."""
        self._note({watch for watch in watches if self._looked[watch].known.again() != self._looked[watch].known})

    def _note(self, watches: set[FileWatch]) -> None:
        """Report changes, to the oldest watch first. A later change is reported again."""
        told = [watch for watch in self._looked if watch in watches]
        for watch in told:
            looked = self._looked[watch]
            looked.known = looked.last = looked.given.again()
        if told:
            self._tell(told)

    def _look_on(self, watches: Sequence[FileWatch], why: str) -> None:
        """Poll files for a while, as the system does not report changes."""
        self._go_blind(why)
        for _ in range(int(_AGAIN / self._how.look)):
            self._look(watches)
            if self._edited.wait(self._how.look):
                return

    def _look(self, watches: Sequence[FileWatch]) -> None:
        """Poll files once. Report those that changed and were the same in two polls since."""
        changed = set()
        for watch in watches:
            looked = self._looked[watch]
            before, looked.last = looked.last, looked.known.again()
            if before == looked.last != looked.known:
                changed.add(watch)
        self._note(changed)

    def _go_blind(self, why: str) -> None:
        if why not in self._said:
            _log.warning("cannot watch files for changes, polling them instead", error=why)
        self._said.add(why)


def _mark(path: Path) -> _Mark:
    """Return values of which one changes whenever the file does, () if it does not exist."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _text(path: Path) -> str:
    """Return the text of a file of /proc, "" if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
