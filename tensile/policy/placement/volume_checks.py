"""Checks of volumes: claims, reachability and provisioning, attach limits, exclusive disks, and zones.

kube-scheduler makes each of these checks in a plugin of its own; they share the claims of the pod.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tensile.objects import Manifest, annotations, controller_of, labels, metadata, uid
from tensile.policy.placement.selectors import Labels, NodeTest, label_test, node_test, requirement_test
from tensile.policy.placement.snapshot import Node, NoNodeFits, Pod, PreparedCheck, Snapshot, Storage
from tensile.resources import parse

UNBOUND = "pod has unbound immediate PersistentVolumeClaims"
ELSEWHERE = "node(s) didn't match PersistentVolume's node affinity"
UNBINDABLE = "node(s) didn't find available persistent volumes to bind"
NO_SPACE = "node(s) did not have enough free storage"
MISSING = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
TOO_MANY = "node(s) exceed max volume count"
DISK_TAKEN = "node(s) had no available disk"
CLAIM_TAKEN = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
CONFLICT = "node(s) had no available volume zone"
DELAYED = "WaitForFirstConsumer"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
_BOUND = "pv.kubernetes.io/bind-completed"
_BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
DEFAULT_CLASS_KEYS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
"""The annotations of a class for claims that name none; the apiserver accepts either."""
_NO_PROVISIONER = "kubernetes.io/no-provisioner"
_ONE_POD = "ReadWriteOncePod"
_BETA = "failure-domain.beta.kubernetes.io/"
_STABLE = "topology.kubernetes.io/"
_KEYS = (*(_BETA + name for name in ("zone", "region")), *(_STABLE + name for name in ("zone", "region")))
Zone = tuple[str, frozenset[str]]
"""A label key, and its permitted values."""


class Claims(NamedTuple):
    """A pod's claims: those that are bound, and those that are bound once the pod has a node."""

    bound: tuple[Manifest, ...]
    delayed: tuple[Manifest, ...]


def claims_of(pod: Pod, storage: Storage) -> Claims | NoNodeFits:
    """Return a pod's claims; Nowhere with the claim that the pod must wait for on any node."""
    found = [(name, claim_of(name, pod, storage)) for name in pod.claims]
    for name, claim in found:
        if flaw := _claim_problem(name, claim, pod):
            return NoNodeFits(flaw)
    claims = [claim for _, claim in found if claim is not None]
    bound = tuple(claim for claim in claims if is_bound(claim))
    rest = tuple(claim for claim in claims if not is_bound(claim))
    if any(volume_of(claim) or not is_delayed(claim, storage) for claim in rest):
        return NoNodeFits(UNBOUND)
    return Claims(bound, rest)


def claim_of(name: str, pod: Pod, storage: Storage) -> Manifest | None:
    """Return a claim of the pod; for a pod that does not exist yet, one from a template is built from that template."""
    found = storage.claims.get((pod.namespace, name))
    if found is None and name in pod.own_claims and not pod.uid:
        template = pod.own_claims[name]["volumeClaimTemplate"]
        default = metadata(default_class(storage.classes.values())).get("name")
        spec = {**({"storageClassName": default} if default else {}), **template["spec"]}
        return {"metadata": {**(template.get("metadata") or {}), "name": name}, "spec": spec}
    return found


def default_class(classes: Iterable[Manifest]) -> Manifest:
    """Return the class that the apiserver sets in a claim that names none, {} for none: of several, the newest."""
    found = [one for one in classes if any(annotations(one).get(name) == "true" for name in DEFAULT_CLASS_KEYS)]
    found.sort(key=lambda one: str(metadata(one)["name"]))
    return max(found, key=lambda one: str(metadata(one).get("creationTimestamp", "")), default={})


def volume_of(claim: Manifest) -> str:
    """Return the name of the claim's volume, "" for none."""
    return claim["spec"].get("volumeName") or ""


def class_of(manifest: Manifest) -> str:
    """Return the storage class of a claim or a volume, "" for none."""
    beta = annotations(manifest).get(_BETA_CLASS)
    return (manifest["spec"].get("storageClassName") or "") if beta is None else beta


def is_bound(claim: Manifest) -> bool:
    """Report whether a claim is completely bound to its volume."""
    return bool(volume_of(claim)) and _BOUND in annotations(claim)


def is_delayed(claim: Manifest, storage: Storage) -> bool:
    """Report whether a claim is bound only once its pod has a node (WaitForFirstConsumer)."""
    found = storage.classes.get(class_of(claim))
    return found is not None and found.get("volumeBindingMode") == DELAYED


def _claim_problem(name: str, claim: Manifest | None, pod: Pod) -> str:
    """Return why a pod must wait for a claim, "" if it need not."""
    is_own = name in pod.own_claims
    if claim is None:
        waiting = f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
        return waiting if is_own else f'persistentvolumeclaim "{name}" not found'
    if (claim.get("status") or {}).get("phase") == "Lost":
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{volume_of(claim)}"'
    if metadata(claim).get("deletionTimestamp"):
        return f'persistentvolumeclaim "{name}" is being deleted'
    if is_own and uid(claim) and controller_of(claim).get("uid") != pod.uid:
        return f"PVC {pod.namespace}/{name} was not created for pod {pod.namespace}/{pod.name} (pod is not owner)"
    return ""


def volumes(pod: Pod, snapshot: Snapshot) -> PreparedCheck | NoNodeFits | None:
    """Check that bound volumes are reachable from the node, and unbound claims can be bound or provisioned there."""
    if not pod.claims:
        return None
    storage = snapshot.storage
    found = claims_of(pod, storage)
    if isinstance(found, NoNodeFits):
        return found
    bound = [storage.volumes.get(claim["spec"]["volumeName"]) for claim in found.bound]
    tests = [_affinity(volume) for volume in bound if volume is not None]
    candidates = {class_of(claim): _volumes_of_class(class_of(claim), storage) for claim in found.delayed}

    def judge(node: Node) -> tuple[str, ...]:
        """Check bound volumes first."""
        reasons = _bound_reasons(bound, tests, node)
        return (*reasons, *_delayed_reasons(found, candidates, node, storage))

    return PreparedCheck(judge)


def _bound_reasons(bound: Sequence[Manifest | None], tests: Sequence[NodeTest], node: Node) -> tuple[str, ...]:
    elsewhere = (ELSEWHERE,) if not all(test("", node.labels) for test in tests) else ()
    return elsewhere or ((MISSING,) if None in bound else ())


def _delayed_reasons(
    claims: Claims, candidates: Mapping[str, Sequence[Manifest]], node: Node, storage: Storage
) -> tuple[str, ...]:
    """Return why claims that wait for the pod would not get a volume on the node."""
    chosen: set[str] = set()
    to_provision = []
    selected = [(claim, annotations(claim).get(SELECTED_NODE)) for claim in claims.delayed]
    if any(name not in (None, node.name) for _, name in selected):
        return (UNBINDABLE,)
    for claim, name in sorted(selected, key=lambda one: _size(one[0])):
        volume = None if name else _match(claim, candidates[class_of(claim)], node, chosen)
        if volume is None:
            to_provision.append(claim)
        else:
            chosen.add(metadata(volume)["name"])
    return next((reason for claim in to_provision if (reason := _provisioning_reasons(claim, node, storage))), ())


def _provisioning_reasons(claim: Manifest, node: Node, storage: Storage) -> tuple[str, ...]:
    """Return why no volume can be provisioned for a claim on the node."""
    found = storage.classes[class_of(claim)]
    provisioner = found.get("provisioner") or _NO_PROVISIONER
    terms = found.get("allowedTopologies") or ()
    if provisioner == _NO_PROVISIONER or (terms and not any(_allows(term, node.labels) for term in terms)):
        return (UNBINDABLE,)
    return () if _has_space(claim, provisioner, node, storage) else (NO_SPACE,)


def _allows(term: Mapping[str, Any], node_labels: Labels) -> bool:
    """Report whether a term of a class's allowedTopologies matches node labels."""
    wanted = term.get("matchLabelExpressions") or ()
    return bool(wanted) and all(requirement_test({**one, "operator": "In"})(node_labels) for one in wanted)


def _has_space(claim: Manifest, provisioner: str, node: Node, storage: Storage) -> bool:
    """Report whether a driver that publishes its free capacity has enough for the node."""
    if provisioner not in storage.tracked or not _size(claim):
        return True
    return any(
        one.get("storageClassName") == class_of(claim)
        and parse(str(one.get("maximumVolumeSize") or one.get("capacity") or 0)) >= _size(claim)
        and label_test(one.get("nodeTopology"))(node.labels)
        for one in storage.capacities
    )


def _volumes_of_class(name: str, storage: Storage) -> list[Manifest]:
    """Return the volumes of a class that are not being deleted."""
    found = (one for one in storage.volumes.values() if not metadata(one).get("deletionTimestamp"))
    return [one for one in found if class_of(one) == name]


def _match(claim: Manifest, candidates: Sequence[Manifest], node: Node, taken: set[str]) -> Manifest | None:
    """Return a volume for a claim: the one reserved for it, or the smallest that fits."""
    wanted = claim["spec"]
    fitting = [
        one
        for one in candidates
        if metadata(one)["name"] not in taken
        and _capacity(one) >= _size(claim)
        and _kind(one["spec"]) == _kind(wanted)
        and _is_free(one, claim)
    ]
    reserved = next((one for one in fitting if one["spec"].get("claimRef")), None)
    if reserved is not None:
        return reserved if _affinity(reserved)("", node.labels) else None
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
    """Report whether a volume is not reserved for another claim."""
    reserved = volume["spec"].get("claimRef")
    if not reserved:
        return True
    same = (reserved.get("namespace"), reserved.get("name")) == (
        metadata(claim).get("namespace"),
        metadata(claim)["name"],
    )
    return same and (not reserved.get("uid") or reserved["uid"] == metadata(claim).get("uid"))


def _kind(spec: Mapping[str, Any]) -> tuple[str, str]:
    """Return what must be equal in a claim and its volume."""
    return spec.get("volumeMode") or "Filesystem", spec.get("volumeAttributesClassName") or ""


def _affinity(volume: Manifest) -> NodeTest:
    """Return the function that selects the nodes from which a volume is reachable."""
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    return node_test(required.get("nodeSelectorTerms") or ()) if required else _any_node


def _any_node(_name: str, _labels: Labels) -> bool:
    return True


def _size(claim: Manifest) -> int:
    """Return the size that a claim requests, in thousandths of a byte."""
    return parse(str(((claim["spec"].get("resources") or {}).get("requests") or {}).get("storage") or 0))


def _capacity(volume: Manifest) -> int:
    return parse(str((volume["spec"].get("capacity") or {}).get("storage") or 0))


def limits(pod: Pod, snapshot: Snapshot) -> PreparedCheck | None:
    """Check the number of volumes of each driver that the node would have."""
    storage = snapshot.storage
    wanted = _attachable(pod, storage) if pod.claims and storage.limits else {}
    if not wanted:
        return None

    def judge(node: Node) -> tuple[str, ...]:
        """Count attached volumes, and those of pods on the node."""
        node_limits = storage.limits.get(node.name)
        return (TOO_MANY,) if node_limits and _exceeds(wanted, node, node_limits, storage) else ()

    return PreparedCheck(judge)


def restricted(pod: Pod, snapshot: Snapshot) -> PreparedCheck | NoNodeFits | None:
    """Check disks and claims that cannot be shared."""
    storage = snapshot.storage
    mounted = [name for name in pod.claims if name not in pod.own_claims]
    missing = next((name for name in mounted if claim_of(name, pod, storage) is None), None)
    if missing is not None:
        return NoNodeFits(f'persistentvolumeclaim "{missing}" not found')
    exclusive = {name for name in mounted if _ONE_POD in _modes(claim_of(name, pod, storage))}
    is_taken = (
        any(exclusive & set(other.claims) for other in _in_namespace(pod.namespace, snapshot)) if exclusive else False
    )
    if not pod.disks and not is_taken:
        return None

    def judge(node: Node) -> tuple[str, ...]:
        """Check the disks of the pods on the node."""
        if any(_collide(own, theirs) for other in node.pods.values() for theirs in other.disks for own in pod.disks):
            return (DISK_TAKEN,)
        return (CLAIM_TAKEN,) if is_taken else ()

    return PreparedCheck(judge)


def _exceeds(wanted: dict[str, str], node: Node, limit: Mapping[str, int], storage: Storage) -> bool:
    """Report whether a driver would exceed its limit of volumes on the node."""
    mounted: dict[str, str] = {}
    for pod in node.pods.values():
        mounted.update(_attachable(pod, storage))
    attached = Counter((mounted | dict(storage.attached.get(node.name, {}))).values())
    new = Counter(driver for name, driver in wanted.items() if name not in mounted)
    return any(driver in limit and attached[driver] + count > limit[driver] for driver, count in new.items())


def _attachable(pod: Pod, storage: Storage) -> dict[str, str]:
    """Return the CSI volumes of a pod: "DRIVER/HANDLE" to driver."""
    found = {}
    for name in pod.claims:
        claim = claim_of(name, pod, storage)
        driver, handle = _driver(claim, pod, storage) if claim else ("", "")
        if driver and handle:
            found[f"{driver}/{handle}"] = driver
    return found


def _driver(claim: Manifest, pod: Pod, storage: Storage) -> tuple[str, str]:
    """Return driver and handle of a claim's volume; a placeholder handle for a volume that is not provisioned yet."""
    volume = storage.volumes.get(volume_of(claim))
    if volume is not None:
        source = volume["spec"].get("csi") or {}
        return source.get("driver", ""), source.get("volumeHandle", "")
    found = storage.classes.get(class_of(claim)) or {}
    return found.get("provisioner") or "", f"claim {pod.namespace}/{claim['metadata']['name']}"


def _in_namespace(namespace: str, snapshot: Snapshot) -> Iterable[Pod]:
    pods = (pod for node in snapshot.nodes.values() for pod in node.pods.values())
    return (pod for pod in pods if pod.namespace == namespace)


def _modes(claim: Manifest | None) -> list[str]:
    return list(claim["spec"].get("accessModes") or ()) if claim else []


def _collide(one: Manifest, other: Manifest) -> bool:
    """Report whether two volumes are the same disk, which only one of the pods may write to."""
    return any(kind in one and kind in other and same(one[kind], other[kind]) for kind, same in _SAME.items())


def _read_only(one: Manifest, other: Manifest) -> bool:
    return bool(one.get("readOnly") and other.get("readOnly"))


def _same_image(one: Manifest, other: Manifest) -> bool:
    """Report whether two volumes are the same image in the same pool of a Ceph cluster."""
    images = [(volume.get("pool") or "rbd", volume.get("image")) for volume in (one, other)]
    return images[0] == images[1] and not set(one.get("monitors") or ()).isdisjoint(other.get("monitors") or ())


_SAME: dict[str, Callable[[Manifest, Manifest], bool]] = {
    "gcePersistentDisk": lambda one, other: one["pdName"] == other["pdName"] and not _read_only(one, other),
    "awsElasticBlockStore": lambda one, other: one["volumeID"] == other["volumeID"],
    "iscsi": lambda one, other: one["iqn"] == other["iqn"] and not _read_only(one, other),
    "rbd": lambda one, other: _same_image(one, other) and not _read_only(one, other),
}


def zones(pod: Pod, snapshot: Snapshot) -> PreparedCheck | NoNodeFits | None:
    """Check the zones of bound volumes; a node without any zone label passes."""
    names = [name for name in pod.claims if name not in pod.own_claims]
    found: list[Zone] = []
    for claim in (claim_of(name, pod, snapshot.storage) for name in names):
        claim_zones = _zones(claim, snapshot.storage) if claim else ()
        if isinstance(claim_zones, NoNodeFits):
            return claim_zones
        found += claim_zones
    if not found:
        return None

    def judge(node: Node) -> tuple[str, ...]:
        """Compare the labels of the node."""
        has_zone = any(key in node.labels for key in _KEYS)
        return (CONFLICT,) if has_zone and not all(_is_in(node, *zone) for zone in found) else ()

    return PreparedCheck(judge, lambda node: ", ".join(_zone_details(node, found)))


def _zones(claim: Manifest, storage: Storage) -> Iterable[Zone] | NoNodeFits:
    """Return the zones of a claim's volume."""
    name = volume_of(claim)
    if not name:
        kind = storage.classes.get(class_of(claim))
        return () if kind and kind.get("volumeBindingMode") == DELAYED else NoNodeFits("PersistentVolume had no name")
    volume = storage.volumes.get(name)
    if volume is None:
        return NoNodeFits(f'persistentvolume "{name}" not found')
    volume_labels = labels(volume)
    return [
        (key, frozenset(part.strip() for part in volume_labels[key].split("__")))
        for key in _KEYS
        if key in volume_labels
    ]


def _is_in(node: Node, key: str, values: frozenset[str]) -> bool:
    """Report whether a node is in a zone; for the beta label, the stable label of the node counts too."""
    return node.labels.get(key, node.labels.get(key.replace(_BETA, _STABLE))) in values


def _zone_details(node: Node, found: Iterable[Zone]) -> Iterator[str]:
    return (f"volume in {' or '.join(sorted(values))}" for key, values in found if not _is_in(node, key, values))
