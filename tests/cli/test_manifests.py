"""Tests of the program `tensile manifests`: what it prints where, and its exit codes."""

from pathlib import Path

import pytest
import yaml
from clikit import run_failing, tensile

SECRET = "kubeconfigSecret: {namespace: tensile, name: a}"
TOPOLOGY = f"""\
# Mine.
apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: demo
lowers: [{{name: a, {SECRET}}}]
controllers: []
"""
MACHINE = TOPOLOGY.replace(SECRET, "kubeconfig: k")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Create a directory with a topology."""
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    return tmp_path


def kinds(text: str) -> list[str]:
    """Return the kinds in a stream."""
    return [one["kind"] for one in yaml.safe_load_all(text)]


def test_manifests_are_on_stdout_and_warnings_on_stderr(place: Path) -> None:
    """Each warning is one line; a file and standard input give the same stream."""
    result = tensile("manifests", cwd=place)
    assert result.code == 0
    assert {"Namespace", "ConfigMap", "Deployment", "NetworkPolicy"} <= set(kinds(result.out))
    assert result.err.startswith("warning: topology.yaml:2:1: telemetry.bind: metrics at 127.0.0.1 are ")
    assert len(result.err.splitlines()) == 1
    assert "# Mine." in result.out
    piped = tensile("manifests", "-f", "-", stdin=TOPOLOGY.encode())
    told_here, hint = "see tensile manifests --lower a\n", "see tensile manifests -f FILE --lower a\n"
    assert (piped.code, piped.out) == (0, result.out.replace(told_here, hint))
    assert hint in piped.out
    assert piped.err.startswith("warning: standard input:2:1: telemetry.bind: ")


def test_the_printed_command_for_a_lower_cluster_repeats_the_options(place: Path) -> None:
    """It can be pasted: file names with blanks are quoted, and the other options are included."""
    (place / "my file.yaml").write_text(TOPOLOGY)
    arguments = ["-f", "my file.yaml", "--lower", "a", "--namespace", "ops"]
    result = tensile("manifests", *arguments, cwd=place)
    assert result.code == 0
    assert "#   tensile manifests -f 'my file.yaml' --namespace ops --lower a | kubectl " in result.out
    assert kinds(result.out)[:2] == ["Namespace", "ServiceAccount"]
    assert "#   tensile manifests --lower a | kubectl " in tensile("manifests", "--lower", "a", cwd=place).out
    above = tensile("manifests", "-f", "my file.yaml", "--namespace", "ops", "--image", "mine:1", cwd=place)
    assert ": see tensile manifests -f 'my file.yaml' --namespace ops --image mine:1 --lower a\n" in above.out


def test_a_directory_is_written_and_each_file_is_reported(place: Path) -> None:
    """Reports are on stderr; if the directory cannot be used, the exit code is 1 and nothing is written."""
    result = tensile("manifests", "--dir", "out", "--image", "mine:1", cwd=place)
    assert (result.code, result.out) == (0, "")
    assert "out/kustomization.yaml: written" in result.err.splitlines()
    assert "image: mine:1\n" in (place / "out" / "engine.yaml").read_text()
    (place / "other").mkdir()
    (place / "other" / "engine.yaml").write_text("mine")
    assert "other/engine.yaml: not written by" in run_failing("manifests", "--dir", "other", cwd=place)
    assert [path.name for path in (place / "other").iterdir()] == ["engine.yaml"]


def test_a_machines_topology_is_refused_but_gives_access_to_a_lower_cluster(place: Path) -> None:
    """The error has a line for each change; access to a lower does not depend on where the engine runs."""
    for_pods = tensile("manifests", "--lower", "a", cwd=place)
    (place / "topology.yaml").write_text(MACHINE + "upper: {kubeconfig: u}\n")
    assert run_failing("manifests", cwd=place).splitlines() == [
        f"topology.yaml:5:32: lowers[0].kubeconfig: a pod does not have the file k; write {SECRET}",
        (
            "topology.yaml:7:21: upper.kubeconfig: a pod does not have the file u and uses its ServiceAccount; "
            "remove upper"
        ),
    ]
    assert run_failing("manifests", "--dir", "out", cwd=place) == run_failing("manifests", cwd=place)
    assert not (place / "out").exists()
    result = tensile("manifests", "--lower", "a", cwd=place)
    assert (result.code, result.err) == (0, "")
    assert list(yaml.safe_load_all(result.out)) == list(yaml.safe_load_all(for_pods.out))
    assert f"# {SECRET}\n" in result.out


def test_invalid_options_are_refused(place: Path) -> None:
    """The exit code is 1, and the errors are on stderr."""
    both = ("manifests", "--lower", "a", "--dir", "out")
    assert run_failing(*both, cwd=place).startswith("--lower and --dir exclude each other")
    assert run_failing("manifests", "--dir", "", cwd=place).startswith("--dir is empty: name a directory")
    assert [path.name for path in place.iterdir()] == ["topology.yaml"]
    assert run_failing("manifests", "--lower", "b", cwd=place).startswith(
        "--lower b: the topology has no such lower cluster"
    )
    assert run_failing("manifests", "--namespace", "default", cwd=place).startswith("--namespace default: ")
    assert run_failing("manifests", cwd=place.parent).startswith("topology.yaml: no such file")
    (place / "topology.yaml").write_text(TOPOLOGY + "kubelet: {tlsCertFile: c, tlsKeyFile: k}\n")
    assert run_failing("manifests", cwd=place).startswith("topology.yaml:7:24: kubelet.tlsCertFile: ")
    (place / "file").write_text("")
    assert "file" in run_failing("manifests", "-f", "-", "--dir", "file", stdin=TOPOLOGY.encode(), cwd=place)
