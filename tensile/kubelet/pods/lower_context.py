"""Where a pod runs in a lower cluster, what its lower pod depends on, and its scheduling constraints there.

The place is one value instead of a topology, a cache and a lower, so that the projection stays a function of two
arguments. One value can be built per namespace and used for every pod in it.

Most constraints on nodes are meant for lower nodes. Some are about the upper cluster: labels that only a virtual node
has, names of virtual nodes, topology domains of the upper cluster. No lower node can meet these, so a copy would keep
the lower pod Pending indefinitely; they were met when the pod was bound to its virtual node. The webhook moves the
constraints for lower nodes into an annotation; without it, the spec is used.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from tensile.names import Owner
from tensile.objects import Manifest
from tensile.reconcile.pods.scheduling import REQUIRED as _REQUIRED
from tensile.reconcile.pods.scheduling import (
    UPPER_ONLY_KEYS,
    Split,
    cluster_selector,
    for_lower,
    is_upper_only,
    matches,
    split_term,
    subject,
)
from tensile.reconcile.world import UpperServer

AccountIdentity = Literal["none", "lower", "upper"]

DEFAULT_SCHEDULER = "default-scheduler"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_MERGED = ("matchLabelKeys", "mismatchLabelKeys")


def same_name(namespace: str) -> str:
    """Map a namespace to the lower one of the same name."""
    return namespace


class LowerContext(msgspec.Struct, frozen=True, gc=False):
    """What the projection of one namespace's pods to one lower cluster depends on.

    - `node_name` is the virtual node, `namespace` and `namespace_uid` identify the lower namespace.
    - `node_label_keys` are label keys that only the topology gives the virtual node and no lower node has.
    - `domain_keys` are all label keys that the virtual node has and no lower node.
    - `node_labels` are all labels of the virtual node, None if unknown.
    - `ignore_selector_keys` are those of the webhook; `taints` are the virtual nodes' (as in a Node's spec).
    - `storage_classes` maps upper names to lower ones; a class that is not listed keeps its name.
    - `namespace_of` returns the lower name of an upper namespace.
    - `upper_server` is where lower pods reach the upper apiserver, None if unknown.
    """

    owner: Owner
    node_name: str
    namespace: str
    namespace_uid: str
    identity: AccountIdentity = "none"
    ignore_labels: frozenset[str] = frozenset()
    node_label_keys: frozenset[str] = frozenset()
    domain_keys: frozenset[str] = frozenset()
    node_labels: Mapping[str, str] | None = None
    ignore_selector_keys: frozenset[str] = frozenset()
    virtual_nodes: frozenset[str] = frozenset()
    taints: tuple[Mapping[str, Any], ...] = ()
    storage_classes: Mapping[str, str] = {}
    namespace_of: Callable[[str], str] = same_name
    upper_server: UpperServer | None = None

    @property
    def upper_only_keys(self) -> frozenset[str]:
        """Label keys that are known in the upper cluster only: the lower scheduler must not get constraints on them."""
        return UPPER_ONLY_KEYS | self.ignore_selector_keys | self.node_label_keys

    @property
    def upper_domains(self) -> frozenset[str]:
        """Topology keys of upper nodes that lower nodes do not have."""
        return self.upper_only_keys | self.domain_keys

    @property
    def upper_only_nodes(self) -> frozenset[str]:
        """Node names that exist in the upper cluster only."""
        return self.virtual_nodes | {self.node_name}


def lower_tolerations(upper_pod: Manifest, context: LowerContext) -> list[Manifest]:
    """Return the tolerations of the lower pod."""
    return _tolerations(upper_pod["spec"], cluster_selector(upper_pod) or {}, context)


def scheduling_fields(upper_pod: Manifest, context: LowerContext) -> Manifest:
    """Return the lower pod's nodeSelector, affinity, tolerations and topologySpreadConstraints that are not empty."""
    spec = upper_pod["spec"]
    moved = cluster_selector(upper_pod)
    source = spec if moved is None else moved
    fields = {
        "nodeSelector": _node_selector(source.get("nodeSelector") or {}, context),
        "affinity": _affinity(_original_affinity(spec, moved), context),
        "tolerations": _tolerations(spec, moved or {}, context),
        "topologySpreadConstraints": _spread(spec.get("topologySpreadConstraints") or [], context),
    }
    return {field: value for field, value in fields.items() if value}


def _original_affinity(spec: Manifest, moved: Manifest | None) -> Manifest:
    """Return the affinity to filter: required node affinity as it was moved, the rest from the spec.

    If the spec has no affinity, the moved one is used whole.
    """
    present: Manifest = spec.get("affinity") or {}
    if moved is None:
        return present
    moved_affinity: Manifest = moved.get("affinity") or {}
    if not present:
        return moved_affinity
    required = (moved_affinity.get("nodeAffinity") or {}).get(_REQUIRED)
    node = {**(present.get("nodeAffinity") or {}), _REQUIRED: required}
    return {**present, "nodeAffinity": node}


def _tolerations(spec: Manifest, moved: Manifest, context: LowerContext) -> list[Manifest]:
    """Return the moved tolerations, and those added to the spec since: a bound pod may get more."""
    original = for_lower(moved.get("tolerations") or [], context.taints)
    present = {subject(one): one for one in for_lower(spec.get("tolerations") or [], context.taints)}
    return [present.pop(subject(one), one) for one in original] + list(present.values())


def _node_selector(selector: dict[str, str], context: LowerContext) -> dict[str, str]:
    """Return the node labels to require, without those of the upper cluster."""
    only = (context.upper_only_keys, context.upper_only_nodes)
    return {key: value for key, value in selector.items() if not is_upper_only(key, [value], *only)}


def _affinity(affinity: Manifest, context: LowerContext) -> Manifest:
    """Return the filtered affinity of all three kinds; an empty one is left out."""
    fields = {
        **affinity,
        "nodeAffinity": _node_affinity(affinity.get("nodeAffinity") or {}, context),
        "podAffinity": _pod_affinity(affinity.get("podAffinity") or {}, context),
        "podAntiAffinity": _pod_affinity(affinity.get("podAntiAffinity") or {}, context),
    }
    return {field: value for field, value in fields.items() if value}


def _node_affinity(affinity: Manifest, context: LowerContext) -> Manifest:
    """Return the filtered node affinity, required and preferred."""
    fields = {
        **affinity,
        _REQUIRED: _required_terms(affinity.get(_REQUIRED) or {}, context),
        _PREFERRED: _preferences(affinity.get(_PREFERRED) or [], context),
    }
    return {field: value for field, value in fields.items() if value}


def _required_terms(required: Manifest, context: LowerContext) -> Manifest | None:
    """Return the filtered terms, of which one has to match.

    Terms for another virtual node are left out. If a remaining term has no further constraint, none is needed.
    """
    terms = [_split(term, context) for term in required.get("nodeSelectorTerms") or []]
    applicable = [term for term in terms if _is_met_by_virtual_node(term, context)] or terms
    lower_terms = [term.lower for term in applicable if term.lower is not None]
    return (
        {**required, "nodeSelectorTerms": lower_terms} if lower_terms and len(lower_terms) == len(applicable) else None
    )


def _is_met_by_virtual_node(term: Split, context: LowerContext) -> bool:
    """Report whether the virtual node meets the upper part of a term, as far as is known."""
    known = context.node_labels
    return term.upper is None or known is None or matches(term.upper, context.node_name, known)


def _preferences(preferred: list[Manifest], context: LowerContext) -> list[Manifest]:
    """Return the filtered preferences; an empty one would prefer all nodes alike and is left out."""
    filtered = [{**term, "preference": _split(term.get("preference") or {}, context).lower} for term in preferred]
    return [term for term in filtered if term["preference"]]


def _split(term: Manifest, context: LowerContext) -> Split:
    """Return a term split into its parts: the upper one was met when the pod was bound."""
    return split_term(term, context.upper_only_keys, context.upper_only_nodes)


def _pod_affinity(affinity: Manifest, context: LowerContext) -> Manifest:
    """Return the filtered pod affinity or anti-affinity, required and preferred."""
    fields = {
        **affinity,
        _REQUIRED: _pod_terms(affinity.get(_REQUIRED) or [], context),
        _PREFERRED: _weighted_pod_terms(affinity.get(_PREFERRED) or [], context),
    }
    return {field: value for field, value in fields.items() if value}


def _pod_terms(terms: list[Manifest], context: LowerContext) -> list[Manifest]:
    """Return the required terms whose topology exists in the lower cluster."""
    domains = context.upper_domains
    return [_pod_term(term, context) for term in terms if term.get("topologyKey") not in domains]


def _weighted_pod_terms(weighted: list[Manifest], context: LowerContext) -> list[Manifest]:
    """Return the preferred terms whose topology exists in the lower cluster."""
    field, domains = "podAffinityTerm", context.upper_domains
    return [
        {**one, field: _pod_term(one[field], context)}
        for one in weighted
        if one[field].get("topologyKey") not in domains
    ]


def _pod_term(term: Manifest, context: LowerContext) -> Manifest:
    """Return a term for the lower cluster: with lower namespaces, without merged expressions."""
    plain = without_merged(term)
    if names := plain.get("namespaces"):
        plain = {**plain, "namespaces": [context.namespace_of(name) for name in names]}
    if selector := plain.get("namespaceSelector"):
        plain = {**plain, "namespaceSelector": _namespace_selector(selector, context)}
    return plain


def _namespace_selector(selector: Manifest, context: LowerContext) -> Manifest:
    """Return a namespace selector with lower names where it uses the label that holds a namespace's name."""
    found = dict(selector)
    name = (selector.get("matchLabels") or {}).get(_NAMESPACE_NAME)
    if name:
        found["matchLabels"] = {**selector["matchLabels"], _NAMESPACE_NAME: context.namespace_of(name)}
    if selector.get("matchExpressions"):
        found["matchExpressions"] = [
            {**one, "values": [context.namespace_of(value) for value in one["values"]]}
            if one["key"] == _NAMESPACE_NAME and one.get("values")
            else one
            for one in selector["matchExpressions"]
        ]
    return found


def _spread(constraints: list[Manifest], context: LowerContext) -> list[Manifest]:
    """Return the spread constraints whose topology exists in the lower cluster."""
    domains = context.upper_domains
    return [without_merged(one) for one in constraints if one.get("topologyKey") not in domains]


def without_merged(term: Manifest) -> Manifest:
    """Return a term without the expressions that the upper apiserver merged into its label selector.

    Kubernetes turns matchLabelKeys into expressions at creation and refuses a pod that has both.
    """
    keys = {key for field in _MERGED for key in term.get(field) or []}
    selector = term.get("labelSelector") or {}
    if not keys or not selector.get("matchExpressions"):
        return term
    remaining = [one for one in selector["matchExpressions"] if one["key"] not in keys]
    rest = {field: value for field, value in selector.items() if field != "matchExpressions"}
    return {**term, "labelSelector": rest | ({"matchExpressions": remaining} if remaining else {})}
