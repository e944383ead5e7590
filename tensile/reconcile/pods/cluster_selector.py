"""The annotation in which the webhook keeps a pod's constraints on lower nodes.

Its format is tensile-kube's: JSON with nodeSelector, affinity and tolerations as in a pod's spec. Anyone who may create
a pod can write it, so its size and types are checked before it is used. A text of another form counts as missing and is
reported. It is decoded once, and the checked value is used: two decoders do not agree on every text.
"""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
import orjson

from tensile.names import CLUSTER_SELECTOR
from tensile.objects import Manifest, annotations

LONGEST = 32 * 1024
"""The most characters of the annotation: hundreds of requirements. Kubernetes allows eight times as many."""
MOST = 1_000
"""The most items of a list: terms, requirements and tolerations. Each is evaluated for every decision about a pod."""
_DEEPEST = 32
"""The most levels of nesting: a pod's affinity has eleven, and the encoder allows 254."""
_MANY = msgspec.Meta(max_length=MOST)
_SECONDS = msgspec.Meta(ge=-(2**63), le=2**63 - 1)


class _Requirement(msgspec.Struct, gc=False):
    """One expression on nodes or labels."""

    key: str
    operator: str = ""
    values: list[str] | None = None


_Requirements = Annotated[list[_Requirement], _MANY]


class _NodeTerm(msgspec.Struct):
    """The requirements of one node selector term."""

    matchExpressions: _Requirements | None = None  # noqa: N815 - the API's spelling, here and below
    matchFields: _Requirements | None = None  # noqa: N815


class _NodeSelector(msgspec.Struct):
    """Node selector terms, of which one has to match."""

    nodeSelectorTerms: Annotated[list[_NodeTerm], _MANY] | None = None  # noqa: N815


class _Preference(msgspec.Struct):
    """A preferred node selector term."""

    preference: _NodeTerm | None = None
    weight: int = 0


class _NodeAffinity(msgspec.Struct):
    """Node affinity."""

    requiredDuringSchedulingIgnoredDuringExecution: _NodeSelector | None = None  # noqa: N815
    preferredDuringSchedulingIgnoredDuringExecution: Annotated[list[_Preference], _MANY] | None = None  # noqa: N815


class _LabelSelector(msgspec.Struct):
    """A label selector."""

    matchLabels: dict[str, str] | None = None  # noqa: N815
    matchExpressions: _Requirements | None = None  # noqa: N815


class _PodTerm(msgspec.Struct):
    """A pod affinity term: which pods, and in which topology domain."""

    topologyKey: str = ""  # noqa: N815
    labelSelector: _LabelSelector | None = None  # noqa: N815
    namespaceSelector: _LabelSelector | None = None  # noqa: N815
    namespaces: list[str] | None = None
    matchLabelKeys: list[str] | None = None  # noqa: N815
    mismatchLabelKeys: list[str] | None = None  # noqa: N815


class _WeightedPodTerm(msgspec.Struct):
    """A preferred pod affinity term."""

    podAffinityTerm: _PodTerm  # noqa: N815
    weight: int = 0


class _PodAffinity(msgspec.Struct):
    """Pod affinity or anti-affinity."""

    requiredDuringSchedulingIgnoredDuringExecution: Annotated[list[_PodTerm], _MANY] | None = None  # noqa: N815
    preferredDuringSchedulingIgnoredDuringExecution: Annotated[list[_WeightedPodTerm], _MANY] | None = None  # noqa: N815


class _Affinity(msgspec.Struct):
    """The three kinds of affinity."""

    nodeAffinity: _NodeAffinity | None = None  # noqa: N815
    podAffinity: _PodAffinity | None = None  # noqa: N815
    podAntiAffinity: _PodAffinity | None = None  # noqa: N815


class _Toleration(msgspec.Struct, gc=False):
    """One toleration."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    tolerationSeconds: Annotated[int, _SECONDS] | None = None  # noqa: N815


class _ClusterSelector(msgspec.Struct):
    """The annotation as a whole."""

    nodeSelector: dict[str, str] | None = None  # noqa: N815
    affinity: _Affinity | None = None
    tolerations: Annotated[list[_Toleration], _MANY] | None = None


def cluster_selector(upper_pod: Manifest) -> Manifest | None:
    """Return the constraints in the pod's annotation, None if it is missing or invalid."""
    text = annotations(upper_pod).get(CLUSTER_SELECTOR)
    return _read(text)[0] if text else None


def cluster_selector_flaw(upper_pod: Manifest) -> str:
    """Return what is wrong with the pod's annotation, "" for nothing."""
    text = annotations(upper_pod).get(CLUSTER_SELECTOR)
    return _read(text)[1] if text else ""


def selector_flaw(selector: Any) -> str:
    """Return what is wrong with decoded constraints, by type or size, "" for nothing."""
    try:
        msgspec.convert(selector, _ClusterSelector)
    except msgspec.ValidationError as error:
        return str(error)
    return "" if _is_flat(selector) else f"objects and lists are nested more than {_DEEPEST} levels deep"


def _read(text: str) -> tuple[Manifest | None, str]:
    """Decode the annotation. Return its content and "", or None and what is wrong with it."""
    if len(text) > LONGEST:
        return None, f"it has {len(text):,} characters; the limit is {LONGEST:,}"
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return None, str(error)
    flaw = selector_flaw(found)
    return (None, flaw) if flaw else (found, "")


def _is_flat(found: Any) -> bool:
    """Report whether a decoded value is within the limit of nesting, so that it can be walked and encoded again."""
    level: Iterable[Any] = (found,)
    for _ in range(_DEEPEST):
        level = [inner for one in level for inner in _inner(one) if isinstance(inner, dict | list)]
        if not level:
            return True
    return False


def _inner(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
