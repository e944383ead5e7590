"""The overview of the status page: the state of the engine as HTML, for people who look once and who keep it open.

The page is rendered here and not in the browser, so that it can be read without JavaScript, by screen readers, and as
one text. It has a card for each lower cluster and no list of pods, so its size does not grow with their number.

The sums of what pods request are computed again only for a lower cluster whose objects have changed, and only pods that
have changed are decoded: whoever watches the page must not cost the engine time that grows with every pod.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from tensile.engine.status.html import Markup, amount, bar, code, document, legend, link, table, text
from tensile.engine.status.report import LowerRow, StatusReport
from tensile.kube.store import Cache
from tensile.kubelet.node.capacity import ResourceShare, shares
from tensile.objects import Ref, timestamp
from tensile.reconcile.drift import RecentDrift
from tensile.reconcile.plan import Step
from tensile.reconcile.pods.demand import PodDemand, pod_demand
from tensile.reconcile.world import Key, LowerWorld, Problem, World
from tensile.text import human_duration

_MAX_ROWS = 50
"""Maximum of problems and of changes on the page; the log and `tensile plan` have all of them."""
_MAX_EXTENDED = 3
"""Maximum of extended resources, such as GPUs, for which a lower cluster has a bar."""
_BASIC_RESOURCES = ("cpu", "memory", "pods")
_HEALTHY_STATES = frozenset(("Ready", "Cordoned", "Drained"))
_VERBS = {"create": "created", "patch": "changed", "delete": "deleted"}

ResourceShares = Mapping[str, ResourceShare]
"""By resource, how a lower cluster's nodes are used."""


class RecentChange(NamedTuple):
    """A step that was carried out: when, what became of which object, and why."""

    time: datetime
    ref: Ref
    action: str
    reason: str


class RecentChanges:
    """The last changes that a person decides about; status, heartbeats and events are none. `now` returns UTC.

    `count` is the number of changes since the start.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.count = 0
        self._now = now
        self._recent: deque[RecentChange] = deque(maxlen=_MAX_ROWS)

    def add(self, step: Step) -> None:
        """Keep a step that was carried out."""
        self.count += 1
        self._recent.append(RecentChange(self._now(), step.ref, _VERBS.get(step.verb, step.verb), step.reason))

    def __iter__(self) -> Iterator[RecentChange]:
        """Yield the changes, the latest first."""
        return reversed(self._recent)


class PageView(NamedTuple):
    """What the page shows. `leads` is whether this replica is the leader; the others know nothing of lower clusters.

    `shares` is how the nodes of each lower cluster are used, and `held` the number of steps that the guard blocks, by
    key. `drifts` are the last changes of other clients that were put back, the latest first.
    """

    report: StatusReport
    leads: bool
    problems: tuple[tuple[Key, Problem], ...] = ()
    changes: tuple[RecentChange, ...] = ()
    shares: Mapping[str, ResourceShares] = {}
    held: Mapping[Key, int] = {}
    drifts: tuple[RecentDrift, ...] = ()


class ResourceUsage:
    """How the nodes of lower clusters are used, computed again for those whose objects have changed."""

    def __init__(self) -> None:
        self._shares: dict[str, tuple[object, ResourceShares]] = {}
        self._demands: dict[str, dict[str, tuple[int, PodDemand]]] = {}

    def of(self, lower: LowerWorld) -> ResourceShares:
        """Return how the nodes of a lower cluster are used, {} while its objects are not all listed."""
        if not (lower.nodes.synced and lower.pods.synced and lower.foreign_pods.synced):
            return {}
        state = (lower.spec.capacity, *map(_version, (lower.nodes, lower.pods, lower.foreign_pods)))
        known = self._shares.get(lower.name)
        if known is None or known[0] != state:
            known = self._shares[lower.name] = (state, self._compute(lower))
        return known[1]

    def forget(self) -> None:
        """Drop what is known, while the page is not open."""
        self._shares.clear()
        self._demands.clear()

    def _compute(self, lower: LowerWorld) -> ResourceShares:
        before = self._demands.get(lower.name, {})
        now: dict[str, tuple[int, PodDemand]] = {}
        for entry in lower.pods:
            known = before.get(entry.uid)
            if known is None or known[0] != entry.version:
                known = (entry.version, pod_demand(entry.raw).facts)
            now[entry.uid] = known
        self._demands[lower.name] = now
        capacity = lower.spec.capacity
        found = shares(
            (entry.facts for entry in lower.nodes),
            (entry.facts for entry in lower.foreign_pods),
            (demand for _, demand in now.values()),
            capacity.basis,
            (capacity.reserve, capacity.limit),
        )
        extended = sorted(name for name in found if "/" in name and found[name].total)[:_MAX_EXTENDED]
        return {name: found[name] for name in (*_BASIC_RESOURCES, *extended)}


def _version(cache: Cache) -> tuple[int, int, int]:
    """Return what differs after most changes of a cache, and after all that matter for a display."""
    return id(cache), cache.version, len(cache)


def stamp(world: World) -> tuple[object, ...]:
    """Return what differs after a change of a world that the page shows. It is cheap: it reads no object."""
    lowers = tuple(
        (
            lower.spec,
            int(lower.unreachable_seconds),
            lower.in_topology,
            lower.connected,
            lower.access_error,
            lower.denied,
            lower.warning,
            lower.other_engine,
            lower.is_wrong,
            lower.is_excessive,
            lower.version,
            lower.mapping_known,
            *((cache.version, len(cache), cache.synced) for cache in lower.caches()),
        )
        for lower in world.lowers.values()
    )
    return world.upper.nodes.version, hash(tuple(world.problems.items())), lowers


def page(view: PageView) -> str:
    """Return the whole page."""
    return document(view.report.topology or "no topology", content(view), is_live=True)


def content(view: PageView) -> str:
    """Return what changes on the page: everything but head and foot."""
    parts = (
        _head(view),
        _attention(view),
        _held(view.held),
        _lowers(view),
        _changes(view.changes),
        _drifts(view.drifts),
    )
    return "".join(part for block in parts for part in block)


def _head(view: PageView) -> Iterator[str]:
    report, document = view.report, view.report.verdict.document()
    role = "leader" if view.leads else "replica, waits to lead"
    yield f"<h1>{text(report.topology or 'No topology')}</h1><p>Engine: {role}. "
    accepted, rejected = document.get("accepted"), document.get("rejected")
    yield f"Topology in force since {text(accepted['time'])}.</p>" if accepted else "No topology is in force yet.</p>"
    if report.waits:
        yield f'<p class="bad">Not ready: {text(report.waits)}</p>'
    if rejected:
        yield f'<p class="bad">Refused at {text(rejected["time"])}: {text(rejected["error"])}</p>'
    approval = document.get("pendingApproval")
    if approval:
        label = f"An edit waits for an approval, since it affects {_counted(approval['pods'], 'running pod')}"
        yield f'<p class="bad">{text(label)}: {code(approval["command"])}</p><ul>'
        yield from (f"<li>{text(one)}</li>" for one in approval["changes"])
        yield "</ul>"
    for field, label in (("restartNeeded", "Needs a restart"), ("pending", "Not active yet")):
        for one in (accepted or {}).get(field, ()):
            yield f"<p>{label}: {text(one)}</p>"


def _attention(view: PageView) -> Iterator[str]:
    """Yield the problems, each with the command for details."""
    yield '<h2 id="attention">Needs attention</h2>'
    shown_messages = {problem.message for _, problem in view.problems}
    faulty = [row for row in view.report.lowers or () if row.message and row.message not in shown_messages]
    if not faulty and not view.problems:
        yield '<p class="good">Nothing.</p>'
        return
    rows: list[tuple[object, ...]] = [
        (link(row.name, "lowers", row.name), row.state, row.message, code("tensile doctor"))
        for row in faulty[:_MAX_ROWS]
    ]
    rows += [problem_row(key, problem) for key, problem in view.problems[:_MAX_ROWS]]
    yield from table("What is blocked, and the command for details", PROBLEM_HEAD, rows)
    omitted = max(len(view.problems) - _MAX_ROWS, 0) + max(len(faulty) - _MAX_ROWS, 0)
    if omitted:
        yield f"<p>And {omitted} more, in the log.</p>"


PROBLEM_HEAD = ("Where", "Reason", "Message", "Command")


def problem_row(key: Key, problem: Problem) -> tuple[object, ...]:
    """Return a problem as cells of a table: where, reason, message, and the command for details."""
    name = f"{key.namespace}/{key.name}" if key.namespace else key.name
    if key.rule == "pod" and key.namespace:
        where = Markup(f"{text(key.lower)} {link(name, 'pods', key.namespace, key.name)}")
        return where, problem.reason, problem.message, code(f"tensile explain pod {name}")
    return f"{key.lower} {name}".strip(), problem.reason, problem.message, code("tensile plan")


def _held(held: Mapping[Key, int]) -> Iterator[str]:
    """Yield how many steps the guard blocks, with a link to each lower's list."""
    if not held:
        return
    yield '<h2 id="held">Blocked by the guard</h2><ul>'
    counts: Counter[str] = Counter()
    for key, count in held.items():
        counts[key.lower] += count
    for lower, count in sorted(counts.items()):
        yield f"<li>{link(_counted(count, 'change'), 'lowers', lower)} in {text(lower)}</li>"
    yield f"</ul><p>No user requested them. To make them, run {code('tensile apply --force')}.</p>"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _lowers(view: PageView) -> Iterator[str]:
    rows = view.report.lowers
    yield '<h2 id="lowers">Lower clusters</h2>'
    if rows is None:
        yield "<p>Not known yet.</p>"
        return
    if not rows:
        yield "<p>The topology has none.</p>"
        return
    states = ", ".join(f"{count} {state}" for state, count in Counter(row.state for row in rows).most_common())
    yield f"<p>{_counted(len(rows), 'cluster')} ({text(states)}), {_counted(sum(row.pods for row in rows), 'pod')}.</p>"
    yield f'{legend()}<ul class="cards">'
    yield from (f'<li class="card">{"".join(_card(row, view.shares.get(row.name, {})))}</li>' for row in rows)
    yield "</ul>"


def _card(row: LowerRow, used: ResourceShares) -> Iterator[str]:
    yield f"<header><h3>{link(row.name, 'lowers', row.name)}</h3>{state_of(row)}</header>"
    yield f'<p class="soft">Node {text(row.node)}, {_counted(row.pods, "pod")}</p>'
    if not used:
        yield '<p class="soft">Its nodes and pods are not known.</p>'
        return
    yield "<dl>"
    for resource, share in used.items():
        description = f"{amount(share.free, resource)} of {amount(share.total, resource)} free"
        yield f'<dt>{text(resource, 40)}</dt><dd>{bar(resource, share)}</dd><dd class="n">{text(description)}</dd>'
    yield "</dl>"


def state_of(row: LowerRow) -> Markup:
    """Return the state of a lower cluster in one word, and since when it has not answered."""
    css_class = "good" if row.state in _HEALTHY_STATES else "bad"
    since = f" {human_duration(row.lag)}" if row.lag else ""
    return Markup(f'<strong class="{css_class}">{text(row.state)}{since}</strong>')


def _changes(changes: Iterable[RecentChange]) -> Iterator[str]:
    yield '<h2 id="changes">Last changes</h2>'
    rows = [change_row(one) for one in changes]
    if rows:
        yield from table("The last changes of this engine", CHANGE_HEAD, rows)
    else:
        yield "<p>None since the engine started.</p>"


def _drifts(drifts: Iterable[RecentDrift]) -> Iterator[str]:
    """Yield the changes of other clients, with the names of fields and without any value."""
    yield '<h2 id="drift">Changed by other clients</h2>'
    rows = [drift_row(one) for one in drifts]
    if rows:
        yield from table("The last changes of other clients that this engine put back", DRIFT_HEAD, rows)
        yield f"<p>What is not put back: {code('tensile plan --drift')}</p>"
    else:
        yield "<p>None were put back since the engine started.</p>"


DRIFT_HEAD = ("Time", "Cluster", "Object", "Fields", "Client")


def drift_row(one: RecentDrift) -> tuple[object, ...]:
    """Return a drift as cells of a table: time, cluster, object, fields, and the field managers, if they are known."""
    ref = one.ref
    object_name = f"{ref.kind.name} {ref.namespaced_name}"
    return (
        timestamp(one.time),
        ref.cluster or "upper",
        object_name,
        one.drift.summary,
        ", ".join(one.drift.managers) or "unknown",
    )


CHANGE_HEAD = ("Time", "Cluster", "Change", "Why")


def change_row(one: RecentChange) -> tuple[object, ...]:
    """Return a change as cells of a table: time, cluster, what became of which object, and why."""
    ref = one.ref
    change = f"{ref.kind.name} {ref.namespaced_name} {one.action}"
    return timestamp(one.time), ref.cluster or "upper", change, one.reason
