"""Medians, ratios, percentiles and the files that benches leave."""

from pathlib import Path

import orjson
import pytest
from faultkit import above

from bench.kit.parties import is_usable
from bench.kit.reporting import KEPT, keep, medians, ratios, table, verdict
from bench.kit.workload import deployment, pod
from bench.speed import readme
from bench.speed.ceiling import least_pod, room
from bench.speed.latency import summary
from bench.speed.makespan import Sightings, parts, percentile

RUNS = [
    {"party": party, "s": value}
    for party, value in (("engine", 3.0), ("ceiling", 2.0), ("engine", 9.0), ("engine", 4.0))
]


def test_medians_are_of_one_party() -> None:
    """Whatever the others did in between."""
    assert (medians(RUNS, "engine", ["s"]), medians(RUNS, "ceiling", ["s"])) == ({"s": 4.0}, {"s": 2.0})


def test_ratios_are_the_engines_in_multiples_of_the_others() -> None:
    """What is nothing there cannot be compared."""
    found = {"engine": {"s": 3.0, "cpu": 1.0}, "ceiling": {"s": 2.0, "cpu": 0.5}, "alone": {"s": 1.0, "cpu": 0.0}}
    assert ratios(found, ["s", "cpu"]) == {"ceiling": {"s": 1.5, "cpu": 2.0}, "alone": {"s": 3.0}}


def test_a_table_has_a_line_for_each_party() -> None:
    """Under the names of what was measured."""
    lines = table({"engine": {"s": 1.5}, "ceiling": {"s": 1.0}}, ["s"]).splitlines()
    assert [line.split() for line in lines] == [["median", "s"], ["engine", "1.5"], ["ceiling", "1"]]


@pytest.mark.parametrize(("share", "value"), [(0.0, 0), (0.5, 50), (0.95, 95), (1.0, 99)])
def test_percentiles(share: float, value: int) -> None:
    """The last one is the greatest."""
    assert percentile(range(100), share) == value


def test_latencies_are_told_in_milliseconds() -> None:
    """Median, 95 % and the worst."""
    assert summary([0.01] * 15 + [0.02] * 4 + [0.5]) == {"p50_ms": 10.0, "p95_ms": 500.0, "max_ms": 500.0}


def test_the_first_sight_of_a_pod_counts() -> None:
    """Its way is from there to the first time that it is Ready."""
    found = Sightings()
    for now, ready in ((1.0, False), (2.0, False), (3.5, True), (9.0, True)):
        found.note(above(ready=ready), now)
    assert found.summary() == {"ready": 1, "last_ready_s": 3.5, "p50_s": 2.5, "p99_s": 2.5}


def test_a_result_is_kept_with_what_it_was_measured_on(tmp_path: Path) -> None:
    """Date, machine and versions are in the file."""
    path = keep(tmp_path / "results", "one", "v1.36.3", {"seed": 7})
    kept = orjson.loads(path.read_bytes())
    assert (path.name, kept["seed"], kept["versions"]["cluster"]) == ("one.json", 7, "v1.36.3")
    assert kept["machine"]["processors"] > 0
    assert kept["date"].endswith("Z")


def test_what_broke_makes_the_exit_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And every violation is printed."""
    assert verdict("crash", [], tmp_path) == 0
    assert verdict("crash", ["a is gone", "b is twice"], tmp_path) == 1
    assert capsys.readouterr().err == "crash: BROKEN: a is gone\ncrash: BROKEN: b is twice\n"


def test_a_workload_is_bound_where_it_is_wanted() -> None:
    """By the label that every virtual node has; else nothing is selected."""
    template = deployment("d", 3, "lower-a", grace=5)["spec"]["template"]
    assert template["spec"]["nodeSelector"] == {"clusterID": "lower-a"}
    assert template["spec"]["terminationGracePeriodSeconds"] == 5
    assert "nodeSelector" not in pod("p", "g")["spec"]


@pytest.mark.parametrize(("pods", "sizes"), [(1, [1]), (1000, [1000]), (1200, [500, 500, 200])])
def test_many_pods_are_of_several_deployments(pods: int, sizes: list[int]) -> None:
    """Each of which is made at one go."""
    assert parts(pods) == sizes


def test_the_ceilings_nodes_offer_what_the_lowers_have() -> None:
    """A scheduler that is told of more would send one lower more pods than it can run."""
    node = {"status": {"allocatable": {"cpu": "32", "memory": "256Gi", "pods": "500", "ephemeral-storage": "1Ti"}}}
    assert room([node, node, node]) == {"cpu": "96", "memory": "768Gi", "pods": "1500"}


def test_the_ceiling_makes_the_least_that_runs_the_same() -> None:
    """Containers without what they mount, under the same name and labels."""
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
def test_a_node_is_usable_when_it_is_ready_and_not_given_up(status: str, taint: str, usable: bool) -> None:  # noqa: FBT001
    """A virtual node's own taint keeps nobody out who means to come in."""
    node = {"status": {"conditions": [{"type": "Ready", "status": status}]}, "spec": {"taints": [{"key": taint}]}}
    assert is_usable(node) is usable


def test_the_pages_tell_the_kept_figures() -> None:
    """Nobody types them: they say what the results say."""
    told = readme.pages(readme.load(KEPT))
    assert {page: page.read_text() for page in told} == told


def test_an_outage_that_broke_something_is_told() -> None:
    """The README says that nothing was lost only where the result says so."""
    kept = readme.load(KEPT)
    assert "no pod failed or ran twice" in readme.use_cases(kept)
    kept["faults-away"]["broken"] = ["a pod ran twice"]
    assert "broke what `bench/results/faults-away.json` lists" in readme.use_cases(kept)


def test_the_readme_names_what_measures_its_figures() -> None:
    """Each command is a module of bench/, or a target of the Makefile."""
    makefile = (readme.ROOT / "Makefile").read_text()
    for use_case in readme.USE_CASES:
        runner, _, name = use_case.command.rpartition(" ")
        place = readme.ROOT / name.replace(".", "/")
        assert f"\n{name}:" in makefile if runner == "make" else place.is_dir() or place.with_suffix(".py").exists()


def test_a_figure_that_was_not_measured_is_left_out() -> None:
    """A result that is missing has no line, and a party that took nothing has an empty cell."""
    measured = {party: {"last_ready_s": value} for party, value in (("engine", 3.0), ("ceiling", 2.0), ("alone", 0.0))}
    ratio = {"ceiling": {"last_ready_s": 1.5}}
    machine = {"processors": 2, "processor": "some"}
    found = {"makespan-2000": {"medians": measured, "ratios": ratio, "rounds": 5, "machine": machine}}
    lines = readme.figures(found).splitlines()
    assert lines[2] == "| 2,000 pods: the last is Ready | 3 s | 2 s |  | 1.50 |"
    assert lines[3] == ""


def test_a_text_without_marks_is_refused() -> None:
    """Rather than to write the figures anywhere."""
    with pytest.raises(ValueError, match="no <!-- figures"):
        readme.rewritten("nothing", "figures")
