"""What a check is: it looks at a pod, and says how a node is judged for it.

The same shape as the plugins of the kube-scheduler have (prepare, then filter), so that each can be held against the
one whose answer it has to give.
"""

from collections.abc import Callable
from typing import NamedTuple

from tensile.policy.placing.snapshot import Node, Pod, Snapshot

Judge = Callable[[Node], tuple[str, ...]]
"""Gives the reasons why a node does not do, in the kube-scheduler's words; () where it does."""


def no_detail(_node: Node) -> str:
    """Add nothing."""
    return ""


class Prepared(NamedTuple):
    """How nodes are judged for one pod; `detail` says of a node that does not do what a person would ask next."""

    judge: Judge
    detail: Callable[[Node], str] = no_detail


class Nowhere(NamedTuple):
    """Why no node would do, whatever it is like."""

    reason: str


class Check(NamedTuple):
    """One check by its name. `prepare` gives None where the pod asks for nothing that it guards."""

    name: str
    prepare: Callable[[Pod, Snapshot], Prepared | Nowhere | None]


def failing(reason: str, *nodes: str) -> Prepared:
    """Judge by the name: these nodes do not do."""
    names, said = frozenset(nodes), (reason,)
    return Prepared(lambda node: said if node.name in names else ())
