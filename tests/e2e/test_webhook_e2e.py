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
from enginekit import LOWERS, A, Edit, edit_lower, polled
from hookedkit import OPTED, Hooked, hooking, serving_hooks
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
async def ground(own: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hooked]:
    """Start an engine with its webhook, which is registered."""
    async with hooking(own, tmp_path_factory.mktemp("ground")) as made:
        yield made


def noted(pod: Manifest) -> Any:
    """Return the content of a pod's clusterSelector annotation."""
    text = pod["metadata"].get("annotations", {}).get("clusterSelector")
    return None if text is None else orjson.loads(text)


async def test_an_opted_in_pod_runs_on_the_lower_node_that_it_selects(ground: Hooked) -> None:
    """The webhook moves the selector into the annotation, and the lower pod has the selector again."""
    (real, *_) = sorted(one["metadata"]["name"] for one in (await ground.sites[A].read("/api/v1/nodes"))["items"])
    asked = {"e2e": ground.mark, "clusterID": A, "kubernetes.io/hostname": real}
    made = await ground.asked("whole", {"nodeSelector": asked})
    assert made["spec"]["nodeSelector"] == {"e2e": ground.mark, "clusterID": A}
    assert noted(made)["nodeSelector"] == {"kubernetes.io/hostname": real}
    assert made["spec"]["tolerations"] == [*UNLIMITED, PROVIDER]
    await ground.upper.until(ground.pod_path("whole"), is_ready)
    below = await ground.sites[A].read(ground.pod_path("whole"))
    assert below["spec"]["nodeName"] == real
    assert below["spec"]["nodeSelector"] == {"kubernetes.io/hostname": real}
    assert "clusterSelector" not in below["metadata"]["annotations"]


async def test_a_pod_that_is_not_opted_in_or_in_kube_system_is_not_changed(ground: Hooked) -> None:
    """In kube-system, the label of opted-in pods has no effect."""
    spec = {"nodeSelector": {"disk": "ssd"}}
    plain = await ground.asked("plain", spec, "?dryRun=All", labels={"app": "x"})
    system = {"metadata": {"name": "system", "labels": OPTED}, "spec": {**plain["spec"], "nodeSelector": {"a": "b"}}}
    for field in ("tolerations", "volumes", "serviceAccount", "serviceAccountName"):
        system["spec"].pop(field, None)
    system["spec"]["containers"] = [{"name": "main", "image": "app:1"}]
    excluded = await ground.upper.create("/api/v1/namespaces/kube-system/pods?dryRun=All", system)
    for found, selector in ((plain, {"disk": "ssd"}), (excluded, {"a": "b"})):
        assert noted(found) is None
        assert found["spec"]["nodeSelector"] == selector


async def test_a_claim_with_a_selected_node_pins_its_pod_to_the_node(ground: Hooked) -> None:
    """The pod gets a required affinity to the virtual node's hostname."""
    node = ground.nodes[A]
    claim = {
        "metadata": {"name": "data", "annotations": {"volume.kubernetes.io/selected-node": node}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "",
        },
    }
    await ground.upper.create(ground.path("persistentvolumeclaims"), claim)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    async with asyncio.timeout(60):
        while "affinity" not in (made := await ground.asked("pinned", {"volumes": volumes}, "?dryRun=All"))["spec"]:
            continue
    (term,) = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]
    await ground.upper.delete(ground.path("persistentvolumeclaims", "data"))


async def test_pods_are_created_while_no_webhook_answers_and_are_completed_later(ground: Hooked) -> None:
    """The registration stays while no engine runs.

    A new engine adds missing tolerations, or emits an Event if it cannot change the pod.
    """
    await ground.stop()
    try:
        assert await ground.upper.read(ground.hook)
        missed = await ground.asked("missed")
        stuck = await ground.asked("stuck", {"nodeSelector": {"e2e": ground.mark, "disk": "ssd"}})
        assert noted(missed) is noted(stuck) is None
    finally:
        await ground.start(ground.hooked())
    await ground.upper.until(ground.pod_path("missed"), is_ready)
    assert "webhook.enabled" in await ground.told(stuck, "WebhookBypassed")
    mended = await ground.upper.read(ground.pod_path("stuck"))
    assert mended["spec"]["tolerations"] == [*UNLIMITED, PROVIDER]
    await ground.upper.until(ground.hook, bool)
    later = await ground.asked("later", {"nodeSelector": {"e2e": ground.mark, "disk": "ssd"}}, "?dryRun=All")
    async with asyncio.timeout(20):
        while noted(later) is None:
            later = await ground.asked("later", {"nodeSelector": {"e2e": ground.mark, "disk": "ssd"}}, "?dryRun=All")


async def test_edited_webhook_fields_are_applied_and_a_disabled_webhook_is_unregistered(ground: Hooked) -> None:
    """New keys apply to the next pod, and the webhook is registered again when it is enabled."""
    spec = {"nodeSelector": {"e2e": ground.mark, "region": "north"}}
    before = await ground.asked("before", spec, "?dryRun=All")
    assert noted(before)["nodeSelector"] == {"region": "north"}

    def region(file: Manifest) -> None:
        file["webhook"]["ignoreSelectorKeys"] = ["e2e", "region"]

    await ground.reload(ground.hooked(), region)
    after = await ground.asked("after", spec, "?dryRun=All")
    assert after["spec"]["nodeSelector"] == spec["nodeSelector"]
    await ground.reload(ground.hooked(enabled=False))
    await ground.upper.gone(ground.hook)
    assert noted(await ground.asked("off", spec, "?dryRun=All")) is None
    await ground.reload(ground.hooked())
    await ground.registered()


async def test_a_restarted_engine_is_called_with_its_new_certificate(ground: Hooked) -> None:
    """The existing configuration is updated with it."""
    before = await ground.registered()
    await ground.stop()
    await ground.start(ground.hooked())
    after = await ground.upper.until(ground.hook, lambda one: _trusted(one) != _trusted(before))
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    spec = {"nodeSelector": {"e2e": ground.mark, "region": "north"}}
    async with asyncio.timeout(LIMIT):
        while noted(made := await ground.asked("again", spec, "?dryRun=All")) is None:  # noqa: ASYNC110 - no event
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
async def standing_by(ground: Hooked, *edits: Edit) -> AsyncIterator[Engine]:
    """Run a second engine that is ready for reviews and does not lead."""
    other = Engine(ground.topology(*edits), ground.ways, ground.heard, Fleet(chance=random.random))
    await other.standby()
    try:
        await polled(lambda: not other.webhook.server.waits())
        yield other
    finally:
        await other.stop()


async def test_an_engine_that_stands_by_does_not_change_the_registered_address(ground: Hooked) -> None:
    """An engine of the same topology that was set up elsewhere registers its address only once it leads."""
    before, (port,) = await ground.registered(), spare_ports(1)
    url = f"https://127.0.0.1:{port}/mutate"
    async with standing_by(ground, ground.hooked(), elsewhere(port=port, url=url)) as other:
        assert (await ground.registered())["webhooks"] == before["webhooks"]
        await ground.stop()
        await other.lead()
        found = await ground.upper.until(ground.hook, lambda one: _address(one) == url)
        assert found["metadata"]["uid"] == before["metadata"]["uid"]
    await ground.start(ground.hooked())
    await ground.upper.until(ground.hook, lambda one: _address(one) == _address(before))


def _address(hook: Manifest) -> str:
    return str(hook["webhooks"][0]["clientConfig"]["url"])


TAINT = {"key": "e2e-inside", "value": "", "effect": "NoSchedule"}


class Inside(Hooked):
    """An engine that behaves as in a pod of namespace `home`."""

    home = "kube-public"

    @property
    def ways(self) -> ClusterAccess:
        """The access of a process that has a mounted account."""
        account = self.directory / "account"
        account.mkdir(exist_ok=True)
        (account / "namespace").write_text(self.home)
        return ClusterAccess(self.directory, account=account)

    @property
    def secret(self) -> str:
        """The path of the Secret with the webhook's certificate."""
        return self.path("secrets", f"tensile-webhook-{self.namespace}", namespace=self.home)

    async def asks(self) -> None:
        """Wait until this engine prepares a new pod; no other engine has its taint."""
        async with asyncio.timeout(LIMIT):
            while not await self.is_prepared("asked"):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.1)

    async def is_prepared(self, name: str) -> bool:
        """Report whether this engine prepares a new pod."""
        made = await self.asked(name, None, "?dryRun=All")
        return TAINT["key"] in {one.get("key") for one in made["spec"]["tolerations"]}


@pytest_asyncio.fixture(loop_scope="module")
async def inside(own: Sandbox, tmp_path: Path) -> AsyncIterator[Inside]:
    """Start an engine that is called for pods, and assert that its end leaves nothing behind."""
    made = Inside(own, tmp_path)
    (made.hook_port,) = spare_ports(1)
    await made.open()
    try:
        await made.start(made.hooked(), edit_lower(A, node={"taints": [TAINT]}))
        await made.asks()
        yield made
        await made.clear()
        await made.upper.gone(made.hook, made.secret)
    finally:
        await made.close()


async def test_replicas_share_the_webhook_certificate_in_a_secret(inside: Inside) -> None:
    """The leader creates it, and replaces it when a user deletes or damages it; pods are prepared meanwhile."""
    upper = inside.upper
    hook, secret = await inside.registered(), await upper.read(inside.secret)
    first = secret["data"]["ca.crt"]
    assert _trusted(hook) == first
    async with standing_by(inside, inside.hooked(), elsewhere()) as other:
        address = f"https://127.0.0.1:{other.webhook.server.port}/mutate"
        await call(address, b64decode(_trusted(hook)))
        await upper.delete(inside.secret)
        await upper.until(inside.secret, lambda one: one["data"]["ca.crt"] != first)
        assert await inside.is_prepared("deleted")
        await upper.until(inside.hook, lambda one: _trusted(one) != first)
        await upper.patch(inside.secret, {"data": {"tls.crt": b64encode(b"spoilt").decode()}})
        await upper.until(inside.secret, lambda one: b64decode(one["data"]["tls.crt"]) != b"spoilt")
        assert await inside.is_prepared("spoilt")
        await call(address, b64decode(_trusted(await inside.registered())))


class Served(Program, Hooked):
    """An engine with its webhook, as a process of its own."""


@asynccontextmanager
async def served(own: Sandbox, directory: Path) -> AsyncIterator[Served]:
    """Start the program, and wait until its webhook is registered."""
    async with serving_hooks(Served(own, directory)) as made:
        yield made


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
    async with served(own, tmp_path) as there:
        before = _cpu_seconds(there)
        created = await there.kubectl("create", "-f", "-", stdin=body)
        assert created.code == 0, created.err
        assert _cpu_seconds(there) - before < 1.0
        assert (
            "Warning: the pod is not mutated for virtual nodes: nodeSelector, affinity, tolerations are" in created.err
        )
        assert "the limit is 32,768" in created.err
        made = await there.upper.read(there.pod_path("heavy"))
        assert noted(made) == alternatives(700)
        assert made["spec"]["affinity"] == alternatives(700)["affinity"]


def _cpu_seconds(program: Program) -> float:
    """Return the CPU seconds that an engine has used."""
    times = psutil.Process(program.process.pid).cpu_times()
    return times.user + times.system
