"""Find the lower pod that a call names, and translate the call into a request to the lower apiserver.

Callers know upper names only, so whether a pod may be accessed is decided in one place. A name alone grants no access:
the lower pod must exist under the name of the pod that is bound to this node now, be ours and carry its UID. Otherwise
a foreign pod could be entered through the upper cluster.

Every request is built from checked parts: the lower pod's own names, known query keys, and the few headers that an
upgrade needs. Nothing else that the caller wrote reaches a lower cluster, above all no credential, neither in a header
nor hidden in a WebSocket subprotocol, where Kubernetes accepts bearer tokens too. Unknown query keys are dropped, as in
Kubernetes. The kubelet and the apiserver name the same parameters differently (`input=1`, `stdin=true`).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import NamedTuple, Protocol
from urllib.parse import urlencode

from tensile.kube.cluster import Cluster
from tensile.kube.store import Entry
from tensile.kubelet.api import routes
from tensile.kubelet.api.routes import APICall, ContainerRef, HTTPError, Query
from tensile.kubelet.stats.usage import RunningPod, running_pod
from tensile.names import Owner
from tensile.objects import POD
from tensile.reconcile.copies import mirror_of
from tensile.reconcile.world import LowerWorld

_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_LIST = b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[%b]}'
_STREAMS = {"input": "stdin", "output": "stdout", "error": "stderr", "tty": "tty"}
_LARGEST = 2**63 - 1
_LARGEST_PORT = 65535
_DIGITS = re.compile(r"[0-9]{1,19}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_DEFAULT_STREAM = "All"  # never passed on: an apiserver without the feature refuses even the default
_LOG_STREAMS = frozenset({_DEFAULT_STREAM, "Stdout", "Stderr"})
_PROTOCOLS = frozenset({"websocket", "spdy/3.1"})
_SUBPROTOCOLS = "sec-websocket-protocol"
_HIDDEN_TOKEN = "base64url.bearer.authorization.k8s.io."  # noqa: S105 - the prefix that announces one
_REQUEST_HEADERS = frozenset(
    {
        "sec-websocket-key",
        "sec-websocket-version",
        "sec-websocket-extensions",
        _SUBPROTOCOLS,
        "x-stream-protocol-version",
    },
)
_RESPONSE_HEADERS = frozenset(
    {
        "upgrade",
        "sec-websocket-accept",
        "sec-websocket-extensions",
        _SUBPROTOCOLS,
        "x-stream-protocol-version",
    },
)

Headers = tuple[tuple[str, str], ...]
"""Header fields in order: names in lower case, values as text."""


class PodTarget(NamedTuple):
    """A lower pod: its cluster, its namespace and name there, and the names of all containers of its upper pod."""

    cluster: Cluster
    namespace: str
    name: str
    containers: frozenset[str]


class PodLister(Protocol):
    """The mirrored pods of one virtual node, by their upper names."""

    def locate(self, namespace: str, pod: str) -> PodTarget | None:
        """Return the lower pod of an upper pod on this node, None unless it is ours and has the upper pod's UID."""
        ...

    def listed(self) -> bytes:
        """Return the node's mirrored pods as the JSON of a v1 PodList."""
        ...

    def running(self) -> Sequence[RunningPod]:
        """Return the mirrored pods with a running container."""
        ...


class EmptyPodLister:
    """A virtual node of which nothing is known yet."""

    def locate(self, _namespace: str, _pod: str) -> PodTarget | None:
        """Return None."""
        return None

    def listed(self) -> bytes:
        """Return an empty list."""
        return _LIST % b""

    def running(self) -> list[RunningPod]:
        """Return an empty list."""
        return []


class MirroredPods:
    """The pods of one lower cluster under their upper names; `cluster` returns the connection to it, None without."""

    def __init__(self, lower: LowerWorld, owner: Owner, cluster: Callable[[], Cluster | None]) -> None:
        self._lower = lower
        self._owner = owner
        self._cluster = cluster

    def locate(self, namespace: str, pod: str) -> PodTarget | None:
        """Return the lower pod of the upper pod of that name on this node, None where there is none of ours."""
        upper = self._lower.upper_pods.get(namespace, pod)
        mirror = self._mirror(upper) if upper else None
        cluster = self._cluster()
        if upper is None or mirror is None or cluster is None:
            return None
        return PodTarget(cluster, mirror.namespace, mirror.name, _containers(upper))

    def listed(self) -> bytes:
        """Return the mirrored pods, as they are in the upper cluster, as the JSON of a v1 PodList."""
        return _LIST % b",".join(upper.raw for upper, _ in self.pairs())

    def running(self) -> list[RunningPod]:
        """Return the mirrored pods with a running container."""
        found = (running_pod(upper, lower_pod) for upper, lower_pod in self.pairs())
        return [one for one in found if one.containers]

    def pairs(self) -> list[tuple[Entry, Entry]]:
        """Return the mirrored pods, each with its lower pod."""
        found = ((upper, self._mirror(upper)) for upper in self._lower.upper_pods)
        return [(upper, lower_pod) for upper, lower_pod in found if lower_pod]

    def _mirror(self, upper: Entry) -> Entry | None:
        return mirror_of(upper, self._lower, self._owner)


def _containers(upper: Entry) -> frozenset[str]:
    """Return the names of a pod's containers of every kind."""
    spec = upper.manifest()["spec"]
    return frozenset(one["name"] for kind in _CONTAINERS for one in spec.get(kind) or ())


class LowerRequest(NamedTuple):
    """A request to a lower apiserver: `doing` for messages, `path` and `query` as they are sent.

    `of_kubelet` means that the apiserver passes it on to the kubelet of the pod's node.
    """

    doing: str
    method: str
    path: str
    query: str
    headers: Headers = ()
    of_kubelet: bool = False


def request_to_lower(call: APICall, container_ref: ContainerRef, target: PodTarget, headers: Headers) -> LowerRequest:
    """Return the request to the target's cluster.

    Raise HTTPError with 400 for an invalid query or upgrade. For the log of a container that the pod does not have it
    is 404, as from a kubelet; a lower apiserver would answer 400, a bad request.
    """
    subresource, query_of = _SUBRESOURCES[call.area]
    request = LowerRequest(
        doing=f"{subresource} of pod {target.namespace}/{target.name}",
        method=call.method,
        path=f"{POD.path(target.namespace, target.name)}/{subresource}",
        query=query_of(call.query, container_ref.container),
        headers=() if call.area == routes.LOGS else upgrade_request_headers(headers),
        of_kubelet=True,
    )
    if call.area == routes.LOGS and container_ref.container not in target.containers:
        raise HTTPError(
            HTTPStatus.NOT_FOUND, f'container "{container_ref.container}" not found in pod "{container_ref.pod}"'
        )
    return request


def exec_query(query: Query, container: str) -> str:
    """Return the query of `pods/exec`; it needs at least one stream and a command."""
    command = command_of(query)
    if not command:
        raise _bad("command: exec requires a command")
    return _encode([*_streams(query), ("container", container), *(("command", word) for word in command)])


def command_of(query: Query) -> tuple[str, ...]:
    """Return the words of the command to run."""
    return tuple(value for key, value in query if key == "command")


def attach_query(query: Query, container: str) -> str:
    """Return the query of `pods/attach`; it needs at least one stream."""
    return _encode([*_streams(query), ("container", container)])


def port_query(query: Query, _container: str = "") -> str:
    """Return the query of `pods/portforward`: ports for WebSocket, none for SPDY, which names them later."""
    ports = [port for key, value in query if key == "port" for port in value.split(",")]
    return _encode([("ports", _number("port", port, 1, _LARGEST_PORT)) for port in ports])


def log_query(query: Query, container: str) -> str:
    """Return the query of `pods/log`; refuse a number, time or stream that Kubernetes would not accept with 400."""
    given = _first(query)
    if "sinceSeconds" in given and "sinceTime" in given:
        raise _bad("sinceSeconds, sinceTime: at most one of them may be set")
    if given.get("stream") == _DEFAULT_STREAM:
        del given["stream"]
    checked = [(key, check(key, given[key])) for key, check in _LOG_KEYS.items() if key in given]
    return _encode([("container", container), *checked])


def _streams(query: Query) -> list[tuple[str, str]]:
    """Return the requested streams; a terminal has no stderr of its own, so it is dropped, as in Kubernetes."""
    given = _first(query)
    requested = {
        apiserver_name: "true" for kubelet_name, apiserver_name in _STREAMS.items() if given.get(kubelet_name) == "1"
    }
    if "tty" in requested:
        requested.pop("stderr", None)
    if not requested.keys() - {"tty"}:
        raise _bad("input, output, error: at least one of these streams must be requested")
    return list(requested.items())


def _first(query: Query) -> dict[str, str]:
    """Return the first value of each key, which is the one that Kubernetes uses."""
    return dict(reversed(query))


def _flag(_key: str, value: str) -> str:
    """Return a boolean as Kubernetes reads it in a query: everything but "false" and "0" is true."""
    return "false" if value.lower() in {"false", "0"} else "true"


def _at_least(smallest: int) -> Callable[[str, str], str]:
    return lambda key, value: _number(key, value, smallest, _LARGEST)


def _number(key: str, value: str, smallest: int, largest: int) -> str:
    if not (_DIGITS.fullmatch(value) and smallest <= int(value) <= largest):
        raise _bad(f"{key}: {value[:40]!r} is not a whole number from {smallest} to {largest}")
    return value


def _time(key: str, value: str) -> str:
    if not _TIME.fullmatch(value):
        raise _bad(f"{key}: {value[:40]!r} is not a time such as 2024-01-31T12:00:00Z")
    return value


def _log_stream(key: str, value: str) -> str:
    if value not in _LOG_STREAMS:
        raise _bad(f"{key}: {value[:40]!r} is not one of {', '.join(sorted(_LOG_STREAMS))}")
    return value


def _encode(pairs: list[tuple[str, str]]) -> str:
    """Return the encoded query; bytes that were not UTF-8 stay as they were."""
    return urlencode(pairs, errors="surrogateescape")


def _bad(message: str) -> HTTPError:
    return HTTPError(HTTPStatus.BAD_REQUEST, message)


_LOG_KEYS: dict[str, Callable[[str, str], str]] = {
    "follow": _flag,
    "previous": _flag,
    "timestamps": _flag,
    "sinceSeconds": _at_least(1),
    "sinceTime": _time,
    "tailLines": _at_least(0),
    "limitBytes": _at_least(1),
    "stream": _log_stream,
}


_SUBRESOURCES: dict[str, tuple[str, Callable[[Query, str], str]]] = {
    routes.LOGS: ("log", log_query),
    routes.EXEC: ("exec", exec_query),
    routes.ATTACH: ("attach", attach_query),
    routes.PORT_FORWARD: ("portforward", port_query),
}
"""The lower pod's subresource for each route that names a pod, and what makes its query."""


def upgrade_request_headers(headers: Headers) -> Headers:
    """Return the headers that request the caller's upgrade from a lower; 400 unless it is to WebSocket or SPDY/3.1."""
    protocols = header_tokens(headers, "upgrade")
    if "upgrade" not in header_tokens(headers, "connection") or len(protocols) != 1 or protocols[0] not in _PROTOCOLS:
        raise HTTPError(HTTPStatus.BAD_REQUEST, "Upgrade request required: use websocket or SPDY/3.1")
    wanted = ((name, _without_tokens(name, value)) for name, value in headers if name in _REQUEST_HEADERS)
    upgrade = next(value for name, value in headers if name == "upgrade")
    return ("connection", "Upgrade"), ("upgrade", upgrade), *(pair for pair in wanted if pair[1])


def upgrade_response_headers(headers: Headers) -> Headers:
    """Return the headers of a lower's 101 response that are passed to the caller."""
    return ("connection", "Upgrade"), *(pair for pair in headers if pair[0] in _RESPONSE_HEADERS)


def header_tokens(headers: Headers, name: str) -> list[str]:
    """Return the comma-separated words of a header, in lower case."""
    return [word for key, value in headers if key == name for word in _split(value.lower())]


def _without_tokens(name: str, value: str) -> str:
    if name != _SUBPROTOCOLS:
        return value
    return ", ".join(word for word in _split(value) if not word.lower().startswith(_HIDDEN_TOKEN))


def _split(value: str) -> Iterable[str]:
    return filter(None, (word.strip() for word in value.split(",")))
