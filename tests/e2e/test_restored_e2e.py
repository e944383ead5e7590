"""Tests of stores that are restored to an earlier state under a running engine: nothing is deleted without approval.

The clusters are this module's own, because other tests must not use a restored one.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from adoptionkit import map_storage_class
from enginekit import UPPER, A, EngineHarness, running_engine
from provisionkit import CLASSES, VOLUMES
from sitekit import Manifest, Refused, condition_of, is_ready, is_true
from storekit import claim, claims, class_name, is_bound, shipped_class, spec_with_claims

from tensile.cli.apply import ApplyOptions, apply
from tensile.engine.plan_and_apply import opened
from tensile.names import DELETIONS_BLOCKED, OWNER
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

API, ETCD = "kube-apiserver", "etcd"
LONG = 60.0


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Start clusters of this module's own."""
    with Sandbox.start(tmp_path_factory.mktemp("restored"), Options(lowers=2, nodes=1)) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def harness(breakable: Sandbox, tmp_path: Path) -> AsyncIterator[EngineHarness]:
    """Start an engine on these clusters."""
    async with running_engine(breakable, tmp_path) as harness:
        yield harness


def back_up(sandbox: Sandbox, cluster: str, backup: Path) -> None:
    """Copy etcd's data while it does not run."""
    sandbox.kill(cluster, ETCD)
    shutil.copytree(sandbox.directory / cluster / "etcd", backup)
    sandbox.restart(cluster, ETCD)


def restore(sandbox: Sandbox, cluster: str, backup: Path) -> None:
    """Replace a cluster's data with a backup."""
    for component in (API, ETCD):
        sandbox.kill(cluster, component)
    shutil.rmtree(sandbox.directory / cluster / "etcd")
    shutil.copytree(backup, sandbox.directory / cluster / "etcd")
    sandbox.restart(cluster, ETCD, wait=False)
    sandbox.restart(cluster, API)


async def held(harness: EngineHarness) -> Manifest:
    """Wait until the node reports that deletions are blocked because a store was restored."""
    node = f"/api/v1/nodes/{harness.nodes[A]}"
    return await harness.upper.until(
        node, lambda one: condition_of(one, DELETIONS_BLOCKED).get("reason") == "StoreRestored", LONG
    )


async def sooner(harness: EngineHarness, name: str, spec: Manifest | None = None) -> Manifest:
    """Create a pod as soon as the upper cluster, which was just restarted, accepts it."""
    async with asyncio.timeout(LONG):
        while True:
            try:
                return await harness.bind(name, spec)
            except (Refused, OSError):
                await asyncio.sleep(0.2)


async def test_an_older_pod_of_a_restored_upper_cluster_does_not_delete_the_newer_lower_pod(
    harness: EngineHarness, tmp_path: Path
) -> None:
    """Only `tensile apply --force` deletes it; a restart of the engine does not."""
    site = harness.sites[A]
    older = await harness.run_pod("db-0")
    await asyncio.to_thread(back_up, harness.sandbox, UPPER, tmp_path / "backup")
    async with asyncio.timeout(LONG):
        while await harness.upper.read(harness.pod_path("db-0")):
            await harness.upper.delete(harness.pod_path("db-0"))
    newer = await sooner(harness, "db-0")
    await harness.upper.until(harness.pod_path("db-0"), is_ready, LONG)
    assert newer["metadata"]["uid"] != older["metadata"]["uid"]
    running = await site.read(harness.pod_path("db-0"))
    await asyncio.to_thread(restore, harness.sandbox, UPPER, tmp_path / "backup")
    await held(harness)
    await harness.wait_idle()
    assert (await site.read(harness.pod_path("db-0")))["metadata"]["uid"] == running["metadata"]["uid"]
    await harness.stop()
    await harness.start()
    await harness.wait_idle()
    assert is_true(await held(harness), DELETIONS_BLOCKED)
    still = await site.read(harness.pod_path("db-0"))
    assert (still["metadata"]["uid"], "deletionTimestamp" in still["metadata"]) == (running["metadata"]["uid"], False)
    await harness.stop()
    await forced(harness)
    await site.gone(harness.pod_path("db-0"))
    await harness.start()


async def forced(harness: EngineHarness) -> None:
    """Do the same as `tensile apply --force`."""
    opening = partial(opened, harness.topology(), harness.cluster_access)
    await asyncio.to_thread(apply, opening, ApplyOptions(forced=True), lambda _plan: None)


async def a_volume(harness: EngineHarness) -> None:
    """Create a static volume in the lower cluster, and map an upper storage class to its class."""
    site, disk = harness.sites[A], class_name(harness, "disk")
    await harness.upper.create(CLASSES, shipped_class(class_name(harness, "goes")))
    fields = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    await site.create(CLASSES, {"metadata": {"name": disk}, **fields})
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": disk,
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": "/none"},
    }
    await site.create(VOLUMES, {"metadata": {"name": disk}, "spec": spec})
    await harness.reload(map_storage_class(harness))


async def test_objects_of_a_restored_lower_cluster_are_not_deleted_and_missing_pods_not_lost(
    harness: EngineHarness, tmp_path: Path
) -> None:
    """A pod and a claim that were deleted exist again and are kept.

    A newer pod, which the lower cluster has forgotten, still counts as running.
    """
    site, paths = harness.sites[A], (harness.pod_path("back"), claims(harness, "data"))
    await a_volume(harness)
    await harness.upper.create(claims(harness), claim(harness, "data"))
    await harness.run_pod("back", spec_with_claims("data"))
    await harness.upper.until(claims(harness, "data"), is_bound)
    before = [(await site.read(path))["metadata"]["uid"] for path in paths]
    await asyncio.to_thread(back_up, harness.sandbox, A, tmp_path / "backup")
    for path in paths:
        await harness.upper.delete(path)
        await harness.upper.gone(path, limit=LONG)
    await harness.upper.until_all(f"{VOLUMES}?labelSelector={OWNER}={harness.owner.mark}", lambda one: not one, LONG)
    await harness.bind("newer")
    await harness.upper.until(harness.pod_path("newer"), is_ready, LONG)
    await asyncio.to_thread(restore, harness.sandbox, A, tmp_path / "backup")
    for _ in range(2):
        await held(harness)
        await harness.wait_idle()
        now = [(await site.read(path))["metadata"] for path in paths]
        assert [one["uid"] for one in now] == before
        assert [one["name"] for one in now if "deletionTimestamp" in one] == []
        assert (await harness.upper.read(harness.pod_path("newer")))["status"]["phase"] == "Running"
        await harness.stop()
        await harness.start(map_storage_class(harness))
    await harness.stop()
    await forced(harness)
    await harness.start()
    await site.delete(claims(harness, "data"))
