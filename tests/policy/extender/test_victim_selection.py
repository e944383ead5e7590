"""Tests of the choice of victims: it is the kube-scheduler's, and no pod is preempted without need."""

from random import Random

import pytest
from preemptkit import APART, PORT, ExistingPod, VirtualNodeFixture, budget, pending_pod

from tensile.policy.extender.victim_selection import budget_of, counted, is_possible

OLD, NEW = "2030-01-01T00:00:00Z", "2030-01-01T00:00:09Z"


@pytest.mark.parametrize(
    ("pods", "chosen"),
    [
        pytest.param([ExistingPod("a", "n", "4")], ("n", ["a"]), id="one-victim"),
        pytest.param([ExistingPod("a", "n", "2"), ExistingPod("b", "n", "2", 50)], ("n", ["a"]), id="lowest-priority"),
        pytest.param(
            [ExistingPod("a", "n", "1"), ExistingPod("b", "n", "2"), ExistingPod("c", "n", "1")],
            ("n", ["b"]),
            id="reprieve",
        ),
        pytest.param(
            [ExistingPod("a", "n", "2", started=OLD), ExistingPod("b", "n", "2", started=NEW)], ("n", ["b"]), id="newer"
        ),
        pytest.param([ExistingPod("a", "n", "4", 100)], ("", []), id="none-of-the-same-priority"),
        pytest.param([ExistingPod("a", "n", "3", 100), ExistingPod("b", "n", "1")], ("", []), id="no-useless-victim"),
        pytest.param([ExistingPod("a", "n", "4", is_mirrored=False)], ("", []), id="no-pod-of-another-owner"),
    ],
)
def test_the_victims_of_a_node_are_few_and_of_low_priority(
    pods: list[ExistingPod], chosen: tuple[str, list[str]]
) -> None:
    """They have a lower priority than the preemptor, and only as many as necessary are chosen."""
    assert VirtualNodeFixture({"n": "4"}, *pods).best_node(pending_pod(cpu="2")) == chosen


@pytest.mark.parametrize(
    ("pods", "node"),
    [
        pytest.param(
            [ExistingPod("a", "n", "4", 9), ExistingPod("b", "m", "2", 8), ExistingPod("c", "m", "2", 8)],
            "m",
            id="lowest-highest-priority",
        ),
        pytest.param(
            [ExistingPod("a", "n", "4"), ExistingPod("b", "m", "2"), ExistingPod("c", "m", "2", 1)],
            "n",
            id="smaller-priority",
        ),
        pytest.param(
            [ExistingPod("a", "n", "3"), ExistingPod("b", "n", "3"), ExistingPod("c", "m", "6")], "m", id="fewer-pods"
        ),
        pytest.param(
            [ExistingPod("a", "n", "4", started=OLD), ExistingPod("b", "m", "4", started=NEW)], "m", id="started-later"
        ),
        pytest.param([ExistingPod("a", "n", "4"), ExistingPod("b", "m", "4", started="")], "m", id="not-started-yet"),
    ],
)
def test_the_best_node_has_the_least_costly_victims(pods: list[ExistingPod], node: str) -> None:
    """Several nodes have a sufficient set of victims."""
    sizes = dict.fromkeys(("n", "m"), str(max(sum(int(one.cpu) for one in pods if one.node == at) for at in "nm")))
    assert (
        VirtualNodeFixture(sizes, *pods).best_node(pending_pod(cpu=sizes["n"] if sizes["n"] == "6" else "3"))[0] == node
    )


def test_pods_whose_budget_would_be_violated_are_reprieved_first() -> None:
    """On one node the other pod is the victim, and of two nodes the one without a violation is better."""
    two = [ExistingPod("a", "n", "2", app="kept"), ExistingPod("b", "n", "2", 9)]
    assert VirtualNodeFixture({"n": "4"}, *two).best_node(pending_pod(cpu="2")) == ("n", ["a"])
    assert VirtualNodeFixture({"n": "4"}, *two).best_node(pending_pod(cpu="2"), budget("kept", 0)) == ("n", ["b"])
    assert VirtualNodeFixture({"n": "4"}, *two).best_node(pending_pod(cpu="2"), budget("kept", 1)) == ("n", ["a"])
    apart = [ExistingPod("a", "n", "4", app="kept"), ExistingPod("b", "m", "4", 9)]
    assert VirtualNodeFixture({"n": "4", "m": "4"}, *apart).best_node(pending_pod(), budget("kept", 0)) == ("m", ["b"])


def test_a_disruption_budget_is_violated_if_no_other_victim_suffices() -> None:
    """The violation is counted; pods that are already disrupted violate no budget."""
    virtual_node = VirtualNodeFixture({"n": "4"}, ExistingPod("a", "n", "4", app="kept"))
    assert [one.violations for one in virtual_node.choices(pending_pod(), budget("kept", 0))] == [1]
    assert [
        one.violations for one in virtual_node.choices(pending_pod(), budget("kept", 0, disruptedPods={"a": OLD}))
    ] == [0]
    assert [one.violations for one in virtual_node.choices(pending_pod(), budget("other", 0))] == [0]


def test_a_disruption_budget_without_a_selector_covers_no_pod() -> None:
    """That is the kube-scheduler's rule, regardless of the eviction API's."""
    meta = {"name": "all", "namespace": "default"}
    for selector in ({}, None):
        made = budget_of({"metadata": meta, "spec": {"selector": selector}})
        assert not made.covers({"app": "kept"})


def test_a_host_port_must_be_free_on_the_whole_virtual_node() -> None:
    """Its holder on another lower node has to be the victim; if that pod stays, no node fits."""
    sizes = {"n": "4", "m": "4"}
    holder = ExistingPod("holder", "m", "1", has_host_port=True)
    assert VirtualNodeFixture(sizes, ExistingPod("a", "n", "4"), holder).best_node(pending_pod(cpu="3", **PORT)) == (
        "m",
        ["holder"],
    )
    assert VirtualNodeFixture(sizes, holder._replace(priority=200)).best_node(pending_pod(cpu="3", **PORT)) == ("", [])


def test_pods_that_the_anti_affinity_matches_are_the_victims() -> None:
    """They may be on any lower node of the virtual node, and no other pod is preempted."""
    virtual_node = VirtualNodeFixture(
        {"n": "4", "m": "4"}, ExistingPod("a", "n", "1"), ExistingPod("lone", "m", "1", app="lone")
    )
    assert virtual_node.best_node(pending_pod(cpu="3", **APART))[1] == ["lone"]


def test_victims_must_free_enough_room_on_the_virtual_node_too() -> None:
    """If the virtual node offers less than its lower nodes, as few victims as possible suffice, even waiting pods."""
    waiting = [ExistingPod(f"w{number}", "", "1") for number in range(3)]
    virtual_node = VirtualNodeFixture({"n": "4"}, ExistingPod("a", "n", "3"), *waiting, allocatable_cpu="7")
    assert virtual_node.best_node(pending_pod(cpu="1")) == ("", [])
    virtual_node = VirtualNodeFixture({"n": "4"}, ExistingPod("a", "n", "3"), *waiting, allocatable_cpu="6")
    assert virtual_node.best_node(pending_pod(cpu="1")) == ("n", ["a"])
    virtual_node = VirtualNodeFixture({"n": "4"}, ExistingPod("a", "n", "1"), *waiting, allocatable_cpu="4")
    assert len(virtual_node.best_node(pending_pod(cpu="3"))[1]) == 3
    assert virtual_node.best_node(pending_pod(cpu="5"))[1] == []


def test_a_terminating_pod_is_the_preferred_victim() -> None:
    """It ends anyway, so no further pod is preempted."""
    virtual_node = VirtualNodeFixture(
        {"n": "4", "m": "4"}, ExistingPod("a", "n", "4"), ExistingPod("b", "m", "4", 50, is_terminating=True)
    )
    best = min(virtual_node.choices(pending_pod()), key=lambda one: one.cost)
    assert (best.node, [one.pod.name for one in best.victims], best.fresh) == ("m", ["b"], ())


def test_room_reserved_for_a_nominee_is_not_available_to_another_pod() -> None:
    """A nominee of lower priority loses its room."""
    virtual_node = VirtualNodeFixture({"n": "4"}, ExistingPod("a", "n", "2"), ExistingPod("b", "n", "2"))
    virtual_node.nominate("first", "n", "2", 100, "a")
    assert virtual_node.best_node(pending_pod(cpu="2")) == ("n", ["a", "b"])
    assert virtual_node.best_node(pending_pod(cpu="3")) == ("", [])
    assert virtual_node.best_node(pending_pod(cpu="3", priority=200)) == ("n", ["a", "b"])
    (found,) = virtual_node.choices(pending_pod(cpu="2", priority=200))
    assert found.fresh == ()


def test_is_possible_agrees_with_the_choice_of_victims() -> None:
    """Random nodes, pods and requests have the same result, and no victim is unnecessary."""
    random = Random(3)
    seen = set()
    for _ in range(300):
        sizes = {f"n{number}": str(random.randint(1, 6)) for number in range(3)}
        pods = [
            ExistingPod(
                f"p{number}", random.choice(sorted(sizes)), str(random.randint(1, 3)), random.choice((0, 50, 100))
            )
            for number in range(random.randint(0, 8))
        ]
        virtual_node, wanted = VirtualNodeFixture(sizes, *pods), pending_pod(cpu=str(random.randint(1, 6)))
        fits = bool(virtual_node.candidate.finder.find(virtual_node.preemptor(wanted).lower)[0])
        if fits:
            continue
        is_there = is_possible(virtual_node.preemptor(wanted), virtual_node.node_cache, virtual_node.view())
        seen.add(is_there)
        node, names = virtual_node.best_node(wanted)
        assert bool(node) == is_there
        for name in names:
            gone = [one for one in pods if one.name not in names or one.name == name]
            again = VirtualNodeFixture(sizes, *gone)
            there = again.node_cache.snapshot.nodes[node]
            left = there.allocatable["cpu"] - there.used.get("cpu", 0)
            assert left < again.preemptor(wanted).lower.requests["cpu"], "no pod is a victim without need"
    assert seen == {True, False}


def test_anti_affinity_is_evaluated_for_each_set_of_victims() -> None:
    """It depends on all nodes, so its result is not reused for another set."""
    virtual_node = VirtualNodeFixture(
        {"n": "4"}, ExistingPod("lone", "n", "1", app="lone"), ExistingPod("a", "n", "1"), ExistingPod("b", "n", "2")
    )
    assert virtual_node.best_node(pending_pod(cpu="1", **APART)) == ("n", ["lone"])
    assert set(virtual_node.best_node(pending_pod(cpu="3", **APART))[1]) == {"lone", "b"}


def test_counted_returns_victims_that_a_hard_spread_constraint_matches() -> None:
    """Only those among the scheduler's victims count."""
    virtual_node = VirtualNodeFixture(
        {"n": "4"}, ExistingPod("a", "n", app="web"), ExistingPod("b", "n", app="web"), ExistingPod("c", "n", app="db")
    )
    rule = {"topologyKey": "zone", "maxSkew": 1, "labelSelector": {"matchLabels": {"app": "web"}}}
    hard, soft = ({**rule, "whenUnsatisfiable": kind} for kind in ("DoNotSchedule", "ScheduleAnyway"))
    offered = {"uid-a", "uid-c"}
    for rules, names in (([hard], {("default", "a")}), ([soft], set()), ([], set())):
        wish = virtual_node.preemptor(pending_pod(topologySpreadConstraints=rules))
        assert counted(wish, virtual_node.view(), offered) == names
