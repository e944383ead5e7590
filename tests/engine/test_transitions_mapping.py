"""Which mapping of namespaces is in force in a lower, by what its Node notes and what stands there."""

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
    """Make a world in which the mapping of lower-a is yet to be known; its Node notes one, None for no Node."""
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
    """Return the mapping that comes into force, "" while that is not certain."""
    lower = here.lowers[A]
    learn_mapping(lower, here)
    return mapping_note(lower.naming) if lower.mapping_known else ""


def running(here: World, namespace: str = "default", **meta: object) -> Manifest:
    """Let a pod run that is bound to lower-a, its lower pod in a lower namespace."""
    pod = upper_pod(status=RUNNING)
    put(here.lowers[A].upper_pods, pod)
    below = twin(pod)
    put(here.lowers[A].pods, {**below, "metadata": {**metadata(below), "namespace": namespace, **meta}})
    return pod


def prefixed_space(here: World) -> None:
    """Let the namespace be there that a prefix gives to `default`."""
    space = thing("Namespace", "demo-default", "", annotations={UPPER_NAMESPACE: "default"})
    put(here.lowers[A].namespaces, marked(space, "Namespace-default", uid="below"))


@pytest.mark.parametrize(("lower", "note"), [(SAME, "same"), (PREFIX, "prefix=demo")])
def test_what_the_topology_asks_for_and_the_node_notes_is_in_force_at_once(lower: str, note: str) -> None:
    """No list of the lower cluster is waited for."""
    here = unknown(lower, note=note)
    here.lowers[A].pods.mark_stale()
    assert learned(here) == note


@pytest.mark.parametrize(
    ("lower", "note"), [(PREFIX, "same"), (SAME, "prefix=demo"), (PREFIX, "prefix=earlier")], ids=str
)
def test_another_one_stays_while_pods_are_bound(lower: str, note: str) -> None:
    """Also one of an earlier name of the topology; until all is listed nothing is certain."""
    here = unknown(lower, note=note)
    put(here.lowers[A].upper_pods, upper_pod())
    here.lowers[A].pods.mark_stale()
    assert learned(here) == ""
    here.lowers[A].pods.replace((), 5)
    assert learned(here) == note


def test_another_one_stays_while_a_volume_stands_for_a_claim_there() -> None:
    """Its claim would be looked for in another namespace, and be taken for lost."""
    here = unknown(PREFIX, note="same")
    volume = {**thing("PersistentVolume", "pvc-1", "", annotations={LOWER: A}), "spec": {}}
    put(here.upper.more[VOLUME], marked(volume, "claim"))
    assert learned(here) == "same"


def test_another_one_stays_while_an_orphan_is_at_its_place() -> None:
    """One that is ending is not waited for: somebody may hold it there."""
    here = unknown(PREFIX, note="same")
    put(here.lowers[A].pods, twin(upper_pod()))
    assert learned(here) == "same"
    here = unknown(PREFIX, note="same")
    put(here.lowers[A].pods, twin(upper_pod(), deletionTimestamp="2026-03-01T12:00:00Z"))
    assert learned(here) == "prefix=demo"


def test_a_stray_keeps_no_mapping_in_force() -> None:
    """A forged pod in a namespace that no upper one has would block the switch for as long as it is held there."""
    here = unknown(PREFIX, note="same")
    here.lowers[A].upper_namespaces = here.upper.namespaces
    put(here.lowers[A].pods, twin(upper_pod()))
    assert learned(here) == "prefix=demo"


def test_another_mapping_waits_until_the_services_of_the_last_pods_are_gone() -> None:
    """They stay for some seconds, and nothing would find them at their former place; kube-system's need no pods."""
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


def test_without_a_note_pods_that_run_say_which_one_it_was() -> None:
    """Where they stand, they stay; with none, what the topology asks for is in force."""
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
def test_nonsense_is_no_note(note: str) -> None:
    """Whoever may write a Node could have written anything."""
    assert learned(unknown(PREFIX, note=note)) == "prefix=demo"


def test_the_note_of_anothers_node_counts_where_it_is_taken_over() -> None:
    """A topology that was renamed goes on with the places of before; a stranger's Node says nothing."""
    here = unknown(f"{PREFIX}, onConflict: adopt", note="prefix=earlier", owner=STRANGER.mark)
    put(here.lowers[A].upper_pods, upper_pod())
    assert learned(here) == "prefix=earlier"
    here = unknown(PREFIX, note="prefix=earlier", owner=STRANGER.mark)
    put(here.lowers[A].upper_pods, upper_pod())
    assert learned(here) == "prefix=demo"


def test_nothing_is_made_before_the_node_notes_the_mapping() -> None:
    """An engine that starts again would look for it in the wrong place."""
    here = unknown(PREFIX, note="same")
    assert learned(here) == "prefix=demo"
    assert not has_node(here.lowers[A], here)
    raised(here)
    assert has_node(here.lowers[A], here)


def test_who_only_looks_follows_the_note() -> None:
    """`explain` and `simulate` look where the engine does."""
    here = unknown(PREFIX, note="same")
    adopt_noted_mapping(here.lowers[A], here)
    assert here.lowers[A].naming is None
    here = unknown(PREFIX)
    adopt_noted_mapping(here.lowers[A], here)
    assert here.lowers[A].naming == requested_mapping(here.lowers[A].spec, here)


def test_nothing_is_left_when_all_is_listed_and_empty() -> None:
    """What is not listed may be anything."""
    here = world(f"name: {A}", f"name: {B}")
    assert may_change_mapping(here.lowers[A], here)
    here.upper.more[VOLUME].mark_stale()
    assert not may_change_mapping(here.lowers[A], here)


def lower_of(naming: NamespaceNaming | None) -> LowerWorld:
    """Make a lower with a mapping in force."""
    lower = world().lowers[A]
    lower.naming = naming
    return lower


@pytest.mark.parametrize("naming", [None, NamespaceNaming("demo", OWNER_HERE.mark)], ids=["same", "prefix"])
def test_a_note_says_which_mapping(naming: NamespaceNaming | None) -> None:
    """In a form that a person reads on the Node."""
    assert mapping_note(lower_of(naming).naming) == ("same" if naming is None else "prefix=demo")
