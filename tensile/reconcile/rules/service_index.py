"""Which Services a lower cluster gets, and what is cached of Services and EndpointSlices on either side.

A Service is useful only to pods of its namespace, and names in other namespaces stay the lower's own. Services are
created and updated for the pods of their namespace that are bound to this lower. After the last of them they stay
unchanged while a lower pod of ours is in the namespace, since it still calls its Services.

Endpoints change as often as pods do. The facts of a lower slice hold a hash of what it shares with its upper slice, so
that most decisions about a slice decode nothing. Of upper objects only these shared fields are kept.
"""

from collections.abc import Iterator
from hashlib import blake2b

import msgspec
import orjson

from tensile.kube.store import Cache, Delta, Entry, Transformed, packed
from tensile.names import OWNER, Owner
from tensile.objects import ENDPOINT_SLICE, SERVICE, Manifest, labels, metadata
from tensile.reconcile import copies
from tensile.reconcile.ownership import upper_uid_of
from tensile.reconcile.world import Key, LowerWorld, World

KUBE_SYSTEM = "kube-system"
SERVICE_RULE = "service"
SLICE_RULE = "slice"
_CONTROLLER = "Service"
SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGER = "tensile-kube.io"
"""The manager of our slices: Kubernetes' own controllers ignore slices with another manager than themselves."""
_KEPT_META = ("name", "namespace", "uid", "resourceVersion")
KEPT_ENDPOINT = ("addresses", "conditions", "hostname")
_PRINT_BYTES = 16


class ServiceFacts(msgspec.Struct, frozen=True, gc=False):
    """The marks of a lower Service, "" where we did not write them."""

    owner: str = ""
    upper_uid: str = ""


class SliceFacts(msgspec.Struct, frozen=True, gc=False):
    """Facts of a slice: its Service, and a hash of its content.

    For a lower slice also the marks, as in ServiceFacts, and the UID of the Service that owns it there.
    """

    service: str
    print: bytes
    owner: str = ""
    upper_uid: str = ""
    holder: str = ""


def service_key(lower: str, namespace: str, name: str) -> Key:
    """Return the key of one Service, by its upper namespace and name."""
    return Key(SERVICE_RULE, lower, namespace, name)


def slice_key(lower: str, namespace: str, name: str) -> Key:
    """Return the key of one EndpointSlice, by its upper namespace and name."""
    return Key(SLICE_RULE, lower, namespace, name)


def is_enabled(lower: LowerWorld) -> bool:
    """Report whether a lower is to have Services."""
    return _CONTROLLER in lower.spec.controllers


def is_known(lower: LowerWorld, world: World) -> bool:
    """Report whether everything that decides about Services has been listed."""
    caches = [side.more[kind] for side in (world.upper, lower) for kind in (SERVICE, ENDPOINT_SLICE)]
    return lower.settled and all(cache.synced for cache in caches)


def is_exposed(lower: LowerWorld, namespace: str, world: World) -> bool:
    """Report whether the Services of an upper namespace belong in a lower; kube-system's only on request."""
    if not is_enabled(lower):
        return False
    if namespace == KUBE_SYSTEM:
        return world.topology.services.kube_system and lower.in_topology
    return copies.is_inhabited(lower, namespace, world)


def is_kept(lower: LowerWorld, namespace: str) -> bool:
    """Report whether the existing lower Services of an upper namespace stay as they are."""
    return is_enabled(lower) and namespace != KUBE_SYSTEM and copies.keeps_namespace(lower, namespace)


def exposed(lower: LowerWorld, world: World) -> Iterator[str]:
    """Yield the upper namespaces whose Services belong in a lower, in order."""
    found = set(map(str, lower.upper_pods.values("living")))
    yield from sorted(name for name in found | {KUBE_SYSTEM} if is_exposed(lower, name, world))


def began(lower: LowerWorld, delta: Delta) -> str:
    """Return the namespace that an upper pod is the first of, else ""."""
    is_first = _lives(delta.after) and not _lives(delta.before)
    return _if_count(lower.upper_pods, "living", delta, 1) if is_first else ""


def ended(lower: LowerWorld, delta: Delta) -> str:
    """Return the namespace that an upper pod was the last of, else ""."""
    is_last = _lives(delta.before) and not _lives(delta.after)
    return _if_count(lower.upper_pods, "living", delta, 0) if is_last else ""


def ended_below(lower: LowerWorld, delta: Delta) -> str:
    """Return the upper namespace that a lower pod was the last of, else ""."""
    namespace = "" if delta.after else _if_count(lower.pods, "namespace", delta, 0)
    return lower.upper_namespace(namespace) if namespace else ""


def is_made_for(entry: Entry | None, owner: Owner, upper_uid: str) -> bool:
    """Report whether a lower Service or slice is this owner's and was made for the upper object of that UID."""
    return entry is not None and entry.facts.owner == owner.mark and entry.facts.upper_uid == upper_uid


def _lives(pod: Entry | None) -> bool:
    return pod is not None and not (pod.facts.terminal or pod.facts.daemon)


def _if_count(cache: Cache, index: str, delta: Delta, count: int) -> str:
    namespace = delta.entry.namespace
    return namespace if cache.count(index, namespace) == count else ""


def upper_service(raw: bytes) -> Transformed:
    """Transform an upper Service to its name, labels and spec."""
    found: Manifest = orjson.loads(raw)
    return Transformed(packed({"metadata": _meta(found, labels(found)), "spec": found.get("spec") or {}}), None)


def lower_service(raw: bytes) -> Transformed:
    """Transform a lower Service: its bytes and marks."""
    found: Manifest = orjson.loads(raw)
    return Transformed(packed(found), ServiceFacts(*_marks(found)), found)


def upper_slice(raw: bytes) -> Transformed:
    """Transform an upper slice to the fields that its copy should have."""
    found = shared(orjson.loads(raw))
    return Transformed(packed(found), SliceFacts(_service_of(found), print_of(found)))


def lower_slice(raw: bytes) -> Transformed:
    """Transform a lower slice: its bytes, and the facts that show whether it is as it should be."""
    found: Manifest = orjson.loads(raw)
    holders = [one["uid"] for one in metadata(found).get("ownerReferences") or ()]
    holder = holders[0] if len(holders) == 1 else ""
    return Transformed(packed(found), SliceFacts(_service_of(found), print_of(found), *_marks(found), holder), found)


def shared(upper: Manifest) -> Manifest:
    """Return the fields of an upper slice that hold in every cluster, without nodes and zones of its endpoints.

    Kubernetes ignores a slice that it does not manage; the label that names the manager is ours.
    """
    given = {**labels(upper), MANAGED_BY: MANAGER}
    given.pop(OWNER, None)
    return {
        "metadata": _meta(upper, given),
        "addressType": upper.get("addressType"),
        "endpoints": [_endpoint(one) for one in upper.get("endpoints") or ()],
        "ports": upper.get("ports") or [],
    }


def print_of(found: Manifest) -> bytes:
    """Return a hash of a slice's content and of its labels without the owner's."""
    given = {key: value for key, value in labels(found).items() if key != OWNER}
    content = (given, found.get("addressType"), found.get("endpoints") or [], found.get("ports") or [])
    return blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=_PRINT_BYTES).digest()


def by_namespace(entry: Entry) -> Iterator[str]:
    """Index by namespace."""
    yield entry.namespace


def by_service(entry: Entry) -> Iterator[tuple[str, str]]:
    """Index slices by the (namespace, name) of their Service."""
    yield entry.namespace, entry.facts.service


def _endpoint(found: Manifest) -> Manifest:
    return {field: found[field] for field in KEPT_ENDPOINT if field in found}


def _meta(found: Manifest, given: Manifest) -> Manifest:
    meta = metadata(found)
    return {**{field: meta[field] for field in _KEPT_META if field in meta}, "labels": given}


def _marks(found: Manifest) -> tuple[str, str]:
    """Return the owner's mark and the upper UID, both "" where we did not write the latter."""
    upper_uid = upper_uid_of(found)
    return (labels(found).get(OWNER, "") if upper_uid else "", upper_uid)


def _service_of(found: Manifest) -> str:
    return labels(found).get(SERVICE_NAME, "")
