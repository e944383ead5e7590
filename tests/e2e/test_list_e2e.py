"""Tests of `tensile list` against the objects that an engine has created, with the engine's own permissions."""

import sys

import orjson
import pytest
from enginekit import UPPER, A, B, Done, Ground, ran
from sitekit import is_ready

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


async def listed(ground: Ground, *arguments: str) -> Done:
    """Run `tensile list`."""
    command = [sys.executable, "-m", "tensile", "list", *arguments, "-f", str(ground.save())]
    return await ran(command)


async def test_list_prints_exactly_the_objects_that_the_topology_owns(ground: Ground) -> None:
    """Objects of other topologies in the same clusters and objects of other clients are left out."""
    await ground.upper.create(ground.path("configmaps"), {"metadata": {"name": "settings"}, "data": {"key": "value"}})
    volumes = [{"name": "settings", "configMap": {"name": "settings"}}]
    await ground.bind("web", {"volumes": volumes})
    await ground.upper.until(ground.pod_path("web"), is_ready)
    await ground.sites[A].create(ground.path("configmaps"), {"metadata": {"name": "strange"}})
    await ground.calm()
    done = await listed(ground, "-o", "json")
    found = orjson.loads(done.out)
    owned = {(one["cluster"], one["kind"], one["namespace"], one["name"]) for one in found["items"]}
    space = ground.namespace
    assert {one for one in owned if one[0] != UPPER and one[0] != "upper"} == {
        (A, "Namespace", "", space),
        (A, "Pod", space, "web"),
        (A, "ConfigMap", space, "settings"),
    }
    assert {one for one in owned if one[1] == "Node"} == {("upper", "Node", "", node) for node in ground.nodes.values()}
    (mirror,) = (one for one in found["items"] if one["kind"] == "Namespace")
    assert mirror["upper_namespace"] == space
    assert (done.code, found["unread"]) == (0, []), done.err
    only = await listed(ground, B)
    assert (only.code, only.out) == (0, "No objects.\n")
