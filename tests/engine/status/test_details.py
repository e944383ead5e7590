"""Tests of the pages of a lower cluster and of a pod, the search page, and the result of a topology check."""

import re

import worldkit
from pagekit import SECRET, Shown, Stage, populated, requesting, step
from worldkit import put, raised, twin, upper_pod

from tensile.engine.status.details import (
    FoundPod,
    PageOfPods,
    TopologyCheck,
    effects,
    found_pod,
    lower_page,
    pod_page,
    search_page,
    topology_page,
)
from tensile.engine.status.page import ResourceUsage
from tensile.kubelet.pods.events import CarriedEvent
from tensile.names import VIRTUAL_POD
from tensile.objects import POD, Ref
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, Problem, World
from tensile.topology.diff import Edit, edit

LOWER = "lower-00"
EVENT = CarriedEvent("uid", "2026-03-01T12:00:00Z", "Warning", "BackOff", "Back-off pulling image", 7)


def of_lower(stage: Stage, namespace: str = "", number: int = 1, name: str = LOWER) -> Shown:
    """Return the page of a lower cluster."""
    asked = PageOfPods(namespace, number)
    return Shown(lower_page(stage.view(ResourceUsage()), stage.world, name, asked, stage.held))


def of_pod(stage: Stage, namespace: str, name: str) -> Shown:
    """Return the page of a pod."""
    found = found_pod(stage.world, namespace, name)
    assert found is not None
    return Shown(pod_page(stage.view(ResourceUsage()), stage.world, found, stage.heard))


def listed(shown: Shown) -> list[str]:
    """Return the pods that a page lists, in its order."""
    return [one.removeprefix("/pods/") for one in shown.links if one.startswith("/pods/")]


def test_the_page_of_a_lower_has_its_resources_as_numbers() -> None:
    """It has the capacity of its nodes, and how much of it each group of pods uses."""
    text = of_lower(Stage(populated(2, 6))).text
    assert "cpu2881.5168262.5" in text
    assert "memory1.1Ti768Mi64Gi01.1Ti" in text


def test_a_page_lists_a_hundred_pods_ordered_by_namespace() -> None:
    """It has links to the other pages, and a page number that does not exist shows the nearest one."""
    stage = Stage(populated(1, 250, 2))
    first, last = of_lower(stage), of_lower(stage, number=3)
    assert (len(listed(first)), len(listed(last))) == (100, 50)
    assert listed(first) == sorted(listed(first))
    assert set(listed(first)).isdisjoint(listed(last))
    assert "Page 1 of 3" in first.text
    assert f"/lowers/{LOWER}?page=2" in first.links
    assert listed(of_lower(stage, number=99)) == listed(last)
    assert listed(of_lower(stage, number=0)) == listed(first)


def test_the_page_of_a_lower_can_be_limited_to_one_namespace() -> None:
    """The links for that have the number of pods in each namespace."""
    stage = Stage(populated(1, 250, 2))
    first = of_lower(stage)
    assert f"/lowers/{LOWER}?namespace=team-1" in first.links
    assert "All (250)" in first.text
    assert "team-1 (125)" in first.text
    chosen = of_lower(stage, "team-1", 2)
    assert len(listed(chosen)) == 25
    assert {one.partition("/")[0] for one in listed(chosen)} == {"team-1"}
    assert listed(of_lower(stage, "nowhere")) == []


def test_a_row_has_phase_readiness_restarts_node_and_reason_of_a_pod() -> None:
    """The node is that of the lower cluster, and the reason is why the pod is not ready."""
    world = populated(1, 1)
    lower = world.lowers[LOWER]
    waiting = {"name": "main", "ready": False, "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    broken = {"phase": "Running", "containerStatuses": [waiting]}
    put(lower.upper_pods, upper_pod("broken", {"nodeName": lower.node}, broken, namespace="team-0"))
    text = of_lower(Stage(world)).text
    assert "team-0/web-0000Running1/11n1" in text
    assert "team-0/brokenRunning0/14CrashLoopBackOff" in text


def test_the_page_lists_the_blocked_objects_and_deletions_of_its_lower() -> None:
    """Those of other lowers are left out, and a long list is cut after a hundred and has the number of the others."""
    stage = Stage(populated(2, 6))
    stage.world.problems[Key("pod", LOWER, "team-0", "web-0000")] = Problem("QuotaExceeded", "pods=10")
    stage.world.problems[Key("pod", "lower-01", "team-0", "web-0001")] = Problem("Other", "of another")
    gone = tuple(Step("delete", Ref(LOWER, POD, "shop", f"web-{n}"), "its upper pod is gone") for n in range(130))
    stage.held[Key("orphans", LOWER, "", "pods")] = gone
    text = of_lower(stage).text
    assert "QuotaExceeded" in text
    assert "of another" not in text
    assert "130 changes" in text
    assert "Pod shop/web-99its upper pod is gone" in text
    assert "And 30 more." in text


def test_an_unknown_lower_has_no_page() -> None:
    """The page is empty, so that the server responds with 404."""
    stage = Stage(populated(1, 1))
    assert lower_page(stage.view(ResourceUsage()), stage.world, "other", PageOfPods(), {}) == ""


def test_the_page_of_a_pod_shows_the_upper_and_the_lower_pod() -> None:
    """It has conditions and containers of both, the last events of the lower cluster and the engine's last changes."""
    stage = Stage(populated(1, 2))
    stage.heard = (EVENT,)
    stage.changes.add(Step("create", Ref(LOWER, POD, "team-0", "web-0000"), "it is bound here"))
    stage.changes.add(step("other"))
    shown = of_pod(stage, "team-0", "web-0000")
    assert shown.opened == []
    assert (shown.text.count("PodScheduledTrue"), shown.text.count("mainapp:1yes1running")) == (2, 2)
    assert "Lower cluster lower-00" in shown.text
    assert "Back-off pulling image7" in shown.text
    assert "it is bound here" in shown.text
    assert "shop/other" not in shown.text
    assert "tensile explain pod team-0/web-0000" in shown.text
    assert f"/lowers/{LOWER}" in shown.links


def test_the_page_of_a_pod_shows_rewritten_fields_without_their_values() -> None:
    """Names and keys are shown, but no values of variables, commands, annotations or termination messages."""
    world = populated(1, 1)
    lower = world.lowers[LOWER]
    ended = {"name": "main", "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": SECRET}}}
    env = [{"name": "ONE", "value": SECRET}]
    above = requesting("job", "team-0", lower.node, env=env, lifecycle={"preStop": {"exec": {"command": [SECRET]}}})
    put(lower.upper_pods, {**above, "status": {"phase": "Failed", "containerStatuses": [ended]}})
    below = twin(above)
    below["spec"]["containers"][0]["env"] = [*env, {"name": "ADDED", "value": SECRET}]
    put(lower.pods, below)
    shown = of_pod(Stage(world), "team-0", "job")
    assert SECRET not in shown.text
    assert "Error, exit code 1" in shown.text
    assert 'spec.containers[main].env[ADDED]-{"name": "ADDED", "value": "(not shown)"}' in shown.text
    assert "metadata.annotations.tensile-kube.io/upper-uid-(not shown)" in shown.text
    assert "spec.nodeName" in shown.text


def test_a_lower_pod_that_was_not_created_for_the_upper_pod_is_not_shown() -> None:
    """Its labels prove nothing, because any client that may create pods in the lower cluster can set them."""
    world = populated(1, 1)
    lower = world.lowers[LOWER]
    above = requesting("web", "shop", lower.node)
    put(lower.upper_pods, above)
    put(lower.pods, twin({**above, "metadata": {**above["metadata"], "uid": "another"}}, {"message": "not ours"}))
    shown = of_pod(Stage(world), "shop", "web")
    assert "was not made for this upper pod" in shown.text
    assert "not ours" not in shown.text


def test_the_page_of_an_unbound_or_unmirrored_pod_states_that() -> None:
    """It shows the upper pod alone, and an unknown pod is not found."""
    world = populated(1, 1)
    put(world.upper.waiting, upper_pod("waits", {"nodeName": None}, labels={VIRTUAL_POD: "true"}))
    put(world.lowers[LOWER].upper_pods, requesting("fresh", "shop", "lower-00"))
    stage = Stage(world)
    assert "No virtual node yet" in of_pod(stage, "default", "waits").text
    assert "It has no pod in the lower cluster" in of_pod(stage, "shop", "fresh").text
    assert found_pod(world, "shop", "nobody") is None
    found = found_pod(world, "default", "waits")
    assert isinstance(found, FoundPod)
    assert found.lower is None


def test_the_search_finds_lowers_and_pods_by_a_part_of_their_name() -> None:
    """Case does not matter, the namespace is searched too, and a long result is cut after a hundred with a count."""
    world = populated(2, 240)
    assert Shown(search_page(world, "WEB-0007")).links[3:-2] == ["/pods/team-1/web-0007", "/lowers/lower-01"]
    many = Shown(search_page(world, " team-1/ "))
    assert "120 found." in many.text
    assert "And 20 more." in many.text
    assert "/lowers/lower-01" in Shown(search_page(world, "lower-01")).links
    assert "Nothing has this text" in Shown(search_page(world, "nobody")).text
    assert [Shown(search_page(None, words)).opened for words in ("", "x")] == [[], []]


def test_effects_describe_each_affected_lower_with_the_number_of_its_pods() -> None:
    """Lowers that the edit adds, removes or changes have an effect."""
    world = populated(2, 6)
    raised(world, LOWER)
    new = worldkit.topology("name: lower-01, maintenance: drain", "name: lower-02")
    assert effects(edit(world.topology, new), world) == (
        ("lower-02", "the engine connects to it and adds its virtual node"),
        (LOWER, "cordoned; 3 pods stay on its node until they are deleted, then its node is removed"),
        ("lower-01", "changed while it runs; 3 pods stay on its node"),
    )


def test_pods_that_are_not_listed_are_reported_as_unknown() -> None:
    """A standby has no lowers, and a lower may be unsynced: the pages then claim neither that no pods exist, nor 0."""
    world, unsynced = populated(2, 6), populated(2, 6)
    new = edit(world.topology, worldkit.topology("name: lower-01, maintenance: drain"))
    unsynced.lowers[LOWER].upper_pods.synced = False
    assert f"{LOWER}: cordoned; {UNKNOWN}" in told(new, unsynced)
    assert "changed while it runs; 3 pods stay" in told(new, unsynced)
    world.lowers.clear()
    assert told(new, world).count(UNKNOWN) == 2
    for known in (world, unsynced, None):
        assert "not all known here" in Shown(search_page(known, "nobody")).text
        assert "Nothing has" not in Shown(search_page(known, "nobody")).text
    found = Shown(search_page(unsynced, "web-0000")).text
    assert "1 found." in found
    assert "not all known here" in found


UNKNOWN = "it is not known here how many pods stay on its node"


def told(change: Edit, world: World) -> str:
    """Return the effects of an edit on the lowers as text."""
    return "\n".join(f"{name}: {words}" for name, words in effects(change, world))


def test_the_topology_page_shows_the_result_of_the_check_and_the_given_text() -> None:
    """The result is the list of errors, or what changes, needs a restart and waits, with the command for a plan."""
    wrong = Shown(topology_page("a: <b>\n\tc", TopologyCheck("topology:1:1: a: unknown\ntopology:2:1: tab")))
    assert "Not valid:" in wrong.text
    assert "topology:2:1: tab" in wrong.text
    assert "a: <b>\n\tc" in wrong.text
    found = TopologyCheck("", ("careful",), ("lower b added",), ("name: a -> b",), ("waits for c",), (("b", "joins"),))
    text = Shown(topology_page("x", found)).text
    for words in ("Valid.", "careful", "lower b added", "name: a -> b", "waits for c", "b: joins", "tensile plan -f"):
        assert words in text
    assert "means the same" in Shown(topology_page("x", TopologyCheck())).text
    assert re.search("Result", Shown(topology_page()).text) is None
