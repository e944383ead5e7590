"""Tests of a Deployment from start to end: its pods run in lower clusters, serve kubectl, and are deleted."""

import asyncio
import json
from base64 import b64encode
from collections import Counter

import pytest
from enginekit import A, EngineHarness
from prometheus_client.parser import text_string_to_metric_families
from sitekit import Manifest, is_ready, phase_of

from tensile.engine.metrics import Metrics, readings
from tensile.names import OWNER, OWNER_NAME, TRIPPED_LABELS, UPPER_UID, VIRTUAL_POD

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

APPS = "apis/apps/v1"
TRIPPED = "pod-group.scheduling.sigs.k8s.io"
PROBE = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 5}


def workload(harness: EngineHarness) -> Manifest:
    """Return a Deployment of four pods that uses most features of a container."""
    container = {
        "name": "main",
        "image": "app:1",
        "ports": [{"containerPort": 8080}],
        "env": [
            {"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "greeting"}}},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "envFrom": [{"secretRef": {"name": "password"}}],
        "volumeMounts": [{"name": "settings", "mountPath": "/settings"}, {"name": "scratch", "mountPath": "/scratch"}],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "32Mi"}},
        "readinessProbe": PROBE,
        "livenessProbe": PROBE,
        "startupProbe": PROBE,
        "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
    }
    volumes = [{"name": "settings", "configMap": {"name": "settings"}}, {"name": "scratch", "emptyDir": {}}]
    labels = {"app": "web", TRIPPED: "gang"}
    spread = {
        "maxSkew": 1,
        "topologyKey": "clusterID",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    parts = {"containers": [container], "volumes": volumes, "topologySpreadConstraints": [spread]}
    template = harness.template(labels, parts, annotations={"note": "kept"})
    spec = {"replicas": 4, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    return {"metadata": {"name": "web"}, "spec": spec}


async def running(harness: EngineHarness, count: int = 4, selector: str = "app%3Dweb") -> dict[str, Manifest]:
    """Wait until this many pods of the Deployment are ready in the upper cluster, and return them."""
    return await harness.upper.until_all(
        f"{harness.path('pods')}?labelSelector={selector}",
        lambda pods: len(pods) == count and all(is_ready(pod) for pod in pods.values()),
    )


def where(harness: EngineHarness, pod: Manifest) -> str:
    """Return the lower cluster in which a pod runs."""
    return next(lower for lower, node in harness.nodes.items() if node == pod["spec"]["nodeName"])


@pytest.fixture(scope="module")
def secret() -> str:
    """Return the value of the Secret."""
    return b64encode(b"hidden").decode()


def samples(harness: EngineHarness, name: str) -> Counter[str]:
    """Return the sums of a metric of the engine by the label `lower`, `controller` or `name`."""
    text = Metrics(readings(harness.engine)).text().decode()
    found = [one for family in text_string_to_metric_families(text) for one in family.samples if one.name == name]
    sums: Counter[str] = Counter()
    for one in found:
        sums[next(one.labels[key] for key in ("lower", "controller", "name") if key in one.labels)] += one.value
    return sums


async def test_a_deployment_runs_in_the_lower_clusters_with_all_its_references(
    harness: EngineHarness, secret: str
) -> None:
    """Four upper pods become ready because their lower pods run, with a copy of the ConfigMap and of the Secret."""
    await harness.upper.create(
        harness.path("configmaps"), {"metadata": {"name": "settings"}, "data": {"greeting": "hello"}}
    )
    await harness.upper.create(
        harness.path("secrets"), {"metadata": {"name": "password"}, "data": {"PASSWORD": secret}}
    )
    await harness.upper.create(harness.path("deployments", api=APPS), workload(harness))
    pods = await running(harness)
    assert {where(harness, pod) for pod in pods.values()} == set(harness.nodes), "the scheduler uses both nodes"
    for name, pod in pods.items():
        lower = harness.sites[where(harness, pod)]
        lower_object = await lower.read(harness.pod_path(name))
        assert phase_of(lower_object) == "Running"
        assert pod["status"]["podIP"] == lower_object["status"]["podIP"]
        assert pod["status"]["hostIP"] == lower_object["status"]["hostIP"]
        assert pod["status"]["containerStatuses"] == lower_object["status"]["containerStatuses"]
        settings = await lower.read(harness.path("configmaps", "settings"))
        password = await lower.read(harness.path("secrets", "password"))
        assert settings["data"] == {"greeting": "hello"}
        assert password["data"] == {"PASSWORD": secret}


async def test_metrics_count_the_creations_and_status_reports_of_the_pods(harness: EngineHarness) -> None:
    """Four creations are counted, with a duration that is positive and less than a minute in sum."""
    created = samples(harness, "tensile_pod_creation_duration_seconds_count")
    reported = samples(harness, "tensile_pod_status_report_duration_seconds_count")
    assert set(created) == set(reported) == set(harness.nodes)
    assert sum(created.values()) == 4
    assert sum(reported.values()) >= 4
    assert 0 < samples(harness, "tensile_pod_creation_duration_seconds_sum")[A] < 60
    assert samples(harness, "controller_runtime_reconcile_time_seconds_count")["pod"] >= 4
    assert samples(harness, "workqueue_adds_total")[A] >= samples(harness, "workqueue_depth")[A]
    assert set(samples(harness, "tensile_certificate_expiration_timestamp_seconds")) >= {"upper", A}
    assert samples(harness, "tensile_node_real_allocatable")[A] > 0
    assert samples(harness, "tensile_node_advertised_allocatable")[A] > 0


async def test_a_lower_pod_has_the_owners_marks_and_the_namespace_as_its_controller(harness: EngineHarness) -> None:
    """It has no owner reference of the upper cluster, and its tripped labels are in an annotation."""
    name, pod = next(iter((await running(harness)).items()))
    site = harness.sites[where(harness, pod)]
    lower_object = await site.read(harness.pod_path(name))
    space = await site.read(f"/api/v1/namespaces/{harness.namespace}")
    meta = lower_object["metadata"]
    assert meta["labels"] == {
        "app": "web",
        "pod-template-hash": pod["metadata"]["labels"]["pod-template-hash"],
        VIRTUAL_POD: "true",
        OWNER: harness.owner.mark,
    }
    marks = {OWNER_NAME: harness.namespace, UPPER_UID: pod["metadata"]["uid"], "note": "kept"}
    assert {key: meta["annotations"].get(key) for key in marks} == marks
    assert json.loads(meta["annotations"][TRIPPED_LABELS]) == {TRIPPED: "gang"}
    (owner,) = meta["ownerReferences"]
    assert owner == {
        "apiVersion": "v1",
        "kind": "Namespace",
        "name": harness.namespace,
        "uid": space["metadata"]["uid"],
        "controller": True,
    }
    spec = lower_object["spec"]
    assert spec["nodeName"] != pod["spec"]["nodeName"]
    assert "nodeSelector" not in spec
    assert [one["key"] for one in spec["tolerations"] if "virtual" in one["key"]] == []
    assert spec["containers"][0]["readinessProbe"] == pod["spec"]["containers"][0]["readinessProbe"]
    assert spec["volumes"] == pod["spec"]["volumes"], "the lower cluster fills the volume for the token with its own"
    assert spec["serviceAccountName"] == "default"


async def test_upper_pods_tolerate_failed_nodes_indefinitely_and_lower_pods_300_seconds(harness: EngineHarness) -> None:
    """Upper pods therefore survive an engine that does not run."""
    name, pod = next(iter((await running(harness)).items()))
    pod = await harness.upper.until(harness.pod_path(name), lambda one: _limits(one) == {None})
    lower_object = await harness.sites[where(harness, pod)].read(harness.pod_path(name))
    assert _limits(lower_object) == {300}


def _limits(pod: Manifest) -> set[int | None]:
    """Return for how long a pod tolerates a node that is not ready or unreachable, None for indefinitely."""
    lapses = [one for one in pod["spec"]["tolerations"] if one.get("key", "").startswith("node.kubernetes.io/")]
    assert len(lapses) == 2
    return {one.get("tolerationSeconds") for one in lapses}


async def test_kubectl_logs_returns_the_log_of_the_lower_container(harness: EngineHarness) -> None:
    """The options --tail and --timestamps work too."""
    name, pod = next(iter((await running(harness)).items()))
    log = harness.sites[where(harness, pod)].logs / harness.namespace / name / "main.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("2026-01-01T00:00:00Z stdout F first\n2026-01-01T00:00:01Z stdout F second\n")
    done = await harness.kubectl("logs", name, "--tail=1", "--timestamps")
    assert done == (0, "2026-01-01T00:00:01.000000000Z second\n", "")
    assert (await harness.kubectl("logs", name)).out == "first\nsecond\n"


async def test_kubectl_exec_runs_a_command_in_the_lower_container(harness: EngineHarness) -> None:
    """Input, output, errors and the exit code are transferred."""
    name = next(iter(await running(harness)))
    done = await harness.kubectl("exec", "-i", name, "--", "sh", "-c", "cat; echo bad >&2; exit 3", stdin="typed\n")
    assert (done.code, done.out) == (3, "typed\n")
    assert done.err.startswith("bad\n")
    assert "exit code 3" in done.err


async def test_edits_of_a_config_map_and_a_secret_reach_both_lowers(harness: EngineHarness) -> None:
    """Removed keys are removed from the copies too."""
    fresh = b64encode(b"changed").decode()
    await harness.upper.patch(harness.path("configmaps", "settings"), {"data": {"greeting": None, "parting": "bye"}})
    await harness.upper.patch(harness.path("secrets", "password"), {"data": {"PASSWORD": fresh}})
    for lower in harness.nodes:
        site = harness.sites[lower]
        await site.until(harness.path("configmaps", "settings"), lambda one: one["data"] == {"parting": "bye"})
        await site.until(harness.path("secrets", "password"), lambda one: one["data"] == {"PASSWORD": fresh})


async def test_a_quiet_engine_repeats_no_write_after_a_restart(harness: EngineHarness) -> None:
    """A new engine finds every object up to date, and kubectl exec works again."""
    await running(harness)
    await harness.wait_idle()
    await harness.stop()
    await harness.mark_audit_logs()
    await harness.start()
    await harness.wait_idle()
    assert await harness.unexpected_attempts() == []
    name = next(iter(await running(harness)))
    assert (await harness.kubectl("exec", name, "--", "echo", "there")).out == "there\n"


async def test_copies_are_deleted_with_the_last_pod_that_refers_to_them(harness: EngineHarness) -> None:
    """The upper ConfigMap and Secret are kept."""
    scale = harness.path("deployments", "web", api=APPS)
    await harness.upper.patch(scale, {"spec": {"replicas": 0}})
    await running(harness, 0)
    for lower in harness.nodes:
        site = harness.sites[lower]
        await site.gone(harness.path("configmaps", "settings"), harness.path("secrets", "password"))
        assert (await site.read(harness.path("pods")))["items"] == []
    assert (await harness.upper.read(harness.path("configmaps", "settings")))["data"] == {"parting": "bye"}


async def test_a_deployment_is_scaled_up_again_and_its_deletion_leaves_no_copies(harness: EngineHarness) -> None:
    """Only the ConfigMap that Kubernetes creates in every namespace is left in the lower clusters."""
    deployment = harness.path("deployments", "web", api=APPS)
    await harness.upper.patch(deployment, {"spec": {"replicas": 2}})
    await running(harness, 2)
    await harness.upper.delete(f"{deployment}?propagationPolicy=Background")
    await running(harness, 0)
    for lower in harness.nodes:
        for plural in ("pods", "secrets"):
            await harness.sites[lower].until_all(harness.path(plural), lambda found: not found)
        copies = await harness.sites[lower].until_all(harness.path("configmaps"), lambda found: len(found) == 1)
        assert set(copies) == {"kube-root-ca.crt"}


async def test_a_deleted_upper_pod_ends_with_the_grace_period_of_the_request(harness: EngineHarness) -> None:
    """The upper pod is Terminating until the lower pod, which gets the same grace period, is deleted."""
    site = harness.sites[A]
    made = await harness.run_pod("graceful", {"terminationGracePeriodSeconds": 45})
    hold = {"metadata": {"finalizers": ["e2e.example.com/hold"]}}
    ending = asyncio.create_task(
        site.until(harness.pod_path("graceful"), lambda one: "deletionTimestamp" in one["metadata"])
    )  # before the deletion: the lower node sets the grace period to zero as soon as it sees it
    await site.patch(harness.pod_path("graceful"), hold)
    await harness.upper.delete(harness.pod_path("graceful"), 17)
    lower_object = await ending
    assert lower_object["metadata"]["deletionGracePeriodSeconds"] == 17
    upper_object = await harness.upper.read(harness.pod_path("graceful"))
    assert upper_object["metadata"]["uid"] == made["metadata"]["uid"]
    assert "deletionTimestamp" in upper_object["metadata"]
    await site.patch(harness.pod_path("graceful"), {"metadata": {"finalizers": None}})
    await harness.upper.gone(harness.pod_path("graceful"))
    assert await site.read(harness.pod_path("graceful")) == {}
