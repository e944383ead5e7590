"""From a topology and what the clusters hold to the text of a plan, by the engine's own rules and loop."""

from previewkit import A, rehearsed
from worldkit import (
    account,
    config_map,
    drop,
    filled,
    lower_node,
    marked,
    put,
    referring,
    secret,
    space,
    upper_pod,
    world,
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
    """Make a world in which one pod waits for a lower cluster that has nothing yet."""
    made = world(f"name: {A}")
    put(made.upper.namespaces, space("shop"))
    put(made.upper.config_maps, config_map(namespace="shop"))
    put(made.upper.secrets, secret(namespace="shop"))
    put(made.lowers[A].nodes, lower_node())
    needs = referring(config_maps=["settings", *missing], secrets=["password"])
    put(made.lowers[A].upper_pods, upper_pod("web", needs, namespace="shop"))
    return made


def test_a_first_plan_holds_all_that_a_pod_needs() -> None:
    """Node, namespace, configuration and pod, though each waits for the one before."""
    found = rehearsed(shop())
    assert found.recorder.broken == []
    assert found.preview.problems == ()
    assert as_text(found.preview, colour=False).rpartition("\n")[0] == FIRST


def test_once_it_is_so_there_is_nothing_to_plan() -> None:
    """The rehearsed world, planned again, is as the topology says."""
    again = rehearsed(rehearsed(shop()).world)
    assert again.preview.changes == ()
    assert again.preview.problems == ()


def test_of_a_pod_that_was_deleted_only_below_the_plan_shows_how_it_ends() -> None:
    """The rest of its status follows from that, and would fill the plan."""
    made = rehearsed(world(f"name: {A}")).world
    put(made.upper.namespaces, space("shop"))
    container = {"name": "main", "image": "app:1", "state": {"running": {"startedAt": "2026-03-01T11:00:00Z"}}}
    running = {"phase": "Running", "podIP": "10.1.0.5", "containerStatuses": [container]}
    put(made.lowers[A].upper_pods, upper_pod("web", namespace="shop", status=running))
    text = as_text(rehearsed(made).preview, colour=False)
    assert (
        "~ Pod shop/web: its lower pod is gone, but the upper pod was not deleted\n"
        '    status.message: set to "another client deleted the pod in the lower cluster"\n'
        '    status.phase: "Running" -> "Failed"\n'
        '    status.reason: set to "LowerPodLost"\n'
    ) in text
    assert "podIP" not in text


def test_an_edit_above_is_one_change_below() -> None:
    """With the value as it was observed and as it will be."""
    made = rehearsed(shop()).world
    put(made.upper.config_maps, config_map(data={"key": "other"}, namespace="shop"))
    assert as_text(rehearsed(made).preview, colour=False).split("\n") == [
        "Lower cluster lower-a: 1 to change",
        "~ ConfigMap shop/settings: pods on node lower-a refer to it",
        '    data.key: "value" -> "other"',
        "",
        "Plan: 0 to add, 1 to change, 0 to delete (lower-a: 1 to change)",
    ]


def test_an_original_that_was_made_anew_replaces_its_copy() -> None:
    """Content that stays is not told, and what was is the copy before the rehearsal, not after it."""
    made = rehearsed(shop()).world
    drop(made.upper.config_maps, "settings", "shop")
    put(made.upper.config_maps, config_map(namespace="shop", uid="another"))
    assert as_text(rehearsed(made).preview, colour=False).split("\n")[1:3] == [
        "-/+ ConfigMap shop/settings: it was created for an upper object that is gone",
        '    metadata.annotations.tensile-kube.io/upper-uid: "ConfigMap-settings" -> "another"',
    ]


def test_the_end_of_a_pod_is_the_end_of_what_only_it_needed() -> None:
    """Its lower pod goes, and the copies with the last referrer."""
    made = rehearsed(shop()).world
    drop(made.lowers[A].upper_pods, "web", "shop")
    changes = rehearsed(made).preview.clusters[A]
    told = [(change.action, change.ref.kind.name) for change in changes]
    assert told == [("delete", "ConfigMap"), ("delete", "Secret"), ("delete", "Pod")]


def test_what_stands_in_the_way_is_told_for_the_object_and_the_pod() -> None:
    """A pod that waits for a ConfigMap is no change, but a problem."""
    found = rehearsed(shop("missing")).preview
    assert {(key.rule, problem.reason) for key, problem in found.problems} == {
        ("dependency", "ConfigMapNotFound"),
        ("pod", "ConfigMapNotFound"),
    }
    assert all(change.ref.kind != POD for change in found.changes)


def test_objects_are_found_in_the_caches_of_their_cluster() -> None:
    """Pods above are looked for with every lower; what nobody follows, or keeps no bytes of, is not known."""
    made = shop()
    below = marked(config_map("copy", namespace="shop"), "of")
    put(made.lowers[A].config_maps, below)
    made.lowers[A].accounts = filled(lambda _raw: Transformed(b"", None))
    put(made.lowers[A].accounts, account("shop"))
    find = observed(made)

    def name(ref: Ref) -> str:
        return ((find(ref) or {}).get("metadata") or {}).get("uid", "")

    assert name(Ref(UPPER, POD, "shop", "web")) == "Pod-web"
    assert name(Ref(UPPER, CONFIG_MAP, "shop", "settings")) == "ConfigMap-settings"
    assert name(Ref(A, CONFIG_MAP, "shop", "copy")) == "ConfigMap-copy"
    assert name(Ref(A, CONFIG_MAP, "shop", "settings")) == ""
    assert name(Ref(A, NODE, "", "n1")) == ""
    assert name(Ref(A, SERVICE_ACCOUNT, "shop", "default")) == ""
