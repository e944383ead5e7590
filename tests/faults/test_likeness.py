"""Tests that a dry run responds to random requests as a real apiserver does, and that a difference is reported."""

from collections import Counter
from datetime import UTC, datetime

import orjson
import pytest

from bench.conformance.dryrun.comparison import Pair, Recorder, Side, difference
from bench.conformance.dryrun.request_generator import OWN, STRANGER, KnownObjects, Request, RequestGenerator, filled
from bench.conformance.dryrun.trial import LAST, different_events, prepared, trial
from tensile.errors import Conflict
from tensile.kube.client import HttpCluster
from tensile.kube.credentials import from_kubeconfig
from tensile.objects import CONFIG_MAP, NODE, POD, SERVICE_ACCOUNT, UPPER, Kind, Manifest
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.sandbox.sandbox import Sandbox

TRIALS, REQUESTS = 8, 50
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.real
async def test_a_dry_run_cluster_responds_as_a_real_cluster(sandbox: Sandbox) -> None:
    """Objects, errors, UIDs, versions and events are equal; `python -m bench.conformance.dryrun` sends more."""
    cluster = HttpCluster(UPPER, await from_kubeconfig(sandbox.directory / "upper.kubeconfig"))
    try:
        results = [await trial(cluster, seed, REQUESTS) for seed in range(1, TRIALS + 1)]
    finally:
        await cluster.close()
    assert [description for one in results for description in one.differences] == []
    assert sum(one.events for one in results) > TRIALS * REQUESTS / 2


def rehearsal(*, ends_pods: bool = False) -> DryRunCluster:
    """Return a cluster in memory."""
    return DryRunCluster(UPPER, ends_pods=ends_pods, now=lambda: NOW)


async def test_different_behavior_is_reported() -> None:
    """Of two clusters in memory one ends pods by itself, and only requests for pods differ."""
    patient, hasty = rehearsal(), rehearsal(ends_pods=True)
    sides = Side(patient, "alike", "alike"), Side(hasty, "alike", "alike")
    async with prepared(sides[0]), prepared(sides[1]):
        stock = KnownObjects(lambda *place: patient.find(*sides[0].ref(*place)[1:]))
        pair, asking = Pair(*sides, stock), RequestGenerator(1, stock)
        answers = [(request, await pair.send(request)) for _ in range(200) for request in asking.next()]
    unlike_ones = [request for request, description in answers if description]
    assert unlike_ones[0].verb == "delete"
    assert {request.kind for request in unlike_ones} == {POD}


async def test_random_requests_have_every_form() -> None:
    """They have all verbs, media types and results of preconditions, and the same seed gives the same requests."""
    first, again = [await send_requests(7) for _ in range(2)]
    assert first == again
    assert first != await send_requests(8)
    sorts = Counter((request.verb, request.kind.name) for request, _ in first)
    kinds = ("ConfigMap", "Secret", "Pod", "ServiceAccount", "Lease", "Event", "Node", "Namespace")
    assert {(verb, kind) for verb in ("create", "read", "patch", "delete") for kind in kinds} <= sorts.keys()
    media = {request.media for request, _ in first}
    assert media == {"", "json-patch", "merge-patch", "strategic-merge-patch"}
    ends = Counter(end for _, end in first)
    assert {"ok", "NotFound", "AlreadyExists", "Conflict", "Denied"} == ends.keys()
    assert ends["ok"] > len(first) / 3


async def send_requests(seed: int) -> list[tuple[Request, str]]:
    """Send requests to a cluster in memory, and return each with "ok" or the name of its error."""
    cluster = rehearsal()
    side = Side(cluster, "alike", "alike")
    stock = KnownObjects(lambda *place: cluster.find(*side.ref(*place)[1:]))
    pair, asking = Pair(side, Side(rehearsal(), "alike", "alike"), stock), RequestGenerator(seed, stock)
    found = []
    async with prepared(pair.sides[0]), prepared(pair.sides[1]):
        for request in (request for _ in range(600) for request in asking.next()):
            assert await pair.send(request) == ""
            found.append((request, str(pair.last.get("error", "ok"))))
    return found


def test_the_placeholders_in_a_request_are_replaced_by_each_sides_values() -> None:
    """UIDs and versions are replaced in keys and values, and all other text stays."""
    body = {"metadata": {"uid": "@uid:1@", "resourceVersion": "@version:0@"}, "data": {"k": "@uid", "@uid:0@": 1}}
    expected = {"metadata": {"uid": "u1", "resourceVersion": "7"}, "data": {"k": "@uid", "u0": 1}}
    assert filled(body, ["u0", "u1"], ["7"]) == expected
    assert filled(STRANGER, [], []) == STRANGER


def test_defaults_of_the_apiserver_are_no_difference() -> None:
    """Fields that only the real spec has are ignored; missing or different ones are reported."""
    rehearsed = {"spec": {"containers": [{"name": "c"}]}, "uid": 3}
    assert difference(rehearsed, {"spec": {"containers": [{"name": "c", "pull": "x"}], "dns": "y"}, "uid": 3}) == ""
    assert difference(rehearsed, {"spec": {"containers": [{"name": "d"}]}, "uid": 3}).startswith("spec: rehearsed")
    assert difference(rehearsed, {"spec": {"containers": [{"name": "c"}] * 2}, "uid": 3}).startswith("spec: rehearsed")
    assert difference(rehearsed, {"spec": {}, "uid": 3}).startswith("spec: rehearsed")


def test_fields_that_decisions_use_are_compared_completely() -> None:
    """An additional label, deletion, cause or value is a difference."""
    for field, value in (("labels", {"l": "1"}), ("ends", True), ("why", ["Invalid"]), ("data", {"k": "v"})):
        assert difference({"spec": {}}, {"spec": {}, field: value}) == f"{field}: rehearsed None, really {value!r}"
    assert difference({"uid": 3, "moved": "yes"}, {"uid": 4, "moved": "no"}) == (
        "moved: rehearsed 'yes', really 'no'; uid: rehearsed 3, really 4"
    )


def stored(name: str, version: int, kind: Kind = CONFIG_MAP, **more: object) -> Manifest:
    """Return an object as it is stored."""
    meta = {"name": name, "namespace": "alike", "uid": f"uid-{name}", "resourceVersion": str(version), **more}
    return {"apiVersion": kind.api, "kind": kind.name, "metadata": meta}


def test_a_response_is_normalized_for_the_comparison() -> None:
    """UIDs become numbers, versions their direction of change, and an error keeps what decisions use."""
    side = Side(rehearsal(), "alike", "alike")
    side.take(stored("a", 5), is_new=True)
    side.take(stored("a", 6), is_new=False)
    assert (side.uids, side.versions) == (["uid-a"], ["5", "6"])
    assert [side.outcome(stored("a", version), "6")["moved"] for version in (7, 6, 3)] == ["yes", "no", "back"]
    assert [side.outcome(stored(name, 9), "")["uid"] for name in ("a", "b")] == [0, -1]
    status = {"kind": "Status", "status": "Success", "details": {"kind": "configmaps", "uid": "uid-a"}}
    assert side.outcome(status, "") == {"Status": "Success", "kind": "configmaps", "uid": 0}
    error = Conflict("no", status=409, reason="Conflict", causes=("Because",))
    assert side.outcome(error, "") == {"error": "Conflict", "status": 409, "why": ["Conflict", "Because"]}
    side.take(error, is_new=True)
    side.take(status, is_new=True)
    assert (side.uids, side.versions) == (["uid-a"], ["5", "6"])


def test_nodes_and_namespaces_have_the_trials_prefix() -> None:
    """It is left out in the comparison of the two clusters."""
    side = Side(rehearsal(), "alike-1", "alike-1")
    assert side.ref(NODE, OWN, "a")[1:] == (NODE, "", "alike-1-a")
    assert side.ref(POD, OWN, "a")[1:] == (POD, "alike-1", "a")
    assert side.ref(POD, "space-0", "a").namespace == "alike-1-space-0"
    node = stored("alike-1-a", 5, NODE, annotations={"node.alpha.kubernetes.io/ttl": "0", "mine": "1"})
    assert (side.form(node)["name"], side.form(node)["annotations"]) == ("a", {"mine": "1"})


def test_watch_events_are_compared_in_their_order() -> None:
    """A missing event or one of another type is reported."""
    side = Side(rehearsal(), "alike", "alike")
    recorder = Recorder()
    for manifest in (stored("a", 1), stored("a", 2), stored("b", 3)):
        recorder.put(orjson.dumps(manifest))
    recorder.remove(orjson.dumps(stored("a", 4)))
    assert [(sort, one["metadata"]["name"]) for sort, one in recorder.events] == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("ADDED", "b"),
        ("DELETED", "a"),
    ]
    events = side.events(recorder.events)
    assert different_events(CONFIG_MAP, events, events) == []
    other = side.events([("ADDED", stored("a", 1)), ("DELETED", stored("a", 2))])
    assert different_events(CONFIG_MAP, events, other) == [
        "ConfigMap: event 1: told: rehearsed 'MODIFIED', really 'DELETED'",
        "ConfigMap: 4 events, really 2",
    ]
    backwards = side.events([("ADDED", stored("a", 5)), ("MODIFIED", stored("a", 4))])
    assert [one["moved"] for one in backwards] == [True, False]


async def test_a_trials_namespace_has_its_service_account_before_the_first_request() -> None:
    """Otherwise one cluster would refuse the first pods and the other one would not."""
    cluster = rehearsal()
    async with prepared(Side(cluster, "alike", "alike")):
        assert cluster.find(SERVICE_ACCOUNT, "alike", "default") is not None
        assert cluster.find(NODE, "", "alike") is not None
        assert cluster.find(CONFIG_MAP, "alike", LAST) is None
