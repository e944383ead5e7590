"""What a cluster's metrics API tells: how fast nodes and containers used cpu at a moment, and what memory they held.

Only these few fields are decoded, and amounts become integers as fine as the API gives them: a container that is all
but idle uses millionths of a cpu.
"""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from tensile.objects import Kind
from tensile.quantities import NANO, parse_once

NODE_METRICS = Kind("metrics.k8s.io/v1beta1", "NodeMetrics", "nodes", namespaced=False)
POD_METRICS = Kind("metrics.k8s.io/v1beta1", "PodMetrics", "pods", namespaced=True)

_THOUSAND = 1000
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?(?:h|ms|m|us|µs|ns|s))+|0")
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|us|µs|ns|s)")
_MILLISECONDS = {"h": 3_600_000.0, "m": 60_000.0, "s": 1000.0, "ms": 1.0, "us": 1e-3, "µs": 1e-3, "ns": 1e-6}


class Amount(NamedTuple):
    """A rate of cpu in billionths of one (so many nanoseconds a second), and bytes of memory."""

    cpu: int
    memory: int

    def __add__(self, other: object) -> "Amount":
        """Add amounts up, not tuples together."""
        if not isinstance(other, Amount):
            return NotImplemented
        return Amount(self.cpu + other.cpu, self.memory + other.memory)


NOTHING = Amount(0, 0)


class Sample(NamedTuple):
    """What was used at `time`, measured over the `window` before it; both in milliseconds, `time` since 1970."""

    time: int
    window: int
    used: Amount


class PodSample(NamedTuple):
    """What each container of a pod used, by name."""

    time: int
    window: int
    containers: dict[str, Amount]


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
_LONGEST_SPAN = 24 * 3_600_000
"""Milliseconds: nothing is measured over a day."""
_LAST = 253_402_300_799_000
"""The last second of the year 9999 in milliseconds since 1970."""


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


def node_samples(body: bytes) -> list[Sample]:
    """Read a NodeMetricsList; raises ValueError for what is none."""
    found = _decoded(_NODES, body).items
    return [Sample(milliseconds(node.timestamp), span(node.window), _amount(node.usage)) for node in found]


def pod_samples(body: bytes) -> dict[tuple[str, str], PodSample]:
    """Read a PodMetricsList, by namespace and name; raises ValueError for what is none."""
    found = _decoded(_PODS, body).items
    return {(pod.metadata.namespace, pod.metadata.name): _pod_sample(pod) for pod in found}


def whole(nodes: Iterable[Sample]) -> Sample | None:
    """Give what all nodes of a cluster used together, None without any.

    Each was measured at a moment of its own; together they are as new as the newest, as any of them may be the one that
    has changed.
    """
    newest = max(nodes, default=None, key=lambda sample: sample.time)
    if newest is None:
        return None
    return newest._replace(used=sum((node.used for node in nodes), NOTHING))


def milliseconds(moment: datetime) -> int:
    """Give a moment in milliseconds since 1970; one that lies before, or is the last of all, is the nearest one."""
    return min(max(round(moment.timestamp() * _THOUSAND), 0), _LAST)


def span(text: str) -> int:
    """Read a duration as Go writes it ("15.023s", "1m0.5s"), in milliseconds; ValueError for anything else."""
    if not _SPAN.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a duration such as 15.023s")
    found = sum(float(number) * _MILLISECONDS[unit] for number, unit in _PART.findall(text))
    if found > _LONGEST_SPAN:
        raise ValueError(f"{text[:40]!r} is longer than anything is measured")
    return round(found)


def _decoded(decoder: msgspec.json.Decoder[_List], body: bytes) -> _List:
    try:
        return decoder.decode(body)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def _pod_sample(pod: _Pod) -> PodSample:
    containers = {one.name: _amount(one.usage) for one in pod.containers}
    return PodSample(milliseconds(pod.timestamp), span(pod.window), containers)


def _amount(usage: _Usage) -> Amount:
    return Amount(parse_once(usage.cpu, NANO), parse_once(usage.memory, 0))
