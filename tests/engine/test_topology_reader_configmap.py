"""The topology in a ConfigMap, as the cache of that one object tells of it."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from hashlib import sha256
from typing import Any

import orjson
import pytest

from tensile.engine.topology_reader import (
    ConfigMapKey,
    ConfigMapText,
    TopologyText,
    TopologyUpdate,
    document,
    follow_configmap,
    read_configmap,
)
from tensile.errors import TensileError
from tensile.kube.store import Cache
from tensile.objects import Manifest
from tensile.topology import parse

PLACE = ConfigMapKey("ops", "topo")
HEAD = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers:"
NONE = "configmap/ops/topo: the ConfigMap does not exist in the upper cluster: create it"


def text(*lowers: str) -> str:
    """Write a topology of these lowers, which have their kubeconfigs in Secrets."""
    entries = (f"\n- name: {name}\n  kubeconfigSecret: {{namespace: ops, name: {name}}}" for name in lowers)
    return HEAD + ("".join(entries) or " []") + "\n"


def config_map(version: int, data: dict[str, str] | None, uid: str = "map-1", **more: Any) -> Manifest:
    """Make the ConfigMap as the API gives it."""
    meta = {"namespace": "ops", "name": "topo", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": meta, **({} if data is None else {"data": data}), **more}


class ObservedConfigMap:
    """A cache that is told of the ConfigMap, and what comes of it."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.changed = asyncio.Event()
        self.cache.subscribe(lambda _delta: self.changed.set())
        self.cache.on_sync(self.changed.set)
        self.version = 10
        self.readings: AsyncGenerator[TopologyUpdate, None]

    def put(self, content: str, **more: Any) -> None:
        """Let the watch tell of an edit."""
        self.version += 1
        self.cache.put(orjson.dumps(config_map(self.version, {"topology.yaml": content}, **more)))

    def remove(self) -> None:
        """Let the watch tell that it is gone."""
        self.version += 1
        self.cache.remove(orjson.dumps(config_map(self.version, {})))

    def idle(self) -> bool:
        """Report whether a follower would have nothing to give now."""
        return not self.changed.is_set()

    async def next(self) -> TopologyUpdate:
        """Return the next state."""
        async with asyncio.timeout(60):
            return await anext(self.readings)


@asynccontextmanager
async def told(first: str) -> AsyncGenerator[ObservedConfigMap, None]:
    """Follow a ConfigMap that holds a topology from the start."""
    made = ObservedConfigMap()
    made.cache.replace([orjson.dumps(config_map(10, {"topology.yaml": first}))], 10)
    made.readings = follow_configmap(made.cache, PLACE, made.changed, parse(first, configmap_mode=True))
    async with aclosing(made.readings):
        assert not (await made.next()).changed
        yield made


async def turns() -> None:
    """Let everybody who can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_the_text_of_a_key_is_found_with_what_tells_it_from_another() -> None:
    """Its hash is that of the bytes, as `sha256sum` of the file gives it."""
    found = document(config_map(5, {"other": "x", "topology.yaml": text("a")}), PLACE)
    content = text("a").encode()
    assert found == ConfigMapText(TopologyText(len(content), sha256(content).hexdigest(), "5", "map-1"), content)
    assert [lower.name for lower in read_configmap(found, PLACE).lowers] == ["a"]


def test_another_key_can_be_named() -> None:
    """And is named in errors."""
    place = PLACE._replace(key="prod.yaml")
    found = document(config_map(5, {"prod.yaml": "kind: x\n", "topology.yaml": text()}), place)
    with pytest.raises(TensileError) as refusal:
        read_configmap(found, place)
    assert str(refusal.value).splitlines()[0].startswith("configmap/ops/topo/prod.yaml:1:1: ")


def test_what_kubectl_took_for_binary_is_looked_at() -> None:
    """A byte that is not valid UTF-8 is reported by its position."""
    data = text("a").encode() + b"# \xff\n"
    found = document(config_map(5, None, binaryData={"topology.yaml": b64encode(data).decode()}), PLACE)
    with pytest.raises(TensileError, match=r"topology\.yaml:7:3: .*not valid UTF-8"):
        read_configmap(found, PLACE)


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (None, NONE),
        (config_map(5, None), "has no key topology.yaml (keys: none)"),
        (config_map(5, {"b": "", "a": ""}), "has no key topology.yaml (keys: a, b)"),
        (config_map(5, {f"k{number:02}": "" for number in range(11)}), "k08, k09, ...)"),
    ],
    ids=["no map", "no data", "other keys", "many keys"],
)
def test_where_there_is_no_text_that_is_said(manifest: Manifest | None, words: str) -> None:
    """With what to do about it."""
    found = document(manifest, PLACE)
    assert words in found.trouble
    assert bool(found.text.uid) is (manifest is not None)
    with pytest.raises(TensileError, match="configmap/ops/topo: "):
        read_configmap(found, PLACE)


@pytest.mark.parametrize(
    "line",
    ["upper: {kubeconfig: k}", "kubelet: {clientCAFile: ca.crt}", "lowers: [{name: a, kubeconfig: k}]"],
)
def test_paths_are_errors(line: str) -> None:
    """There are no files beside a ConfigMap."""
    whole = HEAD.removesuffix("\nlowers:") + "\n" + line + ("" if "lowers" in line else "\nlowers: []") + "\n"
    with pytest.raises(TensileError, match="a topology in a ConfigMap cannot have"):
        read_configmap(document(config_map(5, {"topology.yaml": whole}), PLACE), PLACE)


async def test_edits_are_given_as_they_come() -> None:
    """Each with its version, and with whether it means something else than before."""
    async with told(text()) as map_:
        map_.put(text("a"))
        found = await map_.next()
        assert (found.changed, found.text.version) == (True, "11")
        map_.put("# a comment\n" + text("a"))
        found = await map_.next()
        assert (found.changed, found.text.version, found.error) == (False, "12", None)


async def test_a_bad_edit_is_refused_by_place() -> None:
    """The next good one is held against the last good one."""
    async with told(text("a")) as map_:
        map_.put(text("A"))
        found = await map_.next()
        assert str(found.error).startswith("configmap/ops/topo/topology.yaml:5:9: lowers[0].name: ")
        assert (found.topology, found.text.version, found.text.uid) == (None, "11", "map-1")
        map_.put(text("a"))
        assert (await map_.next()).changed is False
        map_.put(text("b"))
        assert (await map_.next()).changed is True


async def test_a_deleted_one_is_refused_and_a_new_one_followed() -> None:
    """The last good topology is what the new one is held against."""
    async with told(text("a")) as map_:
        map_.remove()
        found = await map_.next()
        assert (str(found.error), found.text) == (NONE, TopologyText())
        map_.put(text("a"), uid="map-2")
        found = await map_.next()
        assert (found.changed, found.text.uid) == (False, "map-2")


async def test_what_is_missing_from_a_cache_that_is_not_in_sync_may_be_there() -> None:
    """Nothing is said of it until a list shows that it is gone."""
    async with told(text("a")) as map_:
        pending = asyncio.ensure_future(map_.next())
        await asyncio.sleep(0)
        map_.cache.mark_stale()
        map_.remove()
        await turns()
        assert not map_.changed.is_set()
        assert not pending.done()
        map_.cache.replace([], 30)
        assert str((await pending).error) == NONE


async def test_only_the_last_of_several_edits_is_dealt_with() -> None:
    """A burst of edits is one change."""
    async with told(text()) as map_:
        for name in ("a", "b", "c"):
            map_.put(text(name))
        found = await map_.next()
        assert found.topology is not None
        assert [lower.name for lower in found.topology.lowers] == ["c"]
        assert map_.idle()


async def test_a_word_of_the_same_state_is_no_reading() -> None:
    """A list that shows what was known already."""
    async with told(text("a")) as map_:
        map_.changed.set()
        pending = asyncio.ensure_future(map_.next())
        await turns()
        assert not map_.changed.is_set()
        map_.put(text("b"))
        assert (await pending).text.version == "11"


async def test_a_large_text_has_a_thread_of_its_own() -> None:
    """Something else goes on while it is parsed."""
    async with told(text()) as map_:
        map_.put("#" * 70_000 + "\n" + text(*(f"lower-{number}" for number in range(200))))
        pending, count = asyncio.ensure_future(map_.next()), 0
        while not pending.done():
            await asyncio.sleep(0)
            count += 1
        assert (await pending).changed
        assert count > 10
