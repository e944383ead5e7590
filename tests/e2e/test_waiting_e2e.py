"""Tests of pods for virtual nodes while no webhook is served: they run, or an Event has the reason why not."""

import pytest
from enginekit import EngineHarness
from sitekit import Manifest, is_ready

from tensile.kubelet.pods.unbound import MISSED
from tensile.names import VIRTUAL_POD

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


async def create_untolerating_pod(harness: EngineHarness, name: str, selector: dict[str, str]) -> Manifest:
    """Create a pod that no node accepts, because it tolerates no virtual node."""
    spec = {"nodeSelector": selector, "containers": [{"name": "main", "image": "app:1"}]}
    body = {"metadata": {"name": name, "labels": {VIRTUAL_POD: "true"}}, "spec": spec}
    return await harness.upper.create(harness.path("pods"), body)


async def test_a_labelled_pod_without_tolerations_gets_them_from_the_engine(harness: EngineHarness) -> None:
    """The scheduler then binds it to a virtual node."""
    await create_untolerating_pod(harness, "plain", {"e2e": harness.mark})
    pod = await harness.upper.until(harness.pod_path("plain"), is_ready)
    assert pod["spec"]["nodeName"] in harness.nodes.values()


async def test_a_pod_with_requirements_for_lower_nodes_gets_an_event_with_the_reason(harness: EngineHarness) -> None:
    """Its nodeSelector cannot be changed after its creation, so only the webhook could have moved it."""
    pod = await create_untolerating_pod(harness, "picky", {"e2e": harness.mark, "gpu": "a100"})
    assert "webhook.enabled" in await harness.wait_for_event(pod, MISSED)
    found = await harness.upper.read(harness.pod_path("picky"))
    assert "nodeName" not in found["spec"]
