"""Runs the suite on one side, by Ginkgo in several processes, until it ends or this process does.

The tests are selected by Ginkgo's labels, which upstream sets. Nothing of upstream is changed, and its timeouts stay.
"""

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.conformance.programs import Programs
from tensile.sandbox.processes import MARK
from tensile.text import Progress

SIGS = ("sig-apps", "sig-cli", "sig-node", "sig-storage")
REPORT = "report.json"
LOG = "ginkgo.log"
PROCESSES = 6
SAY_EVERY = 60.0
ENDING = 20.0
DONE = "•"


class Selection(NamedTuple):
    """Which tests to run: a regular expression of their names ("" for all), and whether Serial and Slow tests too."""

    focus: str = ""
    serial: bool = False

    @property
    def labels(self) -> str:
        """The label filter for Ginkgo."""
        own = f"Conformance && ({' || '.join(SIGS)})"
        return own if self.serial else f"{own} && !Serial && !Slow"


def by_names(names: Iterable[str]) -> str:
    """Return the regular expression, in Go's syntax, that matches tests of exactly these names."""
    return "|".join(re.escape(name).replace("\\ ", " ") for name in names)


class Side(NamedTuple):
    """Where the suite is run: the cluster's kubeconfig and kubectl, and a folder for its output."""

    name: str
    kubeconfig: Path
    kubectl: str
    folder: Path
    identity: str


def command(programs: Programs, selection: Selection, side: Side, processes: int) -> list[str]:
    """Return the command line of Ginkgo, followed by that of the suite."""
    return [
        str(programs.ginkgo),
        "run",
        f"--procs={processes}",
        "--no-color",
        "--silence-skips",
        "--timeout=6h",
        f"--label-filter={selection.labels}",
        *([f"--focus={selection.focus}"] if selection.focus else []),
        f"--json-report={REPORT}",
        f"--output-dir={side.folder}",
        str(programs.suite),
        "--",
        f"--kubeconfig={side.kubeconfig}",
        f"--kubectl-path={side.kubectl}",
        "--provider=local",
        "--disable-log-dump",
    ]


def run(line: list[str], side: Side, progress: Progress) -> Path:
    """Run the suite and return its report; a signal that ends this process ends the suite too."""
    side.folder.mkdir(parents=True, exist_ok=True)
    log = side.folder / LOG
    with log.open("wb") as sink, _started(line, side, sink.fileno()) as process:
        begun = time.monotonic()
        while process.poll() is None:
            try:
                process.wait(SAY_EVERY)
            except subprocess.TimeoutExpired:
                done = log.read_text(errors="replace").count(DONE)
                progress(f"{side.name}: {done} tests after {(time.monotonic() - begun) / 60:.0f} min")
    report = side.folder / REPORT
    if not report.exists():
        raise RuntimeError(f"{side.name}: the suite left no report; {log} ends with:\n{_end(log)}")
    return report


@contextmanager
def _started(line: list[str], side: Side, sink: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run the suite in its own process group, which is killed by its number when the block ends.

    Its temporary files, of which some tests leave a few, are in a folder that is removed with it.
    """
    with tempfile.TemporaryDirectory() as scratch:
        variables = {**os.environ, MARK: side.identity, "TMPDIR": scratch}
        process = subprocess.Popen(
            line,
            cwd=side.folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(ENDING)


def _end(log: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
