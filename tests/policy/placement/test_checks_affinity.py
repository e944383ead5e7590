"""Tests of inter-pod affinity and anti-affinity within the topology domains of node labels."""

from typing import Any

import pytest
from placekit import ZONE, checks, examine_placement, make_namespace, node, pod, reasons

from tensile.policy.placement.checks import KEPT_AWAY, NOT_APART, NOT_NEAR

HOST = "kubernetes.io/hostname"
NODES = [node("a", labels={ZONE: "1"}), node("b", labels={ZONE: "1"}), node("c", labels={ZONE: "2"}), node("d")]


def term(key: str = ZONE, app: str = "db", **fields: Any) -> dict[str, Any]:
    """Create an affinity term for pods with a label."""
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}} | fields


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a pod with required affinity."""
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def apart(*terms: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a pod with required anti-affinity."""
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def pod_on_node(name: str, on: str, app: str = "db", spec: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    """Create a pod on a node."""
    return pod(name, spec, on=on, labels={"app": app}, **meta)


def test_affinity_needs_a_node_in_the_same_domain() -> None:
    """All nodes of the zone fit, and a node without a zone does not fit."""
    found = examine_placement(pod(spec=near(term())), NODES, [pod_on_node("r", "a")])
    assert found.fitting == ("a", "b")
    assert reasons(found) == {"c": (NOT_NEAR,), "d": (NOT_NEAR,)}
    assert set(checks(found).values()) == {"pod affinity"}


def test_affinity_without_a_matching_pod_fits_no_node() -> None:
    """The pod has to wait for a matching one."""
    assert examine_placement(pod(spec=near(term())), NODES).fitting == ()


def test_a_pod_that_matches_its_own_affinity_fits_if_no_other_pod_matches() -> None:
    """It may run on any node with the topology key, until another pod matches."""
    first = pod(spec=near(term()), labels={"app": "db"})
    assert examine_placement(first, NODES).fitting == ("a", "b", "c")
    assert examine_placement(first, NODES, [pod_on_node("r", "c")]).fitting == ("c",)


def test_the_first_pod_must_match_all_its_own_affinity_terms() -> None:
    """A match of one of two terms is not sufficient."""
    assert examine_placement(pod(spec=near(term(), term(app="cache")), labels={"app": "db"}), NODES).fitting == ()


def test_one_existing_pod_must_match_all_affinity_terms() -> None:
    """Two pods that match one term each are not sufficient, as in Kubernetes."""
    terms = (term(), term(labelSelector={"matchLabels": {"tier": "1"}}))
    parts = [pod_on_node("r", "a"), pod("s", on="a", labels={"tier": "1"})]
    assert examine_placement(pod(spec=near(*terms)), NODES, parts).fitting == ()
    whole = [pod("r", on="a", labels={"app": "db", "tier": "1"})]
    assert examine_placement(pod(spec=near(*terms)), NODES, whole).fitting == ("a", "b")


def test_affinity_terms_with_different_topology_keys_must_all_hold() -> None:
    """The node has to satisfy both the zone term and the host term."""
    assert examine_placement(pod(spec=near(term(), term(HOST))), NODES, [pod_on_node("r", "a")]).fitting == ("a",)


def test_anti_affinity_needs_a_node_in_another_domain() -> None:
    """Nodes without the topology key fit too."""
    found = examine_placement(pod(spec=apart(term())), NODES, [pod_on_node("r", "a")])
    assert found.fitting == ("c", "d")
    assert reasons(found) == {"a": (NOT_APART,), "b": (NOT_APART,)}


def test_each_anti_affinity_term_excludes_nodes_by_itself() -> None:
    """A match of one term is sufficient to exclude a node."""
    found = examine_placement(
        pod(spec=apart(term(HOST), term(app="cache"))), NODES, [pod_on_node("r", "d"), pod_on_node("s", "c", "cache")]
    )
    assert found.fitting == ("a", "b")


def test_anti_affinity_of_an_existing_pod_excludes_new_pods() -> None:
    """The term of a running pod applies to all nodes of its domain."""
    guard = pod_on_node("r", "a", "other", apart(term(app="web")))
    found = examine_placement(pod(labels={"app": "web"}), NODES, [guard])
    assert found.fitting == ("c", "d")
    assert reasons(found) == {"a": (KEPT_AWAY,), "b": (KEPT_AWAY,)}
    assert examine_placement(pod(labels={"app": "db"}), NODES, [guard]).fitting == ("a", "b", "c", "d")


def test_anti_affinity_of_a_pod_on_a_node_without_the_key_excludes_no_pod() -> None:
    """Such a node is in no topology domain."""
    guard = pod_on_node("r", "d", "other", apart(term(app="web")))
    assert examine_placement(pod(labels={"app": "web"}), NODES, [guard]).fitting == ("a", "b", "c", "d")


def test_replicas_with_anti_affinity_to_each_other_use_different_hosts() -> None:
    """Each host has at most one of them."""
    own = apart(term(HOST, app="web"))
    found = examine_placement(pod("w2", own, labels={"app": "web"}), NODES, [pod_on_node("w1", "b", "web", own)])
    assert found.fitting == ("a", "c", "d")


@pytest.mark.parametrize(
    ("fields", "namespace", "counts"),
    [
        ({}, "default", True),
        ({}, "side", False),
        ({"namespaces": ["side"]}, "side", True),
        ({"namespaces": ["side"]}, "default", False),
        ({"namespaceSelector": {}}, "side", True),
        ({"namespaceSelector": {"matchLabels": {"kind": "side"}}}, "side", True),
        ({"namespaceSelector": {"matchLabels": {"kind": "side"}}}, "default", False),
        ({"namespaceSelector": {"matchLabels": {"kind": "side"}}, "namespaces": ["default"]}, "default", True),
    ],
)
def test_affinity_terms_count_pods_of_the_right_namespaces(
    fields: dict[str, Any], namespace: str, *, counts: bool
) -> None:
    """The pod's own namespace counts, unless the term names or selects others; that holds for existing pods too."""
    spaces = [make_namespace("default"), make_namespace("side", kind="side")]
    other = pod_on_node("r", "a", namespace=namespace)
    comes = examine_placement(pod(spec=apart(term(HOST, **fields))), [node("a")], [other], spaces)
    assert comes.fits != counts
    guard = pod("g", apart(term(HOST, **fields)), on="a")
    kept = examine_placement(pod(labels={"app": "db"}, namespace=namespace), [node("a")], [guard], spaces)
    assert kept.fits != counts


def test_an_unknown_namespace_matches_no_namespace_selector_with_expressions() -> None:
    """The labels of such a namespace are unknown, so even DoesNotExist does not match."""
    other = pod_on_node("r", "a", namespace="new")
    chosen = {"namespaceSelector": {"matchExpressions": [{"key": "kind", "operator": "DoesNotExist"}]}}
    assert examine_placement(pod(spec=apart(term(HOST, **chosen))), [node("a")], [other]).fits


def test_match_label_keys_and_mismatch_label_keys_use_the_pods_own_labels() -> None:
    """With matchLabelKeys only pods of the same version count, with mismatchLabelKeys only the others."""
    other = pod("r", on="a", labels={"app": "db", "version": "1"})
    same = apart(term(HOST, matchLabelKeys=["version"]))
    unlike = apart(term(HOST, mismatchLabelKeys=["version"]))
    assert examine_placement(pod(spec=same, labels={"version": "2"}), [node("a")], [other]).fits
    assert not examine_placement(pod(spec=same, labels={"version": "1"}), [node("a")], [other]).fits
    assert examine_placement(pod(spec=unlike, labels={"version": "1"}), [node("a")], [other]).fits
    assert not examine_placement(pod(spec=unlike, labels={"version": "2"}), [node("a")], [other]).fits


def test_affinity_is_checked_before_anti_affinity() -> None:
    """That is the scheduler's order."""
    spec = {"affinity": near(term(app="cache"))["affinity"] | apart(term())["affinity"]}
    assert reasons(examine_placement(pod(spec=spec), [NODES[0]], [pod_on_node("r", "a")])) == {"a": (NOT_NEAR,)}


def test_preferred_anti_affinity_excludes_no_node() -> None:
    """It only affects scores."""
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term()}]}
    assert examine_placement(
        pod(spec={"affinity": {"podAntiAffinity": preferred}}), [NODES[0]], [pod_on_node("r", "a")]
    ).fits
