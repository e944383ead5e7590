"""Tests of the tracker's view of its virtual node, and of the pods that may be victims."""

import pytest
from preemptkit import pending_pod
from trackerkit import AllocatableLowers, being_deleted, foreign_lower_pod, remove_digest, upper_pod_requesting
from worldkit import A, B, delete_observed, make_namespace, put

from tensile.policy.extender.extender import RESERVATION_SECONDS

NAME = ("default", "web")


def test_the_view_has_the_virtual_node_with_its_bound_pods() -> None:
    """The pods and their total requests count until the pods terminate."""
    lowers = AllocatableLowers()
    pod = lowers.add_running_pod("web", "3", "n1", 7)
    assert (lowers.view.node.allocatable["cpu"], lowers.view.used["cpu"], lowers.view.used["pods"]) == (
        8000,
        3000,
        1000,
    )
    assert lowers.view.residents[NAME].priority == 7
    assert lowers.view.is_ours(NAME)
    assert lowers.view.copy_of(NAME) == f"below-{pod['metadata']['uid']}"
    put(lowers.world.lowers[A].upper_pods, being_deleted(pod))
    assert lowers.view.residents[NAME].pod.ending
    put(lowers.world.lowers[A].upper_pods, {**pod, "status": {"phase": "Succeeded"}})
    assert lowers.view.residents == {}
    assert not lowers.view.is_ours(NAME)


def test_without_its_virtual_node_there_are_no_victims() -> None:
    """The upper scheduler does not see that node either."""
    lowers = AllocatableLowers()
    pod = lowers.add_running_pod("web", "3", "n1")
    assert lowers.victims(pending_pod(cpu="2")) == [pod["metadata"]["uid"]]
    delete_observed(lowers.world.upper.nodes, A, "")
    assert lowers.surveys[A].site.virtual_node() is None
    assert lowers.victims(pending_pod(cpu="2")) == []


def test_a_lower_pod_that_only_has_the_name_is_no_mirror() -> None:
    """It may belong to another owner, or mirror an older pod of that name."""
    lowers = AllocatableLowers()
    lowers.bind(upper_pod_requesting("web", "3"), A)
    put(lowers.world.lowers[A].place_pods, foreign_lower_pod("web", "n1", "3"))
    assert lowers.view.copy_of(NAME) == ""
    assert lowers.victims(pending_pod(cpu="3")) == []
    lowers = AllocatableLowers()
    older = upper_pod_requesting("web", "3", uid="older")
    lowers.add_lower_pod(lowers.bind(older, A), A, "n1")
    lowers.bind(upper_pod_requesting("web", "3", uid="newer"), A)
    assert lowers.view.copy_of(NAME) == ""


def test_a_pod_of_an_excluded_namespace_does_not_count_as_mirrored() -> None:
    """It is no victim, because it runs only in the upper cluster."""
    lowers = AllocatableLowers()
    put(lowers.world.lowers[A].upper_pods, upper_pod_requesting("web", "3", A, namespace="kube-system"))
    assert not lowers.view.is_ours(("kube-system", "web"))


def test_the_view_has_the_labels_of_upper_namespaces() -> None:
    """Anti-affinity terms may select namespaces by labels."""
    lowers = AllocatableLowers()
    put(lowers.world.upper.namespaces, make_namespace("team", labels={"kind": "team"}))
    assert (lowers.view.space("team") or {}).get("kind") == "team"
    assert lowers.view.space("unknown") is None


def test_victims_have_a_lower_priority_and_are_mirrored_pods() -> None:
    """A victim is on the node where its removal suffices in both clusters."""
    lowers = AllocatableLowers(("4", "4"), ("4",))
    put(lowers.world.lowers[A].place_pods, foreign_lower_pod("theirs", "n2", "3"))
    pod = lowers.add_running_pod("web", "3", "n1", 7)
    assert lowers.victims(pending_pod(cpu="2", priority=7)) == []
    assert lowers.victims(pending_pod(cpu="2", priority=8)) == [pod["metadata"]["uid"]]


@pytest.mark.parametrize("later", [0.0, 1.0])
def test_free_room_of_a_nominee_is_reported_once(later: float) -> None:
    """The scheduler's request came before the lower pod of the victim was removed."""
    lowers = AllocatableLowers()
    pod = lowers.add_running_pod("web", "3", "n1")
    lowers.victims(pending_pod(cpu="2"))
    survey = lowers.surveys[A]
    assert not survey.is_relieved(later)
    lower = lowers.world.lowers[A]
    copy = lower.pods.get(*NAME)
    assert copy is not None
    lower.pods.confirm_deleted(*NAME, copy.uid)
    assert [survey.is_relieved(later) for _ in range(3)] == [True, False, False]
    assert pod["metadata"]["name"] == "web"
    assert not survey.is_relieved(later + 2 * RESERVATION_SECONDS)
    assert survey.cache.reservations == {}


def test_a_nominee_swaps_reservations_with_an_equal_pod_on_its_node() -> None:
    """The lower scheduler may choose another node than the reserved one."""
    lowers = AllocatableLowers(("4", "4"), ("4",))
    put(lowers.world.lowers[A].place_pods, foreign_lower_pod("theirs", "n2", "3"))
    lowers.add_running_pod("web", "3", "n1")
    cache, late = lowers.surveys[A].cache, upper_pod_requesting("late", "2", spec={"priority": 8})
    assert lowers.victims(late) != []
    assert cache.reservations["default", "late"].node == "n1"
    lower = lowers.world.lowers[A]
    put(lower.place_pods, foreign_lower_pod("theirs", "n2", "2"))
    early = upper_pod_requesting("early", "2", spec={"priority": 8})
    assert lowers.feasible_nodes(early) == [A, B]
    assert cache.reservations["default", "early"].node == "n2"
    lower.pods.confirm_deleted("default", "web", "below-Pod-web")
    lowers.add_lower_pod(lowers.bind(early, A), A, "n1")
    late_one = cache.reservations["default", "late"]
    assert (late_one.node, late_one.nominee is not None) == ("n2", True)
    assert lowers.used_cpus(A, "n2") == lowers.used_cpus(A, "n1") + 2 == 4


def test_a_nominees_reservation_moves_if_a_pod_of_another_owner_uses_its_room() -> None:
    """It stays on its node as long as no other node has room."""
    lowers = AllocatableLowers(("4", "4"), ("4",))
    lower, cache = lowers.world.lowers[A], lowers.surveys[A].cache
    put(lower.place_pods, foreign_lower_pod("theirs", "n2", "3"))
    lowers.add_running_pod("web", "3", "n1")
    lowers.victims(pending_pod(cpu="2"))
    lower.pods.confirm_deleted("default", "web", "below-Pod-web")
    put(lower.place_pods, foreign_lower_pod("more", "n1", "3"))
    assert cache.reservations["default", "comer"].node == "n1"
    remove_digest(lower.place_pods, foreign_lower_pod("theirs", "n2", "3"))
    put(lower.place_pods, foreign_lower_pod("still more", "n1", "1"))
    assert cache.reservations["default", "comer"].node == "n2"
    assert cache.reservations["default", "comer"].nominee is not None
