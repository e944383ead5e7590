"""Copy events of lower pods and claims to their upper objects.

Whether an event is about a pod of ours is found by a partial decode; most are not, and only those that are get decoded
whole. The copy's name follows from the lower event's UID, so that a repetition finds the first copy. Reporter, times
and count stay; the involved object becomes the upper one, by whose UID kubectl finds events. For claims only warnings
are copied: that a claim waits is repeated all the time without any problem.

Anyone who may create events in a lower namespace writes to the upper cluster this way. Kubernetes limits the fields of
newer events only (a message to 1,024 bytes, a reason to 128); an event of the older form may have megabytes. So only
known fields are copied, every text is cut, and values of a wrong type are left out.
"""

from hashlib import sha256
from typing import Annotated, NamedTuple

import msgspec
import orjson

from tensile.kube.cluster import Patch, Selection
from tensile.names import COMPONENT, LOWER, OWNER, Owner
from tensile.objects import CLAIM, EVENT, POD, UPPER, Manifest, Ref, annotations, labels, metadata
from tensile.reconcile.copies import upper_of
from tensile.reconcile.pods.index import is_lower_pod_of
from tensile.reconcile.rules.claims import copy_in
from tensile.reconcile.world import LowerWorld, World
from tensile.text import cut

LONGEST_MESSAGE = 1024
"""Maximum bytes of a message in UTF-8: Kubernetes' own limit for newer events."""
_LONGEST_WORD = 128
_LONGEST_NAME = 253
_LONGEST_TIME = 40
_MAX_COUNT = (1 << 31) - 1
_TEXTS = {
    "reason": _LONGEST_WORD,
    "message": LONGEST_MESSAGE,
    "action": _LONGEST_WORD,
    "firstTimestamp": _LONGEST_TIME,
    "lastTimestamp": _LONGEST_TIME,
    "eventTime": _LONGEST_TIME,
    "reportingComponent": _LONGEST_NAME,
    "reportingInstance": _LONGEST_WORD,
}
_SOURCE = {"component": _LONGEST_NAME, "host": _LONGEST_NAME}
_SERIES = {"lastObservedTime": _LONGEST_TIME}
_TIMES = ("lastTimestamp", "eventTime", "firstTimestamp")
_TYPES = ("Normal", "Warning")
FIELD_PATH = "fieldPath"
"""The field with the part of the involved object that an event is about."""
OF_PODS = Selection(fields="involvedObject.kind=Pod")
"""As narrow as the API can select: by kind, and not by the owner of the pod."""
OF_CLAIMS = Selection(fields="involvedObject.kind=PersistentVolumeClaim")
_LONGEST = 1 << 16
_MAX_NAME = 200
_UPDATED_FIELDS = ("count", "lastTimestamp", "series", "message")

_Word = Annotated[str, msgspec.Meta(max_length=253)]
"""A name as Kubernetes allows it: what is kept of a waiting event is bounded, whoever created it."""


class _Labels(msgspec.Struct, frozen=True, gc=False, rename={"owner": OWNER}):
    owner: _Word = ""


class _Identity(msgspec.Struct, frozen=True, gc=False):
    uid: _Word
    labels: _Labels | None = None


class _Involved(msgspec.Struct, frozen=True, gc=False):
    kind: _Word = ""
    namespace: _Word = ""
    name: _Word = ""
    uid: _Word = ""


class _Source(msgspec.Struct, frozen=True, gc=False):
    component: _Word = ""


class EventHeader(msgspec.Struct, frozen=True, gc=False):
    """The part of an event that shows whether it is worth decoding."""

    metadata: _Identity
    involvedObject: _Involved  # noqa: N815 - the API's spelling
    source: _Source | None = None
    reportingComponent: _Word | None = None  # noqa: N815
    type: _Word = ""


class EventSubject(NamedTuple):
    """The upper object of a lower event; `version` is its resourceVersion, "" where it is not known."""

    kind: str
    namespace: str
    name: str
    uid: str
    version: str = ""


class CarriedEvent(NamedTuple):
    """What is kept of an event to be shown: `about` is the UID of its upper object, `times` how often it occurred."""

    about: str
    time: str
    type: str
    reason: str
    message: str
    times: int


_HEADERS = msgspec.json.Decoder(EventHeader)


def event_header(raw: bytes) -> EventHeader | None:
    """Return the decoded part of a lower event; None for what is none, or is longer than any event."""
    if len(raw) > _LONGEST:
        return None
    try:
        return _HEADERS.decode(raw)
    except msgspec.MsgspecError:
        return None


def content(raw: bytes) -> Manifest:
    """Return what an event says, by the API's field names: at most about 4 KB, whatever it holds.

    `fieldPath` is put beside the other fields. Raise orjson.JSONDecodeError for invalid JSON.
    """
    event: Manifest = orjson.loads(raw)
    event_type = event.get("type")
    found: Manifest = {**_texts(event, _TEXTS), "type": event_type if event_type in _TYPES else _TYPES[0]}
    found |= _count(event)
    if isinstance(event.get("source"), dict):
        found["source"] = _texts(event["source"], _SOURCE)
    if isinstance(event.get("series"), dict):
        found["series"] = _texts(event["series"], _SERIES) | _count(event["series"])
    return found | _texts(event["involvedObject"], {FIELD_PATH: _LONGEST_NAME})


def carried_event(content: Manifest, subject: EventSubject) -> CarriedEvent:
    """Return what is kept of an event about an upper object, from its `content`."""
    series: Manifest = content.get("series") or {}
    times = (series.get("lastObservedTime"), *(content.get(name) for name in _TIMES))
    time = next((str(one) for one in times if one), "")
    count = int(series.get("count") or content.get("count") or 1)
    return CarriedEvent(
        subject.uid, time, content["type"], content.get("reason", ""), content.get("message", ""), count
    )


def _texts(fields: Manifest, longest: dict[str, int]) -> Manifest:
    """Return the texts among some fields, each cut to its maximum bytes; empty ones are left out."""
    found = ((field, fields.get(field), most) for field, most in longest.items())
    return {field: cut(value, most) for field, value, most in found if value and isinstance(value, str)}


def _count(fields: Manifest) -> Manifest:
    """Return the count among some fields, if the API accepts it."""
    count = fields.get("count")
    return {"count": count} if type(count) is int and 0 <= count <= _MAX_COUNT else {}


def subject_of(header: EventHeader, lower: LowerWorld, world: World) -> EventSubject | None:
    """Return the upper pod or claim that a lower event is about, None if it is about no copy or written by us."""
    if _is_written_by_engine(header, world.owner):
        return None
    return (
        _claim_subject(header, lower, world)
        if header.involvedObject.kind == CLAIM.name
        else _pod_subject(header, lower, world.owner)
    )


def _pod_subject(header: EventHeader, lower: LowerWorld, owner: Owner) -> EventSubject | None:
    involved = header.involvedObject
    lower_pod = lower.pods.get(involved.namespace, involved.name)
    if lower_pod is None or lower_pod.uid != involved.uid or involved.kind != POD.name:
        return None
    upper = upper_of(lower_pod, lower)
    if upper is None or not is_lower_pod_of(lower_pod, upper, owner):
        return None
    return EventSubject(POD.name, upper.namespace, upper.name, upper.uid, str(upper.version))


def _claim_subject(header: EventHeader, lower: LowerWorld, world: World) -> EventSubject | None:
    involved = header.involvedObject
    namespace = lower.upper_namespace(involved.namespace)
    claim = world.upper.more[CLAIM].get(namespace, involved.name) if namespace and header.type == "Warning" else None
    copy = copy_in(lower, claim, world) if claim is not None else None
    if claim is None or copy is None or copy.uid != involved.uid:
        return None
    return EventSubject(CLAIM.name, claim.namespace, claim.name, claim.uid)


def may_become_ours(header: EventHeader, lower: LowerWorld) -> bool:
    """Report whether an event is about a lower pod that is being created: it can arrive before that pod is known."""
    involved = header.involvedObject
    exists = lower.pods.get(involved.namespace, involved.name) is not None
    namespace = lower.upper_namespace(involved.namespace)
    return not exists and lower.upper_pods.get(namespace, involved.name) is not None


def ref_of(header: EventHeader, subject: EventSubject) -> Ref:
    """Return the name of the copy."""
    digest = sha256(header.metadata.uid.encode()).hexdigest()[:16]
    return Ref(UPPER, EVENT, subject.namespace, f"{subject.name[:_MAX_NAME].rstrip('-.')}.{digest}")


def copy_of(content: Manifest, ref: Ref, subject: EventSubject, lower: str, owner: Owner) -> Manifest:
    """Return the copy of an event, as it should be created in the upper cluster, from its `content`."""
    about = {
        "apiVersion": "v1",
        "kind": subject.kind,
        "namespace": subject.namespace,
        "name": subject.name,
        "uid": subject.uid,
        **({"resourceVersion": subject.version} if subject.version else {}),
    }
    field_path = {FIELD_PATH: content[FIELD_PATH]} if FIELD_PATH in content else {}
    marks = {"labels": owner.label, "annotations": {LOWER: lower}}
    return {
        "apiVersion": EVENT.api,
        "kind": EVENT.name,
        "metadata": {"name": ref.name, "namespace": ref.namespace, **marks},
        "involvedObject": about | field_path,
        **{field: value for field, value in content.items() if field != FIELD_PATH},
    }


def repeat_of(copy: Manifest, uid: str) -> Patch:
    """Return the patch that updates the copy of that UID to a newer one."""
    fields = {field: copy[field] for field in _UPDATED_FIELDS if field in copy}
    return Patch("merge-patch", {"metadata": {"uid": uid}, **fields})


def is_copy(found: Manifest, copy: Manifest) -> bool:
    """Report whether the event under a copy's name is a copy of ours, about the same object."""
    same = found.get("involvedObject", {}).get("uid") == copy["involvedObject"]["uid"]
    return same and labels(found).get(OWNER) == labels(copy)[OWNER] and LOWER in annotations(found)


def is_up_to_date(found: Manifest, copy: Manifest) -> bool:
    """Report whether an existing copy needs no update."""
    return all(found.get(field) == copy.get(field) for field in _UPDATED_FIELDS)


def uid_of_copy(found: Manifest) -> str:
    """Return the UID of a copy as stored."""
    return str(metadata(found)["uid"])


def _is_written_by_engine(header: EventHeader, owner: Owner) -> bool:
    """Report whether this program wrote an event, or this topology's engine copied it."""
    author = (header.source.component if header.source else "") or header.reportingComponent
    labelled = header.metadata.labels
    return author == COMPONENT or (labelled is not None and labelled.owner == owner.mark)
