"""What doctor prints: what is not well with its remedy, a line for each cluster, and the same for programs."""

import re

from doctorkit import LOWER, contact, facts, side

from tensile.diagnostics.doctor.facts import CHECKS, Facts, Finding, Level
from tensile.diagnostics.doctor.run import as_document, as_text, diagnosed, worst
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


def test_findings_as_text() -> None:
    """What fails comes first, then what warns, each with what to do; what is well is a number for each cluster."""
    assert as_text(facts(), FOUND, colour=False) == TEXT


def test_every_finding_as_text() -> None:
    """Below what fails and warns, in place of the numbers."""
    problems, _, _ = TEXT.partition("upper     ")
    assert as_text(facts(), FOUND, colour=False, every=True) == problems + ALL


def test_colours_are_marks_only() -> None:
    """Without them it is the same text, and commands can be copied as they are."""
    for every, plain in ((False, TEXT), (True, TEXT.partition("upper     ")[0] + ALL)):
        coloured = as_text(facts(), FOUND, colour=True, every=every)
        assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
        assert "\x1b[31mFAIL\x1b[0m" in coloured
        assert "\x1b[33mwarn\x1b[0m" in coloured
        assert "\x1b" not in next(line for line in coloured.splitlines() if "kubectl" in line)


def test_words_of_a_server_do_nothing_to_a_terminal() -> None:
    """What is not printed is escaped, and one finding stays one line."""
    found = [Finding(UPPER, "reach", Level.FAIL, "it said \u001b[2Jand\nFAIL", "say \x07")]
    text = as_text(facts(), found, colour=False)
    assert "it said \\u001b[2Jand\\nFAIL" in text
    assert "-> say \\u0007" in text


def test_a_version_says_nothing_in_doctors_name() -> None:
    """It stands on the line of its cluster, where each server's own words stand: they stay on it."""
    odd = contact(version="v1.36.3\u001b[2J\x1b[H\nupper: all is well")
    known = facts(None, side(contact=odd))
    for every, begin in ((False, "lower-a +\\d.*"), (True, "lower-a: ")):
        text = as_text(known, diagnosed(known), colour=False, every=every)
        assert "\x1b" not in text
        assert "upper: all is well" not in text.splitlines()
        words = re.escape("v1.36.3\\u001b[2J\\u001b[H\\nupper: all is well, https://")
        assert re.search(f"^{begin}{words}", text, re.MULTILINE)


def last(*levels: Level) -> str:
    """Return the last line for findings of these levels."""
    return as_text(facts(), [Finding(UPPER, "reach", level, "x") for level in levels], colour=False).splitlines()[-1]


def test_the_last_line_counts() -> None:
    """One or many."""
    assert last(Level.OK, Level.SKIP) == "0 failed, 0 warnings"
    assert last(Level.WARN, Level.WARN) == "0 failed, 2 warnings"
    assert last(Level.FAIL, Level.FAIL, Level.FAIL) == "3 failed, 0 warnings"
    assert last() == "0 failed, 0 warnings"


def test_findings_for_programs() -> None:
    """Everything, with its level in words; the upper cluster has no name, as no lower can be called so."""
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


def test_the_worst_of_some() -> None:
    """What was not checked is no fault, and yet not well."""
    assert worst([]) == Level.SKIP
    assert worst(FOUND) == Level.FAIL
    assert worst(FOUND[:4]) == Level.WARN
    assert worst(FOUND[:3]) == Level.OK


def found_of(known: Facts) -> list[Finding]:
    """Go through every check."""
    return diagnosed(known)


def test_clusters_that_are_well_have_no_advice() -> None:
    """Nothing fails and nothing warns; every finding is of a check that there is, in order."""
    found = found_of(facts())
    assert worst([one for one in found if one.level != Level.SKIP]) == Level.OK
    for name in (UPPER, LOWER):
        places = [CHECKS.index(one.check) for one in found if one.cluster == name]
        assert places == sorted(places)
        assert len(set(places)) > 5


def test_one_cluster_that_is_away_says_nothing_of_the_others() -> None:
    """Each is told of by itself."""
    away = side(contact=None, identity="", missing=None, answers={})
    away.answers.clear()
    found = found_of(facts(None, away))
    assert [one.check for one in found if one.cluster == LOWER and one.level == Level.FAIL] == ["reach"]
    assert not [one for one in found if one.cluster == UPPER and one.level == Level.FAIL]


def test_a_lower_with_no_rights_at_all_has_few_lines() -> None:
    """A command for each set of verbs, not for each resource."""
    one = side()
    known = facts(None, one)
    one.missing = lower_rights(known.topology.lowers[0])
    (failing,) = [found for found in found_of(known) if found.level == Level.FAIL]
    assert len(failing.advice.splitlines()) < 20
