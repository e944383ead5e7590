"""A question of the apiserver, and its answer: AdmissionReview in both versions that were ever served.

Nothing is refused here. What is no pod, or is nobody's business here, is let pass as it is; what is no question at all
gets none, and the apiserver's failure policy decides.
"""

from base64 import b64encode
from typing import Any, TypedDict, cast

import msgspec
import orjson

from tensile.errors import TensileError
from tensile.objects import Manifest
from tensile.policy.admission import NodeOfClaim, NodesTried, Terms, no_claims, none_tried, operations, prepared
from tensile.reconcile.cluster_selector import pod_flaw

VERSIONS = ("v1", "v1beta1")
"""The versions of admission.k8s.io that are spoken, the newer one first."""
_GROUP = "admission.k8s.io"
_LONGEST_WARNING = 200


class Malformed(TensileError):
    """What came is no AdmissionReview that can be answered."""


class _Kind(msgspec.Struct):
    """Of what kind the object is."""

    kind: str = ""
    group: str = ""


class _Request(msgspec.Struct):
    """What is asked about."""

    uid: str
    kind: _Kind = msgspec.field(default_factory=_Kind)
    operation: str = ""
    namespace: str = ""
    subResource: str = ""  # noqa: N815 - the API's spelling, here and below
    object: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class _Review(msgspec.Struct):
    """The whole question."""

    apiVersion: str  # noqa: N815
    kind: str
    request: _Request


class _Spec(TypedDict, total=False):
    """What of a pod's spec is looked at; the rest is not even built."""

    nodeSelector: Any
    affinity: Any
    tolerations: Any
    volumes: Any


class _Metadata(TypedDict, total=False):
    """What of a pod's metadata is looked at."""

    namespace: Any
    labels: Any
    annotations: Any
    ownerReferences: Any


class _Pod(TypedDict):
    """The parts of a pod that matter here."""

    metadata: _Metadata
    spec: _Spec


_REVIEWS = msgspec.json.Decoder(_Review)
_PODS = msgspec.json.Decoder(_Pod)


def answer(body: bytes, terms: Terms, node_of: NodeOfClaim = no_claims, tried: NodesTried = none_tried) -> bytes:
    """Answer a review; raises Malformed for what is none."""
    review = _read(body)
    request = review.request
    response: Manifest = {"uid": request.uid, "allowed": True}
    if _is_new_pod(request):
        response |= _change(bytes(request.object), request.namespace, terms, node_of, tried)
    return orjson.dumps({"apiVersion": review.apiVersion, "kind": "AdmissionReview", "response": response})


def _read(body: bytes) -> _Review:
    try:
        review = _REVIEWS.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(f"no AdmissionReview: {error}") from None
    if review.kind != "AdmissionReview" or review.apiVersion not in {f"{_GROUP}/{version}" for version in VERSIONS}:
        raise Malformed(f"{review.apiVersion} {review.kind} is not spoken: send AdmissionReview of {_GROUP}/v1")
    return review


def _is_new_pod(request: _Request) -> bool:
    is_pod = (request.kind.group, request.kind.kind) == ("", "Pod")
    return is_pod and request.operation == "CREATE" and not request.subResource


def _change(raw: bytes, namespace: str, terms: Terms, node_of: NodeOfClaim, tried: NodesTried) -> Manifest:
    """Give what the answer says beyond that the pod may pass."""
    if flaw := pod_flaw(raw):
        return {"warnings": [f"not prepared for virtual nodes: {flaw}"[:_LONGEST_WARNING]]}
    pod = cast("Manifest", _PODS.decode(raw))
    patch = operations(pod, prepared(pod, terms, namespace=namespace, node_of=node_of, tried=tried))
    return {"patchType": "JSONPatch", "patch": b64encode(orjson.dumps(patch)).decode()} if patch else {}
