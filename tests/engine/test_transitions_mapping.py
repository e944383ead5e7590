"""Tests of which namespace mapping is active in a lower, according to its Node and the objects that exist."""

import pytest
from servicekit import service, sliced
from worldkit import OWNER_HERE, STRANGER, A, B, drop, marked, put, raised, thing, twin, upper_pod, world

from tensile.engine.transitions import (
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
    here = world(*lowers)
    lower = here.lowers[A]
    lower.mapping_known = False
    if note is not None:
        node = raised(here).manifest()
        notes = {**node["metadata"]["annotations"], NAMESPACE_MAPPING: note}
        if not note:
            del notes[NAMESPACE_MAPPING]
        meta = {**metadata(node), "annotations": notes, "labels": {**metadata(node)["labels"], OWNER: owner}}
        put(here.upper.nodes, {**node, "metadata": meta})
    return here


def learned(here: World) -> str:
    """Return the mapping that becomes active, "" while that is not certain."""
    lower = here.lowers[A]
    learn_mapping(lower, here)
    return mapping_note(lower.naming) if lower.mapping_known else ""


def running(here: World, namespace: str = "default", **meta: object) -> Manifest:
    """Add a running pod that is bound to lower-a, with its lower pod in a lower namespace."""
    pod = upper_pod(status=RUNNING)
    put(here.lowers[A].upper_pods, pod)
    below = twin(pod)
    put(here.lowers[A].pods, {**below, "metadata": {**metadata(below), "namespace": namespace, **meta}})
    return pod


def prefixed_space(here: World) -> None:
    """Add the lower namespace that the prefix gives to `default`."""
    space = thing("Namespace", "demo-default", "", annotations={UPPER_NAMESPACE: "default"})
    put(here.lowers[A].namespaces, marked(space, "Namespace-default", uid="below"))


@pytest.mark.parametrize(("lower", "note"), [(SAME, "same"), (PREFIX, "prefix=demo")])
def test_a_mapping_is_active_at_once_if_topology_and_node_agree(lower: str, note: str) -> None:
    """The lists of the lower cluster are not required for that."""
    here = unknown(lower, note=note)
    here.lowers[A].pods.mark_stale()
    assert learned(here) == note


@pytest.mark.parametrize(
    ("lower", "note"), [(PREFIX, "same"), (SAME, "prefix=demo"), (PREFIX, "prefix=earlier")], ids=str
)
def test_the_recorded_mapping_stays_while_pods_are_bound(lower: str, note: str) -> None:
    """It can have a former name of the topology as its prefix; no mapping is certain before all objects are listed."""
    here = unknown(lower, note=note)
    put(here.lowers[A].upper_pods, upper_pod())
    here.lowers[A].pods.mark_stale()
    assert learned(here) == ""
    here.lowers[A].pods.replace((), 5)
    assert learned(here) == note


def test_the_recorded_mapping_stays_while_a_volume_of_a_lower_claim_exists() -> None:
    """Otherwise its claim would be searched in another namespace, and considered lost."""
    here = unknown(PREFIX, note="same")
    volume = {**thing("PersistentVolume", "pvc-1", "", annotations={LOWER: A}), "spec": {}}
    put(here.upper.more[VOLUME], marked(volume, "claim"))
    assert learned(here) == "same"


def test_the_recorded_mapping_stays_while_an_orphan_exists_in_its_namespace() -> None:
    """A terminating orphan does not count, because another client may hold it by a finalizer."""
    here = unknown(PREFIX, note="same")
    put(here.lowers[A].pods, twin(upper_pod()))
    assert learned(here) == "same"
    here = unknown(PREFIX, note="same")
    put(here.lowers[A].pods, twin(upper_pod(), deletionTimestamp="2026-03-01T12:00:00Z"))
    assert learned(here) == "prefix=demo"


def test_a_pod_in_a_namespace_without_an_upper_namespace_does_not_block_a_mapping() -> None:
    """A forged pod would otherwise block the change for as long as it exists."""
    here = unknown(PREFIX, note="same")
    here.lowers[A].upper_namespaces = here.upper.namespaces
    put(here.lowers[A].pods, twin(upper_pod()))
    assert learned(here) == "prefix=demo"


def test_another_mapping_waits_until_the_services_of_the_last_pods_are_deleted() -> None:
    """They exist for some seconds, and would not be found afterwards; those in kube-system do not depend on pods."""
    here = world(PREFIX)
    lower = here.lowers[A]
    lower.naming = None
    put(lower.more[SERVICE], marked(service("dns", "kube-system"), "dns"), service("theirs"))
    assert may_change_mapping(lower, here)
    put(lower.more[SERVICE], marked(service(), "web"))
    assert not may_change_mapping(lower, here)
    (waits,) = waiting_mappings(here)
    assert waits.endswith("same -> prefix: waits until the Services of its last pods are deleted")
    drop(lower.more[SERVICE], "web")
    put(lower.more[ENDPOINT_SLICE], marked(sliced(), "web"))
    assert not may_change_mapping(lower, here)


def test_the_mapping_follows_from_running_pods_if_the_node_has_no_note() -> None:
    """The pods stay in their namespace; without pods, the mapping of the topology is active."""
    here = unknown(PREFIX, note="")
    running(here)
    assert learned(here) == "same"
    here = unknown(SAME, note="")
    running(here, "demo-default")
    prefixed_space(here)
    assert learned(here) == "prefix=demo"
    assert learned(unknown(PREFIX, note="")) == "prefix=demo"
    assert learned(unknown(SAME)) == "same"


@pytest.mark.parametrize("note", ["prefix=", "prefix=Up/../Down", "other", "prefix=demo\n"])
def test_an_invalid_note_on_the_node_is_ignored(note: str) -> None:
    """Any client that may write to a Node can set it."""
    assert learned(unknown(PREFIX, note=note)) == "prefix=demo"


def test_the_note_of_a_foreign_node_is_used_only_if_the_node_is_adopted() -> None:
    """A renamed topology continues with its namespaces, and the Node of another owner has no effect."""
    here = unknown(f"{PREFIX}, onConflict: adopt", note="prefix=earlier", owner=STRANGER.mark)
    put(here.lowers[A].upper_pods, upper_pod())
    assert learned(here) == "prefix=earlier"
    here = unknown(PREFIX, note="prefix=earlier", owner=STRANGER.mark)
    put(here.lowers[A].upper_pods, upper_pod())
    assert learned(here) == "prefix=demo"


def test_a_changed_mapping_is_only_used_once_the_node_records_it() -> None:
    """An engine that restarts would otherwise search for objects in the wrong namespace."""
    here = unknown(PREFIX, note="same")
    assert learned(here) == "prefix=demo"
    assert not has_node(here.lowers[A], here)
    raised(here)
    assert has_node(here.lowers[A], here)


def test_commands_that_only_read_use_the_mapping_that_the_node_records() -> None:
    """`explain` and `simulate` read the engine's namespaces; without a Node, the topology's mapping is used."""
    here = unknown(PREFIX, note="same")
    adopt_noted_mapping(here.lowers[A], here)
    assert here.lowers[A].naming is None
    here = unknown(PREFIX)
    adopt_noted_mapping(here.lowers[A], here)
    assert here.lowers[A].naming == requested_mapping(here.lowers[A].spec, here)


def test_a_mapping_may_change_if_all_objects_are_listed_and_none_exist() -> None:
    """Objects that are not listed may exist."""
    here = world(f"name: {A}", f"name: {B}")
    assert may_change_mapping(here.lowers[A], here)
    here.upper.more[VOLUME].mark_stale()
    assert not may_change_mapping(here.lowers[A], here)


def lower_of(naming: NamespaceNaming | None) -> LowerWorld:
    """Return a lower with an active mapping."""
    lower = world().lowers[A]
    lower.naming = naming
    return lower


@pytest.mark.parametrize("naming", [None, NamespaceNaming("demo", OWNER_HERE.mark)], ids=["same", "prefix"])
def test_the_note_of_a_mapping_is_readable(naming: NamespaceNaming | None) -> None:
    """A user can read it on the Node."""
    assert mapping_note(lower_of(naming).naming) == ("same" if naming is None else "prefix=demo")
