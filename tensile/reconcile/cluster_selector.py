"""The annotation in which the webhook keeps a pod's constraints on lower nodes.

Its form is tensile-kube's: JSON with nodeSelector, affinity and tolerations as in a pod's spec. Anybody who may create
a pod can write it, so its shape is checked before it is walked; a text of another shape counts as none and is said.
"""

from typing import Any

import msgspec
import orjson

from tensile.names import CLUSTER_SELECTOR
from tensile.objects import Manifest, annotations


class _Requirement(msgspec.Struct, gc=False):
    """One expression, on nodes or on labels."""

    key: str
    operator: str = ""
    values: list[str] | None = None


class _NodeTerm(msgspec.Struct):
    """What one kind of node has to be like."""

    matchExpressions: list[_Requirement] | None = None  # noqa: N815 - the API's spelling, here and below
    matchFields: list[_Requirement] | None = None  # noqa: N815


class _NodeSelector(msgspec.Struct):
    """Kinds of nodes, of which one will do."""

    nodeSelectorTerms: list[_NodeTerm] | None = None  # noqa: N815


class _Preference(msgspec.Struct):
    """A kind of node that is preferred."""

    preference: _NodeTerm | None = None
    weight: int = 0


class _NodeAffinity(msgspec.Struct):
    """What is asked of nodes."""

    requiredDuringSchedulingIgnoredDuringExecution: _NodeSelector | None = None  # noqa: N815
    preferredDuringSchedulingIgnoredDuringExecution: list[_Preference] | None = None  # noqa: N815


class _LabelSelector(msgspec.Struct):
    """What is asked of labels."""

    matchLabels: dict[str, str] | None = None  # noqa: N815
    matchExpressions: list[_Requirement] | None = None  # noqa: N815


class _PodTerm(msgspec.Struct):
    """What company of pods is asked for, and in what domain."""

    topologyKey: str = ""  # noqa: N815
    labelSelector: _LabelSelector | None = None  # noqa: N815
    namespaceSelector: _LabelSelector | None = None  # noqa: N815
    namespaces: list[str] | None = None
    matchLabelKeys: list[str] | None = None  # noqa: N815
    mismatchLabelKeys: list[str] | None = None  # noqa: N815


class _WeightedPodTerm(msgspec.Struct):
    """What company is preferred."""

    podAffinityTerm: _PodTerm  # noqa: N815
    weight: int = 0


class _PodAffinity(msgspec.Struct):
    """What is asked of the company of pods."""

    requiredDuringSchedulingIgnoredDuringExecution: list[_PodTerm] | None = None  # noqa: N815
    preferredDuringSchedulingIgnoredDuringExecution: list[_WeightedPodTerm] | None = None  # noqa: N815


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
    tolerationSeconds: int | None = None  # noqa: N815


class _ClusterSelector(msgspec.Struct):
    """The annotation as a whole."""

    nodeSelector: dict[str, str] | None = None  # noqa: N815
    affinity: _Affinity | None = None
    tolerations: list[_Toleration] | None = None


class _Claim(msgspec.Struct, gc=False):
    """The claim that a volume is of."""

    claimName: str = ""  # noqa: N815


class _Volume(msgspec.Struct, gc=False):
    """One volume, as far as it matters at admission."""

    persistentVolumeClaim: _Claim | None = None  # noqa: N815


class _Spec(_ClusterSelector):
    """What of a pod's spec is looked at at admission."""

    volumes: list[_Volume] | None = None


class _Metadata(msgspec.Struct, gc=False):
    """The part of a pod's metadata that is looked at."""

    namespace: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Pod(msgspec.Struct):
    """A pod, as far as it matters at admission."""

    metadata: _Metadata
    spec: _Spec


_SHAPE = msgspec.json.Decoder(_ClusterSelector)
_POD = msgspec.json.Decoder(_Pod)


def cluster_selector(upper_pod: Manifest) -> Manifest | None:
    """Read what the webhook moved into the pod's annotation; None when there is none, or it cannot be read."""
    text = annotations(upper_pod).get(CLUSTER_SELECTOR)
    return orjson.loads(text) if text and not _flaw(text) else None


def cluster_selector_flaw(upper_pod: Manifest) -> str:
    """Say what is wrong with the pod's annotation, "" when nothing is."""
    text = annotations(upper_pod).get(CLUSTER_SELECTOR)
    return _flaw(text) if text else ""


def pod_flaw(raw: bytes) -> str:
    """Say what about a pod that no apiserver has looked at is not as in a pod, "" for nothing that matters here."""
    return _flaw(raw, _POD)


def _flaw(text: str | bytes, shape: msgspec.json.Decoder[Any] = _SHAPE) -> str:
    """Say why a text is not of the form, "" when it is."""
    try:
        shape.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        return str(error)
    return ""
