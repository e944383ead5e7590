"""The engine's pods: two, of which one drives and the other is ready to, under the strictest Pod Security.

Each setting keeps something from happening that would be felt in all lower clusters at once: that both pods go at once,
that one is put on a virtual node, which it would have to serve itself, or that a restart is asked for where none helps.
"""

from typing import Any

from tensile.manifests.setup import NAME, Setup
from tensile.manifests.yamlout import Piece
from tensile.names import VIRTUAL_NODE
from tensile.objects import Manifest

REPLICAS = 2
PRIORITY = "system-cluster-critical"
_HOST, _ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


def workload(setup: Setup) -> list[Piece]:
    """Give the Deployment and what protects it."""
    budget = {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": _selected(setup)}
    scope = {"operator": "In", "scopeName": "PriorityClass", "values": [PRIORITY]}
    quota = {"hard": {"pods": "20"}, "scopeSelector": {"matchExpressions": [scope]}}
    return [
        Piece(setup.object("apps/v1", "Deployment", NAME, spec=_deployment(setup)), _why(setup)),
        Piece(setup.object("policy/v1", "PodDisruptionBudget", NAME, spec=budget), _BUDGET),
        Piece(setup.object("v1", "ResourceQuota", NAME, spec=quota), _QUOTA),
    ]


_DEPLOYMENT = (
    "Two pods: by a Lease one of them drives, the other follows the upper cluster, serves the webhook, and takes over "
    "within seconds. The image has to be where the nodes of the cluster find it."
)
_BUDGET = "Drains of nodes take one of the two at a time, and are not held up by one that does not run anyway."
_QUOTA = "Some clusters let pods of this priority only into namespaces that have a quota for it."


def _why(setup: Setup) -> str:
    return f"{_DEPLOYMENT} Port {setup.probed} is that of the probes: nothing in the topology may have it."


def _deployment(setup: Setup) -> Manifest:
    return {
        "replicas": REPLICAS,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "selector": _selected(setup),
        "template": {"metadata": {"labels": setup.selector}, "spec": _pod(setup)},
    }


def _pod(setup: Setup) -> Manifest:
    """Give what runs; as which user, the image says, or a cluster that has other users for each namespace."""
    return {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "priorityClassName": PRIORITY,
        "terminationGracePeriodSeconds": 30,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "affinity": _affinity(setup),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": _ZONE,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": _selected(setup),
            }
        ],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(setup)],
        "volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}],
    }


def _affinity(setup: Setup) -> Manifest:
    """Never on a virtual node, ours or another's, and rather not both on one machine."""
    key, value = VIRTUAL_NODE
    real = {"matchExpressions": [{"key": key, "operator": "NotIn", "values": [value]}]}
    apart = {"topologyKey": _HOST, "labelSelector": _selected(setup)}
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [real]}},
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": apart}]
        },
    }


def _container(setup: Setup) -> Manifest:
    return {
        "name": NAME,
        "image": setup.image,
        "args": ["run", "--configmap", setup.configmap, "--probes", str(setup.probed)],
        "env": [_told("POD_NAME", "metadata.name"), _told("POD_NAMESPACE", "metadata.namespace"), _told("POD_IP", _IP)],
        "ports": [{"name": name, "containerPort": port} for name, port in _ports(setup).items()],
        "livenessProbe": {**_probe("/healthz"), "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**_probe("/readyz"), "periodSeconds": 5, "failureThreshold": 3},
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - inside the pod
    }


_IP = "status.podIP"


def _ports(setup: Setup) -> dict[str, int]:
    return {**setup.servers, "probes": setup.probed}


def _told(variable: str, path: str) -> Manifest:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(path: str) -> Manifest:
    """A kubelet gives up after five seconds: an engine that mirrors hundreds of pods may take one of them."""
    return {"httpGet": {"path": path, "port": "probes"}, "timeoutSeconds": 5}


def _selected(setup: Setup) -> dict[str, Any]:
    return {"matchLabels": setup.selector}
