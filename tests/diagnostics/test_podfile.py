"""The pod that `tensile simulate` is asked about, read from whatever has one."""

import re
from typing import Any

import orjson
import pytest
import yaml

from tensile.diagnostics.podfile import filled, template
from tensile.errors import TensileError

SPEC = {"containers": [{"name": "m", "image": "a"}]}


def read(**fields: Any) -> Any:
    """Read an object."""
    return template(yaml.safe_dump({"apiVersion": "v1", **fields}).encode(), "pod.yaml")


def test_a_pod() -> None:
    """As it is, with the namespace that kubectl would take."""
    found = read(kind="Pod", metadata={"name": "web", "labels": {"a": "b"}, "annotations": {"c": "d"}}, spec=SPEC)
    assert found.pod["metadata"] == {
        "name": "web",
        "namespace": "default",
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
    }
    assert found.pod["spec"]["containers"][0]["name"] == "m"
    assert found.replicas is None
    assert "uid" not in found.pod["metadata"]


@pytest.mark.parametrize(
    ("kind", "spec", "replicas"),
    [
        ("Deployment", {"replicas": 7}, 7),
        ("StatefulSet", {"replicas": 0}, 0),
        ("Deployment", {}, None),
        ("Job", {"parallelism": 3}, 3),
        ("ReplicaSet", {"replicas": 2}, 2),
    ],
)
def test_what_has_a_template(kind: str, spec: dict[str, int], replicas: int | None) -> None:
    """The pod's labels are the template's, its name and namespace the owner's."""
    body = {"metadata": {"labels": {"app": "web"}}, "spec": SPEC}
    found = read(
        kind=kind,
        metadata={"name": "web", "namespace": "shop", "labels": {"not": "these"}},
        spec={**spec, "template": body},
    )
    assert found.pod["metadata"] == {"name": "web", "namespace": "shop", "labels": {"app": "web"}, "annotations": {}}
    assert found.replicas == replicas


def test_a_cron_job() -> None:
    """Its template is one further down."""
    job = {"spec": {"parallelism": 2, "template": {"spec": SPEC}}}
    found = read(kind="CronJob", metadata={"name": "nightly"}, spec={"schedule": "0 0 * * *", "jobTemplate": job})
    assert found.replicas == 2
    assert found.pod["metadata"]["name"] == "nightly"


def test_json_is_read_too() -> None:
    """It is YAML."""
    assert template(orjson.dumps({"kind": "Pod", "spec": SPEC}), "pod.json").pod["metadata"]["name"] == "pod"


def test_a_limit_is_a_request_where_none_is_given() -> None:
    """As the apiserver has it, for each resource."""
    resources = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
    spec = filled({"containers": [{"name": "m", "resources": resources}], "initContainers": [{"name": "i"}]})
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert spec["initContainers"][0]["resources"]["requests"] == {}


def test_ports_of_a_pod_on_its_nodes_network() -> None:
    """They are the node's."""
    container = {"name": "m", "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}]}
    assert [
        one["hostPort"] for one in filled({"hostNetwork": True, "containers": [container]})["containers"][0]["ports"]
    ] == [80, 81]
    assert filled({"containers": [container]})["containers"][0]["ports"][0] == {"containerPort": 80}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "1:1: spec.template: no pod"),
        ("- a\n", "1:1: spec.template: no pod"),
        ("kind: ConfigMap\ndata: {a: b}\n", "1:1: spec.template: no pod"),
        ("kind: Pod\nspec: {}\n", "1:1: (file): no pod"),
        ("kind: Pod\nspec: {containers: []}\n", "1:1: (file): no pod"),
        ("kind: Pod\nspec: {containers: [a]}\n", '2:21: spec.containers[0]: "a" is not a mapping; '),
        ("kind: Deployment\nspec: {replicas: 2}\n", "2:1: spec.template: no pod"),
        ("kind: Deployment\nspec: {template: {}}\n", "2:18: spec.template: no pod"),
        ("kind: CronJob\nspec: {template: {}}\n", "2:1: spec.jobTemplate.spec.template: no pod"),
        ("kind: Pod\nspec: {containers: [}\n", "2:"),
        ("kind: Pod\nkind: Pod\nspec: {}\n", "2:1: kind: "),
    ],
)
def test_what_is_no_pod(text: str, why: str) -> None:
    """It is refused with its place, and never with a traceback."""
    with pytest.raises(TensileError, match="^" + re.escape(f"pod.yaml:{why}")):
        template(text.encode(), "pod.yaml")


MISTYPED = """\
kind: Deployment
metadata: {METADATA}
spec:
  replicas: {REPLICAS}
  template:
    metadata: {LABELS}
    spec:
      containers:
      - {name: m, resources: {RESOURCES}}
"""
RIGHT = {"METADATA": "{name: web}", "REPLICAS": "2", "LABELS": "{}", "RESOURCES": "{requests: {cpu: 1}}"}


@pytest.mark.parametrize(
    ("field", "written", "why"),
    [
        ("METADATA", "x", '2:11: metadata: "x" is not a mapping; write its fields as KEY: VALUE'),
        (
            "REPLICAS",
            '"3"',
            '4:13: spec.replicas: "3" is not a 64-bit whole number; write one such as 3, without quotes',
        ),
        ("REPLICAS", "-4", "4:13: spec.replicas: -4 is less than none; write 0 or more"),
        ("REPLICAS", "true", "4:13: spec.replicas: true is not a 64-bit whole number"),
        ("LABELS", "[a]", "6:15: spec.template.metadata: a list is not a mapping; "),
        (
            "LABELS",
            "{labels: {on: yes, no: 1}}",
            "6:38: spec.template.metadata.labels.no: the number 1 is not a string; put",
        ),
        ("RESOURCES", "[x]", "9:30: spec.template.spec.containers[0].resources: a list is not a mapping"),
        (
            "RESOURCES",
            "{requests: {cpu: one}}",
            '9:47: spec.template.spec.containers[0].resources.requests.cpu: "one" is not a quantity; write one',
        ),
        ("RESOURCES", "{requests: {cpu: }}", "resources.requests.cpu: the value is empty; write a value"),
    ],
)
def test_a_workload_that_is_mistyped(field: str, written: str, why: str) -> None:
    """Each place is told; a count of less than none would fit anywhere."""
    text = MISTYPED
    for name, right in {**RIGHT, field: written}.items():
        text = text.replace("{" + name + "}", right)
    with pytest.raises(TensileError) as caught:
        template(text.encode(), "pod.yaml")
    assert str(caught.value).startswith("pod.yaml:")
    assert why in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
