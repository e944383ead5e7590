"""What the engine may do in each cluster, as data: the one list from which rights are checked, and roles can be made.

Every request that is made stands here and nothing else, so that a credential with just these rights is enough. What a
controller needs follows from what it follows (reconcile/following.py): kinds that it keeps objects of its own of are
written too, the others are only looked at.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tensile.engine.configmap_source import Place
from tensile.engine.leader_election import lease_ref
from tensile.kubelet.stats.usage import NODE_METRICS, POD_METRICS
from tensile.names import LEASE_NAMESPACE, STATUS_SUFFIX
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
from tensile.policy.webhook.registration import ref_of
from tensile.reconcile.watches import FOLLOWS, Follow
from tensile.topology import Controller, Lower, Topology

FOLLOWED = ("list", "watch")
READ = ("get", *FOLLOWED)
WRITTEN = ("create", "patch", "delete")
ALL_KINDS = Kind("*/*", "everything", "*", namespaced=True)
"""Whatever kinds a cluster has, those of extensions too."""

_STREAMED = ("get", "create")
"""For exec, attach and port-forward: a WebSocket is opened by a GET, and both rights are asked for."""


class Right(NamedTuple):
    """Some verbs on a resource, or on a `subresource` of it, and what they are for.

    In one `namespace`, or with "" everywhere; on the one object of a `name`, or with "" on all. Without a right that
    has `lost` the engine works, and that is lost.
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
        """The API group, "" for the core one."""
        return self.kind.api.rpartition("/")[0]

    @property
    def resource(self) -> str:
        """The resource as roles write it, such as "pods/status"."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


def upper_rights(topology: Topology, *, place: Place | None = None, takes_turns: bool = False) -> list[Right]:
    """Return what the engine of a topology may do in the upper cluster.

    `place` is the ConfigMap that holds the topology, None where a file does; `takes_turns` says whether it is one of
    several engines that do so by a Lease.
    """
    found = [*_ABOVE, *_controllers(topology.enabled, above=True), *_preempting(topology)]
    if topology.kubelet.tls_cert_file is None:
        found.append(Right(SIGNING_REQUEST, ("create", "get"), "serving certificates of virtual nodes"))
    if "PV" in topology.enabled:
        found.append(Right(CLAIM, ("patch",), "controller PV"))
        found.append(Right(CLAIM, ("patch",), "controller PV", "status"))
    if any(lower.service_accounts.identity == "upper" for lower in topology.lowers):
        found.append(Right(SERVICE_ACCOUNT, ("create",), "serviceAccounts.identity: upper", "token"))
    lost = "" if topology.evicts else f"{_EVICTED}, once an edit asks for it"
    found.append(Right(POD, ("create",), _EVICTED, "eviction", lost=lost))
    if topology.evicts:
        found += [Right(POD, ("create",), _BARE), Right(SECRET, ("get", *WRITTEN), _BARE)]
    found += _admission(topology)
    if place is not None:
        status = Ref(UPPER, CONFIG_MAP, place.namespace, place.name + STATUS_SUFFIX)
        found += _one(status, ("create", "patch"), "the topology's status beside its ConfigMap")
    if takes_turns:
        found += _one(lease_ref(topology.name), ("get", "create", "patch"), "replicas that take turns")
    return _joined(found)


def lower_rights(lower: Lower) -> list[Right]:
    """Return what the engine may do in a lower cluster."""
    return _joined([*_BELOW, *_controllers(lower.controllers, above=False)])


_BARE = "pods without a controller that are moved"
_AT_CREATION = "tolerations that pods get when they are created"
_AT_CREATION_LOST = "the MutatingAdmissionPolicy: the engine patches the tolerations of each pod after it is bound"
_PREEMPTED = "preemption for pods that only the real nodes behind a virtual node refuse"
_EVICTED = "evictions by descheduler and maintenance: drain"
"""May always be: it is less than the deletion of pods, and who has to drain a cluster has no time for roles."""
_ABOVE = (
    Right(NODE, (*READ, *WRITTEN), "virtual nodes"),
    Right(NODE, ("patch",), "virtual nodes", "status"),
    Right(LEASE, ("get", "create", "patch"), "heartbeats of virtual nodes", namespace=LEASE_NAMESPACE),
    Right(POD, (*READ, "patch", "delete"), "pods that are bound to virtual nodes"),
    Right(POD, ("patch",), "pods that are bound to virtual nodes", "status"),
    Right(NAMESPACE, READ, "namespaces of mirrored pods, and which cluster it is"),
    Right(CONFIG_MAP, READ, "what pods refer to, and the authority of callers of the kubelet API"),
    Right(SECRET, FOLLOWED, "what pods refer to"),
    Right(EVENT, ("get", "create", "patch"), "events of pods"),
    Right(
        NETWORK_POLICY,
        FOLLOWED,
        "events on NetworkPolicies, which are not mirrored",
        lost="the events on NetworkPolicies that do not apply to mirrored pods",
    ),
    Right(TOKEN_REVIEW, ("create",), "who calls the kubelet API"),
    Right(ACCESS_REVIEW, ("create",), "who may call the kubelet API"),
)
_BELOW = (
    Right(POD, (*READ, *WRITTEN), "mirrored pods"),
    Right(POD, ("get",), "kubectl logs", "log"),
    Right(POD, _STREAMED, "kubectl exec and cp", "exec"),
    Right(POD, _STREAMED, "kubectl attach", "attach"),
    Right(POD, _STREAMED, "kubectl port-forward", "portforward"),
    Right(POD, ("patch",), "changed resources of pods that run", "resize"),
    Right(POD, ("patch",), "kubectl debug", "ephemeralcontainers"),
    Right(NAMESPACE, (*READ, *WRITTEN), "namespaces of mirrored pods, and which cluster it is"),
    Right(CONFIG_MAP, (*READ, *WRITTEN), "what pods refer to"),
    Right(SECRET, (*READ, *WRITTEN), "what pods refer to"),
    Right(SERVICE_ACCOUNT, READ, "when pods can be made in a namespace"),
    Right(NODE, FOLLOWED, "capacity of the virtual node"),
    Right(EVENT, FOLLOWED, "events of pods"),
    Right(NODE_METRICS, ("list",), "kubectl top", lost="kubectl top and autoscaling by use"),
    Right(POD_METRICS, ("list",), "kubectl top", lost="kubectl top and autoscaling by use"),
    Right(
        ALL_KINDS,
        ("list",),
        "whether a namespace is empty before it is deleted",
        lost="the deletion of namespaces that the engine made and nobody needs any more",
    ),
)


def _one(ref: Ref, verbs: tuple[str, ...], purpose: str, lost: str = "") -> Iterator[Right]:
    """Yield rights on the one object that they are for, where roles can say so: at `create` no name is known yet."""
    basis = Right(ref.kind, (), purpose, namespace=ref.namespace, lost=lost)
    yield basis._replace(verbs=("create",))
    yield basis._replace(verbs=tuple(verb for verb in verbs if verb != "create"), name=ref.name)


def _admission(topology: Topology) -> Iterator[Right]:
    """Yield what takes part in the creation of pods: the webhook, and the MutatingAdmissionPolicy."""
    if topology.webhook.enabled:
        yield from _one(ref_of(topology), ("get", *WRITTEN), "registration of the webhook")
        yield Right(CLAIM, FOLLOWED, "the webhook, which keeps pods with their volumes")
    else:
        yield _taken_back(ref_of(topology))
    for ref in (policy_ref(topology.name), binding_ref(topology.name)):
        yield from _one(ref, ("get", *WRITTEN), _AT_CREATION, lost=_AT_CREATION_LOST)


def _preempting(topology: Topology) -> Iterator[Right]:
    """Return the right on what says how many pods may go at a time; their deletion is a right that there is anyway."""
    if topology.extender.enabled:
        yield Right(DISRUPTION_BUDGET, ("list",), _PREEMPTED, lost=_PREEMPTED)


def _taken_back(ref: Ref) -> Right:
    """Return the right on what an engine may have registered while the webhook was on; it stays behind otherwise."""
    lost = "a registration from when webhook.enabled was true, with pods that wait for nobody's answer"
    return Right(ref.kind, ("get", "delete"), "webhook.enabled: false takes it back", name=ref.name, lost=lost)


def _controllers(controllers: Iterable[Controller], *, above: bool) -> Iterator[Right]:
    """Yield what controllers need on one side."""
    for controller in sorted(controllers):
        for follow in FOLLOWS[controller]:
            if follow.above == above:
                yield Right(follow.kind, _verbs(follow), f"controller {controller}")


def _verbs(follow: Follow) -> tuple[str, ...]:
    """Return what is done with a kind: one's own are written, originals above are read again before copies go."""
    if follow.ours:
        return (*READ, *WRITTEN)
    return READ if follow.above and follow.kind not in (STORAGE_CLASS, SERVICE_ACCOUNT) else FOLLOWED


def _joined(rights: Iterable[Right]) -> list[Right]:
    """Put the verbs on one resource together, for the purpose that comes first, in the order of the resources."""
    found: dict[tuple[Kind, str, str, str], Right] = {}
    for right in rights:
        key = (right.kind, right.subresource, right.namespace, right.name)
        known = found.get(key)
        verbs = {*(known.verbs if known else ()), *right.verbs}
        found[key] = (known or right)._replace(verbs=tuple(verb for verb in (*READ, *WRITTEN) if verb in verbs))
    return list(found.values())
