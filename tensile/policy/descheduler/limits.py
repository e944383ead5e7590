"""Which pods may be evicted, when and how many: drains, maintenance windows, and the records of evictions on Nodes.

A lower cluster with `maintenance: drain` is emptied once its node is cordoned. A DaemonSet's pod stays, because it
would come back at once.

A window opens by a cron schedule and stays open for a duration. The library cronsim computes the schedule, also where
the clock changes. It finds the last opening before a time as well as the next one, so that nothing has to be remembered
of earlier openings.

A record is written on the virtual node before its pod is evicted. From the records follow how many pods may leave now,
and which nodes a re-created pod must avoid; an engine that starts later, or runs beside this one, reads the same. They
are kept on the Node because they concern it and are deleted with it.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim
from msgspec.structs import replace

from tensile.kube.store import Entry
from tensile.names import TRIED, ProblemReason
from tensile.objects import NODE, UPPER, Manifest, Ref, annotations, controller_of, metadata
from tensile.policy.descheduler.replacement import annotation_problem
from tensile.reconcile.ownership import has_node
from tensile.reconcile.world import LowerWorld, Problem, World
from tensile.topology import Descheduler
from tensile.topology.models import MOST_WINDOWS, Window

MANAGED_BY_DAEMON_SET: ProblemReason = "ManagedByDaemonSet"
"""The drain waits for a pod of a DaemonSet that tolerates the node, and would come back to it. Remedy: change the
node selection of the DaemonSet."""
_MAX_WAIT = 3600.0
"""Maximum seconds until a check whether a window is open: the clock of the machine may be set meanwhile."""
MAX_RECORDS = 1_000
"""Maximum of records on one Node: without their lists of nodes they fit into its annotations several times."""
_MAX_BYTES = 160 * 1024
"""Maximum bytes of the records; all annotations of an object together may have 256 KiB."""
_CACHED_OPENINGS = 8 * MOST_WINDOWS
"""Number of openings that are kept: of the topology in force, and of candidates and edits that are planned beside."""
_RECORDS_KEY = TRIED.encode()


def is_being_drained(lower: LowerWorld, world: World) -> bool:
    """Report whether the pods of a drained lower are evicted now: its Node is ours and cordoned.

    If it were not cordoned, pods would come back.
    """
    node = world.upper.nodes.get("", lower.node) if lower.drain_requested else None
    return node is not None and has_node(lower, world) and bool(node.manifest()["spec"].get("unschedulable"))


def is_bare(pod: Entry) -> bool:
    """Report whether a pod has no controller to create it again.

    False for a pod in a terminal phase, which is not created again anyway.
    """
    return bool(pod.facts.bare) and not pod.facts.terminal


def drain_problem(pod: Entry) -> Problem | None:
    """Return why a pod with a controller stays, None for one that goes."""
    if controller_of(pod.manifest()).get("kind") == "DaemonSet":
        return Problem(
            MANAGED_BY_DAEMON_SET,
            "managed by a DaemonSet that tolerates this node; change the DaemonSet's node selection first",
        )
    return annotation_problem(pod)


def next_opening(windows: Iterable[Window], now: datetime) -> datetime | None:
    """Return when a window opens, in its time zone, if none is open now; None if pods may be moved now."""
    minute = now.replace(second=0, microsecond=0)
    openings: list[datetime] = []
    for window in windows:
        last, following = _openings(window.schedule, window.time_zone, minute)
        if last is not None and now - last < window.duration:
            return None
        if following is not None:
            openings.append(following)
    return min(openings, default=None)


def seconds_until(opening: datetime, now: datetime) -> float:
    """Return the seconds after which to check again whether a window is open."""
    return min(max((opening - now).total_seconds(), 0.0), _MAX_WAIT)


@lru_cache(maxsize=_CACHED_OPENINGS)
def _openings(schedule: str, zone: str, minute: datetime) -> tuple[datetime | None, datetime | None]:
    """Return the last opening up to a minute, and the next one after it; None for none within fifty years.

    No window opens within a minute, so that all decisions of a minute share one computation.
    """
    local = minute.astimezone(ZoneInfo(zone))
    last = next(CronSim(schedule, (minute + timedelta(seconds=1)).astimezone(local.tzinfo), reverse=True), None)
    upcoming = CronSim(schedule, local)
    following = next(upcoming, None)
    # In an hour that occurs a second time, the library finds what opened in the first one as still to come.
    while following is not None and following.astimezone(UTC) <= minute:
        last, following = following, next(upcoming, None)
    return last, following


class EvictionRecord(msgspec.Struct, frozen=True):
    """One evicted pod: the UIDs of its controller and of the pod, when, and the virtual nodes that are unsuitable."""

    owner: str
    pod: str
    at: datetime
    nodes: tuple[str, ...] = ()


_RECORDS = msgspec.json.Decoder(list[EvictionRecord])


def eviction_records(node: Manifest) -> list[EvictionRecord]:
    """Return the records on a Node; an empty list if they cannot be decoded."""
    try:
        records = _RECORDS.decode(annotations(node).get(TRIED) or "[]")
    except (msgspec.DecodeError, RecursionError):
        return []
    return [record for record in records if record.at.tzinfo is not None]


def recent(records: Iterable[EvictionRecord], now: datetime, within: timedelta) -> list[EvictionRecord]:
    """Return the records that are younger than `within`; a clock that was set back makes none older."""
    return [record for record in records if now - record.at < within]


def recent_evictions(lower: LowerWorld, world: World) -> list[EvictionRecord]:
    """Return the records on a lower's Node that were written within this interval."""
    node = world.upper.nodes.get("", lower.node)
    return recent(eviction_records(node.manifest()) if node else (), world.now, world.topology.descheduler.interval)


def encode_records(records: Iterable[EvictionRecord]) -> str:
    """Return records as the annotation's text; if that is too long, the oldest ones without their nodes.

    Limits need only who left and when; the nodes matter in the latest record of a controller.
    """
    all_records, trimmed = list(records), set[str]()
    excess = sum(map(_size, all_records)) - _MAX_BYTES
    for record in sorted(all_records, key=lambda one: one.at):
        if excess > 0:
            excess -= _size(record) - _size(_without_nodes(record))
            trimmed.add(record.pod)
    return msgspec.json.encode(
        [_without_nodes(record) if record.pod in trimmed else record for record in all_records]
    ).decode()


def _without_nodes(record: EvictionRecord) -> EvictionRecord:
    return replace(record, nodes=())


def _size(record: EvictionRecord) -> int:
    return len(msgspec.json.encode(record)) + 1


def record_retention(policy: Descheduler) -> timedelta:
    """Return how long a record has any effect."""
    return max(policy.cooldown, policy.interval)


def recently_left_nodes(nodes: Iterable[Entry], policy: Descheduler, now: datetime, owner: str) -> frozenset[str]:
    """Return the virtual nodes from which pods of a controller (its UID) were evicted within the cooldown."""
    return frozenset(
        node.name
        for node in nodes
        if any(record.owner == owner for record in recent(eviction_records(node.manifest()), now, policy.cooldown))
    )


def nodes_to_avoid(nodes: Iterable[Entry], policy: Descheduler, now: datetime, owner: str) -> tuple[str, ...]:
    """Return the virtual nodes to which a pod of a controller (its UID) must not go now, sorted.

    These are the nodes that its pods left, and those that could not have taken the last evicted one either. Empty while
    the descheduler is off, because then nothing would move the pod again. This is called for each pod that is created,
    so records are decoded only on Nodes that mention the controller.
    """
    if not policy.enabled:
        return ()
    owner_bytes = owner.encode(errors="replace")
    mentioning = tuple(node for node in nodes if _RECORDS_KEY in node.raw and owner_bytes in node.raw)
    records = (record for node in mentioning for record in eviction_records(node.manifest()))
    own_records = [record for record in recent(records, now, policy.cooldown) if record.owner == owner]
    latest = max((record.at for record in own_records), default=None)
    unsuitable = {name for record in own_records if record.at == latest for name in record.nodes}
    return tuple(sorted(unsuitable | recently_left_nodes(mentioning, policy, now, owner)))


def ref_of_node(node: Manifest) -> Ref:
    """Return the ref of a Node."""
    return Ref(UPPER, NODE, "", metadata(node)["name"])
