"""Lower clusters as placement sees them, as watches keep them.

Of a node and of a stranger's pod only what placement compares is kept, read out once when it comes: their manifests
would take ten times the room. Our own pods are kept whole anyway, and are read when a snapshot is made.
"""

from typing import Any

import orjson

from tensile.cache import Entry, Kept
from tensile.objects import Manifest, labels
from tensile.policy.placing.reading import node_of, pod_of
from tensile.policy.placing.snapshot import Pod, Snapshot
from tensile.world import LowerWorld

_ENDED = ("Succeeded", "Failed")


def digest_node(raw: bytes) -> Kept:
    """Keep of a lower node what placement compares: a `Node` without pods, which nobody changes."""
    return Kept(b"", node_of(orjson.loads(raw)))


def digest_pod(raw: bytes) -> Kept:
    """Keep of a lower pod what it takes of its node: a `Pod`, or None for one that takes nothing of any."""
    pod: Manifest = orjson.loads(raw)
    takes = pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") not in _ENDED
    return Kept(b"", pod_of(pod, settled=True) if takes else None)


def is_known(lower: LowerWorld) -> bool:
    """Say whether a snapshot of a lower would be whole."""
    caches = (*lower.place_caches(), lower.pods, lower.upper_pods, lower.namespaces)
    return all(cache.synced for cache in caches)


def snapshot_now(lower: LowerWorld) -> Snapshot:
    """Make a snapshot of a lower: its nodes with every pod that is bound to one. Claims and volumes are not in it."""
    nodes: dict[str, Any] = {entry.name: entry.facts.copy() for entry in lower.place_nodes}
    found = Snapshot(nodes, {entry.name: labels(entry.manifest()) for entry in lower.namespaces})
    theirs = (entry.facts for entry in lower.place_pods if entry.facts is not None)
    for pod in (*theirs, *filter(None, map(_bound, lower.pods))):
        found.add(pod, pod.node)
    return found


def _bound(entry: Entry) -> Pod | None:
    """Give a pod of ours that has its node, None for one that takes nothing of any."""
    pod = {} if entry.facts.terminal else entry.manifest()
    return pod_of(pod, settled=True) if pod and pod["spec"].get("nodeName") else None
