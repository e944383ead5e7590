"""The MutatingAdmissionPolicy that gives pods of virtual nodes unlimited tolerations, and its registration.

Kubernetes gives every pod tolerations of 300 seconds for not-ready and unreachable nodes, again when a client replaces
its tolerations. On a virtual node they must have no limit (`tolerations_for_upper` in reconcile/pods/scheduling.py).
The policy removes it at admission, so that the engine need not patch bound pods. It adds nothing: expressions with
typed values (`Object.spec.tolerations{...}`) made kube-apiserver 1.36.3 panic at every creation of a pod.

The leader registers it at start and on edits, checks it every few minutes, and deletes it when the topology has no
lower clusters. An engine that stops leaves it for pods created meanwhile. If it cannot be registered (apiserver before
1.36, missing permission, an object of that name that is not ours), the engine patches each pod after it is bound.
"""

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress

import structlog

from tensile.errors import AlreadyExists, ClusterError, Conflict, NotFound
from tensile.kube.cluster import Cluster, Patch, Selection, read_or_none
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
from tensile.reconcile.diff import fence
from tensile.reconcile.ownership import is_ours
from tensile.reconcile.pods.scheduling import NOT_READY, UNREACHABLE, left_alone
from tensile.topology import Taint, Topology

_MOST_TOLERATIONS = 32
"""How many tolerations of a pod the policy checks; a pod with more is patched by the engine instead."""
_NODE = "object.spec.?nodeName.orValue('')"
_WITHOUT_SECONDS = (
    "variables.limited.map(i, JSONPatch{op: 'remove', path: '/spec/tolerations/' + string(i) + '/tolerationSeconds'})"
)
_REAL_NODES = Selection(labels="!=".join(VIRTUAL_NODE))
CHECK_SECONDS, ERROR_SECONDS, CONFLICT_SECONDS = 300.0, 30.0, 1.0
"""Seconds between two checks, after an error, and after a write conflict."""
_log = structlog.get_logger("tensile.admissionpolicy")


def policy_ref(topology: str) -> Ref:
    """Return the ref of the policy of a topology."""
    return Ref(UPPER, MUTATING_POLICY, "", f"tensile-{topology}")


def binding_ref(topology: str) -> Ref:
    """Return the ref of the binding that activates the policy."""
    return Ref(UPPER, MUTATING_POLICY_BINDING, "", f"tensile-{topology}")


def has_untainted_node(topology: Topology) -> bool:
    """Report whether a virtual node accepts pods without any toleration."""
    return any(not taints for taints in _taint_sets(topology))


def policy(topology: Topology, owner: Owner | None, *, all_virtual: bool, own_namespace: str = "") -> Manifest:
    """Return the policy as the API stores it; without an `owner` it has no ownership marks.

    `all_virtual` is whether all nodes of the upper cluster are virtual. Only then, if a virtual node has no taints, the
    policy applies to every pod: a pod on a real node must be evicted when that node fails. Pods of `own_namespace`, in
    which the engine runs, are left alone.
    """
    other_namespaces = {
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
            "namespaceSelector": {"matchExpressions": [other_namespaces]},
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
    """Return the binding of a topology's policy; without an `owner` it has no ownership marks."""
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
    """Return the expression that is true for pods that a virtual node accepts, judged by label and tolerations."""
    ways = [f"object.metadata.?labels[?{_text(VIRTUAL_POD)}].orValue('') == 'true'"]
    for taints in _taint_sets(topology):
        if taints:
            ways.append(" && ".join(map(_tolerated, taints)))
        elif all_virtual:
            return "true"
    return " || ".join(f"({way})" for way in ways)


def _tolerated(taint: Taint) -> str:
    """Return the expression that is true if the pod tolerates a taint, like `tolerates` in tensile/objects.py."""
    equal = f"t.?operator.orValue('') in ['', 'Equal'] && t.?value.orValue('') == {_text(taint.value)}"
    return (
        "object.spec.?tolerations.orValue([]).exists(t, "
        f"t.?effect.orValue('') in ['', {_text(taint.effect)}] && t.?key.orValue('') in ['', {_text(taint.key)}] && "
        f"(t.?operator.orValue('') == 'Exists' || ({equal})))"
    )


def _limited() -> str:
    """Return the expression for the indexes of a pod's not-ready and unreachable tolerations with a limit."""
    keys = f"[{_text(NOT_READY)}, {_text(UNREACHABLE)}]"
    places = ", ".join(map(str, range(_MOST_TOLERATIONS)))
    return (
        f"[{places}].filter(i, i < size(variables.tolerations) && "
        f"variables.tolerations[i].?key.orValue('') in {keys} && has(variables.tolerations[i].tolerationSeconds))"
    )


def _taint_sets(topology: Topology) -> Iterable[tuple[Taint, ...]]:
    """Return the taints of each virtual node that repel pods, without repeated sets."""
    sets = (tuple(taint for taint in lower.node.taints if taint.effect in HARD) for lower in topology.lowers)
    return dict.fromkeys(sets)


def _text(value: str) -> str:
    """Return a string as a CEL literal, whose escapes are those of JSON."""
    return "'" + json.dumps(value)[1:-1].replace("'", "\\'") + "'"


class PolicyRegistration:
    """Keeps the policy of the last topology passed to `follow` registered, while `run` runs.

    `own_namespace` is where this process runs, "" outside a cluster.
    """

    def __init__(self, upper: Cluster, owner: Owner, own_namespace: str) -> None:
        self._upper = upper
        self._owner = owner
        self._own_namespace = own_namespace
        self._topology: Topology
        self._changed = asyncio.Event()
        self._problem = ""

    def follow(self, topology: Topology) -> None:
        """Register the policy of this topology from now on."""
        self._topology = topology
        self._changed.set()

    async def run(self) -> None:
        """Check the registration indefinitely, and at once when the topology changes."""
        while True:
            self._changed.clear()
            seconds = await self.reconcile()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()

    async def reconcile(self) -> float:
        """Reconcile the registration with the topology; return the seconds until the next check."""
        topology = self._topology
        try:
            problem = await (self._register(topology) if topology.lowers else self._unregister(topology))
        except (AlreadyExists, Conflict):
            return CONFLICT_SECONDS
        except ClusterError as error:
            self._warn(str(error))
            return ERROR_SECONDS
        self._warn(problem)
        return CHECK_SECONDS

    async def _register(self, topology: Topology) -> str:
        """Register policy and binding; return what prevents it, "" for nothing."""
        all_virtual = has_untainted_node(topology) and await self._has_virtual_nodes_only()
        forms = [
            policy(topology, self._owner, all_virtual=is_virtual, own_namespace=self._own_namespace)
            for is_virtual in (all_virtual, not all_virtual)
        ]
        problem = await self._ensure(policy_ref(topology.name), forms)
        return problem or await self._ensure(binding_ref(topology.name), [binding(topology, self._owner)])

    async def _has_virtual_nodes_only(self) -> bool:
        found = await self._upper.list(NODE, _REAL_NODES, read=lambda _: True)
        return not found.items

    async def _ensure(self, ref: Ref, forms: list[Manifest]) -> str:
        """Create or patch an object of ours to the first of `forms`; return why that is not possible, "" if it is done.

        An object that a user applied from the output of `tensile manifests` may have any of the forms.
        """
        wanted = forms[0]
        seen = await read_or_none(self._upper, ref)
        if seen is None:
            try:
                await self._upper.create(ref, wanted)
            except NotFound:
                return f"the upper apiserver does not serve {ref.kind.name} in {ref.kind.api} (Kubernetes 1.36 does)"
            _log.info("registered", kind=ref.kind.name, name=ref.name)
        elif not is_ours(seen, self._owner):
            if not any(_has_spec(seen, form) for form in forms):
                return f"{ref} belongs to another owner and differs from what this topology needs: delete or replace it"
        elif not _has_spec(seen, wanted):
            read = as_read(seen)
            # A merge patch would keep what another client added inside a field, such as a selector.
            replaced = {"op": "replace", "path": "/spec", "value": wanted["spec"]}
            fenced = fence(read["uid"], read["resourceVersion"])
            await self._upper.patch(ref, Patch("json-patch", [*fenced, replaced]))
            _log.info("changed", kind=ref.kind.name, name=ref.name)
        return ""

    async def _unregister(self, topology: Topology) -> str:
        """Delete policy and binding if they are ours."""
        for ref in (binding_ref(topology.name), policy_ref(topology.name)):
            seen = await read_or_none(self._upper, ref)
            if seen is not None and is_ours(seen, self._owner):
                meta = metadata(seen)
                await self._upper.delete(ref, uid=meta["uid"], version=meta["resourceVersion"])
                _log.info("deleted: the topology has no lower clusters", kind=ref.kind.name, name=ref.name)
        return ""

    def _warn(self, problem: str) -> None:
        """Log, once, why pods do not get their tolerations at creation."""
        if problem and problem != self._problem:
            _log.warning("pods get their tolerations by a patch after they are bound", why=problem)
        self._problem = problem


def _has_spec(seen: Manifest, wanted: Manifest) -> bool:
    """Report whether an object has a spec; fields that a later Kubernetes adds do not count."""
    spec: Manifest = seen.get("spec") or {}
    return {**spec, **wanted["spec"]} == spec
