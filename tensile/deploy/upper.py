"""The manifests of the upper cluster, in the order in which they are applied.

The engine runs in two pods under Pod Security `restricted`; one of them is the leader. The settings prevent failures
that would affect all lower clusters at once: both pods evicted at the same time, or an engine on a virtual node that it
would have to serve itself. They also prevent restarts by a liveness probe that cannot help.

Services expose the engine to the upper apiserver, the upper scheduler and Prometheus, behind a NetworkPolicy. Virtual
nodes need no Service: their address is that of the leader's pod.

The storage class and the scheduler's configuration are text, not data, because people edit them further.
"""

from typing import Any

from tensile.deploy.setup import CONFIGMAP, EXTENDER, METRICS, NAME, WEBHOOK, Piece, Setup, candidate_roles, upper_roles
from tensile.engine.topology_reader import CONFIGMAP_KEY
from tensile.names import HOSTNAME, LEADS, VIRTUAL_NODE
from tensile.objects import Manifest
from tensile.policy.webhook.admission_policy import binding, has_untainted_node, policy
from tensile.topology import Lower

FILES = ("namespace.yaml", "roles.yaml", "engine.yaml", "network.yaml")
"""The files of the manifests, in the order in which they are applied."""
REPLICAS = 2
PRIORITY = "system-cluster-critical"
_HTTPS = 443
_IP = "status.podIP"
_ZONE = "topology.kubernetes.io/zone"
_ENFORCED = "pod-security.kubernetes.io/enforce"
_NAMESPACE = "For the engine only: a user who can create pods or read Secrets here has all permissions of the engine."
_ROLES = "The engine's ServiceAccount, with only the permissions that this topology needs."
_CONFIGMAP = (
    "The topology. The engine applies edits within seconds, and reports the result in ConfigMap topology-status. It "
    "keeps the last accepted ones in topology-history."
)
_DEPLOYMENT = (
    "Two replicas with leader election: the leader reconciles, the other one serves the webhook, too, and takes over "
    "within seconds. The nodes of the cluster must be able to pull the image."
)
_BUDGET = "A node drain evicts one replica at a time. A replica that is not ready does not block it."
_QUOTA = "Some clusters admit pods of this priority class only in namespaces that have a quota for it."
_METRICS = "Metrics of each replica: leader_election_master_status is 1 for the leader."
_WEBHOOK = "The upper apiserver calls the webhook here. Both replicas serve it."
_EXTENDER = "The upper scheduler calls the extender here. Only the leader's pod has the label."
_POLICY = (
    "Ingress from everywhere, but only to these ports. All except metrics, probes and the webhook authenticate their "
    "callers. The upper apiserver and scheduler call from hosts with unknown addresses. The port range of virtual "
    "nodes has room for more lower clusters. Egress is not restricted, since the lower clusters may be anywhere."
)
_ADMISSION = (
    "Not part of this kustomization: the engine registers both objects itself and keeps them up to date. Apply them "
    "only if the engine must not do this, to an upper cluster of Kubernetes 1.36 or later. Render and apply them again "
    "when names or taints of virtual nodes, or the excluded namespaces, change."
)
_CANDIDATE = (
    "Not part of this kustomization: an account for CI, which has the engine plan a topology before it is merged "
    "(docs/howto/plans-in-ci.md). It may write one ConfigMap and read another, and nothing else. The plan shows the "
    "names of all mirrored objects, and the content of pods and ConfigMaps that would change: bind the Role only to "
    "accounts that may read those."
)
STORAGE_CLASS = """\
# A StorageClass whose volumes are provisioned in the lower cluster of the pod that uses them.
#
# The upper scheduler selects the virtual node first (WaitForFirstConsumer; with Immediate no pod would ever start).
# Then the engine creates the claim in the lower cluster of this node. `storageClasses` of a lower in the topology maps
# this class to a class of the lower cluster. Without it, the lower cluster needs a class with this name.
#
# With reclaimPolicy Retain, the claim in the lower cluster and its data stay when the upper claim is deleted.
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: tensile
provisioner: tensile-kube.io/lower
volumeBindingMode: WaitForFirstConsumer
reclaimPolicy: Delete
allowVolumeExpansion: true
"""

_SCHEDULER = """\
# Configuration of the upper cluster's kube-scheduler, with the engine as an extender. The engine checks whether a pod
# fits into the lower clusters (extender.enabled in the topology). Not an API object: a file on the scheduler's host for
# its flag --config. Merge `extenders` into the existing file. docs/extender.md describes how, and the costs.
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf  # with --config, the flag --kubeconfig is ignored
leaderElection:
  leaderElect: true
extenders:
# CLUSTER-IP: kubectl -n {namespace} get service {service} -o jsonpath={{.spec.clusterIP}}
# An IP address, since a scheduler on the host network does not use the cluster's DNS. Write IPv6 in brackets.
- urlPrefix: https://CLUSTER-IP:{port}
  filterVerb: filter
  prioritizeVerb: prioritize
  preemptVerb: preempt  # selects the pods to preempt, so that a real node gets room
  weight: 5  # a scheduler plugin has weight 1 by default; 5 outweighs its scores of how full virtual nodes are
  enableHTTPS: true
  tlsConfig:
    insecure: true  # with kubelet.tlsCertFile in the topology, use caFile instead: its CA. It must name the host above
    certFile: /etc/kubernetes/pki/scheduler-extender.crt  # a client certificate of user system:kube-scheduler,
    keyFile: /etc/kubernetes/pki/scheduler-extender.key  # signed by the authority in kubelet.clientCAFile
  httpTimeout: 2s  # usually milliseconds, more for an engine in a burst; all scheduling waits for it
  nodeCacheCapable: true  # required: nodes are sent as names
  ignorable: true  # without the engine, pods are scheduled without the extender
  # No managedResources: the extender gets every pod. No bindVerb: the scheduler binds pods itself.
"""

_DISABLED = "# Do not use it yet: this topology does not enable the extender.\n"


def of_engine(setup: Setup) -> dict[str, list[Piece]]:
    """Return the manifests of the engine, without its topology, by the names in `FILES`."""
    roles = upper_roles(setup.topology, namespace=setup.namespace)
    manifests = (
        [namespace(setup.namespace, _NAMESPACE)],
        [Piece(role, reason) for role, reason in zip(roles, (_ROLES, *[""] * len(roles)), strict=False)],
        workload(setup),
        exposure(setup),
    )
    return dict(zip(FILES, manifests, strict=True))


def namespace(name: str, reason: str) -> Piece:
    """Return a namespace for the engine alone, with Pod Security `restricted`."""
    meta = {"name": name, "labels": {"app.kubernetes.io/name": NAME, _ENFORCED: "restricted"}}
    return Piece({"apiVersion": "v1", "kind": "Namespace", "metadata": meta}, reason)


def configmap(setup: Setup) -> Piece:
    """Return the ConfigMap with the topology."""
    return Piece(setup.object("v1", "ConfigMap", CONFIGMAP, data={CONFIGMAP_KEY: setup.text}), _CONFIGMAP)


def storage(setup: Setup) -> str:
    """Return the storage class as text, "" if the PV controller is disabled everywhere."""
    return STORAGE_CLASS if "PV" in setup.topology.enabled else ""


def admission(setup: Setup) -> list[Piece]:
    """Return the MutatingAdmissionPolicy and its binding, for clusters where the engine must not register them.

    They carry no ownership marks, which contain the UID of a namespace that is unknown here. So the engine does not
    touch them.
    """
    topology = setup.topology
    mutating_policy = policy(topology, None, all_virtual=has_untainted_node(topology), own_namespace=setup.namespace)
    return [Piece(mutating_policy, _ADMISSION), Piece(binding(topology, None), "")]


def candidate(setup: Setup) -> list[Piece]:
    """Return the account and the Role for CI that has candidates planned."""
    account, *roles = candidate_roles(setup.topology.name, namespace=setup.namespace)
    return [Piece(account, _CANDIDATE), *map(Piece, roles)]


def head(setup: Setup, command: str | None = None) -> str:
    """Return the header comment: what the manifests are, and what they require.

    `command` is the command that prints them; None: they are written as files, next to those for the lower clusters.
    """
    lines = [f"The engine of topology {setup.topology.name} in its upper cluster."]
    if setup.topology.lowers:
        lines.append(
            "It needs the kubeconfigs of the lower clusters in Secrets, and waits for those that do not exist yet:"
        )
    for lower, secret in secrets(setup):
        source = f"{command} --lower {lower.name}" if command else f"lowers/{lower.name}/access.yaml"
        lines.append(f"  Secret {secret}: see {source}")
    if setup.topology.extender.enabled:
        instruction = f"`{command} --dir DIR` writes it" if command else "see scheduler-extender.yaml"
        lines.append(f"The configuration of the upper scheduler is a file, not an object to apply: {instruction}.")
    return "\n".join(lines)


def secrets(setup: Setup) -> list[tuple[Lower, str]]:
    """Return each lower whose kubeconfig is in a Secret, with a description of that Secret for people."""
    return [
        (lower, f"{secret.namespace}/{secret.name}, key {secret.key}")
        for lower in setup.topology.lowers
        if (secret := lower.kubeconfig_secret) is not None
    ]


def scheduler(setup: Setup) -> str:
    """Return a configuration of the upper kube-scheduler that uses the extender."""
    text = _SCHEDULER if setup.topology.extender.enabled else _DISABLED + _SCHEDULER
    return text.format(namespace=setup.namespace, service=EXTENDER, port=setup.topology.extender.port)


def workload(setup: Setup) -> list[Piece]:
    """Return the Deployment, its PodDisruptionBudget and its ResourceQuota."""
    budget = {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": _selected(setup)}
    scope = {"operator": "In", "scopeName": "PriorityClass", "values": [PRIORITY]}
    quota = {"hard": {"pods": "20"}, "scopeSelector": {"matchExpressions": [scope]}}
    return [
        Piece(setup.object("apps/v1", "Deployment", NAME, spec=_deployment(setup)), _why(setup)),
        Piece(setup.object("policy/v1", "PodDisruptionBudget", NAME, spec=budget), _BUDGET),
        Piece(setup.object("v1", "ResourceQuota", NAME, spec=quota), _QUOTA),
    ]


def _why(setup: Setup) -> str:
    return f"{_DEPLOYMENT} Port {setup.probed} is for the probes: do not use it in the topology."


def _deployment(setup: Setup) -> Manifest:
    return {
        "replicas": REPLICAS,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "selector": _selected(setup),
        "template": {"metadata": {"labels": setup.selector}, "spec": _pod(setup)},
    }


def _pod(setup: Setup) -> Manifest:
    """Return the pod spec. It sets no user: the image does, or a cluster that assigns users to namespaces."""
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
    """Return the affinity: never on a virtual node, of this or another topology, and preferably on different hosts."""
    key, value = VIRTUAL_NODE
    real = {"matchExpressions": [{"key": key, "operator": "NotIn", "values": [value]}]}
    same_engine = {"topologyKey": HOSTNAME, "labelSelector": _selected(setup)}
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [real]}},
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": same_engine}]
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


def _ports(setup: Setup) -> dict[str, int]:
    return {**setup.servers, "probes": setup.probed}


def _told(variable: str, path: str) -> Manifest:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(path: str) -> Manifest:
    """Return a probe with a timeout of 5 seconds, since an engine that mirrors hundreds of pods may need one second."""
    return {"httpGet": {"path": path, "port": "probes"}, "timeoutSeconds": 5}


def _selected(setup: Setup) -> dict[str, Any]:
    return {"matchLabels": setup.selector}


def exposure(setup: Setup) -> list[Piece]:
    """Return the Services and the NetworkPolicy."""
    topology = setup.topology
    found = [Piece(_service(setup, METRICS, topology.telemetry.port, "metrics", clusterIP="None"), _METRICS)]
    if topology.webhook.enabled:
        named = topology.webhook.service
        found.append(Piece(_service(setup, named.name if named else WEBHOOK, _HTTPS, "webhook"), _WEBHOOK))
    if topology.extender.enabled:
        service = _service(setup, EXTENDER, topology.extender.port, "extender")
        service["spec"]["selector"] = {**setup.selector, LEADS: topology.name}
        found.append(Piece(service, _EXTENDER))
    return [*found, Piece(_policy(setup), _POLICY)]


def _service(setup: Setup, name: str, port: int, target: str, **fields: str) -> Manifest:
    ports = [{"name": target, "port": port, "targetPort": target}]
    return setup.object("v1", "Service", name, spec={**fields, "selector": setup.selector, "ports": ports})


def _policy(setup: Setup) -> Manifest:
    rows = [*((port, port) for port in (*setup.servers.values(), setup.probed)), *setup.kubelets]
    spec = {
        "podSelector": {"matchLabels": setup.selector},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [_row(*row) for row in rows]}],
    }
    return setup.object("networking.k8s.io/v1", "NetworkPolicy", NAME, spec=spec)


def _row(first: int, last: int) -> Manifest:
    return {"protocol": "TCP", "port": first, **({"endPort": last} if last > first else {})}
