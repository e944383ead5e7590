"""Tests of the webhook's annotation clusterSelector, whose form is checked because any client can write it."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from podkit import lower_context, pod
from properties import examples

from tensile.kubelet.pods.lower_context import lower_tolerations, scheduling_fields
from tensile.kubelet.pods.projection import notes, to_lower_pod
from tensile.policy.webhook.admission import MutationTerms, prepared
from tensile.reconcile.pods.scheduling import LONGEST, MOST, UPPER_ONLY_KEYS, cluster_selector, cluster_selector_flaw

UNLIMITED = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute"}
    for name in ("not-ready", "unreachable")
]
TERMS = MutationTerms(UPPER_ONLY_KEYS, frozenset({"vk"}), (), frozenset())
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def annotated(text: str) -> dict:
    """Return a pod with that text in the annotation."""
    return pod(annotations={"clusterSelector": text})


@pytest.mark.parametrize("annotations", [None, {}, {"other": "x"}, {"clusterSelector": ""}])
def test_a_pod_without_the_annotation_has_no_selector(annotations: dict | None) -> None:
    """A pod may not have passed the webhook, so this is no error."""
    upper = pod(annotations=annotations)
    assert cluster_selector(upper) is None
    assert cluster_selector_flaw(upper) == ""


@pytest.mark.parametrize(
    "selector",
    [
        {},
        {"nodeSelector": {"disk": "ssd", "gpu": "a100"}},
        {"tolerations": [{"operator": "Exists"}, {"key": "k", "value": "v", "tolerationSeconds": 60}]},
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a"}]}]}}}},
        {"nodeSelector": None, "affinity": None, "tolerations": None},
        {"somethingNewer": {"is": "kept"}},
    ],
)
def test_every_selector_that_the_webhook_writes_is_decoded_completely(selector: dict) -> None:
    """The forms are those of tensile-kube's webhook, and fields of later versions are kept."""
    assert cluster_selector(annotated(json.dumps(selector))) == selector


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "nonsense",
        "[]",
        "null",
        '"text"',
        "1",
        '{"nodeSelector": []}',
        '{"nodeSelector": {"a": 1}}',
        '{"tolerations": {}}',
        '{"tolerations": ["x"]}',
        '{"tolerations": [{"tolerationSeconds": "60"}]}',
        '{"affinity": []}',
        '{"affinity": {"nodeAffinity": []}}',
        '{"affinity": {"nodeAffinity": {"' + REQUIRED + '": {"nodeSelectorTerms": {}}}}}',
        '{"affinity": {"nodeAffinity": {"' + REQUIRED + '": {"nodeSelectorTerms": [{"matchFields": [{}]}]}}}}',
        '{"affinity": {"podAffinity": {"' + REQUIRED + '": [{"labelSelector": []}]}}}',
        '{"affinity": {"podAntiAffinity": {"' + REQUIRED + '": [{"namespaces": "a"}]}}}',
        "[" * 100_000,
        "{" + '"a":{' * 5_000,
        '{"x":1e400}',
        '{"tolerations":[{"x":-1e999}]}',
        '{"tolerations":[{"tolerationSeconds":9223372036854775808}]}',
        '{"x":"\\ud800"}',
        '{"x":' + "[" * 40 + "]" * 40 + "}",
    ],
)
def test_an_annotation_of_another_form_counts_as_missing_and_is_reported(text: str) -> None:
    """The check raises no error, and returns what is wrong."""
    assert cluster_selector(annotated(text)) is None
    assert cluster_selector_flaw(annotated(text)) != ""


def items(count: int) -> str:
    """Return an annotation with so many tolerations."""
    return '{"tolerations":[' + ",".join(['{"key":"a"}'] * count) + "]}"


def test_an_annotation_beyond_the_limits_counts_as_missing_and_is_reported() -> None:
    """Its length and the items of each list are limited, and an annotation at the limits is decoded."""
    assert cluster_selector(annotated(items(MOST))) is not None
    assert f"<= {MOST}" in cluster_selector_flaw(annotated(items(MOST + 1)))
    whole = '{"nodeSelector":{"a":"' + "x" * (LONGEST - 25) + '"}}'
    assert (len(whole), cluster_selector_flaw(annotated(whole))) == (LONGEST, "")
    assert cluster_selector(annotated(f"{whole} ")) is None
    assert "32,769 characters; the limit is 32,768" in cluster_selector_flaw(annotated(f"{whole} "))


WORDS = [
    "nodeSelector",
    "affinity",
    "tolerations",
    "nodeAffinity",
    "podAffinity",
    "nodeSelectorTerms",
    "matchExpressions",
    "key",
    "operator",
    "values",
    "topologyKey",
    "labelSelector",
    "effect",
    "preferredDuringSchedulingIgnoredDuringExecution",
    "podAffinityTerm",
    "preference",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*WORDS, REQUIRED]), inner, max_size=4),
    max_leaves=25,
)


@given(JSON)
def test_scheduling_fields_are_computed_for_any_json_in_the_annotation(selector: Any) -> None:
    """No JSON that a client writes raises an error."""
    assert isinstance(scheduling_fields(annotated(json.dumps(selector)), lower_context()), dict)


NUMBERS = ["0", "-1", "0.5", "1e400", "-1e400", "1e-400", "1e30", str(2**63), str(2**64), str(-(2**70)), "9" * 400]
TEXTS = st.recursive(
    st.sampled_from(["null", "true", '""', '"a"', '"\\ud800"', '"\\u0000"', "NaN", *NUMBERS]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda several: f"[{','.join(several)}]")
        | st.dictionaries(
            st.sampled_from([*WORDS, REQUIRED, "x", "tolerationSeconds", "matchFields"]), inner, max_size=4
        ).map(lambda fields: "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}")
    ),
    max_leaves=25,
)


@examples(500)
@given(TEXTS, TEXTS, st.sampled_from(["affinity", "tolerations", "nodeSelector", "x"]), st.integers(0, 300))
def test_all_readers_of_the_annotation_agree_on_invalid_text(text: str, inner: str, field: str, depth: int) -> None:
    """Decoders differ on large numbers and deep nesting, but none raises an error, and all results are valid JSON."""
    for written in (text, f'{{"{field}":{text}}}', f'{{"x":{"[" * depth}{inner}{"]" * depth},"{field}":{text}}}'):
        upper = pod(annotations={"clusterSelector": written}, labels={"virtual-pod": "true"})
        upper["spec"]["tolerations"] = UNLIMITED
        upper["spec"]["nodeSelector"] = {"disk": "ssd"}
        assert (cluster_selector(upper) is None) == (cluster_selector_flaw(upper) != "")
        assert orjson.dumps(to_lower_pod(upper, lower_context()))
        assert orjson.dumps(lower_tolerations(upper, lower_context())) is not None
        assert orjson.dumps([note.message for note in notes(upper)])
        assert orjson.dumps(prepared(upper, TERMS))


@given(st.text())
def test_scheduling_fields_are_computed_for_any_text_in_the_annotation(text: str) -> None:
    """The text need not be JSON."""
    assert isinstance(scheduling_fields(annotated(text), lower_context()), dict)
