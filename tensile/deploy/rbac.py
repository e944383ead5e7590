"""The engine's ServiceAccounts and their roles: the rights that tensile/engine/permissions.py lists, and no others.

And the roles of a CI account that lets the engine plan candidates: rights on two ConfigMaps, by their names.

Roles are named after the account's namespace and the topology. So several topologies can have roles in one lower
cluster, even topologies of one name from different upper clusters, as long as each has its own namespace there.
"""

from collections.abc import Iterable, Iterator

from tensile.engine.permissions import Permission, lower_rights, upper_rights
from tensile.engine.topology_reader import ConfigMapKey
from tensile.names import CANDIDATE_SUFFIX, PLAN_SUFFIX
from tensile.objects import Manifest
from tensile.topology import Lower, Topology

ACCOUNT = "tensile"
"""The name of the engine's ServiceAccount in each cluster."""
CI_ACCOUNT = f"{ACCOUNT}-ci"
"""The name of the ServiceAccount, and its Role, that may have candidates planned."""
CONFIGMAP = "topology"
"""The default name of the ConfigMap that holds the topology."""
_GROUP = "rbac.authorization.k8s.io"


def upper_roles(topology: Topology, *, namespace: str, configmap: str = CONFIGMAP) -> list[Manifest]:
    """Return the engine's ServiceAccount in the upper cluster, and roles with exactly the rights that it needs there.

    Args:
        topology: the topology that the engine applies.
        namespace: the namespace of the engine, its account and the topology's ConfigMap.
        configmap: the name of that ConfigMap.
    """
    rights = upper_rights(topology, place=ConfigMapKey(namespace, configmap), takes_turns=True, namespace=namespace)
    return [_account(topology.name, namespace), *_roles(rights, topology.name, namespace)]


def lower_roles(lower: Lower, *, topology: str, namespace: str) -> list[Manifest]:
    """Return the engine's ServiceAccount in a lower cluster, and roles with exactly the rights that it needs there.

    No pod runs as that account, so its token is never mounted automatically.

    Args:
        lower: the lower cluster.
        topology: the name of its topology.
        namespace: the namespace of the account.
    """
    account = {**_account(topology, namespace), "automountServiceAccountToken": False}
    return [account, *_roles(lower_rights(lower), topology, namespace)]


def candidate_roles(topology: str, *, namespace: str, configmap: str = CONFIGMAP) -> list[Manifest]:
    """Return a ServiceAccount for CI in the upper cluster, and a Role with what it needs to have a candidate planned.

    A server-side apply creates an object under a name that is known, so even `create` is limited to one name.

    Args:
        topology: the name of the topology.
        namespace: the namespace of the engine and of the topology's ConfigMap.
        configmap: the name of that ConfigMap.
    """
    meta = {"name": CI_ACCOUNT, "namespace": namespace, "labels": _labels(topology)}
    written = _rule("", ("create", "patch", "delete"), configmap + CANDIDATE_SUFFIX, ["configmaps"])
    read = _rule("", ("get",), configmap + PLAN_SUFFIX, ["configmaps"])
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": f"{_GROUP}/v1", "kind": "Role", "metadata": meta, "rules": [written, read]},
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": CI_ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": CI_ACCOUNT, "namespace": namespace}],
        },
    ]


def role_name(topology: str, namespace: str) -> str:
    """Return the name of the roles of a topology's engine.

    Names of namespaces and topologies contain no colons, so two different pairs never get the same name.
    """
    return f"{ACCOUNT}:{namespace}:{topology}"


def rules(rights: Iterable[Permission]) -> list[Manifest]:
    """Return the RBAC rules of rights in one namespace, or of cluster-wide rights, in the order of the rights.

    Resources of one API group with the same verbs share a rule; a right on one named object has its own rule.
    """
    found: dict[tuple[str, tuple[str, ...], str], list[str]] = {}
    for right in rights:
        found.setdefault((right.group, right.verbs, right.name), []).append(right.resource)
    return [_rule(*key, resources) for key, resources in found.items()]


def _rule(group: str, verbs: tuple[str, ...], name: str, resources: list[str]) -> Manifest:
    names = {"resourceNames": [name]} if name else {}
    return {"apiGroups": [group], "resources": resources, **names, "verbs": list(verbs)}


def _account(topology: str, namespace: str) -> Manifest:
    meta = {"name": ACCOUNT, "namespace": namespace, "labels": _labels(topology)}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}


def _roles(rights: Iterable[Permission], topology: str, namespace: str) -> Iterator[Manifest]:
    """Yield a ClusterRole and its binding, and a Role and its binding for each namespace with rights of its own."""
    by_place: dict[str, list[Permission]] = {}
    for right in rights:
        by_place.setdefault(right.namespace, []).append(right)
    for place, found in by_place.items():
        kind = "Role" if place else "ClusterRole"
        where = {"namespace": place} if place else {}
        meta = {"name": role_name(topology, namespace), **where, "labels": _labels(topology)}
        yield {"apiVersion": f"{_GROUP}/v1", "kind": kind, "metadata": meta, "rules": rules(found)}
        yield {
            "apiVersion": f"{_GROUP}/v1",
            "kind": f"{kind}Binding",
            "metadata": meta,
            "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": meta["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
        }


def _labels(topology: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": ACCOUNT, "app.kubernetes.io/instance": topology}
