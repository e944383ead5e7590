"""A preview as plain data: one change for each object, cluster by cluster, and what stands in the way of more.

Nothing in it holds a Secret's value, so whatever is written out of it cannot show one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tensile.objects import Manifest, Ref
from tensile.reconcile.desired import Moving
from tensile.reconcile.diff import Operation
from tensile.reconcile.preview.differences import Difference
from tensile.world import Key, Problem

Action = Literal["create", "update", "delete", "replace"]


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one object, and why.

    `operations` lead from the object as it is to the object as it will be (RFC 6902; the path "" is all of it).
    `differences` say the same field by field, `manifest` is the object as it will be, where it is made. `moving` says
    where a pod goes that leaves for another node.
    """

    ref: Ref
    action: Action
    reason: str
    operations: tuple[Operation, ...]
    differences: tuple[Difference, ...] = ()
    manifest: Manifest | None = None
    moving: Moving | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """Everything that would change: the clusters in their order, the upper one (`objects.UPPER`) first.

    Every cluster is there, also one in which nothing changes. `problems` are what stands in the way of more.
    `unreached` says by name why a lower is out of reach: nothing is planned for it.
    """

    topology: str
    clusters: Mapping[str, tuple[Change, ...]]
    problems: tuple[tuple[Key, Problem], ...] = ()
    unreached: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes of all clusters, in their order; empty where a plan has nothing to do."""
        return tuple(change for changes in self.clusters.values() for change in changes)


class Counts(NamedTuple):
    """How many objects are made, changed and taken away; one that is replaced is made and taken away."""

    add: int = 0
    change: int = 0
    delete: int = 0


def count(changes: Iterable[Change]) -> Counts:
    """Count changes for the summary."""
    actions = [change.action for change in changes]
    replaced = actions.count("replace")
    return Counts(actions.count("create") + replaced, actions.count("update"), actions.count("delete") + replaced)
