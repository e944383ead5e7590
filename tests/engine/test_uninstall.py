"""Tests of what `tensile uninstall` deletes, and when it must not: the whole loop decides in memory."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import orjson
import pytest
from answering import FakeCluster
from stagekit import RecordingObserver
from worldkit import (
    NOW,
    OWNER_HERE,
    SIBLING,
    STRANGER,
    A,
    B,
    add_namespace,
    add_virtual_node,
    config_map,
    make_lower_pod,
    make_namespace,
    make_object,
    make_upper_pod,
    make_world,
    put,
    with_owner_marks,
)

from tensile.engine.leader_election import LeaseTimings, lease_ref, new_lease
from tensile.engine.plan_and_apply import rehearse
from tensile.engine.uninstall import (
    DeletionsOnly,
    Heartbeats,
    delete_registrations,
    heartbeats,
    leave_topology,
    obstacles,
    registrations,
    uninstall_rules,
)
from tensile.errors import Conflict, Denied
from tensile.kube.cluster import Cluster
from tensile.names import UPPER_NAMESPACE
from tensile.objects import CONFIG_MAP, UPPER, Manifest, Ref, metadata
from tensile.policy.webhook.registration import ref_of
from tensile.reconcile.desired import Absent, Decision, EmitEvent, Present, Watch
from tensile.reconcile.report import Recorder
from tensile.reconcile.world import Key, World

SPACES = ("default", "shop")


class InstalledClusters(NamedTuple):
    """Open clusters: their world, and their connections."""

    world: World
    connections: dict[str, Cluster]


def own_namespace(name: str, above: str = "", owner: Any = OWNER_HERE) -> Manifest:
    """Return a lower namespace of this topology."""
    made = make_namespace(name, annotations={UPPER_NAMESPACE: above or name})
    return with_owner_marks(made, f"upper-{above or name}", owner, uid=f"below-{name}")


def world_without_engine(*, prefix: bool = False) -> World:
    """Return a world without an engine: virtual nodes in the upper cluster, and empty own namespaces in the lowers."""
    more = "namespaces: {mapping: prefix}" if prefix else "namespaces: {mapping: same}"
    world = make_world(f"name: {A}, {more}", f"name: {B}, {more}")
    put(world.upper.namespaces, *(make_namespace(name, uid=f"upper-{name}") for name in SPACES))
    add_virtual_node(world)
    return world


async def deleted(world: World) -> list[str]:
    """Rehearse, and return every step, which can only be deletions."""
    leave_topology(world)
    script = RecordingObserver()
    await rehearse(InstalledClusters(world, {}), script, uninstall_rules())  # type: ignore[arg-type]
    steps = [record.step for record in script.records if record.step is not None and record.step.verb != "confirm"]
    assert all(step.uid for step in steps)
    return sorted(f"{step.verb} {step.ref}" for step in steps)


async def test_nodes_and_empty_namespaces_are_deleted() -> None:
    """Namespaces of other owners and other topologies stay."""
    world = world_without_engine()
    put(
        world.lowers[A].namespaces,
        own_namespace("shop"),
        make_namespace("theirs"),
        own_namespace("others", owner=STRANGER),
    )
    put(world.upper.namespaces, make_namespace("theirs"), make_namespace("others"))
    assert await deleted(world) == [f"delete {A}: Namespace shop", f"delete upper: Node {A}"]


async def test_a_terminating_namespace_is_not_deleted_again() -> None:
    """A second call thus finds nothing."""
    world = make_world()
    put(world.upper.namespaces, make_namespace("shop"))
    put(world.lowers[A].namespaces, own_namespace("shop") | {"status": {"phase": "Terminating"}})
    entry = world.lowers[A].namespaces.get("", "shop")
    assert entry is not None
    put(world.lowers[A].namespaces, ending(entry.manifest()))
    assert await deleted(world) == []


def ending(manifest: Manifest) -> Manifest:
    """Return an object that is being deleted."""
    return {**manifest, "metadata": {**metadata(manifest), "deletionTimestamp": "2026-03-01T12:00:00Z"}}


def vacated(world: World) -> list[str]:
    """Return the namespaces of lower-a that are deleted in addition to those of the engine's rules."""
    leave_topology(world)
    (rule,) = (one for one in uninstall_rules() if one.name == "uninstall")
    found = rule.decide(Key("uninstall", A, "", ""), world).wanted
    assert all(isinstance(one, Absent) and one.only_if_empty and one.uid == f"below-{one.ref.name}" for one in found)
    return [one.ref.name for one in found if isinstance(one, Absent)]


def test_a_namespace_with_an_object_is_not_deleted() -> None:
    """Objects of kinds that are not watched are found just before the deletion."""
    world = world_without_engine()
    put(world.lowers[A].namespaces, own_namespace("shop"), own_namespace("default"))
    put(world.lowers[A].secrets, with_owner_marks(config_map("kept", namespace="shop"), "somebody"))
    assert vacated(world) == ["default"]


def test_only_namespaces_at_their_mapped_name_are_deleted_by_the_uninstall_rule() -> None:
    """With a prefix, the name must be that of an existing upper namespace; the engine's rule handles the others."""
    world = world_without_engine(prefix=True)
    put(
        world.lowers[A].namespaces,
        own_namespace("demo-shop", "shop"),
        own_namespace("elsewhere", "shop"),
        own_namespace("demo-gone", "gone"),
    )
    assert vacated(world) == ["demo-shop"]


def test_no_namespace_is_deleted_before_all_objects_are_listed() -> None:
    """None is deleted while a pod is bound, or while the lower is still in the topology."""
    world = world_without_engine()
    put(world.lowers[A].namespaces, own_namespace("shop"))
    (rule,) = (one for one in uninstall_rules() if one.name == "uninstall")
    assert rule.decide(Key("uninstall", A, "", ""), world).wanted == ()
    put(world.lowers[A].upper_pods, make_upper_pod("web"))
    assert vacated(world) == []
    other = world_without_engine()
    put(other.lowers[A].namespaces, own_namespace("shop"))
    other.lowers[A].pods.mark_stale()
    assert vacated(other) == []


async def test_orphaned_pods_and_unused_copies_are_deleted() -> None:
    """They are a lower pod without an upper pod, and a ConfigMap that no pod refers to."""
    world = world_without_engine()
    add_namespace(world)
    below = world.lowers[A]
    put(below.pods, make_lower_pod(make_upper_pod("orphan")))
    put(world.upper.config_maps, config_map("settings", uid="settings"))
    put(below.config_maps, with_owner_marks(config_map("settings", uid="below-settings"), "settings"))
    assert await deleted(world) == [
        f"delete {A}: ConfigMap default/settings",
        f"delete {A}: Pod default/orphan",
        f"delete upper: Node {A}",
    ]


async def test_nothing_is_deleted_while_pods_are_bound() -> None:
    """The node and the objects of the pods stay, and nothing is created for the pods."""
    world = world_without_engine()
    put(world.lowers[A].namespaces, own_namespace("shop"))
    put(world.lowers[A].upper_pods, make_upper_pod("web"))
    assert await deleted(world) == []


class Mixed:
    """A rule that wants a deletion, a write, and another deletion."""

    name = "mixed"

    def watches(self) -> tuple[Watch, ...]:
        """Return no watches."""
        return ()

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield one key."""
        yield Key(self.name, world.lowers[lower].name, "", "")

    def decide(self, key: Key, world: World) -> Decision:
        """Return the three wanted states."""
        refs = [Ref(key.lower, CONFIG_MAP, "default", name) for name in ("first", "written", "last")]
        first, last = (Absent(ref, ref.name, world.owner.name) for ref in (refs[0], refs[2]))
        return Decision((first, Present(refs[1], {}, "needed"), EmitEvent(refs[1], "", "Said", ""), last), (key,))


def test_deletions_only_drops_a_write_and_everything_after_it() -> None:
    """A later deletion may depend on the write, and no key waits for an object that the uninstall does not create."""
    rule, world = DeletionsOnly(Mixed()), make_world()
    (key,) = rule.keys(world, A)
    found = rule.decide(key, world)
    assert ([one.ref.name for one in found.wanted], found.depends_on) == (["first"], ())  # type: ignore[union-attr]
    assert (rule.name, rule.watches()) == ("mixed", ())


def test_the_uninstall_rules_have_no_rule_that_moves_pods() -> None:
    """Uninstalling evicts no pods."""
    assert {rule.name for rule in uninstall_rules()}.isdisjoint({"waiting", "drain", "descheduler", "remaking"})
    assert {"node", "pod", "orphans", "vacancy", "uninstall"} <= {rule.name for rule in uninstall_rules()}


QUIET = Heartbeats("", {A: NOW - timedelta(minutes=5)})


def test_no_obstacle_exists_without_an_engine_and_with_empty_nodes() -> None:
    """DaemonSet pods are not mirrored, and are deleted with the node."""
    world = world_without_engine()
    daemon = {"ownerReferences": [{"kind": "DaemonSet", "name": "proxy", "uid": "d", "controller": True}]}
    put(world.lowers[A].upper_pods, make_upper_pod("proxy", **daemon))
    assert obstacles(world, QUIET, NOW) == []


def test_an_engine_that_leads_is_an_obstacle() -> None:
    """It would create all objects again."""
    (obstacle,) = obstacles(world_without_engine(), QUIET._replace(leader="engine-1"), NOW)
    assert obstacle.startswith("engine engine-1 leads topology demo: stop it (Ctrl-C or SIGTERM; ")


def test_an_engine_without_leader_election_is_recognized_by_its_node_leases() -> None:
    """They are renewed every ten seconds, and are valid for forty."""
    world = world_without_engine()
    assert obstacles(world, Heartbeats("", {A: NOW - timedelta(seconds=41)}), NOW) == []
    (obstacle,) = obstacles(world, Heartbeats("", {A: NOW - timedelta(seconds=39)}), NOW)
    assert obstacle.startswith(f"an engine renews the lease of node {A}: stop it ")


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (1, "1 pod is bound to node lower-a (default/web-0): "),
        (5, "5 pods are bound to node lower-a (default/web-0, default/web-1, default/web-2 and 2 more): "),
    ],
)
def test_bound_pods_are_an_obstacle(count: int, message: str) -> None:
    """The message states how to evict them."""
    world = world_without_engine()
    put(world.lowers[A].upper_pods, *(make_upper_pod(f"web-{number}") for number in range(count)))
    (obstacle,) = obstacles(world, QUIET, NOW)
    assert obstacle.startswith(message)
    assert "`maintenance: drain` for lower lower-a" in obstacle


def test_upper_pods_on_the_node_of_another_topology_are_no_obstacle() -> None:
    """After a mistake in the topology's name, only the other engine can move them; an own lower pod is an obstacle."""
    world = world_without_engine()
    put(world.upper.nodes, with_owner_marks(make_object("Node", A, ""), "node", SIBLING))
    put(world.lowers[A].upper_pods, make_upper_pod("web"))
    assert obstacles(world, QUIET, NOW) == []
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod("web")))
    assert len(obstacles(world, QUIET, NOW)) == 1


def registered(ref: Ref, owner: Any = OWNER_HERE) -> bytes:
    """Return a registration as the engine writes it."""
    body = {"apiVersion": ref.kind.api, "kind": ref.kind.name, "metadata": {"name": ref.name, "uid": f"uid-{ref.name}"}}
    made = with_owner_marks(body, owner.upper, owner)
    return orjson.dumps({**made, "metadata": {**made["metadata"], "resourceVersion": "7"}})


class UpperWithObjects(FakeCluster):
    """An upper cluster with some objects."""

    def __init__(self, **found: bytes) -> None:
        super().__init__(UPPER)
        self.found = found

    async def read(self, ref: Ref) -> bytes:
        """Return the object of a kind if it exists."""
        return self.found[ref.kind.name] if ref.kind.name in self.found else await super().read(ref)


async def test_only_own_registrations_are_deleted() -> None:
    """UID and resourceVersion are preconditions, and the lease of the leader is deleted last."""
    world = make_world()
    hook, lease = ref_of(world.topology), lease_ref("demo")
    strange = registered(hook, STRANGER)
    upper = UpperWithObjects(
        MutatingWebhookConfiguration=registered(hook), MutatingAdmissionPolicy=strange, Lease=registered(lease)
    )
    found = await registrations(upper, world.topology, world, "")  # type: ignore[arg-type]
    assert [one.ref for one in found] == [hook, lease]
    recorder = Recorder()
    assert await delete_registrations(upper, found, recorder) == []  # type: ignore[arg-type]
    assert [(one.verb, one.ref, one.payload) for one in upper.calls if one.verb == "delete"] == [
        ("delete", hook, ("uid-tensile-demo", None, "7")),
        ("delete", lease, ("uid-tensile-demo", None, "7")),
    ]
    assert [one.step.ref for one in recorder.recorded] == [hook, lease]


async def test_a_registration_that_cannot_be_deleted_is_reported() -> None:
    """The other deletions are attempted too."""
    world = make_world()
    hook, lease = ref_of(world.topology), lease_ref("demo")
    upper = UpperWithObjects(MutatingWebhookConfiguration=registered(hook), Lease=registered(lease))
    found = await registrations(upper, world.topology, world, "")  # type: ignore[arg-type]
    upper.queue_responses("delete", Denied("no right", doing="delete it"), Conflict("changed", doing="delete it"))
    recorder = Recorder()
    first, second = await delete_registrations(upper, found, recorder)  # type: ignore[arg-type]
    assert first == "upper: delete it: denied: no right"
    assert second.endswith("changed: it was changed meanwhile: stop the engine that writes it, and uninstall again")
    assert recorder.recorded == []


async def test_heartbeats_are_read_from_the_leases() -> None:
    """They are the lease of the leader and those of the own nodes."""
    world = world_without_engine()
    lease = new_lease(lease_ref("demo"), "engine-1", OWNER_HERE, NOW, LeaseTimings())
    upper = UpperWithObjects(Lease=orjson.dumps(lease))
    assert await heartbeats(upper, world, NOW) == ("engine-1", {A: NOW})  # type: ignore[arg-type]
    assert await heartbeats(UpperWithObjects(), make_world(), NOW) == ("", {})  # type: ignore[arg-type]
