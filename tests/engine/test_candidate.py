"""What a candidate would change: the world just after it came into force, and its plan as data of a ConfigMap."""

from typing import Any

import orjson
import pytest
from previewkit import create, pod, previewed
from statuskit import OWNER, PLACE
from worldkit import A, B, put, raised, topology, upper_pod, world

from tensile.engine.candidate import (
    CANDIDATE_HASH,
    DOCUMENT,
    ERROR,
    KEYS,
    MARKDOWN,
    MOST_JSON,
    MOST_MARKDOWN,
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


def foreseen(here: World, *lowers: str, more: str = "", **troubles: str) -> Foreseen:
    """Return what would be with a topology of these lowers, written as for `world`."""
    found = {name.replace("_", "-"): words for name, words in troubles.items()}
    return foresee(here, edit(here.topology, topology(*lowers, more=more)), SERVER, found)


def test_other_fields_of_a_lower_are_in_the_copy_only() -> None:
    """The engine's own world stays as it is."""
    here = world(*TWO)
    found = foreseen(here, f"name: {A}, maintenance: drain", f"name: {B}")
    assert found.world.lowers[A].spec.maintenance == "drain"
    assert found.world.topology.lowers[0].maintenance == "drain"
    assert here.lowers[A].spec.maintenance == here.topology.lowers[0].maintenance == "none"
    assert (found.unreached, found.problems, found.waits, found.refused) == ({}, {}, (), ())


def test_a_new_lower_is_named_and_the_others_are_planned() -> None:
    """The engine has no connection to it, and reads no Secret that only a candidate names."""
    found = foreseen(world(*TWO), *TWO, "name: lower-c")
    assert list(found.unreached) == ["lower-c"]
    assert found.unreached["lower-c"].startswith("not connected yet: the engine connects to it when the topology is in")
    assert list(found.world.lowers) == [A, B]


def test_a_lower_with_another_kubeconfig_is_named() -> None:
    """What is behind that is not known, and nothing is planned for its Node either."""
    found = foreseen(world(*TWO), f"name: {A}, context: other", f"name: {B}")
    assert found.unreached[A].startswith("the candidate changes its kubeconfigSecret or context")
    assert list(found.world.lowers) == [B]


def test_other_limits_of_requests_need_no_other_connection() -> None:
    """A reload opens the lower again, and finds the same objects."""
    found = foreseen(world(*TWO), f"name: {A}, qps: 7", f"name: {B}")
    assert (found.unreached, found.world.lowers[A].spec.qps) == ({}, 7)


def test_a_removed_lower_has_left_and_stays_connected() -> None:
    """So that the plan has what becomes of its Node and its objects."""
    here = world(*TWO)
    found = foreseen(here, f"name: {A}")
    assert [lower.in_topology for lower in found.world.lowers.values()] == [True, False]
    assert all(lower.in_topology for lower in here.lowers.values())
    assert found.unreached == {}


def test_a_lower_under_another_name_keeps_its_connection() -> None:
    """It is the same cluster with the same node."""
    found = foreseen(world(*TWO), f"name: other, node: {{name: {A}}}", f"name: {B}")
    assert found.connections == {"other": A}
    assert sorted(found.world.lowers) == [B, "other"]
    assert found.world.lowers["other"].name == "other"


def test_a_lower_that_has_to_wait_for_a_node_is_named() -> None:
    """In the words of a reload."""
    here = world(*TWO)
    put(here.lowers[A].upper_pods, upper_pod())
    found = foreseen(here, f"name: {B}", f"name: other, context: x, node: {{name: {A}}}")
    words = f"lowers[other]: not connected: node {A} belongs to lower {A} until that one is empty"
    assert found.unreached["other"].startswith(words)
    assert any(one.startswith(words) for one in found.waits)


def test_a_node_name_that_has_to_wait_stays() -> None:
    """As the engine would keep it while pods are bound."""
    here = world(*TWO)
    put(here.lowers[A].upper_pods, upper_pod())
    found = foreseen(here, f"name: {A}, node: {{name: other}}", f"name: {B}")
    assert found.world.lowers[A].node == A
    (told,) = found.waits
    assert told.startswith(f"lowers[{A}].node.name: {A} -> other: waits until no pods are mirrored to {A}; ")


def test_a_free_lower_is_mapped_otherwise_at_once() -> None:
    """Nothing is left that would be looked up under the wrong name."""
    here = world(*TWO)
    found = foreseen(here, f"name: {A}, namespaces: {{mapping: prefix}}", f"name: {B}")
    assert found.world.lowers[A].naming == NamespaceNaming("demo", here.owner.mark)
    assert here.lowers[A].naming is None
    assert found.world.lowers[A].namespace("shop") == "demo-shop"


@pytest.mark.parametrize(
    ("fields", "trouble", "words"),
    [
        ({"unreachable_seconds": 30.0}, "connection refused", "out of reach: connection refused"),
        ({"unreachable_seconds": 30.0}, "", "out of reach: no response for 30 s"),
        ({"is_wrong": True}, "another cluster responds", "out of reach: another cluster responds"),
        ({"refusal": "kubeconfig: no user"}, "", "kubeconfig: no user"),
    ],
)
def test_a_lower_out_of_reach_is_named_with_its_cause(fields: dict[str, Any], trouble: str, words: str) -> None:
    """What is cached of it may be old."""
    here = world(*TWO)
    for field, value in fields.items():
        setattr(here.lowers[A], field, value)
    found = foreseen(here, *TWO, lower_a=trouble)
    assert found.unreached == {A: words}
    assert list(found.world.lowers) == [B]


def test_a_lower_that_is_not_listed_yet_is_named() -> None:
    """Its plan would lack what is not known."""
    here = world(*TWO)
    here.lowers[A].pods.mark_stale()
    assert foreseen(here, *TWO).unreached == {A: "its objects are not all listed yet"}
    here.lowers[A].denied = "not allowed: list pods"
    assert foreseen(here, *TWO).unreached == {A: "not allowed: list pods"}


def test_kinds_that_nobody_watches_yet_are_named() -> None:
    """A controller that only the candidate enables, of the lowers that it is enabled for."""
    here = world(*TWO, more="controllers: []\n")
    here.upper.more[CLAIM].mark_stale()
    assert foreseen(here, *TWO, more="controllers: []\n").problems == {}
    found = foreseen(here, f"name: {A}, controllers: [PV]", f"name: {B}", more="controllers: []\n").problems
    ((key, problem),) = found.items()
    assert (key.rule, key.lower, key.name, problem.reason) == ("controller", A, "PV", NOT_WATCHED)
    assert "does not watch persistentvolumeclaims yet" in problem.message


def test_placement_that_nobody_watches_yet_is_named() -> None:
    """Without the real nodes it is not known where pods have room."""
    here = world(*TWO)
    here.lowers[B].place_nodes.mark_stale()
    assert foreseen(here, *TWO).problems == {}
    found = foreseen(here, *TWO, more="descheduler: {enabled: true}\n").problems
    assert [(key.rule, key.lower) for key in found] == [("placement", B)]


def test_what_needs_a_restart_is_told_and_not_planned() -> None:
    """The topology that is planned has the present values."""
    here = world(*TWO)
    found = foreseen(here, *TWO, more="telemetry: {port: 9999}\n")
    assert found.refused == ("telemetry.port: 9095 -> 9999: this change requires a restart of the engine",)
    assert found.world.topology == here.topology


def test_an_address_of_the_nodes_is_planned() -> None:
    """It is on each Node."""
    found = foreseen(world(*TWO), *TWO, more="kubelet: {nodeAddress: 10.1.2.3}\n")
    assert found.world.node_address == "10.1.2.3"


def test_the_data_is_what_the_commands_print() -> None:
    """Of the same preview, with what comes later; keys that say nothing are missing."""
    here = world(*TWO)
    raised(here)
    quiet = foreseen(here, *TWO)
    planned = Planned(previewed(create(pod())), {})
    data = plan_data(planned, quiet, lambda found: found, None)
    assert set(data) == {MARKDOWN, DOCUMENT}
    assert data[MARKDOWN] == as_markdown(planned.preview)
    assert orjson.loads(data[DOCUMENT])["changes"] == orjson.loads(as_json(planned.preview))["changes"]
    data = plan_data(planned, quiet._replace(waits=("later",), refused=("never",)), lambda found: found, None)
    assert (orjson.loads(data[PENDING]), orjson.loads(data[RESTART])) == (["later"], ["never"])
    assert "\nNeeds a restart of the engine:\n  never\n\nTakes effect later:\n  later\n" in data[MARKDOWN]


def test_a_long_plan_is_cut_to_what_a_config_map_holds() -> None:
    """Both forms say so; the summary counts everything, and what it costs stays."""
    quiet = foreseen(world(*TWO), *TWO)
    steps = [
        create(pod(f"web-{number}"), {"spec": {"containers": [{"image": f"app:{number}"}]}}) for number in range(4000)
    ]
    planned = Planned(previewed(*steps), {}, Disruption(moved=(DisruptedPod("shop", "web", A, (B,)),)))
    data = plan_data(planned, quiet, lambda found: found, None)
    text, document = data[MARKDOWN], orjson.loads(data[DOCUMENT])
    assert len(text.encode()) <= MOST_MARKDOWN
    assert len(data[DOCUMENT].encode()) <= MOST_JSON
    assert text.startswith("```diff\n")
    assert text.count("```") == 2
    assert "\n... this plan is cut: " in text
    assert "Cost to running pods:\n  1 pod moved: shop/web" in text
    assert text.splitlines()[-1].startswith("Plan: 4000 to add, ")
    assert "of 4000 changes" in document["truncated"]
    assert document["summary"]["add"] == 4000
    assert len(document["changes"]) == 4000
    assert {len(one["operations"]) for one in document["changes"]} == {0}


def test_a_plan_that_fits_is_whole() -> None:
    """Byte for byte; JSON that only fits without line breaks loses these alone."""
    found = previewed(create(pod()))
    document = as_json(found)
    assert cut_json(document, len(document)) == document
    slim = cut_json(document, len(document) - 1)
    assert orjson.loads(slim) == orjson.loads(document)
    assert b"\n" not in slim
    assert cut_markdown(found, [], 10_000) == as_markdown(found)


@pytest.mark.parametrize(("most", "left"), [(7000, 30), (1500, 0)])
def test_the_first_changes_are_left_of_an_endless_plan(most: int, left: int) -> None:
    """Each limit holds, whatever the plan has; the counts stay."""
    found = previewed(*(create(pod(f"web-{number}")) for number in range(50)))
    made = cut_json(as_json(found), most)
    document = orjson.loads(made)
    assert len(made) <= most
    assert (len(document["changes"]), document["summary"]["add"]) == (left, 50)
    assert f"({left} of 50 changes)" in document["truncated"]


def test_an_error_is_cut_too() -> None:
    """A ConfigMap has room for what a person reads."""
    assert error_data("short") == {ERROR: "short"}
    assert len(error_data("x" * 100_000)[ERROR]) == 16 * 1024


def seen(data: dict[str, str], uid: str = "candidate-1", **meta: Any) -> Manifest:
    """Return NAME-plan as the API does, written by us; `meta` is laid over its metadata."""
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


def test_both_config_maps_stand_beside_the_topologys() -> None:
    """Under the same key."""
    assert candidate_key(PLACE) == PLACE._replace(name="topo-candidate")
    assert REF.namespaced_name == "ops/topo-plan"


def test_a_plan_is_made_with_our_marks() -> None:
    """They name the candidate."""
    made = plan_write(None, {ERROR: "no"}, REF, OWNER, "candidate-1").create
    assert made is not None
    assert made["metadata"]["labels"] == {OWNER_LABEL: OWNER.mark}
    assert made["metadata"]["annotations"] == {OWNER_NAME: OWNER.name, UPPER_UID: "candidate-1"}
    assert made["data"] == {ERROR: "no"}


def test_a_plan_replaces_all_of_our_keys_of_the_object_that_was_read() -> None:
    """An error of the last candidate goes; keys of others stay."""
    before = seen({ERROR: "no", "note": "theirs"}, uid="candidate-0")
    patch = plan_write(before, {MARKDOWN: "plan"}, REF, OWNER, "candidate-1").patch
    assert patch is not None
    assert patch.body == {
        "metadata": {"uid": "plan-1", "resourceVersion": "40", "annotations": {UPPER_UID: "candidate-1"}},
        "data": {MARKDOWN: "plan", ERROR: None},
    }


def test_a_config_map_of_another_is_refused() -> None:
    """Whatever is in it."""
    with pytest.raises(NameTaken, match="ConfigMap ops/topo-plan belongs to another owner"):
        plan_write(seen({}, labels={}), {}, REF, OWNER, "candidate-1")


def test_what_is_planned_is_known_by_hashes_and_candidate() -> None:
    """A new candidate with the same text is planned again."""
    data = {CANDIDATE_HASH: "aa"}
    assert is_planned(seen(data), "candidate-1", data)
    assert not is_planned(seen(data), "candidate-2", data)
    assert not is_planned(seen({CANDIDATE_HASH: "bb"}), "candidate-1", data)
    assert not is_planned(None, "candidate-1", data)
    assert set(data) < set(KEYS)
