"""Tests of the alert rules with promtool: their syntax, and when they fire."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tensile.engine.metrics import Metrics

RULES = Path(__file__).resolve().parents[2] / "manifests" / "monitoring" / "rules.yaml"
TESTS = Path(__file__).with_name("rules_test.yaml")


@pytest.fixture
def promtool() -> str:
    """Return the path of promtool; Debian has it in the package `prometheus`."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: package prometheus)")
    return found


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """Write the rules in Prometheus' own format, as the operator does with a PrometheusRule, and copy their tests."""
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(RULES.read_text())["spec"]))
    shutil.copy(TESTS, tmp_path)
    return path


def run(*command: str, text: str = "") -> str:
    """Run promtool, which must succeed, and return its output."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_accepts_the_alert_rules(promtool: str, rules: Path) -> None:
    """Every expression and every template of an annotation can be parsed."""
    count = RULES.read_text().count("- alert: ")
    assert f"SUCCESS: {count} rules found" in run(promtool, "check", "rules", str(rules))


def test_each_alert_fires_only_for_its_own_problem(promtool: str, rules: Path) -> None:
    """rules_test.yaml has the series of a healthy engine and of one with all problems."""
    assert "SUCCESS" in run(promtool, "test", "rules", str(rules.with_name(TESTS.name)))
    tested = TESTS.read_text()
    names = [rule["alert"] for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"]]
    assert [name for name in names if tested.count(name) != 2] == []


def test_promtool_accepts_the_metrics_of_the_engine(promtool: str) -> None:
    """Their names and help texts follow the conventions of Prometheus."""
    metrics = Metrics()
    metrics.requests.observe("10.0.0.1", 6443, "GET", 200, 0.1)
    metrics.step("a", "create", "Pod", "ok")
    metrics.eviction("a", "drained")
    run(promtool, "check", "metrics", text=metrics.text().decode())
