"""Where a pod runs in a lower cluster, and what its lower pod depends on.

It is one value instead of a topology, a cache and a lower, so that the projection stays a function of two arguments.
One value can be built per namespace and used for every pod in it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from tensile.names import Owner
from tensile.reconcile.pods.scheduling import UPPER_ONLY_KEYS
from tensile.reconcile.world import UpperServer

AccountIdentity = Literal["none", "lower", "upper"]

DEFAULT_SCHEDULER = "default-scheduler"


def same_name(namespace: str) -> str:
    """Map a namespace to the lower one of the same name."""
    return namespace


class LowerContext(msgspec.Struct, frozen=True, gc=False):
    """What the projection of one namespace's pods to one lower cluster depends on.

    - `node_name` is the virtual node, `namespace` and `namespace_uid` identify the lower namespace.
    - `node_label_keys` are label keys that only the topology gives the virtual node and no lower node has.
    - `domain_keys` are all label keys that the virtual node has and no lower node.
    - `node_labels` are all labels of the virtual node, None if unknown.
    - `ignore_selector_keys` are those of the webhook; `taints` are the virtual nodes' (as in a Node's spec).
    - `priority_classes`, `runtime_classes` and `storage_classes` map upper names to lower ones. A priority class that
      is not listed is dropped; a runtime or storage class that is not listed keeps its name.
    - `scheduler_names` are the lower's further schedulers.
    - `namespace_of` returns the lower name of an upper namespace.
    - `upper_server` is where lower pods reach the upper apiserver, None if unknown.
    """

    owner: Owner
    node_name: str
    namespace: str
    namespace_uid: str
    identity: AccountIdentity = "none"
    ignore_labels: frozenset[str] = frozenset()
    node_label_keys: frozenset[str] = frozenset()
    domain_keys: frozenset[str] = frozenset()
    node_labels: Mapping[str, str] | None = None
    ignore_selector_keys: frozenset[str] = frozenset()
    virtual_nodes: frozenset[str] = frozenset()
    taints: tuple[Mapping[str, Any], ...] = ()
    priority_classes: Mapping[str, str] = {}
    runtime_classes: Mapping[str, str] = {}
    storage_classes: Mapping[str, str] = {}
    scheduler_names: frozenset[str] = frozenset()
    namespace_of: Callable[[str], str] = same_name
    upper_server: UpperServer | None = None

    @property
    def upper_only_keys(self) -> frozenset[str]:
        """Label keys that are known in the upper cluster only: the lower scheduler must not get constraints on them."""
        return UPPER_ONLY_KEYS | self.ignore_selector_keys | self.node_label_keys

    @property
    def upper_domains(self) -> frozenset[str]:
        """Topology keys of upper nodes that lower nodes do not have."""
        return self.upper_only_keys | self.domain_keys

    @property
    def upper_only_nodes(self) -> frozenset[str]:
        """Node names that exist in the upper cluster only."""
        return self.virtual_nodes | {self.node_name}
