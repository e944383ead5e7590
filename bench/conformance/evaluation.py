"""Judges the runs: which tests fail on which side, the known reason of each, and the defects.

Reasons are in reasons.yaml, which people review. A test that passes on the real node and fails through the virtual node
without a reason there is a defect. A reason that no test needs any more is reported, so that it can be removed.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bench.conformance.report import PASSED, SKIPPED, Case, Outcome, Row, rows, share

REASONS = Path(__file__).parent / "reasons.yaml"
BAR = 0.99
UNKNOWN = "no reason known: defect"
UNEXPLAINED = "no reason known"


class Reasons(NamedTuple):
    """Why tests fail, by a part of their names: on the real node as well, and only through the virtual node."""

    direct: dict[str, str]
    through: dict[str, str]


class Failing(NamedTuple):
    """A test that fails, the reason, and the suite's message."""

    name: str
    why: str
    message: str
    where: str


def reasons(text: str) -> Reasons:
    """Return the reasons in a file's text."""
    found = yaml.safe_load(text)
    return Reasons(*({one["test"]: one["why"] for one in found.get(side) or ()} for side in Reasons._fields))


def failing_directly(tests: Iterable[Case], known: Reasons) -> list[Failing]:
    """Return the tests that fail on the real node."""
    failing = [test for test in tests if test.direct and test.is_run and not test.passes_directly]
    return [_failing(test.name, test.direct, known.direct, UNEXPLAINED) for test in failing]


def failing_through(tests: Iterable[Case], known: Reasons) -> list[Failing]:
    """Return the tests that pass on the real node, but not through the virtual node."""
    missed = [test for test in tests if test.passes_directly and not test.passes_through]
    return [_failing(test.name, test.through, known.through, UNKNOWN) for test in missed]


def broken(tests: Sequence[Case], known: Reasons, *, whole: bool = True) -> list[str]:
    """Return the defects, if both sides were run; the required share of passes is only checked for a whole run."""
    found = [
        f"{one.name}: {one.why} ({one.where}: {one.message})"
        for one in failing_through(tests, known)
        if one.why == UNKNOWN
    ]
    found += [f"{name}: not the same in every run" for name in unsteady(tests)]
    part = share(tests) if whole else 1.0
    return found + ([f"{part:.2%} of what passes directly passes through, less than {BAR:.0%}"] if part < BAR else [])


def unexplained(run: Iterable[Outcome], known: Mapping[str, str]) -> list[str]:
    """Return the tests that failed in a run without a known reason."""
    failed = [one.name for one in run if one.state not in (PASSED, SKIPPED)]
    return [name for name in failed if not any(part in name for part in known)]


def unsteady(tests: Iterable[Case]) -> list[str]:
    """Return the tests whose outcome differs between the runs of a side."""
    return [test.name for test in tests if not test.is_steady]


def unneeded(tests: Sequence[Case], known: Reasons) -> list[str]:
    """Return the reasons that match tests that were run, of which none fails."""
    sides = ((known.direct, failing_directly(tests, known)), (known.through, failing_through(tests, known)))
    run = [(part, failing) for named, failing in sides for part in named if any(part in test.name for test in tests)]
    return [part for part, failing in run if not any(part in one.name for one in failing)]


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the tests whose outcome differs from the result before; an empty result has nothing to compare."""
    old, new = (one.get("tests", {}) for one in (before, after))
    return [name for name in sorted(old.keys() | new.keys()) if old and _ends(old, name) != _ends(new, name)]


def _ends(tests: Mapping[str, Any], name: str) -> list[set[str]]:
    """Return the states of a test on each side, without the durations."""
    return [{run.partition(" ")[0] for run in tests.get(name, {}).get(side, ())} for side in ("direct", "through")]


def result(tests: Sequence[Case], known: Reasons) -> dict[str, Any]:
    """Return the whole result as data for a file."""
    table: list[Row] = rows(tests)
    return {
        "table": [row._asdict() for row in table],
        "share": round(share(tests), 4),
        "failing_directly": [one._asdict() for one in failing_directly(tests, known)],
        "failing_through": [one._asdict() for one in failing_through(tests, known)],
        "unsteady": unsteady(tests),
        "repeated": [test.name for test in tests if test.was_repeated],
        "left_out_by_themselves": {test.name: _last(test) for test in tests if not test.is_run},
        "unneeded_reasons": unneeded(tests, known),
        "tests": {test.name: _states(test) for test in tests},
        "broken": broken(tests, known),
    }


def _failing(name: str, runs: Sequence[Outcome], known: dict[str, str], otherwise: str) -> Failing:
    """Return one test with its reason, and with the message of the first run in which it failed."""
    why = next((failure for part, failure in known.items() if part in name), otherwise)
    first = next((one for one in runs if one.message), None)
    return Failing(name, why, first.message if first else "not run", first.where if first else "")


def _last(test: Case) -> str:
    """Return why a test was skipped."""
    return (*test.direct, *test.through)[-1].message


def _states(test: Case) -> dict[str, list[str]]:
    """Return the state and the duration of each run of a test."""
    sides = {"direct": test.direct, "through": test.through}
    return {side: [f"{one.state} {one.seconds:g} s" for one in runs] for side, runs in sides.items()}
