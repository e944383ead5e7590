"""Tests of a lower that is disconnected from the engine: after a limit its pods run elsewhere, and only there."""

from pathlib import Path
from typing import Any

import pytest
from enginekit import A, B, EngineHarness, edit_lower, running_engine, wait_until
from sitekit import Manifest, condition_of, is_ready

from bench.speed.isolation import DelayingProxy, delaying_proxy
from tensile.names import UNREACHABLE_TAINT
from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real

LONG = 60.0
"""Seconds of absence: more than the forty after which pods are unready, and than the limit of PATIENT."""
PATIENT = edit_lower(A, unreachable={"evictAfter": "1s"})
APPS = "apis/apps/v1"


class DetouredLower:
    """A detour to a lower of a harness, as a context manager."""

    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        self._open = delaying_proxy(sandbox, A, directory)
        self.detour: DelayingProxy

    async def __aenter__(self) -> None:
        self.detour = await self._open.__aenter__()

    async def __aexit__(self, *reason: object) -> None:
        await self._open.__aexit__(*reason)  # type: ignore[arg-type]


def on(pods: dict[str, Manifest], node: str) -> list[Manifest]:
    """Return the pods that are bound to a node, are not being deleted, and are Ready."""
    living = [pod for pod in pods.values() if "deletionTimestamp" not in pod["metadata"]]
    return [pod for pod in living if pod["spec"].get("nodeName") == node and is_ready(pod)]


async def deployed(harness: EngineHarness) -> Manifest:
    """Run a Deployment of one pod in the first lower, while the other one is cordoned, and return the pod."""
    labels = {"app": "web"}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": harness.template(labels)}
    await harness.upper.create(harness.path("deployments", api=APPS), {"metadata": {"name": "web"}, "spec": spec})
    pods = await harness.upper.until_all(harness.path("pods"), lambda found: on(found, harness.nodes[A]))
    (pod,) = pods.values()
    await harness.reload(PATIENT)
    return pod


async def lower_pods(harness: EngineHarness, lower: str) -> list[Manifest]:
    """Return the pods of the namespace in a lower."""
    found: list[Manifest] = (await harness.sites[lower].read(harness.path("pods")))["items"]
    return found


async def test_an_evicted_pod_runs_elsewhere_and_is_removed_once_its_cluster_is_reachable(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """The upper pod is terminating while it may still run, and its replacement stays the only pod."""
    way = DetouredLower(sandbox, tmp_path)
    async with running_engine(
        sandbox, tmp_path, PATIENT, edit_lower(B, maintenance="cordon"), before_start=way
    ) as harness:
        old = await deployed(harness)
        (copy,) = await lower_pods(harness, A)
        await way.detour.disconnect()
        await wait_until(lambda: harness.engine.clusters.fleet[A].unreachable_seconds)
        harness.clock_offset = LONG
        pods = await harness.upper.until_all(harness.path("pods"), lambda found: on(found, harness.nodes[B]))
        left = pods[old["metadata"]["name"]]
        assert left["metadata"]["uid"] == old["metadata"]["uid"]
        assert condition_of(left, "DisruptionTarget")["reason"] == "LowerUnreachable"
        assert left["status"]["phase"] == "Running"
        assert [pod["metadata"]["uid"] for pod in await lower_pods(harness, A)] == [copy["metadata"]["uid"]]
        way.detour.restore()
        await harness.sites[A].until_all(harness.path("pods"), lambda found: not found)
        await harness.upper.gone(harness.pod_path(old["metadata"]["name"]))
        node = f"/api/v1/nodes/{harness.nodes[A]}"
        taints = await harness.upper.until(node, lambda found: UNREACHABLE_TAINT not in str(found["spec"]))
        assert not taints["spec"].get("unschedulable")
        (only,) = await lower_pods(harness, B)
        assert is_ready(only)


async def pinned(harness: EngineHarness, lower: str) -> None:
    """Run a Deployment of one pod in a lower."""
    await made_by(harness, "deployments", "pinned", lower)
    await harness.upper.until_all(harness.path("pods"), lambda found: on(found, harness.nodes[lower]))


async def made_by(harness: EngineHarness, plural: str, name: str, lower: str, **spec: Any) -> None:
    """Create a workload that has one pod in a lower."""
    labels = {"app": name}
    template = harness.template(labels, {"nodeSelector": {"kubernetes.io/hostname": harness.nodes[lower]}})
    whole = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template, **spec}
    await harness.upper.create(harness.path(plural, api=APPS), {"metadata": {"name": name}, "spec": whole})


def names(pods: list[Manifest]) -> set[str]:
    """Return the names of pods without the suffix that a Deployment adds."""
    return {pod["metadata"]["name"].partition("-")[0] for pod in pods}


async def test_an_engine_that_starts_creates_no_second_pod_of_a_name_before_a_lower_is_listed(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """The old pod may run in the lower that has not responded yet; pods with generated names do not wait."""
    way = DetouredLower(sandbox, tmp_path)
    async with running_engine(sandbox, tmp_path, before_start=way) as harness:
        await made_by(harness, "statefulsets", "web", A, serviceName="web", updateStrategy={"type": "OnDelete"})
        old = (await harness.upper.until(harness.pod_path("web-0"), is_ready))["metadata"]["uid"]
        await harness.stop()
        selector = {"kubernetes.io/hostname": harness.nodes[B]}
        moved = {"spec": {"template": {"spec": {"nodeSelector": selector}}}}
        await harness.upper.patch(harness.path("statefulsets", "web", api=APPS), moved)
        await harness.upper.delete(harness.pod_path("web-0"), 0)
        await harness.upper.until(
            harness.pod_path("web-0"), lambda pod: pod["metadata"]["uid"] != old and pod["spec"].get("nodeName")
        )
        await way.detour.disconnect()
        await harness.start(await_nodes=False)
        await pinned(harness, B)
        assert (names(await lower_pods(harness, A)), names(await lower_pods(harness, B))) == ({"web"}, {"pinned"})
        way.detour.restore()
        await harness.upper.until(harness.pod_path("web-0"), is_ready)
        assert (names(await lower_pods(harness, A)), names(await lower_pods(harness, B))) == (set(), {"pinned", "web"})
        await harness.upper.delete(harness.path("statefulsets", "web", api=APPS))
