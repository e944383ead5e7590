"""What a virtual node says of itself: what it offers, whether it can be used, where it is reached, and since when."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from worldkit import NOW, A, lower_node, put, reload, thing, twin, upper_pod, world

from tensile.kube.cluster import Patch
from tensile.kubelet.node.status import (
    SILENT_AFTER,
    architecture,
    as_patch,
    differs,
    has_ready_node,
    is_reachable,
    moved,
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
    """Make a world where lower-a has these nodes, one Ready node if none are given."""
    here = world(f"name: {A}" + (f", {spec}" if spec else ""))
    put(here.lowers[A].nodes, *(nodes or (lower_node(),)))
    return here


def status(here: World, seen: Manifest | None = None) -> Manifest:
    """Return the status of lower-a's node, beside the Node as it was."""
    return node_status(seen or {}, here.lowers[A], here)


def standing(here: World) -> Manifest:
    """Return a Node with the status that it should have now."""
    return {**thing("Node", A, ""), "status": status(here)}


def conditions(found: Manifest) -> dict[str, Manifest]:
    """Return the conditions of a status by type."""
    return {one["type"]: one for one in found["conditions"]}


def said(here: World, kind: str, seen: Manifest | None = None) -> tuple[str, str, str]:
    """Return status, reason and message of a condition."""
    one = conditions(status(here, seen))[kind]
    return one["status"], one["reason"], one["message"]


def later(here: World, seconds: float) -> None:
    """Let time pass."""
    here.now = NOW + timedelta(seconds=seconds)


# What it offers.


def test_it_offers_what_is_free_below() -> None:
    """Allocatable of its nodes, less what pods of others request there; capacity says the same."""
    here = offering(lower_node("n1"), lower_node("n2", ready=False))
    put(here.lowers[A].foreign_pods, upper_pod("theirs", {"nodeName": "n1", "containers": REQUESTS}))
    found = status(here)
    assert found["allocatable"] == {"cpu": "3", "memory": "7Gi", "pods": "109"}
    assert found["capacity"] == found["allocatable"]


def test_our_own_pods_are_not_taken_off() -> None:
    """The upper scheduler counts them itself."""
    here = offering()
    put(here.lowers[A].pods, twin(upper_pod(spec={"containers": REQUESTS})))
    assert status(here)["allocatable"] == {"cpu": "4", "memory": "8Gi", "pods": "110"}


def test_the_topology_can_hold_back_and_limit() -> None:
    """And count what is allocatable instead of what is free."""
    here = offering(spec='capacity: {basis: allocatable, reserve: {cpu: "1"}, limit: {memory: 2Gi}}')
    put(here.lowers[A].foreign_pods, upper_pod("theirs", {"nodeName": "n1", "containers": REQUESTS}))
    assert status(here)["allocatable"] == {"cpu": "3", "memory": "2Gi", "pods": "110"}


@pytest.mark.parametrize("cache", ["nodes", "foreign_pods"])
def test_what_it_offers_stays_while_nobody_knows(cache: str) -> None:
    """A cluster that is read anew has not lost its nodes."""
    here = offering()
    seen = standing(here)
    put(here.lowers[A].nodes, lower_node(cpu="1"))
    getattr(here.lowers[A], cache).mark_stale()
    assert status(here, seen)["allocatable"]["cpu"] == "4"


def test_a_new_node_offers_nothing_until_something_is_known() -> None:
    """All three that every node has."""
    here = offering()
    here.lowers[A].nodes.mark_stale()
    assert status(here)["allocatable"] == {"cpu": "0", "memory": "0", "pods": "0"}


def test_features_are_those_of_every_node_below() -> None:
    """And stay as they were while the nodes are not known."""
    here = offering()
    for name, features in (("n1", ["B", "A"]), ("n2", ["A", "B", "C"])):
        node = lower_node(name)
        put(here.lowers[A].nodes, {**node, "status": {**node["status"], "declaredFeatures": features}})
    seen = standing(here)
    assert seen["status"]["declaredFeatures"] == ["A", "B"]
    restarted = offering()
    restarted.lowers[A].nodes.mark_stale()
    assert status(restarted, seen)["declaredFeatures"] == ["A", "B"]


# Where it is, and what it is.


def test_it_says_where_its_kubelet_api_is() -> None:
    """By address and port of its own."""
    here = offering()
    here.lowers[A].port = 12345
    found = status(here)
    assert found["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 12345}}
    assert found["addresses"] == [{"type": "InternalIP", "address": "10.0.0.1"}]


def test_it_says_the_port_that_is_listened_on() -> None:
    """None where none is, whatever the file gives it."""
    here = offering(spec="node: {kubeletPort: 12345}")
    for port, said in ((12399, 12399), (0, NOWHERE)):
        here.lowers[A].port = port
        assert status(here)["daemonEndpoints"] == {"kubeletEndpoint": {"Port": said}}
    here.lowers[A].port = 12345
    seen = {"status": status(here)}
    here.lowers[A].port = 12399
    assert status(here, seen)["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 12399}}
    assert needs_writing(here, seen)


@pytest.mark.parametrize("said", [12399, NOWHERE])
def test_who_serves_nothing_leaves_the_port_that_was_said(said: int) -> None:
    """`apply` beside an engine would send callers elsewhere; on a new Node it says none."""
    here = offering(spec="node: {kubeletPort: 12345}")
    assert status(here)["daemonEndpoints"] == {"kubeletEndpoint": {"Port": NOWHERE}}
    here.lowers[A].port = said
    seen = {"status": status(here)}
    here.lowers[A].port = None
    assert status(here, seen)["daemonEndpoints"] == {"kubeletEndpoint": {"Port": said}}


def test_features_that_the_upper_apiserver_drops_are_no_reason_to_write() -> None:
    """One of an older release does not know the field; each write would leave the same difference."""
    featured = lower_node("n1")
    featured["status"]["declaredFeatures"] = ["A"]
    here = offering(featured)
    seen = standing(here)
    assert seen["status"].pop("declaredFeatures") == ["A"]
    assert not needs_writing(here, seen)
    assert status(here, seen)["declaredFeatures"] == ["A"]


def test_without_an_address_it_says_only_its_name() -> None:
    """An empty one would be refused."""
    here = offering()
    here.node_address = ""
    assert status(here)["addresses"] == [{"type": "Hostname", "address": A}]


def test_its_version_is_the_lowers() -> None:
    """And what was said before until that is known."""
    here = offering()
    seen = standing(here)
    assert seen["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.3"
    here.lowers[A].version = ""
    assert status(here, seen)["nodeInfo"]["kubeletVersion"] == "v1.36.3"
    assert status(here)["nodeInfo"]["kubeletVersion"] == ""


def test_its_node_info_has_every_field_that_the_api_asks_for() -> None:
    """What the machines below say of themselves, and empty what is of one machine alone."""
    info = status(offering(running("n1", KERNEL)))["nodeInfo"]
    assert (info["operatingSystem"], info["architecture"]) == ("linux", "arm64")
    assert {name: info[name] for name in KERNEL} == KERNEL
    empty = {"machineID", "systemUUID", "bootID", "kubeProxyVersion"}
    assert {one for one, value in info.items() if not value} == empty


KERNEL = {"kernelVersion": "6.12.1", "osImage": "Linux", "containerRuntimeVersion": "containerd://2.1.0"}


def running(name: str, said: dict[str, str]) -> Manifest:
    """Make a lower node of architecture arm64 that says more of its machine."""
    node = lower_node(name, arch="arm64")
    return {**node, "status": {**node["status"], "nodeInfo": {**node["status"]["nodeInfo"], **said}}}


@pytest.mark.parametrize(
    ("kernels", "told"),
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
def test_machines_that_differ_are_told_together(kernels: list[str], told: str) -> None:
    """What most nodes run first, a few by name; while nothing is known of them, what was told before."""
    here = world()
    for place, kernel in enumerate(kernels):
        put(here.lowers[A].nodes, running(f"n{place}", {"kernelVersion": kernel}))
    seen = {"status": {"nodeInfo": {"kernelVersion": "before"}}}
    assert status(here, seen)["nodeInfo"]["kernelVersion"] == told


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
def test_its_architecture_is_that_of_most_nodes(below: list[str], otherwise: str, found: str) -> None:
    """Of two as many it is always the same one."""
    here = world()
    nodes = [lower_node(f"n{place}", arch=arch) for place, arch in enumerate(below)]
    if nodes:
        put(here.lowers[A].nodes, *nodes)
    assert architecture(here.lowers[A], otherwise) == found


# Whether it can be used.


def test_a_node_is_ready_as_long_as_the_engine_runs() -> None:
    """Whatever becomes of the lower cluster: NotReady would have its pods evicted."""
    here = offering(lower_node(ready=False))
    here.lowers[A].unreachable_seconds = 1e6
    assert said(here, "Ready") == ("True", "KubeletReady", "the engine is running")
    for pressure in ("MemoryPressure", "DiskPressure", "PIDPressure"):
        assert said(here, pressure)[0] == "False"


def test_a_healthy_lower_is_said_to_be_healthy() -> None:
    """Reachable, schedulable, in the topology, with nothing held back."""
    here = offering()
    assert said(here, LOWER_REACHABLE) == ("True", "ClusterReachable", "lower cluster lower-a answers")
    assert said(here, LOWER_SCHEDULABLE) == (
        "True",
        "NodesReady",
        "lower cluster lower-a has nodes that are ready and schedulable",
    )
    assert said(here, IN_TOPOLOGY) == ("True", "Declared", "lower cluster lower-a is in the topology")
    assert said(here, DELETIONS_BLOCKED) == ("False", "NoDeletionsBlocked", "the guard blocks no deletions")


PROBLEM = "lower cluster lower-a counts as reachable, with a problem"
ANSWERS, SILENT = ("True", "ClusterReachable"), ("False", "ClusterUnreachable")


@pytest.mark.parametrize(
    ("known", "verdict", "message"),
    [
        ({"unreachable_seconds": SILENT_AFTER}, ANSWERS, "lower cluster lower-a answers"),
        ({"unreachable_seconds": SILENT_AFTER + 0.1}, SILENT, "lower cluster lower-a does not answer"),
        (
            {"unreachable_seconds": SILENT_AFTER + 0.1, "silence": "connection refused"},
            SILENT,
            "lower cluster lower-a does not answer: connection refused",
        ),
        ({"unreachable_seconds": SILENT_AFTER + 0.1, "refusal": "k/0 cannot be read"}, SILENT, "k/0 cannot be read"),
        ({"refusal": "k/0:3:1: not valid YAML"}, ANSWERS, f"{PROBLEM}: k/0:3:1: not valid YAML"),
        ({"warning": "the Secret does not exist"}, ANSWERS, f"{PROBLEM}: the Secret does not exist"),
        ({"warning": "the Secret does not exist", "refusal": "refused"}, ANSWERS, f"{PROBLEM}: refused"),
        ({"is_wrong": True, "refusal": "another answers"}, ("False", "WrongCluster"), "another answers"),
        ({"is_wrong": True, "is_shared": True, "refusal": "as lower-b"}, ("False", "DuplicateCluster"), "as lower-b"),
        ({"is_excessive": True, "refusal": "more than 16 MiB"}, ("False", "ResponseTooLarge"), "more than 16 MiB"),
    ],
    ids=[
        "silent for no longer than a restart takes",
        "silent for longer",
        "silent, with the error of the connection",
        "silent, and why is known",
        "a stale credential that is still in use",
        "credentials that are no longer good, and still work",
        "what is refused comes first",
        "another cluster in its place",
        "a cluster that is a lower already",
        "it sends too much",
    ],
)
def test_whether_a_lower_can_be_used_is_said_with_the_reason(
    known: dict[str, Any], verdict: tuple[str, str], message: str
) -> None:
    """At once, and mended at once when nothing of it holds any more."""
    here = offering()
    for field, value in known.items():
        setattr(here.lowers[A], field, value)
    assert said(here, LOWER_REACHABLE) == (*verdict, message)
    for field, value in known.items():
        setattr(here.lowers[A], field, type(value)())
    assert said(here, LOWER_REACHABLE)[:2] == ANSWERS


def test_a_lower_that_was_not_reachable_has_to_answer_first() -> None:
    """Starting anew is no sign of life: the node does not take pods for ten seconds because of it."""
    here = offering()
    here.lowers[A].unreachable_seconds = 60.0
    seen = standing(here)
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


def test_an_unreachable_lower_has_nodes_in_an_unknown_state() -> None:
    """What was seen of them last may no longer be so."""
    here = offering()
    seen = standing(here)
    here.lowers[A].unreachable_seconds = 60.0
    assert said(here, LOWER_SCHEDULABLE, seen) == (
        "Unknown",
        "NodesUnknown",
        "the state of the nodes of lower-a is not known: see condition LowerReachable",
    )


def test_a_lower_without_a_ready_node_is_not_schedulable() -> None:
    """Nor one whose nodes are all cordoned."""
    for node in (lower_node(ready=False), lower_node(unschedulable=True)):
        assert said(offering(node), LOWER_SCHEDULABLE) == (
            "False",
            "NoReadyNodes",
            "lower cluster lower-a has no node that is ready and schedulable",
        )


def test_a_lower_that_does_not_let_us_know_takes_no_pods_and_says_why() -> None:
    """They would wait there for ever; what only a controller needs keeps nobody away."""
    here = offering()
    lower = here.lowers[A]
    lower.denied = "list Secret: denied"
    assert said(here, LOWER_SCHEDULABLE) == (
        "True",
        "NodesReady",
        "lower cluster lower-a has nodes that are ready and schedulable",
    )
    assert lower.denied in said(here, LOWER_REACHABLE)[2]
    lower.is_unproven = True
    assert said(here, LOWER_SCHEDULABLE) == ("False", "Forbidden", "list Secret: denied")
    lower.is_unproven = False
    lower.secrets.mark_stale()
    assert said(here, LOWER_SCHEDULABLE) == ("False", "Forbidden", "list Secret: denied")


def test_whether_a_node_is_ready_below_stays_said_while_nobody_knows() -> None:
    """A new node has none until one is seen."""
    here = offering()
    seen = standing(here)
    here.lowers[A].nodes.replace((), 9)
    here.lowers[A].nodes.mark_stale()
    assert has_ready_node(seen, here.lowers[A])
    assert not has_ready_node({}, here.lowers[A])


def test_a_lower_that_left_says_what_to_do() -> None:
    """The message names the way to empty it."""
    here = offering()
    reload(here, "name: lower-b")
    found = said(here, IN_TOPOLOGY)
    assert found[:2] == ("False", "Removed")
    assert "maintenance: drain" in found[2]


def test_deletions_that_are_held_back_are_said() -> None:
    """With the guard's own words."""
    here = offering()
    here.problems[Key("orphans", A, "", "")] = Problem("DeletionLimitExceeded", "21 deletions are held back")
    assert said(here, DELETIONS_BLOCKED) == ("True", "DeletionLimitExceeded", "21 deletions are held back")


# Since when.


def test_a_condition_keeps_the_time_of_its_last_turn() -> None:
    """Every write is a sign of life; only a turn is a turn."""
    here = offering()
    seen = standing(here)
    later(here, 60)
    ready = conditions(status(here, seen))["Ready"]
    assert (ready["lastHeartbeatTime"], ready["lastTransitionTime"]) == ("2026-03-01T12:01:00Z", "2026-03-01T12:00:00Z")
    here.lowers[A].unreachable_seconds = 60.0
    reachable = conditions(status(here, seen))[LOWER_REACHABLE]
    assert reachable["lastTransitionTime"] == "2026-03-01T12:01:00Z"


# Whether it has to be written.


def needs_writing(here: World, seen: Manifest) -> bool:
    """Report whether the status that it should have has to be written."""
    return differs(seen, status(here, seen), here.now, BEAT)


def test_a_status_that_is_as_it_should_be_is_not_written() -> None:
    """For five minutes less a second, as a kubelet does."""
    here = offering()
    seen = standing(here)
    for seconds, written in ((0, False), (298, False), (299, True), (1000, True)):
        later(here, seconds)
        assert needs_writing(here, seen) is written


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
def test_a_status_that_differs_is_written(change: Any) -> None:
    """Whatever others made of it, such as the controller that misses a heartbeat."""
    here = offering()
    seen = standing(here)
    change(seen["status"])
    assert needs_writing(here, seen)


def offer(node: Manifest, **amounts: str) -> Manifest:
    """Add to what a lower node offers."""
    status = node["status"]
    return {**node, "status": {**status, "allocatable": {**status["allocatable"], **amounts}}}


def as_written(here: World, seen: Manifest) -> Manifest:
    """Return the Node with the status that it should have written over that which it has."""
    patch = Patch("strategic-merge-patch", {"status": as_patch(seen, status(here, seen))})
    return patched(seen, patch)


def _lost_resource(here: World) -> None:
    put(here.lowers[A].nodes, offer(lower_node("large", unschedulable=True), **{GPU: "8"}))


def _lost_address(here: World) -> None:
    here.node_address = ""


def _lost_features(here: World) -> None:
    put(here.lowers[A].nodes, lower_node("n1"))


@pytest.mark.parametrize("change", [_lost_resource, _lost_address, _lost_features])
def test_what_is_lost_does_not_stay(change: Callable[[World], None]) -> None:
    """Maps, and addresses by their type, are merged: after one write nothing of it is left, and nothing to write."""
    featured = lower_node("n1")
    featured["status"]["declaredFeatures"] = ["A"]
    large = offer(lower_node("large"), **{GPU: "8"})
    large["status"]["declaredFeatures"] = ["A"]
    here = offering(featured, large)
    seen = standing(here)
    assert seen["status"]["capacity"][GPU] == "8"
    change(here)
    after = as_written(here, seen)
    assert not needs_writing(here, after)
    assert {field: after["status"].get(field) for field in OURS} == {
        field: value or None for field, value in status(here, seen).items() if field in OURS
    }


@pytest.mark.parametrize("field", OURS)
def test_what_others_add_to_what_is_ours_goes_with_one_write(field: str) -> None:
    """What the virtual node offers and is follows from what is below; it would be written again and again."""
    here = offering()
    seen = standing(here)
    extra: dict[str, Any] = {
        "addresses": [{"type": "ExternalIP", "address": "192.0.2.1"}],
        "declaredFeatures": ["X"],
        "nodeInfo": {"swap": {"capacity": 1}},
    }
    known = seen["status"][field]
    added = extra.get(field, {"example.com/dongle": "2"})
    seen["status"][field] = known + added if isinstance(known, list) else known | added
    assert needs_writing(here, seen)
    assert not needs_writing(here, as_written(here, seen))


def test_a_node_without_a_status_is_given_one_as_it_is() -> None:
    """There is nothing to replace: a directive would be taken for a resource."""
    here = offering()
    wanted = status(here)
    assert as_patch({}, wanted) == {**wanted, "declaredFeatures": None}


def test_conditions_of_others_are_no_difference_and_outlast_a_write() -> None:
    """They merge by their type."""
    here = offering()
    seen = standing(here)
    theirs = {"type": "KernelDeadlock", "status": "False"}
    seen["status"]["conditions"].append(theirs)
    assert not needs_writing(here, seen)
    later(here, 300)
    assert theirs in as_written(here, seen)["status"]["conditions"]


def test_what_the_api_leaves_out_is_no_difference() -> None:
    """An empty list is dropped when it is stored."""
    here = offering()
    seen = standing(here)
    assert seen["status"].pop("declaredFeatures") == []
    assert not needs_writing(here, seen)


@pytest.mark.parametrize("times", [{}, {"lastHeartbeatTime": None, "lastTransitionTime": None}])
def test_a_condition_without_its_times_gets_them(times: dict[str, None]) -> None:
    """Somebody wrote one of ours by hand; the node must not cease to be kept for it."""
    here = offering()
    seen = standing(here)
    ready = conditions(seen["status"])["Ready"]
    for field in ("lastHeartbeatTime", "lastTransitionTime"):
        del ready[field]
    ready.update(times)
    later(here, 60)
    found = conditions(status(here, seen))["Ready"]
    assert (found["lastHeartbeatTime"], found["lastTransitionTime"]) == ("2026-03-01T12:01:00Z",) * 2
    assert needs_writing(here, seen)


# Whether a person wants to see it.


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
def test_capacity_counts_when_it_moved_by_more_than_a_twentieth(
    before: dict[str, str],
    after: dict[str, str],
    shown: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Of any resource; what is new or gone did."""
    assert moved({"status": {"allocatable": before}}, {"allocatable": after}) is shown


def test_a_node_without_a_status_moved() -> None:
    """It offered nothing before."""
    assert moved({}, {"allocatable": {"cpu": "1"}})
