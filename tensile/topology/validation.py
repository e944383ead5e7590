"""What must fit together in a topology file: names, ports, pairs of keys, sets.

The checks read the file as written, not the models, and pass over what is of a wrong type: so a file with a mistake in
one field is still told of every clash in the others, all at once.

Which ports a topology takes, and which of them two would share.

Every virtual node has a port of its own, by default the next after that of the lower before it, so a port that looks
free in the file may be a node's. One machine serves them all: a second listener would fail to start, late and one by
one.

Reading a topology file as it is written, whatever mistakes are in it.

A value is looked up by its path and may be of any type; what is not there, or lies under something of another form, is
None. That lets every check run over every file.

What is valid in a topology file and still unlikely to be meant: warnings, each with its place.

`tensile validate` prints them; nothing is refused for them. Like the checks of errors they open nothing.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tensile import resources
from tensile.topology.fields import is_whole
from tensile.topology.messages import Problem
from tensile.topology.models import Topology, TopologyFile
from tensile.yaml_document import Path, compose, locate, show_key, show_path


class Fault(NamedTuple):
    """Something that does not fit: where, and in words what and what would be right."""

    path: Path
    text: str


def get(data: Any, path: Path) -> Any:
    """Return what is written at a path, None when nothing is or when the file has another form."""
    for step in path:
        if isinstance(step, str):
            data = data.get(step) if isinstance(data, dict) else None
        else:
            data = data[step] if isinstance(data, tuple) and step < len(data) else None
    return data


def lowers(data: Any) -> range:
    """Return the places of the lowers."""
    found = get(data, ("lowers",))
    return range(len(found)) if isinstance(found, tuple) else range(0)


def scopes(data: Any) -> Iterator[Path]:
    """Yield the paths below which fields of a lower may stand."""
    yield ("lowerDefaults",)
    for place in lowers(data):
        yield "lowers", place


def inherited(data: Any, place: int, path: Path) -> tuple[Any, Path]:
    """Return a lower's value and where it is written: its own, else that of lowerDefaults, else None at its own place."""
    own: Path = ("lowers", place, *path)
    default: Path = ("lowerDefaults", *path)
    container = get(data, own[:-1])
    if isinstance(container, dict) and path[-1] in container:
        return container[path[-1]], own
    found = get(data, default)
    return (found, default) if found is not None else (None, own)


_LAST = 65535
_UNPRIVILEGED = 1024
"""The first port at which anybody may listen, where a kernel is not told otherwise."""
_BASE: Path = ("kubelet", "port")


class _Claim(NamedTuple):
    """A port that something listens on: whose it is, where to say so, and whether the port is written there."""

    port: int
    path: Path
    who: str
    written: bool


def _is_port(value: Any) -> bool:
    """Tell a port from what is another mistake already."""
    return type(value) is int and 1 <= value <= _LAST


def _claim(data: Any, path: Path) -> Iterator[_Claim]:
    """Yield the port of a server, as written or by default; none when what is written is no port."""
    written = get(data, path)
    port = TopologyFile.model_fields[str(path[0])].default.port if written is None else written
    if _is_port(port):
        yield _Claim(port, path, show_path(path), written is not None)


def _servers(data: Any) -> Iterator[_Claim]:
    """Yield the ports of the servers that run beside the nodes."""
    yield from _claim(data, ("telemetry", "port"))
    for server in ("webhook", "extender"):
        if get(data, (server, "enabled")) is True:
            yield from _claim(data, (server, "port"))


def _followers(data: Any) -> Iterator[_Claim]:
    """Yield the ports of the nodes that follow kubelet.port by their lower's place."""
    for base in _claim(data, _BASE):
        for place in lowers(data):
            if inherited(data, place, ("node", "kubeletPort"))[0] is None:
                who = f"lowers[{place}] (kubelet.port + {place})"
                path = _BASE if base.written else ("lowers", place)
                yield _Claim(base.port + place, path, who, base.written)


def _own(data: Any) -> Iterator[_Claim]:
    """Yield the ports of the nodes that have one written for them."""
    for place in lowers(data):
        port, path = inherited(data, place, ("node", "kubeletPort"))
        if _is_port(port):
            yield _Claim(port, path, f"lowers[{place}]", written=True)


def _clashes(claims: list[_Claim]) -> Iterator[Fault]:
    """Find ports claimed twice; each is told where one of the two is written, the later one if both are."""
    seen: dict[int, _Claim] = {}
    for claim in claims:
        first = seen.setdefault(claim.port, claim)
        if first is not claim:
            at, other = (claim, first) if claim.written or not first.written else (first, claim)
            words = f"port {at.port} of {at.who} is that of {other.who} too; give each its own"
            yield Fault(at.path, words)


def low(data: Any) -> list[Path]:
    """Return where the ports of a file without faults are written at which by default only root listens, each once."""
    claims = [*_servers(data), *_own(data), *_followers(data)]
    return [*dict.fromkeys(claim.path for claim in claims if claim.port < _UNPRIVILEGED)]


def ports(data: Any) -> Iterator[Fault]:
    """Each server has a port of its own; kubelet.port is no other server's even when all nodes have their own."""
    followers = list(_followers(data))
    beyond = next((claim for claim in followers if claim.port > _LAST), None)
    if beyond:
        words = f"leaves no port for {beyond.who}; choose a lower one"
        yield Fault(beyond.path, words)
    base = [] if followers else list(_claim(data, _BASE))
    yield from _clashes([*_servers(data), *base])
    yield from _clashes([*_servers(data), *followers, *_own(data)])


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


def lower_names(data: Any) -> Iterator[Fault]:
    """Each lower has a name of its own."""
    seen: dict[str, int] = {}
    for place in lowers(data):
        name = get(data, ("lowers", place, "name"))
        if isinstance(name, str) and seen.setdefault(name, place) != place:
            words = f"{show_key(name)} is the name of lowers[{seen[name]}] too; give each its own"
            yield Fault(("lowers", place, "name"), words)


def node_names(data: Any) -> Iterator[Fault]:
    """Each lower has a node of its own; lowers of one name are told of that already."""
    seen: dict[str, tuple[int, Any]] = {}
    for place in lowers(data):
        lower = get(data, ("lowers", place, "name"))
        name, path = inherited(data, place, ("node", "name"))
        node = lower if name is None else name
        if not isinstance(node, str):
            continue
        first, other = seen.setdefault(node, (place, lower))
        if first != place and other != lower:
            words = f"{show_key(node)} is the node of lowers[{first}] too; give each its own"
            is_own = name is not None and path[0] == "lowers"
            yield Fault(path if is_own else ("lowers", place, "name"), words)


def kubeconfigs(data: Any) -> Iterator[Fault]:
    """Each lower has one way to its kubeconfig."""
    for place in lowers(data):
        lower = get(data, ("lowers", place))
        if not isinstance(lower, dict):
            continue
        own: Path = ("lowers", place)
        if lower.get("kubeconfig") is not None and lower.get("kubeconfigSecret") is not None:
            yield Fault((*own, "kubeconfigSecret"), "kubeconfig is given too; keep one of them")
        elif "kubeconfig" not in lower:
            yield from _secret(data, place)


def _secret(data: Any, place: int) -> Iterator[Fault]:
    """A Secret in place of a path has a namespace and a name."""
    secret, path = inherited(data, place, ("kubeconfigSecret",))
    own: Path = ("lowers", place)
    if secret is None:
        words = "missing; give the path of a kubeconfig (not in a ConfigMap), or kubeconfigSecret"
        yield Fault((*own, "kubeconfig"), words)
    for key in ("namespace", "name"):
        if isinstance(secret, dict) and inherited(data, place, ("kubeconfigSecret", key))[0] is None:
            yield Fault((*path, key), "missing; write the namespace and the name of the Secret")


def certificates(data: Any) -> Iterator[Fault]:
    """A certificate and its key come together."""
    for server in ("kubelet", "webhook"):
        for given, other in (("tlsCertFile", "tlsKeyFile"), ("tlsKeyFile", "tlsCertFile")):
            is_given = get(data, (server, given)) is not None
            if is_given and get(data, (server, other)) is None:
                yield Fault((server, given), f"given without {other}; give both or neither")


def webhook_address(data: Any) -> Iterator[Fault]:
    """The webhook is reached one way."""
    if None not in (get(data, ("webhook", "service")), get(data, ("webhook", "url"))):
        yield Fault(("webhook", "url"), "service is given too; keep one of them")


def repeats(data: Any) -> Iterator[Fault]:
    """A set names each member once."""
    paths = [*_SETS, *((*scope, *path) for scope in scopes(data) for path in _SETS[:2])]
    for path in paths:
        members = get(data, path)
        seen: set[str] = set()
        for place, member in enumerate(members if isinstance(members, tuple) else ()):
            if isinstance(member, str) and member in seen:
                yield Fault((*path, place), f"{show_key(member)} is named twice; name it once")
            if isinstance(member, str):
                seen.add(member)


def taints(data: Any) -> Iterator[Fault]:
    """A node has one taint of a key and an effect, as in Kubernetes."""
    for scope in scopes(data):
        found = get(data, (*scope, "node", "taints"))
        seen: set[tuple[str, str]] = set()
        for place, taint in enumerate(found if isinstance(found, tuple) else ()):
            mark = (str(get(taint, ("key",))), str(get(taint, ("effect",))))
            if isinstance(taint, dict) and mark in seen:
                words = f"a second taint {show_key(mark[0])} with effect {show_key(mark[1])}; keep one"
                yield Fault((*scope, "node", "taints", place), words)
            seen.add(mark)


def amounts(data: Any) -> Iterator[Fault]:
    """What Kubernetes counts in whole numbers has no fraction."""
    for scope in scopes(data):
        for part in ("reserve", "limit"):
            path: Path = (*scope, "capacity", part)
            found = get(data, path)
            for name, value in found.items() if isinstance(found, dict) else ():
                if isinstance(value, str) and is_whole(name) and _has_fraction(value):
                    yield Fault((*path, name), 'counted in whole numbers; write one such as "4"')


def _has_fraction(text: str) -> bool:
    """Report whether a quantity is no whole number."""
    if not resources.is_quantity(text):
        return False
    return bool(resources.parse(text, resources.NANO) % 10**resources.NANO)


def annotations(data: Any) -> Iterator[Fault]:
    """A node's annotations are not larger than Kubernetes takes."""
    for scope in scopes(data):
        path: Path = (*scope, "node", "annotations")
        found = get(data, path)
        pairs = found.items() if isinstance(found, dict) else ()
        size = sum(len(str(part).encode(errors="replace")) for pair in pairs for part in pair)
        if size > _MOST_ANNOTATED:
            yield Fault(path, f"{size} bytes; Kubernetes takes {_MOST_ANNOTATED} in all")


def bursts(data: Any) -> Iterator[Fault]:
    """A limited rate lets at least one request go."""
    of_upper: Path = ("upper", "burst")
    limits = [(get(data, ("upper", "qps")), get(data, of_upper), of_upper)]
    for place in lowers(data):
        qps, _ = inherited(data, place, ("qps",))
        burst, path = inherited(data, place, ("burst",))
        limits.append((qps, burst, path))
    for qps, burst, path in limits:
        if burst == 0 and qps != 0:
            yield Fault(path, "is 0, so no request could go; must be at least 1, or set qps: 0 for no limit")


ALL: tuple[Callable[[Any], Iterator[Fault]], ...] = (
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


def configmap_paths(data: Any) -> Iterator[Fault]:
    """A topology that is read from a ConfigMap has no files beside it, so no paths in it."""
    for path in (*_PATHS, *(("lowers", place, "kubeconfig") for place in lowers(data))):
        if get(data, path) is not None:
            instead = "use kubeconfigSecret" if path[0] == "lowers" else "leave it out"
            words = f"a path, and a topology in a ConfigMap has no files beside it; {instead}"
            yield Fault(path, words)


def check(data: Any, *, configmap_mode: bool) -> Iterator[Fault]:
    """Yield everything that does not fit together in a file's data (dicts, tuples, scalars)."""
    for rule in ALL:
        yield from rule(data)
    if configmap_mode:
        yield from configmap_paths(data)


def cautions(text: str, topology: Topology) -> tuple[Problem, ...]:
    """Return the warnings about a valid topology, in the order of the file; `text` is what it was read from."""
    found = [*_webhook_without_address(topology), *_same_cluster(topology)]
    root = compose(text)[0] if found else None
    if root is None:
        return ()
    placed = (Problem(locate(root, path), path, words) for path, words in found)
    return tuple(sorted(placed, key=lambda problem: problem.position))


def _webhook_without_address(topology: Topology) -> Iterator[tuple[Path, str]]:
    if topology.webhook.enabled and not topology.webhook.is_reachable:
        words = "without service or url it is not registered, and the upper cluster never calls it; set one of them"
        yield ("webhook", "enabled"), words


def _same_cluster(topology: Topology) -> Iterator[tuple[Path, str]]:
    """Two lowers that are reached in one way are the same cluster; the engine leaves the second one alone."""
    seen: dict[tuple[object, ...], int] = {}
    for place, lower in enumerate(topology.lowers):
        first = seen.setdefault(lower.way, place)
        if first != place:
            words = (
                f"lowers[{first}] is reached in the same way, and one cluster cannot be two lowers; keep one of them"
            )
            yield ("lowers", place), words
