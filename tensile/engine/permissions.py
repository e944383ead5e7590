"""The permissions that the engine needs in each cluster, as data: the one list for checks and for generated roles.

It contains every request that the engine makes and nothing else, so that a credential with just these permissions is
sufficient. A controller's permissions follow from the kinds it watches (reconcile/mirrored_kinds.py): kinds of which
it has objects of its own are written too, the others are only read.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tensile.engine.history import file_place
from tensile.engine.leader_election import lease_ref
from tensile.engine.topology_reader import ConfigMapKey
from tensile.kubelet.stats.usage import NODE_METRICS, POD_METRICS
from tensile.names import HISTORY_SUFFIX, LEASE_NAMESPACE, PLAN_SUFFIX, STATUS_SUFFIX
from tensile.objects import (
    ACCESS_REVIEW,
    CLAIM,
    CONFIG_MAP,
    DISRUPTION_BUDGET,
    EVENT,
    LEASE,
    NAMESPACE,
    NETWORK_POLICY,
    NODE,
    POD,
    SECRET,
    SERVICE_ACCOUNT,
    SIGNING_REQUEST,
    STORAGE_CLASS,
    TOKEN_REVIEW,
    UPPER,
    Kind,
    Ref,
)
from tensile.policy.webhook.admission_policy import binding_ref, policy_ref
from tensile.policy.webhook.registration import ref_of, secret_ref
from tensile.reconcile.mirrored_kinds import FOLLOWS, WatchedKind
from tensile.topology import Controller, Lower, Topology

FOLLOWED = ("list", "watch")
READ = ("get", *FOLLOWED)
WRITTEN = ("create", "patch", "delete")
ALL_KINDS = Kind("*/*", "everything", "*", namespaced=True)
"""All kinds of a cluster, including those of extensions."""
_STREAMED = ("get", "create")
"""For exec, attach and port-forward: a WebSocket is opened by a GET, and both verbs are checked."""
_BARE = "descheduler.recreateBarePods"
_AT_CREATION = "tolerations of pods, added at their creation"
_AT_CREATION_LOST = (
    "the MutatingAdmissionPolicy: instead, the engine patches the tolerations of each pod after it is bound"
)
_UNPLANNED = "plans of candidate topologies"
_BUDGETS = "disruption budgets in the plans of candidates, and of topologies on the status page"
_PREEMPTED = f"preemption for pods that fit a virtual node, but none of its real nodes; {_BUDGETS}"
_RECORDED = "approvals of edits (guard.approveOver), and tensile rollback"
_EVICTED = "evictions by descheduler and maintenance: drain"
"""Always granted: it is less than deleting pods, and a user who must drain a cluster has no time to change roles."""


class Permission(NamedTuple):
    """Verbs on a resource, or on its `subresource`, and their purpose.

    They apply in one `namespace` ("": all), and to the object of one `name` ("": all). If `lost` is set, the engine
    works without this permission, and `lost` describes what is missing then.
    """

    kind: Kind
    verbs: tuple[str, ...]
    purpose: str
    subresource: str = ""
    namespace: str = ""
    lost: str = ""
    name: str = ""

    @property
    def group(self) -> str:
        """The API group, "" for the core group."""
        return self.kind.group

    @property
    def resource(self) -> str:
        """The resource in the notation of roles, such as "pods/status"."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


_UPPER = (
    Permission(NODE, (*READ, *WRITTEN), "virtual nodes"),
    Permission(NODE, ("patch",), "virtual nodes", "status"),
    Permission(LEASE, ("get", "create", "patch"), "heartbeats of virtual nodes", namespace=LEASE_NAMESPACE),
    Permission(POD, (*READ, "patch", "delete"), "pods that are bound to virtual nodes"),
    Permission(POD, ("patch",), "pods that are bound to virtual nodes", "status"),
    Permission(NAMESPACE, READ, "namespaces of mirrored pods, and the identity of the cluster"),
    Permission(CONFIG_MAP, READ, "ConfigMaps that pods refer to, and the client CA of the kubelet API"),
    Permission(SECRET, FOLLOWED, "Secrets that pods refer to"),
    Permission(EVENT, ("get", "create", "patch"), "events of pods"),
    Permission(
        NETWORK_POLICY,
        FOLLOWED,
        "events on NetworkPolicies, which are not mirrored",
        lost="the events on NetworkPolicies that do not apply to mirrored pods",
    ),
    Permission(TOKEN_REVIEW, ("create",), "authentication of callers of the kubelet API"),
    Permission(ACCESS_REVIEW, ("create",), "authorization of callers of the kubelet API"),
)
_LOWER = (
    Permission(POD, (*READ, *WRITTEN), "mirrored pods"),
    Permission(POD, ("get",), "kubectl logs", "log"),
    Permission(POD, _STREAMED, "kubectl exec and cp", "exec"),
    Permission(POD, _STREAMED, "kubectl attach", "attach"),
    Permission(POD, _STREAMED, "kubectl port-forward", "portforward"),
    Permission(POD, ("patch",), "in-place resize of pods", "resize"),
    Permission(POD, ("patch",), "kubectl debug", "ephemeralcontainers"),
    Permission(NAMESPACE, (*READ, *WRITTEN), "namespaces of mirrored pods, and the identity of the cluster"),
    Permission(CONFIG_MAP, (*READ, *WRITTEN), "ConfigMaps that pods refer to"),
    Permission(SECRET, (*READ, *WRITTEN), "Secrets that pods refer to"),
    Permission(SERVICE_ACCOUNT, READ, "the default ServiceAccount of a namespace, which its pods need"),
    Permission(NODE, FOLLOWED, "capacity of the virtual node"),
    Permission(EVENT, FOLLOWED, "events of pods"),
    Permission(NODE_METRICS, ("list",), "kubectl top", lost="kubectl top, and autoscaling by resource usage"),
    Permission(POD_METRICS, ("list",), "kubectl top", lost="kubectl top, and autoscaling by resource usage"),
    Permission(
        ALL_KINDS,
        ("list",),
        "check that a namespace is empty before its deletion",
        lost="the deletion of unused namespaces that the engine created",
    ),
)


def upper_rights(
    topology: Topology, *, place: ConfigMapKey | None = None, takes_turns: bool = False, namespace: str = ""
) -> list[Permission]:
    """Return the permissions of a topology's engine in the upper cluster.

    `place` is the ConfigMap with the topology, None for a file; `takes_turns` is whether it uses leader election;
    `namespace` is where it runs, "" outside a cluster.
    """
    permissions = [*_UPPER, *_controllers(topology.enabled, is_upper=True)]
    budgets = _PREEMPTED if topology.extender.enabled else _BUDGETS
    permissions.append(Permission(DISRUPTION_BUDGET, ("list",), budgets, lost=budgets))
    if topology.kubelet.tls_cert_file is None:
        permissions.append(Permission(SIGNING_REQUEST, ("create", "get"), "serving certificates of virtual nodes"))
    if "PV" in topology.enabled:
        permissions.append(Permission(CLAIM, ("patch",), "controller PV"))
        permissions.append(Permission(CLAIM, ("patch",), "controller PV", "status"))
    if any(lower.service_accounts.identity == "upper" for lower in topology.lowers):
        permissions.append(Permission(SERVICE_ACCOUNT, ("create",), "serviceAccounts.identity: upper", "token"))
    lost = "" if topology.evicts else f"{_EVICTED}, when an edit enables them"
    permissions.append(Permission(POD, ("create",), _EVICTED, "eviction", lost=lost))
    if topology.descheduler.recreate_bare_pods:
        permissions += [Permission(POD, ("create",), _BARE), Permission(SECRET, ("get", *WRITTEN), _BARE)]
    permissions += _admission(topology, namespace)
    if place is not None:
        permissions += _records(place, "the status ConfigMap of the topology", "its last accepted topologies")
        plan = Ref(UPPER, CONFIG_MAP, place.namespace, place.name + PLAN_SUFFIX)
        permissions += _one(plan, ("create", "patch", "delete"), "the plan of a candidate topology", lost=_UNPLANNED)
    else:
        permissions += _records(file_place(topology.name), _RECORDED, _RECORDED, _RECORDED)
    if takes_turns:
        permissions += _one(lease_ref(topology.name), ("get", "create", "patch"), "leader election")
    return _joined(permissions)


def lower_rights(lower: Lower) -> list[Permission]:
    """Return the permissions of the engine in a lower cluster."""
    return _joined([*_LOWER, *_controllers(lower.controllers, is_upper=False)])


def _one(ref: Ref, verbs: tuple[str, ...], purpose: str, lost: str = "") -> Iterator[Permission]:
    """Yield permissions on a single object where roles can express that: at `create` no name is known yet."""
    basis = Permission(ref.kind, (), purpose, namespace=ref.namespace, lost=lost)
    yield basis._replace(verbs=("create",))
    yield basis._replace(verbs=tuple(verb for verb in verbs if verb != "create"), name=ref.name)


def _records(place: ConfigMapKey, status: str, history: str, lost: str = "") -> Iterator[Permission]:
    """Yield the permissions on the two ConfigMaps in which the engine reports on its topology."""
    for suffix, purpose in ((STATUS_SUFFIX, status), (HISTORY_SUFFIX, history)):
        ref = Ref(UPPER, CONFIG_MAP, place.namespace, place.name + suffix)
        yield from _one(ref, ("create", "patch"), purpose, lost)


def _admission(topology: Topology, namespace: str) -> Iterator[Permission]:
    """Yield the permissions for admission of pods: the webhook, and the MutatingAdmissionPolicy."""
    webhook, secret = topology.webhook, secret_ref(topology, namespace)
    if webhook.enabled:
        yield from _one(ref_of(topology), ("get", *WRITTEN), "registration of the webhook")
        yield Permission(CLAIM, FOLLOWED, "the webhook, which sends pods to the clusters of their volumes")
        if secret is not None and webhook.tls_cert_file is None:
            yield from _one(secret, ("get", *WRITTEN), "CA and certificate of the webhook")
    else:
        yield from (_taken_back(ref) for ref in (ref_of(topology), secret) if ref is not None)
    for ref in (policy_ref(topology.name), binding_ref(topology.name)):
        yield from _one(ref, ("get", *WRITTEN), _AT_CREATION, lost=_AT_CREATION_LOST)


def _taken_back(ref: Ref) -> Permission:
    """Return the permission to delete what there is from when the webhook was enabled; else it would remain."""
    lost = "the deletion of a registration or Secret of a disabled webhook; pod creation may wait for the webhook"
    purpose = "removal of the webhook after webhook.enabled was true"
    return Permission(ref.kind, ("get", "delete"), purpose, namespace=ref.namespace, name=ref.name, lost=lost)


def _controllers(controllers: Iterable[Controller], *, is_upper: bool) -> Iterator[Permission]:
    """Yield the permissions of controllers on one side."""
    for controller in sorted(controllers):
        for follow in FOLLOWS[controller]:
            if follow.is_upper == is_upper:
                yield Permission(follow.kind, _verbs(follow), f"controller {controller}")


def _verbs(follow: WatchedKind) -> tuple[str, ...]:
    """Return the verbs for a kind: ours are written, and upper originals are read again before copies are deleted."""
    if follow.ours:
        return (*READ, *WRITTEN)
    return READ if follow.is_upper and follow.kind not in (STORAGE_CLASS, SERVICE_ACCOUNT) else FOLLOWED


def _joined(rights: Iterable[Permission]) -> list[Permission]:
    """Merge the verbs on each resource, with the first purpose, in the order of the resources."""
    found: dict[tuple[Kind, str, str, str], Permission] = {}
    for right in rights:
        key = (right.kind, right.subresource, right.namespace, right.name)
        merged = found.get(key)
        verbs = {*(merged.verbs if merged else ()), *right.verbs}
        found[key] = (merged or right)._replace(verbs=tuple(verb for verb in (*READ, *WRITTEN) if verb in verbs))
    return list(found.values())
