"""ConfigMap NAME-status: what it should be against what it is, and what has to be written for that.

One of that name that is not ours is nobody's to change: it stays as it is, and that is said.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from tensile.cluster import Patch
from tensile.errors import TensileError
from tensile.names import STATUS_SUFFIX, UPPER_UID, Owner, owner_of
from tensile.objects import CONFIG_MAP, UPPER, Manifest, Ref, annotations, as_read, moment_of
from tensile.reconcile.mapsource import Place
from tensile.reconcile.observed import is_ours
from tensile.reconcile.reading import Reading, Text
from tensile.status.report import ACCEPTED, LOWERS, REJECTED, TOPOLOGY
from tensile.status.verdict import Verdict

_NOTHING_YET = {TOPOLOGY: "", LOWERS: "[]"}


class NameTaken(TensileError):
    """Another's ConfigMap has the name that the status should have."""


class Write(NamedTuple):
    """What to send: an object to create, or a patch of the one that is there."""

    create: Manifest | None = None
    patch: Patch | None = None


def status_ref(place: Place) -> Ref:
    """Say which ConfigMap holds the status of a topology."""
    return Ref(UPPER, CONFIG_MAP, place.namespace, place.name + STATUS_SUFFIX)


def status_owner(upper_uid: str, place: Place) -> Owner:
    """Say whose the status is: the ConfigMap's, because while its text is bad nobody knows the topology's name."""
    return owner_of(upper_uid, str(place))


def write(seen: Manifest | None, data: Mapping[str, str], ref: Ref, owner: Owner, uid: str) -> Write | None:
    """Give what has to be written so that the status holds `data`, None for nothing.

    `seen` is the ConfigMap as it is, `uid` that of the topology's. Raises NameTaken when it is another's. What `data`
    does not say stays as it is told, but for a text that is not refused any more: another engine may drive, and one
    that does not start knows nothing of what is in force.
    """
    if seen is None:
        return Write(create=_manifest({**_NOTHING_YET, **data}, ref, owner, uid))
    if not is_ours(seen, owner):
        raise NameTaken(
            f"ConfigMap {ref.namespace}/{ref.name} is not ours and is left alone, so the status cannot be told there: "
            "delete or rename it, or give the topology's ConfigMap another name"
        )
    changes = _changes(seen.get("data") or {}, data)
    marks = {} if annotations(seen).get(UPPER_UID) == uid else {"annotations": {UPPER_UID: uid}}
    if not changes and not marks:
        return None
    return Write(patch=Patch("merge-patch", {"metadata": {**as_read(seen), **marks}, "data": changes}))


def resumed(verdict: Verdict, seen: Manifest | None, owner: Owner) -> Verdict:
    """Give the verdict with the times that a status of ours tells with the same texts.

    They came into force, or were refused, before a restart, or by another engine a moment ago.
    """
    accepted, rejected = verdict
    if accepted is not None:
        accepted = accepted._replace(time=_time(seen, owner, ACCEPTED, accepted.text) or accepted.time)
    if rejected is not None:
        rejected = rejected._replace(time=_time(seen, owner, REJECTED, rejected.text) or rejected.time)
    return Verdict(accepted, rejected)


def _time(seen: Manifest | None, owner: Owner, part: str, text: Text) -> datetime | None:
    """Give the time that a status of ours tells with a text, None where it does not tell of that text."""
    if seen is None or not is_ours(seen, owner):
        return None
    try:
        told = orjson.loads(seen["data"][part])
        return moment_of(told["time"]) if told.get("sha256", "") == text.sha256 else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def in_force(seen: Manifest | None, owner: Owner) -> str:
    """Give the sha256 of the text that a status of ours tells to be in force, "" where it tells of none."""
    if seen is None or not is_ours(seen, owner):
        return ""
    try:
        return str(orjson.loads(seen["data"][ACCEPTED])["sha256"])
    except (KeyError, TypeError, ValueError):
        return ""


def is_told(seen: Manifest | None, owner: Owner, reading: Reading) -> bool:
    """Say whether a status of ours tells already what became of this very state."""
    part = ACCEPTED if reading.error is None else REJECTED
    data = seen.get("data") or {} if seen is not None else {}
    told = _time(seen, owner, part, reading.text) is not None and f'"{reading.text.version}"' in data[part]
    return told and data.get("state") == part.capitalize()


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Any]:
    """Give what a merge patch has to say: new values, and null for what is no longer true."""
    gone = {REJECTED: None} if REJECTED in before and REJECTED not in after else {}
    return {key: value for key, value in after.items() if before.get(key) != value} | gone


def _manifest(data: Mapping[str, str], ref: Ref, owner: Owner, uid: str) -> Manifest:
    return {
        "apiVersion": CONFIG_MAP.api,
        "kind": CONFIG_MAP.name,
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "labels": owner.label,
            "annotations": owner.signed(uid),
        },
        "data": dict(data),
    }
