"""Tests of the projection and the status patches on real apiservers: accepted, complete, and written once."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
import yaml
from podkit import NOW, OWNER
from podviewkit import ending, lost, pending_because, unreachable, upper_status
from sitekit import Manifest, Refused, Site, phase_of

from tensile.kubelet.pods.lower_context import LowerContext
from tensile.kubelet.pods.projection import to_lower_pod
from tensile.kubelet.pods.update import ephemeral_patch, image_patch, resize_patch, toleration_patch
from tensile.reconcile.pods.scheduling import tolerations_for_upper
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

NODE = "vk-projection"
SPACE = f"projection-{uuid4().hex[:8]}"
PODS = f"/api/v1/namespaces/{SPACE}/pods"
PROVIDER = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
EVERYTHING = Path(__file__).with_name("pod_with_everything.yaml")
ROOM = {"cpu": "64", "memory": "64Gi", "pods": "500"}
RUNTIME = {"metadata": {"name": "projection"}, "handler": "runc", "overhead": {"podFixed": {"cpu": "10m"}}}
GOLD = {"metadata": {"name": "projection-gold"}, "value": 1000}


class HandMadeNode:
    """An upper cluster with a hand-made virtual node, its lower cluster, and a namespace in both."""

    def __init__(self, upper: Site, lower: Site, space: Manifest) -> None:
        self.upper = upper
        self.lower = lower
        self.place = LowerContext(
            OWNER,
            NODE,
            SPACE,
            space["metadata"]["uid"],
            ignore_selector_keys=frozenset({"clusterID"}),
            node_label_keys=frozenset({"tier"}),
            taints=(PROVIDER,),
        )

    async def bound(self, name: str, spec: Manifest | None = None, **meta: Any) -> Manifest:
        """Create an upper pod that is bound to the virtual node."""
        basis = {"nodeName": NODE, "containers": [{"name": "main", "image": "app:1"}], "tolerations": []}
        return await self.upper.create(PODS, {"metadata": {"name": name, **meta}, "spec": {**basis, **(spec or {})}})

    async def mirrored(self, upper_pod: Manifest) -> Manifest:
        """Create its lower pod, and return it when it runs."""
        made = await self.lower.create(PODS, to_lower_pod(upper_pod, self.place))
        path = f"{PODS}/{made['metadata']['name']}"
        return await self.lower.until(path, lambda found: phase_of(found) == "Running")

    async def written(self, upper_pod: Manifest, body: Manifest | None) -> Manifest:
        """Write a status body as the engine does, with the pod's UID, and return the stored pod."""
        assert body is not None
        meta = {"metadata": {"uid": upper_pod["metadata"]["uid"]}}
        path = f"{PODS}/{upper_pod['metadata']['name']}/status"
        return await self.upper.patch(path, {**body, **meta}, "strategic")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hand_made_node(sandbox: Sandbox) -> AsyncIterator[HandMadeNode]:
    """Create node, namespaces and classes, and delete them at the end."""
    upper, lower = (Site(sandbox.clusters[name]) for name in ("upper", "lower-a"))
    made = [(site, "/api/v1/namespaces", {"metadata": {"name": SPACE}}) for site in (upper, lower)]
    made += [(site, "/apis/node.k8s.io/v1/runtimeclasses", RUNTIME) for site in (upper, lower)]
    made += [(upper, "/apis/scheduling.k8s.io/v1/priorityclasses", GOLD)]
    node = {
        "metadata": {"name": NODE},
        "spec": {"taints": [PROVIDER]},
        "status": {"allocatable": ROOM, "capacity": ROOM},
    }
    made += [(upper, "/api/v1/nodes", node)]
    for site, path, body in made:
        await site.create(path, body)
    try:
        for site in (upper, lower):
            await site.until(f"/api/v1/namespaces/{SPACE}/serviceaccounts/default", bool)
        await upper.create(f"/api/v1/namespaces/{SPACE}/serviceaccounts", {"metadata": {"name": "robot"}})
        yield HandMadeNode(upper, lower, await lower.read(f"/api/v1/namespaces/{SPACE}"))
    finally:
        for site in (upper, lower):
            await site.delete(PODS, 0)
        for site, path, body in reversed(made):
            await site.delete(f"{path}/{body['metadata']['name']}")
        for site in (upper, lower):
            await site.close()


MARKED = {
    "labels": {"app": "web", "pod-template-hash": "abc"},
    "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "n"},
    "finalizers": ["example.com/hold"],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rich(hand_made_node: HandMadeNode) -> AsyncIterator[tuple[Manifest, Manifest]]:
    """Create a pod with every field, and return the stored upper pod and the running lower pod."""
    await hand_made_node.upper.create(f"/api/v1/namespaces/{SPACE}/configmaps", {"metadata": {"name": "parent"}})
    parent = await hand_made_node.upper.read(f"/api/v1/namespaces/{SPACE}/configmaps/parent")
    owner = {"name": "parent", "uid": parent["metadata"]["uid"], "controller": True}
    reference = {"apiVersion": "v1", "kind": "ConfigMap", **owner}
    upper = await hand_made_node.bound(
        "rich", yaml.safe_load(EVERYTHING.read_text()), ownerReferences=[reference], **MARKED
    )
    yield upper, await hand_made_node.mirrored(upper)
    released = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/hold"]}}
    await hand_made_node.upper.patch(f"{PODS}/rich", released, "strategic")


async def test_a_pod_with_every_field_runs_in_the_lower(rich: tuple[Manifest, Manifest]) -> None:
    """The lower apiserver accepts it, the lower scheduler finds a node, and it runs."""
    upper, lower = rich
    assert lower["spec"]["nodeName"].startswith("lower-a-node")
    assert lower["metadata"]["labels"]["app"] == "web"
    assert "finalizers" not in lower["metadata"]
    assert upper["spec"]["priority"] == 1000
    assert lower["spec"]["priority"] == 0


async def test_the_lower_apiserver_adds_no_service_account_token(rich: tuple[Manifest, Manifest]) -> None:
    """The lower pod has only the user's volumes, without the token volume of either cluster."""
    upper, lower = rich
    assert any(volume["name"].startswith("kube-api-access-") for volume in upper["spec"]["volumes"])
    assert [volume["name"] for volume in lower["spec"]["volumes"]] == ["data", "mixed"]
    assert lower["spec"]["serviceAccountName"] == "default"


async def test_kept_fields_arrive_unchanged(rich: tuple[Manifest, Manifest]) -> None:
    """Containers, security, names and network of the stored lower spec equal those of the upper spec."""
    upper, lower = rich
    same = (
        "hostAliases",
        "dnsConfig",
        "securityContext",
        "hostname",
        "subdomain",
        "resources",
        "imagePullSecrets",
        "os",
    )
    assert {field: lower["spec"][field] for field in same} == {field: upper["spec"][field] for field in same}
    for container in ("lifecycle", "envFrom", "resizePolicy", "resources"):
        assert lower["spec"]["containers"][0][container] == upper["spec"]["containers"][0][container]
    assert lower["spec"]["containers"][1]["restartPolicyRules"] == upper["spec"]["containers"][1]["restartPolicyRules"]
    assert lower["spec"]["initContainers"][0]["restartPolicy"] == "Always"


async def test_only_constraints_on_lower_nodes_arrive(rich: tuple[Manifest, Manifest]) -> None:
    """Selector, affinity, spread and tolerations are those that the lower scheduler can meet."""
    spec = rich[1]["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert spec["schedulerName"] == "default-scheduler"
    assert len(spec["topologySpreadConstraints"]) == 1
    assert spec["affinity"].keys() == {"nodeAffinity", "podAffinity"}
    assert PROVIDER["key"] not in {toleration.get("key") for toleration in spec["tolerations"]}


async def test_a_stored_lower_pod_needs_no_update(
    hand_made_node: HandMadeNode, rich: tuple[Manifest, Manifest]
) -> None:
    """Defaults and admission of the lower cluster cause no drift immediately after the creation."""
    upper, lower = rich
    assert image_patch(upper, lower) is None
    assert toleration_patch(upper, lower, hand_made_node.place) is None
    assert resize_patch(upper, lower) is None
    assert ephemeral_patch(upper, lower, hand_made_node.place) is None


async def test_a_status_is_written_once(hand_made_node: HandMadeNode, rich: tuple[Manifest, Manifest]) -> None:
    """The upper apiserver accepts it, and the stored status needs no other write."""
    upper, lower = rich
    stored = await hand_made_node.written(upper, upper_status(upper, lower, generation=1))
    assert stored["status"]["phase"] == "Running"
    assert stored["status"]["podIP"] == lower["status"]["podIP"]
    assert {one["name"] for one in stored["status"]["containerStatuses"]} == {"main", "second"}
    assert upper_status(stored, lower, generation=1) is None
    ready = next(one for one in stored["status"]["conditions"] if one["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ReadinessGatesNotReady")


async def test_an_opened_readiness_gate_makes_the_pod_ready(hand_made_node: HandMadeNode) -> None:
    """An upper controller opens the gate, which is the only missing condition."""
    upper = await hand_made_node.bound("gated", {"readinessGates": [{"conditionType": "example.com/gate"}]})
    lower = await hand_made_node.mirrored(upper)
    closed = await hand_made_node.written(upper, upper_status(upper, lower, generation=1))
    gate = {"type": "example.com/gate", "status": "True", "lastTransitionTime": NOW}
    opened = await hand_made_node.written(closed, {"status": {"conditions": [gate]}})
    stored = await hand_made_node.written(opened, upper_status(opened, lower, generation=1))
    by_type = {one["type"]: one for one in stored["status"]["conditions"]}
    assert (by_type["Ready"]["status"], by_type["example.com/gate"]["status"]) == ("True", "True")
    assert "reason" not in by_type["Ready"]
    assert upper_status(stored, lower, generation=1) is None


async def test_changed_addresses_are_accepted(hand_made_node: HandMadeNode) -> None:
    """The apiserver accepts two addresses, then a different one, then none."""
    upper = await hand_made_node.bound("moving")
    for addresses in (["10.9.0.1", "fd00::9"], ["10.9.0.2"], []):
        pairs = {"podIP": addresses[0], "podIPs": [{"ip": one} for one in addresses]} if addresses else {}
        status = {"phase": "Running", "hostIP": "10.8.0.1", "hostIPs": [{"ip": "10.8.0.1"}], **pairs}
        lower = {"metadata": {}, "status": status}
        upper = await hand_made_node.written(upper, upper_status(upper, lower, generation=1))
        assert [one["ip"] for one in upper["status"].get("podIPs", [])] == addresses
        assert upper_status(upper, lower, generation=1) is None


async def test_resources_that_shrink_are_accepted(hand_made_node: HandMadeNode) -> None:
    """Maps are replaced, so a resource that is no longer allocated is removed."""
    upper = await hand_made_node.bound("shrinking", {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}})
    for amounts in ({"cpu": "1", "memory": "1Gi"}, {"cpu": "500m"}):
        status = {"phase": "Running", "allocatedResources": amounts, "resources": {"requests": amounts}}
        lower = {"metadata": {}, "status": status}
        upper = await hand_made_node.written(upper, upper_status(upper, lower, generation=1))
        assert upper["status"]["allocatedResources"] == amounts
        assert upper["status"]["resources"]["requests"] == amounts
        assert upper_status(upper, lower, generation=1) is None


async def test_a_terminated_container_that_runs_again_does_not_block_the_status(hand_made_node: HandMadeNode) -> None:
    """The apiserver would reject the whole write, so only that container's status is not reported."""
    upper = await hand_made_node.bound("once", {"restartPolicy": "Never"})
    ended = {"name": "main", "image": "a", "imageID": "", "ready": False, "restartCount": 0}
    exited = {**ended, "state": {"terminated": {"exitCode": 1}}}
    first = {"metadata": {}, "status": {"phase": "Running", "containerStatuses": [exited]}}
    upper = await hand_made_node.written(upper, upper_status(upper, first, generation=1))
    alive = {**ended, "state": {"running": {"startedAt": NOW}}}
    with pytest.raises(Refused, match="non-terminated"):
        await hand_made_node.written(upper, {"status": {"containerStatuses": [alive]}})
    second = {"metadata": {}, "status": {"phase": "Running", "message": "m", "containerStatuses": [alive]}}
    upper = await hand_made_node.written(upper, upper_status(upper, second, generation=1))
    assert upper["status"]["message"] == "m"
    assert upper_status(upper, second, generation=1) is None


@pytest.mark.parametrize("name", ["pending", "unreachable", "lost", "ending"])
async def test_statuses_of_the_engine_are_accepted_and_written_once(hand_made_node: HandMadeNode, name: str) -> None:
    """The stored pod needs no second write."""
    bodies = {
        "pending": lambda pod: pending_because(pod, "NameConflict", "a pod of that name is there", NOW),
        "unreachable": lambda pod: unreachable(pod, NOW),
        "lost": lambda pod: lost(pod, NOW),
        "ending": lambda pod: ending(pod, None, NOW),
    }
    upper = await hand_made_node.bound(f"own-{name}")
    if name != "pending":
        upper = await hand_made_node.written(
            upper, upper_status(upper, await hand_made_node.mirrored(upper), generation=1)
        )
    stored = await hand_made_node.written(upper, bodies[name](upper))
    assert bodies[name](stored) is None


async def test_the_first_lower_status_removes_the_pending_reason(hand_made_node: HandMadeNode) -> None:
    """The engine's condition, reason and message are absent from the stored pod."""
    upper = await hand_made_node.bound("waited")
    waiting = await hand_made_node.written(upper, pending_because(upper, "NameConflict", "m", NOW))
    stored = await hand_made_node.written(
        waiting, upper_status(waiting, await hand_made_node.mirrored(waiting), generation=1)
    )
    assert "tensile-kube.io/Mirrored" not in {one["type"] for one in stored["status"]["conditions"]}
    assert stored["status"].keys().isdisjoint({"reason", "message"})


@pytest.mark.parametrize(
    ("name", "tolerations"),
    [
        ("defaults", []),
        ("own", [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}]),
        ("any", [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}]),
    ],
)
async def test_unlimited_tolerations_are_accepted_on_a_bound_pod(
    hand_made_node: HandMadeNode, name: str, tolerations: list
) -> None:
    """Seconds are removed in place, and new tolerations are added before or after the existing ones."""
    upper = await hand_made_node.bound(f"tolerating-{name}", {"tolerations": tolerations})
    wanted = tolerations_for_upper(upper)
    assert wanted is not None
    stored = await hand_made_node.upper.patch(
        f"{PODS}/{upper['metadata']['name']}", {"spec": {"tolerations": wanted}}, "strategic"
    )
    assert stored["spec"]["tolerations"] == wanted
    assert tolerations_for_upper(stored) is None


async def test_updates_are_sent_by_their_subresources(hand_made_node: HandMadeNode) -> None:
    """Image, deadline, toleration, resize and ephemeral container are stored and leave no difference."""
    upper = await hand_made_node.bound(
        "changing", {"containers": [{"name": "main", "image": "a:1", "resources": {"requests": {"cpu": "1"}}}]}
    )
    path = f"{PODS}/changing"
    (status,) = (await hand_made_node.mirrored(upper))["status"]["containerStatuses"]
    sized = {**status, "resources": {"requests": {"cpu": "1"}}}
    await hand_made_node.lower.patch(f"{path}/status", {"status": {"containerStatuses": [sized]}}, "strategic")
    more = [*upper["spec"]["tolerations"], {"key": "new", "operator": "Exists"}]
    image = {"containers": [{"name": "main", "image": "a:2"}], "activeDeadlineSeconds": 99, "tolerations": more}
    await hand_made_node.upper.patch(path, {"spec": image}, "strategic")
    size = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}
    await hand_made_node.upper.patch(f"{path}/resize", {"spec": size}, "strategic")
    debug = {"ephemeralContainers": [{"name": "debug", "image": "d:1"}]}
    upper = await hand_made_node.upper.patch(f"{path}/ephemeralcontainers", {"spec": debug}, "strategic")
    ways = (
        ("", lambda lower: image_patch(upper, lower)),
        ("", lambda lower: toleration_patch(upper, lower, hand_made_node.place)),
        ("/resize", lambda lower: resize_patch(upper, lower)),
        ("/ephemeralcontainers", lambda lower: ephemeral_patch(upper, lower, hand_made_node.place)),
    )
    for tail, change in ways:
        body = change(await hand_made_node.lower.read(path))
        assert body is not None
        assert change(await hand_made_node.lower.patch(path + tail, body, "strategic")) is None


async def test_resource_claims_are_mirrored_as_references(hand_made_node: HandMadeNode) -> None:
    """The lower apiserver accepts them, but the claim itself has to be created there."""
    claim = {"name": "gpu", "resourceClaimName": "absent"}
    container = {"name": "main", "image": "a", "resources": {"claims": [{"name": "gpu"}]}}
    upper = await hand_made_node.bound("claiming", {"resourceClaims": [claim], "containers": [container]})
    made = await hand_made_node.lower.create(PODS, to_lower_pod(upper, hand_made_node.place))
    assert made["spec"]["resourceClaims"] == [claim]
    assert made["spec"]["containers"][0]["resources"] == container["resources"]


async def test_the_lower_schedulers_reason_is_reported(hand_made_node: HandMadeNode) -> None:
    """It has a condition of its own beside the upper scheduler's PodScheduled."""
    upper = await hand_made_node.bound("homeless", {"nodeSelector": {"disk": "none"}})
    await hand_made_node.lower.create(PODS, to_lower_pod(upper, hand_made_node.place))
    lower = await hand_made_node.lower.until(f"{PODS}/homeless", lambda found: bool(found["status"].get("conditions")))
    stored = await hand_made_node.written(upper, upper_status(upper, lower, generation=1))
    conditions_by_type = {one["type"]: one for one in stored["status"]["conditions"]}
    assert conditions_by_type["tensile-kube.io/LowerScheduled"]["reason"] == "Unschedulable"
    assert conditions_by_type["PodScheduled"]["status"] == "True"
    assert upper_status(stored, lower, generation=1) is None


async def test_a_lower_controller_does_not_adopt_a_lower_pod(hand_made_node: HandMadeNode) -> None:
    """A ReplicaSet with a matching selector creates its own pod and does not affect the mirrored one."""
    upper = await hand_made_node.bound("coveted", labels={"app": "coveted"})
    ours = await hand_made_node.mirrored(upper)
    template = {"metadata": {"labels": {"app": "coveted"}}, "spec": {"containers": [{"name": "c", "image": "c"}]}}
    body = {"metadata": {"name": "native"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "coveted"}}}}
    sets = f"/apis/apps/v1/namespaces/{SPACE}/replicasets"
    await hand_made_node.lower.create(sets, {**body, "spec": {**body["spec"], "template": template}})
    await hand_made_node.lower.until(f"{sets}/native", lambda found: found["status"].get("readyReplicas") == 1)
    assert (await hand_made_node.lower.read(f"{PODS}/coveted"))["metadata"]["uid"] == ours["metadata"]["uid"]
    found = (await hand_made_node.lower.read(f"{PODS}?labelSelector=app%3Dcoveted"))["items"]
    assert len(found) == 2
