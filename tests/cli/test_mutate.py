"""Tests of the functions of `tensile mutate`: the three pods, the choice of the lower, and refusals."""

from typing import Any

import orjson
import pytest
import yaml

from tensile.cli.mutate import default_topology, messages, mutation, read_pods, written
from tensile.errors import TensileError
from tensile.topology import parse

HEAD = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\n"
TWO = parse(
    f"{HEAD}lowers:\n- {{name: a, kubeconfig: k}}\n- {{name: b, kubeconfig: k, namespaces: {{mapping: prefix}}}}\n"
)


def pod(spec: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    """Return a pod that requests a virtual node."""
    made = {"name": "web", "labels": {"virtual-pod": "true"}, **meta}
    basis = {"containers": [{"name": "c", "image": "app:1"}], **(spec or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": basis}


def test_the_three_pods_are_derived_from_each_other() -> None:
    """They are the given pod, the webhook's result, and the lower pod with the original node selector."""
    given = pod({"nodeSelector": {"disk": "ssd"}})
    found = mutation(given, default_topology())
    assert found.pod == given
    assert found.mutated["metadata"]["annotations"] == {"clusterSelector": '{"nodeSelector":{"disk":"ssd"}}'}
    assert "nodeSelector" not in found.mutated["spec"]
    assert found.lower is not None
    assert found.lower["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert "tolerations" not in found.lower["spec"]
    assert found.messages == ()


def test_the_lower_is_one_to_which_the_pod_may_be_bound() -> None:
    """The pod's node selector or node name decides; otherwise the first lower is used with a message."""
    for spec, namespace, words in (
        ({}, "default", 0),
        ({"nodeSelector": {"clusterID": "b", "disk": "ssd"}}, "demo-default", 0),
        ({"nodeName": "b"}, "demo-default", 0),
        ({"nodeName": "elsewhere"}, "default", 1),
        ({"nodeSelector": {"clusterID": "nowhere"}}, "default", 1),
    ):
        found = mutation(pod(spec), TWO)
        assert found.lower is not None
        assert found.lower["metadata"]["namespace"] == namespace
        assert len(found.messages) == words


def test_a_pod_that_is_not_mirrored_has_no_lower_pod() -> None:
    """Its namespace is excluded, or the topology has no lower cluster, which is reported."""
    for given, topology in ((pod(namespace="kube-system"), TWO), (pod(), parse(f"{HEAD}lowers: []\n"))):
        found = mutation(given, topology)
        assert found.lower is None
        assert found.messages[0].startswith("no lower pod: ")


def test_fields_that_are_not_mirrored_are_reported() -> None:
    """The message is the one of the engine's event."""
    found = mutation(pod({"priorityClassName": "high"}), TWO)
    assert [line.partition(":")[0] for line in found.messages] == ["PriorityClassDropped"]


def test_a_pod_that_the_webhook_does_not_change_is_shown_unchanged() -> None:
    """The message is the webhook's warning: too many alternatives, or too much content."""
    every = [{"matchExpressions": [{"key": f"k{one}", "operator": "Exists"}]} for one in range(200)]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": every}}
    affinity = {"affinity": {"nodeAffinity": required}}
    unlimited = [
        {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute"}
        for name in ("not-ready", "unreachable")
    ]
    noted = {"clusterSelector": orjson.dumps(affinity).decode()}
    for given, words in (
        (pod({**affinity, "tolerations": unlimited}, annotations=noted), "are 40,000; the limit is 1,000"),
        (
            pod({"nodeSelector": {"clusterID": "x" * 40_000}}),
            "tolerations are 40,016 bytes of JSON; the limit is 32,768",
        ),
    ):
        found = mutation(given, default_topology())
        assert found.mutated is given
        assert found.messages[0].startswith("the webhook does not change it: ")
        assert found.messages[0].endswith(words)


def test_labels_of_virtual_nodes_are_not_required_of_lower_nodes() -> None:
    """Kubernetes' own labels are exceptions, because real nodes have them too."""
    labels = "{tier: gold, topology.kubernetes.io/zone: z}"
    topology = parse(f"{HEAD}lowers:\n- {{name: a, kubeconfig: k, node: {{labels: {labels}}}}}\n")
    spec = {"nodeSelector": {"tier": "gold", "topology.kubernetes.io/zone": "z"}}
    found = mutation(pod(spec, labels={}), topology)
    assert found.lower is not None
    assert found.lower["spec"]["nodeSelector"] == {"topology.kubernetes.io/zone": "z"}


def test_a_pod_without_a_name_gets_a_generated_one() -> None:
    """Pods of a template have a name only after their creation."""
    given = {**pod(), "metadata": {"generateName": "web-", "labels": {"virtual-pod": "true"}}}
    found = mutation(given, TWO)
    assert found.lower is not None
    assert found.lower["metadata"]["name"].startswith("web-")
    assert found.mutated["metadata"]["generateName"] == "web-"


@pytest.mark.parametrize("output", ["yaml", "json"])
def test_both_formats_have_the_same_content(output: str) -> None:
    """One object has the three pods, and strings stay strings for every YAML parser."""
    found = mutation(pod(annotations={"switch": "no", "when": "2026-01-01"}), TWO)
    text = written([found], output)
    document = orjson.loads(text) if output == "json" else yaml.safe_load(text)
    assert document == {"pod": found.pod, "mutated": found.mutated, "lower": found.lower}
    assert "&id" not in text


def test_several_pods_are_documents_or_items() -> None:
    """YAML has a document for each, JSON has a list, and messages name their pod."""
    daemons = {
        "kind": "DaemonSet",
        "apiVersion": "apps/v1",
        "metadata": {"name": "agent"},
        "spec": {"template": {"spec": pod()["spec"]}},
    }
    pods = read_pods(yaml.safe_dump_all([pod(), daemons]).encode(), "p")
    found = [mutation(one, TWO) for one in pods]
    documents = list(yaml.safe_load_all(written(found, "yaml")))
    assert documents == orjson.loads(written(found, "json"))["items"]
    assert [one["pod"] for one in documents] == pods
    assert documents[0]["lower"] is not None
    assert documents[1]["lower"] is None
    assert any(line.startswith("agent-: no lower pod: ") for line in messages(found))


def test_pods_are_read_from_yaml_and_json() -> None:
    """Both formats give the same pod."""
    assert read_pods(orjson.dumps(pod()), "p") == read_pods(yaml.safe_dump(pod()).encode(), "p") == [pod()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p:1:1: spec.template: no pod: write a Pod with containers, or what has a template of one"),
        ("- a", "p:1:1: spec.template: no pod"),
        ("kind: Pod", "p: no apiVersion: a Pod has apiVersion: v1"),
        ("{apiVersion: v2, kind: Pod}", "p: v2: a Pod has apiVersion: v1"),
        ("{apiVersion: apps/v1, kind: Deployment}", "p:1:1: spec.template: no pod"),
        ("a: [", "p:1:4: a: "),
        ("a: 1\na: 2\n", "p:2:1: a: "),
        ("--- {}\n--- {}\n", "p:1:5: spec.template: no pod"),
        ("{apiVersion: v1, kind: Pod, metadata: {name: a}}", "p:1:1: (file): spec is missing; add it"),
        (
            "{apiVersion: v1, kind: Pod, metadata: {}, spec: {containers: []}}",
            "p:1:39: metadata: name is missing; add it",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: x}}",
            'p:1:69: spec.containers: "x" is not a list; ',
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: 1}, spec: {containers: []}}",
            "p:1:46: metadata.name: the number 1 is not a string; put it in quotes",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {virtual-pod: true}}, spec: {containers: []}}",
            "p:1:71: metadata.labels.virtual-pod: true is not a string; put it in quotes",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [], nodeSelector: {a: 1}}}",
            "p:1:91: spec.nodeSelector.a: the number 1 is not a string; put it in quotes",
        ),
    ],
)
def test_a_document_that_is_no_pod_is_refused_with_its_position(text: str, message: str) -> None:
    """The error has the file, the mistake and the correction."""
    with pytest.raises(TensileError) as caught:
        read_pods(text.encode(), "p")
    assert message in str(caught.value)


def test_bytes_that_are_not_utf_8_are_refused() -> None:
    """The error names the file."""
    with pytest.raises(TensileError, match="p: a byte is not valid UTF-8"):
        read_pods(b"a: \xff", "p")
