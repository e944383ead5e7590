"""Ways to make a plan stale other than mirrored kinds: nodes, namespaces, clusters, the file, the plan itself.

Each undoes its change if the next one needs that.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from bench.conformance.stale.mirrored_kinds import ACTION, CONTENT, IDENTITY, STATE, WORDS
from bench.conformance.stale.setup import A, B, Document, PlanClusters
from bench.kit.sites import NODES, Manifest
from tensile.names import FIELD_MANAGER, UPPER_UID
from tensile.sandbox.state import UPPER

SPACES = "/api/v1/namespaces"
FORGED_UID = "11111111-2222-4333-8444-555555555555"
PROVIDER_TAINT = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
LEVEL = "pod-security.kubernetes.io/enforce"


class OtherChange(NamedTuple):
    """A case: a context in which the change is made, and a regular expression that the refusal has to match.

    `before` runs before the plan is saved.
    """

    changed: Callable[[PlanClusters], Any]
    says: str
    before: Callable[[PlanClusters], Awaitable[None]] | None = None


def _object(cluster: str, what: str, *reasons: str) -> str:
    """Return the pattern of a line about an object."""
    return rf"{cluster}: {what}: ({'|'.join(WORDS[one] for one in reasons)})"


def once(change: Callable[[PlanClusters], Awaitable[None]]) -> Callable[[PlanClusters], Any]:
    """Return the context of a change that is not undone."""

    @asynccontextmanager
    async def changed(clusters: PlanClusters) -> AsyncIterator[None]:
        """Make the change."""
        await change(clusters)
        yield

    return changed


# Nodes: the file sets a label that lower-a's Node does not have yet.


def node_patch(body: Manifest, back: Manifest) -> Callable[[PlanClusters], Any]:
    """Return the context of a change of lower-a's Node."""

    @asynccontextmanager
    async def changed(clusters: PlanClusters) -> AsyncIterator[None]:
        """Make the change, and undo it."""
        await clusters.patch(UPPER, f"{NODES}/{A}", body)
        yield
        await clusters.patch(UPPER, f"{NODES}/{A}", back)

    return changed


def scaled(lower: str, share: float) -> Callable[[PlanClusters], Any]:
    """Return the context in which the nodes of a lower have another capacity."""

    @asynccontextmanager
    async def changed(clusters: PlanClusters) -> AsyncIterator[None]:
        """Set the capacity, and reset it."""
        await clusters.scale(lower, share)
        yield
        await clusters.scale(lower, 1)

    return changed


async def node_deleted(clusters: PlanClusters) -> None:
    """Delete lower-a's Node."""
    await clusters.delete(UPPER, f"{NODES}/{A}")


async def node_recreated(clusters: PlanClusters) -> None:
    """Delete lower-a's Node, and create it again as it was."""
    await clusters.recreate(UPPER, f"{NODES}/{A}")


async def other_node_deleted(clusters: PlanClusters) -> None:
    """Delete lower-b's Node, for which the plan has no step."""
    await clusters.delete(UPPER, f"{NODES}/{B}")


async def converge(clusters: PlanClusters) -> None:
    """Bring all clusters to the state of the file, except for the label of lower-a's Node."""
    topology = clusters.read()
    _label(topology, None)
    clusters.write(topology)
    await clusters.converge()
    _label(topology, "gold")
    clusters.write(topology)


def _label(topology: Document, value: str | None) -> None:
    for one in topology["lowers"]:
        if one["name"] == A:
            one["node"] = {"labels": {"tier": value}} if value else {}


@asynccontextmanager
async def _lost_node(clusters: PlanClusters) -> AsyncIterator[None]:
    """Delete one of the two nodes of lower-b, and create it again."""
    site, path = clusters.lowers[B], f"{NODES}/{B}-node-1"
    node = await site.call("GET", path)
    await clusters.delete(B, path)
    yield
    meta = {field: node["metadata"].get(field) for field in ("name", "labels", "annotations")}
    await site.call("POST", NODES, {**node, "metadata": meta})
    await site.until(path, lambda one: one["status"].get("allocatable"))


@asynccontextmanager
async def _stranger(clusters: PlanClusters) -> AsyncIterator[None]:
    """Let a pod that is not mirrored use about half of lower-b."""
    container = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "30"}}}
    await clusters.create(B, f"{SPACES}/default/pods", "large", {"spec": {"containers": [container]}})
    path = f"{SPACES}/default/pods/large"
    await clusters.lowers[B].until(path, lambda one: one["spec"].get("nodeName"))
    yield
    await clusters.delete(B, path)


@asynccontextmanager
async def _cordoned_below(clusters: PlanClusters) -> AsyncIterator[None]:
    """Cordon all nodes of lower-b."""
    paths = [f"{NODES}/{one['metadata']['name']}" for one in await clusters.lowers[B].items(NODES)]
    for path in paths:
        await clusters.patch(B, path, {"spec": {"unschedulable": True}})
    yield
    for path in paths:
        await clusters.patch(B, path, {"spec": {"unschedulable": None}})


# New namespaces and pods.


def space(name: str, lower: str = A) -> Callable[[PlanClusters], Awaitable[None]]:
    """Return a preparation that creates a namespace with a pod that is not yet mirrored."""

    async def before(clusters: PlanClusters) -> None:
        """Create them."""
        await clusters.namespace(name, **{LEVEL: "baseline"})
        await clusters.run_in(name, "first", lower)

    return before


def space_in_step(name: str, level: str = "") -> Callable[[PlanClusters], Awaitable[None]]:
    """Return a preparation that creates a mirrored namespace, and then sets its upper Pod Security level."""

    async def before(clusters: PlanClusters) -> None:
        """Create the namespace, converge, and set the level, if one is given."""
        await space(name)(clusters)
        await converge(clusters)
        if level:
            await clusters.patch(UPPER, f"{SPACES}/{name}", {"metadata": {"labels": {LEVEL: level}}})

    return before


def space_patch(cluster: str, name: str, body: Manifest) -> Callable[[PlanClusters], Any]:
    """Return the context of a change of a namespace."""
    return once(lambda clusters: clusters.patch(cluster, f"{SPACES}/{name}", body))


def bound(namespace: str, name: str, lower: str) -> Callable[[PlanClusters], Any]:
    """Return the context in which another pod is bound."""
    return once(lambda clusters: clusters.run_in(namespace, name, lower))


async def _orphan(clusters: PlanClusters) -> None:
    """Create a lower pod with this topology's marks in lower-a whose upper pod does not exist."""
    path = f"{SPACES}/space-kept/pods/first"
    found = await clusters.lowers[A].call("GET", path)
    meta = {field: found["metadata"][field] for field in ("labels", "annotations", "ownerReferences")}
    notes = {**meta["annotations"], UPPER_UID: FORGED_UID}
    body = {"metadata": {**meta, "annotations": notes}, "spec": found["spec"]}
    await clusters.create(A, f"{SPACES}/space-kept/pods?fieldManager={FIELD_MANAGER}", "forgotten", body)


# Clusters.


def kubeconfigs(change: Callable[[PlanClusters], Mapping[str, str]]) -> Callable[[PlanClusters], Any]:
    """Return the context in which kubeconfigs, by the name of their cluster, have another content."""

    @asynccontextmanager
    async def changed(clusters: PlanClusters) -> AsyncIterator[None]:
        """Write them, and restore them."""
        contents = change(clusters)
        kept = {name: clusters.kubeconfig(name).read_text() for name in contents}
        for name, text in contents.items():
            clusters.kubeconfig(name).write_text(text)
        yield
        for name, text in kept.items():
            clusters.kubeconfig(name).write_text(text)

    return changed


def _text(clusters: PlanClusters, cluster: str) -> str:
    return clusters.kubeconfig(cluster).read_text()


def _dead(clusters: PlanClusters, cluster: str) -> str:
    return re.sub(r"server: https://\S+", "server: https://127.0.0.1:1", _text(clusters, cluster))


def _anonymous(clusters: PlanClusters, cluster: str) -> str:
    return re.sub(r"client-(certificate|key)-data: \S+", r"client-\1-data: ''", _text(clusters, cluster))


def _read_without(name: str) -> Callable[[PlanClusters], Awaitable[None]]:
    """Return a preparation that makes a lower unreachable while the plan is saved."""

    async def before(clusters: PlanClusters) -> None:
        """Save a copy of the kubeconfig, and write one with a dead address."""
        clusters.kubeconfig(name).with_suffix(".kept").write_text(_text(clusters, name))
        clusters.kubeconfig(name).write_text(_dead(clusters, name))

    return before


async def _put_back(clusters: PlanClusters) -> None:
    """Make lower-b reachable again."""
    kept = clusters.kubeconfig(B).with_suffix(".kept")
    kept.replace(clusters.kubeconfig(B))


# The file and the plan.


def file(change: Callable[[str], str]) -> Callable[[PlanClusters], Any]:
    """Return the context in which the topology file has another content."""

    @asynccontextmanager
    async def changed(clusters: PlanClusters) -> AsyncIterator[None]:
        """Write the content, and restore the old one."""
        kept = clusters.file.read_text()
        await asyncio.to_thread(_replace, clusters.file, change(kept))
        yield
        await asyncio.to_thread(_replace, clusters.file, kept)

    return changed


def _replace(path: Path, text: str) -> None:
    with path.open("w", newline="") as stream:
        stream.write(text)


def forged(change: Callable[[Document], None]) -> Callable[[PlanClusters], Any]:
    """Return the context of a saved plan that was edited by hand."""

    async def edit(clusters: PlanClusters) -> None:
        """Edit the plan."""
        document = orjson.loads(clusters.plan.read_bytes())
        change(document)
        clusters.plan.write_bytes(orjson.dumps(document))

    return once(edit)


def _step(document: Document, kind: str = "Node") -> Document:
    found: Document = next(one for one in document["steps"] if one["kind"] == kind)
    return found


def _set(field: str, value: str) -> Callable[[Document], None]:
    return lambda document: _step(document).update({field: value})


def _removed(document: Document) -> None:
    document["steps"].remove(_step(document))


def _added(document: Document) -> None:
    document["steps"].append({**_step(document), "name": "forged"})


def _bare_text(text: str) -> str:
    return text.replace("\n", "\r\n")


NODE = f"Node {A}"
FILE = r"stale\.yaml: edited, from SHA-256 [0-9a-f]{12} to [0-9a-f]{12}"
UID = "[-0-9a-f]{36}"
OTHER_CHANGES: Mapping[str, OtherChange] = {
    "node-label": OtherChange(
        node_patch({"metadata": {"labels": {"theirs": "yes"}}}, {"metadata": {"labels": {"theirs": None}}}),
        _object(UPPER, NODE, STATE),
    ),
    "node-annotation": OtherChange(
        node_patch({"metadata": {"annotations": {"theirs": "yes"}}}, {"metadata": {"annotations": {"theirs": None}}}),
        _object(UPPER, NODE, STATE),
    ),
    "node-taint": OtherChange(
        node_patch(
            {"spec": {"taints": [PROVIDER_TAINT, {"key": "example.com/theirs", "effect": "NoSchedule"}]}},
            {"spec": {"taints": [PROVIDER_TAINT]}},
        ),
        _object(UPPER, NODE, STATE),
    ),
    "node-cordoned": OtherChange(
        node_patch({"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}), _object(UPPER, NODE, STATE)
    ),
    "node-done-already": OtherChange(
        node_patch({"metadata": {"labels": {"tier": "gold"}}}, {"metadata": {"labels": {"tier": None}}}),
        _object(UPPER, NODE, ACTION, STATE),
    ),
    "node-own-label": OtherChange(
        node_patch({"metadata": {"labels": {"type": "other"}}}, {"metadata": {"labels": {"type": "virtual-kubelet"}}}),
        r"upper: Node lower-a: changed, from resourceVersion \d+ to unknown",
    ),
    "node-recreated": OtherChange(once(node_recreated), _object(UPPER, NODE, IDENTITY)),
    "node-deleted": OtherChange(once(node_deleted), _object(UPPER, NODE, ACTION)),
    "other-node-deleted": OtherChange(once(other_node_deleted), _object(UPPER, f"Node {B}", ACTION), converge),
    "capacity-halved": OtherChange(scaled(B, 0.5), _object(UPPER, f"Node {B}", ACTION), converge),
    "capacity-tenth": OtherChange(scaled(B, 0.9), _object(UPPER, f"Node {B}", ACTION)),
    "capacity-more": OtherChange(scaled(B, 1.5), _object(UPPER, f"Node {B}", ACTION)),
    "capacity-of-a-step": OtherChange(scaled(A, 0.5), _object(UPPER, NODE, CONTENT)),
    "capacity-node-lost": OtherChange(_lost_node, _object(UPPER, f"Node {B}", ACTION)),
    "capacity-stranger": OtherChange(_stranger, _object(UPPER, f"Node {B}", ACTION)),
    "capacity-cordoned": OtherChange(_cordoned_below, _object(UPPER, f"Node {B}", ACTION)),
    "space-level": OtherChange(
        space_patch(UPPER, "space-level", {"metadata": {"labels": {LEVEL: "restricted"}}}),
        _object(A, "Namespace space-level", CONTENT),
        space("space-level"),
    ),
    "space-taken": OtherChange(
        once(lambda clusters: clusters.below(A, "space-taken")),
        _object(A, "Namespace space-taken", ACTION),
        space("space-taken"),
    ),
    "space-emptied": OtherChange(
        once(lambda clusters: clusters.delete(UPPER, f"{SPACES}/space-emptied/pods/first")),
        _object(A, "Namespace space-emptied", ACTION),
        space("space-emptied"),
    ),
    "space-changed-again": OtherChange(
        space_patch(UPPER, "space-again", {"metadata": {"labels": {LEVEL: "privileged"}}}),
        _object(A, "Namespace space-again", CONTENT),
        space_in_step("space-again", "restricted"),
    ),
    "space-changed-back": OtherChange(
        space_patch(UPPER, "space-back", {"metadata": {"labels": {LEVEL: "baseline"}}}),
        _object(A, "Namespace space-back", ACTION),
        space_in_step("space-back", "restricted"),
    ),
    "space-copy-label": OtherChange(
        space_patch(A, "space-copy", {"metadata": {"labels": {"theirs": "yes"}}}),
        _object(A, "Namespace space-copy", STATE),
        space_in_step("space-copy", "restricted"),
    ),
    "space-copy-level": OtherChange(
        space_patch(A, "space-kept", {"metadata": {"labels": {LEVEL: "privileged"}}}),
        _object(A, "Namespace space-kept", ACTION),
        space_in_step("space-kept"),
    ),
    "pod-bound": OtherChange(bound("space-kept", "second", A), _object(A, "Pod space-kept/second", ACTION)),
    "pod-bound-elsewhere": OtherChange(bound("space-kept", "third", B), _object(B, "Pod space-kept/third", ACTION)),
    "pod-orphan": OtherChange(once(_orphan), _object(A, "Pod space-kept/forgotten", ACTION)),
    "pod-ends": OtherChange(
        once(lambda clusters: clusters.upper.delete(f"{SPACES}/space-kept/pods/first")),
        _object(A, "Pod space-kept/first", ACTION),
    ),
    "cluster-swapped": OtherChange(
        kubeconfigs(lambda clusters: {A: _text(clusters, B), B: _text(clusters, A)}),
        rf"cluster {A}: from kube-system UID {UID} to (kube-system UID {UID}|not read)",
    ),
    "cluster-twice": OtherChange(
        kubeconfigs(lambda clusters: {B: _text(clusters, A)}), rf"cluster {B}: from kube-system UID {UID} to .+"
    ),
    "cluster-upper-as-lower": OtherChange(
        kubeconfigs(lambda clusters: {B: _text(clusters, UPPER)}), rf"cluster {B}: from kube-system UID {UID} to .+"
    ),
    "cluster-lower-as-upper": OtherChange(
        kubeconfigs(lambda clusters: {UPPER: _text(clusters, B)}), rf"cluster {UPPER}: from kube-system UID {UID} to .+"
    ),
    "cluster-away": OtherChange(
        kubeconfigs(lambda clusters: {B: _dead(clusters, B)}), rf"cluster {B}: from kube-system UID {UID} to not read"
    ),
    "cluster-refuses": OtherChange(
        kubeconfigs(lambda clusters: {B: _anonymous(clusters, B)}),
        rf"cluster {B}: from kube-system UID {UID} to not read",
    ),
    "cluster-no-credentials": OtherChange(
        kubeconfigs(lambda _stage: {A: ""}), rf"cluster {A}: from kube-system UID {UID} to not read"
    ),
    "cluster-back": OtherChange(
        once(_put_back), rf"cluster {B}: from not read to kube-system UID {UID}", _read_without(B)
    ),
    "file-comment": OtherChange(file(lambda text: f"{text}# later\n"), FILE),
    "file-space": OtherChange(file(lambda text: f"{text}\n"), FILE),
    "file-ends": OtherChange(file(_bare_text), FILE),
    "file-name": OtherChange(file(lambda text: text.replace("name: sandbox", "name: another")), FILE),
    "file-label": OtherChange(file(lambda text: text.replace("tier: gold", "tier: lead")), FILE),
    "file-lower": OtherChange(
        file(lambda text: text.replace(f"- name: {B}\n  kubeconfig: {B}.kubeconfig\n", "")), FILE
    ),
    "file-guard": OtherChange(file(lambda text: text.replace("maxDeletes: 1000", "maxDeletes: 1001")), FILE),
    "file-bad": OtherChange(file(lambda text: text.replace("lowers:", "lowerz:")), f"{FILE}, which is not valid:"),
    "forged-removed": OtherChange(forged(_removed), _object(UPPER, NODE, ACTION)),
    "forged-added": OtherChange(forged(_added), _object(UPPER, "Node forged", ACTION)),
    "forged-action": OtherChange(forged(_set("action", "delete")), _object(UPPER, NODE, ACTION)),
    "forged-uid": OtherChange(forged(_set("uid", FORGED_UID)), _object(UPPER, NODE, IDENTITY)),
    "forged-before": OtherChange(forged(_set("before", "0" * 64)), _object(UPPER, NODE, STATE)),
    "forged-after": OtherChange(forged(_set("after", "0" * 64)), _object(UPPER, NODE, CONTENT)),
    "forged-cluster": OtherChange(
        forged(lambda document: document["clusters"].update({A: FORGED_UID})),
        rf"cluster {A}: from kube-system UID {FORGED_UID} to kube-system UID {UID}",
    ),
    "forged-clusters": OtherChange(
        forged(lambda document: document["clusters"].pop(B)), rf"cluster {B}: from not read to kube-system UID {UID}"
    ),
    "forged-sum": OtherChange(forged(lambda document: document["topology"].update({"sha256": "0" * 64})), FILE),
    "forged-salt": OtherChange(
        forged(lambda document: document.update({"salt": "0" * 32})), _object(UPPER, NODE, STATE)
    ),
}
