"""Tests of which line of the topology file causes a change, and which changes have no line."""

from collections.abc import Callable

import pytest
from previewkit import A, B, create, delete, json_patch, node, observed_object, pod, previewed

from tensile.objects import POD, UPPER, Manifest, Ref
from tensile.reconcile.plan import Step
from tensile.reconcile.report import as_json, as_markdown, as_text, lines_of
from tensile.topology import parse

TEXT = """\
apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: demo
lowerDefaults:
  node:
    annotations: {team: core}
lowers:
- name: lower-a
  kubeconfig: k/a
  maintenance: drain
  node:
    labels:
      tier: gold
    taints: []
- kubeconfig: k/b
  name: lower-b
"""
SEEN = observed_object({"metadata": {"labels": {}, "annotations": {}}, "spec": {}})
DRAINED = "lower cluster lower-a is being drained"


def line(step: Step, seen: Manifest = SEEN) -> int:
    """Return the line of the only change."""
    found = lines_of("topology.yaml", TEXT, parse(TEXT))(previewed(step, seen={step.ref: seen}))
    (change,) = found.changes
    return change.line


def add(path: str, value: object, name: str = A) -> Step:
    """Return a step that sets a field of a Node."""
    return json_patch(node(name), {"op": "add", "path": path, "value": value})


@pytest.mark.parametrize(
    ("step", "number"),
    [
        (lambda: create(node(A)), 8),
        (lambda: create(node(B)), 15),
        (lambda: add("/metadata/labels/tier", "gold"), 13),
        (lambda: add("/metadata/annotations/team", "core"), 6),
        (lambda: add("/spec/taints", [{"key": "a", "effect": "NoSchedule"}]), 14),
        (lambda: add("/spec/unschedulable", True), 10),
        (lambda: delete(Ref(UPPER, POD, "shop", "web"), DRAINED), 10),
    ],
    ids=["lower", "lower whose name is not first", "label", "inherited annotation", "taints", "maintenance", "drain"],
)
def test_a_change_that_follows_from_the_topology_file_has_its_line(step: Callable[[], Step], number: int) -> None:
    """It is the line of the key, or of the entry of a new lower cluster."""
    assert line(step()) == number


@pytest.mark.parametrize(
    "step",
    [
        lambda: add("/metadata/labels/tier", "silver"),
        lambda: add("/metadata/labels/other", "gold"),
        lambda: add("/spec/unschedulable", True, B),
        lambda: add("/status/allocatable", {"cpu": "4"}),
        lambda: create(node("lower-x")),
        lambda: delete(node(A)),
        lambda: create(pod()),
        lambda: delete(pod(), DRAINED),
        lambda: delete(Ref(UPPER, POD, "shop", "web"), "another reason"),
    ],
)
def test_a_change_that_does_not_follow_from_the_topology_file_has_no_line(step: Callable[[], Step]) -> None:
    """This applies to pods, capacity, and values that are not in the file."""
    assert line(step()) == 0


def test_every_output_format_has_the_line() -> None:
    """Text and Markdown have it with the name of the file, and JSON has it as a number."""
    found = lines_of("topology.yaml", TEXT, parse(TEXT))(previewed(create(node(A)), create(pod())))
    text = as_text(found, colour=False)
    assert "\n+ Node lower-a: because (topology.yaml:8)\n" in text
    assert "\n+ Pod shop/web: because\n" in text
    assert "(topology.yaml:8)" in as_markdown(found)
    assert as_json(found).count(b'"line": 8') == 1
