"""The scheduler extender's answers: what has no node below is not sent there, and bursts do not over-commit."""

from collections import Counter
from random import Random
from time import process_time
from typing import Any

import pytest
from extenderkit import extender, ground, site
from hypothesis import given
from hypothesis import strategies as st
from placekit import asking, node, pod
from properties import examples

from tensile.policy.extender.extender import LAPSE, LowerCandidate, SchedulerExtender
from tensile.policy.extender.node_cache import NodeCache, NodeFinder
from tensile.policy.placement.snapshot import pod_of

Manifest = dict[str, Any]


def question(wanted: Manifest, *names: str) -> Manifest:
    """Ask as the kube-scheduler does."""
    return {"Pod": wanted, "Nodes": None, "NodeNames": list(names)}


def wants(name: str = "web", **requests: str) -> Manifest:
    """Make a pod."""
    return pod(name, asking(**requests), uid=f"uid-{name}")


def test_a_pod_that_fits_on_no_single_node_is_not_sent_there() -> None:
    """Though the sum would do; and no pod above has to go for it."""
    made = extender(a=ground(node("n1"), node("n2")), b=ground(node("n1", cpu="8")))
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
        (asking(memory="0" * 90 + "1"), ["a"]),
        (asking(memory="9Ei"), []),
        (asking(**{"example.com/gpu": "9" * 18 + "E"}), []),
    ],
)
def test_what_an_apiserver_takes_is_answered(spec: Manifest, kept: list[str]) -> None:
    """Ports of nodes, amounts with zeros before them, and amounts beyond all numbers of 64 bits; twice, and sorted."""
    made = extender(a=ground(node("n1"), node("n2")))
    for name in ("one", "two"):
        assert made.filter(question(pod(name, spec, uid=name), "a"), 0.0)["NodeNames"] == kept
        assert made.prioritize(question(pod(name, spec, uid=name), "a"))[0]["Host"] == "a"


def test_nodes_that_are_no_lowers_always_do() -> None:
    """And are no better and no worse."""
    made = extender(a=ground())
    assert made.filter(question(wants(cpu="1"), "worker", "a"), 0.0)["NodeNames"] == ["worker"]
    assert made.prioritize(question(wants(cpu="1"), "worker")) == [{"Host": "worker", "Score": 0}]


@pytest.mark.parametrize("flags", [{"known": False}, {"ours": False}])
def test_what_is_not_known_is_not_refused(flags: dict[str, bool]) -> None:
    """A lower whose nodes are not all known yet, or a pod that is none of ours: the scheduler decides by itself."""
    made = SchedulerExtender({"a": site(ground(), **flags)})
    assert made.filter(question(wants(cpu="99"), "a"), 0.0)["NodeNames"] == ["a"]
    assert made.prioritize(question(wants(cpu="99"), "a")) == [{"Host": "a", "Score": 0}]


def test_room_is_kept_for_a_pod_that_was_sent() -> None:
    """The next one does not find it; the same one, asked again, does."""
    made = extender(a=ground(node("n")))
    assert made.filter(question(wants("one", cpu="3"), "a"), 0.0)["NodeNames"] == ["a"]
    assert made.filter(question(wants("two", cpu="3"), "a"), 0.0)["NodeNames"] == []
    assert made.filter(question(wants("one", cpu="3"), "a"), 0.0)["NodeNames"] == ["a"]


def test_what_nobody_comes_for_lapses() -> None:
    """After half a minute."""
    made = extender(a=ground(node("n")))
    made.filter(question(wants("one", cpu="3"), "a"), 0.0)
    assert made.filter(question(wants("two", cpu="3"), "a"), LAPSE)["NodeNames"] == []
    assert made.filter(question(wants("two", cpu="3"), "a"), LAPSE + 1)["NodeNames"] == ["a"]


def test_a_pod_that_is_asked_about_again_without_a_lower() -> None:
    """What was kept for it there is given back."""
    made = extender(a=ground(node("n")), b=ground(node("n")))
    made.filter(question(wants("one", cpu="3"), "a", "b"), 0.0)
    made.filter(question(wants("one", cpu="3"), "b"), 0.0)
    assert made.filter(question(wants("two", cpu="3"), "a", "b"), 0.0)["NodeNames"] == ["a"]


@pytest.mark.parametrize(("strategy", "scores"), [("spread", {"a": 8, "b": 5}), ("binpack", {"a": 2, "b": 5})])
def test_the_better_lower(strategy: str, scores: dict[str, int]) -> None:
    """The emptier one, or the fuller one, by what is scarcest of what the pod asks for."""
    full, empty = ground(node("n")), ground(node("n"))
    full.put_pod(pod_of(pod("r", asking(cpu="2"), on="n"), settled=True))
    empty.put_pod(pod_of(pod("r", asking(cpu="1", memory="1Gi"), on="n"), settled=True))
    made = extender(strategy, a=empty, b=full)
    found = {one["Host"]: one["Score"] for one in made.prioritize(question(wants(cpu="1"), "a", "b"))}
    assert found == scores


def test_scores_stay_in_their_range() -> None:
    """Also where more is used than there is, or nothing is offered."""
    over = ground(node("n"))
    over.put_pod(pod_of(pod("r", asking(cpu="40"), on="n"), settled=True))
    made = extender(a=over, b=ground(node("n")), c=ground())
    scores = [one["Score"] for one in made.prioritize(question(wants(cpu="1"), "a", "b", "c"))]
    assert scores == [0, 10, 0]
    assert [one["Score"] for one in extender("binpack", a=over).prioritize(question(wants(cpu="1"), "a"))] == [10]


def test_volumes_are_not_looked_at() -> None:
    """Nobody follows claims and volumes below: a pod with them is judged by everything else."""
    made = extender(a=ground(node("n")))
    claims = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}
    assert made.filter(question(pod("one", asking(cpu="3") | claims), "a"), 0.0)["NodeNames"] == ["a"]
    assert made.filter(question(pod("two", asking(cpu="3") | claims), "a"), 0.0)["NodeNames"] == []


def test_names_below_may_be_others() -> None:
    """What is given back is the promise to the pod as it is called there."""

    def below(manifest: Manifest) -> Manifest:
        """Put a pod into another lower namespace."""
        return {**manifest, "metadata": {**manifest["metadata"], "namespace": "demo-default"}}

    here = ground(node("n"))
    made = SchedulerExtender(
        {"a": LowerCandidate(below, here, NodeFinder(here), lambda: True, lambda name: f"demo-{name}")}
    )
    made.filter(question(wants("one", cpu="3"), "a"), 0.0)
    assert list(here.promises) == [("demo-default", "one")]
    made.filter(question(wants("one", cpu="3"), "b"), 0.0)
    assert not here.promises


@examples(100)
@given(st.integers(0, 2**32))
def test_a_burst_does_not_over_commit(seed: int) -> None:
    """Pods are sent before any of them is seen below, some bind elsewhere than last named, and all find their node."""
    chance = Random(seed)
    nodes = {name: [node(f"{name}{number}", cpu=chance.choice("234")) for number in range(4)] for name in "ab"}
    grounds = {name: ground(*some) for name, some in nodes.items()}
    made = extender(**grounds)
    bound: dict[str, list[Manifest]] = {"a": [], "b": []}
    for number in range(60):
        wanted = wants(f"p{number}", cpu=chance.choice("12"))
        names = made.filter(question(wanted, "a", "b"), 0.0)["NodeNames"]
        if names:
            winner = chance.choice(names)
            bound[winner].append(wanted)
            for name, here in grounds.items():
                if name == winner:
                    here.confirm(("default", wanted["metadata"]["name"]))
                else:
                    here.forget(("default", wanted["metadata"]["name"]))
    for name, here in grounds.items():
        used = Counter({place: one.used.get("cpu", 0) for place, one in here.snapshot.nodes.items()})
        assert all(used[place] <= one.allocatable["cpu"] for place, one in here.snapshot.nodes.items())
        assert len(here.promises) == len(bound[name])


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE = "topology.kubernetes.io/zone"


def avoiding(rules: int, **selector: str) -> Manifest:
    """Make the spec of a pod with so many rules about whom it keeps away from."""
    term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": selector or {"app": "other"}}}
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term] * rules}}}


def requiring(terms: int) -> Manifest:
    """Make the spec of a pod with so many alternatives, none of which any node meets."""
    term = {"matchExpressions": [{"key": "none", "operator": "In", "values": ["x"]}]}
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term] * terms}}}}


def spread_out(constraints: int) -> Manifest:
    """Make the spec of a pod with so many constraints of its spread, none of which can be met."""
    one = {"maxSkew": 1, "topologyKey": "none", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    return {"topologySpreadConstraints": [one] * constraints}


def large(nodes: int = 200, each: int = 20) -> NodeCache:
    """Make a lower with many pods, all of one namespace, and room for more."""
    here = ground(*(node(f"n{number}", labels={ZONE: "z"}, pods="110") for number in range(nodes)))
    for number in range(nodes * each):
        here.put_pod(pod_of(pod(f"p{number}", on=f"n{number % nodes}", labels={"app": "other"}), settled=True))
    return here


@pytest.mark.parametrize(
    ("few", "many"),
    [
        (avoiding(3), avoiding(1_000)),
        (requiring(20), requiring(2_000)),
        (spread_out(3), spread_out(500)),
        (
            asking(**{f"example.com/r{one}": "1" for one in range(20)}),
            asking(**{f"a/r{one}": "1" for one in range(2_000)}),
        ),
    ],
)
def test_what_would_take_long_to_judge_is_left_to_the_scheduler(few: Manifest, many: Manifest) -> None:
    """It is not refused, and no room is kept for it; what pods are seen to ask for is judged in large clusters, too."""
    made = extender(a=large())
    assert made.filter(question(pod("few", few, uid="few"), "a"), 0.0)["NodeNames"] == []
    begin = process_time()
    assert made.filter(question(pod("many", many, uid="many"), "a"), 0.0)["NodeNames"] == ["a"]
    assert process_time() - begin < 0.2
    assert made.sites["a"].ground.promises == {}


def test_what_strangers_keep_away_takes_no_longer_the_more_there_are() -> None:
    """Replicas are compared once, and of one pod so many rules: nobody's pods have all others wait."""
    here = large()
    for number in range(400):
        spec = {**avoiding(1_000, app="web"), "nodeName": f"n{number % 200}"}
        here.put_pod(pod_of(pod(f"s{number}", spec, labels={"app": "s"}), settled=True))
    made = extender(a=here)
    begin = process_time()
    assert made.filter(question(pod("web", labels={"app": "web"}, uid="w"), "a"), 0.0)["NodeNames"] == []
    assert process_time() - begin < 0.2
    for number in range(400):
        here.remove_pod(("default", f"s{number}"))
    assert made.filter(question(pod("web", labels={"app": "web"}, uid="w"), "a"), 0.0)["NodeNames"] == ["a"]


def test_others_have_their_turn_between_two_lowers() -> None:
    """Each answer on the way is that of the lowers so far."""
    made = extender(a=ground(node("n")), b=ground(), c=ground(node("n")))
    steps = [list(answer["NodeNames"]) for answer in made.filtered(question(wants(cpu="1"), "a", "b", "c"), 0.0)]
    assert steps == [["a"], ["a"], ["a", "c"], ["a", "c"]]
