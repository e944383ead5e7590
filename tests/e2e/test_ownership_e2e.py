"""Tests that marks prove nothing: a client gains nothing by writing them on lower objects or on upper pods.

Each forgery happens beside running pods, on real clusters. A forger may write in one lower namespace, and knows names
and UIDs.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from enginekit import UPPER, A, B, EngineHarness, advertised, running_engine, with_fields
from forgerkit import BY_US, HOLD, Marks, create_forged_pod, remove_finalizers
from sitekit import Manifest, condition_of, is_ready, is_true, phase_of

from tensile.kubelet.pods.service_account import secret_name
from tensile.names import DELETIONS_BLOCKED, MIRRORED, OWNER, UPPER_UID
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SECRET = {"volumes": [{"name": "s", "secret": {"secretName": "password"}}]}
ENV = {"envFrom": [{"secretRef": {"name": "password"}}]}
NEVER = {"schedulerName": "nobody"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineHarness]:
    """Start an engine whose pods have upper tokens, and create a lower namespace to which no upper one maps."""
    identity = with_fields(serviceAccounts={"identity": "upper"})
    server = advertised(sandbox)
    directory = tmp_path_factory.mktemp("ownership")
    async with running_engine(
        sandbox, directory, identity, lambda file: file["upper"].update(advertiseURL=server)
    ) as harness:
        for name in (A, B):
            await harness.make_namespace(name, aaa(harness))
        await harness.upper.create(harness.path("serviceaccounts"), {"metadata": {"name": "payer"}})
        yield harness
        for name in (A, B):
            await harness.sites[name].delete(harness.path("pods", namespace=aaa(harness)), 0)
            await harness.sites[name].delete(f"/api/v1/namespaces/{aaa(harness)}")


def aaa(harness: EngineHarness) -> str:
    """Return the lower namespace in which the forger may write; it sorts before all others."""
    return f"aaa-{harness.mark}"


def reason_of(pod: Manifest) -> str:
    """Return why a pod is not mirrored."""
    return str(condition_of(pod, MIRRORED).get("reason", ""))


async def secrets_in(harness: EngineHarness, cluster: str, namespace: str) -> set[str]:
    """Return the names of the Secrets of a lower namespace."""
    found = await harness.sites[cluster].read(harness.path("secrets", namespace=namespace))
    return {one["metadata"]["name"] for one in found["items"]}


async def test_a_lower_pod_with_the_uid_of_another_pod_is_not_used_as_its_copy(harness: EngineHarness) -> None:
    """It yields no status, exec or token, neither before the real copy is created nor beside it nor after a restart."""
    site, there = harness.sites[A], harness.path("pods", "p", namespace=aaa(harness))
    waits = {"serviceAccountName": "payer", "containers": [{"name": "main", "image": "app:1", **ENV}]}
    uid = (await harness.bind("p", waits))["metadata"]["uid"]
    await harness.upper.until(harness.pod_path("p"), lambda one: reason_of(one) == "SecretNotFound")
    twin = await create_forged_pod(harness, site, aaa(harness), "p", uid, spec={"volumes": token_volume(uid), **MOUNTS})
    await site.until(there, lambda one: one["spec"].get("nodeName"))
    await harness.wait_idle()
    assert reason_of(await harness.upper.read(harness.pod_path("p"))) == "SecretNotFound"
    await harness.upper.create(harness.path("secrets"), {"metadata": {"name": "password"}, "data": {"key": "dmFsdWU="}})
    pod = await harness.upper.until(harness.pod_path("p"), is_ready)
    assert pod["status"]["podIP"] == (await site.read(harness.pod_path("p")))["status"]["podIP"]
    await relabelled(harness, harness.pod_path("p"), there)
    assert (await harness.kubectl("exec", "p", "--", "echo", "here")).out == "here\n"
    await harness.stop()
    await harness.start(*identity_edits(harness))
    await harness.wait_idle()
    assert is_ready(await harness.upper.read(harness.pod_path("p")))
    assert not await secrets_in(harness, A, aaa(harness))
    assert secret_name(uid) in await secrets_in(harness, A, harness.namespace)
    await harness.end_pods("p")
    still = await site.read(there)
    assert (still["metadata"]["uid"], "deletionTimestamp" in still["metadata"]) == (twin["metadata"]["uid"], False)
    await site.delete(there, 0)
    await harness.upper.delete(harness.path("secrets", "password"))


async def relabelled(harness: EngineHarness, path: str, forged: str) -> None:
    """Change the real pods and the forged one in turn, so that each is the last changed pod with their UID."""
    for number in range(3):
        label = {"metadata": {"labels": {"turn": str(number)}}}
        for site, pod in ((A, path), (UPPER, path), (A, forged)):
            await harness.sites[site].patch(pod, label)
        await harness.wait_idle()


MOUNTS = {
    "containers": [{"name": "main", "image": "app:1", "volumeMounts": [{"name": "t", "mountPath": "/t"}]}],
    "automountServiceAccountToken": False,
}


def token_volume(uid: str) -> list[Manifest]:
    """Return the volume by which the engine mounts upper tokens of a pod."""
    return [{"name": "t", "projected": {"sources": [{"secret": {"name": secret_name(uid), "optional": True}}]}}]


def identity_edits(harness: EngineHarness) -> tuple[object, ...]:
    """Return the edits of this harness's topology."""
    server = advertised(harness.sandbox)
    return with_fields(serviceAccounts={"identity": "upper"}), lambda file: file["upper"].update(advertiseURL=server)


@pytest.mark.parametrize("marks", ["label", "all"])
async def test_a_forged_lower_pod_causes_no_copies_of_objects(harness: EngineHarness, marks: Marks) -> None:
    """No upper pod refers to them, so no Secret, account or Service is copied, whatever a lower pod names."""
    space = f"{harness.namespace}-prod-{marks}"
    site = harness.sites[B]
    for name in (UPPER, B):
        await harness.make_namespace(name, space)
    for name in ("password", "pull"):
        body = {"metadata": {"name": name}, "data": {"key": "dmFsdWU="}}
        await harness.upper.create(harness.path("secrets", namespace=space), body)
    account = {"metadata": {"name": "payer"}, "imagePullSecrets": [{"name": "pull"}]}
    await harness.upper.create(harness.path("serviceaccounts", namespace=space), account)
    service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}
    await harness.upper.create(harness.path("services", namespace=space), service)
    await site.create(harness.path("serviceaccounts", namespace=space), {"metadata": {"name": "bait"}})
    names = {**SECRET, "imagePullSecrets": [{"name": "pull"}], "serviceAccountName": "bait", **NEVER}
    await create_forged_pod(harness, site, space, "bait", "nobody", marks=marks, spec=names, finalizers=[HOLD])
    await harness.wait_idle()
    assert await secrets_in(harness, B, space) == set()
    assert await site.read(harness.path("services", "web", namespace=space)) == {}
    assert await site.read(harness.path("serviceaccounts", "payer", namespace=space)) == {}
    await remove_finalizers(site, harness.path("pods", "bait", namespace=space))
    await site.delete(harness.path("pods", "bait", namespace=space), 0)
    for name in (UPPER, B):
        await harness.sites[name].delete(f"/api/v1/namespaces/{space}")


async def test_a_forged_lower_pod_keeps_a_copy_only_without_updates(harness: EngineHarness) -> None:
    """The copy is not updated any more, and is deleted with its upper object although the forged pod still exists."""
    site = harness.sites[A]
    for name in ("password", "fence"):
        await harness.upper.create(harness.path("secrets"), {"metadata": {"name": name}, "data": {"key": "dmFsdWU="}})
    await harness.bind("user", SECRET)
    await harness.bind("follower", {"volumes": [{"name": "s", "secret": {"secretName": "fence"}}]})
    for name in ("user", "follower"):
        await harness.upper.until(harness.pod_path(name), is_ready)
    await create_forged_pod(
        harness, site, harness.namespace, "keeper", "nobody", spec={**SECRET, **NEVER}, finalizers=[HOLD]
    )
    await harness.end_pods("user")
    await harness.wait_idle()
    before = await site.read(harness.path("secrets", "password"))
    assert before["metadata"]["labels"][OWNER] == harness.owner.mark
    await harness.upper.patch(harness.path("secrets", "password"), {"data": {"key": "bmV3"}})
    await harness.upper.patch(harness.path("secrets", "fence"), {"data": {"key": "bmV3"}})
    await site.until(harness.path("secrets", "fence"), lambda one: one["data"]["key"] == "bmV3")
    await harness.wait_idle()
    assert (await site.read(harness.path("secrets", "password")))["data"] == before["data"]
    await harness.upper.delete(harness.path("secrets", "password"))
    await site.gone(harness.path("secrets", "password"))
    await remove_finalizers(site, harness.pod_path("keeper"))
    await site.delete(harness.pod_path("keeper"), 0)
    await site.gone(harness.pod_path("keeper"))
    await harness.end_pods("follower")


async def test_marks_on_an_upper_pod_have_no_effect(harness: EngineHarness) -> None:
    """A tenant writes the UID of another pod on his own.

    The other pod keeps its events and its status, and is not deleted with the first one.
    """
    victim = await harness.bind("victim")
    uid = victim["metadata"]["uid"]
    notes = {"annotations": {UPPER_UID: uid}, "labels": {OWNER: harness.owner.mark}}
    body = harness.pod("claimant", **notes)
    await harness.upper.create(f"{harness.path('pods')}?{BY_US}", body)
    for name in ("victim", "claimant"):
        await harness.upper.until(harness.pod_path(name), is_ready)
    site = harness.sites[A]
    await harness.upper.patch(harness.pod_path("victim"), {"metadata": {"labels": {"turn": "last"}}})
    await site.until(harness.pod_path("victim"), lambda one: one["metadata"]["labels"]["turn"] == "last")
    for name in ("victim", "claimant"):
        lower = await site.read(harness.pod_path(name))
        upper = await harness.upper.read(harness.pod_path(name))
        assert lower["metadata"]["annotations"][UPPER_UID] == upper["metadata"]["uid"]
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": harness.namespace, "name": "victim"}
    about["uid"] = (await site.read(harness.pod_path("victim")))["metadata"]["uid"]
    event = {"reason": "Pulling", "message": "hello", "type": "Normal", "source": {"component": "e2e"}}
    await site.create(harness.path("events"), {"metadata": {"name": "victim.1"}, "involvedObject": about, **event})
    await harness.upper.until_all(
        f"{harness.path('events')}?fieldSelector=involvedObject.uid={uid},reason=Pulling", bool
    )
    await harness.end_pods("claimant")
    assert is_ready(await harness.upper.read(harness.pod_path("victim")))
    await harness.end_pods("victim")


@pytest.mark.parametrize("grace", [None, 0], ids=["deleted", "by force"])
async def test_a_pod_deleted_while_no_engine_runs_is_deleted_and_its_forged_twin_is_kept(
    harness: EngineHarness, grace: int | None
) -> None:
    """Of two lower pods with one UID, the one at the upper pod's place is the copy."""
    site = harness.sites[A]
    pod = await harness.run_pod("away")
    real = await site.read(harness.pod_path("away"))
    twin = await create_forged_pod(harness, site, aaa(harness), "away", pod["metadata"]["uid"])
    await harness.wait_idle()
    await harness.stop()
    await harness.upper.delete(harness.pod_path("away"), grace)
    await harness.start(*identity_edits(harness))
    await harness.upper.gone(harness.pod_path("away"))
    await site.until(
        harness.pod_path("away"), lambda one: one.get("metadata", {}).get("uid") != real["metadata"]["uid"]
    )
    await harness.wait_idle()
    still = await site.read(harness.path("pods", "away", namespace=aaa(harness)))
    assert still["metadata"]["uid"] == twin["metadata"]["uid"]
    assert "deletionTimestamp" not in still["metadata"]
    await site.delete(harness.path("pods", "away", namespace=aaa(harness)), 0)


async def test_many_orphans_in_one_namespace_do_not_block_other_namespaces(harness: EngineHarness) -> None:
    """The guard blocks the deletion of sixty forged pods.

    An upper pod of another namespace is still reported as lost when its lower pod is deleted.
    """
    site, shop = harness.sites[A], f"{harness.namespace}-shop"
    for name in (UPPER, A):
        await harness.make_namespace(name, shop)
    await harness.run_pod("quiet")
    await asyncio.gather(
        *(
            create_forged_pod(harness, site, shop, f"forged-{number}", f"nobody-{number}", spec=NEVER)
            for number in range(60)
        )
    )
    node = f"/api/v1/nodes/{harness.nodes[A]}"
    held = await harness.upper.until(node, lambda one: is_true(one, DELETIONS_BLOCKED))
    assert f"in namespace {shop}" in condition_of(held, DELETIONS_BLOCKED)["message"]
    await site.delete(harness.pod_path("quiet"), 0)
    await harness.upper.until(harness.pod_path("quiet"), lambda one: one["status"].get("reason") == "LowerPodLost")
    await harness.end_pods("quiet")
    await site.delete(harness.path("pods", namespace=shop), 0)
    await harness.upper.until(node, lambda one: not is_true(one, DELETIONS_BLOCKED))
    for name in (UPPER, A):
        await harness.sites[name].delete(f"/api/v1/namespaces/{shop}")


async def test_a_forged_predecessor_that_never_ran_delays_no_pod(harness: EngineHarness) -> None:
    """A pod of the same name in the other cluster without a node blocks no other, even with a finalizer."""
    there = harness.sites[B]
    await harness.run_pod("other", lower=B)
    await create_forged_pod(harness, there, harness.namespace, "db-0", "earlier", spec=NEVER, finalizers=[HOLD])
    await harness.run_pod("db-0")
    await remove_finalizers(there, harness.pod_path("db-0"))
    await there.gone(harness.pod_path("db-0"))
    await harness.end_pods("db-0", "other")


async def test_a_running_predecessor_is_named_and_deleted_within_the_grace_period_of_its_successor(
    harness: EngineHarness,
) -> None:
    """Two pods of a name never run at the same time, however long the grace period of the forged one is."""
    there = harness.sites[B]
    await harness.run_pod("other", lower=B)
    slow = {"terminationGracePeriodSeconds": 10**9}
    await create_forged_pod(harness, there, harness.namespace, "db-0", "earlier", spec=slow, finalizers=[HOLD])
    await there.until(harness.pod_path("db-0"), lambda one: one["spec"].get("nodeName"))
    await harness.wait_idle()
    pod = await harness.bind("db-0", {"terminationGracePeriodSeconds": 2})
    message = await harness.wait_for_event(pod, "PredecessorRunning")
    assert f"pod {harness.namespace}/db-0 in lower cluster {B}" in message
    ending = await there.until(harness.pod_path("db-0"), lambda one: one["metadata"].get("deletionTimestamp"))
    assert ending["metadata"]["deletionGracePeriodSeconds"] <= 2
    assert await harness.sites[A].read(harness.pod_path("db-0")) == {}
    await remove_finalizers(there, harness.pod_path("db-0"))
    await harness.upper.until(harness.pod_path("db-0"), is_ready)
    await harness.end_pods("db-0", "other")


async def test_a_pod_waits_after_a_restart_until_its_predecessor_in_another_lower_is_deleted(
    harness: EngineHarness,
) -> None:
    """The upper pod was force-deleted while no engine ran, and another pod of its name is bound to another lower."""
    there = harness.sites[B]
    await harness.run_pod("db-1", lower=B)
    await there.patch(harness.pod_path("db-1"), {"metadata": {"finalizers": [HOLD]}})
    await harness.stop()
    await harness.upper.delete(harness.pod_path("db-1"), 0)
    pod = await harness.bind("db-1")
    await harness.start(*identity_edits(harness))
    await harness.wait_for_event(pod, "PredecessorRunning")
    await there.until(harness.pod_path("db-1"), lambda one: one["metadata"].get("deletionTimestamp"))
    assert await harness.sites[A].read(harness.pod_path("db-1")) == {}
    await remove_finalizers(there, harness.pod_path("db-1"))
    await harness.upper.until(harness.pod_path("db-1"), is_ready)
    await harness.end_pods("db-1")


async def test_a_pod_waits_for_its_terminating_predecessor_which_is_deleted_only_once(harness: EngineHarness) -> None:
    """A finalizer holds the predecessor; an Event of the new pod reports that, and the pod starts afterwards."""
    site = harness.sites[A]
    await harness.run_pod("next", {"terminationGracePeriodSeconds": 30})
    await site.patch(harness.pod_path("next"), {"metadata": {"finalizers": [HOLD]}})
    await harness.mark_audit_logs()
    await harness.upper.delete(harness.pod_path("next"), 0)
    await harness.upper.gone(harness.pod_path("next"))
    pod = await harness.bind("next")
    message = await harness.wait_for_event(pod, "PredecessorTerminating")
    assert f"pod {harness.namespace}/next in lower cluster {A}" in message
    assert phase_of(await harness.upper.read(harness.pod_path("next"))) == "Pending"
    await harness.wait_idle()
    deletions = [one for one in await harness.writes() if (one.cluster, one.verb, one.name) == (A, "delete", "next")]
    assert len(deletions) == 1
    await remove_finalizers(site, harness.pod_path("next"))
    await harness.upper.until(harness.pod_path("next"), is_ready)
    await harness.end_pods("next")
