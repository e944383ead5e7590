"""What a request to a virtual node means, and which rights it needs; both are tables.

Paths and rights are the kubelet's (Kubernetes 1.36), with one difference: exec, attach, run and portForward need the
verb `create` whatever the HTTP method. A WebSocket exec is a GET, which Kubernetes allows with `get nodes/proxy`: a
right that looks read-only but runs commands.
"""

import re
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from tensile.kubelet.api.errors import HTTPError

LOGS = "containerLogs"
EXEC = "exec"
ATTACH = "attach"
PORT_FORWARD = "portForward"
HEALTH = "healthz"
PODS = "pods"
RUNNING_PODS = "runningpods"
METRICS = "metrics"
CADVISOR = ("cadvisor",)
WITHOUT_SAMPLES = frozenset({("probes",), ("slis",)})
"""Pages below `/metrics` of which a lower cluster tells nothing: they are served empty, so that Prometheus does not
report the node as down, which reads them from each kubelet."""
STATS = "stats"

Query = tuple[tuple[str, str], ...]


class APICall(NamedTuple):
    """A parsed request: `area` is the first segment of its path ("" for a path that no route can have)."""

    method: str
    area: str
    rest: tuple[str, ...]
    query: Query


class RequiredAccess(NamedTuple):
    """A verb on a subresource of the Node; a call may need one of several."""

    verb: str
    subresource: str


class ContainerRef(NamedTuple):
    """The pod and container that a call names, by their upper names; "" where it names none."""

    namespace: str = ""
    pod: str = ""
    container: str = ""


class _Route(NamedTuple):
    """A route: `segments` after the first name a pod; `pages` are the other paths allowed there, which name nothing."""

    methods: frozenset[str]
    segments: int
    pages: frozenset[tuple[str, ...]] = frozenset()

    def leads(self, rest: tuple[str, ...]) -> bool:
        """Report whether the further segments of a path are valid for this route."""
        return rest in self.pages if self.pages else len(rest) == self.segments and _well_shaped(rest)


_READ = frozenset({"GET"})
_UPGRADE = frozenset({"GET", "POST"})

ROUTES = {
    LOGS: _Route(_READ, 3),
    EXEC: _Route(_UPGRADE, 3),
    ATTACH: _Route(_UPGRADE, 3),
    PORT_FORWARD: _Route(_UPGRADE, 2),
    HEALTH: _Route(_READ, 0),
    PODS: _Route(_READ, 0),
    RUNNING_PODS: _Route(_READ, 0),
    METRICS: _Route(_READ, 0, frozenset({(), ("resource",), CADVISOR}) | WITHOUT_SAMPLES),
    STATS: _Route(_READ, 0, frozenset({("summary",)})),
}

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_RUNS_COMMANDS = frozenset({EXEC, ATTACH, PORT_FORWARD, "run"})
OWN_RIGHTS = {
    STATS: ("stats",),
    METRICS: ("metrics",),
    "logs": ("log",),
    "checkpoint": ("checkpoint",),
    "statusz": ("statusz",),
    "flagz": ("configz",),
    PODS: ("pods", "proxy"),
    RUNNING_PODS: ("pods", "proxy"),
    HEALTH: (HEALTH, "proxy"),
    "configz": ("configz", "proxy"),
}

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_SHAPES = (_LABEL, _SUBDOMAIN, _LABEL)
_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def understand(method: str, target: str) -> APICall:
    """Return the parsed method and target of a request; an unusual path becomes area "", which no route has."""
    path, _, query = target.partition("?")
    area, *rest = _segments(path) or ("",)
    pairs = parse_qsl(query, keep_blank_values=True, errors="surrogateescape")
    return APICall(method, area, tuple(rest), tuple(pairs))


def accesses(call: APICall) -> tuple[RequiredAccess, ...]:
    """Return the rights of which any one suffices for this call; a method unknown to Kubernetes has the verb ""."""
    verb = "create" if call.area in _RUNS_COMMANDS else _VERBS.get(call.method, "")
    return tuple(RequiredAccess(verb, subresource) for subresource in OWN_RIGHTS.get(call.area, ("proxy",)))


def place(call: APICall) -> ContainerRef:
    """Return what the call names; raise HTTPError, 404 where there is no such route and 405 for a wrong method."""
    route = ROUTES.get(call.area)
    if route is None or not route.leads(call.rest):
        raise HTTPError(HTTPStatus.NOT_FOUND, "404 page not found")
    if call.method not in route.methods:
        raise HTTPError(HTTPStatus.METHOD_NOT_ALLOWED, f"/{call.area} allows only {' or '.join(sorted(route.methods))}")
    return ContainerRef(*call.rest) if route.segments else ContainerRef()


def _segments(path: str) -> tuple[str, ...]:
    """Return the path's segments, decoded once; () if one is empty, contains a slash or is not a plain name."""
    found = tuple(unquote(part) for part in path.removesuffix("/").split("/")[1:])
    return found if path.startswith("/") and all(map(_SEGMENT.fullmatch, found)) else ()


def _well_shaped(names: tuple[str, ...]) -> bool:
    return all(shape.fullmatch(name) for shape, name in zip(_SHAPES, names, strict=False))
