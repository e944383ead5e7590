"""Which containers of a lower pod run, and since when."""

from datetime import datetime
from typing import NamedTuple

import msgspec

from tensile.cache import Entry
from tensile.kubelet.usage.samples import milliseconds


class Below(NamedTuple):
    """A lower pod."""

    namespace: str
    name: str
    uid: str


class Runner(NamedTuple):
    """A mirrored pod: its upper names and UID, the lower pod, and when each container that runs was started.

    Times are milliseconds since 1970; `started` is the pod's, None for one that has not.
    """

    namespace: str
    name: str
    uid: str
    below: Below
    started: int | None
    containers: dict[str, int]


class _Running(msgspec.Struct, gc=False):
    startedAt: datetime | None = None  # noqa: N815 - the API's spelling, here and below


class _State(msgspec.Struct, gc=False):
    running: _Running | None = None


class _Container(msgspec.Struct, gc=False):
    name: str
    state: _State = msgspec.field(default_factory=_State)


class _Status(msgspec.Struct, gc=False):
    startTime: datetime | None = None  # noqa: N815
    initContainerStatuses: list[_Container] | None = None  # noqa: N815
    containerStatuses: list[_Container] | None = None  # noqa: N815
    ephemeralContainerStatuses: list[_Container] | None = None  # noqa: N815


class _Pod(msgspec.Struct, gc=False):
    status: _Status = msgspec.field(default_factory=_Status)


_PODS = msgspec.json.Decoder(_Pod)


def runner(upper: Entry, below: Entry) -> Runner:
    """Say what runs of an upper pod, in the lower pod that was made for it."""
    status = _PODS.decode(below.raw).status
    started = None if status.startTime is None else milliseconds(status.startTime)
    place = Below(below.namespace, below.name, below.uid)
    return Runner(upper.namespace, upper.name, upper.uid, place, started, _starts(status))


def _starts(status: _Status) -> dict[str, int]:
    lists = status.initContainerStatuses, status.containerStatuses, status.ephemeralContainerStatuses
    running = [(one.name, one.state.running) for found in lists for one in found or ()]
    return {name: milliseconds(run.startedAt) for name, run in running if run and run.startedAt}
