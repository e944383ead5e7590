"""What a kube-scheduler is told that asks who has to go, and what its filter is told before."""

from typing import Any

import pytest
from preemptkit import Behind, There, budget, extender, wants
from trackerkit import ShownLowers, asking
from worldkit import A, changed

from tensile.policy.extender.extender import LAPSE, SchedulerExtender
from tensile.policy.extender.node_cache import Nominee
from tensile.policy.extender.preemption import VictimSelector, wish_of

Manifest = dict[str, Any]
HALF = {"n": "4", "m": "4"}
"""Real nodes; with three cpu taken of each their sum has room for two, and neither has."""
FULL = (There("a", "n", "3"), There("b", "m", "3", 50))


def filtered(made: SchedulerExtender, wanted: Manifest, *names: str, now: float = 0.0) -> Manifest:
    """Ask where a pod may go, by default to v."""
    return made.filter({"Pod": wanted, "Nodes": None, "NodeNames": list(names or ("v",))}, now)


def asked(
    made: SchedulerExtender, wanted: Manifest, offered: dict[str, list[str]], **given: Any
) -> dict[str, list[str]]:
    """Ask who has to go, given who would by the sum, and return that by virtual node, by the pods' UIDs."""
    victims = {name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0} for name, uids in offered.items()}
    question = {"Pod": wanted, "NodeNameToMetaVictims": victims}
    *_, answer = VictimSelector(made).answer(question, given.get("budgets", ()), given.get("now", 0.0))
    return {name: [one["UID"] for one in found["Pods"]] for name, found in answer["NodeNameToMetaVictims"].items()}


def nominated(wanted: Manifest, name: str) -> Manifest:
    """Return a pod as it is once it is nominated."""
    return {**wanted, "status": {"nominatedNodeName": name}}


@pytest.mark.parametrize(
    ("wanted", "field", "wanting"),
    [
        pytest.param(wants(), "FailedNodes", ["uid-comer"], id="somebody-could-go"),
        pytest.param(wants(preemptionPolicy="Never"), "FailedNodes", [], id="nobody-may-go"),
        pytest.param(wants(priority=0), "FailedNodes", [], id="nobody-of-lower-priority"),
        pytest.param(wants(cpu="5"), "FailedAndUnresolvableNodes", [], id="too-large"),
        pytest.param(wants(nodeSelector={"disk": "ssd"}), "FailedAndUnresolvableNodes", [], id="wrong-node"),
    ],
)
def test_what_does_not_fit_may_be_cured_or_not(wanted: Manifest, field: str, wanting: list[str]) -> None:
    """By preemption, or by time; pods for which somebody could go are wanted, as the scheduler does not see that."""
    made = extender(Behind(HALF, *FULL))
    answer = filtered(made, wanted)
    assert (answer["NodeNames"], list(answer[field])) == ([], ["v"])
    assert list(made.wants) == wanting


def test_what_those_of_lower_priority_do_not_help_is_for_good() -> None:
    """Though others are in the way: else the scheduler would look for victims by the sum, and complain of none."""
    here = Behind({"n": "4"}, There("a", "n", "1"), There("b", "n", "3", 100))
    made = extender(here)
    assert list(filtered(made, wants())["FailedAndUnresolvableNodes"]) == ["v"]
    assert made.wants == {}
    here.put(There("c", "n", "0"))
    assert list(filtered(made, wants())["FailedAndUnresolvableNodes"]) == ["v"]
    here.residents.put(("default", "b"), There("b", "n", "3", 10).above("v"))
    assert list(filtered(made, wants())["FailedNodes"]) == ["v"]


def test_a_pod_that_fits_somewhere_wants_nobody_to_go() -> None:
    """Be it on a node that is no lower's."""
    made = extender(Behind(HALF, *FULL), Behind({"n": "4"}, name="w"))
    filtered(made, wants())
    assert list(made.wants) == ["uid-comer"]
    assert filtered(made, wants(), "v", "w")["NodeNames"] == ["w"]
    assert made.wants == {}
    assert filtered(made, wants(), "v", "worker")["NodeNames"] == ["worker"]
    assert made.wants == {}


def test_others_go_in_place_of_those_that_would_by_the_sum() -> None:
    """The best for one real node, of the best virtual one; nodes that are no lower's stay as they are offered."""
    made = extender(Behind(HALF, *FULL), Behind({"n": "4"}, There("c", "n", "4", 1), name="w"))
    offered = {"v": ["uid-b"], "w": ["uid-c"], "worker": ["x", "y"]}
    assert asked(made, wants(), offered) == {"v": ["uid-a"], "worker": ["x", "y"]}
    assert asked(made, wants("other"), {"w": ["uid-c"]}) == {"w": ["uid-c"]}


def test_who_costs_less_where_the_sum_has_room_goes_without_the_scheduler() -> None:
    """It does not offer that virtual node: it is offered none, and the pod is still wanted."""
    made = extender(Behind(HALF, *FULL), Behind({"n": "4"}, There("c", "n", "4", 60), name="w"))
    filtered(made, wants())
    assert asked(made, wants(), {"w": ["uid-c"]}) == {}
    assert list(made.wants) == ["uid-comer"]
    assert asked(made, wants(), {"w": ["uid-c"], "worker": ["x"]}) == {"w": ["uid-c"], "worker": ["x"]}
    assert made.wants == {}


def test_what_the_scheduler_sees_to_is_wanted_no_more() -> None:
    """Where it costs less than what it does not see."""
    dear = Behind(HALF, There("a", "n", "3", 9), There("b", "m", "3", 9))
    made = extender(dear, Behind({"n": "4"}, There("c", "n", "4", 1), name="w"))
    filtered(made, wants())
    assert list(made.wants) == ["uid-comer"]
    assert asked(made, wants(), {"w": ["uid-c"]}) == {"w": ["uid-c"]}
    assert made.wants == {}


def test_where_nobody_would_help_none_goes() -> None:
    """A virtual node is left out, behind which no set of pods would do; or where nobody can say."""
    made = extender(Behind(HALF, *FULL))
    assert asked(made, wants(cpu="5"), {"v": ["uid-a", "uid-b"]}) == {}
    assert asked(made, wants(), {"v": ["uid-a"]}, budgets=None) == {}
    assert asked(made, wants(preemptionPolicy="Never"), {"v": ["uid-a"]}) == {}
    unknown = extender(Behind(HALF, *FULL))
    object.__setattr__(unknown, "sites", {"v": unknown.sites["v"]._replace(is_known=lambda: False)})
    assert asked(unknown, wants(), {"v": ["uid-a"]}) == {}
    foreign = unknown.sites["v"]._replace(is_known=lambda: True, below=lambda _: None)
    assert wish_of(wants(), foreign) is None


def test_who_has_gone_meanwhile_is_not_named() -> None:
    """The scheduler would take an answer with one whom it does not know for none at all, and go by the sum."""
    here = Behind(HALF, *FULL)
    made = VictimSelector(extender(here))
    *_, best = made.best(wants(), {"v": ()}, ())
    assert best is not None
    here.residents.remove(("default", "a"))
    assert not made.nominate(wants(), best, 0.0)
    here.residents.put(("default", "a"), There("a", "n", "3").above("v"))
    assert made.nominate(wants(), best, 0.0)


def test_disruption_budgets_count() -> None:
    """Who is kept by one goes last."""
    here = Behind(HALF, There("a", "n", "3", app="kept"), There("b", "m", "3", 50))
    assert asked(extender(here), wants(), {"v": ["uid-a"]}, budgets=[budget("kept", 0)]) == {"v": ["uid-b"]}


def test_the_room_is_kept_until_the_pod_comes() -> None:
    """For the one that others go for, and not for the next, be it the successor of a victim."""
    here = Behind({"n": "4"}, There("a", "n", "3"))
    made, first = extender(here), wants("first", "3")
    assert asked(made, first, {"v": ["uid-a"]}) == {"v": ["uid-a"]}
    assert filtered(made, nominated(first, "v"))["NodeNames"] == []
    here.ground.remove_pod(("default", "a"))
    here.residents.remove(("default", "a"))
    assert filtered(made, wants("next", "2", priority=0))["NodeNames"] == []
    assert filtered(made, nominated(first, "v"))["NodeNames"] == ["v"]
    assert here.ground.promises["default", "first"].nominee is None


def test_a_nominee_that_is_bound_is_one_no_more() -> None:
    """By whatever scheduler, be it without having asked: nobody of higher priority takes its room."""
    here = Behind({"n": "4"}, There("a", "n", "3"))
    made = extender(here)
    asked(made, wants(), {"v": ["uid-a"]})
    here.ground.confirm(("default", "comer"))
    assert here.ground.nominees() == {}
    here.ground.remove_pod(("default", "a"))
    assert filtered(made, wants("next", "3", priority=200))["NodeNames"] == []


def test_a_nominee_waits_for_its_victims() -> None:
    """Its node has failed meanwhile, which is nothing to preempt for again, and nobody else is wanted to go."""
    here = Behind({"n": "4"}, There("a", "n", "3"))
    made = extender(here)
    asked(made, wants(), {"v": ["uid-a"]})
    answer = filtered(made, nominated(wants(), "v"), now=1.0)
    assert (list(answer["FailedNodes"]), made.wants) == (["v"], {})
    assert here.ground.promises["default", "comer"].nominee == Nominee("uid-comer", 100, frozenset({("default", "a")}))
    assert filtered(made, wants("other", "1"))["NodeNames"] == []


def test_room_that_nobody_makes_lapses() -> None:
    """Where the scheduler has chosen another node, or nothing has come of it; while a victim ends, it is kept."""
    here = Behind({"n": "4"}, There("a", "n", "3"))
    made = extender(here)
    asked(made, wants(), {"v": ["uid-a"]})
    filtered(made, wants("small", "1"), now=LAPSE + 1)
    assert ("default", "comer") not in here.ground.promises
    asked(made, wants(), {"v": ["uid-a"]}, now=100.0)
    here.put(There("a", "n", "3", ending=True))
    filtered(made, wants("other", "1"), now=100.0 + LAPSE + 1)
    filtered(made, wants("other", "1"), now=101.0 + 2 * LAPSE)
    assert here.ground.promises["default", "comer"].nominee is not None


def test_a_pod_that_is_nominated_elsewhere_has_nothing_kept() -> None:
    """As when the scheduler chose a node that is no lower's."""
    here = Behind({"n": "4"}, There("a", "n", "3"))
    made = extender(here)
    asked(made, wants(), {"v": ["uid-a"], "worker": ["x"]})
    filtered(made, nominated(wants(), "worker"), "worker")
    assert here.ground.promises == {}


def test_while_others_go_for_a_pod_nobody_else_does() -> None:
    """The scheduler may have found victims on another node meanwhile: none of those goes."""
    made = extender(Behind(HALF, *FULL), Behind({"n": "4"}, There("c", "n", "4"), name="w"))
    assert asked(made, wants(), {"v": ["uid-a"]}) == {"v": ["uid-a"]}
    assert asked(made, wants(), {"w": ["uid-c"], "worker": ["x"]}) == {}
    assert asked(made, wants(), {"v": ["uid-a"], "w": ["uid-c"]}) == {"v": ["uid-a"]}


def test_a_pod_of_higher_priority_comes_before_a_nominee() -> None:
    """It takes the room that is made already, or has the same ones go."""
    here = Behind({"n": "4"}, There("a", "n", "3"))
    made = extender(here)
    asked(made, wants("first", "3"), {"v": ["uid-a"]})
    assert asked(made, wants("second", "4", priority=200), {"v": ["uid-a"]}) == {"v": ["uid-a"]}
    assert list(here.ground.promises) == [("default", "second")]
    here.ground.remove_pod(("default", "a"))
    here.residents.remove(("default", "a"))
    assert filtered(made, wants("third", "4", priority=300))["NodeNames"] == ["v"]
    assert list(here.ground.promises) == [("default", "third")]


def test_a_pod_of_the_same_priority_does_not() -> None:
    """It waits like any other."""
    made = extender(Behind({"n": "4"}, There("a", "n", "3")))
    asked(made, wants("first", "3"), {"v": ["uid-a"]})
    assert filtered(made, wants("second", "3"))["NodeNames"] == []


def test_nobody_goes_whom_the_pod_has_to_be_near() -> None:
    """Without that pod, the scheduler would not bind the other one any more."""
    terms = [{"topologyKey": "clusterID", "labelSelector": {"matchLabels": {"app": "db"}}}]
    near = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}, "priority": 100}
    here = ShownLowers(("4", "4"), ("1",))
    for name, node in (("db", "n1"), ("x", "n2")):
        pod = here.bind(asking(name, "2", spec={"priority": 0 if name == "db" else 50}, labels={"app": name}), A)
        here.land(pod, A, node)
    *_, best = VictimSelector(here.extender).best(asking("comer", "3", spec=near), {A: ()}, ())
    assert best is not None
    assert [one.pod.name for one in best.choice.victims] == ["x"]


@pytest.mark.parametrize(("ending", "victims"), [(False, ["db"]), (True, [])])
def test_a_pod_like_it_goes_where_another_one_stays(ending: bool, victims: list[str]) -> None:  # noqa: FBT001
    """The scheduler binds the pod beside that one, unless that one is about to end too."""
    terms = [{"topologyKey": "clusterID", "labelSelector": {"matchLabels": {"app": "db"}}}]
    near = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}, "priority": 100}
    here = ShownLowers(("4", "4"), ("1",))
    for name, node, priority in (("db", "n1", 0), ("stays", "n2", 200)):
        pod = asking(name, "3", spec={"priority": priority}, labels={"app": "db"})
        if ending and name == "stays":
            pod["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
        here.land(here.bind(pod, A), A, node)
    best = [*VictimSelector(here.extender).best(asking("comer", "3", spec=near), {A: ()}, ())]
    chosen = [one.choice for one in best[-1:] if one is not None]
    assert [one.pod.name for choice in chosen for one in choice.victims] == victims


def test_another_size_of_the_virtual_node_is_another_question() -> None:
    """What was found for its former size says nothing."""
    here = ShownLowers(("4",), ("1",))
    here.runs("a", "4", "n1")
    comer = asking("comer", "3", spec={"priority": 100})
    for cpu, helps in (("2", False), ("8", True)):
        sized = {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "20"}}
        changed(here.world.upper.nodes, A, lambda node, sized=sized: node.update(status=sized), "")
        here.extender.filter({"Pod": comer, "NodeNames": [A]}, 0.0)
        assert bool(here.extender.wants) is helps
