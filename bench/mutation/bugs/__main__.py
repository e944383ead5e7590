"""Puts bugs into a copy of the engine, one at a time, and runs the tests that should detect each.

    .venv/bin/python -m bench.mutation.bugs [--only TEXT] [--sequences 200]

A bug that no test detects could come back unnoticed: write the test. With `--sequences`, that number of random
sequences is played against each bug as well, which shows what the sequences detect.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.kit.reporting import RESULTS, keep, verdict
from bench.mutation.bugs.table import BUGS, Bug

NAME = "faults-bugs"
ROOT = Path(__file__).resolve().parents[3]
_COPIED = ("tensile", "tests", "bench", "pyproject.toml")
_PATIENCE = 240
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_SEED = 1
_HASTY = "tests/kube/test_informer.py::test_an_audit_list_runs_although_every_watch_is_shorter_than_its_interval"
"""A test that may also fail on a slow machine, and would then be reported as the one that detected the bug."""


class Inapplicable(Exception):
    """The text that a bug replaces does not occur in its file, or occurs several times."""


def planted(source: str, bug: Bug) -> str:
    """Return a file's text with a bug in it; raises Inapplicable."""
    count = source.count(bug.old)
    if count != 1:
        raise Inapplicable(f"{bug.path} has {count} times, not once: {bug.old.strip()!r}")
    return source.replace(bug.old, bug.new)


def copied(to: Path) -> Path:
    """Copy the files that the tests need into a directory, and return it."""
    for name in _COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(ROOT / name, to / name)
    return to


def put_to_the_test(tree: Path, tests: Iterable[str]) -> tuple[bool, str]:
    """Run tests of a copy until the first fails; return whether all passed, and which test failed.

    Raises RuntimeError if pytest could not run them.
    """
    manner = ("-x", "-q", "-n", "0", "-rfE", "-p", "no:cacheprovider", "-m", "not real", f"--deselect={_HASTY}")
    done = _run(tree, "-m", "pytest", *manner, *tests)
    found = _FAILED.search(done.stdout)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0, found.group(1) if found else "it hangs" if done.returncode else ""


def played(tree: Path, count: int) -> str:
    """Play sequences on a copy, and return the first failure, "" if there is none."""
    code = (
        "from bench.model.sequences.actions import random_actions\n"
        "from bench.model.sequences.runner import wrong\n"
        f"for seed in range({_SEED}, {_SEED + count}):\n"
        "    said = wrong(random_actions(seed))\n"
        "    if said:\n"
        "        raise SystemExit(f'seed {seed}: {said[0]}')\n"
    )
    return _run(tree, "-c", code).stderr.strip()[-300:]


def _run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a copy, with the copy's packages; a run that takes too long is killed, and counts as failed."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "TENSILE_THOROUGH": "1"}
    command = (sys.executable, *arguments)
    try:
        return subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", "it hangs")


def tried(tree: Path, bug: Bug, sequences: int) -> dict[str, Any]:
    """Put a bug in, run the tests that should detect it, and remove it again."""
    path = tree / bug.path
    source = path.read_text()
    begin = time.monotonic()
    try:
        path.write_text(planted(source, bug))
        passed, by = put_to_the_test(tree, bug.tests)
        also = {"sequences": played(tree, sequences)} if sequences else {}
        found = {"caught": not passed, "by": by, **also}
    except Inapplicable as error:
        found = {"caught": False, "by": "", "inapplicable": str(error)}
    finally:
        path.write_text(source)
    return {"bug": bug.name, **found, "s": round(time.monotonic() - begin, 1)}


def broken(trials: Iterable[dict[str, Any]]) -> list[str]:
    """Return the bugs that no test detected, and those that could not be put in."""
    missed = [one for one in trials if not one["caught"]]
    return [f"{one['bug']}: {one.get('inapplicable') or 'no test notices'}" for one in missed]


def main() -> int:
    """Read the arguments, try every bug, keep the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="run only bugs whose name contains this text, and write no result")
    parser.add_argument(
        "--sequences",
        type=int,
        default=0,
        help="also run so many random sequences (bench.model.sequences) against each bug",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    bugs = [bug for bug in BUGS if args.only in bug.name]
    with tempfile.TemporaryDirectory() as scratch:
        tree = copied(Path(scratch))
        passed, by = put_to_the_test(tree, sorted({one for bug in bugs for one in bug.tests}))
        if not passed:
            print(f"without any bug, {by} fails: the result would mean nothing")
            return 1
        trials = []
        for bug in bugs:
            trials.append(tried(tree, bug, args.sequences))
            print(" ".join(f"{key}={value}" for key, value in trials[-1].items()), flush=True)
    result = {"bugs": len(trials), "caught": sum(one["caught"] for one in trials), "trials": trials}
    results = Path(tempfile.gettempdir()) if args.only else args.results
    return verdict(NAME, broken(trials), keep(results, NAME, "none", result))


if __name__ == "__main__":
    sys.exit(main())
