"""What the manifests are rendered from: the topology and the options beside it; and how they become YAML text.

People read the text, keep it in Git and apply it: it looks like `kubectl get -o yaml`, with reasons as comments.
"""

from collections.abc import Iterable, Iterator, Mapping
from textwrap import wrap
from typing import Any, NamedTuple

import tensile
from tensile.deploy.rbac import ACCOUNT, CONFIGMAP
from tensile.objects import Manifest
from tensile.topology import Topology
from tensile.yaml_document import Path, document, flow

NAME = ACCOUNT
"""The name of the engine's objects, or their prefix."""
WEBHOOK = f"{NAME}-webhook"
"""The name of the webhook's Service, unless the topology names one."""
METRICS, EXTENDER = f"{NAME}-metrics", f"{NAME}-extender"
"""The names of the other Services."""
_LAST = 65535
_FIRST_PROBED = 8081
_WIDTH = 120
_LONGEST_FLOW = 90


class Setup(NamedTuple):
    """An engine in the upper cluster; `text` is the text of its topology file."""

    topology: Topology
    text: str
    namespace: str
    image: str

    @property
    def selector(self) -> dict[str, str]:
        """The labels of the engine's pods."""
        return {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": self.topology.name}

    @property
    def configmap(self) -> str:
        """The topology's ConfigMap in the form that `tensile run --configmap` takes."""
        return f"{self.namespace}/{CONFIGMAP}"

    @property
    def servers(self) -> dict[str, int]:
        """The ports of the engine by name, without those of virtual nodes."""
        found = self.topology.server_ports
        return {"metrics": found.pop("telemetry"), **found}

    @property
    def kubelets(self) -> list[tuple[int, int]]:
        """The ports of the virtual nodes, as ranges of first and last port.

        The first range has room for lowers that are added later, so that the NetworkPolicy need not change for each of
        them.
        """
        usual = self.topology.kubelet_ports
        given = (lower.node.kubelet_port for lower in self.topology.lowers)
        own = {port for port in given if port and port not in usual}
        return [(usual[0], usual[-1]), *((port, port) for port in sorted(own))]

    @property
    def probed(self) -> int:
        """The port of the engine's probes: one that the topology does not use, even after lowers are added."""
        taken = {*self.servers.values(), *(port for first, last in self.kubelets for port in range(first, last + 1))}
        return next(port for port in range(_FIRST_PROBED, _LAST) if port not in taken)

    def object(self, api: str, kind: str, name: str, **fields: object) -> Manifest:
        """Return an object in the engine's namespace, with its labels."""
        meta = {"name": name, "namespace": self.namespace, "labels": self.selector}
        return {"apiVersion": api, "kind": kind, "metadata": meta, **fields}


class Piece(NamedTuple):
    """An object to apply, and the reason for it ("" where that is obvious)."""

    manifest: Manifest
    why: str = ""


def default_image() -> str:
    """Return the default image: that of this version, from the registry that the cluster's nodes use by default."""
    return f"tensile-kube:{tensile.__version__}"


def stream(pieces: Iterable[Piece], head: str = "") -> str:
    """Return objects as one stream of documents, each after its reason; `head` is a comment at the top."""
    written = [comment(piece.why) + document(piece.manifest) for piece in pieces]
    return (comment(head) if head else "") + "---\n".join(written)


def comment(words: str) -> str:
    """Return a text as YAML comments; a line that begins with a space is a command and is not wrapped."""
    return "".join(f"# {part}".rstrip() + "\n" for line in words.splitlines() for part in _wrapped(line))


def _wrapped(line: str) -> list[str]:
    return [line] if line.startswith(" ") else wrap(line, _WIDTH - 2) or [""]


def commented(data: Mapping[str, Any], comments: Mapping[Path, str], order: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a topology: its keys in an order, and comments on the lines of their paths.

    A comment on a key that the topology does not have is a line of its own.
    """
    for key in order:
        if key in data:
            yield from ("",) if isinstance(data[key], dict | list) else ()
            yield from _entry(key, data[key], (key,), comments)
        elif (key,) in comments:
            yield from ("", f"# {key}: {comments[(key,)]}")


def _entry(key: str, value: Any, path: Path, comments: Mapping[Path, str]) -> Iterator[str]:
    """Yield the lines of one key: one line for a short value without comments inside, else a block."""
    ending = f"  # {comments[path]}" if path in comments else ""
    line = f"{key}: {flow(value)}"
    if _is_one_line(value, line, path, comments):
        yield line + ending
        return
    yield f"{key}:{ending}"
    if isinstance(value, dict):
        for inner, content in value.items():
            yield from (f"  {text}" for text in _entry(inner, content, (*path, inner), comments))
        return
    for place, item in enumerate(value):
        inside = (text for inner in item for text in _entry(inner, item[inner], (*path, place, inner), comments))
        yield from (f"{'  ' if number else '- '}{text}" for number, text in enumerate(inside))


def _is_one_line(value: Any, line: str, path: Path, comments: Mapping[Path, str]) -> bool:
    """Report whether a value is written on the line of its key. Sections of the topology are blocks."""
    is_plain = not isinstance(value, dict | list) or not value
    if is_plain or (isinstance(value, list) and not any(isinstance(item, dict) for item in value)):
        return True
    has_inner = any(other[: len(path)] == path and other != path for other in comments)
    return len(path) > 1 and not has_inner and len(line) <= _LONGEST_FLOW
