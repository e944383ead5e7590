"""Tests that marks prove nothing: a client gains nothing by writing them on lower objects or on upper pods.

Each forgery happens beside running pods, on real clusters. A forger may write in one lower namespace, and knows names
and UIDs.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from enginekit import UPPER, A, B, Ground, advertised, standing, with_fields
from forgerkit import BY_US, HOLD, Marks, forge, release
from sitekit import Manifest, condition_of, is_ready, is_true, phase_of

from tensile.kubelet.pods.service_account import secret_name
from tensile.names import DELETIONS_BLOCKED, MIRRORED, OWNER, UPPER_UID
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SECRET = {"volumes": [{"name": "s", "secret": {"secretName": "password"}}]}
ENV = {"envFrom": [{"secretRef": {"name": "password"}}]}
NEVER = {"schedulerName": "nobody"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Start an engine whose pods have upper tokens, and create a lower namespace to which no upper one maps."""
    identity = with_fields(serviceAccounts={"identity": "upper"})
    server = advertised(sandbox)
    directory = tmp_path_factory.mktemp("ownership")
    async with standing(sandbox, directory, identity, lambda file: file["upper"].update(advertiseURL=server)) as made:
        for name in (A, B):
            await made.make_namespace(name, aaa(made))
        await made.upper.create(made.path("serviceaccounts"), {"metadata": {"name": "payer"}})
        yield made
        for name in (A, B):
            await made.sites[name].delete(made.path("pods", namespace=aaa(made)), 0)
            await made.sites[name].delete(f"/api/v1/namespaces/{aaa(made)}")


def aaa(ground: Ground) -> str:
    """Return the lower namespace in which the forger may write; it sorts before all others."""
    return f"aaa-{ground.mark}"


def reason_of(pod: Manifest) -> str:
    """Return why a pod is not mirrored."""
    return str(condition_of(pod, MIRRORED).get("reason", ""))


async def secrets_in(ground: Ground, cluster: str, namespace: str) -> set[str]:
    """Return the names of the Secrets of a lower namespace."""
    found = await ground.sites[cluster].read(ground.path("secrets", namespace=namespace))
    return {one["metadata"]["name"] for one in found["items"]}


async def test_a_lower_pod_with_the_uid_of_another_pod_is_not_used_as_its_copy(ground: Ground) -> None:
    """It yields no status, exec or token, neither before the real copy is created nor beside it nor after a restart."""
    site, there = ground.sites[A], ground.path("pods", "p", namespace=aaa(ground))
    waits = {"serviceAccountName": "payer", "containers": [{"name": "main", "image": "app:1", **ENV}]}
    uid = (await ground.bind("p", waits))["metadata"]["uid"]
    await ground.upper.until(ground.pod_path("p"), lambda one: reason_of(one) == "SecretNotFound")
    twin = await forge(ground, site, aaa(ground), "p", uid, spec={"volumes": token_volume(uid), **MOUNTS})
    await site.until(there, lambda one: one["spec"].get("nodeName"))
    await ground.calm()
    assert reason_of(await ground.upper.read(ground.pod_path("p"))) == "SecretNotFound"
    await ground.upper.create(ground.path("secrets"), {"metadata": {"name": "password"}, "data": {"key": "dmFsdWU="}})
    pod = await ground.upper.until(ground.pod_path("p"), is_ready)
    assert pod["status"]["podIP"] == (await site.read(ground.pod_path("p")))["status"]["podIP"]
    await relabelled(ground, ground.pod_path("p"), there)
    assert (await ground.kubectl("exec", "p", "--", "echo", "here")).out == "here\n"
    await ground.stop()
    await ground.start(*identity_edits(ground))
    await ground.calm()
    assert is_ready(await ground.upper.read(ground.pod_path("p")))
    assert not await secrets_in(ground, A, aaa(ground))
    assert secret_name(uid) in await secrets_in(ground, A, ground.namespace)
    await ground.end_pods("p")
    still = await site.read(there)
    assert (still["metadata"]["uid"], "deletionTimestamp" in still["metadata"]) == (twin["metadata"]["uid"], False)
    await site.delete(there, 0)
    await ground.upper.delete(ground.path("secrets", "password"))


async def relabelled(ground: Ground, path: str, forged: str) -> None:
    """Change the real pods and the forged one in turn, so that each is the last changed pod with their UID."""
    for number in range(3):
        label = {"metadata": {"labels": {"turn": str(number)}}}
        for site, pod in ((A, path), (UPPER, path), (A, forged)):
            await ground.sites[site].patch(pod, label)
        await ground.calm()


MOUNTS = {
    "containers": [{"name": "main", "image": "app:1", "volumeMounts": [{"name": "t", "mountPath": "/t"}]}],
    "automountServiceAccountToken": False,
}


def token_volume(uid: str) -> list[Manifest]:
    """Return the volume by which the engine mounts upper tokens of a pod."""
    return [{"name": "t", "projected": {"sources": [{"secret": {"name": secret_name(uid), "optional": True}}]}}]


def identity_edits(ground: Ground) -> tuple[object, ...]:
    """Return the edits of this ground's topology."""
    server = advertised(ground.sandbox)
    return with_fields(serviceAccounts={"identity": "upper"}), lambda file: file["upper"].update(advertiseURL=server)


@pytest.mark.parametrize("marks", ["label", "all"])
async def test_a_forged_lower_pod_causes_no_copies_of_objects(ground: Ground, marks: Marks) -> None:
    """No upper pod refers to them, so no Secret, account or Service is copied, whatever a lower pod names."""
    space = f"{ground.namespace}-prod-{marks}"
    site = ground.sites[B]
    for name in (UPPER, B):
        await ground.make_namespace(name, space)
    for name in ("password", "pull"):
        body = {"metadata": {"name": name}, "data": {"key": "dmFsdWU="}}
        await ground.upper.create(ground.path("secrets", namespace=space), body)
    account = {"metadata": {"name": "payer"}, "imagePullSecrets": [{"name": "pull"}]}
    await ground.upper.create(ground.path("serviceaccounts", namespace=space), account)
    service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}
    await ground.upper.create(ground.path("services", namespace=space), service)
    await site.create(ground.path("serviceaccounts", namespace=space), {"metadata": {"name": "bait"}})
    names = {**SECRET, "imagePullSecrets": [{"name": "pull"}], "serviceAccountName": "bait", **NEVER}
    await forge(ground, site, space, "bait", "nobody", marks=marks, spec=names, finalizers=[HOLD])
    await ground.calm()
    assert await secrets_in(ground, B, space) == set()
    assert await site.read(ground.path("services", "web", namespace=space)) == {}
    assert await site.read(ground.path("serviceaccounts", "payer", namespace=space)) == {}
    await release(site, ground.path("pods", "bait", namespace=space))
    await site.delete(ground.path("pods", "bait", namespace=space), 0)
    for name in (UPPER, B):
        await ground.sites[name].delete(f"/api/v1/namespaces/{space}")


async def test_a_forged_lower_pod_keeps_a_copy_only_without_updates(ground: Ground) -> None:
    """The copy is not updated any more, and is deleted with its upper object although the forged pod still exists."""
    site = ground.sites[A]
    for name in ("password", "fence"):
        await ground.upper.create(ground.path("secrets"), {"metadata": {"name": name}, "data": {"key": "dmFsdWU="}})
    await ground.bind("user", SECRET)
    await ground.bind("follower", {"volumes": [{"name": "s", "secret": {"secretName": "fence"}}]})
    for name in ("user", "follower"):
        await ground.upper.until(ground.pod_path(name), is_ready)
    await forge(ground, site, ground.namespace, "keeper", "nobody", spec={**SECRET, **NEVER}, finalizers=[HOLD])
    await ground.end_pods("user")
    await ground.calm()
    before = await site.read(ground.path("secrets", "password"))
    assert before["metadata"]["labels"][OWNER] == ground.owner.mark
    await ground.upper.patch(ground.path("secrets", "password"), {"data": {"key": "bmV3"}})
    await ground.upper.patch(ground.path("secrets", "fence"), {"data": {"key": "bmV3"}})
    await site.until(ground.path("secrets", "fence"), lambda one: one["data"]["key"] == "bmV3")
    await ground.calm()
    assert (await site.read(ground.path("secrets", "password")))["data"] == before["data"]
    await ground.upper.delete(ground.path("secrets", "password"))
    await site.gone(ground.path("secrets", "password"))
    await release(site, ground.pod_path("keeper"))
    await site.delete(ground.pod_path("keeper"), 0)
    await site.gone(ground.pod_path("keeper"))
    await ground.end_pods("follower")


async def test_marks_on_an_upper_pod_have_no_effect(ground: Ground) -> None:
    """A tenant writes the UID of another pod on his own.

    The other pod keeps its events and its status, and is not deleted with the first one.
    """
    victim = await ground.bind("victim")
    uid = victim["metadata"]["uid"]
    notes = {"annotations": {UPPER_UID: uid}, "labels": {OWNER: ground.owner.mark}}
    body = ground.pod("claimant", **notes)
    await ground.upper.create(f"{ground.path('pods')}?{BY_US}", body)
    for name in ("victim", "claimant"):
        await ground.upper.until(ground.pod_path(name), is_ready)
    site = ground.sites[A]
    await ground.upper.patch(ground.pod_path("victim"), {"metadata": {"labels": {"turn": "last"}}})
    await site.until(ground.pod_path("victim"), lambda one: one["metadata"]["labels"]["turn"] == "last")
    for name in ("victim", "claimant"):
        lower = await site.read(ground.pod_path(name))
        upper = await ground.upper.read(ground.pod_path(name))
        assert lower["metadata"]["annotations"][UPPER_UID] == upper["metadata"]["uid"]
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": ground.namespace, "name": "victim"}
    about["uid"] = (await site.read(ground.pod_path("victim")))["metadata"]["uid"]
    said = {"reason": "Pulling", "message": "hello", "type": "Normal", "source": {"component": "e2e"}}
    await site.create(ground.path("events"), {"metadata": {"name": "victim.1"}, "involvedObject": about, **said})
    await ground.upper.until_all(f"{ground.path('events')}?fieldSelector=involvedObject.uid={uid},reason=Pulling", bool)
    await ground.end_pods("claimant")
    assert is_ready(await ground.upper.read(ground.pod_path("victim")))
    await ground.end_pods("victim")


@pytest.mark.parametrize("grace", [None, 0], ids=["deleted", "by force"])
async def test_a_pod_deleted_while_no_engine_runs_is_deleted_and_its_forged_twin_is_kept(
    ground: Ground, grace: int | None
) -> None:
    """Of two lower pods with one UID, the one at the upper pod's place is the copy."""
    site = ground.sites[A]
    pod = await ground.run_pod("away")
    real = await site.read(ground.pod_path("away"))
    twin = await forge(ground, site, aaa(ground), "away", pod["metadata"]["uid"])
    await ground.calm()
    await ground.stop()
    await ground.upper.delete(ground.pod_path("away"), grace)
    await ground.start(*identity_edits(ground))
    await ground.upper.gone(ground.pod_path("away"))
    await site.until(ground.pod_path("away"), lambda one: one.get("metadata", {}).get("uid") != real["metadata"]["uid"])
    await ground.calm()
    still = await site.read(ground.path("pods", "away", namespace=aaa(ground)))
    assert still["metadata"]["uid"] == twin["metadata"]["uid"]
    assert "deletionTimestamp" not in still["metadata"]
    await site.delete(ground.path("pods", "away", namespace=aaa(ground)), 0)


async def test_many_orphans_in_one_namespace_do_not_block_other_namespaces(ground: Ground) -> None:
    """The guard blocks the deletion of sixty forged pods.

    An upper pod of another namespace is still reported as lost when its lower pod is deleted.
    """
    site, shop = ground.sites[A], f"{ground.namespace}-shop"
    for name in (UPPER, A):
        await ground.make_namespace(name, shop)
    await ground.run_pod("quiet")
    await asyncio.gather(
        *(forge(ground, site, shop, f"forged-{number}", f"nobody-{number}", spec=NEVER) for number in range(60))
    )
    node = f"/api/v1/nodes/{ground.nodes[A]}"
    held = await ground.upper.until(node, lambda one: is_true(one, DELETIONS_BLOCKED))
    assert f"in namespace {shop}" in condition_of(held, DELETIONS_BLOCKED)["message"]
    await site.delete(ground.pod_path("quiet"), 0)
    await ground.upper.until(ground.pod_path("quiet"), lambda one: one["status"].get("reason") == "LowerPodLost")
    await ground.end_pods("quiet")
    await site.delete(ground.path("pods", namespace=shop), 0)
    await ground.upper.until(node, lambda one: not is_true(one, DELETIONS_BLOCKED))
    for name in (UPPER, A):
        await ground.sites[name].delete(f"/api/v1/namespaces/{shop}")


async def test_a_forged_predecessor_that_never_ran_delays_no_pod(ground: Ground) -> None:
    """A pod of the same name in the other cluster without a node blocks no other, even with a finalizer."""
    there = ground.sites[B]
    await ground.run_pod("other", lower=B)
    await forge(ground, there, ground.namespace, "db-0", "earlier", spec=NEVER, finalizers=[HOLD])
    await ground.run_pod("db-0")
    await release(there, ground.pod_path("db-0"))
    await there.gone(ground.pod_path("db-0"))
    await ground.end_pods("db-0", "other")


async def test_a_running_predecessor_is_named_and_deleted_within_the_grace_period_of_its_successor(
    ground: Ground,
) -> None:
    """Two pods of a name never run at the same time, however long the grace period of the forged one is."""
    there = ground.sites[B]
    await ground.run_pod("other", lower=B)
    slow = {"terminationGracePeriodSeconds": 10**9}
    await forge(ground, there, ground.namespace, "db-0", "earlier", spec=slow, finalizers=[HOLD])
    await there.until(ground.pod_path("db-0"), lambda one: one["spec"].get("nodeName"))
    await ground.calm()
    pod = await ground.bind("db-0", {"terminationGracePeriodSeconds": 2})
    message = await ground.told(pod, "PredecessorRunning")
    assert f"pod {ground.namespace}/db-0 in lower cluster {B}" in message
    ending = await there.until(ground.pod_path("db-0"), lambda one: one["metadata"].get("deletionTimestamp"))
    assert ending["metadata"]["deletionGracePeriodSeconds"] <= 2
    assert await ground.sites[A].read(ground.pod_path("db-0")) == {}
    await release(there, ground.pod_path("db-0"))
    await ground.upper.until(ground.pod_path("db-0"), is_ready)
    await ground.end_pods("db-0", "other")


async def test_a_pod_waits_after_a_restart_until_its_predecessor_in_another_lower_is_deleted(ground: Ground) -> None:
    """The upper pod was force-deleted while no engine ran, and another pod of its name is bound to another lower."""
    there = ground.sites[B]
    await ground.run_pod("db-1", lower=B)
    await there.patch(ground.pod_path("db-1"), {"metadata": {"finalizers": [HOLD]}})
    await ground.stop()
    await ground.upper.delete(ground.pod_path("db-1"), 0)
    pod = await ground.bind("db-1")
    await ground.start(*identity_edits(ground))
    await ground.told(pod, "PredecessorRunning")
    await there.until(ground.pod_path("db-1"), lambda one: one["metadata"].get("deletionTimestamp"))
    assert await ground.sites[A].read(ground.pod_path("db-1")) == {}
    await release(there, ground.pod_path("db-1"))
    await ground.upper.until(ground.pod_path("db-1"), is_ready)
    await ground.end_pods("db-1")


async def test_a_pod_waits_for_its_terminating_predecessor_which_is_deleted_only_once(ground: Ground) -> None:
    """A finalizer holds the predecessor; an Event of the new pod reports that, and the pod starts afterwards."""
    site = ground.sites[A]
    await ground.run_pod("next", {"terminationGracePeriodSeconds": 30})
    await site.patch(ground.pod_path("next"), {"metadata": {"finalizers": [HOLD]}})
    await ground.note()
    await ground.upper.delete(ground.pod_path("next"), 0)
    await ground.upper.gone(ground.pod_path("next"))
    pod = await ground.bind("next")
    message = await ground.told(pod, "PredecessorTerminating")
    assert f"pod {ground.namespace}/next in lower cluster {A}" in message
    assert phase_of(await ground.upper.read(ground.pod_path("next"))) == "Pending"
    await ground.calm()
    deletions = [one for one in await ground.writes() if (one.cluster, one.verb, one.name) == (A, "delete", "next")]
    assert len(deletions) == 1
    await release(site, ground.pod_path("next"))
    await ground.upper.until(ground.pod_path("next"), is_ready)
    await ground.end_pods("next")
