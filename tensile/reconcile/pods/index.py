"""What decisions read of a pod: facts and indexes, extracted when it arrives, and a view of the whole pod.

With the facts, most events are handled without decoding the pod again, and the indexes of the caches need nothing else.
A decision that needs the whole pod takes it apart once, and passes the view on.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from sys import intern
from typing import NamedTuple

import msgspec
import orjson

from tensile.kube.store import Entry, Transformed, packed
from tensile.kube.tombstones import Tombstone
from tensile.names import DO_NOT_DISRUPT, FIELD_MANAGER, OWNER, SAFE_TO_EVICT, VIRTUAL_POD, Owner
from tensile.objects import POD, UPPER, Manifest, Ref, controller_of, labels
from tensile.reconcile.ownership import upper_uid_of
from tensile.reconcile.pods.references import Reference, references
from tensile.reconcile.world import LowerWorld

TERMINAL = frozenset({"Succeeded", "Failed"})
"""The phases that a pod never leaves."""
_ABOUT_CONTENT = (None, "", "resize")
"""Subresources by which clients write what we write too."""
_OUR_PARTS, _THEIR_PARTS = ("f:metadata",), ("f:metadata", "f:spec")
_UNREQUESTED = ("DeletionByTaintManager", "DeletionByPodGC")


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """The facts of one pod, upper or lower.

    `owner` and `upper_uid` are our marks, "" on upper pods and if we did not write them. `unrequested`: Kubernetes
    itself deleted it because of its node. `ran`: containers of it have been seen. `daemon`: it belongs to a DaemonSet
    that did not request mirroring. `shown` is a hash of the status fields that both sides have once they are synced.
    `bare`: no controller would recreate it. `scheduled`: it has a node. `disrupted`: Kubernetes or a client ends it,
    for example by an eviction. `pinned`: an annotation forbids its eviction.
    """

    owner: str
    upper_uid: str
    terminal: bool
    terminating: bool
    unrequested: bool
    ran: bool
    daemon: bool
    references: frozenset[Reference]
    shown: int = 0
    ready: str = ""
    gated: bool = False
    bare: bool = False
    scheduled: bool = False
    disrupted: bool = False
    pinned: bool = False

    @property
    def stays_out(self) -> bool:
        """Whether it belongs to a DaemonSet that did not request mirroring, and never ran in a lower cluster."""
        return self.daemon and not self.ran


class PodView(NamedTuple):
    """A decoded pod, taken apart once for a decision.

    `phase` is "Pending" for a pod without one. `conditions` are by type, without the nulls that the API writes for
    unset times.
    """

    manifest: Manifest
    meta: Manifest
    spec: Manifest
    status: Manifest
    phase: str
    conditions: Mapping[str, Manifest]

    @property
    def ref(self) -> Ref:
        """The reference to an upper pod."""
        return Ref(UPPER, POD, self.meta["namespace"], self.meta["name"])


def view_of(pod: Manifest) -> PodView:
    """Take a decoded pod apart."""
    status: Manifest = pod.get("status") or {}
    conditions: dict[str, Manifest] = {}
    for one in status.get("conditions") or ():
        conditions[one["type"]] = one
        if None in one.values():
            conditions[one["type"]] = {field: value for field, value in one.items() if value is not None}
    phase = status.get("phase") or "Pending"
    return PodView(pod, pod.get("metadata") or {}, pod.get("spec") or {}, status, phase, conditions)


def transform_upper_pod(raw: bytes) -> Transformed:
    """Keep an upper pod and its facts, without managedFields.

    So our marks never count on it, whoever wrote them: an upper pod is identified by its own UID alone.
    """
    pod: Manifest = orjson.loads(raw)
    pod["metadata"].pop("managedFields", None)
    return Transformed(packed(pod), facts_of(pod), pod)


def transform_lower_pod(raw: bytes) -> Transformed:
    """Keep a lower pod and its facts, with the managedFields needed later.

    These are our metadata, and the metadata and spec of other writers, also if they resize it.
    """
    pod: Manifest = orjson.loads(raw)
    entries = pod["metadata"].pop("managedFields", None)
    if entries:
        pod["metadata"]["managedFields"] = kept = []
        for entry in entries:
            if entry.get("subresource") in _ABOUT_CONTENT:
                fields = entry.get("fieldsV1") or {}
                parts = _OUR_PARTS if entry.get("manager") == FIELD_MANAGER else _THEIR_PARTS
                kept.append({**entry, "fieldsV1": {part: fields[part] for part in parts if part in fields}})
    return Transformed(packed(pod), facts_of(pod), pod)


def facts_of(pod: Manifest) -> PodFacts:
    """Return the facts of a decoded pod."""
    meta: Manifest = pod["metadata"]
    marks: dict[str, str] = meta.get("labels") or {}
    notes: dict[str, str] = meta.get("annotations") or {}
    status: Manifest = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    upper_uid = upper_uid_of(pod)
    controller, disruption = controller_of(pod), _disruption(status)
    return PodFacts(
        owner=intern(marks.get(OWNER, "")) if upper_uid else "",
        upper_uid=upper_uid,
        terminal=phase in TERMINAL,
        terminating="deletionTimestamp" in meta,
        unrequested=disruption in _UNREQUESTED,
        ran=phase != "Pending" or bool(status.get("containerStatuses")),
        daemon=controller.get("kind") == "DaemonSet" and marks.get(VIRTUAL_POD) != "true",
        references=_shared(references(pod)),
        shown=_shown(status),
        ready=next((intern(one["status"]) for one in status.get("conditions") or () if one["type"] == "Ready"), ""),
        gated=bool(pod["spec"].get("readinessGates")),
        bare=not controller,
        scheduled=bool(pod["spec"].get("nodeName")),
        disrupted=disruption is not None,
        pinned=notes.get(SAFE_TO_EVICT) == "false" or notes.get(DO_NOT_DISRUPT) == "true",
    )


def _shown(status: Manifest) -> int:
    """Return a hash of what people look at first: whether it runs, its containers are ready, was restarted."""
    shown: list[object] = [status.get("phase")]
    for one in status.get("containerStatuses") or ():
        shown += (one.get("ready"), one.get("restartCount"), *(one.get("state") or ()))
    return hash(tuple(shown))


def differ(upper_pod: Entry | None, lower_pod: Entry | None) -> bool:
    """Report whether two pods have visible differences. False does not prove that they are equal."""
    if upper_pod is None or lower_pod is None:
        return True
    upper, lower = upper_pod.facts, lower_pod.facts
    return bool(upper.shown != lower.shown or (upper.ready != lower.ready and not upper.gated))


def is_shown_alike(before: Entry, after: Entry) -> bool:
    """Report whether two states of one pod have no visible difference."""
    return bool((before.facts.shown, before.facts.ready) == (after.facts.shown, after.facts.ready))


@lru_cache(maxsize=1024)
def _shared(found: frozenset[Reference]) -> frozenset[Reference]:
    """Return the first of equal sets: the pods of one template have the same references."""
    return found


def needs_lower_pod(upper_pod: Entry, excluded: Collection[str]) -> bool:
    """Report whether an upper pod needs a lower copy: not if it has ended, or is not mirrored at all.

    `excluded` are the namespaces whose pods are not mirrored.
    """
    facts = upper_pod.facts
    return not (facts.terminal or facts.daemon or upper_pod.namespace in excluded)


def was_deleted(tombstone: Tombstone, upper_uid: str) -> bool:
    """Report whether the upper pod of that UID is known to have been deleted on request.

    Kubernetes itself deletes pods because of their node. And what a read or a write only found missing may have
    disappeared with the history of its store.
    """
    facts = tombstone.facts
    if tombstone.uid != upper_uid or facts is None or facts.unrequested:
        return False
    return tombstone.seen or bool(facts.terminating)


def is_lower_pod_gone(upper: Entry, lower: LowerWorld) -> bool:
    """Report whether the lower copy of an upper pod is certainly deleted, if there ever was one.

    An empty name is no proof. The last deletion may have been that of an older pod's copy, and the watch may not have
    delivered yet what another engine created since.
    """
    namespace = lower.namespace(upper.namespace)
    tombstone = lower.pods.tombstone(namespace, upper.name)
    facts = tombstone.facts if tombstone is not None else None
    was_its = facts is not None and facts.upper_uid == upper.uid
    return was_its or lower.pods.is_deleted(namespace, upper.name, upper.uid)


def by_life(entry: Entry) -> Iterator[str]:
    """Index by namespace the pods that need objects in their cluster: not those that ended, or are not mirrored."""
    if not (entry.facts.terminal or entry.facts.daemon):
        yield entry.namespace


def by_reference(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """Index pods by (kind, namespace, name) of the objects that they refer to."""
    for reference in entry.facts.references:
        yield (reference.kind, entry.namespace, reference.name)


def by_namespace(entry: Entry) -> Iterator[str]:
    """Index pods by namespace."""
    yield entry.namespace


def by_uid(entry: Entry) -> Iterator[str]:
    """Index pods by their own UID."""
    yield entry.uid


def ours_by_namespace(entry: Entry) -> Iterator[str]:
    """Index by namespace the lower pods that have both of our marks."""
    return by_namespace(entry) if entry.facts.owner else iter(())


def ours_by_reference(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """Index by reference the lower pods that have both of our marks."""
    return by_reference(entry) if entry.facts.owner else iter(())


UPPER_INDEXES = {"namespace": by_namespace, "living": by_life, "reference": by_reference, "uid": by_uid}
LOWER_INDEXES = {"namespace": ours_by_namespace, "reference": ours_by_reference}


def is_own_lower_pod(lower_pod: Entry, owner: Owner) -> bool:
    """Report whether a lower pod is this owner's."""
    return bool(lower_pod.facts.owner == owner.mark)


def is_lower_pod_of(lower_pod: Entry, upper_pod: Entry, owner: Owner) -> bool:
    """Report whether a lower pod is this owner's, and the copy of this upper pod."""
    facts = lower_pod.facts
    return bool(facts.upper_uid == upper_pod.uid and facts.owner == owner.mark)


def is_daemon(pod: Manifest) -> bool:
    """Report whether an upper pod belongs to a DaemonSet, without the label that requests mirroring."""
    return controller_of(pod).get("kind") == "DaemonSet" and labels(pod).get(VIRTUAL_POD) != "true"


def _disruption(status: Manifest) -> str | None:
    """Return the reason of condition DisruptionTarget where that is True, else None."""
    for condition in status.get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return str(condition.get("reason", ""))
    return None
