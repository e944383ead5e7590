"""Which pods asked for a virtual node, and what a virtual node asks of them.

The label `virtual-pod` is the author's word. It counts in the same namespaces for everybody: for the webhook, and for
the engine where no webhook was.
"""

from collections.abc import Iterable

from tensile.objects import Manifest
from tensile.topology import Lower, Topology

SYSTEM_NAMESPACE = "kube-system"


def left_alone(topology: Topology, own_namespace: str = "") -> frozenset[str]:
    """Give the namespaces whose pods are never prepared for virtual nodes.

    Those whose pods are not mirrored, and where the webhook runs (`own_namespace`, "" for in none, and where its
    Service is): it must not stand in its own way.
    """
    service = topology.webhook.service
    own = {own_namespace, service.namespace if service else ""} - {""}
    return frozenset({SYSTEM_NAMESPACE, *topology.exclude_namespaces, *own})


def taints_of(lowers: Iterable[Lower]) -> tuple[Manifest, ...]:
    """Give the taints of the lowers' virtual nodes that the topology gives them, each once."""
    found: dict[tuple[str, str, str], Manifest] = {}
    for lower in lowers:
        for one in lower.node.taints:
            found[one.key, one.value, one.effect] = {"key": one.key, "value": one.value, "effect": one.effect}
    return tuple(found.values())
