"""Keeps the MutatingAdmissionPolicy of the topology in force registered in the upper cluster.

The engine that leads registers it when it starts and when the topology changes, looks at it again every few minutes,
and takes it back once the topology has no lower clusters. A program that merely ends leaves it: pods that are created
until it is back need it as well. Where it cannot be registered (an apiserver before Kubernetes 1.36, a missing right,
an object of that name that is not ours) the engine works on, and patches each pod after it was bound.
"""

import asyncio
from contextlib import suppress
from typing import NamedTuple

import orjson
import structlog

from tensile.cluster import Cluster, Patch, Selection
from tensile.errors import AlreadyExists, ClusterError, Conflict, NotFound
from tensile.names import VIRTUAL_NODE, Owner
from tensile.objects import NODE, Manifest, Ref, as_read, metadata
from tensile.policy.admissionpolicy import binding, binding_ref, has_untainted_node, policy, policy_ref
from tensile.reconcile.observed import is_ours
from tensile.topology import Topology

_REAL_NODES = Selection(labels="!=".join(VIRTUAL_NODE))
_log = structlog.get_logger("tensile.admissionpolicy")


class Pace(NamedTuple):
    """Seconds until the next look: usually, after an error, and after somebody else wrote at the same time."""

    usually: float = 300.0
    after_error: float = 30.0
    after_conflict: float = 1.0


class PolicyRegistration:
    """Registers the policy of the topology that `follow` was called with last, while `run` runs.

    `own_namespace` is where this program runs, "" outside a cluster.
    """

    def __init__(self, upper: Cluster, owner: Owner, own_namespace: str = "", pace: Pace | None = None) -> None:
        self._upper = upper
        self._owner = owner
        self._own_namespace = own_namespace
        self._pace = pace or Pace()
        self._topology: Topology
        self._changed = asyncio.Event()
        self._trouble = ""

    def follow(self, topology: Topology) -> None:
        """Register the policy of this topology from now on."""
        self._topology = topology
        self._changed.set()

    async def run(self) -> None:
        """Look for ever, at once when the topology changes."""
        while True:
            self._changed.clear()
            rest = await self.look()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), rest)

    async def look(self) -> float:
        """Make what is registered as the topology says; return the seconds until the next look."""
        topology = self._topology
        try:
            trouble = await (self._register(topology) if topology.lowers else self._take_back(topology))
        except (AlreadyExists, Conflict):
            return self._pace.after_conflict
        except ClusterError as error:
            self._warn(str(error))
            return self._pace.after_error
        self._warn(trouble)
        return self._pace.usually

    async def _register(self, topology: Topology) -> str:
        """Register policy and binding; return what keeps them from being registered, "" for nothing."""
        all_virtual = has_untainted_node(topology) and await self._has_virtual_nodes_only()
        forms = [
            policy(topology, self._owner, all_virtual=every, own_namespace=self._own_namespace)
            for every in (all_virtual, not all_virtual)
        ]
        trouble = await self._keep(policy_ref(topology.name), forms)
        return trouble or await self._keep(binding_ref(topology.name), [binding(topology, self._owner)])

    async def _has_virtual_nodes_only(self) -> bool:
        found = await self._upper.list(NODE, _REAL_NODES, read=lambda _: True)
        return not found.items

    async def _keep(self, ref: Ref, forms: list[Manifest]) -> str:
        """Make an object of ours be the first of its forms; return why it is not, "" where it is.

        One that somebody applied by hand, from `tensile manifests`, is good in any of the forms.
        """
        wanted = forms[0]
        seen = await self._read(ref)
        if seen is None:
            try:
                await self._upper.create(ref, wanted)
            except NotFound:
                return f"the upper's apiserver does not serve {ref.kind.name} in {ref.kind.api} (Kubernetes 1.36 does)"
            _log.info("registered", kind=ref.kind.name, name=ref.name)
        elif not is_ours(seen, self._owner):
            if not any(_has_spec(seen, form) for form in forms):
                return f"{ref} is not ours and not what this topology needs: delete it, or apply the one that fits"
        elif not _has_spec(seen, wanted):
            await self._upper.patch(ref, Patch("merge-patch", {"metadata": as_read(seen), "spec": wanted["spec"]}))
            _log.info("changed", kind=ref.kind.name, name=ref.name)
        return ""

    async def _take_back(self, topology: Topology) -> str:
        """Delete what is registered, if it is ours."""
        for ref in (binding_ref(topology.name), policy_ref(topology.name)):
            seen = await self._read(ref)
            if seen is not None and is_ours(seen, self._owner):
                meta = metadata(seen)
                await self._upper.delete(ref, uid=meta["uid"], version=meta["resourceVersion"])
                _log.info("deleted: the topology has no lower clusters", kind=ref.kind.name, name=ref.name)
        return ""

    async def _read(self, ref: Ref) -> Manifest | None:
        try:
            found: Manifest = orjson.loads(await self._upper.read(ref))
        except NotFound:
            return None
        return found

    def _warn(self, trouble: str) -> None:
        """Log, once, why pods are not given their tolerations at creation."""
        if trouble and trouble != self._trouble:
            _log.warning("pods are given their tolerations after they are bound, by a patch", why=trouble)
        self._trouble = trouble


def _has_spec(seen: Manifest, wanted: Manifest) -> bool:
    """Report whether an object has a spec; fields that a later Kubernetes adds to it do not count."""
    spec: Manifest = seen.get("spec") or {}
    return {**spec, **wanted["spec"]} == spec
