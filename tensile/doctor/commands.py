"""`tensile doctor`: looks, judges, and writes down."""

import asyncio
from datetime import UTC, datetime

import orjson

from tensile.doctor.diagnosis import diagnosed, worst
from tensile.doctor.finding import Level
from tensile.doctor.gathering import gathered
from tensile.doctor.report import as_document, as_text
from tensile.joined import Ways
from tensile.topology import Topology


def examine(topology: Topology, ways: Ways, output: str, *, colour: bool) -> tuple[str, bool]:
    """Give the findings as "text" or "json", and whether nothing fails."""
    facts = asyncio.run(gathered(topology, ways, _now))
    findings = diagnosed(facts)
    if output == "json":
        text = orjson.dumps(as_document(facts, findings), option=orjson.OPT_INDENT_2).decode()
    else:
        text = as_text(facts, findings, colour=colour)
    return text, worst(findings) != Level.FAIL


def _now() -> datetime:
    return datetime.now(UTC)
