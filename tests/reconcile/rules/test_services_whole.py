"""Tests of Services with the engine's whole loop on clusters in memory: all rules together, and the guard."""

from servicekit import SERVER, endpoint, service, sliced
from stagekit import Stage
from virtualtime import in_virtual_time
from worldkit import A, B, space, topology, upper_pod

from tensile.names import OWNER
from tensile.objects import ENDPOINT_SLICE, EVENT, NAMESPACE, POD, SERVICE, UPPER, Kind, Manifest, Ref, labels, uid
from tensile.reconcile.rules import orphans
from tensile.reconcile.rules.mirror import PAUSE

MANY = 30


def staged(*services: Manifest, more: str = "") -> Stage:
    """Create a stage with a pod bound to lower-a, and with these upper Services, each with a slice."""
    stage = Stage(more=more)
    stage.raise_nodes()
    above = stage.clusters[UPPER]
    above.place(NAMESPACE, space("default"))
    above.place(POD, upper_pod())
    for one in services:
        name = one["metadata"]["name"]
        above.place(SERVICE, one)
        above.place(ENDPOINT_SLICE, sliced(f"{name}-1", of=name))
    return stage


async def names(stage: Stage, kind: Kind, cluster: str = A) -> list[str]:
    """Return the names of the objects of a kind in a cluster."""
    return [one["metadata"]["name"] for one in await stage.listed(cluster, kind)]


def ref(kind: Kind, name: str, cluster: str = UPPER) -> Ref:
    """Return the reference of an object in namespace default."""
    return Ref(cluster, kind, "default", name)


def written(stage: Stage, cluster: str = A) -> list[tuple[str, str]]:
    """Return the writes to Services and slices in a cluster, as verbs and names."""
    return [(verb, one.name) for verb, one in stage.clusters[cluster].writes if one.kind in (SERVICE, ENDPOINT_SLICE)]


@in_virtual_time
async def test_all_services_and_slices_are_created_once() -> None:
    """A Service is created before its slice, and nothing is created in the other lower.

    A restart writes nothing.
    """
    stage = staged(service("web"), service("api"))
    stage.world.upper_server = SERVER
    stage.start()
    await stage.settle()
    every = ["api", "kubernetes-upper", "web"]
    assert await names(stage, SERVICE) == every
    assert await names(stage, ENDPOINT_SLICE) == ["api-1", "kubernetes-upper", "web-1"]
    assert await names(stage, SERVICE, B) == await names(stage, ENDPOINT_SLICE, B) == []
    assert sorted(written(stage)) == sorted(("create", name) for name in (*every, "api-1", "kubernetes-upper", "web-1"))
    assert written(stage).index(("create", "web")) < written(stage).index(("create", "web-1"))
    stage.clusters[A].writes.clear()
    await stage.restart()
    stage.world.upper_server = SERVER
    await stage.settle()
    assert written(stage) == []


@in_virtual_time
async def test_a_change_of_one_endpoint_causes_one_write() -> None:
    """The number of other Services does not matter."""
    stage = staged(*(service(f"s-{number}") for number in range(MANY)))
    stage.start()
    await stage.settle()
    stage.clusters[A].writes.clear()
    changed = sliced("s-7-1", endpoint("10.1.0.1", ready=False), endpoint("10.1.0.2"), of="s-7")
    stage.clusters[UPPER].place(ENDPOINT_SLICE, changed)
    await stage.settle()
    assert written(stage) == [("patch", "s-7-1")]
    found = stage.find(ref(ENDPOINT_SLICE, "s-7-1", A))
    assert found is not None
    assert [one["conditions"]["ready"] for one in found["endpoints"]] == [False, True]


@in_virtual_time
async def test_a_service_of_another_owner_blocks_its_name_until_it_is_deleted() -> None:
    """One Event of the upper Service reports it, and our slice is not created for the other Service."""
    stage = staged(service("web"))
    stage.clusters[A].place(NAMESPACE, space("default"))
    theirs = stage.clusters[A].place(SERVICE, service("web"))
    stage.start()
    await stage.settle()
    assert stage.find(ref(SERVICE, "web", A)) == theirs
    assert await names(stage, ENDPOINT_SLICE) == []
    events = [one for one in await stage.listed(UPPER, EVENT) if one["involvedObject"]["kind"] == "Service"]
    assert [(one["reason"], one["involvedObject"]["name"]) for one in events] == [("NameConflict", "web")]
    await stage.delete(ref(SERVICE, "web", A))
    await stage.calm(6.0)
    assert await names(stage, ENDPOINT_SLICE) == ["web-1"]


@in_virtual_time
async def test_a_slice_of_another_owner_is_reported_by_an_event_of_its_service() -> None:
    """That slice is not changed, and the other endpoints of the Service are mirrored."""
    stage = staged(service("web"))
    stage.clusters[UPPER].place(ENDPOINT_SLICE, sliced("web-2", of="web"))
    stage.clusters[A].place(NAMESPACE, space("default"))
    theirs = stage.clusters[A].place(ENDPOINT_SLICE, sliced("web-1", of="other"))
    stage.start()
    await stage.settle()
    assert stage.find(ref(ENDPOINT_SLICE, "web-1", A)) == theirs
    assert written(stage) == [("create", "web"), ("create", "web-2")]
    events = [one for one in await stage.listed(UPPER, EVENT) if one["involvedObject"]["kind"] == "Service"]
    assert [(one["reason"], one["involvedObject"]["name"]) for one in events] == [("NameConflict", "web")]
    await stage.delete(ref(ENDPOINT_SLICE, "web-1", A))
    await stage.calm(6.0)
    found = stage.find(ref(ENDPOINT_SLICE, "web-1", A))
    assert found is not None
    assert labels(found)[OWNER] == stage.world.owner.mark


@in_virtual_time
async def test_services_stay_for_a_moment_after_the_last_pod() -> None:
    """A pod that follows soon uses the same Services.

    Without one, they are deleted.
    """
    stage = staged(service("web"))
    stage.start()
    await stage.settle()
    before = stage.find(ref(SERVICE, "web", A))
    assert before is not None
    await stage.delete(ref(POD, "web"), 0)
    await stage.settle()
    stage.clusters[UPPER].place(POD, upper_pod("next"))
    await stage.calm(PAUSE)
    after = stage.find(ref(SERVICE, "web", A))
    assert after is not None
    assert uid(after) == uid(before)
    await stage.delete(ref(POD, "next"), 0)
    await stage.calm(PAUSE)
    assert await names(stage, SERVICE) == await names(stage, ENDPOINT_SLICE) == []


@in_virtual_time
async def test_services_that_were_deleted_while_the_engine_was_stopped_are_deleted() -> None:
    """Their absence is confirmed first, and the slice is deleted with its Service."""
    stage = staged(service("web"), service("api"))
    stage.start()
    await stage.settle()
    await stage.stop()
    for kind, name in ((SERVICE, "web"), (ENDPOINT_SLICE, "web-1")):
        await stage.delete(ref(kind, name))
    await stage.restart()
    await stage.settle()
    assert await names(stage, SERVICE) == ["api"]
    assert await names(stage, ENDPOINT_SLICE) == ["api-1"]


@in_virtual_time
async def test_many_deletions_of_merely_missing_services_are_blocked() -> None:
    """After a restore of the upper cluster from a backup, no Service is deleted and the problem is reported.

    When most Services exist again, the few deletions that are left pass.
    """
    stage = staged(*(service(f"s-{number}") for number in range(MANY)))
    stage.start()
    await stage.settle()
    await stage.stop()
    for number in range(MANY):
        await stage.delete(ref(SERVICE, f"s-{number}"))
    await stage.restart()
    await stage.settle()
    assert len(await names(stage, SERVICE)) == len(await names(stage, ENDPOINT_SLICE)) == MANY
    assert stage.world.problems[orphans.key_of(orphans.SERVICES.name, A)].reason == "DeletionLimitExceeded"
    for number in range(MANY - 10):
        stage.clusters[UPPER].place(SERVICE, service(f"s-{number}"))
    await stage.settle()
    assert len(await names(stage, SERVICE)) == MANY - 10


@in_virtual_time
async def test_a_list_without_existing_services_deletes_nothing() -> None:
    """The read at quorum finds them."""
    stage = staged(service("web"))
    stage.start()
    await stage.settle()
    stage.clusters[A].writes.clear()
    for kind, name in ((SERVICE, "web"), (ENDPOINT_SLICE, "web-1")):
        stage.overlook(ref(kind, name))
    await stage.settle()
    assert written(stage) == []


@in_virtual_time
async def test_a_lower_that_is_reachable_again_is_updated() -> None:
    """It gets the current endpoints, and Services that were deleted are deleted there."""
    stage = staged(service("web"), service("api"))
    stage.start()
    await stage.settle()
    stage.quieten(A, 60)
    stage.clusters[UPPER].place(ENDPOINT_SLICE, sliced("web-1", endpoint("10.1.0.9")))
    await stage.delete(ref(SERVICE, "api"))
    await stage.delete(ref(ENDPOINT_SLICE, "api-1"))
    await stage.calm()
    assert await names(stage, SERVICE) == ["api", "web"]
    stage.quieten(A, 0)
    await stage.calm()
    assert await names(stage, SERVICE) == ["web"]
    found = stage.find(ref(ENDPOINT_SLICE, "web-1", A))
    assert found is not None
    assert [one["addresses"] for one in found["endpoints"]] == [["10.1.0.9"]]


@in_virtual_time
async def test_denied_services_are_reported_and_retried() -> None:
    """A quota is the usual reason.

    Their slices are created after the Service.
    """
    stage = staged(service("web"))
    stage.clusters[A].denied["create", "Service"] = "exceeded quota"
    stage.start()
    await stage.settle()
    events = [one for one in await stage.listed(UPPER, EVENT) if one["involvedObject"]["kind"] == "Service"]
    assert [one["message"] for one in events] == ["exceeded quota"]
    assert await names(stage, ENDPOINT_SLICE) == []
    stage.clusters[A].denied.clear()
    await stage.calm(6.0)
    assert await names(stage, ENDPOINT_SLICE) == ["web-1"]


@in_virtual_time
async def test_a_lower_that_leaves_the_topology_is_cleaned_up() -> None:
    """Its Services, slices and node are deleted.

    No rule would delete the Services after the node.
    """
    stage = staged(service("web"))
    stage.start()
    await stage.settle()
    await stage.delete(ref(POD, "web"), 0)
    stage.reload(topology(f"name: {B}"))
    await stage.calm(PAUSE)
    assert await names(stage, SERVICE) == await names(stage, ENDPOINT_SLICE) == []
    assert [one for one in stage.world.upper.nodes if one.name == A] == []


@in_virtual_time
async def test_a_disabled_controller_keeps_the_services_of_running_pods() -> None:
    """They stay and are updated until the last pod is deleted, but no new Service is created."""
    stage = staged(service("web"))
    stage.world.upper_server = SERVER
    stage.start()
    await stage.settle()
    stage.clusters[A].writes.clear()
    stage.reload(topology(f"name: {A}, controllers: []", f"name: {B}"))
    await stage.calm(PAUSE)
    assert written(stage) == []
    above = stage.clusters[UPPER]
    above.place(SERVICE, service("api"))
    above.place(ENDPOINT_SLICE, sliced("api-1", of="api"))
    above.place(ENDPOINT_SLICE, sliced("web-2", endpoint("10.1.0.3")))
    await stage.delete(ref(ENDPOINT_SLICE, "web-1"), 0)
    await stage.settle()
    assert await names(stage, SERVICE) == ["kubernetes-upper", "web"]
    assert await names(stage, ENDPOINT_SLICE) == ["kubernetes-upper", "web-2"]
    await stage.delete(ref(POD, "web"), 0)
    await stage.calm(PAUSE)
    assert await names(stage, SERVICE) == await names(stage, ENDPOINT_SLICE) == []
