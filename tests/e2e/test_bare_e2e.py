"""Tests of bare pods on real clusters: they are moved to where they can run, unchanged, and none is lost."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
from enginekit import A, B, edit_lower, wait_until, with_fields
from hookedkit import OPTED, WebhookEngineHarness, webhook_engine
from sitekit import Manifest, is_ready

from tensile.names import DESCHEDULE_COUNT, KEPT_OFF, OWNER, REPLACES
from tensile.policy.descheduler.replacement import BACKUP
from tensile.sandbox.apiserver import RESOURCES
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

PATIENCE, INTERVAL, COOLDOWN = 4, 3, 5
POLICY = "apis/policy/v1"
TOO_LARGE = str(int(RESOURCES["cpu"]) + 8)
CLOSED_B, DRAINED_A, DRAINED_B = (
    edit_lower(B, maintenance="cordon"),
    edit_lower(A, maintenance="drain"),
    edit_lower(B, maintenance="drain"),
)
POLICY_ON = {
    "enabled": True,
    "recreateBarePods": True,
    "interval": f"{INTERVAL}s",
    "pendingLongerThan": f"{PATIENCE}s",
    "cooldown": f"{COOLDOWN}s",
}
ON, DRAINS = with_fields(descheduler=POLICY_ON), with_fields(descheduler={**POLICY_ON, "enabled": False})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WebhookEngineHarness]:
    """Start clusters of this module's own, an engine, and its webhook."""
    with Sandbox.start(tmp_path_factory.mktemp("bare") / "sandbox", progress=print) as own:
        async with webhook_engine(own, tmp_path_factory.mktemp("ground")) as harness:
            yield harness


async def enlarged(harness: WebhookEngineHarness, lower: str) -> str:
    """Add a node that has room for one of the large pods to a lower cluster, and return its name."""
    return await harness.sites[lower].add_node(f"roomy-{lower}", cpu="64")


async def closed(harness: WebhookEngineHarness, lower: str) -> None:
    """Wait until a lower cluster's node is marked as unschedulable."""
    await harness.upper.until(f"/api/v1/nodes/{harness.nodes[lower]}", lambda one: one["spec"].get("unschedulable"))


async def create_bare_pod(harness: WebhookEngineHarness, name: str, cpu: str, **meta: Any) -> Manifest:
    """Create a bare pod that also has a requirement for the lower nodes."""
    container = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": cpu}}}
    spec = {
        "nodeSelector": {"e2e": harness.mark, "kubernetes.io/os": "linux"},
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    more = {"labels": {**OPTED, "app": name}, "annotations": {"note": "kept"}, **meta}
    return await harness.create_opted_in_pod(name, spec, **more)


async def runs_in(harness: WebhookEngineHarness, name: str, lower: str, made: Manifest | None = None) -> Manifest:
    """Wait until a pod other than `made` runs in a lower cluster, and return it."""
    node, before = harness.nodes[lower], made["metadata"]["uid"] if made else ""
    return await harness.upper.until(
        harness.pod_path(name),
        lambda one: one["metadata"]["uid"] != before and one["spec"].get("nodeName") == node and is_ready(one),
    )


async def runs(harness: WebhookEngineHarness, name: str, made: Manifest) -> Manifest:
    """Wait until a pod other than `made` runs in any lower cluster, and return it."""
    before = made["metadata"]["uid"]
    return await harness.upper.until(
        harness.pod_path(name), lambda one: one["metadata"]["uid"] != before and is_ready(one)
    )


async def none_kept(harness: WebhookEngineHarness) -> None:
    """Wait until no backup Secret of a pod is left."""
    await harness.upper.until_all(harness.path("secrets"), lambda found: not any(BACKUP in name for name in found))


async def test_a_bare_pod_that_cannot_run_is_moved_and_later_moved_back(harness: WebhookEngineHarness) -> None:
    """It runs elsewhere with its metadata and with the requirements that the webhook moved into `clusterSelector`.

    When that lower cluster is drained, it moves back to the first one, which has room by then. Its moves are counted,
    and nothing is lost.
    """
    await enlarged(harness, B)
    await harness.reload(harness.webhook_edit(), ON, CLOSED_B)
    await closed(harness, B)
    first = await create_bare_pod(harness, "large", TOO_LARGE)
    await harness.upper.until(harness.pod_path("large"), lambda one: one["spec"].get("nodeName") == harness.nodes[A])
    await harness.mark_audit_logs()
    await harness.reload(harness.webhook_edit(), ON)
    second = await runs_in(harness, "large", B, first)
    notes = second["metadata"]["annotations"]
    assert (notes["note"], notes[DESCHEDULE_COUNT], notes[KEPT_OFF]) == ("kept", "1", harness.nodes[A])
    assert notes[REPLACES] == first["metadata"]["uid"]
    assert orjson.loads(notes["clusterSelector"])["nodeSelector"] == {"kubernetes.io/os": "linux"}
    lower_object = await harness.sites[B].read(harness.pod_path("large"))
    assert lower_object["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    await none_kept(harness)
    tried = [(write.verb, code) for write, code in await harness.attempts() if write.subresource == "eviction"]
    assert [code for _, code in tried] == [201]
    await enlarged(harness, A)
    await harness.reload(harness.webhook_edit(), ON, DRAINED_B)
    third = await runs_in(harness, "large", A, second)
    notes = third["metadata"]["annotations"]
    assert (notes["note"], notes[DESCHEDULE_COUNT]) == ("kept", "2")
    assert notes[REPLACES] == second["metadata"]["uid"]
    assert notes[KEPT_OFF] == harness.nodes[B]
    assert orjson.loads(notes["clusterSelector"])["nodeSelector"] == {"kubernetes.io/os": "linux"}
    await none_kept(harness)
    await harness.upper.delete(harness.pod_path("large"), 0)


async def test_a_bare_pod_runs_until_its_disruption_budget_allows_the_eviction(harness: WebhookEngineHarness) -> None:
    """The engine requests the eviction again and again; until then the pod runs on unchanged."""
    await harness.reload(harness.webhook_edit(), DRAINS, CLOSED_B)
    await closed(harness, B)
    made = await create_bare_pod(harness, "single", "1")
    await runs_in(harness, "single", A)
    budget = {
        "metadata": {"name": "single"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "single"}}},
    }
    await harness.upper.create(harness.path("poddisruptionbudgets", api=POLICY), budget)
    path = harness.path("poddisruptionbudgets", "single", api=POLICY)
    await harness.upper.until(path, lambda one: one.get("status", {}).get("currentHealthy") == 1)
    await harness.mark_audit_logs()
    await harness.reload(harness.webhook_edit(), DRAINS, DRAINED_A)
    await wait_until(
        lambda: [reported for _, reported in harness.loop_recorder.problems if "disruption budget" in reported.message],
        30,
    )
    found = await harness.upper.until_all(
        harness.path("secrets"), lambda all_of: any(BACKUP in name for name in all_of)
    )
    (secret,) = [one for one in found.values() if one["metadata"]["name"].startswith(BACKUP)]
    assert secret["metadata"]["name"] == BACKUP + made["metadata"]["uid"]
    assert OWNER in secret["metadata"]["labels"]
    tried: list[int] = []
    while len(tried) < 3:
        tried = [code for write, code in await harness.attempts() if write.subresource == "eviction"]
    assert set(tried) == {429}
    still = await harness.upper.read(harness.pod_path("single"))
    assert (still["metadata"]["uid"], is_ready(still)) == (made["metadata"]["uid"], True)
    assert "deletionTimestamp" not in still["metadata"]
    await harness.upper.delete(path)
    moved = await runs_in(harness, "single", B, made)
    assert moved["metadata"]["annotations"]["note"] == "kept"
    await none_kept(harness)
    await harness.upper.delete(harness.pod_path("single"), 0)


async def crowded_out(harness: WebhookEngineHarness, name: str) -> tuple[Manifest, Manifest]:
    """Move a pod while a quota forbids pods; stop the engine, and return the pod and its backup Secret."""
    await harness.reload(harness.webhook_edit(), DRAINS, CLOSED_B)
    await closed(harness, B)
    made = await create_bare_pod(harness, name, "1")
    await runs_in(harness, name, A)
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    await harness.upper.create(harness.path("resourcequotas"), quota)
    await harness.upper.until(harness.path("resourcequotas", "none"), lambda one: one.get("status", {}).get("used"))
    await harness.reload(harness.webhook_edit(), DRAINS, DRAINED_A)
    secret = BACKUP + made["metadata"]["uid"]
    problems = harness.loop_recorder.problems
    await wait_until(
        lambda: [key for key, reported in problems if key.name == secret and "quota" in reported.message], 30
    )
    await harness.stop()
    assert await harness.upper.read(harness.pod_path(name)) == {}
    return made, await harness.upper.read(harness.path("secrets", secret))


async def test_an_evicted_bare_pod_is_kept_until_the_quota_of_its_namespace_allows_it(
    harness: WebhookEngineHarness,
) -> None:
    """The quota was created during the move, and a new engine recreates the pod from the Secret alone."""
    made, secret = await crowded_out(harness, "counted")
    await harness.start(harness.webhook_edit(), DRAINS, await_nodes=False)
    about = f"involvedObject.uid={secret['metadata']['uid']},reason=RecreateFailed"
    events = await harness.upper.until_all(f"{harness.path('events')}?fieldSelector={about}", bool)
    assert all("exceeded quota" in event["message"] for event in events.values())
    await harness.upper.delete(harness.path("resourcequotas", "none"))
    moved = await runs(harness, "counted", made)
    assert moved["metadata"]["annotations"][REPLACES] == made["metadata"]["uid"]
    await none_kept(harness)
    await harness.upper.delete(harness.pod_path("counted"), 0)


async def test_an_evicted_bare_pod_is_kept_while_another_pod_has_its_name(harness: WebhookEngineHarness) -> None:
    """The other pod runs on untouched, and an Event explains what a user can do.

    Once the other pod is deleted, the engine recreates the first one.
    """
    made, secret = await crowded_out(harness, "taken")
    await harness.upper.delete(harness.path("resourcequotas", "none"))
    other = await harness.create_opted_in_pod("taken", {"terminationGracePeriodSeconds": 1})
    await harness.start(harness.webhook_edit(), DRAINS, await_nodes=False)
    assert "to abandon the pod, delete the Secret" in await harness.wait_for_event(secret, "RecreateFailed")
    assert (await runs(harness, "taken", made))["metadata"]["uid"] == other["metadata"]["uid"]
    await harness.upper.delete(harness.pod_path("taken"), 0)
    moved = await runs(harness, "taken", other)
    assert moved["metadata"]["annotations"][REPLACES] == made["metadata"]["uid"]
    await none_kept(harness)
    await harness.upper.delete(harness.pod_path("taken"), 0)


async def test_a_bare_pod_is_not_evicted_while_another_object_has_the_name_of_its_backup_secret(
    harness: WebhookEngineHarness,
) -> None:
    """The engine does not cache releases of Helm, so only a read finds that Secret; it is not touched."""
    await harness.reload(harness.webhook_edit(), DRAINS, CLOSED_B)
    await closed(harness, B)
    made = await create_bare_pod(harness, "nameless", "1")
    await runs_in(harness, "nameless", A)
    path = harness.path("secrets", BACKUP + made["metadata"]["uid"])
    theirs = await harness.upper.create(
        harness.path("secrets"), {"metadata": {"name": path.rpartition("/")[2]}, "type": "helm.sh/release.v1"}
    )
    await harness.reload(harness.webhook_edit(), DRAINS, DRAINED_A)
    problems = harness.loop_recorder.problems
    await wait_until(
        lambda: [reported for _, reported in problems if f"{theirs['metadata']['name']} exists in" in reported.message],
        30,
    )
    assert (await harness.upper.read(harness.pod_path("nameless")))["metadata"]["uid"] == made["metadata"]["uid"]
    assert (await harness.upper.read(path))["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]
    await harness.upper.delete(path)
    await runs(harness, "nameless", made)
    await none_kept(harness)
    await harness.upper.delete(harness.pod_path("nameless"), 0)
