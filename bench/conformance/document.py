"""Writes the page on how much of Kubernetes' own suite passes through a virtual node, from a result."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.conformance.suite import SIGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
_HEAD = """\
# Conformance through a virtual node

`e2e.test` is the conformance suite of Kubernetes. `make conformance` runs its tests of
{sigs} against a cluster with a real node (kubelet, containerd, runc). It then runs
them against an upper cluster whose only node is the virtual node of that cluster. Each test that passes directly has to
pass through the virtual node.

<!-- Made by `python -m bench.conformance --document` from bench/results/conformance.json and
bench/conformance/reasons.yaml. -->
| | tests | pass directly | pass through the virtual node | of those that pass directly |
|---|---|---|---|---|
"""
_MADE = """
{share:.1%} of the tests that pass on the real node pass through the virtual node.

The result is from {date}, with tensile {tensile}, Kubernetes {cluster} and Python {python}, by
`python -m bench.conformance{options}`: {procs} processes, {times}, with upstream's timeouts. The tests are labelled
[Conformance], and neither Serial nor Slow. {repeated}
"""
_THROUGH = """
## Failures only through the virtual node
"""
_NONE = "None.\n"
_DIRECT = """
## Failures on the real node
These failures do not concern the virtual node. The sandbox's real node has no kube-proxy, no cluster DNS and no access
to a registry.

"""
_ALONE = """
## Skipped tests
"""
_AGAIN = """
## Run the suite
The suite has the requirements of a real node: root on Linux, and one download of Go modules and packages
(`tensile sandbox up --real-node` reports what is missing). The suite, Ginkgo and `agnhost` are built from the sandbox's
Kubernetes version into the user's cache. The images of the tests are built from them and from a static busybox, so no
registry is needed.

<!-- not run: it takes most of an hour -->
```sh
make conformance
```

`python -m bench.conformance` has these options:
- `--focus 'StatefulSet.*evicted'` runs only matching tests.
- `--only through` runs one side.
- `--serial` includes Serial and Slow tests.
- `--runs 2` runs everything twice.
- `--keep DIR` keeps the logs in that folder.

Only a complete run is kept as a result. It reports tests whose outcome differs from the last result. The exit code is 1
if a test passes directly and fails through the virtual node without a reason in `bench/conformance/reasons.yaml`.
"""


def page(kept: dict[str, Any]) -> str:
    """Return the text of the page for a kept result."""
    through, direct, alone = kept["failing_through"], kept["failing_directly"], kept["left_out_by_themselves"]
    parts = [_HEAD.format(sigs=_listed(SIGS)), *map(_row, kept["table"]), _made(kept), _THROUGH]
    parts += [_reasons(through)] if through else [_NONE]
    parts += [_DIRECT, _reasons(direct)] if direct else []
    parts += [_ALONE, _pairs("what it says", alone.items())] if alone else []
    return "".join([*parts, _AGAIN])


def _made(kept: dict[str, Any]) -> str:
    """Return the paragraph on how, and with which versions, a result was made."""
    run = kept["run"]
    return _MADE.format(
        **kept["versions"],
        share=kept["share"],
        date=kept["date"][:10],
        options=f" --runs {run['runs']}" if run["runs"] > 1 else "",
        procs=run["procs"],
        times=_times(run["runs"], kept["unsteady"]),
        repeated=_repeated(kept.get("repeated", ())),
    )


def _times(runs: int, unsteady: Sequence[str]) -> str:
    """Return how often each side was run, and whether the runs agree."""
    if runs == 1:
        return "once"
    return f"{runs} times, {f'and {len(unsteady)} tests differ' if unsteady else 'with the same outcome each time'}"


def _repeated(names: Sequence[str]) -> str:
    """Return the sentence on the tests that were run again by themselves."""
    if not names:
        return "No test was run a second time."
    which = "; ".join(map(_cell, names))
    return f"A test that fails without a known reason is repeated once by itself, and the repetition counts: {which}."


def _row(row: dict[str, Any]) -> str:
    """Return a line of the table."""
    return f"| {row['sig']} | {row['run']} | {row['direct']} | {row['through']} | {row['both']} |\n"


def _reasons(failing: Sequence[dict[str, Any]]) -> str:
    """Return the table of the tests that fail, with the reason of each."""
    return _pairs("why", [(one["name"], one["why"]) for one in failing])


def _pairs(title: str, pairs: Iterable[tuple[str, str]]) -> str:
    """Return a table of tests with a text for each."""
    lines = "".join(f"| {_cell(name)} | {_cell(reason)} |\n" for name, reason in pairs)
    return f"| test | {title} |\n|---|---|\n{lines}"


def _cell(text: str) -> str:
    """Return text escaped for a table cell."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def _listed(items: Sequence[str]) -> str:
    """Return items as a list in a sentence."""
    return f"{', '.join(items[:-1])} and {items[-1]}"
