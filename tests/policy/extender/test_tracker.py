"""Tests of the cluster tracker: the node cache follows the stores, and reservations are settled by the pods' fate."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from trackerkit import TrackedLowers, being_deleted, foreign_lower_pod, remove_digest, upper_pod_requesting
from worldkit import A, B, delete_observed, make_lower_node, make_namespace, put, stored_bytes, with_owner_marks

from tensile.objects import Manifest, labels
from tensile.policy.extender.extender import RESERVATION_SECONDS
from tensile.policy.extender.tracker import ClusterTracker, PodProjector


def test_objects_that_exist_before_the_start_count() -> None:
    """These are nodes, namespaces, mirrored pods and pods of other owners."""
    before = TrackedLowers()
    pod = before.bind(upper_pod_requesting("ours", "1"), A)
    before.add_lower_pod(pod, A, "n1")
    put(before.world.lowers[A].place_pods, foreign_lower_pod("theirs", "n1", "2"))
    made = ClusterTracker(
        before.world, before.world.lowers[A], PodProjector(before.world, before.world.lowers[A]), print
    )
    node = made.cache.snapshot.nodes["n1"]
    assert (sorted(node.pods), node.used["cpu"]) == ([("default", "ours"), ("default", "theirs")], 3000)
    assert "default" in made.cache.snapshot.spaces


def test_the_tracker_follows_pods_and_nodes_of_the_lower() -> None:
    """Pods of other owners and nodes appear, change and are removed; a heartbeat frees no room."""
    lowers = TrackedLowers()
    lower, cache = lowers.world.lowers[A], lowers.surveys[A].cache
    put(lower.place_pods, foreign_lower_pod("s", "n1", "3"))
    assert lowers.feasible_nodes(upper_pod_requesting()) == [B]
    grown = cache.grown
    lowers.nodes(A, make_lower_node("n1", "4"))
    assert cache.grown == grown
    put(lower.place_pods, foreign_lower_pod("s", "n1", "3", "Succeeded"))
    assert lowers.feasible_nodes(upper_pod_requesting()) == [A, B]
    lowers.nodes(A, make_lower_node("n1", "2"))
    assert lowers.feasible_nodes(upper_pod_requesting()) == [B]
    lowers.nodes(A, make_lower_node("n2", "8"))
    assert lowers.feasible_nodes(upper_pod_requesting(cpu="8")) == [A]
    remove_digest(lower.place_nodes, make_lower_node("n2", "8"))
    assert lowers.feasible_nodes(upper_pod_requesting(cpu="8")) == []


def test_the_tracker_follows_namespace_labels() -> None:
    """An update without a change frees no room."""
    lowers = TrackedLowers()
    lower, cache = lowers.world.lowers[A], lowers.surveys[A].cache
    put(lower.namespaces, make_namespace("other", labels={"team": "x"}))
    assert cache.snapshot.spaces["other"]["team"] == "x"
    grown = cache.grown
    put(lower.namespaces, make_namespace("other", labels={"team": "x"}))
    assert cache.grown == grown
    delete_observed(lower.namespaces, "other", "")
    assert "other" not in cache.snapshot.spaces


def test_a_bound_pods_reservation_is_kept_and_released_in_the_other_lower() -> None:
    """It does not expire until the pod has its lower node."""
    lowers = TrackedLowers()
    pod = upper_pod_requesting()
    assert lowers.feasible_nodes(pod) == [A, B]
    assert (lowers.used_cpus(A), lowers.used_cpus(B)) == (3, 3)
    lowers.bind(pod, A)
    assert (lowers.used_cpus(A), lowers.used_cpus(B)) == (3, 0)
    assert lowers.feasible_nodes(upper_pod_requesting("next"), RESERVATION_SECONDS * 9) == [B]
    lowers.add_lower_pod(pod, A, "n1")
    assert lowers.used_cpus(A) == 3
    assert not lowers.surveys[A].cache.reservations


def test_a_pod_bound_without_a_request_gets_a_reservation() -> None:
    """Another scheduler bound it, or the process started later; the next pod does not get its room."""
    lowers = TrackedLowers()
    lowers.bind(upper_pod_requesting("early"), A)
    assert lowers.feasible_nodes(upper_pod_requesting("next")) == [B]
    assert lowers.used_cpus(A) == 3


def test_a_bound_pod_without_room_gets_the_next_free_room() -> None:
    """It comes before any new pod, until it has its node or is deleted."""
    lowers = TrackedLowers(("2",), ("2",))
    waiting = lowers.bind(upper_pod_requesting("waiting"), A)
    assert lowers.feasible_nodes(upper_pod_requesting("next")) == []
    lowers.nodes(A, make_lower_node("n2", "4"))
    assert lowers.feasible_nodes(upper_pod_requesting("next")) == []
    lowers.add_lower_pod(waiting, A, "n2")
    assert lowers.feasible_nodes(upper_pod_requesting("next", "1")) == [A, B]
    gone = lowers.bind(upper_pod_requesting("gone"), B)
    delete_observed(lowers.world.lowers[B].upper_pods, gone["metadata"]["name"])
    lowers.nodes(B, make_lower_node("n2", "4"))
    assert lowers.feasible_nodes(upper_pod_requesting("last")) == [B]


ENDS = pytest.mark.parametrize(
    "end",
    [
        lambda lowers, pod: delete_observed(
            lowers.world.lowers[A].upper_pods, pod["metadata"]["name"], pod["metadata"]["namespace"]
        ),
        lambda lowers, pod: put(lowers.world.lowers[A].upper_pods, {**pod, "status": {"phase": "Failed"}}),
        lambda lowers, pod: put(lowers.world.lowers[A].upper_pods, being_deleted(pod)),
    ],
    ids=["removed", "failed", "terminating"],
)


def test_waiting_pods_are_projected_once() -> None:
    """The projection is not repeated for changes and requests, and all waiting pods get the new room."""
    lowers = TrackedLowers(("2",), ("1",))
    names = [f"w{number}" for number in range(20)]
    for name in names:
        lowers.bind(upper_pod_requesting(name), A)
    for number in range(10):
        lowers.nodes(A, make_lower_node("n1", str(1 + number % 2)))
        assert lowers.feasible_nodes(upper_pod_requesting("next")) == []
    assert lowers.prospects[A].projected == names
    lowers.nodes(A, *(make_lower_node(f"more-{number}", "4") for number in range(21)))
    assert lowers.feasible_nodes(upper_pod_requesting("next")) == [A]
    assert {name for _, name in lowers.surveys[A].cache.reservations} == {*names, "next"}
    assert lowers.feasible_nodes(upper_pod_requesting("last")) == []
    assert lowers.prospects[A].projected == names


def test_waiting_pods_are_projected_again_if_the_placement_context_changes() -> None:
    """For example, the topology may start to ignore a key of their node selector."""
    lowers = TrackedLowers(("4",), ("1",))
    lowers.bind(upper_pod_requesting("waiting", spec={"nodeSelector": {"rack": "7"}}), A)
    assert lowers.feasible_nodes(upper_pod_requesting("one", "1")) == [A, B]
    assert lowers.used_cpus(A) == 1
    topology = lowers.world.topology
    webhook = topology.webhook.model_copy(update={"ignore_selector_keys": ("rack",)})
    lowers.world.topology = topology.model_copy(update={"webhook": webhook})
    lowers.nodes(A, make_lower_node("n1", "5"))
    assert lowers.feasible_nodes(upper_pod_requesting("two", "1")) == [A]
    assert lowers.used_cpus(A) == 5


def test_a_waiting_pod_without_room_does_not_block_other_waiting_pods() -> None:
    """Of each kind, as many pods get a reservation as there is room for."""
    lowers = TrackedLowers(("1",), ("1",))
    for name, cpu in (("a", "9"), ("b", "3"), ("c", "3"), ("d", "3"), ("e", "2")):
        lowers.bind(upper_pod_requesting(name, cpu), A)
    assert lowers.feasible_nodes(upper_pod_requesting("none", "9")) == []
    lowers.nodes(A, make_lower_node("n2", "8"))
    assert lowers.feasible_nodes(upper_pod_requesting("next", "1")) == [A, B]
    assert {name for _, name in lowers.surveys[A].cache.reservations} == {"b", "c", "e", "next"}
    lowers.nodes(A, make_lower_node("n3", "9"))
    assert lowers.feasible_nodes(upper_pod_requesting("last", "9")) == []
    assert "a" in {name for _, name in lowers.surveys[A].cache.reservations}


@ENDS
def test_a_bound_pod_that_ends_before_it_has_a_node_releases_its_reservation(
    end: Callable[[TrackedLowers, Manifest], object],
) -> None:
    """The pod may be removed, fail or be terminating."""
    lowers = TrackedLowers()
    pod = upper_pod_requesting()
    lowers.feasible_nodes(pod)
    end(lowers, lowers.bind(pod, A))
    assert lowers.used_cpus(A) == 0


@ENDS
def test_a_pods_reservation_is_released_if_its_namespace_was_excluded_since(
    end: Callable[[TrackedLowers, Manifest], object],
) -> None:
    """A waiting pod of that namespace does not get the next free room either."""
    lowers = TrackedLowers()
    pods = [lowers.bind(upper_pod_requesting(name, namespace="shop"), A) for name in ("web", "waiting")]
    assert lowers.feasible_nodes(upper_pod_requesting("next")) == [B]
    excluded = {*lowers.world.topology.exclude_namespaces, "shop"}
    lowers.world.topology = lowers.world.topology.model_copy(update={"exclude_namespaces": tuple(excluded)})
    for pod in pods:
        end(lowers, pod)
    assert lowers.feasible_nodes(upper_pod_requesting("after")) == [A]
    assert [name for _, name in lowers.surveys[A].cache.reservations] == ["after"]
    lowers.nodes(A, make_lower_node("n2", "4"))
    assert lowers.feasible_nodes(upper_pod_requesting("last")) == [A]


def test_a_removed_pod_does_not_release_the_reservation_of_its_namesake() -> None:
    """The next pod of a StatefulSet may have a request before the removal of the last one is observed."""
    lowers = TrackedLowers(("4",), ("1",))
    old = lowers.bind(upper_pod_requesting(uid="old"), A)
    put(lowers.world.lowers[A].upper_pods, being_deleted(old))
    assert lowers.feasible_nodes(upper_pod_requesting(uid="new")) == [A]
    delete_observed(lowers.world.lowers[A].upper_pods, "web")
    assert lowers.feasible_nodes(upper_pod_requesting("next")) == []


def test_a_terminated_lower_pod_frees_room() -> None:
    """It does so before its object is removed."""
    lowers = TrackedLowers()
    pod = lowers.bind(upper_pod_requesting(), A)
    lowers.add_lower_pod(pod, A, "n1", "Running")
    assert lowers.feasible_nodes(upper_pod_requesting("next")) == [B]
    lowers.add_lower_pod(pod, A, "n1", "Succeeded")
    assert lowers.feasible_nodes(upper_pod_requesting("after")) == [A]


def test_a_new_pod_of_the_same_name_has_its_own_reservation() -> None:
    """The reservation of the first pod is replaced."""
    lowers = TrackedLowers()
    lowers.bind(upper_pod_requesting(cpu="3", uid="first"), A)
    lowers.feasible_nodes(upper_pod_requesting("x", "1"))
    lowers.bind(upper_pod_requesting(cpu="1", uid="second"), A)
    assert lowers.feasible_nodes(upper_pod_requesting("next", "2")) == [A, B]
    assert lowers.used_cpus(A) == 1 + 2 + 1


def expected() -> tuple[TrackedLowers, str, str]:
    """Bind a pod to a lower with two nodes; return the lowers, the pod's reserved node and the other node."""
    lowers = TrackedLowers(("4", "4"), ("1",))
    pod = upper_pod_requesting()
    lowers.feasible_nodes(pod)
    lowers.bind(pod, A)
    place = lowers.surveys[A].cache.reservations["default", "web"].node
    return lowers, place, "n2" if place == "n1" else "n1"


def test_a_reservation_moves_if_a_pod_of_another_owner_uses_its_node() -> None:
    """Without room on another node the pod waits for room, because it is bound already."""
    lowers, place, other = expected()
    put(lowers.world.lowers[A].place_pods, foreign_lower_pod("one", place, "3"))
    assert lowers.surveys[A].cache.reservations["default", "web"].node == other
    put(lowers.world.lowers[A].place_pods, foreign_lower_pod("two", other, "3"))
    assert not lowers.surveys[A].cache.reservations
    remove_digest(lowers.world.lowers[A].place_pods, foreign_lower_pod("one", "n1", "3"))
    assert lowers.feasible_nodes(upper_pod_requesting("next")) == []
    assert lowers.surveys[A].cache.reservations["default", "web"].node == place


def test_a_reservation_moves_if_its_node_is_removed() -> None:
    """The new node's room is not given to another pod; without such a node the pod waits for room."""
    lowers, place, other = expected()
    remove_digest(lowers.world.lowers[A].place_nodes, make_lower_node(place, "4"))
    assert lowers.surveys[A].cache.reservations["default", "web"].node == other
    assert lowers.feasible_nodes(upper_pod_requesting("next")) == []
    remove_digest(lowers.world.lowers[A].place_nodes, make_lower_node(other, "4"))
    assert not lowers.surveys[A].cache.reservations
    lowers.nodes(A, make_lower_node("n3", "4"))
    assert lowers.feasible_nodes(upper_pod_requesting("next")) == []
    assert lowers.surveys[A].cache.reservations["default", "web"].node == "n3"


def test_an_unbound_pod_that_lost_its_reservation_does_not_wait_for_room() -> None:
    """It may never be bound."""
    lowers = TrackedLowers(("4",), ("1",))
    lowers.feasible_nodes(upper_pod_requesting())
    put(lowers.world.lowers[A].place_pods, foreign_lower_pod("one", "n1", "3"))
    assert not lowers.surveys[A].cache.reservations
    remove_digest(lowers.world.lowers[A].place_pods, foreign_lower_pod("one", "n1", "3"))
    assert lowers.feasible_nodes(upper_pod_requesting("next")) == [A]


def test_new_room_for_a_refused_pod_is_reported_once_all_caches_are_synced() -> None:
    """Bound pods that wait for room come first."""
    lowers = TrackedLowers(("2",), ("1",))
    survey = lowers.surveys[A]
    assert lowers.feasible_nodes(upper_pod_requesting()) == []
    assert not survey.is_relieved(0.0)
    lowers.nodes(A, make_lower_node("n2", "4"))
    lowers.world.lowers[A].place_pods.mark_stale()
    assert not survey.is_relieved(0.0)
    lowers.world.lowers[A].place_pods.replace((), 1)
    assert survey.is_relieved(0.0)
    assert not survey.is_relieved(0.0)
    lowers.bind(upper_pod_requesting("bound"), A)
    assert lowers.feasible_nodes(upper_pod_requesting("second")) == []
    lowers.bind(upper_pod_requesting("third"), A)
    lowers.nodes(A, make_lower_node("n3", "4"))
    assert not survey.is_relieved(0.0)


def test_an_expired_reservation_is_reported_as_new_room() -> None:
    """No request is needed; the pod with the reservation was never bound."""
    lowers = TrackedLowers(("4",), ("1",))
    assert lowers.feasible_nodes(upper_pod_requesting("one")) == [A]
    assert lowers.feasible_nodes(upper_pod_requesting("two")) == []
    assert not lowers.surveys[A].is_relieved(RESERVATION_SECONDS)
    assert lowers.surveys[A].is_relieved(RESERVATION_SECONDS + 1)
    assert lowers.feasible_nodes(upper_pod_requesting("two"), RESERVATION_SECONDS + 1) == [A]


def test_pods_that_are_not_mirrored_are_accepted_without_a_reservation() -> None:
    """These are pods of excluded namespaces and of DaemonSets."""
    lowers = TrackedLowers()
    owner = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}]
    for pod in (
        upper_pod_requesting(cpu="99", namespace="kube-system"),
        upper_pod_requesting(cpu="99", ownerReferences=owner),
    ):
        assert lowers.feasible_nodes(pod) == [A, B]
    assert not lowers.surveys[A].cache.reservations
    lowers.bind(upper_pod_requesting(cpu="3", namespace="kube-system"), A)
    assert lowers.feasible_nodes(upper_pod_requesting("next")) == [A, B]


def test_no_pod_is_refused_while_a_relevant_cache_is_not_synced() -> None:
    """Each cache that matters for placement is checked."""
    lowers = TrackedLowers(("1",), ("1",))
    assert lowers.feasible_nodes(upper_pod_requesting()) == []
    lower = lowers.world.lowers[A]
    for cache in (*lower.place_caches(), lower.pods, lower.upper_pods, lower.namespaces):
        cache.mark_stale()
        assert lowers.feasible_nodes(upper_pod_requesting()) == [A]
        cache.take_over(cache, cache.version)
    assert lowers.feasible_nodes(upper_pod_requesting()) == []


def test_a_pod_is_examined_as_its_lower_pod() -> None:
    """Constraints that the webhook moved to an annotation count, and those for the upper cluster do not."""
    lowers = TrackedLowers()
    lowers.nodes(A, {**make_lower_node("n2", "8"), "metadata": {"name": "n2", "labels": {"gpu": "a100"}}})
    moved = {"clusterSelector": '{"nodeSelector":{"gpu":"a100"}}'}
    upper_object = {"nodeSelector": {"clusterID": A, "type": "virtual-kubelet"}}
    assert lowers.feasible_nodes(upper_pod_requesting("one", "1", spec=upper_object)) == [A, B]
    assert lowers.feasible_nodes(upper_pod_requesting("two", "1", spec=upper_object, annotations=moved)) == [A]
    assert lowers.feasible_nodes(upper_pod_requesting("three", "1", spec={"nodeSelector": {"gpu": "h100"}})) == []


def test_the_projection_follows_a_changed_topology() -> None:
    """A label that the lower cluster ignores from now on is absent."""
    lowers = TrackedLowers()
    lower = lowers.world.lowers[A]
    prospects = PodProjector(lowers.world, lower)
    pod = upper_pod_requesting(spec={"nodeSelector": {"team": "x"}}, labels={"secret": "s"})
    assert labels(prospects.project(pod) or {})["secret"] == "s"
    lower.spec = lower.spec.model_copy(update={"ignore_labels": ("secret",)})
    lowers.world.topology = lowers.world.topology.model_copy()
    assert "secret" not in labels(prospects.project(pod) or {})


def test_a_closed_tracker_ignores_updates() -> None:
    """Its content stays the same."""
    lowers = TrackedLowers()
    lowers.surveys[A].close()
    lowers.nodes(A, make_lower_node("n2", "8"))
    lowers.bind(upper_pod_requesting(), A)
    assert list(lowers.surveys[A].cache.snapshot.nodes) == ["n1"]
    assert not lowers.surveys[A].cache.reservations


@examples(60)
@given(st.integers(0, 2**32))
def test_a_burst_never_exceeds_the_room_of_the_lowers(seed: int) -> None:
    """Equal pods are bound late, each to any lower node with room, until no room is left.

    The lower scheduler may choose other nodes than the reserved ones; pods of one size are interchangeable.
    """
    chance = Random(seed)
    size = chance.choice("12")
    lowers = TrackedLowers(tuple("4" * 5), tuple("3" * 5))
    free = {A: dict.fromkeys([f"n{n}" for n in range(1, 6)], 4), B: dict.fromkeys([f"n{n}" for n in range(1, 6)], 3)}
    under_way: list[tuple[Manifest, str]] = []
    for number in range(60):
        pod = upper_pod_requesting(f"p{number}", size)
        names = lowers.feasible_nodes(pod)
        if names:
            lower = chance.choice(names)
            under_way.append((lowers.bind(pod, lower), lower))
        while under_way and chance.random() < 0.4:
            bound, lower = under_way.pop(chance.randrange(len(under_way)))
            _come_down(lowers, chance, bound, lower, free[lower])
    for bound, lower in under_way:
        _come_down(lowers, chance, bound, lower, free[lower])
    fitting = sum(room // int(size) for nodes in free.values() for room in nodes.values())
    assert fitting == 0
    assert not any(survey.cache.reservations for survey in lowers.surveys.values())


def _come_down(lowers: TrackedLowers, chance: Random, pod: Manifest, lower: str, free: dict[str, int]) -> None:
    """Bind a pod to a lower node with room for it, which has to exist."""
    cpu = int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
    open_nodes = [name for name, room in free.items() if room >= cpu]
    assert open_nodes, "a pod was sent where no node has room"
    node = chance.choice(open_nodes)
    free[node] -= cpu
    lowers.add_lower_pod(pod, lower, node)


def test_a_request_examines_at_most_64_kinds_of_waiting_pods() -> None:
    """The pods that have waited longest come first, and after some requests all of them were examined."""
    lowers = TrackedLowers()
    for number in range(150):
        lowers.bind(upper_pod_requesting(f"p{number}", "5", spec={"nodeSelector": {"kind": str(number)}}), A)
    seen = []
    for _ in range(3):
        lowers.feasible_nodes(upper_pod_requesting("other", "1"))
        seen.append(len(lowers.prospects[A].projected))
    assert seen == [64, 128, 150]


def test_a_bound_pod_with_too_many_constraints_has_no_reservation() -> None:
    """It is not examined again with each request."""
    lowers = TrackedLowers()
    term = {"matchExpressions": [{"key": "none", "operator": "Exists"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term] * 20_000}}
    lowers.bind(upper_pod_requesting("heavy", "1", spec={"affinity": {"nodeAffinity": required}}), A)
    for _ in range(2):
        assert lowers.feasible_nodes(upper_pod_requesting("other", "1")) == [A, B]
    assert lowers.prospects[A].projected == ["heavy"]
    assert ("default", "heavy") not in lowers.surveys[A].cache.reservations


def test_an_adopted_lower_pod_keeps_its_room() -> None:
    """The watch of other owners' pods reports its removal after the watch of mirrored pods added it."""
    lowers = TrackedLowers()
    lower = lowers.world.lowers[A]
    pod = lowers.bind(upper_pod_requesting("web"), A)
    theirs = foreign_lower_pod("web", "n1", "3")
    put(lower.place_pods, theirs)
    ours = with_owner_marks(theirs, pod["metadata"]["uid"])
    put(lower.pods, ours)
    remove_digest(lower.place_pods, ours)
    assert lowers.used_cpus(A) == 3.0
    lower.pods.remove(stored_bytes(ours, lower.pods.version + 1))
    assert lowers.used_cpus(A) == 0.0


def test_new_room_is_reported_although_another_pod_of_the_kind_used_some() -> None:
    """There may be room for both, and the scheduler retries the refused pod only after an event."""
    lowers = TrackedLowers(("2",), ("1",))
    survey = lowers.surveys[A]
    assert lowers.feasible_nodes(upper_pod_requesting("first")) == []
    lowers.nodes(A, make_lower_node("n2", "8"))
    assert lowers.feasible_nodes(upper_pod_requesting("second"), 0.3) == [A]
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
    lowers = TrackedLowers()
    node = make_lower_node("n1", "4")
    lowers.nodes(A, {**node, "metadata": {**node["metadata"], "labels": {"kubernetes.io/hostname": "n1"}}})
    put(lowers.world.upper.namespaces, make_namespace("shop"))
    assert lowers.feasible_nodes(upper_pod_requesting(spec=near, namespace="shop", labels={"app": "x"})) == [A]
