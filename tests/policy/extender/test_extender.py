"""Tests of the scheduler extender's answers: a pod gets only virtual nodes with room, and bursts do not overcommit."""

from collections import Counter
from random import Random
from time import process_time
from typing import Any

import pytest
from extenderkit import extender, make_candidate, node_cache
from hypothesis import given
from hypothesis import strategies as st
from placekit import node, pod, spec_requesting
from properties import examples

from tensile.policy.extender.extender import RESERVATION_SECONDS, LowerCandidate, SchedulerExtender
from tensile.policy.extender.node_cache import NodeCache, NodeFinder
from tensile.policy.placement.snapshot import pod_of

Manifest = dict[str, Any]


def question(wanted: Manifest, *names: str) -> Manifest:
    """Return a request in the form of the kube-scheduler."""
    return {"Pod": wanted, "Nodes": None, "NodeNames": list(names)}


def wants(name: str = "web", **requests: str) -> Manifest:
    """Create a pod with these requests."""
    return pod(name, spec_requesting(**requests), uid=f"uid-{name}")


def test_a_virtual_node_is_filtered_if_no_single_lower_node_fits() -> None:
    """The sum of its nodes would suffice, but preempting upper pods would not help."""
    made = extender(a=node_cache(node("n1"), node("n2")), b=node_cache(node("n1", cpu="8")))
    answer = made.filter(question(wants(cpu="6"), "a", "b"), 0.0)
    assert answer == {
        "NodeNames": ["b"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {
            "a": "no lower node of virtual node a fits (0/2 nodes are available: 2 Insufficient cpu)"
        },
        "Error": "",
    }


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        ({"containers": [{"name": "main", "ports": [{"containerPort": 80, "hostPort": 80}]}]}, ["a"]),
        (spec_requesting(memory="0" * 90 + "1"), ["a"]),
        (spec_requesting(memory="9Ei"), []),
        (spec_requesting(**{"example.com/gpu": "9" * 18 + "E"}), []),
    ],
)
def test_unusual_requests_that_an_apiserver_accepts_are_answered(spec: Manifest, kept: list[str]) -> None:
    """These are host ports, amounts with leading zeros, and amounts beyond 64 bits; equal pods are answered equally."""
    made = extender(a=node_cache(node("n1"), node("n2")))
    for name in ("one", "two"):
        assert made.filter(question(pod(name, spec, uid=name), "a"), 0.0)["NodeNames"] == kept
        assert made.prioritize(question(pod(name, spec, uid=name), "a"))[0]["Host"] == "a"


def test_nodes_that_are_no_virtual_nodes_always_fit() -> None:
    """Their score is zero."""
    made = extender(a=node_cache())
    assert made.filter(question(wants(cpu="1"), "worker", "a"), 0.0)["NodeNames"] == ["worker"]
    assert made.prioritize(question(wants(cpu="1"), "worker")) == [{"Host": "worker", "Score": 0}]


@pytest.mark.parametrize("flags", [{"known": False}, {"ours": False}])
def test_unknown_lowers_and_pods_that_are_not_mirrored_are_not_refused(flags: dict[str, bool]) -> None:
    """The scheduler decides alone if the lower's caches are not synced or if the pod is not mirrored."""
    made = SchedulerExtender({"a": make_candidate(node_cache(), **flags)})
    assert made.filter(question(wants(cpu="99"), "a"), 0.0)["NodeNames"] == ["a"]
    assert made.prioritize(question(wants(cpu="99"), "a")) == [{"Host": "a", "Score": 0}]


def test_room_is_reserved_for_a_pod_that_got_a_virtual_node() -> None:
    """The next pod does not fit any more, while a repeated request for the same pod still does."""
    made = extender(a=node_cache(node("n")))
    assert made.filter(question(wants("one", cpu="3"), "a"), 0.0)["NodeNames"] == ["a"]
    assert made.filter(question(wants("two", cpu="3"), "a"), 0.0)["NodeNames"] == []
    assert made.filter(question(wants("one", cpu="3"), "a"), 0.0)["NodeNames"] == ["a"]


def test_a_reservation_without_a_binding_expires() -> None:
    """It expires thirty seconds after the request."""
    made = extender(a=node_cache(node("n")))
    made.filter(question(wants("one", cpu="3"), "a"), 0.0)
    assert made.filter(question(wants("two", cpu="3"), "a"), RESERVATION_SECONDS)["NodeNames"] == []
    assert made.filter(question(wants("two", cpu="3"), "a"), RESERVATION_SECONDS + 1)["NodeNames"] == ["a"]


def test_a_repeated_request_without_a_lower_releases_its_reservation_there() -> None:
    """The room in that lower cluster is available to the next pod."""
    made = extender(a=node_cache(node("n")), b=node_cache(node("n")))
    made.filter(question(wants("one", cpu="3"), "a", "b"), 0.0)
    made.filter(question(wants("one", cpu="3"), "b"), 0.0)
    assert made.filter(question(wants("two", cpu="3"), "a", "b"), 0.0)["NodeNames"] == ["a"]


@pytest.mark.parametrize(("strategy", "scores"), [("spread", {"a": 8, "b": 5}), ("binpack", {"a": 2, "b": 5})])
def test_scores_follow_the_strategy(strategy: str, scores: dict[str, int]) -> None:
    """The emptier or the fuller lower cluster has the higher score, by the scarcest resource that the pod requests."""
    full, empty = node_cache(node("n")), node_cache(node("n"))
    full.put_pod(pod_of(pod("r", spec_requesting(cpu="2"), on="n"), settled=True))
    empty.put_pod(pod_of(pod("r", spec_requesting(cpu="1", memory="1Gi"), on="n"), settled=True))
    made = extender(strategy, a=empty, b=full)
    found = {one["Host"]: one["Score"] for one in made.prioritize(question(wants(cpu="1"), "a", "b"))}
    assert found == scores


def test_scores_are_between_0_and_10() -> None:
    """That holds if more is used than allocatable, and if a lower cluster has no nodes."""
    over = node_cache(node("n"))
    over.put_pod(pod_of(pod("r", spec_requesting(cpu="40"), on="n"), settled=True))
    made = extender(a=over, b=node_cache(node("n")), c=node_cache())
    scores = [one["Score"] for one in made.prioritize(question(wants(cpu="1"), "a", "b", "c"))]
    assert scores == [0, 10, 0]
    assert [one["Score"] for one in extender("binpack", a=over).prioritize(question(wants(cpu="1"), "a"))] == [10]


def test_claims_of_a_pod_are_ignored() -> None:
    """Claims and volumes of lower clusters are not watched, so only the other checks apply."""
    made = extender(a=node_cache(node("n")))
    claims = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}
    assert made.filter(question(pod("one", spec_requesting(cpu="3") | claims), "a"), 0.0)["NodeNames"] == ["a"]
    assert made.filter(question(pod("two", spec_requesting(cpu="3") | claims), "a"), 0.0)["NodeNames"] == []


def test_reservations_have_the_lower_namespace_and_name() -> None:
    """A reservation is released under the same lower name."""

    def below(manifest: Manifest) -> Manifest:
        """Return the pod in another lower namespace."""
        return {**manifest, "metadata": {**manifest["metadata"], "namespace": "demo-default"}}

    cache = node_cache(node("n"))
    made = SchedulerExtender(
        {"a": LowerCandidate(below, cache, NodeFinder(cache), lambda: True, lambda name: f"demo-{name}")}
    )
    made.filter(question(wants("one", cpu="3"), "a"), 0.0)
    assert list(cache.reservations) == [("demo-default", "one")]
    made.filter(question(wants("one", cpu="3"), "b"), 0.0)
    assert not cache.reservations


@examples(100)
@given(st.integers(0, 2**32))
def test_a_burst_does_not_overcommit_lower_nodes(seed: int) -> None:
    """Pods get virtual nodes before any of them exists in a lower cluster; each binding settles the reservations."""
    chance = Random(seed)
    nodes = {name: [node(f"{name}{number}", cpu=chance.choice("234")) for number in range(4)] for name in "ab"}
    grounds = {name: node_cache(*some) for name, some in nodes.items()}
    made = extender(**grounds)
    bound: dict[str, list[Manifest]] = {"a": [], "b": []}
    for number in range(60):
        wanted = wants(f"p{number}", cpu=chance.choice("12"))
        names = made.filter(question(wanted, "a", "b"), 0.0)["NodeNames"]
        if names:
            winner = chance.choice(names)
            bound[winner].append(wanted)
            for name, cache in grounds.items():
                if name == winner:
                    cache.confirm(("default", wanted["metadata"]["name"]))
                else:
                    cache.forget(("default", wanted["metadata"]["name"]))
    for name, cache in grounds.items():
        used = Counter({place: one.used.get("cpu", 0) for place, one in cache.snapshot.nodes.items()})
        assert all(used[place] <= one.allocatable["cpu"] for place, one in cache.snapshot.nodes.items())
        assert len(cache.reservations) == len(bound[name])


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE = "topology.kubernetes.io/zone"


def avoiding(rules: int, **selector: str) -> Manifest:
    """Return the spec of a pod with so many anti-affinity terms."""
    term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": selector or {"app": "other"}}}
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term] * rules}}}


def requiring(terms: int) -> Manifest:
    """Return the spec of a pod with so many alternative node selector terms that no node matches."""
    term = {"matchExpressions": [{"key": "none", "operator": "In", "values": ["x"]}]}
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term] * terms}}}}


def fill_clusters(constraints: int) -> Manifest:
    """Return the spec of a pod with so many topology spread constraints that no node satisfies."""
    one = {"maxSkew": 1, "topologyKey": "none", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    return {"topologySpreadConstraints": [one] * constraints}


def large(nodes: int = 200, each: int = 20) -> NodeCache:
    """Return a lower with many pods of one namespace, and room for more."""
    cache = node_cache(*(node(f"n{number}", labels={ZONE: "z"}, pods="110") for number in range(nodes)))
    for number in range(nodes * each):
        cache.put_pod(pod_of(pod(f"p{number}", on=f"n{number % nodes}", labels={"app": "other"}), settled=True))
    return cache


@pytest.mark.parametrize(
    ("few", "many"),
    [
        (avoiding(3), avoiding(1_000)),
        (requiring(20), requiring(2_000)),
        (fill_clusters(3), fill_clusters(500)),
        (
            spec_requesting(**{f"example.com/r{one}": "1" for one in range(20)}),
            spec_requesting(**{f"a/r{one}": "1" for one in range(2_000)}),
        ),
    ],
)
def test_a_pod_with_too_many_constraints_is_not_refused(few: Manifest, many: Manifest) -> None:
    """It is answered fast and gets no reservation; a pod with few constraints is checked in a large cluster too."""
    made = extender(a=large())
    assert made.filter(question(pod("few", few, uid="few"), "a"), 0.0)["NodeNames"] == []
    begin = process_time()
    assert made.filter(question(pod("many", many, uid="many"), "a"), 0.0)["NodeNames"] == ["a"]
    assert process_time() - begin < 0.2
    assert made.sites["a"].cache.reservations == {}


def test_many_anti_affinity_terms_of_existing_pods_do_not_slow_down_a_request() -> None:
    """Replicas are compared once and the terms of one pod are limited, so that no client's pods delay all others."""
    cache = large()
    for number in range(400):
        spec = {**avoiding(1_000, app="web"), "nodeName": f"n{number % 200}"}
        cache.put_pod(pod_of(pod(f"s{number}", spec, labels={"app": "s"}), settled=True))
    made = extender(a=cache)
    begin = process_time()
    assert made.filter(question(pod("web", labels={"app": "web"}, uid="w"), "a"), 0.0)["NodeNames"] == []
    assert process_time() - begin < 0.2
    for number in range(400):
        cache.remove_pod(("default", f"s{number}"))
    assert made.filter(question(pod("web", labels={"app": "web"}, uid="w"), "a"), 0.0)["NodeNames"] == ["a"]


def test_filtered_yields_an_answer_after_each_lower() -> None:
    """Other tasks can run in between; each answer covers the virtual nodes so far."""
    made = extender(a=node_cache(node("n")), b=node_cache(), c=node_cache(node("n")))
    steps = [list(answer["NodeNames"]) for answer in made.filtered(question(wants(cpu="1"), "a", "b", "c"), 0.0)]
    assert steps == [["a"], ["a"], ["a", "c"], ["a", "c"]]
