"""`plan` and `apply`: the engine's own loop, run until nothing is left to do.

`plan` runs it on dry-run clusters over copies of the caches, so its result cannot differ from what `run` would do;
`apply` runs it on the clusters themselves. An unreachable lower cluster is skipped and named. Its upper Node is not
changed either, because the running engine may well reach that cluster.

A running engine plans too, on copies of its own caches: so what takes long lets others run in between.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import orjson

from tensile.engine.caches import bound_feed, lower_feeds, rules, upper_feeds
from tensile.engine.clusters import Clusters, node_address, published_node_address, utc_now
from tensile.engine.lower import ClusterAccess
from tensile.engine.lower_transitions import former_node, leaving_nodes, on_former_node, waiting_mappings
from tensile.errors import ClusterError, TensileError
from tensile.kube import net
from tensile.kube.cluster import Cluster, Selection
from tensile.kube.fleet import Fleet, InformerSpec
from tensile.kube.health import ADVICE, NOT_CONTACTED
from tensile.kube.store import Cache
from tensile.kubelet.pods.conditions import conditions_of
from tensile.kubelet.pods.rule import key_of as pod_key
from tensile.names import MIRRORED
from tensile.objects import DISRUPTION_BUDGET, NAMESPACE, POD, UPPER, Manifest, Ref
from tensile.policy.disruption import Disruption, disruption, leaving, planned_moves
from tensile.reconcile.desired import Rule
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.dryrun.patch import is_selected
from tensile.reconcile.guard import namespace_of
from tensile.reconcile.loop import DENIED, Loop, Observer, Timing
from tensile.reconcile.ownership import is_ours
from tensile.reconcile.plan import Step
from tensile.reconcile.report import (
    WHOLE_PLAN,
    Change,
    PlanScope,
    Preview,
    Recorder,
    arranged,
    defects,
    folded,
    identities,
    observed,
)
from tensile.reconcile.workqueue import FULL_PACE, Pace
from tensile.reconcile.world import Key, Problem, World
from tensile.topology import Lower, Topology

_REFUSAL_REASONS = ("Denied", "Forbidden", "Invalid", "BadRequest")
"""The reasons with which an apiserver refuses an object: its own, and those of admission."""
PATIENCE = 20.0
"""Seconds in which every cluster must respond and list everything."""
_EXPLAINED_TIMEOUT = 5.0
"""Seconds after which a lower that has reported why it cannot be read is no longer waited for."""
_NO_RESPONSE_TIMEOUT = 7.0
"""Seconds after which a lower that has not responded at all is no longer waited for."""
_PROGRESS_DELAY = 1.0
"""Seconds after which a user is informed which clusters are waited for."""
_CONVERGE_TIMEOUT = 120.0
_DUE_WITHIN = 1.0
_POLL_INTERVAL = 0.2
_SLICE_SECONDS = 0.005
"""Seconds of work after which others on the event loop run."""
Made = TypeVar("Made")
Progress = Callable[[str], None]
"""Receives a line for a user who waits."""
Problems = dict[Key, Problem]
BESIDE_ENGINE = Pace(turn=16, limit=4, seconds=0.005)
"""The pace of planning in a running engine: a turn takes some milliseconds, and the engine's own come between."""


class ClusterTimeout(TensileError):
    """A cluster did not respond in time."""


class KnownClusters(Protocol):
    """Clusters as a plan needs them: what is known of them, and the connections, which are only read from."""

    @property
    def world(self) -> World:
        """What is known of the clusters."""
        ...

    @property
    def connections(self) -> Mapping[str, Cluster]:
        """The open connections, by cluster name."""
        ...


class AssumedClusters(NamedTuple):
    """Clusters as a plan assumes them, with the connections of today."""

    world: World
    connections: Mapping[str, Cluster]


Known = TypeVar("Known", bound=KnownClusters)


class Planned(NamedTuple):
    """A preview, the identities of the clusters that it rests on (see `identities`), and what it costs running pods.

    `waits` as in `OpenedClusters`.
    """

    preview: Preview
    clusters: dict[str, str]
    cost: Disruption = Disruption()
    waits: tuple[str, ...] = ()


class OpenedClusters(NamedTuple):
    """The clusters of a topology; `unreached` maps the lowers that are skipped to the reason.

    `waits` are messages about what of the topology cannot take effect yet, and why: pods hold names that it changes.
    """

    clusters: Clusters
    unreached: dict[str, str]
    waits: tuple[str, ...] = ()


@asynccontextmanager
async def opened(
    topology: Topology, access: ClusterAccess, progress: Progress | None = None
) -> AsyncIterator[OpenedClusters]:
    """Open the clusters of a topology and list everything in those that respond.

    `progress` is called for what takes more than a second. Raises ClusterTimeout if the upper cluster does not
    respond: without it nothing can be planned.
    """
    net.raise_limit()
    fleet = Fleet(chance=random.random)
    clusters = Clusters(fleet, access, lambda _lower: None)
    try:
        await clusters.open_upper(topology)
        unreached, waits = await _list_clusters(clusters, topology, progress or (lambda _line: None))
        waits += [*waiting_mappings(clusters.world), *leaving_nodes(clusters.world)]
        yield OpenedClusters(clusters, unreached, tuple(waits))
    finally:
        await clusters.close()


async def previewed(
    clusters: Known,
    unreached: Mapping[str, str],
    recorder: Recorder,
    run: Callable[[Known], Awaitable[Problems]],
    scope: PlanScope = WHOLE_PLAN,
) -> Planned:
    """Run one-shot work on opened clusters and return a preview of the steps that `recorder` recorded.

    Raises TensileError for a bug in a rule.
    """
    await asyncio.sleep(0)
    topology, before = clusters.world.topology, clusters.world.copy()
    await asyncio.sleep(0)
    moves = dict(await _in_slices(planned_moves(before)))
    problems = await run(clusters)
    changes, lowers = await planned_changes(recorder, before, scope), [spec.name for spec in topology.lowers]
    problems = {**dict(refused_before(changes, before)), **problems}
    found = arranged(changes, problems, topology=topology.name, lowers=lowers, unreached=unreached, only=scope)
    budgets, unknown = await _budgets(clusters, {ref.namespace for ref in leaving(found.changes, before)})
    return Planned(found, identities(before), disruption(found.changes, before, moves, budgets, unknown))


async def planned_changes(recorder: Recorder, before: World, scope: PlanScope = WHOLE_PLAN) -> list[Change]:
    """Return the changes that a recorder has recorded. `before` is the world before the first one.

    Raises TensileError for a bug in a rule.
    """
    if broken := defects(recorder.broken):
        raise TensileError(broken)
    changes = await _in_slices(
        folded(recorder.recorded, observed(before), only=scope, home=partial(upper_namespace_of, before))
    )
    return [change for change in changes if change is not None]


def refused_before(changes: Iterable[Change], world: World) -> Iterator[tuple[Key, Problem]]:
    """Yield a problem for each pod of which a lower cluster refused the last lower pod.

    A dry run does not ask the admission of a lower cluster, and plans to create the pod again.
    """
    for ref in (one.ref for one in changes if one.ref.kind == POD and one.action == "create"):
        lower, namespace = world.lowers.get(ref.cluster), upper_namespace_of(world, ref)
        upper = lower.upper_pods.get(namespace, ref.name) if lower is not None else None
        condition = conditions_of(upper.manifest()).get(MIRRORED, {}) if upper is not None else {}
        if condition.get("reason") in _REFUSAL_REASONS:
            message = f"lower cluster {ref.cluster} refused the last attempt: {condition.get('message', '')}"
            yield pod_key(ref.cluster, namespace, ref.name), Problem(DENIED, message)


async def _in_slices(iterable: Iterable[Made]) -> list[Made]:
    """Return what takes long to make, one after the other; others run in between."""
    results, slice_end = [], time.monotonic() + _SLICE_SECONDS
    for result in iterable:
        results.append(result)
        if time.monotonic() > slice_end:
            await asyncio.sleep(0)
            slice_end = time.monotonic() + _SLICE_SECONDS
    return results


async def _budgets(clusters: KnownClusters, namespaces: Iterable[str]) -> tuple[list[Manifest], str]:
    """Return the PodDisruptionBudgets of some namespaces of the upper cluster, and why they cannot be read, or ""."""
    found: list[Manifest] = []
    try:
        for namespace in sorted(namespaces):
            listing = await clusters.connections[UPPER].list(DISRUPTION_BUDGET, Selection(namespace), orjson.loads)
            found += listing.items
    except ClusterError as error:
        return [], str(error)
    return found, ""


def upper_namespace_of(world: World, ref: Ref) -> str:
    """Return the upper namespace of an object of either cluster, "" for none."""
    lower = world.lowers.get(ref.cluster)
    return namespace_of(ref, lower) if lower else ref.name if ref.kind == NAMESPACE else ref.namespace


async def rehearse(
    clusters: KnownClusters,
    observer: Observer,
    selected_rules: tuple[Rule, ...] = (),
    *,
    forced: bool = False,
    pace: Pace = FULL_PACE,
) -> Problems:
    """Run the loop in memory; return the problems that would remain.

    `selected_rules` are its rules, () for the engine's. With `forced` the guard blocks nothing. `pace` is that of the
    loop.
    """
    world = clusters.world.copy()
    rehearsals = {}
    for name in (UPPER, *world.lowers):
        await asyncio.sleep(0)
        rehearsals[name] = _rehearsal(name, world, clusters.connections)
    for feed in feeds(world):
        rehearsals[feed.cluster].follow(feed.kind, feed.cache, partial(_selects, feed))
    loop = _loop(world, rehearsals, observer, selected_rules, forced=forced, pace=pace)
    try:
        for name in world.lowers:
            loop.open(name)
            await asyncio.sleep(0)
        while True:
            await loop.wait_idle()
            if not loop.expedite(_DUE_WITHIN):
                break
        return dict(world.problems)
    finally:
        await _close(loop)


async def converge(
    clusters: Clusters,
    observer: Observer,
    selected_rules: tuple[Rule, ...] = (),
    *,
    forced: bool,
    permits: Callable[[Step], bool] | None = None,
) -> Problems:
    """Run the loop until all is done; return the problems that remain. `selected_rules` as in `rehearse`.

    Steps that a person decides about are only carried out if `permits` allows them, None for all.
    """
    world = clusters.world
    loop = _loop(world, dict(clusters.connections), observer, selected_rules, forced=forced, permits=permits)
    try:
        for name in world.lowers:
            loop.open(name)
        async with asyncio.timeout(_CONVERGE_TIMEOUT):
            await _until_settled(loop)
        return dict(world.problems)
    except TimeoutError:
        raise ClusterTimeout(
            f"the changes were not complete after {_CONVERGE_TIMEOUT:g} s; keys that wait, by lower: {loop.depth}"
        ) from None
    finally:
        await _close(loop)


async def _list_clusters(
    clusters: Clusters, topology: Topology, progress: Progress
) -> tuple[dict[str, str], list[str]]:
    """List everything; return the unreachable lowers, which are left again, with the reason, and what waits."""
    with_file, with_secret = _by_source(topology)
    unreached = await _unreadable(clusters, with_file, Cache())
    deadline = asyncio.get_running_loop().time() + PATIENCE
    with _progress_when_slow(progress, lambda: ["the upper cluster"]):
        await _wait_for_upper(
            clusters, deadline, clusters.make_world(topology, node_address(topology, clusters.upper_address))
        )
        await _wait_for_upper(clusters, deadline, clusters.fleet.synced(UPPER))
    clusters.world.node_address = published_node_address(clusters.world)
    unreached |= await _unreadable(clusters, with_secret, clusters.world.upper.secrets)
    topology, waits = await _on_former_nodes(clusters, topology)
    clusters.world.topology = topology
    _join(clusters, topology, unreached)
    unreached |= await _wait_for_lowers(clusters, deadline, progress)
    for name in clusters.joined.keys() & unreached.keys():
        await clusters.leave(name)
    await _wait_for_upper(clusters, deadline + _EXPLAINED_TIMEOUT, clusters.fleet.synced(UPPER))
    return unreached, waits


async def _on_former_nodes(clusters: Clusters, topology: Topology) -> tuple[Topology, list[str]]:
    """Return the topology as a running engine uses it, and what waits: pods that are bound to a Node keep its name.

    Raises the ClusterError of a read that fails.
    """
    world, waits, lowers = clusters.world, list[str](), []
    nodes = [node for node in (entry.manifest() for entry in world.upper.nodes) if is_ours(node, world.owner)]
    for spec in topology.lowers:
        effective, node = spec, former_node(spec, topology, nodes)
        if node and (await clusters.connections[UPPER].list(POD, Selection(fields=f"spec.nodeName={node}"))).items:
            effective, message = on_former_node(spec, node)
            waits.append(message)
        lowers.append(effective)
    return topology.model_copy(update={"lowers": tuple(lowers)}) if waits else topology, waits


async def _wait_for_upper(clusters: Clusters, deadline: float, awaitable: Awaitable[object]) -> None:
    """Wait for the upper cluster until a time of the event loop, or until it has reported why it cannot be read."""
    task = asyncio.ensure_future(awaitable)
    try:
        if await _wait_for_tasks(clusters, {UPPER: task}, deadline):
            raise ClusterTimeout(f"upper: {_unread_reason(clusters, UPPER)}")
        task.result()
    finally:
        await net.cancel_and_wait(task)


async def _wait_for_tasks(clusters: Clusters, tasks: Mapping[str, asyncio.Future[Any]], deadline: float) -> list[str]:
    """Wait for tasks by the names of their clusters.

    Return those not done at `deadline`, and earlier those whose clusters reported why, or are lowers without any
    response.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    while waiting := [name for name, task in tasks.items() if not task.done()]:
        waited = loop.time() - started
        is_final = all(_is_waiting_useless(clusters, name, waited) for name in waiting)
        if is_final or loop.time() > deadline:
            break
        await asyncio.wait([tasks[name] for name in waiting], timeout=_POLL_INTERVAL, return_when=asyncio.ALL_COMPLETED)
    return waiting


def _join(clusters: Clusters, topology: Topology, unreached: Container[str]) -> None:
    """Join the reachable lowers and the orphaned Nodes, without Nodes of unreachable lowers."""
    for spec in topology.lowers:
        if spec.name not in unreached:
            clusters.join(spec)
    skipped_nodes = {spec.node.name for spec in topology.lowers if spec.name in unreached}
    for stray in clusters.strays():
        if stray.node.name not in skipped_nodes:
            clusters.join(stray, connect=False)


@contextmanager
def _progress_when_slow(progress: Progress, waiting: Callable[[], list[str]]) -> Iterator[None]:
    """Report, if this takes more than a second, which clusters are waited for and how long at most."""

    def report() -> None:
        progress(f"waiting up to {PATIENCE:g} s for {', '.join(waiting())}")

    timer = asyncio.get_running_loop().call_later(_PROGRESS_DELAY, report)
    try:
        yield
    finally:
        timer.cancel()


async def _wait_for_lowers(clusters: Clusters, deadline: float, progress: Progress) -> dict[str, str]:
    """Wait until all lowers are read; return those that are not in time, or have reported why they cannot be."""
    tasks = {name: asyncio.ensure_future(joined.complete()) for name, joined in clusters.joined.items()}
    try:
        with _progress_when_slow(progress, lambda: [name for name, task in tasks.items() if not task.done()]):
            waiting = await _wait_for_tasks(clusters, tasks, deadline)
        for name in tasks.keys() - set(waiting):
            tasks[name].result()
        return {name: _unread_reason(clusters, name) for name in waiting}
    finally:
        await net.cancel_and_wait(*tasks.values())


def _by_source(topology: Topology) -> tuple[list[Lower], list[Lower]]:
    """Return the lowers whose kubeconfig is a file, and those that have it in a Secret."""
    with_secret = [spec for spec in topology.lowers if spec.kubeconfig_secret is not None]
    return [spec for spec in topology.lowers if spec not in with_secret], with_secret


async def _unreadable(clusters: Clusters, lowers: Iterable[Lower], secrets: Cache) -> dict[str, str]:
    """Return the lowers whose credentials cannot be read, and why; waiting would not help."""
    errors = {}
    for spec in lowers:
        try:
            await clusters.cluster_access.lower_access(spec, secrets)
        except TensileError as error:
            errors[spec.name] = str(error)
    return errors


def _is_waiting_useless(clusters: Clusters, name: str, waited: float) -> bool:
    """Report whether waiting longer for a cluster would not help."""
    if _known_error(clusters, name):
        return waited > _EXPLAINED_TIMEOUT
    return waited > _NO_RESPONSE_TIMEOUT and name != UPPER and _is_silent(clusters, name)


def _is_silent(clusters: Clusters, name: str) -> bool:
    """Report whether a cluster has not responded at all."""
    opened = clusters.fleet.get(name)
    return opened is not None and opened.health.last_contact is None


def _known_error(clusters: Clusters, name: str) -> str:
    """Return why a cluster cannot be read, as far as it is known, "" if it only has not responded yet."""
    joined, opened = clusters.joined.get(name), clusters.fleet.get(name)
    if opened is None:
        return joined.lower.access_error if joined else ""
    error, denied = opened.health.error, opened.denials.unnamed
    if denied and not error:
        return f"{denied}: {ADVICE}"
    if opened.health.rejected:
        return f"credential rejected: {error}: renew the credential of {opened.cluster.access.origin}"
    message = error if error != NOT_CONTACTED else ""
    is_wrong_cluster = opened.health.shared or opened.health.wrong
    return message if is_wrong_cluster or not message else f"out of reach: {message}"


def _unread_reason(clusters: Clusters, name: str) -> str:
    """Return why a cluster was not read in time."""
    known_error = _known_error(clusters, name)
    if _is_silent(clusters, name) and (not known_error or "no response" in known_error):
        return "out of reach: no response: check that its apiserver works, its address, and the firewalls in between"
    return known_error or "out of reach: its lists were not complete in time"


def _loop(
    world: World,
    clusters: Mapping[str, Cluster],
    observer: Observer,
    selected_rules: tuple[Rule, ...] = (),
    *,
    forced: bool = False,
    permits: Callable[[Step], bool] | None = None,
    pace: Pace = FULL_PACE,
) -> Loop:
    timing = Timing(utc_now, random.random)
    return Loop(world, selected_rules or rules(), clusters, observer, timing, forced=forced, permits=permits, pace=pace)


async def _close(loop: Loop) -> None:
    for name in loop.depth:
        await loop.close(name)


async def _until_settled(loop: Loop) -> None:
    """Wait until no key is in progress, due soon, or waiting for another key that may still succeed."""
    idle_rounds = 0
    while idle_rounds < 1 / _POLL_INTERVAL:
        await loop.wait_idle()
        await asyncio.sleep(_POLL_INTERVAL)
        idle_rounds = (
            0 if loop.expedite(_POLL_INTERVAL) or any(loop.depth.values()) or loop.waiting else idle_rounds + 1
        )


def _rehearsal(name: str, world: World, connections: Mapping[str, Cluster]) -> DryRunCluster:
    rehearsal = DryRunCluster(name, behind=connections.get(name), ends_pods=name != UPPER, now=utc_now)
    for feed in feeds(world):
        for entry in feed.cache if feed.cluster == name else ():
            if entry.raw:
                rehearsal.hold(feed.kind, entry.raw)
    return rehearsal


def feeds(world: World) -> Iterator[InformerSpec]:
    """Yield the informers of all caches of a world."""
    yield from upper_feeds(world.upper, world.owner, world.topology.enabled)
    for lower in world.lowers.values():
        yield bound_feed(lower)
        yield from lower_feeds(lower, world.owner, places=world.topology.places)


def _selects(feed: InformerSpec, manifest: dict[str, object]) -> bool:
    return is_selected(manifest, feed.selection)
