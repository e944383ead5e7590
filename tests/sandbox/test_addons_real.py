"""Tests of a sandbox with addons and the engine: volumes, usage, autoscaling and Jobs through virtual nodes."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from sandbox_waiting import until

from bench.kit.child_processes import engine
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

pytestmark = pytest.mark.real

LOWER = "lower-a"
LIMIT = 90.0
ON_VIRTUAL_NODES = "tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}]"
DATABASE = f"""
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: db}}
spec:
  replicas: 2
  serviceName: db
  selector: {{matchLabels: {{app: db}}}}
  template:
    metadata: {{labels: {{app: db}}}}
    spec:
      {ON_VIRTUAL_NODES}
      containers:
      - {{name: main, image: db, volumeMounts: [{{name: data, mountPath: /data}}]}}
  volumeClaimTemplates:
  - metadata: {{name: data}}
    spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}
"""
BUSY = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: busy}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: busy}}}}
  template:
    metadata:
      labels: {{app: busy}}
      annotations: {{sandbox.tensile-kube.io/usage-cpu: 90m, sandbox.tensile-kube.io/usage-memory: 48Mi}}
    spec:
      {ON_VIRTUAL_NODES}
      containers:
      - {{name: main, image: web, resources: {{requests: {{cpu: 100m}}}}}}
"""
AUTOSCALER = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: busy}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: busy}
  maxReplicas: 3
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 30}}}
"""
JOBS = f"""
apiVersion: batch/v1
kind: CronJob
metadata: {{name: tick}}
spec:
  schedule: "* * * * *"
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          {ON_VIRTUAL_NODES}
          containers: [{{name: main, image: job}}]
---
apiVersion: batch/v1
kind: Job
metadata: {{name: once}}
spec:
  completions: 2
  template:
    spec:
      restartPolicy: OnFailure
      {ON_VIRTUAL_NODES}
      containers: [{{name: main, image: job}}]
---
apiVersion: batch/v1
kind: Job
metadata: {{name: long}}
spec:
  template:
    metadata:
      annotations: {{sandbox.tensile-kube.io/duration: 1h}}
    spec:
      restartPolicy: Never
      {ON_VIRTUAL_NODES}
      containers: [{{name: main, image: job}}]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox of one lower cluster with addons, the engine on the sandbox's own topology, and all workloads."""
    directory = tmp_path_factory.mktemp("addons")
    with Sandbox.start(directory / "sandbox", Options(lowers=1, nodes=2, addons=True)) as sandbox:
        child = engine(sandbox, directory / "engine.log")
        try:
            done(sandbox.kubectl("wait", "--for=create", f"node/{LOWER}", "--timeout=60s"))
            for manifest in (JOBS, DATABASE, BUSY, AUTOSCALER):
                done(sandbox.kubectl("apply", "-f", "-", stdin=manifest))
            yield sandbox
        finally:
            child.stop()


def done(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a command, which must succeed."""
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def get(place: Sandbox, *what: str, cluster: str = "upper") -> dict[str, Any]:
    """Return an object or a list, or nothing if there is none."""
    completed = place.kubectl("get", *what, "-o", "json", cluster=cluster)
    return json.loads(completed.stdout) if completed.returncode == 0 else {}


def top(place: Sandbox, *what: str, cluster: str = "upper") -> dict[str, list[str]]:
    """Return the output of `kubectl top`, by name."""
    completed = place.kubectl("top", *what, "--no-headers", cluster=cluster)
    return {line.split()[0]: line.split()[1:] for line in completed.stdout.splitlines()}


def test_a_job_completes_unless_its_pods_have_a_longer_duration(place: Sandbox) -> None:
    """A Job of two pods completes, and one whose pods have a duration of an hour is still active then."""
    done(place.kubectl("wait", "--for=condition=complete", "job/once", "--timeout=60s"))
    assert get(place, "job", "once")["status"]["succeeded"] == 2
    done(place.kubectl("wait", "--for=condition=Ready", "pod", "-l", "job-name=long", "--timeout=60s"))
    assert get(place, "job", "long")["status"]["active"] == 1


def test_a_stateful_set_gets_its_volumes(place: Sandbox) -> None:
    """The default class of each cluster provides them: the claims are bound in both clusters, and both pods run."""
    done(place.kubectl("rollout", "status", "statefulset/db", "--timeout=60s"))
    for cluster in ("upper", LOWER):
        claims = get(place, "pvc", cluster=cluster)["items"]
        assert [(one["metadata"]["name"], one["status"]["phase"]) for one in claims] == [
            ("data-db-0", "Bound"),
            ("data-db-1", "Bound"),
        ]


def test_a_claim_is_expanded_and_its_volume_is_deleted_with_it(place: Sandbox) -> None:
    """The expansion reaches the lower cluster and its status the upper one; both have no volume after the deletion."""
    larger = json.dumps({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    done(place.kubectl("patch", "pvc", "data-db-0", "--type=merge", "-p", larger))
    until(lambda: get(place, "pvc", "data-db-0")["status"]["capacity"]["storage"] == "2Gi", "the size", LIMIT)
    done(place.kubectl("delete", "statefulset/db", "pvc/data-db-0", "pvc/data-db-1", "--timeout=60s"))
    for cluster in ("upper", LOWER):
        until(lambda one=cluster: not get(place, "pv", cluster=one)["items"], "no volume", LIMIT)


def test_kubectl_top_shows_pods_and_nodes(place: Sandbox) -> None:
    """Both clusters show the same usage, because the engine forwards the usage of an annotation unchanged."""
    until(lambda: top(place, "pod", "-l", "app=busy"), "usage of pods", LIMIT)
    for cluster in ("upper", LOWER):
        shown = top(place, "pod", "-l", "app=busy", cluster=cluster)
        assert shown
        assert all(row == ["90m", "48Mi"] for row in shown.values())
    until(lambda: top(place, "node"), "usage of nodes", LIMIT)
    assert set(top(place, "node")) == {LOWER}
    assert set(top(place, "node", cluster=LOWER)) == {"lower-a-node-1", "lower-a-node-2"}


def test_an_autoscaler_adds_pods(place: Sandbox) -> None:
    """The pods use 90% of their request and the target is 30%, so the replicas grow to their maximum."""
    until(lambda: get(place, "deployment", "busy")["spec"]["replicas"] == 3, "three replicas", LIMIT)
    done(place.kubectl("rollout", "status", "deployment/busy", "--timeout=60s"))


def test_a_cron_job_runs(place: Sandbox) -> None:
    """Its Job completes once the schedule of every minute makes it due."""
    until(lambda: get(place, "cronjob", "tick")["status"].get("lastSuccessfulTime"), "a successful Job", LIMIT)


def test_a_namespace_is_deleted_while_the_metrics_api_is_served(place: Sandbox) -> None:
    """The namespace controller calls every API of the cluster first, including the metrics API."""
    done(place.kubectl("create", "namespace", "brief"))
    done(place.kubectl("delete", "namespace", "brief", "--timeout=30s"))


def test_killed_addons_are_restarted(place: Sandbox) -> None:
    """Usage is shown again after a restart of the addons."""
    place.kill("upper", "addons")
    place.restart("upper", "addons")
    until(lambda: top(place, "pod", "-l", "app=busy"), "usage of pods", LIMIT)
