"""Tests of objects that are valid for an apiserver but hard to read: they affect no other object.

An administrator writes them here; a tenant with `edit` in one namespace can write the same.
"""

import sys
from typing import Any

import orjson
import pytest
from enginekit import A, B, EngineHarness, edit_lower, run_command, with_fields
from sitekit import Manifest, is_ready

from tensile.names import OWNER, WRITTEN_IMAGES, WRITTEN_KEYS

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

ZEROS = "0" * 90
DEEP = 3_000
UNBURIED = {"metadata": {"managedFields": [{}]}}


async def stranger(harness: EngineHarness, name: str, spec: Manifest | None = None, **meta: Any) -> Manifest:
    """Create a lower pod of another owner, on no node that runs it; a finalizer in `meta` keeps it."""
    if not await harness.sites[A].read(f"/api/v1/namespaces/{harness.namespace}"):
        await harness.make_namespace(A, harness.namespace)
    basis = {"nodeName": "nowhere", "containers": [{"name": "main", "image": "app:1"}]}
    body = {"metadata": {"name": name, **meta}, "spec": {**basis, **(spec or {})}}
    return await harness.sites[A].create(harness.path("pods"), body)


async def gone(harness: EngineHarness, *names: str) -> None:
    """Delete lower pods of another owner together with their finalizers."""
    for name in names:
        await harness.sites[A].patch(harness.pod_path(name), {"metadata": {"finalizers": None, **UNBURIED["metadata"]}})
        await harness.sites[A].delete(harness.pod_path(name), 0)


async def buried(harness: EngineHarness, cluster: str, pod: str) -> None:
    """Set managedFields that nest as deeply as an apiserver accepts on a pod."""
    fields = orjson.Fragment(b'{"f:a":' * DEEP + b"{}" + b"}" * DEEP)
    book = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields}
    body = orjson.dumps({"metadata": {"managedFields": [book]}}).decode()
    done = await harness.kubectl(
        "patch", "pod", pod, "--type=merge", "--patch-file=/dev/stdin", cluster=cluster, stdin=body
    )
    assert done.code == 0, done.err


async def test_deeply_nested_managed_fields_do_not_stop_watches(harness: EngineHarness) -> None:
    """An upper pod and a lower one with a forged label have them; later pods and labels are still mirrored."""
    await harness.run_pod("deep-above")
    await stranger(harness, "deep-below", labels={OWNER: harness.owner.mark})
    await buried(harness, "upper", "deep-above")
    await buried(harness, A, "deep-below")
    await harness.run_pod("after-deep")
    assert (await harness.kubectl("label", "pod", "deep-above", "is=read")).code == 0
    await harness.sites[A].until(harness.pod_path("deep-above"), lambda pod: pod["metadata"]["labels"]["is"] == "read")
    await harness.upper.patch(harness.pod_path("deep-above"), UNBURIED)
    await gone(harness, "deep-below")


async def test_a_quantity_with_many_zeros_does_not_stop_the_capacity_calculation(harness: EngineHarness) -> None:
    """It is in a lower pod of another owner and in an upper pod; allocatable is still updated, and pods still run."""
    asks = {"containers": [{"name": "main", "image": "app:1", "resources": {"requests": {"memory": f"{ZEROS}1Gi"}}}]}
    (node, *_) = sorted(one["metadata"]["name"] for one in (await harness.sites[A].read("/api/v1/nodes"))["items"])
    await harness.reload(edit_lower(A, capacity={"basis": "free"}))
    virtual = f"/api/v1/nodes/{harness.nodes[A]}"
    before = (await harness.upper.read(virtual))["status"]["allocatable"]["memory"]
    await stranger(harness, "zeros-below", {**asks, "nodeName": node})
    await harness.run_pod("zeros-above", asks)
    await harness.upper.until(virtual, lambda one: one["status"]["allocatable"]["memory"] != before)
    await harness.run_pod("after-zeros")
    await gone(harness, "zeros-below")
    await harness.reload()


ODD: dict[str, dict[str, Any]] = {
    "no-number": {"annotations": {"clusterSelector": '{"x":1e400}'}},
    "no-end": {"annotations": {"clusterSelector": '{"tolerations":[{"x":' + "[" * 300 + "]" * 300 + "}]}"}},
    "a-port": {"ports": [{"containerPort": 80, "hostPort": 8080}]},
    "a-byte": {"resources": {"requests": {"memory": ZEROS + "1"}}},
}
"""Bare pods, each with an unusual field."""


MOVES = with_fields(descheduler={"recreateBarePods": True, "interval": "3s"})


async def test_odd_fields_of_one_bare_pod_do_not_stop_the_drain_of_other_pods(harness: EngineHarness) -> None:
    """All pods move to the other lower cluster, a plan succeeds, and an invalid clusterSelector is reported."""
    closed = edit_lower(B, maintenance="cordon")
    await harness.reload(closed)
    await harness.upper.until(f"/api/v1/nodes/{harness.nodes[B]}", lambda one: one["spec"].get("unschedulable"))
    made = {}
    for name, odd in {"fine": {}, **ODD}.items():
        fields = {field: value for field, value in odd.items() if field != "annotations"}
        container = {"name": "main", "image": "app:1", **fields}
        spec = harness.template({}, {"containers": [container], "terminationGracePeriodSeconds": 1})["spec"]
        meta = {"name": name, "annotations": odd.get("annotations", {})}
        made[name] = await harness.upper.create(harness.path("pods"), {"metadata": meta, "spec": spec})
    for name in made:
        await harness.upper.until(
            harness.pod_path(name), lambda one: one["spec"].get("nodeName") == harness.nodes[A] and is_ready(one)
        )
    assert "infinity" in await harness.wait_for_event(made["no-number"], "InvalidClusterSelector")
    path = harness.save(MOVES, edit_lower(A, maintenance="drain"))
    planned = await run_command([sys.executable, "-m", "tensile", "plan", "-f", str(path)])
    assert planned.code == 2, planned.err
    await harness.reload(MOVES, edit_lower(A, maintenance="drain"))
    for name in made:
        await harness.upper.until(
            harness.pod_path(name), lambda one: one["spec"].get("nodeName") == harness.nodes[B] and is_ready(one)
        )
    await harness.reload()


async def test_a_pod_with_a_huge_grace_period_does_not_stop_the_drain_of_other_pods(harness: EngineHarness) -> None:
    """The pod has a controller, is terminating, and has a grace period of more than 2^62 seconds."""
    closed = edit_lower(B, maintenance="cordon")
    await harness.reload(closed)
    await harness.upper.until(f"/api/v1/nodes/{harness.nodes[B]}", lambda one: one["spec"].get("unschedulable"))
    labels, sets = {"app": "slow"}, harness.path("replicasets", api="apis/apps/v1")
    template = harness.template(labels, {"terminationGracePeriodSeconds": 2**63 - 1})
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    await harness.upper.create(sets, {"metadata": {"name": "slow"}, "spec": spec})
    other = harness.template({}, {"terminationGracePeriodSeconds": 1})["spec"]
    await harness.upper.create(harness.path("pods"), {"metadata": {"name": "other"}, "spec": other})
    slow = f"{harness.path('pods')}?labelSelector=app%3Dslow"
    (name,) = await harness.upper.until_all(slow, lambda pods: pods and all(map(is_ready, pods.values())))
    await harness.upper.until(harness.pod_path("other"), is_ready)
    await harness.sites[A].patch(harness.pod_path(name), {"metadata": {"finalizers": ["example.com/held"]}})
    await harness.kubectl("delete", "pod", name, "--wait=false")
    await harness.upper.until(harness.pod_path(name), lambda one: one["metadata"]["deletionGracePeriodSeconds"] > 2**62)
    await harness.reload(MOVES, edit_lower(A, maintenance="drain"))
    await harness.upper.until(
        harness.pod_path("other"), lambda one: one["spec"].get("nodeName") == harness.nodes[B] and is_ready(one)
    )
    await harness.reload()
    await harness.sites[A].patch(harness.pod_path(name), {"metadata": {"finalizers": None}})
    await harness.upper.gone(harness.pod_path(name))


async def test_annotations_of_the_engine_with_invalid_content_are_repaired(harness: EngineHarness) -> None:
    """Another client sets them on the lower pod.

    Upper labels are still carried down, and the annotation is correct again.
    """
    await harness.run_pod("noted")
    notes = {"annotations": {WRITTEN_KEYS: '{"labels":5}', WRITTEN_IMAGES: "[[]]"}}
    await harness.sites[A].patch(harness.pod_path("noted"), {"metadata": notes})
    await harness.upper.patch(harness.pod_path("noted"), {"metadata": {"labels": {"is": "new"}}})
    found = await harness.sites[A].until(
        harness.pod_path("noted"), lambda pod: pod["metadata"]["labels"].get("is") == "new"
    )
    assert orjson.loads(found["metadata"]["annotations"][WRITTEN_KEYS])["labels"] == ["is"]
