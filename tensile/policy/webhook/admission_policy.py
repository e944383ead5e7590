"""The MutatingAdmissionPolicy that lets pods stay on a virtual node without a limit, from their creation on.

Kubernetes gives every pod tolerations of a node that is not ready or unreachable which end after 300 seconds. A pod on
a virtual node needs them without an end (reconcile/tolerations.py). The policy takes the end away at admission, so that
the engine has no reason to write to the pod once it is bound.

It acts on updates as well: Kubernetes gives a pod its 300 seconds again when somebody writes its tolerations anew.

It only removes `tolerationSeconds`. Expressions that build typed values (`Object.spec.tolerations{...}`) made
kube-apiserver 1.36.3 panic at every creation of a pod, so none of them adds anything.

Keeps the MutatingAdmissionPolicy of the topology in force registered in the upper cluster.

The engine that leads registers it when it starts and when the topology changes, looks at it again every few minutes,
and takes it back once the topology has no lower clusters. A program that merely ends leaves it: pods that are created
until it is back need it as well. Where it cannot be registered (an apiserver before Kubernetes 1.36, a missing right,
an object of that name that is not ours) the engine works on, and patches each pod after it was bound.
"""

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import orjson
import structlog

from tensile.errors import AlreadyExists, ClusterError, Conflict, NotFound
from tensile.kube.cluster import Cluster, Patch, Selection
from tensile.names import VIRTUAL_NODE, VIRTUAL_POD, Owner
from tensile.objects import (
    HARD,
    MUTATING_POLICY,
    MUTATING_POLICY_BINDING,
    NODE,
    UPPER,
    Manifest,
    Ref,
    as_read,
    metadata,
)
from tensile.reconcile.ownership import is_ours
from tensile.reconcile.pods.scheduling import NOT_READY, UNREACHABLE, left_alone
from tensile.topology import Taint, Topology

_MOST_TOLERATIONS = 32
"""How many tolerations of a pod are looked at. A pod with more of them is patched by the engine instead."""
_NODE = "object.spec.?nodeName.orValue('')"
_WITHOUT_SECONDS = (
    "variables.limited.map(i, JSONPatch{op: 'remove', path: '/spec/tolerations/' + string(i) + '/tolerationSeconds'})"
)


def policy_ref(topology: str) -> Ref:
    """Return where the policy of a topology of this name stands."""
    return Ref(UPPER, MUTATING_POLICY, "", f"tensile-{topology}")


def binding_ref(topology: str) -> Ref:
    """Return where the binding stands that makes the policy apply."""
    return Ref(UPPER, MUTATING_POLICY_BINDING, "", f"tensile-{topology}")


def has_untainted_node(topology: Topology) -> bool:
    """Report whether some virtual node takes pods without any toleration."""
    return any(not taints for taints in _taint_sets(topology))


def policy(topology: Topology, owner: Owner | None, *, all_virtual: bool, own_namespace: str = "") -> Manifest:
    """Return the policy as the API stores it; without an `owner` it carries no marks.

    `all_virtual` says that the upper cluster has no nodes but virtual ones. Only then does it apply to every pod where
    a virtual node has no taints: a pod on a real node shall be evicted when that node fails. Pods of `own_namespace`,
    which the engine runs in, are left alone.
    """
    elsewhere = {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": sorted(left_alone(topology, own_namespace)),
    }
    written_pods = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["pods"],
        "scope": "Namespaced",
    }
    spec = {
        "failurePolicy": "Ignore",
        "matchConditions": [
            {"name": "may-run-on-a-virtual-node", "expression": _condition(topology, all_virtual=all_virtual)}
        ],
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": {"matchExpressions": [elsewhere]},
            "objectSelector": {},
            "resourceRules": [written_pods],
        },
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _WITHOUT_SECONDS}}],
        "reinvocationPolicy": "Never",
        "variables": [
            {"name": "tolerations", "expression": "object.spec.?tolerations.orValue([])"},
            {"name": "limited", "expression": _limited()},
        ],
    }
    return _object(policy_ref(topology.name), owner, spec)


def binding(topology: Topology, owner: Owner | None) -> Manifest:
    """Return the binding of a topology's policy; without an `owner` it carries no marks."""
    return _object(binding_ref(topology.name), owner, {"policyName": policy_ref(topology.name).name})


def _object(ref: Ref, owner: Owner | None, spec: Manifest) -> Manifest:
    marks = {"labels": owner.label, "annotations": owner.signed(owner.upper)} if owner else {}
    meta = {"name": ref.name, **marks}
    return {"apiVersion": ref.kind.api, "kind": ref.kind.name, "metadata": meta, "spec": spec}


def _condition(topology: Topology, *, all_virtual: bool) -> str:
    """Return the CEL expression that is true for pods that run, or may run, on a virtual node of the topology."""
    names = ", ".join(_text(lower.node.name) for lower in topology.lowers)
    return f"{_NODE} in [{names}] || ({_NODE} == '' && ({_may_run(topology, all_virtual=all_virtual)}))"


def _may_run(topology: Topology, *, all_virtual: bool) -> str:
    """Return the expression that is true for pods that a virtual node takes, as far as they say so themselves."""
    ways = [f"object.metadata.?labels[?{_text(VIRTUAL_POD)}].orValue('') == 'true'"]
    for taints in _taint_sets(topology):
        if taints:
            ways.append(" && ".join(map(_tolerated, taints)))
        elif all_virtual:
            return "true"
    return " || ".join(f"({way})" for way in ways)


def _tolerated(taint: Taint) -> str:
    """Return the expression for: the pod tolerates a taint. It follows tensile/objects.py."""
    equal = f"t.?operator.orValue('') in ['', 'Equal'] && t.?value.orValue('') == {_text(taint.value)}"
    return (
        "object.spec.?tolerations.orValue([]).exists(t, "
        f"t.?effect.orValue('') in ['', {_text(taint.effect)}] && t.?key.orValue('') in ['', {_text(taint.key)}] && "
        f"(t.?operator.orValue('') == 'Exists' || ({equal})))"
    )


def _limited() -> str:
    """Return the expression for the places of a pod's tolerations that end."""
    keys = f"[{_text(NOT_READY)}, {_text(UNREACHABLE)}]"
    places = ", ".join(map(str, range(_MOST_TOLERATIONS)))
    return (
        f"[{places}].filter(i, i < size(variables.tolerations) && "
        f"variables.tolerations[i].?key.orValue('') in {keys} && has(variables.tolerations[i].tolerationSeconds))"
    )


def _taint_sets(topology: Topology) -> Iterable[tuple[Taint, ...]]:
    """Return the taints of each virtual node that keep pods off, every set of them once."""
    sets = (tuple(taint for taint in lower.node.taints if taint.effect in HARD) for lower in topology.lowers)
    return dict.fromkeys(sets)


def _text(value: str) -> str:
    """Return a string as a literal of CEL, whose escapes are those of JSON."""
    return "'" + json.dumps(value)[1:-1].replace("'", "\\'") + "'"


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
