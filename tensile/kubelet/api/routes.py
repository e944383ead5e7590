"""What a request to a virtual node means, which rights it needs, and the errors by which it is refused.

Paths and rights are tables. They are the kubelet's (Kubernetes 1.36), with one difference: exec, attach, run and
portForward need the verb `create` whatever the HTTP method. A WebSocket exec is a GET, which Kubernetes allows with
`get nodes/proxy`: a right that looks read-only but runs commands.

An error is an exception with a status and a message for the caller. It is raised where the fault is found and turned
into a response in one place. The message is sent as plain text, because that is what kube-apiserver and kubectl show of
a kubelet's error.
"""

import re
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import orjson

from tensile.errors import TensileError

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
_MAX_MESSAGE = 4096
_KUBELET_STATUSES = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.INTERNAL_SERVER_ERROR})
"""The statuses of a kubelet's own errors; with others it rejects the lower apiserver, not the caller."""


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

    def accepts(self, rest: tuple[str, ...]) -> bool:
        """Report whether the further segments of a path are valid for this route."""
        return rest in self.pages if self.pages else len(rest) == self.segments and _are_valid_names(rest)


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


def parse_call(method: str, target: str) -> APICall:
    """Return the parsed method and target of a request; an unusual path becomes area "", which no route has."""
    path, _, query = target.partition("?")
    area, *rest = _segments(path) or ("",)
    pairs = parse_qsl(query, keep_blank_values=True, errors="surrogateescape")
    return APICall(method, area, tuple(rest), tuple(pairs))


def accesses(call: APICall) -> tuple[RequiredAccess, ...]:
    """Return the rights of which any one suffices for this call; a method unknown to Kubernetes has the verb ""."""
    verb = "create" if call.area in _RUNS_COMMANDS else _VERBS.get(call.method, "")
    return tuple(RequiredAccess(verb, subresource) for subresource in OWN_RIGHTS.get(call.area, ("proxy",)))


def container_ref(call: APICall) -> ContainerRef:
    """Return what the call names; raise HTTPError, 404 where there is no such route and 405 for a wrong method."""
    route = ROUTES.get(call.area)
    if route is None or not route.accepts(call.rest):
        raise HTTPError(HTTPStatus.NOT_FOUND, "404 page not found")
    if call.method not in route.methods:
        raise HTTPError(HTTPStatus.METHOD_NOT_ALLOWED, f"/{call.area} allows only {' or '.join(sorted(route.methods))}")
    return ContainerRef(*call.rest) if route.segments else ContainerRef()


def _segments(path: str) -> tuple[str, ...]:
    """Return the path's segments, decoded once; () if one is empty, contains a slash or is not a plain name."""
    found = tuple(unquote(part) for part in path.removesuffix("/").split("/")[1:])
    return found if path.startswith("/") and all(map(_SEGMENT.fullmatch, found)) else ()


def _are_valid_names(names: tuple[str, ...]) -> bool:
    return all(shape.fullmatch(name) for shape, name in zip(_SHAPES, names, strict=False))


class HTTPError(TensileError):
    """The request is not served: `status` is HTTP's (400-599), `message` says what was wrong and is shown unchanged."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def from_lower(lower: str, doing: str, status: int, body: bytes, *, of_kubelet: bool = False) -> HTTPError:
    """Return our error for an unwanted response of a lower apiserver, with its status where that is an error.

    `of_kubelet` means that the apiserver passed the request on to a node's kubelet. The kubelet's message is then
    repeated unchanged, so that a caller reads what a real node answers; all other messages are prefixed with the
    lower's name. A redirect is never followed and an unwanted success never used: both become 502.
    """
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return HTTPError(HTTPStatus.BAD_GATEWAY, f"{lower}: {doing}: the response is a redirect, which is not followed")
    if status < HTTPStatus.BAD_REQUEST or status not in HTTPStatus.__members__.values():
        return HTTPError(HTTPStatus.BAD_GATEWAY, f"{lower}: {doing}: unexpected response {status}")
    status_object = _status(body)
    kubelet_message = _printable(_kubelet_message(status, body, status_object)) if of_kubelet else ""
    message = _printable(str(status_object.get("message", "")) if status_object else body.decode(errors="replace"))
    return HTTPError(HTTPStatus(status), kubelet_message or f"{lower}: {message or HTTPStatus(status).phrase}")


def _status(body: bytes) -> dict[str, Any]:
    """Return the v1 Status in a body, {} for any other body."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) and found.get("kind") == "Status" else {}


def _kubelet_message(status: int, body: bytes, status_object: dict[str, Any]) -> str:
    """Return the kubelet's message, "" if the message is not the kubelet's.

    Kubernetes' apiservers pass a kubelet's response to an upgrade on unchanged. They turn its response to a log request
    into a Status: a 400 with the same message, a 500 with it as the cause.
    """
    if status not in _KUBELET_STATUSES:
        return ""
    match status_object.get("reason"):
        case "BadRequest":
            return str(status_object.get("message", ""))
        case "InternalError":
            return _first_cause(status_object)
    return "" if status_object else body.decode(errors="replace")


def _first_cause(status_object: dict[str, Any]) -> str:
    """Return the first cause of a Status, without the words that an apiserver puts before it in the message."""
    try:
        return str(status_object["details"]["causes"][0]["message"])
    except (LookupError, TypeError):
        return ""


def _printable(text: str) -> str:
    """Return the text cut to the maximum length, without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:_MAX_MESSAGE]).strip()
