"""Tests of Jobs, DaemonSets and lost lower pods: in the upper cluster they behave as on a real node."""

import pytest
from enginekit import LOWERS, UPPER, A, B, EngineHarness, without_lower
from sitekit import Manifest, condition_of, is_ready, is_true, phase_of

from tensile.names import VIRTUAL_POD

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

APPS, BATCH = "apis/apps/v1", "apis/batch/v1"
OUTCOME = "sandbox.tensile-kube.io/outcome"


async def make_job(harness: EngineHarness, name: str, outcome: str, **spec: Manifest | int | str) -> str:
    """Create a Job of one pod that ends with `outcome` ("run" for never), and return its path."""
    template = harness.template({"job": name}, {"restartPolicy": "Never"}, annotations={OUTCOME: outcome})
    body = {"backoffLimit": 0, "template": template, **spec}
    await harness.upper.create(harness.path("jobs", api=BATCH), {"metadata": {"name": name}, "spec": body})
    return harness.path("jobs", name, api=BATCH)


async def pods_of(harness: EngineHarness, label: str, count: int, cluster: str = UPPER) -> dict[str, Manifest]:
    """Wait until this many pods have a label ("job=web"), all of them ready, and return them."""
    collection = f"{harness.path('pods')}?labelSelector={label.replace('=', '%3D')}"
    return await harness.sites[cluster].until_all(
        collection, lambda pods: len(pods) == count and all(map(is_ready, pods.values()))
    )


async def nowhere(harness: EngineHarness, label: str) -> None:
    """Wait until no pod has a label, in any cluster."""
    for cluster in (UPPER, *LOWERS):
        await pods_of(harness, label, 0, cluster)


async def drop(harness: EngineHarness, path: str) -> None:
    """Delete a workload with its pods."""
    await harness.upper.delete(f"{path}?propagationPolicy=Background")


async def test_a_job_completes_when_its_lower_pod_succeeds(harness: EngineHarness) -> None:
    """The upper pod is Succeeded with the exit code, and deleting the Job deletes its pods in all clusters."""
    job = await make_job(harness, "fine", "succeed")
    done = await harness.upper.until(job, lambda one: is_true(one, "Complete"))
    assert done["status"]["succeeded"] == 1
    (pod,) = (await harness.upper.read(f"{harness.path('pods')}?labelSelector=job%3Dfine"))["items"]
    assert phase_of(pod) == "Succeeded"
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert "podIP" not in pod["status"]
    await drop(harness, job)
    await nowhere(harness, "job=fine")


async def test_a_job_with_replacement_policy_failed_continues_after_a_deleted_pod(harness: EngineHarness) -> None:
    """The deleted pod ends in a terminal phase, so the Job counts it as failed."""
    job = await make_job(harness, "patient", "run", podReplacementPolicy="Failed", backoffLimit=3)
    (name,) = await pods_of(harness, "job=patient", 1)
    await harness.end_pods(name)
    await harness.upper.until(
        job, lambda one: one["status"].get("failed") == 1 and not one["status"].get("terminating")
    )
    await drop(harness, job)
    await nowhere(harness, "job=patient")


async def test_a_daemon_set_does_not_keep_the_node_of_a_removed_lower(harness: EngineHarness) -> None:
    """Its pod exists only because of the node, so the node is deleted, and Kubernetes deletes the pod."""
    path, node = harness.path("daemonsets", api=APPS), f"/api/v1/nodes/{harness.nodes[B]}"
    spec = {"selector": {"matchLabels": {"daemon": "agent"}}, "template": harness.template({"daemon": "agent"})}
    await harness.upper.create(path, {"metadata": {"name": "agent"}, "spec": spec})
    collection = f"{harness.path('pods')}?labelSelector=daemon%3Dagent"
    await harness.upper.until_all(
        collection, lambda found: {pod["spec"].get("nodeName") for pod in found.values()} == set(harness.nodes.values())
    )
    await harness.reload(without_lower(B))
    await harness.upper.gone(node)
    await harness.reload()
    await harness.upper.until(node, lambda one: is_true(one, "Ready"))
    await drop(harness, f"{path}/agent")
    await harness.upper.until_all(collection, lambda found: not found, limit=60)


async def test_a_daemon_set_with_the_label_runs_once_in_every_lower(harness: EngineHarness) -> None:
    """With the label `virtual-pod`, it has one pod on each virtual node, and one in each lower."""
    path = harness.path("daemonsets", api=APPS)
    template = harness.template({"daemon": "asking", VIRTUAL_POD: "true"})
    selector = {"matchLabels": {"daemon": "asking"}}
    await harness.upper.create(
        path, {"metadata": {"name": "asking"}, "spec": {"selector": selector, "template": template}}
    )
    pods = await pods_of(harness, "daemon=asking", len(LOWERS))
    assert {pod["spec"]["nodeName"] for pod in pods.values()} == set(harness.nodes.values())
    for lower in LOWERS:
        await pods_of(harness, "daemon=asking", 1, lower)
    await drop(harness, f"{path}/asking")
    await nowhere(harness, "daemon=asking")


async def test_a_pod_that_is_recreated_after_a_forced_deletion_waits_for_the_old_lower_pod(
    harness: EngineHarness,
) -> None:
    """It stays Pending while a finalizer holds the old lower pod."""
    site, path = harness.sites[A], harness.pod_path("again")
    await harness.bind("again")
    await harness.upper.until(path, is_ready)
    old = await site.patch(path, {"metadata": {"finalizers": ["e2e.example.com/hold"]}})
    await harness.upper.delete(path, 0)
    new = await harness.bind("again")
    held = await site.until(path, lambda one: "deletionTimestamp" in one["metadata"])
    await harness.engine.loop.wait_idle()
    assert held["metadata"]["uid"] == old["metadata"]["uid"]
    assert phase_of(await harness.upper.read(path)) == "Pending"
    await site.patch(path, {"metadata": {"finalizers": None}})
    await harness.upper.until(path, is_ready)
    lower_object = await site.read(path)
    assert lower_object["metadata"]["annotations"]["tensile-kube.io/upper-uid"] == new["metadata"]["uid"]
    await harness.upper.delete(path)
    await harness.upper.gone(path)


async def test_an_upper_pod_whose_lower_pod_is_deleted_fails_and_is_replaced(harness: EngineHarness) -> None:
    """While the lower pod terminates, the upper one is not ready and has a DisruptionTarget condition.

    A Deployment replaces the failed pod.
    """
    site = harness.sites[A]
    template = harness.template({"app": "lost"}, {"nodeSelector": {"e2e": harness.mark, "clusterID": A}})
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "lost"}}, "template": template}
    path = harness.path("deployments", api=APPS)
    await harness.upper.create(path, {"metadata": {"name": "lost"}, "spec": spec})
    (name,) = await pods_of(harness, "app=lost", 1)
    await site.patch(harness.pod_path(name), {"metadata": {"finalizers": ["e2e.example.com/hold"]}})
    await site.delete(harness.pod_path(name))
    pod = await harness.upper.until(harness.pod_path(name), lambda one: is_true(one, "DisruptionTarget"))
    assert phase_of(pod) == "Running"
    assert condition_of(pod, "Ready")["status"] == "False"
    assert condition_of(pod, "DisruptionTarget")["reason"] == "LowerPodDeleted"
    await site.patch(harness.pod_path(name), {"metadata": {"finalizers": None}})
    pod = await harness.upper.until(harness.pod_path(name), lambda one: phase_of(one) == "Failed")
    assert pod["status"]["reason"] == "LowerPodLost"
    collection = f"{harness.path('pods')}?labelSelector=app%3Dlost"
    await harness.upper.until_all(collection, lambda pods: any(map(is_ready, pods.values())))
    await drop(harness, f"{path}/lost")
    await nowhere(harness, "app=lost")


async def test_a_lower_pod_that_was_copied_under_another_name_is_kept(harness: EngineHarness) -> None:
    """It carries the marks, but no upper pod has that name, so it belongs to its creator."""
    site = harness.sites[A]
    await harness.run_pod("original")
    lower_object = await site.read(harness.pod_path("original"))
    kept = {field: lower_object["metadata"][field] for field in ("labels", "annotations")}
    body = {"metadata": {"name": "copied", **kept}, "spec": lower_object["spec"]}
    await site.create(harness.path("pods"), body)
    copy = await site.until(harness.pod_path("copied"), is_ready)
    await harness.end_pods("original")
    await harness.wait_idle()
    assert (await site.read(harness.pod_path("copied")))["metadata"] == copy["metadata"]
    await site.delete(harness.pod_path("copied"))
    await site.gone(harness.pod_path("copied"))
