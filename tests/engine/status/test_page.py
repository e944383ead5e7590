"""Tests of the overview of the status page: its content, and the cost of its updates."""

from typing import Any

from pagekit import GPU, ParsedPage, StatusPageHarness, populated, requesting, step
from statuskit import NOW, accepted, invalid_update, row
from worldkit import delete_observed, make_lower_pod, put

from tensile.engine.status.page import PageView, RecentChanges, ResourceUsage, content, page, stamp
from tensile.engine.status.report import LowerRow, StatusReport, TopologyStatus
from tensile.kubelet.node.capacity import ResourceShare
from tensile.objects import NODE, SECRET, UPPER, Ref
from tensile.reconcile.drift import DELETED, Drift, DriftLog, RecentDrift
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, Problem

POD_KEY = Key("pod", "lower-a", "shop", "web")
MISSING = Problem("ConfigMapNotFound", "ConfigMap shop/settings: it does not exist")
CPU = ResourceShare(total=96_000, ours=40_500, others=12_000, reserved=8_000)


def changes(*steps: Step) -> Any:
    """Return the last changes after these steps."""
    found = RecentChanges(lambda: NOW)
    for one in steps:
        found.add(one)
    return tuple(found)


def view(*rows: LowerRow, **fields: Any) -> PageView:
    """Return the data of a leader's page."""
    return PageView(StatusReport("demo", accepted(), rows), leads=True)._replace(**fields)


def test_each_lower_has_a_card_with_its_state_and_the_usage_of_its_nodes() -> None:
    """Each resource has a bar with a label that a screen reader reads as a sentence."""
    used = {"lower-a": {"cpu": CPU, "memory": ResourceShare(768 * 1024**3 * 1000)}}
    rows = row("lower-a"), row("lower-b", state="NoAnswer", lag=130, message="no answer")
    found = ParsedPage(page(view(*rows, shares=used)))
    assert found.opened == []
    for fragment in ("demo", "Engine: leader", "Ready", "Node node-lower-a, 3 pods", "2 clusters", "6 pods"):
        assert fragment in found.text
    assert "35.5 of 96 free" in found.text
    assert "768Gi of 768Gi free" in found.text
    assert "NoAnswer 2m10s" in found.text
    assert "/lowers/lower-b" in found.links
    bars = [attributes for tag, attributes in found.elements if tag == "svg" and attributes.get("class") == "bar"]
    assert bars[0]["aria-label"] == "cpu: 40.5 our pods, 12 other pods, 8 held back, 35.5 free, of 96"
    parts = [(one["class"], one["x"], one["width"]) for tag, one in found.elements if tag == "rect" and "x" in one]
    assert parts == [("ours", "0", "42.19"), ("others", "42.19", "12.5"), ("reserved", "54.69", "8.333")]


def test_a_usage_bar_ends_at_100_percent_if_requests_exceed_the_total() -> None:
    """Requests can exceed what the nodes have, for example after a node was removed."""
    over = ResourceShare(total=1000, ours=900, others=900, reserved=900)
    found = ParsedPage(content(view(row("lower-a"), shares={"lower-a": {"pods": over}})))
    parts = [(one["class"], one["width"]) for tag, one in found.elements if tag == "rect" and "x" in one]
    assert parts == [("ours", "90"), ("others", "10")]
    assert "0 of 1 free" in found.text


def test_problems_are_listed_with_a_command() -> None:
    """Blocked objects and lowers with a problem are listed; without any, the page states that there are none."""
    found = ParsedPage(content(view(row(message="no such file", state="Error"), problems=((POD_KEY, MISSING),))))
    for fragment in ("no such file", "tensile doctor", MISSING.reason, MISSING.message, "tensile explain pod shop/web"):
        assert fragment in found.text
    assert "/pods/shop/web" in found.links
    assert "Nothing." in ParsedPage(content(view(row()))).text


def test_only_fifty_problems_are_listed_and_the_others_are_counted() -> None:
    """The page stays short."""
    found = content(view(row(), problems=((POD_KEY, MISSING),) * 73))
    assert found.count(MISSING.reason) == 50
    assert "And 23 more" in found


def test_deletions_that_the_guard_blocks_are_counted_for_each_lower() -> None:
    """The command that permits them is shown; without any, the section is missing."""
    orphans = Key("orphans", "lower-a", "", "pods")
    found = ParsedPage(content(view(row(), held={orphans: 1200, orphans._replace(name="rest"): 34})))
    assert "1,234 changes in lower-a" in found.text
    assert "tensile apply --force" in found.text
    assert "guard" not in ParsedPage(content(view(row()))).text


def test_the_last_fifty_changes_are_listed_with_reasons_the_latest_first() -> None:
    """Each one has its cluster and its object."""
    steps = [step(f"web-{number}") for number in range(60)]
    node = Step("patch", Ref(UPPER, NODE, "", "lower-a"), "labels differ")
    found = changes(*steps, node)
    assert len(found) == 50
    text = ParsedPage(content(view(row(), changes=found))).text
    assert "2026-03-01T12:00:00ZupperNode lower-a changedlabels differ" in text
    assert text.index("web-59") < text.index("web-11")
    assert "Pod shop/web-59 created" in text
    assert "None since" in ParsedPage(content(view(row()))).text


def test_drift_is_listed_with_its_fields_and_without_their_values() -> None:
    """The client is shown if managedFields has it, and the section has the command that finds drift."""
    log = DriftLog()
    secret = Ref("lower-a", SECRET, "shop", "token")
    log.add("lower-a", RecentDrift(NOW, secret, Drift(("data.key", "data.more"), ("kubectl-edit",))))
    log.add("lower-a", RecentDrift(NOW, secret._replace(name="gone"), Drift((DELETED,))))
    found = ParsedPage(content(view(row(), drifts=tuple(log))))
    assert "2026-03-01T12:00:00Zlower-aSecret shop/gonedeletedunknown" in found.text
    assert "2026-03-01T12:00:00Zlower-aSecret shop/tokendata.key, data.morekubectl-edit" in found.text
    assert found.text.index("shop/gone") < found.text.index("shop/token")
    assert "tensile plan --drift" in found.text
    assert "None were put back" in ParsedPage(content(view(row()))).text


def test_the_page_shows_problems_of_the_topology() -> None:
    """It shows a rejected edit, changes that wait, what the engine waits for, and a missing or empty topology."""
    verdict = accepted(invalid_update()).pending(("node.name: once the node is gone",))
    found = content(view(row(), report=StatusReport("demo", verdict, None, "the upper cluster has not answered yet")))
    for fragment in (
        "lowerz: unknown key",
        "Not active yet: node.name",
        "Not ready: the upper cluster",
        "Not known yet",
    ):
        assert fragment in found
    empty = content(PageView(StatusReport("", TopologyStatus(), ()), leads=False))
    for fragment in ("No topology", "replica", "The topology has none"):
        assert fragment in empty


def test_resource_usage_follows_the_pods_in_the_caches() -> None:
    """Own pods, other pods and extended resources such as GPUs count, and a deleted pod no longer counts."""
    world, usage = populated(2, 6), ResourceUsage()
    lower = world.lowers["lower-00"]
    assert usage.of(lower)["cpu"] == ResourceShare(288_000, 1500, 16_000, 8000)
    assert usage.of(lower)[GPU] == ResourceShare(24_000, 0, 4000, 0)
    assert usage.of(lower)["pods"] == ResourceShare(1_500_000, 3000, 4000, 0)
    delete_observed(lower.pods, "web-0000", "team-0")
    assert usage.of(lower)["cpu"].ours == 1000
    put(lower.pods, make_lower_pod(requesting("more", "team-0", lower.node, resources={"requests": {"cpu": "2"}})))
    assert usage.of(lower)["cpu"].ours == 3000
    assert usage.of(world.lowers["lower-01"])["cpu"].ours == 1500


def test_usage_is_only_recomputed_after_a_change_and_is_unknown_without_lists() -> None:
    """The same object is returned as long as nothing has changed."""
    world, usage = populated(2, 6), ResourceUsage()
    lower = world.lowers["lower-00"]
    first = usage.of(lower)
    assert usage.of(lower) is first
    usage.forget()
    assert usage.of(lower) == first
    lower.pods.mark_stale()
    assert usage.of(lower) == {}


def test_the_stamp_changes_with_everything_that_the_page_shows_of_a_world() -> None:
    """Viewers receive each change, and the stamp stays the same without one."""
    world = populated(2, 6)
    lower = world.lowers["lower-00"]
    seen = [stamp(world)]
    assert stamp(world) == seen[0]
    put(lower.upper_pods, requesting("more", "team-0", lower.node))
    seen.append(stamp(world))
    delete_observed(lower.pods, "web-0000", "team-0")
    seen.append(stamp(world))
    world.problems[POD_KEY] = MISSING
    seen.append(stamp(world))
    world.problems[POD_KEY] = MISSING._replace(message="other")
    seen.append(stamp(world))
    lower.unreachable_seconds = 1.5
    seen.append(stamp(world))
    lower.access_error = "no such file"
    seen.append(stamp(world))
    assert len(set(map(repr, seen))) == len(seen)


def test_the_size_of_the_overview_does_not_depend_on_the_number_of_pods() -> None:
    """It has sums of the pods, and no list."""
    small, large = (StatusPageHarness(populated(2, pods)) for pods in (20, 200))
    sizes = [len(page(status_page.view(ResourceUsage()))) for status_page in (small, large)]
    assert abs(sizes[1] - sizes[0]) < 100
