"""Tests of a lower that is disconnected from the engine: after a limit its pods run elsewhere, and only there."""

from pathlib import Path
from typing import Any

import pytest
from enginekit import A, B, Ground, edit_lower, polled, standing
from sitekit import Manifest, condition_of, is_ready

from bench.speed.isolation import Detour, detour
from tensile.names import UNREACHABLE_TAINT
from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real

LONG = 60.0
"""Seconds of absence: more than the forty after which pods are unready, and than the limit of PATIENT."""
PATIENT = edit_lower(A, unreachable={"evictAfter": "1s"})
APPS = "apis/apps/v1"


class Way:
    """A detour to a lower of a ground, as a context manager."""

    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        self._open = detour(sandbox, A, directory)
        self.detour: Detour

    async def __aenter__(self) -> None:
        self.detour = await self._open.__aenter__()

    async def __aexit__(self, *reason: object) -> None:
        await self._open.__aexit__(*reason)  # type: ignore[arg-type]


def on(pods: dict[str, Manifest], node: str) -> list[Manifest]:
    """Return the pods that are bound to a node, are not being deleted, and are Ready."""
    living = [pod for pod in pods.values() if "deletionTimestamp" not in pod["metadata"]]
    return [pod for pod in living if pod["spec"].get("nodeName") == node and is_ready(pod)]


async def deployed(ground: Ground) -> Manifest:
    """Run a Deployment of one pod in the first lower, while the other one is cordoned, and return the pod."""
    labels = {"app": "web"}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": ground.template(labels)}
    await ground.upper.create(ground.path("deployments", api=APPS), {"metadata": {"name": "web"}, "spec": spec})
    pods = await ground.upper.until_all(ground.path("pods"), lambda found: on(found, ground.nodes[A]))
    (pod,) = pods.values()
    await ground.reload(PATIENT)
    return pod


async def below(ground: Ground, lower: str) -> list[Manifest]:
    """Return the pods of the namespace in a lower."""
    found: list[Manifest] = (await ground.sites[lower].read(ground.path("pods")))["items"]
    return found


async def test_an_evicted_pod_runs_elsewhere_and_is_removed_once_its_cluster_is_reachable(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """The upper pod is terminating while it may still run, and its replacement stays the only pod."""
    way = Way(sandbox, tmp_path)
    async with standing(sandbox, tmp_path, PATIENT, edit_lower(B, maintenance="cordon"), way=way) as ground:
        old = await deployed(ground)
        (copy,) = await below(ground, A)
        await way.detour.part()
        await polled(lambda: ground.engine.clusters.fleet[A].silent)
        ground.ahead = LONG
        pods = await ground.upper.until_all(ground.path("pods"), lambda found: on(found, ground.nodes[B]))
        left = pods[old["metadata"]["name"]]
        assert left["metadata"]["uid"] == old["metadata"]["uid"]
        assert condition_of(left, "DisruptionTarget")["reason"] == "LowerUnreachable"
        assert left["status"]["phase"] == "Running"
        assert [pod["metadata"]["uid"] for pod in await below(ground, A)] == [copy["metadata"]["uid"]]
        way.detour.mend()
        await ground.sites[A].until_all(ground.path("pods"), lambda found: not found)
        await ground.upper.gone(ground.pod_path(old["metadata"]["name"]))
        node = f"/api/v1/nodes/{ground.nodes[A]}"
        taints = await ground.upper.until(node, lambda found: UNREACHABLE_TAINT not in str(found["spec"]))
        assert not taints["spec"].get("unschedulable")
        (only,) = await below(ground, B)
        assert is_ready(only)


async def pinned(ground: Ground, lower: str) -> None:
    """Run a Deployment of one pod in a lower."""
    await made_by(ground, "deployments", "pinned", lower)
    await ground.upper.until_all(ground.path("pods"), lambda found: on(found, ground.nodes[lower]))


async def made_by(ground: Ground, plural: str, name: str, lower: str, **spec: Any) -> None:
    """Create a workload that has one pod in a lower."""
    labels = {"app": name}
    template = ground.template(labels, {"nodeSelector": {"kubernetes.io/hostname": ground.nodes[lower]}})
    whole = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template, **spec}
    await ground.upper.create(ground.path(plural, api=APPS), {"metadata": {"name": name}, "spec": whole})


def names(pods: list[Manifest]) -> set[str]:
    """Return the names of pods without the suffix that a Deployment adds."""
    return {pod["metadata"]["name"].partition("-")[0] for pod in pods}


async def test_an_engine_that_starts_creates_no_second_pod_of_a_name_before_a_lower_is_listed(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """The old pod may run in the lower that has not responded yet; pods with generated names do not wait."""
    way = Way(sandbox, tmp_path)
    async with standing(sandbox, tmp_path, way=way) as ground:
        await made_by(ground, "statefulsets", "web", A, serviceName="web", updateStrategy={"type": "OnDelete"})
        old = (await ground.upper.until(ground.pod_path("web-0"), is_ready))["metadata"]["uid"]
        await ground.stop()
        selector = {"kubernetes.io/hostname": ground.nodes[B]}
        moved = {"spec": {"template": {"spec": {"nodeSelector": selector}}}}
        await ground.upper.patch(ground.path("statefulsets", "web", api=APPS), moved)
        await ground.upper.delete(ground.pod_path("web-0"), 0)
        await ground.upper.until(
            ground.pod_path("web-0"), lambda pod: pod["metadata"]["uid"] != old and pod["spec"].get("nodeName")
        )
        await way.detour.part()
        await ground.start(await_nodes=False)
        await pinned(ground, B)
        assert (names(await below(ground, A)), names(await below(ground, B))) == ({"web"}, {"pinned"})
        way.detour.mend()
        await ground.upper.until(ground.pod_path("web-0"), is_ready)
        assert (names(await below(ground, A)), names(await below(ground, B))) == (set(), {"pinned", "web"})
        await ground.upper.delete(ground.path("statefulsets", "web", api=APPS))
