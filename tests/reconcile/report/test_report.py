"""Tests of a plan's text from a topology and the clusters' objects, with the engine's own rules and loop."""

from previewkit import A, rehearsed
from worldkit import (
    config_map,
    delete_observed,
    make_lower_node,
    make_namespace,
    make_service_account,
    make_upper_pod,
    make_world,
    put,
    secret,
    spec_with_references,
    synced_cache,
    with_owner_marks,
)

from tensile.kube.store import Transformed
from tensile.objects import CONFIG_MAP, NODE, POD, SERVICE_ACCOUNT, UPPER, Ref
from tensile.reconcile.report import as_text, observed
from tensile.reconcile.world import World

FIRST = """\
Upper cluster: 1 to add, 1 to change
~ Pod shop/web: the pod must not be evicted while the engine is down
    spec.tolerations[node.kubernetes.io/not-ready:NoExecute]: set to {"effect": "NoExecute", \
"key": "node.kubernetes.io/not-ready", "operator": "Exists"}
    spec.tolerations[node.kubernetes.io/unreachable:NoExecute]: set to {"effect": "NoExecute", \
"key": "node.kubernetes.io/unreachable", "operator": "Exists"}
+ Node lower-a: lower cluster lower-a is in the topology
    capacity: cpu 4, memory 8Gi, pods 110
    labels: beta.kubernetes.io/os=linux, clusterID=lower-a, kubernetes.io/arch=amd64, \
kubernetes.io/hostname=lower-a, kubernetes.io/os=linux, kubernetes.io/role=agent, \
node.kubernetes.io/exclude-from-external-load-balancers=, type=virtual-kubelet
    taints: virtual-kubelet.io/provider=k8s:NoSchedule

Lower cluster lower-a: 4 to add
+ Namespace shop: pods need it
+ ConfigMap shop/settings: pods on node lower-a refer to it
    keys: key
+ Secret shop/password: pods on node lower-a refer to it
    type: Opaque
    keys: key
+ Pod shop/web: bound to node lower-a
    images: app:1
"""


def shop(*missing: str) -> World:
    """Create a world in which a pod is bound to a lower cluster that has no objects yet."""
    made = make_world(f"name: {A}")
    put(made.upper.namespaces, make_namespace("shop"))
    put(made.upper.config_maps, config_map(namespace="shop"))
    put(made.upper.secrets, secret(namespace="shop"))
    put(made.lowers[A].nodes, make_lower_node())
    needs = spec_with_references(config_maps=["settings", *missing], secrets=["password"])
    put(made.lowers[A].upper_pods, make_upper_pod("web", needs, namespace="shop"))
    return made


def test_a_first_plan_has_all_objects_that_a_pod_needs() -> None:
    """It contains Node, namespace, configuration and pod, although each depends on the previous one."""
    found = rehearsed(shop())
    assert found.recorder.broken == []
    assert found.preview.problems == ()
    assert as_text(found.preview, colour=False).rpartition("\n")[0] == FIRST


def test_a_plan_after_the_dry_run_of_a_plan_has_no_changes() -> None:
    """The world after the dry run is as the topology requires."""
    again = rehearsed(rehearsed(shop()).world)
    assert again.preview.changes == ()
    assert again.preview.problems == ()


def test_the_plan_for_a_pod_that_was_deleted_in_the_lower_cluster_shows_its_failure() -> None:
    """Other status fields follow from that, and are left out."""
    made = rehearsed(make_world(f"name: {A}")).world
    put(made.upper.namespaces, make_namespace("shop"))
    container = {"name": "main", "image": "app:1", "state": {"running": {"startedAt": "2026-03-01T11:00:00Z"}}}
    running = {"phase": "Running", "podIP": "10.1.0.5", "containerStatuses": [container]}
    put(made.lowers[A].upper_pods, make_upper_pod("web", namespace="shop", status=running))
    text = as_text(rehearsed(made).preview, colour=False)
    assert (
        "~ Pod shop/web: its lower pod is gone, but the upper pod was not deleted\n"
        '    status.message: set to "another client deleted the pod in the lower cluster"\n'
        '    status.phase: "Running" -> "Failed"\n'
        '    status.reason: set to "LowerPodLost"\n'
    ) in text
    assert "podIP" not in text


def test_an_edit_of_an_upper_object_is_one_change_of_its_copy() -> None:
    """The change has the observed value and the new one."""
    made = rehearsed(shop()).world
    put(made.upper.config_maps, config_map(data={"key": "other"}, namespace="shop"))
    assert as_text(rehearsed(made).preview, colour=False).split("\n") == [
        "Lower cluster lower-a: 1 to change",
        "~ ConfigMap shop/settings: pods on node lower-a refer to it",
        '    data.key: "value" -> "other"',
        "",
        "Plan: 0 to add, 1 to change, 0 to delete (lower-a: 1 to change)",
    ]


def test_an_upper_object_that_was_created_again_replaces_its_copy() -> None:
    """Unchanged content is left out, and the old value is that of the copy before the dry run."""
    made = rehearsed(shop()).world
    delete_observed(made.upper.config_maps, "settings", "shop")
    put(made.upper.config_maps, config_map(namespace="shop", uid="another"))
    assert as_text(rehearsed(made).preview, colour=False).split("\n")[1:3] == [
        "-/+ ConfigMap shop/settings: it was created for an upper object that is gone",
        '    metadata.annotations.tensile-kube.io/upper-uid: "ConfigMap-settings" -> "another"',
    ]


def test_a_deleted_pod_deletes_the_copies_that_only_it_needed() -> None:
    """The lower pod is deleted, and so are the copies to which no other pod refers."""
    made = rehearsed(shop()).world
    delete_observed(made.lowers[A].upper_pods, "web", "shop")
    changes = rehearsed(made).preview.clusters[A]
    described = [(change.action, change.ref.kind.name) for change in changes]
    assert described == [("delete", "ConfigMap"), ("delete", "Secret"), ("delete", "Pod")]


def test_a_problem_is_reported_for_the_missing_object_and_for_the_pod() -> None:
    """A pod that waits for a ConfigMap causes no change."""
    found = rehearsed(shop("missing")).preview
    assert {(key.rule, problem.reason) for key, problem in found.problems} == {
        ("dependency", "ConfigMapNotFound"),
        ("pod", "ConfigMapNotFound"),
    }
    assert all(change.ref.kind != POD for change in found.changes)


def test_objects_are_looked_up_in_the_caches_of_their_cluster() -> None:
    """Upper pods are looked up in the cache of each lower.

    An object without a cache, or of which no bytes are cached, is unknown.
    """
    made = shop()
    lower_object = with_owner_marks(config_map("copy", namespace="shop"), "of")
    put(made.lowers[A].config_maps, lower_object)
    made.lowers[A].accounts = synced_cache(lambda _raw: Transformed(b"", None))
    put(made.lowers[A].accounts, make_service_account("shop"))
    find = observed(made)

    def name(ref: Ref) -> str:
        return ((find(ref) or {}).get("metadata") or {}).get("uid", "")

    assert name(Ref(UPPER, POD, "shop", "web")) == "Pod-web"
    assert name(Ref(UPPER, CONFIG_MAP, "shop", "settings")) == "ConfigMap-settings"
    assert name(Ref(A, CONFIG_MAP, "shop", "copy")) == "ConfigMap-copy"
    assert name(Ref(A, CONFIG_MAP, "shop", "settings")) == ""
    assert name(Ref(A, NODE, "", "n1")) == ""
    assert name(Ref(A, SERVICE_ACCOUNT, "shop", "default")) == ""
