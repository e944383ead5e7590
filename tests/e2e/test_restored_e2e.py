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
from adoptionkit import stored
from enginekit import UPPER, A, Ground, standing
from provisionkit import CLASSES, VOLUMES
from sitekit import Manifest, Refused, condition_of, is_ready, is_true
from storekit import claim, claims, is_bound, mark, shipped, using

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
async def ground(breakable: Sandbox, tmp_path: Path) -> AsyncIterator[Ground]:
    """Start an engine on these clusters."""
    async with standing(breakable, tmp_path) as made:
        yield made


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


async def held(ground: Ground) -> Manifest:
    """Wait until the node reports that deletions are blocked because a store was restored."""
    node = f"/api/v1/nodes/{ground.nodes[A]}"
    return await ground.upper.until(
        node, lambda one: condition_of(one, DELETIONS_BLOCKED).get("reason") == "StoreRestored", LONG
    )


async def sooner(ground: Ground, name: str, spec: Manifest | None = None) -> Manifest:
    """Create a pod as soon as the upper cluster, which was just restarted, accepts it."""
    async with asyncio.timeout(LONG):
        while True:
            try:
                return await ground.bind(name, spec)
            except (Refused, OSError):
                await asyncio.sleep(0.2)


async def test_an_older_pod_of_a_restored_upper_cluster_does_not_delete_the_newer_lower_pod(
    ground: Ground, tmp_path: Path
) -> None:
    """Only `tensile apply --force` deletes it; a restart of the engine does not."""
    site = ground.sites[A]
    older = await ground.run_pod("db-0")
    await asyncio.to_thread(back_up, ground.sandbox, UPPER, tmp_path / "backup")
    async with asyncio.timeout(LONG):
        while await ground.upper.read(ground.pod_path("db-0")):
            await ground.upper.delete(ground.pod_path("db-0"))
    newer = await sooner(ground, "db-0")
    await ground.upper.until(ground.pod_path("db-0"), is_ready, LONG)
    assert newer["metadata"]["uid"] != older["metadata"]["uid"]
    running = await site.read(ground.pod_path("db-0"))
    await asyncio.to_thread(restore, ground.sandbox, UPPER, tmp_path / "backup")
    await held(ground)
    await ground.calm()
    assert (await site.read(ground.pod_path("db-0")))["metadata"]["uid"] == running["metadata"]["uid"]
    await ground.stop()
    await ground.start()
    await ground.calm()
    assert is_true(await held(ground), DELETIONS_BLOCKED)
    still = await site.read(ground.pod_path("db-0"))
    assert (still["metadata"]["uid"], "deletionTimestamp" in still["metadata"]) == (running["metadata"]["uid"], False)
    await ground.stop()
    await forced(ground)
    await site.gone(ground.pod_path("db-0"))
    await ground.start()


async def forced(ground: Ground) -> None:
    """Do the same as `tensile apply --force`."""
    opening = partial(opened, ground.topology(), ground.ways)
    await asyncio.to_thread(apply, opening, ApplyOptions(forced=True), lambda _plan: None)


async def a_volume(ground: Ground) -> None:
    """Create a static volume in the lower cluster, and map an upper storage class to its class."""
    site, disk = ground.sites[A], mark(ground, "disk")
    await ground.upper.create(CLASSES, shipped(mark(ground, "goes")))
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
    await ground.reload(stored(ground))


async def test_objects_of_a_restored_lower_cluster_are_not_deleted_and_missing_pods_not_lost(
    ground: Ground, tmp_path: Path
) -> None:
    """A pod and a claim that were deleted exist again and are kept.

    A newer pod, which the lower cluster has forgotten, still counts as running.
    """
    site, paths = ground.sites[A], (ground.pod_path("back"), claims(ground, "data"))
    await a_volume(ground)
    await ground.upper.create(claims(ground), claim(ground, "data"))
    await ground.run_pod("back", using("data"))
    await ground.upper.until(claims(ground, "data"), is_bound)
    before = [(await site.read(path))["metadata"]["uid"] for path in paths]
    await asyncio.to_thread(back_up, ground.sandbox, A, tmp_path / "backup")
    for path in paths:
        await ground.upper.delete(path)
        await ground.upper.gone(path, limit=LONG)
    await ground.upper.until_all(f"{VOLUMES}?labelSelector={OWNER}={ground.owner.mark}", lambda one: not one, LONG)
    await ground.bind("newer")
    await ground.upper.until(ground.pod_path("newer"), is_ready, LONG)
    await asyncio.to_thread(restore, ground.sandbox, A, tmp_path / "backup")
    for _ in range(2):
        await held(ground)
        await ground.calm()
        now = [(await site.read(path))["metadata"] for path in paths]
        assert [one["uid"] for one in now] == before
        assert [one["name"] for one in now if "deletionTimestamp" in one] == []
        assert (await ground.upper.read(ground.pod_path("newer")))["status"]["phase"] == "Running"
        await ground.stop()
        await ground.start(stored(ground))
    await ground.stop()
    await forced(ground)
    await ground.start()
    await site.delete(claims(ground, "data"))
