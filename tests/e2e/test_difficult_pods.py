"""Tests of pods whose fields have another meaning, or none, in the lower cluster.

Each pod runs there, or its status has the reason why it does not.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from enginekit import LOWERS, UPPER, A, EngineHarness
from sitekit import Manifest, condition_of, is_ready, is_true, phase_of

from tensile.names import LOWER_SCHEDULED, MIRRORED, OWNER

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"
OVERHEAD = {"podFixed": {"cpu": "10m"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def classes(harness: EngineHarness) -> AsyncIterator[dict[str, str]]:
    """Create priority and runtime classes, some in the upper cluster alone and some in all clusters."""
    names = {kind: f"{harness.namespace}-{kind}" for kind in ("upper-priority", "priority", "upper-runtime", "runtime")}
    made: list[tuple[str, str]] = []

    async def make(cluster: str, collection: str, body: Manifest) -> None:
        await harness.sites[cluster].create(collection, body)
        made.append((cluster, f"{collection}/{body['metadata']['name']}"))

    for cluster in (UPPER, *LOWERS):
        for kind in ("priority", "upper-priority") if cluster == UPPER else ("priority",):
            await make(cluster, PRIORITIES, _priority(names[kind]))
        for kind in ("runtime", "upper-runtime") if cluster == UPPER else ("runtime",):
            body = {"metadata": {"name": names[kind]}, "handler": "runc", "overhead": OVERHEAD}
            await make(cluster, RUNTIMES, body)
    yield names
    for cluster, path in made:
        await harness.sites[cluster].delete(path)


def _priority(name: str) -> Manifest:
    """Return a PriorityClass that never preempts other pods."""
    return {"metadata": {"name": name}, "value": 1000, "preemptionPolicy": "Never"}


async def runs(
    harness: EngineHarness, name: str, spec: Manifest | None = None, **meta: Manifest
) -> tuple[Manifest, Manifest]:
    """Bind a pod, wait until it is ready in the upper cluster, and return it with its lower pod."""
    pod = await harness.run_pod(name, spec, **meta)
    lower_object = await harness.sites[A].read(harness.pod_path(name))
    assert phase_of(lower_object) == "Running"
    return pod, lower_object


async def ends(harness: EngineHarness, *names: str) -> None:
    """Delete upper pods, and wait until they and their lower pods are deleted."""
    for name in names:
        await harness.upper.delete(harness.pod_path(name))
    for name in names:
        await harness.upper.gone(harness.pod_path(name))
        assert await harness.sites[A].read(harness.pod_path(name)) == {}


async def refused(harness: EngineHarness, name: str, spec: Manifest) -> Manifest:
    """Bind a pod that the lower cluster refuses, and return it once its condition has the reason."""
    made = await harness.bind(name, spec)
    pod = await harness.upper.until(harness.pod_path(name), lambda one: condition_of(one, MIRRORED))
    assert phase_of(pod) == "Pending"
    reason = condition_of(pod, MIRRORED)["reason"]
    assert pod["status"]["reason"] == reason
    assert await harness.wait_for_event(made, reason) == condition_of(pod, MIRRORED)["message"]
    return pod


async def test_a_lower_replica_set_with_a_matching_selector_adopts_no_mirrored_pod(harness: EngineHarness) -> None:
    """It creates its own pod; mirrored pods that match its selector are neither adopted nor deleted."""
    labels = {"app": "twin"}
    before = [(await runs(harness, name, labels=labels))[1] for name in ("twin-1", "twin-2")]
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "native:1"}]}}
    native = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    site, sets = harness.sites[A], harness.path("replicasets", api="apis/apps/v1")
    await site.create(sets, {"metadata": {"name": "native"}, "spec": native})
    await site.until(f"{sets}/native", lambda one: one["status"].get("readyReplicas") == 1)
    for pod in before:
        after = await site.read(harness.pod_path(pod["metadata"]["name"]))
        assert after["metadata"]["uid"] == pod["metadata"]["uid"]
        assert after["metadata"]["ownerReferences"] == pod["metadata"]["ownerReferences"]
        assert "deletionTimestamp" not in after["metadata"]
    await site.delete(f"{sets}/native?propagationPolicy=Background")
    await ends(harness, "twin-1", "twin-2")


@pytest.mark.parametrize("kind", ["upper-priority", "priority"])
async def test_a_priority_class_is_not_copied_to_the_lower_pod(
    harness: EngineHarness, classes: dict[str, str], kind: str
) -> None:
    """The lower pod runs without a priority whether the lower has the class or not, and an Event reports that."""
    pod, lower_object = await runs(harness, kind, {"priorityClassName": classes[kind]})
    assert (pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]) == (1000, "Never")
    assert lower_object["spec"]["priority"] == 0
    assert "priorityClassName" not in lower_object["spec"]
    assert classes[kind] in await harness.wait_for_event(pod, "PriorityClassDropped")
    await ends(harness, kind)


async def test_overhead_is_set_by_the_runtime_class_of_the_lower_cluster(
    harness: EngineHarness, classes: dict[str, str]
) -> None:
    """A pod with a RuntimeClass runs with the overhead of the lower cluster's class of that name."""
    pod, lower_object = await runs(harness, "heavy", {"runtimeClassName": classes["runtime"]})
    assert pod["spec"]["overhead"] == lower_object["spec"]["overhead"] == OVERHEAD["podFixed"]
    await ends(harness, "heavy")


async def test_a_pod_with_an_unknown_runtime_class_is_pending_until_the_class_is_created(
    harness: EngineHarness, classes: dict[str, str]
) -> None:
    """The upper pod has the reason of the lower cluster's refusal, and runs once the class is created there."""
    name = classes["upper-runtime"]
    pod = await refused(harness, "waiting-runtime", {"runtimeClassName": name})
    assert "RuntimeClass" in condition_of(pod, MIRRORED)["message"]
    site = harness.sites[A]
    await site.create(RUNTIMES, {"metadata": {"name": name}, "handler": "runc", "overhead": OVERHEAD})
    pod = await harness.upper.until(harness.pod_path("waiting-runtime"), is_ready)
    assert condition_of(pod, MIRRORED) == {}
    await ends(harness, "waiting-runtime")
    await site.delete(f"{RUNTIMES}/{name}")


async def test_finalizers_are_not_copied_and_hold_the_upper_pod_in_a_terminal_phase(harness: EngineHarness) -> None:
    """The upper pod outlives its lower pod in phase Failed until the finalizer is removed."""
    _, lower_object = await runs(harness, "finalized", finalizers=["e2e.example.com/last"])
    assert "finalizers" not in lower_object["metadata"]
    await harness.upper.delete(harness.pod_path("finalized"))
    await harness.sites[A].gone(harness.pod_path("finalized"))
    pod = await harness.upper.until(harness.pod_path("finalized"), lambda one: phase_of(one) == "Failed")
    assert pod["metadata"]["finalizers"] == ["e2e.example.com/last"]
    assert not is_true(pod, "Ready")
    await harness.upper.patch(harness.pod_path("finalized"), {"metadata": {"finalizers": None}})
    await harness.upper.gone(harness.pod_path("finalized"))


async def test_a_pod_with_a_scheduling_gate_is_not_mirrored(harness: EngineHarness) -> None:
    """No lower cluster has the pod until its gate is removed; then it is bound and runs."""
    spec = harness.template({}, {"schedulingGates": [{"name": "example.com/later"}]})["spec"]
    await harness.upper.create(harness.path("pods"), {"metadata": {"name": "later"}, "spec": spec})
    await harness.upper.until(harness.pod_path("later"), lambda one: condition_of(one, "PodScheduled"))
    await harness.engine.loop.wait_idle()
    for lower in LOWERS:
        assert await harness.sites[lower].read(harness.pod_path("later")) == {}
    await harness.upper.patch(harness.pod_path("later"), {"spec": {"schedulingGates": None}})
    await harness.upper.until(harness.pod_path("later"), is_ready)
    await harness.end_pods("later")


VOLUMES: dict[str, Manifest] = {
    "ephemeral-volume": {
        "ephemeral": {
            "volumeClaimTemplate": {
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "none",
                    "resources": {"requests": {"storage": "1Gi"}},
                }
            }
        }
    },
}


@pytest.mark.parametrize(("name", "source"), VOLUMES.items(), ids=VOLUMES)
async def test_a_pod_with_a_volume_that_the_lower_cluster_cannot_provide_is_pending(
    harness: EngineHarness, name: str, source: Manifest
) -> None:
    """Its condition has the lower scheduler's message about the missing volume."""
    await harness.bind(name, {"volumes": [{"name": "data", **source}]})
    pod = await harness.upper.until(harness.pod_path(name), lambda one: condition_of(one, LOWER_SCHEDULED))
    assert phase_of(pod) == "Pending"
    assert condition_of(pod, LOWER_SCHEDULED)["reason"] == "Unschedulable"
    assert "persistentvolumeclaim" in condition_of(pod, LOWER_SCHEDULED)["message"].lower()
    assert is_true(pod, "PodScheduled")
    await ends(harness, name)


async def test_a_pod_to_which_every_rule_applies_runs_and_is_written_once(
    harness: EngineHarness, classes: dict[str, str]
) -> None:
    """It has a priority class, runtime class, account, spread constraint, selector and sidecar.

    The lower pod has the owner's mark, and a restarted engine repeats no write.
    """
    await harness.upper.create(harness.path("serviceaccounts"), {"metadata": {"name": "robot"}})
    spread = {"topologyKey": "clusterID", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    spec = {
        "priorityClassName": classes["priority"],
        "runtimeClassName": classes["runtime"],
        "serviceAccountName": "robot",
        "topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": {"app": "all"}}}],
        "schedulerName": "some-scheduler",
        "nodeSelector": {"type": "virtual-kubelet", "kubernetes.io/os": "linux", "clusterID": A},
        "initContainers": [{"name": "sidecar", "image": "s:1", "restartPolicy": "Always"}],
    }
    _, lower_object = await runs(harness, "all", spec, labels={"app": "all"})
    assert lower_object["metadata"]["labels"][OWNER] == harness.owner.mark
    assert lower_object["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert lower_object["spec"]["schedulerName"] == "default-scheduler"
    await harness.wait_idle()
    await harness.stop()
    await harness.mark_audit_logs()
    await harness.start()
    await harness.wait_idle()
    assert await harness.unexpected_attempts() == [], "none of it is written twice"
    await ends(harness, "all")
