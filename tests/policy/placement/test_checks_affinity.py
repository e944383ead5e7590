"""Who has to be near and who keeps whom away: inter-pod affinity and anti-affinity, within the domains of labels."""

from typing import Any

import pytest
from placekit import ZONE, checks, node, place, pod, reasons, space

from tensile.policy.placement.checks import KEPT_AWAY, NOT_APART, NOT_NEAR

HOST = "kubernetes.io/hostname"
NODES = [node("a", labels={ZONE: "1"}), node("b", labels={ZONE: "1"}), node("c", labels={ZONE: "2"}), node("d")]


def term(key: str = ZONE, app: str = "db", **fields: Any) -> dict[str, Any]:
    """Make a rule about pods with a label."""
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}} | fields


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    """Make the spec of a pod that wants others near."""
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def apart(*terms: dict[str, Any]) -> dict[str, Any]:
    """Make the spec of a pod that keeps away from others."""
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def there(name: str, on: str, app: str = "db", spec: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    """Make a pod on a node."""
    return pod(name, spec, on=on, labels={"app": app}, **meta)


def test_near_means_in_the_same_domain() -> None:
    """All nodes of the zone do, and none that is in no zone."""
    found = place(pod(spec=near(term())), NODES, [there("r", "a")])
    assert found.fitting == ("a", "b")
    assert reasons(found) == {"c": (NOT_NEAR,), "d": (NOT_NEAR,)}
    assert set(checks(found).values()) == {"pod affinity"}


def test_nobody_to_be_near_to() -> None:
    """A pod that wants others has to wait for them."""
    assert place(pod(spec=near(term())), NODES).fitting == ()


def test_the_first_of_its_kind() -> None:
    """A pod that would meet its own rule may go wherever the label is, while nobody else meets it."""
    first = pod(spec=near(term()), labels={"app": "db"})
    assert place(first, NODES).fitting == ("a", "b", "c")
    assert place(first, NODES, [there("r", "c")]).fitting == ("c",)


def test_the_first_of_its_kind_has_to_meet_all_terms() -> None:
    """One of two is not enough."""
    assert place(pod(spec=near(term(), term(app="cache")), labels={"app": "db"}), NODES).fitting == ()


def test_one_companion_has_to_meet_all_terms() -> None:
    """As in Kubernetes, where two pods that meet one each are not company enough."""
    terms = (term(), term(labelSelector={"matchLabels": {"tier": "1"}}))
    parts = [there("r", "a"), pod("s", on="a", labels={"tier": "1"})]
    assert place(pod(spec=near(*terms)), NODES, parts).fitting == ()
    whole = [pod("r", on="a", labels={"app": "db", "tier": "1"})]
    assert place(pod(spec=near(*terms)), NODES, whole).fitting == ("a", "b")


def test_terms_of_different_domains() -> None:
    """Each has to hold for the node."""
    assert place(pod(spec=near(term(), term(HOST))), NODES, [there("r", "a")]).fitting == ("a",)


def test_apart_means_in_another_domain() -> None:
    """Nodes that are in none are apart from all."""
    found = place(pod(spec=apart(term())), NODES, [there("r", "a")])
    assert found.fitting == ("c", "d")
    assert reasons(found) == {"a": (NOT_APART,), "b": (NOT_APART,)}


def test_any_term_keeps_away() -> None:
    """Of anti-affinity each holds for itself."""
    found = place(pod(spec=apart(term(HOST), term(app="cache"))), NODES, [there("r", "d"), there("s", "c", "cache")])
    assert found.fitting == ("a", "b")


def test_who_is_there_keeps_others_away() -> None:
    """The rule of a pod that runs holds for those that come."""
    guard = there("r", "a", "other", apart(term(app="web")))
    found = place(pod(labels={"app": "web"}), NODES, [guard])
    assert found.fitting == ("c", "d")
    assert reasons(found) == {"a": (KEPT_AWAY,), "b": (KEPT_AWAY,)}
    assert place(pod(labels={"app": "db"}), NODES, [guard]).fitting == ("a", "b", "c", "d")


def test_a_guard_on_a_node_without_the_label_keeps_nobody_away() -> None:
    """It is in no domain."""
    guard = there("r", "d", "other", apart(term(app="web")))
    assert place(pod(labels={"app": "web"}), NODES, [guard]).fitting == ("a", "b", "c", "d")


def test_replicas_that_keep_apart_from_each_other() -> None:
    """One to a host."""
    own = apart(term(HOST, app="web"))
    found = place(pod("w2", own, labels={"app": "web"}), NODES, [there("w1", "b", "web", own)])
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
def test_whose_pods_count(fields: dict[str, Any], namespace: str, *, counts: bool) -> None:
    """Those of the pod's own namespace, unless the rule names or selects others; it holds both ways."""
    spaces = [space("default"), space("side", kind="side")]
    other = there("r", "a", namespace=namespace)
    comes = place(pod(spec=apart(term(HOST, **fields))), [node("a")], [other], spaces)
    assert comes.fits != counts
    guard = pod("g", apart(term(HOST, **fields)), on="a")
    kept = place(pod(labels={"app": "db"}, namespace=namespace), [node("a")], [guard], spaces)
    assert kept.fits != counts


def test_a_namespace_that_is_not_known_is_selected_by_none() -> None:
    """But by an empty selector, which selects all."""
    other = there("r", "a", namespace="new")
    chosen = {"namespaceSelector": {"matchExpressions": [{"key": "kind", "operator": "DoesNotExist"}]}}
    assert place(pod(spec=apart(term(HOST, **chosen))), [node("a")], [other]).fits


def test_keys_of_the_pod_itself() -> None:
    """With matchLabelKeys only pods of its own version count, with mismatchLabelKeys only the others."""
    other = pod("r", on="a", labels={"app": "db", "version": "1"})
    same = apart(term(HOST, matchLabelKeys=["version"]))
    unlike = apart(term(HOST, mismatchLabelKeys=["version"]))
    assert place(pod(spec=same, labels={"version": "2"}), [node("a")], [other]).fits
    assert not place(pod(spec=same, labels={"version": "1"}), [node("a")], [other]).fits
    assert place(pod(spec=unlike, labels={"version": "1"}), [node("a")], [other]).fits
    assert not place(pod(spec=unlike, labels={"version": "2"}), [node("a")], [other]).fits


def test_near_is_judged_before_apart() -> None:
    """In the scheduler's order."""
    spec = {"affinity": near(term(app="cache"))["affinity"] | apart(term())["affinity"]}
    assert reasons(place(pod(spec=spec), [NODES[0]], [there("r", "a")])) == {"a": (NOT_NEAR,)}


def test_a_preference_keeps_nobody_away() -> None:
    """It is for scores."""
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term()}]}
    assert place(pod(spec={"affinity": {"podAntiAffinity": preferred}}), [NODES[0]], [there("r", "a")]).fits
