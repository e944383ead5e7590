"""The webhook's annotation: its form is checked, since anybody can write it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from podkit import place, pod

from tensile.kubelet.scheduling_fields import scheduling_fields
from tensile.reconcile.cluster_selector import cluster_selector, cluster_selector_flaw

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def annotated(text: str) -> dict:
    """Make a pod with that text in the annotation."""
    return pod(annotations={"clusterSelector": text})


@pytest.mark.parametrize("annotations", [None, {}, {"other": "x"}, {"clusterSelector": ""}])
def test_no_annotation_is_no_selector(annotations: dict | None) -> None:
    """A pod that the webhook never saw has none, and nothing is wrong with that."""
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
def test_what_the_webhook_writes_is_read_whole(selector: dict) -> None:
    """Every form that tensile-kube's webhook writes is taken as it is, fields of later versions included."""
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
    ],
)
def test_a_text_of_another_form_counts_as_none_and_is_said(text: str) -> None:
    """It never raises, and says what is wrong."""
    assert cluster_selector(annotated(text)) is None
    assert cluster_selector_flaw(annotated(text)) != ""


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
def test_no_annotation_breaks_the_projection(selector: Any) -> None:
    """Whatever JSON somebody writes into the annotation, the scheduling fields can be worked out."""
    assert isinstance(scheduling_fields(annotated(json.dumps(selector)), place()), dict)


@given(st.text())
def test_no_text_breaks_the_projection(text: str) -> None:
    """Nor does any text that is not JSON at all."""
    assert isinstance(scheduling_fields(annotated(text), place()), dict)
