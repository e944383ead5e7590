"""Tests of doctor's output: problems with their advice, one line for each cluster, and a document for programs."""

import re

from doctorkit import LOWER, cluster_facts, contact, facts

from tensile.diagnostics.doctor.facts import CHECKS, Facts, Finding, Level
from tensile.diagnostics.doctor.run import as_document, as_text, run_checks, worst
from tensile.engine.permissions import lower_rights
from tensile.objects import UPPER

FOUND = [
    Finding(UPPER, "reach", Level.OK, "https://192.0.2.1:6443 answers"),
    Finding(UPPER, "version", Level.OK, "v1.36.3"),
    Finding(UPPER, "certificates", Level.OK, "CA holds"),
    Finding(UPPER, "certificates", Level.WARN, "token ends", "renew it"),
    Finding(LOWER, "reach", Level.OK, "https://192.0.2.2:6443 answers"),
    Finding(LOWER, "rights", Level.FAIL, "missing: create pods", "as an administrator:\nkubectl create this\nand that"),
    Finding(LOWER, "node", Level.SKIP, "there is no Node"),
]
TEXT = """\
FAIL lower-a: rights: missing: create pods
     -> as an administrator:
        kubectl create this
        and that

warn upper: certificates: token ends
     -> renew it

upper     3 ok, 1 warning             v1.36.3, https://192.0.2.1:6443 answers
lower-a   1 ok, 1 failed, 1 skipped   https://192.0.2.2:6443 answers

1 failed, 1 warning"""
ALL = """\
upper: v1.36.3, https://192.0.2.1:6443 answers
  ok   reach: https://192.0.2.1:6443 answers
  ok   version: v1.36.3
  ok   certificates: CA holds
  warn certificates: token ends

lower-a: https://192.0.2.2:6443 answers
  ok   reach: https://192.0.2.2:6443 answers
  FAIL rights: missing: create pods
  -    node: there is no Node

1 failed, 1 warning"""


def test_text_has_failures_first_then_warnings_then_counts() -> None:
    """Each problem has its advice; OK findings are only counted for each cluster."""
    assert as_text(facts(), FOUND, colour=False) == TEXT


def test_text_with_all_findings_lists_them_after_the_problems() -> None:
    """The list of every finding replaces the counts."""
    problems, _, _ = TEXT.partition("upper     ")
    assert as_text(facts(), FOUND, colour=False, every=True) == problems + ALL


def test_colors_add_only_escape_sequences() -> None:
    """Without them the text is the same, and commands have none, so that they can be copied."""
    for every, plain in ((False, TEXT), (True, TEXT.partition("upper     ")[0] + ALL)):
        coloured = as_text(facts(), FOUND, colour=True, every=every)
        assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
        assert "\x1b[31mFAIL\x1b[0m" in coloured
        assert "\x1b[33mwarn\x1b[0m" in coloured
        assert "\x1b" not in next(line for line in coloured.splitlines() if "kubectl" in line)


def test_control_characters_of_a_server_are_escaped() -> None:
    """Each finding remains on one line."""
    found = [Finding(UPPER, "reach", Level.FAIL, "it said \u001b[2Jand\nFAIL", "say \x07")]
    text = as_text(facts(), found, colour=False)
    assert "it said \\u001b[2Jand\\nFAIL" in text
    assert "-> say \\u0007" in text


def test_a_server_version_cannot_forge_a_line_of_output() -> None:
    """The version is on its cluster's line, and its control characters are escaped."""
    odd = contact(version="v1.36.3\u001b[2J\x1b[H\nupper: all is well")
    known = facts(None, cluster_facts(contact=odd))
    for every, begin in ((False, "lower-a +\\d.*"), (True, "lower-a: ")):
        text = as_text(known, run_checks(known), colour=False, every=every)
        assert "\x1b" not in text
        assert "upper: all is well" not in text.splitlines()
        message = re.escape("v1.36.3\\u001b[2J\\u001b[H\\nupper: all is well, https://")
        assert re.search(f"^{begin}{message}", text, re.MULTILINE)


def last(*levels: Level) -> str:
    """Return the last line for findings of these levels."""
    return as_text(facts(), [Finding(UPPER, "reach", level, "x") for level in levels], colour=False).splitlines()[-1]


def test_the_last_line_counts_failures_and_warnings() -> None:
    """Each count has its singular or plural noun."""
    assert last(Level.OK, Level.SKIP) == "0 failed, 0 warnings"
    assert last(Level.WARN, Level.WARN) == "0 failed, 2 warnings"
    assert last(Level.FAIL, Level.FAIL, Level.FAIL) == "3 failed, 0 warnings"
    assert last() == "0 failed, 0 warnings"


def test_the_document_contains_every_finding_with_its_level() -> None:
    """The upper cluster's name is null, because no lower cluster can have that name."""
    document = as_document(facts(), FOUND)
    assert (document["formatVersion"], document["topology"], document["level"]) == (1, "demo", "fail")
    upper, lower = document["clusters"]
    assert (upper["name"], lower["name"]) == (None, LOWER)
    assert [one["level"] for one in upper["findings"]] == ["ok", "ok", "ok", "warn"]
    assert lower["findings"][1] == {
        "check": "rights",
        "level": "fail",
        "what": "missing: create pods",
        "advice": ["as an administrator:", "kubectl create this", "and that"],
    }
    assert lower["findings"][2]["level"] == "skipped"


def test_worst_returns_the_highest_level() -> None:
    """No findings at all count as skipped, which is neither a failure nor OK."""
    assert worst([]) == Level.SKIP
    assert worst(FOUND) == Level.FAIL
    assert worst(FOUND[:4]) == Level.WARN
    assert worst(FOUND[:3]) == Level.OK


def found_of(known: Facts) -> list[Finding]:
    """Return the findings of every check."""
    return run_checks(known)


def test_healthy_clusters_have_only_ok_findings_in_the_order_of_the_checks() -> None:
    """Skipped findings are not counted."""
    found = found_of(facts())
    assert worst([one for one in found if one.level != Level.SKIP]) == Level.OK
    for name in (UPPER, LOWER):
        places = [CHECKS.index(one.check) for one in found if one.cluster == name]
        assert places == sorted(places)
        assert len(set(places)) > 5


def test_an_unreachable_lower_does_not_affect_the_upper_findings() -> None:
    """The lower has one failure, at the reach check."""
    away = cluster_facts(contact=None, identity="", missing=None, answers={})
    away.answers.clear()
    found = found_of(facts(None, away))
    assert [one.check for one in found if one.cluster == LOWER and one.level == Level.FAIL] == ["reach"]
    assert not [one for one in found if one.cluster == UPPER and one.level == Level.FAIL]


def test_advice_for_a_lower_without_any_rights_has_under_20_lines() -> None:
    """The commands are grouped by sets of verbs instead of by resources."""
    one = cluster_facts()
    known = facts(None, one)
    one.missing = lower_rights(known.topology.lowers[0])
    (failing,) = [found for found in found_of(known) if found.level == Level.FAIL]
    assert len(failing.advice.splitlines()) < 20
