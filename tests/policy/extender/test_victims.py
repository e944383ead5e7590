"""Who has to go for a pod of higher priority: as the kube-scheduler chooses, and nobody in vain."""

from random import Random

import pytest
from preemptkit import APART, PORT, Behind, There, budget, wants

from tensile.policy.extender.victims import budget_of, counted, is_possible

OLD, NEW = "2030-01-01T00:00:00Z", "2030-01-01T00:00:09Z"


@pytest.mark.parametrize(
    ("pods", "chosen"),
    [
        pytest.param([There("a", "n", "4")], ("n", ["a"]), id="one-goes"),
        pytest.param([There("a", "n", "2"), There("b", "n", "2", 50)], ("n", ["a"]), id="lower-priority-goes"),
        pytest.param([There("a", "n", "1"), There("b", "n", "2"), There("c", "n", "1")], ("n", ["b"]), id="reprieve"),
        pytest.param([There("a", "n", "2", started=OLD), There("b", "n", "2", started=NEW)], ("n", ["b"]), id="newer"),
        pytest.param([There("a", "n", "4", 100)], ("", []), id="none-of-the-same-priority"),
        pytest.param([There("a", "n", "3", 100), There("b", "n", "1")], ("", []), id="none-in-vain"),
        pytest.param([There("a", "n", "4", ours=False)], ("", []), id="never-a-stranger"),
    ],
)
def test_who_goes_from_a_node(pods: list[There], chosen: tuple[str, list[str]]) -> None:
    """Of those of lower priority as few and as unimportant ones as do."""
    assert Behind({"n": "4"}, *pods).chosen(wants(cpu="2")) == chosen


@pytest.mark.parametrize(
    ("pods", "node"),
    [
        pytest.param(
            [There("a", "n", "4", 9), There("b", "m", "2", 8), There("c", "m", "2", 8)],
            "m",
            id="lowest-highest-priority",
        ),
        pytest.param([There("a", "n", "4"), There("b", "m", "2"), There("c", "m", "2", 1)], "n", id="smaller-priority"),
        pytest.param([There("a", "n", "3"), There("b", "n", "3"), There("c", "m", "6")], "m", id="fewer-pods"),
        pytest.param([There("a", "n", "4", started=OLD), There("b", "m", "4", started=NEW)], "m", id="started-later"),
        pytest.param([There("a", "n", "4"), There("b", "m", "4", started="")], "m", id="not-started-yet"),
    ],
)
def test_which_node_is_best(pods: list[There], node: str) -> None:
    """Where a set of pods would do on several."""
    sizes = dict.fromkeys(("n", "m"), str(max(sum(int(one.cpu) for one in pods if one.node == at) for at in "nm")))
    assert Behind(sizes, *pods).chosen(wants(cpu=sizes["n"] if sizes["n"] == "6" else "3"))[0] == node


def test_what_a_disruption_budget_does_not_allow_is_reprieved_first() -> None:
    """On one node the other pod goes, and of two nodes the one where none is broken is the better one."""
    two = [There("a", "n", "2", app="kept"), There("b", "n", "2", 9)]
    assert Behind({"n": "4"}, *two).chosen(wants(cpu="2")) == ("n", ["a"])
    assert Behind({"n": "4"}, *two).chosen(wants(cpu="2"), budget("kept", 0)) == ("n", ["b"])
    assert Behind({"n": "4"}, *two).chosen(wants(cpu="2"), budget("kept", 1)) == ("n", ["a"])
    apart = [There("a", "n", "4", app="kept"), There("b", "m", "4", 9)]
    assert Behind({"n": "4", "m": "4"}, *apart).chosen(wants(), budget("kept", 0)) == ("m", ["b"])


def test_a_disruption_budget_is_no_bar() -> None:
    """Where nothing else does it is broken, and that is counted; pods that are on their way already break nothing."""
    here = Behind({"n": "4"}, There("a", "n", "4", app="kept"))
    assert [one.violations for one in here.choices(wants(), budget("kept", 0))] == [1]
    assert [one.violations for one in here.choices(wants(), budget("kept", 0, disruptedPods={"a": OLD}))] == [0]
    assert [one.violations for one in here.choices(wants(), budget("other", 0))] == [0]


def test_a_disruption_budget_without_a_selector_covers_nothing() -> None:
    """As the kube-scheduler has it, whatever the eviction API makes of it."""
    meta = {"name": "all", "namespace": "default"}
    for selector in ({}, None):
        made = budget_of({"metadata": meta, "spec": {"selector": selector}})
        assert not made.covers({"app": "kept"})


def test_the_virtual_node_is_one_host() -> None:
    """A port that is taken on another real node has to be free above too; by one that stays, it never is."""
    sizes = {"n": "4", "m": "4"}
    holder = There("holder", "m", "1", port=True)
    assert Behind(sizes, There("a", "n", "4"), holder).chosen(wants(cpu="3", **PORT)) == ("m", ["holder"])
    assert Behind(sizes, holder._replace(priority=200)).chosen(wants(cpu="3", **PORT)) == ("", [])


def test_who_is_kept_apart_from_goes() -> None:
    """Wherever behind the virtual node it is, and nobody else."""
    here = Behind({"n": "4", "m": "4"}, There("a", "n", "1"), There("lone", "m", "1", app="lone"))
    assert here.chosen(wants(cpu="3", **APART))[1] == ["lone"]


def test_room_has_to_be_above_as_well() -> None:
    """Where less is offered than there is, as few go as make room there, be it that they wait for a node below."""
    waiting = [There(f"w{number}", "", "1") for number in range(3)]
    here = Behind({"n": "4"}, There("a", "n", "3"), *waiting, offered="7")
    assert here.chosen(wants(cpu="1")) == ("", [])
    here = Behind({"n": "4"}, There("a", "n", "3"), *waiting, offered="6")
    assert here.chosen(wants(cpu="1")) == ("n", ["a"])
    here = Behind({"n": "4"}, There("a", "n", "1"), *waiting, offered="4")
    assert len(here.chosen(wants(cpu="3"))[1]) == 3
    assert here.chosen(wants(cpu="5"))[1] == []


def test_who_is_going_anyway_is_counted_on() -> None:
    """A pod that ends already is the first choice, and costs nobody."""
    here = Behind({"n": "4", "m": "4"}, There("a", "n", "4"), There("b", "m", "4", 50, ending=True))
    best = min(here.choices(wants()), key=lambda one: one.cost)
    assert (best.node, [one.pod.name for one in best.victims], best.fresh) == ("m", ["b"], ())


def test_room_that_is_made_for_another_is_not_had_twice() -> None:
    """A nominee of no lower priority counts as if it were there; one of lower priority yields."""
    here = Behind({"n": "4"}, There("a", "n", "2"), There("b", "n", "2"))
    here.nominate("first", "n", "2", 100, "a")
    assert here.chosen(wants(cpu="2")) == ("n", ["a", "b"])
    assert here.chosen(wants(cpu="3")) == ("", [])
    assert here.chosen(wants(cpu="3", priority=200)) == ("n", ["a", "b"])
    (found,) = here.choices(wants(cpu="2", priority=200))
    assert found.fresh == ()


def test_whether_there_are_such_pods_is_known_without_choosing() -> None:
    """The same answer, for random nodes, pods and wishes."""
    random = Random(3)
    seen = set()
    for _ in range(300):
        sizes = {f"n{number}": str(random.randint(1, 6)) for number in range(3)}
        pods = [
            There(f"p{number}", random.choice(sorted(sizes)), str(random.randint(1, 3)), random.choice((0, 50, 100)))
            for number in range(random.randint(0, 8))
        ]
        here, wanted = Behind(sizes, *pods), wants(cpu=str(random.randint(1, 6)))
        fits = bool(here.site.seeker.find(here.wish(wanted).below)[0])
        if fits:
            continue
        is_there = is_possible(here.wish(wanted), here.ground, here.above())
        seen.add(is_there)
        node, names = here.chosen(wanted)
        assert bool(node) == is_there
        for name in names:
            gone = [one for one in pods if one.name not in names or one.name == name]
            again = Behind(sizes, *gone)
            there = again.ground.snapshot.nodes[node]
            left = there.allocatable["cpu"] - there.used.get("cpu", 0)
            assert left < again.wish(wanted).below.requests["cpu"], "nobody goes in vain"
    assert seen == {True, False}


def test_one_that_looks_for_company_too_is_judged_with_the_others_gone() -> None:
    """Anti-affinity below depends on all nodes: it is worked out anew for each set."""
    here = Behind({"n": "4"}, There("lone", "n", "1", app="lone"), There("a", "n", "1"), There("b", "n", "2"))
    assert here.chosen(wants(cpu="1", **APART)) == ("n", ["lone"])
    assert set(here.chosen(wants(cpu="3", **APART))[1]) == {"lone", "b"}


def test_what_a_spread_constraint_counts_above() -> None:
    """Of those that the kube-scheduler would have go."""
    here = Behind({"n": "4"}, There("a", "n", app="web"), There("b", "n", app="web"), There("c", "n", app="db"))
    rule = {"topologyKey": "zone", "maxSkew": 1, "labelSelector": {"matchLabels": {"app": "web"}}}
    hard, soft = ({**rule, "whenUnsatisfiable": kind} for kind in ("DoNotSchedule", "ScheduleAnyway"))
    offered = {"uid-a", "uid-c"}
    for rules, names in (([hard], {("default", "a")}), ([soft], set()), ([], set())):
        wish = here.wish(wants(topologySpreadConstraints=rules))
        assert counted(wish, here.above(), offered) == names
