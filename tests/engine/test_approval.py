"""Tests of edits that wait for an approval: which pods they affect, how they are approved, and how an engine starts."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from types import MappingProxyType, SimpleNamespace
from typing import Any

import orjson
import pytest
from openkit import MemoryClusters
from statuskit import NOW, OWNER, PLACE
from structlog.testing import capture_logs
from tasks import background
from virtualtime import in_virtual_time
from worldkit import (
    OWNER_HERE,
    SIBLING,
    A,
    B,
    add_namespace,
    add_virtual_node,
    make_lower_pod,
    make_object,
    make_upper_pod,
    make_world,
    put,
    with_managed_fields,
    with_owner_marks,
)

from tensile.engine.approval import (
    UNKNOWN,
    EditGate,
    Start,
    affected_pods,
    check_digits,
    is_approval,
    nodes_of_others,
    start_of,
)
from tensile.engine.history import AcceptedText, TopologyRecords, data_of, entries, history_ref
from tensile.engine.metrics import Metrics
from tensile.engine.status.configmap import StatusWriter, marked_manifest, status_ref
from tensile.engine.status.report import EngineStatus
from tensile.engine.topology_reader import TopologyText, TopologyUpdate
from tensile.errors import TensileError
from tensile.kube.cluster import Patch
from tensile.kube.store import Cache
from tensile.names import APPROVED, EventReason
from tensile.objects import CONFIG_MAP, EVENT, NAMESPACE, UPPER, Manifest, Ref
from tensile.reconcile.world import World
from tensile.topology import Topology, parse

RUNNING = {"phase": "Running", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}]}
OWNED = {
    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}]
}
PODS = ("web-1", "web-2", "web-3")
DRAIN = "maintenance: drain"


def text(limit: int | None = 1, *, a: str = "", b: str = "", more: str = "", name: str = "demo") -> str:
    """Return a topology of two lowers; `a` and `b` are further fields of them, `more` is further text."""
    guard = "" if limit is None else f"guard: {{approveOver: {limit}}}\n"
    lowers = "".join(
        f"- {{kubeconfig: k/{place}, name: {lower}{f', {fields}' if fields else ''}}}\n"
        for place, (lower, fields) in enumerate(((A, a), (B, b)))
    )
    return f"apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: {name}\nlowers:\n{lowers}{guard}{more}"


def digest(content: str) -> str:
    """Return the SHA-256 of a text."""
    return sha256(content.encode()).hexdigest()


def reading(content: str, version: str = "7") -> TopologyUpdate:
    """Return the result of a valid text."""
    data = content.encode()
    return TopologyUpdate(TopologyText(len(data), digest(content), version, "map-1"), parse(content), data=data)


def populated(content: str, pods: tuple[str, ...] = PODS, **meta: Any) -> World:
    """Return a world under a topology, with pods of a ReplicaSet that run in lower-a."""
    world = make_world()
    world.topology = parse(content)
    for spec in world.topology.lowers:
        world.lowers[spec.name].spec = spec
    for lower in (A, B):
        add_namespace(world, lower)
        add_virtual_node(world, lower)
    for name in pods:
        pod = make_upper_pod(name, status=RUNNING, **{**OWNED, **meta})
        put(world.lowers[A].upper_pods, pod)
        put(world.lowers[A].pods, make_lower_pod(pod, RUNNING))
    return world


async def affected(world: World, after: str, limit: int = 0) -> list[str]:
    """Return the names of the pods that an edit affects."""
    found = await affected_pods(MemoryClusters(world), world.topology, parse(after), limit)
    return sorted(name for _, _, name in found)


async def test_the_pods_of_a_drained_lower_are_affected() -> None:
    """They are evicted; pods of another lower stay."""
    assert await affected(populated(text()), text(a=DRAIN)) == list(PODS)
    assert await affected(populated(text()), text(b=DRAIN)) == []


REPAIR = "node: {taints: [{key: repair, effect: NoExecute}]}"


async def test_pods_that_do_not_tolerate_a_new_no_execute_taint_are_affected() -> None:
    """Kubernetes deletes them as soon as the node has the taint; a taint that the node already has deletes none."""
    assert await affected(populated(text()), text(a=REPAIR)) == list(PODS)
    assert await affected(populated(text()), text(b=REPAIR)) == []
    assert await affected(populated(text(a=REPAIR)), text(a=f"{REPAIR}, maintenance: cordon")) == []


async def test_planning_many_pods_does_not_block_the_event_loop() -> None:
    """Few pods are planned in one turn of the event loop, so that the engine can renew its lease."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    many = tuple(f"web-{number:03}" for number in range(300))
    world = populated(text(), many)
    async with background(count()):
        assert await affected(world, text(a=DRAIN)) == list(many)
    assert turns > len(many)


async def test_an_edit_that_moves_no_pod_affects_none() -> None:
    """Node labels, reserves, a cordon and the removal of a lower leave its pods in place."""
    for edit in (
        text(a="node: {labels: {x: y}}"),
        text(a="capacity: {reserve: {cpu: '1'}}"),
        text(a="maintenance: cordon"),
    ):
        assert await affected(populated(text()), edit) == []
    assert await affected(populated(text()), text().replace(f"- {{kubeconfig: k/0, name: {A}}}\n", "")) == []


async def test_all_pods_of_a_drain_are_affected_if_few_leave_at_a_time() -> None:
    """A descheduler that moves few pods in each pass only delays the drain."""
    many = tuple(f"web-{number:02}" for number in range(30))
    assert await affected(populated(text(), many), text(a=DRAIN)) == list(many)
    more = "descheduler: {enabled: true, maxEvictionsPerNode: 1}\n"
    assert await affected(populated(text(), many), text(a=DRAIN, more=more)) == list(many)


async def test_pods_of_a_drain_in_progress_are_not_affected_by_another_edit() -> None:
    """The drain moves them without the edit too."""
    world = populated(text(a=DRAIN))
    assert await affected(world, text(a=f"{DRAIN}, node: {{labels: {{x: y}}}}")) == []


async def test_pods_are_affected_although_a_maintenance_window_is_closed() -> None:
    """The edit would move the pods unattended as soon as the window opens."""
    windows = 'windows: [{schedule: "0 2 1 1 *", duration: 1h}]\n'
    assert await affected(populated(text(more=windows)), text(a=DRAIN, more=windows)) == list(PODS)


async def test_bare_pods_of_a_drained_lower_are_affected_if_they_are_recreated() -> None:
    """Without recreateBarePods, a drain leaves them in place."""
    more = "descheduler: {recreateBarePods: true}\n"
    bare = {"ownerReferences": []}
    assert await affected(populated(text(more=more), **bare), text(a=DRAIN, more=more)) == list(PODS)
    assert await affected(populated(text(), **bare), text(a=DRAIN)) == []


async def test_bare_pods_are_affected_once_by_the_edit_that_recreates_them() -> None:
    """An earlier drain without recreateBarePods left them in place; a drain with it already moves them."""
    more = "descheduler: {recreateBarePods: true}\n"
    bare = {"ownerReferences": []}
    assert await affected(populated(text(a=DRAIN), **bare), text(a=DRAIN, more=more)) == list(PODS)
    label = f"{DRAIN}, node: {{labels: {{x: y}}}}"
    assert await affected(populated(text(a=DRAIN, more=more), **bare), text(a=label, more=more)) == []


async def test_the_pods_of_a_lower_that_is_renamed_and_drained_are_affected() -> None:
    """The lower keeps its virtual node under its new name."""
    renamed = text(a=f"{DRAIN}, node: {{name: {A}}}", more="descheduler: {recreateBarePods: true}\n")
    renamed = renamed.replace(f"name: {A}, {DRAIN}", f"name: other, {DRAIN}")
    for meta in (OWNED, {"ownerReferences": []}):
        assert await affected(populated(text(), **meta), renamed) == list(PODS)


@pytest.mark.parametrize(
    "lower_fields",
    [
        {"unreachable_seconds": 300},
        {"is_wrong": True},
        {"is_shared": True},
        {"is_excessive": True},
        {"access_error": "credential rejected"},
    ],
)
async def test_all_pods_of_a_changed_lower_that_is_unreachable_are_affected(lower_fields: dict[str, Any]) -> None:
    """Its lists may be outdated, and with evictAfter all its pods may be evicted."""
    world = populated(text())
    for field, value in lower_fields.items():
        setattr(world.lowers[A], field, value)
    assert await affected(world, text(a="unreachable: {evictAfter: 10m}")) == list(PODS)
    assert await affected(world, text(b="unreachable: {evictAfter: 10m}")) == []


async def test_all_pods_of_a_lower_with_evict_after_are_affected_by_new_credentials() -> None:
    """They are evicted if no cluster responds there; without evictAfter they stay."""
    assert await affected(populated(text()), text(a="context: other, unreachable: {evictAfter: 10m}")) == list(PODS)
    assert await affected(populated(text()), text(a="context: other")) == []


async def test_all_pods_of_a_changed_lower_that_is_not_listed_are_affected() -> None:
    """No plan can be made for that lower; an edit of another lower does not affect its pods."""
    world = populated(text())
    world.lowers[A].pods.synced = False
    assert await affected(world, text(a="node: {labels: {x: y}}")) == list(PODS)
    assert await affected(world, text(b="node: {labels: {x: y}}")) == []


@pytest.mark.parametrize("after", [text(name="other"), text(more="upper: {kubeconfig: other}\n")])
async def test_all_pods_are_affected_by_another_topology_name_or_upper_cluster(after: str) -> None:
    """The topology would no longer own any of its objects."""
    assert await affected(populated(text()), after) == list(PODS)


async def test_pods_that_have_not_started_or_have_ended_are_not_affected() -> None:
    """A plan does not count them either."""
    world = populated(text(), ())
    put(
        world.lowers[A].upper_pods,
        make_upper_pod("new", **OWNED),
        make_upper_pod("done", status={"phase": "Succeeded"}, **OWNED),
    )
    assert await affected(world, text(a=DRAIN)) == []


def test_an_approval_needs_at_least_twelve_digits_of_the_texts_hash() -> None:
    """Digits of another text do not approve it, and case and white space are ignored."""
    whole = digest("a")
    assert [is_approval(whole[:count], whole) for count in (0, 11, 12, 63, 64)] == [False, False, True, True, True]
    assert not is_approval(digest("b")[:12], whole)
    assert not is_approval(whole + "0", whole)
    assert check_digits(f" {whole[:12].upper()}\n") == whole[:12]


@pytest.mark.parametrize("given", ["", "abc", "0123456789a", "0123456789ag", "0" * 65])
def test_a_value_that_is_no_hash_is_refused(given: str) -> None:
    """The error states that at least 12 hex digits of a SHA-256 are required."""
    with pytest.raises(TensileError, match=r"is not a SHA-256: give at least its first 12 hex digits"):
        check_digits(given)


# Tests of the text on which an engine starts.


def records(*accepted: str, status: str = "", month: int = 12) -> TopologyRecords:
    """Return a history of texts, one a month, and a status of a month with the accepted one ("": no status)."""
    history = tuple(AcceptedText(digest(one), _of(number), one) for number, one in enumerate(accepted, 1))
    data = {"accepted": orjson.dumps({"sha256": status, "resourceVersion": "5", "time": _of(month)}).decode()}
    found = with_managed_fields(marked_manifest(data, status_ref(PLACE), OWNER, "map-1")) if status else None
    return TopologyRecords(OWNER, found, history)


def _of(month: int) -> str:
    return f"2026-{month:02}-01T12:00:00Z"


def parsed(data: bytes) -> Topology:
    """Parse a text."""
    return parse(data.decode())


def started(present: str, found: TopologyRecords) -> tuple[str, str]:
    """Return the SHA-256 of the text that counts as accepted, and the warning."""
    start = start_of(reading(present), found, parsed)
    return start.accepted.text.sha256, start.warning


def test_an_engine_starts_on_the_last_accepted_text() -> None:
    """An edit that was not accepted yet is not active, so the engine starts on the text before it."""
    before, edit = text(), text(a=DRAIN)
    assert started(before, records(before, status=digest(before))) == (digest(before), "")
    assert started(edit, records(before, status=digest(before))) == (digest(before), "")
    assert started(edit, records(before)) == (digest(before), "")
    assert started(edit, records(before, edit)) == (digest(edit), "")
    assert start_of(reading(edit), records(before, status=digest(before)), parsed).accepted.text.version == "5"


def test_an_engine_starts_with_the_pending_approval_in_the_status() -> None:
    """The edit is not planned again, although another engine may have removed it from the status by then."""
    before, edit = text(), text(a=DRAIN)
    found = records(before, status=digest(before))
    assert start_of(reading(edit), found, parsed).noted == {}
    assert found.status is not None
    found.status["data"]["pendingApproval"] = orjson.dumps({"sha256": digest(edit), "pods": 3}).decode()
    assert start_of(reading(edit), found, parsed).noted == {"sha256": digest(edit), "pods": 3}


def test_the_newer_one_of_status_and_history_has_the_accepted_text() -> None:
    """A leader may end between the writes of the two."""
    first, second, edit = text(), text(b="maintenance: cordon"), text(a=DRAIN)
    assert started(second, records(first, status=digest(second))) == (digest(second), "")
    assert started(second, records(first, second, status=digest(first), month=1)) == (digest(second), "")
    assert started(edit, records(text(None), first, status=digest(text(None)), month=1)) == (digest(first), "")
    assert started(edit, records(edit, first, status=digest(edit), month=1)) == (digest(first), "")


def test_an_engine_starts_on_the_present_text_without_a_limit_or_a_history() -> None:
    """It warns if no history exists although the text requires approvals."""
    before, edit = text(None), text(1, a=DRAIN)
    assert started(edit, records(before, status=digest(before))) == (digest(edit), "")
    assert started(before, records()) == (digest(before), "")
    assert started(edit, records()) == (digest(edit), UNKNOWN)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (records(status="f" * 64), "the accepted topology ffffffffffff is not in the history"),
        (TopologyRecords(OWNER, None, (AcceptedText("f" * 64, "t", ""),)), "too large to be kept"),
        (records("lowers: 1\n"), "is not valid for this version: "),
    ],
)
def test_an_engine_starts_on_the_present_text_with_a_warning_if_the_accepted_one_is_lost(
    found: TopologyRecords, message: str
) -> None:
    """The accepted text can be missing in the history, too large to be kept, or invalid for this version."""
    edit = text(a=DRAIN)
    accepted, warning = started(edit, found)
    assert accepted == digest(edit)
    assert message in warning


def test_settings_that_need_a_restart_are_those_of_the_present_text() -> None:
    """Ports and the upper kubeconfig become active by a restart; the name of a topology in a ConfigMap does not."""
    before = text(more="telemetry: {port: 9095}\n")
    edit = text(a=DRAIN, more="telemetry: {port: 9999}\nupper: {kubeconfig: other}\n", name="other")
    found = start_of(reading(edit), records(before), parsed).topology
    assert (found.telemetry.port, found.upper.kubeconfig, found.name) == (9999, "other", "demo")
    assert found.lowers[0].maintenance == "none"


def test_a_virtual_node_of_another_topology_is_found() -> None:
    """A renamed topology file has no history yet, so that only the nodes show its former name."""
    world = populated(text())
    put(world.upper.nodes, with_owner_marks(make_object("Node", B, ""), OWNER_HERE.upper, SIBLING))
    assert list(nodes_of_others(parse(text()), world)) == [(B, "second")]


# Tests of a running engine.


class EngineInMemory:
    """An engine in memory with clusters, in which topologies become active; it writes its results to them."""

    def __init__(
        self,
        content: str,
        world: World | None = None,
        clusters: MemoryClusters | None = None,
        *,
        of_file: bool = False,
        noted: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.memory = clusters or MemoryClusters(world or populated(content))
        self.upper = self.memory.connections[UPPER]
        if clusters is None:
            self.upper.place(NAMESPACE, {"metadata": {"name": PLACE.namespace}})
        self.topology = parse(content)
        self.world = self.memory.world
        self.connections = self.memory.connections
        self.joined = {name: SimpleNamespace(lower=lower) for name, lower in self.world.lowers.items()}
        self.clusters = self
        self.is_leader = False
        self.reloads: list[Topology] = []
        self.place, self.options = PLACE, "--configmap ops/topo"
        self.engine_status = EngineStatus(lambda: NOW)
        config_maps = self.world.upper.config_maps
        self.keeper = StatusWriter(
            self.upper, PLACE, OWNER, config_maps, self.engine_status, now=lambda: NOW, of_file=of_file
        )
        self.metrics = Metrics()
        first = reading(content)
        self.engine_status.record(first)
        begun = Start(self.topology, first, noted=noted)
        self.gate = EditGate(self, self, self.engine_status, self.metrics, begun, first=first, now=lambda: NOW)  # type: ignore[arg-type]

    async def reload(self, topology: Topology) -> None:
        """Activate a topology."""
        self.topology = topology
        self.reloads.append(topology)

    def parse(self, data: bytes) -> Topology:
        """Parse a text of the source."""
        return parsed(data)

    def report(self, update: TopologyUpdate) -> None:
        """Report a result to the status writer."""
        self.keeper.report(update)

    def emit_event(self, reason: EventReason, message: str) -> None:
        """Emit an Event by the status writer."""
        self.keeper.emit_event(reason, message)

    def lead(self) -> None:
        """Begin to lead."""
        self.is_leader = True
        self.gate.lead()

    async def edit(self, content: str, version: str = "8") -> None:
        """Decide about a text, and write the result."""
        await self.gate.decide(reading(content, version))
        await self.report_edit()

    async def report_edit(self) -> None:
        """Wait until everything is written and observed."""
        for _ in range(3):
            await asyncio.sleep(0.1)
            assert await self.keeper.write()

    async def annotate(self, value: str | None) -> None:
        """Approve an edit, as `kubectl annotate` does."""
        meta = {"uid": self.status["metadata"]["uid"], "annotations": {APPROVED: value}}
        await self.upper.patch(status_ref(PLACE), Patch("merge-patch", {"metadata": meta}))
        await self.report_edit()

    @property
    def status(self) -> Manifest:
        """Return the status ConfigMap."""
        return self.upper.find(CONFIG_MAP, PLACE.namespace, status_ref(PLACE).name) or {}

    @property
    def state(self) -> tuple[str, str, str]:
        """Return the state in one word, and the SHA-256 of the accepted text and of the one that waits."""
        data = self.status["data"]
        parts = [orjson.loads(data[part])["sha256"] if part in data else "" for part in ("accepted", "pendingApproval")]
        return data["state"], parts[0], parts[1]

    @property
    def history(self) -> list[str]:
        """Return the SHA-256 of the texts in the history."""
        found = self.upper.find(CONFIG_MAP, PLACE.namespace, history_ref(PLACE).name) or {"data": {"index": "[]"}}
        return [one["sha256"] for one in orjson.loads(found["data"]["index"])]

    @property
    def events(self) -> list[str]:
        """Return the reasons of the Events in the cluster."""
        return sorted((self.upper.find(EVENT, *name) or {})["reason"] for name in self.upper._held[EVENT])


BEFORE, LARGE = text(), text(a=DRAIN)


def anothers(ref: Ref, **meta: Any) -> Manifest:
    """Return a ConfigMap of another owner, without the owner marks."""
    return {"metadata": {"name": ref.name, "namespace": ref.namespace, **meta}, "data": {"theirs": "x"}}


def clusters_with(*config_maps: Manifest) -> MemoryClusters:
    """Return clusters with these ConfigMaps in the upper one, and pods that run in lower-a."""
    memory = MemoryClusters(populated(BEFORE))
    memory.connections[UPPER].place(NAMESPACE, {"metadata": {"name": PLACE.namespace}})
    for one in config_maps:
        memory.connections[UPPER].place(CONFIG_MAP, one)
    return memory


def end_pods(world: World) -> None:
    """Remove the pods in lower-a."""
    for entry in world.lowers[A].upper_pods:
        world.lowers[A].upper_pods.remove(entry.raw)


@contextmanager
def listed_late(memory: MemoryClusters) -> Iterator[Callable[[], None]]:
    """Replace the list of ConfigMaps by an unsynced one, until the yielded function is called."""
    known, late = memory.world.upper.config_maps, Cache()
    memory.world.upper.config_maps = late

    def fill() -> None:
        late.replace([entry.raw for entry in known], known.version)
        known.subscribe(lambda delta: late.put(delta.after.raw) if delta.after is not None else None)

    yield fill
    memory.world.upper.config_maps = known


@asynccontextmanager
async def running(content: str = BEFORE, *, leads: bool = True, **given: Any) -> AsyncIterator[EngineInMemory]:
    """Run an engine with a text that is also the first one of its source, as `tensile run` does."""
    made = EngineInMemory(content, **given)
    is_known = bool(made.status)
    async with background(made.gate.run()):
        if leads:
            made.lead()
        if not is_known:
            await made.edit(content, "7")
        try:
            yield made
        finally:
            await made.gate.close()


@in_virtual_time
async def test_an_edit_over_the_limit_waits_until_it_is_approved() -> None:
    """Until then nothing changes; the status and an Event have the pending edit and the command to approve it."""
    with capture_logs() as logs:
        async with running() as engine:
            await engine.edit(LARGE)
            assert engine.state == ("Pending", digest(BEFORE), digest(LARGE))
            assert engine.reloads == []
            waiting = orjson.loads(engine.status["data"]["pendingApproval"])
            assert waiting["command"] == f"tensile approve {digest(LARGE)[:12]} --configmap ops/topo"
            assert (waiting["pods"], waiting["approveOver"]) == (3, 1)
            assert waiting["changes"] == [f"lowers[{A}].maintenance: none -> drain"]
            assert waiting["affected"] == [f"default/{name} ({A})" for name in PODS]
            assert "ApprovalPending" in engine.events
            assert engine.history == [digest(BEFORE)]
            await engine.annotate(digest(LARGE)[:12])
            assert engine.state == ("Accepted", digest(LARGE), "")
            assert [one.lowers[0].maintenance for one in engine.reloads] == ["drain"]
            assert engine.history == [digest(BEFORE), digest(LARGE)]
            assert APPROVED not in engine.status["metadata"]["annotations"]
            assert "ApprovalRefused" not in engine.events
    log_events = [entry["event"] for entry in logs]
    assert "topology edit waits for an approval" in log_events
    assert "topology edit approved" in log_events


@in_virtual_time
async def test_an_edit_within_the_limit_is_active_at_once() -> None:
    """It is added to the history too."""
    async with running() as engine:
        small = text(a="node: {labels: {x: y}}")
        await engine.edit(small)
        assert engine.state == ("Accepted", digest(small), "")
        assert (len(engine.reloads), engine.history) == (1, [digest(BEFORE), digest(small)])


@in_virtual_time
async def test_the_active_limit_applies_and_not_the_limit_of_the_edit() -> None:
    """An edit cannot lift its own limit, and one that sets a lower limit does not wait because of it."""
    async with running() as engine:
        await engine.edit(text(None, a=DRAIN))
        assert engine.state[0] == "Pending"
    async with running(text(None)) as engine:
        await engine.edit(text(0, a=DRAIN))
        assert engine.state[0] == "Accepted"


@in_virtual_time
async def test_an_approval_is_valid_for_one_text_and_one_time() -> None:
    """Another edit needs its own approval, and so does the same edit after it was undone."""
    async with running() as engine:
        other = text(a=f"{DRAIN}, node: {{labels: {{x: y}}}}")
        await engine.edit(LARGE)
        await engine.edit(other)
        assert engine.state == ("Pending", digest(BEFORE), digest(other))
        await engine.annotate(digest(LARGE))
        assert engine.state == ("Pending", digest(BEFORE), digest(other))
        assert APPROVED not in engine.status["metadata"]["annotations"]
        assert "ApprovalRefused" in engine.events
        await engine.annotate(digest(other))
        await engine.edit(BEFORE)
        assert engine.state == ("Accepted", digest(BEFORE), "")
        await engine.edit(other)
        assert engine.state == ("Pending", digest(BEFORE), digest(other))
        await engine.annotate(digest(other))
        assert engine.state == ("Accepted", digest(other), "")


@in_virtual_time
async def test_an_approval_is_removed_if_no_edit_waits() -> None:
    """It would otherwise approve a later edit that was never shown."""
    async with running() as engine:
        await engine.annotate(digest(LARGE))
        assert APPROVED not in engine.status["metadata"]["annotations"]
        await engine.edit(LARGE)
        assert engine.state[0] == "Pending"


@in_virtual_time
@pytest.mark.parametrize("later", [BEFORE, f"{BEFORE}# a comment\n"])
async def test_an_edit_that_is_undone_no_longer_waits(later: str) -> None:
    """It can be undone by the accepted text, or by one with the same meaning."""
    async with running() as engine:
        await engine.edit(LARGE)
        await engine.edit(later)
        assert (engine.state, engine.reloads) == (("Accepted", digest(later), ""), [])


@in_virtual_time
async def test_an_invalid_text_replaces_an_edit_that_waits() -> None:
    """The earlier edit is no longer in the source, so it cannot be approved."""
    async with running() as engine:
        await engine.edit(LARGE)
        error = TensileError("topo:1:1: wrong")
        await engine.gate.reject(TopologyUpdate(TopologyText(1, "bb", "9", "map-1"), error=error))
        await engine.report_edit()
        assert engine.state == ("Rejected", digest(BEFORE), "")
        await engine.annotate(digest(LARGE))
        assert (engine.reloads, "ApprovalRefused" in engine.events) == ([], True)


@in_virtual_time
async def test_an_edit_still_waits_after_a_restart_although_its_pods_have_ended() -> None:
    """An edit never becomes active unattended."""
    async with running() as engine:
        await engine.edit(LARGE)
        end_pods(engine.world)
        memory = engine.memory
    async with running(clusters=memory) as again:
        await again.edit(LARGE)
        assert again.state == ("Pending", digest(BEFORE), digest(LARGE))
        assert orjson.loads(again.status["data"]["pendingApproval"])["pods"] == 3


@in_virtual_time
async def test_an_edit_still_waits_although_the_status_is_written_before_the_edit_is_read() -> None:
    """The status of a topology file is written as soon as the engine leads, and keeps the pending edit until then."""
    async with running(of_file=True) as engine:
        await engine.edit(LARGE)
        end_pods(engine.world)
        memory = engine.memory
    async with running(clusters=memory, of_file=True) as again:
        await again.report_edit()
        assert again.state == ("Pending", digest(BEFORE), digest(LARGE))
        await again.edit(LARGE)
        assert again.state == ("Pending", digest(BEFORE), digest(LARGE))
        assert orjson.loads(again.status["data"]["pendingApproval"])["pods"] == 3
        await again.edit(BEFORE)
        assert again.state == ("Accepted", digest(BEFORE), "")


@in_virtual_time
async def test_an_edit_still_waits_although_the_status_is_listed_late() -> None:
    """The leader does not decide before it knows the status, because it would plan the edit again."""
    async with running() as engine:
        await engine.edit(LARGE)
        end_pods(engine.world)
        memory = engine.memory
    with listed_late(memory) as fill:
        async with running(clusters=memory) as again, background(again.gate.decide(reading(LARGE))):
            await asyncio.sleep(5)
            assert again.reloads == []
            fill()
            await asyncio.sleep(5)
            await again.report_edit()
            assert again.state == ("Pending", digest(BEFORE), digest(LARGE))


@in_virtual_time
async def test_a_denied_list_of_config_maps_only_delays_edits() -> None:
    """The edit that waits is known from the start; other edits are decided without a status and a history."""
    async with running() as engine:
        await engine.edit(LARGE)
        end_pods(engine.world)
        memory, noted = engine.memory, orjson.loads(engine.status["data"]["pendingApproval"])
    with listed_late(memory):
        async with running(clusters=memory, noted=noted) as again:
            await again.gate.decide(reading(LARGE))
            assert again.reloads == []
            assert again.engine_status.verdict.approval is not None
            await again.gate.decide(reading(BEFORE))
            await again.gate.decide(reading(LARGE))
            assert [one.lowers[0].maintenance for one in again.reloads] == ["drain"]


@in_virtual_time
async def test_an_approval_that_was_given_while_no_engine_ran_is_valid() -> None:
    """The next engine reads the approval before it has read the edit."""
    async with running() as engine:
        await engine.edit(LARGE)
        memory = engine.memory
    status = status_ref(PLACE)
    meta = {"uid": engine.status["metadata"]["uid"], "annotations": {APPROVED: digest(LARGE)}}
    await engine.upper.patch(status, Patch("merge-patch", {"metadata": meta}))
    made = EngineInMemory(BEFORE, clusters=memory)
    with capture_logs() as logs:
        async with background(made.gate.run()):
            made.lead()
            await asyncio.sleep(1)
            await made.edit(LARGE)
            assert made.state == ("Accepted", digest(LARGE), "")
            await made.gate.close()
    assert "topology approval refused" not in [entry["event"] for entry in logs]


@in_virtual_time
async def test_an_approval_in_a_config_map_of_another_owner_is_ignored() -> None:
    """A client that may create a ConfigMap of that name may lack the permission to annotate the engine's."""
    memory = clusters_with(anothers(status_ref(PLACE), annotations={APPROVED: digest(LARGE)}))
    async with running(clusters=memory) as engine:
        await engine.edit(BEFORE, "7")
        await engine.edit(LARGE)
        assert engine.reloads == []
        waiting = engine.engine_status.verdict.approval
        assert waiting is not None
        assert waiting.text.sha256 == digest(LARGE)
        assert "StatusNameConflict" in engine.events


@in_virtual_time
@pytest.mark.parametrize(
    "wrong", [{"pods": 1e30}, {"pods": "9" * 400}, {"approveOver": None}, {"affected": "abc"}, {"affected": None}]
)
async def test_an_invalid_pending_approval_in_the_status_is_ignored(wrong: dict[str, Any]) -> None:
    """The edit is planned again, because such values fit neither into the status nor into a metric."""
    async with running() as engine:
        await engine.edit(LARGE)
        memory = engine.memory
    noted = orjson.loads(engine.status["data"]["pendingApproval"]) | wrong
    change = {
        "metadata": {"uid": engine.status["metadata"]["uid"]},
        "data": {"pendingApproval": orjson.dumps(noted).decode()},
    }
    await engine.upper.patch(status_ref(PLACE), Patch("merge-patch", change))
    async with running(clusters=memory) as again:
        await again.edit(LARGE)
        assert again.state == ("Pending", digest(BEFORE), digest(LARGE))
        waiting = orjson.loads(again.status["data"]["pendingApproval"])
        assert (waiting["pods"], waiting["approveOver"]) == (3, 1)
        assert waiting["affected"] == [f"default/{name} ({A})" for name in PODS]


@in_virtual_time
async def test_a_standby_activates_what_the_leader_accepts() -> None:
    """It decides nothing itself, and reports that its edit waits for the leader."""
    async with running() as leader, running(leads=False, clusters=leader.memory) as standby:
        await standby.gate.decide(reading(LARGE))
        assert standby.reloads == []
        assert standby.gate.pending == (f"edit {digest(LARGE)[:12]}: waits until the leader accepts it",)
        await leader.edit(LARGE)
        await leader.annotate(digest(LARGE))
        assert standby.gate.accepted.text.sha256 == digest(LARGE)
        assert (len(standby.reloads), standby.gate.pending) == (1, ())


@in_virtual_time
async def test_a_new_leader_keeps_the_accepted_text_that_it_has_not_read() -> None:
    """Its own next edit is compared with that text, and waits."""
    async with running() as leader, running(leads=False, clusters=leader.memory) as standby:
        seen = text(b="node: {labels: {x: y}}")
        unseen = text(b="node: {labels: {x: z}}")
        await standby.gate.decide(reading(LARGE))
        for small in (seen, unseen):
            await leader.edit(small)
        assert standby.gate.accepted.text.sha256 == digest(unseen)
        standby.lead()
        await standby.report_edit()
        assert standby.state == ("Pending", digest(unseen), digest(LARGE))


@in_virtual_time
async def test_a_new_leader_compares_its_own_text_with_the_last_accepted_one() -> None:
    """Its text was accepted before, but another one since, so it is an edit that has to be decided again."""
    world = populated(BEFORE)
    async with running(LARGE, world=world) as leader, running(LARGE, leads=False, clusters=leader.memory) as standby:
        await standby.gate.decide(reading(LARGE))
        await leader.edit(BEFORE)
        assert leader.state == ("Accepted", digest(BEFORE), "")
        assert standby.gate.accepted.text.sha256 == digest(BEFORE)
        standby.lead()
        await standby.report_edit()
        assert standby.state == ("Pending", digest(BEFORE), digest(LARGE))
        assert standby.history == [digest(LARGE), digest(BEFORE)]


@in_virtual_time
@pytest.mark.parametrize("own", [LARGE, f"{LARGE}# never accepted\n"])
async def test_a_new_leader_does_not_write_the_history_before_it_is_listed(own: str) -> None:
    """It would otherwise add its own text after the active one."""
    async with running(LARGE, world=populated(BEFORE)) as leader:
        await leader.edit(BEFORE)
        memory = leader.memory
    with listed_late(memory) as fill:
        async with running(own, clusters=memory) as other:
            await asyncio.sleep(5.2)
            assert other.history == [digest(LARGE), digest(BEFORE)]
            fill()
            await asyncio.sleep(5)
            assert other.history == [digest(LARGE), digest(BEFORE)]
            assert other.gate.accepted.text.sha256 == digest(BEFORE)


@in_virtual_time
@pytest.mark.parametrize("reads", ["first", "last"])
async def test_a_new_leader_applies_the_limit_of_an_accepted_text_that_it_has_not_read(reads: str) -> None:
    """The next edit waits, whether the standby or the leader reads it first."""
    limited, drained = text(0), text(0, a=DRAIN)
    async with (
        running(text(None), world=populated(BEFORE)) as leader,
        running(text(None), leads=False, clusters=leader.memory) as standby,
    ):
        if reads == "first":
            await standby.gate.decide(reading(drained))
        await leader.edit(limited)
        await leader.edit(drained)
        if reads == "last":
            await standby.gate.decide(reading(drained))
        assert standby.gate.accepted.text.sha256 == digest(limited)
        standby.lead()
        await standby.report_edit()
        assert standby.state == ("Pending", digest(limited), digest(drained))


@in_virtual_time
async def test_a_text_that_changed_while_no_engine_ran_is_active_if_the_former_has_no_limit() -> None:
    """The engine starts on the present text and adds it to the history."""
    async with running(text(None), world=populated(BEFORE)) as engine:
        memory = engine.memory
    async with running(LARGE, clusters=memory) as again:
        await again.edit(LARGE, "7")
        assert (again.reloads, again.history) == ([], [digest(text(None)), digest(LARGE)])


@in_virtual_time
async def test_a_standby_with_an_invalid_text_activates_what_the_leader_accepts() -> None:
    """It still reports the error of its own text."""
    async with running() as leader, running(leads=False, clusters=leader.memory) as standby:
        error = TensileError("topo:1:1: wrong")
        await standby.gate.reject(TopologyUpdate(TopologyText(1, "bb", "9", "map-1"), error=error))
        small = text(a="node: {labels: {x: y}}")
        await leader.edit(small)
        assert standby.gate.accepted.text.sha256 == digest(small)
        assert standby.engine_status.verdict.rejected is not None


@in_virtual_time
async def test_a_standby_activates_what_the_leader_accepts_without_a_history() -> None:
    """It would otherwise return to the former topology as leader, and restart or move pods without an approval."""
    memory = clusters_with(anothers(history_ref(PLACE)))
    async with running(clusters=memory) as leader, running(leads=False, clusters=memory) as standby:
        await leader.edit(BEFORE, "7")
        await standby.gate.decide(reading(LARGE))
        await leader.edit(LARGE)
        assert standby.reloads == []
        await leader.annotate(digest(LARGE))
        assert [one.lowers[0].maintenance for one in standby.reloads] == ["drain"]
        standby.lead()
        await standby.report_edit()
        assert standby.state == ("Accepted", digest(LARGE), "")
        assert len(standby.reloads) == 1


@in_virtual_time
async def test_a_standby_ignores_a_status_that_is_older_than_the_history() -> None:
    """A leader ended between the two writes, so the text in the status is the former one."""
    memory = clusters_with()
    accepted = {"sha256": digest(LARGE), "time": "2025-01-01T00:00:00Z"}
    status = marked_manifest({"accepted": orjson.dumps(accepted).decode()}, status_ref(PLACE), OWNER, "map-1")
    memory.connections[UPPER].place(CONFIG_MAP, with_managed_fields(status))
    async with running(clusters=memory, leads=False) as standby:
        history = (AcceptedText(digest(BEFORE), "2026-03-01T12:00:00Z", BEFORE),)
        made = marked_manifest(data_of(history), history_ref(PLACE), OWNER, OWNER.upper)
        memory.connections[UPPER].place(CONFIG_MAP, with_managed_fields(made))
        await standby.gate.decide(reading(LARGE))
        assert (standby.reloads, standby.gate.accepted.text.sha256) == ([], digest(BEFORE))


@in_virtual_time
async def test_an_earlier_text_can_be_accepted_again() -> None:
    """The history then has that text twice, and its last entry is the active one."""
    async with running() as engine:
        small = text(b="node: {labels: {x: y}}")
        for content in (small, BEFORE, small):
            await engine.edit(content)
        assert engine.state == ("Accepted", digest(small), "")
        assert engine.history == [digest(one) for one in (BEFORE, small, BEFORE, small)]


@in_virtual_time
async def test_a_history_that_is_deleted_or_edited_is_restored() -> None:
    """It is written at once with the active text, because an engine that starts without it needs no approval."""
    async with running() as engine:
        engine.upper.vanish(history_ref(PLACE))
        await engine.report_edit()
        assert engine.history == [digest(BEFORE)]
        for change in ({"index": None}, {"index": "[]"}, {f"{digest(BEFORE)}.yaml": "lowers: []\n"}):
            found = engine.upper.find(CONFIG_MAP, PLACE.namespace, history_ref(PLACE).name) or {}
            body = {"metadata": {"uid": found["metadata"]["uid"]}, "data": change}
            await engine.upper.patch(history_ref(PLACE), Patch("merge-patch", body))
            await engine.report_edit()
            found = engine.upper.find(CONFIG_MAP, PLACE.namespace, history_ref(PLACE).name) or {}
            assert [one.content for one in entries(found, OWNER)] == [BEFORE]


@in_virtual_time
async def test_a_history_that_was_deleted_while_no_engine_ran_is_restored() -> None:
    """It has the active text, although another text waits."""
    async with running() as engine:
        await engine.edit(LARGE)
        memory = engine.memory
    engine.upper.vanish(history_ref(PLACE))
    async with running(clusters=memory) as again:
        await again.edit(LARGE)
        assert again.state == ("Pending", digest(BEFORE), digest(LARGE))
        assert again.history == [digest(BEFORE)]
