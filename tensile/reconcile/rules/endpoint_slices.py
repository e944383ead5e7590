"""EndpointSlices: one lower slice for each upper slice of a Service that has a copy there.

The upper cluster decides who answers to a Service, and whether they are ready: its slices are copied unchanged but for
their nodes and zones, as long as the lower Service exists. If the lower Service is not ours, there is no slice either:
it would send a foreign Service's traffic to our pods. A change of endpoints is no step that a plan shows.

Endpoints change as often as pods do. The facts of a lower slice hold a hash of what it shares with its upper slice, so
that most decisions about a slice decode nothing. Of upper slices only these shared fields are kept.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

import msgspec
import orjson

from tensile.kube.cluster import Patch
from tensile.kube.store import Delta, Entry, Transformed, packed
from tensile.names import OWNER, Owner
from tensile.objects import ENDPOINT_SLICE, SERVICE, UPPER, Manifest, Ref, labels, metadata
from tensile.reconcile import copies
from tensile.reconcile.desired import Decision, EmitEvent, Patched, Present, Watch, problem_events
from tensile.reconcile.diff import changes, fence
from tensile.reconcile.ownership import is_copy, is_copy_of, marks_of
from tensile.reconcile.pods.index import by_namespace
from tensile.reconcile.rules import services
from tensile.reconcile.rules.mirror_rule import MirroredKind, MirrorRule, Need, Pair, Users
from tensile.reconcile.world import Key, LowerWorld, UpperServer, World

NAME = "slice"
SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGER = "tensile-kube.io"
"""The manager of our slices: Kubernetes' own controllers ignore slices with another manager than themselves."""
KEPT_ENDPOINT = ("addresses", "conditions", "hostname")
_PRINT_BYTES = 16
_SECTIONS = ("metadata.labels", "metadata.annotations", "metadata.ownerReferences", "endpoints", "ports")
_UNHELD = "its Service is not in this cluster"
_REPLACED = "its upper EndpointSlice was deleted"


class SliceFacts(msgspec.Struct, frozen=True, gc=False):
    """Facts of a slice: its Service, and a hash of its content.

    For a lower slice also our marks, as in Marks, and the UID of the Service that owns it there.
    """

    service: str
    print: bytes
    owner: str = ""
    upper_uid: str = ""
    holder: str = ""


class SliceSource(NamedTuple):
    """What a lower slice is made from: an upper slice, or the alias; `entry` is None for the latter."""

    service: str
    service_uid: str
    uid: str
    print: bytes
    entry: Entry | None
    alias: Manifest | None = None

    def manifest(self) -> Manifest:
        """Return what is kept of it, decoded."""
        return self.alias or {} if self.entry is None else self.entry.manifest()


def slice_key(lower: str, namespace: str, name: str) -> Key:
    """Return the key of one EndpointSlice, by its upper namespace and name."""
    return Key(NAME, lower, namespace, name)


def upper_slice(raw: bytes) -> Transformed:
    """Transform an upper slice to the fields that its copy should have."""
    found = shared(orjson.loads(raw))
    return Transformed(packed(found), SliceFacts(_service_of(found), print_of(found)))


def lower_slice(raw: bytes) -> Transformed:
    """Transform a lower slice: its bytes, and the facts that show whether it is as it should be."""
    found: Manifest = orjson.loads(raw)
    holders = [one["uid"] for one in metadata(found).get("ownerReferences") or ()]
    holder = holders[0] if len(holders) == 1 else ""
    marks = marks_of(found)
    facts = SliceFacts(_service_of(found), print_of(found), marks.owner, marks.upper_uid, holder)
    return Transformed(packed(found), facts, found)


def shared(upper: Manifest) -> Manifest:
    """Return the fields of an upper slice that hold in every cluster, without nodes and zones of its endpoints.

    Kubernetes ignores a slice that it does not manage; the label that names the manager is ours.
    """
    given = {**labels(upper), MANAGED_BY: MANAGER}
    given.pop(OWNER, None)
    return {
        "metadata": services.kept_metadata(upper, given),
        "addressType": upper.get("addressType"),
        "endpoints": [
            {field: one[field] for field in KEPT_ENDPOINT if field in one} for one in upper.get("endpoints") or ()
        ],
        "ports": upper.get("ports") or [],
    }


def print_of(found: Manifest) -> bytes:
    """Return a hash of a slice's content and of its labels without the owner's."""
    given = {key: value for key, value in labels(found).items() if key != OWNER}
    content = (given, found.get("addressType"), found.get("endpoints") or [], found.get("ports") or [])
    return blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=_PRINT_BYTES).digest()


def _by_service(entry: Entry) -> Iterator[tuple[str, str]]:
    """Index slices by the (namespace, name) of their Service."""
    yield entry.namespace, entry.facts.service


def _service_of(found: Manifest) -> str:
    return labels(found).get(SERVICE_NAME, "")


def source_of(pair: Pair) -> SliceSource | None:
    """Return what a slice is made from; None if it is of no Service that is copied."""
    key, world, entry = pair.key, pair.world, pair.original
    if entry is not None:
        name, digest = entry.facts.service, entry.facts.print
        service = services.original(world, key.namespace, name)
        return None if service is None else SliceSource(name, service.uid, entry.uid, digest, entry)
    if world.upper_server is None or not services.is_alias(world, key.namespace, key.name):
        return None
    made = alias_slice(world.upper_server, key.name)
    upper = world.owner.upper
    return None if made is None else SliceSource(key.name, upper, upper, print_of(made), None, made)


def is_held(copy: Entry, lower: LowerWorld, world: World) -> bool:
    """Report whether the Service of a lower slice exists and is ours."""
    holder = lower.more[SERVICE].get(copy.namespace, copy.facts.service)
    return holder is not None and is_copy(holder, world.owner)


def alias_slice(server: UpperServer, name: str) -> Manifest | None:
    """Return the slice with the server as its endpoint, in the form of a cached upper slice; None for no endpoint."""
    kind = services.form(server)
    if kind in ("", "name"):
        return None
    return {
        "metadata": {"name": name, "labels": {SERVICE_NAME: name, MANAGED_BY: MANAGER}},
        "addressType": kind,
        "endpoints": [{"addresses": [server.host], "conditions": {"ready": True}}],
        "ports": [{"name": services.PORT_NAME, "protocol": "TCP", "port": server.port}],
    }


def marked_slice(found: Manifest, upper_uid: str, owner: Owner, namespace: str, holder: Manifest) -> Manifest:
    """Return the lower slice for what is kept of an upper one; it is owned by `holder`, the lower Service."""
    meta = {
        "name": found["metadata"]["name"],
        "namespace": namespace,
        "labels": found["metadata"]["labels"] | owner.label,
        "annotations": owner.signed(upper_uid),
        "ownerReferences": [holder],
    }
    content = {field: found[field] for field in ("addressType", "endpoints", "ports")}
    return {"apiVersion": ENDPOINT_SLICE.api, "kind": ENDPOINT_SLICE.name, "metadata": meta, **content}


def _present(pair: Pair, _: object = None) -> Decision:
    """Return the lower slice while its upper slice, or the alias, and its lower Service exist."""
    world, lower, key, copy = pair.world, pair.lower, pair.key, pair.copy
    source = source_of(pair)
    name = source.service if source else copy.facts.service if copy else ""
    holder = lower.more[SERVICE].get(pair.ref.namespace, name)
    if holder is None or not is_copy(holder, world.owner):
        is_to_come = copy is None and source is not None and services.is_exposed(lower, key.namespace, world)
        return _after(pair, name) if is_to_come else pair.end(_UNHELD)
    if source is None:
        return _gone(pair)
    if not services.is_served(lower, key.namespace, world):
        return Decision()
    if not is_copy_of(holder, world.owner, source.service_uid):
        return _after(pair, name)
    return _kept(pair, source, holder)


def _after(pair: Pair, service: str) -> Decision:
    return Decision(depends_on=(services.service_key(pair.lower.name, pair.key.namespace, service),))


def _kept(pair: Pair, source: SliceSource, holder: Entry) -> Decision:
    """Create the slice, or patch what differs.

    For lower pods alone, no slice is created: anyone who can create pods there can forge our marks on one.
    """
    ref, copy, owner = pair.ref, pair.copy, pair.world.owner
    is_made = is_copy_of(copy, owner, source.uid)
    if copy is not None and is_made and (copy.facts.print, copy.facts.holder) == (source.print, holder.uid):
        return Decision()
    owner_reference = {"apiVersion": SERVICE.api, "kind": SERVICE.name, "name": holder.name, "uid": holder.uid}
    wanted = marked_slice(source.manifest(), source.uid, owner, ref.namespace, owner_reference)
    if copy is None or not is_made:
        if not _is_requested(pair):
            return pair.end(_REPLACED)
        reason = f"endpoints of Service {holder.name}"
        return Decision((*_problem_events(pair, source), Present(ref, wanted, reason, replaceable=True)))
    seen = copy.manifest()
    if seen.get("addressType") != wanted["addressType"]:
        return pair.end("its addressType is different, and cannot be changed")
    operations = changes(wanted, seen, _SECTIONS)
    if not operations:
        return Decision()
    patch = Patch("json-patch", fence(copy.uid) + operations)
    changed = Patched(ref, patch, f"endpoints of Service {holder.name} changed")
    return Decision((*_problem_events(pair, source), changed))


def _is_requested(pair: Pair) -> bool:
    """Report whether upper pods use the Services of the namespace, also those that stay without the controller."""
    lower, namespace, world = pair.lower, pair.key.namespace, pair.world
    return services.is_exposed(lower, namespace, world) or copies.has_pods(lower, namespace, world)


def _problem_events(pair: Pair, source: SliceSource) -> Iterator[EmitEvent]:
    """Yield an event on the upper Service about what keeps its endpoints from the lower cluster."""
    if source.entry is not None:
        service_ref = Ref(UPPER, SERVICE, pair.key.namespace, source.service)
        yield from problem_events(pair.key, pair.world, service_ref, source.service_uid)


def _gone(pair: Pair) -> Decision:
    """Delete the copy of a slice that was seen deleted, is of another Service now, or was a former alias."""
    if pair.original is not None and pair.copy is not None and pair.original.facts.service != pair.copy.facts.service:
        return pair.end("it belongs to another Service in the upper cluster")
    return services.gone(pair)


def _used(world: World, lower: LowerWorld) -> Iterator[Key]:
    """Yield the keys of the slices that belong in a lower, or stay there."""
    for namespace in services.served(lower, world):
        yield slice_key(lower.name, namespace, world.topology.services.upper_alias)
        for entry in world.upper.more[ENDPOINT_SLICE].select("namespace", namespace):
            yield slice_key(lower.name, namespace, entry.name)


def _of_first_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the keys of a namespace's upper slices when its first pod comes: without a pod, none were created."""
    namespace = copies.first_pod_namespace(world.lowers[lower], delta)
    for entry in world.upper.more[ENDPOINT_SLICE].select("namespace", namespace) if namespace else ():
        yield slice_key(lower, namespace, entry.name)


def _of_service(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the keys of a lower Service's slices on both sides when it appears, changes or is deleted."""
    if delta.before and delta.after and (delta.before.uid, delta.before.facts) == (delta.after.uid, delta.after.facts):
        return
    lower_world, entry = world.lowers[lower], delta.entry
    namespace = lower_world.upper_namespace(entry.namespace)
    if not namespace:
        return
    upper_slices = world.upper.more[ENDPOINT_SLICE].select("service", (namespace, entry.name))
    lower_slices = lower_world.more[ENDPOINT_SLICE].select("service", (entry.namespace, entry.name))
    names = {one.name for one in (*upper_slices, *lower_slices)}
    if entry.name == world.topology.services.upper_alias:
        names.add(entry.name)
    for name in sorted(names):
        yield slice_key(lower, namespace, name)


RULE = MirrorRule(
    name=NAME,
    kinds=(
        MirroredKind(
            kind=ENDPOINT_SLICE,
            need=lambda _: Need.ASKED,  # by its Service, which is looked up with its content
            present=_present,
            missing=_present,
            unneeded=_UNHELD,
            concerns=services.concerns,
            transform_upper=upper_slice,
            upper_indexes={"namespace": by_namespace, "service": _by_service},
            transform_lower=lower_slice,
            lower_indexes={"service": _by_service},
        ),
    ),
    controller="Service",
    users=Users(
        _used, (Watch("Service", _of_service), Watch("upper_pods", _of_first_pod, facts=("terminal", "daemon")))
    ),
    is_known=services.is_known,
)
"""One key for each slice of a namespace with pods, and for each lower copy."""
