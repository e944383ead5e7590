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
    identity = {"name": ref.name} | ({"namespace": ref.namespace} if ref.namespace else {})
    meta: Manifest = {**given, **identity, "uid": uid, "creationTimestamp": author.moment}
    made: Manifest = {**body, "apiVersion": ref.kind.api, "kind": ref.kind.name, "metadata": meta}
    if ref.kind == POD:
        meta["generation"] = 1
        made["status"] = {"phase": "Pending"}
    if ref.kind in _PROTECTION:
        meta["finalizers"] = [*(given.get("finalizers") or ()), _PROTECTION[ref.kind]]
        made["status"] = {"phase": "Pending"}
    if ref.kind == NAMESPACE:
        made |= {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
    return with_managed_fields({}, tidied(ref.kind, made), author)


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


def fence(seen: Manifest, updated: Manifest) -> None:
    """Raise the Conflict of Kubernetes for a write to another object, or to an older version."""
    before, after = metadata(seen), metadata(updated)
    if after.get("resourceVersion") not in (None, "", before["resourceVersion"]):
        message = f"{before['name']} has been modified; apply the change to the latest version and try again"
        raise Conflict(message, status=HTTPStatus.CONFLICT, reason="Conflict")
    if after.get("uid") not in (None, "", before["uid"]):
        message = f"{before['name']} is invalid: metadata.uid: field is immutable"
        causes = ("FieldValueInvalid",) * (1 if seen.get("kind") == EVENT.name else 2)
        raise Conflict(message, status=HTTPStatus.UNPROCESSABLE_ENTITY, reason="Invalid", causes=causes)


def check_subresource(kind: Kind, subresource: str) -> None:
    """Raise NotFound for a subresource that the kind does not have. Kubernetes checks that first."""
    has_status = kind in _WITH_STATUS and subresource == "status"
    if subresource and not has_status and not (kind == POD and subresource in _OF_PODS):
        raise NotFound("the server could not find the requested resource", status=404, reason="NotFound")


def revised(kind: Kind, seen: Manifest, updated: Manifest, subresource: str = "") -> Manifest:
    """Return the stored result of a write through `subresource` ("" for the object itself)."""
    kept = {field: metadata(seen)[field] for field in _SERVERS if field in metadata(seen)}
    given = {field: value for field, value in metadata(updated).items() if field not in _SERVERS}
    updated = {**updated, "metadata": {**given, **kept}}
    return tidied(kind, _restricted(kind, seen, updated, subresource))


def _restricted(kind: Kind, seen: Manifest, updated: Manifest, subresource: str) -> Manifest:
    """Apply only what the subresource may change."""
    match subresource:
        case "":
            return _with(updated, seen, "status") if kind in _WITH_STATUS else updated
        case "status":
            owners = _with(updated["metadata"], seen["metadata"], "ownerReferences")
            return _with({**updated, "metadata": owners}, seen, "spec")
        case "ephemeralcontainers":
            return {**seen, "spec": _with(seen["spec"], updated["spec"], "ephemeralContainers")}
    return {**seen, "spec": _resized(seen["spec"], updated["spec"])}


def _with(fields: Manifest, source: Manifest, name: str) -> Manifest:
    """Return `fields` with one field as in `source`, present or missing."""
    found = {field: value for field, value in fields.items() if field != name}
    return {**found, name: source[name]} if name in source else found


def _resized(seen: Manifest, updated: Manifest) -> Manifest:
    """Return the pod's spec with the requested resources, its own and its containers'."""
    found = _with(seen, updated, "resources")
    for field in _LISTS:
        wanted = {one["name"]: one for one in updated.get(field) or ()}
        if field in seen:
            found[field] = [_with(one, wanted.get(one["name"], one), "resources") for one in seen[field]]
    return found


def with_managed_fields(seen: Manifest, manifest: Manifest, author: FieldManager, subresource: str = "") -> Manifest:
    """Record the owners of labels and annotations in managedFields, and increment a pod's generation.

    As for an update in Kubernetes, the writer alone owns what it changed, removed keys have no owner, and unchanged
    values keep their owner. Other fields are not recorded.
    """
    before, after = metadata(seen), dict(metadata(manifest))
    entries = deepcopy(before.get("managedFields") or [])
    for section in _SECTIONS:
        _record_owners(entries, section, before.get(section) or {}, after.get(section) or {}, (author, subresource))
    if entries:
        after["managedFields"] = entries
    if "generation" in before and seen.get("spec") != manifest.get("spec"):
        after["generation"] = before["generation"] + 1
    return {**manifest, "metadata": after}


def _record_owners(
    entries: list[Manifest], section: str, old: dict[str, str], new: dict[str, str], by: tuple[FieldManager, str]
) -> None:
    """Record one section of metadata."""
    written = [key for key, value in new.items() if old.get(key) != value]
    for entry in entries:
        owned = entry.get("fieldsV1", {}).get("f:metadata", {}).get(f"f:{section}", {})
        for key in (*written, *(old.keys() - new.keys())):
            owned.pop(f"f:{key}", None)
    if written:
        own_entry = _manager_entry(entries, *by)
        owned = own_entry["fieldsV1"].setdefault("f:metadata", {}).setdefault(f"f:{section}", {})
        owned.update({f"f:{key}": {} for key in written})


def _manager_entry(entries: list[Manifest], author: FieldManager, subresource: str) -> Manifest:
    """Return the writer's entry in managedFields, a new one if needed."""
    for entry in entries:
        if (entry["manager"], entry.get("subresource", "")) == (author.manager, subresource):
            entry["time"] = author.moment
            return entry
    made: Manifest = {"manager": author.manager, "operation": "Update", "time": author.moment, "fieldsV1": {}}
    entries.append(made | {"fieldsType": "FieldsV1"} | ({"subresource": subresource} if subresource else {}))
    return entries[-1]


def marked_for_deletion(kind: Kind, manifest: Manifest, grace: int | None, now: datetime) -> Manifest:
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


def _grace(pod: Manifest, updated: int | None) -> int:
    """Return the grace period of a pod in seconds: 0 if it runs on no node, 1 for a negative number."""
    spec = pod.get("spec") or {}
    if not spec.get("nodeName") or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    seconds = spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE) if updated is None else updated
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
    base = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    condition = {**base, "message": "Eviction API: evicting", "lastTransitionTime": timestamp(now)}
    return {**pod, "status": {**status, "conditions": [*others, condition]}}


def unprotected(kind: Kind, manifest: Manifest) -> Manifest:
    """Return an object without the finalizer that protects it while in use, as its controller would."""
    meta = metadata(manifest)
    kept = [one for one in meta.get("finalizers") or () if one != _PROTECTION.get(kind)]
    rest = {field: value for field, value in meta.items() if field != "finalizers"}
    return {**manifest, "metadata": rest | ({"finalizers": kept} if kept else {})}


def is_removed_at_once(kind: Kind, manifest: Manifest) -> bool:
    """Report whether a delete request removes the object that `marked_for_deletion` returned."""
    meta = metadata(manifest)
    if meta.get("finalizers") or kind == NAMESPACE:
        return False
    return kind != POD or not meta.get("deletionGracePeriodSeconds")


def released(manifest: Manifest) -> bool:
    """Report whether a terminating object only waited for its finalizers, which a write has removed."""
    meta = metadata(manifest)
    ending = "deletionTimestamp" in meta and meta.get("deletionGracePeriodSeconds") == 0
    return ending and not meta.get("finalizers")
