"""Check of volumes: bound ones have to be reachable from the node, others available or makeable there."""

from collections.abc import Mapping, Sequence
from typing import Any

from tensile.objects import Manifest, annotations, labels, metadata
from tensile.policy.placing.check import Nowhere, Prepared
from tensile.policy.placing.claims import SELECTED_NODE, Claims, claims_of, class_of
from tensile.policy.placing.selectors import Labels, NodeTest, label_test, node_test, requirement_test
from tensile.policy.placing.snapshot import Node, Pod, Snapshot, Storage
from tensile.quantities import parse

ELSEWHERE = "node(s) didn't match PersistentVolume's node affinity"
UNBINDABLE = "node(s) didn't find available persistent volumes to bind"
NO_SPACE = "node(s) did not have enough free storage"
MISSING = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
_NO_PROVISIONER = "kubernetes.io/no-provisioner"


def volumes(pod: Pod, snapshot: Snapshot) -> Prepared | Nowhere | None:
    """Judge by the pod's volumes, there and yet to be."""
    if not pod.claims:
        return None
    storage = snapshot.storage
    found = claims_of(pod, storage)
    if isinstance(found, Nowhere):
        return found
    bound = [storage.volumes.get(claim["spec"]["volumeName"]) for claim in found.bound]
    tests = [_affinity(volume) for volume in bound if volume is not None]
    offers = {class_of(claim): _offered(class_of(claim), storage) for claim in found.delayed}

    def judge(node: Node) -> tuple[str, ...]:
        """Look at what is there first."""
        reasons = _bound_reasons(bound, tests, node)
        return (*reasons, *_delayed_reasons(found, offers, node, storage))

    return Prepared(judge)


def _bound_reasons(bound: Sequence[Manifest | None], tests: Sequence[NodeTest], node: Node) -> tuple[str, ...]:
    elsewhere = (ELSEWHERE,) if not all(test("", node.labels) for test in tests) else ()
    return elsewhere or ((MISSING,) if None in bound else ())


def _delayed_reasons(
    claims: Claims, offers: Mapping[str, Sequence[Manifest]], node: Node, storage: Storage
) -> tuple[str, ...]:
    """Say why claims that wait for the pod would not get a volume on the node."""
    chosen: set[str] = set()
    to_make = []
    selected = [(claim, annotations(claim).get(SELECTED_NODE)) for claim in claims.delayed]
    if any(name not in (None, node.name) for _, name in selected):
        return (UNBINDABLE,)
    for claim, name in sorted(selected, key=lambda one: _size(one[0])):
        volume = None if name else _match(claim, offers[class_of(claim)], node, chosen)
        if volume is None:
            to_make.append(claim)
        else:
            chosen.add(metadata(volume)["name"])
    return next((reason for claim in to_make if (reason := _unmakeable(claim, node, storage))), ())


def _unmakeable(claim: Manifest, node: Node, storage: Storage) -> tuple[str, ...]:
    """Say why no volume can be made for a claim on the node."""
    found = storage.classes[class_of(claim)]
    provisioner = found.get("provisioner") or _NO_PROVISIONER
    terms = found.get("allowedTopologies") or ()
    if provisioner == _NO_PROVISIONER or (terms and not any(_allows(term, node.labels) for term in terms)):
        return (UNBINDABLE,)
    return () if _has_space(claim, provisioner, node, storage) else (NO_SPACE,)


def _allows(term: Mapping[str, Any], node_labels: Labels) -> bool:
    """Say whether a class allows volumes for nodes with these labels."""
    wanted = term.get("matchLabelExpressions") or ()
    return bool(wanted) and all(requirement_test({**one, "operator": "In"})(node_labels) for one in wanted)


def _has_space(claim: Manifest, provisioner: str, node: Node, storage: Storage) -> bool:
    """Say whether a driver that tells of its free capacity has enough for the node."""
    if provisioner not in storage.tracked or not _size(claim):
        return True
    return any(
        one.get("storageClassName") == class_of(claim)
        and parse(str(one.get("maximumVolumeSize") or one.get("capacity") or 0)) >= _size(claim)
        and label_test(one.get("nodeTopology"))(node.labels)
        for one in storage.capacities
    )


def _offered(name: str, storage: Storage) -> list[Manifest]:
    """Give the volumes of a class that are there and not going."""
    found = (one for one in storage.volumes.values() if not metadata(one).get("deletionTimestamp"))
    return [one for one in found if class_of(one) == name]


def _match(claim: Manifest, offered: Sequence[Manifest], node: Node, taken: set[str]) -> Manifest | None:
    """Find a volume for a claim: the one that is kept for it, or the smallest that does."""
    wanted = claim["spec"]
    fitting = [
        one
        for one in offered
        if metadata(one)["name"] not in taken
        and _capacity(one) >= _size(claim)
        and _kind(one["spec"]) == _kind(wanted)
        and _is_free(one, claim)
    ]
    kept = next((one for one in fitting if one["spec"].get("claimRef")), None)
    if kept is not None:
        return kept if _affinity(kept)("", node.labels) else None
    test = label_test(wanted["selector"]) if wanted.get("selector") else None
    found = (
        one
        for one in fitting
        if (one.get("status") or {}).get("phase") == "Available"
        and (test is None or test(labels(one)))
        and set(wanted.get("accessModes") or ()) <= set(one["spec"].get("accessModes") or ())
        and _affinity(one)("", node.labels)
    )
    return min(found, key=_capacity, default=None)


def _is_free(volume: Manifest, claim: Manifest) -> bool:
    """Say whether a volume is kept for nobody else."""
    kept = volume["spec"].get("claimRef")
    if not kept:
        return True
    same = (kept.get("namespace"), kept.get("name")) == (metadata(claim).get("namespace"), metadata(claim)["name"])
    return same and (not kept.get("uid") or kept["uid"] == metadata(claim).get("uid"))


def _kind(spec: Mapping[str, Any]) -> tuple[str, str]:
    """Give what has to be the same in a claim and its volume."""
    return spec.get("volumeMode") or "Filesystem", spec.get("volumeAttributesClassName") or ""


def _affinity(volume: Manifest) -> NodeTest:
    """Make a function of the nodes that a volume can be reached from."""
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    return node_test(required.get("nodeSelectorTerms") or ()) if required else _anywhere


def _anywhere(_name: str, _labels: Labels) -> bool:
    return True


def _size(claim: Manifest) -> int:
    """Give how much a claim asks for, in thousandths of a byte."""
    return parse(str(((claim["spec"].get("resources") or {}).get("requests") or {}).get("storage") or 0))


def _capacity(volume: Manifest) -> int:
    return parse(str((volume["spec"].get("capacity") or {}).get("storage") or 0))
