"""Runs `tensile explain` and `tensile simulate` and returns their output."""

from collections.abc import Sequence
from pathlib import Path

import orjson

from tensile.diagnostics.cluster_snapshot import FleetSnapshot, picture_of
from tensile.diagnostics.collect import looked, looked_at
from tensile.diagnostics.explain import explained, explanation_text
from tensile.diagnostics.podfile import Template
from tensile.diagnostics.simulate import Addition, Case, simulated, simulation_text
from tensile.engine.clusters import utc_now
from tensile.engine.lower import ClusterAccess
from tensile.errors import TensileError
from tensile.topology import Topology


def explain(topology: Topology, ways: ClusterAccess, pod: str, output: str) -> str:
    """Return why a pod is in its current state, as "text" or "json".

    Raises TensileError if the pod does not exist or the upper cluster is unreachable.
    """
    namespace, _, name = pod.partition("/")
    if not namespace or not name or "/" in name:
        raise TensileError(f"explain pod {pod!r}: write NAMESPACE/NAME")
    document = explained(*looked_at(topology, ways, utc_now, namespace, name))
    return as_json(document) if output == "json" else explanation_text(document)


def pictured(topology: Topology, ways: ClusterAccess, snapshot: Path | None) -> FleetSnapshot:
    """Return a snapshot of the clusters as they are now, or the one that was saved in a file."""
    if snapshot is None:
        return looked(topology, ways, utc_now)
    return picture_of(snapshot.read_bytes(), topology, utc_now(), str(snapshot))


def simulate(picture: FleetSnapshot, template: Template | None, case: Case, output: str) -> tuple[str, bool]:
    """Return a simulation as "text" or "json", and whether all pods fit: those requested and those of lost lowers."""
    document = simulated(picture, template, case)
    text = as_json(document) if output == "json" else simulation_text(document)
    asked = document["asked"] or 0
    return text, (document["fits"] is None or document["fits"] >= asked) and all(
        one["lower"] for one in document["moved"]
    )


def case_of(replicas: int | None, lost: Sequence[str], added: Sequence[str]) -> Case:
    """Return the case to simulate.

    `lost` are names of lowers, `added` nodes as LOWER=COUNT, or as LOWER/NODE=COUNT for nodes like NODE.
    """
    return Case(replicas, frozenset(lost), tuple(map(_addition, added)))


def as_json(document: object) -> str:
    """Return a document as indented JSON."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _addition(text: str) -> Addition:
    where, _, count = text.partition("=")
    lower, _, like = where.partition("/")
    if not lower or not count.isdecimal() or not int(count):
        raise TensileError(f"--add-nodes {text!r}: write LOWER=COUNT, or LOWER/NODE=COUNT for nodes like NODE")
    return Addition(lower, int(count), like)
