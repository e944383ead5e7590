"""Keeps a running lower pod's spec in step with its upper pod's: one write for each kind of change.

Each holds only for the lower pod of that UID, and none holds up another: a policy below that forbids an image must not
keep a debug container away. What the lower cluster refuses is said on the upper pod, which runs on as it is.

What Kubernetes allows to change in a running pod's spec, and how each such change travels to the lower pod.

Four changes, so that one which is refused does not keep the others back: images and deadline, tolerations, resources by
the resize subresource, and ephemeral containers by theirs. Only what the upper spec names is compared: defaults and
limits that admission below has added are its own. So is an image that it has put in the place of ours. All bodies are
strategic merge patches without preconditions; None where nothing is to be done.

What somebody did to a lower pod that Kubernetes lets nobody take back: it is said above, since it cannot be undone.

Everything else that is changed below is put back. Of these three it is known whose they are: ephemeral containers have
names, and who wrote a field last is in the API's book-keeping; what admission below added with our own write is ours.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tensile.kube.cluster import Patch
from tensile.kubelet.pods.conditions import condition, conditions_of
from tensile.kubelet.pods.fields import LISTS, digits, note_of_images, noted_images
from tensile.kubelet.pods.placement_context import Placement
from tensile.kubelet.pods.scheduling import lower_tolerations
from tensile.kubelet.pods.service_account import debug_containers
from tensile.names import IN_STEP, WRITTEN_IMAGES
from tensile.objects import Manifest, Ref, metadata, timestamp
from tensile.reconcile.desired import Patched
from tensile.reconcile.ownership import others_wrote
from tensile.reconcile.pods.scheduling import subject
from tensile.reconcile.world import Problem
from tensile.resources import parse

_AMOUNTS = ("requests", "limits")


def image_patch(upper_pod: Manifest, lower_pod: Manifest) -> Manifest | None:
    """Return the patch of images, with the note of what is sent, and of the active deadline."""
    fields: Manifest = {field: _images(field, upper_pod, lower_pod) for field in LISTS}
    noted = {"annotations": {WRITTEN_IMAGES: note_of_images(upper_pod)}} if any(fields.values()) else {}
    fields["activeDeadlineSeconds"] = _deadline(upper_pod["spec"], lower_pod["spec"])
    body = _body(fields)
    return {"metadata": noted, **body} if body and noted else body


def toleration_patch(upper_pod: Manifest, lower_pod: Manifest, place: Placement) -> Manifest | None:
    """Return the patch of tolerations; those below are never removed."""
    seen = lower_pod["spec"].get("tolerations") or []
    return _body({"tolerations": _tolerations(lower_tolerations(upper_pod, place), seen)})


def resize_patch(upper_pod: Manifest, lower_pod: Manifest) -> Manifest | None:
    """Return the patch of the resize subresource: resources of containers and sidecars, and of the pod as a whole."""
    above, below = upper_pod["spec"], lower_pod["spec"]
    sidecars = [one for one in above.get("initContainers") or () if one.get("restartPolicy") == "Always"]
    fields: Manifest = {
        "containers": _resized(above["containers"], below.get("containers")),
        "initContainers": _resized(sidecars, below.get("initContainers")),
    }
    fields["resources"] = _resources(above.get("resources"), below.get("resources"))
    return _body(fields)


def ephemeral_patch(upper_pod: Manifest, lower_pod: Manifest, place: Placement) -> Manifest | None:
    """Return the patch of the ephemeralcontainers subresource: those that are missing below, which can only be added.

    Those that are there are named before them, or the API would put what is new first.
    """
    if not upper_pod["spec"].get("ephemeralContainers"):
        return None
    known = _by_name(lower_pod["spec"].get("ephemeralContainers"))
    fresh = [one for one in debug_containers(upper_pod, lower_pod, place) if one["name"] not in known]
    return _body({"ephemeralContainers": [{"name": name} for name in known] + fresh}) if fresh else None


def _body(fields: Manifest) -> Manifest | None:
    """Make the body of a patch of the fields that have a value, None when none has."""
    changed = {field: value for field, value in fields.items() if value}
    return {"spec": changed} if changed else None


def _by_name(containers: list[Manifest] | None) -> dict[str, Manifest]:
    """Return containers by name."""
    return {one["name"]: one for one in containers or ()}


def _images(field: str, upper_pod: Manifest, lower_pod: Manifest) -> list[Manifest]:
    """Return each container of a list whose image is another one below, with that image.

    One that was sent already stays as admission below has made it, unless somebody has changed it there since.
    """
    above: list[Manifest] = upper_pod["spec"].get(field) or []
    below = lower_pod["spec"].get(field) or []
    if [one.get("image") for one in above] == [one.get("image") for one in below]:
        return []
    known, sent = _by_name(below), noted_images(lower_pod) or {}
    differ = [one for one in above if one["name"] in known and one.get("image") != known[one["name"]].get("image")]
    fresh = [one for one in differ if sent.get(one["name"]) != digits(one["image"]) or _edited(field, one, lower_pod)]
    return [{"name": one["name"], "image": one["image"]} for one in fresh]


def _edited(field: str, container: Manifest, lower_pod: Manifest) -> bool:
    """Report whether somebody has changed a container's image in the lower cluster."""
    element = f'k:{{"name":"{container["name"]}"}}'
    return others_wrote(lower_pod, ("f:spec", f"f:{field}", element, "f:image"))


def _deadline(wanted: Manifest, seen: Manifest) -> int | None:
    """Return a deadline to set; Kubernetes lets it come into being and shrink, and nothing else."""
    want, see = wanted.get("activeDeadlineSeconds"), seen.get("activeDeadlineSeconds")
    return want if want and (see is None or want < see) else None


def _tolerations(wanted: list[Manifest], seen: list[Manifest]) -> list[Manifest]:
    """Return the whole list to set, which replaces the old one: what is there, with new seconds, and what is missing."""
    by_subject = {subject(one): one for one in wanted}
    kept = [by_subject.pop(subject(one), one) for one in seen]
    whole = kept + list(by_subject.values())
    return whole if whole != seen else []


def _resized(above: list[Manifest], below: list[Manifest] | None) -> list[Manifest]:
    """Return each container whose resources are others below, with those."""
    if [one.get("resources") for one in above] == [one.get("resources") for one in below or ()]:
        return []
    known = _by_name(below)
    pairs = [(one, known[one["name"]]) for one in above if one["name"] in known]
    changed = ((one["name"], _resources(one.get("resources"), old.get("resources"))) for one, old in pairs)
    return [{"name": name, "resources": resources} for name, resources in changed if resources]


def _resources(above: Manifest | None, below: Manifest | None) -> Manifest:
    """Return requests and limits where an amount that the upper spec names is another one below."""
    want, see = above or {}, below or {}
    return {field: want[field] for field in _AMOUNTS if _differ(want.get(field) or {}, see.get(field) or {})}


def _differ(want: Mapping[str, Any], see: Mapping[str, Any]) -> bool:
    """Report whether an amount that is wanted is missing or another one."""
    return want != see and any(
        name not in see or parse(str(amount)) != parse(str(see[name])) for name, amount in want.items()
    )


NOT_IN_STEP = "ChangeNotApplied"
"""The reason of the event that tells of a change which does not come through."""
_RESIZE = "resize"
_DEBUG = "ephemeralcontainers"
_LONGEST = 1024


def changes_below(upper_pod: Manifest, lower_pod: Manifest, ref: Ref, place: Placement) -> list[Patched]:
    """Return the writes that bring the lower pod (`ref`) to the upper pod's spec; [] when it has that."""
    found = (
        ("", image_patch(upper_pod, lower_pod), "images or deadline differ from the upper pod's"),
        ("", toleration_patch(upper_pod, lower_pod, place), "tolerations were added to the upper pod"),
        (_RESIZE, resize_patch(upper_pod, lower_pod), "resources differ from the upper pod's"),
        (_DEBUG, ephemeral_patch(upper_pod, lower_pod, place), "ephemeral containers were added to the upper pod"),
    )
    return [
        Patched(ref, _fenced(body, lower_pod), reason, subresource, shown=True, apart=True)
        for subresource, body, reason in found
        if body is not None
    ]


def changes_images(change: Patched) -> bool:
    """Report whether a write of `changes_below` sends images, and with them the note of what was sent."""
    return "metadata" in change.patch.body and "annotations" in change.patch.body["metadata"]


def adds_containers(change: Patched) -> bool:
    """Report whether a write of `changes_below` adds ephemeral containers, which may need what other pods do not."""
    return change.subresource == _DEBUG


def in_step(
    upper_pod: Manifest, problem: Problem | None, lower: str, now: datetime, *, waiting: bool
) -> Manifest | None:
    """Return the condition that says what keeps a change out of `lower`; None where it should be absent.

    While a change is on its way (`waiting`) and nothing has been said against it, the condition stays as it is.
    """
    if problem is None:
        return conditions_of(upper_pod).get(IN_STEP) if waiting else None
    message = f"a change of this pod is not in lower cluster {lower}: {problem.message}"[:_LONGEST]
    return condition(upper_pod, IN_STEP, "False", reason=problem.reason, message=message, now=timestamp(now))


def _fenced(body: Manifest, lower_pod: Manifest) -> Patch:
    """Make the patch, for that very pod; a list that is replaced whole must not have changed since."""
    seen = metadata(lower_pod)
    fence = {"uid": seen["uid"]}
    if "tolerations" in body["spec"]:
        fence["resourceVersion"] = seen["resourceVersion"]
    return Patch("strategic-merge-patch", {**body, "metadata": {**body.get("metadata", {}), **fence}})


CHANGED_BELOW = "ChangedBelow"
"""The reason of the condition and the event."""


def drift(upper_pod: Manifest, lower_pod: Manifest, place: Placement) -> str:
    """Return what somebody has done to a lower pod for good, "" for nothing."""
    found = (
        *_earlier_deadline(upper_pod, lower_pod),
        *_added_tolerations(upper_pod, lower_pod, place),
        *_added(upper_pod, lower_pod),
    )
    return ", ".join(found)


def changed_below(upper_pod: Manifest, words: str, lower: str, now: datetime) -> Manifest:
    """Make the condition that says so."""
    message = f"somebody changed the pod in lower cluster {lower}, and Kubernetes lets nobody take it back: {words}"
    return condition(upper_pod, IN_STEP, "False", reason=CHANGED_BELOW, message=message[:_LONGEST], now=timestamp(now))


def _earlier_deadline(upper_pod: Manifest, lower_pod: Manifest) -> list[str]:
    """Name a deadline that is earlier than above: it can only shrink."""
    want, have = upper_pod["spec"].get("activeDeadlineSeconds"), lower_pod["spec"].get("activeDeadlineSeconds")
    earlier = have is not None and (want is None or have < want)
    if not earlier or not others_wrote(lower_pod, ("f:spec", "f:activeDeadlineSeconds")):
        return []
    return [f"activeDeadlineSeconds is {have}"]


def _added_tolerations(upper_pod: Manifest, lower_pod: Manifest, place: Placement) -> list[str]:
    """Name tolerations that were added: none can be removed."""
    if not others_wrote(lower_pod, ("f:spec", "f:tolerations")):
        return []
    wanted = {subject(one) for one in lower_tolerations(upper_pod, place)}
    return [
        f"toleration of {one.get('key') or 'everything'} added"
        for one in lower_pod["spec"].get("tolerations") or ()
        if subject(one) not in wanted and not _by_admission(one)
    ]


def _by_admission(toleration: Manifest) -> bool:
    """Report whether Kubernetes adds a toleration to every pod."""
    return str(toleration.get("key", "")).startswith("node.kubernetes.io/")


def _added(upper_pod: Manifest, lower_pod: Manifest) -> list[str]:
    """Name ephemeral containers that the upper pod does not have: none goes away again."""
    known = {one["name"] for one in upper_pod["spec"].get("ephemeralContainers") or ()}
    names = [one["name"] for one in lower_pod["spec"].get("ephemeralContainers") or ()]
    return [f"ephemeral container {name} added" for name in names if name not in known]
