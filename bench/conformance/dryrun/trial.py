"""Runs one trial: a namespace in each of two clusters, a series of requests to both, and a comparison of the events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple
from uuid import uuid4

import orjson

from bench.conformance.dryrun.comparison import Outcome, Pair, Recorder, Side, difference
from bench.conformance.dryrun.request_generator import OWN, KnownObjects, Request, RequestGenerator
from tensile.errors import Conflict, NotFound
from tensile.kube.cluster import Cluster, Patch, Selection
from tensile.objects import (
    CONFIG_MAP,
    EVENT,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    SECRET,
    SERVICE_ACCOUNT,
    Kind,
    Manifest,
    Ref,
    metadata,
    uid,
)
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.dryrun.patch import is_selected

FOLLOWED = (CONFIG_MAP, SECRET, POD, SERVICE_ACCOUNT, LEASE, EVENT)
GIVEN = frozenset({"kube-root-ca.crt", "default"})
"""Names of objects that Kubernetes itself creates in a namespace."""
LAST = "zz"
_LIMIT = 20.0


class Result(NamedTuple):
    """How many requests both clusters received, how many events the real one sent, and how they differ."""

    requests: int
    events: int
    differences: list[str]


async def trial(real: Cluster, seed: int, count: int) -> Result:
    """Send random requests to a real cluster and to a dry-run cluster, and return the result."""
    rehearsal = DryRunCluster(real.name, ends_pods=False, now=lambda: datetime.now(UTC))
    name = f"alike-{uuid4().hex[:8]}"
    sides = [Side(cluster, name, name) for cluster in (rehearsal, real)]
    async with prepared(sides[0]), prepared(sides[1]):
        known_objects = KnownObjects(lambda *place: rehearsal.find(*sides[0].ref(*place)[1:]))
        recorders = {kind: Recorder() for kind in FOLLOWED}
        for kind, recorder in recorders.items():
            rehearsal.follow(kind, recorder, partial(is_selected, selection=Selection(name)))
        begin = {kind: (await real.list(kind, Selection(name))).version for kind in FOLLOWED}
        failures = await _send_all(
            Pair(sides[0], sides[1], known_objects), RequestGenerator(seed, known_objects), count
        )
        events = 0
        for kind, recorder in recorders.items():
            for side in sides:
                await side.cluster.create(side.ref(kind, OWN, LAST), _last(kind, name))
            found = await watched_events(real, kind, name, begin[kind])
            events += len(found)
            failures += different_events(kind, sides[0].events(recorder.events), sides[1].events(found))
    return Result(count, events, [f"seed {seed}: {failure}" for failure in failures])


async def _send_all(pair: Pair, asking: RequestGenerator, count: int) -> list[str]:
    """Send the requests, and return the differences; the first difference may cause the others."""
    failures: list[str] = []
    waiting: list[Request] = []
    for number in range(count):
        waiting = waiting or asking.next()
        request = waiting.pop(0)
        failure = await pair.send(request)
        if failure:
            failures.append(f"request {number}: {request}: {failure}")
    return failures


def different_events(kind: Kind, rehearsed: list[Outcome], real: list[Outcome]) -> list[str]:
    """Return how the events of a kind differ."""
    both = enumerate(zip(rehearsed, real, strict=False))
    failures = [f"{kind.name}: event {number}: {failure}" for number, pair in both if (failure := difference(*pair))]
    return failures + (
        [] if len(rehearsed) == len(real) else [f"{kind.name}: {len(rehearsed)} events, really {len(real)}"]
    )


async def watched_events(cluster: Cluster, kind: Kind, namespace: str, begin: str) -> list[tuple[str, Manifest]]:
    """Return the events of a watch of a namespace, up to the object that was created last."""
    found: list[tuple[str, Manifest]] = []
    async with asyncio.timeout(_LIMIT):
        async for event in cluster.watch(kind, Selection(namespace), begin, int(_LIMIT)):
            manifest = orjson.loads(event.raw)
            name = metadata(manifest).get("name", "")
            if event.type == "BOOKMARK" or name in GIVEN:
                continue
            found.append((event.type, manifest))
            if name == LAST:
                break
    return found


def _last(kind: Kind, namespace: str) -> Manifest:
    """Return the object that marks the end of a kind's events."""
    body: Manifest = {"metadata": {"name": LAST}}
    if kind == POD:
        body["spec"] = {"containers": [{"name": "main", "image": "app:1"}], "schedulerName": "nobody"}
    if kind == EVENT:
        body |= {"involvedObject": {"namespace": namespace}}
    return body


@asynccontextmanager
async def prepared(side: Side) -> AsyncIterator[None]:
    """Create a namespace and a node without a kubelet; remove all objects of the trial at the end."""
    cluster, space = side.cluster, Ref(side.cluster.name, NAMESPACE, "", side.namespace)
    await cluster.create(space, {"metadata": {"name": side.namespace}})
    await cluster.create(space._replace(kind=NODE), {"metadata": {"name": side.node}})
    await _account(cluster, side.namespace)
    try:
        yield
    finally:
        if not isinstance(cluster, DryRunCluster):
            await _cleared(cluster, side.namespace)


async def _account(cluster: Cluster, namespace: str) -> None:
    """Wait until a namespace has its default ServiceAccount, so that pods can be created."""
    selection = Selection(namespace, fields="metadata.name=default")
    listing = await cluster.list(SERVICE_ACCOUNT, selection)
    if not listing.items:
        await anext(cluster.watch(SERVICE_ACCOUNT, selection, listing.version, int(_LIMIT)))


async def _cleared(cluster: Cluster, name: str) -> None:
    """Delete all objects of a trial, also those with finalizers."""
    for kind in (*FOLLOWED, NODE, NAMESPACE):
        for raw in (await cluster.list(kind, Selection())).items:
            found = orjson.loads(raw)
            meta = metadata(found)
            if any(one.startswith(name) for one in (meta["name"], meta.get("namespace", ""))):
                await _removed(cluster, Ref(cluster.name, kind, meta.get("namespace", ""), meta["name"]), found)


async def _removed(cluster: Cluster, ref: Ref, found: Manifest) -> None:
    with suppress(NotFound, Conflict):
        if metadata(found).get("finalizers"):
            await cluster.patch(ref, Patch("merge-patch", {"metadata": {"uid": uid(found), "finalizers": None}}))
        await cluster.delete(ref, uid=uid(found), grace=0 if ref.kind == POD else None)
