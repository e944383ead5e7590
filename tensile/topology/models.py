"""The topology file as models: every field, its meaning, its unit, and the reason of its default.

The text under a field is also its description in the JSON schema and in the reference. These are the models of the file
as written; what follows from it for one lower cluster is in resolved.py.

A topology as the engine uses it: what lowers inherit is filled in, so that nobody asks twice what null means.

A lower's field is its own, else that of lowerDefaults, else the topology's or the default. It is decided once, here,
and nothing is checked again: the parts were checked in the file, where they have a line.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tensile.names import CLUSTER_ID
from tensile.topology import fields


class Section(BaseModel):
    """A part of the file: frozen, strict, without keys that it does not know.

    Programs make one by the names of its attributes, `Guard(max_deletes=1)`; a file has the keys only.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        defer_build=True,
    )


class Upper(Section):
    """The upper cluster: the one whose users create the pods."""

    kubeconfig: Annotated[fields.FilePath | None, fields.GIVEN] = fields.ABSENT
    """Path of its kubeconfig, relative to this file. Left out: the engine runs in the cluster and uses its account."""
    context: fields.Word | None = None
    """Context of the kubeconfig; null is the file's current-context, as kubectl does."""
    advertise_url: fields.ServerUrl | None = Field(default=None, alias="advertiseURL")
    """https://HOST:PORT at which pods in the lower clusters reach the upper apiserver; null is the kubeconfig's."""
    qps: fields.Count = 500
    """Requests a second to it, on average; 0 is no limit of ours. High: the apiserver's own fairness decides."""
    burst: fields.Count = 1000
    """Requests that may go at once before `qps` holds; twice the average, for starts of large Deployments."""


class SecretEntry(Section):
    """Where in the upper cluster the kubeconfig of a lower one is kept."""

    namespace: Annotated[fields.LabelName | None, fields.GIVEN] = fields.ABSENT
    """Namespace of the Secret; must be given here or in lowerDefaults."""
    name: Annotated[fields.ObjectName | None, fields.GIVEN] = fields.ABSENT
    """Name of the Secret; must be given here or in lowerDefaults."""
    key: fields.DataKey = "kubeconfig"
    """Key in its data; the one that most tools write."""


class Taint(Section):
    """A taint of the virtual node; pods without a toleration for it are not scheduled there."""

    key: fields.OwnLabelKey
    """Key, as Kubernetes writes label keys."""
    value: fields.LabelValue = ""
    """Value; empty where the key says enough."""
    effect: fields.Effect
    """What it does to pods that do not tolerate it, as Kubernetes says it."""


PROVIDER_TAINT = Taint.model_construct(key="virtual-kubelet.io/provider", value="k8s", effect="NoSchedule")
"""What virtual nodes are known by, so that only pods that ask for them go there."""


class NodeEntry(Section):
    """The virtual node that stands for a lower cluster in the upper one."""

    name: Annotated[fields.NodeName | None, fields.GIVEN] = fields.ABSENT
    """Name of the node, at most 63 characters since a label repeats it. Left out: the lower's name.

    A change waits until the node is empty.
    """
    labels: fields.NodeLabels = {}
    """Labels of the node; clusterID, with the lower's name, is added unless it is given."""
    annotations: fields.NodeAnnotations = {}
    """Annotations of the node."""
    taints: tuple[Taint, ...] = (PROVIDER_TAINT,)
    """Taints of the node, [] for none. The default is tensile-kube's, so that its pods' tolerations go on working."""
    kubelet_port: fields.Port | None = None
    """Port of the node's kubelet API; null is kubelet.port plus the lower's place in the file, counted from 0. One that
    another node still has is taken once that has gone or moved; the Node says where it is."""


class Capacity(Section):
    """How much of the lower cluster is offered to the upper scheduler, of what its Ready, uncordoned nodes have.

    What somebody adds to the capacity or the addresses of the virtual node by hand is taken away again.
    """

    basis: Literal["free", "allocatable"] = "free"
    """free: allocatable less the requests of pods that are not ours; allocatable: all, where nobody else runs pods."""
    reserve: fields.Resources = {}
    """Quantities, by resource, that are held back from what is offered."""
    limit: fields.Resources = {}
    """Quantities, by resource, above which nothing is offered."""


class Namespaces(Section):
    """Which namespace below a namespace above becomes."""

    mapping: Literal["same", "prefix"] = "same"
    """same: the same name, so that DNS names in applications hold; prefix: TOPOLOGY-NAMESPACE, for shared clusters.

    A change waits until nothing of the lower rests on the mapping in force: pods bound to its node, volumes of claims.
    """


class Unreachable(Section):
    """What happens to pods while their lower cluster cannot be reached."""

    evict_after: fields.Duration | None = None
    """Evict them once it has not answered for so long, 40 s at least; null is never: it mostly runs them still."""


class ServiceAccounts(Section):
    """Whose API a pod's token is for."""

    identity: Literal["lower", "upper", "none"] = "lower"
    """lower: an account of the pod's lower cluster; upper: a token of the upper one, for pods that talk to it; none."""


class LowerDefaults(Section):
    """Fields that every lower cluster has unless it says otherwise; mappings merge, lists replace."""

    kubeconfig_secret: Annotated[SecretEntry | None, fields.GIVEN] = fields.ABSENT
    """The Secret, in the upper cluster, that holds the kubeconfig; in place of a path."""
    context: fields.Word | None = None
    """Context of the kubeconfig; null is the file's current-context, as kubectl does."""
    qps: fields.Count = 500
    """Requests a second to it, on average; 0 is no limit of ours. High: the apiserver's own fairness decides."""
    burst: fields.Count = 1000
    """Requests that may go at once before `qps` holds; twice the average, for starts of large Deployments."""
    node: NodeEntry = NodeEntry.model_construct()
    """The virtual node that stands for it."""
    capacity: Capacity = Capacity.model_construct()
    """How much of it is offered to the upper scheduler."""
    namespaces: Namespaces = Namespaces.model_construct()
    """Which namespace below a namespace above becomes."""
    storage_classes: fields.StorageClasses = {}
    """Storage class above: storage class below. One that is not listed keeps its name."""
    maintenance: Literal["none", "cordon", "drain"] = "none"
    """none; cordon: no new pods; drain: its pods leave too."""
    unreachable: Unreachable = Unreachable.model_construct()
    """What happens to its pods while it cannot be reached."""
    controllers: fields.Controllers | None = None
    """What is mirrored beside pods; null is the topology's."""
    ignore_labels: fields.LabelKeys | None = None
    """Keys of labels that the copy of a pod does not get; null is the topology's."""
    on_conflict: fields.OnConflict | None = None
    """What to do with an object of that name that is not ours; null is the topology's."""
    service_accounts: ServiceAccounts | None = None
    """Whose API a pod's token is for; null is the topology's."""


class LowerEntry(LowerDefaults):
    """A lower cluster: one that runs pods of the upper one, behind a virtual node."""

    name: fields.LabelName
    """Name of the cluster in this topology, and of its node unless that has one of its own; volumes note it."""
    kubeconfig: Annotated[fields.FilePath | None, fields.GIVEN] = fields.ABSENT
    """Path of its kubeconfig, relative to this file; this or kubeconfigSecret must be given."""


class Services(Section):
    """Which of the upper cluster's own Services are known below."""

    kube_system: bool = False
    """Mirror the Services of kube-system too; off, since every lower cluster has its own of those names."""
    upper_alias: fields.AliasName = "kubernetes-upper"
    """Name of the Service, in each mirrored namespace, that leads to the upper apiserver."""


class Kubelet(Section):
    """The kubelet API of the virtual nodes, which the upper apiserver calls for logs and exec."""

    bind: fields.Address = "0.0.0.0"  # noqa: S104 - the upper apiserver calls from elsewhere
    """IP address to listen on; every IPv4 one, since the upper apiserver calls from elsewhere. '::' is every one of
    IPv4 and IPv6, which a cluster of IPv6 alone needs."""
    port: fields.Port = 10350
    """Port of the first lower's node, the others follow; not 10250, which a real kubelet on the same machine has."""
    node_address: fields.ReachableAddress | None = None
    """IP address that the nodes publish. Null: POD_IP or VKUBELET_POD_IP of the environment, else the address
    from which the upper cluster is called."""
    tls_cert_file: fields.FilePath | None = None
    """Path of the serving certificate. Null: one that the upper cluster issues, asked for as a
    CertificateSigningRequest for each node by each engine that starts; until that is approved one of our own making,
    with a warning. Together with tlsKeyFile."""
    tls_key_file: fields.FilePath | None = None
    """Path of the certificate's key."""
    client_ca_file: fields.FilePath | None = Field(default=None, alias="clientCAFile")
    """Path of the CA of callers. Null: client-ca-file of ConfigMap kube-system/extension-apiserver-authentication of
    the upper; where that cannot be read every request is refused."""


class ServiceRef(Section):
    """A Service of the upper cluster."""

    namespace: fields.LabelName
    """Its namespace."""
    name: fields.AliasName
    """Its name."""


class Webhook(Section):
    """The admission webhook that prepares pods labelled virtual-pod for virtual nodes."""

    enabled: bool = False
    """Serve it; off, since pods are prepared later too, and the upper apiserver needs a way to call it."""
    bind: fields.Address = "0.0.0.0"  # noqa: S104 - the upper apiserver calls from elsewhere
    """IP address to listen on; every IPv4 one, since the upper apiserver calls from elsewhere. '::' is every one of
    IPv4 and IPv6, which a cluster of IPv6 alone needs."""
    port: fields.Port = 8443
    """Port to listen on; above 1024, so that no rights are needed."""
    service: ServiceRef | None = None
    """The Service by which the upper apiserver reaches it; null where `url` says it."""
    url: fields.Url | None = None
    """The URL by which the upper apiserver reaches it, for an engine outside; null where `service` says it."""
    tls_cert_file: fields.FilePath | None = None
    """Path of the serving certificate; null is one of our own making. Together with tlsKeyFile."""
    tls_key_file: fields.FilePath | None = None
    """Path of the certificate's key."""
    ignore_selector_keys: fields.LabelKeys = ("clusterID",)
    """Keys that stay in a pod's nodeSelector and affinity, because they choose the virtual node itself."""

    @property
    def is_reachable(self) -> bool:
        """Whether the file says how the upper apiserver reaches the webhook."""
        return self.service is not None or self.url is not None


class Extender(Section):
    """The scheduler extender that tells the upper scheduler whether a pod fits a lower cluster's real nodes.

    It shows kubelet.tlsCertFile, and hears only system:kube-scheduler with a certificate of kubelet.clientCAFile.
    """

    enabled: bool = False
    """Serve it; off, since the upper scheduler must be configured to call it."""
    bind: fields.Address = "0.0.0.0"  # noqa: S104 - the upper scheduler calls from elsewhere
    """IP address to listen on; every IPv4 one, since the upper scheduler calls from elsewhere. '::' is every one of
    IPv4 and IPv6, which a cluster of IPv6 alone needs."""
    port: fields.Port = 8888
    """Port to listen on; above 1024, so that no rights are needed."""
    strategy: Literal["spread", "binpack"] = "spread"
    """spread: prefer the emptier cluster, as Kubernetes does with nodes; binpack: the fuller one."""


class Descheduler(Section):
    """Moves pods that cannot be scheduled in the lower cluster they were bound to."""

    enabled: bool = False
    """Run it; off, since it evicts pods."""
    interval: fields.Duration = timedelta(seconds=60)
    """Time between two passes, 2 s at least."""
    pending_longer_than: fields.Duration = timedelta(seconds=120)
    """A pod unschedulable below for longer is moved; long enough for an autoscaler to add a node."""
    max_evictions_per_node: fields.Count = 10
    """Pods that leave one virtual node in one pass, so that a mistake stays small."""
    cooldown: fields.Duration = timedelta(minutes=5)
    """For so long a pod's owner is not sent back to the node it left."""
    dry_run: bool = False
    """Say what would be moved, and move nothing."""


class Telemetry(Section):
    """Metrics, health and how the lower clusters are: /metrics, /healthz, /readyz, /status."""

    bind: fields.Address = "127.0.0.1"
    """IP address to listen on; only this machine, since there is no authentication. '::' is every one of IPv4 and
    IPv6, which a cluster of IPv6 alone needs for its metrics."""
    port: fields.Port = 9095
    """Port to listen on."""


class Guard(Section):
    """Holds back deletions that nobody asked for, when they are many and thus more likely a mistake."""

    max_deletes: fields.Count = 20
    """Deletions in an upper namespace, and in a lower cluster: so many at once pass whatever share they are."""
    max_delete_percent: fields.Percent = 30
    """Such a share of what there is in an upper namespace, and in a lower cluster, passes however many they are."""


class TopologyFile(Section):
    """Which lower clusters are nodes of the upper cluster, and how."""

    api_version: Literal["tensile-kube.io/v1alpha1"]
    """Version of this format."""
    kind: Literal["Topology"]
    """Kind of this file."""
    name: fields.LabelName
    """Name of the topology, unique in its upper cluster: what is made is marked with it, so engines of one name are
    replicas that take turns, wherever they run, and a change of it is a new owner."""
    upper: Upper = Upper.model_construct()
    """The upper cluster; left out, the one that the engine runs in."""
    lower_defaults: LowerDefaults = LowerDefaults.model_construct()
    """Fields that every lower has unless it says otherwise; mappings merge, lists replace."""
    lowers: tuple[LowerEntry, ...]
    """The lower clusters; may be []. Their order gives the kubelet ports."""
    controllers: fields.Controllers = ("PV", "Service", "ServiceAccount")
    """What is mirrored beside pods, ConfigMaps and Secrets; [] for nothing. RBAC on request only: it grants rights."""
    ignore_labels: fields.LabelKeys = ("pod-group.scheduling.sigs.k8s.io",)
    """Keys of labels that the copy of a pod does not get; the default is what gang schedulers above act on."""
    on_conflict: fields.OnConflict = "fail"
    """fail: leave an object of that name that is not ours alone, and say so on the pod; adopt: make it ours."""
    service_accounts: ServiceAccounts = ServiceAccounts.model_construct()
    """Whose API a pod's token is for; none without the ServiceAccount controller."""
    exclude_namespaces: fields.NamespaceNames = ("kube-system",)
    """Namespaces whose pods are not mirrored; every lower cluster runs its own system."""
    services: Services = Services.model_construct()
    """Which of the upper cluster's own Services are known below."""
    kubelet: Kubelet = Kubelet.model_construct()
    """The kubelet API of the virtual nodes."""
    webhook: Webhook = Webhook.model_construct()
    """The admission webhook."""
    extender: Extender = Extender.model_construct()
    """The scheduler extender."""
    descheduler: Descheduler = Descheduler.model_construct()
    """Moves pods that cannot be scheduled below."""
    telemetry: Telemetry = Telemetry.model_construct()
    """Metrics, health and how the lower clusters are."""
    guard: Guard = Guard.model_construct()
    """Holds back many deletions that nobody asked for."""


_NO_IDENTITY = ServiceAccounts.model_construct(identity="none")


class SecretRef(SecretEntry):
    """Where in the upper cluster a kubeconfig is kept: namespace and name are given."""

    namespace: fields.LabelName
    """Namespace of the Secret."""
    name: fields.ObjectName
    """Name of the Secret."""


class VirtualNode(NodeEntry):
    """The virtual node with its name, its clusterID label, and its port."""

    name: fields.NodeName
    """Name of the node."""
    kubelet_port: fields.Port
    """Port of its kubelet API."""


WAY = ("kubeconfig", "context", "kubeconfig_secret")
"""The fields of a lower that say how its cluster is reached."""


class Lower(LowerEntry):
    """A lower cluster with everything that it inherits."""

    kubeconfig_secret: SecretRef | None = None
    """The Secret that holds the kubeconfig; None when `kubeconfig` has its path."""
    node: VirtualNode
    """The virtual node that stands for it."""
    controllers: fields.Controllers
    """What is mirrored beside pods."""
    ignore_labels: fields.LabelKeys
    """Keys of labels that the copy of a pod does not get."""
    on_conflict: fields.OnConflict
    """What to do with an object of that name that is not ours."""
    service_accounts: ServiceAccounts
    """Whose API a pod's token is for; none without the ServiceAccount controller."""

    @property
    def way(self) -> tuple[object, ...]:
        """How its cluster is reached: lowers that are reached in one way are one cluster."""
        return tuple(getattr(self, field) for field in WAY)


class Topology(TopologyFile):
    """A valid topology; its lowers have everything that they inherit."""

    lowers: tuple[Lower, ...]
    """The lower clusters, in the order of the file."""

    @property
    def enabled(self) -> frozenset[fields.Controller]:
        """The controllers that any lower has."""
        return frozenset(controller for lower in self.lowers for controller in lower.controllers)

    @property
    def places(self) -> bool:
        """Whether anything asks where in a lower cluster a pod fits, so that its nodes have to be known one by one."""
        return self.evicts or self.extender.enabled

    @property
    def evicts(self) -> bool:
        """Whether pods may have to leave the virtual nodes that they are on."""
        return self.descheduler.enabled or any(lower.maintenance == "drain" for lower in self.lowers)


def _merge(own: Any, default: Any) -> Any:
    """Return what holds when both are written: sections and mappings merge, anything else is the lower's own."""
    if isinstance(own, Section) and isinstance(default, Section):
        return type(own).model_construct(**_merged(own, default))
    if isinstance(own, Mapping) and isinstance(default, Mapping):
        return {**default, **own}
    return own


def _merged(own: Section, default: Section) -> dict[str, Any]:
    """Return the fields of a section with those of its defaults that it does not write itself."""
    values = {name: getattr(own, name) for name in type(own).model_fields}
    for name in default.model_fields_set:
        inherited = getattr(default, name)
        values[name] = _merge(values[name], inherited) if name in own.model_fields_set else inherited
    return values


def _node(node: NodeEntry, lower: str, port: int) -> VirtualNode:
    """Fill in a node's name, its clusterID label and its port."""
    values = {name: getattr(node, name) for name in NodeEntry.model_fields}
    values["name"] = node.name or lower
    values["labels"] = {CLUSTER_ID: lower, **node.labels}
    values["kubelet_port"] = node.kubelet_port or port
    return VirtualNode.model_construct(**values)


def _secret(entry: LowerEntry, merged: SecretEntry | None) -> SecretRef | None:
    """Return the Secret of a lower; a path of its own stands against a Secret of lowerDefaults."""
    if merged is None or entry.kubeconfig is not None:
        return None
    return SecretRef.model_construct(namespace=merged.namespace, name=merged.name, key=merged.key)


def _lower(file: TopologyFile, place: int) -> Lower:
    """Fill in what the lower at a place of the file inherits."""
    entry = file.lowers[place]
    values = _merged(entry, file.lower_defaults)
    for name in ("controllers", "ignore_labels", "on_conflict", "service_accounts"):
        values[name] = getattr(file, name) if values[name] is None else values[name]
    if "ServiceAccount" not in values["controllers"]:
        values["service_accounts"] = _NO_IDENTITY
    values["node"] = _node(values["node"], entry.name, file.kubelet.port + place)
    values["kubeconfig_secret"] = _secret(entry, values["kubeconfig_secret"])
    return Lower.model_construct(**values)


def resolve(file: TopologyFile) -> Topology:
    """Make the topology of a file that was found right."""
    values = {name: getattr(file, name) for name in TopologyFile.model_fields}
    values["lowers"] = tuple(_lower(file, place) for place in range(len(file.lowers)))
    return Topology.model_construct(**values)
