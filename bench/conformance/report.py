"""Reads Ginkgo's reports, and combines the outcomes of each test over the runs of two sides.

Its functions only convert plain data. A report names every test that the suite has; those that were not selected are
left out.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import orjson

PASSED, SKIPPED = "passed", "skipped"
LENGTH = 240
_SIG = re.compile(r"\[(sig-[a-z-]+)\]")
_PASSING = (
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"), "UID"),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "ADDRESS"),
    (re.compile(r"\b[a-z][a-z-]*-\d{1,4}\b(?=[/:\"])"), "NAMESPACE"),
    (re.compile(r"\s+"), " "),
)


class Outcome(NamedTuple):
    """How one test went in one run; the failure, and its place in the suite's sources, is "" if there is none.

    `was_repeated` is whether it failed among others, so that this is the outcome of its repetition by itself.
    """

    name: str
    sig: str
    state: str
    seconds: float
    message: str = ""
    where: str = ""
    was_repeated: bool = False


class Case(NamedTuple):
    """One test on both sides: its outcome in each run, () for a side that was not run."""

    name: str
    sig: str
    direct: tuple[Outcome, ...]
    through: tuple[Outcome, ...]

    @property
    def passes_directly(self) -> bool:
        """Whether the test passed in each run on the real node."""
        return _passed(self.direct)

    @property
    def passes_through(self) -> bool:
        """Whether the test passed in each run through the virtual node."""
        return _passed(self.through)

    @property
    def is_steady(self) -> bool:
        """Whether all runs of a side have the same outcome."""
        return all(len({one.state for one in side}) <= 1 for side in (self.direct, self.through))

    @property
    def is_run(self) -> bool:
        """Whether the test was not skipped in some run; a test skips itself if it needs, say, a second node."""
        return any(one.state != SKIPPED for one in (*self.direct, *self.through))

    @property
    def was_repeated(self) -> bool:
        """Whether the test failed among others in some run and was run again by itself."""
        return any(one.was_repeated for one in (*self.direct, *self.through))


class Row(NamedTuple):
    """One line of the table: of the tests of a sig, how many passed on each side, and on both."""

    sig: str
    run: int
    direct: int
    through: int
    both: int


def outcomes(report: bytes) -> list[Outcome]:
    """Return the outcomes of the tests that were selected, by name."""
    suites = orjson.loads(report)
    found = [spec for suite in suites for spec in suite.get("SpecReports") or () if _chosen(spec)]
    return sorted(map(_outcome, found))


def repeated(run: Iterable[Outcome], again: Iterable[Outcome]) -> list[Outcome]:
    """Return a run with the outcomes of the tests that were run again by themselves."""
    found = {one.name: one._replace(was_repeated=True) for one in again}
    return [found.get(one.name, one) for one in run]


def joined(direct: Sequence[Sequence[Outcome]], through: Sequence[Sequence[Outcome]]) -> list[Case]:
    """Combine the runs of both sides, test by test."""
    sigs = {one.name: one.sig for run in (*direct, *through) for one in run}
    sides = [_by_name(runs) for runs in (direct, through)]
    return [Case(name, sigs[name], *(side.get(name, ()) for side in sides)) for name in sorted(sigs)]


def rows(tests: Iterable[Case]) -> list[Row]:
    """Return the table, with a line for each sig and one for all tests."""
    run = [test for test in tests if test.is_run]
    return [
        *(_row(sig, [one for one in run if one.sig == sig]) for sig in sorted({one.sig for one in run})),
        _row("all", run),
    ]


def share(tests: Iterable[Case]) -> float:
    """Return the share of the tests that pass on the real node that pass through the virtual one; 1.0 if none do."""
    total = rows(tests)[-1]
    return total.both / total.direct if total.direct else 1.0


def _row(sig: str, tests: Sequence[Case]) -> Row:
    """Count the tests of one line."""
    direct = [test for test in tests if test.passes_directly]
    both = sum(test.passes_through for test in direct)
    return Row(sig, len(tests), len(direct), sum(test.passes_through for test in tests), both)


def _passed(runs: Sequence[Outcome]) -> bool:
    """Report whether there were runs, and every one of them passed."""
    return bool(runs) and all(one.state == PASSED for one in runs)


def _by_name(runs: Sequence[Sequence[Outcome]]) -> dict[str, tuple[Outcome, ...]]:
    """Return the outcomes of each test, run by run."""
    found: dict[str, tuple[Outcome, ...]] = {}
    for run in runs:
        for one in run:
            found[one.name] = (*found.get(one.name, ()), one)
    return found


def _chosen(spec: dict[str, Any]) -> bool:
    """Report whether a spec is a test that was selected: one that was not is skipped without a message."""
    return spec["LeafNodeType"] == "It" and (spec["State"] != SKIPPED or bool(_failure(spec).get("Message")))


def _outcome(spec: dict[str, Any]) -> Outcome:
    """Return how one test went."""
    name = " ".join((*(spec.get("ContainerHierarchyTexts") or ()), spec["LeafNodeText"]))
    sig = _SIG.search(name)
    failure = _failure(spec)
    place = failure.get("Location") or {}
    file = "/".join(PurePosixPath(place.get("FileName") or "").parts[-3:])
    where = f"{file}:{place.get('LineNumber')}" if file else ""
    return Outcome(
        name,
        sig[1] if sig else "",
        spec["State"],
        round(spec["RunTime"] / 1e9, 1),
        _short(failure.get("Message") or ""),
        where,
    )


def _failure(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the failure of a test, {} if there is none."""
    found: dict[str, Any] = spec.get("Failure") or {}
    return found


def _short(message: str) -> str:
    """Return the beginning of a message on one line, without the parts that differ from run to run."""
    for pattern, instead in _PASSING:
        message = pattern.sub(instead, message)
    message = message.strip()
    return message if len(message) <= LENGTH else f"{message[: LENGTH - 1]}…"
