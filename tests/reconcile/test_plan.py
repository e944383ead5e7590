"""From what a rule wants to the requests that are sent: whose an object is, fences, and what a person sees of it."""

import re
from typing import Any

import pytest
from worldkit import OWNER_HERE, SIBLING, STRANGER, A, config_map, marked, put, space, thing, world

from tensile.kube.cluster import Patch
from tensile.names import OWNER, UPPER_UID
from tensile.objects import CONFIG_MAP, EVENT, LEASE, NAMESPACE, NODE, POD, UPPER, Manifest, Ref
from tensile.reconcile.desired import Absent, Decision, EmitEvent, Patched, Present, VerifyAbsent, Wanted
from tensile.reconcile.plan import Plan, Step, plan
from tensile.reconcile.world import Key, Problem, World

KEY = Key("rule", A, "default", "settings")
REF = Ref(A, CONFIG_MAP, "default", "settings")
POD_ABOVE = Ref(UPPER, POD, "default", "web")
DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def copy(data: dict[str, str] | None = None, upper_uid: str = "one", **meta: Any) -> Manifest:
    """Make the copy that is wanted: marked as ours, for the upper object of a UID."""
    return marked(config_map("settings", data, **meta), upper_uid)


def wanting(manifest: Manifest, **more: Any) -> Present:
    """Want a ConfigMap below to look like `manifest`."""
    return Present(REF, manifest, "because", sections=("metadata.labels", "metadata.annotations", "data"), **more)


def planned(of: World, *wanted: Wanted, problem: Problem | None = None) -> Plan:
    """Plan a decision."""
    return plan(KEY, Decision(wanted, problem=problem), of)


def step(of: World, wanted: Wanted) -> Step:
    """Plan something that takes one step."""
    (found,) = planned(of, wanted).steps
    return found


def test_what_is_missing_is_created_as_it_is_wanted() -> None:
    """The whole manifest is the body, and the operation that a person reads."""
    found = step(world(), wanting(copy()))
    assert (found.verb, found.ref, found.reason, found.body) == ("create", REF, "because", copy())
    assert found.operations == ({"op": "add", "path": "", "value": copy()},)
    assert found.in_plan
    assert found.requested


def test_what_is_not_followed_is_created_too() -> None:
    """Where there is no cache, the answer to the create says whether it was there."""
    lease = Ref(UPPER, LEASE, "kube-node-lease", "lower-a")
    assert step(world(), Present(lease, thing("Lease", "lower-a"), "because")).verb == "create"


def test_what_is_as_it_should_be_needs_nothing() -> None:
    """No step, no problem."""
    here = world()
    put(here.lowers[A].config_maps, copy(uid="below"))
    assert planned(here, wanting(copy())) == Plan(())


def test_a_change_is_fenced_by_the_uid() -> None:
    """The patch says which object it is for; what is shown is the change alone."""
    here = world()
    put(here.lowers[A].config_maps, copy({"key": "old"}, uid="below"))
    found = step(here, wanting(copy({"key": "new"})))
    change = {"op": "replace", "path": "/data/key", "value": "new"}
    fence = {"op": "replace", "path": "/metadata/uid", "value": "below"}
    assert found.patch == Patch("json-patch", [fence, change])
    assert (found.verb, found.uid, found.operations) == ("patch", "below", (change,))


def test_a_change_can_rest_on_nobody_having_written_since() -> None:
    """A list that the API replaces as a whole is only patched at the version that it was read at."""
    here = world()
    put(here.lowers[A].config_maps, copy({"key": "old"}, uid="below"))
    found = step(here, wanting(copy({"key": "new"}), version="77"))
    assert found.patch is not None
    assert {"op": "replace", "path": "/metadata/resourceVersion", "value": "77"} in found.patch.body[:2]
    assert [one["path"] for one in found.operations] == ["/data/key"]


def test_only_the_sections_asked_for_are_compared() -> None:
    """A rule that keeps labels says nothing about the rest."""
    here = world()
    put(here.lowers[A].config_maps, copy({"key": "old"}, uid="below"))
    assert planned(here, Present(REF, copy({"key": "new"}), "because")) == Plan(())


FOREIGN = {
    "without marks": config_map("settings", {"key": "theirs"}),
    "with the label alone": config_map("settings", {"key": "theirs"}, labels={OWNER: OWNER_HERE.mark}),
    "with the annotation alone": config_map("settings", {"key": "theirs"}, annotations={UPPER_UID: "one"}),
    "with an empty annotation": marked(config_map("settings", {"key": "theirs"}), ""),
    "of another owner": marked(config_map("settings", {"key": "theirs"}), "one", STRANGER),
}


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN.keys())
@pytest.mark.parametrize("replaceable", [False, True])
def test_what_is_not_ours_is_never_touched(foreign: Manifest, replaceable: bool) -> None:  # noqa: FBT001 - a parameter
    """A label can be forged or copied: without both marks of this owner it is a conflict, and no step."""
    here = world()
    put(here.lowers[A].config_maps, foreign)
    found = planned(here, wanting(copy(), replaceable=replaceable))
    assert found.steps == ()
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"
    assert "ConfigMap default/settings exists in lower cluster lower-a" in found.problem.message


def test_a_conflict_names_an_object_without_a_namespace_and_the_upper_cluster() -> None:
    """The sentence fits whatever the name belongs to."""
    here = world()
    put(here.upper.nodes, thing("Node", "lower-a", ""))
    problem = planned(here, Present(Ref(UPPER, NODE, "", "lower-a"), thing("Node", "lower-a", ""), "")).problem
    assert problem is not None
    assert problem.message.startswith("Node lower-a exists in the upper cluster and has another owner")


def test_a_node_of_another_topology_names_that() -> None:
    """A topology that was renamed finds its own nodes under its former name."""
    here = world()
    put(here.upper.nodes, marked(thing("Node", "lower-a", ""), "above", SIBLING))
    problem = planned(here, Present(Ref(UPPER, NODE, "", "lower-a"), thing("Node", "lower-a", ""), "")).problem
    assert problem is not None
    assert problem.message == (
        "Node lower-a belongs to topology second: if this topology was renamed, set `name: second` again; "
        "otherwise give the lower another node.name"
    )


def test_a_conflict_ends_the_plan_there() -> None:
    """What comes before it is done; what comes after may rest on it."""
    here = world()
    put(here.lowers[A].config_maps, config_map("settings"))
    before = Present(Ref(A, NAMESPACE, "", "default"), space(), "because")
    after = VerifyAbsent(POD_ABOVE, "one", "because")
    found = planned(here, before, wanting(copy()), after)
    assert [one.verb for one in found.steps] == ["create"]
    assert found.problem is not None


def test_a_conflict_about_what_stands_apart_holds_up_nothing() -> None:
    """It is told, unless the decision itself has something to tell."""
    here = world()
    put(here.lowers[A].config_maps, config_map("settings"))
    after = VerifyAbsent(POD_ABOVE, "one", "because")
    found = planned(here, wanting(copy(), independent=True), after)
    assert [one.verb for one in found.steps] == ["confirm"]
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"
    said = Problem("Because", "so it is")
    assert planned(here, wanting(copy(), independent=True), after, problem=said) == Plan(found.steps, said)


def test_a_copy_for_an_earlier_object_is_replaced() -> None:
    """The upper object was deleted and made anew: the copy goes, by its UID, and comes again."""
    here = world()
    put(here.lowers[A].config_maps, copy(upper_uid="one", uid="below"))
    here.upper.config_maps.mark_deleted("default", "settings", "one")
    found = step(here, wanting(copy(upper_uid="two"), replaceable=True))
    assert (found.verb, found.uid, found.requested) == ("delete", "below", True)
    assert found.operations == ({"op": "remove", "path": ""},)


def test_a_copy_for_another_object_is_replaced_once_that_one_is_gone() -> None:
    """It may be the newer one, of which another engine has heard first: that is read, and nobody need see it."""
    here = world()
    put(here.lowers[A].config_maps, copy(upper_uid="newer", uid="below"))
    found = step(here, wanting(copy(upper_uid="known"), replaceable=True))
    assert (found.verb, found.ref, found.uid) == ("confirm", REF._replace(cluster=UPPER), "newer")
    assert not found.in_plan


def test_an_object_that_must_not_be_replaced_is_marked_anew() -> None:
    """A namespace holds what others put there, so it only gets the new UID."""
    here = world()
    put(here.lowers[A].config_maps, copy(upper_uid="one", uid="below"))
    found = step(here, wanting(copy(upper_uid="two")))
    assert found.verb == "patch"
    assert [one["value"] for one in found.operations] == ["two"]


def test_a_copy_that_cannot_be_changed_any_more_is_replaced() -> None:
    """Kubernetes refuses every change to the data of an object that says it is immutable, and taking that back."""
    here = world()
    put(here.lowers[A].config_maps, {**copy({"key": "old"}, uid="below"), "immutable": True})
    assert step(here, wanting(copy({"key": "new"}), replaceable=True)).verb == "delete"


def test_labels_of_an_immutable_copy_are_still_changed_in_place() -> None:
    """Immutable means the data: pods need not lose the object for a label."""
    here = world()
    put(here.lowers[A].config_maps, {**copy(uid="below"), "immutable": True})
    wanted = {**copy(labels={"app": "web"}), "immutable": True}
    assert step(here, wanting(wanted, replaceable=True)).verb == "patch"


def test_a_deletion_carries_the_uid_the_grace_and_whether_it_was_asked_for() -> None:
    """Nothing about it is decided later."""
    found = step(world(), Absent(REF, "below", "because", 30, requested=False))
    assert (found.verb, found.uid, found.grace, found.requested, found.in_plan) == ("delete", "below", 30, False, True)
    assert found.operations == ({"op": "remove", "path": ""},)


def test_a_deletion_takes_the_objects_own_grace_unless_one_is_given() -> None:
    """None is not 0: 0 would kill."""
    assert step(world(), Absent(REF, "below", "because")).grace is None


def test_a_worked_out_write_is_sent_as_it_is() -> None:
    """What a person reads leaves out the fence; status writes are not for them unless the rule says so."""
    body = {"metadata": {"uid": "one"}, "status": {"phase": "Running", "podIP": "10.1.1.1"}}
    found = step(world(), Patched(POD_ABOVE, Patch("strategic-merge-patch", body), "because", "status"))
    assert (found.verb, found.subresource, found.uid) == ("patch", "status", "one")
    assert found.patch == Patch("strategic-merge-patch", body)
    assert (found.in_plan, found.requested) == (False, True)
    assert found.operations == (
        {"op": "replace", "path": "/status/phase", "value": "Running"},
        {"op": "replace", "path": "/status/podIP", "value": "10.1.1.1"},
    )


def test_a_worked_out_json_patch_is_shown_without_its_fences() -> None:
    """They are how the write is made safe, not what it changes; they still say which object it is for."""
    fences = [
        {"op": "replace", "path": "/metadata/uid", "value": "one"},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "test", "path": "/spec/x", "value": 1},
    ]
    change = {"op": "add", "path": "/spec/y", "value": 2}
    wanted = Patched(POD_ABOVE, Patch("json-patch", [*fences, change]), "because", in_plan=True, requested=False)
    found = step(world(), wanted)
    assert found.operations == (change,)
    assert (found.uid, found.in_plan, found.requested) == ("one", True, False)


def test_a_write_fenced_by_version_alone_names_no_object() -> None:
    """Then whatever stands there is what it is about."""
    body = {"metadata": {"resourceVersion": "7"}, "status": {}}
    assert step(world(), Patched(POD_ABOVE, Patch("merge-patch", body), "because")).uid == ""


def test_a_confirmation_is_not_shown() -> None:
    """It changes nothing; the UID says what would count as present."""
    found = step(world(), VerifyAbsent(POD_ABOVE, "one", "because", requested=False))
    assert (found.verb, found.uid, found.in_plan, found.requested) == ("confirm", "one", False, False)


def told(**more: Any) -> EmitEvent:
    """Tell something of a pod."""
    fields: dict[str, Any] = {"about": POD_ABOVE, "uid": "one", "reason": "Denied", "message": "no room"}
    return EmitEvent(**(fields | more))


def test_an_event_says_what_about_which_object() -> None:
    """With the UID, by which kubectl finds it, and the moment of the decision; nobody has to decide about it."""
    found = step(world(), told())
    assert found.body is not None
    assert found.body["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "web", "uid": "one",
    }  # fmt: skip
    assert (found.body["reason"], found.body["message"], found.body["type"]) == ("Denied", "no room", "Warning")
    assert found.body["firstTimestamp"] == found.body["lastTimestamp"] == "2026-03-01T12:00:00Z"
    assert (found.verb, found.in_plan) == ("create", False)
    assert found.ref == Ref(UPPER, EVENT, "default", found.body["metadata"]["name"])


def test_an_event_is_normal_when_it_says_so() -> None:
    """Not everything that is told is trouble."""
    body = step(world(), told(warning=False)).body
    assert body is not None
    assert body["type"] == "Normal"


def test_the_same_event_has_the_same_name() -> None:
    """So it exists once, however often and whenever it is told; other words or another object are another event."""
    here, later = world(), world()
    later.now = later.now.replace(hour=13)
    assert step(here, told()).ref == step(later, told()).ref
    others = [told(message="no rights"), told(reason="Quota"), told(uid="two")]
    assert len({step(here, one).ref for one in [told(), *others]}) == 4


@pytest.mark.parametrize("name", ["a" * 253, "a" * 199 + "-" + "b" * 20, "a" * 199 + "." + "b" * 20, "a" * 198 + "-.b"])
def test_an_events_name_is_one_that_the_api_accepts(name: str) -> None:
    """Wherever a long name is cut."""
    found = step(world(), told(about=POD_ABOVE._replace(name=name)))
    assert DNS_SUBDOMAIN.fullmatch(found.ref.name)
    assert len(found.ref.name) <= 253


def test_a_long_message_is_cut_as_the_api_asks() -> None:
    """1,024 characters are the most that it takes."""
    body = step(world(), told(message="x" * 5000)).body
    assert body is not None
    assert len(body["message"]) == 1024


def test_an_event_about_a_node_goes_where_the_kubelets_do() -> None:
    """A node has no namespace; its events are in `default`."""
    found = step(world(), told(about=Ref(UPPER, NODE, "", "lower-a")))
    assert found.ref.namespace == "default"
    assert found.body is not None
    assert found.body["involvedObject"]["namespace"] == ""


def test_a_decisions_problem_is_the_plans() -> None:
    """Unless the plan finds one that it ends at."""
    problem = Problem("Because", "so it is")
    assert planned(world(), problem=problem) == Plan((), problem)


def test_steps_are_told_apart_without_what_they_carry() -> None:
    """A refused patch of the status is the same step when its content has changed."""
    here = world()
    one, two = (
        step(here, Patched(POD_ABOVE, Patch("merge-patch", {"status": {"phase": phase}}), "", "status"))
        for phase in ("Running", "Failed")
    )
    assert one.identity == two.identity
    whole = step(here, Patched(POD_ABOVE, Patch("merge-patch", {"status": {}}), ""))
    assert whole.identity != one.identity
