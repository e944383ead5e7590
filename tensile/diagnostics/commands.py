"""Runs `tensile explain` and `tensile simulate`: reads every cluster of a topology once, and returns their output.

Unlike `plan`, which needs all clusters, these commands run when something is wrong: a partial view may be the answer.
A cluster that does not respond is reported, and delays no other.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import orjson

from tensile.diagnostics.cluster_snapshot import (
    KINDS,
    NEEDED,
    ClusterSnapshot,
    FleetSnapshot,
    UpperObject,
    parse_snapshot,
    pruned,
)
from tensile.diagnostics.explain import explained, explanation_text
from tensile.diagnostics.explain_objects import (
    EXTRA,
    explained_claim,
    explained_node,
    explained_service,
    object_text,
)
from tensile.diagnostics.podfile import Template
from tensile.diagnostics.simulate import Addition, Case, Document, simulated, simulation_text
from tensile.diagnostics.timeline import Traced, timeline, timeline_text
from tensile.engine.clusters import own_namespace, utc_now
from tensile.engine.lower import ClusterAccess
from tensile.errors import ClusterError, Denied, TensileError
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Cluster, Selection, read_or_none
from tensile.kube.credentials import keep_secret
from tensile.kube.store import Cache
from tensile.names import LEASE_NAMESPACE
from tensile.objects import (
    CLAIM,
    DISRUPTION_BUDGET,
    EVENT,
    LEASE,
    NODE,
    POD,
    SERVICE,
    UPPER,
    Kind,
    Manifest,
    Ref,
    metadata,
    uid,
)
from tensile.reconcile.ownership import is_ours
from tensile.topology import Lower, Topology

Found = TypeVar("Found")

PATIENCE = 20.0
"""The timeout in seconds for reading one cluster."""


def take_snapshot(topology: Topology, cluster_access: ClusterAccess, now: Callable[[], datetime]) -> FleetSnapshot:
    """Return a snapshot of all clusters; raises TensileError if the upper cluster is unreachable."""
    return asyncio.run(_read_clusters(topology, cluster_access, now, None))[0]


def snapshot_with_object(
    topology: Topology, cluster_access: ClusterAccess, now: Callable[[], datetime], ref: Ref
) -> tuple[FleetSnapshot, UpperObject]:
    """Return a snapshot of all clusters, with what explains an object of the upper cluster, and the object.

    Raises TensileError if the upper cluster is unreachable. A missing object is returned as {}.
    """
    fleet, upper_object = asyncio.run(_read_clusters(topology, cluster_access, now, ref, EXTRA[ref.kind]))
    return fleet, upper_object or UpperObject({}, [])


def snapshot_with_pod(
    topology: Topology, cluster_access: ClusterAccess, now: Callable[[], datetime], namespace: str, name: str
) -> tuple[FleetSnapshot, UpperObject]:
    """Return a snapshot of all clusters, and one pod with its events; raises TensileError if the pod does not exist."""
    fleet, upper_object = asyncio.run(_read_clusters(topology, cluster_access, now, Ref(UPPER, POD, namespace, name)))
    if upper_object is None:
        raise TensileError(_no_pod_message(namespace, name, fleet))
    return fleet, upper_object


def trace_pod(
    topology: Topology, cluster_access: ClusterAccess, now: Callable[[], datetime], namespace: str, name: str
) -> Traced:
    """Return a pod of the upper cluster, its lower pod and the events of both.

    Raises TensileError as `snapshot_with_pod`. Only the cluster of its node is read besides the upper one; if that
    fails, the result says why.
    """
    found = asyncio.run(_trace_pod(topology, cluster_access, now, Ref(UPPER, POD, namespace, name)))
    if found is None:
        raise TensileError(_no_pod_message(namespace, name))
    return found


def _no_pod_message(namespace: str, name: str, fleet: FleetSnapshot | None = None) -> str:
    advice = "check the name, or look at the events of its owner (`kubectl describe`)"
    return f"upper: there is no pod {namespace}/{name}: {_namesake_hint(POD, name, fleet) or advice}"


def _namesake_hint(kind: Kind, name: str, fleet: FleetSnapshot | None) -> str:
    """Return in which other namespaces there are objects of that name, "" for none."""
    found = [metadata(one) for one in fleet.upper.all(kind)] if fleet else []
    namespaces = sorted(one["namespace"] for one in found if one["name"] == name)
    return f"there is one in namespace {' and '.join(namespaces)}: name that with -n" if namespaces else ""


async def _trace_pod(
    topology: Topology, cluster_access: ClusterAccess, now: Callable[[], datetime], ref: Ref
) -> Traced | None:
    async with reading_upper(topology, cluster_access) as upper, asyncio.timeout(PATIENCE):
        upper_object = await _read_with_events(upper, ref)
        if upper_object is None:
            return None
        node_name = upper_object.manifest["spec"].get("nodeName")
        spec = next((one for one in topology.lowers if one.node.name == node_name), None)
        if spec is None:
            return Traced(upper_object.manifest, upper_object.events)
        upper_uid, node = await upper.identify(), await _read_with_events(upper, Ref(UPPER, NODE, "", spec.node.name))
        secrets = await secrets_of(upper, (spec,))
    upper_snapshot = ClusterSnapshot(UPPER, {NODE.plural: [node.manifest] if node else []})
    fleet = FleetSnapshot(topology, upper_uid, upper_snapshot, [], now())
    lower_ref = Ref(spec.name, POD, fleet.lower_namespace(spec.name, ref.namespace), ref.name)
    traced = Traced(upper_object.manifest, upper_object.events, spec.name)

    async def read(cluster: Cluster) -> Traced:
        """Read the lower pod and its events."""
        return await _with_lower_pod(cluster, lower_ref, fleet, traced)

    def unread(_: str, error: str) -> Traced:
        return traced._replace(lower_error=error)

    return await read_lower(spec, cluster_access, secrets, read, unread)


async def _with_lower_pod(cluster: Cluster, lower_ref: Ref, fleet: FleetSnapshot, traced: Traced) -> Traced:
    """Return a pod with its lower pod, if that is a copy of it; marks alone do not identify one."""
    try:
        async with asyncio.timeout(PATIENCE):
            found = await _read_with_events(cluster, lower_ref)
    except TimeoutError:
        return traced._replace(lower_error=f"{cluster.name}: no answer in {PATIENCE:g} s")
    except ClusterError as error:
        return traced._replace(lower_error=str(error))
    if found is None or not fleet.is_copy_of(found.manifest, traced.pod):
        return traced._replace(
            lower_error=f"{cluster.name}: there is no pod {lower_ref.namespaced_name} that is its copy"
        )
    return traced._replace(lower_pod=found.manifest, lower_events=found.events)


async def _read_clusters(
    topology: Topology,
    cluster_access: ClusterAccess,
    now: Callable[[], datetime],
    ref: Ref | None,
    extra: tuple[Kind, ...] = (),
) -> tuple[FleetSnapshot, UpperObject | None]:
    """Read the upper cluster first, since its Secrets may hold the kubeconfigs of lower clusters."""
    async with reading_upper(topology, cluster_access) as upper:
        async with asyncio.timeout(PATIENCE):
            upper_uid = await upper.identify()
            upper_object = await _read_with_events(upper, ref) if ref else None
            if ref and upper_object and (node := _node_of(ref, upper_object.manifest)):
                upper_object = upper_object._replace(lease=await _lease(upper, node))
                if any(spec.node.name == node and spec.maintenance == "drain" for spec in topology.lowers):
                    upper_object = upper_object._replace(budgets=await _budgets(upper, ref.namespace))
        secrets = await secrets_of(upper, topology.lowers)
        read_cluster = partial(_read_cluster, extra=extra)
        upper_snapshot, *lowers = await asyncio.gather(
            read_cluster(upper),
            *(read_lower(spec, cluster_access, secrets, read_cluster, _unreadable) for spec in topology.lowers),
        )
    if upper_snapshot.trouble:
        raise TensileError(upper_snapshot.trouble)
    return FleetSnapshot(topology, upper_uid, upper_snapshot, lowers, now()), upper_object


@asynccontextmanager
async def reading_upper(topology: Topology, cluster_access: ClusterAccess) -> AsyncIterator[HttpCluster]:
    """Connect to the upper cluster of a topology; a TimeoutError within becomes the TensileError that it is away."""
    upper = HttpCluster(UPPER, await cluster_access.upper_access(topology.upper))
    try:
        yield upper
    except TimeoutError:
        raise TensileError(f"upper: no answer in {PATIENCE:g} s: check that its apiserver runs") from None
    finally:
        await upper.close()


async def _read_with_events(cluster: Cluster, ref: Ref) -> UpperObject | None:
    """Return an object with its events; None if it does not exist."""
    found = await read_or_none(cluster, ref)
    if found is None:
        return None
    field_selector = f"involvedObject.uid={uid(found)}"
    if ref.kind == NODE:  # a kubelet, and the engine, name a Node by its name in place of the UID
        field_selector = f"involvedObject.kind=Node,involvedObject.name={ref.name}"
    events = await cluster.list(EVENT, Selection(ref.namespace, fields=field_selector), orjson.loads)
    return UpperObject(found, events.items)


def _node_of(ref: Ref, found: Manifest) -> str:
    """Return the name of the Node that an object is, or on which a pod is; "" for none."""
    if ref.kind == NODE:
        return ref.name
    return str(found["spec"].get("nodeName") or "") if ref.kind == POD else ""


async def _lease(upper: Cluster, node: str) -> Manifest | None:
    """Return the Lease of a node, {} if there is none, None if it must not be read."""
    try:
        return await read_or_none(upper, Ref(UPPER, LEASE, LEASE_NAMESPACE, node)) or {}
    except Denied:
        return None


async def _budgets(upper: Cluster, namespace: str) -> tuple[Manifest, ...]:
    """Return the PodDisruptionBudgets of a namespace, () if they must not be read."""
    with suppress(Denied):
        return tuple((await upper.list(DISRUPTION_BUDGET, Selection(namespace), orjson.loads)).items)
    return ()


async def secrets_of(upper: Cluster, lowers: Iterable[Lower]) -> Cache:
    """Return the Secrets that hold kubeconfigs; a missing Secret is reported later, as trouble of its lower."""
    found = Cache()
    for ref in (spec.kubeconfig_secret for spec in lowers):
        if ref is not None:
            await keep_secret(upper, ref, found)
    return found


async def read_lower(
    spec: Lower,
    cluster_access: ClusterAccess,
    secrets: Cache,
    read: Callable[[Cluster], Awaitable[Found]],
    on_error: Callable[[str, str], Found],
) -> Found:
    """Return what `read` makes of a lower cluster.

    If its credentials cannot be used, return what `on_error` makes of its name and the error.
    """
    try:
        cluster = HttpCluster(spec.name, await cluster_access.lower_access(spec, secrets))
    except TensileError as error:
        return on_error(spec.name, str(error))
    try:
        return await read(cluster)
    finally:
        await cluster.close()


def _unreadable(name: str, error: str) -> ClusterSnapshot:
    return ClusterSnapshot(name, trouble=error)


async def _read_cluster(cluster: Cluster, extra: tuple[Kind, ...]) -> ClusterSnapshot:
    """Return one cluster, with all objects that placement reads, and those of `extra` kinds."""
    snapshot = ClusterSnapshot(cluster.name)
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(_listed(cluster, kind, snapshot) for kind in (*KINDS, *extra)))
    except TimeoutError:
        snapshot.trouble = f"{cluster.name or 'upper'}: no answer in {PATIENCE:g} s"
    except ClusterError as error:
        snapshot.trouble = str(error)
    return snapshot


async def _listed(cluster: Cluster, kind: Kind, snapshot: ClusterSnapshot) -> None:
    try:
        found = await cluster.list(kind, Selection(), lambda raw: pruned(kind, orjson.loads(raw)))
    except ClusterError as error:
        if kind in NEEDED or not error.status:
            raise
        snapshot.unread.append(f"{kind.plural}: {error.message}")
        return
    snapshot.objects[kind.plural] = found.items


def explain(topology: Topology, cluster_access: ClusterAccess, pod: str, namespace: str | None, output: str) -> str:
    """Return why a pod is in its current state, as "text" or "json".

    `pod` is its name, or NAMESPACE/NAME. Without a namespace it is in that of the upper kubeconfig's context, as for
    kubectl. Raises TensileError if the pod does not exist or the upper cluster is unreachable.
    """
    resolved_namespace, name = _namespace_and_name("pod", pod, namespace, topology, cluster_access)
    document = explained(*snapshot_with_pod(topology, cluster_access, utc_now, resolved_namespace, name))
    return as_json(document) if output == "json" else explanation_text(document)


def explain_timeline(
    topology: Topology, cluster_access: ClusterAccess, pod: str, namespace: str | None, output: str
) -> str:
    """Return when each step of a pod happened; arguments and errors as in `explain`."""
    resolved_namespace, name = _namespace_and_name("pod", pod, namespace, topology, cluster_access)
    document = timeline(trace_pod(topology, cluster_access, utc_now, resolved_namespace, name), utc_now())
    return as_json(document) if output == "json" else timeline_text(document)


def explain_node(topology: Topology, cluster_access: ClusterAccess, name: str, output: str) -> str:
    """Return the state of a virtual node, as "text" or "json". Raises TensileError for a Node of another owner."""
    known = {spec.node.name for spec in topology.lowers}
    fleet, upper_object = snapshot_with_object(topology, cluster_access, utc_now, Ref(UPPER, NODE, "", name))
    if name not in known and not is_ours(upper_object.manifest, fleet.owner):
        problem = "is not a virtual node of this topology" if upper_object.manifest else "does not exist"
        raise TensileError(f"explain node {name}: it {problem}; there are: {', '.join(sorted(known)) or 'none'}")
    return _formatted(explained_node(name, upper_object, fleet), output)


def explain_claim(
    topology: Topology, cluster_access: ClusterAccess, claim: str, namespace: str | None, output: str
) -> str:
    """Return why a PersistentVolumeClaim is in its current state; arguments and errors as in `explain`."""
    upper_object, fleet = _found(CLAIM, claim, namespace, topology, cluster_access)
    return _formatted(explained_claim(upper_object, fleet), output)


def explain_service(
    topology: Topology, cluster_access: ClusterAccess, service: str, namespace: str | None, output: str
) -> str:
    """Return why pods can or cannot use a Service; arguments and errors as in `explain`."""
    upper_object, fleet = _found(SERVICE, service, namespace, topology, cluster_access)
    return _formatted(explained_service(upper_object, fleet), output)


def _found(
    kind: Kind, given: str, namespace: str | None, topology: Topology, cluster_access: ClusterAccess
) -> tuple[UpperObject, FleetSnapshot]:
    """Return an object of the upper cluster and what is around it. Raises TensileError if it does not exist."""
    kind_name = "claim" if kind == CLAIM else "service"
    ref = Ref(UPPER, kind, *_namespace_and_name(kind_name, given, namespace, topology, cluster_access))
    fleet, upper_object = snapshot_with_object(topology, cluster_access, utc_now, ref)
    if not upper_object.manifest:
        advice = _namesake_hint(kind, ref.name, fleet) or "check the name and the namespace"
        raise TensileError(f"upper: there is no {kind_name} {ref.namespace}/{ref.name}: {advice}")
    return upper_object, fleet


def _formatted(document: Document, output: str) -> str:
    return as_json(document) if output == "json" else object_text(document)


def _namespace_and_name(
    kind_name: str, given: str, namespace: str | None, topology: Topology, cluster_access: ClusterAccess
) -> tuple[str, str]:
    """Return the namespace and the name of an object that is given as NAME or NAMESPACE/NAME."""
    given_namespace, slash, name = given.rpartition("/")
    if not name or "/" in given_namespace or bool(slash) != bool(given_namespace):
        raise TensileError(f"explain {kind_name} {given!r}: write NAME or NAMESPACE/NAME")
    if given_namespace and namespace not in (None, given_namespace):
        raise TensileError(
            f"explain {kind_name} {given}: its namespace is {given_namespace}, and -n says {namespace}: omit one "
            "of them"
        )
    resolved_namespace = (
        given_namespace
        or namespace
        or cluster_access.upper_namespace(topology.upper)
        or own_namespace(cluster_access.account)
        or "default"
    )
    return resolved_namespace, name


def pictured(topology: Topology, cluster_access: ClusterAccess, snapshot: Path | None) -> FleetSnapshot:
    """Return a snapshot of the clusters as they are now, or the one that was saved in a file."""
    if snapshot is None:
        return take_snapshot(topology, cluster_access, utc_now)
    return parse_snapshot(snapshot.read_bytes(), topology, utc_now(), str(snapshot))


def simulate(fleet: FleetSnapshot, templates: Sequence[Template], case: Case, output: str) -> tuple[str, bool]:
    """Return a simulation as "text" or "json", and whether all pods fit: those requested and those of lost lowers.

    Templates take their room in turn. Several are sections of the text, or the `items` of one JSON object.
    """
    if case.replicas is not None and len(templates) > 1:
        raise TensileError(f"--replicas: the file has {len(templates)} pods or templates; give it one")
    found = [simulated(fleet, one, case, templates[:index]) for index, one in enumerate(templates)]
    found = found or [simulated(fleet, None, case)]
    result = found[0] if len(found) == 1 else {"items": found}
    texts = (simulation_text(one, is_first=one is found[0]) for one in found)
    text = as_json(result) if output == "json" else "\n\n".join(texts)
    return text, all(map(_fits, found))


def _fits(document: Document) -> bool:
    """Report whether a simulation finds room for all that it was asked for: one pod, unless a number was given."""
    requested = 1 if document["asked"] is None else document["asked"]
    is_room = document["fits"] is None or document["fits"] >= requested
    return is_room and all(one["lower"] for one in document["moved"])


def case_of(replicas: int | None, lost: Sequence[str], added: Sequence[str]) -> Case:
    """Return the case to simulate.

    `lost` are names of lowers, `added` nodes as LOWER=COUNT, or as LOWER/NODE=COUNT for nodes like NODE.
    """
    return Case(replicas, frozenset(lost), tuple(map(_parsed_addition, added)))


def as_json(document: object) -> str:
    """Return a document as indented JSON."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _parsed_addition(text: str) -> Addition:
    target, _, count = text.partition("=")
    lower, _, like = target.partition("/")
    if not lower or not count.isdecimal() or not int(count):
        raise TensileError(f"--add-nodes {text!r}: write LOWER=COUNT, or LOWER/NODE=COUNT for nodes like NODE")
    return Addition(lower, int(count), like)
