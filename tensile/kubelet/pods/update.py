"""Update the spec of a running lower pod from its upper pod: one write for each kind of change.

Kubernetes allows four kinds: images and deadline, tolerations, resources by the resize subresource, and ephemeral
containers by theirs. They are separate writes, so that a refused one does not hold back the others: a lower policy that
forbids an image must not block a debug container. What is refused is reported on the upper pod, which runs on. Only
what the upper spec names is compared: defaults and limits added by lower admission stay, and so does an image that
admission put in the place of ours. Bodies are strategic merge patches without preconditions, None where nothing is to
be done; each write adds the lower pod's UID.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from tensile.kube.cluster import Patch
from tensile.kubelet.pods.conditions import condition
from tensile.kubelet.pods.lower_context import LowerContext, lower_tolerations
from tensile.kubelet.pods.projection import LISTS, image_digest, note_of_images, noted_images
from tensile.kubelet.pods.service_account import debug_containers
from tensile.names import SYNCED, WRITTEN_IMAGES, EventReason, ProblemReason
from tensile.objects import Manifest, Ref, metadata, timestamp
from tensile.reconcile.desired import Patched
from tensile.reconcile.ownership import others_wrote
from tensile.reconcile.pods.index import PodView
from tensile.reconcile.pods.scheduling import subject
from tensile.reconcile.world import Problem
from tensile.resources import parse

_AMOUNTS = ("requests", "limits")
CHANGE_NOT_APPLIED: EventReason = "ChangeNotApplied"
"""On a pod: the lower cluster refuses a change of the pod; condition `tensile-kube.io/Synced` has the reason.
Remedy: undo the change, or remove the cause that the message names."""
MODIFIED_IN_LOWER: ProblemReason = "ModifiedInLower"
"""Another client changed the lower pod, and Kubernetes does not allow the change to be reverted. Remedy:
delete the pod to have it created again as the upper cluster has it."""
_RESIZE = "resize"
_DEBUG = "ephemeralcontainers"
_MAX_MESSAGE = 1024


def lower_pod_updates(upper_pod: Manifest, lower_pod: Manifest, ref: Ref, context: LowerContext) -> list[Patched]:
    """Return the writes that update the lower pod (`ref`) to the upper pod's spec; [] without differences."""
    found = (
        ("", image_patch(upper_pod, lower_pod), "images or activeDeadlineSeconds differ from the upper pod's"),
        ("", toleration_patch(upper_pod, lower_pod, context), "tolerations were added to the upper pod"),
        (_RESIZE, resize_patch(upper_pod, lower_pod), "resources differ from the upper pod's"),
        (_DEBUG, ephemeral_patch(upper_pod, lower_pod, context), "ephemeral containers were added to the upper pod"),
    )
    return [
        Patched(ref, _fenced_patch(body, lower_pod), reason, subresource, in_plan=True, independent=True)
        for subresource, body, reason in found
        if body is not None
    ]


def _fenced_patch(body: Manifest, lower_pod: Manifest) -> Patch:
    """Return the patch with the pod's UID; a list that is replaced whole must not have changed since."""
    meta = metadata(lower_pod)
    fence = {"uid": meta["uid"]}
    if "tolerations" in body["spec"]:
        fence["resourceVersion"] = meta["resourceVersion"]
    return Patch("strategic-merge-patch", {**body, "metadata": {**body.get("metadata", {}), **fence}})


def changes_images(change: Patched) -> bool:
    """Report whether a write of `lower_pod_updates` sends images, and with them the note of what was sent."""
    return "metadata" in change.patch.body and "annotations" in change.patch.body["metadata"]


def adds_containers(change: Patched) -> bool:
    """Report whether a write of `lower_pod_updates` adds ephemeral containers, which may refer to further objects."""
    return change.subresource == _DEBUG


def sync_condition(
    upper: PodView, problem: Problem | None, lower: str, now: datetime, *, waiting: bool
) -> Manifest | None:
    """Return the condition that says why a change is not in `lower`; None where it should be absent.

    While a change is being applied (`waiting`) and no problem is known, the condition stays as it is.
    """
    if problem is None:
        return upper.conditions.get(SYNCED) if waiting else None
    message = f"a change of this pod is not applied in lower cluster {lower}: {problem.message}"[:_MAX_MESSAGE]
    return condition(upper, SYNCED, "False", reason=problem.reason, message=message, now=timestamp(now))


def image_patch(upper_pod: Manifest, lower_pod: Manifest) -> Manifest | None:
    """Return the patch of images, with the note of what is sent, and of the active deadline."""
    fields: Manifest = {field: _images(field, upper_pod, lower_pod) for field in LISTS}
    noted = {"annotations": {WRITTEN_IMAGES: note_of_images(upper_pod)}} if any(fields.values()) else {}
    fields["activeDeadlineSeconds"] = _deadline(upper_pod["spec"], lower_pod["spec"])
    body = _body(fields)
    return {"metadata": noted, **body} if body and noted else body


def toleration_patch(upper_pod: Manifest, lower_pod: Manifest, context: LowerContext) -> Manifest | None:
    """Return the patch of tolerations; the lower pod's own are never removed."""
    seen = lower_pod["spec"].get("tolerations") or []
    return _body({"tolerations": _tolerations(lower_tolerations(upper_pod, context), seen)})


def resize_patch(upper_pod: Manifest, lower_pod: Manifest) -> Manifest | None:
    """Return the patch of the resize subresource: resources of containers and sidecars, and of the pod as a whole."""
    upper_spec, lower_spec = upper_pod["spec"], lower_pod["spec"]
    sidecars = [one for one in upper_spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]
    fields: Manifest = {
        "containers": _resized(upper_spec["containers"], lower_spec.get("containers")),
        "initContainers": _resized(sidecars, lower_spec.get("initContainers")),
    }
    fields["resources"] = _resources(upper_spec.get("resources"), lower_spec.get("resources"))
    return _body(fields)


def ephemeral_patch(upper_pod: Manifest, lower_pod: Manifest, context: LowerContext) -> Manifest | None:
    """Return the patch of the ephemeralcontainers subresource: those that the lower pod lacks; they can only be added.

    The existing ones are named first, or the API would put the new ones before them.
    """
    if not upper_pod["spec"].get("ephemeralContainers"):
        return None
    known = _by_name(lower_pod["spec"].get("ephemeralContainers"))
    fresh = [one for one in debug_containers(upper_pod, lower_pod, context) if one["name"] not in known]
    return _body({"ephemeralContainers": [{"name": name} for name in known] + fresh}) if fresh else None


def _body(fields: Manifest) -> Manifest | None:
    """Return the body of a patch of the fields that have a value, None when none has."""
    changed = {field: value for field, value in fields.items() if value}
    return {"spec": changed} if changed else None


def _by_name(containers: list[Manifest] | None) -> dict[str, Manifest]:
    """Return containers by name."""
    return {one["name"]: one for one in containers or ()}


def _images(field: str, upper_pod: Manifest, lower_pod: Manifest) -> list[Manifest]:
    """Return each container of a list whose image differs in the lower pod, with the upper image.

    An image that was already sent stays as lower admission has changed it, unless another client has edited it since.
    """
    upper_containers: list[Manifest] = upper_pod["spec"].get(field) or []
    lower_containers = lower_pod["spec"].get(field) or []
    if [one.get("image") for one in upper_containers] == [one.get("image") for one in lower_containers]:
        return []
    known, sent = _by_name(lower_containers), noted_images(lower_pod) or {}
    differing = [
        one for one in upper_containers if one["name"] in known and one.get("image") != known[one["name"]].get("image")
    ]
    fresh = [
        one
        for one in differing
        if sent.get(one["name"]) != image_digest(one["image"]) or _edited(field, one, lower_pod)
    ]
    return [{"name": one["name"], "image": one["image"]} for one in fresh]


def _edited(field: str, container: Manifest, lower_pod: Manifest) -> bool:
    """Report whether another client has changed a container's image in the lower cluster."""
    element = f'k:{{"name":"{container["name"]}"}}'
    return others_wrote(lower_pod, ("f:spec", f"f:{field}", element, "f:image"))


def _deadline(upper_spec: Manifest, lower_spec: Manifest) -> int | None:
    """Return the deadline to set; Kubernetes allows one to be added or shortened only."""
    deadline, present = upper_spec.get("activeDeadlineSeconds"), lower_spec.get("activeDeadlineSeconds")
    return deadline if deadline and (present is None or deadline < present) else None


def _tolerations(wanted: list[Manifest], seen: list[Manifest]) -> list[Manifest]:
    """Return the whole list to set, [] without changes: existing tolerations with new seconds, and missing ones."""
    by_subject = {subject(one): one for one in wanted}
    kept = [by_subject.pop(subject(one), one) for one in seen]
    merged = kept + list(by_subject.values())
    return merged if merged != seen else []


def _resized(upper_containers: list[Manifest], lower_containers: list[Manifest] | None) -> list[Manifest]:
    """Return each container whose resources differ in the lower pod, with the upper resources."""
    if [one.get("resources") for one in upper_containers] == [one.get("resources") for one in lower_containers or ()]:
        return []
    known = _by_name(lower_containers)
    pairs = [(one, known[one["name"]]) for one in upper_containers if one["name"] in known]
    changed = ((one["name"], _resources(one.get("resources"), old.get("resources"))) for one, old in pairs)
    return [{"name": name, "resources": resources} for name, resources in changed if resources]


def _resources(upper_resources: Manifest | None, lower_resources: Manifest | None) -> Manifest:
    """Return requests and limits if an amount that the upper spec names differs in the lower pod."""
    wanted, present = upper_resources or {}, lower_resources or {}
    return {
        field: wanted[field] for field in _AMOUNTS if _is_different(wanted.get(field) or {}, present.get(field) or {})
    }


def _is_different(wanted: Mapping[str, Any], present: Mapping[str, Any]) -> bool:
    """Report whether a wanted amount is missing or different."""
    return wanted != present and any(
        name not in present or parse(str(amount)) != parse(str(present[name])) for name, amount in wanted.items()
    )


class LastingChange(NamedTuple):
    """A change of a lower pod that cannot be reverted: the path in the pod, both values, a description.

    A value is None where the field is missing.
    """

    path: tuple[str | int, ...]
    wanted: Any
    seen: Any
    description: str


def lasting_changes(upper_pod: Manifest, lower_pod: Manifest, context: LowerContext) -> list[LastingChange]:
    """Return what another client has changed irreversibly in a lower pod.

    Other changes in the lower cluster are reverted, but an earlier deadline, added tolerations and ephemeral containers
    cannot be, so they are reported on the upper pod. Ephemeral containers are known by name, and managedFields says who
    wrote a field last; what lower admission added to our own write counts as ours.
    """
    return [
        *_earlier_deadline(upper_pod, lower_pod),
        *_added_tolerations(upper_pod, lower_pod, context),
        *_added(upper_pod, lower_pod),
    ]


def drift(upper_pod: Manifest, lower_pod: Manifest, context: LowerContext) -> str:
    """Return the `lasting_changes` for people, "" for none."""
    return ", ".join(one.description for one in lasting_changes(upper_pod, lower_pod, context))


def lasting_change_condition(upper: PodView, drift: str, lower: str, now: datetime) -> Manifest:
    """Return the condition that reports such changes."""
    message = (
        f"another client changed the pod in lower cluster {lower}, and Kubernetes does not allow to revert it: {drift}"
    )
    return condition(
        upper, SYNCED, "False", reason=MODIFIED_IN_LOWER, message=message[:_MAX_MESSAGE], now=timestamp(now)
    )


def _earlier_deadline(upper_pod: Manifest, lower_pod: Manifest) -> list[LastingChange]:
    """Return a deadline that is earlier than the upper pod's: it can only be shortened."""
    upper_deadline = upper_pod["spec"].get("activeDeadlineSeconds")
    lower_deadline = lower_pod["spec"].get("activeDeadlineSeconds")
    earlier = lower_deadline is not None and (upper_deadline is None or lower_deadline < upper_deadline)
    if not earlier or not others_wrote(lower_pod, ("f:spec", "f:activeDeadlineSeconds")):
        return []
    return [
        LastingChange(
            ("spec", "activeDeadlineSeconds"),
            upper_deadline,
            lower_deadline,
            f"activeDeadlineSeconds is {lower_deadline}",
        )
    ]


def _added_tolerations(upper_pod: Manifest, lower_pod: Manifest, context: LowerContext) -> list[LastingChange]:
    """Return tolerations that were added: none can be removed."""
    if not others_wrote(lower_pod, ("f:spec", "f:tolerations")):
        return []
    wanted = {subject(one) for one in lower_tolerations(upper_pod, context)}
    return [
        LastingChange(
            ("spec", "tolerations", index), None, one, f"toleration of {one.get('key') or 'everything'} added"
        )
        for index, one in enumerate(lower_pod["spec"].get("tolerations") or ())
        if subject(one) not in wanted and not _by_admission(one)
    ]


def _by_admission(toleration: Manifest) -> bool:
    """Report whether a toleration is one that Kubernetes adds to every pod."""
    return str(toleration.get("key", "")).startswith("node.kubernetes.io/")


def _added(upper_pod: Manifest, lower_pod: Manifest) -> list[LastingChange]:
    """Return ephemeral containers that the upper pod does not have: none can be removed."""
    known = {one["name"] for one in upper_pod["spec"].get("ephemeralContainers") or ()}
    return [
        LastingChange(("spec", "ephemeralContainers", index), None, one, f"ephemeral container {one['name']} added")
        for index, one in enumerate(lower_pod["spec"].get("ephemeralContainers") or ())
        if one["name"] not in known
    ]
