"""Objects of honest tenants: pods with Secrets, ConfigMaps, ServiceAccounts, tokens and claims, and their Services.

Each value is a marker of its tenant, which the oracles search for in all objects where it does not belong.
"""

from base64 import b64encode
from typing import NamedTuple

from bench.model.hostility.choices import Choices
from bench.model.hostility.markers import Markers
from bench.model.hostility.setting import Setting
from tensile.objects import (
    CLAIM,
    CONFIG_MAP,
    ENDPOINT_SLICE,
    POD,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Manifest,
)

PODS = ("web", "db-0", "job")
CONFIG, DATABASE, PULL, PRIVATE = "config", "database", "pull", "private"
"""Names of a ConfigMap and Secrets: for volumes, for image pulls, and one that no pod ever refers to."""
OWN = "own"
"""The name of a Secret of another owner that exists in lower clusters only."""
GIVEN = ("default", "kube-root-ca.crt")
"""Names of the objects that Kubernetes itself creates in each namespace."""
ACCOUNT, FRONT, SLICE, READER = "payer", "front", "front-1", "reader"
ORIGINALS = ((CONFIG_MAP, CONFIG), (SECRET, DATABASE), (SECRET, PULL), (SERVICE_ACCOUNT, ACCOUNT))
SERVED = ((SERVICE, FRONT), (ENDPOINT_SLICE, SLICE))
RIGHTS = ((ROLE, READER), (ROLE_BINDING, READER))
NAMES: dict[Kind, tuple[str, ...]] = {
    POD: PODS,
    SECRET: (DATABASE, PRIVATE, OWN, PULL),
    CONFIG_MAP: (CONFIG,),
    SERVICE_ACCOUNT: (ACCOUNT,),
    SERVICE: (FRONT,),
    ENDPOINT_SLICE: (SLICE,),
    ROLE: (READER,),
    ROLE_BINDING: (READER,),
    CLAIM: ("disk-a", "disk-b"),
}
"""Names of objects: the same in every honest namespace, and known to hostile tenants."""
_MOUNTED = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN = {
    "name": "kube-api-access-x",
    "projected": {
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        ]
    },
}


class Wanted(NamedTuple):
    """A pod without a namespace, bound to a node, and the objects that must exist for it."""

    pod: Manifest
    needs: tuple[tuple[Kind, str], ...]


def claim_of(lower: str) -> str:
    """Return the name of the claim that pods of a lower cluster use, because its data are in one cluster."""
    return f"disk-{lower[-1]}"


def wanted(name: str, lower: str, choices: Choices, setting: Setting, word: str) -> Wanted:
    """Return a pod for a lower cluster, not yet bound to a node; `word` is a marker of its tenant."""
    volumes: list[Manifest] = [{"name": "config", "configMap": {"name": CONFIG}}]
    needs: list[tuple[Kind, str]] = [(CONFIG_MAP, CONFIG)]
    container: Manifest = {"name": "c", "image": "honest:1", "env": [{"name": "WORD", "value": word}]}
    spec: Manifest = {"containers": [container], "terminationGracePeriodSeconds": 1}
    if choices.pick((True, False, True)):
        volumes.append({"name": "database", "secret": {"secretName": DATABASE}})
        needs.append((SECRET, DATABASE))
    if choices.pick((True, False)):
        spec["serviceAccountName"] = ACCOUNT
        needs += [(SERVICE_ACCOUNT, ACCOUNT), (SECRET, PULL)]
    if choices.pick((True, False)):
        volumes.append(_TOKEN)
        container["volumeMounts"] = [{"name": _TOKEN["name"], "mountPath": _MOUNTED, "readOnly": True}]
    if setting.has_controllers and setting.has_driver and choices.chance(5):
        volumes.append({"name": "disk", "persistentVolumeClaim": {"claimName": claim_of(lower)}})
        needs.append((CLAIM, claim_of(lower)))
    meta = {"name": name, "labels": {"team": word}}
    return Wanted({"metadata": meta, "spec": {**spec, "volumes": volumes}}, tuple(needs))


def body(kind: Kind, namespace: str, name: str, marks: Markers) -> Manifest:
    """Return the rest of an object that is not a pod, with a new marker of its tenant."""
    word = marks.new(namespace, kind, name)
    match kind.name:
        case "Secret":
            return {"data": {"k": b64encode(word.encode()).decode()}}
        case "ConfigMap":
            return {"data": {"k": word}}
        case "ServiceAccount":
            return {"metadata": {"labels": {"team": word}}, "imagePullSecrets": [{"name": PULL}]}
        case "Service":
            ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
            return {"metadata": {"labels": {"team": word}}, "spec": {"ports": ports, "selector": {"app": "x"}}}
        case "EndpointSlice":
            found = {"kubernetes.io/service-name": FRONT, "team": word}
            ends = [{"addresses": ["10.1.0.1"], "conditions": {"ready": True}}]
            return {"metadata": {"labels": found}, "addressType": "IPv4", "endpoints": ends, "ports": []}
        case "Role":
            return {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]}
        case "RoleBinding":
            subjects = [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}]
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": READER}
            return {"roleRef": role, "subjects": subjects}
    spec = {"storageClassName": "goes", "resources": {"requests": {"storage": "1Gi"}}}
    return {"spec": {"accessModes": ["ReadWriteMany"], **spec}}
