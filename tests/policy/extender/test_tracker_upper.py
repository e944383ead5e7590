"""Tests of the tracker's view of its virtual node, and of the pods that may be victims."""

import pytest
from preemptkit import wants
from trackerkit import ShownLowers, asking, being_deleted, stranger, went
from worldkit import A, B, drop, put, space

from tensile.policy.extender.extender import RESERVATION_SECONDS

NAME = ("default", "web")


def test_the_view_has_the_virtual_node_with_its_bound_pods() -> None:
    """The pods and their total requests count until the pods terminate."""
    here = ShownLowers()
    pod = here.runs("web", "3", "n1", 7)
    assert (here.above.node.allocatable["cpu"], here.above.used["cpu"], here.above.used["pods"]) == (8000, 3000, 1000)
    assert here.above.residents[NAME].priority == 7
    assert here.above.is_ours(NAME)
    assert here.above.copy_of(NAME) == f"below-{pod['metadata']['uid']}"
    put(here.world.lowers[A].upper_pods, being_deleted(pod))
    assert here.above.residents[NAME].pod.ending
    put(here.world.lowers[A].upper_pods, {**pod, "status": {"phase": "Succeeded"}})
    assert here.above.residents == {}
    assert not here.above.is_ours(NAME)


def test_without_its_virtual_node_there_are_no_victims() -> None:
    """The upper scheduler does not see that node either."""
    here = ShownLowers()
    pod = here.runs("web", "3", "n1")
    assert here.victims(wants(cpu="2")) == [pod["metadata"]["uid"]]
    drop(here.world.upper.nodes, A, "")
    assert here.surveys[A].site.virtual_node() is None
    assert here.victims(wants(cpu="2")) == []


def test_a_lower_pod_that_only_has_the_name_is_no_mirror() -> None:
    """It may belong to another owner, or mirror an older pod of that name."""
    here = ShownLowers()
    here.bind(asking("web", "3"), A)
    put(here.world.lowers[A].place_pods, stranger("web", "n1", "3"))
    assert here.above.copy_of(NAME) == ""
    assert here.victims(wants(cpu="3")) == []
    here = ShownLowers()
    older = asking("web", "3", uid="older")
    here.land(here.bind(older, A), A, "n1")
    here.bind(asking("web", "3", uid="newer"), A)
    assert here.above.copy_of(NAME) == ""


def test_a_pod_of_an_excluded_namespace_does_not_count_as_mirrored() -> None:
    """It is no victim, because it runs only in the upper cluster."""
    here = ShownLowers()
    put(here.world.lowers[A].upper_pods, asking("web", "3", A, namespace="kube-system"))
    assert not here.above.is_ours(("kube-system", "web"))


def test_the_view_has_the_labels_of_upper_namespaces() -> None:
    """Anti-affinity terms may select namespaces by labels."""
    here = ShownLowers()
    put(here.world.upper.namespaces, space("team", labels={"kind": "team"}))
    assert (here.above.space("team") or {}).get("kind") == "team"
    assert here.above.space("unknown") is None


def test_victims_have_a_lower_priority_and_are_mirrored_pods() -> None:
    """A victim is on the node where its removal suffices in both clusters."""
    here = ShownLowers(("4", "4"), ("4",))
    put(here.world.lowers[A].place_pods, stranger("theirs", "n2", "3"))
    pod = here.runs("web", "3", "n1", 7)
    assert here.victims(wants(cpu="2", priority=7)) == []
    assert here.victims(wants(cpu="2", priority=8)) == [pod["metadata"]["uid"]]


@pytest.mark.parametrize("later", [0.0, 1.0])
def test_free_room_of_a_nominee_is_reported_once(later: float) -> None:
    """The scheduler's request came before the lower pod of the victim was removed."""
    here = ShownLowers()
    pod = here.runs("web", "3", "n1")
    here.victims(wants(cpu="2"))
    survey = here.surveys[A]
    assert not survey.is_relieved(later)
    lower = here.world.lowers[A]
    copy = lower.pods.get(*NAME)
    assert copy is not None
    lower.pods.confirm_deleted(*NAME, copy.uid)
    assert [survey.is_relieved(later) for _ in range(3)] == [True, False, False]
    assert pod["metadata"]["name"] == "web"
    assert not survey.is_relieved(later + 2 * RESERVATION_SECONDS)
    assert survey.cache.reservations == {}


def test_a_nominee_swaps_reservations_with_an_equal_pod_on_its_node() -> None:
    """The lower scheduler may choose another node than the reserved one."""
    here = ShownLowers(("4", "4"), ("4",))
    put(here.world.lowers[A].place_pods, stranger("theirs", "n2", "3"))
    here.runs("web", "3", "n1")
    ground, late = here.surveys[A].cache, asking("late", "2", spec={"priority": 8})
    assert here.victims(late) != []
    assert ground.reservations["default", "late"].node == "n1"
    lower = here.world.lowers[A]
    put(lower.place_pods, stranger("theirs", "n2", "2"))
    early = asking("early", "2", spec={"priority": 8})
    assert here.ask(early) == [A, B]
    assert ground.reservations["default", "early"].node == "n2"
    lower.pods.confirm_deleted("default", "web", "below-Pod-web")
    here.land(here.bind(early, A), A, "n1")
    late_one = ground.reservations["default", "late"]
    assert (late_one.node, late_one.nominee is not None) == ("n2", True)
    assert here.used(A, "n2") == here.used(A, "n1") + 2 == 4


def test_a_nominees_reservation_moves_if_a_pod_of_another_owner_uses_its_room() -> None:
    """It stays on its node as long as no other node has room."""
    here = ShownLowers(("4", "4"), ("4",))
    lower, ground = here.world.lowers[A], here.surveys[A].cache
    put(lower.place_pods, stranger("theirs", "n2", "3"))
    here.runs("web", "3", "n1")
    here.victims(wants(cpu="2"))
    lower.pods.confirm_deleted("default", "web", "below-Pod-web")
    put(lower.place_pods, stranger("more", "n1", "3"))
    assert ground.reservations["default", "comer"].node == "n1"
    went(lower.place_pods, stranger("theirs", "n2", "3"))
    put(lower.place_pods, stranger("still more", "n1", "1"))
    assert ground.reservations["default", "comer"].node == "n2"
    assert ground.reservations["default", "comer"].nominee is not None
