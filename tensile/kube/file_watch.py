"""Watches files: reports when one of them may have changed, by notices of the system (inotify, through watchfiles).

Editors rename, Kubernetes swaps a symlink, tools delete directories and create them again, and some files are created
after the watch. So every directory and symlink on the path to a file is watched, and a notice only says that it is time
to check. `on_change` is called once the files were unchanged for a moment. All files of a process share one watcher, as
the system limits them per user. Where none is available, or the system does not report changes (directories that other
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
"""Seconds without a change until `on_change` is called. Longer than a notice takes."""
POLL_SECONDS = 0.5
"""Seconds between two polls where the system does not report changes."""
_RETRY_SECONDS = 60.0
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


class _WatchSettings(NamedTuple):
    """The arguments of FileWatcher."""

    notify: Notify
    mounts: Path
    poll_seconds: float


class FileWatch:
    """A set of files that is watched until `close`. Created by FileWatcher.watch."""

    def __init__(self, seen: FileStates, on_change: Callable[[], object], watcher: "FileWatcher") -> None:
        self.seen = seen
        self._on_change = on_change
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
            self._watcher.update()

    def record_notice(self) -> None:
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
        self._on_change()


class FileWatcher:
    """Watches any number of files. Used inside one event loop. After `close` no thread is left.

    `notify` creates a notifier for paths, `mounts` is where the system lists mounts, and `poll_seconds` is the time
    between two polls of files whose changes are not reported.
    """

    def __init__(self, notify: Notify = notifier, mounts: Path = _MOUNTS, poll_seconds: float = POLL_SECONDS) -> None:
        self._settings = _WatchSettings(notify, mounts, poll_seconds)
        self._watches: dict[FileWatch, None] = {}
        self._lock = threading.Lock()
        self._edited = threading.Event()
        self._ended: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def watch(self, seen: FileStates, on_change: Callable[[], object]) -> FileWatch:
        """Call `on_change` whenever one of these files may have changed since `seen`."""
        watch = FileWatch(seen, on_change, self)
        with self._lock:
            self._watches[watch] = None
        self.update()
        return watch

    def update(self) -> None:
        """Start the thread if there are files to watch, and make it read the list of files again."""
        with self._lock:
            if self._ended is None and any(watch.seen.paths for watch in self._watches):
                loop, ended = asyncio.get_running_loop(), asyncio.Event()
                next_watches, report = partial(self._next_watches, loop, ended), partial(self._report, loop)
                rounds = _Rounds(next_watches, report, self._edited, self._settings)
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

    def _next_watches(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> tuple[FileWatch, ...]:
        """Return the watches for the next round of the thread. Without any, the thread ends."""
        with self._lock:
            self._edited.clear()
            found = tuple(watch for watch in self._watches if watch.seen.paths)
            if not found:
                self._ended = None
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(ended.set)
            return found

    def _report(self, loop: asyncio.AbstractEventLoop, watches: Sequence[FileWatch]) -> None:
        """Pass changes to the event loop. If that is closed, remove all watches."""
        try:
            loop.call_soon_threadsafe(self._record_notices, watches)
        except RuntimeError:
            with self._lock:
                self._watches.clear()
            self._edited.set()

    def _record_notices(self, watches: Sequence[FileWatch]) -> None:
        for watch in watches:
            if watch in self._watches:
                watch.record_notice()


class FileCache:
    """A cache of file contents. When a file may have changed, it is emptied and `on_change` is called.

    The files are watched from the first read until `close`. `read` reads a file, and raises OSError.
    """

    def __init__(
        self,
        watcher: FileWatcher,
        paths: Iterable[Path],
        on_change: Callable[[], None] = lambda: None,
        *,
        read: Callable[[Path], bytes] = Path.read_bytes,
    ) -> None:
        self._on_change = on_change
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
        self._on_change()


class _WatchPlan(NamedTuple):
    """What to watch for all files: `targets`, and the watches that a path concerns. No notices come for `unwatchable`.

    A modification in place concerns only the content for `ends`, which are files. For other paths it may change where a
    file is.
    """

    targets: set[str]
    concerned: dict[str, list[FileWatch]]
    ends: set[str]
    unwatchable: list[FileWatch]


@dataclass
class _PollState:
    """The states of one watch's files: when its caller read them, when last reported, and in the last poll."""

    given: FileStates
    known: FileStates
    last: FileStates


class _Rounds:
    """The work of the thread, in rounds. Each round begins by finding out what to watch."""

    def __init__(
        self,
        next_watches: Callable[[], tuple[FileWatch, ...]],
        report: Callable[[Sequence[FileWatch]], None],
        edited: threading.Event,
        settings: _WatchSettings,
    ) -> None:
        self._next_watches = next_watches
        self._report = report
        self._edited = edited
        self._settings = settings
        self._states: dict[FileWatch, _PollState] = {}
        self._logged: set[str] = set()
        self._missed: set[str] = set()
        """The targets of the last round that failed because one of them was gone."""

    def run(self) -> None:
        """Watch until there is nothing to watch."""
        while watches := self._next_watches():
            before, self._states = self._states, {}
            for watch in watches:
                seen, state = watch.seen, before.get(watch)
                self._states[watch] = state if state and state.given is seen else _PollState(seen, seen, seen)
            try:
                self._round(watches)
            except (OSError, RuntimeError) as error:
                self._poll_for_a_while(watches, str(error))
            except Exception as error:  # noqa: BLE001 - after any error the engine still notices changes
                self._poll_for_a_while(watches, f"{type(error).__name__} (bug, please report)")

    def _round(self, watches: Sequence[FileWatch]) -> None:
        """Watch until the set of paths to watch changes. Raises OSError and RuntimeError where that is not possible."""
        plan = self._plan_watch(watches)
        try:
            notices = self._settings.notify(sorted(plan.targets))
        except FileNotFoundError:
            if plan.targets == self._missed:
                raise
            self._missed = plan.targets
            self._edited.wait(_STEP / 1000)
            return
        try:
            self._report_missed(watches)
            self._process_notices(notices, plan, watches)
        finally:
            notices.close()

    def _process_notices(self, notices: Notifier, plan: _WatchPlan, watches: Sequence[FileWatch]) -> None:
        """Process notices until a file may be elsewhere, or other files are to be watched.

        After notices all files are compared, at most as often as files are polled without notices. The reason:
        watchfiles loses notices that arrive while it returns earlier ones, and the system loses some in a flood.
        """
        compared, is_due = time.monotonic(), False
        while not self._edited.is_set():
            timeout_ms = int(self._settings.poll_seconds * 1000) if plan.unwatchable or is_due else 0
            found = notices.watch(_DEBOUNCE, _STEP, timeout_ms, self._edited)
            self._poll(plan.unwatchable)
            is_due = is_due or not isinstance(found, str)
            if is_due and (found == "timeout" or time.monotonic() - compared >= self._settings.poll_seconds):
                self._report_missed(watches)
                compared, is_due = time.monotonic(), False
            if not isinstance(found, str):
                names = {name for _, name in found if name in plan.concerned}
                self._report_changes({watch for name in names for watch in plan.concerned[name]})
                if any(name in names and (change != _MODIFIED or name not in plan.ends) for change, name in found):
                    return

    def _plan_watch(self, watches: Sequence[FileWatch]) -> _WatchPlan:
        """Find the path to each file, and which of its changes the system reports."""
        mounts = read_mounts(_text(self._settings.mounts))
        trails: dict[Path, ResolvedPath] = {}
        plan = _WatchPlan(set(), {}, set(), [])
        for watch in watches:
            reason = ""
            for path in watch.seen.paths:
                if path not in trails:
                    trails[path] = resolve_path(path, mounts)
                trail = trails[path]
                plan.targets.update(trail.targets)
                plan.ends.add(trail.end)
                reason = reason or trail.unwatchable
                for name in trail.names:
                    plan.concerned.setdefault(name, []).append(watch)
            if reason:
                self._log_polling(reason)
                plan.unwatchable.append(watch)
        return plan

    def _report_missed(self, watches: Sequence[FileWatch]) -> None:
        """Report what changed before it was watched."""
        self._report_changes(
            {watch for watch in watches if self._states[watch].known.again() != self._states[watch].known}
        )

    def _report_changes(self, watches: set[FileWatch]) -> None:
        """Report changes, to the oldest watch first. A later change is reported again."""
        changed = [watch for watch in self._states if watch in watches]
        for watch in changed:
            state = self._states[watch]
            state.known = state.last = state.given.again()
        if changed:
            self._report(changed)

    def _poll_for_a_while(self, watches: Sequence[FileWatch], reason: str) -> None:
        """Poll files for a while, as the system does not report changes."""
        self._log_polling(reason)
        for _ in range(int(_RETRY_SECONDS / self._settings.poll_seconds)):
            self._poll(watches)
            if self._edited.wait(self._settings.poll_seconds):
                return

    def _poll(self, watches: Sequence[FileWatch]) -> None:
        """Poll files once. Report those that changed and were the same in two polls since."""
        changed = set()
        for watch in watches:
            state = self._states[watch]
            before, state.last = state.last, state.known.again()
            if before == state.last != state.known:
                changed.add(watch)
        self._report_changes(changed)

    def _log_polling(self, reason: str) -> None:
        if reason not in self._logged:
            _log.warning("cannot watch files for changes, polling them instead", error=reason)
        self._logged.add(reason)


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
