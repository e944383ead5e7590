"""A lower's ground follows what the caches are told; what was promised is settled by what becomes of the pods."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from trackerkit import TrackedLowers, asking, being_deleted, stranger, went
from worldkit import A, B, drop, lower_node, marked, put, space, stored

from tensile.objects import Manifest, labels
from tensile.policy.extender.extender import LAPSE
from tensile.policy.extender.tracker import ClusterTracker, PodProjector


def test_what_is_there_already_counts() -> None:
    """Nodes, namespaces, strangers and our own pods that were known before it began."""
    before = TrackedLowers()
    pod = before.bind(asking("ours", "1"), A)
    before.land(pod, A, "n1")
    put(before.world.lowers[A].place_pods, stranger("theirs", "n1", "2"))
    made = ClusterTracker(
        before.world, before.world.lowers[A], PodProjector(before.world, before.world.lowers[A]), print
    )
    node = made.ground.snapshot.nodes["n1"]
    assert (sorted(node.pods), node.used["cpu"]) == ([("default", "ours"), ("default", "theirs")], 3000)
    assert "default" in made.ground.snapshot.spaces


def test_it_follows_what_comes_and_goes() -> None:
    """Strangers' pods come, end and go; nodes come, change and go; a heartbeat makes no room."""
    here = TrackedLowers()
    lower, ground = here.world.lowers[A], here.surveys[A].ground
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


def test_the_labels_of_namespaces_are_known() -> None:
    """As they are now; the same told again makes no room."""
    here = TrackedLowers()
    lower, ground = here.world.lowers[A], here.surveys[A].ground
    put(lower.namespaces, space("other", labels={"team": "x"}))
    assert ground.snapshot.spaces["other"]["team"] == "x"
    grown = ground.grown
    put(lower.namespaces, space("other", labels={"team": "x"}))
    assert ground.grown == grown
    drop(lower.namespaces, "other", "")
    assert "other" not in ground.snapshot.spaces


def test_a_pod_that_is_bound_keeps_its_room_and_the_other_lower_gives_it_back() -> None:
    """For as long as it has no node below: nothing lapses then."""
    here = TrackedLowers()
    pod = asking()
    assert here.ask(pod) == [A, B]
    assert (here.used(A), here.used(B)) == (3, 3)
    here.bind(pod, A)
    assert (here.used(A), here.used(B)) == (3, 0)
    assert here.ask(asking("next"), LAPSE * 9) == [B]
    here.land(pod, A, "n1")
    assert here.used(A) == 3
    assert not here.surveys[A].ground.promises


def test_a_pod_that_nobody_asked_about_has_its_room_kept() -> None:
    """Bound by another scheduler, or before this program began: the next one does not get it."""
    here = TrackedLowers()
    here.bind(asking("early"), A)
    assert here.ask(asking("next")) == [B]
    assert here.used(A) == 3


def test_a_pod_without_room_gets_the_next_that_there_is() -> None:
    """Before anybody new does; and once it has its node, or is gone, nobody waits for it."""
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
    ids=["gone", "failed", "being deleted"],
)


def test_who_waits_for_room_is_worked_out_once() -> None:
    """However often something changes and somebody asks; those that are alike are looked for once at a time."""
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
    assert {name for _, name in here.surveys[A].ground.promises} == {*names, "next"}
    assert here.ask(asking("last")) == []
    assert here.prospects[A].worked_out == names


def test_who_waits_for_room_is_worked_out_anew_where_the_place_is_another() -> None:
    """A key of a selector that means nothing below from now on, for one."""
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


def test_each_that_waits_for_room_is_looked_for_by_itself() -> None:
    """One that finds none is in nobody else's way, and of one kind as many are expected as there is room for."""
    here = TrackedLowers(("1",), ("1",))
    for name, cpu in (("a", "9"), ("b", "3"), ("c", "3"), ("d", "3"), ("e", "2")):
        here.bind(asking(name, cpu), A)
    assert here.ask(asking("none", "9")) == []
    here.nodes(A, lower_node("n2", "8"))
    assert here.ask(asking("next", "1")) == [A, B]
    assert {name for _, name in here.surveys[A].ground.promises} == {"b", "c", "e", "next"}
    here.nodes(A, lower_node("n3", "9"))
    assert here.ask(asking("last", "9")) == []
    assert "a" in {name for _, name in here.surveys[A].ground.promises}


@ENDS
def test_a_pod_that_ends_before_it_has_a_node_needs_no_room(end: Callable[[TrackedLowers, Manifest], object]) -> None:
    """However it ends."""
    here = TrackedLowers()
    pod = asking()
    here.ask(pod)
    end(here, here.bind(pod, A))
    assert here.used(A) == 0


@ENDS
def test_a_pod_ends_also_in_a_namespace_that_is_left_alone_since(
    end: Callable[[TrackedLowers, Manifest], object],
) -> None:
    """What was promised to it for as long as it waits is given back, and nobody waits for room for it."""
    here = TrackedLowers()
    pods = [here.bind(asking(name, namespace="shop"), A) for name in ("web", "waiting")]
    assert here.ask(asking("next")) == [B]
    excluded = {*here.world.topology.exclude_namespaces, "shop"}
    here.world.topology = here.world.topology.model_copy(update={"exclude_namespaces": tuple(excluded)})
    for pod in pods:
        end(here, pod)
    assert here.ask(asking("after")) == [A]
    assert [name for _, name in here.surveys[A].ground.promises] == ["after"]
    here.nodes(A, lower_node("n2", "4"))
    assert here.ask(asking("last")) == [A]


def test_a_pod_that_goes_at_last_takes_nothing_from_the_next_of_its_name() -> None:
    """A StatefulSet's: the next may have been asked about before the watch tells that the last one is gone."""
    here = TrackedLowers(("4",), ("1",))
    old = here.bind(asking(uid="old"), A)
    put(here.world.lowers[A].upper_pods, being_deleted(old))
    assert here.ask(asking(uid="new")) == [A]
    drop(here.world.lowers[A].upper_pods, "web")
    assert here.ask(asking("next")) == []


def test_a_pod_below_that_ends_makes_room() -> None:
    """Also before it is gone."""
    here = TrackedLowers()
    pod = here.bind(asking(), A)
    here.land(pod, A, "n1", "Running")
    assert here.ask(asking("next")) == [B]
    here.land(pod, A, "n1", "Succeeded")
    assert here.ask(asking("after")) == [A]


def test_another_pod_of_the_same_name_is_another_one() -> None:
    """The room of the first is not that of the second, which has its own."""
    here = TrackedLowers()
    here.bind(asking(cpu="3", uid="first"), A)
    here.ask(asking("x", "1"))
    here.bind(asking(cpu="1", uid="second"), A)
    assert here.ask(asking("next", "2")) == [A, B]
    assert here.used(A) == 1 + 2 + 1


def expected() -> tuple[TrackedLowers, str, str]:
    """Bind a pod to a lower cluster with two nodes; return also where it is expected, and the other node."""
    here = TrackedLowers(("4", "4"), ("1",))
    pod = asking()
    here.ask(pod)
    here.bind(pod, A)
    place = here.surveys[A].ground.promises["default", "web"].node
    return here, place, "n2" if place == "n1" else "n1"


def test_who_is_expected_where_a_stranger_came_is_expected_elsewhere() -> None:
    """On a node with room; where there is none it waits for some, as it is bound already."""
    here, place, other = expected()
    put(here.world.lowers[A].place_pods, stranger("one", place, "3"))
    assert here.surveys[A].ground.promises["default", "web"].node == other
    put(here.world.lowers[A].place_pods, stranger("two", other, "3"))
    assert not here.surveys[A].ground.promises
    went(here.world.lowers[A].place_pods, stranger("one", "n1", "3"))
    assert here.ask(asking("next")) == []
    assert here.surveys[A].ground.promises["default", "web"].node == place


def test_who_is_expected_on_a_node_that_goes_is_expected_elsewhere() -> None:
    """On a node with room, which then is not given to another; where there is none it waits for some."""
    here, place, other = expected()
    went(here.world.lowers[A].place_nodes, lower_node(place, "4"))
    assert here.surveys[A].ground.promises["default", "web"].node == other
    assert here.ask(asking("next")) == []
    went(here.world.lowers[A].place_nodes, lower_node(other, "4"))
    assert not here.surveys[A].ground.promises
    here.nodes(A, lower_node("n3", "4"))
    assert here.ask(asking("next")) == []
    assert here.surveys[A].ground.promises["default", "web"].node == "n3"


def test_what_is_not_bound_yet_and_has_lost_its_place_is_not_waited_for() -> None:
    """It may never come."""
    here = TrackedLowers(("4",), ("1",))
    here.ask(asking())
    put(here.world.lowers[A].place_pods, stranger("one", "n1", "3"))
    assert not here.surveys[A].ground.promises
    went(here.world.lowers[A].place_pods, stranger("one", "n1", "3"))
    assert here.ask(asking("next")) == [A]


def test_room_that_came_for_a_refused_pod_is_told() -> None:
    """Once all is known; who waits for room and is bound already comes first."""
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


def test_a_promise_that_lapses_is_room_that_came() -> None:
    """Though nobody asks meanwhile: the pod that it was made to was never bound."""
    here = TrackedLowers(("4",), ("1",))
    assert here.ask(asking("one")) == [A]
    assert here.ask(asking("two")) == []
    assert not here.surveys[A].is_relieved(LAPSE)
    assert here.surveys[A].is_relieved(LAPSE + 1)
    assert here.ask(asking("two"), LAPSE + 1) == [A]


def test_pods_that_are_not_mirrored_are_let_through() -> None:
    """Of excluded namespaces, and of DaemonSets: nothing is kept for them."""
    here = TrackedLowers()
    owner = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}]
    for pod in (asking(cpu="99", namespace="kube-system"), asking(cpu="99", ownerReferences=owner)):
        assert here.ask(pod) == [A, B]
    assert not here.surveys[A].ground.promises
    here.bind(asking(cpu="3", namespace="kube-system"), A)
    assert here.ask(asking("next")) == [A, B]


def test_nothing_is_refused_while_something_is_not_known() -> None:
    """A list that may be lost, of any kind that counts."""
    here = TrackedLowers(("1",), ("1",))
    assert here.ask(asking()) == []
    lower = here.world.lowers[A]
    for cache in (*lower.place_caches(), lower.pods, lower.upper_pods, lower.namespaces):
        cache.mark_stale()
        assert here.ask(asking()) == [A]
        cache.take_over(cache, cache.version)
    assert here.ask(asking()) == []


def test_the_pod_is_judged_as_it_would_be_below() -> None:
    """By what the webhook moved out of its spec, and without what is meant for above."""
    here = TrackedLowers()
    here.nodes(A, {**lower_node("n2", "8"), "metadata": {"name": "n2", "labels": {"gpu": "a100"}}})
    moved = {"clusterSelector": '{"nodeSelector":{"gpu":"a100"}}'}
    above = {"nodeSelector": {"clusterID": A, "type": "virtual-kubelet"}}
    assert here.ask(asking("one", "1", spec=above)) == [A, B]
    assert here.ask(asking("two", "1", spec=above, annotations=moved)) == [A]
    assert here.ask(asking("three", "1", spec={"nodeSelector": {"gpu": "h100"}})) == []


def test_prospects_follow_the_place() -> None:
    """Another topology, and labels of nodes that came since."""
    here = TrackedLowers()
    lower = here.world.lowers[A]
    prospects = PodProjector(here.world, lower)
    pod = asking(spec={"nodeSelector": {"team": "x"}}, labels={"secret": "s"})
    assert labels(prospects.below(pod) or {})["secret"] == "s"
    lower.spec = lower.spec.model_copy(update={"ignore_labels": ("secret",)})
    here.world.topology = here.world.topology.model_copy()
    assert "secret" not in labels(prospects.below(pod) or {})


def test_a_survey_that_was_closed_hears_nothing() -> None:
    """And what it had stays as it is."""
    here = TrackedLowers()
    here.surveys[A].close()
    here.nodes(A, lower_node("n2", "8"))
    here.bind(asking(), A)
    assert list(here.surveys[A].ground.snapshot.nodes) == ["n1"]
    assert not here.surveys[A].ground.promises


@examples(60)
@given(st.integers(0, 2**32))
def test_a_burst_that_comes_down_anywhere_is_never_too_large(seed: int) -> None:
    """Pods of two sizes are bound and come down late, each to any node that still has room; none is left over.

    The scheduler below may choose otherwise than was expected here; pods of one size are interchangeable.
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
    assert not any(survey.ground.promises for survey in here.surveys.values())


def _come_down(here: TrackedLowers, chance: Random, pod: Manifest, lower: str, free: dict[str, int]) -> None:
    """Bind a pod to a lower node that has room for it, which there has to be."""
    cpu = int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
    open_nodes = [name for name, room in free.items() if room >= cpu]
    assert open_nodes, "a pod was sent where no node has room"
    node = chance.choice(open_nodes)
    free[node] -= cpu
    here.land(pod, lower, node)


def test_bound_pods_without_room_do_not_hold_up_each_question() -> None:
    """Of many kinds some are looked for each time, those that wait longest first; in the end all of them were."""
    here = TrackedLowers()
    for number in range(150):
        here.bind(asking(f"p{number}", "5", spec={"nodeSelector": {"kind": str(number)}}), A)
    seen = []
    for _ in range(3):
        here.ask(asking("other", "1"))
        seen.append(len(here.prospects[A].worked_out))
    assert seen == [64, 128, 150]


def test_a_bound_pod_that_would_take_long_to_judge_has_no_room_kept() -> None:
    """It is not tried again and again either."""
    here = TrackedLowers()
    term = {"matchExpressions": [{"key": "none", "operator": "Exists"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term] * 20_000}}
    here.bind(asking("heavy", "1", spec={"affinity": {"nodeAffinity": required}}), A)
    for _ in range(2):
        assert here.ask(asking("other", "1")) == [A, B]
    assert here.prospects[A].worked_out == ["heavy"]
    assert ("default", "heavy") not in here.surveys[A].ground.promises


def test_a_pod_that_is_adopted_keeps_its_room() -> None:
    """The watch of others tells that it left them after it came to ours; nothing else of it changes."""
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


def test_a_refused_pod_is_told_of_room_that_another_of_its_kind_was_given_first() -> None:
    """There may be room for both, and the scheduler retries only after an event."""
    here = TrackedLowers(("2",), ("1",))
    survey = here.surveys[A]
    assert here.ask(asking("first")) == []
    here.nodes(A, lower_node("n2", "8"))
    assert here.ask(asking("second"), 0.3) == [A]
    assert survey.is_relieved(1.0)
    assert not survey.is_relieved(2.0)


@pytest.mark.parametrize("selector", [{"matchLabels": {"kubernetes.io/metadata.name": "shop"}}, {}])
def test_the_first_pod_of_a_namespace_may_want_to_be_near_its_like(selector: Manifest) -> None:
    """Its namespace is created below with it, and has the label that every namespace has."""
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
