"""Tests of the webhook with a real apiserver, in a sandbox of its own because it receives every opted-in pod."""

import asyncio
import random
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
import pytest_asyncio
from enginekit import LOWERS, A, Edit, edit_lower, wait_until
from hookedkit import OPTED, WebhookEngineHarness, running_webhook_engine, webhook_engine
from programkit import Program
from sitekit import LIMIT, Manifest, is_ready

from bench.kit.spareports import spare_ports
from tensile.engine.engine import Engine
from tensile.engine.lower import ClusterAccess
from tensile.kube.fleet import Fleet
from tensile.policy.webhook.registration import call
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

UNLIMITED = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute"}
    for name in ("not-ready", "unreachable")
]
PROVIDER = {"key": "virtual-kubelet.io/provider", "operator": "Equal", "value": "k8s", "effect": "NoSchedule"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sandbox]:
    """Start clusters in which no other test creates pods."""
    with Sandbox.start(tmp_path_factory.mktemp("hooks") / "sandbox", progress=print) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(own: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WebhookEngineHarness]:
    """Start an engine with its webhook, which is registered."""
    async with webhook_engine(own, tmp_path_factory.mktemp("ground")) as harness:
        yield harness


def noted(pod: Manifest) -> Any:
    """Return the content of a pod's clusterSelector annotation."""
    text = pod["metadata"].get("annotations", {}).get("clusterSelector")
    return None if text is None else orjson.loads(text)


async def test_an_opted_in_pod_runs_on_the_lower_node_that_it_selects(harness: WebhookEngineHarness) -> None:
    """The webhook moves the selector into the annotation, and the lower pod has the selector again."""
    (real, *_) = sorted(one["metadata"]["name"] for one in (await harness.sites[A].read("/api/v1/nodes"))["items"])
    node_selector = {"e2e": harness.mark, "clusterID": A, "kubernetes.io/hostname": real}
    made = await harness.create_opted_in_pod("whole", {"nodeSelector": node_selector})
    assert made["spec"]["nodeSelector"] == {"e2e": harness.mark, "clusterID": A}
    assert noted(made)["nodeSelector"] == {"kubernetes.io/hostname": real}
    assert made["spec"]["tolerations"] == [*UNLIMITED, PROVIDER]
    await harness.upper.until(harness.pod_path("whole"), is_ready)
    lower_object = await harness.sites[A].read(harness.pod_path("whole"))
    assert lower_object["spec"]["nodeName"] == real
    assert lower_object["spec"]["nodeSelector"] == {"kubernetes.io/hostname": real}
    assert "clusterSelector" not in lower_object["metadata"]["annotations"]


async def test_a_pod_that_is_not_opted_in_or_in_kube_system_is_not_changed(harness: WebhookEngineHarness) -> None:
    """In kube-system, the label of opted-in pods has no effect."""
    spec = {"nodeSelector": {"disk": "ssd"}}
    plain = await harness.create_opted_in_pod("plain", spec, "?dryRun=All", labels={"app": "x"})
    system = {"metadata": {"name": "system", "labels": OPTED}, "spec": {**plain["spec"], "nodeSelector": {"a": "b"}}}
    for field in ("tolerations", "volumes", "serviceAccount", "serviceAccountName"):
        system["spec"].pop(field, None)
    system["spec"]["containers"] = [{"name": "main", "image": "app:1"}]
    excluded = await harness.upper.create("/api/v1/namespaces/kube-system/pods?dryRun=All", system)
    for found, selector in ((plain, {"disk": "ssd"}), (excluded, {"a": "b"})):
        assert noted(found) is None
        assert found["spec"]["nodeSelector"] == selector


async def test_a_claim_with_a_selected_node_pins_its_pod_to_the_node(harness: WebhookEngineHarness) -> None:
    """The pod gets a required affinity to the virtual node's hostname."""
    node = harness.nodes[A]
    claim = {
        "metadata": {"name": "data", "annotations": {"volume.kubernetes.io/selected-node": node}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "",
        },
    }
    await harness.upper.create(harness.path("persistentvolumeclaims"), claim)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    async with asyncio.timeout(60):
        while (
            "affinity"
            not in (made := await harness.create_opted_in_pod("pinned", {"volumes": volumes}, "?dryRun=All"))["spec"]
        ):
            continue
    (term,) = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]
    await harness.upper.delete(harness.path("persistentvolumeclaims", "data"))


async def test_pods_are_created_while_no_webhook_answers_and_are_completed_later(harness: WebhookEngineHarness) -> None:
    """The registration stays while no engine runs.

    A new engine adds missing tolerations, or emits an Event if it cannot change the pod.
    """
    await harness.stop()
    try:
        assert await harness.upper.read(harness.webhook_path)
        missed = await harness.create_opted_in_pod("missed")
        stuck = await harness.create_opted_in_pod("stuck", {"nodeSelector": {"e2e": harness.mark, "disk": "ssd"}})
        assert noted(missed) is noted(stuck) is None
    finally:
        await harness.start(harness.webhook_edit())
    await harness.upper.until(harness.pod_path("missed"), is_ready)
    assert "webhook.enabled" in await harness.wait_for_event(stuck, "WebhookBypassed")
    mended = await harness.upper.read(harness.pod_path("stuck"))
    assert mended["spec"]["tolerations"] == [*UNLIMITED, PROVIDER]
    await harness.upper.until(harness.webhook_path, bool)
    later = await harness.create_opted_in_pod(
        "later", {"nodeSelector": {"e2e": harness.mark, "disk": "ssd"}}, "?dryRun=All"
    )
    async with asyncio.timeout(20):
        while noted(later) is None:
            later = await harness.create_opted_in_pod(
                "later", {"nodeSelector": {"e2e": harness.mark, "disk": "ssd"}}, "?dryRun=All"
            )


async def test_edited_webhook_fields_are_applied_and_a_disabled_webhook_is_unregistered(
    harness: WebhookEngineHarness,
) -> None:
    """New keys apply to the next pod, and the webhook is registered again when it is enabled."""
    spec = {"nodeSelector": {"e2e": harness.mark, "region": "north"}}
    before = await harness.create_opted_in_pod("before", spec, "?dryRun=All")
    assert noted(before)["nodeSelector"] == {"region": "north"}

    def region(file: Manifest) -> None:
        file["webhook"]["ignoreSelectorKeys"] = ["e2e", "region"]

    await harness.reload(harness.webhook_edit(), region)
    after = await harness.create_opted_in_pod("after", spec, "?dryRun=All")
    assert after["spec"]["nodeSelector"] == spec["nodeSelector"]
    await harness.reload(harness.webhook_edit(enabled=False))
    await harness.upper.gone(harness.webhook_path)
    assert noted(await harness.create_opted_in_pod("off", spec, "?dryRun=All")) is None
    await harness.reload(harness.webhook_edit())
    await harness.wait_registered()


async def test_a_restarted_engine_is_called_with_its_new_certificate(harness: WebhookEngineHarness) -> None:
    """The existing configuration is updated with it."""
    before = await harness.wait_registered()
    await harness.stop()
    await harness.start(harness.webhook_edit())
    after = await harness.upper.until(harness.webhook_path, lambda one: _trusted(one) != _trusted(before))
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    spec = {"nodeSelector": {"e2e": harness.mark, "region": "north"}}
    async with asyncio.timeout(LIMIT):
        while noted(made := await harness.create_opted_in_pod("again", spec, "?dryRun=All")) is None:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.1)
    assert noted(made)["nodeSelector"] == {"region": "north"}


def _trusted(hook: Manifest) -> str:
    return str(hook["webhooks"][0]["clientConfig"]["caBundle"])


def elsewhere(**webhook: Any) -> Edit:
    """Return an edit by which a second engine has other ports, and `webhook` other fields."""
    ports = spare_ports(len(LOWERS) + 2)

    def edit(file: Manifest) -> None:
        for lower, port in zip(file["lowers"], ports, strict=False):
            lower["node"]["kubeletPort"] = port
        file["kubelet"]["port"] = ports[-2]
        file["webhook"] |= {"port": ports[-1], **webhook}

    return edit


@asynccontextmanager
async def standing_by(harness: WebhookEngineHarness, *edits: Edit) -> AsyncIterator[Engine]:
    """Run a second engine that is ready for reviews and does not lead."""
    other = Engine(harness.topology(*edits), harness.cluster_access, harness.loop_recorder, Fleet(chance=random.random))
    await other.standby()
    try:
        await wait_until(lambda: not other.webhook.server.waits())
        yield other
    finally:
        await other.stop()


async def test_an_engine_that_stands_by_does_not_change_the_registered_address(harness: WebhookEngineHarness) -> None:
    """An engine of the same topology that was set up elsewhere registers its address only once it leads."""
    before, (port,) = await harness.wait_registered(), spare_ports(1)
    url = f"https://127.0.0.1:{port}/mutate"
    async with standing_by(harness, harness.webhook_edit(), elsewhere(port=port, url=url)) as other:
        assert (await harness.wait_registered())["webhooks"] == before["webhooks"]
        await harness.stop()
        await other.lead()
        found = await harness.upper.until(harness.webhook_path, lambda one: _address(one) == url)
        assert found["metadata"]["uid"] == before["metadata"]["uid"]
    await harness.start(harness.webhook_edit())
    await harness.upper.until(harness.webhook_path, lambda one: _address(one) == _address(before))


def _address(hook: Manifest) -> str:
    return str(hook["webhooks"][0]["clientConfig"]["url"])


TAINT = {"key": "e2e-inside", "value": "", "effect": "NoSchedule"}


class InClusterHarness(WebhookEngineHarness):
    """An engine that behaves as in a pod of namespace `engine_namespace`."""

    engine_namespace = "kube-public"

    @property
    def cluster_access(self) -> ClusterAccess:
        """The access of a process that has a mounted account."""
        account = self.directory / "account"
        account.mkdir(exist_ok=True)
        (account / "namespace").write_text(self.engine_namespace)
        return ClusterAccess(self.directory, account=account)

    @property
    def secret(self) -> str:
        """The path of the Secret with the webhook's certificate."""
        return self.path("secrets", f"tensile-webhook-{self.namespace}", namespace=self.engine_namespace)

    async def admission_request(self) -> None:
        """Wait until this engine prepares a new pod; no other engine has its taint."""
        async with asyncio.timeout(LIMIT):
            while not await self.is_prepared("asked"):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.1)

    async def is_prepared(self, name: str) -> bool:
        """Report whether this engine prepares a new pod."""
        made = await self.create_opted_in_pod(name, None, "?dryRun=All")
        return TAINT["key"] in {one.get("key") for one in made["spec"]["tolerations"]}


@pytest_asyncio.fixture(loop_scope="module")
async def inside(own: Sandbox, tmp_path: Path) -> AsyncIterator[InClusterHarness]:
    """Start an engine that is called for pods, and assert that its end leaves nothing behind."""
    harness = InClusterHarness(own, tmp_path)
    (harness.hook_port,) = spare_ports(1)
    await harness.open()
    try:
        await harness.start(harness.webhook_edit(), edit_lower(A, node={"taints": [TAINT]}))
        await harness.admission_request()
        yield harness
        await harness.clear()
        await harness.upper.gone(harness.webhook_path, harness.secret)
    finally:
        await harness.close()


async def test_replicas_share_the_webhook_certificate_in_a_secret(inside: InClusterHarness) -> None:
    """The leader creates it, and replaces it when a user deletes or damages it; pods are prepared meanwhile."""
    upper = inside.upper
    hook, secret = await inside.wait_registered(), await upper.read(inside.secret)
    first = secret["data"]["ca.crt"]
    assert _trusted(hook) == first
    async with standing_by(inside, inside.webhook_edit(), elsewhere()) as other:
        address = f"https://127.0.0.1:{other.webhook.server.port}/mutate"
        await call(address, b64decode(_trusted(hook)))
        await upper.delete(inside.secret)
        await upper.until(inside.secret, lambda one: one["data"]["ca.crt"] != first)
        assert await inside.is_prepared("deleted")
        await upper.until(inside.webhook_path, lambda one: _trusted(one) != first)
        await upper.patch(inside.secret, {"data": {"tls.crt": b64encode(b"spoilt").decode()}})
        await upper.until(inside.secret, lambda one: b64decode(one["data"]["tls.crt"]) != b"spoilt")
        assert await inside.is_prepared("spoilt")
        await call(address, b64decode(_trusted(await inside.wait_registered())))


class WebhookProgram(Program, WebhookEngineHarness):
    """An engine with its webhook, as a process of its own."""


@asynccontextmanager
async def served(own: Sandbox, directory: Path) -> AsyncIterator[WebhookProgram]:
    """Start the program, and wait until its webhook is registered."""
    async with running_webhook_engine(WebhookProgram(own, directory)) as harness:
        yield harness


def alternatives(count: int) -> Manifest:
    """Return the constraints of a pod with this many alternatives."""
    every = [{"matchExpressions": [{"key": f"k{one}", "operator": "In", "values": ["a"]}]} for one in range(count)]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": every}}
    return {"affinity": {"nodeAffinity": required}}


def crossing(name: str, count: int) -> str:
    """Return a pod with this many alternatives in its annotation, and as many in its spec."""
    meta = {
        "name": name,
        "labels": OPTED,
        "annotations": {"clusterSelector": orjson.dumps(alternatives(count)).decode()},
    }
    spec = {"tolerations": UNLIMITED, "containers": [{"name": "main", "image": "app:1"}], **alternatives(count)}
    return orjson.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}).decode()


async def test_a_pod_with_very_many_alternatives_is_not_mutated_and_costs_little_cpu(
    own: Sandbox, tmp_path: Path
) -> None:
    """It is created with a warning, and needs less than a second of the engine's CPU time."""
    body = crossing("heavy", 700)
    assert len(body) > 80_000
    async with served(own, tmp_path) as other_harness:
        before = _cpu_seconds(other_harness)
        created = await other_harness.kubectl("create", "-f", "-", stdin=body)
        assert created.code == 0, created.err
        assert _cpu_seconds(other_harness) - before < 1.0
        assert (
            "Warning: the pod is not mutated for virtual nodes: nodeSelector, affinity, tolerations are" in created.err
        )
        assert "the limit is 32,768" in created.err
        made = await other_harness.upper.read(other_harness.pod_path("heavy"))
        assert noted(made) == alternatives(700)
        assert made["spec"]["affinity"] == alternatives(700)["affinity"]


def _cpu_seconds(program: Program) -> float:
    """Return the CPU seconds that an engine has used."""
    times = psutil.Process(program.process.pid).cpu_times()
    return times.user + times.system
