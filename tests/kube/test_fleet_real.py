"""Real control planes that die, freeze, forget and are restored from a backup, under a fleet that follows them."""

import asyncio
import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
from scripted import News, told

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
    """A control plane of these tests' own: others must not meet a cluster that lost its memory."""
    with Sandbox.start(tmp_path_factory.mktemp("breakable"), Options(lowers=0)) as started:
        for component in ("kube-controller-manager", "kube-scheduler"):
            started.suspend("upper", component)
        yield started


class Setting:
    """A fleet that follows the ConfigMaps of one test, marked by a label."""

    def __init__(self, fleet: Fleet, client: "HttpCluster", mark: str) -> None:
        self.fleet = fleet
        self.client = client
        self.mark = mark
        self.cache = Cache()
        self.news = News()
        self.informer: Informer = fleet.follow(
            InformerSpec(UPPER, CONFIG_MAP, Selection("default", f"mark={mark}"), self.cache)
        )

    def names(self) -> list[str]:
        """Return the cached names, sorted."""
        return sorted(entry.name.removeprefix(f"{self.mark}-") for entry in self.cache)

    async def has(self, *names: str) -> None:
        """Wait until exactly these objects are cached."""
        await told(self.cache, lambda: self.names() == sorted(names), LIMIT)

    async def create(self, name: str) -> str:
        """Create an object and give its UID."""
        ref = self.ref(name)
        labels = {"mark": self.mark}
        raw = await self.client.create(ref, {"metadata": {"name": ref.name, "labels": labels}})
        return str(orjson.loads(raw)["metadata"]["uid"])

    def ref(self, name: str) -> Ref:
        """Name an object of the test's."""
        return Ref(UPPER, CONFIG_MAP, "default", f"{self.mark}-{name}")


@asynccontextmanager
async def followed(sandbox: Sandbox, **options: float) -> AsyncIterator[Setting]:
    """Follow the cluster as the engine does, but for shorter waits."""
    news = News()
    pace = InformerTimings(cap=2.0, shortest=20, longest=20)
    settings = {"probe": 0.5, "patience": 1.0, **options}
    fleet = Fleet(chance=lambda: 0.5, pace=pace, sleep=news.sleep, **settings)
    client = fleet.open(UPPER, await from_kubeconfig(sandbox.directory / "upper.kubeconfig"))
    setting = Setting(fleet, client, f"f{uuid.uuid4().hex[:8]}")
    setting.news = news
    try:
        async with asyncio.timeout(LIMIT):
            await fleet.synced()
        yield setting
    finally:
        await fleet.close_all()


def directory(sandbox: Sandbox) -> Path:
    """Return etcd's data directory."""
    return sandbox.directory / "upper" / "etcd"


def restore(sandbox: Sandbox, backup: Path) -> None:
    """Put etcd's data of earlier in place of the present ones; etcd must not run."""
    shutil.rmtree(directory(sandbox))
    shutil.copytree(backup, directory(sandbox))


async def test_an_apiserver_killed_and_restarted_is_followed_on(breakable: Sandbox) -> None:
    """A kill -9 is noticed within a probe; what is created after the restart arrives."""
    async with followed(breakable) as setting:
        await setting.create("before")
        await setting.has("before")
        await asyncio.to_thread(breakable.kill, "upper", API)
        await setting.news.until(lambda: setting.fleet[UPPER].silent > 0, LIMIT)
        with pytest.raises(Unreachable):
            await setting.create("impossible")
        await asyncio.to_thread(breakable.restart, "upper", API)
        await _created(setting, "after")
        await setting.has("before", "after")
        assert setting.fleet[UPPER].silent == 0.0
        assert setting.informer.rewinds == 0
        assert setting.cache.synced


async def _created(setting: Setting, name: str) -> None:
    """Create as soon as the cluster takes it."""
    async with asyncio.timeout(LIMIT):
        while True:
            try:
                await setting.create(name)
            except ClusterError:
                await setting.news.until(lambda: setting.fleet[UPPER].silent == 0.0)
            else:
                return


async def test_a_frozen_apiserver_is_found_and_its_watch_goes_on(breakable: Sandbox) -> None:
    """SIGSTOP shows no error on the watch; the probe finds it, and after SIGCONT nothing was missed."""
    async with followed(breakable) as setting:
        await setting.create("before")
        await setting.has("before")
        breakable.suspend("upper", API)
        try:
            await setting.news.until(lambda: setting.fleet[UPPER].silent > 0, LIMIT)
            assert setting.fleet[UPPER].health.error == "no response within 1 s"
        finally:
            breakable.resume("upper", API)
        await setting.news.until(lambda: setting.fleet[UPPER].silent == 0.0, LIMIT)
        await setting.create("after")
        await setting.has("before", "after")
        assert setting.informer.relists == 1


async def test_a_deletion_in_a_gap_is_found_by_a_list(breakable: Sandbox) -> None:
    """A version from before the apiserver's restart is forgotten: 410, a list, and what is gone did not depart."""
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


async def test_a_store_restored_with_its_apiserver_is_found_out(breakable: Sandbox, tmp_path: Path) -> None:
    """The cluster is behind what was seen: the rewind is reported, and the cache holds what the restored store has."""
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
    """Copy etcd's data while it does not run."""
    sandbox.kill("upper", ETCD)
    shutil.copytree(directory(sandbox), backup)
    sandbox.restart("upper", ETCD)


def _restore_all(sandbox: Sandbox, backup: Path) -> None:
    """Kill apiserver and etcd, put the backup in place, and start both."""
    sandbox.kill("upper", API)
    sandbox.kill("upper", ETCD)
    restore(sandbox, backup)
    sandbox.restart("upper", ETCD, wait=False)
    sandbox.restart("upper", API)


async def test_a_store_restored_under_its_apiserver_is_found_out_by_a_create(
    breakable: Sandbox, tmp_path: Path
) -> None:
    """Lists and watches go on about the lost world; the answer to a create gives it away."""
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
