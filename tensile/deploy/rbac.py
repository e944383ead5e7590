"""The engine's accounts and their roles: what tensile/engine/permissions.py lists and nothing else.

Roles are called after the account's namespace and the topology, so that several topologies, also equally called ones of
different upper clusters, can have theirs in one lower cluster as long as each has a namespace of its own there.
"""

from collections.abc import Iterable, Iterator

from tensile.engine.configmap_source import Place
from tensile.engine.permissions import Right, lower_rights, upper_rights
from tensile.objects import Manifest
from tensile.topology import Lower, Topology

ACCOUNT = "tensile"
"""The ServiceAccount of the engine, in each cluster."""
CONFIGMAP = "topology"
"""The ConfigMap that holds the topology where none is named."""
_GROUP = "rbac.authorization.k8s.io"


def upper_roles(topology: Topology, *, namespace: str, configmap: str = CONFIGMAP) -> list[Manifest]:
    """Return the account of an engine in the upper cluster, and exactly the rights that it needs there.

    Args:
        topology: what it drives.
        namespace: where it runs; its account and the topology's ConfigMap are there.
        configmap: the name of that ConfigMap.
    """
    rights = upper_rights(topology, place=Place(namespace, configmap), takes_turns=True)
    return [_account(topology.name, namespace), *_roles(rights, topology.name, namespace)]


def lower_roles(lower: Lower, *, topology: str, namespace: str) -> list[Manifest]:
    """Return the account by which an engine comes to a lower cluster, and exactly the rights that it needs there.

    No pod runs as that account, so none is to be given its token by itself.

    Args:
        lower: the lower cluster.
        topology: the name of its topology.
        namespace: where the account is.
    """
    account = {**_account(topology, namespace), "automountServiceAccountToken": False}
    return [account, *_roles(lower_rights(lower), topology, namespace)]


def role_name(topology: str, namespace: str) -> str:
    """Name the roles of a topology's engine; names in Kubernetes have no colons, so that none is like another."""
    return f"{ACCOUNT}:{namespace}:{topology}"


def rules(rights: Iterable[Right]) -> list[Manifest]:
    """Write rights of one namespace, or of none, as rules: resources of a group with the same verbs are one.

    In the order of the rights; a right on one object has a rule of its own.
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


def _roles(rights: Iterable[Right], topology: str, namespace: str) -> Iterator[Manifest]:
    """Yield a role and its binding for all namespaces, and for each in which there are rights of its own."""
    by_place: dict[str, list[Right]] = {}
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
