"""`tensile plan`: plan once and return the output."""

import asyncio
import secrets
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from tensile.engine.clusters import Clusters
from tensile.engine.history import active_text, file_place
from tensile.engine.lower import ClusterAccess
from tensile.engine.plan_and_apply import Planned, Problems, Progress, opened, previewed, rehearse
from tensile.engine.status.query import report_at, restart_needed
from tensile.engine.topology_reader import ConfigMapKey
from tensile.errors import TensileError
from tensile.kube.files import replace_file
from tensile.objects import CONFIG_MAP, NAMESPACE, NODE, POD, SECRET, UPPER
from tensile.policy.descheduler.moves import DrainPreview, drain_preview
from tensile.policy.descheduler.moves import as_document as as_drain_document
from tensile.policy.descheduler.moves import as_text as as_drain_text
from tensile.policy.disruption import as_document as as_cost_document
from tensile.policy.disruption import as_sections
from tensile.reconcile.mirrored_kinds import FOLLOWS
from tensile.reconcile.report import (
    LARGEST,
    WHOLE_PLAN,
    Later,
    Lines,
    PlanScope,
    Recorder,
    SavedTopology,
    as_file,
    as_json,
    as_markdown,
    as_text,
    saved,
)
from tensile.topology import Topology, TopologyErrors, parse
from tensile.topology.diff import edit


class PlanText(NamedTuple):
    """A plan as text, whether it has changes, and the lower clusters that it leaves out ("": none).

    `unreached` gives the causes when the text is JSON; a text for people contains them itself.
    """

    text: str
    changes: bool
    unreached: str


class PlanOptions(NamedTuple):
    """What a plan is about: lowers to `drain`, as if the topology did, what to show, and the file to save it in.

    The topology in the file is the one that is planned. `lines` adds the lines of the topology file that cause changes.
    `place` is the ConfigMap that the topology is in, None for a file.
    """

    drain: tuple[str, ...] = ()
    only: PlanScope = WHOLE_PLAN
    out: tuple[Path, SavedTopology] | None = None
    lines: Lines = lambda found: found
    place: ConfigMapKey | None = None


class _Planned(NamedTuple):
    """A plan; for each drained lower where its pods would go; and what the topology has, and the plan does not."""

    made: Planned
    drains: dict[str, list[DrainPreview]]
    later: Later


_WHOLE = PlanOptions()
_FORMATS = ("text", "json", "markdown")
_KINDS = (POD, NODE, NAMESPACE, CONFIG_MAP, SECRET)
"""The kinds of every topology, besides those of its controllers."""


def plan(
    topology: Topology,
    access: ClusterAccess,
    output: str,
    options: PlanOptions = _WHOLE,
    *,
    colour: bool,
    progress: Progress | None = None,
) -> PlanText:
    """Return what would change, as "text", "json" or "markdown", and for a drain where each pod would go.

    Raises TensileError when the upper cluster is unreachable, for another output format, for a lower that is not in the
    topology, and for a bug in a rule.
    """
    check_options(topology, output, options)
    planned, drains, later = asyncio.run(_plan(topology, access, options, progress))
    found = options.lines(planned.preview)
    if options.out is not None:
        write_plan(planned, *options.out)
    if output == "json":
        documents = [as_drain_document(*drain) for drain in drains.items()]
        return PlanText(
            as_json(found, cost=as_cost_document(planned.cost), drains=documents, **later._asdict()).decode(),
            bool(found.changes),
            unreached_lines(found.unreached),
        )
    more = [*(as_drain_text(*drain) for drain in drains.items())]
    more += [
        f"Drain of {name}: where its pods fit is unknown, see above" for name in options.drain if name not in drains
    ]
    more += [*later.sections(), *as_sections(planned.cost, topology.guard.approve_over)]
    text = as_markdown(found, more) if output == "markdown" else as_text(found, colour=colour, more=more)
    not_planned = f"not planned: {', '.join(found.unreached)}: the plan says why" if found.unreached else ""
    return PlanText(text, bool(found.changes), not_planned)


def described(topology: Topology, file: str, data: bytes) -> SavedTopology:
    """Return what a saved plan records of a topology, by its path ("": it is in no file) and content."""
    return SavedTopology(topology.name, file, sha256(data).hexdigest())


def write_plan(planned: Planned, path: Path, topology: SavedTopology) -> None:
    """Write a plan to a file that only its owner may read, in place of one that exists. Raises TensileError."""
    content = as_file(saved(planned.preview, topology, planned.clusters, secrets.token_hex(16)))
    if len(content) > LARGEST:
        reason = f"the plan has {len(content)} bytes, and `tensile apply` accepts at most {LARGEST}"
        raise TensileError(f"--out {path}: {reason}: plan fewer clusters with --lower")
    try:
        replace_file(path, content, mode=0o600)
    except OSError as error:
        raise TensileError(f"--out {path}: cannot be written: {error.strerror}: name another file") from None


def check_options(topology: Topology, output: str, options: PlanOptions) -> None:
    """Raise TensileError for another output format, and for a lower that is not in the topology."""
    if output not in _FORMATS:
        raise TensileError(f"output {output!r}: take one of {', '.join(_FORMATS)}")
    names = [spec.name for spec in topology.lowers]
    for option, given in (("--drain", options.drain), ("--lower", options.only.lowers)):
        for name in given:
            if name not in names:
                known = ", ".join(names) or "none"
                raise TensileError(f"{option} {name}: no lower cluster of the topology; there are: {known}")


async def _plan(topology: Topology, access: ClusterAccess, options: PlanOptions, progress: Progress | None) -> _Planned:
    """Return the plan, and for each drained lower where its pods would go.

    Without all clusters it is unknown where pods would fit, so that nothing is returned for the drains then.
    """
    recorder, drains = Recorder(), dict[str, list[DrainPreview]]()

    async def rehearsed(clusters: Clusters) -> Problems:
        """Look where the pods of the drained lowers fit, and rehearse."""
        if all(spec.name in clusters.world.lowers for spec in topology.lowers):
            drains.update((name, drain_preview(clusters.world, name)) for name in options.drain)
        clusters.world.topology = _drained(clusters.world.topology, options.drain)
        return await rehearse(clusters, recorder)

    drained = _drained(topology, options.drain)
    followed = _with_room(drained) if options.drain else drained
    async with opened(followed, access, progress) as (clusters, unreached, waits):
        found = await previewed(clusters, unreached, recorder, rehearsed, options.only)
        refused = await _restart_needed(clusters, topology, options.place)
    return _Planned(found, drains, Later(refused, waits))


async def _restart_needed(clusters: Clusters, topology: Topology, place: ConfigMapKey | None) -> tuple[str, ...]:
    """Return what of the topology an engine uses only after a restart, as far as the topology in force is known."""
    upper, owner = clusters.connections[UPPER], clusters.world.owner
    report = await report_at(topology.telemetry)
    report = report if report.get("topology") == topology.name else {}
    digest = str((report.get("accepted") or {}).get("sha256", ""))
    text = await active_text(upper, owner.upper, place or file_place(topology.name), digest)
    try:
        active = parse(text, name="the topology in force", configmap_mode=place is not None)
    except TopologyErrors:
        return ()
    return tuple(restart_needed(report)) if active == topology else edit(active, topology).refused


def _drained(topology: Topology, names: Collection[str]) -> Topology:
    """Return the topology with `maintenance: drain` for some lowers."""
    lowers = [
        spec.model_copy(update={"maintenance": "drain"}) if spec.name in names else spec for spec in topology.lowers
    ]
    return topology.model_copy(update={"lowers": tuple(lowers)})


def _with_room(topology: Topology) -> Topology:
    """Return the topology with the descheduler, whose informers show where pods fit."""
    descheduler = topology.descheduler.model_copy(update={"enabled": True})
    return topology.model_copy(update={"descheduler": descheduler})


def kinds_named(given: Iterable[str]) -> tuple[str, ...]:
    """Return the kinds that words such as "pod", "Pod" and "pods" name.

    Raises TensileError for a word that names no kind that a plan can have.
    """
    known = {*_KINDS, *(one.kind for kinds in FOLLOWS.values() for one in kinds)}
    names = {word.lower(): kind.name for kind in known for word in (kind.name, kind.plural)}
    for word in given:
        if word.lower() not in names:
            raise TensileError(f"--kind {word}: no kind of a plan; there are: {', '.join(sorted(set(names.values())))}")
    return tuple(dict.fromkeys(names[word.lower()] for word in given))


def unreached_lines(found: Mapping[str, str]) -> str:
    """Return why lowers were left out, a line each."""
    return "\n".join(f"{name}: {reason}" for name, reason in found.items())
