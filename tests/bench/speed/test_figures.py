"""Tests of medians, ratios and percentiles, and of the files that benches write."""

from pathlib import Path

import orjson
import pytest
from faultkit import above

from bench.kit.participants import is_usable
from bench.kit.reporting import KEPT, keep, medians, ratios, table, verdict
from bench.kit.workload import deployment, pod
from bench.speed import readme
from bench.speed.ceiling import least_pod, room
from bench.speed.latency import summary
from bench.speed.makespan import ReadyTimes, parts, percentile

RUNS = [
    {"party": party, "s": value}
    for party, value in (("engine", 3.0), ("ceiling", 2.0), ("engine", 9.0), ("engine", 4.0))
]


def test_medians_are_those_of_one_party() -> None:
    """Runs of other parties do not count."""
    assert (medians(RUNS, "engine", ["s"]), medians(RUNS, "ceiling", ["s"])) == ({"s": 4.0}, {"s": 2.0})


def test_ratios_are_the_engines_values_divided_by_those_of_each_party() -> None:
    """A value of zero has no ratio."""
    found = {"engine": {"s": 3.0, "cpu": 1.0}, "ceiling": {"s": 2.0, "cpu": 0.5}, "alone": {"s": 1.0, "cpu": 0.0}}
    assert ratios(found, ["s", "cpu"]) == {"ceiling": {"s": 1.5, "cpu": 2.0}, "alone": {"s": 3.0}}


def test_a_table_has_a_line_for_each_party() -> None:
    """Its header has the names of the values."""
    lines = table({"engine": {"s": 1.5}, "ceiling": {"s": 1.0}}, ["s"]).splitlines()
    assert [line.split() for line in lines] == [["median", "s"], ["engine", "1.5"], ["ceiling", "1"]]


@pytest.mark.parametrize(("share", "value"), [(0.0, 0), (0.5, 50), (0.95, 95), (1.0, 99)])
def test_percentiles_are_values_of_the_list(share: float, value: int) -> None:
    """The last one is the maximum."""
    assert percentile(range(100), share) == value


def test_latencies_are_summarized_in_milliseconds() -> None:
    """The summary has the median, the 95th percentile and the maximum."""
    assert summary([0.01] * 15 + [0.02] * 4 + [0.5]) == {"p50_ms": 10.0, "p95_ms": 500.0, "max_ms": 500.0}


def test_the_start_time_of_a_pod_is_measured_from_its_first_observation() -> None:
    """It ends when the pod is first seen to be Ready."""
    found = ReadyTimes()
    for now, ready in ((1.0, False), (2.0, False), (3.5, True), (9.0, True)):
        found.note(above(ready=ready), now)
    assert found.summary() == {"ready": 1, "last_ready_s": 3.5, "p50_s": 2.5, "p99_s": 2.5}


def test_a_result_is_stored_with_date_machine_and_versions(tmp_path: Path) -> None:
    """They are needed to compare results of different machines."""
    path = keep(tmp_path / "results", "one", "v1.36.3", {"seed": 7})
    kept = orjson.loads(path.read_bytes())
    assert (path.name, kept["seed"], kept["versions"]["cluster"]) == ("one.json", 7, "v1.36.3")
    assert kept["machine"]["processors"] > 0
    assert kept["date"].endswith("Z")


def test_the_exit_code_is_1_if_anything_is_broken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every violation is printed."""
    assert verdict("crash", [], tmp_path) == 0
    assert verdict("crash", ["a is gone", "b is twice"], tmp_path) == 1
    assert capsys.readouterr().err == "crash: BROKEN: a is gone\ncrash: BROKEN: b is twice\n"


def test_a_workload_for_a_lower_selects_its_virtual_node() -> None:
    """It uses the label that every virtual node has; without a lower, the pod has no selector."""
    template = deployment("d", 3, "lower-a", grace=5)["spec"]["template"]
    assert template["spec"]["nodeSelector"] == {"clusterID": "lower-a"}
    assert template["spec"]["terminationGracePeriodSeconds"] == 5
    assert "nodeSelector" not in pod("p", "g")["spec"]


@pytest.mark.parametrize(("pods", "sizes"), [(1, [1]), (1000, [1000]), (1200, [500, 500, 200])])
def test_many_pods_are_split_into_several_deployments(pods: int, sizes: list[int]) -> None:
    """Each of them is created at once."""
    assert parts(pods) == sizes


def test_the_nodes_of_the_ceiling_have_the_sum_of_the_lower_nodes() -> None:
    """With more than that, the scheduler would bind more pods to a lower than it can run."""
    node = {"status": {"allocatable": {"cpu": "32", "memory": "256Gi", "pods": "500", "ephemeral-storage": "1Ti"}}}
    assert room([node, node, node]) == {"cpu": "96", "memory": "768Gi", "pods": "1500"}


def test_the_ceiling_creates_minimal_pods() -> None:
    """They have the same name and labels, and containers without volume mounts."""
    upper = above()
    upper["spec"]["containers"] = [{"name": "c", "image": "i", "volumeMounts": [{"name": "token"}]}]
    assert least_pod(upper) == {
        "metadata": {"name": "pod-u1", "labels": {}},
        "spec": {"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": False},
    }


@pytest.mark.parametrize(
    ("status", "taint", "usable"),
    [
        ("True", "virtual-kubelet.io/provider", True),
        ("True", "node.kubernetes.io/unreachable", False),
        ("Unknown", "virtual-kubelet.io/provider", False),
    ],
)
def test_a_ready_and_reachable_node_is_usable(status: str, taint: str, usable: bool) -> None:  # noqa: FBT001
    """The taint of virtual nodes itself does not matter."""
    node = {"status": {"conditions": [{"type": "Ready", "status": status}]}, "spec": {"taints": [{"key": taint}]}}
    assert is_usable(node) is usable


def test_the_pages_contain_the_stored_figures() -> None:
    """They are generated from the results, not written by hand."""
    told = readme.pages(readme.load(KEPT))
    assert {page: page.read_text() for page in told} == told


def test_the_readme_reports_an_outage_that_broke_something() -> None:
    """It claims that no pod was lost only if the result shows that."""
    kept = readme.load(KEPT)
    assert "no pod failed or ran twice" in readme.use_cases(kept)
    kept["faults-away"]["broken"] = ["a pod ran twice"]
    assert "broke what `bench/results/faults-away.json` lists" in readme.use_cases(kept)


def test_the_readme_names_existing_commands_for_its_figures() -> None:
    """Each command is a module of bench/ or a target of the Makefile."""
    makefile = (readme.ROOT / "Makefile").read_text()
    for use_case in readme.USE_CASES:
        runner, _, name = use_case.command.rpartition(" ")
        place = readme.ROOT / name.replace(".", "/")
        assert f"\n{name}:" in makefile if runner == "make" else place.is_dir() or place.with_suffix(".py").exists()


def test_figures_that_were_not_measured_are_left_out() -> None:
    """A missing result has no line, and a party with a value of zero has an empty cell."""
    measured = {party: {"last_ready_s": value} for party, value in (("engine", 3.0), ("ceiling", 2.0), ("alone", 0.0))}
    ratio = {"ceiling": {"last_ready_s": 1.5}}
    machine = {"processors": 2, "processor": "some"}
    found = {"makespan-2000": {"medians": measured, "ratios": ratio, "rounds": 5, "machine": machine}}
    lines = readme.figures(found).splitlines()
    assert lines[2] == "| 2,000 pods: the last is Ready | 3 s | 2 s |  | 1.50 |"
    assert lines[3] == ""


def test_a_text_without_markers_for_figures_is_refused() -> None:
    """Otherwise it would be unclear where to write the figures."""
    with pytest.raises(ValueError, match="no <!-- figures"):
        readme.rewritten("nothing", "figures")
