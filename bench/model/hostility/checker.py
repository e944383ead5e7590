"""The checker of a sequence, in memory or real: applies the oracles to all stored objects and keeps the failures.

It receives each object when it is stored, in any order in which clusters could deliver it, and each write of the engine
with the state of the object before.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import orjson

from bench.model.hostility import lateness, oracles
from bench.model.hostility.ledger import Ledger, is_marked
from bench.model.hostility.setting import Setting
from tensile.objects import (
    CLAIM,
    CONFIG_MAP,
    ENDPOINT_SLICE,
    EVENT,
    NAMESPACE,
    POD,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    UPPER,
    Kind,
    Manifest,
    Ref,
    metadata,
    uid,
)

KINDS = (
    NAMESPACE, POD, SECRET, CONFIG_MAP, SERVICE_ACCOUNT, SERVICE, ENDPOINT_SLICE, CLAIM, ROLE, ROLE_BINDING, EVENT,
)  # fmt: skip
"""The kinds that are checked."""
Find = Callable[[Ref], Manifest | None]


class IsolationChecker:
    """Applies the oracles; `wrong` holds the failures in the order of their discovery, `ledger` the record."""

    def __init__(self, setting: Setting, mark: str, stale: float = 1.0) -> None:
        self.ledger = Ledger(setting, mark, stale)
        self.lateness = lateness.Lateness()
        self.wrong: dict[str, None] = {}
        self._reported: set[tuple[Ref, str]] = set()
        self._known: set[str] = set()

    def report(self, failures: Iterable[str]) -> None:
        """Record failures; "" is none."""
        self.wrong |= dict.fromkeys(filter(None, failures))

    def check_stored(self, ref: Ref, manifest: Manifest, now: float, *, gone: bool = False) -> None:
        """Check an object as it is stored, or record its deletion."""
        if ref.cluster == UPPER:
            self.ledger.note(ref, manifest, now, gone=gone)
        elif is_marked(manifest, self.ledger.mark):
            self.ledger.marked.add(uid(manifest))
        if gone:
            return
        self._read(ref, orjson.dumps(manifest), now)
        if ref.cluster != UPPER:
            is_new = uid(manifest) not in self._known
            self._known.add(uid(manifest))
            self.report(oracles.misplaced(ref, manifest, self.ledger, now, is_new=is_new))
            if is_new and ref.kind == POD:
                self.report(oracles.borrowed(ref, manifest, self.ledger))

    def _read(self, ref: Ref, raw: bytes, now: float) -> None:
        """Search an object for markers that do not belong there; one that it already had is reported only once."""
        for failure, marker in oracles.leaks(ref, raw, self.ledger, now):
            if (ref, marker) not in self._reported:
                self.report([failure])
        self._reported |= {(ref, marker) for marker, _ in self.ledger.markers.found(raw)}

    def check_write(self, verb: str, ref: Ref, seen: Manifest, find: Find) -> None:
        """Check a write of the engine to a lower object; `find` returns objects in their current state."""
        above = self.ledger.lower_namespaces.above(ref.cluster, ref.namespace)
        is_wanted = bool(above) and find(Ref(UPPER, ref.kind, above, ref.name)) is not None
        self.report([oracles.touched(verb, ref, seen, self.ledger, is_wanted=is_wanted)])

    def check_state(self, state: lateness.ObservedState, now: float, *, blurred: bool) -> None:
        """Check what is due and what is lost; while `blurred`, the engine cannot know the state, and nothing is due."""
        if blurred:
            self.lateness.reset()
        else:
            self.ledger.blurred = now
        self.report(self.lateness.update(() if blurred else lateness.due(state, self.ledger), now))
        self.report(lateness.lost(state, self.ledger))

    def check_final_state(self, below: Mapping[str, Mapping[Kind, list[Manifest]]], find: Find, now: float) -> None:
        """Check the objects in the lower clusters once the engine has nothing to do any more."""
        self.report(oracles.changed(((ref, find(ref)) for ref in self.ledger.strangers), self.ledger))
        for lower, held in below.items():
            for kind in (SECRET, CONFIG_MAP, SERVICE_ACCOUNT):
                self.report(self._left(lower, kind, held, now))

    def _left(self, lower: str, kind: Kind, held: Mapping[Kind, list[Manifest]], now: float) -> Iterator[str]:
        for one in held[kind]:
            ref = Ref(lower, kind, metadata(one)["namespace"], metadata(one)["name"])
            beside = [pod for pod in held[POD] if metadata(pod)["namespace"] == ref.namespace]
            yield oracles.left(ref, one, beside, self.ledger, now)
