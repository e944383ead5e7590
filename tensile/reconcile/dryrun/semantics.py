"""What an apiserver does with written and deleted objects, apart from defaults and validation.

These are plain functions on manifests: which fields a subresource can change, which manager owns labels and
annotations, and whether a deleted object disappears at once or terminates first. No decision depends on defaults and
validation.
"""

from collections.abc import Iterable
from copy import deepcopy
from datetime import datetime
from http import HTTPStatus
from typing import NamedTuple

from tensile.errors import Conflict, NotFound
from tensile.objects import (
    CLAIM,
    EVENT,
    NAMESPACE,
    NODE,
    POD,
    VOLUME,
    Kind,
    Manifest,
    Ref,
    later,
    metadata,
    moment_of,
    timestamp,
)

NAMESPACE_NAME = "kubernetes.io/metadata.name"
_DEFAULT_GRACE = 30
_OF_PODS = frozenset({"ephemeralcontainers", "resize"})
_WITH_STATUS = frozenset({POD, NODE, NAMESPACE, CLAIM, VOLUME})
_PROTECTION = {CLAIM: "kubernetes.io/pvc-protection", VOLUME: "kubernetes.io/pv-protection"}
"""Finalizers that admission adds, and that a controller removes once the object is not in use."""
_SERVERS = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
)
"""Metadata that no patch changes."""
_SECTIONS = ("labels", "annotations")
_LISTS = ("containers", "initContainers")


class FieldManager(NamedTuple):
    """The writer, by field manager, and the time in RFC 3339."""

    manager: str
    moment: str


def created(ref: Ref, body: Manifest, uid: str, author: FieldManager) -> Manifest:
    """Return a new object as it is stored, without its resourceVersion."""
    given = {field: value for field, value in metadata(body).items() if field not in _SERVERS}
    place = {"name": ref.name} | ({"namespace": ref.namespace} if ref.namespace else {})
    meta: Manifest = {**given, **place, "uid": uid, "creationTimestamp": author.moment}
    made: Manifest = {**body, "apiVersion": ref.kind.api, "kind": ref.kind.name, "metadata": meta}
    if ref.kind == POD:
        meta["generation"] = 1
        made["status"] = {"phase": "Pending"}
    if ref.kind in _PROTECTION:
        meta["finalizers"] = [*(given.get("finalizers") or ()), _PROTECTION[ref.kind]]
        made["status"] = {"phase": "Pending"}
    if ref.kind == NAMESPACE:
        made |= {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
    return booked({}, tidied(ref.kind, made), author)


def tidied(kind: Kind, manifest: Manifest) -> Manifest:
    """Return the object without empty fields, and a namespace with the label of its name."""
    meta = dict(metadata(manifest))
    if kind == NAMESPACE:
        meta["labels"] = {**(meta.get("labels") or {}), NAMESPACE_NAME: meta["name"]}
    found = {**manifest, "metadata": _without_empty(meta, (*_SECTIONS, "finalizers", "ownerReferences"))}
    return _without_empty(found, ("data", "binaryData"))


def _without_empty(fields: Manifest, named: Iterable[str]) -> Manifest:
    """Remove those of the named fields that are empty."""
    empty = {field for field in named if not fields.get(field)}
    return {field: value for field, value in fields.items() if field not in empty}


def fence(seen: Manifest, asked: Manifest) -> None:
    """Raise the Conflict of Kubernetes for a write to another object, or to an older version."""
    before, after = metadata(seen), metadata(asked)
    if after.get("resourceVersion") not in (None, "", before["resourceVersion"]):
        message = f"{before['name']} has been modified; apply the change to the latest version and try again"
        raise Conflict(message, status=HTTPStatus.CONFLICT, reason="Conflict")
    if after.get("uid") not in (None, "", before["uid"]):
        message = f"{before['name']} is invalid: metadata.uid: field is immutable"
        causes = ("FieldValueInvalid",) * (1 if seen.get("kind") == EVENT.name else 2)
        raise Conflict(message, status=HTTPStatus.UNPROCESSABLE_ENTITY, reason="Invalid", causes=causes)


def check_way(kind: Kind, subresource: str) -> None:
    """Raise NotFound for a subresource that the kind does not have. Kubernetes checks that first."""
    has_status = kind in _WITH_STATUS and subresource == "status"
    if subresource and not has_status and not (kind == POD and subresource in _OF_PODS):
        raise NotFound("the server could not find the requested resource", status=404, reason="NotFound")


def revised(kind: Kind, seen: Manifest, asked: Manifest, subresource: str = "") -> Manifest:
    """Return the stored result of a write through `subresource` ("" for the object itself)."""
    kept = {field: metadata(seen)[field] for field in _SERVERS if field in metadata(seen)}
    given = {field: value for field, value in metadata(asked).items() if field not in _SERVERS}
    asked = {**asked, "metadata": {**given, **kept}}
    return tidied(kind, _let_through(kind, seen, asked, subresource))


def _let_through(kind: Kind, seen: Manifest, asked: Manifest, subresource: str) -> Manifest:
    """Apply only what the subresource may change."""
    match subresource:
        case "":
            return _with(asked, seen, "status") if kind in _WITH_STATUS else asked
        case "status":
            owners = _with(asked["metadata"], seen["metadata"], "ownerReferences")
            return _with({**asked, "metadata": owners}, seen, "spec")
        case "ephemeralcontainers":
            return {**seen, "spec": _with(seen["spec"], asked["spec"], "ephemeralContainers")}
    return {**seen, "spec": _resized(seen["spec"], asked["spec"])}


def _with(fields: Manifest, others: Manifest, name: str) -> Manifest:
    """Return `fields` with one field as in `others`, present or missing."""
    found = {field: value for field, value in fields.items() if field != name}
    return {**found, name: others[name]} if name in others else found


def _resized(seen: Manifest, asked: Manifest) -> Manifest:
    """Return the pod's spec with the requested resources, its own and its containers'."""
    found = _with(seen, asked, "resources")
    for field in _LISTS:
        wanted = {one["name"]: one for one in asked.get(field) or ()}
        if field in seen:
            found[field] = [_with(one, wanted.get(one["name"], one), "resources") for one in seen[field]]
    return found


def booked(seen: Manifest, manifest: Manifest, author: FieldManager, subresource: str = "") -> Manifest:
    """Record the owners of labels and annotations in managedFields, and increment a pod's generation.

    As for an update in Kubernetes, the writer alone owns what it changed, removed keys have no owner, and unchanged
    values keep their owner. Other fields are not recorded.
    """
    before, after = metadata(seen), dict(metadata(manifest))
    books = deepcopy(before.get("managedFields") or [])
    for section in _SECTIONS:
        _book(books, section, before.get(section) or {}, after.get(section) or {}, (author, subresource))
    if books:
        after["managedFields"] = books
    if "generation" in before and seen.get("spec") != manifest.get("spec"):
        after["generation"] = before["generation"] + 1
    return {**manifest, "metadata": after}


def _book(
    books: list[Manifest], section: str, old: dict[str, str], new: dict[str, str], by: tuple[FieldManager, str]
) -> None:
    """Record one section of metadata."""
    written = [key for key, value in new.items() if old.get(key) != value]
    for book in books:
        owned = book.get("fieldsV1", {}).get("f:metadata", {}).get(f"f:{section}", {})
        for key in (*written, *(old.keys() - new.keys())):
            owned.pop(f"f:{key}", None)
    if written:
        mine = _book_of(books, *by)
        owned = mine["fieldsV1"].setdefault("f:metadata", {}).setdefault(f"f:{section}", {})
        owned.update({f"f:{key}": {} for key in written})


def _book_of(books: list[Manifest], author: FieldManager, subresource: str) -> Manifest:
    """Return the writer's entry in managedFields, a new one if needed."""
    for book in books:
        if (book["manager"], book.get("subresource", "")) == (author.manager, subresource):
            book["time"] = author.moment
            return book
    made: Manifest = {"manager": author.manager, "operation": "Update", "time": author.moment, "fieldsV1": {}}
    books.append(made | {"fieldsType": "FieldsV1"} | ({"subresource": subresource} if subresource else {}))
    return books[-1]


def marked(kind: Kind, manifest: Manifest, grace: int | None, now: datetime) -> Manifest:
    """Return the object as a delete request leaves it if it stays, the same object if nothing changes.

    Only a bound pod has a grace period, which can only be shortened. A namespace stays until it is empty.
    """
    meta = metadata(manifest)
    if "deletionTimestamp" in meta:
        return _shortened(manifest, grace)
    if kind == NAMESPACE:
        ending = {**(manifest.get("status") or {}), "phase": "Terminating"}
        return {**manifest, "metadata": {**meta, "deletionTimestamp": timestamp(now)}, "status": ending}
    if kind == POD:
        return _with_grace(manifest, _grace(manifest, grace), now)
    return _with_grace(manifest, 0, now) if meta.get("finalizers") else manifest


def _grace(pod: Manifest, asked: int | None) -> int:
    """Return the grace period of a pod in seconds: 0 if it runs on no node, 1 for a negative number."""
    spec = pod.get("spec") or {}
    if not spec.get("nodeName") or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    seconds = spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE) if asked is None else asked
    return int(seconds) if seconds >= 0 else 1


def _with_grace(manifest: Manifest, grace: int, now: datetime) -> Manifest:
    """Mark an object as terminating, with a grace period in seconds."""
    meta = metadata(manifest)
    end = timestamp(later(now, grace))
    generation = {"generation": meta["generation"] + 1} if "generation" in meta else {}
    ending = {**meta, **generation, "deletionTimestamp": end, "deletionGracePeriodSeconds": grace}
    return {**manifest, "metadata": ending}


def _shortened(manifest: Manifest, grace: int | None) -> Manifest:
    """Return a terminating object with the new grace period, if that is shorter."""
    meta = metadata(manifest)
    known = meta.get("deletionGracePeriodSeconds")
    grace = 1 if grace is not None and grace < 0 else grace
    if known is None or grace is None or grace >= known:
        return manifest
    end = later(moment_of(meta["deletionTimestamp"]), grace - known)
    ending = {**meta, "deletionTimestamp": timestamp(end), "deletionGracePeriodSeconds": grace}
    return {**manifest, "metadata": ending}


def disrupted(pod: Manifest, now: datetime) -> Manifest:
    """Return a pod with the condition that it was evicted."""
    status = pod.get("status") or {}
    others = [one for one in status.get("conditions") or () if one["type"] != "DisruptionTarget"]
    said = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    condition = {**said, "message": "Eviction API: evicting", "lastTransitionTime": timestamp(now)}
    return {**pod, "status": {**status, "conditions": [*others, condition]}}


def unprotected(kind: Kind, manifest: Manifest) -> Manifest:
    """Return an object without the finalizer that protects it while in use, as its controller would."""
    meta = metadata(manifest)
    kept = [one for one in meta.get("finalizers") or () if one != _PROTECTION.get(kind)]
    rest = {field: value for field, value in meta.items() if field != "finalizers"}
    return {**manifest, "metadata": rest | ({"finalizers": kept} if kept else {})}


def goes(kind: Kind, manifest: Manifest) -> bool:
    """Report whether a delete request removes the object that `marked` returned."""
    meta = metadata(manifest)
    if meta.get("finalizers") or kind == NAMESPACE:
        return False
    return kind != POD or not meta.get("deletionGracePeriodSeconds")


def released(manifest: Manifest) -> bool:
    """Report whether a terminating object only waited for its finalizers, which a write has removed."""
    meta = metadata(manifest)
    ending = "deletionTimestamp" in meta and meta.get("deletionGracePeriodSeconds") == 0
    return ending and not meta.get("finalizers")
