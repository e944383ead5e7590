"""`tensile uninstall`: show what would be deleted, ask, and delete it.

The clusters are read again after the question: what is deleted then must have been shown.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import orjson

from tensile.diagnostics.inventory import Inventory, Item, read_inventory
from tensile.engine.clusters import Clusters, own_namespace, utc_now
from tensile.engine.lower import ClusterAccess
from tensile.engine.metrics import Metrics
from tensile.engine.observer import LoggingObserver, LoggingRecorder
from tensile.engine.plan_and_apply import Problems, Progress, converge, opened, rehearse
from tensile.engine.uninstall import (
    NAME,
    delete_registrations,
    heartbeats,
    leave_topology,
    obstacles,
    registrations,
    uninstall_rules,
)
from tensile.errors import TensileError
from tensile.objects import CLAIM, ENDPOINT_SLICE, NAMESPACE, NODE, UPPER, VOLUME, Ref
from tensile.reconcile.apply import NOT_EMPTY
from tensile.reconcile.report import (
    Preview,
    Recorder,
    as_json,
    as_text,
    observed,
    preview_of,
    summary_line,
)
from tensile.reconcile.world import Key
from tensile.text import joined
from tensile.topology import Topology

_DATA = "it may hold data: delete the claim in the upper cluster while the engine runs, or keep it"
_STAYS_BY_KIND = {
    NAMESPACE.name: "it still terminates, is not empty, or the guard blocks its deletion",
    NODE.name: "pods may be bound to it, or its lower cluster is not in the topology: put it back, or delete the Node",
    CLAIM.name: _DATA,
    VOLUME.name: _DATA,
}
_STAYS_BY_DEFAULT = "the mark alone does not prove that the engine made it: look at it, and delete it yourself"

_IN_USE = "pods are bound to this cluster's virtual node, and may need it: see below"


class UninstallPlan(NamedTuple):
    """What would be deleted, why it must not be now, and what stays although it has the mark of the topology."""

    preview: Preview
    obstacles: tuple[str, ...]
    stays: Inventory
    in_use: frozenset[str] = frozenset()
    """The lower clusters with pods that are bound to their virtual nodes."""

    @property
    def refs(self) -> frozenset[Ref]:
        """The objects that would be deleted."""
        return frozenset(change.ref for change in self.preview.changes)

    @property
    def unknown(self) -> str:
        """What could not be read, "" for nothing."""
        unreached = [f"{name}: {cause}" for name, cause in self.preview.unreached.items()]
        return "\n".join([*unreached, *(f"not listed: {reason}" for reason in self.stays.unread)])


def plan(topology: Topology, access: ClusterAccess, *, progress: Progress | None = None) -> UninstallPlan:
    """Return what `uninstall` would delete. Raises TensileError if the upper cluster is unreachable."""
    return asyncio.run(_plan(topology, access, progress))


def uninstall(
    topology: Topology, access: ClusterAccess, shown: UninstallPlan, *, progress: Progress | None = None
) -> str:
    """Delete what was shown, and return the closing line.

    Raises TensileError if it must not be done, if other objects than those shown would be deleted now, and if some
    could not be deleted.
    """
    return asyncio.run(_uninstall(topology, access, shown, progress))


def check(found: UninstallPlan) -> None:
    """Raise TensileError if a plan must not be carried out now."""
    if found.unknown:
        raise TensileError(
            f"not uninstalled, since every cluster has to be read:\n{found.unknown}\n"
            "make it reachable; if a lower cluster is lost, remove it from the topology and delete its Node"
        )
    if found.obstacles:
        raise TensileError("\n".join(["not uninstalled:", *found.obstacles]))


def plan_text(found: UninstallPlan, *, colour: bool) -> str:
    """Return a plan as text, with the last line of every plan."""
    text = as_text(found.preview, colour=colour, more=[*_sections(found)])
    if found.preview.changes:
        return text
    _, _, rest = text.partition("\n\n")
    return f"Nothing of topology {found.preview.topology} can be deleted.\n\n{rest}"


def plan_json(found: UninstallPlan) -> str:
    """Return a plan as JSON: that of `tensile plan`, with `obstacles` and `stays`."""
    document = orjson.loads(as_json(found.preview))
    document["obstacles"] = list(found.obstacles)
    document["stays"] = [one._asdict() for one in found.stays.items]
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _sections(found: UninstallPlan) -> Iterator[str]:
    if found.stays.items or found.stays.unread:
        rows = [f"{_name(one)}: {_reason_to_stay(one, found.in_use)}" for one in found.stays.items]
        yield joined(["Stays", *rows, *(f"not listed: {reason}" for reason in found.stays.unread)])
    if found.obstacles:
        yield joined(["Before it can be uninstalled", *found.obstacles])


def _reason_to_stay(one: Item, in_use: frozenset[str]) -> str:
    return _IN_USE if one.cluster in in_use else _STAYS_BY_KIND.get(one.kind, _STAYS_BY_DEFAULT)


def _name(one: Item) -> str:
    return f"{one.cluster}: {one.kind} {f'{one.namespace}/' if one.namespace else ''}{one.name}"


async def _plan(topology: Topology, access: ClusterAccess, progress: Progress | None) -> UninstallPlan:
    async with opened(topology, access, progress) as (clusters, unreached, _waits):
        leave_topology(clusters.world)
        found = await _rehearsed(clusters, unreached, access)
        beats = await heartbeats(clusters.connections[UPPER], clusters.world, utc_now())
        reasons = obstacles(clusters.world, beats, utc_now())
        in_use = frozenset(lower.name for lower in clusters.world.lowers.values() if lower.is_bound)
    marked = await read_inventory(topology, access)
    deleted = {
        (one.ref.cluster or "upper", one.ref.kind.name, one.ref.namespace, one.ref.name) for one in found.changes
    }
    stays = (one for one in marked.items if (one.cluster, one.kind, one.namespace, one.name) not in deleted)
    unread = tuple(reason for reason in marked.unread if not unreached)
    return UninstallPlan(found, tuple(reasons), Inventory(tuple(stays), unread), in_use)


async def _rehearsed(clusters: Clusters, unreached: dict[str, str], access: ClusterAccess) -> Preview:
    recorder, world = Recorder(), clusters.world
    before = observed(world.copy())
    problems = await rehearse(clusters, recorder, uninstall_rules())
    upper = clusters.connections[UPPER]
    for one in await registrations(upper, world.topology, world, own_namespace(access.account)):
        recorder.on_step(Key(NAME, UPPER, "", one.ref.name), one.step(), None)
    return preview_of(recorder, problems, before, world.topology, unreached=unreached)


async def _uninstall(topology: Topology, access: ClusterAccess, shown: UninstallPlan, progress: Progress | None) -> str:
    async with opened(topology, access, progress) as (clusters, unreached, _waits):
        leave_topology(clusters.world)
        found = await _rehearsed(clusters, unreached, access)
        upper, world = clusters.connections[UPPER], clusters.world
        reasons = obstacles(world, await heartbeats(upper, world, utc_now()), utc_now())
        current = UninstallPlan(found, tuple(reasons), shown.stays)
        check(current)
        _check_shown(shown, current)
        recorder, before = LoggingRecorder(LoggingObserver(Metrics(), time.monotonic)), observed(world.copy())
        problems, failed = await _delete(clusters, own_namespace(access.account), recorder)
        seen = observed(world)
        # Kubernetes deletes the slices of a Service that the lines above deleted.
        deleted_with_service = {ref for ref in current.refs if ref.kind == ENDPOINT_SLICE and seen(ref) is None}
    done = preview_of(recorder, problems, before, topology, unreached={})
    return _closing(current.refs - deleted_with_service, done, failed)


async def _delete(clusters: Clusters, namespace: str, recorder: Recorder) -> tuple[Problems, list[str]]:
    """Delete what the rules want, and last the registrations; return the problems that remain, and what failed.

    `namespace` is the engine's own.
    """
    upper, world = clusters.connections[UPPER], clusters.world
    problems = await converge(clusters, recorder, uninstall_rules(), forced=False)
    registered = await registrations(upper, world.topology, world, namespace)
    return problems, await delete_registrations(upper, registered, recorder)


def _check_shown(shown: UninstallPlan, current: UninstallPlan) -> None:
    """Raise TensileError if objects would be deleted that were not shown."""
    not_shown = sorted(map(str, current.refs - shown.refs))
    if not_shown:
        raise TensileError(
            "\n".join(["not uninstalled: the clusters have changed since the plan: run it again:", *not_shown])
        )


def _closing(planned: frozenset[Ref], done: Preview, failed: Iterable[str]) -> str:
    """Return the last line. Raises TensileError if something is left of what was planned.

    A namespace that holds objects of others stays, and was planned to.
    """
    left = sorted(map(str, planned - {change.ref for change in done.changes}))
    failures = [*failed, *(f"not deleted yet: {one}: run `tensile uninstall` again" for one in left)]
    if failures or any(problem.reason != NOT_EMPTY for _, problem in done.problems):
        body, _, last = as_text(done, colour=False, more=[joined(failures)] if failures else []).rpartition("Plan: ")
        raise TensileError(f"{body}Uninstalled in part: {last}")
    return summary_line(done).replace("Plan: ", "Uninstalled: ", 1)
