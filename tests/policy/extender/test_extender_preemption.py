"""Tests of the extender's preemption answers for the kube-scheduler, and of its filter answers before them."""

from typing import Any

import pytest
from preemptkit import Behind, There, budget, extender, wants
from trackerkit import ShownLowers, asking
from worldkit import A, changed

from tensile.policy.extender.extender import RESERVATION_SECONDS, SchedulerExtender
from tensile.policy.extender.node_cache import Nominee
from tensile.policy.extender.preemption_controller import VictimSelector, preemptor_of

Manifest = dict[str, Any]
HALF = {"n": "4", "m": "4"}
"""Real nodes; with three cpu taken of each their sum has room for two, and neither has."""
FULL = (There("a", "n", "3"), There("b", "m", "3", 50))


def filtered(made: SchedulerExtender, wanted: Manifest, *names: str, now: float = 0.0) -> Manifest:
    """Return the filter answer for a pod, by default for virtual node v."""
    return made.filter({"Pod": wanted, "Nodes": None, "NodeNames": list(names or ("v",))}, now)


def asked(
    made: SchedulerExtender, wanted: Manifest, offered: dict[str, list[str]], **given: Any
) -> dict[str, list[str]]:
    """Return the victims by virtual node, as UIDs, for the victims that the scheduler offers by the sum."""
    victims = {name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0} for name, uids in offered.items()}
    question = {"Pod": wanted, "NodeNameToMetaVictims": victims}
    *_, answer = VictimSelector(made).answer(question, given.get("budgets", ()), given.get("now", 0.0))
    return {name: [one["UID"] for one in found["Pods"]] for name, found in answer["NodeNameToMetaVictims"].items()}


def nominated(wanted: Manifest, name: str) -> Manifest:
    """Return a pod with a nominated node."""
    return {**wanted, "status": {"nominatedNodeName": name}}


@pytest.mark.parametrize(
    ("wanted", "field", "wanting"),
    [
        pytest.param(wants(), "FailedNodes", ["uid-comer"], id="victims-exist"),
        pytest.param(wants(preemptionPolicy="Never"), "FailedNodes", [], id="preemption-never"),
        pytest.param(wants(priority=0), "FailedNodes", [], id="no-lower-priority"),
        pytest.param(wants(cpu="5"), "FailedAndUnresolvableNodes", [], id="too-large"),
        pytest.param(wants(nodeSelector={"disk": "ssd"}), "FailedAndUnresolvableNodes", [], id="wrong-node"),
    ],
)
def test_a_refusal_is_resolvable_only_if_the_removal_of_pods_would_help(
    wanted: Manifest, field: str, wanting: list[str]
) -> None:
    """Preemption or time may help; pods with victims are in `wants`, because the scheduler cannot find these."""
    made = extender(Behind(HALF, *FULL))
    answer = filtered(made, wanted)
    assert (answer["NodeNames"], list(answer[field])) == ([], ["v"])
    assert list(made.wants) == wanting


def test_a_node_is_unresolvable_if_its_lower_priority_pods_do_not_suffice() -> None:
    """Otherwise the scheduler would search for victims by the sum, and report that it found none."""
    here = Behind({"n": "4"}, There("a", "n", "1"), There("b", "n", "3", 100))
    made = extender(here)
    assert list(filtered(made, wants())["FailedAndUnresolvableNodes"]) == ["v"]
    assert made.wants == {}
    here.put(There("c", "n", "0"))
    assert list(filtered(made, wants())["FailedAndUnresolvableNodes"]) == ["v"]
    here.residents.put(("default", "b"), There("b", "n", "3", 10).above("v"))
    assert list(filtered(made, wants())["FailedNodes"]) == ["v"]


def test_a_pod_that_fits_on_any_node_is_not_wanted() -> None:
    """The node may be another virtual node or one that is not virtual."""
    made = extender(Behind(HALF, *FULL), Behind({"n": "4"}, name="w"))
    filtered(made, wants())
    assert list(made.wants) == ["uid-comer"]
    assert filtered(made, wants(), "v", "w")["NodeNames"] == ["w"]
    assert made.wants == {}
    assert filtered(made, wants(), "v", "worker")["NodeNames"] == ["worker"]
    assert made.wants == {}


def test_the_schedulers_victims_are_replaced_by_those_of_the_best_lower_node() -> None:
    """Only the best virtual node is returned; nodes that are not virtual keep their victims."""
    made = extender(Behind(HALF, *FULL), Behind({"n": "4"}, There("c", "n", "4", 1), name="w"))
    offered = {"v": ["uid-b"], "w": ["uid-c"], "worker": ["x", "y"]}
    assert asked(made, wants(), offered) == {"v": ["uid-a"], "worker": ["x", "y"]}
    assert asked(made, wants("other"), {"w": ["uid-c"]}) == {"w": ["uid-c"]}


def test_a_cheaper_virtual_node_that_is_not_offered_is_left_to_the_extender() -> None:
    """The scheduler gets no victims and the pod remains wanted, unless a node that is not virtual is offered."""
    made = extender(Behind(HALF, *FULL), Behind({"n": "4"}, There("c", "n", "4", 60), name="w"))
    filtered(made, wants())
    assert asked(made, wants(), {"w": ["uid-c"]}) == {}
    assert list(made.wants) == ["uid-comer"]
    assert asked(made, wants(), {"w": ["uid-c"], "worker": ["x"]}) == {"w": ["uid-c"], "worker": ["x"]}
    assert made.wants == {}


def test_a_pod_is_not_wanted_any_more_if_the_schedulers_victims_cost_less() -> None:
    """The scheduler preempts on the virtual node that it offered."""
    dear = Behind(HALF, There("a", "n", "3", 9), There("b", "m", "3", 9))
    made = extender(dear, Behind({"n": "4"}, There("c", "n", "4", 1), name="w"))
    filtered(made, wants())
    assert list(made.wants) == ["uid-comer"]
    assert asked(made, wants(), {"w": ["uid-c"]}) == {"w": ["uid-c"]}
    assert made.wants == {}


def test_a_virtual_node_without_sufficient_victims_is_omitted() -> None:
    """It is omitted too if budgets or the cluster state are unknown, or if the pod may not preempt."""
    made = extender(Behind(HALF, *FULL))
    assert asked(made, wants(cpu="5"), {"v": ["uid-a", "uid-b"]}) == {}
    assert asked(made, wants(), {"v": ["uid-a"]}, budgets=None) == {}
    assert asked(made, wants(preemptionPolicy="Never"), {"v": ["uid-a"]}) == {}
    unknown = extender(Behind(HALF, *FULL))
    object.__setattr__(unknown, "sites", {"v": unknown.sites["v"]._replace(is_known=lambda: False)})
    assert asked(unknown, wants(), {"v": ["uid-a"]}) == {}
    foreign = unknown.sites["v"]._replace(is_known=lambda: True, project=lambda _: None)
    assert preemptor_of(wants(), foreign) is None


def test_a_victim_that_was_removed_is_not_nominated_for() -> None:
    """The scheduler would reject an answer with an unknown victim, and use its own choice."""
    here = Behind(HALF, *FULL)
    made = VictimSelector(extender(here))
    *_, best = made.best(wants(), {"v": ()}, ())
    assert best is not None
    here.residents.remove(("default", "a"))
    assert not made.nominate(wants(), best, 0.0)
    here.residents.put(("default", "a"), There("a", "n", "3").above("v"))
    assert made.nominate(wants(), best, 0.0)


def test_pods_protected_by_a_disruption_budget_are_the_last_victims() -> None:
    """Another node with an unprotected victim of higher priority is preferred."""
    here = Behind(HALF, There("a", "n", "3", app="kept"), There("b", "m", "3", 50))
    assert asked(extender(here), wants(), {"v": ["uid-a"]}, budgets=[budget("kept", 0)]) == {"v": ["uid-b"]}


def test_room_of_victims_is_reserved_for_the_nominee() -> None:
    """No other pod gets it, not even the successor of a victim; the nominee fits once its victims are removed."""
    here = Behind({"n": "4"}, There("a", "n", "3"))
    made, first = extender(here), wants("first", "3")
    assert asked(made, first, {"v": ["uid-a"]}) == {"v": ["uid-a"]}
    assert filtered(made, nominated(first, "v"))["NodeNames"] == []
    here.ground.remove_pod(("default", "a"))
    here.residents.remove(("default", "a"))
    assert filtered(made, wants("next", "2", priority=0))["NodeNames"] == []
    assert filtered(made, nominated(first, "v"))["NodeNames"] == ["v"]
    assert here.ground.reservations["default", "first"].nominee is None


def test_a_bound_nominee_is_a_plain_reservation() -> None:
    """Any scheduler may have bound it, also without a request; a pod of higher priority does not get its room."""
    here = Behind({"n": "4"}, There("a", "n", "3"))
    made = extender(here)
    asked(made, wants(), {"v": ["uid-a"]})
    here.ground.confirm(("default", "comer"))
    assert here.ground.nominees() == {}
    here.ground.remove_pod(("default", "a"))
    assert filtered(made, wants("next", "3", priority=200))["NodeNames"] == []


def test_a_nominee_waits_for_its_victims_without_another_preemption() -> None:
    """Its node is refused until then, which must not cause another preemption or a record in `wants`."""
    here = Behind({"n": "4"}, There("a", "n", "3"))
    made = extender(here)
    asked(made, wants(), {"v": ["uid-a"]})
    answer = filtered(made, nominated(wants(), "v"), now=1.0)
    assert (list(answer["FailedNodes"]), made.wants) == (["v"], {})
    assert here.ground.reservations["default", "comer"].nominee == Nominee(
        "uid-comer", 100, frozenset({("default", "a")})
    )
    assert filtered(made, wants("other", "1"))["NodeNames"] == []


def test_a_nominees_reservation_expires_unless_a_victim_is_terminating() -> None:
    """The scheduler may have chosen another node, or the preemption may have failed."""
    here = Behind({"n": "4"}, There("a", "n", "3"))
    made = extender(here)
    asked(made, wants(), {"v": ["uid-a"]})
    filtered(made, wants("small", "1"), now=RESERVATION_SECONDS + 1)
    assert ("default", "comer") not in here.ground.reservations
    asked(made, wants(), {"v": ["uid-a"]}, now=100.0)
    here.put(There("a", "n", "3", ending=True))
    filtered(made, wants("other", "1"), now=100.0 + RESERVATION_SECONDS + 1)
    filtered(made, wants("other", "1"), now=101.0 + 2 * RESERVATION_SECONDS)
    assert here.ground.reservations["default", "comer"].nominee is not None


def test_a_pod_nominated_to_another_node_loses_its_reservation() -> None:
    """The scheduler may choose a node that is not virtual."""
    here = Behind({"n": "4"}, There("a", "n", "3"))
    made = extender(here)
    asked(made, wants(), {"v": ["uid-a"], "worker": ["x"]})
    filtered(made, nominated(wants(), "worker"), "worker")
    assert here.ground.reservations == {}


def test_a_pod_with_victims_on_one_virtual_node_gets_none_on_another() -> None:
    """The scheduler may have found other victims since then, and none of those is preempted."""
    made = extender(Behind(HALF, *FULL), Behind({"n": "4"}, There("c", "n", "4"), name="w"))
    assert asked(made, wants(), {"v": ["uid-a"]}) == {"v": ["uid-a"]}
    assert asked(made, wants(), {"w": ["uid-c"], "worker": ["x"]}) == {}
    assert asked(made, wants(), {"v": ["uid-a"], "w": ["uid-c"]}) == {"v": ["uid-a"]}


def test_a_pod_of_higher_priority_replaces_a_nominee() -> None:
    """It gets the room that is already free, or the same victims."""
    here = Behind({"n": "4"}, There("a", "n", "3"))
    made = extender(here)
    asked(made, wants("first", "3"), {"v": ["uid-a"]})
    assert asked(made, wants("second", "4", priority=200), {"v": ["uid-a"]}) == {"v": ["uid-a"]}
    assert list(here.ground.reservations) == [("default", "second")]
    here.ground.remove_pod(("default", "a"))
    here.residents.remove(("default", "a"))
    assert filtered(made, wants("third", "4", priority=300))["NodeNames"] == ["v"]
    assert list(here.ground.reservations) == [("default", "third")]


def test_a_pod_of_the_same_priority_does_not_replace_a_nominee() -> None:
    """It waits like any other pod."""
    made = extender(Behind({"n": "4"}, There("a", "n", "3")))
    asked(made, wants("first", "3"), {"v": ["uid-a"]})
    assert filtered(made, wants("second", "3"))["NodeNames"] == []


def test_pods_that_match_the_preemptors_affinity_are_no_victims() -> None:
    """Without that pod, the scheduler would not bind the preemptor any more."""
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
def test_a_pod_that_matches_the_affinity_may_be_a_victim_if_another_stays(ending: bool, victims: list[str]) -> None:  # noqa: FBT001
    """The scheduler binds the preemptor next to the other match, unless that one is terminating too."""
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


def test_preemption_is_evaluated_again_if_the_virtual_nodes_size_changes() -> None:
    """The cached result for its former size does not apply."""
    here = ShownLowers(("4",), ("1",))
    here.runs("a", "4", "n1")
    comer = asking("comer", "3", spec={"priority": 100})
    for cpu, helps in (("2", False), ("8", True)):
        sized = {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "20"}}
        changed(here.world.upper.nodes, A, lambda node, sized=sized: node.update(status=sized), "")
        here.extender.filter({"Pod": comer, "NodeNames": [A]}, 0.0)
        assert bool(here.extender.wants) is helps
