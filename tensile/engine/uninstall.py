"""Delete what a topology owns, by the engine's own rules on a topology that every lower has left.

So every deletion has the reasons, ownership checks and preconditions that it has in the engine, and the guard holds
back what no user requested. Of what the rules want, only deletions are carried out: nothing is created or changed. The
rules leave mirrored namespaces for the next pod; here the namespaces of ours that are empty are deleted too, and last
the objects by which the engines of the topology register themselves in the upper cluster.

Nothing is deleted while an engine runs, which would create it again, or while upper pods are bound to virtual nodes of
the topology: Kubernetes deletes pods without a Node, and those that run in a lower cluster would be left alone there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import NamedTuple

import msgspec

from tensile.engine.caches import rules
from tensile.engine.history import file_place, history_ref
from tensile.engine.leader_election import active_holder, lease_ref
from tensile.engine.status.configmap import status_owner, status_ref
from tensile.engine.status.query import LEASE_SECONDS, holds, renewed_at
from tensile.errors import ClusterError, Conflict, NotFound
from tensile.kube.cluster import Cluster, read_or_none
from tensile.kube.store import Delta
from tensile.kubelet.node.rule import LOWER_REMOVED, NODE_RENAMED
from tensile.names import LEASE_NAMESPACE
from tensile.objects import LEASE, NAMESPACE, UPPER, Ref, as_read
from tensile.policy.descheduler import rule as descheduling
from tensile.policy.webhook.admission_policy import binding_ref, policy_ref
from tensile.policy.webhook.registration import ref_of, secret_ref
from tensile.reconcile.desired import Absent, Decision, Rule, VerifyAbsent, Wanted, Watch
from tensile.reconcile.ownership import foreign_node, is_ours
from tensile.reconcile.plan import Step
from tensile.reconcile.report import Recorder
from tensile.reconcile.rules.orphans import NAMESPACES, namespaces_in_use
from tensile.reconcile.world import REMAKING, WAITING, Key, LowerWorld, World
from tensile.text import listed
from tensile.topology import Topology

NAME = "uninstall"
_MOVING_RULES = frozenset({WAITING, REMAKING, descheduling.DRAIN, descheduling.NAME})
"""The rules that move pods, or prepare them for virtual nodes."""


class MirroredNamespaceRule:
    """The rule for lower namespaces of ours of a lower that left the topology, with one key for each lower.

    A namespace of ours stands at its place if it has the name to which its upper namespace is mapped. One whose upper
    namespace is gone is left to the engine's rule.
    """

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch what the engine's rule for namespaces watches."""
        return tuple(watch._replace(keys=_key_of_lower) for watch in NAMESPACES.watches())

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the lower's key."""
        yield Key(NAME, world.lowers[lower].name, "", "")

    def decide(self, key: Key, world: World) -> Decision:
        """Return deletions of the namespaces that hold no other object, which is checked again just before."""
        lower = world.lowers[key.lower]
        if lower.in_topology or not lower.is_vacant or not (lower.settled and world.upper.namespaces.synced):
            return Decision()
        used = namespaces_in_use(lower)
        empty = [
            one
            for one in sorted(lower.namespaces, key=lambda entry: entry.name)
            if one.facts.mark == world.owner.mark
            and not one.facts.ending
            and one.name not in used
            and _is_in_place(one.facts.upper_name or one.name, one.name, lower, world)
        ]
        reason = "it was created for mirrored pods, and is empty"
        refs = [(Ref(lower.name, NAMESPACE, "", one.name), one.uid) for one in empty]
        return Decision(tuple(Absent(ref, uid, reason, only_if_empty=True, independent=True) for ref, uid in refs))


def _is_in_place(upper_name: str, name: str, lower: LowerWorld, world: World) -> bool:
    return world.upper.namespaces.get("", upper_name) is not None and lower.namespace(upper_name) == name


def _key_of_lower(_world: World, lower: str, _delta: Delta) -> Iterator[Key]:
    yield Key(NAME, lower, "", "")


@dataclass(frozen=True, slots=True)
class DeletionsOnly:
    """A rule of the engine of which only deletions remain, and the quorum reads before them.

    What a rule wants has an order, so nothing that follows on a write is left either. Nor does a key wait for others:
    it would wait for what they create.
    """

    rule: Rule

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.rule.name

    def watches(self) -> tuple[Watch, ...]:
        """Return the rule's watches."""
        return self.rule.watches()

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the rule's keys."""
        return self.rule.keys(world, lower)

    def decide(self, key: Key, world: World) -> Decision:
        """Return the rule's decision without writes, and without problems of what it would have written."""
        found = self.rule.decide(key, world)
        wanted = tuple(map(_reworded, takewhile(_is_deletion, found.wanted)))
        return found._replace(wanted=wanted, depends_on=(), problem=None if not wanted else found.problem)


def _reworded(wanted: Wanted) -> Wanted:
    """Return a deletion with its real reason: for the rules, every lower has left the topology."""
    if isinstance(wanted, Absent) and wanted.reason in (LOWER_REMOVED, NODE_RENAMED):
        return msgspec.structs.replace(wanted, reason="the topology is uninstalled")
    return wanted


def _is_deletion(wanted: Wanted) -> bool:
    return isinstance(wanted, Absent | VerifyAbsent)


def uninstall_rules() -> tuple[Rule, ...]:
    """Return the rules for a topology that is uninstalled."""
    return (*(DeletionsOnly(rule) for rule in rules() if rule.name not in _MOVING_RULES), MirroredNamespaceRule())


def leave_topology(world: World) -> None:
    """Record that every lower has left the topology."""
    for lower in world.lowers.values():
        lower.in_topology = False


class Registration(NamedTuple):
    """An object in the upper cluster by which the engines of a topology register themselves, as it was read."""

    ref: Ref
    uid: str
    version: str
    reason: str

    def step(self) -> Step:
        """Return the step that deletes it, unless it changes before."""
        return Step("delete", self.ref, self.reason, uid=self.uid, version=self.version)


async def registrations(upper: Cluster, topology: Topology, world: World, own_namespace: str) -> list[Registration]:
    """Return the registrations that exist and are ours, in the order of their deletion.

    The leader's lease is the last by which engines work. The status of a topology file comes after it; for a
    topology in a ConfigMap, that is beside the ConfigMap. Raises the ClusterError of a read that fails.
    """
    webhook = "the webhook of this topology"
    place = file_place(topology.name)
    record_owner, status_reason = status_owner(world.owner.upper, place), "the engine's status of the topology file"
    wanted = [
        (ref_of(topology), webhook, world.owner),
        (secret_ref(topology, own_namespace), f"certificates of {webhook}", world.owner),
        (binding_ref(topology.name), "the admission policy of this topology", world.owner),
        (policy_ref(topology.name), "the admission policy of this topology", world.owner),
        (lease_ref(topology.name), "the lease of the engine that leads", world.owner),
        (status_ref(place), status_reason, record_owner),
        (history_ref(place), status_reason, record_owner),
    ]
    found = []
    for ref, reason, owner in wanted:
        seen = await read_or_none(upper, ref) if ref is not None else None
        if ref is not None and seen is not None and is_ours(seen, owner):
            read = as_read(seen)
            found.append(Registration(ref, read["uid"], read["resourceVersion"], reason))
    return found


async def delete_registrations(upper: Cluster, found: Iterable[Registration], recorder: Recorder) -> list[str]:
    """Delete registrations, and return why some of them could not be."""
    failed = []
    for one in found:
        error: ClusterError | None = None
        try:
            await upper.delete(one.ref, uid=one.uid, version=one.version)
        except NotFound:
            continue
        except Conflict as conflict:
            failed.append(f"{conflict}: it was changed meanwhile: stop the engine that writes it, and uninstall again")
            error = conflict
        except ClusterError as other:
            failed.append(str(other))
            error = other
        recorder.on_step(Key(NAME, UPPER, "", one.ref.name), one.step(), error)
    return failed


class Heartbeats(NamedTuple):
    """The signs of running engines: the `leader` by its lease ("" for none), and when leases of nodes were renewed."""

    leader: str
    renewed: Mapping[str, datetime]


async def heartbeats(upper: Cluster, world: World, now: datetime) -> Heartbeats:
    """Read the signs of running engines. Raises the ClusterError of a read that fails."""
    leader = active_holder(await read_or_none(upper, lease_ref(world.topology.name)) or {}, now)
    ours = [entry for entry in world.upper.nodes if entry.facts.owner == world.owner.mark]
    leases = {one.name: await read_or_none(upper, Ref(UPPER, LEASE, LEASE_NAMESPACE, one.name)) for one in ours}
    return Heartbeats(leader, {name: renewed_at(lease or {}) for name, lease in leases.items()})


def obstacles(world: World, beats: Heartbeats, now: datetime) -> list[str]:
    """Return why a topology must not be uninstalled now, and what to do, a line each, in the order to do it.

    Its pods leave first: only a running engine drains nodes.
    """
    found = [
        _bound_pods_message(lower)
        for lower in world.lowers.values()
        if lower.is_bound and not _is_of_another(lower, world)
    ]
    stop_when = "then stop it" if found else "stop it"
    alive = sorted(name for name, renewed in beats.renewed.items() if holds(renewed, now))
    remedy = (
        f"{stop_when} (Ctrl-C or SIGTERM; in a cluster: `kubectl scale deployment --replicas=0`), and wait "
        f"{LEASE_SECONDS:g} s"
    )
    if beats.leader:
        found.append(f"engine {beats.leader} leads topology {world.topology.name}: {remedy}")
    elif alive:
        found.append(f"an engine renews the lease of node {listed(alive)}: {remedy}")
    return found


def _is_of_another(lower: LowerWorld, world: World) -> bool:
    """Whether node and pods are certainly those of another topology, as after a mistake in the name."""
    return foreign_node(lower.node, world) is not None and lower.pods.synced and not lower.has_lower_pods


def _bound_pods_message(lower: LowerWorld) -> str:
    pods = sorted(f"{one.namespace}/{one.name}" for one in lower.upper_pods if not one.facts.stays_out)
    count = "1 pod is" if len(pods) == 1 else f"{len(pods)} pods are"
    return (
        f"{count} bound to node {lower.node} ({listed(pods)}): while the engine runs, set `maintenance: drain` for "
        f"lower {lower.name} and wait until the pods have left; delete pods without a controller, and those that have "
        "ended"
    )
