"""Tests of a fleet with real control planes that are killed, frozen, and restored from a backup."""

import asyncio
import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
from scripted import ChangeSignal, wait_for_cache

from tensile.errors import ClusterError, Unreachable
from tensile.kube.cluster import Selection
from tensile.kube.credentials import from_kubeconfig
from tensile.kube.fleet import Fleet, InformerSpec
from tensile.kube.limits import InformerTimings
from tensile.kube.store import Cache
from tensile.objects import CONFIG_MAP, UPPER, Ref
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

if TYPE_CHECKING:
    from tensile.kube.client import HttpCluster
    from tensile.kube.informer import Informer

pytestmark = pytest.mark.real

API, ETCD = "kube-apiserver", "etcd"
LIMIT = 60.0


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A control plane for these tests only, because other tests must not use a cluster whose etcd is restored."""
    with Sandbox.start(tmp_path_factory.mktemp("breakable"), Options(lowers=0)) as started:
        for component in ("kube-controller-manager", "kube-scheduler"):
            started.suspend("upper", component)
        yield started


class ConfigMapFleet:
    """A fleet that watches the ConfigMaps of one test, which have a label."""

    def __init__(self, fleet: Fleet, client: "HttpCluster", mark: str) -> None:
        self.fleet = fleet
        self.client = client
        self.mark = mark
        self.cache = Cache()
        self.news = ChangeSignal()
        self.informer: Informer = fleet.follow(
            InformerSpec(UPPER, CONFIG_MAP, Selection("default", f"mark={mark}"), self.cache)
        )

    def names(self) -> list[str]:
        """Return the cached names, sorted."""
        return sorted(entry.name.removeprefix(f"{self.mark}-") for entry in self.cache)

    async def has(self, *names: str) -> None:
        """Wait until exactly these objects are cached."""
        await wait_for_cache(self.cache, lambda: self.names() == sorted(names), LIMIT)

    async def create(self, name: str) -> str:
        """Create an object and return its UID."""
        ref = self.ref(name)
        labels = {"mark": self.mark}
        raw = await self.client.create(ref, {"metadata": {"name": ref.name, "labels": labels}})
        return str(orjson.loads(raw)["metadata"]["uid"])

    def ref(self, name: str) -> Ref:
        """Return the reference of an object of this test."""
        return Ref(UPPER, CONFIG_MAP, "default", f"{self.mark}-{name}")


@asynccontextmanager
async def followed(sandbox: Sandbox, **options: float) -> AsyncIterator[ConfigMapFleet]:
    """Watch the cluster as the engine does, with shorter waits."""
    news = ChangeSignal()
    pace = InformerTimings(cap=2.0, shortest=20, longest=20)
    settings = {"probe": 0.5, "patience": 1.0, **options}
    fleet = Fleet(chance=lambda: 0.5, pace=pace, sleep=news.sleep, **settings)
    client = fleet.open(UPPER, await from_kubeconfig(sandbox.directory / "upper.kubeconfig"))
    setting = ConfigMapFleet(fleet, client, f"f{uuid.uuid4().hex[:8]}")
    setting.news = news
    try:
        async with asyncio.timeout(LIMIT):
            await fleet.synced()
        yield setting
    finally:
        await fleet.close_all()


def directory(sandbox: Sandbox) -> Path:
    """Return the data directory of etcd."""
    return sandbox.directory / "upper" / "etcd"


def restore(sandbox: Sandbox, backup: Path) -> None:
    """Replace the data of etcd by an earlier copy; etcd must not run."""
    shutil.rmtree(directory(sandbox))
    shutil.copytree(backup, directory(sandbox))


async def test_a_killed_apiserver_is_detected_and_watched_again_after_its_restart(breakable: Sandbox) -> None:
    """The probe detects a kill -9, and objects that are created after the restart are cached."""
    async with followed(breakable) as setting:
        await setting.create("before")
        await setting.has("before")
        await asyncio.to_thread(breakable.kill, "upper", API)
        await setting.news.wait_until(lambda: setting.fleet[UPPER].unreachable_seconds > 0, LIMIT)
        with pytest.raises(Unreachable):
            await setting.create("impossible")
        await asyncio.to_thread(breakable.restart, "upper", API)
        await _created(setting, "after")
        await setting.has("before", "after")
        assert setting.fleet[UPPER].unreachable_seconds == 0.0
        assert setting.informer.rewinds == 0
        assert setting.cache.synced


async def _created(setting: ConfigMapFleet, name: str) -> None:
    """Create an object as soon as the cluster accepts it."""
    async with asyncio.timeout(LIMIT):
        while True:
            try:
                await setting.create(name)
            except ClusterError:
                await setting.news.wait_until(lambda: setting.fleet[UPPER].unreachable_seconds == 0.0)
            else:
                return


async def test_a_frozen_apiserver_is_detected_and_its_watch_continues(breakable: Sandbox) -> None:
    """After SIGSTOP the watch shows no error, but the probe fails; after SIGCONT no event was missed."""
    async with followed(breakable) as setting:
        await setting.create("before")
        await setting.has("before")
        breakable.suspend("upper", API)
        try:
            await setting.news.wait_until(lambda: setting.fleet[UPPER].unreachable_seconds > 0, LIMIT)
            assert setting.fleet[UPPER].health.error == "no response within 1 s"
        finally:
            breakable.resume("upper", API)
        await setting.news.wait_until(lambda: setting.fleet[UPPER].unreachable_seconds == 0.0, LIMIT)
        await setting.create("after")
        await setting.has("before", "after")
        assert setting.informer.relists == 1


async def test_a_deletion_while_no_watch_runs_is_detected_by_a_new_list(breakable: Sandbox) -> None:
    """The old resourceVersion has expired after the restart (410); the list leaves no tombstone for the object."""
    async with followed(breakable) as setting:
        uid = await setting.create("gone")
        await setting.create("kept")
        await setting.has("gone", "kept")
        for task in setting.fleet[UPPER]._tasks[1:]:
            task.cancel()
        await setting.client.delete(setting.ref("gone"), uid=uid)
        await setting.create("new")
        await asyncio.to_thread(breakable.restart, "upper", API)
        again = asyncio.create_task(setting.informer.run())
        await setting.has("kept", "new")
        again.cancel()
        assert setting.cache.tombstone("default", setting.ref("gone").name) is None
        assert setting.informer.relists == 2
        assert setting.informer.rewinds == 0


async def test_a_restore_of_etcd_with_a_restart_of_the_apiserver_is_detected(
    breakable: Sandbox, tmp_path: Path
) -> None:
    """The resourceVersion is older than before: the rewind is counted, and the cache has the restored objects."""
    async with followed(breakable) as setting:
        await setting.create("saved")
        await setting.has("saved")
        await asyncio.to_thread(_back_up, breakable, tmp_path / "backup")
        for number in range(30):
            await _created(setting, f"lost-{number}")
        await setting.has("saved", *(f"lost-{number}" for number in range(30)))
        await asyncio.to_thread(_restore_all, breakable, tmp_path / "backup")
        await setting.has("saved")
        assert setting.informer.rewinds == 1
        assert setting.cache.synced
        await _created(setting, "after")
        await setting.has("saved", "after")


def _back_up(sandbox: Sandbox, backup: Path) -> None:
    """Copy the data of etcd while it does not run."""
    sandbox.kill("upper", ETCD)
    shutil.copytree(directory(sandbox), backup)
    sandbox.restart("upper", ETCD)


def _restore_all(sandbox: Sandbox, backup: Path) -> None:
    """Kill apiserver and etcd, restore the backup, and start both."""
    sandbox.kill("upper", API)
    sandbox.kill("upper", ETCD)
    restore(sandbox, backup)
    sandbox.restart("upper", ETCD, wait=False)
    sandbox.restart("upper", API)


async def test_a_restore_of_etcd_without_a_restart_of_the_apiserver_is_detected_by_a_create(
    breakable: Sandbox, tmp_path: Path
) -> None:
    """Lists and watches still return lost objects, but the response to a create has an old resourceVersion."""
    async with followed(breakable) as setting:
        await setting.create("saved")
        await setting.has("saved")
        await asyncio.to_thread(_back_up, breakable, tmp_path / "backup")
        for number in range(30):
            await _created(setting, f"lost-{number}")
        await setting.has("saved", *(f"lost-{number}" for number in range(30)))
        breakable.kill("upper", ETCD)
        restore(breakable, tmp_path / "backup")
        await asyncio.to_thread(breakable.restart, "upper", ETCD)
        before = setting.informer.rewinds
        await _created(setting, "telltale")
        assert setting.informer.rewinds > before
        await asyncio.to_thread(breakable.restart, "upper", API)
        await setting.has("saved", "telltale")
