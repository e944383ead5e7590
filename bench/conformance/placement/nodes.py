"""Generates random clusters: nodes with labels, taints and little capacity, and the pods on them."""

from random import Random
from typing import Any, NamedTuple

from bench.conformance.placement.random_storage import RandomStorage, likely, random_storage

Manifest = dict[str, Any]

ZONES = ("a", "b", "c")
APPS = ("web", "db", "cache")
NAMESPACES = ("main", "side")
ZONE = "topology.kubernetes.io/zone"
HOSTNAME = "kubernetes.io/hostname"
GPU = "example.com/gpu"
FREED = "bench.example.com/kept"
"""A finalizer, so that a deleted pod stays."""


class RandomCluster(NamedTuple):
    """A cluster: its nodes, the pods on them, and its storage. `mark` is in every name."""

    mark: str
    nodes: list[Manifest]
    pods: list[Manifest]
    random_storage: RandomStorage


def random_cluster(chance: Random, mark: str) -> RandomCluster:
    """Return a random cluster."""
    nodes = [node(chance, f"{mark}-{number}") for number in range(chance.randint(3, 8))]
    names = [one["metadata"]["name"] for one in nodes]
    stock = random_storage(chance, mark, names)
    pods = [
        resident(chance, name, stock, f"r{name}-{number}") for name in names for number in range(chance.randint(0, 4))
    ]
    return RandomCluster(mark, nodes, pods, stock)


def node(chance: Random, name: str) -> Manifest:
    """Return a node, which may have no zone, no hostname label or no GPU."""
    labels = {} if likely(chance, 0.05) else {HOSTNAME: name}
    if likely(chance, 0.85):
        labels[ZONE] = chance.choice(ZONES)
    if likely(chance, 0.6):
        labels["disk"] = chance.choice(("ssd", "hdd"))
    if likely(chance, 0.6):
        labels["generation"] = chance.choice(("1", "2", "3", "10", "x"))
    room = {"cpu": chance.choice(("1", "2", "3500m", "8")), "memory": chance.choice(("1Gi", "2Gi", "8Gi"))}
    room |= {"pods": str(chance.choice((2, 4, 6, 20))), "ephemeral-storage": chance.choice(("1Gi", "10Gi"))}
    if likely(chance, 0.5):
        room[GPU] = str(chance.randint(0, 4))
    if likely(chance, 0.3):
        room["hugepages-2Mi"] = chance.choice(("64Mi", "1Gi"))
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"unschedulable": likely(chance, 0.1), "taints": taints(chance)},
        "status": {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def taints(chance: Random) -> list[Manifest]:
    """Return the taints of a node, in most cases none."""
    found = {}
    while likely(chance, 0.3):
        one = {
            "key": chance.choice(("team", "gpu")),
            "effect": chance.choice(("NoSchedule", "NoExecute", "PreferNoSchedule")),
        }
        if likely(chance, 0.7):
            one["value"] = chance.choice(("red", "blue"))
        found[one["key"], one["effect"]] = one
    return list(found.values())


def resident(chance: Random, name: str, stock: RandomStorage, own: str) -> Manifest:
    """Return a pod on a node, which may use ports or volumes, repel other pods, have ended, or be terminating."""
    spec: Manifest = {"nodeName": name, "containers": [container(chance)], "terminationGracePeriodSeconds": 0}
    metadata: Manifest = {"name": own, "namespace": chance.choice(NAMESPACES), "labels": pod_labels(chance)}
    if likely(chance, 0.15):
        spec["affinity"] = {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [affinity_term(chance)]}
        }
    if likely(chance, 0.2):
        claim = chance.choice(stock.bound)
        spec["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
    if likely(chance, 0.05):
        spec.setdefault("volumes", []).append(disk(chance))
    life = chance.choices(("runs", "ending", "ended"), (8, 1, 1))[0]
    if life == "ending":
        metadata["finalizers"] = [FREED]
    status = {"phase": "Succeeded"} if life == "ended" else {}
    return {"metadata": metadata, "spec": spec, "status": status}


def disk(chance: Random) -> Manifest:
    """Return an iSCSI volume, which not all pods can share."""
    portal = {"targetPortal": "10.0.0.1", "iqn": f"iqn.2020-01.com.example:{chance.choice('ab')}", "lun": 0}
    return {"name": "disk", "iscsi": portal | {"readOnly": likely(chance, 0.5)}}


def container(chance: Random, name: str = "main") -> Manifest:
    """Return a container that requests a little, or nothing; some use a host port."""
    requests = {}
    if likely(chance, 0.8):
        requests["cpu"] = chance.choice(("100m", "250m", "500m", "1"))
    if likely(chance, 0.8):
        requests["memory"] = chance.choice(("64Mi", "256Mi", "512Mi", "700M"))
    if likely(chance, 0.15):
        requests["ephemeral-storage"] = chance.choice(("200Mi", "1Gi"))
    resources: Manifest = {"requests": requests}
    if likely(chance, 0.15):
        requests[GPU] = str(chance.randint(1, 2))
        resources["limits"] = {GPU: requests[GPU]}
    if likely(chance, 0.07):
        requests |= {"hugepages-2Mi": "32Mi", "memory": "64Mi"}
        resources["limits"] = resources.get("limits", {}) | {"hugepages-2Mi": "32Mi"}
    made: Manifest = {"name": name, "image": "app", "resources": resources}
    if likely(chance, 0.2):
        port = {"containerPort": 80, "hostPort": chance.choice((8080, 8081)), "protocol": chance.choice(("TCP", "UDP"))}
        made["ports"] = [port | ({"hostIP": "127.0.0.1"} if likely(chance, 0.3) else {})]
    return made


def pod_labels(chance: Random) -> dict[str, str]:
    """Return the labels of a pod."""
    labels = {"app": chance.choice(APPS)}
    return labels | ({"version": chance.choice("12")} if likely(chance, 0.5) else {})


def affinity_term(chance: Random) -> Manifest:
    """Return a term of a pod affinity; its selector is by label, by expression, or matches everything."""
    term: Manifest = {"topologyKey": chance.choice((HOSTNAME, ZONE, "disk")), "labelSelector": label_selector(chance)}
    spaces = chance.choices(("own", "named", "selected"), (7, 2, 2))[0]
    if spaces == "named":
        term["namespaces"] = [chance.choice(NAMESPACES)]
    elif spaces == "selected":
        term["namespaceSelector"] = chance.choice(({}, {"matchLabels": {"kind": "side"}}))
    if likely(chance, 0.15):
        term[chance.choice(("matchLabelKeys", "mismatchLabelKeys"))] = ["version"]
    return term


def label_selector(chance: Random) -> Manifest:
    """Return a selector of pods."""
    form = chance.choices(("labels", "expression", "everything"), (6, 3, 1))[0]
    if form == "labels":
        return {"matchLabels": {"app": chance.choice(APPS)}}
    if form == "expression":
        operator = chance.choice(("In", "NotIn", "Exists", "DoesNotExist"))
        values = {"values": chance.sample(APPS, 2)} if operator in ("In", "NotIn") else {}
        return {"matchExpressions": [{"key": chance.choice(("app", "team")), "operator": operator, **values}]}
    return {}
