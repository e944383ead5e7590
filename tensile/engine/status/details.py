"""The pages of the status page that are opened on demand: a lower cluster, a pod, a search, and a topology to check.

They are functions of the world: what the caches hold at the moment of the request, and nothing else is requested. A
list of pods is divided into pages, so that a lower cluster with thousands of pods costs no more than one with a
hundred.

A pod is shown with both of its sides, so that a reader sees what the engine made of it. Values that may be secret are
never shown: environment variables, commands, options of volumes, annotations, and the messages that containers leave
when they end.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any, NamedTuple

from tensile.engine.status.html import (
    LEGEND,
    Markup,
    amount,
    bar,
    code,
    document,
    legend,
    link,
    pairs,
    table,
    text,
)
from tensile.engine.status.page import (
    CHANGE_HEAD,
    PROBLEM_HEAD,
    PageView,
    ResourceShares,
    change_row,
    problem_row,
    state_of,
)
from tensile.kube.store import Cache, Entry
from tensile.kubelet.pods.events import CarriedEvent
from tensile.objects import POD, UPPER, Manifest
from tensile.reconcile.copies import existing_copy, mirror_of
from tensile.reconcile.plan import Step
from tensile.reconcile.pods.index import PodView, view_of
from tensile.reconcile.redaction import without_secrets
from tensile.reconcile.report.values import differences, shown
from tensile.reconcile.world import Key, LowerWorld, World
from tensile.text import harmless
from tensile.topology.diff import Edit

PER_PAGE = 100
"""Maximum of rows of a list on one page."""
_MAX_LINE = 2000
_POD_HEAD = ("Pod", "Phase", "Ready", "Restarts", "Node in the lower cluster", "Reason")
_SHARE_HEAD = ("Resource", "Use", "Nodes have", *(words.capitalize() for words in LEGEND.values()))
_CONDITION_HEAD = ("Condition", "Status", "Reason", "Message")
_CONTAINER_HEAD = ("Container", "Image", "Ready", "Restarts", "State")
_CONTAINERS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_NOT_FOUND = "Not found"


class PageOfPods(NamedTuple):
    """Which pods of a lower cluster are requested: a namespace, "" for all, and the number of the page from 1."""

    namespace: str = ""
    number: int = 1


class FoundPod(NamedTuple):
    """An upper pod, and the lower cluster on whose node it is, None for none yet."""

    entry: Entry
    lower: LowerWorld | None


class TopologyCheck(NamedTuple):
    """What was found of a topology: its errors, "" for none, or what would change.

    `changes` are the changes, one each, `refused` those that need a restart, `waits` those that wait for something,
    `effects` what becomes of each lower cluster, and `plan` the plan as text, "" for none. Before a topology is in
    force, nothing is `compared`.
    """

    errors: str = ""
    warnings: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    effects: tuple[tuple[str, str], ...] = ()
    plan: str = ""
    compared: bool = True


def lower_page(
    view: PageView, world: World, name: str, selection: PageOfPods, held: Mapping[Key, tuple[Step, ...]]
) -> str:
    """Return the page of a lower cluster, "" if there is none of that name."""
    row = next((one for one in view.report.lowers or () if one.name == name), None)
    lower = world.lowers.get(name)
    if row is None or lower is None:
        return ""
    parts = [f"<h1>Lower cluster {text(name)}</h1><p>{state_of(row)}</p>"]
    parts += [f'<p class="bad">{text(row.message)}</p>'] if row.message else []
    facts = (("Virtual node", row.node), ("Kubernetes", lower.version), ("Nodes", len(lower.nodes)), ("Pods", row.pods))
    parts += pairs(facts)
    parts += _resources(view.shares.get(name, {}))
    parts += _problems(view, name)
    parts += _held([step for key, steps in held.items() if key.lower == name for step in steps])
    parts += _pods(lower, world, selection)
    return document(f"Lower cluster {name}", "".join(parts))


def _resources(used: ResourceShares) -> Iterator[str]:
    yield f'<h2 id="resources">Resources</h2>{legend()}'
    if not used:
        yield "<p>Its nodes and pods are not known.</p>"
        return
    parts = ("total", *LEGEND)
    rows = (
        (name, bar(name, share), *(amount(getattr(share, part), name) for part in parts))
        for name, share in used.items()
    )
    yield from table("How the Ready and schedulable nodes are used", _SHARE_HEAD, rows)


def _problems(view: PageView, lower: str) -> Iterator[str]:
    rows = [problem_row(key, problem) for key, problem in view.problems if key.lower == lower]
    if rows:
        yield '<h2 id="problems">Blocked objects</h2>'
        yield from table("Blocked objects of this lower cluster", PROBLEM_HEAD, rows[:PER_PAGE])
        yield _more(len(rows))


def _held(steps: list[Step]) -> Iterator[str]:
    """Yield the changes that the guard blocks: deletions, and pods that end because their lower pod was deleted."""
    if not steps:
        return
    yield f'<h2 id="held">Blocked by the guard</h2><p>These {len(steps):,} changes follow from no deletion in the '
    yield f"upper cluster. To make them, run {code('tensile apply --force')}.</p>"
    rows = (
        (one.ref.cluster or "upper", f"{one.ref.kind.name} {one.ref.namespaced_name}", one.reason)
        for one in steps[:PER_PAGE]
    )
    yield from table("Changes that the guard blocks", ("Cluster", "Object", "Why"), rows)
    yield _more(len(steps))


def _more(count: int) -> str:
    return f"<p>And {count - PER_PAGE:,} more.</p>" if count > PER_PAGE else ""


def _pods(lower: LowerWorld, world: World, selection: PageOfPods) -> Iterator[str]:
    counts = Counter(entry.namespace for entry in lower.upper_pods)
    yield '<h2 id="pods">Pods</h2>'
    if not counts:
        yield "<p>None.</p>"
        return
    yield from _namespaces(lower.name, counts, selection.namespace)
    entries = lower.upper_pods.select("namespace", selection.namespace) if selection.namespace else lower.upper_pods
    found = sorted((entry.namespace, entry.name) for entry in entries)
    last = max(1, -(-len(found) // PER_PAGE))
    number = min(max(selection.number, 1), last)
    chosen = found[(number - 1) * PER_PAGE : number * PER_PAGE]
    pods = (entry for entry in (lower.upper_pods.get(*name) for name in chosen) if entry is not None)
    yield from table("Pods on this virtual node", _POD_HEAD, (_pod_row(entry, lower, world) for entry in pods))
    yield from _page_links(lower.name, selection.namespace, number, last)


def _namespaces(lower: str, counts: Mapping[str, int], chosen: str) -> Iterator[str]:
    """Yield a link to the pods of each namespace."""
    yield '<nav aria-label="Namespaces"><ul class="links">'
    for name in ["", *sorted(counts)[:PER_PAGE]]:
        label = f"{name or 'All'} ({counts.get(name, sum(counts.values())):,})"
        yield f"<li>{f'<strong>{text(label)}</strong>' if name == chosen else _list_link(label, lower, name)}</li>"
    yield f"</ul>{_more(len(counts))}</nav>"


def _list_link(label: str, lower: str, namespace: str, number: int = 1) -> Markup:
    return link(label, "lowers", lower, namespace=namespace, page=number if number > 1 else "")


def _page_links(lower: str, namespace: str, number: int, last: int) -> Iterator[str]:
    """Yield links to the page before and the page after."""
    if last > 1:
        yield f'<nav aria-label="Pages of pods"><ul class="links"><li>Page {number} of {last}</li>'
        for label, target in (("First", 1), ("Previous", number - 1), ("Next", number + 1), ("Last", last)):
            if 1 <= target <= last and target != number:
                yield f"<li>{_list_link(label, lower, namespace, target)}</li>"
        yield "</ul></nav>"


def _pod_row(entry: Entry, lower: LowerWorld, world: World) -> tuple[object, ...]:
    pod = view_of(entry.manifest())
    lower_pod = mirror_of(entry, lower, world.owner)
    node = (lower_pod.manifest().get("spec") or {}).get("nodeName", "") if lower_pod is not None else ""
    statuses = [one for field in _CONTAINERS for one in pod.status.get(field) or ()]
    main_statuses = pod.status.get("containerStatuses") or ()
    ready = f"{sum(bool(one.get('ready')) for one in main_statuses)}/{len(pod.spec.get('containers') or ())}"
    restarts = sum(int(one.get("restartCount") or 0) for one in statuses)
    label = f"{entry.namespace}/{entry.name}"
    return link(label, "pods", entry.namespace, entry.name), _phase(pod), ready, restarts, node, _reason(pod)


def _phase(pod: PodView) -> str:
    return "Terminating" if "deletionTimestamp" in pod.meta else pod.phase


def _reason(pod: PodView) -> str:
    """Return why a pod is not ready, in the words of its status; "" for one that is, or has succeeded."""
    ready = pod.conditions.get("Ready") or {}
    if ready.get("status") == "True" or pod.phase == "Succeeded":
        return ""
    waiting = [(one.get("state") or {}).get("waiting") or {} for one in pod.status.get("containerStatuses") or ()]
    reasons = [pod.status.get("reason"), *(one.get("reason") for one in waiting), ready.get("reason")]
    return next((str(one) for one in reasons if one), "")


def found_pod(world: World, namespace: str, name: str) -> FoundPod | None:
    """Return the upper pod of that name, None if none is on a virtual node or waits for one."""
    for lower in world.lowers.values():
        entry = lower.upper_pods.get(namespace, name)
        if entry is not None:
            return FoundPod(entry, lower)
    entry = world.upper.waiting.get(namespace, name)
    return FoundPod(entry, None) if entry is not None else None


def pod_page(view: PageView, world: World, found: FoundPod, events: Iterable[CarriedEvent]) -> str:
    """Return the page of a pod; `events` are the last events that its lower cluster has of it, the latest first."""
    entry, lower = found
    name = f"{entry.namespace}/{entry.name}"
    lower_pod = existing_copy(entry, lower) if lower is not None else None
    copy = mirror_of(entry, lower, world.owner) if lower is not None else None
    parts = [f"<h1>Pod {text(name)}</h1>", *_where(lower, lower_pod, copy)]
    parts += [f"<p>More: {code(f'tensile explain pod {name}')}</p>"]
    parts += _problems_of(view, entry)
    upper_side = _side("Upper cluster", view_of(entry.manifest()))
    lower_side = _side(f"Lower cluster {lower.name}", view_of(copy.manifest())) if lower and copy else ()
    parts += ['<div class="sides">', *upper_side, *lower_side, "</div>"]
    parts += _rewritten(entry, copy) if copy is not None else ()
    parts += _events(events)
    parts += _changes(view, entry, lower)
    return document(f"Pod {name}", "".join(parts))


def _where(lower: LowerWorld | None, lower_pod: Entry | None, copy: Entry | None) -> Iterator[str]:
    if lower is None:
        yield "<p>No virtual node yet: it waits for the upper scheduler.</p>"
        return
    yield f"<p>On virtual node {text(lower.node)} of lower cluster {link(lower.name, 'lowers', lower.name)}.</p>"
    if lower_pod is not None and copy is None:
        yield '<p class="bad">The pod of this name in the lower cluster was not made for this upper pod.</p>'
    elif copy is None:
        yield "<p>It has no pod in the lower cluster.</p>"


def _problems_of(view: PageView, entry: Entry) -> Iterator[str]:
    name = (entry.namespace, entry.name)
    rows = [problem_row(key, problem) for key, problem in view.problems if (key.namespace, key.name) == name]
    if rows:
        yield '<h2 id="problems">Blocked</h2>'
        yield from table("Why the engine cannot reconcile it", PROBLEM_HEAD, rows[:PER_PAGE])


def _side(title: str, pod: PodView) -> Iterator[str]:
    """Yield one side of a pod: its place, its containers and its conditions."""
    yield f'<section class="card"><h2>{text(title)}</h2>'
    meta, spec, status = pod.meta, pod.spec, pod.status
    facts = (
        ("Namespace", meta.get("namespace")),
        ("Phase", _phase(pod)),
        ("Reason", status.get("reason")),
        ("Message", status.get("message")),
        ("Node", spec.get("nodeName")),
        ("Pod IP", status.get("podIP")),
        ("Created", meta.get("creationTimestamp")),
        ("Deletion requested", meta.get("deletionTimestamp")),
        ("UID", meta.get("uid")),
    )
    yield from pairs(facts)
    containers = [_container_row(one) for field in _CONTAINERS for one in status.get(field) or ()]
    if containers:
        yield "<h3>Containers</h3>"
        yield from table(f"Containers, {title}", _CONTAINER_HEAD, containers[:PER_PAGE])
    rows = [
        (one.get("type", ""), one.get("status", ""), one.get("reason", ""), one.get("message", ""))
        for one in pod.conditions.values()
    ]
    if rows:
        yield "<h3>Conditions</h3>"
        yield from table(f"Conditions, {title}", _CONDITION_HEAD, rows[:PER_PAGE])
    yield "</section>"


def _container_row(one: Manifest) -> tuple[object, ...]:
    ready = "yes" if one.get("ready") else "no"
    return one.get("name", ""), one.get("image", ""), ready, one.get("restartCount", 0), _state(one.get("state") or {})


def _state(state: Manifest) -> str:
    """Return a container's state: the message of one that has ended may hold anything, so it is not shown."""
    if state.get("waiting"):
        waiting = state["waiting"]
        return ": ".join(str(waiting[name]) for name in ("reason", "message") if waiting.get(name)) or "waiting"
    if state.get("terminated"):
        ended = state["terminated"]
        return f"{ended.get('reason') or 'ended'}, exit code {ended.get('exitCode', '')}"
    return "running" if state.get("running") is not None else ""


def _rewritten(entry: Entry, copy: Entry) -> Iterator[str]:
    """Yield the fields in which the two sides differ."""
    found = differences(without_secrets(entry.manifest()), without_secrets(copy.manifest()))
    yield '<h2 id="differences">Fields that differ</h2><p class="soft">Of metadata and spec: what the engine rewrites, '
    yield "and what the lower cluster adds. Values that may be secret are not shown.</p>"
    if not found:
        yield "<p>None.</p>"
        return
    rows = ((one.field, _value(one.old), _value(one.new)) for one in found[:PER_PAGE])
    yield from table("Fields that differ", ("Field", "Upper cluster", "Lower cluster"), rows)
    yield _more(len(found))


def _value(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else shown(value)


def _events(events: Iterable[CarriedEvent]) -> Iterator[str]:
    rows = [(one.time, one.type, one.reason, one.message, one.times) for one in events]
    yield '<h2 id="events">Last events of the lower cluster</h2>'
    if rows:
        head = ("Time", "Type", "Reason", "Message", "Count")
        yield from table("Last events of the lower cluster", head, rows[:PER_PAGE])
    else:
        yield "<p>None since the engine started, or they were too long ago.</p>"


def _changes(view: PageView, entry: Entry, lower: LowerWorld | None) -> Iterator[str]:
    objects = {(UPPER, entry.namespace, entry.name)}
    if lower is not None:
        objects.add((lower.name, lower.namespace(entry.namespace), entry.name))
    rows = [
        change_row(one)
        for one in view.changes
        if one.ref.kind == POD and (one.ref.cluster, one.ref.namespace, one.ref.name) in objects
    ]
    if rows:
        yield '<h2 id="changes">Last changes of this engine</h2>'
        yield from table("Last changes of this pod", CHANGE_HEAD, rows)


def are_listed(world: World) -> bool:
    """Report whether the pods of all lowers are known here; a replica that does not lead knows no lower."""
    caches = [world.upper.waiting, *(lower.upper_pods for lower in world.lowers.values())]
    return bool(world.lowers or not world.topology.lowers) and all(cache.synced for cache in caches)


def search_page(world: World | None, search_text: str) -> str:
    """Return the lower clusters and pods whose name contains a text; a pod's name is NAMESPACE/NAME."""
    wanted = search_text.strip().lower()
    parts = [
        f"<h1>Search</h1><p>{text(search_text)}</p>" if wanted else "<h1>Search</h1><p>Enter a part of a name.</p>"
    ]
    if wanted:
        lowers = [name for name in world.lowers if wanted in name.lower()] if world is not None else []
        pods = sorted(_matching(world, wanted)) if world is not None else []
        parts += _found_lowers(lowers)
        parts += _found_pods(pods)
        if world is None or not are_listed(world):
            parts += ["<p>The pods are not all known here: a starting engine and a replica that waits to lead do not "]
            parts += ["have them.</p>"]
        elif not (lowers or pods):
            parts += ["<p>Nothing has this text in its name.</p>"]
    return document("Search", "".join(parts), search_text=search_text)


def _matching(world: World, wanted: str) -> Iterator[tuple[str, str, str]]:
    """Yield namespace, name and lower of each pod whose name contains a text."""
    caches: list[tuple[str, Cache]] = [(name, lower.upper_pods) for name, lower in world.lowers.items()]
    for lower, cache in (*caches, ("", world.upper.waiting)):
        for entry in cache:
            if wanted in f"{entry.namespace}/{entry.name}".lower():
                yield entry.namespace, entry.name, lower


def _found_lowers(names: list[str]) -> Iterator[str]:
    if names:
        yield '<h2 id="lowers">Lower clusters</h2><ul>'
        yield from (f"<li>{link(name, 'lowers', name)}</li>" for name in names[:PER_PAGE])
        yield f"</ul>{_more(len(names))}"


def _found_pods(pods: list[tuple[str, str, str]]) -> Iterator[str]:
    if pods:
        yield f'<h2 id="pods">Pods</h2><p>{len(pods):,} found.</p>'
        rows = (
            (
                link(f"{namespace}/{name}", "pods", namespace, name),
                link(lower, "lowers", lower) if lower else "no node yet",
            )
            for namespace, name, lower in pods[:PER_PAGE]
        )
        yield from table("Pods that were found", ("Pod", "Lower cluster"), rows)
        yield _more(len(pods))


def effects(change: Edit, world: World) -> tuple[tuple[str, str], ...]:
    """Return what becomes of each lower cluster that an edit affects, given the pods that are bound to its node now."""
    found = [(name, "the engine connects to it and adds its virtual node") for name in sorted(change.lowers.added)]
    for name in sorted(change.lowers.removed):
        effect = f"cordoned; {_bound(world, name)} until they are deleted, then its node is removed"
        found.append((name, effect))
    found += [(name, f"changed while it runs; {_bound(world, name)}") for name in sorted(change.lowers.changed)]
    return tuple(found)


def _bound(world: World, name: str) -> str:
    """Return how many pods stay on a lower's node."""
    lower = world.lowers.get(name)
    if lower is None or not lower.upper_pods.synced:
        return "it is not known here how many pods stay on its node"
    count = len(lower.upper_pods)
    return f"{count:,} pod{' stays' if count == 1 else 's stay'} on its node"


def topology_page(typed: str = "", check: TopologyCheck | None = None) -> str:
    """Return the form for a topology, and below it what was found of the one that was given."""
    parts = ["<h1>Check a topology</h1><p>The text is validated, compared with the topology in force, and planned on "]
    parts += ["what the engine knows of the clusters. Nothing is stored or changed. For new lower clusters, run "]
    parts += [f"{code('tensile plan -f FILE')}.</p>"]
    parts += _found(check) if check is not None else ()
    parts += ['<form action="/topology" method="post"><p><label for="topology">Topology (YAML)</label></p><p>']
    parts += [f'<textarea id="topology" name="topology" rows="18" spellcheck="false" required>\n{_typed(typed)}']
    parts += ["</textarea></p><p><button>Check</button></p></form>"]
    return document("Check a topology", "".join(parts))


def _typed(typed: str) -> str:
    """Return what was typed as HTML, whole, with control characters as escapes."""
    lines = ("\t".join(map(harmless, line.split("\t"))) for line in typed.splitlines())
    return escape("\n".join(lines))


def _found(check: TopologyCheck) -> Iterator[str]:
    yield '<section aria-label="Result"><h2 id="result">Result</h2>'
    if check.errors:
        lines = check.errors.splitlines()
        yield '<p class="bad">Not valid:</p><ul>'
        yield from (f"<li>{text(line, _MAX_LINE)}</li>" for line in lines[:PER_PAGE])
        yield f"</ul>{_more(len(lines))}</section>"
        return
    yield '<p class="good">Valid.</p>'
    yield from _list("Warnings", check.warnings)
    if not check.compared:
        yield "<p>It is not compared: no topology is in force yet.</p>"
    elif not (check.changes or check.refused):
        yield "<p>It means the same as the topology in force.</p>"
    yield from _list("Would change", check.changes)
    yield from _list("Needs a restart of the engine", check.refused)
    yield from _list("Would wait", check.waits)
    yield from _list("Lower clusters", [f"{name}: {effect}" for name, effect in check.effects])
    if check.plan:
        yield f'<h3>Plan</h3><pre tabindex="0" role="region" aria-label="Plan">{_typed(check.plan)}</pre>'
    yield "</section>"


def _list(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield f"<h3>{title}</h3><ul>{''.join(f'<li>{text(line, _MAX_LINE)}</li>' for line in found[:PER_PAGE])}</ul>"
        yield _more(len(found))


def missing_page(message: str) -> str:
    """Return the page for something that does not exist."""
    return document(
        _NOT_FOUND, f"<h1>{_NOT_FOUND}</h1><p>{text(message)}</p><p>It may be gone, or not be known yet.</p>"
    )
