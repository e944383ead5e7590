"""What the engine asks about a pod so often that it is taken out once, when the pod comes.

With these, most events are decided without decoding the pod again, and the caches' indexes need nothing else.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import orjson

from tensile.cache import Entry, Kept
from tensile.names import OWNER, UPPER_UID
from tensile.objects import Manifest, annotations, labels, metadata
from tensile.reconcile.references import Reference, references

_TERMINAL = ("Succeeded", "Failed")
_NOBODY_ASKED = ("DeletionByTaintManager", "DeletionByPodGC")


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """One pod of either side.

    `owner` and `upper_uid` are our marks ("" above). `unasked` is whether Kubernetes itself ended it because of
    its node.
    `ran` is whether containers of it have been seen.
    """

    owner: str
    upper_uid: str
    terminal: bool
    terminating: bool
    unasked: bool
    ran: bool
    references: frozenset[Reference]


def digest(raw: bytes) -> Kept:
    """Keep the pod and its facts."""
    pod = orjson.loads(raw)
    return Kept(raw, facts_of(pod))


def facts_of(pod: Manifest) -> PodFacts:
    """Take the facts out of a decoded pod."""
    status: dict[str, Any] = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    return PodFacts(
        owner=labels(pod).get(OWNER, ""),
        upper_uid=annotations(pod).get(UPPER_UID, ""),
        terminal=phase in _TERMINAL,
        terminating="deletionTimestamp" in metadata(pod),
        unasked=_disruption(status) in _NOBODY_ASKED,
        ran=phase != "Pending" or bool(status.get("containerStatuses")),
        references=references(pod),
    )


def by_namespace(entry: Entry) -> Iterator[str]:
    """Index pods by namespace."""
    yield entry.namespace


def by_reference(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """Index pods by (kind, namespace, name) of what they refer to."""
    for reference in entry.facts.references:
        yield (reference.kind, entry.namespace, reference.name)


INDEXES = {"namespace": by_namespace, "reference": by_reference}


def _disruption(status: dict[str, Any]) -> str:
    for condition in status.get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return str(condition.get("reason", ""))
    return ""
