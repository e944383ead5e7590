"""Tolerations: those that a pod bound to a virtual node needs above, and those that go down with it.

An engine that is down lets its node leases lapse, and Kubernetes then evicts after 300 s what does not tolerate it for
longer. Whether a pod leaves an unreachable cluster is for the topology to say, so pods on virtual nodes tolerate a
node that is not ready or unreachable without a limit. Below, real nodes fail, and the usual limits are wanted.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tensile.objects import Manifest
from tensile.taints import tolerates

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
_NO_EXECUTE = "NoExecute"
_LAPSES = tuple({"key": key, "effect": _NO_EXECUTE} for key in (NOT_READY, UNREACHABLE))


def tolerations_for_upper(upper_pod: Manifest, taints: Iterable[Mapping[str, Any]] = ()) -> list[Manifest] | None:
    """Give the tolerations that an upper pod should have, None when it has them; `taints` are to be tolerated too.

    Kubernetes allows a bound pod's tolerations to lose or change their seconds and to gain company, never to go. The
    first one that matches a taint decides how long it is tolerated, so where that one is limited and meant for more
    taints than these two, an unlimited one is put before it.
    """
    present: list[Manifest] = upper_pod["spec"].get("tolerations") or []
    freed = [_freed(toleration) for toleration in present]
    before = [_unlimited(taint) for taint in _LAPSES if _is_limited(_first(freed, taint))]
    after = [_unlimited(taint) for taint in _LAPSES if _first(freed, taint) is None]
    wanted = before + freed + after + lacking_for(freed, taints)
    return None if wanted == present else wanted


def tolerations_on_admission(present: list[Manifest], taints: Iterable[Mapping[str, Any]]) -> list[Manifest]:
    """Give the tolerations that a pod is to be created with, which has no node yet.

    Those of a node that is not ready or unreachable become unlimited, and are there for all to see, also where another
    one covers them; then come those of the virtual nodes' `taints` that the pod does not tolerate yet.
    """
    freed = [_unlimited(one) if _is_of_lapse(one) else one for one in present]
    lacking = [taint for taint in _LAPSES if not any(_names(one, taint) for one in freed)]
    before = [_unlimited(taint) for taint in lacking if _is_limited(_first(freed, taint))]
    after = [_unlimited(taint) for taint in lacking if not _is_limited(_first(freed, taint))]
    return before + freed + after + lacking_for(freed, taints)


def lacking_for(present: Iterable[Manifest], taints: Iterable[Mapping[str, Any]]) -> list[Manifest]:
    """Give the tolerations of taints that are not tolerated by what is present."""
    found = tuple(present)
    lacking = [taint for taint in taints if not any(tolerates(one, taint) for one in found)]
    return [toleration_of(taint) for taint in lacking]


def toleration_of(taint: Mapping[str, Any]) -> Manifest:
    """Give the toleration of just that taint."""
    if taint.get("value"):
        return {"key": taint["key"], "operator": "Equal", "value": taint["value"], "effect": taint["effect"]}
    return {"key": taint["key"], "operator": "Exists", "effect": taint["effect"]}


def for_lower(tolerations: Iterable[Manifest], taints: Iterable[Mapping[str, Any]]) -> list[Manifest]:
    """Give the tolerations that mean something below.

    Those of the virtual nodes' own taints do not, nor do the unlimited ones of a lapsed node: admission below adds its
    own limits where these are missing.
    """
    above = tuple(taints)
    return [kept for kept in tolerations if not _is_for_upper(kept, above)]


def subject(toleration: Mapping[str, Any]) -> tuple[str, ...]:
    """Give what tells tolerations apart: all but the seconds, which Kubernetes lets change."""
    return tuple(toleration.get(field) or "" for field in ("key", "operator", "value", "effect"))


def _is_for_upper(toleration: Manifest, taints: tuple[Mapping[str, Any], ...]) -> bool:
    """Say whether a toleration means something above only."""
    key = toleration.get("key")
    if not key:
        return False
    if key in (NOT_READY, UNREACHABLE):
        return "tolerationSeconds" not in toleration and tolerates(toleration, {"key": key, "effect": _NO_EXECUTE})
    return any(tolerates(toleration, taint) for taint in taints)


def _is_of_lapse(toleration: Manifest) -> bool:
    """Say whether a toleration is for evictions from a lapsed node alone, and ends after some seconds."""
    return any(_names(toleration, taint) for taint in _LAPSES) and _is_limited(toleration)


def _names(toleration: Manifest, taint: Mapping[str, str]) -> bool:
    """Say whether a toleration is for that taint by its key."""
    return toleration.get("key") == taint["key"] and toleration.get("effect") in (_NO_EXECUTE, "", None)


def _freed(toleration: Manifest) -> Manifest:
    """Take the limit off a toleration that is for a lapsed node alone."""
    if toleration.get("key") in (NOT_READY, UNREACHABLE) and _is_limited(toleration):
        return {field: value for field, value in toleration.items() if field != "tolerationSeconds"}
    return toleration


def _is_limited(toleration: Manifest | None) -> bool:
    """Say whether a toleration ends after some seconds."""
    return toleration is not None and toleration.get("tolerationSeconds") is not None


def _first(tolerations: list[Manifest], taint: Mapping[str, str]) -> Manifest | None:
    """Give the toleration that decides about a taint: the first that matches, as in Kubernetes."""
    return next((toleration for toleration in tolerations if tolerates(toleration, taint)), None)


def _unlimited(taint: Mapping[str, Any]) -> Manifest:
    """Make the toleration that holds a taint off for ever."""
    return {"key": taint["key"], "operator": "Exists", "effect": _NO_EXECUTE}
