"""AdmissionReview: both versions, what is not asked about, and what is no question at all."""

import re
from base64 import b64decode
from typing import Any

import jsonpatch
import orjson
import pytest
from admissionkit import PROVIDER, VK_B, Manifest, pod, required, requirement, selector_of, term, terms
from hypothesis import given
from hypothesis import strategies as st

from bench.speed.heavy import SIZES, crossing, heavy
from tensile.policy.webhook.review import MalformedReview, answer
from tensile.reconcile.pods.scheduling import LONGEST, REQUIRED

SELECTING = pod({"nodeSelector": {"disk": "ssd"}})


def review(obj: Any, version: str = "v1", **request: Any) -> bytes:
    """Write a question about a new pod."""
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


def asked(body: bytes) -> Manifest:
    """Return the response to a question."""
    found: Manifest = orjson.loads(answer(body, terms(PROVIDER)))
    return found


def patched(obj: Manifest, response: Manifest) -> Manifest:
    """Return what an apiserver makes of an answer."""
    assert response["patchType"] == "JSONPatch"
    found: Manifest = jsonpatch.apply_patch(obj, orjson.loads(b64decode(response["patch"])))
    return found


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_both_versions_are_answered_in_their_own(version: str) -> None:
    """The answer is of the question's version and about the question's UID, and its patch leads to the prepared pod."""
    found = asked(review(SELECTING, version))
    assert (found["apiVersion"], found["kind"]) == (f"admission.k8s.io/{version}", "AdmissionReview")
    assert (found["response"]["uid"], found["response"]["allowed"]) == ("asked-1", True)
    assert selector_of(patched(SELECTING, found["response"])) == '{"nodeSelector":{"disk":"ssd"}}'


def test_the_answer_does_not_say_the_question_again() -> None:
    """What is asked about may hold what others must not see; it goes no further."""
    assert set(asked(review(SELECTING))) == {"apiVersion", "kind", "response"}


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
def test_what_is_nobodys_business_here_passes_as_it_is(question: bytes) -> None:
    """Allowed, without a patch: refusing is for others."""
    assert asked(question)["response"] == {"uid": "asked-1", "allowed": True}


@pytest.mark.parametrize("odd", [{"nodeSelector": ["disk"]}, {"tolerations": "all"}, {"affinity": {"nodeAffinity": 1}}])
def test_a_pod_of_another_form_passes_with_a_warning(odd: Manifest) -> None:
    """The apiserver will say what is wrong with it; a creation must not fail because of us."""
    response = asked(review(pod(odd)))["response"]
    assert (response["allowed"], "patch" in response) == (True, False)
    assert response["warnings"][0].startswith("the pod is not mutated for virtual nodes: ")


def test_a_number_that_no_json_can_say_again_passes_with_a_warning() -> None:
    """In a pod that no apiserver has looked at: it never gets as far as the answer."""
    body = review(pod({"tolerations": [{"key": "number"}]})).replace(b'"number"', b'"a","x":1e400')
    response = asked(body)["response"]
    assert (response["allowed"], "patch" in response) == (True, False)
    assert "infinity" in response["warnings"][0]


@pytest.mark.parametrize(("first", "second"), [(200, 200), (400, 400), (1, 1_000), (400, 3)])
def test_alternatives_are_not_multiplied_without_end(first: int, second: int) -> None:
    """A pod that was prepared with many, and is given many more, passes as it is, and its author is told the bound."""
    found = answer(crossing(first, second), terms(PROVIDER))
    response = orjson.loads(found)["response"]
    assert (response["allowed"], "patch" in response) == (True, False)
    assert re.search(r"the limit is [0-9,]+$", response["warnings"][0])
    assert len(found) < 1_000


def test_the_count_of_alternatives_and_its_bound_are_said() -> None:
    """So that it can be mended by who wrote the pod."""
    (warning,) = orjson.loads(answer(crossing(200, 200), terms(PROVIDER)))["response"]["warnings"]
    assert warning == (
        "the pod is not mutated for virtual nodes: 200 node selector terms in annotation clusterSelector times 200 in "
        "the spec are 40,000; the limit is 1,000"
    )
    (warning,) = orjson.loads(answer(crossing(30, 31), terms(PROVIDER)))["response"]["warnings"]
    assert "in the spec are about 105,471 bytes; the limit is 32,768" in warning


def test_alternatives_within_the_bound_are_multiplied() -> None:
    """Ten times twenty, each with both requirements."""
    body = crossing(10, 20)
    response = orjson.loads(answer(body, terms(PROVIDER)))["response"]
    changed = patched(orjson.loads(body)["request"]["object"], response)
    noted = orjson.loads(selector_of(changed) or "")["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert (len(noted), {len(one["matchExpressions"]) for one in noted}) == (200, {2})


@pytest.mark.parametrize("size", SIZES)
def test_whatever_is_large_is_let_pass_with_a_short_answer(size: int) -> None:
    """Each part of a pod filled with what costs most: nothing is refused, nothing raises, nothing swells."""
    for name, body in heavy(size):
        found = answer(body, terms(PROVIDER))
        assert orjson.loads(found)["response"]["allowed"], name
        assert len(found) < 1_000 + 3 * LONGEST, name


def test_a_large_pod_of_somebody_else_is_nobodys_business_here() -> None:
    """Nothing is said of a pod that did not ask for a virtual node, however large it is."""
    large = pod({"affinity": required(*[term(requirement("k"))] * 2_000)}, labels={}, annotations={"a": "x" * 300_000})
    assert asked(review(large))["response"] == {"uid": "asked-1", "allowed": True}


def test_an_annotation_that_does_not_count_is_told_of() -> None:
    """What the pod asks for now is moved, in its place; so its author hears of it here alone."""
    given_pod = pod({"nodeSelector": {"disk": "ssd"}}, annotations={"clusterSelector": '{"x":1e400}'})
    response = asked(review(given_pod))["response"]
    assert selector_of(patched(given_pod, response)) == '{"nodeSelector":{"disk":"ssd"}}'
    assert response["warnings"][0].startswith("annotation clusterSelector is ignored: number is infinity")


def test_the_claims_of_a_pod_are_looked_up() -> None:
    """In the namespace of the request."""
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
def test_what_is_no_question_is_refused(body: bytes) -> None:
    """Whatever it is, with a word of what is wrong and nothing else."""
    with pytest.raises(MalformedReview):
        answer(body, terms())


@given(
    st.binary(max_size=200) | st.recursive(st.none() | st.text(max_size=5), st.lists, max_leaves=5).map(orjson.dumps)
)
def test_nothing_else_ever_comes_of_a_body(body: bytes) -> None:
    """Malformed: none of these can be a question."""
    with pytest.raises(MalformedReview):
        answer(body, terms())
