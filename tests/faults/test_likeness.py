"""The rehearsal before a real apiserver, on requests at random; and that a difference, were there one, is told."""

from collections import Counter
from datetime import UTC, datetime

import orjson
import pytest

from bench.conformance.likeness.asking import OWN, STRANGER, Asking, Request, Stock, filled
from bench.conformance.likeness.sides import Pair, Recorder, Side, difference
from bench.conformance.likeness.trial import LAST, prepared, trial, unlike
from tensile.errors import Conflict
from tensile.kube.client import HttpCluster
from tensile.kube.credentials import from_kubeconfig
from tensile.objects import CONFIG_MAP, NODE, POD, SERVICE_ACCOUNT, UPPER, Kind, Manifest
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.sandbox.sandbox import Sandbox

TRIALS, REQUESTS = 8, 50
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.real
async def test_a_rehearsal_answers_as_a_real_cluster(sandbox: Sandbox) -> None:
    """Objects, errors, UIDs, versions and events are the same; `python -m bench.conformance.likeness` asks for more."""
    cluster = HttpCluster(UPPER, await from_kubeconfig(sandbox.directory / "upper.kubeconfig"))
    try:
        results = [await trial(cluster, seed, REQUESTS) for seed in range(1, TRIALS + 1)]
    finally:
        await cluster.close()
    assert [words for one in results for words in one.differences] == []
    assert sum(one.events for one in results) > TRIALS * REQUESTS / 2


def rehearsal(*, ends_pods: bool = False) -> DryRunCluster:
    """Make a cluster in memory."""
    return DryRunCluster(UPPER, ends_pods=ends_pods, now=lambda: NOW)


async def test_another_behaviour_is_told() -> None:
    """Two clusters in memory of which one ends pods by itself: what is asked finds that out, and nothing else."""
    patient, hasty = rehearsal(), rehearsal(ends_pods=True)
    sides = Side(patient, "alike", "alike"), Side(hasty, "alike", "alike")
    async with prepared(sides[0]), prepared(sides[1]):
        stock = Stock(lambda *place: patient.find(*sides[0].ref(*place)[1:]))
        pair, asking = Pair(*sides, stock), Asking(1, stock)
        asked = [(request, await pair.ask(request)) for _ in range(200) for request in asking.next()]
    unlike_ones = [request for request, words in asked if words]
    assert unlike_ones[0].verb == "delete"
    assert {request.kind for request in unlike_ones} == {POD}


async def test_requests_are_of_every_sort() -> None:
    """All verbs, all media types, fences that hold and that do not; the same seed asks the same."""
    first, again = [await asked(7) for _ in range(2)]
    assert first == again
    assert first != await asked(8)
    sorts = Counter((request.verb, request.kind.name) for request, _ in first)
    kinds = ("ConfigMap", "Secret", "Pod", "ServiceAccount", "Lease", "Event", "Node", "Namespace")
    assert {(verb, kind) for verb in ("create", "read", "patch", "delete") for kind in kinds} <= sorts.keys()
    media = {request.media for request, _ in first}
    assert media == {"", "json-patch", "merge-patch", "strategic-merge-patch"}
    ends = Counter(end for _, end in first)
    assert {"ok", "NotFound", "AlreadyExists", "Conflict", "Denied"} == ends.keys()
    assert ends["ok"] > len(first) / 3


async def asked(seed: int) -> list[tuple[Request, str]]:
    """Make requests of a cluster in memory, and return each with "ok", or the name of the error that it met."""
    cluster = rehearsal()
    side = Side(cluster, "alike", "alike")
    stock = Stock(lambda *place: cluster.find(*side.ref(*place)[1:]))
    pair, asking = Pair(side, Side(rehearsal(), "alike", "alike"), stock), Asking(seed, stock)
    found = []
    async with prepared(pair.sides[0]), prepared(pair.sides[1]):
        for request in (request for _ in range(600) for request in asking.next()):
            assert await pair.ask(request) == ""
            found.append((request, str(pair.last.get("error", "ok"))))
    return found


def test_a_request_has_each_sides_own_words() -> None:
    """UIDs and versions are put in place wherever they stand; what stands for none of them stays."""
    body = {"metadata": {"uid": "@uid:1@", "resourceVersion": "@version:0@"}, "data": {"k": "@uid", "@uid:0@": 1}}
    expected = {"metadata": {"uid": "u1", "resourceVersion": "7"}, "data": {"k": "@uid", "u0": 1}}
    assert filled(body, ["u0", "u1"], ["7"]) == expected
    assert filled(STRANGER, [], []) == STRANGER


def test_defaults_are_no_difference() -> None:
    """What only the real one has in a spec is passed over; what it lacks or has otherwise there is told."""
    rehearsed = {"spec": {"containers": [{"name": "c"}]}, "uid": 3}
    assert difference(rehearsed, {"spec": {"containers": [{"name": "c", "pull": "x"}], "dns": "y"}, "uid": 3}) == ""
    assert difference(rehearsed, {"spec": {"containers": [{"name": "d"}]}, "uid": 3}).startswith("spec: rehearsed")
    assert difference(rehearsed, {"spec": {"containers": [{"name": "c"}] * 2}, "uid": 3}).startswith("spec: rehearsed")
    assert difference(rehearsed, {"spec": {}, "uid": 3}).startswith("spec: rehearsed")


def test_what_decisions_rest_on_is_compared_whole() -> None:
    """A label, an end, a cause or a value more is a difference."""
    for field, value in (("labels", {"l": "1"}), ("ends", True), ("why", ["Invalid"]), ("data", {"k": "v"})):
        assert difference({"spec": {}}, {"spec": {}, field: value}) == f"{field}: rehearsed None, really {value!r}"
    assert difference({"uid": 3, "moved": "yes"}, {"uid": 4, "moved": "no"}) == (
        "moved: rehearsed 'yes', really 'no'; uid: rehearsed 3, really 4"
    )


def stored(name: str, version: int, kind: Kind = CONFIG_MAP, **more: object) -> Manifest:
    """Make an object as it is stored."""
    meta = {"name": name, "namespace": "alike", "uid": f"uid-{name}", "resourceVersion": str(version), **more}
    return {"apiVersion": kind.api, "kind": kind.name, "metadata": meta}


def test_an_answer_has_the_same_form_in_both_clusters() -> None:
    """UIDs are numbers; a version stayed, moved on, or went back; of an error all is kept that decisions rest on."""
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


def test_nodes_and_namespaces_are_the_trials_own() -> None:
    """Their names begin with the trial's, which is left out where the two are compared."""
    side = Side(rehearsal(), "alike-1", "alike-1")
    assert side.ref(NODE, OWN, "a")[1:] == (NODE, "", "alike-1-a")
    assert side.ref(POD, OWN, "a")[1:] == (POD, "alike-1", "a")
    assert side.ref(POD, "space-0", "a").namespace == "alike-1-space-0"
    node = stored("alike-1-a", 5, NODE, annotations={"node.alpha.kubernetes.io/ttl": "0", "mine": "1"})
    assert (side.form(node)["name"], side.form(node)["annotations"]) == ("a", {"mine": "1"})


def test_events_are_compared_in_their_order() -> None:
    """One that is missing, or of another sort, is told."""
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
    told = side.events(recorder.events)
    assert unlike(CONFIG_MAP, told, told) == []
    other = side.events([("ADDED", stored("a", 1)), ("DELETED", stored("a", 2))])
    assert unlike(CONFIG_MAP, told, other) == [
        "ConfigMap: event 1: told: rehearsed 'MODIFIED', really 'DELETED'",
        "ConfigMap: 4 events, really 2",
    ]
    backwards = side.events([("ADDED", stored("a", 5)), ("MODIFIED", stored("a", 4))])
    assert [one["moved"] for one in backwards] == [True, False]


async def test_a_ground_has_its_account_before_anything_is_asked() -> None:
    """Else the first pods would be refused by one cluster and not by the other."""
    cluster = rehearsal()
    async with prepared(Side(cluster, "alike", "alike")):
        assert cluster.find(SERVICE_ACCOUNT, "alike", "default") is not None
        assert cluster.find(NODE, "", "alike") is not None
        assert cluster.find(CONFIG_MAP, "alike", LAST) is None
