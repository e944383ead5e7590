"""Reads every cluster of a topology once; a cluster that does not respond is reported, and delays no other.

Unlike `plan`, which needs all clusters, these commands run when something is wrong: a partial view may be the answer.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime

import orjson

from tensile.diagnostics.cluster_snapshot import KINDS, NEEDED, ClusterSnapshot, FleetSnapshot, UpperPod, kept
from tensile.engine.lower import ClusterAccess
from tensile.errors import ClusterError, NotFound, TensileError
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Cluster, Selection
from tensile.kube.credentials import keep_secret
from tensile.kube.store import Cache
from tensile.objects import EVENT, POD, UPPER, Kind, Manifest, Ref, uid
from tensile.topology import Lower, Topology

PATIENCE = 20.0
"""The timeout in seconds for reading one cluster."""


def looked(topology: Topology, ways: ClusterAccess, now: Callable[[], datetime]) -> FleetSnapshot:
    """Return a snapshot of all clusters; raises TensileError if the upper cluster is unreachable."""
    return asyncio.run(_looked(topology, ways, now, None))[0]


def looked_at(
    topology: Topology, ways: ClusterAccess, now: Callable[[], datetime], namespace: str, name: str
) -> tuple[FleetSnapshot, UpperPod]:
    """Return a snapshot of all clusters, and one pod with its events; raises TensileError if the pod does not exist."""
    picture, asked = asyncio.run(_looked(topology, ways, now, Ref(UPPER, POD, namespace, name)))
    if asked is None:
        raise TensileError(
            f"upper: there is no pod {namespace}/{name}: check the name, "
            "or look at the events of its owner (`kubectl describe`)"
        )
    return picture, asked


async def _looked(
    topology: Topology, ways: ClusterAccess, now: Callable[[], datetime], pod: Ref | None
) -> tuple[FleetSnapshot, UpperPod | None]:
    """Read the upper cluster first, since its Secrets may hold the kubeconfigs of lower clusters."""
    upper = HttpCluster(UPPER, await ways.upper_access(topology.upper))
    try:
        async with asyncio.timeout(PATIENCE):
            upper_uid = await upper.identify()
            asked = await _asked(upper, pod) if pod else None
        secrets = await _secrets(upper, topology)
        sight, *lowers = await asyncio.gather(_sight(upper), *(_lower(spec, ways, secrets) for spec in topology.lowers))
    except TimeoutError:
        raise TensileError(f"upper: no answer in {PATIENCE:g} s: check that its apiserver runs") from None
    finally:
        await upper.close()
    if sight.trouble:
        raise TensileError(sight.trouble)
    return FleetSnapshot(topology, upper_uid, sight, lowers, now()), asked


async def _asked(upper: Cluster, ref: Ref) -> UpperPod | None:
    try:
        pod: Manifest = orjson.loads(await upper.read(ref))
    except NotFound:
        return None
    selection = Selection(ref.namespace, fields=f"involvedObject.uid={uid(pod)}")
    events = await upper.list(EVENT, selection, orjson.loads)
    return UpperPod(pod, events.items)


async def _secrets(upper: Cluster, topology: Topology) -> Cache:
    """Return the Secrets that hold kubeconfigs; a missing Secret is reported later, as trouble of its lower."""
    found = Cache()
    for ref in (spec.kubeconfig_secret for spec in topology.lowers):
        if ref is not None:
            await keep_secret(upper, ref, found)
    return found


async def _lower(spec: Lower, ways: ClusterAccess, secrets: Cache) -> ClusterSnapshot:
    try:
        cluster = HttpCluster(spec.name, await ways.lower_access(spec, secrets))
    except TensileError as error:
        return ClusterSnapshot(spec.name, trouble=str(error))
    try:
        return await _sight(cluster)
    finally:
        await cluster.close()


async def _sight(cluster: Cluster) -> ClusterSnapshot:
    """Return one cluster, with all objects that placement reads."""
    sight = ClusterSnapshot(cluster.name)
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(_listed(cluster, kind, sight) for kind in KINDS))
    except TimeoutError:
        sight.trouble = f"{cluster.name or 'upper'}: no answer in {PATIENCE:g} s"
    except ClusterError as error:
        sight.trouble = str(error)
    return sight


async def _listed(cluster: Cluster, kind: Kind, sight: ClusterSnapshot) -> None:
    try:
        found = await cluster.list(kind, Selection(), lambda raw: kept(kind, orjson.loads(raw)))
    except ClusterError as error:
        if kind in NEEDED or not error.status:
            raise
        sight.unread.append(f"{kind.plural}: {error.message}")
        return
    sight.objects[kind.plural] = found.items
