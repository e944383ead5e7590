"""Tests of the bench of alerts: it triggers every alert, and changes nothing but times."""

import inspect
import re

import yaml

from bench.faults.alert_rules import BUG, RULES, STUCK, Causes, shortened
from bench.kit.child_processes import ROOT
from bench.mutation.bugs.__main__ import planted


def shipped() -> list[dict[str, str]]:
    """Return the rules as they are shipped."""
    return [rule for group in yaml.safe_load(RULES.read_text())["spec"]["groups"] for rule in group["rules"]]


def test_every_alert_has_a_cause_in_the_bench() -> None:
    """A rule that cannot fire is therefore found when it is written."""
    waited_for = set(re.findall(r'"(Tensile\w+)"', inspect.getsource(Causes)))
    assert waited_for == {rule["alert"] for rule in shipped()}


def test_only_times_of_the_rules_are_shortened() -> None:
    """Expressions and thresholds stay, except for one that no fault reaches in time."""
    (group,) = shortened(yaml.safe_load(RULES.read_text()))["groups"]
    changed = []
    for before, after in zip(shipped(), group["rules"], strict=True):
        assert after.get("for") == ("2s" if "for" in before else None)
        assert after["labels"] == before["labels"]
        told = re.sub(r"\b(15m|10m|1h)\b", "20s", before["expr"])
        if after["expr"] != told:
            changed.append(before["alert"])
            assert after["expr"] == told.replace(*STUCK)
    assert changed == ["TensileReconcileStuck"]


def test_the_bug_of_the_bench_can_be_planted() -> None:
    """The text that it replaces exists in the current code, and the result compiles."""
    source = (ROOT / BUG.path).read_text()
    assert compile(planted(source, BUG), BUG.path, "exec")
    assert planted(source, BUG) != source
