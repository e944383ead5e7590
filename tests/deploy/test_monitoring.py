"""Tests that alert rules, dashboard and ServiceMonitor match the engine's metrics, its Service and the docs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensile.engine.metrics import Metrics
from tensile.kubelet.stats.collector import node_metrics
from tensile.kubelet.stats.usage import RunningPod
from tensile.names import VIRTUAL_NODE

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "manifests" / "monitoring"
RUNBOOKS = ROOT / "docs" / "runbooks"
STRINGS_AND_RANGES = re.compile(r'"[^"]*"|\[[^\]]*\]')
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
SELECTOR = re.compile(r"(\w+)\s*\{([^}]*)\}")
WORDS = {"and", "or", "unless", "offset", "by", "without", "on", "ignoring", "group_left", "group_right", "bool"}
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def load(name: str) -> Any:
    """Return a parsed file of manifests/monitoring."""
    return yaml.safe_load((MONITORING / name).read_text())


def alerts() -> list[dict[str, Any]]:
    """Return all alert rules."""
    return [rule for group in load("rules.yaml")["spec"]["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard, without its rows."""
    board = json.loads((MONITORING / "dashboard.json").read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Yield every query with the name of its rule or panel."""
    yield from ((rule["alert"], rule["expr"]) for rule in alerts())
    for panel in panels():
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])


def exposed() -> dict[str, set[str]]:
    """Return the labels of every time series of the engine, its process and a virtual node, by name."""
    found: dict[str, set[str]] = {}
    for family in Metrics().registry.collect():
        labels = set(getattr(family, "_labelnames", ()))
        for suffix in SUFFIXES.get(family.type, ("",)):
            found[family.name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    pod = RunningPod("shop", "web", "uid", None, 0, {"main": 0})  # type: ignore[arg-type]
    for line in node_metrics("node", [pod]).decode().splitlines():
        if not line.startswith("#"):
            name, _, rest = line.partition("{") if "{" in line else (line.split()[0], "", "")
            found[name] = set(re.findall(r"(\w+)=", rest))
    return found


def names_in(expression: str) -> set[str]:
    """Return the names of metrics in a query."""
    bare = re.sub(r"\{[^}]*\}", "", STRINGS_AND_RANGES.sub("", expression))
    bare = GROUPING.sub("", bare)
    names = re.findall(r"(?<![\w.])[a-zA-Z_:]\w*\b(?!\s*\()", bare)
    return {word for word in names if word not in WORDS}


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
def test_queries_use_existing_metrics_and_labels(title: str, expression: str) -> None:
    """An alert on a renamed metric would never fire; Prometheus itself adds `job` and `instance`."""
    known = exposed()
    names = names_in(expression)
    assert names, title
    assert names - known.keys() == set()
    allowed = set().union(*(known[name] for name in names)) | {"job", "instance", "le"}
    used = {label.strip() for group in GROUPING.findall(expression) for label in group.split(",")}
    for _, selector in SELECTOR.findall(expression):
        used |= set(re.findall(r"(\w+)\s*(?:=|!=|=~|!~)", STRINGS_AND_RANGES.sub('""', selector)))
    assert used - allowed == set()


def test_names_of_metrics_are_found_in_every_form_of_a_query() -> None:
    """The test of the queries depends on this."""
    query = 'histogram_quantile(0.9, sum by (a, le) (rate(x_bucket{b="y"}[5m]))) > 1 or z unless w offset 15m'
    assert names_in(query) == {"x_bucket", "z", "w"}


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    """The annotation names it, and its heading begins with the alert's name, which makes it searchable."""
    found = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in alerts()}
    assert found == {name: f"docs/runbooks/{name}.md" for name in found}
    assert sorted(found) == sorted(path.stem for path in RUNBOOKS.glob("*.md"))
    for name in found:
        text = (RUNBOOKS / f"{name}.md").read_text()
        assert text.startswith(f"# {name}: ")
        assert "\n## What to do\n1. " in text


def test_every_alert_has_a_summary_a_description_and_a_severity() -> None:
    """The severities are those of kube-prometheus."""
    for rule in alerts():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, rule["alert"]
        assert all(rule["annotations"][key].endswith(".") for key in ("summary", "description")), rule["alert"]


def test_the_page_of_metrics_lists_the_alerts() -> None:
    """They are in the same order, with links to the runbooks."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert re.findall(r"^\| \[(\w+)\]\(runbooks/\1\.md\)", page, re.MULTILINE) == [rule["alert"] for rule in alerts()]


def test_panels_have_distinct_ids_and_do_not_overlap() -> None:
    """Grafana would draw overlapping panels on top of each other."""
    board = json.loads((MONITORING / "dashboard.json").read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    cells = [
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_every_panel_has_a_description() -> None:
    """Grafana shows it when the user points at the panel."""
    assert [panel["title"] for panel in panels() if not panel["description"].endswith(".")] == []


def test_the_servicemonitor_selects_the_service_whose_name_is_the_job() -> None:
    """It matches labels and port name; without a jobLabel the Service's name is the job in the rules."""
    monitor = load("servicemonitor.yaml")
    services = list(yaml.safe_load_all((ROOT / "manifests" / "network.yaml").read_text()))
    selected = [
        one["metadata"]["name"]
        for one in services
        if one["kind"] == "Service"
        and monitor["spec"]["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()
        and monitor["spec"]["endpoints"][0]["port"] in [port["name"] for port in one["spec"]["ports"]]
    ]
    assert "jobLabel" not in monitor["spec"]
    assert set(re.findall(r'job="([^"]*)"', "".join(rule["expr"] for rule in alerts()))) == set(selected)


def test_the_kustomization_has_every_file() -> None:
    """It has the applied ones, and the dashboard in a ConfigMap that Grafana's sidecar loads."""
    found = load("kustomization.yaml")
    (generated,) = found["configMapGenerator"]
    files = {*found["resources"], *(one.partition("=")[2] for one in generated["files"]), "kustomization.yaml"}
    assert files == {path.name for path in MONITORING.iterdir() if path.is_file()}
    assert generated["options"]["labels"] == {"grafana_dashboard": "1"}


def test_the_kubelet_manifests_are_separate_and_complete() -> None:
    """Not every operator has ScrapeConfigs, and existing scrapes of nodes would count pods twice."""
    folder = MONITORING / "kubelet"
    found = load("kubelet/kustomization.yaml")
    assert {*found["resources"], "kustomization.yaml"} == {path.name for path in folder.iterdir()}
    access = list(yaml.safe_load_all((folder / "access.yaml").read_text()))
    names = {one["kind"]: one["metadata"]["name"] for one in access}
    assert names["Secret"] == names["ServiceAccount"]
    configs = list(yaml.safe_load_all((folder / "scrapeconfigs.yaml").read_text()))
    for spec in (one["spec"] for one in configs):
        (nodes,) = spec["kubernetesSDConfigs"]
        tokens = {one["authorization"]["credentials"]["name"] for one in (spec, nodes)}
        assert tokens == {names["Secret"]}
        assert nodes["selectors"] == [{"role": "Node", "label": "=".join(VIRTUAL_NODE)}]
    assert {one["spec"]["metricsPath"] for one in configs} == {"/metrics", "/metrics/cadvisor"}
