"""Tests of name conflicts: an object of another owner is never touched, and the upper pod reports it.

The pod is mirrored once the name is free.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from enginekit import A, EngineHarness
from sitekit import Manifest, condition_of, is_ready, phase_of

from tensile.names import FIELD_MANAGER, MIRRORED, OWNER, OWNER_NAME, UPPER_UID, VIRTUAL_POD, owner_of

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

CONTAINERS = {"containers": [{"name": "main", "image": "stranger:1"}]}
RUNS = {"spec": CONTAINERS}
GATED = {"spec": {**CONTAINERS, "schedulingGates": [{"name": "e2e.example.com/never"}]}}
HELD = {"finalizers": ["e2e.example.com/hold"]}
DATA = {"data": {"key": "c3RyYW5nZXI="}}
OTHER_UID = "00000000-0000-4000-8000-000000000000"


class ForeignObject(NamedTuple):
    """A lower object of another owner that occupies a name: its collection, content and other metadata."""

    plural: str
    content: Manifest
    meta: Callable[[EngineHarness], Manifest]


def nothing(_ground: EngineHarness) -> Manifest:
    """Return no metadata."""
    return {}


def forged_label(harness: EngineHarness) -> Manifest:
    """Return the owner label of this topology, without the annotation that belongs to it."""
    return {"labels": {OWNER: harness.owner.mark, VIRTUAL_POD: "true"}}


def forged_name(harness: EngineHarness) -> Manifest:
    """Return the owner label and the owner name of this topology, but no UID."""
    return {**forged_label(harness), "annotations": {OWNER_NAME: harness.owner.name}}


def forged_marks(harness: EngineHarness) -> Manifest:
    """Return all marks of this topology, as if the object's upper object were deleted."""
    found = forged_name(harness)
    return {**found, "annotations": {**found["annotations"], UPPER_UID: OTHER_UID}}


def second_topology(harness: EngineHarness) -> Manifest:
    """Return the marks of another topology of the same upper cluster."""
    other = owner_of(harness.owner.upper, "second")
    return {"labels": {OWNER: other.mark}, "annotations": {OWNER_NAME: other.name, UPPER_UID: OTHER_UID}}


def predecessor(_ground: EngineHarness) -> Manifest:
    """Return the marks of tensile-kube."""
    return {"labels": {VIRTUAL_POD: "true"}, "annotations": {"global": "true"}}


def held(_ground: EngineHarness) -> Manifest:
    """Return a finalizer."""
    return HELD


STRANGERS = {
    "pod": ForeignObject("pods", RUNS, nothing),
    "pod-that-waits": ForeignObject("pods", GATED, nothing),
    "pod-with-forged-label": ForeignObject("pods", GATED, forged_label),
    "pod-with-forged-name": ForeignObject("pods", GATED, forged_name),
    "pod-with-forged-marks": ForeignObject("pods", GATED, forged_marks),
    "pod-of-second-topology": ForeignObject("pods", GATED, second_topology),
    "pod-of-tensile-kube": ForeignObject("pods", GATED, predecessor),
    "configmap": ForeignObject("configmaps", DATA, nothing),
    "configmap-with-forged-label": ForeignObject("configmaps", DATA, forged_label),
    "configmap-with-forged-name": ForeignObject("configmaps", DATA, forged_name),
    "configmap-with-forged-marks": ForeignObject("configmaps", DATA, forged_marks),
    "configmap-of-second-topology": ForeignObject("configmaps", DATA, second_topology),
    "configmap-of-tensile-kube": ForeignObject("configmaps", DATA, predecessor),
    "configmap-immutable": ForeignObject("configmaps", {**DATA, "immutable": True}, nothing),
    "secret": ForeignObject("secrets", DATA, nothing),
    "secret-with-forged-label": ForeignObject("secrets", DATA, forged_label),
    "secret-with-forged-marks": ForeignObject("secrets", DATA, forged_marks),
    "secret-of-second-topology": ForeignObject("secrets", DATA, second_topology),
    "secret-immutable": ForeignObject("secrets", {**DATA, "immutable": True}, nothing),
    "secret-of-other-type": ForeignObject("secrets", {**DATA, "type": "example.com/other"}, nothing),
}
TERMINATING = {
    "pod-terminating": ForeignObject("pods", GATED, held),
    "configmap-terminating": ForeignObject("configmaps", DATA, held),
    "secret-terminating": ForeignObject("secrets", DATA, held),
}
KINDS = {"pods": "Pod", "configmaps": "ConfigMap", "secrets": "Secret"}


def each(strangers: dict[str, ForeignObject]) -> pytest.MarkDecorator:
    """Run a test once for each object of another owner."""
    return pytest.mark.parametrize(("name", "stranger"), strangers.items(), ids=strangers)


async def placed(harness: EngineHarness, name: str, stranger: ForeignObject) -> Manifest:
    """Create an object of another owner in lower-a, and return it once no controller writes to it any more."""
    path = harness.path(stranger.plural, name)
    site = harness.sites[A]
    await site.create(
        harness.path(stranger.plural), {"metadata": {"name": name, **stranger.meta(harness)}, **stranger.content}
    )
    wanted: Callable[[Manifest], object] = bool
    if stranger.plural == "pods":
        wanted = is_ready if stranger.content is RUNS else lambda one: phase_of(one) == "Pending"
    return await site.until(path, wanted)


async def refused_pod(
    harness: EngineHarness, name: str, stranger: ForeignObject, reason: str = "NameConflict"
) -> Manifest:
    """Bind a pod that needs the occupied name, and return it once it reports the conflict."""
    spec: dict[str, Any] = {}
    if stranger.plural != "pods":
        await harness.upper.create(
            harness.path(stranger.plural), {"metadata": {"name": name}, "data": {"key": "b3Vycw=="}}
        )
        source = {"configMap": {"name": name}} if stranger.plural == "configmaps" else {"secret": {"secretName": name}}
        spec = {"volumes": [{"name": "content", **source}]}
    await harness.bind(name, spec)
    return await harness.upper.until(
        harness.pod_path(name), lambda one: condition_of(one, MIRRORED).get("reason") == reason
    )


async def goes_on(harness: EngineHarness, name: str, plural: str) -> None:
    """Wait until the pod runs with objects of this topology, and delete everything."""
    pod = await harness.upper.until(harness.pod_path(name), is_ready)
    assert condition_of(pod, MIRRORED) == {}
    assert "reason" not in pod["status"]
    ours = await harness.sites[A].read(harness.path(plural, name))
    original = await harness.upper.read(harness.path(plural, name))
    assert ours["metadata"]["labels"][OWNER] == harness.owner.mark
    assert ours["metadata"]["annotations"][UPPER_UID] == original["metadata"]["uid"]
    await harness.end_pods(name)
    await harness.sites[A].gone(harness.path(plural, name))


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def lower_namespace(harness: EngineHarness) -> None:
    """Create the lower namespace before any pod needs it, because objects of other owners are created first here."""
    await harness.make_namespace(A, harness.namespace)


@each(STRANGERS)
async def test_an_object_of_another_owner_is_reported_as_a_name_conflict_and_never_touched(
    harness: EngineHarness, name: str, stranger: ForeignObject
) -> None:
    """It keeps its resourceVersion, and the pod has the reason NameConflict and runs once the object is deleted."""
    before = await placed(harness, name, stranger)
    pod = await refused_pod(harness, name, stranger)
    kind = KINDS[stranger.plural]
    where = f"{kind} {harness.namespace}/{name} exists in lower cluster {A} and has another owner"
    assert phase_of(pod) == "Pending"
    assert pod["status"]["reason"] == "NameConflict"
    assert where in condition_of(pod, MIRRORED)["message"]
    assert where in await harness.wait_for_event(pod, "NameConflict")
    await harness.engine.loop.wait_idle()
    site = harness.sites[A]
    after = await site.read(harness.path(stranger.plural, name))
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    await site.delete(harness.path(stranger.plural, name), 0)
    await goes_on(harness, name, stranger.plural)


@each(TERMINATING)
async def test_a_terminating_object_of_another_owner_keeps_its_finalizer_until_it_is_gone(
    harness: EngineHarness, name: str, stranger: ForeignObject
) -> None:
    """The engine writes nothing to an object that a finalizer holds, and uses its name after its deletion."""
    await placed(harness, name, stranger)
    site, path = harness.sites[A], harness.path(stranger.plural, name)
    await site.delete(path, 0 if stranger.plural != "pods" else 1)
    before = await site.until(path, lambda one: "deletionTimestamp" in one["metadata"])
    await refused_pod(harness, name, stranger)
    await harness.engine.loop.wait_idle()
    after = await site.read(path)
    assert FIELD_MANAGER not in {one["manager"] for one in after["metadata"]["managedFields"]}
    assert without_status(after) == without_status(before)
    await site.patch(path, {"metadata": {"finalizers": None}})
    await goes_on(harness, name, stranger.plural)


def without_status(one: Manifest) -> Manifest:
    """Return an object without the fields that its cluster's controllers write during deletion.

    Fields that lists do not contain are left out too.
    """
    meta = {key: value for key, value in one["metadata"].items() if key not in ("resourceVersion", "managedFields")}
    rest = {key: value for key, value in one.items() if key not in ("status", "kind", "apiVersion")}
    return {**rest, "metadata": meta}


async def test_a_pod_waits_while_its_lower_namespace_is_terminating(harness: EngineHarness) -> None:
    """The pod reports NamespaceTerminating, and runs in the namespace that the engine creates after the deletion."""
    name = f"{harness.namespace}-ending"
    site = harness.sites[A]
    await harness.make_namespace("upper", name)
    await harness.make_namespace(A, name)
    holder = {"metadata": {"name": "holder", **HELD}}
    await site.create(harness.path("configmaps", namespace=name), holder)
    await site.delete(f"/api/v1/namespaces/{name}")
    await harness.upper.create(harness.path("pods", namespace=name), harness.pod("patient"))
    path = harness.path("pods", "patient", namespace=name)
    pod = await harness.upper.until(
        path, lambda one: condition_of(one, MIRRORED).get("reason") == "NamespaceTerminating"
    )
    assert name in condition_of(pod, MIRRORED)["message"]
    await site.patch(harness.path("configmaps", "holder", namespace=name), {"metadata": {"finalizers": None}})
    await harness.upper.until(path, is_ready)
    space = await site.read(f"/api/v1/namespaces/{name}")
    assert space["metadata"]["labels"][OWNER] == harness.owner.mark
    await harness.upper.delete(path)
    await harness.upper.gone(path)
    await harness.upper.delete(f"/api/v1/namespaces/{name}")
