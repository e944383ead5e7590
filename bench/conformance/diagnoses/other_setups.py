"""Setups in which every cluster can be reached, but something else that the engine needs is broken."""

import socket
from datetime import timedelta

from bench.conformance.diagnoses.setup import setup
from bench.conformance.diagnoses.topology_under_test import BINDINGS, LOWERS, A, B, TopologyUnderTest
from bench.kit.sites import Manifest, until
from tensile.engine.permissions import Permission, lower_rights, upper_rights
from tensile.kubelet.api.csr import request_for
from tensile.sandbox.state import LOOPBACK, UPPER
from tensile.topology import Topology, parse

NODES = "/api/v1/nodes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
SERVICES_OF_APIS = "/apis/apiregistration.k8s.io/v1/apiservices"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
DEFAULT = "/api/v1/namespaces/default"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
_LIMIT = 30.0
_PROBE = ("192.0.2.1", 9)
"""An address for documentation: nothing is sent to it, the system only selects the source address."""


# Rights.


def rule(right: Permission) -> Manifest:
    """Return a right as a rule of a role."""
    group = right.group
    return {"apiGroups": [group], "resources": [right.resource], "verbs": list(right.verbs)}


def read(topology: TopologyUnderTest) -> Topology:
    """Return the topology under test as the engine reads it."""
    return parse(topology.save().read_text(), name="topology.yaml")


async def allowed(topology: TopologyUnderTest, cluster: str, *, without: tuple[str, str]) -> None:
    """Grant the user all rights that the engine needs, except for a verb on a resource."""
    found = read(topology)
    spec = next((one for one in found.lowers if one.name == cluster), None)
    rights = upper_rights(found) if spec is None else lower_rights(spec)
    verb, resource = without
    kept = [
        right._replace(verbs=tuple(each for each in right.verbs if (each, right.resource) != (verb, resource)))
        for right in rights
    ]
    assert kept != rights
    await topology.grant(cluster, [rule(right) for right in kept if right.verbs])


@setup(UPPER, "rights", cause="missing: patch pods/status (", remedy="--verb=patch --resource=pods/status\n")
async def missing_right_above(topology: TopologyUnderTest) -> None:
    """The engine may not write pod statuses in the upper cluster."""
    await allowed(topology, UPPER, without=("patch", "pods/status"))


@setup(A, "rights", cause="missing: create pods (mirrored pods)", remedy="--verb=create --resource=pods\n")
async def missing_right_below(topology: TopologyUnderTest) -> None:
    """The engine may not create pods in a lower cluster."""
    await allowed(topology, A, without=("create", "pods"))


@setup(
    B, "rights", cause="create endpointslices.discovery.k8s.io (controller Service)", remedy="--resource=endpointslices"
)
async def missing_right_for_services(topology: TopologyUnderTest) -> None:
    """The engine may not create the EndpointSlices of Services."""
    await allowed(topology, B, without=("create", "endpointslices"))


@setup(B, "rights", cause="get pods/exec (kubectl exec", remedy="create clusterrolebinding")
async def half_a_right_for_exec(topology: TopologyUnderTest) -> None:
    """A WebSocket is opened by a GET, so `create` alone is not enough."""
    await allowed(topology, B, without=("get", "pods/exec"))


@setup(A, "rights", cause="missing: list *.*", remedy="--verb=list --resource='*.*'", level="warn")
async def missing_right_to_see_what_a_namespace_holds(topology: TopologyUnderTest) -> None:
    """The engine works without the right, but leaves namespaces behind."""
    await allowed(topology, A, without=("list", "*"))


# Certificates.


async def _serving(topology: TopologyUnderTest, *, address: str = LOOPBACK, ago: timedelta = timedelta()) -> None:
    """Issue the serving certificate of the virtual nodes for an address, `ago` in the past."""
    pair = topology.signer(UPPER, ago=ago).issue("system:node:x", ("system:nodes",), addresses=(address,))
    topology.put("kubelet.crt", pair.certificate)
    topology.put("kubelet.key", pair.key)


@setup(UPPER, "certificates", cause="it does not match the key", remedy="renew both together")
async def key_of_another_certificate(topology: TopologyUnderTest) -> None:
    """Only the certificate was renewed, and not its key."""
    whole = (topology.directory / "kubelet.key").read_bytes()
    await _serving(topology)
    topology.put("kubelet.key", whole)


@setup(UPPER, "certificates", cause="it expired on", remedy="renew it")
async def expired_serving_certificate(topology: TopologyUnderTest) -> None:
    """The serving certificate has expired."""
    await _serving(topology, ago=timedelta(days=730))


@setup(UPPER, "certificates", cause="it is valid for 192.0.2.7", remedy=f"IP:{LOOPBACK} in its subjectAltNames")
async def serving_certificate_for_another_address(topology: TopologyUnderTest) -> None:
    """The address of the nodes is not in the serving certificate."""
    await _serving(topology, address="192.0.2.7")


@setup(UPPER, "certificates", cause="kubelet.clientCAFile: ", remedy="-----BEGIN CERTIFICATE-----")
async def client_CA_that_is_a_key(topology: TopologyUnderTest) -> None:  # noqa: N802 - the usual spelling
    """The file of the client CA contains a key."""
    topology.topology["kubelet"]["clientCAFile"] = "kubelet.key"


@setup(UPPER, "certificates", cause="kubelet.tlsCertFile: ", remedy="set a path that exists")
async def missing_certificate_file(topology: TopologyUnderTest) -> None:
    """The certificate file does not exist."""
    topology.topology["kubelet"]["tlsCertFile"] = "certificates/gone.crt"


@setup(
    A, "certificates", cause="waits for approval", remedy="kubectl certificate approve tensile-doctor-", level="warn"
)
async def unapproved_certificate(topology: TopologyUnderTest) -> None:
    """The engine's CertificateSigningRequest was created, but is not approved."""
    for field in ("tlsCertFile", "tlsKeyFile"):
        topology.topology["kubelet"].pop(field)
    await topology.make(UPPER, REQUESTS, request_for(topology.nodes[A], LOOPBACK).manifest)


# Identity of clusters and nodes.


@setup(B, "identity", cause="it is the same cluster as lower-a", remedy="remove a lower cluster of the two")
async def two_lowers_that_are_one(topology: TopologyUnderTest) -> None:
    """Both kubeconfigs lead to the same cluster."""
    topology.lower(B)["kubeconfig"] = topology.lower(A)["kubeconfig"]


@setup(A, "identity", cause="it is the same cluster as upper", remedy="use the kubeconfig of another cluster than")
async def lower_that_is_the_upper(topology: TopologyUnderTest) -> None:
    """The kubeconfig of a lower leads to the upper cluster."""
    topology.lower(A)["kubeconfig"] = topology.topology["upper"]["kubeconfig"]


@setup(
    B,
    "node",
    cause="is not created by tensile, and the engine does not change it",
    remedy="kubectl delete node doctor-",
)
async def taken_name_of_a_node(topology: TopologyUnderTest) -> None:
    """Another owner's Node has the name of a virtual node."""
    await topology.make(UPPER, NODES, {"metadata": {"name": topology.nodes[B]}})


@setup(A, "kubelet", cause="does not reach Node", remedy="let the upper's apiserver through to port")
async def kubelet_port_out_of_reach(topology: TopologyUnderTest) -> None:
    """The engine listens at another address than its nodes publish."""
    address = own_address()
    topology.topology["kubelet"]["nodeAddress"] = address
    await _serving(topology, address=address)
    await running(topology)
    topology.topology["lowers"] = [one for one in topology.topology["lowers"] if one["name"] == A]


@setup(A, "kubelet", cause="x509", remedy="--kubelet-certificate-authority has to hold the CA")
async def serving_certificate_that_the_apiserver_refuses(topology: TopologyUnderTest) -> None:
    """An authority that the apiserver does not trust signed the certificate."""
    address = own_address()
    topology.topology["kubelet"] |= {"nodeAddress": address, "bind": address}
    pair = topology.signer(B).issue("system:node:x", ("system:nodes",), addresses=(address,))
    topology.put("kubelet.crt", pair.certificate)
    topology.put("kubelet.key", pair.key)
    await running(topology)
    topology.topology["lowers"] = [one for one in topology.topology["lowers"] if one["name"] == A]


async def reachable(topology: TopologyUnderTest) -> None:
    """Run an engine whose virtual nodes the upper's apiserver reaches: nothing is broken."""
    address = own_address()
    topology.topology["kubelet"] |= {"nodeAddress": address, "bind": address}
    await _serving(topology, address=address)
    await running(topology)


async def running(topology: TopologyUnderTest) -> None:
    """Run an engine until its nodes have leases."""
    engine = topology.start_engine()
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

    async def beats() -> bool:
        """Report whether every node has its lease."""
        assert engine.is_running, (topology.directory / "engine.log").read_text()
        found = {one["metadata"]["name"] for one in await topology.upper.items(leases)}
        return found >= set(topology.nodes.values())

    await until(beats, "the nodes have leases", _LIMIT)


def own_address() -> str:
    """Return an address of this machine that is not loopback, "" if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_PROBE)
        except OSError:
            return ""
        return str(probe.getsockname()[0])


# Metrics, networks, storage and the webhook.


@setup(A, "metrics", cause="it has no metrics API", remedy="install metrics-server there", level="warn")
async def no_metrics_API(topology: TopologyUnderTest) -> None:  # noqa: N802 - the usual spelling
    """The sandbox's clusters have no metrics API by default."""


@setup(
    B, "metrics", cause="the metrics API fails", remedy="kubectl get apiservice v1beta1.metrics.k8s.io", level="warn"
)
async def metrics_API_without_a_server(topology: TopologyUnderTest) -> None:  # noqa: N802 - the usual spelling
    """The metrics API is registered, but no server answers."""
    spec = {
        "group": "metrics.k8s.io",
        "version": "v1beta1",
        "service": {"namespace": "default", "name": "nobody"},
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
    }
    await topology.make(B, SERVICES_OF_APIS, {"metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": spec})


@setup(B, "network", cause="overlap with those of pods of lower-a", remedy="--cluster-cidr", level="warn")
async def overlapping_networks(topology: TopologyUnderTest) -> None:
    """Pods of two clusters may have the same addresses."""
    for lower, cidr in zip(LOWERS, ("10.244.0.0/24", "10.244.0.0/23"), strict=True):
        body = {"metadata": {"name": topology.user}, "spec": {"podCIDR": cidr, "podCIDRs": [cidr]}}
        await topology.make(lower, NODES, body)


@setup(UPPER, "storage", cause="binds before a node is chosen", remedy="WaitForFirstConsumer")
async def storage_class_that_binds_at_once(topology: TopologyUnderTest) -> None:
    """The upper scheduler never binds a pod with a claim of this class."""
    body = {
        "metadata": {"name": topology.user},
        "provisioner": "tensile-kube.io/lower",
        "volumeBindingMode": "Immediate",
    }
    await topology.make(UPPER, CLASSES, body)
    for lower in LOWERS:
        await topology.make(lower, CLASSES, {"metadata": {"name": topology.user}, "provisioner": "example.com/disks"})


@setup(
    A,
    "storage",
    cause="is no-such-class here, which does not exist",
    remedy="storageClasses: {fast: NAME}",
    level="warn",
)
async def storage_class_that_is_missing_below(topology: TopologyUnderTest) -> None:
    """The topology names a class that the lower cluster does not have."""
    topology.lower(A)["storageClasses"] = {"fast": "no-such-class"}


@setup(UPPER, "storage", cause="the scheduler waits for unbound claims of", remedy="for virtual nodes, ", level="warn")
async def pod_that_waits_for_its_claim(topology: TopologyUnderTest) -> None:
    """The scheduler's VolumeBinding waits for the claim to be bound, and nothing binds it."""
    name = topology.user
    body = {"metadata": {"name": name}, "provisioner": "example.com/disks", "volumeBindingMode": "Immediate"}
    await topology.make(UPPER, CLASSES, body)
    await topology.make(UPPER, NODES, {"metadata": {"name": name}})
    size = {"requests": {"storage": "1Gi"}}
    claim = {"storageClassName": name, "accessModes": ["ReadWriteOnce"], "resources": size}
    await topology.make(UPPER, f"{DEFAULT}/persistentvolumeclaims", {"metadata": {"name": name}, "spec": claim})
    volume = {"name": "disk", "persistentVolumeClaim": {"claimName": name}}
    spec = {"containers": [{"name": "main", "image": "app:1"}], "volumes": [volume]}
    await topology.make(UPPER, f"{DEFAULT}/pods", {"metadata": {"name": name}, "spec": spec})

    async def waits() -> bool:
        """Report whether the scheduler has set the condition of the pod."""
        found = await topology.upper.call("GET", f"{DEFAULT}/pods/{name}")
        return "unbound immediate" in str(found["status"].get("conditions"))

    await until(waits, "the scheduler has looked at the pod", _LIMIT)


@setup(UPPER, "webhook", cause="no webhook answers at https://", remedy="webhook.url has to lead to")
async def webhook_out_of_reach(topology: TopologyUnderTest) -> None:
    """No process listens at the webhook's URL."""
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    topology.topology["webhook"] = {"enabled": True, "url": f"https://{LOOPBACK}:{port}/mutate"}


@setup(UPPER, "webhook", cause="Service default/nothing-there does not exist", remedy="correct webhook.service")
async def webhook_without_its_service(topology: TopologyUnderTest) -> None:
    """The Service of the webhook does not exist."""
    topology.topology["webhook"] = {"enabled": True, "service": {"namespace": "default", "name": "nothing-there"}}


async def behind_a_service(topology: TopologyUnderTest, port: int) -> None:
    """Register the webhook by a Service for a pod with an address of this machine and this port.

    An apiserver passes calls on to pods only.
    """
    name, address = topology.user, own_address()
    topology.topology["webhook"] = {"enabled": True, "service": {"namespace": "default", "name": name}, "port": port}
    containers = [{"name": "main", "image": "app:1"}]
    spec = {"nodeName": name, "terminationGracePeriodSeconds": 0, "containers": containers}
    pod = await topology.make(UPPER, f"{DEFAULT}/pods", {"metadata": {"name": name}, "spec": spec})
    status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
    await topology.upper.call("PATCH", f"{DEFAULT}/pods/{name}/status", status, "application/merge-patch+json")
    ports = [{"port": 443, "targetPort": port}]
    await topology.make(UPPER, f"{DEFAULT}/services", {"metadata": {"name": name}, "spec": {"ports": ports}})
    target = {"kind": "Pod", "namespace": "default", "name": name, "uid": pod["metadata"]["uid"]}
    subset = {"addresses": [{"ip": address, "targetRef": target}], "ports": [{"port": port}]}
    await topology.make(UPPER, f"{DEFAULT}/endpoints", {"metadata": {"name": name}, "subsets": [subset]})
    slices = (
        f"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name={name}"
    )
    await until(lambda: topology.upper.items(slices), "the endpoints are known", _LIMIT)


@setup(UPPER, "webhook", cause="does not reach Service default/doctor-", remedy="the firewall between")
async def webhook_that_the_apiserver_does_not_reach(topology: TopologyUnderTest) -> None:
    """The webhook's pod is ready, but no process listens at its port."""
    with socket.create_server((own_address(), 0)) as free:
        port = free.getsockname()[1]
    await behind_a_service(topology, port)


@setup(
    UPPER, "network", cause="lower pods get the upper apiserver's address", remedy="upper.advertiseURL", level="warn"
)
async def upper_that_pods_do_not_reach(topology: TopologyUnderTest) -> None:
    """Pods with tokens of the upper cluster get an address that its certificate does not name."""
    topology.topology["serviceAccounts"] = {"identity": "upper"}
    port = topology.sandbox.clusters[UPPER].server.rpartition(":")[2]
    topology.topology["upper"]["advertiseURL"] = f"https://upper.example.localhost:{port}"


# Needless exposure and permissions.


@setup(UPPER, "ports", cause="telemetry.bind is every address", remedy="set telemetry.bind: 127.0.0.1", level="warn")
async def telemetry_for_everybody(topology: TopologyUnderTest) -> None:
    """Outside of a cluster the telemetry port, which needs no login, is open on every address."""
    topology.topology["telemetry"]["bind"] = "0.0.0.0"


async def _inhabited(topology: TopologyUnderTest) -> None:
    """Create a pod of another owner in namespace default of the first lower cluster."""
    spec = {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": "app:1"}]}
    await topology.make(A, f"{DEFAULT}/pods", {"metadata": {"name": topology.user}, "spec": spec})


@setup(A, "tenants", cause="count as one tenant: default (", remedy="namespaces: {mapping: prefix}", level="warn")
async def lower_that_is_shared(topology: TopologyUnderTest) -> None:
    """Pods of another owner run in a namespace of the same name."""
    await _inhabited(topology)


@setup(A, "tenants", cause="tokens of the upper cluster are where", remedy="identity: lower", level="warn")
async def tokens_in_a_lower_that_is_shared(topology: TopologyUnderTest) -> None:
    """Users who may read Secrets in the lower cluster may call the upper cluster."""
    topology.lower(A)["serviceAccounts"] = {"identity": "upper"}
    await _inhabited(topology)


@setup(A, "tenants", cause="accounts have permissions where others", remedy="leave RBAC out", level="warn")
async def rights_in_a_lower_that_is_shared(topology: TopologyUnderTest) -> None:
    """Users who may create pods in the lower cluster may run them as the engine's copied accounts."""
    topology.lower(A)["controllers"] = ["ServiceAccount", "RBAC"]
    await _inhabited(topology)


@setup(A, "tenants", cause="which has the engine's own account", remedy="in another namespace", level="warn")
async def account_where_pods_go(topology: TopologyUnderTest) -> None:
    """The engine's own ServiceAccount is in a namespace that pods would be mirrored to."""
    account = f"{DEFAULT}/serviceaccounts/default"
    body = {"spec": {"audiences": [], "expirationSeconds": 3600}}
    token = (await topology.sites[A].call("POST", f"{account}/token", body))["status"]["token"]
    topology.edit(A, user={"token": token})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"kind": "ServiceAccount", "namespace": "default", "name": "default"}
    await topology.make(A, BINDINGS, {"metadata": {"name": topology.user}, "roleRef": role, "subjects": [subject]})
