"""Services by the engine's whole loop, on clusters in memory: what comes of all rules together, and of the guard."""

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
    """Set a stage where a pod is bound to lower-a, and above are these Services, each with a slice."""
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
    """Return the names of a kind in a cluster."""
    return [one["metadata"]["name"] for one in await stage.listed(cluster, kind)]


def ref(kind: Kind, name: str, cluster: str = UPPER) -> Ref:
    """Name an object of namespace default."""
    return Ref(cluster, kind, "default", name)


def written(stage: Stage, cluster: str = A) -> list[tuple[str, str]]:
    """Return what was written of Services and slices in a cluster: verb and name."""
    return [(verb, one.name) for verb, one in stage.clusters[cluster].writes if one.kind in (SERVICE, ENDPOINT_SLICE)]


@in_virtual_time
async def test_everything_comes_below_once() -> None:
    """The Service before its slice, each written once, nothing in the other lower; a restart writes nothing."""
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
async def test_one_endpoint_that_changes_is_one_write() -> None:
    """Whatever else is there."""
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
async def test_a_name_that_is_taken_stays_so_until_it_is_free() -> None:
    """It is said once on the Service above; no slice of ours goes to the stranger's Service."""
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
async def test_a_slice_whose_name_is_taken_is_told_on_its_service() -> None:
    """The stranger's slice stays as it is until it goes; the Service's other endpoints are below meanwhile."""
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
async def test_the_last_pod_leaves_the_services_for_a_moment() -> None:
    """One that comes in its place finds them as they were; without one they go."""
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
async def test_what_was_deleted_while_the_engine_was_down_goes() -> None:
    """Once it is certain; the Service first, and its slice with it."""
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
async def test_many_that_are_merely_missing_are_held_back() -> None:
    """As after a restore of the upper cluster from a backup: nothing goes, and it is said."""
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
async def test_a_list_that_lacks_what_is_there_ends_nothing() -> None:
    """The read at quorum finds it."""
    stage = staged(service("web"))
    stage.start()
    await stage.settle()
    stage.clusters[A].writes.clear()
    for kind, name in ((SERVICE, "web"), (ENDPOINT_SLICE, "web-1")):
        stage.overlook(ref(kind, name))
    await stage.settle()
    assert written(stage) == []


@in_virtual_time
async def test_a_lower_that_was_away_catches_up() -> None:
    """With the endpoints as they are then, and without what went meanwhile."""
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
async def test_services_that_are_denied_are_told_and_tried_again() -> None:
    """By a quota, as a rule; no slice waits in vain for anything else."""
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
async def test_a_lower_that_leaves_keeps_nothing() -> None:
    """It is cleared before its node goes: afterwards no rule would do it."""
    stage = staged(service("web"))
    stage.start()
    await stage.settle()
    await stage.delete(ref(POD, "web"), 0)
    stage.reload(topology(f"name: {B}"))
    await stage.calm(PAUSE)
    assert await names(stage, SERVICE) == await names(stage, ENDPOINT_SLICE) == []
    assert [one for one in stage.world.upper.nodes if one.name == A] == []


@in_virtual_time
async def test_a_controller_that_is_disabled_takes_nothing_from_running_pods() -> None:
    """What is there stays until their last one is gone, and its endpoints follow; nothing new comes."""
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
