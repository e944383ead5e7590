"""What the upper cluster's users are told of a claim: its size and its growth from below, and what stands in the way.

Kubernetes' own controllers above bind claims to volumes; sizes, and the conditions that speak of resizing, are for
whoever resizes, which here is the lower cluster.
"""

from datetime import datetime
from typing import Any

from tensile.cache import Entry
from tensile.cluster import Patch
from tensile.names import LOWER, MIRRORED
from tensile.objects import CLAIM, UPPER, Manifest, Ref, annotations, metadata, timestamp, uid
from tensile.reconcile.claims import SELECTED_NODE
from tensile.reconcile.desired import Patched, Told, Wanted
from tensile.world import Problem

PROVISIONING_FAILED = "ProvisioningFailed"
"""The reason that Kubernetes' provisioners give."""
_COPIED = ("capacity", "allocatedResources", "allocatedResourceStatuses")
_FENCE = ("uid", "resourceVersion")
_RESIZING = ("Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError")


def told_above(claim: Manifest, copy: Entry | None, problem: Problem | None, now: datetime) -> tuple[Wanted, ...]:
    """Have the upper claim's status say what is below, and a problem with an event beside it; nothing where it does.

    `copy` is the lower claim, None where there is none.
    """
    seen: Manifest = claim.get("status") or {}
    below = copy.manifest() if copy is not None and copy.facts.bound else {}
    fields = _sizes(seen, below.get("status") or {}) if seen.get("phase") == "Bound" and below else {}
    conditions = _conditions(seen.get("conditions") or [], below.get("status"), problem, timestamp(now))
    changed = {field: value or None for field, value in {**fields, "conditions": conditions}.items()}
    changed = {field: value for field, value in changed.items() if value != (seen.get(field) or None)}
    if not changed:
        return ()
    meta = metadata(claim)
    body = {"metadata": {field: meta[field] for field in _FENCE}, "status": changed}
    reason = problem.message if problem else "the lower claim says so"
    wanted = Patched(_ref(claim), Patch("merge-patch", body), reason, "status")
    return (wanted, *(_event(claim, problem) if problem and "conditions" in changed else ()))


def given_up(claim: Manifest, problem: Problem) -> tuple[Wanted, ...]:
    """Let the upper scheduler choose another node for a claim, as provisioners do that cannot make a volume."""
    meta = metadata(claim)
    fence = [{"op": "replace", "path": f"/metadata/{field}", "value": meta[field]} for field in _FENCE]
    taken = {"op": "remove", "path": f"/metadata/annotations/{SELECTED_NODE.replace('/', '~1')}"}
    reason = f"no volume can be made there: {problem.message}"
    told = Told(_ref(claim), uid(claim), PROVISIONING_FAILED, problem.message)
    return (told, Patched(_ref(claim), Patch("json-patch", [*fence, taken]), reason, shown=True))


def settled(claim: Manifest, lower: str) -> Wanted:
    """Note on a claim in which lower it is about to be made, so that whoever comes after us makes it nowhere else."""
    return _noted(claim, lower, f"its volume is to be in lower cluster {lower}")


def unsettled(claim: Manifest, lower: str) -> Wanted:
    """Take back the note that a claim is about to be made in a lower: it is not there, and will not be made there."""
    return _noted(claim, None, f"its volume is not to be in lower cluster {lower} any more")


def _noted(claim: Manifest, lower: str | None, reason: str) -> Wanted:
    meta = metadata(claim)
    body = {"metadata": {**{field: meta[field] for field in _FENCE}, "annotations": {LOWER: lower}}}
    return Patched(_ref(claim), Patch("merge-patch", body), reason, shown=True)


def pinned(claim: Manifest, node: str) -> tuple[Wanted, ...]:
    """Have a bound claim name the node where its volume is: a scheduler that minds no volumes is told by that."""
    notes, meta = annotations(claim), metadata(claim)
    if SELECTED_NODE in notes or not notes:
        return ()
    fence = {"op": "replace", "path": "/metadata/uid", "value": meta["uid"]}
    added = {"op": "add", "path": f"/metadata/annotations/{SELECTED_NODE.replace('/', '~1')}", "value": node}
    reason = f"its volume is on node {node}"
    return (Patched(_ref(claim), Patch("json-patch", [fence, added]), reason, shown=True),)


def _sizes(seen: Manifest, below: Manifest) -> dict[str, Any]:
    """Give the fields that speak of sizes; a map that loses keys says so with nulls."""
    found: dict[str, Any] = {}
    for field in _COPIED:
        old, new = seen.get(field) or {}, below.get(field) or {}
        if old != new:
            found[field] = new and {**dict.fromkeys(old), **new}
    return found


def _conditions(seen: list[Manifest], below: Manifest | None, problem: Problem | None, now: str) -> list[Manifest]:
    """Give all conditions as they should be: the lower's word on resizing, ours on problems, others' as they are."""
    kept = [one for one in seen if one["type"] != MIRRORED and (below is None or one["type"] not in _RESIZING)]
    sizing = [one for one in (below or {}).get("conditions") or () if one["type"] in _RESIZING]
    return _in_order(seen, [*kept, *sizing, *([_complaint(seen, problem, now)] if problem else [])])


def _in_order(seen: list[Manifest], wanted: list[Manifest]) -> list[Manifest]:
    """Keep the order in which the conditions stand, so that an equal list is equal."""
    places = {one["type"]: place for place, one in enumerate(seen)}
    return sorted(wanted, key=lambda one: places.get(one["type"], len(places)))


def _complaint(seen: list[Manifest], problem: Problem, now: str) -> Manifest:
    old = next((one for one in seen if one["type"] == MIRRORED), {})
    made = {"type": MIRRORED, "status": "False", "reason": problem.reason, "message": problem.message}
    return {**made, "lastProbeTime": None, "lastTransitionTime": old.get("lastTransitionTime") or now}


def _event(claim: Manifest, problem: Problem) -> tuple[Told, ...]:
    return (Told(_ref(claim), uid(claim), problem.reason, problem.message),)


def _ref(claim: Manifest) -> Ref:
    meta = metadata(claim)
    return Ref(UPPER, CLAIM, meta["namespace"], meta["name"])
