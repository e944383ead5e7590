"""`tensile explain` and `tensile simulate` where no cluster answers, and on a snapshot in place of clusters."""

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
    """Make a node with 4 cpu."""
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


def asked(directory: Path, *arguments: str, replicas: int = 2) -> Any:
    """Simulate a Deployment on the snapshot."""
    template = {"spec": POD["spec"] | {"tolerations": [TOLERATION]}}
    file = {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": replicas, "template": template}}
    text = yaml.safe_dump(file).encode()
    given = ("--topology", topology(directory), "--snapshot", snapshot(directory), *arguments)
    return tensile("simulate", "-f", "-", *map(str, given), stdin=text)


def test_what_fits_is_told_and_is_enough(tmp_path: Path) -> None:
    """Exit code 0, from standard input, with no cluster in reach."""
    told = asked(tmp_path)
    assert (told.code, told.err) == (0, "")
    assert told.out == (
        "LOWER     FITS   NODES        WHY NOT MORE\n"
        "lower-a   2      n1 1, n2 1   0/2 nodes are available: 2 Insufficient cpu.\n"
        "\n"
        "All 2 pods of default/web fit.\n"
    )


def test_too_little_is_an_exit_code(tmp_path: Path) -> None:
    """2, as where a plan has something to do; and the same as JSON."""
    assert asked(tmp_path, replicas=3).code == 2
    assert asked(tmp_path, "--replicas", "3").code == 2
    assert asked(tmp_path, "--add-nodes", "lower-a=1", replicas=3).code == 0
    assert asked(tmp_path, "--without", "lower-a").code == 2
    assert orjson.loads(asked(tmp_path, "-o", "json", replicas=3).out)["fits"] == 2


def test_what_was_seen_is_saved(tmp_path: Path) -> None:
    """To be asked again."""
    again = tmp_path / "again.json"
    assert asked(tmp_path, "--save", str(again)).code == 0
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
def test_what_cannot_be_simulated(tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    """Exit code 1, and words on what to do."""
    told = asked(tmp_path, *arguments)
    assert (told.code, told.out) == (1, "")
    assert why in told.err


def test_a_question_without_a_pod_or_a_lost_cluster_is_none(tmp_path: Path) -> None:
    """Nothing would be told, as if all were well."""
    told = tensile("simulate", "--topology", topology(tmp_path), "--snapshot", snapshot(tmp_path))
    words = "simulate: name a file with a pod with -f, or a lost lower cluster with --without\n"
    assert (told.code, told.out, told.err) == (1, "", words)


def test_files_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    """They are named."""
    path = topology(tmp_path)
    pod = tmp_path / "pod.yaml"
    pod.write_text("kind: Service\nspec: {}\n")
    told = tensile("simulate", "-f", pod, "--topology", path)
    assert (told.code, told.err) == (1, f"{pod}:2:1: spec.template: {NO_POD}\n")
    pod.write_text(yaml.safe_dump(POD))
    missing = tensile("simulate", "-f", pod, "--topology", path, "--snapshot", tmp_path / "gone.json")
    assert missing.code == 1
    assert "gone.json: No such file or directory" in missing.err


@pytest.mark.parametrize("name", ["", "/web", "default/", "a/b/c"])
def test_a_pod_that_is_not_named_whole(tmp_path: Path, name: str) -> None:
    """Nothing is asked before it is."""
    told = tensile("explain", "pod", name, "-f", topology(tmp_path))
    assert (told.code, told.err) == (1, f"explain pod {name!r}: write NAME or NAMESPACE/NAME\n")


def test_a_pod_with_two_namespaces(tmp_path: Path) -> None:
    """One of them is a mistake."""
    told = tensile("explain", "pod", "shop/web", "-n", "other", "-f", topology(tmp_path))
    assert told.code == 1
    assert told.err == "explain pod shop/web: its namespace is shop, and -n says other: omit one of them\n"


@pytest.mark.parametrize("word", ["claim", "service"])
def test_other_objects_are_named_as_pods_are(tmp_path: Path, word: str) -> None:
    """With the same messages."""
    told = tensile("explain", word, "a/b/c", "-f", topology(tmp_path))
    assert (told.code, told.err) == (1, f"explain {word} 'a/b/c': write NAME or NAMESPACE/NAME\n")
    told = tensile("explain", word, "shop/web", "-n", "other", "-f", topology(tmp_path))
    assert told.err == f"explain {word} shop/web: its namespace is shop, and -n says other: omit one of them\n"


@pytest.mark.parametrize("words", [("node", "lower-a"), ("claim", "shop/data"), ("service", "shop/web")])
def test_nothing_is_explained_without_the_upper_cluster(tmp_path: Path, words: tuple[str, str]) -> None:
    """What it would say is unknown then."""
    told = tensile("explain", *words, "-f", topology(tmp_path, upper={"kubeconfig": "gone"}))
    assert told.code == 1
    assert "gone" in told.err


def test_an_upper_cluster_that_cannot_be_reached(tmp_path: Path) -> None:
    """There is nothing to say then, and the way to it is named."""
    told = tensile("explain", "pod", "default/web", "-f", topology(tmp_path, upper={"kubeconfig": "gone"}))
    assert told.code == 1
    assert told.err.startswith("upper: ")
    assert "gone" in told.err
