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

from bench.conformance.stale.stage import A, B, Document, Stage
from bench.conformance.stale.subjects import ACTION, CONTENT, IDENTITY, STATE, WORDS
from bench.kit.sites import NODES, Manifest
from tensile.names import FIELD_MANAGER, UPPER_UID
from tensile.sandbox.state import UPPER

SPACES = "/api/v1/namespaces"
FORGED_UID = "11111111-2222-4333-8444-555555555555"
PROVIDER_TAINT = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
LEVEL = "pod-security.kubernetes.io/enforce"


class Other(NamedTuple):
    """A case: a context in which the change is made, and a regular expression that the refusal has to match.

    `before` runs before the plan is saved.
    """

    changed: Callable[[Stage], Any]
    says: str
    before: Callable[[Stage], Awaitable[None]] | None = None


def _object(cluster: str, what: str, *reasons: str) -> str:
    """Return the pattern of a line about an object."""
    return rf"{cluster}: {what}: ({'|'.join(WORDS[one] for one in reasons)})"


def once(change: Callable[[Stage], Awaitable[None]]) -> Callable[[Stage], Any]:
    """Return the context of a change that is not undone."""

    @asynccontextmanager
    async def changed(stage: Stage) -> AsyncIterator[None]:
        """Make the change."""
        await change(stage)
        yield

    return changed


# Nodes: the file sets a label that lower-a's Node does not have yet.


def node_patch(body: Manifest, back: Manifest) -> Callable[[Stage], Any]:
    """Return the context of a change of lower-a's Node."""

    @asynccontextmanager
    async def changed(stage: Stage) -> AsyncIterator[None]:
        """Make the change, and undo it."""
        await stage.patch(UPPER, f"{NODES}/{A}", body)
        yield
        await stage.patch(UPPER, f"{NODES}/{A}", back)

    return changed


def scaled(lower: str, share: float) -> Callable[[Stage], Any]:
    """Return the context in which the nodes of a lower have another capacity."""

    @asynccontextmanager
    async def changed(stage: Stage) -> AsyncIterator[None]:
        """Set the capacity, and reset it."""
        await stage.scale(lower, share)
        yield
        await stage.scale(lower, 1)

    return changed


async def node_deleted(stage: Stage) -> None:
    """Delete lower-a's Node."""
    await stage.delete(UPPER, f"{NODES}/{A}")


async def node_recreated(stage: Stage) -> None:
    """Delete lower-a's Node, and create it again as it was."""
    await stage.recreate(UPPER, f"{NODES}/{A}")


async def other_node_deleted(stage: Stage) -> None:
    """Delete lower-b's Node, for which the plan has no step."""
    await stage.delete(UPPER, f"{NODES}/{B}")


async def converge(stage: Stage) -> None:
    """Bring all clusters to the state of the file, except for the label of lower-a's Node."""
    topology = stage.read()
    _label(topology, None)
    stage.write(topology)
    await stage.converge()
    _label(topology, "gold")
    stage.write(topology)


def _label(topology: Document, value: str | None) -> None:
    for one in topology["lowers"]:
        if one["name"] == A:
            one["node"] = {"labels": {"tier": value}} if value else {}


@asynccontextmanager
async def _lost_node(stage: Stage) -> AsyncIterator[None]:
    """Delete one of the two nodes of lower-b, and create it again."""
    site, path = stage.lowers[B], f"{NODES}/{B}-node-1"
    node = await site.call("GET", path)
    await stage.delete(B, path)
    yield
    meta = {field: node["metadata"].get(field) for field in ("name", "labels", "annotations")}
    await site.call("POST", NODES, {**node, "metadata": meta})
    await site.until(path, lambda one: one["status"].get("allocatable"))


@asynccontextmanager
async def _stranger(stage: Stage) -> AsyncIterator[None]:
    """Let a pod that is not mirrored use about half of lower-b."""
    container = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "30"}}}
    await stage.create(B, f"{SPACES}/default/pods", "large", {"spec": {"containers": [container]}})
    path = f"{SPACES}/default/pods/large"
    await stage.lowers[B].until(path, lambda one: one["spec"].get("nodeName"))
    yield
    await stage.delete(B, path)


@asynccontextmanager
async def _cordoned_below(stage: Stage) -> AsyncIterator[None]:
    """Cordon all nodes of lower-b."""
    paths = [f"{NODES}/{one['metadata']['name']}" for one in await stage.lowers[B].items(NODES)]
    for path in paths:
        await stage.patch(B, path, {"spec": {"unschedulable": True}})
    yield
    for path in paths:
        await stage.patch(B, path, {"spec": {"unschedulable": None}})


# New namespaces and pods.


def space(name: str, lower: str = A) -> Callable[[Stage], Awaitable[None]]:
    """Return a preparation that creates a namespace with a pod that is not yet mirrored."""

    async def before(stage: Stage) -> None:
        """Create them."""
        await stage.namespace(name, **{LEVEL: "baseline"})
        await stage.run_in(name, "first", lower)

    return before


def space_in_step(name: str, level: str = "") -> Callable[[Stage], Awaitable[None]]:
    """Return a preparation that creates a mirrored namespace, and then sets its upper Pod Security level."""

    async def before(stage: Stage) -> None:
        """Create the namespace, converge, and set the level, if one is given."""
        await space(name)(stage)
        await converge(stage)
        if level:
            await stage.patch(UPPER, f"{SPACES}/{name}", {"metadata": {"labels": {LEVEL: level}}})

    return before


def space_patch(cluster: str, name: str, body: Manifest) -> Callable[[Stage], Any]:
    """Return the context of a change of a namespace."""
    return once(lambda stage: stage.patch(cluster, f"{SPACES}/{name}", body))


def bound(namespace: str, name: str, lower: str) -> Callable[[Stage], Any]:
    """Return the context in which another pod is bound."""
    return once(lambda stage: stage.run_in(namespace, name, lower))


async def _orphan(stage: Stage) -> None:
    """Create a lower pod with this topology's marks in lower-a whose upper pod does not exist."""
    path = f"{SPACES}/space-kept/pods/first"
    found = await stage.lowers[A].call("GET", path)
    meta = {field: found["metadata"][field] for field in ("labels", "annotations", "ownerReferences")}
    notes = {**meta["annotations"], UPPER_UID: FORGED_UID}
    body = {"metadata": {**meta, "annotations": notes}, "spec": found["spec"]}
    await stage.create(A, f"{SPACES}/space-kept/pods?fieldManager={FIELD_MANAGER}", "forgotten", body)


# Clusters.


def kubeconfigs(change: Callable[[Stage], Mapping[str, str]]) -> Callable[[Stage], Any]:
    """Return the context in which kubeconfigs, by the name of their cluster, have another content."""

    @asynccontextmanager
    async def changed(stage: Stage) -> AsyncIterator[None]:
        """Write them, and restore them."""
        contents = change(stage)
        kept = {name: stage.kubeconfig(name).read_text() for name in contents}
        for name, text in contents.items():
            stage.kubeconfig(name).write_text(text)
        yield
        for name, text in kept.items():
            stage.kubeconfig(name).write_text(text)

    return changed


def _text(stage: Stage, cluster: str) -> str:
    return stage.kubeconfig(cluster).read_text()


def _dead(stage: Stage, cluster: str) -> str:
    return re.sub(r"server: https://\S+", "server: https://127.0.0.1:1", _text(stage, cluster))


def _anonymous(stage: Stage, cluster: str) -> str:
    return re.sub(r"client-(certificate|key)-data: \S+", r"client-\1-data: ''", _text(stage, cluster))


def _read_without(name: str) -> Callable[[Stage], Awaitable[None]]:
    """Return a preparation that makes a lower unreachable while the plan is saved."""

    async def before(stage: Stage) -> None:
        """Save a copy of the kubeconfig, and write one with a dead address."""
        stage.kubeconfig(name).with_suffix(".kept").write_text(_text(stage, name))
        stage.kubeconfig(name).write_text(_dead(stage, name))

    return before


async def _put_back(stage: Stage) -> None:
    """Make lower-b reachable again."""
    kept = stage.kubeconfig(B).with_suffix(".kept")
    kept.replace(stage.kubeconfig(B))


# The file and the plan.


def file(change: Callable[[str], str]) -> Callable[[Stage], Any]:
    """Return the context in which the topology file has another content."""

    @asynccontextmanager
    async def changed(stage: Stage) -> AsyncIterator[None]:
        """Write the content, and restore the old one."""
        kept = stage.file.read_text()
        await asyncio.to_thread(_replace, stage.file, change(kept))
        yield
        await asyncio.to_thread(_replace, stage.file, kept)

    return changed


def _replace(path: Path, text: str) -> None:
    with path.open("w", newline="") as stream:
        stream.write(text)


def forged(change: Callable[[Document], None]) -> Callable[[Stage], Any]:
    """Return the context of a saved plan that was edited by hand."""

    async def edit(stage: Stage) -> None:
        """Edit the plan."""
        document = orjson.loads(stage.plan.read_bytes())
        change(document)
        stage.plan.write_bytes(orjson.dumps(document))

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
OTHERS: Mapping[str, Other] = {
    "node-label": Other(
        node_patch({"metadata": {"labels": {"theirs": "yes"}}}, {"metadata": {"labels": {"theirs": None}}}),
        _object(UPPER, NODE, STATE),
    ),
    "node-annotation": Other(
        node_patch({"metadata": {"annotations": {"theirs": "yes"}}}, {"metadata": {"annotations": {"theirs": None}}}),
        _object(UPPER, NODE, STATE),
    ),
    "node-taint": Other(
        node_patch(
            {"spec": {"taints": [PROVIDER_TAINT, {"key": "example.com/theirs", "effect": "NoSchedule"}]}},
            {"spec": {"taints": [PROVIDER_TAINT]}},
        ),
        _object(UPPER, NODE, STATE),
    ),
    "node-cordoned": Other(
        node_patch({"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}), _object(UPPER, NODE, STATE)
    ),
    "node-done-already": Other(
        node_patch({"metadata": {"labels": {"tier": "gold"}}}, {"metadata": {"labels": {"tier": None}}}),
        _object(UPPER, NODE, ACTION, STATE),
    ),
    "node-own-label": Other(
        node_patch({"metadata": {"labels": {"type": "other"}}}, {"metadata": {"labels": {"type": "virtual-kubelet"}}}),
        r"upper: Node lower-a: changed, from resourceVersion \d+ to unknown",
    ),
    "node-recreated": Other(once(node_recreated), _object(UPPER, NODE, IDENTITY)),
    "node-deleted": Other(once(node_deleted), _object(UPPER, NODE, ACTION)),
    "other-node-deleted": Other(once(other_node_deleted), _object(UPPER, f"Node {B}", ACTION), converge),
    "capacity-halved": Other(scaled(B, 0.5), _object(UPPER, f"Node {B}", ACTION), converge),
    "capacity-tenth": Other(scaled(B, 0.9), _object(UPPER, f"Node {B}", ACTION)),
    "capacity-more": Other(scaled(B, 1.5), _object(UPPER, f"Node {B}", ACTION)),
    "capacity-of-a-step": Other(scaled(A, 0.5), _object(UPPER, NODE, CONTENT)),
    "capacity-node-lost": Other(_lost_node, _object(UPPER, f"Node {B}", ACTION)),
    "capacity-stranger": Other(_stranger, _object(UPPER, f"Node {B}", ACTION)),
    "capacity-cordoned": Other(_cordoned_below, _object(UPPER, f"Node {B}", ACTION)),
    "space-level": Other(
        space_patch(UPPER, "space-level", {"metadata": {"labels": {LEVEL: "restricted"}}}),
        _object(A, "Namespace space-level", CONTENT),
        space("space-level"),
    ),
    "space-taken": Other(
        once(lambda stage: stage.below(A, "space-taken")),
        _object(A, "Namespace space-taken", ACTION),
        space("space-taken"),
    ),
    "space-emptied": Other(
        once(lambda stage: stage.delete(UPPER, f"{SPACES}/space-emptied/pods/first")),
        _object(A, "Namespace space-emptied", ACTION),
        space("space-emptied"),
    ),
    "space-changed-again": Other(
        space_patch(UPPER, "space-again", {"metadata": {"labels": {LEVEL: "privileged"}}}),
        _object(A, "Namespace space-again", CONTENT),
        space_in_step("space-again", "restricted"),
    ),
    "space-changed-back": Other(
        space_patch(UPPER, "space-back", {"metadata": {"labels": {LEVEL: "baseline"}}}),
        _object(A, "Namespace space-back", ACTION),
        space_in_step("space-back", "restricted"),
    ),
    "space-copy-label": Other(
        space_patch(A, "space-copy", {"metadata": {"labels": {"theirs": "yes"}}}),
        _object(A, "Namespace space-copy", STATE),
        space_in_step("space-copy", "restricted"),
    ),
    "space-copy-level": Other(
        space_patch(A, "space-kept", {"metadata": {"labels": {LEVEL: "privileged"}}}),
        _object(A, "Namespace space-kept", ACTION),
        space_in_step("space-kept"),
    ),
    "pod-bound": Other(bound("space-kept", "second", A), _object(A, "Pod space-kept/second", ACTION)),
    "pod-bound-elsewhere": Other(bound("space-kept", "third", B), _object(B, "Pod space-kept/third", ACTION)),
    "pod-orphan": Other(once(_orphan), _object(A, "Pod space-kept/forgotten", ACTION)),
    "pod-ends": Other(
        once(lambda stage: stage.upper.delete(f"{SPACES}/space-kept/pods/first")),
        _object(A, "Pod space-kept/first", ACTION),
    ),
    "cluster-swapped": Other(
        kubeconfigs(lambda stage: {A: _text(stage, B), B: _text(stage, A)}),
        rf"cluster {A}: from kube-system UID {UID} to (kube-system UID {UID}|not read)",
    ),
    "cluster-twice": Other(
        kubeconfigs(lambda stage: {B: _text(stage, A)}), rf"cluster {B}: from kube-system UID {UID} to .+"
    ),
    "cluster-upper-as-lower": Other(
        kubeconfigs(lambda stage: {B: _text(stage, UPPER)}), rf"cluster {B}: from kube-system UID {UID} to .+"
    ),
    "cluster-lower-as-upper": Other(
        kubeconfigs(lambda stage: {UPPER: _text(stage, B)}), rf"cluster {UPPER}: from kube-system UID {UID} to .+"
    ),
    "cluster-away": Other(
        kubeconfigs(lambda stage: {B: _dead(stage, B)}), rf"cluster {B}: from kube-system UID {UID} to not read"
    ),
    "cluster-refuses": Other(
        kubeconfigs(lambda stage: {B: _anonymous(stage, B)}), rf"cluster {B}: from kube-system UID {UID} to not read"
    ),
    "cluster-no-credentials": Other(
        kubeconfigs(lambda _stage: {A: ""}), rf"cluster {A}: from kube-system UID {UID} to not read"
    ),
    "cluster-back": Other(once(_put_back), rf"cluster {B}: from not read to kube-system UID {UID}", _read_without(B)),
    "file-comment": Other(file(lambda text: f"{text}# later\n"), FILE),
    "file-space": Other(file(lambda text: f"{text}\n"), FILE),
    "file-ends": Other(file(_bare_text), FILE),
    "file-name": Other(file(lambda text: text.replace("name: sandbox", "name: another")), FILE),
    "file-label": Other(file(lambda text: text.replace("tier: gold", "tier: lead")), FILE),
    "file-lower": Other(file(lambda text: text.replace(f"- name: {B}\n  kubeconfig: {B}.kubeconfig\n", "")), FILE),
    "file-guard": Other(file(lambda text: text.replace("maxDeletes: 1000", "maxDeletes: 1001")), FILE),
    "file-bad": Other(file(lambda text: text.replace("lowers:", "lowerz:")), f"{FILE}, which is not valid:"),
    "forged-removed": Other(forged(_removed), _object(UPPER, NODE, ACTION)),
    "forged-added": Other(forged(_added), _object(UPPER, "Node forged", ACTION)),
    "forged-action": Other(forged(_set("action", "delete")), _object(UPPER, NODE, ACTION)),
    "forged-uid": Other(forged(_set("uid", FORGED_UID)), _object(UPPER, NODE, IDENTITY)),
    "forged-before": Other(forged(_set("before", "0" * 64)), _object(UPPER, NODE, STATE)),
    "forged-after": Other(forged(_set("after", "0" * 64)), _object(UPPER, NODE, CONTENT)),
    "forged-cluster": Other(
        forged(lambda document: document["clusters"].update({A: FORGED_UID})),
        rf"cluster {A}: from kube-system UID {FORGED_UID} to kube-system UID {UID}",
    ),
    "forged-clusters": Other(
        forged(lambda document: document["clusters"].pop(B)), rf"cluster {B}: from not read to kube-system UID {UID}"
    ),
    "forged-sum": Other(forged(lambda document: document["topology"].update({"sha256": "0" * 64})), FILE),
    "forged-salt": Other(forged(lambda document: document.update({"salt": "0" * 32})), _object(UPPER, NODE, STATE)),
}
