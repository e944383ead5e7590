"""A lower of which only its Node is left: enough of it to keep that Node."""

from pathlib import Path

import pytest
from papers import kubeconfig
from worldkit import thing

from tensile.engine.lower import ClusterAccess, left_behind
from tensile.errors import AccessError
from tensile.objects import Manifest
from tensile.topology import Upper


def node(name: str = "edge-1", **annotations: str) -> Manifest:
    """Make a Node of ours that no topology declares."""
    return thing("Node", name, "", annotations=annotations)


def test_a_node_that_was_left_behind_gives_a_lower_of_its_own() -> None:
    """Its name cannot be one of the file's, so nothing of the topology is mistaken for it."""
    lower = left_behind(node())
    assert (lower.name, lower.node.name) == ("(edge-1)", "edge-1")


@pytest.mark.parametrize(
    ("written", "given", "inside"),
    [(None, None, True), ("kubeconfigs/upper", None, False), (None, "kubeconfig", False)],
)
def test_without_a_kubeconfig_the_upper_cluster_is_the_one_around_us(
    written: str | None, given: str | None, *, inside: bool
) -> None:
    """Whether the file names one or the command line."""
    upper = Upper() if written is None else Upper(kubeconfig=written)
    assert ClusterAccess(Path(), upper_kubeconfig=given).is_inside(upper) == inside


def test_the_default_namespace_is_that_of_the_context_in_use(tmp_path: Path) -> None:
    """As for kubectl; in a cluster there is no context."""
    contexts = [
        {"name": name, "context": {"cluster": "there", "user": "me", "namespace": name}} for name in ("here", "far")
    ]
    (tmp_path / "upper").write_text(kubeconfig({"token": "none"}, contexts=contexts))
    ways = ClusterAccess(tmp_path)
    assert ways.upper_namespace(Upper(kubeconfig="upper")) == "here"
    assert ways.upper_namespace(Upper(kubeconfig="upper", context="far")) == "far"
    assert ways._replace(upper_kubeconfig="upper", upper_context="far").upper_namespace(Upper()) == "far"
    assert ways.upper_namespace(Upper()) == ""
    with pytest.raises(AccessError, match=r"^upper: .*/gone: cannot be read"):
        ways.upper_namespace(Upper(kubeconfig="gone"))
