"""The resource requests of a pod, counted as the kube-scheduler does.

Both have to agree to the milli-unit: free capacity is what the lower scheduler can still assign. It takes into account
init containers, sidecars, overhead, pod-level resources and resizes in progress.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import orjson

from tensile.kube.store import Transformed
from tensile.names import LEGACY, OWNER, UPPER_UID, VIRTUAL_POD
from tensile.resources import add, parse_all

Amounts = dict[str, int]
"""Milli-units by resource name. Whole units such as bytes, GPUs and pods count a thousand each."""

Quantities = Mapping[str, str | int | float]
"""Quantities by resource name, as in the API's JSON."""

_ONE_POD = {"pods": 1000}

_POD_LEVEL = frozenset({"cpu", "memory"})
_HUGE_PAGES = "hugepages-"
_RESIZE_PENDING = "PodResizePending"


class _Resources(msgspec.Struct, gc=False):
    """Requests of a container or of a pod as a whole."""

    requests: Quantities | None = None


class _Container(msgspec.Struct, gc=False):
    """The relevant fields of a container."""

    name: str = ""
    resources: _Resources | None = None
    restartPolicy: str = ""  # noqa: N815 - the API's spelling, here and below


class _Spec(msgspec.Struct, gc=False):
    """The relevant fields of a spec."""

    nodeName: str = ""  # noqa: N815
    containers: list[_Container] = []
    initContainers: list[_Container] | None = None  # noqa: N815
    overhead: Quantities | None = None
    resources: _Resources | None = None


class _ContainerStatus(msgspec.Struct, gc=False):
    """The relevant fields of a container's status."""

    name: str = ""
    resources: _Resources | None = None
    allocatedResources: Quantities | None = None  # noqa: N815


class _Condition(msgspec.Struct, gc=False):
    """The relevant fields of a condition."""

    type: str = ""
    reason: str | None = None


class _Status(msgspec.Struct, gc=False):
    """The relevant fields of a status."""

    phase: str = ""
    containerStatuses: list[_ContainerStatus] | None = None  # noqa: N815
    initContainerStatuses: list[_ContainerStatus] | None = None  # noqa: N815
    resources: _Resources | None = None
    allocatedResources: Quantities | None = None  # noqa: N815
    conditions: list[_Condition] | None = None


class _Metadata(msgspec.Struct, gc=False):
    """The relevant fields of metadata."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletionTimestamp: str = ""  # noqa: N815


class _Pod(msgspec.Struct, gc=False):
    """The relevant fields of a pod. Others are not decoded."""

    spec: _Spec
    status: _Status = msgspec.field(default_factory=_Status)
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class PodDemand(msgspec.Struct, frozen=True, gc=False):
    """What a pod takes of its cluster: its node ("" while unscheduled), whether it has ended, and its requests.

    `mark` is the value of the owner label, and `made_for` the UID of the upper pod in its annotation, "" for none.
    `ending`: it is being deleted.
    """

    node: str
    ended: bool
    requests: Mapping[str, int]
    mark: str = ""
    made_for: str = ""
    ending: bool = False


_PODS = msgspec.json.Decoder(_Pod)


def pod_requests(pod: Mapping[str, object]) -> Amounts:
    """Return the requests of a decoded pod, including one of "pods"."""
    return _requests(msgspec.convert(pod, _Pod))


def resize_digest(status: Mapping[str, Any]) -> int:
    """Return a digest of what a pod's status adds to the requests of its spec: resizes in progress."""
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    parts = [(one.get("name"), one.get("resources"), one.get("allocatedResources")) for one in containers]
    refused = [one.get("reason") for one in status.get("conditions") or () if one.get("type") == _RESIZE_PENDING]
    return hash(orjson.dumps((parts, refused, status.get("resources"), status.get("allocatedResources"))))


def pod_demand(raw: bytes) -> Transformed:
    """Transform a pod that is only counted to a `PodDemand`. Bytes are kept only if it may have lost its owner."""
    pod = _PODS.decode(raw)
    ended = pod.status.phase in ("Succeeded", "Failed")
    labels, notes = pod.metadata.labels or {}, pod.metadata.annotations or {}
    mark, made_for = labels.get(OWNER, ""), notes.get(UPPER_UID, "")
    ending = bool(pod.metadata.deletionTimestamp)
    demand = PodDemand(pod.spec.nodeName, ended, {} if ended else _requests(pod), mark, made_for, ending)
    lost = made_for or labels.get(VIRTUAL_POD) == "true" or notes.get(LEGACY) == "true"
    return Transformed(raw if lost else b"", demand)


def _requests(pod: _Pod) -> Amounts:
    """Return the requests of a pod."""
    total = _of_containers(pod)
    if pod.spec.resources is not None and pod.spec.resources.requests:
        total |= _of_pod_level(pod, pod.spec.resources.requests)
    return add(add(total, _amounts(pod.spec.overhead)), _ONE_POD)


def _of_containers(pod: _Pod) -> Amounts:
    """Return the peak requests of all containers.

    Init containers run one after another beside the sidecars started before them, then all other containers run
    together. Sums are computed in place, as a pod may have thousands of containers and resources.
    """
    statuses, infeasible = _statuses(pod), _is_infeasible(pod)
    running: Amounts = {}
    for container in pod.spec.containers:
        _grow(running, _of_container(container, statuses.get(container.name), infeasible=infeasible))
    peak: Amounts = {}
    sidecars: Amounts = {}
    for container in pod.spec.initContainers or ():
        if container.restartPolicy == "Always":
            requested = _of_container(container, statuses.get(container.name), infeasible=infeasible)
            _grow(sidecars, requested)
            beside = {name: sidecars[name] for name in requested}
        else:
            beside = {name: amount + sidecars.get(name, 0) for name, amount in _specified(container).items()}
        for name, amount in beside.items():
            peak[name] = max(amount, peak.get(name, amount))
    _grow(running, sidecars)
    return _largest((running, peak))


def _grow(total: Amounts, more: Mapping[str, int]) -> None:
    """Add amounts to a sum."""
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _of_container(container: _Container, status: _ContainerStatus | None, *, infeasible: bool) -> Amounts:
    """Return the requests of a running container: the larger of present and desired resources during a resize."""
    if status is None or status.resources is None:
        return _specified(container)
    present = (_amounts(status.resources.requests), _amounts(status.allocatedResources))
    return _largest(present if infeasible else (_specified(container), *present))


def _of_pod_level(pod: _Pod, specified: Quantities) -> Amounts:
    """Return the pod-level requests, which replace the sum over its containers."""
    effective = _amounts(specified)
    if pod.status.resources is not None:
        present = (_amounts(pod.status.resources.requests), _amounts(pod.status.allocatedResources))
        effective = _largest(present if _is_infeasible(pod) else (effective, *present))
    names = [name for name in specified if name in _POD_LEVEL or name.startswith(_HUGE_PAGES)]
    return {name: effective.get(name, 0) for name in names}


def _statuses(pod: _Pod) -> dict[str, _ContainerStatus]:
    """Return the status of each container by its name, the first one for duplicates."""
    lists = (pod.status.initContainerStatuses or (), pod.status.containerStatuses or ())
    found: dict[str, _ContainerStatus] = {}
    for one in (one for entries in lists for one in entries):
        found.setdefault(one.name, one)
    return found


def _is_infeasible(pod: _Pod) -> bool:
    """Report whether the node has refused a resize as infeasible, so that the present resources stay."""
    return any(one.type == _RESIZE_PENDING and one.reason == "Infeasible" for one in pod.status.conditions or ())


def _specified(container: _Container) -> Amounts:
    """Return the requests in a container's spec."""
    return _amounts(container.resources.requests if container.resources else None)


def _amounts(quantities: Quantities | None) -> Amounts:
    """Parse a resource list of the API."""
    return parse_all(quantities or {})


def _largest(several: Iterable[Mapping[str, int]]) -> Amounts:
    """Return the largest amount of each resource."""
    most: Amounts = {}
    for one in several:
        for name, amount in one.items():
            most[name] = max(amount, most.get(name, amount))
    return most
