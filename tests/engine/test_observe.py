"""Tests of the log of `tensile run --observe`: each change once, again if it differs, and when it no longer applies."""

from copy import deepcopy

from worldkit import A, add_virtual_node, make_world, put

from tensile.engine.observer import LogLine, new_lines, report_of, stopped
from tensile.names import OWNER
from tensile.objects import CONFIG_MAP, POD, Manifest, Ref, labels
from tensile.reconcile.diff import Difference
from tensile.reconcile.ownership import is_kept_alive
from tensile.reconcile.report import Change, Preview
from tensile.reconcile.world import Key, Problem, World

WEB, SETTINGS = Ref(A, POD, "shop", "web"), Ref(A, CONFIG_MAP, "shop", "settings")
KEY = Key("pods", A, "shop", "web")


def preview(*changes: Change, **problems: str) -> Preview:
    """Return a plan with these changes in lower-a, and a blocked pod for each reason."""
    blocked = tuple((KEY, Problem(reason, message)) for reason, message in problems.items())
    return Preview("demo", {A: changes}, blocked)


def created(ref: Ref, content: str = "") -> Change:
    """Return the creation of an object with some content."""
    return Change(ref, "create", "a pod needs it", (), manifest={"data": {"key": content}})


def changed(ref: Ref, *fields: str) -> Change:
    """Return the change of some fields of an object."""
    return Change(ref, "update", "it differs", (), tuple(Difference((name,), "old", "s3cret") for name in fields))


def test_the_first_report_has_all_changes_and_a_summary() -> None:
    """A report without changes has a summary too, so that the log shows that the clusters were read."""
    report = report_of(preview(created(WEB), NameConflict="in use"))
    place = {"cluster": A, "object": "shop/web"}
    assert new_lines(report, None, "Plan: 1 to add") == [
        LogLine("info", "would create Pod", {**place, "because": "a pod needs it"}),
        LogLine(
            "warning",
            "would be blocked",
            {"lower": A, "object": "pods shop/web", "reason": "NameConflict", "error": "in use"},
        ),
        LogLine("info", "Plan: 1 to add", {}),
    ]
    assert new_lines(report_of(preview()), None, "Plan: 0 to add") == [LogLine("info", "Plan: 0 to add", {})]


def test_a_later_report_only_has_the_differences() -> None:
    """An object with only other planned content is the same, because that can include the time of the plan."""
    last = report_of(preview(created(WEB, "1"), created(SETTINGS)))
    report = report_of(preview(created(WEB, "2"), changed(SETTINGS, "data")))
    lines = [(line.event, line.fields.get("object")) for line in new_lines(report, last, "Plan: …")]
    assert lines == [("would change ConfigMap", "shop/settings"), ("Plan: …", None)]
    assert new_lines(report, report, "Plan: …") == []


def test_a_change_that_is_no_longer_planned_is_reported() -> None:
    """Another client may have made it, or the pod was deleted; the line for a resolved problem is no warning."""
    last = report_of(preview(created(WEB), Denied="a quota"))
    lines = [(line.level, line.event) for line in new_lines(report_of(preview()), last, "Plan: …")]
    assert lines == [
        ("info", "no longer: would create Pod"),
        ("info", "no longer: would be blocked"),
        ("info", "Plan: …"),
    ]


def test_a_line_has_the_changed_fields_without_their_values() -> None:
    """A long list of fields is cut."""
    (line, _) = new_lines(report_of(preview(changed(SETTINGS, *"abcdefghij"))), None, "Plan: …")
    assert line.fields["fields"] == [*"abcdefgh", "..."]
    assert "s3cret" not in str(line)


def node_of(found: World) -> Manifest:
    """Return the virtual node of lower-a."""
    entry = found.upper.nodes.get("", A)
    assert entry is not None
    return deepcopy(entry.manifest())


def test_virtual_nodes_of_other_owners_are_not_ready_in_the_copied_world() -> None:
    """Nodes of this topology are unchanged, and so is the original world."""
    world = make_world()
    add_virtual_node(world)
    assert is_kept_alive(node_of(stopped(world)))
    foreign = node_of(world)
    del foreign["metadata"]["labels"][OWNER]
    put(world.upper.nodes, foreign)
    found = stopped(world)
    assert not is_kept_alive(node_of(found))
    assert labels(node_of(found)) == labels(foreign)
    assert found.upper.nodes.synced
    assert is_kept_alive(node_of(world))
