"""Tests of a lower of which only the Node is left, and of how the upper cluster is accessed."""

from pathlib import Path

import pytest
from certkit import kubeconfig
from worldkit import make_object

from tensile.engine.lower import ClusterAccess, placeholder_spec
from tensile.errors import AccessError
from tensile.objects import Manifest
from tensile.topology import Upper


def node(name: str = "edge-1", **annotations: str) -> Manifest:
    """Return a Node of this topology that no entry of the topology declares."""
    return make_object("Node", name, "", annotations=annotations)


def test_a_left_behind_node_gets_a_lower_with_a_name_that_no_file_can_have() -> None:
    """The name in parentheses is not valid in a topology, so no declared lower is mistaken for it."""
    lower = placeholder_spec(node())
    assert (lower.name, lower.node.name) == ("(edge-1)", "edge-1")


@pytest.mark.parametrize(
    ("written", "given", "inside"),
    [(None, None, True), ("kubeconfigs/upper", None, False), (None, "kubeconfig", False)],
)
def test_the_upper_cluster_is_the_surrounding_one_if_no_kubeconfig_is_given(
    written: str | None, given: str | None, *, inside: bool
) -> None:
    """Both a kubeconfig in the topology file and one on the command line name another cluster."""
    upper = Upper() if written is None else Upper(kubeconfig=written)
    assert ClusterAccess(Path(), upper_kubeconfig=given).is_inside(upper) == inside


def test_the_default_namespace_is_that_of_the_kubeconfig_context_in_use(tmp_path: Path) -> None:
    """This is as in kubectl. In a cluster there is no context, and an unreadable kubeconfig is an error."""
    contexts = [
        {"name": name, "context": {"cluster": "there", "user": "me", "namespace": name}} for name in ("here", "far")
    ]
    (tmp_path / "upper").write_text(kubeconfig({"token": "none"}, contexts=contexts))
    cluster_access = ClusterAccess(tmp_path)
    assert cluster_access.upper_namespace(Upper(kubeconfig="upper")) == "here"
    assert cluster_access.upper_namespace(Upper(kubeconfig="upper", context="far")) == "far"
    assert cluster_access._replace(upper_kubeconfig="upper", upper_context="far").upper_namespace(Upper()) == "far"
    assert cluster_access.upper_namespace(Upper()) == ""
    with pytest.raises(AccessError, match=r"^upper: .*/gone: cannot be read"):
        cluster_access.upper_namespace(Upper(kubeconfig="gone"))
