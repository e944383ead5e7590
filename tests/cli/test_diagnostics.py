"""Tests of `tensile explain` and `tensile simulate`, with unreachable clusters and with a snapshot."""

from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from clikit import tensile

POD = {
    "kind": "Pod",
    "metadata": {"name": "web"},
    "spec": {"containers": [{"name": "m", "resources": {"requests": {"cpu": "3"}}}]},
}
NO_POD = "no pod: write a Pod with containers, or what has a template of one"
TOLERATION = {"key": "virtual-kubelet.io/provider", "operator": "Exists"}


def topology(directory: Path, **fields: Any) -> Path:
    """Write a topology file."""
    path = directory / "topology.yaml"
    lowers = [{"name": "lower-a", "kubeconfig": "lower-a"}]
    file = {"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": "demo", "lowers": lowers, **fields}
    path.write_text(yaml.safe_dump(file))
    return path


def node(name: str, **spec: Any) -> dict[str, Any]:
    """Return a node with 4 CPUs."""
    return {
        "metadata": {"name": name, "labels": {}},
        "spec": spec,
        "status": {"allocatable": {"cpu": "4", "pods": "9"}},
    }


def snapshot(directory: Path) -> Path:
    """Write a snapshot of an upper cluster, and a lower with two nodes."""
    path = directory / "snapshot.json"
    taint = {"key": TOLERATION["key"], "effect": "NoSchedule"}
    upper = {"name": "", "objects": {"nodes": [node("lower-a", taints=[taint])]}}
    upper["objects"]["nodes"][0]["status"]["allocatable"]["cpu"] = "8"
    lower = {"name": "lower-a", "objects": {"nodes": [node("n1"), node("n2")]}}
    kept = {"formatVersion": 1, "topology": "demo", "upperUID": "u", "upper": upper, "lowers": [lower]}
    path.write_bytes(orjson.dumps(kept))
    return path


def simulate(directory: Path, *arguments: str, replicas: int = 2) -> Any:
    """Simulate a Deployment on the snapshot."""
    template = {"spec": POD["spec"] | {"tolerations": [TOLERATION]}}
    file = {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": replicas, "template": template}}
    text = yaml.safe_dump(file).encode()
    given = ("--topology", topology(directory), "--snapshot", snapshot(directory), *arguments)
    return tensile("simulate", "-f", "-", *map(str, given), stdin=text)


def test_pods_that_fit_give_exit_code_0(tmp_path: Path) -> None:
    """The pods are read from standard input, and no cluster is reachable."""
    result = simulate(tmp_path)
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "LOWER     FITS   NODES        WHY NOT MORE\n"
        "lower-a   2      n1 1, n2 1   0/2 nodes are available: 2 Insufficient cpu.\n"
        "\n"
        "All 2 pods of default/web fit.\n"
    )


def test_pods_that_do_not_fit_give_exit_code_2(tmp_path: Path) -> None:
    """It is the code of a plan with changes, and the JSON output has the number of fitting pods."""
    assert simulate(tmp_path, replicas=3).code == 2
    assert simulate(tmp_path, "--replicas", "3").code == 2
    assert simulate(tmp_path, "--add-nodes", "lower-a=1", replicas=3).code == 0
    assert simulate(tmp_path, "--without", "lower-a").code == 2
    assert orjson.loads(simulate(tmp_path, "-o", "json", replicas=3).out)["fits"] == 2


def test_the_snapshot_of_a_simulation_can_be_saved(tmp_path: Path) -> None:
    """The saved file can be used for another simulation."""
    again = tmp_path / "again.json"
    assert simulate(tmp_path, "--save", str(again)).code == 0
    assert orjson.loads(again.read_bytes()).keys() == orjson.loads(snapshot(tmp_path).read_bytes()).keys()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--add-nodes", "lower-a"), "write LOWER=COUNT"),
        (("--without", "lower-x"), "no lower cluster of the topology; there are: lower-a"),
        (("--replicas", "0"), "0 is too small: 1 is the least"),
        (("-o", "markdown"), "'markdown' is not one of text, json"),
    ],
)
def test_invalid_simulations_are_refused(tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    """The exit code is 1, and the error has the remedy."""
    result = simulate(tmp_path, *arguments)
    assert (result.code, result.out) == (1, "")
    assert why in result.err


def test_simulate_requires_a_pod_or_a_lost_cluster(tmp_path: Path) -> None:
    """Without either the result would be empty, as if all pods fitted."""
    result = tensile("simulate", "--topology", topology(tmp_path), "--snapshot", snapshot(tmp_path))
    message = "simulate: name a file with a pod with -f, or a lost lower cluster with --without\n"
    assert (result.code, result.out, result.err) == (1, "", message)


def test_invalid_input_files_are_named(tmp_path: Path) -> None:
    """Both a file without a pod and a missing snapshot are errors."""
    path = topology(tmp_path)
    pod = tmp_path / "pod.yaml"
    pod.write_text("kind: Service\nspec: {}\n")
    result = tensile("simulate", "-f", pod, "--topology", path)
    assert (result.code, result.err) == (1, f"{pod}:2:1: spec.template: {NO_POD}\n")
    pod.write_text(yaml.safe_dump(POD))
    missing = tensile("simulate", "-f", pod, "--topology", path, "--snapshot", tmp_path / "gone.json")
    assert missing.code == 1
    assert "gone.json: No such file or directory" in missing.err


@pytest.mark.parametrize("name", ["", "/web", "default/", "a/b/c"])
def test_an_incomplete_pod_name_is_refused(tmp_path: Path, name: str) -> None:
    """No cluster is contacted before the name is valid."""
    result = tensile("explain", "pod", name, "-f", topology(tmp_path))
    assert (result.code, result.err) == (1, f"explain pod {name!r}: write NAME or NAMESPACE/NAME\n")


def test_a_pod_with_two_different_namespaces_is_refused(tmp_path: Path) -> None:
    """One of the two namespaces is a mistake."""
    result = tensile("explain", "pod", "shop/web", "-n", "other", "-f", topology(tmp_path))
    assert result.code == 1
    assert result.err == "explain pod shop/web: its namespace is shop, and -n says other: omit one of them\n"


@pytest.mark.parametrize("word", ["claim", "service"])
def test_claims_and_services_are_named_like_pods(tmp_path: Path, word: str) -> None:
    """The same errors are reported."""
    result = tensile("explain", word, "a/b/c", "-f", topology(tmp_path))
    assert (result.code, result.err) == (1, f"explain {word} 'a/b/c': write NAME or NAMESPACE/NAME\n")
    result = tensile("explain", word, "shop/web", "-n", "other", "-f", topology(tmp_path))
    assert result.err == f"explain {word} shop/web: its namespace is shop, and -n says other: omit one of them\n"


@pytest.mark.parametrize("message", [("node", "lower-a"), ("claim", "shop/data"), ("service", "shop/web")])
def test_explain_fails_without_the_upper_cluster(tmp_path: Path, message: tuple[str, str]) -> None:
    """The state of the object is unknown then."""
    result = tensile("explain", *message, "-f", topology(tmp_path, upper={"kubeconfig": "gone"}))
    assert result.code == 1
    assert "gone" in result.err


def test_explain_pod_fails_without_the_upper_cluster(tmp_path: Path) -> None:
    """The error has the path of the unreadable kubeconfig."""
    result = tensile("explain", "pod", "default/web", "-f", topology(tmp_path, upper={"kubeconfig": "gone"}))
    assert result.code == 1
    assert result.err.startswith("upper: ")
    assert "gone" in result.err
