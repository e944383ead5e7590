"""Tests of the validation of pods: each mistake is reported with its position, and no later code receives it."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from tensile.cli.mutate import default_topology, mutation, read_pods, written
from tensile.diagnostics.podfile import templates
from tensile.errors import TensileError
from tensile.policy.placement.snapshot import pod_of
from tensile.reconcile.pods.pod_schema import forms

REQUIREMENT = {"key": "disk", "operator": "In", "values": ["ssd"]}
SELECTOR = {"matchLabels": {"app": "web"}, "matchExpressions": [REQUIREMENT]}
TERM = {"topologyKey": "zone", "labelSelector": SELECTOR, "namespaces": ["a"], "matchLabelKeys": ["app"]}
REQUIRED, PREFERRED = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))
COMPANY = {REQUIRED: [TERM], PREFERRED: [{"weight": 1, "podAffinityTerm": TERM}]}
CONTAINER = {
    "name": "m",
    "image": "app:1",
    "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    "ports": [{"containerPort": 80, "hostPort": 80}],
    "resources": {"requests": {"cpu": "1", "memory": 5}, "limits": {"cpu": 2.5}},
    "volumeMounts": [{"name": "token", "mountPath": "/t"}],
    "securityContext": {"runAsUser": 1000, "privileged": False},
}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web",
        "namespace": "shop",
        "labels": {"virtual-pod": "true"},
        "annotations": {"a": "b"},
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "w", "uid": "u", "controller": True}
        ],
    },
    "spec": {
        "containers": [CONTAINER],
        "initContainers": [{**CONTAINER, "name": "i", "restartPolicy": "Always"}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 3}],
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [REQUIREMENT], "matchFields": [REQUIREMENT]}]},
                PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [REQUIREMENT]}}],
            },
            "podAffinity": COMPANY,
            "podAntiAffinity": COMPANY,
        },
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": SELECTOR}
        ],
        "volumes": [
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "fast"}}}},
            {"name": "disk", "gcePersistentDisk": {"pdName": "d"}},
            {"name": "secret", "secret": {"secretName": "s", "items": [{"key": "k", "path": "p"}]}},
        ],
        "overhead": {"cpu": "10m"},
        "schedulingGates": [{"name": "g"}],
        "serviceAccountName": "robot",
        "priorityClassName": "high",
        "hostNetwork": True,
    },
}
ODD = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        2**63,
        2**70,
        1.5,
        "",
        "x",
        "one",
        "1",
        [],
        [None],
        ["x"],
        [[]],
        [{}],
        {},
        {"x": None},
        {"x": 1},
    ]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a value, including itself."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, one in inside:
        yield from places(one, (*path, step))


PLACES = [path for path in places(POD) if path and path[0] not in ("apiVersion", "kind")]


def changed(path: tuple[Any, ...], value: Any, *, gone: bool = False) -> dict[str, Any]:
    """Return the pod with another value at a path, or with none."""
    pod = copy.deepcopy(POD)
    inside: Any = pod
    for step in path[:-1]:
        inside = inside[step]
    if gone:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return pod


def worked(pod: dict[str, Any]) -> str:
    """Validate and process a pod as the commands do, and return the error, "" if there is none."""
    text = json.dumps(pod).encode()
    try:
        found = mutation(read_pods(text, "pod")[0], default_topology())
        assert written([found], "yaml")
        assert pod_of(templates(text, "pod")[0].pod).name
    except TensileError as error:
        return str(error)
    return ""


def test_a_valid_pod_is_accepted() -> None:
    """The pod has many kinds of fields, all as the API defines them."""
    assert worked(POD) == ""


@examples(400)
@given(path=st.sampled_from(PLACES), value=ODD, gone=st.booleans())
def test_a_changed_field_is_reported_with_its_position_or_is_harmless(
    *, path: tuple[Any, ...], value: Any, gone: bool
) -> None:
    """A pod is refused with lines that an editor can jump to, or all code for pods accepts it."""
    problems = worked(changed(path, value, gone=gone))
    assert all(line.startswith("pod:1:") and line.count(": ") >= 2 for line in problems.splitlines())


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("spec", "containers", 0, "securityContext", "runAsUser"),
            2**70,
            "is not a 64-bit number; write a smaller one",
        ),
        (
            ("spec", "volumes", 2, "ephemeral", "volumeClaimTemplate"),
            "x",
            'volumeClaimTemplate: "x" is not a mapping; ',
        ),
        (("spec", "hostNetwork"), "yes", 'spec.hostNetwork: "yes" is neither true nor false; write one of them'),
        (("spec", "overhead", "cpu"), "one", 'spec.overhead.cpu: "one" is not a quantity; write one such as 500m'),
        (
            ("spec", "containers", 0, "ports", 0, "containerPort"),
            "80",
            'containerPort: "80" is not a 64-bit whole number',
        ),
        (("spec", "tolerations", 0), None, "spec.tolerations[0]: the value is empty; write a value, or remove it"),
        (("spec", "affinity", "podAffinity", REQUIRED, 0), {}, f"{REQUIRED}[0]: topologyKey is missing; add it"),
    ],
)
def test_the_error_describes_the_mistake_and_the_correction(path: tuple[Any, ...], value: Any, message: str) -> None:
    """The message contains the wrong value and what is valid instead."""
    assert message in worked(changed(path, value))


def test_all_mistakes_of_a_pod_are_reported_together() -> None:
    """The errors are in the order of the file."""
    text = b"apiVersion: v1\nkind: Pod\nmetadata: {labels: {a: 1}}\nspec:\n  containers: {}\n  nodeName: 5\n"
    with pytest.raises(TensileError) as caught:
        read_pods(text, "pod.yaml")
    assert str(caught.value).splitlines() == [
        "pod.yaml:3:11: metadata: name is missing; add it",
        "pod.yaml:3:24: metadata.labels.a: the number 1 is not a string; put it in quotes",
        "pod.yaml:5:15: spec.containers: a mapping is not a list; write each item after a dash",
        "pod.yaml:6:13: spec.nodeName: the number 5 is not a string; put it in quotes",
    ]


def test_infinite_numbers_are_refused_in_any_field() -> None:
    """JSON has no infinity, so no object can contain it."""
    with pytest.raises(TensileError, match=r"^p:1:6: new: the number is not finite; write a finite one"):
        read_pods(b"new: .inf", "p")


def test_unknown_fields_of_a_pod_are_accepted() -> None:
    """A newer apiserver may know them."""
    pod = changed(("spec", "invention"), {"a": [1]})
    assert read_pods(orjson.dumps(pod), "p") == [pod]


def test_every_kind_of_the_pod_schema_has_a_check() -> None:
    """A kind without a check would accept every value."""
    leaves = {"string", "Time", "integer", "boolean", "IntOrString", "Quantity", "FieldsV1"}
    kinds = {
        kind.removesuffix("!").removeprefix("[]").removeprefix("map[string]")
        for of in forms().values()
        for kind in of.values()
    }
    assert kinds - forms().keys() == leaves
