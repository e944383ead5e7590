"""`tensile doctor`: looks, judges, and writes down."""

import asyncio
from datetime import UTC, datetime

import orjson

from tensile.doctor.diagnosis import diagnosed, worst
from tensile.doctor.finding import Level
from tensile.doctor.gathering import gathered, topology_at
from tensile.doctor.report import as_document, as_text
from tensile.joined import Ways
from tensile.reconcile.mapsource import Place
from tensile.topology import Topology


def examine(
    topology: Topology, ways: Ways, output: str, place: Place | None = None, *, colour: bool
) -> tuple[str, bool]:
    """Give the findings as "text" or "json", and whether nothing fails; `place` is where the topology stands above."""
    facts = asyncio.run(gathered(topology, ways, _now, place))
    findings = diagnosed(facts)
    if output == "json":
        text = orjson.dumps(as_document(facts, findings), option=orjson.OPT_INDENT_2).decode()
    else:
        text = as_text(facts, findings, colour=colour)
    return text, worst(findings) != Level.FAIL


def examine_map(place: Place, ways: Ways, output: str, *, colour: bool) -> tuple[str, bool]:
    """Likewise for the topology in a ConfigMap, which is read once; raises TensileError where it cannot be."""
    return examine(asyncio.run(topology_at(place, ways)), ways, output, place, colour=colour)


def _now() -> datetime:
    return datetime.now(UTC)
