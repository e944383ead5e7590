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
from enginekit import UPPER, A, Ground, polled, ran, standing, with_fields
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


class Tampering(NamedTuple):
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
async def ground(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Start an engine with every controller."""
    controllers = with_fields(controllers=["PV", "Service", "RBAC", "ServiceAccount"])
    async with standing(sandbox, tmp_path_factory.mktemp("ground"), controllers) as made:
        yield made


def in_a_later_second(than: str) -> bool:
    """Report whether the clock, in whole seconds, is past a timestamp."""
    return timestamp(datetime.fromtimestamp(time.time(), UTC)) > than


async def furnished(ground: Ground) -> None:
    """Create the upper objects that are tampered with, and wait until their copies exist."""
    above = f"/api/v1/namespaces/{ground.namespace}"
    await ground.upper.patch(above, {"metadata": {"labels": {WARN: "baseline"}}})
    for name in CONFIGS:
        body = {"metadata": {"name": name, "labels": {"team": "blue"}}, "data": {"key": "value", "more": "value"}}
        await ground.upper.create(ground.path("configmaps"), body)
    for name in SECRETS:
        body = {"metadata": {"name": name}, "data": {"key": HIDDEN[0], "more": HIDDEN[0]}}
        await ground.upper.create(ground.path("secrets"), body)
    for name in ("port", "unserved"):
        spec = {"ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}]}
        await ground.upper.create(ground.path("services"), {"metadata": {"name": name}, "spec": spec})
    await ground.upper.create(ground.path("serviceaccounts"), {"metadata": {"name": "robot"}})
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
    await ground.upper.create(ground.path("roles", api=RBAC), {"metadata": {"name": "reader"}, "rules": rules})
    body = {
        "metadata": {"name": "reading"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": ground.namespace}],
    }
    made = await ground.upper.create(ground.path("rolebindings", api=RBAC), body)
    await polled(lambda: in_a_later_second(made["metadata"]["creationTimestamp"]))
    volumes = [{"name": f"c-{name}", "configMap": {"name": name}} for name in CONFIGS]
    volumes += [{"name": f"s-{name}", "secret": {"secretName": name}} for name in SECRETS]
    await ground.run_pod("user", {"serviceAccountName": "robot", "volumes": volumes})
    for name in PODS:
        meta: Any = {"labels": {"app": name, "tier": "front"}, "annotations": {"note": name}}
        await ground.run_pod(name, **meta)
    site = ground.sites[A]
    await site.until(ground.path("rolebindings", "reading", RBAC), bool)
    for name in ("port", "unserved"):
        await site.until(ground.path("services", name), bool)
    for name in PODS:
        await site.until(ground.pod_path(name), is_ready)
    await ground.calm()


async def tamperings(ground: Ground) -> list[Tampering]:
    """Return the tamperings, each of another object."""
    path = ground.path
    tolerations = (await ground.sites[A].read(ground.pod_path("limited")))["spec"]["tolerations"]
    debugged = [*tolerations, {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    limits = {"activeDeadlineSeconds": 100000, "tolerations": debugged}
    added = f"/spec/tolerations/{len(tolerations)}"
    image = {"spec": {"containers": [{"name": "main", "image": "evil:1"}]}}
    port = {"ports": [{"name": "http", "port": 81}, {"name": "https", "port": 443}]}
    ports = ("/spec/ports/0/port", "/spec/ports/0/targetPort")  # Kubernetes sets the second to the first
    verbs = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "delete"]}]
    return [
        _config(ground, "edited", {"data": {"key": "edited"}}, "/data/key"),
        _config(ground, "added", {"data": {"third": "added"}}, "/data/third"),
        _config(ground, "emptied", {"data": None}, "/data/key", "/data/more", by=False),
        _config(ground, "labelled", {"metadata": {"labels": {"team": "red"}}}, "/metadata/labels/team"),
        _config(
            ground,
            "unnamed",
            {"metadata": {"annotations": {OWNER_NAME: None}}},
            "/metadata/annotations/tensile-kube.io~1owner-name",
            by=False,
        ),
        _config(ground, "frozen", {"data": {"key": "frozen"}, "immutable": True}, "/data/key", "/immutable"),
        _config(ground, "gone", None, change="deleted"),
        _config(
            ground,
            "unmarked",
            {"metadata": {"labels": {OWNER: None}}},
            "/metadata/labels/tensile-kube.io~1owner",
            by=False,
            change="unmarked",
        ),
        Tampering("Secret", "changed", path("secrets", "changed"), {"data": {"key": HIDDEN[1]}}, ("/data/key",)),
        Tampering("Secret", "stripped", path("secrets", "stripped"), {"data": {"key": None}}, ("/data/key",), by=False),
        Tampering("Secret", "deleted", path("secrets", "deleted"), None, change="deleted"),
        Tampering("Service", "port", path("services", "port"), {"spec": port}, ports),
        Tampering("Service", "unserved", path("services", "unserved"), None, change="deleted"),
        Tampering("Role", "reader", path("roles", "reader", RBAC), {"rules": verbs}, ("/rules/0/verbs",)),
        Tampering("RoleBinding", "reading", path("rolebindings", "reading", RBAC), None, change="deleted"),
        Tampering(
            "ServiceAccount",
            "robot",
            path("serviceaccounts", "robot"),
            {"automountServiceAccountToken": False},
            ("/automountServiceAccountToken",),
        ),
        Tampering(
            "Pod",
            "labels",
            ground.pod_path("labels"),
            {"metadata": {"labels": {"app": "edited"}, "annotations": {"note": "edited"}}},
            ("/metadata/annotations/note", "/metadata/labels/app"),
        ),
        Tampering(
            "Pod",
            "removed",
            ground.pod_path("removed"),
            {"metadata": {"labels": {"app": None}, "annotations": {"note": None}}},
            ("/metadata/annotations/note", "/metadata/labels/app"),
            by=False,
        ),
        Tampering("Pod", "image", ground.pod_path("image"), image, ("/spec/containers/0/image",), how="strategic"),
        Tampering(
            "Pod", "limited", ground.pod_path("limited"), {"spec": limits}, ("/spec/activeDeadlineSeconds", added)
        ),
        Tampering("Pod", "lost", ground.pod_path("lost"), None, change="deleted"),
        Tampering(
            "Namespace",
            ground.namespace,
            f"/api/v1/namespaces/{ground.namespace}",
            {"metadata": {"labels": {WARN: "privileged"}}},
            ("/metadata/labels/pod-security.kubernetes.io~1warn",),
        ),
        Tampering(
            "Node",
            ground.nodes[A],
            f"/api/v1/nodes/{ground.nodes[A]}",
            {"metadata": {"labels": {"clusterID": "edited"}}},
            ("/metadata/labels/clusterID",),
            cluster=UPPER,
        ),
    ]


def _config(ground: Ground, name: str, body: Manifest | None, *fields: str, **more: Any) -> Tampering:
    return Tampering("ConfigMap", name, ground.path("configmaps", name), body, fields, **more)


REFUSED = {("unmarked", 409)}
"""What a running engine retries from time to time: to create an object whose name is taken."""


async def told(ground: Ground, output: str = "json") -> str:
    """Return the command's output, and assert that it wrote nothing."""
    await ground.note()
    found = await asyncio.to_thread(
        drift.drift,
        ground.topology(with_fields(controllers=["PV", "Service", "RBAC", "ServiceAccount"])),
        ClusterAccess(ground.directory),
        output,
        PlanOptions(),
        colour=False,
    )
    attempts = await ground.attempts(without=("leases", "events"))
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


async def test_every_kind_of_tampering_is_reported_and_edits_of_upper_objects_are_not(ground: Ground) -> None:
    """Fields and clients are correct, and no content of a Secret is printed.

    The engine is stopped during the tampering.
    """
    await furnished(ground)
    assert by_object(await told(ground)) == {}, "the engine's own writes are no drift"
    await ground.stop()
    last = (await ground.sites[A].read(ground.path("configmaps", "above")))["metadata"]["managedFields"][-1]["time"]
    await polled(lambda: in_a_later_second(last))
    changes = await tamperings(ground)
    assert len(changes) >= 20
    for one in changes:
        site = ground.sites[one.cluster]
        if one.body is None:
            await site.delete(one.path, 0)
        else:
            await site.patch(f"{one.path}?fieldManager=hand-{one.name}", one.body, one.how)
    await ground.upper.patch(ground.path("configmaps", "above"), {"data": {"key": "new", "more": None, "fresh": "x"}})
    await ground.upper.patch(ground.pod_path("user"), {"metadata": {"labels": {"fresh": "x"}}})
    expected = {
        (one.cluster, one.kind, one.name): (
            one.change,
            dict.fromkeys(one.fields, f"hand-{one.name}" if one.by else None),
        )
        for one in changes
    }
    assert by_object(await told(ground)) == expected
    path = ground.save(with_fields(controllers=["PV", "Service", "RBAC", "ServiceAccount"]))
    done = await ran([PROGRAM, "plan", "--drift", "-f", str(path)])
    assert (done.code, done.err) == (2, "")
    assert done.out.splitlines()[-1].startswith("Drift: ")
    assert not any(value in done.out for value in HIDDEN)


async def test_a_started_engine_reverts_and_counts_the_drift_that_it_can_revert(ground: Ground) -> None:
    """Drift that remains is still reported, and edits of upper objects are carried down without being counted."""
    await ground.start(with_fields(controllers=["PV", "Service", "RBAC", "ServiceAccount"]))
    site = ground.sites[A]
    await site.until(ground.path("configmaps", "above"), lambda one: one["data"] == {"key": "new", "fresh": "x"})
    await site.until(ground.pod_path("image"), lambda one: one["spec"]["containers"][0]["image"] == "app:1")
    await ground.calm()
    left = by_object(await told(ground))
    assert {key[1:] for key in left} == {("Pod", "limited"), ("ConfigMap", "unmarked")}
    counted = {(one.ref.kind.name, one.ref.name) for one in ground.engine.loop.drift}
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
        ("Node", ground.nodes[A]),
    } <= counted
    (edited,) = (one.drift for one in ground.engine.loop.drift if one.ref.name == "edited")
    assert (edited.fields, edited.managers) == (("data.key",), ("hand-edited",))
    source = page_source(ground.engine, EngineStatus(utc_now), RecentChanges(utc_now), in_configmap=False)
    shown = content(source.view(ResourceUsage()))
    assert f"ConfigMap {ground.namespace}/edited</td><td>data.key</td><td>hand-edited" in shown
    assert not any(value in shown for value in HIDDEN)
    (row,) = (one for one in lowers(ground.engine)() or () if one.name == A)
    assert row.drift == ground.engine.loop.drift.of_lower(A) >= len(counted)
    await site.delete(ground.path("configmaps", "unmarked"))
    await ground.end_pods("user", *(name for name in PODS if name != "lost"))
