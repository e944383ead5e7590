"""Tests of the program `tensile mutate`: the sources of pod and topology, its output and its exit codes."""

from pathlib import Path

import orjson
import pytest
import yaml
from clikit import run_failing, tensile

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {virtual-pod: "true"}}
spec:
  containers: [{name: c, image: app:1}]
  nodeSelector: {disk: ssd, region: north}
"""
TOPOLOGY = """\
apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: demo
lowers: [{name: a, kubeconfig: k, namespaces: {mapping: prefix}}]
webhook: {ignoreSelectorKeys: [region]}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Create a directory with a pod."""
    (tmp_path / "pod.yaml").write_text(POD)
    return tmp_path


def test_without_a_topology_the_defaults_apply(place: Path) -> None:
    """The output is YAML with exit code 0; a file and standard input give the same result."""
    result = tensile("mutate", "-f", "pod.yaml", cwd=place)
    assert (result.code, result.err) == (0, "")
    document = yaml.safe_load(result.out)
    assert set(document) == {"pod", "mutated", "lower"}
    assert document["pod"] == yaml.safe_load(POD)
    assert "nodeSelector" not in document["mutated"]["spec"]
    assert tensile("mutate", "-f", "-", stdin=POD.encode(), cwd=place).out == result.out


def test_the_topology_is_found_as_by_other_commands(place: Path) -> None:
    """It is named by its option or the environment, or is in the working directory."""
    (place / "topology.yaml").write_text(TOPOLOGY)
    (place / "elsewhere").mkdir()
    here = ("mutate", "-f", place / "pod.yaml", "-o", "json")
    by_option = tensile(*here, "--topology", place / "topology.yaml", cwd=place / "elsewhere")
    by_place = tensile(*here, cwd=place)
    by_variable = tensile(*here, cwd=place / "elsewhere", TENSILE_TOPOLOGY=str(place / "topology.yaml"))
    assert by_option.out == by_place.out == by_variable.out
    document = orjson.loads(by_option.out)
    assert document["mutated"]["spec"]["nodeSelector"] == {"region": "north"}
    assert document["lower"]["metadata"]["namespace"] == "demo-default"


def test_invalid_input_is_refused(place: Path) -> None:
    """The exit code is 1, and stderr names the file and the mistake; this includes usage errors."""
    assert "no-such.yaml: no such file" in run_failing("mutate", "-f", "no-such.yaml", cwd=place)
    assert "no-such.yaml: no such file" in run_failing(
        "mutate", "-f", "pod.yaml", "--topology", "no-such.yaml", cwd=place
    )
    assert "not a file: name a pod file" in run_failing("mutate", "-f", ".", cwd=place)
    assert "standard input:1:1: " in run_failing("mutate", "-f", "-", stdin=b"kind: Deployment", cwd=place)
    assert "-f and --topology cannot both read" in run_failing(
        "mutate", "-f", "-", "--topology", "-", stdin=b"", cwd=place
    )
    assert "'text' is not one of yaml, json" in run_failing("mutate", "-f", "pod.yaml", "-o", "text", cwd=place)
    assert "-f" in run_failing("mutate", cwd=place)


def test_reasons_against_a_lower_pod_are_on_stderr(place: Path) -> None:
    """The output stays one object for programs."""
    (place / "pod.yaml").write_text(POD.replace("name: web,", "name: web, namespace: kube-system,"))
    result = tensile("mutate", "-f", "pod.yaml", "-o", "json", cwd=place)
    assert result.code == 0
    assert orjson.loads(result.out)["lower"] is None
    assert "no lower pod: pods of namespace kube-system are not mirrored" in result.err
