"""The MutatingAdmissionPolicy that lets pods stay on a virtual node without a limit, from their creation on.

Kubernetes gives every pod tolerations of a node that is not ready or unreachable which end after 300 seconds. A pod on
a virtual node needs them without an end (reconcile/tolerations.py). The policy takes the end away at admission, so that
the engine has no reason to write to the pod once it is bound.

It acts on updates as well: Kubernetes gives a pod its 300 seconds again when somebody writes its tolerations anew.

It only removes `tolerationSeconds`. Expressions that build typed values (`Object.spec.tolerations{...}`) made
kube-apiserver 1.36.3 panic at every creation of a pod, so none of them adds anything.
"""

import json
from collections.abc import Iterable

from tensile.names import VIRTUAL_POD, Owner
from tensile.objects import MUTATING_POLICY, MUTATING_POLICY_BINDING, UPPER, Manifest, Ref
from tensile.reconcile.optedin import left_alone
from tensile.reconcile.tolerations import NOT_READY, UNREACHABLE
from tensile.taints import HARD
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
    """Return the expression for: the pod tolerates a taint. It follows tensile/taints.py."""
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
