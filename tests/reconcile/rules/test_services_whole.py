"""Tests of Services with the engine's whole loop on clusters in memory: all rules together, and the guard."""

from servicekit import SERVER, endpoint, endpoint_slice, service
from stagekit import EngineSimulation
from virtualtime import in_virtual_time
from worldkit import A, B, make_namespace, make_topology, make_upper_pod

from tensile.names import OWNER
from tensile.objects import ENDPOINT_SLICE, EVENT, NAMESPACE, POD, SERVICE, UPPER, Kind, Manifest, Ref, labels, uid
from tensile.reconcile.rules import orphans
from tensile.reconcile.rules.mirror_rule import PAUSE

MANY = 30


def simulation_with_services(*services: Manifest, more: str = "") -> EngineSimulation:
    """Create a simulation with a pod bound to lower-a, and with these upper Services, each with a slice."""
    simulation = EngineSimulation(more=more)
    simulation.create_nodes()
    upper_cluster = simulation.clusters[UPPER]
    upper_cluster.place(NAMESPACE, make_namespace("default"))
    upper_cluster.place(POD, make_upper_pod())
    for one in services:
        name = one["metadata"]["name"]
        upper_cluster.place(SERVICE, one)
        upper_cluster.place(ENDPOINT_SLICE, endpoint_slice(f"{name}-1", of=name))
    return simulation


async def names(simulation: EngineSimulation, kind: Kind, cluster: str = A) -> list[str]:
    """Return the names of the objects of a kind in a cluster."""
    return [one["metadata"]["name"] for one in await simulation.listed(cluster, kind)]


def ref(kind: Kind, name: str, cluster: str = UPPER) -> Ref:
    """Return the reference of an object in namespace default."""
    return Ref(cluster, kind, "default", name)


def written(simulation: EngineSimulation, cluster: str = A) -> list[tuple[str, str]]:
    """Return the writes to Services and slices in a cluster, as verbs and names."""
    return [
        (verb, one.name) for verb, one in simulation.clusters[cluster].writes if one.kind in (SERVICE, ENDPOINT_SLICE)
    ]


@in_virtual_time
async def test_all_services_and_slices_are_created_once() -> None:
    """A Service is created before its slice, and nothing is created in the other lower.

    A restart writes nothing.
    """
    simulation = simulation_with_services(service("web"), service("api"))
    simulation.world.upper_server = SERVER
    simulation.start()
    await simulation.wait_idle()
    every = ["api", "kubernetes-upper", "web"]
    assert await names(simulation, SERVICE) == every
    assert await names(simulation, ENDPOINT_SLICE) == ["api-1", "kubernetes-upper", "web-1"]
    assert await names(simulation, SERVICE, B) == await names(simulation, ENDPOINT_SLICE, B) == []
    assert sorted(written(simulation)) == sorted(
        ("create", name) for name in (*every, "api-1", "kubernetes-upper", "web-1")
    )
    assert written(simulation).index(("create", "web")) < written(simulation).index(("create", "web-1"))
    simulation.clusters[A].writes.clear()
    await simulation.restart()
    simulation.world.upper_server = SERVER
    await simulation.wait_idle()
    assert written(simulation) == []


@in_virtual_time
async def test_a_change_of_one_endpoint_causes_one_write() -> None:
    """The number of other Services does not matter."""
    simulation = simulation_with_services(*(service(f"s-{number}") for number in range(MANY)))
    simulation.start()
    await simulation.wait_idle()
    simulation.clusters[A].writes.clear()
    changed = endpoint_slice("s-7-1", endpoint("10.1.0.1", ready=False), endpoint("10.1.0.2"), of="s-7")
    simulation.clusters[UPPER].place(ENDPOINT_SLICE, changed)
    await simulation.wait_idle()
    assert written(simulation) == [("patch", "s-7-1")]
    found = simulation.find(ref(ENDPOINT_SLICE, "s-7-1", A))
    assert found is not None
    assert [one["conditions"]["ready"] for one in found["endpoints"]] == [False, True]


@in_virtual_time
async def test_a_service_of_another_owner_blocks_its_name_until_it_is_deleted() -> None:
    """One Event of the upper Service reports it, and our slice is not created for the other Service."""
    simulation = simulation_with_services(service("web"))
    simulation.clusters[A].place(NAMESPACE, make_namespace("default"))
    theirs = simulation.clusters[A].place(SERVICE, service("web"))
    simulation.start()
    await simulation.wait_idle()
    assert simulation.find(ref(SERVICE, "web", A)) == theirs
    assert await names(simulation, ENDPOINT_SLICE) == []
    events = [one for one in await simulation.listed(UPPER, EVENT) if one["involvedObject"]["kind"] == "Service"]
    assert [(one["reason"], one["involvedObject"]["name"]) for one in events] == [("NameConflict", "web")]
    await simulation.delete(ref(SERVICE, "web", A))
    await simulation.advance(6.0)
    assert await names(simulation, ENDPOINT_SLICE) == ["web-1"]


@in_virtual_time
async def test_a_slice_of_another_owner_is_reported_by_an_event_of_its_service() -> None:
    """That slice is not changed, and the other endpoints of the Service are mirrored."""
    simulation = simulation_with_services(service("web"))
    simulation.clusters[UPPER].place(ENDPOINT_SLICE, endpoint_slice("web-2", of="web"))
    simulation.clusters[A].place(NAMESPACE, make_namespace("default"))
    theirs = simulation.clusters[A].place(ENDPOINT_SLICE, endpoint_slice("web-1", of="other"))
    simulation.start()
    await simulation.wait_idle()
    assert simulation.find(ref(ENDPOINT_SLICE, "web-1", A)) == theirs
    assert written(simulation) == [("create", "web"), ("create", "web-2")]
    events = [one for one in await simulation.listed(UPPER, EVENT) if one["involvedObject"]["kind"] == "Service"]
    assert [(one["reason"], one["involvedObject"]["name"]) for one in events] == [("NameConflict", "web")]
    await simulation.delete(ref(ENDPOINT_SLICE, "web-1", A))
    await simulation.advance(6.0)
    found = simulation.find(ref(ENDPOINT_SLICE, "web-1", A))
    assert found is not None
    assert labels(found)[OWNER] == simulation.world.owner.mark


@in_virtual_time
async def test_services_stay_for_a_moment_after_the_last_pod() -> None:
    """A pod that follows soon uses the same Services.

    Without one, they are deleted.
    """
    simulation = simulation_with_services(service("web"))
    simulation.start()
    await simulation.wait_idle()
    before = simulation.find(ref(SERVICE, "web", A))
    assert before is not None
    await simulation.delete(ref(POD, "web"), 0)
    await simulation.wait_idle()
    simulation.clusters[UPPER].place(POD, make_upper_pod("next"))
    await simulation.advance(PAUSE)
    after = simulation.find(ref(SERVICE, "web", A))
    assert after is not None
    assert uid(after) == uid(before)
    await simulation.delete(ref(POD, "next"), 0)
    await simulation.advance(PAUSE)
    assert await names(simulation, SERVICE) == await names(simulation, ENDPOINT_SLICE) == []


@in_virtual_time
async def test_services_that_were_deleted_while_the_engine_was_stopped_are_deleted() -> None:
    """Their absence is confirmed first, and the slice is deleted with its Service."""
    simulation = simulation_with_services(service("web"), service("api"))
    simulation.start()
    await simulation.wait_idle()
    await simulation.stop()
    for kind, name in ((SERVICE, "web"), (ENDPOINT_SLICE, "web-1")):
        await simulation.delete(ref(kind, name))
    await simulation.restart()
    await simulation.wait_idle()
    assert await names(simulation, SERVICE) == ["api"]
    assert await names(simulation, ENDPOINT_SLICE) == ["api-1"]


@in_virtual_time
async def test_many_deletions_of_merely_missing_services_are_blocked() -> None:
    """After a restore of the upper cluster from a backup, no Service is deleted and the problem is reported.

    When most Services exist again, the few deletions that are left pass.
    """
    simulation = simulation_with_services(*(service(f"s-{number}") for number in range(MANY)))
    simulation.start()
    await simulation.wait_idle()
    await simulation.stop()
    for number in range(MANY):
        await simulation.delete(ref(SERVICE, f"s-{number}"))
    await simulation.restart()
    await simulation.wait_idle()
    assert len(await names(simulation, SERVICE)) == len(await names(simulation, ENDPOINT_SLICE)) == MANY
    assert simulation.world.problems[orphans.key_of(orphans.SERVICES.name, A)].reason == "DeletionLimitExceeded"
    for number in range(MANY - 10):
        simulation.clusters[UPPER].place(SERVICE, service(f"s-{number}"))
    await simulation.wait_idle()
    assert len(await names(simulation, SERVICE)) == MANY - 10


@in_virtual_time
async def test_a_list_without_existing_services_deletes_nothing() -> None:
    """The read at quorum finds them."""
    simulation = simulation_with_services(service("web"))
    simulation.start()
    await simulation.wait_idle()
    simulation.clusters[A].writes.clear()
    for kind, name in ((SERVICE, "web"), (ENDPOINT_SLICE, "web-1")):
        simulation.relist_without(ref(kind, name))
    await simulation.wait_idle()
    assert written(simulation) == []


@in_virtual_time
async def test_a_lower_that_is_reachable_again_is_updated() -> None:
    """It gets the current endpoints, and Services that were deleted are deleted there."""
    simulation = simulation_with_services(service("web"), service("api"))
    simulation.start()
    await simulation.wait_idle()
    simulation.set_unreachable(A, 60)
    simulation.clusters[UPPER].place(ENDPOINT_SLICE, endpoint_slice("web-1", endpoint("10.1.0.9")))
    await simulation.delete(ref(SERVICE, "api"))
    await simulation.delete(ref(ENDPOINT_SLICE, "api-1"))
    await simulation.advance()
    assert await names(simulation, SERVICE) == ["api", "web"]
    simulation.set_unreachable(A, 0)
    await simulation.advance()
    assert await names(simulation, SERVICE) == ["web"]
    found = simulation.find(ref(ENDPOINT_SLICE, "web-1", A))
    assert found is not None
    assert [one["addresses"] for one in found["endpoints"]] == [["10.1.0.9"]]


@in_virtual_time
async def test_denied_services_are_reported_and_retried() -> None:
    """A quota is the usual reason.

    Their slices are created after the Service.
    """
    simulation = simulation_with_services(service("web"))
    simulation.clusters[A].denied["create", "Service"] = "exceeded quota"
    simulation.start()
    await simulation.wait_idle()
    events = [one for one in await simulation.listed(UPPER, EVENT) if one["involvedObject"]["kind"] == "Service"]
    assert [one["message"] for one in events] == ["exceeded quota"]
    assert await names(simulation, ENDPOINT_SLICE) == []
    simulation.clusters[A].denied.clear()
    await simulation.advance(6.0)
    assert await names(simulation, ENDPOINT_SLICE) == ["web-1"]


@in_virtual_time
async def test_a_lower_that_leaves_the_topology_is_cleaned_up() -> None:
    """Its Services, slices and node are deleted.

    No rule would delete the Services after the node.
    """
    simulation = simulation_with_services(service("web"))
    simulation.start()
    await simulation.wait_idle()
    await simulation.delete(ref(POD, "web"), 0)
    simulation.reload(make_topology(f"name: {B}"))
    await simulation.advance(PAUSE)
    assert await names(simulation, SERVICE) == await names(simulation, ENDPOINT_SLICE) == []
    assert [one for one in simulation.world.upper.nodes if one.name == A] == []


@in_virtual_time
async def test_a_disabled_controller_keeps_the_services_of_running_pods() -> None:
    """They stay and are updated until the last pod is deleted, but no new Service is created."""
    simulation = simulation_with_services(service("web"))
    simulation.world.upper_server = SERVER
    simulation.start()
    await simulation.wait_idle()
    simulation.clusters[A].writes.clear()
    simulation.reload(make_topology(f"name: {A}, controllers: []", f"name: {B}"))
    await simulation.advance(PAUSE)
    assert written(simulation) == []
    upper_cluster = simulation.clusters[UPPER]
    upper_cluster.place(SERVICE, service("api"))
    upper_cluster.place(ENDPOINT_SLICE, endpoint_slice("api-1", of="api"))
    upper_cluster.place(ENDPOINT_SLICE, endpoint_slice("web-2", endpoint("10.1.0.3")))
    await simulation.delete(ref(ENDPOINT_SLICE, "web-1"), 0)
    await simulation.wait_idle()
    assert await names(simulation, SERVICE) == ["kubernetes-upper", "web"]
    assert await names(simulation, ENDPOINT_SLICE) == ["kubernetes-upper", "web-2"]
    await simulation.delete(ref(POD, "web"), 0)
    await simulation.advance(PAUSE)
    assert await names(simulation, SERVICE) == await names(simulation, ENDPOINT_SLICE) == []
