"""Tests of the pages of a lower cluster and of a pod, the search page, and the result of a topology check."""

import re

import worldkit
from pagekit import SECRET, ParsedPage, StatusPageHarness, populated, requesting, step
from worldkit import add_virtual_node, make_lower_pod, make_upper_pod, put

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


def of_lower(status_page: StatusPageHarness, namespace: str = "", number: int = 1, name: str = LOWER) -> ParsedPage:
    """Return the page of a lower cluster."""
    page_of_pods = PageOfPods(namespace, number)
    return ParsedPage(
        lower_page(status_page.view(ResourceUsage()), status_page.world, name, page_of_pods, status_page.held_steps)
    )


def of_pod(status_page: StatusPageHarness, namespace: str, name: str) -> ParsedPage:
    """Return the page of a pod."""
    found = found_pod(status_page.world, namespace, name)
    assert found is not None
    return ParsedPage(pod_page(status_page.view(ResourceUsage()), status_page.world, found, status_page.carried_events))


def listed(page: ParsedPage) -> list[str]:
    """Return the pods that a page lists, in its order."""
    return [one.removeprefix("/pods/") for one in page.links if one.startswith("/pods/")]


def test_the_page_of_a_lower_has_its_resources_as_numbers() -> None:
    """It has the capacity of its nodes, and how much of it each group of pods uses."""
    text = of_lower(StatusPageHarness(populated(2, 6))).text
    assert "cpu2881.5168262.5" in text
    assert "memory1.1Ti768Mi64Gi01.1Ti" in text


def test_a_page_lists_a_hundred_pods_ordered_by_namespace() -> None:
    """It has links to the other pages, and a page number that does not exist shows the nearest one."""
    status_page = StatusPageHarness(populated(1, 250, 2))
    first, last = of_lower(status_page), of_lower(status_page, number=3)
    assert (len(listed(first)), len(listed(last))) == (100, 50)
    assert listed(first) == sorted(listed(first))
    assert set(listed(first)).isdisjoint(listed(last))
    assert "Page 1 of 3" in first.text
    assert f"/lowers/{LOWER}?page=2" in first.links
    assert listed(of_lower(status_page, number=99)) == listed(last)
    assert listed(of_lower(status_page, number=0)) == listed(first)


def test_the_page_of_a_lower_can_be_limited_to_one_namespace() -> None:
    """The links for that have the number of pods in each namespace."""
    status_page = StatusPageHarness(populated(1, 250, 2))
    first = of_lower(status_page)
    assert f"/lowers/{LOWER}?namespace=team-1" in first.links
    assert "All (250)" in first.text
    assert "team-1 (125)" in first.text
    chosen = of_lower(status_page, "team-1", 2)
    assert len(listed(chosen)) == 25
    assert {one.partition("/")[0] for one in listed(chosen)} == {"team-1"}
    assert listed(of_lower(status_page, "nowhere")) == []


def test_a_row_has_phase_readiness_restarts_node_and_reason_of_a_pod() -> None:
    """The node is that of the lower cluster, and the reason is why the pod is not ready."""
    world = populated(1, 1)
    lower = world.lowers[LOWER]
    waiting = {"name": "main", "ready": False, "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    broken = {"phase": "Running", "containerStatuses": [waiting]}
    put(lower.upper_pods, make_upper_pod("broken", {"nodeName": lower.node}, broken, namespace="team-0"))
    text = of_lower(StatusPageHarness(world)).text
    assert "team-0/web-0000Running1/11n1" in text
    assert "team-0/brokenRunning0/14CrashLoopBackOff" in text


def test_the_page_lists_the_blocked_objects_and_deletions_of_its_lower() -> None:
    """Those of other lowers are left out, and a long list is cut after a hundred and has the number of the others."""
    status_page = StatusPageHarness(populated(2, 6))
    status_page.world.problems[Key("pod", LOWER, "team-0", "web-0000")] = Problem("QuotaExceeded", "pods=10")
    status_page.world.problems[Key("pod", "lower-01", "team-0", "web-0001")] = Problem("Other", "of another")
    gone = tuple(Step("delete", Ref(LOWER, POD, "shop", f"web-{n}"), "its upper pod is gone") for n in range(130))
    status_page.held_steps[Key("orphans", LOWER, "", "pods")] = gone
    text = of_lower(status_page).text
    assert "QuotaExceeded" in text
    assert "of another" not in text
    assert "130 changes" in text
    assert "Pod shop/web-99its upper pod is gone" in text
    assert "And 30 more." in text


def test_an_unknown_lower_has_no_page() -> None:
    """The page is empty, so that the server responds with 404."""
    status_page = StatusPageHarness(populated(1, 1))
    assert lower_page(status_page.view(ResourceUsage()), status_page.world, "other", PageOfPods(), {}) == ""


def test_the_page_of_a_pod_shows_the_upper_and_the_lower_pod() -> None:
    """It has conditions and containers of both, the last events of the lower cluster and the engine's last changes."""
    status_page = StatusPageHarness(populated(1, 2))
    status_page.carried_events = (EVENT,)
    status_page.changes.add(Step("create", Ref(LOWER, POD, "team-0", "web-0000"), "it is bound here"))
    status_page.changes.add(step("other"))
    page = of_pod(status_page, "team-0", "web-0000")
    assert page.opened == []
    assert (page.text.count("PodScheduledTrue"), page.text.count("mainapp:1yes1running")) == (2, 2)
    assert "Lower cluster lower-00" in page.text
    assert "Back-off pulling image7" in page.text
    assert "it is bound here" in page.text
    assert "shop/other" not in page.text
    assert "tensile explain pod team-0/web-0000" in page.text
    assert f"/lowers/{LOWER}" in page.links


def test_the_page_of_a_pod_shows_rewritten_fields_without_their_values() -> None:
    """Names and keys are shown, but no values of variables, commands, annotations or termination messages."""
    world = populated(1, 1)
    lower = world.lowers[LOWER]
    ended = {"name": "main", "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": SECRET}}}
    env = [{"name": "ONE", "value": SECRET}]
    upper_object = requesting(
        "job", "team-0", lower.node, env=env, lifecycle={"preStop": {"exec": {"command": [SECRET]}}}
    )
    put(lower.upper_pods, {**upper_object, "status": {"phase": "Failed", "containerStatuses": [ended]}})
    lower_object = make_lower_pod(upper_object)
    lower_object["spec"]["containers"][0]["env"] = [*env, {"name": "ADDED", "value": SECRET}]
    put(lower.pods, lower_object)
    page = of_pod(StatusPageHarness(world), "team-0", "job")
    assert SECRET not in page.text
    assert "Error, exit code 1" in page.text
    assert 'spec.containers[main].env[ADDED]-{"name": "ADDED", "value": "(not shown)"}' in page.text
    assert "metadata.annotations.tensile-kube.io/upper-uid-(not shown)" in page.text
    assert "spec.nodeName" in page.text


def test_a_lower_pod_that_was_not_created_for_the_upper_pod_is_not_shown() -> None:
    """Its labels prove nothing, because any client that may create pods in the lower cluster can set them."""
    world = populated(1, 1)
    lower = world.lowers[LOWER]
    upper_object = requesting("web", "shop", lower.node)
    put(lower.upper_pods, upper_object)
    put(
        lower.pods,
        make_lower_pod(
            {**upper_object, "metadata": {**upper_object["metadata"], "uid": "another"}}, {"message": "not ours"}
        ),
    )
    page = of_pod(StatusPageHarness(world), "shop", "web")
    assert "was not made for this upper pod" in page.text
    assert "not ours" not in page.text


def test_the_page_of_an_unbound_or_unmirrored_pod_states_that() -> None:
    """It shows the upper pod alone, and an unknown pod is not found."""
    world = populated(1, 1)
    put(world.upper.waiting, make_upper_pod("waits", {"nodeName": None}, labels={VIRTUAL_POD: "true"}))
    put(world.lowers[LOWER].upper_pods, requesting("fresh", "shop", "lower-00"))
    status_page = StatusPageHarness(world)
    assert "No virtual node yet" in of_pod(status_page, "default", "waits").text
    assert "It has no pod in the lower cluster" in of_pod(status_page, "shop", "fresh").text
    assert found_pod(world, "shop", "nobody") is None
    found = found_pod(world, "default", "waits")
    assert isinstance(found, FoundPod)
    assert found.lower is None


def test_the_search_finds_lowers_and_pods_by_a_part_of_their_name() -> None:
    """Case does not matter, the namespace is searched too, and a long result is cut after a hundred with a count."""
    world = populated(2, 240)
    assert ParsedPage(search_page(world, "WEB-0007")).links[3:-2] == ["/pods/team-1/web-0007", "/lowers/lower-01"]
    many = ParsedPage(search_page(world, " team-1/ "))
    assert "120 found." in many.text
    assert "And 20 more." in many.text
    assert "/lowers/lower-01" in ParsedPage(search_page(world, "lower-01")).links
    assert "Nothing has this text" in ParsedPage(search_page(world, "nobody")).text
    assert [ParsedPage(search_page(None, fragment)).opened for fragment in ("", "x")] == [[], []]


def test_effects_describe_each_affected_lower_with_the_number_of_its_pods() -> None:
    """Lowers that the edit adds, removes or changes have an effect."""
    world = populated(2, 6)
    add_virtual_node(world, LOWER)
    new = worldkit.make_topology("name: lower-01, maintenance: drain", "name: lower-02")
    assert effects(edit(world.topology, new), world) == (
        ("lower-02", "the engine connects to it and adds its virtual node"),
        (LOWER, "cordoned; 3 pods stay on its node until they are deleted, then its node is removed"),
        ("lower-01", "changed while it runs; 3 pods stay on its node"),
    )


def test_pods_that_are_not_listed_are_reported_as_unknown() -> None:
    """A standby has no lowers, and a lower may be unsynced: the pages then claim neither that no pods exist, nor 0."""
    world, unsynced = populated(2, 6), populated(2, 6)
    new = edit(world.topology, worldkit.make_topology("name: lower-01, maintenance: drain"))
    unsynced.lowers[LOWER].upper_pods.synced = False
    assert f"{LOWER}: cordoned; {UNKNOWN}" in effects_text(new, unsynced)
    assert "changed while it runs; 3 pods stay" in effects_text(new, unsynced)
    world.lowers.clear()
    assert effects_text(new, world).count(UNKNOWN) == 2
    for known in (world, unsynced, None):
        assert "not all known here" in ParsedPage(search_page(known, "nobody")).text
        assert "Nothing has" not in ParsedPage(search_page(known, "nobody")).text
    found = ParsedPage(search_page(unsynced, "web-0000")).text
    assert "1 found." in found
    assert "not all known here" in found


UNKNOWN = "it is not known here how many pods stay on its node"


def effects_text(change: Edit, world: World) -> str:
    """Return the effects of an edit on the lowers as text."""
    return "\n".join(f"{name}: {fragment}" for name, fragment in effects(change, world))


def test_the_topology_page_shows_the_result_of_the_check_and_the_given_text() -> None:
    """The result is the list of errors, or what changes, needs a restart and waits, with the command for a plan."""
    wrong = ParsedPage(topology_page("a: <b>\n\tc", TopologyCheck("topology:1:1: a: unknown\ntopology:2:1: tab")))
    assert "Not valid:" in wrong.text
    assert "topology:2:1: tab" in wrong.text
    assert "a: <b>\n\tc" in wrong.text
    found = TopologyCheck("", ("careful",), ("lower b added",), ("name: a -> b",), ("waits for c",), (("b", "joins"),))
    text = ParsedPage(topology_page("x", found)).text
    for fragment in (
        "Valid.",
        "careful",
        "lower b added",
        "name: a -> b",
        "waits for c",
        "b: joins",
        "tensile plan -f",
    ):
        assert fragment in text
    assert "means the same" in ParsedPage(topology_page("x", TopologyCheck())).text
    assert re.search("Result", ParsedPage(topology_page()).text) is None
