"""What must fit together in a topology file: names, ports, pairs of keys, sets.

The checks read the file as written, not the models, and pass over what is of a wrong type: so a file with a mistake in
one field is still told of every clash in the others, all at once.
"""

from collections.abc import Callable, Iterator
from typing import Any

from tensile import quantities
from tensile.topology.ports import ports
from tensile.topology.syntax import is_whole
from tensile.topology.written import Fault, get, inherited, lowers, scopes
from tensile.yamltree import Path, show_key

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
    """Tell whether a quantity is no whole number."""
    if not quantities.is_quantity(text):
        return False
    return bool(quantities.parse(text, quantities.NANO) % 10**quantities.NANO)


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
    """Give everything that does not fit together in a file's data (dicts, tuples, scalars)."""
    for rule in ALL:
        yield from rule(data)
    if configmap_mode:
        yield from configmap_paths(data)
