"""Tests of bare pods on real clusters: they are moved to where they can run, unchanged, and none is lost."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
from enginekit import A, B, edit_lower, polled, with_fields
from hookedkit import OPTED, Hooked, hooking
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
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hooked]:
    """Start clusters of this module's own, an engine, and its webhook."""
    with Sandbox.start(tmp_path_factory.mktemp("bare") / "sandbox", progress=print) as own:
        async with hooking(own, tmp_path_factory.mktemp("ground")) as made:
            yield made


async def enlarged(ground: Hooked, lower: str) -> str:
    """Add a node that has room for one of the large pods to a lower cluster, and return its name."""
    return await ground.sites[lower].add_node(f"roomy-{lower}", cpu="64")


async def closed(ground: Hooked, lower: str) -> None:
    """Wait until a lower cluster's node is marked as unschedulable."""
    await ground.upper.until(f"/api/v1/nodes/{ground.nodes[lower]}", lambda one: one["spec"].get("unschedulable"))


async def asked(ground: Hooked, name: str, cpu: str, **meta: Any) -> Manifest:
    """Create a bare pod that also has a requirement for the lower nodes."""
    container = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": cpu}}}
    spec = {
        "nodeSelector": {"e2e": ground.mark, "kubernetes.io/os": "linux"},
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    more = {"labels": {**OPTED, "app": name}, "annotations": {"note": "kept"}, **meta}
    return await ground.asked(name, spec, **more)


async def runs_in(ground: Hooked, name: str, lower: str, made: Manifest | None = None) -> Manifest:
    """Wait until a pod other than `made` runs in a lower cluster, and return it."""
    node, before = ground.nodes[lower], made["metadata"]["uid"] if made else ""
    return await ground.upper.until(
        ground.pod_path(name),
        lambda one: one["metadata"]["uid"] != before and one["spec"].get("nodeName") == node and is_ready(one),
    )


async def runs(ground: Hooked, name: str, made: Manifest) -> Manifest:
    """Wait until a pod other than `made` runs in any lower cluster, and return it."""
    before = made["metadata"]["uid"]
    return await ground.upper.until(
        ground.pod_path(name), lambda one: one["metadata"]["uid"] != before and is_ready(one)
    )


async def none_kept(ground: Hooked) -> None:
    """Wait until no backup Secret of a pod is left."""
    await ground.upper.until_all(ground.path("secrets"), lambda found: not any(BACKUP in name for name in found))


async def test_a_bare_pod_that_cannot_run_is_moved_and_later_moved_back(ground: Hooked) -> None:
    """It runs elsewhere with its metadata and with the requirements that the webhook moved into `clusterSelector`.

    When that lower cluster is drained, it moves back to the first one, which has room by then. Its moves are counted,
    and nothing is lost.
    """
    await enlarged(ground, B)
    await ground.reload(ground.hooked(), ON, CLOSED_B)
    await closed(ground, B)
    first = await asked(ground, "large", TOO_LARGE)
    await ground.upper.until(ground.pod_path("large"), lambda one: one["spec"].get("nodeName") == ground.nodes[A])
    await ground.note()
    await ground.reload(ground.hooked(), ON)
    second = await runs_in(ground, "large", B, first)
    notes = second["metadata"]["annotations"]
    assert (notes["note"], notes[DESCHEDULE_COUNT], notes[KEPT_OFF]) == ("kept", "1", ground.nodes[A])
    assert notes[REPLACES] == first["metadata"]["uid"]
    assert orjson.loads(notes["clusterSelector"])["nodeSelector"] == {"kubernetes.io/os": "linux"}
    below = await ground.sites[B].read(ground.pod_path("large"))
    assert below["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    await none_kept(ground)
    tried = [(write.verb, code) for write, code in await ground.attempts() if write.subresource == "eviction"]
    assert [code for _, code in tried] == [201]
    await enlarged(ground, A)
    await ground.reload(ground.hooked(), ON, DRAINED_B)
    third = await runs_in(ground, "large", A, second)
    notes = third["metadata"]["annotations"]
    assert (notes["note"], notes[DESCHEDULE_COUNT]) == ("kept", "2")
    assert notes[REPLACES] == second["metadata"]["uid"]
    assert notes[KEPT_OFF] == ground.nodes[B]
    assert orjson.loads(notes["clusterSelector"])["nodeSelector"] == {"kubernetes.io/os": "linux"}
    await none_kept(ground)
    await ground.upper.delete(ground.pod_path("large"), 0)


async def test_a_bare_pod_runs_until_its_disruption_budget_allows_the_eviction(ground: Hooked) -> None:
    """The engine requests the eviction again and again; until then the pod runs on unchanged."""
    await ground.reload(ground.hooked(), DRAINS, CLOSED_B)
    await closed(ground, B)
    made = await asked(ground, "single", "1")
    await runs_in(ground, "single", A)
    budget = {
        "metadata": {"name": "single"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "single"}}},
    }
    await ground.upper.create(ground.path("poddisruptionbudgets", api=POLICY), budget)
    path = ground.path("poddisruptionbudgets", "single", api=POLICY)
    await ground.upper.until(path, lambda one: one.get("status", {}).get("currentHealthy") == 1)
    await ground.note()
    await ground.reload(ground.hooked(), DRAINS, DRAINED_A)
    await polled(lambda: [said for _, said in ground.heard.problems if "disruption budget" in said.message], 30)
    found = await ground.upper.until_all(ground.path("secrets"), lambda all_of: any(BACKUP in name for name in all_of))
    (secret,) = [one for one in found.values() if one["metadata"]["name"].startswith(BACKUP)]
    assert secret["metadata"]["name"] == BACKUP + made["metadata"]["uid"]
    assert OWNER in secret["metadata"]["labels"]
    tried: list[int] = []
    while len(tried) < 3:
        tried = [code for write, code in await ground.attempts() if write.subresource == "eviction"]
    assert set(tried) == {429}
    still = await ground.upper.read(ground.pod_path("single"))
    assert (still["metadata"]["uid"], is_ready(still)) == (made["metadata"]["uid"], True)
    assert "deletionTimestamp" not in still["metadata"]
    await ground.upper.delete(path)
    moved = await runs_in(ground, "single", B, made)
    assert moved["metadata"]["annotations"]["note"] == "kept"
    await none_kept(ground)
    await ground.upper.delete(ground.pod_path("single"), 0)


async def crowded_out(ground: Hooked, name: str) -> tuple[Manifest, Manifest]:
    """Move a pod while a quota forbids pods; stop the engine, and return the pod and its backup Secret."""
    await ground.reload(ground.hooked(), DRAINS, CLOSED_B)
    await closed(ground, B)
    made = await asked(ground, name, "1")
    await runs_in(ground, name, A)
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    await ground.upper.create(ground.path("resourcequotas"), quota)
    await ground.upper.until(ground.path("resourcequotas", "none"), lambda one: one.get("status", {}).get("used"))
    await ground.reload(ground.hooked(), DRAINS, DRAINED_A)
    secret = BACKUP + made["metadata"]["uid"]
    problems = ground.heard.problems
    await polled(lambda: [key for key, said in problems if key.name == secret and "quota" in said.message], 30)
    await ground.stop()
    assert await ground.upper.read(ground.pod_path(name)) == {}
    return made, await ground.upper.read(ground.path("secrets", secret))


async def test_an_evicted_bare_pod_is_kept_until_the_quota_of_its_namespace_allows_it(ground: Hooked) -> None:
    """The quota was created during the move, and a new engine recreates the pod from the Secret alone."""
    made, secret = await crowded_out(ground, "counted")
    await ground.start(ground.hooked(), DRAINS, await_nodes=False)
    about = f"involvedObject.uid={secret['metadata']['uid']},reason=RecreateFailed"
    told = await ground.upper.until_all(f"{ground.path('events')}?fieldSelector={about}", bool)
    assert all("exceeded quota" in event["message"] for event in told.values())
    await ground.upper.delete(ground.path("resourcequotas", "none"))
    moved = await runs(ground, "counted", made)
    assert moved["metadata"]["annotations"][REPLACES] == made["metadata"]["uid"]
    await none_kept(ground)
    await ground.upper.delete(ground.pod_path("counted"), 0)


async def test_an_evicted_bare_pod_is_kept_while_another_pod_has_its_name(ground: Hooked) -> None:
    """The other pod runs on untouched, and an Event explains what a user can do.

    Once the other pod is deleted, the engine recreates the first one.
    """
    made, secret = await crowded_out(ground, "taken")
    await ground.upper.delete(ground.path("resourcequotas", "none"))
    other = await ground.asked("taken", {"terminationGracePeriodSeconds": 1})
    await ground.start(ground.hooked(), DRAINS, await_nodes=False)
    assert "to abandon the pod, delete the Secret" in await ground.told(secret, "RecreateFailed")
    assert (await runs(ground, "taken", made))["metadata"]["uid"] == other["metadata"]["uid"]
    await ground.upper.delete(ground.pod_path("taken"), 0)
    moved = await runs(ground, "taken", other)
    assert moved["metadata"]["annotations"][REPLACES] == made["metadata"]["uid"]
    await none_kept(ground)
    await ground.upper.delete(ground.pod_path("taken"), 0)


async def test_a_bare_pod_is_not_evicted_while_another_object_has_the_name_of_its_backup_secret(ground: Hooked) -> None:
    """The engine does not cache releases of Helm, so only a read finds that Secret; it is not touched."""
    await ground.reload(ground.hooked(), DRAINS, CLOSED_B)
    await closed(ground, B)
    made = await asked(ground, "nameless", "1")
    await runs_in(ground, "nameless", A)
    path = ground.path("secrets", BACKUP + made["metadata"]["uid"])
    theirs = await ground.upper.create(
        ground.path("secrets"), {"metadata": {"name": path.rpartition("/")[2]}, "type": "helm.sh/release.v1"}
    )
    await ground.reload(ground.hooked(), DRAINS, DRAINED_A)
    problems = ground.heard.problems
    await polled(
        lambda: [said for _, said in problems if f"{theirs['metadata']['name']} exists in" in said.message], 30
    )
    assert (await ground.upper.read(ground.pod_path("nameless")))["metadata"]["uid"] == made["metadata"]["uid"]
    assert (await ground.upper.read(path))["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]
    await ground.upper.delete(path)
    await runs(ground, "nameless", made)
    await none_kept(ground)
    await ground.upper.delete(ground.pod_path("nameless"), 0)
