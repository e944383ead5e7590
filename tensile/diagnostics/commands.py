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
    kept,
    picture_of,
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


def looked(topology: Topology, ways: ClusterAccess, now: Callable[[], datetime]) -> FleetSnapshot:
    """Return a snapshot of all clusters; raises TensileError if the upper cluster is unreachable."""
    return asyncio.run(_looked(topology, ways, now, None))[0]


def looked_around(
    topology: Topology, ways: ClusterAccess, now: Callable[[], datetime], ref: Ref
) -> tuple[FleetSnapshot, UpperObject]:
    """Return a snapshot of all clusters, with what explains an object of the upper cluster, and the object.

    Raises TensileError if the upper cluster is unreachable. A missing object is returned as {}.
    """
    picture, asked = asyncio.run(_looked(topology, ways, now, ref, EXTRA[ref.kind]))
    return picture, asked or UpperObject({}, [])


def looked_at(
    topology: Topology, ways: ClusterAccess, now: Callable[[], datetime], namespace: str, name: str
) -> tuple[FleetSnapshot, UpperObject]:
    """Return a snapshot of all clusters, and one pod with its events; raises TensileError if the pod does not exist."""
    picture, asked = asyncio.run(_looked(topology, ways, now, Ref(UPPER, POD, namespace, name)))
    if asked is None:
        raise TensileError(_no_pod(namespace, name, picture))
    return picture, asked


def looked_along(
    topology: Topology, ways: ClusterAccess, now: Callable[[], datetime], namespace: str, name: str
) -> Traced:
    """Return a pod of the upper cluster, its lower pod and the events of both; raises TensileError as `looked_at`.

    Only the cluster of its node is read besides the upper one; if that fails, the result says why.
    """
    found = asyncio.run(_looked_along(topology, ways, now, Ref(UPPER, POD, namespace, name)))
    if found is None:
        raise TensileError(_no_pod(namespace, name))
    return found


def _no_pod(namespace: str, name: str, picture: FleetSnapshot | None = None) -> str:
    advice = "check the name, or look at the events of its owner (`kubectl describe`)"
    return f"upper: there is no pod {namespace}/{name}: {_namesake(POD, name, picture) or advice}"


def _namesake(kind: Kind, name: str, picture: FleetSnapshot | None) -> str:
    """Return in which other namespaces there are objects of that name, "" for none."""
    found = [metadata(one) for one in picture.upper.all(kind)] if picture else []
    spaces = sorted(one["namespace"] for one in found if one["name"] == name)
    return f"there is one in namespace {' and '.join(spaces)}: name that with -n" if spaces else ""


async def _looked_along(
    topology: Topology, ways: ClusterAccess, now: Callable[[], datetime], ref: Ref
) -> Traced | None:
    async with reading_upper(topology, ways) as upper, asyncio.timeout(PATIENCE):
        asked = await _asked(upper, ref)
        if asked is None:
            return None
        bound = asked.manifest["spec"].get("nodeName")
        spec = next((one for one in topology.lowers if one.node.name == bound), None)
        if spec is None:
            return Traced(asked.manifest, asked.events)
        upper_uid, node = await upper.identify(), await _asked(upper, Ref(UPPER, NODE, "", spec.node.name))
        secrets = await secrets_of(upper, (spec,))
    above = ClusterSnapshot(UPPER, {NODE.plural: [node.manifest] if node else []})
    picture = FleetSnapshot(topology, upper_uid, above, [], now())
    place = Ref(spec.name, POD, picture.namespace_below(spec.name, ref.namespace), ref.name)
    traced = Traced(asked.manifest, asked.events, spec.name)

    async def read(cluster: Cluster) -> Traced:
        """Read the lower pod and its events."""
        return await _traced_below(cluster, place, picture, traced)

    def unread(_: str, why: str) -> Traced:
        return traced._replace(trouble=why)

    return await read_lower(spec, ways, secrets, read, unread)


async def _traced_below(cluster: Cluster, place: Ref, picture: FleetSnapshot, traced: Traced) -> Traced:
    """Return a pod with its lower pod, if that is a copy of it; marks alone do not identify one."""
    try:
        async with asyncio.timeout(PATIENCE):
            found = await _asked(cluster, place)
    except TimeoutError:
        return traced._replace(trouble=f"{cluster.name}: no answer in {PATIENCE:g} s")
    except ClusterError as error:
        return traced._replace(trouble=str(error))
    if found is None or not picture.is_copy_of(found.manifest, traced.pod):
        return traced._replace(trouble=f"{cluster.name}: there is no pod {place.namespaced_name} that is its copy")
    return traced._replace(lower_pod=found.manifest, lower_events=found.events)


async def _looked(
    topology: Topology,
    ways: ClusterAccess,
    now: Callable[[], datetime],
    ref: Ref | None,
    extra: tuple[Kind, ...] = (),
) -> tuple[FleetSnapshot, UpperObject | None]:
    """Read the upper cluster first, since its Secrets may hold the kubeconfigs of lower clusters."""
    async with reading_upper(topology, ways) as upper:
        async with asyncio.timeout(PATIENCE):
            upper_uid = await upper.identify()
            asked = await _asked(upper, ref) if ref else None
            if ref and asked and (node := _node_of(ref, asked.manifest)):
                asked = asked._replace(lease=await _lease(upper, node))
                if any(spec.node.name == node and spec.maintenance == "drain" for spec in topology.lowers):
                    asked = asked._replace(budgets=await _budgets(upper, ref.namespace))
        secrets = await secrets_of(upper, topology.lowers)
        see = partial(_sight, extra=extra)
        sight, *lowers = await asyncio.gather(
            see(upper), *(read_lower(spec, ways, secrets, see, _unseen) for spec in topology.lowers)
        )
    if sight.trouble:
        raise TensileError(sight.trouble)
    return FleetSnapshot(topology, upper_uid, sight, lowers, now()), asked


@asynccontextmanager
async def reading_upper(topology: Topology, ways: ClusterAccess) -> AsyncIterator[HttpCluster]:
    """Connect to the upper cluster of a topology; a TimeoutError within becomes the TensileError that it is away."""
    upper = HttpCluster(UPPER, await ways.upper_access(topology.upper))
    try:
        yield upper
    except TimeoutError:
        raise TensileError(f"upper: no answer in {PATIENCE:g} s: check that its apiserver runs") from None
    finally:
        await upper.close()


async def _asked(cluster: Cluster, ref: Ref) -> UpperObject | None:
    """Return an object with its events; None if it does not exist."""
    found = await read_or_none(cluster, ref)
    if found is None:
        return None
    about = f"involvedObject.uid={uid(found)}"
    if ref.kind == NODE:  # a kubelet, and the engine, name a Node by its name in place of the UID
        about = f"involvedObject.kind=Node,involvedObject.name={ref.name}"
    events = await cluster.list(EVENT, Selection(ref.namespace, fields=about), orjson.loads)
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
    ways: ClusterAccess,
    secrets: Cache,
    read: Callable[[Cluster], Awaitable[Found]],
    unread: Callable[[str, str], Found],
) -> Found:
    """Return what `read` makes of a lower cluster.

    If its credentials cannot be used, return what `unread` makes of its name and the error.
    """
    try:
        cluster = HttpCluster(spec.name, await ways.lower_access(spec, secrets))
    except TensileError as error:
        return unread(spec.name, str(error))
    try:
        return await read(cluster)
    finally:
        await cluster.close()


def _unseen(name: str, why: str) -> ClusterSnapshot:
    return ClusterSnapshot(name, trouble=why)


async def _sight(cluster: Cluster, extra: tuple[Kind, ...]) -> ClusterSnapshot:
    """Return one cluster, with all objects that placement reads, and those of `extra` kinds."""
    sight = ClusterSnapshot(cluster.name)
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(_listed(cluster, kind, sight) for kind in (*KINDS, *extra)))
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


def explain(topology: Topology, ways: ClusterAccess, pod: str, namespace: str | None, output: str) -> str:
    """Return why a pod is in its current state, as "text" or "json".

    `pod` is its name, or NAMESPACE/NAME. Without a namespace it is in that of the upper kubeconfig's context, as for
    kubectl. Raises TensileError if the pod does not exist or the upper cluster is unreachable.
    """
    where, name = _place("pod", pod, namespace, topology, ways)
    document = explained(*looked_at(topology, ways, utc_now, where, name))
    return as_json(document) if output == "json" else explanation_text(document)


def explain_timeline(topology: Topology, ways: ClusterAccess, pod: str, namespace: str | None, output: str) -> str:
    """Return when each step of a pod happened; arguments and errors as in `explain`."""
    where, name = _place("pod", pod, namespace, topology, ways)
    document = timeline(looked_along(topology, ways, utc_now, where, name), utc_now())
    return as_json(document) if output == "json" else timeline_text(document)


def explain_node(topology: Topology, ways: ClusterAccess, name: str, output: str) -> str:
    """Return the state of a virtual node, as "text" or "json". Raises TensileError for a Node of another owner."""
    known = {spec.node.name for spec in topology.lowers}
    picture, asked = looked_around(topology, ways, utc_now, Ref(UPPER, NODE, "", name))
    if name not in known and not is_ours(asked.manifest, picture.owner):
        what = "is not a virtual node of this topology" if asked.manifest else "does not exist"
        raise TensileError(f"explain node {name}: it {what}; there are: {', '.join(sorted(known)) or 'none'}")
    return _formatted(explained_node(name, asked, picture), output)


def explain_claim(topology: Topology, ways: ClusterAccess, claim: str, namespace: str | None, output: str) -> str:
    """Return why a PersistentVolumeClaim is in its current state; arguments and errors as in `explain`."""
    asked, picture = _found(CLAIM, claim, namespace, topology, ways)
    return _formatted(explained_claim(asked, picture), output)


def explain_service(topology: Topology, ways: ClusterAccess, service: str, namespace: str | None, output: str) -> str:
    """Return why pods can or cannot use a Service; arguments and errors as in `explain`."""
    asked, picture = _found(SERVICE, service, namespace, topology, ways)
    return _formatted(explained_service(asked, picture), output)


def _found(
    kind: Kind, given: str, namespace: str | None, topology: Topology, ways: ClusterAccess
) -> tuple[UpperObject, FleetSnapshot]:
    """Return an object of the upper cluster and what is around it. Raises TensileError if it does not exist."""
    word = "claim" if kind == CLAIM else "service"
    ref = Ref(UPPER, kind, *_place(word, given, namespace, topology, ways))
    picture, asked = looked_around(topology, ways, utc_now, ref)
    if not asked.manifest:
        advice = _namesake(kind, ref.name, picture) or "check the name and the namespace"
        raise TensileError(f"upper: there is no {word} {ref.namespace}/{ref.name}: {advice}")
    return asked, picture


def _formatted(document: Document, output: str) -> str:
    return as_json(document) if output == "json" else object_text(document)


def _place(word: str, given: str, namespace: str | None, topology: Topology, ways: ClusterAccess) -> tuple[str, str]:
    """Return the namespace and the name of an object that is given as NAME or NAMESPACE/NAME."""
    space, slash, name = given.rpartition("/")
    if not name or "/" in space or bool(slash) != bool(space):
        raise TensileError(f"explain {word} {given!r}: write NAME or NAMESPACE/NAME")
    if space and namespace not in (None, space):
        raise TensileError(
            f"explain {word} {given}: its namespace is {space}, and -n says {namespace}: omit one of them"
        )
    where = space or namespace or ways.upper_namespace(topology.upper) or own_namespace(ways.account) or "default"
    return where, name


def pictured(topology: Topology, ways: ClusterAccess, snapshot: Path | None) -> FleetSnapshot:
    """Return a snapshot of the clusters as they are now, or the one that was saved in a file."""
    if snapshot is None:
        return looked(topology, ways, utc_now)
    return picture_of(snapshot.read_bytes(), topology, utc_now(), str(snapshot))


def simulate(picture: FleetSnapshot, templates: Sequence[Template], case: Case, output: str) -> tuple[str, bool]:
    """Return a simulation as "text" or "json", and whether all pods fit: those requested and those of lost lowers.

    Templates take their room in turn. Several are sections of the text, or the `items` of one JSON object.
    """
    if case.replicas is not None and len(templates) > 1:
        raise TensileError(f"--replicas: the file has {len(templates)} pods or templates; give it one")
    found = [simulated(picture, one, case, templates[:place]) for place, one in enumerate(templates)]
    found = found or [simulated(picture, None, case)]
    whole = found[0] if len(found) == 1 else {"items": found}
    texts = (simulation_text(one, is_first=one is found[0]) for one in found)
    text = as_json(whole) if output == "json" else "\n\n".join(texts)
    return text, all(map(_fits, found))


def _fits(document: Document) -> bool:
    """Report whether a simulation finds room for all that it was asked for: one pod, unless a number was given."""
    asked = 1 if document["asked"] is None else document["asked"]
    is_room = document["fits"] is None or document["fits"] >= asked
    return is_room and all(one["lower"] for one in document["moved"])


def case_of(replicas: int | None, lost: Sequence[str], added: Sequence[str]) -> Case:
    """Return the case to simulate.

    `lost` are names of lowers, `added` nodes as LOWER=COUNT, or as LOWER/NODE=COUNT for nodes like NODE.
    """
    return Case(replicas, frozenset(lost), tuple(map(_addition, added)))


def as_json(document: object) -> str:
    """Return a document as indented JSON."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _addition(text: str) -> Addition:
    where, _, count = text.partition("=")
    lower, _, like = where.partition("/")
    if not lower or not count.isdecimal() or not int(count):
        raise TensileError(f"--add-nodes {text!r}: write LOWER=COUNT, or LOWER/NODE=COUNT for nodes like NODE")
    return Addition(lower, int(count), like)
