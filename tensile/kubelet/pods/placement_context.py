"""Where a pod runs below, and what has to be known of that place to write its lower pod.

One value instead of a topology, a cache and a lower: the projection stays a function of two arguments, and a place can
be made once per namespace and used for every pod in it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from tensile.names import Owner
from tensile.reconcile.pods.scheduling import UPPER_ONLY_KEYS
from tensile.reconcile.world import UpperServer

Identity = Literal["none", "lower", "upper"]

DEFAULT_SCHEDULER = "default-scheduler"


def same_name(namespace: str) -> str:
    """Map a namespace to the one of the same name below."""
    return namespace


class Placement(msgspec.Struct, frozen=True, gc=False):
    """What the projection of one namespace's pods to one lower cluster depends on.

    `node_name` is the virtual node, `namespace` and `namespace_uid` name the lower namespace. `node_label_keys` are
    label keys that only the topology gives the virtual node (no lower node has them), `domain_keys` all keys that the
    virtual node has and no lower node, `node_labels` all labels of the virtual node (None where they are not known),
    `ignore_selector_keys` those of the webhook, `taints` the virtual nodes' (as
    in a Node's spec). `priority_classes` and `runtime_classes` map upper names to lower ones; a priority class that is
    not listed does not go down, a runtime class keeps its name.
    `storage_classes` map upper names to lower ones; one that is not listed keeps its name.
    `scheduler_names` are the lower's further schedulers. `namespace_of` gives the lower name of an upper namespace.
    `upper_server` is where pods below reach the upper's apiserver (None where nobody knows).
    """

    owner: Owner
    node_name: str
    namespace: str
    namespace_uid: str
    identity: Identity = "none"
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
        """Label keys that mean something above only: a constraint on one of them is not for the lower scheduler."""
        return UPPER_ONLY_KEYS | self.ignore_selector_keys | self.node_label_keys

    @property
    def upper_domains(self) -> frozenset[str]:
        """Label keys by which nodes above fall into domains, and those below do not."""
        return self.upper_only_keys | self.domain_keys

    @property
    def upper_only_nodes(self) -> frozenset[str]:
        """Node names that exist above only."""
        return self.virtual_nodes | {self.node_name}
