"""Tests of Jobs, DaemonSets and lost lower pods: in the upper cluster they behave as on a real node."""

import pytest
from enginekit import LOWERS, UPPER, A, B, Ground, without_lower
from sitekit import Manifest, condition_of, is_ready, is_true, phase_of

from tensile.names import VIRTUAL_POD

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

APPS, BATCH = "apis/apps/v1", "apis/batch/v1"
OUTCOME = "sandbox.tensile-kube.io/outcome"


async def make_job(ground: Ground, name: str, outcome: str, **spec: Manifest | int | str) -> str:
    """Create a Job of one pod that ends with `outcome` ("run" for never), and return its path."""
    template = ground.template({"job": name}, {"restartPolicy": "Never"}, annotations={OUTCOME: outcome})
    body = {"backoffLimit": 0, "template": template, **spec}
    await ground.upper.create(ground.path("jobs", api=BATCH), {"metadata": {"name": name}, "spec": body})
    return ground.path("jobs", name, api=BATCH)


async def pods_of(ground: Ground, label: str, count: int, cluster: str = UPPER) -> dict[str, Manifest]:
    """Wait until this many pods have a label ("job=web"), all of them ready, and return them."""
    collection = f"{ground.path('pods')}?labelSelector={label.replace('=', '%3D')}"
    return await ground.sites[cluster].until_all(
        collection, lambda pods: len(pods) == count and all(map(is_ready, pods.values()))
    )


async def nowhere(ground: Ground, label: str) -> None:
    """Wait until no pod has a label, in any cluster."""
    for cluster in (UPPER, *LOWERS):
        await pods_of(ground, label, 0, cluster)


async def drop(ground: Ground, path: str) -> None:
    """Delete a workload with its pods."""
    await ground.upper.delete(f"{path}?propagationPolicy=Background")


async def test_a_job_completes_when_its_lower_pod_succeeds(ground: Ground) -> None:
    """The upper pod is Succeeded with the exit code, and deleting the Job deletes its pods in all clusters."""
    job = await make_job(ground, "fine", "succeed")
    done = await ground.upper.until(job, lambda one: is_true(one, "Complete"))
    assert done["status"]["succeeded"] == 1
    (pod,) = (await ground.upper.read(f"{ground.path('pods')}?labelSelector=job%3Dfine"))["items"]
    assert phase_of(pod) == "Succeeded"
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert "podIP" not in pod["status"]
    await drop(ground, job)
    await nowhere(ground, "job=fine")


async def test_a_job_with_replacement_policy_failed_continues_after_a_deleted_pod(ground: Ground) -> None:
    """The deleted pod ends in a terminal phase, so the Job counts it as failed."""
    job = await make_job(ground, "patient", "run", podReplacementPolicy="Failed", backoffLimit=3)
    (name,) = await pods_of(ground, "job=patient", 1)
    await ground.end_pods(name)
    await ground.upper.until(job, lambda one: one["status"].get("failed") == 1 and not one["status"].get("terminating"))
    await drop(ground, job)
    await nowhere(ground, "job=patient")


async def test_a_daemon_set_does_not_keep_the_node_of_a_removed_lower(ground: Ground) -> None:
    """Its pod exists only because of the node, so the node is deleted, and Kubernetes deletes the pod."""
    path, node = ground.path("daemonsets", api=APPS), f"/api/v1/nodes/{ground.nodes[B]}"
    spec = {"selector": {"matchLabels": {"daemon": "agent"}}, "template": ground.template({"daemon": "agent"})}
    await ground.upper.create(path, {"metadata": {"name": "agent"}, "spec": spec})
    collection = f"{ground.path('pods')}?labelSelector=daemon%3Dagent"
    await ground.upper.until_all(
        collection, lambda found: {pod["spec"].get("nodeName") for pod in found.values()} == set(ground.nodes.values())
    )
    await ground.reload(without_lower(B))
    await ground.upper.gone(node)
    await ground.reload()
    await ground.upper.until(node, lambda one: is_true(one, "Ready"))
    await drop(ground, f"{path}/agent")
    await ground.upper.until_all(collection, lambda found: not found, limit=60)


async def test_a_daemon_set_with_the_label_runs_once_in_every_lower(ground: Ground) -> None:
    """With the label `virtual-pod`, it has one pod on each virtual node, and one in each lower."""
    path = ground.path("daemonsets", api=APPS)
    template = ground.template({"daemon": "asking", VIRTUAL_POD: "true"})
    selector = {"matchLabels": {"daemon": "asking"}}
    await ground.upper.create(
        path, {"metadata": {"name": "asking"}, "spec": {"selector": selector, "template": template}}
    )
    pods = await pods_of(ground, "daemon=asking", len(LOWERS))
    assert {pod["spec"]["nodeName"] for pod in pods.values()} == set(ground.nodes.values())
    for lower in LOWERS:
        await pods_of(ground, "daemon=asking", 1, lower)
    await drop(ground, f"{path}/asking")
    await nowhere(ground, "daemon=asking")


async def test_a_pod_that_is_recreated_after_a_forced_deletion_waits_for_the_old_lower_pod(ground: Ground) -> None:
    """It stays Pending while a finalizer holds the old lower pod."""
    site, path = ground.sites[A], ground.pod_path("again")
    await ground.bind("again")
    await ground.upper.until(path, is_ready)
    old = await site.patch(path, {"metadata": {"finalizers": ["e2e.example.com/hold"]}})
    await ground.upper.delete(path, 0)
    new = await ground.bind("again")
    held = await site.until(path, lambda one: "deletionTimestamp" in one["metadata"])
    await ground.engine.loop.wait_idle()
    assert held["metadata"]["uid"] == old["metadata"]["uid"]
    assert phase_of(await ground.upper.read(path)) == "Pending"
    await site.patch(path, {"metadata": {"finalizers": None}})
    await ground.upper.until(path, is_ready)
    below = await site.read(path)
    assert below["metadata"]["annotations"]["tensile-kube.io/upper-uid"] == new["metadata"]["uid"]
    await ground.upper.delete(path)
    await ground.upper.gone(path)


async def test_an_upper_pod_whose_lower_pod_is_deleted_fails_and_is_replaced(ground: Ground) -> None:
    """While the lower pod terminates, the upper one is not ready and has a DisruptionTarget condition.

    A Deployment replaces the failed pod.
    """
    site = ground.sites[A]
    template = ground.template({"app": "lost"}, {"nodeSelector": {"e2e": ground.mark, "clusterID": A}})
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "lost"}}, "template": template}
    path = ground.path("deployments", api=APPS)
    await ground.upper.create(path, {"metadata": {"name": "lost"}, "spec": spec})
    (name,) = await pods_of(ground, "app=lost", 1)
    await site.patch(ground.pod_path(name), {"metadata": {"finalizers": ["e2e.example.com/hold"]}})
    await site.delete(ground.pod_path(name))
    pod = await ground.upper.until(ground.pod_path(name), lambda one: is_true(one, "DisruptionTarget"))
    assert phase_of(pod) == "Running"
    assert condition_of(pod, "Ready")["status"] == "False"
    assert condition_of(pod, "DisruptionTarget")["reason"] == "LowerPodDeleted"
    await site.patch(ground.pod_path(name), {"metadata": {"finalizers": None}})
    pod = await ground.upper.until(ground.pod_path(name), lambda one: phase_of(one) == "Failed")
    assert pod["status"]["reason"] == "LowerPodLost"
    collection = f"{ground.path('pods')}?labelSelector=app%3Dlost"
    await ground.upper.until_all(collection, lambda pods: any(map(is_ready, pods.values())))
    await drop(ground, f"{path}/lost")
    await nowhere(ground, "app=lost")


async def test_a_lower_pod_that_was_copied_under_another_name_is_kept(ground: Ground) -> None:
    """It carries the marks, but no upper pod has that name, so it belongs to its creator."""
    site = ground.sites[A]
    await ground.run_pod("original")
    below = await site.read(ground.pod_path("original"))
    kept = {field: below["metadata"][field] for field in ("labels", "annotations")}
    body = {"metadata": {"name": "copied", **kept}, "spec": below["spec"]}
    await site.create(ground.path("pods"), body)
    copy = await site.until(ground.pod_path("copied"), is_ready)
    await ground.end_pods("original")
    await ground.calm()
    assert (await site.read(ground.pod_path("copied")))["metadata"] == copy["metadata"]
    await site.delete(ground.pod_path("copied"))
    await site.gone(ground.pod_path("copied"))
