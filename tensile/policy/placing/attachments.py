"""Checks of attaching: how many volumes a driver attaches to one node, and disks that only one pod may have."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from tensile.objects import Manifest
from tensile.policy.placing.check import Nowhere, Prepared
from tensile.policy.placing.claims import claim_of, class_of, volume_of
from tensile.policy.placing.snapshot import Node, Pod, Snapshot, Storage

TOO_MANY = "node(s) exceed max volume count"
DISK_TAKEN = "node(s) had no available disk"
CLAIM_TAKEN = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
_ONE_POD = "ReadWriteOncePod"


def limits(pod: Pod, snapshot: Snapshot) -> Prepared | None:
    """Judge by how many volumes of each driver the node would have."""
    storage = snapshot.storage
    wanted = _attachable(pod, storage) if pod.claims and storage.limits else {}
    if not wanted:
        return None

    def judge(node: Node) -> tuple[str, ...]:
        """Count what is attached, and what pods there are waiting for."""
        most = storage.limits.get(node.name)
        return (TOO_MANY,) if most and _exceeds(wanted, node, most, storage) else ()

    return Prepared(judge)


def restricted(pod: Pod, snapshot: Snapshot) -> Prepared | Nowhere | None:
    """Judge by disks and claims that cannot be shared."""
    storage = snapshot.storage
    mounted = [name for name in pod.claims if name not in pod.own_claims]
    missing = next((name for name in mounted if claim_of(name, pod, storage) is None), None)
    if missing is not None:
        return Nowhere(f'persistentvolumeclaim "{missing}" not found')
    alone = {name for name in mounted if _ONE_POD in _modes(claim_of(name, pod, storage))}
    is_taken = any(alone & set(other.claims) for other in _in_namespace(pod.namespace, snapshot)) if alone else False
    if not pod.disks and not is_taken:
        return None

    def judge(node: Node) -> tuple[str, ...]:
        """Look at the disks of the pods on the node."""
        if any(_collide(one, other) for there in node.pods.values() for other in there.disks for one in pod.disks):
            return (DISK_TAKEN,)
        return (CLAIM_TAKEN,) if is_taken else ()

    return Prepared(judge)


def _exceeds(wanted: dict[str, str], node: Node, limit: Mapping[str, int], storage: Storage) -> bool:
    """Say whether a driver would have more volumes on the node than it can."""
    there: dict[str, str] = {}
    for pod in node.pods.values():
        there.update(_attachable(pod, storage))
    present = Counter((there | dict(storage.attached.get(node.name, {}))).values())
    new = Counter(driver for name, driver in wanted.items() if name not in there)
    return any(driver in limit and present[driver] + count > limit[driver] for driver, count in new.items())


def _attachable(pod: Pod, storage: Storage) -> dict[str, str]:
    """Give the driver of each of a pod's volumes that CSI attaches, by "DRIVER/HANDLE"."""
    found = {}
    for name in pod.claims:
        claim = claim_of(name, pod, storage)
        driver, handle = _driver(claim, pod, storage) if claim else ("", "")
        if driver and handle:
            found[f"{driver}/{handle}"] = driver
    return found


def _driver(claim: Manifest, pod: Pod, storage: Storage) -> tuple[str, str]:
    """Give driver and handle of a claim's volume; of one that is yet to be made, a handle that stands for it."""
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
    """Say whether two volumes are one disk that only one of the pods may write to."""
    return any(kind in one and kind in other and same(one[kind], other[kind]) for kind, same in _SAME.items())


def _read_only(one: Manifest, other: Manifest) -> bool:
    return bool(one.get("readOnly") and other.get("readOnly"))


def _same_image(one: Manifest, other: Manifest) -> bool:
    """Say whether two are one image in one pool of a Ceph cluster."""
    place = [(each.get("pool") or "rbd", each.get("image")) for each in (one, other)]
    return place[0] == place[1] and not set(one.get("monitors") or ()).isdisjoint(other.get("monitors") or ())


_SAME: dict[str, Callable[[Manifest, Manifest], bool]] = {
    "gcePersistentDisk": lambda one, other: one["pdName"] == other["pdName"] and not _read_only(one, other),
    "awsElasticBlockStore": lambda one, other: one["volumeID"] == other["volumeID"],
    "iscsi": lambda one, other: one["iqn"] == other["iqn"] and not _read_only(one, other),
    "rbd": lambda one, other: _same_image(one, other) and not _read_only(one, other),
}
