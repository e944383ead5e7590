"""Writes the figures of the kept results into the README, between its two marks, so that no figure is typed by hand.

    .venv/bin/python -m bench.speed.readme

A result that is not there leaves its line out. A test compares the README with what this would write.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from bench.kit.reporting import KEPT, ROOT

README = ROOT / "README.md"
BEGIN, END = "<!-- figures: python -m bench.speed.readme -->", "<!-- end of figures -->"
PARTIES = ("engine", "ceiling", "alone")
HEAD = (
    "| | tensile | bare loop | one cluster alone | tensile / bare loop |",
    "|---|---|---|---|---|",
)


class Line(NamedTuple):
    """One line of the table: the result's name, the field, and in which words and unit it is told."""

    result: str
    field: str
    words: str
    unit: str


LINES = (
    Line("makespan-1000", "last_ready_s", "1,000 pods of one Deployment: the last is Ready", "s"),
    Line("makespan-2000", "last_ready_s", "2,000 pods: the last is Ready", "s"),
    Line("makespan-1000", "cpu_ms_pod", "CPU time, for each of 1,000 pods", "ms"),
    Line("makespan-1000", "rss_mib", "memory, with 1,000 pods", "MiB"),
    Line("latency", "p50_ms", "one pod while nothing else happens, until it is Ready: median", "ms"),
    Line("latency", "p95_ms", "and 95th percentile", "ms"),
)


def load(results: Path) -> dict[str, dict[str, Any]]:
    """Read the results that are there, by name."""
    return {path.stem: orjson.loads(path.read_bytes()) for path in sorted(results.glob("*.json"))}


def figures(found: dict[str, dict[str, Any]]) -> str:
    """Return the table and the words about it."""
    rows = [_row(line, found[line.result]) for line in LINES if line.result in found]
    return "\n".join([*HEAD, *rows, "", *_about(found)])


def rewritten(text: str, told: str) -> str:
    """Put the figures between the marks of a text; raises ValueError where they are missing."""
    before, _, rest = text.partition(BEGIN)
    inside, _, after = rest.partition(END)
    if not inside:
        raise ValueError(f"the text has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{told}\n{END}{after}"


def _row(line: Line, result: dict[str, Any]) -> str:
    medians = result["medians"]
    cells = [_cell(medians[party].get(line.field), line.unit) for party in PARTIES]
    return f"| {line.words} | {' | '.join(cells)} | {result['ratios']['ceiling'][line.field]:.2f} |"


def _cell(value: float | None, unit: str) -> str:
    """Write a figure; one that was not measured, or is nothing, is left out."""
    return f"{value:.3g} {unit}" if value else ""


def _about(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield how it was measured."""
    races = [result for name, result in found.items() if name.startswith(("makespan", "latency"))]
    if races:
        rounds, machine = min(result["rounds"] for result in races), races[0]["machine"]
        yield f"Medians of {rounds} rounds or more in turns, on {machine['processors']} processors of kind"
        yield f"{machine['processor']} that ran all control planes too; elsewhere only the ratios mean something."
    if "streams" in found:
        ratios = [ratio for node in found["streams"]["medians_mb_s"].values() for ratio in node["ratio"].values()]
        yield f"Streams (exec, cp, port-forward of 100 MB) had {min(ratios):.2f} to {max(ratios):.2f} times the"
        yield "throughput that they have at the lower cluster directly."


def main() -> int:
    """Rewrite the README."""
    README.write_text(rewritten(README.read_text(), figures(load(KEPT))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
