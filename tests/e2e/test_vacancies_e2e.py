"""Tests of lower namespaces after the deletion of the upper one.

Empty namespaces of the topology are deleted, and all others are kept and reported.
"""

import pytest
from enginekit import A, EngineHarness, wait_until
from sitekit import Manifest, is_ready

from tensile.reconcile.world import Problem

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

PORT = {"spec": {"ports": [{"port": 80}]}}
WIDGETS = {
    "metadata": {"name": "widgets.e2e.example.com"},
    "spec": {
        "group": "e2e.example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def path(name: str) -> str:
    """Return the path of a namespace."""
    return f"/api/v1/namespaces/{name}"


def goes(found: Manifest) -> bool:
    """Report whether a namespace is deleted or terminating, because Kubernetes needs some seconds to delete one."""
    return not found or "deletionTimestamp" in found["metadata"]


async def lived_in(harness: EngineHarness, *names: str) -> None:
    """Create upper namespaces, and run and delete a pod in each, so that the engine creates a lower namespace."""
    for name in names:
        await harness.make_namespace("upper", name)
        await harness.upper.create(harness.path("pods", namespace=name), harness.pod("guest"))
    for name in names:
        await harness.upper.until(harness.path("pods", "guest", namespace=name), is_ready)
        await harness.upper.delete(harness.path("pods", "guest", namespace=name))
    for name in names:
        await harness.upper.gone(harness.path("pods", "guest", namespace=name))


async def left(harness: EngineHarness, *names: str) -> None:
    """Delete upper namespaces, and wait until they are deleted."""
    for name in names:
        await harness.upper.delete(path(name))
    await harness.upper.gone(*map(path, names))


def namespace_problems(harness: EngineHarness) -> list[Problem]:
    """Return the problems of namespaces."""
    return [problem for key, problem in harness.engine.clusters.world.problems.items() if key.rule == "vacancy"]


async def test_only_empty_namespaces_of_the_topology_are_deleted(harness: EngineHarness) -> None:
    """A Service or a custom resource of another client keeps its namespace until it is deleted."""
    site, base = harness.sites[A], harness.namespace
    await site.create(CRDS, WIDGETS)
    await site.until(f"{CRDS}/widgets.e2e.example.com", _is_served)
    empty, service, widget, theirs = (f"{base}-{one}" for one in ("empty", "service", "widget", "theirs"))
    await harness.make_namespace(A, theirs)
    before = await site.read(path(theirs))
    await lived_in(harness, empty, service, widget, theirs)
    widgets = f"/apis/e2e.example.com/v1/namespaces/{widget}/widgets"
    await site.create(harness.path("services", namespace=service), {"metadata": {"name": "web"}, **PORT})
    await site.create(widgets, {"apiVersion": "e2e.example.com/v1", "kind": "Widget", "metadata": {"name": "thing"}})
    await left(harness, empty, service, widget, theirs)
    await site.until(path(empty), goes)
    await wait_until(lambda: any("Service web" in one.message for one in namespace_problems(harness)))
    await wait_until(lambda: any("Widget thing" in one.message for one in namespace_problems(harness)))
    assert {one.reason for one in namespace_problems(harness)} == {"NamespaceNotEmpty"}
    for name in (service, widget):
        assert not goes(await site.read(path(name)))
    assert await site.read(path(theirs)) == before
    await site.delete(harness.path("services", "web", namespace=service))
    await site.delete(f"{widgets}/thing")
    harness.engine.loop.expedite(60.0)
    for name in (service, widget):
        await site.until(path(name), goes)
    await wait_until(lambda: not namespace_problems(harness))
    await site.delete(path(theirs))
    await site.delete(f"{CRDS}/widgets.e2e.example.com")


async def test_a_namespace_that_was_deleted_while_no_engine_ran_is_deleted_too(harness: EngineHarness) -> None:
    """The engine first reads the upper namespace; the unrequested deletion is within the guard's limit."""
    name = f"{harness.namespace}-meanwhile"
    await lived_in(harness, name)
    await harness.stop()
    await left(harness, name)
    await harness.start()
    await harness.sites[A].until(path(name), goes)


async def test_a_namespace_that_is_created_again_has_a_lower_namespace(harness: EngineHarness) -> None:
    """The next pod runs, and the lower namespace is kept until the upper one is deleted again."""
    name = f"{harness.namespace}-anew"
    await lived_in(harness, name)
    await left(harness, name)
    await lived_in(harness, name)
    await harness.wait_idle()
    assert not goes(await harness.sites[A].read(path(name)))
    await left(harness, name)
    await harness.sites[A].until(path(name), goes)


def _is_served(found: Manifest) -> bool:
    conditions = found.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
