"""What Kubernetes allows to change in a running pod's spec, and how each such change travels to the lower pod.

Three ways, since the API has three: a patch of the pod, one of its resize subresource, and one that adds ephemeral
containers. Only what the upper spec names is compared: defaults and limits that admission below has added are its own.
All bodies are strategic merge patches without metadata; None where nothing is to be done.
"""

from collections.abc import Mapping
from typing import Any

from tensile.kubelet.place import Placement
from tensile.kubelet.projection import lower_spec
from tensile.kubelet.service_account import without_token
from tensile.kubelet.tolerations import subject
from tensile.objects import Manifest
from tensile.quantities import parse

_LISTS = ("containers", "initContainers")
_AMOUNTS = ("requests", "limits")


def spec_patch(upper_pod: Manifest, lower_pod: Manifest, place: Placement) -> Manifest | None:
    """Give the patch of images, the active deadline and tolerations; tolerations below are never removed."""
    wanted, seen = lower_spec(upper_pod, place), lower_pod["spec"]
    fields: Manifest = {field: _images(wanted.get(field), seen.get(field)) for field in _LISTS}
    fields["activeDeadlineSeconds"] = _deadline(wanted, seen)
    fields["tolerations"] = _tolerations(wanted.get("tolerations") or [], seen.get("tolerations") or [])
    return _body(fields)


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
    """Give the patch of the ephemeralcontainers subresource: those that are missing below, which can only be added."""
    spec = upper_pod["spec"]
    known = _by_name(lower_pod["spec"].get("ephemeralContainers"))
    stripped = without_token(spec) if place.identity == "none" else {}
    wanted = stripped.get("ephemeralContainers") or spec.get("ephemeralContainers") or ()
    return _body({"ephemeralContainers": [one for one in wanted if one["name"] not in known]})


def _body(fields: Manifest) -> Manifest | None:
    """Make the body of a patch of the fields that have a value, None when none has."""
    changed = {field: value for field, value in fields.items() if value}
    return {"spec": changed} if changed else None


def _by_name(containers: list[Manifest] | None) -> dict[str, Manifest]:
    """Give containers by name."""
    return {one["name"]: one for one in containers or ()}


def _images(wanted: list[Manifest] | None, seen: list[Manifest] | None) -> list[Manifest]:
    """Give each container whose image is another one below, with that image."""
    known = _by_name(seen)
    pairs = [(one, known[one["name"]]) for one in wanted or () if one["name"] in known]
    return [{"name": one["name"], "image": one["image"]} for one, old in pairs if one.get("image") != old.get("image")]


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
    return any(name not in see or parse(str(amount)) != parse(str(see[name])) for name, amount in want.items())
