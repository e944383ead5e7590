"""The mutation of a pod at admission: its requirements on lower nodes move into annotation `clusterSelector`.

A pod meant for a lower cluster selects that cluster's nodes, which the upper scheduler does not know. Requirements on
lower nodes move into tensile-kube's annotation and return in the lower pod; those that choose a virtual node stay. The
engine decides the same for a pod that the webhook did not see.

A node affinity is a list of terms of which one must hold. Splitting each term is correct only if every upper half may
be combined with every lower half; otherwise halves of different terms would be required together. Then the terms go
into the annotation whole, and the engine drops those that require another virtual node.

The JSON Patch is written directly, because the changed fields are known and jsonpatch takes at least 50 times as long.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import orjson

from tensile.errors import TensileError
from tensile.names import CLUSTER_SELECTOR, DESCHEDULED, HOSTNAME, VIRTUAL_POD
from tensile.objects import Manifest, annotations, controller_of, labels, metadata
from tensile.reconcile.pods.scheduling import (
    LISTS,
    LONGEST,
    MOST,
    NOT_READY,
    REQUIRED,
    UNREACHABLE,
    UPPER_ONLY_KEYS,
    Split,
    cluster_selector,
    for_lower,
    has_requirements,
    is_upper_only,
    lacking_for,
    left_alone,
    required_of,
    selector_flaw,
    split_term,
    subject,
    taints_of,
    toleration_of,
    tolerations_on_admission,
)
from tensile.topology import Topology

FIELDS = ("nodeSelector", "affinity", "tolerations")
"""The fields of a spec that the webhook may change, and whose content it moves into the annotation."""
_MAX_PINS = 2
"""A pod that is pinned to this many nodes fits none."""
_ESCAPES = (("&", "\\u0026"), ("<", "\\u003c"), (">", "\\u003e"))
_FIELDS = ("nodeSelectorTerms", "matchExpressions", "matchFields", "key", "operator", "value", "values", "effect")


class _Rank(dict[str, int]):
    """The position of a field in Go's types; unknown fields come last, in their original order."""

    def __missing__(self, _field: str) -> int:
        return len(self)


_RANK = _Rank({field: rank for rank, field in enumerate((*_FIELDS, "tolerationSeconds"))})
_Terms = list[Manifest]
NodeOfClaim = Callable[[str, str], str]
"""Returns the virtual node selected for a claim, by namespace and name; "" for none."""
NodesToAvoid = Callable[[str], Iterable[str]]
"""Returns the virtual nodes to which pods of a controller, by its UID, must not go now."""


class CannotMutate(TensileError):
    """Why a pod cannot be prepared; it is created unchanged, with a warning to the client."""


@dataclass(frozen=True, slots=True)
class MutationTerms:
    """What the mutation of a pod depends on.

    `keys` are the keys of requirements that choose a virtual node, `nodes` the names of the virtual nodes, `taints`
    their taints without repetition. Pods of `excluded` namespaces are left alone.
    """

    keys: frozenset[str]
    nodes: frozenset[str]
    taints: tuple[Mapping[str, Any], ...]
    excluded: frozenset[str]


class SplitSelectors(NamedTuple):
    """A split spec: the nodeSelector and affinity that stay (None for none), and the content of the annotation."""

    node_selector: Manifest | None
    affinity: Manifest | None
    selector: Manifest


def terms_of(topology: Topology, own_namespace: str = "") -> MutationTerms:
    """Return the terms of a topology; `own_namespace` is where the webhook runs, "" outside a cluster."""
    return MutationTerms(
        keys=UPPER_ONLY_KEYS | set(topology.webhook.ignore_selector_keys),
        nodes=frozenset(lower.node.name for lower in topology.lowers),
        taints=taints_of(topology.lowers),
        excluded=left_alone(topology, own_namespace),
    )


def no_claims(_namespace: str, _name: str) -> str:
    """Return "": no claim has a selected node."""
    return ""


def no_nodes_to_avoid(_owner: str) -> tuple[str, ...]:
    """Return no nodes: none has been tried."""
    return ()


def is_prepared_for(pod: Manifest, namespace: str, terms: MutationTerms) -> bool:
    """Report whether a pod is to be prepared: it has the label that opts in, and its namespace is not excluded.

    A pod that the descheduler re-created is a copy of a prepared pod, and is skipped.
    """
    pod_labels = labels(pod)
    return pod_labels.get(VIRTUAL_POD) == "true" and namespace not in terms.excluded and DESCHEDULED not in pod_labels


def demand_small(fields: Mapping[str, bytes | msgspec.Raw], most: int = LONGEST) -> None:
    """Raise CannotMutate if fields of a pod exceed `most` bytes of JSON together; called before they are decoded."""
    size = sum(map(len, fields.values()))
    if size > most:
        raise CannotMutate(f"{', '.join(fields)} are {size:,} bytes of JSON; the limit is {most:,}")


def prepared(
    pod: Manifest,
    terms: MutationTerms,
    *,
    namespace: str = "",
    node_of: NodeOfClaim = no_claims,
    nodes_to_avoid: NodesToAvoid = no_nodes_to_avoid,
) -> Manifest:
    """Return the pod as it is to be created; the same object if nothing changes.

    `namespace` is where the pod is created, "" for the namespace that it names itself. Preparing a prepared pod changes
    nothing. Raises CannotMutate for a pod whose requirements are too large or malformed.
    """
    target_namespace = namespace or metadata(pod).get("namespace") or "default"
    if not is_prepared_for(pod, target_namespace, terms):
        return pod
    spec = pod["spec"]
    if flaw := selector_flaw({field: spec[field] for field in FIELDS if field in spec}):
        raise CannotMutate(flaw)
    requirements = [
        *_claim_requirements(spec, target_namespace, terms, node_of),
        *_avoidance(pod, terms, nodes_to_avoid),
    ]
    if not requirements and not _constrains_nodes(spec, pod, terms):
        lacking = lacking_for(spec.get("tolerations") or (), terms.taints)
        return _with(pod, tolerations=[*(spec.get("tolerations") or ()), *lacking]) if lacking else pod
    split = split_selectors(spec, terms.keys, terms.nodes)
    written = _written_selector(pod)
    selector = split.selector if written is None else _extended_selector(written, split, spec, terms)
    affinity = with_requirements(split.affinity if written is None else _affinity_to_keep(spec, split), requirements)
    return _with(
        _annotated(pod, encoded(selector)) if selector != written else pod,
        nodeSelector=split.node_selector,
        affinity=affinity,
        tolerations=tolerations_on_admission(spec.get("tolerations") or [], terms.taints),
    )


def encoded(selector: Manifest) -> str:
    """Return the annotation's text, byte for byte as tensile-kube writes it: Go escapes HTML characters.

    Raises CannotMutate if it is longer than readers accept.
    """
    text = orjson.dumps(selector).decode()
    for character, escape in _ESCAPES:
        text = text.replace(character, escape)
    if len(text) > LONGEST:
        raise CannotMutate(f"annotation clusterSelector would have {len(text):,} characters; the limit is {LONGEST:,}")
    return text


def operations(before: Manifest, after: Manifest) -> list[Manifest]:
    """Return the JSON Patch from one pod to the other, limited to what `prepared` may change."""
    found: list[Manifest] = []
    text = annotations(after).get(CLUSTER_SELECTOR)
    if text is not None and text != annotations(before).get(CLUSTER_SELECTOR):
        if annotations(before):
            found.append({"op": "add", "path": f"/metadata/annotations/{CLUSTER_SELECTOR}", "value": text})
        else:
            found.append({"op": "add", "path": "/metadata/annotations", "value": {CLUSTER_SELECTOR: text}})
    for field in FIELDS:
        old, new = before["spec"].get(field), after["spec"].get(field)
        if field in before["spec"] and field not in after["spec"]:
            found.append({"op": "remove", "path": f"/spec/{field}"})
        elif old != new:
            found.append({"op": "add", "path": f"/spec/{field}", "value": new})
    return found


def _constrains_nodes(spec: Manifest, pod: Manifest, terms: MutationTerms) -> bool:
    """Report whether a spec requires anything of nodes.

    Tolerations that this webhook added to a pod without requirements do not count.
    """
    present = {field for field in FIELDS if spec.get(field) is not None}
    our_tolerations = [toleration_of(taint) for taint in terms.taints]
    tolerations = spec.get("tolerations") or []
    is_ours = (
        bool(tolerations)
        and all(one in our_tolerations for one in tolerations)
        and CLUSTER_SELECTOR not in annotations(pod)
    )
    return bool(present - {"tolerations"} if is_ours else present)


def _written_selector(pod: Manifest) -> Manifest | None:
    """Return the selector that a webhook wrote into the annotation of this pod, None if no webhook saw the pod yet.

    The annotation alone proves nothing, because copied manifests carry it. A webhook also leaves unlimited tolerations
    for not-ready and unreachable nodes.
    """
    unlimited = {one.get("key") for one in pod["spec"].get("tolerations") or () if one.get("tolerationSeconds") is None}
    return cluster_selector(pod) if {NOT_READY, UNREACHABLE} <= unlimited else None


def _extended_selector(written: Manifest, split: SplitSelectors, spec: Manifest, terms: MutationTerms) -> Manifest:
    """Return the annotation's selector with what was added to the spec since it was written."""
    tolerations = written.get("tolerations") or []
    known = {subject(one) for one in tolerations}
    added = [one for one in for_lower(spec.get("tolerations") or (), terms.taints) if subject(one) not in known]
    selector = {**split.selector, "tolerations": added}
    return merge_selectors(written, {field: value for field, value in selector.items() if value})


def _affinity_to_keep(spec: Manifest, split: SplitSelectors) -> Manifest | None:
    """Return the affinity of a pod that was prepared before; unchanged (also if empty) unless terms move now."""
    affinity: Manifest | None = split.affinity if "affinity" in split.selector else spec.get("affinity")
    return affinity


def _avoidance(pod: Manifest, terms: MutationTerms, nodes_to_avoid: NodesToAvoid) -> list[Manifest]:
    """Return the requirement that keeps a pod off the virtual nodes tried for its controller; empty for none."""
    owner = str(controller_of(pod).get("uid") or "")
    nodes = sorted(terms.nodes.intersection(nodes_to_avoid(owner))) if owner else []
    return [{"key": HOSTNAME, "operator": "NotIn", "values": nodes}] if nodes else []


def _claim_requirements(spec: Manifest, namespace: str, terms: MutationTerms, node_of: NodeOfClaim) -> list[Manifest]:
    """Return the requirements that pin a pod to the virtual nodes selected for its claims, without repetition.

    No node satisfies two of them, and each is added to every term, so a third would only add cost.
    """
    claims = [(one.get("persistentVolumeClaim") or {}).get("claimName") for one in spec.get("volumes") or ()]
    chosen = [node_of(namespace, claim) for claim in claims if claim]
    nodes = (node for node in dict.fromkeys(chosen) if is_upper_only(HOSTNAME, [node], (), terms.nodes))
    return [{"key": HOSTNAME, "operator": "In", "values": [node]} for node in islice(nodes, _MAX_PINS)]


def with_requirements(affinity: Manifest | None, requirements: Iterable[Manifest]) -> Manifest | None:
    """Return an affinity with requirements added to each term; the scheduler still checks resources and taints."""
    for requirement in requirements:
        present: Manifest = (affinity or {}).get("nodeAffinity") or {}
        required: Manifest = present.get(REQUIRED) or {}
        terms = [_term_with_requirement(term, requirement) for term in required.get("nodeSelectorTerms") or [{}]]
        node_affinity = {**present, REQUIRED: {**required, "nodeSelectorTerms": terms}}
        affinity = {**(affinity or {}), "nodeAffinity": node_affinity}
    return affinity


def _term_with_requirement(term: Manifest, requirement: Manifest) -> Manifest:
    expressions = term.get("matchExpressions") or []
    return term if requirement in expressions else {**term, "matchExpressions": [*expressions, requirement]}


def _annotated(pod: Manifest, text: str) -> Manifest:
    meta = metadata(pod)
    return {**pod, "metadata": {**meta, "annotations": {**annotations(pod), CLUSTER_SELECTOR: text}}}


def _with(pod: Manifest, **fields: Any) -> Manifest:
    """Return a pod with spec fields replaced (None removes a field); the same object if nothing changes."""
    spec = pod["spec"]
    if all(spec.get(field) == value for field, value in fields.items()):
        return pod
    rest = {field: value for field, value in spec.items() if field not in fields}
    return {**pod, "spec": {**rest, **{field: value for field, value in fields.items() if value is not None}}}


def split_selectors(spec: Manifest, keys: Collection[str], nodes: Collection[str]) -> SplitSelectors:
    """Return a spec with its requirements on lower nodes split off.

    `keys` (of requirements) and `nodes` (virtual nodes) are those that exist in the upper cluster only.
    """
    node_selector: Mapping[str, str] = spec.get("nodeSelector") or {}
    staying = {key: value for key, value in node_selector.items() if is_upper_only(key, [value], keys, nodes)}
    moving = {key: node_selector[key] for key in sorted(node_selector.keys() - staying.keys())}
    required = required_of(spec) or {}
    upper_terms, lower_terms = _split_terms(required.get("nodeSelectorTerms") or [], keys, nodes)
    tolerations = [_in_go_order(one) for one in spec.get("tolerations") or ()]
    selector = {"nodeSelector": moving, "affinity": _lower_affinity(required, lower_terms), "tolerations": tolerations}
    return SplitSelectors(
        staying or None,
        _upper_affinity(spec, upper_terms),
        {field: value for field, value in selector.items() if value},
    )


def merge_selectors(first: Manifest, second: Manifest) -> Manifest:
    """Return a selector that requires what both require; `first` itself if `second` is empty.

    Raises CannotMutate if the result would be too large.
    """
    if not second:
        return first
    terms = _cross_product(_required(first), _required(second))
    node_selector = {**(first.get("nodeSelector") or {}), **(second.get("nodeSelector") or {})}
    selector = {
        **first,
        "nodeSelector": {key: node_selector[key] for key in sorted(node_selector)},
        "affinity": _with_node_affinity(first.get("affinity") or {}, _lower_affinity({}, terms)),
        "tolerations": [*(first.get("tolerations") or ()), *map(_in_go_order, second.get("tolerations") or ())],
    }
    return {field: value for field, value in selector.items() if value}


def _split_terms(terms: _Terms, keys: Collection[str], nodes: Collection[str]) -> tuple[_Terms, _Terms]:
    """Return the terms that stay and the terms that move; an empty list requires nothing."""
    halves = [split_term(term, keys, nodes) for term in terms]
    if all(half.lower is None or not has_requirements(half.lower) for half in halves):
        return terms, []
    relevant = [half for half in halves if half.upper or has_requirements(half.lower or {})]
    upper_terms = [half.upper for half in relevant if half.upper is not None]
    lower_terms = [half.lower for half in relevant if half.lower is not None]
    if not _are_combinable(relevant):
        lower_terms = [term for term in terms if has_requirements(term)]
    staying = upper_terms if len(upper_terms) == len(relevant) else []
    return staying, [_in_go_order(term) for term in lower_terms] if len(lower_terms) == len(relevant) else []


def _are_combinable(halves: list[Split]) -> bool:
    """Report whether any upper half may be combined with any lower half: all halves of one side are equal."""
    first = halves[0]
    return all(half.upper == first.upper for half in halves) or all(half.lower == first.lower for half in halves)


def _upper_affinity(spec: Manifest, terms: _Terms) -> Manifest | None:
    """Return the affinity that stays, None for none.

    An affinity that was empty before is dropped, and a nodeAffinity that becomes empty here stays as `{}`. This is
    tensile-kube's form and means the same.
    """
    affinity: Manifest = spec.get("affinity") or {}
    node: Manifest = affinity.get("nodeAffinity") or {}
    rest = {field: value for field, value in affinity.items() if field != "nodeAffinity"}
    if REQUIRED not in node:
        return {**rest, **({"nodeAffinity": node} if node else {})} or None
    node_affinity = {field: value for field, value in node.items() if field != REQUIRED}
    if terms:
        node_affinity[REQUIRED] = {**(node[REQUIRED] or {}), "nodeSelectorTerms": terms}
    return {**rest, "nodeAffinity": node_affinity}


def _lower_affinity(required: Manifest, terms: _Terms) -> Manifest | None:
    """Return the affinity of the annotation, None for none."""
    if not terms:
        return None
    return {"nodeAffinity": {REQUIRED: _in_go_order({**required, "nodeSelectorTerms": terms})}}


def _with_node_affinity(present: Manifest, affinity: Manifest | None) -> Manifest:
    """Return the present affinity of the annotation with the fields of another node affinity replaced."""
    if affinity is None:
        return present
    return {**present, "nodeAffinity": {**(present.get("nodeAffinity") or {}), **affinity["nodeAffinity"]}}


def _required(selector: Manifest) -> _Terms:
    found: _Terms = (required_of(selector) or {}).get("nodeSelectorTerms") or []
    return found


def _cross_product(first: _Terms, second: _Terms) -> _Terms:
    """Return terms of which one holds if one term of each list holds; raises CannotMutate beyond the bounds.

    Each term of one list is combined with each of the other, so a few kilobytes could expand to gigabytes: the size is
    computed before the terms are built.
    """
    if not first or not second:
        return first + second
    count = len(first) * len(second)
    if count > MOST:
        product = f"{len(first):,} node selector terms in annotation clusterSelector times {len(second):,} in the spec"
        raise CannotMutate(f"{product} are {count:,}; the limit is {MOST:,}")
    size = len(first) * len(orjson.dumps(second)) + len(second) * len(orjson.dumps(first))
    if size > LONGEST:
        product = "node selector terms in annotation clusterSelector times those in the spec"
        raise CannotMutate(f"{product} are about {size:,} bytes; the limit is {LONGEST:,}")
    return [_conjunction(one, other) for one in first for other in second]


def _conjunction(one: Manifest, other: Manifest) -> Manifest:
    """Return the term that holds if both terms hold."""
    both = {field: [*(one.get(field) or ()), *(other.get(field) or ())] for field in LISTS}
    return _in_go_order({**one, **other, **both})


def _in_go_order(content: Manifest) -> Manifest:
    """Return content with fields in the order of Go's types, without those that Go omits when empty."""
    fields = ((field, content[field]) for field in sorted(content, key=_RANK.__getitem__))
    return {
        field: _items(value) if isinstance(value, list) else value for field, value in fields if value or value == 0
    }


def _items(values: list[object]) -> list[object]:
    return [_in_go_order(value) if isinstance(value, dict) else value for value in values]
