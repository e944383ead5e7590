"""What we wrote into a lower pod last, noted on the lower pod itself.

Three hands write there: what comes from above, what somebody sets below, and what admission below makes of ours, such
as an image of the lower cluster's own registry. The API's book-keeping says whose a field is now, but neither whether
it was ours before nor which value we sent. Those two are noted: label and annotation keys by name, images by a few
digits of their hash.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

import orjson

from tensile.names import OWNER, OWNER_NAME, TRIPPED_LABELS, UPPER_UID, VIRTUAL_POD, WRITTEN_IMAGES, WRITTEN_KEYS
from tensile.objects import Manifest, annotations, metadata
from tensile.reconcile.observed import our_keys

LISTS = ("containers", "initContainers")
"""The lists of a pod's spec whose images may change while it runs."""
_DIGITS = 8
_MARKS = frozenset({VIRTUAL_POD, OWNER, OWNER_NAME, TRIPPED_LABELS, UPPER_UID, WRITTEN_KEYS, WRITTEN_IMAGES})


def digits(image: str) -> str:
    """Give what stands for an image in a note."""
    return sha256(image.encode()).hexdigest()[:_DIGITS]


def note_of_images(upper_pod: Manifest) -> str:
    """Note the images that an upper pod's spec has, by container."""
    return _json({one["name"]: digits(one.get("image", "")) for one in _containers(upper_pod["spec"])})


def noted_images(lower_pod: Manifest) -> Mapping[str, Any] | None:
    """Give the digits of the images that we sent, by container, None where that is not noted."""
    return _read(annotations(lower_pod).get(WRITTEN_IMAGES))


def note_of_keys(labels: Iterable[str], notes: Iterable[str]) -> str:
    """Note the keys of labels and annotations that we write, but for our marks, which are always ours."""
    return _json({"annotations": sorted(set(notes) - _MARKS), "labels": sorted(set(labels) - _MARKS)})


def ours_to_write(wanted: dict[str, str], lower_pod: Manifest, section: str) -> dict[str, str]:
    """Give what is wanted in "labels" or "annotations" without the keys that somebody below had set before us.

    A key that we wrote and somebody changed since is among them: it is put back.
    """
    noted = _read(annotations(lower_pod).get(WRITTEN_KEYS))
    keys = [] if noted is None else noted.get(section, [])
    if noted is None or not isinstance(keys, list):
        return wanted
    seen: Mapping[str, str] = metadata(lower_pod).get(section) or {}
    ours = _MARKS | our_keys(lower_pod, section) | {key for key in keys if isinstance(key, str)}
    return {key: value for key, value in wanted.items() if key not in seen or key in ours}


def _containers(spec: Manifest) -> Iterator[Manifest]:
    """Give the containers whose images may change."""
    for field in LISTS:
        yield from spec.get(field) or ()


def _json(value: Any) -> str:
    """Write a note."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _read(text: str | None) -> Mapping[str, Any] | None:
    """Read a note; one that somebody spoilt counts as none."""
    try:
        found = orjson.loads(text or "")
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
