"""Generates random storage of a cluster: classes, volumes, claims, and what CSI drivers report of nodes."""

from random import Random
from typing import Any, NamedTuple

Manifest = dict[str, Any]
HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
DRIVER = "csi.example.com"
TRACKED = "tracked.example.com"


def likely(chance: Random, share: float) -> bool:
    """Return True in that share of cases."""
    return chance.random() < share


class RandomStorage(NamedTuple):
    """Storage of a cluster; `bound` and `unbound` are names of claims with and without a volume."""

    classes: list[Manifest]
    volumes: list[Manifest]
    claims: list[Manifest]
    nodes: list[Manifest]
    attachments: list[Manifest]
    capacities: list[Manifest]
    bound: list[str]
    unbound: list[str]

    def kind(self, name: str) -> str:
        """Return the full name of a class."""
        return next(one["metadata"]["name"] for one in self.classes if one["metadata"]["name"].startswith(name))


def random_storage(chance: Random, mark: str, nodes: list[str]) -> RandomStorage:
    """Return the storage of a cluster with these nodes; all names but those of claims contain the mark."""
    kinds = {
        "later": DRIVER,
        "made": "kubernetes.io/no-provisioner",
        "tracked": TRACKED,
        "now": DRIVER,
        "zoned": DRIVER,
    }
    classes = [storage_class(f"{name}-{mark}", driver) for name, driver in kinds.items()]
    volumes, claims = [], []
    for number in range(6):
        volume, claim = bound_pair(chance, mark, number, nodes)
        volumes.append(volume)
        claims.append(claim)
    free = [volume_of(chance, f"{mark}-free-{number}", f"made-{mark}", nodes) for number in range(chance.randint(0, 3))]
    wanting = [claim_of(chance, f"want-{name}", f"{name}-{mark}") for name in kinds]
    return RandomStorage(
        classes,
        volumes + free,
        claims + wanting,
        [csi_node(chance, name) for name in nodes if likely(chance, 0.8)],
        [attachment(f"{mark}-{number}", chance.choice(nodes), chance.choice(volumes)) for number in range(2)],
        [capacity(chance, f"{mark}-{number}", f"tracked-{mark}") for number in range(chance.randint(0, 2))],
        [one["metadata"]["name"] for one in claims],
        [one["metadata"]["name"] for one in wanting],
    )


def storage_class(name: str, driver: str) -> Manifest:
    """Return a class; `now` binds immediately, `zoned` allows only two zones for its volumes."""
    mode = "Immediate" if name.startswith("now") else "WaitForFirstConsumer"
    made: Manifest = {"metadata": {"name": name}, "provisioner": driver, "volumeBindingMode": mode}
    if name.startswith("zoned"):
        made["allowedTopologies"] = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}]}]
    return made


def volume_of(chance: Random, name: str, kind: str, nodes: list[str]) -> Manifest:
    """Return a volume: local to nodes, in a zone, or of a CSI driver."""
    spec: Manifest = {
        "capacity": {"storage": chance.choice(("1Gi", "5Gi"))},
        "accessModes": chance.choice((["ReadWriteOnce"], ["ReadWriteMany", "ReadWriteOnce"])),
        "storageClassName": kind,
        "persistentVolumeReclaimPolicy": "Retain",
    }
    labels = {}
    kind_of_volume = chance.choices(("local", "zoned", "csi"), (3, 2, 5))[0]
    if kind_of_volume == "local":
        spec["local"] = {"path": "/x"}
        spec["nodeAffinity"] = pinned(HOSTNAME, chance.sample(nodes, chance.randint(1, len(nodes))))
    elif kind_of_volume == "zoned":
        spec["hostPath"] = {"path": "/x"}
        labels[ZONE] = chance.choice(("a", "b", "a__b"))
    else:
        spec["csi"] = {"driver": DRIVER, "volumeHandle": name}
        if likely(chance, 0.3):
            spec["nodeAffinity"] = pinned(ZONE, ["a", "c"])
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"phase": "Available"}}


def pinned(key: str, values: list[str]) -> Manifest:
    """Return the node affinity of a volume."""
    return {
        "required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "In", "values": values}]}]}
    }


def bound_pair(chance: Random, mark: str, number: int, nodes: list[str]) -> tuple[Manifest, Manifest]:
    """Return a volume and the claim that is bound to it; in rare cases the claim's volume does not exist."""
    volume = volume_of(chance, f"{mark}-{number}", "", nodes)
    name = f"have-{number}"
    modes = ["ReadWriteOncePod"] if likely(chance, 0.15) else ["ReadWriteOnce"]
    volume["spec"] |= {
        "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "main", "name": name},
        "accessModes": modes,
    }
    volume["status"] = {"phase": "Bound"}
    spec = {
        "accessModes": modes,
        "storageClassName": "",
        "resources": {"requests": {"storage": "1Gi"}},
        "volumeName": volume["metadata"]["name"] if likely(chance, 0.95) else f"{mark}-lost",
    }
    notes = {"pv.kubernetes.io/bind-completed": "yes"} if likely(chance, 0.95) else {}
    return volume, {"metadata": {"name": name, "annotations": notes}, "spec": spec, "status": {"phase": "Bound"}}


def claim_of(chance: Random, name: str, kind: str) -> Manifest:
    """Return a claim without a volume."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": kind,
        "resources": {"requests": {"storage": chance.choice(("1Gi", "2Gi", "20Gi"))}},
    }
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Pending"}}


def csi_node(chance: Random, name: str) -> Manifest:
    """Return the CSINode of a node, with its drivers."""
    driver: Manifest = {"name": DRIVER, "nodeID": name, "topologyKeys": []}
    if likely(chance, 0.8):
        driver["allocatable"] = {"count": chance.randint(1, 3)}
    return {"metadata": {"name": name}, "spec": {"drivers": [driver]}}


def attachment(name: str, node: str, volume: Manifest) -> Manifest:
    """Return the attachment of a volume."""
    spec = {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume["metadata"]["name"]}}
    return {"metadata": {"name": name}, "spec": spec}


def capacity(chance: Random, name: str, kind: str) -> Manifest:
    """Return the storage capacity of a class in a zone."""
    return {
        "metadata": {"name": name, "namespace": "default"},
        "storageClassName": kind,
        "nodeTopology": {"matchLabels": {ZONE: chance.choice("abc")}},
        "capacity": chance.choice(("1Gi", "10Gi", "100Gi")),
    }
