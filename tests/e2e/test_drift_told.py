"""Tests of `tensile plan --drift` on real clusters: it reports all kinds of tampering with field and client."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson
import pytest
import pytest_asyncio
from clikit import PROGRAM
from enginekit import UPPER, A, EngineHarness, run_command, running_engine, wait_until, with_fields
from sitekit import Manifest, is_ready

from tensile.cli import drift
from tensile.cli.plan import PlanOptions
from tensile.engine.clusters import utc_now
from tensile.engine.lower import ClusterAccess
from tensile.engine.metrics import lowers
from tensile.engine.run import page_source
from tensile.engine.status.page import RecentChanges, ResourceUsage, content
from tensile.engine.status.report import EngineStatus
from tensile.names import OWNER
from tensile.objects import timestamp
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

RBAC = "apis/rbac.authorization.k8s.io/v1"
HIDDEN = ("b3JpZ2luYWw=", "dGFtcGVyZWQ=")
"""The value of a Secret in the upper cluster, and the one that another client wrote in the lower."""
WARN = "pod-security.kubernetes.io/warn"
OWNER_NAME = "tensile-kube.io/owner-name"
CONFIGS = ("edited", "added", "emptied", "labelled", "unnamed", "frozen", "gone", "unmarked", "above", "same")
SECRETS = ("changed", "stripped", "deleted")
PODS = ("labels", "removed", "image", "limited", "lost")


class ForeignChange(NamedTuple):
    """What another client does to an object, with a field manager of that name; a body of None deletes it.

    `fields` are the paths that are reported, () if the object is deleted; `by` is whether managedFields name the
    client.
    """

    kind: str
    name: str
    path: str
    body: Manifest | None
    fields: tuple[str, ...] = ()
    by: bool = True
    change: str = "changed"
    cluster: str = A
    how: str = "merge"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineHarness]:
    """Start an engine with every controller."""
    controllers = with_fields(controllers=["PV", "Service", "RBAC", "ServiceAccount"])
    async with running_engine(sandbox, tmp_path_factory.mktemp("ground"), controllers) as harness:
        yield harness


def in_a_later_second(than: str) -> bool:
    """Report whether the clock, in whole seconds, is past a timestamp."""
    return timestamp(datetime.fromtimestamp(time.time(), UTC)) > than


async def furnished(harness: EngineHarness) -> None:
    """Create the upper objects that are tampered with, and wait until their copies exist."""
    above = f"/api/v1/namespaces/{harness.namespace}"
    await harness.upper.patch(above, {"metadata": {"labels": {WARN: "baseline"}}})
    for name in CONFIGS:
        body = {"metadata": {"name": name, "labels": {"team": "blue"}}, "data": {"key": "value", "more": "value"}}
        await harness.upper.create(harness.path("configmaps"), body)
    for name in SECRETS:
        body = {"metadata": {"name": name}, "data": {"key": HIDDEN[0], "more": HIDDEN[0]}}
        await harness.upper.create(harness.path("secrets"), body)
    for name in ("port", "unserved"):
        spec = {"ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}]}
        await harness.upper.create(harness.path("services"), {"metadata": {"name": name}, "spec": spec})
    await harness.upper.create(harness.path("serviceaccounts"), {"metadata": {"name": "robot"}})
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
    await harness.upper.create(harness.path("roles", api=RBAC), {"metadata": {"name": "reader"}, "rules": rules})
    body = {
        "metadata": {"name": "reading"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": harness.namespace}],
    }
    made = await harness.upper.create(harness.path("rolebindings", api=RBAC), body)
    await wait_until(lambda: in_a_later_second(made["metadata"]["creationTimestamp"]))
    volumes = [{"name": f"c-{name}", "configMap": {"name": name}} for name in CONFIGS]
    volumes += [{"name": f"s-{name}", "secret": {"secretName": name}} for name in SECRETS]
    await harness.run_pod("user", {"serviceAccountName": "robot", "volumes": volumes})
    for name in PODS:
        meta: Any = {"labels": {"app": name, "tier": "front"}, "annotations": {"note": name}}
        await harness.run_pod(name, **meta)
    site = harness.sites[A]
    await site.until(harness.path("rolebindings", "reading", RBAC), bool)
    for name in ("port", "unserved"):
        await site.until(harness.path("services", name), bool)
    for name in PODS:
        await site.until(harness.pod_path(name), is_ready)
    await harness.wait_idle()


async def tamperings(harness: EngineHarness) -> list[ForeignChange]:
    """Return the tamperings, each of another object."""
    path = harness.path
    tolerations = (await harness.sites[A].read(harness.pod_path("limited")))["spec"]["tolerations"]
    debugged = [*tolerations, {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    limits = {"activeDeadlineSeconds": 100000, "tolerations": debugged}
    added = f"/spec/tolerations/{len(tolerations)}"
    image = {"spec": {"containers": [{"name": "main", "image": "evil:1"}]}}
    port = {"ports": [{"name": "http", "port": 81}, {"name": "https", "port": 443}]}
    ports = ("/spec/ports/0/port", "/spec/ports/0/targetPort")  # Kubernetes sets the second to the first
    verbs = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "delete"]}]
    return [
        _config(harness, "edited", {"data": {"key": "edited"}}, "/data/key"),
        _config(harness, "added", {"data": {"third": "added"}}, "/data/third"),
        _config(harness, "emptied", {"data": None}, "/data/key", "/data/more", by=False),
        _config(harness, "labelled", {"metadata": {"labels": {"team": "red"}}}, "/metadata/labels/team"),
        _config(
            harness,
            "unnamed",
            {"metadata": {"annotations": {OWNER_NAME: None}}},
            "/metadata/annotations/tensile-kube.io~1owner-name",
            by=False,
        ),
        _config(harness, "frozen", {"data": {"key": "frozen"}, "immutable": True}, "/data/key", "/immutable"),
        _config(harness, "gone", None, change="deleted"),
        _config(
            harness,
            "unmarked",
            {"metadata": {"labels": {OWNER: None}}},
            "/metadata/labels/tensile-kube.io~1owner",
            by=False,
            change="unmarked",
        ),
        ForeignChange("Secret", "changed", path("secrets", "changed"), {"data": {"key": HIDDEN[1]}}, ("/data/key",)),
        ForeignChange(
            "Secret", "stripped", path("secrets", "stripped"), {"data": {"key": None}}, ("/data/key",), by=False
        ),
        ForeignChange("Secret", "deleted", path("secrets", "deleted"), None, change="deleted"),
        ForeignChange("Service", "port", path("services", "port"), {"spec": port}, ports),
        ForeignChange("Service", "unserved", path("services", "unserved"), None, change="deleted"),
        ForeignChange("Role", "reader", path("roles", "reader", RBAC), {"rules": verbs}, ("/rules/0/verbs",)),
        ForeignChange("RoleBinding", "reading", path("rolebindings", "reading", RBAC), None, change="deleted"),
        ForeignChange(
            "ServiceAccount",
            "robot",
            path("serviceaccounts", "robot"),
            {"automountServiceAccountToken": False},
            ("/automountServiceAccountToken",),
        ),
        ForeignChange(
            "Pod",
            "labels",
            harness.pod_path("labels"),
            {"metadata": {"labels": {"app": "edited"}, "annotations": {"note": "edited"}}},
            ("/metadata/annotations/note", "/metadata/labels/app"),
        ),
        ForeignChange(
            "Pod",
            "removed",
            harness.pod_path("removed"),
            {"metadata": {"labels": {"app": None}, "annotations": {"note": None}}},
            ("/metadata/annotations/note", "/metadata/labels/app"),
            by=False,
        ),
        ForeignChange("Pod", "image", harness.pod_path("image"), image, ("/spec/containers/0/image",), how="strategic"),
        ForeignChange(
            "Pod", "limited", harness.pod_path("limited"), {"spec": limits}, ("/spec/activeDeadlineSeconds", added)
        ),
        ForeignChange("Pod", "lost", harness.pod_path("lost"), None, change="deleted"),
        ForeignChange(
            "Namespace",
            harness.namespace,
            f"/api/v1/namespaces/{harness.namespace}",
            {"metadata": {"labels": {WARN: "privileged"}}},
            ("/metadata/labels/pod-security.kubernetes.io~1warn",),
        ),
        ForeignChange(
            "Node",
            harness.nodes[A],
            f"/api/v1/nodes/{harness.nodes[A]}",
            {"metadata": {"labels": {"clusterID": "edited"}}},
            ("/metadata/labels/clusterID",),
            cluster=UPPER,
        ),
    ]


def _config(harness: EngineHarness, name: str, body: Manifest | None, *fields: str, **more: Any) -> ForeignChange:
    return ForeignChange("ConfigMap", name, harness.path("configmaps", name), body, fields, **more)


REFUSED = {("unmarked", 409)}
"""What a running engine retries from time to time: to create an object whose name is taken."""


async def drift_output(harness: EngineHarness, output: str = "json") -> str:
    """Return the command's output, and assert that it wrote nothing."""
    await harness.mark_audit_logs()
    found = await asyncio.to_thread(
        drift.drift,
        harness.topology(with_fields(controllers=["PV", "Service", "RBAC", "ServiceAccount"])),
        ClusterAccess(harness.directory),
        output,
        PlanOptions(),
        colour=False,
    )
    attempts = await harness.attempts(without=("leases", "events"))
    assert [write for write, code in attempts if (write.name, code) not in REFUSED] == []
    assert found.unreached == ""
    assert not any(value in found.text for value in HIDDEN)
    return str(found.text)


def by_object(document: str) -> dict[tuple[str, ...], tuple[str, dict[str, str | None]]]:
    """Return the change of each object, and its fields with their clients."""
    found = orjson.loads(document)
    return {
        (one["cluster"], one["kind"], one["name"]): (
            one["change"],
            {field["path"]: field["manager"] for field in one["fields"]},
        )
        for one in found["drift"]
    }


async def test_every_kind_of_tampering_is_reported_and_edits_of_upper_objects_are_not(harness: EngineHarness) -> None:
    """Fields and clients are correct, and no content of a Secret is printed.

    The engine is stopped during the tampering.
    """
    await furnished(harness)
    assert by_object(await drift_output(harness)) == {}, "the engine's own writes are no drift"
    await harness.stop()
    last = (await harness.sites[A].read(harness.path("configmaps", "above")))["metadata"]["managedFields"][-1]["time"]
    await wait_until(lambda: in_a_later_second(last))
    changes = await tamperings(harness)
    assert len(changes) >= 20
    for one in changes:
        site = harness.sites[one.cluster]
        if one.body is None:
            await site.delete(one.path, 0)
        else:
            await site.patch(f"{one.path}?fieldManager=hand-{one.name}", one.body, one.how)
    await harness.upper.patch(harness.path("configmaps", "above"), {"data": {"key": "new", "more": None, "fresh": "x"}})
    await harness.upper.patch(harness.pod_path("user"), {"metadata": {"labels": {"fresh": "x"}}})
    expected = {
        (one.cluster, one.kind, one.name): (
            one.change,
            dict.fromkeys(one.fields, f"hand-{one.name}" if one.by else None),
        )
        for one in changes
    }
    assert by_object(await drift_output(harness)) == expected
    path = harness.save(with_fields(controllers=["PV", "Service", "RBAC", "ServiceAccount"]))
    done = await run_command([PROGRAM, "plan", "--drift", "-f", str(path)])
    assert (done.code, done.err) == (2, "")
    assert done.out.splitlines()[-1].startswith("Drift: ")
    assert not any(value in done.out for value in HIDDEN)


async def test_a_started_engine_reverts_and_counts_the_drift_that_it_can_revert(harness: EngineHarness) -> None:
    """Drift that remains is still reported, and edits of upper objects are carried down without being counted."""
    await harness.start(with_fields(controllers=["PV", "Service", "RBAC", "ServiceAccount"]))
    site = harness.sites[A]
    await site.until(harness.path("configmaps", "above"), lambda one: one["data"] == {"key": "new", "fresh": "x"})
    await site.until(harness.pod_path("image"), lambda one: one["spec"]["containers"][0]["image"] == "app:1")
    await harness.wait_idle()
    left = by_object(await drift_output(harness))
    assert {key[1:] for key in left} == {("Pod", "limited"), ("ConfigMap", "unmarked")}
    counted = {(one.ref.kind.name, one.ref.name) for one in harness.engine.loop.drift}
    assert ("ConfigMap", "above") not in counted
    assert ("Pod", "user") not in counted
    assert {
        ("ConfigMap", "edited"),
        ("ConfigMap", "emptied"),
        ("ConfigMap", "gone"),
        ("Secret", "changed"),
        ("Secret", "stripped"),
        ("Secret", "deleted"),
        ("Service", "port"),
        ("Pod", "labels"),
        ("Pod", "removed"),
        ("Pod", "image"),
        ("Node", harness.nodes[A]),
    } <= counted
    (edited,) = (one.drift for one in harness.engine.loop.drift if one.ref.name == "edited")
    assert (edited.fields, edited.managers) == (("data.key",), ("hand-edited",))
    source = page_source(harness.engine, EngineStatus(utc_now), RecentChanges(utc_now), in_configmap=False)
    shown = content(source.view(ResourceUsage()))
    assert f"ConfigMap {harness.namespace}/edited</td><td>data.key</td><td>hand-edited" in shown
    assert not any(value in shown for value in HIDDEN)
    (row,) = (one for one in lowers(harness.engine)() or () if one.name == A)
    assert row.drift == harness.engine.loop.drift.of_lower(A) >= len(counted)
    await site.delete(harness.path("configmaps", "unmarked"))
    await harness.end_pods("user", *(name for name in PODS if name != "lost"))
