"""Tests of the program `tensile manifests`: what it prints where, and its exit codes."""

from pathlib import Path

import pytest
import yaml
from clikit import refused, tensile

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
    told = tensile("manifests", cwd=place)
    assert told.code == 0
    assert {"Namespace", "ConfigMap", "Deployment", "NetworkPolicy"} <= set(kinds(told.out))
    assert told.err.startswith("warning: topology.yaml:2:1: telemetry.bind: metrics at 127.0.0.1 are ")
    assert len(told.err.splitlines()) == 1
    assert "# Mine." in told.out
    piped = tensile("manifests", "-f", "-", stdin=TOPOLOGY.encode())
    told_here, said = "see tensile manifests --lower a\n", "see tensile manifests -f FILE --lower a\n"
    assert (piped.code, piped.out) == (0, told.out.replace(told_here, said))
    assert said in piped.out
    assert piped.err.startswith("warning: standard input:2:1: telemetry.bind: ")


def test_the_printed_command_for_a_lower_cluster_repeats_the_options(place: Path) -> None:
    """It can be pasted: file names with blanks are quoted, and the other options are included."""
    (place / "my file.yaml").write_text(TOPOLOGY)
    arguments = ["-f", "my file.yaml", "--lower", "a", "--namespace", "ops"]
    told = tensile("manifests", *arguments, cwd=place)
    assert told.code == 0
    assert "#   tensile manifests -f 'my file.yaml' --namespace ops --lower a | kubectl " in told.out
    assert kinds(told.out)[:2] == ["Namespace", "ServiceAccount"]
    assert "#   tensile manifests --lower a | kubectl " in tensile("manifests", "--lower", "a", cwd=place).out
    above = tensile("manifests", "-f", "my file.yaml", "--namespace", "ops", "--image", "mine:1", cwd=place)
    assert ": see tensile manifests -f 'my file.yaml' --namespace ops --image mine:1 --lower a\n" in above.out


def test_a_directory_is_written_and_each_file_is_reported(place: Path) -> None:
    """Reports are on stderr; if the directory cannot be used, the exit code is 1 and nothing is written."""
    told = tensile("manifests", "--dir", "out", "--image", "mine:1", cwd=place)
    assert (told.code, told.out) == (0, "")
    assert "out/kustomization.yaml: written" in told.err.splitlines()
    assert "image: mine:1\n" in (place / "out" / "engine.yaml").read_text()
    (place / "other").mkdir()
    (place / "other" / "engine.yaml").write_text("mine")
    assert "other/engine.yaml: not written by" in refused("manifests", "--dir", "other", cwd=place)
    assert [path.name for path in (place / "other").iterdir()] == ["engine.yaml"]


def test_a_machines_topology_is_refused_but_gives_access_to_a_lower_cluster(place: Path) -> None:
    """The error has a line for each change; access to a lower does not depend on where the engine runs."""
    for_pods = tensile("manifests", "--lower", "a", cwd=place)
    (place / "topology.yaml").write_text(MACHINE + "upper: {kubeconfig: u}\n")
    assert refused("manifests", cwd=place).splitlines() == [
        f"topology.yaml:5:32: lowers[0].kubeconfig: a pod does not have the file k; write {SECRET}",
        (
            "topology.yaml:7:21: upper.kubeconfig: a pod does not have the file u and uses its ServiceAccount; "
            "remove upper"
        ),
    ]
    assert refused("manifests", "--dir", "out", cwd=place) == refused("manifests", cwd=place)
    assert not (place / "out").exists()
    told = tensile("manifests", "--lower", "a", cwd=place)
    assert (told.code, told.err) == (0, "")
    assert list(yaml.safe_load_all(told.out)) == list(yaml.safe_load_all(for_pods.out))
    assert f"# {SECRET}\n" in told.out


def test_invalid_options_are_refused(place: Path) -> None:
    """The exit code is 1, and the errors are on stderr."""
    both = ("manifests", "--lower", "a", "--dir", "out")
    assert refused(*both, cwd=place).startswith("--lower and --dir exclude each other")
    assert refused("manifests", "--dir", "", cwd=place).startswith("--dir is empty: name a directory")
    assert [path.name for path in place.iterdir()] == ["topology.yaml"]
    assert refused("manifests", "--lower", "b", cwd=place).startswith(
        "--lower b: the topology has no such lower cluster"
    )
    assert refused("manifests", "--namespace", "default", cwd=place).startswith("--namespace default: ")
    assert refused("manifests", cwd=place.parent).startswith("topology.yaml: no such file")
    (place / "topology.yaml").write_text(TOPOLOGY + "kubelet: {tlsCertFile: c, tlsKeyFile: k}\n")
    assert refused("manifests", cwd=place).startswith("topology.yaml:7:24: kubelet.tlsCertFile: ")
    (place / "file").write_text("")
    assert "file" in refused("manifests", "-f", "-", "--dir", "file", stdin=TOPOLOGY.encode(), cwd=place)
