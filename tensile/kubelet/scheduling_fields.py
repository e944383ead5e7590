"""Scheduling constraints as the lower scheduler is given them.

What a user asks of nodes is asked of the nodes below, but part of it is about the upper cluster: labels that only a
virtual node has, names of virtual nodes, domains that the upper spans. Left in, it keeps the lower pod Pending for
ever, since no lower node can meet it; it was met when the pod was bound to its virtual node. The webhook moves what is
meant for below into an annotation; without it the spec is all there is.
"""

from tensile.kubelet.cluster_selector import cluster_selector
from tensile.kubelet.place import Placement
from tensile.kubelet.tolerations import for_lower, subject
from tensile.objects import Manifest

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_HOSTNAME = "kubernetes.io/hostname"
_SPACE_NAME = "kubernetes.io/metadata.name"
_NAMING_NODES = frozenset({_HOSTNAME, "metadata.name"})
_MERGED = ("matchLabelKeys", "mismatchLabelKeys")


def lower_tolerations(upper_pod: Manifest, place: Placement) -> list[Manifest]:
    """Give the tolerations of the lower pod."""
    return _tolerations(upper_pod["spec"], cluster_selector(upper_pod) or {}, place)


def scheduling_fields(upper_pod: Manifest, place: Placement) -> Manifest:
    """Give nodeSelector, affinity, tolerations and topologySpreadConstraints of the lower pod, each where not empty."""
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
    """Give the affinity to filter: the required node affinity is what was moved, the rest is the spec's.

    A spec without any affinity takes the moved one whole.
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


def _tolerations(spec: Manifest, moved: Manifest, place: Placement) -> list[Manifest]:
    """Give those that were moved, and what the spec has beyond them: tolerations may be added to a bound pod."""
    kept = for_lower(moved.get("tolerations") or [], place.taints)
    present = {subject(one): one for one in for_lower(spec.get("tolerations") or [], place.taints)}
    return [present.pop(subject(one), one) for one in kept] + list(present.values())


def _node_selector(selector: dict[str, str], place: Placement) -> dict[str, str]:
    """Filter the labels that a node has to have."""
    return {key: value for key, value in selector.items() if not _is_upper_only(key, [value], place)}


def _is_upper_only(key: str, values: list[str], place: Placement) -> bool:
    """Say whether a requirement on nodes is about the upper cluster: by its key, or by naming a virtual node."""
    return key in place.upper_only_keys or (key in _NAMING_NODES and not place.upper_only_nodes.isdisjoint(values))


def _affinity(affinity: Manifest, place: Placement) -> Manifest:
    """Filter the three kinds of affinity; one that is left empty goes."""
    fields = {
        **affinity,
        "nodeAffinity": _node_affinity(affinity.get("nodeAffinity") or {}, place),
        "podAffinity": _pod_affinity(affinity.get("podAffinity") or {}, place),
        "podAntiAffinity": _pod_affinity(affinity.get("podAntiAffinity") or {}, place),
    }
    return {field: value for field, value in fields.items() if value}


def _node_affinity(affinity: Manifest, place: Placement) -> Manifest:
    """Filter what is required of nodes and what is preferred."""
    fields = {
        **affinity,
        _REQUIRED: _required_terms(affinity.get(_REQUIRED) or {}, place),
        _PREFERRED: _preferences(affinity.get(_PREFERRED) or [], place),
    }
    return {field: value for field, value in fields.items() if value}


def _required_terms(required: Manifest, place: Placement) -> Manifest | None:
    """Filter the terms, of which one has to hold: where one is left empty it holds always, so none is needed."""
    terms = required.get("nodeSelectorTerms") or []
    kept = [_node_term(term, place) for term in terms]
    freed = any(term and not left for term, left in zip(terms, kept, strict=True))
    return None if freed or not kept else {**required, "nodeSelectorTerms": kept}


def _preferences(preferred: list[Manifest], place: Placement) -> list[Manifest]:
    """Filter preferences among nodes; one that is left empty would prefer all alike."""
    filtered = [{**term, "preference": _node_term(term.get("preference") or {}, place)} for term in preferred]
    return [term for term in filtered if term["preference"]]


def _node_term(term: Manifest, place: Placement) -> Manifest:
    """Filter the requirements of one term; a list that is left empty goes."""
    lists = {
        field: [kept for one in term.get(field) or [] if (kept := _requirement(one, place)) is not None]
        for field in ("matchExpressions", "matchFields")
    }
    rest = {field: value for field, value in term.items() if field not in lists}
    return rest | {field: value for field, value in lists.items() if value}


def _requirement(requirement: Manifest, place: Placement) -> Manifest | None:
    """Filter one requirement on nodes; None when it was about the upper cluster only.

    A list of nodes to avoid loses the virtual ones; a list of nodes to use that names one was met above.
    """
    values = requirement.get("values") or []
    if not _is_upper_only(requirement["key"], values, place):
        return requirement
    rest = [value for value in values if value not in place.upper_only_nodes]
    if requirement["key"] in _NAMING_NODES and requirement.get("operator") == "NotIn" and rest:
        return {**requirement, "values": rest}
    return None


def _pod_affinity(affinity: Manifest, place: Placement) -> Manifest:
    """Filter what is required of the company of pods and what is preferred."""
    fields = {
        **affinity,
        _REQUIRED: _pod_terms(affinity.get(_REQUIRED) or [], place),
        _PREFERRED: _weighted_pod_terms(affinity.get(_PREFERRED) or [], place),
    }
    return {field: value for field, value in fields.items() if value}


def _pod_terms(terms: list[Manifest], place: Placement) -> list[Manifest]:
    """Filter required terms by their domain."""
    return [_pod_term(term, place) for term in terms if term.get("topologyKey") not in place.upper_only_keys]


def _weighted_pod_terms(weighted: list[Manifest], place: Placement) -> list[Manifest]:
    """Filter preferred terms by their domain."""
    field = "podAffinityTerm"
    return [
        {**one, field: _pod_term(one[field], place)}
        for one in weighted
        if one[field].get("topologyKey") not in place.upper_only_keys
    ]


def _pod_term(term: Manifest, place: Placement) -> Manifest:
    """Rewrite a term for below: the lower namespaces, and no merged expressions."""
    plain = _without_merged(term)
    if names := plain.get("namespaces"):
        plain = {**plain, "namespaces": [place.namespace_of(name) for name in names]}
    if selector := plain.get("namespaceSelector"):
        plain = {**plain, "namespaceSelector": _space_selector(selector, place)}
    return plain


def _space_selector(selector: Manifest, place: Placement) -> Manifest:
    """Rewrite a selector of namespaces where it names them: each has its name as a label."""
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


def _spread(constraints: list[Manifest], place: Placement) -> list[Manifest]:
    """Filter spread constraints by their domain."""
    return [_without_merged(one) for one in constraints if one.get("topologyKey") not in place.upper_only_keys]


def _without_merged(term: Manifest) -> Manifest:
    """Take the expressions out of a label selector that the upper apiserver merged into it.

    Kubernetes turns matchLabelKeys into expressions at creation and refuses a pod that comes with both.
    """
    keys = {key for field in _MERGED for key in term.get(field) or []}
    selector = term.get("labelSelector") or {}
    if not keys or not selector.get("matchExpressions"):
        return term
    left = [one for one in selector["matchExpressions"] if one["key"] not in keys]
    rest = {field: value for field, value in selector.items() if field != "matchExpressions"}
    return {**term, "labelSelector": rest | ({"matchExpressions": left} if left else {})}
