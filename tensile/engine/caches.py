"""The caches and informers of each cluster, and the list of all rules.

Selectors exclude what no decision needs: of the upper cluster's pods only those bound to a virtual node are watched. In
a lower cluster, objects with our mark are kept whole, and of other objects only facts. So a thousand pods of others
cost the memory of their requests, not of their manifests.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from tensile.kube.cluster import Selection
from tensile.kube.fleet import InformerSpec
from tensile.kube.store import Cache
from tensile.kubelet.node import capacity, status
from tensile.kubelet.node.rule import NodeRule
from tensile.kubelet.pods import service_account, unbound
from tensile.kubelet.pods.rule import PodRule
from tensile.kubelet.pods.token_rule import TokenRule
from tensile.kubelet.pods.unbound import UnboundPodRule
from tensile.names import DESCHEDULED, OWNER, VIRTUAL_NODE, VIRTUAL_POD, Owner
from tensile.objects import (
    CONFIG_MAP,
    NAMESPACE,
    NETWORK_POLICY,
    NODE,
    POD,
    SECRET,
    SERVICE_ACCOUNT,
    UPPER,
    Kind,
    Manifest,
)
from tensile.policy.descheduler import replacement
from tensile.policy.descheduler.recreate import RecreateRule
from tensile.policy.descheduler.rule import DeschedulerRule, DrainRule
from tensile.policy.placement import snapshot
from tensile.reconcile import mirrored_kinds, ownership
from tensile.reconcile.desired import Rule
from tensile.reconcile.mirrored_kinds import checked
from tensile.reconcile.ownership import transform_copy, transform_node
from tensile.reconcile.pods.demand import pod_demand
from tensile.reconcile.pods.index import LOWER_INDEXES, UPPER_INDEXES, transform_lower_pod, transform_upper_pod
from tensile.reconcile.rules import namespaces
from tensile.reconcile.rules.claim_rule import ClaimRule
from tensile.reconcile.rules.namespaces import NamespaceRule
from tensile.reconcile.rules.network_policy_warning import NetworkPolicyRule
from tensile.reconcile.rules.rbac import existence
from tensile.reconcile.rules.volumes import VolumeRule
from tensile.reconcile.world import LowerWorld, NamespaceNaming, UpperWorld
from tensile.topology import Controller, Lower

_SECRETS = Selection(fields="type!=helm.sh/release.v1")
"""Excludes Helm's release Secrets, which are many and large, and to which no pod refers."""
_UNBOUND = Selection(labels=f"{VIRTUAL_POD}=true", fields="spec.nodeName=")
"""Pods with the virtual-pod label and without a node."""
_RECREATED = Selection(labels=f"{DESCHEDULED}=true")
_LIST_INTERVAL = 5.0
"""Seconds between two lists of such pods: only those that wait that long may need help, so no watch is needed."""
_MAX_LAST_STATES = 1_000
"""Maximum of deleted lower pods whose last status is kept until it is reported; more than can end during a decision."""


def upper_world() -> UpperWorld:
    """Return the empty caches of the upper cluster."""
    return UpperWorld(
        nodes=Cache(transform_node),
        namespaces=Cache(),
        config_maps=Cache(),
        secrets=Cache(),
        waiting=Cache(unbound.transform),
        remade=Cache(replacement.transform),
        policies=Cache(existence),
        more=mirrored_kinds.caches(is_upper=True),
    )


def upper_feeds(upper: UpperWorld, owner: Owner, controllers: Iterable[Controller]) -> list[InformerSpec]:
    """Return the informers of these caches, for the controllers that are enabled for any lower."""
    return [
        *_controllers_feeds(UPPER, upper.more, owner, controllers, is_upper=True),
        node_feed(upper.nodes),
        InformerSpec(UPPER, NAMESPACE, Selection(), upper.namespaces),
        InformerSpec(UPPER, CONFIG_MAP, Selection(), upper.config_maps),
        InformerSpec(UPPER, SECRET, _SECRETS, upper.secrets),
        InformerSpec(UPPER, POD, _UNBOUND, upper.waiting, every=_LIST_INTERVAL),
        InformerSpec(UPPER, POD, _RECREATED, upper.remade),
        InformerSpec(UPPER, NETWORK_POLICY, Selection(), upper.policies, spare=True),
    ]


def node_feed(nodes: Cache) -> InformerSpec:
    """Return the informer of the virtual nodes."""
    return InformerSpec(UPPER, NODE, Selection(labels="=".join(VIRTUAL_NODE)), nodes)


def place_caches() -> tuple[Cache, Cache]:
    """Return the empty caches of placement: for nodes, and for pods that are not ours."""
    return Cache(snapshot.transform_node), Cache(snapshot.transform_pod)


def lower_world(
    spec: Lower, naming: NamespaceNaming | None = None, upper_namespaces: Cache | None = None
) -> LowerWorld:
    """Return the empty caches of one lower cluster and of the upper pods bound to its node.

    `naming` is used for `mapping: prefix`; `upper_namespaces` are the namespaces of the upper cluster.
    """
    nodes, pods = place_caches()
    return LowerWorld(
        spec,
        upper_pods=Cache(transform_upper_pod, UPPER_INDEXES, selects=bound_to(spec.node.name)),
        pods=Cache(checked(POD, transform_lower_pod), LOWER_INDEXES, remembers=_MAX_LAST_STATES),
        foreign_pods=Cache(checked(POD, pod_demand)),
        namespaces=Cache(checked(NAMESPACE, namespaces.transform)),
        accounts=Cache(existence),
        config_maps=Cache(checked(CONFIG_MAP, transform_copy), ownership.INDEXES),
        secrets=Cache(checked(SECRET, service_account.transform), service_account.INDEXES),
        nodes=Cache(capacity.node_offer, capacity.INDEXES),
        more=mirrored_kinds.caches(is_upper=False),
        naming=naming if spec.namespaces.mapping == "prefix" else None,
        mark=naming.mark if naming is not None else "",
        upper_namespaces=upper_namespaces,
        place_nodes=nodes,
        place_pods=pods,
    )


def bound_to(node: str) -> Callable[[Manifest], bool]:
    """Return the function that reports whether a pod is bound to a node."""
    return lambda pod: bool((pod.get("spec") or {}).get("nodeName") == node)


def bound_feed(lower: LowerWorld) -> InformerSpec:
    """Return the informer of the upper pods that are bound to the lower's node."""
    return InformerSpec(UPPER, POD, Selection(fields=f"spec.nodeName={lower.node}"), lower.upper_pods)


def lower_feeds(lower: LowerWorld, owner: Owner, *, places: bool = False) -> list[InformerSpec]:
    """Return the informers of a lower cluster, with `places` also those of placement."""
    own = Selection(labels=f"{OWNER}={owner.mark}")
    foreign = Selection(labels=f"{OWNER}!={owner.mark}")
    return [
        InformerSpec(lower.name, POD, own, lower.pods),
        InformerSpec(lower.name, POD, foreign, lower.foreign_pods),
        InformerSpec(lower.name, NAMESPACE, Selection(), lower.namespaces),
        InformerSpec(lower.name, SERVICE_ACCOUNT, Selection(fields="metadata.name=default"), lower.accounts),
        InformerSpec(lower.name, CONFIG_MAP, own, lower.config_maps),
        InformerSpec(lower.name, SECRET, own, lower.secrets),
        InformerSpec(lower.name, NODE, Selection(), lower.nodes),
        *_controllers_feeds(lower.name, lower.more, owner, lower.spec.controllers, is_upper=False),
        *(_place_feeds(lower, foreign) if places else ()),
    ]


def _place_feeds(lower: LowerWorld, foreign: Selection) -> tuple[InformerSpec, ...]:
    """Return the informers of placement: second watches of nodes and pods, opened only if placement is used."""
    nodes = InformerSpec(lower.name, NODE, Selection(), lower.place_nodes)
    return nodes, InformerSpec(lower.name, POD, foreign, lower.place_pods)


def _controllers_feeds(
    cluster: str, caches: Mapping[Kind, Cache], owner: Owner, controllers: Iterable[Controller], *, is_upper: bool
) -> Iterator[InformerSpec]:
    """Yield the informers of the enabled controllers."""
    for kind, follow in mirrored_kinds.watched_kinds(controllers, is_upper=is_upper).items():
        yield InformerSpec(cluster, kind, follow.selection(owner), caches[kind])


def rules() -> tuple[Rule, ...]:
    """Return all rules, in the order in which their keys are listed."""
    others = (TokenRule(), NetworkPolicyRule(), ClaimRule(), VolumeRule())
    pods = (PodRule(), *status.RULES, UnboundPodRule(), DrainRule(), DeschedulerRule(), RecreateRule())
    return (NodeRule(), NamespaceRule(), *mirrored_kinds.MIRRORED, *others, *pods)
