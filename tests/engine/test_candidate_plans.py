"""Tests of the plans of candidates beside an engine in memory: when they are written, and that nothing else is."""

import asyncio
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

import orjson
from openkit import MemoryClusters, mixed_world
from structlog.testing import capture_logs
from tasks import background
from virtualtime import in_virtual_time
from worldkit import (
    NOW,
    A,
    change_as_other_client,
    config_map,
    make_lower_node,
    make_lower_pod,
    make_upper_pod,
    put,
    secret,
    spec_with_references,
    with_owner_marks,
)

from tensile.engine.candidate import CANDIDATE_HASH, DOCUMENT, ERROR, MARKDOWN, PENDING, TIME, TOPOLOGY_HASH
from tensile.engine.candidate_plans import (
    CHECK_INTERVAL,
    MAX_TEXT_BYTES,
    NOT_LEADING,
    PLAN_DENIED,
    PLAN_NAME_CONFLICT,
    CandidatePlans,
    EditPlans,
    PlanningContext,
)
from tensile.engine.plan_and_apply import previewed, rehearse
from tensile.engine.topology_reader import ConfigMapKey
from tensile.errors import ClusterError, Denied, Unreachable
from tensile.objects import CONFIG_MAP, EVENT, NAMESPACE, UPPER, Manifest, Ref
from tensile.reconcile.report import Recorder, as_json
from tensile.topology import Topology, parse
from tensile.topology.diff import edit

PLACE = ConfigMapKey("ops", "topo")
PLAN = Ref(UPPER, CONFIG_MAP, "ops", "topo-plan")
HEAD = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers:\n"
LOWER = "- {{name: {}, kubeconfigSecret: {{namespace: ops, name: {}}}{}}}\n"


def lower(name: str = A, more: str = "") -> str:
    """Return a lower cluster of a topology in a ConfigMap, as text."""
    return LOWER.format(name, name, f", {more}" if more else "")


def text(*lowers: str, more: str = "") -> str:
    """Return a topology in a ConfigMap, as text."""
    return HEAD + "".join(lowers or (lower(),)) + more


def digest(content: str) -> str:
    """Return the SHA-256 of a text."""
    return sha256(content.encode()).hexdigest()


def read(content: str) -> Topology:
    """Parse a topology of a ConfigMap."""
    return parse(content, configmap_mode=True)


class CandidatePlansHarness:
    """Plans beside an engine in memory, whose lower-a has a pod to create and one to delete."""

    def __init__(self) -> None:
        world = mixed_world()
        world.topology = read(text())
        world.lowers[A].spec = world.topology.lowers[0]
        put(world.lowers[A].nodes, make_lower_node())
        put(world.upper.secrets, secret())
        put(world.lowers[A].upper_pods, make_upper_pod("keyed", spec_with_references(secrets=["password"])))
        self.clusters = MemoryClusters(world)
        self.upper = self.clusters.connections[UPPER]
        self.upper.place(NAMESPACE, {"metadata": {"name": "ops"}})
        self.in_force = digest(text())
        self.meanwhile: Callable[[], object] = lambda: None
        self.errors: Callable[[], dict[str, str]] = dict
        self.plans = self.leader()

    def leader(self) -> CandidatePlans:
        """Return the planner of an engine that has just become leader."""
        return CandidatePlans(PLACE, self.around())

    def around(self) -> PlanningContext:
        """Return the parts of the engine that planning requires."""
        where = ("10.0.0.9", 6443)
        return PlanningContext(self.clusters, where, lambda: self.in_force, self.errors, self.calm, lambda: NOW)

    async def calm(self) -> None:
        """Run the action that a test sets for the time of planning."""
        self.meanwhile()

    def propose(self, content: str, key: str = "topology.yaml") -> None:
        """Write the candidate."""
        self.upper.place(
            CONFIG_MAP, {"metadata": {"name": "topo-candidate", "namespace": "ops"}, "data": {key: content}}
        )

    def withdraw(self) -> None:
        """Delete the candidate."""
        self.upper.vanish(PLAN._replace(name="topo-candidate"))

    @property
    def found(self) -> Manifest:
        """Return NAME-plan, {} if it does not exist."""
        return self.upper.find(CONFIG_MAP, "ops", "topo-plan") or {}

    @property
    def data(self) -> dict[str, str]:
        """Return the data of NAME-plan."""
        return dict(self.found.get("data") or {})

    @property
    def document(self) -> dict[str, Any]:
        """Return the JSON document of the plan."""
        found: dict[str, Any] = orjson.loads(self.data[DOCUMENT])
        return found

    def enforce(self, content: str) -> None:
        """Activate a topology, as a reload does."""
        world = self.clusters.world
        world.topology, self.in_force = read(content), digest(content)
        for spec in world.topology.lowers:
            world.lowers[spec.name].spec = spec


@in_virtual_time
async def test_a_candidate_is_planned_in_both_forms_with_hashes() -> None:
    """No object other than the plan is written in any cluster."""
    beside = CandidatePlansHarness()
    candidate = text(lower(more="maintenance: cordon"))
    beside.propose(candidate)
    await beside.plans.reconcile()
    assert beside.data[CANDIDATE_HASH] == digest(candidate)
    assert beside.data[TOPOLOGY_HASH] == digest(text())
    assert beside.data[TIME] == "2026-03-01T12:00:00Z"
    assert ERROR not in beside.data
    assert "\n+ Pod default/new: bound to node lower-a\n" in beside.data[MARKDOWN]
    (node,) = (one for one in beside.document["changes"] if one["kind"] == "Node")
    assert "spec.unschedulable" in node["fields"]
    assert node["line"] == 5
    assert beside.clusters.writes == [("create", PLAN)]


@in_virtual_time
async def test_the_plan_of_a_candidate_equals_that_of_tensile_plan() -> None:
    """The command's pipeline has the same changes for the same clusters once the candidate is active."""
    beside = CandidatePlansHarness()
    candidate = text(lower(more="maintenance: cordon"))
    beside.propose(candidate)
    await beside.plans.reconcile()
    beside.enforce(candidate)
    recorder = Recorder()
    async with beside.clusters.opening() as found:
        other = await previewed(found.clusters, found.unreached, recorder, partial(rehearse, observer=recorder))
    document = orjson.loads(as_json(other.preview))
    assert _told(beside.document) == _told(document) != []
    assert beside.document["summary"] == document["summary"]


def _told(document: dict[str, Any]) -> list[list[Any]]:
    """Return the parts of a plan that are equal in two plans of one state, which excludes times."""
    fields = ("cluster", "action", "kind", "namespace", "name", "reason", "fields")
    return [[one[field] for field in fields] for one in document["changes"]]


@in_virtual_time
async def test_a_plan_has_no_value_of_a_secret() -> None:
    """The Secret is planned for the pod that needs it, without its values."""
    beside = CandidatePlansHarness()
    beside.propose(text(lower(more="maintenance: cordon")))
    await beside.plans.reconcile()
    assert any(one["kind"] == "Secret" for one in beside.document["changes"])
    assert "dmFsdWU" not in str(beside.data)


@in_virtual_time
async def test_a_candidate_is_only_planned_again_if_a_text_changes() -> None:
    """Neither a further check nor a new leader nor a change of the clusters causes another plan."""
    beside = CandidatePlansHarness()
    beside.propose(text(lower(more="maintenance: cordon")))
    await beside.plans.reconcile()
    put(beside.clusters.world.lowers[A].upper_pods, make_upper_pod("later"))
    for plans in (beside.plans, beside.leader()):
        await plans.reconcile()
    assert beside.clusters.writes == [("create", PLAN)]
    beside.propose(text(lower(more="node: {labels: {other: label}}")))
    await beside.plans.reconcile()
    assert beside.clusters.writes[1:] == [("patch", PLAN)]
    assert "Pod default/later" in beside.data[MARKDOWN]


@in_virtual_time
async def test_a_candidate_is_planned_again_if_another_topology_becomes_active() -> None:
    """After the candidate itself was activated, its changes are no longer in the plan."""
    beside = CandidatePlansHarness()
    candidate = text(lower(more="maintenance: cordon"))
    beside.propose(candidate)
    await beside.plans.reconcile()
    beside.enforce(candidate)
    change_as_other_client(
        beside.clusters.world.upper.nodes, A, lambda node: node["spec"].update(unschedulable=True), ""
    )
    await beside.plans.reconcile()
    assert beside.data[TOPOLOGY_HASH] == beside.data[CANDIDATE_HASH] == digest(candidate)
    assert not any("spec.unschedulable" in one["fields"] for one in beside.document["changes"])


@in_virtual_time
async def test_the_plan_of_an_invalid_candidate_has_all_its_errors() -> None:
    """Each error has its place, and the plan of the former candidate is removed."""
    beside = CandidatePlansHarness()
    beside.propose(text())
    await beside.plans.reconcile()
    bad = text(lower(more="qqps: 1, burst: no")) + "lowerz: []\n"
    beside.propose(bad)
    await beside.plans.reconcile()
    lines = beside.data[ERROR].splitlines()
    assert [line.partition(": ")[0].rpartition(":")[0] for line in lines] == [
        f"configmap/ops/topo-candidate/topology.yaml:{line}" for line in (5, 5, 6)
    ]
    assert "topology.yaml:6:1: lowerz: unknown key; did you mean lowers?" in lines[2]
    assert set(beside.data) == {ERROR, CANDIDATE_HASH, TOPOLOGY_HASH, TIME}
    assert beside.data[CANDIDATE_HASH] == digest(bad)


@in_virtual_time
async def test_a_candidate_under_a_wrong_key_gets_an_error_with_the_present_keys() -> None:
    """The error is written once."""
    beside = CandidatePlansHarness()
    beside.propose(text(), key="other.yaml")
    for _ in range(2):
        await beside.plans.reconcile()
    assert "has no key topology.yaml (keys: other.yaml)" in beside.data[ERROR]
    assert beside.clusters.writes == [("create", PLAN)]


@in_virtual_time
async def test_a_candidate_that_is_too_large_is_not_parsed() -> None:
    """Any client may have written it, and parsing is slow."""
    beside = CandidatePlansHarness()
    beside.propose("# {}\n" * (MAX_TEXT_BYTES // 5 + 1))
    await beside.plans.reconcile()
    message = "configmap/ops/topo-candidate/topology.yaml: larger than 256 KiB, which the engine does not plan"
    assert beside.data[ERROR] == f"{message}: run `tensile plan`"


@in_virtual_time
async def test_an_edit_on_the_status_page_is_planned_as_text_without_any_write() -> None:
    """An engine that does not lead returns a message instead."""
    beside = CandidatePlansHarness()
    world = beside.clusters.world
    change = edit(world.topology, read(text(lower(more="maintenance: cordon"))))
    found = await EditPlans(beside.around).text(change)
    assert "\n+ Pod default/new: bound to node lower-a\n" in found
    assert "spec.unschedulable" in found
    assert found.splitlines()[-1].startswith("Plan: ")
    assert beside.clusters.writes == []
    assert world.lowers[A].spec.maintenance == "none"
    assert await EditPlans(lambda: None).text(change) == NOT_LEADING


@in_virtual_time
async def test_the_plan_on_the_status_page_has_no_values_that_may_be_secret() -> None:
    """It has the names of the fields; the plan of a candidate, which RBAC protects, has the values."""
    beside, value, spec = CandidatePlansHarness(), "hunter2-do-not-show", spec_with_references(config_maps=["settings"])
    settings, lower_a = config_map(data={"key": value}), beside.clusters.world.lowers[A]
    put(beside.clusters.world.upper.config_maps, settings)
    put(lower_a.config_maps, with_owner_marks(config_map(data={"key": "before"}), settings["metadata"]["uid"]))
    put(lower_a.upper_pods, make_upper_pod("noted", spec, annotations={"example.com/token": value}))
    put(lower_a.pods, make_lower_pod(make_upper_pod("noted", spec)))
    edited = text(lower(more="maintenance: cordon"))
    beside.propose(edited)
    await beside.plans.reconcile()
    assert f'example.com/token: set to "{value}"' in beside.data[MARKDOWN]
    assert f'data.key: "before" -> "{value}"' in beside.data[MARKDOWN]
    found = await EditPlans(beside.around).text(edit(beside.clusters.world.topology, read(edited)))
    assert "metadata.annotations.example.com/token: (set)" in found
    assert "data.key: (changed)" in found
    assert "spec.unschedulable: set to true" in found
    assert value not in found


@in_virtual_time
async def test_edits_on_the_status_page_are_planned_one_at_a_time() -> None:
    """Many requests thus use only a part of the engine's time."""
    beside = CandidatePlansHarness()
    change = edit(beside.clusters.world.topology, read(text(lower(more="maintenance: cordon"))))
    plans, busy, most = EditPlans(beside.around), 0, 0

    async def calm() -> None:
        """Count the plans in progress for one second."""
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(1)
        busy -= 1

    beside.calm = calm  # type: ignore[method-assign]
    await asyncio.gather(*(plans.text(change) for _ in range(3)))
    assert most == 1


@in_virtual_time
async def test_a_new_lower_is_reported_as_not_planned() -> None:
    """Both forms of the plan state that it is incomplete."""
    beside = CandidatePlansHarness()
    beside.propose(text(lower(more="maintenance: cordon"), lower("lower-b")))
    await beside.plans.reconcile()
    assert [one["lower"] for one in beside.document["unreached"]] == ["lower-b"]
    assert "\nNot planned\n! lower-b: not connected yet: " in beside.data[MARKDOWN]
    assert beside.data[MARKDOWN].endswith("; not planned: lower-b)")
    assert any(one["kind"] == "Node" for one in beside.document["changes"])


@in_virtual_time
async def test_a_plan_lists_the_changes_that_take_effect_later() -> None:
    """The messages are the same as those of a reload."""
    beside = CandidatePlansHarness()
    beside.propose(text(lower(more="node: {name: other}")))
    await beside.plans.reconcile()
    (message,) = orjson.loads(beside.data[PENDING])
    assert message.startswith(f"lowers[{A}].node.name: {A} -> other: waits until no pods are mirrored to {A}; ")
    assert f"Takes effect later:\n  {message}\n" in beside.data[MARKDOWN]


@in_virtual_time
async def test_the_plan_is_deleted_with_its_candidate() -> None:
    """It is deleted once, and a further check writes nothing."""
    beside = CandidatePlansHarness()
    beside.propose(text())
    await beside.plans.reconcile()
    beside.withdraw()
    for _ in range(2):
        await beside.plans.reconcile()
    assert beside.found == {}
    assert beside.clusters.writes == [("create", PLAN), ("delete", PLAN)]


@in_virtual_time
async def test_a_deleted_plan_is_created_again() -> None:
    """It shows the state of the clusters at that time."""
    beside = CandidatePlansHarness()
    beside.propose(text())
    await beside.plans.reconcile()
    beside.upper.vanish(PLAN)
    put(beside.clusters.world.lowers[A].upper_pods, make_upper_pod("later"))
    await beside.plans.reconcile()
    assert "Pod default/later" in beside.data[MARKDOWN]


@in_virtual_time
async def test_a_plan_config_map_of_another_owner_is_reported_and_not_changed() -> None:
    """An Event on the candidate is emitted once, and the plan is written after that ConfigMap was deleted."""
    beside = CandidatePlansHarness()
    theirs = {"metadata": {"name": "topo-plan", "namespace": "ops"}, "data": {"mine": "yes"}}
    beside.upper.place(CONFIG_MAP, theirs)
    beside.propose(text())
    with capture_logs() as lines:
        for _ in range(3):
            await beside.plans.reconcile()
    assert [line["error"].partition(",")[0] for line in lines] == ["ConfigMap ops/topo-plan belongs to another owner"]
    ((verb, ref),) = beside.clusters.writes
    assert (verb, ref.kind) == ("create", EVENT)
    event = beside.upper.find(EVENT, ref.namespace, ref.name) or {}
    assert (event["reason"], event["involvedObject"]["name"]) == (PLAN_NAME_CONFLICT, "topo-candidate")
    assert beside.data == {"mine": "yes"}
    beside.withdraw()
    await beside.plans.reconcile()
    assert beside.data == {"mine": "yes"}
    beside.upper.vanish(PLAN)
    beside.propose(text())
    await beside.plans.reconcile()
    assert beside.data[CANDIDATE_HASH] == digest(text())


@in_virtual_time
async def test_a_plan_is_not_written_if_the_candidate_changes_while_it_is_computed() -> None:
    """The next check plans the newer candidate."""
    beside = CandidatePlansHarness()
    later = text(lower(more="maintenance: cordon"))
    beside.propose(text())
    beside.meanwhile = lambda: beside.propose(later)
    await beside.plans.reconcile()
    assert beside.found == {}
    beside.meanwhile = lambda: None
    await beside.plans.reconcile()
    assert beside.data[CANDIDATE_HASH] == digest(later)


@in_virtual_time
async def test_no_plan_is_written_if_the_candidate_is_deleted_while_it_is_planned() -> None:
    """Nothing is written at all."""
    beside = CandidatePlansHarness()
    beside.propose(text())
    beside.meanwhile = beside.withdraw
    await beside.plans.reconcile()
    assert (beside.found, beside.clusters.writes) == ({}, [])


class ConfigMapRefusingCluster:
    """The upper cluster of an engine, in which the first creations of ConfigMaps fail."""

    def __init__(self, behind: Any, times: int, error: type[ClusterError] = Unreachable) -> None:
        self.cluster, self.left, self.error = behind, times, error

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Create an object, or fail."""
        if self.left and ref.kind == CONFIG_MAP:
            self.left -= 1
            raise self.error("no answer", cluster=UPPER, doing="create")
        made: bytes = await self.cluster.create(ref, body)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cluster, name)


@in_virtual_time
async def test_a_failed_write_of_a_plan_is_retried_without_planning_again() -> None:
    """The failure is logged once."""
    beside = CandidatePlansHarness()
    beside.clusters.connections[UPPER] = ConfigMapRefusingCluster(beside.upper, 2)  # type: ignore[assignment]
    calls = _counted(beside)
    beside.propose(text())
    with capture_logs() as lines:
        async with background(beside.plans.run()):
            await asyncio.sleep(3 * CHECK_INTERVAL)
    assert beside.data[CANDIDATE_HASH] == digest(text())
    assert len(calls) == 1
    warnings = [one["event"] for one in lines if one["log_level"] == "warning"]
    assert warnings == ["cannot report the plan of the candidate"]


@in_virtual_time
async def test_a_denied_write_of_a_plan_is_reported_by_an_event_on_the_candidate() -> None:
    """The author of the candidate may have no access to the log; the plan is written once it is permitted."""
    beside = CandidatePlansHarness()
    beside.clusters.connections[UPPER] = ConfigMapRefusingCluster(beside.upper, 3, Denied)  # type: ignore[assignment]
    beside.propose(text())
    async with background(beside.plans.run()):
        await asyncio.sleep(3 * CHECK_INTERVAL)
    (event_ref,) = [ref for verb, ref in beside.clusters.writes if ref.kind == EVENT]
    event = beside.upper.find(EVENT, event_ref.namespace, event_ref.name) or {}
    assert (event["reason"], event["involvedObject"]["name"]) == (PLAN_DENIED, "topo-candidate")
    assert event["message"].endswith("no answer")
    assert beside.data[CANDIDATE_HASH] == digest(text())


def _counted(beside: CandidatePlansHarness) -> list[None]:
    """Return a list that grows with each plan that is computed."""
    calls: list[None] = []
    beside.meanwhile = lambda: calls.append(None)
    return calls


@in_virtual_time
async def test_the_planner_follows_the_candidates_and_the_active_topology() -> None:
    """Events of the watch and periodic checks start it, and nothing is written after it was stopped."""
    beside = CandidatePlansHarness()
    candidates = [text(lower(more=f"qps: {number}")) for number in range(3)]
    async with background(beside.plans.run()):
        for candidate in candidates:
            beside.propose(candidate)
            await _until(lambda: beside.data.get(CANDIDATE_HASH) == digest(candidate))  # noqa: B023
        beside.enforce(candidates[-1])
        await _until(lambda: beside.data[TOPOLOGY_HASH] == digest(candidates[-1]))
        beside.withdraw()
        await _until(lambda: not beside.found)
    before = len(beside.clusters.writes)
    beside.propose(text())
    await asyncio.sleep(3 * CHECK_INTERVAL)
    assert len(beside.clusters.writes) == before


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - the clock is virtual
            await asyncio.sleep(0.5)


@in_virtual_time
async def test_a_bug_in_planning_is_reported_in_the_plan_and_logged() -> None:
    """The author of the candidate learns that no plan will follow, and the engine continues."""
    beside = CandidatePlansHarness()

    def broken() -> dict[str, str]:
        raise ZeroDivisionError("no such thing")

    beside.errors = broken
    beside.propose(text())
    with capture_logs() as lines:
        await beside.leader().reconcile()
    assert beside.data[ERROR] == "not planned: ZeroDivisionError: this is a bug in tensile: see the engine's log"
    assert "no such thing" in lines[0]["error"]
