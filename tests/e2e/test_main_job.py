"""The main job: a Deployment above runs below with all that it needs, answers kubectl, follows edits, and goes."""

import asyncio
import json
from base64 import b64encode
from collections import Counter

import pytest
from enginekit import A, Ground
from prometheus_client.parser import text_string_to_metric_families
from sitekit import Manifest, is_ready, phase_of

from tensile.engine.metrics import Metrics, readings
from tensile.names import OWNER, OWNER_NAME, TRIPPED_LABELS, UPPER_UID, VIRTUAL_POD

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

APPS = "apis/apps/v1"
TRIPPED = "pod-group.scheduling.sigs.k8s.io"
PROBE = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 5}


def workload(ground: Ground) -> Manifest:
    """Make a Deployment of four pods with most of what a container can have."""
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
    template = ground.template(labels, parts, annotations={"note": "kept"})
    spec = {"replicas": 4, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    return {"metadata": {"name": "web"}, "spec": spec}


async def running(ground: Ground, count: int = 4, selector: str = "app%3Dweb") -> dict[str, Manifest]:
    """Wait until so many pods of the Deployment are ready above, and give them."""
    return await ground.upper.until_all(
        f"{ground.path('pods')}?labelSelector={selector}",
        lambda pods: len(pods) == count and all(is_ready(pod) for pod in pods.values()),
    )


def where(ground: Ground, pod: Manifest) -> str:
    """Return in which lower a pod runs."""
    return next(lower for lower, node in ground.nodes.items() if node == pod["spec"]["nodeName"])


@pytest.fixture(scope="module")
def secret() -> str:
    """Return what is secret."""
    return b64encode(b"hidden").decode()


def samples(ground: Ground, name: str) -> Counter[str]:
    """Return the sum of a metric of the engine by the label `lower`, `controller` or `name`."""
    text = Metrics(readings(ground.engine)).text().decode()
    found = [one for family in text_string_to_metric_families(text) for one in family.samples if one.name == name]
    sums: Counter[str] = Counter()
    for one in found:
        sums[next(one.labels[key] for key in ("lower", "controller", "name") if key in one.labels)] += one.value
    return sums


async def test_a_deployment_runs_below_with_all_that_it_refers_to(ground: Ground, secret: str) -> None:
    """Four pods become ready above because four run below, with the ConfigMap and the Secret beside them."""
    await ground.upper.create(
        ground.path("configmaps"), {"metadata": {"name": "settings"}, "data": {"greeting": "hello"}}
    )
    await ground.upper.create(ground.path("secrets"), {"metadata": {"name": "password"}, "data": {"PASSWORD": secret}})
    await ground.upper.create(ground.path("deployments", api=APPS), workload(ground))
    pods = await running(ground)
    assert {where(ground, pod) for pod in pods.values()} == set(ground.nodes), "the scheduler uses both nodes"
    for name, pod in pods.items():
        lower = ground.sites[where(ground, pod)]
        below = await lower.read(ground.pod_path(name))
        assert phase_of(below) == "Running"
        assert pod["status"]["podIP"] == below["status"]["podIP"]
        assert pod["status"]["hostIP"] == below["status"]["hostIP"]
        assert pod["status"]["containerStatuses"] == below["status"]["containerStatuses"]
        settings = await lower.read(ground.path("configmaps", "settings"))
        password = await lower.read(ground.path("secrets", "password"))
        assert settings["data"] == {"greeting": "hello"}
        assert password["data"] == {"PASSWORD": secret}


async def test_the_engine_tells_how_long_that_took(ground: Ground) -> None:
    """Each of the four pods was created once and is running, and nothing takes longer than the pods did."""
    created = samples(ground, "tensile_pod_creation_duration_seconds_count")
    reported = samples(ground, "tensile_pod_status_report_duration_seconds_count")
    assert set(created) == set(reported) == set(ground.nodes)
    assert sum(created.values()) == 4
    assert sum(reported.values()) >= 4
    assert 0 < samples(ground, "tensile_pod_creation_duration_seconds_sum")[A] < 60
    assert samples(ground, "controller_runtime_reconcile_time_seconds_count")["pod"] >= 4
    assert samples(ground, "workqueue_adds_total")[A] >= samples(ground, "workqueue_depth")[A]
    assert set(samples(ground, "tensile_certificate_expiration_timestamp_seconds")) >= {"upper", A}
    assert samples(ground, "tensile_node_real_allocatable")[A] > 0
    assert samples(ground, "tensile_node_advertised_allocatable")[A] > 0


async def test_what_the_lower_pod_looks_like(ground: Ground) -> None:
    """It carries our marks, the Namespace as its controller, no owner from above, and its tripped labels aside."""
    name, pod = next(iter((await running(ground)).items()))
    site = ground.sites[where(ground, pod)]
    below = await site.read(ground.pod_path(name))
    space = await site.read(f"/api/v1/namespaces/{ground.namespace}")
    meta = below["metadata"]
    assert meta["labels"] == {
        "app": "web",
        "pod-template-hash": pod["metadata"]["labels"]["pod-template-hash"],
        VIRTUAL_POD: "true",
        OWNER: ground.owner.mark,
    }
    marks = {OWNER_NAME: ground.namespace, UPPER_UID: pod["metadata"]["uid"], "note": "kept"}
    assert {key: meta["annotations"].get(key) for key in marks} == marks
    assert json.loads(meta["annotations"][TRIPPED_LABELS]) == {TRIPPED: "gang"}
    (owner,) = meta["ownerReferences"]
    assert owner == {
        "apiVersion": "v1",
        "kind": "Namespace",
        "name": ground.namespace,
        "uid": space["metadata"]["uid"],
        "controller": True,
    }
    spec = below["spec"]
    assert spec["nodeName"] != pod["spec"]["nodeName"]
    assert "nodeSelector" not in spec
    assert [one["key"] for one in spec["tolerations"] if "virtual" in one["key"]] == []
    assert spec["containers"][0]["readinessProbe"] == pod["spec"]["containers"][0]["readinessProbe"]
    assert spec["volumes"] == pod["spec"]["volumes"], "the lower cluster fills the volume for the token with its own"
    assert spec["serviceAccountName"] == "default"


async def test_pods_above_outlast_an_engine_that_is_down(ground: Ground) -> None:
    """A pod tolerates above for ever, and below for a while, that its node is not ready or unreachable."""
    name, pod = next(iter((await running(ground)).items()))
    pod = await ground.upper.until(ground.pod_path(name), lambda one: _limits(one) == {None})
    below = await ground.sites[where(ground, pod)].read(ground.pod_path(name))
    assert _limits(below) == {300}


def _limits(pod: Manifest) -> set[int | None]:
    """Return for how long a pod tolerates a node that is not ready or unreachable, None for ever."""
    lapses = [one for one in pod["spec"]["tolerations"] if one.get("key", "").startswith("node.kubernetes.io/")]
    assert len(lapses) == 2
    return {one.get("tolerationSeconds") for one in lapses}


async def test_logs_through_the_upper(ground: Ground) -> None:
    """`kubectl logs` gives what the container below wrote."""
    name, pod = next(iter((await running(ground)).items()))
    log = ground.sites[where(ground, pod)].logs / ground.namespace / name / "main.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("2026-01-01T00:00:00Z stdout F first\n2026-01-01T00:00:01Z stdout F second\n")
    done = await ground.kubectl("logs", name, "--tail=1", "--timestamps")
    assert done == (0, "2026-01-01T00:00:01.000000000Z second\n", "")
    assert (await ground.kubectl("logs", name)).out == "first\nsecond\n"


async def test_exec_through_the_upper(ground: Ground) -> None:
    """`kubectl exec` carries input, output, errors and the exit code of a command below."""
    name = next(iter(await running(ground)))
    done = await ground.kubectl("exec", "-i", name, "--", "sh", "-c", "cat; echo bad >&2; exit 3", stdin="typed\n")
    assert (done.code, done.out) == (3, "typed\n")
    assert done.err.startswith("bad\n")
    assert "exit code 3" in done.err


async def test_edits_of_what_a_pod_refers_to_follow(ground: Ground) -> None:
    """A change of the ConfigMap and of the Secret arrives in both lowers, and what was taken out goes."""
    fresh = b64encode(b"changed").decode()
    await ground.upper.patch(ground.path("configmaps", "settings"), {"data": {"greeting": None, "parting": "bye"}})
    await ground.upper.patch(ground.path("secrets", "password"), {"data": {"PASSWORD": fresh}})
    for lower in ground.nodes:
        site = ground.sites[lower]
        await site.until(ground.path("configmaps", "settings"), lambda one: one["data"] == {"parting": "bye"})
        await site.until(ground.path("secrets", "password"), lambda one: one["data"] == {"PASSWORD": fresh})


async def test_a_quiet_engine_writes_nothing_also_after_a_restart(ground: Ground) -> None:
    """Stopped and started again, the engine finds all as it should be: no write but leases, in any cluster."""
    await running(ground)
    await ground.calm()
    await ground.stop()
    await ground.note()
    await ground.start()
    await ground.calm()
    assert await ground.repeated() == []
    name = next(iter(await running(ground)))
    assert (await ground.kubectl("exec", name, "--", "echo", "there")).out == "there\n"


async def test_scaling_to_nothing_removes_what_was_referred_to(ground: Ground) -> None:
    """With the last pod that refers to them, the ConfigMap and the Secret go below, and stay above."""
    scale = ground.path("deployments", "web", api=APPS)
    await ground.upper.patch(scale, {"spec": {"replicas": 0}})
    await running(ground, 0)
    for lower in ground.nodes:
        site = ground.sites[lower]
        await site.gone(ground.path("configmaps", "settings"), ground.path("secrets", "password"))
        assert (await site.read(ground.path("pods")))["items"] == []
    assert (await ground.upper.read(ground.path("configmaps", "settings")))["data"] == {"parting": "bye"}


async def test_the_whole_comes_back_and_goes_with_the_deployment(ground: Ground) -> None:
    """Scaled up again it runs again; once the Deployment is deleted, nothing of it is left in any cluster."""
    deployment = ground.path("deployments", "web", api=APPS)
    await ground.upper.patch(deployment, {"spec": {"replicas": 2}})
    await running(ground, 2)
    await ground.upper.delete(f"{deployment}?propagationPolicy=Background")
    await running(ground, 0)
    for lower in ground.nodes:
        for plural in ("pods", "secrets"):
            await ground.sites[lower].until_all(ground.path(plural), lambda found: not found)
        copies = await ground.sites[lower].until_all(ground.path("configmaps"), lambda found: len(found) == 1)
        assert set(copies) == {"kube-root-ca.crt"}


async def test_a_pod_deleted_above_ends_below_with_its_grace(ground: Ground) -> None:
    """The upper pod is Terminating until the lower one is gone, which is given the grace of the request."""
    site = ground.sites[A]
    made = await ground.run_pod("graceful", {"terminationGracePeriodSeconds": 45})
    hold = {"metadata": {"finalizers": ["e2e.example.com/hold"]}}
    ending = asyncio.create_task(
        site.until(ground.pod_path("graceful"), lambda one: "deletionTimestamp" in one["metadata"])
    )  # before the deletion: the lower's node shortens the grace to nothing as soon as it sees it
    await site.patch(ground.pod_path("graceful"), hold)
    await ground.upper.delete(ground.pod_path("graceful"), 17)
    below = await ending
    assert below["metadata"]["deletionGracePeriodSeconds"] == 17
    above = await ground.upper.read(ground.pod_path("graceful"))
    assert above["metadata"]["uid"] == made["metadata"]["uid"]
    assert "deletionTimestamp" in above["metadata"]
    await site.patch(ground.pod_path("graceful"), {"metadata": {"finalizers": None}})
    await ground.upper.gone(ground.pod_path("graceful"))
    assert await site.read(ground.pod_path("graceful")) == {}
