"""What is taken over under `onConflict: adopt`: what certainly lost its owner, and nothing else."""

from typing import Any

import pytest
from worldkit import (
    OWNER_HERE,
    SIBLING,
    STRANGER,
    A,
    B,
    changed,
    config_map,
    filled,
    kept_node,
    marked,
    put,
    thing,
    upper_pod,
    world,
    written,
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
    """Make a world in which lower-a adopts and lower-b does not."""
    return world("name: lower-a, onConflict: adopt", "name: lower-b")


def why(found: Manifest, here: World | None = None, ref: Ref = REF) -> str:
    """Return why an object is not taken over for the upper object of UID "above"."""
    return objection(ref, found, "above", here or adopting())


def legacy(**meta: Any) -> Manifest:
    """Make a ConfigMap as tensile-kube leaves it."""
    return config_map(annotations={LEGACY: "true"}, **meta)


def released() -> Manifest:
    """Make a ConfigMap of another upper's engine whose label somebody took off."""
    found = marked(config_map(), "elsewhere", STRANGER)
    del found["metadata"]["labels"][OWNER]
    return found


@pytest.mark.parametrize(
    "found",
    [
        legacy(),
        released(),
        marked(config_map(), "above", SIBLING),
        config_map(labels={OWNER: OWNER_HERE.mark}),
    ],
    ids=["of tensile-kube", "released by hand", "of a topology that is gone", "ours without its UID"],
)
def test_what_lost_its_owner_is_taken_over(found: Manifest) -> None:
    """Each shows in another way that nobody else needs it."""
    assert why(found) == ""


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (config_map(), "only objects created by tensile-kube or by this program"),
        (config_map(annotations={LEGACY: "false"}), "only objects created by tensile-kube"),
        (config_map(labels={VIRTUAL_POD: "true"}), "only objects created by tensile-kube"),
        (marked(config_map(), "elsewhere", STRANGER), "topology demo owns it; if that topology is permanently gone"),
        (marked(config_map(), "elsewhere", SIBLING), "topology second owns it; if that topology is permanently gone"),
        (legacy(deletionTimestamp="2026-03-01T12:00:00Z"), "it is being deleted"),
        (legacy(labels={OWNER: STRANGER.mark}), f"remove label {OWNER} from it"),
    ],
    ids=["plain", "not global", "a ConfigMap with a pod's label", "of another upper", "for another object", "ending",
         "of tensile-kube and marked since"],
)  # fmt: skip
def test_everything_else_stays_whose_it_is(found: Manifest, words: str) -> None:
    """And it is said why, and what to do where that is certain."""
    assert words in why(found)


def test_a_topology_that_keeps_a_node_alive_is_not_lost() -> None:
    """However alike its object is; once its node is Unknown, or gone, it is."""
    here, theirs = adopting(), marked(config_map(), "above", SIBLING)
    put(here.upper.nodes, kept_node(SIBLING.mark))
    assert why(theirs, here) == "topology second of this upper cluster owns it and is running"
    assert running_owners(here) == {SIBLING.mark}
    put(here.upper.nodes, kept_node(SIBLING.mark, "Unknown"))
    assert why(theirs, here) == ""
    put(here.upper.nodes, kept_node(SIBLING.mark, "False"))
    assert "and is running" in why(theirs, here)


def test_a_pod_of_tensile_kube_is_known_by_its_label() -> None:
    """It has no other mark."""
    ref = Ref(A, POD, "default", "web")
    assert why(upper_pod(labels={VIRTUAL_POD: "true"}), ref=ref) == ""
    assert "only objects" in why(upper_pod(), ref=ref)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (kept_node("", "Unknown"), ""),
        (kept_node(STRANGER.mark, "Unknown"), ""),
        (kept_node(SIBLING.mark, "True"), "another engine updates it: stop that engine first"),
        (kept_node("", "True"), "another engine updates it"),
        (kept_node("", "Unknown", type="real"), "it is not a virtual node"),
        (thing("Node", "n", "", annotations={LEGACY: "true"}), "it is not a virtual node"),
    ],
    ids=["of tensile-kube", "of a lost engine", "of one that runs", "of tensile-kube that runs", "real", "bare"],
)  # fmt: skip
def test_a_node_is_taken_over_when_nobody_keeps_it_alive(node: Manifest, words: str) -> None:
    """A real machine's never is."""
    assert why(node, ref=Ref(UPPER, NODE, "", "n")).startswith(words)
    assert bool(why(node, ref=Ref(UPPER, NODE, "", "n"))) == bool(words)


def test_a_lower_says_for_itself_whether_it_adopts() -> None:
    """Where it does not, the conflict is reported, and nothing is asked."""
    here = adopting()
    assert adopts(here, A)
    assert not adopts(here, B)
    assert adoption_problem(REF, legacy(), "above", here, A) is None
    assert adoption_problem(REF, legacy(), "above", here, B) == conflict(REF)


def test_a_conflict_says_where_and_what_to_do() -> None:
    """Or, where adopting was asked for, why that is not done."""
    assert conflict(REF).message == (
        "ConfigMap default/settings exists in lower cluster lower-a and has another owner: "
        "rename or delete one of the two"
    )
    problem = adoption_problem(REF, config_map(), "above", adopting(), A)
    assert problem is not None
    assert problem.reason == "NameConflict"
    assert "has another owner: it is not adopted: only objects created by tensile-kube" in problem.message


def planned(found: Manifest, here: World | None = None) -> Plan:
    """Plan our ConfigMap where another is known to have its name."""
    here = here or adopting()
    here.lowers[A].config_maps = filled()
    put(here.lowers[A].config_maps, found)
    wanted = Present(REF, copy_of(config_map(uid="above"), OWNER_HERE, "default"), "needed", replaceable=True)
    return plan(KEY, Decision((wanted,)), here)


def test_an_object_is_made_ours_by_its_marks_alone() -> None:
    """By one write that holds only for what was judged; its content is left for when it is ours."""
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


def test_an_immutable_object_is_not_replaced_before_it_is_ours() -> None:
    """What is not ours is never deleted."""
    found = {**legacy(), "immutable": True, "data": {"other": "content"}}
    assert [step.verb for step in planned(found).steps] == ["patch"]


def test_what_is_not_taken_over_is_no_step() -> None:
    """But a problem."""
    found = planned(config_map())
    assert found.steps == ()
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"


def test_a_mark_by_another_hand_is_taken_off_first() -> None:
    """The API keeps it the other's as long as its value stays the same."""
    by_hand = marked(config_map(uid="theirs"), "above")
    by_hand["metadata"]["managedFields"][0]["manager"] = "velero"
    (step,) = planned(by_hand).steps
    assert step.operations == ({"op": "remove", "path": f"/metadata/annotations/{UPPER_UID.replace('/', '~1')}"},)


def test_what_is_ours_already_is_not_adopted() -> None:
    """Nothing is left to do."""
    mine = written(copy_of(config_map(uid="above"), OWNER_HERE, "default"))
    mine["metadata"]["uid"] = "below"
    assert planned(mine) == Plan(())
    assert labels(mine)[OWNER] == OWNER_HERE.mark
    assert annotations(mine)[UPPER_UID] == "above"


def test_an_unknown_condition_is_no_sign_of_life() -> None:
    """A node without any never was kept."""
    here = adopting()
    put(here.upper.nodes, thing("Node", "bare", "", labels={OWNER: SIBLING.mark}))
    assert running_owners(here) == frozenset()
    changed(here.upper.nodes, "bare", lambda one: one.update(status={"conditions": [{"type": "Other"}]}), "")
    assert running_owners(here) == frozenset()
