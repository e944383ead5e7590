"""Tests of the pod that replaces a moved pod: which parts of the old pod it has, and which it does not have."""

from datetime import timedelta
from typing import Any

import orjson
import pytest
from deschedulingkit import NOW, A, B, descheduling_world
from worldkit import make_upper_pod, put, token_volume

from tensile.objects import Manifest, annotations, labels, metadata, timestamp
from tensile.policy.descheduler.replacement import (
    avoided_nodes,
    successor_of,
    transform,
    without_avoided_nodes,
    without_expired_avoidance,
)

TOKEN = token_volume("kube-api-access-x1")
MOUNT = {"name": "kube-api-access-x1", "mountPath": "/var/run/secrets"}
LAPSES = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute"}
    for name in ("not-ready", "unreachable")
]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def off(*nodes: str) -> Manifest:
    """Return the requirement to avoid some nodes."""
    return {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(nodes)}


def required(*terms: list[Manifest]) -> Manifest:
    """Return a required node affinity with terms, each given by its expressions."""
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}}}


def again(pod: Manifest, uid: str = "second", node: str = B) -> Manifest:
    """Return a pod as it is stored after it was created and bound."""
    meta = {**pod["metadata"], "uid": uid, "creationTimestamp": timestamp(NOW)}
    return {**pod, "metadata": meta, "spec": {**pod["spec"], "nodeName": node}}


def test_the_replacement_has_everything_that_the_author_set() -> None:
    """That includes labels, annotations, finalizers, owners that are no controllers, and the spec."""
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"}]
    spec = {"nodeSelector": {"disk": "ssd"}, "restartPolicy": "Never", "priorityClassName": "high"}
    given = {"labels": {"app": "x"}, "annotations": {"note": "y"}, "finalizers": ["a/b"], "ownerReferences": owners}
    made = successor_of(make_upper_pod(spec=spec, **given), (A,))
    assert labels(made) == {"app": "x", "create-by-descheduler": "true"}
    assert annotations(made) == {
        "note": "y",
        "tensile-kube.io/replaces": "Pod-web",
        "tensile-kube.io/kept-off": A,
        "sigs.k8s.io/deschedule-count": "1",
        "unschedulable-node": A,
    }
    assert (metadata(made)["finalizers"], metadata(made)["ownerReferences"]) == (["a/b"], owners)
    assert made["spec"] == {
        **spec,
        "affinity": required([off(A)]),
        "containers": [{"name": "main", "image": "app:1"}],
    }


def test_the_replacement_has_no_fields_that_the_cluster_set() -> None:
    """Some of these fields would be refused, and the others would bind the pod to the same node."""
    stored = {"resourceVersion": "7", "creationTimestamp": "x", "managedFields": [{}], "generateName": "we"}
    zone = {"topology.kubernetes.io/zone": "north", "app": "x"}
    spec = {
        "priority": 5,
        "preemptionPolicy": "Never",
        "overhead": {"cpu": "1"},
        "ephemeralContainers": [{"name": "d"}],
    }
    made = successor_of(make_upper_pod(spec=spec, status={"phase": "Running"}, labels=zone, **stored), (A,))
    assert set(metadata(made)) == {"name", "namespace", "labels", "annotations"}
    assert labels(made) == {"app": "x", "create-by-descheduler": "true"}
    assert set(made) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(made["spec"]) == {"containers", "affinity"}


def test_the_token_volume_of_admission_is_removed_with_its_mounts() -> None:
    """Admission adds another token volume; other volumes stay."""
    container = {"name": "main", "image": "app:1", "volumeMounts": [MOUNT, {"name": "data", "mountPath": "/d"}]}
    spec = {"containers": [container], "initContainers": [container], "volumes": [TOKEN, {"name": "data"}]}
    made = successor_of(make_upper_pod(spec=spec), (A,))["spec"]
    assert made["volumes"] == [{"name": "data"}]
    for kind in ("containers", "initContainers"):
        assert [mount["name"] for mount in made[kind][0]["volumeMounts"]] == ["data"]


def test_default_tolerations_of_admission_are_removed_and_others_stay() -> None:
    """Those of the same keys without a time limit stay too, because the pod's author set them."""
    limited = [{**one, "tolerationSeconds": 300} for one in LAPSES]
    own = [{"key": "a", "operator": "Exists"}, {**LAPSES[0], "tolerationSeconds": 60}]
    assert successor_of(make_upper_pod(spec={"tolerations": [*limited, *own]}), (A,))["spec"]["tolerations"] == own
    assert successor_of(make_upper_pod(spec={"tolerations": LAPSES}), (A,))["spec"]["tolerations"] == LAPSES


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
def test_merged_match_label_keys_are_removed_from_the_selectors(kind: str) -> None:
    """Kubernetes refuses a pod that has both."""
    merged = [{"key": "rev", "operator": "In", "values": ["1"]}, {"key": "app", "operator": "Exists"}]
    term = {"topologyKey": "x", "matchLabelKeys": ["rev"], "labelSelector": {"matchExpressions": merged}}
    plain = {**term, "labelSelector": {"matchExpressions": merged[1:]}}
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    affinity = {kind: {REQUIRED: [term], preferred: [{"weight": 1, "podAffinityTerm": term}]}}
    made = successor_of(make_upper_pod(spec={"affinity": affinity, "topologySpreadConstraints": [term]}), (A,))["spec"]
    assert made["affinity"][kind] == {REQUIRED: [plain], preferred: [{"weight": 1, "podAffinityTerm": plain}]}
    assert made["topologySpreadConstraints"] == [plain]


def test_the_replacement_avoids_all_unsuitable_nodes() -> None:
    """The requirement is added to every term of its own node affinity."""
    expressions = [{"key": "disk", "operator": "Exists"}], [{"key": "gpu", "operator": "Exists"}]
    made = successor_of(make_upper_pod(spec={"affinity": required(*expressions)}), ("lower-c", A))
    assert made["spec"]["affinity"] == required(*([*term, off(A, "lower-c")] for term in expressions))
    assert annotations(made)["tensile-kube.io/kept-off"] == "lower-a,lower-c"
    assert annotations(made)["unschedulable-node"] == A
    assert avoided_nodes(made) == [A, "lower-c"]
    assert successor_of(make_upper_pod(), (A,))["spec"]["affinity"] == required([off(A)])


def test_a_second_replacement_increments_the_count_and_avoids_both_nodes() -> None:
    """Both nodes are in one requirement; no annotation is lost, unlike in tensile-kube."""
    first = successor_of(make_upper_pod(annotations={"clusterSelector": "{}"}), (A,))
    second = successor_of(again(first), (B,))
    assert second["spec"]["affinity"] == required([off(A, B)])
    assert annotations(second) == {
        "clusterSelector": "{}",
        "tensile-kube.io/replaces": "second",
        "tensile-kube.io/kept-off": f"{A},{B}",
        "sigs.k8s.io/deschedule-count": "2",
        "unschedulable-node": B,
    }


@pytest.mark.parametrize("count", ["many", "-1", "1.5", "9" * 10, pytest.param("9" * 5000, id="no number to Python")])
def test_an_invalid_deschedule_count_restarts_at_one(count: str) -> None:
    """Any client can write the annotation, which must not keep other pods from moving."""
    made = successor_of(make_upper_pod(annotations={"sigs.k8s.io/deschedule-count": count}), (A,))
    assert annotations(made)["sigs.k8s.io/deschedule-count"] == "1"


@pytest.mark.parametrize(
    "affinity",
    [
        pytest.param(None, id="nothing"),
        pytest.param(required([off("lower-c")]), id="a node to avoid"),
        pytest.param({**required([off("x")]), "podAffinity": {REQUIRED: []}}, id="pod affinity"),
    ],
)
def test_freed_restores_the_authors_affinity(affinity: Manifest | None) -> None:
    """The requirement to avoid nodes is removed, and the rest is unchanged."""
    spec = {"affinity": affinity} if affinity else {}
    made = successor_of(make_upper_pod(spec=spec), (A,))
    left = without_avoided_nodes(made)["spec"].get("affinity")
    assert (left or None) == (affinity and {field: value for field, value in affinity.items() if value})
    assert avoided_nodes(without_avoided_nodes(made)) == []


@pytest.mark.parametrize(("ago", "nodes"), [(599, [A]), (600, [])])
def test_avoided_nodes_count_until_the_cooldown_is_over(ago: float, nodes: list[str]) -> None:
    """The cooldown starts with the creation of the replacement."""
    world = descheduling_world()
    pod = put(world.lowers[B].upper_pods, again(successor_of(make_upper_pod(), (A,))))
    world.now = NOW + timedelta(seconds=ago)
    assert avoided_nodes(without_expired_avoidance(pod, world).manifest()) == nodes
    assert (without_expired_avoidance(pod, world) is pod) == bool(nodes)


def test_successor_of_and_freed_do_not_change_the_given_pod() -> None:
    """Other code has references to the same object."""
    pod: Any = again(successor_of(make_upper_pod(annotations={"a": "b"}), (A,)))
    before = repr(pod)
    successor_of(pod, (B,))
    without_avoided_nodes(pod)
    assert repr(pod) == before


def test_digest_keeps_the_content_only_of_unbound_re_created_pods() -> None:
    """Another descheduler may create thousands; only a pod that waits for a node needs reserved room."""
    meta = {"name": "x", "annotations": {"tensile-kube.io/replaces": "u"}}
    for pod, is_whole in (
        ({"metadata": meta, "spec": {"nodeName": "n"}}, False),
        ({"metadata": {**meta, "deletionTimestamp": "x"}, "spec": {}}, False),
        ({"metadata": meta, "spec": {}}, True),
    ):
        raw = orjson.dumps(pod)
        assert transform(raw) == (raw if is_whole else b"", "u", None)
    assert transform(b'{"metadata": {"name": "x"}}') == (b"", "", None)
