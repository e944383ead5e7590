"""The names that users and other programs read or write: labels, annotations, conditions and reasons.

Names under virtual-kubelet.io, and names without a prefix, are contracts of tensile-kube and kept exactly. All new
names have one prefix.
"""

import re
from functools import lru_cache
from typing import NamedTuple

PREFIX = "tensile-kube.io/"
OWNER = PREFIX + "owner"
OWNER_NAME = PREFIX + "owner-name"
UPPER_UID = PREFIX + "upper-uid"
NO_ORIGINAL = "none"
"""The value of that annotation on an object that reserves a name which does not exist in the upper cluster."""
UPPER_NAMESPACE = PREFIX + "upper-namespace"
"""On our namespaces in a lower cluster: the name of the upper namespace."""
WRITTEN_KEYS = PREFIX + "written-keys"
WRITTEN_IMAGES = PREFIX + "written-images"
BOOKKEEPING = frozenset({WRITTEN_KEYS, WRITTEN_IMAGES})
"""Annotations of lower pods that follow from other fields of the pod, so a plan does not show them."""
LOWER_UID = PREFIX + "lower-uid"
NAMESPACE_MAPPING = PREFIX + "namespace-mapping"
"""On virtual nodes: how namespaces are mapped in the lower cluster, `same` or `prefix=TOPOLOGY`."""
CORDONED_BY = PREFIX + "cordoned-by"
TOKEN_POD = PREFIX + "token-pod"
"""On Secrets with tokens of the upper cluster: the name of the pod that uses the token."""
TOKEN_TERM = PREFIX + "token-term"
"""On the same Secrets: when the tokens were issued and for how long, as an ISO 8601 interval in seconds."""
LOWER = PREFIX + "lower"
"""On copies of events and on volumes: the lower cluster that they come from."""
PROVISIONER = PREFIX + "lower"
"""The provisioner of storage classes whose volumes are provisioned in the lower cluster of the pod."""
LOWER_CLAIM_UID = PREFIX + "lower-claim-uid"
LOWER_VOLUME = PREFIX + "lower-volume"
LOWER_VOLUME_SOURCE = PREFIX + "lower-volume-source"

SANDBOX_DIRECTORY = ".tensile-sandbox"
"""The folder of `tensile sandbox up` without --dir."""
STATUS_SUFFIX = "-status"
"""Appended to the name of a topology's ConfigMap, it is the name of the ConfigMap with its status."""
HISTORY_SUFFIX = "-history"
"""Appended to the same name, it is the name of the ConfigMap with the topologies that were accepted last."""
APPROVED = PREFIX + "approved"
"""On the ConfigMap with the status: the SHA-256 of the edit that a user approves, or at least its first 12 digits."""
CANDIDATE_SUFFIX = "-candidate"
"""Appended to the same name, it is the name of the ConfigMap with a topology that the engine only plans."""
PLAN_SUFFIX = "-plan"
"""Appended to the same name, it is the name of the ConfigMap with the plan of that candidate."""

VIRTUAL_POD = "virtual-pod"
LEGACY = "global"
"""The annotation on objects of tensile-kube. It is read for adoption, and never written."""
VIRTUAL_NODE = ("type", "virtual-kubelet")
"""The label key and value of every virtual node, ours and those of other programs."""
ENGINE_LABELS = dict([VIRTUAL_NODE, ("kubernetes.io/role", "agent")])
"""Labels of our virtual nodes, whatever the topology says; another one is HOSTNAME."""
HOSTNAME = "kubernetes.io/hostname"
"""The label that has a node's name as its value."""
CLUSTER_SELECTOR = "clusterSelector"
TRIPPED_LABELS = "tripped-labels"
CLUSTER_ID = "clusterID"

TRIED = PREFIX + "tried"
"""On virtual nodes: the pods that the descheduler evicted from the node recently, as JSON."""
REPLACES = PREFIX + "replaces"
"""On pods that we created to replace a pod without a controller: the UID of the replaced pod."""
KEPT_OFF = PREFIX + "kept-off"
"""On the same pods: the virtual nodes, separated by commas, that we excluded in their node affinity."""
KEPT_POD = PREFIX + "pod"
"""The type of Secrets that hold the backup of such a pod until its replacement exists."""
WITHDRAWN = PREFIX + "withdrawn"
"""On the same Secrets: when it was decided that the pod stays after all."""
DESCHEDULED = "create-by-descheduler"
"""The label of pods that a descheduler recreated: tensile-kube's, and ours."""
DESCHEDULE_COUNT = "sigs.k8s.io/deschedule-count"
UNSCHEDULABLE_NODE = "unschedulable-node"

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""The Cluster Autoscaler's annotation of pods: "false" forbids their eviction."""
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
"""Karpenter's annotation of pods: "true" forbids their eviction."""
ENGINE = PREFIX + "engine"
"""On Leases of virtual nodes: the engine that renewed the Lease last, as HOST_PID_SUFFIX."""
OTHER_ENGINE = PREFIX + "other-engine"
"""On the same Leases, while two engines renew them: the one that did not write this."""
LEADS = PREFIX + "leads"
"""On pods of engines: the name of the topology that this engine drives as the leader."""
ROOM = PREFIX + "room"
"""On virtual nodes: when capacity became free for pods that the extender had rejected. The change makes the upper
scheduler try those pods again."""

ConditionType = str
"""The type of a condition that the engine writes.

A constant with this annotation, or one of the three below, is a row of docs/reference/conditions.md (`make generate`).
Its docstring is the meaning, and after "Remedy:" what a person does.
"""
ConditionReason = str
"""A reason that only a condition, or the status of a pod or a container, has."""
ProblemReason = str
"""The reason of a `Problem`, wherever that is shown."""
EventReason = str
"""A reason that only an Event has."""

MIRRORED: ConditionType = PREFIX + "Mirrored"
"""On a pod or a claim: False while the lower cluster has no copy of it, with the problem as reason; absent
otherwise. Remedy: look up the reason; `tensile explain` says more."""
SYNCED: ConditionType = PREFIX + "Synced"
"""On a pod: False while a change of the pod is not in its lower pod, or the other way round; absent otherwise.
Remedy: look up the reason."""
LOWER_SCHEDULED: ConditionType = PREFIX + "LowerScheduled"
"""On a pod: the `PodScheduled` condition of its lower pod, with the reason of the lower scheduler. Remedy: while it
is False, wait for room in the lower cluster, or enable the [descheduler](../descheduler.md)."""
LOWER_REACHABLE: ConditionType = "LowerReachable"
"""On a node: whether the lower cluster answers, and is the one that it has to be. Remedy: while it is False, look up
the reason, and run `tensile doctor`."""
LOWER_SCHEDULABLE: ConditionType = "LowerSchedulable"
"""On a node: whether the lower cluster has a node on which pods can start. Remedy: while it is False, look up the
reason."""
IN_TOPOLOGY: ConditionType = "InTopology"
"""On a node: whether the topology still has the lower cluster. Remedy: while it is False, put the lower
cluster back with `maintenance: drain`, and remove it once its node has no pods."""
DELETIONS_BLOCKED: ConditionType = "DeletionsBlocked"
"""On a node: whether the guard blocks deletions in the lower cluster that no user requested. Remedy: while it is
True, see [blocked deletions](../howto/held-deletions.md)."""
NAMESPACE_EXCLUDED: ProblemReason = "NamespaceExcluded"
"""The namespace is in `excludeNamespaces` or is the engine's own, so nothing in it is mirrored or moved. Remedy: use
another namespace, or change `excludeNamespaces`."""
LOWER_UNREACHABLE: ProblemReason = "LowerUnreachable"
"""The lower cluster of the pod or the claim does not answer. Remedy: run `tensile status` and `tensile doctor`, and
bring the cluster back."""
NOWHERE = 1
"""The kubelet port of a Node without a kubelet API: nothing listens on port 1. An apiserver defaults 0 to 10250, where
the kubelet of the engine's own machine may respond."""
STORE_RESTORED: ProblemReason = "StoreRestored"
"""A cluster was restored from a backup, so a missing object may only be forgotten: even few deletions wait. Remedy:
see [blocked deletions](../howto/held-deletions.md)."""
UNREACHABLE_TAINT = PREFIX + "lower-unreachable"

FIELD_MANAGER = "tensile-kube"
COMPONENT = "tensile-kube"
LEASE_NAMESPACE = "kube-node-lease"

_OWNER_DIGITS = 16
_HASH_DIGITS = 16
_LONGEST_LABEL = 63
_CUT = re.compile(rf"-[0-9a-f]{{{_HASH_DIGITS}}}$")
"""The end of a name that was cut."""


class Owner(NamedTuple):
    """The owner of mirrored objects: one topology in one upper cluster.

    `mark` is the value of the owner label, `name` is shown to people, `upper` is the UID of the upper's kube-system.
    """

    mark: str
    name: str
    upper: str

    @property
    def label(self) -> dict[str, str]:
        """The label on every object of this owner."""
        return {OWNER: self.mark}

    def signed(self, upper_uid: str) -> dict[str, str]:
        """Return the annotations that name the owner and the UID of the upper object."""
        return {OWNER_NAME: self.name, UPPER_UID: upper_uid}


def _sha256(text: str) -> str:
    from hashlib import sha256  # noqa: PLC0415 - it takes milliseconds, which each start of a command would wait for

    return sha256(text.encode()).hexdigest()


def owner_of(upper_uid: str, topology_name: str) -> Owner:
    """Derive the owner from the UID of the upper's kube-system namespace and the topology's name."""
    digest = _sha256(f"{upper_uid}/{topology_name}")
    return Owner(digest[:_OWNER_DIGITS], topology_name, upper_uid)


@lru_cache(maxsize=65536)
def prefixed(topology_name: str, namespace: str) -> str:
    """Return the lower namespace for an upper namespace under `mapping: prefix`: TOPOLOGY-NAMESPACE.

    A name over 63 characters is cut and ends in a hash of the whole name. A name that looks like a cut name gets a hash
    too: otherwise an upper namespace could be named so that it shares the lower namespace of another.
    """
    whole = f"{topology_name}-{namespace}"
    if len(whole) <= _LONGEST_LABEL and not _CUT.search(whole):
        return whole
    digest = _sha256(whole)[:_HASH_DIGITS]
    return f"{whole[: _LONGEST_LABEL - _HASH_DIGITS - 1].rstrip('-')}-{digest}"
