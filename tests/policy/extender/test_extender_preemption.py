"""Tests of the extender's preemption answers for the kube-scheduler, and of its filter answers before them."""

from typing import Any

import pytest
from preemptkit import ExistingPod, VirtualNodeFixture, budget, extender, pending_pod
from trackerkit import AllocatableLowers, upper_pod_requesting
from worldkit import A, change_as_other_client

from tensile.policy.extender.extender import RESERVATION_SECONDS, SchedulerExtender
from tensile.policy.extender.node_cache import Nominee
from tensile.policy.extender.preemption_controller import PreemptResponder, preemptor_of

Manifest = dict[str, Any]
HALF = {"n": "4", "m": "4"}
"""Real nodes; with three cpu taken of each their sum has room for two, and neither has."""
FULL = (ExistingPod("a", "n", "3"), ExistingPod("b", "m", "3", 50))


def filtered(made: SchedulerExtender, wanted: Manifest, *names: str, now: float = 0.0) -> Manifest:
    """Return the filter answer for a pod, by default for virtual node v."""
    return made.filter({"Pod": wanted, "Nodes": None, "NodeNames": list(names or ("v",))}, now)


def preempt(
    made: SchedulerExtender, wanted: Manifest, offered: dict[str, list[str]], **given: Any
) -> dict[str, list[str]]:
    """Return the victims by virtual node, as UIDs, for the victims that the scheduler offers by the sum."""
    victims = {name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0} for name, uids in offered.items()}
    question = {"Pod": wanted, "NodeNameToMetaVictims": victims}
    *_, answer = PreemptResponder(made).answer(question, given.get("budgets", ()), given.get("now", 0.0))
    return {name: [one["UID"] for one in found["Pods"]] for name, found in answer["NodeNameToMetaVictims"].items()}


def nominated(wanted: Manifest, name: str) -> Manifest:
    """Return a pod with a nominated node."""
    return {**wanted, "status": {"nominatedNodeName": name}}


@pytest.mark.parametrize(
    ("wanted", "field", "wanting"),
    [
        pytest.param(pending_pod(), "FailedNodes", ["uid-comer"], id="victims-exist"),
        pytest.param(pending_pod(preemptionPolicy="Never"), "FailedNodes", [], id="preemption-never"),
        pytest.param(pending_pod(priority=0), "FailedNodes", [], id="no-lower-priority"),
        pytest.param(pending_pod(cpu="5"), "FailedAndUnresolvableNodes", [], id="too-large"),
        pytest.param(pending_pod(nodeSelector={"disk": "ssd"}), "FailedAndUnresolvableNodes", [], id="wrong-node"),
    ],
)
def test_a_refusal_is_resolvable_only_if_the_removal_of_pods_would_help(
    wanted: Manifest, field: str, wanting: list[str]
) -> None:
    """Preemption or time may help; pods with victims are in `wants`, because the scheduler cannot find these."""
    made = extender(VirtualNodeFixture(HALF, *FULL))
    answer = filtered(made, wanted)
    assert (answer["NodeNames"], list(answer[field])) == ([], ["v"])
    assert list(made.wants) == wanting


def test_a_node_is_unresolvable_if_its_lower_priority_pods_do_not_suffice() -> None:
    """Otherwise the scheduler would search for victims by the sum, and report that it found none."""
    virtual_node = VirtualNodeFixture({"n": "4"}, ExistingPod("a", "n", "1"), ExistingPod("b", "n", "3", 100))
    made = extender(virtual_node)
    assert list(filtered(made, pending_pod())["FailedAndUnresolvableNodes"]) == ["v"]
    assert made.wants == {}
    virtual_node.add_pod(ExistingPod("c", "n", "0"))
    assert list(filtered(made, pending_pod())["FailedAndUnresolvableNodes"]) == ["v"]
    virtual_node.residents.put(("default", "b"), ExistingPod("b", "n", "3", 10).upper_pod("v"))
    assert list(filtered(made, pending_pod())["FailedNodes"]) == ["v"]


def test_a_pod_that_fits_on_any_node_is_not_wanted() -> None:
    """The node may be another virtual node or one that is not virtual."""
    made = extender(VirtualNodeFixture(HALF, *FULL), VirtualNodeFixture({"n": "4"}, name="w"))
    filtered(made, pending_pod())
    assert list(made.wants) == ["uid-comer"]
    assert filtered(made, pending_pod(), "v", "w")["NodeNames"] == ["w"]
    assert made.wants == {}
    assert filtered(made, pending_pod(), "v", "worker")["NodeNames"] == ["worker"]
    assert made.wants == {}


def test_the_schedulers_victims_are_replaced_by_those_of_the_best_lower_node() -> None:
    """Only the best virtual node is returned; nodes that are not virtual keep their victims."""
    made = extender(
        VirtualNodeFixture(HALF, *FULL), VirtualNodeFixture({"n": "4"}, ExistingPod("c", "n", "4", 1), name="w")
    )
    offered = {"v": ["uid-b"], "w": ["uid-c"], "worker": ["x", "y"]}
    assert preempt(made, pending_pod(), offered) == {"v": ["uid-a"], "worker": ["x", "y"]}
    assert preempt(made, pending_pod("other"), {"w": ["uid-c"]}) == {"w": ["uid-c"]}


def test_a_cheaper_virtual_node_that_is_not_offered_is_left_to_the_extender() -> None:
    """The scheduler gets no victims and the pod remains wanted, unless a node that is not virtual is offered."""
    made = extender(
        VirtualNodeFixture(HALF, *FULL), VirtualNodeFixture({"n": "4"}, ExistingPod("c", "n", "4", 60), name="w")
    )
    filtered(made, pending_pod())
    assert preempt(made, pending_pod(), {"w": ["uid-c"]}) == {}
    assert list(made.wants) == ["uid-comer"]
    assert preempt(made, pending_pod(), {"w": ["uid-c"], "worker": ["x"]}) == {"w": ["uid-c"], "worker": ["x"]}
    assert made.wants == {}


def test_a_pod_is_not_wanted_any_more_if_the_schedulers_victims_cost_less() -> None:
    """The scheduler preempts on the virtual node that it offered."""
    dear = VirtualNodeFixture(HALF, ExistingPod("a", "n", "3", 9), ExistingPod("b", "m", "3", 9))
    made = extender(dear, VirtualNodeFixture({"n": "4"}, ExistingPod("c", "n", "4", 1), name="w"))
    filtered(made, pending_pod())
    assert list(made.wants) == ["uid-comer"]
    assert preempt(made, pending_pod(), {"w": ["uid-c"]}) == {"w": ["uid-c"]}
    assert made.wants == {}


def test_a_virtual_node_without_sufficient_victims_is_omitted() -> None:
    """It is omitted too if budgets or the cluster state are unknown, or if the pod may not preempt."""
    made = extender(VirtualNodeFixture(HALF, *FULL))
    assert preempt(made, pending_pod(cpu="5"), {"v": ["uid-a", "uid-b"]}) == {}
    assert preempt(made, pending_pod(), {"v": ["uid-a"]}, budgets=None) == {}
    assert preempt(made, pending_pod(preemptionPolicy="Never"), {"v": ["uid-a"]}) == {}
    unknown = extender(VirtualNodeFixture(HALF, *FULL))
    object.__setattr__(unknown, "sites", {"v": unknown.sites["v"]._replace(is_known=lambda: False)})
    assert preempt(unknown, pending_pod(), {"v": ["uid-a"]}) == {}
    foreign = unknown.sites["v"]._replace(is_known=lambda: True, project=lambda _: None)
    assert preemptor_of(pending_pod(), foreign) is None


def test_a_victim_that_was_removed_is_not_nominated_for() -> None:
    """The scheduler would reject an answer with an unknown victim, and use its own choice."""
    virtual_node = VirtualNodeFixture(HALF, *FULL)
    made = PreemptResponder(extender(virtual_node))
    *_, best = made.best(pending_pod(), {"v": ()}, ())
    assert best is not None
    virtual_node.residents.remove(("default", "a"))
    assert not made.nominate(pending_pod(), best, 0.0)
    virtual_node.residents.put(("default", "a"), ExistingPod("a", "n", "3").upper_pod("v"))
    assert made.nominate(pending_pod(), best, 0.0)


def test_pods_protected_by_a_disruption_budget_are_the_last_victims() -> None:
    """Another node with an unprotected victim of higher priority is preferred."""
    virtual_node = VirtualNodeFixture(HALF, ExistingPod("a", "n", "3", app="kept"), ExistingPod("b", "m", "3", 50))
    assert preempt(extender(virtual_node), pending_pod(), {"v": ["uid-a"]}, budgets=[budget("kept", 0)]) == {
        "v": ["uid-b"]
    }


def test_room_of_victims_is_reserved_for_the_nominee() -> None:
    """No other pod gets it, not even the successor of a victim; the nominee fits once its victims are removed."""
    virtual_node = VirtualNodeFixture({"n": "4"}, ExistingPod("a", "n", "3"))
    made, first = extender(virtual_node), pending_pod("first", "3")
    assert preempt(made, first, {"v": ["uid-a"]}) == {"v": ["uid-a"]}
    assert filtered(made, nominated(first, "v"))["NodeNames"] == []
    virtual_node.node_cache.remove_pod(("default", "a"))
    virtual_node.residents.remove(("default", "a"))
    assert filtered(made, pending_pod("next", "2", priority=0))["NodeNames"] == []
    assert filtered(made, nominated(first, "v"))["NodeNames"] == ["v"]
    assert virtual_node.node_cache.reservations["default", "first"].nominee is None


def test_a_bound_nominee_is_a_plain_reservation() -> None:
    """Any scheduler may have bound it, also without a request; a pod of higher priority does not get its room."""
    virtual_node = VirtualNodeFixture({"n": "4"}, ExistingPod("a", "n", "3"))
    made = extender(virtual_node)
    preempt(made, pending_pod(), {"v": ["uid-a"]})
    virtual_node.node_cache.confirm(("default", "comer"))
    assert virtual_node.node_cache.nominees() == {}
    virtual_node.node_cache.remove_pod(("default", "a"))
    assert filtered(made, pending_pod("next", "3", priority=200))["NodeNames"] == []


def test_a_nominee_waits_for_its_victims_without_another_preemption() -> None:
    """Its node is refused until then, which must not cause another preemption or a record in `wants`."""
    virtual_node = VirtualNodeFixture({"n": "4"}, ExistingPod("a", "n", "3"))
    made = extender(virtual_node)
    preempt(made, pending_pod(), {"v": ["uid-a"]})
    answer = filtered(made, nominated(pending_pod(), "v"), now=1.0)
    assert (list(answer["FailedNodes"]), made.wants) == (["v"], {})
    assert virtual_node.node_cache.reservations["default", "comer"].nominee == Nominee(
        "uid-comer", 100, frozenset({("default", "a")})
    )
    assert filtered(made, pending_pod("other", "1"))["NodeNames"] == []


def test_a_nominees_reservation_expires_unless_a_victim_is_terminating() -> None:
    """The scheduler may have chosen another node, or the preemption may have failed."""
    virtual_node = VirtualNodeFixture({"n": "4"}, ExistingPod("a", "n", "3"))
    made = extender(virtual_node)
    preempt(made, pending_pod(), {"v": ["uid-a"]})
    filtered(made, pending_pod("small", "1"), now=RESERVATION_SECONDS + 1)
    assert ("default", "comer") not in virtual_node.node_cache.reservations
    preempt(made, pending_pod(), {"v": ["uid-a"]}, now=100.0)
    virtual_node.add_pod(ExistingPod("a", "n", "3", is_terminating=True))
    filtered(made, pending_pod("other", "1"), now=100.0 + RESERVATION_SECONDS + 1)
    filtered(made, pending_pod("other", "1"), now=101.0 + 2 * RESERVATION_SECONDS)
    assert virtual_node.node_cache.reservations["default", "comer"].nominee is not None


def test_a_pod_nominated_to_another_node_loses_its_reservation() -> None:
    """The scheduler may choose a node that is not virtual."""
    virtual_node = VirtualNodeFixture({"n": "4"}, ExistingPod("a", "n", "3"))
    made = extender(virtual_node)
    preempt(made, pending_pod(), {"v": ["uid-a"], "worker": ["x"]})
    filtered(made, nominated(pending_pod(), "worker"), "worker")
    assert virtual_node.node_cache.reservations == {}


def test_a_pod_with_victims_on_one_virtual_node_gets_none_on_another() -> None:
    """The scheduler may have found other victims since then, and none of those is preempted."""
    made = extender(
        VirtualNodeFixture(HALF, *FULL), VirtualNodeFixture({"n": "4"}, ExistingPod("c", "n", "4"), name="w")
    )
    assert preempt(made, pending_pod(), {"v": ["uid-a"]}) == {"v": ["uid-a"]}
    assert preempt(made, pending_pod(), {"w": ["uid-c"], "worker": ["x"]}) == {}
    assert preempt(made, pending_pod(), {"v": ["uid-a"], "w": ["uid-c"]}) == {"v": ["uid-a"]}


def test_a_pod_of_higher_priority_replaces_a_nominee() -> None:
    """It gets the room that is already free, or the same victims."""
    virtual_node = VirtualNodeFixture({"n": "4"}, ExistingPod("a", "n", "3"))
    made = extender(virtual_node)
    preempt(made, pending_pod("first", "3"), {"v": ["uid-a"]})
    assert preempt(made, pending_pod("second", "4", priority=200), {"v": ["uid-a"]}) == {"v": ["uid-a"]}
    assert list(virtual_node.node_cache.reservations) == [("default", "second")]
    virtual_node.node_cache.remove_pod(("default", "a"))
    virtual_node.residents.remove(("default", "a"))
    assert filtered(made, pending_pod("third", "4", priority=300))["NodeNames"] == ["v"]
    assert list(virtual_node.node_cache.reservations) == [("default", "third")]


def test_a_pod_of_the_same_priority_does_not_replace_a_nominee() -> None:
    """It waits like any other pod."""
    made = extender(VirtualNodeFixture({"n": "4"}, ExistingPod("a", "n", "3")))
    preempt(made, pending_pod("first", "3"), {"v": ["uid-a"]})
    assert filtered(made, pending_pod("second", "3"))["NodeNames"] == []


def test_pods_that_match_the_preemptors_affinity_are_no_victims() -> None:
    """Without that pod, the scheduler would not bind the preemptor any more."""
    terms = [{"topologyKey": "clusterID", "labelSelector": {"matchLabels": {"app": "db"}}}]
    near = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}, "priority": 100}
    lowers = AllocatableLowers(("4", "4"), ("1",))
    for name, node in (("db", "n1"), ("x", "n2")):
        pod = lowers.bind(
            upper_pod_requesting(name, "2", spec={"priority": 0 if name == "db" else 50}, labels={"app": name}), A
        )
        lowers.add_lower_pod(pod, A, node)
    *_, best = PreemptResponder(lowers.extender).best(upper_pod_requesting("comer", "3", spec=near), {A: ()}, ())
    assert best is not None
    assert [one.pod.name for one in best.choice.victims] == ["x"]


@pytest.mark.parametrize(("ending", "victims"), [(False, ["db"]), (True, [])])
def test_a_pod_that_matches_the_affinity_may_be_a_victim_if_another_stays(ending: bool, victims: list[str]) -> None:  # noqa: FBT001
    """The scheduler binds the preemptor next to the other match, unless that one is terminating too."""
    terms = [{"topologyKey": "clusterID", "labelSelector": {"matchLabels": {"app": "db"}}}]
    near = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}, "priority": 100}
    lowers = AllocatableLowers(("4", "4"), ("1",))
    for name, node, priority in (("db", "n1", 0), ("stays", "n2", 200)):
        pod = upper_pod_requesting(name, "3", spec={"priority": priority}, labels={"app": "db"})
        if ending and name == "stays":
            pod["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
        lowers.add_lower_pod(lowers.bind(pod, A), A, node)
    best = [*PreemptResponder(lowers.extender).best(upper_pod_requesting("comer", "3", spec=near), {A: ()}, ())]
    chosen = [one.choice for one in best[-1:] if one is not None]
    assert [one.pod.name for choice in chosen for one in choice.victims] == victims


def test_preemption_is_evaluated_again_if_the_virtual_nodes_size_changes() -> None:
    """The cached result for its former size does not apply."""
    lowers = AllocatableLowers(("4",), ("1",))
    lowers.add_running_pod("a", "4", "n1")
    comer = upper_pod_requesting("comer", "3", spec={"priority": 100})
    for cpu, helps in (("2", False), ("8", True)):
        sized = {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "20"}}
        change_as_other_client(lowers.world.upper.nodes, A, lambda node, sized=sized: node.update(status=sized), "")
        lowers.extender.filter({"Pod": comer, "NodeNames": [A]}, 0.0)
        assert bool(lowers.extender.wants) is helps
