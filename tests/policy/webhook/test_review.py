"""Tests of AdmissionReview: both versions, objects that are not handled, and malformed requests."""

import re
from base64 import b64decode
from typing import Any

import jsonpatch
import orjson
import pytest
from admissionkit import PROVIDER, VK_B, Manifest, pod, required, requirement, selector_of, term, terms
from hypothesis import given
from hypothesis import strategies as st

from bench.speed.heavy_reviews import SIZES, heavy_review, volume_review
from tensile.policy.webhook.review import MalformedReview, answer
from tensile.reconcile.pods.scheduling import LONGEST, REQUIRED

SELECTING = pod({"nodeSelector": {"disk": "ssd"}})


def review(obj: Any, version: str = "v1", **request: Any) -> bytes:
    """Return a review of a new pod."""
    basis = {
        "uid": "asked-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "default",
        "userInfo": {"username": "somebody"},
        "object": obj,
        "oldObject": None,
        "dryRun": False,
    }
    kind = {"apiVersion": f"admission.k8s.io/{version}", "kind": "AdmissionReview"}
    return orjson.dumps({**kind, "request": {**basis, **request}})


def review_response(body: bytes) -> Manifest:
    """Return the response to a review."""
    found: Manifest = orjson.loads(answer(body, terms(PROVIDER)))
    return found


def patched(obj: Manifest, response: Manifest) -> Manifest:
    """Return the object after the patch of a response, as an apiserver applies it."""
    assert response["patchType"] == "JSONPatch"
    found: Manifest = jsonpatch.apply_patch(obj, orjson.loads(b64decode(response["patch"])))
    return found


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_both_review_versions_are_answered_in_their_own_version(version: str) -> None:
    """The response has the UID of the request, and its patch results in the prepared pod."""
    found = review_response(review(SELECTING, version))
    assert (found["apiVersion"], found["kind"]) == (f"admission.k8s.io/{version}", "AdmissionReview")
    assert (found["response"]["uid"], found["response"]["allowed"]) == ("asked-1", True)
    assert selector_of(patched(SELECTING, found["response"])) == '{"nodeSelector":{"disk":"ssd"}}'


def test_the_response_does_not_repeat_the_request() -> None:
    """The request may contain secret values."""
    assert set(review_response(review(SELECTING))) == {"apiVersion", "kind", "response"}


@pytest.mark.parametrize(
    "question",
    [
        review(pod(labels={})),
        review(SELECTING, namespace="kube-system"),
        review(SELECTING, operation="UPDATE"),
        review(SELECTING, subResource="status"),
        review({"kind": "Deployment"}, kind={"group": "apps", "version": "v1", "kind": "Deployment"}),
        review(SELECTING, kind={"group": "example.com", "version": "v1", "kind": "Pod"}),
        review(None, operation="DELETE"),
    ],
)
def test_objects_that_are_not_handled_are_allowed_without_a_patch(question: bytes) -> None:
    """The webhook never refuses an object."""
    assert review_response(question)["response"] == {"uid": "asked-1", "allowed": True}


@pytest.mark.parametrize("odd", [{"nodeSelector": ["disk"]}, {"tolerations": "all"}, {"affinity": {"nodeAffinity": 1}}])
def test_a_malformed_pod_is_allowed_with_a_warning(odd: Manifest) -> None:
    """The apiserver will report the fault, and the webhook must not make a creation fail."""
    response = review_response(review(pod(odd)))["response"]
    assert (response["allowed"], "patch" in response) == (True, False)
    assert response["warnings"][0].startswith("the pod is not mutated for virtual nodes: ")


def test_a_pod_with_an_infinite_number_is_allowed_with_a_warning() -> None:
    """The number cannot be encoded as JSON, so it must not reach the response."""
    body = review(pod({"tolerations": [{"key": "number"}]})).replace(b'"number"', b'"a","x":1e400')
    response = review_response(body)["response"]
    assert (response["allowed"], "patch" in response) == (True, False)
    assert "infinity" in response["warnings"][0]


@pytest.mark.parametrize(("first", "second"), [(200, 200), (400, 400), (1, 1_000), (400, 3)])
def test_too_many_combinations_of_affinity_terms_are_allowed_with_a_warning(first: int, second: int) -> None:
    """The pod is not mutated, and its author is informed of the limit in a short response."""
    found = answer(volume_review(first, second), terms(PROVIDER))
    response = orjson.loads(found)["response"]
    assert (response["allowed"], "patch" in response) == (True, False)
    assert re.search(r"the limit is [0-9,]+$", response["warnings"][0])
    assert len(found) < 1_000


def test_the_warning_has_the_number_of_terms_and_the_limit() -> None:
    """The author of the pod can correct it with that information."""
    (warning,) = orjson.loads(answer(volume_review(200, 200), terms(PROVIDER)))["response"]["warnings"]
    assert warning == (
        "the pod is not mutated for virtual nodes: 200 node selector terms in annotation clusterSelector times 200 in "
        "the spec are 40,000; the limit is 1,000"
    )
    (warning,) = orjson.loads(answer(volume_review(30, 31), terms(PROVIDER)))["response"]["warnings"]
    assert "in the spec are about 105,471 bytes; the limit is 32,768" in warning


def test_combinations_of_affinity_terms_within_the_limit_are_mutated() -> None:
    """Ten times twenty terms result in 200 terms with both requirements."""
    body = volume_review(10, 20)
    response = orjson.loads(answer(body, terms(PROVIDER)))["response"]
    changed = patched(orjson.loads(body)["request"]["object"], response)
    noted = orjson.loads(selector_of(changed) or "")["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert (len(noted), {len(one["matchExpressions"]) for one in noted}) == (200, {2})


@pytest.mark.parametrize("size", SIZES)
def test_large_pods_are_allowed_with_a_short_response(size: int) -> None:
    """Each field is filled with its most expensive content; no pod is refused and no error is raised."""
    for name, body in heavy_review(size):
        found = answer(body, terms(PROVIDER))
        assert orjson.loads(found)["response"]["allowed"], name
        assert len(found) < 1_000 + 3 * LONGEST, name


def test_a_large_pod_that_did_not_opt_in_is_allowed_without_a_warning() -> None:
    """Its size does not matter."""
    large = pod({"affinity": required(*[term(requirement("k"))] * 2_000)}, labels={}, annotations={"a": "x" * 300_000})
    assert review_response(review(large))["response"] == {"uid": "asked-1", "allowed": True}


def test_an_ignored_cluster_selector_annotation_is_a_warning() -> None:
    """The requirements in the spec replace it, so this warning is its author's only information."""
    given_pod = pod({"nodeSelector": {"disk": "ssd"}}, annotations={"clusterSelector": '{"x":1e400}'})
    response = review_response(review(given_pod))["response"]
    assert selector_of(patched(given_pod, response)) == '{"nodeSelector":{"disk":"ssd"}}'
    assert response["warnings"][0].startswith("annotation clusterSelector is ignored: number is infinity")


def test_claims_of_a_pod_are_looked_up_in_the_namespace_of_the_request() -> None:
    """The pod itself has no namespace here."""
    given_pod = pod({"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}, namespace=None)
    chosen = {("team", "data"): VK_B}
    found = answer(review(given_pod, namespace="team"), terms(), lambda *claim: chosen.get(claim, ""))
    prepared = patched(given_pod, orjson.loads(found)["response"])
    assert prepared["spec"]["affinity"] == required(term(requirement("kubernetes.io/hostname", VK_B)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}',
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":1}}',
        b'{"apiVersion":"v1","kind":"Pod","request":{"uid":""}}',
        b'{"apiVersion":"admission.k8s.io/v2","kind":"AdmissionReview","request":{"uid":""}}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_no_review_raises_malformed_review(body: bytes) -> None:
    """Truncated, foreign and deeply nested bodies are refused."""
    with pytest.raises(MalformedReview):
        answer(body, terms())


@given(
    st.binary(max_size=200) | st.recursive(st.none() | st.text(max_size=5), st.lists, max_leaves=5).map(orjson.dumps)
)
def test_random_bodies_only_raise_malformed_review(body: bytes) -> None:
    """None of these bodies can be a review."""
    with pytest.raises(MalformedReview):
        answer(body, terms())
