"""Tests of plans: from a rule's decision to requests, with ownership, preconditions, and what a user sees."""

import re
from typing import Any

import pytest
from worldkit import (
    OWNER_HERE,
    SIBLING,
    STRANGER,
    A,
    config_map,
    make_namespace,
    make_object,
    make_world,
    put,
    with_owner_marks,
)

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
    """Return the desired copy with our marks for the upper object of a UID."""
    return with_owner_marks(config_map("settings", data, **meta), upper_uid)


def wanting(manifest: Manifest, **more: Any) -> Present:
    """Return the wish that a ConfigMap in the lower cluster looks like `manifest`."""
    return Present(REF, manifest, "because", sections=("metadata.labels", "metadata.annotations", "data"), **more)


def planned(of: World, *wanted: Wanted, problem: Problem | None = None) -> Plan:
    """Return the plan for a decision."""
    return plan(KEY, Decision(wanted, problem=problem), of)


def step(of: World, wanted: Wanted) -> Step:
    """Return the only step of the plan for something desired."""
    (found,) = planned(of, wanted).steps
    return found


def test_a_missing_object_is_created_as_desired() -> None:
    """The whole manifest is the body, and also the operation that a user sees."""
    found = step(make_world(), wanting(copy()))
    assert (found.verb, found.ref, found.reason, found.body) == ("create", REF, "because", copy())
    assert found.operations == ({"op": "add", "path": "", "value": copy()},)
    assert found.in_plan
    assert found.requested


def test_an_object_without_a_cache_is_created() -> None:
    """The response to the create shows whether it existed."""
    lease = Ref(UPPER, LEASE, "kube-node-lease", "lower-a")
    assert step(make_world(), Present(lease, make_object("Lease", "lower-a"), "because")).verb == "create"


def test_an_object_that_is_as_desired_needs_no_step() -> None:
    """The plan has no problem either."""
    world = make_world()
    put(world.lowers[A].config_maps, copy(uid="below"))
    assert planned(world, wanting(copy())) == Plan(())


def test_a_patch_has_the_uid_as_precondition() -> None:
    """The UID identifies the object that is patched, and a user only sees the change."""
    world = make_world()
    put(world.lowers[A].config_maps, copy({"key": "old"}, uid="below"))
    found = step(world, wanting(copy({"key": "new"})))
    change = {"op": "replace", "path": "/data/key", "value": "new"}
    fence = {"op": "replace", "path": "/metadata/uid", "value": "below"}
    assert found.patch == Patch("json-patch", [fence, change])
    assert (found.verb, found.uid, found.operations) == ("patch", "below", (change,))


def test_a_patch_can_have_the_resource_version_as_precondition() -> None:
    """A list that the API replaces as a whole is only patched at the version that was read."""
    world = make_world()
    put(world.lowers[A].config_maps, copy({"key": "old"}, uid="below"))
    found = step(world, wanting(copy({"key": "new"}), version="77"))
    assert found.patch is not None
    assert {"op": "replace", "path": "/metadata/resourceVersion", "value": "77"} in found.patch.body[:2]
    assert [one["path"] for one in found.operations] == ["/data/key"]


def test_only_the_given_sections_are_compared() -> None:
    """A rule that only writes labels does not change the rest."""
    world = make_world()
    put(world.lowers[A].config_maps, copy({"key": "old"}, uid="below"))
    assert planned(world, Present(REF, copy({"key": "new"}), "because")) == Plan(())


FOREIGN = {
    "without marks": config_map("settings", {"key": "theirs"}),
    "with the label alone": config_map("settings", {"key": "theirs"}, labels={OWNER: OWNER_HERE.mark}),
    "with the annotation alone": config_map("settings", {"key": "theirs"}, annotations={UPPER_UID: "one"}),
    "with an empty annotation": with_owner_marks(config_map("settings", {"key": "theirs"}), ""),
    "of another owner": with_owner_marks(config_map("settings", {"key": "theirs"}), "one", STRANGER),
}


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN.keys())
@pytest.mark.parametrize("replaceable", [False, True])
def test_an_object_without_both_marks_of_this_owner_is_a_conflict(foreign: Manifest, replaceable: bool) -> None:  # noqa: FBT001 - a parameter
    """A label can be forged or copied, so there is no step, even for a replaceable object."""
    world = make_world()
    put(world.lowers[A].config_maps, foreign)
    found = planned(world, wanting(copy(), replaceable=replaceable))
    assert found.steps == ()
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"
    assert "ConfigMap default/settings exists in lower cluster lower-a" in found.problem.message


def test_a_conflict_message_fits_cluster_scoped_objects_and_the_upper_cluster() -> None:
    """The message has the name without a namespace."""
    world = make_world()
    put(world.upper.nodes, make_object("Node", "lower-a", ""))
    problem = planned(world, Present(Ref(UPPER, NODE, "", "lower-a"), make_object("Node", "lower-a", ""), "")).problem
    assert problem is not None
    assert problem.message.startswith("Node lower-a exists in the upper cluster and has another owner")


def test_a_conflict_about_a_node_of_another_topology_names_the_topology() -> None:
    """A topology that was renamed finds its own nodes under its former name."""
    world = make_world()
    put(world.upper.nodes, with_owner_marks(make_object("Node", "lower-a", ""), "above", SIBLING))
    problem = planned(world, Present(Ref(UPPER, NODE, "", "lower-a"), make_object("Node", "lower-a", ""), "")).problem
    assert problem is not None
    assert problem.message == (
        "Node lower-a belongs to topology second: if this topology was renamed, set `name: second` again; "
        "otherwise give the lower another node.name"
    )


def test_a_conflict_ends_the_plan() -> None:
    """Earlier steps are carried out, and later ones may depend on the object."""
    world = make_world()
    put(world.lowers[A].config_maps, config_map("settings"))
    before = Present(Ref(A, NAMESPACE, "", "default"), make_namespace(), "because")
    after = VerifyAbsent(POD_ABOVE, "one", "because")
    found = planned(world, before, wanting(copy()), after)
    assert [one.verb for one in found.steps] == ["create"]
    assert found.problem is not None


def test_a_conflict_about_an_independent_object_does_not_block_later_steps() -> None:
    """The conflict is the plan's problem unless the decision has a problem of its own."""
    world = make_world()
    put(world.lowers[A].config_maps, config_map("settings"))
    after = VerifyAbsent(POD_ABOVE, "one", "because")
    found = planned(world, wanting(copy(), independent=True), after)
    assert [one.verb for one in found.steps] == ["confirm"]
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"
    reported = Problem("Because", "so it is")
    assert planned(world, wanting(copy(), independent=True), after, problem=reported) == Plan(found.steps, reported)


def test_a_copy_for_a_deleted_upper_object_is_replaced() -> None:
    """The upper object was created again, so the copy is deleted by its UID and created in the next plan."""
    world = make_world()
    put(world.lowers[A].config_maps, copy(upper_uid="one", uid="below"))
    world.upper.config_maps.mark_deleted("default", "settings", "one")
    found = step(world, wanting(copy(upper_uid="two"), replaceable=True))
    assert (found.verb, found.uid, found.requested) == ("delete", "below", True)
    assert found.operations == ({"op": "remove", "path": ""},)


def test_a_copy_for_an_unknown_upper_uid_is_replaced_only_after_a_confirm() -> None:
    """That upper object may be newer and known to another engine.

    So the upper object is read first, by a step that is not part of the visible plan.
    """
    world = make_world()
    put(world.lowers[A].config_maps, copy(upper_uid="newer", uid="below"))
    found = step(world, wanting(copy(upper_uid="known"), replaceable=True))
    assert (found.verb, found.ref, found.uid) == ("confirm", REF._replace(cluster=UPPER), "newer")
    assert not found.in_plan


def test_an_object_that_is_not_replaceable_gets_the_new_upper_uid() -> None:
    """A namespace contains objects of other clients, so it is only marked again."""
    world = make_world()
    put(world.lowers[A].config_maps, copy(upper_uid="one", uid="below"))
    found = step(world, wanting(copy(upper_uid="two")))
    assert found.verb == "patch"
    assert [one["value"] for one in found.operations] == ["two"]


def test_an_immutable_copy_with_other_data_is_deleted_for_replacement() -> None:
    """Kubernetes allows no change to the data or the immutable field of such an object."""
    world = make_world()
    put(world.lowers[A].config_maps, {**copy({"key": "old"}, uid="below"), "immutable": True})
    assert step(world, wanting(copy({"key": "new"}), replaceable=True)).verb == "delete"


def test_labels_of_an_immutable_copy_are_patched() -> None:
    """Only the data is immutable, so pods need not lose the object for a label."""
    world = make_world()
    put(world.lowers[A].config_maps, {**copy(uid="below"), "immutable": True})
    wanted = {**copy(labels={"app": "web"}), "immutable": True}
    assert step(world, wanting(wanted, replaceable=True)).verb == "patch"


def test_a_delete_has_uid_grace_period_and_whether_it_was_requested() -> None:
    """No later code decides about the delete."""
    found = step(make_world(), Absent(REF, "below", "because", 30, requested=False))
    assert (found.verb, found.uid, found.grace, found.requested, found.in_plan) == ("delete", "below", 30, False, True)
    assert found.operations == ({"op": "remove", "path": ""},)


def test_a_delete_without_a_grace_period_uses_that_of_the_object() -> None:
    """The grace period is None, because 0 would kill the pod at once."""
    assert step(make_world(), Absent(REF, "below", "because")).grace is None


def test_a_given_patch_is_sent_unchanged() -> None:
    """A user sees the changes without the precondition, and a status patch only if the rule includes it."""
    body = {"metadata": {"uid": "one"}, "status": {"phase": "Running", "podIP": "10.1.1.1"}}
    found = step(make_world(), Patched(POD_ABOVE, Patch("strategic-merge-patch", body), "because", "status"))
    assert (found.verb, found.subresource, found.uid) == ("patch", "status", "one")
    assert found.patch == Patch("strategic-merge-patch", body)
    assert (found.in_plan, found.requested) == (False, True)
    assert found.operations == (
        {"op": "replace", "path": "/status/phase", "value": "Running"},
        {"op": "replace", "path": "/status/podIP", "value": "10.1.1.1"},
    )


def test_a_given_json_patch_is_shown_without_its_preconditions() -> None:
    """The step still has the UID of its object."""
    fences = [
        {"op": "replace", "path": "/metadata/uid", "value": "one"},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "test", "path": "/spec/x", "value": 1},
    ]
    change = {"op": "add", "path": "/spec/y", "value": 2}
    wanted = Patched(POD_ABOVE, Patch("json-patch", [*fences, change]), "because", in_plan=True, requested=False)
    found = step(make_world(), wanted)
    assert found.operations == (change,)
    assert (found.uid, found.in_plan, found.requested) == ("one", True, False)


def test_a_patch_with_only_a_resource_version_names_no_uid() -> None:
    """It applies to any object of that name."""
    body = {"metadata": {"resourceVersion": "7"}, "status": {}}
    assert step(make_world(), Patched(POD_ABOVE, Patch("merge-patch", body), "because")).uid == ""


def test_a_confirm_is_not_part_of_the_visible_plan() -> None:
    """It changes nothing, and its UID identifies the object that would count as present."""
    found = step(make_world(), VerifyAbsent(POD_ABOVE, "one", "because", requested=False))
    assert (found.verb, found.uid, found.in_plan, found.requested) == ("confirm", "one", False, False)


def desired_event(**more: Any) -> EmitEvent:
    """Return a desired Event about a pod."""
    fields: dict[str, Any] = {"about": POD_ABOVE, "uid": "one", "reason": "Denied", "message": "no room"}
    return EmitEvent(**(fields | more))


def test_an_event_names_its_object_reason_message_and_time() -> None:
    """Kubectl finds it by the UID of the object, and no user has to approve it."""
    found = step(make_world(), desired_event())
    assert found.body is not None
    assert found.body["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "web", "uid": "one",
    }  # fmt: skip
    assert (found.body["reason"], found.body["message"], found.body["type"]) == ("Denied", "no room", "Warning")
    assert found.body["firstTimestamp"] == found.body["lastTimestamp"] == "2026-03-01T12:00:00Z"
    assert (found.verb, found.in_plan) == ("create", False)
    assert found.ref == Ref(UPPER, EVENT, "default", found.body["metadata"]["name"])


def test_an_event_that_is_no_warning_has_the_type_normal() -> None:
    """Some Events report no problem."""
    body = step(make_world(), desired_event(warning=False)).body
    assert body is not None
    assert body["type"] == "Normal"


def test_the_same_event_always_has_the_same_name() -> None:
    """It exists once, whenever it is recorded, and an Event with another message, reason or UID has another name."""
    world, later = make_world(), make_world()
    later.now = later.now.replace(hour=13)
    assert step(world, desired_event()).ref == step(later, desired_event()).ref
    others = [desired_event(message="no rights"), desired_event(reason="Quota"), desired_event(uid="two")]
    assert len({step(world, one).ref for one in [desired_event(), *others]}) == 4


@pytest.mark.parametrize("name", ["a" * 253, "a" * 199 + "-" + "b" * 20, "a" * 199 + "." + "b" * 20, "a" * 198 + "-.b"])
def test_the_name_of_an_event_is_valid_for_the_api(name: str) -> None:
    """This holds wherever a long name is truncated."""
    found = step(make_world(), desired_event(about=POD_ABOVE._replace(name=name)))
    assert DNS_SUBDOMAIN.fullmatch(found.ref.name)
    assert len(found.ref.name) <= 253


def test_a_long_event_message_is_truncated() -> None:
    """The API allows at most 1,024 characters."""
    body = step(make_world(), desired_event(message="x" * 5000)).body
    assert body is not None
    assert len(body["message"]) == 1024


def test_an_event_about_a_node_is_in_the_default_namespace() -> None:
    """A node has no namespace, and the kubelet uses `default` too."""
    found = step(make_world(), desired_event(about=Ref(UPPER, NODE, "", "lower-a")))
    assert found.ref.namespace == "default"
    assert found.body is not None
    assert found.body["involvedObject"]["namespace"] == ""


def test_the_problem_of_a_decision_is_that_of_the_plan() -> None:
    """The plan has no steps here."""
    problem = Problem("Because", "so it is")
    assert planned(make_world(), problem=problem) == Plan((), problem)


def test_the_identity_of_a_step_does_not_depend_on_its_content() -> None:
    """A refused status patch is the same step if its content changes, but a patch of another subresource is not."""
    world = make_world()
    one, two = (
        step(world, Patched(POD_ABOVE, Patch("merge-patch", {"status": {"phase": phase}}), "", "status"))
        for phase in ("Running", "Failed")
    )
    assert one.identity == two.identity
    whole = step(world, Patched(POD_ABOVE, Patch("merge-patch", {"status": {}}), ""))
    assert whole.identity != one.identity
