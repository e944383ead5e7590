"""Turn samples of a lower's metrics API into counters of a virtual node, its pods and their containers.

Only the few needed fields are decoded. Amounts become integers in the finest unit of the API, since an almost idle
container uses millionths of a cpu. A sample carries names and no UID, so it counts for a container only if it was taken
after that container started: otherwise it describes another container of that name. Only running containers are
included, as in a kubelet.
"""

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from tensile.kube.store import Entry
from tensile.objects import Kind
from tensile.resources import NANO, parse_once

NODE_METRICS = Kind("metrics.k8s.io/v1beta1", "NodeMetrics", "nodes", namespaced=False)
POD_METRICS = Kind("metrics.k8s.io/v1beta1", "PodMetrics", "pods", namespaced=True)

_THOUSAND = 1000
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?(?:h|ms|m|us|µs|ns|s))+|0")
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|us|µs|ns|s)")
_MILLISECONDS = {"h": 3_600_000.0, "m": 60_000.0, "s": 1000.0, "ms": 1.0, "us": 1e-3, "µs": 1e-3, "ns": 1e-6}
_LONGEST_SPAN = 24 * 3_600_000
"""Milliseconds: no sample is measured over more than a day."""
_MAX_TIME = 253_402_300_799_000
"""The last second of the year 9999 in milliseconds since 1970."""
_MIN_COUNTER = 1000
_MAX_AGE = 60_000
"""Milliseconds in which a reader may take a container's whole counter for what it used since it started."""
_NODE = "node"


class UsageRate(NamedTuple):
    """A rate of cpu in billionths (nanoseconds a second), and bytes of memory."""

    cpu: int
    memory: int

    def __add__(self, other: object) -> "UsageRate":
        """Return the sum of both fields, not the concatenation of tuples."""
        if not isinstance(other, UsageRate):
            return NotImplemented
        return UsageRate(self.cpu + other.cpu, self.memory + other.memory)


NOTHING = UsageRate(0, 0)


class Sample(NamedTuple):
    """What was used at `time`, measured over the `window` before it; both in milliseconds, `time` since 1970."""

    time: int
    window: int
    used: UsageRate


class PodSample(NamedTuple):
    """What each container of a pod used, by name."""

    time: int
    window: int
    containers: dict[str, UsageRate]


class Counter(NamedTuple):
    """Nanoseconds of cpu used up to a `time` in milliseconds since 1970; never 0, which readers take for missing."""

    time: int
    used: int


class LowerPodRef(NamedTuple):
    """A lower pod."""

    namespace: str
    name: str
    uid: str


class RunningPod(NamedTuple):
    """A mirrored pod: its upper names and UID, the lower pod, and when each running container was started.

    Times are milliseconds since 1970; `started` is the pod's start, None before it. `images` are the images of the
    running containers, by their name.
    """

    namespace: str
    name: str
    uid: str
    lower: LowerPodRef
    started: int | None
    containers: dict[str, int]
    images: Mapping[str, str] = MappingProxyType({})


class UsageReading(NamedTuple):
    """A counter of cpu at its time, with the rate and the bytes of memory of the last sample."""

    counter: Counter
    amount: UsageRate


class ContainerReading(NamedTuple):
    """A container; `started` in milliseconds since 1970."""

    name: str
    started: int
    reading: UsageReading


class PodReading(NamedTuple):
    """A pod under its upper name: the sum of its containers, and each of them."""

    pod: RunningPod
    reading: UsageReading
    containers: tuple[ContainerReading, ...]


class UsageReport(NamedTuple):
    """A virtual node and its pods; the node's reading is None while no lower node has been measured."""

    name: str
    node: UsageReading | None
    pods: tuple[PodReading, ...]


class _Usage(msgspec.Struct, gc=False):
    cpu: str = "0"
    memory: str = "0"


class _Metadata(msgspec.Struct, gc=False):
    name: str
    namespace: str = ""


class _Container(msgspec.Struct, gc=False):
    name: str
    usage: _Usage


_Moment = Annotated[datetime, msgspec.Meta(tz=True)]
_List = TypeVar("_List")


class _Node(msgspec.Struct, gc=False):
    timestamp: _Moment
    window: str
    usage: _Usage


class _Pod(msgspec.Struct, gc=False):
    metadata: _Metadata
    timestamp: _Moment
    window: str
    containers: list[_Container]


class _Nodes(msgspec.Struct, gc=False):
    items: list[_Node]


class _Pods(msgspec.Struct, gc=False):
    items: list[_Pod]


_NODES = msgspec.json.Decoder(_Nodes)
_PODS = msgspec.json.Decoder(_Pods)


class _Running(msgspec.Struct, gc=False):
    startedAt: datetime | None = None  # noqa: N815 - the API's spelling, here and below


class _State(msgspec.Struct, gc=False):
    running: _Running | None = None


class _RunningContainer(msgspec.Struct, gc=False):
    name: str
    image: str = ""
    state: _State = msgspec.field(default_factory=_State)


class _Status(msgspec.Struct, gc=False):
    startTime: datetime | None = None  # noqa: N815
    initContainerStatuses: list[_RunningContainer] | None = None  # noqa: N815
    containerStatuses: list[_RunningContainer] | None = None  # noqa: N815
    ephemeralContainerStatuses: list[_RunningContainer] | None = None  # noqa: N815


class _RunningPod(msgspec.Struct, gc=False):
    status: _Status = msgspec.field(default_factory=_Status)


_RUNNING_PODS = msgspec.json.Decoder(_RunningPod)


def node_samples(body: bytes) -> list[Sample]:
    """Return the samples of a NodeMetricsList; raise ValueError for anything else."""
    found = _decoded(_NODES, body).items
    return [Sample(milliseconds(node.timestamp), span(node.window), _amount(node.usage)) for node in found]


def pod_samples(body: bytes) -> dict[tuple[str, str], PodSample]:
    """Return the samples of a PodMetricsList by namespace and name; raise ValueError for anything else."""
    found = _decoded(_PODS, body).items
    return {(pod.metadata.namespace, pod.metadata.name): _pod_sample(pod) for pod in found}


def total_of_nodes(nodes: Iterable[Sample]) -> Sample | None:
    """Return what all nodes of a cluster used together, None without any.

    Each node was measured at a time of its own. The sum carries the newest time, since any of the nodes may be the one
    that changed.
    """
    newest = max(nodes, default=None, key=lambda sample: sample.time)
    if newest is None:
        return None
    return newest._replace(used=sum((node.used for node in nodes), NOTHING))


def milliseconds(moment: datetime) -> int:
    """Return a time in milliseconds since 1970, at least 0 and at most the last second of the year 9999."""
    return min(max(round(moment.timestamp() * _THOUSAND), 0), _MAX_TIME)


def span(text: str) -> int:
    """Return the milliseconds of a Go duration such as "15.023s" or "1m0.5s"; raise ValueError for anything else."""
    if not _SPAN.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a duration such as 15.023s")
    found = sum(float(number) * _MILLISECONDS[unit] for number, unit in _PART.findall(text))
    if found > _LONGEST_SPAN:
        raise ValueError(f"{text[:40]!r} is too long for a duration")
    return round(found)


def _decoded(decoder: msgspec.json.Decoder[_List], body: bytes) -> _List:
    try:
        return decoder.decode(body)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def _pod_sample(pod: _Pod) -> PodSample:
    containers = {one.name: _amount(one.usage) for one in pod.containers}
    return PodSample(milliseconds(pod.timestamp), span(pod.window), containers)


def _amount(usage: _Usage) -> UsageRate:
    return UsageRate(parse_once(usage.cpu, NANO), parse_once(usage.memory, 0))


def new_counter(rate: int, time: int, window: int, started: int | None = None) -> Counter:
    """Return a new counter at a sample: its `window` at its `rate` (nanoseconds a second).

    If `started` (milliseconds since 1970) is at most a minute before the sample, the counter covers the time since
    then.
    """
    age = window if started is None else time - started
    covered = age if 0 <= age <= _MAX_AGE else window
    return Counter(time, max(_MIN_COUNTER, rate * covered // _THOUSAND))


def advance(counter: Counter, rate: int, time: int) -> Counter:
    """Return a counter advanced to a sample; a sample that is not newer changes nothing."""
    if time <= counter.time:
        return counter
    return Counter(time, counter.used + rate * (time - counter.time) // _THOUSAND)


class CPUCounters:
    """The counters of one virtual node, by what they count.

    Readers of a kubelet take differences of counters that only grow. The time since the last sample counts at the new
    sample's rate, not only the sample's own window, because samples between two requests are missed. So a reader that
    divides by the time between two readings gets the rate again. A new counter (all are new when the engine starts)
    begins so low that no reader computes more than was used.
    """

    def __init__(self) -> None:
        self._counters: dict[Hashable, Counter] = {}

    def __len__(self) -> int:
        return len(self._counters)

    def count(self, key: Hashable, rate: int, time: int, window: int, started: int | None = None) -> Counter:
        """Return the counter of `key` after a sample, as `new_counter` and `advance` compute it."""
        known = self._counters.get(key)
        counter = new_counter(rate, time, window, started) if known is None else advance(known, rate, time)
        self._counters[key] = counter
        return counter

    def forget_all_but(self, keys: set[Hashable]) -> None:
        """Drop all counters but those of `keys`."""
        self._counters = {key: counter for key, counter in self._counters.items() if key in keys}


def running_pod(upper_entry: Entry, lower_entry: Entry) -> RunningPod:
    """Return the running containers of an upper pod, from the lower pod that was made for it."""
    status = _RUNNING_PODS.decode(lower_entry.raw).status
    started = None if status.startTime is None else milliseconds(status.startTime)
    lower_ref = LowerPodRef(lower_entry.namespace, lower_entry.name, lower_entry.uid)
    starts, images = _running_containers(status)
    return RunningPod(upper_entry.namespace, upper_entry.name, upper_entry.uid, lower_ref, started, starts, images)


def _running_containers(status: _Status) -> tuple[dict[str, int], dict[str, str]]:
    """Return when each running container was started, and its image."""
    lists = status.initContainerStatuses, status.containerStatuses, status.ephemeralContainerStatuses
    starts, images = {}, {}
    for one in (one for found in lists for one in found or ()):
        if one.state.running and one.state.running.startedAt:
            starts[one.name] = milliseconds(one.state.running.startedAt)
            images[one.name] = one.image
    return starts, images


def usage_report(
    name: str,
    node: Sample | None,
    running_pods: Iterable[RunningPod],
    samples: Mapping[tuple[str, str], PodSample],
    counters: CPUCounters,
) -> UsageReport:
    """Count the samples (those of pods by lower namespace and name), and drop the counters of what no longer runs."""
    live_keys: set[Hashable] = {_NODE}
    pods: list[PodReading] = []
    for pod in running_pods:
        live_keys.update(_keys(pod))
        found = _pod(pod, samples.get((pod.lower.namespace, pod.lower.name)), counters)
        pods += () if found is None else (found,)
    counters.forget_all_but(live_keys)
    return UsageReport(name, _node(node, counters), tuple(pods))


def _node(sample: Sample | None, counters: CPUCounters) -> UsageReading | None:
    if sample is None:
        return None
    counter = counters.count(_NODE, sample.used.cpu, sample.time, sample.window)
    return UsageReading(counter, sample.used)


def _pod(pod: RunningPod, sample: PodSample | None, counters: CPUCounters) -> PodReading | None:
    """Count a pod and its containers; None where no container has been measured since it started."""
    measured = tuple(_containers(pod, sample, counters)) if sample else ()
    if not sample or not measured:
        return None
    total = sum((one.reading.amount for one in measured), NOTHING)
    first = min(one.started for one in measured)
    counter = counters.count(pod.lower.uid, total.cpu, sample.time, sample.window, first)
    return PodReading(pod, UsageReading(counter, total), measured)


def _containers(pod: RunningPod, sample: PodSample, counters: CPUCounters) -> Iterator[ContainerReading]:
    for key, (name, started) in zip(_keys(pod), pod.containers.items(), strict=False):
        amount = sample.containers.get(name)
        if amount is not None and started <= sample.time:
            counter = counters.count(key, amount.cpu, sample.time, sample.window, started)
            yield ContainerReading(name, started, UsageReading(counter, amount))


def _keys(pod: RunningPod) -> tuple[Hashable, ...]:
    """Return the counter keys of a pod's containers and of the pod; a restarted container has a new key."""
    return (*((pod.lower.uid, name, started) for name, started in pod.containers.items()), pod.lower.uid)
