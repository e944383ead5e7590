"""Tests of `tensile explain` for pods, nodes, Services and claims: its sentence names the real cause."""

import asyncio

import orjson
import pytest
import pytest_asyncio
from enginekit import LOWERS, A, B, Edit, EngineHarness
from sitekit import Manifest, condition_of

from tensile.diagnostics import commands
from tensile.engine.lower import ClusterAccess
from tensile.errors import TensileError
from tensile.names import MIRRORED
from tensile.reconcile.pods.scheduling import NOT_READY

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


async def explained(harness: EngineHarness, name: str, output: str = "text", *edits: Edit) -> str:
    """Run `explain` for a pod of the namespace, with an administrator's kubeconfigs."""
    topology, cluster_access = harness.topology(*edits), ClusterAccess(harness.sandbox.directory)
    return await asyncio.to_thread(commands.explain, topology, cluster_access, name, harness.namespace, output)


@pytest_asyncio.fixture(autouse=True, scope="module", loop_scope="module")
async def nodes(harness: EngineHarness) -> None:
    """Wait until the virtual nodes have lost the not-ready taint, with which each new node starts."""
    for node in harness.nodes.values():
        await harness.upper.until(
            f"/api/v1/nodes/{node}",
            lambda one: not any(taint["key"] == NOT_READY for taint in one["spec"].get("taints") or ()),
        )


async def why(harness: EngineHarness, name: str) -> str:
    """Return the sentence about a pod."""
    return str(orjson.loads(await explained(harness, name, "json"))["why"])


async def waits(harness: EngineHarness, name: str) -> Manifest:
    """Wait until the upper scheduler reports that it has no node for a pod."""
    return await harness.upper.until(
        harness.pod_path(name), lambda pod: condition_of(pod, "PodScheduled").get("status") == "False"
    )


async def waits_below(harness: EngineHarness, name: str) -> Manifest:
    """Wait until the scheduler of lower-a reports that it has no node for a pod."""
    return await harness.sites[A].until(
        harness.pod_path(name), lambda pod: condition_of(pod, "PodScheduled").get("status") == "False"
    )


async def unmirrored(harness: EngineHarness, name: str, reason: str) -> Manifest:
    """Wait until the engine reports why a pod is not mirrored."""
    return await harness.upper.until(
        harness.pod_path(name), lambda pod: condition_of(pod, MIRRORED).get("reason") == reason
    )


def spec_requesting(**requests: str) -> Manifest:
    """Return the spec of a pod that requests resources."""
    return {"containers": [{"name": "main", "image": "app:1", "resources": {"requests": requests}}]}


async def free(harness: EngineHarness, name: str, spec: Manifest) -> None:
    """Create a pod that the upper scheduler may bind to a node of this topology."""
    template = harness.template({"app": name}, spec)
    await harness.upper.create(harness.path("pods"), {"metadata": {"name": name}, "spec": template["spec"]})


async def test_explain_names_the_taint_that_a_pod_does_not_tolerate(harness: EngineHarness) -> None:
    """The text also advises to add a toleration or the label."""
    await free(harness, "intolerant", {"tolerations": []})
    await waits(harness, "intolerant")
    taint = "node(s) had untolerated taint(s) (taint virtual-kubelet.io/provider=k8s:NoSchedule)"
    assert f"no virtual node accepts it: {taint}" in await why(harness, "intolerant")
    assert "\n-> add a toleration of the taint to the pod, or label it" in await explained(harness, "intolerant")


async def test_explain_reports_that_a_pod_is_larger_than_every_lower_node(harness: EngineHarness) -> None:
    """The lower cluster has enough cpu in sum, but not on one node."""
    await harness.bind("large", spec_requesting(cpu="40"))
    await waits_below(harness, "large")
    assert await why(harness, "large") == (f"in {A} it waits for a node: 0/3 nodes are available: 3 Insufficient cpu.")


async def test_explain_names_a_missing_config_map(harness: EngineHarness) -> None:
    """The text also contains the Event about it."""
    pod = await harness.bind("unready", {"volumes": [{"name": "v", "configMap": {"name": "nowhere"}}]})
    message = await harness.wait_for_event(pod, "ConfigMapNotFound")
    await unmirrored(harness, "unready", "ConfigMapNotFound")
    found = await why(harness, "unready")
    assert found.startswith(f"it is not created in {A}: ConfigMapNotFound: ConfigMap {harness.namespace}/nowhere")
    assert f"Warning ConfigMapNotFound: {message}" in await explained(harness, "unready")


async def test_explain_names_the_lower_quota_that_denies_a_pod(harness: EngineHarness) -> None:
    """The sentence is the lower cluster's message, and the table shows what the pod requests of the quota."""
    await harness.run_pod("first", spec_requesting(cpu="1"))
    quota = {"metadata": {"name": "tight"}, "spec": {"hard": {"requests.cpu": "1"}}}
    await harness.sites[A].create(harness.path("resourcequotas"), quota)
    path = harness.path("resourcequotas", "tight")
    await harness.sites[A].until(path, lambda one: one["status"].get("used", {}).get("requests.cpu"))
    try:
        await harness.bind("denied", spec_requesting(cpu="2"))
        await harness.upper.until(harness.pod_path("denied"), lambda pod: condition_of(pod, MIRRORED))
        text = await explained(harness, "denied")
        assert "exceeded quota: tight" in text.splitlines()[0]
        assert "tight: requests.cpu: 2 asked" in text
    finally:
        await harness.sites[A].delete(path)


async def test_explain_reports_an_unreachable_lower_cluster_and_still_shows_the_other(harness: EngineHarness) -> None:
    """The state of the pod is unknown, because the kubeconfig of its lower cluster is missing."""
    await harness.run_pod("away")
    text = await explained(harness, "away", "json", lambda file: file["lowers"][0].update(kubeconfig="gone.kubeconfig"))
    found = orjson.loads(text)
    assert found["why"].startswith(f"its state in {A} is unknown: ")
    assert "gone.kubeconfig" in found["why"]
    assert [one["below"] is None for one in found["lowers"]] == [True, False]


async def test_explain_names_the_lower_node_of_a_running_pod(harness: EngineHarness) -> None:
    """The text and the JSON document contain the same sentence."""
    await harness.run_pod("fine", spec_requesting(cpu="1"), B)
    text, document = await asyncio.gather(explained(harness, "fine"), explained(harness, "fine", "json"))
    found = orjson.loads(document)
    place = found["lowers"][1]["pod"]["node"]
    assert found["why"] == f"in {B} it is on node {place}"
    assert found["pod"] == {
        "namespace": harness.namespace,
        "name": "fine",
        "phase": "Running",
        "node": harness.nodes[B],
    }
    assert [one["name"] for one in found["lowers"]] == list(LOWERS)
    assert text.startswith(
        f"Pod {harness.namespace}/fine is Running on virtual node {harness.nodes[B]}: {found['why']}.\n"
    )


async def test_explain_of_a_missing_pod_advises_to_check_its_name_or_its_namespace(harness: EngineHarness) -> None:
    """If another namespace has a pod of that name, the error names that namespace."""
    with pytest.raises(TensileError, match=f"^upper: there is no pod {harness.namespace}/nobody: check the name"):
        await explained(harness, "nobody")
    with pytest.raises(TensileError, match=f"there is one in namespace {harness.namespace}: name that with -n"):
        await other(harness, "", "fine", "kube-public")


async def other(harness: EngineHarness, word: str, *arguments: str) -> str:
    """Run `explain` for an object of another kind ("": a pod), with an administrator's kubeconfigs."""
    topology, cluster_access = harness.topology(), ClusterAccess(harness.sandbox.directory)
    explain = getattr(commands, f"explain_{word}") if word else commands.explain
    return str(await asyncio.to_thread(explain, topology, cluster_access, *arguments, "text"))


async def test_explain_node_shows_conditions_and_refuses_unknown_nodes(harness: EngineHarness) -> None:
    """The error for a node that is not of this topology lists the nodes that are."""
    node = harness.nodes[A]
    text = await other(harness, "node", node)
    assert text.startswith(f"Node {node}: it is Ready with ")
    assert "\nLowerReachable" in text
    assert text.splitlines()[-1].startswith("-> nothing has to be done")
    with pytest.raises(TensileError, match="explain node strange: it does not exist; there are: "):
        await other(harness, "node", "strange")


async def test_explain_service_reports_endpoints_and_their_absence(harness: EngineHarness) -> None:
    """A Service is explained without pods, with a pod in a lower cluster, and if it does not exist."""
    spec = {"selector": {"app": "explained"}, "ports": [{"port": 80}]}
    await harness.upper.create(harness.path("services"), {"metadata": {"name": "explained"}, "spec": spec})
    text = await other(harness, "service", f"{harness.namespace}/explained", harness.namespace)
    assert f": no pod of namespace {harness.namespace} has the labels app=explained.\n" in text
    await harness.run_pod("explained", labels={"app": "explained"})
    slices = harness.path("endpointslices", api="apis/discovery.k8s.io/v1")
    await harness.sites[A].until_all(f"{slices}?labelSelector=kubernetes.io/service-name=explained", _has_ready)
    text = await other(harness, "service", "explained", harness.namespace)
    assert f": it has ready endpoints, and its copy serves pods in {A}" in text
    with pytest.raises(TensileError, match=f"upper: there is no service {harness.namespace}/gone"):
        await other(harness, "service", "gone", harness.namespace)


async def test_explain_claim_names_a_missing_storage_class(harness: EngineHarness) -> None:
    """The advice is to create the class, or the claim with another one."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "nowhere",
    }
    await harness.upper.create(harness.path("persistentvolumeclaims"), {"metadata": {"name": "data"}, "spec": spec})
    text = await other(harness, "claim", "data", harness.namespace)
    assert ": StorageClass nowhere does not exist in the upper cluster.\n" in text
    assert text.splitlines()[-1] == "-> create it, or create the claim again with another one"
    await harness.upper.delete(harness.path("persistentvolumeclaims", "data"))


def _has_ready(slices: dict[str, Manifest]) -> bool:
    """Report whether any endpoint is ready."""
    return any(one["conditions"].get("ready") for part in slices.values() for one in part.get("endpoints") or ())
