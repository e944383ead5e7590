"""The names that users and other programs read or write: labels, annotations, conditions, reasons.

Those under virtual-kubelet.io, and the bare ones, are tensile-kube's and kept to the letter; new ones have one prefix.
"""

import re
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

PREFIX = "tensile-kube.io/"
OWNER = PREFIX + "owner"
OWNER_NAME = PREFIX + "owner-name"
UPPER_UID = PREFIX + "upper-uid"
NO_ORIGINAL = "none"
"""The value of that annotation on what holds a name which the upper cluster does not have."""
UPPER_NAMESPACE = PREFIX + "upper-namespace"
"""On namespaces below that are ours: the name of the one above."""
WRITTEN_KEYS = PREFIX + "written-keys"
WRITTEN_IMAGES = PREFIX + "written-images"
BOOKKEEPING = frozenset({WRITTEN_KEYS, WRITTEN_IMAGES})
"""Annotations of lower pods that follow from what else is written there, so that nobody decides about them."""
LOWER_UID = PREFIX + "lower-uid"
NAMESPACE_MAPPING = PREFIX + "namespace-mapping"
"""On virtual nodes: how the namespaces of its lower pods are named, `same` or `prefix=TOPOLOGY`."""
CORDONED_BY = PREFIX + "cordoned-by"
KUBELET_PORT = PREFIX + "kubelet-port"
TOKEN_POD = PREFIX + "token-pod"
"""On Secrets with tokens of the upper cluster: the name of the pod that they are for."""
TOKEN_TERM = PREFIX + "token-term"
"""On the same: since when its tokens hold and for how long, as an ISO 8601 interval of seconds."""
LOWER = PREFIX + "lower"
"""On copies of events and on volumes: the lower cluster that they come from."""
PROVISIONER = PREFIX + "lower"
"""What storage classes name whose volumes are made in the lower cluster of the pod that uses them."""
LOWER_CLAIM_UID = PREFIX + "lower-claim-uid"
LOWER_VOLUME = PREFIX + "lower-volume"
LOWER_VOLUME_SOURCE = PREFIX + "lower-volume-source"

STATUS_SUFFIX = "-status"
"""What the name of a topology's ConfigMap is followed by in that of the one with its status."""

VIRTUAL_POD = "virtual-pod"
LEGACY = "global"
"""The annotation by which tensile-kube knew its objects: read where objects are taken over, and never written."""
VIRTUAL_NODE = ("type", "virtual-kubelet")
"""The label, and its value, of every virtual node: ours, and other programs'."""
CLUSTER_SELECTOR = "clusterSelector"
TRIPPED_LABELS = "tripped-labels"
CLUSTER_ID = "clusterID"

TRIED = PREFIX + "tried"
"""On virtual nodes: which pods the descheduler took off them lately, as JSON."""
REPLACES = PREFIX + "replaces"
"""On pods that we made in another's place, since it had no controller: the UID of that one."""
KEPT_OFF = PREFIX + "kept-off"
"""On the same: the virtual nodes, with commas between, that their node affinity keeps them off for our sake."""
KEPT_POD = PREFIX + "pod"
"""The type of Secrets that keep such a pod until it is made in another's place."""
WITHDRAWN = PREFIX + "withdrawn"
"""On those: since when the pod is not to leave after all."""
PLACE_TAKEN = PREFIX + "place-taken"
"""On the same: "true" where a pod of somebody else was found in the place of the one that is kept."""
DESCHEDULED = "create-by-descheduler"
"""The label of pods that a descheduler made anew: tensile-kube's, and ours."""
DESCHEDULE_COUNT = "sigs.k8s.io/deschedule-count"
UNSCHEDULABLE_NODE = "unschedulable-node"
LEADS = PREFIX + "leads"
"""On pods of engines: the name of the topology whose clusters this one drives; of several it is one that does."""
ROOM = PREFIX + "room"
"""On virtual nodes: when room came for pods that the extender had refused, so that the upper scheduler asks again."""

MIRRORED = PREFIX + "Mirrored"
IN_STEP = PREFIX + "InStep"
LOWER_SCHEDULED = PREFIX + "LowerScheduled"
LOWER_REACHABLE = "LowerReachable"
LOWER_SCHEDULABLE = "LowerSchedulable"
IN_TOPOLOGY = "InTopology"
DELETIONS_HELD = PREFIX + "DeletionsHeld"
NOWHERE = 1
"""The kubelet port of a Node that is served at none: nothing listens there. Of 0 an apiserver makes 10250, at which the
kubelet of the engine's own machine may answer."""
STORE_RESTORED = "StoreRestored"
"""The reason for which deletions are held back, as few as they may be: what they rest on may be a lost history."""
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
    """Whose objects these are: one topology in one upper cluster.

    `mark` is the value of the owner label, `name` what people read, `upper` the UID of the upper's kube-system.
    """

    mark: str
    name: str
    upper: str

    @property
    def label(self) -> dict[str, str]:
        """The label that every object of this owner has."""
        return {OWNER: self.mark}

    def signed(self, upper_uid: str) -> dict[str, str]:
        """Return the annotations that say whose an object is, and the UID of the upper object that it was made for."""
        return {OWNER_NAME: self.name, UPPER_UID: upper_uid}


def owner_of(upper_uid: str, topology_name: str) -> Owner:
    """Derive the owner from the UID of the upper's kube-system namespace and the topology's name."""
    digest = sha256(f"{upper_uid}/{topology_name}".encode()).hexdigest()
    return Owner(digest[:_OWNER_DIGITS], topology_name, upper_uid)


@lru_cache(maxsize=65536)
def prefixed(topology_name: str, namespace: str) -> str:
    """Return the name of the lower namespace for an upper one under `mapping: prefix`: TOPOLOGY-NAMESPACE.

    A name that is longer than Kubernetes allows is cut and ends in a hash of the whole. So does a name that has the
    form of a cut one: otherwise an upper namespace could be called so that it shares the lower namespace of another.
    """
    whole = f"{topology_name}-{namespace}"
    if len(whole) <= _LONGEST_LABEL and not _CUT.search(whole):
        return whole
    digest = sha256(whole.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{whole[: _LONGEST_LABEL - _HASH_DIGITS - 1].rstrip('-')}-{digest}"
