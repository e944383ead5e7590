"""Pods that ask for a virtual node while no webhook is served: they come to run, or it is said why they do not."""

import pytest
from enginekit import Ground
from sitekit import Manifest, is_ready

from tensile.kubelet.pods.unbound import MISSED
from tensile.names import VIRTUAL_POD

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


async def asked(ground: Ground, name: str, selector: dict[str, str]) -> Manifest:
    """Create a pod that the scheduler finds no node for, as it tolerates no virtual node."""
    spec = {"nodeSelector": selector, "containers": [{"name": "main", "image": "app:1"}]}
    body = {"metadata": {"name": name, "labels": {VIRTUAL_POD: "true"}}, "spec": spec}
    return await ground.upper.create(ground.path("pods"), body)


async def test_a_pod_without_tolerations_comes_to_run(ground: Ground) -> None:
    """The engine adds what it lacks, and the scheduler takes it up."""
    await asked(ground, "plain", {"e2e": ground.mark})
    pod = await ground.upper.until(ground.pod_path("plain"), is_ready)
    assert pod["spec"]["nodeName"] in ground.nodes.values()


async def test_a_pod_that_asks_for_lower_nodes_is_told_why_it_waits(ground: Ground) -> None:
    """What it asks for cannot be changed any more."""
    pod = await asked(ground, "picky", {"e2e": ground.mark, "gpu": "a100"})
    assert "webhook.enabled" in await ground.told(pod, MISSED)
    found = await ground.upper.read(ground.pod_path("picky"))
    assert "nodeName" not in found["spec"]
