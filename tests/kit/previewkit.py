"""Short helpers to describe the steps of a loop, and to return what a plan prints about them."""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from worldkit import NOW, stored_bytes

from tensile.engine.caches import bound_feed, lower_feeds, upper_feeds
from tensile.kube.cluster import Patch
from tensile.kubelet.node.rule import NodeRule
from tensile.kubelet.pods.lost_pods import LostPodRule
from tensile.kubelet.pods.rule import PodRule
from tensile.objects import CONFIG_MAP, NODE, POD, SECRET, UPPER, Kind, Manifest, Ref
from tensile.reconcile.diff import Operation, changes
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.dryrun.patch import is_selected
from tensile.reconcile.loop import Loop, Timing
from tensile.reconcile.plan import Step
from tensile.reconcile.report import (
    WHOLE_PLAN,
    Change,
    PlanScope,
    Preview,
    RecordedStep,
    Recorder,
    as_text,
    observed,
    preview,
)
from tensile.reconcile.rules.config import RULE as CONFIG_RULE
from tensile.reconcile.rules.namespaces import NamespaceRule
from tensile.reconcile.world import Key, Problem, World

A, B = "lower-a", "lower-b"
KEY = Key("any", A, "shop", "any")
REASON = "because"


def config(name: str = "settings", cluster: str = A) -> Ref:
    """Make the reference to a ConfigMap."""
    return Ref(cluster, CONFIG_MAP, "shop", name)


def secret(name: str = "token") -> Ref:
    """Make the reference to a Secret."""
    return Ref(A, SECRET, "shop", name)


def pod(name: str = "web", cluster: str = A) -> Ref:
    """Make the reference to a pod."""
    return Ref(cluster, POD, "shop", name)


def node(name: str = A) -> Ref:
    """Make the reference to a virtual node."""
    return Ref(UPPER, NODE, "", name)


def create(ref: Ref, body: Manifest | None = None, reason: str = REASON) -> Step:
    """Make a step that creates an object, as `plan` of the pipeline does."""
    whole: Operation = {"op": "add", "path": "", "value": body or {}}
    return Step("create", ref, reason, body=body or {}, operations=(whole,))


def delete(ref: Ref, reason: str = REASON) -> Step:
    """Make a step that deletes an object."""
    return Step("delete", ref, reason, uid="u", operations=({"op": "remove", "path": ""},))


def json_patch(ref: Ref, *operations: Operation, reason: str = REASON) -> Step:
    """Make a step that changes an object by a JSON patch (RFC 6902), with its UID as precondition."""
    fence = {"op": "replace", "path": "/metadata/uid", "value": "u"}
    patch = Patch("json-patch", [fence, *operations])
    return Step("patch", ref, reason, patch=patch, operations=operations)


def change(ref: Ref, old: Manifest, new: Manifest, *sections: str) -> Step:
    """Make a step that replaces sections of an object, as the pipeline does."""
    return json_patch(ref, *changes(new, old, sections or ("data", "metadata.labels")))


def merge(ref: Ref, media: str, **body: Any) -> Step:
    """Make a step with a merge patch, with UID and resourceVersion as preconditions."""
    alleged = tuple(
        {"op": "replace", "path": f"/{section}/{name}", "value": value}
        for section, content in body.items()
        for name, value in content.items()
    )
    patch = Patch(media, {"metadata": {"uid": "u", "resourceVersion": "7"}, **body})
    return Step("patch", ref, REASON, patch=patch, operations=alleged)


def observed_object(content: Manifest, uid: str = "u") -> Manifest:
    """Return an object as it was observed."""
    return {**content, "metadata": {"uid": uid, "resourceVersion": "7", **content.get("metadata", {})}}


def previewed(
    *steps: Step,
    seen: Mapping[Ref, Manifest] | None = None,
    problems: Mapping[Key, Problem] | None = None,
    unreached: Mapping[str, str] | None = None,
    only: PlanScope = WHOLE_PLAN,
) -> Preview:
    """Return the preview of steps in topology "demo" with two lowers; a lower's step has a key of that lower."""
    recorded = [
        RecordedStep(KEY if step.ref.cluster == UPPER else KEY._replace(lower=step.ref.cluster), step) for step in steps
    ]
    before, away = dict(seen or {}).get, unreached or {}
    return preview(recorded, problems or {}, before, topology="demo", lowers=(A, B), unreached=away, only=only)


def only_change(*steps: Step, seen: Mapping[Ref, Manifest] | None = None) -> Change:
    """Return the one change that results from steps."""
    (found,) = previewed(*steps, seen=seen).changes
    return found


def plan_lines(*steps: Step, seen: Mapping[Ref, Manifest] | None = None) -> list[str]:
    """Return the lines that a plan prints between a cluster's heading and the end."""
    return as_text(previewed(*steps, seen=seen), colour=False).split("\n")[1:-2]


class Rehearsed(NamedTuple):
    """The result of a rehearsal: the recorder, the preview, and the world after it."""

    recorder: Recorder
    preview: Preview
    world: World


def rehearsed(world: World) -> Rehearsed:
    """Run the rules of the engine on a copy of a world, until nothing is left to do."""
    then, recorder = world.copy(), Recorder()
    asyncio.run(_run(then, recorder))
    lowers = list(world.lowers)
    found = preview(recorder.recorded, then.problems, observed(world), topology="demo", lowers=lowers, unreached={})
    return Rehearsed(recorder, found, _settled(then))


def _settled(world: World) -> World:
    """Return a world as the start of another rehearsal: with resourceVersions as a real cluster has them."""
    made = world.copy()
    for cache in (*made.upper.caches(), *(cache for lower in made.lowers.values() for cache in lower.caches())):
        if all(entry.raw for entry in cache):
            cache.replace([stored_bytes(entry.manifest(), 5) for entry in cache], 9)
    return made


async def _run(world: World, recorder: Recorder) -> None:
    clusters = {name: DryRunCluster(name, ends_pods=name != UPPER, now=lambda: NOW) for name in (UPPER, *world.lowers)}
    feeds = upper_feeds(world.upper, world.owner, world.topology.enabled)
    for lower in world.lowers.values():
        feeds += [bound_feed(lower), *lower_feeds(lower, world.owner)]
    for feed in feeds:
        for entry in feed.cache:
            if entry.raw:
                clusters[feed.cluster].hold(feed.kind, entry.raw)
        selection = feed.selection
        clusters[feed.cluster].follow(feed.kind, feed.cache, lambda one, chosen=selection: is_selected(one, chosen))
    every = (NodeRule(), NamespaceRule(), CONFIG_RULE, PodRule(), LostPodRule())
    loop = Loop(world, every, clusters, recorder, Timing(lambda: NOW, lambda: 0.5))
    for name in world.lowers:
        loop.open(name)
    await loop.wait_idle()


def decoded(document: bytes) -> dict[str, Any]:
    """Parse a preview's JSON."""
    found: dict[str, Any] = orjson.loads(document)
    return found


def of_kind(kind: Kind, name: str = "one") -> Ref:
    """Make the reference to an object of some kind."""
    return Ref(A, kind, "shop" if kind.namespaced else "", name)
