"""Tests of reading the topology from a ConfigMap and following it through the cache of that one object."""

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
    """Return a topology of these lowers, which have their kubeconfigs in Secrets."""
    entries = (f"\n- name: {name}\n  kubeconfigSecret: {{namespace: ops, name: {name}}}" for name in lowers)
    return HEAD + ("".join(entries) or " []") + "\n"


def config_map(version: int, data: dict[str, str] | None, uid: str = "map-1", **more: Any) -> Manifest:
    """Return the ConfigMap as the API returns it."""
    meta = {"namespace": "ops", "name": "topo", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": meta, **({} if data is None else {"data": data}), **more}


class ObservedConfigMap:
    """A cache that receives the ConfigMap, and the updates that follow from it."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.changed = asyncio.Event()
        self.cache.subscribe(lambda _delta: self.changed.set())
        self.cache.on_sync(self.changed.set)
        self.version = 10
        self.readings: AsyncGenerator[TopologyUpdate, None]

    def put(self, content: str, **more: Any) -> None:
        """Deliver an edit by the watch."""
        self.version += 1
        self.cache.put(orjson.dumps(config_map(self.version, {"topology.yaml": content}, **more)))

    def remove(self) -> None:
        """Deliver the deletion by the watch."""
        self.version += 1
        self.cache.remove(orjson.dumps(config_map(self.version, {})))

    def idle(self) -> bool:
        """Report whether a follower would have no update now."""
        return not self.changed.is_set()

    async def next(self) -> TopologyUpdate:
        """Return the next update."""
        async with asyncio.timeout(60):
            return await anext(self.readings)


@asynccontextmanager
async def updates_of_configmap(first: str) -> AsyncGenerator[ObservedConfigMap, None]:
    """Follow a ConfigMap that has a topology from the start."""
    made = ObservedConfigMap()
    made.cache.replace([orjson.dumps(config_map(10, {"topology.yaml": first}))], 10)
    made.readings = follow_configmap(made.cache, PLACE, made.changed, parse(first, configmap_mode=True))
    async with aclosing(made.readings):
        assert not (await made.next()).changed
        yield made


async def turns() -> None:
    """Let all tasks run that can continue."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_the_text_of_a_key_is_read_with_hash_version_and_uid() -> None:
    """The hash is that of the bytes, as `sha256sum` of the file prints it."""
    found = document(config_map(5, {"other": "x", "topology.yaml": text("a")}), PLACE)
    content = text("a").encode()
    assert found == ConfigMapText(TopologyText(len(content), sha256(content).hexdigest(), "5", "map-1"), content)
    assert [lower.name for lower in read_configmap(found, PLACE).lowers] == ["a"]


def test_another_key_of_the_config_map_can_be_configured() -> None:
    """Errors name that key."""
    configmap_key = PLACE._replace(key="prod.yaml")
    found = document(config_map(5, {"prod.yaml": "kind: x\n", "topology.yaml": text()}), configmap_key)
    with pytest.raises(TensileError) as refusal:
        read_configmap(found, configmap_key)
    assert str(refusal.value).splitlines()[0].startswith("configmap/ops/topo/prod.yaml:1:1: ")


def test_binary_data_with_invalid_utf8_is_an_error_with_its_position() -> None:
    """`kubectl` stores a file with such a byte as binaryData."""
    data = text("a").encode() + b"# \xff\n"
    found = document(config_map(5, None, binaryData={"topology.yaml": b64encode(data).decode()}), PLACE)
    with pytest.raises(TensileError, match=r"topology\.yaml:7:3: .*not valid UTF-8"):
        read_configmap(found, PLACE)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (None, NONE),
        (config_map(5, None), "has no key topology.yaml (keys: none)"),
        (config_map(5, {"b": "", "a": ""}), "has no key topology.yaml (keys: a, b)"),
        (config_map(5, {f"k{number:02}": "" for number in range(11)}), "k08, k09, ...)"),
    ],
    ids=["no map", "no data", "other keys", "many keys"],
)
def test_a_missing_config_map_or_key_is_an_error(manifest: Manifest | None, message: str) -> None:
    """The error has the remedy, or the keys that exist."""
    found = document(manifest, PLACE)
    assert message in found.problem
    assert bool(found.text.uid) is (manifest is not None)
    with pytest.raises(TensileError, match="configmap/ops/topo: "):
        read_configmap(found, PLACE)


@pytest.mark.parametrize(
    "line",
    ["upper: {kubeconfig: k}", "kubelet: {clientCAFile: ca.crt}", "lowers: [{name: a, kubeconfig: k}]"],
)
def test_file_paths_in_a_config_map_are_errors(line: str) -> None:
    """No files exist beside a ConfigMap."""
    whole = HEAD.removesuffix("\nlowers:") + "\n" + line + ("" if "lowers" in line else "\nlowers: []") + "\n"
    with pytest.raises(TensileError, match="a topology in a ConfigMap cannot have"):
        read_configmap(document(config_map(5, {"topology.yaml": whole}), PLACE), PLACE)


async def test_each_edit_is_yielded_with_its_version() -> None:
    """It states whether its meaning differs from that of the text before."""
    async with updates_of_configmap(text()) as map_:
        map_.put(text("a"))
        found = await map_.next()
        assert (found.changed, found.text.version) == (True, "11")
        map_.put("# a comment\n" + text("a"))
        found = await map_.next()
        assert (found.changed, found.text.version, found.error) == (False, "12", None)


async def test_an_invalid_edit_is_an_error_with_its_position() -> None:
    """The next valid edit is compared with the last valid one."""
    async with updates_of_configmap(text("a")) as map_:
        map_.put(text("A"))
        found = await map_.next()
        assert str(found.error).startswith("configmap/ops/topo/topology.yaml:5:9: lowers[0].name: ")
        assert (found.topology, found.text.version, found.text.uid) == (None, "11", "map-1")
        map_.put(text("a"))
        assert (await map_.next()).changed is False
        map_.put(text("b"))
        assert (await map_.next()).changed is True


async def test_a_deleted_config_map_is_an_error_and_a_new_one_is_followed() -> None:
    """The new one is compared with the last valid topology."""
    async with updates_of_configmap(text("a")) as map_:
        map_.remove()
        found = await map_.next()
        assert (str(found.error), found.text) == (NONE, TopologyText())
        map_.put(text("a"), uid="map-2")
        found = await map_.next()
        assert (found.changed, found.text.uid) == (False, "map-2")


async def test_a_missing_config_map_is_not_reported_while_the_cache_is_not_synced() -> None:
    """A list has to confirm first that it does not exist."""
    async with updates_of_configmap(text("a")) as map_:
        pending = asyncio.ensure_future(map_.next())
        await asyncio.sleep(0)
        map_.cache.mark_stale()
        map_.remove()
        await turns()
        assert not map_.changed.is_set()
        assert not pending.done()
        map_.cache.replace([], 30)
        assert str((await pending).error) == NONE


async def test_only_the_last_of_several_edits_is_yielded() -> None:
    """A burst of edits is one change."""
    async with updates_of_configmap(text()) as map_:
        for name in ("a", "b", "c"):
            map_.put(text(name))
        found = await map_.next()
        assert found.topology is not None
        assert [lower.name for lower in found.topology.lowers] == ["c"]
        assert map_.idle()


async def test_a_notification_without_a_change_yields_nothing() -> None:
    """A list can deliver a state that is known already."""
    async with updates_of_configmap(text("a")) as map_:
        map_.changed.set()
        pending = asyncio.ensure_future(map_.next())
        await turns()
        assert not map_.changed.is_set()
        map_.put(text("b"))
        assert (await pending).text.version == "11"


async def test_a_large_text_is_parsed_in_a_thread() -> None:
    """Other tasks run while it is parsed."""
    async with updates_of_configmap(text()) as map_:
        map_.put("#" * 70_000 + "\n" + text(*(f"lower-{number}" for number in range(200))))
        pending, count = asyncio.ensure_future(map_.next()), 0
        while not pending.done():
            await asyncio.sleep(0)
            count += 1
        assert (await pending).changed
        assert count > 10
