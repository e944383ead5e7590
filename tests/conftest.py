"""Fixtures and hooks of all tests: one sandbox of real control planes for the whole run, whatever its processes.

It starts when the first test needs it and ends with the run, even if the run is killed. $TENSILE_SANDBOX names the
directory of a running sandbox to use instead, which saves the start while a test is being written.
"""

import gc
import os
import re
import signal
import sys
from bisect import bisect
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, flock
from itertools import accumulate
from pathlib import Path

import properties
import pytest
import shares
from forkserver import FORKS
from xdist.remote import Producer
from xdist.scheduler import EachScheduling, LoadScopeScheduling

from tensile.sandbox import state
from tensile.sandbox.sandbox import Sandbox

OWN_SANDBOX = {
    "tests/sandbox/test_demo.py",
    "tests/docs/test_run.py",
    "tests/e2e/test_bare_e2e.py",
    "tests/e2e/test_descheduler_e2e.py",
    "tests/e2e/test_predictions_e2e.py",
    "tests/e2e/test_restored_e2e.py",
    "tests/e2e/test_rights_e2e.py",
    "tests/e2e/test_spread_e2e.py",
    "tests/e2e/test_extender_e2e.py",
    "tests/e2e/test_older_kubernetes.py",
    "tests/e2e/test_streams.py",
    "tests/e2e/test_webhook_e2e.py",
    "tests/faults/test_credentials_real.py",
    "tests/faults/test_faults_real.py",
    "tests/faults/test_kubectl_real.py",
    "tests/faults/test_replaced_real.py",
    "tests/faults/test_strangers.py",
    "tests/faults/test_webhook_cost_real.py",
    "tests/kube/test_fleet_real.py",
    "tests/packaging/test_install.py",
    "tests/policy/placement/test_placement_real.py",
    "tests/sandbox/test_addons_real.py",
    "tests/sandbox/test_real_node_real.py",
    "tests/sandbox/test_faults_real.py",
    "tests/sandbox/test_lifecycle_real.py",
}
SLOW = (
    "tests/bench/",
    "tests/faults/",
    "tests/packaging/",
    "tests/docs/test_site_built.py",
    "tests/e2e/test_approval_e2e.py",
    "tests/e2e/test_manifests_e2e.py",
    "tests/e2e/test_mistakes.py",
    "tests/engine/status/test_page_seen.py",
    "tests/e2e/test_replicas.py",
)
"""Folders and files of campaigns, of tools in bench/, and of installations. `make test-all` runs them and those with
their own sandboxes; `make touched` runs those that a change may affect."""
READ_SOURCES = {
    "tests/docs/test_conditions.py",
    "tests/docs/test_messages.py",
    "tests/docs/test_site.py",
    "tests/docs/test_words.py",
}
"""Files whose tests share the syntax trees of all modules."""
SCATTERED = {"tests/faults/test_hostility.py", "tests/faults/test_races.py", "tests/faults/test_sequences.py"}
"""Files of long tests in memory that share nothing: each test runs in any process that is free."""
_ALL_REAL = re.compile(rb"^pytestmark = \[?pytest\.mark\.real\b", re.MULTILINE)
"""The line that marks all tests of a file as needing the sandbox."""


properties.load()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make unit`."""
    parser.addoption(
        "--shares", action="store_true", help="each process of -n collects a share of the files of its own"
    )


def pytest_configure() -> None:
    """Restore SIGINT for programs that tests start, even if the tests run in the background of a shell.

    Such a shell ignores SIGINT for everything that it starts, and child processes inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_slow(file: str) -> bool:
    """Report whether `make test` leaves the tests of a file, by its path from the root, to `make test-all`."""
    return file in OWN_SANDBOX or file.startswith(SLOW)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files whose tests `-m` deselects all, which are a quarter, because importing them takes seconds.

    A file that is named on the command line is always imported.
    """
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    unwanted = {mark for mark in ("real", "slow") if f"not {mark}" in config.getoption("markexpr")}
    if "slow" in unwanted and is_slow(collection_path.relative_to(config.rootpath).as_posix()):
        return True
    if "real" in unwanted and _ALL_REAL.search(collection_path.read_bytes()):
        return True
    return True if _is_of_another_process(collection_path, config) else None


def _is_of_another_process(file: Path, config: pytest.Config) -> bool:
    """Report whether the files are divided among the processes of this run, and another process has this file."""
    worker = getattr(config, "workerinput", None)
    if worker is None or not config.getoption("shares"):
        return False
    of_files = shares.of_files(config.rootpath, worker["workercount"], frozenset(READ_SOURCES))
    return worker["workerid"] != f"gw{of_files[file.relative_to(config.rootpath).as_posix()]}"


class Rotated(pytest.Dir):
    """The folders and files of tests/, of which each process of a run starts with a different one.

    pytest caches what it compiles, which on a fresh machine takes most of the time of a start. Processes that start
    with the same file would all compile it. The order of the tests is the same in all.
    """

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        """Return the entries, starting with this process's share of the files."""
        found = list(super().collect())
        worker = getattr(self.config, "workerinput", {"workerid": "gw0", "workercount": 1})
        share = int(worker["workerid"].removeprefix("gw")) / worker["workercount"]
        sizes = [sum(1 for _ in one.path.rglob("test_*.py")) if one.path.is_dir() else 1 for one in found]
        first = bisect([*accumulate(sizes)], share * sum(sizes))
        return [*found[first:], *found[:first]]


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect tests/ with `Rotated`."""
    return Rotated.from_parent(parent, path=path) if path == Path(__file__).parent else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by file, and mark those that `make test` leaves to `make test-all`."""
    items.sort(key=lambda item: item.path.parts)
    for item in items:
        if is_slow(item.nodeid.partition("::")[0]):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Exclude modules from later garbage collections: one follows each file, and modules are most of their work."""
    gc.collect()
    gc.freeze()


class Sharing(LoadScopeScheduling):
    """A scheduler that runs the tests of most files in one process, so that their fixtures are created once.

    Files that start their own sandboxes go to the same process, because three sandboxes at once need more inotify
    instances than a user has. So do files that parse the source of the whole engine, which takes seconds.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file in SCATTERED:
            return nodeid
        if file in READ_SOURCES:
            return "sources of the engine"
        return "sandboxes of their own" if file in OWN_SANDBOX else file


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Collect garbage after each file, so that what its tests left open is reported there and not for another test.

    What remains, such as caches of modules, is frozen, because it would be traversed again after each later file.
    """
    yield
    if nextitem is None or nextitem.path != item.path:
        if isinstance(item, pytest.Function):
            item.funcargs.clear()  # otherwise they are still referenced
        left = Counter(left_open())
        gc.freeze()
        assert not left, f"left open: {left.most_common(5)}"


def left_open() -> list[str]:
    """Collect garbage, and return a line for each object that warns of being left open; pytest only counts them."""
    found: list[str] = []
    known, sys.unraisablehook = sys.unraisablehook, lambda warnings_shown: found.append(repr(warnings_shown.exc_value))
    try:
        gc.collect()
    finally:
        sys.unraisablehook = known
    return found


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Sharing | EachScheduling:
    """Share the work by file; with --shares, each process runs all that it has collected."""
    return EachScheduling(config, log) if config.getoption("shares") else Sharing(config, log)


@pytest.fixture(scope="session", autouse=True)
def _forks() -> Iterator[None]:
    """End the process from which commands are forked."""
    yield
    FORKS.close()


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One upper cluster and two lowers of three nodes each, shared: each test uses its own namespace."""
    running = os.environ.get("TENSILE_SANDBOX")
    if running:
        yield Sandbox.attach(Path(running))
        return
    basis = tmp_path_factory.getbasetemp()
    with joined(basis.parent if "PYTEST_XDIST_WORKER" in os.environ else basis) as shared:
        yield shared


@contextmanager
def joined(place: Path) -> Iterator[Sandbox]:
    """Start the sandbox in a folder, or use the one that another process of this run has started there.

    The process that started it stops it when no other process uses it.
    """
    with (place / "sandbox.start").open("w") as start, (place / "sandbox.use").open("w") as use:
        flock(start, LOCK_EX)
        if state.load(place / "sandbox") is not None:
            flock(use, LOCK_SH)
            flock(start, LOCK_UN)
            yield Sandbox.attach(place / "sandbox")
            return
        with Sandbox.start(place / "sandbox", progress=print) as started:
            flock(start, LOCK_UN)
            yield started
            flock(start, LOCK_EX)
            flock(use, LOCK_EX)
