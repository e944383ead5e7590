"""Tests of the cluster tracker: the node cache follows the stores, and reservations are settled by the pods' fate."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from trackerkit import TrackedLowers, asking, being_deleted, stranger, went
from worldkit import A, B, drop, lower_node, marked, put, space, stored

from tensile.objects import Manifest, labels
from tensile.policy.extender.extender import RESERVATION_SECONDS
from tensile.policy.extender.tracker import ClusterTracker, PodProjector


def test_objects_that_exist_before_the_start_count() -> None:
    """These are nodes, namespaces, mirrored pods and pods of other owners."""
    before = TrackedLowers()
    pod = before.bind(asking("ours", "1"), A)
    before.land(pod, A, "n1")
    put(before.world.lowers[A].place_pods, stranger("theirs", "n1", "2"))
    made = ClusterTracker(
        before.world, before.world.lowers[A], PodProjector(before.world, before.world.lowers[A]), print
    )
    node = made.cache.snapshot.nodes["n1"]
    assert (sorted(node.pods), node.used["cpu"]) == ([("default", "ours"), ("default", "theirs")], 3000)
    assert "default" in made.cache.snapshot.spaces


def test_the_tracker_follows_pods_and_nodes_of_the_lower() -> None:
    """Pods of other owners and nodes appear, change and are removed; a heartbeat frees no room."""
    here = TrackedLowers()
    lower, ground = here.world.lowers[A], here.surveys[A].cache
    put(lower.place_pods, stranger("s", "n1", "3"))
    assert here.ask(asking()) == [B]
    grown = ground.grown
    here.nodes(A, lower_node("n1", "4"))
    assert ground.grown == grown
    put(lower.place_pods, stranger("s", "n1", "3", "Succeeded"))
    assert here.ask(asking()) == [A, B]
    here.nodes(A, lower_node("n1", "2"))
    assert here.ask(asking()) == [B]
    here.nodes(A, lower_node("n2", "8"))
    assert here.ask(asking(cpu="8")) == [A]
    went(lower.place_nodes, lower_node("n2", "8"))
    assert here.ask(asking(cpu="8")) == []


def test_the_tracker_follows_namespace_labels() -> None:
    """An update without a change frees no room."""
    here = TrackedLowers()
    lower, ground = here.world.lowers[A], here.surveys[A].cache
    put(lower.namespaces, space("other", labels={"team": "x"}))
    assert ground.snapshot.spaces["other"]["team"] == "x"
    grown = ground.grown
    put(lower.namespaces, space("other", labels={"team": "x"}))
    assert ground.grown == grown
    drop(lower.namespaces, "other", "")
    assert "other" not in ground.snapshot.spaces


def test_a_bound_pods_reservation_is_kept_and_released_in_the_other_lower() -> None:
    """It does not expire until the pod has its lower node."""
    here = TrackedLowers()
    pod = asking()
    assert here.ask(pod) == [A, B]
    assert (here.used(A), here.used(B)) == (3, 3)
    here.bind(pod, A)
    assert (here.used(A), here.used(B)) == (3, 0)
    assert here.ask(asking("next"), RESERVATION_SECONDS * 9) == [B]
    here.land(pod, A, "n1")
    assert here.used(A) == 3
    assert not here.surveys[A].cache.reservations


def test_a_pod_bound_without_a_request_gets_a_reservation() -> None:
    """Another scheduler bound it, or the process started later; the next pod does not get its room."""
    here = TrackedLowers()
    here.bind(asking("early"), A)
    assert here.ask(asking("next")) == [B]
    assert here.used(A) == 3


def test_a_bound_pod_without_room_gets_the_next_free_room() -> None:
    """It comes before any new pod, until it has its node or is deleted."""
    here = TrackedLowers(("2",), ("2",))
    waiting = here.bind(asking("waiting"), A)
    assert here.ask(asking("next")) == []
    here.nodes(A, lower_node("n2", "4"))
    assert here.ask(asking("next")) == []
    here.land(waiting, A, "n2")
    assert here.ask(asking("next", "1")) == [A, B]
    gone = here.bind(asking("gone"), B)
    drop(here.world.lowers[B].upper_pods, gone["metadata"]["name"])
    here.nodes(B, lower_node("n2", "4"))
    assert here.ask(asking("last")) == [B]


ENDS = pytest.mark.parametrize(
    "end",
    [
        lambda here, pod: drop(here.world.lowers[A].upper_pods, pod["metadata"]["name"], pod["metadata"]["namespace"]),
        lambda here, pod: put(here.world.lowers[A].upper_pods, {**pod, "status": {"phase": "Failed"}}),
        lambda here, pod: put(here.world.lowers[A].upper_pods, being_deleted(pod)),
    ],
    ids=["removed", "failed", "terminating"],
)


def test_waiting_pods_are_projected_once() -> None:
    """The projection is not repeated for changes and requests, and all waiting pods get the new room."""
    here = TrackedLowers(("2",), ("1",))
    names = [f"w{number}" for number in range(20)]
    for name in names:
        here.bind(asking(name), A)
    for number in range(10):
        here.nodes(A, lower_node("n1", str(1 + number % 2)))
        assert here.ask(asking("next")) == []
    assert here.prospects[A].worked_out == names
    here.nodes(A, *(lower_node(f"more-{number}", "4") for number in range(21)))
    assert here.ask(asking("next")) == [A]
    assert {name for _, name in here.surveys[A].cache.reservations} == {*names, "next"}
    assert here.ask(asking("last")) == []
    assert here.prospects[A].worked_out == names


def test_waiting_pods_are_projected_again_if_the_placement_context_changes() -> None:
    """For example, the topology may start to ignore a key of their node selector."""
    here = TrackedLowers(("4",), ("1",))
    here.bind(asking("waiting", spec={"nodeSelector": {"rack": "7"}}), A)
    assert here.ask(asking("one", "1")) == [A, B]
    assert here.used(A) == 1
    topology = here.world.topology
    webhook = topology.webhook.model_copy(update={"ignore_selector_keys": ("rack",)})
    here.world.topology = topology.model_copy(update={"webhook": webhook})
    here.nodes(A, lower_node("n1", "5"))
    assert here.ask(asking("two", "1")) == [A]
    assert here.used(A) == 5


def test_a_waiting_pod_without_room_does_not_block_other_waiting_pods() -> None:
    """Of each kind, as many pods get a reservation as there is room for."""
    here = TrackedLowers(("1",), ("1",))
    for name, cpu in (("a", "9"), ("b", "3"), ("c", "3"), ("d", "3"), ("e", "2")):
        here.bind(asking(name, cpu), A)
    assert here.ask(asking("none", "9")) == []
    here.nodes(A, lower_node("n2", "8"))
    assert here.ask(asking("next", "1")) == [A, B]
    assert {name for _, name in here.surveys[A].cache.reservations} == {"b", "c", "e", "next"}
    here.nodes(A, lower_node("n3", "9"))
    assert here.ask(asking("last", "9")) == []
    assert "a" in {name for _, name in here.surveys[A].cache.reservations}


@ENDS
def test_a_bound_pod_that_ends_before_it_has_a_node_releases_its_reservation(
    end: Callable[[TrackedLowers, Manifest], object],
) -> None:
    """The pod may be removed, fail or be terminating."""
    here = TrackedLowers()
    pod = asking()
    here.ask(pod)
    end(here, here.bind(pod, A))
    assert here.used(A) == 0


@ENDS
def test_a_pods_reservation_is_released_if_its_namespace_was_excluded_since(
    end: Callable[[TrackedLowers, Manifest], object],
) -> None:
    """A waiting pod of that namespace does not get the next free room either."""
    here = TrackedLowers()
    pods = [here.bind(asking(name, namespace="shop"), A) for name in ("web", "waiting")]
    assert here.ask(asking("next")) == [B]
    excluded = {*here.world.topology.exclude_namespaces, "shop"}
    here.world.topology = here.world.topology.model_copy(update={"exclude_namespaces": tuple(excluded)})
    for pod in pods:
        end(here, pod)
    assert here.ask(asking("after")) == [A]
    assert [name for _, name in here.surveys[A].cache.reservations] == ["after"]
    here.nodes(A, lower_node("n2", "4"))
    assert here.ask(asking("last")) == [A]


def test_a_removed_pod_does_not_release_the_reservation_of_its_namesake() -> None:
    """The next pod of a StatefulSet may have a request before the removal of the last one is observed."""
    here = TrackedLowers(("4",), ("1",))
    old = here.bind(asking(uid="old"), A)
    put(here.world.lowers[A].upper_pods, being_deleted(old))
    assert here.ask(asking(uid="new")) == [A]
    drop(here.world.lowers[A].upper_pods, "web")
    assert here.ask(asking("next")) == []


def test_a_terminated_lower_pod_frees_room() -> None:
    """It does so before its object is removed."""
    here = TrackedLowers()
    pod = here.bind(asking(), A)
    here.land(pod, A, "n1", "Running")
    assert here.ask(asking("next")) == [B]
    here.land(pod, A, "n1", "Succeeded")
    assert here.ask(asking("after")) == [A]


def test_a_new_pod_of_the_same_name_has_its_own_reservation() -> None:
    """The reservation of the first pod is replaced."""
    here = TrackedLowers()
    here.bind(asking(cpu="3", uid="first"), A)
    here.ask(asking("x", "1"))
    here.bind(asking(cpu="1", uid="second"), A)
    assert here.ask(asking("next", "2")) == [A, B]
    assert here.used(A) == 1 + 2 + 1


def expected() -> tuple[TrackedLowers, str, str]:
    """Bind a pod to a lower with two nodes; return the lowers, the pod's reserved node and the other node."""
    here = TrackedLowers(("4", "4"), ("1",))
    pod = asking()
    here.ask(pod)
    here.bind(pod, A)
    place = here.surveys[A].cache.reservations["default", "web"].node
    return here, place, "n2" if place == "n1" else "n1"


def test_a_reservation_moves_if_a_pod_of_another_owner_uses_its_node() -> None:
    """Without room on another node the pod waits for room, because it is bound already."""
    here, place, other = expected()
    put(here.world.lowers[A].place_pods, stranger("one", place, "3"))
    assert here.surveys[A].cache.reservations["default", "web"].node == other
    put(here.world.lowers[A].place_pods, stranger("two", other, "3"))
    assert not here.surveys[A].cache.reservations
    went(here.world.lowers[A].place_pods, stranger("one", "n1", "3"))
    assert here.ask(asking("next")) == []
    assert here.surveys[A].cache.reservations["default", "web"].node == place


def test_a_reservation_moves_if_its_node_is_removed() -> None:
    """The new node's room is not given to another pod; without such a node the pod waits for room."""
    here, place, other = expected()
    went(here.world.lowers[A].place_nodes, lower_node(place, "4"))
    assert here.surveys[A].cache.reservations["default", "web"].node == other
    assert here.ask(asking("next")) == []
    went(here.world.lowers[A].place_nodes, lower_node(other, "4"))
    assert not here.surveys[A].cache.reservations
    here.nodes(A, lower_node("n3", "4"))
    assert here.ask(asking("next")) == []
    assert here.surveys[A].cache.reservations["default", "web"].node == "n3"


def test_an_unbound_pod_that_lost_its_reservation_does_not_wait_for_room() -> None:
    """It may never be bound."""
    here = TrackedLowers(("4",), ("1",))
    here.ask(asking())
    put(here.world.lowers[A].place_pods, stranger("one", "n1", "3"))
    assert not here.surveys[A].cache.reservations
    went(here.world.lowers[A].place_pods, stranger("one", "n1", "3"))
    assert here.ask(asking("next")) == [A]


def test_new_room_for_a_refused_pod_is_reported_once_all_caches_are_synced() -> None:
    """Bound pods that wait for room come first."""
    here = TrackedLowers(("2",), ("1",))
    survey = here.surveys[A]
    assert here.ask(asking()) == []
    assert not survey.is_relieved(0.0)
    here.nodes(A, lower_node("n2", "4"))
    here.world.lowers[A].place_pods.mark_stale()
    assert not survey.is_relieved(0.0)
    here.world.lowers[A].place_pods.replace((), 1)
    assert survey.is_relieved(0.0)
    assert not survey.is_relieved(0.0)
    here.bind(asking("bound"), A)
    assert here.ask(asking("second")) == []
    here.bind(asking("third"), A)
    here.nodes(A, lower_node("n3", "4"))
    assert not survey.is_relieved(0.0)


def test_an_expired_reservation_is_reported_as_new_room() -> None:
    """No request is needed; the pod with the reservation was never bound."""
    here = TrackedLowers(("4",), ("1",))
    assert here.ask(asking("one")) == [A]
    assert here.ask(asking("two")) == []
    assert not here.surveys[A].is_relieved(RESERVATION_SECONDS)
    assert here.surveys[A].is_relieved(RESERVATION_SECONDS + 1)
    assert here.ask(asking("two"), RESERVATION_SECONDS + 1) == [A]


def test_pods_that_are_not_mirrored_are_accepted_without_a_reservation() -> None:
    """These are pods of excluded namespaces and of DaemonSets."""
    here = TrackedLowers()
    owner = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}]
    for pod in (asking(cpu="99", namespace="kube-system"), asking(cpu="99", ownerReferences=owner)):
        assert here.ask(pod) == [A, B]
    assert not here.surveys[A].cache.reservations
    here.bind(asking(cpu="3", namespace="kube-system"), A)
    assert here.ask(asking("next")) == [A, B]


def test_no_pod_is_refused_while_a_relevant_cache_is_not_synced() -> None:
    """Each cache that matters for placement is checked."""
    here = TrackedLowers(("1",), ("1",))
    assert here.ask(asking()) == []
    lower = here.world.lowers[A]
    for cache in (*lower.place_caches(), lower.pods, lower.upper_pods, lower.namespaces):
        cache.mark_stale()
        assert here.ask(asking()) == [A]
        cache.take_over(cache, cache.version)
    assert here.ask(asking()) == []


def test_a_pod_is_examined_as_its_lower_pod() -> None:
    """Constraints that the webhook moved to an annotation count, and those for the upper cluster do not."""
    here = TrackedLowers()
    here.nodes(A, {**lower_node("n2", "8"), "metadata": {"name": "n2", "labels": {"gpu": "a100"}}})
    moved = {"clusterSelector": '{"nodeSelector":{"gpu":"a100"}}'}
    above = {"nodeSelector": {"clusterID": A, "type": "virtual-kubelet"}}
    assert here.ask(asking("one", "1", spec=above)) == [A, B]
    assert here.ask(asking("two", "1", spec=above, annotations=moved)) == [A]
    assert here.ask(asking("three", "1", spec={"nodeSelector": {"gpu": "h100"}})) == []


def test_the_projection_follows_a_changed_topology() -> None:
    """A label that the lower cluster ignores from now on is absent."""
    here = TrackedLowers()
    lower = here.world.lowers[A]
    prospects = PodProjector(here.world, lower)
    pod = asking(spec={"nodeSelector": {"team": "x"}}, labels={"secret": "s"})
    assert labels(prospects.project(pod) or {})["secret"] == "s"
    lower.spec = lower.spec.model_copy(update={"ignore_labels": ("secret",)})
    here.world.topology = here.world.topology.model_copy()
    assert "secret" not in labels(prospects.project(pod) or {})


def test_a_closed_tracker_ignores_updates() -> None:
    """Its content stays the same."""
    here = TrackedLowers()
    here.surveys[A].close()
    here.nodes(A, lower_node("n2", "8"))
    here.bind(asking(), A)
    assert list(here.surveys[A].cache.snapshot.nodes) == ["n1"]
    assert not here.surveys[A].cache.reservations


@examples(60)
@given(st.integers(0, 2**32))
def test_a_burst_never_exceeds_the_room_of_the_lowers(seed: int) -> None:
    """Equal pods are bound late, each to any lower node with room, until no room is left.

    The lower scheduler may choose other nodes than the reserved ones; pods of one size are interchangeable.
    """
    chance = Random(seed)
    size = chance.choice("12")
    here = TrackedLowers(tuple("4" * 5), tuple("3" * 5))
    free = {A: dict.fromkeys([f"n{n}" for n in range(1, 6)], 4), B: dict.fromkeys([f"n{n}" for n in range(1, 6)], 3)}
    under_way: list[tuple[Manifest, str]] = []
    for number in range(60):
        pod = asking(f"p{number}", size)
        names = here.ask(pod)
        if names:
            lower = chance.choice(names)
            under_way.append((here.bind(pod, lower), lower))
        while under_way and chance.random() < 0.4:
            bound, lower = under_way.pop(chance.randrange(len(under_way)))
            _come_down(here, chance, bound, lower, free[lower])
    for bound, lower in under_way:
        _come_down(here, chance, bound, lower, free[lower])
    fitting = sum(room // int(size) for nodes in free.values() for room in nodes.values())
    assert fitting == 0
    assert not any(survey.cache.reservations for survey in here.surveys.values())


def _come_down(here: TrackedLowers, chance: Random, pod: Manifest, lower: str, free: dict[str, int]) -> None:
    """Bind a pod to a lower node with room for it, which has to exist."""
    cpu = int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
    open_nodes = [name for name, room in free.items() if room >= cpu]
    assert open_nodes, "a pod was sent where no node has room"
    node = chance.choice(open_nodes)
    free[node] -= cpu
    here.land(pod, lower, node)


def test_a_request_examines_at_most_64_kinds_of_waiting_pods() -> None:
    """The pods that have waited longest come first, and after some requests all of them were examined."""
    here = TrackedLowers()
    for number in range(150):
        here.bind(asking(f"p{number}", "5", spec={"nodeSelector": {"kind": str(number)}}), A)
    seen = []
    for _ in range(3):
        here.ask(asking("other", "1"))
        seen.append(len(here.prospects[A].worked_out))
    assert seen == [64, 128, 150]


def test_a_bound_pod_with_too_many_constraints_has_no_reservation() -> None:
    """It is not examined again with each request."""
    here = TrackedLowers()
    term = {"matchExpressions": [{"key": "none", "operator": "Exists"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term] * 20_000}}
    here.bind(asking("heavy", "1", spec={"affinity": {"nodeAffinity": required}}), A)
    for _ in range(2):
        assert here.ask(asking("other", "1")) == [A, B]
    assert here.prospects[A].worked_out == ["heavy"]
    assert ("default", "heavy") not in here.surveys[A].cache.reservations


def test_an_adopted_lower_pod_keeps_its_room() -> None:
    """The watch of other owners' pods reports its removal after the watch of mirrored pods added it."""
    here = TrackedLowers()
    lower = here.world.lowers[A]
    pod = here.bind(asking("web"), A)
    theirs = stranger("web", "n1", "3")
    put(lower.place_pods, theirs)
    ours = marked(theirs, pod["metadata"]["uid"])
    put(lower.pods, ours)
    went(lower.place_pods, ours)
    assert here.used(A) == 3.0
    lower.pods.remove(stored(ours, lower.pods.version + 1))
    assert here.used(A) == 0.0


def test_new_room_is_reported_although_another_pod_of_the_kind_used_some() -> None:
    """There may be room for both, and the scheduler retries the refused pod only after an event."""
    here = TrackedLowers(("2",), ("1",))
    survey = here.surveys[A]
    assert here.ask(asking("first")) == []
    here.nodes(A, lower_node("n2", "8"))
    assert here.ask(asking("second"), 0.3) == [A]
    assert survey.is_relieved(1.0)
    assert not survey.is_relieved(2.0)


@pytest.mark.parametrize("selector", [{"matchLabels": {"kubernetes.io/metadata.name": "shop"}}, {}])
def test_the_first_pod_of_a_namespace_satisfies_its_own_affinity(selector: Manifest) -> None:
    """Its lower namespace is created with it, and has the label that every namespace has."""
    terms = [
        {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"app": "x"}},
            "namespaceSelector": selector,
        }
    ]
    near = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    here = TrackedLowers()
    node = lower_node("n1", "4")
    here.nodes(A, {**node, "metadata": {**node["metadata"], "labels": {"kubernetes.io/hostname": "n1"}}})
    put(here.world.upper.namespaces, space("shop"))
    assert here.ask(asking(spec=near, namespace="shop", labels={"app": "x"})) == [A]
