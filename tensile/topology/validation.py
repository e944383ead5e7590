"""Checks across the fields of a topology file, and warnings about a valid one.

The checks read the file as written instead of the models, and skip values of a wrong type. So a file with an error in
one field still gets all errors in the others at once. Values are looked up by path; a value that is missing, or whose
parent has another form, is None.

Every virtual node has its own port, usually kubelet.port plus its lower's index. So a port that looks free in the file
may be a node's, which would have to move for the server that is given it.

Warnings are for what is valid and probably a mistake. `tensile validate` prints them. Nothing is refused for them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tensile import resources
from tensile.names import ENGINE_LABELS, HOSTNAME
from tensile.topology.fields import is_whole
from tensile.topology.messages import TopologyProblem
from tensile.topology.models import Topology, TopologyFile
from tensile.yaml_document import Path, compose, locate, show_key, show_path

_LAST = 65535
_UNPRIVILEGED = 1024
"""The first port that an unprivileged process may use, by the kernel's default."""
_BASE: Path = ("kubelet", "port")

_MOST_ANNOTATED = 256 * 1024
_PATHS: tuple[Path, ...] = (
    ("upper", "kubeconfig"),
    ("kubelet", "tlsCertFile"),
    ("kubelet", "tlsKeyFile"),
    ("kubelet", "clientCAFile"),
    ("webhook", "tlsCertFile"),
    ("webhook", "tlsKeyFile"),
)
_SETS: tuple[Path, ...] = (
    ("controllers",),
    ("ignoreLabels",),
    ("excludeNamespaces",),
    ("webhook", "ignoreSelectorKeys"),
)


class TopologyFault(NamedTuple):
    """An inconsistency: its path, and what is wrong and would be right."""

    path: Path
    text: str


class _Claim(NamedTuple):
    """A port in use: its owner, the path for messages, and whether the file sets the port."""

    port: int
    path: Path
    owner: str
    written: bool


def get(data: Any, path: Path) -> Any:
    """Return the value at a path, None if it is missing or the file has another form."""
    for step in path:
        if isinstance(step, str):
            data = data.get(step) if isinstance(data, dict) else None
        else:
            data = data[step] if isinstance(data, tuple) and step < len(data) else None
    return data


def lowers(data: Any) -> range:
    """Return the indexes of the lowers."""
    found = get(data, ("lowers",))
    return range(len(found)) if isinstance(found, tuple) else range(0)


def scopes(data: Any) -> Iterator[Path]:
    """Yield the paths under which a lower's fields may be set."""
    yield ("lowerDefaults",)
    for index in lowers(data):
        yield "lowers", index


def inherited(data: Any, index: int, path: Path) -> tuple[Any, Path]:
    """Return a lower's value and its path: its own, else that of lowerDefaults, else None with the lower's own path."""
    own: Path = ("lowers", index, *path)
    default: Path = ("lowerDefaults", *path)
    container = get(data, own[:-1])
    if isinstance(container, dict) and path[-1] in container:
        return container[path[-1]], own
    found = get(data, default)
    return (found, default) if found is not None else (None, own)


def _is_port(value: Any) -> bool:
    """Report whether a value is a valid port."""
    return type(value) is int and 1 <= value <= _LAST


def _claim(data: Any, path: Path) -> Iterator[_Claim]:
    """Yield the port of a server, as written or by default, nothing for an invalid port."""
    written = get(data, path)
    port = TopologyFile.model_fields[str(path[0])].default.port if written is None else written
    if _is_port(port):
        yield _Claim(port, path, show_path(path), written is not None)


def _servers(data: Any) -> Iterator[_Claim]:
    """Yield the ports of the servers besides the nodes."""
    yield from _claim(data, ("telemetry", "port"))
    for server in ("webhook", "extender"):
        if get(data, (server, "enabled")) is True:
            yield from _claim(data, (server, "port"))


def _followers(data: Any) -> Iterator[_Claim]:
    """Yield the ports of the nodes that follow from kubelet.port and the lower's index."""
    for base in _claim(data, _BASE):
        for index in lowers(data):
            if inherited(data, index, ("node", "kubeletPort"))[0] is None:
                owner = f"lowers[{index}] (kubelet.port + {index})"
                path = _BASE if base.written else ("lowers", index)
                yield _Claim(base.port + index, path, owner, base.written)


def _own(data: Any) -> Iterator[_Claim]:
    """Yield the ports of the nodes whose port is set."""
    for index in lowers(data):
        port, path = inherited(data, index, ("node", "kubeletPort"))
        if _is_port(port):
            yield _Claim(port, path, f"lowers[{index}]", written=True)


def _clashes(claims: list[_Claim]) -> Iterator[TopologyFault]:
    """Yield a fault for each port in use twice, at the path where one of the two is set, the later one if both are."""
    seen: dict[int, _Claim] = {}
    for claim in claims:
        first = seen.setdefault(claim.port, claim)
        if first is not claim:
            reported, other = (claim, first) if claim.written or not first.written else (first, claim)
            message = f"port {reported.port} of {reported.owner} is also that of {other.owner}; use different ports"
            yield TopologyFault(reported.path, message)


def low(data: Any) -> list[Path]:
    """Return where a valid file sets ports that only root may use by default, each path once."""
    claims = [*_servers(data), *_own(data), *_followers(data)]
    return [*dict.fromkeys(claim.path for claim in claims if claim.port < _UNPRIVILEGED)]


def ports(data: Any) -> Iterator[TopologyFault]:
    """Check that each server has its own port, and none that a node without one usually gets.

    kubelet.port is reserved even if all nodes have their own. A node may be given the usual port of another one, which
    then gets the next.
    """
    followers = list(_followers(data))
    beyond = next((claim for claim in followers if claim.port > _LAST), None)
    if beyond:
        message = f"is too high, no port is left for {beyond.owner}; choose a lower port"
        yield TopologyFault(beyond.path, message)
    yield from _clashes([*_servers(data), *(followers or _claim(data, _BASE))])
    yield from _clashes([*_servers(data), *_own(data)])


def lower_names(data: Any) -> Iterator[TopologyFault]:
    """Check that lower names are unique."""
    seen: dict[str, int] = {}
    for index in lowers(data):
        name = get(data, ("lowers", index, "name"))
        if isinstance(name, str) and seen.setdefault(name, index) != index:
            message = f"{show_key(name)} is also the name of lowers[{seen[name]}]; use different names"
            yield TopologyFault(("lowers", index, "name"), message)


def node_names(data: Any) -> Iterator[TopologyFault]:
    """Check that node names are unique. Lowers with the same name are reported already."""
    seen: dict[str, tuple[int, Any]] = {}
    for index in lowers(data):
        lower = get(data, ("lowers", index, "name"))
        name, path = inherited(data, index, ("node", "name"))
        node = lower if name is None else name
        if not isinstance(node, str):
            continue
        first, other = seen.setdefault(node, (index, lower))
        if first != index and other != lower:
            message = f"{show_key(node)} is also the node of lowers[{first}]; use different names"
            is_own = name is not None and path[0] == "lowers"
            yield TopologyFault(path if is_own else ("lowers", index, "name"), message)


def kubeconfigs(data: Any) -> Iterator[TopologyFault]:
    """Check that each lower has exactly one source of its kubeconfig."""
    for index in lowers(data):
        lower = get(data, ("lowers", index))
        if not isinstance(lower, dict):
            continue
        own: Path = ("lowers", index)
        if lower.get("kubeconfig") is not None and lower.get("kubeconfigSecret") is not None:
            yield TopologyFault((*own, "kubeconfigSecret"), "kubeconfig is also set; set only one of them")
        elif "kubeconfig" not in lower:
            yield from _secret(data, index)


def _secret(data: Any, index: int) -> Iterator[TopologyFault]:
    """Check that a Secret instead of a path has a namespace and a name."""
    secret, path = inherited(data, index, ("kubeconfigSecret",))
    own: Path = ("lowers", index)
    if secret is None:
        message = "required key is missing; set the path of a kubeconfig (not in a ConfigMap), or kubeconfigSecret"
        yield TopologyFault((*own, "kubeconfig"), message)
    for key in ("namespace", "name"):
        if isinstance(secret, dict) and inherited(data, index, ("kubeconfigSecret", key))[0] is None:
            yield TopologyFault((*path, key), "required key is missing; set namespace and name of the Secret")


def certificates(data: Any) -> Iterator[TopologyFault]:
    """Check that a certificate and its key are set together."""
    for server in ("kubelet", "webhook"):
        for given, other in (("tlsCertFile", "tlsKeyFile"), ("tlsKeyFile", "tlsCertFile")):
            is_given = get(data, (server, given)) is not None
            if is_given and get(data, (server, other)) is None:
                yield TopologyFault((server, given), f"is set without {other}; set both or neither")


def webhook_address(data: Any) -> Iterator[TopologyFault]:
    """Check that the webhook has at most one address."""
    if None not in (get(data, ("webhook", "service")), get(data, ("webhook", "url"))):
        yield TopologyFault(("webhook", "url"), "service is also set; set only one of them")


def repeats(data: Any) -> Iterator[TopologyFault]:
    """Check that sets contain each member once."""
    paths = [*_SETS, *((*scope, *path) for scope in scopes(data) for path in _SETS[:2])]
    for path in paths:
        members = get(data, path)
        seen: set[str] = set()
        for index, member in enumerate(members if isinstance(members, tuple) else ()):
            if isinstance(member, str) and member in seen:
                yield TopologyFault((*path, index), f"{show_key(member)} is listed twice; list it once")
            if isinstance(member, str):
                seen.add(member)


def taints(data: Any) -> Iterator[TopologyFault]:
    """Check that a node has one taint per key and effect, as in Kubernetes."""
    for scope in scopes(data):
        found = get(data, (*scope, "node", "taints"))
        seen: set[tuple[str, str]] = set()
        for index, taint in enumerate(found if isinstance(found, tuple) else ()):
            mark = (str(get(taint, ("key",))), str(get(taint, ("effect",))))
            if isinstance(taint, dict) and mark in seen:
                message = f"taint {show_key(mark[0])} with effect {show_key(mark[1])} is listed twice; list it once"
                yield TopologyFault((*scope, "node", "taints", index), message)
            seen.add(mark)


def amounts(data: Any) -> Iterator[TopologyFault]:
    """Check that resources that Kubernetes counts in whole numbers have no fraction."""
    for scope in scopes(data):
        for part in ("reserve", "limit"):
            path: Path = (*scope, "capacity", part)
            found = get(data, path)
            for name, value in found.items() if isinstance(found, dict) else ():
                if isinstance(value, str) and is_whole(name) and _has_fraction(value):
                    yield TopologyFault((*path, name), 'must be a whole number, such as "4"')


def _has_fraction(text: str) -> bool:
    """Report whether a quantity is valid and no whole number."""
    if not resources.is_quantity(text):
        return False
    return bool(resources.parse(text, resources.NANO) % 10**resources.NANO)


def annotations(data: Any) -> Iterator[TopologyFault]:
    """Check that a node's annotations do not exceed Kubernetes' limit."""
    for scope in scopes(data):
        path: Path = (*scope, "node", "annotations")
        found = get(data, path)
        pairs = found.items() if isinstance(found, dict) else ()
        size = sum(len(str(part).encode(errors="replace")) for pair in pairs for part in pair)
        if size > _MOST_ANNOTATED:
            yield TopologyFault(path, f"{size} bytes in total; Kubernetes allows {_MOST_ANNOTATED}")


def bursts(data: Any) -> Iterator[TopologyFault]:
    """Check that a limited rate allows at least one request."""
    upper_burst: Path = ("upper", "burst")
    limits = [(get(data, ("upper", "qps")), get(data, upper_burst), upper_burst)]
    for index in lowers(data):
        qps, _ = inherited(data, index, ("qps",))
        burst, path = inherited(data, index, ("burst",))
        limits.append((qps, burst, path))
    for qps, burst, path in limits:
        if burst == 0 and qps != 0:
            yield TopologyFault(path, "is 0, which blocks all requests; must be at least 1, or set qps: 0 for no limit")


ALL: tuple[Callable[[Any], Iterator[TopologyFault]], ...] = (
    lower_names,
    node_names,
    kubeconfigs,
    certificates,
    webhook_address,
    repeats,
    taints,
    amounts,
    annotations,
    bursts,
    ports,
)


def configmap_paths(data: Any) -> Iterator[TopologyFault]:
    """Check that a topology in a ConfigMap contains no file paths."""
    for path in (*_PATHS, *(("lowers", index, "kubeconfig") for index in lowers(data))):
        if get(data, path) is not None:
            instead = "use kubeconfigSecret" if path[0] == "lowers" else "remove the key"
            message = f"is a file path, which a topology in a ConfigMap cannot have; {instead}"
            yield TopologyFault(path, message)


def check(data: Any, *, configmap_mode: bool) -> Iterator[TopologyFault]:
    """Yield all inconsistencies in a file's data (dicts, tuples, scalars)."""
    for rule in ALL:
        yield from rule(data)
    if configmap_mode:
        yield from configmap_paths(data)


def cautions(text: str, topology: Topology) -> tuple[TopologyProblem, ...]:
    """Return the warnings about a valid topology, in the order of the file. `text` is its source."""
    return located(text, [*_webhook_without_address(topology), *_same_cluster(topology), *_own_labels(topology)])


def located(text: str, faults: Iterable[TopologyFault]) -> tuple[TopologyProblem, ...]:
    """Return faults of a valid topology with their positions, in the order of the file. `text` is its source."""
    found = list(faults)
    root = compose(text)[0] if found else None
    if root is None:
        return ()
    problems = (TopologyProblem(locate(root, path), path, message) for path, message in found)
    return tuple(sorted(problems, key=lambda problem: problem.position))


def _webhook_without_address(topology: Topology) -> Iterator[TopologyFault]:
    if topology.webhook.enabled and not topology.webhook.is_reachable:
        message = "the upper cluster cannot call the webhook without an address; set webhook.service or webhook.url"
        yield TopologyFault(("webhook", "enabled"), message)


def _same_cluster(topology: Topology) -> Iterator[TopologyFault]:
    """Yield lowers with the same access as another or the upper cluster. The engine ignores the later lower."""
    upper, seen = topology.upper, dict[tuple[object, ...], int]()
    for index, lower in enumerate(topology.lowers):
        if lower.way == (upper.kubeconfig, upper.context, None):
            yield TopologyFault(("lowers", index), "is the upper cluster; use another kubeconfig, or remove the lower")
        first = seen.setdefault(lower.way, index)
        if first != index:
            message = (
                f"lowers[{first}] is the same cluster, and can only be one lower; use another kubeconfig, or remove one"
            )
            yield TopologyFault(("lowers", index), message)


def _own_labels(topology: Topology) -> Iterator[TopologyFault]:
    """Yield labels of nodes to which the engine gives another value."""
    for index, lower in enumerate(topology.lowers):
        for key, value in lower.node.labels.items():
            own = lower.node.name if key == HOSTNAME else ENGINE_LABELS.get(key, value)
            if value != own:
                message = (
                    f"has no effect: the engine gives this label the value {own!r}; remove it, or use another label"
                )
                yield TopologyFault(("lowers", index, "node", "labels", key), message)
