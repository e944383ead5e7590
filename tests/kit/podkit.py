"""Shared parts of the pod tests: small pods, a lower context, and a strategic merge like the apiserver's."""

from typing import Any

from tensile.kubelet.pods.lower_context import LowerContext
from tensile.names import owner_of

Manifest = dict[str, Any]

OWNER = owner_of("11111111-upper", "demo")
NOW = "2026-03-01T12:00:00Z"
EARLIER = "2026-03-01T11:00:00Z"
MERGE_KEYS = {"conditions": "type", "podIPs": "ip", "hostIPs": "ip", "resourceClaimStatuses": "name"}


def lower_context(**given: Any) -> LowerContext:
    """Make a lower context: namespace default of a lower behind virtual node vk-a, with fields replaced."""
    fields = {"owner": OWNER, "node_name": "vk-a", "namespace": "default", "namespace_uid": "ns-uid"}
    return LowerContext(**(fields | given))


def pod(spec: Manifest | None = None, status: Manifest | None = None, **meta: Any) -> Manifest:
    """Make an upper pod with one container "main", bound to vk-a; metadata, spec and status are merged over that."""
    basis = {"nodeName": "vk-a", "containers": [{"name": "main", "image": "app:1"}]}
    made = {"metadata": {"name": "web", "namespace": "default", "uid": "uid-1", **meta}, "spec": basis | (spec or {})}
    return made | ({"status": status} if status is not None else {})


def make_lower_pod(status: Manifest, **meta: Any) -> Manifest:
    """Make a lower pod with a status."""
    return {"metadata": {"name": "web", "namespace": "default", "uid": "lower-1", **meta}, "status": status}


def stored_condition(kind: str, status: str = "True", **fields: Any) -> Manifest:
    """Make a condition as the API stores it."""
    return {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": EARLIER} | fields


def running(name: str = "main", **fields: Any) -> Manifest:
    """Make the status of a container that runs."""
    return {"name": name, "ready": True, "state": {"running": {"startedAt": EARLIER}}} | fields


def exited(name: str = "main", code: int = 0) -> Manifest:
    """Make the status of a container that ended."""
    return {"name": name, "ready": False, "state": {"terminated": {"exitCode": code, "finishedAt": EARLIER}}}


def conditions(body: Manifest | None) -> dict[str, Manifest]:
    """Return the conditions of a patch or a pod by type."""
    return {one["type"]: one for one in ((body or {}).get("status") or {}).get("conditions", [])}


def patched(upper_pod: Manifest, body: Manifest) -> Manifest:
    """Return the pod as the apiserver stores it after a strategic merge patch of its status."""
    return {**upper_pod, "status": merged(upper_pod.get("status") or {}, body["status"])}


def merged(original: Manifest, patch: Manifest) -> Manifest:
    """Merge maps as the API does: null removes, lists are merged by their merge key, "$patch: replace" replaces."""
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    result = dict(original)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merged(result.get(key) or {}, value)
        elif isinstance(value, list) and key in MERGE_KEYS:
            result[key] = merged_list(result.get(key) or [], value, MERGE_KEYS[key])
        else:
            result[key] = value
    return result


def merged_list(original: list[Manifest], patch: list[Manifest], merge_key: str) -> list[Manifest]:
    """Merge a list by the field that identifies its elements."""
    plain = [one for one in patch if "$patch" not in one]
    if any(one.get("$patch") == "replace" for one in patch):
        return plain
    gone = {one[merge_key] for one in patch if one.get("$patch") == "delete"}
    found = {one[merge_key]: one for one in original if one[merge_key] not in gone}
    for one in plain:
        found[one[merge_key]] = merged(found.get(one[merge_key]) or {}, one)
    return list(found.values())
