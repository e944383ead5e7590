"""The roles of an engine as an administrator applies them, given to a user of a real cluster.

A user with a certificate stands for the account, so that every test's engine has a name of its own in audit logs; what
it may do is to the letter what tensile/deploy/setup.py renders, or all of that but one thing.
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
"""What stands for the namespace of the engine itself, which has another name in every test."""
LIMIT = 30.0
_PAUSE = 0.02


class Caller(Protocol):
    """A cluster, called as an administrator."""

    async def call(self, method: str, path: str, body: object = None) -> Manifest:
        """Make one request; raises for a status of 400 or more."""
        ...


class Thing(NamedTuple):
    """One thing that an engine may do: a verb on a resource, above or below; `scope` is the one namespace of it, or "".

    `resource` is as roles write it, with its group: "pods/status", "leases.coordination.k8s.io".
    """

    side: str
    resource: str
    verb: str
    scope: str = ""

    def __str__(self) -> str:
        return f"{self.side}: {self.verb} {self.resource}{f' in {self.scope}' if self.scope else ''}"


def thing(text: str) -> Thing:
    """Read what `str` gave."""
    side, _, rest = text.partition(": ")
    words, _, scope = rest.partition(" in ")
    verb, resource = words.split()
    return Thing(side, resource, verb, scope)


def named(resource: str, group: str) -> str:
    """Name a resource with its group."""
    return f"{resource}.{group}" if group else resource


def everything(file: Manifest) -> None:
    """Make a topology file enable everything."""
    file["controllers"] = ["PV", "Service", "RBAC", "ServiceAccount"]
    file["serviceAccounts"] = {"identity": "upper"}
    file["webhook"] = {"enabled": True}
    file["descheduler"] = {"enabled": True, "recreateBarePods": True}
    file["extender"] = {**file.get("extender", {}), "enabled": True}
    for key in ("tlsCertFile", "tlsKeyFile"):
        file["kubelet"].pop(key, None)


def roles_of(topology: Topology, namespace: str, configmap: str) -> dict[str, list[Manifest]]:
    """Return roles and bindings by cluster, as they are applied; the accounts are left out."""
    found = {UPPER: upper_roles(topology, namespace=namespace, configmap=configmap)}
    for lower in topology.lowers:
        found[lower.name] = lower_roles(lower, topology=topology.name, namespace=namespace)
    return {name: [one for one in objects if one["kind"] != "ServiceAccount"] for name, objects in found.items()}


def side_of(cluster: str) -> str:
    """Describe on which side a cluster is: all lowers have one role."""
    return UPPER if cluster == UPPER else "lower"


EVERYTHING = named(ALL_KINDS.plural, "*")
"""What stands for all kinds in a `Thing`."""


def things(cluster: str, objects: Iterable[Manifest], own: str) -> Iterator[Thing]:
    """Yield each thing that roles of a cluster let one do; `own` is the engine's namespace."""
    for role in objects:
        for rule in role.get("rules", ()):
            yield from (_thing(cluster, role, rule, own) for rule in singles(rule))


def without(cluster: str, objects: Iterable[Manifest], missing: Thing, own: str) -> list[Manifest]:
    """Return roles that lack one thing.

    Without the list of one kind below, there is none of all kinds either: each covers the other.
    """
    missed = {missing}
    if missing.side != UPPER and missing.verb == "list":
        missed.add(Thing(missing.side, EVERYTHING, "list"))
    found = []
    for one in objects:
        rules = [single for rule in one.get("rules", ()) for single in singles(rule)]
        kept = [single for single in rules if _thing(cluster, one, single, own) not in missed]
        found.append({**one, "rules": kept} if "rules" in one else one)
    return found


def singles(rule: Manifest) -> Iterator[Manifest]:
    """Take a rule apart into rules of one verb on one resource each."""
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                yield {**rule, "apiGroups": [group], "resources": [resource], "verbs": [verb]}


def _thing(cluster: str, role: Manifest, single: Manifest, own: str) -> Thing:
    namespace = role["metadata"].get("namespace", "")
    resource = named(single["resources"][0], single["apiGroups"][0])
    return Thing(side_of(cluster), resource, single["verbs"][0], OWN if namespace == own else namespace)


async def grant(site: Caller, objects: Iterable[Manifest], user: str) -> None:
    """Make roles and bindings for a user in the account's place, and return when the apiserver goes by them."""
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    made = [{**one, "subjects": [subject]} if "subjects" in one else one for one in objects]
    for one in made:
        await site.call("POST", collection(one), one)
    for one in made:
        if "rules" in one:
            await effective(site, user, _asked(one))


async def effective(site: Caller, user: str, attributes: Manifest) -> None:
    """Wait until an apiserver has heard of a grant: it looks into a cache."""
    body = {"spec": {"user": user, "resourceAttributes": attributes}}
    async with asyncio.timeout(LIMIT):
        while not (await site.call("POST", REVIEWS, body))["status"].get("allowed"):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(_PAUSE)


def _asked(role: Manifest) -> Manifest:
    """Return the last thing that a role lets one do, as a review asks for it."""
    *_, last = (single for rule in role["rules"] for single in singles(rule))
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
