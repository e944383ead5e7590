"""The output of `tensile plan`, and the writes of an engine in the same form."""

import asyncio
from typing import NamedTuple

import orjson
from enginekit import Edit, EngineHarness, Write
from sitekit import Manifest

from tensile.cli import plan

KINDS = {
    "nodes": "Node",
    "pods": "Pod",
    "namespaces": "Namespace",
    "configmaps": "ConfigMap",
    "secrets": "Secret",
    "services": "Service",
    "endpointslices": "EndpointSlice",
    "serviceaccounts": "ServiceAccount",
    "roles": "Role",
    "rolebindings": "RoleBinding",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "persistentvolumes": "PersistentVolume",
}
VERBS = {"create": "create", "patch": "update", "delete": "delete"}


class PlannedChange(NamedTuple):
    """One object that changes: its cluster, the action, and which object it is."""

    cluster: str
    action: str
    kind: str
    namespace: str
    name: str


async def plan_json(harness: EngineHarness, *edits: Edit, capacity_of: str = "") -> Manifest:
    """Return the output of `tensile plan -o json` for a topology, and check its report of whether there are changes.

    The plan runs in a thread of this process, which saves the start of Python each time. It must write nothing; the
    engine beside it may write its heartbeats, and mirror an event that was waiting. `capacity_of` names the node whose
    capacity counts: that of the others follows the nodes that other tests add to the same clusters.
    """
    await harness.mark_audit_logs()
    topology = harness.topology(*edits)
    text, changed, unreached = await asyncio.to_thread(
        plan.plan, topology, harness.cluster_access, "json", colour=False
    )
    tried = await harness.attempts(without=("leases", "events"))
    assert [one for one, _ in tried if one[2:] != _heartbeat(one)] == []
    found: Manifest = orjson.loads(text)
    assert (changed, unreached) == (bool(found["changes"]), "")
    return {**found, "changes": without_capacity_changes(found["changes"], capacity_of)}


def without_capacity_changes(changes: list[Manifest], capacity_of: str = "") -> list[Manifest]:
    """Return the changes of a plan without those of the capacity of nodes, except for the node of that name."""
    return [one for one in changes if one["name"] == capacity_of or not _is_capacity_change(one)]


def _is_capacity_change(change: Manifest) -> bool:
    """Report whether a change touches only the status of a Node."""
    status = (operation["path"].startswith("/status/") for operation in change["operations"])
    return (change["kind"], change["action"]) == ("Node", "update") and all(status)


def _heartbeat(write: Write) -> tuple[str, ...]:
    """Return the form of that node's heartbeat, which the engine may write at any time."""
    return ("nodes", "", write.name, "status")


def planned_changes(document: Manifest) -> set[PlannedChange]:
    """Return the objects that will change according to a plan."""
    fields = ("cluster", "action", "kind", "namespace", "name")
    return {PlannedChange(*(change[field] for field in fields)) for change in document["changes"]}


def written_changes(writes: list[Write]) -> set[PlannedChange]:
    """Return the objects that were changed, as a plan describes them: a created and then patched object is created."""
    found = {
        PlannedChange(one.cluster, VERBS[one.verb], KINDS[one.resource], one.namespace, one.name) for one in writes
    }
    return {one for one in found if one.action != "update" or one._replace(action="create") not in found}
