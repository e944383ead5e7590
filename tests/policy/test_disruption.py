"""Tests of what a plan costs running pods: pods that restart, move or end, and other losses with them."""

from typing import Any

import pytest
from deschedulingkit import A, B, descheduling_world, requesting_pod
from previewkit import create, delete, json_patch, observed_object, previewed
from servicekit import endpoint, endpoint_slice
from worldkit import make_lower_pod, make_upper_pod, make_world, put

from tensile.names import NOWHERE
from tensile.objects import CLAIM, ENDPOINT_SLICE, NODE, POD, SECRET, SERVICE, UPPER, Manifest, Ref
from tensile.policy.disruption import (
    CutStreams,
    DisruptedPod,
    Disruption,
    LostEndpoints,
    LostObject,
    TouchedBudget,
    as_document,
    as_sections,
    disruption,
    leaving,
    planned_moves,
)
from tensile.reconcile.desired import PodMove
from tensile.reconcile.plan import Step
from tensile.reconcile.world import World

RUNNING = {"phase": "Running", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}]}
WEB = Ref(UPPER, POD, "default", "web")
TWIN = Ref(A, POD, "default", "web")


def running(*names: str, status: Manifest | None = None, more: str = "", **meta: Any) -> World:
    """Return a world with running pods in lower-a and their lower pods."""
    world = make_world(more=more)
    for name in names or ("web",):
        pod = make_upper_pod(name, status=status or RUNNING, **meta)
        put(world.lowers[A].upper_pods, pod)
        put(world.lowers[A].pods, make_lower_pod(pod, RUNNING))
    return world


def cost(world: World, *steps: Step, moves: dict[Ref, PodMove | None] | None = None, **more: Any) -> Disruption:
    """Return the disruption of some steps."""
    seen = {one.ref: observed_object({"spec": {"containers": [{"name": "main", "image": "app:1"}]}}) for one in steps}
    return disruption(previewed(*steps, seen=seen).changes, world, moves or {}, **more)


def pod(name: str = "web", *targets: str) -> DisruptedPod:
    """Return a disrupted pod of lower-a."""
    return DisruptedPod("default", name, A, targets)


def test_a_replaced_lower_pod_is_a_restart() -> None:
    """The pod runs in the same lower cluster again."""
    assert cost(running(), delete(TWIN), create(TWIN)) == Disruption(restarted=(pod(),))


def test_a_changed_image_is_a_restart_and_a_changed_label_is_not() -> None:
    """The kubelet restarts a container only if its image changes."""
    image = json_patch(TWIN, {"op": "replace", "path": "/spec/containers/0/image", "value": "app:2"})
    label = json_patch(TWIN, {"op": "add", "path": "/metadata/labels", "value": {"image": "app:2"}})
    assert cost(running(), image).restarted == (pod(),)
    assert cost(running(), label) == Disruption()


def test_a_deleted_lower_pod_ends_the_pod() -> None:
    """That holds whether or not its upper pod is known."""
    assert cost(running(), delete(TWIN)).ended == (pod(),)
    world = running()
    world.lowers[A].upper_pods.replace((), 9)
    assert cost(world, delete(TWIN)).ended == (pod(),)


@pytest.mark.parametrize("targets", [(B,), ()], ids=["moved", "stranded"])
def test_an_evicted_pod_is_moved_or_stranded(targets: tuple[str, ...]) -> None:
    """It depends on whether another node has room; the lower pod, which is deleted too, is not counted twice."""
    move = PodMove(A, targets, "n1") if targets else None
    found = cost(running(), delete(WEB), delete(TWIN), moves={WEB: move})
    expected = Disruption(moved=(pod("web", B),)) if targets else Disruption(stranded=(pod(),))
    assert found == expected


def test_an_evicted_pod_without_a_known_move_is_only_evicted() -> None:
    """A plan without the real nodes cannot know where the pod fits."""
    assert cost(running(), delete(WEB)) == Disruption(evicted=(pod(),))


@pytest.mark.parametrize(
    ("status", "meta"),
    [
        ({"phase": "Pending"}, {}),
        ({"phase": "Succeeded"}, {}),
        (RUNNING, {"deletionTimestamp": "2026-03-01T12:00:00Z", "deletionGracePeriodSeconds": 30}),
    ],
    ids=["pending", "ended", "deleted by its user"],
)
def test_pending_terminated_and_deleted_pods_cost_nothing(status: Manifest, meta: dict[str, Any]) -> None:
    """They never ran, have terminated, or were deleted by a user."""
    world = make_world()
    upper = make_upper_pod("web", status=status, **meta)
    put(world.lowers[A].upper_pods, upper)
    put(world.lowers[A].pods, make_lower_pod(upper, status))
    steps = delete(WEB), delete(TWIN)
    assert leaving(previewed(*steps).changes, world) == []
    assert cost(world, *steps) == Disruption()


def test_disruption_budgets_of_evicted_pods_are_reported() -> None:
    """A budget matches by namespace and selector, and has the disruptions that it allows now."""
    world = running("web", "other", labels={"app": "web"})

    def budget(name: str, namespace: str = "default", **labels: str) -> Manifest:
        """Return a budget that allows one disruption."""
        meta = {"name": name, "namespace": namespace}
        return {"metadata": meta, "spec": {"selector": {"matchLabels": labels}}, "status": {"disruptionsAllowed": 1}}

    steps = [delete(Ref(UPPER, POD, "default", name)) for name in ("web", "other")]
    given = [budget("db", app="db"), budget("web", app="web"), budget("web", "elsewhere", app="web")]
    assert cost(world, *steps, budgets=given).budgets == (TouchedBudget("default", "web", 2, 1),)
    assert cost(world, delete(TWIN), budgets=given, unknown_budgets="forbidden") == Disruption(ended=(pod(),))
    assert cost(world, *steps, unknown_budgets="forbidden").unknown_budgets == "forbidden"


def test_deleted_lower_claims_and_services_are_lost() -> None:
    """A user decides about those of the upper cluster, so they are not counted."""
    steps = [delete(Ref(where, kind, "default", "data")) for kind in (CLAIM, SERVICE, SECRET) for where in (A, UPPER)]
    lost = (LostObject(A, "default", "data"),)
    assert cost(running(), *steps) == Disruption(claims=lost, services=lost)


def test_services_lose_the_ready_endpoints_of_disrupted_pods() -> None:
    """They are counted against all ready endpoints of the Service; another address type is not counted twice."""
    world = running(more="controllers: [Service]\n")
    world.upper.more[ENDPOINT_SLICE].replace((), 1)
    ends = [endpoint("10.1.0.1"), endpoint("10.1.0.2"), endpoint("10.1.0.3", ready=False)]
    put(
        world.upper.more[ENDPOINT_SLICE],
        endpoint_slice("web-1", *ends),
        endpoint_slice("db-1", endpoint("10.1.0.9"), of="db"),
    )
    assert cost(world, delete(WEB)).endpoints == (LostEndpoints("default", "web", 1, 2),)
    assert cost(world).endpoints == ()
    put(world.upper.more[ENDPOINT_SLICE], endpoint_slice("web-2", *ends) | {"addressType": "IPv6"})
    assert cost(world, delete(WEB)).endpoints == (LostEndpoints("default", "web", 1, 2),)


def test_streams_of_a_node_end_if_it_is_deleted_or_its_kubelet_port_changes() -> None:
    """They count only if pods run there and the kubelet API has a port."""
    node = {"metadata": {"name": A}, "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 10350}}}}
    world = running()
    put(world.upper.nodes, node)
    assert cost(world).streams == ()
    assert cost(world, delete(Ref(UPPER, NODE, "", A))).streams == (CutStreams(A, 1, "the node is deleted"),)
    lower = world.lowers[A]
    lower.spec = lower.spec.model_copy(update={"node": lower.spec.node.model_copy(update={"kubelet_port": 10400})})
    assert cost(world).streams == (CutStreams(A, 1, "its kubelet port changes from 10350 to 10400"),)
    closed = {"daemonEndpoints": {"kubeletEndpoint": {"Port": NOWHERE}}}
    put(world.upper.nodes, {**node, "status": closed})
    assert cost(world).streams == ()
    put(world.upper.nodes, node)
    lower.upper_pods.replace((), 9)
    assert cost(world).streams == ()


def test_planned_moves_of_a_drain_need_the_real_nodes() -> None:
    """The first pod fits and the second does not; without the real nodes no move is planned."""
    drained = f"name: {A}, maintenance: drain", f"name: {B}"
    world = descheduling_world(*drained)
    for name in ("one", "two"):
        put(world.lowers[A].upper_pods, {**requesting_pod(name, cpu="3"), "status": {"phase": "Running"}})
    moves = dict(planned_moves(world))
    assert moves == {
        Ref(UPPER, POD, "default", "one"): PodMove(A, (B,), f"{B}-n1"),
        Ref(UPPER, POD, "default", "two"): None,
    }
    assert not any(planned_moves(descheduling_world(*drained, more="")))
    assert not any(planned_moves(descheduling_world()))


def test_no_moves_are_planned_while_real_nodes_are_not_synced() -> None:
    """A drain that starts the watch of real nodes must not appear as if no node had room."""
    world = descheduling_world(f"name: {A}, maintenance: drain", f"name: {B}")
    put(world.lowers[A].upper_pods, {**requesting_pod("one", cpu="3"), "status": {"phase": "Running"}})
    world.lowers[B].place_nodes.mark_stale()
    assert not any(planned_moves(world))


REPAIR = {"key": "repair", "value": "now", "effect": "NoExecute"}


def tainted(**spec: Any) -> tuple[World, Step]:
    """Return a world with a running pod whose node gets a taint from the topology, and the step that adds the taint."""
    world = make_world(f"name: {A}, node: {{taints: [{{key: repair, value: now, effect: NoExecute}}]}}", f"name: {B}")
    put(world.lowers[A].upper_pods, make_upper_pod("web", spec, status=RUNNING))
    put(world.upper.nodes, {"metadata": {"name": A}, "spec": {}})
    return world, json_patch(Ref(UPPER, NODE, "", A), {"op": "add", "path": "/spec/taints", "value": [REPAIR]})


@pytest.mark.parametrize(
    ("tolerations", "stays"),
    [
        ([], False),
        ([{"key": "repair", "operator": "Exists"}], True),
        ([{"key": "repair", "value": "now", "effect": "NoExecute"}], True),
        ([{"key": "repair", "value": "later"}], False),
        ([{"key": "repair", "operator": "Exists", "effect": "NoSchedule"}], False),
        ([{"key": "repair", "operator": "Exists", "tolerationSeconds": 60}, {"operator": "Exists"}], False),
        ([{"operator": "Exists"}, {"key": "repair", "operator": "Exists", "tolerationSeconds": 60}], True),
    ],
    ids=["none", "exists", "equal", "another value", "another effect", "for a minute", "the first without a limit"],
)
def test_a_new_no_execute_taint_ends_pods_that_do_not_tolerate_it(tolerations: list[Manifest], stays: bool) -> None:  # noqa: FBT001
    """Kubernetes deletes them at once or after their toleration time."""
    world, change = tainted(tolerations=tolerations)
    assert cost(world, change) == (Disruption() if stays else Disruption(ended=(pod(),)))


def test_an_existing_taint_ends_no_pod() -> None:
    """A Node without a change ends no pod either."""
    world, change = tainted()
    assert cost(world) == Disruption()
    put(world.upper.nodes, {"metadata": {"name": A}, "spec": {"taints": [REPAIR]}})
    assert cost(world, change) == Disruption()


def test_the_text_has_one_section_or_none_if_nothing_is_lost() -> None:
    """Each kind of loss has one line."""
    found = Disruption(
        restarted=(pod("a"), pod("b")),
        moved=(pod("c", B),),
        stranded=(pod("d"),),
        evicted=(pod("e"),),
        ended=(pod("f"),),
        budgets=(TouchedBudget("default", "web", 2, 1),),
        claims=(LostObject(A, "default", "data"),),
        services=(LostObject(A, "default", "web"), LostObject(B, "default", "web")),
        endpoints=(LostEndpoints("default", "web", 1, 2),),
        streams=(CutStreams(A, 3, "the node is deleted"),),
    )
    (section,) = as_sections(found)
    assert section.split("\n") == [
        "Cost to running pods:",
        "  2 pods restarted: default/a (lower-a), default/b (lower-a)",
        "  1 pod moved: default/c (lower-a -> lower-b)",
        "  1 pod stranded, no other node has room: default/d (lower-a)",
        "  1 pod evicted; `tensile plan --drain NAME` shows where they fit: default/e (lower-a)",
        "  1 pod ended: default/f (lower-a)",
        "  PodDisruptionBudget default/web covers 2 of them and allows 1 at once now",
        "  1 claim deleted: default/data in lower-a",
        "  2 Services deleted: default/web in lower-a, default/web in lower-b",
        "  Service default/web loses 1 of 2 ready endpoints",
        "  open logs, exec and port-forward of node lower-a end (3 pods): the node is deleted",
    ]
    assert as_sections(Disruption()) == []
    unknown = as_sections(Disruption(evicted=(pod(),), unknown_budgets="upper: denied"))
    assert unknown[0].endswith("\n  PodDisruptionBudgets: unknown: upper: denied")


def test_the_text_reports_more_disrupted_pods_than_the_approval_limit() -> None:
    """A pod counts once, and an edit within the limit needs no approval."""
    found = Disruption(restarted=(pod("a"),), ended=(pod("a"), pod("b")))
    assert as_sections(found, 1)[0].endswith(
        "\n  more than guard.approveOver (1): a running engine waits for an approval"
    )
    assert as_sections(found, 2) == as_sections(found)


def test_the_document_has_every_field() -> None:
    """Its values are plain data."""
    document = as_document(Disruption(moved=(pod("web", B),), unknown_budgets="denied"))
    assert document["moved"] == [{"namespace": "default", "name": "web", "node": A, "targets": (B,)}]
    assert document["unknownBudgets"] == "denied"
    assert len(document) == len(Disruption._fields)
