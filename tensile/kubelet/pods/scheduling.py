"""The scheduling constraints of a lower pod.

Most constraints on nodes are meant for lower nodes. Some are about the upper cluster: labels that only a virtual node
has, names of virtual nodes, topology domains of the upper cluster. No lower node can meet these, so a copy would keep
the lower pod Pending indefinitely; they were met when the pod was bound to its virtual node. The webhook moves the
constraints for lower nodes into an annotation; without it, the spec is used.
"""

from tensile.kubelet.pods.placement_context import LowerContext
from tensile.objects import Manifest
from tensile.reconcile.pods.cluster_selector import cluster_selector
from tensile.reconcile.pods.scheduling import REQUIRED as _REQUIRED
from tensile.reconcile.pods.scheduling import Split, for_lower, is_upper_only, matches, split_term, subject

_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_SPACE_NAME = "kubernetes.io/metadata.name"
_MERGED = ("matchLabelKeys", "mismatchLabelKeys")


def lower_tolerations(upper_pod: Manifest, place: LowerContext) -> list[Manifest]:
    """Return the tolerations of the lower pod."""
    return _tolerations(upper_pod["spec"], cluster_selector(upper_pod) or {}, place)


def scheduling_fields(upper_pod: Manifest, place: LowerContext) -> Manifest:
    """Return the lower pod's nodeSelector, affinity, tolerations and topologySpreadConstraints that are not empty."""
    spec = upper_pod["spec"]
    moved = cluster_selector(upper_pod)
    source = spec if moved is None else moved
    fields = {
        "nodeSelector": _node_selector(source.get("nodeSelector") or {}, place),
        "affinity": _affinity(_restored(spec, moved), place),
        "tolerations": _tolerations(spec, moved or {}, place),
        "topologySpreadConstraints": _spread(spec.get("topologySpreadConstraints") or [], place),
    }
    return {field: value for field, value in fields.items() if value}


def _restored(spec: Manifest, moved: Manifest | None) -> Manifest:
    """Return the affinity to filter: required node affinity as it was moved, the rest from the spec.

    If the spec has no affinity, the moved one is used whole.
    """
    present: Manifest = spec.get("affinity") or {}
    if moved is None:
        return present
    kept: Manifest = moved.get("affinity") or {}
    if not present:
        return kept
    required = (kept.get("nodeAffinity") or {}).get(_REQUIRED)
    node = {**(present.get("nodeAffinity") or {}), _REQUIRED: required}
    return {**present, "nodeAffinity": node}


def _tolerations(spec: Manifest, moved: Manifest, place: LowerContext) -> list[Manifest]:
    """Return the moved tolerations, and those added to the spec since: a bound pod may get more."""
    kept = for_lower(moved.get("tolerations") or [], place.taints)
    present = {subject(one): one for one in for_lower(spec.get("tolerations") or [], place.taints)}
    return [present.pop(subject(one), one) for one in kept] + list(present.values())


def _node_selector(selector: dict[str, str], place: LowerContext) -> dict[str, str]:
    """Return the node labels to require, without those of the upper cluster."""
    only = (place.upper_only_keys, place.upper_only_nodes)
    return {key: value for key, value in selector.items() if not is_upper_only(key, [value], *only)}


def _affinity(affinity: Manifest, place: LowerContext) -> Manifest:
    """Return the filtered affinity of all three kinds; an empty one is left out."""
    fields = {
        **affinity,
        "nodeAffinity": _node_affinity(affinity.get("nodeAffinity") or {}, place),
        "podAffinity": _pod_affinity(affinity.get("podAffinity") or {}, place),
        "podAntiAffinity": _pod_affinity(affinity.get("podAntiAffinity") or {}, place),
    }
    return {field: value for field, value in fields.items() if value}


def _node_affinity(affinity: Manifest, place: LowerContext) -> Manifest:
    """Return the filtered node affinity, required and preferred."""
    fields = {
        **affinity,
        _REQUIRED: _required_terms(affinity.get(_REQUIRED) or {}, place),
        _PREFERRED: _preferences(affinity.get(_PREFERRED) or [], place),
    }
    return {field: value for field, value in fields.items() if value}


def _required_terms(required: Manifest, place: LowerContext) -> Manifest | None:
    """Return the filtered terms, of which one has to match.

    Terms for another virtual node are left out. If a remaining term has no further constraint, none is needed.
    """
    terms = [_split(term, place) for term in required.get("nodeSelectorTerms") or []]
    here = [term for term in terms if _is_met_above(term, place)] or terms
    below = [term.below for term in here if term.below is not None]
    return {**required, "nodeSelectorTerms": below} if below and len(below) == len(here) else None


def _is_met_above(term: Split, place: LowerContext) -> bool:
    """Report whether the virtual node meets the upper part of a term, as far as is known."""
    known = place.node_labels
    return term.above is None or known is None or matches(term.above, place.node_name, known)


def _preferences(preferred: list[Manifest], place: LowerContext) -> list[Manifest]:
    """Return the filtered preferences; an empty one would prefer all nodes alike and is left out."""
    filtered = [{**term, "preference": _split(term.get("preference") or {}, place).below} for term in preferred]
    return [term for term in filtered if term["preference"]]


def _split(term: Manifest, place: LowerContext) -> Split:
    """Return a term split into its parts: the upper one was met when the pod was bound."""
    return split_term(term, place.upper_only_keys, place.upper_only_nodes)


def _pod_affinity(affinity: Manifest, place: LowerContext) -> Manifest:
    """Return the filtered pod affinity or anti-affinity, required and preferred."""
    fields = {
        **affinity,
        _REQUIRED: _pod_terms(affinity.get(_REQUIRED) or [], place),
        _PREFERRED: _weighted_pod_terms(affinity.get(_PREFERRED) or [], place),
    }
    return {field: value for field, value in fields.items() if value}


def _pod_terms(terms: list[Manifest], place: LowerContext) -> list[Manifest]:
    """Return the required terms whose topology exists in the lower cluster."""
    domains = place.upper_domains
    return [_pod_term(term, place) for term in terms if term.get("topologyKey") not in domains]


def _weighted_pod_terms(weighted: list[Manifest], place: LowerContext) -> list[Manifest]:
    """Return the preferred terms whose topology exists in the lower cluster."""
    field, domains = "podAffinityTerm", place.upper_domains
    return [
        {**one, field: _pod_term(one[field], place)} for one in weighted if one[field].get("topologyKey") not in domains
    ]


def _pod_term(term: Manifest, place: LowerContext) -> Manifest:
    """Return a term for the lower cluster: with lower namespaces, without merged expressions."""
    plain = without_merged(term)
    if names := plain.get("namespaces"):
        plain = {**plain, "namespaces": [place.namespace_of(name) for name in names]}
    if selector := plain.get("namespaceSelector"):
        plain = {**plain, "namespaceSelector": _space_selector(selector, place)}
    return plain


def _space_selector(selector: Manifest, place: LowerContext) -> Manifest:
    """Return a namespace selector with lower names where it uses the label that holds a namespace's name."""
    found = dict(selector)
    named = (selector.get("matchLabels") or {}).get(_SPACE_NAME)
    if named:
        found["matchLabels"] = {**selector["matchLabels"], _SPACE_NAME: place.namespace_of(named)}
    if selector.get("matchExpressions"):
        found["matchExpressions"] = [
            {**one, "values": [place.namespace_of(value) for value in one["values"]]}
            if one["key"] == _SPACE_NAME and one.get("values")
            else one
            for one in selector["matchExpressions"]
        ]
    return found


def _spread(constraints: list[Manifest], place: LowerContext) -> list[Manifest]:
    """Return the spread constraints whose topology exists in the lower cluster."""
    domains = place.upper_domains
    return [without_merged(one) for one in constraints if one.get("topologyKey") not in domains]


def without_merged(term: Manifest) -> Manifest:
    """Return a term without the expressions that the upper apiserver merged into its label selector.

    Kubernetes turns matchLabelKeys into expressions at creation and refuses a pod that has both.
    """
    keys = {key for field in _MERGED for key in term.get(field) or []}
    selector = term.get("labelSelector") or {}
    if not keys or not selector.get("matchExpressions"):
        return term
    left = [one for one in selector["matchExpressions"] if one["key"] not in keys]
    rest = {field: value for field, value in selector.items() if field != "matchExpressions"}
    return {**term, "labelSelector": rest | ({"matchExpressions": left} if left else {})}
