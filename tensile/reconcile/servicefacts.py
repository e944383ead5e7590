"""What is kept of Services and EndpointSlices on either side, and taken out of them when they come.

Endpoints change as often as pods do. A slice below says by its facts alone whether it is as the one above: a short
print of what both should share, so that most looks at one decode nothing. Of objects above only that much is kept.
"""

from collections.abc import Iterator
from hashlib import blake2b

import msgspec
import orjson

from tensile.cache import Entry, Kept, packed
from tensile.names import OWNER
from tensile.objects import Manifest, labels, metadata
from tensile.reconcile.observed import upper_uid_of

SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGER = "tensile-kube.io"
"""Who manages our slices: Kubernetes' own controllers leave alone what has another name than theirs."""
_KEPT_META = ("name", "namespace", "uid", "resourceVersion")
KEPT_ENDPOINT = ("addresses", "conditions", "hostname")
_PRINT_BYTES = 16


class ServiceFacts(msgspec.Struct, frozen=True, gc=False):
    """Whose a Service below is: our marks, "" where somebody else wrote them."""

    owner: str = ""
    upper_uid: str = ""


class SliceFacts(msgspec.Struct, frozen=True, gc=False):
    """One slice: the Service that it is of, and a print of its content.

    The rest says of one below whose it is, as in ServiceFacts, and the UID of the Service that holds it there.
    """

    service: str
    print: bytes
    owner: str = ""
    upper_uid: str = ""
    holder: str = ""


def upper_service(raw: bytes) -> Kept:
    """Keep of a Service above its name, labels and spec."""
    found: Manifest = orjson.loads(raw)
    return Kept(packed({"metadata": _meta(found, labels(found)), "spec": found.get("spec") or {}}), None)


def lower_service(raw: bytes) -> Kept:
    """Keep a Service below, and whose it is."""
    found: Manifest = orjson.loads(raw)
    return Kept(packed(found), ServiceFacts(*_marks(found)), found)


def upper_slice(raw: bytes) -> Kept:
    """Keep of a slice above what one below should have."""
    found = shared(orjson.loads(raw))
    return Kept(packed(found), SliceFacts(_service_of(found), print_of(found)))


def lower_slice(raw: bytes) -> Kept:
    """Keep a slice below, and what tells whether it is as it should be."""
    found: Manifest = orjson.loads(raw)
    holders = [one["uid"] for one in metadata(found).get("ownerReferences") or ()]
    holder = holders[0] if len(holders) == 1 else ""
    return Kept(packed(found), SliceFacts(_service_of(found), print_of(found), *_marks(found), holder), found)


def shared(upper: Manifest) -> Manifest:
    """Give of a slice above what holds in every cluster: not on which nodes and in which zones its endpoints are.

    Kubernetes leaves a slice that it does not manage alone; the label that says who does is ours.
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
    """Give a print of a slice's labels but the owner's, and of its content."""
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
    """Give the owner's mark and the upper UID, both "" where we did not write the latter."""
    upper_uid = upper_uid_of(found)
    return (labels(found).get(OWNER, "") if upper_uid else "", upper_uid)


def _service_of(found: Manifest) -> str:
    return labels(found).get(SERVICE_NAME, "")
