"""Generates random pods to be scheduled: each uses some of the fields that a scheduler considers."""

from random import Random
from typing import Any

from bench.conformance.placement.nodes import (
    HOSTNAME,
    NAMESPACES,
    ZONE,
    ZONES,
    RandomCluster,
    affinity_term,
    container,
    disk,
    label_selector,
    pod_labels,
)
from bench.conformance.placement.random_storage import likely

Manifest = dict[str, Any]


def random_pod(chance: Random, place: RandomCluster, name: str) -> Manifest:
    """Return a random pod without a node."""
    spec: Manifest = {"containers": [container(chance)], "terminationGracePeriodSeconds": 0, "volumes": []}
    for share, ask in _ASKS:
        if likely(chance, share):
            ask(chance, place, spec)
    namespace = "main" if spec["volumes"] else chance.choice(NAMESPACES)
    return {"metadata": {"name": name, "namespace": namespace, "labels": pod_labels(chance)}, "spec": spec}


def _tolerations(chance: Random, _place: RandomCluster, spec: Manifest) -> None:
    found: list[Manifest] = []
    for _ in range(chance.randint(1, 3)):
        one: Manifest = {"operator": chance.choice(("Exists", "Equal"))}
        if one["operator"] == "Equal":
            one |= {"key": chance.choice(("team", "gpu")), "value": chance.choice(("red", "blue"))}
        elif likely(chance, 0.7):
            one["key"] = chance.choice(("team", "gpu", "node.kubernetes.io/unschedulable"))
        if likely(chance, 0.5):
            one["effect"] = chance.choice(("NoSchedule", "NoExecute"))
        found.append(one)
    spec["tolerations"] = found


def _selector(chance: Random, _place: RandomCluster, spec: Manifest) -> None:
    spec["nodeSelector"] = chance.choice(
        ({"disk": "ssd"}, {ZONE: "a"}, {"disk": "hdd", ZONE: "b"}, {"generation": "2"})
    )


def _node_affinity(chance: Random, place: RandomCluster, spec: Manifest) -> None:
    terms = [_node_term(chance, place) for _ in range(chance.randint(1, 2))]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    spec.setdefault("affinity", {})["nodeAffinity"] = required


def _node_term(chance: Random, place: RandomCluster) -> Manifest:
    term: Manifest = {}
    if likely(chance, 0.2):
        name = chance.choice(place.nodes)["metadata"]["name"]
        field = {"key": "metadata.name", "operator": chance.choice(("In", "In", "NotIn")), "values": [name]}
        term["matchFields"] = [field]
    if not term or likely(chance, 0.6):
        term["matchExpressions"] = [_node_expression(chance) for _ in range(chance.randint(1, 2))]
    return term


def _node_expression(chance: Random) -> Manifest:
    operator = chance.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    match operator:
        case "Gt" | "Lt":
            return {"key": "generation", "operator": operator, "values": [chance.choice(("1", "2", "5"))]}
        case "In" | "NotIn":
            return {"key": ZONE, "operator": operator, "values": chance.sample(ZONES, chance.randint(1, 2))}
    return {"key": chance.choice(("disk", HOSTNAME, "generation")), "operator": operator}


def _near(chance: Random, _place: RandomCluster, spec: Manifest) -> None:
    _affinity_terms(chance, spec, "podAffinity")


def _apart(chance: Random, _place: RandomCluster, spec: Manifest) -> None:
    _affinity_terms(chance, spec, "podAntiAffinity")


def _affinity_terms(chance: Random, spec: Manifest, kind: str) -> None:
    terms = [affinity_term(chance) for _ in range(1 + (likely(chance, 0.3)))]
    spec.setdefault("affinity", {})[kind] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}


def _spread(chance: Random, _place: RandomCluster, spec: Manifest) -> None:
    keys = chance.sample((HOSTNAME, ZONE, "disk"), 1 + (likely(chance, 0.3)))
    spec["topologySpreadConstraints"] = [_constraint(chance, key) for key in keys]


def _constraint(chance: Random, key: str) -> Manifest:
    made: Manifest = {
        "topologyKey": key,
        "maxSkew": chance.randint(1, 2),
        "whenUnsatisfiable": "DoNotSchedule" if likely(chance, 0.9) else "ScheduleAnyway",
        "labelSelector": label_selector(chance),
    }
    if likely(chance, 0.2) and made["whenUnsatisfiable"] == "DoNotSchedule":
        made["minDomains"] = chance.randint(1, 4)
    if likely(chance, 0.3):
        made["nodeAffinityPolicy"] = chance.choice(("Honor", "Ignore"))
    if likely(chance, 0.3):
        made["nodeTaintsPolicy"] = chance.choice(("Honor", "Ignore"))
    if likely(chance, 0.15):
        made["matchLabelKeys"] = ["version"]
    return made


def _claim(chance: Random, place: RandomCluster, spec: Manifest) -> None:
    for number in range(1 + (likely(chance, 0.3))):
        names = place.random_storage.unbound if likely(chance, 0.5) else place.random_storage.bound
        name = chance.choice(names) if likely(chance, 0.97) else "nowhere"
        spec["volumes"].append({"name": f"v{number}", "persistentVolumeClaim": {"claimName": name}})


def _ephemeral(_chance: Random, place: RandomCluster, spec: Manifest) -> None:
    wanted = {"accessModes": ["ReadWriteOnce"], "storageClassName": place.random_storage.kind("later")}
    template = {"spec": wanted | {"resources": {"requests": {"storage": "1Gi"}}}}
    spec["volumes"].append({"name": "own", "ephemeral": {"volumeClaimTemplate": template}})


def _disk(chance: Random, _place: RandomCluster, spec: Manifest) -> None:
    spec["volumes"].append(disk(chance))


def _containers(chance: Random, _place: RandomCluster, spec: Manifest) -> None:
    made = container(chance, "second")
    if "ports" in spec["containers"][0]:
        made.pop("ports", None)  # two containers of a pod do not use the same one
    spec["containers"].append(made)


def _init(chance: Random, _place: RandomCluster, spec: Manifest) -> None:
    made = [container(chance, f"init-{number}") for number in range(chance.randint(1, 3))]
    for one in made:
        if likely(chance, 0.5):
            one["restartPolicy"] = "Always"
    spec["initContainers"] = made


def _pod_level(chance: Random, _place: RandomCluster, spec: Manifest) -> None:
    """Set resources of the pod as a whole, if they are certainly not less than those of its containers."""
    amounts = {"cpu": chance.choice(("2", "3")), "memory": chance.choice(("2Gi", "3Gi"))}
    if len(spec["containers"]) == 1 and "initContainers" not in spec:
        spec["resources"] = {"requests": amounts}


_ASKS = (
    (0.35, _tolerations),
    (0.15, _selector),
    (0.2, _node_affinity),
    (0.15, _near),
    (0.2, _apart),
    (0.25, _spread),
    (0.25, _claim),
    (0.04, _ephemeral),
    (0.06, _disk),
    (0.2, _containers),
    (0.2, _init),
    (0.1, _pod_level),
)
