"""Tests of the projected lower pod: identity, metadata, classes, and the notes for its author."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from podkit import OWNER, lower_context, pod
from worldkit import token_volume

from tensile.kubelet.pods.projection import image_digest, mutable_metadata, notes, to_lower_pod
from tensile.names import OWNER as OWNER_LABEL
from tensile.names import OWNER_NAME, SAFE_TO_EVICT, UPPER_UID, WRITTEN_IMAGES, WRITTEN_KEYS


def test_a_lower_pod_has_the_upper_name_in_the_lower_namespace() -> None:
    """The name is kept, and the namespace is the mapped one."""
    meta = to_lower_pod(pod(), lower_context(namespace="demo-default"))["metadata"]
    assert (meta["name"], meta["namespace"]) == ("web", "demo-default")


def test_a_lower_pod_can_be_created() -> None:
    """It has its kind and a spec, and no status, even if the upper pod comes from a list."""
    made = to_lower_pod(pod(status={"phase": "Running"}), lower_context())
    assert (made["apiVersion"], made["kind"]) == ("v1", "Pod")
    assert set(made) == {"apiVersion", "kind", "metadata", "spec"}


def test_a_lower_pod_is_controlled_by_its_namespace() -> None:
    """The lower Namespace is its only owner, so no lower controller adopts the pod."""
    upper = pod(ownerReferences=[{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs"}])
    owners = to_lower_pod(upper, lower_context(namespace_uid="the-uid"))["metadata"]["ownerReferences"]
    assert owners == [
        {"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": "the-uid", "controller": True}
    ]


def test_forged_marks_are_overwritten() -> None:
    """Marks that the upper pod's author wrote are replaced by the engine's, which contain the UID."""
    forged = pod(
        labels={OWNER_LABEL: "someone", "virtual-pod": "no", "app": "web"},
        annotations=dict.fromkeys((OWNER_NAME, UPPER_UID, "tripped-labels", WRITTEN_KEYS, WRITTEN_IMAGES), "forged"),
    )
    wanted = mutable_metadata(forged, lower_context())
    assert wanted["labels"] == {OWNER_LABEL: OWNER.mark, "virtual-pod": "true", "app": "web"}
    assert wanted["annotations"] == {
        OWNER_NAME: "demo",
        UPPER_UID: "uid-1",
        "tripped-labels": "{}",
        WRITTEN_KEYS: '{"annotations":[],"labels":["app"]}',
        WRITTEN_IMAGES: f'{{"main":"{image_digest("app:1")}"}}',
    }


def test_ignored_labels_are_recorded_in_an_annotation() -> None:
    """A label of ignoreLabels is not on the lower pod, and can be read from tripped-labels."""
    upper = pod(labels={"b": "2", "a": "1", "app": "web"})
    wanted = mutable_metadata(upper, lower_context(ignore_labels=frozenset({"a", "b"})))
    assert wanted["labels"].keys() == {"app", "virtual-pod", OWNER_LABEL}
    assert wanted["annotations"]["tripped-labels"] == '{"a":"1","b":"2"}'


def test_topology_labels_of_the_virtual_node_are_not_copied() -> None:
    """Admission copies them from the virtual node to the upper pod, and they would be wrong in the lower."""
    wanted = mutable_metadata(
        pod(labels={"topology.kubernetes.io/zone": "z", "topology.x/zone": "kept"}), lower_context()
    )
    assert "topology.kubernetes.io/zone" not in wanted["labels"]
    assert wanted["labels"]["topology.x/zone"] == "kept"


@pytest.mark.parametrize(
    "annotation",
    [
        "kubectl.kubernetes.io/last-applied-configuration",
        "kubernetes.io/config.mirror",
        "kubernetes.io/config.source",
        "kubernetes.io/limit-ranger",
        "clusterSelector",
    ],
)
def test_annotations_about_the_upper_cluster_are_not_copied(annotation: str) -> None:
    """They belong to components of the upper cluster; other annotations are copied."""
    wanted = mutable_metadata(pod(annotations={annotation: "{}", "note": "kept"}), lower_context())["annotations"]
    assert annotation not in wanted
    assert wanted["note"] == "kept"


def test_a_pod_without_labels_or_annotations_gets_the_marks() -> None:
    """Null maps do not prevent the marks."""
    wanted = mutable_metadata(pod(labels=None, annotations=None), lower_context())
    assert wanted["labels"][OWNER_LABEL] == OWNER.mark
    assert wanted["annotations"][OWNER_NAME] == "demo"


REMADE = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}]


@pytest.mark.parametrize(
    ("owners", "volume", "annotation", "expected"),
    [
        (REMADE, {}, None, "true"),
        (REMADE, {"configMap": {"name": "c"}}, None, "true"),
        (REMADE, {"emptyDir": {"medium": "Memory"}}, None, "true"),
        (REMADE, {"emptyDir": {}}, None, None),
        (REMADE, {"hostPath": {"path": "/var"}}, None, None),
        (REMADE, {}, "false", "false"),
        (REMADE, {"emptyDir": {}}, "true", "true"),
        ([], {}, None, None),
        ([REMADE[0] | {"controller": False}], {}, None, None),
    ],
)
def test_a_recreatable_lower_pod_is_safe_to_evict_for_a_cluster_autoscaler(
    owners: list[dict], volume: dict, annotation: str | None, expected: str | None
) -> None:
    """As with its own controller: not with data on the node, and the pod's own annotation has precedence."""
    volumes = {"volumes": [{"name": "v", **volume}]} if volume else {}
    upper = pod(volumes, ownerReferences=owners, annotations={SAFE_TO_EVICT: annotation} if annotation else {})
    assert to_lower_pod(upper, lower_context())["metadata"]["annotations"].get(SAFE_TO_EVICT) == expected


def test_mutable_metadata_equals_that_of_the_projection() -> None:
    """Drift is computed from it, without the cost of the whole projection."""
    upper = pod(labels={"a": "1"}, annotations={"n": "m"})
    assert to_lower_pod(upper, lower_context())["metadata"].items() >= mutable_metadata(upper, lower_context()).items()


def test_a_priority_class_is_not_copied() -> None:
    """Class, priority and preemption policy are dropped, so the lower's own pods are never preempted."""
    upper = pod({"priorityClassName": "gold", "priority": 7, "preemptionPolicy": "Never"})
    assert (
        to_lower_pod(upper, lower_context())["spec"]
        .keys()
        .isdisjoint({"priorityClassName", "priority", "preemptionPolicy"})
    )


def test_a_runtime_class_is_copied() -> None:
    """A missing class is rejected by the lower with a clear message, which is better than another sandbox."""
    upper = pod({"runtimeClassName": "kata", "overhead": {"cpu": "1"}})
    assert to_lower_pod(upper, lower_context())["spec"]["runtimeClassName"] == "kata"
    assert "runtimeClassName" not in to_lower_pod(pod(), lower_context())["spec"]


def test_the_scheduler_name_is_not_copied() -> None:
    """With an unknown scheduler the lower pod would be Pending without a message."""
    upper = pod({"schedulerName": "custom"})
    assert to_lower_pod(upper, lower_context())["spec"]["schedulerName"] == "default-scheduler"


def test_constraints_that_are_empty_after_filtering_are_absent() -> None:
    """A field without remaining parts is not in the lower spec."""
    expression = {"key": "type", "operator": "Exists"}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    gone = {
        "nodeSelector": {"type": "virtual-kubelet"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "topologySpreadConstraints": [{"topologyKey": "type"}],
        "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
    }
    taint = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
    assert to_lower_pod(pod(gone), lower_context(taints=(taint,)))["spec"].keys().isdisjoint(gone)


def test_constraints_on_lower_nodes_are_copied() -> None:
    """The lower spec contains what is left after filtering."""
    assert to_lower_pod(pod({"nodeSelector": {"type": "x", "disk": "ssd"}}), lower_context())["spec"][
        "nodeSelector"
    ] == {"disk": "ssd"}


def test_a_plain_pod_has_no_notes() -> None:
    """No event is needed if nothing relevant was left out."""
    assert notes(pod()) == []


def test_a_dropped_priority_class_is_noted_by_name() -> None:
    """The author learns that the class has no effect in the lower cluster."""
    upper = pod({"priorityClassName": "gold"})
    (note,) = notes(upper)
    assert note.reason == "PriorityClassDropped"
    assert "'gold'" in note.message


def test_resource_claims_are_noted() -> None:
    """Only the references are mirrored, so the claims must be created in the lower."""
    (note,) = notes(pod({"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}))
    assert note.reason == "ResourceClaimsNotMirrored"


def test_an_invalid_cluster_selector_is_noted() -> None:
    """The message contains the error and what is used instead."""
    (note,) = notes(pod(annotations={"clusterSelector": "{"}))
    assert note.reason == "InvalidClusterSelector"
    assert "clusterSelector" in note.message
    assert "tolerations are used" in note.message


def everything() -> dict:
    """Return a pod for which every rewriting has something to do."""
    term = {"matchExpressions": [{"key": "type", "operator": "In", "values": ["virtual-kubelet"]}]}
    spread = {
        "topologyKey": "zone",
        "matchLabelKeys": ["h"],
        "labelSelector": {"matchExpressions": [{"key": "h", "operator": "In", "values": ["1"]}]},
    }
    return pod(
        {
            "nodeSelector": {"type": "virtual-kubelet", "disk": "ssd"},
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}},
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "h", "namespaces": ["n"]}]
                },
            },
            "topologySpreadConstraints": [spread],
            "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
            "volumes": [token_volume(), {"name": "data", "emptyDir": {}}],
            "containers": [{"name": "main", "volumeMounts": [{"name": "kube-api-access-x"}, {"name": "data"}]}],
            "priorityClassName": "gold",
        },
        labels={"a": "1"},
        annotations={"clusterSelector": '{"nodeSelector":{"gpu":"a100"}}'},
    )


def test_the_projection_does_not_modify_the_upper_pod() -> None:
    """The upper pod belongs to the cache."""
    upper = everything()
    before = copy.deepcopy(upper)
    to_lower_pod(upper, lower_context(ignore_labels=frozenset({"a"})))
    notes(upper)
    assert upper == before


def test_unchanged_parts_are_shared_and_not_copied() -> None:
    """Copies of containers would be expensive with ten thousand pods."""
    upper = pod({"volumes": [{"name": "data", "emptyDir": {}}]})
    spec = to_lower_pod(upper, lower_context())["spec"]
    assert spec["containers"] is upper["spec"]["containers"]
    assert spec["volumes"] is upper["spec"]["volumes"]


def test_the_projection_is_deterministic() -> None:
    """The same pod and place yield the same bytes, without randomness, clock or set order."""
    first, second = (json.dumps(to_lower_pod(everything(), lower_context())) for _ in range(2))
    assert first == second


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1).filter(lambda key: key[0] == "x"), JSON, max_size=4))
def test_unknown_fields_of_any_form_are_copied(unknown: dict) -> None:
    """Fields without a verdict arrive in the lower pod unchanged."""
    spec = to_lower_pod(pod(unknown), lower_context())["spec"]
    assert {field: spec[field] for field in unknown} == unknown
