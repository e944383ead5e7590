"""What has to be written so that an upper pod's status says something: the body of a strategic merge patch.

Only fields and condition types that are named are touched, since others write to the same status: readiness gates
above, the scheduler, the taint manager. Lists and maps that Kubernetes merges are replaced, or an old IP would stay
beside a new one and be refused.
"""

from collections.abc import Container, Mapping
from typing import Any

from tensile.objects import Manifest

_MERGED_LISTS = frozenset({"podIPs", "hostIPs", "addresses"})
_DIRECTIVE = "$patch"
_REPLACE = {_DIRECTIVE: "replace"}

Fields = Mapping[str, Any]
"""Status fields as they should be; an empty value: absent."""

Conditions = Mapping[str, Manifest | None]
"""Conditions as they should be, by type; None: absent. Types that are not named stay as they are."""


def status_of(pod: Manifest) -> Manifest:
    """Give a pod's status, {} when it has none."""
    status: Manifest = pod.get("status") or {}
    return status


def conditions_of(pod: Manifest) -> dict[str, Manifest]:
    """Give a pod's conditions by type, without the nulls that the API writes for times not set."""
    present = status_of(pod).get("conditions") or ()
    return {one["type"]: {field: value for field, value in one.items() if value is not None} for one in present}


def unplaced(pod: Manifest, reasons: Container[str]) -> Manifest | None:
    """Give the condition by which a scheduler found no node for a pod, for one of these reasons; None for none."""
    said = conditions_of(pod).get("PodScheduled") or {}
    return said if said.get("status") == "False" and said.get("reason") in reasons else None


def status_patch(upper_pod: Manifest, fields: Fields, conditions: Conditions) -> Manifest:
    """Give the patch of `status` that makes it so, {} when it is so already."""
    seen = status_of(upper_pod)
    patch = {
        field: replacing(field, value, seen.get(field))
        for field, value in fields.items()
        if _differs(value or None, seen.get(field) or None)
    }
    if changed := _condition_patches(conditions_of(upper_pod), conditions):
        patch["conditions"] = changed
    return patch


def _differs(value: Any, seen: Any) -> bool:
    """Compare, but for nulls: the API writes one for a time that is not set, and not every version does."""
    if value == seen or value is None or seen is None:
        return bool(value != seen)
    return bool(_bare(value) != _bare(seen))


def _bare(value: Any) -> Any:
    """Give a value without the nulls in it."""
    if isinstance(value, dict):
        return {field: _bare(inner) for field, inner in value.items() if inner is not None}
    return [_bare(one) for one in value] if isinstance(value, list) else value


def replacing(field: str, value: Any, seen: Any) -> Any:
    """Give what to send for a field: null to take it away, and word to replace where Kubernetes would merge."""
    if not value:
        return None
    if seen and field in _MERGED_LISTS:
        return [_REPLACE, *value]
    return {**value, **_REPLACE} if seen and isinstance(value, dict) else value


def _condition_patches(seen: Mapping[str, Manifest], wanted: Conditions) -> list[Manifest]:
    """Give the list elements that turn the conditions that are there into those that are wanted."""
    pairs = ((kind, seen.get(kind), condition) for kind, condition in wanted.items())
    return [patch for kind, old, new in pairs if (patch := _condition_patch(kind, old, new))]


def _condition_patch(kind: str, old: Manifest | None, new: Manifest | None) -> Manifest | None:
    """Give the list element that turns one condition into another.

    Kubernetes keeps an observedGeneration that a patch takes away, so none is taken away.
    """
    if new is None:
        return None if old is None else {"type": kind, _DIRECTIVE: "delete"}
    if old is None:
        return new
    stays = {"observedGeneration": old["observedGeneration"]} if "observedGeneration" in old else {}
    target = stays | new
    return None if target == old else {field: None for field in old if field not in target} | target
