"""`tensile explain pod --timeline`: when each step of a pod happened, in both clusters, and which one took longest.

Everything is read from the upper pod, its lower pod and their events. The API records most moments in whole seconds,
and each cluster with its own clock. So a step of less than a second can show as 0 or 1, and one between two clusters
even as negative. The moment at which the upper pod became Ready is recorded nowhere: its conditions have the times of
the lower pod. It is not later than the last change of its status by the engine, which `managedFields` has.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

from tensile.diagnostics.explain import has_ended
from tensile.engine.tracing import trace_id_of
from tensile.kubelet.pods.conditions import INITIALIZED, READY, SCHEDULED, conditions_of, is_ready
from tensile.names import FIELD_MANAGER, LOWER, LOWER_SCHEDULED
from tensile.objects import Manifest, annotations, deleted_at, metadata, uid
from tensile.text import aligned, clean, human_duration, joined

FORMAT = 1
RESOLUTION = 1
"""Seconds: a step that is not longer may have taken no time."""
_HEAD = ("OFFSET", "TIME", "CLUSTER", "WHAT", "RECORDED IN")
_TITLES = {
    "created": "created",
    "bound": "bound to its virtual node",
    "lowerCreated": "lower pod created",
    "lowerBound": "lower pod bound to a node",
    "initialized": "init containers done",
    "started": "containers started",
    "lowerReady": "lower pod Ready",
    "ready": "upper pod Ready",
}
"""The steps of a start in their order, by their names in JSON."""
_MINUTE = 60
Document = dict[str, Any]
Cells = tuple[str, ...]


class Traced(NamedTuple):
    """A pod in both clusters.

    `lower` is the name of its lower cluster, "" for a pod that is on no virtual node of the topology. `lower_pod` is {}
    if there is none, or it cannot be read; `lower_error` says why, "" if all was read. The events are those of
    each pod.
    """

    pod: Manifest
    events: Sequence[Manifest]
    lower: str = ""
    lower_pod: Manifest = {}  # noqa: RUF012 - never changed, as every manifest
    lower_events: Sequence[Manifest] = ()
    lower_error: str = ""


class Moment(NamedTuple):
    """One line: what happened when, and in which cluster ("upper" or a lower's name).

    `step` is a step of `_TITLES` that was complete then, "" for others. `at_most`: it happened then or earlier.
    `source` is the field that has the time.
    """

    time: datetime
    cluster: str
    what: str
    source: str
    step: str = ""
    at_most: bool = False


def timeline(traced: Traced, now: datetime) -> Document:
    """Return the document: `formatVersion`, `pod`, `lower`, `moments`, `steps`, `longest`, `notes`.

    Times are RFC 3339 in UTC, offsets and durations seconds. A step that is not complete lasts until `now`.
    """
    moments = sorted(_moments(traced), key=_order)
    begin = next((one.time for one in moments if one.step == "created"), now)
    steps = list(_steps(moments, traced, now))
    meta, lower_meta = metadata(traced.pod), metadata(traced.lower_pod)
    return {
        "formatVersion": FORMAT,
        "pod": {
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": uid(traced.pod),
            "traceId": f"{trace_id_of(uid(traced.pod)):032x}",
            "node": traced.pod["spec"].get("nodeName") or "",
        },
        "lower": {"name": traced.lower, "namespace": lower_meta.get("namespace"), "pod": lower_meta.get("name")}
        if traced.lower
        else None,
        "moments": [_row(one, begin) for one in moments],
        "steps": steps,
        "longest": _longest(steps),
        "notes": list(_notes(traced, steps)),
    }


def _order(moment: Moment) -> tuple[datetime, int]:
    """Return the order of the lines: by time, and steps of one second in the order in which they happen."""
    return moment.time, list(_TITLES).index(moment.step) if moment.step else len(_TITLES)


def _row(moment: Moment, begin: datetime) -> Document:
    return {
        "time": _rfc3339(moment.time),
        "offsetSeconds": _seconds(begin, moment.time),
        "cluster": moment.cluster,
        "what": moment.what,
        "step": moment.step or None,
        "atMost": moment.at_most,
        "recordedIn": moment.source,
    }


def _moments(traced: Traced) -> Iterator[Moment]:
    """Yield all that is known, in no order."""
    pod, lower_pod = traced.pod, traced.lower_pod
    yield from _creation(pod, "upper", "created")
    yield from _scheduled(pod, SCHEDULED, "upper", "bound")
    if lower_pod:
        yield from _creation(lower_pod, traced.lower, "lowerCreated")
        yield from _scheduled(lower_pod, SCHEDULED, traced.lower, "lowerBound")
        yield from _kubelet_moments(lower_pod, traced.lower)
        yield from _deletion(lower_pod, traced.lower)
    elif traced.lower:  # what the engine has copied from the lower pod, with the times of the lower cluster
        yield from _scheduled(pod, LOWER_SCHEDULED, traced.lower, "lowerBound")
        yield from _kubelet_moments(pod, traced.lower)
    yield from _upper_ready(pod)
    yield from _deletion(pod, "upper")
    yield from _event_moments(traced)


def _creation(pod: Manifest, cluster: str, step: str) -> Iterator[Moment]:
    time = _time(metadata(pod).get("creationTimestamp"))
    if time:
        yield Moment(time, cluster, _TITLES[step], "metadata.creationTimestamp", step)


def _scheduled(pod: Manifest, kind: str, cluster: str, step: str) -> Iterator[Moment]:
    """Yield when a scheduler bound a pod, or since when it finds no node."""
    condition = conditions_of(pod).get(kind) or {}
    time = _time(condition.get("lastTransitionTime"))
    if not time:
        return
    source = f"condition {kind}"
    if condition.get("status") == "True":
        node = (pod["spec"].get("nodeName") or "") if kind == SCHEDULED else ""
        yield Moment(time, cluster, f"{_TITLES[step]}{f' ({node})' if node else ''}", source, step)
    else:
        yield Moment(time, cluster, f"no node yet: {condition.get('message') or condition.get('reason') or ''}", source)


def _kubelet_moments(pod: Manifest, cluster: str) -> Iterator[Moment]:
    """Yield what a kubelet reports: the start and the end of each container, and readiness."""
    status = pod.get("status") or {}
    if time := _time(status.get("startTime")):
        yield Moment(time, cluster, "accepted by the kubelet", "status.startTime")
    for one in status.get("initContainerStatuses") or ():
        yield from _container(one, cluster, "init container")
    for one in status.get("containerStatuses") or ():
        yield from _container(one, cluster, "container")
    conditions = conditions_of(pod)
    if status.get("initContainerStatuses"):
        yield from _condition_moments(conditions.get(INITIALIZED), INITIALIZED, cluster, "initialized")
    yield from _started(status, cluster)
    yield from _condition_moments(conditions.get(READY), READY, cluster, "lowerReady")


def _condition_moments(condition: Manifest | None, kind: str, cluster: str, step: str) -> Iterator[Moment]:
    """Yield when a condition became True; of one that is False, since when."""
    time = _time((condition or {}).get("lastTransitionTime"))
    if condition and time and condition.get("status") == "True":
        yield Moment(time, cluster, _TITLES[step], f"condition {kind}", step)
    elif condition and time and condition.get("reason"):
        yield Moment(time, cluster, f"{kind} is {condition.get('status')}: {condition['reason']}", f"condition {kind}")


def _container(status: Manifest, cluster: str, word: str) -> Iterator[Moment]:
    """Yield the runs of a container that its status has: the present one and the one before."""
    name, runs = f"{word} {status['name']}", int(status.get("restartCount") or 0)
    for field, number in (("lastState", runs - 1), ("state", runs)):
        state = status.get(field) or {}
        restart_suffix = f" (restart {number})" if number > 0 else ""
        run = state.get("running") or state.get("terminated") or {}
        if time := _time(run.get("startedAt")):
            yield Moment(time, cluster, f"{name} started{restart_suffix}", f"{field}.startedAt")
        ended = state.get("terminated") or {}
        if time := _time(ended.get("finishedAt")):
            reason = f"{ended.get('reason') or 'ended'}, exit code {ended.get('exitCode')}"
            yield Moment(time, cluster, f"{name} ended{restart_suffix}: {reason}", f"{field}.finishedAt")


def _started(status: Manifest, cluster: str) -> Iterator[Moment]:
    """Yield when the last container started for the first time; nothing if that of one of them is not known."""
    times = [_first_start(one) for one in status.get("containerStatuses") or ()]
    known = [one for one in times if one]
    if known and len(known) == len(times):
        yield Moment(max(known), cluster, _TITLES["started"], "containerStatuses", "started")


def _first_start(status: Manifest) -> datetime | None:
    """Return the first start of a container. The API has its last two runs only."""
    runs = int(status.get("restartCount") or 0)
    if runs > 1:
        return None
    state = status.get("lastState" if runs else "state") or {}
    return _time((state.get("running") or state.get("terminated") or {}).get("startedAt"))


def _upper_ready(pod: Manifest) -> Iterator[Moment]:
    """Yield until when the upper pod became Ready: when the engine last changed its status."""
    managed_fields = metadata(pod).get("managedFields") or ()
    times = [_time(one.get("time")) for one in managed_fields if _is_status_of_engine(one)]
    known = [one for one in times if one]
    if is_ready(pod) and known:
        source = f"managedFields, last status of {FIELD_MANAGER}"
        yield Moment(max(known), "upper", _TITLES["ready"], source, "ready", at_most=True)


def _is_status_of_engine(entry: Manifest) -> bool:
    return entry.get("manager") == FIELD_MANAGER and entry.get("subresource") == "status"


def _deletion(pod: Manifest, cluster: str) -> Iterator[Moment]:
    meta = metadata(pod)
    if meta.get("deletionTimestamp"):
        grace = int(meta.get("deletionGracePeriodSeconds") or 0)
        what = f"deletion requested, with a grace period of {grace} s"
        yield Moment(deleted_at(pod), cluster, what, "metadata.deletionTimestamp")


def _event_moments(traced: Traced) -> Iterator[Moment]:
    """Yield the events of both pods. A copy in the upper cluster is left out if its original was read."""
    for cluster, events in (("upper", traced.events), (traced.lower, traced.lower_events)):
        for event in events:
            origin = annotations(event).get(LOWER) if cluster == "upper" else None
            if not (origin and traced.lower_events):
                yield from _event(event, origin or cluster)


def _event(event: Manifest, cluster: str) -> Iterator[Moment]:
    series = event.get("series") or {}
    first = _time(event.get("eventTime")) or _time(event.get("firstTimestamp")) or _time(event.get("lastTimestamp"))
    last = _time(series.get("lastObservedTime")) or _time(event.get("lastTimestamp"))
    if not first:
        return
    count = int(series.get("count") or event.get("count") or 1)
    repetition = f" ({count} times, last at {_rfc3339(last)})" if count > 1 and last else ""
    source = event.get("reportingComponent") or (event.get("source") or {}).get("component") or ""
    what = clean(f"{event.get('type', '')} {event.get('reason', '')}: {event.get('message', '')}") + repetition
    yield Moment(first, cluster, what, f"event of {source}" if source else "event")


def _steps(moments: Iterable[Moment], traced: Traced, now: datetime) -> Iterator[Document]:
    """Yield how long each step of the start took after the one before that is known.

    The last one may not be complete; a pod that ended, or is being deleted, waits for nothing.
    """
    known = {one.step: one for one in moments if one.step}
    done = [known[step] for step in _TITLES if step in known]
    for before, after in pairwise(done):
        yield _step(before.step, after.step, _seconds(before.time, after.time), at_most=after.at_most)
    is_over = has_ended(traced.pod) or metadata(traced.pod).get("deletionTimestamp")
    if done and not is_ready(traced.pod) and not is_over:
        yield _step(done[-1].step, None, _seconds(done[-1].time, now), at_most=False)


def _step(before: str, after: str | None, seconds: float, *, at_most: bool) -> Document:
    return {"from": before, "to": after, "seconds": seconds, "atMost": at_most}


def _longest(steps: Sequence[Document]) -> Document | None:
    """Return the longest step, None if none took longer than the resolution of the times."""
    found = max(steps, key=lambda one: one["seconds"], default=None)
    return found if found and found["seconds"] > RESOLUTION else None


def _notes(traced: Traced, steps: Iterable[Document]) -> Iterator[str]:
    """Yield what limits the result."""
    if not traced.lower and traced.pod["spec"].get("nodeName"):
        yield f"Node {traced.pod['spec']['nodeName']} is not a virtual node of this topology."
    if traced.lower_error:
        yield f"Without the lower pod: {traced.lower_error}"
    yield "Times have a resolution of 1 second, except those of some events, and each cluster has its own clock."
    if any(one["seconds"] < -RESOLUTION for one in steps):
        yield "A step is negative: the clocks of the clusters differ. `tensile doctor` measures by how much."
    if any(one["atMost"] for one in steps):
        yield f"{_TITLES['ready']}: at that time or earlier. The API does not record it; later statuses move it."
    statuses = ((traced.lower_pod or traced.pod).get("status") or {}).get("containerStatuses") or ()
    if any(one.get("restartCount") for one in statuses):
        yield "Containers have restarted: Ready is since the last time only."


def timeline_text(document: Document) -> str:
    """Return a timeline as text, without a trailing newline: a sentence, a table, the durations, what limits them."""
    pod, lower = document["pod"], document["lower"]
    head = f"Pod {pod['namespace']}/{pod['name']}"
    head += f" on virtual node {pod['node']}" if lower else ""
    head += f", pod {lower['namespace']}/{lower['pod']} in {lower['name']}" if lower and lower["pod"] else ""
    rows = [_cells(one) for one in document["moments"]]
    lines = [f"{head}: {_verdict(document)}", "", *aligned([_HEAD, *rows])]
    steps = [(_duration(one), _between(one)) for one in document["steps"]]
    lines += ["", *aligned([("TOOK", "STEP"), *steps])] if steps else []
    return joined([*lines, "", *document["notes"]])


def _verdict(document: Document) -> str:
    longest = document["longest"]
    if longest is None:
        return f"no step took longer than {RESOLUTION} second." if document["steps"] else "no step is known."
    if longest["to"] is None:
        return f"it waits since {_length(longest['seconds'])}, after: {_TITLES[longest['from']]}."
    return f"the longest step took {_duration(longest)}: {_between(longest)}."


def _between(step: Document) -> str:
    following = _TITLES[step["to"]] if step["to"] else "now"
    return f"{_TITLES[step['from']]} -> {following}"


def _duration(step: Document) -> str:
    return f"{'at most ' if step['atMost'] else ''}{_length(step['seconds'])}"


def _cells(row: Document) -> Cells:
    offset = row["offsetSeconds"]
    sign = ("<= " if row["atMost"] else "") + ("+" if offset >= 0 else "")
    return (f"{sign}{_length(offset)}", row["time"], row["cluster"], row["what"], row["recordedIn"])


def _length(seconds: float) -> str:
    """Return a duration, with fractions of a second where it is short; an event may be from before the pod."""
    if abs(seconds) < _MINUTE:
        return f"{round(seconds, 3):g}s"
    return f"{'-' if seconds < 0 else ''}{human_duration(round(abs(seconds)))}"


def _seconds(start: datetime, end: datetime) -> float:
    """Return the seconds between two times: a whole number where both are whole seconds."""
    seconds = (end - start).total_seconds()
    return int(seconds) if seconds.is_integer() else round(seconds, 3)


def _rfc3339(time: datetime) -> str:
    """Return a time in RFC 3339, with milliseconds only if it has some."""
    return time.isoformat(timespec="milliseconds" if time.microsecond else "seconds").replace("+00:00", "Z")


def _time(text: Any) -> datetime | None:
    """Return a time of the API, None for none. Lower clusters write some of them: other texts are none either."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo else None
