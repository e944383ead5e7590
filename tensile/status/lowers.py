"""How each lower cluster is, as one row: plain data out of the world.

`lag` is for how many seconds the cluster has not answered, 0 while it does: watches tell of a change at once, so what
is shown of a cluster that answers is as new as the cluster.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tensile.kubelet.capacity import capacity
from tensile.kubelet.nodestatus import SILENT_AFTER, is_reachable
from tensile.objects import Manifest
from tensile.reconcile.observed import has_node
from tensile.world import LowerWorld, World

AMOUNTS = ("cpu", "memory", "pods")
"""The resources that are told; Kubernetes has more, people ask for these."""

_STEPS = (10, 20, 30)
_MINUTE = 60

Amounts = Mapping[str, str]


class Row(NamedTuple):
    """One lower cluster.

    `message` says what is wrong, "" for nothing; `pods` counts those bound to its node, `lag` is in seconds.
    `advertised` is what its node offers, `real` what its Ready and schedulable nodes have; quantities, {} for unknown.
    """

    name: str
    node: str
    reachable: bool
    message: str
    pods: int
    lag: int
    advertised: Amounts
    real: Amounts

    def document(self) -> dict[str, Any]:
        """Give it as JSON."""
        return self._asdict()


def rows(world: World, troubles: Mapping[str, str]) -> list[Row]:
    """Give a row for each lower, those that have left the topology included.

    `troubles` says by name what is wrong with a connection.
    """
    return [_row(lower, world, troubles.get(lower.name, "")) for lower in world.lowers.values()]


def are_known(world: World) -> bool:
    """Say whether it is known of each lower how it is, be it that it does not answer: not at once after a start."""
    return all(_is_known(lower) for lower in world.lowers.values())


def coarse(row: Row) -> Row:
    """Give a row that changes seldom while a cluster is away: its lag in steps, in the end of a minute each."""
    steps = [step for step in _STEPS if step <= row.lag]
    lag = row.lag - row.lag % _MINUTE if row.lag >= _MINUTE else max(steps, default=0)
    return row._replace(lag=lag)


def _row(lower: LowerWorld, world: World, trouble: str) -> Row:
    entry = world.upper.nodes.get("", lower.node)
    seen = entry.manifest() if entry is not None and has_node(lower, world) else {}
    reachable = lower.connected and _answers(lower) and is_reachable(seen, lower)
    return Row(
        name=lower.name,
        node=lower.node,
        reachable=reachable,
        message=_message(lower, trouble),
        pods=len(lower.upper_pods),
        lag=int(lower.silent),
        advertised=amounts(seen),
        real=_real(lower),
    )


def amounts(node: Manifest) -> Amounts:
    """Give what a Node offers."""
    offered = node.get("status", {}).get("allocatable") or {}
    return {name: str(offered[name]) for name in AMOUNTS if name in offered}


def _answers(lower: LowerWorld) -> bool:
    """Say whether the cluster has ever answered and did so lately; its version is the first that it is asked for."""
    return bool(lower.version) and lower.silent <= SILENT_AFTER


def _is_known(lower: LowerWorld) -> bool:
    if not lower.connected or lower.refusal or lower.is_withheld or lower.silent > SILENT_AFTER:
        return True
    return bool(lower.version) and lower.settled


def _real(lower: LowerWorld) -> Amounts:
    if not lower.nodes.synced:
        return {}
    sums = capacity((entry.facts for entry in lower.nodes), (), "allocatable", {}, {})
    return {name: sums[name] for name in AMOUNTS}


def _message(lower: LowerWorld, trouble: str) -> str:
    """Say what is wrong, the gravest first."""
    if not lower.connected:
        return "left the topology while the engine was down; its node is kept"
    wrong = lower.refusal or trouble or lower.denied or lower.warning
    if wrong:
        return wrong
    if not lower.in_topology:
        return "left the topology; pods are bound to it still"
    return "" if lower.settled else "its objects are not all listed yet"
