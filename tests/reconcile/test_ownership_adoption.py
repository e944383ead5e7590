"""Tests of which objects are adopted under `onConflict: adopt`: only those that certainly lost their owner."""

from typing import Any

import pytest
from worldkit import (
    OWNER_HERE,
    SIBLING,
    STRANGER,
    A,
    B,
    change_as_other_client,
    config_map,
    make_object,
    make_owned_node,
    make_upper_pod,
    make_world,
    put,
    synced_cache,
    with_managed_fields,
    with_owner_marks,
)

from tensile.names import LEGACY, OWNER, OWNER_NAME, UPPER_UID, VIRTUAL_POD
from tensile.objects import CONFIG_MAP, NODE, POD, UPPER, Manifest, Ref, annotations, labels
from tensile.reconcile.desired import Decision, Present
from tensile.reconcile.ownership import adoption_problem, adopts, conflict, objection, running_owners
from tensile.reconcile.plan import Plan, plan
from tensile.reconcile.pods.references import copy_of
from tensile.reconcile.world import Key, World

REF = Ref(A, CONFIG_MAP, "default", "settings")
KEY = Key("test", A, "default", "settings")


def adopting() -> World:
    """Create a world in which lower-a adopts objects and lower-b does not."""
    return make_world("name: lower-a, onConflict: adopt", "name: lower-b")


def why(found: Manifest, world: World | None = None, ref: Ref = REF) -> str:
    """Return the reason why an object is not adopted for the upper object of UID "above", "" if it is."""
    return objection(ref, found, "above", world or adopting())


def legacy(**meta: Any) -> Manifest:
    """Return a ConfigMap as tensile-kube leaves it."""
    return config_map(annotations={LEGACY: "true"}, **meta)


def released() -> Manifest:
    """Return a ConfigMap of another upper cluster's engine without its owner label."""
    found = with_owner_marks(config_map(), "elsewhere", STRANGER)
    del found["metadata"]["labels"][OWNER]
    return found


@pytest.mark.parametrize(
    "found",
    [
        legacy(),
        released(),
        with_owner_marks(config_map(), "above", SIBLING),
        config_map(labels={OWNER: OWNER_HERE.mark}),
    ],
    ids=["of tensile-kube", "released by hand", "of a topology that is gone", "ours without its UID"],
)
def test_an_object_that_lost_its_owner_is_adopted(found: Manifest) -> None:
    """Each case shows in another way that no other engine needs the object."""
    assert why(found) == ""


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (config_map(), "only objects created by tensile-kube or by this program"),
        (config_map(annotations={LEGACY: "false"}), "only objects created by tensile-kube"),
        (config_map(labels={VIRTUAL_POD: "true"}), "only objects created by tensile-kube"),
        (
            with_owner_marks(config_map(), "elsewhere", STRANGER),
            "topology demo owns it; if that topology is permanently gone",
        ),
        (
            with_owner_marks(config_map(), "elsewhere", SIBLING),
            "topology second owns it; if that topology is permanently gone",
        ),
        (legacy(deletionTimestamp="2026-03-01T12:00:00Z"), "it is being deleted"),
        (legacy(labels={OWNER: STRANGER.mark}), f"remove label {OWNER} from it"),
    ],
    ids=["plain", "not global", "a ConfigMap with a pod's label", "of another upper", "for another object", "ending",
         "of tensile-kube and marked since"],
)  # fmt: skip
def test_other_objects_are_not_adopted(found: Manifest, message: str) -> None:
    """The reason is reported, with the remedy if it is certain."""
    assert message in why(found)


def test_objects_of_a_topology_with_a_running_node_are_not_adopted() -> None:
    """They are adopted once the Ready condition of its node is Unknown, even if they have this object's UID."""
    world, theirs = adopting(), with_owner_marks(config_map(), "above", SIBLING)
    put(world.upper.nodes, make_owned_node(SIBLING.mark))
    assert why(theirs, world) == "topology second of this upper cluster owns it and is running"
    assert running_owners(world) == {SIBLING.mark}
    put(world.upper.nodes, make_owned_node(SIBLING.mark, "Unknown"))
    assert why(theirs, world) == ""
    put(world.upper.nodes, make_owned_node(SIBLING.mark, "False"))
    assert "and is running" in why(theirs, world)


def test_a_pod_of_tensile_kube_is_recognized_by_its_label() -> None:
    """It has no other mark."""
    ref = Ref(A, POD, "default", "web")
    assert why(make_upper_pod(labels={VIRTUAL_POD: "true"}), ref=ref) == ""
    assert "only objects" in why(make_upper_pod(), ref=ref)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (make_owned_node("", "Unknown"), ""),
        (make_owned_node(STRANGER.mark, "Unknown"), ""),
        (make_owned_node(SIBLING.mark, "True"), "another engine updates it: stop that engine first"),
        (make_owned_node("", "True"), "another engine updates it"),
        (make_owned_node("", "Unknown", type="real"), "it is not a virtual node"),
        (make_object("Node", "n", "", annotations={LEGACY: "true"}), "it is not a virtual node"),
    ],
    ids=["of tensile-kube", "of a lost engine", "of one that runs", "of tensile-kube that runs", "real", "bare"],
)  # fmt: skip
def test_a_virtual_node_is_adopted_if_no_engine_updates_it(node: Manifest, message: str) -> None:
    """A real node is never adopted."""
    assert why(node, ref=Ref(UPPER, NODE, "", "n")).startswith(message)
    assert bool(why(node, ref=Ref(UPPER, NODE, "", "n"))) == bool(message)


def test_each_lower_configures_whether_it_adopts() -> None:
    """Without adoption, the conflict is reported and the object is not examined."""
    world = adopting()
    assert adopts(world, A)
    assert not adopts(world, B)
    assert adoption_problem(REF, legacy(), "above", world, A) is None
    assert adoption_problem(REF, legacy(), "above", world, B) == conflict(REF)


def test_a_conflict_message_names_the_object_and_the_remedy() -> None:
    """With adoption, it has the reason why the object is not adopted."""
    assert conflict(REF).message == (
        "ConfigMap default/settings exists in lower cluster lower-a and has another owner: "
        "rename or delete one of the two"
    )
    problem = adoption_problem(REF, config_map(), "above", adopting(), A)
    assert problem is not None
    assert problem.reason == "NameConflict"
    assert "has another owner: it is not adopted: only objects created by tensile-kube" in problem.message


def planned(found: Manifest, world: World | None = None) -> Plan:
    """Return the plan for our ConfigMap if another object is cached under its name."""
    world = world or adopting()
    world.lowers[A].config_maps = synced_cache()
    put(world.lowers[A].config_maps, found)
    wanted = Present(REF, copy_of(config_map(uid="above"), OWNER_HERE, "default"), "needed", replaceable=True)
    return plan(KEY, Decision((wanted,)), world)


def test_an_object_is_adopted_by_a_patch_of_its_marks_alone() -> None:
    """The patch requires the UID and resourceVersion that were judged, and the content is updated later."""
    found = {**legacy(uid="theirs", labels={"team": "web"}), "data": {"other": "content"}}
    (step,) = planned(found).steps
    assert (step.verb, step.ref, step.uid, step.reason) == ("patch", REF, "theirs", "onConflict: adopt")
    assert step.patch is not None
    assert step.patch.body[:2] == [
        {"op": "replace", "path": "/metadata/uid", "value": "theirs"},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "2"},
    ]
    paths = {one["path"]: one["value"] for one in step.operations}
    assert paths == {
        f"/metadata/labels/{OWNER.replace('/', '~1')}": OWNER_HERE.mark,
        f"/metadata/annotations/{OWNER_NAME.replace('/', '~1')}": "demo",
        f"/metadata/annotations/{UPPER_UID.replace('/', '~1')}": "above",
    }


def test_an_immutable_object_is_not_replaced_before_it_is_adopted() -> None:
    """An object of another owner is never deleted."""
    found = {**legacy(), "immutable": True, "data": {"other": "content"}}
    assert [step.verb for step in planned(found).steps] == ["patch"]


def test_an_object_that_is_not_adopted_is_a_conflict_without_steps() -> None:
    """The problem has the reason NameConflict."""
    found = planned(config_map())
    assert found.steps == ()
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"


def test_a_mark_that_another_client_wrote_is_removed_first() -> None:
    """Otherwise the API would keep that client as its owner, because the value stays the same."""
    by_hand = with_owner_marks(config_map(uid="theirs"), "above")
    by_hand["metadata"]["managedFields"][0]["manager"] = "velero"
    (step,) = planned(by_hand).steps
    assert step.operations == ({"op": "remove", "path": f"/metadata/annotations/{UPPER_UID.replace('/', '~1')}"},)


def test_an_object_of_this_owner_is_not_adopted() -> None:
    """It has both marks already, so the plan is empty."""
    mine = with_managed_fields(copy_of(config_map(uid="above"), OWNER_HERE, "default"))
    mine["metadata"]["uid"] = "below"
    assert planned(mine) == Plan(())
    assert labels(mine)[OWNER] == OWNER_HERE.mark
    assert annotations(mine)[UPPER_UID] == "above"


def test_a_node_without_a_ready_condition_does_not_show_a_running_owner() -> None:
    """No engine has updated such a node."""
    world = adopting()
    put(world.upper.nodes, make_object("Node", "bare", "", labels={OWNER: SIBLING.mark}))
    assert running_owners(world) == frozenset()
    change_as_other_client(
        world.upper.nodes, "bare", lambda one: one.update(status={"conditions": [{"type": "Other"}]}), ""
    )
    assert running_owners(world) == frozenset()
