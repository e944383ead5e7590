"""The record of all objects that the clusters of a sequence ever stored: their creators, and when pods needed them.

The engine's own view is not used, so that a defect in that view cannot hide itself.
"""

from collections import defaultdict
from collections.abc import Iterator
from math import inf

from bench.kit.oracles import ENDED
from bench.model.hostility.markers import Markers
from bench.model.hostility.setting import LowerNamespaces, Setting
from bench.model.sequences.model import LOWERS
from tensile.names import FIELD_MANAGER, OWNER, UPPER_UID
from tensile.objects import (
    CLAIM,
    CONFIG_MAP,
    POD,
    SECRET,
    SERVICE_ACCOUNT,
    Manifest,
    Ref,
    annotations,
    labels,
    metadata,
    uid,
)

_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
Need = tuple[str, str]
"""Kind and name of an object in the pod's own namespace."""


class Ledger:
    """The record of a sequence.

    `hostile` holds the UIDs of lower objects that the hostile tenant created or changed, `marked` those of lower
    objects that ever had all ownership marks. Lower objects of other owners are kept as they were created. `uppers`
    maps the UIDs of upper objects to kind, namespace and name. `killed` holds the UIDs of upper pods whose lower pods
    were deleted by a client of their own tenant. `mark` is the engine's owner label. `blurred` is the last time at
    which no watch was late; since then the engine may not know the current state. It may act on an older state for
    `stale` seconds, because a write takes time.
    """

    def __init__(self, setting: Setting, mark: str, stale: float = 1.0) -> None:
        self._stale = stale
        self.setting = setting
        self.mark = mark
        self.markers = Markers(setting.tag.strip("-") or "x")
        self.lower_namespaces = LowerNamespaces(setting)
        self.hostile: set[str] = set()
        self.marked: set[str] = set()
        self.strangers: dict[Ref, Manifest] = {}
        self.uppers: dict[str, tuple[str, str, str]] = {}
        self.killed: set[str] = set()
        self.blurred = 0.0
        self._needed_by: defaultdict[tuple[str, str, Need], set[str]] = defaultdict(set)
        self._last_needed: dict[tuple[str, str, Need], float] = {}
        self._needs: dict[str, tuple[str, str, frozenset[Need]]] = {}
        self._pulls: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

    def note(self, ref: Ref, manifest: Manifest, now: float, *, gone: bool = False) -> None:
        """Record an upper object as it is stored, or its deletion."""
        self.uppers[uid(manifest)] = (ref.kind.name, ref.namespace, ref.name)
        if ref.kind == POD:
            self._note_pod(manifest, now, gone=gone)
        if ref.kind == SERVICE_ACCOUNT:
            for one in manifest.get("imagePullSecrets") or ():
                self._pulls[ref.namespace, one.get("name", "")].add(ref.name)

    def needed_until(self, lower: str, namespace: str, need: Need) -> float:
        """Return until when a pod on a lower cluster needed an object of its namespace: inf for now, -inf for never."""
        return max(self._needed_until(lower, namespace, one) for one in self.equivalent_needs(namespace, need))

    def equivalent_needs(self, namespace: str, need: Need) -> list[Need]:
        """Return the needs by which a pod can need an object: itself, and ServiceAccounts that pull images with it."""
        accounts = self._pulls.get((namespace, need[1]), set()) if need[0] == SECRET.name else ()
        return [need, *((SERVICE_ACCOUNT.name, one) for one in sorted(accounts))]

    def is_or_was_needed(self, lower: str, namespace: str, need: Need, now: float) -> bool:
        """Report whether the engine may regard an object as needed: it is, or was until a moment ago."""
        return self.needed_until(lower, namespace, need) >= min(self.blurred, now) - self._stale

    def _needed_until(self, lower: str, namespace: str, need: Need) -> float:
        place = (lower, namespace, need)
        return inf if self._needed_by.get(place) else self._last_needed.get(place, -inf)

    def _note_pod(self, pod: Manifest, now: float, *, gone: bool) -> None:
        node = pod["spec"].get("nodeName", "")
        asks = not gone and node in LOWERS and (pod.get("status") or {}).get("phase") not in ENDED
        before = self._needs.pop(uid(pod), ("", "", frozenset()))
        after = (node, metadata(pod)["namespace"], frozenset(needs(pod))) if asks else ("", "", frozenset[Need]())
        for need in before[2] - after[2]:
            place = (*before[:2], need)
            self._needed_by[place].discard(uid(pod))
            self._last_needed[place] = now
        for need in after[2]:
            self._needed_by[*after[:2], need].add(uid(pod))
        if asks:
            self._needs[uid(pod)] = after


def needs(pod: Manifest) -> Iterator[Need]:
    """Return what a pod needs; (Pod, "") represents the objects that every pod of a namespace needs."""
    spec = pod["spec"]
    yield POD.name, ""
    yield SERVICE_ACCOUNT.name, spec.get("serviceAccountName") or "default"
    for one in spec.get("imagePullSecrets") or ():
        yield SECRET.name, one.get("name", "")
    for container in (one for kind in _CONTAINERS for one in spec.get(kind) or ()):
        for source in container.get("envFrom") or ():
            yield from _named(source, "configMapRef", "secretRef")
        for variable in container.get("env") or ():
            yield from _named(variable.get("valueFrom") or {}, "configMapKeyRef", "secretKeyRef")
    for volume in spec.get("volumes") or ():
        for source in (volume, *((volume.get("projected") or {}).get("sources") or ())):
            yield from _mounted(source)


def _named(source: Manifest, config_map: str, secret: str) -> Iterator[Need]:
    for kind, field in ((CONFIG_MAP, config_map), (SECRET, secret)):
        if source.get(field):
            yield kind.name, source[field].get("name", "")


def _mounted(source: Manifest) -> Iterator[Need]:
    if "configMap" in source:
        yield CONFIG_MAP.name, source["configMap"].get("name", "")
    if "secret" in source:
        yield SECRET.name, source["secret"].get("secretName") or source["secret"].get("name", "")
    if "persistentVolumeClaim" in source:
        yield CLAIM.name, source["persistentVolumeClaim"].get("claimName", "")


def is_marked(manifest: Manifest, mark: str) -> bool:
    """Report whether an object has all ownership marks.

    They are the label, and the annotation written by the engine's field manager.
    """
    has_both = labels(manifest).get(OWNER) == mark and bool(annotations(manifest).get(UPPER_UID))
    return has_both and any(
        f"f:{UPPER_UID}" in entry.get("fieldsV1", {}).get("f:metadata", {}).get("f:annotations", {})
        for entry in metadata(manifest).get("managedFields") or ()
        if entry.get("manager") == FIELD_MANAGER and not entry.get("subresource")
    )
