"""What a set-up of the engine is made of: the topology, and what is chosen beside it.

Objects as YAML text for people to read, keep in Git and apply: as `kubectl get -o yaml` writes it, with reasons.
"""

from collections.abc import Iterable
from textwrap import wrap
from typing import NamedTuple

import tensile
from tensile.deploy.rbac import ACCOUNT, CONFIGMAP
from tensile.objects import Manifest
from tensile.topology import Topology
from tensile.yaml_document import document

NAME = ACCOUNT
"""What everything of the engine is called, alone or in front."""
_ROOM = 100
_LAST = 65535
_FIRST_PROBED = 8081


class Setup(NamedTuple):
    """An engine in the upper cluster: `text` is that of the topology as its ConfigMap has it."""

    topology: Topology
    text: str
    namespace: str
    image: str

    @property
    def selector(self) -> dict[str, str]:
        """The labels by which its pods are known."""
        return {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": self.topology.name}

    @property
    def configmap(self) -> str:
        """The ConfigMap of the topology, as `tensile run --configmap` takes it."""
        return f"{self.namespace}/{CONFIGMAP}"

    @property
    def servers(self) -> dict[str, int]:
        """The ports that others call it at, but those of the virtual nodes, by their names."""
        topology = self.topology
        found = {"metrics": topology.telemetry.port}
        for name, server in (("webhook", topology.webhook), ("extender", topology.extender)):
            if server.enabled:
                found[name] = server.port
        return found

    @property
    def kubelets(self) -> list[tuple[int, int]]:
        """The ports of the virtual nodes, as the first and the last of each row of them.

        The first row has room for lowers that join later, whose ports follow: nobody is to open each by itself.
        """
        first = self.topology.kubelet.port
        last = min(first + max(_ROOM, len(self.topology.lowers)) - 1, _LAST)
        own = {lower.node.kubelet_port for lower in self.topology.lowers}
        return [(first, last), *((port, port) for port in sorted(own) if not first <= port <= last)]

    @property
    def probed(self) -> int:
        """The port of the kubelet's probes: one that the topology does not take, with lowers that join later."""
        taken = {*self.servers.values(), *(port for first, last in self.kubelets for port in range(first, last + 1))}
        return next(port for port in range(_FIRST_PROBED, _LAST) if port not in taken)

    def object(self, api: str, kind: str, name: str, **fields: object) -> Manifest:
        """Make an object of the namespace."""
        meta = {"name": name, "namespace": self.namespace, "labels": self.selector}
        return {"apiVersion": api, "kind": kind, "metadata": meta, **fields}


def default_image() -> str:
    """Return the image that is meant where none is named: of this version, from wherever the cluster has it."""
    return f"tensile-kube:{tensile.__version__}"


_WIDTH = 120


class Piece(NamedTuple):
    """An object to apply, and why it is there ("" where that is plain)."""

    manifest: Manifest
    why: str = ""


def comment(words: str) -> str:
    """Write a comment; a line that begins with a blank stays as it is, for it is a command."""
    return "".join(f"# {part}".rstrip() + "\n" for line in words.splitlines() for part in _wrapped(line))


def _wrapped(line: str) -> list[str]:
    return [line] if line.startswith(" ") else wrap(line, _WIDTH - 2) or [""]


def stream(pieces: Iterable[Piece], head: str = "") -> str:
    """Write objects as one stream of documents, each below its reason; `head` is a comment before all."""
    written = [comment(piece.why) + document(piece.manifest) for piece in pieces]
    return (comment(head) if head else "") + "---\n".join(written)
