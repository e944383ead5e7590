"""The final state of all clusters, in a form in which two runs can be compared.

Fields that differ from run to run without a meaning are removed: versions, times, addresses, the node that a lower
scheduler chose. UIDs are replaced by the names of their objects, so that a reference to an absent object, or to another
object of the same name, is a difference.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from bench.kit.oracles import Manifest
from tensile.names import ENGINE, OWNER, REPLACES, TRIED, UPPER_UID

Objects = Mapping[str, Mapping[str, list[Manifest]]]
"""The objects by cluster and then by resource ("pods", "configmaps", …)."""
State = dict[str, Any]
"""The comparable form of each object that exists, by "CLUSTER RESOURCE NAMESPACE/NAME"."""

_META = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "selfLink")
_PASSING = frozenset(
    {
        "lastTransitionTime", "lastHeartbeatTime", "lastProbeTime", "lastUpdateTime", "startTime", "startedAt",
        "finishedAt", "renewTime", "podIP", "podIPs", "hostIP", "hostIPs", "containerID", "observedGeneration",
        "message", "images", "daemonEndpoints",
    }
)  # fmt: skip
_VARYING_ANNOTATIONS = frozenset({REPLACES, TRIED, ENGINE})
"""Annotations that refer to deleted pods or name an engine: only their presence is compared, not their values."""
_END = "deletionTimestamp"
_RANDOM = re.compile(rb"kube-api-access-[a-z0-9]{5}")


def state_of(objects: Objects, renamed: Mapping[str, str]) -> State:
    """Return the comparable form of what exists; `renamed` replaces names that differ from run to run.

    Args:
        objects: of all clusters.
        renamed: e.g. the namespace of this run, and the same for every run.
    """
    names = {uid: f"UID of {place}" for place, uid in _places(objects)} | dict(renamed)
    found: State = {}
    for cluster, kinds in objects.items():
        for resource, manifests in kinds.items():
            for manifest in manifests:
                plain = orjson.loads(_replaced(orjson.dumps(_stripped(cluster, resource, manifest)), names))
                found[_replaced(_place(cluster, resource, manifest).encode(), names).decode()] = plain
    return found


def differences(reference: State, found: State) -> list[str]:
    """Return the differences between a state and the reference, one per line."""
    found_differences = [f"{place} is not there" for place in sorted(reference.keys() - found.keys())]
    found_differences += [f"{place} is there" for place in sorted(found.keys() - reference.keys())]
    for place in sorted(reference.keys() & found.keys()):
        found_differences += [f"{place}: {failure}" for failure in _unlike(reference[place], found[place], "")]
    return found_differences


def strays(objects: Objects, upper: str, mark: str) -> list[str]:
    """No object of this owner in a lower cluster refers to an upper object that does not exist.

    Args:
        objects: of all clusters; those of the upper cluster must include every kind that is copied.
        upper: the upper cluster's name in them.
        mark: the owner's mark.
    """
    known = {one["metadata"]["uid"] for manifests in objects[upper].values() for one in manifests}
    return [
        f"{_place(cluster, resource, one)} is for an upper object that is not there"
        for cluster, kinds in objects.items()
        for resource, manifests in (kinds.items() if cluster != upper else ())
        for one in manifests
        if (one["metadata"].get("labels") or {}).get(OWNER) == mark
        and (one["metadata"].get("annotations") or {}).get(UPPER_UID) not in known
    ]


def touched(before: Iterable[Manifest], after: Iterable[Manifest], where: str) -> list[str]:
    """No canary was changed or deleted: each still exists as the same object in the same version."""
    now = {(one["metadata"]["uid"], one["metadata"]["resourceVersion"]) for one in after}
    return [
        f"{where}: {one['metadata']['name']} is not ours and was touched"
        for one in before
        if (one["metadata"]["uid"], one["metadata"]["resourceVersion"]) not in now
    ]


def _places(objects: Objects) -> Iterable[tuple[str, str]]:
    for cluster, kinds in objects.items():
        for resource, manifests in kinds.items():
            for manifest in manifests:
                yield _place(cluster, resource, manifest), manifest["metadata"]["uid"]


def _place(cluster: str, resource: str, manifest: Manifest) -> str:
    meta = manifest["metadata"]
    return f"{cluster} {resource} {meta.get('namespace', '')}/{meta['name']}"


def _stripped(cluster: str, resource: str, manifest: Manifest) -> Any:
    meta = {key: value for key, value in manifest["metadata"].items() if key not in _META}
    notes = meta.get("annotations") or {}
    if _VARYING_ANNOTATIONS & notes.keys():
        meta["annotations"] = {key: "" if key in _VARYING_ANNOTATIONS else value for key, value in notes.items()}
    found = _lasting({**manifest, "metadata": meta})
    if resource == "pods" and cluster != "upper":
        found.get("spec", {}).pop("nodeName", None)
    return found


def _lasting(value: Any) -> Any:
    """Remove fields that differ between runs; a deletion time becomes True, and conditions are sorted."""
    if isinstance(value, dict):
        return {key: key == _END or _lasting(one) for key, one in value.items() if key not in _PASSING}
    if isinstance(value, list):
        found = [_lasting(one) for one in value]
        return (
            sorted(found, key=orjson.dumps) if all(isinstance(one, dict) and "type" in one for one in found) else found
        )
    return value


def _replaced(text: bytes, names: Mapping[str, str]) -> bytes:
    for old, new in names.items():
        text = text.replace(old.encode(), new.encode())
    return _RANDOM.sub(b"kube-api-access", text)


def _unlike(reference: Any, found: Any, path: str) -> Iterable[str]:
    """Yield where two values differ, descending as long as both are mappings."""
    if isinstance(reference, dict) and isinstance(found, dict):
        for key in sorted(reference.keys() | found.keys()):
            yield from _unlike(reference.get(key), found.get(key), f"{path}/{key}")
    elif reference != found:
        yield f"{path or '/'} is {found!r} and not {reference!r}"
