"""The lower pod: identity, metadata, classes, and what its author is told."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from podkit import OWNER, place, pod
from worldkit import token_volume

from tensile.kubelet.pods.projection import digits, lower_pod, mutable_metadata, notes
from tensile.names import OWNER as OWNER_LABEL
from tensile.names import OWNER_NAME, SAFE_TO_EVICT, UPPER_UID, WRITTEN_IMAGES, WRITTEN_KEYS


def test_the_lower_pod_has_the_upper_name_in_the_lower_namespace() -> None:
    """Name is kept, namespace is the place's."""
    meta = lower_pod(pod(), place(namespace="demo-default"))["metadata"]
    assert (meta["name"], meta["namespace"]) == ("web", "demo-default")


def test_the_lower_pod_is_an_object_that_can_be_created() -> None:
    """It says its own kind, and has a spec and no status, even where the upper pod came out of a list."""
    made = lower_pod(pod(status={"phase": "Running"}), place())
    assert (made["apiVersion"], made["kind"]) == ("v1", "Pod")
    assert set(made) == {"apiVersion", "kind", "metadata", "spec"}


def test_the_lower_pod_is_controlled_by_its_namespace() -> None:
    """One controller owner, the lower Namespace by UID, so that no lower controller adopts the pod."""
    upper = pod(ownerReferences=[{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs"}])
    owners = lower_pod(upper, place(namespace_uid="the-uid"))["metadata"]["ownerReferences"]
    assert owners == [
        {"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": "the-uid", "controller": True}
    ]


def test_a_forged_mark_is_overwritten() -> None:
    """Marks that the upper pod's author wrote do not go down; ours do, with the UID."""
    forged = pod(
        labels={OWNER_LABEL: "someone", "virtual-pod": "no", "app": "web"},
        annotations=dict.fromkeys((OWNER_NAME, UPPER_UID, "tripped-labels", WRITTEN_KEYS, WRITTEN_IMAGES), "forged"),
    )
    wanted = mutable_metadata(forged, place())
    assert wanted["labels"] == {OWNER_LABEL: OWNER.mark, "virtual-pod": "true", "app": "web"}
    assert wanted["annotations"] == {
        OWNER_NAME: "demo",
        UPPER_UID: "uid-1",
        "tripped-labels": "{}",
        WRITTEN_KEYS: '{"annotations":[],"labels":["app"]}',
        WRITTEN_IMAGES: f'{{"main":"{digits("app:1")}"}}',
    }


def test_ignored_labels_are_kept_in_an_annotation() -> None:
    """A label of ignoreLabels is not below, and can be read back from tripped-labels."""
    upper = pod(labels={"b": "2", "a": "1", "app": "web"})
    wanted = mutable_metadata(upper, place(ignore_labels=frozenset({"a", "b"})))
    assert wanted["labels"].keys() == {"app", "virtual-pod", OWNER_LABEL}
    assert wanted["annotations"]["tripped-labels"] == '{"a":"1","b":"2"}'


def test_labels_of_the_virtual_nodes_topology_stay_above() -> None:
    """Admission copies topology labels of the virtual node to the pod; below they would be wrong."""
    wanted = mutable_metadata(pod(labels={"topology.kubernetes.io/zone": "z", "topology.x/zone": "kept"}), place())
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
def test_an_annotation_about_the_upper_cluster_stays_above(annotation: str) -> None:
    """What belongs to the upper cluster's own machinery is not an annotation of the lower pod."""
    wanted = mutable_metadata(pod(annotations={annotation: "{}", "note": "kept"}), place())["annotations"]
    assert annotation not in wanted
    assert wanted["note"] == "kept"


def test_a_pod_without_labels_or_annotations_is_marked_all_the_same() -> None:
    """Null and absent maps are no reason to lose the marks."""
    wanted = mutable_metadata(pod(labels=None, annotations=None), place())
    assert wanted["labels"][OWNER_LABEL] == OWNER.mark
    assert wanted["annotations"][OWNER_NAME] == "demo"


REMADE = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}]


@pytest.mark.parametrize(
    ("owners", "volume", "said", "expected"),
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
def test_a_cluster_autoscaler_below_may_remove_the_node_of_a_pod_that_is_made_again(
    owners: list[dict], volume: dict, said: str | None, expected: str | None
) -> None:
    """As it may where the pod's own controller is: not where data is on the node, or where the pod says otherwise."""
    volumes = {"volumes": [{"name": "v", **volume}]} if volume else {}
    upper = pod(volumes, ownerReferences=owners, annotations={SAFE_TO_EVICT: said} if said else {})
    assert lower_pod(upper, place())["metadata"]["annotations"].get(SAFE_TO_EVICT) == expected


def test_metadata_of_the_lower_pod_is_what_drift_is_measured_against() -> None:
    """The cheap way to the labels and annotations gives the same as the whole projection."""
    upper = pod(labels={"a": "1"}, annotations={"n": "m"})
    assert lower_pod(upper, place())["metadata"].items() >= mutable_metadata(upper, place()).items()


def test_a_priority_class_does_not_go_down() -> None:
    """Neither the class nor what the upper apiserver computed from it: the lower's own pods are never preempted."""
    upper = pod({"priorityClassName": "gold", "priority": 7, "preemptionPolicy": "Never"})
    assert lower_pod(upper, place())["spec"].keys().isdisjoint({"priorityClassName", "priority", "preemptionPolicy"})


def test_a_runtime_class_keeps_its_name() -> None:
    """A missing one is refused below with a clear word, which is better than another sandbox without asking."""
    upper = pod({"runtimeClassName": "kata", "overhead": {"cpu": "1"}})
    assert lower_pod(upper, place())["spec"]["runtimeClassName"] == "kata"
    assert "runtimeClassName" not in lower_pod(pod(), place())["spec"]


def test_a_scheduler_does_not_go_down() -> None:
    """An unknown scheduler name would keep the pod Pending without a word."""
    upper = pod({"schedulerName": "custom"})
    assert lower_pod(upper, place())["spec"]["schedulerName"] == "default-scheduler"


def test_constraints_that_nothing_is_left_of_are_not_below() -> None:
    """A field whose filtered value is empty is absent, and not as it was above."""
    expression = {"key": "type", "operator": "Exists"}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    gone = {
        "nodeSelector": {"type": "virtual-kubelet"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "topologySpreadConstraints": [{"topologyKey": "type"}],
        "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
    }
    taint = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
    assert lower_pod(pod(gone), place(taints=(taint,)))["spec"].keys().isdisjoint(gone)


def test_constraints_on_lower_nodes_are_below() -> None:
    """What is left after filtering is in the spec."""
    assert lower_pod(pod({"nodeSelector": {"type": "x", "disk": "ssd"}}), place())["spec"]["nodeSelector"] == {
        "disk": "ssd"
    }


def test_a_plain_pod_has_nothing_to_note() -> None:
    """No event where nothing was left out that somebody could count on."""
    assert notes(pod()) == []


def test_a_dropped_priority_class_is_noted_by_name() -> None:
    """The author learns that the class does nothing in the lower cluster."""
    upper = pod({"priorityClassName": "gold"})
    (note,) = notes(upper)
    assert note.reason == "PriorityClassDropped"
    assert "'gold'" in note.message


def test_resource_claims_are_noted() -> None:
    """Claims go down as references only, so somebody has to make them below."""
    (note,) = notes(pod({"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}))
    assert note.reason == "ResourceClaimsNotMirrored"


def test_an_unreadable_cluster_selector_is_noted() -> None:
    """What is wrong with the annotation is said, with what is done instead."""
    (note,) = notes(pod(annotations={"clusterSelector": "{"}))
    assert note.reason == "InvalidClusterSelector"
    assert "clusterSelector" in note.message
    assert "tolerations are used" in note.message


def everything() -> dict:
    """Return a pod in which every rewriting has something to do."""
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


def test_projecting_changes_nothing_above() -> None:
    """The upper pod is the cache's: not one value in it may change."""
    upper = everything()
    before = copy.deepcopy(upper)
    lower_pod(upper, place(ignore_labels=frozenset({"a"})))
    notes(upper)
    assert upper == before


def test_what_is_unchanged_is_shared() -> None:
    """No copies of containers are made for nothing: ten thousand pods pass through here."""
    upper = pod({"volumes": [{"name": "data", "emptyDir": {}}]})
    spec = lower_pod(upper, place())["spec"]
    assert spec["containers"] is upper["spec"]["containers"]
    assert spec["volumes"] is upper["spec"]["volumes"]


def test_projecting_is_a_function() -> None:
    """The same pod and place give the same bytes: nothing random, no clock, no order of a set."""
    first, second = (json.dumps(lower_pod(everything(), place())) for _ in range(2))
    assert first == second


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1).filter(lambda key: key[0] == "x"), JSON, max_size=4))
def test_unknown_fields_of_any_form_survive(unknown: dict) -> None:
    """Whatever stands in fields without a verdict arrives below as it is."""
    spec = lower_pod(pod(unknown), place())["spec"]
    assert {field: spec[field] for field in unknown} == unknown
