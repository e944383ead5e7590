"""Tests of a virtual node's status: its capacity, conditions, addresses, port, and transition times."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from worldkit import (
    NOW,
    A,
    apply_topology,
    make_lower_node,
    make_lower_pod,
    make_object,
    make_upper_pod,
    make_world,
    put,
)

from tensile.kube.cluster import Patch
from tensile.kubelet.node.status import (
    SILENT_AFTER,
    architecture,
    as_patch,
    capacity_changed,
    differs,
    has_ready_node,
    is_reachable,
    node_status,
)
from tensile.names import DELETIONS_BLOCKED, IN_TOPOLOGY, LOWER_REACHABLE, LOWER_SCHEDULABLE, NOWHERE
from tensile.objects import Manifest
from tensile.reconcile.dryrun.patch import patched
from tensile.reconcile.world import Key, Problem, World

BEAT = 300.0
GPU = "nvidia.com/gpu"
OURS = ("capacity", "allocatable", "addresses", "daemonEndpoints", "nodeInfo", "declaredFeatures")
REQUESTS = [{"name": "main", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]


def offering(*nodes: Manifest, spec: str = "") -> World:
    """Return a world whose lower-a has these nodes, or one Ready node if none are given."""
    world = make_world(f"name: {A}" + (f", {spec}" if spec else ""))
    put(world.lowers[A].nodes, *(nodes or (make_lower_node(),)))
    return world


def status(world: World, seen: Manifest | None = None) -> Manifest:
    """Return the status of lower-a's node, computed from the Node as observed."""
    return node_status(seen or {}, world.lowers[A], world)


def node_with_status(world: World) -> Manifest:
    """Return a Node with the status that it should have now."""
    return {**make_object("Node", A, ""), "status": status(world)}


def conditions(found: Manifest) -> dict[str, Manifest]:
    """Return the conditions of a status by type."""
    return {one["type"]: one for one in found["conditions"]}


def condition_fields(world: World, kind: str, seen: Manifest | None = None) -> tuple[str, str, str]:
    """Return status, reason and message of a condition."""
    one = conditions(status(world, seen))[kind]
    return one["status"], one["reason"], one["message"]


def later(world: World, seconds: float) -> None:
    """Set the time to some seconds later."""
    world.now = NOW + timedelta(seconds=seconds)


# Capacity.


def test_a_node_offers_the_free_capacity_of_its_lower() -> None:
    """It is the allocatable of usable lower nodes less the requests of other pods; capacity is the same."""
    world = offering(make_lower_node("n1"), make_lower_node("n2", ready=False))
    put(world.lowers[A].foreign_pods, make_upper_pod("theirs", {"nodeName": "n1", "containers": REQUESTS}))
    found = status(world)
    assert found["allocatable"] == {"cpu": "3", "memory": "7Gi", "pods": "109"}
    assert found["capacity"] == found["allocatable"]


def test_mirrored_pods_are_not_subtracted() -> None:
    """The upper scheduler subtracts their requests itself."""
    world = offering()
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod(spec={"containers": REQUESTS})))
    assert status(world)["allocatable"] == {"cpu": "4", "memory": "8Gi", "pods": "110"}


def test_the_topology_can_reserve_limit_and_use_allocatable() -> None:
    """The basis can be what is allocatable instead of what is free."""
    world = offering(spec='capacity: {basis: allocatable, reserve: {cpu: "1"}, limit: {memory: 2Gi}}')
    put(world.lowers[A].foreign_pods, make_upper_pod("theirs", {"nodeName": "n1", "containers": REQUESTS}))
    assert status(world)["allocatable"] == {"cpu": "3", "memory": "2Gi", "pods": "110"}


@pytest.mark.parametrize("cache", ["nodes", "foreign_pods"])
def test_the_capacity_is_kept_while_caches_are_not_synced(cache: str) -> None:
    """A cluster that is listed again has not lost its nodes."""
    world = offering()
    seen = node_with_status(world)
    put(world.lowers[A].nodes, make_lower_node(cpu="1"))
    getattr(world.lowers[A], cache).mark_stale()
    assert status(world, seen)["allocatable"]["cpu"] == "4"


def test_a_new_node_offers_zero_until_the_lower_is_known() -> None:
    """The three basic resources are present."""
    world = offering()
    world.lowers[A].nodes.mark_stale()
    assert status(world)["allocatable"] == {"cpu": "0", "memory": "0", "pods": "0"}


def test_declared_features_are_those_of_all_lower_nodes() -> None:
    """They are kept while the lower nodes are not known."""
    world = offering()
    for name, features in (("n1", ["B", "A"]), ("n2", ["A", "B", "C"])):
        node = make_lower_node(name)
        put(world.lowers[A].nodes, {**node, "status": {**node["status"], "declaredFeatures": features}})
    seen = node_with_status(world)
    assert seen["status"]["declaredFeatures"] == ["A", "B"]
    restarted = offering()
    restarted.lowers[A].nodes.mark_stale()
    assert status(restarted, seen)["declaredFeatures"] == ["A", "B"]


# Addresses, port and node info.


def test_the_status_contains_the_address_and_port_of_the_kubelet_api() -> None:
    """Each node has its own port at the engine's address."""
    world = offering()
    world.lowers[A].port = 12345
    found = status(world)
    assert found["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 12345}}
    assert found["addresses"] == [{"type": "InternalIP", "address": "10.0.0.1"}]


def test_the_status_contains_the_port_that_is_listened_on() -> None:
    """If no port is open, the configured port is not published either."""
    world = offering(spec="node: {kubeletPort: 12345}")
    for port, published in ((12399, 12399), (0, NOWHERE)):
        world.lowers[A].port = port
        assert status(world)["daemonEndpoints"] == {"kubeletEndpoint": {"Port": published}}
    world.lowers[A].port = 12345
    seen = {"status": status(world)}
    world.lowers[A].port = 12399
    assert status(world, seen)["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 12399}}
    assert needs_writing(world, seen)


@pytest.mark.parametrize("published", [12399, NOWHERE])
def test_a_program_that_serves_no_ports_keeps_the_published_port(published: int) -> None:
    """`tensile apply` beside an engine must not redirect callers; a new Node gets no port."""
    world = offering(spec="node: {kubeletPort: 12345}")
    assert status(world)["daemonEndpoints"] == {"kubeletEndpoint": {"Port": NOWHERE}}
    world.lowers[A].port = published
    seen = {"status": status(world)}
    world.lowers[A].port = None
    assert status(world, seen)["daemonEndpoints"] == {"kubeletEndpoint": {"Port": published}}


def test_features_dropped_by_an_older_upper_apiserver_cause_no_write() -> None:
    """An older release does not know the field, so each write would leave the same difference."""
    featured = make_lower_node("n1")
    featured["status"]["declaredFeatures"] = ["A"]
    world = offering(featured)
    seen = node_with_status(world)
    assert seen["status"].pop("declaredFeatures") == ["A"]
    assert not needs_writing(world, seen)
    assert status(world, seen)["declaredFeatures"] == ["A"]


def test_a_node_without_an_address_has_only_its_hostname() -> None:
    """The API rejects an empty address."""
    world = offering()
    world.node_address = ""
    assert status(world)["addresses"] == [{"type": "Hostname", "address": A}]


def test_the_kubelet_version_is_the_lowers_version() -> None:
    """The former version is kept until the lower's version is known."""
    world = offering()
    seen = node_with_status(world)
    assert seen["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.3"
    world.lowers[A].version = ""
    assert status(world, seen)["nodeInfo"]["kubeletVersion"] == "v1.36.3"
    assert status(world)["nodeInfo"]["kubeletVersion"] == ""


def test_node_info_has_every_field_that_the_api_requires() -> None:
    """The fields describe the lower nodes; those that identify a single machine are empty."""
    info = status(offering(running("n1", KERNEL)))["nodeInfo"]
    assert (info["operatingSystem"], info["architecture"]) == ("linux", "arm64")
    assert {name: info[name] for name in KERNEL} == KERNEL
    empty = {"machineID", "systemUUID", "bootID", "kubeProxyVersion"}
    assert {one for one, value in info.items() if not value} == empty


KERNEL = {"kernelVersion": "6.12.1", "osImage": "Linux", "containerRuntimeVersion": "containerd://2.1.0"}


def running(name: str, node_info: dict[str, str]) -> Manifest:
    """Return a lower node of architecture arm64 with more node info."""
    node = make_lower_node(name, arch="arm64")
    return {**node, "status": {**node["status"], "nodeInfo": {**node["status"]["nodeInfo"], **node_info}}}


@pytest.mark.parametrize(
    ("kernels", "listed"),
    [
        (["5.1", "5.1"], "5.1"),
        (["5.2", "5.1", "5.2"], "5.2, 5.1"),
        (["5.2", "5.1"], "5.1, 5.2"),
        (["5.1", ""], "5.1"),
        (["5.1", "5.2", "5.3", "5.4", "5.5", "5.5"], "5.5, 5.1, 5.2 and 2 more"),
        ([""], "before"),
        ([], "before"),
    ],
)
def test_different_kernels_of_lower_nodes_are_listed_together(kernels: list[str], listed: str) -> None:
    """The most frequent is first and a few are named; while none is known, the former value is kept."""
    world = make_world()
    for place, kernel in enumerate(kernels):
        put(world.lowers[A].nodes, running(f"n{place}", {"kernelVersion": kernel}))
    seen = {"status": {"nodeInfo": {"kernelVersion": "before"}}}
    assert status(world, seen)["nodeInfo"]["kernelVersion"] == listed


@pytest.mark.parametrize(
    ("below", "otherwise", "found"),
    [
        (["arm64", "amd64", "arm64"], "", "arm64"),
        (["arm64", "amd64"], "", "amd64"),
        (["amd64", "arm64"], "", "amd64"),
        ([""], "s390x", "s390x"),
        ([], "s390x", "s390x"),
        ([], "", "amd64"),
    ],
)
def test_the_architecture_is_that_of_most_lower_nodes(below: list[str], otherwise: str, found: str) -> None:
    """A tie always has the same result."""
    world = make_world()
    nodes = [make_lower_node(f"n{place}", arch=arch) for place, arch in enumerate(below)]
    if nodes:
        put(world.lowers[A].nodes, *nodes)
    assert architecture(world.lowers[A], otherwise) == found


# Conditions.


def test_a_node_is_ready_while_the_engine_runs() -> None:
    """NotReady would evict the node's pods, so the state of the lower cluster does not matter."""
    world = offering(make_lower_node(ready=False))
    world.lowers[A].unreachable_seconds = 1e6
    assert condition_fields(world, "Ready") == ("True", "KubeletReady", "the engine is running")
    for pressure in ("MemoryPressure", "DiskPressure", "PIDPressure"):
        assert condition_fields(world, pressure)[0] == "False"


def test_a_healthy_lower_has_healthy_conditions() -> None:
    """It is reachable, schedulable, in the topology, and has no blocked deletions."""
    world = offering()
    assert condition_fields(world, LOWER_REACHABLE) == ("True", "ClusterReachable", "lower cluster lower-a answers")
    assert condition_fields(world, LOWER_SCHEDULABLE) == (
        "True",
        "NodesReady",
        "lower cluster lower-a has nodes that are ready and schedulable",
    )
    assert condition_fields(world, IN_TOPOLOGY) == ("True", "Declared", "lower cluster lower-a is in the topology")
    assert condition_fields(world, DELETIONS_BLOCKED) == (
        "False",
        "NoDeletionsBlocked",
        "the guard blocks no deletions",
    )


PROBLEM = "lower cluster lower-a counts as reachable, with a problem"
ANSWERS, SILENT = ("True", "ClusterReachable"), ("False", "ClusterUnreachable")


@pytest.mark.parametrize(
    ("known", "verdict", "message"),
    [
        ({"unreachable_seconds": SILENT_AFTER}, ANSWERS, "lower cluster lower-a answers"),
        ({"unreachable_seconds": SILENT_AFTER + 0.1}, SILENT, "lower cluster lower-a does not answer"),
        (
            {"unreachable_seconds": SILENT_AFTER + 0.1, "outage_error": "connection refused"},
            SILENT,
            "lower cluster lower-a does not answer: connection refused",
        ),
        (
            {"unreachable_seconds": SILENT_AFTER + 0.1, "access_error": "k/0 cannot be read"},
            SILENT,
            "k/0 cannot be read",
        ),
        ({"access_error": "k/0:3:1: not valid YAML"}, ANSWERS, f"{PROBLEM}: k/0:3:1: not valid YAML"),
        ({"warning": "the Secret does not exist"}, ANSWERS, f"{PROBLEM}: the Secret does not exist"),
        ({"warning": "the Secret does not exist", "access_error": "refused"}, ANSWERS, f"{PROBLEM}: refused"),
        ({"is_wrong": True, "access_error": "another answers"}, ("False", "WrongCluster"), "another answers"),
        (
            {"is_wrong": True, "is_shared": True, "access_error": "as lower-b"},
            ("False", "DuplicateCluster"),
            "as lower-b",
        ),
        ({"is_excessive": True, "access_error": "more than 16 MiB"}, ("False", "ResponseTooLarge"), "more than 16 MiB"),
    ],
    ids=[
        "unreachable for no longer than a restart",
        "unreachable for longer",
        "unreachable, with the error of the connection",
        "unreachable, with a known reason",
        "a stale credential that is still in use",
        "an invalid credential that still works",
        "the refusal before the warning",
        "another cluster at its address",
        "a cluster that is a lower already",
        "too large a response",
    ],
)
def test_condition_lower_reachable_contains_the_reason(
    known: dict[str, Any], verdict: tuple[str, str], message: str
) -> None:
    """It changes immediately, and is reset when the problem has ended."""
    world = offering()
    for field, value in known.items():
        setattr(world.lowers[A], field, value)
    assert condition_fields(world, LOWER_REACHABLE) == (*verdict, message)
    for field, value in known.items():
        setattr(world.lowers[A], field, type(value)())
    assert condition_fields(world, LOWER_REACHABLE)[:2] == ANSWERS


def test_a_lower_reported_unreachable_must_answer_before_it_is_reachable() -> None:
    """A restart of the engine alone must not make the node accept pods for ten seconds."""
    world = offering()
    world.lowers[A].unreachable_seconds = 60.0
    seen = node_with_status(world)
    restarted = offering()
    lower = restarted.lowers[A]
    lower.nodes.mark_stale()
    assert not is_reachable(seen, lower)
    lower.unreachable_seconds = 5.0
    lower.nodes.replace((), 5)
    assert not is_reachable(seen, lower)
    lower.unreachable_seconds = 0.0
    assert is_reachable(seen, lower)
    assert is_reachable({}, lower)


def test_an_unreachable_lower_has_an_unknown_schedulable_condition() -> None:
    """The last observed state of its nodes may have changed."""
    world = offering()
    seen = node_with_status(world)
    world.lowers[A].unreachable_seconds = 60.0
    assert condition_fields(world, LOWER_SCHEDULABLE, seen) == (
        "Unknown",
        "NodesUnknown",
        "the state of the nodes of lower-a is not known: see condition LowerReachable",
    )


def test_a_lower_without_a_ready_and_schedulable_node_is_not_schedulable() -> None:
    """A lower whose nodes are all cordoned is not schedulable either."""
    for node in (make_lower_node(ready=False), make_lower_node(unschedulable=True)):
        assert condition_fields(offering(node), LOWER_SCHEDULABLE) == (
            "False",
            "NoReadyNodes",
            "lower cluster lower-a has no node that is ready and schedulable",
        )


def test_a_lower_that_denies_a_right_needed_for_pods_is_not_schedulable() -> None:
    """Its pods would be Pending indefinitely; a right that only a controller needs does not matter."""
    world = offering()
    lower = world.lowers[A]
    lower.denied = "list Secret: denied"
    assert condition_fields(world, LOWER_SCHEDULABLE) == (
        "True",
        "NodesReady",
        "lower cluster lower-a has nodes that are ready and schedulable",
    )
    assert lower.denied in condition_fields(world, LOWER_REACHABLE)[2]
    lower.is_unproven = True
    assert condition_fields(world, LOWER_SCHEDULABLE) == ("False", "Forbidden", "list Secret: denied")
    lower.is_unproven = False
    lower.secrets.mark_stale()
    assert condition_fields(world, LOWER_SCHEDULABLE) == ("False", "Forbidden", "list Secret: denied")


def test_the_schedulable_state_is_kept_while_the_nodes_are_not_synced() -> None:
    """A new node has no ready lower node until one is observed."""
    world = offering()
    seen = node_with_status(world)
    world.lowers[A].nodes.replace((), 9)
    world.lowers[A].nodes.mark_stale()
    assert has_ready_node(seen, world.lowers[A])
    assert not has_ready_node({}, world.lowers[A])


def test_a_removed_lower_has_a_condition_with_the_remedy() -> None:
    """The message names the maintenance mode that drains the node."""
    world = offering()
    apply_topology(world, "name: lower-b")
    found = condition_fields(world, IN_TOPOLOGY)
    assert found[:2] == ("False", "Removed")
    assert "maintenance: drain" in found[2]


def test_blocked_deletions_are_reported_in_a_condition() -> None:
    """Reason and message are the guard's own."""
    world = offering()
    world.problems[Key("orphans", A, "", "")] = Problem("DeletionLimitExceeded", "21 deletions are held back")
    assert condition_fields(world, DELETIONS_BLOCKED) == ("True", "DeletionLimitExceeded", "21 deletions are held back")


# Transition times.


def test_a_condition_keeps_its_transition_time_until_its_status_changes() -> None:
    """Every write updates only the heartbeat time."""
    world = offering()
    seen = node_with_status(world)
    later(world, 60)
    ready = conditions(status(world, seen))["Ready"]
    assert (ready["lastHeartbeatTime"], ready["lastTransitionTime"]) == ("2026-03-01T12:01:00Z", "2026-03-01T12:00:00Z")
    world.lowers[A].unreachable_seconds = 60.0
    reachable = conditions(status(world, seen))[LOWER_REACHABLE]
    assert reachable["lastTransitionTime"] == "2026-03-01T12:01:00Z"


# Whether the status has to be written.


def needs_writing(world: World, seen: Manifest) -> bool:
    """Report whether the desired status has to be written."""
    return differs(seen, status(world, seen), world.now, BEAT)


def test_an_unchanged_status_is_written_again_after_the_heartbeat_interval() -> None:
    """The interval is five minutes less a second, as in a kubelet."""
    world = offering()
    seen = node_with_status(world)
    for seconds, written in ((0, False), (298, False), (299, True), (1000, True)):
        later(world, seconds)
        assert needs_writing(world, seen) is written


def _without(field: str) -> Any:
    return lambda found: found.pop(field)


def _condition(**fields: str) -> Any:
    return lambda found: found["conditions"][0].update(fields)


@pytest.mark.parametrize(
    "change",
    [
        _without("allocatable"),
        _without("addresses"),
        _without("nodeInfo"),
        _without("daemonEndpoints"),
        _without("conditions"),
        _condition(status="Unknown"),
        _condition(reason="NodeStatusUnknown"),
        _condition(message="Kubelet stopped posting node status."),
        lambda found: found["conditions"].pop(),
        lambda found: found["allocatable"].update(cpu="5"),
        lambda found: found.update(declaredFeatures=["X"]),
    ],
)
def test_a_status_changed_by_another_writer_is_written(change: Any) -> None:
    """The node controller may have set Unknown after a missed heartbeat."""
    world = offering()
    seen = node_with_status(world)
    change(seen["status"])
    assert needs_writing(world, seen)


def offer(node: Manifest, **amounts: str) -> Manifest:
    """Return a lower node with more allocatable resources."""
    status = node["status"]
    return {**node, "status": {**status, "allocatable": {**status["allocatable"], **amounts}}}


def as_written(world: World, seen: Manifest) -> Manifest:
    """Return the Node after its desired status was written over the observed one."""
    patch = Patch("strategic-merge-patch", {"status": as_patch(seen, status(world, seen))})
    return patched(seen, patch)


def _lost_resource(world: World) -> None:
    put(world.lowers[A].nodes, offer(make_lower_node("large", unschedulable=True), **{GPU: "8"}))


def _lost_address(world: World) -> None:
    world.node_address = ""


def _lost_features(world: World) -> None:
    put(world.lowers[A].nodes, make_lower_node("n1"))


@pytest.mark.parametrize("change", [_lost_resource, _lost_address, _lost_features])
def test_a_lost_resource_address_or_feature_is_removed_by_one_write(change: Callable[[World], None]) -> None:
    """The API merges maps and addresses, so entries must be removed explicitly."""
    featured = make_lower_node("n1")
    featured["status"]["declaredFeatures"] = ["A"]
    large = offer(make_lower_node("large"), **{GPU: "8"})
    large["status"]["declaredFeatures"] = ["A"]
    world = offering(featured, large)
    seen = node_with_status(world)
    assert seen["status"]["capacity"][GPU] == "8"
    change(world)
    after = as_written(world, seen)
    assert not needs_writing(world, after)
    assert {field: after["status"].get(field) for field in OURS} == {
        field: value or None for field, value in status(world, seen).items() if field in OURS
    }


@pytest.mark.parametrize("field", OURS)
def test_additions_of_other_writers_to_owned_fields_are_removed_by_one_write(field: str) -> None:
    """These fields follow from the lower cluster; a plain merge would be written again and again."""
    world = offering()
    seen = node_with_status(world)
    extra: dict[str, Any] = {
        "addresses": [{"type": "ExternalIP", "address": "192.0.2.1"}],
        "declaredFeatures": ["X"],
        "nodeInfo": {"swap": {"capacity": 1}},
    }
    known = seen["status"][field]
    added = extra.get(field, {"example.com/dongle": "2"})
    seen["status"][field] = known + added if isinstance(known, list) else known | added
    assert needs_writing(world, seen)
    assert not needs_writing(world, as_written(world, seen))


def test_the_status_of_a_node_without_one_is_sent_unchanged() -> None:
    """There is nothing to replace, and a directive would be parsed as a resource."""
    world = offering()
    wanted = status(world)
    assert as_patch({}, wanted) == {**wanted, "declaredFeatures": None}


def test_conditions_of_other_writers_are_kept_and_cause_no_write() -> None:
    """Conditions are merged by type."""
    world = offering()
    seen = node_with_status(world)
    theirs = {"type": "KernelDeadlock", "status": "False"}
    seen["status"]["conditions"].append(theirs)
    assert not needs_writing(world, seen)
    later(world, 300)
    assert theirs in as_written(world, seen)["status"]["conditions"]


def test_an_empty_list_that_the_api_drops_is_no_difference() -> None:
    """The API does not store an empty list of features."""
    world = offering()
    seen = node_with_status(world)
    assert seen["status"].pop("declaredFeatures") == []
    assert not needs_writing(world, seen)


@pytest.mark.parametrize("times", [{}, {"lastHeartbeatTime": None, "lastTransitionTime": None}])
def test_a_condition_without_times_gets_them(times: dict[str, None]) -> None:
    """Another client may have written the condition by hand, and the node must still be maintained."""
    world = offering()
    seen = node_with_status(world)
    ready = conditions(seen["status"])["Ready"]
    for field in ("lastHeartbeatTime", "lastTransitionTime"):
        del ready[field]
    ready.update(times)
    later(world, 60)
    found = conditions(status(world, seen))["Ready"]
    assert (found["lastHeartbeatTime"], found["lastTransitionTime"]) == ("2026-03-01T12:01:00Z",) * 2
    assert needs_writing(world, seen)


# Whether a plan shows the change.


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ({"cpu": "100"}, {"cpu": "100"}, False),
        ({"cpu": "100"}, {"cpu": "105"}, False),
        ({"cpu": "100"}, {"cpu": "106"}, True),
        ({"cpu": "100"}, {"cpu": "95"}, False),
        ({"cpu": "100"}, {"cpu": "94"}, True),
        ({"cpu": "100"}, {"cpu": "100", "nvidia.com/gpu": "1"}, True),
        ({"cpu": "100", "nvidia.com/gpu": "1"}, {"cpu": "100"}, True),
        ({"cpu": "0"}, {"cpu": "1m"}, True),
        ({"cpu": "0"}, {"cpu": "0"}, False),
        ({"cpu": "1"}, {"cpu": "1000m"}, False),
    ],
)
def test_a_capacity_change_of_more_than_five_percent_is_shown(
    before: dict[str, str],
    after: dict[str, str],
    shown: bool,  # noqa: FBT001 - a parameter
) -> None:
    """A change of any resource counts, and so does one that appears or disappears."""
    assert capacity_changed({"status": {"allocatable": before}}, {"allocatable": after}) is shown


def test_a_node_without_a_status_has_a_shown_change() -> None:
    """It offered nothing before."""
    assert capacity_changed({}, {"allocatable": {"cpu": "1"}})
