"""The manifests of the upper cluster, in the order in which they are applied.

The engine runs in two pods under Pod Security `restricted`; one of them is the leader. The settings prevent failures
that would affect all lower clusters at once: both pods evicted at the same time, or an engine on a virtual node that it
would have to serve itself. They also prevent restarts by a liveness probe that cannot help.

Services expose the engine to the upper apiserver, the upper scheduler and Prometheus, behind a NetworkPolicy. Virtual
nodes need no Service: their address is that of the leader's pod.

The storage class and the scheduler's configuration are text, not data, because people edit them further.
"""

from typing import Any

from tensile.deploy.rbac import CONFIGMAP, upper_roles
from tensile.deploy.setup import EXTENDER, METRICS, NAME, WEBHOOK, Piece, Setup
from tensile.engine.configmap_source import KEY
from tensile.names import LEADS, VIRTUAL_NODE
from tensile.objects import Manifest
from tensile.policy.webhook.admission_policy import binding, has_untainted_node, policy
from tensile.topology import Lower

FILES = ("namespace.yaml", "roles.yaml", "engine.yaml", "network.yaml")
"""The files of the manifests, in the order in which they are applied."""
REPLICAS = 2
PRIORITY = "system-cluster-critical"
_HTTPS = 443
_IP = "status.podIP"
_HOST, _ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
_ENFORCED = "pod-security.kubernetes.io/enforce"
_NAMESPACE = "Of the engine alone: who may make pods or read Secrets here, may all that the engine may."
_ROLES = "The engine's account, and what it may do: what it does with this topology, and nothing else."
_CONFIGMAP = "The topology: an edit is in force within seconds, and ConfigMap topology-status says what became of it."
_DEPLOYMENT = (
    "Two pods: by a Lease one of them drives, the other follows the upper cluster, serves the webhook, and takes over "
    "within seconds. The image has to be where the nodes of the cluster find it."
)
_BUDGET = "Drains of nodes take one of the two at a time, and are not held up by one that does not run anyway."
_QUOTA = "Some clusters let pods of this priority only into namespaces that have a quota for it."
_METRICS = "Metrics of each pod by itself: leader_election_master_status says which one drives."
_WEBHOOK = "The upper apiserver's way to the webhook, which both pods serve."
_EXTENDER = "The upper scheduler's way to the extender: the pod that drives has the label, and no other."
_POLICY = (
    "Who may call: anybody, but at these ports only. Each asks callers who they are, but for metrics and probes. The "
    "upper's apiserver and scheduler call from hosts, whose addresses are not known here. The ports of virtual nodes "
    "have room for more lower clusters. What the pods call is left open: the lower clusters may be anywhere."
)
_ADMISSION = (
    "Not applied by this kustomization: the engine registers both itself and keeps them as the topology says. Apply "
    "them to an upper cluster of Kubernetes 1.36 or later in which the engine must not do so, and write and apply them "
    "again when names or taints of virtual nodes change, or the namespaces that are not mirrored."
)
STORAGE_CLASS = """\
# A storage class whose volumes are made in the lower cluster of the pod that uses them.
#
# The upper scheduler chooses the virtual node first (WaitForFirstConsumer; with Immediate no pod would ever start),
# then the engine has the claim made in the lower cluster behind it. By `storageClasses` of the topology each lower maps
# the name of this class to one of its own; a lower that does not, needs a class of the same name.
#
# With the policy Retain instead, the claim below and its data stay when the claim above is deleted.
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
# Configuration of the upper cluster's kube-scheduler, so that it asks the engine where in the lower clusters a pod fits
# (extender.enabled in the topology file). Not an object of the API: a file on the scheduler's host, for its flag
# --config. Merge `extenders` into the one that you have. docs/extender.md says how, and what it costs.
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf  # with --config, the flag --kubeconfig counts no more
leaderElection:
  leaderElect: true
extenders:
# CLUSTER-IP: kubectl -n {namespace} get service {service} -o jsonpath={{.spec.clusterIP}}
# As an address, since a scheduler on its host's network does not ask the cluster's DNS; one of IPv6 in brackets.
- urlPrefix: https://CLUSTER-IP:{port}
  filterVerb: filter
  prioritizeVerb: prioritize
  preemptVerb: preempt  # who has to go for a pod of higher priority, so that a real node has room
  weight: 5  # 1 is as much as one of the scheduler's own scores; 5 outweighs how full virtual nodes look
  enableHTTPS: true
  tlsConfig:
    insecure: true  # with kubelet.tlsCertFile in the topology: caFile, who signed it; it has to name the host above
    certFile: /etc/kubernetes/pki/scheduler-extender.crt  # of the user system:kube-scheduler,
    keyFile: /etc/kubernetes/pki/scheduler-extender.key  # signed by the authority in kubelet.clientCAFile
  httpTimeout: 2s  # an answer takes milliseconds, but for an engine busy with a burst; all scheduling waits for it
  nodeCacheCapable: true  # required: nodes are sent as names
  ignorable: true  # without the engine pods are scheduled as if there were no extender
  # No managedResources: every pod is asked about. No bindVerb: the scheduler binds by itself.
"""

_DISABLED = "# For later: this topology does not enable the extender, so nobody would answer.\n"


def of_engine(setup: Setup) -> dict[str, list[Piece]]:
    """Return the manifests of the engine, without its topology, by the names in `FILES`."""
    roles = upper_roles(setup.topology, namespace=setup.namespace)
    sheets = (
        [namespace(setup.namespace, _NAMESPACE)],
        [Piece(role, why) for role, why in zip(roles, (_ROLES, *[""] * len(roles)), strict=False)],
        workload(setup),
        exposure(setup),
    )
    return dict(zip(FILES, sheets, strict=True))


def namespace(name: str, why: str) -> Piece:
    """Return a namespace for the engine alone, with Pod Security `restricted`."""
    meta = {"name": name, "labels": {"app.kubernetes.io/name": NAME, _ENFORCED: "restricted"}}
    return Piece({"apiVersion": "v1", "kind": "Namespace", "metadata": meta}, why)


def configmap(setup: Setup) -> Piece:
    """Return the ConfigMap with the topology."""
    return Piece(setup.object("v1", "ConfigMap", CONFIGMAP, data={KEY: setup.text}), _CONFIGMAP)


def storage(setup: Setup) -> str:
    """Return the storage class as text, "" if the PV controller is disabled everywhere."""
    return STORAGE_CLASS if "PV" in setup.topology.enabled else ""


def admission(setup: Setup) -> list[Piece]:
    """Return the MutatingAdmissionPolicy and its binding, for clusters where the engine must not register them.

    They carry no ownership marks, which contain the UID of a namespace that is unknown here. So the engine does not
    touch them.
    """
    topology = setup.topology
    made = policy(topology, None, all_virtual=has_untainted_node(topology), own_namespace=setup.namespace)
    return [Piece(made, _ADMISSION), Piece(binding(topology, None), "")]


def head(setup: Setup, command: str | None = None) -> str:
    """Return the header comment: what the manifests are, and what they require.

    `command` is the command that prints them; None: they are written as files, next to those for the lower clusters.
    """
    lines = [f"The engine of topology {setup.topology.name}, in its upper cluster."]
    if setup.topology.lowers:
        lines.append("It needs the kubeconfigs of the lower clusters in Secrets, now or later, and waits for each:")
    for lower, place in secrets(setup):
        how = f"{command} --lower {lower.name}" if command else f"lowers/{lower.name}/access.yaml"
        lines.append(f"  Secret {place}: see {how}")
    if setup.topology.extender.enabled:
        where = f"is written by `{command} --dir DIR`" if command else "is in scheduler-extender.yaml"
        lines.append(f"The upper scheduler's configuration, no object to apply, {where}.")
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
    return f"{_DEPLOYMENT} Port {setup.probed} is that of the probes: nothing in the topology may have it."


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
