"""AdmissionReview requests and their answers, in both versions that Kubernetes has served.

No pod is rejected here. An object that is no pod, or that did not opt in, passes unchanged. A body that is no review
gets no answer, and the apiserver's failure policy decides. The content of a review is chosen by whoever may create a
pod or reach the port, and is processed on the engine's event loop. So only a few fields are decoded, and none before
its size is checked. A pod beyond a bound passes unchanged, with a warning for the client.
"""

from base64 import b64encode
from typing import Any, Generic, TypeVar

import msgspec
import orjson

from tensile.errors import TensileError
from tensile.objects import Manifest
from tensile.policy.webhook.admission import (
    CannotMutate,
    MutationTerms,
    NodeOfClaim,
    NodesToAvoid,
    demand_small,
    is_prepared_for,
    no_claims,
    no_nodes_to_avoid,
    operations,
    prepared,
)
from tensile.reconcile.pods.scheduling import cluster_selector_flaw

VERSIONS = ("v1", "v1beta1")
"""The supported versions of admission.k8s.io, the newer one first."""
_GROUP = "admission.k8s.io"
_MAX_WARNING = 200
_MAX_OTHER_BYTES = 256 * 1024
"""Maximum bytes of the decoded fields other than constraints: Kubernetes' own limit for annotations."""
_ABSENT = msgspec.Raw()
_NULL = b"null"
_RequestT = TypeVar("_RequestT")


class MalformedReview(TensileError):
    """The body is not an AdmissionReview that can be answered."""


class _Kind(msgspec.Struct):
    """The kind of the object."""

    kind: str = ""
    group: str = ""


class _Metadata(msgspec.Struct, gc=False):
    """The fields of a pod's metadata that are read; `Raw` ones are decoded once their size is known, b"" if absent."""

    namespace: str | None = None
    labels: msgspec.Raw = _ABSENT
    annotations: msgspec.Raw = _ABSENT
    ownerReferences: msgspec.Raw = _ABSENT  # noqa: N815 - the API's spelling, here and below


class _Spec(msgspec.Struct, gc=False):
    """The fields of a pod's spec that are read; all others are skipped."""

    nodeSelector: msgspec.Raw = _ABSENT  # noqa: N815
    affinity: msgspec.Raw = _ABSENT
    tolerations: msgspec.Raw = _ABSENT
    volumes: msgspec.Raw = _ABSENT


class _Pod(msgspec.Struct):
    """The fields of a pod that are read."""

    metadata: _Metadata
    spec: _Spec


class _AnyRequest(msgspec.Struct):
    """A request about an object of any kind."""

    uid: str
    kind: _Kind = msgspec.field(default_factory=_Kind)
    operation: str = ""
    namespace: str = ""
    subResource: str = ""  # noqa: N815


class _PodRequest(_AnyRequest):
    """A request about a pod."""

    object: _Pod | None = None


class _Review(msgspec.Struct, Generic[_RequestT]):
    """The whole AdmissionReview."""

    apiVersion: str  # noqa: N815
    kind: str
    request: _RequestT


class _Claim(msgspec.Struct, gc=False):
    """The claim of a volume."""

    claimName: str = ""  # noqa: N815


class _Volume(msgspec.Struct, gc=False):
    """The fields of a volume that are read."""

    persistentVolumeClaim: _Claim | None = None  # noqa: N815


class _Owner(msgspec.Struct, gc=False):
    """The fields of an owner reference that are read."""

    uid: str = ""
    controller: bool | None = None


_PODS = msgspec.json.Decoder(_Review[_PodRequest])
_OTHERS = msgspec.json.Decoder(_Review[_AnyRequest])
_TEXTS = msgspec.json.Decoder(dict[str, str] | None)
_OWNERS = msgspec.json.Decoder(list[_Owner] | None)
_VOLUMES = msgspec.json.Decoder(list[_Volume] | None)
_NOT_DECODED = (msgspec.DecodeError, RecursionError)


def answer(
    body: bytes,
    terms: MutationTerms,
    node_of: NodeOfClaim = no_claims,
    nodes_to_avoid: NodesToAvoid = no_nodes_to_avoid,
) -> bytes:
    """Return the answer to a review; raises Malformed for a body that is not a review."""
    review, flaw = _read(body)
    request = review.request
    response: Manifest = {"uid": request.uid, "allowed": True}
    if _is_new_pod(request):
        response |= _warned(flaw) if flaw else _change(request, terms, node_of, nodes_to_avoid)
    return orjson.dumps({"apiVersion": review.apiVersion, "kind": "AdmissionReview", "response": response})


def _read(body: bytes) -> tuple[_Review[Any], str]:
    """Decode a review in one pass; return it with what is malformed in its object, "" for nothing."""
    review: _Review[Any]
    try:
        review, flaw = _PODS.decode(body), ""
    except _NOT_DECODED as error:
        review, flaw = _read_other(body), str(error)
    if review.kind != "AdmissionReview" or review.apiVersion not in {f"{_GROUP}/{version}" for version in VERSIONS}:
        raise MalformedReview(
            f"{review.apiVersion} {review.kind} is not supported: send AdmissionReview of {_GROUP}/v1"
        )
    return review, flaw


def _read_other(body: bytes) -> _Review[_AnyRequest]:
    """Decode a review of an object that is not a pod."""
    try:
        return _OTHERS.decode(body)
    except _NOT_DECODED as error:
        raise MalformedReview(f"the request is not an AdmissionReview: {error}") from None


def _is_new_pod(request: _AnyRequest) -> bool:
    is_pod = (request.kind.group, request.kind.kind) == ("", "Pod")
    return is_pod and request.operation == "CREATE" and not request.subResource


def _change(request: _PodRequest, terms: MutationTerms, node_of: NodeOfClaim, nodes_to_avoid: NodesToAvoid) -> Manifest:
    """Return the fields of the response beyond `allowed`: patch and warnings."""
    if request.object is None:
        return {}
    try:
        pod = _pod(request.object, request.namespace, terms)
        if pod is None:
            return {}
        patch = operations(
            pod, prepared(pod, terms, namespace=request.namespace, node_of=node_of, nodes_to_avoid=nodes_to_avoid)
        )
    except (CannotMutate, orjson.JSONDecodeError, *_NOT_DECODED) as error:
        return _warned(str(error))
    found: Manifest = {"patchType": "JSONPatch", "patch": b64encode(orjson.dumps(patch)).decode()} if patch else {}
    flaw = cluster_selector_flaw(pod)
    return {**found, **_warning(f"annotation clusterSelector is ignored: {flaw}")} if flaw else found


def _warned(flaw: str) -> Manifest:
    """Return the warning for a pod that passes unchanged."""
    return _warning(f"the pod is not mutated for virtual nodes: {flaw}")


def _warning(message: str) -> Manifest:
    return {"warnings": [message[:_MAX_WARNING]]}


def _pod(found: _Pod, namespace: str, terms: MutationTerms) -> Manifest | None:
    """Decode the relevant fields of a pod, None if it is not to be prepared; raises CannotMutate beyond a bound.

    Raises DecodeError or JSONDecodeError for fields that do not have a pod's schema.
    """
    meta, spec = found.metadata, found.spec
    other_fields = {"labels": meta.labels}
    demand_small(other_fields, _MAX_OTHER_BYTES)
    labelled: Manifest = {"namespace": meta.namespace, "labels": _TEXTS.decode(meta.labels or _NULL)}
    if not is_prepared_for({"metadata": labelled}, namespace or meta.namespace or "default", terms):
        return None
    other_fields |= {"annotations": meta.annotations, "ownerReferences": meta.ownerReferences, "volumes": spec.volumes}
    demand_small(other_fields, _MAX_OTHER_BYTES)
    constraint_fields = {"nodeSelector": spec.nodeSelector, "affinity": spec.affinity, "tolerations": spec.tolerations}
    demand_small(constraint_fields)
    constraints = {field: orjson.loads(memoryview(raw)) for field, raw in constraint_fields.items() if raw}
    return {
        "metadata": {**labelled, **_annotations_and_owner(meta)},
        "spec": {**constraints, "volumes": _claim_volumes(spec)},
    }


def _annotations_and_owner(meta: _Metadata) -> Manifest:
    """Return a pod's annotations and its controller owner reference."""
    owners = _OWNERS.decode(meta.ownerReferences or _NULL) or ()
    controllers = [{"uid": one.uid, "controller": True} for one in owners if one.controller]
    return {"annotations": _TEXTS.decode(meta.annotations or _NULL), "ownerReferences": controllers}


def _claim_volumes(spec: _Spec) -> list[Manifest]:
    """Return the pod's volumes that use a claim, with the claim's name only."""
    claims = [one.persistentVolumeClaim for one in _VOLUMES.decode(spec.volumes or _NULL) or ()]
    return [{"persistentVolumeClaim": {"claimName": claim.claimName}} for claim in claims if claim]
