"""Tests of which namespace mapping is active in a lower, according to its Node and the objects that exist."""

import pytest
from servicekit import endpoint_slice, service
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    add_virtual_node,
    delete_observed,
    make_lower_pod,
    make_object,
    make_upper_pod,
    make_world,
    put,
    with_owner_marks,
)

from tensile.engine.lower_transitions import (
    adopt_noted_mapping,
    learn_mapping,
    may_change_mapping,
    requested_mapping,
    waiting_mappings,
)
from tensile.names import LOWER, NAMESPACE_MAPPING, OWNER, UPPER_NAMESPACE
from tensile.objects import ENDPOINT_SLICE, SERVICE, VOLUME, Manifest, metadata
from tensile.reconcile.ownership import has_node
from tensile.reconcile.world import LowerWorld, NamespaceNaming, World, mapping_note

PREFIX = f"name: {A}, namespaces: {{mapping: prefix}}"
SAME = f"name: {A}"
RUNNING = {"phase": "Running"}


def unknown(*lowers: str, note: str | None = None, owner: str = OWNER_HERE.mark) -> World:
    """Return a world in which the mapping of lower-a is not known yet; `note` is that of its Node, None for no Node."""
    world = make_world(*lowers)
    lower = world.lowers[A]
    lower.mapping_known = False
    if note is not None:
        node = add_virtual_node(world).manifest()
        notes = {**node["metadata"]["annotations"], NAMESPACE_MAPPING: note}
        if not note:
            del notes[NAMESPACE_MAPPING]
        meta = {**metadata(node), "annotations": notes, "labels": {**metadata(node)["labels"], OWNER: owner}}
        put(world.upper.nodes, {**node, "metadata": meta})
    return world


def learned(world: World) -> str:
    """Return the mapping that becomes active, "" while that is not certain."""
    lower = world.lowers[A]
    learn_mapping(lower, world)
    return mapping_note(lower.naming) if lower.mapping_known else ""


def running(world: World, namespace: str = "default", **meta: object) -> Manifest:
    """Add a running pod that is bound to lower-a, with its lower pod in a lower namespace."""
    pod = make_upper_pod(status=RUNNING)
    put(world.lowers[A].upper_pods, pod)
    lower_object = make_lower_pod(pod)
    put(world.lowers[A].pods, {**lower_object, "metadata": {**metadata(lower_object), "namespace": namespace, **meta}})
    return pod


def prefixed_space(world: World) -> None:
    """Add the lower namespace that the prefix gives to `default`."""
    space = make_object("Namespace", "demo-default", "", annotations={UPPER_NAMESPACE: "default"})
    put(world.lowers[A].namespaces, with_owner_marks(space, "Namespace-default", uid="below"))


@pytest.mark.parametrize(("lower", "note"), [(SAME, "same"), (PREFIX, "prefix=demo")])
def test_a_mapping_is_active_at_once_if_topology_and_node_agree(lower: str, note: str) -> None:
    """The lists of the lower cluster are not required for that."""
    world = unknown(lower, note=note)
    world.lowers[A].pods.mark_stale()
    assert learned(world) == note


@pytest.mark.parametrize(
    ("lower", "note"), [(PREFIX, "same"), (SAME, "prefix=demo"), (PREFIX, "prefix=earlier")], ids=str
)
def test_the_recorded_mapping_stays_while_pods_are_bound(lower: str, note: str) -> None:
    """It can have a former name of the topology as its prefix; no mapping is certain before all objects are listed."""
    world = unknown(lower, note=note)
    put(world.lowers[A].upper_pods, make_upper_pod())
    world.lowers[A].pods.mark_stale()
    assert learned(world) == ""
    world.lowers[A].pods.replace((), 5)
    assert learned(world) == note


def test_the_recorded_mapping_stays_while_a_volume_of_a_lower_claim_exists() -> None:
    """Otherwise its claim would be searched in another namespace, and considered lost."""
    world = unknown(PREFIX, note="same")
    volume = {**make_object("PersistentVolume", "pvc-1", "", annotations={LOWER: A}), "spec": {}}
    put(world.upper.more[VOLUME], with_owner_marks(volume, "claim"))
    assert learned(world) == "same"


def test_the_recorded_mapping_stays_while_an_orphan_exists_in_its_namespace() -> None:
    """A terminating orphan does not count, because another client may hold it by a finalizer."""
    world = unknown(PREFIX, note="same")
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod()))
    assert learned(world) == "same"
    world = unknown(PREFIX, note="same")
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod(), deletionTimestamp="2026-03-01T12:00:00Z"))
    assert learned(world) == "prefix=demo"


def test_a_pod_in_a_namespace_without_an_upper_namespace_does_not_block_a_mapping() -> None:
    """A forged pod would otherwise block the change for as long as it exists."""
    world = unknown(PREFIX, note="same")
    world.lowers[A].upper_namespaces = world.upper.namespaces
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod()))
    assert learned(world) == "prefix=demo"


def test_another_mapping_waits_until_the_services_of_the_last_pods_are_deleted() -> None:
    """They exist for some seconds, and would not be found afterwards; those in kube-system do not depend on pods."""
    world = make_world(PREFIX)
    lower = world.lowers[A]
    lower.naming = None
    put(lower.more[SERVICE], with_owner_marks(service("dns", "kube-system"), "dns"), service("theirs"))
    assert may_change_mapping(lower, world)
    put(lower.more[SERVICE], with_owner_marks(service(), "web"))
    assert not may_change_mapping(lower, world)
    (waits,) = waiting_mappings(world)
    assert waits.endswith("same -> prefix: waits until the Services of its last pods are deleted")
    delete_observed(lower.more[SERVICE], "web")
    put(lower.more[ENDPOINT_SLICE], with_owner_marks(endpoint_slice(), "web"))
    assert not may_change_mapping(lower, world)


def test_the_mapping_follows_from_running_pods_if_the_node_has_no_note() -> None:
    """The pods stay in their namespace; without pods, the mapping of the topology is active."""
    world = unknown(PREFIX, note="")
    running(world)
    assert learned(world) == "same"
    world = unknown(SAME, note="")
    running(world, "demo-default")
    prefixed_space(world)
    assert learned(world) == "prefix=demo"
    assert learned(unknown(PREFIX, note="")) == "prefix=demo"
    assert learned(unknown(SAME)) == "same"


@pytest.mark.parametrize("note", ["prefix=", "prefix=Up/../Down", "other", "prefix=demo\n"])
def test_an_invalid_note_on_the_node_is_ignored(note: str) -> None:
    """Any client that may write to a Node can set it."""
    assert learned(unknown(PREFIX, note=note)) == "prefix=demo"


def test_the_note_of_a_foreign_node_is_used_only_if_the_node_is_adopted() -> None:
    """A renamed topology continues with its namespaces, and the Node of another owner has no effect."""
    world = unknown(f"{PREFIX}, onConflict: adopt", note="prefix=earlier", owner=STRANGER.mark)
    put(world.lowers[A].upper_pods, make_upper_pod())
    assert learned(world) == "prefix=earlier"
    world = unknown(PREFIX, note="prefix=earlier", owner=STRANGER.mark)
    put(world.lowers[A].upper_pods, make_upper_pod())
    assert learned(world) == "prefix=demo"


def test_a_changed_mapping_is_only_used_once_the_node_records_it() -> None:
    """An engine that restarts would otherwise search for objects in the wrong namespace."""
    world = unknown(PREFIX, note="same")
    assert learned(world) == "prefix=demo"
    assert not has_node(world.lowers[A], world)
    add_virtual_node(world)
    assert has_node(world.lowers[A], world)


def test_commands_that_only_read_use_the_mapping_that_the_node_records() -> None:
    """`explain` and `simulate` read the engine's namespaces; without a Node, the topology's mapping is used."""
    world = unknown(PREFIX, note="same")
    adopt_noted_mapping(world.lowers[A], world)
    assert world.lowers[A].naming is None
    world = unknown(PREFIX)
    adopt_noted_mapping(world.lowers[A], world)
    assert world.lowers[A].naming == requested_mapping(world.lowers[A].spec, world)


def test_a_mapping_may_change_if_all_objects_are_listed_and_none_exist() -> None:
    """Objects that are not listed may exist."""
    world = make_world(f"name: {A}", f"name: {B}")
    assert may_change_mapping(world.lowers[A], world)
    world.upper.more[VOLUME].mark_stale()
    assert not may_change_mapping(world.lowers[A], world)


def lower_of(naming: NamespaceNaming | None) -> LowerWorld:
    """Return a lower with an active mapping."""
    lower = make_world().lowers[A]
    lower.naming = naming
    return lower


@pytest.mark.parametrize("naming", [None, NamespaceNaming("demo", OWNER_HERE.mark)], ids=["same", "prefix"])
def test_the_note_of_a_mapping_is_readable(naming: NamespaceNaming | None) -> None:
    """A user can read it on the Node."""
    assert mapping_note(lower_of(naming).naming) == ("same" if naming is None else "prefix=demo")
