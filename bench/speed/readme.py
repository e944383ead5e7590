"""Writes the measurements of the stored results into the README and docs/performance.md, so that none is typed by hand.

    .venv/bin/python -m bench.speed.readme

Each page has two markers, and the text between them is written. In the table of speed, a line without a result is left
out. A test compares the pages with what this program would write.
"""

import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from bench.kit.reporting import KEPT, ROOT

README, PERFORMANCE = ROOT / "README.md", ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- figures: python -m bench.speed.readme -->", "<!-- end of figures -->"
PARTIES = ("engine", "ceiling", "alone")
HEAD = (
    "| | tensile | bare loop | one cluster alone | tensile / bare loop |",
    "|---|---|---|---|---|",
)

WIDTH = 120
"""The length of lines of prose."""
Results = Mapping[str, dict[str, Any]]
"""The results by name."""


class Line(NamedTuple):
    """One line of the table of speed: the name of the result, the field, the description and the unit."""

    result: str
    field: str
    text: str
    unit: str


LINES = (
    Line("makespan-1000", "last_ready_s", "1,000 pods of one Deployment: the last is Ready", "s"),
    Line("makespan-2000", "last_ready_s", "2,000 pods: the last is Ready", "s"),
    Line("makespan-1000", "cpu_ms_pod", "CPU time, for each of 1,000 pods", "ms"),
    Line("makespan-1000", "rss_mib", "memory, with 1,000 pods", "MiB"),
    Line("latency", "p50_ms", "one pod while nothing else happens, until it is Ready: median", "ms"),
    Line("latency", "p95_ms", "and 95th percentile", "ms"),
)


class UseCase(NamedTuple):
    """One line of the README's table: a use case, what tensile does for it, and the measurement.

    Attributes:
        name: the use case.
        words: what tensile does for it.
        measured: returns the measurement as text, from the results.
        command: the command that measures it again.
    """

    name: str
    text: str
    measured: Callable[[Results], str]
    command: str


def _placement(found: Results) -> str:
    result = found["placement"]
    return f"It found the same nodes as kube-scheduler in {result['same']:,} of {result['cases']:,} random cases."


def _conformance(found: Results) -> str:
    (row,) = (row for row in found["conformance"]["table"] if row["sig"] == "all")
    tests = f"{row['both']} of the {row['direct']} conformance tests (apps, CLI, node, storage)"
    return f"{tests} that pass on a real node pass through a virtual one."


def _away(found: Results) -> str:
    result = found["faults-away"]
    if result["broken"]:
        return f"{result['rounds']} outages under load broke what `bench/results/faults-away.json` lists."
    return f"In {result['rounds']} outages under load, no pod failed or ran twice because of the outage."


def _predictions(found: Results) -> str:
    result = found["faults-predictions"]
    return f"In {result['equal']} of {result['cases']} cases, exactly the pods that the plan had named moved."


USE_CASES = (
    UseCase(
        "Spare capacity",
        "Free nodes of many clusters are one pool. The [scheduler extender](docs/extender.md) looks at the real nodes.",
        _placement,
        "python -m bench.conformance.placement",
    ),
    UseCase(
        "Many places, one API",
        "Pods run in data centres and clouds. You use the tools that you have for one cluster.",
        _conformance,
        "make conformance",
    ),
    UseCase(
        "Edge sites",
        "A site that loses its connection keeps its pods, and affects no other site.",
        _away,
        "python -m bench.faults.unreachable",
    ),
    UseCase(
        "Maintenance from Git",
        "You cordon or drain a cluster in a file. `tensile plan` shows before the merge which pods have to move. Large "
        "edits can [wait for an approval](docs/howto/approve-edits.md).",
        _predictions,
        "python -m bench.conformance.predictions",
    ),
)


def load(results: Path) -> dict[str, dict[str, Any]]:
    """Return the existing results, by name."""
    return {path.stem: orjson.loads(path.read_bytes()) for path in sorted(results.glob("*.json"))}


def figures(found: Results) -> str:
    """Return the table of speed and the text about it."""
    rows = [_row(line, found[line.result]) for line in LINES if line.result in found]
    return "\n".join([*HEAD, *rows, "", *_about(found)])


def use_cases(found: Results) -> str:
    """Return the README's table of use cases, and its text about speed and cost."""
    rows = [f"| **{one.name}** | {one.text} | {one.measured(found)} (`{one.command}`) |" for one in USE_CASES]
    summary = textwrap.fill(f"{_speed(found)} {_cost(found)}", WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(["| use case | how | measured |", "|---|---|---|", *rows, "", summary])


def rewritten(text: str, content: str) -> str:
    """Return a text with the figures between its markers; raises ValueError if these are missing."""
    before, _, rest = text.partition(BEGIN)
    inside, _, after = rest.partition(END)
    if not inside:
        raise ValueError(f"the text has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def pages(found: Results) -> dict[Path, str]:
    """Return the required text of each page with figures."""
    content = {README: use_cases(found), PERFORMANCE: figures(found)}
    return {page: rewritten(page.read_text(), text) for page, text in content.items()}


def _row(line: Line, result: dict[str, Any]) -> str:
    medians = result["medians"]
    cells = [_cell(medians[party].get(line.field), line.unit) for party in PARTIES]
    return f"| {line.text} | {' | '.join(cells)} | {result['ratios']['ceiling'][line.field]:.2f} |"


def _cell(value: float | None, unit: str) -> str:
    """Return a measurement as text; one that is missing or zero is left out."""
    return f"{value:.3g} {unit}" if value else ""


def _about(found: Results) -> Iterator[str]:
    """Yield how the results were measured."""
    races = [result for name, result in found.items() if name.startswith(("makespan", "latency"))]
    if races:
        rounds, machine = min(result["rounds"] for result in races), races[0]["machine"]
        yield f"Medians of {rounds} rounds or more in turns, on {machine['processors']} processors of kind"
        yield f"{machine['processor']} that ran all control planes too; elsewhere only the ratios mean something."
    medians = found.get("makespan-1000", {}).get("medians", {})
    if "alike" in medians:
        engine, alike = medians["engine"], medians["alike"]
        yield "The bare loop also leaves out what a mirror has to write, so the control planes have less to do. As"
        yield "nodes with a kubelet do, those of tensile have the label `kubernetes.io/hostname`, and the scheduler"
        yield "computes how to spread the pods over them. Each of its lower pods has marks, an owner and an account. If"
        yield f"the bare loop writes the same, the last pod is Ready after {alike['last_ready_s']:.3g} s"
        yield f"(tensile / bare loop: {engine['last_ready_s'] / alike['last_ready_s']:.2f}). It then takes"
        yield f"{alike['cpu_ms_pod']:.3g} ms of CPU time for each pod"
        yield f"({engine['cpu_ms_pod'] / alike['cpu_ms_pod']:.2f})."
    if "streams" in found:
        ratios = [ratio for node in found["streams"]["medians_mb_s"].values() for ratio in node["ratio"].values()]
        yield f"Streams (exec, cp, port-forward of 100 MB) had {min(ratios):.2f} to {max(ratios):.2f} times the"
        yield "throughput that they have at the lower cluster directly."


def _speed(found: Results) -> str:
    """Return the figures of speed that a new user needs."""
    result = found["makespan-1000"]
    engine, ceiling, alone = (result["medians"][party]["last_ready_s"] for party in PARTIES)
    cores = result["machine"]["processors"]
    later = found["latency"]["medians"]["engine"]["p50_ms"] - found["latency"]["medians"]["alone"]["p50_ms"]
    return (
        f"**Speed.** 1,000 pods of a Deployment on two lower clusters are Ready after {engine:.1f} s. A loop that "
        f"only creates the pods and copies their status takes {ceiling:.1f} s, one cluster alone {alone:.1f} s. A "
        f"single pod is Ready {later:.0f} ms later than in one cluster (`make bench`, {cores} cores for everything; "
        "[all figures](docs/performance.md))."
    )


def _cost(found: Results) -> str:
    """Return the resources of an engine, and the time that a restarted one needs to catch up."""
    result = found["faults-steady"]
    back = max(run["reconciled_s"] for run in result["runs"])
    return (
        f"**Cost.** With {result['pods']:,} pods, the engine uses {result['rss_after_load_mib']} MiB, and "
        f"{result['idle_share_of_a_core'] * 100:.1f} % of a core at rest. After a restart it has caught up in "
        f"{back:.1f} s (`python -m bench.speed.steady`)."
    )


def main() -> int:
    """Rewrite the pages."""
    for page, text in pages(load(KEPT)).items():
        page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
