"""Tests of the path from the upper pod through the annotation to the lower pod: it loses and adds no requirement."""

from itertools import product
from typing import Any

from admissionkit import PROVIDER, VK_A, VK_B, pod, terms
from hypothesis import given
from hypothesis import strategies as st
from podkit import lower_context
from properties import examples

from tensile.kubelet.pods.lower_context import scheduling_fields
from tensile.policy.webhook.admission import operations, prepared
from tensile.reconcile.pods.scheduling import REQUIRED, for_lower, is_upper_only, meets, split_term

Manifest = dict[str, Any]

KEYS, NODES = terms().keys, terms().nodes
HOSTNAME = "kubernetes.io/hostname"
VIRTUAL = {
    VK_A: {"clusterID": "x", "type": "virtual-kubelet", HOSTNAME: VK_A},
    VK_B: {"clusterID": "y", "type": "virtual-kubelet", HOSTNAME: VK_B},
}
REAL = {
    "n1": {"disk": "ssd", "gpu": "a", HOSTNAME: "n1"},
    "n2": {"disk": "hdd", HOSTNAME: "n2"},
    "n3": {"gpu": "b", "cores": "8", HOSTNAME: "n3"},
}
ABOVE, BELOW = {"clusterID": "xyz", "type": ["virtual-kubelet"]}, {"disk": ["ssd", "hdd"], "gpu": "ab"}


def values_of(pool: Any) -> st.SearchStrategy[list[str]]:
    """Draw one or two values."""
    return st.lists(st.sampled_from(list(pool)), min_size=1, max_size=2, unique=True)


def draw_requirement(pools: dict[str, Any]) -> st.SearchStrategy[Manifest]:
    """Draw a requirement on one of the keys."""
    keys = st.sampled_from(sorted(pools))
    valued = keys.flatmap(
        lambda key: st.fixed_dictionaries(
            {"key": st.just(key), "operator": st.sampled_from(["In", "NotIn"]), "values": values_of(pools[key])}
        )
    )
    plain = st.fixed_dictionaries({"key": keys, "operator": st.sampled_from(["Exists", "DoesNotExist"])})
    return valued | plain


BY_NAME = st.one_of(
    st.fixed_dictionaries({"key": st.just(HOSTNAME), "operator": st.just("In"), "values": values_of(NODES)}),
    st.fixed_dictionaries({"key": st.just(HOSTNAME), "operator": st.just("In"), "values": values_of(REAL)}),
    st.fixed_dictionaries(
        {"key": st.just(HOSTNAME), "operator": st.just("NotIn"), "values": values_of([*sorted(NODES), *REAL])}
    ),
)
COUNTED = st.just({"key": "cores", "operator": "Gt", "values": ["4"]})
PURE = draw_requirement(BELOW) | COUNTED
ANY = PURE | draw_requirement(ABOVE) | BY_NAME


def affinities(requirements: st.SearchStrategy[Manifest]) -> st.SearchStrategy[Manifest]:
    """Draw node affinities with up to three terms."""
    term = st.fixed_dictionaries({"matchExpressions": st.lists(requirements, min_size=1, max_size=3)})
    return st.lists(term, min_size=1, max_size=3).map(
        lambda found: {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": found}}}
    )


TOLERATION = st.fixed_dictionaries(
    {"key": st.sampled_from(["a", "b", "node.kubernetes.io/not-ready"]), "operator": st.just("Exists")},
    optional={"effect": st.sampled_from(["NoSchedule", "NoExecute"])},
)


def specs(labels: dict[str, Any], requirements: st.SearchStrategy[Manifest]) -> st.SearchStrategy[Manifest]:
    """Draw the node requirements of a pod."""
    selectors = st.fixed_dictionaries({}, optional={key: st.sampled_from(list(labels[key])) for key in labels})
    parts = {
        "nodeSelector": selectors.filter(bool),
        "affinity": affinities(requirements),
        "tolerations": st.lists(TOLERATION, min_size=1, max_size=3, unique_by=lambda one: tuple(sorted(one.items()))),
    }
    return st.fixed_dictionaries({}, optional=parts)


def lower_requirements(found: Manifest, node: str) -> Manifest:
    """Return the node requirements of the lower pod behind a virtual node."""
    keys = {"ignore_selector_keys": frozenset({"clusterID"}), "virtual_nodes": NODES, "taints": (PROVIDER,)}
    return scheduling_fields(found, lower_context(node_name=node, node_labels=VIRTUAL[node], **keys))


@examples(2_000)
@given(specs(BELOW, PURE))
def test_requirements_on_lower_nodes_are_restored_unchanged(spec: Manifest) -> None:
    """That includes node selector, affinity, and tolerations that matter in the lower cluster."""
    prepared_pod = prepared(pod(spec), terms(PROVIDER))
    expected = {**spec, "tolerations": for_lower(spec.get("tolerations") or (), (PROVIDER,))}
    for node in VIRTUAL:
        assert lower_requirements(prepared_pod, node) == {field: value for field, value in expected.items() if value}


def accepts(spec: Manifest, virtual: str, real: str) -> bool:
    """Report whether a pod's original spec may run on a lower node behind a virtual node."""
    seen, shown = REAL[real], VIRTUAL[virtual]
    for key, value in (spec.get("nodeSelector") or {}).items():
        if (shown if is_upper_only(key, [value], KEYS, NODES) else seen).get(key) != value:
            return False
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    return required is None or any(_holds(term, virtual, real) for term in required["nodeSelectorTerms"])


def _holds(term: Manifest, virtual: str, real: str) -> bool:
    """Report whether a term holds, each requirement on its side; a name to avoid is avoided on both sides."""
    halves = split_term(term, KEYS, NODES)
    upper_object = (
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [halves.upper]}}}} if halves.upper else {}
    )
    lower = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [halves.lower]}}}} if halves.lower else {}
    return meets(upper_object, virtual, VIRTUAL[virtual]) and meets(lower, real, REAL[real])


@examples(500)
@given(specs({**BELOW, **ABOVE}, ANY))
def test_both_schedulers_accept_exactly_the_nodes_that_the_author_allowed(spec: Manifest) -> None:
    """Every virtual node is checked with every lower node behind it."""
    found = prepared(pod(spec), terms(PROVIDER))
    for virtual, real in product(VIRTUAL, REAL):
        passes = meets(found["spec"], virtual, VIRTUAL[virtual]) and meets(
            lower_requirements(found, virtual), real, REAL[real]
        )
        assert passes == accepts(spec, virtual, real), (virtual, real)


@examples(300)
@given(specs({**BELOW, **ABOVE}, ANY))
def test_a_pod_without_the_webhook_has_the_same_lower_requirements(spec: Manifest) -> None:
    """The engine derives them once the pod is bound to a virtual node that it may run on."""
    given_pod = pod(spec)
    found = prepared(given_pod, terms(PROVIDER))
    for virtual in VIRTUAL:
        if not any(accepts(spec, virtual, real) for real in REAL):
            continue
        one, other = lower_requirements(found, virtual), lower_requirements(given_pod, virtual)
        for real, shown in REAL.items():
            assert meets(one, real, shown) == meets(other, real, shown)
        assert one.get("tolerations") == other.get("tolerations")


@examples(300)
@given(specs({**BELOW, **ABOVE}, ANY))
def test_a_second_mutation_changes_nothing(spec: Manifest) -> None:
    """The apiserver may send a prepared pod again."""
    once = prepared(pod(spec), terms(PROVIDER))
    assert prepared(once, terms(PROVIDER)) is once
    assert operations(once, once) == []
