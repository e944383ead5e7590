"""Admission reviews that are as expensive as a user can make them: a benchmark times them, and a test answers them.

Each fills one part of a pod, up to some size, with the items that cause the most work for their bytes. All are about
pods that opted in to virtual nodes, because almost nothing is decoded for others.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from tensile.names import CLUSTER_SELECTOR, VIRTUAL_POD
from tensile.reconcile.pods.scheduling import NOT_READY, REQUIRED, UNREACHABLE

Manifest = dict[str, Any]
SIZES = (16 << 10, 31 << 10, 120 << 10, 250 << 10, 2_900 << 10)
"""Bytes of the part that is filled: some within each limit, some beyond, and as much as the port accepts."""
_UNLIMITED = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in (NOT_READY, UNREACHABLE)]
_ITEMS: dict[str, bytes] = {
    "nothing": b"{}",
    "keys": b'{"key":"a"}',
    "terms": b'{"matchExpressions":[{"key":"a"}]}',
    "halves": b'{"matchExpressions":[{"key":"type"}],"matchFields":[{"key":"a"}]}',
    "claims": b'{"persistentVolumeClaim":{"claimName":"c"}}',
    "texts": b'"a"',
    "escapes": b'"\\u003c\\u003c"',
    "lists": b"[[],[]]",
}


def volume_review(first: int, second: int) -> bytes:
    """Return the review of a prepared pod that has so many alternatives, and gets so many more."""
    noted = orjson.dumps({"affinity": _affinity(first)}).decode()
    return review({"affinity": _affinity(second), "tolerations": _UNLIMITED}, annotations={CLUSTER_SELECTOR: noted})


def heavy_review(size: int) -> Iterator[tuple[str, bytes]]:
    """Yield reviews with a part of about `size` bytes, each with a name."""
    for name, item in _ITEMS.items():
        filling = orjson.Fragment(b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]")
        for field in ("tolerations", "volumes", "containers"):
            yield f"{field} of {name}", review({field: filling})
        required = {REQUIRED: {"nodeSelectorTerms": filling}}
        yield f"node affinity of {name}", review({"affinity": {"nodeAffinity": required}})
        yield f"one term of {name}", review({"affinity": _one_term({"matchExpressions": filling})})
        values = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": filling}
        yield f"values of {name}", review({"affinity": _one_term({"matchExpressions": [values]})})
        yield f"pod affinity of {name}", review({"affinity": {"podAffinity": {REQUIRED: filling}}})
        yield f"owners of {name}", review({"nodeSelector": {"a": "b"}}, ownerReferences=filling)
        yield f"unknown fields of {name}", review({"affinity": {"unknown": filling}})
    entries = {f"{number:x}": "" for number in range(size // 9)}
    yield "nodeSelector", review({"nodeSelector": entries})
    yield "annotations", review({"nodeSelector": {"a": "b"}}, annotations=entries)
    yield "labels", review({"nodeSelector": {"a": "b"}}, labels={VIRTUAL_POD: "true", **entries})


def review(spec: Manifest, **meta: Any) -> bytes:
    """Return the review of a new pod."""
    pod = {"metadata": {"labels": {VIRTUAL_POD: "true"}, **meta}, "spec": {"nodeName": "", **spec}}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": "asked", "kind": kind, "operation": "CREATE", "namespace": "default", "object": pod}
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


def _affinity(terms: int) -> Manifest:
    every = [{"matchExpressions": [{"key": f"k{one}", "operator": "Exists"}]} for one in range(terms)]
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": every}}}


def _one_term(term: Manifest) -> Manifest:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}
