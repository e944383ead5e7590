"""Tests of how `tensile simulate` reads its pod from a file with a pod, a workload or several documents."""

import re
from typing import Any

import orjson
import pytest
import yaml

from tensile.diagnostics.podfile import filled, sources, template_pod, templates
from tensile.errors import TensileError

SPEC = {"containers": [{"name": "m", "image": "a"}]}


def read(**fields: Any) -> Any:
    """Return the pod template of an object."""
    (found,) = templates(yaml.safe_dump({"apiVersion": "v1", **fields}).encode(), "pod.yaml")
    return found


def test_a_pod_is_read_unchanged_with_the_default_namespace() -> None:
    """The namespace is the one that kubectl would use."""
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
def test_a_workload_is_read_as_its_template_and_replicas(kind: str, spec: dict[str, int], replicas: int | None) -> None:
    """The pod's labels are the template's, and its name and namespace are the owner's."""
    body = {"metadata": {"labels": {"app": "web"}}, "spec": SPEC}
    found = read(
        kind=kind,
        metadata={"name": "web", "namespace": "shop", "labels": {"not": "these"}},
        spec={**spec, "template": body},
    )
    assert found.pod["metadata"] == {"name": "web", "namespace": "shop", "labels": {"app": "web"}, "annotations": {}}
    assert found.replicas == replicas


def test_a_cron_job_is_read_as_the_template_of_its_job() -> None:
    """The template is nested in the job template."""
    job = {"spec": {"parallelism": 2, "template": {"spec": SPEC}}}
    found = read(kind="CronJob", metadata={"name": "nightly"}, spec={"schedule": "0 0 * * *", "jobTemplate": job})
    assert found.replicas == 2
    assert found.pod["metadata"]["name"] == "nightly"


def test_a_pod_in_json_is_read() -> None:
    """JSON is YAML too."""
    (found,) = templates(orjson.dumps({"kind": "Pod", "spec": SPEC}), "pod.json")
    assert found.pod["metadata"]["name"] == "pod"


CHART = """\
# Source: shop/templates/service.yaml
---
apiVersion: v1
kind: Service
metadata: {name: web}
---
# nothing here
---
kind: Deployment
metadata: {name: web}
spec: {replicas: 3, template: {spec: {containers: [{name: m}]}}}
---
kind: Rollout
metadata: {name: canary}
spec: {template: {spec: {containers: [{name: m}]}}}
"""


def test_documents_without_a_pod_are_skipped() -> None:
    """An unknown kind counts if it has a pod template."""
    found = templates(CHART.encode(), "chart.yaml")
    assert [(one.pod["metadata"]["name"], one.replicas) for one in found] == [("web", 3), ("canary", None)]


def test_an_error_in_a_later_document_has_the_line_of_the_file() -> None:
    """A workload without containers is not skipped."""
    with pytest.raises(TensileError, match=r"^chart.yaml:11:52: spec.template.spec.containers.0.: "):
        templates(CHART.replace("[{name: m}]", "[m]", 1).encode(), "chart.yaml")
    with pytest.raises(TensileError, match=r"^chart.yaml:11:\d+: spec.template: no pod"):
        templates(CHART.replace("[{name: m}]", "[]", 1).encode(), "chart.yaml")


def test_more_than_100_documents_are_refused() -> None:
    """The number is limited to 100 documents in one file."""
    with pytest.raises(TensileError, match=r"^many.yaml: more than 100 documents; put fewer into one file$"):
        templates(b"---\na: 1\n" * 101, "many.yaml")


@pytest.mark.parametrize(
    "kind", ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob", "PodTemplate"]
)
def test_the_pod_of_a_controller_is_made_from_its_template(kind: str) -> None:
    """Only the pod of a DaemonSet has its owner, because mirroring depends on it."""
    body: dict[str, Any] = {"metadata": {"labels": {"app": "web"}}, "spec": SPEC}
    parts = {"PodTemplate": {"template": body}, "CronJob": {"spec": {"jobTemplate": {"spec": {"template": body}}}}}
    document = {
        "kind": kind,
        "metadata": {"name": "web", "namespace": "shop"},
        **parts.get(kind, {"spec": {"template": body}}),
    }
    (source,) = sources(orjson.dumps(document), "web.json")
    pod = template_pod(source, "web.json")
    owners = pod["metadata"].pop("ownerReferences", [])
    assert [(one["kind"], one["controller"]) for one in owners] == ([(kind, True)] if kind == "DaemonSet" else [])
    assert pod == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "web-", "namespace": "shop", "labels": {"app": "web"}},
        "spec": SPEC,
    }


def test_a_limit_is_the_request_if_no_request_is_given() -> None:
    """The apiserver sets this default for each resource."""
    resources = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
    spec = filled({"containers": [{"name": "m", "resources": resources}], "initContainers": [{"name": "i"}]})
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert spec["initContainers"][0]["resources"]["requests"] == {}


def test_container_ports_are_host_ports_on_the_host_network() -> None:
    """Without hostNetwork, a container port is not a host port."""
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
def test_a_document_without_a_pod_is_refused_with_its_position(text: str, why: str) -> None:
    """The error is a TensileError that begins with the file and the position."""
    with pytest.raises(TensileError, match="^" + re.escape(f"pod.yaml:{why}")):
        templates(text.encode(), "pod.yaml")


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
def test_a_mistyped_workload_is_refused_with_its_position(field: str, written: str, why: str) -> None:
    """Negative replicas are refused too, because they would fit on any cluster."""
    text = MISTYPED
    for name, right in {**RIGHT, field: written}.items():
        text = text.replace("{" + name + "}", right)
    with pytest.raises(TensileError) as caught:
        templates(text.encode(), "pod.yaml")
    assert str(caught.value).startswith("pod.yaml:")
    assert why in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
