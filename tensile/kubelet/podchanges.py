"""What Kubernetes allows to change in a running pod's spec, and how each such change travels to the lower pod.

Four changes, so that one which is refused does not keep the others back: images and deadline, tolerations, resources by
the resize subresource, and ephemeral containers by theirs. Only what the upper spec names is compared: defaults and
limits that admission below has added are its own. So is an image that it has put in the place of ours. All bodies are
strategic merge patches without preconditions; None where nothing is to be done.
"""

from collections.abc import Mapping
from typing import Any

from tensile.kubelet.place import Placement
from tensile.kubelet.scheduling_fields import lower_tolerations
from tensile.kubelet.service_account import debug_containers
from tensile.kubelet.written import LISTS, digits, note_of_images, noted_images
from tensile.names import WRITTEN_IMAGES
from tensile.objects import Manifest
from tensile.quantities import parse
from tensile.reconcile.observed import others_wrote
from tensile.reconcile.tolerations import subject

_AMOUNTS = ("requests", "limits")


def image_patch(upper_pod: Manifest, lower_pod: Manifest) -> Manifest | None:
    """Give the patch of images, with the note of what is sent, and of the active deadline."""
    fields: Manifest = {field: _images(field, upper_pod, lower_pod) for field in LISTS}
    noted = {"annotations": {WRITTEN_IMAGES: note_of_images(upper_pod)}} if any(fields.values()) else {}
    fields["activeDeadlineSeconds"] = _deadline(upper_pod["spec"], lower_pod["spec"])
    body = _body(fields)
    return {"metadata": noted, **body} if body and noted else body


def toleration_patch(upper_pod: Manifest, lower_pod: Manifest, place: Placement) -> Manifest | None:
    """Give the patch of tolerations; those below are never removed."""
    seen = lower_pod["spec"].get("tolerations") or []
    return _body({"tolerations": _tolerations(lower_tolerations(upper_pod, place), seen)})


def resize_patch(upper_pod: Manifest, lower_pod: Manifest) -> Manifest | None:
    """Give the patch of the resize subresource: resources of containers and sidecars, and of the pod as a whole."""
    above, below = upper_pod["spec"], lower_pod["spec"]
    sidecars = [one for one in above.get("initContainers") or () if one.get("restartPolicy") == "Always"]
    fields: Manifest = {
        "containers": _resized(above["containers"], below.get("containers")),
        "initContainers": _resized(sidecars, below.get("initContainers")),
    }
    fields["resources"] = _resources(above.get("resources"), below.get("resources"))
    return _body(fields)


def ephemeral_patch(upper_pod: Manifest, lower_pod: Manifest, place: Placement) -> Manifest | None:
    """Give the patch of the ephemeralcontainers subresource: those that are missing below, which can only be added.

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
    """Give containers by name."""
    return {one["name"]: one for one in containers or ()}


def _images(field: str, upper_pod: Manifest, lower_pod: Manifest) -> list[Manifest]:
    """Give each container of a list whose image is another one below, with that image.

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
    """Say whether somebody has changed a container's image in the lower cluster."""
    element = f'k:{{"name":"{container["name"]}"}}'
    return others_wrote(lower_pod, ("f:spec", f"f:{field}", element, "f:image"))


def _deadline(wanted: Manifest, seen: Manifest) -> int | None:
    """Give a deadline to set; Kubernetes lets it come into being and shrink, and nothing else."""
    want, see = wanted.get("activeDeadlineSeconds"), seen.get("activeDeadlineSeconds")
    return want if want and (see is None or want < see) else None


def _tolerations(wanted: list[Manifest], seen: list[Manifest]) -> list[Manifest]:
    """Give the whole list to set, which replaces the old one: what is there, with new seconds, and what is missing."""
    by_subject = {subject(one): one for one in wanted}
    kept = [by_subject.pop(subject(one), one) for one in seen]
    whole = kept + list(by_subject.values())
    return whole if whole != seen else []


def _resized(above: list[Manifest], below: list[Manifest] | None) -> list[Manifest]:
    """Give each container whose resources are others below, with those."""
    if [one.get("resources") for one in above] == [one.get("resources") for one in below or ()]:
        return []
    known = _by_name(below)
    pairs = [(one, known[one["name"]]) for one in above if one["name"] in known]
    changed = ((one["name"], _resources(one.get("resources"), old.get("resources"))) for one, old in pairs)
    return [{"name": name, "resources": resources} for name, resources in changed if resources]


def _resources(above: Manifest | None, below: Manifest | None) -> Manifest:
    """Give requests and limits where an amount that the upper spec names is another one below."""
    want, see = above or {}, below or {}
    return {field: want[field] for field in _AMOUNTS if _differ(want.get(field) or {}, see.get(field) or {})}


def _differ(want: Mapping[str, Any], see: Mapping[str, Any]) -> bool:
    """Say whether an amount that is wanted is missing or another one."""
    return want != see and any(
        name not in see or parse(str(amount)) != parse(str(see[name])) for name, amount in want.items()
    )
