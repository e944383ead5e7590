"""Tests of what `tensile uninstall` deletes, and when it must not: the whole loop decides in memory."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import orjson
import pytest
from answering import Answering
from stagekit import Script
from worldkit import (
    NOW,
    OWNER_HERE,
    SIBLING,
    STRANGER,
    A,
    B,
    config_map,
    home,
    marked,
    put,
    raised,
    space,
    thing,
    twin,
    upper_pod,
    world,
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


class Standing(NamedTuple):
    """Open clusters: their world, and their connections."""

    world: World
    connections: dict[str, Cluster]


def ours(name: str, above: str = "", owner: Any = OWNER_HERE) -> Manifest:
    """Return a lower namespace of this topology."""
    made = space(name, annotations={UPPER_NAMESPACE: above or name})
    return marked(made, f"upper-{above or name}", owner, uid=f"below-{name}")


def standing(*, prefix: bool = False) -> World:
    """Return a world without an engine: virtual nodes in the upper cluster, and empty own namespaces in the lowers."""
    more = "namespaces: {mapping: prefix}" if prefix else "namespaces: {mapping: same}"
    here = world(f"name: {A}, {more}", f"name: {B}, {more}")
    put(here.upper.namespaces, *(space(name, uid=f"upper-{name}") for name in SPACES))
    raised(here)
    return here


async def deleted(here: World) -> list[str]:
    """Rehearse, and return every step, which can only be deletions."""
    leave_topology(here)
    script = Script()
    await rehearse(Standing(here, {}), script, uninstall_rules())  # type: ignore[arg-type]
    steps = [said.step for said in script.lines if said.step is not None and said.step.verb != "confirm"]
    assert all(step.uid for step in steps)
    return sorted(f"{step.verb} {step.ref}" for step in steps)


async def test_nodes_and_empty_namespaces_are_deleted() -> None:
    """Namespaces of other owners and other topologies stay."""
    here = standing()
    put(here.lowers[A].namespaces, ours("shop"), space("theirs"), ours("others", owner=STRANGER))
    put(here.upper.namespaces, space("theirs"), space("others"))
    assert await deleted(here) == [f"delete {A}: Namespace shop", f"delete upper: Node {A}"]


async def test_a_terminating_namespace_is_not_deleted_again() -> None:
    """A second call thus finds nothing."""
    here = world()
    put(here.upper.namespaces, space("shop"))
    put(here.lowers[A].namespaces, ours("shop") | {"status": {"phase": "Terminating"}})
    entry = here.lowers[A].namespaces.get("", "shop")
    assert entry is not None
    put(here.lowers[A].namespaces, ending(entry.manifest()))
    assert await deleted(here) == []


def ending(manifest: Manifest) -> Manifest:
    """Return an object that is being deleted."""
    return {**manifest, "metadata": {**metadata(manifest), "deletionTimestamp": "2026-03-01T12:00:00Z"}}


def vacated(here: World) -> list[str]:
    """Return the namespaces of lower-a that are deleted in addition to those of the engine's rules."""
    leave_topology(here)
    (rule,) = (one for one in uninstall_rules() if one.name == "uninstall")
    found = rule.decide(Key("uninstall", A, "", ""), here).wanted
    assert all(isinstance(one, Absent) and one.only_if_empty and one.uid == f"below-{one.ref.name}" for one in found)
    return [one.ref.name for one in found if isinstance(one, Absent)]


def test_a_namespace_with_an_object_is_not_deleted() -> None:
    """Objects of kinds that are not watched are found just before the deletion."""
    here = standing()
    put(here.lowers[A].namespaces, ours("shop"), ours("default"))
    put(here.lowers[A].secrets, marked(config_map("kept", namespace="shop"), "somebody"))
    assert vacated(here) == ["default"]


def test_only_namespaces_at_their_mapped_name_are_deleted_by_the_uninstall_rule() -> None:
    """With a prefix, the name must be that of an existing upper namespace; the engine's rule handles the others."""
    here = standing(prefix=True)
    put(here.lowers[A].namespaces, ours("demo-shop", "shop"), ours("elsewhere", "shop"), ours("demo-gone", "gone"))
    assert vacated(here) == ["demo-shop"]


def test_no_namespace_is_deleted_before_all_objects_are_listed() -> None:
    """None is deleted while a pod is bound, or while the lower is still in the topology."""
    here = standing()
    put(here.lowers[A].namespaces, ours("shop"))
    (rule,) = (one for one in uninstall_rules() if one.name == "uninstall")
    assert rule.decide(Key("uninstall", A, "", ""), here).wanted == ()
    put(here.lowers[A].upper_pods, upper_pod("web"))
    assert vacated(here) == []
    other = standing()
    put(other.lowers[A].namespaces, ours("shop"))
    other.lowers[A].pods.mark_stale()
    assert vacated(other) == []


async def test_orphaned_pods_and_unused_copies_are_deleted() -> None:
    """They are a lower pod without an upper pod, and a ConfigMap that no pod refers to."""
    here = standing()
    home(here)
    below = here.lowers[A]
    put(below.pods, twin(upper_pod("orphan")))
    put(here.upper.config_maps, config_map("settings", uid="settings"))
    put(below.config_maps, marked(config_map("settings", uid="below-settings"), "settings"))
    assert await deleted(here) == [
        f"delete {A}: ConfigMap default/settings",
        f"delete {A}: Pod default/orphan",
        f"delete upper: Node {A}",
    ]


async def test_nothing_is_deleted_while_pods_are_bound() -> None:
    """The node and the objects of the pods stay, and nothing is created for the pods."""
    here = standing()
    put(here.lowers[A].namespaces, ours("shop"))
    put(here.lowers[A].upper_pods, upper_pod("web"))
    assert await deleted(here) == []


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
    rule, here = DeletionsOnly(Mixed()), world()
    (key,) = rule.keys(here, A)
    found = rule.decide(key, here)
    assert ([one.ref.name for one in found.wanted], found.depends_on) == (["first"], ())  # type: ignore[union-attr]
    assert (rule.name, rule.watches()) == ("mixed", ())


def test_the_uninstall_rules_have_no_rule_that_moves_pods() -> None:
    """Uninstalling evicts no pods."""
    assert {rule.name for rule in uninstall_rules()}.isdisjoint({"waiting", "drain", "descheduler", "remaking"})
    assert {"node", "pod", "orphans", "vacancy", "uninstall"} <= {rule.name for rule in uninstall_rules()}


QUIET = Heartbeats("", {A: NOW - timedelta(minutes=5)})


def test_no_obstacle_exists_without_an_engine_and_with_empty_nodes() -> None:
    """DaemonSet pods are not mirrored, and are deleted with the node."""
    here = standing()
    daemon = {"ownerReferences": [{"kind": "DaemonSet", "name": "proxy", "uid": "d", "controller": True}]}
    put(here.lowers[A].upper_pods, upper_pod("proxy", **daemon))
    assert obstacles(here, QUIET, NOW) == []


def test_an_engine_that_leads_is_an_obstacle() -> None:
    """It would create all objects again."""
    (said,) = obstacles(standing(), QUIET._replace(leader="engine-1"), NOW)
    assert said.startswith("engine engine-1 leads topology demo: stop it (Ctrl-C or SIGTERM; ")


def test_an_engine_without_leader_election_is_recognized_by_its_node_leases() -> None:
    """They are renewed every ten seconds, and are valid for forty."""
    here = standing()
    assert obstacles(here, Heartbeats("", {A: NOW - timedelta(seconds=41)}), NOW) == []
    (said,) = obstacles(here, Heartbeats("", {A: NOW - timedelta(seconds=39)}), NOW)
    assert said.startswith(f"an engine renews the lease of node {A}: stop it ")


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "1 pod is bound to node lower-a (default/web-0): "),
        (5, "5 pods are bound to node lower-a (default/web-0, default/web-1, default/web-2 and 2 more): "),
    ],
)
def test_bound_pods_are_an_obstacle(count: int, said: str) -> None:
    """The message states how to evict them."""
    here = standing()
    put(here.lowers[A].upper_pods, *(upper_pod(f"web-{number}") for number in range(count)))
    (words,) = obstacles(here, QUIET, NOW)
    assert words.startswith(said)
    assert "`maintenance: drain` for lower lower-a" in words


def test_upper_pods_on_the_node_of_another_topology_are_no_obstacle() -> None:
    """After a mistake in the topology's name, only the other engine can move them; an own lower pod is an obstacle."""
    here = standing()
    put(here.upper.nodes, marked(thing("Node", A, ""), "node", SIBLING))
    put(here.lowers[A].upper_pods, upper_pod("web"))
    assert obstacles(here, QUIET, NOW) == []
    put(here.lowers[A].pods, twin(upper_pod("web")))
    assert len(obstacles(here, QUIET, NOW)) == 1


def registered(ref: Ref, owner: Any = OWNER_HERE) -> bytes:
    """Return a registration as the engine writes it."""
    body = {"apiVersion": ref.kind.api, "kind": ref.kind.name, "metadata": {"name": ref.name, "uid": f"uid-{ref.name}"}}
    made = marked(body, owner.upper, owner)
    return orjson.dumps({**made, "metadata": {**made["metadata"], "resourceVersion": "7"}})


class Upper(Answering):
    """An upper cluster with some objects."""

    def __init__(self, **found: bytes) -> None:
        super().__init__(UPPER)
        self.found = found

    async def read(self, ref: Ref) -> bytes:
        """Return the object of a kind if it exists."""
        return self.found[ref.kind.name] if ref.kind.name in self.found else await super().read(ref)


async def test_only_own_registrations_are_deleted() -> None:
    """UID and resourceVersion are preconditions, and the lease of the leader is deleted last."""
    here = world()
    hook, lease = ref_of(here.topology), lease_ref("demo")
    strange = registered(hook, STRANGER)
    upper = Upper(
        MutatingWebhookConfiguration=registered(hook), MutatingAdmissionPolicy=strange, Lease=registered(lease)
    )
    found = await registrations(upper, here.topology, here, "")  # type: ignore[arg-type]
    assert [one.ref for one in found] == [hook, lease]
    recorder = Recorder()
    assert await delete_registrations(upper, found, recorder) == []  # type: ignore[arg-type]
    assert [(one.verb, one.ref, one.carried) for one in upper.asked if one.verb == "delete"] == [
        ("delete", hook, ("uid-tensile-demo", None, "7")),
        ("delete", lease, ("uid-tensile-demo", None, "7")),
    ]
    assert [one.step.ref for one in recorder.recorded] == [hook, lease]


async def test_a_registration_that_cannot_be_deleted_is_reported() -> None:
    """The other deletions are attempted too."""
    here = world()
    hook, lease = ref_of(here.topology), lease_ref("demo")
    upper = Upper(MutatingWebhookConfiguration=registered(hook), Lease=registered(lease))
    found = await registrations(upper, here.topology, here, "")  # type: ignore[arg-type]
    upper.answer("delete", Denied("no right", doing="delete it"), Conflict("changed", doing="delete it"))
    recorder = Recorder()
    first, second = await delete_registrations(upper, found, recorder)  # type: ignore[arg-type]
    assert first == "upper: delete it: denied: no right"
    assert second.endswith("changed: it was changed meanwhile: stop the engine that writes it, and uninstall again")
    assert recorder.recorded == []


async def test_heartbeats_are_read_from_the_leases() -> None:
    """They are the lease of the leader and those of the own nodes."""
    here = standing()
    lease = new_lease(lease_ref("demo"), "engine-1", OWNER_HERE, NOW, LeaseTimings())
    upper = Upper(Lease=orjson.dumps(lease))
    assert await heartbeats(upper, here, NOW) == ("engine-1", {A: NOW})  # type: ignore[arg-type]
    assert await heartbeats(Upper(), world(), NOW) == ("", {})  # type: ignore[arg-type]
