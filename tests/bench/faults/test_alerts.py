"""The campaign of alerts knows every alert, and shortens only times."""

import inspect
import re

import yaml

from bench.faults.alerts import BUG, RULES, STUCK, Causes, shortened
from bench.kit.children import ROOT
from bench.mutation.bugs.__main__ import planted


def shipped() -> list[dict[str, str]]:
    """Return the rules as they ship."""
    return [rule for group in yaml.safe_load(RULES.read_text())["spec"]["groups"] for rule in group["rules"]]


def test_every_alert_has_a_cause() -> None:
    """So that a rule that cannot fire is found when it is written, not only by the campaign."""
    waited_for = set(re.findall(r'"(Tensile\w+)"', inspect.getsource(Causes)))
    assert waited_for == {rule["alert"] for rule in shipped()}


def test_only_times_are_shortened() -> None:
    """What is asked for and the thresholds stay, but for the one that no fault reaches in time."""
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


def test_the_bug_can_be_planted() -> None:
    """In the code as it is now: the campaign would end without it."""
    source = (ROOT / BUG.path).read_text()
    assert compile(planted(source, BUG), BUG.path, "exec")
    assert planted(source, BUG) != source
