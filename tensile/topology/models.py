"""The topology file as models: each field with its meaning, its unit and the reason for its default.

`TopologyFile` is the file as written. `Topology` is what the engine uses, with inherited values filled in.

The text under a field is also its description in the JSON schema and in the reference. It is read from the source when
a schema is requested, not by pydantic when the models are built, which would add 20 ms to every start.

A lower's value is its own, else that of lowerDefaults, else the topology's or the default. It is resolved once, without
another validation: the parts were validated in the file, where errors have positions.
"""

import ast
import inspect
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tensile.names import CLUSTER_ID
from tensile.topology import fields

WAY = ("kubeconfig", "context", "kubeconfig_secret")
"""The fields of a lower that configure access to its cluster."""
MOST_WINDOWS = 32
"""Maximum number of windows: to find the next opening of a rare one takes some milliseconds."""


class Section(BaseModel):
    """A part of the file: immutable, strictly typed, without unknown keys.

    Programs use attribute names, `Guard(max_deletes=1)`. A file has the keys only.
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
    """The upper cluster: the one in which users create pods."""

    kubeconfig: Annotated[fields.FilePath | None, fields.GIVEN] = fields.ABSENT
    """Path of its kubeconfig, relative to this file. If it is not set, the engine uses its own ServiceAccount in the
    cluster."""
    context: fields.Word | None = None
    """Context of the kubeconfig; null: the file's current-context, as in kubectl."""
    advertise_url: fields.ServerUrl | None = Field(default=None, alias="advertiseURL")
    """https://HOST:PORT at which pods in the lower clusters reach the upper apiserver; null: the kubeconfig's
    server."""
    qps: fields.Count = 500
    """Average requests per second to it; 0: no limit. The default is high, as the apiserver applies its own priority
    and fairness."""
    burst: fields.Count = 1000
    """Requests at once before `qps` applies. The default is twice `qps`, for rollouts of large Deployments."""


class SecretEntry(Section):
    """The Secret of the upper cluster that contains the kubeconfig of a lower cluster."""

    namespace: Annotated[fields.LabelName | None, fields.GIVEN] = fields.ABSENT
    """Namespace of the Secret; required here or in lowerDefaults."""
    name: Annotated[fields.ObjectName | None, fields.GIVEN] = fields.ABSENT
    """Name of the Secret; required here or in lowerDefaults."""
    key: fields.DataKey = "kubeconfig"
    """Key in its data; the default is the key that most tools write."""


class Taint(Section):
    """A taint of the virtual node. Pods without a toleration for it are not scheduled there."""

    key: fields.OwnLabelKey
    """Key, in the format of a label key."""
    value: fields.LabelValue = ""
    """Value; empty for a taint without a value."""
    effect: fields.Effect
    """Effect on pods that do not tolerate it, as in Kubernetes."""


PROVIDER_TAINT = Taint.model_construct(key="virtual-kubelet.io/provider", value="k8s", effect="NoSchedule")
"""The usual taint of virtual nodes, so that only pods that tolerate it are scheduled there."""


class NodeEntry(Section):
    """The virtual node that represents a lower cluster in the upper cluster."""

    name: Annotated[fields.NodeName | None, fields.GIVEN] = fields.ABSENT
    """Name of the node, at most 63 characters, since a label repeats it. Default: the lower cluster's name.

    A change is delayed until the node is empty."""
    labels: fields.NodeLabels = {}
    """Labels of the node. Unless it is set, clusterID with the lower cluster's name is added."""
    annotations: fields.NodeAnnotations = {}
    """Annotations of the node."""
    taints: tuple[Taint, ...] = (PROVIDER_TAINT,)
    """Taints of the node; [] for none. The default is the taint of tensile-kube, so that existing tolerations
    match."""
    kubelet_port: fields.Port | None = None
    """Port of the node's kubelet API. null: the port that its Node already publishes, if it is in the range from
    kubelet.port on. Else kubelet.port plus the lower cluster's index in the file, from 0, or the next port that no
    other node has. So the port does not change when other lower clusters are added or removed."""


class Capacity(Section):
    """How much of the lower cluster's Ready, uncordoned nodes is advertised to the upper scheduler.

    Manual changes of the virtual node's capacity or addresses are reverted.
    """

    basis: Literal["free", "allocatable"] = "free"
    """free: allocatable minus the requests of pods that are not ours; allocatable: all allocatable resources, for
    clusters without other pods."""
    reserve: fields.Resources = {}
    """Quantities by resource that are subtracted from what is advertised."""
    limit: fields.Resources = {}
    """Quantities by resource that the advertised capacity never exceeds."""


class Namespaces(Section):
    """How namespaces of the upper cluster are named in the lower cluster."""

    mapping: Literal["same", "prefix"] = "same"
    """same: the same name, so that DNS names in applications stay valid; prefix: TOPOLOGY-NAMESPACE, for shared
    clusters.

    A change is delayed while pods that are bound to the node, or volumes of claims, depend on the current mapping."""


class UnreachableLower(Section):
    """What happens to pods while their lower cluster cannot be reached."""

    evict_after: fields.Duration | None = None
    """Evict them after the cluster has not responded for this long, at least 40 s; null: never, as the cluster probably
    still runs them."""


class ServiceAccounts(Section):
    """The cluster for which a pod's ServiceAccount token is valid."""

    identity: Literal["lower", "upper", "none"] = "lower"
    """lower: an account of the pod's lower cluster; upper: a token of the upper cluster, for pods that call its API;
    none: no token."""


class LowerDefaults(Section):
    """Defaults for the fields of every lower cluster. Mappings merge, lists replace."""

    kubeconfig_secret: Annotated[SecretEntry | None, fields.GIVEN] = fields.ABSENT
    """The Secret of the upper cluster that contains the kubeconfig, instead of a path."""
    context: fields.Word | None = None
    """Context of the kubeconfig; null: the file's current-context, as in kubectl."""
    qps: fields.Count = 500
    """Average requests per second to it; 0: no limit. The default is high, as the apiserver applies its own priority
    and fairness."""
    burst: fields.Count = 1000
    """Requests at once before `qps` applies. The default is twice `qps`, for rollouts of large Deployments."""
    node: NodeEntry = NodeEntry.model_construct()
    """The virtual node that represents it."""
    capacity: Capacity = Capacity.model_construct()
    """How much of it is advertised to the upper scheduler."""
    namespaces: Namespaces = Namespaces.model_construct()
    """How namespaces of the upper cluster are named in it."""
    storage_classes: fields.StorageClasses = {}
    """Upper storage class: lower storage class. A class that is not listed keeps its name."""
    maintenance: Literal["none", "cordon", "drain"] = "none"
    """none; cordon: no new pods; drain: its pods are evicted too."""
    unreachable: UnreachableLower = UnreachableLower.model_construct()
    """What happens to its pods while it cannot be reached."""
    controllers: fields.Controllers | None = None
    """Kinds that are mirrored in addition to pods; null: the topology's setting."""
    ignore_labels: fields.LabelKeys | None = None
    """Keys of labels that are not copied to lower pods; null: the topology's setting."""
    on_conflict: fields.OnConflict | None = None
    """What to do with an object of the same name that is not ours; null: the topology's setting."""
    service_accounts: ServiceAccounts | None = None
    """The cluster for which a pod's token is valid; null: the topology's setting."""


class LowerEntry(LowerDefaults):
    """A lower cluster, which runs pods of the upper cluster behind a virtual node."""

    name: fields.LabelName
    """Name of the cluster in this topology, and default name of its node. Volumes record it."""
    kubeconfig: Annotated[fields.FilePath | None, fields.GIVEN] = fields.ABSENT
    """Path of its kubeconfig, relative to this file; this or kubeconfigSecret is required."""


class Services(Section):
    """Which Services of the upper cluster itself are mirrored to the lower clusters."""

    kube_system: bool = False
    """Mirror the Services of kube-system too. Off by default, as every lower cluster has its own with the same
    names."""
    upper_alias: fields.AliasName = "kubernetes-upper"
    """Name of the Service in each mirrored namespace that leads to the upper apiserver."""


class Kubelet(Section):
    """The kubelet API of the virtual nodes, which the upper apiserver calls for logs and exec."""

    bind: fields.Address = "0.0.0.0"  # noqa: S104 - the upper apiserver calls from another machine
    """IP address to listen on; by default every IPv4 address, as the upper apiserver calls from another machine. '::'
    is every IPv4 and IPv6 address, which an IPv6-only cluster needs."""
    port: fields.Port = 10350
    """First port of the range for the nodes. The default is not 10250, which a real kubelet on the same machine uses. A
    change of this field or of `bind` needs a restart."""
    node_address: fields.ReachableAddress | None = None
    """IP address that the nodes publish; null: POD_IP or VKUBELET_POD_IP of the environment, else the local address of
    the connection to the upper cluster."""
    tls_cert_file: fields.FilePath | None = None
    """Path of the serving certificate, together with tlsKeyFile; null: a certificate issued by the upper cluster. Each
    engine requests it at startup, with a CertificateSigningRequest per node. Until that is approved, the engine uses a
    self-signed certificate and logs a warning."""
    tls_key_file: fields.FilePath | None = None
    """Path of the certificate's key."""
    client_ca_file: fields.FilePath | None = Field(default=None, alias="clientCAFile")
    """Path of the CA of clients; null: client-ca-file in ConfigMap kube-system/extension-apiserver-authentication of
    the upper cluster. If that cannot be read, every request is refused."""


class ServiceRef(Section):
    """A Service of the upper cluster."""

    namespace: fields.LabelName
    """Namespace of the Service."""
    name: fields.AliasName
    """Name of the Service."""


class Webhook(Section):
    """The admission webhook, which prepares pods labelled virtual-pod for virtual nodes."""

    enabled: bool = False
    """Serve it. Off by default, as the upper apiserver needs a route to it. Without it, the engine prepares pods
    later."""
    bind: fields.Address = "0.0.0.0"  # noqa: S104 - the upper apiserver calls from another machine
    """IP address to listen on; by default every IPv4 address, as the upper apiserver calls from another machine. '::'
    is every IPv4 and IPv6 address, which an IPv6-only cluster needs."""
    port: fields.Port = 8443
    """Port to listen on. The default is above 1024, so that no privileges are needed. While the webhook is enabled, a
    change of this field or of `bind` needs a restart."""
    service: ServiceRef | None = None
    """The Service through which the upper apiserver reaches it; null if `url` is set."""
    url: fields.Url | None = None
    """The URL at which the upper apiserver reaches it, for an engine outside the cluster; null if `service` is
    set."""
    tls_cert_file: fields.FilePath | None = None
    """Path of the serving certificate, together with tlsKeyFile; null: a certificate of the engine's own CA. Replicas
    in a cluster share it in a Secret."""
    tls_key_file: fields.FilePath | None = None
    """Path of the certificate's key."""
    ignore_selector_keys: fields.LabelKeys = ("clusterID",)
    """Keys that stay in a pod's nodeSelector and affinity, as they choose the virtual node itself."""

    @property
    def is_reachable(self) -> bool:
        """Whether the file configures how the upper apiserver reaches the webhook."""
        return self.service is not None or self.url is not None


class Extender(Section):
    """The scheduler extender, which checks for the upper scheduler whether a pod fits a lower cluster's real nodes.

    It presents kubelet.tlsCertFile, and accepts only system:kube-scheduler with a client certificate of
    kubelet.clientCAFile.
    """

    enabled: bool = False
    """Serve it. Off by default, as the upper scheduler must be configured to call it."""
    bind: fields.Address = "0.0.0.0"  # noqa: S104 - the upper scheduler calls from another machine
    """IP address to listen on; by default every IPv4 address, as the upper scheduler calls from another machine. '::'
    is every IPv4 and IPv6 address, which an IPv6-only cluster needs."""
    port: fields.Port = 8888
    """Port to listen on. The default is above 1024, so that no privileges are needed. While the extender is enabled, a
    change of this field or of `bind` needs a restart."""
    strategy: Literal["spread", "binpack"] = "spread"
    """spread: prefer the emptier cluster, as Kubernetes does with nodes; binpack: prefer the fuller cluster."""


class Descheduler(Section):
    """Moves pods that cannot be scheduled in the lower cluster of their node."""

    enabled: bool = False
    """Run it. Off by default, as it evicts pods."""
    interval: fields.Duration = timedelta(seconds=60)
    """Time between two passes, at least 2 s."""
    pending_longer_than: fields.Duration = timedelta(seconds=120)
    """Move pods that are unschedulable in their lower cluster for longer than this. The default gives an autoscaler
    time to add a node."""
    max_evictions_per_node: fields.Count = 10
    """Maximum number of evictions from one virtual node in one pass. It limits the effect of a mistake."""
    cooldown: fields.Duration = timedelta(minutes=5)
    """Time during which pods of the same owner are not sent back to the node that a pod left."""
    dry_run: bool = False
    """Report what would be moved, and move nothing."""
    recreate_bare_pods: bool = False
    """Move pods without a controller, in a drain too, by creating them again elsewhere. Off by default, as the engine
    then needs permission to create pods and Secrets in every namespace of the upper cluster. While it is off, such pods
    stay where they are."""


class Window(Section):
    """A time in which pods may be moved."""

    schedule: fields.Schedule
    """When the window opens: a cron schedule of five fields (minute, hour, day of month, month, day of week), as in a
    CronJob. For the days, `?` means the same as `*`."""
    duration: fields.Duration
    """How long it stays open. Where the clock changes, this is the time that passes."""
    time_zone: fields.TimeZone = "UTC"
    """Time zone of the schedule, by its IANA name. A start in the hour that a clock change skips is at its end; in an
    hour that occurs twice, it is in the first one."""


class Telemetry(Section):
    """Metrics, health and the state of the lower clusters: /metrics, /healthz, /readyz, /status."""

    bind: fields.Address = "127.0.0.1"
    """IP address to listen on; by default only this machine, as there is no authentication. '::' is every IPv4 and IPv6
    address, which an IPv6-only cluster needs for its metrics."""
    port: fields.Port = 9095
    """Port to listen on. A change of this field or of `bind` needs a restart."""


class Guard(Section):
    """Blocks deletions that were not requested in the upper cluster, if there are so many that a mistake is likely.

    With `approveOver`, it also keeps large edits of the topology from becoming active by mistake.
    """

    max_deletes: fields.Count = 20
    """Deletions in an upper namespace, and in a lower cluster, that are allowed at once, whatever their percentage."""
    max_delete_percent: fields.Percent = 30
    """Percentage of the objects in an upper namespace, and in a lower cluster, whose deletion is allowed, whatever
    their number."""
    approve_over: fields.Count | None = None
    """Running pods that an edit of the topology may restart, move or end without an approval. An edit that affects more
    waits for `tensile approve`. null: every edit is active at once. The value of the active topology counts, not that
    of the edit."""


class TopologyFile(Section):
    """The lower clusters that are nodes of the upper cluster, and their settings."""

    api_version: Literal["tensile-kube.io/v1alpha1"]
    """Version of this format."""
    kind: Literal["Topology"]
    """Kind of this file."""
    name: fields.LabelName
    """Name of the topology, unique in its upper cluster. All created objects are marked with it. Engines with the same
    name are replicas with one leader, wherever they run. A changed name is a new owner."""
    upper: Upper = Upper.model_construct()
    """The upper cluster; default: the cluster in which the engine runs."""
    lower_defaults: LowerDefaults = LowerDefaults.model_construct()
    """Defaults for the fields of every lower cluster. Mappings merge, lists replace."""
    lowers: tuple[LowerEntry, ...]
    """The lower clusters; can be []. The position of a lower cluster determines the kubelet port of its new node."""
    controllers: fields.Controllers = ("PV", "Service", "ServiceAccount")
    """Kinds that are mirrored in addition to pods, ConfigMaps and Secrets; [] for none. RBAC is off by default, as it
    grants permissions. If a kind is removed, copies that pods use stay until these pods are gone, except
    permissions."""
    ignore_labels: fields.LabelKeys = ("pod-group.scheduling.sigs.k8s.io",)
    """Keys of labels that are not copied to lower pods. The default is the key of gang schedulers of the upper
    cluster."""
    on_conflict: fields.OnConflict = "fail"
    """fail: do not change an object of the same name that is not ours, and report it on the pod; adopt: take it
    over."""
    service_accounts: ServiceAccounts = ServiceAccounts.model_construct()
    """The cluster for which a pod's token is valid; none without the ServiceAccount controller."""
    exclude_namespaces: fields.NamespaceNames = ("kube-system",)
    """Namespaces whose pods are not mirrored: a new pod there stays Pending. Pods that have a lower pod already keep it
    until they are deleted. The default is kube-system, as every lower cluster has its own system pods."""
    services: Services = Services.model_construct()
    """Which Services of the upper cluster itself are mirrored to the lower clusters."""
    kubelet: Kubelet = Kubelet.model_construct()
    """The kubelet API of the virtual nodes."""
    webhook: Webhook = Webhook.model_construct()
    """The admission webhook."""
    extender: Extender = Extender.model_construct()
    """The scheduler extender."""
    descheduler: Descheduler = Descheduler.model_construct()
    """Moves pods that cannot be scheduled in their lower cluster."""
    windows: Annotated[tuple[Window, ...], fields.at_most(MOST_WINDOWS)] = Field(default=(), max_length=MOST_WINDOWS)
    """When pods may be moved, by the descheduler and by drains; by default always. At most 32.
    `unreachable.evictAfter` does not wait for a window."""
    telemetry: Telemetry = Telemetry.model_construct()
    """Metrics, health and the state of the lower clusters."""
    guard: Guard = Guard.model_construct()
    """Blocks large numbers of deletions that were not requested in the upper cluster."""


_ROOM, _LAST_PORT = 100, 65535
_NO_IDENTITY = ServiceAccounts.model_construct(identity="none")


class SecretRef(SecretEntry):
    """The Secret of a kubeconfig, with namespace and name."""

    namespace: fields.LabelName
    """Namespace of the Secret."""
    name: fields.ObjectName
    """Name of the Secret."""


class VirtualNode(NodeEntry):
    """The virtual node with its name and its clusterID label."""

    name: fields.NodeName
    """Name of the node."""


class Lower(LowerEntry):
    """A lower cluster with everything that it inherits."""

    kubeconfig_secret: SecretRef | None = None
    """The Secret that contains the kubeconfig; None if `kubeconfig` has its path."""
    node: VirtualNode
    """The virtual node that represents it."""
    controllers: fields.Controllers
    """What is mirrored besides pods."""
    ignore_labels: fields.LabelKeys
    """Keys of labels that are not copied to lower pods."""
    on_conflict: fields.OnConflict
    """What to do with an object of the same name that is not ours."""
    service_accounts: ServiceAccounts
    """The cluster for which a pod's token is valid; none without the ServiceAccount controller."""

    @property
    def way(self) -> tuple[object, ...]:
        """The access to its cluster. Lowers with the same access are the same cluster."""
        return tuple(getattr(self, field) for field in WAY)


class Topology(TopologyFile):
    """A valid topology. Its lowers have everything that they inherit."""

    lowers: tuple[Lower, ...]
    """The lower clusters, in the order of the file."""

    @property
    def enabled(self) -> frozenset[fields.Controller]:
        """The controllers that any lower has."""
        return frozenset(controller for lower in self.lowers for controller in lower.controllers)

    @property
    def places(self) -> bool:
        """Whether any feature checks on which lower nodes a pod fits, so that these nodes must be watched."""
        is_required = self.descheduler.enabled or self.extender.enabled
        return is_required or (self.descheduler.recreate_bare_pods and self.evicts)

    @property
    def evicts(self) -> bool:
        """Whether pods may be evicted from virtual nodes."""
        return self.descheduler.enabled or any(lower.maintenance == "drain" for lower in self.lowers)

    @property
    def kubelet_ports(self) -> range:
        """The ports from which those of virtual nodes are chosen, with room for lowers that are added later."""
        first = self.kubelet.port
        return range(first, min(first + max(_ROOM, len(self.lowers)), _LAST_PORT + 1))

    @property
    def server_ports(self) -> dict[str, int]:
        """The ports of the enabled servers besides the virtual nodes, by section of the file."""
        found = {"telemetry": self.telemetry.port}
        for section, server in (("webhook", self.webhook), ("extender", self.extender)):
            if server.enabled:
                found[section] = server.port
        return found


def resolve(file: TopologyFile) -> Topology:
    """Return the topology of a valid file, with inherited values."""
    values = {name: getattr(file, name) for name in TopologyFile.model_fields}
    values["lowers"] = tuple(_lower(file, index) for index in range(len(file.lowers)))
    return Topology.model_construct(**values)


def _lower(file: TopologyFile, index: int) -> Lower:
    """Return the lower at a position of the file, with inherited values."""
    entry = file.lowers[index]
    values = _merged(entry, file.lower_defaults)
    for name in ("controllers", "ignore_labels", "on_conflict", "service_accounts"):
        values[name] = getattr(file, name) if values[name] is None else values[name]
    if "ServiceAccount" not in values["controllers"]:
        values["service_accounts"] = _NO_IDENTITY
    values["node"] = _node(values["node"], entry.name)
    values["kubeconfig_secret"] = _secret(entry, values["kubeconfig_secret"])
    return Lower.model_construct(**values)


def _merged(own: Section, default: Section) -> dict[str, Any]:
    """Return the fields of a section, with the defaults for those that it does not set."""
    values = {name: getattr(own, name) for name in type(own).model_fields}
    for name in default.model_fields_set:
        inherited = getattr(default, name)
        values[name] = _merge(values[name], inherited) if name in own.model_fields_set else inherited
    return values


def _merge(own: Any, default: Any) -> Any:
    """Combine two values: sections and mappings merge, otherwise the lower's own value is used."""
    if isinstance(own, Section) and isinstance(default, Section):
        return type(own).model_construct(**_merged(own, default))
    if isinstance(own, Mapping) and isinstance(default, Mapping):
        return {**default, **own}
    return own


def _node(node: NodeEntry, lower: str) -> VirtualNode:
    """Return a node with its name and its clusterID label."""
    values = {name: getattr(node, name) for name in NodeEntry.model_fields}
    values["name"] = node.name or lower
    values["labels"] = {CLUSTER_ID: lower, **node.labels}
    return VirtualNode.model_construct(**values)


def _secret(entry: LowerEntry, merged: SecretEntry | None) -> SecretRef | None:
    """Return the Secret of a lower. The lower's own path overrides a Secret of lowerDefaults."""
    if merged is None or entry.kubeconfig is not None:
        return None
    return SecretRef.model_construct(namespace=merged.namespace, name=merged.name, key=merged.key)


_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _texts(definition: ast.ClassDef) -> dict[str, str]:
    """Return the text under each field of a class."""
    found: dict[str, str] = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if not (isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)):
            continue
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def field_texts() -> dict[str, dict[str, str]]:
    """Return the text under each field, by the model's name and the field's key, including inherited fields."""
    tree = ast.parse(inspect.getsource(sys.modules[__name__]))
    own = {node.name: _texts(node) for node in tree.body if isinstance(node, ast.ClassDef)}
    return {
        model.__name__: {
            str(field.alias): next(own[base.__name__][name] for base in model.__mro__ if name in own[base.__name__])
            for name, field in model.model_fields.items()
        }
        for model in tuple(globals().values())
        if isinstance(model, type) and issubclass(model, Section)
    }


def _complete(entry: dict[str, Any], default: Any, text: str) -> None:
    """Complete the schema of a field: description, default as in the file, and no additional keys."""
    entry["description"] = text
    entry.pop("title", None)
    if isinstance(default, timedelta):
        entry["default"] = fields.write_duration(default)
    if not _is_writable(entry):
        entry.pop("default", None)
    if "patternProperties" in entry:
        entry["additionalProperties"] = False


def _is_writable(entry: dict[str, Any]) -> bool:
    """Report whether a default is meaningful. For a section it is not, as its fields have their own."""
    may_be_null = any(one.get("type") == "null" for one in entry.get("anyOf", ()))
    return "$ref" not in entry and (entry.get("default") is not None or may_be_null)


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of the topology file: every field, its default and its description.

    Constraints across fields (names, ports, pairs) are not in it: `parse` checks them.
    """
    generated = TopologyFile.model_json_schema(by_alias=True)
    texts = field_texts()
    for name, section in {"TopologyFile": generated, **generated["$defs"]}.items():
        for field in globals()[name].model_fields.values():
            key = str(field.alias)
            _complete(section["properties"][key], field.default, texts[name][key])
        section["description"] = " ".join(section["description"].split())
    return {"$schema": _DIALECT, **generated, "title": "Topology"}
