"""Tests of the preview of a candidate topology: the world after its activation, and its plan as ConfigMap data."""

from typing import Any

import orjson
import pytest
from previewkit import create, pod, previewed
from statuskit import OWNER, PLACE
from worldkit import A, B, add_virtual_node, make_topology, make_upper_pod, make_world, put

from tensile.engine.candidate import (
    CANDIDATE_HASH,
    DOCUMENT,
    ERROR,
    KEYS,
    MARKDOWN,
    MAX_JSON_BYTES,
    MAX_MARKDOWN_BYTES,
    NOT_WATCHED,
    PENDING,
    RESTART,
    Foreseen,
    candidate_key,
    cut_json,
    cut_markdown,
    error_data,
    foresee,
    is_planned,
    plan_data,
    plan_ref,
    plan_write,
)
from tensile.engine.plan_and_apply import Planned
from tensile.engine.status.configmap import NameTaken
from tensile.names import FIELD_MANAGER, OWNER_NAME, UPPER_UID
from tensile.names import OWNER as OWNER_LABEL
from tensile.objects import CLAIM, Manifest
from tensile.policy.disruption import DisruptedPod, Disruption
from tensile.reconcile.report import as_json, as_markdown
from tensile.reconcile.world import NamespaceNaming, World
from tensile.topology.diff import edit

TWO = (f"name: {A}", f"name: {B}")
REF = plan_ref(PLACE)
SERVER = ("10.0.0.9", 6443)


def foreseen(world: World, *lowers: str, more: str = "", **errors: str) -> Foreseen:
    """Return the preview of a topology with these lowers, written as for `make_world`."""
    found = {name.replace("_", "-"): message for name, message in errors.items()}
    return foresee(world, edit(world.topology, make_topology(*lowers, more=more)), SERVER, found)


def test_changed_fields_of_a_lower_are_only_set_in_the_copy_of_the_world() -> None:
    """The engine's own world stays as it is."""
    world = make_world(*TWO)
    found = foreseen(world, f"name: {A}, maintenance: drain", f"name: {B}")
    assert found.world.lowers[A].spec.maintenance == "drain"
    assert found.world.topology.lowers[0].maintenance == "drain"
    assert world.lowers[A].spec.maintenance == world.topology.lowers[0].maintenance == "none"
    assert (found.unreached, found.problems, found.waits, found.refused) == ({}, {}, (), ())


def test_a_new_lower_is_reported_as_unreached_and_the_others_are_planned() -> None:
    """The engine has no connection to it, and does not read a Secret that only a candidate names."""
    found = foreseen(make_world(*TWO), *TWO, "name: lower-c")
    assert list(found.unreached) == ["lower-c"]
    assert found.unreached["lower-c"].startswith("not connected yet: the engine connects to it when the topology is in")
    assert list(found.world.lowers) == [A, B]


def test_a_lower_with_a_changed_kubeconfig_is_reported_as_unreached() -> None:
    """The cluster behind the new kubeconfig is not known, so nothing is planned for its Node either."""
    found = foreseen(make_world(*TWO), f"name: {A}, context: other", f"name: {B}")
    assert found.unreached[A].startswith("the candidate changes its kubeconfigSecret or context")
    assert list(found.world.lowers) == [B]


def test_a_lower_with_changed_request_limits_is_planned() -> None:
    """A reload connects to the same cluster again, and finds the same objects."""
    found = foreseen(make_world(*TWO), f"name: {A}, qps: 7", f"name: {B}")
    assert (found.unreached, found.world.lowers[A].spec.qps) == ({}, 7)


def test_a_removed_lower_stays_connected_and_is_marked_as_not_in_the_topology() -> None:
    """The plan thus has the changes of its Node and its objects."""
    world = make_world(*TWO)
    found = foreseen(world, f"name: {A}")
    assert [lower.in_topology for lower in found.world.lowers.values()] == [True, False]
    assert all(lower.in_topology for lower in world.lowers.values())
    assert found.unreached == {}


def test_a_renamed_lower_keeps_its_connection() -> None:
    """It is the same cluster with the same virtual node."""
    found = foreseen(make_world(*TWO), f"name: other, node: {{name: {A}}}", f"name: {B}")
    assert found.connections == {"other": A}
    assert sorted(found.world.lowers) == [B, "other"]
    assert found.world.lowers["other"].name == "other"


def test_a_lower_that_waits_for_the_node_of_another_lower_is_reported_as_unreached() -> None:
    """The message is the same as for a reload."""
    world = make_world(*TWO)
    put(world.lowers[A].upper_pods, make_upper_pod())
    found = foreseen(world, f"name: {B}", f"name: other, context: x, node: {{name: {A}}}")
    message = f"lowers[other]: not connected: node {A} belongs to lower {A} until that one is empty"
    assert found.unreached["other"].startswith(message)
    assert any(one.startswith(message) for one in found.waits)


def test_a_node_name_stays_while_pods_are_bound_to_the_node() -> None:
    """The engine keeps it too, and the preview reports that the change waits."""
    world = make_world(*TWO)
    put(world.lowers[A].upper_pods, make_upper_pod())
    found = foreseen(world, f"name: {A}, node: {{name: other}}", f"name: {B}")
    assert found.world.lowers[A].node == A
    (waiting,) = found.waits
    assert waiting.startswith(f"lowers[{A}].node.name: {A} -> other: waits until no pods are mirrored to {A}; ")


def test_another_namespace_mapping_is_used_at_once_if_no_pods_are_bound() -> None:
    """No object remains that would be looked up under a wrong namespace."""
    world = make_world(*TWO)
    found = foreseen(world, f"name: {A}, namespaces: {{mapping: prefix}}", f"name: {B}")
    assert found.world.lowers[A].naming == NamespaceNaming("demo", world.owner.mark)
    assert world.lowers[A].naming is None
    assert found.world.lowers[A].namespace("shop") == "demo-shop"


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"unreachable_seconds": 30.0}, "connection refused", "out of reach: connection refused"),
        ({"unreachable_seconds": 30.0}, "", "out of reach: no response for 30 s"),
        ({"is_wrong": True}, "another cluster responds", "out of reach: another cluster responds"),
        ({"access_error": "kubeconfig: no user"}, "", "kubeconfig: no user"),
    ],
)
def test_an_unreachable_lower_is_reported_with_its_cause(fields: dict[str, Any], error: str, message: str) -> None:
    """Its cached objects may be outdated, so it is not planned."""
    world = make_world(*TWO)
    for field, value in fields.items():
        setattr(world.lowers[A], field, value)
    found = foreseen(world, *TWO, lower_a=error)
    assert found.unreached == {A: message}
    assert list(found.world.lowers) == [B]


def test_a_lower_that_is_not_listed_yet_is_reported_as_unreached() -> None:
    """A plan for it would be incomplete."""
    world = make_world(*TWO)
    world.lowers[A].pods.mark_stale()
    assert foreseen(world, *TWO).unreached == {A: "its objects are not all listed yet"}
    world.lowers[A].denied = "not allowed: list pods"
    assert foreseen(world, *TWO).unreached == {A: "not allowed: list pods"}


def test_kinds_that_the_engine_does_not_watch_yet_are_reported_as_a_problem() -> None:
    """They are kinds of a controller that only the candidate enables, and only its lowers have the problem."""
    world = make_world(*TWO, more="controllers: []\n")
    world.upper.more[CLAIM].mark_stale()
    assert foreseen(world, *TWO, more="controllers: []\n").problems == {}
    found = foreseen(world, f"name: {A}, controllers: [PV]", f"name: {B}", more="controllers: []\n").problems
    ((key, problem),) = found.items()
    assert (key.rule, key.lower, key.name, problem.reason) == ("controller", A, "PV", NOT_WATCHED)
    assert "does not watch persistentvolumeclaims yet" in problem.message


def test_a_lower_without_a_list_of_nodes_for_placement_is_reported_as_a_problem() -> None:
    """Without its real nodes, the engine cannot know whether pods fit there."""
    world = make_world(*TWO)
    world.lowers[B].place_nodes.mark_stale()
    assert foreseen(world, *TWO).problems == {}
    found = foreseen(world, *TWO, more="descheduler: {enabled: true}\n").problems
    assert [(key.rule, key.lower) for key in found] == [("placement", B)]


def test_changes_that_need_a_restart_are_reported_and_not_planned() -> None:
    """The planned topology has the present values."""
    world = make_world(*TWO)
    found = foreseen(world, *TWO, more="telemetry: {port: 9999}\n")
    assert found.refused == ("telemetry.port: 9095 -> 9999: this change requires a restart of the engine",)
    assert found.world.topology == world.topology


def test_a_changed_node_address_is_planned() -> None:
    """Each virtual Node has that address."""
    found = foreseen(make_world(*TWO), *TWO, more="kubelet: {nodeAddress: 10.1.2.3}\n")
    assert found.world.node_address == "10.1.2.3"


def test_the_plan_data_equals_the_output_of_the_commands() -> None:
    """Changes that wait or need a restart are added, and keys without content are left out."""
    world = make_world(*TWO)
    add_virtual_node(world)
    quiet = foreseen(world, *TWO)
    planned = Planned(previewed(create(pod())), {})
    data = plan_data(planned, quiet, lambda found: found, None)
    assert set(data) == {MARKDOWN, DOCUMENT}
    assert data[MARKDOWN] == as_markdown(planned.preview)
    assert orjson.loads(data[DOCUMENT])["changes"] == orjson.loads(as_json(planned.preview))["changes"]
    data = plan_data(planned, quiet._replace(waits=("later",), refused=("never",)), lambda found: found, None)
    assert (orjson.loads(data[PENDING]), orjson.loads(data[RESTART])) == (["later"], ["never"])
    assert "\nNeeds a restart of the engine:\n  never\n\nTakes effect later:\n  later\n" in data[MARKDOWN]


def test_a_long_plan_is_cut_to_the_size_of_a_config_map() -> None:
    """Both forms state that; the summary counts all changes, and the cost to running pods stays."""
    quiet = foreseen(make_world(*TWO), *TWO)
    steps = [
        create(pod(f"web-{number}"), {"spec": {"containers": [{"image": f"app:{number}"}]}}) for number in range(4000)
    ]
    planned = Planned(previewed(*steps), {}, Disruption(moved=(DisruptedPod("shop", "web", A, (B,)),)))
    data = plan_data(planned, quiet, lambda found: found, None)
    text, document = data[MARKDOWN], orjson.loads(data[DOCUMENT])
    assert len(text.encode()) <= MAX_MARKDOWN_BYTES
    assert len(data[DOCUMENT].encode()) <= MAX_JSON_BYTES
    assert text.startswith("```diff\n")
    assert text.count("```") == 2
    assert "\n... this plan is cut: " in text
    assert "Cost to running pods:\n  1 pod moved: shop/web" in text
    assert text.splitlines()[-1].startswith("Plan: 4000 to add, ")
    assert "of 4000 changes" in document["truncated"]
    assert document["summary"]["add"] == 4000
    assert len(document["changes"]) == 4000
    assert {len(one["operations"]) for one in document["changes"]} == {0}


def test_a_plan_that_fits_is_not_cut() -> None:
    """If JSON only fits without line breaks, only these are removed."""
    found = previewed(create(pod()))
    document = as_json(found)
    assert cut_json(document, len(document)) == document
    slim = cut_json(document, len(document) - 1)
    assert orjson.loads(slim) == orjson.loads(document)
    assert b"\n" not in slim
    assert cut_markdown(found, [], 10_000) == as_markdown(found)


@pytest.mark.parametrize(("most", "left"), [(7000, 30), (1500, 0)])
def test_a_very_long_plan_keeps_its_first_changes_and_the_counts(most: int, left: int) -> None:
    """The result never exceeds the limit."""
    found = previewed(*(create(pod(f"web-{number}")) for number in range(50)))
    made = cut_json(as_json(found), most)
    document = orjson.loads(made)
    assert len(made) <= most
    assert (len(document["changes"]), document["summary"]["add"]) == (left, 50)
    assert f"({left} of 50 changes)" in document["truncated"]


def test_a_long_error_is_cut() -> None:
    """It has to fit into a ConfigMap."""
    assert error_data("short") == {ERROR: "short"}
    assert len(error_data("x" * 100_000)[ERROR]) == 16 * 1024


def seen(data: dict[str, str], uid: str = "candidate-1", **meta: Any) -> Manifest:
    """Return NAME-plan as the API returns it if the engine wrote it, with `meta` laid over its metadata."""
    fields = {"f:metadata": {"f:annotations": {f"f:{UPPER_UID}": {}, f"f:{OWNER_NAME}": {}}}}
    whole = {
        "name": REF.name,
        "namespace": REF.namespace,
        "uid": "plan-1",
        "resourceVersion": "40",
        "labels": {OWNER_LABEL: OWNER.mark},
        "annotations": {OWNER_NAME: OWNER.name, UPPER_UID: uid},
        "managedFields": [{"manager": FIELD_MANAGER, "fieldsV1": fields}],
    }
    return {"metadata": {**whole, **meta}, "data": data}


def test_candidate_and_plan_have_the_namespace_and_the_name_of_the_topology_config_map() -> None:
    """Their names are those of the ConfigMap with a suffix, and the key of the candidate is the same."""
    assert candidate_key(PLACE) == PLACE._replace(name="topo-candidate")
    assert REF.namespaced_name == "ops/topo-plan"


def test_a_plan_is_created_with_the_owner_marks() -> None:
    """They include the UID of the candidate."""
    made = plan_write(None, {ERROR: "no"}, REF, OWNER, "candidate-1").create
    assert made is not None
    assert made["metadata"]["labels"] == {OWNER_LABEL: OWNER.mark}
    assert made["metadata"]["annotations"] == {OWNER_NAME: OWNER.name, UPPER_UID: "candidate-1"}
    assert made["data"] == {ERROR: "no"}


def test_a_plan_patch_replaces_all_keys_of_the_engine_with_preconditions() -> None:
    """An error of the former candidate is removed, and keys of other clients stay."""
    before = seen({ERROR: "no", "note": "theirs"}, uid="candidate-0")
    patch = plan_write(before, {MARKDOWN: "plan"}, REF, OWNER, "candidate-1").patch
    assert patch is not None
    assert patch.body == {
        "metadata": {"uid": "plan-1", "resourceVersion": "40", "annotations": {UPPER_UID: "candidate-1"}},
        "data": {MARKDOWN: "plan", ERROR: None},
    }


def test_a_plan_config_map_of_another_owner_is_not_written() -> None:
    """Its content does not matter."""
    with pytest.raises(NameTaken, match="ConfigMap ops/topo-plan belongs to another owner"):
        plan_write(seen({}, labels={}), {}, REF, OWNER, "candidate-1")


def test_a_plan_is_current_if_hashes_and_candidate_uid_match() -> None:
    """A new candidate with the same text is planned again."""
    data = {CANDIDATE_HASH: "aa"}
    assert is_planned(seen(data), "candidate-1", data)
    assert not is_planned(seen(data), "candidate-2", data)
    assert not is_planned(seen({CANDIDATE_HASH: "bb"}), "candidate-1", data)
    assert not is_planned(None, "candidate-1", data)
    assert set(data) < set(KEYS)
