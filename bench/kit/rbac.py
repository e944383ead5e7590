"""The roles of an engine as an administrator applies them, bound to a user of a real cluster.

A user with a certificate replaces the service account, so that every test's engine has its own name in audit logs; its
rights are exactly those that tensile/deploy/setup.py renders, or all of them except one.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from tensile.deploy.setup import lower_roles, upper_roles
from tensile.engine.permissions import ALL_KINDS
from tensile.sandbox.state import UPPER
from tensile.topology import Topology

Manifest = dict[str, Any]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
OWN = "own"
"""The placeholder for the engine's own namespace, which has a different name in every test."""
LIMIT = 30.0
_PAUSE = 0.02


class ApiCaller(Protocol):
    """A cluster, called as an administrator."""

    async def call(self, method: str, path: str, body: object = None) -> Manifest:
        """Make one request; raises for a status of 400 or more."""
        ...


class Right(NamedTuple):
    """A right of an engine: a verb on a resource, in the upper or in a lower cluster.

    `scope` is the only namespace of the right, or "". `resource` is as in roles, with its group: "pods/status",
    "leases.coordination.k8s.io".
    """

    side: str
    resource: str
    verb: str
    scope: str = ""

    def __str__(self) -> str:
        return f"{self.side}: {self.verb} {self.resource}{f' in {self.scope}' if self.scope else ''}"


def parse_right(text: str) -> Right:
    """Parse the result of `str`."""
    side, _, rest = text.partition(": ")
    right, _, scope = rest.partition(" in ")
    verb, resource = right.split()
    return Right(side, resource, verb, scope)


def qualified(resource: str, group: str) -> str:
    """Return the name of a resource with its group."""
    return f"{resource}.{group}" if group else resource


def enable_all_features(file: Manifest) -> None:
    """Enable every feature in a topology file."""
    file["controllers"] = ["PV", "Service", "RBAC", "ServiceAccount"]
    file["serviceAccounts"] = {"identity": "upper"}
    file["webhook"] = {"enabled": True}
    file["descheduler"] = {"enabled": True, "recreateBarePods": True}
    file["extender"] = {**file.get("extender", {}), "enabled": True}
    for key in ("tlsCertFile", "tlsKeyFile"):
        file["kubelet"].pop(key, None)


def roles_of(topology: Topology, namespace: str, configmap: str) -> dict[str, list[Manifest]]:
    """Return roles and bindings by cluster, as they are applied; service accounts are left out."""
    found = {UPPER: upper_roles(topology, namespace=namespace, configmap=configmap)}
    for lower in topology.lowers:
        found[lower.name] = lower_roles(lower, topology=topology.name, namespace=namespace)
    return {name: [one for one in objects if one["kind"] != "ServiceAccount"] for name, objects in found.items()}


def side_of(cluster: str) -> str:
    """Return the side of a cluster: all lower clusters have the same role."""
    return UPPER if cluster == UPPER else "lower"


ALL_RESOURCES = qualified(ALL_KINDS.plural, "*")
"""The placeholder for all kinds in a `Right`."""


def rights_in(cluster: str, objects: Iterable[Manifest], own: str) -> Iterator[Right]:
    """Yield each right that the roles of a cluster grant; `own` is the engine's namespace."""
    for role in objects:
        for rule in role.get("rules", ()):
            yield from (_right_of(cluster, role, rule, own) for rule in split_rule(rule))


def without(cluster: str, objects: Iterable[Manifest], missing: Right, own: str) -> list[Manifest]:
    """Return the roles without one right.

    Without the right to list one kind in the lower clusters, the right to list all kinds is removed too: each covers
    the other.
    """
    missed = {missing}
    if missing.side != UPPER and missing.verb == "list":
        missed.add(Right(missing.side, ALL_RESOURCES, "list"))
    found = []
    for one in objects:
        rules = [single for rule in one.get("rules", ()) for single in split_rule(rule)]
        kept = [single for single in rules if _right_of(cluster, one, single, own) not in missed]
        found.append({**one, "rules": kept} if "rules" in one else one)
    return found


def split_rule(rule: Manifest) -> Iterator[Manifest]:
    """Split a rule into rules of one verb on one resource each."""
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                yield {**rule, "apiGroups": [group], "resources": [resource], "verbs": [verb]}


def _right_of(cluster: str, role: Manifest, single: Manifest, own: str) -> Right:
    namespace = role["metadata"].get("namespace", "")
    resource = qualified(single["resources"][0], single["apiGroups"][0])
    return Right(side_of(cluster), resource, single["verbs"][0], OWN if namespace == own else namespace)


async def grant(site: ApiCaller, objects: Iterable[Manifest], user: str) -> None:
    """Create the roles and bindings for a user instead of the account; return when the apiserver applies them."""
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    made = [{**one, "subjects": [subject]} if "subjects" in one else one for one in objects]
    for one in made:
        await site.call("POST", collection(one), one)
    for one in made:
        if "rules" in one:
            await wait_until_effective(site, user, _asked(one))


async def wait_until_effective(site: ApiCaller, user: str, attributes: Manifest) -> None:
    """Wait until an apiserver applies a grant, which it reads from a cache."""
    body = {"spec": {"user": user, "resourceAttributes": attributes}}
    async with asyncio.timeout(LIMIT):
        while not (await site.call("POST", REVIEWS, body))["status"].get("allowed"):  # noqa: ASYNC110 - no watch
            await asyncio.sleep(_PAUSE)


def _asked(role: Manifest) -> Manifest:
    """Return the last right of a role, as the attributes of an access review."""
    *_, last = (single for rule in role["rules"] for single in split_rule(rule))
    plural, _, subresource = last["resources"][0].partition("/")
    return {
        "group": last["apiGroups"][0],
        "resource": plural,
        "subresource": subresource,
        "name": last.get("resourceNames", [""])[0],
        "verb": last["verbs"][0],
        "namespace": role["metadata"].get("namespace", ""),
    }


def path_of(one: Manifest) -> str:
    """Return the path of a role or a binding."""
    return f"{collection(one)}/{one['metadata']['name']}"


def collection(one: Manifest) -> str:
    """Return the path of the collection that a role or a binding is in."""
    namespace = one["metadata"].get("namespace")
    return f"{RBAC}/{f'namespaces/{namespace}/' if namespace else ''}{one['kind'].lower()}s"
