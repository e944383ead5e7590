"""Isolation oracles: what hostile tenants must not read or change, as pure functions of stored objects.

Each function returns what is wrong. A marker of a tenant belongs on his own upper objects and in his own lower
namespace, and the markers of his Secrets and ConfigMaps are there only if one of his pods needs those. Lower objects of
other owners are not touched, except an object with all ownership marks in the place of an upper object: a tenant who
can write there could change that object himself.
"""

from collections.abc import Iterable, Iterator

import orjson

from bench.model.hostility.ledger import Ledger, is_marked, needs
from bench.model.hostility.markers import ABOVE, BELOW, TOKEN, Origin
from tensile.names import UPPER_NAMESPACE, UPPER_UID
from tensile.objects import (
    CONFIG_MAP,
    NAMESPACE,
    POD,
    SECRET,
    SERVICE_ACCOUNT,
    UPPER,
    Manifest,
    Ref,
    annotations,
    metadata,
    uid,
)

ALIAS = "kubernetes-upper"
EMPTY = "none"
"""The upper UID of an empty object that only occupies its name.

A pod that can do without the object must not get another owner's of that name.
"""
_COPIED = (SECRET, CONFIG_MAP)


def leaks(ref: Ref, raw: bytes, ledger: Ledger, now: float) -> Iterator[tuple[str, str]]:
    """Return what is wrong with each marker in a stored object that does not belong there, and the marker.

    Args:
        ref: the object's place.
        raw: the object as JSON.
        ledger: the record of the play.
        now: when the object was stored in this state.
    """
    for word, origin in ledger.markers.found(raw):
        why = _above(ref, raw, origin, ledger) if ref.cluster == UPPER else _below(ref, origin, ledger, now)
        if why:
            yield f"{ref} has {word} of {'/'.join(filter(None, origin))}: {why}", word


def _above(ref: Ref, raw: bytes, origin: Origin, ledger: Ledger) -> str:
    if origin.namespace != BELOW:
        return "" if ref.namespace == _tenant(origin, ledger) else "another tenant's object"
    if not ledger.setting.mapped or ref.namespace != ledger.setting.mapped:
        return "another tenant's object"
    node = orjson.loads(raw)["spec"].get("nodeName") if ref.kind == POD else ledger.setting.lower
    return "" if node == ledger.setting.lower else "a pod of another lower cluster"


def _below(ref: Ref, origin: Origin, ledger: Ledger, now: float) -> str:
    if origin.namespace == BELOW:
        is_his = (ref.cluster, ref.namespace) == (ledger.setting.lower, ledger.lower_namespaces.hostile_namespace())
        return "" if is_his else "another tenant's place"
    namespace = _tenant(origin, ledger)
    if ref.namespace != ledger.lower_namespaces.of(namespace, ref.cluster):
        return "not its place"
    if origin.kind == TOKEN:
        return "" if ref.name.endswith(origin.name) else "not where its token belongs"
    is_copied = origin.kind in {kind.name for kind in _COPIED}
    if is_copied and not ledger.is_or_was_needed(ref.cluster, namespace, (origin.kind, origin.name), now):
        return "no pod bound here asks for it"
    return ""


def _tenant(origin: Origin, ledger: Ledger) -> str:
    return ledger.setting.hostile if origin.namespace == ABOVE else origin.namespace


def misplaced(ref: Ref, manifest: Manifest, ledger: Ledger, now: float, *, is_new: bool) -> Iterator[str]:
    """Return what is wrong with a lower object of the engine: it is in a wrong place, or no pod needs it.

    Args:
        ref: the object's place.
        manifest: the object.
        ledger: the record of the play.
        now: when the object was stored in this state.
        is_new: whether it was created then; an existing object may be kept although no pod needs it any more.
    """
    upper_uid = annotations(manifest).get(UPPER_UID, "")
    if not upper_uid or ref.name == ALIAS or uid(manifest) in ledger.hostile:
        return
    kind, namespace, _ = ledger.uppers.get(upper_uid, ("", "", ""))
    if upper_uid == EMPTY and ref.kind in _COPIED:
        kind, namespace = "nothing", ledger.lower_namespaces.above(ref.cluster, ref.namespace)
        if manifest.get("data") or manifest.get("binaryData"):
            yield f"{ref} holds a name and is not empty"
    if not kind:
        yield f"{ref} is for {upper_uid}, which never was above"
    elif ref.kind == NAMESPACE:
        words = ledger.lower_namespaces.learn(ref.cluster, ref.name, annotations(manifest).get(UPPER_NAMESPACE, ""))
        yield from [words] if words else ()
    elif ref.namespace != ledger.lower_namespaces.of(namespace, ref.cluster):
        yield f"{ref} is for {kind} of {namespace}: not its place"
    elif is_new and not ledger.is_or_was_needed(ref.cluster, namespace, _reason(ref), now):
        yield f"{ref} is for {kind} of {namespace}: no pod bound here asks for it"


def _reason(ref: Ref) -> tuple[str, str]:
    """Return the need of a pod because of which an object exists."""
    by_name = ref.kind in (CONFIG_MAP, SERVICE_ACCOUNT) or (ref.kind == SECRET and not _holds_tokens(ref))
    return (ref.kind.name, ref.name) if by_name else (POD.name, "")


def _holds_tokens(ref: Ref) -> bool:
    return ref.name.startswith("upper-token-")


def touched(verb: str, ref: Ref, seen: Manifest, ledger: Ledger, *, is_wanted: bool) -> str:
    """Return what is wrong with a write of the engine to a lower object in its state at that moment, "" for nothing.

    Args:
        verb: the verb of the write.
        ref: the object's place.
        seen: the object.
        ledger: the record of the play.
        is_wanted: whether an upper object of that kind and name is to be mirrored there.
    """
    if ref in ledger.strangers and uid(ledger.strangers[ref]) == uid(seen):
        return f"{verb} {ref}: is a stranger's"
    if uid(seen) not in ledger.hostile:
        return ""
    is_mapped = bool(ledger.lower_namespaces.above(ref.cluster, ref.namespace))
    is_adopted = verb.startswith("patch") and ledger.setting.conflict == "adopt" and is_wanted
    if is_mapped and (uid(seen) in ledger.marked or is_adopted):
        return ""
    return f"{verb} {ref}: is a stranger's, {'without all our marks' if is_mapped else 'at no place'}"


def borrowed(ref: Ref, pod: Manifest, ledger: Ledger) -> Iterator[str]:
    """Return which objects a pod of the engine refers to that exist in its lower cluster only.

    Args:
        ref: the pod's place.
        pod: the pod as it was created.
        ledger: the record of the play.
    """
    if uid(pod) in ledger.hostile or UPPER_UID not in annotations(pod):
        return
    for kind, name in needs(pod):
        wanted = (ref.cluster, kind, ref.namespace, name)
        if any((one.cluster, one.kind.name, one.namespace, one.name) == wanted for one in ledger.strangers):
            yield f"{ref} is made with {kind} {name} of a stranger's"


def changed(objects: Iterable[tuple[Ref, Manifest | None]], ledger: Ledger) -> Iterator[str]:
    """Return which objects of other owners have changed.

    Args:
        objects: those of the ledger in their current state, None for one that is deleted.
        ledger: the record of the play.
    """
    for ref, now in objects:
        before = ledger.strangers[ref]
        if now is None or (uid(now), _version(now)) != (uid(before), _version(before)):
            yield f"{ref} is a stranger's and was touched"


def reached(upper: Manifest, target: tuple[str, str], found: Manifest | None, ledger: Ledger) -> str:
    """Return what is wrong with the lower pod that the kubelet API finds for an upper one, "" for nothing.

    Args:
        upper: the upper pod, bound to a lower cluster's node.
        target: namespace and name in that lower cluster.
        found: the pod that exists there, None for none.
        ledger: the record of the play.
    """
    meta, lower = metadata(upper), upper["spec"]["nodeName"]
    target_text = f"{meta['namespace']}/{meta['name']} is reached at {lower}: {'/'.join(target)}"
    if target != (ledger.lower_namespaces.of(meta["namespace"], lower), meta["name"]):
        return f"{target_text}: not its place"
    if found is None or ledger.setting.is_controlled(meta["namespace"], lower):
        return ""
    if uid(found) in ledger.hostile:
        return f"{target_text}: a forged pod"
    return "" if annotations(found).get(UPPER_UID) == meta["uid"] else f"{target_text}: another pod's"


def left(ref: Ref, manifest: Manifest, pods: Iterable[Manifest], ledger: Ledger, now: float) -> str:
    """Return what is wrong with a mirrored lower object once the engine has nothing to do any more, "" for nothing.

    Objects to which a pod there with all ownership marks refers are kept.

    Args:
        ref: the object's place.
        manifest: the object.
        pods: the pods of its namespace.
        ledger: the record of the play.
        now: the time.
    """
    if "deletionTimestamp" in metadata(manifest) or not is_marked(manifest, ledger.mark) or _holds_tokens(ref):
        return ""
    namespace = ledger.lower_namespaces.above(ref.cluster, ref.namespace)
    if not namespace or uid(manifest) in ledger.hostile:
        return ""
    need = (ref.kind.name, ref.name)
    ways = set(ledger.equivalent_needs(namespace, need))
    is_kept = any(ways & set(needs(pod)) for pod in pods if is_marked(pod, ledger.mark))
    if is_kept or ledger.needed_until(ref.cluster, namespace, need) > now:
        return ""
    return f"{ref} is left though no pod asks for it"


def _version(manifest: Manifest) -> str:
    return str(metadata(manifest).get("resourceVersion", ""))
